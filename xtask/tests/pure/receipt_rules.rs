//! The gate on facts alone: whatever the bytes are, it neither panics nor accepts what nobody confirmed.

use std::time::{Duration, Instant};

use xtask::digest;
use xtask::receipt::rules::{Gate, RULES, Seal, Source, judge};
use xtask::receipt::signers::{parse_revoked, parse_signature, parse_signers};
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
    seal.confirm(Err("no".to_owned()));
    gate.seal = Some(seal.clone());
    assert_eq!(codes(&gate), ["signature-wrong"]);
    seal.confirm(Ok(()));
    gate.seal = Some(seal);
    assert_eq!(codes(&gate), [""; 0]);
}

fn trust(bytes: &[u8]) -> Source {
    Source { name: "allowed_signers".to_owned(), bytes: Ok(bytes.to_vec()) }
}

/// Of ssh-keygen, by a key that no longer exists.
const SIGNERS: &[u8] = b"release namespaces=\"xtask-receipt-v1\" ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPL+N61r8tBa2VlbO2k/XiRc/uEzjc347F5KZl4llyYQ release@test\n";
const SIGNATURE: &str = "-----BEGIN SSH SIGNATURE-----\n\
    U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAg8v43rWvy0FrZWVs7aT9eJFz+4T\n\
    ONzfjsXkpmXiWXJhAAAAAQeHRhc2stcmVjZWlwdC12MQAAAAAAAAAGc2hhNTEyAAAAUwAA\n\
    AAtzc2gtZWQyNTUxOQAAAEBXdtg6QMwzG4bZAlACiVaff+i5NAM4oz0mw2h9ak8vwCucKz\n\
    gJzaOg0F/4YJWttwSZ5dq/oxWwtVuIBevLZg0H\n\
    -----END SSH SIGNATURE-----\n";

/// Bytes made from good ones by a seed: bits turned, parts cut, doubled, moved, words of JSON put in.
struct Mangler(u64);

impl Mangler {
    fn next(&mut self, below: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 33) as usize % below.max(1)
    }

    fn mangle(&mut self, good: &[u8]) -> Vec<u8> {
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
