//! The gate on facts alone: whatever the bytes are, it neither panics nor accepts what nobody confirmed.

use std::time::{Duration, Instant};

use xtask::digest;
use xtask::name::Caller;
use xtask::receipt::rules::{Baseline, Gate, RULES, Seal, Source, altered, judge, judge_seal, raised};
use xtask::receipt::signers::{Signer, parse_revoked, parse_signature, parse_signers};
use xtask::receipt::statement::Receipt;
use xtask::suite::Suite;

use crate::receipt::good;

const SUITE: &str = "schema = 1\n[run]\ndeadline = \"18m\"\nqueue = \"38m\"\n[service.postgres]\n\
    [task.test]\ncommand = \"cargo test\"\ndeadline = \"1m\"\ncpus = \"all\"\nservices = [\"postgres\"]\n\
    outputs = [\"target/release/app\"]\n";

/// A gate that accepts `good()`, and whatever else its bytes may be.
fn gate(bytes: &[u8]) -> Gate {
    let receipt = good();
    Gate {
        parsed: Receipt::parse(bytes),
        seal: None,
        now_ms: receipt.predicate.clocks.ended.wall_ms + 1000,
        revision: "HEAD".to_owned(),
        commit: receipt.subject.commit,
        tree: receipt.subject.tree,
        ahead: None,
        caller: None,
        suite_path: "ci/suite.toml".to_owned(),
        suite: Ok((Suite::parse(SUITE).unwrap(), "5".repeat(64))),
        baseline: None,
        ports: (28599, 28600..=29599),
        max_age: None,
        archived: false,
        artifacts: None,
        sums: None,
    }
}

fn codes(gate: &Gate) -> Vec<&'static str> {
    judge(gate).iter().map(|reason| reason.code).collect()
}

#[test]
fn ids_of_rules_are_unique_and_the_good_receipt_is_accepted() {
    let ids: std::collections::BTreeSet<&str> = RULES.iter().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), RULES.len());
    assert_eq!(codes(&gate(&good().to_bytes())), [""; 0]);
    assert_eq!(digest::of_bytes(b"").len(), 64);
}

#[test]
fn a_rule_that_cannot_be_judged_refuses() {
    let bytes = good().to_bytes();
    let without = |take: fn(&mut Gate)| {
        let mut gate = gate(&bytes);
        take(&mut gate);
        codes(&gate)
    };
    assert_eq!(without(|gate| gate.suite = Err("none".to_owned())), ["suite-unreadable", "too-old"]);
    assert_eq!(without(|gate| gate.commit = None), ["commit-mismatch"]);
    assert_eq!(without(|gate| gate.tree = None), ["tree-mismatch"]);
    assert_eq!(without(|gate| gate.artifacts = Some(Vec::new())), ["artifact-missing"]);
    let unreadable = |gate: &mut Gate| gate.artifacts = Some(vec![("app".to_owned(), Err("gone".to_owned()))]);
    assert_eq!(without(unreadable), ["artifact-missing"]);
    assert_eq!(without(|gate| gate.sums = Some(vec!["no list".to_owned()])), ["sums"]);
    // Age and drift have an edge: exactly at it is in time.
    let limit = Duration::from_secs(2 * 3600);
    let old = |gate: &mut Gate, over: u64| gate.now_ms = good().predicate.clocks.ended.wall_ms + 7_200_000 + over;
    let mut edge = gate(&bytes);
    edge.max_age = Some(limit);
    old(&mut edge, 0);
    assert_eq!(codes(&edge), [""; 0]);
    old(&mut edge, 1);
    assert_eq!(codes(&edge), ["too-old"]);
    edge.archived = true;
    assert_eq!(codes(&edge), [""; 0]);
}

/// A signature that nobody has confirmed is never enough, whatever else holds.
#[test]
fn an_unconfirmed_signature_is_refused() {
    let (signers, revoked) = (trust(SIGNERS), trust(b"# nobody\n"));
    let signature = Ok(SIGNATURE.as_bytes().to_vec());
    let mut gate = gate(&good().to_bytes());
    let mut seal = Seal::new(&signature, &signers, std::slice::from_ref(&revoked), gate.now_ms);
    gate.seal = Some(seal.clone());
    assert_eq!(codes(&gate), ["signature-wrong"], "nobody asked ssh-keygen");
    assert_eq!(judge_seal(&seal).iter().map(|reason| reason.code).collect::<Vec<_>>(), ["signature-wrong"]);
    seal.confirm(Err("no".to_owned()));
    gate.seal = Some(seal.clone());
    assert_eq!(codes(&gate), ["signature-wrong"]);
    seal.confirm(Ok(()));
    gate.seal = Some(seal);
    assert_eq!(codes(&gate), [""; 0]);
}

