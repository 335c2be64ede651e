//! A soak of a few runs; `cargo bench --bench soak` does any number.

use std::path::PathBuf;

use crate::process::misbehave;
use crate::soak_ground::Soak;
use crate::world::skipped;

#[test]
#[allow(clippy::print_stderr, reason = "what was skipped has to be seen")]
fn a_few_runs_break_no_promise() {
    if xtask::sys::is_ignored(libc::SIGHUP) {
        return skipped(
            "a_few_runs_break_no_promise",
            "SIGHUP is ignored here (nohup?), and runs are asked to end by it",
        );
    }
    let xtask = PathBuf::from(env!("CARGO_BIN_EXE_xtask"));
    let soak = Soak { runs: 18, seed: 8, xtask, misbehave: misbehave().to_owned() };
    let summary = soak.run(&|line| eprintln!("{line}")).unwrap();
    eprintln!("{summary}");
}
