//! `adopt`: puts this program into another repository, without disturbing what is there.
//!
//! Everything is tried on a scratch clone first, with cargo as the judge: what a workspace would become is seen there and
//! not guessed. Only what has proved itself is then written, or with --dry-run only listed.

pub mod config;
mod disk;
pub mod edit;
mod first;
mod layout;
pub mod program;
pub mod starter;
mod stops;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};

use super::say;
use crate::name::RunId;
use crate::repo::Repo;
use crate::scratch::Scratch;
use crate::sys;
use crate::verdict::Exit;
use config::{CONFIG, OLD_CONFIG};
use disk::{clean, few, read, tracked};
use layout::{Cargo, Layout, in_scratch};
use program::Origin;
use stops::Stops;

const SUITE: &str = "ci/suite.toml";

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// A folder of the repository that gets the program.
    pub path: PathBuf,
    /// Only name the files.
    pub dry_run: bool,
}

/// Files to write, by path relative to the repository; none to remove.
type Changes = BTreeMap<String, Option<Vec<u8>>>;

// The repository that gets the program.
struct Target {
    repo: Repo,
    tracked: BTreeSet<String>,
    // Whether it has a copy already.
    update: bool,
}

/// Copies the program of the repository around the current folder. Errors mean that nothing was touched, or say what was.
pub fn run(request: &Request) -> anyhow::Result<Exit> {
    let source = Source::new(Repo::find(&std::env::current_dir().context("there is no current folder")?)?)?;
    let target = Target::new(request, &source)?;
    let stops = Stops::new()?;
    let tried = tried(&source, &target, &stops);
    if let Some(stop) = stops.asked() {
        say("stopped; nothing was touched");
        return Ok(Exit::Cancelled(stop));
    }
    let (changes, notes) = tried?;
    let at = target.repo.root.display();
    for (path, new) in &changes {
        let what = if new.is_none() {
            "remove"
        } else if target.tracked.contains(path) {
            "edit"
        } else {
            "create"
        };
        say(&format!("  {what:<6}  {path}"));
    }
    notes.iter().for_each(|note| say(&format!("note: {note}")));
    if changes.is_empty() {
        say(&format!("{at} has this very program already; nothing to do"));
        return Ok(Exit::Passed);
    }
    if request.dry_run {
        say(&format!("{} files of {at} would be touched; none was", changes.len()));
        return Ok(Exit::Passed);
    }
    disk::write(&target.repo.root, &changes)?;
    let next = if changes.contains_key(SUITE) { "cargo xtask plan, adjust ci/suite.toml, " } else { "" };
    say(&format!(
        "{} files of {at} touched. Next, there: {next}git add --all, git commit, cargo xtask verify",
        changes.len()
    ));
    Ok(Exit::Passed)
}

// The changes that have proved themselves on a scratch clone, and what is worth a line to people.
fn tried(source: &Source, target: &Target, stops: &Stops) -> anyhow::Result<(Changes, Vec<String>)> {
    let root = &target.repo.root;
    // On the disk, for a repository may be larger than memory. What is left of it if this is killed, the next run removes.
    let scratch = Scratch::make_on_disk(&RunId::new(sys::clocks().wall_ms / 1000, sys::random()?));
    let scratch = scratch.map_err(anyhow::Error::msg)?;
    // Others may pass through the folder of a run, and have no business in what the clone is of.
    let closed = scratch.path().join("closed");
    DirBuilder::new().mode(0o700).create(&closed).with_context(|| format!("{} cannot be made", closed.display()))?;
    let clone = closed.join("repo");
    let place = clone.to_str().context("the temporary folder's path is not text")?;
    // Large files behind filters are not needed to try things.
    let quick =
        ["-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false", "clone", "--quiet", "--shared", ".", place];
    target.repo.git(&quick)?;
    let cargo = Cargo::new(stops)?;
    let around = cargo.around(root).context("cargo cannot read the repository where it lies")?;
    let layout = Layout { clone: &clone, tracked: &target.tracked, cargo, around };
    // What is wrong there is wrong in the repository itself, and that is where people look.
    let shown = |text: String| text.replace(place, &root.display().to_string());
    changes(source, target, &layout)
        .map(|(changes, notes)| (changes, notes.into_iter().map(shown).collect()))
        .map_err(|error| anyhow::anyhow!(shown(format!("{error:#}"))))
}

