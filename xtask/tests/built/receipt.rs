//! The gate: a good signed receipt is accepted; changed in one place and signed again by a good key it is refused by the
//! rule for that place. The receipts are those that verify wrote, the signatures are ssh-keygen's, and what counts is the
//! exit code of the built program.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use xtask::name::{Caller, Name, RunId};
use xtask::receipt::rules::RULES;
use xtask::receipt::statement::*;
use xtask::verdict::{ExitStatus, Word};

use crate::keyring::{Keyring, RECEIPTS, SUITE, read, signature_of};
use crate::world::{Running, World, processes_with, until};

const HOUR_MS: u64 = 3_600_000;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn walls(receipt: &mut Receipt, shift: impl Fn(&mut u64)) {
    let clocks = &mut receipt.predicate.clocks;
    for clock in [Some(&mut clocks.requested), clocks.won.as_mut(), clocks.started.as_mut(), Some(&mut clocks.ended)] {
        shift(&mut clock.unwrap().wall_ms);
    }
}

type Change = fn(&mut Receipt);

/// What is changed, how, and every rule that refuses it: the rule for that place first to last as the table has them.
const CHANGES: &[(&str, Change, &[&str])] = &[
    ("type", |r| r.statement_type.push('x'), &["statement-type"]),
    ("predicate type", |r| r.predicate_type = "urn:xtask:receipt:v2".to_owned(), &["predicate-type"]),
    ("commit", |r| r.subject.commit = Some("1".repeat(40)), &["commit-mismatch"]),
    ("no commit", |r| r.subject.commit = None, &["commit-mismatch"]),
    ("tree", |r| r.subject.tree = Some("1".repeat(40)), &["tree-mismatch"]),
    ("no tree", |r| r.subject.tree = None, &["tree-mismatch"]),
    ("dirty", |r| r.predicate.tree.clean = Answer::No, &["tree-dirty"]),
    ("clean unknown", |r| r.predicate.tree.clean = Answer::Unknown, &["tree-dirty"]),
    ("uncommitted files", |r| r.predicate.tree.uncommitted.push("a".to_owned()), &["tree-dirty"]),
    ("changed", |r| r.predicate.tree.changed = Answer::Yes, &["tree-changed"]),
    ("changed unknown", |r| r.predicate.tree.changed = Answer::Unknown, &["tree-changed"]),
    ("changed files", |r| r.predicate.tree.changed_files.push("a".to_owned()), &["tree-changed"]),
    ("partial", |r| r.predicate.extent = Extent::Partial, &["partial"]),
    ("only", |r| r.predicate.selection.only.push(Name::parse("one").unwrap()), &["partial"]),
    ("profile", |r| r.predicate.selection.profile = Some(Name::parse("one").unwrap()), &["partial"]),
    ("port", |r| r.predicate.lock.workstation += 7, &["ports"]),
    ("worktree's port", |r| r.predicate.lock.worktree += 7, &["ports"]),
    ("lock", |r| r.predicate.lock.held = false, &["ports"]),
    ("caller", |r| r.predicate.caller = Caller::Ci, &["signer-role"]),
    ("suite's path", |r| r.predicate.suite.path = "other.toml".to_owned(), &["suite-changed"]),
    ("suite's digest", |r| r.predicate.suite.sha256 = "0".repeat(64), &["suite-changed"]),
    ("task missing", |r| drop(r.predicate.tasks.remove(0)), &["task-missing"]),
    ("tasks missing", |r| r.predicate.tasks.clear(), &["task-missing", "result"]),
    ("task renamed", |r| r.predicate.tasks[0].name = Name::parse("other").unwrap(), &["task-missing", "task-extra"]),
    ("task twice", |r| r.predicate.tasks.push(r.predicate.tasks[0].clone()), &["task-twice"]),
    ("command", |r| r.predicate.tasks[0].command = vec!["false".to_owned()], &["task-command"]),
    ("argument", |r| r.predicate.tasks[0].command.push("-v".to_owned()), &["task-command"]),
    ("deadline raised", |r| r.predicate.tasks[0].deadline_ms += 1, &["task-limit"]),
    ("deadline lowered", |r| r.predicate.tasks[0].deadline_ms -= 1, &["task-limit"]),
    ("log limit", |r| r.predicate.tasks[0].log_limit += 1, &["task-limit"]),
    ("weight", |r| r.predicate.tasks[0].weight = "all".to_owned(), &["task-weight"]),
    ("no CPU", |r| r.predicate.tasks[0].slots.clear(), &["task-weight"]),
    (
        "a CPU twice",
        |r| r.predicate.tasks[0].slots = [&r.predicate.tasks[0].slots[..], &r.predicate.tasks[0].slots].concat(),
        &["task-weight"],
    ),
    ("a CPU more", |r| r.predicate.tasks[1].slots.push(4000), &["task-weight"]),
    ("run's deadline", |r| r.predicate.limits.deadline_ms += 1, &["run-limit"]),
    ("margin", |r| r.predicate.limits.margin_ms += 1, &["run-limit"]),
    ("stop grace", |r| r.predicate.limits.stop_grace_ms += 1, &["run-limit"]),
    ("wrap-up", |r| r.predicate.limits.wrap_up_ms += 1, &["run-limit"]),
    ("empty pool", |r| r.predicate.limits.slots = 0, &["task-weight", "run-limit"]),
    (
        "service",
        |r| r.predicate.services.push(Service { name: Name::parse("postgres").unwrap(), version: "15".to_owned() }),
        &["services"],
    ),
    ("queue time", |r| r.predicate.queue_ms = r.predicate.limits.queue_ms + 1, &["queue-budget"]),
    ("queue budget", |r| (r.predicate.queue_ms, r.predicate.limits.queue_ms) = (2, 1), &["queue-budget"]),
    ("run time", |r| r.predicate.run_ms = r.predicate.limits.deadline_ms + 1, &["run-deadline"]),
    (
        "task's time",
        |r| r.predicate.tasks[0].took_ms = r.predicate.tasks[0].deadline_ms + 1,
        &["task-deadline", "clock-order"],
    ),
    (
        "a budget of the caller's own, larger than the suite's",
        |r| {
            let budget = r.predicate.limits.queue_ms;
            let early = &mut r.predicate.clocks.requested;
            for clock in [&mut early.monotonic_ms, &mut early.boot_ms, &mut early.wall_ms] {
                *clock -= budget + 1000;
            }
            r.predicate.queue_ms += budget + 1000;
            r.predicate.limits.queue_ms = 2 * budget + 2000;
        },
        &["queue-budget"],
    ),
    (
        "a task before its run",
        |r| r.predicate.tasks[0].started_ms = r.predicate.clocks.won.map(|won| won.monotonic_ms - 1),
        &["clock-order"],
    ),
    (
        "a task after its run",
        |r| r.predicate.tasks[0].started_ms = Some(r.predicate.clocks.ended.monotonic_ms + 1),
        &["clock-order"],
    ),
    ("never won", |r| r.predicate.clocks.won = None, &["clock-order"]),
    ("never started", |r| r.predicate.clocks.started = None, &["clock-order"]),
    (
        "won before it was asked for",
        |r| r.predicate.clocks.won.as_mut().unwrap().monotonic_ms = r.predicate.clocks.requested.monotonic_ms - 1,
        &["clock-order"],
    ),
    (
        "started before it was won",
        |r| r.predicate.clocks.started.as_mut().unwrap().boot_ms = r.predicate.clocks.won.unwrap().boot_ms - 1,
        &["clock-order"],
    ),
    ("wall clock set", |r| r.predicate.clocks.requested.wall_ms -= 10_000, &["clock-drift"]),
    ("slept while it ran", |r| r.predicate.clocks.won.as_mut().unwrap().wall_ms -= 10_000, &["clock-drift"]),
    ("old", |r| walls(r, |wall| *wall -= 3 * HOUR_MS), &["too-old"]),
    ("from the future", |r| walls(r, |wall| *wall += HOUR_MS), &["from-future"]),
    (
        "queued longer by the clock",
        |r| {
            let over = r.predicate.limits.queue_ms + 2;
            let requested = &mut r.predicate.clocks.requested;
            (requested.boot_ms, requested.monotonic_ms) = (requested.boot_ms - over, requested.monotonic_ms - over);
            requested.wall_ms -= over;
        },
        &["queue-budget"],
    ),
    (
        "failed task",
        |r| (r.predicate.tasks[0].verdict, r.predicate.tasks[0].exit) = (Word::Failed, None),
        &["task-verdict", "result"],
    ),
    ("late task", |r| r.predicate.tasks[0].verdict = Word::Late, &["task-verdict", "result"]),
    ("task not run", |r| r.predicate.tasks[0].verdict = Word::NotRun, &["task-verdict", "result"]),
    ("exit code", |r| r.predicate.tasks[0].exit = Some(ExitStatus::Code(1)), &["task-verdict"]),
    ("ended by a signal", |r| r.predicate.tasks[0].exit = Some(ExitStatus::Signal(9)), &["task-verdict"]),
    ("no exit", |r| r.predicate.tasks[0].exit = None, &["task-verdict"]),
    ("never begun", |r| r.predicate.tasks[0].started_ms = None, &["task-verdict"]),
    ("signals", |r| r.predicate.tasks[0].signals.push("SIGTERM".to_owned()), &["task-verdict"]),
    ("leftovers", |r| r.predicate.tasks[0].leftovers.push("sleep".to_owned()), &["leftovers"]),
    ("result failed", |r| r.predicate.result = Word::Failed, &["result"]),
    ("result without verdict", |r| r.predicate.result = Word::NoVerdict, &["result"]),
    ("trouble", |r| r.predicate.trouble.push("disk".to_owned()), &["result"]),
    (
        "output nobody declared",
        |r| drop(r.subject.outputs.insert("b".to_owned(), "0".repeat(64))),
        &["artifact-undeclared"],
    ),
    ("output left out", |r| r.subject.outputs.clear(), &["artifact-omitted"]),
    (
        "output outside",
        |r| drop(r.subject.outputs.insert("../b".to_owned(), "0".repeat(64))),
        &["artifact-name", "artifact-undeclared"],
    ),
];

