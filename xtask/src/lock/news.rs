//! The lines that people read while they wait, and when the wait ends without the lock. Pure text.
//!
//! What a holder says of itself is shown as its claim, already cut and cleaned (`banner`).

use std::time::Duration;

use crate::digest::short;
use crate::lock::banner::Claim;
use crate::lock::wait::News;
use crate::time::{Human, utc_when};

/// Who waits, and for how long still.
#[derive(Debug, Clone)]
pub struct Waiter<'a> {
    /// `workstation` or `worktree`.
    pub scope: &'a str,
    /// The port.
    pub port: u16,
    /// The folder that this waiter wants to hold or work in, as it would say it itself.
    pub folder: &'a str,
    /// Now, in milliseconds since 1970.
    pub wall_ms: u64,
    /// When the budget ends, in milliseconds since 1970.
    pub end_ms: u64,
    /// How long the run has waited.
    pub waited: Duration,
    /// The whole budget.
    pub budget: Duration,
}

/// The lines of one piece of news. The first stands for itself.
pub fn lines(news: &News, waiter: &Waiter) -> Vec<String> {
    let Waiter { scope, port, .. } = waiter;
    let budget = format!("waited {} of {}", Human(whole(waiter.waited)), Human(waiter.budget));
    match news {
        News::Held { claim, again } => {
            let by = if *again { " by the same".to_owned() } else { by(claim) };
            let (since, progress, until) = (since(claim, waiter.wall_ms), progress(claim), until(claim, waiter));
            let mut lines = vec![format!("{scope} lock 127.0.0.1:{port} is held{since}{by}{progress}{until}")];
            lines.extend(ahead(claim, waiter.wall_ms).filter(|_| !again));
            lines.extend(note(claim, waiter));
            lines.push(format!("{budget}, ends {}", utc_when(waiter.end_ms, waiter.wall_ms)));
            lines
        }
        News::NotAccepted => vec![
            format!(
                "{scope} lock 127.0.0.1:{port} is taken and nobody answers: a holder that is stopped or starved, or a \
                 program that never accepts"
            ),
            format!("{budget}; see: cargo xtask lock status"),
        ],
        News::NoAnswer(why) => {
            vec![format!("{scope} lock 127.0.0.1:{port} is taken and its holder cannot be asked: {why}"), budget]
        }
    }
}

/// Who the holder says it is: `ci, root in Ubuntu-ci, acme/orders at 4be1f09, run r-…`. Empty if it says nothing.
pub fn who(claim: &Claim) -> String {
    let mut parts: Vec<String> = claim.caller.iter().cloned().collect();
    match (&claim.user, &claim.distribution) {
        (Some(user), Some(distribution)) => parts.push(format!("{user} in {distribution}")),
        (Some(one), None) | (None, Some(one)) => parts.push(one.clone()),
        (None, None) => {}
    }
    let commit = claim.commit.as_deref().map(short);
    match (&claim.repository, commit) {
        (Some(repository), Some(commit)) => parts.push(format!("{repository} at {commit}")),
        (Some(one), None) => parts.push(one.clone()),
        (None, Some(one)) => parts.push(one.to_owned()),
        (None, None) => {}
    }
    if let (None, Some(command)) = (&claim.repository, &claim.command) {
        parts.push(format!("running {command}"));
    }
    parts.extend(claim.run.iter().map(|run| format!("run {run}")));
    parts.join(", ")
}

/// ` by one that says it is ci, …`, or what there is to say of one that says nothing.
pub fn by(claim: &Claim) -> String {
    let who = Some(who(claim)).filter(|who| !who.is_empty());
    who.map_or(" by a version of xtask that says no more".to_owned(), |who| format!(" by one that says it is {who}"))
}

/// Why one waits for a holder that says it holds another lock: its folder shares the port, or its ports are set otherwise.
pub fn note(claim: &Claim, waiter: &Waiter) -> Option<String> {
    let Waiter { scope, port, folder, .. } = waiter;
    let other = claim.folder.as_deref().filter(|other| *scope == "worktree" && other != folder);
    elsewhere(claim, scope).or_else(|| {
        let other = other?;
        Some(format!("it holds another folder, {other}, that shares port {port} with {folder}: the two take turns"))
    })
}

