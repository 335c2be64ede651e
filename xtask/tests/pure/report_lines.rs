//! Single lines: what is said in the middle of a run and around it, and what is left unsaid.

use xtask::event::Event;
use xtask::report::{Style, Surface, cancelled, freed, refused_summary};
use xtask::verdict::{Cause, ExitStatus, Limit, Stop, Verdict, Word};

use crate::report_story::{BEGAN_MS, begun, finished, ms, over, plain, record, scene, terminal, written};

fn github() -> Style {
    Style { surface: Surface::GitHub { fence: "f".to_owned() }, colour: false, log_colour: true }
}

/// The lines for the last of these events, which follow the first `begin` of `begun`, without the clock.
fn said(style: Style, begin: usize, more: Vec<(u64, Event)>) -> Vec<String> {
    let events: Vec<(u64, Event)> = begun().into_iter().take(begin).chain(more).collect();
    let before = written(style.clone(), scene(), events[..events.len() - 1].to_vec());
    let all = written(style, scene(), events);
    let words = |line: &str| line.get(10..).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    all[before.len()..].lines().map(words).collect()
}

fn stopping(task: &str, late: Option<Limit>, signal: &str, doing: &[&str]) -> Event {
    let (task, why, signal) =
        (crate::report_story::name(task), "wrote more than its log may hold".to_owned(), signal.to_owned());
    let doing = doing.iter().map(|&line| line.to_owned()).collect();
    Event::TaskStopping { task, why, late, silent: None, signal, took: ms(30_000), doing }
}

#[test]
fn trouble_is_said_when_it_comes() {
    let trouble = Event::Trouble { text: "the clock went backwards".to_owned() };
    assert_eq!(said(plain(), 8, vec![(240_000, trouble)]), ["TROUBLE the clock went backwards"]);
}

#[test]
fn a_stop_names_what_it_stops() {
    let stop = || vec![(180_000, Event::StopAsked { signal: Stop::Term, again: false })];
    assert_eq!(said(plain(), 3, stop()), ["CANCELLED by SIGTERM after 16s"]);
    let both = "CANCELLED by SIGTERM after 16s, stopping fmt, typecheck (again: kill now)";
    assert_eq!(said(plain(), 5, stop()), [both]);
}

/// fmt, which is late too, ignores its SIGTERM meanwhile.
#[test]
fn each_late_task_says_it_once() {
    let late = |task: &str, signal: &str| stopping(task, Some(Limit::Task), signal, &[]);
    let first = vec![(194_200, late("fmt", "SIGTERM"))];
    assert_eq!(said(plain(), 5, first.clone()), ["LATE fmt 30s of 30s"]);
    let killed = [first, vec![(198_200, late("fmt", "SIGKILL"))]].concat();
    assert!(said(plain(), 5, killed.clone()).is_empty());
    let other = [killed, vec![(404_200, late("typecheck", "SIGTERM"))]].concat();
    assert_eq!(said(plain(), 5, other), ["LATE typecheck 30s of 4m"]);
}

/// Nothing had said it before: what ended a moment too late got no signal.
#[test]
fn what_ended_without_a_signal_says_how() {
    for (verdict, line) in [
        (Verdict::Late(Limit::Task), "LATE fmt 31s of 30s passed its deadline"),
        (Verdict::Cancelled(Stop::Int), "Cancelled fmt 31s of 30s cancelled by SIGINT"),
    ] {
        let ended = vec![(195_200, finished("fmt", verdict, 164_200, 31_000))];
        assert_eq!(said(plain(), 5, ended), [line]);
    }
}

#[test]
fn what_a_task_was_doing_is_shown_where_it_was_late() {
    let shown = |late: Option<Limit>, doing: &[&str]| {
        let verdict = late.map_or(Verdict::Failed(Cause::Exit(ExitStatus::Code(1))), Verdict::Late);
        let ended = Event::TaskFinished(record("fmt", verdict, 164_200, 30_000));
        let lines = said(plain(), 5, vec![(194_200, stopping("fmt", late, "SIGTERM", doing)), (194_300, ended)]);
        lines.join("\n").contains("what it was doing")
    };
    let doing = ["rustfmt 48112"];
    assert!(shown(Some(Limit::Task), &doing));
    assert!(!shown(Some(Limit::Task), &[]), "nothing is known");
    assert!(!shown(None, &doing), "it was no riddle why it ended");
}

#[test]
fn a_run_without_a_verdict_is_annotated_although_no_task_is_to_blame() {
    let ending = |verdict: Word, cause: Option<&str>| match over(verdict, 174_000, 7) {
        Event::RunFinished { partial, late, run, receipt, exit_code, .. } => {
            let cause = cause.map(str::to_owned);
            Event::RunFinished { verdict, partial, cause, late, run, receipt, exit_code }
        }
        other => other,
    };
    let annotated = |style: Style, event: Event| {
        let events = begun().into_iter().chain([(338_000, event)]).collect();
        let text = written(style, scene(), events);
        text.lines().find(|line| line.starts_with("::error")).map(str::to_owned)
    };
    let slept = || ending(Word::NoVerdict, Some("the machine slept"));
    assert_eq!(annotated(github(), slept()).as_deref(), Some("::error title=no verdict::the machine slept"));
    assert_eq!(annotated(plain(), slept()), None);
    assert_eq!(annotated(github(), ending(Word::Late, Some("the machine slept"))), None);
}

#[test]
fn a_call_that_ran_nothing_has_its_words() {
    let cancelled = |style: &Style| cancelled(style, BEGAN_MS, Stop::Int);
    assert_eq!(cancelled(&plain()), "14:05:31  CANCELLED  by SIGINT while waiting; nothing was run\n");
    assert_eq!(cancelled(&terminal()), "   CANCELLED by SIGINT while waiting; nothing was run\n");
    assert_eq!(freed(&plain(), BEGAN_MS), "14:05:31  Freed      workstation lock");
    assert_eq!(freed(&terminal(), BEGAN_MS), "       Freed workstation lock");
    assert_eq!(
        refused_summary("verify", "ci/suite.toml:12: no such task\nci/suite.toml:14: `a|b` is no name\n"),
        "### verify refused: nothing was queued or run\n\nci/suite.toml:12: no such task  \n\
         ci/suite.toml:14: &#96;a&#124;b&#96; is no name  \n"
    );
}
