//! What `adopt` does not do to a repository: write over what git does not show, or outside of it, or half.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::adopt::{PACKAGE, Pair};
use crate::world::{Done, Folder, Running, until};

fn product() -> Pair {
    Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", "")])
}

/// Refused, with --dry-run and without.
#[track_caller]
fn refused(pair: &Pair, says: &[&str]) {
    for flags in [&["--dry-run"][..], &[]] {
        let done = pair.adopt(flags).expect(2);
        says.iter().for_each(|text| assert!(done.err.contains(text), "no {text:?} in\n{}", done.err));
    }
    assert_eq!(pair.into.git(&["status", "--porcelain"]), "", "nothing was touched");
}

#[test]
fn what_git_hides_is_not_written_over() {
    let pair = product();
    let remove = |path: &str| fs::remove_file(pair.into.repo.join(path)).expect("removed");
    pair.into.write(".git/info/exclude", ".cargo/\n/ci/allowed_signers\nreceipts/\n");
    for path in [".cargo/config.toml", ".cargo/config", "ci/allowed_signers", "receipts/.gitignore"] {
        pair.into.write(path, "# ours\n");
        refused(&pair, &["hidden from git", &format!(": {path}\n"), "git add --force"]);
        assert_eq!(pair.read(path), "# ours\n");
        remove(path);
    }
    // A link that leads nowhere is there, too.
    symlink("nowhere", pair.into.repo.join("ci/allowed_signers")).expect("a link");
    refused(&pair, &["ci/allowed_signers is a symbolic link"]);
    remove("ci/allowed_signers");
    // Nothing is there, but git would not take it either.
    refused(&pair, &["would keep these out of the repository: .cargo/config.toml, ci/allowed_signers, receipts/"]);
    pair.into.write(".git/info/exclude", "");
    pair.into.write(".git/ours", ".cargo/\n");
    pair.into.git(&["config", "core.excludesFile", pair.into.repo.join(".git/ours").to_str().expect("text")]);
    refused(&pair, &["would keep these out of the repository: .cargo/config.toml;"]);
    pair.into.git(&["config", "--unset", "core.excludesFile"]);
    pair.adopt(&[]).expect(0);
}

#[test]
fn edits_that_git_overlooks_are_not_written_over() {
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", ""), (".cargo/config.toml", "[net]\nretry = 3\n")]);
    let path = ".cargo/config.toml";
    let says = ["not on disk as HEAD has it", path, "--no-skip-worktree"];
    for flag in ["skip-worktree", "assume-unchanged"] {
        pair.into.git(&["update-index", &format!("--{flag}"), path]);
        pair.into.write(path, "[net]\nretry = 5\n");
        refused(&pair, &says);
        assert_eq!(pair.read(path), "[net]\nretry = 5\n");
        fs::remove_file(pair.into.repo.join(path)).expect("removed");
        pair.into.git(&["update-index", &format!("--no-{flag}"), path]);
        pair.into.git(&["checkout", "--quiet", "."]);
    }
    pair.into.git(&["update-index", "--skip-worktree", "Cargo.lock"]);
    fs::remove_file(pair.into.repo.join("Cargo.lock")).expect("removed");
    refused(&pair, &["not on disk as HEAD has it", "Cargo.lock"]);
    assert!(!pair.has("Cargo.lock"));
    pair.into.git(&["update-index", "--no-skip-worktree", "Cargo.lock"]);
    // Other line ends on disk than in git are no edits.
    pair.into.git(&["checkout", "--quiet", "."]);
    pair.into.write(".gitattributes", "*.toml text eol=crlf\n");
    pair.into.commit("line ends");
    fs::remove_file(pair.into.repo.join(path)).expect("removed");
    pair.into.git(&["checkout", "--quiet", "."]);
    assert_eq!(pair.read(path), "[net]\r\nretry = 3\r\n");
    pair.adopt(&["--dry-run"]).expect(0).says("edit    .cargo/config.toml");
}

