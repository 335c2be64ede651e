//! What a server leaves when it is killed, what is taken for it, and what is not: strangers stay as they are, whatever the
//! server's user has made of its files.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xtask::service;
use xtask::suite::Fill;

use crate::postgres::{Segment, Server, ask, lives, postmaster, processes_in, psql, segments, segments_of};
use crate::world::{Folder, may, rules_the_server, skipped, until};

/// A process that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn in_folder(folder: &Path) -> Self {
        Self(Command::new("sleep").arg("1000").current_dir(folder).spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A segment with a key of the test's choice or one of the next few, by a process that keeps it attached and does what its
/// stdin says. A server of another test may have the first: their folders' inodes are neighbours.
struct Keeper {
    child: Child,
    id: i32,
    made: bool,
}

const KEEPER: &str = r#"
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
number = int(sys.argv[1])
keys = range(number, number + 15) if sys.argv[2] == "make" else []
made = (libc.shmget(key, 4096, 0o3600) for key in keys)
id = next((id for id in made if id >= 0), -1) if keys else number
at = libc.shmat(id, None, 0)
print(id, flush=True)
for line in sys.stdin:
    libc.shmdt(at)
    print("detached", flush=True)
"#;

impl Keeper {
    /// Makes one with this key as this user, or uses the one with this id.
    fn start(number: i32, what: &str, user: u32) -> Self {
        let mut command = Command::new("python3");
        if user != nix::unistd::Uid::effective().as_raw() {
            command.uid(user);
        }
        Self::start_by(&mut command, number, what)
    }

    /// By this command, which ends in the interpreter.
    fn start_by(command: &mut Command, number: i32, what: &str) -> Self {
        command.args(["-c", KEEPER, &number.to_string(), what]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = Self { child: command.spawn().unwrap(), id: -1, made: what == "make" };
        keeper.id = keeper.line().trim().parse().unwrap();
        assert!(keeper.id >= 0, "no segment for {number}");
        keeper
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    fn detach(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(self.line(), "detached\n");
    }

    fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.made {
            return;
        }
        let _ = Command::new("ipcrm").args(["-m", &self.id.to_string()]).stderr(Stdio::null()).status();
    }
}

/// The segment, if it is there and stays when nobody uses it any more.
fn found(id: i32) -> Option<Segment> {
    segments().into_iter().find(|segment| segment.id == id && segment.mode == "600")
}

/// A run's folder with the real folder of a server, or of an initdb, in it.
fn scratch_with(cluster: &str) -> (Folder, PathBuf) {
    let scratch = Folder::new();
    let data = scratch.path().join("postgres").join(cluster);
    fs::create_dir_all(&data).unwrap();
    (scratch, data)
}

#[test]
fn a_sweep_ends_what_works_in_the_servers_folders_and_nobody_else() {
    for cluster in ["data", "build"] {
        let (scratch, data) = scratch_with(cluster);
        let mut ours = Sleeper::in_folder(&data);
        let mut stranger = Sleeper::in_folder(scratch.path());
        service::sweep(scratch.path());
        until("the server's process to end", || !ours.lives());
        assert!(stranger.lives());
    }
}

#[test]
fn a_sweep_does_not_follow_a_link() {
    for cluster in ["data", "build"] {
        let (scratch, data) = scratch_with(cluster);
        let elsewhere = Folder::new();
        fs::remove_dir(&data).unwrap();
        symlink(elsewhere.path(), &data).unwrap();
        let mut stranger = Sleeper::in_folder(elsewhere.path());
        service::sweep(scratch.path());
        assert!(stranger.lives());
        assert!(elsewhere.path().is_dir() && !data.exists());
    }
}

#[test]
fn a_sweep_takes_a_segment_only_if_nobody_uses_it_and_its_maker_is_dead() {
    let me = nix::unistd::Uid::effective().as_raw();
    for cluster in ["data", "build"] {
        let (scratch, data) = scratch_with(cluster);
        let sweep = || service::postgres::sweep(&scratch.path().join("postgres"));
        // The second key that the server would try.
        let key = (data.metadata().unwrap().ino() as i32).wrapping_add(1);
        let mut maker = Keeper::start(key, "make", me);
        let mut user = Keeper::start(maker.id, "use", me);
        maker.end();
        sweep();
        assert!(found(maker.id).is_some(), "somebody uses it");
        user.end();
        sweep();
        assert_eq!(found(maker.id), None);

        let mut maker = Keeper::start(key, "make", me);
        maker.detach();
        sweep();
        assert!(found(maker.id).is_some(), "who made it lives");
        maker.end();
        sweep();
        assert_eq!(found(maker.id), None);

        let mut far = Keeper::start(key.wrapping_add(1000), "make", me);
        far.end();
        sweep();
        assert!(found(far.id).is_some(), "another server's");
    }
}

#[test]
fn a_sweep_takes_the_segment_of_a_maker_that_is_on_its_last_steps() {
    let unshare = ["--pid", "--fork", "--kill-child"];
    if !may(&[&["unshare"], &unshare[..], &["true"]].concat()) {
        let name = "a_sweep_takes_the_segment_of_a_maker_that_is_on_its_last_steps";
        return skipped(name, "a PID namespace is not allowed");
    }
    let (scratch, data) = scratch_with("data");
    let key = data.metadata().unwrap().ino() as i32;
    // The first process of a PID namespace stays inside exit, works nowhere any more and is no zombie yet, until
    // everything in its namespace is reaped; and whoever should reap one of those sleeps.
    let mut maker = Keeper::start_by(Command::new("unshare").args(unshare).arg("python3"), key, "make");
    let first = segments().into_iter().find(|segment| segment.id == maker.id).unwrap().creator;
    let inside = ["--target", &first.to_string(), "--pid", "sh", "-c", "echo; exec sleep 1000"].map(str::to_owned);
    let mut parent = Command::new("nsenter").args(inside).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let parent_is = |signal| kill(Pid::from_raw(parent.id() as i32), signal).unwrap();
    parent_is(Signal::SIGSTOP);
    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    until("the maker to work nowhere", || fs::metadata(format!("/proc/{first}/cwd")).is_err());
    let state = fs::read_to_string(format!("/proc/{first}/stat")).unwrap();
    service::sweep(scratch.path());
    let left = found(maker.id);
    parent_is(Signal::SIGCONT);
    parent.wait().unwrap();
    maker.child.wait().unwrap();
    assert!(state.contains(") S "), "it is to be inside exit: {state}");
    assert_eq!(left, None);
}

#[test]
fn a_sweep_takes_no_segment_of_another_user() {
    if !crate::postgres_users::is_root() {
        return skipped("a_sweep_takes_no_segment_of_another_user", "it takes root to make one");
    }
    let (scratch, data) = scratch_with("data");
    let mut maker = Keeper::start(data.metadata().unwrap().ino() as i32, "make", 54_321);
    maker.end();
    service::sweep(scratch.path());
    assert!(found(maker.id).is_some());
}

#[test]
fn a_run_that_is_over_while_initdb_works_leaves_no_segment() {
    if !rules_the_server() {
        let name = "a_run_that_is_over_while_initdb_works_leaves_no_segment";
        return skipped(name, "root may not look into another user's processes here");
    }
    let cache = Folder::new();
    let mut server = Server::start_in(Folder::new(), crate::postgres::service(Fill::Empty), |command| {
        command.env("XDG_CACHE_HOME", cache.path());
    });
    let build = server.scratch.join("postgres/build");
    // Stopped while it has one. There are several, one after another, and some are faster than we are.
    let mut made = None;
    until("a segment of a server that initdb starts", || {
        let pids = processes_in(&build);
        let pids = pids.iter().filter_map(|process| process.split(['/', ':']).nth(2)?.parse().ok());
        made = pids.flat_map(segments_of).next();
        let signal = |signal| made.as_ref().map(|made| kill(Pid::from_raw(made.creator), signal));
        signal(Signal::SIGSTOP);
        let kept = made.as_ref().is_some_and(|made| found(made.id).is_some_and(|now| now.attached > 0));
        if !kept {
            signal(Signal::SIGCONT);
        }
        kept
    });
    server.stop();
    assert_eq!(found(made.unwrap().id), None);
}

/// What the server's user can do to the server's files, by a statement of a task.
fn as_the_server(server: &mut Server, script: &str) -> std::process::Output {
    let env = server.database("hostile");
    psql(&env, &format!("copy (select 1) to program $${script}$$"))
}

#[test]
fn the_servers_user_cannot_put_anything_in_the_place_of_the_hosts_own_files() {
    if !crate::postgres_users::is_root() {
        return skipped("the_servers_user_cannot_put_anything …", "the host is another user only for root");
    }
    let mut server = Server::start_in(Folder::new(), crate::postgres::service(Fill::Empty), |_| {});
    for script in ["ln -s /tmp ../output", "rm -f ../pg_hba.conf", "echo x >>../pg_hba.conf", "mv ../data ../d2"] {
        let out = as_the_server(&mut server, script);
        assert!(!out.status.success(), "{script}: {out:?}");
    }
    let folder = server.scratch.join("postgres").metadata().unwrap();
    assert_eq!((folder.uid(), folder.permissions().mode() & 0o777), (0, 0o711));
    server.stop();
}

#[test]
fn a_server_cannot_choose_which_segment_is_removed() {
    if !rules_the_server() {
        let name = "a_server_cannot_choose_which_segment_is_removed";
        return skipped(name, "root may not take another user's segments away here");
    }
    let me = nix::unistd::Uid::effective().as_raw();
    let mut stranger = Keeper::start(0x7874_6b31, "make", me);
    stranger.end();
    let mut server = Server::start_in(Folder::new(), crate::postgres::service(Fill::Empty), |_| {});
    let env = server.database("a");
    let pid = postmaster(&env);
    // Then the server loses a process, and starts anew; the host forgets its new segment.
    let script = format!("sed -i '7s/.*/ 2020305713 {}/' postmaster.pid && kill -9 $PPID", stranger.id);
    assert!(!as_the_server(&mut server, &script).status.success());
    until("the server to notice", || server.log().contains("reinitializing"));
    let env = server.database("b");
    until("the new segment to be forgotten", || segments_of(pid).iter().all(|segment| segment.mode == "1600"));
    assert_eq!(ask(&env, "select 1"), ["1"]);
    assert!(found(stranger.id).is_some() && lives(pid));
    server.stop();
}
