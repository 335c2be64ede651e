//! The program. Everything is in the library, so that tests, fuzzers and benchmarks reach it.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
