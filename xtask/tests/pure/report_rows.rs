//! The rows at the bottom of a terminal, as a terminal shows them, and heartbeats where there is none.

use xtask::event::{Event, Stamped};
use xtask::name::{RunId, TaskName};
use xtask::report::{FRAME, HEARTBEAT, Row, Screen, Size};
use xtask::verdict::Verdict;

use crate::report_story::{
    SIZE, at, begun, check, failed, finished, ms, name, passed, plain, scene, started, terminal, text, waited,
};
use crate::report_terminal::Terminal;

/// A screen and the terminal that shows it.
struct Show {
    screen: Screen,
    terminal: Terminal,
    size: Size,
}

impl Show {
    fn new(columns: usize, lines: usize) -> Self {
        let size = Size { columns, rows: lines };
        Self { screen: Screen::new(terminal(), scene()), terminal: Terminal::new(columns, lines), size }
    }

    fn on(&mut self, events: impl IntoIterator<Item = (u64, Event)>) {
        for (when, event) in events {
            self.terminal.write(&text(self.screen.on(&Stamped { at: at(when), event }, self.size)));
        }
    }

    fn tick(&mut self, now: u64, log: &str) {
        let text = self.screen.tick(at(now), self.size, &mut |_| log.as_bytes().to_vec());
        self.terminal.write(&text);
    }
}

/// fmt and typecheck run since 164.2 s.
fn two_run() -> Vec<(u64, Event)> {
    begun().into_iter().take(5).collect()
}

#[test]
fn rows_fit_every_size() {
    let sizes = [(80, 24), (40, 10), (200, 50), (80, 4), (80, 3), (80, 2), (33, 8), (20, 3), (10, 6), (5, 2), (1, 1)];
    for (columns, lines) in sizes {
        let mut show = Show::new(columns, lines);
        show.on(two_run());
        show.tick(180_000, "  Compiling orders-core v0.9\n");
        check(&format!("rows.{columns}x{lines}"), &show.terminal.text());
        show.tick(364_500, "x\n\u{1b}[2K  \u{e9}\u{4e2d} \tone \r\n\n");
        check(&format!("rows.{columns}x{lines}.slow"), &show.terminal.text());
    }
}

#[test]
fn lines_scroll_above_the_rows() {
    let mut show = Show::new(80, 24);
    show.on(two_run());
    show.tick(165_000, "");
    show.on([(167_100, finished("fmt", Verdict::Passed, 164_200, 2900))]);
    show.tick(168_000, "    Blocking waiting for file lock on build directory\n");
    check("rows.scrolled", &show.terminal.text());
    show.on(failed().into_iter().skip(6));
    check("rows.over", &show.terminal.text());
}

#[test]
fn a_resized_terminal_keeps_no_remains() {
    let long = "a line that is long enough to be cut off at the edge of what there is of the terminal\n";
    let mut show = Show::new(100, 30);
    show.on(two_run());
    let mut now = 165_000;
    for (columns, lines) in [(50, 30), (120, 30), (30, 12), (31, 12), (100, 30)] {
        show.tick(now, long);
        show.terminal.resize(columns, lines);
        // The terminal has wrapped its lines; the program is told later, and draws a frame for the old size meanwhile.
        show.tick(now + 200, long);
        show.size = Size { columns, rows: lines };
        show.tick(now + 400, long);
        now += 600;
        let mut fresh = Show::new(columns, lines);
        fresh.on(two_run());
        fresh.tick(now - 200, long);
        assert_eq!(show.terminal.text(), fresh.terminal.text(), "{columns}x{lines}");
    }
}

#[test]
fn what_is_odd_about_the_holder_stands_below_it() {
    let mut show = Show::new(120, 24);
    let mut first = waited().swap_remove(0);
    if let Event::Queued { note, .. } = &mut first.1 {
        *note = Some("it holds another folder, /srv/web".to_owned());
    }
    show.on([first]);
    show.tick(12_000, "");
    let text = show.terminal.text();
    assert!(text.contains("note      it holds another folder, /srv/web"), "{text}");
}

#[test]
fn waiting_is_one_block() {
    let mut show = Show::new(80, 24);
    let events = waited();
    show.on(events[..2].iter().cloned());
    show.tick(72_000, "");
    check("rows.waiting", &show.terminal.text());
    let mut narrow = Show::new(40, 12);
    narrow.on(events[..2].iter().cloned());
    narrow.tick(72_000, "");
    check("rows.waiting.narrow", &narrow.terminal.text());
    let silent = match &events[2] {
        (when, Event::Queued { scope, port, waited, budget, .. }) => {
            let text = vec!["workstation lock 127.0.0.1:28599 is taken and nobody answers".to_owned()];
            (
                *when,
                Event::Queued {
                    scope: scope.clone(),
                    port: *port,
                    holder: None,
                    note: None,
                    text,
                    waited: *waited,
                    budget: *budget,
                },
            )
        }
        other => other.clone(),
    };
    show.on([silent]);
    check("rows.waiting.silent", &show.terminal.text());
    show.on(events[2..4].iter().cloned());
    check("rows.won", &show.terminal.text());
}

