//! One run as JUnit XML, the form that CI services read: a test case a task.

use std::fmt::Write as _;

use super::markup::escape;
use crate::event::TaskRecord;
use crate::receipt::statement::{Extent, Receipt, Task};
use crate::time::utc;
use crate::verdict::Word;

/// How every file of ours begins.
pub const BEGINNING: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"xtask\" ";

/// The XML of a run: its receipt, and what is known of its tasks beside it (the last lines of their logs). A run that has
/// not passed has a failure or an error in it even if every task passed: readers of this file look at nothing else.
pub fn xml(receipt: &Receipt, records: &[TaskRecord]) -> String {
    let run = &receipt.predicate;
    let count = |words: &[Word]| run.tasks.iter().filter(|task| words.contains(&task.verdict)).count();
    let (failures, skipped) = (count(&[Word::Failed, Word::Late]), count(&[Word::NotRun]));
    let cancelled = count(&[Word::Cancelled]);
    let unexplained = run.result != Word::Passed && failures + cancelled == 0 || run.result == Word::NoVerdict;
    let counts = format!(
        r#"tests="{}" failures="{failures}" errors="{}" skipped="{skipped}" time="{}""#,
        run.tasks.len() + usize::from(unexplained),
        cancelled + usize::from(unexplained),
        seconds(run.run_ms)
    );
    let mut out = format!("{BEGINNING}{counts}>\n");
    let (suite, at) = (escape(&run.suite.path), utc(run.clocks.requested.wall_ms));
    let _ = writeln!(out, r#"  <testsuite name="{suite}" timestamp="{}" {counts}>"#, at.trim_end_matches('Z'));
    out.push_str("    <properties>\n");
    let commit = receipt.subject.commit.as_deref().unwrap_or("none");
    for (name, value) in [
        ("run", run.run.as_str().to_owned()),
        ("result", run.result.to_string()),
        ("extent", if run.extent == Extent::Whole { "whole" } else { "partial" }.to_owned()),
        ("caller", run.caller.to_string()),
        ("commit", commit.to_owned()),
        ("queue_ms", run.queue_ms.to_string()),
        ("run_ms", run.run_ms.to_string()),
    ] {
        let _ = writeln!(out, r#"      <property name="{name}" value="{}"/>"#, escape(&value));
    }
    out.push_str("    </properties>\n");
    for task in &run.tasks {
        case(&mut out, &suite, task, records.iter().find(|record| record.task == task.name));
    }
    if unexplained {
        let why = if run.trouble.is_empty() { format!("the run is {}", run.result) } else { run.trouble.join("; ") };
        let _ = writeln!(out, r#"    <testcase name="(run)" classname="{suite}" time="{}">"#, seconds(run.run_ms));
        let _ = writeln!(out, r#"      <error type="{}" message="{}"/>"#, run.result, escape(&why));
        out.push_str("    </testcase>\n");
    }
    out + "  </testsuite>\n</testsuites>\n"
}

/// The XML of a run that was refused before it began, `wall_ms` milliseconds after 1970: one case, with the reason.
pub fn refused(why: &str, wall_ms: u64) -> String {
    let counts = r#"tests="1" failures="0" errors="1" skipped="0" time="0.000""#;
    let (why, at) = (escape(why), utc(wall_ms));
    let at = at.trim_end_matches('Z');
    format!(
        "{BEGINNING}{counts}>\n  \
         <testsuite name=\"xtask\" timestamp=\"{at}\" {counts}>\n    \
         <testcase name=\"(run)\" classname=\"xtask\" time=\"0.000\">\n      \
         <error type=\"refused\" message=\"nothing was queued or run\">{why}</error>\n    \
         </testcase>\n  </testsuite>\n</testsuites>\n"
    )
}

fn case(out: &mut String, suite: &str, task: &Task, record: Option<&TaskRecord>) {
    let (name, took) = (escape(task.name.as_str()), seconds(task.took_ms));
    let element = match task.verdict {
        Word::Passed => {
            let _ = writeln!(out, r#"    <testcase name="{name}" classname="{suite}" time="{took}"/>"#);
            return;
        }
        Word::NotRun => "skipped",
        Word::Failed | Word::Late => "failure",
        Word::Cancelled | Word::NoVerdict => "error",
    };
    let _ = writeln!(out, r#"    <testcase name="{name}" classname="{suite}" time="{took}">"#);
    // `type` is not allowed on `skipped`.
    let kind = if element == "skipped" { String::new() } else { format!(" type=\"{}\"", task.verdict) };
    let tail = record.map(|record| record.tail.join("\n")).unwrap_or_default();
    let _ = writeln!(out, "      <{element}{kind} message=\"{}\">{}</{element}>", escape(&task.why), escape(&tail));
    if let Some(log) = &task.log {
        let _ = writeln!(out, "      <system-out>the whole log: {}</system-out>", escape(log));
    }
    out.push_str("    </testcase>\n");
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}
