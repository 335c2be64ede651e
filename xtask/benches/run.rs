//! What a run costs, and whether it ends: beside make, ninja, timeout and nextest where they are installed, on the same
//! work, in turns.
//!
//!     cargo bench --bench run --profile xtask              everything, as the alias builds it; 50 kills
//!     cargo bench --bench run --profile xtask -- kills 1000
//!     (parts: one, many, dag, overshoot, output, noisy, kills)

#![allow(clippy::unwrap_used, reason = "in a bench a panic is the message")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../tests/built/process/field.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod field;
#[path = "../tests/built/process/fixture.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod fixture;
#[path = "../tests/built/world.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod world;

use field::{Dice, Field, Victim};
use fixture::{misbehave, token};
use world::{World, processes_with};
use xtask::sys;
use xtask::time::Moment;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let part = args.first().map_or("", String::as_str);
    let count = |usual: usize| args.get(1).map_or(usual, |count| count.parse().expect("a number"));
    let found: Vec<&str> = PEERS.into_iter().filter(|peer| which(peer)).collect();
    say(&format!("peers found: {}; load {}", found.join(", "), load()));
    let parts: [(&str, &dyn Fn()); 7] = [
        ("one", &|| one(count(30))),
        ("many", &|| many(count(10))),
        ("dag", &|| dag(count(3))),
        ("overshoot", &|| overshoot(count(10))),
        ("output", &|| output(count(5))),
        ("noisy", &|| noisy(count(9))),
        ("kills", &|| kills(count(50))),
    ];
    for (_, run) in parts.iter().filter(|(name, _)| part.is_empty() || part == *name) {
        run();
    }
}

const PEERS: [&str; 4] = ["make", "ninja", "timeout", "cargo-nextest"];

fn which(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn load() -> String {
    fs::read_to_string("/proc/loadavg").unwrap_or_default().split(' ').next().unwrap_or_default().to_owned()
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("stdout");
}

fn head(title: &str, columns: &str) {
    say(&format!("\n{title}\n  {:<34}{columns}", ""));
}

fn row(name: &str, text: &str) {
    say(&format!("  {name:<34}{text}"));
}

fn ms(length: Duration) -> String {
    format!("{:>9.1}", length.as_secs_f64() * 1e3)
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// One way to do the work: its name and what makes it do so.
type Way<'a> = (&'a str, Box<dyn FnMut() -> Command + 'a>);

/// What so many rounds took.
struct Spread {
    median: Duration,
    least: Duration,
    most: Duration,
}

impl Spread {
    fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self { median: all[all.len() / 2], least: all[0], most: all[all.len() - 1] }
    }

    fn range(&self) -> String {
        format!("  ({} to{})", ms(self.least).trim(), ms(self.most))
    }
}

/// Runs every way in turns, so that the machine's moods meet all alike.
fn in_turns(rounds: usize, ways: &mut [Way<'_>]) -> Vec<Spread> {
    let mut all = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (i, (_, make)) in ways.iter_mut().enumerate() {
            all[i].push(time(&mut make()).0);
        }
    }
    all.into_iter().map(Spread::of).collect()
}

/// How long the command took, and the largest resident set of it and of what it waited for, in KiB.
fn time(command: &mut Command) -> (Duration, u64) {
    let begun = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let pid = child.id().cast_signed();
    let end = loop {
        match sys::peek_exited(Some(pid)).expect("it is ours") {
            Some(end) => break end,
            None => std::thread::sleep(Duration::from_micros(100)),
        }
    };
    let took = begun.elapsed();
    assert!(child.wait().expect("it is ours").success(), "{command:?} failed");
    (took, end.peak_kib)
}

fn limits(tasks: &str) -> String {
    let run =
        "deadline = \"10m\"\nqueue = \"1m\"\nmargin = \"1m\"\nstop-grace = \"500ms\"\nwrap-up = \"10s\"\ncpus = 2";
    format!("schema = 1\n[run]\n{run}\n[defaults]\ndeadline = \"2s\"\n{tasks}\n")
}

fn verify(world: &World) -> Command {
    world.command(&["verify"])
}

/// A build file of make's and one of ninja's in the world's folder: name, command, needs.
fn peers_files(folder: &Path, tasks: &[(String, String, Vec<String>)]) {
    let names: Vec<&str> = tasks.iter().map(|(name, ..)| name.as_str()).collect();
    let mut make = format!(".PHONY: all {0}\nall: {0}\n", names.join(" "));
    let mut ninja = "rule run\n  command = $do\n".to_owned();
    for (name, command, needs) in tasks {
        make += &format!("{name}: {}\n\t@{command}\n", needs.join(" "));
        ninja += &format!("build {name}: run {}\n  do = {command}\n", needs.join(" "));
    }
    fs::write(folder.join("Makefile"), make).expect("written");
    fs::write(folder.join("build.ninja"), ninja + &format!("default {}\n", names.join(" "))).expect("written");
}

fn peers<'a>(folder: &'a Path, ways: &mut Vec<Way<'a>>) {
    let run = move |program: &'static str, args: &'static [&str]| {
        Box::new(move || {
            let mut command = Command::new(program);
            command.args(args).current_dir(folder);
            // Ninja must not remember that it is done.
            let _ = fs::remove_file(folder.join(".ninja_log"));
            command
        })
    };
    if which("make") {
        ways.push(("make -j2", run("make", &["-s", "-j2"])));
    }
    if which("ninja") {
        ways.push(("ninja -j2", run("ninja", &["--quiet", "-j2"])));
    }
}

