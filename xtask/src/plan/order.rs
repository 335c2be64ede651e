//! The order in which a plan's tasks stand in line: longest path to the end first, and where every duration is known,
//! the best of a bounded search over orders, each tried on a simulated run.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use super::line::{Jobs, Line};
use crate::time::{Moment, millis};

/// Most starts of tasks that the search simulates: some tens of milliseconds.
const MOST_STARTS: u64 = 20_000;

/// Starts that the search may simulate for each millisecond that a perfect order could win: simulating one costs about
/// 2 microseconds, so that searching never costs more than a small part of what there is to win.
const STARTS_A_MILLISECOND: u64 = 20;

/// Tasks by index, the first in line first.
pub fn order(plan: &Plan, jobs: &Arc<Jobs>) -> Vec<usize> {
    let first = longest_path_first(jobs);
    if plan.tasks.iter().all(|task| task.usual.is_some()) { search(jobs, first) } else { first }
}

/// How long a run of `plan` takes if each task runs for exactly what `length` says and nothing else costs time.
pub fn makespan(plan: &Plan, length: impl Fn(usize) -> Duration) -> Duration {
    let jobs = Arc::new(Jobs::new(plan));
    let order = order(plan, &jobs);
    simulate(&jobs, order, length)
}

/// What no order can beat: the longest path, the work over the slots, or the turns of a mutex.
pub fn lower_bound(jobs: &Jobs) -> Duration {
    let path = paths(jobs).into_iter().max().unwrap_or_default();
    let mut turns = vec![Duration::ZERO; jobs.mutexes];
    let mut work = Duration::ZERO;
    for (task, job) in jobs.jobs.iter().enumerate() {
        work = work.saturating_add(job.estimate.saturating_mul(u32::try_from(jobs.slots_of(task)).unwrap_or(u32::MAX)));
        if let Some(mutex) = jobs.mutex_of(task) {
            turns[mutex] = turns[mutex].saturating_add(job.estimate);
        }
    }
    let pool = u32::try_from(jobs.slots).unwrap_or(u32::MAX);
    path.max(work / pool).max(turns.into_iter().max().unwrap_or_default())
}

// From each task's start to the end of the longest chain of tasks that need it.
fn paths(jobs: &Jobs) -> Vec<Duration> {
    let mut path = vec![Duration::ZERO; jobs.jobs.len()];
    for &task in jobs.sorted.iter().rev() {
        let job = &jobs.jobs[task];
        let rest = job.dependents.iter().map(|&dependent| path[dependent]).max().unwrap_or_default();
        path[task] = job.estimate.saturating_add(rest);
    }
    path
}

fn longest_path_first(jobs: &Jobs) -> Vec<usize> {
    let path = paths(jobs);
    let mut order: Vec<usize> = (0..path.len()).collect();
    // Of two equal ones the heavier first, since small ones fill gaps; then the order of the file, for the sort is stable.
    order.sort_by_key(|&task| Reverse((path[task], jobs.slots_of(task))));
    order
}

// A walk from order to order that never takes a worse one: one task moves to another place in line. Steps that change
// nothing are taken too, or the walk would end at the first plateau; but they are no reason to leave the first order.
fn search(jobs: &Arc<Jobs>, first: Vec<usize>) -> Vec<usize> {
    let bound = lower_bound(jobs);
    let estimate = |task: usize| jobs.jobs[task].estimate;
    let (mut length, mut here, mut best) = (simulate(jobs, first.clone(), estimate), first.clone(), first);
    let tasks = best.len() as u64;
    let budget = millis(length.saturating_sub(bound)).saturating_mul(STARTS_A_MILLISECOND).min(MOST_STARTS);
    let mut dice = Dice(tasks);
    for _ in 0..budget / tasks {
        let mut next = here.clone();
        let task = next.remove(dice.below(tasks));
        next.insert(dice.below(tasks), task);
        let its_length = simulate(jobs, next.clone(), estimate);
        if its_length < length {
            best = next.clone();
        }
        if its_length <= length {
            (length, here) = (its_length, next);
        }
        if length <= bound {
            break;
        }
    }
    best
}

fn simulate(jobs: &Arc<Jobs>, order: Vec<usize>, length: impl Fn(usize) -> Duration) -> Duration {
    let begin = Moment::default();
    let (mut now, mut line, mut ends) = (begin, Line::new(Arc::clone(jobs), order), BinaryHeap::new());
    loop {
        while let Some((task, _)) = line.next(now) {
            ends.push(Reverse((now + length(task), task)));
        }
        let Some(Reverse((end, task))) = ends.pop() else { return now.since(begin) };
        now = end;
        line.release(task);
        line.pass(task);
    }
}

// SplitMix64 (Steele, Lea, Flood 2014): the same plan always gives the same order.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound).expect("the bound counts tasks")
    }
}
