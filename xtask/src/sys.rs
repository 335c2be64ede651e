//! The system's clocks and calls that no crate here wraps: the only unsafe code of the program.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time::{Clocks, Moment};
use crate::verdict::ExitStatus;

/// Now on CLOCK_MONOTONIC, which `std::time::Instant` does not let out as a number.
pub fn now() -> Moment {
    read_clock(libc::CLOCK_MONOTONIC)
}

/// All clocks at once. On other systems than Linux the boot clock is the monotonic one, and suspend goes unseen.
pub fn clocks() -> Clocks {
    #[cfg(target_os = "linux")]
    let boot = read_clock(libc::CLOCK_BOOTTIME);
    #[cfg(not(target_os = "linux"))]
    let boot = now();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Clocks { monotonic: now(), boot, wall_ms: crate::time::millis(wall) }
}

fn read_clock(clock: libc::clockid_t) -> Moment {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of our own, and the clock ids are constants of libc.
    let code = unsafe { libc::clock_gettime(clock, &raw mut at) };
    assert_eq!(code, 0, "clock {clock} cannot be read: {}", io::Error::last_os_error());
    Moment::from_nanos(at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64)
}

/// This very program, to be started again: also where its file has been replaced by a newer one meanwhile. Errors where
/// the system does not say which it is.
pub fn this_program() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// From here on INT, TERM and HUP end this process as they do by default. For the very end, when nothing is held any more.
pub fn end_by_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        if !is_ignored(signal) {
            // SAFETY: the default action runs no code of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// Random bits from the kernel. Errors if it gives none.
pub fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Takes over a descriptor that the process that started this one left open for it, and closes it on exec from now on.
/// Call it once for each number, before anything else in the process could own it. Errors if there is no such descriptor.
pub fn take_inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_SETFD on any number is harmless; it fails with EBADF where nothing is open.
    if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("descriptor {fd} was not handed over")));
    }
    // SAFETY: it is open (fcntl succeeded), and by the rule above nobody else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Marks every descriptor above 2 close-on-exec, so that what the user's shell or CI left open reaches no task. Errors
