//! `check-receipt`: the gate. It finds the receipt, judges it by every rule and says every reason against it. It takes no
//! lock and writes nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::gate::{self, Candidate, RECEIPT, SIGNATURE, SUMS, Terms, Trusted, sums, with_ending};
use super::{relative, say};
use crate::clean;
use crate::name::Caller;
use crate::receipt::rules::{Gate, Refusal, Seal, judge};
use crate::receipt::signers::RELEASE_NAMESPACE;
use crate::receipt::statement::Receipt;
use crate::repo::Repo;
use crate::time::Human;
use crate::verdict::{Exit, Word};
use crate::{archive, digest};

/// The schema of the JSON answer.
const SCHEMA: u32 = 1;
/// Longest line of a reason, in characters.
const LINE: usize = 400;

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Request {
    /// A path or a tag; the newest receipt of HEAD otherwise.
    pub receipt: Option<String>,
    /// The commit that it must be for.
    pub commit: Option<String>,
    /// Files that must be its artifacts.
    pub artifacts: Vec<PathBuf>,
    /// The oldest that is accepted.
    pub max_age: Option<Duration>,
    /// Judge age and the key's validity at the end of the run.
    pub archived: bool,
    /// What must not have become looser since, and whose signers count.
    pub baseline: Option<String>,
    /// The file of signers.
    pub signers: Option<PathBuf>,
    /// Accept a receipt without a signature.
    pub unsigned: bool,
    /// The suite file, relative to the repository's root.
    pub suite: String,
    /// Answer in JSON on stdout.
    pub json: bool,
}

/// Judges one receipt of the repository around the current folder. Errors mean that nothing could be judged.
pub fn run(request: &Request) -> anyhow::Result<Exit> {
    let folder = std::env::current_dir().context("there is no current folder")?;
    let repo = Repo::find(&folder)?;
    let commit = format!("{}^{{commit}}", request.commit.as_deref().unwrap_or("HEAD"));
    let baseline = format!("{}^{{commit}}", request.baseline.as_deref().unwrap_or("HEAD"));
    let of_tag = request.receipt.as_ref().and_then(|name| repo.tag(name)).unwrap_or_else(|| "refs/tags/".to_owned());
    let of_tag = format!("{of_tag}^{{commit}}");
    let mut ids = repo.objects(&[&of_tag, &commit, &baseline])?.into_iter().map(|found| found.map(|object| object.id));
    let (of_tag, named, baseline) = (ids.next().flatten(), ids.next().flatten(), ids.next().flatten());
    for (name, id) in [(&request.commit, &named), (&request.baseline, &baseline)] {
        if let (Some(name), None) = (name, id) {
            bail!("there is no commit {name:?}");
        }
    }

    let target = match &request.receipt {
        None => Target::newest(&repo, request.commit.as_deref().unwrap_or("HEAD"), named.as_deref()),
        Some(name) => Target::of(&repo, &folder, name, of_tag.is_some()),
    };
    if let (None, Some(tag), None) = (&request.commit, &target.tag, &of_tag) {
        bail!("there is no tag {tag} (git fetch --tags)");
    }
    let (revision, commit) = match (&request.commit, &target.tag) {
        (None, Some(tag)) => (tag.clone(), of_tag),
        (given, _) => (given.clone().unwrap_or_else(|| "HEAD".to_owned()), named),
    };
    let terms = Terms {
        revision,
        commit,
        suite: request.suite.clone(),
        baseline: request.baseline.clone().map(|name| (name, baseline)),
        signers: request.signers.as_ref().map(|path| folder.join(path)),
        max_age: request.max_age,
        archived: request.archived,
        caller: target.tag.as_ref().map(|_| Caller::Release),
    };
    let files = target.tag.as_ref().map(|_| release_files(&target.path)).transpose()?;
    let given: Vec<PathBuf> = request.artifacts.iter().map(|path| folder.join(path)).collect();
    let artifacts: Option<Vec<PathBuf>> = match files {
        Some(files) => Some(files.into_iter().chain(given).collect()),
        None => Some(given).filter(|given| !given.is_empty()),
    };
    let root = format!("{}/", repo.root.display());
    let read = |path: &Path| archive::read(path).map_err(|e| format!("{e:#}").replace(&root, ""));
    let signature = (!request.unsigned).then(|| read(&with_ending(&target.path, SIGNATURE)));
    let receipt = target.missing.clone().map_or_else(|| read(&target.path), Err);
    let candidate = Candidate { receipt, signature, artifacts };
    let (mut gate, trusted) = gate::gather(&repo, &terms, &candidate)?;
    if target.tag.is_some() && !request.unsigned {
        let at_ms = gate.readable().map(|receipt| receipt.predicate.clocks.ended.wall_ms).filter(|_| terms.archived);
        gate.sums = Some(wrong_sums(&target.path, &trusted, at_ms.unwrap_or(gate.now_ms))?);
    }
    let reasons = judge(&gate);
    if request.json {
        answer(&target, &gate, &trusted, &reasons);
    } else {
        say(&words(&target, &gate, &trusted, &reasons));
    }
    Ok(if reasons.is_empty() { Exit::Passed } else { Exit::Refused })
}

