//! The one owner of everything that this process starts, and the only thing that signals it.
//!
//! A process belongs to an `Owner` (a task, a service). The tree sees to it that an owner is gone only when its last
//! process is: the leader's end is seen without reaping it, so that its number still names the group while that gets
//! SIGKILL; then whatever left the group is found (as a subreaper this process inherits every orphan) and killed, look
//! after look, until a look finds nothing.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::affinity;
use super::sweep::{self, Condemned, PAUSE, Survivor, Swept};
use super::table::{self, Identity, Process};
use crate::name::RunId;
use crate::sys::{self, Exited};
use crate::time::Moment;
use crate::verdict::ExitStatus;

/// How long what a task left behind may still be on its way out before it is called a leftover. A shell does not wait
/// for all it started (`>(tee log)`), and what ends at the same moment is no daemon.
const SETTLE: Duration = Duration::from_millis(100);

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

/// Where the output of a process goes. Its stdin is always /dev/null.
#[derive(Debug)]
pub enum Output {
    /// Both stdout and stderr to this file, which should be open for appending.
    Log(File),
    /// To where this process's own goes.
    Inherit,
}

/// What to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// What the process is called in its mark: the name of the task. No `:` and no `/`.
    pub label: &'a str,
    /// The program: an absolute path, or std falls back from posix_spawn to a fork that costs 85 ms under 1 GiB.
    pub program: PathBuf,
    /// Its arguments, without the program.
    pub args: Vec<OsString>,
    /// Where it runs.
    pub dir: PathBuf,
    /// Its whole environment; the mark is added.
    pub env: Vec<(OsString, OsString)>,
    /// Where its output goes.
    pub output: Output,
    /// The CPUs that it is pinned to.
    pub cpus: Option<Vec<usize>>,
    /// User and group to run as, if others than this process's own.
    pub user: Option<(u32, u32)>,
    /// Whether it leads a process group of its own. Without, it may call setsid itself.
    pub own_group: bool,
    /// Descriptors that it inherits under the same numbers, although they are close-on-exec.
    pub hand_over: Vec<BorrowedFd<'a>>,
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
    /// The largest resident set of one of those, in KiB.
    pub peak_kib: u64,
    /// What was still running when the leader had ended by itself, a command line each.
    pub leftovers: Vec<String>,
    /// Signals that it was sent, in order: `SIGTERM`, `SIGKILL`.
    pub signals: Vec<String>,
    /// What could not be ended.
    pub survivors: Vec<Survivor>,
}

/// One process of an owner, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doing {
    /// Its id.
    pub pid: i32,
    /// How many of the processes above it belong to the same owner.
    pub depth: usize,
    /// Its command line, on one line.
    pub command: String,
    /// How long it has run.
    pub age: Duration,
}

/// Everything that this process started, and what became of it.
#[must_use = "dropping it kills everything that it started"]
#[derive(Debug)]
pub struct ProcessTree {
    run: RunId,
    // The mark of the run around this one, with a `:` behind it; or empty.
    outer: String,
    me: i32,
    families: Vec<Family>,
    // Children that this process had before (a shell that exec'd it), and what was seen below them. Never touched.
    before: HashSet<Identity>,
    // Whose a process was when its ancestors still said so: an orphan may have lost every other trace.
    known: HashMap<Identity, Owner>,
    affinity: Option<affinity::Cpus>,
    // Why tasks are not pinned, if they cannot be.
    unpinned: Option<String>,
}

// An owner, from its start until it is gone.
#[derive(Debug)]
struct Family {
    owner: Owner,
    label: String,
    handle: duct::Handle,
    pid: i32,
    own_group: bool,
    cpus: Option<HashSet<usize>>,
    signals: Vec<String>,
    condemned: Condemned,
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

impl ProcessTree {
    /// Makes this process the one that inherits its orphaned descendants. `outer` is the mark in its own environment.
    /// Errors if the kernel refuses.
    pub fn new(run: RunId, outer: Option<&str>) -> Result<Self, String> {
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true).map_err(|e| format!("cannot inherit orphaned processes: {e}"))?;
        // Where SIGCHLD was ignored when this program started, the kernel would reap the children by itself.
        signal_hook::flag::register(libc::SIGCHLD, Arc::new(AtomicBool::new(false)))
            .map_err(|e| format!("cannot wait for processes: {e}"))?;
        let own = format!("{run}/");
        let parts = outer.unwrap_or_default().split(':').filter(|part| !part.is_empty() && !part.starts_with(&own));
        let outer = parts.map(|part| format!("{part}:")).collect();
        let me = i32::try_from(std::process::id()).expect("a process id is an i32");
        let before = table::below(me).iter().map(Process::identity).collect();
        let affinity = affinity::Cpus::of_this_process();
        let unpinned = affinity.is_none().then(|| "this system does not say which CPUs may be used".to_owned());
        Ok(Self { run, outer, me, families: Vec::new(), before, known: HashMap::new(), affinity, unpinned })
    }

