//! A process of its own that takes the lock as every run does, for tests that stop it, starve it and kill it. It is this
//! same test program, started again with one test of its own selected.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lock_caller::Caller;

const PORT: &str = "XTASK_TEST_LOCK_PORT";

/// The process, seen from the test.
pub struct Contender {
    pub child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
}

impl Contender {
    /// A process that waits for the port and then holds it.
    pub fn start(port: u16) -> Self {
        let program = std::env::current_exe().expect("this program");
        Self::start_by(Command::new(program), port)
    }

    /// The same, by a command whose last words will be those that select the role (`setpriv …`).
    pub fn start_by(mut command: Command, port: u16) -> Self {
        let select = ["lock_contender::contender", "--exact", "--ignored", "--nocapture"];
        command.args(select).env(PORT, port.to_string()).env("RUST_BACKTRACE", "0");
        // A group of its own: a signal to the test's group is none of its business.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this program starts once more");
        let orders = child.stdin.take();
        let words = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, orders, words }
    }

    /// A process that holds the port.
    pub fn holding(port: u16) -> Self {
        let mut contender = Self::start(port);
        contender.hear("held");
        contender
    }

    /// Waits until it says this word; the rest of the line.
    pub fn hear(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.words.read_line(&mut line).expect("its words can be read");
            assert!(count > 0, "it ended without saying {word:?}");
            // The test harness may have begun the line.
            if let Some((_, said)) = line.split_once('@')
                && let Some(rest) = said.trim_end().strip_prefix(word)
            {
                return rest.trim().to_owned();
            }
        }
    }

    /// Gives it an order.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders.as_mut().expect("not let go of"), "{order}").expect("it listens");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it is there");
    }

    /// Stops it, and waits until it is.
    pub fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        crate::world::until("the holder to stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        });
    }

    /// Kills it and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("it is ours");
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(word: &str) {
    writeln!(std::io::stdout(), "@{word}").expect("somebody listens");
}

/// What the process does.
#[test]
#[ignore = "a process that the tests of the lock start"]
fn contender() {
    let Ok(port) = std::env::var(PORT) else { return };
    let caller = Caller::new("contender", Duration::from_secs(600));
    let mut lock = Some(caller.acquire(port.parse().expect("a port")).expect("the lock"));
    say("held");
    let (mut children, mut files) = (Vec::new(), Vec::new());
    let mut orders = std::io::stdin().lines().map(|order| order.expect("orders can be read"));
    while let Some(order) = orders.next() {
        match order.as_str() {
            "release" => {
                lock = None;
                say("released");
            }
            // Keeps the thread that answers from answering until the next order, and then lets go at once.
            "mute" => {
                lock.as_ref().expect("held").say(|_| {
                    say("muted");
                    orders.next();
                });
                lock = None;
            }
            "said" => say(&format!("said {}", caller.said.borrow().join("; "))),
            // A child as tasks are: it must not keep the lock.
            "child" => {
                children.push(sleeper());
                say(&format!("child {}", children[children.len() - 1].id()));
            }
            // A child as the runner is: it must keep it.
            "runner" => {
                let copy = lock.as_ref().expect("held").inheritable().expect("a copy");
                children.push(sleeper());
                drop(copy);
                say(&format!("runner {}", children[children.len() - 1].id()));
            }
            "exhaust" => {
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    files.push(file);
                }
                say("exhausted");
            }
            "recover" => {
                files.clear();
                say("recovered");
            }
            "panic" => panic!("as ordered"),
            other => match other.strip_prefix("descriptors ").map(|count| count.parse::<u64>()) {
                Some(Ok(count)) => {
                    use nix::sys::resource::{Resource, getrlimit, setrlimit};
                    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit");
                    setrlimit(Resource::RLIMIT_NOFILE, count, hard).expect("another limit");
                    say("limited");
                }
                _ => panic!("no such order: {other}"),
            },
        }
    }
}

fn sleeper() -> Child {
    let quiet = || Stdio::null();
    Command::new("sleep").arg("1000").stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().expect("sleep starts")
}
