//! What is known of one task from its start to its verdict.

use std::fs::File;
use std::time::Duration;

use crate::event::TaskRecord;
use crate::name::TaskName;
use crate::process::{Gone, log};
use crate::time::Moment;
use crate::verdict::{Cause, Verdict};

/// How many of the last lines of a log go into the record of a task that did not pass.
const TAIL_LINES: usize = 25;

/// One task of the run.
#[derive(Default)]
pub(super) struct Seat {
    pub(super) cpus: Vec<usize>,
    pub(super) started: Option<Moment>,
    pub(super) log: Option<Log>,
    pub(super) gone: Option<Gone>,
    pub(super) outputs: Vec<(String, String)>,
}

/// A log that is being written.
pub(super) struct Log {
    file: File,
    size: u64,
    grew: Moment,
    look_at: Moment,
    full: bool,
}

impl Log {
    /// A log that is empty at `now`.
    pub(super) fn new(file: File, now: Moment) -> Self {
        Self { file, size: 0, grew: now, look_at: now, full: false }
    }

    /// When its size has to be looked at again.
    pub(super) fn look_at(&self) -> Moment {
        self.look_at
    }

    /// How long it has not grown.
    pub(super) fn silent(&self, now: Moment) -> Duration {
        now.since(self.grew)
    }

    /// Looks at its size, if that is due. True the first time that it is over the limit; from then on it is cut at every
    /// look, because a flood goes on through the grace, at gigabytes a second.
    pub(super) fn outgrew(&mut self, limit: u64, now: Moment) -> bool {
        if now < self.look_at {
            return false;
        }
        if self.full {
            let _ = log::cut(&self.file, limit); // if it cannot be cut, the grace ends the flood
        }
        let size = log::size(&self.file);
        if size != self.size {
            (self.size, self.grew) = (size, now);
        }
        self.look_at = now + log::look_again(size, limit);
        self.fills(size, limit)
    }

    /// The last look, once nothing writes to it any more: a flood may begin and end between two looks. True if nobody has
    /// seen before that it is over the limit.
    pub(super) fn ended_over(&mut self, limit: u64) -> bool {
        self.fills(log::size(&self.file), limit)
    }

    fn fills(&mut self, size: u64, limit: u64) -> bool {
        let new = size > limit && !self.full;
        self.full |= new;
        new
    }

    /// Nobody writes to it any more.
    pub(super) fn end(&self, limit: u64) {
        if self.full {
            // What came after the cap would only fill the disk. A log that cannot be cut is as it is.
            let _ = log::cut(&self.file, limit);
        }
    }

    // The last lines, and how many there are.
    fn tail(&self, limit: u64) -> (Vec<String>, u64) {
        self.end(limit);
        match log::tail(&self.file, TAIL_LINES) {
            Ok(found) => (found.lines, found.total),
            Err(error) => (vec![format!("(the log cannot be read: {error})")], 0),
        }
    }
}

impl Seat {
    /// All there is to say of the task now that it has its verdict.
    pub(super) fn record(self, task: TaskName, verdict: Verdict, log_limit: u64) -> TaskRecord {
        let started = self.started;
        let log = self.log.as_ref().filter(|_| verdict != Verdict::Passed);
        let refusal = || log.and_then(|log| log::refusal(&log.file)).map(|error| error.to_string());
        let verdict = match verdict {
            // The reason may be just what found no room.
            Verdict::Failed(Cause::Exit(status)) => {
                Verdict::Failed(refusal().map_or(Cause::Exit(status), |why| Cause::Unsaid { status, why }))
            }
            other => other,
        };
        let (tail, log_lines) = log.map(|log| log.tail(log_limit)).unwrap_or_default();
        let never = TaskRecord::never_started(task, verdict);
        let Some(gone) = self.gone else { return TaskRecord { started, cpus: self.cpus, ..never } };
        TaskRecord {
            started,
            took: started.map_or(Duration::ZERO, |started| gone.at.since(started)),
            exit: gone.status,
            cpus: self.cpus,
            signals: gone.signals,
            leftovers: gone.leftovers,
            cpu_time: gone.cpu_time,
            peak_kib: gone.peak_kib,
            outputs: self.outputs,
            tail,
            log_lines,
            ..never
        }
    }
}
