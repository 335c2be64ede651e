//! The snapshot sees the tree as it is on disk, whatever git was told to overlook.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use xtask::repo::{Repo, Snapshot, SnapshotError};
use xtask::sys;

use crate::process::token_seconds;
use crate::world::{Folder, PATIENCE, World, processes_with, script, until};

pub fn world() -> World {
    let world = World::new("schema = 1\n");
    world.write("src/cart.rs", "fn cart() {}\n");
    world.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(world.repo.join("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    world.commit("files");
    world
}

pub fn snapshot(world: &World) -> Snapshot {
    let scratch = Folder::new();
    Repo::find(&world.repo).unwrap().snapshot(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap()
}

#[track_caller]
fn dirty(world: &World, file: &str) {
    assert_eq!(world.git(&["status", "--porcelain"]), "", "git itself sees it, so this is no test of the snapshot");
    assert_eq!(snapshot(world).uncommitted, [file]);
}

/// Waits until the file system's clock has moved on, so that a change from now on has another time.
fn let_the_clock_tick(world: &World) {
    let probe = world.folder.path().join("probe");
    let time = || {
        fs::write(&probe, "x").unwrap();
        fs::metadata(&probe).unwrap().modified().unwrap()
    };
    let begun = time();
    until("another file time", || time() != begun);
}

#[test]
fn a_clean_tree_has_the_id_of_head() {
    let world = world();
    let found = snapshot(&world);
    assert!(found.clean());
    assert_eq!(found.tree, world.git(&["rev-parse", "HEAD^{tree}"]));
    assert_eq!(found.commit, Some(world.git(&["rev-parse", "HEAD"])));
    let sub = Repo::find(&world.repo.join("src")).unwrap();
    assert_eq!(sub.root, world.repo);
}

#[test]
fn edits_new_files_removals_and_modes_are_named() {
    let world = world();
    world.write("src/cart.rs", "fn cart() { panic!() }\n");
    world.write("new file\n", "x");
    fs::remove_file(world.repo.join(".gitignore")).unwrap();
    fs::set_permissions(world.repo.join("run.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    let found = snapshot(&world);
    assert_eq!(found.uncommitted, [".gitignore", "new file\n", "run.sh", "src/cart.rs"]);
    assert!(!found.clean());
    world.commit("all of it");
    assert!(snapshot(&world).clean());
}

#[test]
fn hidden_edits_are_seen() {
    let world = world();
    world.git(&["update-index", "--assume-unchanged", "src/cart.rs"]);
    world.write("src/cart.rs", "hidden\n");
    dirty(&world, "src/cart.rs");

    let world = self::world();
    world.git(&["update-index", "--skip-worktree", "src/cart.rs"]);
    world.write("src/cart.rs", "hidden\n");
    dirty(&world, "src/cart.rs");

    let world = self::world();
    world.git(&["config", "core.fileMode", "false"]);
    assert!(snapshot(&world).clean(), "the modes on disk are those of HEAD");
    fs::set_permissions(world.repo.join("run.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    dirty(&world, "run.sh");

    // Line ends that git was told to overlook.
    for setting in ["input", "true"] {
        let world = self::world();
        world.git(&["config", "core.autocrlf", setting]);
        world.write("src/cart.rs", "fn cart() {}\r\n");
        world.git(&["add", "src/cart.rs"]);
        dirty(&world, "src/cart.rs");
    }

    // A link that is a file by now, on a system that is said to have no links.
    let world = self::world();
    symlink("src/cart.rs", world.repo.join("link")).unwrap();
    world.commit("a link");
    world.git(&["config", "core.symlinks", "false"]);
    fs::remove_file(world.repo.join("link")).unwrap();
    world.write("link", "src/cart.rs");
    dirty(&world, "link");

    // Names that differ in their case alone.
    let world = self::world();
    world.git(&["config", "core.ignoreCase", "true"]);
    world.write("TARGET/evil", "x");
    dirty(&world, "TARGET/evil");

    for (file, setting) in [(".git/info/exclude", None), ("excludes", Some("core.excludesFile"))] {
        let world = self::world();
        let path = if setting.is_some() { world.folder.path().join(file) } else { world.repo.join(file) };
        fs::write(&path, "hidden.rs\n").unwrap();
        if let Some(setting) = setting {
            world.git(&["config", setting, path.to_str().unwrap()]);
        }
        world.write("hidden.rs", "x");
        dirty(&world, "hidden.rs");
    }
}

#[test]
fn an_edit_behind_restored_times_is_seen() {
    let world = world();
    world.git(&["config", "core.trustctime", "false"]);
    world.git(&["config", "core.checkStat", "minimal"]);
    let path = world.repo.join("src/cart.rs");
    let old = fs::metadata(&path).unwrap().modified().unwrap() - Duration::from_secs(3600);
    fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    world.git(&["update-index", "--refresh"]);
    world.write("src/cart.rs", "fn tarc() {}\n"); // as long as it was
    fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    dirty(&world, "src/cart.rs");
}

#[test]
fn replaced_objects_do_not_count() {
    let world = world();
    let (first, second) = (world.git(&["rev-parse", "HEAD~1"]), world.git(&["rev-parse", "HEAD"]));
    world.git(&["replace", &second, &first]);
    let found = snapshot(&world);
    assert!(found.clean(), "{:?}", found.uncommitted);
}

#[test]
fn receipts_are_left_out_only_where_untracked() {
    let world = world();
    fs::remove_file(world.repo.join(".gitignore")).unwrap();
    world.write("receipts/README.md", "tracked\n");
    world.commit("no ignore file, a tracked file in receipts");
    world.write("receipts/r-20261130-140210-7c1e09ab.json", "{}");
    world.write("sub/receipts/other", "not ours");
    assert_eq!(snapshot(&world).uncommitted, ["sub/receipts/other"]);
    world.write("receipts/README.md", "edited\n");
    assert_eq!(snapshot(&world).uncommitted, ["receipts/README.md", "sub/receipts/other"]);
}

#[test]
fn what_changed_between_two_snapshots_is_named() {
    let world = world();
    world.write("gone", "x");
    world.commit("one more");
    let before = snapshot(&world);
    assert_eq!(snapshot(&world).changed_since(&before), [""; 0]);
    let_the_clock_tick(&world);
    world.write("src/cart.rs", "edited\n");
    world.write("new", "x");
    fs::remove_file(world.repo.join("gone")).unwrap();
    assert_eq!(snapshot(&world).changed_since(&before), ["gone", "new", "src/cart.rs"]);
}

#[test]
fn an_edit_that_was_taken_back_is_named() {
    let world = world();
    let before = snapshot(&world);
    let_the_clock_tick(&world);
    let path = world.repo.join("src/cart.rs");
    let (text, times) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
    fs::write(&path, "something else\n").unwrap();
    fs::write(&path, text).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(times).unwrap();
    let after = snapshot(&world);
    assert!(after.clean() && after.tree == before.tree);
    assert_eq!(after.changed_since(&before), ["src/cart.rs"]);
}

/// The folder is put aside, another one stands in for it, and it comes back with every file as it was.
#[test]
fn a_folder_that_was_put_aside_and_back_is_named() {
    let world = world();
    world.write("src/deep/er/file", "x");
    world.commit("deeper");
    let at = |path: &str| world.repo.join(path);
    let moved = |folder: &str, names: &[&str]| {
        let before = snapshot(&world);
        let_the_clock_tick(&world);
        fs::create_dir_all(at("target")).unwrap();
        fs::rename(at(folder), at("target/aside")).unwrap();
        fs::create_dir(at(folder)).unwrap();
        fs::remove_dir(at(folder)).unwrap();
        fs::rename(at("target/aside"), at(folder)).unwrap();
        let after = snapshot(&world);
        assert!(after.clean());
        assert_eq!(after.changed_since(&before), names);
    };
    moved("src", &["src/"]);
    moved("src/deep", &["src/deep/"]);
    // Another folder with the very same files is another folder.
    let before = snapshot(&world);
    fs::rename(at("src/deep"), at("target/aside")).unwrap();
    fs::create_dir(at("src/deep")).unwrap();
    fs::rename(at("target/aside/er"), at("src/deep/er")).unwrap();
    assert!(snapshot(&world).changed_since(&before).contains(&"src/deep/".to_owned()));
}

/// What a build leaves beside tracked files gives their folders new times, and is no change of the tree.
#[test]
fn ignored_files_beside_tracked_ones_are_no_change() {
    let world = world();
    world.write(".gitignore", "/target\n/receipts/\n*.o\ncache/\n");
    world.commit("ignored");
    let before = snapshot(&world);
    let_the_clock_tick(&world);
    world.write("src/cart.o", "x");
    world.write("src/cache/x", "x");
    world.write("target/x", "x");
    world.write("top.o", "x");
    fs::remove_file(world.repo.join("src/cart.o")).unwrap();
    assert_eq!(snapshot(&world).changed_since(&before), [""; 0]);
}

/// A filter that answers otherwise for a file that stood still.
#[test]
fn another_tree_of_the_same_files_is_named() {
    let world = world();
    let answer = world.folder.path().join("answer");
    fs::write(&answer, "one").unwrap();
    world.git(&["config", "filter.asks.clean", &format!("cat {}", answer.display())]);
    world.write(".gitattributes", "*.asks filter=asks\n");
    world.write("a.asks", "x");
    world.commit("a filter");
    let before = snapshot(&world);
    assert!(before.clean());
    fs::write(&answer, "another").unwrap();
    assert_eq!(snapshot(&world).changed_since(&before), ["a.asks", "(the tree)"]);
}

#[test]
fn a_commit_during_the_run_is_named() {
    let world = world();
    let before = snapshot(&world);
    world.commit("empty");
    assert_eq!(snapshot(&world).changed_since(&before), ["HEAD"]);
}

#[test]
fn a_repository_without_a_commit_has_a_tree_and_is_not_clean() {
    let folder = Folder::new();
    let git =
        |args: &[&str]| assert!(Command::new("git").args(args).current_dir(folder.path()).status().unwrap().success());
    git(&["init", "--quiet"]);
    fs::write(folder.path().join("a"), "x").unwrap();
    let scratch = Folder::new();
    let repo = Repo::find(folder.path()).unwrap();
    assert_eq!(repo.head, None);
    let found = repo.snapshot(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap();
    assert_eq!((found.commit.clone(), found.uncommitted.as_slice()), (None, &["a".to_owned()][..]));
    assert!(!found.clean() && found.tree.len() == 40);
}

#[test]
fn nothing_is_stored_and_nothing_of_the_repository_is_written() {
    let world = world();
    // So that it does not shrink when stored.
    let noise: String =
        (0..100_000_u64).map(|n| format!("{:010x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24)).collect();
    world.write("big", &noise);
    let hook = world.repo.join(".git/hooks/post-index-change");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    script(&hook, "#!/bin/sh\ntouch ran\n");
    let files = |folder: &Path| -> Vec<String> {
        let out = Command::new("find").arg(folder).args(["-printf", "%p %s %T@\n"]).output().unwrap();
        let lines = String::from_utf8(out.stdout).unwrap();
        // git gives the objects that it finds there already a new time, which keeps them from being collected.
        let object = |line: &&str| line.contains("/objects/");
        lines
            .lines()
            .map(|line| if object(&line) { line.rsplit_once(' ').unwrap().0 } else { line }.to_owned())
            .collect()
    };
    let (before, scratch) = (files(&world.repo), Folder::new());
    let repo = Repo::find(&world.repo).unwrap();
    let place = scratch.path().join("new");
    assert_eq!(repo.snapshot(&place, sys::now() + PATIENCE, &|| false).unwrap().uncommitted, ["big"]);
    assert_eq!(files(&world.repo), before);
    assert_eq!(fs::metadata(&place).unwrap().permissions().mode() & 0o77, 0, "its index names every file");
    let out = Command::new("du").arg("-sk").arg(scratch.path()).output().unwrap();
    let size = String::from_utf8(out.stdout).unwrap();
    let size: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    assert!(size < 200, "{size} KiB in the scratch folder");
}

#[test]
fn odd_names_and_kinds_of_files_are_read() {
    let world = World::at("a:b \"c\"\\d", "schema = 1\n");
    fs::write(world.repo.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "not utf-8").unwrap();
    world.write("? question", "x");
    world.write("H 100644 0\tfake", "x");
    symlink("nowhere", world.repo.join("link")).unwrap();
    world.write("was-a-file", "x");
    world.commit("odd");
    assert!(snapshot(&world).clean());
    fs::remove_file(world.repo.join("was-a-file")).unwrap();
    world.write("was-a-file/now", "x");
    fs::remove_file(world.repo.join("link")).unwrap();
    symlink("elsewhere", world.repo.join("link")).unwrap();
    world.write("? untracked", "x");
    assert_eq!(snapshot(&world).uncommitted, ["? untracked", "link", "was-a-file", "was-a-file/now"]);
}

/// A folder of tracked files that is something else now: what lies behind a link is not in the tree.
#[test]
fn a_folder_that_was_replaced_is_the_tree_that_git_would_make() {
    let (world, module) = (world(), self::world());
    let url = module.repo.to_str().unwrap();
    for place in ["inside/sub", "outside/deep/sub"] {
        world.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, place]);
    }
    let folders = ["inside", "outside", "outside/deep", "loop", "dangling", "file", "gone"];
    for folder in folders {
        world.write(&format!("{folder}/f"), "x");
        world.write(&format!("{folder}/er/f"), "x");
    }
    world.commit("folders");
    assert!(snapshot(&world).clean());
    let at = |path: &str| world.repo.join(path);
    let aside = world.folder.path().join("aside");
    fs::rename(at("outside/deep"), &aside).unwrap();
    symlink(&aside, at("outside/deep")).unwrap();
    fs::create_dir(at("target")).unwrap();
    fs::rename(at("inside"), at("target/inside")).unwrap();
    symlink("target/inside", at("inside")).unwrap();
    for folder in ["loop", "dangling", "file", "gone"] {
        fs::remove_dir_all(at(folder)).unwrap();
    }
    symlink("loop", at("loop")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    world.write("file", "x");
    let found = snapshot(&world);
    world.git(&["add", "--all"]);
    assert_eq!(found.tree, world.git(&["write-tree"]));
    let names = world.git(&["diff", "--cached", "--name-only", "--no-renames", "HEAD"]);
    assert_eq!(found.uncommitted, names.lines().collect::<Vec<_>>());
    assert_eq!(names.lines().filter(|name| name.ends_with("/f")).count(), 12, "{names}");
}

/// git says what is wrong in several lines, and its words go into one.
#[test]
fn complaints_of_git_are_told_apart() {
    let world = world();
    world.git(&["config", "filter.no.clean", "false"]);
    world.git(&["config", "filter.no.required", "true"]);
    world.write(".gitattributes", "*.no filter=no\n");
    world.write("a.no", "x");
    let (scratch, repo) = (Folder::new(), Repo::find(&world.repo).unwrap());
    let why = repo.snapshot(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap_err().to_string();
    assert!(!why.contains('\n') && why.contains("; fatal: a.no: clean filter 'no' failed"), "{why}");
}

#[test]
fn submodules_and_nested_repositories() {
    let (world, other) = (world(), self::world());
    let url = other.repo.to_str().unwrap();
    world.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    world.commit("a submodule");
    let repo = Repo::find(&world.repo).unwrap();
    let unpinned = || {
        let scratch = Folder::new();
        repo.unpinned(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap()
    };
    let before = snapshot(&world);
    assert!(before.clean());
    assert_eq!(unpinned(), [""; 0]);
    world.write("sub/src/cart.rs", "changed\n");
    let after = snapshot(&world);
    assert_eq!(after.uncommitted, ["sub/src/cart.rs"], "the tree id cannot show it");
    assert_eq!(after.changed_since(&before), ["sub/src/cart.rs"]);
    assert_eq!(unpinned(), ["submodule sub has changes that are not committed: src/cart.rs"]);
    world.git(&["submodule", "--quiet", "deinit", "--force", "sub"]);
    assert!(snapshot(&world).clean(), "not checked out is as committed");
    // git says nothing of what lies in the folder of a submodule that is not checked out, whatever its `.git` is.
    for git in [None, Some("sub/.git/config"), Some("sub/.git")] {
        world.write("sub/src/evil", "x");
        git.into_iter().for_each(|git| world.write(git, "x"));
        let found = snapshot(&world).uncommitted;
        assert!(found.contains(&"sub/src/evil".to_owned()) && !found.contains(&"sub".to_owned()), "{found:?}");
        fs::remove_dir_all(world.repo.join("sub")).unwrap();
        fs::create_dir(world.repo.join("sub")).unwrap();
        assert!(snapshot(&world).clean());
    }
    world.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init"]);
    let before = snapshot(&world);
    for folder in ["nested", "sub/nested"] {
        let named = format!("{folder}/ (a repository of its own)");
        fs::create_dir(world.repo.join(folder)).unwrap();
        let init = Command::new("git").args(["init", "--quiet"]).current_dir(world.repo.join(folder)).status().unwrap();
        assert!(init.success());
        world.write(&format!("{folder}/file"), "x");
        let after = snapshot(&world);
        assert_eq!(after.uncommitted, [&named[..]]);
        assert_eq!(after.changed_since(&before), [&named[..]], "made during the run");
        fs::remove_dir_all(world.repo.join(folder)).unwrap();
        assert_eq!(snapshot(&world).changed_since(&after), [&named[..]], "removed during the run");
    }
}

/// A filter that never ends is cut at the deadline, and goes down with its git.
#[test]
fn a_snapshot_ends_at_its_deadline_and_leaves_nothing() {
    let world = world();
    let token = token_seconds();
    world.git(&["config", "filter.slow.clean", &format!("sleep 300 {token}")]);
    world.write(".gitattributes", "*.slow filter=slow\n");
    world.write("a.slow", "x");
    let scratch = Folder::new();
    let begun = Instant::now();
    let repo = Repo::find(&world.repo).unwrap();
    let found = repo.snapshot(scratch.path(), sys::now() + Duration::from_millis(500), &|| false);
    assert!(matches!(found, Err(SnapshotError::Late)), "{found:?}");
    assert!(begun.elapsed() < PATIENCE);
    until("the filter's end", || processes_with(&token).is_empty());
}

#[test]
fn objects_are_asked_for_by_name_in_one_go() {
    let world = world();
    let repo = Repo::find(&world.repo).unwrap();
    world.write("empty", "");
    let head = world.commit("an empty file");
    let found = repo
        .objects(&["HEAD^{commit}", "HEAD:src/cart.rs", "HEAD:no such file", "nothing", "HEAD:empty", "HEAD:src"])
        .unwrap();
    let kinds: Vec<Option<&str>> = found.iter().map(|object| Some(object.as_ref()?.kind.as_str())).collect();
    assert_eq!(kinds, [Some("commit"), Some("blob"), None, None, Some("blob"), Some("tree")]);
    assert_eq!(found[0].as_ref().unwrap().id, head);
    assert_eq!(found[1].as_ref().unwrap().bytes, b"fn cart() {}\n");
    for bad in ["--help", "HEAD\nHEAD", "a\0b"] {
        assert!(repo.objects(&[bad]).is_err(), "{bad:?}");
    }
}

#[test]
fn no_repository_is_an_error_that_says_where() {
    let folder = Folder::new();
    let error = Repo::find(folder.path()).unwrap_err().to_string();
    assert!(error.contains(folder.path().to_str().unwrap()), "{error}");
}

/// Nobody waits for a tree that takes long to read: neither who presses Ctrl-C, nor who wants the workstation after the
/// keeper was killed.
#[test]
fn a_run_that_reads_the_tree_can_be_stopped() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let world =
            World::new("schema = 1\n[run]\ndeadline = \"10m\"\n[task.one]\ncommand = [\"true\"]\ndeadline = \"1m\"\n");
        let token = token_seconds();
        world.git(&["config", "filter.slow.clean", &format!("sleep 300 {token}")]);
        world.write(".gitattributes", "*.slow filter=slow\n");
        world.write("a.slow", "x");
        let run = world.start(&["verify"]);
        until("the filter's start", || !processes_with(&token).is_empty());
        run.signal(signal);
        let done = run.wait();
        until("the filter's end", || processes_with(&token).is_empty());
        // Free again: the next run of this checkout needs no queue.
        let lock = world.run(&["lock", "run", "--queue", "1m", "--", "true"]);
        lock.expect(0);
        if signal == Signal::SIGINT {
            done.expect(130);
            let receipt: serde_json::Value = serde_json::from_slice(&fs::read(&world.receipts()[0]).unwrap()).unwrap();
            let predicate = &receipt["predicate"];
            assert_eq!(
                (&predicate["result"], &predicate["tasks"][0]["verdict"]),
                (&"cancelled".into(), &"not-run".into())
            );
        }
    }
}
