//! `plan`: the tasks and limits of the suite, and whether the limits in CI files are enough for them. Takes no lock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::say;
use crate::digest;
use crate::plan::Selection;
use crate::plan::outer::compare;
use crate::printer::{To, print};
use crate::repo::Repo;
use crate::report::plan::{Check, Status, View, checks, json, screen};
use crate::suite::RunLimits;
use crate::verdict::Exit;

/// The longest CI file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The suite file, relative to the repository's root.
    pub suite: PathBuf,
    /// What of it.
    pub selection: Selection,
    /// CI files to compare with the plan, relative to the current folder.
    pub check_outer: Vec<PathBuf>,
    /// One JSON object a line on stdout instead of text on stderr.
    pub json: bool,
}

/// Shows the plan of the repository around the current folder. Errors, and exit code 2, mean that the suite or a limit
/// in one of the files must be mended.
pub fn run(request: &Request) -> anyhow::Result<Exit> {
    let repo = Repo::find(&std::env::current_dir().context("there is no current folder")?)?;
    let (path, text) = super::read_suite(&repo.root, &request.suite)?;
    let past = super::history(&repo.root);
    let ready = super::ready(&repo, &path, &text, &request.selection, &past)?;
    let (suite, plan) = (&ready.suite, &ready.plan);
    let mut all = checks(suite, plan);
    all.extend(ready.notes.iter().map(|note| Check::new(Status::Note, note.clone())));
    for file in &request.check_outer {
        all.extend(outer_of(file, &suite.run));
    }
    let sha256 = digest::of_bytes(text.as_bytes());
    let view = View { path: &path, sha256: &sha256, suite, plan, checks: &all };
    if request.json {
        print(To::Stdout, json(&view));
    } else {
        say(screen(&view).trim_end());
    }
    let failed = all.iter().filter(|check| check.status == Status::Fail).count();
    if failed == 0 {
        return Ok(Exit::Passed);
    }
    let what = if failed == 1 { "limit does" } else { "limits do" };
    say(&format!("\nerror: {failed} outer {what} not match the plan\nexit code {}", Exit::Usage.code()));
    Ok(Exit::Usage)
}

// A pipe would be waited for, and a device has no end.
fn read(file: &Path) -> io::Result<String> {
    let found = fs::metadata(file)?;
    match found.len() > LONGEST {
        _ if !found.is_file() => Err(io::Error::other("not a regular file")),
        true => Err(io::Error::other(format!("longer than {LONGEST} bytes"))),
        false => fs::read_to_string(file),
    }
}

fn outer_of(file: &Path, run: &RunLimits) -> Vec<Check> {
    let shown = file.display().to_string();
    let check = |status, text: &str| Check { status, place: Some(shown.clone()), text: text.to_owned() };
    let text = match read(file) {
        Ok(text) => text,
        Err(e) => return vec![check(Status::Fail, &format!("cannot be read: {e}"))],
    };
    let findings = compare(&text, run);
    if findings.is_empty() {
        return vec![check(Status::Note, "no line marked xtask:outer=verify or xtask:outer=release")];
    }
    findings.iter().map(|finding| Check::of(&shown, finding)).collect()
}
