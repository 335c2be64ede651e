//! What must hold before anybody queues: the suite is right, its deadlines fit, and everything that it names is there.
//! Every error is found at once.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use duct::cmd;
use nix::unistd::{AccessFlags, access};

use crate::name::{Name, TaskName};
use crate::plan::{self, Machine, Plan, Selection};
use crate::service;
use crate::suite::{Fill, Suite, SuiteError, SuiteErrors, Task};

// Subcommands of cargo itself that a task may have: about them nobody is asked.
const OF_CARGO: [&str; 18] = [
    "add", "b", "bench", "build", "c", "check", "clean", "clippy", "doc", "fetch", "fix", "fmt", "install", "metadata",
    "r", "run", "t", "test",
];
/// How long cargo may take to list the others.
const PATIENCE: Duration = Duration::from_secs(10);

/// A suite that can run here.
#[derive(Debug)]
pub struct Ready {
    /// The suite.
    pub suite: Suite,
    /// What is to run of it.
    pub plan: Plan,
    /// The program of each task of the plan, absolute: to be spawned by that path.
    pub programs: BTreeMap<TaskName, PathBuf>,
    /// The program of each `setup` command of a service that the plan uses, absolute.
    pub setups: BTreeMap<Name, PathBuf>,
    /// What is worth a line to people but stops nobody.
    pub notes: Vec<String>,
}

/// Checks the text of a suite file against the repository at `root` and the PATH `search`. The error has one line for
/// each thing that is wrong, beginning `path:line: ` where it has a line.
pub fn check(
    root: &Path,
    path: &str,
    text: &str,
    selection: &Selection,
    machine: &Machine,
    search: &OsStr,
) -> Result<Ready, String> {
    let suite = Suite::parse(text).map_err(|errors| errors.display(path))?;
    let plan = Plan::new(&suite, selection, machine);
    let mut errors = plan.as_ref().err().map(|errors| errors.0.clone()).unwrap_or_default();
    let selected = plan::select(&suite, selection).unwrap_or_default();
    let (mut programs, mut setups) = (BTreeMap::new(), BTreeMap::new());
    for task in &selected {
        let mut wrong = |what: String| {
            errors.push(SuiteError { line: Some(task.line), what: format!("task {:?}: {what}", task.name.as_str()) });
        };
        let dir = root.join(&task.dir);
        if !dir.is_dir() {
            wrong(format!("dir: there is no folder {:?}", task.dir));
            continue;
        }
        let search = task.env.get("PATH").map_or(search, |own| OsStr::new(own));
        match find(&task.command[0], &dir, search) {
            Ok(program) => {
                if let Some(why) = unknown_to_cargo(&task.command, &program, &dir, search) {
                    wrong(why);
                }
                programs.insert(task.name.clone(), program);
            }
            Err(_) if made_before(&suite, task) => {
                programs.insert(task.name.clone(), dir.join(&task.command[0]));
            }
            Err(why) => wrong(why),
        }
    }
    for (name, service) in &suite.services {
        let mut wrong = |what: String| {
            errors.push(SuiteError { line: Some(service.line), what: format!("service {:?}: {what}", name.as_str()) });
        };
        if !selected.iter().any(|task| task.services.contains(name)) {
            continue;
        }
        match &service.fill {
            Fill::Migrations(folder) if !root.join(folder).is_dir() => {
                wrong(format!("migrations: there is no folder {folder:?}"));
            }
            Fill::Setup(command) => match find(&command[0], root, search) {
                Ok(program) => drop(setups.insert(name.clone(), program)),
                Err(why) => wrong(format!("setup: {why}")),
            },
            Fill::Empty | Fill::Migrations(_) => {}
        }
        if let Err(why) = service::available(name, service, root) {
            wrong(why);
        }
    }
    errors.sort_by_key(|error| error.line);
    let plan = plan.map_err(|_| SuiteErrors(errors.clone()).display(path))?;
    if !errors.is_empty() {
        return Err(SuiteErrors(errors).display(path));
    }
    let notes = plan.notes(&suite);
    Ok(Ready { programs, setups, notes, plan, suite })
}

/// The absolute path of a program that this process may execute. A name without `/` is looked for on `search`, as exec
/// does it: entries that are no absolute paths are meant from `dir`, in which the program will run; empty ones, which
/// would mean `dir` itself, are left out. A name with `/` is meant from `dir`. Errors say what is there instead.
pub fn find(program: impl AsRef<OsStr>, dir: &Path, search: &OsStr) -> Result<PathBuf, String> {
    let program = program.as_ref();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = dir.join(program);
        return match path.metadata() {
            Err(e) => Err(format!("program {program:?} cannot be found: {e}")),
            Ok(meta) if !meta.is_file() => Err(format!("program {program:?} is not a file")),
            Ok(_) => match access(&path, AccessFlags::X_OK) {
                Ok(()) => Ok(path),
                Err(e) => Err(format!("program {program:?} cannot be executed: {}", e.desc())),
            },
        };
    }
    let entries = std::env::split_paths(search).filter(|entry| !entry.as_os_str().is_empty());
    let mut candidates = entries.map(|entry| dir.join(entry).join(program));
    let fits = |path: &PathBuf| path.is_file() && access(path, AccessFlags::X_OK).is_ok();
    candidates.find(fits).ok_or_else(|| format!("there is no program {program:?} on PATH"))
}

// Why cargo has no such subcommand, if that is certain: it is none of its own, there is no program for it, and cargo, asked
// in that folder, names no alias of that name.
fn unknown_to_cargo(command: &[String], cargo: &Path, dir: &Path, search: &OsStr) -> Option<String> {
    let [_, name, ..] = command else { return None };
    let other = command[0].rsplit('/').next() != Some("cargo") || name.starts_with(['-', '+']);
    if other || OF_CARGO.contains(&name.as_str()) || find(format!("cargo-{name}"), dir, search).is_ok() {
        return None;
    }
    // A toolchain that is not there is not fetched for a question.
    let call = cmd(cargo, ["--list"]).dir(dir).env("PATH", search).env("RUSTUP_AUTO_INSTALL", "0");
    let call = call.stdin_null().stdout_capture().stderr_null().unchecked().start().ok()?;
    let Ok(Some(output)) = call.wait_timeout(PATIENCE) else {
        let _ = call.kill();
        return None;
    };
    let list = String::from_utf8_lossy(&output.stdout);
    let mut names = list.lines().filter_map(|line| line.strip_prefix("    ")?.split_whitespace().next());
    let known = !output.status.success() || !list.contains("    check ") || names.any(|known| known == name);
    let why = || {
        format!(
            "cargo has no subcommand {name:?}: there is no program \"cargo-{name}\" on PATH, and no alias; install it, or change the command"
        )
    };
    (!known).then(why)
}

// Whether the program is an output of a task that must have passed before this one starts.
fn made_before(suite: &Suite, task: &Task) -> bool {
    let program = plain(&Path::new("/").join(&task.dir).join(&task.command[0]));
    let mut open: Vec<&TaskName> = task.needs.iter().collect();
    let mut seen = Vec::new();
    while let Some(name) = open.pop() {
        let Some(need) = suite.task(name).filter(|_| !seen.contains(&name)) else { continue };
        seen.push(name);
        if need.outputs.iter().any(|output| Path::new("/").join(output) == program) {
            return true;
        }
        open.extend(&need.needs);
    }
    false
}

// The path without `..`, as text.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}
