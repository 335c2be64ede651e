//! The gate on what runs leave: of another commit, an unclean tree, a part of the suite; and which receipts are signed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use crate::keyring::{Keyring, SUITE, signature_of};
use crate::process::token_seconds;
use crate::receipt::text;
use crate::world::{Running, World, processes_with, until};

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

/// A task that writes a receipt in the place of that of its own run, which then fails.
#[test]
fn what_a_task_writes_in_place_of_the_receipt_is_not_signed() {
    let forge = "for run in target/xtask-runs/r-*; do cp ../good receipts/${run##*/}.json; done; exit 1";
    let keyring = Keyring::new(&SUITE.replace("\"true\"", &format!("[\"sh\", \"-c\", {forge:?}]")));
    fs::write(keyring.world.folder.path().join("good"), "{}").unwrap();
    fs::create_dir(keyring.world.repo.join("receipts")).unwrap();
    let done = keyring.world.run(&["verify", "--key", text(&keyring.key("local"))]).expect(7);
    assert!(!done.err.contains("signed by"), "{}", done.err);
    let done = done.says("there is no receipt of this run that could be signed");
    assert_eq!(done.err.matches("exit code 7").count(), 1, "{}", done.err);
    let [forged] = &keyring.world.receipts()[..] else { panic!("one receipt: {:?}", keyring.world.receipts()) };
    assert_eq!(fs::read(forged).unwrap(), b"{}", "nothing is overwritten");
    assert!(!signature_of(forged).exists());
}

#[test]
fn a_receipt_is_not_signed_once_somebody_wants_to_stop() {
    let keyring = Keyring::new(&SUITE.replace("\"true\"", "\"touch ../slow\""));
    let token = token_seconds();
    let mut command = keyring.world.command(&["verify", "--key", text(&keyring.key("local"))]);
    keyring.slow_ssh_keygen(&mut command, &token);
    let run = Running::start(command, &keyring.world.folder);
    until("the wait for a touch", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGTERM);
    run.wait().expect(143).says("did not sign: cancelled");
    assert!(!signature_of(&keyring.world.receipts()[0]).exists());
    until("the end of what waited", || processes_with(&token).is_empty());

    let keyring = Keyring::new(&SUITE.replace("\"true\"", &format!("\"sleep 300 {token}\"")));
    let run = keyring.world.start(&["verify", "--key", text(&keyring.key("local"))]);
    until("the task", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGTERM);
    run.wait().expect(143).says("the receipt of a cancelled run is not signed");
    assert!(!signature_of(&keyring.world.receipts()[0]).exists());
}

#[test]
fn whoever_lacks_only_a_signature_is_not_sent_to_commit() {
    let keyring = Keyring::new(SUITE);
    keyring.world.run(&["verify"]).expect(0);
    let again =
        "to get one that passes: cargo xtask verify --key PATH, the key of somebody in ci/allowed_signers at HEAD";
    keyring.world.run(&["check-receipt"]).expect(6).says(again);
    keyring.world.write("draft", "");
    keyring.world.commit("without signers");
    keyring.world.run(&["check-receipt"]).expect(6).says("to get one that passes: commit what is to be verified");
}

/// The check of what was signed is as deaf or as slow as anything else that is started.
#[test]
fn a_receipt_whose_signature_is_still_being_checked_is_not_signed_once_somebody_wants_to_stop() {
    let keyring = Keyring::new(&SUITE.replace("\"true\"", "\"touch ../slow\""));
    let token = token_seconds();
    let slow = keyring.world.folder.path().join("slow");
    let mut command = keyring.world.command(&["verify", "--key", text(&keyring.key("local"))]);
    let script = format!("case \"$*\" in *'-Y verify'*) test -e {} && sleep 300 {token};; esac", slow.display());
    keyring.before_ssh_keygen(&mut command, &script);
    let run = Running::start(command, &keyring.world.folder);
    until("the check", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGINT);
    run.wait().expect(130).says("ssh-keygen did not check the signature: cancelled");
    assert!(!signature_of(&keyring.world.receipts()[0]).exists());
    until("the end of what waited", || processes_with(&token).is_empty());
}

/// The files that ssh-keygen reads lie where the next start looks for what the dead have left, and it ends with who asked it.
#[test]
fn a_check_that_is_killed_leaves_nothing() {
    let keyring = Keyring::new(SUITE);
    keyring.verify("local");
    let token = token_seconds();
    let temp = keyring.world.folder.path().join("temp");
    fs::create_dir(&temp).unwrap();
    let mut command = keyring.world.command(&["check-receipt"]);
    // As in a shell's background job.
    keyring.before_ssh_keygen(&mut command, &format!("trap '' QUIT; exec sleep 300 {token}"));
    command.env("TMPDIR", &temp);
    let run = Running::start(command, &keyring.world.folder);
    until("ssh-keygen", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGKILL);
    run.wait();
    until("the end of ssh-keygen", || processes_with(&token).is_empty());
    keyring.verify("local");
    let base = keyring.world.scratch().join(format!("xtask-{}", nix::unistd::geteuid()));
    for folder in [temp, base] {
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{}", folder.display());
    }
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

#[test]
fn a_receipt_has_the_versions_of_the_programs_that_were_called_and_nothing_waits_for_those_that_do_not_answer() {
    // Each is task and program; a task ends only once all have been asked.
    let fake = |answer: &str| {
        format!(
            "#!/bin/sh\n[ \"$1\" = go ] || {{\n{answer}\nexit; }}\n\
             until [ -e \"$OUT/go\" ] && [ -e \"$OUT/make\" ] && [ -e \"$OUT/npm\" ]; do sleep 0.05; done\n"
        )
    };
    let table = |name: &str| format!("[task.{name}]\ncommand = \"{name} go\"\ndeadline = \"1m\"\n");
    let world = World::new(&format!(
        "schema = 1\n[run]\ndeadline = \"6m\"\nqueue = \"1m\"\n{}",
        ["go", "make", "npm"].map(table).concat()
    ));
    let token = format!("1000{}", token_seconds().trim_start_matches('0'));
    let (out, bin) = (world.folder.path().join("out"), world.folder.path().join("bin"));
    let answers = [
        ("go", "echo go version go1.99; echo and more; : >\"$OUT/go\"".to_owned()),
        ("make", format!(": >\"$OUT/make\"; exec sleep {token}")),
        ("npm", format!("echo 10.9.9; : >\"$OUT/npm\"; sleep {token} &")),
        ("node", "exit 3".to_owned()),
    ];
    [&out, &bin].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    for (name, answer) in answers {
        fs::write(bin.join(name), fake(&answer)).unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = world.command(&["verify"]);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", bin.display())).env("OUT", &out);
    Running::start(command, &world.folder).wait().expect(0);
    let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap();
    assert_eq!(receipt["predicate"]["toolchain"], serde_json::json!({"go": "go version go1.99", "npm": "10.9.9"}));
    assert_eq!(processes_with(&token), Vec::<i32>::new());
}
