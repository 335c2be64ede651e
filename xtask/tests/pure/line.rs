//! Scenarios of the line: who goes next, and on which slots.

use xtask::plan::slots::Pool;

use crate::schedule_script::check;

#[test]
fn longest_path_goes_first() {
    check(
        "run pool=1
         task short limit=5
         task long limit=9
         task head limit=3
         task tail limit=8 needs=head",
        "at 0 tick           -> start head on 0
         at 0 began head     ->
         at 1 exited head 0  -> head passed, start long on 0
         at 1 began long     ->
         at 2 exited long 0  -> long passed, start tail on 0
         at 2 began tail     ->
         at 3 exited tail 0  -> tail passed, start short on 0",
    );
}

#[test]
fn of_two_paths_of_one_length_the_heavier_goes_first() {
    check("task light limit=9\n task heavy limit=9 cpus=2", "at 0 tick -> start heavy on 0+1");
}

#[test]
fn usual_durations_count_for_more_than_deadlines() {
    check(
        "run pool=1\n task a limit=50 usual=2\n task b limit=9 usual=3\n task c limit=2",
        "at 0 tick -> start b on 0",
    );
}

#[test]
fn mutex_keeps_apart() {
    check(
        "run pool=4
         task a mutex=target limit=9
         task b mutex=target limit=8
         task c limit=7",
        "at 0 tick        -> start a on 0, start c on 1
         at 0 began a     ->
         at 0 began c     ->
         at 3 exited c 0  -> c passed
         at 4 exited a 0  -> a passed, start b on 0",
    );
}

#[test]
fn mutex_and_slots_come_back_when_a_task_could_not_be_started() {
    check(
        "run pool=2
         task a mutex=target cpus=2 limit=9
         task b mutex=target cpus=2 limit=8",
        "at 0 tick         -> start a on 0+1
         at 1 unstarted a  -> a failed(spawn), start b on 0+1",
    );
}

// A pool of four, as in many a workstation: the type check takes two, the unit tests three.
#[test]
fn type_check_and_unit_tests_are_never_side_by_side_in_a_pool_of_four() {
    check(
        "run pool=4
         task typecheck cpus=2 limit=60
         task unit cpus=3 limit=50
         task fmt cpus=1 limit=5",
        "at 0 tick               -> start typecheck on 0+1, start fmt on 2
         at 0 began typecheck    ->
         at 0 began fmt          ->
         at 3 exited fmt 0       -> fmt passed
         at 9 exited typecheck 0 -> typecheck passed, start unit on 0+1+2",
    );
}

// The plans of the next tests give the order by tails: `long` first, then `wide`, then the small ones. A tail has no usual
// duration, so that the order is that of the longest path and not a searched one.

#[test]
fn smaller_task_goes_ahead_only_where_the_first_in_line_is_not_delayed() {
    for (long, small, goes) in [
        ("limit=60 usual=10", "limit=20 usual=10", true),
        ("limit=60 usual=10", "limit=20 usual=10.1", false),
        ("limit=60 usual=10", "limit=10", true),
        ("limit=60 usual=10", "limit=10.1", false),
        ("limit=60", "limit=60", true),
        ("limit=60", "limit=60.1", false),
        ("limit=60", "limit=60.1 usual=60", true),
        // A usual duration from before the deadline was lowered.
        ("limit=10 usual=99", "limit=10.1", false),
        // No time at all is no measure.
        ("limit=60 usual=0", "limit=60 usual=0", true),
        ("limit=60 usual=0", "limit=60 usual=0.002", false),
    ] {
        let plan = format!(
            "run deadline=5000
             task long {long}
             task wide cpus=2 limit=30
             task small {small}
             task long-tail limit=900 needs=long
             task wide-tail limit=500 needs=wide"
        );
        let small = if goes { ", start small on 1" } else { "" };
        check(&plan, &format!("at 0 tick -> start long on 0{small}"));
    }
}

