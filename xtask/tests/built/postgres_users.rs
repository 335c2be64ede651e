//! The service through the whole program, for every kind of user and place. Changing the user takes root: as somebody
//! else, the tests run as that user alone.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use crate::world::{Done, Running, World, may_mount, skipped};

/// The task writes what the server says of itself, and keeps it until the test has looked at its process.
const SUITE: &str = r#"
schema = 1
[run]
deadline = "4m"
queue = "1m"
[service.postgres]
start = "60s"
[task.ask]
command = ["sh", "-c", "psql -XAtqc \"select version(); show data_directory; select pg_read_file('postmaster.pid')\" >said && stat -c %u $(sed -n 2p said) >>said && psql -XAtqc 'show lc_messages'"]
services = ["postgres"]
deadline = "1m"
"#;

pub fn is_root() -> bool {
    nix::unistd::Uid::effective().is_root()
}

/// A world whose repository is below folders of these names, and everything of it this user's.
fn world_of(user: u32, place: &str) -> World {
    let world = World::at(place, SUITE);
    world.write(".gitignore", "/target\n/receipts/\n/said\n");
    world.commit("what the task writes is ignored");
    let program = world.folder.path().join("bin/xtask");
    fs::create_dir(world.folder.path().join("bin")).unwrap();
    crate::world::copy_program(env!("CARGO_BIN_EXE_xtask").as_ref(), &program);
    let owner = format!("{user}:{user}");
    assert!(Command::new("chown").args(["-R", &owner]).arg(world.folder.path()).status().unwrap().success());
    world
}

/// Runs `verify` as that user.
fn verify_as(world: &World, user: u32, change: impl FnOnce(&mut Command)) -> Done {
    let inner = world.command(&["verify"]);
    let mut command = Command::new("setpriv");
    let id = user.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).arg(world.folder.path().join("bin/xtask"));
    command.args(inner.get_args()).current_dir(&world.repo);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    change(&mut command);
    Running::start(command, &world.folder).wait()
}

/// What the server said: its data folder, and whose that was.
fn said(world: &World) -> (String, u32) {
    let text = fs::read_to_string(world.repo.join("said")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("PostgreSQL "), "{text}");
    assert!(!Path::new(lines[1]).exists(), "{text}");
    (lines[1].to_owned(), lines.last().unwrap().parse().unwrap())
}

#[test]
fn root_has_an_unprivileged_server() {
    let world = World::new(SUITE);
    world.write(".gitignore", "/target\n/receipts/\n/said\n");
    world.commit("what the task writes is ignored");
    world.run(&["verify"]).expect(0);
    let (_, owner) = said(&world);
    assert_ne!(owner, 0);
    if !is_root() {
        assert_eq!(owner, nix::unistd::Uid::effective().as_raw());
    }
}

#[test]
fn an_ordinary_user_in_closed_and_deep_folders_without_home_and_with_a_locale_that_is_not_there() {
    if !is_root() {
        return skipped("an_ordinary_user_in_closed_and_deep_folders", "the test above has run as an ordinary user");
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().expect("nobody").uid.as_raw();
    let world = world_of(nobody, &format!("closed/{}/repo", "long-".repeat(28)));
    fs::set_permissions(world.folder.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(world.repo.as_os_str().len() > 150);
    let done = verify_as(&world, nobody, |command| {
        command.env_remove("HOME").env_remove("XDG_CACHE_HOME").env("LANG", "xx_YY.UTF-8").env("LC_ALL", "xx_YY.UTF-8");
        command.env("TMPDIR", world.folder.path());
    });
    done.expect(0);
    let (data, owner) = said(&world);
    assert_eq!(owner, nobody, "{data}");
}

#[test]
fn a_user_without_an_entry_in_passwd() {
    if !is_root() {
        return skipped("a_user_without_an_entry_in_passwd", "it takes root to be somebody else");
    }
    let user = 54_321;
    assert!(nix::unistd::User::from_uid(user.into()).unwrap().is_none());
    let world = world_of(user, "repo");
    verify_as(&world, user, |command| {
        command.env("XDG_CACHE_HOME", world.folder.path());
    })
    .expect(0);
    assert_eq!(said(&world).1, user);
}

#[test]
fn a_small_dev_shm_is_not_used() {
    if !is_root() || !may_mount() {
        return skipped("a_small_dev_shm_is_not_used", "mounts take a root that may");
    }
    let world = World::new(SUITE);
    if world.repo.starts_with("/dev/shm") {
        return skipped("a_small_dev_shm_is_not_used", "the tests themselves use it (TMPDIR)");
    }
    world.write(".gitignore", "/target\n/receipts/\n/said\n");
    world.commit("what the task writes is ignored");
    let inner = world.command(&["verify"]);
    let mut command = Command::new("unshare");
    let script = "mount -t tmpfs -o size=64m none /dev/shm && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    command.current_dir(&world.repo);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // Where the program chooses. The mount is a new one: nobody else's folders are in there.
    command.env_remove("XTASK_SCRATCH").env("TMPDIR", world.scratch());
    Running::start(command, &world.folder).wait().expect(0);
    let (data, _) = said(&world);
    assert!(data.starts_with(world.scratch().to_str().unwrap()), "{data}");
}

#[test]
fn root_serves_as_the_owner_of_the_checkout() {
    if !is_root() {
        return skipped("root_serves_as_the_owner_of_the_checkout", "this is not root");
    }
    let folder = crate::world::Folder::new();
    let repo = folder.path().join("repo");
    fs::create_dir(&repo).unwrap();
    std::os::unix::fs::chown(&repo, Some(54_321), Some(54_321)).unwrap();
    let fill = crate::postgres::service(xtask::suite::Fill::Empty);
    let mut server = crate::postgres::Server::start_in(folder, fill, |_| {});
    let env = server.database("a");
    let pid = crate::postgres::postmaster(&env);
    assert_eq!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), 54_321, "no entry in passwd, and no need for one");
    server.stop();
}
