//! One run drawn over time, as SVG: the run itself with its queue, the CPUs and who had them, the tasks with their waits
//! and their deadlines. One scale for all three.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::markup::escape;
use crate::clean::cut;
use crate::name::TaskName;
use crate::receipt::statement::{Predicate, Task};
use crate::time::Human;
use crate::verdict::Word;

/// What each task of a suite needs.
pub type Needs = BTreeMap<TaskName, Vec<TaskName>>;

/// Width of the drawing; its unit is a pixel at the usual size.
pub const WIDTH: f64 = 1000.0;
/// Where the scale begins: names stand before it.
pub const LEFT: f64 = 150.0;
/// Where the scale ends: numbers stand after it.
pub const RIGHT: f64 = 830.0;
const ROW: f64 = 22.0;
/// Most of the scale that the queue may take: a long wait would make the run too small to read.
const MOST_QUEUE: f64 = 0.2;

/// Milliseconds since the locks were won, across the page. The queue lies before zero.
struct Scale {
    queue: u64,
    end: u64,
    zero: f64,
    true_queue: bool,
}

impl Scale {
    fn of(run: &Predicate) -> Self {
        let used = run.run_ms.max(last_end(run).unwrap_or_default()).max(1);
        // The run deadline is part of the picture where it is near.
        let end = if run.limits.deadline_ms <= used.saturating_add(used / 3) {
            run.limits.deadline_ms.max(used)
        } else {
            used
        };
        let share = run.queue_ms as f64 / (run.queue_ms as f64 + end as f64);
        Self {
            queue: run.queue_ms,
            end,
            zero: LEFT + (RIGHT - LEFT) * share.min(MOST_QUEUE),
            true_queue: share <= MOST_QUEUE,
        }
    }

    fn at(&self, ms: u64) -> f64 {
        self.zero + (RIGHT - self.zero) * (ms.min(self.end) as f64 / self.end as f64)
    }
}

fn since_won(run: &Predicate, monotonic_ms: u64) -> u64 {
    monotonic_ms.saturating_sub(run.clocks.won.map_or(0, |won| won.monotonic_ms))
}

// When a task's first process ended, since the locks were won. Receipts come from files: no number is taken for sane.
fn end(run: &Predicate, task: &Task) -> Option<u64> {
    Some(since_won(run, task.started_ms?).saturating_add(task.took_ms))
}

fn last_end(run: &Predicate) -> Option<u64> {
    run.tasks.iter().filter_map(|task| end(run, task)).max()
}

/// What share of a limit is used, in whole percent, rounded down.
pub fn percent(used: u64, limit: u64) -> u64 {
    used.saturating_mul(100) / limit.max(1)
}

/// A length in milliseconds, for people. A drawing of a short run tells milliseconds apart.
pub fn human(ms: u64) -> String {
    if (1..1000).contains(&ms) { format!("{ms}ms") } else { Human(Duration::from_millis(ms)).to_string() }
}

