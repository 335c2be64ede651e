//! The service host driven directly, without a run around it. Every answer is the server's own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;

use xtask::name::Name;
use xtask::service::{self, Env, Link, Reply, Spec};
use xtask::suite::{Fill, Service};

use crate::world::{Folder, PATIENCE, rules_the_server, skipped, until};

/// A host and what belongs to it.
pub struct Server {
    pub folder: Folder,
    pub scratch: PathBuf,
    pub child: Child,
    pub link: Option<Link>,
    replies: Vec<Reply>,
}

pub fn service(fill: Fill) -> Service {
    Service { line: 1, at_least: 14, fill, start: PATIENCE, tcp: false }
}

/// A cache for all tests of this user, so that initdb runs once.
pub fn cache() -> PathBuf {
    std::env::temp_dir().join(format!("xtask-test-cache-{}", nix::unistd::Uid::effective()))
}

impl Server {
    fn start(fill: Fill) -> Self {
        Self::start_in(Folder::new(), service(fill), |_| {})
    }

    /// `change`: a last word on the command of the host.
    pub fn start_in(folder: Folder, service: Service, change: impl FnOnce(&mut Command)) -> Self {
        Self::launch(folder, &[], service, change)
    }

    /// A host that these words start, with what is to be started behind them.
    pub fn start_under(words: &[&str], service: Service, change: impl FnOnce(&mut Command)) -> Self {
        Self::launch(Folder::new(), words, service, change)
    }

    fn launch(folder: Folder, words: &[&str], service: Service, change: impl FnOnce(&mut Command)) -> Self {
        let (root, scratch) = (folder.path().join("repo"), folder.path().join("s"));
        for path in [&root, &scratch] {
            fs::create_dir_all(path).unwrap();
        }
        let spec = Spec { name: Name::parse("postgres").unwrap(), service, root, scratch: scratch.clone() };
        let (link, stdin) = Link::new(&spec).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let words = [words, &[env!("CARGO_BIN_EXE_xtask"), "internal-service"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(stdin).stdout(log.try_clone().unwrap()).stderr(log);
        command.env("XDG_CACHE_HOME", cache());
        change(&mut command);
        let child = command.spawn().unwrap();
        Self { folder, scratch, child, link: Some(link), replies: Vec::new() }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Reads until a reply is what is asked for. A failure that is not asked for fails the test.
    #[track_caller]
    fn reply<T>(&mut self, what: &str, wanted: impl Fn(&Reply) -> Option<T>) -> T {
        let mut found = None;
        until(what, || {
            self.replies.extend(self.link.as_mut().expect("a link").on_readable());
            let at = self.replies.iter().position(|reply| wanted(reply).is_some());
            found = at.map(|at| wanted(&self.replies.remove(at)).unwrap());
            let failed = self.replies.iter().find(|reply| matches!(reply, Reply::Failed(_) | Reply::Refused { .. }));
            assert!(found.is_some() || failed.is_none(), "{failed:?}; log:\n{}", self.log());
            found.is_some()
        });
        found.unwrap()
    }

    /// What it has said so far and nobody has asked for.
    pub fn heard(&mut self) -> &[Reply] {
        self.replies.extend(self.link.as_mut().expect("a link").on_readable());
        &self.replies
    }

    pub fn ask(&mut self, task: &str) {
        self.link.as_mut().unwrap().request(&Name::parse(task).unwrap()).unwrap();
    }

    /// The variables of a task, those that are taken away left out.
    #[track_caller]
    pub fn database(&mut self, task: &str) -> BTreeMap<String, String> {
        self.ask(task);
        self.handed_out(task)
    }

    #[track_caller]
    pub fn handed_out(&mut self, name: &str) -> BTreeMap<String, String> {
        let env: Env = self.reply(&format!("a database for {name}"), |reply| match reply {
            Reply::HandedOut { task, env } if task.as_str() == name => Some(env.clone()),
            _ => None,
        });
        env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    #[track_caller]
    pub fn failure(&mut self) -> String {
        self.reply("a failure", |reply| match reply {
            Reply::Failed(why) => Some(why.clone()),
            _ => None,
        })
    }

    /// Hangs up; nothing may be left.
    #[track_caller]
    pub fn stop(&mut self) {
        self.link = None;
        self.child.wait().unwrap();
        let left: Vec<PathBuf> = fs::read_dir(&self.scratch).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}; log:\n{}", self.log());
    }
}

/// What psql says.
pub fn psql(env: &BTreeMap<String, String>, sql: &str) -> Output {
    Command::new("psql").envs(env).args(["-XAtqc", sql]).output().unwrap()
}

/// Asks the server of these variables; its rows.
#[track_caller]
pub fn ask(env: &BTreeMap<String, String>, sql: &str) -> Vec<String> {
    let out = psql(env, sql);
    assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

/// The server's own process, as it says itself, and its segment of shared memory (none left to be found: `forgotten`).
pub fn postmaster(env: &BTreeMap<String, String>) -> i32 {
    ask(env, "select pg_read_file('postmaster.pid')")[0].parse().unwrap()
}

pub fn lives(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Processes that work in a folder below this one.
pub fn processes_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let inside = entries.filter(|path| fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder)));
    inside.map(|path| format!("{}: {:?}", path.display(), fs::read_to_string(path.join("cmdline")))).collect()
}

/// A segment of shared memory, by /proc/sysvipc/shm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub key: i32,
    pub id: i32,
    /// Octal; 1000 of it means that it goes with the last process that uses it.
    pub mode: String,
    pub creator: i32,
    pub attached: u32,
}

impl Segment {
    /// Whether nobody will ever take it away.
    pub fn is_left(&self) -> bool {
        self.attached == 0 && !lives(self.creator)
    }
}

pub fn segments() -> Vec<Segment> {
    let text = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let row = |row: &str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let number = |at: usize| fields[at].parse().unwrap();
        let (mode, attached) = (fields[2].to_owned(), fields[6].parse().unwrap());
        Segment { key: number(0), id: number(1), mode, creator: number(4), attached }
    };
    text.lines().skip(1).map(row).collect()
}

