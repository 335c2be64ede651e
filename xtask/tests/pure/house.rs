//! The house is in order: every module on its floor, the pure floors pure, unsafe code in one place.

use std::fs;
use std::path::{Path, PathBuf};

/// Module, floor, pure. The longest path that fits a file counts, so that a pure room can stand in a higher house. A
/// module uses floors below its own, and on its own floor those that stand before it here; on floor 4, where each owns
/// one resource, it uses none beside it.
const FLOORS: &[(&str, u32, bool)] = &[
    ("clean", 0, true),
    ("digest", 0, true),
    ("time", 0, true),
    ("name", 0, true),
    ("verdict", 0, true),
    ("suite", 1, true),
    ("event", 1, true),
    ("record", 1, true),
    ("plan", 2, true),
    ("receipt", 2, true),
    ("lock/banner", 2, true),
    ("lock/news", 2, true),
    ("lock/wait", 2, true),
    ("sys", 3, false),
    ("archive", 4, false),
    ("interrupt", 4, false),
    ("lock", 4, false),
    ("printer", 4, false),
    ("process", 4, false),
    ("repo", 4, false),
    ("scratch", 4, false),
    ("seal", 4, false),
    ("wire", 4, false),
    ("service", 5, false),
    ("run", 5, false),
    ("keeper", 5, false),
    ("report", 6, true),
    ("command", 7, false),
    ("cli", 8, false),
    ("lib", 9, false),
    ("main", 9, false),
];
const RESOURCES: u32 = 4;

/// What a pure module may not name, and where it belongs.
const IMPURE: &[(&str, &str)] = &[
    ("std::fs", "a module of floor 4"),
    ("std::net", "lock/"),
    ("std::process", "process/"),
    ("std::thread", "floor 4 or 5"),
    ("std::env", "command/, and the value as an argument"),
    ("std::os", "floor 4"),
    ("Instant::now", "the argument `now`"),
    ("SystemTime::now", "the argument `now`"),
    ("crate::sys", "the argument `now`"),
    ("println!", "returning text"),
    ("eprint", "returning text"),
];

fn sources() -> Vec<(PathBuf, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![top.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push((path.strip_prefix(&top).unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 20, "only {} files found", found.len());
    found
}

fn floor_of(path: &str) -> Option<(&'static str, u32, bool)> {
    let inside = |module: &str| path == module || path.strip_prefix(module).is_some_and(|rest| rest.starts_with('/'));
    FLOORS.iter().filter(|(module, ..)| inside(module)).max_by_key(|(module, ..)| module.len()).copied()
}

fn position(room: &str) -> Option<usize> {
    FLOORS.iter().position(|(module, ..)| *module == room)
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// `crate::a::b` in a line of code as `a/b`.
fn mentions(line: &str) -> Vec<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let parts = code(line).split("crate::").skip(1);
    parts.map(|rest| rest.split(|c| !plain(c)).next().unwrap_or_default().replace("::", "/")).collect()
}

fn complaints(path: &str, text: &str) -> Vec<String> {
    let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let Some((room, floor, pure)) = floor_of(module) else {
        return vec![format!("{path}: no floor; give it one in the table of this test and in lib.rs")];
    };
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = format!("{path}:{}", number + 1);
        for used in mentions(line) {
            let Some((theirs, below, _)) = floor_of(&used) else { continue };
            let same_house = theirs.split('/').next() == room.split('/').next();
            let stands_before = position(theirs) < position(room) && floor != RESOURCES;
            if !same_house && below >= floor && !(below == floor && stands_before) {
                wrong.push(format!(
                    "{place}: {room} (floor {floor}) uses {theirs} (floor {below}), which is not below it"
                ));
            }
        }
        for (word, instead) in IMPURE.iter().filter(|(word, _)| pure && code(line).contains(word)) {
            wrong.push(format!("{place}: {room} is pure and names {word}; use {instead}"));
        }
        if room != "sys" && code(line).contains("unsafe ") {
            wrong.push(format!("{place}: unsafe code belongs in sys.rs"));
        }
    }
    let lines = text.lines().count();
    if lines > 500 {
        wrong.push(format!("{path}: {lines} lines; 500 is the most"));
    }
    if ["util", "utils", "helpers", "common"].iter().any(|name| module.ends_with(name)) {
        wrong.push(format!("{path}: name it after what it owns"));
    }
    if !text.starts_with("//!") {
        wrong.push(format!("{path}: begins without saying what the module owns"));
    }
    wrong
}

#[test]
fn every_module_is_on_its_floor() {
    let wrong: Vec<String> =
        sources().iter().flat_map(|(path, text)| complaints(&path.to_string_lossy(), text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_check_sees_what_it_is_for() {
    let sees = |path: &str, line: &str| complaints(path, &format!("//! Doc.\n{line}\n")).len();
    assert_eq!(sees("plan/slots.rs", "use crate::name::Name;"), 0);
    assert_eq!(sees("plan/slots.rs", "use crate::lock::wait::News;"), 1);
    assert_eq!(sees("name.rs", "use crate::time::Moment;"), 0, "stands before it");
    assert_eq!(sees("time.rs", "use crate::name::Name;"), 1, "stands after it");
    assert_eq!(sees("lock/wait.rs", "use crate::sys::now;"), 2, "above, and a clock");
    assert_eq!(sees("lock/wait.rs", "use crate::lock::HeldLock;"), 0, "a room of the same house");
    assert_eq!(sees("keeper.rs", "use crate::run::Order;"), 0, "stands before it");
    assert_eq!(sees("archive.rs", "use crate::repo::Repo;"), 1, "beside");
    assert_eq!(sees("suite/parse.rs", "let text = std::fs::read(path);"), 1);
    assert_eq!(sees("suite/parse.rs", "// std::fs is not for us"), 0);
    assert_eq!(sees("report/html.rs", "println!()"), 1);
    assert_eq!(sees("keeper.rs", "unsafe { x() }"), 1);
    assert_eq!(sees("command/util.rs", ""), 1);
    assert_eq!(complaints("keeper.rs", "use x;").len(), 1);
    assert_eq!(complaints("nowhere.rs", "//! Doc.").len(), 1);
    assert_eq!(complaints("keeper.rs", &format!("//! Doc.\n{}", "\n".repeat(500))).len(), 1);
}
