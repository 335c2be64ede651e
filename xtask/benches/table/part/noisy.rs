//! How much a task that computes is slowed by one beside it.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use crate::fixture::misbehave;
use crate::peers::suite;
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
    // The same two without anybody who pins them.
    let bare = |with_noise: bool| {
        let mut sibling = with_noise.then(|| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &noise]).stdout(Stdio::null()).process_group(0).spawn().expect("it starts")
        });
        let out = Command::new(&program).args(["work", "500"]).output().expect("it runs");
        if let Some(sibling) = &mut sibling {
            sibling.wait().expect("it is ours");
        }
        millis(&String::from_utf8_lossy(&out.stdout))
    };
    let (mut pinned, mut unpinned) = (Vec::new(), Vec::new());
    for pair in 0..pairs {
        progress.round("beside a noisy sibling and alone, pair", pair, pairs);
        pinned.push(took(&loud) / took(&quiet));
        unpinned.push(bare(true) / bare(false));
    }
    let row = Row::new("CPU-bound task beside a noisy sibling, over alone", Unit::Times).aim(Aim::Median(1.05));
    vec![row.ours(Spread::of(pinned)).beside([Line::new("side by side, not pinned", Spread::of(unpinned))])]
}

fn millis(text: &str) -> f64 {
    text.trim().parse().expect("milliseconds")
}
