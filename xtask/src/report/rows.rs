//! The rows at the bottom of a terminal: what the run waits for, or what runs and what waits for what.

use std::collections::HashSet;
use std::time::Duration;

use super::Row;
use super::ending::percent;
use super::lines::{Lines, slow};
use super::pen::{Tone, whole};
use super::scoreboard::{Running, Scoreboard, State};
use crate::clean::cut;
use crate::name::TaskName;
use crate::receipt::past::median;
use crate::time::{Human, Moment};
use crate::verdict::Verdict;

/// Width of the bar: a character is five percent of the deadline. It shows time, not progress, so it cannot lie.
const BAR: usize = 20;
/// From this width on there is a bar.
const BAR_FROM: usize = 64;
/// Below this width there are no columns.
const NARROW: usize = 32;
/// Width of what stands in the row of a task beside its name: `    1m33s of  30m`, and of a name at least.
const TIMES: usize = 20;
const NAME_MIN: usize = 4;

/// At most `most` rows of at most `columns` columns.
pub(super) fn rows(
    lines: &Lines,
    now: Moment,
    columns: usize,
    most: usize,
    latest: &[(TaskName, String)],
) -> Vec<String> {
    let board = &lines.board;
    let texts = match (board.won, board.run.is_some()) {
        (None, _) => match &lines.queued {
            Some(queue) => queue.rows(now, board.wall_ms(now), columns),
            None => Vec::new(),
        },
        (Some(_), false) => Vec::new(),
        (Some(_), true) => running_rows(lines, now, columns, most, latest),
    };
    let cut = |(tone, text): (Option<Tone>, String)| {
        let text = fit(&text, columns);
        match tone {
            Some(tone) => lines.pen.paint(tone, &text),
            None => text,
        }
    };
    texts.into_iter().take(most).map(cut).collect()
}

type Texts = Vec<(Option<Tone>, String)>;

fn running_rows(lines: &Lines, now: Moment, columns: usize, most: usize, latest: &[(TaskName, String)]) -> Texts {
    let board = &lines.board;
    let running = board.running();
    let waiting = waiting(board, &running);
    let (done, all) = (board.ended().count(), board.scene.tasks.len());
    let taken: usize = running.iter().map(|(row, _)| row.slots).sum();
    let mut status = format!("  Running {} of {}", whole(board.run_time(now)), Human(board.scene.deadline));
    status += &format!("   {done}/{all} done   slots {taken}/{}", board.slots);
    if let Some(usual) = median(&board.scene.past_runs) {
        status += &format!("   usual total {}", whole(usual));
    }
    if board.stopped.is_some() {
        status += "   stopping";
    }
    status += "   lock held";
    let rest = usize::from(!waiting.is_empty());
    // The rule goes first where the terminal is low, then the row of what waits.
    let rule = most >= 3 + rest;
    let room = most.saturating_sub(1 + usize::from(rule) + rest).max(1);
    let mut texts: Texts = Vec::new();
    if rule {
        texts.push((None, "-".repeat(columns.min(80))));
    }
    texts.push((Some(Tone::Busy), status));
    let shown = if running.len() > room { room.saturating_sub(1) } else { running.len() };
    let names = running[..shown].iter().map(|(row, _)| row.name.as_str().len()).max().unwrap_or(0);
    for (row, state) in &running[..shown] {
        let said = latest.iter().find(|(task, _)| *task == row.name).map_or("", |(_, line)| line.as_str());
        texts.push(task_row(lines, row, state, now, (columns, names), said));
    }
    if running.len() > shown {
        let names: Vec<&str> = running[shown..].iter().map(|(row, _)| row.name.as_str()).collect();
        let more = if shown > 0 { "more: " } else { "tasks: " };
        texts.push((None, format!("   {} {more}{}", names.len(), names.join(", "))));
    }
    if !waiting.is_empty() {
        texts.push((None, format!("   waiting  {waiting}")));
    }
    texts
}

fn task_row(
    lines: &Lines,
    row: &Row,
    state: &Running,
    now: Moment,
    (columns, names): (usize, usize),
    said: &str,
) -> (Option<Tone>, String) {
    let took = now.since(state.since);
    let slow = slow(row, took, state.deadline);
    // What is past of the limit says more than the end of a long name.
    let text = if columns < NARROW {
        let times = format!("{} of {}", whole(took), Human(state.deadline));
        format!(" {} {times}", cut(row.name.as_str(), columns.saturating_sub(times.len() + 2).max(NAME_MIN)))
    } else {
        // Where there is room the column stays where it is, whoever runs.
        let names = if columns < BAR_FROM { names } else { lines.pen.names() };
        let names = names.min(lines.pen.names()).min(columns - TIMES);
        let name = cut(row.name.as_str(), names);
        format!("   {name:<names$} {:>6} of {:>4}", whole(took), Human(state.deadline))
    };
    if state.stopping.is_some() {
        return (Some(Tone::Bad), text + "  stopping");
    }
    if let Some(what) = said.strip_prefix("Blocking waiting for file lock on ") {
        return (Some(Tone::Warn), format!("{text} {slow} blocked: another cargo holds the {what} (rust-analyzer?)"));
    }
    let wide = columns >= BAR_FROM;
    let bar = if wide { format!("  {}  {} cpu", bar(took, state.deadline), row.slots) } else { String::new() };
    let tone = Some(Tone::Warn).filter(|_| !slow.is_empty());
    let slow = if slow.is_empty() { slow } else { format!(" {slow}") };
    (tone, format!("{text}{bar}{slow}  {said}").trim_end().to_owned())
}

fn bar(took: Duration, deadline: Duration) -> String {
    let full = usize::try_from(percent(took, deadline)).map_or(BAR, |percent| (percent * BAR / 100).min(BAR));
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

// What could start but for slots or a mutex, then what needs another task first: `lint 4 cpu (slots); smoke (test)`.
fn waiting(board: &Scoreboard, running: &[(&Row, &Running)]) -> String {
    // Looked up for every task that waits, in every frame: a suite may have a thousand.
    let passed = board.ended().filter(|(_, record)| record.verdict == Verdict::Passed);
    let passed: HashSet<&TaskName> = passed.map(|(row, _)| &row.name).collect();
    let (mut slots, mut others) = (Vec::new(), Vec::new());
    for (row, state) in board.tasks() {
        if !matches!(state, State::Waiting) {
            continue;
        }
        let busy = |(other, _): &(&Row, &Running)| row.mutex.is_some() && other.mutex == row.mutex;
        match row.needs.iter().find(|task| !passed.contains(task)) {
            Some(task) => others.push(format!("{} ({task})", row.name)),
            None => match running.iter().find(|running| busy(running)) {
                Some((other, _)) => others.push(format!("{} (alone with {})", row.name, other.name)),
                None => slots.push(format!("{} {} cpu", row.name, row.slots)),
            },
        }
    }
    let slots = if slots.is_empty() { None } else { Some(format!("{} (slots)", slots.join(", "))) };
    slots.into_iter().chain(others).collect::<Vec<_>>().join("; ")
}

/// Columns that a text takes at most. Everything outside ASCII counts as two: no table of Unicode, and never too few, so
/// that a row never wraps.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum()
}

fn fit(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut used = 0;
    let fits = |c: &char| {
        used += if c.is_ascii() { 1 } else { 2 };
        used <= columns
    };
    text.chars().take_while(fits).collect()
}
