//! The wait for a lock without sockets or time: what was seen, and what is done about it.

use std::time::Duration;

use xtask::lock::Scope;
use xtask::lock::banner::{self, Asking, Claim};
use xtask::lock::inside::{self, Enclosing};
use xtask::lock::news::{self, Scene};
use xtask::lock::port::{PortError, Ports};
use xtask::lock::status::State;
use xtask::lock::stranger;
use xtask::lock::wait::{Accepted, Failure, LOOK, News, Seen, Step, Stranger, Wait, next_in_line};
use xtask::time::Moment;
use xtask::verdict::Stop;

fn at(ms: u64) -> Moment {
    Moment::from_nanos(ms * 1_000_000)
}

fn claim(run: &str) -> Claim {
    Claim { run: Some(run.to_owned()), ..Claim::default() }
}

fn seen(word: &str) -> Seen {
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
        Step::Fail(Failure::Stranger(Stranger::Said(text))) => format!("fail said {text}"),
        Step::Fail(Failure::Stranger(how)) => format!("fail {how:?}").to_lowercase(),
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
fn check(budget_ms: u64, scenario: &str) {
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
fn the_budget_is_looked_at_again_after_winning() {
    let wait = "
        0 busy -> connect 500
        0 connected -> hear 1000
        0 banner a -> hear 1000, says held by a
        1000 reset -> fail spent";
    check(1000, wait);
    check(1000, &wait.replace("1000 reset -> fail spent", "999 reset -> try\n1000 won -> keep"));
    check(1000, &wait.replace("1000 reset -> fail spent", "999 reset -> try\n1001 won -> fail spent"));
    check(1000, "1001 won -> fail spent");
}

#[test]
fn a_stop_is_looked_at_again_after_winning() {
    check(1000, "1 won ! INT -> fail SIGINT");
    check(1000, "1 busy -> connect 501\n 2 refused -> pause\n 3 passed -> try\n 4 won ! TERM -> fail SIGTERM");
    // Before the budget: whoever asked to stop wants to read that.
    check(1000, "1001 won ! INT -> fail SIGINT");
}

#[test]
fn a_stop_ends_the_wait_wherever_it_is() {
    for seen in ["busy", "connected", "banner a", "reset", "refused", "no-answer", "quiet accepted", "passed"] {
        check(60_000, &format!("0 busy -> connect 500\n1 connected -> hear 2001\n2 {seen} ! INT -> fail SIGINT"));
    }
}

#[test]
fn no_wait_reaches_past_the_budget() {
    check(
        3_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2 banner a -> hear 3000, says held by a
        2700 reset -> try
        2701 busy -> connect 3000
        2702 connected -> hear 3000
        3000 quiet accepted -> fail spent",
    );
    check(600, "0 busy -> connect 500\n 500 no-answer -> pause, says full\n 600 passed -> fail spent");
}

#[test]
fn a_budget_of_nothing_is_one_try_and_one_glance() {
    check(0, "20 won -> keep");
    check(
        0,
        "
        20 busy -> connect 520
        21 connected -> hear 521
        22 banner a -> fail spent, says held by a",
    );
    check(
        0,
        "20 busy -> connect 520\n21 connected -> hear 521\n521 quiet not-accepted -> fail spent, says not accepted",
    );
    // Who is no holder is looked at until it is known: that is another answer than "too late".
    check(
        0,
        "
        20 busy -> connect 520
        21 connected -> hear 521
        521 quiet accepted -> hear 1021
        1021 quiet accepted -> hear 1521
        1521 quiet accepted -> hear 2021
        2021 quiet accepted -> try
        2022 busy -> connect 2522
        2023 connected -> hear 2523
        2523 quiet accepted -> hear 3023
        3023 quiet accepted -> hear 3523
        3523 quiet accepted -> hear 4023
        4023 quiet accepted -> fail silent",
    );
    check(
        0,
        "20 busy -> connect 520\n21 connected -> hear 521\n521 quiet accepted -> hear 1021\n900 banner a -> fail spent, says held by a",
    );
    check(0, "20 busy -> connect 520\n21 connected -> hear 521\n22 bytes HTTP/1.1 -> fail said HTTP/1.1");
    check(0, "20 busy -> connect 520\n21 connected -> hear 521\n22 banner outer -> fail nested outer");
    check(0, "20 busy -> connect 520\n21 refused -> pause\n 24 passed -> try\n 25 won -> fail spent");
    check(0, "20 busy -> connect 520\n520 no-answer -> fail spent, says full");
    let hangs_up = "20 busy -> connect 520\n21 connected -> hear 521\n22 closed -> try\n23 busy -> connect 523\n\
                    24 connected -> hear 524\n";
    check(0, &format!("{hangs_up}25 closed -> fail hangsup"));
    check(0, &format!("{hangs_up}25 banner a -> fail spent, says held by a"));
    // And not for ever: 6 s from the first try, or from the end of the budget.
    check(0, &format!("{hangs_up}25 reset -> try\n6019 busy -> pause\n6020 passed -> fail spent"));
}

#[test]
fn a_short_budget_looks_on_until_it_is_known_who_is_there() {
    let refused =
        "0 busy -> connect 500\n1 refused -> pause\n300 passed -> try\n301 busy -> connect 801\n302 refused -> pause\n";
    check(300, refused);
    // Two seconds of silence are two seconds from the connection on, in however many pieces.
    check(
        1_200,
        "
        0 busy -> connect 500
        1 connected -> hear 1200
        1200 quiet accepted -> hear 1700
        1700 quiet accepted -> hear 2001
        2001 quiet accepted -> try",
    );
    // Whoever was known once is not looked at any more.
    check(
        3_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2 banner a -> hear 3000, says held by a
        2999 closed -> try
        3000 busy -> fail spent",
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
fn other_bytes_are_a_stranger_at_once() {
    check(60_000, "0 busy -> connect 500\n1 connected -> hear 2001\n2 bytes 220 smtp -> fail said 220 smtp");
}

#[test]
fn silence_on_two_accepted_connections_is_a_stranger() {
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2001 quiet accepted -> try
        2002 busy -> connect 2502
        2003 connected -> hear 4003
        4003 quiet accepted -> fail silent",
    );
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2001 quiet nowhere -> try
        2002 busy -> connect 2502
        2003 connected -> hear 4003
        4003 quiet nowhere -> fail elsewhere",
    );
}

#[test]
fn a_holder_stopped_after_it_accepted_is_no_stranger() {
    // The second connection stays in its backlog; when it goes on, the banner comes.
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2001 quiet accepted -> try
        2002 busy -> connect 2502
        2003 connected -> hear 4003
        4003 quiet not-accepted -> try, says not accepted
        4004 busy -> hear 19004
        19004 quiet not-accepted -> try
        19005 busy -> hear 34005
        19500 banner a -> hear 34500, says held by a
        19600 reset -> try
        19601 won -> keep",
    );
}

#[test]
fn silence_before_and_after_a_stop_does_not_add_up() {
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2001 quiet accepted -> try
        2002 busy -> connect 2502
        2003 connected -> hear 4003
        4003 quiet not-accepted -> try, says not accepted
        4004 busy -> hear 19004
        9004 quiet accepted -> try
        9005 busy -> connect 9505
        9006 connected -> hear 11006
        9007 banner a -> hear 24007, says held by a",
    );
}

