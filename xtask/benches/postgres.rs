//! A throwaway PostgreSQL beside what people do without xtask: `cargo bench --bench postgres --profile xtask`, which is
//! the profile of `cargo xtask`. `-- kills 200` kills something of a run at random that often, and looks what is left.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "no part of the program")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use xtask::name::Name;
use xtask::service::postgres::sql::Connection;
use xtask::service::{Link, Reply, Spec};
use xtask::suite::{Fill, Service};

#[allow(dead_code, unused_imports, reason = "a part of it is used")]
#[path = "../tests/built/postgres.rs"]
mod postgres;
#[allow(dead_code, unused_imports, reason = "a part of it is used")]
#[path = "../tests/built/postgres_kills.rs"]
mod postgres_kills;
#[allow(dead_code, unused_imports, reason = "a part of it is used")]
#[path = "../tests/built/world.rs"]
mod world;

const ROUNDS: usize = 15;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words.iter().position(|word| word == "kills") {
        Some(at) => kills(words.get(at + 1).and_then(|count| count.parse().ok()).unwrap_or(200)),
        None => compare(),
    }
}

fn kills(count: u64) {
    let world = postgres_kills::world();
    let began = Instant::now();
    // Per victim: rounds, rounds that met it, rounds in which a server ran then.
    let mut met = BTreeMap::<String, [u64; 3]>::new();
    for seed in 1000..1000 + count {
        // One in eight begins without a cached cluster.
        let round = postgres_kills::round(&world, seed, seed % 8 == 0);
        let row = met.entry(round.victim).or_default();
        [true, round.struck, round.running].iter().zip(row).for_each(|(&so, count)| *count += u64::from(so));
    }
    world.run(&["verify"]).expect(0);
    println!("{count} kills in {:.0?}, nothing left, and the next run works", began.elapsed());
    for (victim, [rounds, struck, running]) in met {
        println!("  {victim:<16} {rounds:>3} rounds, {struck:>3} killed, {running:>3} of them while a server ran");
    }
}

