//! A run to be killed, and what must be true at the moment in which its ports are free.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, geteuid};

use super::fixture::{assert_none_left, pool, suite, task, token};
use crate::world::{Running, World, nobody_listens, processes_with, until};

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
    // The sweep at the start of another run would end what this test wants to see left.
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
                "fork session leave threads clobber deaf hang end fork session clobber leave deaf hang end \
                 fork deaf hang end deaf hang",
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
    /// Gives how long after the kill the last process was gone, and how long after it the ports were free.
    #[track_caller]
    pub fn round(&self, victim: Victim, moment: Duration) -> (Duration, Duration) {
        let mut running = self.start();
        std::thread::sleep(moment);
        let keeper = Pid::from_raw(running.pid());
        let mut runner = runner_of(keeper.as_raw());
        if victim == Victim::Runner {
            until("the runner", || {
                runner = runner_of(keeper.as_raw());
                runner.is_some()
            });
        }
        let folder = runner.and_then(|runner| self.folder_of(runner));
        let killed = match victim {
            Victim::Keeper => kill(keeper, Signal::SIGKILL),
            Victim::KeepersGroup => killpg(keeper, Signal::SIGKILL),
            Victim::Runner => kill(Pid::from_raw(runner.unwrap()), Signal::SIGKILL),
        };
        let begun = Instant::now();
        killed.expect("it runs");
        if victim != Victim::Runner {
            running.child.wait().unwrap();
        }
        let mut gone = None;
        until("the ports", || {
            if gone.is_none() && processes_with(&self.token).is_empty() {
                gone = Some(begun.elapsed());
            }
            self.ports_are_free()
        });
        let free = begun.elapsed();
        assert_none_left(&self.token);
        assert!(!folder.is_some_and(|folder| folder.exists()), "{victim:?} killed after {moment:?} left its folder");
        if victim == Victim::Runner {
            running.wait().expect(7);
        }
        (gone.unwrap_or(free), free)
    }

    /// The scratch folder of this runner's run. Its name, the run's, is in the mark that the runner carries.
    fn folder_of(&self, runner: i32) -> Option<PathBuf> {
        let environ = std::fs::read(format!("/proc/{runner}/environ")).ok()?;
        let mark = environ.split(|&b| b == 0).find_map(|entry| entry.strip_prefix(b"XTASK_MARK="))?;
        // Of runs around the test there are more parts before it.
        let mark = String::from_utf8_lossy(mark);
        let (run, _) = mark.rsplit(':').next()?.split_once('/')?;
        Some(self.world.scratch().join(format!("xtask-{}", geteuid())).join(run))
    }

    /// Waits until all is there of the run that was started, as far as there are CPUs for it.
    pub fn is_there(&self) {
        let count = if pool() == 1 { 4 } else { 6 };
        until("the daemons", || processes_with(&self.token).len() >= count);
    }

    pub fn ports_are_free(&self) -> bool {
        let first = self.world.ports.first;
        [first, first + 1].into_iter().all(nobody_listens)
    }
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
