//! Facts about the git work tree around a folder. It asks git and changes nothing in the repository.

mod snapshot;
mod unpinned;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};
use xshell::{Shell, cmd};

use snapshot::line;
pub use snapshot::{Snapshot, SnapshotError};

// Variables of git that say where its own configuration is and how far to look for a repository. Every other GIT_* is
// kept from our calls: a list of what is harmful would be out of date with the next git.
const KEPT_VARIABLES: [&str; 6] = [
    "GIT_CEILING_DIRECTORIES",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_CONFIG_SYSTEM",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
    "GIT_EXEC_PATH",
];

/// A git work tree.
#[derive(Debug, Clone)]
pub struct Repo {
    /// Its root, absolute.
    pub root: PathBuf,
    /// HEAD in full when the work tree was found; none in a repository without a commit.
    pub head: Option<String>,
    /// Where git keeps it.
    pub git: GitFolders,
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
}

/// Where git keeps a repository, absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitFolders {
    /// What belongs to this work tree.
    pub folder: PathBuf,
    /// The objects.
    pub objects: PathBuf,
}

/// An object as git stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its id, in full.
    pub id: String,
    /// `commit`, `tree`, `blob` or `tag`.
    pub kind: String,
    /// What it holds.
    pub bytes: Vec<u8>,
}

impl Repo {
    /// The work tree around `folder`. Errors where there is none, or no git.
    pub fn find(folder: &Path) -> anyhow::Result<Self> {
        let sh = Shell::new()?;
        sh.change_dir(folder);
        let (program, env) = (program(), environment());
        let questions =
            ["--show-toplevel", "--absolute-git-dir", "--git-path", "objects", "--revs-only", "HEAD^{commit}"];
        let out = cmd!(sh, "{program} rev-parse {questions...}").env_clear().envs(env.clone()).quiet().ignore_status();
        let out = out.output().context("git cannot be run: is it installed and on PATH?")?;
        if !out.status.success() {
            bail!("no git work tree around {}: {}", folder.display(), complaint(&out.stderr));
        }
        let lines: Vec<&[u8]> = out.stdout.strip_suffix(b"\n").unwrap_or(&out.stdout).split(|&b| b == b'\n').collect();
        let (root, git_dir, objects, head) = match lines[..] {
            [root, git_dir, objects] => (root, git_dir, objects, None),
            [root, git_dir, objects, head] if head.iter().all(u8::is_ascii_hexdigit) => {
                (root, git_dir, objects, Some(line(head)))
            }
            _ => bail!("the path of the git work tree around {} has a line break in it", folder.display()),
        };
        let path = |bytes: &[u8]| folder.join(OsStr::from_bytes(bytes));
        let git = GitFolders { folder: path(git_dir), objects: path(objects) };
        Ok(Self { root: path(root), head, git, program, env })
    }

    /// One that another process has found and told of.
    pub fn told(root: PathBuf, git: GitFolders, head: Option<String>) -> Self {
        Self { root, head, git, program: program(), env: environment() }
    }

    /// The objects of these names (`HEAD`, `v1^{commit}`, `REV:path`), in order; none where a name means nothing. Replace refs
    /// do not count. One process, whatever the number. Errors for what cannot be a name, and where git does not answer.
    pub fn objects(&self, names: &[&str]) -> anyhow::Result<Vec<Option<Object>>> {
        if let Some(name) = names.iter().find(|name| name.contains(['\n', '\0']) || name.starts_with('-')) {
            bail!("{name:?} is no name of a revision");
        }
        let asked = names.join("\n") + "\n";
        let out = self.ask(&["cat-file", "--batch"], asked.as_bytes(), &[0])?;
        let mut rest = &out[..];
        names.iter().map(|name| next_object(&mut rest).with_context(|| format!("git's answer for {name}"))).collect()
    }

    /// The object that the tag of exactly this name is for, or is. A revision would be more than that: `v1^0`, or what
    /// `git describe` prints.
    pub fn tag(&self, name: &str) -> Option<String> {
        self.git(&["show-ref", "--verify", "--hash", &format!("refs/tags/{name}")]).ok().map(|id| line(&id))
    }

    /// Which of these paths, relative to the root, git tracks. Errors where git does not answer.
    pub fn tracked(&self, paths: &[&str]) -> anyhow::Result<Vec<String>> {
        let list = ["--literal-pathspecs", "ls-files", "-z", "--"];
        self.names(&[&list[..], paths].concat())
    }

