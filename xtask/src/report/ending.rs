//! The last words: verdict, first cause, where the log is, both times beside their limits, the one command to run next,
//! the exit code.

use std::time::Duration;

use super::forge;
use super::lines::{QUOTE_MAX, plural};
use super::markup::markdown_line;
use super::pen::{Pen, Tone};
use super::scoreboard::{Scoreboard, State, Stopping};
use super::{Row, Surface, timeline};
use crate::clean;
use crate::digest::short;
use crate::event::{Event, Stamped, TaskRecord};
use crate::name::TaskName;
use crate::receipt::past::median;
use crate::time::{Exact, Human, millis, utc_clock};
use crate::verdict::{Cause, Limit, Stop, Verdict, Word};

/// The ending for a `RunFinished`; nothing for any other event.
pub(super) fn text(board: &Scoreboard, pen: &Pen, stamped: &Stamped) -> String {
    let Event::RunFinished { verdict, late, run, receipt, exit_code, .. } = &stamped.event else {
        return String::new();
    };
    let clock = utc_clock(board.wall_ms(stamped.at));
    let counts = counts(board) + board.scene.partial();
    let (verb, tone, head) = match verdict {
        Word::Passed => ("PASSED", Tone::Good, format!("{} at {}", board.scene.asked_for(), tree(board))),
        Word::Failed => ("FAILED", Tone::Bad, counts),
        Word::Late => ("LATE", Tone::Bad, counts),
        Word::Cancelled => ("CANCELLED", Tone::Bad, format!("{}: {counts}", sender(board, pen))),
        Word::NoVerdict if !board.tree_changed.is_empty() => {
            ("NO VERDICT", Tone::Bad, format!("{counts}, but the tree changed during the run: {}", files(board)))
        }
        Word::NoVerdict => ("NO VERDICT", Tone::Bad, counts),
        Word::NotRun => ("NOT-RUN", Tone::Bad, format!("nothing was run{}", board.scene.partial())),
    };
    let mut out = pen.say(&clock, verb, tone, &head);
    for line in &board.trouble {
        out += &pen.field("why", line);
    }
    if *verdict == Word::NoVerdict {
        out += &pen.field("so", "nothing may rely on this run; run it again");
    }
    out += &causes(board, pen, *late);
    if board.won.is_some() {
        out += &times(board, pen, *verdict, *run);
    } else if board.queue.is_none() && *verdict == Word::NotRun {
        out += &pen.field("queue", &format!("budget {}", Human(board.scene.queue_budget)));
    }
    if let (Word::Passed, Some(logs)) = (verdict, &board.logs) {
        out += &pen.field("logs", &format!("{logs}/"));
    }
    if let (Word::Passed, Some((row, record))) = (verdict, closest(board)) {
        let share = percent(record.took, row.deadline);
        let used = format!("{} {} of {} ({share}% of its deadline)", row.name, Human(record.took), Human(row.deadline));
        out += &pen.field("closest", &used);
        out += &trend(board).map_or(String::new(), |line| pen.field("trend", &line));
    }
    out += &match receipt {
        Some(path) if *verdict == Word::Passed => pen.field("receipt", path),
        Some(path) => pen.field("receipt", &format!("{path}  ({verdict})")),
        None => pen.field("receipt", "none: it could not be written"),
    };
    if *verdict == Word::Passed {
        out += &pen.field("picture", "cargo xtask report");
    }
    if board.scene.signs && *exit_code == 0 { out } else { out + &format!("exit code {exit_code}\n") }
}

/// The run as a table, for the summary page of a CI job; nothing for an event that is no end.
pub(super) fn markdown(board: &Scoreboard, stamped: &Stamped) -> String {
    let Event::RunFinished { verdict, run, .. } = &stamped.event else { return String::new() };
    let queue = Human(board.queue.unwrap_or(Duration::ZERO));
    let times = format!("run {} of {}, queue {queue} of", Human(*run), Human(board.scene.deadline));
    let (partial, budget) = (board.scene.partial(), Human(board.scene.queue_budget));
    let place = if *verdict == Word::NotRun { String::new() } else { format!(" at {}", tree(board)) };
    let head = format!("verify {verdict}{partial}{place}: {times} {budget}");
    let line = markdown_line;
    let mut out = format!("### {}\n", line(&head));
    for trouble in &board.trouble {
        out += &format!("\n{}\n", line(trouble));
    }
    out += "\n| task | verdict | took | deadline | used | |\n|---|---|--:|--:|--:|---|\n";
    for (row, record) in board.ended() {
        let (took, limit) = (Human(record.took), Human(row.deadline));
        let cause = match &record.verdict {
            Verdict::Passed => String::new(),
            other => line(&clean::line(other.to_string().as_bytes(), QUOTE_MAX)),
        };
        let used = percent(record.took, row.deadline);
        out += &format!(
            "| {} | {} | {took} | {limit} | {used}% | {cause} |\n",
            line(row.name.as_str()),
            record.verdict.word()
        );
    }
    out
}

