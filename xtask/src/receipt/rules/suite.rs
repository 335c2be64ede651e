//! Whether what was run is what the suite at that commit asks for, and whether that commit asks for less than a baseline.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Gate, Refusals};
use crate::digest::short;
use crate::name::{Caller, Name, TaskName};
use crate::receipt::statement::{Receipt, Task};
use crate::suite::{self, Leftovers, PoolSize, Suite};
use crate::time::{Exact, millis};
use crate::verdict::Word;

pub(super) fn unreadable(_: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    if let Err(why) = &gate.suite {
        refusals.add(format!("{} at {} cannot be judged by: {why}", gate.suite_path, gate.revision));
    }
}

pub(super) fn changed(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let suite = &receipt.predicate.suite;
    // Another file could ask for next to nothing.
    refusals.same(suite.path.as_str(), &gate.suite_path, || {
        format!("the suite was {}, not {}", suite.path, gate.suite_path)
    });
    if let Ok((_, want)) = &gate.suite {
        refusals.same(suite.sha256.as_str(), want, || {
            let at = &gate.revision;
            format!("{} is {} in the receipt, {} at {at}", gate.suite_path, short(&suite.sha256), short(want))
        });
    }
}

pub(super) fn task_missing(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    for task in gate.suite().iter().flat_map(|suite| &suite.tasks) {
        if !receipt.predicate.tasks.iter().any(|told| told.name == task.name) {
            refusals.add(format!("task {} is missing", task.name)).fact("task", task.name.as_str());
        }
    }
}

pub(super) fn task_extra(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(suite) = gate.suite() else { return };
    for task in receipt.predicate.tasks.iter().filter(|task| suite.task(&task.name).is_none()) {
        refusals.add(format!("task {} is not in the suite", task.name)).fact("task", task.name.as_str());
    }
}

pub(super) fn task_twice(receipt: &Receipt, _: &Gate, refusals: &mut Refusals) {
    let mut seen = BTreeSet::new();
    for task in receipt.predicate.tasks.iter().filter(|task| !seen.insert(&task.name)) {
        refusals.add(format!("task {} is there twice", task.name)).fact("task", task.name.as_str());
    }
}

// The tasks that are in both, side by side.
fn pairs<'a>(receipt: &'a Receipt, gate: &'a Gate) -> impl Iterator<Item = (&'a Task, &'a suite::Task)> {
    let suite = gate.suite();
    receipt.predicate.tasks.iter().filter_map(move |task| Some((task, suite?.task(&task.name)?)))
}

pub(super) fn task_command(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    for (got, want) in pairs(receipt, gate).filter(|(got, want)| got.command != want.command) {
        let text =
            format!("task {} ran {:?}, the suite says {:?}", got.name, got.command.join(" "), want.command.join(" "));
        let reason = refusals.add(text);
        reason.fact("task", got.name.as_str()).fact("want", want.command.clone()).fact("got", got.command.clone());
    }
}

pub(super) fn task_limit(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    for (got, want) in pairs(receipt, gate) {
        let limits =
            [("deadline", got.deadline_ms, millis(want.deadline)), ("log-limit", got.log_limit, want.log_limit)];
        for (name, got_value, want_value) in limits.into_iter().filter(|(_, got, want)| got != want) {
            let text = format!("task {}: {name} was {got_value}, the suite says {want_value}", got.name);
            let reason = refusals.add(text);
            reason.fact("task", got.name.as_str()).fact("want", want_value).fact("got", got_value);
        }
    }
}

pub(super) fn task_weight(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let pool = usize::try_from(receipt.predicate.limits.slots).unwrap_or(usize::MAX);
    for (got, want) in pairs(receipt, gate) {
        let given: BTreeSet<&u64> = got.slots.iter().collect();
        let started = got.started_ms.is_some();
        if got.weight != want.cpus.to_string() {
            let text = format!("task {} had the weight {}, the suite says {}", got.name, got.weight, want.cpus);
            let reason = refusals.add(text);
            reason.fact("task", got.name.as_str()).fact("want", want.cpus.to_string()).fact("got", got.weight.as_str());
        } else if started && (given.len() != got.slots.len() || given.len() != want.cpus.in_pool(pool)) {
            let text = format!("task {} had {} CPUs of {pool}, its weight is {}", got.name, given.len(), want.cpus);
            refusals.add(text).fact("task", got.name.as_str());
        }
    }
}