/// What is wrong where the holder takes this port for the lock of another scope. A holder it is, all the same.
pub fn elsewhere(claim: &Claim, scope: &str) -> Option<String> {
    let theirs = claim.scope.as_deref().filter(|theirs| *theirs != scope)?;
    Some(format!(
        "it holds the port as a {theirs} lock, not as the {scope} lock: XTASK_LOCK_PORT and XTASK_WORKTREE_PORTS have to be \
         the same for EVERY caller of this machine"
    ))
}

/// ` since 14:02:10`, where the holder says it.
pub fn since(claim: &Claim, now_ms: u64) -> String {
    claim.since_ms.map(|since| format!(" since {}", utc_when(since, now_ms))).unwrap_or_default()
}

/// `; free at 14:30:10 at the latest`, where the holder says it.
pub fn free(claim: &Claim, now_ms: u64) -> String {
    let free = claim.free_at_ms.map(|free| format!("; free at {} at the latest", utc_when(free, now_ms)));
    free.unwrap_or_default()
}

/// `; 9 of 13 tasks done`, where the holder says it.
pub fn progress(claim: &Claim) -> String {
    match (claim.queued, claim.done, claim.tasks) {
        (Some(true), ..) => "; it waits for the workstation itself".to_owned(),
        (_, Some(done), Some(tasks)) => format!("; {done} of {tasks} tasks done"),
        _ => String::new(),
    }
}

/// `1 more waits, since 14:03:55`, where the holder says that somebody does.
pub fn ahead(claim: &Claim, now_ms: u64) -> Option<String> {
    let waiting = claim.waiting.filter(|&count| count > 0)?;
    let verb = if waiting == 1 { "waits" } else { "wait" };
    let since = claim.waiting_since_ms.map(|since| format!(", the first since {}", utc_when(since, now_ms)));
    Some(format!("{waiting} more {verb} for it{}", since.unwrap_or_default()))
}

fn until(claim: &Claim, waiter: &Waiter) -> String {
    let free = free(claim, waiter.wall_ms);
    match claim.free_at_ms {
        Some(at) if at > waiter.end_ms => {
            format!("{free}, which is after your budget ends at {}", utc_when(waiter.end_ms, waiter.wall_ms))
        }
        _ => free,
    }
}

/// The lines after a wait whose budget is spent. `behind` are the holders that were waited for and how long.
pub fn spent(waiter: &Waiter, holder: Option<&Claim>, behind: &[(&Claim, Duration)]) -> Vec<String> {
    let Waiter { scope, port, .. } = waiter;
    let mut lines = vec![if waiter.budget.is_zero() {
        format!("the {scope} lock 127.0.0.1:{port} is taken, and a budget of 0s is one try; nothing was run")
    } else {
        format!("the {scope} lock 127.0.0.1:{port} did not come free within {}; nothing was run", Human(waiter.budget))
    }];
    if let Some(claim) = holder {
        let who = Some(who(claim)).filter(|who| !who.is_empty()).unwrap_or_else(|| "says nothing of itself".to_owned());
        lines.push(format!("holder    {who}{}{}", since(claim, waiter.wall_ms), free(claim, waiter.wall_ms)));
        lines.extend(elsewhere(claim, scope).map(|note| format!("note      {note}")));
    }
    if behind.len() > 1 {
        let one = |(claim, time): &(&Claim, Duration)| {
            let name = claim.run.as_deref().or(claim.caller.as_deref()).unwrap_or("somebody");
            format!("{name} {}", Human(whole(*time)))
        };
        lines.push(format!("waited    behind {}", behind.iter().map(one).collect::<Vec<_>>().join(", then ")));
    }
    lines
}

// Whole seconds: more digits say nothing about a wait.
fn whole(length: Duration) -> Duration {
    Duration::from_secs(length.as_secs())
}
