//! The receipt of one run: an in-toto Statement v1 with a predicate of our own, and the one way of writing it.
//!
//! The canonical bytes are JSON with two spaces of indentation and a newline at the end (what `jq .` prints), fields in
//! the order of the structs below, absent values left out. A receipt counts only if writing what was parsed gives the
//! same bytes again: serde_json alone accepts duplicate keys, arrays for structs, null for absent and more.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::name::{Caller, Name, RunId, TaskName};
use crate::plan::Selection;
use crate::time;
use crate::verdict::{ExitStatus, Word};

/// `_type` of every receipt.
pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
/// `predicateType` of every receipt.
pub const PREDICATE_TYPE: &str = "urn:xtask:receipt:v1";
/// Most bytes of a receipt.
pub const MAX_BYTES: usize = 1 << 20;

/// The receipt of one run. All times are whole milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// `STATEMENT_TYPE`, if it is one of ours.
    #[serde(rename = "_type")]
    pub statement_type: String,
    /// What the receipt speaks of.
    pub subject: Subjects,
    /// `PREDICATE_TYPE`, if it is one of ours.
    #[serde(rename = "predicateType")]
    pub predicate_type: String,
    /// What it says.
    pub predicate: Predicate,
}

/// What a receipt speaks of. Written as a list: commit, tree, then the outputs by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Subject>", into = "Vec<Subject>")]
pub struct Subjects {
    /// HEAD, in full; none in a repository without a commit.
    pub commit: Option<String>,
    /// The tree on disk before the first task; none if it was never read.
    pub tree: Option<String>,
    /// Declared outputs: path relative to the repository's root, sha256 in lower-case hexadecimal.
    pub outputs: BTreeMap<String, String>,
}

// A subject as written. Whatever is not "one commit, one tree, outputs by name" is another list when written again.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    name: String,
    digest: Digest,
}

#[derive(Clone, Serialize, Deserialize)]
enum Digest {
    #[serde(rename = "gitCommit")]
    Commit(String),
    #[serde(rename = "gitTree")]
    Tree(String),
    #[serde(rename = "sha256")]
    Sha256(String),
}

impl From<Vec<Subject>> for Subjects {
    fn from(list: Vec<Subject>) -> Self {
        let mut all = Self::default();
        for Subject { name, digest } in list {
            match digest {
                Digest::Commit(id) => all.commit = Some(id),
                Digest::Tree(id) => all.tree = Some(id),
                Digest::Sha256(sum) => drop(all.outputs.insert(name, sum)),
            }
        }
        all
    }
}

impl From<Subjects> for Vec<Subject> {
    fn from(all: Subjects) -> Self {
        let subject = |name: &str, digest| Subject { name: name.to_owned(), digest };
        let commit = all.commit.map(|id| subject("git:commit", Digest::Commit(id)));
        let tree = all.tree.map(|id| subject("git:tree", Digest::Tree(id)));
        let outputs = all.outputs.into_iter().map(|(name, sum)| Subject { name, digest: Digest::Sha256(sum) });
        commit.into_iter().chain(tree).chain(outputs).collect()
    }
}

/// What a run says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicate {
    /// The run.
    pub run: RunId,
    /// Who asked for it.
    pub caller: Caller,
    /// How it ended.
    pub result: Word,
    /// Why nobody may rely on it, or why it never ran; empty where the tasks say it all.
    pub trouble: Vec<String>,
    /// Whether every task of the suite was asked for.
    pub extent: Extent,
    /// What was asked for.
    pub selection: Selection,
    /// The suite file.
    pub suite: SuiteFile,
    /// The limits in force.
    pub limits: Limits,
    /// The locks.
    pub lock: Lock,
    /// From the request until both locks were won, or given up.
    pub queue_ms: u64,
    /// From the locks won until every process was gone and the receipt synced; 0 if they were never won.
    pub run_ms: u64,
    /// The clocks along the way.
    pub clocks: RunClocks,
    /// The working tree.
    pub tree: Tree,
    /// The tasks asked for, in the order of the suite.
    pub tasks: Vec<Task>,
    /// The services that ran.
    pub services: Vec<Service>,
    /// Versions of programs, by program.
    pub toolchain: BTreeMap<String, String>,
    /// The program that wrote this.
    pub xtask: Program,
}

/// How much of the suite was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// Every task.
    Whole,
    /// Not every task.
    Partial,
}

/// The suite file of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteFile {
    /// Relative to the repository's root.
    pub path: String,
    /// Of its bytes, lower-case hexadecimal.
    pub sha256: String,
}

/// The limits that were in force for the whole run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The queue budget: the suite's, or the caller's own.
    pub queue_ms: u64,
    /// The run deadline.
    pub deadline_ms: u64,
    /// What a job does before and after xtask.
    pub margin_ms: u64,
    /// SIGTERM to SIGKILL.
    pub stop_grace_ms: u64,
    /// The part of the run deadline in which no task runs any more.
    pub wrap_up_ms: u64,
    /// CPU slots of the pool.
    pub slots: u64,
    /// The caller's own limit around the run, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_ms: Option<u64>,
}

/// The locks of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// The port of the workstation lock on 127.0.0.1.
    pub workstation: u16,
    /// The port of the worktree lock on 127.0.0.1.
    pub worktree: u16,
    /// Whether both were held.
    pub held: bool,
    /// Identity of the network namespace, inside which the locks exclude; none where the system has no such thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_namespace: Option<String>,
}