pub fn segments_of(creator: i32) -> Vec<Segment> {
    segments().into_iter().filter(|segment| segment.creator == creator).collect()
}

#[test]
fn a_server_of_the_run_and_nobody_elses() {
    if !rules_the_server() {
        return skipped(
            "a_server_of_the_run_and_nobody_elses",
            "root may not look into the server's processes here, nor take its segments away",
        );
    }
    let mut server = Server::start(Fill::Empty);
    let env = server.database("a");
    let data = server.scratch.join("postgres/data");
    assert_eq!(ask(&env, "show data_directory"), [data.to_str().unwrap()]);
    assert!(ask(&env, "select version()")[0].starts_with("PostgreSQL "));
    assert_eq!(ask(&env, "show listen_addresses"), [""]);
    let pid = postmaster(&env);
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), data);
    server.stop();
    assert!(!lives(pid));
    assert_eq!(segments_of(pid), []);
}

#[test]
fn eight_tasks_have_eight_databases_and_none_has_the_template() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path().join("repo/db")).unwrap();
    fs::write(folder.path().join("repo/db/1.sql"), "create table t (x int); insert into t values (7)").unwrap();
    let mut server = Server::start_in(folder, service(Fill::Migrations("db".to_owned())), |_| {});
    // Names that differ in a dot and a dash alone, and one as long as names get.
    let long = "n".repeat(64);
    let names = ["a", "b.c", "b-c", "b_c", "e", "f", "g", &long];
    names.iter().for_each(|name| server.ask(name));
    let all: Vec<_> = names.iter().map(|name| server.handed_out(name)).collect();
    std::thread::scope(|scope| {
        for (number, env) in all.iter().enumerate() {
            scope.spawn(move || {
                assert_eq!(ask(env, "select x from t"), ["7"], "a copy of the template");
                ask(env, &format!("insert into t values ({number})"));
            });
        }
    });
    let mut databases: Vec<_> = all.iter().map(|env| ask(env, "select current_database()").remove(0)).collect();
    databases.sort();
    databases.dedup();
    assert_eq!(databases.len(), 8, "{databases:?}");
    assert!(databases.iter().all(|name| !name.contains("template") && name.len() < 64), "{databases:?}");
    for (number, env) in all.iter().enumerate() {
        assert_eq!(ask(env, "select x from t"), ["7".to_owned(), number.to_string()], "its own rows alone");
    }
    // The template refuses everybody, so that no task can change what the next one gets.
    let mut env = all[0].clone();
    env.insert("PGDATABASE".to_owned(), "xtask_template".to_owned());
    let out = psql(&env, "select 1");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("not currently accepting connections"), "{said}");
    // A task that drops its database hurts nobody.
    env.insert("PGDATABASE".to_owned(), "postgres".to_owned());
    ask(&env, &format!("drop database {} with (force)", databases[0]));
    assert_eq!(ask(&server.database("later"), "select x from t"), ["7"]);
    server.stop();
}