/// The drawing of a run that had its locks. Without `needs` nobody knows when a task was ready, and no waits are drawn.
pub fn draw(run: &Predicate, needs: Option<&Needs>) -> String {
    let scale = Scale::of(run);
    let mut body = String::new();
    let mut y = 24.0;
    run_row(&mut body, run, &scale, y);
    y += ROW + 14.0;
    let lanes: BTreeSet<u64> = run.tasks.iter().flat_map(|task| task.slots.iter().copied()).collect();
    let top = y;
    for &cpu in &lanes {
        let line = y + ROW;
        let _ = writeln!(body, r#"<text class="name" x="{}" y="{:.1}">CPU {cpu}</text>"#, LEFT - 8.0, y + 15.0);
        let _ = writeln!(
            body,
            r#"<line class="lane" x1="{:.1}" x2="{RIGHT}" y1="{:.1}" y2="{:.1}"/>"#,
            scale.zero, line, line
        );
        y += ROW;
    }
    let row_of = |cpu: &u64| top + ROW * lanes.range(..cpu).count() as f64;
    for task in run.tasks.iter().filter(|task| task.started_ms.is_some()) {
        for group in side_by_side(&task.slots, &lanes) {
            let height = ROW * group.len() as f64 - 4.0;
            let first = group.first().map_or(top, &row_of);
            bar(&mut body, run, &scale, task, (first + 2.0, height), true);
        }
    }
    y += 14.0;
    for task in &run.tasks {
        task_row(&mut body, run, &scale, task, needs, y);
        y += ROW;
    }
    let mut out = format!(
        r#"<svg class="timeline" viewBox="0 0 {WIDTH} {:.0}" role="img" aria-label="The run over time">"#,
        y + 8.0
    );
    out.push('\n');
    axis(&mut out, &scale, y);
    out + &body + "</svg>\n"
}

// Runs of lanes that lie beside each other: one rectangle each.
fn side_by_side(cpus: &[u64], lanes: &BTreeSet<u64>) -> Vec<Vec<u64>> {
    let mine: BTreeSet<u64> = cpus.iter().copied().collect();
    let mut groups: Vec<Vec<u64>> = Vec::new();
    let mut beside = false;
    for lane in lanes {
        if !mine.contains(lane) {
            beside = false;
            continue;
        }
        match groups.last_mut() {
            Some(group) if beside => group.push(*lane),
            _ => groups.push(vec![*lane]),
        }
        beside = true;
    }
    groups
}

fn axis(out: &mut String, scale: &Scale, bottom: f64) {
    let step = step(scale.end, scale.at(scale.end) - scale.zero);
    for ms in (0..=scale.end / step).map(|n| n * step) {
        let x = scale.at(ms);
        let _ = writeln!(out, r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="18" y2="{bottom:.1}"/>"#);
        let _ = writeln!(out, r#"<text class="tick" x="{x:.1}" y="12">{}</text>"#, human(ms));
    }
}

// A round step with room for its label.
fn step(whole: u64, width: f64) -> u64 {
    const ROUND: [u64; 22] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000,
        1_800_000, 3_600_000, 7_200_000, 14_400_000,
    ];
    let most = (width / 70.0).max(1.0) as u64;
    ROUND.into_iter().find(|step| whole / step <= most).unwrap_or(86_400_000.max(whole / most))
}

fn run_row(out: &mut String, run: &Predicate, scale: &Scale, y: f64) {
    let _ = writeln!(out, r#"<text class="name" x="{}" y="{:.1}">run</text>"#, LEFT - 8.0, y + 15.0);
    let mut part = |class: &str, from: f64, to: f64, label: String, note: &str| {
        let width = (to - from).max(0.0);
        let _ = writeln!(
            out,
            r#"<rect class="{class}" x="{from:.1}" y="{:.1}" width="{width:.1}" height="{}"><title>{}</title></rect>"#,
            y + 2.0,
            ROW - 4.0,
            escape(&(label.clone() + note))
        );
        if width > 7.0 * label.chars().count() as f64 {
            let _ = writeln!(
                out,
                r#"<text class="in" x="{:.1}" y="{:.1}">{}</text>"#,
                from + 4.0,
                y + 15.0,
                escape(&label)
            );
        }
    };
    let (used, limits) = (run.run_ms, &run.limits);
    let queue = format!("queue {}", human(scale.queue));
    part("queue", LEFT, scale.zero, queue, if scale.true_queue { "" } else { ", not to scale" });
    let started = run.clocks.started.map_or(used, |started| since_won(run, started.monotonic_ms)).min(used);
    let last = last_end(run).unwrap_or(started).clamp(started, used.max(started));
    part("own", scale.at(0), scale.at(started), format!("before the tasks {}", human(started)), "");
    part("work", scale.at(started), scale.at(last), format!("tasks {}", human(last - started)), "");
    part("own", scale.at(last), scale.at(used), format!("after the tasks {}", human(used.saturating_sub(last))), "");
    room(out, scale, (0, used), limits.deadline_ms, y);
    limit(out, scale, 0, limits.deadline_ms, y);
    numbers(out, used, limits.deadline_ms, y);
}

fn task_row(out: &mut String, run: &Predicate, scale: &Scale, task: &Task, needs: Option<&Needs>, y: f64) {
    let name = task.name.as_str();
    let _ = writeln!(
        out,
        r#"<text class="name" x="{}" y="{:.1}">{}<title>{}</title></text>"#,
        LEFT - 8.0,
        y + 15.0,
        escape(&cut(name, 20)),
        escape(name)
    );
    let Some(started) = task.started_ms.map(|at| since_won(run, at)) else {
        let why = format!("{}: {}", task.verdict, task.why);
        let _ = writeln!(
            out,
            r#"<text class="aside" x="{:.1}" y="{:.1}">{}<title>{}</title></text>"#,
            scale.zero + 4.0,
            y + 15.0,
            escape(&cut(&why, 90)),
            escape(&why)
        );
        return;
    };
    if let Some(ready) = needs.and_then(|needs| ready(run, needs, task)).filter(|&ready| ready < started) {
        let (from, to) = (scale.at(ready), scale.at(started));
        let _ = writeln!(
            out,
            r#"<rect class="wait" x="{from:.1}" y="{:.1}" width="{:.1}" height="6"><title>{}</title></rect>"#,
            y + 8.0,
            to - from,
            escape(&format!("{name} waited {} for slots", human(started - ready)))
        );
    }
    room(out, scale, (started, task.took_ms), task.deadline_ms, y);
    bar(out, run, scale, task, (y + 2.0, ROW - 4.0), false);
    // Over the bar of what went on behind it.
    limit(out, scale, started, task.deadline_ms, y);
    numbers(out, task.took_ms, task.deadline_ms, y);
}

// When everything that a task needs had ended.
fn ready(run: &Predicate, needs: &Needs, task: &Task) -> Option<u64> {
    let begin = since_won(run, run.clocks.started?.monotonic_ms);
    let mut ready = begin;
    for need in needs.get(&task.name)? {
        let need = run.tasks.iter().find(|other| other.name == *need)?;
        ready = ready.max(end(run, need)?);
    }
    Some(ready)
}

fn bar(out: &mut String, run: &Predicate, scale: &Scale, task: &Task, (y, height): (f64, f64), named: bool) {
    let started = since_won(run, task.started_ms.unwrap_or_default());
    let (from, to) = (scale.at(started), scale.at(started.saturating_add(task.took_ms)));
    let width = (to - from).max(1.5);
    let cpus: Vec<String> = task.slots.iter().map(u64::to_string).collect();
    let (took, deadline) = (human(task.took_ms), human(task.deadline_ms));
    let title = format!("{}: {}, {took} of {deadline}, CPU {}", task.name, task.why, cpus.join(" "));
    let _ = writeln!(
        out,
        r#"<rect class="{}" x="{from:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2"><title>{}</title></rect>"#,
        task.verdict,
        escape(&title)
    );
    let (name, room) = (task.name.as_str(), (width / 7.2) as usize);
    if named && room >= name.len().min(8) {
        let _ = writeln!(
            out,
            r#"<text class="in" x="{:.1}" y="{:.1}">{}</text>"#,
            from + 4.0,
            y + height / 2.0 + 4.0,
            escape(&cut(name, room))
        );
    }
    // In a word too, for those who do not tell the colours apart: in the bar, else behind it, else before it.
    if !named && task.verdict != Word::Passed {
        let (class, x) = match () {
            () if width > 70.0 => ("in", from + 4.0),
            () if to + 70.0 < RIGHT => ("aside", from + width + 5.0),
            () => ("aside before", from - 5.0),
        };
        let y = y + height / 2.0 + 4.0;
        let _ = writeln!(out, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, task.verdict);
    }
}

// The way from the end to the deadline.
fn room(out: &mut String, scale: &Scale, (started, took): (u64, u64), deadline: u64, y: f64) {
    let (end, due) = (started.saturating_add(took), started.saturating_add(deadline));
    if end < due {
        let middle = y + ROW / 2.0;
        let _ = writeln!(
            out,
            r#"<line class="room" x1="{:.1}" x2="{:.1}" y1="{middle:.1}" y2="{middle:.1}"/>"#,
            scale.at(end),
            scale.at(due)
        );
    }
}

// The deadline, where the scale reaches it; else the way to it.
fn limit(out: &mut String, scale: &Scale, started: u64, deadline: u64, y: f64) {
    let due = started.saturating_add(deadline);
    let title = format!("deadline {}, {} after the lock was won", human(deadline), human(due));
    let x = scale.at(due);
    if due <= scale.end {
        let _ = writeln!(
            out,
            r#"<line class="due" x1="{x:.1}" x2="{x:.1}" y1="{:.1}" y2="{:.1}"><title>{title}</title></line>"#,
            y + 1.0,
            y + ROW - 1.0
        );
    } else {
        let _ = writeln!(
            out,
            r#"<path class="beyond" d="M{:.1} {:.1}l5 4l-5 4"><title>{title}</title></path>"#,
            x + 2.0,
            y + ROW / 2.0 - 4.0
        );
    }
}

fn numbers(out: &mut String, used: u64, limit: u64, y: f64) {
    let share = percent(used, limit);
    let class = if used > limit { "number over" } else { "number" };
    let _ = writeln!(
        out,
        r#"<text class="{class}" x="{}" y="{:.1}">{} of {} ({share}%)</text>"#,
        RIGHT + 12.0,
        y + 15.0,
        human(used),
        human(limit)
    );
}

/// What a word means for a task, as a legend.
pub fn legend(run: &Predicate) -> String {
    let mut out = String::from("<p class=\"legend\">");
    for (class, what) in [("queue", "queue"), ("own", "before and after the tasks"), ("work", "tasks")] {
        let _ = write!(out, "<span><i class=\"{class}\"></i>{what}</span>");
    }
    for word in [Word::Passed, Word::Failed, Word::Late, Word::Cancelled] {
        if run.tasks.iter().any(|task| task.verdict == word && task.started_ms.is_some()) {
            let _ = write!(out, "<span><i class=\"{word}\"></i>{word}</span>");
        }
    }
    out + "<span><i class=\"wait\"></i>ready, waits for slots</span><span><i class=\"due\"></i>deadline (an arrow: beyond the right edge)</span></p>\n"
}
