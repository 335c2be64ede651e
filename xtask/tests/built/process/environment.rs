//! The environment of tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use xtask::process::environment::{Environment, REMOVED, Setting, When};

use crate::process::{Ran, suite};
use crate::world::{Running, World};

fn tasks_see(inherited: &[(&str, &str)], release: bool) -> BTreeMap<String, String> {
    let vars = inherited.iter().map(|&(name, value)| (OsString::from(name), OsString::from(value)));
    let env = Environment::new(vars, &Setting { program: "/w/target/xtask/xtask".into(), release });
    let text = |text: OsString| text.into_string().unwrap();
    env.into_vec().into_iter().map(|(name, value)| (text(name), text(value))).collect()
}

#[track_caller]
fn check(inherited: &[(&str, &str)], kept: &[(&str, &str)]) {
    let kept: BTreeMap<String, String> = kept.iter().map(|&(name, value)| (name.into(), value.into())).collect();
    assert_eq!(tasks_see(inherited, false), kept);
}

const UNDER_CARGO: (&str, &str) = ("CARGO_PKG_NAME", "xtask");

#[test]
fn what_the_user_set_stays() {
    let vars =
        [("PATH", "/bin"), ("CARGO_HOME", "/c"), ("LD_LIBRARY_PATH", "/w/target/xtask"), ("RUSTUP_TOOLCHAIN", "x")];
    check(&vars, &vars);
}

#[test]
fn what_cargo_and_rustup_added_goes() {
    let home = ("HOME", "/h");
    check(&[UNDER_CARGO, home, ("CARGO_HOME", "/h/.cargo"), ("RUSTUP_HOME", "/h/.rustup")], &[home]);
    check(
        &[UNDER_CARGO, home, ("CARGO_HOME", "/opt/c"), ("RUSTUP_HOME", "/opt/r")],
        &[("CARGO_HOME", "/opt/c"), home, ("RUSTUP_HOME", "/opt/r")],
    );
    let chosen = |source| [UNDER_CARGO, ("RUSTUP_TOOLCHAIN", "nightly"), ("RUSTUP_TOOLCHAIN_SOURCE", source)];
    for source in ["cli", "env"] {
        check(&chosen(source), &[("RUSTUP_TOOLCHAIN", "nightly")]);
    }
    for source in ["default", "toolchain-file", "path-override"] {
        check(&chosen(source), &[]);
    }
    check(&[UNDER_CARGO, ("RUSTUP_TOOLCHAIN", "nightly")], &[("RUSTUP_TOOLCHAIN", "nightly")]);
}

#[test]
fn library_path_is_what_it_was() {
    let is = |value: &str, before: Option<&str>| {
        let kept: Vec<_> = before.map(|before| ("LD_LIBRARY_PATH", before)).into_iter().collect();
        let rustup = ("RUSTUP_HOME", "/h/.rustup");
        check(
            &[UNDER_CARGO, ("HOME", "/h"), rustup, ("LD_LIBRARY_PATH", value)],
            &[&[("HOME", "/h")], &kept[..]].concat(),
        );
    };
    let cargo = "/w/target/xtask/build/x-1/out:/w/target/xtask/deps:/w/target/xtask:/t/lib/rustlib/x86_64-unknown-linux-gnu/lib";
    is(cargo, None);
    is(&format!("{cargo}:/h/.rustup/toolchains/stable/lib"), None);
    is(&format!("{cargo}:/h/.rustup/toolchains/stable/lib:/u/a:/u/b"), Some("/u/a:/u/b"));
    is(&format!("{cargo}:/u/a:/w/target/xtask"), Some("/u/a:/w/target/xtask"));
    is("/u/a", Some("/u/a"));
}

#[test]
fn what_leads_elsewhere_goes() {
    let vars = [
        ("GIT_DIR", "/x"),
        ("GIT_INDEX_FILE", "/x"),
        ("MAKEFLAGS", "-j --jobserver-fds=3,4"),
        ("XTASK_CPUS", "8"),
        ("XTASK_MARK", "r/a"),
    ];
    check(&vars, &[]);
    check(
        &[("GIT_AUTHOR_NAME", "me"), ("XTASK_LOCK_PORT", "1")],
        &[("GIT_AUTHOR_NAME", "me"), ("XTASK_LOCK_PORT", "1")],
    );
}

#[test]
fn no_task_of_a_release_is_told_of_the_key() {
    let vars = [("XTASK_SIGNING_KEY", "/k"), ("SSH_AUTH_SOCK", "/s"), ("SSH_AGENT_PID", "7")];
    assert!(tasks_see(&vars, true).is_empty());
    assert_eq!(tasks_see(&vars, false).len(), 2, "a task of a developer may use the agent");
}