#[test]
fn without_anything_to_copy_no_task_sees_what_another_did_to_template1() {
    let mut server = Server::start(Fill::Empty);
    let mut env = server.database("a");
    env.insert("PGDATABASE".to_owned(), "template1".to_owned());
    ask(&env, "create table spoiled (x int)");
    assert_eq!(ask(&server.database("b"), "select count(*) from pg_class where relname = 'spoiled'"), ["0"]);
    server.stop();
}

/// Some of what libpq, the server, or a later version of either reads.
const FOREIGN: [&str; 12] = [
    "PGSERVICE",
    "PGPASSFILE",
    "PGPASSWORD",
    "PGOPTIONS",
    "PGSSLMODE",
    "PGSSLCERT",
    "PGHOSTADDR",
    "PGREQUIREPEER",
    "PGREQUIREAUTH",
    "PGCLIENTENCODING",
    "PGDATA",
    "PGOFTHEFUTURE",
];

#[test]
fn what_the_user_has_set_for_other_servers_does_not_reach_a_task() {
    let mut server = Server::start_in(Folder::new(), service(Fill::Empty), |command| {
        command.envs(FOREIGN.map(|name| (name, "nonsense")));
    });
    server.ask("a");
    let env: Env = server.reply("a database", |reply| match reply {
        Reply::HandedOut { env, .. } => Some(env.clone()),
        _ => None,
    });
    for name in FOREIGN {
        assert_eq!(env[name], None, "{name} is taken away");
    }
    server.stop();
    // Nor the command that sets a database up.
    let script = format!("for name in {}; do eval echo \"$name=[\\$$name]\"; done; exit 1", FOREIGN.join(" "));
    let setup = Fill::Setup(["sh", "-c", &script].map(str::to_owned).to_vec());
    let mut server = Server::start_in(Folder::new(), service(setup), |command| {
        command.envs(FOREIGN.map(|name| (name, "nonsense")));
    });
    let why = server.failure();
    for name in FOREIGN {
        assert!(server.log().contains(&format!("{name}=[]\n")), "{name} is taken away: {why}\n{}", server.log());
    }
    server.stop();
}

#[test]
fn tcp_asks_for_the_password() {
    let mut server = Server::start_in(Folder::new(), Service { tcp: true, ..service(Fill::Empty) }, |_| {});
    let mut env = server.database("a");
    let url = env["DATABASE_URL"].clone();
    assert!(url.starts_with("postgresql://postgres:") && url.contains("@127.0.0.1:"), "{url}");
    let by_url = Command::new("psql").args(["-XAtqc", "select inet_server_addr()", &url]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&by_url.stdout).trim(), "127.0.0.1", "{by_url:?}");
    assert_eq!(ask(&env, "select inet_server_port()"), [env["PGPORT"].clone()]);
    env.insert("PGPASSWORD".to_owned(), "wrong".to_owned());
    let out = psql(&env, "select 1");
    assert!(String::from_utf8_lossy(&out.stderr).contains("password authentication failed"), "{out:?}");
    server.stop();
}

#[test]
fn the_socket_is_closed_to_other_users() {
    let mut server = Server::start(Fill::Empty);
    let env = server.database("a");
    let folder = fs::metadata(&env["PGHOST"]).unwrap().permissions().mode();
    assert_eq!(folder & 0o777, 0o700, "{folder:o}");
    server.stop();
}

#[test]
fn whoever_kills_the_server_is_told_of_and_nothing_is_left() {
    if !rules_the_server() {
        return skipped(
            "whoever_kills_the_server_is_told_of_and_nothing_is_left",
            "root may not look into the server's processes here, nor take its segments away",
        );
    }
    let mut server = Server::start(Fill::Empty);
    let env = server.database("a");
    let pid = postmaster(&env);
    // A busy process does not notice that the server is gone.
    let mut busy = Command::new("psql");
    let forever = "select count(*) from generate_series(1, 1000000) busy, generate_series(1, 1000000) other";
    let mut busy = busy.envs(&env).args(["-c", forever]).stderr(std::process::Stdio::null()).spawn().unwrap();
    until("a busy process", || ask(&env, "select count(*) from pg_stat_activity where query like '%busy%'") == ["2"]);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let why = server.failure();
    assert!(why.contains("the server has ended (signal: 9"), "{why}");
    busy.wait().unwrap();
    server.child.wait().unwrap();
    assert_eq!(processes_in(server.folder.path()), Vec::<String>::new());
    assert_eq!(segments_of(pid), []);
    server.stop();
}

