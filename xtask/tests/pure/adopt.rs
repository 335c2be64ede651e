//! Edits of other people's TOML files.

use xtask::command::adopt::edit::{push, replace, set};
use xtask::command::adopt::program::{keeps, seeded};
use xtask::command::adopt::starter::{Found, Starter, suite};

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

#[test]
fn a_value_is_replaced_where_it_stands() {
    let new = replace("[alias] # short\nb = \"build\"\nxtask = \"run\" # ours\n", &["alias"], "xtask", "\"walk\"");
    assert_eq!(new.as_deref(), Ok("[alias] # short\nb = \"build\"\nxtask = \"walk\" # ours\n"));
    assert_eq!(
        replace("alias.xtask = 'run'\n", &["alias"], "xtask", "\"walk\"").as_deref(),
        Ok("alias.xtask = \"walk\"\n")
    );
    for other in ["", "[alias]\nb = \"build\"\n", "[alias]\nxtask = [\"run\"]\n", "[alias\n"] {
        assert!(replace(other, &["alias"], "xtask", "\"walk\"").is_err(), "{other}");
    }
}

/// The starter of a repository with these files.
#[track_caller]
fn starter(files: &[(&str, &str)]) -> Starter {
    let read = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned());
    let names = files.iter().map(|(path, _)| (*path).to_owned()).collect();
    suite(&Found { files: names, read: &read, member: true, below: false }).expect("a suite")
}

/// The commands of its tasks, in order.
fn commands(starter: &Starter) -> Vec<&str> {
    starter.text.lines().filter_map(|line| line.strip_prefix("command  = \"")?.strip_suffix('"')).collect()
}

#[track_caller]
fn notes(files: &[(&str, &str)], expected: &[&str]) {
    let found = starter(files);
    assert_eq!(found.notes.len(), expected.len(), "{:#?}", found.notes);
    for (note, part) in found.notes.iter().zip(expected) {
        assert!(note.contains(part), "no {part:?} in {note:?}");
    }
}

const CHECK: &str = "cargo check --workspace --exclude xtask --all-targets";
const CLIPPY: &str = "cargo clippy --workspace --exclude xtask";

#[test]
fn clippy_is_called_as_the_repository_calls_it() {
    let clippy = |ci: &str| {
        let found = starter(&[("Cargo.toml", ""), (".github/workflows/ci.yml", ci)]);
        commands(&found).into_iter().find(|command| command.contains("clippy")).map(str::to_owned)
    };
    let cases = [
        ("run: cargo clippy", ""),
        ("run: cargo clippy -- -D warnings", " -- -D warnings"),
        (
            "run: cargo clippy --all-targets --all-features -- -D warnings && cargo test",
            " --all-targets --all-features -- -D warnings",
        ),
        ("run: |\n  cargo clippy --workspace --tests \\\n    -- -D warnings # all\n", " --tests -- -D warnings"),
        ("run: cargo clippy -- -D $LINTS", ""),
        ("run: \"cargo clippy --locked\"\n# -D warnings --all-targets", ""),
        ("uses: clippy-action", ""),
    ];
    for (ci, more) in cases {
        assert_eq!(clippy(ci), Some(format!("{CLIPPY}{more}")), "{ci}");
    }
    assert_eq!(clippy("run: cargo test"), None);
    let own = starter(&[("Cargo.toml", ""), ("clippy.toml", "")]);
    assert!(commands(&own).contains(&CLIPPY), "{}", own.text);
}

#[test]
fn benches_for_a_nightly_compiler_are_not_checked() {
    let bench = |text| starter(&[("Cargo.toml", ""), ("benches/all.rs", text)]);
    assert!(commands(&bench("fn main() {}\n")).contains(&CHECK));
    assert!(commands(&bench("#![feature(test)]\n")).contains(&CHECK.trim_end_matches(" --all-targets")));
}

