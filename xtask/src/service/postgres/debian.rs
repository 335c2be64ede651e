//! A server for a Debian-family machine that has none.

use std::path::Path;

use super::programs::Programs;
use super::user::ServerUser;
use crate::service::host::Host;

/// x
pub fn can_unpack() -> bool {
    false
}

/// x
pub fn unpack(_host: &mut Host, _cache: &Path, _at_least: u32, _user: ServerUser) -> anyhow::Result<Programs> {
    anyhow::bail!("no")
}
