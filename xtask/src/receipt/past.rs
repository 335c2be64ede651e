//! How long things took in earlier runs: what the order of tasks and the hints on the screen go by, never a verdict.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::statement::{Extent, PREDICATE_TYPE};
use crate::name::TaskName;
use crate::verdict::Word;

/// How many whole runs that passed are enough: whether a task has become slower is told from its last ten.
const ENOUGH: usize = 10;

/// How long things took in earlier runs, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Past {
    /// Tasks that passed.
    pub tasks: BTreeMap<TaskName, Vec<Duration>>,
    /// Whole suites that passed.
    pub runs: Vec<Duration>,
}

// The little of a receipt that counts here. Reading all of it, and whether it is written as it should be, takes an
// unoptimised program five times as long.
#[derive(Deserialize)]
struct Brief {
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: Run,
}

#[derive(Deserialize)]
struct Run {
    result: Word,
    extent: Extent,
    run_ms: u64,
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    name: TaskName,
    verdict: Word,
    took_ms: u64,
}

impl Past {
    /// What these receipts tell, the newest first. It takes no more of them than it needs; one that cannot be read tells
    /// nothing.
    pub fn of(newest_first: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut past = Self::default();
        for bytes in newest_first {
            let Ok(Brief { predicate_type, predicate: run }) = serde_json::from_slice(&bytes) else { continue };
            if predicate_type != PREDICATE_TYPE {
                continue;
            }
            for task in run.tasks.into_iter().filter(|task| task.verdict == Word::Passed) {
                past.tasks.entry(task.name).or_default().push(Duration::from_millis(task.took_ms));
            }
            if run.result == Word::Passed && run.extent == Extent::Whole {
                past.runs.push(Duration::from_millis(run.run_ms));
            }
            if past.runs.len() == ENOUGH {
                break;
            }
        }
        past.runs.reverse();
        past.tasks.values_mut().for_each(|took| took.reverse());
        past
    }

    /// The usual duration of each task: the median.
    pub fn usual(&self) -> BTreeMap<TaskName, Duration> {
        self.tasks.iter().filter_map(|(task, took)| Some((task.clone(), median(took)?))).collect()
    }
}

/// The middle one of some durations, of an even number the shorter of the two in the middle; none of none.
pub fn median(durations: &[Duration]) -> Option<Duration> {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}
