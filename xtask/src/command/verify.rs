//! `verify`: check what can be checked for free, wait for the locks, run the suite, say how it went.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::event::{Event, Stamped};
use crate::keeper::{self, Keeper, Supervised};
use crate::lock::{HeldLocks, Identity, NotHeld, Ports, Scope};
use crate::name::{Caller, RunId};
use crate::plan::Selection;
use crate::receipt::build::{Asked, Facts, build};
use crate::receipt::statement::Receipt;
use crate::record::Record;
use crate::repo::Repo;
use crate::report::{Scene, annotation, cancelled, freed};
use crate::run::order::{Format, Order, SuiteOrder};
use crate::time::Clocks;
use crate::verdict::{Exit, Stop, Word};
use crate::{archive, digest, scratch, sys};

use super::say;
use super::show::{self, Show};
use super::signing::Signing;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// All clocks at the program's first line.
    pub requested: Clocks,
    /// Who asks.
    pub caller: Caller,
    /// The suite file, relative to the repository's root.
    pub suite: PathBuf,
    /// What of it.
    pub selection: Selection,
    /// The queue budget, if not the suite's.
    pub queue: Option<Duration>,
    /// The caller's own limit.
    pub outer: Option<Duration>,
    /// How to show it.
    pub format: Format,
    /// Where to write JUnit XML.
    pub junit: Option<PathBuf>,
    /// The key to sign the receipt with.
    pub key: Option<PathBuf>,
    /// The command as the user may give it again, without what selects tasks.
    pub command: String,
}

/// A run that is over, with the locks still held.
pub struct Over {
    /// How it ended.
    pub exit: Exit,
    /// Its identity.
    pub run: RunId,
    /// Its receipt, if it was written and says how the run ended.
    pub receipt: Option<Written>,
    /// The locks; none if they were never won.
    pub locks: Option<HeldLocks>,
    /// Who still hears requests to stop.
    pub keeper: Keeper,
}

/// A receipt as the run itself wrote it: a task can write to that place too.
#[derive(Debug)]
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// Of its bytes.
    pub sha256: String,
}

impl Written {
    /// Its bytes. Errors if others lie there now.
    pub fn read(&self) -> anyhow::Result<Vec<u8>> {
        let bytes = archive::read(&self.path)?;
        ensure!(digest::of_bytes(&bytes) == self.sha256, "{} is not what the run wrote", self.path.display());
        Ok(bytes)
    }
}

/// Runs the suite of the repository around the current folder. Errors mean that nothing was queued or run.
pub fn run(request: Request) -> anyhow::Result<Exit> {
    let here = std::env::current_dir().context("there is no current folder")?;
    let repo = Repo::find(&here)?;
    let try_key = |key: &PathBuf| Signing::try_key(&repo.root, &request.suite, &here.join(key), request.caller);
    let signing = request.key.as_ref().map(try_key).transpose()?;
    let format = request.format;
    let Over { mut exit, run, receipt, locks, keeper } = verify(&repo, request)?;
    // Signing is no part of the run, and a hardware key may take its time: let the next one begin.
    free(locks, exit, format);
    let Some(signing) = signing else { return Ok(exit) };
    let Some(receipt) = receipt else {
        say("note: there is no receipt of this run that could be signed");
        return Ok(if exit == Exit::Passed { Exit::NoVerdict } else { exit });
    };
    if let Exit::Cancelled(_) = exit {
        say("note: the receipt of a cancelled run is not signed");
        return Ok(exit);
    }
    match signing.sign_receipt(&repo.root, &run, &receipt, &|| keeper.stop().is_some()) {
        Ok(who) => say(&format!("signed by {who}\nexit code {}", exit.code())),
        Err(error) => {
            exit = exit.max(keeper.stop().map_or(Exit::NoVerdict, Exit::Cancelled));
            say(&format!("error: {error:#}\nexit code {}", exit.code()));
        }
    }
    Ok(exit)
}

/// Frees the locks. Whoever has cancelled a run waits for that, and is told.
pub fn free(locks: Option<HeldLocks>, exit: Exit, format: Format) {
    let Some(locks) = locks else { return };
    drop(locks);
    if matches!(exit, Exit::Cancelled(_)) && !format.json {
        say(&freed(&show::style(format), sys::clocks().wall_ms));
    }
}

