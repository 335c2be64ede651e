//! The first suite of a repository, from what lies in it. It is a start for people to go on from, and is right from the
//! first run: each task is a command that somebody would run there by hand.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::Value;

use super::SUITE;
use super::disk::few;
use crate::name::Name;
use crate::suite::Suite;

// The files by which a kind of project is known.
const MANIFESTS: [&str; 4] = ["Cargo.toml", "package.json", "pyproject.toml", "go.mod"];
const SCRIPTS: [&str; 7] = ["lint", "format:check", "typecheck", "type-check", "check", "test", "build"];

/// What lies in a repository.
pub struct Found<'a> {
    /// Its tracked files.
    pub files: BTreeSet<String>,
    /// The text of one of them, if it is text.
    pub read: &'a dyn Fn(&str) -> Option<String>,
    /// Whether xtask is a member of its cargo workspace.
    pub member: bool,
    /// Whether the repository lies in a cargo workspace that begins above it, whose other packages are not its business.
    pub below: bool,
}

/// The first suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Starter {
    /// The text of ci/suite.toml.
    pub text: String,
    /// What was seen and passed over, and what that means; one line each, for people.
    pub notes: Vec<String>,
}

/// The suite for what lies there.
pub fn suite(found: &Found<'_>) -> anyhow::Result<Starter> {
    let mut draft = Draft::default();
    for dir in found.tops("Cargo.toml") {
        draft.rust(found, &dir);
    }
    for dir in found.tops("package.json") {
        draft.node(found, &dir);
    }
    for dir in found.tops("pyproject.toml") {
        draft.python(found, &dir);
    }
    for dir in found.tops("go.mod") {
        draft.task(&dir, "go-vet", "go vet ./...", 5, "");
        draft.task(&dir, "go-test", "go test ./...", 15, "cpus     = \"all\"\n");
    }
    draft.make(found);
    let over: Vec<String> = MANIFESTS.iter().flat_map(|name| found.passed_over(name)).collect();
    if !over.is_empty() {
        let what = "deeper than one folder, or after a third of its kind";
        draft.notes.push(format!("passed over in {SUITE}, {what}: {}; a task for it needs dir = \"…\"", few(&over)));
    }
    if draft.tasks.is_empty() {
        draft.head += "# Nothing was found to check. Put the command here by which you know that a change is good.\n";
        draft.task("", "check", "git --no-pager diff --check", 1, "");
        draft.notes.push(format!(
            "nothing was found to check: the one task of {SUITE} looks at white space and passes whatever was changed; put \
             the command there by which you know that a change is good"
        ));
    }
    let text = draft.text();
    Suite::parse(&text).map_err(|errors| anyhow::anyhow!("{}", errors.display(SUITE))).context("the starter")?;
    Ok(Starter { text, notes: draft.notes })
}

impl Found<'_> {
    fn has(&self, dir: &str, name: &str) -> bool {
        self.files.contains(&join(dir, name))
    }

    fn text(&self, dir: &str, name: &str) -> String {
        let path = join(dir, name);
        if self.files.contains(&path) { (self.read)(&path).unwrap_or_default() } else { String::new() }
    }

    /// The folders that have such a file and lie below no other that does; the root is "". At most one folder deep, and three.
    pub fn tops(&self, name: &str) -> Vec<String> {
        let mut tops = self.all_tops(name);
        // A fourth is an example or a fixture more often than a product.
        tops.retain(|dir| !dir.contains('/'));
        tops.truncate(3);
        tops
    }

    // The files of that name that stand for something of which no folder of `tops` is part.
    fn passed_over(&self, name: &str) -> Vec<String> {
        let tops = self.tops(name);
        let mut over = self.all_tops(name);
        over.retain(|dir| !tops.contains(dir));
        over.iter().map(|dir| join(dir, name)).collect()
    }

    fn all_tops(&self, name: &str) -> Vec<String> {
        let ours = ["xtask/", "ci/", "receipts/"];
        let theirs = self.files.iter().filter(|path| !ours.iter().any(|own| path.starts_with(own)));
        let dirs = theirs.filter_map(|path| match path.strip_suffix(name)? {
            "" => Some(""),
            dir => dir.strip_suffix('/'),
        });
        let mut tops: Vec<String> = Vec::new();
        for dir in dirs.collect::<BTreeSet<&str>>() {
            if !tops.iter().any(|top| top.is_empty() || dir.starts_with(&format!("{top}/"))) {
                tops.push(dir.to_owned());
            }
        }
        tops
    }

    fn any(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.files.iter().any(|path| fits(path))
    }

    // What CI runs today.
    fn ci(&self) -> String {
        let is_ci = |path: &&String| {
            path.starts_with(".github/workflows/")
                || [".gitlab-ci.yml", ".travis.yml", "justfile"].contains(&path.as_str())
        };
        self.files.iter().filter(is_ci).filter_map(|path| (self.read)(path)).collect()
    }
}

