//! Processes that are side by side, and those that were there before.

use std::process::{Command, Stdio};

use crate::process::{Ran, assert_none_left, misbehave, suite, task, token};
use crate::world::{Folder, World, processes_with, skipped, until};

#[test]
fn the_end_of_a_task_does_not_touch_the_others() {
    let token = token();
    // b has a daemon of its own; a ends beside it, with one of its own too; only then does b look after its daemon.
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    let path = |name: &str| world.folder.path().join(name).display().to_string();
    let (up, over, checked) = (path("up"), path("over"), path("checked"));
    let a = format!("until {up} fork session leave hang end say hi");
    let daemon = format!("fork session leave touch {up} until {over} touch {checked} end");
    let b = format!("{daemon} until {checked} say fine");
    let c = format!("touch {over}");
    let tasks = [
        task("a", &a, &token, "leftovers = \"kill\""),
        task("b", &b, &token, ""),
        task("c", &c, &token, "needs = [\"a\"]"),
    ];
    world.write("ci/suite.toml", &suite(&tasks.concat()));
    world.commit("side by side");
    let done = world.run(&["verify"]).expect(0);
    let ran = Ran::of(world, done, &token);
    ran.expect("a", "passed", &[]).expect("b", "passed", &[]);
    assert_eq!(ran.task("a")["leftovers"].as_array().unwrap().len(), 1);
}

#[test]
fn a_server_that_the_shell_had_started_before_lives_on() {
    let (mine, theirs) = (token(), token());
    // During the run it starts a daemon, which is not the run's either.
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (go, up) = (path("go"), path("up"));
    let orders = format!("touch {go} until {up} fork session leave hang end say hi");
    let world = World::new(&suite(&task("a", &orders, &mine, "leftovers = \"kill\"")));
    let program = world.command(&["verify"]);
    let mut shell = Command::new("sh");
    let script = format!(
        "\"$0\" fork hang end until {go} fork session leave touch {up} hang end hang {theirs} & exec \"$1\" verify"
    );
    shell.args(["-c", &script]).arg(misbehave()).arg(program.get_program()).current_dir(&world.repo);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let status = shell.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_none_left(&mine);
    let left = processes_with(&theirs);
    assert_eq!(left.len(), 3, "the server, its child and its daemon");
    for pid in left {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    until("the server's end", || processes_with(&theirs).is_empty());
}

/// A run of task a, which has started a daemon without its mark, its log and its group when it ends; the words before
/// the fixture may take the CPUs away too.
fn with_a_daemon_that_sheds_all(before: &str, token: &str, code: i32) -> Ran {
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    let up = world.folder.path().join("up");
    let orders = format!("fork session leave close touch {0} hang end until {0} say hi {token}", up.display());
    let script = format!("exec env -i {before} '{}' {orders}", misbehave().display());
    let table = format!("[task.a]\ncommand = [\"sh\", \"-c\", \"{script}\"]\ndeadline = \"60s\"");
    world.write("ci/suite.toml", &suite(&table));
    world.commit("a daemon");
    let done = world.run(&["verify"]).expect(code);
    Ran::of(world, done, token)
}

#[test]
fn an_orphan_that_has_shed_all_is_known_by_its_cpus() {
    let ran = with_a_daemon_that_sheds_all("", &token(), 1);
    ran.expect("a", "failed", &[]);
    assert_eq!(ran.task("a")["leftovers"].as_array().unwrap().len(), 1);
}

#[test]
fn what_no_task_accounts_for_ends_with_the_run_which_fails() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus == 1 {
        // Every process is pinned to it.
        return skipped("what_no_task_accounts_for_ends_with_the_run_which_fails", "there is only one CPU");
    }
    let ran = with_a_daemon_that_sheds_all(&format!("taskset -c 0-{}", cpus - 1), &token(), 7);
    ran.expect("a", "passed", &[]);
    ran.done.says("processes of no task were left and ended");
}
