//! The schedule of a run as a pure state machine: what happened, and when, in; what to do out.
//!
//! It owns every rule about deadlines, stopping and verdicts; who goes next is the line's matter. It never touches a
//! process or a clock.
//!
//! A task's verdict goes by what came first. Each limit and each stop has its moment: the task's deadline, the cut of the
//! run, the signal of somebody who cancelled. If the leader ended after one of them, the earliest of those is the
//! verdict, whatever its exit code: a task that needed a signal has not passed. If it ended before all of them, or in the
//! same nanosecond, it ended by itself, even if the signal was on its way, and its own troubles count in this order: the
//! exit status, the log over its limit, what it left behind, what it should have made.
//!
//! The run is cut at `won + deadline - wrap-up`. No grace reaches beyond the cut by more than one `stop-grace`: what is
//! left of the wrap-up (2 s at least, the suite file sees to that) is there for killing, sweeping and the receipt.

use std::sync::Arc;

use super::Plan;
use super::line::{Jobs, Line};
use super::order::order;
use crate::suite::OnFailure;
use crate::time::Moment;
use crate::verdict::{Cause, ExitStatus, Limit, Reason, Stop, Verdict};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Nothing but time passed. Also the first input of a run.
    Tick,
    /// The task's process exists. Its deadline counts from this moment, which is before it could do anything: what was told
    /// late, on a busy machine, makes no task's time shorter.
    Started(usize, Moment),
    /// The task's process could not be had. It counts as ended: nothing of it is left.
    NotStarted(usize, Verdict),
    /// Everything of the task is gone.
    Ended(usize, Ending),
    /// The task's log passed its cap.
    LogFull(usize, u64),
    /// Somebody asks to stop: the first time politely, the second time at once.
    Stop(Stop),
    /// The run cannot have a verdict any more (the machine slept, the tree cannot be read …): end it at once.
    NoVerdict,
}

/// How a task's processes ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How the leader ended.
    pub status: ExitStatus,
    /// When the leader ended.
    pub at: Moment,
    /// Processes that the leader left behind when it ended by itself, as text; they are dead by now.
    pub leftovers: Vec<String>,
    /// Whether leftovers fail the task.
    pub leftovers_fail: bool,
    /// A declared output that is not there, or other trouble that fails the task.
    pub trouble: Option<String>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the task on these slots (indices below `Plan::slots`).
    Start(usize, Vec<usize>),
    /// The task was to start, and nothing starts any more: give it up with this verdict (`NotStarted`) unless its process
    /// exists already. It may wait for a service.
    Withdraw(usize, Verdict),
    /// Ask the task to end: the signal to its group, then SIGCONT. `why` for people and the record.
    Ask(usize, Stop, Why),
    /// SIGKILL to everything of the task.
    Kill(usize, Why),
    /// The task's verdict. Exactly one for each task.
    Verdict(usize, Verdict),
    /// The run's own deadline has cut it. Said once.
    RunLate,
    /// Every task has its verdict and nothing runs. The last action of a run.
    Done,
}

/// Why a task is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It, or the run, passed its deadline.
    Late(Limit),
    /// It was asked to end and the grace is over.
    GraceOver,
    /// Its log is full.
    LogFull,
    /// The run is cancelled.
    Cancelled(Stop),
    /// Another task failed and `on-failure = "stop"`. Its verdict is `Cancelled(Stop::Term)`, the signal it got, though
    /// nobody cancelled the run.
    OnFailure,
    /// The run cannot have a verdict any more. Its verdict is `Cancelled(Stop::Term)`.
    NoVerdict,
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late(Limit::Task) => f.write_str("passed its deadline"),
            Self::Late(Limit::Run) => f.write_str("the run passed its deadline"),
            Self::GraceOver => f.write_str("the grace is over"),
            Self::LogFull => f.write_str("its log is full"),
            Self::Cancelled(stop) => write!(f, "cancelled by {stop}"),
            Self::OnFailure => f.write_str("another task failed"),
            Self::NoVerdict => f.write_str("the run cannot have a verdict any more"),
        }
    }
}

