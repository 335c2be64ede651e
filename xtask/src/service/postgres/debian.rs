//! A server for a Debian-family machine that has none: the distribution's own packages, fetched and checked against
//! their signatures by apt, unpacked without root into the user's cache. Nothing is installed, and nothing of the
//! system's own package state is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use nix::sys::statvfs::statvfs;

use super::cluster;
use super::programs::{self, Programs};
use super::user::ServerUser;
use crate::digest;
use crate::service::cache;
use crate::service::host::Host;

/// How an unpacked server's folder begins; the version follows.
const PREFIX: &str = "postgres-server-";

/// In that folder: a line for each file, its size, its sha256 (`-` for a link) and its path. Written last.
const MANIFEST: &str = "files";

/// What the disk must have room for, in bytes: packages and what is in them.
const ROOM: f64 = 256.0 * 1024.0 * 1024.0;

/// How long one call of apt may take: some 60 MB from a mirror.
const FETCH_LIMIT: Duration = Duration::from_secs(600);

/// Whether the tools are here. Whether the packages can be had is seen when they are fetched.
pub fn can_unpack() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    Path::new("/var/lib/dpkg/status").exists() && ["apt-get", "apt-cache", "dpkg-deb"].iter().all(has)
}

/// The newest version that the lists of packages have, if there are lists: a question that changes nothing.
pub fn listed() -> Option<u32> {
    let mut command = Command::new("apt-cache");
    let options = ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "pkgnames", "postgresql-"];
    newest(&programs::answer(command.args(options)).ok()?)
}

fn newest(names: &str) -> Option<u32> {
    names.lines().filter_map(|name| name.strip_prefix("postgresql-")?.parse().ok()).max()
}

/// The unpacked server of the cache, or a new one. Errors say what apt said, or which version the packages have.
pub fn unpack(host: &mut Host, at_least: u32, user: ServerUser) -> anyhow::Result<Programs> {
    let fits = |folder: &Path| {
        let free = statvfs(folder).map(|fs| fs.blocks_available() as f64 * fs.fragment_size() as f64);
        user.can_enter(folder)?;
        if free.is_ok_and(|free| free < ROOM) { Err("has less room than 256 MB".to_owned()) } else { Ok(()) }
    };
    let (cache, refused) = cache::folder(&fits)?;
    refused.iter().for_each(|why| host.say_note(&format!("another cache is used: {why}")));
    let cache = cache.as_path();
    if let Some(programs) = unpacked(cache, at_least, user) {
        return Ok(programs);
    }
    let _lock = cluster::lock(host, cache)?;
    if let Some(programs) = unpacked(cache, at_least, user) {
        return Ok(programs);
    }
    host.say_note(
        "no PostgreSQL server here: getting one from the distribution's packages, once, without installing it",
    );
    let apt = Apt::new(cache)?;
    let fetched = fetch(host, &apt, cache, at_least);
    let _ = fs::remove_dir_all(&apt.folder);
    let folder = fetched?;
    usable(&folder, user).map_err(|why| anyhow!("the server that was unpacked cannot be used: {why}"))
}

// The newest of the cache that is whole, runs and will do.
fn unpacked(cache: &Path, at_least: u32, user: ServerUser) -> Option<Programs> {
    let entries = fs::read_dir(cache).ok()?.flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    let found = ours.filter_map(|entry| usable(&entry.path(), user).ok());
    found.filter(|programs| programs.major >= at_least).max_by_key(|programs| programs.major)
}

fn usable(folder: &Path, user: ServerUser) -> Result<Programs, String> {
    undamaged(folder, false)?;
    let versions = fs::read_dir(folder.join("usr/lib/postgresql")).map_err(|e| e.to_string())?.flatten();
    let bin = versions.map(|version| version.path().join("bin")).next().ok_or("it has no programs")?;
    Programs::in_folder(&bin, Some(libraries(folder)), user)
}

