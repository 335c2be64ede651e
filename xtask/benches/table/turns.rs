//! Ways to do the same work, run in turns, and what each round of them cost.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use xtask::sys;

use crate::progress::Progress;
use crate::table::{Line, Spread};

/// What one round cost.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub took: Duration,
    /// The largest resident set of the process and of what it waited for.
    pub peak_kib: u64,
}

/// One way to do the work: its name and what does it once; none where the program for it is not installed.
pub struct Way<'a> {
    pub name: &'static str,
    pub once: Option<Box<dyn FnMut() -> Cost + 'a>>,
}

impl<'a> Way<'a> {
    pub fn new(name: &'static str, once: impl FnMut() -> Cost + 'a) -> Self {
        Self { name, once: Some(Box::new(once)) }
    }

    /// A way that is a command.
    pub fn command(name: &'static str, mut make: impl FnMut() -> Command + 'a) -> Self {
        Self::new(name, move || run(&mut make()))
    }

    /// A way that is done in this process.
    pub fn here(name: &'static str, mut once: impl FnMut() + 'a) -> Self {
        Self::new(name, move || Cost { took: timed(&mut once), peak_kib: 0 })
    }

    pub fn missing(name: &'static str) -> Self {
        Self { name, once: None }
    }
}

/// What all rounds of one way cost; none where it is not installed.
pub struct Measured {
    pub name: &'static str,
    pub costs: Option<Vec<Cost>>,
}

impl Measured {
    /// Panics where the way is missing: for the program itself and for what every machine has.
    pub fn ms(&self) -> Spread {
        ms(self.costs.as_ref().expect("it is here").iter().map(|cost| cost.took))
    }

    /// Panics as `ms` does.
    pub fn mib(&self) -> Spread {
        let costs = self.costs.as_ref().expect("it is here");
        Spread::of(costs.iter().map(|cost| cost.peak_kib as f64 / 1024.0))
    }

    pub fn line(&self) -> Line {
        self.line_of(Self::ms)
    }

    pub fn line_of(&self, what: impl Fn(&Self) -> Spread) -> Line {
        match self.costs {
            Some(_) => Line::new(self.name, what(self)),
            None => Line::missing(self.name, "not installed"),
        }
    }
}

pub fn ms(all: impl IntoIterator<Item = Duration>) -> Spread {
    Spread::of(all.into_iter().map(|took| took.as_secs_f64() * 1e3))
}

/// Runs every way in turns, so that the machine's moods meet all alike.
pub fn in_turns(progress: &Progress, rounds: usize, ways: Vec<Way<'_>>) -> Vec<Measured> {
    let mut all: Vec<Measured> =
        ways.iter().map(|way| Measured { name: way.name, costs: way.once.as_ref().map(|_| Vec::new()) }).collect();
    let mut ways = ways;
    for round in 0..rounds {
        for (way, measured) in ways.iter_mut().zip(&mut all) {
            if let (Some(once), Some(costs)) = (&mut way.once, &mut measured.costs) {
                progress.round(way.name, round, rounds);
                costs.push(once());
            }
        }
    }
    all
}

/// Runs it to its end; its output goes nowhere. Panics if it fails.
pub fn run(command: &mut Command) -> Cost {
    cost(command.stdout(Stdio::null()))
}

/// The same with its output in a file that is made anew.
pub fn run_into(file: &Path, command: &mut Command) -> Cost {
    cost(command.stdout(std::fs::File::create(file).expect("a file")))
}

fn cost(command: &mut Command) -> Cost {
    let begun = Instant::now();
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let end = ended(Some(child.id().cast_signed()));
    let took = begun.elapsed();
    assert!(child.wait().expect("it is ours").success(), "{command:?} failed");
    Cost { took, peak_kib: end.peak_kib }
}

/// Waits until that child, or any, has ended, and leaves it to be reaped by whoever has its handle. It sleeps meanwhile: a look
/// every so often would take a CPU's time from what is measured.
pub fn ended(child: Option<i32>) -> xtask::sys::Exited {
    let id = || child.map_or(Id::All, |pid| Id::Pid(Pid::from_raw(pid)));
    while let Err(error) = waitid(id(), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
        assert_eq!(error, Errno::EINTR, "it is ours");
    }
    sys::peek_exited(child).expect("it is ours").expect("it has ended")
}

pub fn timed(once: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    once();
    begun.elapsed()
}

/// So many rounds of one thing alone.
pub fn rounds(progress: &Progress, what: &str, count: usize, mut once: impl FnMut() -> Duration) -> Spread {
    ms((0..count).map(|round| {
        progress.round(what, round, count);
        once()
    }))
}
