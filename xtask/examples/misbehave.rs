//! A program that behaves as badly as it is told to: the fixture of the tests about processes.
//!
//!     misbehave ORDER... [token=TEXT]
//!
//! Orders are done one after the other; at their end it exits with 0. The token does nothing: tests look for it among
//! the arguments of what is left in /proc, and every process that comes of this one has it.
//!
//!     fork ORDERS end    a child does these orders, then this process goes on; nobody waits for the child
//!     leave              this process exits with 0 at once, and then a child does the rest
//!     wait               a child does the rest, and this process exits as it does
//!     session            a session of its own
//!     group              a process group of its own
//!     join               the process group of the leader of its session
//!     close              closes every descriptor
//!     bare               exec of itself without an environment
//!     rename NAME        exec of itself under another name
//!     clobber            overwrites its environment where /proc shows it, as programs do that change their title
//!     deaf               ignores TERM, INT and HUP
//!     polite             exits with 0 at TERM
//!     cleanup            at TERM says `cleaned up` after 0.3 s and exits with 0
//!     count              says every TERM, INT and HUP that it gets, and goes on
//!     stop               stops itself
//!     threads            its first thread ends, and another does the rest
//!     everywhere         lets itself run on every CPU
//!     unpinnable         from here on the kernel refuses to pin it, and what comes of it, to CPUs
//!     exec WORDS         exec of another program, with all the words that are left
//!     witness PATH       it and what comes of it show in that file that they live, and it notes there who else does
//!     root               becomes root for good, where it is set-uid root
//!     chain N            N processes, each in a session of its own, of which each starts the next 2 ms later and exits
//!     rush N             the same as fast as it can
//!     say TEXT           prints a line
//!     bytes HEX          prints these bytes
//!     flood BYTES        prints as many bytes as fast as it can, in lines
//!     cpus               prints how many CPUs it may use
//!     work MS            works for MS milliseconds of CPU time and prints how many it took
//!     trace PID          traces that process from here on, as a debugger does, and never looks after it
//!     terminal           tries to become the terminal's foreground process and says how that went
//!     touch PATH         makes a file
//!     claim              puts a file of its own in the place of the receipt of its run
//!     until PATH         waits until there is such a file
//!     sleep MS           sleeps
//!     hang               sleeps for 300 s
//!     exit CODE          exits
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, reason = "to misbehave is what it is for")]

use std::collections::VecDeque;
use std::ffi::CString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

type Orders = VecDeque<String>;

static CAUGHT: AtomicI32 = AtomicI32::new(0);

fn main() {
    carry_out(std::env::args().skip(1).collect());
    exit(0);
}

fn carry_out(mut orders: Orders) {
    while let Some(order) = orders.pop_front() {
        carry_out_one(&order, &mut orders);
    }
}

