//! The runner's hands: they start and stop processes, keep their logs and outputs, and tell what happened. Every rule
//! about order, deadlines and verdicts is the schedule's.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::lifeline::Lifeline;
use super::order::{Message, SUSPEND, SuiteOrder};
use super::outputs::{self, Hashes};
use super::seat::{Log, Seat};
use super::services::{News, Place, Services};
use super::{Hands, Observer, signal_of};
use crate::event::{Event, Stamped};
use crate::interrupt::{Wake, Wakeups};
use crate::name::{Caller, Name};
use crate::plan::Plan;
use crate::plan::schedule::{Action, Ending, Input, Why};
use crate::process::environment::Environment;
use crate::process::{Gone, Output, Owner, ProcessTree, Spawn, log};
use crate::service::{self, Env};
use crate::suite::{Leftovers, Suite, Task};
use crate::sys;
use crate::time::{Clocks, Human, Moment};
use crate::verdict::{Cause, ExitStatus, Stop, Verdict};

/// How much longer the boot clock may run than the monotonic one before the machine counts as suspended.
const SUSPENDED: Duration = Duration::from_secs(1);
/// How long a service may take to stop before it is killed, and what must be left of the run then.
const SERVICE_STOP: Duration = Duration::from_secs(10);
const LEFT_FOR_THE_END: Duration = Duration::from_secs(1);

/// How often the keeper is told at most how many tasks are done: it is woken each time, and only those who wait read it.
const PROGRESS: Duration = Duration::from_millis(50);

/// What to say if the machine was suspended since then: nobody knows what that did to the tasks' times.
pub fn slept(since: &Clocks) -> Option<String> {
    let slept = sys::clocks().suspended_since(since);
    (slept > SUSPENDED).then(|| format!("the machine was suspended for {} during the run", Human(slept)))
}

/// What is known when everything has ended.
pub struct Finished {
    /// Whether the keeper is gone.
    pub keeper_gone: bool,
    /// Whether it was said that the machine was suspended.
    pub slept: bool,
    /// Name and version of the services that were ready.
    pub services: Vec<(Name, String)>,
}

/// What the hands are given for a run.
pub struct Work<'a> {
    /// The keeper's order.
    pub order: &'a SuiteOrder,
    /// The run's scratch folder.
    pub scratch: &'a Path,
    /// The suite that the plan is of.
    pub suite: &'a Suite,
    /// The plan.
    pub plan: &'a Plan,
    /// Each planned task's program as an absolute path.
    pub programs: Vec<PathBuf>,
    /// The program of each `setup` command of a service, as an absolute path.
    pub setups: BTreeMap<Name, PathBuf>,
    /// The user's environment, as tasks get it.
    pub env: Environment,
    /// CPU numbers, one a slot.
    pub pool: Vec<usize>,
    /// The folder of the logs, absolute.
    pub logs: PathBuf,
}

/// The hands of a real run.
pub struct RunnerHands<'a> {
    work: Work<'a>,
    tree: ProcessTree,
    wakeups: Wakeups,
    lifeline: &'a mut Lifeline,
    observer: &'a mut dyn Observer,
    tasks: Vec<&'a Task>,
    seats: Vec<Seat>,
    services: Services,
    inbox: VecDeque<Input>,
    // What is being started: whose, its log, which nobody looks at yet, and when it began.
    launched: Vec<(usize, PathBuf, File, Moment)>,
    hashes: Hashes,
    done: usize,
    // How many of them the keeper knows of, and when it may be told again.
    told: (usize, Moment),
    stops: usize,
    slept: bool,
    // Nothing can be waited for.
    blind: bool,
    keeper_gone: bool,
}

impl<'a> RunnerHands<'a> {
    /// Hands with nothing in them yet. Errors if the system refuses what they need.
    pub fn new(
        work: Work<'a>,
        mut tree: ProcessTree,
        wakeups: Wakeups,
        lifeline: &'a mut Lifeline,
        observer: &'a mut dyn Observer,
    ) -> io::Result<Self> {
        let seats = work.plan.tasks.iter().map(|_| Seat::default()).collect();
        let task = |name| work.suite.task(name).expect("a plan is made of tasks of its suite");
        let tasks = work.plan.tasks.iter().map(|planned| task(&planned.name)).collect();
        let env = work.env.clone();
        let place = Place { root: &work.order.root, scratch: work.scratch, logs: &work.logs, env };
        let services = Services::start(work.suite, work.plan, &work.setups, &place, &mut tree);
        let mut hands = Self {
            work,
            tree,
            wakeups,
            lifeline,
            observer,
            tasks,
            seats,
            services,
            inbox: VecDeque::new(),
            launched: Vec::new(),
            hashes: Hashes::new()?,
            done: 0,
            told: (0, Moment::default()),
            stops: 0,
            slept: false,
            blind: false,
            keeper_gone: false,
        };
        if let Some(why) = hands.tree.unpinned() {
            let text = format!("tasks are not pinned to CPUs: {why}");
            hands.tell(Event::Note { text });
        }
        Ok(hands)
    }

