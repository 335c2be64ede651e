//! A throwaway PostgreSQL: a cached cluster is copied into the run's folder and started on a unix socket with
//! everything off that makes data last. Each task gets a database of its own.

mod cluster;
mod debian;
pub mod programs;
mod remains;
pub mod sql;
mod template;
mod user;

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{Domain, Socket, Type};

use super::host::{Host, wait_for};
use super::{Env, Kind, Spec};
use crate::name::TaskName;
use crate::suite::{Fill, Service};
use crate::sys;
use programs::{Missing, Programs};
use sql::Connection;
use user::ServerUser;

pub use remains::sweep;

/// Nothing here outlives the run, so nothing needs to reach a disk. Shared segments are files in the data folder: they
/// go with it, and a small /dev/shm is enough.
const SETTINGS: &[&str] = &[
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "autovacuum=off",
    "jit=off",
    "shared_buffers=32MB",
    "dynamic_shared_memory_type=mmap",
    "logging_collector=off",
    "log_checkpoints=off",
    "unix_socket_permissions=0700",
];

/// The server lets in whoever reaches its socket, which only the user of the run does; over TCP it wants the password.
const ACCESS: &str = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";

/// Most bytes that the path of a socket may have, its end included: 104 on some systems, 108 on Linux.
const SOCKET_PATH_MAX: usize = 103;

/// The longest that an answer to a statement of ours may take; migrations have the limit of the start.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a database is tried again after the server has started anew by itself, as it does when one of its processes
/// is killed.
const TRIES: u32 = 3;

/// A server of one run.
#[derive(Debug)]
pub struct Postgres {
    service: Service,
    user: ServerUser,
    programs: Option<Programs>,
    folder: PathBuf,
    /// 5432 where only the socket's name has it, else a loopback port.
    port: u16,
    /// Keeps the port from everybody but a server that listens.
    _reserved: Option<Socket>,
    password: Option<String>,
    server: Option<Child>,
    line: Option<OwnedFd>,
    connection: Option<Connection>,
    handed_out: usize,
}

/// Whether a server can be had here, without changing anything. Errors say what was looked at, and what to install.
pub fn available(service: &Service, root: &Path) -> Result<(), String> {
    let Err(missing) = programs::find(service.at_least, ServerUser::choose(root), root) else { return Ok(()) };
    let why = explain(&missing, service.at_least);
    if missing.named || !debian::can_unpack() {
        return Err(why);
    }
    // Asking takes a while, and a machine that has no server at all is rarely asked for more than its packages have.
    match missing.outdated.then(debian::listed).flatten() {
        Some(major) if major < service.at_least => {
            Err(format!("{why}\nthe lists of the distribution's packages have version {major}"))
        }
        _ => Ok(()),
    }
}

fn explain(missing: &Missing, at_least: u32) -> String {
    let mut text = format!("no PostgreSQL server, version {at_least} or later, was found; looked at:\n");
    missing.looked.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str(&match missing.named {
        true => format!("{} names that folder: correct it or unset it", programs::VARIABLE),
        false => format!(
            "install one (Debian, Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; Alpine: apk add \
             postgresql; Arch: pacman -S postgresql; macOS: brew install postgresql), or set {} to the folder of initdb \
             and postgres",
            programs::VARIABLE
        ),
    });
    text
}

impl Postgres {
    /// A server to be.
    pub fn new(spec: &Spec) -> Self {
        Self {
            service: spec.service.clone(),
            user: ServerUser::choose(&spec.root),
            programs: None,
            folder: PathBuf::new(),
            port: 5432,
            _reserved: None,
            password: None,
            server: None,
            line: None,
            connection: None,
            handed_out: 0,
        }
    }

    // What a server does that should not may come of its files.
    fn blame<T>(&self, host: &Host, done: anyhow::Result<T>) -> anyhow::Result<T> {
        let error = match done {
            Err(error) if host.still_wanted().is_ok() => error,
            other => return other,
        };
        match self.programs.as_ref().and_then(|programs| debian::condemn(&programs.bin)) {
            Some(why) => Err(error.context(format!("the unpacked server is not used again, run once more: {why}"))),
            None => Err(error),
        }
    }

    fn programs(&self) -> &Programs {
        self.programs.as_ref().expect("prepare comes first")
    }

    // All that is the server's own, its socket too: it is closed to other users, and the folder around it to its own.
    fn data(&self) -> PathBuf {
        self.folder.join(remains::DATA)
    }

    fn socket(&self) -> PathBuf {
        self.data().join(format!(".s.PGSQL.{}", self.port))
    }