#[test]
fn nothing_is_written_through_a_link() {
    let (pair, outside) = (product(), Folder::new());
    let place = |name: &str| pair.into.repo.join(name);
    let empty = || fs::read_dir(outside.path()).expect("the folder").next().is_none();
    for name in ["xtask", "ci", ".cargo", "receipts"] {
        symlink(outside.path(), place(name)).expect("a link");
        pair.into.commit("a link");
        let what =
            if name == "xtask" { "xtask is there already" } else { "is a symbolic link, and adopt writes only to" };
        refused(&pair, &[name, what]);
        assert!(empty(), "{name}");
        // Hidden from git, it is as much in the way.
        pair.into.git(&["rm", "--quiet", name]);
        pair.into.commit("without");
        pair.into.write(".git/info/exclude", &format!("/{name}\n"));
        symlink(outside.path(), place(name)).expect("a link");
        refused(&pair, &[&format!("{name} is a symbolic link")]);
        assert!(empty(), "{name}");
        fs::remove_file(place(name)).expect("removed");
        pair.into.write(".git/info/exclude", "");
    }
    let target = outside.path().join("config.toml");
    fs::write(&target, "[net]\nretry = 3\n").expect("written");
    fs::create_dir(place(".cargo")).expect("a folder");
    symlink(&target, place(".cargo/config.toml")).expect("a link");
    pair.into.commit("a file that is a link");
    refused(&pair, &[".cargo/config.toml is a symbolic link"]);
    assert_eq!(fs::read_to_string(&target).expect("there"), "[net]\nretry = 3\n");
    pair.into.git(&["rm", "-r", "--quiet", ".cargo"]);
    // One that cargo would write through in the clone.
    let target = outside.path().join("Cargo.lock");
    fs::rename(place("Cargo.lock"), &target).expect("moved");
    let before = fs::read(&target).expect("there");
    symlink(&target, place("Cargo.lock")).expect("a link");
    pair.into.commit("a lock file elsewhere");
    pair.adopt(&["--dry-run"]).expect(0).says("a workspace of its own there: Cargo.lock is a symbolic link");
    assert_eq!(fs::read(&target).expect("there"), before);
}

#[test]
fn nothing_is_written_into_a_submodule_or_below_a_file() {
    let pair = product();
    let head = pair.into.git(&["rev-parse", "HEAD"]);
    pair.into.git(&["update-index", "--add", "--cacheinfo", &format!("160000,{head},ci")]);
    fs::create_dir(pair.into.repo.join("ci")).expect("a folder");
    pair.into.git(&["commit", "--quiet", "--message", "a submodule"]);
    refused(&pair, &["ci is a submodule"]);
    pair.into.git(&["rm", "--quiet", "--cached", "ci"]);
    fs::remove_dir(pair.into.repo.join("ci")).expect("removed");
    pair.into.write("ci", "notes\n");
    pair.into.commit("a file");
    refused(&pair, &["ci is no folder"]);
    pair.into.git(&["rm", "--quiet", "ci"]);
    pair.into.write("xtask", "notes\n");
    pair.into.commit("another");
    refused(&pair, &["xtask is there already and no part of a copy", "adopt needs that name for its folder"]);
}

