//! `verify` from its start to its receipt, with real processes, ports and repositories.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::process::pool;
use crate::world::{Running, World, skipped, until};

/// A task that runs until the test makes `../go`, which is outside of the repository.
const UNTIL_GO: &str = "sh -c 'until test -e ../go; do sleep 0.02; done'";

pub fn suite(tasks: &str) -> String {
    format!("schema = 1\n[run]\ndeadline = \"5m\"\nqueue = \"2m\"\n{tasks}")
}

pub fn one(command: &str) -> String {
    suite(&format!("[task.one]\ncommand = {command:?}\ndeadline = \"2m\"\n"))
}

/// The predicate of a receipt.
fn predicate(path: &Path) -> Value {
    let receipt: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    receipt["predicate"].clone()
}

pub fn the_receipt(world: &World) -> Value {
    let receipts = world.receipts();
    assert_eq!(receipts.len(), 1, "{receipts:?}");
    predicate(&receipts[0])
}

pub fn task<'a>(predicate: &'a Value, name: &str) -> &'a Value {
    predicate["tasks"].as_array().unwrap().iter().find(|task| task["name"] == name).unwrap()
}

fn go(world: &World) {
    fs::write(world.folder.path().join("go"), "").unwrap();
}

fn ms(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
}

pub fn task_of(world: &World, name: &str) -> Value {
    task(&the_receipt(world), name).clone()
}

#[test]
fn a_run_that_passes_leaves_a_receipt_with_both_times() {
    let world = World::new(&one("true"));
    let head = world.git(&["rev-parse", "HEAD"]);
    world.run(&["verify"]).expect(0).says("PASSED");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "passed");
    assert_eq!(receipt["extent"], "whole");
    assert_eq!(receipt["caller"], "local");
    assert_eq!(receipt["tree"]["clean"], "yes");
    assert_eq!(receipt["tree"]["changed"], "no");
    assert_eq!(receipt["lock"]["workstation"], world.ports.first);
    let clocks = &receipt["clocks"];
    let between = |from: &str, to: &str| ms(&clocks[to]["monotonic_ms"]) - ms(&clocks[from]["monotonic_ms"]);
    assert_eq!(ms(&receipt["queue_ms"]), between("requested", "won"));
    assert_eq!(ms(&receipt["run_ms"]), between("won", "ended"));
    let whole: Value = serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap();
    assert_eq!(whole["subject"][0]["digest"]["gitCommit"], head.as_str());
    assert_eq!(world.git(&["status", "--porcelain", "--ignored=no"]), "", "the run left something in the tree");
}

#[test]
fn two_runs_of_one_folder_take_turns() {
    let world = World::new(&one(UNTIL_GO));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    let mut second = world.start(&["verify"]);
    second.wait_for("Waiting");
    go(&world);
    first.wait().expect(0);
    second.wait().expect(0);
    let [first, second] = [0, 1].map(|i| predicate(&world.receipts()[i]));
    let (first, second) = if ms(&first["clocks"]["won"]["boot_ms"]) < ms(&second["clocks"]["won"]["boot_ms"]) {
        (first, second)
    } else {
        (second, first)
    };
    assert!(ms(&second["clocks"]["won"]["boot_ms"]) >= ms(&first["clocks"]["ended"]["boot_ms"]));
    let waited = ms(&second["clocks"]["won"]["monotonic_ms"]) - ms(&second["clocks"]["requested"]["monotonic_ms"]);
    assert_eq!(ms(&second["queue_ms"]), waited, "the whole wait is queue time");
}

#[test]
fn two_repositories_take_turns_on_the_workstation() {
    let (one_world, other) = (World::new(&one(UNTIL_GO)), World::new(&one("true")));
    let mut first = one_world.start(&["verify"]);
    first.wait_for("Start");
    let mut command = other.command(&["verify"]);
    command.env("XTASK_LOCK_PORT", one_world.ports.first.to_string());
    let mut second = Running::start(command, &other.folder);
    second.wait_for("Waiting");
    go(&one_world);
    first.wait().expect(0);
    second.wait().expect(0);
    let (first, second) = (the_receipt(&one_world), the_receipt(&other));
    assert!(ms(&second["clocks"]["won"]["boot_ms"]) >= ms(&first["clocks"]["ended"]["boot_ms"]));
}

#[test]
fn a_spent_budget_is_exit_4_and_a_receipt_says_that_nothing_ran() {
    let world = World::new(&one(UNTIL_GO));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    world.run(&["verify", "--queue", "1s"]).expect(4).says("nothing was run");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "not-run");
    assert_eq!(receipt["lock"]["held"], false);
    assert_eq!(receipt["run_ms"], 0);
    assert!(ms(&receipt["queue_ms"]) >= 1000);
    assert_eq!(task(&receipt, "one")["verdict"], "not-run");
    go(&world);
    first.wait().expect(0);
}

