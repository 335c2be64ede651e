//! The crates that the program is made of: under licences that everybody can live with, and none that no line needs.
//! Nothing is fetched: what was there to build this test is enough.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Any of them will do, alone or as one of several to choose from.
const LICENCES: [&str; 3] = ["MIT", "Apache-2.0", "Unicode-3.0"];

fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let out = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
}

/// What cargo says of every crate in Cargo.lock; or where only those were fetched that this system needs, of them.
fn packages() -> Vec<Value> {
    let ask = |more: &[&str]| {
        let args = ["metadata", "--locked", "--offline", "--format-version", "1"];
        output(env!("CARGO"), &[&args[..], more].concat())
    };
    let here = |_| {
        let rustc = output("rustc", &["-vV"]).unwrap();
        ask(&["--filter-platform", rustc.lines().find_map(|line| line.strip_prefix("host: ")).unwrap()])
    };
    let mut metadata: Value = serde_json::from_str(&ask(&[]).or_else(here).unwrap()).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

/// Whether a licence in SPDX's terms (or cargo's old ones, with a slash) can be met by what is listed. Never too generous:
/// where `OR` stands around an `AND` it asks for more than it must.
fn is_fine(licence: &str) -> bool {
    let listed = |one: &str| LICENCES.contains(&one.trim().trim_matches(['(', ')']));
    licence.replace('/', " OR ").split(" AND ").all(|part| part.split(" OR ").any(listed))
}

/// Whether a line of code names something of that crate.
fn uses(code: &str, name: &str) -> bool {
    let path = format!("{}::", name.replace('-', "_"));
    let of_another = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'));
    code.lines().filter_map(|line| line.split("//").next()).any(|line| {
        let mut found = line.match_indices(&path);
        found.any(|(at, _)| !of_another(&line[..at]))
    })
}

fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() }).collect()
}

#[test]
fn every_licence_is_one_of_those_listed() {
    let packages = packages();
    let others: Vec<_> = packages.iter().filter(|package| !package["source"].is_null()).collect();
    assert!(others.len() > 20, "only {} crates", others.len());
    let licence = |package: &Value| package["license"].as_str().unwrap_or("no licence").to_owned();
    let bad = others.iter().filter(|package| !is_fine(&licence(package)));
    let bad: Vec<String> = bad.map(|package| format!("{}: {}", package["name"], licence(package))).collect();
    assert!(bad.is_empty(), "licences that are not in LICENCES:\n{}", bad.join("\n"));
}

#[test]
fn every_dependency_is_used() {
    let code = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let packages = packages();
    let own = packages.iter().find(|package| package["name"] == env!("CARGO_PKG_NAME")).unwrap();
    let listed = own["dependencies"].as_array().unwrap().iter().filter(|one| one["kind"].is_null());
    let names: Vec<&str> = listed.map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.len() > 5, "only {names:?}");
    let unused: Vec<&str> = names.into_iter().filter(|name| !uses(&code, name)).collect();
    assert!(unused.is_empty(), "no line of xtask/src uses {unused:?}");
}

/// Whoever wants to know what is known against a crate has to ask the network, and is told so.
#[test]
fn advisories_are_said_to_be_skipped() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md")).unwrap();
    assert!(page.contains("`cargo deny check advisories`"), "ARCHITECTURE.md has to say how advisories are checked");
}

#[test]
fn the_checks_see_what_they_are_for() {
    for fine in ["MIT", "MIT/Apache-2.0", "Unlicense OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
        assert!(is_fine(fine), "{fine}");
    }
    for bad in ["", "no licence", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR Zlib) AND (ISC OR Zlib)", "MIT-0"] {
        assert!(!is_fine(bad), "{bad}");
    }
    assert!(uses("use signal_hook::low_level;", "signal-hook") && uses("let x = libc::O_RDWR;", "libc"));
    for line in ["nix::libc::O_RDWR", "// libc::O_RDWR", "use mylibc::x;", "let libc = 1;"] {
        assert!(!uses(line, "libc"), "{line}");
    }
}