// `contents`: not the sizes alone, which take no time, but every byte.
fn undamaged(folder: &Path, contents: bool) -> Result<(), String> {
    let manifest = fs::read_to_string(folder.join(MANIFEST)).map_err(|_| "it is not whole".to_owned())?;
    for line in manifest.lines() {
        let mut parts = line.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default();
        let (size, sum, path) = (part(), part(), part());
        let meta = folder.join(path).symlink_metadata();
        let whole = meta.is_ok_and(|meta| meta.len().to_string() == size);
        let same = || hash(&folder.join(path)).is_ok_and(|found| found == sum);
        if !whole || contents && sum != "-" && !same() {
            return Err(format!("{path} is damaged"));
        }
    }
    Ok(())
}

fn hash(path: &Path) -> std::io::Result<String> {
    digest::of_reader(fs::File::open(path)?)
}

/// What is damaged in the unpacked server that this folder of programs is in, if that is one and anything is: then no
/// run will use it again. For a server that does not do what it should.
pub fn condemn(bin: &Path) -> Option<String> {
    let is_unpacked = |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    let folder = bin.ancestors().find(is_unpacked)?;
    let why = undamaged(folder, true).err()?;
    let _ = fs::remove_file(folder.join(MANIFEST));
    Some(why)
}

// lib and usr/lib, and their folders of an architecture (x86_64-linux-gnu …), which is where the packages put them.
fn libraries(folder: &Path) -> OsString {
    let mut found = Vec::new();
    for top in ["usr/lib", "lib"].map(|top| folder.join(top)) {
        let below = fs::read_dir(&top).into_iter().flatten().flatten();
        found.extend(below.filter(|e| e.file_name().to_string_lossy().contains("-linux-")).map(|e| e.path()));
        found.push(top);
    }
    std::env::join_paths(found).unwrap_or_default()
}

/// apt with folders of its own for lists and packages. What is installed it reads where it always is, so that it
/// fetches only what is missing; sources, keys and proxies are the system's.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(cache: &Path) -> anyhow::Result<Self> {
        let folder = cache.join("apt");
        let _ = fs::remove_dir_all(&folder);
        for path in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(path)).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        Ok(Self { folder })
    }

    fn command(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        let folder = self.folder.display();
        let options = [
            format!("Dir::State={folder}"),
            format!("Dir::State::lists={folder}/lists"),
            "Dir::State::status=/var/lib/dpkg/status".to_owned(),
            format!("Dir::Cache={folder}"),
            format!("Dir::Cache::archives={folder}/archives"),
            // Images for containers switch these off, and every call reads all lists again.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".to_owned(),
            // Whoever may write the folder may; there is nothing to lock but the folder that we have locked.
            "Debug::NoLocking=true".to_owned(),
            // Old or missing lists are no answer (since apt 2.1; before, they are only warned of).
            "APT::Update::Error-Mode=any".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            // Only lists of packages.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::CNF::DefaultEnabled=false".to_owned(),
            // Whatever the system says: what is not signed is not run.
            "APT::Get::AllowUnauthenticated=false".to_owned(),
            "Acquire::AllowInsecureRepositories=false".to_owned(),
        ];
        for option in options {
            command.arg("-o").arg(option);
        }
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").current_dir(self.folder.join("archives"));
        command
    }

    fn ask(&self, host: &Host, tool: &str, arguments: &[&str]) -> anyhow::Result<String> {
        host.ask(self.command(tool).args(arguments), FETCH_LIMIT)
    }
}

