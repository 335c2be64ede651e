//! The copy of the program that another repository gets: its sources without tests, where they come from, and a digest by
//! which edits of the copy are seen.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use toml::de::DeTable;

use crate::digest;

/// The folder of the program in every repository.
pub const FOLDER: &str = "xtask";
/// The file that says what a copy is a copy of. Below the comments it is what `sha256sum -c` reads.
pub const ADOPTED: &str = "xtask/ADOPTED";
/// The lock file of a copy with a workspace of its own.
pub const OWN_LOCK: &str = "xtask/Cargo.lock";

const MANIFEST: &str = "xtask/Cargo.toml";
// Tables of the manifest that a copy needs; the others are for tests, benches and lints.
const TABLES: [&str; 7] =
    ["[package]", "[lib]", "[[bin]]", "[dependencies]", "[build-dependencies]", "[features]", "[target."];
// A copy is judged by its own repository; new lints of a newer compiler must not fail somebody else's build.
const ALLOW: &str = "#![allow(warnings, clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction)]\n";

/// Where a copy comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// URL of the repository, or its folder's name.
    pub from: String,
    /// The commit.
    pub commit: String,
}

/// The files of a copy by path, relative to the repository that gets them, made from the files of this repository (`read`
/// gives the bytes of a tracked file). `own` gives it a workspace of its own. Errors where this repository has nothing
/// to copy, or is a copy itself.
pub fn copy(
    tracked: &BTreeSet<String>,
    read: &dyn Fn(&str) -> anyhow::Result<Vec<u8>>,
    origin: &Origin,
    own: bool,
) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    ensure!(
        !tracked.contains(ADOPTED),
        "this copy was adopted itself: adopt from where it came ({ADOPTED} says where)"
    );
    ensure!(tracked.contains(MANIFEST), "there is no {MANIFEST} in this repository to copy from");
    let mut files = BTreeMap::new();
    for path in tracked.iter().filter(|path| path.starts_with("xtask/src/")) {
        let mut bytes = read(path)?;
        if ["xtask/src/lib.rs", "xtask/src/main.rs"].contains(&path.as_str()) {
            bytes = [ALLOW.as_bytes(), &bytes].concat();
        }
        files.insert(path.clone(), bytes);
    }
    // Settings of the tools hold for the folder that they lie in: with these, the adopter's own do not apply to the copy.
    for config in ["rustfmt.toml", "clippy.toml"].into_iter().filter(|config| tracked.contains(*config)) {
        files.insert(format!("{FOLDER}/{config}"), read(config)?);
    }
    for licence in tracked.iter().filter(|path| path.starts_with("LICENSE") && !path.contains('/')) {
        files.insert(format!("{FOLDER}/{licence}"), read(licence)?);
    }
    let manifest = String::from_utf8(read(MANIFEST)?).context(MANIFEST)?;
    let version = version(&manifest)?;
    files.insert(MANIFEST.to_owned(), stripped(&manifest, own).into_bytes());
    if own {
        files.insert(format!("{FOLDER}/.gitignore"), b"/target\n!/Cargo.lock\n".to_vec());
    }
    files.insert(format!("{FOLDER}/README.md"), readme(origin, &version, own).into_bytes());
    let sums = sums(&files);
    let head = format!(
        "# A copy of xtask {version}. Do not edit it: `cargo xtask adopt` in the repository that it comes from updates it.\n\
         # from    {}\n# commit  {}\n# digest  {}\n",
        origin.from,
        origin.commit,
        digest::of_bytes(sums.as_bytes())
    );
    files.insert(ADOPTED.to_owned(), (head + &sums).into_bytes());
    Ok(files)
}

/// The oldest Rust that the copy compiles with, from this repository's manifest: major and minor number.
pub fn oldest_rust(manifest: &str) -> anyhow::Result<(u64, u64)> {
    let text = package(manifest, "rust-version")?;
    rust(&text).with_context(|| format!("{MANIFEST}: rust-version {text:?}"))
}

