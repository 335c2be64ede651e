//! The thread that starts what is pinned to CPUs.
//!
//! A child inherits the CPUs of the thread that starts it, and std stays on posix_spawn, which any code between fork and
//! exec would rule out. The thread that goes on with the run must not be the one: moved to the child's CPU, it keeps the
//! child waiting there (a quarter of a millisecond for each task, where two slots are two CPUs). This thread is asleep
//! when its CPUs are set, so that nothing has to be moved.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use nix::sys::signal::{SigSet, Signal};

use super::affinity;

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Starter {
    id: i32,
    work: Sender<duct::Expression>,
    started: Receiver<io::Result<duct::Handle>>,
}

impl Starter {
    /// Errors if the system has no thread for it.
    pub fn new() -> io::Result<Self> {
        let (work, wanted) = mpsc::channel::<duct::Expression>();
        let (tell, started) = mpsc::channel();
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
            // Whoever asks waits for the answer, or is gone.
            wanted.into_iter().map(start).all(|handle| tell.send(handle).is_ok());
        })?;
        let id = introduced.recv().map_err(io::Error::other)?;
        Ok(Self { id, work, started })
    }

    /// Pins what is started from now on. Errors if the system refuses.
    pub fn pin(&self, cpus: &[usize]) -> Result<(), String> {
        affinity::pin(self.id, cpus)
    }

    /// Starts a command, as `duct::Expression::start` does. Errors also where the thread is gone.
    pub fn start(&self, command: duct::Expression) -> io::Result<duct::Handle> {
        self.work.send(command).map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.started.recv().map_err(|_| io::ErrorKind::BrokenPipe)?
    }
}
