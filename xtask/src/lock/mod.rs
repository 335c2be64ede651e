//! The workstation lock and the worktree lock: whoever LISTENS on a TCP port of 127.0.0.1 holds it.
//!
//! The kernel owns the lock and frees it however the holder dies: there is no stale state and nothing to reclaim. This
//! module owns the ports, the wait, the answers to those who ask, and who has a port that is not ours. It never decides
//! what is done under the lock.

pub mod banner;
pub mod holder;
pub mod inside;
pub mod news;
pub mod port;
pub mod sockets;
pub mod status;
pub mod wait;
mod waiter;

use std::fmt;
use std::io;
use std::time::Duration;

use crate::event::Event;
use crate::name::RunId;
use crate::sys;
use crate::time::{Clocks, Moment, millis};
use crate::verdict::{Exit, Stop};

use banner::{Asking, Claim};
pub use holder::HeldLock;
pub use port::Ports;
use wait::{Failure, Foreign, News, Step, Wait};
use waiter::Hands;
pub use waiter::StopAsked;

/// Which lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole machine.
    Workstation,
    /// One working directory.
    Worktree,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Workstation => "workstation",
            Self::Worktree => "worktree",
        })
    }
}

/// Who wants a lock, as those who wait for it will read.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The run.
    pub run: RunId,
    /// `local`, `ci`, `release`, or what else asks.
    pub caller: String,
    /// The repository's name, if there is one.
    pub repository: Option<String>,
    /// The folder that the run holds or works in.
    pub folder: String,
    /// The commit, if there is one.
    pub commit: Option<String>,
    /// What it runs.
    pub command: String,
    /// How long it will hold the lock at most.
    pub longest: Duration,
}

/// How long to wait, and what ends the wait before.
#[derive(Clone)]
pub struct Patience<'a> {
    /// All clocks at the program's first line: the budget counts from there.
    pub requested: Clocks,
    /// The queue budget; zero is one try.
    pub budget: Duration,
    /// Where a request to stop comes from.
    pub stop: StopAsked<'a>,
    /// The runs that this process is a part of: the text of `XTASK_MARK`, empty if it is not set.
    pub mark: &'a str,
}

/// Why there is no lock. Its text has several lines, the first for itself.
#[derive(Debug)]
pub enum NotHeld {
    /// The budget is spent.
    BudgetSpent {
        /// Who held it, and who was waited for.
        text: Vec<String>,
    },
    /// Somebody asked to stop.
    Cancelled(Stop),
    /// Whoever has the port is not xtask.
    Foreign {
        /// Who it is, as far as it can be seen, and what to do.
        text: Vec<String>,
    },
    /// The holder is a run that this process is a part of.
    Nested {
        /// The lock.
        scope: Scope,
        /// The outer run.
        run: String,
        /// What it says it is.
        who: String,
    },
    /// The port cannot be listened on, for another reason than that it is in use; or it was won and cannot be answered for.
    Bind {
        /// The port.
        port: u16,
        /// The reason.
        error: io::Error,
    },
}

impl NotHeld {
    /// The exit code that says so.
    pub fn exit(&self) -> Exit {
        match self {
            Self::BudgetSpent { .. } => Exit::NoLock,
            Self::Cancelled(stop) => Exit::Cancelled(*stop),
            Self::Foreign { .. } => Exit::Foreign,
            Self::Nested { .. } | Self::Bind { .. } => Exit::Usage,
        }
    }
}

impl fmt::Display for NotHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BudgetSpent { text } | Self::Foreign { text } => f.write_str(&text.join("\n   ")),
            Self::Cancelled(stop) => write!(f, "cancelled by {stop} while waiting; nothing was run"),
            Self::Nested { scope, run, who } => write!(
                f,
                "this call is a part of run {run}, which holds the {scope} lock itself ({who}): it would wait for its own \
                 end, or for a run that waits for that; call the command itself in place of xtask"
            ),
            Self::Bind { port, error } => write!(f, "cannot listen on 127.0.0.1:{port}: {error}"),
        }
    }
}

impl std::error::Error for NotHeld {}

/// The locks of a run. They are let go of in the opposite order of their winning.
#[must_use = "the locks are free again once this is dropped"]
#[derive(Debug)]
pub struct HeldLocks {
    // The last one won comes first.
    locks: Vec<HeldLock>,
    /// All clocks when the last one was won.
    pub won: Clocks,
}

impl HeldLocks {
    /// Each of them.
    pub fn each(&self) -> impl Iterator<Item = &HeldLock> {
        self.locks.iter()
    }

    /// Tells those who ask that so many of all tasks are done.
    pub fn set_progress(&self, done: usize, tasks: usize) {
        self.each()
            .for_each(|lock| lock.say(|claim| (claim.done, claim.tasks) = (Some(done as u64), Some(tasks as u64))));
    }
}

/// Waits for these locks, one after the other, out of one budget. A run wants its folder and then the machine, so that
/// nobody holds the machine while it waits for a folder. Every piece of news on the wait goes to `tell` as
/// `Event::Queued`. Errors with why there is no lock; what was won is free again then.
pub fn acquire_all(
    wanted: &[(Scope, u16)],
    identity: &Identity,
    patience: &Patience,
    tell: &mut dyn FnMut(Event),
) -> Result<HeldLocks, NotHeld> {
    let mut locks: Vec<HeldLock> = Vec::new();
    for &(scope, port) in wanted {
        let gone = patience.requested.wall_ms + millis(patience.budget.saturating_add(identity.longest));
        let queued = |claim: &mut Claim| (claim.queued, claim.free_at_ms) = (Some(true), Some(gone));
        locks.iter().for_each(|lock| lock.say(queued));
        locks.insert(0, acquire(scope, port, identity, patience, tell)?);
    }
    let won = sys::clocks();
    let gone = won.wall_ms.saturating_add(millis(identity.longest));
    locks.iter().for_each(|lock| lock.say(|claim| (claim.queued, claim.free_at_ms) = (None, Some(gone))));
    Ok(HeldLocks { locks, won })
}

