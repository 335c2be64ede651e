//! Throwaway servers that tasks use. Each runs below a process of its own, the service host (`host`), which the run
//! owns like a task: the run loop never waits for a server, and whatever ends the host ends the server.
//!
//! The runner talks with the host through a socket pair, a line of JSON each way. Its end is the order to stop.

mod cache;
pub mod host;
pub mod postgres;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::name::{Name, TaskName};
use crate::suite::Service;
use crate::wire::Wire;
use host::Host;

/// Variables of a task: a value, or `None` to take an inherited one away.
pub type Env = BTreeMap<String, Option<String>>;

/// A kind of service, as its host drives it: `prepare`, `start`, then any number of `hand_out`, then `stop`.
pub trait Kind {
    /// Gets what a start needs that outlives a run: programs, caches. It may take minutes the first time on a machine,
    /// and does not count into the limit of the start.
    fn prepare(&mut self, host: &mut Host) -> anyhow::Result<()>;
    /// Starts the server, waits until it answers and fills what tasks get; gives its version, for people and receipts.
    fn start(&mut self, host: &mut Host) -> anyhow::Result<String>;
    /// What one task needs to use it, and shares with no other task.
    fn hand_out(&mut self, host: &mut Host, task: &TaskName) -> anyhow::Result<Env>;
    /// Readable when something happened to the server by itself; `check` looks what.
    fn watch(&self) -> Option<BorrowedFd<'_>>;
    /// Errors if the server is gone.
    fn check(&mut self, host: &mut Host) -> anyhow::Result<()>;
    /// Ends the server at once, whatever state it is in. Its files go with the folder.
    fn stop(&mut self);
}

/// What there is to know of a kind before there is one.
struct Entry {
    /// The name in `[service.NAME]`.
    name: &'static str,
    make: fn(&Spec) -> Box<dyn Kind>,
    /// Whether this machine can have it. Errors with what was looked for and what to do; quick, and changes nothing.
    available: fn(&Service, root: &Path) -> Result<(), String>,
    /// Ends and removes what a dead host left of it in this folder.
    sweep: fn(&Path),
}

/// A new service is a module that implements `Kind`, a row here, and one in `suite::SERVICES`.
const KINDS: &[Entry] = &[Entry {
    name: "postgres",
    make: |spec| Box::new(postgres::Postgres::new(spec)),
    available: postgres::available,
    sweep: postgres::sweep,
}];

fn kind(name: &Name) -> Result<&'static Entry, String> {
    let names = || KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
    let found = KINDS.iter().find(|kind| kind.name == name.as_str());
    found.ok_or_else(|| format!("there is no service {name}; there is: {}", names()))
}

/// Whether this machine can run the service for the repository at `root`: a question to ask before anybody queues. The
/// error says what was looked for, and what to install.
pub fn available(name: &Name, service: &Service, root: &Path) -> Result<(), String> {
    (kind(name)?.available)(service, root)
}

/// Ends and removes what hosts that are gone left behind in a run's scratch folder: processes that rewrote their mark,
/// shared memory, files. Only for whoever owns that folder, after the hosts have been killed.
pub fn sweep(scratch: &Path) {
    for kind in KINDS {
        let folder = folder(scratch, kind.name);
        (kind.sweep)(&folder);
        let _ = crate::scratch::remove_all(&folder);
    }
}

// Short, because the paths of sockets must be.
fn folder(scratch: &Path, name: &str) -> PathBuf {
    scratch.join(name)
}

/// What a host is to run: the first line that it reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The name of the service, which is its kind.
    pub name: Name,
    /// What the suite says of it.
    pub service: Service,
    /// The repository's root, absolute.
    pub root: PathBuf,
    /// The run's scratch folder, absolute. The host makes a folder below it.
    pub scratch: PathBuf,
}

/// Runner to host, after the spec: a task is about to start and wants the service.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    task: TaskName,
}

/// Host to runner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// A line for people: something takes long.
    Note(String),
    /// What the service needs is there: the limit of its start counts from now.
    Starting,
    /// It can be used; its version.
    Ready(String),
    /// What the task gets.
    HandedOut {
        /// The task that asked.
        task: TaskName,
        /// Its variables.
        env: Env,
    },
    /// The task cannot have it. The service lives on.
    Refused {
        /// The task that asked.
        task: TaskName,
        /// Why.
        why: String,
    },
    /// The service could not be started, or has ended by itself. Nothing follows.
    Failed(String),
}

/// The runner's side of a host. Nothing here blocks. Dropping it is the order to stop.
#[derive(Debug)]
pub struct Link(Wire);

impl Link {
    /// A link, and the other end of it: what the host, `xtask internal-service`, gets as its stdin. Errors if the
    /// system has no pair of sockets.
    pub fn new(spec: &Spec) -> io::Result<(Self, OwnedFd)> {
        let (mut ours, theirs) = Wire::pair()?;
        ours.never_block()?;
        ours.say(spec, Duration::ZERO)?;
        Ok((Self(ours), theirs))
    }

    /// Asks for what a task needs; a `HandedOut`, a `Refused` or a `Failed` will come. May be asked before the service
    /// is ready. Errors if the host is gone, or stuck: a thousand requests find room before it has read any of them.
    pub fn request(&mut self, task: &TaskName) -> io::Result<()> {
        self.0.say(&Request { task: task.clone() }, Duration::ZERO)
    }

    /// Everything that the host has said. `Failed`, once, when it is gone without a word.
    pub fn on_readable(&mut self) -> Vec<Reply> {
        let end = match self.0.hear() {
            Ok(true) => None,
            Ok(false) => Some("ended without a word".to_owned()),
            Err(e) => Some(format!("cannot be heard: {e}")),
        };
        let mut replies = Vec::new();
        while let Some(line) = self.0.line() {
            let reply = serde_json::from_slice(&line);
            replies.push(reply.unwrap_or_else(|e| Reply::Failed(format!("its host speaks nonsense: {e}"))));
        }
        let said = replies.iter().any(|reply| matches!(reply, Reply::Failed(_)));
        replies.extend(end.filter(|_| !said).map(|why| Reply::Failed(format!("its host {why}; see its log"))));
        replies
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
