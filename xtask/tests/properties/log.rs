//! A line of a task's log.

use xtask::clean;

/// It is shown with colours at most, and nothing else that a terminal obeys; no colour stays on behind it.
pub fn holds(bytes: &[u8]) {
    let coloured = clean::coloured(bytes);
    only_coloured(&coloured);
    let whole = clean::line(bytes, usize::MAX);
    assert!(super::plain(&whole), "{whole:?}");
    assert_eq!(clean::line(coloured.as_bytes(), usize::MAX), whole, "the colours are all that is more");
    let line = clean::line(bytes, 80);
    assert!(super::plain(&line) && line.chars().count() <= 80, "{line:?}");
}

// Colours alone begin with ESC, and the last of them is the end of colours.
fn only_coloured(shown: &str) {
    let mut on = false;
    let mut parts = shown.split('\u{1b}');
    assert!(parts.next().is_none_or(|text| !text.chars().any(char::is_control)), "{shown:?}");
    for part in parts {
        let colour = part.strip_prefix('[').and_then(|part| part.split_once('m'));
        let (colour, text) = colour.unwrap_or_else(|| panic!("no colour: {shown:?}"));
        assert!(colour.chars().all(|c| c.is_ascii_digit() || matches!(c, ';' | ':')), "{shown:?}");
        assert!(!text.chars().any(char::is_control), "{shown:?}");
        on = !matches!(colour, "" | "0");
    }
    assert!(!on, "a colour stays on: {shown:?}");
}
