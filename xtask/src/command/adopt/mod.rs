//! `adopt`: puts this program into another repository, without disturbing what is there.
//!
//! Everything is tried on a scratch clone first, with cargo as the judge: what a workspace would become is seen there and
//! not guessed. Only what has proved itself is then written, or with --dry-run only listed.

pub mod edit;
mod layout;
pub mod program;
pub mod starter;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};

use super::say;
use crate::plan::outer::{compare, needed};
use crate::repo::Repo;
use crate::suite::{RunLimits, Suite};
use crate::sys;
use crate::verdict::Exit;
use layout::{Cargo, Layout, in_scratch};
use program::Origin;

const SUITE: &str = "ci/suite.toml";
const RECIPES: &str = "ci/recipes/";
// The queue budget of the recipe for machines that nobody shares.
const SHORT_QUEUE: std::time::Duration = std::time::Duration::from_secs(60);

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

/// Copies the program of the repository around the current folder. Errors mean that nothing was touched, or say what was.
pub fn run(request: &Request) -> anyhow::Result<Exit> {
    let source = Source::new(Repo::find(&std::env::current_dir().context("there is no current folder")?)?)?;
    let target = Repo::find(&request.path)?;
    ensure!(target.root != source.repo.root, "{} is the repository to copy from", target.root.display());
    clean(&target, &[], "commit or stash them first, so that you can see what adopt does")?;
    target.head.clone().context("the repository has no commit yet; adopt wants something to compare with")?;
    let tracked = tracked(&target)?;
    let update = tracked.contains(program::ADOPTED);
    let read = |path: &str| read(&target.root, path);
    if update {
        let edits = program::edits(&tracked, &read)?;
        ensure!(edits.is_empty(), "the copy was edited here, and an update would undo that: {}", few(&edits));
    } else if let Some(path) = tracked.iter().find(|path| path.starts_with("xtask/")) {
        bail!("{path} is there already and no part of a copy of this program");
    }

    let scratch = Scratch::new()?;
    let clone = scratch.0.join("repo");
    let place = clone.to_str().context("the temporary folder's path is not text")?;
    // Large files behind filters are not needed to try things.
    let quick =
        ["-c", "filter.lfs.smudge=", "-c", "filter.lfs.required=false", "clone", "--quiet", "--shared", ".", place];
    target.git(&quick)?;
    let cargo = Cargo::new()?;
    let around = cargo.around(&target.root).context("cargo cannot read the repository where it lies")?;
    let layout = Layout { clone: &clone, tracked: &tracked, cargo, around };
    let oldest = program::oldest_rust(&source.text("xtask/Cargo.toml")?)?;
    layout.cargo.at_least(&clone, oldest)?;
    let was_own = update && String::from_utf8_lossy(&read("xtask/Cargo.toml")?).contains("\n[workspace]");
    let copies = (source.copy(false)?, source.copy(true)?);
    let locks = source.text("Cargo.lock")?;
    let (mut changes, own) = in_scratch(&layout, copies, &locks, oldest, (update, was_own))?;
    for path in tracked.iter().filter(|path| path.starts_with("xtask/")) {
        changes.entry(path.clone()).or_insert(None);
    }
    let config = source.text(".cargo/config.toml")?;
    let config_path = if tracked.contains(".cargo/config") { ".cargo/config" } else { ".cargo/config.toml" };
    let old = if tracked.contains(config_path) { String::from_utf8(read(config_path)?)? } else { String::new() };
    let new = with_alias(&old, &config, own.is_some()).map_err(|why| anyhow::anyhow!("{config_path}: {why}"))?;
    changes.insert(config_path.to_owned(), Some(new.into_bytes()));
    if !update && !tracked.contains(SUITE) {
        changes.extend(first_time(&source, &layout, own.is_none())?);
    }
    changes.retain(|path, new| match new {
        Some(new) => !tracked.contains(path) || read(path).ok().as_ref() != Some(new),
        None => tracked.contains(path),
    });
    kept_by_git(&clone, &changes)?;

    let at = target.root.display();
    for (path, new) in &changes {
        let what = if new.is_none() {
            "remove"
        } else if tracked.contains(path) {
            "edit"
        } else {
            "create"
        };
        say(&format!("  {what:<6}  {path}"));
    }
    if changes.is_empty() {
        say(&format!("{at} has this very program already; nothing to do"));
        return Ok(Exit::Passed);
    }
    if let Some(why) = &own {
        say(&format!(
            "note: xtask has a workspace of its own there: {why}\n      `cargo xtask` works from the repository's root only"
        ));
    }
    if edit::has(&old, &["build", "target"]) {
        say("note: build.target in its cargo configuration holds for xtask too, which must run on this machine");
    }
    if request.dry_run {
        say(&format!("{} files of {at} would be touched; none was", changes.len()));
        return Ok(Exit::Passed);
    }
    write(&target.root, &changes)?;
    let next = if update { "" } else { "cargo xtask plan, adjust ci/suite.toml, " };
    say(&format!(
        "{} files of {at} touched. Next, there: {next}git add --all, git commit, cargo xtask verify",
        changes.len()
    ));
    Ok(Exit::Passed)
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

// The alias and its profile, put into a cargo configuration.
fn with_alias(old: &str, ours: &str, own: bool) -> Result<String, String> {
    let alias = edit::flat(ours)?.remove("alias.xtask").ok_or("this repository has no alias xtask")?;
    let mut alias = alias.trim_start_matches("s:").to_owned();
    if own {
        alias = alias.replace("--package xtask", "--manifest-path xtask/Cargo.toml");
    }
    let mut new = edit::set(old, &["alias"], "xtask", &format!("{alias:?}"))?;
    if !edit::flat(&new)?.keys().any(|key| key.starts_with("profile.xtask.")) {
        let mut kept = false;
        let block = ours.lines().filter(|line| {
            kept = if line.starts_with('[') { line.starts_with("[profile.xtask") } else { kept };
            kept && !line.starts_with('#')
        });
        let block = block.collect::<Vec<_>>().join("\n");
        new = edit::append(&new, &(block.trim_end().to_owned() + "\n"));
        edit::flat(&new)?;
    }
    Ok(new)
}

// What a repository gets once: a suite, recipes for CI, who may sign, a place for receipts.
fn first_time(source: &Source, layout: &Layout<'_>, member: bool) -> anyhow::Result<Changes> {
    let read_text = |path: &str| String::from_utf8(read(layout.clone, path).ok()?).ok();
    let found =
        starter::Found { files: layout.tracked.clone(), read: &read_text, member, below: layout.around.is_some() };
    let suite = starter::suite(&found)?;
    let ours = Suite::parse(&source.text(SUITE)?).map_err(|e| anyhow::anyhow!("{}", e.display(SUITE)))?.run;
    let theirs = Suite::parse(&suite).map_err(|e| anyhow::anyhow!("{}", e.display(SUITE)))?.run;
    let mut changes = Changes::new();
    for path in source.tracked.iter().filter(|path| path.starts_with(RECIPES)) {
        changes.insert(path.clone(), Some(recipe(path, &source.text(path)?, &ours, &theirs)?.into_bytes()));
    }
    changes.insert(SUITE.to_owned(), Some(suite.into_bytes()));
    let signers = "# Who may sign what: one line a key, as `ssh-keygen -Y verify` reads it. The first word is the role, which must be\n\
        # the receipt's caller: local, ci or release. Receipts need the namespace xtask-receipt-v1, releases\n\
        # xtask-release-v1 besides.\n\
        #\n\
        # ci namespaces=\"xtask-receipt-v1\" ssh-ed25519 AAAA…\n\
        # release namespaces=\"xtask-receipt-v1,xtask-release-v1\",valid-before=\"20270501000000Z\" ssh-ed25519 AAAA…\n";
    changes.insert("ci/allowed_signers".to_owned(), Some(signers.into()));
    let revoked = "# Public keys, one a line, that no longer count, whatever they signed.\n";
    changes.insert("ci/revoked_keys".to_owned(), Some(revoked.into()));
    let mut keep = "# Receipts are uploaded by CI, not committed.\n*\n!.gitignore\n".to_owned();
    for path in source.tracked.iter().filter(|path| path.starts_with("receipts/") && path.matches('/').count() == 1) {
        changes.insert(path.clone(), Some(read(&source.repo.root, path)?));
        keep += &format!("!{}\n", path.trim_start_matches("receipts/"));
    }
    changes.insert("receipts/.gitignore".to_owned(), Some(keep.into_bytes()));
    // What its own cargo leaves there would change the tree that is being checked.
    let mut left = BTreeSet::from(["target/".to_owned()]);
    for dir in found.tops("Cargo.toml") {
        left.insert(starter::join(&dir, "target/"));
        let lock = starter::join(&dir, "Cargo.lock");
        left.extend(Some(lock).filter(|lock| !found.below && !found.files.contains(lock)));
    }
    let clone = Repo::find(layout.clone)?;
    let seen = left.iter().filter(|path| clone.git(&["check-ignore", "--quiet", path]).is_err());
    let more: String = seen.map(|path| format!("/{}\n", path.trim_end_matches('/'))).collect();
    if !more.is_empty() {
        let old = read_text(".gitignore").unwrap_or_default();
        let end = if old.is_empty() || old.ends_with('\n') { "" } else { "\n" };
        changes.insert(".gitignore".to_owned(), Some(format!("{old}{end}{more}").into_bytes()));
    }
    Ok(changes)
}

// A recipe with the other suite's numbers, which must then be enough for that suite.
fn recipe(path: &str, text: &str, ours: &RunLimits, theirs: &RunLimits) -> anyhow::Result<String> {
    let minutes = |run: &RunLimits, queue| (needed(run, queue).as_secs() / 60).to_string();
    let pairs = [
        (minutes(ours, ours.queue), minutes(theirs, theirs.queue)),
        (minutes(ours, SHORT_QUEUE), minutes(theirs, SHORT_QUEUE)),
    ];
    let word = |word: &str| {
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let new = pairs.iter().find(|(old, _)| old == number).filter(|_| ["", "m", "min"].contains(&unit));
        new.map_or(word.to_owned(), |(_, new)| format!("{new}{unit}"))
    };
    let line = |line: &str| {
        let parts = line.split_inclusive([' ', '=']);
        let swap = |part: &str| {
            let bare = part.trim_end_matches([' ', '=']);
            word(bare) + &part[bare.len()..]
        };
        parts.map(swap).collect::<String>() + "\n"
    };
    let new: String = text.lines().map(line).collect();
    if let Some(bad) = compare(&new, theirs).into_iter().find(|finding| finding.wrong.is_some()) {
        bail!("{path}:{}: {} {}", bad.line, bad.shown, bad.wrong.unwrap_or_default());
    }
    Ok(new)
}

// Refuses where the repository would not keep what it gets.
fn kept_by_git(clone: &Path, changes: &Changes) -> anyhow::Result<()> {
    write(clone, changes)?;
    let ignored = Repo::find(clone)?.git(&["ls-files", "-z", "--others", "--ignored", "--exclude-standard"])?;
    let ignored: Vec<String> = names(&ignored).into_iter().filter(|path| changes.contains_key(path)).collect();
    ensure!(
        ignored.is_empty(),
        "its .gitignore would keep these out of the repository: {}; change that there, commit, and adopt again",
        few(&ignored)
    );
    Ok(())
}

fn write(root: &Path, changes: &Changes) -> anyhow::Result<()> {
    for (path, bytes) in changes {
        let full = root.join(path);
        let write = || -> std::io::Result<()> {
            let Some(bytes) = bytes else { return fs::remove_file(&full) };
            fs::create_dir_all(full.parent().unwrap_or(root))?;
            fs::write(&full, bytes)?;
            if path.ends_with(".sh") {
                fs::set_permissions(&full, fs::Permissions::from_mode(0o755))?;
            }
            Ok(())
        };
        write().with_context(|| format!("{} cannot be written; `git status` there shows what was", full.display()))?;
    }
    Ok(())
}

fn clean(repo: &Repo, below: &[&str], advice: &str) -> anyhow::Result<()> {
    let status = repo.git(&[&["status", "--porcelain", "-z", "--untracked-files=all", "--"], below].concat())?;
    let changed: Vec<String> = names(&status).iter().map(|entry| entry.get(3..).unwrap_or(entry).to_owned()).collect();
    let root = repo.root.display();
    ensure!(changed.is_empty(), "{root} has uncommitted changes ({}): {advice}", few(&changed));
    Ok(())
}

fn tracked(repo: &Repo) -> anyhow::Result<BTreeSet<String>> {
    Ok(names(&repo.git(&["ls-files", "-z"])?).into_iter().collect())
}

fn names(bytes: &[u8]) -> Vec<String> {
    let parts = bytes.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    parts.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn read(root: &Path, path: &str) -> anyhow::Result<Vec<u8>> {
    fs::read(root.join(path)).with_context(|| format!("{} cannot be read", root.join(path).display()))
}

fn few(paths: &[String]) -> String {
    let more = if paths.len() > 5 { format!(" and {} more", paths.len() - 5) } else { String::new() };
    paths.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ") + &more
}

// A temporary folder that nobody else can look into, gone when this is.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("xtask-adopt-{}-{:08x}", std::process::id(), sys::random()?));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
