//! Where the copy's package stands among the others of a repository: a member of its workspace, unless that would change
//! anything for them, else in a workspace of its own. Cargo says what a change does; it is asked before and after.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use duct::cmd;
use serde_json::Value;

use super::disk::{read, write};
use super::program::{FOLDER, OWN_LOCK, keeps, rust, seeded};
use super::stops::Stops;
use super::{Changes, edit};
use crate::process::environment::{Environment, Setting};
use crate::sys;

/// How long cargo may take to answer: it may have to fetch an index.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often it is asked meanwhile whether an answer is still wanted.
const TICK: Duration = Duration::from_millis(50);
const MANIFEST: &str = "Cargo.toml";
const LOCK: &str = "Cargo.lock";

/// A repository, as a clone in which things may be tried.
pub(super) struct Layout<'a> {
    /// The clone.
    pub clone: &'a Path,
    /// Tracked files of the repository.
    pub tracked: &'a BTreeSet<String>,
    /// How to ask cargo.
    pub cargo: Cargo<'a>,
    /// The manifest of the workspace that the repository itself lies in, if it does.
    pub around: Option<PathBuf>,
}

// Nobody can say what the package would change in a lock file that does not hold.
#[derive(Debug)]
struct Stale;

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its Cargo.lock is not up to date: run `cargo update --workspace` there, commit, and adopt again")
    }
}

impl std::error::Error for Stale {}

/// Manifests by what cargo makes of them.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    members: BTreeSet<String>,
    default: BTreeSet<String>,
    /// Not of the workspace, and cargo can read them.
    others: BTreeSet<String>,
}

/// The changes that put a copy of the program (as a member, with an own workspace) into the repository, tried in the
/// clone; and why it has a workspace of its own, if so. `ours` is the lock file of the copy's origin, `oldest` the Rust
/// that the copy needs, `was` whether there is a copy already and whether that has a workspace of its own.
pub(super) fn in_scratch(
    layout: &Layout<'_>,
    (member, own): (BTreeMap<String, Vec<u8>>, BTreeMap<String, Vec<u8>>),
    ours: &str,
    oldest: (u64, u64),
    (update, was_own): (bool, bool),
) -> anyhow::Result<(Changes, Option<String>)> {
    let some = |files: BTreeMap<String, Vec<u8>>| files.into_iter().map(|(path, bytes)| (path, Some(bytes)));
    let before = layout.shape().context("cargo cannot read the repository as it is")?;
    let tried = match was_own {
        true => Err(anyhow::anyhow!("so it had before")),
        false => layout.join(some(member).collect(), ours, oldest, &before),
    };
    match tried {
        Ok(changes) => Ok((changes, None)),
        // A day later it may be a member: that should not hang on a command that was forgotten.
        Err(why) if why.is::<Stale>() => Err(why),
        Err(why) if update && !was_own => {
            bail!(
                "as a member, which it is there, the new version would disturb: {why:#}\nremove xtask/, its member entry and its alias there, commit, and adopt again"
            )
        }
        Err(why) => {
            layout.reset()?;
            Ok((layout.stand_apart(some(own).collect(), ours, &before)?, Some(format!("{why:#}"))))
        }
    }
}

