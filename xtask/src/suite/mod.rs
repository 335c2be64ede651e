//! The suite: what "verified" means for a repository, parsed from `ci/suite.toml` into types that cannot be wrong.
//!
//! It owns the text and its errors. It never looks at the machine: whether a program is on PATH or a folder exists is
//! asked later, of the values made here.

pub mod graph;
mod parse;
mod reader;
mod value;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::name::{Name, TaskName};

/// The services that a suite can name, each with the oldest major version that works.
pub const SERVICES: &[(&str, u32)] = &[("postgres", 14)];

/// The parsed suite file. `Suite::parse` is the only door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suite {
    /// `[run]`.
    pub run: RunLimits,
    /// `[receipt] max-age`: the oldest that the gate accepts.
    pub max_age: Duration,
    /// `[task.*]`, in the order of the file. Never empty, names unique, needs known and free of cycles.
    pub tasks: Vec<Task>,
    /// `[service.*]` by name.
    pub services: BTreeMap<Name, Service>,
    /// `[profile.*]` by name.
    pub profiles: BTreeMap<Name, Profile>,
}

/// `[run]`: the limits of the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLimits {
    /// Lock won to every process gone and the receipt synced.
    pub deadline: Duration,
    /// Line of `deadline` in the file, from 1.
    pub deadline_line: usize,
    /// How long to wait for the locks.
    pub queue: Duration,
    /// What a job does before and after xtask.
    pub margin: Duration,
    /// SIGTERM to SIGKILL.
    pub stop_grace: Duration,
    /// The part of `deadline` that is kept for stopping, snapshot, receipt and signing; at least `stop_grace` + 2 s.
    pub wrap_up: Duration,
    /// How many CPUs to use.
    pub cpus: PoolSize,
    /// What a failure means for the tasks that do not depend on it.
    pub on_failure: OnFailure,
}

impl RunLimits {
    /// What every caller's own limit must at least be: queue + deadline + margin, in whole minutes, rounded up.
    pub fn outer(&self) -> Duration {
        // A queue may be as long as whoever names it likes.
        let all = self.queue.saturating_add(self.deadline + self.margin);
        let seconds = all.as_millis().div_ceil(60_000) * 60;
        Duration::from_secs(u64::try_from(seconds).unwrap_or(u64::MAX))
    }
}

/// `cpus` of `[run]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolSize {
    /// Every CPU that the process may use.
    Auto,
    /// At most this many.
    AtMost(usize),
}

/// `on-failure` of `[run]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// What does not depend on the failed task still runs.
    Finish,
    /// Nothing new starts and what runs is stopped.
    Stop,
}

/// How many CPUs of the pool a task takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// This many, at least 1; more than the pool has counts as all.
    Cpus(usize),
    /// The whole pool.
    All,
}

impl Weight {
    /// The CPUs given in a pool of `slots`.
    pub fn in_pool(self, slots: usize) -> usize {
        match self {
            Self::Cpus(wanted) => wanted.min(slots),
            Self::All => slots,
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(count) => f.pad(&count.to_string()),
            Self::All => f.pad("all"),
        }
    }
}

/// What becomes of processes that a task leaves behind when it ends by itself. They are killed either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftovers {
    /// The task fails.
    Fail,
    /// The task may pass.
    Kill,
}

/// `[task.NAME]`: one command with a deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its name.
    pub name: TaskName,
    /// Line of its table in the file, from 1.
    pub line: usize,
    /// Program and arguments; never empty. `{cpus}` in an argument stands for the CPUs given.
    pub command: Vec<String>,
    /// Where it runs, relative to the repository's root; empty for the root itself.
    pub dir: String,
    /// What to show when it fails.
    pub fix: Option<String>,
    /// Tasks that must have passed before it starts.
    pub needs: Vec<TaskName>,
    /// Services that it uses.
    pub services: Vec<Name>,
    /// Its hard deadline, from its start.
    pub deadline: Duration,
    /// Line of the deadline that holds for it, from 1: its own, or the one of `[defaults]`.
    pub deadline_line: usize,
    /// CPUs that it takes.
    pub cpus: Weight,
    /// Two tasks with the same mutex are never side by side.
    pub mutex: Option<Name>,
    /// Environment: `[defaults] env`, then its own over it.
    pub env: BTreeMap<String, String>,
    /// What becomes of processes that it leaves behind.
    pub leftovers: Leftovers,
    /// Most bytes of its log.
    pub log_limit: u64,
    /// Files that it makes, relative to the repository's root: removed before it starts, hashed after it.
    pub outputs: Vec<String>,
}

/// `[service.NAME]`: a throwaway server that tasks use.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Service {
    /// Line of its table in the file, from 1.
    pub line: usize,
    /// Lowest major version that will do, from `version = ">=14"`.
    pub at_least: u32,
    /// How the template database is filled.
    pub fill: Fill,
    /// The limit of its start.
    pub start: Duration,
    /// Whether it also listens on a loopback port.
    pub tcp: bool,
}

/// How the template database of a service is filled.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Fill {
    /// It stays empty.
    Empty,
    /// `migrations`: a folder of .sql files, run in name order; relative to the repository's root.
    Migrations(String),
    /// `setup`: a command, run once against the template.
    Setup(Vec<String>),
}

/// `[profile.NAME]`: a part of the suite. A run of it is partial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Line of its table in the file, from 1.
    pub line: usize,
    /// Tasks to leave out.
    pub skip: Vec<TaskName>,
}

/// One error of a suite file, or of what was selected from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteError {
    /// Line in the file, from 1; none where it is not the file that is wrong.
    pub line: Option<usize>,
    /// What is wrong and, where there is one, the nearest right name.
    pub what: String,
}

/// Every error of a suite file, by line. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuiteErrors(pub Vec<SuiteError>);

impl SuiteErrors {
    /// One line an error, each beginning `path:line: ` where it has a line.
    pub fn display(&self, path: &str) -> String {
        let line = |e: &SuiteError| match e.line {
            Some(line) => format!("{path}:{line}: {}\n", e.what),
            None => format!("{}\n", e.what),
        };
        self.0.iter().map(line).collect()
    }
}

impl Suite {
    /// Parses the text of a suite file. Every error of the file is reported at once.
    pub fn parse(text: &str) -> Result<Self, SuiteErrors> {
        parse::parse(text)
    }

    /// The task of that name.
    pub fn task(&self, name: &TaskName) -> Option<&Task> {
        self.tasks.iter().find(|task| &task.name == name)
    }
}
