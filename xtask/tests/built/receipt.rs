//! The gate: a good signed receipt is accepted; changed in one place and signed again by a good key it is refused by the
//! rule for that place. The receipts are those that verify wrote, the signatures are ssh-keygen's, and what counts is the
//! exit code of the built program.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::Mode;
use xtask::receipt::rules::RULES;

use crate::keyring::{Keyring, RECEIPTS, SUITE, read, signature_of};
use crate::receipt_changes::{CHANGES, INFORMATION};
use crate::world::World;

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn each_change_is_refused_by_its_rule_and_by_no_other() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    keyring.accepted(&[text(&path)]);
    keyring.accepted(&[]);
    let good = read(&path);
    let mut seen = Vec::new();
    for (what, change, codes) in CHANGES {
        let mut receipt = good.clone();
        change(&mut receipt);
        assert_ne!(receipt, good, "{what} changes nothing");
        let path = keyring.signed("changed", &receipt.to_bytes(), "local");
        assert_eq!(keyring.judge(&[text(&path)]).1, *codes, "{what}");
        seen.extend(*codes);
    }
    for (what, change) in INFORMATION {
        let mut receipt = good.clone();
        change(&mut receipt);
        let path = keyring.signed("changed", &receipt.to_bytes(), "local");
        assert_eq!(keyring.judge(&[text(&path)]).1, [""; 0], "{what}");
    }
    // The other tests of this file and of release are about these.
    let elsewhere = [
        "receipt-file",
        "receipt-form",
        "signature-missing",
        "signature-form",
        "signature-wrong",
        "signers-file",
        "revoked-file",
        "signer-unknown",
        "signer-namespace",
        "signer-not-valid",
        "signer-revoked",
        "caller",
        "suite-unreadable",
        "baseline-unreadable",
        "task-dropped",
        "limit-raised",
        "signer-added",
        "artifact-missing",
        "artifact-unlisted",
        "artifact-digest",
        "sums",
    ];
    for rule in RULES {
        assert!(seen.contains(&rule.id) || elsewhere.contains(&rule.id), "no test is about the rule {}", rule.id);
    }
}

/// Every line of a receipt with a value in it, taken away or given another type.
#[test]
fn each_field_has_to_be_there_and_of_its_type() {
    let keyring = Keyring::new(SUITE);
    let good = fs::read_to_string(keyring.verify("local")).unwrap();
    // They may be absent: then nothing is said about them.
    let optional = ["network_namespace", "log"];
    let lines: Vec<&str> = good.lines().collect();
    let mut tried = 0;
    for (at, line) in lines.iter().enumerate() {
        let Some((name, value)) = line.trim().split_once(": ") else { continue };
        let (name, value) = (name.trim_matches('"'), value.trim_end_matches(','));
        if matches!(value, "{" | "[") {
            continue;
        }
        tried += 1;
        let other = if value.starts_with('"') { "7" } else { "\"seven\"" };
        let wrong =
            [&lines[..at], &[line.replacen(value, other, 1).as_str()], &lines[at + 1..]].concat().join("\n") + "\n";
        let path = keyring.signed("changed", wrong.as_bytes(), "local");
        assert_eq!(keyring.judge(&[text(&path)]).1, ["receipt-form"], "{line} as {other}");

        let mut rest = [&lines[..at], &lines[at + 1..]].concat();
        // What was before the last field of an object has no comma behind it any more.
        let before = rest[at - 1].trim_end_matches(',').to_owned();
        if !line.ends_with(',') {
            rest[at - 1] = &before;
        }
        let path = keyring.signed("changed", (rest.join("\n") + "\n").as_bytes(), "local");
        let codes = keyring.judge(&[text(&path)]).1;
        let codes: Vec<&str> = codes.iter().map(String::as_str).collect();
        match name {
            name if optional.contains(&name) => assert_eq!(codes, [""; 0], "without {line}"),
            "started_ms" => assert_eq!(codes, ["task-verdict"], "without {line}"),
            _ if codes.is_empty() => assert!(in_map(&lines, at), "without {line}"),
            _ => assert_eq!(codes, ["receipt-form"], "without {line}"),
        }
    }
    assert!(tried > 60, "{tried}");
}

// Versions of programs are a map: any of them may be missing.
fn in_map(lines: &[&str], at: usize) -> bool {
    lines[..at].iter().rev().find(|line| line.ends_with('{')).is_some_and(|line| line.contains("toolchain"))
}