    /// Why processes are not pinned to the CPUs asked for, if they are not.
    pub fn unpinned(&self) -> Option<&str> {
        self.unpinned.as_deref()
    }

    /// The mark of a process with this label.
    pub fn mark(&self, label: &str) -> String {
        format!("{}{}/{label}", self.outer, self.run)
    }

    /// Starts a process for `owner`, which must not have one. Its id, or why it could not be started.
    pub fn spawn(&mut self, owner: Owner, what: Spawn<'_>) -> Result<i32, String> {
        assert!(self.families.iter().all(|f| f.owner != owner), "{owner:?} has a process already");
        let Spawn { label, program, args, dir, mut env, output, cpus, user, own_group, hand_over } = what;
        let shown = program.display().to_string();
        env.retain(|(name, _)| name != super::MARK);
        env.push((super::MARK.into(), self.mark(label).into()));
        let mut command = duct::cmd(program, args).dir(dir).full_env(env).stdin_null().unchecked();
        if let Output::Log(file) = output {
            command = command.stderr_to_stdout().stdout_file(file);
        }
        command = command.before_spawn(move |command| {
            if own_group {
                command.process_group(0);
            }
            if let Some((uid, gid)) = user {
                command.uid(uid).gid(gid);
            }
            Ok(())
        });
        let cpus = cpus.filter(|cpus| self.pin(cpus));
        let kept_open = |flag: FdFlag| hand_over.iter().try_for_each(|fd| fcntl(fd, FcntlArg::F_SETFD(flag)).map(drop));
        let handle = kept_open(FdFlag::empty()).map_err(Into::into).and_then(|()| command.start());
        let closed = kept_open(FdFlag::FD_CLOEXEC);
        if cpus.is_some() {
            self.unpin();
        }
        let handle = handle.map_err(|e| format!("{shown}: {e}"))?;
        closed.expect("a descriptor that was open stays open");
        let pid = i32::try_from(handle.pids()[0]).expect("a process id is an i32");
        let cpus = cpus.map(|cpus| cpus.into_iter().collect());
        self.families.push(Family {
            owner,
            label: label.to_owned(),
            handle,
            pid,
            own_group,
            cpus,
            signals: Vec::new(),
            condemned: Condemned::default(),
            stage: Stage::Running,
            cpu_time: Duration::ZERO,
            peak_kib: 0,
        });
        Ok(pid)
    }

    // Pins this thread, so that the child that it starts next inherits its CPUs: std stays on posix_spawn, which any
    // code between fork and exec would rule out.
    fn pin(&mut self, cpus: &[usize]) -> bool {
        if self.unpinned.is_none() {
            self.unpinned = affinity::pin_this_thread(cpus).err();
        }
        self.unpinned.is_none()
    }

    fn unpin(&self) {
        let all = self.affinity.as_ref().expect("only who knows its CPUs pins");
        // Not to be able to take back what was allowed a moment ago leaves this thread slower, not wrong.
        let _ = affinity::pin_this_thread(all.allowed());
    }

    /// Sends a signal to the process group of `owner`, and SIGCONT behind it, for a stopped process acts on no signal
    /// but SIGKILL. False if the leader has ended already: then nothing is sent.
    pub fn ask(&mut self, owner: Owner, signal: Signal) -> bool {
        let Some(family) = self.families.iter_mut().find(|f| f.owner == owner) else { return false };
        if !matches!(family.stage, Stage::Running) || family.peek().is_some() {
            return false;
        }
        family.signals.push(signal.to_string());
        family.signal(signal);
        family.signal(Signal::SIGCONT);
        true
    }

    /// Sends SIGKILL to everything of `owner`. `poll` then says when all of it is gone.
    pub fn kill(&mut self, owner: Owner) {
        let found = self.look();
        let Some(family) = self.families.iter_mut().find(|f| f.owner == owner) else { return };
        if matches!(family.stage, Stage::Running) && family.peek().is_none() {
            family.signals.push(Signal::SIGKILL.to_string());
            family.stage = Stage::Killed;
        } else if let Stage::Settling(at, status) = family.stage {
            family.stage = Stage::Ending(at, status, names(&found, owner, family.pid));
        }
        family.signal(Signal::SIGKILL);
        family.kill_all(&found, sys::now());
    }

