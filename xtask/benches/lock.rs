//! How fast the lock changes hands, whether two ever hold it, and what waiting costs. Every process here takes the lock
//! by the very acquire that runs use; the peers do the same work in the same run.
//!
//!     cargo bench --bench lock                        everything, a small storm
//!     cargo bench --bench lock -- storm 1000000       only that part, with so many acquisitions
//!     (parts: hand-over, kill, storm, waiting)

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

#[path = "../tests/built/lock_caller.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod lock_caller;
#[path = "../tests/built/lock_storm.rs"]
mod lock_storm;
#[path = "../tests/built/world.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod world;

use lock_caller::Caller;
use lock_storm::{Storm, rage};
use world::{Folder, Ports};

const ROLE: &str = "XTASK_BENCH_ROLE";
const ASKED: &str = "XTASK_BENCH_ASKED";
const PEERS: [&str; 4] = ["xtask", "flock(2)", "flock(1)", "poll 250 ms"];

fn main() {
    rage();
    role();
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let part = args.first().map_or("", String::as_str);
    let wanted = |name: &str| part.is_empty() || part == name;
    if wanted("hand-over") {
        hand_overs(false);
    }
    if wanted("kill") {
        hand_overs(true);
    }
    if wanted("waiting") {
        waiting();
    }
    if wanted("storm") {
        storm(args.get(1).map_or(50_000, |count| count.parse().expect("a number")));
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("stdout");
}

fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    // A group of its own: flock(1) and what it runs go with the process that started them.
    command.env(ROLE, role).stdout(Stdio::null()).stdin(Stdio::null()).process_group(0);
    command
}

fn end(children: &mut [Child]) {
    for child in children {
        let group = nix::unistd::Pid::from_raw(child.id().cast_signed());
        // The last of those that a round killed is gone already.
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        child.wait().expect("it is ours");
    }
}

// ---- hand-over

/// One thing that happened in a process of a round, 32 bytes in the log.
#[derive(Debug, Clone, Copy)]
struct Entry {
    pid: u64,
    asked: u64,
    won: u64,
    released: u64,
}

impl Entry {
    fn bytes(self) -> Vec<u8> {
        [self.pid, self.asked, self.won, self.released].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Self {
        let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
        Self { pid: word(0), asked: word(1), won: word(2), released: word(3) }
    }
}

fn now() -> u64 {
    xtask::sys::now().as_nanos()
}

/// What a process of a round does: takes the lock, holds it, lets it go, again and again.
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.splitn(4, '/').collect();
    let [peer, port, hold_us, folder] = words[..] else { panic!("no role: {role}") };
    let port: u16 = port.parse().expect("a port");
    let hold = Duration::from_micros(hold_us.parse().expect("microseconds"));
    let folder = Path::new(folder);
    let mut log = OpenOptions::new().append(true).open(folder.join("log")).expect("the log");
    let file = || OpenOptions::new().append(true).open(folder.join("flock")).expect("the file to lock");
    let pid = u64::from(std::process::id());
    // A killed holder writes nothing afterwards, so winning is written at once where it is to be killed.
    let mut held = |asked: u64, won: u64, release: &mut dyn FnMut()| {
        if hold.is_zero() {
            log.write_all(&Entry { pid, asked, won, released: 0 }.bytes()).expect("written");
            std::thread::sleep(Duration::from_secs(3600));
        }
        std::thread::sleep(hold);
        let released = now();
        release();
        log.write_all(&Entry { pid, asked, won, released }.bytes()).expect("written");
    };
    loop {
        let asked = now();
        match peer {
            "xtask" => {
                let mut lock = Some(Caller::new("bench", Duration::from_secs(3600)).acquire(port).expect("the lock"));
                held(asked, now(), &mut || lock = None);
            }
            "flock(2)" => {
                let mut lock =
                    Some(Flock::lock(file(), FlockArg::LockExclusive).map_err(|(_, e)| e).expect("the lock"));
                held(asked, now(), &mut || lock = None);
            }
            "poll 250 ms" => {
                let mut file = file();
                let mut lock = loop {
                    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                        Ok(lock) => break Some(lock),
                        Err((back, _)) => file = back,
                    }
                    std::thread::sleep(Duration::from_millis(250));
                };
                held(asked, now(), &mut || lock = None);
                std::thread::sleep(Duration::from_millis(250));
            }
            "flock(1)" => {
                let mut command = Command::new("flock");
                command.arg(folder.join("flock")).arg(std::env::current_exe().expect("this program"));
                command.env(ROLE, format!("held by flock(1)/{port}/{hold_us}/{}", folder.display()));
                command.env(ASKED, asked.to_string());
                command.status().expect("flock(1) is installed");
            }
            // The command that flock(1) runs under the lock: the lock goes with its end.
            _ => {
                let asked = std::env::var(ASKED).expect("set").parse().expect("nanoseconds");
                held(asked, now(), &mut || {});
                std::process::exit(0);
            }
        }
    }
}

