//! The whole of what is shown: lines that scroll by, and on a terminal below them at most eight rows that are redrawn.
//!
//! Between two frames the cursor rests at the first row, so that a terminal that wraps its lines anew when it is resized
//! takes it along; and rows are written with wrapping off, so that one that was made for another width takes one line
//! all the same. Nothing has to be known of a resize: tmux tells of it up to 250 ms after it has wrapped the lines.
//! The cursor is never hidden, and wrapping is on again at the end of each frame.

use std::time::Duration;

use super::lines::{HEARTBEAT, Lines};
use super::rows;
use super::{Piece, Scene, Style};
use crate::clean;
use crate::event::{Event, Stamped};
use crate::name::TaskName;
use crate::time::Moment;

/// How often the rows are redrawn.
pub const FRAME: Duration = Duration::from_millis(200);

/// Most rows at the bottom.
const ROWS_MAX: usize = 8;
/// No rows below this width: nothing could be read of them.
const COLUMNS_MIN: usize = 10;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Characters of a line.
    pub columns: usize,
    /// Lines.
    pub rows: usize,
}

/// The screen of one run. It outputs text; to write it, and when to come back, is the caller's part.
#[derive(Debug)]
pub struct Screen {
    lines: Lines,
    /// Whether rows stand at the bottom now.
    drawn: bool,
    /// The size of the terminal when it was looked at last.
    size: Size,
    /// The last line of the log of what runs, cleaned.
    latest: Vec<(TaskName, String)>,
    due: Option<Moment>,
    over: bool,
}

impl Screen {
    /// Before the first event.
    pub fn new(style: Style, scene: Scene) -> Self {
        let lines = Lines::new(style, scene);
        Self { lines, drawn: false, size: Size { columns: 80, rows: 24 }, latest: Vec::new(), due: None, over: false }
    }

    /// What an event adds: the rows go, its lines come, the rows come back below them. `size` is that of the terminal now,
    /// where there is one.
    pub fn on(&mut self, stamped: &Stamped, size: Size) -> Vec<Piece> {
        let first = self.due.is_none();
        self.over |= matches!(stamped.event, Event::RunFinished { .. });
        let mut pieces = self.lines.on(stamped);
        if first {
            self.due = Some(stamped.at + if self.lines.pen.terminal() { FRAME } else { HEARTBEAT });
        }
        if self.lines.pen.terminal() && (self.drawn || !pieces.is_empty()) {
            self.size = size;
            pieces.insert(0, Piece::Text(self.erase()));
            let rows = self.draw(stamped.at);
            pieces.push(Piece::Text(rows));
        }
        pieces.retain(|piece| *piece != Piece::Text(String::new()));
        pieces
    }

    /// Takes an event in that is shown elsewhere.
    pub fn learn(&mut self, stamped: &Stamped) {
        self.lines.board.on(stamped);
    }

    /// Whether there are rows to redraw: on a terminal.
    pub fn has_rows(&self) -> bool {
        self.lines.pen.terminal()
    }

    /// When `tick` is due next. None when the run is over, or nothing has happened yet.
    pub fn due(&self) -> Option<Moment> {
        self.due.filter(|_| !self.over)
    }

    /// Time has passed: a heartbeat where it is due, or the rows anew for a terminal of this size. `last_bytes` gives the
    /// last few KiB of a log, by its path relative to the repository; it is asked on a terminal only.
    pub fn tick(&mut self, now: Moment, size: Size, last_bytes: &mut dyn FnMut(&str) -> Vec<u8>) -> String {
        if self.due().is_none_or(|due| now < due) {
            return String::new();
        }
        if !self.lines.pen.terminal() {
            self.due = Some(now + HEARTBEAT);
            return self.lines.heartbeat(now);
        }
        self.due = Some(now + FRAME);
        let logs = self.lines.board.logs.clone().unwrap_or_default();
        let names = self.lines.board.running().into_iter().map(|(row, _)| row.name.clone());
        self.latest = names.map(|task| (task.clone(), last_line(&last_bytes(&format!("{logs}/{task}.log"))))).collect();
        self.size = size;
        self.draw(now)
    }

    /// Takes away rows that another process left behind: the cursor is at the first of them.
    pub fn erase_others(&self) -> String {
        if self.has_rows() { "\r\u{1b}[J".to_owned() } else { String::new() }
    }

    /// Takes the rows away: the last thing to write where another process goes on writing.
    pub fn erase(&mut self) -> String {
        if std::mem::take(&mut self.drawn) { "\r\u{1b}[J".to_owned() } else { String::new() }
    }

    /// One line of a task's log as it may be shown here, with its line end.
    pub fn log_line(&self, bytes: &[u8]) -> String {
        self.lines.log_line(bytes)
    }

    /// The run as markdown, for the summary page of a CI job.
    pub fn job_summary(&self, finished: &Stamped) -> String {
        super::ending::markdown(&self.lines.board, finished)
    }

    // Over the rows that are there, which flickers less than to erase them first.
    fn draw(&mut self, now: Moment) -> String {
        let Size { columns, rows: height } = self.size;
        let most = ROWS_MAX.min(height.saturating_sub(1));
        if self.over || columns < COLUMNS_MIN {
            return self.erase();
        }
        let rows = rows::rows(&self.lines, now, columns - 1, most, &self.latest);
        let back = match rows.len() {
            0 => return self.erase(),
            1 => "\r".to_owned(),
            count => format!("\r\u{1b}[{}A", count - 1),
        };
        self.drawn = true;
        format!("\u{1b}[?7l\r{}\u{1b}[K\u{1b}[J{back}\u{1b}[?7h", rows.join("\u{1b}[K\n"))
    }
}

// The last line with something in it, of the end of a log.
fn last_line(bytes: &[u8]) -> String {
    let lines = bytes.rsplit(|&byte| byte == b'\n').map(|line| clean::line(line, super::lines::QUOTE_MAX));
    lines.map(|line| line.trim().to_owned()).find(|line| !line.is_empty()).unwrap_or_default()
}