/// Names that mean something else to another system, or to `sha256sum`.
#[test]
fn names_of_artifacts_are_plain() {
    let named = |names: &[&str]| {
        let mut receipt = good();
        receipt.subject.outputs = names.iter().map(|&name| (name.to_owned(), "0".repeat(64))).collect();
        let mut gate = gate(&receipt.to_bytes());
        let suite = SUITE.replace("\"target/release/app\"", &format!("{:?}", names[0]));
        gate.suite = Suite::parse(&suite).map(|suite| (suite, "5".repeat(64))).map_err(|_| "wrong".to_owned());
        let reasons = judge(&gate);
        reasons.iter().filter(|reason| reason.code == "artifact-name").count()
    };
    for name in ["app", "a-b", "dir/app"] {
        assert_eq!(named(&[name]), 0, "{name:?}");
    }
    for name in ["a\\b", "c:app", "a\nb", "-", "dir/-", "/app", "a//b", "./app", "../app", ""] {
        assert_eq!(named(&[name]), 1, "{name:?}");
    }
    // Side by side in the folder of a release they would be one file.
    let mut receipt = good();
    let app = receipt.subject.outputs["target/release/app"].clone();
    receipt.subject.outputs.insert("target/debug/app".to_owned(), app.clone());
    let mut gate = gate(&receipt.to_bytes());
    gate.suite = Ok((Suite::parse(&SUITE.replace("app\"]", "app\", \"target/debug/app\"]")).unwrap(), "5".repeat(64)));
    assert_eq!(codes(&gate), [""; 0]);
    gate.artifacts = Some(vec![("app".to_owned(), Ok(app))]);
    assert_eq!(codes(&gate), ["artifact-name"]);
}

#[test]
fn a_pool_larger_than_the_suite_allows_is_refused() {
    let mut gate = gate(&good().to_bytes());
    let mut with = |cpus: &str| {
        let suite = SUITE.replace("[run]\n", &format!("[run]\ncpus = {cpus}\n"));
        gate.suite = Ok((Suite::parse(&suite).unwrap(), "5".repeat(64)));
        codes(&gate)
    };
    assert_eq!(with("2"), [""; 0]);
    assert_eq!(with("1"), ["run-limit"]);
}

/// A receipt of a release may be asked for a part of the outputs; any other has them all.
#[test]
fn an_output_that_is_left_out_is_missed() {
    let mut receipt = good();
    receipt.subject.outputs.clear();
    assert_eq!(codes(&gate(&receipt.to_bytes())), [""; 0]);
    receipt.predicate.caller = Caller::Ci;
    assert_eq!(codes(&gate(&receipt.to_bytes())), ["artifact-omitted"]);
}

#[test]
fn every_limit_that_is_looser_than_at_the_baseline_is_named() {
    let suite = |text: &str| Suite::parse(text).unwrap();
    let full = SUITE
        .replace("[run]\n", "[run]\nmargin = \"1m\"\nstop-grace = \"2s\"\n")
        .replace("[service.postgres]\n", "[service.postgres]\nstart = \"20s\"\n[receipt]\nmax-age = \"2h\"\n")
        .replace("cpus = \"all\"\n", "cpus = \"all\"\nlog-limit = \"1MiB\"\n");
    let old = suite(&full);
    assert_eq!(raised(&old, &old), [""; 0]);
    let changes = [
        ("deadline = \"18m\"", "deadline = \"19m\"", "[run] deadline was raised from 18m to 19m"),
        ("queue = \"38m\"", "queue = \"39m\"", "[run] queue was raised from 38m to 39m"),
        ("margin = \"1m\"", "margin = \"2m\"", "[run] margin was raised from 1m to 2m"),
        ("stop-grace = \"2s\"", "stop-grace = \"3s\"", "[run] stop-grace was raised from 2s to 3s"),
        ("max-age = \"2h\"", "max-age = \"3h\"", "[receipt] max-age was raised from 2h to 3h"),
        ("start = \"20s\"", "start = \"21s\"", "start of service postgres was raised from 20s to 21s"),
        ("deadline = \"1m\"", "deadline = \"61s\"", "deadline of task test was raised from 1m to 1m01s"),
        ("log-limit = \"1MiB\"", "log-limit = \"2MiB\"", "log-limit of task test was raised from 1048576 to 2097152"),
        ("cpus = \"all\"", "cpus = \"all\"\nleftovers = \"kill\"", "task test may leave processes behind now"),
    ];
    for (from, to, words) in changes {
        assert!(full.contains(from), "{from}");
        assert_eq!(raised(&old, &suite(&full.replacen(from, to, 1))), [words]);
        assert_eq!(raised(&suite(&full.replacen(from, to, 1)), &old), [""; 0], "{words}: lowered is fine");
    }
}