/// A crate of so many empty tests, built; none where nextest is not installed. It runs each test as a process of its own,
/// as xtask runs its tasks.
fn nextest(folder: &Path, count: usize) -> Option<impl Fn() -> Command> {
    if !which("cargo-nextest") {
        return None;
    }
    let crate_folder = folder.join("nextest");
    fs::create_dir_all(crate_folder.join("src")).expect("a folder");
    let manifest = "[package]\nname = \"peer\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(crate_folder.join("Cargo.toml"), manifest).expect("written");
    let tests: String = (0..count).map(|i| format!("#[test]\nfn t{i}() {{}}\n")).collect();
    fs::write(crate_folder.join("src/lib.rs"), tests).expect("written");
    let make = move || {
        let mut command = Command::new("cargo");
        command.args(["nextest", "run", "--offline", "--test-threads", "2", "--no-fail-fast"]);
        command.current_dir(&crate_folder).env("CARGO_TARGET_DIR", crate_folder.join("target"));
        command
    };
    time(&mut make());
    Some(make)
}

fn one(rounds: usize) {
    head("one task `true`, whole command", "ms       over the floor (least to most)");
    let world = World::new(&limits("[task.a]\ncommand = 'true'"));
    peers_files(world.folder.path(), &[("a".into(), "true".into(), Vec::new())]);
    let mut ways: Vec<Way<'_>> = vec![
        ("floor: spawn and wait", Box::new(|| Command::new("true"))),
        ("xtask verify, both snapshots", Box::new(|| verify(&world))),
        ("xtask lock run: no snapshots", Box::new(|| world.command(&["lock", "run", "--", "true"]))),
    ];
    peers(world.folder.path(), &mut ways);
    if let Some(run) = nextest(world.folder.path(), 1) {
        ways.push(("cargo nextest run, one test", Box::new(run)));
    }
    let measured = in_turns(rounds, &mut ways);
    for ((name, _), took) in ways.iter().zip(&measured) {
        let over = took.median.saturating_sub(measured[0].median);
        row(name, &format!("{}{}{}", ms(took.median), ms(over), took.range()));
    }
}

