//! A good receipt changed in one place, and every rule that refuses it. `pure` judges these as they are, `built` as
//! bytes that a good key has signed.

use xtask::name::{Caller, Name, RunId};
use xtask::receipt::statement::*;
use xtask::verdict::{ExitStatus, Word};

pub const HOUR_MS: u64 = 3_600_000;

fn walls(receipt: &mut Receipt, shift: impl Fn(&mut u64)) {
    let clocks = &mut receipt.predicate.clocks;
    for clock in [Some(&mut clocks.requested), clocks.won.as_mut(), clocks.started.as_mut(), Some(&mut clocks.ended)] {
        shift(&mut clock.unwrap().wall_ms);
    }
}

pub type Change = fn(&mut Receipt);

/// What is changed, how, and every rule that refuses it: the rule for that place first to last as the table has them.
pub const CHANGES: &[(&str, Change, &[&str])] = &[
    ("type", |r| r.statement_type.push('x'), &["statement-type"]),
    ("predicate type", |r| r.predicate_type = "urn:xtask:receipt:v2".to_owned(), &["predicate-type"]),
    ("commit", |r| r.subject.commit = Some("1".repeat(40)), &["commit-mismatch"]),
    ("no commit", |r| r.subject.commit = None, &["commit-mismatch"]),
    ("tree", |r| r.subject.tree = Some("1".repeat(40)), &["tree-mismatch"]),
    ("no tree", |r| r.subject.tree = None, &["tree-mismatch"]),
    ("dirty", |r| r.predicate.tree.clean = Answer::No, &["tree-dirty"]),
    ("clean unknown", |r| r.predicate.tree.clean = Answer::Unknown, &["tree-dirty"]),
    ("uncommitted files", |r| r.predicate.tree.uncommitted.push("a".to_owned()), &["tree-dirty"]),
    ("changed", |r| r.predicate.tree.changed = Answer::Yes, &["tree-changed"]),
    ("changed unknown", |r| r.predicate.tree.changed = Answer::Unknown, &["tree-changed"]),
    ("changed files", |r| r.predicate.tree.changed_files.push("a".to_owned()), &["tree-changed"]),
    ("partial", |r| r.predicate.extent = Extent::Partial, &["partial"]),
    ("only", |r| r.predicate.selection.only.push(Name::parse("one").unwrap()), &["partial"]),
    ("profile", |r| r.predicate.selection.profile = Some(Name::parse("one").unwrap()), &["partial"]),
    ("port", |r| r.predicate.lock.workstation += 7, &["ports"]),
    ("worktree's port", |r| r.predicate.lock.worktree += 7, &["ports"]),
    ("lock", |r| r.predicate.lock.held = false, &["ports"]),
    ("caller", |r| r.predicate.caller = Caller::Ci, &["signer-role"]),
    ("suite's path", |r| r.predicate.suite.path = "other.toml".to_owned(), &["suite-changed"]),
    ("suite's digest", |r| r.predicate.suite.sha256 = "0".repeat(64), &["suite-changed"]),
    ("task missing", |r| drop(r.predicate.tasks.remove(0)), &["task-missing"]),
    ("tasks missing", |r| r.predicate.tasks.clear(), &["task-missing", "result"]),
    ("task renamed", |r| r.predicate.tasks[0].name = Name::parse("other").unwrap(), &["task-missing", "task-extra"]),
    ("task twice", |r| r.predicate.tasks.push(r.predicate.tasks[0].clone()), &["task-twice"]),
    ("command", |r| r.predicate.tasks[0].command = vec!["false".to_owned()], &["task-command"]),
    ("argument", |r| r.predicate.tasks[0].command.push("-v".to_owned()), &["task-command"]),
    ("deadline raised", |r| r.predicate.tasks[0].deadline_ms += 1, &["task-limit"]),
    ("deadline lowered", |r| r.predicate.tasks[0].deadline_ms -= 1, &["task-limit"]),
    ("log limit", |r| r.predicate.tasks[0].log_limit += 1, &["task-limit"]),
    ("weight", |r| r.predicate.tasks[0].weight = "all".to_owned(), &["task-weight"]),
    ("no CPU", |r| r.predicate.tasks[0].slots.clear(), &["task-weight"]),
    (
        "a CPU twice",
        |r| r.predicate.tasks[0].slots = [&r.predicate.tasks[0].slots[..], &r.predicate.tasks[0].slots].concat(),
        &["task-weight"],
    ),
    ("a CPU more", |r| r.predicate.tasks[1].slots.push(4000), &["task-weight"]),
    ("run's deadline", |r| r.predicate.limits.deadline_ms += 1, &["run-limit"]),
    ("margin", |r| r.predicate.limits.margin_ms += 1, &["run-limit"]),
    ("stop grace", |r| r.predicate.limits.stop_grace_ms += 1, &["run-limit"]),
    ("wrap-up", |r| r.predicate.limits.wrap_up_ms += 1, &["run-limit"]),
    ("empty pool", |r| r.predicate.limits.slots = 0, &["task-weight", "run-limit"]),
    (
        "service",
        |r| r.predicate.services.push(Service { name: Name::parse("postgres").unwrap(), version: "15".to_owned() }),
        &["services"],
    ),
    ("queue time", |r| r.predicate.queue_ms = r.predicate.limits.queue_ms + 1, &["queue-budget"]),
    ("queue budget", |r| (r.predicate.queue_ms, r.predicate.limits.queue_ms) = (2, 1), &["queue-budget"]),
    ("run time", |r| r.predicate.run_ms = r.predicate.limits.deadline_ms + 1, &["run-deadline"]),
    (
        "task's time",
        |r| r.predicate.tasks[0].took_ms = r.predicate.tasks[0].deadline_ms + 1,
        &["task-deadline", "clock-order"],
    ),
    (
        "a budget of the caller's own, larger than the suite's",
        |r| {
            let budget = r.predicate.limits.queue_ms;
            let early = &mut r.predicate.clocks.requested;
            for clock in [&mut early.monotonic_ms, &mut early.boot_ms, &mut early.wall_ms] {
                *clock -= budget + 1000;
            }
            r.predicate.queue_ms += budget + 1000;
            r.predicate.limits.queue_ms = 2 * budget + 2000;
        },
        &["queue-budget"],
    ),
    (
        "a task before its run",
        |r| r.predicate.tasks[0].started_ms = r.predicate.clocks.won.map(|won| won.monotonic_ms - 1),
        &["clock-order"],
    ),
    (
        "a task after its run",
        |r| r.predicate.tasks[0].started_ms = Some(r.predicate.clocks.ended.monotonic_ms + 1),
        &["clock-order"],
    ),
    ("never won", |r| r.predicate.clocks.won = None, &["clock-order"]),
    ("never started", |r| r.predicate.clocks.started = None, &["clock-order"]),
    (
        "won before it was asked for",
        |r| r.predicate.clocks.won.as_mut().unwrap().monotonic_ms = r.predicate.clocks.requested.monotonic_ms - 1,
        &["clock-order"],
    ),
    (
        "started before it was won",
        |r| r.predicate.clocks.started.as_mut().unwrap().boot_ms = r.predicate.clocks.won.unwrap().boot_ms - 1,
        &["clock-order"],
    ),
    ("wall clock set", |r| r.predicate.clocks.requested.wall_ms -= 10_000, &["clock-drift"]),
    ("slept while it ran", |r| r.predicate.clocks.won.as_mut().unwrap().wall_ms -= 10_000, &["clock-drift"]),
    ("old", |r| walls(r, |wall| *wall -= 3 * HOUR_MS), &["too-old"]),
    ("from the future", |r| walls(r, |wall| *wall += HOUR_MS), &["from-future"]),
    (
        "queued longer by the clock",
        |r| {
            let over = r.predicate.limits.queue_ms + 2;
            let requested = &mut r.predicate.clocks.requested;
            (requested.boot_ms, requested.monotonic_ms) = (requested.boot_ms - over, requested.monotonic_ms - over);
            requested.wall_ms -= over;
        },
        &["queue-budget"],
    ),
    (
        "failed task",
        |r| (r.predicate.tasks[0].verdict, r.predicate.tasks[0].exit) = (Word::Failed, None),
        &["task-verdict", "result"],
    ),
    ("late task", |r| r.predicate.tasks[0].verdict = Word::Late, &["task-verdict", "result"]),
    ("task not run", |r| r.predicate.tasks[0].verdict = Word::NotRun, &["task-verdict", "result"]),
    ("exit code", |r| r.predicate.tasks[0].exit = Some(ExitStatus::Code(1)), &["task-verdict"]),
    ("ended by a signal", |r| r.predicate.tasks[0].exit = Some(ExitStatus::Signal(9)), &["task-verdict"]),
    ("no exit", |r| r.predicate.tasks[0].exit = None, &["task-verdict"]),
    ("never begun", |r| r.predicate.tasks[0].started_ms = None, &["task-verdict"]),
    ("signals", |r| r.predicate.tasks[0].signals.push("SIGTERM".to_owned()), &["task-verdict"]),
    ("leftovers", |r| r.predicate.tasks[0].leftovers.push("sleep".to_owned()), &["leftovers"]),
    ("result failed", |r| r.predicate.result = Word::Failed, &["result"]),
    ("result without verdict", |r| r.predicate.result = Word::NoVerdict, &["result"]),
    ("trouble", |r| r.predicate.trouble.push("disk".to_owned()), &["result"]),
    (
        "output nobody declared",
        |r| drop(r.subject.outputs.insert("b".to_owned(), "0".repeat(64))),
        &["artifact-undeclared"],
    ),
    ("output left out", |r| r.subject.outputs.clear(), &["artifact-omitted"]),
    (
        "output outside",
        |r| drop(r.subject.outputs.insert("../b".to_owned(), "0".repeat(64))),
        &["artifact-name", "artifact-undeclared"],
    ),
];