/// Nothing -> ready, -> first query of a task's database, -> everything gone.
fn ours(cache: &Path) -> [Duration; 3] {
    let folder = memory("ours");
    let service = Service { line: 1, at_least: 14, fill: Fill::Empty, start: Duration::from_secs(60), tcp: false };
    let name = Name::parse("postgres").unwrap();
    let spec = Spec { name: name.clone(), service, root: folder.clone(), scratch: folder.clone() };
    let began = Instant::now();
    let (mut link, stdin) = Link::new(&spec).unwrap();
    let mut host = Command::new(env!("CARGO_BIN_EXE_xtask"));
    host.arg("internal-service").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
    let mut host = host.env("XDG_CACHE_HOME", cache).spawn().unwrap();
    link.request(&name).unwrap();
    let (mut ready, mut first) = (None, None);
    while first.is_none() {
        poll(&mut [PollFd::new(std::os::fd::AsFd::as_fd(&link), PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
        for reply in link.on_readable() {
            match reply {
                Reply::Ready(_) => ready = Some(began.elapsed()),
                Reply::HandedOut { env, .. } => {
                    let value = |name: &str| env[name].clone().unwrap();
                    let socket = Path::new(&value("PGHOST")).join(".s.PGSQL.5432");
                    let mut client = Connection::open(&socket, &value("PGDATABASE"), Duration::from_secs(9)).unwrap();
                    assert_eq!(client.run("select 1").unwrap().rows, ["1"]);
                    first = Some(began.elapsed());
                }
                Reply::Note(_) | Reply::Starting => {}
                other => panic!("{other:?}"),
            }
        }
    }
    drop(link);
    host.wait().unwrap();
    let whole = began.elapsed();
    std::fs::remove_dir_all(folder).unwrap();
    [ready.unwrap(), first.unwrap(), whole]
}

/// What a careful script does: a copy of a cluster that is there, pg_ctl, createdb, psql.
fn by_hand(bin: &Path, cluster: &Path) -> [Duration; 2] {
    let folder = memory("hand");
    let began = Instant::now();
    let sh = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("D", &folder);
        assert!(as_server(command.env("C", cluster)).stdout(Stdio::null()).status().unwrap().success(), "{script}");
    };
    sh("cp -r $C $D/data; chmod 700 $D/data
        pg_ctl start -w -s -D $D/data -l $D/log -o \"-k $D -h '' -F -c full_page_writes=off -c synchronous_commit=off\"
        createdb -h $D -U postgres t; psql -h $D -U postgres -XAtqc 'select 1' t");
    let first = began.elapsed();
    sh("pg_ctl stop -s -m immediate -D $D/data; rm -rf $D/data");
    let whole = began.elapsed();
    std::fs::remove_dir_all(&folder).unwrap();
    [first, whole]
}

fn pg_virtualenv() -> Option<Duration> {
    let began = Instant::now();
    let mut command = Command::new("pg_virtualenv");
    command.args(["psql", "-XAtqc", "select 1"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().ok().filter(|status| status.success()).map(|_| began.elapsed())
}

/// The throwaway server of ephemeralpg. It refuses root; it keeps the next one ready, so that the first is the cold one.
fn pg_tmp() -> Option<Duration> {
    let folder = memory("tmp");
    let began = Instant::now();
    let mut command = Command::new("sh");
    command.args(["-ec", "psql -XAtqc 'select 1' \"$(pg_tmp -w 5)\""]).stdout(Stdio::null()).stderr(Stdio::null());
    let done = as_server(command.env("TMPDIR", &folder).env("HOME", &folder).current_dir("/")).status();
    let first = began.elapsed();
    let _ = std::fs::remove_dir_all(folder);
    done.ok().filter(|status| status.success()).map(|_| first)
}

fn compare() {
    let cache = memory("cache");
    let mut cold = Vec::new();
    for _ in 0..3 {
        let fresh = memory("cold");
        cold.push(ours(&fresh));
        std::fs::remove_dir_all(fresh).unwrap();
    }
    ours(&cache);
    let bin = PathBuf::from(String::from_utf8(run("pg_config", "--bindir")).unwrap().trim());
    let cluster = memory("cluster").join("data");
    let mut initdb = Command::new(bin.join("initdb"));
    initdb.args(["-U", "postgres", "-N", "-A", "trust", "-D"]).arg(&cluster).current_dir("/").stdout(Stdio::null());
    assert!(as_server(&mut initdb).status().unwrap().success());
    let (mut warm, mut hand) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        warm.push(ours(&cache));
        hand.push(by_hand(&bin, &cluster));
    }
    let virtualenv: Vec<Duration> = (0..2).filter_map(|_| pg_virtualenv()).collect();
    let show = |what: &str, first: Vec<Duration>, whole: Vec<Duration>| {
        println!("{what:<44} first query {:>7.0?}   whole cycle {:>7.0?}", median(first), median(whole));
    };
    let column = |rows: &[[Duration; 3]], at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
    show("xtask, cold: initdb for the cache", column(&cold, 1), column(&cold, 2));
    show("xtask, warm", column(&warm, 1), column(&warm, 2));
    println!("{:<44} ready       {:>7.0?}", "", median(column(&warm, 0)));
    let hand: (Vec<_>, Vec<_>) = hand.into_iter().map(|[first, whole]| (first, whole)).unzip();
    show("cp of a cluster, pg_ctl start -w, createdb", hand.0, hand.1);
    match virtualenv.is_empty() {
        true => println!("pg_virtualenv: not installed"),
        false => show("pg_virtualenv psql", virtualenv.clone(), virtualenv),
    }
    match (0..3).filter_map(|_| pg_tmp()).collect::<Vec<_>>() {
        all if all.is_empty() => println!("pg_tmp: not installed"),
        all => println!("{:<44} first query {:>7.0?}", "pg_tmp, psql", median(all)),
    }
    for folder in [cache, cluster.parent().unwrap().to_owned()] {
        std::fs::remove_dir_all(folder).unwrap();
    }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn run(program: &str, argument: &str) -> Vec<u8> {
    Command::new(program).arg(argument).output().unwrap().stdout
}

/// PostgreSQL refuses root.
fn as_server(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    if nix::unistd::Uid::effective().is_root() {
        command.uid(65_534).gid(65_534);
    }
    command
}

/// A new folder in memory that the server's user may enter and write.
fn memory(what: &str) -> PathBuf {
    let path = PathBuf::from(format!("/dev/shm/xtask-bench-{}-{what}", std::process::id()));
    std::fs::create_dir(&path).unwrap();
    if nix::unistd::Uid::effective().is_root() && what != "cache" && what != "cold" {
        std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).unwrap();
    }
    path
}
