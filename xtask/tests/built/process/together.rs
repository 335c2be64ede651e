//! Processes that are side by side, and those that were there before.

use std::process::{Command, Stdio};

use xtask::lock::Scope;
use xtask::lock::status::{State, look};
use xtask::process::affinity::Cpus;

use crate::interposed::compiled;
use crate::process::field::runner_of;
use crate::process::{Ran, assert_none_left, misbehave, pool, suite, task, token};
use crate::world::{Folder, World, processes_with, skipped, until};

#[test]
fn the_end_of_a_task_does_not_touch_the_others() {
    if pool() == 1 {
        return skipped("the_end_of_a_task_does_not_touch_the_others", "there is only one CPU");
    }
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

/// The program, as a shell that has started the fixture with these orders becomes it.
fn beside_a_server(world: &World, orders: &str) -> Command {
    let program = world.command(&["verify"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("\"$0\" {orders} & exec \"$1\" verify")]);
    shell.arg(misbehave()).arg(program.get_program()).current_dir(&world.repo);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdout(Stdio::null()).stderr(Stdio::null());
    shell
}

/// These processes live, are ended, and gone.
fn live_on(token: &str, count: usize) {
    let left = processes_with(token);
    assert_eq!(left.len(), count);
    for pid in left {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    until("the server's end", || processes_with(token).is_empty());
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
    let theirs_do = format!("fork hang end until {go} fork session leave touch {up} hang end hang {theirs}");
    let status = beside_a_server(&world, &theirs_do).status().unwrap();
    assert_eq!(status.code(), Some(0));
    assert_none_left(&mine);
    live_on(&theirs, 3); // the server, its child and its daemon
}

/// The kernel's list of children may skip one while others end, and so did the keeper's first look here.
#[test]
fn a_server_that_was_not_seen_before_is_known_by_its_age() {
    let (mine, theirs) = (token(), token());
    let folder = Folder::new();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (up, seen) = (path("up"), path("seen"));
    let world = World::new(&suite(&task("a", &format!("touch {seen}"), &mine, "")));
    let Some(library) = compiled(&world) else {
        return skipped("a_server_that_was_not_seen_before_is_known_by_its_age", "there is no C compiler");
    };
    let orders = format!("session sleep 50 touch {up} hang {theirs} & until test -e {up}; do sleep 0.02; done; true");
    let mut shell = beside_a_server(&world, &orders);
    let status = shell.env("LD_PRELOAD", library).env("INTERPOSED_NO_CHILDREN", &seen).status().unwrap();
    assert_eq!(status.code(), Some(0));
    live_on(&theirs, 1);
}

/// Where the runner is killed the keeper alone has to tell the tasks' processes, which have no mark, from the server's: one
/// writes to a log of the run, the other has not the variables of the shell.
#[test]
fn what_a_killed_runner_leaves_is_not_taken_for_the_servers() {
    let (mine, theirs) = (token(), token());
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    let path = |name: &str| world.folder.path().join(name).display().to_string();
    let (writes, silent) = (path("writes"), path("silent"));
    let orders = format!(
        "fork session leave touch {writes} hang end fork session leave close touch {silent} hang end hang {mine}"
    );
    let script = format!("exec env -i X=1 '{}' {orders}", misbehave().display());
    world.write(
        "ci/suite.toml",
        &suite(&format!("[task.a]\ncommand = [\"sh\", \"-c\", \"{script}\"]\ndeadline = \"60s\"")),
    );
    world.commit("daemons");
    let mut keeper = beside_a_server(&world, &format!("hang {theirs}")).spawn().unwrap();
    until("the daemons", || [&writes, &silent].iter().all(|path| std::path::Path::new(path).exists()));
    let runner = runner_of(i32::try_from(keeper.id()).unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(keeper.wait().unwrap().code(), Some(7));
    assert_none_left(&mine);
    live_on(&theirs, 1);
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
    let cpus = Cpus::of_this_process().expect("Linux says");
    if cpus.allowed().len() == 1 {
        // Every process is pinned to it.
        return skipped("what_no_task_accounts_for_ends_with_the_run_which_fails", "there is only one CPU");
    }
    let all: Vec<String> = cpus.allowed().iter().map(usize::to_string).collect();
    let ran = with_a_daemon_that_sheds_all(&format!("taskset -c {}", all.join(",")), &token(), 7);
    ran.expect("a", "passed", &[]);
    ran.done.says("processes of no task were left and ended");
}

#[test]
fn those_who_wait_are_told_how_many_tasks_are_done() {
    let folder = Folder::new();
    let go = folder.path().join("go");
    let quick = |name: &str| format!("[task.{name}]\ncommand = 'true'\ndeadline = \"40s\"\n");
    let long = task("c", &format!("until {}", go.display()), &token(), "needs = [\"a\", \"b\"]");
    let world = World::new(&suite(&[quick("a"), quick("b"), long].concat()));
    let running = world.start(&["verify"]);
    // The two end within less time than lies between two tellings.
    until("the banner", || {
        let state = look(Scope::Workstation, world.ports.first).expect("a look");
        matches!(state, State::Held { holder } if (holder.done, holder.tasks) == (Some(2), Some(3)))
    });
    std::fs::write(go, "").unwrap();
    running.wait().expect(0);
}