fn carry_out_one(order: &str, rest: &mut Orders) {
    let mut word = || rest.pop_front().unwrap_or_else(|| panic!("{order} needs a word"));
    match order {
        "fork" => {
            let mut childs = Orders::new();
            let mut depth = 1;
            loop {
                let next = word();
                depth += i32::from(next == "fork") - i32::from(next == "end");
                if depth == 0 {
                    break;
                }
                childs.push_back(next);
            }
            if fork() == 0 {
                carry_out(childs);
                exit(0);
            }
        }
        "leave" => {
            let parent = std::process::id();
            if fork() != 0 {
                exit(0);
            }
            while std::os::unix::process::parent_id() == parent {
                sleep(Duration::from_millis(1));
            }
        }
        "wait" => {
            let child = fork();
            if child != 0 {
                let mut status = 0;
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) });
            }
        }
        "session" => drop(nix::unistd::setsid().expect("a new session")),
        "group" => assert_eq!(unsafe { libc::setpgid(0, 0) }, 0),
        "join" => assert_eq!(unsafe { libc::setpgid(0, libc::getsid(0)) }, 0),
        "close" => (0..256).for_each(|fd| {
            // Most of them are not open.
            let _ = unsafe { libc::close(fd) };
        }),
        "bare" => exec_again(Command::new("/proc/self/exe").env_clear(), rest),
        "rename" => {
            let name = word();
            exec_again(Command::new("/proc/self/exe").arg0(name), rest);
        }
        "clobber" => clobber(),
        "deaf" => [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].into_iter().for_each(|s| on(s, libc::SIG_IGN)),
        "polite" => on(libc::SIGTERM, leave_at_once as *const () as usize),
        "cleanup" => on(libc::SIGTERM, clean_up as *const () as usize),
        "count" => [libc::SIGTERM, libc::SIGINT, libc::SIGHUP]
            .into_iter()
            .for_each(|s| on(s, say_signal as *const () as usize)),
        "stop" => drop(nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP)),
        "threads" => {
            let orders = std::mem::take(rest);
            std::thread::spawn(move || {
                carry_out(orders);
                exit(0);
            });
            // Ends this thread alone.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        "everywhere" => {
            let all: libc::cpu_set_t = unsafe { std::mem::transmute([0xff_u8; size_of::<libc::cpu_set_t>()]) };
            assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&all), &raw const all) }, 0);
        }
        "trace" => {
            let pid = libc::pid_t::try_from(number(&word())).expect("a process id");
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }, 0, "not allowed");
        }
        "unpinnable" => refuse_pinning(),
        "exec" => {
            let program = word();
            panic!("cannot exec: {}", Command::new(program).args(std::mem::take(rest)).exec());
        }
        "witness" => bear_witness(&word()),
        "root" => assert_eq!(unsafe { libc::setresuid(0, 0, 0) }, 0, "not set-uid root"),
        order @ ("chain" | "rush") => {
            for _ in 0..number(&word()) {
                if fork() != 0 {
                    unsafe { libc::_exit(0) };
                }
                unsafe { libc::setsid() };
                if order == "chain" {
                    sleep(Duration::from_millis(2));
                }
            }
        }
        "say" => print_now(format!("{}\n", word()).as_bytes()),
        "bytes" => {
            let hex = word();
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two hexadecimal digits");
            print_now(&(0..hex.len() / 2).map(|i| byte(2 * i)).collect::<Vec<u8>>());
        }
        "flood" => {
            let block = b"a line of a flood, and there are very many of them, all of the same length, sixty-four.\n"
                .repeat(700);
            let mut left = number(&word());
            while left > 0 {
                let length = block.len().min(left as usize);
                std::io::stdout().write_all(&block[..length]).expect("somebody takes it");
                left -= length as u64;
            }
        }
        "cpus" => print_now(format!("{}\n", std::thread::available_parallelism().expect("a number")).as_bytes()),
        "work" => work(Duration::from_millis(number(&word()))),
        "terminal" => take_terminal(),
        "touch" => drop(std::fs::File::create(word()).expect("a file can be made")),
        "claim" => {
            let mark = std::env::var("XTASK_MARK").expect("a task of a run");
            let (run, _) = mark.rsplit_once('/').expect("run and task");
            let run = run.rsplit(':').next().expect("the innermost run");
            std::fs::write(format!("receipts/{run}.json"), "claimed by a task\n").expect("a file can be made");
        }
        "until" => {
            let path = word();
            while !Path::new(&path).exists() {
                sleep(Duration::from_millis(2));
            }
        }
        "sleep" => sleep_through(Duration::from_millis(number(&word()))),
        "hang" => sleep_through(Duration::from_secs(300)),
        "exit" => exit(number(&word()) as i32),
        token if token.starts_with("token=") => {}
        other => panic!("no such order: {other}"),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn fork() -> i32 {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    pid
}

fn exec_again(command: &mut Command, rest: &Orders) -> ! {
    // The token stands behind the orders of all, and what a child was told to do does not reach so far.
    let token = std::env::args().filter(|arg| arg.starts_with("token="));
    panic!("cannot exec: {}", command.args(rest).args(token).exec());
}

fn print_now(bytes: &[u8]) {
    let mut out = std::io::stdout();
    out.write_all(bytes).and_then(|()| out.flush()).expect("somebody takes it");
}

