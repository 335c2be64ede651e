//! Processes: what this program starts, what those start in turn, and the end of all of them.
//!
//! `ProcessTree` is the only thing in the program that signals what a run starts. The others help it, or the one that uses
//! it: which processes there are (`table`), what a task's environment is, which CPUs there are, and a task's log.

pub mod affinity;
pub mod environment;
mod family;
pub mod log;
mod spawn;
mod starter;
pub mod sweep;
pub mod table;
pub mod tree;

pub use family::{Gone, Owner};
pub use spawn::{Output, Spawn};
pub use sweep::Survivor;
pub use tree::ProcessTree;

/// The variable that says whose a process is: `RUN/LABEL`, a run inside a run appends its own with a `:` between.
pub const MARK: &str = "XTASK_MARK";
