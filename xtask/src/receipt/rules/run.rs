//! What was run, when, and what came of it.

use std::time::Duration;

use super::{Gate, Refusals};
use crate::digest::short;
use crate::plan::Selection;
use crate::receipt::statement::{Answer, Clock, Extent, PREDICATE_TYPE, Receipt, STATEMENT_TYPE};
use crate::time::{Human, millis, utc};
use crate::verdict::{ExitStatus, Word};

// How far clocks may disagree, beside a thousandth of the time between: their own drift is far below, a step by hand or a
// sleep of the machine above.
const DRIFT_MS: u64 = 2_000;

pub(super) fn statement_type(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let got = &receipt.statement_type;
    refusals.same(got.as_str(), STATEMENT_TYPE, || format!("_type is {got:?}"));
}

pub(super) fn predicate_type(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let got = &receipt.predicate_type;
    refusals.same(got.as_str(), PREDICATE_TYPE, || format!("predicateType is {got:?}"));
}

pub(super) fn commit_mismatch(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let (got, want) = (&receipt.subject.commit, &gate.commit);
    if got.is_some() && got == want {
        return;
    }
    let name = |id: &Option<String>| id.as_deref().map_or("no commit", short).to_owned();
    let ahead = match gate.ahead {
        Some(1) => " (1 commit later)".to_owned(),
        Some(count) => format!(" ({count} commits later)"),
        None => String::new(),
    };
    let text = format!("receipt is for {}, {} is {}{ahead}", name(got), gate.revision, name(want));
    refusals.add(text).fact("want", want.clone()).fact("got", got.clone());
}

pub(super) fn tree_mismatch(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let (got, want) = (&receipt.subject.tree, &gate.tree);
    if got.is_none() || got != want {
        let name = |id: &Option<String>| id.as_deref().map_or("no tree", short).to_owned();
        let text = format!("receipt is for the tree {}, {} has the tree {}", name(got), gate.revision, name(want));
        refusals.add(text).fact("want", want.clone()).fact("got", got.clone());
    }
}

pub(super) fn tree_dirty(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let tree = &receipt.predicate.tree;
    if tree.clean == Answer::Unknown {
        refusals.add("nobody knows whether the tree was clean");
    } else if tree.clean == Answer::No || !tree.uncommitted.is_empty() {
        let files = tree.uncommitted.join(", ");
        refusals.add(format!("the tree had uncommitted changes: {files}")).fact("files", tree.uncommitted.clone());
    }
}

pub(super) fn tree_changed(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let tree = &receipt.predicate.tree;
    if tree.changed == Answer::Unknown {
        refusals.add("nobody knows whether the tree changed during the run");
    } else if tree.changed == Answer::Yes || !tree.changed_files.is_empty() {
        let files = tree.changed_files.join(", ");
        refusals.add(format!("the tree changed during the run: {files}")).fact("files", tree.changed_files.clone());
    }
}

pub(super) fn partial(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let predicate = &receipt.predicate;
    if predicate.extent != Extent::Whole || predicate.selection != Selection::default() {
        refusals.add("only a part of the suite was asked for (--only, --profile)");
    }
}

pub(super) fn ports(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let (lock, (workstation, worktrees)) = (&receipt.predicate.lock, &gate.ports);
    if !lock.held {
        refusals.add("the locks were not held");
    }
    if lock.workstation != *workstation || !worktrees.contains(&lock.worktree) {
        let got = format!("{} and {}", lock.workstation, lock.worktree);
        let want = format!("{workstation} and one of {}-{}", worktrees.start(), worktrees.end());
        let text = format!("held the ports {got}; this machine's locks are {want}");
        refusals.add(text).fact("want", want).fact("got", got);
    }
}

// A second: reading the suite and asking git comes before the first try.
const ONE_TRY_MS: u64 = 1000;

pub(super) fn queue_budget(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let predicate = &receipt.predicate;
    // A caller may give itself another budget; for the gate it is the suite's that counts, if that is less. A budget of zero
    // is one try, and what the program needs to come to it is no waiting.
    let one_try = |budget: u64| if budget == 0 { ONE_TRY_MS } else { budget };
    let most = gate.suite().map_or(u64::MAX, |suite| one_try(millis(suite.run.queue)));
    let (clocks, budget) = (&predicate.clocks, one_try(predicate.limits.queue_ms).min(most));
    let by_clock = clocks.won.map_or(0, |won| won.boot_ms.saturating_sub(clocks.requested.boot_ms));
    // Rounding two clocks down can add a millisecond to the time between them.
    let took = predicate.queue_ms.max(by_clock.saturating_sub(1));
    limit("queue time", took, budget, "queue_ms", "budget_ms", refusals);
}

