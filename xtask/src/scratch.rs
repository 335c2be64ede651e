//! The folder that a run has for itself while it lives: in memory where there is room, short enough for the path of a
//! socket, and locked (flock) by the runner. A folder that nobody holds belonged to a run that is dead; its keeper, or
//! else the next start, removes it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access, geteuid};

use crate::name::RunId;
use crate::sys;

/// The variable that names another folder for the folders of runs, as an absolute path of at most 36 bytes, less the digits
/// of the user's id, without a comma (a server's settings take that for the end of a folder). Runs that look into different
/// folders do not end what the others left.
const PLACE: &str = "XTASK_SCRATCH";

const MEMORY: &str = "/dev/shm";

/// Memory must have this much room, or the folder goes to the disk: a database has to fit.
const ROOM: f64 = 512.0 * 1024.0 * 1024.0;

/// Longest base folder: a socket's path has at most 103 bytes, and run, service and file name take 60 of them.
const LONGEST_BASE: usize = 43;

/// How long to try against a sweep that holds the new folder for a moment.
const PATIENCE: Duration = Duration::from_secs(5);

/// A run's own folder, removed when this is dropped.
#[must_use = "the folder is removed when this is dropped"]
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    lock: Flock<File>,
}

impl Scratch {
    /// Makes and locks the folder of this run. Errors if no folder can be had; the text says where it was tried.
    pub fn make(run: &RunId) -> Result<Self, String> {
        Self::below(run, |_| true)
    }

    /// The same outside of memory, for what may be large and needs no speed.
    pub fn make_on_disk(run: &RunId) -> Result<Self, String> {
        let asked_for = std::env::var_os(PLACE).is_some();
        Self::below(run, |base| asked_for || !base.starts_with(MEMORY))
    }

