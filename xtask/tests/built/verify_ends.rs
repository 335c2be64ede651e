//! How a run ends before its time: somebody asks it to, or one of its two processes hangs or is killed.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::interposed::compiled;
use crate::process::field::runner_of;
use crate::process::token_seconds;
use crate::verify::{one, task, task_of, the_receipt};
use crate::world::{Done, Running, World, processes_with, script, skipped, until};

#[test]
fn each_request_to_stop_has_its_own_exit_code_and_a_receipt() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let world = World::new(&one("sleep 300.125"));
        let run = verify_that_hears_hup(&world);
        run.signal(signal);
        run.wait().expect(code).says("CANCELLED");
        let receipt = the_receipt(&world);
        assert_eq!(receipt["result"], "cancelled");
        assert_eq!(task(&receipt, "one")["verdict"], "cancelled");
        assert_eq!(receipt["tree"]["changed"], "unknown");
    }
}

/// Where these tests run under nohup, the program would inherit that HUP is ignored, and keep it so. The task has started.
fn verify_that_hears_hup(world: &World) -> Running {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_xtask"), "verify"]);
    world.dress(&mut command);
    let mut run = Running::start(command, &world.folder);
    run.wait_for("Start");
    run
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
fn a_killed_runner_is_said_and_what_it_ran_is_ended() {
    let token = token_seconds();
    let world = World::new(&one(&format!("sleep 300 {token}")));
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    let runner = nix::unistd::Pid::from_raw(runner_of(run.pid()).unwrap());
    nix::sys::signal::kill(runner, Signal::SIGKILL).unwrap();
    run.wait().expect(7).says("the runner is gone before");
    assert_eq!(processes_with(&token), Vec::<i32>::new());
    let receipt = the_receipt(&world);
    assert_eq!(receipt["result"], "no-verdict");
    assert_eq!(task(&receipt, "one")["why"], "nobody is left to say how it ended");
}

#[test]
fn a_runner_that_hangs_is_ended_by_the_keeper() {
    let world = World::new(
        "schema = 1\n[run]\ndeadline = \"8s\"\nstop-grace = \"100ms\"\nwrap-up = \"2100ms\"\n\
         [task.one]\ncommand = [\"sh\", \"-c\", \"kill -STOP $PPID; sleep 300\"]\ndeadline = \"1s\"\n",
    );
    world.run(&["verify"]).expect(7).says("the runner had not ended");
    assert_eq!(the_receipt(&world)["result"], "no-verdict");
}

#[test]
fn asked_twice_the_keeper_ends_a_runner_that_hangs() {
    let world = World::new(&one("sleep 300"));
    let mut run = verify_that_hears_hup(&world);
    let runner = nix::unistd::Pid::from_raw(runner_of(run.pid()).unwrap());
    nix::sys::signal::kill(runner, Signal::SIGSTOP).unwrap();
    run.signal(Signal::SIGTERM);
    // The first counts, and of those that are seen at once TERM comes before HUP. INT takes another way into the program,
    // on which it can be overtaken.
    until("the first signal to be taken", || !pending(run.pid(), 15));
    run.signal(Signal::SIGHUP);
    // Not only at the run's deadline.
    until("the keeper to give the runner up", || run.has_ended());
    run.wait().expect(143).says("the runner had not ended");
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
    let runner = runner_of(run.pid()).unwrap();
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
fn every_member_of_a_tasks_group_is_asked_to_end() {
    // The leader ends only once the member has: asked alone, it would be killed after the grace. What it waits for is its
    // end, for a member that is still there when the leader ends is killed.
    let member = "(trap \"touch ../cleaned; exit 0\" TERM; touch ../armed; while :; do sleep 0.1; done)";
    let leader = "trap \"wait $member; exit 0\" TERM";
    let command = format!("{leader}; {member} & member=$!; while :; do sleep 0.1; done");
    let world = World::new(&format!(
        "schema = 1\n[run]\ndeadline = \"5m\"\nstop-grace = \"20s\"\nwrap-up = \"30s\"\n\
         [task.one]\ncommand = [\"sh\", \"-c\", {command:?}]\ndeadline = \"6s\"\n"
    ));
    world.run(&["verify"]).expect(3);
    assert!(world.folder.path().join("armed").exists(), "the task did not come so far in its time");
    assert!(world.folder.path().join("cleaned").exists(), "only the leader was asked");
    assert_eq!(task_of(&world, "one")["signals"], serde_json::json!(["SIGTERM"]));
}

#[test]
fn what_git_starts_while_the_tree_is_read_ends_with_the_run() {
    for group in [false, true] {
        let world = World::new(&one("true"));
        let token = token_seconds();
        world.write(".gitattributes", "*.slow filter=slow\n");
        world.commit("a filter");
        // It leaves the process group of its git, which is all that a call of git ends by itself.
        let filter = format!("setsid sleep 300 {token} >/dev/null 2>&1 & touch ../armed; sleep 301 {token}");
        world.git(&["config", "filter.slow.clean", &filter]);
        world.write("a.slow", "not committed");
        let mut command = world.command(&["verify"]);
        command.process_group(0);
        let mut run = Running::start(command, &world.folder);
        until("the filter", || world.folder.path().join("armed").exists() && processes_with(&token).len() > 2);
        let runner = runner_of(run.pid()).expect("a runner");
        let keeper = nix::unistd::Pid::from_raw(run.pid());
        let killed = if group { nix::sys::signal::killpg } else { nix::sys::signal::kill };
        killed(keeper, Signal::SIGKILL).unwrap();
        run.child.wait().unwrap();
        until("the runner's end", || !Path::new(&format!("/proc/{runner}")).exists());
        assert_eq!(processes_with(&token), Vec::<i32>::new());
    }
}

#[test]
fn what_git_leaves_behind_is_ended_and_no_tasks_fault() {
    let world = World::new(&one("true"));
    let token = token_seconds();
    world.write(".gitattributes", "*.slow filter=slow\n");
    world.commit("a filter");
    world.write("a.slow", "not committed");
    // It makes files in the folder of the run for as long as it lives.
    let fill = format!("cd ../s/*/r-* && : {token} && while :; do : >$((n+=1)); done");
    let fill = format!("setsid sh -c '{fill}' >/dev/null 2>&1 & cat");
    world.git(&["config", "filter.slow.clean", &fill]);
    world.run(&["verify"]).expect(0);
    assert_eq!(processes_with(&token), Vec::<i32>::new());
}

#[test]
fn a_program_that_does_not_say_its_version_in_time_takes_no_verdict_away() {
    let world = World::new(&one("node"));
    let token = token_seconds();
    let bin = world.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin.join("node"), &format!("#!/bin/sh\ncase $1 in --version) sleep 300 {token};; esac\n"));
    let mut command = world.command(&["verify"]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    Running::start(command, &world.folder).wait().expect(0);
    assert_eq!(processes_with(&token), Vec::<i32>::new());
}

/// The second process of a run could not be told of it, and nobody should queue to hear that.
#[test]
fn a_path_that_is_not_utf_8_is_refused_at_once() {
    let mut world = World::new(&one("true"));
    let place = world.folder.path().join(OsStr::from_bytes(b"re\xffpo"));
    fs::rename(&world.repo, &place).unwrap();
    world.repo = place;
    let refused = |world: &World, words: &[&str], code| {
        let done = world.run(words).expect(code).says("is not UTF-8");
        assert!(!done.err.contains("Acquired") && world.receipts().is_empty(), "{}", done.err);
    };
    refused(&world, &["verify"], 2);
    refused(&world, &["lock", "run", "--", "true"], 122);
    // A work tree with a good path, whose repository has none.
    world.git(&["worktree", "add", "--quiet", "../plain"]);
    world.repo = world.folder.path().join("plain");
    refused(&world, &["verify"], 2);
    world.run(&["lock", "run", "--", "true"]).expect(0);
}

#[test]
fn the_junit_file_may_have_any_name() {
    let world = World::new(&one("true"));
    let place = world.folder.path().join(OsStr::from_bytes(b"re\xffsult.xml"));
    let mut command = world.command(&["verify", "--junit"]);
    command.arg(&place);
    Running::start(command, &world.folder).wait().expect(0);
    assert!(fs::read_to_string(&place).unwrap().starts_with("<?xml"));
}

/// The place is everybody's: who made the folder first could change what lies in it, or have it be elsewhere.
#[test]
fn a_scratch_folder_that_is_not_ours_is_not_used() {
    let world = World::new(&one("true"));
    let base = world.scratch().join(format!("xtask-{}", nix::unistd::geteuid()));
    let refused = || {
        let done = world.run(&["verify"]).expect(2).says("it belongs to another user, or is no folder");
        assert!(!done.err.contains("Acquired"), "{}", done.err);
    };
    let elsewhere = world.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &base).unwrap();
    refused();
    fs::remove_file(&base).unwrap();
    if !nix::unistd::geteuid().is_root() {
        return skipped("a_scratch_folder_that_is_not_ours_is_not_used", "it takes root to be somebody else");
    }
    fs::create_dir(&base).unwrap();
    chown(&base, Some(54_321), None).unwrap();
    refused();
}

/// What the runner cannot do is told once, by the keeper, with the one exit code.
#[test]
fn a_run_without_a_folder_for_logs_ends_once() {
    let world = World::new(&one("true"));
    fs::write(world.repo.join("target"), "no folder").unwrap();
    let done = world.run(&["verify"]).expect(7).says("error: no folder for logs at ");
    let codes: Vec<&str> = done.err.lines().filter(|line| line.contains("exit code")).collect();
    assert_eq!((codes, done.err.matches("error: ").count()), (vec!["exit code 7"], 1), "{}", done.err);
    let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap();
    assert_eq!(receipt["predicate"]["result"], "no-verdict");
}

/// How often an exit code is said.
fn ends(done: &Done) -> Vec<&str> {
    done.err.lines().filter(|line| line.contains("exit code")).collect()
}

#[test]
fn a_run_whose_folder_cannot_be_removed_has_not_passed_and_its_receipt_knows() {
    let test = "a_run_whose_folder_cannot_be_removed_has_not_passed_and_its_receipt_knows";
    let run = |task: &str| {
        let world = World::new(&one(&format!("sh -c '{task}'")));
        let plain = world.command(&["verify"]);
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "--"]).arg(plain.get_program()).args(plain.get_args());
        // Where mounts are listed, such a blank is written in another way.
        let place = world.folder.path().join("a b");
        fs::create_dir(&place).unwrap();
        world.dress(&mut command);
        command.env("XTASK_SCRATCH", place);
        let done = Running::start(command, &world.folder).wait();
        (world, done)
    };
    // In it, over it, and over the folder that all of them are in.
    for place in ["r-*/x", "r-*", ""] {
        let (world, done) = run(&format!("cd ../a*/* && mkdir $(echo r-*)/x && mount -t tmpfs none ./{place}"));
        if done.code == 1 {
            return skipped(test, "this user may not mount anything");
        }
        let done = done.expect(7).says("NO VERDICT 1 passed").says("why      cannot remove ");
        assert_eq!((ends(&done), done.err.matches("cannot remove").count()), (vec!["exit code 7"], 2), "{}", done.err);
        assert_eq!(the_receipt(&world)["result"], "no-verdict");
        world.run(&["check-receipt", "--unsigned"]).expect(6).says("cannot remove ");
    }
    // What is mounted there is somebody else's: all in it stays.
    for place in ["r-*/x", "r-*", ""] {
        let (world, done) = run(&format!(
            "mkdir -p ../precious/r-1 && echo x >../precious/r-1/file && \
             cd ../a*/* && mkdir $(echo r-*)/x && mount --bind ../../precious ./{place}"
        ));
        done.expect(7).says("cannot remove ");
        let file = world.folder.path().join("precious/r-1/file");
        assert_eq!(fs::read_to_string(file).unwrap(), "x\n", "mounted at {place:?}");
    }
    // What is gone already has not to be removed.
    let (world, done) = run("rm -r ../a*/*/r-*");
    done.expect(0);
    world.run(&["check-receipt", "--unsigned"]).expect(0);
}