fn tree(board: &Scoreboard) -> String {
    match &board.tree {
        Some((Some(commit), 0)) => format!("{} (clean tree)", short(commit)),
        Some((Some(commit), changed)) => {
            let files = plural(*changed, "uncommitted file");
            format!("{} + {files} (good for you, refused by a release)", short(commit))
        }
        Some((None, _)) => "no commit yet (good for you, refused by a release)".to_owned(),
        None => "an unknown tree".to_owned(),
    }
}

fn files(board: &Scoreboard) -> String {
    let files: Vec<String> = board.tree_changed.iter().map(|f| clean::line(f.as_bytes(), QUOTE_MAX)).collect();
    files.join(", ")
}

// `9 passed, 2 late (run deadline), 2 not run (sqlx, smoke)`.
fn counts(board: &Scoreboard) -> String {
    let words: Vec<Word> = board
        .tasks()
        .map(|(_, state)| match state {
            State::Ended(record) => record.verdict.word(),
            State::Waiting | State::Running(_) => Word::NotRun,
        })
        .collect();
    let count = |word: Word| words.iter().filter(|&&w| w == word).count();
    let mut parts = vec![format!("{} passed", count(Word::Passed))];
    for word in [Word::Failed, Word::Late, Word::Cancelled, Word::NotRun] {
        let note = match word {
            Word::Late if board.run_late.is_some() => " (run deadline)".to_owned(),
            Word::NotRun => {
                let names =
                    board.tasks().zip(&words).filter(|&(_, &w)| w == word).map(|((row, _), _)| row.name.as_str());
                let names: Vec<&str> = names.collect();
                if names.len() <= 4 { format!(" ({})", names.join(", ")) } else { String::new() }
            }
            _ => String::new(),
        };
        if count(word) > 0 {
            parts.push(format!("{} {}{note}", count(word), word.to_string().replace('-', " ")));
        }
    }
    parts.join(", ")
}

fn sender(board: &Scoreboard, pen: &Pen) -> String {
    let Some((at, signal)) = board.stopped else { return "cancelled".to_owned() };
    let from = match pen.style.surface {
        Surface::Terminal if signal == Stop::Int => " from the terminal",
        Surface::GitHub { .. } => " from the runner (job cancelled or its timeout-minutes)",
        Surface::Terminal | Surface::GitLab | Surface::Plain => "",
    };
    let asked = at.since(board.scene.requested.monotonic);
    let outer = board.scene.outer.filter(|&outer| asked + Duration::from_secs(1) >= outer);
    let short =
        outer.map_or("", |_| "; the outer limit fired first: it is shorter than queue + run, see cargo xtask plan");
    format!("by {signal}{from}{short}")
}

// The first task that did not go well; and where that was a failure, but something was late besides, which outranks it,
// the first of those too.
fn causes(board: &Scoreboard, pen: &Pen, late: Option<Limit>) -> String {
    let bad = board.bad.iter().filter_map(|(task, stopping)| {
        let (row, record) = board.ended().find(|(row, _)| row.name == *task)?;
        Some((row, record, stopping.as_ref()))
    });
    let is_late = |(_, record, _): &Bad<'_>| matches!(record.verdict, Verdict::Late(_));
    let bad: Vec<_> = bad.collect();
    let mut out = bad.first().map_or(String::new(), |first| cause_of(board, pen, "first", *first));
    match bad.iter().find(|bad| is_late(bad)) {
        Some(late) if !is_late(&bad[0]) => out += &cause_of(board, pen, "late", *late),
        None if late == Some(Limit::Run) => out += &pen.field("late", &format!("the run itself, {}", run_limit(board))),
        _ => {}
    }
    if let Some((row, ..)) = bad.first() {
        out += &pen.field("again", &again(board, &row.name));
    }
    out
}

type Bad<'a> = (&'a Row, &'a TaskRecord, Option<&'a Stopping>);