    fn below(run: &RunId, fits: impl Fn(&Path) -> bool) -> Result<Self, String> {
        in_a_base(fits, |base| {
            let path = base.join(run.as_str());
            make_locked(&path).map(|lock| Self { path, lock })
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it while there is still somebody to tell why it cannot be removed. Nothing is to be made in it any more.
    pub fn clear(&self) -> Option<String> {
        let made = self.lock.metadata().ok()?;
        let other = |now: fs::Metadata| (now.dev(), now.ino()) != (made.dev(), made.ino());
        // One that a task has removed, and git made again, has no name left.
        let elsewhere = made.nlink() > 0 && fs::symlink_metadata(&self.path).is_ok_and(other);
        let lost = || format!("cannot remove {}: it was moved, or something is mounted over it", self.path.display());
        removal(&self.path).or_else(|| elsewhere.then(lost))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Who has to know whether that succeeds has asked before (`clear`), or looks after this process (`remove`).
        let _ = remove_all(&self.path);
    }
}

/// Whether there is a place for the folder of a run, so that a place which is none is refused before anybody queues. The
/// error says where it was tried.
pub fn check() -> Result<(), String> {
    in_a_base(|_| true, |base| access(base, AccessFlags::W_OK | AccessFlags::X_OK).map_err(Into::into))
}

/// Where the folder of this run is, if it has one.
pub fn of(run: &RunId) -> Option<PathBuf> {
    bases(false).into_iter().map(|base| base.join(run.as_str())).find(|path| path.is_dir())
}

/// Removes the folder of a run whose other processes are gone, if it is still there. Gives why it cannot be removed.
pub fn remove(run: &RunId) -> Option<String> {
    of(run).and_then(|path| removal(&path))
}

/// Removes a folder and all in it, which tasks may have had in their hands. Errors, and touches nothing, where something is
/// mounted in it or over it: what is behind that is somebody else's.
pub fn remove_all(path: &Path) -> io::Result<()> {
    match mounted(path) {
        Some(point) => Err(io::Error::other(format!("something is mounted at {}: unmount it first", point.display()))),
        None => fs::remove_dir_all(path),
    }
}

// A row a mount; its fifth field is where, with spaces, line breaks and backslashes in octal (proc(5)).
fn mounted(path: &Path) -> Option<PathBuf> {
    let path = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
    let rows = fs::read("/proc/self/mountinfo").ok()?;
    let mut points = rows.split(|&b| b == b'\n').filter_map(|row| Some(plain(row.split(|&b| b == b' ').nth(4)?)));
    points.find(|point| point.starts_with(&path))
}

fn plain(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, more @ ..] = rest {
        let code = if let (b'\\', [a, b, c, ..]) = (first, more) {
            std::str::from_utf8(&[*a, *b, *c]).ok().and_then(|code| u8::from_str_radix(code, 8).ok())
        } else {
            None
        };
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &more[3..] } else { more };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn removal(path: &Path) -> Option<String> {
    match remove_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Some(format!("cannot remove {}: {e}", path.display())),
        _ => None,
    }
}

/// Folders that dead runs of this user left, locked, so that nobody else removes them meanwhile.
#[must_use = "their processes have to be ended, then `remove`"]
#[derive(Debug, Default)]
pub struct Dead(Vec<(RunId, PathBuf, Flock<File>)>);

/// Finds what dead runs left: only folders whose lock can be had. A run that lives, this one's or the one around it,
/// holds its own.
pub fn dead() -> Dead {
    let mut dead = Dead::default();
    for base in bases(false) {
        let Ok(entries) = fs::read_dir(&base) else { continue };
        for entry in entries.flatten() {
            let Some(run) = entry.file_name().to_str().and_then(|name| RunId::parse(name).ok()) else { continue };
            if let Ok(Some(lock)) = try_lock(&entry.path()) {
                dead.0.push((run, entry.path(), lock));
            }
        }
    }
    dead
}

impl Dead {
    /// The runs. What still carries their mark is to be ended before the folders go.
    pub fn runs(&self) -> Vec<RunId> {
        self.0.iter().map(|(run, ..)| run.clone()).collect()
    }

    /// Where they are.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(_, path, _)| path.as_path())
    }

    /// Removes the folders; what could not be removed and why.
    pub fn remove(self) -> Vec<String> {
        self.0.iter().filter_map(|(_, path, _)| removal(path)).collect()
    }
}

// The name of a user's base folder.
fn of_the_user() -> String {
    format!("xtask-{}", geteuid())
}

// How many bytes the path of the folder around a user's base folder may have.
fn longest_place() -> usize {
    LONGEST_BASE - 1 - of_the_user().len()
}

// Where folders of runs may be, best first; `with_room`: only those where one can be made now.
fn bases(with_room: bool) -> Vec<PathBuf> {
    let user = of_the_user();
    let room = |folder: &Path| {
        statvfs(folder).is_ok_and(|fs| fs.blocks_available() as f64 * fs.fragment_size() as f64 >= ROOM)
    };
    let memory = PathBuf::from(MEMORY);
    let temp = std::env::temp_dir();
    let usable = |folder: &PathBuf| {
        let name = folder.as_os_str().as_encoded_bytes();
        name.len() <= longest_place() && !name.contains(&b',') && folder.is_absolute()
    };
    let mut parents: Vec<PathBuf> = Vec::new();
    let usual = vec![memory, temp, PathBuf::from("/tmp")];
    let all = std::env::var_os(PLACE).map_or(usual, |place| vec![place.into()]);
    for parent in all {
        let fits = usable(&parent) && (!with_room || parent != Path::new(MEMORY) || room(&parent));
        if fits && parent.is_dir() && !parents.contains(&parent) {
            parents.push(parent);
        }
    }
    parents.into_iter().map(|parent| parent.join(&user)).collect()
}

fn in_a_base<T>(fits: impl Fn(&Path) -> bool, make: impl Fn(&Path) -> io::Result<T>) -> Result<T, String> {
    let mut reasons = Vec::new();
    for base in bases(true).into_iter().filter(|base| fits(base)) {
        match prepare(&base).and_then(|()| make(&base)) {
            Ok(made) => return Ok(made),
            Err(e) => reasons.push(format!("{}: {e}", base.display())),
        }
    }
    if reasons.is_empty() {
        let asked = std::env::var_os(PLACE).map(PathBuf::from);
        let missing = asked.as_ref().filter(|place| place.is_absolute() && !place.is_dir());
        let place = if asked.is_some() { PLACE } else { "TMPDIR" };
        reasons.push(missing.map_or_else(
            || {
                let longest = longest_place();
                format!("{place} has to name a folder by an absolute path of at most {longest} bytes without a comma")
            },
            |missing| format!("{place}: there is no folder {}", missing.display()),
        ));
    }
    Err(format!("no scratch folder can be made: {}", reasons.join("; ")))
}

// Others may pass through the folders of root, because a server that refuses to run as root has its files in there; they
// can list neither these nor what the server keeps.
fn mode() -> u32 {
    if geteuid().is_root() { 0o711 } else { 0o700 }
}

// The base folder stands where everybody may make files: it must be ours, a folder, and closed to others.
fn prepare(base: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(mode()).create(base) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = fs::symlink_metadata(base)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user, or is no folder"));
    }
    if found.mode() & 0o777 != mode() {
        fs::set_permissions(base, Permissions::from_mode(mode()))?;
    }
    Ok(())
}

fn make_locked(path: &Path) -> io::Result<Flock<File>> {
    let give_up = sys::now() + PATIENCE;
    loop {
        match DirBuilder::new().mode(mode()).create(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        // A sweep that came between the two took it for a dead run's, and removes it.
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        if sys::now() >= give_up {
            return Err(io::Error::other("another process holds the new folder"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

// The lock of a folder, if nobody has it and the folder is still there under its name.
fn try_lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let folder = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let opened = folder.metadata()?;
    let Ok(lock) = Flock::lock(folder, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
    let same = fs::symlink_metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (opened.dev(), opened.ino()));
    Ok(same.then_some(lock))
}
