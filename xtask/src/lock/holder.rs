//! The lock while it is held: the listening socket, and a thread that answers whoever asks who holds it.
//!
//! Nothing that a client does may block it, use up its descriptors, or keep the port after it is gone.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use socket2::Socket;

use crate::lock::banner::{ANSWER_MAX, Asking, Claim};
use crate::lock::wait::next_in_line;
use crate::sys;
use crate::time::Moment;

/// How long the waiters that are not the next one are told later. A hand-over takes a tenth of it.
const HEAD_START: Duration = Duration::from_micros(1500);
/// Connections taken at once before anything else is looked at.
const ACCEPTS: usize = 64;
/// How long no connection is taken after the descriptors were used up.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// The lock. The port is free again once this, and every copy that was handed out, is dropped. Letting go only ever
/// closes: a `shutdown` of the listener would free the port under the copy of the run's other process.
#[must_use = "the lock is free again once this is dropped"]
#[derive(Debug)]
pub struct HeldLock {
    // `None` only while it is dropped.
    listener: Option<Arc<Socket>>,
    claim: Arc<Mutex<Claim>>,
    bell: Option<PipeWriter>,
    server: Option<JoinHandle<()>>,
}

impl HeldLock {
    /// Takes over a listening socket and answers for it with `claim`. Errors if there is no thread or pipe to be had.
    pub(super) fn new(listener: Socket, port: u16, claim: Claim) -> io::Result<Self> {
        let (ring, bell) = io::pipe()?;
        let (listener, claim) = (Arc::new(listener), Arc::new(Mutex::new(claim)));
        let (socket, says) = (Arc::clone(&listener), Arc::clone(&claim));
        // The Rust part of the stack needs little, and the memory of a holder is what delays its death.
        let thread = thread::Builder::new().name(format!("lock-{port}")).stack_size(256 * 1024);
        let server = thread.spawn(move || serve(socket, &says, &ring))?;
        Ok(Self { listener: Some(listener), claim, bell: Some(bell), server: Some(server) })
    }

