//! The small languages inside the strings of a suite file: commands, sizes, paths, versions. Each error says what the
//! text should look like.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::time::{Exact, parse_duration};

/// A length within `range`, in whole milliseconds, the unit in which receipts compare it.
pub fn duration(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let length = parse_duration(text)?;
    if !range.contains(&length) {
        return Err(format!("{text:?} is not between {} and {}", Exact(*range.start()), Exact(*range.end())));
    }
    if length.subsec_nanos() % 1_000_000 != 0 {
        return Err(format!("{text:?} is not a whole number of milliseconds"));
    }
    Ok(length)
}

/// A command split into words as POSIX does it: blanks separate, `'…'` keeps everything, `"…"` keeps everything but
/// `\"`, `\\`, `` \` ``, `\$`, and a backslash outside of quotes keeps the next character. Nothing is expanded, and what
/// would only mean something to a shell is an error unless it is quoted, because no shell will ever see it.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let text = text.replace("\r\n", "\n");
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut begun, mut quoted) = (false, false);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let blank = matches!(c, ' ' | '\t' | '\n' | '\r');
        match c {
            _ if blank && !begun => continue,
            _ if blank => {
                words.push(whole(std::mem::take(&mut word), quoted, words.is_empty())?);
                (begun, quoted) = (false, false);
                continue;
            }
            '\'' | '"' => {
                quoted = true;
                quote(c, &mut rest, &mut word).ok_or_else(|| format!("the quote {c} is never closed"))?;
            }
            '\\' => match rest.next() {
                None => return Err("the backslash at the end stands before nothing".to_owned()),
                Some('\n') => continue,
                Some(kept) => {
                    quoted = true;
                    word.push(kept);
                }
            },
            _ => word.push(c),
        }
        begun = true;
    }
    if begun {
        words.push(whole(word, quoted, words.is_empty())?);
    }
    command(words)
}

// What stands inside quotes, up to the closing one; nothing if there is none.
fn quote(mark: char, rest: &mut std::str::Chars<'_>, word: &mut String) -> Option<()> {
    loop {
        match rest.next()? {
            c if c == mark => return Some(()),
            '\\' if mark == '"' => match rest.next()? {
                '\n' => {}
                c @ ('"' | '\\' | '$' | '`') => word.push(c),
                c => word.extend(['\\', c]),
            },
            c => word.push(c),
        }
    }
}

fn whole(word: String, quoted: bool, first: bool) -> Result<String, String> {
    let operator = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '&').starts_with(['<', '>'])
        || word.ends_with(['|', '&', ';'])
        || ["|", "&", ";", "$(", "`"].iter().any(|mark| word.starts_with(mark));
    if operator && !quoted {
        return Err(format!(
            "{word:?} means something to a shell only, and none reads it: quote it if it is an argument, else write a \
             script, or [\"sh\", \"-c\", \"…\"]"
        ));
    }
    let assigns = word.split_once('=').is_some_and(|(name, _)| env_name(name).is_ok());
    if first && assigns && !quoted {
        return Err(format!("{word:?} is not a program; variables go into `env`"));
    }
    Ok(word)
}

/// A command that is words already.
pub fn command(words: Vec<String>) -> Result<Vec<String>, String> {
    if words.first().is_none_or(String::is_empty) {
        return Err("there is no program to run".to_owned());
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err("a word of a command cannot have a NUL in it".to_owned());
    }
    Ok(words)
}

/// A path relative to the repository's root that stays inside it: plain names with `/` between them.
pub fn path(text: &str) -> Result<String, String> {
    let tricky = |part: &str| matches!(part, "" | "." | "..") || part.chars().any(char::is_control);
    let parts = || text.split('/');
    if text.starts_with('/') || parts().any(|part| part == "..") {
        return Err(format!("{text:?} is not a path inside the repository, relative to its root"));
    }
    if parts().any(tricky) {
        return Err(format!("{text:?} is not written plainly, as in \"web/app\""));
    }
    if parts().any(|part| part.eq_ignore_ascii_case(".git")) {
        return Err(format!("{text:?} lies in git's own folder"));
    }
    Ok(text.to_owned())
}

/// A path that a task may make: `path`, and not where runs leave their own records.
pub fn output(text: &str) -> Result<String, String> {
    let path = path(text)?;
    if path.starts_with("receipts/") || path.starts_with("target/xtask-runs/") {
        return Err(format!("{text:?} lies where xtask writes"));
    }
    if path.contains(['\\', ':']) || path.rsplit('/').next() == Some("-") {
        return Err(format!("{text:?} cannot be released under that name: no \\ and no : in it, and not - alone"));
    }
    Ok(path)
}

/// A number of bytes, as in `64MiB`.
pub fn size(text: &str, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start() {
        "B" => Some(1),
        "kB" => Some(1000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    match bytes {
        Some(bytes) if range.contains(&bytes) => Ok(bytes),
        Some(_) => Err(format!("{text:?} is not between {} and {} bytes", range.start(), range.end())),
        None => Err(format!("{text:?} is not a size such as \"64MiB\"")),
    }
}

/// The number of `>=14`, at least `oldest`.
pub fn version(text: &str, oldest: u32) -> Result<u32, String> {
    let number = text.strip_prefix(">=").and_then(|n| n.trim_start().parse::<u32>().ok());
    match number {
        Some(number) if (oldest..1000).contains(&number) => Ok(number),
        Some(_) => Err(format!("{text:?} is out of range: {oldest} is the oldest that works")),
        None => Err(format!("{text:?} is not a lowest major version such as \">={oldest}\"")),
    }
}

/// Whether this can be a variable of the environment.
pub fn env_name(name: &str) -> Result<(), String> {
    let plain = name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    if name.is_empty() || !plain || name.as_bytes()[0].is_ascii_digit() {
        return Err(format!("{name:?} is not a variable's name: letters, digits and _, not beginning with a digit"));
    }
    Ok(())
}
