//! The screen of `plan`: the tasks, the limits, and what follows from them for the limits of callers.

use std::time::Duration;

use serde::Serialize;

use super::lines::plural;
use crate::clean;
use crate::event::SCHEMA;
use crate::name::Name;
use crate::plan::order::makespan;
use crate::plan::outer::{Finding, Minutes};
use crate::plan::{Plan, Planned};
use crate::suite::{Suite, Task};
use crate::time::{Human, millis};

/// What GitHub's runner leaves a step after SIGINT before it gets SIGTERM (observed).
const GITHUB_GRACE: Duration = Duration::from_millis(7500);
/// What a receipt and its signature take at most, on a bad day.
const RECEIPT: Duration = Duration::from_secs(2);
/// Most characters of what stands in somebody's file, and of what is said of it.
const SHOWN_MAX: usize = 80;
const WRONG_MAX: usize = 160;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// It will work, but not always well.
    Warn,
    /// Worth knowing.
    Note,
    /// It must be mended: exit code 2.
    Fail,
}

/// One line below `checks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// How it came out.
    pub status: Status,
    /// `FILE:LINE`, where it is about a line of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What was looked at, and what is wrong with it.
    pub text: String,
}

impl Check {
    /// A check that is about no line of a file.
    pub fn new(status: Status, text: String) -> Self {
        Self { status, place: None, text }
    }

    /// The comparison of a marked line of `file`.
    pub fn of(file: &str, finding: &Finding) -> Self {
        let shown = clean::line(finding.shown.as_bytes(), SHOWN_MAX);
        let place = Some(format!("{}:{}", clean::line(file.as_bytes(), SHOWN_MAX), finding.line));
        let mark = clean::line(finding.mark.as_bytes(), SHOWN_MAX);
        match &finding.wrong {
            None => Self { status: Status::Ok, place, text: format!("{shown:<24} ({mark})") },
            Some(wrong) => {
                let wrong = clean::line(wrong.as_bytes(), WRONG_MAX);
                Self { status: Status::Fail, place, text: format!("{shown:<24} {wrong}") }
            }
        }
    }
}

/// What there is to show.
#[derive(Debug)]
pub struct View<'a> {
    /// Path of the suite file.
    pub path: &'a str,
    /// Its sha256, in hexadecimal digits.
    pub sha256: &'a str,
    /// The suite.
    pub suite: &'a Suite,
    /// What is planned of it.
    pub plan: &'a Plan,
    /// The checks: `checks`, and those of marked lines.
    pub checks: &'a [Check],
}

/// What the plan says about itself.
pub fn checks(suite: &Suite, plan: &Plan) -> Vec<Check> {
    let room = plan.time_for_tasks();
    let worst = makespan(plan, |task| plan.tasks[task].deadline);
    let text = format!("every task at its whole deadline, scheduled as above: {} of {}", Minutes(worst), Minutes(room));
    let mut checks = vec![if worst <= room {
        Check::new(Status::Ok, text)
    } else {
        Check::new(Status::Warn, text + "; the run may be cut while every task is still in time")
    }];
    let grace = Human(suite.run.stop_grace);
    let github = format!("stop-grace {grace} + receipt fits the 7.5s that GitHub's runner allows after SIGINT");
    checks.push(if suite.run.stop_grace + RECEIPT <= GITHUB_GRACE {
        Check::new(Status::Ok, github)
    } else {
        Check::new(Status::Warn, github.replace("fits", "does not fit"))
    });
    let ahead = millis(suite.run.queue) / millis(suite.run.deadline).max(1);
    let runs = plural(usize::try_from(ahead).unwrap_or(usize::MAX), "run");
    let queue = format!(
        "the queue budget {} covers {runs} ahead of this one, each at its whole deadline",
        Minutes(suite.run.queue)
    );
    checks.push(Check::new(if ahead == 0 { Status::Warn } else { Status::Ok }, queue));
    checks
}

/// The screen.
pub fn screen(view: &View<'_>) -> String {
    let View { path, suite, plan, .. } = view;
    let services = plural(suite.services.len(), "service");
    let of = if plan.tasks.len() < suite.tasks.len() { format!(" of {}", suite.tasks.len()) } else { String::new() };
    let mut out = format!(
        "suite  {path}  sha256 {}  {}{of}, {}{}\n\n",
        view.sha256.get(..8).unwrap_or_default(),
        plural(plan.tasks.len(), "task"),
        plural(plan.slots, "cpu slot"),
        if suite.services.is_empty() { String::new() } else { format!(", {services}") },
    );
    let rows: Vec<[String; 6]> = plan.tasks.iter().filter_map(|task| row(suite, plan, task)).collect();
    let head = ["task", "cpus", "deadline", "usual", "starts after", "alone with"].map(str::to_owned);
    let width = |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in std::iter::once(&head).chain(&rows) {
        let cell = |(at, text): (usize, &String)| match (1..=3).contains(&at) {
            true => format!("{text:>width$}", width = widths[at]),
            false => format!("{text:<width$}", width = widths[at]),
        };
        let line = row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ");
        out += &format!("  {}\n", line.trim_end());
    }
    let limits = &suite.run;
    let limit = |name: &str, length: Duration, what: &str| format!("  {name:<10} {:>10}  {what}\n", Minutes(length));
    out += "\nlimits\n";
    out += &limit("queue", limits.queue, "program's first line to lock held (compiling xtask is margin)");
    out += &limit("run", limits.deadline, "lock held to receipt written, stopping included");
    if plan.tasks.iter().all(|task| task.usual.is_some()) {
        out += &limit("usual", usual(plan), "with every task as long as it usually is");
    }
    let sum =
        format!("= queue + run + margin {}. Every caller's own timeout must be at least this", Minutes(limits.margin));
    out += &limit("outer", limits.outer(), &sum);
    out += "\nchecks\n";
    let places = view.checks.iter().filter_map(|check| check.place.as_ref()).map(|place| place.chars().count()).max();
    for check in view.checks {
        let status = match check.status {
            Status::Ok => "ok",
            Status::Warn => "warn",
            Status::Note => "note",
            Status::Fail => "FAIL",
        };
        let place = check.place.iter().map(|place| format!("{place:<width$}  ", width = places.unwrap_or(0)));
        out += &format!("  {status:<5} {}{}\n", place.collect::<String>(), check.text);
    }
    out
}

