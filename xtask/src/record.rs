//! What happened in a run, gathered from its events: the base of the receipt and of the exit code.

use crate::event::{Event, Stamped, TaskRecord};
use crate::verdict::{Exit, Limit, Stop, Verdict, Word};

/// The record of one run. Only `on` adds to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Tasks in the order of their verdicts.
    pub tasks: Vec<TaskRecord>,
    /// The first request to stop.
    pub stop: Option<Stop>,
    /// Whether the run's own deadline cut it or passed before the receipt was synced.
    pub run_late: bool,
    /// Why nobody may rely on the run, a reason each. Empty in a run with a verdict.
    pub trouble: Vec<String>,
    /// Files that changed during the run, if any did.
    pub tree_changed: Vec<String>,
}

impl Record {
    /// Takes in one event.
    pub fn on(&mut self, stamped: &Stamped) {
        match &stamped.event {
            Event::TaskFinished(task) => self.tasks.push(task.clone()),
            Event::StopAsked { signal, .. } => {
                self.stop.get_or_insert(*signal);
            }
            Event::RunLate { .. } => self.run_late = true,
            Event::TreeChanged { files } => self.tree_changed.clone_from(files),
            Event::Trouble { text } => self.trouble.push(text.clone()),
            _ => {}
        }
    }

    /// The result in one word. A cancelled run is cancelled whatever else it is; a run without a verdict is neither late
    /// nor failed; a late one is not merely failed; and only a run in which every task passed has passed.
    pub fn result(&self) -> Word {
        let any = |word| self.tasks.iter().any(|task| task.verdict.word() == word);
        if self.stop.is_some() {
            Word::Cancelled
        } else if !self.trouble.is_empty() || !self.tree_changed.is_empty() {
            Word::NoVerdict
        } else if self.run_late || any(Word::Late) {
            Word::Late
        } else if !self.tasks.is_empty() && self.tasks.iter().all(|task| task.verdict == Verdict::Passed) {
            Word::Passed
        } else {
            Word::Failed
        }
    }

    /// The exit code that says the result.
    pub fn exit(&self) -> Exit {
        match (self.result(), self.stop) {
            (_, Some(stop)) => Exit::Cancelled(stop),
            (Word::Passed, _) => Exit::Passed,
            (Word::Late, _) => Exit::Late,
            (Word::NoVerdict, _) => Exit::NoVerdict,
            _ => Exit::Failed,
        }
    }

    /// Why nothing ran, or why nobody may rely on what did; none where the tasks say it all.
    pub fn cause(&self) -> Option<String> {
        let changed = (!self.tree_changed.is_empty())
            .then(|| format!("the tree changed during the run: {}", self.tree_changed.join(", ")));
        let all: Vec<String> = self.trouble.iter().cloned().chain(changed).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Which limit was passed: the run's before a task's.
    pub fn late(&self) -> Option<Limit> {
        let task_late = || self.tasks.iter().any(|task| task.verdict == Verdict::Late(Limit::Task));
        if self.run_late { Some(Limit::Run) } else { task_late().then_some(Limit::Task) }
    }
}