#[test]
fn nothing_goes_ahead_once_the_first_in_line_is_expected_to_fit_at_any_moment() {
    for (ended, usual, goes) in
        [("6", "4", true), ("6+", "4", false), ("7", "4", false), ("12", "4", false), ("12", "0", false)]
    {
        let plan = format!(
            "run deadline=5000
             task long limit=60 usual=10
             task wide cpus=2 limit=30
             task one limit=20 usual=5
             task two limit=20 usual={usual}
             task long-tail limit=900 needs=long
             task wide-tail limit=500 needs=wide"
        );
        let two = if goes { ", start two on 1" } else { "" };
        check(
            &plan,
            &format!(
                "at 0 tick -> start long on 0, start one on 1
                 at 0 began long ->
                 at 0 began one ->
                 at {ended} exited one 0 -> one passed{two}"
            ),
        );
    }
}

#[test]
fn what_leaves_enough_for_the_first_in_line_goes_ahead_however_long_it_takes() {
    check(
        "run pool=4 deadline=5000
         task long cpus=2 limit=60
         task wide cpus=3 limit=30
         task one limit=400
         task two limit=399
         task long-tail limit=900 needs=long
         task wide-tail limit=500 needs=wide",
        "at 0 tick           -> start long on 0+1, start one on 2
         at 0 began long     ->
         at 0 began one      ->
         at 3 exited long 0  -> long passed, start long-tail on 0
         at 3 began long-tail ->
         at 5 exited one 0   -> one passed, start wide on 1+2+3",
    );
}

#[test]
fn first_in_line_that_waits_for_a_mutex_does_not_hold_up_others() {
    check(
        "run pool=3 deadline=5000
         task long mutex=m limit=60
         task wide mutex=m limit=30 cpus=2
         task one limit=400
         task two limit=399
         task three limit=60
         task long-tail limit=900 needs=long
         task wide-tail limit=500 needs=wide",
        "at 0 tick -> start long on 0, start one on 1, start three on 2",
    );
}

#[test]
fn mutex_of_the_first_in_line_is_kept_for_it() {
    for (small, goes) in [("limit=61", true), ("limit=61 mutex=m", false), ("limit=60 mutex=m", true)] {
        let plan = format!(
            "run pool=3 deadline=5000
             task long cpus=2 limit=60
             task wide cpus=2 limit=30 mutex=m
             task small {small}
             task long-tail limit=900 needs=long
             task wide-tail limit=500 needs=wide"
        );
        let small = if goes { ", start small on 2" } else { "" };
        check(&plan, &format!("at 0 tick -> start long on 0+1{small}"));
    }
}

#[test]
fn task_in_its_grace_is_expected_at_the_end_of_it() {
    for (usual, goes) in [("4", true), ("4.1", false)] {
        let plan = format!(
            "run deadline=5000
             task long limit=10
             task wide cpus=2 limit=30
             task one limit=10
             task two limit=9 usual={usual}
             task long-tail limit=900 needs=long
             task wide-tail limit=500 needs=wide"
        );
        let two = if goes { ", start two on 1" } else { "" };
        check(
            &plan,
            &format!(
                "at  0 tick -> start long on 0, start one on 1
                 at  0 began long ->
                 at  0 began one ->
                 at 10 tick -> ask long SIGTERM late, ask one SIGTERM late
                 at 10 exited one 1 -> one failed(1){two}"
            ),
        );
    }
}

#[test]
fn slots_are_given_side_by_side_and_low_whole_cores_to_heavy_tasks() {
    let mut pool = Pool::new(8);
    assert_eq!(pool.take(1), [0]);
    assert_eq!(pool.take(2), [2, 3], "a whole core, not halves of two");
    assert_eq!(pool.take(1), [1]);
    assert_eq!(pool.take(3), [4, 5, 6]);
    pool.give(&[2, 3]);
    assert_eq!(pool.left(), 3);
    assert_eq!(pool.take(3), [2, 3, 7], "no three are side by side");
    assert_eq!(pool.left(), 0);
    pool.give(&[0, 1, 2, 3, 7]);
    pool.give(&[4, 5, 6]);
    assert_eq!(pool.take(1), [0]);
    assert_eq!(pool.take(7), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
#[should_panic(expected = "slot 1 is given back twice")]
fn slot_given_back_twice_is_our_own_mistake() {
    let mut pool = Pool::new(2);
    let slots = pool.take(2);
    pool.give(&slots);
    pool.give(&slots[1..]);
}