fn on(signal: i32, handler: usize) {
    unsafe { libc::signal(signal, handler) };
}

extern "C" fn leave_at_once(_: i32) {
    unsafe { libc::_exit(0) };
}

extern "C" fn clean_up(_: i32) {
    let text = b"cleaned up\n";
    unsafe {
        libc::usleep(300_000);
        libc::write(1, text.as_ptr().cast(), text.len());
        libc::_exit(0);
    }
}

extern "C" fn say_signal(signal: i32) {
    CAUGHT.fetch_add(1, Ordering::Relaxed);
    let text: &[u8] = match signal {
        libc::SIGTERM => b"got TERM\n",
        libc::SIGINT => b"got INT\n",
        _ => b"got HUP\n",
    };
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

// A signal that is caught ends a sleep of libc's, but not this one.
fn sleep_through(length: Duration) {
    let end = Instant::now() + length;
    while Instant::now() < end {
        sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_secs(1)));
    }
}

fn clobber() {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    unsafe {
        let mut entry = environ;
        while !(*entry).is_null() {
            let length = libc::strlen(*entry);
            std::ptr::write_bytes(*entry, b' ', length);
            entry = entry.add(1);
        }
    }
}

fn work(length: Duration) {
    let begun = Instant::now();
    let mut sum = 0u64;
    while cpu_time() < length {
        for i in 0..10_000u64 {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(i));
        }
    }
    print_now(format!("{}\n", begun.elapsed().as_millis()).as_bytes());
}

fn cpu_time() -> Duration {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut at) };
    Duration::new(at.tv_sec as u64, at.tv_nsec as u32)
}

// A filter of four instructions: sched_setaffinity fails with EPERM, everything else is allowed.
fn refuse_pinning() {
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut lines = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_sched_setaffinity as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_mut_ptr() };
    let (on, off, mode) = (1 as libc::c_ulong, 0 as libc::c_ulong, libc::SECCOMP_MODE_FILTER as libc::c_ulong);
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, off, off, off), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
    }
}

// Of PATH, a read lock on the byte whose number is in $WITNESS, held by this open file for as long as anybody has it. A
// line of PATH.seen says that number, then those of the other bytes that are held at this moment. Asking takes no lock,
// so that witnesses are never in each other's way.
fn bear_witness(path: &str) {
    let own = number(&std::env::var("WITNESS").expect("a number")) as i64;
    let name = CString::new(path).expect("no zero byte");
    // Not close-on-exec, and never closed.
    let fd = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY) };
    assert!(fd >= 0, "cannot open {path}");
    let lock = |kind: i32, start: i64, end: i64| {
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, end - start);
        lock
    };
    let here = lock(libc::F_RDLCK, own, own + 1);
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &raw const here) }, 0);
    let (mut seen, mut ranges) = (own.to_string(), vec![(0, own), (own + 1, i64::from(i32::MAX))]);
    while let Some((start, end)) = ranges.pop() {
        let mut other = lock(libc::F_WRLCK, start, end);
        if start < end {
            assert_eq!(unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut other) }, 0);
            if i32::from(other.l_type) != libc::F_UNLCK {
                seen += &format!(" {}", other.l_start);
                ranges.extend([(start, other.l_start), (other.l_start + 1, end)]);
            }
        }
    }
    let mut file = std::fs::OpenOptions::new().append(true).open(format!("{path}.seen")).expect("a file for it");
    file.write_all(format!("{seen}\n").as_bytes()).expect("somebody takes it");
}

fn take_terminal() {
    let path = CString::new("/dev/tty").expect("no zero byte");
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR) };
    if fd < 0 {
        print_now(b"no terminal\n");
        return;
    }
    on(libc::SIGTTOU, libc::SIG_IGN);
    let taken = unsafe { libc::tcsetpgrp(fd, libc::getpgrp()) } == 0;
    print_now(if taken { b"terminal taken\n" } else { b"terminal refused\n" });
}
