//! Every command that README shows does what README says, but for those that install the system's prerequisites.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};
use xtask::cli::Cli;

use crate::keyring::{Keyring, SUITE};
use crate::recipes::{shell, top};
use crate::world::World;

/// How a command of README is known to work.
enum Known {
    /// It prepares a machine; README marks it so.
    System,
    /// CI runs this very line.
    Ci,
    /// It is run here in a repository that has this program's sources, with another one beside it, and ends with 0.
    Adopt,
    /// It is run here in the folder of a release, with the signers beside it, and ends with 0.
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

    let source = source();
    let keyring = Keyring::new(SUITE);
    let world = &keyring.world;
    let release = world.repo.join("receipts/v1.0.0");
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
            Known::Adopt => works(&source, command),
            Known::Release => {
                for name in ["allowed_signers", "revoked_keys"] {
                    fs::copy(world.repo.join("ci").join(name), release.join(name)).expect("a copy");
                }
                works(world, &format!("cd '{}' && {command}", release.display()));
            }
            Known::Here => works(world, command),
        }
    }
}

fn works(world: &World, command: &str) {
    let done = shell(world, command, &[]);
    assert_eq!(done.code, 0, "{command}\n{}\n{}", done.out, done.err);
}

/// A repository with this program's sources, and the folder `product` beside it: one that has nothing but a Makefile.
fn source() -> World {
    let world = World::new(SUITE);
    for part in
        ["Cargo.toml", "Cargo.lock", "rustfmt.toml", "clippy.toml", ".cargo", "ci", "xtask/Cargo.toml", "xtask/src"]
    {
        let to = world.repo.join(part);
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        let copied = Command::new("cp").arg("-RT").arg(top().join(part)).arg(to).status();
        assert!(copied.expect("cp runs").success(), "{part}");
    }
    world.commit("the program");
    world.write("../product/Makefile", "check:\n\ttrue\n");
    world.write("../product/.gitignore", "/target\n");
    for args in [&["init", "--quiet"][..], &["add", "--all"], &["commit", "--quiet", "--message", "first"]] {
        world.git(&[&["-C", "../product"], args].concat());
    }
    world
}

/// What stands between single backticks in README, in running text.
fn spans() -> Vec<String> {
    let readme = fs::read_to_string(top().join("README.md")).expect("README.md");
    let text: Vec<&str> = readme.split("```").step_by(2).collect();
    let spans = text.iter().flat_map(|text| text.split('`').skip(1).step_by(2));
    spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// Each command of ours in running text is one that the program takes: its words and its flags exist.
#[test]
fn every_call_in_running_text_is_one_that_the_program_takes() {
    let cli = Cli::command();
    let mut flags = vec!["--help".to_owned()];
    let mut open: Vec<&clap::Command> = vec![&cli];
    while let Some(command) = open.pop() {
        flags.extend(command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))));
        open.extend(command.get_subcommands());
    }
    let others = ["--markdown", "--network"];
    let is_command = |word: &str| cli.get_subcommands().any(|command| command.get_name() == word);
    let mut calls = 0;
    for span in spans() {
        let words: Vec<&str> = span.split(' ').filter(|word| *word != "…").collect();
        let ours = match words[..] {
            ["exec", "cargo", "xtask", ..] => &words[3..],
            ["cargo", "xtask", ..] => &words[2..],
            [first, _, ..] if is_command(first) => &words[..],
            [flag, ..] if flag.starts_with("--") => {
                assert!(flags.iter().any(|ours| ours == flag) || others.contains(&flag), "{span:?}: no such flag");
                continue;
            }
            _ => continue,
        };
        calls += 1;
        if let Err(error) = Cli::try_parse_from([&["xtask"], ours].concat()) {
            // Running text need not say all of a call.
            let short = [ErrorKind::MissingRequiredArgument, ErrorKind::MissingSubcommand];
            let help = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            assert!(!error.use_stderr() || short.contains(&error.kind()) || error.kind() == help, "{span:?}: {error}");
        }
    }
    assert!(calls > 10, "{calls} calls are found");
}

/// The table of variables has each that the sources read, and no other.
#[test]
fn readme_names_every_variable_that_is_read() {
    let readme = fs::read_to_string(top().join("README.md")).expect("README.md");
    let table = readme.split("| variable |").nth(1).expect("the table").split("\n\n").next().expect("its end");
    let rows = table.lines().skip(2).filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<String> = rows.flat_map(|cell| cell.split(',')).map(|name| name.trim().to_owned()).collect();

    let mut texts = Vec::new();
    let mut folders = vec![top().join("xtask/src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { texts.push(fs::read_to_string(path).expect("a source")) }
        }
    }
    let all = texts.concat();
    let mut read = BTreeSet::new();
    for call in ["env::var(", "env::var_os(", "variable("] {
        for rest in all.split(call).skip(1) {
            let what = rest.split(')').next().unwrap_or_default();
            if let Some(literal) = what.strip_prefix('"') {
                read.insert(literal.trim_end_matches('"').to_owned());
            } else if what.chars().all(|c| c.is_ascii_uppercase() || c == '_') {
                // A constant: every one of that name, wherever it is.
                let begin = format!("const {what}: &str = \"");
                let values = all.split(&begin).skip(1).filter_map(|rest| rest.split('"').next());
                let values: Vec<&str> =
                    values.filter(|value| value.starts_with(|c: char| c.is_ascii_uppercase())).collect();
                assert!(!values.is_empty(), "no constant {what}");
                read.extend(values.into_iter().map(str::to_owned));
            }
        }
    }
    if all.contains("env::temp_dir()") {
        read.insert("TMPDIR".to_owned());
    }
    assert_eq!(named, read);
}
