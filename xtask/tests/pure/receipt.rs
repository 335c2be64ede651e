//! The statement: one canonical way of writing, and nothing else counts as a receipt.

use std::collections::BTreeMap;

use serde_json::Value;
use xtask::name::{Caller, Name, RunId};
use xtask::plan::Selection;
use xtask::receipt::statement::*;
use xtask::verdict::{ExitStatus, Word};

/// A receipt of a whole, passed release run with one task and one output.
pub fn good() -> Receipt {
    let clock =
        |ms: u64| Clock { wall_ms: 1_796_000_000_000 + ms, monotonic_ms: 5_000_000 + ms, boot_ms: 6_000_000 + ms };
    let task = Task {
        name: Name::parse("test").unwrap(),
        command: ["cargo", "test"].map(str::to_owned).to_vec(),
        weight: "all".to_owned(),
        slots: vec![0, 1],
        deadline_ms: 60_000,
        log_limit: 64 << 20,
        started_ms: Some(5_002_100),
        took_ms: 7_000,
        cpu_ms: 9_000,
        peak_kib: 5_000,
        verdict: Word::Passed,
        why: "passed".to_owned(),
        exit: Some(ExitStatus::Code(0)),
        signals: Vec::new(),
        leftovers: Vec::new(),
        log: Some("target/xtask-runs/r-20261130-140210-7c1e09ab/test.log".to_owned()),
    };
    let predicate = Predicate {
        run: RunId::parse("r-20261130-140210-7c1e09ab").unwrap(),
        caller: Caller::Release,
        result: Word::Passed,
        trouble: Vec::new(),
        extent: Extent::Whole,
        selection: Selection::default(),
        suite: SuiteFile { path: "ci/suite.toml".to_owned(), sha256: "5".repeat(64) },
        limits: Limits {
            queue_ms: 2_280_000,
            deadline_ms: 1_080_000,
            margin_ms: 120_000,
            stop_grace_ms: 4_000,
            wrap_up_ms: 10_000,
            slots: 2,
            outer_ms: None,
        },
        lock: Lock {
            workstation: 28599,
            worktree: 28600,
            held: true,
            network_namespace: Some("4026531840".to_owned()),
        },
        queue_ms: 2_000,
        run_ms: 8_000,
        clocks: RunClocks {
            boot_id: "0b1c".to_owned(),
            requested: clock(0),
            won: Some(clock(2_000)),
            started: Some(clock(2_100)),
            ended: clock(10_000),
        },
        tree: Tree { clean: Answer::Yes, uncommitted: Vec::new(), changed: Answer::No, changed_files: Vec::new() },
        tasks: vec![task],
        services: vec![Service { name: Name::parse("postgres").unwrap(), version: "15.18".to_owned() }],
        toolchain: BTreeMap::from([("rustc".to_owned(), "1.95.0".to_owned())]),
        xtask: Program { version: "0.1.0".to_owned(), sha256: "a".repeat(64) },
    };
    let subject = Subjects {
        commit: Some("c".repeat(40)),
        tree: Some("e".repeat(40)),
        outputs: BTreeMap::from([("target/release/app".to_owned(), "d".repeat(64))]),
    };
    Receipt::new(subject, predicate)
}

fn text() -> String {
    String::from_utf8(good().to_bytes()).unwrap()
}

#[test]
fn written_and_parsed_is_the_same() {
    assert_eq!(Receipt::parse(text().as_bytes()), Ok(good()));
    let never_won = {
        let mut receipt = good();
        let predicate = &mut receipt.predicate;
        (predicate.result, predicate.run_ms, predicate.clocks.won, predicate.clocks.started) =
            (Word::NotRun, 0, None, None);
        (predicate.lock.held, predicate.tasks, predicate.tree.clean) = (false, Vec::new(), Answer::Unknown);
        receipt.subject = Subjects::default();
        receipt
    };
    assert_eq!(Receipt::parse(&never_won.to_bytes()), Ok(never_won));
}

#[test]
fn subjects_are_those_of_the_statement() {
    let json: Value = serde_json::from_str(&text()).unwrap();
    let subjects = serde_json::json!([
        {"name": "git:commit", "digest": {"gitCommit": "c".repeat(40)}},
        {"name": "git:tree", "digest": {"gitTree": "e".repeat(40)}},
        {"name": "target/release/app", "digest": {"sha256": "d".repeat(64)}},
    ]);
    assert_eq!(json["subject"], subjects);
    assert_eq!((&json["_type"], &json["predicateType"]), (&STATEMENT_TYPE.into(), &PREDICATE_TYPE.into()));
}

