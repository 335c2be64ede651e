//! `release`: the whole suite on the commit of a tag, then a signed receipt and the artifacts that it speaks of, in one
//! folder that appears at once and complete. If anything is late, failed or refused, no signature exists anywhere.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};

use super::check_receipt::{Target, words};
use super::gate::{self, Candidate, RECEIPT, SIGNATURE, SUMS, Terms, sums, with_ending};
use super::say;
use super::signing::Signing;
use super::verify::{self, Over, Written};
use crate::name::{Caller, RunId};
use crate::plan::Selection;
use crate::receipt::rules::{altered, judge, raised};
use crate::receipt::signers::{RECEIPT_NAMESPACE, RELEASE_NAMESPACE};
use crate::receipt::statement::Receipt;
use crate::repo::Repo;
use crate::report::plural;
use crate::run::order::Format;
use crate::scratch::Scratch;
use crate::seal::Patience;
use crate::suite::Suite;
use crate::time::{Clocks, Human, Moment, millis, utc};
use crate::verdict::Exit;
use crate::{archive, digest, sys};

const SUITE: &str = "ci/suite.toml";
// People sign, and programs ask the gate.
const FORMAT: Format = Format { json: false, colour: None };
// Reading the tree before anybody queues; whoever queues is bounded by the run's own deadline.
const LOOKING: Duration = Duration::from_secs(120);

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// All clocks at the program's first line.
    pub requested: Clocks,
    /// The tag; it must be HEAD.
    pub tag: String,
    /// Declared outputs to release; every one if empty.
    pub artifacts: Vec<PathBuf>,
    /// The signing key.
    pub key: Option<PathBuf>,
    /// The queue budget, if not the suite's.
    pub queue: Option<Duration>,
    /// The caller's own limit.
    pub outer: Option<Duration>,
}

// A release that may begin.
struct Ready {
    tag: String,
    // What it was when we looked.
    tagged: Option<String>,
    commit: String,
    suite: Suite,
    // Relative to the repository's root.
    artifacts: Vec<String>,
    signing: Signing,
    // receipts/TAG.
    folder: PathBuf,
}

/// Runs and signs a release of the repository around the current folder. Errors mean that nothing was queued or run.
pub fn run(request: Request) -> anyhow::Result<Exit> {
    let here = std::env::current_dir().context("there is no current folder")?;
    let repo = Repo::find(&here)?;
    let ready = look(&repo, &here, &request)?;
    say(&format!(
        "    Checking tree clean, {} is HEAD ({}), the key can sign",
        ready.tag,
        digest::short(&ready.commit)
    ));
    since_last_time(&repo, &ready);
    let (budget, deadline) = (request.queue.unwrap_or(ready.suite.run.queue), ready.suite.run.deadline);
    let end = request.requested.wall_ms + millis(budget + deadline);
    if let Some(before) = ready.signing.valid_before.filter(|&before| before < end) {
        let (before, end) = (utc(before), utc(end));
        say(&format!("        note the key is valid until {before}, and this run may last until {end}"));
    }
    let run = verify::Request {
        requested: request.requested,
        caller: Caller::Release,
        suite: SUITE.into(),
        selection: Selection::default(),
        queue: request.queue,
        outer: request.outer,
        format: FORMAT,
        junit: None,
        key: None,
        command: format!("cargo xtask release {}", request.tag),
    };
    let mut over = verify::verify(&repo, run)?;
    let exit = match &over {
        Over { exit: Exit::Passed, receipt: Some(receipt), locks: Some(locks), .. } => {
            let end = locks.won.monotonic + ready.suite.run.deadline;
            let published = publish(&repo, &ready, &over, receipt, end);
            published.unwrap_or_else(|error| {
                say(&format!("error: {error:#}"));
                let late = if sys::now() < end { Exit::NoVerdict } else { Exit::Late };
                over.keeper.stop().map_or(late, Exit::Cancelled)
            })
        }
        // What is not signed has not passed.
        Over { exit, .. } => {
            if *exit == Exit::Passed {
                Exit::NoVerdict
            } else {
                *exit
            }
        }
    };
    match exit {
        Exit::Passed => say(&format!("      Signed {} in {}/{}/", ready.tag, archive::FOLDER, ready.tag)),
        _ => say(&format!("error: not signed, nothing was written to {}/{}", archive::FOLDER, ready.tag)),
    }
    if over.exit == Exit::Passed {
        say(&format!("exit code {}", exit.code()));
    }
    verify::free(over.locks.take(), exit, FORMAT);
    Ok(exit)
}

