//! The order in which a plan's tasks stand in line: longest path to the end first, and where every duration is known,
//! the best of a bounded search over orders, each tried on simulated runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use super::line::{Job, Jobs, Line};
use crate::time::{Moment, millis};

/// Most starts of tasks that the search simulates: about a tenth of a second in an unoptimised program.
const MOST_STARTS: u64 = 60_000;

/// Starts that the search may simulate for each millisecond that a perfect order could win. One costs about 2 microseconds
/// in an unoptimised program: searching costs at most a fifth of what there is to win.
const STARTS_A_MILLISECOND: u64 = 100;

/// In how many ways each order is tried. No task takes exactly its usual time, and an order that is the best for exactly
/// those can be worse than none: with up to 5 ms more a task, one that took 1.01x of the bound on paper took 1.11x.
const TRIES: u32 = 3;

/// How much longer than usual a task may take in a try: this much ...
const LATER: Duration = Duration::from_millis(6);

/// ... and this many thousandths of its time.
const LONGER: u32 = 30;

/// Tasks by index, the first in line first.
pub fn order(plan: &Plan, jobs: &Arc<Jobs>) -> Vec<usize> {
    let first = longest_path_first(jobs);
    // Among thousands of tasks a few dozen tries find nothing.
    let worth = plan.tasks.len() as u64 <= MOST_STARTS / 30 && plan.tasks.iter().all(|task| task.usual.is_some());
    if worth { search(jobs, first) } else { first }
}

/// How long a run of `plan` takes if each task runs for exactly what `length` says and nothing else costs time.
pub fn makespan(plan: &Plan, length: impl Fn(usize) -> Duration) -> Duration {
    let jobs = Arc::new(Jobs::new(plan));
    let order = order(plan, &jobs);
    simulate(&jobs, order, length)
}

/// What no order can beat: the longest path, the work over the slots, or the turns of a mutex.
pub fn lower_bound(jobs: &Jobs) -> Duration {
    bound(jobs, |task| jobs.jobs[task].estimate)
}

fn bound(jobs: &Jobs, length: impl Fn(usize) -> Duration) -> Duration {
    let path = paths(jobs, &length).into_iter().max().unwrap_or_default();
    let mut turns = vec![Duration::ZERO; jobs.mutexes];
    let mut work = Duration::ZERO;
    for task in 0..jobs.jobs.len() {
        let slots = u32::try_from(jobs.slots_of(task)).unwrap_or(u32::MAX);
        work = work.saturating_add(length(task).saturating_mul(slots));
        if let Some(mutex) = jobs.mutex_of(task) {
            turns[mutex] = turns[mutex].saturating_add(length(task));
        }
    }
    let pool = u32::try_from(jobs.slots).unwrap_or(u32::MAX);
    path.max(work / pool).max(turns.into_iter().max().unwrap_or_default())
}

// From each task's start to the end of the longest chain of tasks that need it.
fn paths(jobs: &Jobs, length: impl Fn(usize) -> Duration) -> Vec<Duration> {
    let mut path = vec![Duration::ZERO; jobs.jobs.len()];
    for &task in jobs.sorted.iter().rev() {
        let job = &jobs.jobs[task];
        let rest = job.dependents.iter().map(|&dependent| path[dependent]).max().unwrap_or_default();
        path[task] = length(task).saturating_add(rest);
    }
    path
}

fn longest_path_first(jobs: &Jobs) -> Vec<usize> {
    let path = paths(jobs, |task| jobs.jobs[task].estimate);
    let mut order: Vec<usize> = (0..path.len()).collect();
    // Of two equal ones the heavier first, since small ones fill gaps; then the order of the file, for the sort is stable.
    order.sort_by_key(|&task| Reverse((path[task], jobs.slots_of(task))));
    order
}

// A walk from order to order that never takes a worse one: one task moves to another place in line. Steps that change
// nothing are taken too, or the walk would end at the first plateau. The first order is left for a hundredth at least.
fn search(jobs: &Arc<Jobs>, first: Vec<usize>) -> Vec<usize> {
    let tasks = first.len() as u64;
    let mut dice = Dice(tasks);
    let mut length = |job: &Job| {
        let later = LATER * u32::try_from(dice.below(1001)).unwrap_or_default() / 1000;
        let longer = job.estimate / 1000 * u32::try_from(dice.below(u64::from(LONGER) + 1)).unwrap_or_default();
        job.estimate + later + longer
    };
    let tries: Vec<Vec<Duration>> = (0..TRIES).map(|_| jobs.jobs.iter().map(&mut length).collect()).collect();
    let score = |order: &Vec<usize>| -> Duration {
        tries.iter().map(|lengths| simulate(jobs, order.clone(), |task| lengths[task])).sum()
    };
    let at_first = score(&first);
    let (mut length, mut here) = (at_first, first.clone());
    let least: Duration = tries.iter().map(|lengths| bound(jobs, |task| lengths[task])).sum();
    let to_win = millis(at_first.saturating_sub(least) / TRIES);
    let budget = to_win.saturating_mul(STARTS_A_MILLISECOND).min(MOST_STARTS);
    for _ in 0..budget / tasks / u64::from(TRIES) {
        let mut next = here.clone();
        let task = next.remove(dice.below(tasks));
        next.insert(dice.below(tasks), task);
        let its_length = score(&next);
        if its_length <= length {
            (length, here) = (its_length, next);
        }
    }
    if length <= at_first - at_first / 100 { here } else { first }
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
