//! The wait for a lock as rows of a terminal: who has it, until when, and what that means for this run.

use std::time::Duration;

use super::clean;
use super::lines::QUOTE_MAX;
use super::pen::{Tone, whole};
use super::rows::width;
use crate::event::{Claim, Event, Stamped};
use crate::lock::news;
use crate::time::{Human, Moment, utc_clock};

/// Where the values of the rows begin; further to the left on a narrow terminal.
const INDENT: usize = 13;
const NARROW: usize = 60;

/// The lock that the run waits for, as it was seen last.
#[derive(Debug)]
pub(super) struct Queue {
    lock: String,
    since: Moment,
    budget: Duration,
    /// Label and value.
    facts: Vec<(&'static str, String)>,
}

impl Queue {
    /// From a `Queued` at this wall clock (milliseconds since 1970); none from any other event.
    pub fn new(stamped: &Stamped, wall_ms: u64) -> Option<Self> {
        let Event::Queued { scope, port, holder, text, waited, budget } = &stamped.event else { return None };
        let since = Moment::from_nanos(stamped.at.as_nanos().saturating_sub(waited.as_nanos() as u64));
        let ends_ms = wall_ms + crate::time::millis(budget.saturating_sub(*waited));
        let facts = match holder {
            Some(claim) => facts(claim, wall_ms, ends_ms),
            None => text.iter().map(|line| ("", clean::line(line.as_bytes(), QUOTE_MAX))).collect(),
        };
        Some(Self { lock: format!("{scope} lock 127.0.0.1:{port}"), since, budget: *budget, facts })
    }

    /// The rows, cut at no more than `columns`; a long fact goes on in the next row.
    pub fn rows(&self, now: Moment, columns: usize) -> Vec<(Option<Tone>, String)> {
        let times = format!("{} of {}", whole(now.since(self.since)), Human(self.budget));
        let mut rows = vec![(Some(Tone::Warn), format!("     Waiting {times} for the {}", self.lock))];
        let indent = if columns < NARROW { 2 } else { INDENT };
        let last = ("Ctrl-C", "leaves the queue, nothing has run".to_owned());
        for (label, value) in self.facts.iter().chain([&last]) {
            let text = if label.is_empty() { value.clone() } else { format!("{label:<9} {value}") };
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let (part, more) = split(rest, columns.saturating_sub(indent).max(8));
                rows.push((None, format!("{:indent$}{part}", "")));
                rest = more;
            }
        }
        rows
    }
}

// What the holder says of itself is a claim; the lock has cut and cleaned it when it read it.
fn facts(claim: &Claim, wall_ms: u64, ends_ms: u64) -> Vec<(&'static str, String)> {
    let clean = |text: String| clean::line(text.as_bytes(), QUOTE_MAX);
    let who = Some(news::who(claim)).filter(|who| !who.is_empty());
    let mut facts = vec![("held by", clean(who.unwrap_or_else(|| "an xtask that says no more of itself".to_owned())))];
    let ends = format!("your budget ends {}", utc_clock(ends_ms));
    match claim.free_at_ms.map(|free| (utc_clock(free), free > ends_ms)) {
        Some((free, true)) => {
            facts.push(("warning", format!("free at {free} at the latest, but {ends}: you may be refused")))
        }
        Some((free, false)) => facts.push(("at latest", format!("free at {free}; {ends}"))),
        None => facts.push(("you", ends)),
    }
    if let Some(since) = claim.since_ms {
        let running = whole(Duration::from_millis(wall_ms.saturating_sub(since)));
        facts.push(("since", format!("{}, running {running}{}", utc_clock(since), news::progress(claim))));
    }
    facts.extend(news::ahead(claim).map(|ahead| ("waiting", ahead)));
    facts
}

// The part of a text that fits so many columns, cut at a space where there is one in its second half, and the rest.
fn split(text: &str, columns: usize) -> (&str, &str) {
    let Some((end, _)) = text.char_indices().find(|&(i, c)| width(&text[..i + c.len_utf8()]) > columns) else {
        return (text, "");
    };
    let space = text[..end].rfind(' ').filter(|&space| space > end / 2);
    let (part, rest) = text.split_at(space.unwrap_or(end));
    (part, rest.trim_start())
}
