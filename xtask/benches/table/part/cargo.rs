//! What the alias `cargo xtask` adds, and what compiling the program on a fresh machine takes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

use crate::program::{PROFILE, cargo, target, workspace};
use crate::progress::Progress;
use crate::table::{Aim, Row, Unit};
use crate::turns::{Measured, Way, in_turns, run};
use crate::world::Folder;

pub fn alias(progress: &Progress, rounds: usize) -> Vec<Row> {
    let (folder, debug) = (Folder::new(), target().join("debug"));
    crate_with(folder.path(), "");
    let empty = || {
        let mut command = cargo(folder.path());
        command.args(["run", "--quiet", "--offline"]).env("CARGO_TARGET_DIR", folder.path().join("target"));
        command
    };
    // As much to look through for cargo, and a program that does nothing.
    let nothing = || {
        let mut command = cargo(&workspace());
        command.args(["run", "--quiet", "--locked", "--package", "xtask", "--profile", PROFILE]);
        command.args(["--example", "misbehave", "--", "exit", "0"]);
        command
    };
    let through = || {
        let mut command = cargo(&workspace());
        command.args(["xtask", "--version"]);
        command
    };
    progress.step("cargo xtask, until nothing is to be built");
    run(&mut empty());
    run(&mut nothing());
    run(&mut through());
    fs::create_dir_all(&debug).expect("a target folder");
    // What a build of the tests holds for as long as it goes on.
    let building = || {
        let lock = File::create(debug.join(".cargo-lock")).expect("cargo's lock");
        Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, e)| e).expect("cargo's lock")
    };
    let ways = vec![
        Way::command("`cargo run` of the same package, a program that does nothing", nothing),
        Way::command("through", through),
        Way::new("beside a build", || {
            let _building = building();
            run(&mut through())
        }),
        Way::command("`cargo run` of an empty package", empty),
        Way::command("xtask without cargo", || {
            let mut command = Command::new(target().join(PROFILE).join("xtask"));
            command.arg("--version");
            command
        }),
    ];
    let all = in_turns(progress, rounds, ways);
    let row = |what: &str, at: usize| {
        Row::new(what, Unit::Ms).aim(Aim::OverFloor(20.0)).ours(all[at].ms()).floor(all[0].line())
    };
    let beside = all[3..].iter().map(Measured::line);
    vec![
        row("through `cargo xtask`, `--version`", 1).beside(beside),
        row("the same while another build holds target/debug", 2),
    ]
}

const SETTLED: [&str; 8] = ["anyhow", "clap", "ctrlc", "duct", "serde", "serde_json", "socket2", "xshell"];

/// The row of what is run by name only.
pub fn cold_row() -> Row {
    Row::new("cold build of xtask, over the eight settled crates alone", Unit::Ms).aim(Aim::OfFloor(1.6))
}

pub fn cold(progress: &Progress, rounds: usize) -> Vec<Row> {
    let folder = Folder::new();
    let (floor, top) = (folder.path().join("floor"), workspace());
    let manifest = fs::read_to_string(top.join("xtask/Cargo.toml")).expect("the manifest");
    let settled = |line: &&str| line.split_once(" = ").is_some_and(|(name, _)| SETTLED.contains(&name));
    let dependencies: Vec<&str> = manifest.lines().filter(settled).collect();
    assert_eq!(dependencies.len(), SETTLED.len(), "{dependencies:?}");
    crate_with(&floor, &dependencies.join("\n"));
    fs::create_dir_all(floor.join(".cargo")).expect("a folder");
    for file in ["Cargo.lock", ".cargo/config.toml"] {
        fs::copy(top.join(file), floor.join(file)).expect("a copy");
    }
    // Downloading is no part of it.
    progress.step("fetching what is to be built");
    run(cargo(&top).args(["fetch", "--locked"]));
    run(cargo(&floor).arg("fetch"));
    let fresh = folder.path().join("target");
    let build = |place: &Path, package: &str| {
        let _ = fs::remove_dir_all(&fresh);
        let mut command = cargo(place);
        command.args(["build", "--quiet", "--offline", "--profile", PROFILE, "--package", package]);
        command.env("CARGO_TARGET_DIR", &fresh);
        command
    };
    let ways = vec![
        Way::command("the eight crates", || build(&floor, "empty")),
        Way::command("xtask", || build(&top, "xtask")),
    ];
    let all = in_turns(progress, rounds, ways);
    vec![cold_row().ours(all[1].ms()).floor(all[0].line())]
}

fn crate_with(folder: &Path, dependencies: &str) {
    fs::create_dir_all(folder.join("src")).expect("a folder");
    let package = "[package]\nname = \"empty\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    let manifest = format!("{package}[dependencies]\n{dependencies}\n[workspace]\n");
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    fs::write(folder.join("src/main.rs"), "fn main() {}\n").expect("written");
}
