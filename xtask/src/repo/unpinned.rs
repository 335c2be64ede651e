//! What a tree id does not pin: reasons for which a release is refused although its tree is clean.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Repo, SnapshotError};
use crate::time::Moment;

const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

impl Repo {
    /// One line each for whatever the files on disk may be without another tree id: submodules with changes, pointers of LFS in
    /// place of files, attributes that only this clone has. `scratch` and `deadline` as for a snapshot.
    pub fn unpinned(&self, scratch: &Path, deadline: Moment) -> Result<Vec<String>, SnapshotError> {
        let mut reasons = Vec::new();
        for (number, path) in self.submodules()?.into_iter().enumerate() {
            if !self.root.join(&path).join(".git").exists() {
                continue;
            }
            let (inner, scratch) = (Self::find(&self.root.join(&path))?, scratch.join(number.to_string()));
            let snapshot = inner.snapshot(&scratch, deadline, &|| false)?;
            if !snapshot.clean() {
                let files = snapshot.uncommitted.join(", ");
                reasons.push(format!("submodule {} has changes that are not committed: {files}", path.display()));
            }
            let deeper = inner.unpinned(&scratch.join("inner"), deadline)?;
            reasons.extend(deeper.iter().map(|reason| format!("in submodule {}: {reason}", path.display())));
        }
        for path in self.paths(&["ls-files", "-z", "--", ":(attr:filter=lfs)"])? {
            let mut head = Vec::new();
            if let Ok(file) = File::open(self.root.join(&path)) {
                file.take(LFS_POINTER.len() as u64)
                    .read_to_end(&mut head)
                    .with_context(|| path.display().to_string())?;
            }
            if head == LFS_POINTER {
                reasons.push(format!("{} is a pointer of LFS, not the file itself (git lfs pull)", path.display()));
            }
        }
        let attributes = self.git.folder.join("info/attributes");
        if fs::metadata(&attributes).is_ok_and(|file| file.len() > 0) {
            let path = attributes.display();
            reasons.push(format!("{path} may have files read otherwise than everybody else reads them"));
        }
        Ok(reasons)
    }

    fn submodules(&self) -> anyhow::Result<Vec<PathBuf>> {
        let listed = self.git(&["ls-files", "-z", "--stage"], b"")?;
        let gitlinks = listed.split(|&b| b == 0).filter(|entry| entry.starts_with(b"160000 "));
        let path = |entry: &[u8]| Some(entry[entry.iter().position(|&b| b == b'\t')? + 1..].to_vec());
        Ok(gitlinks.filter_map(path).map(|path| OsStr::from_bytes(&path).into()).collect())
    }

    fn paths(&self, args: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        let out = self.git(args, b"")?;
        let paths = out.split(|&b| b == 0).filter(|path| !path.is_empty());
        Ok(paths.map(|path| OsStr::from_bytes(path).into()).collect())
    }
}
