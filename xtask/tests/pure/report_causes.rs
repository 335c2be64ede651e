//! The words of an ending that somebody acts on, each where it is true and nowhere else.

use xtask::event::{Event, TaskRecord};
use xtask::plan::{Machine, Plan, Selection};
use xtask::report::plan::{Status, View, checks, json, screen};
use xtask::report::{Scene, Style, Surface};
use xtask::suite::Suite;
use xtask::verdict::{Cause, ExitStatus, Limit, Stop, Verdict, Word};

use crate::report_story::{begun, finished, ms, name, over, passed, plain, record, scene, terminal, written};

/// What stands behind the word `field`, if it is there.
fn field(text: &str, field: &str) -> Option<String> {
    let mut words = text.lines().filter_map(|line| line.trim_start().strip_prefix(field)?.strip_prefix(' '));
    words.next().map(|rest| rest.trim().to_owned())
}

/// A scene in which `test-pg` took so long in earlier runs, milliseconds, the oldest first.
fn with_past(past: &[u64]) -> Scene {
    let mut scene = scene();
    scene.tasks[2].past = past.iter().copied().map(ms).collect();
    scene
}

fn run_of(more: Vec<(u64, Event)>) -> Vec<(u64, Event)> {
    begun().into_iter().chain(more).collect()
}

#[test]
fn hung_is_what_says_nothing_or_takes_longer_than_ever() {
    let judge = |silent: Option<u64>, past: &[u64]| {
        let stopping = Event::TaskStopping {
            task: name("test-pg"),
            why: "passed its deadline".to_owned(),
            late: Some(Limit::Task),
            silent: silent.map(ms),
            signal: "SIGTERM".to_owned(),
            took: ms(100_000),
            doing: Vec::new(),
        };
        let late = Event::TaskFinished(record("test-pg", Verdict::Late(Limit::Task), 235_300, 100_000));
        let events = run_of(vec![(335_300, stopping), (335_400, late), (336_000, over(Word::Late, 172_000, 3))]);
        let said = written(plain(), with_past(past), events);
        // Its limit, whatever it took until its last process was gone.
        assert_eq!(field(&said, "first").as_deref(), Some("test-pg: no result within 5m"));
        let words = field(&said, "judge").expect("a judgement");
        words.split(';').next().unwrap_or_default().to_owned()
    };
    let (hung, slow) = ("looks hung, not slow", "looks slow, not hung");
    let nothing = "hung or slow: nothing to compare with";
    // Took 100 s. By what it said: nothing for half of that time, or something in its last tenth.
    assert_eq!(judge(Some(50_000), &[90_000]), hung);
    assert_eq!(judge(Some(49_999), &[90_000]), slow);
    assert_eq!(judge(Some(49_999), &[]), nothing);
    assert_eq!(judge(Some(10_000), &[]), nothing);
    assert_eq!(judge(Some(9_999), &[]), slow);
    assert_eq!(judge(Some(9_999), &[10_000]), slow, "still at work, however long");
    // By what it took before: twice as long as ever.
    assert_eq!(judge(Some(10_000), &[50_000, 10_000]), hung);
    assert_eq!(judge(None, &[50_000, 10_000]), hung);
    assert_eq!(judge(None, &[50_001, 10_000]), slow);
    assert_eq!(judge(None, &[]), nothing);
}

#[test]
fn a_task_that_grows_is_named_before_it_is_late() {
    let trend = |past: &[u64], took: u64| {
        let mut events = passed();
        let end = events
            .iter_mut()
            .rfind(|(_, event)| matches!(event, Event::TaskFinished(task) if task.task == name("test-pg")));
        end.expect("its end").1 = finished("test-pg", Verdict::Passed, 235_300, took);
        field(&written(plain(), with_past(past), events), "trend")
    };
    let past = |older: u64, newer: u64| [older, older, older, newer, newer];
    assert_eq!(trend(&past(100_000, 120_000), 120_000).as_deref(), Some("test-pg up 20% over the last 6 runs"));
    assert_eq!(trend(&past(100_000, 119_000), 119_000), None);
    assert_eq!(trend(&past(1_000, 2_000), 2_000).as_deref(), Some("test-pg up 100% over the last 6 runs"));
    assert_eq!(trend(&past(1_000, 1_999), 1_999), None, "less than a second");
    assert_eq!(trend(&[100_000, 100_000, 200_000, 200_000], 200_000), None, "too few runs");
    // The last ten: what was before them is forgotten.
    let long = [vec![1_000; 3], vec![100_000; 4], vec![150_000; 5]].concat();
    assert_eq!(trend(&long, 150_000).as_deref(), Some("test-pg up 50% over the last 10 runs"));
}