    /// Takes in what has ended, goes on killing what has to go, and says which owners are gone since the last call.
    /// Never blocks. Call it at every SIGCHLD, and at `wake_at`.
    pub fn poll(&mut self) -> Vec<Gone> {
        let ended = self.families.iter().any(|f| !matches!(f.stage, Stage::Running) || f.peek().is_some());
        let found = self.look();
        self.reap_orphans(&found);
        if !ended {
            return Vec::new();
        }
        let mut gone = Vec::new();
        let mut index = 0;
        while index < self.families.len() {
            match self.families[index].advance(&found) {
                Some(report) => {
                    self.families.swap_remove(index);
                    gone.push(report);
                }
                None => index += 1,
            }
        }
        if self.families.is_empty() {
            self.known.clear();
        }
        gone
    }

    /// When `poll` has to be called again even if nothing happens.
    pub fn wake_at(&self) -> Option<Moment> {
        let waits = self.families.iter().any(|f| !matches!(f.stage, Stage::Running));
        waits.then(|| sys::now() + PAUSE)
    }

    /// What `owner` runs now.
    pub fn processes(&mut self, owner: Owner) -> Vec<Doing> {
        let found = self.look();
        let now = sys::clocks().boot;
        let mut depths: HashMap<i32, usize> = HashMap::new();
        let mut doing = Vec::new();
        for (process, whose) in found.iter().filter(|(p, whose)| *whose == Whose::Of(owner) && !p.exiting) {
            let _ = whose;
            let depth = depths.get(&process.parent).map_or(0, |depth| depth + 1);
            depths.insert(process.pid, depth);
            let age = now.since(table::started(process));
            doing.push(Doing { pid: process.pid, depth, command: process.command(), age });
        }
        doing
    }

    /// Ends everything below this process, whoever's it is, but for what was there before it; until `until` at the
    /// latest. Owners that go with it are not reported.
    pub fn sweep_all(&mut self, until: Moment) -> Swept {
        for family in &self.families {
            family.signal(Signal::SIGKILL);
        }
        let swept = sweep::end(until, || {
            let found = self.look();
            self.reap_orphans(&found);
            let ours = |(process, whose): (Process, Whose)| (whose != Whose::Before).then_some(process);
            found.into_iter().filter_map(ours).collect()
        });
        for family in self.families.drain(..) {
            // Reaps it: it has ended, or is named among the survivors.
            let _ = family.handle.try_wait();
        }
        swept
    }

    // Everything below this process, and whose it is.
    fn look(&mut self) -> Vec<(Process, Whose)> {
        let mut whose_by_pid: HashMap<i32, Whose> = HashMap::new();
        let mut found = Vec::new();
        for process in table::below(self.me) {
            let whose = self.whose(&process, whose_by_pid.get(&process.parent).copied());
            whose_by_pid.insert(process.pid, whose);
            match whose {
                Whose::Of(owner) => drop(self.known.insert(process.identity(), owner)),
                Whose::Before => drop(self.before.insert(process.identity())),
                Whose::Helper | Whose::Stray => {}
            }
            found.push((process, whose));
        }
        found
    }

    // By what a program can least easily shed first: who its parent is, its group, who its parent was, its mark, its CPUs.
    fn whose(&self, process: &Process, parent: Option<Whose>) -> Whose {
        if self.before.contains(&process.identity()) {
            return Whose::Before;
        }
        if let Some(family) = self.families.iter().find(|f| f.pid == process.pid) {
            return Whose::Of(family.owner);
        }
        if let Some(whose) = parent {
            return whose;
        }
        if let Some(family) = self.families.iter().find(|f| f.own_group && f.pid == process.group) {
            return Whose::Of(family.owner);
        }
        if process.group == self.me_group() {
            return Whose::Helper;
        }
        if let Some(&owner) = self.known.get(&process.identity()) {
            return Whose::Of(owner);
        }
        if process.dead {
            return Whose::Stray; // nobody's, and only to be reaped
        }
        let marks = process.marks();
        let own = format!("{}/", self.run);
        let labels: Vec<&str> = marks.iter().filter_map(|part| part.strip_prefix(&own)).collect();
        if let Some(family) = self.families.iter().find(|f| labels.contains(&f.label.as_str())) {
            return Whose::Of(family.owner);
        }
        if !labels.is_empty() {
            return Whose::Stray;
        }
        // An orphan without a mark in the session of the shell that this process was before comes from what that had
        // started: no process can go back into a session.
        if !self.before.is_empty() && process.session == self.me_session() {
            return Whose::Before;
        }
        let pinned = affinity::of(process.pid).unwrap_or_default();
        let holds = |f: &&Family| f.cpus.as_ref().is_some_and(|cpus| pinned.iter().all(|cpu| cpus.contains(cpu)));
        match self.families.iter().find(holds) {
            Some(family) if !pinned.is_empty() => Whose::Of(family.owner),
            _ => Whose::Stray,
        }
    }

