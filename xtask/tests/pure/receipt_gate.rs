//! From what happened to a receipt, and from a receipt to a judgement, with nothing written, signed or run in between.

use std::collections::BTreeMap;
use std::time::Duration;

use xtask::digest;
use xtask::event::TaskRecord;
use xtask::name::{Caller, Name, RunId};
use xtask::plan::{Machine, Plan, Selection};
use xtask::receipt::build::{Asked, Facts, build};
use xtask::receipt::rules::{Baseline, Gate, Refusal, Seal, judge};
use xtask::receipt::statement::{Answer, Program, Receipt};
use xtask::record::Record;
use xtask::suite::Suite;
use xtask::time::{Clocks, Moment};
use xtask::verdict::{Cause, ExitStatus, Stop, Verdict, Word};

use crate::receipt_changes::{CHANGES, Change, INFORMATION};
use crate::receipt_rules::{SIGNATURE, local_seal, trust};

const SUITE: &str = r#"schema = 1
[run]
deadline = "5m"
queue = "2m"
[receipt]
max-age = "2h"
[task.one]
command = "true"
deadline = "1m"
[task.build]
command = "make app"
deadline = "1m"
cpus = "all"
outputs = ["target/app"]
"#;

/// Of three clocks that began at different times, microseconds after the program's first line.
fn clocks(us: u64) -> Clocks {
    let moment = |from_ms: u64| Moment::from_nanos(from_ms * 1_000_000 + us * 1_000);
    Clocks { monotonic: moment(5_000_000), boot: moment(6_000_000), wall_ms: 1_796_000_000_000 + us / 1_000 }
}

fn facts() -> Facts {
    let asked = Asked {
        run: RunId::new(1_796_000_000, 7),
        caller: Caller::Local,
        requested: clocks(900),
        suite_path: "ci/suite.toml".to_owned(),
        suite_text: SUITE.to_owned(),
        selection: Selection::default(),
        queue_budget: Duration::from_secs(120),
        outer: None,
        ports: (28599, 28600),
    };
    Facts {
        asked,
        network_namespace: Some("net:[1]".to_owned()),
        boot_id: "0b1c".to_owned(),
        won: Some(clocks(2_000_100)),
        started: Some(clocks(2_100_000)),
        commit: Some("c".repeat(40)),
        tree: Some(("e".repeat(40), Vec::new())),
        compared: true,
        services: Vec::new(),
        toolchain: BTreeMap::from([("rustc".to_owned(), "1.95.0".to_owned())]),
        xtask: Program { version: "0.1.0".to_owned(), sha256: "a".repeat(64) },
    }
}

fn passed(name: &str, cpus: &[usize], begun_us: u64, took: Duration) -> TaskRecord {
    TaskRecord {
        started: Some(clocks(begun_us).monotonic),
        took,
        exit: Some(ExitStatus::Code(0)),
        cpus: cpus.to_vec(),
        ..TaskRecord::never_started(Name::parse(name).unwrap(), Verdict::Passed)
    }
}

fn record() -> Record {
    let app = ("target/app".to_owned(), "d".repeat(64));
    // One begins with its run and the other ends with it.
    let one = passed("one", &[1], 2_100_000, Duration::from_micros(300_999));
    let build = TaskRecord { outputs: vec![app], ..passed("build", &[0, 1], 2_500_000, Duration::from_millis(7_500)) };
    Record { tasks: vec![one, build], ..Record::default() }
}

fn built(facts: &Facts, record: &Record) -> Receipt {
    let suite = Suite::parse(&facts.asked.suite_text).unwrap();
    let plan = Plan::new(&suite, &facts.asked.selection, &Machine { cpus: 2, ..Machine::default() }).unwrap();
    build(facts, &suite, &plan, record, clocks(10_000_000))
}

/// A gate for the commit of `facts`, with a signature by a key of that caller.
fn gate(receipt: &Receipt) -> Gate {
    let now_ms = clocks(11_000_000).wall_ms;
    Gate {
        parsed: Receipt::parse(&receipt.to_bytes()),
        seal: Some(local_seal(now_ms)),
        now_ms,
        revision: "HEAD".to_owned(),
        commit: Some("c".repeat(40)),
        tree: Some("e".repeat(40)),
        ahead: None,
        caller: None,
        suite_path: "ci/suite.toml".to_owned(),
        suite: Ok((Suite::parse(SUITE).unwrap(), digest::of_bytes(SUITE.as_bytes()))),
        baseline: None,
        ports: (28599, 28600..=28600),
        max_age: None,
        archived: false,
        artifacts: None,
        sums: None,
    }
}

