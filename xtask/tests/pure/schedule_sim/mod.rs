//! Random suites, run by the schedule against fake processes that do whatever processes do, and a referee that knows the
//! rules but not the schedule.
//!
//! `XTASK_SIM_SEEDS=N` plays N seeds instead of the usual number, `XTASK_SIM_SEED=S` plays that one and prints it.

mod referee;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use xtask::name::Name;
use xtask::plan::schedule::{Ending, Input, Schedule, Why};
use xtask::plan::{Plan, Planned};
use xtask::suite::OnFailure;
use xtask::time::Moment;
use xtask::verdict::{Cause, ExitStatus, Stop, Verdict};

const USUAL_SEEDS: u64 = 20_000;

#[test]
fn random_suites() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let one = number("XTASK_SIM_SEED");
    let seeds = one.map_or(0..number("XTASK_SIM_SEEDS").unwrap_or(USUAL_SEEDS), |seed| seed..seed + 1);
    let mut seen = BTreeSet::new();
    for seed in seeds {
        let played = std::panic::catch_unwind(|| {
            let mut dice = Dice(seed);
            let plan = random_plan(&mut dice);
            World::new(&plan, dice, one.is_some(), true).play()
        });
        match played {
            Ok(endings) => seen.extend(endings),
            Err(panic) => {
                let what = panic.downcast_ref::<String>().cloned();
                let what =
                    what.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned())).unwrap_or_default();
                panic!("seed {seed}: {what}\nagain: XTASK_SIM_SEED={seed} cargo test --test pure random_suites");
            }
        }
    }
    // A simulation in which nothing ever goes wrong proves nothing.
    let all = [
        "passed",
        "failed exit",
        "failed leftovers",
        "failed log",
        "failed output",
        "failed spawn",
        "late task",
        "late run",
        "cancelled",
        "not-run needs",
        "not-run on-failure",
        "not-run run",
        "not-run cancelled",
        "not-run no-verdict",
        "killed in its grace",
        "killed by the last grace",
        "asked as it began",
        "killed as it began",
        "went ahead",
        "withdrawn",
        "passed though it was asked",
        "run late",
    ];
    let missing: Vec<&str> = all.into_iter().filter(|what| !seen.contains(what)).collect();
    assert!(one.is_some() || missing.is_empty(), "no seed showed: {missing:?}");
}