    /// A short question whose answer is names with a zero behind each, as `-z` has it. Errors as `git`.
    pub fn names(&self, args: &[&str]) -> anyhow::Result<Vec<String>> {
        Ok(parts(&self.git(args)?).map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    /// Whether `old` is `new` or one of its ancestors, and how many commits `new` is ahead.
    pub fn commits_between(&self, old: &str, new: &str) -> Option<u64> {
        let range = format!("{old}..{new}");
        self.git(&["merge-base", "--is-ancestor", old, new]).ok()?;
        let count = self.git(&["rev-list", "--count", &range, "--"]).ok()?;
        String::from_utf8_lossy(&count).trim().parse().ok()
    }

    /// The newest tag before HEAD or on it, other than `tag`.
    pub fn previous_tag(&self, tag: &str) -> Option<String> {
        let exclude = format!("--exclude={tag}");
        let found = self.git(&["describe", "--tags", "--abbrev=0", &exclude, "HEAD"]).ok()?;
        Some(String::from_utf8_lossy(&found).trim().to_owned())
    }

    // The submodule at this path, if it is checked out. git takes a folder with an unfit `.git` for one of the repository around.
    fn submodule(&self, path: &Path) -> Option<Self> {
        let folder = self.root.join(path);
        if !folder.join(".git").exists() {
            return None;
        }
        Self::find(&folder).ok().filter(|inner| inner.root == folder)
    }

    /// A short question: what git printed. Errors with what it complained about.
    pub fn git(&self, args: &[&str]) -> anyhow::Result<Vec<u8>> {
        self.ask(args, b"", &[0])
    }

    // The same with something to read, and where other exit codes are answers too.
    fn ask(&self, args: &[&str], stdin: &[u8], fine: &[i32]) -> anyhow::Result<Vec<u8>> {
        let sh = Shell::new()?;
        sh.change_dir(&self.root);
        let program = &self.program;
        let call =
            cmd!(sh, "{program} {args...}").env_clear().envs(self.env.clone()).stdin(stdin).quiet().ignore_status();
        let out = call.output().context("git cannot be run")?;
        if !out.status.code().is_some_and(|code| fine.contains(&code)) {
            bail!("git {}: {}", args.join(" "), complaint(&out.stderr));
        }
        Ok(out.stdout)
    }
}

// What a program said on stderr, in one line.
fn complaint(err: &[u8]) -> String {
    let text = String::from_utf8_lossy(err);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ")
}

// What stands between the zeroes of an answer.
fn parts(out: &[u8]) -> impl Iterator<Item = &[u8]> {
    out.split(|&byte| byte == 0).filter(|part| !part.is_empty())
}

// git by its absolute path: for a bare name std forks this process, which takes as long as git's answer.
fn program() -> PathBuf {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&search).filter(|folder| folder.is_absolute()).map(|f| f.join("git"));
    let fits = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    candidates.find(fits).unwrap_or_else(|| "git".into())
}

// The environment of our calls of git. Its messages are read by nobody but people, in one language for all logs.
fn environment() -> Vec<(OsString, OsString)> {
    let strange =
        |name: &OsStr| name.as_bytes().starts_with(b"GIT_") && !KEPT_VARIABLES.iter().any(|kept| name == *kept);
    let fixed =
        [("GIT_NO_REPLACE_OBJECTS", "1"), ("GIT_OPTIONAL_LOCKS", "0"), ("GIT_ATTR_NOSYSTEM", "1"), ("LC_ALL", "C")];
    let fixed = fixed.map(|(name, value)| (name.into(), value.into()));
    std::env::vars_os().filter(|(name, _)| !strange(name)).chain(fixed).collect()
}

// One answer of `cat-file --batch`: `ID KIND SIZE`, the bytes, a newline; or `NAME missing`, `NAME ambiguous`.
fn next_object(rest: &mut &[u8]) -> anyhow::Result<Option<Object>> {
    let end = rest.iter().position(|&b| b == b'\n').context("cut off")?;
    let head = String::from_utf8_lossy(&rest[..end]).into_owned();
    *rest = &rest[end + 1..];
    let parts: Vec<&str> = head.rsplitn(3, ' ').collect();
    let [size, kind, id] = parts[..] else { return Ok(None) };
    let (Ok(size), "commit" | "tree" | "blob" | "tag") = (size.parse::<usize>(), kind) else { return Ok(None) };
    let bytes = rest.get(..size).context("cut off")?.to_vec();
    *rest = rest.get(size + 1..).context("cut off")?;
    Ok(Some(Object { id: id.to_owned(), kind: kind.to_owned(), bytes }))
}