/// One that was there before a runner hung is named all the same, and says what became of that.
#[test]
fn the_receipt_of_a_runner_that_is_killed_after_it_is_told_of() {
    let Some((world, run)) = held_running("false", "/summary", &[], &["verify", "--message-format", "json"]) else {
        return skipped("the_receipt_of_a_runner_that_is_killed_after_it_is_told_of", "there is no C compiler");
    };
    assert_eq!(the_receipt(&world)["result"], "failed");
    let runner = runner_of(run.pid()).expect("a runner");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner), Signal::SIGKILL).unwrap();
    until("the runner's end", || !Path::new(&format!("/proc/{runner}")).exists());
    fs::write(world.folder.path().join("go"), "").unwrap();
    let done = run.wait().expect(7);
    let last = done.err.split("the runner is gone").last().unwrap();
    assert!(last.contains("   receipt   receipts/r-") && last.contains("(result: no-verdict)"), "{}", done.err);
    let receipt = the_receipt(&world);
    assert_eq!((&receipt["result"], &task(&receipt, "one")["verdict"]), (&"no-verdict".into(), &"failed".into()));
    assert!(receipt["trouble"][0].as_str().unwrap().contains("the runner is gone"), "{receipt}");
}

/// A run whose runner or keeper waits for `go` before it opens what has that part in its path to write.
fn held(part: &str, how: &[(&str, &str)], words: &[&str]) -> Option<(World, Running)> {
    held_running("true", part, how, words)
}

