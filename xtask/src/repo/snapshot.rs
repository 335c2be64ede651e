//! The cold snapshot: the id of the tree as it is on disk, whatever the index, its flags or the configuration claim.
//!
//! An index of its own is filled with every tracked and every untracked, not ignored file. Its entries have no cached
//! times, so each file is read; contents are hashed, not stored. Untracked files under receipts/ are left out, nothing
//! else is. `.git/info/exclude` and `core.excludesFile` are not asked, because nobody else can see what they hide.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use duct::cmd;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::{Repo, complaint, parts};
use crate::sys;
use crate::time::Moment;

// What the configuration may not decide. Hooks are off because writing an index calls one.
const CONFIG: [&str; 9] = [
    "core.fileMode=true",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.splitIndex=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.safecrlf=false",
    "core.autocrlf=false",
    "core.ignoreCase=false",
];

/// How often it is asked whether a snapshot is still wanted, while git works.
const STOP_LOOK: Duration = Duration::from_millis(20);

/// The tree on disk at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// HEAD in full; none in a repository without a commit.
    pub commit: Option<String>,
    /// Id of the tree on disk.
    pub tree: String,
    /// Files that differ from HEAD, and repositories inside this one that are no submodules; empty if the tree is clean.
    pub uncommitted: Vec<String>,
    // Per file, and per folder with tracked files in it (with `/` at the end; empty for the root).
    stamps: BTreeMap<Vec<u8>, Stamp>,
}

/// Why there is no snapshot.
#[derive(Debug)]
pub enum SnapshotError {
    /// It was not done at the deadline.
    Late,
    /// It is not wanted any more.
    Stopped,
    /// It cannot be made; what and what next.
    Failed(anyhow::Error),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late => f.write_str("reading the tree took too long"),
            Self::Stopped => f.write_str("reading the tree was stopped"),
            Self::Failed(why) => write!(f, "the tree cannot be read: {why:#}"),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<anyhow::Error> for SnapshotError {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

// The change time cannot be set by anybody, so an edit that was taken back, times and all, still shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    changed: (i64, i64),
    modified: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: metadata.ino(),
        }
    }

    // A folder that was away for a while and is back. A new entry, which a build may well make there, gives it both times;
    // moving it only the change time.
    fn moved_since(&self, old: &Self) -> bool {
        self.inode != old.inode || self.changed != old.changed && self.modified == old.modified
    }
}

impl Snapshot {
    /// Whether the tree is that of HEAD.
    pub fn clean(&self) -> bool {
        self.commit.is_some() && self.uncommitted.is_empty()
    }

    /// What is not as it was in `earlier`, a snapshot of the same work tree: files edited (also those edited back),
    /// made or removed, folders that were moved (also those moved back), and `HEAD` if it moved. Empty if the tree stood still.
    pub fn changed_since(&self, earlier: &Self) -> Vec<String> {
        let (old, new) = (&earlier.stamps, &self.stamps);
        let is_folder = |path: &[u8]| path.is_empty() || path.ends_with(b"/");
        let edited = new.iter().filter(|(path, stamp)| match old.get(*path) {
            Some(before) if is_folder(path) => stamp.moved_since(before),
            before => before != Some(stamp) && !is_folder(path),
        });
        let removed = old.keys().filter(|path| !new.contains_key(*path) && !is_folder(path));
        let name = |path: &Vec<u8>| if path.is_empty() { "./".to_owned() } else { text(path) };
        let mut names: Vec<String> = edited.map(|(path, _)| path).chain(removed).map(name).collect();
        names.sort_unstable();
        if names.is_empty() && self.tree != earlier.tree {
            // Submodules at another commit, and filters that give another answer for the same file.
            names = self.uncommitted.iter().chain(&earlier.uncommitted).cloned().collect();
            names.dedup();
            names.push("(the tree)".to_owned());
        }
        if self.commit == earlier.commit {
            // Repositories that were made or removed inside this one: none of their files is listed, nor in the tree's id.
            let only_in = |one: &Self, other: &Self| {
                let new = |path: &&String| !other.uncommitted.contains(path) && !names.contains(path);
                one.uncommitted.iter().filter(new).cloned().collect::<Vec<_>>()
            };
            let others = [only_in(self, earlier), only_in(earlier, self)].concat();
            names.extend(others);
        } else {
            names.push("HEAD".to_owned());
        }
        names
    }
}

// What `ls-files` lists.
struct Listed {
    path: Vec<u8>,
    // Mode and id in the user's index; none for untracked files.
    tracked: Option<(String, String)>,
}