    fn me_group(&self) -> i32 {
        nix::unistd::getpgrp().as_raw()
    }

    fn me_session(&self) -> i32 {
        nix::unistd::getsid(None).map_or(0, Pid::as_raw)
    }

    // Orphans that have ended are ours to reap; leaders are not, before their group is dead, nor are the helpers that
    // other code of this process started and waits for.
    fn reap_orphans(&mut self, found: &[(Process, Whose)]) {
        for (process, whose) in found {
            let leader = self.families.iter().any(|f| f.pid == process.pid);
            if !process.dead || process.parent != self.me || leader || *whose == Whose::Helper {
                continue;
            }
            let end = sys::peek_exited(Some(process.pid)).ok().flatten();
            let family = self.families.iter_mut().find(|f| *whose == Whose::Of(f.owner));
            if let (Some(family), Some(end)) = (family, end) {
                family.count(&end);
            }
            let _ = waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG));
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        let _ = self.sweep_all(sys::now() + sweep::PATIENCE);
    }
}

// Whose a process below this one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Of(Owner),
    // It was there before the tree, or comes from what was.
    Before,
    // It is in this process's own group: other code here (a question to git) started it and waits for it.
    Helper,
    // Nobody can tell.
    Stray,
}

fn names(found: &[(Process, Whose)], owner: Owner, leader: i32) -> Vec<String> {
    let left = |(p, whose): &&(Process, Whose)| *whose == Whose::Of(owner) && !p.exiting && p.pid != leader;
    found.iter().filter(left).map(|(p, _)| p.command()).collect()
}

impl Family {
    // The end of the leader, which stays a zombie.
    fn peek(&self) -> Option<Exited> {
        sys::peek_exited(Some(self.pid)).ok().flatten()
    }

    fn count(&mut self, end: &Exited) {
        self.cpu_time += end.cpu_time;
        self.peak_kib = self.peak_kib.max(end.peak_kib);
    }

    // The leader is not reaped while the family is there, so that the number is its own. ESRCH: a group of zombies.
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid);
        let sent = if self.own_group { killpg(pid, signal) } else { kill(pid, signal) };
        assert!(matches!(sent, Ok(()) | Err(Errno::ESRCH | Errno::EPERM)), "{signal} to {pid}: {sent:?}");
    }

    // SIGKILL to all of this owner that lives. True if there was one that had not been sent it before.
    fn kill_all(&mut self, found: &[(Process, Whose)], now: Moment) -> bool {
        let mut new = false;
        for (process, whose) in found {
            if *whose == Whose::Of(self.owner) && !process.dead {
                new |= self.condemned.kill(process, now);
            }
        }
        new
    }

    // One step on the way from the leader's end to the end of all.
    fn advance(&mut self, found: &[(Process, Whose)]) -> Option<Gone> {
        let now = sys::now();
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
            && (left.is_empty() || now.since(at) >= SETTLE)
        {
            self.stage = Stage::Ending(at, status, names(found, self.owner, self.pid));
        }
        match self.stage {
            Stage::Running | Stage::Settling(..) => None,
            Stage::Killed => {
                self.kill_all(found, now);
                let leader = &found.iter().find(|(p, _)| p.pid == self.pid)?.0;
                let survivor = self.condemned.survivor(leader, now)?;
                Some(self.report(now, None, Vec::new(), vec![survivor]))
            }
            Stage::Ending(at, status, ref leftovers) => {
                let leftovers = leftovers.clone();
                // Also where nothing was found: a look is older than this moment, and a group can be killed as a whole.
                self.signal(Signal::SIGKILL);
                let survivors: Vec<_> = left.iter().filter_map(|p| self.condemned.survivor(p, now)).collect();
                if survivors.len() < left.len() {
                    let first = self.kill_all(found, now);
                    if first && !self.signals.is_empty() && self.signals.iter().all(|s| s != "SIGKILL") {
                        self.signals.push(Signal::SIGKILL.to_string());
                    }
                    return None;
                }
                Some(self.report(at, Some(status), leftovers, survivors))
            }
        }
    }

    fn report(&mut self, at: Moment, status: Option<ExitStatus>, left: Vec<String>, survivors: Vec<Survivor>) -> Gone {
        // Reaps the leader. From here on its number may be another's, and the family is not used again.
        let _ = self.handle.try_wait();
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