/// The same for a repository that is known, and with the locks still held at the end.
pub fn verify(repo: &Repo, request: Request) -> anyhow::Result<Over> {
    request.junit.as_deref().map_or(Ok(()), |path| super::report::forget_junit(path, repo))?;
    let ports = Ports::from_env()?;
    let (suite_path, suite_text) = super::read_suite(&repo.root, &request.suite)?;
    let past = super::history(&repo.root);
    let ready = super::ready(repo, &suite_path, &suite_text, &request.selection, &past)?;
    let budget = request.queue.unwrap_or(ready.suite.run.queue);
    let outer = super::outer::check(&ready.suite.run, budget, request.outer, &suite_path)?;
    for text in &ready.notes {
        say(&format!("note: {text}"));
    }

    let ready_to_write = scratch::check().and_then(|()| sys::own_proc()).and_then(|()| archive::check(&repo.root));
    ready_to_write.map_err(anyhow::Error::msg)?;
    let run = RunId::new(request.requested.wall_ms / 1000, sys::random()?);
    let commit = repo.head.clone();
    let worktree = ports.worktree_for(&repo.root).context("the work tree's folder cannot be looked at")?;
    let names = (request.command.as_str(), suite_path.as_str());
    let mut scene = Scene::new(names, (&ready.suite, &ready.plan), &past, request.requested);
    (scene.queue_budget, scene.outer) = (budget, outer);
    let show = Mutex::new(Show::new(request.format, scene, &repo.root));
    let identity = Identity {
        run: run.clone(),
        caller: request.caller.to_string(),
        repository: repo.root.file_name().map(|name| name.to_string_lossy().into_owned()),
        folder: repo.root.display().to_string(),
        commit: commit.clone(),
        command: request.command.clone(),
        longest: keeper::longest(ready.suite.run.deadline),
    };
    let keeper = Keeper::new().context("signals cannot be caught")?;
    let mut tell = |event| show::open(&show).tell(event);
    let wanted = [(Scope::Worktree, worktree), (Scope::Workstation, ports.workstation)];
    let held = show::while_drawing(&show, || {
        keeper.hold(&wanted, ports.workstation, &identity, (request.requested, budget), &mut tell)
    });
    let mut show = show.into_inner().unwrap_or_else(PoisonError::into_inner);
    show.close();
    let asked = Asked {
        run: run.clone(),
        caller: request.caller,
        requested: request.requested,
        suite_path,
        suite_text,
        selection: request.selection,
        queue_budget: budget,
        outer,
        ports: (ports.workstation, worktree),
    };
    let facts = |won| Facts {
        asked: asked.clone(),
        network_namespace: sys::namespace("net"),
        boot_id: sys::boot_id(),
        won,
        started: None,
        commit: commit.clone(),
        tree: None,
        compared: false,
        services: Vec::new(),
        toolchain: Default::default(),
        xtask: super::runner::this_program(),
    };
    let locks = match held {
        Ok(locks) => locks,
        Err(why) => {
            let (exit, receipt) =
                not_held(repo, &why, &facts(None), &ready, (show, request.format, request.junit.as_deref()));
            return Ok(Over { exit, run, receipt, locks: None, keeper });
        }
    };
    let order = SuiteOrder {
        asked: asked.clone(),
        root: repo.root.clone(),
        git: repo.git.clone(),
        commit: commit.clone(),
        past,
        won: locks.won,
        deadline: ready.suite.run.deadline,
        keep_open: Vec::new(),
        command: request.command,
        format: request.format,
        // The runner works in the repository's root, and the path was meant from here.
        junit: request.junit.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone())),
        signs: request.key.is_some() || request.caller == Caller::Release,
        trouble: Vec::new(),
    };
    let order = Order::Suite(Box::new(order));
    let Supervised { mut exit, mut trouble, receipt, .. } =
        keeper.supervise(&locks, order, &mut |text| say(&format!("note: {text}")));
    let mut receipt = receipt.map(|sha256| Written { path: archive::path(&repo.root, &run), sha256 });
    let of_runner = || Receipt::parse(&receipt.as_ref()?.read().ok()?).ok();
    let of_runner = (exit != Exit::Passed).then(of_runner).flatten();
    // What stands there it has said, too.
    trouble.retain(|text| of_runner.as_ref().is_none_or(|receipt| !receipt.predicate.trouble.contains(text)));
    if !trouble.is_empty() {
        show.take_over();
    }
    // The runner may have said by now that it passed: the last word takes that back.
    let passed = of_runner.as_ref().is_some_and(|receipt| receipt.predicate.result == Word::Passed);
    let but = if passed { "this run did not pass, whatever is said above: " } else { "" };
    for text in &trouble {
        say(&format!("error: {but}{text}"));
    }
    let words = match of_runner {
        // It was in its place before the trouble, and the runner may not have come so far as to tell of it.
        Some(receipt) if passed || !trouble.is_empty() => Some((amended(receipt, exit, &trouble), REPLACE)),
        // The runner could not say how the run ended. That it took place is known all the same.
        None if !trouble.is_empty() => {
            let record = Record { stop: stop_of(exit), run_late: false, trouble: trouble.clone(), ..Record::default() };
            // One that it told of, and that cannot be read, may say that it passed.
            let put = if receipt.is_some() { REPLACE } else { WRITE };
            Some((build(&facts(Some(locks.won)), &ready.suite, &ready.plan, &record, sys::clocks()), put))
        }
        _ => None,
    };
    if let Some((mut words, put)) = words {
        if let Some(lost) = super::report::junit(request.junit.as_deref(), &words, &[]) {
            say(&format!("error: {lost}"));
            exit = exit.max(Exit::NoVerdict);
            words.predicate.trouble.push(lost);
        }
        receipt = write(repo, &run, &words, put).map_err(|error| say(&format!("error: {error:#}"))).ok();
        let path = receipt.as_ref().map(|receipt| super::relative(&repo.root, &receipt.path));
        if let Some(path) = &path {
            say(&format!("   receipt   {path}  (result: {})", words.predicate.result));
        }
        let queue = locks.won.monotonic.since(request.requested.monotonic);
        show.learn(&Stamped { at: locks.won.monotonic, event: Event::Acquired { queue } });
        for text in &words.predicate.trouble {
            show.learn(&Stamped { at: sys::now(), event: Event::Trouble { text: text.clone() } });
            if show::on_github(request.format) {
                say(annotation("no verdict", text).trim_end());
            }
        }
        show.finish(&words, path, exit);
        say(&format!("exit code {}", exit.code()));
    }
    Ok(Over { exit, run, receipt, locks: Some(locks), keeper })
}