/// What is said but not relied upon: it may be anything of its type.
const INFORMATION: &[(&str, Change)] = &[
    ("run", |r| r.predicate.run = RunId::new(1, 1)),
    ("outer limit", |r| r.predicate.limits.outer_ms = Some(1)),
    ("namespace", |r| r.predicate.lock.network_namespace = None),
    ("boot", |r| r.predicate.clocks.boot_id.clear()),
    ("CPU time", |r| r.predicate.tasks[0].cpu_ms = u64::MAX),
    ("peak", |r| r.predicate.tasks[0].peak_kib = u64::MAX),
    ("why", |r| r.predicate.tasks[0].why.clear()),
    ("log", |r| r.predicate.tasks[0].log = None),
    ("toolchain", |r| r.predicate.toolchain.clear()),
    ("version", |r| r.predicate.xtask.version.clear()),
    ("digest of xtask", |r| r.predicate.xtask.sha256.clear()),
    ("queue time at the budget", |r| r.predicate.queue_ms = r.predicate.limits.queue_ms),
    ("run time at the deadline", |r| r.predicate.run_ms = r.predicate.limits.deadline_ms),
    ("task's time at the deadline", |r| {
        let (took, clocks) = (r.predicate.tasks[0].deadline_ms, &mut r.predicate.clocks);
        for clock in [Some(&mut clocks.requested), clocks.won.as_mut(), clocks.started.as_mut()].into_iter().flatten() {
            for ms in [&mut clock.monotonic_ms, &mut clock.boot_ms, &mut clock.wall_ms] {
                *ms -= took;
            }
        }
        r.predicate.tasks[0].started_ms = r.predicate.tasks[0].started_ms.map(|at| at - took);
        r.predicate.tasks[0].took_ms = took;
    }),
    ("wall clock within its drift", |r| r.predicate.clocks.requested.wall_ms -= 1_500),
];

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
fn signatures_are_refused_each_for_its_own_reason() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    let (signature, good) = (signature_of(&path), fs::read(signature_of(&path)).unwrap());
    let bytes = fs::read(&path).unwrap();
    keyring.accepted(&[text(&path)]);
    let block = String::from_utf8(good.clone()).unwrap();
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("garbage", b"garbage".to_vec(), "signature-form", "not one SSH signature block"),
        ("nothing", Vec::new(), "signature-form", "not one SSH signature block"),
        ("two blocks", format!("{block}{block}").into(), "signature-form", "more than one signature block"),
        ("text before", format!("text\n{block}").into(), "signature-form", "not one SSH signature block"),
        ("text behind", format!("{block}text\n").into(), "signature-form", "not one SSH signature block"),
        ("no base64", block.replacen("\nU", "\n!", 1).into(), "signature-form", "not base64"),
        ("another file", keyring.signature("local", RECEIPTS, b"other"), "signature-wrong", "not one of these bytes"),
        ("another namespace", keyring.signature("local", "git", &bytes), "signer-namespace", "signed for \"git\""),
        ("another role", keyring.signature("ci", RECEIPTS, &bytes), "signer-role", "signed by a key of ci"),
        (
            "nobody's key",
            keyring.signature("stranger", RECEIPTS, &bytes),
            "signer-unknown",
            "in no line of ci/allowed_signers at HEAD",
        ),
    ];
    for (what, changed, code, words) in cases {
        fs::write(&signature, changed).unwrap();
        assert_eq!(keyring.judge(&[text(&path)]).1, [code], "{what}");
        keyring.world.run(&["check-receipt", text(&path)]).expect(6).says(words);
    }
    fs::remove_file(&signature).unwrap();
    keyring.refused(&[text(&path)], &["signature-missing"]);
    keyring.accepted(&[text(&path), "--unsigned"]);
    keyring.world.run(&["check-receipt"]).expect(6).says("there is no signature");
}

