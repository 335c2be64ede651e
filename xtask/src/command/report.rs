//! `report`: receipts as one HTML file, and the newest run as a trace. Takes no lock.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

use super::{destination, say};
use crate::archive;
use crate::digest;
use crate::event::TaskRecord;
use crate::receipt::statement::{Predicate, Receipt};
use crate::repo::Repo;
use crate::report::timeline::Needs;
use crate::report::{html, junit, plural, trace};
use crate::suite::Suite;
use crate::sys;
use crate::verdict::Exit;

/// Where the page goes if nobody says, relative to the repository's root.
const OUTPUT: &str = "target/xtask-report.html";

/// What `report` was asked for.
#[derive(Debug)]
pub struct Request {
    /// Receipts; empty for the newest of this checkout.
    pub receipts: Vec<PathBuf>,
    /// Where the HTML goes.
    pub output: Option<PathBuf>,
    /// Where the trace of the newest run goes, if it is wanted.
    pub trace: Option<PathBuf>,
}

/// Draws the receipts. Errors where there are none, where one that was named cannot be read, and where nothing can be written.
pub fn run(request: &Request) -> anyhow::Result<Exit> {
    let repo = Repo::find(&std::env::current_dir().context("there is no current folder")?)?;
    let output = request.output.clone().unwrap_or_else(|| repo.root.join(OUTPUT));
    if request.output.is_some() {
        destination::check("--output", &output, Some(&repo), html::BEGINNING)?;
    }
    if let Some(path) = &request.trace {
        destination::check("--trace", path, Some(&repo), trace::BEGINNING)?;
        ensure!(!destination::same(path, &output), "--output and --trace name the same file");
    }
    let mut receipts = if request.receipts.is_empty() { of_checkout(&repo.root) } else { named(&request.receipts)? };
    // Stable: of two runs of one millisecond the order of the names stays.
    receipts.sort_by_key(|receipt| std::cmp::Reverse(receipt.predicate.clocks.requested.wall_ms));
    // One that was named twice is one.
    let mut seen = BTreeSet::new();
    receipts.retain(|receipt| seen.insert(receipt.to_bytes()));
    let Some(newest) = receipts.first() else {
        bail!("{} holds no receipts yet; cargo xtask verify leaves one", repo.root.join(archive::FOLDER).display());
    };
    destination::write(&output, &html::page(&receipts, needs(&repo, newest).as_ref()))?;
    let runs = plural(receipts.len(), "run");
    say(&format!("      Report {} ({runs}, the newest {})", output.display(), newest.predicate.run.as_str()));
    if let Some(path) = &request.trace {
        destination::write(path, &trace::trace(newest))?;
        say(&format!("       Trace {} (open it at ui.perfetto.dev)", path.display()));
    }
    Ok(Exit::Passed)
}

/// Writes a run as JUnit XML, if a path is given: however it ended, for a file of an earlier run must not speak for this one.
/// Gives why it cannot be written: then nobody who waits for this file learns the verdict, and there is none.
pub fn junit(path: Option<&Path>, receipt: &Receipt, tasks: &[TaskRecord]) -> Option<String> {
    let why = destination::write(path?, &junit::xml(receipt, tasks)).err()?;
    Some(format!("--junit {why:#}"))
}

/// Takes away the JUnit XML of an earlier run before a new one begins: where that is killed, nothing speaks for it.
/// Errors if it is not ours to write, and then nothing is touched.
pub fn forget_junit(path: &Path, repo: &Repo) -> anyhow::Result<()> {
    destination::check("--junit", path, Some(repo), junit::BEGINNING)?;
    destination::sweep(path);
    let forgotten = match fs::symlink_metadata(path) {
        Ok(data) if data.is_file() => fs::remove_file(path),
        // A link stays, and what it leads to is emptied; /dev/stdout and its like are not ours to take away.
        Ok(data) if data.is_symlink() && path.is_file() => fs::write(path, ""),
        _ => Ok(()),
    };
    forgotten.with_context(|| format!("--junit {} cannot be written", path.display()))
}

/// Says in the JUnit XML that `verify` was asked for that it was refused, and why.
pub fn refused_junit(path: &Path, why: &str) {
    let repo = std::env::current_dir().ok().and_then(|here| Repo::find(&here).ok());
    let written = destination::check("--junit", path, repo.as_ref(), junit::BEGINNING)
        .and_then(|()| destination::write(path, &junit::refused(why, sys::clocks().wall_ms)));
    if let Err(error) = written {
        let error = format!("{error:#}");
        // It may be the very reason for the refusal, and then it was said.
        if !why.contains(&error) {
            say(&format!("note: {error}"));
        }
    }
}

fn of_checkout(root: &Path) -> Vec<Receipt> {
    let readable = |path: PathBuf| read(&path).map_err(|error| say(&format!("note: left out: {error:#}"))).ok();
    archive::list(root).into_iter().filter_map(readable).take(archive::KEPT).collect()
}

fn named(paths: &[PathBuf]) -> anyhow::Result<Vec<Receipt>> {
    paths.iter().map(|path| read(path)).collect()
}

fn read(path: &Path) -> anyhow::Result<Receipt> {
    let bytes = archive::read(path)?;
    Receipt::parse(&bytes).with_context(|| format!("{} is no receipt", path.display()))
}

// What tasks need stands in the suite, not in the receipt: the very suite of that run, from the disk or from its commit.
fn needs(repo: &Repo, receipt: &Receipt) -> Option<Needs> {
    let Predicate { suite: file, .. } = &receipt.predicate;
    let on_disk = fs::read(repo.root.join(&file.path)).ok();
    let committed = || {
        let name = format!("{}:{}", receipt.subject.commit.as_deref()?, file.path);
        Some(repo.objects(&[&name]).ok()?.swap_remove(0)?.bytes)
    };
    let same = |bytes: &Vec<u8>| digest::of_bytes(bytes) == file.sha256;
    let bytes = on_disk.filter(same).or_else(|| committed().filter(same))?;
    let suite = Suite::parse(&String::from_utf8(bytes).ok()?).ok()?;
    Some(suite.tasks.into_iter().map(|task| (task.name, task.needs)).collect())
}
