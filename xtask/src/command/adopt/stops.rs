//! Requests to stop, heard while things are tried. Once files are being written, nobody asks any more: all or none.

use std::cell::RefCell;

use anyhow::Context as _;

use crate::interrupt::{Wake, Wakeups};
use crate::sys;
use crate::verdict::Stop;

/// The signals of this process, and the first request to stop that came.
pub(super) struct Stops(RefCell<(Wakeups, Option<Stop>)>);

impl Stops {
    /// Takes over the signals; once in the life of the process.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(RefCell::new((Wakeups::new().context("signals cannot be caught")?, None))))
    }

    /// The request to stop, if there has been one by now.
    pub fn asked(&self) -> Option<Stop> {
        let (wakeups, first) = &mut *self.0.borrow_mut();
        for wake in wakeups.wait(Some(sys::now()), &[]).unwrap_or_default() {
            match wake {
                Wake::Stop(stop) => *first = first.or(Some(stop)),
                Wake::Suspend => drop(wakeups.suspend()),
                Wake::Child | Wake::Ready(_) => {}
            }
        }
        *first
    }
}
