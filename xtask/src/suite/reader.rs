//! How the tables of a suite file are read: each look at a key notes what is wrong with it, with its line, and goes on.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{SuiteError, value};
use crate::name::{Name, meant};

pub(super) type Value<'a> = Spanned<DeValue<'a>>;

/// Things of the file, each with its line.
pub(super) type Lined<T> = Vec<(T, usize)>;

/// A table of the file and how people call it.
pub(super) struct Table<'a> {
    pub keys: &'a DeTable<'a>,
    pub what: String,
    pub line: usize,
}

/// What was found wrong so far.
pub(super) struct Reader {
    // Where each line of the file begins, in bytes.
    lines: Vec<usize>,
    // What is wrong by itself.
    pub errors: Vec<SuiteError>,
    // What is wrong only if the rest of the file was read right: something missing, unknown, or that does not fit.
    pub followers: Vec<SuiteError>,
}

impl Reader {
    pub(super) fn new(text: &str) -> Self {
        let begins = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { lines: std::iter::once(0).chain(begins).collect(), errors: Vec::new(), followers: Vec::new() }
    }

    pub(super) fn line(&self, at: &Range<usize>) -> usize {
        self.lines.partition_point(|&begin| begin <= at.start)
    }

    pub(super) fn note(&mut self, line: usize, what: String) {
        self.errors.push(SuiteError { line: Some(line), what });
    }

    pub(super) fn follow(&mut self, line: usize, what: String) {
        self.followers.push(SuiteError { line: Some(line), what });
    }

