//! The run that the tests of `report` tell about: a suite of four tasks, what may become of it, and how it is shown.

use std::time::Duration;

use xtask::event::{Claim, Event, Stamped, TaskRecord};
use xtask::name::{Name, RunId};
use xtask::report::{Piece, Row, Scene, Screen, Size, Style, Surface};
use xtask::time::{Clocks, Moment};
use xtask::verdict::{Cause, ExitStatus, Limit, Reason, Stop, Verdict, Word};

use crate::report_terminal::Terminal;

/// 14:05:31 UTC, milliseconds since 1970.
pub const BEGAN_MS: u64 = 1_796_047_531_000;

/// A terminal.
pub const SIZE: Size = Size { columns: 80, rows: 24 };

/// Milliseconds to a duration.
pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Milliseconds after the program's first line.
pub fn at(after: u64) -> Moment {
    Moment::from_nanos(1_000_000_000) + ms(after)
}

pub fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

/// A suite of four tasks, begun at 14:05:31 UTC.
pub fn scene() -> Scene {
    let row = |task: &str, deadline: u64, line: usize, slots: usize, needs: &[&str]| Row {
        name: name(task),
        deadline: ms(deadline * 1000),
        deadline_line: line,
        slots,
        needs: needs.iter().map(|n| name(n)).collect(),
        mutex: None,
        fix: (task == "fmt").then(|| "cargo fmt --all".to_owned()),
        past: Vec::new(),
    };
    let mut tasks = vec![
        row("fmt", 30, 40, 1, &[]),
        row("typecheck", 240, 45, 4, &[]),
        row("test-pg", 300, 78, 2, &["typecheck"]),
        row("smoke", 60, 90, 8, &["test-pg"]),
    ];
    tasks[2].past = [88_000, 93_000, 109_000, 91_000, 95_000].map(ms).to_vec();
    Scene {
        command: "cargo xtask verify".to_owned(),
        suite: "ci/suite.toml".to_owned(),
        requested: Clocks { monotonic: at(0), boot: at(0), wall_ms: BEGAN_MS },
        queue_budget: ms(1_920_000),
        outer: None,
        signs: false,
        deadline: ms(1_680_000),
        deadline_line: 3,
        wrap_up: ms(10_000),
        slots: 8,
        suite_tasks: 4,
        partial: false,
        past_runs: [365_000, 362_000, 371_000].map(ms).to_vec(),
        tasks,
    }
}

pub fn started(task: &str) -> Event {
    let scene = scene();
    let row = scene.tasks.iter().find(|row| row.name.as_str() == task).expect("a task of the scene");
    let log = format!("target/xtask-runs/r-20261130-140815-51d0aa10/{task}.log");
    Event::TaskStarted { task: name(task), cpus: (0..row.slots).collect(), deadline: row.deadline, log }
}

pub fn record(task: &str, verdict: Verdict, began: u64, took: u64) -> TaskRecord {
    let ran = !matches!(verdict, Verdict::NotRun(_));
    TaskRecord {
        task: name(task),
        exit: match &verdict {
            Verdict::Failed(Cause::Exit(status)) => Some(*status),
            Verdict::Passed => Some(ExitStatus::Code(0)),
            _ => None,
        },
        verdict,
        started: ran.then(|| at(began)),
        took: ms(took),
        cpus: Vec::new(),
        signals: Vec::new(),
        leftovers: Vec::new(),
        cpu_time: ms(0),
        peak_kib: 0,
        outputs: Vec::new(),
        tail: Vec::new(),
        log_lines: 0,
    }
}

pub fn finished(task: &str, verdict: Verdict, began: u64, took: u64) -> Event {
    Event::TaskFinished(record(task, verdict, began, took))
}

pub fn over(verdict: Word, run: u64, exit_code: u8) -> Event {
    Event::RunFinished {
        verdict,
        partial: false,
        cause: None,
        late: None,
        run: ms(run),
        receipt: Some("receipts/r-20261130-140815-51d0aa10.json".to_owned()),
        exit_code,
    }
}

/// Won after a wait of 2m44s, the tree clean.
pub fn begun() -> Vec<(u64, Event)> {
    vec![
        (164_000, Event::Acquired { queue: ms(164_000) }),
        (
            164_000,
            Event::RunStarted {
                run: RunId::parse("r-20261130-140815-51d0aa10").expect("a run id"),
                tasks: scene().tasks.into_iter().map(|row| row.name).collect(),
                partial: false,
                slots: 8,
                deadline: ms(1_680_000),
            },
        ),
        (164_100, Event::TreePinned { commit: Some("4be1f09aa".to_owned()), tree: "77".to_owned(), changed: 0 }),
        (164_200, started("fmt")),
        (164_200, started("typecheck")),
        (167_100, finished("fmt", Verdict::Passed, 164_200, 2900)),
        (235_200, finished("typecheck", Verdict::Passed, 164_200, 71_000)),
        (235_300, started("test-pg")),
    ]
}

