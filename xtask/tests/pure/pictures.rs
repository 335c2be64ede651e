//! The report, the trace and JUnit: what is drawn, and that nothing foreign gets out of its place.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use xtask::event::TaskRecord;
use xtask::name::Name;
use xtask::receipt::statement::*;
use xtask::report::timeline::Needs;
use xtask::report::{html, junit, trace};
use xtask::verdict::{ExitStatus, Verdict, Word};

use crate::receipt::good;

/// A run of four tasks on two CPUs: `fmt` and `test` passed side by side, `lint` needed `test` and failed, `smoke` did not run.
pub fn failed() -> Receipt {
    let mut receipt = good();
    let run = &mut receipt.predicate;
    let test = run.tasks[0].clone();
    let task = |name: &str, slots: &[u64], from: u64, took: u64| Task {
        name: Name::parse(name).unwrap(),
        slots: slots.to_vec(),
        started_ms: Some(5_002_100 + from),
        took_ms: took,
        ..test.clone()
    };
    let mut lint = task("lint", &[0, 1], 4_500, 1_250);
    (lint.verdict, lint.why, lint.exit) = (Word::Failed, "exit code 101".to_owned(), Some(ExitStatus::Code(101)));
    let mut smoke = task("smoke", &[], 0, 0);
    (smoke.verdict, smoke.why) = (Word::NotRun, "needs lint, which did not pass".to_owned());
    (smoke.started_ms, smoke.exit, smoke.log) = (None, None, None);
    run.tasks = vec![task("fmt", &[0], 0, 300), task("test", &[1], 0, 4_000), lint, smoke];
    run.result = Word::Failed;
    receipt
}

pub fn needs() -> Needs {
    let name = |text: &str| Name::parse(text).unwrap();
    BTreeMap::from([
        (name("fmt"), vec![]),
        (name("test"), vec![]),
        (name("lint"), vec![name("test")]),
        (name("smoke"), vec![name("lint")]),
    ])
}

/// Fails unless every element is closed in its order; gives the tags.
fn tags(markup: &str) -> Vec<String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for part in markup.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("a tag without end: {part:?}"));
        let name = tag.split([' ', '\n']).next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed in the wrong order");
        } else if !tag.ends_with('/') && !["meta", "br", "!doctype", "?xml"].contains(&name) {
            open.push(name.to_owned());
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of {tag:?}");
        all.push(tag.to_owned());
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    all
}

fn count(text: &str, what: &str) -> usize {
    text.matches(what).count()
}

#[test]
fn page_draws_the_run() {
    let page = html::page(&[failed()], Some(&needs()));
    let tags = tags(&page);
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.contains("<title>FAILED: 2 passed, 1 failed, 1 not-run at ccccccc</title>"), "{}", &page[..600]);
    assert!(page.contains("prefers-color-scheme:dark"));
    // fmt and test have one rectangle on their CPU and one in their row; lint has both CPUs in one.
    assert_eq!(count(&page, "<rect class=\"passed\""), 4);
    assert_eq!(count(&page, "<rect class=\"failed\""), 2);
    let both_lanes =
        tags.iter().filter(|tag| tag.starts_with("rect class=\"failed\"") && tag.contains("height=\"40.0\""));
    assert_eq!(both_lanes.count(), 1, "one rectangle over two lanes");
    for text in
        ["CPU 0", "CPU 1", "lint waited 500ms for slots", "lint: exit code 101, 1.2s of 1m, CPU 0 1", "8s of 18m (0%)"]
    {
        assert!(page.contains(text), "{text:?} is missing");
    }
    assert!(page.contains("not-run: needs lint, which did not pass"));
    assert!(page.contains("test 4s of 1m (6%)"), "the closest to its deadline");
}

