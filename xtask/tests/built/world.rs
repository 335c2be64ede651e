//! A world for one test: a folder, a git repository, ports of its own, and the built program in it.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// How long a test waits for an event before it gives up. An event that comes is never waited for so long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The program to be driven where it is not the one that cargo built beside this: benchmarks set it before anything else.
pub static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The program that every world drives.
pub fn program() -> &'static Path {
    PROGRAM.get_or_init(|| env!("CARGO_BIN_EXE_xtask").into())
}

/// Takes from this process, once, what whoever started it may have set otherwise than most do.
fn settle() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Other users have to get into what is made here: servers, and callers that a test becomes.
        nix::sys::stat::umask(nix::sys::stat::Mode::S_IWGRP | nix::sys::stat::Mode::S_IWOTH);
        // A full queue of connections has 1025.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("it may be had");
    });
}

/// Ports that no other test, of this process or another, has meanwhile. Kept by sockets that are bound to the same
/// numbers on 127.0.0.77, which excludes other tests but not the program under test, which uses 127.0.0.1.
pub struct Ports {
    pub first: u16,
    _keep: Vec<Socket>,
}

impl Ports {
    /// `count` ports in a row, below the ephemeral range and away from the real ones.
    pub fn take(count: u16) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        settle();
        let begin = std::process::id().wrapping_mul(7919);
        for _ in 0..20_000 {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let first = 10_000 + (begin.wrapping_add(step * 101) % (17_000 - u32::from(count))) as u16;
            let keep: Vec<Socket> = (first..first + count).map_while(reserve).collect();
            if keep.len() == usize::from(count) {
                return Self { first, _keep: keep };
            }
        }
        panic!("no {count} free ports in a row");
    }

    /// That very port, if no other test has it.
    pub fn keep(port: u16) -> Option<Self> {
        reserve(port).map(|keep| Self { first: port, _keep: vec![keep] })
    }
}

fn reserve(port: u16) -> Option<Socket> {
    let bind = |last: u8| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, last), port).into()).ok().map(|()| socket)
    };
    let keep = bind(77)?;
    // Let go of at once: only to see that nobody else is there. A child that another thread has just forked has a copy of it
    // until its exec, and with this that one is in the way of no socket that has it too.
    bind(1)?.set_reuse_address(true).expect("an option");
    Some(keep)
}

/// Binds once nobody is in the way any more: a child that another thread has just forked has a copy of every socket of this
/// process until its exec, also of one that was closed a moment ago.
#[track_caller]
pub fn at_last<T>(mut bind: impl FnMut() -> std::io::Result<T>) -> T {
    let mut bound = None;
    until("a port to be free", || match bind() {
        Ok(one) => {
            bound = Some(one);
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), std::io::ErrorKind::AddrInUse, "{e}");
            false
        }
    });
    bound.expect("just bound")
}

/// Whether nobody listens there. It is asked by a connection: a socket that listens to see it would have copies too.
pub fn nobody_listens(port: u16) -> bool {
    let tried = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    tried.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A folder that goes when the test ends.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        settle();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("xtt-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // The place of a run, which lies below, may have no more than about thirty bytes.
        let temporary = std::env::temp_dir();
        let path = if temporary.as_os_str().len() > 12 { Path::new("/tmp").join(name) } else { temporary.join(name) };
        fs::create_dir_all(&path).expect("a folder for the test");
        Self(path.canonicalize().expect("the folder just made"))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::env::var_os("XTASK_TEST_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// A repository with a suite, and ports for the program.
pub struct World {
    pub folder: Folder,
    pub ports: Ports,
    pub repo: PathBuf,
}

impl World {
    /// A committed repository whose ci/suite.toml is `suite`.
    pub fn new(suite: &str) -> Self {
        Self::at("repo", suite)
    }

    /// The same, with the repository in that subfolder of the test's folder.
    pub fn at(place: &str, suite: &str) -> Self {
        let folder = Folder::new();
        let repo = folder.path().join(place);
        fs::create_dir_all(repo.join("ci")).expect("ci folder");
        fs::create_dir_all(folder.path().join("home")).expect("home folder");
        fs::create_dir_all(folder.path().join("s")).expect("scratch folder");
        let world = Self { ports: Ports::take(2), repo, folder };
        world.write("ci/suite.toml", suite);
        world.write(".gitignore", "/target\n/receipts/\n");
        world.git(&["init", "--quiet", "--initial-branch=main"]);
        world.commit("first");
        world
    }

    /// Writes a file of the repository.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.repo.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("parent folder");
        fs::write(path, text).expect("a file of the repository");
    }

    /// Commits everything; the new commit.
    pub fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Runs git in the repository; what it printed.
    pub fn git(&self, args: &[&str]) -> String {
        let mut command = Command::new("git");
        self.clean(command.args(args).current_dir(&self.repo));
        let out = command.output().expect("git runs");
        assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    /// The program with these arguments, in the repository, with this world's ports.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program());
        self.dress(command.args(args));
        command
    }

    /// Gives any command this world's folder, ports and environment.
    pub fn dress(&self, command: &mut Command) {
        let worktree = self.ports.first + 1;
        self.clean(command.current_dir(&self.repo))
            .env("XTASK_SCRATCH", self.scratch())
            .env("XTASK_LOCK_PORT", self.ports.first.to_string())
            .env("XTASK_WORKTREE_PORTS", format!("{worktree}-{worktree}"));
    }

    /// Where the program makes the folders of its runs: another user's or test's start would sweep what this test leaves.
    pub fn scratch(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Processes with the environment of this world, but for those that have overwritten theirs, as a server's have.
    pub fn processes(&self) -> Vec<String> {
        let place = format!("XTASK_SCRATCH={}", self.scratch().display());
        let names = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.file_name());
        let pids = names.map(|name| name.to_string_lossy().into_owned());
        let environ = |pid: &String| fs::read(Path::new("/proc").join(pid).join("environ")).unwrap_or_default();
        let carries = |pid: &String| environ(pid).split(|&b| b == 0).any(|variable| variable == place.as_bytes());
        pids.filter(|pid| pid.bytes().all(|b| b.is_ascii_digit())).filter(carries).collect()
    }

    fn clean<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["GIT_", "GITHUB_", "GITLAB_", "CI_", "XTASK_SIGNING", "XTASK_OUTER"].iter().any(|p| text.starts_with(p))
            {
                command.env_remove(name);
            }
        }
        for name in ["CI", "NO_COLOR", "CLICOLOR_FORCE", "SSH_AUTH_SOCK", "INVOCATION_ID"] {
            command.env_remove(name);
        }
        let who = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];
        command.envs(who.map(|name| (name, "test@example.invalid")));
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", self.folder.path().join("home"))
    }

    /// Starts the program; its output goes to files, so that nothing it left behind can hold the test.
    pub fn start(&self, args: &[&str]) -> Running {
        Running::start(self.command(args), &self.folder)
    }

    /// Runs the program to its end.
    pub fn run(&self, args: &[&str]) -> Done {
        self.start(args).wait()
    }

    /// Paths of the receipts, oldest first.
    pub fn receipts(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.repo.join("receipts")) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        paths.retain(|p| p.extension().is_some_and(|e| e == "json") && p.file_name() != Some("schema.json".as_ref()));
        // By age: the names of runs of one second are in no order.
        paths.sort_by_key(|path| (fs::metadata(path).and_then(|data| data.modified()).ok(), path.clone()));
        paths
    }
}

