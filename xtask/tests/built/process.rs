//! Nothing outlives its task, nothing outlives its run, and no task slows another.

mod cpus;
mod ends;
mod environment;
mod kills;
mod logs;
mod signals;
mod together;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::world::{Done, World, processes_with};

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
    let run = "deadline = \"100s\"\nqueue = \"100s\"\nmargin = \"1m\"\nstop-grace = \"300ms\"\nwrap-up = \"10s\"";
    format!("schema = 1\n[run]\n{run}\n{tasks}\n")
}

/// A task whose command is the fixture with these orders.
pub fn task(name: &str, orders: &str, token: &str, more: &str) -> String {
    let words: Vec<String> = orders.split_whitespace().chain([token]).map(|word| format!("{word:?}")).collect();
    let command = format!("[\"{}\", {}]", misbehave().display(), words.join(", "));
    let deadline = if more.contains("deadline") { "" } else { "deadline = \"40s\"\n" };
    format!("[task.{name}]\ncommand = {command}\n{deadline}{more}\n")
}

/// A run that is over, and what its receipt says.
pub struct Ran {
    pub world: World,
    pub done: Done,
    pub receipt: Value,
}

impl Ran {
    /// Runs this suite to its end, with that exit code, and checks that nothing with the token is left.
    #[track_caller]
    pub fn new(suite: &str, token: &str, code: i32) -> Self {
        let world = World::new(suite);
        let done = world.run(&["verify"]).expect(code);
        Self::of(world, done, token)
    }

    /// The same for a run that is over.
    #[track_caller]
    pub fn of(world: World, done: Done, token: &str) -> Self {
        assert_none_left(token);
        let path = world.receipts().pop().expect("a receipt");
        let receipt = serde_json::from_slice(&std::fs::read(path).unwrap()).expect("a receipt is JSON");
        Self { world, done, receipt }
    }

    /// What the receipt says of a task.
    #[track_caller]
    pub fn task(&self, name: &str) -> &Value {
        let tasks = self.receipt["predicate"]["tasks"].as_array().expect("tasks");
        tasks.iter().find(|task| task["name"] == name).expect("a task of that name")
    }

    /// Asserts the verdict of a task and the signals that it was sent.
    #[track_caller]
    pub fn expect(&self, task: &str, verdict: &str, signals: &[&str]) -> &Self {
        let found = self.task(task);
        assert_eq!(found["verdict"], verdict, "{found:#}\n{}", self.done.err);
        assert_eq!(found["signals"], serde_json::json!(signals), "{found:#}");
        self
    }

    /// The log of a task.
    pub fn log(&self, task: &str) -> String {
        let path = self.task(task)["log"].as_str().expect("a log").to_owned();
        String::from_utf8_lossy(&std::fs::read(self.world.repo.join(path)).expect("the log")).into_owned()
    }
}

/// Asserts that no process has the token among its arguments.
#[track_caller]
pub fn assert_none_left(token: &str) {
    let left = processes_with(token);
    let name =
        |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    assert!(left.is_empty(), "left: {:?}", left.iter().map(name).collect::<Vec<_>>());
}
