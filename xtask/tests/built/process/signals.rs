//! Requests to stop, once and twice, and what else comes from a terminal or its absence.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal::{self, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::process::{Ran, assert_none_left, misbehave, suite, task, token};
use crate::world::{Running, World, may, processes_with, skipped, until};

/// A run of one task with these orders, which then hangs; and its token.
fn hanging(orders: &str, grace: &str) -> (World, String) {
    let token = token();
    let text = suite(&task("bad", &format!("{orders} say ready hang"), &token, "")).replace("300ms", grace);
    (World::new(&text.replace("wrap-up = \"10s\"", "wrap-up = \"40s\"")), token)
}

/// Waits until the task has said that it is ready.
fn is_ready(world: &World) {
    until("the task", || {
        let logs = std::fs::read_dir(world.repo.join("target/xtask-runs")).into_iter().flatten();
        let logs = logs.map(|run| run.unwrap().path().join("bad.log"));
        logs.filter_map(|log| std::fs::read_to_string(log).ok()).any(|text| text.contains("ready"))
    });
}

#[track_caller]
fn stops_at(signal: Signal, code: i32, name: &str) {
    let (world, token) = hanging("count", "3s");
    // Where these tests run under nohup, the program would inherit that HUP is ignored, and keep it so.
    let command = started_by(&world, "env", &["--default-signal=HUP", PROGRAM, "verify"]);
    let running = Running::start(command, &world.folder);
    is_ready(&world);
    running.signal(signal);
    let ran = Ran::of(world, running.wait().expect(code), &token);
    ran.expect("bad", "cancelled", &[&format!("SIG{name}"), "SIGKILL"]);
    assert_eq!(ran.log("bad"), format!("ready\ngot {name}\n"), "the task gets it once");
    assert_eq!(ran.receipt["predicate"]["result"], "cancelled");
}

#[test]
fn int_cancels_with_its_own_code() {
    stops_at(SIGINT, 130, "INT");
}

#[test]
fn term_cancels_with_its_own_code() {
    stops_at(SIGTERM, 143, "TERM");
}

#[test]
fn hup_cancels_with_its_own_code() {
    stops_at(SIGHUP, 129, "HUP");
}

#[test]
fn the_second_time_kills_at_once() {
    let (world, token) = hanging("count", "30s");
    let mut running = world.start(&["verify"]);
    is_ready(&world);
    running.signal(SIGINT);
    running.wait_for("CANCELLED");
    let begun = std::time::Instant::now();
    running.signal(SIGINT);
    let ran = Ran::of(world, running.wait().expect(130), &token);
    assert!(begun.elapsed().as_secs() < 20, "the grace of 30 s was waited for");
    ran.expect("bad", "cancelled", &["SIGINT", "SIGKILL"]);
}

#[test]
fn ctrl_z_is_ignored_while_the_lock_is_held_and_says_so() {
    let (world, token) = hanging("", "300ms");
    let mut running = world.start(&["verify"]);
    is_ready(&world);
    running.signal(SIGTSTP);
    running.wait_for("Ctrl-Z is ignored");
    running.signal(SIGINT);
    Ran::of(world, running.wait().expect(130), &token);
}

/// The same program in the same world, started by another.
fn started_by(world: &World, program: &str, args: &[&str]) -> Command {
    let direct = world.command(&[]);
    let mut command = Command::new(program);
    command.args(args).current_dir(&world.repo);
    for (name, value) in direct.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_xtask");

#[test]
fn nohup_is_respected_but_int_always_counts() {
    let (world, token) = hanging("", "20s");
    let running = Running::start(
        started_by(&world, "sh", &["-c", "trap '' HUP INT; exec \"$0\" verify", PROGRAM]),
        &world.folder,
    );
    is_ready(&world);
    running.signal(SIGHUP);
    running.signal(SIGINT);
    let ran = Ran::of(world, running.wait().expect(130), &token);
    ran.expect("bad", "cancelled", &["SIGINT"]);
}

#[test]
fn a_reader_that_leaves_early_ends_nothing() {
    let token = token();
    let world = World::new(&suite(&task("a", "say 1 say 2", &token, "")));
    let script = "for i in 1 2; do \"$0\" verify 2>&1 | head -1; done";
    assert!(started_by(&world, "sh", &["-c", script, PROGRAM]).stdout(Stdio::null()).status().unwrap().success());
    until("both receipts", || world.receipts().len() == 2);
    for receipt in world.receipts() {
        let receipt: serde_json::Value = serde_json::from_slice(&std::fs::read(receipt).unwrap()).unwrap();
        assert_eq!(receipt["predicate"]["result"], "passed");
    }
}

#[test]
fn a_task_has_no_terminal_to_take() {
    let token = token();
    let world = World::new(&suite(&task("bad", "terminal", &token, "")));
    let Ok(script) = Command::new("script").arg("--version").output() else {
        return skipped("a_task_has_no_terminal_to_take", "there is no program `script`");
    };
    assert!(script.status.success());
    let command = started_by(&world, "script", &["-qec", &format!("'{PROGRAM}' verify"), "/dev/null"]);
    let done = Running::start(command, &world.folder).wait().expect(0);
    let ran = Ran::of(world, done, &token);
    assert_eq!(ran.log("bad"), "no terminal\n");
}

/// The program as the first process of a pid namespace, as in a container without an init; none where that is not allowed.
fn as_init(world: &World) -> Option<Running> {
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !may(&[&["unshare"], &unshare[..], &["true"]].concat()) {
        return None;
    }
    let command = started_by(world, "unshare", &[&unshare[..], &[PROGRAM, "verify"]].concat());
    Some(Running::start(command, &world.folder))
}

#[test]
fn the_first_process_of_a_container_ends_what_is_left_and_listens_to_signals() {
    let token = token();
    let tasks =
        task("a", "fork session leave bare hang end fork leave say late end say hi", &token, "leftovers = \"kill\"");
    let world = World::new(&suite(&tasks));
    let Some(running) = as_init(&world) else {
        let name = "the_first_process_of_a_container_ends_what_is_left_and_listens_to_signals";
        return skipped(name, "no namespace of processes can be made");
    };
    Ran::of(world, running.wait().expect(0), &token).expect("a", "passed", &[]);

    let (world, token) = hanging("", "20s");
    let running = as_init(&world).expect("it was allowed a moment ago");
    is_ready(&world);
    let children = format!("/proc/{0}/task/{0}/children", running.pid());
    let init: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(init), SIGTERM).unwrap();
    Ran::of(world, running.wait().expect(143), &token);
}