fn held_running(command: &str, part: &str, how: &[(&str, &str)], words: &[&str]) -> Option<(World, Running)> {
    let world = World::new(&one(command));
    let library = compiled(&world)?;
    let go = world.folder.path().join("go");
    let mut command = world.command(words);
    command.env("LD_PRELOAD", library).env("INTERPOSED_HELD", part).env("INTERPOSED_GO", &go);
    command.env("GITHUB_STEP_SUMMARY", world.folder.path().join("summary")).envs(how.iter().copied());
    let run = Running::start(command, &world.folder);
    until("it to wait", || go.with_extension("held").exists());
    Some((world, run))
}

/// What takes the verdict away when the receipt is there already takes that back too; also one that cannot be read, for it
/// may say anything.
#[test]
fn the_receipt_of_a_runner_that_is_killed_after_it_has_not_passed() {
    let words = ["verify", "--message-format", "json", "--junit", "target/run.xml"];
    for (how, verdict) in [(&[][..], "passed"), (&[("INTERPOSED_UNREADABLE", "/receipts/r-")], "not-run")] {
        let Some((world, run)) = held("/summary", how, &words) else {
            let test = "the_receipt_of_a_runner_that_is_killed_after_it_has_not_passed";
            return skipped(test, "there is no C compiler");
        };
        assert_eq!(the_receipt(&world)["result"], "passed");
        let runner = runner_of(run.pid()).expect("a runner");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner), Signal::SIGKILL).unwrap();
        until("the runner's end", || !Path::new(&format!("/proc/{runner}")).exists());
        // The keeper has its own summary to write.
        fs::write(world.folder.path().join("go"), "").unwrap();
        let done = run.wait().expect(7).says("the runner is gone");
        assert_eq!(done.err.contains("did not pass, whatever is said above: "), verdict == "passed", "{}", done.err);
        let last: serde_json::Value = serde_json::from_str(done.out.lines().last().unwrap()).unwrap();
        assert_eq!((&last["event"], &last["exit_code"]), (&"run-finished".into(), &7.into()));
        let receipt = the_receipt(&world);
        assert_eq!((&receipt["result"], &task(&receipt, "one")["verdict"]), (&"no-verdict".into(), &verdict.into()));
        world.run(&["check-receipt", "--unsigned"]).expect(6).says("the runner is gone");
        let junit = fs::read_to_string(world.repo.join("target/run.xml")).unwrap();
        assert!(junit.contains(r#"name="result" value="no-verdict""#), "{junit}");
    }
}