#[test]
fn what_is_there_already_stays_as_it_is() {
    let theirs = ["ci/allowed_signers", "ci/recipes/verify.sh", "ci/revoked_keys", "receipts/.gitignore"];
    let files = theirs.map(|path| (path, "# ours\n"));
    let pair = Pair::new(&[&[("Cargo.toml", PACKAGE), ("src/lib.rs", "")][..], &files].concat());
    pair.adopt(&[]).expect(0).says(&format!("there already, and left as it is: {}", theirs.join(", ")));
    theirs.iter().for_each(|path| assert_eq!(pair.read(path), "# ours\n", "{path}"));
    assert!(pair.has("ci/suite.toml") && pair.has("ci/recipes/release.sh"));
    // What runs leave in a folder of that name is ignored, and no file of theirs.
    let own = Pair::new(&[("receipts/view.py", "x = 1\n")]);
    own.adopt(&[]).expect(0).says("receipts/ is a folder of yours");
    own.into.commit("adopted");
    own.into.write("receipts/more.py", "x = 2\n");
    own.into.write("receipts/r-20261130-140210-7c1e09ab.json.sig", "");
    own.into.write("receipts/.r-20261130-140210-7c1e09ab.new", "");
    own.run(&own.into, own.into.command(&["verify"])).expect(0);
    assert_eq!(own.into.receipts().len(), 1);
    assert_eq!(own.into.git(&["status", "--porcelain", "--untracked-files=all"]), "?? receipts/more.py");
    let suite = product();
    suite.into.write("ci/suite.toml", "# ours\n");
    suite.into.commit("a suite");
    suite.adopt(&[]).expect(0).says("ci/suite.toml is there already; it stays as it is");
    assert_eq!(suite.read("ci/suite.toml"), "# ours\n");
}

#[test]
fn an_update_takes_over_what_changed_in_the_alias_and_the_profile() {
    let pair = product();
    pair.adopt(&[]).expect(0);
    pair.into.commit("adopted");
    let config = fs::read_to_string(pair.from.repo.join(".cargo/config.toml")).expect("ours");
    let newer = config.replace("run --quiet", "run --quiet --offline").replace("debug = 0", "debug = 1");
    pair.from.write(".cargo/config.toml", &newer);
    pair.from.commit("another alias and profile");
    let done = pair.adopt(&[]).expect(0).says("edit    .cargo/config.toml");
    assert!(!done.err.contains("note"), "{}", done.err);
    let there = pair.read(".cargo/config.toml");
    assert!(there.contains("\"run --quiet --offline --locked") && there.contains("debug = 1\n"), "{there}");
    pair.into.commit("updated");
    pair.adopt(&[]).expect(0).says("nothing to do");
    // What they changed themselves stays, and is named.
    pair.into.write(".cargo/config.toml", &there.replace("debug = 1", "debug = 2"));
    pair.into.commit("ours");
    pair.from.write("xtask/src/extra.rs", "//! More.\n");
    pair.from.commit("a new version");
    pair.adopt(&[]).expect(0).says("[profile.xtask] stays as it is there").says(": profile.xtask.debug\n");
    pair.into.write(".cargo/config.toml", &there.replace("run --quiet", "run --release"));
    pair.into.commit("an alias of ours");
    refused(
        &pair,
        &["`alias.xtask` is there already, with another value; rename", "write `xtask = \"run --quiet --offline"],
    );
    // A suite that was lost.
    pair.into.write(".cargo/config.toml", &there);
    pair.into.git(&["rm", "-r", "--quiet", "ci"]);
    pair.into.commit("without a suite");
    let done = pair.adopt(&[]).expect(0).says("create  ci/suite.toml").says("was gone; this is a new starter");
    assert!(!done.err.contains("ci/recipes") && pair.has("ci/suite.toml"), "{}", done.err);
}

/// A `cargo` that comes before the real one on PATH, as a shell script whose `"$real"` is that.
fn shadowed(pair: &Pair, script: &str) -> Command {
    let path = std::env::var_os("PATH").expect("a PATH");
    let real = std::env::split_paths(&path).map(|dir| dir.join("cargo")).find(|path| path.is_file()).expect("cargo");
    let bin = pair.from.folder.path().join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    crate::world::script(&bin.join("cargo"), &format!("#!/bin/sh\nreal={}\n{script}\n", real.display()));
    let dirs = std::iter::once(bin).chain(std::env::split_paths(&path));
    let mut command = pair.from.command(&["adopt", pair.into.repo.to_str().expect("text")]);
    command.env("PATH", std::env::join_paths(dirs).expect("a PATH")).env("RUSTUP_AUTO_INSTALL", "1");
    command
}

