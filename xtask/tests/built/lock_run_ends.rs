//! How a command under the lock ends, by itself, by its deadline, by signals or by a kill: with all that it has started, and
//! before the lock is free.

use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::name::RunId;
use xtask::run::lifeline::Lifeline;
use xtask::run::order::{CommandOrder, Message, Order};
use xtask::verdict::Stop;

use crate::lock_caller::{Caller, LONG};
use crate::lock_client::{banner, connect, hung_up_on};
use crate::lock_run::{Place, SUITE};
use crate::world::{Running, World, may, processes_with, skipped, until};

/// A word that is on no other command line.
fn token() -> String {
    format!("token-{:08x}", xtask::sys::random().expect("random bits"))
}

/// The kernel's letter for the state of a process.
fn state(pid: i32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

/// The process below this one whose command line has this word.
fn child_with(pid: i32, word: &str) -> i32 {
    let children = |pid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        text.split_whitespace().map(|pid| pid.parse::<i32>().expect("a pid")).collect::<Vec<_>>()
    };
    let line = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    children(pid).into_iter().find(|pid| line(pid).contains(word)).expect("such a child")
}

/// On a busy machine the runner has not read its order yet when Ctrl-C comes.
#[test]
fn a_request_to_stop_that_comes_with_the_order_is_heard() {
    let place = Place::new();
    let order = Order::Command(CommandOrder {
        run: RunId::new(1_796_000_000, 7),
        folder: place.folder.path().to_owned(),
        program: "/bin/sleep".into(),
        args: vec!["20".into()],
        won: xtask::sys::clocks(),
        deadline: Duration::from_secs(60),
        keep_open: Vec::new(),
    });
    let (mut keeper, runner) = Lifeline::pair().unwrap();
    keeper.give(&order).unwrap();
    keeper.send(Message::Stop(Stop::Int));
    let fd = runner.as_fd();
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["internal-runner", &fd.as_raw_fd().to_string()]).env("XTASK_SCRATCH", place.folder.path());
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let running = Running::start(command, &place.folder);
    drop(runner);
    running.wait().expect(130);
}

#[test]
fn its_deadline_ends_all_of_it() {
    let place = Place::new();
    let token = token();
    let script = format!("trap '' TERM; sh -c 'sleep 1000; : {token}' & sh -c 'sleep 1000; : {token}'");
    let done = place.run(&["run", "--deadline", "3s", "--", "sh", "-c", &script]).expect(123);
    done.says("error: the command had not ended after 3s, and was stopped").says("exit code 123\n");
    assert_eq!(processes_with(&token), [0; 0]);
    assert!(place.is_free());
}

#[test]
fn what_it_leaves_behind_is_ended_and_named() {
    let place = Place::new();
    let token = token();
    let script = format!("setsid sh -c 'sleep 1000; : {token}' & sleep 0.2; exit 3");
    let done = place.run(&["run", "--", "sh", "-c", &script]).expect(3);
    done.says("note: ended what the command left behind: ").says(&token);
    assert_eq!(processes_with(&token), [0; 0]);
}

#[test]
fn what_has_shed_its_mark_is_ended_and_named_too() {
    let place = Place::new();
    let token = token();
    let script = format!("setsid env -i /bin/sh -c 'sleep 1000; : {token}' & sleep 0.2; exit 3");
    let done = place.run(&["run", "--", "sh", "-c", &script]).expect(3);
    done.says("note: ended what the command left behind: ").says(&token);
    assert_eq!(processes_with(&token), [0; 0]);
}

#[test]
fn a_run_that_hangs_is_gone_when_it_said_at_the_latest() {
    // On a machine that stands still for seconds all is late, and it is no fault of the run: that round says nothing.
    until("a round in which the run is gone in time", || {
        let (place, token) = (Place::new(), token());
        // The parent of the command is the runner.
        let script = format!("kill -STOP $PPID; touch started; sleep 1000; : {token}");
        let running = place.start(&["run", "--deadline", "3s", "--", "sh", "-c", &script]);
        until("the command to start", || place.folder.path().join("started").exists());
        let line = place.run(&["status", "--message-format", "json"]).expect(0).out;
        let state: serde_json::Value = serde_json::from_str(line.lines().next().expect("a line")).expect("JSON");
        let free_at_ms = state["holder"]["free_at_ms"].as_u64().expect("it says when");
        running.wait().expect(127).says("the runner had not ended").says("and was killed");
        assert!(place.is_free());
        let now_ms = xtask::sys::clocks().wall_ms;
        assert_eq!(processes_with(&token), [0; 0]);
        now_ms <= free_at_ms
    });
}

#[test]
fn a_signal_ends_it_and_is_its_exit_code() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let (place, token) = (Place::new(), token());
        let running = place.started(&format!("sleep 1000; : {token}"));
        running.signal(signal);
        running.wait().expect(code);
        assert_eq!(processes_with(&token), [0; 0]);
        assert!(place.is_free());
    }
}