#[test]
fn the_list_has_all_that_git_calls_local() {
    let out = Command::new("git").args(["rev-parse", "--local-env-vars"]).output().unwrap();
    for name in String::from_utf8(out.stdout).unwrap().lines() {
        let row = REMOVED.iter().find(|row| row.name == name);
        assert!(row.is_some_and(|row| row.when == When::Always), "{name}");
    }
}

/// `cargo run` of this package in that repository, with these variables over the user's.
fn through_cargo(world: &World, vars: &[(&str, &str)]) -> Command {
    let direct = world.command(&[]);
    let profile = Path::new(env!("CARGO_BIN_EXE_xtask")).parent().unwrap();
    let target = profile.parent().unwrap();
    let name = if profile.ends_with("debug") { "dev" } else { profile.file_name().unwrap().to_str().unwrap() };
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--locked", "--bin", "xtask", "--profile", name, "--manifest-path"]);
    command
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .args(["--", "verify"]);
    command.env_clear().envs(users_own(&direct)).envs(vars.iter().copied()).current_dir(&world.repo);
    command
}

// As far as this test itself is started by cargo, what that added is not the user's.
fn users_own(direct: &Command) -> BTreeMap<OsString, OsString> {
    let mut vars: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in direct.get_envs() {
        match value {
            Some(value) => drop(vars.insert(name.to_owned(), value.to_owned())),
            None => drop(vars.remove(name)),
        }
    }
    // The world has a home of its own; where cargo and rustup live is still the machine's.
    let keeps = |name: &OsString| name == "CARGO_HOME" || name == "RUSTUP_HOME";
    vars.retain(|name, _| keeps(name) || !REMOVED.iter().any(|row| row.matches(name)));
    vars
}

#[test]
fn a_task_under_cargo_has_the_users_environment() {
    for vars in [&[][..], &[("LD_LIBRARY_PATH", "/user/lib:/other/lib"), ("EMPTY", ""), ("UMLAUT", "ä=ö")][..]] {
        let world = World::new(&suite("[task.env]\ncommand = ['env', '-0']\ndeadline = \"40s\""));
        let command = through_cargo(&world, vars);
        let expected: BTreeSet<String> = command
            .get_envs()
            .map(|(name, value)| format!("{}={}", name.to_str().unwrap(), value.unwrap().to_str().unwrap()))
            .collect();
        let done = Running::start(command, &world.folder).wait().expect(0);
        let ran = Ran::of(world, done, "no such token");
        let log = ran.log("env");
        let seen: BTreeSet<String> = log.split_terminator('\0').map(str::to_owned).collect();
        let added: Vec<&str> = seen.difference(&expected).map(|v| v.split('=').next().unwrap()).collect();
        let gone: Vec<&String> = expected.difference(&seen).collect();
        assert_eq!(added, ["XTASK_CPUS", "XTASK_MARK"], "{seen:#?}");
        assert!(gone.is_empty(), "{gone:?}");
    }
}

#[test]
fn a_build_script_that_watches_the_library_path_is_not_run_again() {
    let world = World::new(&suite(
        "[task.build]\ncommand = 'cargo build --offline --verbose'\ndeadline = \"80s\"\ndir = \"crate\"",
    ));
    world.write(
        "crate/Cargo.toml",
        "[package]\nname = \"watcher\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    );
    world.write("crate/build.rs", "fn main() { println!(\"cargo:rerun-if-env-changed=LD_LIBRARY_PATH\"); }\n");
    world.write("crate/src/main.rs", "fn main() {}\n");
    world.write("crate/.gitignore", "/target\nCargo.lock\n");
    world.commit("a crate");
    let mut by_hand = Command::new("cargo");
    by_hand.args(["build", "--offline", "--quiet"]).current_dir(world.repo.join("crate"));
    by_hand.env_clear().envs(users_own(&world.command(&[])));
    assert!(by_hand.status().unwrap().success());
    let done = Running::start(through_cargo(&world, &[]), &world.folder).wait().expect(0);
    let ran = Ran::of(world, done, "no such token");
    let log = ran.log("build");
    assert!(log.contains("Fresh watcher"), "built again: {log}");
}

#[test]
fn readme_names_what_a_task_does_not_get() {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    for row in REMOVED {
        // Git's own are named as what git calls them.
        let name = if row.name.starts_with("GIT_") { "git rev-parse --local-env-vars" } else { row.name };
        assert!(readme.contains(name.trim_end_matches(['*', '_'])), "README does not name {name}");
    }
}
