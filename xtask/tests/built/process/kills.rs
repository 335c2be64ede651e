//! SIGKILL to the processes of a run itself, at random moments.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::field::{Dice, Field, Victim, runner_of};
use super::fixture::{assert_none_left, suite, task, token};
use crate::world::{World, processes_with, until};

#[test]
fn no_single_kill_leaves_anything() {
    let field = Field::new();
    for seed in 0..20 {
        let (victim, moment) = Dice::new(seed).kill();
        field.round(victim, moment);
    }
}

#[test]
fn the_next_run_starts_when_the_last_process_is_gone() {
    let field = Field::new();
    for victim in [Victim::Runner, Victim::Keeper, Victim::KeepersGroup] {
        let mut first = field.start();
        field.is_there();
        let mut next = field.world.start(&["verify", "--only", "check"]);
        next.wait_for("Waiting");
        let keeper = Pid::from_raw(first.pid());
        match victim {
            Victim::Runner => kill(Pid::from_raw(runner_of(first.pid()).unwrap()), Signal::SIGKILL),
            Victim::Keeper => kill(keeper, Signal::SIGKILL),
            Victim::KeepersGroup => killpg(keeper, Signal::SIGKILL),
        }
        .unwrap();
        first.child.wait().unwrap();
        let next = next.wait().expect(0);
        assert!(!next.err.contains("had left"), "the next run had to clean up: {}", next.err);
    }
}

#[test]
fn where_both_are_killed_the_next_run_ends_what_is_left() {
    let field = Field::new();
    let mut first = field.start();
    field.is_there();
    let runner = Pid::from_raw(runner_of(first.pid()).unwrap());
    kill(runner, Signal::SIGSTOP).unwrap(); // it must not act on the keeper's end
    kill(Pid::from_raw(first.pid()), Signal::SIGKILL).unwrap();
    first.child.wait().unwrap();
    kill(runner, Signal::SIGKILL).unwrap();
    until("the ports", || field.ports_are_free());
    assert!(!processes_with(&field.token).is_empty(), "nobody was there to end them");
    field.world.run(&["verify", "--only", "check"]).expect(0).says("ended what a run that was killed had left");
    assert_none_left(&field.token);
}

/// One that has closed its log has its mark, and what is below it is the run's whatever it has shed.
#[test]
fn the_next_run_knows_what_is_left_by_its_mark_and_what_is_below_that() {
    let token = token();
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    let up = world.folder.path().join("up").display().to_string();
    let orders = format!("fork session leave close fork bare touch {up} hang end hang end hang");
    world.write("ci/suite.toml", &suite(&(task("a", &orders, &token, "") + &task("b", "say hi", &token, ""))));
    world.commit("a daemon and its child");
    let mut first = world.start(&["verify", "--only", "a"]);
    until("the daemon's child", || std::path::Path::new(&up).exists());
    let runner = Pid::from_raw(runner_of(first.pid()).unwrap());
    kill(runner, Signal::SIGSTOP).unwrap(); // it must not act on the keeper's end
    kill(Pid::from_raw(first.pid()), Signal::SIGKILL).unwrap();
    first.child.wait().unwrap();
    kill(runner, Signal::SIGKILL).unwrap();
    assert!(processes_with(&token).len() >= 3, "nobody was there to end them");
    world.run(&["verify", "--only", "b"]).expect(0).says("ended what a run that was killed had left");
    assert_none_left(&token);
}