fn stop_of(exit: Exit) -> Option<Stop> {
    if let Exit::Cancelled(stop) = exit { Some(stop) } else { None }
}

// What the receipt of a run has to say once its end has turned out otherwise.
fn amended(mut receipt: Receipt, exit: Exit, trouble: &[String]) -> Receipt {
    let run = &mut receipt.predicate;
    run.result = match exit {
        Exit::Cancelled(_) => Word::Cancelled,
        Exit::Failed | Exit::Late if run.result != Word::Passed => run.result,
        _ => Word::NoVerdict,
    };
    run.trouble.extend_from_slice(trouble);
    if run.trouble.is_empty() {
        run.trouble.push("how this run ended could not be told".to_owned());
    }
    receipt
}

// How a receipt comes to its place.
type Put = fn(&Path, &RunId, &[u8]) -> anyhow::Result<PathBuf>;
const WRITE: Put = |root, run, bytes| archive::write(root, run, bytes, || None);
const REPLACE: Put = archive::replace;

fn write(repo: &Repo, run: &RunId, receipt: &Receipt, put: Put) -> anyhow::Result<Written> {
    let bytes = receipt.to_bytes();
    let path = put(&repo.root, run, &bytes)?;
    Ok(Written { path, sha256: digest::of_bytes(&bytes) })
}

// Says why there is no lock, and leaves a receipt that says so too.
fn not_held(
    repo: &Repo,
    why: &NotHeld,
    facts: &Facts,
    ready: &super::preflight::Ready,
    (mut show, format, junit): (Show, Format, Option<&Path>),
) -> (Exit, Option<Written>) {
    let ended = sys::clocks();
    if let NotHeld::Cancelled(signal) = why {
        show.learn(&Stamped { at: ended.monotonic, event: Event::StopAsked { signal: *signal, again: false } });
    }
    let reason = why.to_string().lines().next().unwrap_or_default().to_owned();
    show.learn(&Stamped { at: ended.monotonic, event: Event::Trouble { text: reason.clone() } });
    let receipt = build(facts, &ready.suite, &ready.plan, &show.record, ended);
    let mut exit = why.exit();
    if let Some(lost) = super::report::junit(junit, &receipt, &[]) {
        say(&format!("error: {lost}"));
        exit = exit.max(Exit::NoVerdict);
    }
    let written = write(repo, &facts.asked.run, &receipt, WRITE);
    let mut text = match why {
        NotHeld::Cancelled(stop) => cancelled(&show::style(format), ended.wall_ms, *stop).trim_end().to_owned(),
        _ => format!("error: {why}"),
    };
    match &written {
        Ok(Written { path, .. }) => {
            let path = super::relative(&repo.root, path);
            text += &format!("\n   receipt   {path}  (result: {})", receipt.predicate.result);
        }
        Err(error) => {
            exit = exit.max(Exit::NoVerdict);
            text += &format!("\n   receipt   {error:#}");
        }
    }
    say(&format!("{text}\nexit code {}", exit.code()));
    if show::on_github(format) && !matches!(exit, Exit::Cancelled(_)) {
        say(annotation("nothing was run", &reason).trim_end());
    }
    let path = written.as_ref().ok().map(|written| super::relative(&repo.root, &written.path));
    show.finish(&receipt, path, exit);
    (exit, written.ok())
}