pub(super) fn run_limit(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(suite) = gate.suite() else { return };
    let (got, want) = (&receipt.predicate.limits, &suite.run);
    let limits = [
        ("deadline", got.deadline_ms, want.deadline),
        ("margin", got.margin_ms, want.margin),
        ("stop-grace", got.stop_grace_ms, want.stop_grace),
        ("wrap-up", got.wrap_up_ms, want.wrap_up),
    ];
    for (name, got, want) in limits {
        refusals.same(got, millis(want), || format!("[run] {name} was {got} ms, the suite says {} ms", millis(want)));
    }
    let most = match want.cpus {
        PoolSize::Auto => u64::MAX,
        PoolSize::AtMost(count) => count as u64,
    };
    if got.slots == 0 || got.slots > most {
        refusals.add(format!("a pool of {} CPUs, the suite says at most {most}", got.slots));
    }
}

pub(super) fn services(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(suite) = gate.suite() else { return };
    let want: BTreeSet<&Name> = suite.tasks.iter().flat_map(|task| &task.services).collect();
    let got: BTreeSet<&Name> = receipt.predicate.services.iter().map(|service| &service.name).collect();
    let list = |names: &BTreeSet<&Name>| names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    refusals.same(list(&got), list(&want), || {
        format!("services were [{}], the suite asks for [{}]", list(&got), list(&want))
    });
}

pub(super) fn artifact_undeclared(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(suite) = gate.suite() else { return };
    let declared: BTreeSet<&String> = suite.tasks.iter().flat_map(|task| &task.outputs).collect();
    for output in receipt.subject.outputs.keys().filter(|output| !declared.contains(output)) {
        refusals.add(format!("{output} is no declared output of the suite")).fact("artifact", output.as_str());
    }
}

// A release may have been asked for some of them alone.
pub(super) fn artifact_omitted(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    if receipt.predicate.caller == Caller::Release {
        return;
    }
    for (told, asked) in pairs(receipt, gate).filter(|(told, _)| told.verdict == Word::Passed) {
        for output in asked.outputs.iter().filter(|output| !receipt.subject.outputs.contains_key(*output)) {
            let text = format!("{output}, an output of task {}, is not in the receipt", told.name);
            refusals.add(text).fact("artifact", output.as_str());
        }
    }
}

pub(super) fn baseline_unreadable(_: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(baseline) = &gate.baseline else { return };
    let at = &baseline.revision;
    let missing = [("suite", baseline.suite.as_ref().err()), ("signers", baseline.signers.as_ref().err())];
    for (what, why) in missing {
        if let Some(why) = why {
            refusals.add(format!("the {what} at {at} cannot be compared with: {why}"));
        }
    }
    if let Err(why) = &baseline.signers_now {
        refusals.add(format!("the signers at {} cannot be compared with those at {at}: {why}", gate.revision));
    }
}

// The suites of the baseline and of the commit judged, if both are known; a rule of its own says where not.
fn suites(gate: &Gate) -> Option<(&str, &Suite, &Suite)> {
    let baseline = gate.baseline.as_ref()?;
    Some((&baseline.revision, baseline.suite.as_ref().ok()?, gate.suite()?))
}

pub(super) fn task_dropped(_: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some((at, old, new)) = suites(gate) else { return };
    for task in old.tasks.iter().filter(|task| new.task(&task.name).is_none()) {
        let text = format!("task {} was in the suite at {at} and is not any more", task.name);
        refusals.add(text).fact("task", task.name.as_str());
    }
}

pub(super) fn limit_raised(_: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some((at, old, new)) = suites(gate) else { return };
    refusals.each(raised(old, new).into_iter().map(|raised| format!("{raised} (at {at})")));
}

