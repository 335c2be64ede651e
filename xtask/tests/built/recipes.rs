//! The commands of ci/recipes, as the CI services would run them: `sh` with what the recipe sets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::keyring::{Keyring, SUITE};
use crate::world::{Done, Running, World, script};

/// The top of this repository.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// A folder for PATH in which `cargo xtask` does what the alias does, without compiling the program again. Whatever else
/// is asked of cargo it does itself.
pub fn cargo(world: &World) -> PathBuf {
    let bin = world.folder.path().join("bin");
    fs::create_dir_all(&bin).expect("a folder for programs");
    // The world's home is empty; cargo and rustup have theirs below the real one.
    let home = PathBuf::from(std::env::var_os("HOME").expect("a home"));
    let homes = [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")].map(|(name, folder)| {
        let home = std::env::var_os(name).map_or_else(|| home.join(folder), PathBuf::from);
        format!("{name}='{}'", home.display())
    });
    let (xtask, cargo) = (env!("CARGO_BIN_EXE_xtask"), env!("CARGO"));
    let alias = format!(
        "#!/bin/sh\nif test \"$1\" = xtask; then shift; exec '{xtask}' \"$@\"; fi\n{} exec '{cargo}' \"$@\"\n",
        homes.join(" ")
    );
    script(&bin.join("cargo"), &alias);
    bin
}

/// Runs a script in the world's repository, with the world's environment and these variables.
pub fn shell(world: &World, script: &str, more: &[(&str, &str)]) -> Done {
    let mut shell = Command::new("sh");
    for (name, value) in world.command(&[]).get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let path = format!("{}:{}", cargo(world).display(), std::env::var("PATH").expect("PATH"));
    shell.current_dir(&world.repo).env("PATH", path).envs(more.iter().copied()).args(["-c", script]);
    Running::start(shell, &world.folder).wait()
}

fn recipe(name: &str) -> String {
    fs::read_to_string(top().join("ci/recipes").join(name)).expect("a recipe")
}

/// The scripts of a workflow of GitHub's: what follows `run:`, on the line or in the block.
fn runs(text: &str) -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = text.lines().collect();
    let mut scripts = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        match line.trim_start().strip_prefix("- run: ") {
            Some("|") => {
                let block = lines[at + 1..].iter().take_while(|inner| indent(inner) > indent(line) + 2);
                scripts.push(block.map(|inner| inner.trim()).collect::<Vec<_>>().join("\n"));
            }
            Some(script) => scripts.push(script.to_owned()),
            None => {}
        }
    }
    scripts
}

/// The scripts of a pipeline of GitLab's, job by job.
fn scripts(text: &str) -> Vec<String> {
    let after = text.split("\n  script:\n").skip(1);
    let items = |rest: &str| {
        let lines = rest.lines().take_while(|line| line.starts_with("    "));
        lines.filter_map(|line| line.trim().strip_prefix("- ").map(str::to_owned)).collect::<Vec<_>>().join("\n")
    };
    after.map(items).collect()
}

#[test]
fn every_recipe_verifies_releases_and_asks_the_gate() {
    let keyring = Keyring::new(SUITE);
    let world = &keyring.world;
    let key = keyring.key("release").display().to_string();
    let run = |what: &str, script: &str, more: &[(&str, &str)]| {
        let done = shell(world, script, more);
        assert_eq!(done.code, 0, "{what}: {script}\n{}\n{}", done.out, done.err);
        done.out + &done.err
    };
    let tag = |tag: &str| {
        world.write("tag", tag);
        world.commit(tag);
        world.git(&["tag", tag]);
    };

    let hosted: Vec<_> = ["github-hosted.yml", "github-self-hosted.yml"].map(|name| (name, runs(&recipe(name)))).into();
    for (name, scripts) in &hosted {
        let verify = scripts.iter().find(|script| script.contains("cargo xtask verify"));
        run(name, verify.expect("a run"), &[]);
    }
    let systemd = recipe("xtask-verify.service");
    let line = systemd.lines().find_map(|line| line.strip_prefix("ExecStart=%h/.cargo/bin/")).expect("a command");
    run("xtask-verify.service", line, &[]);
    run("verify.sh", &recipe("verify.sh"), &[]);

    let github = runs(&recipe("github-release.yml"));
    let gitlab = scripts(&recipe("gitlab-ci.yml"));
    let [sign, gate] = &github[..] else { panic!("{github:?}") };
    let [verify, sign_too, gate_too] = &gitlab[..] else { panic!("{gitlab:?}") };
    run("gitlab-ci.yml", verify, &[]);
    for (at, (sign, gate, name)) in
        [(sign, gate, "TAG"), (sign, gate, "TAG"), (sign_too, gate_too, "CI_COMMIT_TAG")].into_iter().enumerate()
    {
        let now = format!("v{}", at + 1);
        tag(&now);
        run("sign", sign, &[(name, &now), ("XTASK_SIGNING_KEY", &key)]);
        let judged = run("gate", gate, &[(name, &now)]);
        assert!(judged.contains(&format!("for {now}: 2/2 passed")), "{judged}");
    }
    tag("v4");
    run("release.sh", &format!("set -- v4\n{}", recipe("release.sh")), &[("XTASK_SIGNING_KEY", &key)]);

    // The tag before is what the gate compares with: one key more is not for the tag itself to say.
    let signers = fs::read_to_string(world.repo.join("ci/allowed_signers")).expect("signers");
    let more = keyring.line("stranger", "xtask-receipt-v1", "").replacen("stranger", "local", 1);
    world.write("ci/allowed_signers", &(signers + &more));
    tag("v5");
    run("sign", sign, &[("TAG", "v5"), ("XTASK_SIGNING_KEY", &key)]);
    let refused = shell(world, gate, &[("TAG", "v5")]);
    assert_eq!(refused.code, 6, "{}\n{}", refused.out, refused.err);
}
