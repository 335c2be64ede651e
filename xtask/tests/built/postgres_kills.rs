//! SIGKILL to any process of a run, at a random moment of the start, use or stop of its server: nothing may be left.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::world::{Running, World, until};

const SUITE: &str = r#"
schema = 1
[run]
deadline = "3m"
queue = "2m"
[service.postgres]
start = "60s"
setup = ["psql", "-c", "create table t as select generate_series(1, 1000) x"]
[task.use]
command = ["psql", "-c", "select count(*), pg_sleep(0.2) from t; create table u as select * from t"]
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
}

const VICTIMS: [Victim; 6] =
    [Victim::Keeper, Victim::KeepersGroup, Victim::Runner, Victim::Host, Victim::Postmaster, Victim::KeeperAndRunner];

/// One run in which somebody is killed; then everything must be gone. What was done, for people.
pub fn round(world: &World, seed: u64) -> String {
    let mut dice = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let mut throw = |sides: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % sides
    };
    let victim = VICTIMS[throw(VICTIMS.len() as u64) as usize];
    // A moment of the start, from the first one on or once the server's process is there, of the use, or of the stop.
    let seen_first = match victim {
        Victim::Postmaster => 2,
        Victim::Host => 1,
        _ => throw(3) as usize,
    };
    let after = Duration::from_millis(throw(500));
    let mut command = world.command(&["verify"]);
    command.process_group(0);
    let mut run = Running::start(command, &world.folder);
    let keeper = run.pid();
    let runner_now = || child(keeper, "internal-runner");
    let host_now = || child(runner_now()?, "internal-service");
    let postmaster_now = || child(host_now()?, "postgres");
    until("a moment to kill", || {
        let there = [true, host_now().is_some(), postmaster_now().is_some()][seen_first];
        there || run.child.try_wait().expect("the program can be waited for").is_some()
    });
    std::thread::sleep(after);
    let (runner, host, postmaster) = (runner_now(), host_now(), postmaster_now());
    let mark = runner.and_then(run_of);
    let segments = postmaster.map(crate::postgres::segments_of).unwrap_or_default();
    let strike = |pid: Option<i32>| pid.is_some_and(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok());
    let struck = match victim {
        Victim::Keeper => strike(Some(keeper)),
        Victim::KeepersGroup => killpg(Pid::from_raw(keeper), Signal::SIGKILL).is_ok(),
        Victim::Runner => strike(runner),
        Victim::Host => strike(host),
        Victim::Postmaster => strike(postmaster),
        Victim::KeeperAndRunner => strike(Some(keeper)) & strike(runner),
    };
    let what = format!(
        "seed {seed}: {victim:?} {after:?} after {seen_first}, struck: {struck}, run {mark:?}, server {postmaster:?}"
    );
    let done = run.wait();
    let Some(mark) = mark else { return what };
    if matches!(victim, Victim::KeeperAndRunner) {
        // Nobody of the run is left: the next one of this user cleans up.
        world.run(&["verify"]).expect(0);
    }
    until(&format!("all processes to go; {what}; {}", done.err), || marked(&mark).is_empty());
    let folder = scratch(&mark);
    until(&format!("the server to go; {what}"), || crate::postgres::processes_in(&folder).is_empty());
    until(&format!("the folder to go; {what}; {}", done.err), || !folder.exists());
    if let Some(postmaster) = postmaster {
        assert_eq!(crate::postgres::segments_of(postmaster), Vec::<String>::new(), "{what}; before: {segments:?}");
    }
    what
}

fn scratch(run: &str) -> PathBuf {
    let user = format!("xtask-{}", nix::unistd::Uid::effective());
    let bases = [PathBuf::from("/dev/shm"), std::env::temp_dir()].map(|base| base.join(&user).join(run));
    bases.iter().find(|path| path.exists()).unwrap_or(&bases[0]).clone()
}

/// The child of a process with this among the first words of its command line.
fn child(parent: i32, word: &str) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).ok()?.flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<i32> =
        lists.flat_map(|list| list.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<_>>()).collect();
    pids.into_iter().find(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&b| b == 0).take(2).any(|arg| String::from_utf8_lossy(arg).ends_with(word))
    })
}

fn environ(pid: &str) -> Vec<u8> {
    fs::read(Path::new("/proc").join(pid).join("environ")).unwrap_or_default()
}

fn run_of(pid: i32) -> Option<String> {
    let environ = environ(&pid.to_string());
    let mark = environ.split(|&b| b == 0).find_map(|variable| variable.strip_prefix(b"XTASK_MARK="))?;
    let mark = String::from_utf8_lossy(mark).into_owned();
    mark.rsplit(':').next()?.split('/').next().map(str::to_owned)
}

/// Processes with the mark of that run.
fn marked(run: &str) -> Vec<String> {
    let pids = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let carries = |pid: &String| environ(pid).windows(run.len()).any(|window| window == run.as_bytes());
    pids.filter(|pid| pid.bytes().all(|b| b.is_ascii_digit())).filter(carries).collect()
}

#[test]
fn nothing_is_left_whoever_is_killed_and_the_next_run_works() {
    let world = world();
    for seed in 0..20 {
        round(&world, seed);
        if seed % 5 == 4 {
            world.run(&["verify"]).expect(0);
        }
    }
}
