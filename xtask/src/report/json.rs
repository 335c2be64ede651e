//! NDJSON: one event, one line, for programs.

use serde::Serialize;

use crate::event::{Event, SCHEMA, Stamped};
use crate::time::{Moment, millis};
use crate::verdict::{ExitStatus, Verdict};

#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    /// Milliseconds since the run was asked for.
    t_ms: u64,
    #[serde(flatten)]
    event: &'a Event,
    /// Why a task did not pass, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_signal: Option<i32>,
}

/// The event as one JSON object and a line end. `t_ms` counts from `requested`.
pub fn line(stamped: &Stamped, requested: Moment) -> String {
    let record = match &stamped.event {
        Event::TaskFinished(record) => Some(record),
        _ => None,
    };
    let (exit_code, exit_signal) = match record.and_then(|record| record.exit) {
        Some(ExitStatus::Code(code)) => (Some(code), None),
        Some(ExitStatus::Signal(signal)) => (None, Some(signal)),
        None => (None, None),
    };
    let cause = record.filter(|record| record.verdict != Verdict::Passed).map(|record| record.verdict.to_string());
    let t_ms = millis(stamped.at.since(requested));
    let line = Line { schema: SCHEMA, t_ms, event: &stamped.event, cause, exit_code, exit_signal };
    serde_json::to_string(&line).expect("events have neither maps with odd keys nor types that cannot be written")
        + "\n"
}
