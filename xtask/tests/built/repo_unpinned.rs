//! What the id of a tree does not pin is named, so that no release rests on it.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::repo::Repo;
use xtask::sys;

use crate::process::token_seconds;
use crate::repo::{snapshot, world};
use crate::world::{Folder, PATIENCE, World, processes_with};

#[test]
fn pointers_of_lfs_and_private_attributes_are_not_pinned() {
    let world = world();
    world.write(".gitattributes", "*.bin filter=lfs\n");
    world.write("a.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
    world.write("b.bin", "the file itself\n");
    world.commit("large files");
    fs::write(world.repo.join(".git/info/attributes"), "*.rs filter=hide\n").unwrap();
    let scratch = Folder::new();
    let reasons = Repo::find(&world.repo).unwrap().unpinned(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap();
    assert_eq!(reasons[0], "a.bin is a pointer of LFS, not the file itself (git lfs pull)");
    assert!(reasons[1].contains(".git/info/attributes") && reasons.len() == 2, "{reasons:?}");
}

/// What the configuration or a file that is not committed has git read in place of the files themselves.
#[test]
fn filters_and_attributes_of_this_clone_alone_are_not_pinned() {
    let world = world();
    world.write(".gitattributes", "f filter=x\ng filter=lfs\n");
    world.write(".gitignore", "/target\n/receipts/\n/src/.gitattributes\n");
    world.write("f", "committed\n");
    world.write("g", "committed\n");
    world.commit("attributes");
    let unpinned = || {
        let scratch = Folder::new();
        Repo::find(&world.repo).unwrap().unpinned(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap()
    };
    assert_eq!(unpinned(), [""; 0], "a filter that nobody has set up");
    world.git(&["config", "filter.lfs.clean", "git-lfs clean -- %f"]);
    world.git(&["config", "filter.lfs.process", ""]);
    world.git(&["config", "filter.other.clean", "echo committed"]);
    assert_eq!(unpinned(), [""; 0], "what no file is read through");
    world.git(&["config", "filter.x.clean", "echo committed"]);
    world.git(&["config", "filter.lfs.clean", "echo committed"]);
    world.write("f", "evil\n");
    assert!(snapshot(&world).clean(), "the tree id cannot show it");
    let filtered =
        |file, name| format!("{file} is read through the filter {name:?}, which is not committed (git config)");
    assert_eq!(unpinned(), [filtered("g", "lfs"), filtered("f", "x")]);
    world.git(&["config", "--unset", "filter.x.clean"]);
    world.git(&["config", "--unset", "filter.lfs.clean"]);

    world.write("src/.gitattributes", "* text\n");
    world.write("target/.gitattributes", "* text\n");
    world.write("f", "committed\n");
    world.write("src/cart.rs", "fn cart() {}\r\n");
    assert!(snapshot(&world).clean(), "the tree id cannot show it");
    let [reason] = &unpinned()[..] else { panic!("{:?}", unpinned()) };
    assert!(reason.starts_with("src/.gitattributes is not committed"), "{reason}");
}

/// A file `.gitignore` that ignores itself hides what it likes.
#[test]
fn files_that_hide_themselves_are_named() {
    let (world, other) = (world(), self::world());
    let url = other.repo.to_str().unwrap();
    world.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    world.commit("a submodule");
    let hidden = || Repo::find(&world.repo).unwrap().hidden(Path::new("target/logs/.gitignore")).unwrap();
    assert_eq!(hidden(), [""; 0]);
    world.write("target/cache/.gitignore", "*\n");
    assert_eq!(hidden(), [""; 0], "a committed one ignores target as a whole");
    for folder in ["src/hidden", "sub/src/hidden"] {
        world.write(&format!("{folder}/.gitignore"), "*\n");
        world.write(&format!("{folder}/evil"), "x");
        assert!(snapshot(&world).clean(), "the tree id cannot show it");
        let [reason] = &hidden()[..] else { panic!("{folder}: {:?}", hidden()) };
        assert!(reason.contains("src/hidden/.gitignore is not committed and may hide files"), "{reason}");
        fs::remove_dir_all(world.repo.join(folder)).unwrap();
    }
    world.write(".gitignore", "/receipts/\n");
    world.commit("target is not ignored");
    world.write("target/logs/.gitignore", "*\n");
    assert_eq!(
        hidden(),
        [
            "target/cache/.gitignore is not committed and may hide files: remove it, or ignore its folder in one that is committed"
        ]
    );
}

/// A submodule inside a submodule is looked at too.
#[test]
fn changes_deep_inside_are_named() {
    let (world, middle, inner) = (world(), self::world(), self::world());
    let add = |world: &World, other: &World| {
        world.git(&[
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "add",
            other.repo.to_str().unwrap(),
            "sub",
        ]);
        world.commit("a submodule");
    };
    add(&middle, &inner);
    add(&world, &middle);
    world.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "update", "--init", "--recursive"]);
    let unpinned = || {
        let scratch = Folder::new();
        Repo::find(&world.repo).unwrap().unpinned(scratch.path(), sys::now() + PATIENCE, &|| false).unwrap()
    };
    assert_eq!(unpinned(), [""; 0]);
    let info = Repo::find(&world.repo.join("sub/sub")).unwrap().git.folder.join("info");
    fs::create_dir_all(&info).unwrap();
    fs::write(info.join("attributes"), "* text\n").unwrap();
    let [reason] = &unpinned()[..] else { panic!("{:?}", unpinned()) };
    assert!(reason.starts_with("in submodule sub: in submodule sub: "), "{reason}");
}

/// It has git's stderr for as long as it likes.
#[test]
fn what_a_filter_leaves_behind_is_not_waited_for() {
    let world = world();
    let token = token_seconds();
    world.git(&["config", "filter.leaves.clean", &format!("sleep 300 {token} >/dev/null & cat")]);
    world.write(".gitattributes", "*.leaves filter=leaves\n");
    world.write("a.leaves", "x");
    assert_eq!(snapshot(&world).uncommitted, [".gitattributes", "a.leaves"]);
    let left = processes_with(&token);
    assert!(!left.is_empty(), "it has ended, so this is no test");
    left.iter().for_each(|&pid| kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap());
}
