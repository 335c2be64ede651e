//! Who runs the server. PostgreSQL refuses root, and `initdb` refuses a user without an entry in /etc/passwd.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{Gid, Uid, User};

use crate::sys;

/// The user that runs the server's programs, seen from who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerUser {
    /// The one that runs this process.
    Same,
    /// Another one, because we are root.
    Other {
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
}

impl ServerUser {
    /// Ourselves, unless that is root: then the owner of `root` (the checkout), else `postgres`, else `nobody`.
    pub fn choose(root: &Path) -> Self {
        if !Uid::effective().is_root() {
            return Self::Same;
        }
        let owner = std::fs::metadata(root).ok().filter(|meta| meta.uid() != 0).map(|meta| (meta.uid(), meta.gid()));
        let named = |name| User::from_name(name).ok().flatten().map(|user| (user.uid.as_raw(), user.gid.as_raw()));
        // 65534 is the kernel's own number for nobody, whatever /etc/passwd says.
        let (uid, gid) = owner.or_else(|| named("postgres")).or_else(|| named("nobody")).unwrap_or((65_534, 65_534));
        Self::Other { uid, gid }
    }

    /// Its number.
    pub fn uid(&self) -> u32 {
        match *self {
            Self::Same => Uid::effective().as_raw(),
            Self::Other { uid, .. } => uid,
        }
    }

    /// Makes a command run as this user.
    pub fn of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match *self {
            Self::Same => command,
            Self::Other { uid, gid } => command.uid(uid).gid(gid),
        }
    }

    /// Gives it a file or a folder. Errors if the system refuses.
    pub fn give(&self, path: &Path) -> std::io::Result<()> {
        match *self {
            Self::Same => Ok(()),
            Self::Other { uid, gid } => chown(path, Some(uid), Some(gid)),
        }
    }

    /// Whether it may pass through all folders on the way to this one, and this one. Errors say which one is closed to it.
    pub fn can_enter(&self, path: &Path) -> Result<(), String> {
        let Self::Other { uid, gid } = *self else { return Ok(()) };
        for folder in path.ancestors() {
            let meta = folder.metadata().map_err(|e| format!("{}: {e}", folder.display()))?;
            let mine = (meta.uid() == uid, meta.gid() == gid);
            let bit = if mine.0 {
                0o100
            } else if mine.1 {
                0o010
            } else {
                0o001
            };
            if meta.mode() & bit == 0 {
                return Err(format!("{} is closed to user {uid}, who runs the server", folder.display()));
            }
        }
        Ok(())
    }

    /// The one to run `initdb` as: this one if it has an entry in /etc/passwd, else one who has. What that makes can be
    /// given to this one.
    pub fn with_passwd_entry(&self) -> Self {
        let known = |uid| User::from_uid(Uid::from_raw(uid)).ok().flatten().is_some();
        match *self {
            Self::Other { uid, .. } if !known(uid) => Self::choose(Path::new("/")),
            other => other,
        }
    }

    /// Lets `initdb` find an entry for us although there is none: in a user namespace where we are called `nobody`. Does
    /// nothing where there is one. Where the system forbids such namespaces, the command cannot be started.
    pub fn show_as_known<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let we = Uid::effective();
        if *self == Self::Same && User::from_uid(we).ok().flatten().is_none() {
            let nobody = User::from_name("nobody").ok().flatten();
            let (uid, gid) = nobody.map_or((65_534, 65_534), |user| (user.uid.as_raw(), user.gid.as_raw()));
            sys::show_as(command, (we.as_raw(), uid), (Gid::effective().as_raw(), gid));
        }
        command
    }
}
