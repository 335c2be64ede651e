//! No two holders at once: among processes that are killed while they hold it, and among users and namespaces that share
//! the network.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::lock_caller::Caller;
use crate::lock_contender::Contender;
use crate::lock_storm::{Storm, rage};
use crate::world::{Folder, Ports, copy_program, may, until};

/// What a process of a storm does.
#[test]
#[ignore = "a process that the test of the storm starts"]
fn raging() {
    rage();
}

fn again() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["lock_exclusion::raging", "--exact", "--ignored", "--nocapture"]);
    command.process_group(0);
    command
}

#[test]
fn killed_holders_never_leave_two() {
    let (folder, ports) = (Folder::new(), Ports::take(1));
    let storm = Storm {
        folder: folder.path().to_owned(),
        ports: vec![ports.first],
        processes: 4,
        acquisitions: 3_000,
        limit: Duration::from_secs(60),
        seed: 20_261_130,
    };
    let outcome = storm.run(again);
    assert_eq!((outcome.two_holders, outcome.gave_up), (0, 0), "{outcome:?}");
    assert!(outcome.acquisitions > 100 && outcome.killed_holders > 10, "{outcome:?}");
}

#[test]
fn the_witness_sees_two_holders_where_the_lock_is_broken() {
    // Half of the callers use another port, which is no lock at all.
    let (folder, ports) = (Folder::new(), Ports::take(2));
    let storm = Storm {
        folder: folder.path().to_owned(),
        ports: vec![ports.first, ports.first + 1],
        processes: 4,
        acquisitions: 3_000,
        limit: Duration::from_secs(60),
        seed: 20_261_130,
    };
    let outcome = storm.run(again);
    assert!(outcome.two_holders > 0, "{outcome:?}");
}

/// A copy of this program that every user may start.
fn program_for_all(folder: &Folder) -> std::path::PathBuf {
    copy_for_all(&std::env::current_exe().expect("this program"), folder)
}

/// The same of any program.
pub fn copy_for_all(program: &std::path::Path, folder: &Folder) -> std::path::PathBuf {
    let copy = folder.path().join("program");
    copy_program(program, &copy);
    copy
}

#[test]
fn users_and_namespaces_that_share_the_network_exclude_each_other() {
    if !nix::unistd::geteuid().is_root() {
        let test = "users_and_namespaces_that_share_the_network_exclude_each_other";
        return crate::world::skipped(test, "only root can become somebody else");
    }
    let become_other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let elsewhere = ["unshare", "--user", "--map-current-user", "--mount", "--pid", "--fork", "--kill-child", "--"];
    let elsewhere = [&become_other[..], &elsewhere].concat();
    if !may(&[&elsewhere[..], &["true"]].concat()) {
        let test = "users_and_namespaces_that_share_the_network_exclude_each_other";
        return crate::world::skipped(test, "no namespaces can be made here");
    }
    let (folder, ports) = (Folder::new(), Ports::take(1));
    let program = program_for_all(&folder);
    let mut other = Command::new(elsewhere[0]);
    other.args(&elsewhere[1..]);
    let mut first = Contender::start_by(with(other, &program), ports.first);
    first.hear("held");

    // We read who they are, and that their pid means nothing here.
    let here = Caller::new("local", Duration::ZERO);
    here.acquire(ports.first).expect_err("held by another user");
    let said = here.said.take().join("\n");
    let name = nix::unistd::User::from_uid(65534.into()).expect("users").map_or("uid 65534".to_owned(), |u| u.name);
    assert!(said.contains(&format!("contender, {name} in ")), "{said}");
    let xtask::lock::status::State::Held { holder } =
        xtask::lock::status::look(xtask::lock::Scope::Workstation, ports.first).expect("a look")
    else {
        panic!("not held")
    };
    assert_ne!(holder.pid_namespace, xtask::sys::namespace("pid"));
    assert_eq!(holder.pid, Some(1), "the first process of a namespace of its own");

    // And the other way round: they wait for us.
    drop(first);
    let held = until_won(ports.first);
    let mut other = Command::new("setpriv");
    other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
    let mut second = Contender::start_by(with(other, &program), ports.first);
    until("the other user to wait", || {
        let state = xtask::lock::status::look(xtask::lock::Scope::Workstation, ports.first).expect("a look");
        matches!(state, xtask::lock::status::State::Held { holder } if holder.waiting == Some(1))
    });
    drop(held);
    second.hear("held");
    second.tell("said");
    let said = second.hear("said");
    let name = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("users").map_or(String::new(), |u| u.name);
    assert!(said.contains(&format!("by one that says it is local, {name} in ")), "{said}");
}

fn with(mut command: Command, program: &std::path::Path) -> Command {
    command.arg(program);
    command
}

fn until_won(port: u16) -> xtask::lock::HeldLock {
    Caller::new("local", Duration::from_secs(60)).acquire(port).expect("free, or soon")
}

#[test]
fn another_network_has_a_lock_of_its_own_and_status_says_which() {
    if !may(&["unshare", "--net", "true"]) {
        let test = "another_network_has_a_lock_of_its_own_and_status_says_which";
        return crate::world::skipped(test, "none can be made here");
    }
    let (folder, ports) = (Folder::new(), Ports::take(1));
    let _here = Caller::new("local", Duration::ZERO).acquire(ports.first).expect("free");
    let mut other = Command::new("unshare");
    other.args(["--net", "--"]);
    let mut there = Contender::start_by(with(other, &program_for_all(&folder)), ports.first);
    there.hear("held");

    let mut status = Command::new("unshare");
    status.args(["--net", "--", env!("CARGO_BIN_EXE_xtask"), "lock", "status"]);
    status.current_dir(folder.path()).env("XTASK_LOCK_PORT", ports.first.to_string());
    status.env("XTASK_WORKTREE_PORTS", format!("{0}-{0}", ports.first + 1));
    let said = status.output().expect("status runs");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains(&format!("workstation lock 127.0.0.1:{}: free", ports.first)), "{said}");
    assert!(said.contains("in network namespace net:["), "{said}");
    assert!(!said.contains(&xtask::sys::namespace("net").expect("a namespace")), "{said}");
}
