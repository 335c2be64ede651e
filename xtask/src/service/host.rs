//! The process of one service. It owns the server and everything else that it starts; it ends them, and itself, when
//! the line to the runner ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Kind, Reply, Request, Spec};
use crate::sys;
use crate::wire::Wire;

/// How long a look at something that gives no event may be away.
const STEP: Duration = Duration::from_millis(5);

/// The longest reason that is passed on, in bytes.
const REASON: usize = 3_000;

/// How much of the end of a log is looked through, in bytes.
const TAIL: u64 = 64 << 10;

/// How much of what a command printed is read, in bytes, from its end.
const OUTPUT: u64 = 16 << 20;

/// What a kind of service has of its host.
#[derive(Debug)]
pub struct Host {
    /// What to run.
    pub spec: Spec,
    /// The service's own folder, empty at the start; removed at the end.
    pub folder: PathBuf,
    wire: Wire,
}

/// Runs a service until the other end of stdin, a socket, is closed. stdout and stderr are its log. Errors only if nobody
/// can be told: what goes wrong with the service is said through the socket.
pub fn main() -> anyhow::Result<()> {
    let wire = Wire::inherited(io::stdin().as_fd().try_clone_to_owned()?);
    let mut host = Host::new(wire).context("this is the process of a service, which a run starts by itself")?;
    let entry = super::kind(&host.spec.name).map_err(anyhow::Error::msg)?;
    // What the server leaves when it is killed comes to us.
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_child_subreaper(true)?;
    let mut kind = (entry.make)(&host.spec);
    let ended = host.make_folder().and_then(|()| host.serve(kind.as_mut()));
    kind.stop();
    end_orphans();
    (entry.sweep)(&host.folder);
    let removed = crate::scratch::remove_all(&host.folder);
    if let Err(error) = ended {
        host.log(&format!("{error:#}"));
        host.say(&Reply::Failed(reason(&error)));
    }
    removed.with_context(|| format!("cannot remove {}", host.folder.display()))
}

impl Host {
    fn new(mut wire: Wire) -> anyhow::Result<Self> {
        let spec = wire.wait_for_line()?;
        let spec: Spec = serde_json::from_slice(&spec).context("what to run is not understood")?;
        let folder = super::folder(&spec.scratch, spec.name.as_str());
        Ok(Self { spec, folder, wire })
    }

    fn make_folder(&self) -> anyhow::Result<()> {
        let made = DirBuilder::new().mode(0o700).create(&self.folder);
        made.with_context(|| format!("cannot make the folder {}", self.folder.display()))
    }

    fn serve(&mut self, kind: &mut dyn Kind) -> anyhow::Result<()> {
        kind.prepare(self)?;
        self.say(&Reply::Starting);
        let version = kind.start(self)?;
        self.say(&Reply::Ready(version));
        loop {
            while let Some(line) = self.wire.line() {
                let Request { task } = serde_json::from_slice(&line).context("a request is not understood")?;
                match kind.hand_out(self, &task) {
                    Ok(env) => self.say(&Reply::HandedOut { task, env }),
                    Err(error) => {
                        self.say(&Reply::Refused { task, why: reason(&error) });
                        kind.check(self)?;
                    }
                }
            }
            let (asked, stirred) = wait_readable(self.wire.as_fd(), kind.watch())?;
            if stirred {
                kind.check(self)?;
            }
            // It is reset where the runner was killed before it had read everything.
            if asked && !self.wire.read().unwrap_or(false) {
                return Ok(());
            }
        }
    }

    /// Tells the runner. If it is gone, the next look at the line says so.
    pub fn say(&mut self, reply: &Reply) {
        let _ = self.wire.say(reply, Duration::ZERO);
    }

    /// Tells people why it takes long.
    pub fn say_note(&mut self, text: &str) {
        self.log(text);
        self.say(&Reply::Note(text.to_owned()));
    }

    /// Writes a line to the log.
    pub fn log(&self, text: &str) {
        let _ = writeln!(io::stderr(), "xtask: {text}");
    }

    /// What matters of the end of the log, for an error; nothing where the log is no file.
    pub fn log_tail(&self) -> String {
        let is_file = fs::metadata("/dev/fd/2").is_ok_and(|meta| meta.is_file());
        if is_file {
            end_of(Path::new("/dev/fd/2"), TAIL).map_or_else(|_| String::new(), |text| last_lines(&text))
        } else {
            String::new()
        }
    }

    /// The line to the runner, for who waits: it is hung up once the run is over. Errors if there is no descriptor left.
    pub fn line(&self) -> io::Result<OwnedFd> {
        self.wire.as_fd().try_clone_to_owned()
    }

