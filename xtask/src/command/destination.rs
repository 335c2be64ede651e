//! A file that the user named for something to be written to. It may be any path by mistake, and what lies there may be
//! precious: only what is empty or what this program wrote is ever written over.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::repo::Repo;

/// Refuses a path that must not be written to, before anything is touched: a folder, what git tracks in `repo`, and a file
/// that neither is empty nor begins as what is to be written does. `flag` is what named it. A link counts as what it leads
/// to; devices and pipes are anybody's.
pub fn check(flag: &str, path: &Path, repo: Option<&Repo>, beginning: &str) -> anyhow::Result<()> {
    let refuse = || format!("{flag} {} cannot be written", path.display());
    if path.is_dir() {
        bail!("{}: it is a folder; name a file", refuse());
    }
    if let Some(repo) = repo
        && is_tracked(repo, path).with_context(refuse)?
    {
        bail!("{}: git tracks it; name another file", refuse());
    }
    // What cannot be looked at because it is not there is made anew; whatever else is wrong is found when it is written.
    let Ok(data) = fs::metadata(path) else { return Ok(()) };
    if data.is_file() && data.len() > 0 {
        let mut found = Vec::new();
        let file = File::open(path).and_then(|file| file.take(beginning.len() as u64).read_to_end(&mut found));
        file.with_context(refuse)?;
        if found != beginning.as_bytes() {
            bail!("{}: something else is there; move it away, or name another file", refuse());
        }
    }
    Ok(())
}

fn is_tracked(repo: &Repo, path: &Path) -> anyhow::Result<bool> {
    let Some(full) = whole(path) else { return Ok(false) };
    let root = repo.root.canonicalize().unwrap_or_else(|_| repo.root.clone());
    let Some(inside) = full.strip_prefix(&root).ok().and_then(Path::to_str).filter(|inside| !inside.is_empty()) else {
        return Ok(false);
    };
    Ok(!repo.tracked(&[inside])?.is_empty())
}

// The path without links, also of what is not there yet. None where `..` stands behind what is not there.
fn whole(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    let (part, full) = there?;
    let rest = path.strip_prefix(part).ok()?;
    (!rest.components().any(|part| part == std::path::Component::ParentDir)).then(|| full.join(rest))
}
