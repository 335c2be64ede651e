//! A file that the user named for something to be written to. It may be any path by mistake, and what lies there may be
//! precious: only what is empty or what this program wrote is ever written over.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::repo::Repo;
use crate::sys;

/// How long a pipe that is full may stay so.
const READER_MS: u16 = 5_000;

/// Refuses a path that must not be written to, before anything is touched: a folder, what git tracks in `repo`, and a file
/// that neither is empty nor begins as what is to be written does. `flag` is what named it. A link counts as what it leads
/// to; devices and pipes are anybody's. Folders that are missing are made in the repository, and nowhere else.
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
    let folder = whole(path).and_then(|full| full.parent().map(Path::to_owned)).unwrap_or_default();
    let ours = |repo: &Repo| repo.root.canonicalize().is_ok_and(|root| folder.starts_with(root));
    if !folder.is_dir() && !repo.is_some_and(ours) {
        bail!("{}: there is no such folder", refuse());
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

/// Whether both paths lead to one file, however they are spelled, also where it is not there yet.
pub fn same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    let one_place = whole(one).is_some_and(|place| whole(other) == Some(place));
    one == other || one_place || id(one).is_some_and(|file| id(other) == Some(file))
}

/// Writes a file that `check` lets be written: whole, or not at all. Devices and pipes have to take it as it comes. Errors if
/// it cannot be written, and then what was there before is there still.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    write_whole(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    // A link stays, and what it leads to is replaced; but not the file that /dev/stdout is.
    let place = whole(path).unwrap_or_else(|| path.to_owned());
    let no_file = fs::symlink_metadata(&place).is_ok_and(|data| !data.is_file());
    if no_file || ["/dev", "/proc"].iter().any(|folder| path.starts_with(folder)) && !path.starts_with("/dev/shm") {
        return append(path, false, text);
    }
    let folder = place.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    sweep(path);
    let beside = folder.join(format!(".xtask-{}-{:08x}.new", std::process::id(), sys::random()?));
    let mut file = File::options().write(true).create_new(true).open(&beside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&beside, &place));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Writes to the end of a file, a device or a pipe; a file is made if `make`. Nobody may wait for a reader while others wait
/// for the locks: a pipe that nobody has open, or reads from for a few seconds, is an error.
pub fn append(path: &Path, make: bool, text: &str) -> io::Result<()> {
    let mut how = File::options();
    let file = how.append(true).create(make).custom_flags(libc::O_NONBLOCK).open(path);
    let mut file = file.map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) => io::Error::other("it is a pipe, and nobody reads it"),
        _ => error,
    })?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match file.write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLOUT)], PollTimeout::from(READER_MS)) {
                    Ok(0) => return Err(io::Error::other("its reader does not read")),
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Removes what a process of this program that was killed while it wrote this file, or another one there, has left beside it.
pub fn sweep(path: &Path) {
    let folder = whole(path).and_then(|place| place.parent().map(Path::to_owned)).unwrap_or_default();
    let writer = |name: &str| name.strip_prefix(".xtask-")?.strip_suffix(".new")?.split_once('-')?.0.parse().ok();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(writer);
        if pid.is_some_and(|pid| kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH)) {
            let _ = fs::remove_file(entry.path());
        }
    }
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
    (!rest.components().any(|part| part == std::path::Component::ParentDir))
        .then(|| full.join(rest).components().collect())
}
