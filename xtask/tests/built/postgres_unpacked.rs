//! A Debian machine without a server: the installed one, its libraries and the lists of packages are hidden by mounts, in a
//! mount namespace that takes root to make. The run itself is an ordinary user's.

use std::fs;
use std::process::Command;

use crate::world::{Done, Running, World, may_mount, skipped};

const SUITE: &str = r#"
schema = 1
[run]
deadline = "8m"
queue = "1m"
[service.postgres]
start = "60s"
[task.ask]
command = ["PSQL", "-XAtqc", "select version(); show data_directory", "-o", "said"]
services = ["postgres"]
deadline = "1m"
env = { LD_LIBRARY_PATH = "LIBRARIES" }
"#;

/// Hides, then becomes an ordinary user and runs the rest of its arguments. $1: a file for the state of packages without
/// those that are hidden; $2: what else to hide; $3: a package that only seems not to be installed; $4: the user.
const HIDE: &str = r#"
set -e
status=$1; also=$2; missing=$3; user=$4; shift 4
packages=$(dpkg-query -W -f '${Package}\n' | grep -E '^(postgresql.*|libpq5|libicu[0-9]+|libxml2|libldap-[0-9.-]+|libxslt1[.]1|libsasl2-2)$')
awk -v hide="$packages
$missing" '
    BEGIN { n = split(hide, h, "\n"); for (i = 1; i <= n; i++) gone[h[i]]; RS = ""; ORS = "\n\n" }
    !($2 in gone)' /var/lib/dpkg/status >$status
for file in $(dpkg-query -L $packages | grep -E '/lib[^/]*[.]so[^/]*$') $also; do
    if [ -f $file ] && [ ! -L $file ]; then mount --bind /dev/null $file; fi
done
for folder in /usr/lib/postgresql /usr/share/postgresql /var/lib/apt/lists; do mount -t tmpfs none $folder; done
mount --bind $status /var/lib/dpkg/status
[ $user != 0 ] || umask 077
exec setpriv --reuid $user --regid $user --clear-groups "$@"
"#;

