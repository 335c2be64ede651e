//! Text that others wrote stays text: in logs, names of files, claims of a lock's holder.

use xtask::clean;
use xtask::event::{Claim, Event, Stamped};
use xtask::report::{Screen, Style, Surface};
use xtask::verdict::{Cause, ExitStatus, Verdict};

use crate::report_story::{SIZE, at, begun, ms, plain, record, scene, terminal, text, waited};

const HOSTILE: &str =
    "\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}1A::error::no\n::set-env name=A::b\r\n##[error]no\t\u{202e}\u{8}\u{0}|<b>";

#[test]
fn a_line_is_one_line_of_text() {
    let cases: [(&[u8], &str); 14] = [
        (b"plain text", "plain text"),
        (b"with an end\r\n", "with an end"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07after", "after"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        (b"\x1b(Bset\x1b7\x1b8", "set"),
        (b"\x1bPdevice\x1b\\text", "text"),
        (b"never closed \x1b]0;title", "never closed "),
        (b" 10%\r 50%\r100%\r", "100%"),
        (b"a\tb", "a    b"),
        (b"broken \xff utf-8", "broken \u{fffd} utf-8"),
        (b"bell\x07 back\x08 nul\x00", "bell back nul"),
        ("right\u{202e}left\u{2066}".as_bytes(), "rightleft"),
        ("csi\u{9b}2J of one".as_bytes(), "csi of one"),
    ];
    for (bytes, want) in cases {
        assert_eq!(clean::line(bytes, 100), want, "{:?}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(clean::line(b"0123456789", 10), "0123456789");
    assert_eq!(clean::line(b"0123456789a", 10), "0123456...");
    assert_eq!(clean::line(b"0123456789a", 2), "..");
}

#[test]
fn colours_are_all_that_a_whole_log_keeps_and_they_end_with_the_line() {
    let cases: [(&[u8], &str); 7] = [
        (b"plain\n", "plain"),
        (b"\x1b[1;38:5:9mred\x1b[0m and on\n", "\x1b[1;38:5:9mred\x1b[0m and on\x1b[0m"),
        (b"\x1b[mreset", "\x1b[mreset\x1b[0m"),
        (b"\x1b[0K\x1b[2J\x1b[1Asection_start:1:x", "section_start:1:x"),
        (b"\x1b[>4;1mkeys\x1b[?25m\x1b[ m", "keys"),
        (b"\x1b[31", ""),
        (b"old\r\x1b[32mnew", "\x1b[32mnew\x1b[0m"),
    ];
    for (bytes, want) in cases {
        assert_eq!(clean::coloured(bytes), want, "{:?}", String::from_utf8_lossy(bytes));
    }
    for (log_colour, want) in [(true, "\x1b[31mred\x1b[0m\n"), (false, "red\n")] {
        let screen = Screen::new(Style { surface: Surface::GitLab, colour: false, log_colour }, scene());
        assert_eq!(screen.log_line(b"\x1b[31mred\n"), want);
    }
}

fn hostile_run() -> Vec<(u64, Event)> {
    let mut bad = record("test-pg", Verdict::Failed(Cause::Output(HOSTILE.to_owned())), 235_300, 41_300);
    bad.tail = vec![
        HOSTILE.to_owned(),
        format!("{HOSTILE}panicked at src/x.rs:3:1:::error::no"),
        HOSTILE.to_owned(),
        "x".repeat(9999),
    ];
    let mut late = record("smoke", Verdict::Failed(Cause::Exit(ExitStatus::Code(1))), 235_300, 1);
    late.tail = vec!["::warning::no".to_owned(), "::stop-commands::0".to_owned(), "::0::".to_owned()];
    let holder =
        Box::new(Claim { user: Some(HOSTILE.to_owned()), folder: Some(HOSTILE.to_owned()), ..Claim::default() });
    let mut events = vec![match waited().swap_remove(0) {
        (when, Event::Queued { scope, port, waited, budget, .. }) => (
            when,
            Event::Queued {
                scope,
                port,
                holder: Some(holder.clone()),
                note: Some(HOSTILE.to_owned()),
                text: vec![HOSTILE.to_owned(), "  ::error::no".to_owned()],
                waited,
                budget,
            },
        ),
        other => other,
    }];
    events.extend(begun());
    events.push((276_600, Event::Note { text: HOSTILE.to_owned() }));
    events.push((
        276_600,
        Event::TaskStopping {
            task: bad.task.clone(),
            why: HOSTILE.to_owned(),
            late: None,
            silent: None,
            signal: "SIGTERM".to_owned(),
            took: ms(1),
            doing: vec![HOSTILE.to_owned()],
        },
    ));
    events.push((276_600, Event::TaskFinished(bad)));
    events.push((276_600, Event::TaskFinished(late)));
    events.push((276_700, Event::Trouble { text: HOSTILE.to_owned() }));
    events.push((276_700, Event::TreeChanged { files: vec![HOSTILE.to_owned()] }));
    events.push((277_000, crate::report_story::over(xtask::verdict::Word::NoVerdict, 1000, 7)));
    events
}

/// Everything written, frames and heartbeats between the events included, and the summary of the job.
fn everything(style: Style) -> (String, String) {
    let mut screen = Screen::new(style, scene());
    let (mut out, mut summary) = (String::new(), String::new());
    for (when, event) in hostile_run() {
        let stamped = Stamped { at: at(when), event };
        out += &text(screen.on(&stamped, SIZE));
        out += &screen.tick(at(when) + xtask::report::HEARTBEAT, SIZE, &mut |_| HOSTILE.as_bytes().to_vec());
        out += &screen.log_line(HOSTILE.as_bytes());
        summary = screen.job_summary(&stamped);
    }
    (out, summary)
}

#[test]
fn no_control_character_reaches_a_file() {
    let (out, _) = everything(plain());
    let odd: Vec<char> = out.chars().filter(|c| c.is_control() && *c != '\n' || *c == '\u{202e}').collect();
    assert!(odd.is_empty(), "{odd:?} in\n{out}");
    assert!(out.lines().all(|line| line.len() < 1000), "a line is too long");
}

#[test]
fn a_terminal_gets_only_the_sequences_of_the_rows() {
    let (out, _) = everything(terminal());
    for (i, part) in out.split('\u{1b}').enumerate().skip(1) {
        let last = part.strip_prefix('[').and_then(|rest| rest.chars().find(|c| !c.is_ascii_digit()));
        let wrapping = part.starts_with("[?7l\r") || part.starts_with("[?7h");
        assert!(wrapping || matches!(last, Some('A' | 'J' | 'K')), "sequence {i}: {part:?}");
    }
    assert!(!out.contains("[2J") && !out.contains("[1A::"), "{out}");
    let odd: Vec<char> = out.chars().filter(|c| c.is_control() && !"\n\r\u{1b}".contains(*c)).collect();
    assert!(odd.is_empty(), "{odd:?}");
}

#[test]
fn github_obeys_nothing_that_others_wrote() {
    let (out, summary) =
        everything(Style { surface: Surface::GitHub { fence: "secret".to_owned() }, colour: false, log_colour: true });
    assert!(!out.contains("##["), "the old form of a command, which counts anywhere in a line:\n{out}");
    // What the runner does: obey lines that begin with `::`, but for those between two fences of the same token.
    let (mut stopped, mut obeyed, mut tokens) = (None::<&str>, Vec::new(), Vec::new());
    for line in out.lines().map(str::trim_start).filter(|line| line.starts_with("::")) {
        match stopped {
            Some(token) if line == format!("::{token}::") => stopped = None,
            Some(_) => {}
            None => match line.strip_prefix("::stop-commands::") {
                Some(token) => {
                    tokens.push(token);
                    stopped = Some(token);
                }
                None => obeyed.push(line),
            },
        }
    }
    let ours = |line: &&str| ["::group::", "::endgroup::", "::error title="].iter().any(|own| line.starts_with(own));
    assert!(obeyed.iter().all(ours), "{obeyed:#?}\n{out}");
    assert_eq!(obeyed.iter().filter(|line| line.starts_with("::error")).count(), 2, "{obeyed:#?}");
    assert!(obeyed.iter().any(|line| line.starts_with("::error title=test-pg failed,file=src/x.rs,line=3::")));
    let all = tokens.len();
    tokens.sort();
    tokens.dedup();
    assert!(tokens.len() == all && all > 3, "no token twice: {tokens:?}");
    assert!(!summary.contains("<b>"), "{summary}");
    assert!(summary.lines().filter(|l| l.starts_with('|')).all(|l| l.matches('|').count() == 7), "{summary}");
}

#[test]
fn gitlab_folds_only_what_it_is_told_to() {
    let mut events = begun();
    events.truncate(5);
    let mut screen = Screen::new(Style { surface: Surface::GitLab, colour: false, log_colour: true }, scene());
    let out: String =
        events.into_iter().map(|(when, event)| text(screen.on(&Stamped { at: at(when), event }, SIZE))).collect();
    let line = screen.log_line(b"\x1b[0Ksection_end:1:fmt\r\x1b[0Kafter\n");
    assert_eq!(line, "after\n");
    assert!(!out.contains('\u{1b}'), "nothing has ended yet");
}

#[test]
fn at_most_ten_annotations() {
    let mut scene = scene();
    let row = scene.tasks[0].clone();
    scene.tasks.extend(
        (0..30).map(|i| xtask::report::Row { name: crate::report_story::name(&format!("t{i}")), ..row.clone() }),
    );
    let mut screen = Screen::new(
        Style { surface: Surface::GitHub { fence: "s".to_owned() }, colour: false, log_colour: true },
        scene,
    );
    let bad = |i: usize| record(&format!("t{i}"), Verdict::Failed(Cause::Exit(ExitStatus::Code(1))), 1, 1);
    let mut out = String::new();
    for event in (0..30).map(|i| Event::TaskFinished(bad(i))).chain([crate::report_story::over(
        xtask::verdict::Word::Failed,
        1,
        1,
    )]) {
        out += &text(screen.on(&Stamped { at: at(1), event }, SIZE));
    }
    assert_eq!(out.matches("::error title=").count(), 10);
}
