//! `lock status`: who has the locks. `lock run`: any command under one of them.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::command::say;
use crate::event::SCHEMA;
use crate::lock::status::{State, look};
use crate::lock::{Ports, Scope, namespace};
use crate::repo::Repo;
use crate::verdict::Exit;

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
pub fn status(check: bool, json: bool) -> anyhow::Result<Exit> {
    let ports = Ports::from_env()?;
    let folder = folder()?;
    let worktree = ports.worktree_for(&folder).with_context(|| format!("cannot look at {}", folder.display()))?;
    let namespace = namespace("net");
    let mut exit = Exit::Passed;
    for (scope, port) in [(Scope::Workstation, ports.workstation), (Scope::Worktree, worktree)] {
        let state = look(scope, port).with_context(|| format!("cannot listen on 127.0.0.1:{port}"))?;
        let shown = (scope == Scope::Worktree).then(|| folder.display().to_string());
        if json {
            let (scope, network_namespace) = (scope.to_string(), namespace.as_deref());
            let line = Line { schema: SCHEMA, scope, port, network_namespace, folder: shown, state: &state };
            let text = serde_json::to_string(&line).context("cannot write the state as JSON")?;
            writeln!(std::io::stdout(), "{text}").context("cannot write to stdout")?;
        } else {
            let lines = state.lines();
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

// The working directory that the worktree lock is about: that of the repository, if there is one around.
fn folder() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("the current folder cannot be found")?;
    Ok(Repo::find(&here).map_or(here, |repo| repo.root))
}
