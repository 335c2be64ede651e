//! What the keeper tells the runner: one line of JSON through the lifeline, the socket pair between the two.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::RunId;
use crate::receipt::build::Asked;
use crate::receipt::past::Past;
use crate::repo::GitFolders;
use crate::time::Clocks;
use crate::verdict::{ExitStatus, Stop};

/// What a keeper has its runner do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// A suite.
    Suite(Box<SuiteOrder>),
    /// One command, for `lock run`.
    Command(CommandOrder),
}

impl Order {
    /// The run's identity.
    pub fn run(&self) -> &RunId {
        match self {
            Self::Suite(order) => &order.asked.run,
            Self::Command(order) => &order.run,
        }
    }

    /// Where the runner works.
    pub fn folder(&self) -> &Path {
        match self {
            Self::Suite(order) => &order.root,
            Self::Command(order) => &order.folder,
        }
    }

    /// The run deadline: lock won to everything gone.
    pub fn deadline(&self) -> Duration {
        match self {
            Self::Suite(order) => order.deadline,
            Self::Command(order) => order.deadline.saturating_add(COMMAND_GRACE + COMMAND_WRAP_UP),
        }
    }

    /// The descriptors that the runner inherits: copies of the listening sockets, which it only keeps open.
    pub fn keep_open(&mut self) -> &mut Vec<RawFd> {
        match self {
            Self::Suite(order) => &mut order.keep_open,
            Self::Command(order) => &mut order.keep_open,
        }
    }
}

/// SIGTERM to SIGKILL for the command of `lock run`.
pub const COMMAND_GRACE: Duration = Duration::from_secs(4);
/// What the end of everything else that the command started may take.
pub const COMMAND_WRAP_UP: Duration = Duration::from_secs(6);

/// One command to run under the lock, with the runner's own stdin, stdout and stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandOrder {
    /// The run's identity.
    pub run: RunId,
    /// Where the command runs, absolute.
    pub folder: PathBuf,
    /// Its program, absolute.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// When the lock was won.
    pub won: Clocks,
    /// How long the command may run.
    pub deadline: Duration,
    /// Descriptors handed over: copies of the listening sockets. The runner only keeps them open.
    pub keep_open: Vec<RawFd>,
}

/// Everything the runner of a suite needs to know. It finds nothing out by itself that the keeper has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteOrder {
    /// What was asked for.
    pub asked: Asked,
    /// The repository's root, absolute.
    pub root: PathBuf,
    /// Where git keeps it.
    pub git: GitFolders,
    /// HEAD when it was asked for.
    pub commit: Option<String>,
    /// How long things took in earlier runs.
    pub past: Past,
    /// When both locks were won.
    pub won: Clocks,
    /// The run deadline.
    pub deadline: Duration,
    /// Descriptors handed over: copies of the listening sockets. The runner only keeps them open.
    pub keep_open: Vec<RawFd>,
    /// The command as the user may give it again: `cargo xtask verify`.
    pub command: String,
    /// How to say things.
    pub format: Format,
    /// Where to write JUnit XML.
    #[serde(serialize_with = "any_path", deserialize_with = "path_of_any")]
    pub junit: Option<PathBuf>,
    /// Whether the receipt is signed once the run has passed: its end is not the last word then.
    pub signs: bool,
    /// What has taken away the verdict of this run before it begins, a reason each.
    pub trouble: Vec<String>,
}

// As the system has it: as text a path that is not UTF-8 could not be told, and only once the locks are won.
fn any_path<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Path::as_os_str).serialize(to)
}

fn path_of_any<'a, D: Deserializer<'a>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    Ok(Option::<OsString>::deserialize(from)?.map(PathBuf::from))
}

/// How the run is shown, as far as flags say it. Terminal and environment are the runner's own too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// One JSON object a line on stdout instead of text on stderr.
    pub json: bool,
    /// Colours: always or never; none for what terminal and environment say.
    pub colour: Option<bool>,
}

/// What is said to whoever presses Ctrl-Z while others may wait for this run.
pub const SUSPEND: &str = "Ctrl-Z is ignored while the lock is held; Ctrl-C ends the run";

/// What goes through the lifeline after the order, a line each. Its end means that the other process is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// Keeper to runner: somebody asks to stop.
    Stop(Stop),
    /// Keeper to runner: Ctrl-Z was pressed. The runner says that it changes nothing, since the screen is the runner's:
    /// a line from elsewhere would stand between its rows.
    Suspend,
    /// Runner to keeper: so many tasks have their verdict.
    Progress {
        /// With a verdict.
        done: usize,
        /// Of so many.
        of: usize,
    },
    /// Runner to keeper: this could not be printed in time. The keeper does it once nobody waits for the locks any more.
    Unsaid {
        /// Whether it belongs on stdout.
        data: bool,
        /// The text.
        text: String,
    },
    /// Runner to keeper: the command of `lock run` ended so.
    Ended(ExitStatus),
    /// Runner to keeper: the receipt that it is about to put in its place has this sha256; or, none: it could not be put there.
    /// What lies there without that may be anybody's. The runner goes on once this is heard.
    Receipt(Option<String>),
    /// Keeper to runner: it has heard of the receipt with this sha256.
    Heard(String),
    /// Runner to keeper: nothing of the order was done, and why. The keeper says it, in the receipt too.
    Trouble(String),
}
