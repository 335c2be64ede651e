//! `verify` from its start to its receipt, with real processes, ports and repositories.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{Running, World, processes_with, until};

/// A task that runs until the test makes `../go`, which is outside of the repository.
const UNTIL_GO: &str = "sh -c 'until test -e ../go; do sleep 0.02; done'";

fn suite(tasks: &str) -> String {
    format!("schema = 1\n[run]\ndeadline = \"5m\"\nqueue = \"2m\"\n{tasks}")
}

fn one(command: &str) -> String {
    suite(&format!("[task.one]\ncommand = {command:?}\ndeadline = \"2m\"\n"))
}

/// The predicate of a receipt.
fn predicate(path: &Path) -> Value {
    let receipt: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    receipt["predicate"].clone()
}

fn the_receipt(world: &World) -> Value {
    let receipts = world.receipts();
    assert_eq!(receipts.len(), 1, "{receipts:?}");
    predicate(&receipts[0])
}

fn task<'a>(predicate: &'a Value, name: &str) -> &'a Value {
    predicate["tasks"].as_array().unwrap().iter().find(|task| task["name"] == name).unwrap()
}

fn go(world: &World) {
    fs::write(world.folder.path().join("go"), "").unwrap();
}

fn ms(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no whole number"))
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
    second.wait().expect(130);
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
    let world = World::new(&one(UNTIL_GO));
    let mut first = world.start(&["verify"]);
    first.wait_for("Start");
    let mut second = world.start(&["verify"]);
    second.wait_for("Waiting");
    world.write("ci/suite.toml", &one("false"));
    go(&world);
    first.wait().expect(7).says("ci/suite.toml");
    second.wait().expect(7).says("changed while this run waited");
}

#[test]
fn outputs_are_made_anew_and_hashed() {
    let outputs = "deadline = \"1m\"\noutputs = [\"out/app\"]\n";
    let made = format!("[task.make]\ncommand = \"sh -c 'mkdir -p out && echo app > out/app'\"\n{outputs}");
    let world = World::new(&suite(&made));
    world.write(".gitignore", "/target\n/receipts/\n/out/\n");
    world.commit("ignore");
    world.run(&["verify"]).expect(0);
    let receipt: Value = serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap();
    let subject = receipt["subject"].as_array().unwrap().iter().find(|s| s["name"] == "out/app").unwrap();
    // sha256sum of "app\n"
    assert_eq!(subject["digest"]["sha256"], "8a8f60ecb09b7e64c6d5214a8043865e608507db8c3f61f995eae6d078875901");
}

#[test]
fn an_output_of_an_earlier_build_does_not_pass_for_this_ones() {
    let world = World::new(&suite("[task.make]\ncommand = \"true\"\ndeadline = \"1m\"\noutputs = [\"out/app\"]\n"));
    world.write(".gitignore", "/target\n/receipts/\n/out/\n");
    world.commit("ignore");
    world.write("out/app", "old");
    world.run(&["verify"]).expect(1).says("out/app");
    assert!(!world.repo.join("out/app").exists());
}

#[test]
fn an_output_that_is_a_link_is_none() {
    let task = "[task.make]\ncommand = \"ln -s /etc/hostname out\"\ndeadline = \"1m\"\noutputs = [\"out\"]\n";
    let world = World::new(&suite(task));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    world.run(&["verify"]).expect(1).says("not a regular file");
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
fn each_request_to_stop_has_its_own_exit_code_and_a_receipt() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let world = World::new(&one("sleep 300.125"));
        // Where these tests run under nohup, the program would inherit that HUP is ignored, and keep it so.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_xtask"), "verify"]);
        world.dress(&mut command);
        let mut run = Running::start(command, &world.folder);
        run.wait_for("Start");
        run.signal(signal);
        run.wait().expect(code).says("CANCELLED");
        let receipt = the_receipt(&world);
        assert_eq!(receipt["result"], "cancelled");
        assert_eq!(task(&receipt, "one")["verdict"], "cancelled");
        assert_eq!(receipt["tree"]["changed"], "unknown");
    }
}

