//! A throwaway PostgreSQL beside what people do without xtask.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xtask::name::Name;
use xtask::service::postgres::sql::Connection;
use xtask::service::{Link, Reply, Spec};
use xtask::suite::{Fill, Service};

use crate::peers::is_installed;
use crate::postgres_kills;
use crate::progress::Progress;
use crate::table::{Aim, Line, Row, Spread, Unit};
use crate::turns::ms;
use crate::world::program;

pub fn measure(progress: &Progress, rounds: usize) -> Vec<Row> {
    let first = Row::new("throwaway PostgreSQL, nothing to first query, warm", Unit::Ms).aim(Aim::Median(150.0));
    let whole = Row::new("the same, whole cycle", Unit::Ms).aim(Aim::Median(200.0));
    let cluster = by_hand_cluster();
    let cold: Vec<[Duration; 3]> = (0..3)
        .map(|round| {
            progress.round("PostgreSQL, cold", round, 3);
            let fresh = Memory::new("cold", false);
            ours(&fresh.0)
        })
        .collect();
    let cache = Memory::new("cache", false);
    ours(&cache.0);
    let (mut warm, mut hand) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        progress.round("PostgreSQL, warm", round, rounds);
        warm.push(ours(&cache.0));
        hand.extend(cluster.as_ref().map(|(bin, cluster)| by_hand(bin, &cluster.0.join("data"))));
    }
    progress.step("pg_virtualenv and pg_tmp");
    let virtualenv: Vec<Duration> = (0..2).filter_map(|_| pg_virtualenv()).collect();
    let tmp: Vec<Duration> = (0..3).filter_map(|_| pg_tmp()).collect();

    let column = |rows: &[[Duration; 3]], at: usize| ms(rows.iter().map(|row| row[at]));
    let by_hand =
        |at: usize| line("cp of a cluster, pg_ctl, createdb", &hand.iter().map(|row| row[at]).collect::<Vec<_>>());
    let virtualenv = line("pg_virtualenv psql", &virtualenv);
    vec![
        first.ours(column(&warm, 1)).beside([
            Line::new("xtask, cold: initdb for the cache", column(&cold, 1)),
            Line::new("xtask, until the server is ready", column(&warm, 0)),
            by_hand(0),
            virtualenv.clone(),
            line("pg_tmp, psql", &tmp),
        ]),
        whole.ours(column(&warm, 2)).beside([
            Line::new("xtask, cold: initdb for the cache", column(&cold, 2)),
            by_hand(1),
            virtualenv,
        ]),
    ]
}

fn line(name: &str, took: &[Duration]) -> Line {
    match took.is_empty() {
        true => Line::missing(name, "not installed"),
        false => Line::new(name, ms(took.iter().copied())),
    }
}

/// The row of what is run by name only.
pub fn kills_row() -> Row {
    Row::new("what is left of a run with PostgreSQL after SIGKILLs", Unit::Count).aim(Aim::Every(0.0))
}

pub fn kills(progress: &Progress, count: usize) -> Vec<Row> {
    let world = postgres_kills::world();
    let begun = Instant::now();
    // Per victim: rounds, rounds that met it, rounds in which a server ran then.
    let mut met = BTreeMap::<String, [u64; 3]>::new();
    for seed in 0..count as u64 {
        progress.round("kill", seed as usize, count);
        // One in eight begins without a cached cluster. Stops with the seed's own message where something is left.
        let round = postgres_kills::round(&world, 1000 + seed, seed % 8 == 0);
        let row = met.entry(round.victim).or_default();
        [true, round.struck, round.running].iter().zip(row).for_each(|(&so, count)| *count += u64::from(so));
    }
    world.run(&["verify"]).expect(0);
    let line = |(victim, [rounds, struck, running]): (String, [u64; 3])| {
        Line::new(&format!("{victim}, {rounds} rounds"), Spread::one(0.0))
            .note(&format!("{struck} killed, {running} of them while a server ran"))
    };
    let note = format!("{count} kills in {:.0} s, and the next run works", begun.elapsed().as_secs_f64());
    vec![kills_row().ours(Spread::one(0.0)).beside(met.into_iter().map(line)).note(&note)]
}

