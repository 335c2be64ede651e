//! The lock between real sockets: who gets it, who waits, who is told what.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use xtask::event::Event;
use xtask::lock::{self, Identity, NotHeld, Patience, Scope, StopAsked};
use xtask::sys;
use xtask::verdict::{Exit, Stop};

use crate::lock_caller::{Caller, LONG, identity};
use crate::world::{Folder, Ports, nobody_listens, until};

#[test]
fn one_holds_the_other_is_told_who_and_spends_its_budget() {
    let ports = Ports::take(1);
    let first = Caller::new("ci", LONG).acquire(ports.first).expect("a free port");
    let second = Caller::new("local", Duration::from_secs(2));
    let refused = second.acquire(ports.first).expect_err("it is held");
    assert_eq!(refused.exit(), Exit::NoLock, "{refused}");
    let said = second.said.borrow()[0].clone();
    assert!(
        said.contains("acme/orders") && said.contains("at the latest, which is after your budget ends at "),
        "{said}"
    );
    drop(first);
    let _third = Caller::new("local", LONG).acquire(ports.first).expect("free again");
}

#[test]
fn a_release_wakes_the_waiter() {
    let ports = Ports::take(1);
    let first = Caller::new("ci", LONG).acquire(ports.first).expect("a free port");
    let port = ports.first;
    let waiter = std::thread::spawn(move || Caller::new("local", LONG).acquire(port).map(drop));
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    waiter.join().expect("no panic").expect("won");
}

#[test]
fn a_stop_ends_the_wait_and_frees_nobody_elses_lock() {
    let ports = Ports::take(1);
    let _first = Caller::new("ci", LONG).acquire(ports.first).expect("a free port");
    let (asked, ask) = std::io::pipe().expect("a pipe");
    drop(ask); // readable from now on
    let stop = StopAsked { fd: asked.as_fd(), which: &|| Some(Stop::Int) };
    let refused = Caller::new("local", LONG).acquire_unless(ports.first, stop).expect_err("cancelled");
    assert_eq!(refused.exit(), Exit::Cancelled(Stop::Int));
    let third = Caller::new("local", Duration::ZERO).acquire(ports.first).expect_err("still held");
    assert_eq!(third.exit(), Exit::NoLock);
}

#[test]
fn a_folder_has_one_port_whatever_it_is_called() {
    let folder = Folder::new();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).expect("a folder");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let ports = lock::Ports::default();
    let port = |path: &Path| ports.worktree_for(path).expect("a port");
    assert_eq!(port(&real), port(&link));
    assert_eq!(port(&real), port(&real.join("../link/.")));
    assert!(ports.worktree_for(&real.join("none")).is_err());
}

#[test]
fn a_part_of_the_holders_own_run_is_refused() {
    let ports = Ports::take(2);
    let outer = Caller::new("local", LONG);
    let _held = outer.acquire(ports.first).expect("free");
    let mut inner = Caller::new("local", LONG);
    inner.mark = format!("r-20260101-000000-00000000/a:{}/test", outer.identity.run);
    let refused = inner.acquire(ports.first).expect_err("it would wait for itself");
    assert_eq!(refused.exit(), Exit::Usage);
    let text = refused.to_string();
    assert!(text.contains(outer.identity.run.as_str()) && text.contains("acme/orders"), "{text}");
    // Another port, as in the tests of a suite, is no nesting.
    let _other = inner.acquire(ports.first + 1).expect("free");
}

/// The folder's lock and then the machine's, as a run takes them.
fn acquire_both(
    (folder, machine): (u16, u16),
    identity: &Identity,
    budget: Duration,
) -> (Result<lock::HeldLocks, NotHeld>, Vec<Event>) {
    let (never, _keep) = std::io::pipe().expect("a pipe");
    let stop = StopAsked { fd: never.as_fd(), which: &|| None };
    let patience = Patience { requested: sys::clocks(), budget, stop, mark: "" };
    let wanted = [(Scope::Worktree, folder), (Scope::Workstation, machine)];
    let mut events = Vec::new();
    let held = lock::acquire_all(&wanted, identity, &patience, &mut |event| events.push(event));
    (held, events)
}

