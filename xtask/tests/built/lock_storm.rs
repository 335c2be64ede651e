//! A storm on one lock: processes that take it and let it go as fast as they can, and are killed meanwhile. Each of them
//! looks, while it holds the lock, whether another one holds it too.
//!
//! How it looks: under the lock it takes two `flock`s, which the kernel frees when their holder dies, as it does with
//! the port. A dying process closes its files one after the other, so each has a low and a high number: whichever end
//! the kernel begins with, one of the two is free before the port is. Both taken means two holders. Nobody waits for
//! them: they are the witness, not a lock.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lock_caller::Caller;

const ROLE: &str = "XTASK_TEST_STORM";

/// A storm to be.
pub struct Storm {
    /// Where its processes write what they see.
    pub folder: PathBuf,
    /// The lock's port, for each process in turn: all the same, unless the lock is to be broken on purpose.
    pub ports: Vec<u16>,
    /// Processes.
    pub processes: usize,
    /// Acquisitions after which it is over …
    pub acquisitions: u64,
    /// … or the time after which it is.
    pub limit: Duration,
    /// Of what is random.
    pub seed: u64,
}

/// What came of a storm.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub acquisitions: u64,
    pub killed_holders: u64,
    /// Times that a holder found another one.
    pub two_holders: u64,
    /// Times that a waiter gave up, for whatever reason.
    pub gave_up: u64,
}

impl Storm {
    /// Lets it rage. `again` is this program, told to call `rage` at once.
    pub fn run(&self, again: impl Fn() -> Command) -> Outcome {
        let file = |name: &str| File::create(self.folder.join(name)).expect("a file");
        for name in ["low", "high", "won", "both", "gave-up"] {
            file(name);
        }
        file("holder").write_all(&[0; 8]).expect("a pid");
        let holder = File::open(self.folder.join("holder")).expect("the holder's pid");
        let (mut random, mut killed) = (Random(self.seed | 1), 0);
        let start = |index: usize, seed: u64| {
            let port = self.ports[index % self.ports.len()];
            let mut command = again();
            command.env(ROLE, format!("{port} {seed} {}", self.folder.display()));
            command.stdout(Stdio::null()).spawn().expect("this program starts once more")
        };
        let mut children: Vec<Child> = (0..self.processes).map(|index| start(index, random.next())).collect();
        let begun = Instant::now();
        while self.count("won") < self.acquisitions && begun.elapsed() < self.limit {
            std::thread::sleep(Duration::from_micros(random.next() % 8_000));
            let mut pid = [0; 8];
            holder.read_exact_at(&mut pid, 0).expect("the holder's pid");
            let pid = u32::try_from(u64::from_le_bytes(pid)).expect("a pid");
            // Not reaped yet, so the number is still its own. It may hold the lock no more; then it is a waiter that dies.
            if let Some(index) = children.iter().position(|child| child.id() == pid) {
                kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("it is ours");
                children[index].wait().expect("it is ours");
                killed += 1;
                children[index] = start(index, random.next());
            }
        }
        for child in &mut children {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
        let [acquisitions, two_holders, gave_up] = ["won", "both", "gave-up"].map(|name| self.count(name));
        Outcome { acquisitions, killed_holders: killed, two_holders, gave_up }
    }

    // One byte each.
    fn count(&self, name: &str) -> u64 {
        std::fs::metadata(self.folder.join(name)).expect("a file").len()
    }
}

/// What each process of a storm does until it is killed; returns at once in any other process.
pub fn rage() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(3, ' ');
    let port = words.next().expect("a port").parse().expect("a port");
    let mut random = Random(words.next().expect("a seed").parse::<u64>().expect("a seed") | 1);
    let folder = Path::new(words.next().expect("a folder"));
    let append = |name: &str| OpenOptions::new().append(true).open(folder.join(name)).expect("a file");
    let (mut won, mut both, mut gave_up) = (append("won"), append("both"), append("gave-up"));
    let holder = OpenOptions::new().write(true).open(folder.join("holder")).expect("a file");
    let mut low = append("low");
    let high = append("high");
    let number = fcntl(high.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(500)).expect("a high number");
    drop(high);
    let mut high = File::from(xtask::sys::take_inherited(number).expect("the copy just made"));
    loop {
        let lock = match Caller::new("storm", Duration::from_secs(600)).acquire(port) {
            Ok(lock) => lock,
            Err(why) => {
                gave_up.write_all(b"x").expect("written");
                panic!("gave up: {why}");
            }
        };
        let try_flock = |file: File| Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let (one, other) = (try_flock(low), try_flock(high));
        if one.is_err() && other.is_err() {
            both.write_all(b"x").expect("written");
        }
        won.write_all(b"x").expect("written");
        holder.write_all_at(&u64::from(std::process::id()).to_le_bytes(), 0).expect("written");
        // Mostly as short as can be, sometimes long enough for all others to be waiting.
        match random.next() % 16 {
            0 => std::thread::sleep(Duration::from_micros(random.next() % 3_000)),
            1..4 => std::thread::sleep(Duration::from_micros(random.next() % 300)),
            _ => {}
        }
        let unlocked = |flock: Result<Flock<File>, (File, _)>| match flock {
            Ok(flock) => flock.unlock().map_err(|(_, e): (_, nix::errno::Errno)| e).expect("unlocked"),
            Err((file, _)) => file,
        };
        (low, high) = (unlocked(one), unlocked(other));
        drop(lock);
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