struct Measured {
    latencies: Vec<u64>,
    most_turns: usize,
}

fn hand_overs(kill: bool) {
    let what = if kill { "after SIGKILL of the holder" } else { "after a release" };
    say(&format!("\nhand-over {what}, ms"));
    say(&format!("{:<12} {:>7} {:>7} {:>8} {:>8} {:>8}  {}", "", "waiters", "times", "p50", "p99", "most", "turns"));
    for waiters in [1, 8, 64] {
        for peer in PEERS {
            // What is polled or spawned takes its time; fewer rounds say as much about it.
            let slow = peer.starts_with("poll") || peer == "flock(1)";
            let rounds = if slow {
                40
            } else if waiters == 64 {
                150
            } else {
                400
            };
            if kill && peer == "flock(1)" {
                continue; // its holder is two processes; which one to kill is another question
            }
            let measured = measure(peer, waiters, rounds, kill);
            let mut all = measured.latencies;
            all.sort_unstable();
            let at = |share: f64| all[((all.len() - 1) as f64 * share) as usize] as f64 / 1e6;
            say(&format!(
                "{peer:<12} {waiters:>7} {:>7} {:>8.3} {:>8.3} {:>8.3}  {}",
                all.len(),
                at(0.5),
                at(0.99),
                at(1.0),
                measured.most_turns
            ));
        }
    }
    say(
        "turns: the most hand-overs that somebody saw go to others between asking and winning, beyond those that asked before it",
    );
}

fn measure(peer: &str, waiters: usize, rounds: usize, kill: bool) -> Measured {
    let (folder, ports) = (Folder::new(), Ports::take(1));
    for name in ["log", "flock"] {
        File::create(folder.path().join(name)).expect("a file");
    }
    // Long enough for every waiter to be there again.
    let hold_us = match (kill, waiters) {
        (true, _) => 0,
        (_, 64) => 40_000,
        _ => 10_000,
    };
    let role = format!("{peer}/{}/{hold_us}/{}", ports.first, folder.path().display());
    let start = || again(&role).spawn().expect("this program starts once more");
    let mut children: Vec<Child> = (0..=waiters).map(|_| start()).collect();
    let log = folder.path().join("log");
    let killed = if kill { kill_holders(&log, &mut children, rounds, waiters, &start) } else { Vec::new() };
    let begun = Instant::now();
    while !kill && entries(&log).len() < rounds + waiters + 2 && begun.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(20));
    }
    end(&mut children);
    let mut all = entries(&log);
    all.sort_by_key(|entry| entry.won);
    // The first turns go to whoever starts first.
    let steady = &all[(waiters + 1).min(all.len() / 2)..];
    let latencies = if kill {
        let next = |at: &u64| all.iter().map(|entry| entry.won).find(|won| won > at);
        killed.iter().filter_map(|at| Some(next(at)? - at)).collect()
    } else {
        // Who takes back at once what it has just let go of has handed over nothing.
        let pairs = steady.windows(2).filter(|pair| pair[0].pid != pair[1].pid);
        pairs.map(|pair| pair[1].won.saturating_sub(pair[0].released)).collect()
    };
    let turns = |entry: &Entry| all.iter().filter(|other| other.won > entry.asked && other.won < entry.won).count();
    Measured { latencies, most_turns: steady.iter().map(turns).max().unwrap_or(0) }
}

