//! The run as lines that are never redrawn: what scrolls by on a terminal, and all there is elsewhere. One line an
//! event, grep-able words, a heartbeat where nobody can see that something still moves.

use std::time::Duration;

use super::ending;
use super::forge;
use super::pen::{Pen, Tone, whole};
use super::queue::Queue;
use super::scoreboard::{Scoreboard, Stopping};
use super::{Piece, Scene, Style, Surface};
use crate::clean;
use crate::event::{Event, Stamped, TaskRecord};
use crate::name::TaskName;
use crate::receipt::past::median;
use crate::time::{Human, Moment, utc_clock};
use crate::verdict::{Limit, Reason, Stop, Verdict, Word};

/// How often a heartbeat is due where there is no terminal.
pub const HEARTBEAT: Duration = Duration::from_secs(30);

/// Most characters of a line that somebody else wrote, where it is quoted.
pub(super) const QUOTE_MAX: usize = 300;

/// How many of the processes of a late task are shown.
const DOING_MAX: usize = 20;

/// The run so far, and the lines for what happens next.
#[derive(Debug)]
pub struct Lines {
    pub(super) board: Scoreboard,
    pub(super) pen: Pen,
    /// The lock that the run waits for.
    pub(super) queued: Option<Queue>,
    /// Annotations for the end, outside of every group.
    annotations: Vec<String>,
    fences: u32,
}

impl Lines {
    /// Before the first event.
    pub fn new(style: Style, scene: Scene) -> Self {
        let pen = Pen::new(style, &scene);
        Self { board: Scoreboard::new(scene), pen, queued: None, annotations: Vec::new(), fences: 0 }
    }

    /// What an event adds.
    pub fn on(&mut self, stamped: &Stamped) -> Vec<Piece> {
        let stopping = self.board.on(stamped);
        let at = stamped.at;
        let text = match &stamped.event {
            Event::Queued { text, .. } => {
                self.queued = Queue::new(stamped);
                match text.split_first() {
                    // A terminal has it in its rows.
                    Some((first, more)) if !self.pen.terminal() => {
                        let clean = |line: &String| clean::line(line.as_bytes(), QUOTE_MAX);
                        let first = self.say(at, "Waiting", Tone::Warn, &clean(first));
                        more.iter().fold(first, |out, line| out + &self.pen.more(&clean(line)))
                    }
                    _ => String::new(),
                }
            }
            Event::Acquired { queue } => {
                let lock = "workstation lock";
                let waited = self.queued.is_some() || *queue >= Duration::from_secs(1);
                let queued = if waited { format!(" after {} in queue", Human(*queue)) } else { String::new() };
                self.say(at, "Acquired", Tone::Good, &format!("{lock}{queued}"))
            }
            Event::Note { text } => self.say(at, "Note", Tone::Warn, &clean::line(text.as_bytes(), QUOTE_MAX)),
            // Before the locks are won the ending follows at once and says it.
            Event::Trouble { .. } if self.board.won.is_none() => String::new(),
            Event::Trouble { text } => self.say(at, "TROUBLE", Tone::Bad, &clean::line(text.as_bytes(), QUOTE_MAX)),
            Event::RunStarted { run, slots, deadline, .. } => {
                let count = self.board.scene.asked_for();
                let text = format!("run {run}: {count}, {}, deadline {}", plural(*slots, "cpu slot"), Human(*deadline));
                if self.pen.terminal() { String::new() } else { self.say(at, "Run", Tone::Busy, &text) }
            }
            Event::TreePinned { .. } => String::new(),
            Event::TaskStarted { task, cpus, deadline, .. } if !self.pen.terminal() => {
                let text = format!("{}  {} cpu, deadline {}", self.pen.name(task), cpus.len(), Human(*deadline));
                self.say(at, "Start", Tone::Busy, &text)
            }
            Event::TaskStarted { .. } => String::new(),
            Event::TaskStopping { task, .. } => self.stopping(at, task, stamped),
            Event::TaskFinished(record) => return self.finished(at, record, stopping),
            Event::StopAsked { signal, again } => {
                let after = Human(self.board.run_time(at));
                let text = match (again, self.names_running()) {
                    (true, names) => format!("by {signal} again: killing {names} now"),
                    (false, names) if names.is_empty() => format!("by {signal} after {after}"),
                    (false, names) => {
                        // GitHub's runner sends SIGINT, SIGTERM 7.5 s later, SIGKILL 2.5 s after that.
                        let github = matches!(self.pen.style.surface, Surface::GitHub { .. }) && *signal == Stop::Int;
                        let next = if github { "7.5s until SIGTERM" } else { "again: kill now" };
                        format!("by {signal} after {after}, stopping {names}  ({next})")
                    }
                };
                self.say(at, "CANCELLED", Tone::Bad, &text)
            }
            Event::RunLate { run } => {
                let (deadline, kept) = (self.board.scene.deadline, self.board.scene.wrap_up);
                let limits = format!("{} of {}, {} kept for stopping", Human(*run), Human(deadline), Human(kept));
                self.say(at, "LATE", Tone::Bad, &format!("run  {limits}; stopping {}", self.names_running()))
            }
            Event::TreeChanged { files } => {
                let files: Vec<String> = files.iter().map(|f| clean::line(f.as_bytes(), QUOTE_MAX)).collect();
                self.say(at, "CHANGED", Tone::Bad, &format!("the tree changed during the run: {}", files.join(", ")))
            }
            Event::RunFinished { .. } => {
                let annotations = std::mem::take(&mut self.annotations).concat() + &self.no_verdict(stamped);
                annotations + &ending::text(&self.board, &self.pen, stamped)
            }
        };
        if text.is_empty() { Vec::new() } else { vec![Piece::Text(text)] }
    }