#[test]
fn the_log_is_that_of_whatever_failed() {
    let ending = |task: TaskRecord| {
        let events = run_of(vec![(276_600, Event::TaskFinished(task)), (277_000, over(Word::Failed, 113_000, 1))]);
        field(&written(plain(), scene(), events), "log")
    };
    let failed = |cause| Verdict::Failed(cause);
    let exit = || Cause::Exit(ExitStatus::Code(1));
    let own = ending(record("test-pg", failed(exit()), 235_300, 41_300));
    assert_eq!(own.as_deref(), Some("target/xtask-runs/r-20261130-140815-51d0aa10/test-pg.log"));
    let service = Cause::Service { why: "no port".to_owned(), log: "target/postgres.log".to_owned() };
    assert_eq!(
        ending(TaskRecord::never_started(name("test-pg"), failed(service))).as_deref(),
        Some("target/postgres.log")
    );
    let spawn = Cause::Spawn("no such file".to_owned());
    assert_eq!(ending(TaskRecord::never_started(name("test-pg"), failed(spawn))), None, "it has none");
}

#[test]
fn who_stopped_the_run_is_said_where_it_is_known() {
    let ended = |style: Style, outer: Option<u64>, signal: Stop| {
        let events = run_of(vec![
            (364_000, Event::StopAsked { signal, again: false }),
            (364_300, finished("test-pg", Verdict::Cancelled(signal), 235_300, 129_000)),
            (364_500, over(Word::Cancelled, 200_500, 130)),
        ]);
        let text = written(style, Scene { outer: outer.map(ms), ..scene() }, events);
        let line = text
            .lines()
            .rfind(|line| line.contains("CANCELLED") && line.contains("2 passed"))
            .expect("an ending")
            .to_owned();
        line.split_once("CANCELLED").expect("a verdict").1.trim().to_owned()
    };
    assert!(ended(terminal(), None, Stop::Int).starts_with("by SIGINT from the terminal: 2 passed"));
    assert!(ended(terminal(), None, Stop::Term).starts_with("by SIGTERM: 2 passed"));
    assert!(ended(plain(), None, Stop::Int).starts_with("by SIGINT: 2 passed"));
    // Within a second of the caller's own limit, 364 s after the program's first line.
    let short = "by SIGINT; the outer limit fired first";
    assert!(ended(plain(), Some(365_000), Stop::Int).starts_with(short));
    assert!(ended(plain(), Some(365_001), Stop::Int).starts_with("by SIGINT: "));
}

#[test]
fn times_stand_beside_the_limits_that_count() {
    let mut events = crate::report_story::late();
    let outer = || Scene { outer: Some(ms(3_720_000)), ..scene() };
    // Won after 164 s, and ran for 372.
    let spare = Some("the caller's own limit is 1h02m; 53m04s to spare".to_owned());
    assert_eq!(field(&written(plain(), outer(), events.clone()), "outer"), spare);
    assert_eq!(field(&written(plain(), outer(), passed()), "outer"), None);
    // Trouble is no change of the tree.
    events.pop();
    events.push((536_000, Event::Trouble { text: "the machine slept".to_owned() }));
    events.push((536_000, over(Word::NoVerdict, 372_000, 7)));
    let text = written(plain(), scene(), events);
    assert!(text.contains("the machine slept") && !text.contains("the tree changed"), "{text}");
    // Who never waited has no budget to speak of, unless that is why nothing was run.
    let at_once = |verdict| written(plain(), scene(), vec![(10, over(verdict, 0, 2))]);
    assert_eq!(field(&at_once(Word::NotRun), "queue").as_deref(), Some("budget 32m"));
    assert_eq!(field(&at_once(Word::Cancelled), "queue"), None);
    let part = |suite_tasks| field_of_partial(Scene { suite_tasks, partial: suite_tasks > 4, ..scene() });
    assert!(part(4).starts_with("4 tasks at ") && part(5).starts_with("4 of 5 tasks (partial) at "), "{}", part(5));
}