impl Repo {
    /// The tree on disk, read anew. `scratch` is a folder outside of the repository, for git's own files, closed to others and
    /// made here; another one for each snapshot. Every call of git ends by `deadline`, and soon after `stopped` says
    /// so; it is asked again and again. Errors say whether it was too late, was stopped, or what is in the way.
    pub fn snapshot(
        &self,
        scratch: &Path,
        deadline: Moment,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Snapshot, SnapshotError> {
        let git = Git::new(self, scratch, deadline, stopped)?;
        let list = ["ls-files", "-t", "-s", "-z", "--cached", "--others"];
        let patterns = ["--exclude-per-directory=.gitignore", "--exclude=/receipts/"];
        let heads =
            git.start(&["rev-parse", "--revs-only", "HEAD^{commit}", "HEAD^{tree}"], Vec::new(), Index::User)?;
        let files = git.start(&[&list[..], &patterns].concat(), Vec::new(), Index::User)?;
        let listed = parse_list(&git.finish(files)?)?;
        let mut seen = self.look(listed)?;
        let gitlinks: Vec<String> = seen.unready.iter().map(|(id, path)| format!("160000,{id},{path}")).collect();
        let mut update = vec!["update-index", "--add", "--remove", "--info-only"];
        gitlinks.iter().for_each(|gitlink| update.extend(["--cacheinfo", gitlink]));
        update.extend(["-z", "--stdin"]);
        git.run(&update, std::mem::take(&mut seen.input), Index::Own)?;
        let tree = line(&git.run(&["write-tree", "--missing-ok"], Vec::new(), Index::Own)?);
        let heads = git.finish(heads)?;
        let mut heads = heads.split(|&b| b == b'\n').map(line).filter(|id| !id.is_empty());
        let (commit, head_tree) = (heads.next(), heads.next());
        let mut uncommitted = seen.nested;
        for (number, (path, inner)) in seen.submodules.iter().enumerate() {
            // The tree id knows a submodule by its commit alone.
            let inner = inner.snapshot(&scratch.join(format!("submodule-{number}")), deadline, stopped)?;
            uncommitted.extend(inner.uncommitted.iter().map(|file| format!("{}/{file}", text(path))));
            let below = |file: Vec<u8>| [path, &b"/"[..], &file].concat();
            seen.stamps.extend(inner.stamps.into_iter().map(|(file, stamp)| (below(file), stamp)));
        }
        if head_tree.as_ref() != Some(&tree) {
            let differing = match &head_tree {
                Some(head) => {
                    git.run(&["diff-index", "--cached", "--name-only", "-z", head], Vec::new(), Index::Own)?
                }
                None => git.run(&["ls-files", "-z"], Vec::new(), Index::Own)?,
            };
            uncommitted.extend(parts(&differing).map(text));
            if uncommitted.is_empty() {
                uncommitted.push("(the tree)".to_owned());
            }
        }
        if seen.modes_differ && !has_mode_bits(&self.git.folder)? {
            return Err(anyhow!(
                "the file system of {} keeps no mode bits, so nobody can tell what is executable: move the checkout to one that does \
                 (under WSL: into the home folder, not /mnt/c)",
                self.root.display()
            )
            .into());
        }
        Ok(Snapshot { commit, tree, uncommitted, stamps: seen.stamps })
    }

    // Looks at every listed file before git reads it: an edit in between shows as another change time next time.
    fn look(&self, listed: Vec<Listed>) -> anyhow::Result<Seen> {
        let mut seen = Seen::default();
        for Listed { path, tracked } in listed {
            if let Some(nested) = path.strip_suffix(b"/") {
                seen.nested.push(format!("{}/ (a repository of its own)", text(nested)));
                continue;
            }
            if tracked.is_some() && !self.stamp_folders(&path, &mut seen)? {
                continue;
            }
            let file = self.root.join(OsStr::from_bytes(&path));
            let metadata = match fs::symlink_metadata(&file) {
                Ok(metadata) => metadata,
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
                Err(e) => return Err(e).with_context(|| format!("looking at {}", file.display())),
            };
            if metadata.is_dir() {
                let Some((_, id)) = tracked.filter(|(mode, _)| mode == "160000") else { continue };
                match self.submodule(Path::new(OsStr::from_bytes(&path))) {
                    // git takes over what the submodule has checked out.
                    Some(inner) => {
                        seen.pass_on(&path);
                        seen.submodules.push((path, inner));
                    }
                    // One that is not there stays what the index says; what lies there all the same is nobody's.
                    None => {
                        self.strays(&path, &mut seen)?;
                        seen.unready.push((id, String::from_utf8(path).context("the path of a submodule")?));
                    }
                }
                continue;
            }
            if let Some((mode, _)) = tracked {
                seen.modes_differ |= mode_differs(&mode, &metadata);
            }
            seen.pass_on(&path);
            seen.stamps.insert(path, Stamp::of(&metadata));
        }
        Ok(seen)
    }

    // The folders of a tracked file; whether they are all there. What lies behind a link is not in the tree: the link is.
    fn stamp_folders(&self, path: &[u8], seen: &mut Seen) -> anyhow::Result<bool> {
        let name = path.strip_suffix(b"/").unwrap_or(path);
        let folder = &name[..name.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1)];
        if seen.stamps.contains_key(folder) || seen.no_folders.contains(folder) {
            return Ok(seen.stamps.contains_key(folder));
        }
        // Without the slash at the end, for which the system would follow a link.
        let place = self.root.join(OsStr::from_bytes(folder.strip_suffix(b"/").unwrap_or_default()));
        let metadata = match folder.is_empty() || self.stamp_folders(folder, seen)? {
            true => match fs::symlink_metadata(&place) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                found => Some(found.with_context(|| format!("looking at {}", place.display()))?),
            },
            false => None,
        };
        match metadata.filter(Metadata::is_dir) {
            Some(metadata) => drop(seen.stamps.insert(folder.to_vec(), Stamp::of(&metadata))),
            None => drop(seen.no_folders.insert(folder.to_vec())),
        }
        Ok(seen.stamps.contains_key(folder))
    }

    // Files in the folder of a submodule that is not checked out, of which git says nothing.
    fn strays(&self, path: &[u8], seen: &mut Seen) -> anyhow::Result<()> {
        let folder = self.root.join(OsStr::from_bytes(path));
        for entry in fs::read_dir(&folder).with_context(|| format!("looking into {}", folder.display()))? {
            let entry = entry?;
            let (path, metadata) = ([path, b"/", entry.file_name().as_bytes()].concat(), entry.metadata()?);
            if metadata.is_dir() {
                self.strays(&path, seen)?;
            } else {
                seen.nested.push(text(&path));
                seen.stamps.insert(path, Stamp::of(&metadata));
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Seen {
    stamps: BTreeMap<Vec<u8>, Stamp>,
    // Where tracked files had a folder, and something else is now, or nothing.
    no_folders: BTreeSet<Vec<u8>>,
    // Paths for `update-index -z --stdin`.
    input: Vec<u8>,
    nested: Vec<String>,
    // Id and path of submodules that are not checked out.
    unready: Vec<(String, String)>,
    // Path of those that are.
    submodules: Vec<(Vec<u8>, Repo)>,
    modes_differ: bool,
}

impl Seen {
    fn pass_on(&mut self, path: &[u8]) {
        self.input.extend(path);
        self.input.push(0);
    }
}

// `TAG MODE ID STAGE\tPATH` for tracked files, `? PATH` for others, each ended by a zero.
fn parse_list(out: &[u8]) -> anyhow::Result<Vec<Listed>> {
    let parse = |entry: &[u8]| {
        if let Some(path) = entry.strip_prefix(b"? ") {
            return Some(Listed { path: path.to_vec(), tracked: None });
        }
        let tab = entry.iter().position(|&b| b == b'\t')?;
        let head = String::from_utf8_lossy(&entry[..tab]).into_owned();
        let mut words = head.split(' ').skip(1);
        let tracked = Some((words.next()?.to_owned(), words.next()?.to_owned()));
        Some(Listed { path: entry[tab + 1..].to_vec(), tracked })
    };
    parts(out).map(|entry| parse(entry).with_context(|| format!("git ls-files printed {:?}", text(entry)))).collect()
}

fn mode_differs(mode: &str, metadata: &Metadata) -> bool {
    let executable = metadata.permissions().mode() & 0o100 != 0;
    metadata.is_file() && (mode == "100644" && executable || mode == "100755" && !executable)
}

// Tried with a file in git's own folder: only the file system itself can tell.
fn has_mode_bits(git_dir: &Path) -> anyhow::Result<bool> {
    let path = git_dir.join(format!("xtask-mode-bits-{}", std::process::id()));
    let try_them = || -> io::Result<bool> {
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let executable = |mode| -> io::Result<bool> {
            file.set_permissions(fs::Permissions::from_mode(mode))?;
            Ok(file.metadata()?.permissions().mode() & 0o100 != 0)
        };
        Ok(!executable(0o600)? && executable(0o700)?)
    };
    let found = try_them().with_context(|| format!("trying mode bits in {}", git_dir.display()));
    let _ = fs::remove_file(&path);
    found
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

pub(super) fn line(out: &[u8]) -> String {
    String::from_utf8_lossy(out).trim_end().to_owned()
}

#[derive(PartialEq, Eq)]
enum Index {
    // Read, never written.
    User,
    Own,
}

// Calls of git with a deadline, each in a process group of its own, so that filters go down with it.
struct Git<'a> {
    repo: &'a Repo,
    scratch: &'a Path,
    deadline: Instant,
    stopped: &'a dyn Fn() -> bool,
}

// What it prints goes to files: each pipe would have a thread of its own, and be open as long as anybody below git likes.
struct Call {
    handle: duct::Handle,
    name: String,
    out: File,
    err: File,
}

impl<'a> Git<'a> {
    fn new(repo: &'a Repo, scratch: &'a Path, deadline: Moment, stopped: &'a dyn Fn() -> bool) -> anyhow::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(scratch.join("objects"));
        made.with_context(|| format!("making {}", scratch.display()))?;
        Ok(Self { repo, scratch, deadline: Instant::now() + deadline.since(sys::now()), stopped })
    }

    fn run(&self, args: &[&str], stdin: Vec<u8>, index: Index) -> Result<Vec<u8>, SnapshotError> {
        let call = self.start(args, stdin, index)?;
        self.finish(call)
    }

    fn start(&self, args: &[&str], stdin: Vec<u8>, index: Index) -> anyhow::Result<Call> {
        let mut env: Vec<(OsString, OsString)> = self.repo.env.clone();
        if index == Index::Own {
            env.push(("GIT_INDEX_FILE".into(), self.scratch.join("index").into()));
            // Trees are written, and go with the scratch folder.
            env.push(("GIT_OBJECT_DIRECTORY".into(), self.scratch.join("objects").into()));
            env.push(("GIT_ALTERNATE_OBJECT_DIRECTORIES".into(), quoted(&self.repo.git.objects)));
        }
        let config = CONFIG.iter().flat_map(|setting| ["-c", setting]);
        let call = cmd(&self.repo.program, config.chain(args.iter().copied())).dir(&self.repo.root).full_env(env);
        let (out, err) = (self.file(args[0], "out")?, self.file(args[0], "err")?);
        let call = call.stdout_file(out.try_clone()?).stderr_file(err.try_clone()?).unchecked();
        let call = match stdin.is_empty() {
            true => call.stdin_null(),
            false => {
                let mut file = self.file(args[0], "in")?;
                file.write_all(&stdin).and_then(|()| file.rewind()).context("writing what git is to read")?;
                call.stdin_file(file)
            }
        };
        let call = call.before_spawn(|command| {
            std::os::unix::process::CommandExt::process_group(command, 0);
            Ok(())
        });
        let handle = call.start().context("git cannot be run: is it installed and on PATH?")?;
        Ok(Call { handle, name: args[0].to_owned(), out, err })
    }

    fn file(&self, name: &str, end: &str) -> anyhow::Result<File> {
        let path = self.scratch.join(format!("{name}.{end}"));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        file.with_context(|| format!("making {}", path.display()))
    }

    fn finish(&self, mut call: Call) -> Result<Vec<u8>, SnapshotError> {
        let status = loop {
            let until = self.deadline.min(Instant::now() + STOP_LOOK);
            if let Some(out) = call.handle.wait_deadline(until).context("waiting for git")? {
                break out.status;
            }
            if (self.stopped)() {
                return Err(SnapshotError::Stopped);
            }
            if Instant::now() >= self.deadline {
                return Err(SnapshotError::Late);
            }
        };
        if !status.success() {
            let mut why = complaint(&printed(&mut call.err)?);
            if why.is_empty() {
                // What it had to say may have found no room, and no more does this.
                why = call.err.write_all(b"?").map_or_else(|e| e.to_string(), |()| status.to_string());
            }
            return Err(anyhow!("git {}: {why}", call.name).into());
        }
        Ok(printed(&mut call.out)?)
    }
}

impl Drop for Call {
    // Also where another call failed first: nothing of ours runs on.
    fn drop(&mut self) {
        if !matches!(self.handle.try_wait(), Ok(None)) {
            return;
        }
        for pid in self.handle.pids().into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        // Not without a limit: it may be in the kernel's hands.
        let _ = self.handle.wait_timeout(Duration::from_secs(1));
    }
}

// From its beginning: the place in the file is git's, too.
fn printed(file: &mut File) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("reading what git printed")?;
    Ok(bytes)
}

// A list of folders in one variable, as git reads GIT_ALTERNATE_OBJECT_DIRECTORIES: quoted, because a colon separates.
fn quoted(path: &Path) -> OsString {
    let mut out = vec![b'"'];
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        if byte == b'\n' { out.extend(b"\\n") } else { out.push(byte) }
    }
    out.push(b'"');
    OsString::from(OsStr::from_bytes(&out))
}
