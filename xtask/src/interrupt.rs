//! What wakes a process of a run: requests to stop, the end of a child, Ctrl-Z, descriptors of others, and time. One
//! poll(2) over all of them. It says what came; what to do about it, the first time and the second, others decide.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getppid};

use crate::sys;
use crate::time::Moment;
use crate::verdict::Stop;

/// What woke the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Somebody asks it to stop; once for each time.
    Stop(Stop),
    /// Ctrl-Z. The process goes on; `suspend` stops it after all.
    Suspend,
    /// A child has ended, stopped or gone on.
    Child,
    /// The descriptor with this index can be read, or its other side has hung up.
    Ready(usize),
}

/// The signals of this process, as things to wait for.
#[derive(Debug)]
pub struct Wakeups {
    stops: Vec<(Stop, UnixStream)>,
    // Readable as soon as any of `stops`, or `suspend`, is.
    any_stop: UnixStream,
    suspend: UnixStream,
    child: UnixStream,
}

/// From here on a write over a limit on the size of files (RLIMIT_FSIZE) is an error of that write; by default its signal
/// ends the process. What is started from here has the default again, for a handler does not reach it through exec. One
/// that is ignored stays so. Errors if the system refuses.
pub fn survive_full_files() -> io::Result<()> {
    if sys::is_ignored(libc::SIGXFSZ) {
        return Ok(());
    }
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).map(drop)
}

impl Wakeups {
    /// Takes over INT, TERM, HUP, TSTP and CHLD for the whole process; once in its life. A HUP that is ignored (nohup)
    /// stays so. INT is taken over even then: a shell without job control ignores it for `command &`, and whoever
    /// signals that process by hand means it. (Handlers, unlike an ignored signal, do not reach children through exec.)
    /// Errors if the system refuses, or at the second call.
    pub fn new() -> io::Result<Self> {
        // Who started this may have blocked them, and a mask is inherited: Ctrl-C always counts.
        let all = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTSTP, Signal::SIGCHLD];
        SigSet::from_iter(all).thread_unblock()?;
        let (any_stop, any_write) = pipe()?;
        let (int, int_write) = pipe()?;
        let mut stops = vec![(Stop::Int, int)];
        let any = any_write.try_clone()?;
        let tell = move || {
            for mut stream in [&int_write, &any] {
                // Full: a hundred thousand requests are waiting to be read already.
                let _ = io::Write::write(&mut stream, b"i");
            }
        };
        ctrlc::set_handler(tell).map_err(|e| io::Error::other(format!("cannot catch SIGINT: {e}")))?;
        for stop in [Stop::Term, Stop::Hup] {
            if stop == Stop::Hup && sys::is_ignored(libc::SIGHUP) {
                continue;
            }
            let (read, write) = pipe()?;
            signal_hook::low_level::pipe::register(stop.number(), write)?;
            signal_hook::low_level::pipe::register(stop.number(), any_write.try_clone()?)?;
            stops.push((stop, read));
        }
        let (suspend, write) = pipe()?;
        signal_hook::low_level::pipe::register(libc::SIGTSTP, write)?;
        signal_hook::low_level::pipe::register(libc::SIGTSTP, any_write.try_clone()?)?;
        let (child, write) = pipe()?;
        signal_hook::low_level::pipe::register(libc::SIGCHLD, write)?;
        Ok(Self { stops, any_stop, suspend, child })
    }

    /// Readable while there is a request to stop, or Ctrl-Z, that `wait` has not given out yet.
    pub fn stop_asked(&self) -> BorrowedFd<'_> {
        self.any_stop.as_fd()
    }

    /// Waits until something comes, or `until` (none: for ever), and says all that came; nothing if it was the time.
    /// Of several stops at once, INT comes before TERM before HUP. Errors if the system cannot poll.
    pub fn wait(&mut self, until: Option<Moment>, others: &[BorrowedFd<'_>]) -> io::Result<Vec<Wake>> {
        loop {
            let own = [self.any_stop.as_fd(), self.suspend.as_fd(), self.child.as_fd()];
            let all = own.iter().chain(others);
            let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
            match poll(&mut fds, timeout(until)) {
                Err(Errno::EINTR) => continue,
                Err(e) => return Err(e.into()),
                Ok(_) => {}
            }
            // Anything at all, the other side's hang-up and errors included.
            let mut ready = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect::<Vec<bool>>();
            let others_ready = ready.split_off(own.len());
            let mut woken = Vec::new();
            if ready[0] {
                // First the common pipe: a request that comes between the two reads then wakes the next wait for
                // nothing, instead of not at all.
                drain(&mut self.any_stop)?;
                for (stop, stream) in &mut self.stops {
                    woken.extend(std::iter::repeat_n(Wake::Stop(*stop), drain(stream)?));
                }
            }
            if ready[1] && drain(&mut self.suspend)? > 0 {
                woken.push(Wake::Suspend);
            }
            if ready[2] && drain(&mut self.child)? > 0 {
                woken.push(Wake::Child);
            }
            let readable = others_ready.iter().enumerate().filter(|&(_, &is)| is);
            woken.extend(readable.map(|(index, _)| Wake::Ready(index)));
            if !woken.is_empty() || until.is_some_and(|until| sys::now() >= until) {
                return Ok(woken);
            }
        }
    }

    /// Stops this process as Ctrl-Z would have done. Returns when it is told to go on. Errors if the system refuses.
    pub fn suspend(&self) -> io::Result<()> {
        nix::sys::signal::raise(Signal::SIGSTOP).map_err(Into::into)
    }
}

/// The process that started this one.
#[derive(Debug)]
pub struct Parent(Pid);

impl Parent {
    /// Whose child this process is now.
    pub fn now() -> Self {
        Self(getppid())
    }

    /// Has it go on if it is stopped; nothing if this process is another's child by now.
    pub fn go_on(&self) {
        // The first process of a pid namespace sees a parent outside of it as 0, which would mean a whole group here.
        if getppid() == self.0 && self.0.as_raw() > 1 {
            let _ = kill(self.0, Signal::SIGCONT); // it may have become another user's
        }
    }
}

fn pipe() -> io::Result<(UnixStream, UnixStream)> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    write.set_nonblocking(true)?;
    Ok((read, write))
}

// How many bytes there were.
fn drain(stream: &mut UnixStream) -> io::Result<usize> {
    let mut buffer = [0; 256];
    let mut count = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(count),
            Ok(read) => count += read,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(count),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

// Whole milliseconds, rounded up, or the loop would spin through the last one.
fn timeout(until: Option<Moment>) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    let left = until.since(sys::now()).as_nanos().div_ceil(1_000_000);
    PollTimeout::try_from(left.min(60_000)).unwrap_or(PollTimeout::ZERO)
}