/// The receipt to judge, and what people call it.
pub struct Target {
    path: PathBuf,
    shown: String,
    tag: Option<String>,
    missing: Option<String>,
}

impl Target {
    fn newest(repo: &Repo, revision: &str, commit: Option<&str>) -> Self {
        let found = commit.and_then(|commit| archive::newest_of(&repo.root, commit));
        let short = commit.map_or("no commit", digest::short);
        let missing = format!("no receipt of {revision} ({short}) in receipts/");
        match found {
            Some(path) => Self { shown: relative(&repo.root, &path), path, tag: None, missing: None },
            None => Self {
                path: repo.root.join(archive::FOLDER),
                shown: format!("{}/", archive::FOLDER),
                tag: None,
                missing: Some(missing),
            },
        }
    }

    // A tag if git or receipts/ knows one of that name, else a path.
    fn of(repo: &Repo, folder: &Path, name: &str, is_tag: bool) -> Self {
        let of_tag = Self::tag(repo, name);
        let plain = !name.starts_with(['/', '.']) && !name.split('/').any(|part| matches!(part, "" | "." | ".."));
        if plain && (is_tag || of_tag.path.is_file()) {
            return of_tag;
        }
        let path = folder.join(name);
        let missing = fs::symlink_metadata(&path).is_err().then(|| format!("there is no tag {name}, and no such file"));
        Self { shown: relative(&repo.root, &path), path, tag: None, missing }
    }

    /// The receipt of a tag's release.
    pub fn tag(repo: &Repo, tag: &str) -> Self {
        let path = repo.root.join(archive::FOLDER).join(tag).join(RECEIPT);
        Self { shown: relative(&repo.root, &path), path, tag: Some(tag.to_owned()), missing: None }
    }

    fn told(&self, gate: &Gate) -> String {
        let tag = self.tag.as_ref().map_or(String::new(), |_| "tag ".to_owned());
        format!("{}  for {tag}{}", self.shown, gate.revision)
    }
}

// The artifacts of a release: whatever lies beside its receipt and is none of its own files.
fn release_files(receipt: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = receipt.parent().expect("it was made by joining a name");
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<PathBuf>>>()?;
    let own = [RECEIPT, SUMS].map(|name| [folder.join(name), folder.join(format!("{name}{SIGNATURE}"))]).concat();
    paths.retain(|path| !own.contains(path));
    paths.sort_unstable();
    Ok(paths)
}

// Whether SHA256SUMS lists exactly the files beside it, and is signed as a release.
fn wrong_sums(receipt: &Path, trusted: &Trusted, at_ms: u64) -> anyhow::Result<Vec<String>> {
    let path = receipt.with_file_name(SUMS);
    let (list, signature) = match (archive::read(&path), archive::read(&with_ending(&path, SIGNATURE))) {
        (Ok(list), Ok(signature)) => (list, signature),
        (list, signature) => {
            return Ok([list.err(), signature.err()].into_iter().flatten().map(|e| format!("{e:#}")).collect());
        }
    };
    let mut wrong = Vec::new();
    let mut want = Vec::new();
    let own = [receipt.to_owned(), with_ending(receipt, SIGNATURE)];
    for path in release_files(receipt)?.into_iter().chain(own) {
        match archive::open(&path).and_then(|file| Ok(digest::of_reader(file)?)) {
            Ok(sum) => want.push((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), sum)),
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    want.sort_unstable();
    if wrong.is_empty() && list != sums(&want).as_bytes() {
        wrong.push(format!("{SUMS} does not list exactly the files beside it with their digests"));
    }
    if let Err(why) = gate::confirm(&list, &signature, Caller::Release, RELEASE_NAMESPACE, trusted, at_ms)? {
        wrong.push(format!("{SUMS} is not signed as a release of these files ({why})"));
    }
    Ok(wrong)
}

// The answer as JSON, in this order.
#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    accepted: bool,
    receipt: Option<&'a str>,
    path: &'a str,
    revision: &'a str,
    commit: Option<&'a str>,
    signed_by: Option<String>,
    signers: Option<&'a str>,
    reasons: &'a [Refusal],
    altered: &'a [String],
}

fn answer(target: &Target, gate: &Gate, trusted: &Trusted, reasons: &[Refusal]) {
    let answer = Answer {
        schema: SCHEMA,
        accepted: reasons.is_empty(),
        receipt: gate.readable().map(|receipt| receipt.predicate.run.as_str()),
        path: &target.shown,
        revision: &gate.revision,
        commit: gate.commit.as_deref(),
        signed_by: gate.seal.as_ref().and_then(Seal::signed_by),
        signers: gate.seal.as_ref().map(|_| trusted.signers.name.as_str()),
        reasons,
        altered: &gate.altered(),
    };
    super::data(&serde_json::to_string(&answer).expect("strings and numbers can be written"));
}

