//! How cost grows: with tasks, receipts, files and the length of a log. Every row says what one more costs, so that a
//! curve that bends shows.
//!
//!     cargo bench --bench growth --profile xtask              everything
//!     cargo bench --bench growth --profile xtask -- tree      one part of it
//!     (parts: order, tasks, receipts, tree, log)

#![allow(clippy::unwrap_used, reason = "in a bench a panic is the message")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../tests/built/process/fixture.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod fixture;
#[path = "../tests/built/world.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod world;

use fixture::misbehave;
use world::{Folder, World};
use xtask::name::TaskName;
use xtask::plan::{Machine, Plan, Planned, Selection, order};
use xtask::repo::Repo;
use xtask::suite::Suite;
use xtask::sys;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let part = args.first().map_or("", String::as_str);
    let parts: [(&str, &dyn Fn()); 5] =
        [("order", &order_of), ("tasks", &tasks), ("receipts", &receipts), ("tree", &tree), ("log", &log)];
    for (_, run) in parts.iter().filter(|(name, _)| part.is_empty() || part == *name) {
        run();
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("stdout");
}

/// A curve: what it was before, at how many units.
struct Curve {
    before: Option<(f64, Duration)>,
}

impl Curve {
    fn new(title: &str, unit: &str) -> Self {
        say(&format!(
            "\n{title}\n  {:>12}  median ms       min       max   us for one more {unit}",
            format!("{unit}s")
        ));
        Self { before: None }
    }

    /// Measures so many times; the point is at `size` units.
    fn point(&mut self, size: f64, rounds: usize, mut once: impl FnMut() -> Duration) {
        let mut took: Vec<Duration> = (0..rounds).map(|_| once()).collect();
        took.sort_unstable();
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        let median = took[rounds / 2];
        let slope = self.before.map_or(String::new(), |(before, then)| {
            format!("{:10.1}", (ms(median) - ms(then)) * 1e3 / (size - before))
        });
        self.before = Some((size, median));
        say(&format!("  {size:>12}{:>11.1}{:>10.1}{:>10.1}   {slope}", ms(median), ms(took[0]), ms(took[rounds - 1])));
    }
}

fn timed(once: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    once();
    begun.elapsed()
}

fn quiet(command: &mut Command) {
    let done = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it starts");
    assert!(done.success(), "{command:?} failed");
}

fn suite(tasks: &str) -> String {
    let run =
        "deadline = \"12h\"\nqueue = \"1m\"\nmargin = \"1m\"\nstop-grace = \"500ms\"\nwrap-up = \"10s\"\ncpus = 2";
    format!("schema = 1\n[run]\n{run}\n[defaults]\ndeadline = \"4s\"\n{tasks}\n")
}

fn trues(count: usize) -> String {
    suite(&(0..count).map(|i| format!("[task.t{i}]\ncommand = 'true'\n")).collect::<String>())
}

// What the program itself adds to many tasks: the order, and who goes next. (A suite has 1,000 at most.)
fn order_of() {
    let mut curve = Curve::new("order and simulated run of a tree of tasks whose usual durations are known", "task");
    let suite = Suite::parse(&trues(1)).expect("a suite");
    let one = Plan::new(&suite, &Selection::default(), &Machine { cpus: 2, usual: BTreeMap::new() }).expect("a plan");
    for count in [1, 10, 100, 1_000, 10_000] {
        let task = |i: usize| Planned {
            name: TaskName::parse(&format!("t{i}")).expect("a name"),
            needs: if i > 0 { vec![i / 2] } else { Vec::new() },
            slots: 1 + i % 2,
            usual: Some(Duration::from_millis(1 + i as u64 % 50)),
            ..one.tasks[0].clone()
        };
        let plan = Plan { tasks: (0..count).map(task).collect(), ..one.clone() };
        let length = |task: usize| plan.tasks[task].usual.expect("known");
        curve.point(count as f64, if count < 1_000 { 9 } else { 3 }, || timed(|| _ = order::makespan(&plan, length)));
    }
}

fn tasks() {
    let mut curve = Curve::new("verify of so many tasks `true` on 2 slots, both snapshots included", "task");
    for count in [1, 10, 100, 1_000] {
        let world = World::new(&trues(count));
        curve.point(count as f64, if count < 1_000 { 5 } else { 1 }, || {
            timed(|| quiet(&mut world.command(&["verify"])))
        });
    }
}

fn receipts() {
    let mut curve = Curve::new("plan, which reads the usual durations from receipts of 20 tasks", "receipt");
    let world = World::new(&trues(20));
    quiet(&mut world.command(&["verify"]));
    let folder = world.repo.join("receipts");
    let first = fs::read(world.receipts().first().expect("a receipt")).expect("readable");
    let mut there = 1;
    for count in [1, 10, 100, 1_000, 10_000] {
        while there < count {
            there += 1;
            let second = there % 60;
            let name = format!("r-20200101-{:02}{:02}{second:02}-{there:08x}.json", there / 3600 % 24, there / 60 % 60);
            fs::write(folder.join(name), &first).expect("written");
        }
        curve.point(count as f64, 9, || timed(|| quiet(&mut world.command(&["plan"]))));
    }
}

fn tree() {
    let mut curve = Curve::new("one snapshot of a tree, files of 200 to 12,000 bytes", "file");
    let world = World::new(&trues(1));
    let mut there = 0;
    for count in [100, 1_000, 10_000, 100_000] {
        while there < count {
            let text = format!("{there}\n").repeat(40 + there * 7919 % 2000);
            world.write(&format!("d{}/s{}/f{there}", there % 20, there % 400), &text);
            there += 1;
        }
        world.commit("more");
        let repo = Repo::find(&world.repo).expect("a repository");
        curve.point(count as f64, if count < 100_000 { 5 } else { 3 }, || {
            let scratch = Folder::new();
            let limit = sys::now() + Duration::from_secs(600);
            timed(|| assert!(repo.snapshot(scratch.path(), limit, &|| false).expect("a snapshot").clean()))
        });
    }
}

fn log() {
    for direct in [true, false] {
        let how = if direct { "the floor: to a file directly" } else { "by a task of verify" };
        let mut curve = Curve::new(&format!("so many megabytes printed, {how}"), "megabyte");
        for megabytes in [1_u64, 10, 100, 1_000, 2_000] {
            let bytes = (megabytes * 1_000_000).to_string();
            let command = format!("{} flood {bytes}", misbehave().display());
            let table = format!("[task.a]\ncommand = {command:?}\ndeadline = \"5m\"\nlog-limit = \"4GiB\"");
            let world = World::new(&suite(&table));
            let file = world.folder.path().join("direct");
            curve.point(megabytes as f64, if megabytes < 1_000 { 5 } else { 3 }, || {
                let took = match direct {
                    false => timed(|| quiet(&mut world.command(&["verify"]))),
                    true => timed(|| {
                        let out = File::create(&file).expect("a file");
                        let mut command = Command::new(misbehave());
                        assert!(command.args(["flood", &bytes]).stdout(out).status().expect("it starts").success());
                    }),
                };
                // One at a time: gigabytes stay nowhere.
                let _ = fs::remove_dir_all(world.repo.join("target/xtask-runs"));
                let _ = fs::remove_file(&file);
                took
            });
        }
    }
}