/// The state machine. `on` is the only way to change it.
#[derive(Debug)]
pub struct Schedule {
    plan: Plan,
    jobs: Arc<Jobs>,
    line: Line,
    states: Vec<State>,
    /// Tasks that hold slots.
    active: Vec<usize>,
    /// Tasks without a verdict.
    open: usize,
    /// When the run stops its tasks.
    cut: Moment,
    /// When the last grace ends.
    graces_end: Moment,
    /// Why, and since when, nothing starts any more.
    halt: Option<Halt>,
    /// Somebody asked to stop.
    stop_asked: bool,
    /// Why everything is killed, without a grace.
    at_once: Option<Why>,
    done: bool,
}

#[derive(Debug)]
enum State {
    Waiting,
    Starting,
    Running(Running),
    Over,
}

#[derive(Debug)]
struct Running {
    deadline: Moment,
    log_full: Option<u64>,
    stop: Option<Stopping>,
}

#[derive(Debug)]
struct Stopping {
    /// What the task is if it ended after it was asked, unless a limit before `since` says otherwise.
    verdict: Verdict,
    since: Moment,
    asked: Moment,
    /// The end of the grace; none once killed.
    kill_at: Option<Moment>,
}

#[derive(Debug, Clone)]
struct Halt {
    reason: Reason,
    since: Moment,
}

impl Halt {
    // The signal for what runs, why, and what that makes of it.
    fn stops(&self) -> (Stop, Why, Verdict) {
        match self.reason {
            Reason::Cancelled(stop) => (stop, Why::Cancelled(stop), Verdict::Cancelled(stop)),
            Reason::RunDeadline => (Stop::Term, Why::Late(Limit::Run), Verdict::Late(Limit::Run)),
            Reason::NoVerdict => (Stop::Term, Why::NoVerdict, Verdict::Cancelled(Stop::Term)),
            Reason::OnFailure | Reason::Needs(_) => (Stop::Term, Why::OnFailure, Verdict::Cancelled(Stop::Term)),
        }
    }
}

impl Schedule {
    /// A run of `plan` whose clock started at `won`.
    pub fn new(plan: &Plan, won: Moment) -> Self {
        let jobs = Arc::new(Jobs::new(plan));
        let line = Line::new(Arc::clone(&jobs), order(plan, &jobs));
        Self {
            plan: plan.clone(),
            jobs,
            line,
            states: plan.tasks.iter().map(|_| State::Waiting).collect(),
            active: Vec::new(),
            open: plan.tasks.len(),
            cut: won + plan.deadline.saturating_sub(plan.wrap_up),
            graces_end: won + plan.deadline.saturating_sub(plan.wrap_up.saturating_sub(plan.stop_grace)),
            halt: None,
            stop_asked: false,
            at_once: None,
            done: false,
        }
    }

    /// Takes what happened at `now` and says what to do, in this order. `now` never goes back.
    pub fn on(&mut self, now: Moment, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        // What ended is let go before the clock is looked at: it is judged by when it ended, not by when that was heard of.
        // What is asked for comes after: a deadline that has passed meanwhile was there first.
        if matches!(input, Input::LogFull(..) | Input::Stop(_) | Input::NoVerdict) {
            self.look_at_the_clock(now, &mut out);
        }
        match input {
            Input::Tick => {}
            Input::Started(task, at) => self.started(now, task, at, &mut out),
            Input::NotStarted(task, verdict) => self.not_started(now, task, verdict, &mut out),
            Input::Ended(task, ending) => self.ended(now, task, &ending, &mut out),
            Input::LogFull(task, limit) => self.log_full(now, task, limit, &mut out),
            Input::Stop(stop) => self.stop(now, stop, &mut out),
            Input::NoVerdict => self.no_verdict(now, &mut out),
        }
        self.look_at_the_clock(now, &mut out);
        while self.halt.is_none()
            && let Some((task, slots)) = self.line.next(now)
        {
            self.states[task] = State::Starting;
            self.active.push(task);
            out.push(Action::Start(task, slots));
        }
        if self.open == 0 && !self.done {
            self.done = true;
            out.push(Action::Done);
        }
        out
    }

    /// The tasks as they stand in line, the first first.
    pub fn order(&self) -> &[usize] {
        self.line.order()
    }