    /// Changes what is told to those who ask from now on.
    pub fn say(&self, change: impl FnOnce(&mut Claim)) {
        change(&mut self.claim.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A copy of the listening socket that a child process inherits. Drop it right after the spawn: whoever has it holds
    /// the lock too. Errors if there is no descriptor to be had.
    pub fn inheritable(&self) -> io::Result<OwnedFd> {
        let listener = self.listener.as_ref().expect("held until it is dropped");
        let copy = OwnedFd::from(listener.try_clone()?);
        fcntl(&copy, FcntlArg::F_SETFD(FdFlag::empty()))?;
        Ok(copy)
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Ours first: the thread's copy is the last one, and its close frees the port.
        self.listener = None;
        self.bell = None;
        if let Some(server) = self.server.take() {
            // It ended by a panic at worst, and then its copy is closed as well.
            let _ = server.join();
        }
    }
}

// One connection.
struct Client {
    socket: Socket,
    got: Vec<u8>,
    asking: Option<(Asking, Moment)>,
    gone: bool,
}

fn serve(listener: Arc<Socket>, claim: &Mutex<Claim>, ring: &PipeReader) {
    let mut clients: Vec<Client> = Vec::new();
    let most = most_clients();
    let mut pause = false;
    loop {
        let accepting = if pause { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds = vec![PollFd::new(ring.as_fd(), PollFlags::POLLIN), PollFd::new(listener.as_fd(), accepting)];
        fds.extend(clients.iter().map(|client| PollFd::new(client.socket.as_fd(), PollFlags::POLLIN)));
        let limit = if pause { PollTimeout::try_from(EXHAUSTED_PAUSE).expect("short") } else { PollTimeout::NONE };
        let seen = match poll(&mut fds, limit) {
            Ok(_) => true,
            // An interrupted poll says nothing about anybody; the next one will.
            Err(Errno::EINTR) => false,
            // Without it nobody can be answered any more. The lock stays held: this is not its only copy.
            Err(_) => break,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| seen && fd.any().unwrap_or(true)).collect();
        for (client, _) in clients.iter_mut().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            client.listen();
        }
        clients.retain(|client| !client.gone);
        pause = !accept_some(&listener, claim, &mut clients, most);
        if ready[0] {
            break;
        }
    }
    // Those that came last moment have a word in the order too.
    clients.iter_mut().for_each(Client::listen);
    clients.retain(|client| !client.gone);
    drop(listener);
    hand_over(clients);
}

// The next in line sees the hang-up first and takes the port before the others try. That it does is a matter of time, so no
// test can tell for certain that the head start is there; the turns in the benchmark of hand-overs do.
fn hand_over(mut clients: Vec<Client>) {
    let now = sys::now();
    if let Some(next) = next_in_line(clients.iter().map(|client| client.waited_us(now))) {
        clients.swap_remove(next);
    }
    if !clients.is_empty() {
        thread::sleep(HEAD_START);
    }
}

// Takes what waits in the backlog and answers it. False if there are no descriptors left to do so.
fn accept_some(listener: &Socket, claim: &Mutex<Claim>, clients: &mut Vec<Client>, most: usize) -> bool {
    for _ in 0..ACCEPTS {
        match listener.accept() {
            Ok((socket, _)) => {
                let line = banner(claim, clients);
                // A line fits the buffer of a new connection, so it never blocks; a client that does not read it has none.
                let told =
                    socket.set_nonblocking(true).is_ok() && socket.send(&line).is_ok_and(|sent| sent == line.len());
                if told && make_room(clients, most) {
                    clients.push(Client { socket, got: Vec::new(), asking: None, gone: false });
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
            Err(_) => {
                // No descriptors left, of this process or of the system. Whoever only sits there has to go.
                clients.retain(|client| client.asking.is_some());
                return false;
            }
        }
    }
    true
}

// The oldest of those that do not wait goes. Where all of them wait there is no room: a newcomer polls.
fn make_room(clients: &mut Vec<Client>, most: usize) -> bool {
    if clients.len() < most {
        return true;
    }
    let idle = clients.iter().position(|client| client.asking.is_none());
    idle.map(|idle| clients.remove(idle)).is_some()
}

// A small part of what this process may open: the run needs descriptors too.
fn most_clients() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    usize::try_from(soft / 8).unwrap_or(usize::MAX).clamp(4, 256)
}

fn banner(claim: &Mutex<Claim>, clients: &[Client]) -> Vec<u8> {
    let mut claim = claim.lock().unwrap_or_else(PoisonError::into_inner).trimmed();
    let now = sys::clocks();
    let mut waits: Vec<(&str, u64)> = clients
        .iter()
        .filter_map(|client| Some((client.asking.as_ref()?.0.run.as_str(), client.waited_us(now.monotonic)?)))
        .collect();
    waits.sort_unstable();
    waits.dedup_by_key(|(run, _)| *run);
    claim.waiting = Some(waits.len() as u64);
    claim.waiting_since_ms = waits.iter().map(|&(_, us)| now.wall_ms.saturating_sub(us / 1000)).min();
    claim.line()
}

impl Client {
    // Reads what has come, without ever waiting for it.
    fn listen(&mut self) {
        let mut buffer = [0; ANSWER_MAX + 1];
        let socket: BorrowedFd = self.socket.as_fd();
        match nix::unistd::read(socket, &mut buffer) {
            Ok(0) => self.gone = true,
            Ok(count) => self.got.extend(&buffer[..count]),
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(_) => self.gone = true,
        }
        // One line, and no more: whoever says more, or something else, is not waiting.
        let end = self.got.iter().position(|&byte| byte == b'\n');
        match (end, &self.asking) {
            (Some(end), None) if self.got.len() <= ANSWER_MAX => {
                let now = sys::now();
                // Nobody has waited for longer than the machine is up.
                let honest = |asking: &Asking| asking.waited_us <= now.as_nanos() / 1000;
                self.asking = Asking::read(&self.got[..end]).filter(honest).map(|asking| (asking, now));
                self.gone |= self.asking.is_none();
            }
            _ => self.gone |= self.got.len() > ANSWER_MAX,
        }
    }

    fn waited_us(&self, now: Moment) -> Option<u64> {
        let (asking, heard) = self.asking.as_ref()?;
        let since = u64::try_from(now.since(*heard).as_micros()).unwrap_or(u64::MAX);
        Some(asking.waited_us.saturating_add(since))
    }
}

/// Who this process is, for the banner: user, distribution, pid and pid namespace.
pub(super) fn here() -> Claim {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let release = read("/etc/os-release");
    let field = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(line.trim_matches('"').to_owned())
    };
    let named = [field("ID"), field("VERSION_ID")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let distribution = std::env::var("WSL_DISTRO_NAME").ok().unwrap_or(named);
    Claim {
        user: Some(super::sockets::user(nix::unistd::geteuid().as_raw())),
        distribution: Some(distribution).filter(|name| !name.is_empty()),
        pid: Some(u64::from(std::process::id())),
        pid_namespace: sys::namespace("pid"),
        since_ms: Some(sys::clocks().wall_ms),
        ..Claim::default()
    }
}
