//! Scenarios of the schedule: what a run does about deadlines, failures and requests to stop.

use xtask::plan::schedule::{Schedule, Why};
use xtask::time::Moment;
use xtask::verdict::{Limit, Stop};

use crate::schedule_script::{check, plan_of};

#[test]
fn one_task_passes() {
    check(
        "task a limit=10",
        "at 0 tick         -> start a on 0             | wake 94
         at 0 began a      ->                          | wake 10
         at 3 exited a 0   -> a passed, done           | never
         at 4 tick         ->                          | never
         at 5 int          ->                          | never",
    );
}

#[test]
fn stubborn_task_is_killed_after_its_grace() {
    check(
        "task a limit=10",
        "at  0 tick          -> start a on 0
         at  0 began a       ->                         | wake 10
         at 10 tick          -> ask a SIGTERM late      | wake 14
         at 13 tick          ->                         | wake 14
         at 14 tick          -> kill a grace-over       | wake 94
         at 15 tick          ->
         at 15 exited a SIG9 -> a late(task), done",
    );
}

#[test]
fn deadline_counts_from_the_process_not_from_the_decision() {
    check(
        "task a limit=10",
        "at  0 tick        -> start a on 0
         at  5 began a     ->                      | wake 15
         at 14 tick        ->
         at 15 exited a 0  -> a passed, done",
    );
}

#[test]
fn exactly_at_the_deadline_is_in_time_and_a_nanosecond_later_is_late() {
    let plan = "task a limit=10";
    check(plan, "at 0 tick -> start a on 0\n at 0 began a ->\n at 10  exited a 0 -> a passed, done");
    check(plan, "at 0 tick -> start a on 0\n at 0 began a ->\n at 10+ exited a 0 -> a late(task), done");
    // Heard of late, judged by its end; the signal came too late to be needed.
    check(
        plan,
        "at  0 tick                -> start a on 0
         at  0 began a             ->
         at 12 tick                -> ask a SIGTERM late
         at 13 exited a 0 when=10  -> a passed, done",
    );
    check(
        plan,
        "at  0 tick                -> start a on 0
         at  0 began a             ->
         at 12 exited a 0 when=10+ -> a late(task), done",
    );
}

#[test]
fn a_deadline_counts_from_the_start_and_not_from_when_that_was_told() {
    let heard = "at 0 tick -> start a on 0\n at 9 began a when=1 -> | wake 11\n";
    check("task a", &format!("{heard} at 12 exited a 0 when=11 -> a passed, done"));
    check("task a", &format!("{heard} at 12 exited a 0 when=11+ -> a late(task), done"));
    check("task a", "at 0 tick -> start a on 0\n at 12 began a when=1 -> ask a SIGTERM late | wake 16");
}

#[test]
fn task_that_needed_a_signal_has_not_passed_whatever_its_exit_code() {
    check(
        "task a limit=10",
        "at  0 tick        -> start a on 0
         at  0 began a     ->
         at 10 tick        -> ask a SIGTERM late
         at 11 exited a 0  -> a late(task), done",
    );
}

#[test]
fn own_troubles_count_in_order() {
    let plan = "task a limit=10";
    let began = "at 0 tick -> start a on 0\n at 0 began a ->\n";
    for (end, verdict) in [
        ("exited a 1 left missing", "failed(1)"),
        ("exited a SIG11", "failed(SIG11)"),
        ("exited a 0 left missing", "failed(leftovers)"),
        ("exited a 0 left-may-be", "passed"),
        ("exited a 0 left-may-be missing", "failed(output)"),
        ("exited a 0 missing", "failed(output)"),
    ] {
        check(plan, &format!("{began} at 3 {end} -> a {verdict}, done"));
    }
    // A leader that failed by itself has failed, however long it took to end what it left behind.
    check(
        plan,
        &format!("{began} at 10 tick -> ask a SIGTERM late\n at 12 exited a 1 when=9 left -> a failed(1), done"),
    );
}

