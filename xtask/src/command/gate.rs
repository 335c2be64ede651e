//! The facts that the gate judges by: what git, ssh-keygen and this machine say beside a receipt.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lock::Ports;
use crate::name::{Caller, RunId};
use crate::receipt::rules::{Baseline, Gate, Seal, Source};
use crate::receipt::signers::{KRL, RECEIPT_NAMESPACE, Signer, parse_revoked, parse_signers};
use crate::receipt::statement::{ParseError, Receipt, readable};
use crate::repo::{Object, Repo};
use crate::scratch::Scratch;
use crate::seal::{self, Patience};
use crate::suite::Suite;
use crate::{archive, digest, sys};

/// So long ssh-keygen may take to check a signature: milliseconds of work, and its files may lie on a disk that sleeps.
pub const ANSWER: Duration = Duration::from_secs(30);

fn unhurried() -> Patience<'static> {
    Patience { deadline: sys::now() + ANSWER, stopped: &|| false }
}

/// The names of the files beside a suite.
pub const SIGNERS: &str = "allowed_signers";
/// The list of revoked keys, beside the signers.
pub const REVOKED: &str = "revoked_keys";

/// The files of a release.
pub const RECEIPT: &str = "receipt.json";
/// The list of the files of a release with their digests.
pub const SUMS: &str = "SHA256SUMS";
/// What the name of a signature's file ends with.
pub const SIGNATURE: &str = ".sig";

/// The path of a file that belongs to another one: `receipt.json.sig`.
pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The text of SHA256SUMS for files with their sha256: what `sha256sum --check` reads.
pub fn sums(files: &[(String, String)]) -> String {
    files.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect()
}

/// By what a receipt is judged.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The commit judged, as people call it.
    pub revision: String,
    /// Its id, if there is such a commit.
    pub commit: Option<String>,
    /// The suite file, relative to the repository's root.
    pub suite: String,
    /// `--baseline`: as given, and the id of that commit.
    pub baseline: Option<(String, Option<String>)>,
    /// `--signers`.
    pub signers: Option<PathBuf>,
    /// `--max-age`.
    pub max_age: Option<Duration>,
    /// `--archived`.
    pub archived: bool,
    /// The caller that is asked for.
    pub caller: Option<Caller>,
}

/// What is judged.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The bytes of the receipt, or why there are none.
    pub receipt: Result<Vec<u8>, String>,
    /// The bytes of its signature, or why there are none; no outer value where unsigned receipts are accepted.
    pub signature: Option<Result<Vec<u8>, String>>,
    /// The files to release.
    pub artifacts: Option<Vec<PathBuf>>,
}

/// Lists of signers and revoked keys, and where they come from.
pub struct Trusted {
    /// `ci/allowed_signers at 77ad012`.
    pub signers: Source,
    /// The list beside it, and that of HEAD where it is another: a revocation holds for whatever was signed before it.
    pub revoked: Vec<Source>,
}

/// Gathers the facts and has ssh-keygen judge the signature. Errors where git, ssh-keygen or the ports cannot be asked.
pub fn gather(repo: &Repo, terms: &Terms, candidate: &Candidate) -> anyhow::Result<(Gate, Trusted)> {
    gather_within(repo, terms, candidate, unhurried())
}

