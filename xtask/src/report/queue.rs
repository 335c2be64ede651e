//! The wait for a lock as rows of a terminal: who has it, until when, and what that means for this run.

use std::time::Duration;

use super::lines::QUOTE_MAX;
use super::pen::{Tone, whole};
use super::rows;
use crate::clean;
use crate::event::{Claim, Event, Stamped};
use crate::lock::news;
use crate::time::{Human, Moment, millis, utc_when};

/// Where the values of the rows begin; further to the left on a narrow terminal.
const INDENT: usize = 13;
const LABEL: usize = 9;
const NARROW: usize = 60;

/// The lock that the run waits for, as it was seen last.
#[derive(Debug)]
pub(super) struct Queue {
    lock: String,
    since: Moment,
    budget: Duration,
    holder: Option<Box<Claim>>,
    note: Option<String>,
    text: Vec<String>,
}

impl Queue {
    /// From a `Queued`; none from any other event.
    pub fn new(stamped: &Stamped) -> Option<Self> {
        let Event::Queued { scope, port, holder, note, text, waited, budget } = &stamped.event else { return None };
        Some(Self {
            lock: format!("{scope} lock 127.0.0.1:{port}"),
            since: Moment::from_nanos(stamped.at.as_nanos().saturating_sub(waited.as_nanos() as u64)),
            budget: *budget,
            holder: holder.clone(),
            note: note.as_ref().map(|note| clean::line(note.as_bytes(), QUOTE_MAX)),
            text: text.iter().map(|line| clean::line(line.as_bytes(), QUOTE_MAX)).collect(),
        })
    }

    /// The rows for now, which is `wall_ms` milliseconds since 1970; what is too long for `columns` goes on in a further
    /// row, below its value.
    pub fn rows(&self, now: Moment, wall_ms: u64, columns: usize) -> Vec<(Option<Tone>, String)> {
        let waited = now.since(self.since);
        let head = format!("     Waiting {} of {} for the {}", whole(waited), Human(self.budget), self.lock);
        let mut rows = vec![(Some(Tone::Warn), head)];
        let mut facts = match &self.holder {
            Some(claim) => facts(claim, wall_ms, wall_ms + millis(self.budget.saturating_sub(waited))),
            None => self.text.iter().map(|line| ("", line.clone())).collect(),
        };
        facts.extend(self.note.iter().map(|note| ("note", note.clone())));
        facts.push(("Ctrl-C", "leaves the queue, nothing has run".to_owned()));
        let (indent, hang) = if columns < NARROW { (2, 0) } else { (INDENT, LABEL + 1) };
        for (label, value) in facts {
            let text = if label.is_empty() { value } else { format!("{label:<LABEL$} {value}") };
            let (mut rest, mut further) = (text.as_str(), 0);
            while !rest.is_empty() {
                let (part, more) = split(rest, columns.saturating_sub(indent + further).max(8));
                rows.push((None, format!("{:width$}{part}", "", width = indent + further)));
                (rest, further) = (more, if label.is_empty() { 0 } else { hang });
            }
        }
        rows
    }
}

// What the holder says of itself is a claim; the lock has cut and cleaned it when it read it.
fn facts(claim: &Claim, wall_ms: u64, ends_ms: u64) -> Vec<(&'static str, String)> {
    let who = Some(news::who(claim)).filter(|who| !who.is_empty());
    let who = who.unwrap_or_else(|| "an xtask that says no more of itself".to_owned());
    let mut facts = vec![("held by", clean::line(who.as_bytes(), QUOTE_MAX))];
    let ends = format!("your budget ends {}", utc_when(ends_ms, wall_ms));
    facts.push(match claim.free_at_ms.map(|free| (utc_when(free, wall_ms), free > ends_ms)) {
        Some((free, true)) => ("warning", format!("free at {free} at the latest, but {ends}: you may be refused")),
        Some((free, false)) => ("at latest", format!("free at {free}; {ends}")),
        None => ("you", ends),
    });
    if let Some(since) = claim.since_ms {
        let running = whole(Duration::from_millis(wall_ms.saturating_sub(since)));
        facts.push(("since", format!("{}, for {running}{}", utc_when(since, wall_ms), news::progress(claim))));
    }
    facts.extend(news::ahead(claim, wall_ms).map(|ahead| ("waiting", ahead)));
    facts
}

// The part of a text that fits so many columns, cut at a space where there is one in its second half, and the rest.
fn split(text: &str, columns: usize) -> (&str, &str) {
    let Some((end, _)) = text.char_indices().find(|&(i, c)| rows::width(&text[..i + c.len_utf8()]) > columns) else {
        return (text, "");
    };
    let space = text[..end].rfind(' ').filter(|&space| space > end / 2);
    let (part, rest) = text.split_at(space.unwrap_or(end));
    (part, rest.trim_start())
}
