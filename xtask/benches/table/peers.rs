//! Other programs that do the same work, where they are installed, and what they need for it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::turns::{Way, run};

/// Programs that stand beside ours if they are there. None is required.
pub const PEERS: [&str; 9] =
    ["make", "ninja", "just", "cargo-nextest", "timeout", "flock", "ssh-keygen", "pg_virtualenv", "pg_tmp"];

pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A task as every runner understands it.
pub struct Job {
    pub name: String,
    pub command: String,
    pub needs: Vec<String>,
}

/// So many tasks `true`.
pub fn trues(count: usize) -> Vec<Job> {
    (0..count).map(|i| Job { name: format!("t{i}"), command: "true".to_owned(), needs: Vec::new() }).collect()
}

/// `[run]` on two slots, then these tables.
pub fn suite(tables: &str) -> String {
    let run =
        "deadline = \"12h\"\nqueue = \"1m\"\nmargin = \"1m\"\nstop-grace = \"500ms\"\nwrap-up = \"10s\"\ncpus = 2";
    format!("schema = 1\n[run]\n{run}\n[defaults]\ndeadline = \"4s\"\n{tables}\n")
}

/// The suite of these tasks.
pub fn suite_of(jobs: &[Job]) -> String {
    let table = |job: &Job| format!("[task.{}]\ncommand = {:?}\nneeds = {:?}\n", job.name, job.command, job.needs);
    suite(&jobs.iter().map(table).collect::<String>())
}

/// A build file of make's, ninja's and just's in the folder.
pub fn write_files(folder: &Path, jobs: &[Job]) {
    let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
    let names = names.join(" ");
    let mut make = format!(".PHONY: all {names}\nall: {names}\n");
    let mut ninja = "rule run\n  command = $do\n".to_owned();
    let mut just = format!("all: {names}\n");
    for Job { name, command, needs } in jobs {
        let needs = needs.join(" ");
        make += &format!("{name}: {needs}\n\t@{command}\n");
        ninja += &format!("build {name}: run {needs}\n  do = {command}\n");
        just += &format!("{name}: {needs}\n    @{command}\n");
    }
    let files = [("Makefile", make), ("build.ninja", ninja + &format!("default {names}\n")), ("justfile", just)];
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("written");
    }
}

/// One of the peers in a folder with these files, ready to run.
pub fn in_folder(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    let args: &[&str] = match program {
        "make" => &["-s", "-j2"],
        "ninja" => {
            // It must not remember that it is done.
            let _ = fs::remove_file(folder.join(".ninja_log"));
            &["--quiet", "-j2"]
        }
        _ => &[],
    };
    command.args(args).current_dir(folder);
    command
}

/// The program as a way, if it is installed.
pub fn way<'a>(name: &'static str, program: &'static str, folder: &'a Path) -> Way<'a> {
    match is_installed(program) {
        true => Way::command(name, move || in_folder(program, folder)),
        false => Way::missing(name),
    }
}

/// A crate with these tests and this configuration, built, to be run by nextest, which runs each test as a process of its own,
/// as xtask runs its tasks. None where nextest is not installed. `ready` is the environment of the run that builds it.
pub fn nextest(folder: &Path, tests: &str, config: &str) -> Option<impl Fn() -> Command + use<>> {
    if !is_installed("cargo-nextest") {
        return None;
    }
    let place = folder.join("nextest");
    let write = |path: &str, text: &str| {
        let path = place.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, text).expect("written");
    };
    write("Cargo.toml", "[package]\nname = \"peer\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n");
    write("src/lib.rs", tests);
    write(".config/nextest.toml", config);
    let make = move |verb: &str| {
        let mut command = Command::new("cargo");
        command.args(["nextest", verb, "--offline"]).current_dir(&place);
        command.env("CARGO_TARGET_DIR", place.join("target"));
        command
    };
    run(&mut make("list"));
    Some(move || {
        let mut command = make("run");
        command.args(["--test-threads", "2", "--no-fail-fast"]);
        command
    })
}

/// So many tests that do nothing.
pub fn empty_tests(count: usize) -> String {
    (0..count).map(|i| format!("#[test]\nfn t{i}() {{}}\n")).collect()
}

/// Nextest as a way, if it is installed.
pub fn nextest_way<'a>(name: &'static str, folder: &Path, tests: &str) -> Way<'a> {
    match nextest(folder, tests, "") {
        Some(make) => Way::command(name, make),
        None => Way::missing(name),
    }
}