fn field_of_partial(scene: Scene) -> String {
    let text = written(plain(), scene, passed());
    let line = text.lines().find(|line| line.contains("PASSED  ")).expect("an ending");
    line.split_once("PASSED").expect("a verdict").1.trim().to_owned()
}

#[test]
fn an_annotation_is_of_a_file_of_the_repository_or_of_none() {
    let annotation = |tail: &[&str]| {
        let mut bad = record("test-pg", Verdict::Failed(Cause::Exit(ExitStatus::Code(1))), 235_300, 41_300);
        bad.tail = tail.iter().map(|&line| line.to_owned()).collect();
        let style = Style { surface: Surface::GitHub { fence: "s".to_owned() }, colour: false, log_colour: false };
        let text = written(
            style,
            scene(),
            run_of(vec![(276_600, Event::TaskFinished(bad)), (277_000, over(Word::Failed, 113_000, 1))]),
        );
        let line = text.lines().find(|line| line.starts_with("::error title=test-pg failed")).expect("one").to_owned();
        line.trim_start_matches("::error title=test-pg failed").to_owned()
    };
    let at = |line: &str| annotation(&[line]).split("::").next().unwrap_or_default().to_owned();
    for good in ["src/a.rs:12:5: wrong", "  src/a.rs:12: wrong", "src/a.rs:12"] {
        assert_eq!(at(good), ",file=src/a.rs,line=12", "{good}");
    }
    for bad in [
        "/src/a.rs:12: x",
        "../a.rs:12: x",
        "src/../a.rs:12: x",
        "src//a.rs:12: x",
        "target/debug/a.rs:12: x",
        "Makefile:12: x",
        "a b.rs:12: x",
        "a.rs:0: x",
        "a.rs: x",
        "http://x.org:80",
    ] {
        assert_eq!(at(bad), "", "{bad}");
    }
    assert!(
        annotation(&["src/a.rs:12:5: wrong: x"]).contains("::wrong: x (exit code 1"),
        "{}",
        annotation(&["src/a.rs:12:5: wrong: x"])
    );
    let panic = ["thread 'x' panicked at src/a.rs:1:2:", "  the reason"];
    assert!(annotation(&panic).starts_with(",file=src/a.rs,line=1::") && annotation(&panic).contains("the reason ("));
    let error = ["error[E0308]: mismatched types", "  --> src/b.rs:3:4"];
    assert!(
        annotation(&error).starts_with(",file=src/b.rs,line=3::") && annotation(&error).contains("mismatched types (")
    );
}

#[test]
fn a_plan_is_checked_before_it_is_run() {
    let with = |run: &str, deadline: &str| {
        let text = format!(
            "schema = 1\n[run]\n{run}\n[task.a]\ncommand = \"x\"\ndeadline = \"{deadline}\"\ncpus = \"all\"\n\
            [task.b]\ncommand = \"x\"\ndeadline = \"{deadline}\"\nmutex = \"m\"\n[task.c]\ncommand = \"x\"\ndeadline = \"1s\"\n"
        );
        let suite = Suite::parse(&text).unwrap_or_else(|errors| panic!("{}", errors.display("suite")));
        let plan =
            Plan::new(&suite, &Selection::default(), &Machine { cpus: 2, ..Machine::default() }).expect("a plan");
        checks(&suite, &plan).into_iter().map(|check| (check.status, check.text)).collect::<Vec<_>>()
    };
    let fits = with("deadline = \"4m10s\"\nqueue = \"8m20s\"\nstop-grace = \"4s\"", "2m");
    assert_eq!(fits[0], (Status::Ok, "every task at its whole deadline, scheduled as above: 4m of 4m".to_owned()));
    assert_eq!(fits[1].0, Status::Ok);
    assert_eq!((fits[2].0, fits[2].1.contains("covers 2 runs ahead")), (Status::Ok, true), "{}", fits[2].1);
    let short = with("deadline = \"4m10s\"\nqueue = \"4m09s\"\nstop-grace = \"7s\"", "2m");
    assert!(short[1].0 == Status::Warn && short[1].1.contains("does not fit"), "{}", short[1].1);
    assert!(short[2].0 == Status::Warn && short[2].1.contains("covers 0 runs ahead"), "{}", short[2].1);
}