    // The value of a key and the line of that key.
    pub(super) fn find<'a>(&self, table: &Table<'a>, key: &str) -> Option<(usize, &'a Value<'a>)> {
        table.keys.get_key_value(key).map(|(key, value)| (self.line(&key.span()), value))
    }

    pub(super) fn known<'a>(&mut self, table: &Table<'a>, known: &[&str]) {
        for key in table.keys.keys().filter(|key| !known.contains(&key.get_ref().as_ref())) {
            let (key, line) = (key.get_ref().as_ref(), self.line(&key.span()));
            let place = if table.what.is_empty() { String::new() } else { format!("{}: ", table.what) };
            let hint = match meant(key, known.iter().copied()) {
                none if none.is_empty() => format!("; known are {}", known.join(", ")),
                hint => hint,
            };
            self.note(line, format!("{place}unknown key {key:?}{hint}"));
        }
    }

    pub(super) fn table<'a>(
        &mut self,
        value: &'a Value<'a>,
        what: String,
        line: usize,
        known: &[&str],
    ) -> Option<Table<'a>> {
        let Some(keys) = value.get_ref().as_table() else {
            self.note(line, format!("{what} is {} and should be a table", kind(value)));
            return None;
        };
        let table = Table { keys, what, line };
        if !known.is_empty() {
            self.known(&table, known);
        }
        Some(table)
    }

    // The tables of `[key.*]` by name, in the order of the file.
    pub(super) fn tables<'a>(&mut self, root: &Table<'a>, key: &str, known: &[&str]) -> Vec<(Name, Table<'a>)> {
        let Some((line, value)) = self.find(root, key) else { return Vec::new() };
        let Some(outer) = self.table(value, format!("[{key}]"), line, &[]) else { return Vec::new() };
        let mut entries: Vec<_> = outer.keys.iter().collect();
        entries.sort_by_key(|(name, _)| name.span().start);
        let mut tables = Vec::new();
        for (name, value) in entries {
            let line = self.line(&name.span());
            let Some(table) = self.table(value, format!("{key} {:?}", name.get_ref()), line, known) else { continue };
            match Name::parse(name.get_ref()) {
                Ok(name) => tables.push((name, table)),
                Err(why) => self.note(line, format!("[{key}.…]: {why}")),
            }
        }
        tables
    }

    pub(super) fn read<'a, T>(
        &mut self,
        table: &Table<'a>,
        key: &str,
        read: impl FnOnce(&'a Value<'a>) -> Result<T, String>,
    ) -> Option<T> {
        let (line, value) = self.find(table, key)?;
        read(value).map_err(|why| self.note(line, format!("{}: {key}: {why}", table.what))).ok()
    }

    pub(super) fn duration<'a>(
        &mut self,
        table: &Table<'a>,
        key: &str,
        range: &RangeInclusive<Duration>,
    ) -> Option<(Duration, usize)> {
        let line = self.find(table, key)?.0;
        let length = self.read(table, key, |value| match value.get_ref() {
            DeValue::Integer(n) => Err(format!("{n} has no unit; write it as in \"{n}s\"")),
            _ => value::duration(string(value)?, range),
        });
        length.map(|length| (length, line))
    }

    pub(super) fn command<'a>(&mut self, table: &Table<'a>, key: &str) -> Option<Vec<String>> {
        self.read(table, key, |value| match value.get_ref() {
            DeValue::Array(array) => {
                let words = array.iter().map(|word| string(word).map(str::to_owned));
                value::command(words.collect::<Result<_, _>>()?)
            }
            DeValue::String(text) => value::words(text),
            _ => Err(format!("is {} and should be a string, or an array of words", kind(value))),
        })
    }

    // The strings of an array, each with its line.
    pub(super) fn list<T: PartialEq>(
        &mut self,
        table: &Table<'_>,
        key: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Lined<T> {
        let Some((line, value)) = self.find(table, key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            self.note(line, format!("{}: {key}: is {} and should be an array of strings", table.what, kind(value)));
            return Vec::new();
        };
        let mut items: Lined<T> = Vec::new();
        for value in array {
            let line = self.line(&value.span());
            let item = string(value).and_then(|text| {
                let item = read(text)?;
                let twice = items.iter().any(|(other, _)| *other == item);
                if twice { Err(format!("{text:?} is here for the second time")) } else { Ok(item) }
            });
            match item {
                Ok(item) => items.push((item, line)),
                Err(why) => self.note(line, format!("{}: {key}: {why}", table.what)),
            }
        }
        items
    }

    pub(super) fn exist<'n>(
        &mut self,
        table: &Table<'_>,
        kind: &str,
        wanted: &[(Name, usize)],
        known: impl Iterator<Item = &'n Name> + Clone,
    ) {
        for (name, line) in wanted {
            if !known.clone().any(|other| other == name) {
                let (name, hint) = (name.as_str(), meant(name.as_str(), known.clone().map(Name::as_str)));
                self.follow(*line, format!("{}: there is no {kind} {name:?}{hint}", table.what));
            }
        }
    }

    pub(super) fn env<'a>(&mut self, table: &Table<'a>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        let Some((line, value)) = self.find(table, "env") else { return env };
        let what = format!("{}: env", table.what);
        let Some(variables) = self.table(value, what.clone(), line, &[]) else { return env };
        for (name, value) in variables.keys {
            let line = self.line(&name.span());
            let name = name.get_ref().as_ref();
            let checked = value::env_name(name).and_then(|()| {
                if name.to_ascii_uppercase().starts_with("XTASK_") {
                    return Err(format!("{name} is one of xtask's own variables"));
                }
                match value.get_ref().as_str() {
                    Some(text) if text.contains('\0') => Err(format!("{name} cannot have a NUL in it")),
                    Some(text) => Ok(text),
                    None => Err(format!("{name} is {} and should be a string, in quotes", kind(value))),
                }
            });
            match checked {
                Ok(text) => drop(env.insert(name.to_owned(), text.to_owned())),
                Err(why) => self.note(line, format!("{what}: {why}")),
            }
        }
        env
    }
}

pub(super) fn kind(value: &Value<'_>) -> String {
    match value.get_ref().type_str() {
        word @ ("array" | "integer") => format!("an {word}"),
        word => format!("a {word}"),
    }
}

pub(super) fn string<'v>(value: &'v Value<'_>) -> Result<&'v str, String> {
    value.get_ref().as_str().ok_or_else(|| format!("is {} and should be a string", kind(value)))
}

pub(super) fn boolean(value: &Value<'_>) -> Result<bool, String> {
    value.get_ref().as_bool().ok_or_else(|| format!("is {} and should be true or false", kind(value)))
}

pub(super) fn number(value: &Value<'_>) -> Result<u64, String> {
    let DeValue::Integer(n) = value.get_ref() else {
        return Err(format!("is {} and should be a whole number", kind(value)));
    };
    u64::from_str_radix(n.as_str(), n.radix()).map_err(|_| format!("{n} is out of range"))
}

pub(super) fn one_of<T: Copy>(value: &Value<'_>, known: &[(&str, T)]) -> Result<T, String> {
    let text = string(value)?;
    let found = known.iter().find(|(name, _)| *name == text).map(|&(_, found)| found);
    let all = || known.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
    found.ok_or_else(|| format!("{text:?} should be {}", all()))
}

pub(super) fn named(text: &str) -> Result<Name, String> {
    Name::parse(text).map_err(|why| why.to_string())
}