#[test]
fn a_place_for_runs_that_is_not_there_is_said_to_be_missing() {
    let world = World::new(&one("true"));
    let mut command = world.command(&["verify"]);
    command.env("XTASK_SCRATCH", "/nonexist/foo");
    let done = Running::start(command, &world.folder).wait().expect(2);
    done.says("no scratch folder can be made: XTASK_SCRATCH: there is no folder /nonexist/foo");
}

#[test]
fn a_run_without_a_scratch_folder_leaves_a_receipt_that_says_so() {
    let world = World::new(&one(UNTIL_GO));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    let place = world.folder.path().join("t");
    fs::create_dir(&place).unwrap();
    let mut command = world.command(&["verify"]);
    command.env("XTASK_SCRATCH", &place);
    let mut second = Running::start(command, &world.folder);
    second.wait_for("Waiting");
    // It was there when this run began to wait.
    let base = place.join(format!("xtask-{}", nix::unistd::geteuid()));
    fs::remove_dir(&base).unwrap();
    fs::write(&base, "").unwrap();
    go(&world);
    first.wait().expect(0);
    second.wait().expect(7).says("error: no scratch folder can be made").says("(result: no-verdict)");
    let receipt = predicate(&world.receipts()[1]);
    assert_eq!(receipt["lock"]["held"], true);
    assert!(receipt["trouble"][0].as_str().unwrap().starts_with("no scratch folder can be made"), "{receipt}");
}

#[test]
fn ctrl_c_ends_a_wait_and_leaves_the_holder_alone() {
    let world = World::new(&one(UNTIL_GO));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    let mut second = world.start(&["verify"]);
    second.wait_for("Waiting");
    second.signal(Signal::SIGINT);
    second.wait().expect(130).says("CANCELLED  by SIGINT while waiting; nothing was run");
    assert_eq!(the_receipt(&world)["result"], "cancelled");
    world.run(&["verify", "--queue", "0s"]).expect(4);
    go(&world);
    first.wait().expect(0);
}

#[test]
fn a_task_past_its_deadline_is_late_and_the_limit_is_named() {
    let world = World::new(&suite("[task.one]\ncommand = \"sleep 60\"\ndeadline = \"1s\"\n"));
    world.run(&["verify"]).expect(3).says("LATE").says("ci/suite.toml:7");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "late");
    assert_eq!(task(&receipt, "one")["verdict"], "late");
    assert_eq!(task(&receipt, "one")["signals"][0], "SIGTERM");
}

#[test]
fn the_runs_deadline_cuts_tasks_that_are_each_inside_their_own() {
    if pool() == 1 {
        let test = "the_runs_deadline_cuts_tasks_that_are_each_inside_their_own";
        return skipped(test, "there is only one CPU, on which such a suite is refused");
    }
    let world = World::new(
        "schema = 1\n[run]\ndeadline = \"11s\"\nwrap-up = \"3s\"\nstop-grace = \"1s\"\n\
         [task.first]\ncommand = \"sleep 4\"\ndeadline = \"7s\"\nmutex = \"m\"\n\
         [task.second]\ncommand = \"sleep 60\"\ndeadline = \"7s\"\nmutex = \"m\"\nneeds = []\n",
    );
    world.run(&["verify"]).expect(3).says("ci/suite.toml:3");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "late");
    let late: Vec<&Value> = receipt["tasks"].as_array().unwrap().iter().filter(|t| t["verdict"] == "late").collect();
    assert_eq!(late.len(), 1, "{receipt}");
    assert_eq!(late[0]["why"], "the run's deadline cut it");
    assert!(ms(&receipt["run_ms"]) <= 11_000);
}

#[test]
fn a_task_that_fails_fails_the_run_and_what_needs_it_does_not_run() {
    let world = World::new(&suite(
        "[task.bad]\ncommand = \"sh -c 'echo what went wrong; exit 3'\"\ndeadline = \"1m\"\nfix = \"make it right\"\n\
         [task.after]\ncommand = \"true\"\ndeadline = \"1m\"\nneeds = [\"bad\"]\n\
         [task.beside]\ncommand = \"true\"\ndeadline = \"1m\"\n",
    ));
    world
        .run(&["verify"])
        .expect(1)
        .says("what went wrong")
        .says("exit code 3")
        .says("make it right")
        .says("--only bad");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "failed");
    assert_eq!(task(&receipt, "bad")["exit"]["code"], 3);
    assert_eq!(task(&receipt, "after")["verdict"], "not-run");
    assert_eq!(task(&receipt, "beside")["verdict"], "passed");
    let log = world.repo.join(task(&receipt, "bad")["log"].as_str().unwrap());
    assert_eq!(fs::read_to_string(log).unwrap(), "what went wrong\n");
}