#[test]
fn what_needs_a_failed_task_does_not_run_and_the_rest_does() {
    check(
        "run pool=1
         task a limit=50
         task b needs=a
         task c needs=a+b
         task d",
        "at 0 tick        -> start a on 0
         at 0 began a     ->
         at 1 exited a 1  -> a failed(1), b not-run(needs a), c not-run(needs a), start d on 0
         at 1 began d     ->
         at 2 exited d 0  -> d passed, done",
    );
}

#[test]
fn chain_behind_a_failure_names_the_task_it_needs() {
    check(
        "task a\n task b needs=a\n task c needs=b",
        "at 0 tick        -> start a on 0
         at 0 unstarted a -> a failed(spawn), b not-run(needs a), c not-run(needs b), done",
    );
}

#[test]
fn on_failure_stop_stops_what_runs_and_starts_nothing() {
    check(
        "run on-failure=stop
         task a limit=50
         task b limit=40
         task c
         task d needs=a",
        "at 0 tick          -> start a on 0, start b on 1
         at 0 began a       ->
         at 0 began b       ->
         at 3 exited a 1    -> a failed(1), d not-run(needs a), ask b SIGTERM on-failure, c not-run(on-failure) | wake 7
         at 4 int           ->                                                                                  | wake 7
         at 7 tick          -> kill b grace-over
         at 8 exited b SIG9 -> b cancelled(SIGTERM), done",
    );
}

#[test]
fn on_failure_stop_after_a_late_task() {
    check(
        "run on-failure=stop pool=1
         task a limit=10
         task b limit=9",
        "at  0 tick       -> start a on 0
         at  0 began a    ->
         at 10 tick       -> ask a SIGTERM late
         at 10.5 exited a 0 -> a late(task), b not-run(on-failure), done",
    );
}

#[test]
fn run_is_cut_with_its_wrap_up_to_spare() {
    check(
        "run pool=1 deadline=20 wrap-up=6 grace=4
         task a limit=18
         task b limit=17",
        "at  0 tick          -> start a on 0
         at  0 began a       ->                                                     | wake 14
         at 14 tick          -> run late, ask a SIGTERM run-late, b not-run(run)    | wake 18
         at 18 tick          -> kill a grace-over                                   | never
         at 19 exited a SIG9 -> a late(run), done",
    );
}

#[test]
fn exactly_at_the_cut_is_in_time() {
    let plan = "run deadline=20 wrap-up=6\n task a limit=18";
    check(plan, "at 0 tick -> start a on 0\n at 0 began a ->\n at 14  exited a 0 -> a passed, done");
    check(plan, "at 0 tick -> start a on 0\n at 0 began a ->\n at 14+ exited a 0 -> run late, a late(run), done");
    check(plan, "at 0 tick -> start a on 0\n at 0 began a ->\n at 15 exited a 0 when=14 -> a passed, done");
}

#[test]
fn nothing_starts_at_the_cut() {
    check(
        "run deadline=20 wrap-up=6
         task a limit=14
         task b needs=a",
        "at  0 tick        -> start a on 0
         at  0 began a     ->
         at 14 exited a 0  -> run late, b not-run(run), a passed, done",
    );
}

#[test]
fn trouble_after_the_cut_does_not_hide_it() {
    let plan = "run pool=1 deadline=20 wrap-up=6 on-failure=stop\n task a limit=13\n task b limit=8";
    check(plan, "at 0 tick -> start a on 0\n at 15 unstarted a -> run late, b not-run(run), a failed(spawn), done");
    check(
        plan,
        "at 0 tick                -> start a on 0
         at 0 began a             ->
         at 15 exited a 1 when=12 -> run late, b not-run(run), a failed(1), done",
    );
}