#[test]
fn where_nothing_can_be_known_one_waits_and_says_both() {
    check(
        19_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2001 quiet unknown -> try, says not accepted
        2002 busy -> hear 17002
        17002 quiet unknown -> try
        17003 busy -> hear 19000
        19000 quiet unknown -> fail spent",
    );
}

#[test]
fn good_byes_without_a_banner_are_a_stranger_the_second_time() {
    check(
        60_000,
        "
        0 busy -> connect 500
        1 connected -> hear 2001
        2 closed -> try
        3 busy -> connect 503
        4 connected -> hear 2004
        5 closed -> fail hangsup",
    );
}

#[test]
fn resets_are_a_stranger_only_when_they_go_on() {
    // A holder that was killed resets what it had not answered; and so may the next one.
    let again = |from: u64| {
        format!(
            "{} busy -> pause\n{} passed -> try\n{} busy -> connect {}\n{} connected -> hear {}\n{} reset -> ",
            from,
            from + 100,
            from + 101,
            from + 601,
            from + 102,
            from + 2102,
            from + 103
        )
    };
    let start = "0 busy -> connect 500\n1 connected -> hear 2001\n2 reset -> try\n3 busy -> connect 503\n\
                 4 connected -> hear 2004\n5 reset -> try\n";
    let four = [again(1000) + "try\n", again(2000) + "try\n", again(3000) + "try\n"].concat();
    check(60_000, &format!("{start}{four}{}fail hangsup", again(4000)));
    // So may each of many that hold for milliseconds: ten in less than two seconds are no stranger, what follows is.
    let soon: String = (1..9).map(|i| again(i * 200) + "try\n").collect();
    check(60_000, &format!("{start}{soon}{}fail hangsup", again(1899)));
    // A banner in between is a holder, so it begins anew.
    check(
        60_000,
        &format!(
            "{start}{four}4000 busy -> pause\n4100 passed -> try\n4101 busy -> connect 4601\n4102 connected -> hear 6102\n\
             4103 banner a -> hear 19103, says held by a\n4104 reset -> try\n4105 busy -> pause\n"
        )
        .replace("4105 busy -> pause", "4105 busy -> connect 4605"),
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
fn a_port_without_a_listener_is_named_after_two_seconds() {
    let mut wait = Wait::new(at(0), Duration::from_secs(60), Vec::new(), 3);
    let (mut now, mut looks) = (0, 0);
    loop {
        wait.on(at(now), None, Seen::Busy);
        looks += 1;
        match wait.on(at(now), None, Seen::Refused) {
            (Step::Pause(until), _) => {
                assert!(until > at(now), "a pause of nothing at {now} ms");
                now = until.as_nanos().div_ceil(1_000_000);
                assert_eq!(wait.on(at(now), None, Seen::Passed).0, Step::Try);
            }
            (step, _) => {
                assert_eq!(step, Step::Fail(Failure::Stranger(Stranger::NotListening)));
                break;
            }
        }
    }
    assert!((2_000..2_200).contains(&now), "named after {now} ms");
    assert!((8..200).contains(&looks), "{looks} looks");
}

#[test]
fn a_waiter_that_was_starved_itself_accuses_nobody() {
    // Four seconds went by, but it looked only twice.
    check(
        60_000,
        "
        0 busy -> connect 500
        1 refused -> pause
        4000 passed -> try
        4001 busy -> connect 4501
        4002 refused -> pause",
    );
    // A listener in between, and the two seconds begin anew.
    let refused = |ms: u64| {
        let (a, b) = (ms + 1, ms + 2);
        format!("{ms} busy -> connect {}\n{a} refused -> pause\n{b} passed -> try\n", ms + 500)
    };
    let eight: String = (0..8).map(|n| refused(n * 100)).collect();
    let nobody = "2800 busy -> connect 3300\n2801 refused -> fail notlistening";
    check(60_000, &format!("{eight}{nobody}"));
    let listener = "
        900 busy -> connect 1400
        901 connected -> hear 2901
        902 banner a -> hear 15902, says held by a
        2700 reset -> try
        2800 busy -> connect 3300
        2801 refused -> pause";
    check(60_000, &format!("{eight}{listener}"));
}

#[test]
fn a_full_backlog_is_a_holder_that_cannot_be_asked() {
    check(
        60_000,
        "
        0 busy -> connect 500
        500 no-answer -> pause, says full
        700 passed -> try
        701 busy -> connect 1201
        1201 no-answer -> pause
        29000 passed -> try
        29001 busy -> connect 29501
        29501 no-answer -> pause
        30500 passed -> try
        30501 busy -> connect 31001
        31001 no-answer -> pause, says full
        31100 passed -> try
        31101 won -> keep",
    );
}

#[test]
fn pauses_grow_to_a_second_and_differ_between_waiters() {
    let pauses = |seed| {
        let mut wait = Wait::new(at(0), Duration::from_secs(600), Vec::new(), seed);
        let next = |_| match wait.on(at(0), None, Seen::NoAnswer(String::new())).0 {
            Step::Pause(until) => until.as_nanos() / 1_000,
            step => panic!("{step:?}"),
        };
        (0..8).map(next).collect::<Vec<u64>>()
    };
    let (one, other) = (pauses(1), pauses(2));
    assert_ne!(one, other);
    assert!(one.iter().all(|&us| (50_000..=1_000_000).contains(&us)), "{one:?}");
    assert!(one.last() > Some(&500_000), "{one:?}");
}

/// Whoever is on the port in a random world.
#[derive(Debug, Clone, Copy)]
enum World {
    /// A holder: a banner, and a hang-up after so long; then another one, or none.
    Holders { hold_us: u64 },
    /// A holder that hangs up on everybody, under its own name or always another one.
    Rebuffs { renames: bool },
    /// Anything at all, at random.
    Anything,
    /// Nobody answers a connect.
    Full,
    /// Bound, and nobody listens; now and then somebody does.
    Refuses,
}

/// Runs a wait against a world that answers at once, in which nobody ever lets us win; the steps it took.
fn simulate(world: World, budget_ms: u64, seed: u64) -> u64 {
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let end = at(budget_ms);
    let glance = Duration::from_millis(500);
    let mut wait = Wait::new(at(0), Duration::from_millis(budget_ms), Vec::new(), seed);
    let (mut now, mut step, mut steps) = (Moment::from_nanos(1), Step::Try, 0_u64);
    // When the holder hangs up on the connection, if there is one, and whether it has said its line.
    let (mut line, mut greeted, mut name) = (None::<Moment>, false, 0_u64);
    loop {
        steps += 1;
        assert!(steps < 1_000_000, "a loop: {world:?}, seed {seed}");
        // Doing something takes a moment.
        now = now + Duration::from_micros(20);
        let seen = match step {
            Step::Keep => panic!("kept what was never won: {world:?}, seed {seed}"),
            Step::Fail(Failure::Spent) => {
                let most = end.max(at(0) + LOOK) + glance + Duration::from_millis(10);
                assert!(now >= end && now < most, "{world:?}, seed {seed}");
                return steps;
            }
            Step::Fail(failure) => {
                let stranger = matches!(failure, Failure::Stranger(_));
                assert!(stranger && !matches!(world, World::Holders { .. }), "{failure:?} in {world:?}, seed {seed}");
                return steps;
            }
            Step::Try => Seen::Busy,
            Step::Pause(until) => {
                assert!(until <= end.max(now + glance), "sleeps past the budget: {world:?}, seed {seed}");
                line = None;
                now = now.max(until);
                Seen::Passed
            }
            Step::Connect(until) => {
                assert!(until <= end.max(now + glance), "connects past the budget: {world:?}, seed {seed}");
                (line, greeted) = (None, false);
                let refuses = match world {
                    World::Full => Some(Seen::NoAnswer("full".to_owned())),
                    World::Refuses if next(50) > 0 => Some(Seen::Refused),
                    World::Anything if next(3) == 0 => Some(Seen::Refused),
                    World::Anything if next(4) == 0 => Some(Seen::NoAnswer(String::new())),
                    _ => None,
                };
                if let (Some(Seen::NoAnswer(_)), true) = (&refuses, next(2) == 0) {
                    now = now.max(until);
                }
                refuses.unwrap_or_else(|| {
                    let hold_us = match world {
                        World::Holders { hold_us } => 1 + next(hold_us),
                        World::Anything => next(10_000_000),
                        _ => 0,
                    };
                    line = Some(now + Duration::from_micros(hold_us));
                    Seen::Connected
                })
            }
            Step::Hear(until) => {
                assert!(until <= end.max(now + glance), "listens past the budget: {world:?}, seed {seed}");
                let gone = line.unwrap_or_else(|| panic!("listens to nobody: {world:?}, seed {seed}"));
                let mute = matches!(world, World::Anything) && next(2) == 0;
                let speaks = !greeted && !mute;
                if speaks {
                    greeted = true;
                    if !matches!(world, World::Rebuffs { renames: false }) {
                        name += 1;
                    }
                    Seen::Banner(Box::new(claim(&format!("r-{name}"))))
                } else if gone <= until {
                    now = now.max(gone);
                    line = None;
                    Seen::HungUp { reset: next(20) > 0 }
                } else {
                    now = now.max(until);
                    let all = [Accepted::Yes, Accepted::No, Accepted::Nowhere, Accepted::Unknown];
                    Seen::Quiet(if greeted { Accepted::Yes } else { all[next(4) as usize] })
                }
            }
        };
        step = wait.on(now, None, seen).0;
    }
}

#[test]
fn whatever_is_on_the_port_the_wait_ends_in_time_and_never_in_a_loop() {
    for seed in 1..60 {
        let budget_ms = [0, 1, 700, 5_000, 40_000][seed as usize % 5];
        for world in [
            World::Holders { hold_us: 60_000_000 },
            World::Holders { hold_us: 500 },
            World::Rebuffs { renames: false },
            World::Rebuffs { renames: true },
            World::Anything,
            World::Full,
            World::Refuses,
        ] {
            let steps = simulate(world, budget_ms, seed);
            // A hand-over takes four steps, and there may be 200 in a second before anybody pauses.
            let most = 2_000 + budget_ms * 2;
            assert!(steps <= most, "{steps} steps in {budget_ms} ms: {world:?}, seed {seed}");
        }
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

#[test]
fn every_line_with_the_prefix_is_a_holder() {
    for line in [
        "xtask-lock/1 {\"run\":\"r\"}",
        "xtask-lock/99 {\"run\":\"r\",\"shape\":{\"of\":[\"things\"]}}",
        "xtask-lock/2.1-beta {\"run\":\"r\",\"pid\":\"a text\",\"since_ms\":-1}",
    ] {
        let read = Claim::read(line.as_bytes()).expect(line);
        assert_eq!((read.run.as_deref(), read.pid, read.since_ms), (Some("r"), None, None), "{line}");
    }
    for line in [
        "xtask-lock/",
        "xtask-lock/1",
        "xtask-lock/1 ",
        "xtask-lock/7 not json",
        "xtask-lock/\u{0}\u{1}",
        "xtask-lock/1 [1]",
    ] {
        assert_eq!(Claim::read(line.as_bytes()), Some(Claim::default()), "{line:?}");
    }
    for line in ["", "xtask-lock", "Xtask-lock/1 {}", " xtask-lock/1 {}", "HTTP/1.1 400 Bad Request"] {
        assert_eq!(Claim::read(line.as_bytes()), None, "{line:?}");
    }
}

#[test]
fn deep_nesting_is_no_trouble() {
    let line = format!("xtask-lock/1 {}", "[".repeat(7000));
    assert_eq!(Claim::read(line.as_bytes()), Some(Claim::default()));
}

#[test]
fn what_a_holder_says_can_neither_move_the_cursor_nor_fill_the_screen() {
    let hostile = "\u{1b}[2J\u{1b}]0;title\u{7}ev\ril\nline\u{202e}txet\u{200b}\u{85}".to_owned() + &"x".repeat(5000);
    let line =
        Claim { run: Some(hostile.clone()), caller: Some(hostile.clone()), folder: Some(hostile), ..Claim::default() };
    let read = Claim::read(&line.line()).expect("a holder");
    let caller = read.caller.expect("a text");
    assert!(caller.starts_with("[2J]0;titleevillinetxetxx"), "{caller:?}");
    assert_eq!(caller.chars().count(), 80);
    assert_eq!(read.folder.expect("a text").chars().count(), 160);
    assert!(!news::who(&Claim { caller: Some(caller), ..Claim::default() }).chars().any(char::is_control));
    // A text of nothing but such characters says nothing.
    assert_eq!(Claim::read(b"xtask-lock/1 {\"user\":\"\\u0007\\u200b\"}").expect("a holder").user, None);
}

#[test]
fn a_line_of_ours_is_never_longer_than_is_read() {
    let wide = "\"".repeat(9000) + &"\u{10ffff}".repeat(9000);
    let wide = Some(wide);
    let claim = Claim {
        scope: wide.clone(),
        run: wide.clone(),
        caller: wide.clone(),
        user: wide.clone(),
        distribution: wide.clone(),
        repository: wide.clone(),
        folder: Some("\u{10fffe}".repeat(4096)),
        commit: wide.clone(),
        command: wide.clone(),
        pid_namespace: wide,
        pid: Some(u64::MAX),
        ..Claim::default()
    };
    assert!(claim.trimmed().line().len() <= banner::BANNER_MAX);
    assert_eq!(Claim::read(&claim.trimmed().line()), Some(claim.trimmed()));
    let asking = Asking { waited_us: u64::MAX, run: "r".repeat(80) };
    assert!(asking.line().len() <= banner::ANSWER_MAX);
    assert_eq!(Asking::read(asking.line().trim_ascii_end()), Some(asking));
    for line in [
        "",
        "xtask-wait/1 ",
        "xtask-wait/1 {\"run\":\"r\"}",
        "GET / HTTP/1.1\r",
        "xtask-wait/1 {\"waited_us\":1e99,\"run\":\"r\"}",
    ] {
        assert_eq!(Asking::read(line.as_bytes()), None, "{line:?}");
    }
}

fn scene<'a>() -> Scene<'a> {
    Scene {
        scope: "workstation",
        port: 28599,
        folder: "/srv/orders",
        wall_ms: 1_000_000,
        end_ms: 1_600_000,
        waited: Duration::from_millis(10_400),
        budget: Duration::from_secs(600),
    }
}

fn holder() -> Claim {
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

fn told(claim: Claim, again: bool, scene: &Scene) -> Vec<String> {
    news::lines(&News::Held { claim: Box::new(claim), again }, scene)
}

#[test]
fn the_first_line_says_who_and_until_when() {
    let lines = told(holder(), false, &scene());
    assert_eq!(
        lines,
        [
            "workstation lock 127.0.0.1:28599 is held since 00:15:40 by one that says it is ci, build in Ubuntu-ci, acme/orders \
             at 4be1f09, run r-1; 9 of 13 tasks done; free at 00:25:00 at the latest",
            "1 more waits for it, the first since 00:16:00",
            "waited 10s of 10m, ends 00:26:40",
        ]
    );
    let again = told(holder(), true, &scene());
    assert!(again[0].contains("by the same; 9 of 13 tasks done"), "{again:?}");
    let other = told(Claim::default(), false, &scene());
    assert!(other[0].ends_with("is held by a version of xtask that says no more"), "{other:?}");
    let queued = told(Claim { queued: Some(true), ..holder() }, false, &scene());
    assert!(queued[0].contains("run r-1; it waits for the workstation itself; free at"), "{queued:?}");
}

#[test]
fn a_budget_that_may_not_be_enough_is_said_in_the_first_line() {
    let long = Claim { free_at_ms: Some(1_600_001), ..holder() };
    assert!(told(long, false, &scene())[0].contains("which is after your budget ends at 00:26:40"));
    let just = Claim { free_at_ms: Some(1_600_000), ..holder() };
    assert!(!told(just, false, &scene())[0].contains("after your budget"));
}

#[test]
fn two_folders_on_one_port_are_told_why_they_wait() {
    let other = Claim { scope: Some("worktree".to_owned()), folder: Some("/srv/web".to_owned()), ..holder() };
    let here = Scene { scope: "worktree", port: 28_777, ..scene() };
    let lines = told(other.clone(), false, &here).join("\n");
    assert!(lines.contains("it holds another folder, /srv/web, that shares port 28777 with /srv/orders"), "{lines}");
    let same = Claim { folder: Some("/srv/orders".to_owned()), ..other };
    assert!(!told(same, false, &here).join("\n").contains("another folder"));
}

#[test]
fn a_holder_that_takes_the_port_for_another_lock_is_no_neighbour_in_a_folder() {
    let theirs = Claim { scope: Some("worktree".to_owned()), folder: Some("/srv/web".to_owned()), ..holder() };
    let lines = told(theirs.clone(), false, &scene()).join("\n");
    assert!(
        lines.contains("it holds the port as a worktree lock, not as the workstation lock: XTASK_LOCK_PORT"),
        "{lines}"
    );
    assert!(!lines.contains("take turns"), "{lines}");
    assert!(
        news::spent(&scene(), Some(&theirs), &[]).join("\n").contains("note      it holds the port as a worktree lock")
    );
    let here = Scene { scope: "worktree", port: 28_777, folder: "/srv/web", ..scene() };
    let lines = told(holder(), false, &here).join("\n");
    assert!(lines.contains("it holds the port as a workstation lock, not as the worktree lock"), "{lines}");
    // One that does not say which is believed to hold what it is asked about.
    let mute = Claim { scope: None, ..theirs };
    assert!(!told(mute, false, &scene()).join("\n").contains("it holds"));
}

#[test]
fn a_moment_of_another_day_says_which_day() {
    const DAY: u64 = 86_400_000;
    let tomorrow = Claim { since_ms: Some(DAY + 940_000), free_at_ms: Some(2 * DAY + 1_500_000), ..holder() };
    let here = Scene { wall_ms: DAY + 1_000_000, end_ms: DAY + 1_600_000, ..scene() };
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
fn a_holder_is_of_the_family_by_its_run_or_by_a_pid_of_the_same_namespace() {
    let holder = Claim { pid: Some(7), pid_namespace: Some("pid:[1]".to_owned()), ..holder() };
    let family = |mark: &str, ancestors: &[i32], namespace: Option<&str>| Enclosing {
        runs: inside::runs(mark),
        ancestors: ancestors.to_vec(),
        pid_namespace: namespace.map(str::to_owned),
    };
    assert!(family("r-9/a:r-1/test", &[], None).has(&holder));
    assert!(!family("r-9/r-1", &[], None).has(&holder));
    assert!(family("", &[3, 7, 1], Some("pid:[1]")).has(&holder));
    assert!(!family("", &[3, 7, 1], Some("pid:[2]")).has(&holder));
    assert!(!family("", &[3, 1], Some("pid:[1]")).has(&holder));
    let mute = Claim { pid_namespace: None, ..holder };
    assert!(!family("", &[7], None).has(&mute), "two that do not say which namespace");
}

#[test]
fn a_look_claims_nothing_that_the_holder_does_not_say() {
    let look = |holder: Claim| State::Held { holder: Box::new(holder) }.lines(Scope::Workstation, scene().wall_ms);
    assert_eq!(look(Claim::default()), ["held by a version of xtask that says no more"]);
    let silent = Claim { waiting: None, ..holder() };
    assert!(!look(silent).join("\n").contains("wait"), "{:?}", look(holder()));
    assert_eq!(look(Claim { waiting: Some(0), ..holder() }).last().expect("lines"), "nobody waits for it");
    let theirs = Claim { scope: Some("worktree".to_owned()), ..holder() };
    assert!(look(theirs).join("\n").contains("it holds the port as a worktree lock, not as the workstation lock"));
}

#[test]
fn the_last_line_of_a_spent_budget_says_who_it_was() {
    let (a, b) = (holder(), Claim { run: Some("r-2".to_owned()), ..holder() });
    let behind = [(&a, Duration::from_secs(22)), (&b, Duration::from_secs(9))];
    let lines = news::spent(&scene(), Some(&b), &behind).join("\n");
    assert!(
        lines.starts_with("the workstation lock 127.0.0.1:28599 did not come free within 10m; nothing was run"),
        "{lines}"
    );
    assert!(lines.contains("holder    ci, build in Ubuntu-ci, acme/orders at 4be1f09, run r-2 since"), "{lines}");
    assert!(lines.contains("waited    behind r-1 22s, then r-2 9s"), "{lines}");
    assert_eq!(news::spent(&scene(), Some(&b), &behind[1..]).len(), 2, "behind one alone is no news");
    assert_eq!(news::spent(&scene(), Some(&Claim::default()), &[])[1], "holder    says nothing of itself");
    let once = Scene { budget: Duration::ZERO, ..scene() };
    assert!(news::spent(&once, None, &[])[0].contains("a budget of 0s is one try"));
}

#[test]
fn ports_are_read_strictly() {
    let default = Ports::parse(None, None).expect("the machine's");
    assert_eq!((default.workstation, default.worktrees), (28599, 28600..=29599));
    let moved = Ports::parse(Some("1500"), Some("1600-1600")).expect("moved");
    assert_eq!((moved.workstation, moved.worktrees), (1500, 1600..=1600));
    for text in ["", "0", "65536", "-1", "28599x", "0x10"] {
        assert!(matches!(Ports::parse(Some(text), None), Err(PortError::Unreadable { .. })), "{text:?}");
    }
    for text in ["", "28600", "29599-28600", "0-5", "1-2-3", "a-b"] {
        assert!(matches!(Ports::parse(None, Some(text)), Err(PortError::Unreadable { .. })), "{text:?}");
    }
    assert!(matches!(Ports::parse(Some("28600"), None), Err(PortError::Overlap(_))));
    let words = |port, range| Ports::parse(port, range).expect_err("no ports").to_string();
    assert_eq!(words(Some("x"), None), "XTASK_LOCK_PORT=\"x\" is not of the form 28599");
    assert_eq!(words(None, Some("x")), "XTASK_WORKTREE_PORTS=\"x\" is not of the form 28600-29599");
}

#[test]
fn ports_that_the_kernel_gives_away_are_refused_with_the_remedy() {
    let ports = Ports::default();
    let check = |range, reserved| ports.check(range, reserved);
    assert_eq!(check("32768\t60999\n", "\n"), Ok(()));
    assert_eq!(check("", ""), Ok(()), "a system without such files");
    let loose = check("1024 65535", "").expect_err("inside");
    assert!(loose.to_string().contains("sysctl -w net.ipv4.ip_local_reserved_ports=28599-29599"), "{loose}");
    assert_eq!(check("1024 65535", "28599-29599\n"), Ok(()));
    assert_eq!(check("1024 65535", "22,28599,28600-29000,29001-29599"), Ok(()));
    let partly = check("1024 65535", "8080,28599-29598").expect_err("the last one");
    assert!(matches!(partly, PortError::Ephemeral { port: 29599, .. }), "{partly:?}");
    // The remedy keeps what is reserved already: writing the file replaces it all.
    assert!(partly.to_string().contains("=8080,28599-29598,28599-29599"), "{partly}");
    assert!(check("29599 29599", "").is_err(), "the edge counts");
    assert_eq!(check("29600 29700", ""), Ok(()));
    let moved = Ports::parse(Some("40000"), Some("9000-9001")).expect("ports");
    let text = moved.check("32768 60999", "").expect_err("inside").to_string();
    assert!(text.contains("ip_local_reserved_ports=40000,9000-9001"), "{text}");
}

#[test]
fn a_folders_port_is_the_same_for_ever_and_a_thousand_and_one_folders_share_one() {
    let ports = Ports::default();
    // Frozen: a caller with another version of the program must derive the same.
    assert_eq!([(1, 1), (2, 1), (1, 2)].map(|(dev, ino)| ports.worktree_of(dev, ino)), [29113, 29198, 28615]);
    let all: Vec<u16> = (0..1001).map(|ino| ports.worktree_of(66, ino)).collect();
    assert!(all.iter().all(|port| ports.worktrees.contains(port)));
    let mut different = all.clone();
    different.sort_unstable();
    different.dedup();
    assert!((550..=1000).contains(&different.len()), "{} of 1000 ports used", different.len());
}

#[test]
fn the_kernels_table_is_read() {
    let text = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
        0: 0100007F:6FB7 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0000000000000000 100 0 0 10 0\n   \
        1: 0000000000000000FFFF00000100007F:6FB7 0000000000000000FFFF00000100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0\n\
        not a row\n";
    let rows = stranger::rows(text);
    if cfg!(target_endian = "little") {
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert_eq!((rows[0].local.to_string(), rows[0].uid, rows[0].inode), ("127.0.0.1:28599".to_owned(), 1000, 4242));
        assert_eq!((rows[1].remote.to_string(), rows[1].inode), ("127.0.0.1:49153".to_owned(), 0));
    }
}

/// A row of the kernel's table, as `the_kernels_table_is_read` has it in whole.
fn row(local: &str, remote: &str, state: u8, inode: u64) -> stranger::Row {
    let [local, remote] = [local, remote].map(|address| address.parse().expect("an address"));
    stranger::Row { local, remote, state, uid: 0, inode }
}

#[test]
fn a_connection_is_accepted_when_a_program_has_it() {
    const ESTABLISHED: u8 = 1;
    const LISTEN: u8 = 10;
    let listens = |address: &str| row(address, "0.0.0.0:0", LISTEN, 7);
    let theirs = |inode| row("127.0.0.1:28599", "127.0.0.1:5000", ESTABLISHED, inode);
    let ours = row("127.0.0.1:5000", "127.0.0.1:28599", ESTABLISHED, 9);
    let judge = |rows: &[stranger::Row]| stranger::accepted_by(rows, 28599, 5000);
    assert_eq!(judge(&[listens("127.0.0.1:28599"), ours.clone(), theirs(8)]), Accepted::Yes);
    assert_eq!(judge(&[listens("127.0.0.1:28599"), ours.clone(), theirs(0)]), Accepted::No);
    // A listener, but not our connection: of another program's only, or of none.
    let others = [row("127.0.0.1:28599", "127.0.0.1:5001", ESTABLISHED, 8), row("127.0.0.1:1", "127.0.0.1:5000", 1, 8)];
    for address in ["127.0.0.1:28599", "0.0.0.0:28599", "[::]:28599"] {
        assert_eq!(judge(&[&others[..], &[listens(address)]].concat()), Accepted::Unknown, "{address}");
    }
    // Nobody of this kernel whom 127.0.0.1 reaches.
    for address in ["127.0.0.2:28599", "[::1]:28599", "127.0.0.1:28598"] {
        assert_eq!(judge(&[listens(address), ours.clone()]), Accepted::Nowhere, "{address}");
    }
    let odd = row("127.0.0.1:28599", "127.0.0.1:5000", LISTEN, 8);
    assert_eq!(judge(&[odd]), Accepted::Unknown, "a listener is no connection");
    assert_eq!(judge(&[]), Accepted::Nowhere);
}

#[test]
fn a_connection_that_keeps_the_port_is_found_and_told_by_its_state() {
    let [ours, closed] =
        [("127.0.0.1:28599", 1), ("127.0.0.1:28599", 6)].map(|(at, state)| row(at, "10.0.0.1:443", state, 7));
    let [listens, other] =
        [("0.0.0.0:28599", 10), ("127.0.0.1:28598", 1)].map(|(at, state)| row(at, "0.0.0.0:0", state, 7));
    let found = |rows: &[&stranger::Row]| {
        let rows: Vec<stranger::Row> = rows.iter().map(|&row| row.clone()).collect();
        stranger::connection(&rows, 28599).cloned()
    };
    assert_eq!(found(&[&other, &listens, &closed, &ours]), Some(ours));
    assert_eq!(found(&[&other, &listens, &closed]), Some(closed));
    assert_eq!(found(&[&other, &listens]), None);
    let told = |state, inode| {
        stranger::keeps(&row("127.0.0.1:28599", "10.0.0.1:443", state, inode), |row| format!("socket {}", row.inode))
    };
    assert_eq!(told(1, 7), "a connection to 10.0.0.1:443 uses it as its own port: socket 7");
    let rest = "the rest of a connection to 10.0.0.1:443 keeps it";
    for (state, inode) in [(1, 0), (4, 0), (8, 7)] {
        assert_eq!(told(state, inode), rest, "{state}");
    }
    assert_eq!(told(6, 0), "a closed connection to 10.0.0.1:443 keeps it for up to a minute (TIME_WAIT)");
}