fn changes(source: &Source, target: &Target, layout: &Layout<'_>) -> anyhow::Result<(Changes, Vec<String>)> {
    let Target { repo, tracked, update } = target;
    let read = |path: &str| read(&repo.root, path);
    let oldest = program::oldest_rust(&source.text("xtask/Cargo.toml")?)?;
    layout.cargo.at_least(layout.clone, oldest)?;
    let was_own = *update && String::from_utf8_lossy(&read("xtask/Cargo.toml")?).contains("\n[workspace]");
    let copies = (source.copy(false)?, source.copy(true)?);
    let locks = source.text("Cargo.lock")?;
    let (mut changes, own) = in_scratch(layout, copies, &locks, oldest, (*update, was_own))?;
    for path in tracked.iter().filter(|path| path.starts_with("xtask/")) {
        changes.entry(path.clone()).or_insert(None);
    }
    let mut notes = Vec::new();
    if let Some(why) = &own {
        notes.push(format!(
            "xtask has a workspace of its own there: {why}\n      `cargo xtask` works from the repository's root only"
        ));
    }
    let path = if tracked.contains(OLD_CONFIG) { OLD_CONFIG } else { CONFIG };
    let old = if tracked.contains(path) { String::from_utf8(read(path)?)? } else { String::new() };
    let was = update.then(|| source.config_at(&String::from_utf8(read(program::ADOPTED).ok()?).ok()?)).flatten();
    let configured = config::with_alias(&old, &source.text(CONFIG)?, was.as_deref(), own.is_some());
    let (new, note) = configured.map_err(|why| anyhow::anyhow!("{path}: {why}"))?;
    changes.insert(path.to_owned(), Some(new.into_bytes()));
    notes.extend(note.map(|note| format!("{path}: {note}")));
    if edit::has(&old, &["build", "target"]) {
        notes
            .push("build.target in its cargo configuration holds for xtask too, which must run on this machine".into());
    }
    if !tracked.contains(SUITE) {
        let (more, said) = first::files(source, layout, own.is_none(), *update)?;
        changes.extend(more);
        notes.extend(said);
    } else if !update {
        notes.push(format!("{SUITE} is there already; it stays as it is, and nothing is put beside it"));
    }
    changes.retain(|path, new| match new {
        Some(new) => !tracked.contains(path) || read(path).ok().as_ref() != Some(new),
        None => tracked.contains(path),
    });
    disk::safe(repo, tracked, &changes)?;
    disk::kept_by_git(repo, layout.clone, &changes)?;
    Ok((changes, notes))
}

impl Target {
    fn new(request: &Request, source: &Source) -> anyhow::Result<Self> {
        ensure!(request.path.is_dir(), "there is no folder {}", request.path.display());
        let repo = Repo::find(&request.path)?;
        ensure!(repo.root != source.repo.root, "{} is the repository to copy from", repo.root.display());
        clean(&repo, &[], "commit or stash them first, so that you can see what adopt does")?;
        repo.head.clone().context("the repository has no commit yet; adopt wants something to compare with")?;
        let tracked = tracked(&repo)?;
        let update = tracked.contains(program::ADOPTED);
        if update {
            let edits = program::edits(&tracked, &|path| read(&repo.root, path))?;
            ensure!(edits.is_empty(), "the copy was edited here, and an update would undo that: {}", few(&edits));
        } else if let Some(path) = tracked.iter().find(|path| path.starts_with("xtask/") || *path == program::FOLDER) {
            bail!(
                "{path} is there already and no part of a copy of this program; adopt needs that name for its folder"
            );
        }
        Ok(Self { repo, tracked, update })
    }
}

// The repository that the program is copied from.
struct Source {
    repo: Repo,
    tracked: BTreeSet<String>,
    origin: Origin,
}

impl Source {
    fn new(repo: Repo) -> anyhow::Result<Self> {
        let parts = ["xtask", "Cargo.lock", "rustfmt.toml", "clippy.toml", "ci", "receipts", ".cargo"];
        let advice = "commit them first, because the copy says which commit it is of";
        clean(&repo, &parts, advice)?;
        let commit = repo.head.clone().context("this repository has no commit yet")?;
        let url = repo.git(&["remote", "get-url", "origin"]).ok();
        let url = url.map(|url| without_secrets(String::from_utf8_lossy(&url).trim()));
        let folder = repo.root.file_name().map(|name| name.to_string_lossy().into_owned());
        let from = url.or(folder).unwrap_or_default();
        Ok(Self { tracked: tracked(&repo)?, origin: Origin { from, commit }, repo })
    }

    fn text(&self, path: &str) -> anyhow::Result<String> {
        ensure!(self.tracked.contains(path), "there is no {path} in this repository to copy from");
        String::from_utf8(read(&self.repo.root, path)?).with_context(|| path.to_owned())
    }

    // The cargo configuration of the commit that a copy is of, if that commit is known here.
    fn config_at(&self, adopted: &str) -> Option<String> {
        let commit = adopted.lines().find_map(|line| line.strip_prefix("# commit  "))?;
        let objects = self.repo.objects(&[&format!("{commit}:{CONFIG}")]).ok()?;
        String::from_utf8(objects.into_iter().next()??.bytes).ok()
    }

    fn copy(&self, own: bool) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
        program::copy(&self.tracked, &|path| read(&self.repo.root, path), &self.origin, own)
    }
}

// An address without the user and password that may stand in it.
fn without_secrets(url: &str) -> String {
    match url.split_once("://").map(|(scheme, rest)| (scheme, rest, rest.find('/').unwrap_or(rest.len()))) {
        Some((scheme, rest, host)) => match rest[..host].rfind('@') {
            Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
            None => url.to_owned(),
        },
        None => url.to_owned(),
    }
}
