//! What waiting for the lock costs.

use std::process::Child;
use std::time::{Duration, Instant};

use crate::contender::{Contenders, Place, XTASK};
use crate::progress::Progress;
use crate::table::{Aim, Curve, Line, Row, Spread, Unit};
use crate::world::until;

pub fn measure(progress: &Progress, seconds: usize) -> Vec<Row> {
    let what = format!("CPU that 64 waiters take in all, for {seconds} s");
    vec![row(&what, &cost(progress, 64, seconds)).aim(Aim::Median(0.5))]
}

pub fn growth(progress: &Progress, most: usize) -> Vec<Curve> {
    let counts = [1, 16, 64, 256].into_iter().filter(|waiters| *waiters <= most);
    // A waiter asks again every 30 s: as long as that is one heartbeat each.
    let points = counts.map(|waiters| (waiters as u64, row("", &cost(progress, waiters, 30)))).collect();
    vec![Curve { what: "CPU that all waiters take, for 30 s".to_owned(), of: "waiter", points }]
}

fn row(what: &str, cost: &Waited) -> Row {
    let holder = Line::new("the holder", cost.holder.share()).note(&cost.holder.note());
    Row::new(what, Unit::Percent).ours(cost.waiters.share()).note(&cost.waiters.note()).beside([holder])
}

struct Waited {
    waiters: Used,
    holder: Used,
}

fn cost(progress: &Progress, waiters: usize, seconds: usize) -> Waited {
    let place = Place::new();
    let contenders = Contenders((0..=waiters).map(|_| place.start(XTASK, Duration::ZERO)).collect());
    let children = &contenders.0;
    until("a holder", || !place.entries().is_empty());
    let holder = place.entries()[0].pid;
    // Whoever comes is greeted, looks around once and then waits.
    let mut before = turns(children);
    until("all to wait", || {
        std::thread::sleep(Duration::from_secs(1));
        let now = turns(children);
        let calm = now.saturating_sub(before) <= 2 * children.len() as u64 / 10;
        before = now;
        calm
    });
    let used = |child: &Child| cpu_time(child.id());
    let before: Vec<Used> = children.iter().map(used).collect();
    let begun = Instant::now();
    for second in 0..seconds {
        progress.round(&format!("{waiters} waiting, second"), second, seconds);
        std::thread::sleep(Duration::from_secs(1));
    }
    let length = begun.elapsed();
    let mut found = Waited { waiters: Used::default(), holder: Used::default() };
    for (child, before) in children.iter().zip(before) {
        let (all, now) =
            (if u64::from(child.id()) == holder { &mut found.holder } else { &mut found.waiters }, used(child));
        all.time += now.time - before.time;
        all.turns += now.turns - before.turns;
        all.length = length;
    }
    found
}

fn turns(children: &[Child]) -> u64 {
    children.iter().map(|child| cpu_time(child.id()).turns).sum()
}

/// Time on a CPU, and how many times it got there, meanwhile.
#[derive(Default)]
struct Used {
    time: Duration,
    turns: u64,
    length: Duration,
}

impl Used {
    fn share(&self) -> Spread {
        Spread::one(100.0 * self.time.as_secs_f64() / self.length.as_secs_f64())
    }

    // The turns say what the program does, the time of one what the machine makes of it.
    fn note(&self) -> String {
        let millis = self.time.as_secs_f64() * 1e3;
        format!("{millis:.1} ms: {} turns of {:.0} us", self.turns, millis * 1e3 / self.turns.max(1) as f64)
    }
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