    // The server's user must reach what it is given: it passes through our folders, where it can neither list nor write.
    fn open_folder(&self, scratch: &Path) -> anyhow::Result<()> {
        for folder in [scratch, &self.folder] {
            if self.user != ServerUser::Same {
                let mode = folder.metadata()?.mode();
                fs::set_permissions(folder, Permissions::from_mode(mode | 0o011))?;
            }
        }
        let length = self.socket().as_os_str().len();
        ensure!(
            length <= SOCKET_PATH_MAX,
            "the socket's path {} has {length} bytes; {SOCKET_PATH_MAX} is the most",
            self.socket().display()
        );
        Ok(())
    }

    fn reserve_port(&mut self) -> anyhow::Result<()> {
        // Bound but not listening, with SO_REUSEADDR as the server has it: the server can bind and listen, and the
        // kernel gives the port to nobody else.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into())?;
        let address = socket.local_addr()?.as_socket_ipv4().context("a port of 127.0.0.1")?;
        self.port = address.port();
        // Other systems refuse the second bind; there the port is only probably free.
        self._reserved = cfg!(target_os = "linux").then_some(socket);
        let word = || sys::random().map(|bits| format!("{bits:08x}"));
        self.password = Some([word()?, word()?, word()?, word()?].concat());
        Ok(())
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let access = self.folder.join("pg_hba.conf");
        let mut file = OpenOptions::new().write(true).create_new(true).open(&access)?;
        file.write_all(ACCESS.as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o644))?;
        let mut command = self.programs().command("postgres");
        command.arg("-D").arg(self.data()).current_dir("/").stdin(Stdio::null());
        let mut set = |setting: String| {
            command.arg("-c").arg(setting);
        };
        SETTINGS.iter().for_each(|setting| set((*setting).to_owned()));
        set(format!("hba_file={}", access.display()));
        set(format!("unix_socket_directories={}", self.data().display()));
        set(format!("port={}", self.port));
        set(format!("listen_addresses={}", if self.service.tcp { "127.0.0.1" } else { "" }));
        self.user.of(&mut command);
        sys::end_with_parent(&mut command, Signal::SIGQUIT);
        self.server = Some(command.spawn().context("the server cannot be started")?);
        Ok(())
    }

    // The server writes its state into line 8 of its pid file; asking it by connecting costs more than a look.
    fn wait_until_ready(&mut self, host: &Host) -> anyhow::Result<()> {
        let path = self.data().join("postmaster.pid");
        loop {
            if remains::read_small(&path).lines().nth(7).is_some_and(|state| state.trim() == "ready") {
                return Ok(());
            }
            self.still_alive(host)?;
            host.pause(Duration::from_micros(500))?;
        }
    }

    fn still_alive(&mut self, host: &Host) -> anyhow::Result<()> {
        let server = self.server.as_mut().expect("spawn comes first");
        match server.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server has ended ({status}): {}", host.log_tail()),
        }
    }

    fn connect(&mut self) -> anyhow::Result<()> {
        self.connection = None;
        let line = self.line.as_ref().expect("prepare comes first").try_clone()?;
        self.connection = Some(Connection::open(&self.socket(), "postgres", PATIENCE, Some(line))?);
        // From now on it goes with the last process of the server, even after SIGKILL.
        if let Some(server) = &self.server {
            remains::forget_segments(i32::try_from(server.id())?, self.user.uid());
        }
        Ok(())
    }

    fn run(&mut self, sql: &str) -> anyhow::Result<sql::Answer> {
        if self.connection.is_none() {
            self.connect()?;
        }
        self.connection.as_mut().ok_or_else(|| anyhow!("no connection"))?.run(sql)
    }

    // Settings, rights and owner of a database are not copied with it.
    fn copy_settings(&mut self, database: &str, from: &str) -> anyhow::Result<()> {
        let both = format!("o.datname = '{from}' AND n.datname = '{database}'");
        let sql = format!(
            "INSERT INTO pg_db_role_setting SELECT n.oid, s.setrole, s.setconfig
               FROM pg_db_role_setting s, pg_database o, pg_database n WHERE s.setdatabase = o.oid AND {both};
             UPDATE pg_database n SET datacl = o.datacl, datdba = o.datdba, datconnlimit = o.datconnlimit
               FROM pg_database o WHERE {both}"
        );
        self.run(&sql).map(|_| ())
    }

    // STRATEGY came with 15; before, a copy of the files was the only way.
    fn create(&mut self, database: &str, from: &str) -> anyhow::Result<()> {
        let strategy = if self.programs().major >= 15 { " STRATEGY file_copy" } else { "" };
        self.run(&format!("CREATE DATABASE \"{database}\" TEMPLATE \"{from}\"{strategy}")).map(|_| ())
    }

    /// How to reach a database: forms that libpq, sqlx, tokio-postgres, psycopg, asyncpg and node-postgres all read.
    fn env(&self, database: &str) -> Env {
        // What a user has set for other servers would change where or how a task's client connects.
        let inherited = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let mut env: Env = inherited.filter(|name| name.starts_with("PG")).map(|name| (name, None)).collect();
        let folder = self.data().to_string_lossy().into_owned();
        let port = self.port.to_string();
        let (host, url) = match &self.password {
            Some(password) => {
                env.insert("PGPASSWORD".to_owned(), Some(password.clone()));
                ("127.0.0.1".to_owned(), format!("postgresql://postgres:{password}@127.0.0.1:{port}/{database}"))
            }
            None => {
                let url = format!("postgresql:///{database}?host={}&user=postgres&port={port}", percent(&folder));
                (folder, url)
            }
        };
        let values = [
            ("DATABASE_URL", url.as_str()),
            ("PGHOST", &host),
            ("PGPORT", &port),
            ("PGUSER", "postgres"),
            ("PGDATABASE", database),
        ];
        env.extend(values.map(|(name, value)| (name.to_owned(), Some(value.to_owned()))));
        env
    }
}