/// Nothing -> ready, -> first query of a task's database, -> everything gone.
fn ours(cache: &Path) -> [Duration; 3] {
    let folder = Memory::new("ours", true);
    let service = Service { line: 1, at_least: 14, fill: Fill::Empty, start: Duration::from_secs(60), tcp: false };
    let name = Name::parse("postgres").expect("a name");
    let spec = Spec { name: name.clone(), service, root: folder.0.clone(), scratch: folder.0.clone() };
    let began = Instant::now();
    let (mut link, stdin) = Link::new(&spec).expect("a link");
    let mut host = Command::new(program());
    host.arg("internal-service").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
    let mut host = host.env("XDG_CACHE_HOME", cache).spawn().expect("it starts");
    link.request(&name).expect("asked");
    let (mut ready, mut first) = (None, None);
    while first.is_none() {
        let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&link), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).expect("a reply");
        for reply in link.on_readable() {
            match reply {
                Reply::Ready(_) => ready = Some(began.elapsed()),
                Reply::HandedOut { env, .. } => {
                    let value = |name: &str| env[name].clone().expect("a value");
                    let socket = Path::new(&value("PGHOST")).join(".s.PGSQL.5432");
                    let client = Connection::open(&socket, &value("PGDATABASE"), Duration::from_secs(9), None);
                    assert_eq!(client.expect("a server").run("select 1").expect("an answer").rows, ["1"]);
                    first = Some(began.elapsed());
                }
                Reply::Note(_) | Reply::Starting => {}
                other => panic!("{other:?}"),
            }
        }
    }
    drop(link);
    host.wait().expect("it is ours");
    [ready.expect("ready before it is handed out"), first.expect("just measured"), began.elapsed()]
}

/// Where PostgreSQL's own programs are, and a cluster made by them; none without them.
fn by_hand_cluster() -> Option<(PathBuf, Memory)> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let bin = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    if !bin.join("initdb").is_file() {
        return None;
    }
    let cluster = Memory::new("cluster", true);
    let mut initdb = Command::new(bin.join("initdb"));
    initdb.args(["-U", "postgres", "-N", "-A", "trust", "-D"]).arg(cluster.0.join("data"));
    initdb.current_dir("/").stdout(Stdio::null());
    assert!(as_server(&mut initdb).status().expect("initdb runs").success());
    Some((bin, cluster))
}

/// What a careful script does: a copy of a cluster that is there, pg_ctl, createdb, psql.
fn by_hand(bin: &Path, cluster: &Path) -> [Duration; 2] {
    let folder = Memory::new("hand", true);
    let began = Instant::now();
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("D", &folder.0);
        let done = as_server(command.env("C", cluster)).stdout(Stdio::null()).status();
        assert!(done.expect("a shell").success(), "{script}");
    };
    sh("cp -r $C $D/data; chmod 700 $D/data
        pg_ctl start -w -s -D $D/data -l $D/log -o \"-k $D -h '' -F -c full_page_writes=off -c synchronous_commit=off\"
        createdb -h $D -U postgres t; psql -h $D -U postgres -XAtqc 'select 1' t");
    let first = began.elapsed();
    sh("pg_ctl stop -s -m immediate -D $D/data; rm -rf $D/data");
    [first, began.elapsed()]
}

fn pg_virtualenv() -> Option<Duration> {
    let began = Instant::now();
    let mut command = Command::new("pg_virtualenv");
    command.args(["psql", "-XAtqc", "select 1"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().ok().filter(|status| status.success()).map(|_| began.elapsed())
}

/// The throwaway server of ephemeralpg. It refuses root; it keeps the next one ready, so that the first is the cold one.
fn pg_tmp() -> Option<Duration> {
    if !is_installed("pg_tmp") {
        return None;
    }
    let folder = Memory::new("tmp", true);
    let began = Instant::now();
    let mut command = Command::new("sh");
    command.args(["-ec", "psql -XAtqc 'select 1' \"$(pg_tmp -w 5)\""]).stdout(Stdio::null()).stderr(Stdio::null());
    let done = as_server(command.env("TMPDIR", &folder.0).env("HOME", &folder.0).current_dir("/")).status();
    let first = began.elapsed();
    done.ok().filter(|status| status.success()).map(|_| first)
}

/// PostgreSQL refuses root.
fn as_server(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    if nix::unistd::Uid::effective().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command
}

/// A new folder in memory, which goes with this.
struct Memory(PathBuf);

impl Memory {
    /// `servers`: the server's user may enter and write it.
    fn new(what: &str, servers: bool) -> Self {
        let path = PathBuf::from(format!("/dev/shm/xtask-bench-{}-{what}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder in memory");
        if nix::unistd::Uid::effective().is_root() && servers {
            std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).expect("root may");
        }
        Self(path)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