/// What is said but not relied upon: it may be anything of its type.
pub const INFORMATION: &[(&str, Change)] = &[
    ("run", |r| r.predicate.run = RunId::new(1, 1)),
    ("outer limit", |r| r.predicate.limits.outer_ms = Some(1)),
    ("namespace", |r| r.predicate.lock.network_namespace = None),
    ("boot", |r| r.predicate.clocks.boot_id.clear()),
    ("CPU time", |r| r.predicate.tasks[0].cpu_ms = u64::MAX),
    ("peak", |r| r.predicate.tasks[0].peak_kib = u64::MAX),
    ("why", |r| r.predicate.tasks[0].why.clear()),
    ("log", |r| r.predicate.tasks[0].log = None),
    ("toolchain", |r| r.predicate.toolchain.clear()),
    ("version", |r| r.predicate.xtask.version.clear()),
    ("digest of xtask", |r| r.predicate.xtask.sha256.clear()),
    ("queue time at the budget", |r| r.predicate.queue_ms = r.predicate.limits.queue_ms),
    ("run time at the deadline", |r| r.predicate.run_ms = r.predicate.limits.deadline_ms),
    ("task's time at the deadline", |r| {
        let (took, clocks) = (r.predicate.tasks[0].deadline_ms, &mut r.predicate.clocks);
        for clock in [Some(&mut clocks.requested), clocks.won.as_mut(), clocks.started.as_mut()].into_iter().flatten() {
            for ms in [&mut clock.monotonic_ms, &mut clock.boot_ms, &mut clock.wall_ms] {
                *ms -= took;
            }
        }
        r.predicate.tasks[0].started_ms = r.predicate.tasks[0].started_ms.map(|at| at - took);
        r.predicate.tasks[0].took_ms = took;
    }),
    ("wall clock within its drift", |r| r.predicate.clocks.requested.wall_ms -= 1_500),
];
