//! `lock run`: any command under the lock, as keeper and runner do it for a suite.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lock_caller::{Caller, LONG};
use crate::lock_contender::Contender;
use crate::lock_exclusion::copy_for_all;
use crate::lock_wedge::{banner, connect, hung_up_on, spins};
use crate::world::{Done, Folder, Ports, Running, World, processes_with, skipped, until};

/// A folder that is no repository, and ports.
struct Place {
    folder: Folder,
    ports: Ports,
}

impl Place {
    fn new() -> Self {
        Self { folder: Folder::new(), ports: Ports::take(2) }
    }

    fn command(&self, args: &[&str]) -> Command {
        // Where these tests run under nohup, the program would inherit that HUP is ignored, and keep it so.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_xtask"), "lock"]);
        command.args(args).current_dir(self.folder.path());
        command.env("XTASK_LOCK_PORT", self.ports.first.to_string());
        command.env("XTASK_WORKTREE_PORTS", format!("{0}-{0}", self.ports.first + 1));
        command.env_remove("XTASK_MARK");
        command
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), &self.folder)
    }

    fn run(&self, args: &[&str]) -> Done {
        self.start(args).wait()
    }

    /// Runs a shell script under the lock, in the background, until it has made the file `started`.
    fn started(&self, script: &str) -> Running {
        let script = format!("touch started; {script}");
        let running = self.start(&["run", "--", "sh", "-c", &script]);
        until("the command to start", || self.folder.path().join("started").exists());
        running
    }

    fn is_free(&self) -> bool {
        xtask::lock::port::listen(self.ports.first).expect("no error").is_some()
    }
}

/// A word that is on no other command line.
fn token() -> String {
    format!("token-{:08x}", xtask::sys::random().expect("random bits"))
}

#[test]
fn its_exit_code_is_the_commands() {
    let place = Place::new();
    for code in [0, 1, 4, 7, 42, 255] {
        place.run(&["run", "--", "sh", "-c", &format!("exit {code}")]).expect(code);
    }
    place.run(&["run", "--", "sh", "-c", "kill -USR1 $$"]).expect(128 + Signal::SIGUSR1 as i32);
    assert!(place.is_free());
}