impl Layout<'_> {
    // As a member of the workspace at the root, which is made if there is none.
    fn join(&self, mut changes: Changes, ours: &str, oldest: (u64, u64), before: &Shape) -> anyhow::Result<Changes> {
        if let Some(around) = &self.around {
            bail!("the repository lies in the cargo workspace of {}", around.display());
        }
        let old_lock = if self.tracked.contains(MANIFEST) {
            ensure!(
                self.tracked.contains(LOCK),
                "its Cargo.lock is not under version control, and `cargo xtask` builds with --locked"
            );
            self.promises(oldest)?;
            self.cargo.ask(self.clone, &["update", "--workspace", "--locked"]).map_err(|why| {
                // Cargo's own words for a file that it would change; all else may be no fault of the file.
                match format!("{why:#}").contains("--locked was passed") {
                    true => anyhow::Error::new(Stale),
                    false => why.context("cargo cannot say whether its Cargo.lock is up to date"),
                }
            })?;
            let manifest = self.joined(before)?;
            changes.insert(MANIFEST.to_owned(), Some(manifest.into_bytes()));
            let old = String::from_utf8(read(self.clone, LOCK)?)?;
            changes.insert(LOCK.to_owned(), Some(seeded(&old, ours)?.into_bytes()));
            old
        } else {
            ensure!(
                before.others.iter().all(|path| path.starts_with(FOLDER)),
                "it has cargo packages below its root, but none at it"
            );
            let manifest = "[workspace]\nmembers = [\"xtask\"]\nresolver = \"3\"\n";
            changes.insert(MANIFEST.to_owned(), Some(manifest.into()));
            changes.insert(LOCK.to_owned(), Some(ours.into()));
            String::new()
        };
        // Without the network cargo takes another version of what is not on this machine yet.
        let lock = self
            .lock_after(&changes, &old_lock, &["--offline"])
            .or_else(|_| self.lock_after(&changes, &old_lock, &[]))?;
        let mut after = self.shape()?;
        let ours = format!("{FOLDER}/{MANIFEST}");
        ensure!(after.members.remove(&ours), "cargo does not see it as a member");
        if before.members.is_empty() || before.members.contains(&ours) {
            after.default.remove(&ours);
        }
        let was = |set: &BTreeSet<String>| set.iter().filter(|path| **path != ours).cloned().collect::<BTreeSet<_>>();
        let same = [
            (&after.members, &before.members, "other packages would become members of the workspace, or cease to be"),
            (&after.default, &before.default, "plain cargo commands would mean other packages than before"),
            (&after.others, &before.others, "packages outside of the workspace could not be built any more"),
        ];
        if let Some((.., why)) = same.iter().find(|(after, before, _)| **after != was(before)) {
            bail!(*why);
        }
        changes.insert(LOCK.to_owned(), Some(lock.into_bytes()));
        Ok(changes)
    }

    // The lock file that cargo makes of these changes, if that leaves every package of the old one as it is.
    fn lock_after(&self, changes: &Changes, old: &str, how: &[&str]) -> anyhow::Result<String> {
        write(self.clone, changes)?;
        self.cargo.run(self.clone, &[&["update", "--workspace"], how].concat())?;
        let new = String::from_utf8(read(self.clone, LOCK)?)?;
        keeps(old, &new)?;
        Ok(new)
    }

    // The manifest at the root with one more member.
    fn joined(&self, before: &Shape) -> anyhow::Result<String> {
        let text = String::from_utf8(read(self.clone, MANIFEST)?)?;
        let edited = || -> Result<String, String> {
            let all = edit::flat(&text)?;
            if all.iter().any(|(key, value)| key.starts_with("workspace.members.") && value == "s:xtask") {
                return Ok(text.clone());
            }
            if !edit::has(&text, &["workspace"]) {
                return Ok(edit::append(&text, "[workspace]\nmembers = [\"xtask\"]\n"));
            }
            let mut new = text.clone();
            if !edit::has(&text, &["package"]) {
                if !edit::has(&text, &["workspace", "resolver"]) {
                    // What cargo takes without being told, and warns about once a member is of a newer edition.
                    new = edit::set(&new, &["workspace"], "resolver", "\"1\"")?;
                }
                if !edit::has(&text, &["workspace", "default-members"]) {
                    let dirs = before.default.iter().map(|path| path.trim_end_matches(MANIFEST).trim_end_matches('/'));
                    let list = dirs.map(|dir| format!("{dir:?}")).collect::<Vec<_>>().join(", ");
                    new = edit::set(&new, &["workspace"], "default-members", &format!("[{list}]"))?;
                }
            }
            match edit::has(&text, &["workspace", "members"]) {
                true => edit::push(&new, &["workspace", "members"], FOLDER),
                false => edit::set(&new, &["workspace"], "members", "[\"xtask\"]"),
            }
        };
        edited().map_err(|why| anyhow::anyhow!("{MANIFEST}: {why}"))
    }

    // With a workspace of its own.
    fn stand_apart(&self, mut changes: Changes, ours: &str, before: &Shape) -> anyhow::Result<Changes> {
        changes.insert(OWN_LOCK.to_owned(), Some(ours.into()));
        write(self.clone, &changes)?;
        if self.shape().ok().is_none_or(|after| !after.same_but_ours(before)) {
            // A pattern among the members, such as `*`, takes it in.
            let text = String::from_utf8(read(self.clone, MANIFEST)?)?;
            let excluded = match edit::has(&text, &["workspace", "exclude"]) {
                true => edit::push(&text, &["workspace", "exclude"], FOLDER),
                false => edit::set(&text, &["workspace"], "exclude", "[\"xtask\"]"),
            };
            let excluded = excluded.map_err(|why| anyhow::anyhow!("{MANIFEST}: {why}"))?;
            changes.insert(MANIFEST.to_owned(), Some(excluded.into_bytes()));
            write(self.clone, &changes)?;
            let after = self.shape()?;
            ensure!(after.same_but_ours(before), "even with a workspace of its own xtask would disturb its packages");
        }
        let manifest = format!("{FOLDER}/{MANIFEST}");
        self.cargo.ask(self.clone, &["update", "--workspace", "--manifest-path", &manifest])?;
        changes.insert(OWN_LOCK.to_owned(), Some(read(self.clone, OWN_LOCK)?));
        Ok(changes)
    }

    fn shape(&self) -> anyhow::Result<Shape> {
        let mut shape = Shape { members: BTreeSet::new(), default: BTreeSet::new(), others: BTreeSet::new() };
        if self.around.is_some() {
            return Ok(shape); // its packages may be nothing without that workspace, which is not in the clone
        }
        if self.clone.join(MANIFEST).is_file() {
            let metadata = self.cargo.metadata(self.clone, &[])?;
            shape.members = self.paths(&metadata, "workspace_members");
            shape.default = self.paths(&metadata, "workspace_default_members");
        }
        let manifests = self.tracked.iter().filter(|path| path.rsplit('/').next() == Some(MANIFEST));
        for path in manifests.filter(|path| *path != MANIFEST && !shape.members.contains(*path)) {
            if self.cargo.metadata(self.clone, &["--manifest-path", path]).is_ok() {
                shape.others.insert(path.clone());
            }
        }
        Ok(shape)
    }

    // The manifests of packages that are named by id, relative to the root.
    fn paths(&self, metadata: &Value, key: &str) -> BTreeSet<String> {
        let list = |key: &str| metadata[key].as_array().map(Vec::as_slice).unwrap_or_default();
        let of = |id: &Value| list("packages").iter().find(|package| package["id"] == *id);
        let root = self.clone.canonicalize().unwrap_or_else(|_| self.clone.to_owned());
        let relative = |package: &Value| {
            let path = Path::new(package["manifest_path"].as_str()?);
            Some(
                path.strip_prefix(&root)
                    .or_else(|_| path.strip_prefix(self.clone))
                    .unwrap_or(path)
                    .display()
                    .to_string(),
            )
        };
        list(key).iter().filter_map(of).filter_map(relative).collect()
    }

    // Refuses where a package promises to build with a Rust that cannot read the copy's manifest.
    fn promises(&self, oldest: (u64, u64)) -> anyhow::Result<()> {
        let metadata = self.cargo.metadata(self.clone, &[])?;
        for package in metadata["packages"].as_array().into_iter().flatten().filter(|p| p["name"] != FOLDER) {
            let promised = package["rust_version"].as_str().unwrap_or_default();
            if rust(promised).is_some_and(|promised| promised < oldest) {
                let (major, minor) = oldest;
                bail!("package {} promises Rust {promised}, xtask needs {major}.{minor}", package["name"]);
            }
        }
        Ok(())
    }

    // The clone as it was cloned.
    fn reset(&self) -> anyhow::Result<()> {
        let git = |args: &[&str]| {
            let repo = crate::repo::Repo::find(self.clone)?;
            repo.git(args)
        };
        git(&["reset", "--quiet", "--hard"])?;
        git(&["clean", "--quiet", "-d", "--force", "-x"])?;
        Ok(())
    }
}