#[test]
fn signers_and_revocations_are_read_strictly() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    keyring.generate("weak", &["-t", "rsa", "-b", "2048"]);
    let signers = keyring.world.folder.path().join("trust/allowed_signers");
    let revoked = signers.with_file_name("revoked_keys");
    fs::create_dir(signers.parent().unwrap()).unwrap();
    let local = |more: &str| keyring.line("local", RECEIPTS, more);
    let (key, other) = (keyring.public("local"), keyring.public("ci"));
    let nobody = "# nobody\n";
    let cases: Vec<(&str, String, &str, &[&str], &str)> = vec![
        ("good", local(""), nobody, &[], ""),
        ("valid now", local(",valid-after=\"20200101Z\",valid-before=\"20990101000000Z\""), nobody, &[], ""),
        (
            "expired",
            local(",valid-before=\"20200101Z\""),
            nobody,
            &["signer-not-valid"],
            "expired at 2020-01-01T00:00:00Z",
        ),
        (
            "not yet valid",
            local(",valid-after=\"20990101Z\""),
            nobody,
            &["signer-not-valid"],
            "is not valid before 2099",
        ),
        ("revoked", local(""), &key, &["signer-revoked"], "is revoked in"),
        ("somebody else revoked", local(""), &other, &[], ""),
        ("twice", local("") + &local(""), nobody, &["signers-file"], "allowed_signers:2: the key of line 1 again"),
        (
            "in two roles",
            local("") + &local("").replace("local names", "ci names"),
            nobody,
            &["signers-file"],
            ":2: the key of line 1 again",
        ),
        (
            "wildcard",
            local("").replace("local names", "* names"),
            nobody,
            &["signers-file", "signer-unknown"],
            "\"*\" is not one of local, ci, release",
        ),
        (
            "several roles",
            local("").replace("local names", "local,ci names"),
            nobody,
            &["signers-file", "signer-unknown"],
            "is not one of local",
        ),
        ("no namespace", format!("local {key}"), nobody, &["signers-file", "signer-unknown"], "may sign anything"),
        (
            "any namespace",
            local("").replace(RECEIPTS, "*"),
            nobody,
            &["signers-file", "signer-unknown"],
            "the namespace \"*\"",
        ),
        (
            "namespace of another role",
            local("").replace(RECEIPTS, "xtask-release-v1"),
            nobody,
            &["signers-file", "signer-unknown"],
            "local may not sign",
        ),
        (
            "local time",
            local(",valid-before=\"20990101\""),
            nobody,
            &["signers-file", "signer-unknown"],
            "is not a time in UTC",
        ),
        (
            "no such day",
            local(",valid-before=\"20991341Z\""),
            nobody,
            &["signers-file", "signer-unknown"],
            "is not a time in UTC",
        ),
        (
            "authority",
            local(",cert-authority"),
            nobody,
            &["signers-file", "signer-unknown"],
            "\"cert-authority\" is unknown",
        ),
        (
            "weak",
            local("") + &keyring.line("weak", RECEIPTS, "").replace("weak names", "ci names"),
            nobody,
            &["signers-file"],
            "2048 bits is too weak",
        ),
        ("broken", local("") + "ci\n", nobody, &["signers-file"], "allowed_signers:2: expected: ROLE"),
        (
            "half a key",
            local("") + "ci namespaces=\"xtask-receipt-v1\" ssh-ed25519 AAAA\n",
            nobody,
            &["signers-file"],
            "is not the ssh-ed25519 key",
        ),
        ("nobody", "# nobody\n".to_owned(), nobody, &["signer-unknown"], "in no line"),
        ("empty list of revoked keys", local(""), "", &["revoked-file"], "revoked_keys: the file is empty"),
        ("broken list of revoked keys", local(""), "SHA256:abc\n", &["revoked-file"], "revoked_keys:1:"),
    ];
    for (what, lines, list, codes, words) in cases {
        fs::write(&signers, lines).unwrap();
        fs::write(&revoked, list).unwrap();
        let args = [text(&path), "--signers", text(&signers)];
        assert_eq!(keyring.judge(&args).1, codes, "{what}");
        if !words.is_empty() {
            keyring.world.run(&[&["check-receipt"], &args[..]].concat()).expect(6).says(words);
        }
    }
    fs::write(&signers, local("")).unwrap();
    fs::remove_file(&revoked).unwrap();
    keyring.refused(&[text(&path), "--signers", text(&signers)], &["revoked-file"]);
    fs::remove_file(&signers).unwrap();
    fs::write(&revoked, nobody).unwrap();
    keyring.refused(&[text(&path), "--signers", text(&signers)], &["signers-file", "signer-unknown"]);
}

