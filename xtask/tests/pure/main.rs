//! Tests of the pure floors: no processes, no files, no real time.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod adopt;
mod bench_soak;
mod bench_table;
mod fuzzed;
mod house;
mod line;
mod lock;
mod names;
mod order;
mod outer;
mod past;
mod pictures;
mod plan;
#[path = "../properties/mod.rs"]
mod properties;
mod receipt;
#[path = "../built/receipt_changes.rs"]
mod receipt_changes;
mod receipt_gate;
mod receipt_rules;
mod receipt_signers;
mod report;
mod report_causes;
mod report_hostile;
mod report_lines;
mod report_queue;
mod report_rows;
mod report_story;
mod report_terminal;
mod schedule;
mod schedule_script;
mod schedule_sim;
mod suite;
mod suite_task;
mod timeline;
