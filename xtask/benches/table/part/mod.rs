//! The parts of the table. Each measures one thing and gives rows or curves; none prints.

use crate::progress::Progress;
use crate::request::Name;
use crate::table::{Curve, Row};

mod cargo;
mod dag;
mod growth;
mod hand_over;
mod kills;
mod many;
mod noisy;
mod one;
mod output;
mod overshoot;
mod postgres;
mod receipt;
mod storm;
mod waiting;

/// One part.
pub struct Part {
    pub name: Name,
    pub what: &'static str,
    /// How many of what, unless a count is given.
    pub count: usize,
    pub counted: &'static str,
    /// Set for what is done by name only: its row without a measurement.
    pub by_hand: Option<fn() -> Row>,
    pub does: Does,
}

/// Measures with that count. Panics where something is not as it must be.
pub enum Does {
    Rows(fn(&Progress, usize) -> Vec<Row>),
    Curves(fn(&Progress, usize) -> Vec<Curve>),
}

const fn rows(
    group: &'static str,
    name: &'static str,
    count: usize,
    counted: &'static str,
    what: &'static str,
    does: fn(&Progress, usize) -> Vec<Row>,
) -> Part {
    Part { name: Name { name, group }, what, count, counted, by_hand: None, does: Does::Rows(does) }
}

const fn grows(name: &'static str, count: usize, what: &'static str, does: fn(&Progress, usize) -> Vec<Curve>) -> Part {
    Part {
        name: Name { name, group: "growth" },
        what,
        count,
        counted: "at most",
        by_hand: None,
        does: Does::Curves(does),
    }
}

const fn by_hand(part: Part, row: fn() -> Row) -> Part {
    Part { by_hand: Some(row), ..part }
}

/// In the order of the table.
pub const PARTS: &[Part] = &[
    rows("lock", "hand-over", 8, "waiters", "the lock goes to the next after a release", hand_over::released),
    rows("lock", "killed-holder", 8, "waiters", "the lock goes to the next after a SIGKILL", hand_over::killed),
    rows("lock", "storm", 50_000, "acquisitions", "whether two ever hold the lock", storm::measure),
    rows("lock", "waiting", 60, "seconds", "what 64 waiters cost", waiting::measure),
    rows("run", "one", 30, "rounds", "a whole command for one task `true`", one::measure),
    rows("run", "alias", 20, "rounds", "through `cargo xtask`", cargo::alias),
    rows("run", "many", 10, "rounds", "200 tasks `true`", many::measure),
    rows("run", "dag", 3, "rounds", "40 tasks in the best order", dag::measure),
    rows("run", "overshoot", 10, "rounds", "a task that will not end", overshoot::measure),
    rows("run", "kills", 50, "kills", "what is left after a SIGKILL to a run", kills::measure),
    rows("service", "postgres", 15, "rounds", "a throwaway PostgreSQL", postgres::measure),
    by_hand(
        rows("service", "postgres-kills", 200, "kills", "what is left of a server after a SIGKILL", postgres::kills),
        postgres::kills_row,
    ),
    rows("run", "noisy", 9, "pairs", "a task beside one that computes", noisy::measure),
    rows("receipt", "gate", 40, "rounds", "the gate judges a signed receipt", receipt::gate),
    rows("receipt", "snapshot", 20_000, "files", "a tree is read", receipt::snapshot),
    rows("run", "output", 5, "rounds", "a task that prints 200 MB", output::measure),
    by_hand(
        rows("build", "cold", 3, "rounds", "the program is built on a fresh machine", cargo::cold),
        cargo::cold_row,
    ),
    grows("order", 10_000, "tasks in a simulated run", growth::simulated),
    grows("tasks", 10_000, "tasks `true` in a real one", growth::tasks),
    grows("waiters", 256, "waiters, and how fast the lock goes to the next", hand_over::growth),
    grows("waiters-cpu", 256, "waiters, and what they cost", waiting::growth),
    grows("receipts", 10_000, "receipts that are read", growth::receipts),
    grows("tree", 100_000, "files of a tree that is read", growth::tree),
    grows("log", 2_000, "megabytes of a log", growth::log),
];

/// The parts and what a count means for each.
pub fn help() -> String {
    let line = |part: &Part| {
        let only = if part.by_hand.is_some() { "; by name only" } else { "" };
        let Part { name: Name { name, group }, what, count, counted, .. } = part;
        format!("  {name:<15} {group:<9} {what} ({count} {counted}{only})\n")
    };
    let lines: String = PARTS.iter().map(line).collect();
    format!(
        "cargo bench --bench table -- [--markdown] [--optimised | --program PATH] [PART [COUNT] | GROUP] ...\n\n  part            group\n{lines}"
    )
}
