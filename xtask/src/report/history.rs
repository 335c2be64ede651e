//! Many runs: which share of its deadline each task used, as SVG, so that a slowdown is seen before it is a failure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::markup::escape;
use super::timeline::{LEFT, RIGHT, WIDTH, human, percent};
use crate::clean::cut;
use crate::receipt::past::median;
use crate::receipt::statement::{Extent, Predicate};
use crate::verdict::Word;

const HEIGHT: f64 = 44.0;
/// Shares are drawn up to this: what ran into its grace stands above the line of the deadline.
const TOP: f64 = 1.2;

/// One use of a limit.
struct Use {
    /// Which run, the oldest being 0.
    run: usize,
    used: u64,
    limit: u64,
    verdict: Word,
    title: String,
}

impl Use {
    fn share(&self) -> f64 {
        self.used as f64 / self.limit.max(1) as f64
    }
}

/// The drawing of `runs`, oldest first: the queue, the run, and each task of the newest run, then those that are in it no more.
pub fn draw(runs: &[&Predicate]) -> String {
    let mut rows: Vec<(String, Vec<Use>)> = Vec::new();
    // What a part of the suite took says nothing beside what all of it takes.
    let counts = |run: &Predicate| run.clocks.won.is_some() && run.extent == Extent::Whole;
    let mut whole = |name: &str, used: fn(&Predicate) -> (u64, u64)| {
        let uses = runs.iter().enumerate().filter(|(_, run)| name == "queue" || counts(run)).map(|(i, run)| {
            let (used, limit) = used(run);
            Use {
                run: i,
                used,
                limit,
                verdict: run.result,
                title: title(run, name, used, limit, &run.result.to_string()),
            }
        });
        rows.push((name.to_owned(), uses.collect()));
    };
    whole("queue", |run| (run.queue_ms, run.limits.queue_ms));
    whole("run", |run| (run.run_ms, run.limits.deadline_ms));
    let mut tasks: BTreeMap<&str, Vec<Use>> = BTreeMap::new();
    for (i, run) in runs.iter().enumerate() {
        for task in run.tasks.iter().filter(|task| task.started_ms.is_some()) {
            tasks.entry(task.name.as_str()).or_default().push(Use {
                run: i,
                used: task.took_ms,
                limit: task.deadline_ms,
                verdict: task.verdict,
                title: title(run, task.name.as_str(), task.took_ms, task.deadline_ms, &task.why),
            });
        }
    }
    let newest = runs.last().map(|run| run.tasks.iter().map(|task| task.name.as_str())).into_iter().flatten();
    for name in newest {
        rows.extend(tasks.remove(name).map(|uses| (name.to_owned(), uses)));
    }
    rows.extend(tasks.into_iter().map(|(name, uses)| (name.to_owned(), uses)));

    let mut out = format!(
        "<svg class=\"history\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"Shares of deadlines over runs\">\n",
        rows.len() as f64 * (HEIGHT + 8.0)
    );
    for (at, (name, uses)) in rows.iter().enumerate() {
        row(&mut out, name, uses, runs.len(), at as f64 * (HEIGHT + 8.0) + 4.0);
    }
    out + "</svg>\n"
}

fn title(run: &Predicate, name: &str, used: u64, limit: u64, why: &str) -> String {
    format!("{name} {} of {}, {why} ({})", human(used), human(limit), run.run.as_str())
}

fn row(out: &mut String, name: &str, uses: &[Use], runs: usize, y: f64) {
    let height = |share: f64| y + HEIGHT * (1.0 - share.min(TOP) / TOP);
    let across = |run: usize| LEFT + 6.0 + (RIGHT - LEFT - 12.0) * (run as f64 / (runs - 1).max(1) as f64);
    let (bottom, due) = (height(0.0), height(1.0));
    let _ = writeln!(
        out,
        r#"<text class="name" x="{}" y="{:.1}">{}<title>{}</title></text>"#,
        LEFT - 8.0,
        bottom - 12.0,
        escape(&cut(name, 20)),
        escape(name)
    );
    let _ = writeln!(out, r#"<line class="lane" x1="{LEFT}" x2="{RIGHT}" y1="{bottom:.1}" y2="{bottom:.1}"/>"#);
    let _ = writeln!(out, r#"<line class="due" x1="{LEFT}" x2="{RIGHT}" y1="{due:.1}" y2="{due:.1}"/>"#);
    let passed: Vec<&Use> = uses.iter().filter(|a_use| a_use.verdict == Word::Passed).collect();
    let points: Vec<String> =
        passed.iter().map(|a_use| format!("{:.1},{:.1}", across(a_use.run), height(a_use.share()))).collect();
    let _ = writeln!(out, r#"<polyline class="path" points="{}"/>"#, points.join(" "));
    let radius = if runs > 60 { 1.8 } else { 3.0 };
    for a_use in uses {
        let (x, y, title) = (across(a_use.run), height(a_use.share()), escape(&a_use.title));
        let class = a_use.verdict;
        let _ = writeln!(
            out,
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{title}</title></circle>"#
        );
    }
    let Some(last) = uses.last() else { return };
    let _ = writeln!(
        out,
        r#"<text class="number" x="{}" y="{:.1}">{}% of {}</text>"#,
        RIGHT + 12.0,
        bottom - 20.0,
        percent(last.used, last.limit),
        human(last.limit)
    );
    if let Some((class, text)) = trend(&passed).filter(|_| name != "queue") {
        let _ =
            writeln!(out, r#"<text class="number {class}" x="{}" y="{:.1}">{text}</text>"#, RIGHT + 12.0, bottom - 5.0);
    }
}

// The median of the newest passes, ten or half of them, against that of all before. A tenth more or less is no trend, and
// neither is what a hundredth of the limit would hold: what takes moments is up and down all the time.
fn trend(passed: &[&Use]) -> Option<(&'static str, String)> {
    let used: Vec<Duration> = passed.iter().map(|a_use| Duration::from_millis(a_use.used)).collect();
    let newest = (used.len() / 2).min(10);
    if newest < 3 {
        return None;
    }
    let (older, newer) = used.split_at(used.len() - newest);
    let (older, newer) = (median(older)?.as_secs_f64(), median(newer)?.as_secs_f64());
    let limit = Duration::from_millis(passed.last()?.limit).as_secs_f64();
    let little = (newer - older).abs() < limit / 100.0;
    let change = if little { 0.0 } else { (newer / older.max(0.001) - 1.0) * 100.0 };
    let (class, text) = match change {
        10.0.. => ("over", format!("up {change:.0}%")),
        ..=-10.0 => ("aside", format!("down {:.0}%", -change)),
        _ => ("aside", "steady".to_owned()),
    };
    Some((class, format!("{text}, last {newest} of {}", used.len())))
}