#[test]
fn an_edited_tracked_file_takes_the_verdict_away() {
    let world = World::new(&one("sh -c 'echo more >> .gitignore'"));
    world.run(&["verify"]).expect(7).says(".gitignore");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "no-verdict");
    assert_eq!(receipt["tree"]["changed"], "yes");
}

#[test]
fn an_edit_that_is_taken_back_takes_the_verdict_away_too() {
    let world = World::new(&one("sh -c 'cp -p .gitignore ../kept && echo >> .gitignore && cp -p ../kept .gitignore'"));
    world.run(&["verify"]).expect(7).says(".gitignore");
}

#[test]
fn uncommitted_changes_pass_and_are_said() {
    let world = World::new(&one("true"));
    world.write("new.txt", "new");
    world.run(&["verify"]).expect(0).says("refused by a release");
    let receipt = the_receipt(&world);
    assert_eq!(receipt["tree"]["clean"], "no");
    assert_eq!(receipt["tree"]["uncommitted"][0], "new.txt");
}

#[test]
fn a_suite_that_changed_during_the_wait_is_not_run() {
    let world = World::new(&one("sh -c 'echo >>../ran; until test -e ../go; do sleep 0.02; done'"));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    let mut second = world.start(&["verify"]);
    second.wait_for("Waiting");
    world.write("ci/suite.toml", &one("false"));
    go(&world);
    first.wait().expect(7).says("ci/suite.toml");
    second.wait().expect(7).says("changed while this run waited");
    assert_eq!(fs::read_to_string(world.folder.path().join("ran")).unwrap(), "\n", "the task ran twice");
    assert_eq!(task(&predicate(&world.receipts()[1]), "one")["verdict"], "not-run");
}

/// A command that works in the folder alone holds nothing of what a run measures, but it may change the tree.
#[test]
fn a_run_waits_for_its_folder_before_the_machine() {
    let world = World::new(&one("true"));
    let wait = "touch ../started; until test -e ../go; do sleep 0.02; done";
    let other = world.start(&["lock", "run", "--scope", "worktree", "--", "sh", "-c", wait]);
    until("the command", || world.folder.path().join("started").exists());
    let mut run = world.start(&["verify"]);
    run.wait_for("Waiting");
    go(&world);
    other.wait().expect(0);
    run.wait().expect(0).says("worktree lock");
}

/// What dead runs of a user have left is ended; a command that holds another folder meanwhile is none of it.
#[test]
fn a_run_leaves_those_alone_that_live() {
    let (world, other) = (World::new(&one("true")), World::new(""));
    let wait = "touch ../started; until test -e ../go; do sleep 0.02; done";
    let mut command = other.command(&["lock", "run", "--scope", "worktree", "--", "sh", "-c", wait]);
    command.env("XTASK_SCRATCH", world.scratch());
    let command = Running::start(command, &other.folder);
    until("the command", || other.folder.path().join("started").exists());
    let run = world.run(&["verify"]).expect(0);
    assert!(!run.err.contains("had left"), "{}", run.err);
    go(&other);
    command.wait().expect(0);
}

#[test]
fn a_subfolder_and_a_path_with_spaces_make_no_difference() {
    let world = World::at("a path/with spaces", &one("test -f ci/suite.toml"));
    fs::create_dir_all(world.repo.join("sub/folder")).unwrap();
    let mut command = world.command(&["verify"]);
    command.current_dir(world.repo.join("sub/folder"));
    Running::start(command, &world.folder).wait().expect(0);
    assert_eq!(the_receipt(&world)["result"], "passed");
}

#[test]
fn a_run_inside_a_run_is_refused() {
    let xtask = env!("CARGO_BIN_EXE_xtask");
    let world = World::new(&one(&format!("{xtask} verify --queue 1m")));
    let done = world.run(&["verify"]).expect(1);
    // Two of the same second, in an order that says nothing.
    let receipts = world.receipts().iter().map(|path| predicate(path)).collect::<Vec<_>>();
    let receipt = receipts.iter().find(|receipt| receipt["result"] == "failed").unwrap();
    assert_eq!(task(receipt, "one")["exit"]["code"], 2, "{}", done.err);
    done.says("is a part of run");
}

