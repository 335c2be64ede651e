//! What people see, with a fake clock: events in, the whole screen out.

use xtask::event::{Event, Stamped};
use xtask::report::{Outside, Scene, Screen, Style, Surface, annotation, json};

use crate::report_story::{
    SIZE, at, between_tasks, cancelled, changed, check, failed, failed_and_late, late, ms, passed, plain, refused,
    run_late, scene, shown, terminal, uncommitted, waited, written,
};

#[test]
fn endings() {
    type Story = fn() -> Vec<(u64, Event)>;
    let stories: [(&str, Story); 11] = [
        ("failed-and-late", failed_and_late),
        ("between-tasks", between_tasks),
        ("passed", passed),
        ("failed", failed),
        ("late", late),
        ("run-late", run_late),
        ("cancelled", cancelled),
        ("changed", changed),
        ("uncommitted", uncommitted),
        ("waited", waited),
        ("refused", refused),
    ];
    let github = || Style { surface: Surface::GitHub { fence: "c0f3".to_owned() }, colour: false, log_colour: true };
    for (name, story) in stories {
        check(&format!("{name}.plain"), &written(plain(), scene(), story()));
        check(&format!("{name}.terminal"), &shown(scene(), story()));
    }
    for (name, story) in [("failed", failed as Story), ("late", late)] {
        check(&format!("{name}.github"), &written(github(), scene(), story()));
        check(
            &format!("{name}.gitlab"),
            &written(Style { surface: Surface::GitLab, colour: false, log_colour: true }, scene(), story()),
        );
    }
    check("cancelled.github", &written(github(), scene(), cancelled()));
    check(
        "failed.colour",
        &written(Style { surface: Surface::Terminal, colour: true, log_colour: false }, scene(), failed()),
    );
    for (name, story) in [("passed", passed as Story), ("failed", failed), ("late", late)] {
        let mut screen = Screen::new(github(), scene());
        let events: Vec<Stamped> = story().into_iter().map(|(when, event)| Stamped { at: at(when), event }).collect();
        events.iter().for_each(|event| drop(screen.on(event, SIZE)));
        check(&format!("{name}.summary"), &screen.job_summary(events.last().expect("an end")));
    }
    let lines = late().into_iter().map(|(when, event)| json::line(&Stamped { at: at(when), event }, at(0)));
    check("late.json", &lines.collect::<String>());
}

#[test]
fn what_is_signed_afterwards_says_the_exit_code_itself() {
    let signs = || Scene { signs: true, ..scene() };
    assert!(!written(plain(), signs(), passed()).contains("exit code"));
    assert!(written(plain(), signs(), failed()).ends_with("exit code 1\n"), "nothing comes after it");
}

/// The last lines of a run in which `test-pg` was late, silent for so long, with these passes before.
fn judged(silent: Option<u64>, past: &[u64]) -> String {
    let mut scene = scene();
    scene.tasks[2].past = past.iter().copied().map(ms).collect();
    let mut events = late();
    let at = events.iter().position(|(_, event)| matches!(event, Event::TaskStopping { .. })).expect("a stop");
    if let Event::TaskStopping { silent: how_long, .. } = &mut events[at].1 {
        *how_long = silent.map(ms);
    }
    written(plain(), scene, events)
}

/// It ran for five minutes.
#[test]
fn a_late_task_is_judged_by_its_silence_and_its_past() {
    let (hung, slow, unknown) = ("looks hung, not slow", "looks slow, not hung", "hung or slow: nothing to compare");
    for (silent, past, want) in [
        (Some(150_000), &[][..], hung),
        (Some(150_000), &[290_000], hung),
        (Some(149_000), &[290_000], slow),
        (Some(100_000), &[100_000], hung),
        (Some(10_000), &[100_000], slow),
        (Some(10_000), &[], slow),
        (Some(100_000), &[], unknown),
        (None, &[100_000], hung),
        (None, &[290_000], slow),
        (None, &[], unknown),
    ] {
        let said = judged(silent, past);
        assert!(said.contains(want), "silent {silent:?}, past {past:?}:\n{said}");
        assert_eq!(said.contains("last output"), silent.is_some(), "{said}");
    }
}

#[test]
fn a_late_run_says_what_was_left_of_the_callers_own_limit() {
    let within = |minutes: u64| Scene { outer: Some(ms(minutes * 60_000)), ..scene() };
    // 2m44s in the queue, 27m54.9s of running.
    let said = written(plain(), within(62), run_late());
    assert!(said.contains("the caller's own limit is 1h02m; 31m21s to spare"), "{said}");
    assert!(written(plain(), within(30), run_late()).contains("0s to spare"));
    assert!(!written(plain(), scene(), run_late()).contains("to spare"));
    assert!(!written(plain(), within(62), passed()).contains("to spare"));
}

