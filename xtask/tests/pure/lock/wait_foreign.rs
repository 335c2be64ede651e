//! Who has the port and is no holder, and who only looks foreign: stopped, starved, or too busy to answer.

use std::time::Duration;

use xtask::lock::wait::{Failure, Foreign, Seen, Step, Wait};

use super::wait::{at, check};

#[test]
fn other_bytes_are_foreign_at_once() {
    check(60_000, "0 busy -> connect 500\n1 connected -> hear 2001\n2 bytes 220 smtp -> fail said 220 smtp");
}

#[test]
fn silence_on_two_accepted_connections_is_foreign() {
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
fn a_holder_stopped_after_it_accepted_is_not_foreign() {
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
fn good_byes_without_a_banner_are_foreign_the_second_time() {
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
fn resets_are_foreign_only_when_they_go_on() {
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
    // So may each of many that hold for milliseconds: ten in less than two seconds are not foreign, what follows is.
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
                assert_eq!(step, Step::Fail(Failure::Foreign(Foreign::NotListening)));
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
