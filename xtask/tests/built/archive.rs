//! receipts/ on disk: never half a receipt, never one overwritten, and nothing but a small regular file is read.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use nix::sys::stat::Mode;
use xtask::archive;
use xtask::command::verify::Written;
use xtask::digest;
use xtask::name::RunId;
use xtask::receipt::statement::MAX_BYTES;

use crate::verify::one;
use crate::world::{Folder, Running, World};

fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path().join("receipts")).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn run(number: u32) -> RunId {
    RunId::new(1_796_000_000 + u64::from(number), number)
}

#[test]
fn a_receipt_is_written_once_and_never_replaced() {
    let folder = Folder::new();
    let path = archive::write(folder.path(), &run(1), b"one", || None).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    let error = format!("{:#}", archive::write(folder.path(), &run(1), b"two", || None).unwrap_err());
    assert!(error.contains("cannot be written") && error.contains("exists"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"one");
    assert_eq!(names(&folder), [path.file_name().unwrap().to_str().unwrap()], "nothing else is left");
}

/// What does not hold is gone at the latest when this returns, also where there is no room for what does.
#[test]
fn a_receipt_that_does_not_hold_is_replaced_or_removed() {
    let folder = Folder::new();
    let path = archive::write(folder.path(), &run(1), b"passed", || None).unwrap();
    let half = folder.path().join(format!("receipts/.{}.new", run(1)));
    fs::write(&half, "half").unwrap();
    assert_eq!(archive::replace(folder.path(), &run(1), b"no verdict").unwrap(), path);
    assert_eq!((fs::read(&path).unwrap(), half.exists()), (b"no verdict".to_vec(), false));
    // A folder stands where it would be written first.
    fs::create_dir(&half).unwrap();
    let error = format!("{:#}", archive::replace(folder.path(), &run(1), b"other").unwrap_err());
    assert!(error.contains("is removed: it cannot be written") && !path.exists(), "{error}");
}

/// A runner that was killed while it wrote leaves one, and its keeper writes the receipt in its stead.
#[test]
fn half_a_receipt_of_a_runner_that_died_is_in_nobodys_way() {
    let folder = Folder::new();
    let half = folder.path().join(format!("receipts/.{}.new", run(1)));
    fs::create_dir(folder.path().join("receipts")).unwrap();
    fs::write(&half, "half").unwrap();
    let path = archive::write(folder.path(), &run(1), b"one", || None).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"one");
    assert!(!half.exists());
}

/// A run that never won its lock writes its receipt while the one that has it sweeps.
#[test]
fn what_a_sweep_takes_away_is_written_again() {
    let folder = Folder::new();
    let swept = || {
        archive::sweep(folder.path()).unwrap();
        None
    };
    let path = archive::write(folder.path(), &run(1), b"one", swept).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    assert_eq!(names(&folder), [path.file_name().unwrap().to_str().unwrap()], "nothing else is left");
}

/// Whoever can write to the folder can put another in its place before it is signed.
#[test]
fn a_receipt_is_read_again_only_as_it_was_written() {
    let folder = Folder::new();
    let path = archive::write(folder.path(), &run(1), b"failed", || None).unwrap();
    let written = Written { path: path.clone(), sha256: digest::of_bytes(b"failed") };
    assert_eq!(written.read().unwrap(), b"failed");
    fs::write(path, "passed").unwrap();
    assert!(written.read().unwrap_err().to_string().contains("is not what the run wrote"));
}

/// What lies there already, a link to elsewhere too, is never written to.
#[test]
fn a_new_file_is_new() {
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("old"), "old").unwrap();
    symlink(at("old"), at("link")).unwrap();
    symlink(at("none"), at("dangling")).unwrap();
    for name in ["old", "link", "dangling"] {
        let error = archive::write_new(&at(name), b"new").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{name}");
    }
    assert!(fs::read(at("old")).unwrap() == b"old" && !at("none").exists());
}

/// Where the next test plays.
const FOLDER: &str = "XTASK_TEST_FOLDER_THAT_CANNOT_BE_OPENED";

/// A folder that may be written to but not opened cannot be synced: what nobody knows to be on disk is not there.
#[test]
fn what_cannot_be_synced_is_taken_away_again() {
    let folder = Folder::new();
    let receipts = folder.path().join("receipts");
    fs::create_dir(&receipts).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // Root may open what it likes, and the user of a whole process cannot be changed for one of its threads: who does that
    // takes the right to look into it from all others.
    let program = crate::lock_exclusion::copy_for_all(&std::env::current_exe().unwrap(), &folder);
    let mut command = Command::new(program);
    command.args(["archive::in_a_folder_that_cannot_be_opened", "--exact", "--ignored", "--nocapture"]);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&receipts, Some(65534), Some(65534)).unwrap();
        command.uid(65534).gid(65534);
    }
    let done = command.env(FOLDER, folder.path()).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
#[ignore = "a process that another test starts as another user"]
fn in_a_folder_that_cannot_be_opened() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let mode = |mode| fs::set_permissions(folder.join("receipts"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o333);
    let error = format!("{:#}", archive::write(&folder, &run(1), b"passed", || None).unwrap_err());
    assert!(error.contains("cannot be written") && error.contains("denied"), "{error}");
    assert!(archive::write_signature(&folder, &run(1), b"signed").is_err());
    mode(0o755);
}