#[test]
fn more_tasks_than_rows() {
    let mut scene = scene();
    let row = scene.tasks[0].clone();
    let many = (0..12).map(|i| xtask::report::Row { name: name(&format!("task-{i}")), ..row.clone() });
    scene.tasks.extend(many);
    let mut screen = Screen::new(terminal(), scene);
    let mut terminal = Terminal::new(80, 24);
    let starts = (0..9).map(|i| match started("fmt") {
        Event::TaskStarted { cpus, deadline, log, .. } => {
            (165_000, Event::TaskStarted { task: name(&format!("task-{i}")), cpus, deadline, log })
        }
        other => (0, other),
    });
    for (when, event) in begun().into_iter().take(3).chain(starts) {
        terminal.write(&text(screen.on(&Stamped { at: at(when), event }, SIZE)));
    }
    terminal.write(&screen.tick(at(166_000), SIZE, &mut |_| Vec::new()));
    check("rows.many", &terminal.text());
}

/// Whatever names and widths there are: a name, the time and the limit of what runs can be read.
#[test]
fn a_long_name_leaves_room_for_the_limit() {
    let long = "integration-tests-of-everything-there-is";
    let mut scene = scene();
    let row = xtask::report::Row { name: name(long), ..scene.tasks[1].clone() };
    scene.tasks.push(row);
    for columns in [100, 80, 64, 40, 33, 32, 24, 20] {
        let size = Size { columns, rows: 12 };
        let mut screen = Screen::new(terminal(), scene.clone());
        let mut shown = Terminal::new(columns, 12);
        let start = match started("typecheck") {
            Event::TaskStarted { cpus, deadline, log, .. } => {
                Event::TaskStarted { task: name(long), cpus, deadline, log }
            }
            other => other,
        };
        for (when, event) in two_run().into_iter().chain([(165_000, start)]) {
            shown.write(&text(screen.on(&Stamped { at: at(when), event }, size)));
        }
        shown.write(&screen.tick(at(257_000), size, &mut |_| Vec::new()));
        let shown = shown.text();
        let row = |begin: &str| shown.lines().find(|line| line.trim_start().starts_with(begin)).unwrap_or_default();
        for (begin, times) in [("fmt", "1m32s of  30s"), ("typ", "1m32s of   4m"), ("int", "1m32s of   4m")] {
            let times =
                if columns <= 32 { times.replace("of  ", "of ").replace("of  ", "of ") } else { times.to_owned() };
            assert!(row(begin).contains(&times), "{columns} columns, {times}:\n{shown}");
        }
        assert!(row("int").contains("..."), "{columns} columns:\n{shown}");
    }
}

#[test]
fn frames_and_heartbeats_come_when_they_are_due() {
    for (style, every) in [(terminal(), FRAME), (plain(), HEARTBEAT)] {
        let mut screen = Screen::new(style, scene());
        assert_eq!(screen.due(), None, "nothing has happened yet");
        for (when, event) in two_run() {
            screen.on(&Stamped { at: at(when), event }, SIZE);
        }
        let due = at(164_000) + every;
        assert_eq!(screen.due(), Some(due));
        let early = at(164_000) + (every - ms(1));
        assert_eq!(screen.tick(early, SIZE, &mut |_| Vec::new()), "");
        assert_ne!(screen.tick(due, SIZE, &mut |_| Vec::new()), "");
        assert_eq!(screen.due(), Some(due + every));
        for (when, event) in passed().into_iter().skip(5) {
            screen.on(&Stamped { at: at(when), event }, SIZE);
        }
        assert_eq!(screen.due(), None, "the run is over");
    }
}

#[test]
fn a_heartbeat_names_what_runs() {
    let mut screen = Screen::new(plain(), scene());
    for (when, event) in two_run() {
        screen.on(&Stamped { at: at(when), event }, SIZE);
    }
    let mut beat = |now: u64| screen.tick(at(now), SIZE, &mut |_| panic!("no log is read without a terminal"));
    check("heartbeat", &(beat(194_500) + &beat(194_600) + &beat(224_500) + &beat(370_000)));
}

