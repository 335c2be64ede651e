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
    /// The runner is stopped for good, and the run asked to end, twice.
    Freeze,
    /// The runner is stopped for good. The run has a short deadline.
    FreezeShort,
}

/// When it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// A moment after the start.
    Asked,
    /// A moment after there is a runner.
    InTheRun,
    /// While the receipt is on its way to the disk, which is slow.
    AtTheReceipt,
}

impl Blow {
    /// The process that the user has started dies, and says nothing of how the run ended.
    pub fn kills_the_keeper(self) -> bool {
        matches!(self, Self::KillKeeper | Self::KillGroup | Self::KillBoth)
    }

    /// The run is asked to end.
    pub fn asks(self) -> bool {
        matches!(self, Self::Ask(_) | Self::AskTwice | Self::Freeze)
    }

    /// One of the two processes dies, or both do.
    pub fn kills(self) -> bool {
        self.kills_the_keeper() || self == Self::KillRunner
    }
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
    PAUSE,
    Blow::Freeze,
];

const PAUSE: Blow = Blow::Pause(Duration::from_millis(300));

/// How long a receipt takes to the disk, where that makes a run late that has a short deadline.
const TOO_LONG_MS: u64 = 4100;

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
    pub when: When,
    pub moment: Duration,
    /// If one of the two processes is killed, so long is the other one stopped before it can see that.
    pub blind: Duration,
    pub disk: Disk,
    pub sync_ms: u64,
    pub receipt_ms: u64,
    pub step: Option<Step>,
    /// From this moment of the monotonic clock on the machine has slept for some seconds.
    pub slept_at_ms: Option<u64>,
    pub queue: Option<&'static str>,
    pub dirty: bool,
    pub alone: bool,
    pub twins: bool,
}

impl Plan {
    /// A random one. `disks`: whether there are small ones to fill.
    pub fn new(dice: &mut Dice, ground: &Ground, token: String, disks: bool) -> Self {
        let plan = Self::thrown(dice, ground, token, disks);
        plan.aimed(dice, ground)
    }

    /// The same for a run in peace: nobody does anything to it.
    pub fn in_peace(dice: &mut Dice, ground: &Ground, token: String) -> Self {
        let plan = Self::thrown(dice, ground, token, false);
        Self { blow: None, queue: None, step: None, slept_at_ms: None, twins: false, ..plan }
    }

    fn thrown(dice: &mut Dice, ground: &Ground, token: String, disks: bool) -> Self {
        let suite = RandomSuite::new(dice, &ground.fixture(&token));
        let blow = dice.percent(45).then(|| *dice.pick(BLOWS));
        let but = dice.below(4) * 4096;
        let full = [Disk::FullReceipts(but), Disk::FullScratch(but), Disk::NoInodes, Disk::FullLogs(but)];
        let disk = if dice.percent(15) && disks && !suite.claims { *dice.pick(&full) } else { Disk::Fine };
        let slow = dice.percent(15) && ground.shim.is_some();
        let mut soon = || xtask::sys::now().as_nanos() / 1_000_000 + dice.below(1500);
        let (step_at, slept_at) = (soon(), soon());
        let by_ms = *dice.pick(&[600_000, -600_000, 900, -900]);
        let step = (dice.percent(15) && ground.shim.is_some()).then_some(Step { by_ms, at_ms: step_at });
        // Where it sleeps in a soak, /proc says otherwise of processes: all seem older, and a stray one the shell's.
        let slept_at_ms = (dice.percent(10) && ground.shim.is_some() && !suite.strays).then_some(slept_at);
        // The second of two finds the file that a task of the first has made.
        let twins = dice.percent(12) && suite.code != Some(7) && !suite.strays && blow != Some(Blow::KillTask);
        Self {
            token,
            blow,
            when: if dice.percent(60) { When::InTheRun } else { When::Asked },
            moment: Duration::from_micros(dice.below(700_000)),
            blind: Duration::from_millis(if dice.percent(50) { 300 } else { 0 }),
            disk,
            sync_ms: if slow { 20 + dice.below(300) } else { 0 },
            receipt_ms: 0,
            step,
            slept_at_ms,
            queue: dice.percent(15).then(|| *dice.pick(&["0s", "100ms", "700ms"])),
            dirty: dice.percent(10),
            alone: dice.percent(8),
            twins,
            suite,
        }
    }

    // Some of what is done is done where it hurts most.
    fn aimed(mut self, dice: &mut Dice, ground: &Ground) -> Self {
        let (aim, sharp, short) = (dice.percent(50), dice.percent(40), dice.below(100));
        let (shim, token) = (ground.shim.is_some(), self.token.clone());
        let fixture = ground.fixture(&token);
        let calm = Self { disk: Disk::Fine, step: None, slept_at_ms: None, alone: false, twins: false, ..self.clone() };
        match self.blow {
            // It has passed, and becomes late on the way to the disk.
            _ if short < 2 && shim => {
                Self { suite: fixture.short("say hi", 3), blow: None, receipt_ms: TOO_LONG_MS, sync_ms: 0, ..calm }
            }
            _ if short == 2 => {
                let (blow, when, moment) = (Some(Blow::FreezeShort), When::InTheRun, Duration::ZERO);
                Self { suite: fixture.short("deaf hang", 3), blow, when, moment, ..calm }
            }
            // The budget is spent before the lock is asked for.
            _ if short < 8 => {
                let moment = Duration::from_micros(dice.below(25_000));
                Self { blow: Some(PAUSE), when: When::Asked, moment, queue: Some("100ms"), twins: false, ..self }
            }
            Some(Blow::Pause(_) | Blow::KillTask) | None => self,
            Some(blow) if blow.kills() && sharp && shim => {
                Self { when: When::AtTheReceipt, moment: Duration::ZERO, sync_ms: 100 + dice.below(200), ..self }
            }
            // What ends this run is the blow, and nothing else.
            Some(blow) if aim || blow == Blow::Freeze => {
                self.suite.never_ends(&fixture);
                Self { when: When::InTheRun, alone: false, twins: false, ..self }
            }
            Some(_) => self,
        }
    }

    /// Whether the disk is slow, or a clock is wrong.
    pub fn needs_the_shim(&self) -> bool {
        self.sync_ms + self.receipt_ms > 0 || self.step.is_some() || self.slept_at_ms.is_some()
    }

    /// Exit codes that such a run may end with; 1000 + signal where a signal ends the program.
    pub fn codes(&self) -> BTreeSet<i32> {
        let own = if self.alone { Some(self.suite.alone.1) } else { self.suite.code };
        let mut codes: BTreeSet<i32> = own.into_iter().collect();
        // What nobody can tell whose it was is trouble of the run, or of a task that looks like the one.
        codes.extend(self.suite.strays.then_some([1, 7]).into_iter().flatten());
        codes.extend(self.queue.map(|_| 4));
        codes.extend(self.slept_at_ms.map(|_| 7));
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
            Some(blow) if blow.kills_the_keeper() => vec![1009],
            Some(Blow::KillRunner | Blow::FreezeShort) => vec![7],
            Some(Blow::Freeze) => vec![130, 143],
            Some(Blow::KillTask) => vec![0, 1, 3],
            _ => vec![],
        });
        codes
    }
}
