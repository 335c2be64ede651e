//! Edits of other people's TOML files.

use xtask::command::adopt::edit::{push, set};
use xtask::command::adopt::program::{keeps, seeded};

#[track_caller]
fn pushed(before: &str, after: &str) {
    assert_eq!(push(before, &["workspace", "members"], "xtask").as_deref(), Ok(after));
}

#[track_caller]
fn aliased(before: &str, after: &str) {
    assert_eq!(set(before, &["alias"], "xtask", "\"run\"").as_deref(), Ok(after));
}

#[test]
fn a_member_is_put_where_the_others_are() {
    pushed("[workspace]\nmembers = [\"a\"]\n", "[workspace]\nmembers = [\"a\", \"xtask\"]\n");
    pushed("[workspace]\nmembers = [\"a\", ] # c\n", "[workspace]\nmembers = [\"a\", \"xtask\", ] # c\n");
    pushed("[workspace]\nmembers = []\n", "[workspace]\nmembers = [\"xtask\"]\n");
    pushed("workspace.members = ['a']\n", "workspace.members = ['a', \"xtask\"]\n");
    pushed("workspace = { members = [\"a\"] }\n", "workspace = { members = [\"a\", \"xtask\"] }\n");
    pushed(
        "# top\n[workspace]\nmembers = [\n    \"a\", # first\n    \"crates/*\", # rest\n]\n\n[profile.dev]\n",
        "# top\n[workspace]\nmembers = [\n    \"a\", # first\n    \"crates/*\", # rest\n    \"xtask\",\n]\n\n[profile.dev]\n",
    );
    pushed(
        "[workspace]\nmembers = [\n\t\"a\",\n\t\"b\" # last, no comma\n\t# end\n]\n",
        "[workspace]\nmembers = [\n\t\"a\",\n\t\"b\", # last, no comma\n\t\"xtask\"\n\t# end\n]\n",
    );
    pushed("[workspace]\nmembers = [\"a\",\n  \"b\"]\n", "[workspace]\nmembers = [\"a\",\n  \"b\", \"xtask\"]\n");
    pushed(
        "[workspace]\r\nmembers = [\r\n  \"a\",\r\n]\r\n",
        "[workspace]\r\nmembers = [\r\n  \"a\",\r\n  \"xtask\",\r\n]\r\n",
    );
    assert!(push("[workspace]\n", &["workspace", "members"], "xtask").is_err());
    assert!(push("workspace.members = 3\n", &["workspace", "members"], "xtask").is_err());
    assert!(push("[workspace\n", &["workspace", "members"], "xtask").is_err());
}

#[test]
fn an_alias_is_put_where_the_others_are() {
    aliased("", "[alias]\nxtask = \"run\"\n");
    aliased("# mine\n[build]\njobs = 2", "# mine\n[build]\njobs = 2\n\n[alias]\nxtask = \"run\"\n");
    aliased(
        "[alias] # short ways\n# b is for build\nb = \"build\"\n\n[net]\nretry = 2\n",
        "[alias] # short ways\nxtask = \"run\"\n# b is for build\nb = \"build\"\n\n[net]\nretry = 2\n",
    );
    aliased("[alias]", "[alias]\nxtask = \"run\"\n");
    aliased("alias = { b = \"build\" } # x\n", "alias = { xtask = \"run\", b = \"build\" } # x\n");
    aliased("alias = {}\n", "alias = { xtask = \"run\"}\n");
    aliased(
        "# top\nalias.b = \"build\"\nbuild.jobs = 2\n",
        "# top\nalias.xtask = \"run\"\nalias.b = \"build\"\nbuild.jobs = 2\n",
    );
    aliased("[alias]\nxtask = \"run\" # there\n", "[alias]\nxtask = \"run\" # there\n");
    for other in ["[alias]\nxtask = \"walk\"\n", "[alias]\nxtask = [\"run\"]\n", "[alias.xtask]\nx = 1\n"] {
        let error = set(other, &["alias"], "xtask", "\"run\"").expect_err("it is taken");
        assert!(error.contains("`alias.xtask` is there already"), "{error}");
    }
}

#[test]
fn what_cannot_be_proved_is_not_done() {
    for odd in ["alias = 3\n", "[[alias]]\nb = \"build\"\n", "x = \"\"\"\n[alias]\n\"\"\"\n[alias.b]\nc = 1\n"] {
        match set(odd, &["alias"], "xtask", "\"run\"") {
            Err(_) => {}
            Ok(new) => {
                let parsed = xtask::command::adopt::edit::flat(&new).expect("TOML");
                assert_eq!(parsed["alias.xtask"], "s:run", "{new}");
            }
        }
    }
    let nested = set("[profile.dev]\ndebug = 0\n", &["profile", "xtask"], "inherits", "\"dev\"").expect("a new table");
    assert_eq!(nested, "[profile.dev]\ndebug = 0\n\n[profile.xtask]\ninherits = \"dev\"\n");
    let text =
        set("[alias]\nb = \"x\"\n", &["profile", "xtask", "package", "sha2"], "opt-level", "3").expect("a new table");
    assert_eq!(text, "[alias]\nb = \"x\"\n\n[profile.xtask.package.sha2]\nopt-level = 3\n");
}

const THEIRS: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.2.0\"\nsource = \"r\"\nchecksum = \"1\"\n\n\
                      [[package]]\nname = \"own\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n";

#[test]
fn a_lock_file_gets_what_it_has_no_compatible_version_of() {
    let block = |name: &str, version: &str| {
        format!("\n[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"r\"\nchecksum = \"2\"\n")
    };
    let ours = format!(
        "version = 4\n{}{}{}{}\n[[package]]\nname = \"xtask\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n",
        block("a", "1.9.9"),
        block("a", "2.0.0"),
        block("b", "0.3.1"),
        block("own", "0.0.7"),
    );
    let lock = seeded(THEIRS, &ours).expect("lock files");
    assert!(lock.starts_with(THEIRS.trim_end()), "{lock}");
    let added = lock[THEIRS.trim_end().len()..].matches("version = ").count();
    assert!(added == 3 && !lock.contains("1.9.9") && !lock.contains("\"xtask\""), "{lock}");
    keeps(THEIRS, &lock).expect("nothing moved");
    let again = seeded(&lock, &ours).expect("lock files");
    assert_eq!(again, lock, "a second time adds nothing");
}

#[test]
fn a_version_that_moves_or_goes_is_seen() {
    keeps("", THEIRS).expect("nothing to keep");
    let linked = THEIRS.replace("dependencies = [\n \"a\",\n]", "dependencies = [\n \"a 1.2.0\",\n \"b\",\n]");
    keeps(THEIRS, &linked).expect("how packages are linked may be written out");
    for (moved, what) in [(THEIRS.replace("1.2.0", "1.2.1"), "a 1.2.0"), (THEIRS.replace("\"1\"", "\"3\""), "a 1.2.0")]
    {
        let error = keeps(THEIRS, &moved).expect_err("it moved").to_string();
        assert!(error.ends_with(&format!("another version of {what}")), "{error}");
    }
    assert!(keeps(THEIRS, "version = 4\n").is_err());
}
