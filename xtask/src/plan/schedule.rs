//! The schedule of a run as a pure state machine: what happened, and when, in; what to do out.
//!
//! It owns every rule about order, slots, mutexes, deadlines and verdicts. It never touches a process or a clock.

use std::time::Duration;

use super::Plan;
use crate::time::Moment;
use crate::verdict::{ExitStatus, Limit, Stop, Verdict};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Nothing but time passed. Also the first input of a run.
    Tick,
    /// The task's process exists; its deadline counts from now.
    Started(usize),
    /// The task's process could not be had. It counts as ended: nothing of it is left.
    NotStarted(usize, Verdict),
    /// Everything of the task is gone.
    Ended(usize, Ending),
    /// The task's log passed its cap.
    LogFull(usize, u64),
    /// Somebody asks to stop: the first time politely, the second time at once.
    Stop(Stop),
    /// The run cannot have a verdict any more (the machine slept, the tree cannot be read …): end it at once.
    NoVerdict,
}

/// How a task's processes ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How the leader ended.
    pub status: ExitStatus,
    /// When the leader ended.
    pub at: Moment,
    /// Processes that the leader left behind when it ended by itself, as text; they are dead by now.
    pub leftovers: Vec<String>,
    /// Whether leftovers fail the task.
    pub leftovers_fail: bool,
    /// A declared output that is not there, or other trouble that fails the task.
    pub trouble: Option<String>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the task on these slots (indices below `Plan::slots`).
    Start(usize, Vec<usize>),
    /// Ask the task to end: the signal to its group, then SIGCONT. `why` for people and the record.
    Ask(usize, Stop, Why),
    /// SIGKILL to everything of the task.
    Kill(usize, Why),
    /// The task's verdict. Exactly one for each task.
    Verdict(usize, Verdict),
    /// The run's own deadline has cut it. Said once.
    RunLate,
    /// Every task has its verdict and nothing runs. The last action of a run.
    Done,
}

/// Why a task is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It, or the run, passed its deadline.
    Late(Limit),
    /// It was asked to end and the grace is over.
    GraceOver,
    /// Its log is full.
    LogFull,
    /// The run is cancelled.
    Cancelled(Stop),
    /// Another task failed and `on-failure = "stop"`.
    OnFailure,
    /// The run cannot have a verdict any more.
    NoVerdict,
}

/// The state machine. `on` is the only way to change it.
#[derive(Debug)]
pub struct Schedule {
    _won: Moment,
    _plan: Plan,
}

impl Schedule {
    /// A run of `plan` whose clock started at `won`.
    pub fn new(plan: &Plan, won: Moment) -> Self {
        Self { _won: won, _plan: plan.clone() }
    }

    /// Takes what happened at `now` and says what to do, in this order.
    pub fn on(&mut self, _now: Moment, _input: Input) -> Vec<Action> {
        vec![Action::Done]
    }

    /// When a `Tick` is due at the latest.
    pub fn wake_at(&self) -> Option<Moment> {
        let _ = Duration::ZERO;
        None
    }
}
