//! Where a run stands: the events so far, folded. Rows, heartbeats and the ending are read off it.

use std::time::Duration;

use super::lines::QUOTE_MAX;
use super::{Row, Scene};
use crate::clean;
use crate::event::{Event, Stamped, TaskRecord};
use crate::name::{RunId, TaskName};
use crate::time::Moment;
use crate::verdict::{Limit, Stop, Verdict};

/// The state of one task.
#[derive(Debug)]
pub(super) enum State {
    Waiting,
    Running(Running),
    Ended(TaskRecord),
}

/// A task that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub since: Moment,
    pub deadline: Duration,
    pub stopping: Option<Stopping>,
}

/// A task that is being stopped.
#[derive(Debug, Clone)]
pub(super) struct Stopping {
    pub first: (Moment, String),
    /// When SIGKILL followed, if it had to.
    pub killed: Option<Moment>,
    pub late: Option<Limit>,
    pub silent: Option<Duration>,
    pub took: Duration,
    pub doing: Vec<String>,
}

/// Everything that the events so far have said.
#[derive(Debug)]
pub(super) struct Scoreboard {
    pub scene: Scene,
    pub run: Option<RunId>,
    pub won: Option<Moment>,
    pub queue: Option<Duration>,
    pub slots: usize,
    pub tree: Option<(Option<String>, usize)>,
    pub tree_changed: Vec<String>,
    /// Why nobody may rely on the run, cleaned.
    pub trouble: Vec<String>,
    pub run_late: Option<Duration>,
    pub stopped: Option<(Moment, Stop)>,
    /// Tasks that failed or were late, in the order in which they ended, with how they were stopped.
    pub bad: Vec<(TaskName, Option<Stopping>)>,
    /// The folder of the logs, once one is known.
    pub logs: Option<String>,
    states: Vec<State>,
}

impl Scoreboard {
    pub fn new(scene: Scene) -> Self {
        Self {
            states: scene.tasks.iter().map(|_| State::Waiting).collect(),
            slots: scene.slots,
            scene,
            run: None,
            won: None,
            queue: None,
            tree: None,
            tree_changed: Vec::new(),
            trouble: Vec::new(),
            run_late: None,
            stopped: None,
            bad: Vec::new(),
            logs: None,
        }
    }

    /// Takes one event in. For the end of a task, how it was stopped comes back, if it was.
    pub fn on(&mut self, stamped: &Stamped) -> Option<Stopping> {
        match &stamped.event {
            Event::Acquired { queue } => {
                self.queue = Some(*queue);
                self.won.get_or_insert(stamped.at);
            }
            Event::RunStarted { run, slots, .. } => {
                self.run = Some(run.clone());
                self.slots = *slots;
                self.won.get_or_insert(stamped.at);
            }
            Event::TreePinned { commit, changed, .. } => self.tree = Some((commit.clone(), *changed)),
            Event::TaskStarted { task, deadline, log, .. } => {
                self.logs = log.rsplit_once('/').map(|(folder, _)| folder.to_owned());
                let (since, deadline) = (stamped.at, *deadline);
                self.set(task, State::Running(Running { since, deadline, stopping: None }));
            }
            Event::TaskStopping { task, late, silent, signal, took, doing, .. } => {
                let stopping = Stopping {
                    first: (stamped.at, signal.clone()),
                    killed: None,
                    late: *late,
                    silent: *silent,
                    took: *took,
                    doing: doing.clone(),
                };
                match self.state_mut(task) {
                    Some(State::Running(Running { stopping: Some(earlier), .. })) => {
                        earlier.killed.get_or_insert(stamped.at);
                    }
                    Some(State::Running(running)) => running.stopping = Some(stopping),
                    _ => {}
                }
            }
            Event::TaskFinished(record) => {
                let before = self.set(&record.task, State::Ended(record.clone()));
                let stopping = before.and_then(|state| match state {
                    State::Running(running) => running.stopping,
                    _ => None,
                });
                if matches!(record.verdict, Verdict::Failed(_) | Verdict::Late(_)) {
                    self.bad.push((record.task.clone(), stopping.clone()));
                }
                return stopping;
            }
            Event::StopAsked { signal, .. } => {
                self.stopped.get_or_insert((stamped.at, *signal));
            }
            Event::RunLate { run } => self.run_late = Some(*run),
            Event::Trouble { text } => self.trouble.push(clean::line(text.as_bytes(), QUOTE_MAX)),
            Event::TreeChanged { files } => self.tree_changed.clone_from(files),
            Event::Queued { .. } | Event::Note { .. } | Event::RunFinished { .. } => {}
        }
        None
    }

    fn index(&self, task: &TaskName) -> Option<usize> {
        self.scene.tasks.iter().position(|row| &row.name == task)
    }

    fn state_mut(&mut self, task: &TaskName) -> Option<&mut State> {
        self.index(task).map(|i| &mut self.states[i])
    }

    fn set(&mut self, task: &TaskName, state: State) -> Option<State> {
        self.state_mut(task).map(|place| std::mem::replace(place, state))
    }

    /// The row of a task; none for a name that is not of this run.
    pub fn row(&self, task: &TaskName) -> Option<&Row> {
        self.index(task).map(|i| &self.scene.tasks[i])
    }

    /// Every task with its state, in the order of the suite.
    pub fn tasks(&self) -> impl Iterator<Item = (&Row, &State)> {
        self.scene.tasks.iter().zip(&self.states)
    }

    /// The tasks that run, the longest running first.
    pub fn running(&self) -> Vec<(&Row, &Running)> {
        let mut all: Vec<_> = self
            .tasks()
            .filter_map(|(row, state)| match state {
                State::Running(running) => Some((row, running)),
                _ => None,
            })
            .collect();
        all.sort_by_key(|(_, running)| running.since);
        all
    }

    /// The records of the tasks that have ended, in the order of the suite.
    pub fn ended(&self) -> impl Iterator<Item = (&Row, &TaskRecord)> {
        self.tasks().filter_map(|(row, state)| match state {
            State::Ended(record) => Some((row, record)),
            _ => None,
        })
    }

    /// Wall clock at a moment, milliseconds since 1970.
    pub fn wall_ms(&self, at: Moment) -> u64 {
        self.scene.requested.wall_ms + crate::time::millis(at.since(self.scene.requested.monotonic))
    }

    /// Since the locks were won.
    pub fn run_time(&self, now: Moment) -> Duration {
        self.won.map_or(Duration::ZERO, |won| now.since(won))
    }
}