/// Nobody waits for the run of a keeper that is killed after it has heard of the receipt, and before that is in its place.
#[test]
fn the_receipt_of_a_keeper_that_is_killed_before_it_is_there_has_not_passed() {
    let Some((world, run)) = held("/.xtask-", &[], &["verify", "--junit", "target/run.xml"]) else {
        let test = "the_receipt_of_a_keeper_that_is_killed_before_it_is_there_has_not_passed";
        return skipped(test, "there is no C compiler");
    };
    let runner = runner_of(run.pid()).unwrap();
    run.signal(Signal::SIGKILL);
    run.wait();
    fs::write(world.folder.path().join("go"), "").unwrap();
    until("the runner's end", || !Path::new(&format!("/proc/{runner}")).exists());
    assert_eq!(the_receipt(&world)["result"], "no-verdict");
}

/// All that such a task has to say is lost, and why it failed with it; what nobody said is told.
#[test]
fn a_task_whose_log_finds_no_room_fails_and_the_reason_is_told() {
    let test = "a_task_whose_log_finds_no_room_fails_and_the_reason_is_told";
    let world = World::new(&one("sh -c 'yes 1234567 | head -n 20000; exit 3'"));
    let logs = "mkdir -p target/xtask-runs && mount -t tmpfs -o size=64k none target/xtask-runs";
    let verify = || world.command(&["verify"]).get_program().to_owned();
    let run = |args: &[&str]| {
        let mut command = Command::new(args[0]);
        command.args(&args[1..]).arg(verify()).arg("verify");
        world.dress(&mut command);
        Running::start(command, &world.folder).wait()
    };
    let script = format!("{logs} && exec \"$0\" \"$@\"");
    let full = run(&["unshare", "--map-root-user", "--mount", "--", "sh", "-c", &script]);
    match full.err.contains("Acquired") {
        true => drop(full.expect(1).says("exit code 3; its log cannot be written: No space left on device")),
        false => skipped(test, "this user may not mount anything"),
    }
    if !Command::new("prlimit").arg("--version").output().is_ok_and(|done| done.status.success()) {
        return skipped(test, "there is no program `prlimit`");
    }
    let limited = run(&["prlimit", "--fsize=65536"]).expect(1);
    limited.says("; its log cannot be written: File too large");
    let why = &task_of_newest(&world)["why"];
    assert!(why.as_str().unwrap().contains("; its log cannot be written"), "{why}");
    // Nothing of ours is left in the log.
    let log = world.repo.join(task_of_newest(&world)["log"].as_str().unwrap());
    assert!(fs::read(log).unwrap().ends_with(b"1234567\n"));
    world.write("ci/suite.toml", &one("sh -c 'printf said; exit 3'"));
    world.run(&["verify"]).expect(1).says("one: exit code 3\n");
    let log = world.repo.join(task_of_newest(&world)["log"].as_str().unwrap());
    assert_eq!(fs::read_to_string(log).unwrap(), "said");
}

