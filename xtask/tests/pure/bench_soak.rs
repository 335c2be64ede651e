//! What the soak can be asked for.

#[path = "../built/soak_request.rs"]
mod soak_request;

use soak_request::{Request, USAGE, parse};

fn ask(words: &str) -> Result<Request, String> {
    parse(words.split_whitespace().map(str::to_owned))
}

#[test]
fn the_words_of_the_soak_are_understood() {
    assert_eq!(ask("--bench"), Ok(Request::default()));
    let all = Request { runs: Some(30), seed: Some(0), program: Some("target/x".into()), help: false };
    assert_eq!(ask("runs 30 seed 0 program target/x --bench"), Ok(all));
    for word in ["--help", "-h", "help"] {
        assert!(ask(word).unwrap().help);
    }
    for word in ["runs", "seed", "program"] {
        assert!(USAGE.contains(word));
    }
}

#[test]
fn whoever_mistypes_starts_no_soak() {
    for (words, why) in [
        ("sed 5", "\"sed\""),
        ("runs", "runs needs a number"),
        ("runs seed 5", "runs \"seed\""),
        ("runs 0", "runs \"0\""),
        ("seed 99999999999", "seed \"99999999999\""),
        ("program", "needs a path"),
        ("30", "\"30\""),
    ] {
        let said = ask(words).unwrap_err();
        assert!(said.contains(why), "{words}: {said}");
    }
}