    /// A line of what runs, for logs that nobody sees moving. Empty before the locks are won.
    pub fn heartbeat(&self, now: Moment) -> String {
        if self.board.won.is_none() {
            return String::new();
        }
        let running: Vec<String> = self
            .board
            .running()
            .iter()
            .map(|(row, running)| {
                let (took, limit) = (now.since(running.since), running.deadline);
                let slow = if running.stopping.is_some() { " stopping".to_owned() } else { slow(row, took, limit) };
                format!("{} {}/{}{slow}", row.name, whole(took), Human(limit))
            })
            .collect();
        let (done, all) = (self.board.ended().count(), self.board.scene.tasks.len());
        let time = format!("{} of {}", whole(self.board.run_time(now)), Human(self.board.scene.deadline));
        let running = if running.is_empty() { "no task runs".to_owned() } else { running.join(", ") };
        self.say(now, "Running", Tone::Busy, &format!("{time}; {done}/{all} done; {running}"))
    }

    /// One line of a task's log as it may be shown here, with its line end.
    pub fn log_line(&self, bytes: &[u8]) -> String {
        let text = if self.pen.style.log_colour { clean::coloured(bytes) } else { clean::line(bytes, usize::MAX) };
        self.pen.quote(&text) + "\n"
    }

    pub(super) fn say(&self, at: Moment, verb: &str, tone: Tone, text: &str) -> String {
        self.pen.say(&utc_clock(self.board.wall_ms(at)), verb, tone, text)
    }

    fn names_running(&self) -> String {
        let names: Vec<&str> = self.board.running().iter().map(|(row, _)| row.name.as_str()).collect();
        names.join(", ")
    }

    fn stopping(&self, at: Moment, task: &TaskName, stamped: &Stamped) -> String {
        let Event::TaskStopping { why, late, signal, took, doing, .. } = &stamped.event else { return String::new() };
        let again = self.board.running().iter().any(|(row, running)| {
            row.name == *task && running.stopping.as_ref().is_some_and(|stopping| stopping.killed.is_some())
        });
        // What follows at the end of the task says how it was stopped; the run's own deadline and a cancel say whom
        // they stop in their own line.
        if again || *late == Some(Limit::Run) || self.board.stopped.is_some() {
            return String::new();
        }
        let name = self.pen.name(task);
        match late {
            Some(_) => {
                let limit = self.board.row(task).map_or(Duration::ZERO, |row| row.deadline);
                let whom = if doing.is_empty() {
                    String::new()
                } else {
                    format!("  stopping {}", plural(doing.len(), "process"))
                };
                self.say(at, "LATE", Tone::Bad, &format!("{name} {:>7} of {:>4}{whom}", Human(*took), Human(limit)))
            }
            None => {
                let why = clean::line(why.as_bytes(), QUOTE_MAX);
                self.say(at, "Stopping", Tone::Warn, &format!("{name} {signal}: {why}"))
            }
        }
    }

