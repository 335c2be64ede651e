//! Versions of the programs that a suite calls, for the receipt. Informational: one that does not answer is left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::process::environment::Environment;
use crate::suite::Suite;

/// Programs that say their version, in one line, when asked so, and what else is asked where they are used.
const KNOWN: &[(&str, &[&[&str]])] = &[
    ("cargo", &[&["cargo", "--version"], &["rustc", "--version"]]),
    ("go", &[&["go", "version"]]),
    ("make", &[&["make", "--version"]]),
    ("node", &[&["node", "--version"]]),
    ("npm", &[&["npm", "--version"], &["node", "--version"]]),
    ("python3", &[&["python3", "--version"]]),
];
/// How long an answer is waited for when everything else is done.
const PATIENCE: Duration = Duration::from_millis(500);

/// Questions that are being answered, while the tree is read.
pub struct Questions(Vec<Question>);

// The answer goes to a file: a pipe would have a thread of its own, and be open as long as anybody likes who has it.
struct Question {
    program: String,
    handle: duct::Handle,
    answer: PathBuf,
}

/// Asks the programs of the plan's tasks. `scratch`: where the answers go.
pub fn ask(suite: &Suite, plan: &Plan, root: &Path, scratch: &Path, env: &Environment) -> Questions {
    let programs = plan.tasks.iter().filter_map(|task| Some(suite.task(&task.name)?.command[0].as_str()));
    let mut questions: Vec<&[&str]> = Vec::new();
    for program in programs {
        let name = program.rsplit('/').next().unwrap_or(program);
        let known = KNOWN.iter().filter(|(known, _)| *known == name).flat_map(|(_, questions)| *questions);
        questions.extend(known);
    }
    questions.sort_unstable();
    questions.dedup();
    let start = |words: &&[&str]| {
        let program = words[0].to_owned();
        let answer = scratch.join(format!("version of {program}"));
        let command = duct::cmd(&program, &words[1..]).dir(root).full_env(env.clone().into_vec());
        let command = command.stdin_null().stderr_null().stdout_path(&answer).unchecked();
        Some(Question { program, handle: command.start().ok()?, answer })
    };
    Questions(questions.iter().filter_map(start).collect())
}

impl Questions {
    /// The first line of each answer, by program.
    pub fn wait(self) -> BTreeMap<String, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut answers = BTreeMap::new();
        for Question { program, handle, answer } in self.0 {
            match handle.wait_deadline(deadline) {
                Ok(Some(output)) if output.status.success() => {
                    let mut text = Vec::new();
                    let read = File::open(answer).and_then(|file| file.take(1024).read_to_end(&mut text));
                    if let (Ok(_), Some(line)) = (read, String::from_utf8_lossy(&text).lines().next()) {
                        answers.insert(program, line.chars().take(100).collect());
                    }
                }
                Ok(None) => drop(handle.kill()),
                _ => {}
            }
        }
        answers
    }
}