fn many(rounds: usize) {
    const COUNT: usize = 200;
    head("200 tasks `true` on 2 slots, whole command", "ms       of the floor");
    let tables: String = (0..COUNT).map(|i| format!("[task.t{i}]\ncommand = 'true'\n")).collect();
    let world = World::new(&limits(&tables));
    let tasks: Vec<_> = (0..COUNT).map(|i| (format!("t{i}"), "true".to_owned(), Vec::new())).collect();
    peers_files(world.folder.path(), &tasks);
    let logs = world.folder.path().join("logs");
    fs::create_dir(&logs).expect("a folder");
    let floor = |()| {
        let begun = Instant::now();
        let mut running: Vec<Child> = Vec::new();
        for i in 0..COUNT {
            if running.len() == 2 {
                let pid = sys_wait_any();
                running.retain_mut(|child| child.id().cast_signed() != pid || child.wait().is_err());
            }
            let log = File::create(logs.join(format!("{i}.log"))).expect("a log");
            let mut command = Command::new("/bin/true");
            command.stdin(Stdio::null()).stderr(log.try_clone().expect("a copy")).stdout(log).process_group(0);
            running.push(command.spawn().expect("it starts"));
        }
        running.iter_mut().for_each(|child| drop(child.wait()));
        let mut receipt = File::create(logs.join("receipt")).expect("a receipt");
        receipt.write_all(&vec![b' '; COUNT * 400]).and_then(|()| receipt.sync_all()).expect("written");
        begun.elapsed()
    };
    let mut ways: Vec<Way<'_>> = vec![("xtask verify, both snapshots", Box::new(|| verify(&world)))];
    peers(world.folder.path(), &mut ways);
    if let Some(run) = nextest(world.folder.path(), COUNT) {
        ways.push(("cargo nextest run, 200 tests", Box::new(run)));
    }
    let bare = median((0..rounds).map(|_| floor(())).collect());
    row("floor: group, log each, receipt", &format!("{}{:>8.2}x", ms(bare), 1.0));
    let measured = in_turns(rounds, &mut ways);
    for ((name, _), took) in ways.iter().zip(&measured) {
        let share = took.median.as_secs_f64() / bare.as_secs_f64();
        row(name, &format!("{}{share:>8.2}x{}", ms(took.median), took.range()));
    }
}