#[test]
fn an_older_cargo_is_refused_and_no_toolchain_is_fetched() {
    let pair = product();
    let old = "[ \"$1\" = --version ] && exec echo 'cargo 1.60.0 (d1fd9fe2c 2022-03-01)'\nexec \"$real\" \"$@\"";
    pair.run(&pair.from, shadowed(&pair, old)).expect(2).says("there it is cargo 1.60.0");
    let fetches = "[ \"$RUSTUP_AUTO_INSTALL\" = 0 ] || { echo 'fetching' >&2; exit 1; }\nexec \"$real\" \"$@\"";
    pair.run(&pair.from, shadowed(&pair, fetches)).expect(0);
}

#[test]
fn a_request_to_stop_leaves_nothing_behind_and_the_next_run_removes_what_was_killed() {
    let pair = product();
    let mark = pair.from.folder.path().join("mark");
    let calls = pair.from.folder.path().join("calls");
    // It says that it was reached, and ends when what it said is taken away. Whoever asks tries such a question twice.
    let script = format!(
        "m={} c={}\n[ \"$1\" = metadata ] || exec \"$real\" \"$@\"\necho \"$1\" >>\"$c\"\n: > \"$m\"\nwhile [ -e \"$m\" ]; do sleep 0.05; done\nexit 1",
        mark.display(),
        calls.display()
    );
    let left = || -> Vec<_> {
        let bases = fs::read_dir(pair.from.scratch()).expect("the folder").flatten();
        bases.flat_map(|base| fs::read_dir(base.path()).expect("a base").flatten().map(|run| run.path())).collect()
    };
    let begun = || -> Running {
        let running = Running::start(shadowed(&pair, &script), &pair.from.folder);
        until("cargo to be asked", || mark.exists());
        assert_eq!(left().len(), 1, "the scratch folder");
        running
    };
    let over = |running: Running| -> Done {
        let done = running.wait();
        fs::remove_file(&mark).expect("the mark");
        done
    };
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let running = begun();
        running.signal(signal);
        over(running).expect(code).says("stopped; nothing was touched");
        assert_eq!(fs::read_to_string(&calls).expect("the calls"), "metadata\n", "nothing is asked any more");
        fs::remove_file(&calls).expect("the calls");
        assert_eq!(left(), Vec::<&Path>::new());
    }
    let running = begun();
    running.signal(Signal::SIGKILL);
    over(running).expect(1009);
    assert_eq!(left().len(), 1);
    pair.from.run(&["lock", "run", "--", "true"]).expect(0);
    assert_eq!(left(), Vec::<&Path>::new(), "the next run has removed it");
    assert_eq!(pair.into.git(&["status", "--porcelain", "--ignored"]), "");
}

#[test]
fn what_is_wrong_is_said_in_words_of_the_repository() {
    let pair = product();
    let nowhere = pair.from.command(&["adopt", "no/such/folder"]);
    pair.run(&pair.from, nowhere).expect(2).says("there is no folder no/such/folder");
    // A lock file that does not hold is mended, and no reason for another layout.
    pair.into.write("Cargo.toml", &PACKAGE.replace("0.1.0", "0.2.0"));
    pair.into.commit("a version without its lock");
    refused(&pair, &["Cargo.lock is not up to date: run `cargo update --workspace` there, commit, and adopt again"]);
    pair.cargo(&["update", "--workspace", "--offline"]);
    pair.into.write("Cargo.toml", "[workspace]\nmembers = [\"gone\"]\n");
    pair.into.commit("broken");
    let member = pair.into.repo.join("gone");
    refused(&pair, &["cargo cannot read the repository as it is", &member.display().to_string()]);
}

