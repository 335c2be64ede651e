//! An hour's worth of runs in minutes: random suites of the fixture, three callers that share one lock, SIGKILLs, Ctrl-Cs,
//! full and slow disks, clock steps, a machine that sleeps. After each run it is checked that one owner had the machine at a time, that no
//! process and no folder is left, that a run which ended by itself left a receipt, and that the gate judges it rightly.
//!
//!     cargo bench --bench soak                      100 runs, another seed each time
//!     cargo bench --bench soak -- runs 500 seed 7   the same once more: what is asked for and done, not how it interleaves
//!     cargo bench --bench soak -- program PATH      another xtask: one without a guard, to see that its end is noticed

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[path = "../tests/built/process/fixture.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod fixture;
#[path = "../tests/built/receipt_changes.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "a bench uses a part of it, and there a panic is the message")]
mod receipt_changes;
#[path = "../tests/built/soak_blow.rs"]
mod soak_blow;
#[path = "../tests/built/soak_caller.rs"]
mod soak_caller;
#[path = "../tests/built/soak_gate.rs"]
mod soak_gate;
#[path = "../tests/built/soak_ground.rs"]
mod soak_ground;
#[path = "../tests/built/soak_plan.rs"]
mod soak_plan;
#[path = "../tests/built/soak_request.rs"]
mod soak_request;
#[path = "../tests/built/soak_suite.rs"]
mod soak_suite;
#[path = "../tests/built/world.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod world;

use soak_ground::Soak;

fn main() -> ExitCode {
    let request = match soak_request::parse(std::env::args().skip(1)) {
        Ok(request) if request.help => {
            say(soak_request::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(request) => request,
        Err(why) => {
            say(&format!("error: {why}\n{}", soak_request::USAGE));
            return ExitCode::from(2);
        }
    };
    let runs = request.runs.unwrap_or(100);
    let seed = request.seed.unwrap_or_else(|| xtask::sys::random().expect("random bits"));
    say(&format!("again: cargo bench --bench soak -- runs {runs} seed {seed}"));
    let xtask = request.program.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_xtask")));
    let misbehave = fixture::misbehave().to_owned();
    match (Soak { runs, seed: u64::from(seed), xtask, misbehave }).run(&say) {
        Ok(summary) => {
            say(&summary);
            ExitCode::SUCCESS
        }
        Err(summary) => {
            say(&summary);
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("stdout");
}
