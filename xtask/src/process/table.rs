//! The processes of the machine, as /proc shows them. It looks and touches nothing. On other systems than Linux it sees
//! nothing, and what a task started is ended by its process group alone.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use nix::unistd::{SysconfVar, sysconf};

use crate::time::Moment;

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's id.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// When it started, in clock ticks since boot: with the id it names one process for ever.
    pub started: u64,
    /// It runs no code any more and waits to be reaped.
    pub dead: bool,
    /// It is dead, or on its way there: its last thread is inside exit.
    pub exiting: bool,
    /// The short name that the kernel keeps, 15 bytes at most.
    pub name: String,
}

/// What names one process for ever: its id and its start.
pub type Identity = (i32, u64);

// Flag of the kernel (include/linux/sched.h): the task is shutting down.
const PF_EXITING: u64 = 4;

impl Process {
    /// Reads one. None if it is gone.
    pub fn read(pid: i32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name stands in brackets and may itself hold brackets and spaces: the last one closes it.
        let (head, tail) = text.rsplit_once(") ")?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = tail.split(' ').collect();
        let number = |i: usize| fields.get(i)?.parse::<i64>().ok();
        let id = |i: usize| i32::try_from(number(i)?).ok();
        // A process whose first thread has exited shows as a zombie although others of its threads run on.
        let dead = matches!(fields[0], "Z" | "X") && number(17)? <= 1;
        let exiting = dead || (number(6)? as u64 & PF_EXITING != 0 && number(17)? <= 1);
        let started = number(19)? as u64;
        Some(Self { pid, parent: id(1)?, group: id(2)?, session: id(3)?, started, dead, exiting, name })
    }

    /// What names it for ever.
    pub fn identity(&self) -> Identity {
        (self.pid, self.started)
    }

    /// Its command line as one line of at most 200 characters, or its short name in brackets if it has none.
    pub fn command(&self) -> String {
        let line = told(self.pid, "cmdline");
        let words: Vec<_> = line.split(|&b| b == 0).filter(|w| !w.is_empty()).map(String::from_utf8_lossy).collect();
        let text = if words.is_empty() { format!("[{}]", self.name) } else { words.join(" ") };
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect()
    }

    /// The environment that it was started with, as the kernel shows it: entries that end in a zero byte. Empty if it has
    /// none, or if it cannot be read: another user's, or one that is just being replaced by exec.
    pub fn environ(&self) -> Vec<u8> {
        told(self.pid, "environ")
    }

    /// The parts of its mark, outermost run first; empty if it has none.
    pub fn marks(&self) -> Vec<String> {
        marks(&self.environ())
    }
}

/// The parts of the mark in this environment, outermost run first; empty if there is none.
pub fn marks(environ: &[u8]) -> Vec<String> {
    let prefix = format!("{}=", super::MARK);
    let value = environ.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(prefix.as_bytes()));
    let text = String::from_utf8_lossy(value.unwrap_or_default());
    text.split(':').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// The files behind stdout and stderr of a process, as /proc names them: a program that sheds its environment mostly
/// keeps these.
pub fn outputs(pid: i32) -> Vec<PathBuf> {
    let output = |fd: &&str| places(pid).find_map(|place| fs::read_link(place.join("fd").join(fd)).ok());
    ["1", "2"].iter().filter_map(output).collect()
}

// What a file of /proc tells of a process; nothing if there is nothing to tell.
fn told(pid: i32, file: &str) -> Vec<u8> {
    places(pid).filter_map(|place| fs::read(place.join(file)).ok()).find(|text| !text.is_empty()).unwrap_or_default()
}

// Where /proc tells of a process. A first thread that has ended tells nothing any more, and the others know the same.
fn places(pid: i32) -> impl Iterator<Item = PathBuf> {
    let whole = PathBuf::from(format!("/proc/{pid}"));
    let threads = whole.join("task");
    let threads = std::iter::once_with(move || fs::read_dir(threads).into_iter().flatten()).flatten();
    std::iter::once(whole).chain(threads.filter_map(|thread| Some(thread.ok()?.path())))
}

/// Everything below `root`, parents before their children, the dead ones included; `root` itself is left out. `children` are
/// those of `root`, just read.
///
/// The kernel's list of children is exact when it is empty; while processes end it may skip some (Documentation/
/// filesystems/proc). So whoever must find them all looks again until a look finds nothing alive.
pub fn below(root: i32, children: Vec<i32>) -> Vec<Process> {
    if !lists_children() {
        return descendants(root, &all());
    }
    let mut found: Vec<Process> = Vec::new();
    let mut seen: HashSet<i32> = HashSet::new();
    let mut these = Some(children);
    let mut next = 0;
    while let Some(children) = these {
        for child in children.into_iter().filter_map(Process::read) {
            // A process that was adopted by `root` between two of the reads is seen twice.
            if seen.insert(child.pid) {
                found.push(child);
            }
        }
        next += found[next..].iter().take_while(|process| process.dead).count();
        these = found.get(next).map(|process| self::children(process.pid));
        next += 1;
    }
    found
}

// False on a kernel without CONFIG_PROC_CHILDREN.
fn lists_children() -> bool {
    static LISTS: OnceLock<bool> = OnceLock::new();
    *LISTS.get_or_init(|| fs::exists("/proc/thread-self/children").unwrap_or(false))
}

/// The ids of a process's children, in the order in which they came. They belong to the thread that made them, and orphans
/// go to the first living one: all threads are asked. Empty on a kernel without CONFIG_PROC_CHILDREN.
pub fn children(pid: i32) -> Vec<i32> {
    children_by_thread(pid).into_iter().map(|(_, child)| child).collect()
}

/// The same with the thread of each.
pub fn children_by_thread(pid: i32) -> Vec<(i32, i32)> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut all = Vec::new();
    for thread in threads.flatten() {
        let Ok(list) = fs::read_to_string(thread.path().join("children")) else { continue };
        let Some(id) = thread.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        all.extend(list.split_whitespace().filter_map(|pid| Some((id, pid.parse().ok()?))));
    }
    all
}

/// Every process that is visible from here.
pub fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|e| Process::read(e.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// Of `table`, everything below `root`, parents before their children.
pub fn descendants(root: i32, table: &[Process]) -> Vec<Process> {
    let mut by_parent: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in table {
        by_parent.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<Process> = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        for child in by_parent.remove(&pid).unwrap_or_default() {
            next.push(child.pid);
            found.push(child.clone());
        }
    }
    found
}

/// When a process started, on the clock that goes on while the machine is suspended (`Clocks::boot`).
pub fn started(process: &Process) -> Moment {
    let ticks_a_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100).max(1);
    Moment::from_nanos(process.started.saturating_mul(1_000_000_000 / ticks_a_second.unsigned_abs()))
}