#[derive(Default)]
struct Draft {
    head: String,
    notes: Vec<String>,
    services: String,
    tasks: Vec<(String, String)>,
    minutes: u64,
}

impl Draft {
    fn task(&mut self, dir: &str, name: &str, command: &str, minutes: u64, more: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let full = if dir.is_empty() { name.to_owned() } else { format!("{dir}-{name}") };
        let mut full: String = full.chars().map(plain).collect::<String>().trim_matches('-').chars().take(50).collect();
        while Name::parse(&full).is_err() || self.tasks.iter().any(|(other, _)| *other == full) {
            full = format!("x-{full}");
        }
        let mut text = format!("[task.{full}]\ncommand  = {command:?}\n");
        if !dir.is_empty() {
            let _ = writeln!(text, "dir      = {dir:?}");
        }
        let _ = write!(text, "deadline = \"{minutes}m\"\n{more}");
        self.tasks.push((full.clone(), text));
        self.minutes += minutes;
        full
    }

    fn rust(&mut self, found: &Found<'_>, dir: &str) {
        let (ci, manifest) = (found.ci(), found.text(dir, "Cargo.toml"));
        let which = match (found.below, found.member && dir.is_empty()) {
            (true, _) => "",
            (_, true) => " --workspace --exclude xtask",
            _ => " --workspace",
        };
        let locked = if found.has(dir, "Cargo.lock") { " --locked" } else { "" };
        // Benches that need a nightly compiler would fail where nobody builds them.
        let nightly = |path: &str| {
            path.contains("benches/") && (found.read)(path).is_some_and(|text| text.contains("#![feature("))
        };
        let targets = if found.any(nightly) { "" } else { " --all-targets" };
        let heavy = "cpus     = \"all\"\nmutex    = \"target\"\n";
        if found.has(dir, "rustfmt.toml") || found.has(dir, ".rustfmt.toml") || ci.contains("cargo fmt") {
            let fmt = if found.below { "cargo fmt" } else { "cargo fmt --all" };
            self.task(dir, "fmt", &format!("{fmt} --check"), 1, &format!("fix      = {fmt:?}\n"));
        }
        let check = self.task(dir, "check", &format!("cargo check{which}{targets}{locked}"), 10, heavy);
        let needs = format!("needs    = [{check:?}]\n{heavy}");
        let lints =
            found.has(dir, "clippy.toml") || found.has(dir, ".clippy.toml") || manifest.contains("lints.clippy");
        if lints || ci.contains("clippy") {
            let (more, lints) = clippy_flags(&ci);
            self.task(dir, "clippy", &format!("cargo clippy{which}{more}{locked}{lints}"), 10, &needs);
        }
        let postgres = self.postgres(found);
        let services = if postgres { "services = [\"postgres\"]\n" } else { "" };
        if postgres && found.any(|path| path.starts_with(".sqlx/")) {
            let sqlx = format!("{needs}{services}");
            self.task(dir, "sqlx", "cargo sqlx prepare --check --workspace", 10, &sqlx);
        }
        let nextest = found.has(dir, ".config/nextest.toml") || ci.contains("nextest");
        let test = if nextest { "cargo nextest run" } else { "cargo test" };
        self.task(dir, "test", &format!("{test}{which}{locked}"), 15, &format!("{needs}{services}"));
    }