fn codes(reasons: &[Refusal]) -> Vec<&'static str> {
    reasons.iter().map(|reason| reason.code).collect()
}

/// The rule and the words of every reason to refuse the good receipt after `change`.
fn refusals(change: impl FnOnce(&mut Receipt)) -> Vec<(&'static str, String)> {
    let mut receipt = built(&facts(), &record());
    change(&mut receipt);
    judge(&gate(&receipt)).into_iter().map(|reason| (reason.code, reason.text)).collect()
}

#[test]
fn a_receipt_says_what_happened() {
    let receipt = built(&facts(), &record());
    let predicate = &receipt.predicate;
    assert_eq!((predicate.result, predicate.lock.held), (Word::Passed, true));
    // Each clock is rounded down, and a time is what lies between two of them as they are written.
    assert_eq!(predicate.clocks.requested.monotonic_ms, 5_000_000);
    assert_eq!(predicate.clocks.ended.boot_ms, 6_010_000);
    assert_eq!((predicate.queue_ms, predicate.run_ms), (2_000, 8_000));
    assert_eq!((predicate.tree.clean, predicate.tree.changed), (Answer::Yes, Answer::No));
    let names: Vec<&str> = predicate.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["one", "build"]);
    let one = &predicate.tasks[0];
    assert_eq!((one.started_ms, one.took_ms, &one.slots[..]), (Some(5_002_100), 300, &[1][..]));
    assert_eq!(one.log.as_deref(), Some(format!("target/xtask-runs/{}/one.log", predicate.run).as_str()));
    assert_eq!(receipt.subject.outputs["target/app"], "d".repeat(64));
    assert_eq!(codes(&judge(&gate(&receipt))), [""; 0]);
}

#[test]
fn a_receipt_says_what_is_not_known_or_did_not_happen() {
    let never_won = Facts { won: None, started: None, tree: None, compared: false, ..facts() };
    let receipt = built(&never_won, &Record::default());
    let predicate = &receipt.predicate;
    assert_eq!((predicate.result, predicate.lock.held, predicate.run_ms), (Word::NotRun, false, 0));
    assert_eq!((predicate.tree.clean, predicate.tree.changed), (Answer::Unknown, Answer::Unknown));
    assert_eq!((predicate.tasks[0].verdict, predicate.tasks[0].why.as_str()), (Word::NotRun, "nothing was run"));
    assert_eq!((predicate.tasks[0].started_ms, &predicate.tasks[0].log), (None, &None));
    let cancelled = built(&never_won, &Record { stop: Some(Stop::Int), ..Record::default() });
    assert_eq!(cancelled.predicate.result, Word::Cancelled);
    let lost = built(&facts(), &Record { tasks: vec![record().tasks.remove(0)], ..Record::default() });
    assert_eq!(lost.predicate.tasks[1].why, "nobody is left to say how it ended");

    let clean = |commit: Option<&str>, files: &[&str]| {
        let tree = Some(("e".repeat(40), files.iter().map(|&file| file.to_owned()).collect()));
        built(&Facts { tree, commit: commit.map(str::to_owned), ..facts() }, &record()).predicate.tree.clean
    };
    assert_eq!(clean(Some("c"), &["a"]), Answer::No);
    assert_eq!(clean(None, &[]), Answer::No, "without a commit nothing is committed");
    let changed = Record { tree_changed: vec!["a".to_owned()], ..record() };
    assert_eq!(built(&Facts { compared: false, ..facts() }, &changed).predicate.tree.changed, Answer::Yes);
    let failed = Verdict::Failed(Cause::Exit(ExitStatus::Code(1)));
    let never_begun = TaskRecord::never_started(Name::parse("one").unwrap(), failed);
    let told = built(&facts(), &Record { tasks: vec![never_begun], ..Record::default() });
    assert_eq!((told.predicate.tasks[0].why.as_str(), &told.predicate.tasks[0].log), ("exit code 1", &None));
}

#[test]
fn each_change_is_refused_by_its_rule_and_by_no_other() {
    let good = built(&facts(), &record());
    for (what, change, refused_by) in CHANGES {
        let mut receipt = good.clone();
        change(&mut receipt);
        assert_ne!(receipt, good, "{what} changes nothing");
        let mut found = codes(&judge(&gate(&receipt)));
        found.dedup();
        assert_eq!(found, *refused_by, "{what}");
    }
    for (what, change) in INFORMATION {
        let mut receipt = good.clone();
        change(&mut receipt);
        assert_eq!(codes(&judge(&gate(&receipt))), [""; 0], "{what}");
    }
}