/// Which limits are looser in `new` than in `old`, a line each.
pub fn raised(old: &Suite, new: &Suite) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |name: String, old: Duration, new: Duration| {
        if new > old {
            found.push(format!("{name} was raised from {} to {}", Exact(old), Exact(new)));
        }
    };
    compare("[run] deadline".to_owned(), old.run.deadline, new.run.deadline);
    compare("[run] queue".to_owned(), old.run.queue, new.run.queue);
    compare("[run] margin".to_owned(), old.run.margin, new.run.margin);
    compare("[run] stop-grace".to_owned(), old.run.stop_grace, new.run.stop_grace);
    compare("[receipt] max-age".to_owned(), old.max_age, new.max_age);
    for (name, service) in &old.services {
        if let Some(now) = new.services.get(name) {
            compare(format!("start of service {name}"), service.start, now.start);
        }
    }
    let both: Vec<_> = old.tasks.iter().filter_map(|task| Some((task, new.task(&task.name)?))).collect();
    for (old, new) in &both {
        compare(format!("deadline of task {}", old.name), old.deadline, new.deadline);
    }
    for (old, new) in both {
        if new.log_limit > old.log_limit {
            found
                .push(format!("log-limit of task {} was raised from {} to {}", old.name, old.log_limit, new.log_limit));
        }
        if old.leftovers == Leftovers::Fail && new.leftovers == Leftovers::Kill {
            found.push(format!("task {} may leave processes behind now", old.name));
        }
    }
    found
}

/// What else the tasks of both suites are asked otherwise, a line each: for people, who know why.
pub fn altered(old: &Suite, new: &Suite) -> Vec<String> {
    let mut found = Vec::new();
    for (old, new) in old.tasks.iter().filter_map(|task| Some((task, new.task(&task.name)?))) {
        let mut compare = |what: &str, old_value: String, new_value: String| {
            if old_value != new_value {
                found.push(format!("{what} of task {} was changed from {old_value} to {new_value}", old.name));
            }
        };
        let list = |names: Vec<&str>| format!("[{}]", names.join(", "));
        compare("command", format!("{:?}", old.command), format!("{:?}", new.command));
        compare("dir", format!("{:?}", old.dir), format!("{:?}", new.dir));
        compare("env", format!("{:?}", old.env), format!("{:?}", new.env));
        compare("cpus", old.cpus.to_string(), new.cpus.to_string());
        compare("mutex", format!("{:?}", old.mutex), format!("{:?}", new.mutex));
        let [needs, new_needs] = [old, new].map(|task| list(task.needs.iter().map(TaskName::as_str).collect()));
        compare("needs", needs, new_needs);
        let [services, new_services] = [old, new].map(|task| list(task.services.iter().map(Name::as_str).collect()));
        compare("services", services, new_services);
        let [outputs, new_outputs] = [old, new].map(|task| list(task.outputs.iter().map(String::as_str).collect()));
        compare("outputs", outputs, new_outputs);
    }
    found
}

pub(super) fn signer_added(_: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    let Some(baseline) = &gate.baseline else { return };
    let (Ok((old, revoked)), Ok((new, revoked_now))) = (&baseline.signers, &baseline.signers_now) else { return };
    let at = &baseline.revision;
    for signer in new {
        let known = old.iter().any(|before| {
            let longer = |old: Option<u64>, new: Option<u64>| old.is_some_and(|old| new.is_none_or(|new| new > old));
            let earlier = |old: Option<u64>, new: Option<u64>| old.is_some_and(|old| new.is_none_or(|new| new < old));
            (&before.key, before.role) == (&signer.key, signer.role)
                && signer.namespaces.iter().all(|namespace| before.namespaces.contains(namespace))
                && !longer(before.valid_before, signer.valid_before)
                && !earlier(before.valid_after, signer.valid_after)
        });
        if !known {
            let text =
                format!("{} may sign as {} (line {}), and could not at {at}", signer.name, signer.role, signer.line);
            refusals.add(text);
        }
    }
    if revoked.iter().any(|key| !revoked_now.contains(key)) {
        refusals.add(format!("what was revoked at {at} is not any more"));
    }
}
