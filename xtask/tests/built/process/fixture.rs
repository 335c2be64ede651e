//! The fixture `misbehave`, and suites made of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use xtask::process::affinity::Cpus;

use crate::world::processes_with;

/// The fixture, built once a test process: examples are not built when one test target is asked for.
pub fn misbehave() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let profile = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().expect("the folder of the profile");
        let name = match profile.file_name().and_then(|name| name.to_str()).expect("a folder with a name") {
            "debug" => "dev",
            name => name,
        };
        let target = profile.parent().expect("the target folder");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--locked", "--example", "misbehave", "--profile", name, "--target-dir"]);
        let status = cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo runs");
        assert!(status.success(), "the fixture cannot be built");
        profile.join("examples/misbehave")
    })
}

/// How many tasks can run side by side.
pub fn pool() -> usize {
    Cpus::of_this_process().expect("Linux says").pool().len()
}

/// A text that no other test has, for arguments: what is left of a test is looked for by it.
pub fn token() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("token={}-{}-end", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A number of seconds for `sleep`, which takes several and adds them: a token for programs that take no other.
pub fn token_seconds() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("0.00000{}{:05}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `[run]` with a short grace, then these tables.
pub fn suite(tasks: &str) -> String {
    let run = "deadline = \"200s\"\nqueue = \"100s\"\nmargin = \"1m\"\nstop-grace = \"300ms\"\nwrap-up = \"10s\"";
    format!("schema = 1\n[run]\n{run}\n{tasks}\n")
}

/// A task whose command is the fixture with these orders.
pub fn task(name: &str, orders: &str, token: &str, more: &str) -> String {
    let words: Vec<String> = orders.split_whitespace().chain([token]).map(|word| format!("{word:?}")).collect();
    let command = format!("[\"{}\", {}]", misbehave().display(), words.join(", "));
    let deadline = if more.contains("deadline") { "" } else { "deadline = \"40s\"\n" };
    format!("[task.{name}]\ncommand = {command}\n{deadline}{more}\n")
}

/// Asserts that no process has the token among its arguments.
#[track_caller]
pub fn assert_none_left(token: &str) {
    let left = processes_with(token);
    let name =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    assert!(left.is_empty(), "left: {:?}", left.iter().map(name).collect::<Vec<_>>());
}
