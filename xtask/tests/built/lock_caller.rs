//! One caller of the lock: the very acquire that every run uses, with a request to stop that the test controls.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::time::Duration;

use xtask::event::Event;
use xtask::lock::{self, HeldLock, Identity, NotHeld, Patience, Scope, StopAsked};
use xtask::name::RunId;
use xtask::sys;

/// An identity that no other has.
pub fn identity(caller: &str) -> Identity {
    Identity {
        run: RunId::new(sys::clocks().wall_ms / 1000, sys::random().expect("random bits")),
        caller: caller.to_owned(),
        repository: Some("acme/orders".to_owned()),
        folder: "/srv/orders".to_owned(),
        commit: None,
        command: "cargo xtask verify".to_owned(),
        longest: Duration::from_secs(3600),
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

    /// A lock of which a program that this process starts is no part: its pid, which would say so, is not told.
    pub fn acquire_unrelated(&self, port: u16) -> Result<HeldLock, NotHeld> {
        self.acquire(port).inspect(|held| held.say(|claim| claim.pid = None))
    }

    pub fn acquire_unless(&self, port: u16, stop: StopAsked) -> Result<HeldLock, NotHeld> {
        let patience = Patience { requested: sys::clocks(), budget: self.budget, stop, mark: &self.mark };
        lock::acquire(Scope::Workstation, port, &self.identity, &patience, &mut |event| {
            let Event::Queued { text, .. } = event else { panic!("{event:?} is no news of a wait") };
            self.said.borrow_mut().extend(text);
        })
    }
}

/// Longer than any test waits.
pub const LONG: Duration = Duration::from_secs(60);
