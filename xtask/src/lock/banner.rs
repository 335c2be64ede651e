//! What the two sides of the lock's port say to each other: one line from the holder, one from the waiter.
//!
//! The holder's line begins with `xtask-lock/` for ever: whatever follows, it is a holder. What it says of itself is a
//! claim of an unknown program: cut to length and freed of control characters when it is read, and never relied on.

use serde::Serialize;
use serde_json::Value;

use crate::clean::visible;
pub use crate::event::Claim;

/// What every holder's line begins with, in every version there will be.
pub const PREFIX: &[u8] = b"xtask-lock/";

/// Most bytes of a holder's line; what is longer is read up to here.
pub const BANNER_MAX: usize = 8 * 1024;

/// Most bytes that a waiter says.
pub const ANSWER_MAX: usize = 512;

/// Most characters of one text that a holder says of itself; of a folder or a command, twice as many.
const CLAIM_MAX: usize = 80;

impl Claim {
    /// The whole line of a holder that says this, newline included.
    pub fn line(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("texts and numbers can be written");
        format!("xtask-lock/1 {json}\n").into_bytes()
    }

    /// Reads a holder's line; `None` if it does not begin as one. What cannot be understood is left out.
    pub fn read(line: &[u8]) -> Option<Self> {
        let rest = line.strip_prefix(PREFIX)?;
        let json = rest.iter().position(|&b| b == b' ').map_or(&[][..], |space| &rest[space..]);
        let value: Value = serde_json::from_slice(json).unwrap_or(Value::Null);
        let text = |key: &str, most: usize| Some(visible(value.get(key)?.as_str()?, most)).filter(|t| !t.is_empty());
        let short = |key: &str| text(key, CLAIM_MAX);
        let long = |key: &str| text(key, 2 * CLAIM_MAX);
        let number = |key: &str| value.get(key)?.as_u64();
        Some(Self {
            scope: short("scope"),
            run: short("run"),
            caller: short("caller"),
            user: short("user"),
            distribution: short("distribution"),
            repository: short("repository"),
            folder: long("folder"),
            commit: short("commit"),
            command: long("command"),
            pid: number("pid"),
            pid_namespace: short("pid_namespace"),
            since_ms: number("since_ms"),
            free_at_ms: number("free_at_ms"),
            queued: value.get("queued").and_then(Value::as_bool),
            done: number("done"),
            tasks: number("tasks"),
            waiting: number("waiting"),
            waiting_since_ms: number("waiting_since_ms"),
        })
    }

    /// The same with every text cut as a reader would cut it, so that a line of ours is never longer than is read.
    #[must_use]
    pub fn trimmed(&self) -> Self {
        Self::read(&self.line()).expect("a line of our own")
    }
}

/// What a waiter tells the holder, who uses it for the order at the release alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Asking {
    /// How long it has waited, in microseconds: a length, because clocks of two containers may differ.
    pub waited_us: u64,
    /// Its run, so that one which asks twice is counted once.
    pub run: String,
}

impl Asking {
    /// The waiter's line, newline included.
    pub fn line(&self) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("texts and numbers can be written");
        format!("xtask-wait/1 {json}\n").into_bytes()
    }

    /// Reads a waiter's line; `None` if it is something else.
    pub fn read(line: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(line.strip_prefix(b"xtask-wait/1 ")?).ok()?;
        let run = visible(value.get("run")?.as_str()?, CLAIM_MAX);
        Some(Self { waited_us: value.get("waited_us")?.as_u64()?, run })
    }
}
