//! The line of tasks that are ready, and who of them goes next: slots, mutexes, order, and the first in line's right
//! not to be overtaken at its cost. The schedule drives it with real events, the search for an order with simulated ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Plan;
use super::slots::Pool;
use crate::time::Moment;

/// What the line has to know of a plan, by index of task. It does not change during a run.
#[derive(Debug)]
pub struct Jobs {
    /// What each task takes and how long.
    pub jobs: Vec<Job>,
    /// The tasks, each after those that it needs.
    pub sorted: Vec<usize>,
    /// Slots of the pool.
    pub slots: usize,
    /// Mutexes that two tasks or more take.
    pub mutexes: usize,
    kinds: Vec<Kind>,
}

/// One task as the line sees it.
#[derive(Debug)]
pub struct Job {
    /// How long it is taken to run: its usual duration, else its deadline. Never zero, so that being let ahead always
    /// costs something.
    pub estimate: Duration,
    /// Tasks that need it.
    pub dependents: Vec<usize>,
    needs: usize,
    kind: usize,
}

/// Tasks that take the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    slots: usize,
    mutex: Option<usize>,
}

impl Jobs {
    /// Reads a plan, whose needs must be free of cycles.
    pub fn new(plan: &Plan) -> Self {
        let mut users = BTreeMap::<_, usize>::new();
        plan.tasks.iter().filter_map(|task| task.mutex.as_ref()).for_each(|name| *users.entry(name).or_default() += 1);
        // A mutex of a single task keeps nothing apart.
        let numbers: BTreeMap<_, _> =
            users.into_iter().filter(|&(_, n)| n > 1).map(|(name, _)| name).zip(0..).collect();
        let mut kinds = BTreeMap::new();
        let mut jobs: Vec<Job> = plan
            .tasks
            .iter()
            .map(|task| {
                assert!((1..=plan.slots).contains(&task.slots), "{} takes {} of {}", task.name, task.slots, plan.slots);
                let mutex = task.mutex.as_ref().and_then(|name| numbers.get(name).copied());
                let next = kinds.len();
                Job {
                    estimate: task.usual.unwrap_or(task.deadline).min(task.deadline).max(Duration::from_millis(1)),
                    dependents: Vec::new(),
                    needs: task.needs.len(),
                    kind: *kinds.entry(Kind { slots: task.slots, mutex }).or_insert(next),
                }
            })
            .collect();
        for (i, task) in plan.tasks.iter().enumerate() {
            task.needs.iter().for_each(|&need| jobs[need].dependents.push(i));
        }
        let mut open: Vec<usize> = jobs.iter().map(|job| job.needs).collect();
        let mut sorted: Vec<usize> = (0..jobs.len()).filter(|&i| open[i] == 0).collect();
        let mut seen = 0;
        while seen < sorted.len() {
            for &dependent in &jobs[sorted[seen]].dependents {
                open[dependent] -= 1;
                if open[dependent] == 0 {
                    sorted.push(dependent);
                }
            }
            seen += 1;
        }
        assert!(sorted.len() == jobs.len(), "the needs of {} tasks form a cycle", jobs.len() - sorted.len());
        let mut by_number: Vec<(usize, Kind)> = kinds.into_iter().map(|(kind, number)| (number, kind)).collect();
        by_number.sort_unstable();
        let kinds = by_number.into_iter().map(|(_, kind)| kind).collect();
        Self { jobs, sorted, slots: plan.slots, mutexes: numbers.len(), kinds }
    }

    /// Slots that a task takes.
    pub fn slots_of(&self, task: usize) -> usize {
        self.kinds[self.jobs[task].kind].slots
    }

    /// The number of the mutex that a task takes and others take too, from 0.
    pub fn mutex_of(&self, task: usize) -> Option<usize> {
        self.kinds[self.jobs[task].kind].mutex
    }
}

/// Who waits, who holds what.
#[derive(Debug)]
pub struct Line {
    jobs: Arc<Jobs>,
    order: Vec<usize>,
    rank: Vec<usize>,
    /// How many needs of each task have not passed yet.
    unmet: Vec<usize>,
    /// Ranks of what is ready, for each kind: a look at the line costs as much as there are kinds, not tasks.
    ready: Vec<BTreeSet<usize>>,
    pool: Pool,
    held: Vec<bool>,
    holders: Vec<Holder>,
}

#[derive(Debug)]
struct Holder {
    task: usize,
    slots: Vec<usize>,
    /// When it is expected to end.
    until: Moment,
}

