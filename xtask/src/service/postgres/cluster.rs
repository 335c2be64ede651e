//! The cached cluster: what `initdb` makes, kept in one file, because making it takes a second and unpacking it a few
//! hundredths. The file is written whole, renamed into place, and checked to the last byte on every use.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::dir::Dir;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::Uid;
use serde::{Deserialize, Serialize};

use super::programs::Programs;
use super::remains::BUILD;
use super::user::ServerUser;
use crate::digest;
use crate::service::host::Host;

/// Changes when the flags below, or the form of the file, change.
const RECIPE: &str = "xtask-cluster/1";

/// The same bytes whatever the user's locale and time zone; no password on the socket; small segments of the log.
const FLAGS: &[&str] = &[
    "--username=postgres",
    "--no-sync",
    "--no-instructions",
    "--auth=trust",
    "--encoding=UTF8",
    "--locale=C",
    "--wal-segsize=1",
];

/// How long `initdb` may take: it needs half a second in memory, and some on a slow disk that others use too.
const BUILD_LIMIT: Duration = Duration::from_secs(120);

/// More than this no new cluster has, in bytes.
const LARGEST: usize = 256 << 20;

/// How many clusters a cache keeps: of several versions, and of versions before an update.
const KEEP: usize = 4;

// The file: a line with the sha256 of all that follows, a line with this, then the bytes of the files one after another.
#[derive(Serialize, Deserialize)]
struct Head {
    key: String,
    entries: Vec<Entry>,
}

// A folder, or a file of so many bytes. Folders come before what is in them.
#[derive(Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    bytes: Option<u64>,
}

/// Puts a cluster for these programs into the new folder `data`, which will be `user`'s. It comes from the cache, or
/// `initdb` makes it, once however many ask at the same time, and it is cached. Anything wrong with the cached one
/// means that it is made anew. Errors if none can be had.
pub fn place(host: &mut Host, programs: &Programs, user: ServerUser, cache: &Path, data: &Path) -> anyhow::Result<()> {
    let key = key(programs)?;
    let path = cache.join(format!("postgres-{key}.cluster"));
    if unpack(&path, &key, data, user).is_ok() {
        return Ok(());
    }
    // Readers need no lock: the file that they opened stays whole. Without one, too much may be made, and nothing wrong.
    let _lock = lock(host, cache).map_err(|error| host.log(&format!("{error:#}")));
    host.still_wanted()?;
    let Err(trouble) = unpack(&path, &key, data, user) else { return Ok(()) };
    match path.exists() {
        true => host.log(&format!("the cluster is made anew: {trouble:#}")),
        false => host.log("the cluster is made, once for these programs"),
    }
    let cluster = build(host, programs, user, &key)?;
    match keep(&path, &cluster) {
        Ok(()) => remove_old(&path),
        Err(e) => host.say_note(&format!(
            "the new cluster cannot be kept in the cache, and each run makes one: cannot write {}: {e}",
            path.display()
        )),
    }
    write(&cluster, &key, data, user)
}

// What else than these could make another cluster, must be in it.
fn key(programs: &Programs) -> anyhow::Result<String> {
    let mut text = format!("{RECIPE}\n{}\n{FLAGS:?}\n", programs.version);
    for name in ["initdb", "postgres"] {
        let path = programs.bin.join(name);
        let meta = path.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        text.push_str(&format!("{}\n{}\n{}.{}\n", path.display(), meta.len(), meta.mtime(), meta.mtime_nsec()));
    }
    Ok(digest::of_bytes(text.as_bytes())[..32].to_owned())
}

/// The lock of whoever puts something into the cache. The kernel frees it however we end. Errors if it cannot be had at
/// all, or the runner is gone.
pub fn lock(host: &Host, cache: &Path) -> anyhow::Result<Flock<File>> {
    let path = cache.join("postgres.lock");
    let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => file,
            Err((_, e)) => bail!("cannot lock the cache: {e}"),
        };
        host.pause(Duration::from_millis(10))?;
    }
}

// Reads the cached file and writes what is in it. On any error the folder is removed again.
fn unpack(path: &Path, key: &str, data: &Path, user: ServerUser) -> anyhow::Result<()> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let owner = path.metadata()?.uid();
    ensure!(owner == Uid::effective().as_raw() || owner == 0, "{} belongs to somebody else", path.display());
    let (claimed, rest) = line(&bytes)?;
    // Hashing and writing take about as long, and do not need each other.
    let unpacked = std::thread::scope(|scope| {
        let hashed = scope.spawn(|| digest::of_bytes(rest).as_bytes() == claimed);
        let written = write(rest, key, data, user);
        ensure!(hashed.join().unwrap_or(false), "{} is damaged", path.display());
        written
    });
    if unpacked.is_err() {
        let _ = fs::remove_dir_all(data);
    }
    unpacked
}

