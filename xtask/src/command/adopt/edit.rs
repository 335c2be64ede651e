//! Edits of TOML files that people wrote: a few characters are put in, everything else stays as it is, comments and
//! layout included. Each edit is proved: the new text, parsed, is the old one and what was meant, and nothing else.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Puts `key = value` into the table at `path`, which is made where there is none. `value` is TOML. If the key is there
/// already, with this value, nothing changes; with another it is an error.
pub fn set(text: &str, path: &[&str], key: &str, value: &str) -> Result<String, String> {
    let root = parse(text)?;
    let full = [path, &[key]].concat().join(".");
    let line = format!("{key} = {value}");
    let meant = flat(&format!("[{}]\n{line}\n", path.join(".")))?;
    let old = flat(text)?;
    if meant.iter().all(|(key, value)| old.get(key) == Some(value)) {
        return Ok(text.to_owned());
    }
    if old.keys().any(|other| *other == full || other.starts_with(&format!("{full}."))) {
        return Err(format!("`{full}` is there already, with another value"));
    }
    let new = match find(root.get_ref(), path) {
        None => append(text, &format!("[{}]\n{line}\n", path.join("."))),
        Some((name, table)) => {
            let at = table.span();
            match text.get(at.clone()).and_then(|text| text.chars().next()) {
                Some('[') => insert_line(text, at.end, &line),
                Some('{') => {
                    let empty = table.get_ref().as_table().is_none_or(|table| table.is_empty());
                    let comma = if empty { "" } else { "," };
                    format!("{}{{ {line}{comma}{}", &text[..at.start], &text[at.start + 1..])
                }
                // Made by dotted keys, `alias.b = "build"`: one more of them stands before.
                _ => {
                    let begin = text[..name.start].rfind('\n').map_or(0, |end| end + 1);
                    format!("{}{}.{line}\n{}", &text[..begin], path.join("."), &text[begin..])
                }
            }
        }
    };
    proved(text, new, meant)
}

/// Gives a key that is there another value. `value` is TOML. Errors where there is no such key, or it has no string.
pub fn replace(text: &str, path: &[&str], key: &str, value: &str) -> Result<String, String> {
    let root = parse(text)?;
    let full = [path, &[key]].concat();
    let found = find(root.get_ref(), &full).filter(|(_, value)| value.get_ref().is_str());
    let (_, old) = found.ok_or_else(|| format!("there is no string `{}`", full.join(".")))?;
    let meant = flat(&format!("[{}]\n{key} = {value}\n", path.join(".")))?;
    proved(text, format!("{}{value}{}", &text[..old.span().start], &text[old.span().end..]), meant)
}

/// Puts a string at the end of the array at `path`, in the way in which the array is written. Errors where there is no
/// such array.
pub fn push(text: &str, path: &[&str], value: &str) -> Result<String, String> {
    let root = parse(text)?;
    let full = path.join(".");
    let (_, array) = find(root.get_ref(), path).ok_or_else(|| format!("there is no `{full}`"))?;
    let items = array.get_ref().as_array().ok_or_else(|| format!("`{full}` is not an array"))?;
    let item = format!("{value:?}");
    let meant = BTreeMap::from([(format!("{full}.{}", items.len()), format!("s:{value}"))]);
    let Some(last) = items.iter().last() else {
        let begin = array.span().start + 1;
        return proved(text, format!("{}{item}{}", &text[..begin], &text[begin..]), meant);
    };
    let (end, close) = (last.span().end, array.span().end - 1);
    let comma_follows = text[end..close].trim_start().starts_with(',');
    let line_end = text[end..].find('\n').map_or(text.len(), |at| end + at);
    let new = if line_end > close {
        // The closing bracket stands on the line of the last item.
        format!("{}, {item}{}", &text[..end], &text[end..])
    } else {
        let begin = text[..last.span().start].rfind('\n').map_or(0, |at| at + 1);
        let indent: String = text[begin..].chars().take_while(|c| matches!(c, ' ' | '\t')).collect();
        let (before, comment) = (&text[..end], text[end..line_end].trim_end_matches('\r'));
        let (comma, tail) = if comma_follows { ("", ",") } else { (",", "") };
        format!("{before}{comma}{comment}\n{indent}{item}{tail}{}", &text[end + comment.len()..])
    };
    proved(text, new, meant)
}

/// Whether there is anything at `path`.
pub fn has(text: &str, path: &[&str]) -> bool {
    parse(text).is_ok_and(|root| find(root.get_ref(), path).is_some())
}

/// Puts text at the end of a file, after an empty line.
pub fn append(text: &str, more: &str) -> String {
    match text.trim_end() {
        "" => more.to_owned(),
        _ if text.ends_with('\n') => format!("{text}\n{more}"),
        _ => format!("{text}\n\n{more}"),
    }
}

/// Every value of a TOML text by its path, as text: what two texts have to agree in. Errors where it is no TOML.
pub fn flat(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    flatten("", &DeValue::Table(parse(text)?.into_inner()), &mut all);
    Ok(all)
}

fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, String> {
    DeTable::parse(text).map_err(|e| e.to_string().trim_end().to_owned())
}

fn proved(old: &str, mut new: String, meant: BTreeMap<String, String>) -> Result<String, String> {
    if old.contains("\r\n") && old.matches('\n').count() == old.matches("\r\n").count() {
        new = new.replace("\r\n", "\n").replace('\n', "\r\n");
    }
    let mut expected = flat(old)?;
    expected.extend(meant);
    match flat(&new) {
        Ok(found) if found == expected => Ok(new),
        _ => Err("it is written in a way that cannot be edited safely".to_owned()),
    }
}

// The value at a path, and where its last key stands.
fn find<'t, 'i>(table: &'t DeTable<'i>, path: &[&str]) -> Option<(Range<usize>, &'t Spanned<DeValue<'i>>)> {
    let (key, rest) = path.split_first()?;
    let (name, value) = table.get_key_value(*key)?;
    if rest.is_empty() { Some((name.span(), value)) } else { find(value.get_ref().as_table()?, rest) }
}

fn insert_line(text: &str, from: usize, line: &str) -> String {
    match text[from..].find('\n') {
        Some(at) => format!("{}{line}\n{}", &text[..=from + at], &text[from + at + 1..]),
        None => format!("{text}\n{line}\n"),
    }
}

fn flatten(path: &str, value: &DeValue<'_>, all: &mut BTreeMap<String, String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        DeValue::Table(table) => {
            table.iter().for_each(|(key, value)| flatten(&below(key.get_ref()), value.get_ref(), all));
        }
        DeValue::Array(array) => {
            (0..).zip(array).for_each(|(at, value): (usize, _)| flatten(&below(&at.to_string()), value.get_ref(), all));
        }
        DeValue::String(text) => drop(all.insert(path.to_owned(), format!("s:{text}"))),
        other => drop(all.insert(path.to_owned(), format!("{other:?}"))),
    }
}