/// Scope, text and time waited of each piece of news.
fn news(events: &[Event]) -> Vec<(&str, String, Duration)> {
    let one = |event| match event {
        &Event::Queued { ref scope, ref text, waited, .. } => (scope.as_str(), text.join("\n"), waited),
        other => panic!("{other:?} is no news of a wait"),
    };
    events.iter().map(one).collect()
}

#[test]
fn nobody_holds_the_machine_while_it_waits_for_a_folder() {
    let ports = Ports::take(2);
    let _folder_is_held = Caller::new("ci", LONG).acquire(ports.first + 1).expect("free");
    let wanted = (ports.first + 1, ports.first);
    let waits = std::thread::spawn(move || acquire_both(wanted, &identity("local"), Duration::from_secs(2)));
    while !waits.is_finished() {
        assert!(nobody_listens(ports.first), "the machine is held");
        std::thread::sleep(Duration::from_millis(20));
    }
    let (held, events) = waits.join().expect("no panic");
    assert_eq!(held.expect_err("the folder is held").exit(), Exit::NoLock);
    assert_eq!(news(&events)[0].0, "worktree");
}

#[test]
fn both_waits_share_one_budget_and_a_failure_frees_the_folder() {
    // On a machine that is busy enough it is spent before the second wait has begun: that round says nothing.
    let mut budget = Duration::from_secs(2);
    until("a round in which the folder is won and the machine is waited for", || {
        budget *= 2;
        both_are_waited_for(budget)
    });
}

// Whether it came to that within the budget.
fn both_are_waited_for(budget: Duration) -> bool {
    let ports = Ports::take(2);
    let _machine_is_held = Caller::new("ci", LONG).acquire(ports.first).expect("free");
    let folder_is_held = Caller::new("ci", LONG).acquire(ports.first + 1).expect("free");
    let wanted = (ports.first + 1, ports.first);
    let waits = std::thread::spawn(move || acquire_both(wanted, &identity("local"), budget));
    std::thread::sleep(Duration::from_secs(1));
    drop(folder_is_held);
    // While it waits for the machine, it says so to those who wait for the folder.
    let mut said = String::new();
    until("the waiter to hold its folder", || {
        if waits.is_finished() {
            return true;
        }
        let caller = Caller::new("other", Duration::ZERO);
        drop(caller.acquire(ports.first + 1));
        said = caller.said.take().concat();
        said.contains("it waits for the workstation itself")
    });
    let (held, events) = waits.join().expect("no panic");
    assert_eq!(held.expect_err("the machine is held").exit(), Exit::NoLock);
    let news = news(&events);
    let Some(machine) = news.iter().find(|(scope, ..)| *scope == "workstation") else { return false };
    if !said.contains("it waits for the workstation itself") {
        return false;
    }
    assert!(machine.2 >= Duration::from_millis(500), "a budget of its own: {news:?}");
    let _free = Caller::new("ci", Duration::from_secs(5)).acquire(ports.first + 1).expect("free again");
    true
}

#[test]
fn both_locks_say_how_far_the_run_is() {
    let ports = Ports::take(2);
    let (held, events) = acquire_both((ports.first + 1, ports.first), &identity("local"), Duration::ZERO);
    let held = held.expect("both are free");
    assert!(events.is_empty(), "{events:?}");
    held.set_progress(3, 7);
    for port in [ports.first, ports.first + 1] {
        let caller = Caller::new("other", Duration::ZERO);
        caller.acquire(port).expect_err("held");
        assert!(caller.said.borrow()[0].contains("3 of 7 tasks done"), "{:?}", caller.said);
    }
}

#[test]
fn a_holder_that_takes_the_port_for_another_lock_is_waited_for_and_told_apart() {
    let ports = Ports::take(2);
    let machine = Caller::new("ci", LONG).acquire(ports.first).expect("free");
    let wanted = (ports.first, ports.first + 1);
    let (refused, events) = acquire_both(wanted, &identity("local"), Duration::from_secs(2));
    assert_eq!(refused.expect_err("a holder all the same").exit(), Exit::NoLock);
    let why = "it holds the port as a workstation lock, not as the worktree lock";
    assert!(news(&events)[0].1.contains(why), "{events:?}");
    assert!(matches!(&events[0], Event::Queued { note: Some(note), .. } if note.contains(why)), "{events:?}");
    drop(machine);
    let (held, _) = acquire_both(wanted, &identity("local"), LONG);
    let held = held.expect("its turn");
    let caller = Caller::new("other", Duration::ZERO);
    let refused = caller.acquire(ports.first).expect_err("a holder all the same");
    assert_eq!(refused.exit(), Exit::NoLock);
    let why = "it holds the port as a worktree lock, not as the workstation lock";
    assert!(refused.to_string().contains(why) && caller.said.borrow().concat().contains(why), "{refused}");
    drop(held);
}