/// What the gate says, for people.
pub fn words(target: &Target, gate: &Gate, trusted: &Trusted, reasons: &[Refusal]) -> String {
    let line = |text: &str| clean::line(text.as_bytes(), LINE);
    let from = |seal: &Seal| match seal.signed_by() {
        Some(who) => format!("signed by {who}, signers from {}", trusted.signers.name),
        None => format!("signers from {}", trusted.signers.name),
    };
    let unsigned = match fs::symlink_metadata(with_ending(&target.path, SIGNATURE)) {
        Ok(_) => "as --unsigned allows, the signature beside it was not looked at".to_owned(),
        Err(_) => "unsigned, as --unsigned allows".to_owned(),
    };
    let mut seal = line(&gate.seal.as_ref().map_or(unsigned, from));
    if let Some(baseline) = &gate.baseline {
        for text in gate.altered() {
            seal += &format!("\n  since {}: {}", clean::line(baseline.revision.as_bytes(), LINE), line(&text));
        }
    }
    let fine = gate.readable().map(|receipt| fine(receipt, gate, reasons)).unwrap_or_default();
    if let (true, Some(receipt)) = (reasons.is_empty(), gate.readable()) {
        let run = &receipt.predicate.run;
        return line(&format!("ACCEPTED {run} for {}: {}", gate.revision, fine.join(", "))) + "\n  " + &seal;
    }
    let mut text = line(&format!("REFUSED  {}", target.told(gate))) + "\n\n";
    for (number, reason) in reasons.iter().enumerate() {
        text += &format!("  {}  {}  {}\n", number + 1, reason.code, line(&reason.text));
    }
    text += &format!("\n  {seal}\n");
    if !fine.is_empty() {
        text += &format!("  also checked, all right: {}\n", line(&fine.join(", ")));
    }
    let again = match &target.tag {
        Some(tag) => {
            let there = target.path.parent().is_some_and(|folder| fs::symlink_metadata(folder).is_ok());
            let first = if there { format!("move receipts/{tag} away, ") } else { String::new() };
            format!("{first}git checkout {tag} && cargo xtask release {tag}")
        }
        // Another run helps as far as it is signed by somebody who may.
        None if gate.seal.is_some() && reasons.iter().all(|reason| OF_WHO_SIGNS.contains(&reason.code)) => {
            let broken = reasons.iter().any(|reason| OF_WHO_SIGNS[..2].contains(&reason.code));
            let first = if broken { "put the lists of signers right && " } else { "" };
            format!("{first}cargo xtask verify --key PATH, the key of somebody in {}", trusted.signers.name)
        }
        None => "commit what is to be verified && cargo xtask verify".to_owned(),
    };
    text + "\nto get one that passes: " + &line(&again)
}

// Rules that the receipt of a good run may break; those about the lists first.
const OF_WHO_SIGNS: [&str; 10] = [
    "signers-file",
    "revoked-file",
    "signature-missing",
    "signature-form",
    "signature-wrong",
    "signer-unknown",
    "signer-namespace",
    "signer-not-valid",
    "signer-revoked",
    "signer-role",
];

// What holds, in a few words each; nothing that a rule refused.
fn fine(receipt: &Receipt, gate: &Gate, reasons: &[Refusal]) -> Vec<String> {
    let predicate = &receipt.predicate;
    let refused = |codes: &[&str]| reasons.iter().any(|reason| codes.contains(&reason.code));
    let (count, limits) = (predicate.tasks.len(), &predicate.limits);
    let passed = predicate.tasks.iter().filter(|task| task.verdict == Word::Passed).count();
    let human = |ms: u64| Human(Duration::from_millis(ms));
    let age = Duration::from_secs(gate.now_ms.saturating_sub(predicate.clocks.ended.wall_ms) / 1000);
    let said = [
        (!refused(&["task-verdict", "task-missing", "task-extra", "task-twice"]), format!("{passed}/{count} passed")),
        (!refused(&["tree-dirty", "tree-changed", "tree-mismatch"]), "clean tree".to_owned()),
        (
            !refused(&["run-deadline", "run-limit"]),
            format!("run {} of {}", human(predicate.run_ms), human(limits.deadline_ms)),
        ),
        (!refused(&["queue-budget"]), format!("queue {} of {}", human(predicate.queue_ms), human(limits.queue_ms))),
        (!refused(&["signer-role", "caller"]), format!("caller {}", predicate.caller)),
        (!refused(&["too-old", "from-future"]), format!("{} old", Human(age))),
    ];
    said.into_iter().filter(|(holds, _)| *holds).map(|(_, text)| text).collect()
}