#[test]
fn a_hangup_that_was_ignored_from_the_start_stays_so() {
    // As under nohup, where the default that `command` sets is not.
    let place = Place::new();
    let mut command = place.command(&[]);
    let program = env!("CARGO_BIN_EXE_xtask");
    let script = "touch started; while [ ! -e go ]; do sleep 0.05; done; exit 3";
    let mut ignoring = Command::new("env");
    ignoring.args(["--ignore-signal=HUP", program, "lock", "run", "--", "sh", "-c", script]);
    ignoring.current_dir(place.folder.path()).env_remove("XTASK_MARK");
    ignoring.envs(command.env_remove("XTASK_MARK").get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(ignoring, &place.folder);
    until("the command to start", || place.folder.path().join("started").exists());
    running.signal(Signal::SIGHUP);
    // What comes after it has been seen, so it has been too.
    running.signal(Signal::SIGTSTP);
    running.wait_for("note: Ctrl-Z is ignored while the lock is held");
    std::fs::write(place.folder.path().join("go"), "").expect("a file");
    running.wait().expect(3);
}

#[test]
fn ctrl_c_while_waiting_leaves_the_holder_alone() {
    let place = Place::new();
    let _held = Caller::new("ci", LONG).acquire_unrelated(place.ports.first).expect("free");
    let mut waiter = place.start(&["run", "--", "touch", "ran"]);
    waiter.wait_for("Waiting workstation lock");
    waiter.signal(Signal::SIGINT);
    waiter.wait().expect(130).says("cancelled by SIGINT while waiting; nothing was run");
    assert!(!place.is_free());
    assert!(!place.folder.path().join("ran").exists());
}

#[test]
fn ctrl_z_stops_a_waiter_until_it_is_told_to_go_on() {
    let place = Place::new();
    let held = Caller::new("ci", LONG).acquire_unrelated(place.ports.first).expect("free");
    let mut waiter = place.start(&["run", "--", "true"]);
    waiter.wait_for("Waiting workstation lock");
    waiter.signal(Signal::SIGTSTP);
    until("the waiter to stop", || state(waiter.pid()) == 'T');
    waiter.signal(Signal::SIGCONT);
    until("the waiter to go on", || state(waiter.pid()) != 'T');
    drop(held);
    waiter.wait().expect(0);
}

#[test]
fn ctrl_z_does_not_stop_a_waiter_that_holds_its_folder() {
    let world = World::new(SUITE);
    let held = Caller::new("ci", LONG).acquire_unrelated(world.ports.first).expect("free");
    let mut waiter = world.start(&["verify"]);
    waiter.wait_for("workstation lock");
    waiter.signal(Signal::SIGTSTP);
    waiter.wait_for("Ctrl-Z is ignored while the lock is held");
    assert_ne!(state(waiter.pid()), 'T');
    drop(held);
    waiter.wait().expect(0);
}

#[test]
fn ctrl_z_changes_nothing_while_the_lock_is_held() {
    let place = Place::new();
    let mut running = place.started("while [ ! -e go ]; do sleep 0.05; done");
    running.signal(Signal::SIGTSTP);
    running.wait_for("note: Ctrl-Z is ignored while the lock is held");
    std::fs::write(place.folder.path().join("go"), "").expect("a file");
    running.wait().expect(0);
}

#[test]
fn a_stopped_keeper_is_named_with_what_to_do_about_it() {
    let place = Place::new();
    let running = place.started("while [ ! -e go ]; do sleep 0.05; done");
    running.signal(Signal::SIGSTOP);
    until("the keeper to stop", || state(running.pid()) == 'T');
    let keeper = running.pid();
    let done = place.run(&["status", "--check"]).expect(4).says("taken, but it does not answer");
    done.says(&format!("stopped  {keeper}; to let it go on: kill -CONT {keeper}")).says("internal-runner");
    running.signal(Signal::SIGCONT);
    std::fs::write(place.folder.path().join("go"), "").expect("a file");
    running.wait().expect(0);
}

#[test]
fn a_killed_keeper_and_a_killed_runner_leave_nothing_behind() {
    let (place, token) = (Place::new(), token());
    let running = place.started(&format!("sleep 1000; : {token}"));
    running.signal(Signal::SIGKILL);
    running.wait().expect(1009);
    until("the port to be free", || place.is_free());
    assert_eq!(processes_with(&token), [0; 0], "the lock was free before its processes were gone");

    let (place, token) = (Place::new(), self::token());
    let running = place.started(&format!("sleep 1000; : {token}"));
    let runner = child_with(running.pid(), "internal-runner");
    kill(Pid::from_raw(runner), Signal::SIGKILL).expect("it lives");
    running.wait().expect(127).says("the runner is gone before it could say how the run ended");
    assert_eq!(processes_with(&token), [0; 0]);
    assert!(place.is_free());
}

#[test]
fn the_machine_is_let_go_of_before_the_folder() {
    let script = "touch target/started; while [ ! -e target/go ]; do sleep 0.05; done";
    let suite = SUITE.replace("\"true\"", &format!("[\"sh\", \"-c\", \"{script}\"]"));
    let world = World::new(&suite);
    let target = world.repo.join("target");
    std::fs::create_dir_all(&target).expect("a folder");
    let running = world.start(&["verify"]);
    let (machine, folder) = (world.ports.first, world.ports.first + 1);
    until("the task to start", || target.join("started").exists());
    let clients = [folder, machine].map(|port| {
        let mut client = connect(port);
        banner(&mut client);
        client
    });
    std::fs::write(target.join("go"), "").expect("a file");
    let ready = hung_up_on([&clients[0], &clients[1]]);
    assert!(ready[1], "the folder first: {ready:?}");
    running.wait().expect(0);
}

#[test]
fn the_lock_is_held_while_something_does_not_die() {
    if !may(&["unshare", "--pid", "--fork", "true"]) {
        return skipped(
            "the_lock_is_held_while_something_does_not_die",
            "nothing can be made here that SIGKILL does not end",
        );
    }
    // The first process of a pid namespace is not gone before every other one there is reaped; and one that came in from
    // outside is reaped by its own parent.
    let (place, token) = (Place::new(), token());
    let script = format!("touch started; exec unshare --pid --fork -- sh -c 'sleep 1000; : {token}'");
    let mut running = place.start(&["run", "--", "sh", "-c", &script]);
    let (first, outside) = undying(&token);
    let runner = child_with(running.pid(), "internal-runner");
    kill(Pid::from_raw(runner), Signal::SIGKILL).expect("it lives");
    running.wait_for("does not die of SIGKILL; the lock is held while it lives");
    place.run(&["run", "--queue", "1s", "--", "true"]).expect(124);
    outside.signal(Signal::SIGCONT);
    running.wait().expect(127).says(&format!("error: process {first} (")).says("does not die of SIGKILL");
    assert!(place.is_free());
    assert_eq!(processes_with(&token), [0; 0]);
}

/// The first process of a pid namespace that does not go, the one with this word; and who has to go on for it to go.
fn undying(token: &str) -> (i32, Outside) {
    let is_first = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        ids.split_whitespace().count() > 1 && ids.ends_with("\t1")
    };
    let mut first = None;
    until("the namespace", || {
        first = processes_with(token).into_iter().find(is_first);
        first.is_some()
    });
    let first = first.expect("just found");
    let mut enters = Command::new("nsenter");
    enters.args(["--target", &first.to_string(), "--pid", "--", "sleep", "1000"]);
    let outside = Outside(enters.spawn().expect("nsenter starts"));
    let children = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    until("somebody to come in from outside", || !children(outside.0.id()).trim().is_empty());
    outside.signal(Signal::SIGSTOP);
    until("it to stop", || state(outside.0.id().cast_signed()) == 'T');
    (first, outside)
}