fn line(bytes: &[u8]) -> anyhow::Result<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&b| b == b'\n').context("has no end of line where one belongs")?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

fn write(rest: &[u8], key: &str, data: &Path, user: ServerUser) -> anyhow::Result<()> {
    let (head, mut bytes) = line(rest)?;
    let head: Head = serde_json::from_slice(head)?;
    ensure!(head.key == key, "is the cluster of other programs");
    let folder = |path: &Path| DirBuilder::new().mode(0o700).create(path);
    folder(data).with_context(|| format!("cannot make {}", data.display()))?;
    for entry in head.entries {
        // Not yet known to be undamaged.
        ensure!(
            entry.path.components().all(|part| matches!(part, Component::Normal(_))),
            "holds a path that leaves it"
        );
        let path = data.join(entry.path);
        match entry.bytes {
            None => folder(&path)?,
            Some(length) => {
                let content = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
                let content = content.context("ends too early")?;
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.write_all(content.0)?;
                bytes = content.1;
            }
        }
        user.give(&path)?;
    }
    // Last: until now nobody else could reach what is in it.
    Ok(user.give(data)?)
}

// A new cluster in the form of the file, without its first line.
fn build(host: &Host, programs: &Programs, user: ServerUser, key: &str) -> anyhow::Result<Vec<u8>> {
    let user = user.with_passwd_entry();
    let data = host.folder.join(BUILD);
    DirBuilder::new().mode(0o700).create(&data)?;
    user.give(&data)?;
    let mut command = programs.command("initdb");
    command.args(FLAGS).arg("--pgdata").arg(&data).current_dir("/");
    host.ask(user.show_as_known(user.of(&mut command)), BUILD_LIMIT)?;
    let mut entries = Vec::new();
    let mut content = Vec::new();
    let opened = openat(nix::fcntl::AT_FDCWD, &data, NO_LINK, Mode::empty())?;
    collect(Dir::from_fd(opened)?, Path::new(""), user, &mut entries, &mut content)?;
    fs::remove_dir_all(&data)?;
    let mut cluster = serde_json::to_vec(&Head { key: key.to_owned(), entries })?;
    cluster.push(b'\n');
    cluster.append(&mut content);
    Ok(cluster)
}

fn keep(path: &Path, cluster: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(format!("{}\n", digest::of_bytes(cluster)).as_bytes())?;
        file.write_all(cluster)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Nothing that is opened so is a link, or makes us wait.
const NO_LINK: OFlag = OFlag::O_NOFOLLOW.union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);

// Whoever runs initdb can change what it made while we, who may be root, read it: no link is followed, and nothing is
// read that this user could not read.
fn collect(
    mut folder: Dir,
    below: &Path,
    user: ServerUser,
    entries: &mut Vec<Entry>,
    content: &mut Vec<u8>,
) -> anyhow::Result<()> {
    let mut names = folder.iter().map(|entry| Ok(entry?.file_name().to_owned())).collect::<nix::Result<Vec<_>>>()?;
    names.retain(|name| !matches!(name.to_bytes(), b"." | b".."));
    names.sort();
    for name in names {
        let path = below.join(OsStr::from_bytes(name.to_bytes()));
        let opened = openat(&folder, name.as_c_str(), NO_LINK, Mode::empty());
        let mut file = File::from(opened.with_context(|| format!("cannot read initdb's {}", path.display()))?);
        let meta = file.metadata()?;
        if meta.is_dir() {
            entries.push(Entry { path: path.clone(), bytes: None });
            collect(Dir::from_fd(file.into())?, &path, user, entries, content)?;
        } else {
            ensure!(meta.is_file() && meta.uid() == user.uid(), "{} is not what initdb made", path.display());
            let before = content.len();
            (&mut file).take(LARGEST as u64).read_to_end(content)?;
            ensure!(content.len() < LARGEST, "initdb made more than {LARGEST} bytes");
            entries.push(Entry { path, bytes: Some((content.len() - before) as u64) });
        }
    }
    Ok(())
}

// Called under the lock: clusters beyond the newest few, and what a killed builder left half written.
fn remove_old(newest: &Path) {
    let entries = newest.parent().and_then(|cache| fs::read_dir(cache).ok()).into_iter().flatten().flatten();
    let ours = |path: &Path, sign: &str| path.file_name().is_some_and(|n| n.to_string_lossy().contains(sign));
    let mut clusters = Vec::new();
    for entry in entries {
        let path = entry.path();
        if ours(&path, ".partial-") && ours(&path, "postgres-") {
            let _ = fs::remove_file(path);
        } else if ours(&path, ".cluster") {
            clusters.extend(entry.metadata().and_then(|meta| meta.modified()).map(|at| (at, path)));
        }
    }
    clusters.sort();
    for (_, path) in clusters.iter().rev().skip(KEEP) {
        let _ = fs::remove_file(path);
    }
}