pub(super) fn run_deadline(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let predicate = &receipt.predicate;
    let (clocks, deadline) = (&predicate.clocks, predicate.limits.deadline_ms);
    let by_clock = clocks.won.map_or(0, |won| clocks.ended.boot_ms.saturating_sub(won.boot_ms));
    let took = predicate.run_ms.max(by_clock.saturating_sub(1));
    limit("run", took, deadline, "run_ms", "deadline_ms", refusals);
}

pub(super) fn task_deadline(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    for task in &receipt.predicate.tasks {
        let what = format!("task {}", task.name);
        if limit(&what, task.took_ms, task.deadline_ms, "took_ms", "deadline_ms", refusals) {
            let reason = refusals.found.last_mut().expect("just added");
            reason.text += &format!(", verdict {}", task.verdict);
            reason.fact("task", task.name.as_str());
        }
    }
}

// Exactly at a limit is in time.
fn limit(what: &str, took: u64, most: u64, took_name: &str, most_name: &str, refusals: &mut Refusals) -> bool {
    if took > most {
        let text = format!("{what} took {} of {}", exact(took), exact(most));
        refusals.add(text).fact(took_name, took).fact(most_name, most);
    }
    took > most
}

// A length with its milliseconds, so that one over a limit shows.
fn exact(ms: u64) -> String {
    let (minutes, rest) = (ms / 60_000, ms % 60_000);
    let seconds = format!("{}.{:03}s", rest / 1000, rest % 1000);
    let seconds = seconds.replace(".000s", "s");
    if minutes == 0 { seconds } else { format!("{minutes}m{seconds}") }
}

pub(super) fn clock_order(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let clocks = &receipt.predicate.clocks;
    let (Some(won), Some(started)) = (clocks.won, clocks.started) else {
        refusals.add("the run never started");
        return;
    };
    let points = [clocks.requested, won, started, clocks.ended];
    let ordered = |read: fn(&Clock) -> u64| points.iter().map(read).is_sorted();
    if !ordered(|clock| clock.monotonic_ms) || !ordered(|clock| clock.boot_ms) {
        refusals.add("requested, won, started and ended are not in this order");
    }
    for task in &receipt.predicate.tasks {
        let Some(at) = task.started_ms else { continue };
        if at < started.monotonic_ms || at.saturating_add(task.took_ms) > clocks.ended.monotonic_ms {
            let text = format!("task {} is said to have run outside of the time of its run", task.name);
            refusals.add(text).fact("task", task.name.as_str());
        }
    }
}

pub(super) fn clock_drift(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let clocks = &receipt.predicate.clocks;
    for begin in [Some(clocks.requested), clocks.won].into_iter().flatten() {
        let wall = i128::from(clocks.ended.wall_ms) - i128::from(begin.wall_ms);
        let monotonic = i128::from(clocks.ended.monotonic_ms) - i128::from(begin.monotonic_ms);
        let (apart, length) = (wall.abs_diff(monotonic), monotonic.unsigned_abs());
        if apart > u128::from(DRIFT_MS) + length / 1000 {
            let text = format!(
                "wall clock and monotonic clock disagree by {apart} ms: the machine slept, or its clock was set"
            );
            refusals.add(text).fact("wall_ms", wall.to_string()).fact("monotonic_ms", monotonic.to_string());
            return;
        }
    }
}

pub(super) fn too_old(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(most) = gate.max_age.or(gate.suite().map(|suite| suite.max_age)) else {
        refusals.add("nobody knows how old it may be: there is no suite to say so");
        return;
    };
    let ended = receipt.predicate.clocks.ended.wall_ms;
    let age = if gate.archived { 0 } else { gate.now_ms.saturating_sub(ended) };
    if age > millis(most) {
        let text = format!("{} old, of at most {}", Human(Duration::from_millis(age / 1000 * 1000)), Human(most));
        refusals.add(text).fact("age_ms", age).fact("max_age_ms", millis(most));
    }
}

pub(super) fn from_future(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let ended = receipt.predicate.clocks.ended.wall_ms;
    if ended > gate.now_ms.saturating_add(DRIFT_MS) {
        let text = format!("ended at {}, and now it is {}", utc(ended), utc(gate.now_ms));
        refusals.add(text).fact("ended_ms", ended).fact("now_ms", gate.now_ms);
    }
}

