//! As much of a terminal as the screen needs, so that tests see what a person would see. It panics at any control
//! sequence that the screen is not meant to use.

/// One line, and whether the next one goes on with it. Writing over a wrapped line leaves it wrapped, as in tmux.
#[derive(Default)]
struct Line {
    cells: Vec<char>,
    wrapped: bool,
}

pub struct Terminal {
    columns: usize,
    height: usize,
    lines: Vec<Line>,
    row: usize,
    column: usize,
    clips: bool,
}

impl Terminal {
    pub fn new(columns: usize, height: usize) -> Self {
        Self { columns, height, lines: vec![Line::default()], row: 0, column: 0, clips: false }
    }

    pub fn write(&mut self, text: &str) {
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '\n' => self.feed(),
                '\r' => self.column = 0,
                '\u{1b}' => {
                    assert_eq!(chars.next(), Some('['), "only CSI sequences");
                    let mut number = String::new();
                    let last = chars.by_ref().find(|&c| {
                        let more = c.is_ascii_digit() || c == ';' || c == '?';
                        if more {
                            number.push(c);
                        }
                        !more
                    });
                    self.sequence(&number, last.expect("a final byte"));
                }
                c => {
                    assert!(!c.is_control(), "{c:?} was written");
                    self.put(c);
                }
            }
        }
    }

    fn feed(&mut self) {
        self.row += 1;
        self.column = 0;
        if self.row == self.lines.len() {
            self.lines.push(Line::default());
        }
    }

    fn put(&mut self, c: char) {
        // Wide characters take two columns; those of the tests are told by their block.
        let cells = if c >= '\u{1100}' { vec![c, '\0'] } else { vec![c] };
        if self.column + cells.len() > self.columns && self.clips {
            self.column = self.columns.saturating_sub(cells.len());
        } else if self.column + cells.len() > self.columns {
            self.lines[self.row].wrapped = true;
            self.feed();
        }
        let line = &mut self.lines[self.row].cells;
        line.resize(line.len().max(self.column + cells.len()), ' ');
        line[self.column..self.column + cells.len()].copy_from_slice(&cells);
        self.column += cells.len();
    }

    fn sequence(&mut self, parameter: &str, last: char) {
        let number: usize = parameter.parse().unwrap_or(0);
        match last {
            'l' | 'h' if parameter == "?7" => self.clips = last == 'l',
            'A' => self.row = self.row.saturating_sub(number).max(self.lines.len().saturating_sub(self.height)),
            'K' => self.lines[self.row].cells.truncate(self.column),
            'J' => {
                self.lines[self.row].cells.truncate(self.column);
                self.lines[self.row].wrapped &= self.column > 0;
                self.lines.truncate(self.row + 1);
            }
            'm' => {}
            other => panic!("the sequence {other:?} was written"),
        }
    }

    /// A new size, as terminals do it that wrap their lines anew: the cursor, at the beginning of a line, goes along.
    pub fn resize(&mut self, columns: usize, height: usize) {
        assert_eq!(self.column, 0, "between two frames the cursor is at the beginning of a row");
        let (lines, cursor) = (std::mem::replace(&mut self.lines, vec![Line::default()]), self.row);
        (self.columns, self.height, self.row, self.column) = (columns, height, 0, 0);
        let mut there = 0;
        for (i, line) in lines.iter().enumerate() {
            if i > 0 && !lines[i - 1].wrapped {
                self.feed();
            }
            there = if i == cursor { self.row } else { there };
            line.cells.iter().filter(|&&c| c != '\0').for_each(|&c| self.put(c));
        }
        (self.row, self.column) = (there, 0);
    }

    pub fn text(&self) -> String {
        let text = |line: &Line| line.cells.iter().filter(|&&c| c != '\0').collect::<String>() + "\n";
        self.lines.iter().map(text).collect::<String>().trim_end_matches('\n').to_owned() + "\n"
    }
}
