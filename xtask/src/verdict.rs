//! How a task can end, how a run can end, and the exit code that says so.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::TaskName;

/// A request to stop. Each keeps its own exit code, because callers tell them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stop {
    /// Ctrl-C.
    #[serde(rename = "SIGINT")]
    Int,
    /// The polite end.
    #[serde(rename = "SIGTERM")]
    Term,
    /// The terminal went away.
    #[serde(rename = "SIGHUP")]
    Hup,
}

impl Stop {
    /// The signal's number, the same on every Unix.
    pub fn number(self) -> i32 {
        match self {
            Self::Hup => 1,
            Self::Int => 2,
            Self::Term => 15,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
            Self::Hup => "SIGHUP",
        })
    }
}

/// Which limit was passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The task's own deadline.
    Task,
    /// The deadline of the run.
    Run,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "ended by signal {signal}"),
        }
    }
}

/// Why a task failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It ended by itself, but not with exit code 0.
    Exit(ExitStatus),
    /// It left processes behind.
    Leftovers(Vec<String>),
    /// Its log passed the cap of this many bytes.
    LogLimit(u64),
    /// It ended well but a declared output is not there, or is not a file.
    Output(String),
    /// It ended by itself, but not with exit code 0, and what it had to say of that found no room.
    Unsaid {
        /// How it ended.
        status: ExitStatus,
        /// Why its log could not be written.
        why: String,
    },
    /// It could not be started.
    Spawn(String),
    /// A service that it asked for could not be had.
    Service {
        /// Why.
        why: String,
        /// Its log, relative to the repository.
        log: String,
    },
    /// Something was lost that the verdict would need; the text says what.
    Trouble(String),
}

/// Why a task did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// A task that it needs did not pass.
    Needs(TaskName),
    /// `on-failure = "stop"`, and a task failed.
    OnFailure,
    /// The run passed its deadline first.
    RunDeadline,
    /// The run was cancelled first.
    Cancelled(Stop),
    /// The run ended for want of a verdict first.
    NoVerdict,
}

/// How a task ended: the whole outcome space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Ended by itself, in time, with exit code 0, with nothing left behind and every output there.
    Passed,
    /// Ended, but not well.
    Failed(Cause),
    /// Did not end in time.
    Late(Limit),
    /// Stopped because the run was cancelled.
    Cancelled(Stop),
    /// Never started.
    NotRun(Reason),
}

impl Verdict {
    /// The verdict in one word, as receipts write it.
    pub fn word(&self) -> Word {
        match self {
            Self::Passed => Word::Passed,
            Self::Failed(_) => Word::Failed,
            Self::Late(_) => Word::Late,
            Self::Cancelled(_) => Word::Cancelled,
            Self::NotRun(_) => Word::NotRun,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::Failed(Cause::Exit(status)) => write!(f, "{status}"),
            Self::Failed(Cause::Leftovers(who)) => write!(f, "left processes behind: {}", who.join(", ")),
            Self::Failed(Cause::LogLimit(bytes)) => write!(f, "wrote more than its log-limit of {bytes} bytes"),
            Self::Failed(Cause::Output(what) | Cause::Trouble(what)) => f.write_str(what),
            Self::Failed(Cause::Unsaid { status, why }) => write!(f, "{status}; its log cannot be written: {why}"),
            Self::Failed(Cause::Spawn(why)) => write!(f, "could not be started: {why}"),
            Self::Failed(Cause::Service { why, .. }) => write!(f, "its service failed: {why}"),
            Self::Late(Limit::Task) => f.write_str("passed its deadline"),
            Self::Late(Limit::Run) => f.write_str("the run's deadline cut it"),
            Self::Cancelled(stop) => write!(f, "cancelled by {stop}"),
            Self::NotRun(Reason::Needs(task)) => write!(f, "needs {task}, which did not pass"),
            Self::NotRun(Reason::OnFailure) => f.write_str("another task failed (on-failure = \"stop\")"),
            Self::NotRun(Reason::RunDeadline) => f.write_str("the run's deadline came first"),
            Self::NotRun(Reason::Cancelled(stop)) => write!(f, "the run was cancelled by {stop} first"),
            Self::NotRun(Reason::NoVerdict) => f.write_str("the run ended first"),
        }
    }
}

/// The verdict of a task, or the result of a run, in one word. `NoVerdict` is a result only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// Everything asked for was checked and is well.
    Passed,
    /// Something is not well.
    Failed,
    /// Something was not over in time.
    Late,
    /// Somebody stopped it.
    Cancelled,
    /// It never started.
    NotRun,
    /// It ran, but nobody may rely on what came of it.
    NoVerdict,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Late => "late",
            Self::Cancelled => "cancelled",
            Self::NotRun => "not-run",
            Self::NoVerdict => "no-verdict",
        })
    }
}

/// The exit codes, the same for every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: passed, or accepted.
    Passed,
    /// 1: the suite ran and a task failed.
    Failed,
    /// 2: wrong use: flags, suite file, a missing prerequisite, a nested call.
    Usage,
    /// 3: a task or the run passed its deadline.
    Late,
    /// 4: the queue budget was spent; nothing ran.
    NoLock,
    /// 5: something that is not xtask holds the lock's port; nothing ran.
    Foreign,
    /// 6: the receipt was refused.
    Refused,
    /// 7: no verdict to rely on.
    NoVerdict,
    /// 128 + the signal: cancelled.
    Cancelled(Stop),
    /// What the command of `lock run` exited with, or 120 + the code of its own trouble.
    Command(u8),
}

impl Exit {
    /// The code for the operating system.
    pub fn code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Late => 3,
            Self::NoLock => 4,
            Self::Foreign => 5,
            Self::Refused => 6,
            Self::NoVerdict => 7,
            Self::Cancelled(stop) => 128 + u8::try_from(stop.number()).expect("signal numbers are small"),
            Self::Command(code) => code,
        }
    }

    /// As `lock run` says it, whose command may exit with any of the others: 120 + code; a signal as it is.
    #[must_use]
    pub fn of_lock_run(self) -> Self {
        match self {
            Self::Cancelled(_) | Self::Command(_) => self,
            own => Self::Command(120 + own.code()),
        }
    }

    /// The more urgent of two: a signal before 7 before 3 before 1.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        let rank = |exit: Self| match exit {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::Late => 2,
            Self::Refused => 3,
            Self::NoLock => 4,
            Self::Foreign => 5,
            Self::Usage => 6,
            Self::NoVerdict => 7,
            Self::Cancelled(_) | Self::Command(_) => 8,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}
