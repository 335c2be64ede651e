//! One command under the lock, for `lock run`: a plan of a single task whose stdin, stdout and stderr are the runner's
//! own. The schedule decides about it as about any task; there is no log, no snapshot and no receipt.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use super::lifeline::Lifeline;
use super::order::{COMMAND_GRACE, COMMAND_WRAP_UP, CommandOrder, Message, SUSPEND};
use super::{Hands, signal_of};
use crate::interrupt::{Wake, Wakeups};
use crate::name::TaskName;
use crate::plan::schedule::{Action, Ending, Input};
use crate::plan::{Plan, Planned};
use crate::process::environment::Environment;
use crate::process::{MARK, Output, Owner, ProcessTree, Spawn};
use crate::suite::OnFailure;
use crate::sys;
use crate::time::{Human, Moment};
use crate::verdict::{Cause, Exit, ExitStatus, Reason, Verdict};

const LABEL: &str = "command";
const COMMAND: Owner = Owner::Task(0);
const LEFT: &str = "note: ended what the command left behind";

/// Runs the command to its end and tells the keeper how it ended, if it ended by itself; then the exit is `Passed`
/// whatever that was. `note` takes lines for people. Errors if the system refuses what that needs.
pub fn run(
    order: &CommandOrder,
    env: &Environment,
    lifeline: &mut Lifeline,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Exit> {
    let outer = std::env::var(MARK).ok();
    let tree = ProcessTree::new(order.run.clone(), outer.as_deref()).map_err(anyhow::Error::msg)?;
    let (wakeups, inbox) = (Wakeups::new()?, VecDeque::new());
    let mut hands =
        CommandHands { order, env, tree, wakeups, lifeline, note, inbox, verdict: None, gone: false, blind: false };
    let plan = plan(order);
    super::drive(&plan, order.won.monotonic, &mut hands);
    Ok(hands.finish(order.won.monotonic + plan.deadline))
}

fn plan(order: &CommandOrder) -> Plan {
    let wrap_up = COMMAND_GRACE + COMMAND_WRAP_UP;
    let task = Planned {
        name: TaskName::parse(LABEL).expect("a name"),
        needs: Vec::new(),
        slots: 1,
        mutex: None,
        deadline: order.deadline,
        usual: None,
    };
    Plan {
        tasks: vec![task],
        slots: 1,
        deadline: order.deadline + wrap_up,
        wrap_up,
        stop_grace: COMMAND_GRACE,
        on_failure: OnFailure::Finish,
        partial: false,
    }
}

struct CommandHands<'a> {
    order: &'a CommandOrder,
    env: &'a Environment,
    tree: ProcessTree,
    wakeups: Wakeups,
    lifeline: &'a mut Lifeline,
    note: &'a mut dyn FnMut(&str),
    inbox: VecDeque<Input>,
    verdict: Option<Verdict>,
    // The keeper is gone.
    gone: bool,
    // Nothing can be waited for.
    blind: bool,
}

