//! How cost grows with tasks, receipts, files and the length of a log.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::fixture::misbehave;
use crate::part::many::{floor, floor_folder};
use crate::part::receipt::Tree;
use crate::peers::{suite, suite_of, trues};
use crate::progress::Progress;
use crate::table::{Curve, Row, Unit};
use crate::turns::{Measured, Way, in_turns, rounds as in_rounds, run, run_into, timed};
use crate::world::World;
use xtask::name::TaskName;
use xtask::plan::{Machine, Plan, Planned, Selection, order};
use xtask::suite::Suite;

fn curve(what: &str, of: &'static str, sizes: &[usize], most: usize, mut point: impl FnMut(usize) -> Row) -> Curve {
    let sizes = sizes.iter().copied().filter(|size| *size <= most);
    Curve { what: what.to_owned(), of, points: sizes.map(|size| (size as u64, point(size))).collect() }
}

fn point() -> Row {
    Row::new("", Unit::Ms)
}

/// Ours, then the floor where there is one.
fn beside(measured: &[Measured]) -> Row {
    let floor = measured.get(1).map(Measured::line);
    Row { floor, ..point().ours(measured[0].ms()) }
}

/// What the program itself adds to many tasks: the order, and who goes next.
pub fn simulated(progress: &Progress, most: usize) -> Vec<Curve> {
    let suite = Suite::parse(&suite_of(&trues(1))).expect("a suite");
    let one = Plan::new(&suite, &Selection::default(), &Machine { cpus: 2, usual: BTreeMap::new() }).expect("a plan");
    let what = "order and simulated run of tasks whose usual durations are known";
    vec![curve(what, "task", &[1, 10, 100, 1_000, 10_000], most, |count| {
        let task = |i: usize| Planned {
            name: TaskName::parse(&format!("t{i}")).expect("a name"),
            needs: if i > 0 { vec![i / 2] } else { Vec::new() },
            slots: 1 + i % 2,
            usual: Some(std::time::Duration::from_millis(1 + i as u64 % 50)),
            ..one.tasks[0].clone()
        };
        let plan = Plan { tasks: (0..count).map(task).collect(), ..one.clone() };
        let length = |task: usize| plan.tasks[task].usual.expect("known");
        let rounds = if count < 1_000 { 9 } else { 3 };
        let once = || timed(|| _ = order::makespan(&plan, length));
        point().ours(in_rounds(progress, &format!("{count} tasks simulated"), rounds, once))
    })]
}

pub fn tasks(progress: &Progress, most: usize) -> Vec<Curve> {
    // A receipt of more would be longer than a gate reads.
    const LIMIT: usize = 1_000;
    let what = "`verify` of tasks `true` on 2 slots, both snapshots included";
    vec![curve(what, "task", &[1, 10, 100, 1_000, 10_000], most, |count| {
        if count > LIMIT {
            return point().unmeasured(&format!("a suite has {LIMIT} tasks at most"));
        }
        let world = World::new(&suite_of(&trues(count)));
        let logs = floor_folder(world.folder.path());
        let ways = vec![
            Way::command("verify", || world.command(&["verify"])),
            Way::here("group and log file each, receipt", || floor(&logs, count)),
        ];
        beside(&in_turns(progress, if count < 1_000 { 5 } else { 3 }, ways))
    })]
}

pub fn receipts(progress: &Progress, most: usize) -> Vec<Curve> {
    let world = World::new(&suite_of(&trues(20)));
    run(&mut world.command(&["verify"]));
    let folder = world.repo.join("receipts");
    let first = fs::read(world.receipts().first().expect("a receipt")).expect("readable");
    let mut there = 1;
    let what = "`plan`, which reads the usual durations from receipts of 20 tasks";
    vec![curve(what, "receipt", &[1, 10, 100, 1_000, 10_000], most, |count| {
        while there < count {
            there += 1;
            let second = there % 60;
            let name = format!("r-20200101-{:02}{:02}{second:02}-{there:08x}.json", there / 3600 % 24, there / 60 % 60);
            fs::write(folder.join(name), &first).expect("written");
        }
        let ways = vec![Way::command("plan", || world.command(&["plan"]))];
        beside(&in_turns(progress, 9, ways))
    })]
}

pub fn tree(progress: &Progress, most: usize) -> Vec<Curve> {
    let mut tree = Tree::new();
    let what = "one snapshot of a tree, files of 200 to 12,000 bytes";
    vec![curve(what, "file", &[100, 1_000, 10_000, 100_000], most, |count| {
        tree.grow(progress, count);
        let rounds = if count < 100_000 { 5 } else { 3 };
        point().ours(in_rounds(progress, &format!("snapshot of {count} files"), rounds, || tree.snapshot()))
    })]
}

pub fn log(progress: &Progress, most: usize) -> Vec<Curve> {
    vec![curve("a log by a task of `verify`", "megabyte", &[1, 10, 100, 1_000, 2_000], most, |megabytes| {
        let bytes = (megabytes as u64 * 1_000_000).to_string();
        let command = format!("{} flood {bytes}", misbehave().display());
        let table = format!("[task.a]\ncommand = {command:?}\ndeadline = \"5m\"\nlog-limit = \"4GiB\"");
        let world = World::new(&suite(&table));
        let file = world.folder.path().join("direct");
        let ways = vec![
            Way::new("verify", || {
                let cost = run(&mut world.command(&["verify"]));
                // One at a time: gigabytes stay nowhere.
                let _ = fs::remove_dir_all(world.repo.join("target/xtask-runs"));
                cost
            }),
            Way::new("to a file directly", || {
                let cost = run_into(&file, Command::new(misbehave()).args(["flood", &bytes]));
                let _ = fs::remove_file(&file);
                cost
            }),
        ];
        beside(&in_turns(progress, if megabytes < 1_000 { 5 } else { 3 }, ways))
    })]
}