// Blocks until a child has ended, and leaves it to be reaped by whoever has its handle.
fn sys_wait_any() -> i32 {
    loop {
        match sys::peek_exited(None).expect("there are children") {
            Some(end) => return end.pid,
            None => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

fn dag(rounds: usize) {
    head("weighted DAG of 40 tasks on 2 slots", "ms       of the lower bound 4310 ms");
    let text = include_str!("dag.json");
    let tasks: Vec<serde_json::Value> = serde_json::from_str(text).expect("dag.json");
    let word = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let needs = |task: &serde_json::Value| -> Vec<String> {
        task["needs"].as_array().expect("needs").iter().map(&word).collect()
    };
    let tables: String = tasks
        .iter()
        .map(|task| {
            let (name, command) = (word(&task["name"]), word(&task["cmd"]));
            format!("[task.{name}]\ncommand = {command:?}\nneeds = {:?}\ncpus = {}\n", needs(task), task["cpus"])
        })
        .collect();
    let world = World::new(&limits(&tables));
    let makespan = |receipt: &Path| {
        let receipt: serde_json::Value =
            serde_json::from_slice(&fs::read(receipt).expect("a receipt")).expect("a receipt is JSON");
        let tasks = receipt["predicate"]["tasks"].as_array().expect("tasks").clone();
        let times = tasks.iter().map(|task| {
            let start = task["started_ms"].as_u64().expect("a start");
            (start, start + task["took_ms"].as_u64().expect("a length"))
        });
        let (first, last) = times.fold((u64::MAX, 0), |(a, b), (start, end)| (a.min(start), b.max(end)));
        Duration::from_millis(last - first)
    };
    let mut all = Vec::new();
    for _ in 0..=rounds {
        time(&mut verify(&world));
        all.push(makespan(world.receipts().last().expect("a receipt")));
    }
    let share = |took: Duration| format!("{}{:>8.3}x", ms(took), took.as_secs_f64() * 1e3 / 4310.0);
    row("xtask, durations unknown", &share(all.remove(0)));
    row("xtask, durations known", &share(median(all)));
    let unweighted: Vec<_> = tasks.iter().map(|task| (word(&task["name"]), word(&task["cmd"]), needs(task))).collect();
    peers_files(world.folder.path(), &unweighted);
    let mut ways = Vec::new();
    peers(world.folder.path(), &mut ways);
    let measured = in_turns(rounds, &mut ways);
    for ((name, _), took) in ways.iter().zip(&measured) {
        let share = took.median.as_secs_f64() * 1e3 / 3400.0;
        row(&format!("{name}, without weights"), &format!("{}{share:>8.3}x of 3400 ms", ms(took.median)));
    }
}

fn overshoot(rounds: usize) {
    head("deadline 1 s, grace 0.5 s, seven deaf processes", "ms past both      survivors");
    let deaf =
        "deaf fork hang end fork session hang end fork session fork hang end hang end fork session leave hang end";
    let row_of = |name: &str, make: &dyn Fn(&str) -> (Command, Option<World>)| {
        let (mut over, mut left) = (Vec::new(), 0);
        for _ in 0..rounds {
            let token = token();
            let (mut command, world) = make(&token);
            let (begun, begun_at) = (Instant::now(), sys::now());
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            // To the first look that sees nothing any more, or to the end of who watches.
            let watcher = child.id().cast_signed();
            let seen = || processes_with(&token).iter().any(|&pid| pid != watcher);
            while !seen() {
                assert!(begun.elapsed().as_secs() < 60, "{name} starts nothing");
            }
            while seen() && child.try_wait().expect("it is ours").is_none() {}
            let gone = sys::now();
            child.wait().expect("it is ours");
            let both = started(begun_at, world.as_ref()) + Duration::from_millis(1500);
            over.push(gone.since(both));
            let survivors = processes_with(&token);
            left += survivors.len();
            for pid in survivors {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        row(name, &format!("{}{:>11} in {rounds}", ms(median(over)), left));
    };
    let orders: Vec<&str> = deaf.split(' ').chain(["hang"]).collect();
    row_of("xtask verify", &|token| {
        let words: Vec<String> = orders.iter().chain([&token]).map(|word| format!("{word:?}")).collect();
        let command = format!("[\"{}\", {}]", misbehave().display(), words.join(", "));
        let world = World::new(&limits(&format!("[task.bad]\ncommand = {command}\ndeadline = \"1s\"")));
        (verify(&world), Some(world))
    });
    if which("timeout") {
        row_of("timeout -k 0.5 1", &|token| {
            let mut command = Command::new("timeout");
            command.args(["-k", "0.5", "1"]).arg(misbehave()).args(&orders).arg(token).process_group(0);
            (command, None)
        });
    }
}

/// When the task started: a peer starts it at once, a run says so in its receipt.
fn started(begun: Moment, world: Option<&World>) -> Moment {
    let Some(world) = world else { return begun };
    let receipt = fs::read(world.receipts().last().expect("a receipt")).expect("a receipt");
    let receipt: serde_json::Value = serde_json::from_slice(&receipt).expect("a receipt is JSON");
    let millis = receipt["predicate"]["tasks"][0]["started_ms"].as_u64().expect("a start");
    Moment::from_nanos(millis * 1_000_000)
}

fn output(rounds: usize) {
    const BYTES: &str = "200000000";
    head("200 MB printed by one task", "ms       of the floor   peak MiB");
    let command = format!("{} flood {BYTES}", misbehave().display());
    let world =
        World::new(&limits(&format!("[task.a]\ncommand = {command:?}\ndeadline = \"60s\"\nlog-limit = \"1GiB\"")));
    let folder = world.folder.path();
    peers_files(folder, &[("a".into(), command.clone(), Vec::new())]);
    let file = folder.join("direct");
    let mut measured: Vec<(&str, Vec<Duration>, u64)> = Vec::new();
    let mut add = |name: &'static str, (took, peak): (Duration, u64)| {
        match measured.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, all, highest)) => {
                all.push(took);
                *highest = peak.max(*highest);
            }
            None => measured.push((name, vec![took], peak)),
        };
    };
    for _ in 0..rounds {
        let to_file = |program: &str, args: &[&str]| {
            let begun = Instant::now();
            let out = File::create(&file).expect("a file");
            let mut command = Command::new(program);
            let mut child = command.args(args).current_dir(folder).stdout(out).stderr(Stdio::null()).spawn().unwrap();
            let end = loop {
                match sys::peek_exited(Some(child.id().cast_signed())).expect("it is ours") {
                    Some(end) => break end,
                    None => std::thread::sleep(Duration::from_micros(100)),
                }
            };
            let took = begun.elapsed();
            assert!(child.wait().unwrap().success());
            (took, end.peak_kib)
        };
        add("floor: to a file directly", to_file(misbehave().to_str().unwrap(), &["flood", BYTES]));
        add("xtask verify, both snapshots", time(&mut verify(&world)));
        if which("make") {
            add("make", to_file("make", &["-s"]));
        }
        if which("ninja") {
            let _ = fs::remove_file(folder.join(".ninja_log"));
            add("ninja", to_file("ninja", &[]));
        }
    }
    let floor = median(measured[0].1.clone()).as_secs_f64();
    for (name, all, peak) in measured {
        let took = median(all);
        row(name, &format!("{}{:>8.2}x{:>14.1}", ms(took), took.as_secs_f64() / floor, peak as f64 / 1024.0));
    }
}

fn noisy(pairs: usize) {
    head("0.5 s of CPU work beside a noisy sibling", "median of pairs, over alone");
    let program = misbehave().display().to_string();
    let noise = format!("for i in 1 2 3 4; do '{program}' work 1500 & done; wait");
    let alone = format!("[task.work]\ncommand = ['{program}', 'work', '500']\ndeadline = \"60s\"\n");
    let beside = format!("{alone}[task.noise]\ncommand = ['sh', '-c', \"{noise}\"]\ndeadline = \"60s\"\n");
    let (quiet, loud) = (World::new(&limits(&alone)), World::new(&limits(&beside)));
    let took = |world: &World| {
        time(&mut verify(world));
        let runs = fs::read_dir(world.repo.join("target/xtask-runs")).expect("runs").map(|run| run.unwrap().path());
        let newest = runs.filter(|run| run.join("work.log").is_file()).max().expect("a run");
        fs::read_to_string(newest.join("work.log")).expect("a log").trim().parse::<f64>().expect("milliseconds")
    };
    let middle = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let ratios = (0..pairs).map(|_| took(&loud) / took(&quiet)).collect();
    row("xtask, pinned", &format!("{:>9.3}x", middle(ratios)));
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
        String::from_utf8(out.stdout).unwrap().trim().parse::<f64>().expect("milliseconds")
    };
    let ratios = (0..pairs).map(|_| bare(true) / bare(false)).collect();
    row("side by side, not pinned", &format!("{:>9.3}x", middle(ratios)));
}

