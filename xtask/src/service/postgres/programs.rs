//! The server's programs: where they are looked for, and which version they are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::user::ServerUser;
use crate::service::host::wait_for;
use crate::time::Human;

/// The variable that names the folder of the programs; nothing else is looked at then.
pub const VARIABLE: &str = "XTASK_PG_BINDIR";

/// How long a program may take to say its version.
const PATIENCE: Duration = Duration::from_secs(10);

/// Folders of versions side by side, newest first when looked at. `*` stands for any text within one name.
const PLACES: &[&str] = &[
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/libexec/postgresql*",
    "/usr/lib/postgresql*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
];

/// A server that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The folder of `initdb` and `postgres`.
    pub bin: PathBuf,
    /// What `postgres --version` says: `15.18 (Debian 15.18-0+deb12u1)`.
    pub version: String,
    /// The number before the first dot.
    pub major: u32,
    /// Folders of libraries that they need and the system does not have, as LD_LIBRARY_PATH wants them.
    pub libraries: Option<OsString>,
}

/// No server that will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// What was looked at, and why it will not do.
    pub looked: Vec<String>,
    /// Whether one that was named in `XTASK_PG_BINDIR` is not to be used: no other one may stand in for it.
    pub named: bool,
    /// Whether there was one that is only too old.
    pub outdated: bool,
}

impl Programs {
    /// One of the programs, with the libraries that it needs and without what would change its messages and times. Every
    /// locale is C: one that is not installed stops a server.
    pub fn command(&self, name: &str) -> Command {
        program(&self.bin.join(name), self.libraries.as_ref())
    }

    /// Asks the programs in that folder for their version, as the user who will run them. Errors say why they cannot be
    /// used.
    pub fn in_folder(bin: &Path, libraries: Option<OsString>, user: ServerUser) -> Result<Self, String> {
        for name in ["initdb", "postgres"] {
            if !is_program(&bin.join(name)) {
                return Err(format!("has no {name}"));
            }
        }
        let mut command = program(&bin.join("postgres"), libraries.as_ref());
        let text = answer(user.of(command.arg("--version"))).map_err(|why| format!("postgres --version {why}"))?;
        let version = text.trim().strip_prefix("postgres (PostgreSQL) ").map(str::to_owned);
        let major = version.as_deref().map(|v| v.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
        match (version.clone(), major.and_then(|major| major.parse().ok())) {
            (Some(version), Some(major)) => Ok(Self { bin: bin.to_owned(), version, major, libraries }),
            _ => Err(format!("does not run: {}", text.trim())),
        }
    }
}

/// What a program says at once, stdout before stderr; it may say what a pipe holds. Errors if it does not end in time.
pub fn answer(command: &mut Command) -> Result<String, String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|e| format!("cannot be started: {e}"))?;
    if wait_for(&mut child, PATIENCE).is_none() {
        let _ = i32::try_from(child.id()).map(|group| killpg(Pid::from_raw(group), Signal::SIGKILL));
        let _ = child.wait();
        return Err(format!("did not end within {}", Human(PATIENCE)));
    }
    // Without waiting for what it may have left, which has the pipes too.
    let mut text = Vec::new();
    fn read(from: Option<impl Read + AsFd>, text: &mut Vec<u8>) {
        let Some(mut from) = from else { return };
        if fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).is_ok() {
            let _ = from.read_to_end(text);
        }
    }
    read(child.stdout.take(), &mut text);
    read(child.stderr.take(), &mut text);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn program(path: &Path, libraries: Option<&OsString>) -> Command {
    let mut command = Command::new(path);
    // Any PG* variable may change what initdb and postgres do (PGDATA, PGPORT, PGTZ …).
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
        command.env_remove(name);
    }
    command.envs([("LC_ALL", "C"), ("TZ", "UTC")]);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command
}

/// The first server that is recent enough, in this order: `XTASK_PG_BINDIR` alone where it is set; PATH; what
/// `pg_config` says; the usual places of distributions, highest version first. Names that are not absolute are meant
/// from `root`, the repository, whoever asks. Errors say what was looked at.
pub fn find(at_least: u32, user: ServerUser, root: &Path) -> Result<Programs, Missing> {
    let (mut looked, mut outdated) = (Vec::new(), false);
    let mut fits = |bin: &Path| match Programs::in_folder(bin, None, user) {
        Ok(found) if found.major >= at_least => Some(found),
        Ok(found) => {
            looked.push(format!("{}: is version {}", bin.display(), found.version));
            outdated = true;
            None
        }
        Err(why) => {
            looked.push(format!("{}: {why}", bin.display()));
            None
        }
    };
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let found = fits(&root.join(named));
        return found.ok_or(Missing { looked, named: true, outdated });
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).map(|entry| root.join(entry)).collect();
    let both = |bin: &&PathBuf| is_program(&bin.join("initdb")) && is_program(&bin.join("postgres"));
    if let Some(found) = path.iter().filter(both).find_map(|bin| fits(bin)) {
        return Ok(found);
    }
    let config = path.iter().map(|bin| bin.join("pg_config")).find(|config| is_program(config));
    if let Some(Ok(bin)) = config.map(|config| answer(Command::new(config).arg("--bindir"))) {
        let bin = PathBuf::from(bin.trim());
        // The client's packages bring it too, without any server.
        if let Some(found) = both(&&bin).then(|| fits(&bin)).flatten() {
            return Ok(found);
        }
    }
    for place in PLACES {
        if let Some(found) = expand(place).values().rev().filter(|bin| both(bin)).find_map(|bin| fits(bin)) {
            return Ok(found);
        }
    }
    looked.push("PATH, pg_config --bindir: no initdb and postgres side by side".to_owned());
    looked.extend(PLACES.iter().map(|place| format!("{place}: nothing else")));
    Err(Missing { looked, named: false, outdated })
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

// The folders that a pattern with one `*` stands for, by the version in their names (9.6 before 14).
fn expand(pattern: &str) -> BTreeMap<Vec<u32>, PathBuf> {
    let (before, after) = pattern.split_once('*').expect("every place has a star");
    let (folder, prefix) = before.rsplit_once('/').expect("every place is absolute");
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bin = PathBuf::from(format!("{folder}/{name}{after}"));
        if let Some(version) = name.strip_prefix(prefix)
            && bin.is_dir()
        {
            let numbers = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0)).collect();
            found.insert(numbers, bin);
        }
    }
    found
}