    /// When a `Tick` is due at the latest; none if only a task can bring news.
    pub fn wake_at(&self) -> Option<Moment> {
        let tasks = self.active.iter().filter_map(|&task| match &self.states[task] {
            State::Running(Running { stop: None, deadline, .. }) => Some(*deadline),
            State::Running(Running { stop: Some(stop), .. }) => stop.kill_at,
            _ => None,
        });
        tasks.chain((self.halt.is_none() && !self.done).then_some(self.cut)).min()
    }

    fn started(&mut self, now: Moment, task: usize, at: Moment, out: &mut Vec<Action>) {
        assert!(matches!(self.states[task], State::Starting), "task {task} started, but is {:?}", self.states[task]);
        let deadline = at + self.plan.tasks[task].deadline;
        self.states[task] = State::Running(Running { deadline, log_full: None, stop: None });
        self.line.expect(task, at + self.jobs.jobs[task].estimate);
        self.stop_task(now, task, out);
    }

    fn not_started(&mut self, now: Moment, task: usize, verdict: Verdict, out: &mut Vec<Action>) {
        assert!(matches!(self.states[task], State::Starting), "task {task} not started, but {:?}", self.states[task]);
        self.let_go(task);
        self.look_at_the_clock(now, out);
        self.settle(now, task, verdict, out);
    }

    fn ended(&mut self, now: Moment, task: usize, ending: &Ending, out: &mut Vec<Action>) {
        let State::Running(running) = &self.states[task] else {
            panic!("task {task} ended, but is {:?}", self.states[task])
        };
        let verdict = self.judge(running, ending);
        self.let_go(task);
        if verdict == Verdict::Late(Limit::Run) {
            self.cut_run(now, out);
        }
        self.look_at_the_clock(now, out);
        self.settle(now, task, verdict, out);
    }

    fn judge(&self, running: &Running, ending: &Ending) -> Verdict {
        let after = |limit: Moment| limit < ending.at; // exactly at it is in time
        let stop = running.stop.iter().filter(|stop| after(stop.asked)).map(|stop| (stop.since, stop.verdict.clone()));
        let late = [(running.deadline, Verdict::Late(Limit::Task)), (self.cut, Verdict::Late(Limit::Run))];
        let limits = late.into_iter().filter(|&(limit, _)| after(limit));
        // Of equal moments the first counts: a task's own deadline says more than the run's.
        if let Some((_, verdict)) = limits.chain(stop).min_by_key(|&(since, _)| since) {
            return verdict;
        }
        let cause = if ending.status != ExitStatus::Code(0) {
            Cause::Exit(ending.status)
        } else if let Some(limit) = running.log_full {
            Cause::LogLimit(limit)
        } else if ending.leftovers_fail && !ending.leftovers.is_empty() {
            Cause::Leftovers(ending.leftovers.clone())
        } else if let Some(trouble) = &ending.trouble {
            Cause::Output(trouble.clone())
        } else {
            return Verdict::Passed;
        };
        Verdict::Failed(cause)
    }

    // Whatever is due by now, in the order in which it became due.
    fn look_at_the_clock(&mut self, now: Moment, out: &mut Vec<Action>) {
        for task in self.active.clone() {
            if let State::Running(Running { stop: None, deadline, .. }) = self.states[task]
                && deadline <= now.min(self.cut)
            {
                self.ask(now, task, (Stop::Term, Why::Late(Limit::Task), Verdict::Late(Limit::Task)), deadline, out);
            }
        }
        if self.cut <= now && self.open > 0 {
            self.cut_run(now, out);
        }
        for task in self.active.clone() {
            if let State::Running(Running { stop: Some(stop), .. }) = &self.states[task]
                && stop.kill_at.is_some_and(|kill_at| kill_at <= now)
            {
                self.kill(now, task, Why::GraceOver, out);
            }
        }
    }

    fn log_full(&mut self, now: Moment, task: usize, limit: u64, out: &mut Vec<Action>) {
        // The log may have been looked at just after the task ended: that is no mistake.
        if let State::Running(running) = &mut self.states[task] {
            running.log_full = Some(limit);
            self.ask(now, task, (Stop::Term, Why::LogFull, Verdict::Failed(Cause::LogLimit(limit))), now, out);
        }
    }

