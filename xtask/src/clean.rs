//! Text that others wrote, made safe to show: logs, names of files, claims of a lock's holder. A terminal obeys escape
//! sequences and a CI service obeys lines, so nothing foreign reaches either without passing here.

use std::fmt::Write as _;

/// One line without its end, of any bytes, as text that moves no cursor: broken UTF-8 becomes U+FFFD, escape sequences
/// and control characters go, tabs become spaces, marks that turn the direction of writing go. Of a line that was
/// drawn over with carriage returns, what stood last remains. At most `max` characters, the last three being `...`
/// where more were there.
pub fn line(bytes: &[u8], max: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    cut(&without_controls(last_drawn(&text), false), max)
}

/// The same, whole and with its colours (ECMA-48's SGR and nothing else), which end with it.
pub fn coloured(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    without_controls(last_drawn(&text), true)
}

/// At most `max` characters of a text, the last three being `...` where more were there.
pub fn cut(text: &str, max: usize) -> String {
    if text.chars().nth(max).is_none() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(max.saturating_sub(3)).collect();
    kept + &"..."[..max.min(3)]
}

fn last_drawn(text: &str) -> &str {
    let text = text.trim_end_matches(['\r', '\n']);
    text.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or("")
}

fn without_controls(text: &str, colours: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut coloured = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\t' => out.push_str("    "),
            '\u{1b}' => {
                let sequence = skip_sequence(&mut chars);
                if colours && let Some(colour) = sequence.filter(|text| is_colour(text)) {
                    let _ = write!(out, "\u{1b}[{colour}");
                    coloured = true;
                }
            }
            '\u{9b}' => drop(skip_csi(&mut chars)),
            c if c.is_control() || turns_direction(c) => {}
            c => out.push(c),
        }
    }
    if coloured { out + "\u{1b}[0m" } else { out }
}

// The inside of `ESC [ … m`: numbers alone, for `ESC [ > … m` and others set modes of the keyboard.
fn is_colour(sequence: &str) -> bool {
    sequence.strip_suffix('m').is_some_and(|n| n.chars().all(|c| c.is_ascii_digit() || matches!(c, ';' | ':')))
}

// ECMA-48: ESC [ … final byte; ESC ] (and P, X, ^, _) … until BEL or ESC \; otherwise intermediates and one final byte.
// Gives what stands after `ESC [`, if it was that.
fn skip_sequence(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    match chars.peek() {
        Some('[') => {
            chars.next();
            return Some(skip_csi(chars));
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = chars.next() {
                if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                    break;
                }
            }
        }
        _ => {
            while chars.next_if(|c| (' '..='/').contains(c)).is_some() {}
            chars.next_if(|c| ('0'..='~').contains(c));
        }
    }
    None
}

fn skip_csi(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut skipped: String = std::iter::from_fn(|| chars.next_if(|c| (' '..='?').contains(c))).collect();
    skipped.extend(chars.next_if(|c| ('@'..='~').contains(c)));
    skipped
}

// Unicode's bidirectional controls: they can make a line read as another.
pub(crate) fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text from an unknown program, safe to show: at most so many characters, without those that control a terminal or
/// that are there to be invisible or to turn the line around.
pub fn visible(text: &str, most: usize) -> String {
    let shown = |c: &char| {
        !c.is_control()
            && !matches!(*c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}')
    };
    text.chars().filter(shown).take(most).collect()
}