fn kill_holders(
    log: &Path,
    children: &mut [Child],
    rounds: usize,
    waiters: usize,
    start: &dyn Fn() -> Child,
) -> Vec<u64> {
    let mut killed = Vec::new();
    let mut dead = None;
    while killed.len() < rounds {
        let begun = Instant::now();
        let holder = loop {
            match entries(log).get(killed.len()) {
                Some(entry) => break entry.pid,
                None => std::thread::sleep(Duration::from_micros(500)),
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody takes the lock");
        };
        // Only now: one that begins while nobody holds the lock would be quicker than all who wait.
        if let Some(index) = dead {
            children[index] = start();
        }
        // It has to be waiting too.
        std::thread::sleep(Duration::from_millis(if waiters == 64 { 40 } else { 20 }));
        let index = children.iter().position(|child| u64::from(child.id()) == holder).expect("one of ours");
        killed.push(now());
        children[index].kill().expect("it is ours");
        children[index].wait().expect("it is ours");
        dead = Some(index);
    }
    killed
}

fn entries(log: &Path) -> Vec<Entry> {
    let bytes = std::fs::read(log).expect("the log");
    bytes.chunks_exact(32).map(Entry::read).collect()
}

// ---- what waiting costs

fn waiting() {
    let ports = Ports::take(1);
    let folder = Folder::new();
    for name in ["log", "flock"] {
        File::create(folder.path().join(name)).expect("a file");
    }
    let role = format!("xtask/{}/0/{}", ports.first, folder.path().display());
    let start = || again(&role).spawn().expect("this program starts once more");
    let mut children: Vec<Child> = (0..65).map(|_| start()).collect();
    let log = folder.path().join("log");
    while entries(&log).is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let holder = entries(&log)[0].pid;
    std::thread::sleep(Duration::from_secs(2));
    let used = |child: &Child| cpu_time(child.id());
    let before: Vec<Used> = children.iter().map(used).collect();
    let begun = Instant::now();
    std::thread::sleep(Duration::from_secs(60));
    let length = begun.elapsed();
    let (mut holders, mut waiters) = (Used::default(), Used::default());
    for (child, before) in children.iter().zip(before) {
        let (all, now) = (if u64::from(child.id()) == holder { &mut holders } else { &mut waiters }, used(child));
        all.time += now.time - before.time;
        all.turns += now.turns - before.turns;
    }
    say(&format!("\n64 waiters for {:.0} s, CPU time", length.as_secs_f64()));
    // The turns say what the program does, the time of one what the machine makes of it.
    for (who, Used { time, turns }) in [("all waiters", waiters), ("the holder", holders)] {
        let (ms, share) = (time.as_secs_f64() * 1e3, 100.0 * time.as_secs_f64() / length.as_secs_f64());
        let each = ms * 1e3 / turns.max(1) as f64;
        say(&format!("{who:<11} {ms:>8.1} ms  {share:>6.3} % of a CPU  {turns:>5} turns of {each:.0} us"));
    }
    end(&mut children);
}

/// Time on a CPU, and how many times it got there.
#[derive(Default)]
struct Used {
    time: Duration,
    turns: u64,
}

// Of all threads; the words of schedstat are nanoseconds on a CPU, nanoseconds waiting for one, and turns.
fn cpu_time(pid: u32) -> Used {
    let mut all = Used::default();
    for entry in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives") {
        let path = entry.expect("a thread").path().join("schedstat");
        let text = std::fs::read_to_string(path).expect("its times");
        let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        all.time += Duration::from_nanos(words[0]);
        all.turns += words[2];
    }
    all
}

// ---- mutual exclusion

fn storm(acquisitions: u64) {
    say("\nmutual exclusion, 8 processes, holders killed at random");
    say(&format!("{:<28} {:>13} {:>15} {:>12} {:>8}", "", "acquisitions", "killed holders", "two holders", "gave up"));
    for (name, count, broken) in [("the lock", acquisitions, false), ("broken on purpose (control)", 5_000, true)] {
        let (folder, ports) = (Folder::new(), Ports::take(2));
        let last = if broken { ports.first + 1 } else { ports.first };
        let storm = Storm {
            folder: folder.path().to_owned(),
            ports: vec![ports.first, last],
            processes: 8,
            acquisitions: count,
            limit: Duration::from_secs(3600),
            seed: now(),
        };
        let begun = Instant::now();
        let outcome = storm.run(|| again("storm"));
        say(&format!(
            "{name:<28} {:>13} {:>15} {:>12} {:>8}   {:.0} s",
            outcome.acquisitions,
            outcome.killed_holders,
            outcome.two_holders,
            outcome.gave_up,
            begun.elapsed().as_secs_f64()
        ));
    }
}
