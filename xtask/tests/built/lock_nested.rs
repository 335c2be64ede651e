//! Calls from inside a run that holds a lock, and folders of which it cannot be told whose they are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::lock_caller::{Caller, LONG};
use crate::world::{Done, Folder, Running, World, skipped};

const SUITE: &str = "schema = 1\n[run]\ndeadline = \"2m\"\nqueue = \"2m\"\nmargin = \"1m\"\nstop-grace = \"1s\"\n\
                     wrap-up = \"10s\"\n[task.a]\ncommand = \"true\"\ndeadline = \"10s\"\n";

const PROGRAM: &str = env!("CARGO_BIN_EXE_xtask");

impl World {
    /// Runs these words under a lock, outside of any other run.
    fn under(&self, scope: &str, words: &[&str]) -> Done {
        let mut command = self.command(&["lock", "run", "--scope", scope, "--"]);
        command.args(words).env_remove("XTASK_MARK");
        Running::start(command, &self.folder).wait()
    }
}

#[test]
fn nobody_waits_for_a_folder_inside_a_run_that_holds_the_machine() {
    let world = World::new(SUITE);
    // As by a run that waits for the machine: each would wait for the other.
    let _folder = Caller::new("ci", LONG).acquire_unrelated(world.ports.first + 1).expect("free");
    let inner = [PROGRAM, "lock", "run", "--scope", "worktree", "--queue", "2s", "--", "true"];
    let done = world.under("workstation", &inner).expect(122);
    done.says("this call is a part of run r-").says("which holds the workstation lock itself");
    let verify = [PROGRAM, "verify", "--queue", "2s"];
    world.under("workstation", &verify).expect(2).says("which holds the workstation lock itself");
}

#[test]
fn a_call_that_has_shed_its_mark_is_known_by_its_ancestors() {
    let world = World::new(SUITE);
    let shed = ["env", "-u", "XTASK_MARK", "sh", "-c", "\"$@\"; exit $?", "sh", PROGRAM];
    for inner in [&["lock", "run", "--queue", "2s", "--", "true"][..], &["verify", "--queue", "2s"]] {
        let code = if inner[0] == "lock" { 122 } else { 2 };
        let done = world.under("workstation", &[&shed[..], inner].concat()).expect(code);
        done.says("which holds the workstation lock itself");
    }
    let inner = ["lock", "run", "--scope", "worktree", "--queue", "2s", "--", "true"];
    world.under("worktree", &[&shed[..], &inner].concat()).expect(122).says("which holds the worktree lock itself");
}

#[test]
fn the_machine_may_be_asked_for_inside_a_run_that_holds_a_folder() {
    let world = World::new(SUITE);
    world.under("worktree", &[PROGRAM, "lock", "run", "--", "true"]).expect(0);
    let again = [PROGRAM, "verify", "--queue", "2s"];
    world.under("worktree", &again).expect(2).says("which holds the worktree lock itself");
}

#[test]
fn a_folder_of_which_git_tells_nothing_has_no_lock_of_its_own() {
    let world = World::new(SUITE);
    let run = |args: &[&str]| {
        let mut command = world.command(args);
        Running::start(std::mem::replace(command.env("PATH", "/no/such/folder"), Command::new("true")), &world.folder)
            .wait()
    };
    let worktree = ["lock", "run", "--scope", "worktree", "--", "/bin/true"];
    run(&worktree).expect(122).says("git cannot be run: is it installed and on PATH?");
    run(&["lock", "run", "--", "/bin/true"]).expect(0);
    let status = run(&["lock", "status"]).expect(2).says("git cannot be run");
    status.says(&format!("workstation lock 127.0.0.1:{}: free", world.ports.first));
    // Where there is no repository, git is not asked.
    std::fs::rename(world.repo.join(".git"), world.repo.join("git")).expect("another name");
    run(&worktree).expect(0);
    run(&["lock", "status"]).expect(0);
}

#[test]
fn a_repository_of_another_user_is_refused_in_the_words_of_git() {
    if !nix::unistd::geteuid().is_root() {
        return skipped("a_repository_of_another_user_is_refused_in_the_words_of_git", "only root can give one away");
    }
    let world = World::new(SUITE);
    for path in [world.repo.clone(), world.repo.join(".git")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("given away");
    }
    let worktree = ["lock", "run", "--scope", "worktree", "--", "true"];
    world.run(&worktree).expect(122).says("dubious ownership");
    world.run(&["lock", "status"]).expect(2).says("dubious ownership");
}

#[test]
fn a_folder_that_is_gone_hides_nobody_who_has_the_machine() {
    let world = World::new(SUITE);
    let _held = Caller::new("ci", LONG).acquire_unrelated(world.ports.first).expect("free");
    let mut command = Command::new("sh");
    command.args(["-c", "mkdir gone && cd gone && rmdir ../gone && exec \"$1\" lock status", "sh", PROGRAM]);
    world.dress(&mut command);
    let done = Running::start(command, &world.folder).wait().expect(2);
    done.says(&format!("workstation lock 127.0.0.1:{}: held since ", world.ports.first)).says("current folder");
}

#[test]
fn an_argument_that_is_no_text_reaches_the_command() {
    let (world, folder) = (World::new(SUITE), Folder::new());
    let mut command = world.command(&["lock", "run", "--", "sh", "-c", "test \"$1\" = \"$(printf 'a\\377b')\"", "sh"]);
    command.arg(OsStr::from_bytes(b"a\xffb"));
    Running::start(command, &folder).wait().expect(0);
}
