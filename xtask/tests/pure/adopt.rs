//! Edits of other people's TOML files.

use xtask::command::adopt::edit::{push, set};

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
