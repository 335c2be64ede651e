//! The limits that callers set around xtask: what each must at least be, and how they are written in the files of CI
//! services, systemd and shell scripts. If an outer limit fires first, it cuts the run with no receipt and no cause.

use std::fmt;
use std::time::Duration;

use crate::name::meant;
use crate::suite::RunLimits;
use crate::time::Human;

/// What marks a limit in a file, in a comment: at the end of its line, or at the beginning of a comment line above it
/// (systemd's files know no other comments). Behind the mark may stand `--queue 1m`, where the call that the limit is
/// around gives one and stands elsewhere.
pub const MARK: &str = "xtask:outer";
const CALLERS: [&str; 2] = ["verify", "release"];
const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The least that a caller's own limit must be if it waits for `queue`, in whole minutes, rounded up.
pub fn needed(run: &RunLimits, queue: Duration) -> Duration {
    RunLimits { queue, ..run.clone() }.outer()
}

/// A limit around this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outer {
    /// Its length.
    pub length: Duration,
    /// Who says so: `--outer`, `CI_JOB_TIMEOUT` …
    pub from: String,
}

/// Why a run with these limits must not start inside this outer limit; none if it may. `suite` is the path of the file.
pub fn too_short(run: &RunLimits, queue: Duration, outer: &Outer, suite: &str) -> Option<String> {
    let needed = needed(run, queue);
    let (short, has, need) = (outer.length < needed, Minutes(outer.length), Minutes(needed));
    let sum = format!("queue {} + run {} + margin {}", Minutes(queue), Minutes(run.deadline), Minutes(run.margin));
    short.then(|| {
        format!(
            "this caller kills the job {has} after its start; outer is {need} ({sum})\n   \
             from     {} {has}    (also read: CI_JOB_TIMEOUT on GitLab, TimeoutStartUSec under systemd)\n   \
             danger   the outer limit would cut the run with no receipt and no cause\n   \
             to fix   set the job's limit to {} minutes, or lower [run] queue/deadline in {suite}\n   \
             nothing  was queued or run",
            outer.from,
            needed.as_secs() / 60
        )
    })
}

/// A length in minutes however long it is, since that is how limits of jobs are written: `62m`, `61m30s`, `45s`.
#[derive(Debug, Clone, Copy)]
pub struct Minutes(pub Duration);

impl fmt::Display for Minutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let text = match seconds % 60 {
            _ if seconds < 60 => Human(self.0).to_string(),
            0 => format!("{}m", seconds / 60),
            rest => format!("{}m{rest:02}s", seconds / 60),
        };
        f.pad(&text)
    }
}

/// One comparison of a marked line with the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Line in the file, from 1.
    pub line: usize,
    /// The limit as written, or the mark where no limit can be read.
    pub shown: String,
    /// Why it will not do; none if it will.
    pub wrong: Option<String>,
    /// The mark: `xtask:outer=verify`.
    pub mark: String,
}

/// Compares every marked limit of a file with what `run` needs. A marked line whose limit cannot be read is wrong too.
pub fn compare(text: &str, run: &RunLimits) -> Vec<Finding> {
    // Some editors on Windows write a mark of their own first of all.
    marked(text.trim_start_matches('\u{feff}')).into_iter().flat_map(|marked| judge(&marked, run)).collect()
}

