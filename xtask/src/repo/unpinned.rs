//! What a tree id does not pin: reasons for which a release is refused although its tree is clean.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Repo, SnapshotError, parts};
use crate::time::Moment;

const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

// What git-lfs itself writes into the configuration; anything else under its name may be anything.
const LFS_FILTERS: [&str; 3] = ["git-lfs clean -- %f", "git-lfs filter-process", "git-lfs filter-process --skip"];

impl Repo {
    /// One line each for whatever the files on disk may be without another tree id: submodules with changes, pointers of LFS in
    /// place of files, attributes and filters that only this clone has. `scratch`, `deadline` and `stopped` as for a
    /// snapshot. Errors as for that.
    pub fn unpinned(
        &self,
        scratch: &Path,
        deadline: Moment,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<String>, SnapshotError> {
        let mut reasons = Vec::new();
        for (number, (path, inner)) in self.submodules()?.into_iter().enumerate() {
            let (path, scratch) = (path.display(), scratch.join(number.to_string()));
            let snapshot = inner.snapshot(&scratch, deadline, stopped)?;
            if !snapshot.clean() {
                let files = snapshot.uncommitted.join(", ");
                reasons.push(format!("submodule {path} has changes that are not committed: {files}"));
            }
            let deeper = inner.unpinned(&scratch.join("inner"), deadline, stopped)?;
            reasons.extend(deeper.iter().map(|reason| format!("in submodule {path}: {reason}")));
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
        let tracked = self.paths(&["ls-files", "-z"])?;
        for path in self.paths(&["ls-files", "-z", "--others", "--", ":(glob)**/.gitattributes"])? {
            let folder = path.parent().unwrap_or(Path::new(""));
            if tracked.iter().any(|file| file.starts_with(folder)) {
                let path = path.display();
                reasons.push(format!(
                    "{path} is not committed, and may have files read otherwise than everybody else does"
                ));
            }
        }
        reasons.extend(self.filtered()?);
        Ok(reasons)
    }

    // What a filter of the configuration makes of a file is hashed, not the file.
    fn filtered(&self) -> anyhow::Result<Vec<String>> {
        let listed = self.ask(&["config", "-z", "--get-regexp", r"^filter\..*\.(clean|process)$"], b"", &[0, 1])?;
        let mut filters = BTreeSet::new();
        for entry in parts(&listed).map(String::from_utf8_lossy) {
            let Some((key, value)) = entry.split_once('\n').filter(|(_, value)| !value.is_empty()) else { continue };
            let name = key.strip_prefix("filter.").and_then(|key| key.rsplit_once('.')).map_or(key, |(name, _)| name);
            if name != "lfs" || !LFS_FILTERS.contains(&value) {
                filters.insert(name.to_owned());
            }
        }
        let mut reasons = Vec::new();
        for name in filters {
            if let Some(path) = self.paths(&["ls-files", "-z", "--", &format!(":(attr:filter={name})")])?.first() {
                let path = path.display();
                reasons
                    .push(format!("{path} is read through the filter {name:?}, which is not committed (git config)"));
            }
        }
        Ok(reasons)
    }

    /// One line for each file `.gitignore` that is not committed and ignored by none that is: it hides files, itself included,
    /// from whoever asks what is not committed. `but` is one that may. Errors where git does not answer.
    pub fn hidden(&self, but: &Path) -> anyhow::Result<Vec<String>> {
        let others = self.paths(&["ls-files", "-z", "--others", "--", ":(glob)**/.gitignore"])?;
        let known = self.paths(&["ls-files", "-z", "--", ":(glob)**/.gitignore"])?;
        let asked: Vec<u8> = others.iter().flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect();
        let told = self.ask(&["check-ignore", "-z", "--verbose", "--no-index", "--stdin"], &asked, &[0, 1])?;
        // The file that ignores it, a line number, the pattern, the path.
        let told: Vec<&[u8]> = told.split(|&b| b == 0).collect();
        let path_of = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let covered: BTreeSet<PathBuf> = told
            .chunks_exact(4)
            .filter(|answer| known.contains(&path_of(answer[0])) && !answer[2].starts_with(b"!"))
            .map(|answer| path_of(answer[3]))
            .collect();
        let hiding = others.iter().filter(|path| *path != but && !covered.contains(*path));
        let reason = |path: &PathBuf| {
            let path = path.display();
            format!(
                "{path} is not committed and may hide files: remove it, or ignore its folder in one that is committed"
            )
        };
        let mut reasons: Vec<String> = hiding.map(reason).collect();
        for (path, inner) in self.submodules()? {
            let deeper = inner.hidden(but)?;
            reasons.extend(deeper.iter().map(|reason| format!("in submodule {}: {reason}", path.display())));
        }
        Ok(reasons)
    }

    // Those that are checked out.
    fn submodules(&self) -> anyhow::Result<Vec<(PathBuf, Self)>> {
        let listed = self.git(&["ls-files", "-z", "--stage"])?;
        let gitlinks = parts(&listed).filter(|entry| entry.starts_with(b"160000 "));
        let path = |entry: &[u8]| Some(entry[entry.iter().position(|&b| b == b'\t')? + 1..].to_vec());
        let paths = gitlinks.filter_map(path).map(|path| PathBuf::from(OsStr::from_bytes(&path)));
        Ok(paths.filter_map(|path| Some((path.clone(), self.submodule(&path)?))).collect())
    }

    fn paths(&self, args: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
        Ok(parts(&self.git(args)?).map(|path| OsStr::from_bytes(path).into()).collect())
    }
}
