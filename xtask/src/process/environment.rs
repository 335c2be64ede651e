//! The environment of tasks: the user's, without what other programs slipped in on the way here. It reads nothing: the
//! variables come in as an argument.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// When a variable is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If `cargo run` (the alias `cargo xtask`) started this program.
    UnderCargo,
    /// In a release.
    InRelease,
}

/// One row of the list: a variable that tasks do not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Its name; with `*` at the end, all that begin so.
    pub name: &'static str,
    /// When.
    pub when: When,
    /// Why, for people.
    pub why: &'static str,
}

const fn row(name: &'static str, when: When, why: &'static str) -> Removed {
    Removed { name, when, why }
}

const CARGO: &str = "added by `cargo run`";
const TOOLCHAIN: &str = "added by rustup; kept where the user set it";
const GIT: &str = "names a repository of its own to git (`git rev-parse --local-env-vars`)";
const MAKE: &str = "hands on a job server whose slots are not the task's";
const XTASK: &str = "belongs to the run around this one, or to xtask itself";
const KEY: &str = "names the signing key or the SSH agent";

/// Every variable that a task of the user's environment does not get. README shows this table.
pub const REMOVED: &[Removed] = &[
    row("CARGO", When::UnderCargo, CARGO),
    row("CARGO_MANIFEST_DIR", When::UnderCargo, CARGO),
    row("CARGO_MANIFEST_PATH", When::UnderCargo, CARGO),
    row("CARGO_PKG_*", When::UnderCargo, CARGO),
    row("RUST_RECURSION_COUNT", When::UnderCargo, CARGO),
    row("RUSTUP_TOOLCHAIN_SOURCE", When::UnderCargo, CARGO),
    row("RUSTUP_AUTO_INSTALL", When::UnderCargo, CARGO),
    row("CARGO_HOME", When::UnderCargo, "added by rustup; kept where it is not its default, $HOME/.cargo"),
    row("RUSTUP_HOME", When::UnderCargo, "added by rustup; kept where it is not its default, $HOME/.rustup"),
    row("RUSTUP_TOOLCHAIN", When::UnderCargo, TOOLCHAIN),
    row("LD_LIBRARY_PATH", When::UnderCargo, "only the folders that cargo and rustup put before the user's"),
    row("GIT_ALTERNATE_OBJECT_DIRECTORIES", When::Always, GIT),
    row("GIT_CONFIG", When::Always, GIT),
    row("GIT_CONFIG_PARAMETERS", When::Always, GIT),
    row("GIT_CONFIG_COUNT", When::Always, GIT),
    row("GIT_OBJECT_DIRECTORY", When::Always, GIT),
    row("GIT_DIR", When::Always, GIT),
    row("GIT_WORK_TREE", When::Always, GIT),
    row("GIT_IMPLICIT_WORK_TREE", When::Always, GIT),
    row("GIT_GRAFT_FILE", When::Always, GIT),
    row("GIT_INDEX_FILE", When::Always, GIT),
    row("GIT_NO_REPLACE_OBJECTS", When::Always, GIT),
    row("GIT_REPLACE_REF_BASE", When::Always, GIT),
    row("GIT_PREFIX", When::Always, GIT),
    row("GIT_SHALLOW_FILE", When::Always, GIT),
    row("GIT_COMMON_DIR", When::Always, GIT),
    row("MAKEFLAGS", When::Always, MAKE),
    row("MFLAGS", When::Always, MAKE),
    row("CARGO_MAKEFLAGS", When::Always, MAKE),
    row("XTASK_CPUS", When::Always, XTASK),
    row("XTASK_MARK", When::Always, XTASK),
    row("XTASK_OUTER", When::Always, XTASK),
    row("XTASK_SIGNING_KEY", When::Always, KEY),
    row("SSH_AUTH_SOCK", When::InRelease, KEY),
    row("SSH_AGENT_PID", When::InRelease, KEY),
];

/// Whether a variable names the signing key, or in a release the agent that may hold it.
pub fn names_key(name: &OsStr, release: bool) -> bool {
    let applies = |row: &Removed| row.when == When::Always || release && row.when == When::InRelease;
    REMOVED.iter().any(|row| row.why == KEY && applies(row) && row.matches(name))
}