#[test]
fn a_reason_says_what_is_and_what_should_be() {
    let cases: [(Change, &str); 9] = [
        (|r| r.predicate.tasks[0].took_ms = 60_001, "task one took 1m0.001s of 1m0s, verdict passed"),
        (|r| r.predicate.run_ms = 300_050, "run took 5m0.050s of 5m0s"),
        (|r| (r.predicate.queue_ms, r.predicate.limits.queue_ms) = (2_001, 2_000), "queue time took 2.001s of 2s"),
        (|r| r.subject.commit = Some("1".repeat(40)), "receipt is for 1111111, HEAD is ccccccc"),
        (|r| r.subject.commit = Some("1".repeat(5)), "receipt is for 11111, HEAD is ccccccc"),
        (|r| r.predicate.tree.uncommitted.push("a".to_owned()), "the tree had uncommitted changes: a"),
        (|r| r.predicate.tree.changed = Answer::Unknown, "nobody knows whether the tree changed during the run"),
        (|r| r.predicate.lock.held = false, "the locks were not held"),
        (
            |r| (r.predicate.result, r.predicate.trouble) = (Word::NoVerdict, vec!["disk".to_owned()]),
            "the run is no-verdict: disk",
        ),
    ];
    for (change, words) in cases {
        let found = refusals(change);
        assert_eq!(found.first().map(|(_, text)| text.as_str()), Some(words));
    }
}

/// Exactly at an edge is on the good side of it.
#[test]
fn times_have_edges() {
    // The two clocks may differ by 2 s and a thousandth of the time between, here of 10 s.
    for (apart, refused) in [(2_010, false), (2_011, true)] {
        let found = refusals(|r| r.predicate.clocks.requested.wall_ms -= apart);
        assert_eq!(found.iter().any(|(code, _)| *code == "clock-drift"), refused, "{apart} ms: {found:?}");
    }
    for (ahead, refused) in [(2_000, false), (2_001, true)] {
        let receipt = built(&facts(), &record());
        let mut gate = gate(&receipt);
        gate.now_ms = receipt.predicate.clocks.ended.wall_ms - ahead;
        assert_eq!(codes(&judge(&gate)).contains(&"from-future"), refused, "{ahead} ms");
    }
    // A task within its run, and a millisecond outside of it on either side.
    assert_eq!(codes_of(|r| r.predicate.tasks[1].took_ms += 1), ["clock-order"]);
    assert_eq!(codes_of(|r| r.predicate.tasks[0].started_ms = Some(5_002_099)), ["clock-order"]);
    let receipt = built(&facts(), &record());
    for (age, refused) in [(7_200_000, false), (7_200_001, true)] {
        let mut gate = gate(&receipt);
        gate.now_ms = receipt.predicate.clocks.ended.wall_ms + age;
        assert_eq!(codes(&judge(&gate)).contains(&"too-old"), refused, "{age} ms");
    }
}

fn codes_of(change: impl FnOnce(&mut Receipt)) -> Vec<&'static str> {
    refusals(change).into_iter().map(|(code, _)| code).collect()
}

#[test]
fn a_budget_of_nothing_is_one_try_of_a_second() {
    let with = |queue_ms: u64| {
        codes_of(|r| {
            (r.predicate.limits.queue_ms, r.predicate.queue_ms) = (0, queue_ms);
            r.predicate.clocks.requested = r.predicate.clocks.won.unwrap();
        })
    };
    assert_eq!(with(1_000), [""; 0]);
    assert_eq!(with(1_001), ["queue-budget"]);
}

#[test]
fn leftovers_that_the_suite_allows_are_no_reason() {
    let mut receipt = built(&facts(), &record());
    receipt.predicate.tasks[0].leftovers.push("sleep".to_owned());
    let mut gate = gate(&receipt);
    let suite = SUITE.replace("command = \"true\"\n", "command = \"true\"\nleftovers = \"kill\"\n");
    gate.suite = Ok((Suite::parse(&suite).unwrap(), digest::of_bytes(SUITE.as_bytes())));
    assert_eq!(codes(&judge(&gate)), [""; 0]);
}

#[test]
fn artifacts_are_those_of_the_receipt_by_name_and_digest() {
    let receipt = built(&facts(), &record());
    let with = |artifacts: &[(&str, char)]| {
        let mut gate = gate(&receipt);
        let one = |&(name, digit): &(&str, char)| (name.to_owned(), Ok(digit.to_string().repeat(64)));
        gate.artifacts = Some(artifacts.iter().map(one).collect());
        judge(&gate)
    };
    assert_eq!(codes(&with(&[("app", 'd')])), [""; 0]);
    assert_eq!(codes(&with(&[("app", 'd'), ("more", 'd')])), ["artifact-unlisted"]);
    assert_eq!(codes(&with(&[])), ["artifact-missing"]);
    let other = with(&[("app", '1')]);
    assert_eq!(codes(&other), ["artifact-digest"]);
    assert_eq!(other[0].text, "app is 1111111 now, ddddddd in the receipt");
}

