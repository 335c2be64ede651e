//! Who has a lock, for somebody who only looks: nothing here ever takes it.

use std::io;
use std::os::fd::AsFd;

use serde::Serialize;

use crate::lock::banner::Claim;
use crate::lock::sockets::{self, Listener};
use crate::lock::wait::{Failure, LOOK, News, Step, Wait};
use crate::lock::waiter::{Hands, StopAsked};
use crate::lock::{Scope, news};
use crate::sys;

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum State {
    /// Nobody has it.
    Free,
    /// A holder, by its own words.
    Held {
        /// Its words.
        holder: Box<Claim>,
    },
    /// Somebody has it and does not answer.
    Unanswered {
        /// Why not.
        why: String,
        /// Who it is and what to do, as far as it can be seen.
        text: Vec<String>,
    },
    /// Something that is not xtask has it.
    Foreign {
        /// Who it is and what to do, as far as it can be seen.
        text: Vec<String>,
    },
}

impl State {
    /// The lines for people, who asked about the lock of this scope at `now_ms`.
    pub fn lines(&self, scope: Scope, now_ms: u64) -> Vec<String> {
        match self {
            Self::Free => vec!["free".to_owned()],
            Self::Held { holder } => {
                let (since, by, progress) = (news::since(holder, now_ms), news::by(holder), news::progress(holder));
                let mut lines = vec![format!("held{since}{by}{progress}{}", news::free(holder, now_ms))];
                lines.extend(news::elsewhere(holder, &scope.to_string()));
                lines.extend(holder.command.iter().map(|command| format!("runs     {command}")));
                lines.extend(holder.folder.iter().map(|folder| format!("in       {folder}")));
                if let (Some(pid), Some(namespace)) = (holder.pid, &holder.pid_namespace) {
                    lines.push(format!("process  {pid} in {namespace}"));
                }
                let nobody = || Some("nobody waits for it".to_owned()).filter(|_| holder.waiting == Some(0));
                lines.extend(news::ahead(holder, now_ms).or_else(nobody));
                lines
            }
            Self::Unanswered { why, text } => {
                std::iter::once(format!("taken, but it does not answer: {why}")).chain(text.iter().cloned()).collect()
            }
            Self::Foreign { text } => text.clone(),
        }
    }
}

/// Looks who has that port. Errors if it could not be listened on, for another reason than that it is in use.
pub fn look(scope: Scope, port: u16) -> io::Result<State> {
    let (never, _keep) = io::pipe()?;
    let mut hands = Hands::of_onlooker(port, StopAsked { fd: never.as_fd(), which: &|| None });
    let mut wait = Wait::new(sys::now(), LOOK, Vec::new(), u64::from(sys::random()?));
    let mut step = Step::Try;
    loop {
        let seen = hands.perform(&step)?;
        let (next, news) = wait.on(sys::now(), None, seen);
        match (next, news) {
            (Step::Keep, _) => return Ok(State::Free),
            (_, Some(News::Held { claim, .. })) => return Ok(State::Held { holder: claim }),
            (_, Some(News::NotAccepted)) => return Ok(unanswered("it takes no connection now", port)),
            (_, Some(News::NoAnswer(why))) => return Ok(unanswered(&why, port)),
            (Step::Fail(Failure::Foreign(how)), _) => {
                return Ok(State::Foreign { text: super::foreign(scope, port, &how) });
            }
            (Step::Fail(_), _) => return Ok(unanswered("it says nothing", port)),
            (other, None) => step = other,
        }
    }
}

// A stopped holder, a run whose keeper is gone, or a program that never accepts: whoever it is, it has a pid.
fn unanswered(why: &str, port: u16) -> State {
    let mut text = Vec::new();
    if let Some(Listener { local, uid, owners }) = sockets::listener(port) {
        if owners.is_empty() {
            text.push(format!("listener {} on {local}", sockets::names(&owners, uid)));
            text.push(format!("find it  in that distribution, or as that user: ss -ltnp 'sport = :{port}'"));
        }
        for owner in &owners {
            text.push(format!("process  {} {}", owner.pid, owner.command));
        }
        let pids = |stopped: bool| {
            let some = owners.iter().filter(|owner| owner.stopped == stopped);
            some.map(|owner| owner.pid.to_string()).collect::<Vec<_>>().join(" ")
        };
        let (stopped, running) = (pids(true), pids(false));
        if !stopped.is_empty() {
            text.push(format!("stopped  {stopped}; to let it go on: kill -CONT {stopped}"));
        } else if !running.is_empty() {
            text.push(format!(
                "running  {running}; a run whose first process is gone ends by itself; if it does not: kill {running}"
            ));
        }
    }
    State::Unanswered { why: why.to_owned(), text }
}
