//! What the logs of GitHub and GitLab understand beside text: groups, fences, annotations, the summary of a job.

use std::fmt::Write as _;
use std::time::Duration;

use super::lines::QUOTE_MAX;
use crate::clean;
use crate::digest;
use crate::event::TaskRecord;
use crate::time::Human;
use crate::verdict::Verdict;

/// GitHub shows ten annotations of a step and drops the rest.
pub(super) const ANNOTATIONS_MAX: usize = 10;

/// The token of one fence: a task that saw an earlier one (by printing into the same log) cannot name the next.
pub(super) fn token(secret: &str, number: u32) -> String {
    digest::of_bytes(format!("{secret} {number}").as_bytes())[..32].to_owned()
}

/// Text between two lines outside of which GitHub's runner obeys commands.
pub(super) fn fenced(text: &str, token: &str) -> String {
    format!("::stop-commands::{token}\n{text}::{token}::\n")
}

/// What stands before and after the log of a task on GitHub.
pub(super) fn github_group(title: &str, token: &str) -> (String, String) {
    (format!("::group::{title}\n::stop-commands::{token}\n"), format!("::{token}::\n::endgroup::\n"))
}

/// What stands before and after the log of a task on GitLab; `from` and `to` in seconds since 1970 give the section
/// its duration.
pub(super) fn gitlab_section(name: &str, title: &str, (from, to): (u64, u64)) -> (String, String) {
    let open = format!("\u{1b}[0Ksection_start:{from}:{name}[collapsed=true]\r\u{1b}[0K{title}\n");
    (open, format!("\u{1b}[0Ksection_end:{to}:{name}\r\u{1b}[0K\n"))
}

/// One `::error` line for a task that failed or was late.
pub(super) fn annotation(record: &TaskRecord, limit: Duration) -> String {
    let place = place(&record.tail);
    let title = match &record.verdict {
        Verdict::Late(_) => format!("{} late", record.task),
        _ => format!("{} failed", record.task),
    };
    let mut line = format!("::error title={}", title);
    if let Some((file, number, _)) = &place {
        let _ = write!(line, ",file={},line={number}", file);
    }
    let what = place.map(|(_, _, what)| what).filter(|what| !what.is_empty());
    let cause = clean::line(record.verdict.to_string().as_bytes(), QUOTE_MAX);
    let message = match what {
        Some(what) => format!("{what} ({cause}; {} of {})", Human(record.took), Human(limit)),
        None => format!("{cause} ({} of {})", Human(record.took), Human(limit)),
    };
    format!("{line}::{}\n", data(&message))
}

/// One `::error` line for what is no task's.
pub(super) fn error(title: &str, text: &str) -> String {
    format!("::error title={}::{}\n", title, data(text.trim_end()))
}

/// Where in the repository a log points: file, line and what it says there. A panic of Rust, a diagnostic of rustc, or
/// a line that begins with `file:line:`, in this order; never a file outside of the repository.
pub(super) fn place(tail: &[String]) -> Option<(String, u64, String)> {
    let lines: Vec<String> = tail.iter().map(|line| clean::line(line.as_bytes(), QUOTE_MAX)).collect();
    let panic = lines.iter().enumerate().find_map(|(i, line)| {
        let (file, number) = file_and_line(line.split_once("panicked at ")?.1)?;
        Some((file, number, lines.get(i + 1).map_or("", |next| next.trim()).to_owned()))
    });
    let diagnostic = || {
        lines.iter().enumerate().find_map(|(i, line)| {
            let (file, number) = file_and_line(line.trim_start().strip_prefix("--> ")?)?;
            Some((file, number, i.checked_sub(1).map_or("", |before| lines[before].trim()).to_owned()))
        })
    };
    let plain = || {
        lines.iter().find_map(|line| {
            let (file, number) = file_and_line(line.trim_start())?;
            let after = line.trim_start()[file.len()..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ':');
            Some((file, number, after.trim().to_owned()))
        })
    };
    panic.or_else(diagnostic).or_else(plain)
}

// `crates/x/tests/pg.rs:214:9: …` -> the file and 214, if it can be a file of the repository.
fn file_and_line(text: &str) -> Option<(String, u64)> {
    let (file, rest) = text.split_once(':')?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@');
    // An absolute path has an empty part before its first slash.
    let inside = !file.split('/').any(|part| matches!(part, "" | ".." | "target"));
    let fits = file.contains('.') && file.chars().all(plain) && inside;
    if fits { Some((file.to_owned(), digits.parse().ok().filter(|&number| number > 0)?)) } else { None }
}

// Titles and paths need none of it: they are made of words, and of what a file of the repository is made of here.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}
