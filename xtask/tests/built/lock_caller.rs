//! One caller of the lock: the very acquire that every run uses, with a request to stop that the test controls.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::time::Duration;

use xtask::event::Event;
use xtask::lock::{self, HeldLock, Identity, NotHeld, Patience, Scope, StopAsked};
use xtask::name::RunId;
use xtask::sys;
use xtask::verdict::{Exit, Stop};

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
        self.wait(port, stop, &|| ())
    }

    /// Waits until it knows for whom, and no longer; what it says then. No budget is too short for that.
    pub fn hears(&self, port: u16) -> String {
        let (asked, ask) = std::io::pipe().expect("a pipe");
        let ask = RefCell::new(Some(ask));
        let which = || ask.borrow().is_none().then_some(Stop::Int);
        let stop = StopAsked { fd: asked.as_fd(), which: &which };
        let refused = self.wait(port, stop, &|| drop(ask.take())).expect_err("it is held");
        assert_eq!(refused.exit(), Exit::Cancelled(Stop::Int), "{refused}");
        self.said.borrow()[0].clone()
    }

    fn wait(&self, port: u16, stop: StopAsked, told: &dyn Fn()) -> Result<HeldLock, NotHeld> {
        let patience = Patience { requested: sys::clocks(), budget: self.budget, stop, mark: &self.mark };
        lock::acquire(Scope::Workstation, port, &self.identity, &patience, &mut |event| {
            let Event::Queued { text, .. } = event else { panic!("{event:?} is no news of a wait") };
            self.said.borrow_mut().extend(text);
            told();
        })
    }
}

/// Longer than any test waits.
pub const LONG: Duration = Duration::from_secs(60);
