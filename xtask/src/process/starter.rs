//! The threads that start what is pinned to CPUs.
//!
//! A child inherits the CPUs of the thread that starts it, and std stays on posix_spawn, which any code between fork and
//! exec would rule out. The thread that goes on with the run must not be the one: moved to the child's CPU, it keeps the
//! child waiting there (a quarter of a millisecond for each task, where two slots are two CPUs). And to start a process
//! takes as long as many a task: the run goes on meanwhile. These threads are asleep when their CPUs are set, so that
//! nothing has to be moved.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use super::affinity;
use super::family::Owner;

/// How many there are at most. One starts thousands of processes a second.
const MOST: usize = 2;

/// What is being started.
#[derive(Debug)]
pub(super) struct Starting {
    pub(super) owner: Owner,
    pub(super) label: String,
    pub(super) program: String,
    pub(super) cpus: Vec<usize>,
    pub(super) log: Option<PathBuf>,
}

/// What has come of it.
pub(super) type Started = (Starting, io::Result<duct::Handle>);

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Starters {
    all: Vec<Starter>,
    // A byte for each start that has an outcome.
    told: UnixStream,
    tell: UnixStream,
}

#[derive(Debug)]
struct Starter {
    id: i32,
    cpus: Vec<usize>,
    work: Sender<duct::Expression>,
    outcome: Receiver<io::Result<duct::Handle>>,
    starting: Option<Starting>,
}

impl Starters {
    /// None yet: they come with the first work. Errors if the system has no pair of sockets.
    pub(super) fn new() -> io::Result<Self> {
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        tell.set_nonblocking(true)?;
        Ok(Self { all: Vec::new(), told, tell })
    }

    /// One that has nothing to do and is pinned to these CPUs: from now on, if it was not. None if all are starting something.
    /// Errors if the system has no thread, or refuses the CPUs.
    pub(super) fn pinned(&mut self, cpus: &[usize]) -> Result<Option<usize>, String> {
        let same = self.all.iter().position(|starter| starter.is_free() && starter.cpus == cpus);
        if same.is_some() {
            return Ok(same);
        }
        if self.all.len() < MOST {
            match self.tell.try_clone().and_then(Starter::new) {
                Ok(starter) => self.all.push(starter),
                Err(e) if self.all.is_empty() => return Err(format!("no thread to start them from: {e}")),
                Err(_) => {}
            }
        }
        let Some(index) = self.all.iter().rposition(Starter::is_free) else { return Ok(None) };
        affinity::pin(self.all[index].id, cpus)?;
        self.all[index].cpus = cpus.to_vec();
        Ok(Some(index))
    }

    /// Has that one start a command, as `duct::Expression::start` does.
    pub(super) fn begin(&mut self, index: usize, what: Starting, command: duct::Expression) {
        // One that is gone shows as such when the outcome is asked for.
        let _ = self.all[index].work.send(command);
        self.all[index].starting = Some(what);
    }

    /// What was begun and has an outcome by now, which is waited for if `wait`.
    pub(super) fn ended(&mut self, wait: bool) -> Vec<Started> {
        self.all.iter_mut().filter_map(|starter| starter.ended(wait)).collect()
    }

    /// Whether an owner's process is being started.
    pub(super) fn has(&self, owner: Owner) -> bool {
        self.starting().any(|(_, starting)| starting.owner == owner)
    }

    /// The threads that start something whose outcome was not given yet.
    pub(super) fn busy(&self) -> Vec<i32> {
        self.starting().map(|(thread, _)| thread).collect()
    }

    fn starting(&self) -> impl Iterator<Item = (i32, &Starting)> {
        self.all.iter().filter_map(|starter| Some((starter.id, starter.starting.as_ref()?)))
    }

    /// Takes what makes `as_fd` readable.
    pub(super) fn hear(&mut self) {
        let _ = self.told.read(&mut [0; 64]);
    }
}

/// Readable when something has an outcome.
impl AsFd for Starters {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}

impl Starter {
    fn new(tell: UnixStream) -> io::Result<Self> {
        let (work, wanted) = mpsc::channel::<duct::Expression>();
        let (give, outcome) = mpsc::channel();
        let (introduce, introduced) = mpsc::channel();
        thread::Builder::new().name("starter".to_owned()).spawn(move || {
            let _ = introduce.send(affinity::this_thread());
            // The kernel tells the thread that started a child of its end, and only if that blocks the signal another: this
            // one would be woken for nothing each time, before whoever waits for the child. A child inherits the mask.
            let ends = SigSet::from(Signal::SIGCHLD);
            let start = |command: duct::Expression| {
                ends.thread_unblock()?;
                let handle = command.start();
                let _ = ends.thread_block();
                handle
            };
            for command in wanted {
                // Whoever asks waits for the answer, or is gone.
                let _ = give.send(start(command));
                let _ = (&tell).write(b"s");
            }
        })?;
        let id = introduced.recv().map_err(io::Error::other)?;
        Ok(Self { id, cpus: Vec::new(), work, outcome, starting: None })
    }

    fn is_free(&self) -> bool {
        self.starting.is_none()
    }

    fn ended(&mut self, wait: bool) -> Option<Started> {
        let what = self.starting.take()?;
        let gone = || Err(io::ErrorKind::BrokenPipe.into());
        let outcome = match wait {
            true => self.outcome.recv().unwrap_or_else(|_| gone()),
            false => match self.outcome.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.starting = Some(what);
                    return None;
                }
                Err(TryRecvError::Disconnected) => gone(),
                Ok(outcome) => outcome,
            },
        };
        Some((what, outcome))
    }
}
