//! Whether two ever hold the lock.

use std::time::{Duration, Instant};

use crate::contender::again;
use crate::lock_storm::{Outcome, Storm};
use crate::progress::Progress;
use crate::table::{Aim, Line, Row, Spread, Unit};
use crate::world::{Folder, Ports};

const ALL: usize = 1_000_000;

pub fn measure(progress: &Progress, acquisitions: usize) -> Vec<Row> {
    progress.step(&format!("{acquisitions} acquisitions by 8 processes, holders killed at random"));
    let (ours, note) = rage(acquisitions, false);
    progress.step("the same with a lock that is broken on purpose");
    let (broken, broken_note) = rage(5_000, true);
    let by_hand = match acquisitions < ALL {
        true => format!("; a million by hand: cargo bench --bench table -- storm {ALL}"),
        false => String::new(),
    };
    let what = format!("times that two held the lock, of {acquisitions} acquisitions with random SIGKILLs");
    let control = Line::new("a lock broken on purpose", Spread::one(broken.two_holders as f64));
    let row = Row::new(&what, Unit::Count).aim(Aim::Every(0.0)).ours(Spread::one(ours.two_holders as f64));
    vec![row.note(&(note + &by_hand)).beside([control.note(&broken_note)])]
}

fn rage(count: usize, broken: bool) -> (Outcome, String) {
    let (folder, ports) = (Folder::new(), Ports::take(2));
    let last = if broken { ports.first + 1 } else { ports.first };
    let storm = Storm {
        folder: folder.path().to_owned(),
        ports: vec![ports.first, last],
        processes: 8,
        acquisitions: count as u64,
        limit: Duration::from_secs(3600),
        seed: xtask::sys::now().as_nanos(),
    };
    let begun = Instant::now();
    let outcome = storm.run(|| again("storm"));
    let Outcome { acquisitions, killed_holders, gave_up, .. } = outcome;
    let seconds = begun.elapsed().as_secs_f64();
    let note = format!("{acquisitions} in {seconds:.0} s, {killed_holders} holders killed, {gave_up} gave up");
    (outcome, note)
}
