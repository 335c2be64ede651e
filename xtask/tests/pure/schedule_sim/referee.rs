//! The referee: what a schedule may do and has to do, by the rules alone.

use std::collections::BTreeSet;
use std::time::Duration;

use xtask::plan::schedule::{Action, Ending, Why};
use xtask::suite::OnFailure;
use xtask::time::Moment;
use xtask::verdict::{Cause, ExitStatus, Limit, Reason, Stop, Verdict, Word};

use super::{Coming, Seen, World, ms};

impl World<'_> {
    pub(super) fn judge(&mut self, action: Action) {
        assert!(!self.done, "{action:?} after the end");
        let now = self.now;
        match action {
            Action::Start(task, slots) => {
                let planned = &self.plan.tasks[task];
                assert!(!self.halted(), "task {task} starts after a stop");
                assert!(self.seen[task].decided.is_none() && self.seen[task].verdict.is_none(), "task {task} again");
                for &need in &planned.needs {
                    assert_eq!(self.seen[need].verdict, Some(Verdict::Passed), "task {task} needs {need}");
                }
                assert_eq!(
                    slots.iter().collect::<BTreeSet<_>>().len(),
                    planned.slots,
                    "slots of task {task}: {slots:?}"
                );
                for &slot in &slots {
                    assert_eq!(self.slots[slot], None, "slot {slot}, given to {task}, is held");
                    self.slots[slot] = Some(task);
                }
                let mutex = |&&other: &&usize| planned.mutex.is_some() && self.plan.tasks[other].mutex == planned.mutex;
                assert_eq!(self.active.iter().find(mutex), None, "mutex of task {task} is held");
                if self.picky {
                    let choice = self.choice();
                    assert_eq!(choice.map(|(task, _)| task), Some(task), "the wrong task goes next");
                    if choice.is_some_and(|(_, ahead)| ahead) {
                        self.endings.insert("went ahead");
                    }
                }
                self.seen[task].decided = Some(now);
                self.seen[task].slots = slots;
                self.active.push(task);
                self.will(self.fates[task].appears.unwrap_or(ms(1)), Coming::Appears(task));
            }
            Action::Withdraw(task, verdict) => {
                let seen = &mut self.seen[task];
                assert!(seen.decided.is_some() && seen.started.is_none() && !seen.over, "task {task} is not starting");
                assert_eq!(seen.withdrawn.replace(verdict), None, "task {task} is withdrawn twice");
                assert!(self.halted(), "task {task} is withdrawn for no reason");
            }
            Action::Ask(task, signal, why) => {
                let seen = &self.seen[task];
                assert!(seen.started.is_some() && !seen.over && seen.asked.is_none() && seen.killed.is_none());
                let fair = match why {
                    Why::Late(Limit::Task) => self.deadline(task) <= now.min(self.cut),
                    Why::Late(Limit::Run) => self.run_late && self.cut <= now,
                    Why::LogFull => seen.log_full,
                    Why::Cancelled(stop) => self.stops.first() == Some(&stop),
                    Why::OnFailure => self.failed && self.plan.on_failure == OnFailure::Stop,
                    Why::GraceOver | Why::NoVerdict => false,
                };
                assert!(fair, "task {task} is asked for no reason: {why:?}");
                assert_eq!(signal, if let Why::Cancelled(stop) = why { stop } else { Stop::Term });
                if seen.told == Some(now) {
                    self.endings.insert("asked as it began");
                }
                self.seen[task].asked = Some((now, why));
                if let Some(obeys) = self.fates[task].obeys {
                    self.will(obeys, Coming::Dies(task, 15));
                }
            }
            Action::Kill(task, why) => {
                let seen = &self.seen[task];
                assert!(seen.started.is_some() && !seen.over && seen.killed.is_none());
                let fair = match why {
                    Why::GraceOver => self.grace_end(task).is_some_and(|end| end <= now),
                    Why::Cancelled(stop) => self.stops.len() > 1 && self.stops[1..].contains(&stop),
                    Why::NoVerdict => self.lost,
                    _ => false,
                };
                assert!(fair, "task {task} is killed for no reason: {why:?}");
                self.endings.insert(match (why, seen.asked) {
                    (_, None) if seen.told == Some(now) => "killed as it began",
                    (Why::GraceOver, Some((asked, _))) if self.last_grace < asked + self.plan.stop_grace => {
                        "killed by the last grace"
                    }
                    (Why::GraceOver, _) => "killed at the end of its grace",
                    _ => "killed in its grace",
                });
                self.seen[task].killed = Some(now);
                self.will(self.fates[task].dies, Coming::Dies(task, 9));
            }
            Action::Verdict(task, verdict) => self.judge_verdict(task, verdict),
            Action::RunLate => {
                assert!(self.cut <= now && !self.run_late && self.without_verdict > 0);
                self.endings.insert("run late");
                self.run_late = true;
                self.halt.get_or_insert((self.cut, Verdict::Late(Limit::Run)));
            }
            Action::Done => {
                assert_eq!((self.without_verdict, self.active.len()), (0, 0), "done too early");
                self.done = true;
            }
        }
    }

    fn judge_verdict(&mut self, task: usize, verdict: Verdict) {
        let seen = self.seen[task].clone();
        assert_eq!(seen.verdict, None, "a second verdict for task {task}");
        if let Verdict::NotRun(reason) = &verdict {
            assert!(seen.decided.is_none() || seen.withdrawn.as_ref() == Some(&verdict), "task {task} did run");
            let needed = |need: &&usize| matches!(reason, Reason::Needs(name) if *name == self.plan.tasks[**need].name);
            let fair = match reason {
                Reason::Needs(_) => self.plan.tasks[task].needs.iter().find(needed).is_some_and(|&need| {
                    self.seen[need].verdict.as_ref().is_some_and(|verdict| *verdict != Verdict::Passed)
                }),
                Reason::OnFailure => self.failed && self.plan.on_failure == OnFailure::Stop,
                Reason::RunDeadline => self.run_late,
                Reason::Cancelled(stop) => self.stops.first() == Some(stop),
                Reason::NoVerdict => self.lost,
            };
            assert!(fair, "task {task} is not run for no reason: {reason:?}");
        }
        if seen.decided.is_some() {
            assert!(seen.over, "a verdict for task {task}, which is not over");
            self.active.retain(|&other| other != task);
            for slot in &seen.slots {
                self.slots[*slot] = None;
            }
            match &seen.dead {
                None if matches!(verdict, Verdict::NotRun(_)) => drop(self.endings.insert("withdrawn")),
                None => assert_eq!(verdict, Verdict::Failed(Cause::Spawn("not there".to_owned()))),
                Some(ending) => self.compare(task, &seen, ending, &verdict),
            }
        }
        self.endings.insert(match &verdict {
            Verdict::Passed if seen.asked.is_some() => "passed though it was asked",
            Verdict::Passed => "passed",
            Verdict::Failed(Cause::Exit(_)) => "failed exit",
            Verdict::Failed(Cause::Leftovers(_)) => "failed leftovers",
            Verdict::Failed(Cause::LogLimit(_)) => "failed log",
            Verdict::Failed(Cause::Output(_)) => "failed output",
            Verdict::Failed(_) => "failed spawn",
            Verdict::Late(Limit::Task) => "late task",
            Verdict::Late(Limit::Run) => "late run",
            Verdict::Cancelled(_) => "cancelled",
            Verdict::NotRun(Reason::Needs(_)) => "not-run needs",
            Verdict::NotRun(Reason::OnFailure) => "not-run on-failure",
            Verdict::NotRun(Reason::RunDeadline) => "not-run run",
            Verdict::NotRun(Reason::Cancelled(_)) => "not-run cancelled",
            Verdict::NotRun(Reason::NoVerdict) => "not-run no-verdict",
        });
        self.failed |= matches!(verdict.word(), Word::Failed | Word::Late);
        if self.failed && self.plan.on_failure == OnFailure::Stop {
            self.halt.get_or_insert((self.now, Verdict::Cancelled(Stop::Term)));
        }
        self.without_verdict -= 1;
        self.seen[task].verdict = Some(verdict);
    }

    /// The verdict of a task that ran against what the referee saw of it.
    fn compare(&self, task: usize, seen: &Seen, ending: &Ending, verdict: &Verdict) {
        let limit = self.deadline(task).min(self.cut);
        let stopped = seen.asked.map(|(at, _)| at).or(seen.killed);
        let by_itself = ending.at <= limit && stopped.is_none_or(|stopped| ending.at <= stopped);
        let bad_leftovers = ending.leftovers_fail && !ending.leftovers.is_empty();
        if by_itself {
            let well = ending.status == ExitStatus::Code(0);
            match verdict {
                Verdict::Passed => assert!(well && !seen.log_full && !bad_leftovers && ending.trouble.is_none()),
                Verdict::Failed(Cause::Exit(status)) => assert!(!well && *status == ending.status),
                Verdict::Failed(Cause::LogLimit(_)) => assert!(well && seen.log_full),
                Verdict::Failed(Cause::Leftovers(_)) => assert!(well && bad_leftovers),
                Verdict::Failed(Cause::Output(_)) => assert!(well && ending.trouble.is_some()),
                other => panic!("task {task} ended by itself and is {other:?}"),
            }
            return;
        }
        // It needed a signal, or should have had one: what came first is the verdict.
        let stop = match (seen.asked, seen.killed) {
            (Some((_, Why::Late(_))), _) | (None, None) => None,
            (Some((at, Why::LogFull)), _) => Some((at, Verdict::Failed(Cause::LogLimit(64)))),
            _ => self.halt.clone(),
        };
        let mut causes = vec![(self.deadline(task), Verdict::Late(Limit::Task)), (self.cut, Verdict::Late(Limit::Run))];
        causes.retain(|(limit, _)| *limit < ending.at);
        causes.extend(stop.filter(|_| stopped.is_some_and(|stopped| stopped < ending.at)));
        causes.sort_by_key(|(since, _)| *since);
        assert_eq!(*verdict, causes[0].1, "task {task}: {seen:?}");
    }

    fn deadline(&self, task: usize) -> Moment {
        self.seen[task].started.expect("it has started") + self.plan.tasks[task].deadline
    }

    fn grace_end(&self, task: usize) -> Option<Moment> {
        self.seen[task].asked.map(|(asked, _)| (asked + self.plan.stop_grace).min(self.last_grace))
    }

    /// After each step: everything due is done, and the schedule will be woken for what is not due yet.
    pub(super) fn look_around(&mut self) {
        let wake = self.schedule.wake_at();
        assert!(wake.is_none_or(|wake| self.now < wake), "it wants to be woken in the past");
        let in_time = |due: Moment| wake.is_some_and(|wake| wake <= due);
        let stopped = self.halted();
        for &task in &self.active {
            let seen = &self.seen[task];
            let starting = seen.started.is_none() && !seen.over;
            assert!(!(starting && stopped) || seen.withdrawn.is_some(), "task {task} is about to start after a stop");
            if seen.started.is_none() || seen.over || seen.killed.is_some() {
                continue;
            }
            assert!(self.stops.len() < 2 && !self.lost, "task {task} is not killed at once");
            match self.grace_end(task) {
                None => {
                    let due = self.deadline(task).min(self.cut);
                    assert!(self.now < due, "task {task} is not asked at its deadline");
                    assert!(!stopped, "task {task} goes on after a stop");
                    assert!(in_time(due), "nobody will look at the deadline of task {task}");
                }
                Some(end) => {
                    assert!(self.now < end, "task {task} is not killed at the end of its grace");
                    assert!(in_time(end), "nobody will look at the end of the grace of task {task}");
                }
            }
        }
        let waiting = self.without_verdict - self.active.len();
        assert!(waiting == 0 || (!stopped && in_time(self.cut)), "{waiting} tasks wait for nothing");
        if self.picky && !stopped {
            assert_eq!(self.choice(), None, "a slot is idle that a task could use");
        }
    }

    /// Who goes next by the definition, and whether it goes ahead of another: the first in line if it fits; else the
    /// first of those that fit and do not make the first in line wait longer, as far as can be foreseen.
    fn choice(&self) -> Option<(usize, bool)> {
        let passed = |need: &usize| self.seen[*need].verdict == Some(Verdict::Passed);
        let ready = |task: &usize| {
            let seen = &self.seen[*task];
            seen.decided.is_none() && seen.verdict.is_none() && self.plan.tasks[*task].needs.iter().all(passed)
        };
        let mut line = self.schedule.order().iter().copied().filter(ready);
        let first = line.next()?;
        let fits_now = |task: usize| self.fits(task, self.active.iter().copied());
        if fits_now(first) {
            return Some((first, false));
        }
        let mut holders: Vec<(usize, Moment)> = self.active.iter().map(|&task| (task, self.expected(task))).collect();
        let without = self.expected_to_fit(first, &holders);
        let mut delays = |task: usize| {
            holders.push((task, self.now + self.estimate(task)));
            let with = self.expected_to_fit(first, &holders);
            holders.pop();
            without < with
        };
        line.find(|&task| fits_now(task) && !delays(task)).map(|task| (task, true))
    }

    fn estimate(&self, task: usize) -> Duration {
        let planned = &self.plan.tasks[task];
        planned.usual.unwrap_or(planned.deadline).min(planned.deadline).max(ms(1))
    }

    fn expected(&self, task: usize) -> Moment {
        let seen = &self.seen[task];
        let begun = seen.started.or(seen.decided).expect("it holds slots") + self.estimate(task);
        seen.killed.or(self.grace_end(task)).unwrap_or(begun)
    }

    fn fits(&self, task: usize, holders: impl Iterator<Item = usize>) -> bool {
        let planned = &self.plan.tasks[task];
        let (mut free, mut apart) = (self.plan.slots, true);
        for other in holders.map(|other| &self.plan.tasks[other]) {
            free -= other.slots;
            apart &= planned.mutex.is_none() || planned.mutex != other.mutex;
        }
        planned.slots <= free && apart
    }

    /// When a task that does not fit now is expected to. What is overdue is expected at any moment.
    fn expected_to_fit(&self, task: usize, holders: &[(usize, Moment)]) -> Moment {
        let mut ends: Vec<Moment> = holders.iter().map(|&(_, until)| until.max(self.now)).collect();
        ends.sort_unstable();
        let there = |at| holders.iter().filter(move |&&(_, until)| at < until).map(|&(other, _)| other);
        ends.into_iter().find(|&at| self.fits(task, there(at))).expect("it fits an empty pool")
    }
}
