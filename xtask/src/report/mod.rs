//! What people and their CI see of a run: events in, text out. Nothing here prints, reads a clock or asks the
//! environment: the time, the size of the terminal and what stands at the other end come in as values.

mod ending;
mod forge;
mod history;
pub mod html;
pub mod json;
pub mod junit;
mod lines;
mod markup;
mod pen;
pub mod plan;
mod queue;
mod rows;
mod scoreboard;
pub mod screen;
pub mod timeline;
pub mod trace;

use std::time::Duration;

pub use lines::{HEARTBEAT, plural};
pub use screen::{FRAME, Screen, Size};

use pen::{Pen, Tone};

use crate::clean;
use crate::name::{Name, TaskName};
use crate::plan::Plan;
use crate::receipt::past::Past;
use crate::suite::Suite;
use crate::time::{Clocks, utc_clock};
use crate::verdict::Stop;

/// What stands at the other end of stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Surface {
    /// A person at a terminal.
    Terminal,
    /// A file, a pipe, or a terminal that cannot move its cursor.
    Plain,
    /// The log of a GitHub Actions step. No line of a task is a command to the service: task output stands between
    /// fences that nobody can guess, made from these random digits.
    GitHub {
        /// At least 64 random bits, as hexadecimal digits.
        fence: String,
    },
    /// The log of a GitLab job.
    GitLab,
}

/// How to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Style {
    /// For whom.
    pub surface: Surface,
    /// Whether colours may be used.
    pub colour: bool,
    /// Whether the colours that a task wrote are kept where its whole log is shown.
    pub log_colour: bool,
}

/// What decides the style, as the program finds it.
#[derive(Debug, Clone, Default)]
pub struct Outside<'a> {
    /// Whether stderr is a terminal.
    pub terminal: bool,
    /// `--color always` or `never`; none for `auto`.
    pub colour: Option<bool>,
    /// The variable TERM.
    pub term: Option<&'a str>,
    /// The variable NO_COLOR (no-color.org): set and not empty means no colours.
    pub no_color: Option<&'a str>,
    /// The variable CLICOLOR_FORCE (bixense.com/clicolors): set and not 0 means colours without a terminal too.
    pub clicolor_force: Option<&'a str>,
    /// The variable GITHUB_ACTIONS: `true` in its jobs.
    pub github: Option<&'a str>,
    /// The variable GITLAB_CI: `true` in its jobs.
    pub gitlab: Option<&'a str>,
}

impl Style {
    /// The style for what is there. `fence` for GitHub, see there. A flag beats NO_COLOR, which beats CLICOLOR_FORCE,
    /// which beats what the terminal is.
    pub fn choose(outside: &Outside<'_>, fence: &str) -> Self {
        let able = outside.terminal && outside.term.is_some_and(|term| !matches!(term, "" | "dumb"));
        let surface = match (outside.github, outside.gitlab) {
            (Some("true"), _) => Surface::GitHub { fence: fence.to_owned() },
            (_, Some("true")) => Surface::GitLab,
            _ if able => Surface::Terminal,
            _ => Surface::Plain,
        };
        let unwanted = outside.no_color.is_some_and(|value| !value.is_empty());
        let forced = outside.clicolor_force.is_some_and(|value| !matches!(value, "" | "0"));
        // A task writes to a file: it has colours only where somebody asked it for them.
        let whole_logs = matches!(surface, Surface::GitHub { .. } | Surface::GitLab);
        let log_colour = whole_logs && outside.colour.unwrap_or(!unwanted);
        Self { surface, colour: outside.colour.unwrap_or(!unwanted && (forced || able)), log_colour }
    }
}

/// A line that GitHub shows on the page of its job, outside of the log.
pub fn annotation(title: &str, text: &str) -> String {
    forge::error(title, text).replace("##[", "# #[")
}

/// A call that was refused, as markdown for the summary of GitHub's job. `command` is its first word.
pub fn refused_summary(command: &str, why: &str) -> String {
    let lines =
        why.trim_end().lines().map(|line| markup::markdown_line(&clean::line(line.as_bytes(), lines::QUOTE_MAX)));
    let head = markup::markdown_line(command);
    lines.fold(format!("### {head} refused: nothing was queued or run\n"), |out, line| out + "\n" + &line + "  ") + "\n"
}