#[test]
fn code_that_talks_to_postgres_is_checked_against_it() {
    let service = |more: &[(&str, &str)]| {
        let manifest = "[dependencies]\nsqlx = { version = \"0.8\", features = [\"postgres\"] }\n";
        starter(&[&[("Cargo.toml", manifest)], more].concat())
    };
    let lines = |found: &Starter| {
        let table = found.text.split("[service.postgres]\n").nth(1).expect("a service").split("\n\n").next();
        table.expect("it ends").lines().map(|line| line.replace("  ", "")).collect::<Vec<_>>().join("; ")
    };
    let bare = service(&[]);
    assert_eq!(lines(&bare), "version= \">=14\"");
    assert!(!bare.text.contains("sqlx prepare"), "{}", bare.text);
    let diesel = service(&[("db/migrations/1/up.sql", ""), ("db/migrations/1/down.sql", "")]);
    assert_eq!(lines(&diesel), "version= \">=14\"; setup= \"diesel migration run\"");
    let queries = service(&[(".sqlx/query-1.json", ""), ("migrations/1.sql", "")]);
    assert_eq!(lines(&queries), "version= \">=14\"; migrations = \"migrations\"");
    let task = queries.text.split("[task.sqlx]\n").nth(1).expect("a task");
    assert!(task.starts_with("command  = \"cargo sqlx prepare --check --workspace\"\n"), "{task}");
    assert!(task.split("\n\n").next().expect("it ends").contains("services = [\"postgres\"]"), "{task}");
}

#[test]
fn python_is_called_as_the_project_is_run() {
    let project = |more: &[(&str, &str)]| {
        let found = starter(&[&[("pyproject.toml", "[tool.mypy]\n"), ("tests/test_a.py", "")], more].concat());
        commands(&found).join("; ")
    };
    assert_eq!(project(&[]), "python3 -m mypy .; python3 -m unittest discover");
    assert_eq!(project(&[("uv.lock", "")]), "uv run --locked mypy .; uv run --locked python3 -m unittest discover");
    assert_eq!(
        project(&[("poetry.lock", ""), ("pytest.ini", "")]),
        "poetry run mypy .; poetry run pytest -p no:cacheprovider"
    );
}

#[test]
fn tasks_of_folders_that_differ_in_a_dot_have_names_of_their_own() {
    let package = "{\"scripts\": {\"test\": \"x\"}}";
    let found = starter(&[("go.mod", ""), ("a-b/package.json", package), ("a.b/package.json", package)]);
    let names: Vec<&str> =
        found.text.lines().filter(|line| line.starts_with("[task.") && line.contains("a-b")).collect();
    assert_eq!(names, ["[task.a-b-test]", "[task.x-a-b-test]"]);
}

#[test]
fn what_is_passed_over_is_named() {
    notes(&[("Cargo.toml", ""), ("src/rust/Cargo.toml", ""), ("xtask/a/Cargo.toml", "")], &[]);
    notes(
        &[("src/rust/Cargo.toml", ""), ("src/rust/sub/Cargo.toml", "")],
        &["src/rust/Cargo.toml; a task for it needs dir", "nothing was found to check"],
    );
    let many = ["a", "b", "c", "d"].map(|dir| format!("{dir}/go.mod"));
    notes(&many.each_ref().map(|path| (path.as_str(), "")), &["a third of its kind: d/go.mod;"]);
    notes(&[("go.mod", ""), ("web/package.json", "{")], &["web/package.json was passed over: it cannot be read"]);
    notes(
        &[("go.mod", ""), ("package.json", "{\"scripts\": {\"start\": \"x\"}}")],
        &["package.json was passed over: it has no script lint"],
    );
    notes(&[("go.mod", ""), ("pyproject.toml", "[tool.x]\n")], &["pyproject.toml was passed over: no ruff"]);
    notes(&[("go.mod", ""), ("Makefile", "check: x\n")], &["Makefile was passed over, with its targets check"]);
    notes(&[("Makefile", "all:\n")], &["Makefile was passed over: it has no target", "nothing was found to check"]);
    notes(&[("README", "")], &["nothing was found to check"]);
}

#[test]
fn targets_are_found_however_their_rules_are_written() {
    let made = |text: &str| {
        let found = starter(&[("Makefile", text)]);
        commands(&found).iter().filter_map(|command| command.strip_prefix("make ")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(made("test lint: deps\n"), "lint test");
    assert_eq!(made("check :\n\ttrue\n"), "check");
    assert_eq!(made("test:: x\n"), "test");
    assert_eq!(made("test := 1\nlint ::= 2\ncheck:=3\n\techo test: x\n# test: x\nU = test lint:8\n"), "");
}