// Everything that can be refused before anybody queues, all reasons at once.
fn look(repo: &Repo, here: &Path, request: &Request) -> anyhow::Result<Ready> {
    let tag = &request.tag;
    let plain = |part: &str| !part.starts_with('.') && !part.is_empty() && RunId::parse(part).is_err();
    if tag.chars().any(char::is_control) || !tag.split('/').all(plain) {
        bail!("{tag:?} is no name of a tag");
    }
    let mut reasons = Vec::new();
    let tagged = repo.tag(tag);
    // Without a tag, what is no tag either.
    let of_tag = format!("{}^{{commit}}", tagged.as_deref().unwrap_or("refs/tags/"));
    let mut found = repo.objects(&[&of_tag, "HEAD^{commit}", &format!("HEAD:{SUITE}")])?.into_iter();
    let mut next = || found.next().flatten();
    let (of_tag, head, suite) = (next().map(|object| object.id), next().map(|object| object.id), next());
    let short = |id: &Option<String>| id.as_deref().map_or("no commit", digest::short).to_owned();
    match &of_tag {
        None => reasons.push(format!("there is no tag {tag} (git tag {tag})")),
        Some(_) if of_tag != head => {
            reasons.push(format!("{tag} is {}, HEAD is {} (git checkout {tag})", short(&of_tag), short(&head)));
        }
        Some(_) => {}
    }
    let folder = repo.root.join(archive::FOLDER).join(tag);
    if fs::symlink_metadata(&folder).is_ok() {
        reasons.push(format!("{}/{tag} is there already: move it away", archive::FOLDER));
    }
    reasons.extend(unclean(repo)?);
    let suite = suite.map(|object| String::from_utf8_lossy(&object.bytes).into_owned());
    let suite = match suite.as_deref().map(Suite::parse) {
        Some(Ok(suite)) => Some(suite),
        Some(Err(errors)) => {
            reasons.push(errors.display(SUITE).trim_end().to_owned());
            None
        }
        None => {
            reasons.push(format!("there is no {SUITE} in HEAD"));
            None
        }
    };
    if let (Some(asked), Some(suite)) = (request.queue, &suite)
        && asked > suite.run.queue
    {
        let (asked, most) = (Human(asked), Human(suite.run.queue));
        reasons.push(format!(
            "--queue {asked} is more than the {most} of {SUITE}: the gate would refuse what comes of it"
        ));
    }
    let artifacts = suite.as_ref().map(|suite| artifacts(suite, repo, here, &request.artifacts, &mut reasons));
    let signing = match &request.key {
        None => Err(anyhow!("no signing key: give --key PATH or set XTASK_SIGNING_KEY")),
        Some(key) => Signing::try_key(&repo.root, SUITE.as_ref(), &here.join(key), Caller::Release),
    };
    match (signing, suite, of_tag) {
        (Ok(signing), Some(suite), Some(commit)) if reasons.is_empty() => Ok(Ready {
            tag: tag.clone(),
            tagged,
            commit,
            suite,
            artifacts: artifacts.unwrap_or_default(),
            signing,
            folder,
        }),
        (signing, ..) => {
            reasons.extend(signing.err().map(|error| format!("{error:#}")));
            bail!("{tag} cannot be released; nothing was queued or run\n   {}", reasons.join("\n   "))
        }
    }
}