fn judge(marked: &Marked, run: &RunLimits) -> Vec<Finding> {
    let finding = |shown: &str, wrong: Option<String>| Finding {
        line: marked.line,
        shown: shown.to_owned(),
        wrong,
        mark: marked.mark.clone(),
    };
    let caller = marked.mark.strip_prefix(MARK).and_then(|rest| rest.strip_prefix('=')).unwrap_or_default();
    if !CALLERS.contains(&caller) {
        let known = format!("{MARK}=verify or {MARK}=release");
        return vec![finding(&marked.mark, Some(format!("should be {known}{}", meant(caller, CALLERS))))];
    }
    if marked.behind
        && let Some(key) = systemd_key(&marked.code)
    {
        let wrong = format!(
            "systemd knows no comment behind a value, and takes it for a part of it: write \"# {}\" in a line of its own above",
            marked.mark
        );
        return vec![finding(key, Some(wrong))];
    }
    let queue = match queue_flag(&marked.code).or_else(|| queue_flag(&marked.comment)) {
        None => run.queue,
        Some(Ok(queue)) => queue,
        Some(Err(shown)) => return vec![finding(&shown, Some("cannot be read".to_owned()))],
    };
    let needed = needed(run, queue);
    let limits = limits(&marked.code);
    if limits.is_empty() {
        return vec![finding(&marked.mark, Some("marks a line without a limit that can be read".to_owned()))];
    }
    let look = |limit: &Limit| {
        let wrong = match limit.length {
            Length::Unread => Some("cannot be read".to_owned()),
            Length::Of(length) if length < needed => {
                let set = format!("set {}{}", needed.as_secs() / 60, limit.unit);
                Some(format!("is {} short; {set}", Minutes(needed - length)))
            }
            Length::Of(_) | Length::Endless => None,
        };
        finding(&limit.shown, wrong)
    };
    limits.iter().map(look).collect()
}

// A line with a mark, or the line that a mark above it means.
struct Marked {
    line: usize,
    mark: String,
    code: String,
    // What stands behind the mark.
    comment: String,
    // Whether the mark stands behind the code, not above it.
    behind: bool,
}

impl Marked {
    fn nothing((line, (mark, comment)): (usize, (String, String))) -> Self {
        Self { line, mark, code: String::new(), comment, behind: false }
    }
}

fn marked(text: &str) -> Vec<Marked> {
    let mut found = Vec::new();
    let mut lines = (1..).zip(text.lines()).peekable();
    let mut above: Option<(usize, (String, String))> = None;
    while let Some((line, text)) = lines.next() {
        let trimmed = text.trim();
        let is_comment = ["#", ";", "//"].iter().any(|begin| trimmed.starts_with(begin));
        if trimmed.is_empty() || is_comment {
            if let Some(mark) = mark_at(trimmed.trim_start_matches(['#', ';', '/']).trim_start()) {
                // A mark above a mark means nothing: it is reported as a line without a limit.
                found.extend(above.take().map(Marked::nothing));
                above = Some((line, mark));
            }
            continue;
        }
        let (code, mark) = split(text);
        let behind = above.is_none();
        let Some((_, (mark, comment))) = above.take().or_else(|| mark.map(|mark| (line, mark))) else { continue };
        let mut code = code.to_owned();
        while code.ends_with('\\')
            && let Some((_, next)) = lines.next()
        {
            code.pop();
            code.push_str(split(next).0);
        }
        found.push(Marked { line, mark, code, comment, behind });
    }
    found.extend(above.map(Marked::nothing));
    found
}

// The code of a line, and the mark in the comment behind it with what follows.
fn split(line: &str) -> (&str, Option<(String, String)>) {
    let Some(at) = line.find(MARK) else { return (line.trim_end(), None) };
    let before = &line[..at];
    let hash = before.match_indices('#').map(|(at, _)| at).find(|&at| before[..at].ends_with([' ', '\t']));
    let comment = hash.or_else(|| before.rfind("//"));
    match comment {
        Some(begin) => (line[..begin].trim_end(), mark_at(&line[at..])),
        // Outside of a comment the word is the caller's own business.
        None => (line.trim_end(), None),
    }
}

