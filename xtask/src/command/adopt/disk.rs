//! The work tree on disk, where what adopt decides on is put. Whatever a change would write over without git noticing, or
//! write outside of the repository, is refused before anything is written. It never decides what is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};

use super::Changes;
use super::config::{CONFIG, OLD_CONFIG};
use super::starter::join;
use crate::repo::Repo;

/// Refuses where the changes would write over what `git status` does not show: files that are there and only ignored,
/// tracked files whose edits git was told to overlook; or through a symbolic link, or into a repository of its own.
pub(super) fn safe(repo: &Repo, tracked: &BTreeSet<String>, changes: &Changes) -> anyhow::Result<()> {
    for path in changes.keys() {
        // A submodule that has not been fetched is an empty folder on disk.
        let above = path.match_indices('/').map(|(at, _)| &path[..at]).find(|above| tracked.contains(*above));
        let what = obstacle(&repo.root, path).or_else(|| above.map(|above| format!("{above} is a submodule")));
        what.map_or(Ok(()), |what| Err(in_the_way(&what)))?;
    }
    let (known, new): (Vec<&String>, Vec<&String>) = changes.keys().partition(|path| tracked.contains(*path));
    let there = |path: &&String| fs::symlink_metadata(repo.root.join(path)).is_ok();
    // Where there are both, cargo reads the one without an ending, and would not see the alias.
    let older = OLD_CONFIG.to_owned();
    let older = Some(&older).filter(|path| changes.contains_key(CONFIG) && !tracked.contains(*path));
    let hidden: Vec<String> = new.into_iter().chain(older).filter(there).cloned().collect();
    ensure!(
        hidden.is_empty(),
        "on disk already, and hidden from git, which could not bring it back: {}\n`git check-ignore -v` there says by what. \
         Commit it (git add --force) or move it away, and adopt again",
        few(&hidden)
    );
    let other = edited(repo, &known)?;
    ensure!(
        other.is_empty(),
        "not on disk as HEAD has it, which git was told to overlook: {}\nthere, `git update-index --no-skip-worktree \
         --no-assume-unchanged` and the path shows what differs (`git sparse-checkout disable`, if that is it); commit or \
         undo it, and adopt again",
        few(&other)
    );
    Ok(())
}

fn in_the_way(what: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what}, and adopt writes only to files and folders of the repository itself: change that there, commit, and adopt \
         again"
    )
}

// What is in the way of writing a file at `path`, relative to `root`.
fn obstacle(root: &Path, path: &str) -> Option<String> {
    let mut at = String::new();
    for part in path.split('/') {
        at = join(&at, part);
        let full = root.join(&at);
        let last = at.len() == path.len();
        match fs::symlink_metadata(&full) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
            Err(e) => return Some(format!("{at} cannot be looked at ({e})")),
            Ok(found) if found.is_symlink() => return Some(format!("{at} is a symbolic link")),
            Ok(found) if last && !found.is_file() => return Some(format!("{at} is no file")),
            Ok(found) if !last && !found.is_dir() => return Some(format!("{at} is no folder")),
            Ok(_) => {}
        }
    }
    None
}

// Those of these tracked paths that are not on disk as the index has them, however git was told to look at them.
fn edited(repo: &Repo, paths: &[&String]) -> anyhow::Result<Vec<String>> {
    let (there, gone): (Vec<&String>, Vec<&String>) =
        paths.iter().partition(|path| fs::symlink_metadata(repo.root.join(path)).is_ok());
    let mut edited: Vec<String> = gone.into_iter().cloned().collect();
    if there.is_empty() {
        return Ok(edited);
    }
    let args: Vec<&str> = ["--literal-pathspecs", "ls-files", "--stage", "-z", "--"]
        .into_iter()
        .chain(there.iter().map(|path| path.as_str()))
        .collect();
    let staged = repo.names(&args)?;
    let ids: BTreeMap<&str, &str> = staged
        .iter()
        .filter_map(|entry| {
            let (how, path) = entry.split_once('\t')?;
            Some((path, how.split(' ').nth(1)?))
        })
        .collect();
    // With the filters and line ends that belong to the path, as `git add` would see it.
    let args = ["hash-object", "--"].into_iter().chain(there.iter().map(|path| path.as_str()));
    let found = String::from_utf8(repo.git(&args.collect::<Vec<_>>())?)?;
    let mut found = found.lines();
    edited.extend(there.into_iter().filter(|path| found.next() != ids.get(path.as_str()).copied()).cloned());
    Ok(edited)
}

/// Refuses where the repository would not keep what it gets. `clone` is a clone of it.
pub(super) fn kept_by_git(repo: &Repo, clone: &Path, changes: &Changes) -> anyhow::Result<()> {
    write(clone, changes)?;
    // What hides files in the repository alone does not come with a clone.
    let asked = |args: &[&str]| {
        let said = repo.git(args).map(|out| String::from_utf8_lossy(&out).trim_end().to_owned());
        said.ok().filter(|text| !text.is_empty())
    };
    let list = asked(&["config", "--type=path", "--get", "core.excludesFile"]);
    let own = asked(&["rev-parse", "--path-format=absolute", "--git-path", "info/exclude"]);
    let list = list.map(|path| format!("core.excludesFile={path}"));
    let own = own.filter(|path| Path::new(path).is_file()).map(|path| format!("--exclude-from={path}"));
    let mut args: Vec<&str> = list.iter().flat_map(|list| ["-c", list]).collect();
    args.extend(["ls-files", "-z", "--others", "--ignored", "--exclude-standard"]);
    args.extend(own.as_deref());
    let ignored = Repo::find(clone)?.names(&args)?;
    let ignored: Vec<String> = ignored.into_iter().filter(|path| changes.contains_key(path)).collect();
    ensure!(
        ignored.is_empty(),
        "its .gitignore or .git/info/exclude would keep these out of the repository: {}; change that there, commit, and \
         adopt again",
        few(&ignored)
    );
    Ok(())
}

/// Writes the changes below `root`, through no symbolic link.
pub(super) fn write(root: &Path, changes: &Changes) -> anyhow::Result<()> {
    for (path, bytes) in changes {
        obstacle(root, path).map_or(Ok(()), |what| Err(in_the_way(&what)))?;
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

/// Refuses uncommitted changes below these folders, or anywhere.
pub(super) fn clean(repo: &Repo, below: &[&str], advice: &str) -> anyhow::Result<()> {
    let status = repo.names(&[&["status", "--porcelain", "-z", "--untracked-files=all", "--"], below].concat())?;
    let changed: Vec<String> = status.iter().map(|entry| entry.get(3..).unwrap_or(entry).to_owned()).collect();
    let root = repo.root.display();
    ensure!(changed.is_empty(), "{root} has uncommitted changes ({}): {advice}", few(&changed));
    Ok(())
}

/// The paths that git tracks.
pub(super) fn tracked(repo: &Repo) -> anyhow::Result<BTreeSet<String>> {
    Ok(repo.names(&["ls-files", "-z"])?.into_iter().collect())
}

/// The bytes of a file.
pub(super) fn read(root: &Path, path: &str) -> anyhow::Result<Vec<u8>> {
    fs::read(root.join(path)).with_context(|| format!("{} cannot be read", root.join(path).display()))
}

/// Paths as a list for people, of which there may be many.
pub(super) fn few(paths: &[String]) -> String {
    let more = if paths.len() > 5 { format!(" and {} more", paths.len() - 5) } else { String::new() };
    paths.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ") + &more
}
