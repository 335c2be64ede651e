//! What is done to the processes of a run.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::soak_ground::{Ground, LONGEST, within};
use crate::soak_plan::{Blow, Plan, When};
use crate::world::processes_with;

/// Does it to the run of that number, unless it has ended before. Until its end is taken note of, the number of the keeper is
/// its own. `in_the_middle` says whether a receipt is on its way to the disk. Gives what is wrong already.
pub fn strike(
    ground: &Ground,
    blow: Blow,
    plan: &Plan,
    (number, keeper): (u32, i32),
    in_the_middle: impl Fn() -> bool,
) -> Option<String> {
    let ended = || xtask::sys::peek_exited(Some(keeper)).is_ok_and(|end| end.is_some());
    let mut runner = None;
    if plan.when != When::Asked || matches!(blow, Blow::KillRunner | Blow::KillBoth) {
        within(LONGEST, || {
            runner = runner_of(keeper);
            runner.is_some() || ended()
        });
    }
    if plan.when == When::AtTheReceipt && within(LONGEST, || in_the_middle() || ended()) {
        ground.fault("in the middle of a receipt");
    }
    std::thread::sleep(plan.moment);
    if ended() {
        return None;
    }
    let send = |pid: i32, signal: Signal| {
        // It may have ended meanwhile.
        let _ = kill(Pid::from_raw(pid), signal);
    };
    let runner = runner.filter(|_| runner_of(keeper) == runner);
    let ms = || xtask::sys::now().as_nanos() / 1_000_000;
    let mut two_owners = None;
    let mut kill_one = |one: i32, other: Option<i32>| {
        let other = other.filter(|_| !plan.blind.is_zero());
        other.inspect(|&other| send(other, Signal::SIGSTOP));
        let killed = ms();
        send(one, Signal::SIGKILL);
        other.inspect(|&other| {
            std::thread::sleep(plan.blind);
            // Whoever waits has had its chance meanwhile.
            two_owners = if ground.lives(number) { ground.held(killed, ms(), number) } else { None };
            send(other, Signal::SIGCONT);
            ground.fault("the other one stopped meanwhile");
        });
    };
    let what = match (blow, runner) {
        (Blow::Ask(signal), _) => {
            send(keeper, signal);
            signal.as_str()
        }
        (Blow::AskTwice, _) => {
            send(keeper, Signal::SIGINT);
            send(keeper, Signal::SIGINT);
            "SIGINT twice"
        }
        (Blow::KillKeeper, _) => {
            kill_one(keeper, runner);
            "keeper killed"
        }
        (Blow::KillGroup, _) => {
            let _ = killpg(Pid::from_raw(keeper), Signal::SIGKILL);
            "group killed"
        }
        (Blow::KillRunner, Some(runner)) => {
            kill_one(runner, Some(keeper));
            "runner killed"
        }
        (Blow::KillBoth, Some(runner)) => {
            ground.books().ghosts.insert(number);
            send(runner, Signal::SIGSTOP);
            send(keeper, Signal::SIGKILL);
            send(runner, Signal::SIGKILL);
            "both killed"
        }
        (Blow::KillTask, _) => match processes_with(&plan.token).last() {
            Some(&task) => {
                send(task, Signal::SIGKILL);
                "task killed"
            }
            None => return None,
        },
        (Blow::Pause(length), _) => {
            send(keeper, Signal::SIGSTOP);
            std::thread::sleep(length);
            // It comes to its turn, or its budget is over.
            within(Duration::from_secs(2), || TcpStream::connect(("127.0.0.1", ground.ports.first)).is_err());
            send(keeper, Signal::SIGCONT);
            "keeper paused"
        }
        (Blow::Freeze | Blow::FreezeShort, Some(runner)) => {
            send(runner, Signal::SIGSTOP);
            if blow == Blow::Freeze {
                // Two of a kind may be one by the time that they are heard.
                send(keeper, Signal::SIGINT);
                send(keeper, Signal::SIGTERM);
            }
            "runner stopped for good"
        }
        (_, None) => return None,
    };
    ground.fault(what);
    two_owners
}

// The runner that this keeper has started.
fn runner_of(keeper: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    children.split_whitespace().find_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains("internal-runner").then(|| pid.parse().ok())?
    })
}
