//! What is said while it works, on stderr: the table alone goes to stdout.

use std::cell::Cell;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// Says which part is measured, and how far it is.
pub struct Progress {
    terminal: bool,
    said: Cell<Instant>,
}

// Where no line can be written over, a step is said so often.
const PAUSE: Duration = Duration::from_secs(10);

impl Progress {
    pub fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), said: Cell::new(Instant::now()) }
    }

    /// A line that stays.
    pub fn line(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[K" } else { "" };
        // Who does not listen stops nothing.
        _ = writeln!(std::io::stderr(), "{clear}{text}");
        self.said.set(Instant::now());
    }

    /// What is being done; the next one takes its place.
    pub fn step(&self, text: &str) {
        if self.terminal {
            let mut stderr = std::io::stderr();
            _ = write!(stderr, "\r\x1b[K    {text}").and_then(|()| stderr.flush());
        } else if self.said.get().elapsed() >= PAUSE {
            self.line(&format!("    {text}"));
        }
    }

    /// The step of so many rounds.
    pub fn round(&self, what: &str, round: usize, rounds: usize) {
        self.step(&format!("{what}: {} of {rounds}", round + 1));
    }
}
