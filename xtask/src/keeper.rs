//! The first process of a run: what the user started. It waits for the locks, starts the runner, passes requests to stop
//! on to it, ends whatever the runner left, and lets the locks go last. It runs nothing of the suite itself, so that it
//! stays small: the kernel frees the port of a large process late.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::event::Event;
use crate::interrupt::{Wake, Wakeups};
use crate::lock::inside::{self, Enclosing};
use crate::lock::{self, HeldLocks, Identity, NotHeld, Patience, Scope, StopAsked};
use crate::name::Caller;
use crate::printer::{self, To, print};
use crate::process::environment::names_key;
use crate::process::table::Process;
use crate::process::{MARK, Output, Owner, ProcessTree, Spawn, Survivor, sweep};
use crate::run::lifeline::Lifeline;
use crate::run::order::{Message, Order, SUSPEND};
use crate::scratch;
use crate::service;
use crate::sys;
use crate::time::{Clocks, Human, Moment};
use crate::verdict::{Exit, ExitStatus, Stop};

/// How long the runner waits for its keeper's words to be printed.
const OWN_WORDS: Duration = Duration::from_millis(200);
/// How much longer than the run's deadline the runner is given before it counts as hung and is killed. It ends every task
/// by itself before the deadline; what may still take time then is a disk that syncs the receipt.
const BACKSTOP: Duration = Duration::from_secs(10);
/// How long a sweep tries before it names what it cannot end.
const SWEEP: Duration = Duration::from_secs(5);
/// How often the keeper looks whether a process that survived SIGKILL is gone at last.
const LOOK: Duration = Duration::from_millis(100);

/// A wake-up that comes so much too late says that the whole machine stood still: its virtual machine was paused, or it had
/// no CPU to spare for anybody.
const STANDSTILL: Duration = Duration::from_secs(1);

const RUNNER: Owner = Owner::Other(0);

/// How long a run with this deadline holds its locks at most, whatever hangs; longer only while a process of it outlives
/// SIGKILL, for which there is no limit, and where the machine itself stands still.
pub fn longest(deadline: Duration) -> Duration {
    deadline.saturating_add(BACKSTOP + SWEEP)
}

/// A keeper before it holds anything.
#[derive(Debug)]
pub struct Keeper {
    wakeups: RefCell<Wakeups>,
    stopped: Cell<Option<Stop>>,
}

/// How a run ended, as its keeper saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Supervised {
    /// The exit code that it deserves.
    pub exit: Exit,
    /// What the runner could not say itself, a line each.
    pub trouble: Vec<String>,
    /// How the command of `lock run` ended, if it ended by itself.
    pub command: Option<ExitStatus>,
    /// The sha256 of the receipt that the runner has written or was about to write, if it came so far.
    pub receipt: Option<String>,
}