#[test]
fn no_grace_reaches_beyond_the_last_one() {
    check(
        "run deadline=20 wrap-up=6 grace=4
         task a limit=18",
        "at  0 tick    -> start a on 0
         at 14 tick    -> run late, withdraw a                                   | never
         at 17 began a -> ask a SIGTERM run-late                                 | wake 18
         at 18 tick    -> kill a grace-over
         at 18 exited a SIG9 -> a late(run), done",
    );
    check(
        "run deadline=20 wrap-up=6 grace=4
         task a limit=18",
        "at  0 tick    -> start a on 0
         at 14 tick    -> run late, withdraw a
         at 18 began a -> ask a SIGTERM run-late, kill a grace-over",
    );
}

#[test]
fn process_that_appears_after_the_cut_is_stopped_even_if_nobody_ticked() {
    check(
        "run deadline=20 wrap-up=6\n task a limit=18",
        "at  0 tick    -> start a on 0
         at 15 began a -> run late, ask a SIGTERM run-late  | wake 18",
    );
}

#[test]
fn own_deadline_counts_before_that_of_the_run_if_it_came_first_or_with_it() {
    for limit in [13, 14] {
        check(
            &format!("run deadline=20 wrap-up=6\n task a limit={limit}"),
            "at  0 tick       -> start a on 0
             at  0 began a    ->
             at 16 tick       -> ask a SIGTERM late, run late
             at 17 exited a 0 -> a late(task), done",
        );
    }
}

#[test]
fn first_signal_asks_second_kills() {
    check(
        "task a limit=50\n task b limit=40\n task c",
        "at 0 tick          -> start a on 0, start b on 1
         at 0 began a       ->
         at 0 began b       ->
         at 2 int           -> ask a SIGINT cancelled, ask b SIGINT cancelled, c not-run(SIGINT)   | wake 6
         at 3 exited a 0    -> a cancelled(SIGINT)
         at 4 term          -> kill b cancelled                                                    | never
         at 4 hup           ->
         at 5 exited b SIG9 -> b cancelled(SIGINT), done",
    );
}

#[test]
fn task_that_ended_before_the_signal_is_not_cancelled() {
    check(
        "task a\n task b needs=a",
        "at 0 tick               -> start a on 0
         at 0 began a            ->
         at 2 hup                -> ask a SIGHUP cancelled, b not-run(SIGHUP)
         at 3 exited a 0 when=2  -> a passed, done",
    );
}

#[test]
fn process_that_appears_after_a_stop_is_stopped() {
    let plan = "task a";
    check(
        plan,
        "at 0 tick    -> start a on 0
         at 1 term    -> withdraw a
         at 3 began a -> ask a SIGTERM cancelled    | wake 7
         at 3.5 exited a 0 -> a cancelled(SIGTERM), done",
    );
    check(
        plan,
        "at 0 tick    -> start a on 0
         at 1 int     -> withdraw a
         at 2 int     ->
         at 3 began a -> kill a cancelled           | never
         at 4 exited a SIG9 -> a cancelled(SIGINT), done",
    );
    check(plan, "at 0 tick -> start a on 0\n at 1 int -> withdraw a\n at 2 unstarted a -> a failed(spawn), done");
}

#[test]
fn what_came_first_stays_the_verdict() {
    let plan = "task a limit=10";
    let began = "at 0 tick -> start a on 0\n at 0 began a ->\n";
    // Late, then Ctrl-C.
    check(
        plan,
        &format!(
            "{began} at 10 tick -> ask a SIGTERM late\n at 11 int -> |wake 14\n at 12 exited a 0 -> a late(task), done"
        ),
    );
    // Late but nobody looked, then Ctrl-C.
    check(plan, &format!("{began} at 11 int -> ask a SIGTERM late\n at 12 exited a 0 -> a late(task), done"));
    // Ctrl-C, and then the deadline passes within the grace.
    check(
        plan,
        &format!(
            "{began} at 9 int -> ask a SIGINT cancelled |wake 13\n at 10 tick -> |wake 13
             at 12 exited a 0 -> a cancelled(SIGINT), done"
        ),
    );
    // A full log, and then the deadline.
    check(plan, &format!("{began} at 9 full a -> ask a SIGTERM log-full\n at 11 exited a 1 -> a failed(log), done"));
    // The second signal kills what is late; it stays late.
    check(
        plan,
        &format!(
            "{began} at 10 tick -> ask a SIGTERM late\n at 11 int ->\n at 12 int -> kill a cancelled
             at 12 exited a SIG9 -> a late(task), done"
        ),
    );
}

