//! The log of a task: one file that its processes write to directly. Nothing here stands between them and the file, so
//! nobody can be delayed by it; what is wanted of it is read from the file.

use std::collections::VecDeque;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::clean;

/// A log is looked at as if its task could write this many bytes a second: no pipe or disk here is much faster.
const FASTEST: u64 = 2 << 30;

/// No line of a tail is longer, in characters.
const LINE_MAX: usize = 2_000;

/// A tail is looked for in this many bytes at the end of the log.
const TAIL_BYTES: u64 = 256 << 10;

/// How often a log is tried to be made where other tasks remove its folder again and again.
const TRIES: u32 = 100;

/// Makes the folder of a run's logs, in a folder that ignores itself, so that no .gitignore has to know of it. Errors
/// if it cannot be made.
pub fn folder(run: &Path) -> io::Result<()> {
    fs::create_dir_all(run)?;
    let Some(all) = run.parent() else { return Ok(()) };
    // Never through a link that a task has put there.
    match File::create_new(all.join(".gitignore")) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        Err(_) => Ok(()),
        Ok(mut ignore) => ignore.write_all(b"*\n"),
    }
}

/// Makes the log, empty. The first file is for the task, for appending: two processes of a task never write over each
/// other. The second is for whoever looks at it, also where a task removes the folder (`cargo clean`). What another task
/// has put there meanwhile goes: through a link the log would be written to some other file. Errors if it cannot be made.
pub fn create(path: &Path) -> io::Result<(File, File)> {
    let mut tries = 0;
    loop {
        match try_create(path) {
            // Another task removes the folder, or puts something there, between two calls.
            Ok(None) => {}
            Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::AlreadyExists].contains(&e.kind()) && tries < TRIES => {}
            Err(e) => return Err(e),
            Ok(Some(made)) => return Ok(made),
        }
        tries += 1;
        if tries > TRIES {
            return Err(io::Error::other("what other tasks do to it does not end"));
        }
    }
}

// None: the second file would be another one than the first.
fn try_create(path: &Path) -> io::Result<Option<(File, File)>> {
    let mut open = OpenOptions::new();
    open.read(true).append(true).custom_flags(libc::O_NOFOLLOW);
    let new = || open.clone().create_new(true).open(path);
    let first = match (new(), path.parent()) {
        (Err(e), Some(run)) if e.kind() == io::ErrorKind::NotFound => {
            folder(run)?;
            new()?
        }
        (Err(e), _) if e.kind() == io::ErrorKind::AlreadyExists => {
            remove(path)?;
            new()?
        }
        (first, _) => first?,
    };
    let same = |now: &Metadata| first.metadata().is_ok_and(|made| (made.dev(), made.ino()) == (now.dev(), now.ino()));
    match open.open(path) {
        Err(e) if fs::symlink_metadata(path).is_ok_and(|now| same(&now)) => Err(e),
        Ok(second) if second.metadata().is_ok_and(|now| same(&now)) => Ok(Some((first, second))),
        _ => Ok(None),
    }
}

// A folder only if it is empty.
fn remove(path: &Path) -> io::Result<()> {
    let is_folder = fs::symlink_metadata(path)?.is_dir();
    if is_folder { fs::remove_dir(path) } else { fs::remove_file(path) }
}

/// Its size in bytes; 0 if nobody knows.
pub fn size(log: &File) -> u64 {
    log.metadata().map_or(0, |found| found.len())
}

/// When to look at the size again, so that a task that writes as fast as it can is soon caught at its limit.
pub fn look_again(size: u64, limit: u64) -> Duration {
    let left = Duration::from_secs_f64(limit.saturating_sub(size) as f64 / FASTEST as f64);
    left.clamp(Duration::from_millis(5), Duration::from_millis(250))
}

/// Cuts the log off at `limit` bytes, once nothing writes to it any more. Errors if that is refused.
pub fn cut(log: &File, limit: u64) -> io::Result<()> {
    if size(log) > limit { log.set_len(limit) } else { Ok(()) }
}

/// Why nothing more can be written to it, if so: then what its task had to say is lost. Once nothing else writes to it any more.
pub fn refusal(mut log: &File) -> Option<io::Error> {
    let size = log.metadata().ok()?.len();
    // Whether there is room on its disk, and below every limit, only a write can tell.
    let written = log.write_all(b"\n");
    let _ = log.set_len(size); // if it stays, it is an empty line
    written.err()
}

/// The end of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tail {
    /// Its last lines, by `clean::line`.
    pub lines: Vec<String>,
    /// How many lines there are in all.
    pub total: u64,
}

/// The last `count` lines. Memory does not grow with the log. Errors if it cannot be read.
pub fn tail(log: &File, count: usize) -> io::Result<Tail> {
    let begin = log.metadata()?.len().saturating_sub(TAIL_BYTES);
    let mut reader = BufReader::with_capacity(64 << 10, log);
    reader.rewind()?;
    let (newlines, ends_in_line) = count_lines(&mut reader)?;
    reader.seek(SeekFrom::Start(begin))?;
    let mut lines: VecDeque<String> = VecDeque::new();
    let mut line = Vec::new();
    let mut first = true;
    while reader.read_until(b'\n', &mut line)? > 0 {
        // Where it begins in the middle of a line, that one is half, and shown only if there is no other.
        if first && begin > 0 && line.ends_with(b"\n") && line.len() < TAIL_BYTES as usize {
            line.clear();
        }
        if !(first && line.is_empty()) {
            lines.push_back(clean::line(&line, LINE_MAX));
        }
        if lines.len() > count {
            lines.pop_front();
        }
        line.clear();
        first = false;
    }
    Ok(Tail { lines: lines.into(), total: newlines + u64::from(ends_in_line) })
}

// Newlines, and whether something stands behind the last one.
fn count_lines(reader: &mut impl BufRead) -> io::Result<(u64, bool)> {
    let mut newlines = 0;
    let mut open = false;
    loop {
        let chunk = reader.fill_buf()?;
        let Some(last) = chunk.last() else { return Ok((newlines, open)) };
        open = *last != b'\n';
        for &byte in chunk {
            newlines += u64::from(byte == b'\n');
        }
        let length = chunk.len();
        reader.consume(length);
    }
}