#[test]
fn bytes_that_are_no_receipt_are_refused_whoever_signs_them() {
    let keyring = Keyring::new(SUITE);
    let good = fs::read_to_string(keyring.verify("local")).unwrap();
    let queue = good.lines().filter(|line| line.contains("\"queue_ms\"")).nth(1).unwrap();
    let (name, value) = queue.split_once(": ").unwrap();
    let with = |value: &str| good.replace(queue, &format!("{name}: {value},"));
    let number = value.trim_end_matches(',');
    let form: Vec<(&str, Vec<u8>)> = vec![
        ("absent", good.replace(&format!("{queue}\n"), "").into()),
        ("null", with("null").into()),
        ("text", with("\"1200\"").into()),
        ("float", with(&format!("{number}.0")).into()),
        ("negative", with("-1").into()),
        ("huge", with("1e400").into()),
        ("too large", with("99999999999999999999").into()),
        ("twice", good.replace(queue, &format!("{queue}\n{queue}")).into()),
        ("unknown", good.replace(queue, &format!("{queue}\n    \"new\": 1,")).into()),
        ("trailing", format!("{good}{{}}").into()),
        ("byte order mark", format!("\u{feff}{good}").into()),
        ("no newline", good.trim_end().into()),
        ("another form", good.replace("\": ", "\":").into()),
        ("129 levels", format!("{}1{}", "[".repeat(129), "]".repeat(129)).into()),
        ("not text", vec![0xff; 99]),
        ("nothing", Vec::new()),
    ];
    for (what, bytes) in form {
        let path = keyring.signed("changed", &bytes, "local");
        assert_eq!(keyring.judge(&[text(&path)]).1, ["receipt-form"], "{what}");
    }
    let missing = keyring.world.run(&[
        "check-receipt",
        "--unsigned",
        text(&keyring.signed("changed", good.replace(&format!("{queue}\n"), "").as_bytes(), "local")),
    ]);
    missing.expect(6).says("missing field `queue_ms`");

    let folder = keyring.world.folder.path();
    let long = folder.join("long.json");
    fs::write(&long, vec![b' '; 2 << 20]).unwrap();
    let (pipe, link) = (folder.join("pipe.json"), folder.join("link.json"));
    nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    symlink(keyring.world.receipts().pop().unwrap(), &link).unwrap();
    for path in [&long, &pipe, &link, folder, &folder.join("none.json"), Path::new("/dev/zero")] {
        keyring.refused(&[text(path), "--unsigned"], &["receipt-file"]);
    }
}