/// A list in ssh-keygen's own binary form: ssh-keygen alone can tell.
#[test]
fn a_binary_list_of_revoked_keys_revokes() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    let trust = keyring.world.folder.path().join("trust");
    fs::create_dir(&trust).unwrap();
    fs::write(trust.join("allowed_signers"), keyring.line("local", RECEIPTS, "")).unwrap();
    let signers = trust.join("allowed_signers");
    for (revoked, codes) in [("ci", &[][..]), ("local", &["signature-wrong"])] {
        let list = trust.join("revoked_keys");
        let public = keyring.key(revoked).with_extension("pub");
        let made = Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&list).arg(public).status().unwrap();
        assert!(made.success());
        keyring.refused(&[text(&path), "--signers", text(&signers)], codes);
    }
}

#[test]
fn a_receipt_of_another_commit_is_refused() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    let first = keyring.world.git(&["rev-parse", "HEAD"]);
    keyring.world.git(&["commit", "--quiet", "--amend", "--message", "the same tree"]);
    keyring.refused(&[text(&path)], &["commit-mismatch"]);
    keyring.world.git(&["reset", "--quiet", "--hard", &first]);
    keyring.world.write("more", "x");
    keyring.world.commit("the next");
    keyring.refused(&[text(&path)], &["commit-mismatch", "tree-mismatch"]);
    keyring.world.run(&["check-receipt", text(&path)]).expect(6).says("(1 commit later)");
    keyring.world.run(&["check-receipt"]).expect(6).says("no receipt of HEAD");
    keyring.accepted(&[text(&path), "--commit", &first]);
    keyring.accepted(&["--commit", "HEAD~1"]);
    keyring.world.write("ci/suite.toml", &SUITE.replace("\"1m\"", "\"50s\""));
    keyring.world.commit("another suite");
    keyring.refused(&[text(&path)], &["commit-mismatch", "tree-mismatch", "suite-changed", "task-limit"]);
    keyring.world.git(&["rm", "--quiet", "ci/suite.toml"]);
    keyring.world.commit("no suite");
    keyring.refused(&[text(&path)], &["commit-mismatch", "tree-mismatch", "suite-unreadable", "too-old"]);
    keyring.world.run(&["check-receipt", "--commit", "nothing"]).expect(2).says("there is no commit");
}

