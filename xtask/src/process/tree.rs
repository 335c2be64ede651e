//! The one owner of everything that this process starts, and the only thing that signals it.
//!
//! A process belongs to an `Owner` (a task, a service). The tree sees to it that an owner is gone only when its last
//! process is: the leader's end is seen without reaping it, so that its number still names the group while that gets
//! SIGKILL; then whatever left the group is found (as a subreaper this process inherits every orphan) and killed, look
//! after look, until a look finds nothing.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::affinity;
use super::family::{Family, Gone, Missed, Owner, Whose};
use super::spawn::{Output, Spawn};
use super::starter::{Starters, Starting};
use super::sweep::{self, Condemned, PAUSE, Swept};
use super::table::{self, Identity, Process};
use crate::name::RunId;
use crate::sys;
use crate::time::Moment;

/// How often one call of `poll` looks again while orphans end under its eyes, and for how long: it must not block.
const LOOKS: usize = 32;
const LOOKING: Duration = Duration::from_millis(20);

/// From so many children on, those that are dead are not looked at one by one.
const MANY: usize = 64;

/// The kernel counts the start of processes in ticks of at most this length.
const TICK: Duration = Duration::from_millis(10);

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
    // On the clock that goes on in suspend, like the start of a process.
    began: Moment,
    families: Vec<Family>,
    // Children that this process had before (a shell that exec'd it), and what was seen below them. Never touched.
    before: HashSet<Identity>,
    // Whose a process was when its ancestors still said so: an orphan may have lost every other trace.
    known: HashMap<Identity, Owner>,
    condemned: Condemned,
    starters: Starters,
    // What `started` has not given yet.
    started: Vec<(Owner, Result<i32, String>)>,
    // Why tasks are not pinned, if they cannot be.
    unpinned: Option<String>,
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
        let before = table::below(me, table::children(me)).iter().map(Process::identity).collect();
        let cpus = affinity::Cpus::of_this_process();
        // Pinned to all that is allowed, nothing changes, and a refusal is known before the first task starts.
        let unpinned = cpus.as_ref().map_or_else(
            || Some("this system does not say which CPUs may be used".to_owned()),
            |cpus| affinity::pin(0, cpus.allowed()).err(),
        );
        let began = sys::clocks().boot;
        Ok(Self {
            run,
            outer,
            me,
            began,
            families: Vec::new(),
            before,
            known: HashMap::new(),
            condemned: Condemned::default(),
            starters: Starters::new().map_err(|e| format!("cannot hear of what is started: {e}"))?,
            started: Vec::new(),
            unpinned,
        })
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
        // What is handed over must not reach what is being started beside it.
        self.take_in(true);
        self.begin(owner, what)?;
        self.take_in(true);
        let index = self.started.iter().position(|(started, _)| *started == owner).expect("it was begun");
        self.started.swap_remove(index).1
    }

    /// Begins to start a process for `owner`, which must not have one and gets nothing handed over; `started` then says what
    /// has come of it. Errors with why it cannot be started where that is known at once.
    pub fn begin(&mut self, owner: Owner, what: Spawn<'_>) -> Result<(), String> {
        let has_one = self.starters.has(owner) || self.families.iter().any(|family| family.owner == owner);
        assert!(!has_one, "{owner:?} has a process already");
        let Spawn { label, program, args, dir, mut env, output, cpus, stdin, session, hand_over } = what;
        let shown = program.display().to_string();
        env.retain(|(name, _)| name != super::MARK);
        env.push((super::MARK.into(), self.mark(label).into()));
        let mut command = duct::cmd(program, args).dir(dir).full_env(env).unchecked();
        command = stdin.map_or(command.stdin_null(), |fd| command.stdin_file(fd));
        let mut log = None;
        if let Output::Log(file) = output {
            log = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
            command = command.stderr_to_stdout().stdout_file(file);
        }
        command = command.before_spawn(move |command| {
            if session {
                sys::in_a_session_of_its_own(command);
            } else {
                command.process_group(0);
            }
            Ok(())
        });
        let mut what = Starting { owner, label: label.to_owned(), program: shown, cpus: Vec::new(), log };
        if let Some(cpus) = cpus
            && let Some(starter) = self.pinned_starter(&cpus)
        {
            what.cpus = cpus;
            self.starters.begin(starter, what, command);
            return Ok(());
        }
        let kept_open = |flag: FdFlag| hand_over.iter().try_for_each(|fd| fcntl(fd, FcntlArg::F_SETFD(flag)).map(drop));
        let handle = kept_open(FdFlag::empty()).map_err(Into::into).and_then(|()| command.start());
        let closed = kept_open(FdFlag::FD_CLOEXEC);
        closed.expect("a descriptor that was open stays open");
        self.adopt(what, handle);
        Ok(())
    }

    // Who starts what is pinned to these CPUs; none if nothing is pinned.
    fn pinned_starter(&mut self, cpus: &[usize]) -> Option<usize> {
        if self.unpinned.is_some() {
            return None;
        }
        let mut starter = self.starters.pinned(cpus);
        if starter == Ok(None) {
            self.take_in(true);
            starter = self.starters.pinned(cpus);
        }
        starter.map_err(|why| self.unpinned = Some(why)).ok()?
    }

    /// What was begun and has started since the last call, with its id, or why it could not be.
    pub fn started(&mut self) -> Vec<(Owner, Result<i32, String>)> {
        self.take_in(false);
        std::mem::take(&mut self.started)
    }

    /// Readable when it is time to call `started`; until `hear_of_starts`.
    pub fn starts(&self) -> BorrowedFd<'_> {
        self.starters.as_fd()
    }

    /// Makes `starts` wait for the next.
    pub fn hear_of_starts(&mut self) {
        self.starters.hear();
    }

    fn take_in(&mut self, wait: bool) {
        for (what, handle) in self.starters.ended(wait) {
            self.adopt(what, handle);
        }
    }

    fn adopt(&mut self, what: Starting, handle: io::Result<duct::Handle>) {
        let Starting { owner, label, program, cpus, log } = what;
        let pid = handle.map_err(|e| format!("{program}: {e}")).map(|handle| {
            let mut family = Family::new(owner, &label, handle, Some(cpus).filter(|cpus| !cpus.is_empty()));
            family.log = log;
            let pid = family.pid;
            self.families.push(family);
            pid
        });
        self.started.push((owner, pid));
    }

    // This process's own children but for those whose start has no outcome yet: whose they are nobody can tell, and they are
    // nobody's to reap. They are on the list of the thread that starts them, where no orphan comes: those go to the first
    // thread (kernel/exit.c, `find_alive_thread`), which starts nothing that is pinned.
    fn children(&self) -> Vec<i32> {
        let busy = self.starters.busy();
        let told = |pid: i32| self.families.iter().any(|family| family.pid == pid);
        let all = table::children_by_thread(self.me).into_iter();
        all.filter(|&(thread, pid)| !busy.contains(&thread) || told(pid)).map(|(_, pid)| pid).collect()
    }

    /// Sends a signal to the process group of `owner`, and SIGCONT behind it, for a stopped process acts on no signal
    /// but SIGKILL. False if the leader has ended already: then nothing is sent.
    pub fn ask(&mut self, owner: Owner, signal: Signal) -> bool {
        self.families.iter_mut().find(|f| f.owner == owner).is_some_and(|family| family.ask(signal))
    }

    /// Sends SIGKILL to everything of `owner`. `poll` then says when all of it is gone.
    pub fn kill(&mut self, owner: Owner) {
        let found = self.look();
        if let Some(family) = self.families.iter_mut().find(|f| f.owner == owner) {
            family.kill(&found, &mut self.condemned);
        }
    }

    /// Takes in what has ended, goes on killing what has to go, and says which owners are gone since the last call.
    /// Never blocks. Call it at every SIGCHLD, and at `wake_at`.
    pub fn poll(&mut self) -> Vec<Gone> {
        self.take_in(false);
        // Usually nothing has ended, and one system call says so.
        if !self.families.iter().any(Family::is_ending) && !matches!(sys::peek_exited(None), Ok(Some(_))) {
            return Vec::new();
        }
        let (found, missed) = self.look_and_reap();
        let mut gone = Vec::new();
        let mut index = 0;
        while index < self.families.len() {
            match self.families[index].advance(&found, &missed, &mut self.condemned) {
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
        self.families.iter().any(Family::is_ending).then(|| sys::now() + PAUSE)
    }

    /// What `owner` runs now.
    pub fn processes(&mut self, owner: Owner) -> Vec<Doing> {
        let found = self.look();
        let now = sys::clocks().boot;
        let mut depths: HashMap<i32, usize> = HashMap::new();
        let mut doing = Vec::new();
        for (process, _) in found.iter().filter(|(p, whose)| *whose == Whose::Of(owner) && !p.exiting) {
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
        self.take_in(true);
        for family in &self.families {
            family.signal(Signal::SIGKILL);
        }
        // What has refused to die before is not waited for again.
        let mut condemned = std::mem::take(&mut self.condemned);
        let swept = sweep::end(until, &mut condemned, || {
            let (found, _) = self.look_and_reap();
            let ours = |(process, whose): (Process, Whose)| (whose != Whose::Before).then_some(process);
            found.into_iter().filter_map(ours).collect()
        });
        self.condemned = condemned;
        for family in self.families.drain(..) {
            family.reap();
        }
        swept
    }

    // Everything below this process, and whose it is. What is to be killed is killed when it is seen: one that starts
    // another and ends has done so a moment later.
    fn look(&mut self) -> Vec<(Process, Whose)> {
        self.look_at(self.children())
    }

    // The same where the list of this process's own children has just been read.
    fn look_at(&mut self, children: Vec<i32>) -> Vec<(Process, Whose)> {
        let mut whose_by_pid: HashMap<i32, Whose> = HashMap::new();
        let mut found = Vec::new();
        for process in table::below(self.me, children) {
            let whose = self.whose(&process, whose_by_pid.get(&process.parent).copied());
            whose_by_pid.insert(process.pid, whose);
            match whose {
                Whose::Of(owner) => drop(self.known.insert(process.identity(), owner)),
                Whose::Before => drop(self.before.insert(process.identity())),
                Whose::Helper | Whose::Stray => {}
            }
            if let Some(family) = self.families.iter_mut().find(|family| whose == Whose::Of(family.owner)) {
                family.kill_on_sight(&process, &mut self.condemned);
            }
            found.push((process, whose));
        }
        found
    }

    // By what a program can least easily shed first: who its parent is, its group, who its parent was, its mark, the log
    // that it writes to, its CPUs.
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
        if let Some(family) = self.families.iter().find(|f| f.pid == process.group) {
            return Whose::Of(family.owner);
        }
        if let Some(&owner) = self.known.get(&process.identity()) {
            return Whose::Of(owner);
        }
        // A process of a task may join this one's group, which then says nothing: its mark is asked first.
        let environ = if process.dead { Vec::new() } else { process.environ() };
        let marks = table::marks(&environ);
        let own = format!("{}/", self.run);
        let labels: Vec<&str> = marks.iter().filter_map(|part| part.strip_prefix(&own)).collect();
        if let Some(family) = self.families.iter().find(|f| labels.contains(&f.label.as_str())) {
            return Whose::Of(family.owner);
        }
        if process.group == nix::unistd::getpgrp().as_raw() {
            return Whose::Helper;
        }
        if process.dead || !labels.is_empty() {
            return Whose::Stray; // the dead ones are only to be reaped
        }
        let outputs = table::outputs(process.pid);
        let writes = |f: &&Family| f.log.as_ref().is_some_and(|log| outputs.contains(log));
        if let Some(family) = self.families.iter().find(writes) {
            return Whose::Of(family.owner);
        }
        // A log of this run, as the one who knows the run alone and not its tasks (the keeper) can tell it.
        if outputs.iter().any(|path| path.iter().any(|part| part == self.run.as_str())) {
            return Whose::Stray;
        }
        // An orphan without a mark that is older than the tree, or in the session of the shell that this process was
        // before, comes from what that had started: no process can go back into a session. So does, where there was such
        // a shell, one that has the shell's variables and no mark; a task's would have to make them up.
        let from_before =
            process.session == nix::unistd::getsid(None).map_or(0, Pid::as_raw) || has_our_variables(&environ);
        if (!self.before.is_empty() && from_before) || table::started(process) + TICK < self.began {
            return Whose::Before;
        }
        self.by_cpus(process.pid).map_or(Whose::Stray, Whose::Of)
    }

    // Looks until a look finds no orphan that has ended, for a while, and says of whom the last look may have missed one. A
    // process that is alive when the list of children is read, and has ended when its own state is, may have left a child
    // that is on neither list.
    fn look_and_reap(&mut self) -> (Vec<(Process, Whose)>, Missed) {
        let until = sys::now() + LOOKING;
        let mut missed = Missed::default();
        for _ in 0..LOOKS {
            let children = self.reap_the_unknown();
            let found = self.look_at(children);
            missed = self.reap_orphans(&found);
            if missed.is_empty() {
                return (found, missed);
            }
            if sys::now() >= until {
                break;
            }
        }
        let children = self.reap_the_unknown();
        (self.look_at(children), missed)
    }

    // Where children end faster than one can look at each, thousands of them would stand between this process and those
    // that live. Nobody can tell whose a dead one is that was never seen alive; its end is all that there is to take. Gives
    // the children that are left.
    fn reap_the_unknown(&self) -> Vec<i32> {
        let children = self.children();
        if children.len() < MANY {
            return children;
        }
        let seen: HashSet<i32> = self.known.keys().chain(&self.before).map(|&(pid, _)| pid).collect();
        let group = nix::unistd::getpgrp();
        for pid in children.into_iter().filter(|pid| !seen.contains(pid)) {
            let leader = self.families.iter().any(|family| family.pid == pid);
            let pid = Pid::from_raw(pid);
            if !leader && nix::unistd::getpgid(Some(pid)) != Ok(group) {
                let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            }
        }
        self.children()
    }

    // Orphans that have ended are ours to reap; leaders are not, before their group is dead, nor are the helpers that
    // other code of this process started, be it before this tree was, and waits for. Whose they were.
    fn reap_orphans(&mut self, found: &[(Process, Whose)]) -> Missed {
        let mut missed = Missed::default();
        let group = nix::unistd::getpgrp().as_raw();
        for (process, whose) in found {
            let leader = self.families.iter().any(|f| f.pid == process.pid);
            let helper = process.group == group && !matches!(whose, Whose::Of(_));
            if !process.dead || process.parent != self.me || leader || helper {
                continue;
            }
            let end = sys::peek_exited(Some(process.pid)).ok().flatten();
            // Not by its CPUs: a task may take another's, and a look that missed one of its own would count as exact.
            let owner = if let Whose::Of(owner) = *whose { Some(owner) } else { None };
            let family = self.families.iter_mut().find(|f| *whose == Whose::Of(f.owner));
            if let (Some(family), Some(end)) = (family, end) {
                family.count(&end);
            }
            // One that is traced stays until its tracer lets it go, and is not waited for.
            let reaped = waitpid(Pid::from_raw(process.pid), Some(WaitPidFlag::WNOHANG));
            if reaped.is_ok_and(|status| status != WaitStatus::StillAlive) {
                missed.add(owner);
            }
        }
        missed
    }

    // Whose a process is by the CPUs that it has, where only one owner has these.
    fn by_cpus(&self, pid: i32) -> Option<Owner> {
        let pinned = affinity::of(pid).filter(|pinned| !pinned.is_empty())?;
        let holds = |f: &&Family| f.cpus.as_ref().is_some_and(|cpus| pinned.iter().all(|cpu| cpus.contains(cpu)));
        self.families.iter().find(holds).map(|family| family.owner)
    }
}

// Whether an environment has most of the variables of this process, with their values.
fn has_our_variables(environ: &[u8]) -> bool {
    let theirs: HashSet<&[u8]> = environ.split(|&byte| byte == 0).collect();
    let ours: Vec<Vec<u8>> =
        std::env::vars_os().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()).collect();
    let shared = ours.iter().filter(|entry| theirs.contains(entry.as_slice())).count();
    !ours.is_empty() && 2 * shared > ours.len()
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        let _ = self.sweep_all(sys::now() + sweep::PATIENCE);
    }
}