/// How long the plan takes with every task at its usual duration, or at its deadline where none is known.
fn usual(plan: &Plan) -> Duration {
    makespan(plan, |task| plan.tasks[task].usual.unwrap_or(plan.tasks[task].deadline))
}

fn row(suite: &Suite, plan: &Plan, planned: &Planned) -> Option<[String; 6]> {
    let task = suite.task(&planned.name)?;
    let names = |names: &[Name]| names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
    let after = match (task.needs.is_empty(), task.services.is_empty()) {
        (true, true) => "-".to_owned(),
        (false, true) => names(&task.needs),
        (true, false) => names(&task.services),
        (false, false) => format!("{} + {}", names(&task.needs), names(&task.services)),
    };
    let alone = match &task.mutex {
        _ if planned.slots == plan.slots && plan.tasks.len() > 1 => "(exclusive)".to_owned(),
        Some(mutex) => mutex.to_string(),
        None => String::new(),
    };
    let usual = planned.usual.map_or("-".to_owned(), |usual| Human(usual).to_string());
    Some([planned.name.to_string(), task.cpus.to_string(), Human(planned.deadline).to_string(), usual, after, alone])
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "snake_case")]
enum Line<'a> {
    Plan {
        schema: u32,
        suite: &'a str,
        sha256: &'a str,
        slots: usize,
        partial: bool,
        queue_ms: u64,
        deadline_ms: u64,
        margin_ms: u64,
        wrap_up_ms: u64,
        stop_grace_ms: u64,
        outer_ms: u64,
        longest_ms: u64,
        usual_ms: Option<u64>,
        tasks: Vec<TaskLine<'a>>,
    },
    Check {
        schema: u32,
        #[serde(flatten)]
        check: &'a Check,
    },
}

#[derive(Serialize)]
struct TaskLine<'a> {
    task: &'a str,
    command: &'a [String],
    cpus: String,
    slots: usize,
    deadline_ms: u64,
    usual_ms: Option<u64>,
    needs: Vec<&'a str>,
    services: Vec<&'a str>,
    mutex: Option<&'a str>,
}

/// The same for programs: one JSON object a line, first the plan, then each check.
pub fn json(view: &View<'_>) -> String {
    let View { suite, plan, .. } = view;
    let known = plan.tasks.iter().all(|task| task.usual.is_some());
    let tasks = plan.tasks.iter().filter_map(|planned| Some(task_line(planned, suite.task(&planned.name)?)));
    let head = Line::Plan {
        schema: SCHEMA,
        suite: view.path,
        sha256: view.sha256,
        slots: plan.slots,
        partial: plan.partial,
        queue_ms: millis(suite.run.queue),
        deadline_ms: millis(suite.run.deadline),
        margin_ms: millis(suite.run.margin),
        wrap_up_ms: millis(suite.run.wrap_up),
        stop_grace_ms: millis(suite.run.stop_grace),
        outer_ms: millis(suite.run.outer()),
        longest_ms: millis(makespan(plan, |task| plan.tasks[task].deadline)),
        usual_ms: known.then(|| millis(usual(plan))),
        tasks: tasks.collect(),
    };
    let lines = std::iter::once(head).chain(view.checks.iter().map(|check| Line::Check { schema: SCHEMA, check }));
    let written =
        |line| serde_json::to_string(&line).expect("nothing here has odd keys or types that cannot be written");
    lines.map(|line| written(line) + "\n").collect()
}

fn task_line<'a>(planned: &Planned, task: &'a Task) -> TaskLine<'a> {
    TaskLine {
        task: task.name.as_str(),
        command: &task.command,
        cpus: task.cpus.to_string(),
        slots: planned.slots,
        deadline_ms: millis(planned.deadline),
        usual_ms: planned.usual.map(millis),
        needs: task.needs.iter().map(Name::as_str).collect(),
        services: task.services.iter().map(Name::as_str).collect(),
        mutex: task.mutex.as_ref().map(Name::as_str),
    }
}
