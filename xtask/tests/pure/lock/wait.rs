//! The wait for a lock without sockets or time: what was seen, and what is done about it. `check` plays a scenario; here are
//! those of a lock that changes hands.

use std::time::Duration;

use xtask::lock::banner::Claim;
use xtask::lock::wait::{Accepted, Failure, Foreign, News, Seen, Step, Wait, next_in_line};
use xtask::time::Moment;
use xtask::verdict::Stop;

pub fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

pub fn claim(run: &str) -> Claim {
    Claim { run: Some(run.to_owned()), ..Claim::default() }
}

pub fn seen(word: &str) -> Seen {
    match word.split_once(' ').unwrap_or((word, "")) {
        ("won", _) => Seen::Won,
        ("busy", _) => Seen::Busy,
        ("connected", _) => Seen::Connected,
        ("refused", _) => Seen::Refused,
        ("no-answer", _) => Seen::NoAnswer("full".to_owned()),
        ("banner", run) => Seen::Banner(Box::new(claim(run))),
        ("bytes", text) => Seen::Bytes(text.to_owned()),
        ("reset", _) => Seen::HungUp { reset: true },
        ("closed", _) => Seen::HungUp { reset: false },
        ("quiet", "accepted") => Seen::Quiet(Accepted::Yes),
        ("quiet", "not-accepted") => Seen::Quiet(Accepted::No),
        ("quiet", "nowhere") => Seen::Quiet(Accepted::Nowhere),
        ("quiet", "unknown") => Seen::Quiet(Accepted::Unknown),
        ("passed", _) => Seen::Passed,
        other => panic!("no such thing to see: {other:?}"),
    }
}

fn shown(step: &Step, news: Option<&News>) -> String {
    let ms = |moment: &Moment| moment.as_nanos() / 1_000_000;
    let step = match step {
        Step::Try => "try".to_owned(),
        Step::Connect(until) => format!("connect {}", ms(until)),
        Step::Hear(until) => format!("hear {}", ms(until)),
        Step::Pause(_) => "pause".to_owned(),
        Step::Keep => "keep".to_owned(),
        Step::Fail(Failure::Spent) => "fail spent".to_owned(),
        Step::Fail(Failure::Cancelled(stop)) => format!("fail {stop}"),
        Step::Fail(Failure::Nested(run)) => format!("fail nested {run}"),
        Step::Fail(Failure::Foreign(Foreign::Said(text))) => format!("fail said {text}"),
        Step::Fail(Failure::Foreign(how)) => format!("fail {how:?}").to_lowercase(),
    };
    match news {
        None => step,
        Some(News::Held { claim, again: false }) => {
            format!("{step}, says held by {}", claim.run.as_deref().unwrap_or("?"))
        }
        Some(News::Held { again: true, .. }) => format!("{step}, says the same"),
        Some(News::NotAccepted) => format!("{step}, says not accepted"),
        Some(News::NoAnswer(why)) => format!("{step}, says {why}"),
    }
}

/// A wait that began at 0 and knows of the run `outer`; each line is `MS WHAT -> STEP`, with `! SIGNAL` before the
/// arrow where somebody asked to stop until then.
#[track_caller]
pub fn check(budget_ms: u64, scenario: &str) {
    let mut wait = Wait::new(at(0), Duration::from_millis(budget_ms), vec!["outer".to_owned()], 7);
    for line in scenario.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (left, expected) = line.split_once(" -> ").expect("an arrow");
        let (ms, what) = left.trim().split_once(' ').expect("a time");
        let (what, stop) = match what.split_once('!') {
            Some((what, signal)) => (what.trim(), Some(if signal.trim() == "INT" { Stop::Int } else { Stop::Term })),
            None => (what.trim(), None),
        };
        let (step, news) = wait.on(at(ms.parse().expect("milliseconds")), stop, seen(what));
        assert_eq!(shown(&step, news.as_ref()), expected, "at: {line}");
    }
}

#[test]
fn a_free_port_is_kept() {
    check(10_000, "3 won -> keep");
}

#[test]
fn a_busy_one_is_asked_and_its_hang_up_is_the_turn() {
    check(
        60_000,
        "
        1 busy -> connect 501
        2 connected -> hear 2002
        3 banner a -> hear 15003, says held by a
        900 reset -> try
        901 won -> keep",
    );
}

#[test]
fn who_lost_the_race_asks_the_new_holder_at_once() {
    check(
        60_000,
        "
        1 busy -> connect 501
        2 connected -> hear 2002
        3 banner a -> hear 15003, says held by a
        2900 reset -> try
        2901 busy -> connect 3401
        2902 connected -> hear 4902
        2903 banner b -> hear 17903, says held by b
        2990 reset -> try
        2991 busy -> connect 3491
        2992 connected -> hear 4992
        2993 banner c -> hear 17993",
    );
}

