//! What is told about a wait: while it lasts, at its end, and to somebody who only looks.

use std::time::Duration;

use xtask::lock::Scope;
use xtask::lock::banner::Claim;
use xtask::lock::news::{self, Waiter};
use xtask::lock::status::State;
use xtask::lock::wait::News;

fn waiter<'a>() -> Waiter<'a> {
    Waiter {
        scope: "workstation",
        port: 28599,
        folder: "/srv/orders",
        wall_ms: 1_000_000,
        end_ms: 1_600_000,
        waited: Duration::from_millis(10_400),
        budget: Duration::from_secs(600),
    }
}

pub fn holder() -> Claim {
    Claim {
        scope: Some("workstation".to_owned()),
        run: Some("r-1".to_owned()),
        caller: Some("ci".to_owned()),
        user: Some("build".to_owned()),
        distribution: Some("Ubuntu-ci".to_owned()),
        repository: Some("acme/orders".to_owned()),
        commit: Some("4be1f0912345".to_owned()),
        since_ms: Some(940_000),
        free_at_ms: Some(1_500_000),
        done: Some(9),
        tasks: Some(13),
        waiting: Some(1),
        waiting_since_ms: Some(960_000),
        ..Claim::default()
    }
}

fn told(claim: Claim, again: bool, waiter: &Waiter) -> Vec<String> {
    news::lines(&News::Held { claim: Box::new(claim), again }, waiter)
}

#[test]
fn the_first_line_says_who_and_until_when() {
    let lines = told(holder(), false, &waiter());
    assert_eq!(
        lines,
        [
            "workstation lock 127.0.0.1:28599 is held since 00:15:40 by one that says it is ci, build in Ubuntu-ci, acme/orders \
             at 4be1f09, run r-1; 9 of 13 tasks done; free at 00:25:00 at the latest",
            "1 more waits for it, the first since 00:16:00",
            "waited 10s of 10m, ends 00:26:40",
        ]
    );
    let again = told(holder(), true, &waiter());
    assert!(again[0].contains("by the same; 9 of 13 tasks done"), "{again:?}");
    let other = told(Claim::default(), false, &waiter());
    assert!(other[0].ends_with("is held by a version of xtask that says no more"), "{other:?}");
    let queued = told(Claim { queued: Some(true), ..holder() }, false, &waiter());
    assert!(queued[0].contains("run r-1; it waits for the workstation itself; free at"), "{queued:?}");
}

#[test]
fn a_budget_that_may_not_be_enough_is_said_in_the_first_line() {
    let long = Claim { free_at_ms: Some(1_600_001), ..holder() };
    assert!(told(long, false, &waiter())[0].contains("which is after your budget ends at 00:26:40"));
    let just = Claim { free_at_ms: Some(1_600_000), ..holder() };
    assert!(!told(just, false, &waiter())[0].contains("after your budget"));
}

#[test]
fn two_folders_on_one_port_are_told_why_they_wait() {
    let other = Claim { scope: Some("worktree".to_owned()), folder: Some("/srv/web".to_owned()), ..holder() };
    let here = Waiter { scope: "worktree", port: 28_777, ..waiter() };
    let lines = told(other.clone(), false, &here).join("\n");
    assert!(lines.contains("it holds another folder, /srv/web, that shares port 28777 with /srv/orders"), "{lines}");
    let same = Claim { folder: Some("/srv/orders".to_owned()), ..other };
    assert!(!told(same, false, &here).join("\n").contains("another folder"));
}

#[test]
fn a_holder_that_takes_the_port_for_another_lock_is_no_neighbour_in_a_folder() {
    let theirs = Claim { scope: Some("worktree".to_owned()), folder: Some("/srv/web".to_owned()), ..holder() };
    let lines = told(theirs.clone(), false, &waiter()).join("\n");
    assert!(
        lines.contains("it holds the port as a worktree lock, not as the workstation lock: XTASK_LOCK_PORT"),
        "{lines}"
    );
    assert!(!lines.contains("take turns"), "{lines}");
    assert!(
        news::spent(&waiter(), Some(&theirs), &[])
            .join("\n")
            .contains("note      it holds the port as a worktree lock")
    );
    let here = Waiter { scope: "worktree", port: 28_777, folder: "/srv/web", ..waiter() };
    let lines = told(holder(), false, &here).join("\n");
    assert!(lines.contains("it holds the port as a workstation lock, not as the worktree lock"), "{lines}");
    // One that does not say which is believed to hold what it is asked about.
    let mute = Claim { scope: None, ..theirs };
    assert!(!told(mute, false, &waiter()).join("\n").contains("it holds"));
}

#[test]
fn a_moment_of_another_day_says_which_day() {
    const DAY: u64 = 86_400_000;
    let tomorrow = Claim { since_ms: Some(DAY + 940_000), free_at_ms: Some(2 * DAY + 1_500_000), ..holder() };
    let here = Waiter { wall_ms: DAY + 1_000_000, end_ms: DAY + 1_600_000, ..waiter() };
    let line = told(tomorrow.clone(), false, &here).swap_remove(0);
    assert!(line.contains("is held since 00:15:40 by"), "{line}");
    assert!(
        line.ends_with("free at 1970-01-03 00:25:00 at the latest, which is after your budget ends at 00:26:40"),
        "{line}"
    );
    let look = State::Held { holder: Box::new(tomorrow.clone()) }.lines(Scope::Workstation, here.wall_ms);
    assert!(look[0].ends_with("free at 1970-01-03 00:25:00 at the latest"), "{look:?}");
    let spent = news::spent(&here, Some(&tomorrow), &[]);
    assert!(spent[1].ends_with("since 00:15:40; free at 1970-01-03 00:25:00 at the latest"), "{spent:?}");
}

#[test]
fn the_last_line_of_a_spent_budget_says_who_it_was() {
    let (a, b) = (holder(), Claim { run: Some("r-2".to_owned()), ..holder() });
    let behind = [(&a, Duration::from_secs(22)), (&b, Duration::from_secs(9))];
    let lines = news::spent(&waiter(), Some(&b), &behind).join("\n");
    assert!(
        lines.starts_with("the workstation lock 127.0.0.1:28599 did not come free within 10m; nothing was run"),
        "{lines}"
    );
    assert!(lines.contains("holder    ci, build in Ubuntu-ci, acme/orders at 4be1f09, run r-2 since"), "{lines}");
    assert!(lines.contains("waited    behind r-1 22s, then r-2 9s"), "{lines}");
    assert_eq!(news::spent(&waiter(), Some(&b), &behind[1..]).len(), 2, "behind one alone is no news");
    assert_eq!(news::spent(&waiter(), Some(&Claim::default()), &[])[1], "holder    says nothing of itself");
    let once = Waiter { budget: Duration::ZERO, ..waiter() };
    assert!(news::spent(&once, None, &[])[0].contains("a budget of 0s is one try"));
}

#[test]
fn a_look_claims_nothing_that_the_holder_does_not_say() {
    let look = |holder: Claim| State::Held { holder: Box::new(holder) }.lines(Scope::Workstation, waiter().wall_ms);
    assert_eq!(look(Claim::default()), ["held by a version of xtask that says no more"]);
    let silent = Claim { waiting: None, ..holder() };
    assert!(!look(silent).join("\n").contains("wait"), "{:?}", look(holder()));
    assert_eq!(look(Claim { waiting: Some(0), ..holder() }).last().expect("lines"), "nobody waits for it");
    let theirs = Claim { scope: Some("worktree".to_owned()), ..holder() };
    assert!(look(theirs).join("\n").contains("it holds the port as a worktree lock, not as the workstation lock"));
}
