//! What the program adds to many tasks that do nothing.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::peers::{empty_tests, nextest_way, suite_of, trues, way, write_files};
use crate::progress::Progress;
use crate::table::{Aim, Row, Unit};
use crate::turns::{Way, ended, in_turns};
use crate::world::World;

const COUNT: usize = 200;

pub fn measure(progress: &Progress, rounds: usize) -> Vec<Row> {
    let jobs = trues(COUNT);
    let world = World::new(&suite_of(&jobs));
    let folder = world.folder.path();
    write_files(folder, &jobs);
    let logs = floor_folder(folder);
    let ways = vec![
        Way::here("group and log file each, receipt", || floor(&logs, COUNT)),
        Way::command("verify", || world.command(&["verify"])),
        way("make -j2", "make", folder),
        way("ninja -j2", "ninja", folder),
        way("just, one at a time", "just", folder),
        nextest_way("cargo nextest, 200 tests", folder, &empty_tests(COUNT)),
    ];
    let all = in_turns(progress, rounds, ways);
    let row = Row::new("200 tasks `true` on 2 slots, whole `verify`", Unit::Ms).aim(Aim::OfFloor(1.2));
    vec![row.ours(all[1].ms()).floor(all[0].line()).beside(all[2..].iter().map(|way| way.line()))]
}

/// Where `floor` writes.
pub fn floor_folder(folder: &Path) -> std::path::PathBuf {
    let logs = folder.join("logs");
    std::fs::create_dir_all(&logs).expect("a folder");
    logs
}

/// The least that does the same: two at a time, each in a group of its own with a new log file of its own, then a receipt.
pub fn floor(logs: &Path, count: usize) {
    // A run makes its logs anew, in a folder of its own. Where many files were just removed, that takes some file systems
    // (ext4 without a journal) a millisecond each; to write over old ones takes nothing.
    let round = std::fs::read_dir(logs).expect("a folder").count();
    let logs = logs.join(round.to_string());
    std::fs::create_dir(&logs).expect("a folder");
    let mut running: Vec<Child> = Vec::new();
    for i in 0..count {
        if running.len() == 2 {
            let pid = ended(None).pid;
            running.retain_mut(|child| child.id().cast_signed() != pid || child.wait().is_err());
        }
        let log = File::create(logs.join(format!("{i}.log"))).expect("a log");
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a copy")).stdout(log).process_group(0);
        running.push(command.spawn().expect("it starts"));
    }
    running.iter_mut().for_each(|child| drop(child.wait()));
    let mut receipt = File::create(logs.join("receipt")).expect("a receipt");
    receipt.write_all(&vec![b' '; count * 400]).and_then(|()| receipt.sync_all()).expect("written");
}
