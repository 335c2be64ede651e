//! receipts/schema.json, and that every receipt satisfies it.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::Value;

use crate::keyring::{Keyring, SUITE};
use crate::world::World;

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../receipts/schema.json");
    serde_json::from_slice(&fs::read(path).expect("the schema")).expect("JSON")
});

/// Every way in which a run can end.
#[test]
fn every_receipt_that_the_program_writes_satisfies_the_schema() {
    let suite = |script: &str| {
        SUITE.replace("\"true\"", &format!("[\"sh\", \"-c\", {script:?}]")) + "[profile.part]\nskip = [\"one\"]\n"
    };
    let check = |world: &World, result: &str| {
        let path = world.receipts().pop().expect("a receipt");
        let receipt: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(receipt["predicate"]["result"], result);
        assert_eq!(faults(&SCHEMA, &receipt, ""), [""; 0], "{result}");
    };
    let world = World::new(&suite("true"));
    world.run(&["verify", "--outer", "9h"]).expect(0);
    check(&world, "passed");
    world.run(&["verify", "--profile", "part"]).expect(0);
    check(&world, "passed");
    world.write("draft", "x");
    world.run(&["verify"]).expect(0);
    check(&world, "passed");
    for (script, code, result) in
        [("kill -9 $$", 1, "failed"), ("sleep 100 & true", 1, "failed"), ("echo x > new", 7, "no-verdict")]
    {
        let world = World::new(&suite(script));
        world.run(&["verify"]).expect(code);
        check(&world, result);
    }
    let world = World::new(&suite("sleep 100").replacen("deadline = \"1m\"", "deadline = \"1s\"", 1));
    world.run(&["verify"]).expect(3);
    check(&world, "late");
    let world = World::new(&suite("until test -e ../go; do sleep 0.05; done"));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    world.run(&["verify", "--queue", "0s"]).expect(4);
    check(&world, "not-run");
    first.signal(nix::sys::signal::Signal::SIGINT);
    first.wait().expect(130);
    check(&world, "cancelled");
}

/// What of the value does not satisfy the schema. Knows the words that receipts/schema.json uses, and no others.
fn faults(schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let words = schema.as_object().expect("a schema");
    words.iter().flat_map(|(word, rule)| faults_of(word, rule, schema, value, at)).collect()
}

fn faults_of(word: &str, rule: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let unless = |right: bool| if right { Vec::new() } else { vec![format!("{at}: not {word} {rule}")] };
    let list = || rule.as_array().expect("a list");
    let fields = || value.as_object().into_iter().flatten();
    match word {
        "$schema" | "$id" | "$defs" | "title" | "description" => Vec::new(),
        "$ref" => {
            let name = rule.as_str().and_then(|r| r.strip_prefix("#/$defs/")).expect("a definition of this schema");
            faults(&SCHEMA["$defs"][name], value, at)
        }
        "type" => unless(match rule.as_str().expect("a type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64() || value.is_i64(),
            other => panic!("the type {other} is not known here"),
        }),
        "const" => unless(value == rule),
        "enum" => unless(list().contains(value)),
        "minimum" => unless(value.is_u64() || value.as_i64() >= rule.as_i64()),
        "maximum" => unless(value.as_u64() <= rule.as_u64()),
        "pattern" => unless(value.as_str().is_some_and(|text| matches(rule.as_str().expect("a pattern"), text))),
        "required" => {
            let missing = list().iter().filter_map(Value::as_str).filter(|name| value.get(name).is_none());
            missing.map(|name| format!("{at}: has no {name}")).collect()
        }
        "properties" => {
            let known = fields().filter_map(|(name, inner)| Some((name, inner, rule.get(name)?)));
            known.flat_map(|(name, inner, rule)| faults(rule, inner, &format!("{at}/{name}"))).collect()
        }
        "additionalProperties" => {
            let unknown = fields().filter(|(name, _)| schema["properties"].get(name.as_str()).is_none());
            match rule {
                Value::Bool(false) => unknown.map(|(name, _)| format!("{at}: {name} is unknown")).collect(),
                rule => unknown.flat_map(|(name, inner)| faults(rule, inner, &format!("{at}/{name}"))).collect(),
            }
        }
        "items" => {
            let items = value.as_array().into_iter().flatten().enumerate();
            items.flat_map(|(number, item)| faults(rule, item, &format!("{at}/{number}"))).collect()
        }
        "oneOf" => unless(list().iter().filter(|rule| faults(rule, value, at).is_empty()).count() == 1),
        other => panic!("the word {other} is not known here"),
    }
}

// The few forms of patterns that the schema uses: alternatives of classes with counts, anchored at both ends.
fn matches(pattern: &str, text: &str) -> bool {
    let hex = |text: &str| text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    match pattern {
        "^([0-9a-f]{40}|[0-9a-f]{64})$" => hex(text) && matches!(text.len(), 40 | 64),
        "^[0-9a-f]{64}$" => hex(text) && text.len() == 64,
        "^([0-9a-f]{64})?$" => hex(text) && matches!(text.len(), 0 | 64),
        "^[a-z0-9][a-z0-9._-]{0,63}$" => xtask::name::Name::parse(text).is_ok(),
        "^r-[0-9]{8}-[0-9]{6}-[0-9a-f]{8}$" => xtask::name::RunId::parse(text).is_ok(),
        "^(all|[1-9][0-9]*)$" => text == "all" || text.parse::<u64>().is_ok_and(|n| n > 0 && n.to_string() == text),
        other => panic!("the pattern {other} is not known here"),
    }
}

/// A check that accepts everything would be none.
#[test]
fn the_schema_refuses_what_is_no_receipt() {
    let keyring = Keyring::new(SUITE);
    keyring.world.git(&["tag", "v1"]);
    keyring.release("v1").expect(0);
    let bytes = fs::read(keyring.world.repo.join("receipts/v1/receipt.json")).unwrap();
    let good: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(faults(&SCHEMA, &good, ""), [""; 0]);
    let changes: [(&str, Value); 9] = [
        ("/_type", "x".into()),
        ("/predicate/queue_ms", "1200".into()),
        ("/predicate/queue_ms", 1.5.into()),
        ("/predicate/run_ms", (-1).into()),
        ("/predicate/run", "r-1".into()),
        ("/predicate/tasks/0/name", "../x".into()),
        ("/predicate/tasks/0/exit", "0".into()),
        ("/subject/0/digest", serde_json::json!({"gitCommit": "short"})),
        ("/predicate/toolchain", serde_json::json!({"rustc": 1})),
    ];
    for (path, value) in changes {
        let mut changed = good.clone();
        *changed.pointer_mut(path).unwrap() = value;
        assert!(!faults(&SCHEMA, &changed, "").is_empty(), "{path}");
    }
    for object in ["", "/predicate", "/predicate/tasks/0", "/predicate/clocks", "/predicate/limits"] {
        let mut changed = good.clone();
        changed.pointer_mut(object).unwrap()["more"] = 1.into();
        assert!(!faults(&SCHEMA, &changed, "").is_empty(), "{object} with an unknown field");
    }
    let mut changed = good.clone();
    changed["predicate"].as_object_mut().unwrap().remove("queue_ms");
    assert_eq!(faults(&SCHEMA, &changed, ""), ["/predicate: has no queue_ms"]);
}
