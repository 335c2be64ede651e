//! What is asked for and done in one run of a soak, and the exit codes that it may end with.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::soak_gate::Step;
use crate::soak_ground::Ground;
use crate::soak_suite::{Dice, RandomSuite};

/// What is done to the processes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    Ask(Signal),
    AskTwice,
    KillKeeper,
    KillGroup,
    KillRunner,
    KillBoth,
    KillTask,
    /// Stopped for so long.
    Pause(Duration),
}

const BLOWS: &[Blow] = &[
    Blow::Ask(Signal::SIGINT),
    Blow::Ask(Signal::SIGTERM),
    Blow::Ask(Signal::SIGHUP),
    Blow::AskTwice,
    Blow::KillKeeper,
    Blow::KillGroup,
    Blow::KillRunner,
    Blow::KillRunner,
    Blow::KillBoth,
    Blow::KillTask,
    Blow::Pause(Duration::from_millis(300)),
];

/// What is done to its disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    Fine,
    /// Full but for so many bytes.
    FullReceipts(u64),
    FullScratch(u64),
    NoInodes,
    FullLogs(u64),
}

/// One run, or two of one folder at once: what is asked for and what is done to it.
#[derive(Debug, Clone)]
pub struct Plan {
    pub suite: RandomSuite,
    pub token: String,
    pub blow: Option<Blow>,
    /// The blow falls so long after the start, or after there is a runner.
    pub moment: Duration,
    pub in_the_run: bool,
    pub disk: Disk,
    pub sync_ms: u64,
    pub step: Option<Step>,
    pub queue: Option<&'static str>,
    pub dirty: bool,
    pub alone: bool,
    pub twins: bool,
}

impl Plan {
    /// A random one. `disks`: whether there are small ones to fill.
    pub fn new(dice: &mut Dice, ground: &Ground, token: String, disks: bool) -> Self {
        let suite = RandomSuite::new(dice, &ground.misbehave, &ground.witness, &token);
        let blow = dice.percent(45).then(|| *dice.pick(BLOWS));
        let but = dice.below(4) * 4096;
        let full = [Disk::FullReceipts(but), Disk::FullScratch(but), Disk::NoInodes, Disk::FullLogs(but)];
        let disk = if dice.percent(15) && disks { *dice.pick(&full) } else { Disk::Fine };
        let slow = dice.percent(15) && ground.shim.is_some();
        let step = (dice.percent(15) && ground.shim.is_some()).then(|| {
            let at_ms = xtask::sys::now().as_nanos() / 1_000_000 + dice.below(1500);
            Step { by_ms: *dice.pick(&[600_000, -600_000, 900, -900]), at_ms }
        });
        // The second of two finds the file that a task of the first has made.
        let twins = dice.percent(12) && suite.code != 7 && blow != Some(Blow::KillTask);
        Self {
            token,
            blow,
            moment: Duration::from_micros(dice.below(700_000)),
            in_the_run: dice.percent(60),
            disk,
            sync_ms: if slow { 20 + dice.below(300) } else { 0 },
            step,
            queue: dice.percent(15).then(|| *dice.pick(&["0s", "100ms", "700ms"])),
            dirty: dice.percent(10),
            alone: dice.percent(8),
            twins,
            suite,
        }
    }

    /// Exit codes that such a run may end with; 1000 + signal where a signal ends the program.
    pub fn codes(&self) -> BTreeSet<i32> {
        let own = if self.alone { self.suite.alone.1 } else { self.suite.code };
        let mut codes = BTreeSet::from([own]);
        codes.extend(self.queue.map(|_| 4));
        codes.extend(match self.disk {
            Disk::Fine => vec![],
            Disk::FullReceipts(_) => vec![7],
            // Without the folder of the user nothing begins.
            Disk::FullScratch(_) | Disk::NoInodes => vec![7, 2],
            Disk::FullLogs(_) => vec![1, 3, 7],
        });
        codes.extend(match self.blow {
            // One that has not begun yet dies of the signal.
            Some(Blow::Ask(signal)) => vec![128 + signal as i32, 1000 + signal as i32],
            Some(Blow::AskTwice) => vec![130, 1002],
            Some(Blow::KillKeeper | Blow::KillGroup | Blow::KillBoth) => vec![1009],
            Some(Blow::KillRunner) => vec![7],
            Some(Blow::KillTask) => vec![0, 1, 3],
            Some(Blow::Pause(_)) | None => vec![],
        });
        codes
    }
}