/// What an earlier run has left still works on the machine: no verdict of this one is to be relied on, and the runner, which has
/// not seen it, is told.
#[test]
fn what_the_dead_have_left_and_does_not_die_takes_the_verdict_away() {
    if !may(&["unshare", "--pid", "--fork", "true"]) {
        let test = "what_the_dead_have_left_and_does_not_die_takes_the_verdict_away";
        return skipped(test, "nothing can be made here that SIGKILL does not end");
    }
    let (world, token) = (World::new(SUITE), token());
    let dead = RunId::new(1_796_000_000, 7);
    let base = world.scratch().join(format!("xtask-{}", nix::unistd::geteuid()));
    std::fs::create_dir_all(base.join(dead.as_str())).expect("a folder");
    let mut left = Command::new("unshare");
    left.args(["--pid", "--fork", "--", "sh", "-c", &format!("sleep 1000; : {token}")]);
    let mut left = left.env("XTASK_MARK", format!("{dead}/one")).spawn().expect("unshare starts");
    let (first, outside) = undying(&token);
    let done = world.run(&["verify"]).expect(7);
    outside.signal(Signal::SIGCONT);
    left.wait().expect("it ends");
    let what = format!("process {first} (");
    let done = done.says(&format!("TROUBLE    {what}")).says("does not die of SIGKILL");
    assert_eq!(done.err.matches("exit code").count(), 1, "{}", done.err);
    world.run(&["check-receipt", "--unsigned"]).expect(6).says(&what);
}

/// A process that goes with the test, also where it is stopped.
struct Outside(std::process::Child);

impl Outside {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).expect("it is ours");
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Where it goes on, it reaps its child and ends.
        self.signal(Signal::SIGCONT);
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