/// The same for somebody who cannot wait for ever.
pub fn gather_within(
    repo: &Repo,
    terms: &Terms,
    candidate: &Candidate,
    patience: Patience<'_>,
) -> anyhow::Result<(Gate, Trusted)> {
    let parsed = match &candidate.receipt {
        Ok(bytes) => Receipt::parse(bytes),
        Err(why) => Err(ParseError::Unreadable(why.clone())),
    };
    let now_ms = sys::clocks().wall_ms;
    let beside = |name: &str| Path::new(&terms.suite).with_file_name(name).display().to_string();
    let at = |commit: &str, path: &str| format!("{commit}:{path}");
    // An id that no object has, so that a revision which does not exist has nothing in it.
    let none = "0".repeat(40);
    let commit = terms.commit.as_deref().unwrap_or(&none);
    let base = terms.baseline.as_ref().map_or(commit, |(_, id)| id.as_deref().unwrap_or(&none));
    let (signers, revoked) = (beside(SIGNERS), beside(REVOKED));
    let names = [
        format!("{commit}^{{tree}}"),
        at(commit, &terms.suite),
        at(commit, &signers),
        at(commit, &revoked),
        at(base, &terms.suite),
        at(base, &signers),
        at(base, &revoked),
        at("HEAD", &revoked),
    ];
    let found = repo.objects(&names.each_ref().map(String::as_str))?;
    let [tree, suite, signers_now, revoked_now, suite_base, signers_base, revoked_base, revoked_head] =
        <[Option<Object>; 8]>::try_from(found).expect("as many answers as names");

    let blob = |object: Option<Object>, path: &str, at: &str| {
        let blob = object.filter(|object| object.kind == "blob").map(|object| object.bytes);
        Source { name: format!("{path} at {at}"), bytes: blob.ok_or_else(|| "there is no such file".to_owned()) }
    };
    let base_name = terms.baseline.as_ref().map_or(&terms.revision, |(name, _)| name);
    let (signers_now, revoked_now) =
        (blob(signers_now, &signers, &terms.revision), blob(revoked_now, &revoked, &terms.revision));
    let (signers_base, revoked_base) =
        (blob(signers_base, &signers, base_name), blob(revoked_base, &revoked, base_name));
    let baseline = terms.baseline.as_ref().map(|(name, _)| Baseline {
        revision: name.clone(),
        suite: parse_suite(&blob(suite_base, &terms.suite, name)).map(|(suite, _)| suite),
        signers: parse_lists(&signers_base, &revoked_base),
        signers_now: parse_lists(&signers_now, &revoked_now),
    });
    let trusted = match &terms.signers {
        Some(path) => {
            Trusted { signers: file(&repo.root, path), revoked: vec![file(&repo.root, &path.with_file_name(REVOKED))] }
        }
        None => {
            let head = blob(revoked_head, &revoked, "HEAD");
            // Also where HEAD has none any more: that would make every revocation undone.
            let more = Some(head).filter(|head| head.bytes != revoked_base.bytes);
            Trusted { signers: signers_base, revoked: [revoked_base].into_iter().chain(more).collect() }
        }
    };
    let told = readable(&parsed);
    let ended = told.map(|receipt| receipt.predicate.clocks.ended.wall_ms);
    let at_ms = ended.filter(|_| terms.archived).unwrap_or(now_ms);
    let seal = match &candidate.signature {
        Some(signature) => Some(judge_signature(&candidate.receipt, signature, &trusted, at_ms, patience)?),
        None => None,
    };
    let receipts_commit = told.and_then(|receipt| receipt.subject.commit.clone());
    let ahead = match (&receipts_commit, &terms.commit) {
        (Some(old), Some(new)) if old != new && is_id(old) => repo.commits_between(old, new),
        _ => None,
    };
    let ports = Ports::from_env()?;
    let gate = Gate {
        seal,
        now_ms,
        revision: terms.revision.clone(),
        commit: terms.commit.clone(),
        tree: tree.map(|tree| tree.id),
        ahead,
        caller: terms.caller,
        suite_path: terms.suite.clone(),
        suite: parse_suite(&blob(suite, &terms.suite, &terms.revision)),
        baseline,
        ports: (ports.workstation, ports.worktrees),
        max_age: terms.max_age,
        archived: terms.archived,
        artifacts: candidate.artifacts.as_ref().map(|paths| paths.iter().map(|path| hashed(path)).collect()),
        sums: None,
        parsed,
    };
    Ok((gate, trusted))
}

