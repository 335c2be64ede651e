//! What a test can cause only between the program and the C library: a disk that is slow, a machine that was asleep
//! or stood still, a start that takes long, a wait or a thread that is refused, files without mode bits,
//! a list of children with gaps, words that find no room.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::process::{assert_none_left, token_seconds};
use crate::world::{Running, World, processes_with, skipped, until};

fn verify(world: &World, name: &str, value: &str) -> Option<Running> {
    start(world, &["verify"], &[(name, value)])
}

/// The program on such a machine; none where no C compiler is found.
fn start(world: &World, args: &[&str], how: &[(&str, &str)]) -> Option<Running> {
    let library = compiled(world)?;
    let mut command = world.command(args);
    command.env("LD_PRELOAD", library).envs(how.iter().copied());
    Some(Running::start(command, &world.folder))
}

/// The library that makes it one.
pub fn compiled(world: &World) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/built/interposed.c");
    let library = world.folder.path().join("interposed.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Werror", "-Wall", "-o"]).arg(&library).args([source, "-ldl"]);
    cc.status().ok().map(|status| {
        assert!(status.success(), "{source} cannot be compiled");
        library
    })
}

fn the_receipt(world: &World) -> Value {
    serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap()
}

fn suite(command: &str) -> String {
    let run = "deadline = \"1m\"\nqueue = \"1m\"\nmargin = \"1m\"\nstop-grace = \"200ms\"\nwrap-up = \"3s\"";
    format!("schema = 1\n[run]\n{run}\n[task.one]\ncommand = ['sh', '-c', '{command}']\ndeadline = \"40s\"\n")
}

/// The deadline passes while the receipt is on its way to the disk: what was written as passed is late.
#[test]
fn a_receipt_that_takes_too_long_to_write_says_so() {
    let world = World::new(&suite("true"));
    let Some(run) = verify(&world, "INTERPOSED_SLOW_SYNC", "61") else {
        return skipped("a_receipt_that_takes_too_long_to_write_says_so", "there is no C compiler");
    };
    run.wait().expect(3);
    let receipt = the_receipt(&world);
    assert_eq!(receipt["predicate"]["result"], "late");
    assert_eq!(receipt["predicate"]["tasks"][0]["verdict"], "passed");
    assert_eq!(world.receipts().len(), 1);
}

#[test]
fn a_run_that_slept_has_no_verdict() {
    let world = World::new(&suite("touch asleep"));
    let path = world.repo.join("asleep").display().to_string();
    world.write(".gitignore", "asleep\n/target\n");
    world.commit("ignored");
    let Some(run) = verify(&world, "INTERPOSED_SUSPENDED", &path) else {
        return skipped("a_run_that_slept_has_no_verdict", "there is no C compiler");
    };
    run.wait().expect(7).says("the machine was suspended for");
    assert_eq!(the_receipt(&world)["predicate"]["result"], "no-verdict");
}

/// The deadline of `lock run` counts from the lock on. A machine so busy that nothing starts in that time makes it late.
#[test]
fn a_command_that_cannot_be_started_in_time_is_late() {
    let world = World::new(&suite("true"));
    let run = ["lock", "run", "--deadline", "300ms", "--", "touch", "started"];
    let Some(run) = start(&world, &run, &[("INTERPOSED_SLOW_START", "1")]) else {
        return skipped("a_command_that_cannot_be_started_in_time_is_late", "there is no C compiler");
    };
    run.wait().expect(123).says("error: the command could not be started within 0.3s, its deadline");
    assert!(!world.repo.join("started").exists());
}

#[test]
fn a_run_that_cannot_wait_ends_at_once_and_says_so() {
    // The orphan wakes it, whose end is its to hear of.
    let blind = "touch blind; (true &); sleep 1000";
    let world = World::new(&suite(blind));
    let path = world.repo.join("blind").display().to_string();
    for (args, exit) in [(&["verify"][..], 7), (&["lock", "run", "--", "sh", "-c", blind], 127)] {
        let Some(run) = start(&world, args, &[("INTERPOSED_NO_POLL", &path)]) else {
            return skipped("a_run_that_cannot_wait_ends_at_once_and_says_so", "there is no C compiler");
        };
        let done = run.wait().expect(exit);
        // Where it is said and, of a run with a receipt, where it is summed up.
        assert_eq!(done.err.matches("cannot wait: ").count(), 1 + usize::from(exit == 7), "{}", done.err);
        fs::remove_file(&path).expect("the command has made it");
    }
}

/// A runner that had no time to do anything is not one that hangs: the run is late, and its receipt says so.
#[test]
fn a_run_on_a_machine_that_stood_still_is_late() {
    // The orphan wakes the runner, and the news of the task's end the keeper.
    let world = World::new(&suite("touch still; (true &); sleep 1000"));
    let path = world.repo.join("still").display().to_string();
    let how = [("INTERPOSED_STANDSTILL", &path[..]), ("INTERPOSED_SLOW_SYNC", "1")];
    let Some(run) = start(&world, &["verify"], &how) else {
        return skipped("a_run_on_a_machine_that_stood_still_is_late", "there is no C compiler");
    };
    run.wait().expect(3);
    assert_eq!(the_receipt(&world)["predicate"]["result"], "late");
}