/// A repository of the user `nobody`, with a psql that works without what will be hidden.
fn world() -> World {
    let world = World::new("");
    let top = world.folder.path();
    let copy = r#"
        mkdir -p "$1/bin" "$1/lib" && cp "$2" "$1/bin/xtask"
        psql=$(ls -d /usr/lib/postgresql/*/bin/psql | tail -n 1) && cp $psql "$1/bin/psql"
        cp $(ldd $psql | grep -oE '/[^ ]*/(libpq|libldap|liblber|libsasl)[^ ]*') "$1/lib"
    "#;
    let program = env!("CARGO_BIN_EXE_xtask");
    assert!(Command::new("sh").args(["-ec", copy, "sh"]).arg(top).arg(program).status().unwrap().success());
    let suite = SUITE.replace("PSQL", &top.join("bin/psql").display().to_string());
    world.write("ci/suite.toml", &suite.replace("LIBRARIES", &top.join("lib").display().to_string()));
    world.write(".gitignore", "/target\n/receipts/\n/said\n");
    world.commit("a suite");
    assert!(Command::new("chown").args(["-R", "65534:65534"]).arg(top).status().unwrap().success());
    world
}

fn is_debian() -> bool {
    std::path::Path::new("/var/lib/dpkg/status").exists()
}

fn verify_without_server(world: &World, also: &str) -> Done {
    verify_as(world, (also, "", 65_534), |_| {})
}

fn verify_as(world: &World, (also, missing, user): (&str, &str, u32), change: impl FnOnce(&mut Command)) -> Done {
    let inner = world.command(&["verify"]);
    let top = world.folder.path();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", HIDE, "sh"]).arg(top.join("status"));
    command.args([also, missing, &user.to_string()]).arg(top.join("bin/xtask"));
    command.args(inner.get_args()).current_dir(&world.repo);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    // The test's own PATH may lead to a server that is hidden nowhere.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("XDG_CACHE_HOME", top.join("cache"));
    change(&mut command);
    Running::start(command, &world.folder).wait()
}

#[test]
fn a_machine_without_a_server_unpacks_one_and_without_the_package_tool_says_what_to_do() {
    if !nix::unistd::Uid::effective().is_root() || !may_mount() || !is_debian() {
        return skipped("a_machine_without_a_server_unpacks_one", "mounts take a root that may, and packages a Debian");
    }
    let world = world();
    let done = verify_without_server(&world, "/usr/bin/pg_config /usr/bin/apt-get").expect(2);
    let done = done.says("no PostgreSQL server, version 14 or later, was found").says("apt install postgresql");
    done.says("/usr/lib/postgresql/*/bin").says("XTASK_PG_BINDIR");
    assert!(world.receipts().is_empty() && !world.repo.join("said").exists(), "nothing ran");

    let done = verify_without_server(&world, "/usr/bin/pg_config").expect(0);
    done.says("getting one from the distribution's packages").says("unpacking postgresql-");
    let said = fs::read_to_string(world.repo.join("said")).unwrap();
    assert!(said.starts_with("PostgreSQL "), "{said}");

    // The next run has it, unless somebody damaged it.
    let again = verify_without_server(&world, "/usr/bin/pg_config").expect(0);
    assert!(!again.err.contains("unpacking"), "{}", again.err);
    let cache = world.folder.path().join("cache/xtask");
    let mut servers = fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let server = servers.find(|path| path.is_dir()).expect("an unpacked server");
    let bin = fs::read_dir(server.join("usr/lib/postgresql")).unwrap().next().unwrap().unwrap().path();
    let part = bin.join("lib/plpgsql.so");
    fs::write(&part, &fs::read(&part).unwrap()[..100]).unwrap();
    verify_without_server(&world, "/usr/bin/pg_config").expect(0).says("unpacking postgresql-");

    // Damage that no size shows is looked for once the server does not do as it should.
    let whole = fs::read(&part).unwrap();
    fs::write(&part, vec![0; whole.len()]).unwrap();
    let done = verify_without_server(&world, "/usr/bin/pg_config").expect(0);
    assert!(!done.err.contains("unpacking"), "nobody needed it: {}", done.err);
    let program = bin.join("bin/postgres");
    let whole = fs::read(&program).unwrap();
    let mut damaged = whole.clone();
    // The word that it has to find in its own files.
    let at = whole.windows(15).position(|window| window == b"postmaster.pid\0").unwrap();
    damaged[at] = b'/';
    fs::write(&program, damaged).unwrap();
    let done = verify_without_server(&world, "/usr/bin/pg_config").expect(1);
    done.says("the unpacked server is not used again, run once more: ").says("is damaged");
    verify_without_server(&world, "/usr/bin/pg_config").expect(0).says("unpacking postgresql-");
}

#[test]
fn what_apt_cannot_have_is_told_as_it_is() {
    if !nix::unistd::Uid::effective().is_root() || !may_mount() || !is_debian() {
        return skipped("what_apt_cannot_have_is_told_as_it_is", "mounts take a root that may, and packages a Debian");
    }
    let world = world();
    // A machine without a network: every mirror is behind a proxy that is not there.
    let config = world.folder.path().join("apt.conf");
    let proxy = |scheme: &str| format!("Acquire::{scheme}::Proxy \"http://127.0.0.1:9/\";\n");
    fs::write(&config, proxy("http") + &proxy("https") + "Acquire::Retries \"0\";\n").unwrap();
    let done = verify_as(&world, ("/usr/bin/pg_config", "", 65_534), |command| {
        command.env("APT_CONFIG", &config);
    });
    let done = done.expect(1).says("apt-get failed");
    assert!(!done.err.contains("packages have no PostgreSQL"), "{}", done.err);
    let log = fs::read_to_string(world.repo.join(crate::postgres_programs::log_named(&done.err))).unwrap();
    assert!(log.contains("apt install postgresql") && log.contains("XTASK_PG_BINDIR"), "{log}");

    // A C library that is not the system's own.
    let done = verify_as(&world, ("/usr/bin/pg_config", "libc6", 65_534), |_| {}).expect(1);
    done.says("the C library of this system is not one of its packages");
}

#[test]
fn root_finds_a_cache_that_the_servers_user_can_enter() {
    if !nix::unistd::Uid::effective().is_root() || !may_mount() || !is_debian() {
        return skipped(
            "root_finds_a_cache_that_the_servers_user_can_enter",
            "this is no root that may mount, or no Debian",
        );
    }
    let world = world();
    let top = world.folder.path();
    assert!(Command::new("chown").args(["-R", "0:0"]).arg(top).status().unwrap().success());
    let closed = top.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // And with the umask of a careful one.
    let done = verify_as(&world, ("/usr/bin/pg_config", "", 0), |command| {
        command.env("XDG_CACHE_HOME", &closed).env("TMPDIR", top);
    });
    done.expect(0).says("another cache is used").says("unpacking postgresql-");
    assert!(top.join("xtask-cache-0").is_dir());
}
