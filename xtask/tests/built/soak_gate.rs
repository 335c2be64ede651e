//! What the gate must say of a receipt, worked out from what was done to the run, not by the rules of the program.

use std::collections::BTreeSet;

use serde_json::Value;
use xtask::receipt::statement::Receipt;

use crate::receipt_changes::CHANGES;
use crate::soak_suite::Dice;

/// A step of the wall clock, as a run saw it.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// By so much …
    pub by_ms: i64,
    /// … from this moment of the monotonic clock on.
    pub at_ms: u64,
}

/// What was done to a run that a gate has to see.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    pub dirty: bool,
    pub partial: bool,
    pub step: Option<Step>,
    /// The machine has slept for 5 s, from this moment of the monotonic clock on.
    pub slept_at_ms: Option<u64>,
    /// The caller's own budget is a short one.
    pub short_queue: bool,
}

// Reasons that no run of the soak can give: it is judged at the commit that it ran at, and its receipt is whole.
const NEVER: &[&str] = &[
    "receipt-file",
    "receipt-form",
    "statement-type",
    "predicate-type",
    "suite-unreadable",
    "suite-changed",
    "task-extra",
    "task-twice",
    "task-command",
    "task-limit",
    "task-weight",
    "run-limit",
    "services",
];

/// How a step counts for a receipt: surely, surely not, or within the moment that nobody can tell.
const BLUR_MS: u64 = 100;

/// What is wrong with the answer of the gate (`check-receipt --unsigned --message-format json`) to this receipt.
pub fn misjudged(receipt: &Value, answer: &Value, exit: i32, known: Known) -> Option<String> {
    let predicate = &receipt["predicate"];
    let result = predicate["result"].as_str().unwrap_or_default();
    let reasons = answer["reasons"].as_array().cloned().unwrap_or_default();
    let got: Vec<&str> = reasons.iter().filter_map(|reason| reason["code"].as_str()).collect();
    let accepted = answer["accepted"] == true;
    if accepted != (exit == 0) || accepted != got.is_empty() || (!accepted && exit != 6) {
        return Some(format!("the gate contradicts itself: exit code {exit}, {answer}"));
    }
    let at = |clock: &str| predicate["clocks"][clock]["monotonic_ms"].as_u64().unwrap_or_default();
    let within = |moment: u64, from: &str, to: &str| at(from) + BLUR_MS < moment && moment + BLUR_MS < at(to);
    if known.slept_at_ms.is_some_and(|slept| within(slept, "won", "ended"))
        && ["passed", "failed", "late"].contains(&result)
    {
        return Some(format!("the machine slept during the run, and the receipt says {result}"));
    }
    let all_passed =
        predicate["tasks"].as_array().is_some_and(|all| all.iter().all(|task| task["verdict"] == "passed"));
    let mut must: Vec<&str> = match result {
        "passed" => vec![],
        // By its own deadline, after its tasks.
        "late" if all_passed => vec!["run-deadline", "result"],
        "failed" | "late" => vec!["task-verdict", "result"],
        "not-run" => vec!["task-verdict", "result", "ports", "clock-order"],
        "cancelled" | "no-verdict" => vec!["result"],
        other => return Some(format!("the receipt has the result {other:?}")),
    };
    let mut may: Vec<&str> = Vec::new();
    if known.partial {
        must.extend(["partial"]);
        may.extend(["task-missing"]);
    }
    if result == "passed" {
        if known.dirty {
            must.extend(["tree-dirty", "tree-mismatch"]);
        }
        if let Some(step) = known.step {
            let seen = |from: u64| step.at_ms.saturating_add(BLUR_MS) < from;
            let unseen = |from: u64| step.at_ms > from.saturating_add(BLUR_MS);
            // 2 s and a thousandth of the run is what clocks may differ by.
            let far = step.by_ms.abs() > 10_000;
            let (before, after) = (seen(at("requested")), unseen(at("ended")));
            if far && !before && !after {
                let sure = unseen(at("requested")) && seen(at("ended"));
                if sure { must.push("clock-drift") } else { may.push("clock-drift") }
            }
            if far && step.by_ms > 0 && !after {
                if seen(at("ended")) { must.push("from-future") } else { may.push("from-future") }
            }
        }
        if known.short_queue && known.slept_at_ms.is_some_and(|slept| slept < at("won") + BLUR_MS) {
            may.push("queue-budget");
        }
        if let Some(more) = got.iter().find(|code| !must.contains(code) && !may.contains(code)) {
            return Some(format!("a receipt of a passed run is refused for {more}: {answer}"));
        }
    }
    if let Some(missing) = must.iter().find(|code| !got.contains(code)) {
        return Some(match accepted {
            true => format!("the gate accepts what it has to refuse for {missing}: {answer}"),
            false => format!("the gate refuses without {missing}: {answer}"),
        });
    }
    got.iter().find(|code| NEVER.contains(code)).map(|code| format!("the gate refuses for {code}: {answer}"))
}

/// A change to an accepted receipt after which the gate has to refuse it, and for what. None where it means nothing here.
pub fn forged(receipt: &[u8], dice: &mut Dice, known: Known) -> Option<(&'static str, Vec<u8>, &'static str)> {
    let mut receipt = Receipt::parse(receipt).ok()?;
    // Every rule has its turn, however many changes it refuses.
    let rules: BTreeSet<&str> = CHANGES.iter().map(|(.., codes)| codes[0]).collect();
    let rule = *dice.pick(&Vec::from_iter(rules));
    let &&(what, change, codes) = dice.pick(&Vec::from_iter(CHANGES.iter().filter(|(.., codes)| codes[0] == rule)));
    let tasks = &receipt.predicate.tasks;
    let nothing = match what {
        // These receipts have no signature and no outputs.
        "caller" | "output left out" => true,
        "leftovers" => tasks[0].command.contains(&"fork".to_owned()), // it may be allowed to leave some
        "weight" => tasks[0].weight == "all",
        "a CPU more" => tasks.len() < 2,
        _ => known.short_queue && codes.contains(&"queue-budget"),
    };
    (!nothing).then(|| {
        change(&mut receipt);
        (what, receipt.to_bytes(), codes[0])
    })
}
