//! Every command that README shows does what README says, but for those that install the system's prerequisites.

use std::fs;

use crate::keyring::{Keyring, SUITE};
use crate::recipes::{shell, top};

/// How a command of README is known to work.
enum Known {
    /// It prepares a machine; README marks it so.
    System,
    /// CI runs this very line.
    Ci,
    /// The tests of `adopt` do the same.
    Adopt,
    /// The tests of `release` do the same.
    Release,
    /// It is run here, and ends with 0.
    Here,
}

/// Every line of README's shell blocks, without its comment.
const COMMANDS: &[(&str, Known)] = &[
    ("sudo apt-get install -y git gcc openssh-client curl tmux python3-venv postgresql", Known::System),
    ("curl https://sh.rustup.rs -sSf | sh -s -- -y && . ~/.cargo/env", Known::System),
    ("cargo xtask verify", Known::Here),
    ("cargo test --workspace --locked", Known::Ci),
    ("cargo xtask adopt ../product --dry-run", Known::Adopt),
    ("cargo xtask adopt ../product", Known::Adopt),
    ("cd ../product && cargo xtask verify", Known::Adopt),
    ("cargo xtask lock status", Known::Here),
    ("cargo xtask lock run -- sleep 1", Known::Here),
    ("cargo xtask check-receipt --unsigned", Known::Here),
    ("cargo xtask report", Known::Here),
    ("cargo xtask release v1.0.0 --key ~/.ssh/release_key", Known::Here),
    ("cargo xtask check-receipt v1.0.0", Known::Here),
    (
        "ssh-keygen -Y verify -f allowed_signers -r revoked_keys -I release -n xtask-release-v1 -s SHA256SUMS.sig < SHA256SUMS",
        Known::Release,
    ),
    ("sha256sum --check SHA256SUMS", Known::Release),
    ("cargo xtask plan --check-outer ci/recipes/*", Known::Here),
];

/// Lines of README's shell blocks: the command and its comment.
fn shown() -> Vec<(String, String)> {
    let readme = fs::read_to_string(top().join("README.md")).expect("README.md");
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest).to_owned());
    let lines: Vec<String> = blocks.flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let parts = lines.iter().map(|line| line.split_once("  #").unwrap_or((line, "")));
    parts.map(|(command, comment)| (command.trim().to_owned(), comment.trim().to_owned())).collect()
}

#[test]
fn every_command_of_readme_works() {
    let known: Vec<&str> = COMMANDS.iter().map(|(command, _)| *command).collect();
    assert_eq!(shown().iter().map(|(command, _)| command.as_str()).collect::<Vec<_>>(), known);
    let ci = fs::read_to_string(top().join(".ci/run")).expect(".ci/run");

    let keyring = Keyring::new(SUITE);
    let world = &keyring.world;
    for recipe in fs::read_dir(top().join("ci/recipes")).expect("recipes") {
        let recipe = recipe.expect("a recipe");
        let text = fs::read_to_string(recipe.path()).expect("a recipe");
        world.write(&format!("ci/recipes/{}", recipe.file_name().to_string_lossy()), &text);
    }
    world.commit("recipes");
    world.git(&["tag", "v1.0.0"]);
    let ssh = world.folder.path().join("home/.ssh");
    fs::create_dir_all(&ssh).expect("a folder for keys");
    fs::copy(keyring.key("release"), ssh.join("release_key")).expect("a key");
    for ((command, comment), (_, known)) in shown().iter().zip(COMMANDS) {
        match known {
            Known::System => assert!(comment.starts_with("# system") || comment.starts_with("system"), "{command}"),
            Known::Ci => assert!(ci.lines().any(|line| line == command), "{command:?} is not in .ci/run"),
            Known::Adopt | Known::Release => {}
            Known::Here => {
                let done = shell(world, command, &[]);
                assert_eq!(done.code, 0, "{command}\n{}\n{}", done.out, done.err);
            }
        }
    }
}