/// What is said of a wait that was cancelled, `wall_ms` milliseconds after 1970.
pub fn cancelled(style: &Style, wall_ms: u64, stop: Stop) -> String {
    let text = format!("by {stop} while waiting; nothing was run");
    Pen::plain(style.clone()).say(&utc_clock(wall_ms), "CANCELLED", Tone::Bad, &text)
}

/// What is said once the lock of a run is free, `wall_ms` milliseconds after 1970: the last line of all.
pub fn freed(style: &Style, wall_ms: u64) -> String {
    let line = Pen::plain(style.clone()).say(&utc_clock(wall_ms), "Freed", Tone::Good, "workstation lock");
    line.trim_end().to_owned()
}

/// A part of what is to be written, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// This text.
    Text(String),
    /// The whole log of a task, from this path relative to the repository, each line by `clean` and never
    /// more in memory than one line: logs are large.
    Log(String),
}

/// What the screen has to know of a run beside its events.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The command that the user gave, as text to repeat: `cargo xtask verify`.
    pub command: String,
    /// Path of the suite file, as the user would write it.
    pub suite: String,
    /// All clocks at the program's first line.
    pub requested: Clocks,
    /// The queue budget.
    pub queue_budget: Duration,
    /// The limit that the caller sets around the program, if known.
    pub outer: Option<Duration>,
    /// Whether something is signed after a run that has passed, and says how it all ended.
    pub signs: bool,
    /// The run deadline.
    pub deadline: Duration,
    /// The line of the suite file that sets it.
    pub deadline_line: usize,
    /// The part of it that is kept for stopping.
    pub wrap_up: Duration,
    /// CPU slots of the pool.
    pub slots: usize,
    /// How many tasks the suite has.
    pub suite_tasks: usize,
    /// Whether only a part of it was asked for, even if that part has every task: the gate refuses its receipt.
    pub partial: bool,
    /// How long earlier runs of the whole suite took that it passed, oldest first.
    pub past_runs: Vec<Duration>,
    /// The tasks of the run, in the order of the suite.
    pub tasks: Vec<Row>,
}

/// What the screen has to know of one task.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name.
    pub name: TaskName,
    /// Its deadline.
    pub deadline: Duration,
    /// The line of the suite file that sets it.
    pub deadline_line: usize,
    /// Slots that it takes.
    pub slots: usize,
    /// Tasks that must have passed before it starts.
    pub needs: Vec<TaskName>,
    /// Tasks with the same mutex take turns.
    pub mutex: Option<Name>,
    /// What to show when it fails.
    pub fix: Option<String>,
    /// How long it took in earlier runs that it passed, oldest first.
    pub past: Vec<Duration>,
}

/// What stands behind the words about a run of a part of the suite.
const PARTIAL: &str = " (partial)";

impl Scene {
    /// ` (partial)`, or nothing.
    fn partial(&self) -> &'static str {
        if self.partial { PARTIAL } else { "" }
    }

    /// `4 tasks`, `2 of 4 tasks (partial)`.
    fn asked_for(&self) -> String {
        let (some, all) = (self.tasks.len(), self.suite_tasks);
        if self.partial { format!("{some} of {all} tasks{PARTIAL}") } else { lines::plural(some, "task") }
    }

    /// The scene of a plan of `suite`.
    pub fn new(
        (command, suite_path): (&str, &str),
        (suite, plan): (&Suite, &Plan),
        past: &Past,
        requested: Clocks,
    ) -> Self {
        let row = |planned: &crate::plan::Planned| {
            let asked = suite.task(&planned.name);
            Row {
                name: planned.name.clone(),
                deadline: planned.deadline,
                deadline_line: asked.map_or(0, |task| task.deadline_line),
                slots: planned.slots,
                needs: planned.needs.iter().map(|&i| plan.tasks[i].name.clone()).collect(),
                mutex: planned.mutex.clone(),
                fix: asked.and_then(|task| task.fix.clone()),
                past: past.tasks.get(&planned.name).cloned().unwrap_or_default(),
            }
        };
        Self {
            command: command.to_owned(),
            suite: suite_path.to_owned(),
            requested,
            queue_budget: suite.run.queue,
            outer: None,
            signs: false,
            deadline: plan.deadline,
            deadline_line: suite.run.deadline_line,
            wrap_up: plan.wrap_up,
            slots: plan.slots,
            suite_tasks: suite.tasks.len(),
            partial: plan.partial,
            past_runs: if plan.partial { Vec::new() } else { past.runs.clone() },
            tasks: plan.tasks.iter().map(row).collect(),
        }
    }
}
