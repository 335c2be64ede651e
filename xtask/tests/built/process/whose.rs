//! Whose a process is, when it has shed nearly everything that says so, and that nobody else is taken for it.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::sys::signal::Signal;
use xtask::sys;

use crate::process::{Ran, assert_none_left, misbehave, suite, task, token};
use crate::world::{World, processes_with, skipped, until};

fn sleeper() -> Child {
    Command::new("sleep").arg("300").spawn().unwrap()
}

#[test]
fn only_the_process_that_was_meant_is_killed() {
    let mut child = sleeper();
    let pid = i32::try_from(child.id()).unwrap();
    let error = sys::kill_exactly(pid, || false).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ESRCH as i32));
    assert!(child.try_wait().unwrap().is_none(), "killed although it was another");
    sys::kill_exactly(pid, || true).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGKILL as i32));
}

/// The number goes to another process after the last look and before the signal.
#[test]
fn a_number_that_has_become_anothers_is_left_alone() {
    let next = "/proc/sys/kernel/ns_last_pid";
    let mut other = None;
    // Another process of the machine may take the number first.
    for _ in 0..100 {
        let mut child = sleeper();
        let pid = i32::try_from(child.id()).unwrap();
        let killed = sys::kill_exactly(pid, || {
            child.kill().unwrap();
            child.wait().unwrap();
            if fs::write(next, (pid - 1).to_string()).is_err() {
                return false;
            }
            other = Some(sleeper());
            true
        });
        let Some(mut other) = other.take() else {
            return skipped(
                "a_number_that_has_become_anothers_is_left_alone",
                "it may not say which number comes next",
            );
        };
        let same = other.id() == child.id();
        let lives = other.try_wait().unwrap().is_none();
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(killed.unwrap_err().raw_os_error(), Some(Errno::ESRCH as i32));
        assert!(lives, "the next process with the number {pid} was killed");
        if same {
            return;
        }
    }
    panic!("no process got the number of the one before in 100 tries");
}

/// A grandchild that has shed its mark, its group, its session, its log and its CPUs is known by its parent alone. It was
/// seen while it had one.
#[test]
fn who_was_seen_below_a_task_stays_the_tasks() {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        return skipped("who_was_seen_below_a_task_stays_the_tasks", "there is only one CPU");
    }
    let token = token();
    let world = World::new(&suite(""));
    let path = |name: &str| world.folder.path().join(name).display().to_string();
    let (born, seen, orphaned) = (path("born"), path("seen"), path("orphaned"));
    let tasks = [
        // The child is between the two, so that the leader's end is not its parent's.
        task(
            "strays",
            &format!(
                "fork fork session bare everywhere touch {born} close hang end until {seen} touch {orphaned} end \
                 until {orphaned} sleep 50"
            ),
            &token,
            "",
        ),
        // The end of each of these makes the runner look.
        task("looks", &format!("until {born} sleep 50"), &token, ""),
        task("tells", &format!("touch {seen}"), &token, "needs = [\"looks\"]"),
    ];
    world.write("ci/suite.toml", &suite(&tasks.concat()));
    world.commit("tasks");
    let done = world.run(&["verify"]).expect(1);
    assert_none_left(&token);
    let ran = Ran::of(world, done, &token);
    ran.expect("strays", "failed", &[]);
    assert_eq!(ran.task("strays")["leftovers"].as_array().map(Vec::len), Some(1), "{:#}", ran.task("strays"));
}

/// One without its mark, its group, its session and its CPUs that nobody has seen below its parent still writes to the log.
#[test]
fn who_writes_to_the_log_of_a_task_is_the_tasks() {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        return skipped("who_writes_to_the_log_of_a_task_is_the_tasks", "there is only one CPU");
    }
    let token = token();
    let orders = "fork session leave everywhere bare deaf hang end sleep 50";
    let ran = Ran::new(&suite(&task("a", orders, &token, "")), &token, 1);
    ran.expect("a", "failed", &[]);
    assert_eq!(ran.task("a")["leftovers"].as_array().map(Vec::len), Some(1), "{:#}", ran.task("a"));
}

/// The runner's own group says nothing of a process that has a task's mark.
#[test]
fn who_joins_the_runners_group_stays_the_tasks() {
    let token = token();
    let ran = Ran::new(&suite(&task("a", "fork leave join deaf hang end sleep 100", &token, "")), &token, 1);
    ran.expect("a", "failed", &[]);
    assert_eq!(ran.task("a")["leftovers"].as_array().map(Vec::len), Some(1), "{:#}", ran.task("a"));
}

/// A debugger may keep what it traces as a zombie for as long as it likes. Nobody waits for that.
#[test]
fn what_a_debugger_keeps_is_not_waited_for() {
    let (token, other) = (token(), token());
    let tasks = [
        task("traced", "hang", &token, "deadline = \"4s\""),
        // It ends by itself while the other is dead and kept, and must not become late by that.
        task("beside", "sleep 6000", &other, "deadline = \"30s\""),
    ];
    let world = World::new(&suite(&tasks.concat()));
    let running = world.start(&["verify"]);
    until("the task", || processes_with(&token).len() == 1);
    let pid = processes_with(&token)[0];
    let ready = world.folder.path().join("traced");
    let orders = ["trace", &pid.to_string(), "touch", &ready.display().to_string(), "hang"];
    let mut debugger = Command::new(misbehave()).args(orders).stderr(Stdio::null()).spawn().unwrap();
    until("the debugger", || ready.exists() || debugger.try_wait().unwrap().is_some());
    if !ready.exists() {
        running.signal(Signal::SIGINT);
        running.wait();
        return skipped("what_a_debugger_keeps_is_not_waited_for", "nothing can be traced here");
    }
    let done = running.wait().expect(3);
    debugger.kill().unwrap();
    debugger.wait().unwrap();
    let ran = Ran::of(world, done, &token);
    assert_eq!((&ran.task("traced")["verdict"], &ran.task("beside")["verdict"]), (&"late".into(), &"passed".into()));
}