/// Every way of writing the same facts otherwise, or more than the facts: each is refused, none panics.
#[test]
fn other_ways_of_writing_are_refused() {
    let good = text();
    let queue = "\"queue_ms\": 2000,";
    assert!(good.contains(queue));
    let cases: Vec<(&str, String)> = vec![
        ("trailing newline missing", good.trim_end().to_owned()),
        ("trailing bytes", format!("{good}{{}}")),
        ("trailing blank", format!("{good} ")),
        ("byte order mark", format!("\u{feff}{good}")),
        ("compact", serde_json::to_string(&serde_json::from_str::<Value>(&good).unwrap()).unwrap()),
        ("windows line ends", good.replace('\n', "\r\n")),
        ("duplicate key", good.replace(queue, &format!("{queue}\n    {queue}"))),
        (
            "duplicate key in a map",
            good.replace("\"rustc\": \"1.95.0\"", "\"rustc\": \"1\",\n      \"rustc\": \"1.95.0\""),
        ),
        ("unknown field", good.replace(queue, &format!("{queue}\n    \"more\": 1,"))),
        ("absent", good.replace(queue, "")),
        ("null", good.replace(queue, "\"queue_ms\": null,")),
        ("text", good.replace(queue, "\"queue_ms\": \"2000\",")),
        ("float", good.replace(queue, "\"queue_ms\": 2000.0,")),
        ("exponent", good.replace(queue, "\"queue_ms\": 2e3,")),
        ("negative", good.replace(queue, "\"queue_ms\": -1,")),
        ("huge", good.replace(queue, "\"queue_ms\": 18446744073709551616,")),
        (
            "array for a struct",
            good.replace("{\n      \"path\": \"ci/suite.toml\",", "[\"ci/suite.toml\", \"x\"], \"was\": {"),
        ),
        ("null for absent", good.replace("\"stop_grace_ms\"", "\"outer_ms\": null,\n      \"stop_grace_ms\"")),
        ("escaped letter", good.replace("\"local\"", "\"\\u006cocal\"").replace("\"passed\"", "\"\\u0070assed\"")),
        ("two digests", good.replace("\"gitTree\"", "\"sha256\": \"x\", \"gitTree\"")),
        ("tree before commit", good.replacen("gitCommit", "gitTree", 1)),
        ("unknown enum word", good.replace("\"result\": \"passed\"", "\"result\": \"great\"")),
        ("not a run id", good.replace("r-20261130-140210-7c1e09ab\",\n    \"caller\"", "../../x\",\n    \"caller\"")),
        ("nothing", String::new()),
        ("129 levels", "[".repeat(129)),
        ("too long", " ".repeat(MAX_BYTES + 1)),
    ];
    assert!(matches!(Receipt::parse(" ".repeat(MAX_BYTES).as_bytes()), Err(ParseError::Malformed(_))));
    assert_eq!(Receipt::parse(" ".repeat(MAX_BYTES + 1).as_bytes()), Err(ParseError::TooLong));
    assert_eq!(ParseError::TooLong.to_string(), format!("longer than {MAX_BYTES} bytes"));
    for (what, bytes) in cases {
        assert_ne!(bytes, good, "{what} changes nothing");
        assert!(Receipt::parse(bytes.as_bytes()).is_err(), "{what} was accepted");
    }
    let array = good
        .replace("{\n      \"path\": \"ci/suite.toml\",\n      \"sha256\": ", "[\n      \"ci/suite.toml\",\n      ");
    let array = array.replace(&format!("\"{}\"\n    }}", "5".repeat(64)), &format!("\"{}\"\n    ]", "5".repeat(64)));
    assert!(
        matches!(Receipt::parse(array.as_bytes()), Err(ParseError::NotCanonical(..))),
        "serde takes arrays for structs"
    );
}

/// A field that is not there is named; a copy in other white space still says what it says.
#[test]
fn errors_name_the_field_and_the_line() {
    let without = text().replace("    \"queue_ms\": 2000,\n", "");
    let error = Receipt::parse(without.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("missing field `queue_ms`"), "{error}");
    let error = Receipt::parse(text().replacen("\"predicate\": {", "\"predicate\":  {", 1).as_bytes()).unwrap_err();
    let ParseError::NotCanonical(read, line) = error else { panic!("{error}") };
    let expected = text().lines().position(|l| l.contains("\"predicate\": {")).unwrap() + 1;
    assert_eq!((*read, line), (good(), expected));
}