impl Shape {
    fn same_but_ours(&self, before: &Self) -> bool {
        let apart = |path: &&String| !path.starts_with("xtask/");
        self.members == before.members
            && self.default == before.default
            && self.others.iter().filter(apart).eq(before.others.iter().filter(apart))
    }
}

/// Asks cargo, in the environment that the user's own shell has.
pub(super) struct Cargo<'a> {
    env: Vec<(OsString, OsString)>,
    stops: &'a Stops,
}

impl<'a> Cargo<'a> {
    pub fn new(stops: &'a Stops) -> anyhow::Result<Self> {
        let setting = Setting { program: std::env::current_exe()?, release: false };
        // A toolchain that is not there is said, not fetched.
        let env = Environment::new(std::env::vars_os(), &setting).with([("RUSTUP_AUTO_INSTALL", "0")]);
        Ok(Self { env: env.into_vec(), stops })
    }

    /// Refuses where the cargo that is used in `folder` is too old.
    pub fn at_least(&self, folder: &Path, (major, minor): (u64, u64)) -> anyhow::Result<()> {
        let said = self.run(folder, &["--version"])?;
        let found = said.split_whitespace().nth(1).and_then(rust);
        ensure!(
            found.is_some_and(|found| found >= (major, minor)),
            "xtask needs Rust {major}.{minor}; there it is {said}"
        );
        Ok(())
    }

