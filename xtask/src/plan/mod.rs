//! The plan: a suite made concrete for one machine and one selection. It runs nothing and reads nothing.

pub mod line;
pub mod order;
pub mod outer;
pub mod schedule;
pub mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::name::{Name, TaskName, meant};
use crate::suite::{OnFailure, PoolSize, Suite, SuiteError, SuiteErrors, Task, Weight, graph};
use crate::time::Exact;

/// What of the suite to run.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Selection {
    /// `--only`: these tasks and what they need; empty for all.
    pub only: Vec<TaskName>,
    /// `--profile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// Whether less than the whole suite was asked for.
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
    pub fn new(suite: &Suite, selection: &Selection, machine: &Machine) -> Result<Self, SuiteErrors> {
        let selected = select(suite, selection)?;
        let machine_cpus = machine.cpus.max(1);
        let slots = match suite.run.cpus {
            PoolSize::Auto => machine_cpus,
            PoolSize::AtMost(most) => most.min(machine_cpus),
        };
        let index = |name: &TaskName| selected.iter().position(|task| &task.name == name);
        let planned = |task: &&Task| Planned {
            name: task.name.clone(),
            needs: task.needs.iter().filter_map(index).collect(),
            slots: task.cpus.in_pool(slots),
            mutex: task.mutex.clone(),
            deadline: task.deadline,
            usual: machine.usual.get(&task.name).copied(),
        };
        let plan = Self {
            tasks: selected.iter().map(planned).collect(),
            slots,
            deadline: suite.run.deadline,
            wrap_up: suite.run.wrap_up,
            stop_grace: suite.run.stop_grace,
            on_failure: suite.run.on_failure,
            partial: *selection != Selection::default(),
        };
        let errors = plan.too_long(suite.run.deadline_line, &selected);
        if errors.is_empty() { Ok(plan) } else { Err(SuiteErrors(errors)) }
    }

    /// The part of the run deadline in which tasks may run.
    pub fn time_for_tasks(&self) -> Duration {
        self.deadline.saturating_sub(self.wrap_up)
    }

    /// What a reader of the suite might not expect of this plan, a line each: tasks that get fewer CPUs than they ask for.
    pub fn notes(&self, suite: &Suite) -> Vec<String> {
        let note = |task: &Planned| match suite.task(&task.name)?.cpus {
            Weight::Cpus(cpus) if cpus > self.slots => {
                Some(format!("task {} asks for {cpus} cpus and gets all there are: {}", task.name, self.slots))
            }
            _ => None,
        };
        self.tasks.iter().filter_map(note).collect()
    }

    // What no order of the tasks could fit into the run: a path of needs, or all the work on all the slots.
    fn too_long(&self, run_line: usize, tasks: &[&Task]) -> Vec<SuiteError> {
        let room = self.time_for_tasks();
        let has = format!(
            "the run has {} for tasks (deadline {} - wrap-up {})",
            Exact(room),
            Exact(self.deadline),
            Exact(self.wrap_up)
        );
        let mut errors: Vec<SuiteError> = Vec::new();
        for (planned, task) in self.tasks.iter().zip(tasks).filter(|(planned, _)| planned.deadline > room) {
            let what = format!("task {:?}: deadline {}, but {has}", planned.name.as_str(), Exact(planned.deadline));
            errors.push(SuiteError { line: Some(task.deadline_line), what });
        }
        let needs: Vec<Vec<usize>> = self.tasks.iter().map(|task| task.needs.clone()).collect();
        let deadlines: Vec<Duration> = self.tasks.iter().map(|task| task.deadline).collect();
        let (path, length) = graph::longest_path(&needs, &deadlines);
        if length > room && path.len() > 1 {
            let path: Vec<&str> = path.iter().map(|&task| self.tasks[task].name.as_str()).collect();
            let what =
                format!("{} have deadlines of {} one after the other, but {has}", path.join(" -> "), Exact(length));
            errors.push(SuiteError { line: Some(run_line), what });
        }
        let work: u128 = self.tasks.iter().map(|task| task.deadline.as_millis() * task.slots as u128).sum();
        let least = Duration::from_millis(u64::try_from(work.div_ceil(self.slots as u128)).unwrap_or(u64::MAX));
        if least > room {
            let (least, slots) = (Exact(least), self.slots);
            let what = format!("all deadlines times cpus make {least} on {slots} cpu slots, but {has}");
            errors.push(SuiteError { line: Some(run_line), what });
        }
        errors.sort_by_key(|error| error.line);
        errors
    }
}

/// The tasks of the selection, in the order of the suite: those of `only` with all that they need, or all; less what
/// the profile skips. Errors with every unknown name, or that nothing is left.
pub fn select<'s>(suite: &'s Suite, selection: &Selection) -> Result<Vec<&'s Task>, SuiteErrors> {
    let mut errors = Vec::new();
    let mut wrong = |what: String| errors.push(SuiteError { line: None, what });
    let skip = match &selection.profile {
        None => [].as_slice(),
        Some(name) => suite.profiles.get(name).map_or_else(
            || {
                let hint = meant(name.as_str(), suite.profiles.keys().map(Name::as_str));
                wrong(format!("--profile {name}: the suite has no such profile{hint}"));
                [].as_slice()
            },
            |profile| &profile.skip,
        ),
    };
    for name in &selection.only {
        if suite.task(name).is_none() {
            let hint = meant(name.as_str(), suite.tasks.iter().map(|task| task.name.as_str()));
            wrong(format!("--only {name}: the suite has no such task{hint}"));
        } else if skip.contains(name) {
            wrong(format!("--only {name}: the profile skips it"));
        }
    }
    let mut chosen: BTreeSet<&TaskName> = BTreeSet::new();
    let mut open: Vec<&TaskName> = match selection.only.as_slice() {
        [] => suite.tasks.iter().map(|task| &task.name).filter(|name| !skip.contains(name)).collect(),
        only => only.iter().collect(),
    };
    while let Some(name) = open.pop() {
        if chosen.insert(name) {
            open.extend(suite.task(name).into_iter().flat_map(|task| &task.needs));
        }
    }
    let tasks: Vec<&Task> = suite.tasks.iter().filter(|task| chosen.contains(&task.name)).collect();
    if tasks.is_empty() && errors.is_empty() {
        errors.push(SuiteError { line: None, what: "nothing is selected".to_owned() });
    }
    if errors.is_empty() { Ok(tasks) } else { Err(SuiteErrors(errors)) }
}