#[test]
fn what_else_is_asked_of_tasks_is_named() {
    let suite = |text: &str| Suite::parse(text).unwrap();
    let old = suite(SUITE);
    assert_eq!(altered(&old, &old), [""; 0]);
    let more = SUITE.to_owned() + "[task.more]\ncommand = \"x\"\ndeadline = \"1m\"\n";
    assert_eq!(altered(&old, &suite(&more)), [""; 0], "more is no less");
    let changes = [
        (
            "command = \"cargo test\"",
            "command = \"true\"",
            "command of task test was changed from [\"cargo\", \"test\"] to [\"true\"]",
        ),
        ("cpus = \"all\"", "cpus = 1", "cpus of task test was changed from all to 1"),
        ("services = [\"postgres\"]", "services = []", "services of task test was changed from [postgres] to []"),
        (
            "outputs = [\"target/release/app\"]",
            "outputs = []",
            "outputs of task test was changed from [target/release/app] to []",
        ),
        ("cpus = \"all\"", "cpus = \"all\"\ndir = \"web\"", "dir of task test was changed from \"\" to \"web\""),
        (
            "cpus = \"all\"",
            "cpus = \"all\"\nenv = { A = \"1\" }",
            "env of task test was changed from {} to {\"A\": \"1\"}",
        ),
    ];
    for (from, to, words) in changes {
        assert_eq!(altered(&old, &suite(&SUITE.replacen(from, to, 1))), [words]);
    }
}

/// Whose key counts, for what and how long, may only become less since the baseline.
#[test]
fn a_key_that_may_more_than_at_the_baseline_is_a_signer_added() {
    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPL+N61r8tBa2VlbO2k/XiRc/uEzjc347F5KZl4llyYQ a";
    let line = |namespaces: &str, more: &str| {
        let (signers, faults) = parse_signers(format!("release namespaces=\"{namespaces}\"{more} {KEY}").as_bytes());
        assert_eq!(faults, []);
        signers
    };
    let judged = |old: Vec<Signer>, new: Vec<Signer>| {
        let mut gate = gate(&good().to_bytes());
        gate.baseline = Some(Baseline {
            revision: "v1".to_owned(),
            suite: Ok(Suite::parse(SUITE).unwrap()),
            signers: Ok((old, Vec::new())),
            signers_now: Ok((new, Vec::new())),
        });
        codes(&gate)
    };
    let (one, both) = ("xtask-receipt-v1", "xtask-receipt-v1,xtask-release-v1");
    let span = ",valid-after=\"20260101Z\",valid-before=\"20270101Z\"";
    let kept = [(one, span, one, span), (both, span, one, span), (one, "", one, span)];
    let narrower = ",valid-after=\"20260201Z\",valid-before=\"20261201Z\"";
    let more = [
        (one, span, both, span),
        (one, span, one, ""),
        (one, span, one, ",valid-after=\"20260101Z\",valid-before=\"20270102Z\""),
        (one, span, one, ",valid-after=\"20251231Z\",valid-before=\"20270101Z\""),
        (one, span, one, ",valid-before=\"20270101Z\""),
    ];
    for (old_for, old, new_for, new) in kept.into_iter().chain([(one, span, one, narrower)]) {
        assert_eq!(judged(line(old_for, old), line(new_for, new)), [""; 0], "{old} -> {new}");
    }
    for (old_for, old, new_for, new) in more {
        assert_eq!(judged(line(old_for, old), line(new_for, new)), ["signer-added"], "{old} -> {new}");
    }
}