    fn stop(&mut self, now: Moment, stop: Stop, out: &mut Vec<Action>) {
        if self.stop_asked {
            self.at_once = self.at_once.or(Some(Why::Cancelled(stop)));
        }
        self.stop_asked = true;
        self.halt(now, Reason::Cancelled(stop), out);
    }

    fn no_verdict(&mut self, now: Moment, out: &mut Vec<Action>) {
        self.at_once = self.at_once.or(Some(Why::NoVerdict));
        self.halt(now, Reason::NoVerdict, out);
    }

    // Cuts the run, unless it has ended for another reason before: then nothing is left to cut.
    fn cut_run(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.halt.is_none() {
            out.push(Action::RunLate);
            self.halt(now, Reason::RunDeadline, out);
        }
    }

    // From here on nothing starts. The first reason stays.
    fn halt(&mut self, now: Moment, reason: Reason, out: &mut Vec<Action>) {
        let first = self.halt.is_none();
        let reason = self.halt.get_or_insert(Halt { reason, since: now }).reason.clone();
        for task in self.active.clone() {
            if first && matches!(self.states[task], State::Starting) {
                out.push(Action::Withdraw(task, Verdict::NotRun(reason.clone())));
            }
            self.stop_task(now, task, out);
        }
        for task in 0..self.states.len() {
            if matches!(self.states[task], State::Waiting) {
                self.not_run(task, reason.clone(), out);
            }
        }
    }

    // Stops a task that runs though nothing should any more.
    fn stop_task(&mut self, now: Moment, task: usize, out: &mut Vec<Action>) {
        if let Some(halt) = self.halt.clone() {
            match self.at_once {
                Some(why) => self.kill(now, task, why, out),
                None => self.ask(now, task, halt.stops(), halt.since, out),
            }
        }
    }

    // Asks a task to end, once: what came first stays the reason, and no grace begins anew.
    fn ask(&mut self, now: Moment, task: usize, how: (Stop, Why, Verdict), since: Moment, out: &mut Vec<Action>) {
        if let State::Running(running) = &mut self.states[task]
            && running.stop.is_none()
        {
            let (signal, why, verdict) = how;
            let kill_at = (now + self.plan.stop_grace).min(self.graces_end);
            running.stop = Some(Stopping { verdict, since, asked: now, kill_at: Some(kill_at) });
            self.line.expect(task, kill_at);
            out.push(Action::Ask(task, signal, why));
        }
    }

    fn kill(&mut self, now: Moment, task: usize, why: Why, out: &mut Vec<Action>) {
        let State::Running(running) = &mut self.states[task] else { return };
        match (&mut running.stop, &self.halt) {
            (Some(stop), _) if stop.kill_at.is_none() => return,
            (Some(stop), _) => stop.kill_at = None,
            (stop, Some(halt)) => {
                *stop = Some(Stopping { verdict: halt.stops().2, since: halt.since, asked: now, kill_at: None });
            }
            (None, None) => panic!("task {task} is killed, but was not asked and nothing has halted the run"),
        }
        out.push(Action::Kill(task, why));
    }

    fn let_go(&mut self, task: usize) {
        self.line.release(task);
        self.active.retain(|&other| other != task);
        self.states[task] = State::Over;
        self.open -= 1;
    }

    // A task that was let go has its verdict; what follows from it for the others.
    fn settle(&mut self, now: Moment, task: usize, verdict: Verdict, out: &mut Vec<Action>) {
        let passed = verdict == Verdict::Passed;
        out.push(Action::Verdict(task, verdict));
        if passed {
            return self.line.pass(task);
        }
        let mut without = vec![task];
        while let Some(need) = without.pop() {
            let jobs = Arc::clone(&self.jobs);
            for &task in &jobs.jobs[need].dependents {
                if matches!(self.states[task], State::Waiting) {
                    self.not_run(task, Reason::Needs(self.plan.tasks[need].name.clone()), out);
                    without.push(task);
                }
            }
        }
        if self.plan.on_failure == OnFailure::Stop {
            self.halt(now, Reason::OnFailure, out);
        }
    }

    fn not_run(&mut self, task: usize, reason: Reason, out: &mut Vec<Action>) {
        self.states[task] = State::Over;
        self.open -= 1;
        out.push(Action::Verdict(task, Verdict::NotRun(reason)));
    }
}
