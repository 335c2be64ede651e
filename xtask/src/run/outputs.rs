//! The files that tasks declare: removed before a task, looked at and hashed after it.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::digest;
use crate::plan::schedule::Ending;

/// A task, how it ended, and path and sha256 of its outputs or what is wrong with one.
pub type Hashed = (usize, Ending, Result<Vec<(String, String)>, String>);

/// Outputs are hashed beside the loop: a large one would hold up everybody's deadline.
#[derive(Debug)]
pub struct Hashes {
    send: Sender<Hashed>,
    receive: Receiver<Hashed>,
    wake: UnixStream,
    woken: UnixStream,
}

impl Hashes {
    /// Nothing to hash yet. Errors if the system refuses a pair of sockets.
    pub fn new() -> io::Result<Self> {
        let (send, receive) = channel();
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        Ok(Self { send, receive, wake, woken })
    }

    /// Hashes the outputs, relative to `root`, of a task that has ended well.
    pub fn begin(&self, task: usize, ending: Ending, root: PathBuf, outputs: Vec<String>) {
        let (send, wake) = (self.send.clone(), self.wake.try_clone());
        std::thread::spawn(move || {
            let hashed = outputs.into_iter().map(|path| hash(&root, path)).collect();
            // Nobody listens any more where the run has ended meanwhile.
            let _ = send.send((task, ending, hashed));
            let _ = wake.map(|mut wake| io::Write::write_all(&mut wake, b"."));
        });
    }

    /// What is hashed by now.
    pub fn take(&mut self) -> Vec<Hashed> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut self.woken, &mut bytes), Ok(1..)) {}
        self.receive.try_iter().collect()
    }
}

impl AsFd for Hashes {
    /// Readable when there is something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

/// What an earlier run or a build by hand left must not pass for what this task makes.
pub fn remove(root: &Path, output: &str) -> Result<(), String> {
    match fs::remove_file(root.join(output)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("output {output} cannot be removed first: {e}")),
        _ => Ok(()),
    }
}

fn hash(root: &Path, output: String) -> Result<(String, String), String> {
    let path = root.join(&output);
    let kind = fs::symlink_metadata(&path).map_err(|e| format!("did not make its output {output}: {e}"))?;
    if !kind.is_file() {
        return Err(format!("its output {output} is not a regular file"));
    }
    let file = File::open(&path).map_err(|e| format!("its output {output} cannot be read: {e}"))?;
    let sum = digest::of_reader(file).map_err(|e| format!("its output {output} cannot be read: {e}"))?;
    Ok((output, sum))
}