/// Has a signature judged by ssh-keygen, where that can add anything to what can be read without it. Errors if
/// ssh-keygen cannot be asked.
pub fn judge_signature(
    receipt: &Result<Vec<u8>, String>,
    signature: &Result<Vec<u8>, String>,
    trusted: &Trusted,
    at_ms: u64,
    patience: Patience<'_>,
) -> anyhow::Result<Seal> {
    let mut judged = Seal::new(signature, &trusted.signers, &trusted.revoked, at_ms);
    if let (Some(role), Ok(receipt), Ok(signature)) = (judged.role(), receipt, signature) {
        judged.confirm(confirm_within(receipt, signature, role, RECEIPT_NAMESPACE, trusted, at_ms, patience)?);
    }
    Ok(judged)
}

/// What ssh-keygen says of a signature, by every list of revoked keys. Errors if it cannot be asked.
pub fn confirm(
    bytes: &[u8],
    signature: &[u8],
    role: Caller,
    namespace: &str,
    trusted: &Trusted,
    at_ms: u64,
) -> anyhow::Result<Result<(), String>> {
    confirm_within(bytes, signature, role, namespace, trusted, at_ms, unhurried())
}

/// The same for somebody who cannot wait for ever.
pub fn confirm_within(
    bytes: &[u8],
    signature: &[u8],
    role: Caller,
    namespace: &str,
    trusted: &Trusted,
    at_ms: u64,
    patience: Patience<'_>,
) -> anyhow::Result<Result<(), String>> {
    let Ok(signers) = &trusted.signers.bytes else { return Ok(Err("no signers".to_owned())) };
    // A run's own kind of folder: what a killed process leaves of it is swept by the next start.
    let scratch =
        Scratch::make(&RunId::new(sys::clocks().wall_ms / 1000, sys::random()?)).map_err(anyhow::Error::msg)?;
    for revoked in &trusted.revoked {
        let Ok(revoked) = &revoked.bytes else { return Ok(Err("no list of revoked keys".to_owned())) };
        let trust = seal::Trust { signers, revoked, at_ms, folder: scratch.path() };
        let verdict = seal::verify(bytes, signature, role, namespace, trust, patience)?;
        if verdict.is_err() {
            return Ok(verdict);
        }
    }
    Ok(if trusted.revoked.is_empty() { Err("no list of revoked keys".to_owned()) } else { Ok(()) })
}

fn is_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|c| c.is_ascii_hexdigit())
}

/// A file of the gate on disk, named relative to `root`.
pub fn file(root: &Path, path: &Path) -> Source {
    Source { name: super::relative(root, path), bytes: archive::read(path).map_err(|e| format!("{e:#}")) }
}

fn parse_suite(source: &Source) -> Result<(Suite, String), String> {
    let bytes = source.bytes.as_ref().map_err(String::clone)?;
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text (UTF-8)")?;
    let suite = Suite::parse(text).map_err(|errors| errors.display(&source.name).trim_end().to_owned())?;
    Ok((suite, digest::of_bytes(bytes)))
}

type Lists = (Vec<Signer>, Vec<Vec<u8>>);

fn parse_lists(signers: &Source, revoked: &Source) -> Result<Lists, String> {
    let named = |source: &Source| source.bytes.clone().map_err(|why| format!("{}: {why}", source.name));
    let list = named(revoked)?;
    let ((signers, wrong), (mut revoked, wrong_too)) = (parse_signers(&named(signers)?), parse_revoked(&list));
    if list.starts_with(KRL) {
        // What a binary list revokes is known to ssh-keygen alone; that it was one and is none any more shows all the same.
        revoked.push(KRL.to_vec());
    }
    match wrong.first().or(wrong_too.first()) {
        Some(fault) => Err(format!("line {}: {}", fault.line, fault.what)),
        None => Ok((signers, revoked)),
    }
}

fn hashed(path: &Path) -> (String, Result<String, String>) {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let digest = archive::open(path).and_then(|file: File| Ok(digest::of_reader(file)?));
    (name, digest.map_err(|e| format!("{e:#}")))
}