#[test]
fn a_plan_is_shown_with_what_each_task_has_to_itself() {
    let text = "schema = 1\n[run]\ndeadline = \"10m\"\n[defaults]\ndeadline = \"1m\"\n[service.postgres]\n\
        [task.a]\ncommand = \"x\"\ncpus = \"all\"\n[task.b]\ncommand = \"x\"\nmutex = \"m\"\n\
        [task.c]\ncommand = \"x\"\nneeds = [\"b\"]\nservices = [\"postgres\"]\n";
    let suite = Suite::parse(text).unwrap_or_else(|errors| panic!("{}", errors.display("suite")));
    let show = |only: &[&str], known: bool| {
        let selection = Selection { only: only.iter().map(|only| name(only)).collect(), profile: None };
        let usual = ["a", "b", "c"].iter().filter(|_| known).map(|task| (name(task), ms(1_500))).collect();
        let plan = Plan::new(&suite, &selection, &Machine { cpus: 2, usual }).expect("a plan");
        let view = View { path: "ci/suite.toml", sha256: "0123456789", suite: &suite, plan: &plan, checks: &[] };
        (screen(&view), json(&view))
    };
    let row = |text: &str, task: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{task} "))).expect("a row");
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    let (all, lines) = show(&[], true);
    assert!(all.starts_with("suite  ci/suite.toml  sha256 01234567  3 tasks, 2 cpu slots, 1 service\n"), "{all}");
    assert_eq!(row(&all, "a"), "a all 1m 1.5s - (exclusive)");
    assert_eq!(row(&all, "b"), "b 1 1m 1.5s - m");
    assert_eq!(row(&all, "c"), "c 1 1m 1.5s b + postgres");
    // a alone, then b before c.
    assert_eq!(row(&all, "usual"), "usual 4.5s with every task as long as it usually is");
    let head: serde_json::Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&head["event"], &head["usual_ms"], &head["partial"]), (&"plan".into(), &4_500.into(), &false.into()));
    let (one, _) = show(&["a"], false);
    assert!(one.contains("  1 task of 3, 2 cpu slots") && !one.contains("\n  usual "), "{one}");
    assert_eq!(row(&one, "a"), "a all 1m - -", "nobody is there to be kept out");
}

#[test]
fn what_a_late_task_was_doing_is_shown_of_twenty_processes() {
    let shown = |processes: usize| {
        let stopping = Event::TaskStopping {
            task: name("test-pg"),
            why: "passed its deadline".to_owned(),
            late: Some(Limit::Task),
            silent: None,
            signal: "SIGTERM".to_owned(),
            took: ms(100_000),
            doing: (1..=processes).map(|n| format!("worker-{n}-of-it")).collect(),
        };
        let late = Event::TaskFinished(record("test-pg", Verdict::Late(Limit::Task), 235_300, 100_000));
        let events = run_of(vec![(335_300, stopping), (335_400, late), (336_000, over(Word::Late, 172_000, 3))]);
        let text = written(plain(), scene(), events);
        assert!(text.contains(&format!("stopping {processes} processes")), "{text}");
        let more = text.lines().find(|line| line.trim().starts_with("and ")).map(|line| line.trim().to_owned());
        (text.matches("-of-it").count(), more)
    };
    assert_eq!(shown(20), (20, None));
    assert_eq!(shown(21), (20, Some("and 1 more".to_owned())));
    assert_eq!(shown(3001), (20, Some("and 2981 more".to_owned())));
}
