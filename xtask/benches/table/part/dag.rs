//! How near the order of tasks comes to what no order can beat.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::peers::{Job, suite, suite_of, way, write_files};
use crate::progress::Progress;
use crate::table::{Aim, Line, Row, Spread, Unit};
use crate::turns::{Way, in_turns, rounds as in_rounds, run};
use crate::world::World;

// Of the 40 tasks on two slots, by their weights and with a weight of 1 each: milliseconds.
const BOUND: f64 = 4310.0;
const BOUND_UNWEIGHTED: f64 = 3400.0;

pub fn measure(progress: &Progress, rounds: usize) -> Vec<Row> {
    vec![weighted(progress, rounds), unweighted(progress, rounds)]
}

fn tasks() -> Vec<(Job, Value)> {
    let tasks: Vec<Value> = serde_json::from_str(include_str!("../../dag.json")).expect("dag.json");
    let word = |value: &Value| value.as_str().expect("a text").to_owned();
    let job = |task: Value| {
        let needs = task["needs"].as_array().expect("needs").iter().map(word).collect();
        (Job { name: word(&task["name"]), command: word(&task["cmd"]), needs }, task["cpus"].clone())
    };
    tasks.into_iter().map(job).collect()
}

fn weighted(progress: &Progress, rounds: usize) -> Row {
    let table = |(job, cpus): &(Job, Value)| {
        format!("[task.{}]\ncommand = {:?}\nneeds = {:?}\ncpus = {cpus}\n", job.name, job.command, job.needs)
    };
    let world = World::new(&suite(&tasks().iter().map(table).collect::<String>()));
    let once = || {
        run(&mut world.command(&["verify"]));
        makespan(world.receipts().last().expect("a receipt"))
    };
    progress.step("weighted DAG, the first run");
    let first = once();
    let known = in_rounds(progress, "weighted DAG, durations known", rounds, once);
    Row::new("makespan, 40 weighted tasks on 2 slots, durations known", Unit::Ms)
        .aim(Aim::OfFloor(1.05))
        .ours(known)
        .floor(Line::new("what no order can beat", Spread::one(BOUND)))
        .beside([Line::new("xtask, first run: durations unknown", Spread::one(first.as_secs_f64() * 1e3))])
}

// The peers know no weights.
fn unweighted(progress: &Progress, rounds: usize) -> Row {
    let jobs: Vec<Job> = tasks().into_iter().map(|(job, _)| job).collect();
    let world = World::new(&suite_of(&jobs));
    let folder = world.folder.path();
    write_files(folder, &jobs);
    progress.step("DAG without weights, the first run");
    run(&mut world.command(&["verify"]));
    let ways = vec![
        Way::command("verify", || world.command(&["verify"])),
        way("make -j2", "make", folder),
        way("ninja -j2", "ninja", folder),
    ];
    let all = in_turns(progress, rounds, ways);
    Row::new("the same 40 tasks without weights, whole command", Unit::Ms)
        .ours(all[0].ms())
        .floor(Line::new("what no order can beat", Spread::one(BOUND_UNWEIGHTED)))
        .beside(all[1..].iter().map(|way| way.line()))
}

// From the first start to the last end.
fn makespan(receipt: &Path) -> std::time::Duration {
    let receipt: Value = serde_json::from_slice(&fs::read(receipt).expect("a receipt")).expect("a receipt is JSON");
    let tasks = receipt["predicate"]["tasks"].as_array().expect("tasks").clone();
    let times = tasks.iter().map(|task| {
        let start = task["started_ms"].as_u64().expect("a start");
        (start, start + task["took_ms"].as_u64().expect("a length"))
    });
    let (first, last) = times.fold((u64::MAX, 0), |(a, b), (start, end)| (a.min(start), b.max(end)));
    std::time::Duration::from_millis(last - first)
}
