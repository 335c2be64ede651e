//! `lock run`: any command under the lock, as keeper and runner do it for a suite. `lock_run_ends` says how it ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::lock_caller::{Caller, LONG};
use crate::lock_client::spins;
use crate::lock_contender::Contender;
use crate::lock_exclusion::copy_for_all;
use crate::world::{Done, Folder, Ports, Running, World, nobody_listens, skipped, until};

/// A folder that is no repository, and ports.
pub struct Place {
    pub folder: Folder,
    pub ports: Ports,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: Folder::new(), ports: Ports::take(2) }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        // Where these tests run under nohup, the program would inherit that HUP is ignored, and keep it so.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_xtask"), "lock"]);
        command.args(args).current_dir(self.folder.path());
        command.env("XTASK_LOCK_PORT", self.ports.first.to_string());
        command.env("XTASK_WORKTREE_PORTS", format!("{0}-{0}", self.ports.first + 1));
        command.env_remove("XTASK_MARK");
        command
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), &self.folder)
    }

    pub fn run(&self, args: &[&str]) -> Done {
        self.start(args).wait()
    }

    /// Runs a shell script under the lock, in the background, until it has made the file `started`.
    pub fn started(&self, script: &str) -> Running {
        let script = format!("touch started; {script}");
        let running = self.start(&["run", "--", "sh", "-c", &script]);
        until("the command to start", || self.folder.path().join("started").exists());
        running
    }

    pub fn is_free(&self) -> bool {
        nobody_listens(self.ports.first)
    }
}

/// A suite that passes at once.
pub const SUITE: &str = "schema = 1\n[run]\ndeadline = \"2m\"\nqueue = \"2m\"\nmargin = \"1m\"\nstop-grace = \"1s\"\n\
                     wrap-up = \"10s\"\n[task.a]\ncommand = \"true\"\ndeadline = \"10s\"\n";

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
    crate::world::script(&script, "#!/no/such/interpreter\n");
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
    until("the folder to be free", || nobody_listens(world.ports.first + 1));
    run("worktree", "web").expect(0);
}

#[test]
fn those_who_wait_are_told_the_repository_around_the_folder() {
    let world = World::new("");
    std::fs::create_dir(world.repo.join("web")).expect("a folder");
    let ask = [env!("CARGO_BIN_EXE_xtask"), "lock", "status", "--message-format", "json"];
    let mut command = world.command(&[&["lock", "run", "--"], &ask[..]].concat());
    command.current_dir(world.repo.join("web"));
    let done = Running::start(command, &world.folder).wait().expect(0);
    let told: serde_json::Value = serde_json::from_str(done.out.lines().next().expect("a line")).expect("JSON");
    let root = world.repo.canonicalize().expect("it is there");
    assert_eq!(told["holder"]["folder"], root.to_str().expect("text"), "{told}");
    assert_eq!(told["holder"]["repository"], root.file_name().expect("a name").to_str().expect("text"), "{told}");
}