    /// Stops the services, ends what no task accounts for, and says what the loop knows besides.
    pub fn finish(mut self, until: Moment) -> Finished {
        self.stop_services(until);
        let swept = self.tree.sweep_all(until);
        if !swept.found.is_empty() {
            let text = format!("processes of no task were left and ended: {}", swept.found.join(", "));
            self.tell(Event::Trouble { text });
        }
        for survivor in swept.survivors {
            self.tell(Event::Trouble { text: survivor.to_string() });
        }
        service::sweep(self.work.scratch);
        self.look_for_stops();
        self.tell_progress(self.told.1);
        Finished { keeper_gone: self.keeper_gone, slept: self.slept, services: self.services.versions() }
    }

    fn stop_services(&mut self, until: Moment) {
        self.services.close();
        let now = sys::now();
        let mut until = now + until.since(now).saturating_sub(LEFT_FOR_THE_END).min(SERVICE_STOP);
        let mut killed = false;
        while self.services.any_lives() {
            let over = sys::now() >= until;
            if over && killed {
                break;
            }
            // Who asks twice waits for nothing.
            if !killed && (over || self.stops > 1 || self.keeper_gone) {
                (killed, until) = (true, sys::now() + LEFT_FOR_THE_END / 2);
                for (index, name) in self.services.living() {
                    self.tell(Event::Note { text: format!("{name} had not stopped and is killed") });
                    self.tree.kill(Owner::Service(index));
                }
            }
            let due = [Some(until), self.tree.wake_at()].into_iter().flatten().min();
            // Once the keeper is gone its end can be read for ever.
            let lifeline: Vec<_> = (!self.keeper_gone).then(|| self.lifeline.as_fd()).into_iter().collect();
            for wake in self.wakeups.wait(due, &lifeline).unwrap_or_default() {
                match wake {
                    Wake::Stop(signal) => self.stop_asked(signal),
                    Wake::Ready(_) => self.look_for_stops(),
                    Wake::Child | Wake::Suspend => {}
                }
            }
            self.tree.poll().into_iter().for_each(|gone| self.ended(gone));
        }
        // Otherwise nobody asks.
        if self.stops > 0 {
            for name in self.services.removed() {
                self.tell(Event::Note { text: format!("{name} removed") });
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.observer.on(&Stamped { at: sys::now(), event });
    }

    fn task(&self, index: usize) -> &'a Task {
        self.tasks[index]
    }

    fn start(&mut self, index: usize, slots: &[usize]) {
        let cpus: Vec<usize> = slots.iter().map(|&slot| self.work.pool[slot]).collect();
        self.seats[index].cpus = cpus;
        let task = self.task(index);
        match task.services.is_empty() {
            true => self.launch(index, &Env::new()),
            false => {
                let news = self.services.ask(sys::now(), index, &task.name, &task.services);
                self.take(news);
            }
        }
    }

    fn take(&mut self, news: Vec<News>) {
        for news in news {
            match news {
                News::Note(text) => self.tell(Event::Note { text }),
                News::Go(index, env) => self.launch(index, &env),
                News::NoGo(index, cause) => self.not_started(index, Verdict::Failed(cause)),
                News::Kill(owner) => self.tree.kill(owner),
            }
        }
    }

    fn not_started(&mut self, index: usize, verdict: Verdict) {
        self.inbox.push_back(Input::NotStarted(index, verdict));
    }

    fn launch(&mut self, index: usize, service: &Env) {
        let cpus = self.seats[index].cpus.clone();
        match self.spawn(index, &cpus, service) {
            Ok((path, file, began)) => self.launched.push((index, path, file, began)),
            Err(cause) => self.not_started(index, Verdict::Failed(cause)),
        }
    }

    fn hear_of_starts(&mut self) {
        for (owner, pid) in self.tree.started() {
            let Some(at) = self.launched.iter().position(|(index, ..)| Owner::Task(*index) == owner) else { continue };
            let (index, path, file, began) = self.launched.swap_remove(at);
            if let Err(why) = pid {
                self.not_started(index, Verdict::Failed(Cause::Spawn(why)));
                continue;
            }
            let task = self.task(index).name.clone();
            let log = path.strip_prefix(&self.work.order.root).unwrap_or(&path).display().to_string();
            let seat = &mut self.seats[index];
            seat.started = Some(began);
            seat.log = Some(Log::new(file, began));
            let (deadline, cpus) = (self.work.plan.tasks[index].deadline, seat.cpus.clone());
            self.tell(Event::TaskStarted { task, cpus, deadline, log });
            self.inbox.push_back(Input::Started(index, began));
        }
    }

    // Gives the log's path, the log, and the last moment at which the task could not have begun.
    fn spawn(&mut self, index: usize, cpus: &[usize], service: &Env) -> Result<(PathBuf, File, Moment), Cause> {
        let task = self.task(index);
        let root = &self.work.order.root;
        for output in &task.outputs {
            outputs::remove(root, output).map_err(Cause::Output)?;
        }
        let path = self.work.logs.join(format!("{}.log", task.name));
        let (log, file) = log::create(&path).map_err(|e| Cause::Trouble(format!("its log cannot be made: {e}")))?;
        let count = cpus.len().to_string();
        // What the suite says of a task is said on purpose, and comes last.
        let taken: Vec<&str> = service.keys().map(String::as_str).collect();
        let given = service.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let env = self.work.env.clone().without(&taken).with(given).with(&task.env).with([("XTASK_CPUS", &count)]);
        let spawn = Spawn {
            label: task.name.as_str(),
            program: self.work.programs[index].clone(),
            args: task.command[1..].iter().map(|arg| arg.replace("{cpus}", &count).into()).collect(),
            dir: root.join(&task.dir),
            env: env.into_vec(),
            output: Output::Log(log),
            cpus: Some(cpus.to_vec()),
            stdin: None,
            session: false,
            hand_over: Vec::new(),
        };
        let began = sys::now();
        self.tree.begin(Owner::Task(index), spawn).map_err(Cause::Spawn)?;
        Ok((path, file, began))
    }

    fn stop(&mut self, now: Moment, index: usize, signal: Signal, why: Why) {
        if let Some(ending) = self.hashes.cut(index) {
            // Its processes are gone already; what is stopped is the reading of what they made.
            let trouble = Some(format!("its outputs were not read to the end: {why}"));
            self.inbox.push_back(Input::Ended(index, Ending { trouble, ..ending }));
            return;
        }
        let owner = Owner::Task(index);
        let doing = self.tree.processes(owner);
        let doing =
            doing.iter().map(|p| format!("{:indent$}{} {}", "", p.command, p.pid, indent = 2 * p.depth)).collect();
        let sent = match signal {
            Signal::SIGKILL => {
                self.tree.kill(owner);
                true
            }
            signal => self.tree.ask(owner, signal),
        };
        if !sent {
            return; // it has ended this moment: there is nothing to stop, and nothing to say
        }
        let seat = &self.seats[index];
        let event = Event::TaskStopping {
            task: self.task(index).name.clone(),
            why: why.to_string(),
            late: if let Why::Late(limit) = why { Some(limit) } else { None },
            silent: seat.log.as_ref().map(|log| log.silent(now)),
            signal: signal.to_string(),
            took: seat.started.map_or(Duration::ZERO, |started| now.since(started)),
            doing,
        };
        self.tell(event);
    }

    fn judged(&mut self, index: usize, verdict: Verdict) {
        let task = self.task(index);
        let record = std::mem::take(&mut self.seats[index]).record(task.name.clone(), verdict, task.log_limit);
        self.tell(Event::TaskFinished(record));
        self.done += 1;
    }

    // While a task runs its log has this looked at several times a second.
    fn tell_progress(&mut self, now: Moment) {
        let (done, again) = self.told;
        if done < self.done && again <= now {
            self.told = (self.done, now + PROGRESS);
            self.lifeline.send(Message::Progress { done: self.done, of: self.seats.len() });
        }
    }

    fn ended(&mut self, gone: Gone) {
        for survivor in &gone.survivors {
            self.tell(Event::Trouble { text: survivor.to_string() });
        }
        let index = match gone.owner {
            Owner::Task(index) => index,
            Owner::Service(index) => return self.services.gone(index),
            Owner::Other(_) => return,
        };
        let task = self.task(index);
        let ending = Ending {
            // A leader that would not die of SIGKILL is trouble of the run; for the task it counts as killed.
            status: gone.status.unwrap_or(ExitStatus::Signal(9)),
            at: gone.at,
            leftovers: gone.leftovers.clone(),
            leftovers_fail: task.leftovers == Leftovers::Fail,
            trouble: None,
        };
        self.seats[index].gone = Some(gone);
        if self.seats[index].log.as_mut().is_some_and(|log| log.ended_over(task.log_limit)) {
            self.inbox.push_back(Input::LogFull(index, task.log_limit));
        }
        if task.outputs.is_empty() || ending.status != ExitStatus::Code(0) {
            self.inbox.push_back(Input::Ended(index, ending));
            return;
        }
        self.hashes.begin(index, ending, self.work.order.root.clone(), task.outputs.clone());
    }

    fn hashed(&mut self) {
        for (index, mut ending, hashed) in self.hashes.take() {
            match hashed {
                Ok(outputs) => self.seats[index].outputs = outputs,
                Err(why) => ending.trouble = Some(why),
            }
            self.inbox.push_back(Input::Ended(index, ending));
        }
    }

    fn stop_asked(&mut self, signal: Stop) {
        self.stops += 1;
        self.tell(Event::StopAsked { signal, again: self.stops > 1 });
        self.inbox.push_back(Input::Stop(signal));
    }

    fn look_for_stops(&mut self) {
        let (messages, gone) = self.lifeline.receive();
        for message in messages {
            match message {
                Message::Stop(signal) => self.stop_asked(signal),
                Message::Suspend => {
                    self.tell(Event::Note { text: SUSPEND.to_owned() });
                }
                _ => {} // what a runner itself says
            }
        }
        if gone && !self.keeper_gone {
            // Whoever waits for the workstation must not get it while anything of this run lives, and nobody is left
            // to read a receipt: end everything now.
            self.keeper_gone = true;
            self.tell(Event::Trouble { text: "the keeper of this run is gone".to_owned() });
            self.inbox.push_back(Input::NoVerdict);
        }
    }

    fn look_around(&mut self, now: Moment) {
        if let Some(text) = slept(&self.work.order.won).filter(|_| !self.slept) {
            self.slept = true;
            self.tell(Event::Trouble { text });
            if self.work.order.asked.caller == Caller::Release {
                self.inbox.push_back(Input::NoVerdict);
            }
        }
        for index in 0..self.seats.len() {
            let limit = self.task(index).log_limit;
            if self.seats[index].log.as_mut().is_some_and(|log| log.outgrew(limit, now)) {
                self.inbox.push_back(Input::LogFull(index, limit));
            }
        }
        let news = self.services.listen(now);
        self.take(news);
        self.tell_progress(now);
        self.observer.tick(now);
    }
}

impl Hands for RunnerHands<'_> {
    fn now(&self) -> Moment {
        sys::now()
    }

