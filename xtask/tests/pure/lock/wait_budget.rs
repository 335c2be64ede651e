//! The wait for a lock ends in time: the budget, and whoever asks to stop.

use super::wait::check;

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