#[test]
fn a_run_on_an_unclean_tree_is_refused() {
    let keyring = Keyring::new(SUITE);
    keyring.world.write("draft", "x");
    keyring.verify("local");
    keyring.refused(&[], &["tree-mismatch", "tree-dirty"]);
    keyring.refused(&["--unsigned"], &["tree-mismatch", "tree-dirty"]);
    fs::remove_file(keyring.world.repo.join("draft")).unwrap();
    keyring.world.git(&["update-index", "--assume-unchanged", "ci/revoked_keys"]);
    keyring.world.write("ci/revoked_keys", "# hidden\n");
    keyring.verify("local");
    keyring.refused(&[], &["tree-mismatch", "tree-dirty"]);
}

/// A task that edits a tracked file and takes the edit back.
#[test]
fn an_edit_during_the_run_is_refused_although_it_was_taken_back() {
    let edit = "cp -p tracked ../kept; echo more >> tracked; cp -p ../kept tracked";
    let keyring = Keyring::new(&SUITE.replace("\"true\"", &format!("[\"sh\", \"-c\", {edit:?}]")));
    keyring.world.write("tracked", "x\n");
    keyring.world.commit("a file");
    keyring.world.run(&["verify"]).expect(7).says("tracked");
    keyring.refused(&["--unsigned"], &["tree-changed", "result"]);
}

