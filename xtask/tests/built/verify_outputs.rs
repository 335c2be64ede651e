//! The outputs that tasks declare: made anew in each run, inside the repository, and hashed.

use std::fs;
use std::os::fd::AsFd as _;
use std::process::Command;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::plan::schedule::Ending;
use xtask::run::outputs::Hashes;
use xtask::sys;
use xtask::verdict::ExitStatus;

use crate::verify::{suite, task_of};
use crate::world::{World, until};

#[test]
fn outputs_are_made_anew_and_hashed() {
    let outputs = "deadline = \"1m\"\noutputs = [\"out/app\"]\n";
    let made = format!("[task.make]\ncommand = \"sh -c 'mkdir -p out && echo app > out/app'\"\n{outputs}");
    let world = World::new(&suite(&made));
    world.write(".gitignore", "/target\n/receipts/\n/out/\n");
    world.commit("ignore");
    world.run(&["verify"]).expect(0);
    let receipt: Value = serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap();
    let subject = receipt["subject"].as_array().unwrap().iter().find(|s| s["name"] == "out/app").unwrap();
    // sha256sum of "app\n"
    assert_eq!(subject["digest"]["sha256"], "8a8f60ecb09b7e64c6d5214a8043865e608507db8c3f61f995eae6d078875901");
}

#[test]
fn an_output_of_an_earlier_build_does_not_pass_for_this_ones() {
    let world = World::new(&suite("[task.make]\ncommand = \"true\"\ndeadline = \"1m\"\noutputs = [\"out/app\"]\n"));
    world.write(".gitignore", "/target\n/receipts/\n/out/\n");
    world.commit("ignore");
    world.write("out/app", "old");
    world.run(&["verify"]).expect(1).says("out/app");
    assert!(!world.repo.join("out/app").exists());
}

#[test]
fn an_output_that_is_a_link_is_none() {
    let task = "[task.make]\ncommand = \"ln -s /etc/hostname out\"\ndeadline = \"1m\"\noutputs = [\"out\"]\n";
    let world = World::new(&suite(task));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    world.run(&["verify"]).expect(1).says("not a regular file");
}

#[test]
fn an_output_that_git_tracks_or_that_lies_outside_is_refused_before_it_is_removed() {
    let task = "[task.make]\ncommand = \"false\"\ndeadline = \"1m\"\noutputs = [\"kept.txt\", \"link/file\"]\n";
    let world = World::new(&suite(task));
    let outside = world.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "theirs").unwrap();
    std::os::unix::fs::symlink(&outside, world.repo.join("link")).unwrap();
    world.write("kept.txt", "mine");
    world.commit("a tracked file and a link");
    world.write("kept.txt", "mine, not committed yet");
    world.run(&["verify"]).expect(2).says("kept.txt is tracked by git").says("link/file lies outside");
    assert_eq!(fs::read_to_string(world.repo.join("kept.txt")).unwrap(), "mine, not committed yet");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs");
}

#[test]
fn a_link_that_a_task_makes_leads_no_output_outside() {
    let world = World::new(&suite(
        "[task.link]\ncommand = \"ln -s ../outside out\"\ndeadline = \"1m\"\n\
         [task.make]\ncommand = \"false\"\ndeadline = \"1m\"\noutputs = [\"out/file\"]\nneeds = [\"link\"]\n",
    ));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    let outside = world.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "theirs").unwrap();
    world.run(&["verify"]).expect(1).says("lies outside");
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs");
}

#[test]
fn an_output_too_large_to_read_in_time_fails_its_task_and_does_not_hold_up_the_run() {
    let task = "[task.make]\ncommand = \"truncate -s 4T out\"\ndeadline = \"4s\"\noutputs = [\"out\"]\n";
    let world = World::new(&suite(task));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    world.run(&["verify"]).expect(1).says("its outputs were not read to the end: passed its deadline");
    assert_eq!(task_of(&world, "make")["verdict"], "failed");
}

#[test]
fn ctrl_c_ends_the_reading_of_outputs() {
    let task = "[task.make]\ncommand = \"truncate -s 4T out\"\ndeadline = \"4m\"\noutputs = [\"out\"]\n";
    let world = World::new(&suite(task));
    world.write(".gitignore", "/target\n/receipts/\n/out\n");
    world.commit("ignore");
    let mut run = world.start(&["verify"]);
    run.wait_for("Start");
    until("the output", || world.repo.join("out").exists());
    run.signal(Signal::SIGINT);
    run.wait().expect(130);
}

/// Where the next test plays.
const NO_ROOM: &str = "XTASK_TEST_NO_ROOM_FOR_THREADS";

#[test]
fn outputs_that_no_thread_can_read_are_trouble_and_no_panic() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let test = "verify_outputs::in_a_process_without_room_for_threads";
    command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]).env(NO_ROOM, "1");
    // More than there are addresses for: whatever std starts without saying how large its stack is cannot start.
    let done = command.env("RUST_MIN_STACK", (1_u64 << 48).to_string()).output().expect("this program starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
#[ignore = "a process that another test starts without room for threads"]
fn in_a_process_without_room_for_threads() {
    if std::env::var_os(NO_ROOM).is_none() {
        return;
    }
    std::thread::Builder::new().spawn(|| ()).expect_err("there is no room");
    let status = ExitStatus::Code(0);
    let ending = Ending { status, at: sys::now(), leftovers: Vec::new(), leftovers_fail: false, trouble: None };
    let mut hashes = Hashes::new().expect("sockets");
    hashes.begin(0, ending.clone(), "/".into(), vec!["etc/hostname".to_owned()]);
    let mut woken = [PollFd::new(hashes.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut woken, PollTimeout::ZERO), Ok(1), "nobody would look");
    let taken = hashes.take();
    let [(0, ended, Err(why))] = &taken[..] else { panic!("{taken:?}") };
    assert_eq!(ended, &ending);
    assert!(why.contains("no thread"), "{why}");
}