#[test]
fn the_port_is_tried_and_the_holder_asked_again_even_without_a_hang_up() {
    check(
        600_000,
        "
        0 busy -> connect 500
        0 connected -> hear 2000
        0 banner a -> hear 15000, says held by a
        15000 quiet accepted -> try
        15001 busy -> hear 30000
        30000 quiet accepted -> try
        30000 busy -> connect 30500
        30000 connected -> hear 32000
        30000 banner a -> hear 45000, says the same
        45000 quiet accepted -> try
        45001 won -> keep",
    );
}

#[test]
fn a_part_of_the_holders_run_is_refused() {
    check(60_000, "0 busy -> connect 500\n1 connected -> hear 2001\n2 banner outer -> fail nested outer");
    check(
        60_000,
        "0 busy -> connect 500\n1 connected -> hear 2001\n2 banner outer2 -> hear 15002, says held by outer2",
    );
    // Even when it comes to hold only later.
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2 banner a -> hear 15002, says held by a
        50 reset -> try
        51 busy -> connect 551
        52 connected -> hear 2052
        53 banner outer -> fail nested outer",
    );
}

#[test]
fn a_holder_that_hangs_up_again_and_again_is_not_asked_in_a_loop() {
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2 banner a -> hear 15002, says held by a
        3 reset -> try
        4 busy -> connect 504
        5 connected -> hear 2005
        6 banner a -> hear 15006
        7 reset -> try
        8 busy -> pause
        60 passed -> try
        61 busy -> connect 561",
    );
}

#[test]
fn who_is_hung_up_on_again_and_again_waits_twice_as_long_each_time() {
    let mut wait = Wait::new(at(0), Duration::from_secs(600), Vec::new(), 7);
    let mut hung_up_after = |ms: u64, from: u64| {
        wait.on(at(from), None, Seen::Connected);
        wait.on(at(from), None, seen("banner a"));
        assert_eq!(wait.on(at(from + ms), None, seen("reset")).0, Step::Try);
        match wait.on(at(from + ms), None, Seen::Busy).0 {
            Step::Pause(until) => until.since(at(from + ms)).as_millis(),
            Step::Connect(_) => 0,
            step => panic!("{step:?}"),
        }
    };
    assert_eq!(hung_up_after(1, 0), 0, "the hand-over");
    for (from, longest) in [(10_000, 40), (20_000, 80), (30_000, 160), (40_000, 320)] {
        let pause = hung_up_after(1, from);
        assert!((longest / 2..=longest).contains(&pause), "{pause} of {longest} ms");
    }
    // One that kept the connection for a second begins anew.
    let pause = hung_up_after(1_000, 50_000);
    assert!((10..=20).contains(&pause), "{pause} ms");
}

#[test]
fn two_hundred_hand_overs_in_a_second_cost_no_pause_and_the_next_one_does() {
    let mut wait = Wait::new(at(0), Duration::from_secs(60), Vec::new(), 7);
    for n in 0..=200 {
        wait.on(at(1), None, Seen::Connected);
        wait.on(at(1), None, Seen::Banner(Box::new(claim(&format!("r-{n}")))));
        assert_eq!(wait.on(at(1), None, seen("reset")).0, Step::Try);
        let step = wait.on(at(1), None, Seen::Busy).0;
        assert_eq!(matches!(step, Step::Pause(_)), n == 200, "{step:?} after {n} others");
    }
}

#[test]
fn who_was_waited_for_is_remembered() {
    let mut wait = Wait::new(at(0), Duration::from_secs(60), Vec::new(), 1);
    for (ms, run) in [(1_000, "a"), (5_000, "a"), (9_000, "b")] {
        wait.on(at(ms), None, Seen::Connected);
        wait.on(at(ms), None, Seen::Banner(Box::new(claim(run))));
    }
    let behind: Vec<(&str, u64)> =
        wait.behind(at(12_000)).iter().map(|(c, t)| (c.run.as_deref().unwrap(), t.as_secs())).collect();
    assert_eq!(behind, [("a", 8), ("b", 3)]);
    // But the last line has an end.
    for n in 0..20 {
        wait.on(at(20_000), None, Seen::Banner(Box::new(claim(&format!("r-{n}")))));
    }
    assert_eq!(wait.behind(at(30_000)).len(), 16);
}

#[test]
fn the_longest_waiting_goes_first() {
    assert_eq!(next_in_line([]), None);
    assert_eq!(next_in_line([None, None]), None, "nobody said how long");
    assert_eq!(next_in_line([Some(3), None, Some(9), Some(4)]), Some(2));
    assert_eq!(next_in_line([None, Some(0)]), Some(1), "one that waits goes before one that only looks");
    assert_eq!(next_in_line([Some(5), Some(5)]), Some(0), "the earlier connection of two equals");
    assert_eq!(next_in_line([Some(u64::MAX), Some(5)]), Some(0));
}
