//! One straight recipe per subcommand.

pub mod adopt;
pub mod check_receipt;
pub mod destination;
pub mod gate;
pub mod lock;
pub mod outer;
pub mod plan;
pub mod preflight;
pub mod refusal;
pub mod release;
pub mod report;
pub mod runner;
pub mod show;
pub mod signing;
pub mod toolchain;
pub mod verify;

use std::path::Path;

use anyhow::anyhow;

use crate::archive;
use crate::plan::{Machine, Selection};
use crate::printer::{To, print};
use crate::process::affinity::Cpus;
use crate::receipt::past::Past;
use crate::repo::Repo;
use crate::run::outputs;
use crate::suite::Task;
use preflight::Ready;

/// How many receipts are looked at for usual durations, at most.
const HISTORY: usize = 20;

/// A line for people.
pub fn say(text: &str) {
    print(To::Stderr, format!("{text}\n"));
}

/// A line of data, on stdout.
pub fn data(text: &str) {
    print(To::Stdout, format!("{text}\n"));
}

/// A path as text, relative to `root` where it lies below it.
pub fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The suite file: its path relative to the repository's root where it lies below it, and its text. A path that is not
/// absolute is meant from the root. Errors if it cannot be read as text.
pub fn read_suite(root: &Path, path: &Path) -> anyhow::Result<(String, String)> {
    let full = root.join(path);
    let shown = relative(root, &full);
    let read = archive::read(&full).and_then(|bytes| Ok(String::from_utf8(bytes)?));
    let text = read.map_err(|error| {
        let why = error.root_cause().to_string();
        let why = why.strip_prefix(&format!("{} cannot be read: ", full.display())).unwrap_or(&why);
        let file = full.display();
        anyhow!(
            "the suite file {file} cannot be read: {why}; write one as README shows it, or name another with --suite"
        )
    })?;
    Ok((shown, text))
}

/// The CPUs of the pool, one a slot, whole cores first.
pub fn pool() -> Vec<usize> {
    let known = Cpus::of_this_process().map(|cpus| cpus.pool()).filter(|pool| !pool.is_empty());
    known.unwrap_or_else(|| (0..std::thread::available_parallelism().map_or(1, usize::from)).collect())
}

/// How long tasks and runs took in the newest receipts of this checkout.
pub fn history(root: &Path) -> Past {
    Past::of(archive::list(root).into_iter().take(HISTORY).filter_map(|path| archive::read(&path).ok()))
}

/// Everything that must hold before anybody queues, for a suite that has been read. The error names all that does not.
pub fn ready(
    repo: &Repo,
    suite_path: &str,
    suite_text: &str,
    selection: &Selection,
    past: &Past,
) -> anyhow::Result<Ready> {
    for path in [&repo.root, &repo.git.folder, &repo.git.objects] {
        in_utf8(path)?;
    }
    let machine = Machine { cpus: pool().len(), usual: past.usual() };
    let search = std::env::var_os("PATH").unwrap_or_default();
    let ready = preflight::check(&repo.root, suite_path, suite_text, selection, &machine, &search);
    let ready = ready.map_err(|errors| anyhow::anyhow!("{}", errors.trim_end()))?;
    let wrong = wrong_outputs(repo, suite_path, &ready)?;
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(ready)
}

/// Refuses a path that is no text, which the second process of a run could not be told.
pub fn in_utf8(path: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(path.to_str().is_some(), "the path {} is not UTF-8: use another folder", path.display());
    Ok(())
}

// Outputs are removed before their task: none may be a file that git keeps, or lie outside of the repository.
fn wrong_outputs(repo: &Repo, suite_path: &str, ready: &Ready) -> anyhow::Result<Vec<String>> {
    let tasks = ready.plan.tasks.iter().filter_map(|planned| ready.suite.task(&planned.name));
    let outputs: Vec<(&Task, &str)> =
        tasks.flat_map(|task| task.outputs.iter().map(move |output| (task, output.as_str()))).collect();
    if outputs.is_empty() {
        return Ok(Vec::new());
    }
    let paths: Vec<&str> = outputs.iter().map(|(_, output)| *output).collect();
    let tracked = repo.tracked(&paths)?;
    let wrong = |&(task, output): &(&Task, &str)| {
        let why = if tracked.iter().any(|path| path == output) {
            format!("output {output} is tracked by git, and would be removed before the task")
        } else {
            outputs::inside(&repo.root, output).err()?
        };
        Some(format!("{suite_path}:{}: task {:?}: {why}", task.line, task.name.as_str()))
    };
    Ok(outputs.iter().filter_map(wrong).collect())
}
