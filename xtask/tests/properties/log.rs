//! A line of a task's log.

use xtask::process::log::{harmless, without_colours};
use xtask::report::clean;

/// It is shown with colours and tabs, and nothing else that a terminal obeys; no colour stays on behind it.
pub fn holds(bytes: &[u8]) {
    let shown = harmless(bytes);
    // The text, a colour or a letter that began before the end of it, the mark of a cut, the end of colours.
    assert!(shown.len() <= 2_000 + 36 + 3 + 4, "{} bytes", shown.len());
    only_coloured(&shown, &['\t']);
    let plain = without_colours(&shown);
    assert!(plain.chars().all(|c| c == '\t' || !c.is_control()), "{plain:?}");
    if shown.len() < 2_000 {
        assert_eq!(harmless(shown.as_bytes()), shown, "what is harmless stays as it is");
    }
    let coloured = clean::coloured(bytes);
    only_coloured(&coloured, &[]);
    let line = clean::line(bytes, 80);
    assert!(super::plain(&line) && line.chars().count() <= 80, "{line:?}");
    assert!(super::plain(&clean::line(shown.as_bytes(), 80)));
}

// Colours alone begin with ESC, and the last of them is the end of colours.
fn only_coloured(shown: &str, allowed: &[char]) {
    let mut on = false;
    let mut parts = shown.split('\u{1b}');
    assert!(
        parts.next().is_none_or(|text| !text.chars().any(|c| c.is_control() && !allowed.contains(&c))),
        "{shown:?}"
    );
    for part in parts {
        let colour = part.strip_prefix('[').and_then(|part| part.split_once('m'));
        let (colour, text) = colour.unwrap_or_else(|| panic!("no colour: {shown:?}"));
        assert!(colour.chars().all(|c| c.is_ascii_digit() || matches!(c, ';' | ':')), "{shown:?}");
        assert!(!text.chars().any(|c| c.is_control() && !allowed.contains(&c)), "{shown:?}");
        on = !matches!(colour, "" | "0");
    }
    assert!(!on, "a colour stays on: {shown:?}");
}