#[test]
fn nobody_is_told_what_runs_before_the_locks_are_won() {
    let mut screen = Screen::new(plain(), scene());
    let (when, event) = waited().swap_remove(0);
    screen.on(&Stamped { at: at(when), event }, SIZE);
    let due = screen.due().expect("a heartbeat is due");
    assert_eq!(screen.tick(due, SIZE, &mut |_| Vec::new()), "");
}

#[test]
fn slow_is_what_has_used_four_fifths_of_its_deadline() {
    for (now, slow) in [(188_199, false), (188_200, true)] {
        let mut show = Show::new(80, 24);
        show.on(two_run());
        show.tick(now, "");
        let text = show.terminal.text();
        let fmt = text.lines().find(|line| line.trim_start().starts_with("fmt")).expect("its row");
        assert_eq!(fmt.contains("SLOW"), slow, "{text}");
    }
}

/// Where there is room, the times stay where they are whoever runs; where there is little, a name takes what it needs.
#[test]
fn times_stand_behind_the_longest_name_of_all_where_there_is_room() {
    for (columns, column) in [(40, 7), (64, 7), (65, 13), (80, 13)] {
        let mut show = Show::new(columns, 24);
        show.on(two_run().into_iter().take(4));
        show.tick(165_000, "");
        let text = show.terminal.text();
        let fmt = text.lines().find(|line| line.starts_with("   fmt ")).expect("its row");
        assert_eq!(fmt.find("    0s of  30s"), Some(column), "{columns} columns:\n{text}");
    }
}

#[test]
fn what_waits_says_for_what() {
    let mut scene = scene();
    for task in [1, 2] {
        scene.tasks[task].mutex = Some(name("target"));
        scene.tasks[task].needs.clear();
    }
    scene.tasks[3].mutex = Some(name("web"));
    scene.tasks[3].needs.clear();
    let mut screen = Screen::new(terminal(), scene);
    for (when, event) in two_run() {
        screen.on(&Stamped { at: at(when), event }, SIZE);
    }
    let last = screen.tick(at(165_000), SIZE, &mut |_| Vec::new());
    assert!(last.contains("waiting  smoke 8 cpu (slots); test-pg (alone with typecheck)"), "{last:?}");
}

#[test]
fn a_screen_goes_on_where_another_process_has_shown_the_begin() {
    let mut other = Screen::new(terminal(), scene());
    two_run().into_iter().for_each(|(when, event)| other.learn(&Stamped { at: at(when), event }));
    assert_eq!(other.due(), None, "nothing is drawn of what is shown elsewhere");
    let fmt = finished("fmt", Verdict::Passed, 164_200, 2900);
    let shown = text(other.on(&Stamped { at: at(167_100), event: fmt }, SIZE));
    assert!(shown.contains("1/4 done") && shown.contains("typecheck"), "{shown:?}");
    // It takes the other's rows away, where there are any.
    let takes_away = |style| {
        let screen = Screen::new(style, scene());
        (screen.has_rows(), screen.erase_others())
    };
    assert_eq!(takes_away(terminal()), (true, "\r\u{1b}[J".to_owned()));
    assert_eq!(takes_away(plain()), (false, String::new()));
}

/// What waits is looked through in every frame and at every event: that must not take the time of the run. Three hundred
/// frames take a tenth of a second of CPU, which no neighbour makes longer; where each task is looked up among all for
/// each, they take twenty.
#[test]
fn a_thousand_tasks_that_wait_cost_little() {
    let mut scene = scene();
    let tasks: Vec<_> = (0..1000).map(|number| name(&format!("t{number}"))).collect();
    let row = |task: &TaskName| Row { name: task.clone(), needs: vec![tasks[0].clone()], ..scene.tasks[0].clone() };
    scene.tasks = tasks.iter().map(row).collect();
    let mut screen = Screen::new(terminal(), scene);
    let (run, log) = (RunId::new(0, 1), "target/xtask-runs/r/t0.log".to_owned());
    let events = [
        Event::RunStarted { run, tasks: tasks.clone(), partial: false, slots: 1, deadline: ms(1_000) },
        Event::TaskStarted { task: tasks[0].clone(), cpus: vec![0], deadline: ms(1_000), log },
    ];
    events.into_iter().for_each(|event| drop(screen.on(&Stamped { at: at(0), event }, SIZE)));
    let used = || {
        let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock");
        std::time::Duration::from(time)
    };
    let begun = used();
    for frame in 1..=300 {
        let text = screen.tick(at(frame * 1_000), SIZE, &mut |_| Vec::new());
        assert!(text.contains("t1 (t0); t2 (t0)"), "{text:?}");
    }
    let took = used() - begun;
    assert!(took.as_secs() < 4, "{took:?}");
}