pub(super) fn task_verdict(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    for task in &receipt.predicate.tasks {
        let text = if task.verdict != Word::Passed {
            format!("task {} is {}: {}", task.name, task.verdict, task.why)
        } else if task.exit != Some(ExitStatus::Code(0)) || task.started_ms.is_none() {
            format!("task {} is said to have passed, but did not start and exit with 0", task.name)
        } else if !task.signals.is_empty() {
            format!("task {} is said to have passed, but was sent {}", task.name, task.signals.join(", "))
        } else {
            continue;
        };
        refusals.add(text).fact("task", task.name.as_str()).fact("verdict", task.verdict.to_string());
    }
}

pub(super) fn leftovers(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    use crate::suite::Leftovers::Kill;
    for task in receipt.predicate.tasks.iter().filter(|task| !task.leftovers.is_empty()) {
        // What the suite at that commit allows is no reason.
        if !gate.suite().and_then(|suite| suite.task(&task.name)).is_some_and(|task| task.leftovers == Kill) {
            let text = format!("task {} left processes behind: {}", task.name, task.leftovers.join(", "));
            refusals.add(text).fact("task", task.name.as_str());
        }
    }
}

pub(super) fn result(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let predicate = &receipt.predicate;
    let passed = !predicate.tasks.is_empty() && predicate.tasks.iter().all(|task| task.verdict == Word::Passed);
    let trouble = predicate.trouble.join("; ");
    if predicate.result != Word::Passed {
        let why = if trouble.is_empty() { String::new() } else { format!(": {trouble}") };
        refusals.add(format!("the run is {}{why}", predicate.result)).fact("result", predicate.result.to_string());
    } else if !passed {
        refusals.add("the run is said to have passed, but not every task has");
    } else if !trouble.is_empty() {
        refusals.add(format!("the run is said to have passed, but with trouble: {trouble}"));
    }
}

// A name that is written below a folder must stay there, on any system that unpacks it.
pub(super) fn artifact_name(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let outputs: Vec<&String> = receipt.subject.outputs.keys().collect();
    for (at, output) in outputs.iter().enumerate() {
        // Only where it matters: a release puts them side by side.
        if gate.artifacts.is_some() && outputs[..at].iter().any(|other| is_named(other, output)) {
            refusals.add(format!("{output} has the name of another artifact")).fact("artifact", output.as_str());
        }
    }
    for name in receipt.subject.outputs.keys() {
        let plain = |part: &str| !matches!(part, "" | "." | "..");
        let bad = name.chars().any(|c| c.is_control() || matches!(c, '\\' | ':'));
        // `sha256sum --check` takes a lone `-` for its stdin.
        if bad || !name.split('/').all(plain) || name.rsplit('/').next() == Some("-") {
            refusals.add(format!("{name:?} is no name of an artifact")).fact("artifact", name.as_str());
        }
    }
}

pub(super) fn artifact_missing(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(artifacts) = &gate.artifacts else { return };
    for output in receipt.subject.outputs.keys() {
        if !artifacts.iter().any(|(name, _)| is_named(output, name)) {
            refusals.add(format!("artifact {output} is not there")).fact("artifact", output.as_str());
        }
    }
    for (name, digest) in artifacts {
        if let Err(why) = digest {
            refusals.add(format!("artifact {name} cannot be read: {why}")).fact("artifact", name.as_str());
        }
    }
}

pub(super) fn artifact_unlisted(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    for (name, _) in gate.artifacts.iter().flatten() {
        if !receipt.subject.outputs.keys().any(|output| is_named(output, name)) {
            refusals.add(format!("{name} is no artifact of this receipt")).fact("artifact", name.as_str());
        }
    }
}

pub(super) fn artifact_digest(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    for (name, digest) in gate.artifacts.iter().flatten() {
        for (_, want) in receipt.subject.outputs.iter().filter(|(output, _)| is_named(output, name)) {
            if let Ok(got) = digest
                && got != want
            {
                let text = format!("{name} is {} now, {} in the receipt", short(got), short(want));
                let reason = refusals.add(text);
                reason.fact("artifact", name.as_str()).fact("want", want.as_str()).fact("got", got.as_str());
            }
        }
    }
}

// Artifacts are released under their base names.
fn is_named(output: &str, name: &str) -> bool {
    let base = |path: &str| path.rsplit('/').next().map(str::to_owned);
    base(output) == base(name)
}

pub(super) fn sums(_: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    refusals.each(gate.sums.iter().flatten().cloned());
}