// Why the working tree is not exactly the commit.
fn unclean(repo: &Repo) -> anyhow::Result<Vec<String>> {
    let run = RunId::new(sys::clocks().wall_ms / 1000, sys::random()?);
    let scratch = Scratch::make(&run).map_err(anyhow::Error::msg)?;
    let deadline = sys::now() + LOOKING;
    let snapshot = repo.snapshot(&scratch.path().join("tree"), deadline, &|| false)?;
    let mut reasons = repo.unpinned(&scratch.path().join("unpinned"), deadline, &|| false)?;
    reasons.extend(repo.hidden(&super::runner::log_ignore())?);
    if !snapshot.clean() {
        reasons.insert(0, format!("the tree has uncommitted changes: {}", snapshot.uncommitted.join(", ")));
    }
    Ok(reasons)
}

// The declared outputs to release, relative to the repository's root.
fn artifacts(suite: &Suite, repo: &Repo, here: &Path, asked: &[PathBuf], reasons: &mut Vec<String>) -> Vec<String> {
    let declared: Vec<&String> = suite.tasks.iter().flat_map(|task| &task.outputs).collect();
    let mut chosen: Vec<String> = declared.iter().copied().filter(|_| asked.is_empty()).cloned().collect();
    for path in asked {
        let full: PathBuf = here.join(path).components().filter(|part| *part != Component::CurDir).collect();
        let name = super::relative(&repo.root, &full);
        if declared.contains(&&name) {
            chosen.push(name);
        } else {
            reasons.push(format!("{name} is no declared output of {SUITE}"));
        }
    }
    let mut names: BTreeSet<String> =
        [RECEIPT, SUMS].iter().flat_map(|n| [(*n).to_owned(), format!("{n}{SIGNATURE}")]).collect();
    for path in &chosen {
        if !names.insert(base_name(path)) {
            reasons.push(format!("{path}: the folder of a release has another file of that name"));
        }
    }
    chosen
}

fn base_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

// People who sign should know what was made easier.
fn since_last_time(repo: &Repo, ready: &Ready) {
    let Some(previous) = repo.previous_tag(&ready.tag) else { return };
    let found = repo.objects(&[&format!("refs/tags/{previous}:{SUITE}")]).unwrap_or_default();
    let text = found.into_iter().flatten().next().map(|object| String::from_utf8_lossy(&object.bytes).into_owned());
    match text.as_deref().map(Suite::parse) {
        Some(Ok(old)) => {
            for line in raised(&old, &ready.suite).into_iter().chain(altered(&old, &ready.suite)) {
                say(&format!("        note since {previous}: {line}"));
            }
        }
        _ => say(&format!("        note {previous} has no suite to compare limits with")),
    }
}

