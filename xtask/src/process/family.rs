//! One owner of processes, from its start until its last process is gone.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::sweep::{Condemned, Survivor};
use super::table::Process;
use crate::sys::{self, Exited};
use crate::time::Moment;
use crate::verdict::ExitStatus;

/// How long what a task left behind may still be on its way out before it is called a leftover. A shell does not wait
/// for all it started (`>(tee log)`), and what ends at the same moment is no daemon.
const SETTLE: Duration = Duration::from_millis(200);

/// Whose a process is. The numbers mean something to the caller alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A task of the plan.
    Task(usize),
    /// A service.
    Service(usize),
    /// Anything else.
    Other(usize),
}

/// An owner whose last process is gone, but for survivors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    /// Who.
    pub owner: Owner,
    /// How the leader ended; none if it would not.
    pub status: Option<ExitStatus>,
    /// When the leader ended.
    pub at: Moment,
    /// CPU time of the leader, of what it waited for, and of the orphans that were reaped here.
    pub cpu_time: Duration,
    /// The largest resident set of one of those, in KiB. Never less than this process's own was at the start: the kernel
    /// counts what a process was before its exec (fs/exec.c, `setmax_mm_hiwater_rss`).
    pub peak_kib: u64,
    /// What was still running when the leader had ended by itself, a command line each.
    pub leftovers: Vec<String>,
    /// Signals that it was sent, in order: `SIGTERM`, `SIGKILL`.
    pub signals: Vec<String>,
    /// What could not be ended.
    pub survivors: Vec<Survivor>,
}

// Whose a process below this one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Of(Owner),
    // It was there before the tree, or comes from what was.
    Before,
    // It is in this process's own group: other code here (a question to git) started it and waits for it.
    Helper,
    // Nobody can tell.
    Stray,
}

// Of whom a look may have missed a process, because one of theirs ended meanwhile.
#[derive(Debug, Default)]
pub(super) struct Missed {
    owners: HashSet<Owner>,
    // Of somebody; nobody can tell of whom.
    anybody: bool,
}

impl Missed {
    pub(super) fn add(&mut self, owner: Option<Owner>) {
        match owner {
            Some(owner) => drop(self.owners.insert(owner)),
            None => self.anybody = true,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owners.is_empty() && !self.anybody
    }

    fn may_be_of(&self, owner: Owner) -> bool {
        self.anybody || self.owners.contains(&owner)
    }
}

// An owner, from its start until it is gone.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) owner: Owner,
    pub(super) label: String,
    pub(super) pid: i32,
    pub(super) cpus: Option<HashSet<usize>>,
    // Its log, as /proc names it.
    pub(super) log: Option<PathBuf>,
    handle: duct::Handle,
    signals: Vec<String>,
    stage: Stage,
    cpu_time: Duration,
    peak_kib: u64,
}

#[derive(Debug)]
enum Stage {
    Running,
    // SIGKILL was asked for, and the leader has not ended yet.
    Killed,
    // The leader has ended by itself, and what it left has a moment to go by itself too.
    Settling(Moment, ExitStatus),
    // The leader has ended; what is left is being killed.
    Ending(Moment, ExitStatus, Vec<String>),
}

/// How many of the processes that were left are named.
const NAMED: usize = 20;

fn names(found: &[(Process, Whose)], owner: Owner, leader: i32) -> Vec<String> {
    let left = |(p, whose): &&(Process, Whose)| *whose == Whose::Of(owner) && !p.exiting && p.pid != leader;
    let mut left = found.iter().filter(left).map(|(p, _)| p);
    let mut names: Vec<String> = left.by_ref().take(NAMED).map(Process::command).collect();
    match left.count() {
        0 => {}
        more => names.push(format!("and {more} more")),
    }
    names
}

impl Family {
    pub(super) fn new(owner: Owner, label: &str, handle: duct::Handle, cpus: Option<Vec<usize>>) -> Self {
        let pid = i32::try_from(handle.pids()[0]).expect("a process id is an i32");
        Self {
            owner,
            label: label.to_owned(),
            pid,
            cpus: cpus.map(|cpus| cpus.into_iter().collect()),
            log: None,
            handle,
            signals: Vec::new(),
            stage: Stage::Running,
            cpu_time: Duration::ZERO,
            peak_kib: 0,
        }
    }

    // Whether there is more to do for it than to wait for its leader's end.
    pub(super) fn is_ending(&self) -> bool {
        !matches!(self.stage, Stage::Running)
    }

    pub(super) fn ask(&mut self, signal: Signal) -> bool {
        if self.is_ending() || self.peek().is_some() {
            return false;
        }
        self.signals.push(signal.to_string());
        self.signal(signal);
        self.signal(Signal::SIGCONT);
        true
    }

    pub(super) fn kill(&mut self, found: &[(Process, Whose)], condemned: &mut Condemned) {
        if !self.is_ending() && self.peek().is_none() {
            self.signals.push(Signal::SIGKILL.to_string());
            self.stage = Stage::Killed;
        } else if let Stage::Settling(at, status) = self.stage {
            self.stage = Stage::Ending(at, status, names(found, self.owner, self.pid));
        }
        self.signal(Signal::SIGKILL);
        self.kill_all(found, condemned, sys::now());
    }