pub fn plain() -> Style {
    Style { surface: Surface::Plain, colour: false, log_colour: false }
}

pub fn terminal() -> Style {
    Style { surface: Surface::Terminal, colour: false, log_colour: false }
}

/// Everything written for these events; `<log PATH>` where a log goes.
pub fn written(style: Style, scene: Scene, events: Vec<(u64, Event)>) -> String {
    let mut screen = Screen::new(style, scene);
    events.into_iter().map(|(when, event)| text(screen.on(&Stamped { at: at(when), event }, SIZE))).collect()
}

pub fn text(pieces: Vec<Piece>) -> String {
    let text = pieces.into_iter().map(|piece| match piece {
        Piece::Text(text) => text,
        Piece::Log(path) => format!("<log {path}>\n"),
    });
    text.collect()
}

/// What a terminal of 80x24 shows after these events, scrolled lines above.
pub fn shown(scene: Scene, events: Vec<(u64, Event)>) -> String {
    let mut terminal = Terminal::new(80, 24);
    terminal.write(&written(self::terminal(), scene, events));
    terminal.text()
}

/// Compares a screen with the file of that name in tests/pure/screens; with XTASK_BLESS set, writes it instead. Escapes
/// are written as `\e`, carriage returns as `\r`.
#[track_caller]
pub fn check(name: &str, got: &str) {
    let got = got.replace('\u{1b}', "\\e").replace('\r', "\\r");
    let path = format!("{}/tests/pure/screens/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("XTASK_BLESS").is_some() {
        std::fs::write(&path, &got).expect("the screen can be written");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(got == want, "--- got\n{got}--- {path}\n{want}");
}

fn with(more: Vec<(u64, Event)>) -> Vec<(u64, Event)> {
    begun().into_iter().chain(more).collect()
}

pub fn passed() -> Vec<(u64, Event)> {
    with(vec![
        (328_300, finished("test-pg", Verdict::Passed, 235_300, 93_000)),
        (328_400, started("smoke")),
        (337_400, finished("smoke", Verdict::Passed, 328_400, 9000)),
        (338_000, over(Word::Passed, 174_000, 0)),
    ])
}

pub fn failed() -> Vec<(u64, Event)> {
    let mut bad = record("test-pg", Verdict::Failed(Cause::Exit(ExitStatus::Code(100))), 235_300, 41_300);
    bad.tail = [
        "    thread 'orders::reserve_stock_twice' panicked at crates/orders-db/tests/pg.rs:214:9:",
        "    assertion `left == right` failed: stock reserved twice",
        "      left: 1",
        "     right: 2",
    ]
    .map(str::to_owned)
    .to_vec();
    bad.log_lines = 612;
    with(vec![
        (276_600, Event::TaskFinished(bad)),
        (276_600, finished("smoke", Verdict::NotRun(Reason::Needs(name("test-pg"))), 0, 0)),
        (277_000, over(Word::Failed, 113_000, 1)),
    ])
}

pub fn late() -> Vec<(u64, Event)> {
    let mut bad = record("test-pg", Verdict::Late(Limit::Task), 235_300, 300_000);
    bad.tail = vec!["        SLOW [>240.000s] orders-db::pg orders::lock_order".to_owned()];
    bad.log_lines = 588;
    with(vec![
        (535_300, stopping("test-pg", Some(Limit::Task), "SIGTERM", 300_000)),
        (535_700, Event::TaskFinished(bad)),
        (535_700, finished("smoke", Verdict::NotRun(Reason::Needs(name("test-pg"))), 0, 0)),
        (536_000, ended(Word::Late, Some(Limit::Task), 372_000, 3)),
    ])
}

fn stopping(task: &str, late: Option<Limit>, signal: &str, took: u64) -> Event {
    let doing = ["cargo-nextest 48112", "  pg-4f1c 48340  4m31s  orders::lock_order", "postgres 48101"];
    Event::TaskStopping {
        task: name(task),
        why: "passed its deadline".to_owned(),
        late,
        silent: Some(ms(269_000)),
        signal: signal.to_owned(),
        took: ms(took),
        doing: doing.map(str::to_owned).to_vec(),
    }
}

fn ended(verdict: Word, late: Option<Limit>, run: u64, exit_code: u8) -> Event {
    match over(verdict, run, exit_code) {
        Event::RunFinished { verdict, partial, cause, run, receipt, exit_code, .. } => {
            Event::RunFinished { verdict, partial, cause, late, run, receipt, exit_code }
        }
        other => other,
    }
}

pub fn run_late() -> Vec<(u64, Event)> {
    with(vec![
        (1_834_000, Event::RunLate { run: ms(1_670_000) }),
        (1_834_000, stopping("test-pg", Some(Limit::Run), "SIGTERM", 290_000)),
        (1_838_000, stopping("test-pg", Some(Limit::Run), "SIGKILL", 294_000)),
        (1_838_010, finished("test-pg", Verdict::Late(Limit::Run), 1_544_000, 294_010)),
        (1_838_010, finished("smoke", Verdict::NotRun(Reason::RunDeadline), 0, 0)),
        (1_838_900, ended(Word::Late, Some(Limit::Run), 1_674_900, 3)),
    ])
}

pub fn failed_and_late() -> Vec<(u64, Event)> {
    let mut events = late();
    let failure = finished("fmt", Verdict::Failed(Cause::Exit(ExitStatus::Code(1))), 164_200, 2900);
    events[5].1 = failure;
    events
}

pub fn between_tasks() -> Vec<(u64, Event)> {
    let mut events = passed();
    events.pop();
    events.push((1_844_000, ended(Word::Late, Some(Limit::Run), 1_680_500, 3)));
    events
}

pub fn cancelled() -> Vec<(u64, Event)> {
    with(vec![
        (364_000, Event::StopAsked { signal: Stop::Int, again: false }),
        (364_000, stopping("test-pg", None, "SIGINT", 128_700)),
        (364_300, finished("test-pg", Verdict::Cancelled(Stop::Int), 235_300, 129_000)),
        (364_300, finished("smoke", Verdict::NotRun(Reason::Cancelled(Stop::Int)), 0, 0)),
        (364_500, ended(Word::Cancelled, None, 200_500, 130)),
    ])
}

pub fn changed() -> Vec<(u64, Event)> {
    let mut events = passed();
    let end = events.pop().expect("an end");
    events.push((337_900, Event::TreeChanged { files: vec!["src/cart.rs".to_owned(), "web/app.ts".to_owned()] }));
    let trouble = ended(Word::NoVerdict, None, 174_000, 7);
    events.push((end.0, trouble));
    events
}

pub fn uncommitted() -> Vec<(u64, Event)> {
    let mut events = passed();
    events[2].1 = Event::TreePinned { commit: Some("4be1f09aa".to_owned()), tree: "77".to_owned(), changed: 4 };
    events
}

pub fn waited() -> Vec<(u64, Event)> {
    let queued = |waited: u64, done: u64| Event::Queued {
        scope: "workstation".to_owned(),
        port: 28599,
        holder: Some(Box::new(Claim {
            run: Some("r-20261130-140210-7c1e09ab".to_owned()),
            caller: Some("ci".to_owned()),
            user: Some("root".to_owned()),
            distribution: Some("Ubuntu-ci".to_owned()),
            repository: Some("acme/orders".to_owned()),
            commit: Some("4be1f09aa".to_owned()),
            since_ms: Some(BEGAN_MS - 201_000),
            free_at_ms: Some(BEGAN_MS + 1_479_000),
            done: Some(done),
            tasks: Some(13),
            waiting: Some(1),
            waiting_since_ms: Some(BEGAN_MS - 96_000),
            ..Claim::default()
        })),
        note: None,
        text: vec![
            format!(
                "workstation lock 127.0.0.1:28599 is held since 14:02:10 by one that says it is ci, root in Ubuntu-ci, \
                 acme/orders at 4be1f09, run r-20261130-140210-7c1e09ab; {done} of 13 tasks done; free at 14:30:10 at the latest"
            ),
            "1 more waits for it, the first since 14:03:55".to_owned(),
            "waited 1m of 32m, ends 14:37:31".to_owned(),
        ],
        waited: ms(waited),
        budget: ms(1_920_000),
    };
    let mut events = vec![(10, queued(0, 9)), (60_010, queued(60_000, 11)), (120_010, queued(120_000, 11))];
    events.extend(passed());
    events
}

pub fn refused() -> Vec<(u64, Event)> {
    let mut events = vec![waited().swap_remove(0)];
    events.push((1_920_000, Event::Trouble { text: "the workstation lock did not come free within 32m".to_owned() }));
    events.push((
        1_920_000,
        Event::RunFinished {
            verdict: Word::NotRun,
            partial: false,
            cause: Some("the workstation lock did not come free within 32m".to_owned()),
            late: None,
            run: ms(0),
            receipt: Some("receipts/r-20261130-140531-a991bb00.json".to_owned()),
            exit_code: 4,
        },
    ));
    events
}
