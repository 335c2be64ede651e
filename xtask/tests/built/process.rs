//! Nothing outlives its task, nothing outlives its run, and no task slows another.

mod cpus;
mod ends;
mod environment;
pub mod field;
pub mod fixture;
mod kills;
mod logs;
mod signals;
mod together;
mod whose;

use serde_json::Value;

pub use fixture::{assert_none_left, misbehave, pool, suite, task, token, token_seconds};

use crate::world::{Done, World};

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