#[test]
fn full_log_fails_the_task() {
    check(
        "task a limit=50\n task b",
        "at 0 tick          -> start a on 0, start b on 1
         at 0 began a       ->
         at 0 began b       ->
         at 3 full a        -> ask a SIGTERM log-full      | wake 7
         at 4 full a        ->                             | wake 7
         at 7 tick          -> kill a grace-over
         at 7 exited a SIG9 -> a failed(log)
         at 7 full a        ->
         at 8 exited b 0 when=3 -> b passed, done",
    );
    // It was over by itself when that was seen: its log is too long all the same.
    let script = "at 0 tick -> start a on 0\n at 0 began a ->\n at 3 full a -> ask a SIGTERM log-full\n";
    check("task a", &format!("{script} at 4 exited a 0 when=2 -> a failed(log), done"));
    check("task a", &format!("{script} at 4 exited a 3 when=2 -> a failed(3), done"));
}

#[test]
fn without_a_verdict_everything_is_killed_at_once() {
    check(
        "task a limit=50
         task b limit=40
         task c limit=30
         task d cpus=2 needs=c",
        "at 0 tick          -> start a on 0, start b on 1
         at 0 began a       ->
         at 1 lost          -> kill a no-verdict, withdraw b, c not-run(no-verdict), d not-run(no-verdict)
         at 2 began b       -> kill b no-verdict       | never
         at 2 int           ->
         at 2 int           ->
         at 3 exited a SIG9 -> a cancelled(SIGTERM)
         at 3 exited b SIG9 -> b cancelled(SIGTERM), done",
    );
}

#[test]
fn signal_while_nothing_runs_yet_ends_the_run() {
    check("task a\n task b needs=a", "at 0 int -> a not-run(SIGINT), b not-run(SIGINT), done | never");
}

#[test]
fn plan_without_room_for_a_task_is_over_at_once() {
    check("run deadline=5 wrap-up=6\n task a", "at 0 tick -> run late, a not-run(run), done");
}

#[test]
#[should_panic(expected = "a cycle")]
fn cycle_is_never_taken_for_a_plan() {
    let mut plan = plan_of("task a\n task b needs=a");
    plan.tasks[0].needs.push(1);
    Schedule::new(&plan, Moment::default());
}

#[test]
fn task_that_waits_for_its_service_is_withdrawn() {
    check(
        "task a limit=10
         task b limit=10",
        "at 0 tick         -> start a on 0, start b on 1 | wake 94
         at 0 began b      ->
         at 5 int          -> withdraw a, ask b SIGINT cancelled
         at 5 withdrawn a  -> a not-run(SIGINT)
         at 6 exited b 130 -> b cancelled(SIGINT), done",
    );
}

#[test]
fn waiting_for_a_service_is_no_time_of_the_task_but_of_the_run() {
    check(
        "task a limit=10",
        "at 0  tick        -> start a on 0               | wake 94
         at 90 tick        ->                            | wake 94
         at 94 tick        -> run late, withdraw a
         at 94 withdrawn a -> a not-run(SIGINT), done",
    );
}

#[test]
fn a_stop_says_why() {
    let words = [
        (Why::Late(Limit::Task), "passed its deadline"),
        (Why::Late(Limit::Run), "the run passed its deadline"),
        (Why::GraceOver, "the grace is over"),
        (Why::LogFull, "its log is full"),
        (Why::Cancelled(Stop::Term), "cancelled by SIGTERM"),
        (Why::OnFailure, "another task failed"),
        (Why::NoVerdict, "the run cannot have a verdict any more"),
    ];
    for (why, text) in words {
        assert_eq!(why.to_string(), text);
    }
}
