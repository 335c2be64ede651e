//! How long after its deadline and its grace a task that will not end is gone, and what is left of it then.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::{misbehave, token};
use crate::peers::{is_installed, nextest, suite};
use crate::progress::Progress;
use crate::table::{Aim, Line, Row, Spread, Unit};
use crate::turns::ms;
use crate::world::{Folder, World, processes_with};
use xtask::sys;
use xtask::time::Moment;

// Seven processes, deaf to all but SIGKILL, some in sessions of their own.
const DEAF: &str =
    "deaf fork hang end fork session hang end fork session fork hang end hang end fork session leave hang end hang";
const DEADLINE_AND_GRACE: Duration = Duration::from_millis(1500);

pub fn measure(progress: &Progress, rounds: usize) -> Vec<Row> {
    let orders: Vec<&str> = DEAF.split(' ').collect();
    let ours = watched(progress, "xtask", rounds, &mut |token| {
        let words: Vec<String> = orders.iter().chain([&token]).map(|word| format!("{word:?}")).collect();
        let command = format!("[\"{}\", {}]", misbehave().display(), words.join(", "));
        let world = World::new(&suite(&format!("[task.bad]\ncommand = {command}\ndeadline = \"1s\"")));
        (world.command(&["verify"]), Start::InReceipt(world))
    });
    let timeout = is_installed("timeout").then(|| {
        watched(progress, "timeout", rounds, &mut |token| {
            let mut command = Command::new("timeout");
            command.args(["-k", "0.5", "1"]).arg(misbehave()).args(&orders).arg(token).process_group(0);
            (command, Start::AtOnce)
        })
    });
    let folder = Folder::new();
    let test = format!(
        "#[test]\nfn deaf() {{\n    use std::os::unix::process::CommandExt;\n    let token = std::env::var(\"BENCH_TOKEN\").unwrap();\n    \
         panic!(\"{{}}\", std::process::Command::new({:?}).args({orders:?}).arg(token).exec());\n}}\n",
        misbehave().display().to_string()
    );
    let config =
        "[profile.default]\nslow-timeout = { period = \"1s\", terminate-after = 1, grace-period = \"500ms\" }\n";
    let nextest = nextest(folder.path(), &test, config).map(|make| {
        watched(progress, "nextest", rounds, &mut |token| {
            let mut command = make();
            command.env("BENCH_TOKEN", token).process_group(0);
            (command, Start::WhenSeen)
        })
    });
    let peers = [("timeout -k 0.5 1", &timeout), ("cargo nextest, slow-timeout", &nextest)];
    let lines = |what: fn(&Watched) -> Spread| {
        peers.map(|(name, found)| match found {
            Some(found) => Line::new(name, what(found)),
            None => Line::missing(name, "not installed"),
        })
    };
    vec![
        Row::new("a task that ignores TERM, gone past deadline and grace", Unit::Ms)
            .aim(Aim::Median(30.0))
            .ours(ours.over)
            .beside(lines(|found| found.over)),
        Row::new(&format!("its seven processes: survivors in {rounds} runs"), Unit::Count)
            .aim(Aim::Median(0.0))
            .ours(Spread::one(ours.left))
            .beside(lines(|found| Spread::one(found.left))),
    ]
}

/// When the deadline began to count.
enum Start {
    AtOnce,
    /// When the first process of the task was seen.
    WhenSeen,
    InReceipt(World),
}

struct Watched {
    over: Spread,
    left: f64,
}

fn watched(progress: &Progress, name: &str, rounds: usize, make: &mut dyn FnMut(&str) -> (Command, Start)) -> Watched {
    let (mut over, mut left) = (Vec::new(), 0);
    for round in 0..rounds {
        progress.round(&format!("deaf task, {name}"), round, rounds);
        let token = token();
        let (mut command, start) = make(&token);
        let (begun, begun_at) = (Instant::now(), sys::now());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        // To the first look that sees nothing any more, or to the end of who watches.
        let watcher = child.id().cast_signed();
        let seen = || processes_with(&token).iter().any(|&pid| pid != watcher);
        while !seen() {
            assert!(begun.elapsed().as_secs() < 60, "{name} starts nothing");
        }
        let seen_at = sys::now();
        while seen() && child.try_wait().expect("it is ours").is_none() {}
        let gone = sys::now();
        child.wait().expect("it is ours");
        let started = match start {
            Start::AtOnce => begun_at,
            Start::WhenSeen => seen_at,
            Start::InReceipt(world) => started(&world),
        };
        over.push(gone.since(started + DEADLINE_AND_GRACE));
        let survivors = processes_with(&token);
        left += survivors.len();
        for pid in survivors {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    Watched { over: ms(over), left: left as f64 }
}

fn started(world: &World) -> Moment {
    let receipt = fs::read(world.receipts().last().expect("a receipt")).expect("a receipt");
    let receipt: serde_json::Value = serde_json::from_slice(&receipt).expect("a receipt is JSON");
    let millis = receipt["predicate"]["tasks"][0]["started_ms"].as_u64().expect("a start");
    Moment::from_nanos(millis * 1_000_000)
}
