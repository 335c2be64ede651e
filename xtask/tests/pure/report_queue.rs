//! The rows of a wait: who has the lock, until when, and all of it however narrow the terminal is.

use xtask::event::{Claim, Event, Stamped};
use xtask::report::{Screen, Size};

use crate::report_story::{BEGAN_MS, at, scene, terminal, text, waited};
use crate::report_terminal::Terminal;

/// What a terminal of so many columns shows of a wait of 12 ms, with this changed in what is said of the holder.
fn rows(columns: usize, change: impl Fn(&mut Option<Box<Claim>>, &mut Vec<String>)) -> String {
    let (when, mut event) = waited().swap_remove(0);
    if let Event::Queued { holder, text, .. } = &mut event {
        change(holder, text);
    }
    let size = Size { columns, rows: 24 };
    let (mut screen, mut shown) = (Screen::new(terminal(), scene()), Terminal::new(columns, 24));
    shown.write(&text(screen.on(&Stamped { at: at(when), event }, size)));
    let due = screen.due().expect("a frame is due");
    shown.write(&screen.tick(due, size, &mut |_| Vec::new()));
    shown.text()
}

#[test]
fn a_holder_that_may_outlast_the_budget_is_a_warning() {
    // It has waited since 14:05:31, and for 32 minutes at most.
    let ends = BEGAN_MS + 10 + 1_920_000;
    let told = |free: Option<u64>| {
        let text = rows(120, |holder, _| holder.as_mut().expect("a holder").free_at_ms = free);
        let fact = |label: &str| Some(text.lines().find_map(|line| line.trim().strip_prefix(label))?.trim().to_owned());
        (fact("warning "), fact("at latest "), fact("you "))
    };
    let late = "free at 14:37:31 at the latest, but your budget ends 14:37:31: you may be refused".to_owned();
    assert_eq!(told(Some(ends + 1)), (Some(late), None, None));
    assert_eq!(told(Some(ends)), (None, Some("free at 14:37:31; your budget ends 14:37:31".to_owned()), None));
    assert_eq!(told(None), (None, None, Some("your budget ends 14:37:31".to_owned())));
}

#[test]
fn nothing_of_it_is_lost_at_any_width() {
    let dense = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let long = "distribution-".repeat(8);
    for columns in 48..=120 {
        let text = rows(columns, |holder, _| holder.as_mut().expect("a holder").distribution = Some(long.clone()));
        let who = format!("ci, root in {long}, acme/orders at 4be1f09, run r-20261130-140210-7c1e09ab");
        assert!(dense(&text).contains(&dense(&who)), "{columns} columns:\n{text}");
        let indent = if columns <= 60 { "  held by" } else { "             held by" };
        assert!(text.lines().any(|line| line.starts_with(indent)), "{columns} columns:\n{text}");
    }
}

#[test]
fn a_row_ends_at_a_space_of_its_second_half() {
    // 38 columns beside the indent.
    for (space, first) in [(3, 38), (19, 38), (20, 20), (37, 37)] {
        let line = format!("{} {}", "x".repeat(space), "y".repeat(60));
        let text = rows(41, |holder, text| (*holder, *text) = (None, vec![line.clone()]));
        let row = text.lines().find(|line| line.starts_with("  x")).expect("its row");
        assert_eq!(row.trim().chars().count(), first, "a space after {space}:\n{text}");
    }
}