#[test]
fn a_part_of_the_suite_is_refused() {
    let keyring = Keyring::new(SUITE);
    keyring.world.run(&["verify", "--only", "one"]).expect(0);
    keyring.refused(&["--unsigned"], &["partial", "task-missing"]);
}

/// Another suite file of the same commit, which asks for next to nothing.
#[test]
fn another_suite_file_is_refused() {
    let keyring = Keyring::new(SUITE);
    keyring.world.write(
        "ci/small.toml",
        "schema = 1\n[run]\ndeadline = \"5m\"\nqueue = \"2m\"\n[task.one]\ncommand = \"true\"\ndeadline = \"1m\"\n",
    );
    keyring.world.commit("a small suite");
    keyring.world.run(&["verify", "--suite", "ci/small.toml"]).expect(0);
    keyring.refused(&["--unsigned"], &["suite-changed", "task-missing"]);
    keyring.accepted(&["--unsigned", "--suite", "ci/small.toml"]);
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

/// Who takes the list away takes every revocation back.
#[test]
fn a_list_of_revoked_keys_that_is_gone_by_now_refuses() {
    let keyring = Keyring::new(SUITE);
    keyring.verify("local");
    let first = keyring.world.git(&["rev-parse", "HEAD"]);
    keyring.world.write("ci/revoked_keys", &keyring.public("local"));
    keyring.world.commit("local is revoked");
    keyring.refused(&["--commit", &first], &["signer-revoked"]);
    keyring.world.git(&["rm", "--quiet", "ci/revoked_keys"]);
    keyring.world.commit("no list");
    keyring.refused(&["--commit", &first], &["revoked-file"]);
    keyring.world.run(&["check-receipt", "--commit", &first]).expect(6).says("ci/revoked_keys at HEAD");
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

/// A line of allowed_signers that is for releases alone, and a time zone far away.
#[test]
fn a_key_counts_for_its_namespaces_and_in_no_time_zone() {
    let keyring = Keyring::new(SUITE);
    let trust = keyring.world.folder.path().join("trust");
    fs::create_dir(&trust).unwrap();
    let (signers, good) = (trust.join("allowed_signers"), fs::read(keyring.verify("local")).unwrap());
    fs::write(trust.join("revoked_keys"), "# nobody\n").unwrap();
    fs::write(&signers, keyring.line("release", "xtask-release-v1", "")).unwrap();
    let path = keyring.signed("receipt", &good, "release");
    keyring.refused(&[text(&path), "--signers", text(&signers)], &["signer-namespace", "signer-role"]);

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let time = |ms: u64| xtask::time::utc(ms).chars().filter(char::is_ascii_digit).collect::<String>();
    let (after, before) = (time(now - HOUR_MS), time(now + HOUR_MS));
    let more = format!(",valid-after=\"{after}Z\",valid-before=\"{before}Z\"");
    fs::write(&signers, keyring.line("local", RECEIPTS, &more)).unwrap();
    let path = keyring.signed("receipt", &good, "local");
    for zone in ["EAST-14", "WEST+12", "UTC"] {
        let mut command = keyring.world.command(&["check-receipt", text(&path), "--signers", text(&signers)]);
        command.env("TZ", zone);
        Running::start(command, &keyring.world.folder).wait().expect(0);
    }
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

/// As CI leaves the variable where a job may not see the secret.
#[test]
fn a_signing_key_without_a_path_is_none_but_no_flag() {
    let keyring = Keyring::new(SUITE);
    let mut command = keyring.world.command(&["verify"]);
    command.env("XTASK_SIGNING_KEY", "");
    Running::start(command, &keyring.world.folder).wait().expect(0);
    keyring.refused(&[], &["signature-missing"]);
    keyring.world.run(&["verify", "--key", ""]).expect(2);
    let mut command = keyring.world.command(&["verify"]);
    command.env("XTASK_SIGNING_KEY", keyring.key("local"));
    Running::start(command, &keyring.world.folder).wait().expect(0);
    keyring.accepted(&[]);
}

/// Nobody is asked for a passphrase or a PIN, on a desktop either.
#[test]
fn ssh_keygen_is_told_to_ask_nobody() {
    let keyring = Keyring::new(SUITE);
    let mut command = keyring.world.command(&["verify", "--key", text(&keyring.key("local"))]);
    let told = keyring.world.folder.path().join("told");
    let script = format!("case \"$*\" in *'-Y sign'*) echo $SSH_ASKPASS_REQUIRE >> {};; esac", told.display());
    keyring.before_ssh_keygen(&mut command, &script);
    command.env("SSH_ASKPASS_REQUIRE", "force");
    Running::start(command, &keyring.world.folder).wait().expect(0);
    assert_eq!(fs::read_to_string(told).unwrap(), "never\nnever\n");
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

/// A task that writes a receipt in the place of that of its own run, which then fails.
#[test]
fn what_a_task_writes_in_place_of_the_receipt_is_not_signed() {
    let forge = "for run in target/xtask-runs/r-*; do cp ../good receipts/${run##*/}.json; done; exit 1";
    let keyring = Keyring::new(&SUITE.replace("\"true\"", &format!("[\"sh\", \"-c\", {forge:?}]")));
    fs::write(keyring.world.folder.path().join("good"), "{}").unwrap();
    fs::create_dir(keyring.world.repo.join("receipts")).unwrap();
    let done = keyring.world.run(&["verify", "--key", text(&keyring.key("local"))]).expect(7);
    assert!(!done.err.contains("signed by"), "{}", done.err);
    let [forged] = &keyring.world.receipts()[..] else { panic!("one receipt: {:?}", keyring.world.receipts()) };
    assert_eq!(fs::read(forged).unwrap(), b"{}", "nothing is overwritten");
    assert!(!signature_of(forged).exists());
}

#[test]
fn a_receipt_is_not_signed_once_somebody_wants_to_stop() {
    let keyring = Keyring::new(&SUITE.replace("\"true\"", "\"touch ../slow\""));
    let token = format!("96{}", std::process::id());
    let mut command = keyring.world.command(&["verify", "--key", text(&keyring.key("local"))]);
    keyring.slow_ssh_keygen(&mut command, &token);
    let run = Running::start(command, &keyring.world.folder);
    until("the wait for a touch", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGTERM);
    run.wait().expect(143).says("did not sign: cancelled");
    assert!(!signature_of(&keyring.world.receipts()[0]).exists());
    until("the end of what waited", || processes_with(&token).is_empty());

    let keyring = Keyring::new(&SUITE.replace("\"true\"", &format!("\"sleep {token}\"")));
    let run = keyring.world.start(&["verify", "--key", text(&keyring.key("local"))]);
    until("the task", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGTERM);
    run.wait().expect(143).says("the receipt of a cancelled run is not signed");
    assert!(!signature_of(&keyring.world.receipts()[0]).exists());
}

/// The key is taken away during the run: exit 0 would say that there is a signature.
#[test]
fn a_run_whose_receipt_cannot_be_signed_has_no_verdict() {
    let keyring = Keyring::new(&SUITE.replace("\"true\"", "\"rm ../key-local\""));
    keyring.world.run(&["verify", "--key", text(&keyring.key("local"))]).expect(7).says("cannot sign");
    keyring.refused(&[], &["signature-missing"]);

    // Or where it is signed by what is another key now: no signature is better than one that nobody accepts.
    let keyring = Keyring::new(&SUITE.replace("\"true\"", "\"cp ../key-stranger ../key-local\""));
    fs::remove_file(keyring.key("local").with_extension("pub")).unwrap();
    keyring.world.run(&["verify", "--key", text(&keyring.key("local"))]).expect(7).says("is not signed");
    keyring.refused(&[], &["signature-missing"]);
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
