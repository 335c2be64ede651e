//! The plan: a suite made concrete for one machine and one selection. It runs nothing and reads nothing.

pub mod schedule;
pub mod slots;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::name::{Name, TaskName};
use crate::suite::{OnFailure, Suite, SuiteErrors};

/// What of the suite to run.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Selection {
    /// `--only`: these tasks and what they need; empty for all.
    pub only: Vec<TaskName>,
    /// `--profile`.
    pub profile: Option<Name>,
}

/// What the machine gives to a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// CPUs that the process may use, at least 1.
    pub cpus: usize,
    /// The usual duration of tasks, by name, from earlier receipts.
    pub usual: BTreeMap<TaskName, Duration>,
}

/// The tasks of one run, with indices for names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In the order of the suite file. Never empty.
    pub tasks: Vec<Planned>,
    /// CPU slots of the pool, at least 1.
    pub slots: usize,
    /// Lock won to every process gone and the receipt synced.
    pub deadline: Duration,
    /// The part of `deadline` in which no task runs any more.
    pub wrap_up: Duration,
    /// SIGTERM to SIGKILL.
    pub stop_grace: Duration,
    /// What a failure means for the others.
    pub on_failure: OnFailure,
    /// Whether tasks of the suite are left out.
    pub partial: bool,
}

/// One task of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Its name.
    pub name: TaskName,
    /// Indices of the tasks that must have passed before it starts.
    pub needs: Vec<usize>,
    /// Slots that it takes, 1 to `Plan::slots`.
    pub slots: usize,
    /// Two tasks with the same mutex are never side by side.
    pub mutex: Option<Name>,
    /// Its hard deadline.
    pub deadline: Duration,
    /// How long it usually takes, where known.
    pub usual: Option<Duration>,
}

impl Plan {
    /// Makes the plan, or says every reason why there is none: unknown names in the selection, nothing selected,
    /// deadlines that cannot fit the run.
    pub fn new(_suite: &Suite, _selection: &Selection, _machine: &Machine) -> Result<Self, SuiteErrors> {
        Err(SuiteErrors(Vec::new()))
    }
}