#[test]
fn ten_thousand_tasks() {
    for (mutexes, usual) in [(40, false), (1, true)] {
        let mut dice = Dice(mutexes);
        let tasks =
            (0..10_000).map(|i| random_task(&mut dice, i, 16, mutexes, if usual { 2 } else { 0 }, ms(1))).collect();
        let plan = Plan {
            tasks,
            slots: 16,
            deadline: Duration::from_secs(100_000),
            wrap_up: Duration::from_secs(6),
            stop_grace: Duration::from_secs(4),
            on_failure: OnFailure::Finish,
            partial: false,
        };
        World::new(&plan, dice, false, false).play();
    }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn random_plan(dice: &mut Dice) -> Plan {
    let slots = if dice.once_in(2) { 1 + dice.below(3) } else { 1 + dice.below(8) };
    let tasks = if dice.once_in(10) { 1 + dice.below(40) } else { 1 + dice.below(10) };
    // Where every duration is known the order is searched, which takes a hundred times as long as the run.
    let (mutexes, known) = (dice.below(4) as u64, if dice.once_in(40) { 2 } else { dice.below(2) });
    // With a coarse grain many things happen in the same instant.
    let grain = if dice.once_in(2) { ms(1) } else { Duration::from_nanos(1) };
    let tasks: Vec<Planned> = (0..tasks).map(|i| random_task(dice, i, slots, mutexes, known, grain)).collect();
    let stop_grace = dice.up_to(ms(6), grain);
    let wrap_up = stop_grace + dice.up_to(ms(4), grain);
    let whole: Duration = tasks.iter().map(|task| task.deadline).sum();
    let deadline = if dice.once_in(3) { dice.up_to(whole + wrap_up, grain) } else { whole * 2 + wrap_up };
    let on_failure = if dice.once_in(4) { OnFailure::Stop } else { OnFailure::Finish };
    Plan { tasks, slots, deadline, wrap_up, stop_grace, on_failure, partial: false }
}

fn random_task(dice: &mut Dice, i: usize, slots: usize, mutexes: u64, known: usize, grain: Duration) -> Planned {
    let mut needs = BTreeSet::new();
    for _ in 0..if i == 0 || dice.once_in(2) { 0 } else { 1 + dice.below(2) } {
        needs.insert(i - 1 - dice.below(i.min(12)));
    }
    let deadline = ms(1) + dice.up_to(ms(60), grain);
    let usual = match known {
        0 => None,
        1 if dice.once_in(2) => None,
        _ => Some(if dice.once_in(8) { dice.up_to(ms(90), grain) } else { dice.up_to(deadline / 2, grain) }),
    };
    let mutex =
        (mutexes > 0 && dice.once_in(2)).then(|| Name::parse(&format!("m{}", dice.below(mutexes as usize))).unwrap());
    let slots = if dice.once_in(2) { 1 } else { 1 + dice.below(slots) };
    Planned {
        name: Name::parse(&format!("t{i}")).unwrap(),
        needs: needs.into_iter().collect(),
        slots,
        mutex,
        deadline,
        usual,
    }
}

/// What a fake process does.
#[derive(Debug, Clone)]
struct Fate {
    /// From the decision to the process; none if it cannot be had.
    appears: Option<Duration>,
    /// From the process to its own end.
    lasts: Duration,
    status: ExitStatus,
    leftovers: bool,
    leftovers_fail: bool,
    missing: bool,
    /// From being asked to ending; none if it does not listen.
    obeys: Option<Duration>,
    /// Whether it then says that all is well.
    lies: bool,
    /// From SIGKILL to its end.
    dies: Duration,
    /// From the leader's end to all of it being gone.
    sweep: Duration,
    /// From the process to the moment its log is full.
    floods: Option<Duration>,
}

fn random_fate(dice: &mut Dice, task: &Planned) -> Fate {
    let grain = if dice.once_in(2) { ms(1) } else { Duration::from_nanos(1) };
    let ns = Duration::from_nanos(1);
    let lasts = match dice.below(10) {
        0 => task.deadline,
        1 => task.deadline + ns,
        2 => task.deadline - ns,
        3 => task.deadline * 3,
        _ => dice.up_to(task.usual.unwrap_or(task.deadline) * 2, grain).min(task.deadline),
    };
    Fate {
        appears: (!dice.once_in(40)).then(|| if dice.once_in(2) { Duration::ZERO } else { dice.up_to(ms(4), grain) }),
        lasts,
        status: match dice.below(12) {
            0 => ExitStatus::Code(1),
            1 => ExitStatus::Signal(11),
            _ => ExitStatus::Code(0),
        },
        leftovers: dice.once_in(12),
        leftovers_fail: dice.once_in(2),
        missing: dice.once_in(20),
        obeys: (!dice.once_in(3)).then(|| dice.up_to(ms(5), grain)),
        lies: dice.once_in(2),
        dies: dice.up_to(ms(2), grain),
        sweep: if dice.once_in(2) { Duration::ZERO } else { dice.up_to(ms(3), grain) },
        floods: dice.once_in(15).then(|| dice.up_to(task.deadline, grain)),
    }
}

/// What the referee knows of a task.
#[derive(Debug, Clone, Default)]
struct Seen {
    decided: Option<Moment>,
    started: Option<Moment>,
    /// When that was told.
    told: Option<Moment>,
    slots: Vec<usize>,
    asked: Option<(Moment, Why)>,
    killed: Option<Moment>,
    log_full: bool,
    /// What it is if it has not started yet.
    withdrawn: Option<Verdict>,
    /// How the leader ended; the schedule hears of it later.
    dead: Option<Ending>,
    /// The schedule has heard of the end, or that there was no beginning.
    over: bool,
    verdict: Option<Verdict>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Coming {
    Appears(usize),
    /// The leader ends by this signal, or by itself (0).
    Dies(usize, i32),
    Gone(usize),
    Floods(usize),
    Stop(Stop),
    Lost,
}

struct World<'a> {
    plan: &'a Plan,
    dice: Dice,
    /// Prints what happens.
    loud: bool,
    /// Compares each choice with the definition, which takes a look at every task.
    picky: bool,
    schedule: Schedule,
    now: Moment,
    cut: Moment,
    last_grace: Moment,
    coming: BinaryHeap<Reverse<(Moment, u64, Coming)>>,
    fates: Vec<Fate>,
    seen: Vec<Seen>,
    active: Vec<usize>,
    slots: Vec<Option<usize>>,
    without_verdict: usize,
    stops: Vec<Stop>,
    /// Since when and as what the run is stopped.
    halt: Option<(Moment, Verdict)>,
    lost: bool,
    run_late: bool,
    failed: bool,
    done: bool,
    endings: BTreeSet<&'static str>,
}

impl<'a> World<'a> {
    fn new(plan: &'a Plan, mut dice: Dice, loud: bool, picky: bool) -> Self {
        let won = Moment::from_nanos(1_000_000_000);
        let cut = won + plan.deadline.saturating_sub(plan.wrap_up);
        let mut world = Self {
            schedule: Schedule::new(plan, won),
            now: won,
            cut,
            last_grace: (won + plan.deadline.saturating_sub(plan.wrap_up - plan.stop_grace)),
            coming: BinaryHeap::new(),
            fates: plan.tasks.iter().map(|task| random_fate(&mut dice, task)).collect(),
            seen: vec![Seen::default(); plan.tasks.len()],
            active: Vec::new(),
            slots: vec![None; plan.slots],
            without_verdict: plan.tasks.len(),
            stops: Vec::new(),
            halt: None,
            lost: false,
            run_late: false,
            failed: false,
            done: false,
            endings: BTreeSet::new(),
            plan,
            dice,
            loud,
            picky,
        };
        let horizon = plan.tasks.iter().map(|task| task.deadline).sum::<Duration>() / 2;
        if picky && world.dice.once_in(5) {
            for _ in 0..1 + world.dice.below(3) {
                let stop = [Stop::Hup, Stop::Int, Stop::Term][world.dice.below(3)];
                let at = world.dice.up_to(horizon, ms(1));
                world.will(at, Coming::Stop(stop));
            }
        }
        if picky && world.dice.once_in(15) {
            let at = world.dice.up_to(horizon, ms(1));
            world.will(at, Coming::Lost);
        }
        world
    }

    fn will(&mut self, later: Duration, coming: Coming) {
        self.coming.push(Reverse((self.now + later, self.dice.next(), coming)));
    }

    fn play(mut self) -> BTreeSet<&'static str> {
        self.feed(Input::Tick);
        while !self.done {
            // A loaded machine looks at the clock late.
            let late =
                if self.dice.once_in(6) { self.dice.up_to(ms(3), Duration::from_nanos(1)) } else { Duration::ZERO };
            let tick = self.schedule.wake_at().map(|wake| wake + late);
            let event = self.coming.peek().map(|Reverse((at, ..))| *at);
            assert!(
                tick.is_some() || event.is_some(),
                "deadlock: nothing is due and {} are open",
                self.without_verdict
            );
            if event.is_some_and(|event| tick.is_none_or(|tick| event <= tick)) {
                let Reverse((at, _, coming)) = self.coming.pop().unwrap();
                self.now = self.now.max(at);
                self.happens(at, coming);
            } else {
                self.now = self.now.max(tick.unwrap());
                self.feed(Input::Tick);
            }
        }
        self.endings
    }

    fn happens(&mut self, at: Moment, coming: Coming) {
        match coming {
            Coming::Appears(task) => {
                let fate = &self.fates[task];
                if fate.appears.is_none() {
                    self.seen[task].over = true;
                    let spawn = || Verdict::Failed(Cause::Spawn("not there".to_owned()));
                    let verdict = self.seen[task].withdrawn.clone().unwrap_or_else(spawn);
                    return self.feed(Input::NotStarted(task, verdict));
                }
                let (lasts, floods) = (fate.lasts, fate.floods);
                // It began when it was asked for or a little later, and is heard of now.
                let ago = fate.appears.unwrap_or_default().as_nanos() as u64 / 2;
                let began = Moment::from_nanos(self.now.as_nanos() - ago);
                self.seen[task].started = Some(began);
                self.seen[task].told = Some(self.now);
                self.will(lasts, Coming::Dies(task, 0));
                if let Some(floods) = floods {
                    self.will(floods, Coming::Floods(task));
                }
                self.feed(Input::Started(task, began));
            }
            Coming::Dies(task, signal) if self.seen[task].dead.is_none() => {
                let fate = self.fates[task].clone();
                self.seen[task].dead = Some(Ending {
                    status: match signal {
                        0 => fate.status,
                        15 if fate.lies => ExitStatus::Code(0),
                        signal => ExitStatus::Signal(signal),
                    },
                    at,
                    leftovers: if fate.leftovers { vec!["sleep 7".to_owned()] } else { Vec::new() },
                    leftovers_fail: fate.leftovers_fail,
                    trouble: fate.missing.then(|| "no app".to_owned()),
                });
                self.will(fate.sweep, Coming::Gone(task));
            }
            Coming::Gone(task) => {
                self.seen[task].over = true;
                let ending = self.seen[task].dead.clone().expect("gone is dead");
                self.feed(Input::Ended(task, ending));
            }
            Coming::Floods(task) => {
                self.seen[task].log_full |= !self.seen[task].over;
                self.feed(Input::LogFull(task, 64));
            }
            Coming::Stop(stop) => {
                self.stops.push(stop);
                self.feed(Input::Stop(stop));
            }
            Coming::Lost => {
                self.lost = true;
                self.feed(Input::NoVerdict);
            }
            Coming::Dies(..) => {}
        }
    }

    #[allow(clippy::print_stdout, reason = "a seed that is played alone is printed")]
    fn feed(&mut self, input: Input) {
        if self.loud {
            println!("{:>12} {input:?}", self.now.as_nanos() - 1_000_000_000);
        }
        for action in self.schedule.on(self.now, input) {
            if self.loud {
                println!("             -> {action:?}");
            }
            self.judge(action);
        }
        if let Some(stop) = self.stops.first() {
            self.halt.get_or_insert((self.now, Verdict::Cancelled(*stop)));
        }
        if self.lost {
            self.halt.get_or_insert((self.now, Verdict::Cancelled(Stop::Term)));
        }
        self.look_around();
    }

    fn halted(&self) -> bool {
        let on_failure = self.failed && self.plan.on_failure == OnFailure::Stop;
        !self.stops.is_empty() || self.lost || on_failure || self.cut <= self.now
    }
}

/// SplitMix64: what a seed shows, it shows again.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One grain at least, `most` or a little over it at most.
    fn up_to(&mut self, most: Duration, grain: Duration) -> Duration {
        let grains = most.as_nanos() / grain.as_nanos();
        grain * u32::try_from(1 + u128::from(self.next()) % grains.max(1)).unwrap()
    }
}