#[test]
fn a_run_inside_a_run_on_ports_of_its_own_is_another_run() {
    let inner = World::new(&one("true"));
    let xtask = env!("CARGO_BIN_EXE_xtask");
    let (port, folder) = (inner.ports.first, inner.repo.display());
    let command = format!(
        "env XTASK_LOCK_PORT={port} XTASK_WORKTREE_PORTS={0}-{0} sh -c 'cd {folder} && exec {xtask} verify'",
        port + 1
    );
    let world = World::new(&one(&command));
    world.run(&["verify"]).expect(0);
    assert_eq!(the_receipt(&inner)["result"], "passed");
}

#[test]
fn a_run_nobody_reads_goes_on_to_its_receipt() {
    let world = World::new(&one("true"));
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" verify 2>&1 | head -n 1 >/dev/null", env!("CARGO_BIN_EXE_xtask")]);
    world.dress(&mut command);
    Running::start(command, &world.folder).wait().expect(0);
    until("the receipt", || !world.receipts().is_empty());
    assert_eq!(the_receipt(&world)["result"], "passed");
}

#[test]
fn only_some_tasks_make_a_partial_receipt() {
    let world = World::new(&suite(
        "[task.a]\ncommand = \"true\"\ndeadline = \"1m\"\n[task.b]\ncommand = \"true\"\ndeadline = \"1m\"\nneeds = [\"a\"]\n\
         [task.c]\ncommand = \"false\"\ndeadline = \"1m\"\n[profile.quick]\nskip = [\"c\"]\n",
    ));
    world.run(&["verify", "--only", "b"]).expect(0);
    let receipt = the_receipt(&world);
    assert_eq!(receipt["extent"], "partial");
    let names: Vec<&str> = receipt["tasks"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    world.run(&["verify", "--profile", "quick"]).expect(0);
    world.run(&["verify", "--only", "d"]).expect(2).says("--only d: the suite has no such task");
    world.run(&["verify", "--profile", "quik"]).expect(2).says("quick");
    assert_eq!(world.receipts().len(), 2);
}

#[test]
fn a_receipt_that_cannot_be_written_is_exit_7() {
    let world = World::new(&one("touch receipts"));
    world.write(".gitignore", "/target\n/receipts\n");
    world.commit("also a file of that name is ignored");
    world.run(&["verify", "--junit", "target/run.xml"]).expect(7).says("receipt");
    let junit = fs::read_to_string(world.repo.join("target/run.xml")).unwrap();
    assert!(junit.contains(r#"name="result" value="no-verdict""#), "{junit}");
}

#[test]
fn a_short_outer_limit_is_refused_before_anything_queues() {
    let world = World::new(&one("true"));
    world.run(&["verify", "--outer", "8m"]).expect(2).says("set the job's limit to 9 minutes");
    let mut command = world.command(&["verify"]);
    command.env("CI_JOB_TIMEOUT", "480");
    Running::start(command, &world.folder).wait().expect(2).says("CI_JOB_TIMEOUT");
    assert!(world.receipts().is_empty());
    world.run(&["verify", "--outer", "9m"]).expect(0);
}

#[test]
fn the_inner_process_is_not_for_people() {
    let world = World::new(&one("true"));
    world.run(&["internal-runner", "0"]).expect(2).says("cargo xtask verify");
    world.run(&["internal-runner", "77"]).expect(2).says("cargo xtask verify");
}

#[test]
fn stdin_is_empty_and_nothing_else_is_open() {
    let world = World::new(&one("sh -c 'test -z \"$(cat)\" && ls /proc/self/fd | sort -n | tr \"\\n\" \" \"'"));
    world.run(&["verify"]).expect(0);
    let receipt = the_receipt(&world);
    let log = fs::read_to_string(world.repo.join(task(&receipt, "one")["log"].as_str().unwrap())).unwrap();
    assert_eq!(log, "0 1 2 3 ", "3 is the folder that ls reads");
}

#[test]
fn trouble_of_the_runner_after_the_lock_is_exit_7_with_a_receipt() {
    let world = World::new(&one("true"));
    world.write("target/xtask-runs", "in the way");
    world.run(&["verify"]).expect(7).says("target/xtask-runs");
    assert_eq!(the_receipt(&world)["result"], "no-verdict");
}

#[test]
fn a_suite_file_that_is_no_file_is_refused_at_once() {
    let world = World::new(&one("true"));
    let path = world.folder.path().join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    world.run(&["verify", "--suite", path.to_str().unwrap()]).expect(2).says("not a regular file");
    world.run(&["verify", "--suite", "/dev/zero"]).expect(2).says("cannot be read");
    world.run(&["verify", "--suite", "nowhere.toml"]).expect(2).says("nowhere.toml");
}

#[test]
fn a_run_that_was_given_one_try_and_won_has_a_receipt_that_counts() {
    let world = World::new(&one("true"));
    world.run(&["verify", "--queue", "0s"]).expect(0);
    world.run(&["check-receipt", "--unsigned"]).expect(0);
}
