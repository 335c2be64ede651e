//! What a server leaves when it is killed: processes that have overwritten their environment, and a segment of System
//! V shared memory that outlives them all.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::table::Process;
use crate::sys;

/// How many numbers the server tries when the key of its segment is taken.
const KEYS: i32 = 16;

/// Ends every process of the server whose folder is `folder`, and removes its segment. Files stay. Does nothing where
/// no server was.
pub fn sweep(folder: &Path) {
    let data = folder.join("data");
    let Ok(meta) = data.symlink_metadata() else { return };
    end_processes(&data);
    let recorded = recorded_segment(&data);
    // The key is the number of the data folder's inode, or one of the next if that is taken (since version 13).
    let first = meta.ino() as i32;
    for segment in segments() {
        let is_ours = Some(segment.id) == recorded || (0..KEYS).any(|step| first.wrapping_add(step) == segment.key);
        // A zombie may stay for long: nobody has to reap what was left to process 1.
        let dead = segment.attached == 0 && Process::read(segment.creator).is_none_or(|creator| creator.dead);
        if is_ours && dead && segment.owner == meta.uid() {
            let _ = sys::remove_shared_segment(segment.id);
        }
    }
}

/// Marks the segment of the running server to go with the last process that uses it. The server never needs to find
/// it again: it only guards against a second server on the same folder.
pub fn forget_segment(data: &Path) {
    if let Some(id) = recorded_segment(data) {
        let _ = sys::remove_shared_segment(id);
    }
}

// Line 7 of the pid file: key and id.
fn recorded_segment(data: &Path) -> Option<i32> {
    let text = fs::read_to_string(data.join("postmaster.pid")).ok()?;
    text.lines().nth(6)?.split_whitespace().nth(1)?.parse().ok()
}

// Whatever its title says, a process of the server works in its data folder. One may start another meanwhile.
fn end_processes(data: &Path) {
    let until = sys::now() + Duration::from_secs(5);
    let Ok(data) = data.canonicalize() else { return };
    loop {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data));
        let pids: Vec<i32> = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        if pids.is_empty() || sys::now() > until {
            return;
        }
        pids.iter().for_each(|&pid| {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        });
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Segment {
    key: i32,
    id: i32,
    creator: i32,
    attached: u64,
    owner: u32,
}

// A header, then a row each: key shmid perms size cpid lpid nattch uid …
fn segments() -> Vec<Segment> {
    let text = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let row = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [key, id, _, _, creator, _, attached, owner, ..] = fields[..] else { return None };
        Some(Segment {
            key: key.parse().ok()?,
            id: id.parse().ok()?,
            creator: creator.parse().ok()?,
            attached: attached.parse().ok()?,
            owner: owner.parse().ok()?,
        })
    };
    text.lines().filter_map(row).collect()
}