/// A signature by a key of `local`, confirmed; valid at that moment.
pub fn local_seal(at_ms: u64) -> Seal {
    let signers = String::from_utf8(SIGNERS.to_vec()).unwrap().replacen("release", "local", 1);
    let signature = Ok(SIGNATURE.as_bytes().to_vec());
    let mut seal = Seal::new(&signature, &trust(signers.as_bytes()), &[trust(b"# nobody\n")], at_ms);
    seal.confirm(Ok(()));
    seal
}

pub fn trust(bytes: &[u8]) -> Source {
    Source { name: "allowed_signers".to_owned(), bytes: Ok(bytes.to_vec()) }
}

/// Of ssh-keygen, by a key that no longer exists.
pub const SIGNERS: &[u8] = b"release namespaces=\"xtask-receipt-v1\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPL+N61r8tBa2VlbO2k/XiRc/uEzjc347F5KZl4llyYQ release@test\n";
pub const SIGNATURE: &str = "-----BEGIN SSH SIGNATURE-----\n\
    U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAg8v43rWvy0FrZWVs7aT9eJFz+4T\n\
    ONzfjsXkpmXiWXJhAAAAAQeHRhc2stcmVjZWlwdC12MQAAAAAAAAAGc2hhNTEyAAAAUwAA\n\
    AAtzc2gtZWQyNTUxOQAAAEBXdtg6QMwzG4bZAlACiVaff+i5NAM4oz0mw2h9ak8vwCucKz\n\
    gJzaOg0F/4YJWttwSZ5dq/oxWwtVuIBevLZg0H\n\
    -----END SSH SIGNATURE-----\n";

/// Bytes made from good ones by a seed: bits turned, parts cut, doubled, moved, words of JSON put in.
pub struct Mangler(pub u64);

impl Mangler {
    fn next(&mut self, below: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) as usize % below.max(1)
    }

    pub fn mangle(&mut self, good: &[u8]) -> Vec<u8> {
        const WORDS: [&[u8]; 12] = [
            b"null",
            b"-1",
            b"1e9",
            b"1.0",
            b"18446744073709551616",
            b"\"",
            b"{",
            b"[]",
            b",",
            b"\0",
            b"\xff",
            b"true",
        ];
        let mut bytes = good.to_vec();
        for _ in 0..=self.next(4) {
            let (at, to) = (self.next(bytes.len()), self.next(bytes.len()));
            let (from, to) = (at.min(to), at.max(to).min(at.min(to) + 200));
            match self.next(6) {
                0 if !bytes.is_empty() => bytes[at] ^= 1 << self.next(8),
                1 => drop(bytes.drain(from..to)),
                2 => {
                    let part = bytes[from..to].to_vec();
                    bytes.splice(at..at, part);
                }
                3 => drop(bytes.splice(from..to.min(from + 8), WORDS[self.next(WORDS.len())].iter().copied())),
                4 => bytes.truncate(at),
                _ => bytes.extend(WORDS[self.next(WORDS.len())]),
            }
        }
        bytes
    }
}

#[test]
fn mangled_bytes_neither_panic_nor_are_they_accepted_as_another_receipt() {
    let good_bytes = good().to_bytes();
    let (begun, mut refused) = (Instant::now(), 0);
    for seed in 0..1_500 {
        let bytes = Mangler(seed).mangle(&good_bytes);
        let gate = gate(&bytes);
        let reasons = codes(&gate);
        if bytes != good_bytes {
            refused += usize::from(!reasons.is_empty());
            // What is accepted says the same in everything that counts: it parses to what it is written as.
            assert!(!reasons.is_empty() || gate.parsed.as_ref().is_ok_and(|r| r.to_bytes() == bytes), "seed {seed}");
        }
    }
    assert!(refused > 1_200, "only {refused} were refused");
    assert!(begun.elapsed() < Duration::from_secs(300));
}

#[test]
fn mangled_signatures_and_lists_never_panic() {
    for seed in 0..1_500 {
        let mut mangler = Mangler(seed);
        let signature = mangler.mangle(SIGNATURE.as_bytes());
        let (signers, revoked) = (mangler.mangle(SIGNERS), mangler.mangle(SIGNERS));
        let _ = (parse_signature(&signature), parse_signers(&signers), parse_revoked(&revoked));
        let mut gate = gate(&good().to_bytes());
        let seal = Seal::new(&Ok(signature), &trust(&signers), &[trust(&revoked)], gate.now_ms);
        gate.seal = Some(seal);
        assert!(!codes(&gate).is_empty(), "seed {seed}: accepted without ssh-keygen");
    }
}
