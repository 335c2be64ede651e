//! SIGKILL to the processes of a run itself, at random moments.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, geteuid};
use socket2::{Domain, Socket, Type};

use crate::process::{assert_none_left, suite, task, token};
use crate::world::{Running, World, processes_with, until};

/// Whom to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Runner,
    Keeper,
    KeepersGroup,
}

/// A repository whose suite never ends by itself and misbehaves in every way that is known.
pub struct Field {
    pub world: World,
    pub token: String,
    // A run that is killed leaves its scratch folder for a moment; two of these tests would see each other's.
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Field {
    pub fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let token = token();
        let tasks = [
            task("quick", "fork deaf hang end fork session leave hang end say hi", &token, "leftovers = \"kill\""),
            task(
                "daemon",
                "fork session clobber leave deaf hang end fork deaf hang end deaf hang",
                &token,
                "needs = [\"quick\"]",
            ),
            task("bare", "fork session leave bare fork hang end hang end hang", &token, ""),
            "[task.check]\ncommand = ['sh', 'check.sh']\ndeadline = \"40s\"\n".to_owned(),
        ];
        let world = World::new(&suite(&tasks.concat()));
        // A run that comes after looks for what is left of the one before, without naming it in an argument.
        world.write("token", &token);
        world.write(
            "check.sh",
            "for p in /proc/[0-9]*; do grep -aqFf token $p/cmdline 2>/dev/null && exit 1; done; exit 0\n",
        );
        world.commit("ready");
        Self { world, token, _alone: alone }
    }

    /// Starts the run that will be killed, as the leader of a process group.
    pub fn start(&self) -> Running {
        let mut command = self.world.command(&["verify", "--only", "daemon,bare"]);
        command.process_group(0);
        Running::start(command, &self.world.folder)
    }

    /// Kills at that moment, and waits until the ports are free. At that very moment nothing may be left of the run.
    /// Gives how long that took after the kill.
    #[track_caller]
    pub fn round(&self, victim: Victim, moment: Duration) -> Duration {
        let mut running = self.start();
        std::thread::sleep(moment);
        let keeper = Pid::from_raw(running.pid());
        let killed = match victim {
            Victim::Keeper => kill(keeper, Signal::SIGKILL),
            Victim::KeepersGroup => killpg(keeper, Signal::SIGKILL),
            Victim::Runner => {
                let mut runner = None;
                until("the runner", || {
                    runner = runner_of(keeper.as_raw());
                    runner.is_some()
                });
                kill(Pid::from_raw(runner.unwrap()), Signal::SIGKILL)
            }
        };
        let begun = Instant::now();
        killed.expect("it runs");
        if victim != Victim::Runner {
            running.child.wait().unwrap();
        }
        until("the ports", || self.ports_are_free());
        let took = begun.elapsed();
        assert_none_left(&self.token);
        let folders = dead_folders(&self.world);
        assert!(folders.is_empty(), "{victim:?} killed after {moment:?} left {folders:?}");
        if victim == Victim::Runner {
            running.wait().expect(7);
        }
        took
    }

    fn ports_are_free(&self) -> bool {
        let first = self.world.ports.first;
        [first, first + 1].map(listen).iter().all(Option::is_some)
    }
}

fn listen(port: u16) -> Option<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, port).into()).ok()?;
    socket.listen(1).ok().map(|()| socket)
}

/// The runner that this keeper has started.
pub fn runner_of(keeper: i32) -> Option<i32> {
    let path = format!("/proc/{keeper}/task/{keeper}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().find_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains("internal-runner").then(|| pid.parse().unwrap())
    })
}

/// Scratch folders that nobody holds any more.
fn dead_folders(world: &World) -> Vec<PathBuf> {
    let base = world.scratch().join(format!("xtask-{}", geteuid()));
    let folders = std::fs::read_dir(base).into_iter().flatten().map(|e| e.unwrap().path());
    folders.filter(|folder| is_dead(folder)).collect()
}

fn is_dead(folder: &Path) -> bool {
    std::fs::File::open(folder).is_ok_and(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok())
}

/// Numbers that look random and are the same for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    pub fn kill(&mut self) -> (Victim, Duration) {
        let victim = [Victim::Runner, Victim::Keeper, Victim::KeepersGroup][self.below(3) as usize];
        (victim, Duration::from_micros(self.below(400_000)))
    }
}

#[test]
fn no_single_kill_leaves_anything() {
    let field = Field::new();
    for seed in 0..20 {
        let (victim, moment) = Dice::new(seed).kill();
        field.round(victim, moment);
    }
}

#[test]
fn the_next_run_starts_when_the_last_process_is_gone() {
    let field = Field::new();
    for victim in [Victim::Runner, Victim::Keeper, Victim::KeepersGroup] {
        let mut first = field.start();
        until("the daemons", || processes_with(&field.token).len() >= 6);
        let mut next = field.world.start(&["verify", "--only", "check"]);
        next.wait_for("Waiting");
        let keeper = Pid::from_raw(first.pid());
        match victim {
            Victim::Runner => kill(Pid::from_raw(runner_of(first.pid()).unwrap()), Signal::SIGKILL),
            Victim::Keeper => kill(keeper, Signal::SIGKILL),
            Victim::KeepersGroup => killpg(keeper, Signal::SIGKILL),
        }
        .unwrap();
        first.child.wait().unwrap();
        let next = next.wait().expect(0);
        assert!(!next.err.contains("had left"), "the next run had to clean up: {}", next.err);
    }
}

#[test]
fn where_both_are_killed_the_next_run_ends_what_is_left() {
    let field = Field::new();
    let mut first = field.start();
    until("the daemons", || processes_with(&field.token).len() >= 6);
    let runner = Pid::from_raw(runner_of(first.pid()).unwrap());
    kill(runner, Signal::SIGSTOP).unwrap(); // it must not act on the keeper's end
    kill(Pid::from_raw(first.pid()), Signal::SIGKILL).unwrap();
    first.child.wait().unwrap();
    kill(runner, Signal::SIGKILL).unwrap();
    until("the ports", || field.ports_are_free());
    assert!(!processes_with(&field.token).is_empty(), "nobody was there to end them");
    field.world.run(&["verify", "--only", "check"]).expect(0).says("ended what a run that was killed had left");
    assert_none_left(&field.token);
}