/// All clocks at one point, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Since 1970, UTC.
    pub wall_ms: u64,
    /// CLOCK_MONOTONIC, which stands still while the machine is suspended.
    pub monotonic_ms: u64,
    /// CLOCK_BOOTTIME, which does not.
    pub boot_ms: u64,
}

impl From<time::Clocks> for Clock {
    fn from(clocks: time::Clocks) -> Self {
        let ms = |moment: time::Moment| moment.as_nanos() / 1_000_000;
        Self { wall_ms: clocks.wall_ms, monotonic_ms: ms(clocks.monotonic), boot_ms: ms(clocks.boot) }
    }
}

/// The clocks along a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunClocks {
    /// Identity of the boot whose monotonic and boot clocks these are.
    pub boot_id: String,
    /// At the program's first line.
    pub requested: Clock,
    /// When both locks were won; none if they never were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub won: Option<Clock>,
    /// When the first task could start (the tree is pinned); none if the run did not come so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Clock>,
    /// When the receipt was written.
    pub ended: Clock,
}

/// What is known of a yes-or-no question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It is so.
    Yes,
    /// It is not so.
    No,
    /// Nobody looked, or could.
    Unknown,
}

impl From<bool> for Answer {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

/// The working tree of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tree {
    /// Whether the tree on disk was that of the commit before the first task.
    pub clean: Answer,
    /// Files that differed from the commit, as many as are worth naming.
    pub uncommitted: Vec<String>,
    /// Whether it changed during the run.
    pub changed: Answer,
    /// Files that changed, as many as are worth naming.
    pub changed_files: Vec<String>,
}

/// One task of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Its name.
    pub name: TaskName,
    /// Program and arguments, as the suite has them (`{cpus}` not filled in).
    pub command: Vec<String>,
    /// How many CPUs the suite gives it: a number or `all`.
    pub weight: String,
    /// The CPUs that it was given; empty if it never started.
    pub slots: Vec<u64>,
    /// Its deadline.
    pub deadline_ms: u64,
    /// Most bytes of its log.
    pub log_limit: u64,
    /// When it started, on the monotonic clock; none if it never did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<u64>,
    /// From the start to the end of its first process; 0 if it never started.
    pub took_ms: u64,
    /// CPU time of what could be counted.
    pub cpu_ms: u64,
    /// The largest resident set of one of its processes, in KiB.
    pub peak_kib: u64,
    /// How it ended.
    pub verdict: Word,
    /// Why; `passed` for a task that passed.
    pub why: String,
    /// How its first process ended; none if it never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// Signals that it was sent, in order.
    pub signals: Vec<String>,
    /// Processes that it left behind.
    pub leftovers: Vec<String>,
    /// Its log, relative to the repository's root; none if it never started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// One service of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its name.
    pub name: Name,
    /// The version that ran.
    pub version: String,
}

/// The program that wrote a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its version.
    pub version: String,
    /// Of its file, lower-case hexadecimal.
    pub sha256: String,
}

/// Why bytes are no receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParseError {
    /// There are no bytes: why.
    Unreadable(String),
    /// More than `MAX_BYTES`.
    TooLong,
    /// No JSON of a receipt's fields and types; the text names the field, the line and the column.
    Malformed(String),
    /// It can be read, but written again it gives other bytes: duplicate keys, null, an array for an object, other
    /// white space. What was read comes along, so that people learn the rest too; nobody may rely on it. The line is
    /// the first that differs, from 1.
    NotCanonical(Box<Receipt>, usize),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "longer than {MAX_BYTES} bytes"),
            Self::Unreadable(why) | Self::Malformed(why) => f.write_str(why),
            Self::NotCanonical(_, line) => {
                write!(f, "written again it gives other bytes from line {line} on, so it is not as xtask wrote it")
            }
        }
    }
}

impl std::error::Error for ParseError {}

/// What was read, also where it was written in other bytes: good enough to say what else is wrong, never to accept it.
pub fn readable(parsed: &Result<Receipt, ParseError>) -> Option<&Receipt> {
    match parsed {
        Ok(receipt) => Some(receipt),
        Err(ParseError::NotCanonical(receipt, _)) => Some(receipt),
        Err(_) => None,
    }
}

impl Receipt {
    /// A receipt with the types of this version.
    pub fn new(subject: Subjects, predicate: Predicate) -> Self {
        let (statement_type, predicate_type) = (STATEMENT_TYPE.to_owned(), PREDICATE_TYPE.to_owned());
        Self { statement_type, subject, predicate_type, predicate }
    }

    /// The canonical bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("structs of strings and numbers can be written");
        bytes.push(b'\n');
        bytes
    }

    /// The receipt that was written as exactly these bytes. Errors say why they are none.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() > MAX_BYTES {
            return Err(ParseError::TooLong);
        }
        let receipt: Self = serde_json::from_slice(bytes).map_err(|e| ParseError::Malformed(e.to_string()))?;
        let again = receipt.to_bytes();
        if again == bytes {
            return Ok(receipt);
        }
        let same = again.split(|&b| b == b'\n').zip(bytes.split(|&b| b == b'\n')).take_while(|(a, b)| a == b).count();
        Err(ParseError::NotCanonical(Box::new(receipt), same + 1))
    }
}
