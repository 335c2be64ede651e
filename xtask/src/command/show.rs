//! The hands of the screen: they write what report/ makes of the events, and keep the record.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::destination;
use crate::event::{Event, Stamped};
use crate::printer::{self, To, print};
use crate::receipt::statement::{Extent, Receipt};
use crate::record::Record;
use crate::report::{FRAME, Outside, Piece, Scene, Screen, Size, Style, Surface, json};
use crate::run::Observer;
use crate::run::order::Format;
use crate::sys;
use crate::time::Moment;
use crate::verdict::Exit;

/// How many bytes of the end of a log the live rows look at.
const LAST_BYTES: u64 = 4096;

/// Shows events to people or programs, and keeps the record of them.
pub struct Show {
    /// What has happened so far.
    pub record: Record,
    screen: Screen,
    json: bool,
    requested: Moment,
    root: PathBuf,
    // Nothing is drawn before: the last was not even written yet.
    resting: Option<Moment>,
}

impl Show {
    /// Shows a run in the repository at `root`.
    pub fn new(format: Format, scene: Scene, root: &Path) -> Self {
        let requested = scene.requested.monotonic;
        let screen = Screen::new(style(format), scene);
        Self { record: Record::default(), screen, json: format.json, requested, root: root.to_owned(), resting: None }
    }

    /// Says what happened now.
    pub fn tell(&mut self, event: Event) {
        self.on(&Stamped { at: sys::now(), event });
    }

    /// Leaves the screen to somebody else.
    pub fn close(&mut self) {
        print(To::Stderr, self.screen.erase());
    }

    /// Takes over the screen of somebody who may have left it in the middle of things.
    pub fn take_over(&self) {
        print(To::Stderr, self.screen.erase_others());
    }

    /// Takes an event in and shows nothing: somebody else says it.
    pub fn learn(&mut self, stamped: &Stamped) {
        self.record.on(stamped);
        self.screen.learn(stamped);
    }

    /// Writes the run into the summary of GitHub's job, if this is one.
    pub fn write_summary(&self, finished: &Stamped) {
        append_summary(&self.screen.job_summary(finished));
    }

    /// Says where programs look how a run ended that never began or broke off, `receipt` being what is written of it and
    /// `path` where; people are told by somebody else.
    pub fn finish(&mut self, receipt: &Receipt, path: Option<String>, exit: Exit) {
        let run = &receipt.predicate;
        let event = Event::RunFinished {
            verdict: run.result,
            partial: run.extent == Extent::Partial,
            cause: self.record.cause(),
            late: None,
            run: Duration::from_millis(run.run_ms),
            receipt: path,
            exit_code: exit.code(),
        };
        let finished = Stamped { at: sys::now(), event };
        if self.json {
            self.on(&finished);
        }
        self.write_summary(&finished);
    }

    fn write(&self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => print(To::Stderr, text),
                // A log that cannot be read is told where its end is shown.
                Piece::Log(path) => drop(self.write_log(&path)),
            }
        }
    }

    fn write_log(&self, path: &str) -> io::Result<()> {
        let mut reader = BufReader::new(File::open(self.root.join(path))?);
        let mut line = Vec::new();
        loop {
            line.clear();
            // A line without end must not fill the memory.
            if reader.by_ref().take(1 << 16).read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            print(To::Stderr, self.screen.log_line(&line));
        }
    }
}

impl Observer for Show {
    fn on(&mut self, stamped: &Stamped) {
        if self.json {
            self.learn(stamped);
            let line = json::line(stamped, self.requested);
            print(To::Stdout, line);
        } else {
            self.record.on(stamped);
            let pieces = self.screen.on(stamped, size());
            self.write(pieces);
        }
    }

    fn tick(&mut self, now: Moment) {
        if self.wake_at().is_none_or(|due| now < due) {
            return;
        }
        if printer::is_behind() {
            self.resting = Some(now + FRAME);
            return;
        }
        let root = &self.root;
        let text = self.screen.tick(now, size(), &mut |log| last_bytes(&root.join(log)).unwrap_or_default());
        print(To::Stderr, text);
    }

    fn wake_at(&self) -> Option<Moment> {
        if self.json { None } else { self.screen.due().map(|due| self.resting.map_or(due, |rest| rest.max(due))) }
    }
}

/// Appends markdown to the file that GitHub names for the summary of its job, if this is a job of GitHub's.
pub fn append_summary(markdown: &str) {
    let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else { return };
    let written = destination::append(Path::new(&path), true, markdown);
    if let Err(error) = written {
        super::say(&format!("note: the job summary cannot be written: {error}"));
    }
}

/// Whether this is the log of a job of GitHub's.
pub fn on_github(format: Format) -> bool {
    matches!(style(format).surface, Surface::GitHub { .. })
}

/// Does something that blocks, and redraws the rows meanwhile where there are some.
pub fn while_drawing<T>(show: &Mutex<Show>, work: impl FnOnce() -> T) -> T {
    if !open(show).screen.has_rows() {
        return work();
    }
    std::thread::scope(|scope| {
        let (over, wait) = mpsc::channel::<()>();
        scope.spawn(move || {
            while wait.recv_timeout(FRAME) == Err(mpsc::RecvTimeoutError::Timeout) {
                open(show).tick(sys::now());
            }
        });
        let done = work();
        drop(over);
        done
    })
}

/// The show behind its lock. That somebody panicked while showing something spoils nothing.
pub fn open(show: &Mutex<Show>) -> MutexGuard<'_, Show> {
    show.lock().unwrap_or_else(PoisonError::into_inner)
}

fn size() -> Size {
    let (columns, rows) = sys::terminal_size().unwrap_or((80, 24));
    Size { columns, rows }
}

fn last_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(LAST_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The style for this process's own terminal and environment.
pub fn style(format: Format) -> Style {
    let variable = |name| std::env::var(name).ok();
    let (term, no_color, force) = (variable("TERM"), variable("NO_COLOR"), variable("CLICOLOR_FORCE"));
    let (github, gitlab) = (variable("GITHUB_ACTIONS"), variable("GITLAB_CI"));
    let outside = Outside {
        terminal: io::stderr().is_terminal(),
        term: term.as_deref(),
        colour: format.colour,
        no_color: no_color.as_deref(),
        clicolor_force: force.as_deref(),
        github: github.as_deref(),
        gitlab: gitlab.as_deref(),
    };
    let random = [(); 4].map(|()| sys::random().unwrap_or_default());
    Style::choose(&outside, &random.map(|bits| format!("{bits:08x}")).concat())
}
