//! NDJSON: one event, one line, for programs.

use serde::Serialize;

use crate::event::{Event, SCHEMA, Stamped};
use crate::time::{Moment, millis};
use crate::verdict::Verdict;

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
}

/// The event as one JSON object and a line end. `t_ms` counts from `requested`.
pub fn line(stamped: &Stamped, requested: Moment) -> String {
    let cause = match &stamped.event {
        Event::TaskFinished(record) if record.verdict != Verdict::Passed => Some(record.verdict.to_string()),
        _ => None,
    };
    let line = Line { schema: SCHEMA, t_ms: millis(stamped.at.since(requested)), event: &stamped.event, cause };
    serde_json::to_string(&line).expect("events have neither maps with odd keys nor types that cannot be written")
        + "\n"
}
