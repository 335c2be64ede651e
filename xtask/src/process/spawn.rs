//! What is to be started, and how.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Where the output of a process goes.
#[derive(Debug)]
pub enum Output {
    /// Both stdout and stderr to this file, which should be open for appending.
    Log(File),
    /// To where this process's own goes.
    Inherit,
}

/// What to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// What the process is called in its mark: the name of the task. No `:` and no `/`.
    pub label: &'a str,
    /// The program: an absolute path, or std falls back from posix_spawn to a fork that costs 85 ms under 1 GiB.
    pub program: PathBuf,
    /// Its arguments, without the program.
    pub args: Vec<OsString>,
    /// Where it runs.
    pub dir: PathBuf,
    /// Its whole environment; the mark is added.
    pub env: Vec<(OsString, OsString)>,
    /// Where its output goes.
    pub output: Output,
    /// The CPUs that it is pinned to.
    pub cpus: Option<Vec<usize>>,
    /// Its stdin; /dev/null if there is none.
    pub stdin: Option<OwnedFd>,
    /// Whether it leads a session of its own, without the terminal, and not only a process group. It costs a fork.
    pub session: bool,
    /// Descriptors that it inherits under the same numbers, although they are close-on-exec.
    pub hand_over: Vec<BorrowedFd<'a>>,
}
