//! Killing for good: SIGKILL, look again, until nothing is left or what is left will not die.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::table::{self, Identity, Process};
use crate::name::RunId;
use crate::sys;
use crate::time::Moment;

/// How long a process may take to die of SIGKILL before it is called a survivor.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How long one that this user may not signal may take to end by itself.
const OTHERS_PATIENCE: Duration = Duration::from_millis(500);

/// How many looks in a row must find nothing.
const QUIET: u32 = 2;

/// How long at least one was sent SIGKILL before it is said not to die of it, also where a sweep has no time left: on a busy
/// machine dying takes a moment too.
const DYING: Duration = Duration::from_secs(1);

/// So many looks at least have seen one alive since then: a machine that stands still takes time, and no look.
const LOOKS: u32 = 50;

/// How long a sweep pauses between two looks.
pub const PAUSE: Duration = Duration::from_millis(1);

/// A process that SIGKILL did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// Its id.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// What it runs.
    pub command: String,
    /// Whether this user may not signal it; else it is in the hands of the kernel.
    pub of_another_user: bool,
}

impl Survivor {
    /// Whether it is still there.
    pub fn lives(&self) -> bool {
        Process::read(self.pid).is_some_and(|now| now.identity() == (self.pid, self.started) && !now.dead)
    }
}

impl std::fmt::Display for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = if self.of_another_user { "belongs to another user" } else { "does not die of SIGKILL" };
        write!(f, "process {} ({}) {why}", self.pid, self.command)
    }
}

/// What a sweep found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// What was still running when it began or came while it went on, a command line each.
    pub found: Vec<String>,
    /// What could not be ended.
    pub survivors: Vec<Survivor>,
}

/// The processes that were sent SIGKILL.
#[derive(Debug, Default)]
pub(super) struct Condemned(HashMap<Identity, Sentence>);

#[derive(Debug)]
struct Sentence {
    since: Moment,
    // How often it was sent.
    times: u32,
    of_another_user: bool,
}

impl Sentence {
    fn had(&self, time: Duration, now: Moment) -> bool {
        now.since(self.since) >= time && self.times >= LOOKS
    }
}

impl Condemned {
    /// Sends SIGKILL. True if this one was not condemned before.
    pub(super) fn kill(&mut self, process: &Process, now: Moment) -> bool {
        let same = || Process::read(process.pid).is_some_and(|now| now.identity() == process.identity());
        let of_another_user =
            sys::kill_exactly(process.pid, same).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        let sentence =
            self.0.entry(process.identity()).or_insert(Sentence { since: now, times: 0, of_another_user: false });
        sentence.of_another_user = of_another_user;
        sentence.times += 1;
        sentence.times == 1
    }

    /// The process as a survivor, if it has had its time to die.
    pub(super) fn survivor(&self, process: &Process, now: Moment) -> Option<Survivor> {
        let sentence = self.0.get(&process.identity())?;
        let patience = if sentence.of_another_user { OTHERS_PATIENCE } else { PATIENCE };
        if sentence.had(patience, now) { self.living(process) } else { None }
    }

    // Whether it has been sent SIGKILL for long enough to say that it does not die.
    fn had_time(&self, process: &Process, now: Moment) -> bool {
        self.0.get(&process.identity()).is_some_and(|sentence| sentence.had(DYING, now))
    }

    fn living(&self, process: &Process) -> Option<Survivor> {
        let of_another_user = self.0.get(&process.identity())?.of_another_user;
        Some(Survivor { pid: process.pid, started: process.started, command: process.command(), of_another_user })
    }
}

/// Ends every process that `look` shows, again and again, until it shows nothing alive or `until` has come; a few seconds
/// later where something had no time to die before.
pub(super) fn end(until: Moment, condemned: &mut Condemned, mut look: impl FnMut() -> Vec<Process>) -> Swept {
    let mut swept = Swept::default();
    // A look may miss the child of a process that ends meanwhile; the next one does not.
    let mut quiet = 0;
    // What is started again and again never has its time.
    let at_last = until.max(sys::now()) + PATIENCE;
    loop {
        let now = sys::now();
        let alive: Vec<Process> = look().into_iter().filter(|p| !p.dead).collect();
        for process in &alive {
            if !process.exiting && !condemned.0.contains_key(&process.identity()) {
                swept.found.push(process.command());
            }
            condemned.kill(process, now);
        }
        let over = alive.iter().all(|p| condemned.survivor(p, now).is_some());
        quiet = if over { quiet + 1 } else { 0 };
        let had_time = || alive.iter().all(|p| condemned.had_time(p, now)) || now >= at_last;
        if quiet == QUIET || now >= until && had_time() {
            swept.survivors = alive.iter().filter_map(|p| condemned.living(p)).collect();
            return swept;
        }
        if !over {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Ends, until `until` at the latest, every process that carries the mark of one of these runs or writes to a log in a
/// folder of its name, and everything below such a process. For runs of which nobody is left to do it.
pub fn end_marked(runs: &[RunId], until: Moment) -> Swept {
    let prefixes: Vec<String> = runs.iter().map(|run| format!("{run}/")).collect();
    if prefixes.is_empty() {
        return Swept::default();
    }
    // What dies has neither mark nor log any more, and may take its time.
    let mut known: HashSet<Identity> = HashSet::new();
    end(until, &mut Condemned::default(), || {
        let table = table::all();
        let me = std::process::id() as i32;
        let marked = |p: &Process| p.marks().iter().any(|part| prefixes.iter().any(|prefix| part.starts_with(prefix)));
        let in_folder = |path: &Path| path.iter().any(|part| runs.iter().any(|run| part == run.as_str()));
        let writes = |p: &Process| table::outputs(p.pid).iter().any(|path| in_folder(path));
        let ours = |p: &Process| known.contains(&p.identity()) || marked(p) || writes(p);
        let roots: Vec<&Process> = table.iter().filter(|p| p.pid != me && !p.dead && ours(p)).collect();
        let mut found: Vec<Process> = roots.iter().map(|&p| p.clone()).collect();
        for root in roots {
            for process in table::descendants(root.pid, &table) {
                if process.pid != me && found.iter().all(|known| known.pid != process.pid) {
                    found.push(process);
                }
            }
        }
        known.extend(found.iter().map(Process::identity));
        found
    })
}
