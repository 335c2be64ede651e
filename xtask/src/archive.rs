//! receipts/ on disk: what runs leave behind. Never half a receipt, never one of another run overwritten.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use nix::unistd::{AccessFlags, access};

use crate::name::RunId;
use crate::receipt::statement::{MAX_BYTES, Receipt};

/// The folder, relative to the repository's root.
pub const FOLDER: &str = "receipts";
/// How many receipts of a checkout are kept.
pub const KEPT: usize = 200;
/// How often a file is written again that was taken away before it had its name. Whoever never won the worktree lock, or
/// signs after it, writes without it; and the sweep of a run that has it cannot tell that from what a dead run left. That
/// run then syncs a receipt of its own to the same disk before the next one can sweep.
const AGAIN: u32 = 8;

/// Writes the receipt of `run` as `receipts/RUN.json` under `root`: to a temporary file, synced, then linked into place and the
/// folder synced. After the first sync, which may take long, `judge` says whether what was written still holds: it gives other
/// bytes if the run became late meanwhile, and those are synced in place of the first. Returns the path.
/// Errors if there is such a file already, or the disk does not take it; then nothing is left behind.
pub fn write(
    root: &Path,
    run: &RunId,
    bytes: &[u8],
    judge: impl FnOnce() -> Option<Vec<u8>>,
) -> anyhow::Result<PathBuf> {
    let path = path(root, run);
    place(root, run, &path, bytes, judge)
        .with_context(|| format!("the receipt {} cannot be written", path.display()))?;
    Ok(path)
}

/// Whether receipts can be written below `root`, so that nobody queues and runs for one that cannot be. The error says why not.
pub fn check(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let (place, there) = match fs::metadata(&folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => (root, Ok(())),
        Ok(found) if !found.is_dir() => (folder.as_path(), Err("it is no folder".to_owned())),
        Ok(_) => (folder.as_path(), Ok(())),
        Err(e) => (folder.as_path(), Err(e.to_string())),
    };
    let may = || access(place, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|e| e.desc().to_owned());
    there.and_then(|()| may()).map_err(|why| format!("no receipt can be written to {}: {why}", folder.display()))
}

/// Puts other bytes in the place of the receipt that `run` has written below `root`, because what it says of the run does not
/// hold. Where the disk does not take them it is removed all the same, and that errors.
pub fn replace(root: &Path, run: &RunId, bytes: &[u8]) -> anyhow::Result<PathBuf> {
    let path = path(root, run);
    let folder = root.join(FOLDER);
    let temporary = Temporary(folder.join(format!(".{run}.new")));
    let replace = || -> io::Result<()> {
        // A runner that was killed while it wrote has left one.
        let _ = fs::remove_file(&temporary.0);
        write_new(&temporary.0, bytes)?;
        fs::rename(&temporary.0, &path)?;
        File::open(&folder)?.sync_all()
    };
    if let Err(error) = replace() {
        fs::remove_file(&path).with_context(|| format!("the receipt {} cannot be taken back", path.display()))?;
        return Err(error).with_context(|| format!("the receipt {} is removed: it cannot be written", path.display()));
    }
    Ok(path)
}

/// Writes the signature of the receipt of `run` beside it, in the same way: whole or not at all. Errors if there is one
/// already, or the disk does not take it.
pub fn write_signature(root: &Path, run: &RunId, bytes: &[u8]) -> anyhow::Result<()> {
    let path = path(root, run).with_extension("json.sig");
    place(root, run, &path, bytes, || None)
        .with_context(|| format!("the signature {} cannot be written", path.display()))
}

/// Where the receipt of `run` is.
pub fn path(root: &Path, run: &RunId) -> PathBuf {
    root.join(FOLDER).join(format!("{run}.json"))
}