fn mark_at(text: &str) -> Option<(String, String)> {
    let rest = text.strip_prefix(MARK)?;
    let value = rest.find(|c: char| c != '=' && c != '-' && !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    let (mark, comment) = text.split_at(MARK.len() + value);
    Some((mark.to_owned(), comment.to_owned()))
}

// What a line of a unit of systemd sets that may be or hold a limit.
fn systemd_key(code: &str) -> Option<&str> {
    let (key, _) = code.trim().split_once('=')?;
    let key = key.trim_end();
    let limits = ["TimeoutStartSec", "TimeoutSec", "RuntimeMaxSec", "Environment"];
    (limits.contains(&key) || key.starts_with("Exec")).then_some(key)
}

enum Length {
    Of(Duration),
    Endless,
    Unread,
}

struct Limit {
    shown: String,
    length: Length,
    // How whole minutes are written there.
    unit: &'static str,
}

// Every limit that a line of code sets.
fn limits(code: &str) -> Vec<Limit> {
    let mut found = Vec::new();
    let line = code.trim().trim_start_matches("- ").trim();
    if let Some((key, value)) = line.split_once([':', '=']) {
        let (key, value) = (key.trim(), value.trim().trim_matches(['"', '\'']));
        let colon = line[key.len()..].trim_start().starts_with(':');
        let limit = |shown: String, length: Option<Duration>, unit| Limit {
            shown,
            length: length.map_or(Length::Unread, Length::Of),
            unit,
        };
        match key {
            "timeout-minutes" if colon => {
                let minutes = value.parse::<f64>().ok().filter(|minutes| (0.0..1e6).contains(minutes));
                found.push(limit(format!("{key}: {value}"), minutes.map(|m| MINUTE.mul_f64(m)), ""));
            }
            "XTASK_OUTER" if colon => found.push(limit(format!("{key}: {value}"), length(value, None), "m")),
            "timeout" if colon => found.push(limit(format!("{key}: {value}"), length(value, Some(SECOND)), "m")),
            "TimeoutStartSec" | "TimeoutSec" | "RuntimeMaxSec" if !colon => {
                let mut limit = limit(format!("{key}={value}"), systemd_length(value), "min");
                // For reasons of history 0 is no limit to a start (systemd.service(5)); to what runs it is one.
                let zero = matches!(limit.length, Length::Of(Duration::ZERO));
                if value == "infinity" || zero && key != "RuntimeMaxSec" {
                    limit.length = Length::Endless;
                }
                found.push(limit);
            }
            _ => {}
        }
    }
    let words: Vec<&str> = code.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let rest = &words[at + 1..];
        for (name, between) in [("--outer", ' '), ("XTASK_OUTER", '=')] {
            if let Some(value) = value_of(word, name, rest) {
                let length = length(value, None).map_or(Length::Unread, Length::Of);
                found.push(Limit { shown: format!("{name}{between}{value}"), length, unit: "m" });
            }
        }
        if bare(word).rsplit(['/', '=']).next() == Some("timeout") {
            let value = timeout_argument(rest);
            let length = match length(value, Some(SECOND)) {
                // To coreutils 0 means no limit.
                Some(Duration::ZERO) => Length::Endless,
                Some(length) => Length::Of(length),
                None => Length::Unread,
            };
            found.push(Limit { shown: format!("timeout {value}"), length, unit: "m" });
        }
    }
    found
}

// The queue budget that a line of code sets, or how it is written there if it cannot be read.
fn queue_flag(code: &str) -> Option<Result<Duration, String>> {
    let words: Vec<&str> = code.split_whitespace().collect();
    let value = words.iter().enumerate().find_map(|(at, word)| value_of(word, "--queue", &words[at + 1..]))?;
    Some(length(value, None).ok_or_else(|| format!("--queue {value}")))
}

// `--NAME value`, `--NAME=value`, `NAME=value`, with whatever quotes.
fn value_of<'w>(word: &'w str, name: &str, rest: &[&'w str]) -> Option<&'w str> {
    let word = word.trim_start_matches(['"', '\'', '(']);
    let word = word.strip_prefix("Environment=").map_or(word, |set| set.trim_start_matches(['"', '\'']));
    let after = word.strip_prefix(name)?;
    match after.strip_prefix('=') {
        Some(value) => Some(bare(value)),
        None if after.is_empty() && name.starts_with('-') => Some(rest.first().map_or("", |value| bare(value))),
        None => None,
    }
}

// The limit among the words after coreutils' `timeout`.
fn timeout_argument<'w>(rest: &[&'w str]) -> &'w str {
    let mut words = rest.iter().map(|word| bare(word));
    while let Some(word) = words.next() {
        match word {
            "-k" | "-s" | "--kill-after" | "--signal" => drop(words.next()),
            option if option.starts_with('-') => {}
            limit => return limit,
        }
    }
    ""
}

