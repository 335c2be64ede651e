//! `adopt`: this program put into repositories of many shapes, made here.

use std::fs;
use std::path::{Path, PathBuf};

use crate::world::{Done, Folder, Running, World, skipped};

const SUITE: &str = "schema = 1\nrun.deadline = \"18m\"\n[task.a]\ncommand = \"true\"\ndeadline = \"1m\"\n";

/// A repository with this program's sources, as the place to adopt from, and another one to adopt into.
pub struct Pair {
    pub from: World,
    pub into: World,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder") {
            let entry = entry.expect("an entry");
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::create_dir_all(to.parent().expect("a parent")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    }
}

impl Pair {
    /// The files of the other repository: path and text.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let (from, into) = (World::new(SUITE), World::at("product", SUITE));
        let parts = [
            "Cargo.toml",
            "Cargo.lock",
            "rustfmt.toml",
            "clippy.toml",
            ".cargo",
            "ci",
            "xtask/Cargo.toml",
            "xtask/src",
        ];
        for part in parts {
            copy(&top().join(part), &from.repo.join(part));
        }
        from.write("xtask/tests/x.rs", "// stays here\n");
        from.git(&["remote", "add", "origin", "https://user:secret@example.invalid/xtask.git"]);
        from.commit("the program");
        into.git(&["rm", "-r", "--quiet", "."]);
        into.write(".gitignore", "/target\n");
        files.iter().for_each(|(path, text)| into.write(path, text));
        let pair = Self { from, into };
        if files.iter().any(|(path, _)| *path == "Cargo.toml") {
            pair.cargo(&["generate-lockfile", "--offline"]);
        }
        pair.into.commit("the product");
        pair
    }

    pub fn run(&self, world: &World, mut command: std::process::Command) -> Done {
        // The world's home is empty; cargo and rustup have theirs below the real one.
        let home = PathBuf::from(std::env::var_os("HOME").expect("a home"));
        for (name, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            command.env(name, std::env::var_os(name).unwrap_or_else(|| home.join(folder).into()));
        }
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_") || name == "CARGO_TARGET_DIR")
        {
            command.env_remove(name);
        }
        Running::start(command, &world.folder).wait()
    }

    pub fn adopt(&self, more: &[&str]) -> Done {
        let path = self.into.repo.to_str().expect("text");
        self.run(&self.from, self.from.command(&[&["adopt", path], more].concat()))
    }

    /// Runs cargo in the other repository; what it printed.
    pub fn cargo(&self, args: &[&str]) -> String {
        let done = self.try_cargo(".", args).expect(0);
        done.out + &done.err
    }

    /// Runs cargo in a folder of the other repository.
    pub fn try_cargo(&self, folder: &str, args: &[&str]) -> Done {
        let mut command = std::process::Command::new("cargo");
        for (name, value) in self.into.command(&[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(args).current_dir(self.into.repo.join(folder));
        self.run(&self.into, command)
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.into.repo.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    pub fn has(&self, path: &str) -> bool {
        self.into.repo.join(path).exists()
    }

    /// The names of packages, with versions, in a lock file of the other repository.
    fn locked(&self) -> Vec<String> {
        let text = self.read("Cargo.lock");
        text.split("[[package]]\n").skip(1).map(|b| b.lines().take(2).collect::<Vec<_>>().join(" ")).collect()
    }
}

pub const PACKAGE: &str = "[package]\nname = \"product\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
const TEST: &str = "#[test]\nfn holds() {}\n";

#[test]
fn a_single_package_becomes_the_root_of_a_workspace() {
    let manifest = format!("# ours\n{PACKAGE}\n[dependencies]\nserde_json = \"1\" # json\n");
    let pair = Pair::new(&[("Cargo.toml", &manifest), ("src/lib.rs", TEST), ("clippy.toml", "msrv = \"1.80\"\n")]);
    let before = pair.locked();
    pair.adopt(&[]).expect(0).says("create  xtask/src/main.rs").says("edit    Cargo.toml").says("git add --all");
    assert_eq!(pair.read("Cargo.toml"), format!("{manifest}\n[workspace]\nmembers = [\"xtask\"]\n"));
    let after = pair.locked();
    assert!(before.iter().all(|package| after.contains(package)), "{before:?}\n{after:?}");
    let config = pair.read(".cargo/config.toml");
    let alias = "xtask = \"run --quiet --locked --package xtask --profile xtask --\"";
    assert!(config.contains(alias) && config.contains("[profile.xtask]"), "{config}");
    assert!(config.contains("panic = \"unwind\""), "whatever their own profile says: {config}");
    assert!(!config.contains("RUST_TEST_THREADS"), "what is meant for our own tests: {config}");
    assert_eq!(fs::read_to_string(top().join(".cargo/config.toml")).expect("ours").matches(alias).count(), 1);
    let suite = pair.read("ci/suite.toml");
    for command in ["cargo check", "cargo clippy", "cargo test"] {
        assert!(suite.contains(&format!("\"{command} --workspace --exclude xtask")), "{suite}");
    }
    // What is copied: the program alone, and where it is from without what is secret.
    assert!(!pair.has("xtask/tests") && pair.has("xtask/rustfmt.toml") && pair.has("ci/allowed_signers"));
    let manifest = pair.read("xtask/Cargo.toml");
    assert!(
        !manifest.contains("dev-dependencies") && !manifest.contains("[lints]") && manifest.contains("[dependencies]")
    );
    let adopted = pair.read("xtask/ADOPTED");
    assert!(
        adopted.contains("from    https://example.invalid/xtask.git\n") && !adopted.contains("secret"),
        "{adopted}"
    );
    assert!(adopted.contains(&format!("commit  {}\n", pair.from.git(&["rev-parse", "HEAD"]))));
    let mut sums = std::process::Command::new("sha256sum");
    sums.args(["--quiet", "-c", "ADOPTED"]).current_dir(pair.into.repo.join("xtask"));
    assert!(sums.status().expect("sha256sum").success());
    // It is whole: cargo takes it with --locked, nothing is left untracked but what it should be, and it runs.
    pair.cargo(&["metadata", "--format-version", "1", "--locked", "--offline", "--no-deps"]);
    pair.into.commit("adopted");
    pair.cargo(&["update", "--workspace", "--locked", "--offline"]);
    pair.run(&pair.into, pair.into.command(&["plan"])).expect(0).says("outer");
    let done = pair.run(&pair.into, pair.into.command(&["verify", "--only", "test"])).expect(0);
    assert!(done.err.contains("PASSED"), "{}", done.err);
    assert_eq!(pair.into.git(&["status", "--porcelain"]), "", "the receipt is ignored");
    assert!(pair.cargo(&["test", "--workspace", "--offline"]).contains("1 passed"));
}

#[test]
fn the_copy_is_compiled_there_and_agrees_with_the_same_commands_by_hand() {
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", TEST)]);
    let by_hand = ["cargo check --workspace --all-targets --locked", "cargo test --workspace --locked"];
    let code = |command: &str| {
        let args: Vec<&str> = command.split(' ').skip(1).collect();
        pair.try_cargo(".", &args).code
    };
    assert_eq!(by_hand.map(code), [0, 0]);
    pair.cargo(&["build", "--locked"]);
    pair.adopt(&[]).expect(0);
    pair.into.commit("adopted");
    let built = pair.cargo(&["build", "--locked", "--verbose"]);
    assert!(built.contains("Fresh product v0.1.0") && !built.contains("Compiling"), "{built}");
    let tested = pair.cargo(&["test", "--workspace", "--locked", "--offline"]);
    assert!(
        tested.contains("1 passed") && tested.matches("test result").count() == 2,
        "no test of xtask runs: {tested}"
    );

    // The alias, from another folder than the root. What it compiles is kept for the next time, but for the copy itself.
    let target = format!("build.target-dir={:?}", Path::new(env!("CARGO_TARGET_TMPDIR")).join("adopted"));
    let verify = || pair.try_cargo("src", &["--config", &target, "xtask", "verify"]);
    let done = verify().expect(0).says("Passed     check").says("Passed     test");
    assert!(done.err.contains("PASSED     2 tasks") && pair.into.receipts().len() == 1, "{}", done.err);
    // One test broken on purpose: the same task by hand, and no other, fails.
    pair.into.write("src/lib.rs", &TEST.replace("{}", "{ panic!(\"on purpose\"); }"));
    pair.into.commit("a test that fails");
    assert_eq!(by_hand.map(|command| code(&command.replace("workspace", "workspace --exclude xtask"))), [0, 101]);
    verify()
        .expect(1)
        .says("Passed     check")
        .says("FAILED     1 passed, 1 failed")
        .says("first    test: src/lib.rs:2 (exit code 101)");
    pair.cargo(&["--config", &target, "clean", "--quiet", "--profile", "xtask", "--package", "xtask"]);
}

#[test]
fn a_virtual_workspace_keeps_its_comments_and_what_plain_commands_mean() {
    let root = "# ours\n[workspace]\nmembers = [\n    \"crates/*\", # all\n]\n\n[profile.dev]\ndebug = 1 # short\n";
    let one = "[package]\nname = \"one\"\nversion = \"0.1.0\"\nedition = \"2018\"\n";
    let two = "[package]\nname = \"two\"\nversion = \"0.1.0\"\nedition = \"2018\"\n[dependencies]\none = { path = \"../one\" }\n";
    let config = "# ours\n[alias] # short ways\nb = \"build\" # build\n\n[net]\nretry = 3\n";
    let pair = Pair::new(&[
        ("Cargo.toml", root),
        ("crates/one/Cargo.toml", one),
        ("crates/one/src/lib.rs", ""),
        ("crates/two/Cargo.toml", two),
        ("crates/two/src/main.rs", "fn main() {}"),
        (".cargo/config.toml", config),
        (".github/workflows/ci.yml", "run: cargo fmt --check && cargo clippy -- -D warnings && cargo nextest run\n"),
    ]);
    pair.adopt(&[]).expect(0);
    let expected = "# ours\n[workspace]\ndefault-members = [\"crates/one\", \"crates/two\"]\nresolver = \"1\"\nmembers = [\n    \
                    \"crates/*\", # all\n    \"xtask\",\n]\n\n[profile.dev]\ndebug = 1 # short\n";
    assert_eq!(pair.read("Cargo.toml"), expected);
    let edited = pair.read(".cargo/config.toml");
    assert!(
        edited.starts_with("# ours\n[alias] # short ways\nxtask = ")
            && edited.contains("b = \"build\" # build\n\n[net]")
    );
    let suite = pair.read("ci/suite.toml");
    for part in [
        "cargo fmt --all --check",
        "\"cargo clippy --workspace --exclude xtask --locked -- -D warnings\"",
        "cargo nextest run",
    ] {
        assert!(suite.contains(part), "no {part} in {suite}");
    }
    let run = pair.cargo(&["run", "--offline"]);
    assert!(run.contains("Compiling two") && !run.contains("xtask v0") && !run.contains("warning"), "{run}");
}

#[test]
fn it_has_a_workspace_of_its_own_where_membership_would_disturb() {
    let other = ("tools/gen/Cargo.toml", "[package]\nname = \"gen\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    let old = PACKAGE.replace("edition = \"2021\"", "edition = \"2018\"\nrust-version = \"1.56\"");
    let unlocked = "/target\nCargo.lock\n";
    let cases: [(&str, Vec<(&str, &str)>); 4] = [
        ("promises Rust 1.56", vec![("Cargo.toml", &old), ("src/lib.rs", "")]),
        ("not under version control", vec![("Cargo.toml", PACKAGE), ("src/lib.rs", ""), (".gitignore", unlocked)]),
        (
            "packages outside of the workspace",
            vec![("Cargo.toml", PACKAGE), ("src/lib.rs", ""), other, ("tools/gen/src/lib.rs", "")],
        ),
        ("cargo packages below its root, but none at it", vec![other, ("tools/gen/src/lib.rs", "")]),
    ];
    for (why, files) in cases {
        let pair = Pair::new(&files);
        pair.adopt(&[]).expect(0).says(why).says("works from the repository's root only");
        assert!(
            pair.into.git(&["status", "--porcelain", "--", "Cargo.toml", "Cargo.lock"]).is_empty(),
            "{why}: untouched"
        );
        assert!(pair.read("xtask/Cargo.toml").ends_with("\n[workspace]\n"));
        assert!(pair.read("xtask/README.md").contains("root of the repository only"));
        assert!(pair.read(".cargo/config.toml").contains("--manifest-path xtask/Cargo.toml --profile xtask --"));
        pair.into.commit("adopted");
        assert!(pair.into.git(&["ls-files"]).contains("xtask/Cargo.lock"), "{why}: the lock is kept");
        pair.cargo(&["update", "--workspace", "--locked", "--offline", "--manifest-path", "xtask/Cargo.toml"]);
        assert_eq!(
            pair.adopt(&[]).expect(0).err.lines().last().map(|l| l.contains("nothing to do")),
            Some(true),
            "{why}"
        );
    }
}

#[test]
fn what_its_own_cargo_leaves_behind_is_ignored() {
    let pair = Pair::new(&[
        ("gen/Cargo.toml", PACKAGE),
        ("gen/src/lib.rs", TEST),
        ("web/package.json", "{}"),
        (".gitignore", "# ours"),
    ]);
    pair.adopt(&[]).expect(0).says("edit    .gitignore");
    assert_eq!(pair.read(".gitignore"), "# ours\n/gen/Cargo.lock\n/gen/target\n/target\n");
    pair.into.commit("adopted");
    pair.run(&pair.into, pair.into.command(&["verify"])).expect(0).says("(clean tree)");
    assert!(pair.has("gen/Cargo.lock") && pair.into.git(&["status", "--porcelain"]).is_empty());
}

#[test]
fn a_repository_inside_of_a_workspace_leaves_that_workspace_as_it_is() {
    let inherits = PACKAGE.replace("\"0.1.0\"", "{ workspace = true }");
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", TEST), ("rustfmt.toml", "")]);
    pair.into.write("Cargo.toml", &inherits);
    pair.into.git(&["rm", "--quiet", "Cargo.lock"]);
    pair.into.commit("a member of what is around");
    let around = pair.into.repo.parent().expect("a parent").join("Cargo.toml");
    fs::write(&around, "[workspace]\nmembers = [\"product\"]\n[workspace.package]\nversion = \"0.1.0\"\n")
        .expect("written");
    let why = format!("the repository lies in the cargo workspace of {}", around.display());
    pair.adopt(&[]).expect(0).says(&why).says("works from the repository's root only");
    assert_eq!(pair.read("Cargo.toml"), inherits);
    let suite = pair.read("ci/suite.toml");
    for command in ["cargo fmt --check", "cargo check --all-targets", "cargo test"] {
        assert!(suite.contains(&format!("\"{command}\"")), "only its own packages: {suite}");
    }
    pair.cargo(&["metadata", "--format-version", "1", "--offline", "--no-deps"]);
    pair.cargo(&["update", "--workspace", "--locked", "--offline", "--manifest-path", "xtask/Cargo.toml"]);
    // A workspace around it that does not know it: cargo itself wants that mended first.
    fs::write(&around, "[workspace]\nmembers = []\n").expect("written");
    pair.into.commit("adopted");
    pair.adopt(&[]).expect(2).says("cargo cannot read the repository where it lies");
}

#[test]
fn a_repository_without_cargo_gets_a_workspace_and_a_suite_of_its_own_kind() {
    let package =
        "{\"scripts\": {\"test\": \"node --test\", \"lint\": \"eslint .\"}, \"devDependencies\": {\"eslint\": \"9\"}}";
    let project = "[tool.ruff]\nline-length = 100\n[tool.pytest.ini_options]\n";
    let pair = Pair::new(&[
        ("web/package.json", package),
        ("web/package-lock.json", "{}"),
        ("api/go.mod", "module x\n"),
        ("pyproject.toml", project),
        (".gitignore", "node_modules\n"),
    ]);
    pair.adopt(&[]).expect(0);
    assert_eq!(pair.read("Cargo.toml"), "[workspace]\nmembers = [\"xtask\"]\nresolver = \"3\"\n");
    assert_eq!(pair.read(".gitignore"), "node_modules\n/target\n");
    let suite = pair.read("ci/suite.toml");
    for part in [
        "[task.web-deps]\ncommand  = \"npm ci\"\ndir      = \"web\"",
        "[task.web-test]\ncommand  = \"npm run test\"",
        "needs    = [\"web-deps\"]",
        "[task.api-go-test]",
        "python3 -m ruff check .",
        "python3 -m pytest",
    ] {
        assert!(suite.contains(part), "no {part} in {suite}");
    }
    pair.into.commit("adopted");
    pair.cargo(&["update", "--workspace", "--locked", "--offline"]);
    let bare = Pair::new(&[("README", "nothing here\n")]);
    bare.adopt(&[]).expect(0);
    bare.into.commit("adopted");
    bare.run(&bare.into, bare.into.command(&["verify"])).expect(0);
    let make = Pair::new(&[("Makefile", "check: x\nx:\n\ttrue\ntest := 1\n")]);
    make.adopt(&[]).expect(0);
    assert!(make.read("ci/suite.toml").contains("make check") && !make.read("ci/suite.toml").contains("make test"));
}

#[test]
fn a_repository_of_node_is_verified_by_its_own_scripts() {
    let there = |program: &str| std::process::Command::new(program).arg("--version").output().is_ok();
    if !there("node") || !there("npm") {
        return skipped("a_repository_of_node_is_verified_by_its_own_scripts", "there is no node and npm");
    }
    let package = "{\"name\": \"product\", \"version\": \"1.0.0\", \"type\": \"module\", \"scripts\": \
                   {\"lint\": \"node --check index.js\", \"test\": \"node --test\", \"start\": \"node index.js\"}}\n";
    let test = "import test from 'node:test';\nimport { equal } from 'node:assert';\nimport { twice } from './index.js';\n\
                test('twice', () => equal(twice(2), 4));\n";
    let pair = Pair::new(&[
        ("package.json", package),
        ("index.js", "export const twice = (n) => 2 * n;\n"),
        ("index.test.js", test),
    ]);
    pair.adopt(&[]).expect(0);
    pair.into.commit("adopted");
    let verify = || pair.run(&pair.into, pair.into.command(&["verify"]));
    let done = verify().expect(0).says("Passed     node-lint").says("Passed     node-test");
    assert!(done.err.contains("PASSED     2 tasks at"), "{}", done.err);
    assert_eq!(pair.into.git(&["status", "--porcelain"]), "");
    pair.into.write("index.js", "export const twice = (n) => 3 * n;\n");
    pair.into.commit("a test that fails");
    verify().expect(1).says("FAILED     1 passed, 1 failed").says("first    node-test: ");
}

#[test]
fn code_that_talks_to_postgres_gets_one() {
    let manifest = format!("{PACKAGE}[features]\n# sqlx = {{ features = [\"postgres\"] }}\n");
    let silent = Pair::new(&[("Cargo.toml", &manifest), ("src/lib.rs", "")]);
    silent.adopt(&["--dry-run"]).expect(0);
    let talks = "[package]\nname = \"db\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[dependencies]\npostgres = { path = \"../pg\" }\n";
    let pair = Pair::new(&[
        ("Cargo.toml", "[workspace]\nmembers = [\"db\", \"pg\"]\nresolver = \"2\"\n"),
        ("db/Cargo.toml", talks),
        ("db/src/lib.rs", ""),
        ("db/migrations/1.sql", "select 1;"),
        ("pg/Cargo.toml", "[package]\nname = \"postgres\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"),
        ("pg/src/lib.rs", ""),
    ]);
    pair.adopt(&[]).expect(0);
    let suite = pair.read("ci/suite.toml");
    assert!(suite.contains("[service.postgres]\nversion    = \">=14\"\nmigrations = \"db/migrations\"\n"), "{suite}");
    assert!(suite.contains("services = [\"postgres\"]"), "{suite}");
}

#[test]
fn a_dry_run_names_every_file_and_touches_none() {
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", "")]);
    // Others of this machine may have no business in what the clone, in which it is tried, is of.
    let home = pair.from.folder.path().join("home");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join(".gitconfig"), format!("[core]\nhooksPath = {}\n", home.display())).unwrap();
    crate::world::script(&home.join("post-checkout"), "#!/bin/sh\nstat -c %a .. >~/mode\n");
    let dry = pair.adopt(&["--dry-run"]).expect(0).says("would be touched; none was");
    assert_eq!(fs::read_to_string(home.join("mode")).unwrap(), "700\n");
    assert_eq!(pair.into.git(&["status", "--porcelain", "--ignored"]), "");
    let named = |done: &Done| -> Vec<String> {
        done.err.lines().filter(|line| line.starts_with("  ")).map(str::to_owned).collect()
    };
    let real = pair.adopt(&[]).expect(0);
    assert_eq!(named(&dry), named(&real));
    pair.into.git(&["add", "--all"]);
    let touched = pair.into.git(&["diff", "--cached", "--name-only"]).lines().count();
    assert_eq!(touched, named(&real).len(), "what was named is what was touched");
}

#[test]
fn again_it_updates_the_program_and_leaves_the_suite_alone() {
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", "")]);
    pair.adopt(&[]).expect(0);
    pair.into.write("ci/suite.toml", SUITE);
    fs::remove_file(pair.into.repo.join("ci/recipes/verify.sh")).expect("a recipe");
    pair.into.commit("adopted and made ours");
    pair.adopt(&[]).expect(0).says("has this very program already; nothing to do");
    pair.from.write("xtask/src/extra.rs", "//! More.\n");
    fs::rename(pair.from.repo.join("xtask/src/digest.rs"), pair.from.repo.join("xtask/src/digests.rs"))
        .expect("a move");
    pair.from.commit("a new version");
    let done = pair
        .adopt(&[])
        .expect(0)
        .says("create  xtask/src/extra.rs")
        .says("remove  xtask/src/digest.rs")
        .says("edit    xtask/ADOPTED");
    assert!(
        !done.err.contains("ci/") && !done.err.contains("Cargo.toml") && !done.err.contains("config.toml"),
        "{}",
        done.err
    );
    assert_eq!(pair.read("ci/suite.toml"), SUITE);
    assert!(!pair.has("ci/recipes/verify.sh") && !pair.has("xtask/src/digest.rs"));
    pair.into.commit("updated");
    pair.into.write("xtask/src/main.rs", "fn main() {}\n");
    pair.into.write("xtask/src/mine.rs", "\n");
    pair.into.commit("edited");
    pair.adopt(&[]).expect(2).says("the copy was edited here").says("xtask/src/main.rs, xtask/src/mine.rs");
}

#[test]
fn what_it_must_not_touch_it_refuses() {
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", "")]);
    let refused = |says: &str| {
        let before = pair.into.git(&["status", "--porcelain"]);
        pair.adopt(&[]).expect(2).says(says);
        assert_eq!(pair.into.git(&["status", "--porcelain"]), before, "nothing was touched");
    };
    pair.into.write("new", "x");
    refused("has uncommitted changes (new)");
    pair.into.commit("new");
    pair.into.write("xtask/README", "ours\n");
    pair.into.commit("a folder of that name");
    refused("xtask/README is there already and no part of a copy");
    pair.into.git(&["rm", "-r", "--quiet", "xtask"]);
    pair.into.write(".cargo/config.toml", "[alias]\nxtask = \"run -p tasks --\"\n");
    pair.into.commit("an alias of that name");
    refused(".cargo/config.toml: `alias.xtask` is there already");
    pair.into.git(&["rm", "-r", "--quiet", ".cargo"]);
    pair.into.write(".gitignore", "/target\nci/\n");
    pair.into.commit("ignores ci");
    refused("would keep these out of the repository: ci/");
    pair.into.write(".gitignore", "/target\n");
    pair.into.write("Cargo.toml", "[package\n");
    pair.into.commit("broken");
    refused("cargo cannot read the repository as it is");
    pair.into.git(&["revert", "--no-edit", "HEAD"]);
    pair.from.write("xtask/src/main.rs", "fn main() {}\n");
    refused("commit them first, because the copy says which commit it is of");
    pair.from.git(&["checkout", "--quiet", "."]);
    let nowhere = Folder::new();
    let path = nowhere.path().to_str().expect("text").to_owned();
    pair.run(&pair.from, pair.from.command(&["adopt", &path])).expect(2).says("no git work tree");
    let own = pair.from.repo.to_str().expect("text").to_owned();
    pair.run(&pair.from, pair.from.command(&["adopt", &own])).expect(2).says("is the repository to copy from");
    let plain = World::new(SUITE);
    let into = pair.into.repo.to_str().expect("text").to_owned();
    pair.run(&plain, plain.command(&["adopt", &into])).expect(2).says("to copy from");
}
