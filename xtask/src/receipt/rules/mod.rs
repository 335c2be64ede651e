//! The gate: rules by which a receipt is accepted or refused. A rule is a row of one table. All of them are judged, every
//! reason is gathered, and a rule that cannot be judged refuses.

mod run;
mod suite;
mod who;

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::signers::Signer;
use super::statement::{ParseError, Receipt, readable};
use crate::name::Caller;
use crate::suite::Suite;

pub use suite::{altered, raised};
pub use who::{Seal, Source};

/// One reason to refuse. `code` is the rule's id and stays what it is; the text is for people.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refusal {
    /// The rule.
    pub code: &'static str,
    /// What is wrong, in words.
    pub text: String,
    /// The same for programs: `want`, `got`, `task` …
    #[serde(flatten)]
    pub facts: Map<String, Value>,
}

/// One rule: its id, and how it is judged.
pub struct Rule {
    /// Its id, the `code` of its reasons.
    pub id: &'static str,
    judge: Judge,
}

enum Judge {
    // Of the bytes.
    Bytes(fn(&ParseError, &mut Refusals)),
    // Of the signature, whatever the receipt says.
    Seal(fn(&Seal, &mut Refusals)),
    // Of what the receipt says.
    Receipt(fn(&Receipt, &Gate, &mut Refusals)),
}

/// All that is known beside the receipt itself: what the gate wants, and what it found out.
#[derive(Debug, Clone)]
pub struct Gate {
    /// The receipt, as far as its bytes are one.
    pub parsed: Result<Receipt, ParseError>,
    /// The signature; none where unsigned receipts are accepted.
    pub seal: Option<Seal>,
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// The commit judged as people call it: `v2.8.0`, `HEAD`.
    pub revision: String,
    /// The id of that commit, if there is one.
    pub commit: Option<String>,
    /// The id of its tree.
    pub tree: Option<String>,
    /// How many commits it is ahead of the receipt's commit, if that is one of its ancestors.
    pub ahead: Option<u64>,
    /// The caller that is asked for: `release` for a tag.
    pub caller: Option<Caller>,
    /// Where the suite file is.
    pub suite_path: String,
    /// The suite at the commit judged, with the sha256 of its bytes; or why there is none.
    pub suite: Result<(Suite, String), String>,
    /// `--baseline`.
    pub baseline: Option<Baseline>,
    /// The ports of this machine: of the workstation, and of its worktrees.
    pub ports: (u16, RangeInclusive<u16>),
    /// `--max-age`; the suite's otherwise.
    pub max_age: Option<Duration>,
    /// `--archived`.
    pub archived: bool,
    /// The files to release, name and sha256 each; or why one cannot be read. None where nobody asked for them.
    pub artifacts: Option<Vec<(String, Result<String, String>)>>,
    /// What is wrong with the signed list of a release's files; none where nobody asked for it.
    pub sums: Option<Vec<String>>,
}

/// What was in force at the baseline, and what the commit judged has instead.
#[derive(Debug, Clone)]
pub struct Baseline {
    /// The revision as given.
    pub revision: String,
    /// Its suite, or why there is none.
    pub suite: Result<Suite, String>,
    /// Its signers and revoked keys, or why there are none.
    pub signers: Result<(Vec<Signer>, Vec<Vec<u8>>), String>,
    /// Those of the commit judged.
    pub signers_now: Result<(Vec<Signer>, Vec<Vec<u8>>), String>,
}

/// The rules, in the order in which reasons are given.
pub const RULES: &[Rule] = &[
    // Bytes.
    bytes("receipt-file", who::receipt_file),
    bytes("receipt-form", who::receipt_form),
    seal("signature-missing", who::signature_missing),
    seal("signature-form", who::signature_form),
    seal("signature-wrong", who::signature_wrong),
    // Who.
    seal("signers-file", who::signers_file),
    seal("revoked-file", who::revoked_file),
    seal("signer-unknown", who::signer_unknown),
    seal("signer-namespace", who::signer_namespace),
    seal("signer-not-valid", who::signer_not_valid),
    seal("signer-revoked", who::signer_revoked),
    rule("signer-role", who::signer_role),
    rule("caller", who::caller),
    // What.
    rule("statement-type", run::statement_type),
    rule("predicate-type", run::predicate_type),
    rule("commit-mismatch", run::commit_mismatch),
    rule("tree-mismatch", run::tree_mismatch),
    rule("tree-dirty", run::tree_dirty),
    rule("tree-changed", run::tree_changed),
    rule("partial", run::partial),
    rule("ports", run::ports),
    // Suite.
    rule("suite-unreadable", suite::unreadable),
    rule("suite-changed", suite::changed),
    rule("task-missing", suite::task_missing),
    rule("task-extra", suite::task_extra),
    rule("task-twice", suite::task_twice),
    rule("task-command", suite::task_command),
    rule("task-limit", suite::task_limit),
    rule("task-weight", suite::task_weight),
    rule("run-limit", suite::run_limit),
    rule("services", suite::services),
    rule("baseline-unreadable", suite::baseline_unreadable),
    rule("task-dropped", suite::task_dropped),
    rule("limit-raised", suite::limit_raised),
    rule("signer-added", suite::signer_added),
    // Time.
    rule("queue-budget", run::queue_budget),
    rule("run-deadline", run::run_deadline),
    rule("task-deadline", run::task_deadline),
    rule("clock-order", run::clock_order),
    rule("clock-drift", run::clock_drift),
    rule("too-old", run::too_old),
    rule("from-future", run::from_future),
    // Result.
    rule("task-verdict", run::task_verdict),
    rule("leftovers", run::leftovers),
    rule("result", run::result),
    // Artifacts.
    rule("artifact-name", run::artifact_name),
    rule("artifact-undeclared", suite::artifact_undeclared),
    rule("artifact-omitted", suite::artifact_omitted),
    rule("artifact-missing", run::artifact_missing),
    rule("artifact-unlisted", run::artifact_unlisted),
    rule("artifact-digest", run::artifact_digest),
    rule("sums", run::sums),
];

