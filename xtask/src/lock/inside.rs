//! Whether a call comes from inside a run that holds a lock. Such a call is refused before it takes or waits for
//! anything: it would wait for its own end, or hold the machine while it waits for a folder whose holder waits for the
//! machine.

use crate::lock::banner::Claim;
use crate::lock::wait::{LOOK, SILENCE, Seen, Step};
use crate::lock::waiter::{Hands, StopAsked};
use crate::lock::{NotHeld, Scope, news};
use crate::sys;
use crate::time::Moment;

/// The runs that this process is a part of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Enclosing {
    /// The runs that its environment names.
    pub runs: Vec<String>,
    /// Its parent, the parent of that, and so on: for one that has shed its environment, as under sudo.
    pub ancestors: Vec<i32>,
    /// The pid namespace in which those are meant; none where the system has no such thing.
    pub pid_namespace: Option<String>,
}

impl Enclosing {
    /// Those around this process, with its ancestors and the text of `XTASK_MARK`, empty if it is not set.
    pub fn new(mark: &str, ancestors: Vec<i32>) -> Self {
        Self { runs: runs(mark), ancestors, pid_namespace: sys::namespace("pid") }
    }

    /// Whether this holder is one of them. Pids of another pid namespace say nothing.
    pub fn has(&self, holder: &Claim) -> bool {
        let by_run = holder.run.as_ref().is_some_and(|run| self.runs.contains(run));
        let same_pids = self.pid_namespace.is_some() && self.pid_namespace == holder.pid_namespace;
        let pid = holder.pid.and_then(|pid| i32::try_from(pid).ok());
        by_run || same_pids && pid.is_some_and(|pid| self.ancestors.contains(&pid))
    }
}

/// The runs that the text of `XTASK_MARK` names.
pub fn runs(mark: &str) -> Vec<String> {
    mark.split(':').filter_map(|part| Some(part.split_once('/')?.0.to_owned())).collect()
}

/// Looks who has these locks, and takes none. Errors with `NotHeld::Nested` where that is one of the enclosing. Whoever
/// does not answer in time is not known to be one.
pub fn refuse(locks: &[(Scope, u16)], enclosing: &Enclosing, stop: StopAsked) -> Result<(), NotHeld> {
    // A holder answers at once; one that is starved by what it runs is waited for where it is likely to be ours.
    let limit = if enclosing.runs.is_empty() { SILENCE } else { LOOK };
    for &(scope, port) in locks {
        if let Some(claim) = holder(port, sys::now() + limit, stop).filter(|claim| enclosing.has(claim)) {
            return Err(NotHeld::Nested { scope, who: news::who(&claim), run: claim.run.unwrap_or_default() });
        }
    }
    Ok(())
}

fn holder(port: u16, until: Moment, stop: StopAsked) -> Option<Claim> {
    let mut hands = Hands::of_onlooker(port, stop);
    let Ok(Seen::Connected) = hands.perform(&Step::Connect(until)) else { return None };
    match hands.perform(&Step::Hear(until)) {
        Ok(Seen::Banner(claim)) => Some(*claim),
        _ => None,
    }
}