#[test]
fn an_annotation_is_one_line_that_reads_as_it_was_written() {
    let text = "a disk that is 100% full\r\nas %0A is\n";
    assert_eq!(
        annotation("verify refused", text),
        "::error title=verify refused::a disk that is 100%25 full%0D%0Aas %250A is\n"
    );
    assert_eq!(annotation("t", "a ##[b"), "::error title=t::a # #[b\n");
    let mut events = failed();
    let at = events.iter().position(|(_, event)| matches!(event, Event::TaskFinished(r) if !r.tail.is_empty()));
    if let Event::TaskFinished(record) = &mut events[at.expect("a failure")].1 {
        record.tail = vec!["src/x.rs:3: 100% wrong".to_owned()];
    }
    let github = Style { surface: Surface::GitHub { fence: "f".to_owned() }, colour: false, log_colour: true };
    let said = written(github.clone(), scene(), events.clone());
    assert!(said.contains("::error title=test-pg failed,file=src/x.rs,line=3::100%25 wrong (exit code 100;"), "{said}");
    for outside in ["/src/x.rs:3: x", "../x.rs:3: x", "a//x.rs:3: x", "target/x.rs:3: x", "x,y.rs:3: x", "x.rs:0: x"] {
        if let Event::TaskFinished(record) = &mut events[at.expect("a failure")].1 {
            record.tail = vec![outside.to_owned()];
        }
        let said = written(github.clone(), scene(), events.clone());
        assert!(said.contains("::error title=test-pg failed::exit code 100 ("), "{outside}: {said}");
    }
}

/// Also where it names every task, and also where it did not pass: the gate refuses its receipt.
#[test]
fn a_run_of_a_part_of_the_suite_says_so() {
    for (part, all) in [(4, 4), (4, 9)] {
        let partial = || Scene { suite_tasks: all, partial: true, ..scene() };
        for (story, style) in [(passed as fn() -> _, plain()), (passed, terminal())] {
            let said = written(style, partial(), story());
            assert!(said.contains(&format!("{part} of {all} tasks (partial) at ")), "{said}");
        }
        let said = written(plain(), partial(), failed());
        assert!(said.contains("1 not run (smoke) (partial)"), "{said}");
        assert!(said.contains(&format!(": {part} of {all} tasks (partial), 8 cpu slots")), "{said}");
    }
    assert!(!written(plain(), scene(), failed()).contains("(partial)"));
}

#[test]
fn styles() {
    let person = || Outside { terminal: true, term: Some("xterm-256color"), ..Outside::default() };
    let file = || Outside { term: Some("xterm-256color"), ..Outside::default() };
    let github = || Surface::GitHub { fence: "f".to_owned() };
    let cases = [
        ("a terminal", person(), Surface::Terminal, true),
        ("a file", file(), Surface::Plain, false),
        ("nothing known", Outside::default(), Surface::Plain, false),
        ("a terminal without TERM", Outside { term: None, ..person() }, Surface::Plain, false),
        ("a dumb terminal", Outside { term: Some("dumb"), ..person() }, Surface::Plain, false),
        ("NO_COLOR", Outside { no_color: Some("1"), ..person() }, Surface::Terminal, false),
        ("NO_COLOR, empty", Outside { no_color: Some(""), ..person() }, Surface::Terminal, true),
        ("CLICOLOR_FORCE", Outside { clicolor_force: Some("1"), ..file() }, Surface::Plain, true),
        ("CLICOLOR_FORCE=0", Outside { clicolor_force: Some("0"), ..file() }, Surface::Plain, false),
        ("both", Outside { no_color: Some("1"), clicolor_force: Some("1"), ..file() }, Surface::Plain, false),
        ("--color always", Outside { no_color: Some("1"), colour: Some(true), ..file() }, Surface::Plain, true),
        ("--color never", Outside { colour: Some(false), ..person() }, Surface::Terminal, false),
        ("GitHub", Outside { github: Some("true"), ..file() }, github(), false),
        ("GitHub by hand", Outside { github: Some("true"), ..person() }, github(), true),
        ("GITHUB_ACTIONS=false", Outside { github: Some("false"), ..person() }, Surface::Terminal, true),
        ("GitLab", Outside { gitlab: Some("true"), ..file() }, Surface::GitLab, false),
    ];
    for (what, outside, surface, colour) in cases {
        let log_colour = matches!(surface, Surface::GitHub { .. } | Surface::GitLab);
        assert_eq!(Style::choose(&outside, "f"), Style { surface, colour, log_colour }, "{what}");
    }
    let gitlab = || Outside { gitlab: Some("true"), ..file() };
    let kept = |outside| Style::choose(&outside, "f").log_colour;
    assert!(kept(Outside { no_color: Some("1"), colour: Some(true), ..gitlab() }));
    assert!(!kept(Outside { no_color: Some("1"), ..gitlab() }), "who wants no colours gets none of a task's either");
    assert!(!kept(Outside { colour: Some(false), ..gitlab() }));
}