/// The program while it runs.
pub struct Running {
    pub child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// The program after it ended.
#[derive(Debug)]
pub struct Done {
    /// Exit code; 1000 + signal if a signal ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Running {
    pub fn start(mut command: Command, folder: &Folder) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = |what: &str| folder.path().join(format!("{what}-{number}"));
        let (out, err) = (path("out"), path("err"));
        let file = |path: &Path| File::create(path).expect("a file for output");
        let child =
            command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err)).spawn().expect("the program starts");
        Self { child, out, err }
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).expect("a signal can be sent");
    }

    /// Waits until its stderr has this text.
    pub fn wait_for(&mut self, text: &str) {
        until(&format!("{text:?} on stderr"), || {
            let so_far = read(&self.err);
            let over = self.child.try_wait().expect("the program can be waited for").is_some();
            assert!(!over || read(&self.err).contains(text), "ended without saying {text:?}:\n{so_far}");
            so_far.contains(text)
        });
    }

    /// Whether it is over.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|end| end.is_some())
    }

    pub fn wait(mut self) -> Done {
        let status = self.child.wait().expect("the program can be waited for");
        let code = status.code().unwrap_or_else(|| 1000 + status.signal().unwrap_or(0));
        Done { code, out: read(&self.out), err: read(&self.err) }
    }
}

impl Done {
    /// Asserts the exit code and shows everything if it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "--- stdout\n{}\n--- stderr\n{}", self.out, self.err);
        self
    }

    /// Asserts that stderr has this text.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.err.contains(text), "no {text:?} in\n{}", self.err);
        self
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Waits until `holds`, by looking again and again; panics with `what` after `PATIENCE`.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes that have `token` among their arguments: the test's own way to look for survivors.
pub fn processes_with(token: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        // One whose first thread has ended shows its arguments under the others alone.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        threads.flatten().any(|thread| {
            let line = fs::read(thread.path().join("cmdline")).unwrap_or_default();
            line.split(|&b| b == 0).any(|arg| String::from_utf8_lossy(arg).contains(token))
        })
    })
    .collect()
}

/// Makes a program of a text. Another process writes it: what this one has open for writing, a child that another thread has
/// just forked has open too, and then it cannot be started ("text file busy"), or another one of that name on PATH is.
pub fn script(path: &Path, text: &str) {
    let mut writes = Command::new("sh");
    let mut writes =
        writes.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped()).spawn().expect("sh");
    writes.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
    assert!(writes.wait().expect("it ends").success(), "{} cannot be made", path.display());
}

/// Copies a program, by another process for the same reason, so that everybody may start it, whoever made the first one.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().expect("cp").success(), "{}", to.display());
    fs::set_permissions(to, PermissionsExt::from_mode(0o755)).expect("it is ours");
}

/// Whether these words can be run here. In a container root may be forbidden what takes a namespace of its own.
pub fn may(words: &[&str]) -> bool {
    let quiet = || Stdio::null();
    let tried = Command::new(words[0]).args(&words[1..]).stdin(quiet()).stdout(quiet()).stderr(quiet()).status();
    tried.is_ok_and(|status| status.success())
}

/// Whether something can be mounted here, for a process alone.
pub fn may_mount() -> bool {
    may(&["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /tmp"])
}

/// Whether this user may look into the server's processes and take its segments away: in a container root may not, where
/// the server is another user's.
pub fn rules_the_server() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities").trim();
    // CAP_SYS_PTRACE and CAP_SYS_ADMIN.
    let needed = 1 << 19 | 1 << 21;
    !nix::unistd::geteuid().is_root() || u64::from_str_radix(mask, 16).expect("a mask") & needed == needed
}

/// Says that a test could not be run here, and why. It counts as passed, so it has to be seen.
#[allow(clippy::print_stderr, reason = "a test that did not test has to say so")]
pub fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}
