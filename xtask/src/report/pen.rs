//! How a line looks: the column of verbs, colours, rules around what is quoted.

use std::time::Duration;

use super::{Scene, Style, Surface};
use crate::name::TaskName;
use crate::time::Human;

/// What a word means, before it is a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Bad,
    Warn,
    Busy,
}

/// Width of the verb's column on a terminal, as cargo has it.
const VERB: usize = 12;
/// Width of the verb's column after the clock.
const VERB_AFTER_CLOCK: usize = 10;
/// Where names end at the latest, so that one long name does not push every time out of sight.
const NAME_MAX: usize = 24;
/// Width of a rule.
const RULE: usize = 80;

/// Writes lines in one style.
#[derive(Debug)]
pub(super) struct Pen {
    pub style: Style,
    names: usize,
}

impl Pen {
    pub fn new(style: Style, scene: &Scene) -> Self {
        let longest = scene.tasks.iter().map(|row| row.name.as_str().len()).max().unwrap_or(0);
        Self { style, names: longest.min(NAME_MAX) }
    }

    /// For lines about no task.
    pub fn plain(style: Style) -> Self {
        Self { style, names: 0 }
    }

    pub fn terminal(&self) -> bool {
        self.style.surface == Surface::Terminal
    }

    /// The first line of something: its verb, and where nothing else tells the time, the clock.
    pub fn say(&self, clock: &str, verb: &str, tone: Tone, text: &str) -> String {
        let text = self.quote(text);
        let line = if self.terminal() {
            format!("{} {text}", self.paint(tone, &format!("{verb:>VERB$}")))
        } else {
            format!("{clock}  {} {text}", self.paint(tone, &format!("{verb:<VERB_AFTER_CLOCK$}")))
        };
        line.trim_end().to_owned() + "\n"
    }

    /// A further line of the same thing, below its text.
    pub fn more(&self, text: &str) -> String {
        let indent = if self.terminal() { VERB + 1 } else { 8 + 2 + VERB_AFTER_CLOCK + 1 };
        // GitHub's runner looks for its commands after the white space.
        let text = if text.trim_start().starts_with("::") { text.replacen("::", ": :", 1) } else { text.to_owned() };
        format!("{:indent$}{}\n", "", self.quote(&text))
    }

    /// `label    value` as a further line.
    pub fn field(&self, label: &str, value: &str) -> String {
        self.more(&format!("{label:<8} {value}"))
    }

    /// A name in the names' column.
    pub fn name(&self, task: &TaskName) -> String {
        format!("{task:<width$}", width = self.names)
    }

    /// Width of the names' column.
    pub fn names(&self) -> usize {
        self.names
    }

    /// A rule with a title, or without.
    pub fn rule(&self, title: &str) -> String {
        let head = if title.is_empty() { "  ".to_owned() } else { format!("  --- {title} ") };
        format!("{head}{}\n", "-".repeat(RULE.saturating_sub(head.len()).max(3)))
    }

    /// Text with foreign parts, already clean, as it may stand here. The runner of GitHub obeys `##[` anywhere in a
    /// line, and its page renders it even between fences.
    pub fn quote(&self, text: &str) -> String {
        match self.style.surface {
            Surface::GitHub { .. } => text.replace("##[", "# #["),
            _ => text.to_owned(),
        }
    }

    /// A text in the colour of its tone, where colours may be used.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "1;32",
            Tone::Bad => "1;31",
            Tone::Warn => "1;33",
            Tone::Busy => "1;36",
        };
        if self.style.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// A length in whole seconds: what still runs has no tenths.
pub(super) fn whole(length: Duration) -> Human {
    Human(Duration::from_secs(length.as_secs()))
}
