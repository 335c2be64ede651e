//! One run as Chrome trace JSON, which Perfetto and chrome://tracing open: the run and each CPU as a thread, a task as a
//! slice on every CPU that it had. The format: "Trace Event Format", Google, the JSON object form.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::receipt::statement::Receipt;

/// How every trace of ours begins.
pub const BEGINNING: &str = r#"{"displayTimeUnit":"ms","traceEvents":[{"args":{"name":"xtask r-"#;

/// The trace of a run. Time begins at its request; `ts` and `dur` are microseconds, as the format wants.
pub fn trace(receipt: &Receipt) -> String {
    let run = &receipt.predicate;
    let origin = run.clocks.requested.monotonic_ms;
    let since = |monotonic_ms: u64| micros(monotonic_ms.saturating_sub(origin));
    let mut events = vec![
        name("process_name", 0, &format!("xtask {}", run.run.as_str())),
        name("thread_name", 0, "run"),
        json!({"ph": "M", "pid": 1, "tid": 0, "name": "thread_sort_index", "args": {"sort_index": -1}}),
    ];
    let cpus: BTreeSet<u64> = run.tasks.iter().flat_map(|task| task.slots.iter().copied()).collect();
    events.extend(cpus.iter().map(|&cpu| name("thread_name", cpu.saturating_add(1), &format!("CPU {cpu}"))));

    let queue = json!({"budget_ms": run.limits.queue_ms});
    events.push(slice("queue", "run", (0, 0, micros(run.queue_ms)), queue));
    if let Some(won) = run.clocks.won {
        let whole = json!({
            "result": run.result, "extent": run.extent, "deadline_ms": run.limits.deadline_ms,
            "commit": receipt.subject.commit,
        });
        let begin = since(won.monotonic_ms);
        events.push(slice("run", "run", (0, begin, micros(run.run_ms)), whole));
        if let Some(started) = run.clocks.started {
            let took = since(started.monotonic_ms).saturating_sub(begin);
            events.push(slice("before the tasks", "run", (0, begin, took), json!({})));
        }
    }
    for task in &run.tasks {
        let Some(started) = task.started_ms else { continue };
        for cpu in &task.slots {
            let about = json!({
                "verdict": task.verdict, "why": task.why, "deadline_ms": task.deadline_ms, "cpu_ms": task.cpu_ms,
                "peak_kib": task.peak_kib, "command": task.command, "signals": task.signals,
            });
            events.push(slice(
                task.name.as_str(),
                "task",
                (cpu.saturating_add(1), since(started), micros(task.took_ms)),
                about,
            ));
        }
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string() + "\n"
}

fn micros(ms: u64) -> u64 {
    ms.saturating_mul(1000)
}

fn name(what: &str, tid: u64, text: &str) -> Value {
    json!({"ph": "M", "pid": 1, "tid": tid, "name": what, "args": {"name": text}})
}

fn slice(name: &str, category: &str, (tid, ts, dur): (u64, u64, u64), args: Value) -> Value {
    json!({"ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": category, "args": args})
}
