//! The server's programs: where they are looked for, what they are given, and what is done with those that do not do as
//! they should. The programs here are the real ones behind a few lines of shell.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use socket2::{Domain, Socket, Type};
use xtask::service::Reply;
use xtask::suite::{Fill, Service};

use crate::interposed::compiled;
use crate::postgres::{Server, ask, service};
use crate::world::{Folder, Running, World, script, skipped, until};

/// A folder of programs that run this first. The server's user may write the files `said` and `begun` in it; `$here` is it.
struct Programs(Folder);

impl Programs {
    fn new(before: &str) -> Self {
        let programs = Self(Folder::new());
        programs.write(programs.0.path(), before);
        programs
    }

    fn write(&self, folder: &Path, before: &str) {
        let out = Command::new("pg_config").arg("--bindir").output().unwrap();
        let real = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        let before = before.replace("REAL", &real);
        for name in ["said", "begun"] {
            fs::write(self.file(name), "").unwrap();
            fs::set_permissions(self.file(name), PermissionsExt::from_mode(0o666)).unwrap();
        }
        for name in ["initdb", "postgres"] {
            let here = self.0.path().display();
            let text = format!("#!/bin/sh\nhere={here}; name={name}\n{before}\nexec {real}/{name} \"$@\"\n");
            script(&folder.join(name), &text);
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.file("said")).unwrap()
    }

    /// A host with these programs.
    fn server(&self, service: Service, change: impl FnOnce(&mut Command)) -> Server {
        Server::start_in(Folder::new(), service, |command| {
            change(self.of(command));
        })
    }

    fn verify(&self, world: &World) -> Running {
        Running::start(self.command(world), &world.folder)
    }

    fn command(&self, world: &World) -> Command {
        let mut command = world.command(&["verify"]);
        self.of(&mut command);
        command
    }

    /// Tells a command of these programs, and of a cache of its own, so that initdb runs too.
    fn of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("XTASK_PG_BINDIR", self.0.path()).env("XDG_CACHE_HOME", self.0.path())
    }
}

/// Until the file `go` is there, this program waits.
const WAIT: &str = "echo x >>$here/begun; while [ ! -e $here/go ]; do sleep 0.05; done";

#[test]
fn programs_have_the_locale_c_and_nothing_that_the_user_set_for_other_servers() {
    let programs = Programs::new("[ \"$1\" = --version ] || { echo \"ran $name\"; env; } >>$here/said");
    let mut server = programs.server(service(Fill::Empty), |command| {
        let foreign = [("LC_ALL", "xx_YY.UTF-8"), ("TZ", "Asia/Tokyo"), ("PGDATA", "/nowhere"), ("PGTZ", "Asia/Tokyo")];
        command.envs(foreign);
    });
    server.database("a");
    server.stop();
    let said = programs.said();
    let count = |line: &str| said.lines().filter(|found| *found == line).count();
    assert_eq!(
        [count("ran initdb"), count("ran postgres"), count("LC_ALL=C"), count("TZ=UTC")],
        [1, 1, 2, 2],
        "{said}"
    );
    assert!(!said.contains("\nPG"), "{said}");
}

#[test]
fn a_strategy_is_asked_for_only_where_there_are_some() {
    let old = "case \"$*\" in --version) echo 'postgres (PostgreSQL) 14.99'; exit;; esac\n";
    for (before, asked) in [(old, false), ("", true)] {
        let log = "[ \"$1\" = -D ] && set -- \"$@\" -c log_statement=all";
        let programs = Programs::new(&format!("{before}{log}"));
        let mut server = programs.server(service(Fill::Empty), |_| {});
        server.database("a");
        let log = server.log();
        assert!(log.contains("CREATE DATABASE"), "{log}");
        assert_eq!(log.contains("STRATEGY"), asked, "{log}");
        server.stop();
    }
}

#[test]
fn a_program_that_hangs_is_passed_over() {
    let programs = Programs::new("sleep 1000 & sleep 1000");
    let mut server = programs.server(service(Fill::Empty), |_| {});
    let why = server.failure();
    assert!(why.contains("postgres --version did not end within 10s"), "{why}");
    server.stop();
}

#[test]
fn what_a_program_leaves_running_keeps_nobody_waiting_for_its_version() {
    let programs = Programs::new("[ \"$1\" = --version ] && { sleep 1000 & }");
    let mut server = programs.server(service(Fill::Empty), |_| {});
    server.database("a");
    server.stop();
}

