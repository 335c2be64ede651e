//! How much a task that computes is slowed by one beside it.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use xtask::process::affinity::Cpus;

use crate::fixture::misbehave;
use crate::peers::{is_installed, suite};
use crate::progress::Progress;
use crate::table::{Aim, Line, Row, Spread, Unit};
use crate::turns::run;
use crate::world::World;

pub fn measure(progress: &Progress, pairs: usize) -> Vec<Row> {
    let program = misbehave().display().to_string();
    // Each of the four outlasts the 0.5 s, wherever they run: on half of the machine or on all of it.
    let noise = format!("for i in 1 2 3 4; do '{program}' work 700 & done; wait");
    let alone = format!("[task.work]\ncommand = ['{program}', 'work', '500']\ndeadline = \"60s\"\n");
    let beside = format!("{alone}[task.noise]\ncommand = ['sh', '-c', \"{noise}\"]\ndeadline = \"60s\"\n");
    let (quiet, loud) = (World::new(&suite(&alone)), World::new(&suite(&beside)));
    let took = |world: &World| {
        run(&mut world.command(&["verify"]));
        let runs = fs::read_dir(world.repo.join("target/xtask-runs")).expect("runs");
        let logs = runs.map(|run| run.expect("a run").path().join("work.log")).filter(|log| log.is_file());
        millis(&fs::read_to_string(logs.max().expect("a run")).expect("a log"))
    };
    // The same two without the program, each behind these words.
    let bare = |with_noise: bool, [first, second]: [&[&str]; 2]| {
        let start = |before: &[&str], words: &[&str], stdout: Stdio| {
            let words = [before, words].concat();
            Command::new(words[0]).args(&words[1..]).stdout(stdout).process_group(0).spawn().expect("it starts")
        };
        let mut sibling = with_noise.then(|| start(second, &["sh", "-c", &noise], Stdio::null()));
        let out = start(first, &[&program, "work", "500"], Stdio::piped()).wait_with_output().expect("it runs");
        if let Some(sibling) = &mut sibling {
            sibling.wait().expect("it is ours");
        }
        millis(&String::from_utf8_lossy(&out.stdout))
    };
    let cpus = Cpus::of_this_process().map_or_else(Vec::new, |cpus| cpus.pool());
    let numbers: Vec<String> = cpus.iter().map(usize::to_string).collect();
    let taskset = match &numbers[..] {
        [first, second, ..] if is_installed("taskset") => Some([first, second].map(|cpu| ["taskset", "-c", cpu])),
        _ => None,
    };
    let (mut pinned, mut by_hand, mut unpinned) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..pairs {
        progress.round("beside a noisy sibling and alone, pair", pair, pairs);
        pinned.push(took(&loud) / took(&quiet));
        if let Some([first, second]) = &taskset {
            by_hand.push(bare(true, [first, second]) / bare(false, [first, second]));
        }
        unpinned.push(bare(true, [&[], &[]]) / bare(false, [&[], &[]]));
    }
    let row = Row::new("CPU-bound task beside a noisy sibling, over alone", Unit::Times).aim(Aim::Median(1.05));
    // What the machine's CPUs share by themselves.
    let floor = match by_hand.is_empty() {
        true => Line::missing("pinned by taskset", "no taskset or no second CPU"),
        false => Line::new("pinned by taskset", Spread::of(by_hand)),
    };
    vec![row.ours(Spread::of(pinned)).floor(floor).beside([Line::new("not pinned", Spread::of(unpinned))])]
}

fn millis(text: &str) -> f64 {
    text.trim().parse().expect("milliseconds")
}
