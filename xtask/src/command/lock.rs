//! `lock status`: who has the locks. `lock run`: any command under one of them.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use super::preflight::find;
use super::{data, in_utf8, say};
use crate::event::{Event, SCHEMA};
use crate::keeper::{self, Keeper, Supervised};
use crate::lock::status::{State, look};
use crate::lock::{Identity, Ports, Scope};
use crate::name::RunId;
use crate::repo::Repo;
use crate::run::order::{CommandOrder, Order};
use crate::scratch;
use crate::sys;
use crate::time::{Clocks, Human};
use crate::verdict::{Exit, ExitStatus};

/// One line of `lock status --message-format json`.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    scope: String,
    port: u16,
    network_namespace: Option<&'a str>,
    folder: Option<String>,
    #[serde(flatten)]
    state: &'a State,
}

/// Says who has the workstation lock and the lock of this folder; takes neither. With `check` the exit code says it too.
/// Errors, after the workstation's, where it cannot be told which folder this is.
pub fn status(check: bool, json: bool) -> anyhow::Result<Exit> {
    let ports = Ports::from_env()?;
    let namespace = sys::namespace("net");
    let mut exit = Exit::Passed;
    for scope in [Scope::Workstation, Scope::Worktree] {
        let (port, shown) = match scope {
            Scope::Workstation => (ports.workstation, None),
            Scope::Worktree => {
                let folder = folder()?;
                (worktree_port(&ports, &folder)?, Some(folder.display().to_string()))
            }
        };
        let state = look(scope, port).with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
        if json {
            let (scope, network_namespace) = (scope.to_string(), namespace.as_deref());
            let line = Line { schema: SCHEMA, scope, port, network_namespace, folder: shown, state: &state };
            data(&serde_json::to_string(&line).context("cannot write the state as JSON")?);
        } else {
            let lines = state.lines(scope, sys::clocks().wall_ms);
            let place = shown.map(|folder| format!(" of {folder}")).unwrap_or_default();
            say(&format!("{scope} lock 127.0.0.1:{port}{place}: {}", lines[0]));
            lines[1..].iter().for_each(|line| say(&format!("   {line}")));
        }
        exit = exit.max(match state {
            State::Free => Exit::Passed,
            State::Held { .. } | State::Unanswered { .. } => Exit::NoLock,
            State::Foreign { .. } => Exit::Foreign,
        });
    }
    if let (false, Some(namespace)) = (json, namespace) {
        say(&format!("in network namespace {namespace}; another one has locks of its own"));
    }
    Ok(if check { exit } else { Exit::Passed })
}

/// What to run under which lock.
#[derive(Debug, Clone)]
pub struct Request {
    /// All clocks at the program's first line.
    pub requested: Clocks,
    /// The lock.
    pub scope: Scope,
    /// The queue budget.
    pub queue: Duration,
    /// How long the command may run.
    pub deadline: Duration,
    /// The command and its arguments; never empty.
    pub command: Vec<OsString>,
}

/// Waits for the lock, runs the command, and exits with its code, or with 120 + the code of trouble of our own. Of these
/// the last line says which it is; what the command's own end means, the command has said.
pub fn run(request: &Request) -> Exit {
    let ended = under_the_lock(request).unwrap_or_else(|error| {
        say(&format!("error: {error:#}"));
        Ended::Own(Exit::Usage)
    });
    match ended {
        Ended::Command(code) => Exit::Command(code),
        Ended::Own(own) => {
            let exit = own.of_lock_run();
            say(&format!("exit code {}", exit.code()));
            exit
        }
    }
}

// With what a `lock run` ends.
enum Ended {
    // The command's exit code, or 128 + its signal.
    Command(u8),
    // What kept the command from ending by itself.
    Own(Exit),
}

/// The shortest deadline: in less than that nothing starts.
const SHORTEST: Duration = Duration::from_millis(100);

