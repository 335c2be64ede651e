//! What keeper and runner tell each other, and the end of it when the other is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use super::order::{Message, Order};
use crate::sys;
use crate::wire::Wire;

/// How long room for a message is waited for: the other process may have to catch up with much progress.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long an answer to the news of a receipt is waited for, and how often it is looked for in that time at least: where the
/// machine is so busy that the keeper takes long, so do the looks.
const ANSWER: Duration = Duration::from_secs(10);
const LOOKS: u32 = 10;

/// One end of the lifeline.
#[derive(Debug)]
pub struct Lifeline(Wire);

impl Lifeline {
    /// The keeper's end, and the runner's to hand over. Errors if the system has no pair of sockets.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        Wire::pair().map(|(ours, theirs)| (Self(ours), theirs))
    }

    /// The end that was handed over by the process that started this one.
    pub fn inherited(fd: OwnedFd) -> Self {
        Self(Wire::inherited(fd))
    }

    /// Keeper's side: gives the order. Errors if the runner is gone already.
    pub fn give(&mut self, order: &Order) -> io::Result<()> {
        self.0.say(order, Duration::ZERO)?;
        self.0.never_block()
    }

    /// Runner's side: waits for the order. Errors if the keeper is gone or speaks another language.
    pub fn take(&mut self) -> io::Result<Order> {
        let line = self.0.wait_for_line()?;
        self.0.never_block()?;
        Ok(serde_json::from_slice(&line)?)
    }

    /// Tells the other end. That it is gone shows in `receive`. For progress that finds no room nobody waits: the next
    /// makes it old.
    pub fn send(&mut self, message: Message) {
        let patience = if matches!(message, Message::Progress { .. }) { Duration::ZERO } else { PATIENCE };
        let _ = self.0.say(&message, patience);
    }

    /// Runner's side: tells of a receipt and waits until the keeper has heard of it. False if it has not, for so long that
    /// it never may. Whoever wants the run to stop meanwhile comes too late.
    pub fn announce(&mut self, sha256: String) -> bool {
        self.send(Message::Receipt(Some(sha256.clone())));
        let (until, mut looks) = (sys::now() + ANSWER, 0);
        let heard = Message::Heard(sha256);
        loop {
            let (messages, gone) = self.receive();
            if messages.contains(&heard) {
                return true;
            }
            if gone || (looks >= LOOKS && sys::now() >= until) || self.0.wait_for_words().is_err() {
                return false;
            }
            looks += 1;
        }
    }

    /// What has come since the last call, and whether the other end is gone. Never blocks once the order was given.
    pub fn receive(&mut self) -> (Vec<Message>, bool) {
        let gone = !self.0.hear().unwrap_or(false);
        let lines = std::iter::from_fn(|| self.0.line());
        (lines.filter_map(|line| serde_json::from_slice(&line).ok()).collect(), gone)
    }
}

impl AsFd for Lifeline {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