/// if the list of descriptors cannot be read.
pub fn close_others_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir(if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" })? {
        let number = entry?.file_name().to_string_lossy().parse::<RawFd>();
        if let Ok(fd) = number
            && fd > 2
        {
            // SAFETY: F_SETFD changes a flag only; a number that was closed meanwhile fails with EBADF.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Whether this process ignores the signal: so from its start, where its parent did (nohup).
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: a plain C struct, for which all zeroes is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only asks: the new action is null, and the pointer for the old one is to a struct of our own.
    let code = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    code == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// The end of a child that is still a zombie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exited {
    /// Its process id, which cannot be reused before it is reaped.
    pub pid: i32,
    /// How it ended.
    pub status: ExitStatus,
    /// CPU time of it and of the children that it waited for.
    pub cpu_time: Duration,
    /// The largest resident set of it or of a child that it waited for, in KiB.
    pub peak_kib: u64,
}

/// A child of this process that has ended, without reaping it: any (`None`), or that one. `Ok(None)` if none has.
/// Errors with ECHILD if there is no such child. (`waitid` of the C library and of nix leave out the resource usage
/// that the system call gives, and `wait4` cannot leave the zombie.)
#[cfg(target_os = "linux")]
pub fn peek_exited(pid: Option<i32>) -> io::Result<Option<Exited>> {
    // SAFETY: both are plain C structs, for which all zeroes is a value.
    let (mut info, mut usage): (libc::siginfo_t, libc::rusage) = unsafe { std::mem::zeroed() };
    let (kind, id) = pid.map_or((libc::P_ALL, 0), |pid| (libc::P_PID, pid));
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointers are to structs of our own, of the kernel's layout on this target.
    let code = unsafe { libc::syscall(libc::SYS_waitid, kind, id, &raw mut info, options, &raw mut usage) };
    if code != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid filled in the child's part, or left zeroes where no child had ended.
    let (pid, value) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let status = if info.si_code == libc::CLD_EXITED { ExitStatus::Code(value) } else { ExitStatus::Signal(value) };
    let length = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    let cpu_time = length(usage.ru_utime) + length(usage.ru_stime);
    Ok(Some(Exited { pid, status, cpu_time, peak_kib: usage.ru_maxrss as u64 }))
}

/// The same without CPU time and memory, which other systems do not tell without reaping.
#[cfg(not(target_os = "linux"))]
pub fn peek_exited(pid: Option<i32>) -> io::Result<Option<Exited>> {
    // SAFETY: a plain C struct, for which all zeroes is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let (kind, id) = pid.map_or((libc::P_ALL, 0), |pid| (libc::P_PID, pid));
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to a struct of our own.
    if unsafe { libc::waitid(kind, id as libc::id_t, &raw mut info, options) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid filled in the child's part, or left zeroes where no child had ended.
    let (pid, value) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let status = if info.si_code == libc::CLD_EXITED { ExitStatus::Code(value) } else { ExitStatus::Signal(value) };
    Ok(Some(Exited { pid, status, cpu_time: Duration::ZERO, peak_kib: 0 }))
}

/// Makes a command end of this signal, and get it when the thread that starts it ends, however it ends. Who was started as
/// a background job of a shell ignores SIGQUIT, and so would what it starts. A change of user, which would take the latter
/// off again, comes before it in std.
#[cfg(target_os = "linux")]
pub fn end_with_parent(command: &mut std::process::Command, signal: nix::sys::signal::Signal) {
    use nix::sys::signal::{SigHandler, Signal};
    use std::os::unix::process::CommandExt;
    let parent = nix::unistd::getpid();
    let bind = move || {
        // Nobody can ignore SIGKILL.
        if signal != Signal::SIGKILL {
            // SAFETY: no handler is installed.
            unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) }?;
        }
        nix::sys::prctl::set_pdeathsig(signal)?;
        // It may have died between the fork and this.
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: the closure only makes three system calls: nothing that a lock of another thread could hold.
    unsafe { command.pre_exec(bind) };
}

/// Makes a command run in a user namespace where user and group (`from`) are seen under other numbers (`to`).
#[cfg(target_os = "linux")]
pub fn show_as(command: &mut std::process::Command, user: (u32, u32), group: (u32, u32)) {
    use std::os::unix::process::CommandExt;
    let line = |(from, to): (u32, u32)| format!("{to} {from} 1");
    let files = [
        (c"/proc/self/setgroups", "deny".to_owned()),
        (c"/proc/self/uid_map", line(user)),
        (c"/proc/self/gid_map", line(group)),
    ];
    let enter = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER)?;
        for (path, text) in &files {
            let file = nix::fcntl::open(*path, nix::fcntl::OFlag::O_WRONLY, nix::sys::stat::Mode::empty())?;
            nix::unistd::write(file, text.as_bytes())?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls with what was made before the fork: it allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// Other systems have no user namespaces: the command runs as it is.
#[cfg(not(target_os = "linux"))]
pub fn show_as(_command: &mut std::process::Command, _user: (u32, u32), _group: (u32, u32)) {}

/// Other systems cannot: the command ends when it notices by itself.
#[cfg(not(target_os = "linux"))]
pub fn end_with_parent(_command: &mut std::process::Command, _signal: nix::sys::signal::Signal) {}

/// Removes a System V shared memory segment; if processes are attached to it, as soon as the last one is not. Errors if
/// there is none, or it is somebody else's.
pub fn remove_shared_segment(id: i32) -> io::Result<()> {
    // SAFETY: IPC_RMID reads no buffer, and any number is checked by the kernel.
    if unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Columns and rows of the terminal at stderr; none if there is no terminal, or it does not say.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ writes one winsize to the pointer, which is to one of our own.
    let code = unsafe { libc::ioctl(2, libc::TIOCGWINSZ, &raw mut size) };
    (code == 0 && size.ws_col > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

/// The identity of this boot, which the monotonic and the boot clock belong to; empty where the system has none.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// The name of this process's namespace of that kind, `net:[4026531840]`; none where the system has no such thing.
pub fn namespace(kind: &str) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// Whether /proc is of this process's own pid namespace: the numbers in another's name other processes here, or none. True
/// where there is no /proc. The error says what to do.
pub fn own_proc() -> Result<(), String> {
    if !std::path::Path::new("/proc/stat").exists() {
        return Ok(());
    }
    let me = std::process::id();
    match std::fs::read_link("/proc/self") {
        Ok(pid) if pid.as_os_str() == me.to_string().as_str() => Ok(()),
        _ => Err("/proc is that of another pid namespace, and what a task leaves behind would not be seen: mount a /proc of \
                  this pid namespace (unshare --mount-proc)"
            .to_owned()),
    }
}

/// Has the command call setsid between fork and exec: the process that comes of it is never in this one's group, not even
/// for the moment in which that might be killed as a whole.
pub fn in_a_session_of_its_own(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let setsid = || nix::unistd::setsid().map(drop).map_err(Into::into);
    // SAFETY: setsid is async-signal-safe, and the closure touches no memory.
    unsafe { command.pre_exec(setsid) };
}

/// Sends SIGKILL to a process that is no child of this one, if `is_it` says so once its number is pinned down: between a
/// look at /proc and the signal, the number may have become another's. Errors with EPERM if it is not ours to kill, with
/// ESRCH if it is gone.
#[cfg(target_os = "linux")]
pub fn kill_exactly(pid: i32, is_it: impl FnOnce() -> bool) -> io::Result<()> {
    // SAFETY: a system call without pointers; it gives a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: the descriptor, if there is one, is new, and nobody else knows it.
    let fd = RawFd::try_from(fd).ok().filter(|&fd| fd >= 0).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    if !is_it() {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    if let Some(fd) = fd {
        use std::os::fd::AsRawFd;
        let no_info: *const libc::siginfo_t = std::ptr::null();
        // SAFETY: the descriptor is open; a null siginfo is allowed and means what kill(2) would fill in.
        if unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), libc::SIGKILL, no_info, 0) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Err(error); // it is gone, and its number is anybody's
        }
    }
    // Old kernels and the filters of some containers have no such calls.
    // SAFETY: a system call without pointers.
    if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The same by its number alone.
#[cfg(not(target_os = "linux"))]
pub fn kill_exactly(pid: i32, is_it: impl FnOnce() -> bool) -> io::Result<()> {
    if !is_it() {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: a system call without pointers.
    if unsafe { libc::kill(pid, libc::SIGKILL) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