fn percent(path: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-');
    path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

impl Kind for Postgres {
    fn prepare(&mut self, host: &mut Host) -> anyhow::Result<()> {
        self.folder = host.folder.clone();
        self.line = Some(host.line()?);
        self.open_folder(&host.spec.scratch)?;
        let at_least = self.service.at_least;
        self.programs = Some(match programs::find(at_least, self.user, &host.spec.root) {
            Ok(programs) => programs,
            Err(missing) if !missing.named && debian::can_unpack() => debian::unpack(host, at_least, self.user)
                .map_err(|error| anyhow!("{error:#}\n{}", explain(&missing, at_least)))?,
            Err(missing) => bail!(explain(&missing, at_least)),
        });
        let (cache, _) = super::cache::folder(&|_| Ok(()))?;
        let placed = cluster::place(host, self.programs(), self.user, &cache, &self.data());
        self.blame(host, placed)
    }

    fn start(&mut self, host: &mut Host) -> anyhow::Result<String> {
        if self.service.tcp {
            self.reserve_port()?;
        }
        self.spawn()?;
        let ready = self.wait_until_ready(host);
        self.blame(host, ready)?;
        self.connect()?;
        if let Some(password) = self.password.clone() {
            self.run(&format!("ALTER ROLE postgres PASSWORD '{password}'"))?;
        }
        template::fill(self, host)?;
        Ok(format!("PostgreSQL {}", self.programs().version))
    }

    fn hand_out(&mut self, host: &mut Host, task: &TaskName) -> anyhow::Result<Env> {
        let plain: String = task.as_str().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let from = template::name(&self.service.fill);
        let mut tries = 0;
        loop {
            // A number, because two tasks may differ in a dot and a dash alone, and names are cut at 63 bytes.
            self.handed_out += 1;
            let database = format!("t{}_{plain:.50}", self.handed_out);
            let mut made = self.create(&database, from);
            if made.is_ok() && self.service.fill != Fill::Empty {
                made = self.copy_settings(&database, from);
            }
            match made {
                Ok(()) => return Ok(self.env(&database)),
                Err(error) if tries < TRIES && sql::is_lost(&error) => self.check(host)?,
                Err(error) => return Err(error.context(format!("cannot make the database {database}"))),
            }
            tries += 1;
        }
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        self.connection.as_ref().map(Connection::as_fd)
    }

    // Somebody ended our session, or the server.
    fn check(&mut self, host: &mut Host) -> anyhow::Result<()> {
        let until = sys::now() + PATIENCE;
        loop {
            let alive = self.still_alive(host);
            self.blame(host, alive)?;
            // A server that lost one process to a signal starts anew by itself.
            match self.connect() {
                Ok(()) => return Ok(()),
                Err(error) if !sql::is_lost(&error) => return Err(error.context("the server lets nobody in any more")),
                Err(error) if sys::now() > until => return Err(error.context("the server does not answer any more")),
                Err(_) => host.pause(Duration::from_millis(10))?,
            }
        }
    }

    fn stop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        // Neither waits for clients nor saves anything: nobody will read it.
        if let Ok(pid) = i32::try_from(server.id())
            && server.try_wait().is_ok_and(|ended| ended.is_none())
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGQUIT);
        }
        // After 5 s it kills its own processes.
        if wait_for(&mut server, Duration::from_secs(7)).is_none() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