impl Keeper {
    /// Takes over the signals of this process; once in its life. Errors if the system refuses.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { wakeups: RefCell::new(Wakeups::new()?), stopped: Cell::new(None) })
    }

    /// Waits for these locks out of one budget, which counts from `requested`. Errors with why there is no lock. A call from
    /// inside a run that holds one of them, or the machine, whose port this is, is refused before anything is taken: a
    /// folder is not waited for while the machine is held.
    pub fn hold(
        &self,
        wanted: &[(Scope, u16)],
        workstation: u16,
        identity: &Identity,
        (requested, budget): (Clocks, Duration),
        tell: &mut dyn FnMut(Event),
    ) -> Result<HeldLocks, NotHeld> {
        let bind = |error| NotHeld::Bind { port: wanted[0].1, error };
        // A copy: while the lock waits on it, `which` empties what it stands for.
        let asked = self.wakeups.borrow().stop_asked().try_clone_to_owned().map_err(bind)?;
        // Who waits for the machine holds a folder meanwhile, which others may wait for.
        let holds = Cell::new(false);
        let tell = RefCell::new(tell);
        let which = || {
            let woken = self.wakeups.borrow_mut().wait(Some(Moment::default()), &[]).unwrap_or_default();
            match (woken.contains(&Wake::Suspend), holds.get()) {
                (true, true) => tell.borrow_mut()(Event::Note { text: SUSPEND.to_owned() }),
                // If it cannot be stopped it goes on waiting. The budget goes on in any case.
                (true, false) => drop(self.wakeups.borrow().suspend()),
                (false, _) => {}
            }
            woken.into_iter().find_map(|wake| if let Wake::Stop(stop) = wake { Some(stop) } else { None })
        };
        let mark = std::env::var(MARK).unwrap_or_default();
        let stop = StopAsked { fd: asked.as_fd(), which: &which };
        let machine = (Scope::Workstation, workstation);
        let others = wanted.iter().copied().filter(|lock| *lock != machine);
        let locks: Vec<_> = std::iter::once(machine).chain(others).collect();
        inside::refuse(&locks, &Enclosing::new(&mark, ancestors()), stop)?;
        let patience = Patience { requested, budget, stop, mark: &mark };
        lock::acquire_all(wanted, identity, &patience, &mut |event| {
            if let Event::Queued { scope, .. } = &event {
                holds.set(*scope != wanted[0].0.to_string());
            }
            tell.borrow_mut()(event);
        })
    }

    /// Runs an order from the start of its runner to the end of everything that the runner started. The locks are held
    /// throughout; the caller lets them go. `note` takes lines for people.
    pub fn supervise(&self, locks: &HeldLocks, mut order: Order, note: &mut dyn FnMut(&str)) -> Supervised {
        let mut told = Supervised { exit: Exit::NoVerdict, trouble: Vec::new(), command: None, receipt: None };
        match self.run(locks, &mut order, note, &mut told) {
            Ok(exit) => told.exit = exit,
            Err(why) => told.trouble.push(why),
        }
        told
    }

    /// The first request to stop that has come so far, also one that came too late for what was supervised.
    pub fn stop(&self) -> Option<Stop> {
        // If nothing can be seen, nothing was asked.
        for wake in self.wakeups.borrow_mut().wait(Some(Moment::default()), &[]).unwrap_or_default() {
            if let (Wake::Stop(stop), None) = (wake, self.stopped.get()) {
                self.stopped.set(Some(stop));
            }
        }
        self.stopped.get()
    }

    fn run(
        &self,
        locks: &HeldLocks,
        order: &mut Order,
        note: &mut dyn FnMut(&str),
        told: &mut Supervised,
    ) -> Result<Exit, String> {
        let left = end_the_dead(note);
        match order {
            // The runner tells it, and its receipt says it.
            Order::Suite(order) => order.trouble.extend(left),
            Order::Command(_) => told.trouble.extend(left),
        }
        let outer = std::env::var(MARK).ok();
        let mut tree = ProcessTree::new(order.run().clone(), outer.as_deref())?;
        let started = start(&mut tree, locks, order);
        let exit = match started {
            Ok(lifeline) => self.watch(&mut tree, lifeline, locks, order, told),
            Err(why) => Err(why),
        };
        let unheard = match order {
            Order::Suite(_) => told.receipt.is_none(),
            Order::Command(_) => told.command.is_none(),
        };
        let trouble = &mut told.trouble;
        if exit == Ok(Exit::Passed) && unheard {
            trouble.push("what the runner had to say of its end was not heard".to_owned());
        }
        let swept = tree.sweep_all(sys::now() + SWEEP);
        if exit == Ok(Exit::Passed) && !swept.found.is_empty() {
            trouble.push(format!("the runner left processes behind: {}", swept.found.join(", ")));
        }
        self.outwait(&swept.survivors, note, trouble);
        if let Some(folder) = scratch::of(order.run()) {
            service::sweep(&folder);
        }
        trouble.extend(scratch::remove(order.run()));
        if exit == Ok(Exit::Passed) && !trouble.is_empty() { Ok(Exit::NoVerdict) } else { exit }
    }

    fn watch(
        &self,
        tree: &mut ProcessTree,
        mut lifeline: Lifeline,
        locks: &HeldLocks,
        order: &Order,
        Supervised { trouble, command, receipt, .. }: &mut Supervised,
    ) -> Result<Exit, String> {
        let mut hear = |lifeline: &mut Lifeline, trouble: &mut Vec<String>| {
            let (messages, gone) = lifeline.receive();
            for message in messages {
                match message {
                    Message::Progress { done, of } => locks.set_progress(done, of),
                    Message::Ended(status) => *command = Some(status),
                    Message::Receipt(sha256) => {
                        receipt.clone_from(&sha256);
                        sha256.into_iter().for_each(|sha256| lifeline.send(Message::Heard(sha256)));
                    }
                    Message::Trouble(text) => trouble.push(text),
                    Message::Unsaid { data, text } => print(if data { To::Stdout } else { To::Stderr }, text),
                    Message::Stop(_) | Message::Suspend | Message::Heard(_) => {}
                }
            }
            !gone
        };
        let mut give_up = locks.won.monotonic + order.deadline() + BACKSTOP;
        let (mut stops, mut hung, mut open, mut stood_still) = (0, false, true, false);
        loop {
            let due = [Some(give_up).filter(|_| !hung), tree.wake_at()].into_iter().flatten().min();
            let fds: &[_] = if open { &[lifeline.as_fd()] } else { &[] };
            let woken = self.wakeups.borrow_mut().wait(due, fds).map_err(|e| format!("cannot wait: {e}"))?;
            for wake in woken {
                match wake {
                    Wake::Stop(stop) => {
                        self.stopped.set(self.stopped.get().or(Some(stop)));
                        lifeline.send(Message::Stop(stop));
                        stops += 1;
                        if stops > 1 {
                            // The runner kills at once now. One that hangs is not waited for.
                            give_up = give_up.min(sys::now() + SWEEP);
                        }
                    }
                    Wake::Suspend => lifeline.send(Message::Suspend),
                    Wake::Ready(_) => open = hear(&mut lifeline, trouble),
                    Wake::Child => {}
                }
            }
            if let Some(gone) = tree.poll().into_iter().find(|gone| gone.owner == RUNNER) {
                hear(&mut lifeline, trouble);
                return Ok(match gone.status {
                    _ if hung => self.stopped.get().map_or(Exit::NoVerdict, Exit::Cancelled),
                    // A command that cannot be started is wrong use; a suite was checked before anybody queued.
                    Some(ExitStatus::Code(2)) if matches!(order, Order::Command(_)) => Exit::Usage,
                    Some(ExitStatus::Code(code)) => exit_of(code).unwrap_or_else(|| {
                        trouble.push(format!("the runner could not do its work: exit code {code}"));
                        Exit::NoVerdict
                    }),
                    status => {
                        let how = status.map_or("it cannot be ended".to_owned(), |status| status.to_string());
                        trouble.push(format!("the runner is gone before it could say how the run ended: {how}"));
                        self.stopped.get().map_or(Exit::NoVerdict, Exit::Cancelled)
                    }
                });
            }
            let now = sys::now();
            if !hung && now >= give_up {
                // Then the runner had no time either. It does not hang, and has to say that the run is late.
                if now.since(give_up) >= STANDSTILL && !std::mem::replace(&mut stood_still, true) {
                    give_up = now + SWEEP;
                    continue;
                }
                hung = true;
                let held = Human(now.since(locks.won.monotonic));
                trouble.push(format!("the runner had not ended {held} after the lock was won, and was killed"));
                tree.kill(RUNNER);
            }
        }
    }

    // While a process of this run lives the workstation is in use, and saying so is all that can be done about it. One of
    // another user's may live for ever and is named alone.
    fn outwait(&self, survivors: &[Survivor], note: &mut dyn FnMut(&str), trouble: &mut Vec<String>) {
        trouble.extend(survivors.iter().map(Survivor::to_string));
        for survivor in survivors.iter().filter(|survivor| !survivor.of_another_user) {
            note(&format!("{survivor}; the lock is held while it lives"));
            while survivor.lives() {
                let _ = self.wakeups.borrow_mut().wait(Some(sys::now() + LOOK), &[]);
            }
        }
    }
}

