//! Names that are safe wherever they are written: in a file name, a line of text, an environment variable.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most bytes a name may have.
const NAME_MAX: usize = 64;

/// Why a text is no name, or no id of a run. The text of the error says what one looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadName {
    text: String,
    form: &'static str,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.text, self.form)
    }
}

impl std::error::Error for BadName {}

/// The name of a task, a profile, a mutex or a service: also a safe file name. `parse` is the only door.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

/// The name of a task.
pub type TaskName = Name;

impl Name {
    /// Lower-case ASCII letters, digits, `.`, `_` and `-`, beginning with a letter or digit, 64 bytes at most. Upper
    /// case is out because log files must not collide on file systems that ignore case.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = text.as_bytes();
        let fits = (1..=NAME_MAX).contains(&bytes.len())
            && plain(bytes[0])
            && bytes.iter().all(|&c| plain(c) || matches!(c, b'.' | b'_' | b'-'));
        let form = "a name: 1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit";
        if fits { Ok(Self(text.to_owned())) } else { Err(BadName { text: text.to_owned(), form }) }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The identity of one run, `r-20261130-140210-7c1e09ab`: the UTC second it was asked for and 32 random bits. It names
/// the receipt and the log folder, and marks the processes of the run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct RunId(String);

impl RunId {
    /// From the seconds since 1970 (UTC) and random bits.
    pub fn new(unix_seconds: u64, random: u32) -> Self {
        let when = crate::time::utc(unix_seconds * 1000);
        let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>();
        Self(format!("r-{}-{}-{random:08x}", digits(&when[..10]), digits(&when[11..19])))
    }

    /// Exactly the form that `new` writes.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let parts: Vec<&str> = text.split('-').collect();
        let digits = |part: &str, len| part.len() == len && part.bytes().all(|c| c.is_ascii_digit());
        let hex = |part: &str| part.len() == 8 && part.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        match parts[..] {
            ["r", day, time, random] if digits(day, 8) && digits(time, 6) && hex(random) => Ok(Self(text.to_owned())),
            _ => Err(BadName { text: text.to_owned(), form: "the id of a run such as r-20261130-140210-7c1e09ab" }),
        }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RunId {
    type Error = BadName;
    fn try_from(text: String) -> Result<Self, BadName> {
        Self::parse(&text)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Of `known`, the one nearest to `wrong` by edit distance, if it is near enough to be what was meant.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (distance(wrong, name), name))
        .filter(|&(far, name)| far <= 1 + name.len().min(wrong.len()) / 4 && far < name.len())
        .min_by_key(|&(far, _)| far)
        .map(|(_, name)| name)
}

/// `nearest` as the end of an error: `; did you mean "…"?`, or nothing.
pub fn meant<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, known).map(|right| format!("; did you mean {right:?}?")).unwrap_or_default()
}

// Edit distance with neighbouring letters swapped counted as one edit: typing errors are mostly that.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(80).collect(), b.chars().take(80).collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// Who asked for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Caller {
    /// A developer.
    Local,
    /// A CI job.
    Ci,
    /// The signed release run.
    Release,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Local => "local",
            Self::Ci => "ci",
            Self::Release => "release",
        })
    }
}