    // Whether the code talks to PostgreSQL; then there is a service for it.
    fn postgres(&mut self, found: &Found<'_>) -> bool {
        let manifests = found.files.iter().filter(|path| path.ends_with("Cargo.toml") && !path.starts_with("xtask/"));
        let texts: Vec<String> = manifests.filter_map(|path| (found.read)(path)).collect();
        let uses = |text: &String| {
            let talks = |line: &str| {
                let line = line.trim_start();
                (line.starts_with("sqlx") || line.starts_with("diesel")) && line.contains("postgres")
                    || ["tokio-postgres", "postgres ", "postgres=", "deadpool-postgres"]
                        .iter()
                        .any(|c| line.starts_with(c))
            };
            text.lines().any(talks)
        };
        if !texts.iter().any(uses) {
            return false;
        }
        if self.services.is_empty() {
            let sql = found.files.iter().filter(|path| path.ends_with(".sql"));
            let folder = |path: &String| path.rsplit_once('/').map(|(dir, _)| dir.to_owned());
            let folders: BTreeSet<String> = sql.filter_map(folder).collect();
            let flat = folders.iter().find(|dir| *dir == "migrations" || dir.ends_with("/migrations"));
            self.services = match flat {
                Some(dir) => format!("[service.postgres]\nversion    = \">=14\"\nmigrations = {dir:?}\n\n"),
                None if found.any(|path| path.contains("migrations/") && path.ends_with("/up.sql")) => {
                    "[service.postgres]\nversion    = \">=14\"\nsetup      = \"diesel migration run\"\n\n".to_owned()
                }
                None => "[service.postgres]\nversion    = \">=14\"\n\n".to_owned(),
            };
        }
        true
    }

    fn node(&mut self, found: &Found<'_>, dir: &str) {
        let path = join(dir, "package.json");
        let package = match serde_json::from_str::<Value>(&found.text(dir, "package.json")) {
            Ok(package) => package,
            Err(why) => return self.notes.push(format!("{path} was passed over: it cannot be read ({why})")),
        };
        let locks = [
            ("pnpm-lock.yaml", "pnpm", "pnpm install --frozen-lockfile"),
            ("yarn.lock", "yarn", "yarn install --frozen-lockfile"),
            ("bun.lock", "bun", "bun install --frozen-lockfile"),
            ("bun.lockb", "bun", "bun install --frozen-lockfile"),
            ("package-lock.json", "npm", "npm ci"),
            ("npm-shrinkwrap.json", "npm", "npm ci"),
        ];
        // Without a lock file none is made either: it would change the tree that is being checked.
        let lock = locks.iter().find(|(file, ..)| found.has(dir, file));
        let (manager, install) = lock.map_or(("npm", "npm install --no-package-lock"), |&(_, m, i)| (m, i));
        let some = |key: &str| package[key].as_object().is_some_and(|map| !map.is_empty());
        let name = |what: &str| if dir.is_empty() { format!("node-{what}") } else { what.to_owned() };
        let scripts: Vec<(&str, &str)> = SCRIPTS
            .iter()
            .filter_map(|script| Some((*script, package["scripts"][*script].as_str()?)))
            .filter(|(_, command)| !command.contains("no test specified"))
            .collect();
        if scripts.is_empty() {
            return self.notes.push(format!("{path} was passed over: it has no script {}", SCRIPTS.join(", ")));
        }
        let mut needs = String::new();
        if some("dependencies") || some("devDependencies") {
            let deps = self.task(dir, &name("deps"), install, 5, "");
            needs = format!("needs    = [{deps:?}]\n");
        }
        for (script, _) in scripts {
            self.task(dir, &name(script), &format!("{manager} run {script}"), 10, &needs);
        }
    }

    fn python(&mut self, found: &Found<'_>, dir: &str) {
        let project = found.text(dir, "pyproject.toml");
        let run = match () {
            () if found.has(dir, "uv.lock") => "uv run --locked ",
            () if found.has(dir, "poetry.lock") => "poetry run ",
            () => "python3 -m ",
        };
        // Compiled files and caches may not be ignored here, and would change the tree that is being checked.
        let quiet = "env      = { PYTHONDONTWRITEBYTECODE = \"1\", RUFF_NO_CACHE = \"true\", MYPY_CACHE_DIR = \"/dev/null\" }\n";
        let name = |what: &str| if dir.is_empty() { format!("python-{what}") } else { what.to_owned() };
        let before = self.tasks.len();
        if project.contains("[tool.ruff") || found.has(dir, "ruff.toml") {
            self.task(dir, &name("lint"), &format!("{run}ruff check ."), 2, quiet);
        }
        if project.contains("[tool.mypy") || found.has(dir, "mypy.ini") {
            self.task(dir, &name("types"), &format!("{run}mypy ."), 5, quiet);
        }
        if project.contains("pytest") || found.has(dir, "pytest.ini") {
            self.task(dir, &name("test"), &format!("{run}pytest -p no:cacheprovider"), 10, quiet);
        } else if found.any(|path| path.starts_with(&join(dir, "tests/")) && path.ends_with(".py")) {
            let python = run.replace("-m ", "");
            let python = if run.starts_with("python3") { python } else { format!("{run}python3 ") };
            self.task(dir, &name("test"), &format!("{python}-m unittest discover"), 10, quiet);
        }
        if self.tasks.len() == before {
            let path = join(dir, "pyproject.toml");
            self.notes.push(format!("{path} was passed over: no ruff, mypy, pytest or folder tests"));
        }
    }

