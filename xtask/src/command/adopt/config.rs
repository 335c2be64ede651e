//! The repository's cargo configuration with the alias and its profile. What is there and not of an earlier copy stays.

use std::collections::BTreeMap;

use super::edit;

/// The file.
pub(super) const CONFIG: &str = ".cargo/config.toml";
/// What it was called before Rust 1.39; cargo still reads it, and before the other.
pub(super) const OLD_CONFIG: &str = ".cargo/config";

const ALIAS: &str = "alias.xtask";
const PROFILE: &str = "profile.xtask.";

/// `old` with the alias and the profile of `ours`, the configuration of the repository that the copy is from; `was` is how
/// that read when an earlier copy was made, if there is one and it is known; `own` gives the alias of a copy with a workspace of
/// its own. Besides, what is worth a line to people.
pub fn with_alias(old: &str, ours: &str, was: Option<&str>, own: bool) -> Result<(String, Option<String>), String> {
    let alias = |text: &str| -> Result<[String; 2], String> {
        let alias = edit::flat(text)?.remove(ALIAS).ok_or("this repository has no alias xtask")?;
        let alias = alias.trim_start_matches("s:").to_owned();
        Ok([alias.clone(), alias.replace("--package xtask", "--manifest-path xtask/Cargo.toml")])
    };
    let now = alias(ours)?;
    let earlier = was.and_then(|was| alias(was).ok()).into_iter().flatten();
    let written: Vec<String> = now.iter().cloned().chain(earlier).map(|value| format!("s:{value}")).collect();
    let value = format!("{:?}", now[usize::from(own)]);
    let new = match edit::flat(old)?.get(ALIAS) {
        Some(there) if written.contains(there) => edit::replace(old, &["alias"], "xtask", &value),
        _ => edit::set(old, &["alias"], "xtask", &value),
    };
    let advice = |why| {
        format!(
            "{why}; rename what is there, or write `xtask = {value}` below [alias] by hand, commit, and adopt again"
        )
    };
    profiled(&new.map_err(advice)?, ours, was)
}

fn profiled(text: &str, ours: &str, was: Option<&str>) -> Result<(String, Option<String>), String> {
    let (there, wanted) = (profile(text)?, profile(ours)?);
    if there.is_empty() {
        let new = edit::append(text, &(block(ours) + "\n"));
        edit::flat(&new)?;
        return Ok((new, None));
    }
    if there == wanted {
        return Ok((text.to_owned(), None));
    }
    // As the earlier copy brought it, it is replaced.
    if let Some(before) = was.map(block).filter(|before| !before.is_empty() && text.contains(before.as_str())) {
        let new = text.replacen(&before, &block(ours), 1);
        let rest = |text: &str| -> Result<BTreeMap<String, String>, String> {
            Ok(edit::flat(text)?.into_iter().filter(|(key, _)| !key.starts_with(PROFILE)).collect())
        };
        if profile(&new).as_ref() == Ok(&wanted) && rest(&new) == rest(text) {
            return Ok((new, None));
        }
    }
    let keys = wanted.keys().chain(there.keys()).filter(|key| wanted.get(*key) != there.get(*key));
    let mut keys: Vec<&str> = keys.map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    Ok((
        text.to_owned(),
        Some(format!("[profile.xtask] stays as it is there, which is not that of this version: {}", keys.join(", "))),
    ))
}

fn profile(text: &str) -> Result<BTreeMap<String, String>, String> {
    Ok(edit::flat(text)?.into_iter().filter(|(key, _)| key.starts_with(PROFILE)).collect())
}

// The tables of the profile as they are written, without comments.
fn block(text: &str) -> String {
    let mut kept = false;
    let lines = text.lines().filter(|line| {
        kept = if line.starts_with('[') { line.starts_with("[profile.xtask") } else { kept };
        kept && !line.starts_with('#')
    });
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