    /// Errors if the runner is gone: everything that waits asks this between two looks.
    pub fn still_wanted(&self) -> anyhow::Result<()> {
        // No event is asked for: a hang-up is always told, and a request may wait.
        let mut fds = [PollFd::new(self.wire.as_fd(), PollFlags::empty())];
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => Ok(()),
            _ => bail!("the run is over"),
        }
    }

    /// Waits a moment, a few milliseconds, between two looks at something that gives no event. Errors if the runner is
    /// gone.
    pub fn pause(&self, length: Duration) -> anyhow::Result<()> {
        std::thread::sleep(length);
        self.still_wanted()
    }

    /// Runs a command to its end, in a process group of its own that gets SIGKILL when the limit is over or the runner
    /// gone. Its stdin is empty; its output goes to the log unless the caller said otherwise. Errors if it cannot be
    /// started, is not over in time, or the runner is gone.
    pub fn run(&self, command: &mut Command, limit: Duration) -> anyhow::Result<ExitStatus> {
        let what = command.get_program().to_string_lossy().into_owned();
        let until = sys::now() + limit;
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        let mut child = child.with_context(|| format!("cannot run {what}"))?;
        let pid = i32::try_from(child.id()).expect("a process id is an i32");
        let over = loop {
            match sys::peek_exited(Some(pid)) {
                Ok(Some(_)) => break None,
                Ok(None) if sys::now() > until => {
                    break Some(anyhow!("{what} was not over after {}", crate::time::Human(limit)));
                }
                Ok(None) => {}
                Err(e) => break Some(e.into()),
            }
            if let Err(over) = self.pause(STEP) {
                break Some(over);
            }
        };
        // Also what the command left running. It is a zombie still, so that the group's number is its own.
        let _ = kill(Pid::from_raw(-pid), Signal::SIGKILL);
        let status = child.wait()?;
        over.map_or(Ok(status), Err)
    }

    /// Runs a command like `run`; gives what it printed, stdout and stderr in one. Errors, with the last lines of that, if
    /// it fails; all of it is in the log then.
    pub fn ask(&self, command: &mut Command, limit: Duration) -> anyhow::Result<String> {
        let path = self.folder.join("output");
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        command.stdout(file.try_clone()?).stderr(file);
        let ended = self.run(command, limit);
        let output = end_of(&path, OUTPUT).unwrap_or_default();
        if !matches!(&ended, Ok(status) if status.success()) {
            self.log(&output);
        }
        let what = command.get_program().to_string_lossy();
        match ended {
            Ok(status) if status.success() => Ok(output),
            Ok(status) => bail!("{what} failed ({status}): {}", last_lines(&output)),
            Err(error) => Err(error.context(last_lines(&output))),
        }
    }
}

fn end_of(path: &Path, bytes: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(bytes);
    file.seek(SeekFrom::Start(from))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

// The last lines that call themselves errors, before the last lines: a server says much after what mattered.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(5);
    let is_bad = |line: &&&str| ["FATAL:", "PANIC:", "ERROR:"].iter().any(|sign| line.contains(sign));
    let mut chosen: Vec<&str> = lines.iter().filter(is_bad).rev().take(3).copied().collect();
    chosen.reverse();
    chosen.extend(lines[last..].iter().filter(|line| !is_bad(line)));
    chosen.join("; ")
}

// An error as others get it: the log has the whole, and what cites it stays small.
fn reason(error: &anyhow::Error) -> String {
    let mut text = format!("{error:#}");
    if text.len() > REASON {
        let end = (0..=REASON).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" …");
    }
    text
}

/// Waits for the end of a child, but not longer than `limit`; `None` then.
pub fn wait_for(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = sys::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if sys::now() < until => std::thread::sleep(Duration::from_millis(1)),
            _ => return None,
        }
    }
}

// Which of the two can be read. A look at least every minute, in case the server died without closing anything.
fn wait_readable(line: BorrowedFd<'_>, watch: Option<BorrowedFd<'_>>) -> anyhow::Result<(bool, bool)> {
    let mut fds: Vec<PollFd> =
        [Some(line), watch].into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    match poll(&mut fds, PollTimeout::from(60_000_u16)) {
        Ok(0) => return Ok((false, true)),
        Ok(_) => {}
        Err(Errno::EINTR) => return Ok((false, false)),
        Err(e) => return Err(e.into()),
    }
    let ready = |at: usize| fds.get(at).and_then(PollFd::any).unwrap_or(false);
    Ok((ready(0), ready(1)))
}

// Kills what the server left: as a subreaper we get it. A process may fork meanwhile, so until none is left.
fn end_orphans() {
    let until = sys::now() + Duration::from_secs(5);
    while sys::now() < until {
        let mut any = false;
        for task in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
                any = true;
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                let _ = nix::sys::wait::waitpid(Pid::from_raw(pid), Some(nix::sys::wait::WaitPidFlag::WNOHANG));
            }
        }
        if !any {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