    // A Makefile calls what the others found as often as not, so it counts where there is nothing else.
    fn make(&mut self, found: &Found<'_>) {
        let Some(file) = ["GNUmakefile", "makefile", "Makefile"].into_iter().find(|file| found.has("", file)) else {
            return;
        };
        let text = found.text("", file);
        let rules: BTreeSet<&str> = text.lines().flat_map(targets).collect();
        let known: Vec<&str> = ["lint", "check", "test"].into_iter().filter(|target| rules.contains(target)).collect();
        if self.tasks.is_empty() {
            for target in &known {
                self.task("", target, &format!("make {target}"), 15, "cpus     = \"all\"\n");
            }
            if known.is_empty() {
                self.notes.push(format!("{file} was passed over: it has no target lint, check or test"));
            }
        } else if !known.is_empty() {
            self.notes.push(format!("{file} was passed over, with its targets {}", known.join(", ")));
        }
    }

    fn text(&self) -> String {
        let deadline = (self.minutes + 1).max(5);
        let mut text = format!(
            "# What \"verified\" means for this repository: `cargo xtask verify` runs it, `cargo xtask plan` explains it.\n{}\
             schema = 1\n\n\
             [run]\n\
             deadline   = {:<6} # lock won -> every process gone and the receipt synced\n\
             queue      = {:<6} # waiting for the locks: two whole runs ahead of this one\n\
             margin     = \"10m\"  # what a job does before and after xtask: checkout, compiling it, upload\n\
             stop-grace = \"4s\"   # SIGTERM -> SIGKILL\n\
             wrap-up    = \"10s\"  # part of the deadline kept for stopping, snapshot, receipt, signing\n\n\
             {}",
            self.head,
            format!("\"{deadline}m\""),
            format!("\"{}m\"", 2 * deadline + 2),
            self.services
        );
        let tasks: Vec<&str> = self.tasks.iter().map(|(_, text)| text.as_str()).collect();
        text += &tasks.join("\n");
        text
    }
}

// What a line of a Makefile says how to make: `test lint: deps`, `check :`, not `test := 1`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let rule = line.split_once(':').filter(|(before, after)| {
        let assigns = after.trim_start_matches(':').starts_with('=');
        !assigns && !before.starts_with(['\t', '#']) && !before.contains('=')
    });
    rule.map(|(targets, _)| targets).unwrap_or_default().split_whitespace()
}

// How CI calls clippy, so that the task fails where CI does and nowhere else: which targets and features, and the lints.
fn clippy_flags(ci: &str) -> (String, String) {
    let joined = ci.replace("\\\n", " ");
    let call = joined.lines().find_map(|line| Some(line.split_once("cargo clippy")?.1)).unwrap_or_default();
    let end = call.find(['&', ';', '|', '"', '\'', '#', '`']).unwrap_or(call.len());
    let (flags, lints) = call[..end].split_once(" -- ").unwrap_or((&call[..end], ""));
    const KNOWN: [&str; 8] = [
        "--all-targets",
        "--tests",
        "--benches",
        "--examples",
        "--lib",
        "--bins",
        "--all-features",
        "--no-default-features",
    ];
    let flags = flags.split_whitespace().filter(|flag| KNOWN.contains(flag)).map(|flag| format!(" {flag}")).collect();
    let lints: Vec<&str> = lints.split_whitespace().collect();
    let plain = lints.iter().all(|word| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_:=".contains(c)));
    (flags, if lints.is_empty() || !plain { String::new() } else { format!(" -- {}", lints.join(" ")) })
}

/// A file of a folder; the root is "".
pub fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}