    fn finished(&mut self, at: Moment, record: &TaskRecord, stopping: Option<Stopping>) -> Vec<Piece> {
        let mut text = String::new();
        let name = self.pen.name(&record.task);
        if let Some(Stopping { first: (asked, signal), killed, .. }) = &stopping {
            let how = match killed {
                Some(killed) => format!("{signal} ignored, SIGKILL after {}", Human(killed.since(*asked))),
                None => format!("{signal}, gone after {}", Human(at.since(*asked))),
            };
            text += &self.say(at, "Stopped", Tone::Warn, &format!("{name} {how}"));
        }
        let limit = self.board.row(&record.task).map_or(Duration::ZERO, |row| row.deadline);
        let times = format!("{name} {:>7} of {:>4}", Human(record.took), Human(limit));
        let cause = clean::line(record.verdict.to_string().as_bytes(), QUOTE_MAX);
        text += &match &record.verdict {
            Verdict::Passed => self.say(at, "Passed", Tone::Good, &times),
            Verdict::Failed(_) => self.say(at, "FAIL", Tone::Bad, &format!("{times}   {cause}")),
            // Said when its deadline came, or by the line that says that the run's own came.
            Verdict::Late(_) if stopping.is_some() => String::new(),
            Verdict::Late(_) => self.say(at, "LATE", Tone::Bad, &format!("{times}   {cause}")),
            Verdict::Cancelled(_) if stopping.is_some() => String::new(),
            Verdict::Cancelled(_) => self.say(at, "Cancelled", Tone::Bad, &format!("{times}   {cause}")),
            // The end of the run counts them; a person needs no line for each.
            Verdict::NotRun(Reason::Cancelled(_) | Reason::RunDeadline | Reason::NoVerdict) if self.pen.terminal() => {
                String::new()
            }
            Verdict::NotRun(_) => self.say(at, "NOT-RUN", Tone::Warn, &format!("{name} {cause}")),
        };
        let mut pieces = vec![Piece::Text(text)];
        pieces.extend(self.whole_log(at, record));
        let quoted = self.quoted(record, stopping.as_ref());
        if !quoted.is_empty() {
            pieces.push(Piece::Text(quoted));
        }
        let bad = matches!(record.verdict, Verdict::Failed(_) | Verdict::Late(_));
        if bad
            && matches!(self.pen.style.surface, Surface::GitHub { .. })
            && self.annotations.len() < forge::ANNOTATIONS_MAX
        {
            self.annotations.push(self.pen.quote(&forge::annotation(record, limit)));
        }
        pieces
    }

    // No task is to blame, so that no annotation of a task says it.
    fn no_verdict(&self, stamped: &Stamped) -> String {
        match (&stamped.event, &self.pen.style.surface) {
            (Event::RunFinished { verdict: Word::NoVerdict, cause: Some(cause), .. }, Surface::GitHub { .. }) => {
                super::annotation("no verdict", &clean::line(cause.as_bytes(), QUOTE_MAX))
            }
            _ => String::new(),
        }
    }

    // Where the service can fold it, the whole log.
    fn whole_log(&mut self, at: Moment, record: &TaskRecord) -> Vec<Piece> {
        let (Some(logs), Some(started)) = (&self.board.logs, record.started) else { return Vec::new() };
        let log = Piece::Log(format!("{logs}/{}.log", record.task));
        let title = format!("{} - {} in {}", record.task, record.verdict.word(), Human(record.took));
        let (open, close) = match &self.pen.style.surface {
            Surface::GitHub { fence } => {
                self.fences += 1;
                forge::github_group(&title, &forge::token(fence, self.fences))
            }
            Surface::GitLab => {
                let (from, to) = (self.board.wall_ms(started) / 1000, self.board.wall_ms(at) / 1000);
                forge::gitlab_section(record.task.as_str(), &title, (from, to))
            }
            Surface::Terminal | Surface::Plain => return Vec::new(),
        };
        vec![Piece::Text(open), log, Piece::Text(close)]
    }

    // The last lines of a task that did not pass, and what it was doing when it was late, between two rules.
    fn quoted(&mut self, record: &TaskRecord, stopping: Option<&Stopping>) -> String {
        if !matches!(record.verdict, Verdict::Failed(_) | Verdict::Late(_)) {
            return String::new();
        }
        let mut inside = String::new();
        let doing = stopping.filter(|stopping| stopping.late.is_some() && !stopping.doing.is_empty());
        if let Some(Stopping { took, doing, .. }) = doing {
            inside += &self.pen.rule(&format!("{}: what it was doing at {}", record.task, Human(*took)));
            inside.extend(doing.iter().take(DOING_MAX).map(|line| self.quoted_line(line)));
            if let Some(more @ 1..) = doing.len().checked_sub(DOING_MAX) {
                inside += &self.quoted_line(&format!("and {more} more"));
            }
        }
        if !record.tail.is_empty() {
            let (shown, all) = (record.tail.len(), record.log_lines);
            inside += &self.pen.rule(&format!("{}: last {shown} of {}", record.task, plural(all as usize, "line")));
            inside.extend(record.tail.iter().map(|line| self.quoted_line(line)));
        }
        if inside.is_empty() {
            return inside;
        }
        inside += &self.pen.rule("");
        match &self.pen.style.surface {
            Surface::GitHub { fence } => {
                self.fences += 1;
                forge::fenced(&inside, &forge::token(fence, self.fences))
            }
            _ => inside,
        }
    }

    fn quoted_line(&self, line: &str) -> String {
        self.pen.quote(&format!("  {}", clean::line(line.as_bytes(), QUOTE_MAX))) + "\n"
    }
}

/// ` SLOW (usual 1m33s)` once a task has used 80 % of its deadline.
pub(super) fn slow(row: &super::Row, took: Duration, limit: Duration) -> String {
    if took < limit * 4 / 5 {
        return String::new();
    }
    match median(&row.past) {
        Some(usual) => format!(" SLOW (usual {})", Human(usual)),
        None => " SLOW".to_owned(),
    }
}

/// `1 task`, `13 tasks`, `3 processes`.
pub fn plural(count: usize, noun: &str) -> String {
    let ending = match (count, noun.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}