#[test]
fn the_fixture_is_what_the_tests_think() {
    let token = token();
    let mut child = Command::new(misbehave()).args(["deaf", "hang", &token]).spawn().unwrap();
    until("it", || processes_with(&token).len() == 1);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    assert_none_left(&token);
}

/// Whoever started the program may have blocked signals, and a mask is inherited.
#[test]
fn a_signal_that_was_blocked_from_the_start_counts() {
    let (world, token) = hanging("", "20s");
    let known = Command::new("env").args(["--block-signal=TERM", "true"]).stderr(Stdio::null()).status();
    if !known.is_ok_and(|status| status.success()) {
        return skipped("a_signal_that_was_blocked_from_the_start_counts", "env blocks no signals here");
    }
    let command = started_by(&world, "env", &["--block-signal=TERM,INT", PROGRAM, "verify"]);
    let running = Running::start(command, &world.folder);
    is_ready(&world);
    running.signal(SIGTERM);
    Ran::of(world, running.wait().expect(143), &token).expect("bad", "cancelled", &["SIGTERM"]);
}

#[test]
fn a_task_inherits_no_input_and_no_descriptor() {
    let table = "[task.a]\ncommand = ['sh', '-c', 'cat; test ! -e /proc/self/fd/9']\ndeadline = \"20s\"\n";
    let world = World::new(&suite(table));
    let script = "exec 9</dev/null; echo secret | \"$0\" verify";
    let done = Running::start(started_by(&world, "sh", &["-c", script, PROGRAM]), &world.folder).wait().expect(0);
    assert_eq!(Ran::of(world, done, "no such token").log("a"), "");
}

/// Without a /proc of its own namespace the program would look for leftovers among the numbers of other processes.
#[test]
fn a_proc_of_another_pid_namespace_is_refused_before_anything_queues() {
    let test = "a_proc_of_another_pid_namespace_is_refused_before_anything_queues";
    let unshare = ["--pid", "--fork", "--kill-child"];
    if !may(&[&["unshare"], &unshare[..], &["true"]].concat()) {
        return skipped(test, "no namespace of processes can be made");
    }
    let token = token();
    let world = World::new(&suite(&task("a", "fork session leave hang end say hi", &token, "")));
    let what: [(&[&str], i32); 2] = [(&["verify"], 2), (&["lock", "run", "--", "true"], 122)];
    for (words, code) in what {
        let command = started_by(&world, "unshare", &[&unshare[..], &[PROGRAM], words].concat());
        let done = Running::start(command, &world.folder).wait().expect(code);
        done.says("unshare --mount-proc").says(&format!("exit code {code}"));
    }
    assert_none_left(&token);
    assert!(world.receipts().is_empty(), "something was queued");
}

/// The thread that starts tasks has it blocked, and a child inherits that.
#[test]
fn a_task_hears_of_its_childrens_ends() {
    let task = "command = \"grep SigBlk /proc/self/status\"\ndeadline = \"40s\"\n";
    let world = World::new(&suite(&format!("[task.a]\n{task}[task.b]\n{task}needs = [\"a\"]")));
    let done = world.run(&["verify"]).expect(0);
    let ran = Ran::of(world, done, &token());
    for name in ["a", "b"] {
        let log = ran.log(name);
        let mask = u64::from_str_radix(log.trim().rsplit('\t').next().unwrap(), 16).unwrap();
        assert_eq!(mask >> (Signal::SIGCHLD as i32 - 1) & 1, 0, "{name}: {log}");
    }
}
