//! The one loop: the schedule decides, the hands do, and what happened goes back to the schedule.

pub mod command;
pub mod hands;
pub mod lifeline;
pub mod order;
pub mod outputs;
mod seat;
pub mod services;

use nix::sys::signal::Signal;

use crate::event::Stamped;
use crate::plan::Plan;
use crate::plan::schedule::{Action, Input, Schedule};
use crate::time::Moment;
use crate::verdict::Stop;

/// Does what the schedule says, and tells it what happened. The runner's own hands start processes; those of a dry run
/// or a simulation pretend.
pub trait Hands {
    /// Now.
    fn now(&self) -> Moment;
    /// Does it, without blocking: what comes of it is told by `wait`.
    fn perform(&mut self, now: Moment, action: Action);
    /// Blocks until something happened, or until that moment; gives what happened and when.
    fn wait(&mut self, until: Option<Moment>) -> (Moment, Input);
}

/// Who watches a run: the screen and the record.
pub trait Observer {
    /// An event.
    fn on(&mut self, stamped: &Stamped);
    /// Time passed.
    fn tick(&mut self, now: Moment);
    /// When `tick` is wanted at the latest.
    fn wake_at(&self) -> Option<Moment>;
}

/// Drives a run whose clock started at `won` to its end: when this returns, each task has its verdict and nothing runs.
pub fn drive(plan: &Plan, won: Moment, hands: &mut dyn Hands) {
    let mut schedule = Schedule::new(plan, won);
    let (mut now, mut input) = (hands.now(), Input::Tick);
    loop {
        for action in schedule.on(now, input) {
            if action == Action::Done {
                return;
            }
            hands.perform(now, action);
        }
        (now, input) = hands.wait(schedule.wake_at());
    }
}

// The signal by which a process is asked to end as the run was.
fn signal_of(stop: Stop) -> Signal {
    match stop {
        Stop::Int => Signal::SIGINT,
        Stop::Term => Signal::SIGTERM,
        Stop::Hup => Signal::SIGHUP,
    }
}