/// The judge is asked when the first bytes are on disk but nobody can see them yet.
#[test]
fn a_receipt_that_became_late_while_written_says_so() {
    let folder = Folder::new();
    let judge = || {
        let hidden = format!(".{}.new", run(1));
        assert_eq!(names(&folder), [hidden.as_str()]);
        assert_eq!(fs::read(folder.path().join("receipts").join(hidden)).unwrap(), b"passed");
        Some(b"late".to_vec())
    };
    let path = archive::write(folder.path(), &run(1), b"passed", judge).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"late");
    assert_eq!(names(&folder).len(), 1);
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let folder = Folder::new();
    fs::write(folder.path().join("receipts"), "a file").unwrap();
    assert!(archive::write(folder.path(), &run(1), b"x", || None).is_err());
}

#[test]
fn the_newest_200_are_kept_and_folders_are_never_touched() {
    let folder = Folder::new();
    let receipts = folder.path().join("receipts");
    fs::create_dir_all(receipts.join("v1.0")).unwrap();
    for number in 0..=archive::KEPT as u32 {
        fs::write(receipts.join(format!("{}.json", run(number))), "x").unwrap();
        fs::write(receipts.join(format!("{}.json.sig", run(number))), "x").unwrap();
    }
    for name in ["README.md", "schema.json", ".x.new"] {
        fs::write(receipts.join(name), "x").unwrap();
    }
    fs::write(receipts.join(format!(".{}.new", run(7))), "half").unwrap();
    fs::create_dir(archive::release_temporary(folder.path(), &run(8))).unwrap();
    fs::write(archive::release_temporary(folder.path(), &run(8)).join("receipt.json.sig"), "half").unwrap();
    archive::sweep(folder.path()).unwrap();
    let left = names(&folder);
    assert_eq!(left.len(), 2 * archive::KEPT + 4, "{left:?}");
    assert!(!left.contains(&format!("{}.json", run(0))) && !left.contains(&format!("{}.json.sig", run(0))));
    assert!(left.contains(&format!("{}.json", run(1))) && left.contains(&"v1.0".to_owned()));
}

/// Not the one whose run asked last, nor the one whose name is last: two runs may have asked in one second.
#[test]
fn the_newest_receipt_is_the_one_that_was_written_last() {
    let folder = Folder::new();
    let write = |number| archive::write(folder.path(), &run(number), b"x", || None).unwrap();
    let newest = || archive::list(folder.path()).swap_remove(0);
    let dated = |path: &std::path::Path, seconds| {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    };
    let (first, second) = (write(9), write(1));
    dated(&first, 100);
    dated(&second, 200);
    assert_eq!(newest(), second);
    dated(&first, 300);
    assert_eq!(newest(), first);
}

#[test]
fn only_a_small_regular_file_is_read_and_nothing_hangs() {
    let folder = Folder::new();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), "text").unwrap();
    fs::write(at("largest"), vec![b'x'; MAX_BYTES]).unwrap();
    assert_eq!(archive::read(&at("file")).unwrap(), b"text");
    assert_eq!(archive::read(&at("largest")).unwrap().len(), MAX_BYTES);
    symlink(at("file"), at("link")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
    fs::create_dir(at("folder")).unwrap();
    fs::write(at("long"), vec![b'x'; MAX_BYTES + 1]).unwrap();
    let cases = [
        ("link", "a link"),
        ("pipe", "not a regular file"),
        ("folder", "not a regular file"),
        ("long", "longer than"),
        ("none", "No such file"),
    ];
    for (name, why) in cases {
        let error = format!("{:#}", archive::read(&at(name)).unwrap_err());
        assert!(error.contains(why) && error.contains(name), "{name}: {error}");
    }
    let error = format!("{:#}", archive::read("/dev/zero".as_ref()).unwrap_err());
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn what_nobody_would_read_is_not_written() {
    let folder = Folder::new();
    let error = archive::write(folder.path(), &run(1), &vec![b' '; MAX_BYTES + 1], || None).unwrap_err();
    assert!(format!("{error:#}").contains("nobody reads more than 1048576"), "{error:#}");
    assert!(!folder.path().join("receipts").exists());
    let error = archive::write(folder.path(), &run(1), b"{}\n", || Some(vec![b' '; MAX_BYTES + 1])).unwrap_err();
    assert!(format!("{error:#}").contains("nobody reads more than 1048576"), "{error:#}");
    assert_eq!(fs::read_dir(folder.path().join("receipts")).unwrap().count(), 0);
}

/// A whole suite runs for a receipt: that there is a place for it is known before anybody queues.
#[test]
fn a_folder_that_takes_no_receipt_is_refused_before_anybody_queues() {
    let world = World::new(&one("touch target/ran"));
    let receipts = world.repo.join("receipts");
    let refused = |command: Command, why: &str| {
        let done = Running::start(command, &world.folder).wait().expect(2);
        done.says("no receipt can be written to ").says(why);
        assert!(!world.repo.join("target").exists());
    };
    fs::write(&receipts, "").unwrap();
    refused(world.command(&["verify"]), "it is no folder");
    fs::remove_file(&receipts).unwrap();
    for place in [&receipts, &world.repo] {
        fs::create_dir_all(place).unwrap();
        fs::set_permissions(place, fs::Permissions::from_mode(0o555)).unwrap();
        let mut command = world.command(&["verify"]);
        // Root may write anywhere.
        if nix::unistd::geteuid().is_root() {
            let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(world.folder.path()).status();
            assert!(owned.unwrap().success());
            command.uid(65_534).gid(65_534);
        }
        refused(command, "Permission denied");
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        let _ = fs::remove_dir(&receipts);
    }
}