/// What else decides about the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// This program's own file, by which cargo's folders in LD_LIBRARY_PATH are known.
    pub program: PathBuf,
    /// Whether this is a release.
    pub release: bool,
}

/// The user's environment, as tasks get it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// From the variables that this program was started with.
    pub fn new(inherited: impl IntoIterator<Item = (OsString, OsString)>, setting: &Setting) -> Self {
        let all: BTreeMap<OsString, OsString> = inherited.into_iter().collect();
        let is = |name: &str, value: &str| all.get(OsStr::new(name)).is_some_and(|found| found == value);
        // `cargo run` says which package it runs. A user who starts the program directly has set all there is.
        let under_cargo = is("CARGO_PKG_NAME", env!("CARGO_PKG_NAME"));
        let applies = |when: When| match when {
            When::Always => true,
            When::UnderCargo => under_cargo,
            When::InRelease => setting.release,
        };
        let home = all.get(OsStr::new("HOME")).map(PathBuf::from).unwrap_or_default();
        let keep = |name: &OsStr, value: &OsStr| match name.to_str() {
            Some("CARGO_HOME") => (Path::new(value) != home.join(".cargo")).then(|| value.to_owned()),
            Some("RUSTUP_HOME") => (Path::new(value) != home.join(".rustup")).then(|| value.to_owned()),
            Some("RUSTUP_TOOLCHAIN") => {
                // Where an old rustup does not say, it may have been the user's.
                let source = all.get(OsStr::new("RUSTUP_TOOLCHAIN_SOURCE")).and_then(|source| source.to_str());
                matches!(source, None | Some("cli" | "env")).then(|| value.to_owned())
            }
            Some("LD_LIBRARY_PATH") => without_cargo_folders(value, &setting.program, &all),
            _ => None,
        };
        let listed = |name: &OsStr| REMOVED.iter().any(|row| applies(row.when) && row.matches(name));
        let kept = all.iter().filter_map(|(name, value)| {
            let value = if listed(name) { keep(name, value)? } else { value.clone() };
            Some((name.clone(), value))
        });
        Self(kept.collect())
    }

    /// The same with these variables over it.
    #[must_use]
    pub fn with<N: Into<OsString>, V: Into<OsString>>(mut self, over: impl IntoIterator<Item = (N, V)>) -> Self {
        self.0.extend(over.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// The same without these variables.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        names.iter().for_each(|name| drop(self.0.remove(OsStr::new(name))));
        self
    }

    /// Every variable, by name.
    pub fn into_vec(self) -> Vec<(OsString, OsString)> {
        self.0.into_iter().collect()
    }
}

impl Removed {
    /// Whether the row speaks of this variable.
    pub fn matches(&self, name: &OsStr) -> bool {
        match self.name.strip_suffix('*') {
            Some(start) => name.to_str().is_some_and(|name| name.starts_with(start)),
            None => name == self.name,
        }
    }
}

// Cargo puts the program's folder, `deps` and folders of build scripts below it, and the libraries of the toolchain
// before what the user has; rustup the toolchain's. They make nested builds rebuild back and forth.
fn without_cargo_folders(value: &OsStr, program: &Path, all: &BTreeMap<OsString, OsString>) -> Option<OsString> {
    let target = program.parent().unwrap_or(program);
    let toolchains = all.get(OsStr::new("RUSTUP_HOME")).map(|home| Path::new(home).join("toolchains"));
    let added = |folder: &PathBuf| {
        folder.starts_with(target)
            || toolchains.as_ref().is_some_and(|toolchains| folder.starts_with(toolchains))
            || folder.parent().and_then(Path::parent).is_some_and(|path| path.ends_with("lib/rustlib"))
    };
    let users: Vec<PathBuf> = std::env::split_paths(value).skip_while(added).collect();
    let joined = std::env::join_paths(users).expect("what was split at `:` holds none");
    (!joined.is_empty()).then_some(joined)
}
