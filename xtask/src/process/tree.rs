//! The one owner of everything that this process starts, and the only thing that signals it.
//!
//! A process belongs to an `Owner` (a task, a service). The tree sees to it that an owner is gone only when its last
//! process is: the leader's end is seen without reaping it, so that its number still names the group while that gets
//! SIGKILL; then whatever left the group is found (as a subreaper this process inherits every orphan) and killed, look
//! after look, until a look finds nothing.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::affinity;
use super::family::{Family, Gone, Missed, Owner, Whose};
use super::starter::Starter;
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

/// Where the output of a process goes.
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
    /// Its stdin; /dev/null if there is none.
    pub stdin: Option<OwnedFd>,
    /// Whether it leads a session of its own, without the terminal, and not only a process group. It costs a fork.
    pub session: bool,
    /// Descriptors that it inherits under the same numbers, although they are close-on-exec.
    pub hand_over: Vec<BorrowedFd<'a>>,
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
    // On the clock that goes on in suspend, like the start of a process.
    began: Moment,
    families: Vec<Family>,
    // Children that this process had before (a shell that exec'd it), and what was seen below them. Never touched.
    before: HashSet<Identity>,
    // Whose a process was when its ancestors still said so: an orphan may have lost every other trace.
    known: HashMap<Identity, Owner>,
    condemned: Condemned,
    // From the first pinned one on.
    starter: Option<Starter>,
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
            starter: None,
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
        assert!(self.families.iter().all(|f| f.owner != owner), "{owner:?} has a process already");
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
        let cpus = cpus.filter(|cpus| self.pin(cpus));
        let starter = self.starter.as_ref().filter(|_| cpus.is_some());
        let kept_open = |flag: FdFlag| hand_over.iter().try_for_each(|fd| fcntl(fd, FcntlArg::F_SETFD(flag)).map(drop));
        let handle = kept_open(FdFlag::empty())
            .map_err(Into::into)
            .and_then(|()| starter.map_or_else(|| command.start(), |starter| starter.start(command.clone())));
        let closed = kept_open(FdFlag::FD_CLOEXEC);
        let handle = handle.map_err(|e| format!("{shown}: {e}"))?;
        closed.expect("a descriptor that was open stays open");
        let mut family = Family::new(owner, label, handle, cpus);
        family.log = log;
        let pid = family.pid;
        self.families.push(family);
        Ok(pid)
    }

    // Whether what is started next is pinned.
    fn pin(&mut self, cpus: &[usize]) -> bool {
        if self.unpinned.is_none() && self.starter.is_none() {
            match Starter::new() {
                Ok(starter) => self.starter = Some(starter),
                Err(e) => self.unpinned = Some(format!("no thread to start them from: {e}")),
            }
        }
        match &self.starter {
            Some(starter) if self.unpinned.is_none() => self.unpinned = starter.pin(cpus).err(),
            _ => {}
        }
        self.unpinned.is_none()
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
        self.look_at(table::children(self.me))
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
        let children = table::children(self.me);
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
        table::children(self.me)
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
