//! One straight recipe per subcommand.

pub mod preflight;

use std::io::Write;

/// A line for people. A closed stderr stops nobody: the run and its receipt matter more than the words about it.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
