//! What a repository gets once: a suite, recipes for CI, who may sign, a place for receipts. What it has already stays.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;

use super::disk::{few, read};
use super::layout::Layout;
use super::{Changes, SUITE, Source, starter};
use crate::plan::outer::{compare, needed};
use crate::repo::Repo;
use crate::suite::{RunLimits, Suite};

const RECIPES: &str = "ci/recipes/";
const KEEP: &str = "receipts/.gitignore";
// The queue budget of the recipe for machines that nobody shares.
const SHORT_QUEUE: Duration = Duration::from_secs(60);

/// The files, and what is worth a line to people. `member` is whether the copy is a member of the repository's workspace; `again`
/// is for one that had them before: it gets the suite, which it has lost, and nothing else.
pub(super) fn files(
    source: &Source,
    layout: &Layout<'_>,
    member: bool,
    again: bool,
) -> anyhow::Result<(Changes, Vec<String>)> {
    let read_text = |path: &str| String::from_utf8(read(layout.clone, path).ok()?).ok();
    let found =
        starter::Found { files: layout.tracked.clone(), read: &read_text, member, below: layout.around.is_some() };
    let starter::Starter { text: suite, mut notes } = starter::suite(&found)?;
    if again {
        notes.push(format!("{SUITE} was gone; this is a new starter"));
        return Ok((Changes::from([(SUITE.to_owned(), Some(suite.into_bytes()))]), notes));
    }
    let ours = Suite::parse(&source.text(SUITE)?).map_err(|e| anyhow::anyhow!("{}", e.display(SUITE)))?.run;
    let theirs = Suite::parse(&suite).map_err(|e| anyhow::anyhow!("{}", e.display(SUITE)))?.run;
    let mut changes = Changes::new();
    for path in source.tracked.iter().filter(|path| path.starts_with(RECIPES)) {
        changes.insert(path.clone(), Some(recipe(path, &source.text(path)?, &ours, &theirs)?.into_bytes()));
    }
    changes.insert(SUITE.to_owned(), Some(suite.into_bytes()));
    let signers = "# Who may sign what: one line a key, as `ssh-keygen -Y verify` reads it. The first word is the role, which must be\n\
        # the receipt's caller: local, ci or release. Receipts need the namespace xtask-receipt-v1, releases\n\
        # xtask-release-v1 besides.\n\
        #\n\
        # ci namespaces=\"xtask-receipt-v1\" ssh-ed25519 AAAA…\n\
        # release namespaces=\"xtask-receipt-v1,xtask-release-v1\",valid-before=\"20270501000000Z\" ssh-ed25519 AAAA…\n";
    changes.insert("ci/allowed_signers".to_owned(), Some(signers.into()));
    let revoked = "# Public keys, one a line, that no longer count, whatever they signed.\n";
    changes.insert("ci/revoked_keys".to_owned(), Some(revoked.into()));
    let ours = source.tracked.iter().filter(|path| path.starts_with("receipts/") && path.matches('/').count() == 1);
    let ours: Vec<&String> = ours.collect();
    let mut keep = "# Receipts are uploaded by CI, not committed.\n".to_owned();
    let theirs = |path: &&String| path.starts_with("receipts/") && !ours.contains(path) && *path != KEEP;
    if layout.tracked.iter().any(|path| theirs(&path)) {
        // A folder of their own, in which new files must not go unseen.
        keep += "/r-[0-9]*.json\n/r-[0-9]*.json.sig\n/.r-[0-9]*\n";
        notes.push(
            "receipts/ is a folder of yours: of what is left there receipts are ignored, folders of releases not"
                .into(),
        );
    } else {
        keep += "*\n!.gitignore\n";
        keep.extend(ours.iter().map(|path| format!("!{}\n", path.trim_start_matches("receipts/"))));
    }
    for path in ours {
        changes.insert(path.clone(), Some(read(&source.repo.root, path)?));
    }
    changes.insert(KEEP.to_owned(), Some(keep.into_bytes()));
    let theirs: Vec<String> = changes.keys().filter(|path| layout.tracked.contains(*path)).cloned().collect();
    if !theirs.is_empty() {
        notes.push(format!("there already, and left as it is: {}", few(&theirs)));
        changes.retain(|path, _| !theirs.contains(path));
    }
    // What its own cargo leaves there would change the tree that is being checked.
    let mut left = BTreeSet::from(["target/".to_owned()]);
    for dir in found.tops("Cargo.toml") {
        left.insert(starter::join(&dir, "target/"));
        let lock = starter::join(&dir, "Cargo.lock");
        left.extend(Some(lock).filter(|lock| !found.below && !found.files.contains(lock)));
    }
    let clone = Repo::find(layout.clone)?;
    let seen = left.iter().filter(|path| clone.git(&["check-ignore", "--quiet", path]).is_err());
    let more: String = seen.map(|path| format!("/{}\n", path.trim_end_matches('/'))).collect();
    if !more.is_empty() {
        let old = read_text(".gitignore").unwrap_or_default();
        let end = if old.is_empty() || old.ends_with('\n') { "" } else { "\n" };
        changes.insert(".gitignore".to_owned(), Some(format!("{old}{end}{more}").into_bytes()));
    }
    Ok((changes, notes))
}

// A recipe with the other suite's numbers, which must then be enough for that suite.
fn recipe(path: &str, text: &str, ours: &RunLimits, theirs: &RunLimits) -> anyhow::Result<String> {
    let minutes = |run: &RunLimits, queue| (needed(run, queue).as_secs() / 60).to_string();
    let pairs = [
        (minutes(ours, ours.queue), minutes(theirs, theirs.queue)),
        (minutes(ours, SHORT_QUEUE), minutes(theirs, SHORT_QUEUE)),
    ];
    let word = |word: &str| {
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        let (number, unit) = word.split_at(digits);
        let new = pairs.iter().find(|(old, _)| old == number).filter(|_| ["", "m", "min"].contains(&unit));
        new.map_or(word.to_owned(), |(_, new)| format!("{new}{unit}"))
    };
    let line = |line: &str| {
        let parts = line.split_inclusive([' ', '=']);
        let swap = |part: &str| {
            let bare = part.trim_end_matches([' ', '=']);
            word(bare) + &part[bare.len()..]
        };
        parts.map(swap).collect::<String>() + "\n"
    };
    let new: String = text.lines().map(line).collect();
    if let Some(bad) = compare(&new, theirs).into_iter().find(|finding| finding.wrong.is_some()) {
        bail!("{path}:{}: {} {}", bad.line, bad.shown, bad.wrong.unwrap_or_default());
    }
    Ok(new)
}