const fn bytes(id: &'static str, judge: fn(&ParseError, &mut Refusals)) -> Rule {
    Rule { id, judge: Judge::Bytes(judge) }
}

const fn seal(id: &'static str, judge: fn(&Seal, &mut Refusals)) -> Rule {
    Rule { id, judge: Judge::Seal(judge) }
}

const fn rule(id: &'static str, judge: fn(&Receipt, &Gate, &mut Refusals)) -> Rule {
    Rule { id, judge: Judge::Receipt(judge) }
}

/// Judges by every rule. Accepted if there is no reason.
pub fn judge(gate: &Gate) -> Vec<Refusal> {
    let mut refusals = Refusals { rule: "", found: Vec::new() };
    for rule in RULES {
        refusals.rule = rule.id;
        match (&rule.judge, &gate.parsed, &gate.seal, gate.readable()) {
            (Judge::Bytes(judge), Err(error), ..) => judge(error, &mut refusals),
            (Judge::Seal(judge), _, Some(seal), _) => judge(seal, &mut refusals),
            (Judge::Receipt(judge), _, _, Some(receipt)) => judge(receipt, gate, &mut refusals),
            _ => {}
        }
    }
    refusals.all(gate.parsed.is_ok() && gate.seal.as_ref().is_none_or(Seal::confirmed))
}

/// Judges a signature alone, by the rules that need nothing else.
pub fn judge_seal(seal: &Seal) -> Vec<Refusal> {
    let mut refusals = Refusals { rule: "", found: Vec::new() };
    for rule in RULES {
        refusals.rule = rule.id;
        if let Judge::Seal(judge) = rule.judge {
            judge(seal, &mut refusals);
        }
    }
    refusals.all(seal.confirmed())
}

impl Gate {
    /// The receipt, also one in other bytes than its own: good enough to say what else is wrong, never to accept it.
    pub fn readable(&self) -> Option<&Receipt> {
        readable(&self.parsed)
    }

    /// What tasks are asked otherwise than at the baseline, a line each: no reason to refuse, but worth a look.
    pub fn altered(&self) -> Vec<String> {
        let old = self.baseline.as_ref().and_then(|baseline| baseline.suite.as_ref().ok());
        old.zip(self.suite()).map(|(old, new)| altered(old, new)).unwrap_or_default()
    }

    /// The suite at the commit judged. Where there is none, a rule of its own says so.
    fn suite(&self) -> Option<&Suite> {
        self.suite.as_ref().ok().map(|(suite, _)| suite)
    }
}

/// Refusals as they are gathered.
struct Refusals {
    rule: &'static str,
    found: Vec<Refusal>,
}

impl Refusals {
    // Whatever may be wrong with the rules, what cannot be read or was not confirmed (`sure`) is never accepted.
    fn all(mut self, sure: bool) -> Vec<Refusal> {
        if self.found.is_empty() && !sure {
            self.rule = "signature-wrong";
            self.add("the signature was not checked");
        }
        self.found
    }

    fn add(&mut self, text: impl Into<String>) -> &mut Refusal {
        self.found.push(Refusal { code: self.rule, text: text.into(), facts: Map::new() });
        self.found.last_mut().expect("just pushed")
    }

    // One for each text.
    fn each(&mut self, texts: impl IntoIterator<Item = String>) {
        for text in texts {
            self.add(text);
        }
    }

    // Refuses unless both are the same.
    fn same<T: PartialEq + Into<Value> + Clone>(&mut self, got: T, want: T, text: impl FnOnce() -> String) {
        if got != want {
            self.add(text()).fact("want", want).fact("got", got);
        }
    }
}

impl Refusal {
    fn fact(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }
}
