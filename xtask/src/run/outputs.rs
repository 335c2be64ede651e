//! The files that tasks declare: removed before a task, looked at and hashed after it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
    // How the task ended, and what makes its thread stop reading.
    going_on: HashMap<usize, (Ending, Arc<AtomicBool>)>,
}

// A file that seems to fail once nobody wants to know its digest any more.
struct Wanted {
    file: File,
    cut: Arc<AtomicBool>,
}

impl Read for Wanted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cut.load(Ordering::Relaxed) { Err(io::Error::other("cut short")) } else { self.file.read(buffer) }
    }
}

impl Hashes {
    /// Nothing to hash yet. Errors if the system refuses a pair of sockets.
    pub fn new() -> io::Result<Self> {
        let (send, receive) = channel();
        let (wake, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        Ok(Self { send, receive, wake, woken, going_on: HashMap::new() })
    }

    /// Hashes the outputs, relative to `root`, of a task that has ended well.
    pub fn begin(&mut self, task: usize, ending: Ending, root: PathBuf, outputs: Vec<String>) {
        let (send, wake, cut) = (self.send.clone(), self.wake.try_clone(), Arc::new(AtomicBool::new(false)));
        self.going_on.insert(task, (ending.clone(), Arc::clone(&cut)));
        let told = ending.clone();
        let hashing = std::thread::Builder::new().spawn(move || {
            let hashed = outputs.into_iter().map(|path| hash(&root, path, &cut)).collect();
            // Nobody listens any more where the run has ended meanwhile.
            let _ = send.send((task, told, hashed));
            let _ = wake.map(|mut wake| io::Write::write_all(&mut wake, b"."));
        });
        if let Err(error) = hashing {
            let why = format!("its outputs were not read: no thread to do it: {error}");
            let _ = self.send.send((task, ending, Err(why)));
            let _ = io::Write::write_all(&mut self.wake, b".");
        }
    }

    /// Stops hashing for a task; how it ended, if there was anything to stop.
    pub fn cut(&mut self, task: usize) -> Option<Ending> {
        let (ending, cut) = self.going_on.remove(&task)?;
        cut.store(true, Ordering::Relaxed);
        Some(ending)
    }

    /// What is hashed by now.
    pub fn take(&mut self) -> Vec<Hashed> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut self.woken, &mut bytes), Ok(1..)) {}
        self.receive.try_iter().filter(|(task, ..)| self.going_on.remove(task).is_some()).collect()
    }
}

impl AsFd for Hashes {
    /// Readable when there is something to take.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

/// Removes an output: what an earlier run or a build by hand left must not pass for what this task makes. Errors if it cannot
/// be removed, or lies outside.
pub fn remove(root: &Path, output: &str) -> Result<(), String> {
    inside(root, output)?;
    match fs::remove_file(root.join(output)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("output {output} cannot be removed first: {e}")),
        _ => Ok(()),
    }
}

/// Errors where a link among its folders leads an output out of the repository: what is there is not this run's to remove.
pub fn inside(root: &Path, output: &str) -> Result<(), String> {
    let real = |path: &Path| path.canonicalize().map_err(|e| format!("{}: {e}", path.display()));
    let path = root.join(output);
    let existing = path.ancestors().skip(1).find(|folder| folder.exists()).unwrap_or(root);
    if real(existing)?.starts_with(real(root)?) {
        Ok(())
    } else {
        Err(format!("output {output} lies outside of the repository: a link among its folders leads there"))
    }
}

fn hash(root: &Path, output: String, cut: &Arc<AtomicBool>) -> Result<(String, String), String> {
    inside(root, &output)?;
    let path = root.join(&output);
    let kind = fs::symlink_metadata(&path).map_err(|e| format!("did not make its output {output}: {e}"))?;
    if !kind.is_file() {
        return Err(format!("its output {output} is not a regular file"));
    }
    let unreadable = |e: io::Error| format!("its output {output} cannot be read: {e}");
    let file = Wanted { file: File::open(&path).map_err(unreadable)?, cut: Arc::clone(cut) };
    let sum = digest::of_reader(file).map_err(unreadable)?;
    Ok((output, sum))
}