#[test]
fn a_server_that_lost_a_process_goes_on() {
    if !rules_the_server() {
        return skipped(
            "a_server_that_lost_a_process_goes_on",
            "root may not look into the server's processes here, nor take its segments away",
        );
    }
    let mut server = Server::start(Fill::Empty);
    let env = server.database("a");
    let pid = postmaster(&env);
    let out = psql(&env, "copy (select 1) to program 'kill -9 $PPID'");
    assert!(!out.status.success(), "{out:?}");
    until("the server to notice", || server.log().contains("reinitializing"));
    let again = server.database("b");
    assert_eq!(postmaster(&again), pid, "the same server");
    // It has a new segment of shared memory, which must not outlive it either.
    until("the new segment to be forgotten", || segments_of(pid).iter().all(|segment| segment.mode == "1600"));
    server.stop();
    assert_eq!(segments_of(pid), []);
}

#[test]
fn a_server_that_lets_nobody_in_is_given_up_at_once() {
    let mut server = Server::start(Fill::Empty);
    let env = server.database("a");
    let began = std::time::Instant::now();
    // The server may be gone before it has answered.
    psql(&env, "drop database postgres with (force)");
    let why = server.failure();
    assert!(why.contains("lets nobody in") && why.contains("database \"postgres\" does not exist"), "{why}");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    server.stop();
}

#[test]
fn a_host_that_is_killed_takes_the_server_with_it() {
    let mut server = Server::start(Fill::Empty);
    let env = server.database("a");
    let pid = postmaster(&env);
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    // Nobody has swept: the kernel tells the server.
    until("the server to end", || !lives(pid) || fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.is_empty()));
    until("its processes to end", || processes_in(server.folder.path()).is_empty());
    assert_eq!(segments_of(pid), []);
    service::sweep(&server.scratch);
    server.stop();
}

#[test]
fn a_server_that_is_killed_before_its_segment_is_forgotten_leaves_one_and_the_sweep_finds_it() {
    if !rules_the_server() {
        return skipped(
            "a_server_that_is_killed_before_its_segment_is_forgotten_leaves_one_and_the_sweep_finds_it",
            "root may not look into the server's processes here, nor take its segments away",
        );
    }
    let mut server = Server::start(Fill::Empty);
    let pid = server.scratch.join("postgres/data/postmaster.pid");
    // From the first line of that file on there is a segment; the host forgets it some 30 ms later, once it is ready.
    // Stopped in between, it cannot.
    until("a segment", || fs::read_to_string(&pid).is_ok_and(|text| text.lines().count() >= 7));
    let host = nix::unistd::Pid::from_raw(server.child.id() as i32);
    nix::sys::signal::kill(host, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let creator = fs::read_to_string(&pid).unwrap().lines().next().unwrap().parse::<i32>().unwrap();
    // The kernel would have the server quit in good order if its host were killed first.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(creator), nix::sys::signal::Signal::SIGKILL).unwrap();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    service::sweep(&server.scratch);
    assert_eq!(segments_of(creator), []);
    assert_eq!(processes_in(server.folder.path()), Vec::<String>::new());
    server.stop();
}

#[test]
fn a_run_that_is_over_ends_a_start_in_the_middle() {
    let script = "setsid sleep 1000 & echo begun; sleep 1000";
    let setup = Fill::Setup(["sh", "-c", script].map(str::to_owned).to_vec());
    for reached in ["", "output"] {
        let mut server = Server::start(setup.clone());
        let file = server.scratch.join("postgres").join(reached);
        until("the start to get there", || {
            file.exists() && (reached.is_empty() || fs::read(&file).unwrap() == b"begun\n")
        });
        let began = std::time::Instant::now();
        server.stop();
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert_eq!(processes_in(server.folder.path()), Vec::<String>::new(), "setup runs in the repository");
    }
}

#[test]
fn programs_that_are_not_there_are_named() {
    let named = |folder: &str| {
        let folder = folder.to_owned();
        let mut server = Server::start_in(Folder::new(), service(Fill::Empty), move |command| {
            command.env("XTASK_PG_BINDIR", folder);
        });
        server.failure()
    };
    let why = named("/nonexistent");
    assert!(why.contains("/nonexistent: has no initdb") && why.contains("XTASK_PG_BINDIR names that folder"), "{why}");
    let fake = Folder::new();
    for name in ["initdb", "postgres"] {
        crate::world::script(&fake.path().join(name), "#!/bin/sh\necho 'postgres (PostgreSQL) 9.6.24'\n");
    }
    let why = named(fake.path().to_str().unwrap());
    assert!(why.contains("is version 9.6.24") && why.contains("version 14 or later"), "{why}");
}