impl CommandHands<'_> {
    fn start(&mut self) {
        let began = sys::now();
        let stdin = std::io::stdin().as_fd().try_clone_to_owned().map_err(|e| format!("no stdin: {e}"));
        let started = stdin.and_then(|stdin| {
            let spawn = Spawn {
                label: LABEL,
                program: self.order.program.clone(),
                args: self.order.args.clone(),
                dir: self.order.folder.clone(),
                env: self.env.clone().into_vec(),
                output: Output::Inherit,
                cpus: None,
                stdin: Some(stdin),
                session: false,
                hand_over: Vec::new(),
            };
            self.tree.spawn(COMMAND, spawn)
        });
        self.inbox.push_back(match started {
            Ok(_) => Input::Started(0, began),
            Err(why) => Input::NotStarted(0, Verdict::Failed(Cause::Spawn(why))),
        });
    }

    fn listen(&mut self) {
        let (messages, gone) = self.lifeline.receive();
        for message in messages {
            match message {
                Message::Stop(stop) => self.inbox.push_back(Input::Stop(stop)),
                Message::Suspend => (self.note)(&format!("note: {SUSPEND}")),
                _ => {} // what a runner itself says
            }
        }
        if gone && !self.gone {
            self.gone = true;
            self.inbox.push_back(Input::NoVerdict);
        }
    }

    fn finish(mut self, until: Moment) -> Exit {
        let swept = self.tree.sweep_all(until);
        if !swept.found.is_empty() {
            (self.note)(&format!("{LEFT}: {}", swept.found.join(", ")));
        }
        let deadline = Human(self.order.deadline);
        let mut exit = match self.verdict.take().expect("a plan that was driven to its end") {
            Verdict::Passed => self.ended(ExitStatus::Code(0)),
            Verdict::Failed(Cause::Exit(status)) => self.ended(status),
            Verdict::Failed(Cause::Spawn(why)) => {
                (self.note)(&format!("error: the command could not be started: {why}"));
                Exit::Usage
            }
            Verdict::Late(_) => {
                (self.note)(&format!("error: the command had not ended after {deadline}, and was stopped"));
                Exit::Late
            }
            // The clock runs from the moment at which the lock was won, and on a busy machine a start takes its time.
            Verdict::NotRun(Reason::RunDeadline) => {
                (self.note)(&format!("error: the command could not be started within {deadline}, its deadline"));
                Exit::Late
            }
            Verdict::Cancelled(_) if self.gone || self.blind => Exit::NoVerdict,
            Verdict::Cancelled(stop) | Verdict::NotRun(Reason::Cancelled(stop)) => Exit::Cancelled(stop),
            other => {
                (self.note)(&format!("error: the command has no verdict: {other}"));
                Exit::NoVerdict
            }
        };
        for survivor in swept.survivors {
            (self.note)(&format!("error: {survivor}"));
            exit = exit.max(Exit::NoVerdict);
        }
        exit
    }

    fn ended(&mut self, status: ExitStatus) -> Exit {
        self.lifeline.send(Message::Ended(status));
        Exit::Passed
    }
}

impl Hands for CommandHands<'_> {
    fn now(&self) -> Moment {
        sys::now()
    }

    fn perform(&mut self, _: Moment, action: Action) {
        match action {
            Action::Start(..) => self.start(),
            Action::Ask(_, stop, _) => drop(self.tree.ask(COMMAND, signal_of(stop))),
            Action::Kill(..) => self.tree.kill(COMMAND),
            Action::Verdict(_, verdict) => self.verdict = Some(verdict),
            Action::Withdraw(..) | Action::RunLate | Action::Done => {}
        }
    }

    fn wait(&mut self, until: Option<Moment>) -> (Moment, Input) {
        loop {
            if let Some(input) = self.inbox.pop_front() {
                return (sys::now(), input);
            }
            let due = [until, self.tree.wake_at()].into_iter().flatten().min();
            let fds: &[_] = if self.gone { &[] } else { &[self.lifeline.as_fd()] };
            // Without waking there are no deadlines: end the command while that is still possible.
            let woke = self.wakeups.wait(due, fds).unwrap_or_else(|error| {
                if !std::mem::replace(&mut self.blind, true) {
                    (self.note)(&format!("error: cannot wait: {error}"));
                    self.inbox.push_back(Input::NoVerdict);
                }
                Vec::new()
            });
            for wake in woke {
                match wake {
                    Wake::Stop(stop) => self.inbox.push_back(Input::Stop(stop)),
                    Wake::Ready(_) => self.listen(),
                    Wake::Child | Wake::Suspend => {}
                }
            }
            for gone in self.tree.poll().into_iter().filter(|gone| gone.owner == COMMAND) {
                if !gone.leftovers.is_empty() {
                    (self.note)(&format!("{LEFT}: {}", gone.leftovers.join(", ")));
                }
                self.inbox.push_back(Input::Ended(
                    0,
                    Ending {
                        status: gone.status.unwrap_or(ExitStatus::Signal(9)),
                        at: gone.at,
                        leftovers: gone.leftovers,
                        leftovers_fail: false,
                        trouble: None,
                    },
                ));
            }
            let now = sys::now();
            if self.inbox.is_empty() && until.is_some_and(|until| until <= now) {
                return (now, Input::Tick);
            }
        }
    }
}