#[test]
fn a_caller_that_was_not_asked_for_is_refused() {
    let receipt = built(&facts(), &record());
    for (want, refused_by) in [(Caller::Local, &[][..]), (Caller::Release, &["caller"])] {
        let mut gate = gate(&receipt);
        gate.caller = Some(want);
        assert_eq!(codes(&judge(&gate)), refused_by, "{want}");
    }
}

#[test]
fn a_signature_is_judged_beside_what_the_receipt_says() {
    let mut gate = gate(&built(&facts(), &Record { trouble: vec!["disk".to_owned()], ..record() }));
    let signature = Ok(SIGNATURE.as_bytes().to_vec());
    gate.seal = Some(Seal::new(&signature, &trust(b"# nobody\n"), &[trust(b"")], gate.now_ms));
    assert_eq!(codes(&judge(&gate)), ["revoked-file", "signer-unknown", "result"]);
}

#[test]
fn a_commit_may_not_ask_for_less_than_its_baseline() {
    let receipt = built(&facts(), &record());
    let suite = |text: &str| Suite::parse(text).map_err(|errors| errors.display("suite"));
    let nobody = || Ok((Vec::new(), Vec::new()));
    let since = |baseline: Baseline| {
        let mut gate = gate(&receipt);
        gate.baseline = Some(baseline);
        (codes(&judge(&gate)), gate.altered())
    };
    let same = || Baseline { revision: "v1".to_owned(), suite: suite(SUITE), signers: nobody(), signers_now: nobody() };
    assert_eq!(since(same()), (vec![], vec![]));
    let more = SUITE.to_owned() + "[task.more]\ncommand = \"true\"\ndeadline = \"1m\"\n";
    assert_eq!(since(Baseline { suite: suite(&more), ..same() }).0, ["task-dropped"]);
    let shorter = SUITE.replace("queue = \"2m\"", "queue = \"1m\"");
    assert_eq!(since(Baseline { suite: suite(&shorter), ..same() }).0, ["limit-raised"]);
    let other = SUITE.replace("command = \"make app\"", "command = \"make\"");
    let words = "command of task build was changed from [\"make\"] to [\"make\", \"app\"]";
    assert_eq!(since(Baseline { suite: suite(&other), ..same() }), (vec![], vec![words.to_owned()]));
    let gone = || Err("gone".to_owned());
    for unreadable in [
        Baseline { suite: Err("gone".to_owned()), ..same() },
        Baseline { signers: gone(), ..same() },
        Baseline { signers_now: gone(), ..same() },
    ] {
        assert_eq!(since(unreadable), (vec!["baseline-unreadable"], vec![]));
    }
    // A key that is revoked once stays so.
    let revoked = |keys: &[&[u8]]| Ok((Vec::new(), keys.iter().map(|key| key.to_vec()).collect()));
    let kept = Baseline { signers: revoked(&[b"a"]), signers_now: revoked(&[b"b", b"a"]), ..same() };
    assert_eq!(since(kept).0, [""; 0]);
    let forgiven = Baseline { signers: revoked(&[b"a", b"b"]), signers_now: revoked(&[b"b"]), ..same() };
    assert_eq!(since(forgiven).0, ["signer-added"]);
}

/// Other bytes that say the same are judged by everything they say, and refused.
#[test]
fn bytes_that_are_no_receipt_are_refused_by_the_rule_for_that() {
    let good = built(&facts(), &record());
    let with = |parsed| {
        let mut gate = gate(&good);
        gate.parsed = parsed;
        codes(&judge(&gate))
    };
    use xtask::receipt::statement::ParseError;
    assert_eq!(with(Err(ParseError::Unreadable("a folder".to_owned()))), ["receipt-file"]);
    assert_eq!(with(Receipt::parse(b"{}")), ["receipt-form"]);
    assert_eq!(with(Receipt::parse(&[good.to_bytes(), b" ".to_vec()].concat())), ["receipt-form"]);
    let dirty = Receipt { ..good.clone() }.to_bytes();
    let dirty = String::from_utf8(dirty).unwrap().replace("\"clean\": \"yes\"", "\"clean\":  \"no\"");
    assert_eq!(with(Receipt::parse(dirty.as_bytes())), ["receipt-form", "tree-dirty"]);
}