/// `1.88` or `1.88.0` as numbers.
pub fn rust(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.trim().split(['.', '-']).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// What of a copy is not as it was written: paths of files that were edited, removed or added. `tracked` are the paths of
/// the repository. Errors where ADOPTED cannot be read.
pub fn edits(
    tracked: &BTreeSet<String>,
    read: &dyn Fn(&str) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<Vec<String>> {
    let adopted = String::from_utf8(read(ADOPTED)?).context(ADOPTED)?;
    let listed = adopted.lines().filter(|line| !line.starts_with('#'));
    let listed: BTreeMap<String, &str> = listed
        .map(|line| line.split_once("  ").map(|(sum, path)| (format!("{FOLDER}/{path}"), sum)))
        .collect::<Option<_>>()
        .with_context(|| format!("{ADOPTED} is not what was written"))?;
    let here = tracked.iter().filter(|path| path.starts_with("xtask/"));
    let here = here.filter(|path| ![ADOPTED, OWN_LOCK].contains(&path.as_str()));
    let mut edits: BTreeSet<String> = here.filter(|path| !listed.contains_key(*path)).cloned().collect();
    for (path, sum) in listed {
        if read(&path).map(|bytes| digest::of_bytes(&bytes)).ok().as_deref() != Some(sum) {
            edits.insert(path);
        }
    }
    Ok(edits.into_iter().collect())
}

fn sums(files: &BTreeMap<String, Vec<u8>>) -> String {
    let line = |(path, bytes): (&String, &Vec<u8>)| {
        let path = path.strip_prefix("xtask/").unwrap_or(path);
        format!("{}  {path}\n", digest::of_bytes(bytes))
    };
    files.iter().map(line).collect()
}

fn version(manifest: &str) -> anyhow::Result<String> {
    package(manifest, "version")
}

fn package(manifest: &str, key: &str) -> anyhow::Result<String> {
    let root = DeTable::parse(manifest).context(MANIFEST)?;
    let value = root.get_ref().get("package").and_then(|package| package.get_ref().get(key));
    let text = value.and_then(|value| value.get_ref().as_str()).with_context(|| format!("{MANIFEST}: no {key}"))?;
    Ok(text.to_owned())
}

// The manifest with the tables of `TABLES` alone.
fn stripped(manifest: &str, own: bool) -> String {
    let mut text = "# A copy; ADOPTED says of what.\n".to_owned();
    let mut kept = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            kept = TABLES.iter().any(|table| line.starts_with(table));
        }
        if kept {
            text += line;
            text.push('\n');
        }
    }
    let text = text.trim_end().to_owned() + "\n";
    if own { text + "\n[workspace]\n" } else { text }
}

fn readme(origin: &Origin, version: &str, own: bool) -> String {
    let own_text = "\nIt has a cargo workspace of its own here, because as a member it would have changed what this repository's other\n\
        packages are built with. The alias `cargo xtask` works from the root of the repository only, for that reason.\n";
    format!(
        "# xtask\n\nThis folder is a copy of xtask {version}, commit {}, from {}.\nDo not edit it. To update it, run \
         `cargo xtask adopt PATH-OF-THIS-REPOSITORY` in the repository that it comes from;\nedits are seen by the sums in \
         ADOPTED (`cd xtask && sha256sum -c ADOPTED`) and refused.\n{}\n    cargo xtask verify    check the repository as \
         ci/suite.toml says\n    cargo xtask plan      what that means: tasks, limits, the limits of callers\n    cargo xtask \
         --help    everything else\n",
        origin.commit,
        origin.from,
        if own { own_text } else { "" },
    )
}

/// The lock file of the copy's repository with what the copy needs: `theirs`, and those packages of `ours` of which there
/// is no compatible version yet. Cargo drops what it does not need and links the rest. Errors where one of them is no
/// lock file.
pub fn seeded(theirs: &str, ours: &str) -> anyhow::Result<String> {
    let packages = |text: &str| -> anyhow::Result<BTreeSet<(String, String)>> {
        let root = DeTable::parse(text).context("Cargo.lock")?;
        let list = root.get_ref().get("package").and_then(|list| list.get_ref().as_array());
        let of = |key: &str, value: &toml::de::DeValue<'_>| Some(value.get(key)?.get_ref().as_str()?.to_owned());
        let entry = |value: &toml::de::DeValue<'_>| Some((of("name", value)?, compatible(&of("version", value)?)));
        Ok(list.into_iter().flatten().filter_map(|value| entry(value.get_ref())).collect())
    };
    let there = packages(theirs)?;
    let mut text = theirs.trim_end().to_owned();
    for block in ours.split("\n[[package]]\n").skip(1) {
        let block = format!("[[package]]\n{}\n", block.trim_end());
        let known = packages(&block)?;
        if known.is_disjoint(&there) && block.contains("\nchecksum = ") {
            text += &format!("\n\n{}", block.trim_end());
        }
    }
    Ok(text + "\n")
}

// Versions with the same result can stand for each other: `1`, `0.3`, `0.0.4`.
fn compatible(version: &str) -> String {
    let numbers: Vec<&str> = version.split(['.', '+', '-']).take(3).collect();
    let significant = numbers.iter().position(|number| *number != "0").unwrap_or(2);
    numbers[..=significant.min(numbers.len() - 1)].join(".")
}

/// Whether every package of lock file `old` stands in `new` unchanged; otherwise the first that does not.
pub fn keeps(old: &str, new: &str) -> anyhow::Result<()> {
    let entries = |text: &str| -> BTreeSet<String> {
        let blocks = text.split("[[package]]\n").skip(1);
        // Which of several versions a dependency means is written out only where there are several.
        let line = |line: &str| line.split("\ndependencies = ").next().unwrap_or_default().trim().to_owned();
        blocks.map(line).collect()
    };
    let new = entries(new);
    if let Some(gone) = entries(old).into_iter().find(|entry| !new.contains(entry)) {
        let name = gone.lines().map(|line| line.split('"').nth(1).unwrap_or_default()).take(2).collect::<Vec<_>>();
        bail!("Cargo.lock would have another version of {}", name.join(" "));
    }
    Ok(())
}