fn bare(text: &str) -> &str {
    text.trim().trim_matches(['"', '\'', ',', ';', ')', ']', '}'])
}

/// A length as CI services and coreutils write it: `1h 2m`, `62 minutes`, `1 hour and 2 min`, `3720`, the last
/// only if a `unit` for bare numbers is given. None if it is nothing of the kind.
pub fn length(text: &str, unit: Option<Duration>) -> Option<Duration> {
    let word = |word: &str| {
        Some(match word.to_ascii_lowercase().as_str() {
            "ms" | "msec" => Duration::from_millis(1),
            "s" | "sec" | "secs" | "second" | "seconds" => SECOND,
            "m" | "min" | "mins" | "minute" | "minutes" => MINUTE,
            "h" | "hr" | "hrs" | "hour" | "hours" => 60 * MINUTE,
            "d" | "day" | "days" => DAY,
            _ => return None,
        })
    };
    let between = |rest: &str| {
        let rest = rest.trim_start_matches([' ', ',']);
        rest.strip_prefix("and ").unwrap_or(rest).trim_start().len()
    };
    sum(text, unit, word, between)
}

/// A length as systemd writes and reads it (systemd.time(7)): `1h 2min`, `90`; a small m is a minute, a large M a month.
/// None if it is nothing of the kind; `infinity` is none either.
pub fn systemd_length(text: &str) -> Option<Duration> {
    let word = |word: &str| {
        Some(match word {
            "us" | "usec" | "\u{3bc}s" | "\u{b5}s" => Duration::from_micros(1),
            "ms" | "msec" => Duration::from_millis(1),
            "s" | "sec" | "second" | "seconds" => SECOND,
            "m" | "min" | "minute" | "minutes" => MINUTE,
            "h" | "hr" | "hour" | "hours" => 60 * MINUTE,
            "d" | "day" | "days" => DAY,
            "w" | "week" | "weeks" => 7 * DAY,
            "M" | "month" | "months" => DAY.mul_f64(30.44),
            "y" | "year" | "years" => DAY.mul_f64(365.25),
            _ => return None,
        })
    };
    sum(text, Some(SECOND), word, |rest| rest.trim_start().len())
}

// The sum of numbers with a word each; a single number without one has the `unit`. `between` says how much of a rest is
// left behind what may stand between two terms.
fn sum(
    text: &str,
    unit: Option<Duration>,
    word: impl Fn(&str) -> Option<Duration>,
    between: impl Fn(&str) -> usize,
) -> Option<Duration> {
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    let mut terms = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number = rest[..number_end].parse::<f64>().ok()?;
        rest = rest[number_end..].trim_start();
        let word_end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let one = match &rest[..word_end] {
            "" if terms == 0 && rest.is_empty() => unit?,
            "" => return None,
            unit => word(unit)?,
        };
        sum = sum.checked_add(Duration::try_from_secs_f64(number * one.as_secs_f64()).ok()?)?;
        terms += 1;
        rest = &rest[word_end..];
        rest = &rest[rest.len() - between(rest)..];
    }
    (terms > 0).then_some(sum)
}

/// The systemd service that a process belongs to, by its /proc/self/cgroup, and whether it is one of the user's own
/// manager. None if the process is in a session, a scope or a container.
pub fn systemd_unit(cgroup: &str) -> Option<(&str, bool)> {
    cgroup.lines().find_map(|line| {
        let path = line.rsplit(':').next()?;
        let unit = path.rsplit('/').next().filter(|unit| unit.ends_with(".service"))?;
        Some((unit, path.trim_end_matches(unit).contains("/user@")))
    })
}

/// The limit of a service, from what `systemctl show --property=Type,TimeoutStartUSec,RuntimeMaxUSec` prints: systemd
/// ends a oneshot service after the first, every other one after the second.
pub fn systemd_limit(shown: &str) -> Option<Outer> {
    let value = |key: &str| shown.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let key = if value("Type")? == "oneshot" { "TimeoutStartUSec" } else { "RuntimeMaxUSec" };
    let length = systemd_length(value(key)?)?;
    Some(Outer { length, from: format!("systemd's {key}") })
}
