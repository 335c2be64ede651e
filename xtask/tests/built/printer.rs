//! A reader that has stopped (a terminal after Ctrl-S, `| less`, a collector that hangs) holds up nothing: neither the
//! run nor whoever waits for the workstation.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::field::runner_of;
use crate::process::{assert_none_left, suite, task, token};
use crate::world::{World, processes_with, until};

/// A pipe that is full: what is printed into it blocks, until somebody reads.
fn full_pipe() -> (File, OwnedFd) {
    let (read, write) = nix::unistd::pipe().unwrap();
    let mut file = File::from(write.try_clone().unwrap());
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while file.write(&[b'-'; 4096]).is_ok() {}
    while file.write(b"-").is_ok() {}
    fcntl(&write, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    (File::from(read), write)
}

fn start(mut command: Command, stderr: OwnedFd) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap()
}

/// Everything that is printed until the end of all who may print.
fn read_all(mut pipe: File) -> String {
    let mut text = Vec::new();
    pipe.read_to_end(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

fn is_free(world: &World) -> bool {
    world.run(&["lock", "status", "--check"]).code == 0
}

#[test]
fn a_run_ends_although_nobody_reads_and_says_all_of_it_later() {
    let world = World::new(&suite("[task.one]\ncommand = 'true'\ndeadline = \"30s\"\n"));
    let (pipe, stderr) = full_pipe();
    let mut run = start(world.command(&["verify"]), stderr);
    until("the receipt", || !world.receipts().is_empty());
    until("the locks", || is_free(&world));
    assert!(run.try_wait().unwrap().is_none(), "nobody has read its words");
    let said = read_all(pipe);
    assert_eq!(run.wait().unwrap().code(), Some(0));
    for words in ["Acquired", "Start", "Passed", "PASSED", "receipts/"] {
        assert!(said.contains(words), "no {words} in {}", said.trim_start_matches('-'));
    }
}

#[test]
fn a_command_that_prints_for_nobody_is_ended_and_the_lock_is_free() {
    let world = World::new(&suite(""));
    let (pipe, stderr) = full_pipe();
    let token = token();
    let args = ["lock", "run", "--deadline", "4s", "--", "sh", "-c", "exec yes \"$0\" >&2", &token];
    let mut run = start(world.command(&args), stderr);
    until("the command", || !processes_with(&token).is_empty());
    until("the end", || processes_with(&token).iter().all(|&pid| pid.cast_unsigned() == run.id()));
    until("the lock", || is_free(&world));
    let said = read_all(pipe);
    assert_eq!(run.wait().unwrap().code(), Some(123), "{}", said.trim_start_matches('-'));
}

/// The runner is stuck in no write when it has to see that its keeper is gone.
#[test]
fn a_killed_keeper_takes_all_along_although_nobody_reads() {
    let token = token();
    let world = World::new(&suite(&task("one", "deaf hang", &token, "")));
    let (pipe, stderr) = full_pipe();
    let mut run = start(world.command(&["verify"]), stderr);
    until("the task", || !processes_with(&token).is_empty());
    let keeper = i32::try_from(run.id()).unwrap();
    let runner = runner_of(keeper).unwrap();
    kill(Pid::from_raw(keeper), Signal::SIGKILL).unwrap();
    run.wait().unwrap();
    until("the locks", || is_free(&world));
    assert_none_left(&token);
    until("the runner's end", || xtask::process::table::Process::read(runner).is_none_or(|p| p.dead));
    drop(pipe);
}

/// Of more than is kept for later (a whole log, as GitHub gets it) the oldest is left out, and that is said.
#[test]
fn what_finds_no_room_is_left_out_and_the_run_ends() {
    let flood = "yes 0123456789012345678901234567890123456789 | head -n 100000; exit 1";
    let world = World::new(&suite(&format!("[task.one]\ncommand = ['sh', '-c', '{flood}']\ndeadline = \"30s\"\n")));
    let (pipe, stderr) = full_pipe();
    let mut command = world.command(&["verify"]);
    command.env("GITHUB_ACTIONS", "true").env_remove("GITHUB_STEP_SUMMARY");
    let mut run = start(command, stderr);
    until("the receipt", || !world.receipts().is_empty());
    until("the locks", || is_free(&world));
    let said = read_all(pipe);
    assert_eq!(run.wait().unwrap().code(), Some(1));
    for words in ["texts are not shown", "FAILED", "receipts/", "exit code 1"] {
        assert!(said.contains(words), "no {words} at the end");
    }
    assert!(said.len() < 3_000_000, "{} bytes of a log of 4 MB", said.len());
}

/// A reader that is there gets all of it, however slow it is.
#[test]
fn a_slow_reader_loses_nothing() {
    let flood = "yes 0123456789012345678901234567890123456789 | head -n 60000; exit 1";
    let world = World::new(&suite(&format!("[task.one]\ncommand = ['sh', '-c', '{flood}']\ndeadline = \"30s\"\n")));
    let (mut pipe, stderr) = full_pipe();
    let mut command = world.command(&["verify"]);
    command.env("GITHUB_ACTIONS", "true").env_remove("GITHUB_STEP_SUMMARY");
    let mut run = start(command, stderr);
    let (mut text, mut piece) = (Vec::new(), [0; 16 << 10]);
    while let count @ 1.. = pipe.read(&mut piece).unwrap() {
        text.extend_from_slice(&piece[..count]);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert_eq!(run.wait().unwrap().code(), Some(1));
    let text = String::from_utf8(text).unwrap();
    assert!(text.lines().filter(|line| line.contains("0123456789012345678901234567890123456789")).count() >= 60_000);
    assert!(text.contains("receipts/"), "the end is there too");
}