/// Waits for one lock. The same as `acquire_all` otherwise.
pub fn acquire(
    scope: Scope,
    port: u16,
    identity: &Identity,
    patience: &Patience,
    tell: &mut dyn FnMut(Event),
) -> Result<HeldLock, NotHeld> {
    let bind = |error| NotHeld::Bind { port, error };
    let (began, budget) = (patience.requested.monotonic, patience.budget);
    let seed = u64::from(sys::random().map_err(bind)?);
    let mut wait = Wait::new(began, budget, inside::runs(patience.mark), seed);
    let claim = Claim {
        scope: Some(scope.to_string()),
        run: Some(identity.run.to_string()),
        caller: Some(identity.caller.clone()),
        repository: identity.repository.clone(),
        folder: Some(identity.folder.clone()),
        commit: identity.commit.clone(),
        command: Some(identity.command.clone()),
        ..holder::here()
    }
    .trimmed();
    let scope_text = scope.to_string();
    let folder = claim.folder.clone().unwrap_or_default();
    let waiter = |now: Clocks| news::Waiter {
        scope: &scope_text,
        port,
        folder: &folder,
        wall_ms: now.wall_ms,
        end_ms: now.wall_ms + millis((began + budget).since(now.monotonic)),
        waited: now.monotonic.since(began),
        budget,
    };
    let asking = |now: Moment| Asking {
        waited_us: u64::try_from(now.since(began).as_micros()).unwrap_or(u64::MAX),
        run: identity.run.to_string(),
    };
    let mut hands = Hands::of_waiter(port, &asking, patience.stop);
    let mut step = Step::Try;
    let failure = loop {
        let seen = hands.perform(&step).map_err(bind)?;
        let (next, news) = wait.on(sys::now(), (patience.stop.which)(), seen);
        if let Some(news) = news {
            let now = sys::clocks();
            let (scope, text) = (scope.to_string(), news::lines(&news, &waiter(now)));
            let (note, holder) = match news {
                News::Held { claim, .. } => (news::note(&claim, &waiter(now)), Some(claim)),
                News::NotAccepted | News::NoAnswer(_) => (None, None),
            };
            tell(Event::Queued { scope, port, holder, note, text, waited: now.monotonic.since(began), budget });
        }
        match next {
            Step::Keep => {
                let now = sys::clocks().wall_ms;
                let free_at_ms = Some(now.saturating_add(millis(identity.longest)));
                let claim = Claim { since_ms: Some(now), free_at_ms, ..claim };
                return HeldLock::new(hands.won().expect("kept after it was won"), port, claim).map_err(bind);
            }
            // What was won is closed with the hands, and nobody else's.
            Step::Fail(failure) => break failure,
            other => step = other,
        }
    };
    let now = sys::clocks();
    Err(match failure {
        Failure::Cancelled(stop) => NotHeld::Cancelled(stop),
        Failure::Spent => {
            let mut text = news::spent(&waiter(now), wait.holder(), &wait.behind(now.monotonic));
            // Where nobody has said who it is, the kernel may know.
            let nobody = wait.holder().is_none();
            text.extend(listener(port).filter(|_| nobody).into_iter().flatten());
            NotHeld::BudgetSpent { text }
        }
        Failure::Nested(run) => NotHeld::Nested { scope, run, who: wait.holder().map(news::who).unwrap_or_default() },
        Failure::Foreign(how) => NotHeld::Foreign { text: foreign(scope, port, &how) },
    })
}

// Who listens on the port, as far as it can be seen from here.
fn listener(port: u16) -> Option<Vec<String>> {
    let found = sockets::listener(port)?;
    let mut text = vec![format!("listener  {} on {}", sockets::names(&found.owners, found.uid), found.local)];
    if found.owners.is_empty() {
        text.push(format!("find it   in that distribution, or as that user: ss -ltnp 'sport = :{port}'"));
    }
    Some(text)
}

// Who it is that is no holder, as far as it can be seen from here, and what to do.
fn foreign(scope: Scope, port: u16, how: &Foreign) -> Vec<String> {
    let what = if matches!(how, Foreign::NotListening) { "what has it" } else { "what listens there" };
    let mut text = vec![format!("127.0.0.1:{port} is the {scope} lock's port, and {what} is not xtask")];
    text.push(match how {
        Foreign::Said(said) => format!("heard     {said:?}"),
        Foreign::HangsUp => "heard     nothing: it takes connections and ends them".to_owned(),
        Foreign::Silent => "heard     nothing for 2s, twice, on accepted connections".to_owned(),
        Foreign::Elsewhere => "heard     nothing for 2s, twice".to_owned(),
        Foreign::NotListening => format!("seen      for 2s: {}", sockets::taken_by(port)),
    });
    let none = "listener  none is visible in this system: where WSL mirrors the network of Windows, it is a program of Windows";
    match how {
        Foreign::NotListening => {}
        _ => text.extend(listener(port).unwrap_or_else(|| vec![none.to_owned()])),
    }
    text.push("nothing   was run; without the lock two runs could share this machine".to_owned());
    text.push(
        "to fix    stop that program, or set XTASK_LOCK_PORT and XTASK_WORKTREE_PORTS for EVERY caller of this machine"
            .to_owned(),
    );
    text
}