#[test]
fn a_commit_that_asks_for_less_than_the_baseline_is_refused() {
    let keyring = Keyring::new(SUITE);
    let base = keyring.world.git(&["rev-parse", "HEAD"]);
    let baseline = ["--baseline", base.as_str()];
    keyring.verify("local");
    keyring.accepted(&baseline);
    let change = |suite: String, codes: &[&str]| {
        keyring.world.write("ci/suite.toml", &suite);
        keyring.world.commit("another suite");
        keyring.verify("local");
        keyring.accepted(&[]);
        keyring.refused(&baseline, codes);
    };
    change(SUITE.replace("task.one", "task.two"), &["task-dropped"]);
    change(SUITE.replace("\"1m\"", "\"2m\""), &["limit-raised"]);
    change(SUITE.replace("\"5m\"", "\"6m\""), &["limit-raised"]);
    change(SUITE.replace("\"2h\"", "\"3h\""), &["limit-raised"]);
    change(SUITE.replace("command = \"true\"", "command = \"true\"\nleftovers = \"kill\""), &["limit-raised"]);
    change(SUITE.replace("\"1m\"", "\"30s\""), &[]);

    // What is no limit is named, and for people to judge.
    let gutted = SUITE.replace("command = \"true\"", "command = \"false || true\"").replace("cpus = \"all\"\n", "");
    change(gutted.replace("\"false || true\"", "[\"true\", \"-q\"]"), &[]);
    let told = keyring.world.run(&[&["check-receipt"], &baseline[..]].concat()).expect(0);
    let words = "command of task one was changed from [\"true\"] to [\"true\", \"-q\"]";
    told.says(words).says("cpus of task build was changed from all to 1");
    let json =
        keyring.world.run(&[&["check-receipt", "--message-format", "json"], &baseline[..]].concat()).expect(0).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["altered"].as_array().unwrap().len(), 2, "{json}");

    // A commit that adds its own signer: accepted by its own list, not by that of the baseline.
    let lines = fs::read_to_string(keyring.world.repo.join("ci/allowed_signers")).unwrap();
    let more = keyring.line("stranger", RECEIPTS, "").replace("stranger names", "local names");
    keyring.world.write("ci/allowed_signers", &(lines.clone() + &more));
    keyring.world.commit("a signer more");
    keyring.verify("stranger");
    keyring.accepted(&[]);
    keyring.refused(&baseline, &["signer-unknown", "signer-added"]);
    // A key that was no longer valid, or revoked, at the baseline stays so.
    keyring.world.write("ci/allowed_signers", &lines);
    keyring.world.write("ci/revoked_keys", &keyring.public("ci"));
    let revoked = keyring.world.commit("ci is revoked");
    keyring.world.write("ci/revoked_keys", "# nobody\n");
    keyring.world.commit("and is not any more");
    keyring.verify("local");
    keyring.refused(&["--baseline", &revoked], &["signer-added"]);
    // The same for a list that only ssh-keygen can read.
    let list = keyring.world.repo.join("ci/revoked_keys");
    let public = keyring.key("ci").with_extension("pub");
    assert!(Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&list).arg(public).status().unwrap().success());
    let revoked = keyring.world.commit("ci is revoked again");
    keyring.verify("local");
    keyring.accepted(&["--baseline", &revoked]);
    keyring.world.write("ci/revoked_keys", "# nobody\n");
    keyring.world.commit("and is not any more");
    keyring.verify("local");
    keyring.refused(&["--baseline", &revoked], &["signer-added"]);
    keyring.world.git(&["rm", "--quiet", "--cached", "ci/revoked_keys"]);
    keyring.world.run(&["check-receipt", "--baseline", "nothing"]).expect(2).says("there is no commit");
    let empty = keyring.world.git(&["commit-tree", "-m", "empty", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"]);
    let codes = keyring.judge(&["--baseline", &empty]).1;
    assert_eq!(codes, ["signers-file", "revoked-file", "signer-unknown", "baseline-unreadable"]);
}

#[test]
fn what_is_said_about_what_is_not_there_is_true() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    keyring.world.run(&["check-receipt", "--unsigned"]).expect(0).says("the signature beside it was not looked at");
    fs::write(signature_of(&path), "garbage").unwrap();
    keyring.world.run(&["check-receipt", "--unsigned"]).expect(0).says("the signature beside it was not looked at");
    fs::remove_file(signature_of(&path)).unwrap();
    keyring.world.run(&["check-receipt", "--unsigned"]).expect(0).says("unsigned, as --unsigned allows");

    keyring.world.run(&["check-receipt", "v9"]).expect(6).says("there is no tag v9, and no such file");
}

/// What a receipt says of its commit goes to git only where it is an id.
#[test]
fn the_commit_of_a_receipt_is_no_argument() {
    let keyring = Keyring::new(SUITE);
    let mut receipt = read(&keyring.verify("local"));
    keyring.world.commit("the next");
    for (commit, later) in [(receipt.subject.commit.clone().unwrap(), true), ("HEAD~1".to_owned(), false)] {
        receipt.subject.commit = Some(commit);
        let path = keyring.signed("changed", &receipt.to_bytes(), "local");
        let said = keyring.world.run(&["check-receipt", text(&path)]).expect(6).says("commit-mismatch");
        assert_eq!(said.err.contains("commit later"), later, "{}", said.err);
    }
}

/// A leaked variable of git would have it answer for another repository.
#[test]
fn variables_of_git_do_not_lead_elsewhere() {
    let (keyring, other) = (Keyring::new(SUITE), World::new(SUITE));
    keyring.verify("local");
    let mut command = keyring.world.command(&["check-receipt"]);
    command.env("GIT_DIR", other.repo.join(".git")).env("GIT_WORK_TREE", &other.repo);
    command
        .env("GIT_INDEX_FILE", other.repo.join(".git/index"))
        .env("GIT_OBJECT_DIRECTORY", other.repo.join(".git/objects"));
    assert!(command.output().unwrap().status.success());
}

/// The gate writes nothing: not in the repository, not beside the receipt.
#[test]
fn judging_writes_nothing() {
    let keyring = Keyring::new(SUITE);
    keyring.verify("local");
    let files = || {
        let out = Command::new("find").arg(&keyring.world.repo).args(["-printf", "%p %s %T@ %C@\n"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let before = files();
    keyring.accepted(&[]);
    keyring.refused(&["v1"], &["receipt-file", "signature-missing"]);
    assert_eq!(files(), before);
}
