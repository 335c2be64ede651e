//! A receipt.

use xtask::receipt::rules::{Gate, Seal, Source, judge};
use xtask::receipt::statement::Receipt;
use xtask::report::{html, trace};
use xtask::suite::Suite;

const SUITE: &str =
    "schema = 1\n[run]\ndeadline = \"18m\"\nqueue = \"38m\"\n[task.test]\ncommand = \"true\"\ndeadline = \"1m\"\n";

/// What parses is what it is written as, can be drawn, and without ssh-keygen's word is not accepted.
pub fn holds(bytes: &[u8]) {
    let parsed = Receipt::parse(bytes);
    if let Ok(receipt) = &parsed {
        assert_eq!(receipt.to_bytes(), bytes);
        drawn(receipt);
    }
    let none = Source { name: "allowed_signers".to_owned(), bytes: Ok(Vec::new()) };
    let receipt = parsed.as_ref().ok();
    let gate = Gate {
        seal: Some(Seal::new(&Ok(bytes.to_vec()), &none, &[], 0)),
        now_ms: receipt.map_or(0, |receipt| receipt.predicate.clocks.ended.wall_ms),
        revision: "HEAD".to_owned(),
        commit: receipt.and_then(|receipt| receipt.subject.commit.clone()),
        tree: receipt.and_then(|receipt| receipt.subject.tree.clone()),
        ahead: None,
        caller: None,
        suite_path: "ci/suite.toml".to_owned(),
        suite: Suite::parse(SUITE).map(|suite| (suite, String::new())).map_err(|errors| errors.display("suite")),
        baseline: None,
        ports: (28599, 28600..=29599),
        max_age: None,
        archived: false,
        artifacts: Some(Vec::new()),
        sums: None,
        parsed,
    };
    let reasons = judge(&gate);
    assert!(!reasons.is_empty(), "accepted without a signature");
}

// The page holds no script and nothing that would load one; the trace is JSON.
fn drawn(receipt: &Receipt) {
    let page = html::page(&[receipt.clone(), receipt.clone()], None).to_ascii_lowercase();
    assert!(!page.contains("<script"), "a page that runs");
    serde_json::from_str::<serde_json::Value>(&trace::trace(receipt)).expect("a trace is json");
}
