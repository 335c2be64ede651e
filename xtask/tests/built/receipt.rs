//! The gate: a good signed receipt is accepted; changed in one place and signed again by a good key it is refused by the
//! rule for that place. The receipts are those that verify wrote, the signatures are ssh-keygen's, and what counts is the
//! exit code of the built program.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nix::sys::stat::Mode;
use xtask::name::{Caller, Name, RunId};
use xtask::receipt::rules::RULES;
use xtask::receipt::statement::*;
use xtask::verdict::{ExitStatus, Word};

use crate::keyring::{Keyring, RECEIPTS, SUITE, read, signature_of};
use crate::world::World;

pub const HOUR_MS: u64 = 3_600_000;

pub fn text(path: &Path) -> &str {
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
