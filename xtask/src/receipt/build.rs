//! From what happened to the receipt that says so.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::statement::{
    Answer, Clock, Extent, Limits, Lock, Predicate, Program, Receipt, RunClocks, Service, Subjects, SuiteFile, Task,
    Tree,
};
use crate::digest;
use crate::event::TaskRecord;
use crate::name::{Caller, RunId};
use crate::plan::{Plan, Selection};
use crate::record::Record;
use crate::suite::Suite;
use crate::time::{Clocks, Moment, millis};
use crate::verdict::Word;

/// What was asked for: known before anybody queues, and the same to the end of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The run.
    pub run: RunId,
    /// Who asked for it.
    pub caller: Caller,
    /// When: at the program's first line.
    pub requested: Clocks,
    /// The suite's path, relative to the repository's root where it lies below it.
    pub suite_path: String,
    /// The suite's text, read once: what the receipt's sha256 is of.
    pub suite_text: String,
    /// What of it was asked for.
    pub selection: Selection,
    /// The queue budget in force.
    pub queue_budget: Duration,
    /// The caller's own limit, if known.
    pub outer: Option<Duration>,
    /// Ports of the locks: workstation, worktree.
    pub ports: (u16, u16),
}

/// What a receipt says that neither suite, plan nor record know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// What was asked for.
    pub asked: Asked,
    /// The network namespace, if the system has such a thing.
    pub network_namespace: Option<String>,
    /// The boot of the clocks.
    pub boot_id: String,
    /// When both locks were won, if they were.
    pub won: Option<Clocks>,
    /// When the first task could start, if it could.
    pub started: Option<Clocks>,
    /// HEAD, if there is one.
    pub commit: Option<String>,
    /// The tree before the tasks, and the files that differed from HEAD; none if it was never read.
    pub tree: Option<(String, Vec<String>)>,
    /// Whether the tree was compared with the one after the tasks.
    pub compared: bool,
    /// The services that ran.
    pub services: Vec<Service>,
    /// Versions of programs.
    pub toolchain: BTreeMap<String, String>,
    /// This program.
    pub xtask: Program,
}

/// Most files that a receipt names in one list.
const NAMED_FILES: usize = 100;

/// The receipt of a run that ended at `ended`.
pub fn build(facts: &Facts, suite: &Suite, plan: &Plan, record: &Record, ended: Clocks) -> Receipt {
    let asked = &facts.asked;
    let queue_end = facts.won.unwrap_or(ended);
    let result = if facts.won.is_none() && record.stop.is_none() { Word::NotRun } else { record.result() };
    let outputs = record.tasks.iter().flat_map(|task| task.outputs.iter().cloned()).collect();
    let (tree, uncommitted) = facts.tree.clone().map_or((None, None), |(id, files)| (Some(id), Some(files)));
    let clean =
        uncommitted.as_ref().map_or(Answer::Unknown, |files| Answer::from(facts.commit.is_some() && files.is_empty()));
    let changed = match (record.tree_changed.is_empty(), facts.compared) {
        (false, _) => Answer::Yes,
        (true, true) => Answer::No,
        (true, false) => Answer::Unknown,
    };
    let named = |files: &[String]| files.iter().take(NAMED_FILES).cloned().collect();
    let predicate = Predicate {
        run: asked.run.clone(),
        caller: asked.caller,
        result,
        trouble: record.trouble.clone(),
        extent: if plan.partial { Extent::Partial } else { Extent::Whole },
        selection: asked.selection.clone(),
        suite: SuiteFile { path: asked.suite_path.clone(), sha256: digest::of_bytes(asked.suite_text.as_bytes()) },
        limits: Limits {
            queue_ms: millis(asked.queue_budget),
            deadline_ms: millis(suite.run.deadline),
            margin_ms: millis(suite.run.margin),
            stop_grace_ms: millis(suite.run.stop_grace),
            wrap_up_ms: millis(suite.run.wrap_up),
            slots: plan.slots as u64,
            outer_ms: asked.outer.map(millis),
        },
        lock: Lock {
            workstation: asked.ports.0,
            worktree: asked.ports.1,
            held: facts.won.is_some(),
            network_namespace: facts.network_namespace.clone(),
        },
        queue_ms: whole_ms(asked.requested.monotonic, queue_end.monotonic),
        run_ms: facts.won.map_or(0, |won| whole_ms(won.monotonic, ended.monotonic)),
        clocks: RunClocks {
            boot_id: facts.boot_id.clone(),
            requested: asked.requested.into(),
            won: facts.won.map(Clock::from),
            started: facts.started.map(Clock::from),
            ended: ended.into(),
        },
        tree: Tree {
            clean,
            uncommitted: named(&uncommitted.unwrap_or_default()),
            changed,
            changed_files: named(&record.tree_changed),
        },
        tasks: plan
            .tasks
            .iter()
            .map(|planned| {
                let wanted = suite.task(&planned.name).expect("a plan is made of tasks of its suite");
                let happened = record.tasks.iter().find(|task| task.task == planned.name);
                task(wanted, happened, facts)
            })
            .collect(),
        services: facts.services.clone(),
        toolchain: facts.toolchain.clone(),
        xtask: facts.xtask.clone(),
    };
    Receipt::new(Subjects { commit: facts.commit.clone(), tree, outputs }, predicate)
}

// The difference of the two clocks as the receipt writes them, so that anybody can take it again and find the same.
fn whole_ms(from: Moment, to: Moment) -> u64 {
    (to.as_nanos() / 1_000_000).saturating_sub(from.as_nanos() / 1_000_000)
}

fn task(wanted: &crate::suite::Task, happened: Option<&TaskRecord>, facts: &Facts) -> Task {
    let nobody_knows = if facts.won.is_some() { "nobody is left to say how it ended" } else { "nothing was run" };
    let started = happened.and_then(|task| task.started);
    Task {
        name: wanted.name.clone(),
        command: wanted.command.clone(),
        weight: wanted.cpus.to_string(),
        slots: happened.map(|task| task.cpus.iter().map(|&cpu| cpu as u64).collect()).unwrap_or_default(),
        deadline_ms: millis(wanted.deadline),
        log_limit: wanted.log_limit,
        started_ms: started.map(|at| at.as_nanos() / 1_000_000),
        took_ms: happened.map_or(0, |task| millis(task.took)),
        cpu_ms: happened.map_or(0, |task| millis(task.cpu_time)),
        peak_kib: happened.map_or(0, |task| task.peak_kib),
        verdict: happened.map_or(Word::NotRun, |task| task.verdict.word()),
        why: happened.map_or(nobody_knows.to_owned(), |task| task.verdict.to_string()),
        exit: happened.and_then(|task| task.exit),
        signals: happened.map(|task| task.signals.clone()).unwrap_or_default(),
        leftovers: happened.map(|task| task.leftovers.clone()).unwrap_or_default(),
        log: started.map(|_| log_path(&facts.asked.run, wanted.name.as_str())),
    }
}

// Where the log of a task is, relative to the repository's root.
fn log_path(run: &RunId, task: &str) -> String {
    format!("{LOGS}/{run}/{task}.log")
}

/// The folder of the log folders, relative to the repository's root.
pub const LOGS: &str = "target/xtask-runs";