#[test]
fn what_it_would_change_for_others_decides_the_layout_once() {
    // A package below, which a workspace at the root would take in.
    let sub = PACKAGE.replace("product", "sub");
    let root = format!("{PACKAGE}[dependencies]\nsub = {{ path = \"sub\" }}\n");
    let pair =
        Pair::new(&[("Cargo.toml", &root), ("src/lib.rs", ""), ("sub/Cargo.toml", &sub), ("sub/src/lib.rs", "")]);
    pair.adopt(&[]).expect(0).says("other packages would become members of the workspace");
    pair.into.commit("adopted");
    // It stays so where it could be a member by now.
    pair.into.write("Cargo.toml", &format!("{root}[workspace]\nmembers = [\"sub\"]\n"));
    pair.into.commit("a workspace");
    pair.adopt(&[]).expect(0).says("nothing to do");
    // And a member stays one.
    let pair = product();
    pair.adopt(&[]).expect(0);
    pair.into.git(&["rm", "--quiet", "--cached", "Cargo.lock"]);
    pair.into.write(".gitignore", "/target\n/Cargo.lock\n");
    pair.into.commit("no lock file");
    refused(&pair, &["as a member, which it is there, the new version would disturb", "not under version control"]);
}

#[test]
fn a_copy_is_not_copied_and_the_old_name_of_the_configuration_counts() {
    let pair = Pair::new(&[("Cargo.toml", PACKAGE), ("src/lib.rs", ""), (".cargo/config", "[net]\nretry = 3\n")]);
    let done = pair.adopt(&[]).expect(0).says("edit    .cargo/config\n");
    assert!(!done.err.contains("config.toml") && pair.read(".cargo/config").contains("[alias]\nxtask = "));
    let script = fs::metadata(pair.into.repo.join("ci/recipes/verify.sh")).expect("a recipe");
    assert_eq!(script.permissions().mode() & 0o111, 0o111, "scripts can be run");
    pair.into.commit("adopted");
    let other = product();
    let into = other.into.repo.to_str().expect("text").to_owned();
    let from_copy = pair.into.command(&["adopt", &into]);
    pair.run(&pair.into, from_copy).expect(2).says("this copy was adopted itself");
}

#[test]
fn a_recipe_that_gives_a_suite_too_little_time_is_not_handed_on() {
    let pair = product();
    pair.from.write("ci/recipes/short.sh", "timeout 3m cargo xtask verify # xtask:outer=verify\n");
    pair.from.commit("a recipe");
    refused(&pair, &["ci/recipes/short.sh:1: ", "short; set"]);
}

#[test]
fn a_pattern_that_would_take_it_in_gets_an_exception() {
    let with = "[workspace]\nmembers = [\"[px]*\"]\nexclude = [\"target\"]\nresolver = \"2\"\n";
    let without = with.replace("exclude = [\"target\"]\n", "");
    let old = PACKAGE.replace("edition", "rust-version = \"1.56\"\nedition");
    for root in [with, &without] {
        let pair = Pair::new(&[("Cargo.toml", root), ("product/Cargo.toml", &old), ("product/src/lib.rs", "")]);
        pair.adopt(&[]).expect(0).says("promises Rust 1.56");
        let new = pair.read("Cargo.toml");
        let rest = new.replace("[\"target\", \"xtask\"]", "[\"target\"]").replace("exclude = [\"xtask\"]\n", "");
        assert!(new != rest && rest == root, "{new}");
        pair.cargo(&["metadata", "--format-version", "1", "--locked", "--offline", "--no-deps"]);
    }
}

#[test]
fn a_workspace_without_members_gets_its_first_and_a_target_for_all_is_told_of() {
    let root = format!("{PACKAGE}[workspace]\nresolver = \"2\"\n");
    let config = ("[build]\ntarget = \"x86_64-unknown-linux-musl\"\n", ".cargo/config.toml");
    let pair = Pair::new(&[("Cargo.toml", &root), ("src/lib.rs", ""), (config.1, config.0)]);
    pair.adopt(&[]).expect(0).says("build.target in its cargo configuration holds for xtask too");
    let new = pair.read("Cargo.toml");
    assert_eq!(new.replace("members = [\"xtask\"]\n", ""), root);
    pair.cargo(&["metadata", "--format-version", "1", "--locked", "--offline", "--no-deps"]);
}
