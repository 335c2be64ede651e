//! The lock between real sockets: who gets it, who waits, who is told what.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use xtask::event::Event;
use xtask::lock::{self, HeldLock, Identity, NotHeld, Patience, Scope, StopAsked};
use xtask::name::RunId;
use xtask::sys;
use xtask::verdict::{Exit, Stop};

use crate::world::Ports;

/// An identity that no other has.
pub fn identity(caller: &str) -> Identity {
    Identity {
        run: RunId::new(sys::clocks().wall_ms / 1000, sys::random().expect("random bits")),
        caller: caller.to_owned(),
        repository: Some("acme/orders".to_owned()),
        folder: "/work/orders".to_owned(),
        commit: None,
        command: "cargo xtask verify".to_owned(),
        deadline: Duration::from_secs(3600),
    }
}

/// One acquire with a request to stop that the test controls.
pub struct Caller {
    pub identity: Identity,
    pub mark: String,
    pub budget: Duration,
    pub said: RefCell<Vec<String>>,
}

impl Caller {
    pub fn new(caller: &str, budget: Duration) -> Self {
        Self { identity: identity(caller), mark: String::new(), budget, said: RefCell::default() }
    }

    pub fn acquire(&self, port: u16) -> Result<HeldLock, NotHeld> {
        let (never, _keep) = std::io::pipe().expect("a pipe");
        self.acquire_unless(port, StopAsked { fd: never.as_fd(), which: &|| None })
    }

    pub fn acquire_unless(&self, port: u16, stop: StopAsked) -> Result<HeldLock, NotHeld> {
        let patience = Patience { began: sys::clocks(), budget: self.budget, stop, mark: &self.mark };
        lock::acquire(Scope::Workstation, port, &self.identity, &patience, &mut |event| {
            let Event::Queued { text, .. } = event else { panic!("{event:?} is no news of a wait") };
            self.said.borrow_mut().extend(text);
        })
    }
}

/// Longer than any test waits.
pub const LONG: Duration = Duration::from_secs(60);

#[test]
fn one_holds_the_other_is_told_who_and_spends_its_budget() {
    let ports = Ports::take(1);
    let first = Caller::new("ci", LONG).acquire(ports.first).expect("a free port");
    let second = Caller::new("local", Duration::from_millis(300));
    let refused = second.acquire(ports.first).expect_err("it is held");
    assert_eq!(refused.exit(), Exit::NoLock, "{refused}");
    assert!(second.said.borrow()[0].contains("acme/orders"), "{:?}", second.said);
    drop(first);
    let _third = second.acquire(ports.first).expect("free again");
}

#[test]
fn a_release_wakes_the_waiter() {
    let ports = Ports::take(1);
    let first = Caller::new("ci", LONG).acquire(ports.first).expect("a free port");
    let port = ports.first;
    let waiter = std::thread::spawn(move || Caller::new("local", LONG).acquire(port).map(drop));
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    waiter.join().expect("no panic").expect("won");
}

#[test]
fn a_stop_ends_the_wait_and_frees_nobody_elses_lock() {
    let ports = Ports::take(1);
    let _first = Caller::new("ci", LONG).acquire(ports.first).expect("a free port");
    let (asked, ask) = std::io::pipe().expect("a pipe");
    drop(ask); // readable from now on
    let stop = StopAsked { fd: asked.as_fd(), which: &|| Some(Stop::Int) };
    let refused = Caller::new("local", LONG).acquire_unless(ports.first, stop).expect_err("cancelled");
    assert_eq!(refused.exit(), Exit::Cancelled(Stop::Int));
    let third = Caller::new("local", Duration::ZERO).acquire(ports.first).expect_err("still held");
    assert_eq!(third.exit(), Exit::NoLock);
}

#[test]
fn a_folder_has_one_port_whatever_it_is_called() {
    let folder = crate::world::Folder::new();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).expect("a folder");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let ports = lock::Ports::default();
    let port = |path: &Path| ports.worktree_for(path).expect("a port");
    assert_eq!(port(&real), port(&link));
    assert_eq!(port(&real), port(&real.join("../link/.")));
    assert!(ports.worktree_for(&real.join("none")).is_err());
}