fn cause_of(board: &Scoreboard, pen: &Pen, label: &str, (row, record, stopping): Bad<'_>) -> String {
    let mut out = pen.field(label, &format!("{}: {}", row.name, cause(row, record)));
    if let Verdict::Late(limit) = record.verdict {
        out += &pen.field("judge", &judge(row, record, stopping));
        if let (Some(usual), Some(worst)) = (median(&row.past), row.past.iter().max()) {
            let (usual, worst, count) = (Human(usual), Human(*worst), row.past.len());
            out += &pen.field("usual", &format!("{usual}, worst of the last {} {worst}", plural(count, "pass")));
        }
        let own = || format!("{}:{}  deadline = \"{}\"", board.scene.suite, row.deadline_line, Exact(row.deadline));
        out += &pen.field("limit", &if limit == Limit::Task { own() } else { run_limit(board) });
    }
    match (&record.verdict, &board.logs) {
        (Verdict::Failed(Cause::Service { log, .. }), _) => out += &pen.field("log", log),
        (_, Some(logs)) if record.started.is_some() => out += &pen.field("log", &format!("{logs}/{}.log", row.name)),
        _ => {}
    }
    match (&row.fix, &record.verdict) {
        (Some(fix), Verdict::Failed(_)) => out + &pen.field("fix", &clean::line(fix.as_bytes(), QUOTE_MAX)),
        _ => out,
    }
}

fn run_limit(board: &Scoreboard) -> String {
    let scene = &board.scene;
    format!("{}:{}  deadline = \"{}\" of [run]", scene.suite, scene.deadline_line, Exact(scene.deadline))
}

fn cause(row: &Row, record: &TaskRecord) -> String {
    let cause = clean::line(record.verdict.to_string().as_bytes(), QUOTE_MAX);
    match (&record.verdict, forge::place(&record.tail)) {
        (Verdict::Late(Limit::Task), _) => format!("no result within {}", Exact(row.deadline)),
        (Verdict::Failed(_), Some((file, line, _))) => format!("{file}:{line} ({cause})"),
        _ => cause,
    }
}

fn again(board: &Scoreboard, task: &TaskName) -> String {
    format!("{} --only {task}  (a partial receipt)", board.scene.command)
}

// Hung is what has stopped to say anything, or takes far longer than it ever did; slow is what was still at work.
fn judge(row: &Row, record: &TaskRecord, stopping: Option<&Stopping>) -> String {
    let took = record.took;
    let silent = stopping.and_then(|stopping| stopping.silent);
    let worst = row.past.iter().max().copied();
    let quiet = silent.is_some_and(|silent| silent >= took / 2);
    let busy = silent.is_some_and(|silent| silent < took / 10);
    let verdict = match worst {
        _ if quiet => "looks hung, not slow",
        _ if busy => "looks slow, not hung",
        Some(worst) if took >= worst * 2 => "looks hung, not slow",
        Some(_) => "looks slow, not hung",
        None => "hung or slow: nothing to compare with",
    };
    match silent {
        Some(silent) => format!("{verdict}; last output {} before", Human(silent)),
        None => verdict.to_owned(),
    }
}

fn times(board: &Scoreboard, pen: &Pen, verdict: Word, run: Duration) -> String {
    let deadline = board.scene.deadline;
    let queue = board.queue.unwrap_or(Duration::ZERO);
    let headroom = if verdict == Word::Passed {
        format!("   {}% headroom", 100u64.saturating_sub(percent(run, deadline)))
    } else {
        String::new()
    };
    let mut out = pen.field("queue", &format!("{} of {}", Human(queue), Human(board.scene.queue_budget)));
    out += &pen.field("run", &format!("{} of {}{headroom}", Human(run), Human(deadline)));
    if let (Word::Late, Some(outer), Some(won)) = (verdict, board.scene.outer, board.won) {
        let spent = won.since(board.scene.requested.monotonic) + run;
        let spare = Human(outer.saturating_sub(spent));
        out += &pen.field("outer", &format!("the caller's own limit is {}; {spare} to spare", Human(outer)));
    }
    out
}

fn closest(board: &Scoreboard) -> Option<(&Row, &TaskRecord)> {
    board.ended().max_by_key(|(row, record)| percent(record.took, row.deadline))
}

// The task that has become slowest against its own past: the median of the newer half of its last ten passes against
// the older half's. Only what is at least 20 % and a second slower is worth a line.
fn trend(board: &Scoreboard) -> Option<String> {
    let grown = |row: &Row, record: &TaskRecord| {
        let mut runs: Vec<Duration> = row.past.iter().rev().take(9).rev().copied().collect();
        runs.push(record.took);
        let (older, newer) = runs.split_at(runs.len() / 2);
        let (older, newer) = (median(older)?, median(newer)?);
        let up = percent(newer, older).saturating_sub(100);
        let worth = runs.len() >= 6 && up >= 20 && newer >= older + Duration::from_secs(1);
        worth.then(|| (up, format!("{} up {up}% over the last {} runs", row.name, runs.len())))
    };
    board.ended().filter_map(|(row, record)| grown(row, record)).max().map(|(_, line)| line)
}

/// `timeline::percent` of lengths.
pub(super) fn percent(used: Duration, limit: Duration) -> u64 {
    timeline::percent(millis(used), millis(limit))
}
