//! One command checks a repository: it takes its turn on the workstation, ends inside hard deadlines, and leaves a
//! receipt that a release gate can trust. ARCHITECTURE.md says how the house is built; the floors stand here in
//! reading order, and a module uses floors below its own only (tests/pure/house.rs holds the table).

// Floor 0, pure: words.
pub mod clean;
pub mod digest;
pub mod name;
pub mod time;
pub mod verdict;
// Floor 1, pure: what was asked, what happened.
pub mod event;
pub mod record;
pub mod suite;
// Floor 2, pure: decisions.
pub mod plan;
pub mod receipt;
// Floor 3: the system's calls; the only unsafe code.
pub mod sys;
// Floor 4: one resource of the system each.
pub mod archive;
pub mod interrupt;
pub mod lock;
pub mod printer;
pub mod process;
pub mod repo;
pub mod scratch;
pub mod seal;
pub mod wire;
// Floor 5: drives.
pub mod keeper;
pub mod run;
pub mod service;
// Floor 6, pure: events to text.
pub mod report;
// Floor 7: one straight recipe per subcommand.
pub mod command;
// Floor 8: flags.
pub mod cli;