impl Line {
    /// A line in which what stands earlier in `order` (every task once) goes first. Nothing runs.
    pub fn new(jobs: Arc<Jobs>, order: Vec<usize>) -> Self {
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &task)| rank[task] = at);
        let mut line = Self {
            unmet: jobs.jobs.iter().map(|job| job.needs).collect(),
            ready: vec![BTreeSet::new(); jobs.kinds.len()],
            pool: Pool::new(jobs.slots),
            held: vec![false; jobs.mutexes],
            holders: Vec::new(),
            jobs,
            order,
            rank,
        };
        let ready: Vec<usize> = (0..line.rank.len()).filter(|&task| line.unmet[task] == 0).collect();
        ready.into_iter().for_each(|task| line.join(task));
        line
    }

    /// The order that it was made with.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The task that goes next, if one may go now, and its slots; it holds them and its mutex from here on.
    ///
    /// The first in line goes as soon as it fits. While it does not, others that fit go ahead in their order, but only
    /// where that cannot delay it: they are expected to be over before what it waits for is, or they leave enough for it.
    /// What is expected is the usual duration, and the deadline where none is known. Deadlines alone would be the harder
    /// bound but the worse rule: what runs usually ends long before its deadline, and the first in line would then wait
    /// for whatever was let ahead on the strength of it. Where an expectation proves wrong, the wait grows once, by at
    /// most what was let ahead then: what is overdue is expected at any moment, and against that nothing goes ahead.
    pub fn next(&mut self, now: Moment) -> Option<(usize, Vec<usize>)> {
        if self.pool.left() == 0 {
            return None;
        }
        let first = self.order[*self.ready.iter().filter_map(BTreeSet::first).min()?];
        let kind = self.jobs.jobs[first].kind;
        if self.fits(kind) {
            return Some(self.start(first, now));
        }
        let (due, spare) = self.reservation(self.jobs.kinds[kind], now);
        let ahead = |other: usize| {
            let Kind { slots, mutex } = self.jobs.kinds[other];
            if slots <= spare && (mutex.is_none() || mutex != self.jobs.kinds[kind].mutex) {
                return self.ready[other].first();
            }
            self.ready[other].iter().find(|&&rank| now + self.jobs.jobs[self.order[rank]].estimate <= due)
        };
        let rank = (0..self.ready.len()).filter(|&other| self.fits(other)).filter_map(ahead).min()?;
        Some(self.start(self.order[*rank], now))
    }

    /// A holder is now expected to end at `until`.
    pub fn expect(&mut self, task: usize, until: Moment) {
        if let Some(holder) = self.holders.iter_mut().find(|holder| holder.task == task) {
            holder.until = until;
        }
    }

    /// A holder ended: what it held is free.
    pub fn release(&mut self, task: usize) {
        let at = self.holders.iter().position(|holder| holder.task == task).expect("only holders are released");
        let holder = self.holders.swap_remove(at);
        self.pool.give(&holder.slots);
        if let Some(mutex) = self.jobs.mutex_of(task) {
            self.held[mutex] = false;
        }
    }

    /// A task has passed: what needs it comes nearer.
    pub fn pass(&mut self, task: usize) {
        let jobs = Arc::clone(&self.jobs);
        for &dependent in &jobs.jobs[task].dependents {
            self.unmet[dependent] -= 1;
            if self.unmet[dependent] == 0 {
                self.join(dependent);
            }
        }
    }

    fn join(&mut self, task: usize) {
        self.ready[self.jobs.jobs[task].kind].insert(self.rank[task]);
    }

    fn fits(&self, kind: usize) -> bool {
        let Kind { slots, mutex } = self.jobs.kinds[kind];
        slots <= self.pool.left() && mutex.is_none_or(|mutex| !self.held[mutex])
    }

    fn start(&mut self, task: usize, now: Moment) -> (usize, Vec<usize>) {
        let was_ready = self.ready[self.jobs.jobs[task].kind].remove(&self.rank[task]);
        assert!(was_ready, "task {task} starts but is not ready");
        let slots = self.pool.take(self.jobs.slots_of(task));
        if let Some(mutex) = self.jobs.mutex_of(task) {
            self.held[mutex] = true;
        }
        self.holders.push(Holder { task, slots: slots.clone(), until: now + self.jobs.jobs[task].estimate });
        (task, slots)
    }

    // When a task of that kind is expected to fit, and how many slots will then be free beside it.
    fn reservation(&self, kind: Kind, now: Moment) -> (Moment, usize) {
        let mut ends: Vec<(Moment, usize)> =
            self.holders.iter().map(|holder| (holder.until, holder.slots.len())).collect();
        ends.sort_unstable();
        let takes_mutex = |holder: &&Holder| kind.mutex.is_some() && self.jobs.mutex_of(holder.task) == kind.mutex;
        let mut due = self.holders.iter().find(takes_mutex).map_or(now, |holder| holder.until.max(now));
        let mut free = self.pool.left();
        for (end, slots) in ends {
            if end > due && free >= kind.slots {
                break;
            }
            free += slots;
            due = due.max(end);
        }
        (due, free - kind.slots)
    }
}
