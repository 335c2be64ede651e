//! Processes that take a lock in turns: ours by the very acquire that runs use, and peers that lock a file. This program
//! starts itself for them.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::lock_caller::Caller;
use crate::progress::Progress;
use crate::world::{Folder, Ports};

const ROLE: &str = "XTASK_BENCH_ROLE";
const ASKED: &str = "XTASK_BENCH_ASKED";

const GAVE_UP: &str = "gave-up";

pub const XTASK: &str = "xtask";
pub const FLOCK_2: &str = "flock(2)";
pub const FLOCK_1: &str = "flock(1)";
pub const POLL: &str = "polling every 250 ms";

/// This program, to be started once more in that role. It ends with the one that starts it.
pub fn again(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    // A group of its own: flock(1) and what it runs go with the process that started them.
    command.env(ROLE, role).stdout(Stdio::null()).stdin(Stdio::null()).process_group(0);
    xtask::sys::end_with_parent(&mut command, nix::sys::signal::Signal::SIGKILL);
    command
}

/// A place for processes of one round: its log and the file that peers lock.
pub struct Place {
    pub folder: Folder,
    ports: Ports,
}

impl Place {
    pub fn new() -> Self {
        let place = Self { folder: Folder::new(), ports: Ports::take(1) };
        for name in ["log", "flock"] {
            File::create(place.folder.path().join(name)).expect("a file");
        }
        place
    }

    /// One process that takes the peer's lock and holds it, again and again; for ever where `hold` is zero.
    pub fn start(&self, peer: &str, hold: Duration) -> Child {
        let role = format!("{peer}/{}/{}/{}", self.ports.first, hold.as_micros(), self.folder.path().display());
        again(&role).spawn().expect("this program starts once more")
    }

    /// What has happened so far. Panics once a waiter gave up.
    pub fn entries(&self) -> Vec<Entry> {
        if let Ok(why) = std::fs::read_to_string(self.folder.path().join(GAVE_UP)) {
            panic!("a waiter gave up: {why}");
        }
        let bytes = std::fs::read(self.folder.path().join("log")).expect("the log");
        bytes.chunks_exact(32).map(Entry::read).collect()
    }
}

/// Processes that end when this does, whatever happens meanwhile.
pub struct Contenders(pub Vec<Child>);

impl Drop for Contenders {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let group = nix::unistd::Pid::from_raw(child.id().cast_signed());
            // The last of those that a round killed is gone already.
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            let _ = child.wait();
        }
    }
}

/// One thing that happened in a process of a round, 32 bytes in the log: nanoseconds of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub pid: u64,
    pub asked: u64,
    pub won: u64,
    pub released: u64,
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

/// What a process of a round does; returns at once in any other process.
pub fn role() {
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
            XTASK => {
                let lock = Caller::new("bench", Duration::from_secs(3600)).acquire(port);
                let mut lock = Some(lock.unwrap_or_else(|why| give_up(folder, &why.to_string())));
                held(asked, now(), &mut || lock = None);
            }
            FLOCK_2 => {
                let mut lock =
                    Some(Flock::lock(file(), FlockArg::LockExclusive).map_err(|(_, e)| e).expect("the lock"));
                held(asked, now(), &mut || lock = None);
            }
            POLL => {
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
            FLOCK_1 => {
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

// One that gives up is a fault of the lock: whoever started it says so, once.
fn give_up(folder: &Path, why: &str) -> ! {
    std::fs::write(folder.join(GAVE_UP), why).expect("written");
    std::process::exit(1)
}

/// What so many hand-overs showed.
pub struct HandOvers {
    /// Milliseconds, the shortest first.
    pub latencies: Vec<f64>,
    /// The most hand-overs that somebody saw go to others between asking and winning.
    pub most_turns: usize,
}

impl HandOvers {
    pub fn at(&self, share: f64) -> f64 {
        self.latencies[((self.latencies.len() - 1) as f64 * share) as usize]
    }
}

/// Long enough for every waiter to be there again: all of them come at every hand-over.
fn settling(waiters: usize) -> Duration {
    Duration::from_millis(match waiters {
        0..=8 => 10,
        9..=64 => 40,
        _ => 250,
    })
}

/// Holders let go, one after the other.
pub fn releases(progress: &Progress, peer: &str, waiters: usize, rounds: usize) -> HandOvers {
    let place = Place::new();
    let hold = settling(waiters);
    let _contenders = Contenders((0..=waiters).map(|_| place.start(peer, hold)).collect());
    // The first turns go to whoever starts first.
    let steady_from = now() + 100_000_000 + 20_000_000 * waiters as u64;
    let is_steady = |entry: &&Entry| entry.won >= steady_from;
    let begun = Instant::now();
    loop {
        let there = place.entries().iter().filter(is_steady).count();
        progress.step(&format!("hand-over, {peer}, {waiters} waiting: {there} of {rounds}"));
        if there > rounds || begun.elapsed() > Duration::from_secs(120) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut all = place.entries();
    all.sort_by_key(|entry| entry.won);
    let steady = &all[all.partition_point(|entry| entry.won < steady_from)..];
    // Who takes back at once what it has just let go of has handed over nothing.
    let pairs = steady.windows(2).filter(|pair| pair[0].pid != pair[1].pid);
    let latencies = pairs.map(|pair| pair[1].won.saturating_sub(pair[0].released));
    hand_overs(latencies, &all, steady)
}

/// Holders are killed, one after the other.
pub fn kills(progress: &Progress, peer: &str, waiters: usize, rounds: usize) -> HandOvers {
    let place = Place::new();
    let start = || place.start(peer, Duration::ZERO);
    let mut contenders = Contenders((0..=waiters).map(|_| start()).collect());
    let children = &mut contenders.0;
    let (mut killed, mut dead) = (Vec::new(), None);
    while killed.len() < rounds {
        progress.round(&format!("kill of the holder, {peer}, {waiters} waiting"), killed.len(), rounds);
        let begun = Instant::now();
        let holder = loop {
            match place.entries().get(killed.len()) {
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
        std::thread::sleep(settling(waiters).max(Duration::from_millis(20)));
        let index = children.iter().position(|child| u64::from(child.id()) == holder).expect("one of ours");
        killed.push(now());
        children[index].kill().expect("it is ours");
        children[index].wait().expect("it is ours");
        dead = Some(index);
    }
    // The last one has to be won too.
    let begun = Instant::now();
    while place.entries().len() <= killed.len() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut all = place.entries();
    all.sort_by_key(|entry| entry.won);
    let next = |at: &u64| all.iter().map(|entry| entry.won).find(|won| won > at);
    hand_overs(killed.iter().filter_map(|at| Some(next(at)? - at)), &all, &all)
}

fn hand_overs(nanos: impl Iterator<Item = u64>, all: &[Entry], steady: &[Entry]) -> HandOvers {
    let mut latencies: Vec<f64> = nanos.map(|nanos| nanos as f64 / 1e6).collect();
    assert!(!latencies.is_empty(), "the lock never went to another process");
    latencies.sort_by(f64::total_cmp);
    let turns = |entry: &Entry| all.iter().filter(|other| other.won > entry.asked && other.won < entry.won).count();
    HandOvers { latencies, most_turns: steady.iter().map(turns).max().unwrap_or(0) }
}