    /// The manifest of the workspace around the repository at `root`, where that is not in it. Errors where there is a
    /// manifest above it, and cargo does not get along with both.
    pub fn around(&self, root: &Path) -> anyhow::Result<Option<PathBuf>> {
        if !root.ancestors().skip(1).any(|above| above.join(MANIFEST).is_file()) {
            return Ok(None);
        }
        let found = PathBuf::from(self.run(root, &["locate-project", "--workspace", "--message-format", "plain"])?);
        Ok(Some(found).filter(|found| !found.starts_with(root)))
    }

    fn metadata(&self, folder: &Path, args: &[&str]) -> anyhow::Result<Value> {
        let out = self.ask(folder, &[&["metadata", "--format-version", "1", "--no-deps"], args].concat())?;
        serde_json::from_str(&out).context("cargo metadata")
    }

    // What the network is not needed for is had without it.
    fn ask(&self, folder: &Path, args: &[&str]) -> anyhow::Result<String> {
        self.run(folder, &[args, &["--offline"]].concat()).or_else(|_| self.run(folder, args))
    }

    fn run(&self, folder: &Path, args: &[&str]) -> anyhow::Result<String> {
        // Whoever asks may take an error for an answer and go on to the next question.
        ensure!(self.stops.asked().is_none(), "cargo {} was not asked any more", args[0]);
        let call = cmd("cargo", args).dir(folder).full_env(self.env.clone()).stdin_null();
        let handle = call.stdout_capture().stderr_capture().unchecked().start().context("cargo cannot be run")?;
        let give_up = sys::now() + PATIENCE;
        let output = loop {
            if let Some(output) = handle.wait_timeout(TICK)? {
                break output;
            }
            let stopped = self.stops.asked().is_some();
            if stopped || sys::now() >= give_up {
                let _ = handle.kill();
                let why = if stopped { "was stopped".to_owned() } else { format!("took longer than {PATIENCE:?}") };
                bail!("cargo {} {why}", args.join(" "));
            }
        };
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("cargo {}: {}", args[0], why.trim().trim_start_matches("error: "));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}
