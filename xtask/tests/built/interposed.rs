//! What a test can cause only between the program and the C library: a disk that is slow, a machine that was asleep.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::world::{Running, World, skipped};

/// `verify` on such a machine; none where no C compiler is found.
fn verify(world: &World, name: &str, value: &str) -> Option<Running> {
    let library = compiled(world)?;
    let mut command = world.command(&["verify"]);
    command.env("LD_PRELOAD", library).env(name, value);
    Some(Running::start(command, &world.folder))
}

fn compiled(world: &World) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/built/interposed.c");
    let library = world.folder.path().join("interposed.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Werror", "-Wall", "-o"]).arg(&library).args([source, "-ldl"]);
    cc.status().ok().map(|status| {
        assert!(status.success(), "{source} cannot be compiled");
        library
    })
}

fn the_receipt(world: &World) -> Value {
    serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap()
}

fn suite(deadline: &str, command: &str) -> String {
    let run =
        format!("deadline = \"{deadline}\"\nqueue = \"1m\"\nmargin = \"1m\"\nstop-grace = \"200ms\"\nwrap-up = \"3s\"");
    format!("schema = 1\n[run]\n{run}\n[task.one]\ncommand = ['sh', '-c', '{command}']\ndeadline = \"1s\"\n")
}

/// The deadline passes while the receipt is on its way to the disk: what was written as passed is late.
#[test]
fn a_receipt_that_takes_too_long_to_write_says_so() {
    let world = World::new(&suite("5s", "true"));
    let Some(run) = verify(&world, "INTERPOSED_SLOW_SYNC", "6") else {
        return skipped("a_receipt_that_takes_too_long_to_write_says_so", "there is no C compiler");
    };
    run.wait().expect(3);
    let receipt = the_receipt(&world);
    assert_eq!(receipt["predicate"]["result"], "late");
    assert_eq!(receipt["predicate"]["tasks"][0]["verdict"], "passed");
    assert_eq!(world.receipts().len(), 1);
}

#[test]
fn a_run_that_slept_has_no_verdict() {
    let world = World::new(&suite("1m", "touch asleep"));
    let path = world.repo.join("asleep").display().to_string();
    world.write(".gitignore", "asleep\n/target\n");
    world.commit("ignored");
    let Some(run) = verify(&world, "INTERPOSED_SUSPENDED", &path) else {
        return skipped("a_run_that_slept_has_no_verdict", "there is no C compiler");
    };
    run.wait().expect(7).says("the machine was suspended for");
    assert_eq!(the_receipt(&world)["predicate"]["result"], "no-verdict");
}