fn fetch(host: &mut Host, apt: &Apt, cache: &Path, at_least: u32) -> anyhow::Result<PathBuf> {
    let warned = apt.ask(host, "apt-get", &["-qq", "update"])?;
    let names = apt.ask(host, "apt-cache", &["pkgnames", "postgresql-"])?;
    let major = newest(&names);
    let major = major.with_context(|| format!("the distribution's packages have no PostgreSQL server; {warned}"))?;
    ensure!(major >= at_least, "the distribution's packages have PostgreSQL {major}; {at_least} or later is needed");
    let server = format!("postgresql-{major}");
    let packages = closure(host, apt, &server)?;
    let version = packages.get(&server).cloned().unwrap_or_default();
    // Another C library than the one that starts the programs would crash them.
    ensure!(!packages.contains_key("libc6"), "the C library of this system is not one of its packages");
    let mut arguments = vec!["-qq", "download"];
    arguments.extend(packages.keys().map(String::as_str));
    apt.ask(host, "apt-get", &arguments)?;
    let mut archives = Vec::new();
    for entry in fs::read_dir(apt.folder.join("archives"))? {
        archives.extend(Some(entry?.path()).filter(|path| path.extension().is_some_and(|e| e == "deb")));
    }
    let megabytes = archives.iter().filter_map(|path| Some(path.metadata().ok()?.len())).sum::<u64>() >> 20;
    host.say_note(&format!(
        "unpacking {server} {version} and {} libraries ({megabytes} MB)",
        archives.len().saturating_sub(1)
    ));
    let new = apt.folder.join("new");
    DirBuilder::new().mode(0o755).create(&new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?; // whatever the umask
    for package in &archives {
        host.ask(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&new), FETCH_LIMIT)?;
    }
    let mut manifest = String::new();
    list(&new, Path::new(""), &mut manifest)?;
    fs::write(new.join(MANIFEST), manifest)?;
    // A version has letters, digits and .+:~- only; the last one could not be a name with a slash either way.
    let folder = cache.join(format!("{PREFIX}{}", version.replace(['/', ':'], "_")));
    let _ = fs::remove_dir_all(&folder); // damaged, or we would not be here
    fs::rename(&new, &folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

// The server and, of all that it depends on, the libraries that are not installed, with their versions. Its client,
// configuration tools and locales are not needed to run it; nor is LLVM, by far the largest, as long as `jit` is off.
// apt's own resolver would refuse to help where anything that is installed is broken.
fn closure(host: &Host, apt: &Apt, server: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let status = fs::read_to_string("/var/lib/dpkg/status").context("cannot read what is installed")?;
    let paragraphs =
        status.split("\n\n").filter(|about| field(about, "Status").is_some_and(|s| s.ends_with(" installed")));
    let installed: BTreeSet<&str> = paragraphs.filter_map(|about| field(about, "Package")).collect();
    let mut found = BTreeMap::new();
    let mut wanted = BTreeSet::from([server.to_owned()]);
    while !wanted.is_empty() {
        let mut arguments = vec!["show", "--no-all-versions"];
        arguments.extend(wanted.iter().map(String::as_str));
        let shown = apt.ask(host, "apt-cache", &arguments)?;
        wanted.clear();
        for about in shown.split("\n\n") {
            let (Some(name), Some(version)) = (field(about, "Package"), field(about, "Version")) else { continue };
            found.insert(name.to_owned(), version.to_owned());
            let depends = ["Pre-Depends", "Depends"].into_iter().filter_map(|kind| field(about, kind));
            wanted.extend(depends.flat_map(libraries_of).filter(|name| !installed.contains(name)).map(str::to_owned));
        }
        wanted.retain(|name| !found.contains_key(name));
    }
    ensure!(found.contains_key(server), "apt has no package {server}");
    Ok(found)
}

fn field<'a>(about: &'a str, name: &str) -> Option<&'a str> {
    about.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

// `libc6 (>= 2.34), libfoo1 | libfoo2, libbar:any`: the first of alternatives.
fn libraries_of(depends: &str) -> impl Iterator<Item = &str> {
    let names = depends.split(',').filter_map(|one| one.trim().split([' ', ':', '|', '(']).next());
    names.filter(|name| name.starts_with("lib") && !name.starts_with("libllvm"))
}

fn list(top: &Path, below: &Path, manifest: &mut String) -> anyhow::Result<()> {
    for entry in fs::read_dir(top.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(top, &path, manifest)?;
        } else {
            let meta = entry.metadata()?;
            let sum = if meta.is_file() { hash(&entry.path())? } else { "-".to_owned() };
            manifest.push_str(&format!("{} {sum} {}\n", meta.len(), path.display()));
        }
    }
    Ok(())
}
