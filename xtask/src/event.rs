//! Everything a run does, as one stream of events. The screen, NDJSON, JUnit, the receipt and the report are read off
//! it; nothing else keeps its own books.

use std::time::Duration;

use serde::Serialize;

use crate::name::{RunId, TaskName};
use crate::time::{Moment, millis};
use crate::verdict::{ExitStatus, Limit, Stop, Verdict, Word};

/// The version of the NDJSON lines.
pub const SCHEMA: u32 = 1;

/// One event and when it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamped {
    /// When.
    pub at: Moment,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "snake_case")]
pub enum Event {
    /// The run waits for a lock; `text` says who holds it, a line each.
    Queued {
        /// `workstation` or `worktree`.
        scope: String,
        /// The port.
        port: u16,
        /// What the holder says of itself, if there is one that answers.
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<Box<Claim>>,
        /// Why one waits for a holder that says it holds another lock.
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        /// Who or what is there, for people.
        text: Vec<String>,
        /// How long the run has waited, of what budget.
        #[serde(rename = "waited_ms", serialize_with = "as_millis")]
        waited: Duration,
        /// The queue budget.
        #[serde(rename = "budget_ms", serialize_with = "as_millis")]
        budget: Duration,
    },
    /// Both locks are won.
    Acquired {
        /// How long that took.
        #[serde(rename = "queue_ms", serialize_with = "as_millis")]
        queue: Duration,
    },
    /// Something worth a line to people that is no failure.
    Note {
        /// The line.
        text: String,
    },
    /// The run proper begins.
    RunStarted {
        /// Its identity.
        run: RunId,
        /// Its tasks, in the order of the suite.
        tasks: Vec<TaskName>,
        /// Whether only a part of the suite was asked for.
        partial: bool,
        /// CPU slots of the pool.
        slots: usize,
        /// The run deadline.
        #[serde(rename = "deadline_ms", serialize_with = "as_millis")]
        deadline: Duration,
    },
    /// The tree before the tasks is known.
    TreePinned {
        /// HEAD, if there is one.
        commit: Option<String>,
        /// Id of the tree as it is on disk.
        tree: String,
        /// Files that differ from HEAD.
        changed: usize,
    },
    /// A task's process exists.
    TaskStarted {
        /// Its name.
        task: TaskName,
        /// The CPUs it is given.
        cpus: Vec<usize>,
        /// Its deadline.
        #[serde(rename = "deadline_ms", serialize_with = "as_millis")]
        deadline: Duration,
        /// Its log, relative to the repository.
        log: String,
    },
    /// A task is being stopped.
    TaskStopping {
        /// Its name.
        task: TaskName,
        /// Why, for people.
        why: String,
        /// Which limit it passed, if that is why.
        late: Option<Limit>,
        /// How long its log has not grown, if that is known.
        #[serde(rename = "silent_ms", serialize_with = "as_optional_millis")]
        silent: Option<Duration>,
        /// `SIGTERM`, `SIGKILL` …
        signal: String,
        /// How long it has run.
        #[serde(rename = "took_ms", serialize_with = "as_millis")]
        took: Duration,
        /// What it was doing: one line a process.
        doing: Vec<String>,
    },
    /// A task has its verdict.
    TaskFinished(TaskRecord),
    /// Somebody asked to stop.
    StopAsked {
        /// How.
        signal: Stop,
        /// Whether it was the second time: SIGKILL now.
        again: bool,
    },
    /// The run's own deadline has cut it.
    RunLate {
        /// How long it has run.
        #[serde(rename = "run_ms", serialize_with = "as_millis")]
        run: Duration,
    },
    /// Something took away the verdict of the run: nobody may rely on it.
    Trouble {
        /// What, for people.
        text: String,
    },
    /// The tree changed during the run.
    TreeChanged {
        /// The files, as many as are worth naming.
        files: Vec<String>,
    },
    /// The run is over and its receipt is on disk.
    RunFinished {
        /// The result.
        verdict: Word,
        /// Whether only a part of the suite was asked for.
        partial: bool,
        /// Why nothing ran or nobody may rely on it, for people; none where the tasks say it all.
        #[serde(skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
        /// Which limit was passed, if one was.
        late: Option<Limit>,
        /// How long it ran.
        #[serde(rename = "run_ms", serialize_with = "as_millis")]
        run: Duration,
        /// The receipt, relative to the repository; none if it could not be written.
        receipt: Option<String>,
        /// The exit code.
        exit_code: u8,
    },
}

/// What a holder says of itself. Everything may be missing: other versions say other things.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Claim {
    /// `workstation` or `worktree`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The run's identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// `local`, `ci`, `release`, `lock run` …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// The user's name, or number where it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The Linux distribution, as WSL names it or else as it names itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<String>,
    /// The repository's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The working directory that it holds or works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its process id, which means something inside `pid_namespace` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u64>,
    /// Its pid namespace: `pid:[4026531836]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<String>,
    /// When it won, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// When it will be gone at the latest, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_at_ms: Option<u64>,
    /// Whether it holds the folder and waits for the workstation itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued: Option<bool>,
    /// Tasks that are done …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// … of so many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<u64>,
    /// How many wait for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Since when the longest waiting one waits, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_since_ms: Option<u64>,
}

/// All there is to say of a task that has its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TaskRecord {
    /// Its name.
    pub task: TaskName,
    /// How it ended.
    #[serde(serialize_with = "verdict_word")]
    pub verdict: Verdict,
    /// When its process was there; none if it never was.
    #[serde(skip)]
    pub started: Option<Moment>,
    /// From the start to the leader's end.
    #[serde(rename = "took_ms", serialize_with = "as_millis")]
    pub took: Duration,
    /// How the leader ended. NDJSON says `exit_code` or `exit_signal`.
    #[serde(skip)]
    pub exit: Option<ExitStatus>,
    /// The CPUs it was given.
    pub cpus: Vec<usize>,
    /// Signals that it was sent, in order.
    pub signals: Vec<String>,
    /// Processes that it left behind.
    pub leftovers: Vec<String>,
    /// CPU time of what could be counted: the leader and what it waited for.
    #[serde(rename = "cpu_ms", serialize_with = "as_millis")]
    pub cpu_time: Duration,
    /// The largest resident set of one of its processes, in KiB.
    pub peak_kib: u64,
    /// Declared outputs: path and sha256.
    pub outputs: Vec<(String, String)>,
    /// The last lines of its log, if it did not pass.
    pub tail: Vec<String>,
    /// How many lines the log has in all.
    pub log_lines: u64,
}

impl TaskRecord {
    /// The record of a task that never had a process.
    pub fn never_started(task: TaskName, verdict: Verdict) -> Self {
        Self {
            task,
            verdict,
            started: None,
            took: Duration::ZERO,
            exit: None,
            cpus: Vec::new(),
            signals: Vec::new(),
            leftovers: Vec::new(),
            cpu_time: Duration::ZERO,
            peak_kib: 0,
            outputs: Vec::new(),
            tail: Vec::new(),
            log_lines: 0,
        }
    }
}

fn as_millis<S: serde::Serializer>(length: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(millis(*length))
}

fn as_optional_millis<S: serde::Serializer>(length: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_some(&length.map(millis))
}

fn verdict_word<S: serde::Serializer>(verdict: &Verdict, to: S) -> Result<S::Ok, S::Error> {
    verdict.word().serialize(to)
}
