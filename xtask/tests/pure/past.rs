//! What earlier receipts tell of how long things take.

use std::time::Duration;

use xtask::name::TaskName;
use xtask::receipt::past::{Past, median};

fn receipt(result: &str, extent: &str, run_ms: u64, tasks: &[(&str, &str, u64)]) -> Vec<u8> {
    let task = |(name, verdict, took): &(&str, &str, u64)| serde_json::json!({ "name": name, "verdict": verdict, "took_ms": took, "more": [{ "of": "it" }] });
    let tasks: Vec<_> = tasks.iter().map(task).collect();
    let predicate =
        serde_json::json!({ "result": result, "extent": extent, "run_ms": run_ms, "tasks": tasks, "x": {} });
    serde_json::json!({ "predicateType": "urn:xtask:receipt:v1", "predicate": predicate }).to_string().into_bytes()
}

fn millis(durations: &[Duration]) -> Vec<u128> {
    durations.iter().map(Duration::as_millis).collect()
}

fn name(text: &str) -> TaskName {
    TaskName::parse(text).unwrap()
}

#[test]
fn oldest_first_and_only_what_passed() {
    let past = Past::of([
        receipt("failed", "whole", 9, &[("a", "passed", 3), ("b", "failed", 7)]),
        receipt("passed", "partial", 8, &[("a", "passed", 1)]),
        receipt("passed", "whole", 5, &[("a", "passed", 2), ("b", "passed", 4)]),
    ]);
    assert_eq!(millis(&past.runs), [5]);
    assert_eq!(millis(&past.tasks[&name("a")]), [2, 1, 3]);
    assert_eq!(millis(&past.tasks[&name("b")]), [4]);
    assert_eq!(past.usual()[&name("a")], Duration::from_millis(2));
    // What `plan` calls usual and what the screen of a run calls so are the same, also of an even number.
    let two = Past { tasks: [(name("a"), [3, 1].map(Duration::from_millis).to_vec())].into(), runs: Vec::new() };
    assert_eq!((two.usual()[&name("a")], median(&[])), (Duration::from_millis(1), None));
}

#[test]
fn no_more_is_read_than_ten_whole_runs_that_passed() {
    let mut taken = 0;
    let endless = std::iter::from_fn(|| {
        taken += 1;
        let result = if taken % 2 == 0 { "passed" } else { "failed" };
        Some(receipt(result, "whole", taken, &[("a", "passed", taken)]))
    });
    let past = Past::of(endless);
    assert_eq!(millis(&past.runs), (1..=10).rev().map(|n| n * 2).collect::<Vec<_>>());
    assert_eq!((past.tasks[&name("a")].len(), taken), (20, 20));
}

#[test]
fn what_is_no_receipt_of_ours_tells_nothing() {
    let other = String::from_utf8(receipt("passed", "whole", 5, &[])).unwrap().replace("receipt:v1", "receipt:v2");
    let past = Past::of([b"{".to_vec(), b"[]".to_vec(), other.into_bytes(), receipt("passed", "whole", 6, &[])]);
    assert_eq!(millis(&past.runs), [6]);
}
