//! The user's cache: what is dear to make and outlives a run. Every user has their own.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::bail;
use nix::unistd::Uid;

/// The folder, made if it is not there: `xtask` below XDG_CACHE_HOME where that is set; else /var/cache for root (whose
/// home the servers' users cannot enter); else below ~/.cache; else, without a home that can be written, a folder of
/// the user's own among the temporary files. `fits` says why one will not do, if it will not. Gives also what was passed
/// over, and why. Errors if none of them can be had.
pub fn folder(fits: &dyn Fn(&Path) -> Result<(), String>) -> anyhow::Result<(PathBuf, Vec<String>)> {
    let me = Uid::effective();
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = match variable("XDG_CACHE_HOME") {
        Some(cache) => Some(cache),
        None if me.is_root() => Some(PathBuf::from("/var/cache")),
        None => variable("HOME").map(|home| home.join(".cache")),
    };
    let usual = usual.map(|cache| cache.join("xtask"));
    let last = std::env::temp_dir().join(format!("xtask-cache-{me}"));
    let mut refused = Vec::new();
    for path in usual.into_iter().chain([last]) {
        match make(&path, me).and_then(|()| fits(&path)) {
            Ok(()) => return Ok((path, refused)),
            Err(why) => refused.push(format!("{}: {why}", path.display())),
        }
    }
    bail!("no folder can be the cache ({}); set XDG_CACHE_HOME", refused.join("; "))
}

fn make(path: &Path, me: Uid) -> Result<(), String> {
    // Root's is entered by the users that run servers; nothing in it is secret.
    let mode = if me.is_root() { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(path).map_err(|e| e.to_string())?;
    // Anybody can make folders among the temporary files: a cluster that somebody else can change is not ours.
    let meta = path.symlink_metadata().map_err(|e| e.to_string())?;
    if !meta.is_dir() || meta.uid() != me.as_raw() || meta.mode() & 0o022 != 0 {
        return Err("is not a folder that only this user can write".to_owned());
    }
    // Whatever the umask was when it was made.
    if meta.mode() & mode != mode {
        set_permissions(path, Permissions::from_mode(mode)).map_err(|e| e.to_string())?;
    }
    nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).map_err(|e| e.to_string())
}