/// The one task of the last run.
fn task_of_newest(world: &World) -> serde_json::Value {
    let receipt = fs::read(world.receipts().last().unwrap()).unwrap();
    let receipt: serde_json::Value = serde_json::from_slice(&receipt).unwrap();
    receipt["predicate"]["tasks"][0].clone()
}

#[test]
fn a_limit_on_the_size_of_files_is_trouble_of_the_run_and_still_ends_a_task() {
    let test = "a_limit_on_the_size_of_files_is_trouble_of_the_run_and_still_ends_a_task";
    if !Command::new("prlimit").arg("--version").output().is_ok_and(|done| done.status.success()) {
        return skipped(test, "there is no program `prlimit`");
    }
    // 128 and SIGXFSZ: what is ignored here would be ignored there. Then a receipt that is over the limit.
    let world = World::new(&one("sh -c 'head -c 9000 /dev/zero >../large; test $? = 153'"));
    let mut command = Command::new("prlimit");
    command.args(["--fsize=2000", env!("CARGO_BIN_EXE_xtask"), "verify"]);
    world.dress(&mut command);
    let done = Running::start(command, &world.folder).wait().expect(7).says("Passed").says("File too large");
    assert!(!done.err.contains("the runner is gone"), "{}", done.err);
    let left: Vec<_> = fs::read_dir(world.repo.join("receipts")).into_iter().flatten().flatten().collect();
    assert!(left.iter().all(|entry| entry.file_name() == ".gitignore"), "{left:?}");
}

#[test]
fn a_keeper_that_a_task_stops_goes_on_when_the_run_is_over() {
    // The fourth word of `stat` is the parent: the runner's is the keeper.
    let stop = "set -- $(cat /proc/$PPID/stat); kill -STOP $4";
    let world = World::new(&one(&format!("sh -c '{stop}'")));
    for words in [&["verify"][..], &["lock", "run", "--", "sh", "-c", stop]] {
        let mut run = world.start(words);
        let over = |run: &mut Running| run.child.try_wait().unwrap().is_some();
        let stopped = |pid| fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
        // Without a runner nobody is there any more to have it go on.
        until("the end", || over(&mut run) || (runner_of(run.pid()).is_none() && stopped(run.pid())));
        if !over(&mut run) {
            run.signal(Signal::SIGKILL);
        }
        run.wait().expect(0);
    }
}

/// Git itself cannot say so then: what it prints goes there.
#[test]
fn a_scratch_disk_that_is_full_is_the_reason_that_is_told() {
    let world = World::new(&one("true"));
    let plain = world.command(&["verify"]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=12k none ../s && exec \"$0\" verify";
    command.args(["--map-root-user", "--mount", "--", "sh", "-c", script]).arg(plain.get_program());
    world.dress(&mut command);
    let done = Running::start(command, &world.folder).wait();
    if !done.err.contains("Acquired") {
        return skipped("a_scratch_disk_that_is_full_is_the_reason_that_is_told", "this user may not mount anything");
    }
    done.expect(7).says("the tree cannot be read: ").says("No space left on device");
}