#[test]
fn stdin_stdout_and_stderr_are_the_callers() {
    let place = Place::new();
    let mut command = place.command(&["run", "--", "sh", "-c", "cat; echo complaint >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    child.stdin.take().expect("a pipe").write_all(b"some words").expect("written");
    let out = child.wait_with_output().expect("it ends");
    assert_eq!((&out.stdout[..], &out.stderr[..]), (&b"some words"[..], &b"complaint\n"[..]));
}

#[test]
fn two_take_turns_and_the_second_says_for_whom_it_waits() {
    let place = Place::new();
    let first = place.started("echo a >> order; while [ ! -e go ]; do sleep 0.05; done; echo b >> order");
    let mut second = place.start(&["run", "--", "sh", "-c", "echo c >> order"]);
    second.wait_for("Waiting workstation lock 127.0.0.1:");
    second.wait_for("running sh -c touch started; ");
    let status = place.run(&["status"]).expect(0);
    assert!(status.err.contains("says it is lock run, "), "{}", status.err);
    until("the waiter to be counted", || place.run(&["status"]).err.contains("1 more waits for it"));
    std::fs::write(place.folder.path().join("go"), "").expect("a file");
    first.wait().expect(0);
    let done = second.wait().expect(0).says("Acquired workstation lock after ");
    assert!(!done.err.contains("Waiting waited"), "{}", done.err);
    let order = std::fs::read_to_string(place.folder.path().join("order")).expect("the order");
    assert_eq!(order, "a\nb\nc\n");
}

#[test]
fn a_spent_budget_a_stranger_and_a_nested_call_are_told_from_the_commands_own_codes() {
    let place = Place::new();
    let held = Caller::new("ci", LONG).acquire_unrelated(place.ports.first).expect("free");
    let done = place.run(&["run", "--queue", "0s", "--", "touch", "ran"]).expect(124);
    done.says("a budget of 0s is one try").says("acme/orders");
    drop(held);
    until("the lock to be free", || place.is_free());

    let listener = std::net::TcpListener::bind(("127.0.0.1", place.ports.first)).expect("free");
    std::thread::spawn(move || listener.incoming().for_each(|c| drop(c.expect("a connection").write_all(b"hi\n"))));
    place.run(&["run", "--", "touch", "ran"]).expect(125).says("is not xtask");
    assert!(!place.folder.path().join("ran").exists());

    // One try is told too what it is that has the port, also where that says nothing.
    let place = Place::new();
    let listener = std::net::TcpListener::bind(("127.0.0.1", place.ports.first)).expect("free");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let done = place.run(&["run", "--queue", "0s", "--", "touch", "ran"]).expect(125);
    done.says("it takes connections and ends them").says(&format!("(pid {})", std::process::id()));

    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_xtask");
    let done = place.run(&["run", "--", program, "lock", "run", "--", "touch", "ran"]).expect(122);
    done.says("this call is a part of run r-").says("which holds the workstation lock itself");
    // The folder's lock comes before the machine's.
    place.run(&["run", "--", program, "lock", "run", "--scope", "worktree", "--", "touch", "ran"]).expect(122);
    assert!(!place.folder.path().join("ran").exists());
}

#[test]
fn wrong_use_is_told_from_the_commands_own_codes() {
    let place = Place::new();
    let done = place.run(&["run", "--", "no-such-program"]).expect(122);
    done.says("there is no program \"no-such-program\" on PATH").says("exit code 122\n");
    let done = place.run(&["run", "--", "sh", "-c", "exit 122"]).expect(122);
    assert_eq!(done.err, "", "the command's own");
    place.run(&["run"]).expect(122);
    place.run(&["run", "--queue", "soon", "--", "true"]).expect(122);
    place.run(&["run", "--", "./missing"]).expect(122);
    place.run(&["run", "--deadline", "1ms", "--", "true"]).expect(122).says("--deadline");
    for flag in ["--queue", "--deadline"] {
        place
            .run(&["run", flag, "18446744073709551615s", "--", "true"])
            .expect(122)
            .says("longer than a hundred years");
        place.run(&["run", flag, "100y", "--", "true"]).expect(0);
    }
    let script = place.folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    place.run(&["run", "--", "./script"]).expect(122).says("could not be started");
    let mut command = place.command(&["run", "--", "true"]);
    command.env("XTASK_LOCK_PORT", "0");
    Running::start(command, &place.folder).wait().expect(122).says("XTASK_LOCK_PORT");
    place.run(&["status", "--nonsense"]).expect(2);
}

#[test]
fn a_place_that_is_none_is_refused_before_anybody_queues() {
    let world = World::new(SUITE);
    let _held = Caller::new("ci", LONG).acquire_unrelated(world.ports.first).expect("free");
    let run = |args: &[&str], place: &str| {
        let mut command = world.command(args);
        command.env("XTASK_SCRATCH", place);
        Running::start(command, &world.folder).wait()
    };
    let file = world.repo.join("ci/suite.toml").display().to_string();
    for place in ["s", &file, "/no/such/folder", "/proc", &format!("/{}", "tmp/".repeat(20))] {
        let done = run(&["lock", "run", "--queue", "0s", "--", "true"], place).expect(122);
        done.says("error: no scratch folder can be made: ");
        run(&["verify"], place).expect(2).says("error: no scratch folder can be made: ");
    }
    run(&["lock", "run", "--queue", "0s", "--", "true"], "s").expect(122).says("XTASK_SCRATCH has to name a folder by");
}

#[test]
fn a_room_full_of_waiters_keeps_nobody_from_its_turn() {
    let place = Place::new();
    let mut holder = Contender::holding(place.ports.first);
    let mut others = Vec::new();
    until("the room to be full: a newcomer is told who holds it, and hung up on", || {
        // That may come before anybody has looked at the new connection.
        let Ok(mut client) = TcpStream::connect(("127.0.0.1", place.ports.first)) else { return others.len() > 4 };
        let line = format!("xtask-wait/1 {{\"waited_us\":1,\"run\":\"r-{}\"}}\n", others.len());
        let told = client.write_all(line.as_bytes());
        client.set_read_timeout(Some(Duration::from_millis(10))).expect("a timeout");
        let end = client.read_to_end(&mut Vec::new());
        others.push(client);
        told.is_err() || !end.is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    });
    let mut waiter = place.start(&["run", "--", "true"]);
    waiter.wait_for("Waiting workstation lock");
    assert!(!spins(Pid::from_raw(waiter.pid())), "it polls, and not in a loop");
    holder.tell("release");
    waiter.wait().expect(0).says("Acquired workstation lock");
}

#[test]
fn a_port_that_may_not_be_listened_on_is_an_error_at_once() {
    let first = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if first.trim().parse::<u16>().is_ok_and(|first| first <= 1) {
        return skipped("a_port_that_may_not_be_listened_on_is_an_error_at_once", "every port is everybody's here");
    }
    let place = Place::new();
    let program = copy_for_all(env!("CARGO_BIN_EXE_xtask").as_ref(), &place.folder);
    let mut command = Command::new("setpriv");
    if nix::unistd::geteuid().is_root() {
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(&program);
    } else {
        command = Command::new(&program);
    }
    command.args(["lock", "run", "--", "true"]).current_dir(place.folder.path());
    command.env("XTASK_LOCK_PORT", "1").env("XTASK_WORKTREE_PORTS", "2-2");
    Running::start(command, &place.folder).wait().expect(122).says("cannot listen on 127.0.0.1:1: Permission denied");
}

#[test]
fn its_deadline_ends_all_of_it() {
    let place = Place::new();
    let token = token();
    let script = format!("trap '' TERM; sh -c 'sleep 1000; : {token}' & sh -c 'sleep 1000; : {token}'");
    let done = place.run(&["run", "--deadline", "300ms", "--", "sh", "-c", &script]).expect(123);
    done.says("error: the command had not ended after 0.3s, and was stopped").says("exit code 123\n");
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
    assert!(now_ms <= free_at_ms, "{} ms after it was to be free at the latest", now_ms - free_at_ms);
    assert_eq!(processes_with(&token), [0; 0]);
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
fn the_lock_is_held_while_something_does_not_die() {
    if !nix::unistd::geteuid().is_root() {
        return skipped(
            "the_lock_is_held_while_something_does_not_die",
            "only root can make what SIGKILL does not end",
        );
    }
    // The first process of a pid namespace is not gone before every other one there is reaped; and one that came in from
    // outside is reaped by its own parent.
    let (place, token) = (Place::new(), token());
    let script = format!("touch started; exec unshare --pid --fork -- sh -c 'sleep 1000; : {token}'");
    let mut running = place.start(&["run", "--", "sh", "-c", &script]);
    let is_first = |pid: &i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        ids.split_whitespace().count() > 1 && ids.ends_with("\t1")
    };
    let mut first = None;
    until("the namespace", || {
        first = processes_with(&token).into_iter().find(is_first);
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

    let runner = child_with(running.pid(), "internal-runner");
    kill(Pid::from_raw(runner), Signal::SIGKILL).expect("it lives");
    running.wait_for("does not die of SIGKILL; the lock is held while it lives");
    place.run(&["run", "--queue", "1s", "--", "true"]).expect(124);
    outside.signal(Signal::SIGCONT);
    running.wait().expect(127).says(&format!("error: process {first} (")).says("does not die of SIGKILL");
    assert!(place.is_free());
    assert_eq!(processes_with(&token), [0; 0]);
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

/// A suite that passes at once.
const SUITE: &str = "schema = 1\n[run]\ndeadline = \"2m\"\nqueue = \"2m\"\nmargin = \"1m\"\nstop-grace = \"1s\"\n\
                     wrap-up = \"10s\"\n[task.a]\ncommand = \"true\"\ndeadline = \"10s\"\n";

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
fn a_folders_lock_is_that_of_its_repository() {
    let world = World::new("");
    std::fs::create_dir(world.repo.join("web")).expect("a folder");
    let held = Caller::new("ci", LONG).acquire_unrelated(world.ports.first + 1).expect("free");
    let run = |scope: &str, folder: &str| {
        let mut command = world.command(&["lock", "run", "--scope", scope, "--queue", "0s", "--", "true"]);
        Running::start(
            std::mem::replace(command.current_dir(world.repo.join(folder)), Command::new("true")),
            &world.folder,
        )
        .wait()
    };
    run("worktree", "web").expect(124);
    run("workstation", "web").expect(0);
    drop(held);
    run("worktree", "web").expect(0);
}