fn kills(count: usize) {
    let columns = "processes gone, ms: p50       p99       max;  ports free: p50       p99       max";
    head(&format!("{count} SIGKILLs at random moments of a run"), columns);
    let field = Field::new();
    let mut took: Vec<(Victim, (Duration, Duration))> = Vec::new();
    let begun = Instant::now();
    for seed in 0..count as u64 {
        let (victim, moment) = Dice::new(seed).kill();
        // Stops with the seed's own message at the first survivor, stuck port or folder.
        took.push((victim, field.round(victim, moment)));
    }
    let spread = |mut all: Vec<Duration>| {
        all.sort_unstable();
        let at = |share: usize| ms(all[(all.len() * share / 100).min(all.len() - 1)]);
        format!("{}{}{}", at(50), at(99), at(100))
    };
    for victim in [Victim::Runner, Victim::Keeper, Victim::KeepersGroup] {
        let (gone, free): (Vec<_>, Vec<_>) =
            took.iter().filter(|(whom, _)| *whom == victim).map(|(_, took)| *took).unzip();
        if !gone.is_empty() {
            let count = gone.len();
            row(&format!("{victim:?}, {count} times"), &format!("{:14}{}{:13}{}", "", spread(gone), "", spread(free)));
        }
    }
    row("survivors, stuck ports, folders", &format!("0 in {count} kills, {:.0} s", begun.elapsed().as_secs_f64()));
}