    fn perform(&mut self, now: Moment, action: Action) {
        match action {
            Action::Start(index, slots) => self.start(index, &slots),
            Action::Ask(index, stop, why) => self.stop(now, index, signal_of(stop), why),
            Action::Withdraw(index, verdict) => {
                if let Some(text) = self.services.forget(now, index) {
                    self.tell(Event::Note { text });
                    self.not_started(index, verdict);
                }
            }
            Action::Kill(index, why) => self.stop(now, index, Signal::SIGKILL, why),
            Action::Verdict(index, verdict) => self.judged(index, verdict),
            Action::RunLate => self.tell(Event::RunLate { run: now.since(self.work.order.won.monotonic) }),
            Action::Done => {}
        }
    }

    fn wait(&mut self, until: Option<Moment>) -> (Moment, Input) {
        loop {
            self.hear_of_starts();
            if let Some(input) = self.inbox.pop_front() {
                return (sys::now(), input);
            }
            let now = sys::now();
            self.look_around(now);
            if !self.inbox.is_empty() {
                continue;
            }
            let logs = self.seats.iter().filter_map(|seat| Some(seat.log.as_ref()?.look_at())).min();
            let wake_at = [self.tree.wake_at(), self.observer.wake_at(), self.services.wake_at()];
            let due = [until, logs].into_iter().chain(wake_at).flatten().min();
            // Once the keeper is gone its end can be read for ever, and would wake this loop for nothing.
            let lifeline = if self.keeper_gone { self.hashes.as_fd() } else { self.lifeline.as_fd() };
            let mut fds = vec![lifeline, self.hashes.as_fd(), self.tree.starts()];
            fds.extend(self.services.fds());
            let woke = self.wakeups.wait(due, &fds).unwrap_or_else(|error| {
                // Without waking there are no deadlines: end the run while that is still possible.
                if !std::mem::replace(&mut self.blind, true) {
                    let text = format!("cannot wait: {error}");
                    self.observer.on(&Stamped { at: now, event: Event::Trouble { text } });
                    self.inbox.push_back(Input::NoVerdict);
                }
                Vec::new()
            });
            for wake in woke {
                match wake {
                    Wake::Stop(signal) => self.stop_asked(signal),
                    Wake::Ready(0) => self.look_for_stops(),
                    Wake::Ready(1) => self.hashed(),
                    Wake::Ready(2) => self.tree.hear_of_starts(),
                    // Services are listened to at every look around.
                    Wake::Ready(_) | Wake::Child | Wake::Suspend => {}
                }
            }
            let all_gone = self.tree.poll();
            // Also of those that are gone already.
            self.hear_of_starts();
            for gone in all_gone {
                self.ended(gone);
            }
            let now = sys::now();
            if self.inbox.is_empty() && until.is_some_and(|until| until <= now) {
                return (now, Input::Tick);
            }
        }
    }
}