/// What a task had done before that was heard of is a part of its time.
#[test]
fn the_time_of_a_task_begins_before_it_does() {
    let world = World::new(&suite("true"));
    let Some(run) = start(&world, &["verify"], &[("INTERPOSED_SLOW_SPAWN", "sh")]) else {
        return skipped("the_time_of_a_task_begins_before_it_does", "there is no C compiler");
    };
    run.wait().expect(0);
    let took = the_receipt(&world)["predicate"]["tasks"][0]["took_ms"].as_u64().expect("a number");
    assert!(took >= 1000, "{took}");
}

/// Nobody can tell yet whose the process is that may have ended already. It is not taken for an orphan, and another task's end
/// does not wait for it.
#[test]
fn a_task_ends_while_another_is_being_started() {
    let test = "a_task_ends_while_another_is_being_started";
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1) {
        return skipped(test, "there is one CPU");
    }
    let other = "[task.other]\ncommand = 'true'\ndeadline = \"40s\"\n";
    let world = World::new(&(suite("true") + other));
    let json = ["verify", "--message-format", "json"];
    let Some(run) = start(&world, &json, &[("INTERPOSED_SLOW_SPAWN", "true")]) else {
        return skipped(test, "there is no C compiler");
    };
    let done = run.wait().expect(0);
    let lines: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str, task: &str| lines.iter().position(|line| line["event"] == event && line["task"] == task);
    assert!(of("task-finished", "one").unwrap() < of("task-started", "other").unwrap(), "{}", done.out);
}

/// Its process may be there by then, and goes with the run.
#[test]
fn a_run_is_cancelled_while_a_task_is_being_started() {
    let token = token_seconds();
    let task = format!("[task.one]\ncommand = ['sleep', '1000', '{token}']\ndeadline = \"40s\"\n");
    let world = World::new(&suite("true").replace("[task.one]", &format!("{task}[task.two]")));
    let Some(run) = start(&world, &["verify"], &[("INTERPOSED_SLOW_SPAWN", "sleep")]) else {
        return skipped("a_run_is_cancelled_while_a_task_is_being_started", "there is no C compiler");
    };
    until("its start", || !processes_with(&token).is_empty());
    run.signal(Signal::SIGINT);
    run.wait().expect(130);
    assert_none_left(&token);
    assert_eq!(the_receipt(&world)["predicate"]["tasks"][0]["verdict"], "cancelled");
}

/// How the run ended was to be the last line of its data. Its receipt was there before, and does not say more than the end.
#[test]
fn a_run_whose_last_words_are_lost_has_no_verdict() {
    let world = World::new(&suite("true"));
    let json = ["verify", "--message-format", "json"];
    let Some(run) = start(&world, &json, &[("INTERPOSED_LOST", "run-finished")]) else {
        return skipped("a_run_whose_last_words_are_lost_has_no_verdict", "there is no C compiler");
    };
    let done = run.wait().expect(7).says("stdout cannot be written").says("(result: no-verdict)");
    assert!(
        done.err.lines().filter(|line| line.contains("exit code")).all(|line| line == "exit code 7"),
        "{}",
        done.err
    );
    assert_eq!(the_receipt(&world)["predicate"]["result"], "no-verdict");
    world.run(&["check-receipt", "--unsigned"]).expect(6).says("could not be told");
}

/// What is executable cannot be told there, so a file that is not as committed may be just that.
#[test]
fn a_checkout_without_mode_bits_has_no_verdict() {
    let world = World::new(&suite("true"));
    world.write("run.sh", "#!/bin/sh\n");
    let mode = |mode| fs::set_permissions(world.repo.join("run.sh"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    world.commit("a script");
    mode(0o644);
    let Some(run) = start(&world, &["verify"], &[("INTERPOSED_NO_MODES", "1")]) else {
        return skipped("a_checkout_without_mode_bits_has_no_verdict", "there is no C compiler");
    };
    run.wait().expect(7).says("keeps no mode bits");
    world.run(&["verify"]).expect(0).says("1 uncommitted file");
}

/// The libraries panic without threads; the exit code is the one for trouble of xtask's own all the same.
#[test]
fn a_command_without_threads_ends_by_the_table_of_exit_codes() {
    let world = World::new(&suite("true"));
    for (args, exit) in [(&["check-receipt", "--unsigned"][..], 7), (&["lock", "run", "--", "true"], 122)] {
        let Some(run) = start(&world, args, &[("INTERPOSED_NO_THREADS", "1")]) else {
            return skipped("a_command_without_threads_ends_by_the_table_of_exit_codes", "there is no C compiler");
        };
        run.wait().expect(exit).says("error: ").says(&format!("exit code {exit}\n"));
    }
}
