//! What a server leaves when it is killed: processes that have overwritten their environment, and a segment of System
//! V shared memory that outlives them all.

use std::fs::{self, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::process::table::Process;
use crate::sys;

/// How many numbers the server tries when the key of its segment is taken.
const KEYS: i32 = 16;

/// In a service's folder: the cluster of the server.
pub const DATA: &str = "data";

/// In a service's folder: the cluster that `initdb` is making. It starts servers too.
pub const BUILD: &str = "build";

/// Ends every process of the server whose folder is `folder`, and of an `initdb` before it, and removes their segments.
/// Files stay. Does nothing where no server was.
pub fn sweep(folder: &Path) {
    for cluster in [DATA, BUILD] {
        // A link leads to what is not ours.
        if let Ok(meta) = folder.join(cluster).symlink_metadata()
            && meta.is_dir()
        {
            end_processes(&meta);
            remove_segments(&meta);
        }
    }
}

fn remove_segments(data: &Metadata) {
    // The key is the number of the data folder's inode, or one of the next if that is taken (since version 13).
    let first = data.ino() as i32;
    for segment in segments() {
        let is_ours = (0..KEYS).any(|step| first.wrapping_add(step) == segment.key);
        // Where a process works is not to be seen from its last steps in exit on, before it is a zombie; and a zombie may
        // stay for long: nobody has to reap what was left to process 1.
        let dead = segment.attached == 0 && Process::read(segment.creator).is_none_or(|creator| creator.exiting);
        if is_ours && dead && segment.owner == data.uid() {
            let _ = sys::remove_shared_segment(segment.id);
        }
    }
}

/// Marks the segments of the running server, process `server` of the user `owner`, to go with the last process that uses
/// them. The server never needs to find one again: it only guards against a second server on the same folder. Its own
/// notes of them are not asked: who can write to the server's files would choose what is removed.
pub fn forget_segments(server: i32, owner: u32) {
    for segment in segments().iter().filter(|segment| segment.creator == server && segment.owner == owner) {
        let _ = sys::remove_shared_segment(segment.id);
    }
}

/// The beginning of a file that the server's user may have replaced by anything; empty if it cannot be read.
pub fn read_small(path: &Path) -> String {
    let mut text = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let _ = file.and_then(|file| file.take(4096).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

// Whatever its title says, a process of the server works in its data folder. One may start another meanwhile.
fn end_processes(data: &Metadata) {
    let until = sys::now() + Duration::from_secs(5);
    let mut looks = 0;
    let works_there = |pid: i32| {
        let cwd = fs::metadata(format!("/proc/{pid}/cwd"));
        cwd.is_ok_and(|cwd| (cwd.dev(), cwd.ino()) == (data.dev(), data.ino()))
    };
    loop {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let pids: Vec<i32> = pids.filter(|&pid| works_there(pid)).collect();
        pids.iter().for_each(|&pid| drop(sys::kill_exactly(pid, || works_there(pid))));
        // A machine that stands still takes time, and no look.
        if pids.is_empty() || (looks > 100 && sys::now() > until) {
            return;
        }
        looks += 1;
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