#[test]
fn a_folder_that_is_not_absolute_is_one_of_the_repository() {
    let programs = Programs::new("");
    for (variable, value) in [("XTASK_PG_BINDIR", "tools/pg"), ("PATH", "tools/pg:/usr/bin:/bin")] {
        let folder = Folder::new();
        let bin = folder.path().join("repo/tools/pg");
        fs::create_dir_all(&bin).unwrap();
        programs.write(&bin, "echo x >>$here/said");
        let mut server = Server::start_in(folder, service(Fill::Empty), |command| {
            command.env(variable, value).current_dir("/");
        });
        server.database("a");
        assert!(!programs.said().is_empty(), "{variable}={value}");
        server.stop();
    }
}

#[test]
fn what_initdb_made_is_read_without_following_links_or_reading_what_is_not_its_own() {
    let changed = |change: &str| {
        let initdb = format!("REAL/initdb \"$@\"; for data; do :; done; {change}; exit 0");
        let programs = Programs::new(&format!("[ $name = initdb ] && {{ {initdb}; }}"));
        fs::write(programs.file("secret"), "secret").unwrap();
        let why = programs.server(service(Fill::Empty), |_| {}).failure();
        assert!(fs::read_dir(programs.file("xtask")).unwrap().count() <= 1, "a lock and no cluster");
        why
    };
    let why = changed("ln -sf $here/secret $data/PG_VERSION");
    assert!(why.contains("cannot read initdb's PG_VERSION"), "{why}");
    let why = changed("mkfifo $data/pipe");
    assert!(why.contains("pipe is not what initdb made"), "{why}");
    // Somebody else's file, which takes root to put there.
    if crate::postgres_users::is_root() {
        let shared = Folder::new();
        fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let secret = shared.path().join("secret");
        fs::write(&secret, "secret").unwrap();
        let move_it = format!("mv {} $data/secret && [ ! -O $data/secret ]", secret.display());
        let why = changed(&move_it);
        assert!(why.contains("secret is not what initdb made"), "{why}");
    }
}

#[test]
fn what_is_got_ready_before_the_start_is_not_the_start() {
    let programs = Programs::new(&format!("[ $name = initdb ] && {{ {WAIT}; }}"));
    let mut server = programs.server(service(Fill::Empty), |_| {});
    until("initdb to begin", || fs::read(programs.file("begun")).unwrap() != b"");
    assert_eq!(server.heard(), []);
    fs::write(programs.file("go"), "").unwrap();
    until("the start", || server.heard().contains(&Reply::Starting));
    server.database("a");
    server.stop();
}

const SUITE: &str = r#"
schema = 1
[run]
deadline = "3m"
queue = "1m"
[service.postgres]
start = "8s"
[task.a]
command = ["psql", "-c", "select 1"]
services = ["postgres"]
deadline = "10s"
"#;

#[test]
fn the_limit_of_a_start_is_not_spent_on_getting_ready_and_who_waits_is_told() {
    let programs = Programs::new(&format!("[ $name = initdb ] && {{ {WAIT}; }}"));
    let world = World::new(SUITE);
    let mut run = programs.verify(&world);
    run.wait_for("a waits for postgres (getting its programs and files)"); // after 10 s, more than its limit
    fs::write(programs.file("go"), "").unwrap();
    run.wait().expect(0);
}

#[test]
fn a_start_that_hangs_is_seen_while_it_hangs_and_when_it_is_late() {
    let programs = Programs::new(&format!("[ \"$1\" = -D ] && {{ {WAIT}; }}"));
    // With a cluster in the cache getting ready takes no time, and the first words about the wait are of the start.
    fs::write(programs.file("go"), "").unwrap();
    programs.verify(&World::new(SUITE)).wait().expect(0);
    fs::remove_file(programs.file("go")).unwrap();
    let suite = SUITE.replace("start = \"8s\"", "start = \"10m\"");
    let world = World::new(&suite);
    let mut run = programs.verify(&world);
    run.wait_for("a waits for postgres (starting, ");
    run.signal(Signal::SIGINT);
    run.wait().expect(130).says("a was still waiting for postgres (starting, ");
    // Reading the tree first may take so long that a short run is late before those words are due.
    let world = World::new(&suite.replace("\"3m\"", "\"24s\"\nwrap-up = \"8s\""));
    // In a background job of a shell, where SIGQUIT is ignored, the server is asked to end by it all the same.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' QUIT; exec \"$0\" verify", env!("CARGO_BIN_EXE_xtask")]);
    world.dress(programs.of(&mut command));
    let done = Running::start(command, &world.folder).wait().expect(3);
    done.says("a was still waiting for postgres (starting, ").says(" of 10m");
}