    // The end of the leader, which stays a zombie.
    pub(super) fn peek(&self) -> Option<Exited> {
        sys::peek_exited(Some(self.pid)).ok().flatten()
    }

    pub(super) fn count(&mut self, end: &Exited) {
        self.cpu_time += end.cpu_time;
        self.peak_kib = self.peak_kib.max(end.peak_kib);
    }

    // The leader is not reaped while the family is there, so that the number is its own. ESRCH: a group of zombies.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid);
        let sent = killpg(pid, signal);
        assert!(matches!(sent, Ok(()) | Err(Errno::ESRCH | Errno::EPERM)), "{signal} to {pid}: {sent:?}");
    }

    // SIGKILL to all of this owner that lives. True if there was one that had not been sent it before.
    fn kill_all(&self, found: &[(Process, Whose)], condemned: &mut Condemned, now: Moment) -> bool {
        let mut new = false;
        for (process, whose) in found {
            if *whose == Whose::Of(self.owner) && !process.dead {
                new |= condemned.kill(process, now);
            }
        }
        new
    }

    // SIGKILL to one of this owner's that was just seen, if all of them have to go. Where the leader has ended by itself, it
    // is a leftover that was not there, or not to be seen, when the others were named.
    pub(super) fn kill_on_sight(&mut self, process: &Process, condemned: &mut Condemned) {
        let to_go = matches!(self.stage, Stage::Killed | Stage::Ending(..));
        if !to_go || process.dead || process.pid == self.pid {
            return;
        }
        // Before it is gone.
        let command = self.signals.is_empty().then(|| process.command());
        if !condemned.kill(process, sys::now()) {
            return;
        }
        self.was_killed();
        if let (Stage::Ending(.., leftovers), Some(command)) = (&mut self.stage, command)
            && !process.exiting
            && leftovers.len() < NAMED
        {
            leftovers.push(command);
        }
    }

    // Says SIGKILL among the signals, where the owner was asked to go and something of it had to be made to.
    fn was_killed(&mut self) {
        if !self.signals.is_empty() && self.signals.iter().all(|s| s != "SIGKILL") {
            self.signals.push(Signal::SIGKILL.to_string());
        }
    }

    // One step on the way from the leader's end to the end of all.
    pub(super) fn advance(
        &mut self,
        found: &[(Process, Whose)],
        missed: &Missed,
        condemned: &mut Condemned,
    ) -> Option<Gone> {
        let now = sys::now();
        let exact = !missed.may_be_of(self.owner);
        if let (Stage::Running | Stage::Killed, Some(end)) = (&self.stage, self.peek()) {
            self.count(&end);
            let asked = !self.signals.is_empty();
            self.stage = match asked {
                true => Stage::Ending(now, end.status, Vec::new()),
                false => Stage::Settling(now, end.status),
            };
        }
        let alive = |p: &Process, whose: &Whose| *whose == Whose::Of(self.owner) && !p.dead && p.pid != self.pid;
        let left: Vec<&Process> = found.iter().filter(|(p, whose)| alive(p, whose)).map(|(p, _)| p).collect();
        if let Stage::Settling(at, status) = self.stage
            && ((left.is_empty() && exact) || now.since(at) >= SETTLE)
        {
            self.stage = Stage::Ending(at, status, names(found, self.owner, self.pid));
        }
        match self.stage {
            Stage::Running | Stage::Settling(..) => None,
            Stage::Killed => {
                self.kill_all(found, condemned, now);
                let leader = found.iter().find(|(p, _)| p.pid == self.pid).map(|(p, _)| p)?;
                // A leader that is dead and cannot be seen to have ended is its tracer's, for as long as that likes.
                let all: Vec<&Process> = left.into_iter().chain(Some(leader).filter(|leader| !leader.dead)).collect();
                let survivors: Vec<_> = all.iter().filter_map(|p| condemned.survivor(p, now)).collect();
                (survivors.len() == all.len()).then(|| self.report(now, None, Vec::new(), survivors))
            }
            Stage::Ending(at, status, ref leftovers) => {
                let leftovers = leftovers.clone();
                // Also where nothing was found: a look is older than this moment, and a group can be killed as a whole.
                self.signal(Signal::SIGKILL);
                let survivors: Vec<_> = left.iter().filter_map(|p| condemned.survivor(p, now)).collect();
                if survivors.len() < left.len() || !exact {
                    if self.kill_all(found, condemned, now) {
                        self.was_killed();
                    }
                    return None;
                }
                Some(self.report(at, Some(status), leftovers, survivors))
            }
        }
    }

    // Reaps the leader, if it has ended.
    pub(super) fn reap(&self) {
        // Without news it is named among the survivors, and duct looks again at every spawn.
        let _ = self.handle.try_wait();
    }

    fn report(&mut self, at: Moment, status: Option<ExitStatus>, left: Vec<String>, survivors: Vec<Survivor>) -> Gone {
        // From here on the leader's number may be another's, and the family is not used again.
        self.reap();
        Gone {
            owner: self.owner,
            status,
            at,
            cpu_time: self.cpu_time,
            peak_kib: self.peak_kib,
            leftovers: left,
            signals: std::mem::take(&mut self.signals),
            survivors,
        }
    }
}
