//! Commands run by a process that is new, for what memory they take: a child is charged with what its parent had when it
//! was started, and this program grows with the parts that it has measured.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::turns::{Cost, run, run_into};

const ROLE: &str = "XTASK_BENCH_APART";

/// Runs it to its end, its output into that file or nowhere. Panics if it fails.
pub fn run_apart(into: Option<&Path>, command: &Command) -> Cost {
    let mut apart = Command::new(std::env::current_exe().expect("this program"));
    apart.arg(command.get_program()).args(command.get_args()).env(ROLE, into.unwrap_or(Path::new("")));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => apart.env(name, value),
            None => apart.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        apart.current_dir(folder);
    }
    let output = apart.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("this program starts once more");
    assert!(output.status.success(), "{command:?} failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [nanos, peak_kib] = numbers[..] else { panic!("{text:?} is no cost") };
    Cost { took: Duration::from_nanos(nanos), peak_kib }
}

/// What the new process does; returns at once in any other.
pub fn role() {
    let Some(into) = std::env::var_os(ROLE) else { return };
    let mut words = std::env::args_os().skip(1);
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words).env_remove(ROLE);
    let cost = if into.is_empty() { run(&mut command) } else { run_into(Path::new(&into), &mut command) };
    crate::say(&format!("{} {}", cost.took.as_nanos(), cost.peak_kib));
    std::process::exit(0);
}
