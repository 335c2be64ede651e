//! SIGKILL to any process of a run, at a random moment of the start, use or stop of its server: nothing may be left.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::postgres::{Segment, processes_in, segments};
use crate::world::{Running, World, rules_the_server, skipped, until};

/// The loop keeps its server's process too busy to notice that the server is gone, for ever where BUSY says so.
const SUITE: &str = r#"
schema = 1
[run]
deadline = "3m"
queue = "2m"
[service.postgres]
start = "60s"
setup = ["psql", "-c", "create table t as select generate_series(1, 1000) x"]
[task.use]
command = ["sh", "-c", "psql -c \"select count(*), pg_sleep(0.1) from t; do 'begin for i in 1..${BUSY:-100000} loop perform 1; end loop; end'; create table u as select * from t\""]
services = ["postgres"]
deadline = "1m"
"#;

/// A repository to be used by many rounds.
pub fn world() -> World {
    World::new(SUITE)
}

#[derive(Debug, Clone, Copy)]
enum Victim {
    Keeper,
    KeepersGroup,
    Runner,
    Host,
    Postmaster,
    KeeperAndRunner,
    Everybody,
}

const VICTIMS: [Victim; 7] = [
    Victim::Keeper,
    Victim::KeepersGroup,
    Victim::Runner,
    Victim::Host,
    Victim::Postmaster,
    Victim::KeeperAndRunner,
    Victim::Everybody,
];

/// What a round met, for people.
#[derive(Debug)]
pub struct Round {
    pub victim: String,
    /// Whether the victim was there.
    pub struck: bool,
    /// Whether a server ran at that moment.
    pub running: bool,
}

/// One run in which somebody is killed; then everything must be gone. `cold`: the cluster has to be made first.
pub fn round(world: &World, seed: u64, cold: bool) -> Round {
    let mut dice = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut throw = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let victim = VICTIMS[(seed % VICTIMS.len() as u64) as usize];
    // A moment of the start, from the first one on, once the host or the server's process is there, of the use, or of the
    // stop.
    let first = match victim {
        Victim::Everybody => 3,
        Victim::Postmaster => 2,
        Victim::Host => 1 + throw(2),
        _ => throw(3),
    };
    let after = Duration::from_millis(throw(if cold { 1000 } else { 400 }));
    let before = segments();
    let cache = world.folder.path().join(format!("cold-{seed}"));
    let dressed = |arguments: &[&str]| {
        let mut command = world.command(arguments);
        if cold {
            command.env("XDG_CACHE_HOME", &cache);
        }
        command
    };
    let mut command = dressed(&["verify"]);
    command.process_group(0);
    if matches!(victim, Victim::Everybody) {
        command.env("BUSY", "2000000000");
    }
    let mut run = Running::start(command, &world.folder);
    let keeper = run.pid();
    let runner_now = || child(keeper, &["internal-runner"]);
    let host_now = || child(runner_now()?, &["internal-service"]);
    // Not the one that is asked for its version.
    let postmaster_now = || child(host_now()?, &["postgres", "-D"]);
    let busy_now = || processes_in(&world.scratch()).iter().any(|process| process.contains("[local] DO"));
    until("a moment to kill", || {
        let there = match first {
            0 => true,
            1 => host_now().is_some(),
            2 => postmaster_now().is_some(),
            _ => busy_now(),
        };
        there || run.child.try_wait().expect("the program can be waited for").is_some()
    });
    std::thread::sleep(after);
    let (runner, host, postmaster) = (runner_now(), host_now(), postmaster_now());
    let strike = |pid: Option<i32>| pid.is_some_and(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok());
    let struck = match victim {
        Victim::Keeper => strike(Some(keeper)),
        Victim::KeepersGroup => killpg(Pid::from_raw(keeper), Signal::SIGKILL).is_ok(),
        Victim::Runner => strike(runner),
        Victim::Host => strike(host),
        Victim::Postmaster => strike(postmaster),
        Victim::KeeperAndRunner => strike(Some(keeper)) & strike(runner),
        // From below, so that none of them can end the next one.
        Victim::Everybody => [postmaster, host, runner, Some(keeper)].map(strike) == [true; 4],
    };
    let what = format!("seed {seed}: {victim:?} {after:?} after {first}, struck: {struck}, server {postmaster:?}");
    let done = run.wait();
    if matches!(victim, Victim::KeeperAndRunner | Victim::Everybody) {
        // Nobody of the run is left: the next one of this user cleans up.
        Running::start(dressed(&["verify"]), &world.folder).wait().expect(0);
    }
    until(&format!("all processes to go; {what}; {}", done.err), || world.processes().is_empty());
    until(&format!("the server to go; {what}"), || processes_in(&world.scratch()).is_empty());
    until(&format!("the folder to go; {what}; {}", done.err), || run_folders(world).is_empty());
    let left = || -> Vec<Segment> {
        segments()
            .into_iter()
            .filter(|segment| segment.is_left() && !before.iter().any(|b| b.id == segment.id))
            .collect()
    };
    until(&format!("segments to go: {:?}; {what}", left()), || left().is_empty());
    Round { victim: format!("{victim:?}"), struck, running: struck && postmaster.is_some() }
}

// The folders of this world's runs: nobody else makes any there.
fn run_folders(world: &World) -> Vec<PathBuf> {
    let bases = fs::read_dir(world.scratch()).unwrap().map(|base| base.unwrap().path());
    bases.flat_map(|base| fs::read_dir(base).unwrap().map(|entry| entry.unwrap().path())).collect()
}

/// The child of a process that has all these words, or the ends of them, in its command line.
fn child(parent: i32, words: &[&str]) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<i32> =
        lists.flat_map(|list| list.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<_>>()).collect();
    pids.into_iter().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let has = |word: &&str| line.split(|&b| b == 0).any(|arg| String::from_utf8_lossy(arg).ends_with(*word));
        words.iter().all(has)
    })
}

#[test]
fn nothing_is_left_whoever_is_killed_and_the_next_run_works() {
    if !rules_the_server() {
        return skipped(
            "nothing_is_left_whoever_is_killed_and_the_next_run_works",
            "root may not look into the server's processes here, nor take its segments away",
        );
    }
    let world = world();
    let mut rounds = Vec::new();
    for seed in 0..21 {
        rounds.push(round(&world, seed, false));
        if seed % 5 == 4 {
            world.run(&["verify"]).expect(0);
        }
    }
    let met: Vec<&str> = rounds.iter().filter(|round| round.running).map(|round| round.victim.as_str()).collect();
    let times = |victim: &str| met.iter().filter(|met| **met == victim).count();
    assert!(times("Postmaster") >= 2 && times("Everybody") >= 2, "only these met a server: {met:?}");
    assert!(rounds.iter().filter(|round| round.struck).count() >= 14, "{rounds:?}");
}

#[test]
fn nothing_is_left_whoever_is_killed_while_the_cluster_is_made() {
    if !rules_the_server() {
        return skipped(
            "nothing_is_left_whoever_is_killed_while_the_cluster_is_made",
            "root may not look into the server's processes here, nor take its segments away",
        );
    }
    let world = world();
    (0..7).for_each(|seed| drop(round(&world, seed, true)));
}