/// Nothing is left of the run's time when its processes are ended: each is given a moment to die all the same.
#[test]
fn what_is_killed_at_the_last_moment_is_not_said_to_outlive_sigkill() {
    // It does not end when it is asked to: it is there when the last is killed.
    let programs = Programs::new(&format!("[ \"$1\" = -D ] && {{ trap '' QUIT; {WAIT}; }}"));
    let (begun, still) = (programs.file("begun"), programs.file("still"));
    let wait = format!("until test -s {}; do sleep 0.05; done; touch {}", begun.display(), still.display());
    let other = format!("[task.still]\ncommand = ['sh', '-c', '{wait}; (true &); sleep 1000']\ndeadline = \"2m\"\n");
    let world = World::new(&format!("{}{other}", SUITE.replace("start = \"8s\"", "start = \"10m\"")));
    let Some(library) = compiled(&world) else {
        return skipped("what_is_killed_at_the_last_moment_is_not_said_to_outlive_sigkill", "there is no C compiler");
    };
    let mut command = programs.command(&world);
    command.env("LD_PRELOAD", library).env("INTERPOSED_STANDSTILL", still);
    let done = Running::start(command, &world.folder).wait().expect(3);
    assert!(!done.err.contains("does not die"), "{}", done.err);
}

#[test]
fn a_server_that_does_not_start_says_why_and_where_its_log_is() {
    let last = "for n in 1 2 3 4 5 6 7; do echo \"LOG:  and $n\"; done";
    let programs = Programs::new(&format!("[ \"$1\" = -D ] && {{ echo 'FATAL:  the reason'; {last}; exit 1; }} >&2"));
    let world = World::new(SUITE);
    let done = programs.verify(&world).wait().expect(1);
    let done = done.says("the server has ended (exit status: 1): FATAL:  the reason");
    let log = log_named(&done.err);
    assert!(log.ends_with("/service@postgres.log"), "{log}");
    assert!(fs::read_to_string(world.repo.join(log)).unwrap().contains("the reason"));
}

/// The log that the ending names.
pub fn log_named(screen: &str) -> &str {
    screen.lines().find_map(|line| line.trim().strip_prefix("log ")).expect("a line with the log").trim()
}

#[test]
fn a_version_that_nobody_has_is_refused_before_the_queue() {
    let world = World::new(&SUITE.replace("start = \"8s\"", "start = \"8s\"\nversion = \">=99\""));
    // The lists of packages, as a machine may have them.
    let tool = world.folder.path().join("apt-cache");
    script(&tool, "#!/bin/sh\nprintf 'postgresql-9\\npostgresql-15\\npostgresql-common\\n'\n");
    let mut command = world.command(&["verify"]);
    command.env("PATH", format!("{}:{}", world.folder.path().display(), std::env::var("PATH").unwrap()));
    let done =
        Running::start(command, &world.folder).wait().expect(2).says(": is version 1").says("version 99 or later");
    if Path::new("/var/lib/dpkg/status").exists() {
        done.says("the lists of the distribution's packages have version 15");
    }
}

#[test]
fn the_port_is_kept_until_the_server_listens() {
    let programs = Programs::new(&format!("[ \"$1\" = -D ] && {{ echo \"$*\" >$here/said; {WAIT}; }}"));
    let mut server = programs.server(Service { tcp: true, ..service(Fill::Empty) }, |_| {});
    until("the server to be started", || fs::read(programs.file("begun")).unwrap() != b"");
    let said = programs.said();
    let port: u16 = said.split_whitespace().find_map(|word| word.strip_prefix("port=")).unwrap().parse().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let bound = socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into());
    assert_eq!(bound.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    fs::write(programs.file("go"), "").unwrap();
    assert_eq!(ask(&server.database("a"), "select inet_server_port()"), [port.to_string()]);
    server.stop();
}

#[test]
fn a_program_that_is_no_server_is_passed_over_with_what_it_said() {
    let programs = Programs::new("echo nonsense 15.2; exit");
    let mut server = programs.server(service(Fill::Empty), |_| {});
    let why = server.failure();
    assert!(why.contains("does not run: nonsense 15.2"), "{why}");
    server.stop();
}
