//! The program. Everything is in the library, so that tests, fuzzers and benchmarks reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    let requested = xtask::sys::clocks();
    ExitCode::from(xtask::cli::main(requested).code())
}