#[test]
fn a_thousand_and_one_folders_collide_and_the_pair_takes_turns() {
    let folder = Folder::new();
    let mut first_at = std::collections::HashMap::new();
    let derived = lock::Ports { workstation: 9_999, worktrees: 10_000..=10_999 };
    let mut pairs = Vec::new();
    for number in 0..1001 {
        let path = folder.path().join(number.to_string());
        std::fs::create_dir(&path).expect("a folder");
        let port = derived.worktree_for(&path).expect("a port");
        if let Some(other) = first_at.insert(port, path.clone()) {
            pairs.push((port, other, path));
        }
    }
    // Of the pairs that there must be, one whose port no other test has now.
    let found = pairs.into_iter().find_map(|(port, a, b)| Some((Ports::keep(port)?, a, b)));
    let (kept, a, b) = found.expect("1,001 folders share 1,000 ports");
    let workstation = Ports::take(1);
    let wanted = (kept.first, workstation.first);
    let identity = |folder: &Path| Identity { folder: folder.display().to_string(), ..identity("local") };
    let (held, _) = acquire_both(wanted, &identity(&a), Duration::ZERO);
    let held = held.expect("free");
    let (refused, events) = acquire_both(wanted, &identity(&b), Duration::from_secs(1));
    assert_eq!(refused.expect_err("it waits, and takes no other port").exit(), Exit::NoLock);
    let text = &news(&events)[0].1;
    let why = format!("it holds another folder, {}, that shares port {} with {}", a.display(), kept.first, b.display());
    assert!(text.contains(&why), "no {why:?} in {text}");
    drop(held);
    let (held, _) = acquire_both(wanted, &identity(&b), LONG);
    drop(held.expect("its turn"));
}

/// What a holder says of itself to one who looks.
fn told_by_the_holder_of(port: u16) -> xtask::event::Claim {
    match lock::status::look(Scope::Workstation, port).expect("a look") {
        lock::status::State::Held { holder } => *holder,
        other => panic!("{other:?} is no holder"),
    }
}

#[test]
fn a_holder_says_what_it_runs_since_when_and_until_when() {
    let ports = Ports::take(2);
    let first = Caller::new("ci", LONG).acquire(ports.first).expect("free");
    let port = ports.first;
    let mut caller = Caller::new("local", LONG);
    caller.identity.commit = Some("4be1f0912345".to_owned());
    let waits = std::thread::spawn(move || (caller.acquire(port).expect("won"), caller.identity));
    until("it to wait", || told_by_the_holder_of(port).waiting == Some(1));
    let let_go_ms = sys::clocks().wall_ms;
    drop(first);
    let (held, asked) = waits.join().expect("no panic");
    let told = told_by_the_holder_of(port);
    assert_eq!((told.scope, told.commit), (Some("workstation".to_owned()), asked.commit));
    assert_eq!(told.command, Some(asked.command));
    assert!(told.since_ms >= Some(let_go_ms), "since it won, not since it asked");
    // While the holder of a folder waits for the machine, it may hold the folder for the rest of its budget longer.
    let folder = ports.first + 1;
    let begun_ms = sys::clocks().wall_ms;
    let both = std::thread::spawn(move || acquire_both((folder, port), &identity("ci"), LONG).0);
    until("the folder to be held", || {
        let lock::status::State::Held { holder } = lock::status::look(Scope::Worktree, folder).expect("a look") else {
            return false;
        };
        holder.queued == Some(true) && {
            let most = holder.free_at_ms.expect("a moment") - begun_ms;
            assert!((3_660_000..3_720_000).contains(&most), "{most} ms");
            true
        }
    });
    drop(held);
    drop(both.join().expect("no panic").expect("its turn"));
}