fn place(
    root: &Path,
    run: &RunId,
    path: &Path,
    bytes: &[u8],
    judge: impl FnOnce() -> Option<Vec<u8>>,
) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    let temporary = Temporary(folder.join(format!(".{run}.new")));
    let put = |bytes: &[u8]| -> anyhow::Result<()> {
        let length = bytes.len();
        ensure!(length <= MAX_BYTES, "it would be {length} bytes long, and nobody reads more than {MAX_BYTES}");
        fs::create_dir_all(&folder)?;
        // A runner that was killed while it wrote has left one, and its keeper writes in its stead.
        let _ = fs::remove_file(&temporary.0);
        Ok(write_new(&temporary.0, bytes)?)
    };
    put(bytes)?;
    let other = judge();
    other.as_deref().map_or(Ok(()), &put)?;
    let mut again = AGAIN;
    // A link, unlike a rename, never replaces what is there.
    while let Err(error) = fs::hard_link(&temporary.0, path) {
        ensure!(error.kind() == io::ErrorKind::NotFound && again > 0, error);
        again -= 1;
        put(other.as_deref().unwrap_or(bytes))?;
    }
    drop(temporary);
    let synced = File::open(&folder).and_then(|folder| folder.sync_all());
    if synced.is_err() {
        // It is there for whoever looks now, and nobody knows for how long: nothing is to be relied on.
        fs::remove_file(path)?;
    }
    Ok(synced?)
}

/// Makes a file that was not there, and syncs it. Errors if it is there, or the disk does not take it.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

// Gone whatever happens to the receipt; if the process itself is killed, `sweep` finds it by its name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Where the files of a release are gathered before they have their name.
pub fn release_temporary(root: &Path, run: &RunId) -> PathBuf {
    root.join(FOLDER).join(format!(".{run}.release"))
}

/// Removes the oldest receipts but the newest `KEPT`, their signatures, and what runs that died while writing have left.
/// Only with the worktree lock held: whoever writes without it writes again what is taken away. Folders (of releases) are
/// never touched. Errors with the first that cannot be removed.
pub fn sweep(root: &Path) -> io::Result<()> {
    let folder = root.join(FOLDER);
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    let run_in = |name: &str, ending: &str| RunId::parse(name.strip_suffix(ending)?).ok();
    let old = names.iter().filter_map(|name| run_in(name, ".json")).skip(KEPT);
    let mut doomed: Vec<String> = old.flat_map(|run| [format!("{run}.json"), format!("{run}.json.sig")]).collect();
    doomed.extend(names.iter().filter(|name| name.starts_with('.') && run_in(&name[1..], ".new").is_some()).cloned());
    for name in names.iter().filter(|name| name.starts_with('.') && run_in(&name[1..], ".release").is_some()) {
        fs::remove_dir_all(folder.join(name))?;
    }
    for name in doomed {
        match fs::remove_file(folder.join(&name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// Paths of the receipts of a checkout, the last written first. Empty if there is no such folder.
pub fn list(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join(FOLDER)) else { return Vec::new() };
    let dated = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        RunId::parse(entry.file_name().to_str()?.strip_suffix(".json")?).ok()?;
        // The run that asked first need not be the one that ended first, and runs of one second have names in no order.
        Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
    });
    let mut dated: Vec<_> = dated.collect();
    dated.sort_unstable_by(|a, b| b.cmp(a));
    dated.into_iter().map(|(_, path)| path).collect()
}

/// Path of the newest receipt that speaks of `commit`.
pub fn newest_of(root: &Path, commit: &str) -> Option<PathBuf> {
    let speaks_of_it = |path: &PathBuf| {
        let receipt = read(path).ok().and_then(|bytes| Receipt::parse(&bytes).ok());
        receipt.is_some_and(|receipt| receipt.subject.commit.as_deref() == Some(commit))
    };
    list(root).into_iter().find(speaks_of_it)
}

/// The bytes of one regular file of at most 1 MiB, read once, without following a link at its end. A pipe, a folder, a device
/// or a longer file is refused at once.
pub fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = open(path)?.take(MAX_BYTES as u64 + 1);
    file.read_to_end(&mut bytes).with_context(|| format!("{} cannot be read", path.display()))?;
    if bytes.len() > MAX_BYTES {
        bail!("{} cannot be read: longer than {MAX_BYTES} bytes", path.display());
    }
    Ok(bytes)
}

/// Opens a regular file to read it, without following a link at its end. Refuses everything else without waiting for it.
pub fn open(path: &Path) -> anyhow::Result<File> {
    let open = || -> io::Result<File> {
        // Without O_NONBLOCK opening a pipe that nobody writes to would wait for ever.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file =
            file.map_err(|e| if e.raw_os_error() == Some(libc::ELOOP) { io::Error::other("a link") } else { e })?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(file)
    };
    open().with_context(|| format!("{} cannot be read", path.display()))
}