// Signs in memory, has the whole gate judge it, and only then lets anything appear. The locks are held meanwhile, and `end`
// is the deadline of the run.
fn publish(repo: &Repo, ready: &Ready, over: &Over, receipt: &Written, end: Moment) -> anyhow::Result<Exit> {
    let stopped = || over.keeper.stop().is_some();
    let temporary = Temporary::make(archive::release_temporary(&repo.root, &over.run))?;
    let mut copies = Vec::new();
    for path in &ready.artifacts {
        let to = temporary.0.join(base_name(path));
        copy(&repo.root.join(path), &to).with_context(|| format!("{path} cannot be copied"))?;
        copies.push(to);
    }
    let mut receipt = Receipt::parse(&receipt.read()?)?;
    receipt.subject.outputs.retain(|path, _| ready.artifacts.contains(path));
    let bytes = receipt.to_bytes();
    say(&format!("     Signing in memory: receipt, {SUMS} ({})", plural(copies.len(), "artifact")));
    let signature = ready.signing.sign(&bytes, RECEIPT_NAMESPACE, Some(end), &stopped)?;

    let terms = Terms {
        revision: ready.tag.clone(),
        commit: Some(ready.commit.clone()),
        suite: SUITE.to_owned(),
        baseline: None,
        signers: None,
        max_age: None,
        archived: false,
        caller: Some(Caller::Release),
    };
    let artifacts = Some(copies.clone());
    let candidate = Candidate { receipt: Ok(bytes.clone()), signature: Some(Ok(signature.clone())), artifacts };
    let patience = Patience { deadline: end, stopped: &stopped };
    let (mut judged, trusted) = gate::gather_within(repo, &terms, &candidate, patience)?;
    let mut files = vec![
        (RECEIPT.to_owned(), digest::of_bytes(&bytes)),
        (format!("{RECEIPT}{SIGNATURE}"), digest::of_bytes(&signature)),
    ];
    for path in &copies {
        files.push((base_name(&path.display().to_string()), digest::of_reader(File::open(path)?)?));
    }
    files.sort_unstable();
    let list = sums(&files);
    let list_signature = ready.signing.sign(list.as_bytes(), RELEASE_NAMESPACE, Some(end), &stopped)?;
    let (by, now_ms) = (Caller::Release, judged.now_ms);
    let said =
        gate::confirm_within(list.as_bytes(), &list_signature, by, RELEASE_NAMESPACE, &trusted, now_ms, patience)?;
    judged.sums =
        Some(said.err().into_iter().map(|why| format!("{SUMS} is not signed as a release ({why})")).collect());
    let reasons = judge(&judged);
    if !reasons.is_empty() {
        let target = Target::tag(repo, &ready.tag);
        say(&words(&target, &judged, &trusted, &reasons));
        return Ok(Exit::Refused);
    }
    say("     Judging bytes and signature by the whole gate: accepted");

    // The signatures last: the less that is left after them, the less a kill can leave signed under another name.
    let place = |name: &str| temporary.0.join(name);
    archive::write_new(&place(RECEIPT), &bytes)?;
    archive::write_new(&place(SUMS), list.as_bytes())?;
    archive::write_new(&with_ending(&place(RECEIPT), SIGNATURE), &signature)?;
    archive::write_new(&with_ending(&place(SUMS), SIGNATURE), &list_signature)?;
    File::open(&temporary.0)?.sync_all()?;
    if repo.tag(&ready.tag) != ready.tagged {
        bail!("the tag {} was moved or removed during the run", ready.tag);
    }
    appear(temporary, &ready.folder, end, &stopped)
}

// The one moment in which a release is there: before it there is nothing, after it everything.
fn appear(temporary: Temporary, folder: &Path, end: Moment, stopped: &dyn Fn() -> bool) -> anyhow::Result<Exit> {
    let parent = folder.parent().expect("it was made by joining a name");
    fs::create_dir_all(parent)?;
    let opened = File::open(parent).with_context(|| format!("{} cannot be synced", parent.display()))?;
    if stopped() {
        bail!("cancelled");
    }
    if sys::now() > end {
        say("        LATE signing took until after the run's deadline");
        return Ok(Exit::Late);
    }
    if fs::symlink_metadata(folder).is_ok() {
        bail!("{} appeared during the run", folder.display());
    }
    fs::rename(&temporary.0, folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    if let Err(error) = opened.sync_all() {
        // Away at once, as it came; what is in it goes after that.
        fs::rename(folder, &temporary.0)
            .with_context(|| format!("{} is there, but not synced ({error})", folder.display()))?;
        return Err(error).with_context(|| format!("{} cannot be synced", parent.display()));
    }
    Ok(Exit::Passed)
}

// Copies a regular file, with its mode, and syncs it.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut source = archive::open(from)?;
    let mut copy = File::options().write(true).create_new(true).open(to)?;
    io::copy(&mut source, &mut copy)?;
    copy.set_permissions(fs::Permissions::from_mode(source.metadata()?.permissions().mode() & 0o777))?;
    copy.sync_all()?;
    Ok(())
}

// The folder of a release before it has its name. Whatever stops us, it goes; if we are killed, the next run removes it.
struct Temporary(PathBuf);

impl Temporary {
    fn make(path: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Not there any more if it has its name.
        let _ = fs::remove_dir_all(&self.0);
    }
}