// Runs of this user whose keeper and runner were both killed: their tasks may still be there. What cannot be ended.
fn end_the_dead(note: &mut dyn FnMut(&str)) -> Vec<String> {
    let dead = scratch::dead();
    let swept = sweep::end_marked(&dead.runs(), sys::now() + SWEEP);
    if !swept.found.is_empty() {
        note(&format!("ended what a run that was killed had left: {}", swept.found.join(", ")));
    }
    dead.folders().for_each(service::sweep);
    dead.remove().iter().for_each(|stuck| note(stuck));
    swept.survivors.iter().map(Survivor::to_string).collect()
}

// This process's parent, the parent of that, and so on, as far as they can be seen.
fn ancestors() -> Vec<i32> {
    let parent = |&pid: &i32| Some(Process::read(pid)?.parent).filter(|&parent| parent > 0);
    // Parents may end while they are read, and their pids may be given out again; so there is a last one.
    std::iter::successors(Some(nix::unistd::getppid().as_raw()), parent).take(4096).collect()
}

fn start(tree: &mut ProcessTree, locks: &HeldLocks, order: &mut Order) -> Result<Lifeline, String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |e: std::io::Error| format!("{what}: {e}")
    };
    let (mut ours, theirs) = Lifeline::pair().map_err(failed("no socket pair for the runner"))?;
    let copy = |lock: &lock::HeldLock| lock.inheritable().map_err(failed("no copy of the lock for the runner"));
    let copies = locks.each().map(copy).collect::<Result<Vec<_>, _>>()?;
    *order.keep_open() = copies.iter().map(AsRawFd::as_raw_fd).collect();
    let hand_over = std::iter::once(theirs.as_fd()).chain(copies.iter().map(AsFd::as_fd)).collect();
    let release = matches!(order, Order::Suite(order) if order.asked.caller == Caller::Release);
    // The command of `lock run` reads what is piped into it; tasks of a suite read nothing.
    let stdin = match order {
        Order::Suite(_) => None,
        Order::Command(_) => Some(std::io::stdin().as_fd().try_clone_to_owned().map_err(failed("no stdin"))?),
    };
    // Its words come after this process's own.
    printer::settle(Some(OWN_WORDS));
    tree.spawn(
        RUNNER,
        Spawn {
            label: "runner",
            program: sys::this_program().map_err(failed("this program cannot be found again"))?,
            args: vec!["internal-runner".into(), theirs.as_fd().as_raw_fd().to_string().into()],
            dir: order.folder().to_owned(),
            // The parent of every task: what it has, they can read.
            env: std::env::vars_os().filter(|(name, _)| !names_key(name, release)).collect(),
            output: Output::Inherit,
            cpus: None,
            stdin,
            // No controlling terminal: nothing below it can take or spoil the user's, and Ctrl-C reaches the keeper alone.
            session: true,
            hand_over,
        },
    )?;
    ours.give(order).map_err(failed("the runner does not take its order"))?;
    Ok(ours)
}

fn exit_of(code: i32) -> Option<Exit> {
    let stops = [Stop::Int, Stop::Term, Stop::Hup].map(Exit::Cancelled);
    let all = [Exit::Passed, Exit::Failed, Exit::Late, Exit::NoVerdict];
    all.into_iter().chain(stops).find(|exit| i32::from(exit.code()) == code)
}
