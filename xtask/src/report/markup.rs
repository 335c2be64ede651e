//! Text that others wrote, made safe inside HTML, SVG, XML and markdown.

/// A text as content or as the value of an attribute in quotes. What XML 1.0 cannot hold, and marks that make a line read
/// as another, become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() || crate::clean::turns_direction(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// One line of text inside markdown: nothing foreign is markup, neither of a table, nor of markdown, nor of HTML.
pub fn markdown_line(text: &str) -> String {
    text.chars().fold(String::new(), |out, c| match c {
        '|' | '`' | '<' | '>' | '*' | '_' | '[' | ']' | '\\' | '&' | '#' | '@' => out + &format!("&#{};", u32::from(c)),
        c => out + c.encode_utf8(&mut [0; 4]),
    })
}