#[test]
fn what_a_part_of_the_suite_took_is_no_run_among_runs() {
    let mut part = good();
    part.predicate.extent = Extent::Partial;
    part.predicate.selection.profile = Some(Name::parse("quick").unwrap());
    part.predicate.run_ms = 1_234;
    let page = html::page(&[good(), part.clone()], None);
    tags(&page);
    assert!(
        page.contains("<title>PASSED: ") && page.contains("</span> (partial)</td>"),
        "All runs tell which is partial"
    );
    assert!(page.contains("<title>run 8s of 18m") && !page.contains("<title>run 1.2s of 18m"), "the row of runs");
    assert!(page.contains("<title>test 7s of 1m, passed"), "its tasks are tasks like others");
    let page = html::page(&[part.clone(), good()], None);
    assert!(page.contains("<title>PASSED (partial): ") && page.contains("partial: --profile quick<"));
    assert!(html::page(&[good()], None).contains(" 5555555, whole<"));
    assert!(junit::xml(&part, &[]).contains(r#"<property name="extent" value="partial"/>"#));
    assert!(junit::xml(&good(), &[]).contains(r#"<property name="extent" value="whole"/>"#));
    assert!(trace::trace(&part).contains(r#""extent":"partial""#));
    for receipt in [part, good()] {
        assert!(html::page(std::slice::from_ref(&receipt), None).starts_with(html::BEGINNING));
        assert!(junit::xml(&receipt, &[]).starts_with(junit::BEGINNING));
        assert!(trace::trace(&receipt).starts_with(trace::BEGINNING));
    }
    assert!(junit::refused("", 0).starts_with(junit::BEGINNING));
}

#[test]
fn page_needs_nothing_beside_it() {
    let page = html::page(&[failed(), good()], Some(&needs()));
    for word in
        ["<script", "<link", "<img", "<iframe", "@import", "url(", "http:", "https:", " src=", " href=", "javascript"]
    {
        assert!(!page.contains(word), "{word:?} is in the page");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn waits_are_drawn_only_where_needs_are_known() {
    let page = html::page(&[failed()], None);
    assert!(!page.contains("class=\"wait\" x="));
    assert!(page.contains("the suite of this run is not at hand"));
    // A suite that does not know the task says nothing about it.
    let page = html::page(&[failed()], Some(&Needs::new()));
    assert!(!page.contains("class=\"wait\" x="));
}

#[test]
fn foreign_text_stays_text() {
    let evil = "</title><script>alert(1)</script> \" ' & \u{202e}gnirts \u{1b}[31m \u{0} ]]>";
    let mut receipt = failed();
    let run = &mut receipt.predicate;
    run.trouble = vec![evil.to_owned()];
    run.suite.path = evil.to_owned();
    run.toolchain = BTreeMap::from([(evil.to_owned(), evil.to_owned())]);
    (run.tree.changed, run.tree.changed_files) = (Answer::Yes, vec![evil.to_owned()]);
    (run.tasks[2].why, run.tasks[3].why) = (evil.to_owned(), evil.to_owned());
    (run.tasks[2].leftovers, run.tasks[2].signals) = (vec![evil.to_owned()], vec![evil.to_owned()]);
    run.tasks[2].log = Some(evil.to_owned());
    run.result = Word::NoVerdict;
    receipt.subject.commit = Some(evil.to_owned());
    let mut record = TaskRecord::never_started(receipt.predicate.tasks[2].name.clone(), Verdict::Passed);
    record.tail = vec![evil.to_owned()];
    for text in [html::page(&[receipt.clone(), good()], Some(&needs())), junit::xml(&receipt, &[record])] {
        tags(&text);
        assert!(!text.contains("<script"), "markup");
        assert!(text.contains(
            "&lt;script&gt;alert(1)&lt;/script&gt; &quot; &#39; &amp; \u{fffd}gnirts \u{fffd}[31m \u{fffd} ]]&gt;"
        ));
        assert!(!text.contains(['\u{202e}', '\u{1b}', '\u{0}']), "characters");
    }
    let trace: Value = serde_json::from_str(&trace::trace(&receipt)).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().iter().any(|event| event["args"]["why"] == evil));
}

#[test]
fn many_runs_show_a_slowdown_before_it_is_a_failure() {
    let page_of = |new, old| {
        let run = |age| {
            let mut receipt = good();
            receipt.predicate.tasks[0].took_ms = if age < 10 { new } else { old };
            receipt
        };
        html::page(&(0..200_u64).map(run).collect::<Vec<_>>(), None)
    };
    let page = page_of(15_000, 10_000);
    tags(&page);
    assert!(page.contains("Shares of deadlines over 200 runs"));
    assert_eq!(count(&page, "<circle"), 600, "queue, run and task of each");
    assert!(page.contains("up 50%, last 10 of 200"), "the slowdown");
    assert!(page.contains("25% of 1m"), "its share now");
    assert_eq!(count(&page, "steady, last 10 of 200"), 1, "the run itself; a queue has no trend");
    assert_eq!(count(&page_of(15, 10), "steady, last 10 of 200"), 2, "half of nothing more is nothing");
    // What is newest stands right.
    let last = page.split("<circle").last().unwrap();
    assert!(last.contains("cx=\"824.0\"") && last.contains("test 15s of 1m"), "{last}");
}

#[test]
fn one_receipt_has_no_history_yet() {
    let page = html::page(&[good()], None);
    assert!(page.contains("From the second receipt on"));
    assert!(!page.contains("<circle"));
}

#[test]
fn task_that_is_gone_keeps_its_past() {
    let mut newest = failed();
    newest.predicate.tasks.retain(|task| task.name.as_str() != "fmt");
    let page = html::page(&[newest, failed()], None);
    let fmt = page.find("fmt 300ms of 1m").expect("its dot");
    assert!(page[..fmt].contains("lint 1.2s of 1m"), "after those of the newest run");
}

#[test]
fn runs_that_never_ran_can_be_drawn() {
    let mut receipt = failed();
    let run = &mut receipt.predicate;
    (run.clocks.won, run.clocks.started, run.run_ms) = (None, None, 0);
    run.trouble = vec!["the workstation lock did not come free within 38m".to_owned()];
    run.result = Word::NotRun;
    for task in &mut run.tasks {
        (task.verdict, task.started_ms, task.took_ms) = (Word::NotRun, None, 0);
        task.slots.clear();
    }
    let page = html::page(&[receipt.clone(), good()], Some(&needs()));
    tags(&page);
    assert!(page.contains("NOT RUN: 4 not-run"));
    assert!(page.contains("The locks were never won"));
    assert!(page.contains("the workstation lock did not come free"));
    serde_json::from_str::<Value>(&trace::trace(&receipt)).unwrap();
    tags(&junit::xml(&receipt, &[]));
}

#[test]
fn strange_numbers_draw_something_and_never_panic() {
    for number in [0, 1, u64::MAX] {
        let mut receipt = failed();
        let run = &mut receipt.predicate;
        (run.queue_ms, run.run_ms, run.limits.deadline_ms, run.limits.queue_ms) = (number, number, number, number);
        for task in &mut run.tasks {
            (task.took_ms, task.deadline_ms, task.peak_kib, task.cpu_ms) = (number, number, number, number);
            task.started_ms = Some(number);
        }
        run.clocks.ended.monotonic_ms = number;
        let page = html::page(&[receipt.clone(), receipt.clone()], Some(&needs()));
        tags(&page);
        assert!(!page.contains("NaN") && !page.contains("inf\""), "{number}");
        serde_json::from_str::<Value>(&trace::trace(&receipt)).unwrap();
        tags(&junit::xml(&receipt, &[]));
    }
}

#[test]
fn trace_is_what_perfetto_reads() {
    let trace: Value = serde_json::from_str(&trace::trace(&failed())).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let slices: Vec<(&str, u64, u64, u64)> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let number = |key: &str| event[key].as_u64().unwrap();
            (event["name"].as_str().unwrap(), number("tid"), number("ts"), number("dur"))
        })
        .collect();
    assert_eq!(
        slices,
        [
            ("queue", 0, 0, 2_000_000),
            ("run", 0, 2_000_000, 8_000_000),
            ("before the tasks", 0, 2_000_000, 100_000),
            ("fmt", 1, 2_100_000, 300_000),
            ("test", 2, 2_100_000, 4_000_000),
            ("lint", 1, 6_600_000, 1_250_000),
            ("lint", 2, 6_600_000, 1_250_000),
        ]
    );
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["run", "CPU 0", "CPU 1"]);
    assert!(events.iter().all(|event| event["pid"] == 1));
}

#[test]
fn junit_has_a_case_for_each_task() {
    let receipt = failed();
    let lint = &receipt.predicate.tasks[2];
    let mut record = TaskRecord::never_started(lint.name.clone(), Verdict::Passed);
    (record.tail, record.took) = (vec!["assertion failed: 1 < 0".to_owned()], Duration::ZERO);
    let xml = junit::xml(&receipt, &[record]);
    tags(&xml);
    assert!(
        xml.contains(r#"<testsuites name="xtask" tests="4" failures="1" errors="0" skipped="1" time="8.000">"#),
        "{xml}"
    );
    assert!(xml.contains(r#"<testcase name="fmt" classname="ci/suite.toml" time="0.300"/>"#));
    assert!(xml.contains(r#"<failure type="failed" message="exit code 101">assertion failed: 1 &lt; 0</failure>"#));
    assert!(xml.contains(r#"<skipped message="needs lint, which did not pass"></skipped>"#));
    assert!(xml.contains(r#"<property name="run" value="r-20261130-140210-7c1e09ab"/>"#));
}

#[test]
fn junit_of_a_run_that_has_not_passed_is_never_green() {
    let errors = |xml: &str| count(xml, "<failure") + count(xml, "<error");
    assert_eq!(errors(&junit::xml(&good(), &[])), 0);
    for result in [Word::Failed, Word::Late, Word::Cancelled, Word::NotRun, Word::NoVerdict] {
        let mut receipt = good();
        receipt.predicate.result = result;
        receipt.predicate.trouble = vec!["the tree changed during the run".to_owned()];
        let xml = junit::xml(&receipt, &[]);
        assert_eq!(errors(&xml), 1, "{result}");
        assert!(xml.contains("tests=\"2\" failures=\"0\" errors=\"1\""), "{xml}");
        assert!(xml.contains("the tree changed during the run"));
    }
    for (verdict, element) in [(Word::Failed, "failure"), (Word::Late, "failure"), (Word::Cancelled, "error")] {
        let mut receipt = good();
        (receipt.predicate.result, receipt.predicate.tasks[0].verdict) = (verdict, verdict);
        let xml = junit::xml(&receipt, &[]);
        assert_eq!((errors(&xml), count(&xml, &format!("<{element} type=\"{verdict}\""))), (1, 1), "{verdict}");
    }
}

#[test]
fn a_run_without_a_verdict_has_an_error_beside_its_failures() {
    let mut receipt = failed();
    (receipt.predicate.result, receipt.predicate.trouble) = (Word::NoVerdict, vec!["the machine slept".to_owned()]);
    let xml = junit::xml(&receipt, &[]);
    assert!(xml.contains(r#"tests="5" failures="1" errors="1" skipped="1""#), "{xml}");
    assert!(xml.contains(r#"<error type="no-verdict" message="the machine slept"/>"#), "{xml}");
}

/// No escape is allowed for them: one in the name of a file, and no reader takes the whole document.
#[test]
fn what_xml_cannot_hold_is_replaced() {
    let mut receipt = failed();
    receipt.predicate.tasks[2].why = "a\u{fffe}b\u{ffff}c\u{1b}d\u{0}e\u{85}f".to_owned();
    let replaced = "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}f";
    for text in [junit::xml(&receipt, &[]), html::page(&[receipt.clone()], None)] {
        assert!(text.contains(replaced), "{text}");
        assert!(!text.contains(['\u{fffe}', '\u{ffff}']));
    }
}

#[test]
fn a_short_run_is_drawn_in_milliseconds() {
    let mut receipt = good();
    let run = &mut receipt.predicate;
    (run.queue_ms, run.run_ms) = (0, 240);
    (run.tasks[0].started_ms, run.tasks[0].took_ms) = (Some(run.clocks.won.unwrap().monotonic_ms + 20), 42);
    run.clocks.started.as_mut().unwrap().monotonic_ms = run.clocks.won.unwrap().monotonic_ms + 10;
    let page = html::page(&[receipt], None);
    let ticks: Vec<&str> = page.split("<text class=\"tick\"").skip(1).collect();
    let ticks: Vec<&str> = ticks.iter().map(|tick| tick.split(['>', '<']).nth(1).unwrap()).collect();
    assert_eq!(ticks, ["0s", "50ms", "100ms", "150ms", "200ms"]);
    assert!(page.contains("42ms of 1m") && page.contains("240ms of 18m"), "{page}");
}

#[test]
fn every_colour_of_the_run_is_in_its_legend() {
    let page = html::page(&[failed()], Some(&needs()));
    for class in ["queue", "own", "work", "passed", "failed", "wait"] {
        assert!(page.contains(&format!("<rect class=\"{class}\"")), "{class} is drawn");
        assert!(page.contains(&format!("<i class=\"{class}\"></i>")), "{class} is explained");
        assert!(page.contains(&format!("i.{class}{{background:var(--")), "{class} has its colour there");
    }
}

#[test]
fn task_on_cpus_apart_never_covers_the_one_between() {
    let mut receipt = failed();
    receipt.predicate.tasks[1].slots = vec![1, 3];
    receipt.predicate.tasks[0].slots = vec![2];
    let page = html::page(&[receipt], None);
    let tall = tags(&page)
        .iter()
        .filter(|tag| tag.starts_with("rect class=\"passed\"") && tag.contains("height=\"40.0\""))
        .count();
    assert_eq!(
        (tall, count(&page, "<rect class=\"passed\"")),
        (0, 5),
        "two of one lane each, beside that of fmt and two rows"
    );
}

/// The numbers of these attributes of an element.
fn numbers<const N: usize>(tag: &str, names: [&str; N]) -> [f64; N] {
    let one = |name: &str| tag.split_once(&format!(" {name}=\"")).unwrap().1.split_once('"').unwrap().0;
    names.map(|name| one(name).parse().unwrap())
}

#[test]
fn a_share_is_as_high_as_it_is_large_and_the_newest_stands_right() {
    let run = |took_ms| {
        let mut receipt = good();
        receipt.predicate.tasks[0].took_ms = took_ms;
        receipt
    };
    // Of a minute; newest first.
    let page = html::page(&[run(60_000), run(30_000), run(0)], None);
    let history = tags(page.split_once("class=\"history\"").unwrap().1.split_once("</svg>").unwrap().0);
    // The rows of the queue and the run come first.
    let of_task = |what: &str, rows: usize| -> Vec<String> {
        let all: Vec<String> = history.iter().filter(|tag| tag.starts_with(what)).cloned().collect();
        all[all.len() / 3 * rows..].to_vec()
    };
    let [[_, bottom], [_, due]] =
        ["line class=\"lane\"", "line class=\"due\""].map(|what| numbers(&of_task(what, 2)[0], ["x1", "y1"]));
    let dots: Vec<[f64; 2]> = of_task("circle", 2).iter().map(|tag| numbers(tag, ["cx", "cy"])).collect();
    let near = |a: f64, b: f64| (a - b).abs() <= 0.15;
    assert!(due < bottom, "the deadline is above");
    let heights = [bottom, (bottom + due) / 2.0, due];
    assert!(dots.iter().zip(heights).all(|(dot, height)| near(dot[1], height)), "{dots:?}, {heights:?}");
    assert!(dots[0][0] < dots[1][0] && near(dots[1][0] - dots[0][0], dots[2][0] - dots[1][0]), "{dots:?}");
    // The rows stand below each other inside the picture, each high enough to be read; what ran into its grace is above the
    // line of its deadline and in its own row.
    let mut over = run(90_000);
    over.predicate.queue_ms = 2 * over.predicate.limits.queue_ms;
    let page = html::page(&[over, run(0)], None);
    let (head, drawing) = page.split_once("class=\"history\"").unwrap().1.split_once('>').unwrap();
    let [high] = [head.split_once(" 0 ").unwrap().1].map(|size| size.split(' ').nth(1).unwrap().trim_end_matches('"'));
    let high: f64 = high.split('"').next().unwrap().parse().unwrap();
    let history = tags(drawing.split_once("</svg>").unwrap().0);
    let y1 = |what: &str| -> Vec<f64> {
        history.iter().filter(|tag| tag.starts_with(what)).map(|tag| numbers(tag, ["y1"])[0]).collect()
    };
    let (bottoms, dues) = (y1("line class=\"lane\""), y1("line class=\"due\""));
    let dots: Vec<f64> =
        history.iter().filter(|tag| tag.starts_with("circle")).map(|tag| numbers(tag, ["cy"])[0]).collect();
    assert_eq!((bottoms.len(), dues.len(), dots.len()), (3, 3, 6));
    for row in 0..3 {
        let above = if row == 0 { 3.0 } else { bottoms[row - 1] };
        let newest = dots[2 * row + 1];
        assert!(above < newest && dues[row] < bottoms[row] - 20.0 && bottoms[row] < high, "row {row}: {history:#?}");
        assert_eq!(newest < dues[row], row != 1, "row {row}: {history:#?}");
    }
    assert!(high < bottoms[2] + 20.0, "no more room than is needed");
    let alone = |runs: usize| {
        let page = html::page(&vec![run(1); runs], None);
        let radii = tags(&page).into_iter().filter(|tag| tag.starts_with("circle")).map(|tag| numbers(&tag, ["r"])[0]);
        radii.fold(0.0, f64::max)
    };
    assert!(alone(60) > alone(61) && near(alone(61), alone(62)), "many are small");
}

#[test]
fn what_became_faster_or_slower_by_a_tenth_is_said() {
    let trend_of = |newest_first: &[u64]| {
        let run = |&took_ms: &u64| {
            let mut receipt = good();
            (receipt.predicate.tasks[0].took_ms, receipt.predicate.tasks[0].deadline_ms) = (took_ms, 50_000);
            receipt
        };
        let page = html::page(&newest_first.iter().map(run).collect::<Vec<_>>(), None);
        let all = page.match_indices(", last ").map(|(at, _)| &page[page[..at].rfind('>').unwrap() + 1..]);
        all.map(|text| text[..text.find('<').unwrap()].to_owned()).nth(1)
    };
    let (three, half) = (|ms: u64| vec![ms; 3], |new: u64| [vec![new; 3], vec![10_000; 3]].concat());
    assert_eq!(trend_of(&half(11_000)).as_deref(), Some("up 10%, last 3 of 6"));
    assert_eq!(trend_of(&half(10_900)).as_deref(), Some("steady, last 3 of 6"));
    assert_eq!(trend_of(&half(8_900)).as_deref(), Some("down 11%, last 3 of 6"));
    assert_eq!(trend_of(&half(9_100)).as_deref(), Some("steady, last 3 of 6"));
    assert_eq!(trend_of(&[three(20_000), vec![10_000; 2]].concat()), None, "too few");
    // A hundredth of its limit of 50 s is half a second: less of it is up and down all the time.
    let small = |new: u64| [three(new), three(1_000)].concat();
    assert_eq!(trend_of(&small(1_499)).as_deref(), Some("steady, last 3 of 6"));
    assert_eq!(trend_of(&small(1_500)).as_deref(), Some("up 50%, last 3 of 6"));
}

#[test]
fn a_table_has_a_row_for_each_task_and_why_it_is_bad() {
    let mut receipt = failed();
    let lint = &mut receipt.predicate.tasks[2];
    (lint.signals, lint.leftovers) = (vec!["SIGTERM".to_owned(), "SIGKILL".to_owned()], vec!["sleep".to_owned()]);
    // What a reason names is not named again.
    let test = receipt.predicate.tasks.iter_mut().find(|task| task.name.as_str() == "test").expect("a task");
    (test.verdict, test.why) = (Word::Failed, "left processes behind: sleep 7, sh".to_owned());
    test.leftovers = vec!["sleep 7".to_owned(), "sh".to_owned()];
    let page = html::page(&[receipt], None);
    let cells = |task: &str| {
        let row = page.split("<tr>").find(|row| row.starts_with(&format!("<td>{task}</td>"))).expect(task);
        let row = row.split_once("</tr>").unwrap().0;
        row.split("<td")
            .skip(1)
            .map(|cell| cell.split_once('>').unwrap().1.trim_end_matches("</td>").to_owned())
            .collect::<Vec<_>>()
    };
    let good = "<span class=\"word\">passed</span>";
    assert_eq!(cells("fmt"), ["fmt", good, "300ms", "1m", "0%", "9s", "4 MiB", "0", ""]);
    let bad = cells("lint");
    assert_eq!(bad[1], "<span class=\"word bad\">failed</span>");
    assert_eq!(bad[8], "exit code 101; sent SIGTERM, SIGKILL; left sleep");
    assert_eq!(cells("test")[8], "left processes behind: sleep 7, sh");
    let absent = cells("smoke");
    assert_eq!((&absent[2..3], &absent[4..7]), (&["-".to_owned()][..], &["-", "-", "-"].map(str::to_owned)[..]));
}
