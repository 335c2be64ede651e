//! How fast the lock changes hands: after a release and after the death of its holder, and how that grows with waiters.

use crate::contender::{FLOCK_1, FLOCK_2, HandOvers, POLL, XTASK, kills, releases};
use crate::peers::is_installed;
use crate::progress::Progress;
use crate::table::{Aim, Curve, Line, Row, Spread, Unit};

pub fn released(progress: &Progress, waiters: usize) -> Vec<Row> {
    let found =
        all(&[XTASK, FLOCK_2, FLOCK_1, POLL], waiters, &|peer, rounds| releases(progress, peer, waiters, rounds));
    let [p50, p99] = rows(&format!("hand-over, release to next of {waiters} waiters"), &found);
    vec![p50.aim(Aim::Median(0.3)), p99.aim(Aim::Median(3.0))]
}

pub fn killed(progress: &Progress, waiters: usize) -> Vec<Row> {
    // The holder of flock(1) is two processes; which one to kill is another question.
    let found = all(&[XTASK, FLOCK_2, POLL], waiters, &|peer, rounds| kills(progress, peer, waiters, rounds));
    let [p50, p99] = rows(&format!("hand-over after SIGKILL of the holder, {waiters} waiters"), &found);
    vec![p50.aim(Aim::Median(2.0)), p99]
}

pub fn growth(progress: &Progress, most: usize) -> Vec<Curve> {
    let mut released = curve("release to next holder, p50");
    let mut killed = curve("SIGKILL of the holder to next holder, p50");
    for waiters in [1, 4, 16, 64, 256].into_iter().filter(|waiters| *waiters <= most) {
        let rounds = match waiters {
            0..=16 => 200,
            17..=64 => 100,
            _ => 50,
        };
        let released_by = |peer| releases(progress, peer, waiters, rounds);
        let killed_by = |peer| kills(progress, peer, waiters, rounds / 2);
        released.points.push((waiters as u64, point([XTASK, FLOCK_2].map(released_by))));
        killed.points.push((waiters as u64, point([XTASK, FLOCK_2].map(killed_by))));
    }
    vec![released, killed]
}

fn curve(what: &str) -> Curve {
    Curve { what: what.to_owned(), of: "waiter", points: Vec::new() }
}

fn point([ours, flock]: [HandOvers; 2]) -> Row {
    row("", &[(XTASK, Some(ours)), (FLOCK_2, Some(flock))], &median, &note)
}

fn all(
    peers: &[&'static str],
    waiters: usize,
    measure: &dyn Fn(&str, usize) -> HandOvers,
) -> Vec<(&'static str, Option<HandOvers>)> {
    let rounds = |peer: &str| match peer {
        // What is polled or spawned takes its time; fewer rounds say as much about it.
        POLL | FLOCK_1 => 40,
        _ if waiters > 8 => 150,
        _ => 400,
    };
    let found = |peer: &'static str| (peer != FLOCK_1 || is_installed("flock")).then(|| measure(peer, rounds(peer)));
    peers.iter().map(|peer| (*peer, found(peer))).collect()
}

fn rows(what: &str, found: &[(&str, Option<HandOvers>)]) -> [Row; 2] {
    let p99 = |found: &HandOvers| Spread::one(found.at(0.99));
    [row(&format!("{what}, p50"), found, &median, &note), row("the same, p99", found, &p99, &|_| String::new())]
}

fn row(
    what: &str,
    found: &[(&str, Option<HandOvers>)],
    take: &dyn Fn(&HandOvers) -> Spread,
    note: &dyn Fn(&HandOvers) -> String,
) -> Row {
    let line = |(name, found): &(&str, Option<HandOvers>)| match found {
        Some(found) => Line::new(name, take(found)).note(&note(found)),
        None => Line::missing(name, "not installed"),
    };
    let ours = found[0].1.as_ref().expect("ours is measured");
    Row::new(what, Unit::Ms).ours(take(ours)).note(&note(ours)).beside(found[1..].iter().map(line))
}

fn median(found: &HandOvers) -> Spread {
    Spread { median: found.at(0.5), least: found.at(0.0), most: found.at(1.0) }
}

// A turn beyond the number of waiters went to somebody who came later.
fn note(found: &HandOvers) -> String {
    format!("{} hand-overs, at most {} turns before one's own", found.latencies.len(), found.most_turns)
}