#[test]
fn asked_twice_it_kills_at_once() {
    let world = World::new(
        "schema = 1\n[run]\ndeadline = \"10m\"\nstop-grace = \"2m\"\nwrap-up = \"3m\"\n\
         [task.one]\ncommand = [\"sh\", \"-c\", \"trap '' INT TERM; echo ready; while :; do sleep 1; done\"]\ndeadline = \"5m\"\n",
    );
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    until("the task to be deaf", || {
        let logs = world.repo.join("target/xtask-runs");
        let folders = fs::read_dir(logs).into_iter().flatten().flatten();
        folders.into_iter().any(|f| fs::read_to_string(f.path().join("one.log")).is_ok_and(|log| log.contains("ready")))
    });
    run.signal(Signal::SIGINT);
    run.wait_for("CANCELLED");
    run.signal(Signal::SIGINT);
    run.wait().expect(130);
    assert_eq!(task(&the_receipt(&world), "one")["signals"], serde_json::json!(["SIGINT", "SIGKILL"]));
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
    let world = World::new(&one("true"));
    fs::write(world.repo.join("receipts"), "in the way").unwrap();
    world.run(&["verify"]).expect(7).says("receipt");
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
fn a_killed_runner_is_said_and_what_it_ran_is_ended() {
    let token = format!("300.{}", std::process::id());
    let world = World::new(&one(&format!("sleep {token}")));
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    let runner = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    let runner = nix::unistd::Pid::from_raw(runner.trim().parse().unwrap());
    nix::sys::signal::kill(runner, Signal::SIGKILL).unwrap();
    run.wait().expect(7).says("the runner is gone before");
    assert_eq!(processes_with(&token), Vec::<i32>::new());
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "no-verdict");
    assert_eq!(task(&receipt, "one")["why"], "nobody is left to say how it ended");
}

#[test]
fn an_output_that_git_tracks_or_that_lies_outside_is_refused_before_it_is_removed() {
    let task = "[task.make]\ncommand = \"false\"\ndeadline = \"1m\"\noutputs = [\"kept.txt\", \"link/file\"]\n";
    let world = World::new(&suite(task));
    let outside = world.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "theirs").unwrap();
    std::os::unix::fs::symlink(&outside, world.repo.join("link")).unwrap();
    world.write("kept.txt", "mine");
    world.commit("a tracked file and a link");
    world.write("kept.txt", "mine, not committed yet");
    world.run(&["verify"]).expect(2).says("kept.txt is tracked by git").says("link/file lies outside");
    assert_eq!(fs::read_to_string(world.repo.join("kept.txt")).unwrap(), "mine, not committed yet");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs");
}

#[test]
fn a_link_that_a_task_makes_leads_no_output_outside() {
    let world = World::new(&suite(
        "[task.link]\ncommand = \"ln -s ../outside out\"\ndeadline = \"1m\"\n\
         [task.make]\ncommand = \"false\"\ndeadline = \"1m\"\noutputs = [\"out/file\"]\nneeds = [\"link\"]\n",
    ));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    let outside = world.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "theirs").unwrap();
    world.run(&["verify"]).expect(1).says("lies outside");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs");
}

#[test]
fn an_output_too_large_to_read_in_time_fails_its_task_and_does_not_hold_up_the_run() {
    let task = "[task.make]\ncommand = \"truncate -s 4T out\"\ndeadline = \"2s\"\noutputs = [\"out\"]\n";
    let world = World::new(&suite(task));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    world.run(&["verify"]).expect(1).says("its outputs were not read to the end: passed its deadline");
    assert_eq!(task_of(&world, "make")["verdict"], "failed");
}

#[test]
fn ctrl_c_ends_the_reading_of_outputs() {
    let task = "[task.make]\ncommand = \"truncate -s 4T out\"\ndeadline = \"4m\"\noutputs = [\"out\"]\n";
    let world = World::new(&suite(task));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    until("the output", || world.repo.join("out").exists());
    run.signal(Signal::SIGINT);
    run.wait().expect(130);
}