fn under_the_lock(request: &Request) -> anyhow::Result<Ended> {
    anyhow::ensure!(request.deadline >= SHORTEST, "--deadline is at least {}", Human(SHORTEST));
    let here = std::env::current_dir().context("the current folder cannot be found")?;
    let ports = Ports::from_env()?;
    let root = match request.scope {
        // Only for what those who wait are told: no reason to start git.
        Scope::Workstation => here.ancestors().find(|folder| has_git(folder)).map(Path::to_owned),
        Scope::Worktree => around(&here)?,
    };
    let folder = root.as_ref().unwrap_or(&here);
    let search = std::env::var_os("PATH").unwrap_or_default();
    let program = find(&request.command[0], &here, &search).map_err(anyhow::Error::msg)?;
    in_utf8(&here).and_then(|()| in_utf8(&program))?;
    scratch::check().and_then(|()| sys::own_proc()).map_err(anyhow::Error::msg)?;
    let run = RunId::new(request.requested.wall_ms / 1000, sys::random()?);
    let order = CommandOrder {
        run: run.clone(),
        folder: here.clone(),
        program,
        args: request.command[1..].to_vec(),
        won: request.requested,
        deadline: request.deadline,
        keep_open: Vec::new(),
    };
    let identity = Identity {
        run,
        caller: "lock run".to_owned(),
        repository: root.as_ref().and_then(|root| Some(root.file_name()?.to_string_lossy().into_owned())),
        folder: folder.display().to_string(),
        commit: None,
        command: request.command.join(" ".as_ref()).to_string_lossy().into_owned(),
        longest: keeper::longest(Order::Command(order.clone()).deadline()),
    };
    let port = match request.scope {
        Scope::Workstation => ports.workstation,
        Scope::Worktree => worktree_port(&ports, folder)?,
    };
    let wanted = [(request.scope, port)];
    let keeper = Keeper::new().context("signals cannot be caught")?;
    let mut queued = false;
    let mut tell = |event| {
        if let Event::Queued { text, .. } = event {
            queued = true;
            let verbs = std::iter::once("Waiting").chain(std::iter::repeat(""));
            text.iter().zip(verbs).for_each(|(line, verb)| say(&format!("{verb:>12} {line}")));
        }
    };
    let held = keeper.hold(&wanted, ports.workstation, &identity, (request.requested, request.queue), &mut tell);
    let locks = match held {
        Ok(locks) => locks,
        Err(why) => {
            say(&format!("error: {why}"));
            return Ok(Ended::Own(why.exit()));
        }
    };
    if queued {
        let waited = Human(Duration::from_secs(locks.won.monotonic.since(request.requested.monotonic).as_secs()));
        say(&format!("    Acquired {} lock after {waited} in queue", request.scope));
    }
    let order = Order::Command(CommandOrder { won: locks.won, ..order });
    let Supervised { exit, trouble, command, .. } =
        keeper.supervise(&locks, order, &mut |text| say(&format!("note: {text}")));
    trouble.iter().for_each(|text| say(&format!("error: {text}")));
    let status = |status| match status {
        ExitStatus::Code(code) => u8::try_from(code).unwrap_or(u8::MAX),
        // As shells say it.
        ExitStatus::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    };
    Ok(match (exit, command) {
        (Exit::Passed, Some(ended)) => Ended::Command(status(ended)),
        (Exit::Passed, None) => Ended::Own(Exit::NoVerdict),
        (own, _) => Ended::Own(own),
    })
}

// The working directory that the worktree lock is about: that of the repository, if there is one around.
fn folder() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder cannot be found")?;
    Ok(around(&here)?.unwrap_or(here))
}

fn worktree_port(ports: &Ports, folder: &Path) -> anyhow::Result<u16> {
    ports.worktree_for(folder).with_context(|| format!("cannot look at {}", folder.display()))
}

// The root of the repository around a folder; none where no folder above has a `.git`, and git is not needed to see that.
// Where git refuses to look (a repository of another user) the folder is not a lock of its own: to others it is the
// repository's.
fn around(folder: &Path) -> anyhow::Result<Option<PathBuf>> {
    match Repo::find(folder) {
        Err(_) if !folder.ancestors().any(has_git) => Ok(None),
        found => found.map(|repo| Some(repo.root)),
    }
}

fn has_git(folder: &Path) -> bool {
    let is_missing = |e: &std::io::Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    !folder.join(".git").symlink_metadata().is_err_and(|e| is_missing(&e))
}