fn task_of(world: &World, name: &str) -> Value {
    task(&the_receipt(world), name).clone()
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
fn a_runner_that_hangs_is_ended_by_the_keeper() {
    let world = World::new(
        "schema = 1\n[run]\ndeadline = \"4s\"\nstop-grace = \"100ms\"\nwrap-up = \"2100ms\"\n\
         [task.one]\ncommand = [\"sh\", \"-c\", \"kill -STOP $PPID; sleep 300\"]\ndeadline = \"1s\"\n",
    );
    world.run(&["verify"]).expect(7).says("the runner had not ended");
    assert_eq!(the_receipt(&world)["result"], "no-verdict");
}

#[test]
fn asked_twice_the_keeper_ends_a_runner_that_hangs() {
    let world = World::new(&one("sleep 300"));
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    let runner = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner.trim().parse().unwrap()), Signal::SIGSTOP).unwrap();
    run.signal(Signal::SIGINT);
    // Two signals at once could be taken for one; each is answered by the next thing that the keeper does.
    until("the first signal to be taken", || !pending(run.pid(), 2));
    run.signal(Signal::SIGTERM);
    run.wait().expect(130).says("the runner had not ended");
    assert_eq!(the_receipt(&world)["result"], "cancelled");
}

/// Whether this signal waits to be delivered to the process.
fn pending(pid: i32, signal: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("ShdPnd:")).unwrap();
    let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    mask & (1 << (signal - 1)) != 0
}

#[test]
fn the_keepers_death_frees_the_port_only_after_the_runner() {
    let world = World::new(&one("sleep 300"));
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    let pid = |pid: i32| nix::unistd::Pid::from_raw(pid);
    let runner = fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.pid())).unwrap();
    let runner: i32 = runner.trim().parse().unwrap();
    nix::sys::signal::kill(pid(runner), Signal::SIGSTOP).unwrap();
    run.signal(Signal::SIGKILL);
    run.wait().expect(1009);
    // The runner cannot have let go of anything: it is stopped.
    world.run(&["verify", "--queue", "0s"]).expect(4);
    nix::sys::signal::kill(pid(runner), Signal::SIGCONT).unwrap();
    until("the runner's end", || !Path::new(&format!("/proc/{runner}")).exists());
    world.write("ci/suite.toml", &one("true"));
    world.run(&["verify"]).expect(0);
}

#[test]
fn ctrl_c_at_the_terminal_reaches_tasks_once_and_through_the_keeper() {
    let command =
        "sh -c 'trap \"sleep 1; touch ../cleaned; exit 0\" INT TERM; touch ../armed; while :; do sleep 0.1; done'";
    let world = World::new(&one(command));
    // A group of its own, as a shell gives to what it runs in the foreground: Ctrl-C goes to the whole group.
    let mut program = world.command(&["verify"]);
    program.process_group(0);
    let mut run = Running::start(program, &world.folder);
    run.wait_for("Start");
    until("the trap", || world.folder.path().join("armed").exists());
    nix::sys::signal::killpg(nix::unistd::Pid::from_raw(run.pid()), Signal::SIGINT).unwrap();
    run.wait().expect(130);
    assert!(world.folder.path().join("cleaned").exists(), "a second signal cut the grace short");
    assert_eq!(task_of(&world, "one")["signals"], serde_json::json!(["SIGINT"]));
}

#[test]
fn a_run_that_was_given_one_try_and_won_has_a_receipt_that_counts() {
    let world = World::new(&one("true"));
    world.run(&["verify", "--queue", "0s"]).expect(0);
    world.run(&["check-receipt", "--unsigned"]).expect(0);
}

#[test]
fn every_member_of_a_tasks_group_is_asked_to_end() {
    // The leader ends only once the member has cleaned up; asked alone, it would be killed after the grace.
    let member = "(trap \"touch ../cleaned; exit 0\" TERM; touch ../armed; while :; do sleep 0.1; done)";
    let leader = "trap \"until test -e ../cleaned; do sleep 0.1; done; exit 0\" TERM";
    let command = format!("{leader}; {member} & while :; do sleep 0.1; done");
    let world = World::new(&format!(
        "schema = 1\n[run]\ndeadline = \"5m\"\nstop-grace = \"20s\"\nwrap-up = \"30s\"\n\
         [task.one]\ncommand = [\"sh\", \"-c\", {command:?}]\ndeadline = \"3s\"\n"
    ));
    world.run(&["verify"]).expect(3);
    assert!(world.folder.path().join("armed").exists(), "the task did not come so far in its time");
    assert!(world.folder.path().join("cleaned").exists(), "only the leader was asked");
    assert_eq!(task_of(&world, "one")["signals"], serde_json::json!(["SIGTERM"]));
}
