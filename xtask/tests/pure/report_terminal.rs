//! As much of a terminal as the screen needs, so that tests see what a person would see. It panics at any control
//! sequence that the screen is not meant to use.

pub struct Terminal {
    columns: usize,
    height: usize,
    lines: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Terminal {
    pub fn new(columns: usize, height: usize) -> Self {
        Self { columns, height, lines: vec![Vec::new()], row: 0, column: 0 }
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
                        let more = c.is_ascii_digit() || c == ';';
                        if more {
                            number.push(c);
                        }
                        !more
                    });
                    self.sequence(last.expect("a final byte"), number.parse().unwrap_or(0));
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
            self.lines.push(Vec::new());
        }
    }

    fn put(&mut self, c: char) {
        // Wide characters take two columns; those of the tests are told by their block.
        let width = if c >= '\u{1100}' { 2 } else { 1 };
        if self.column + width > self.columns {
            self.feed();
        }
        let line = &mut self.lines[self.row];
        line.resize(line.len().max(self.column), ' ');
        line.truncate(line.len().max(self.column));
        if self.column < line.len() {
            line[self.column] = c
        } else {
            line.push(c)
        }
        self.column += 1;
        if width == 2 {
            line.resize(line.len().max(self.column), ' ');
            if self.column < line.len() {
                line[self.column] = '\0'
            } else {
                line.push('\0')
            }
            self.column += 1;
        }
    }

    fn sequence(&mut self, last: char, number: usize) {
        match last {
            'A' => self.row = self.row.saturating_sub(number).max(self.lines.len().saturating_sub(self.height)),
            'K' => self.lines[self.row].truncate(self.column),
            'J' => {
                self.lines[self.row].truncate(self.column);
                self.lines.truncate(self.row + 1);
            }
            'm' => {}
            other => panic!("the sequence {other:?} was written"),
        }
    }

    /// A new width, as terminals do it that wrap their lines anew.
    pub fn resize(&mut self, columns: usize, height: usize) {
        let lines = std::mem::replace(&mut self.lines, vec![Vec::new()]);
        let row = self.row;
        (self.columns, self.height, self.row, self.column) = (columns, height, 0, 0);
        for (i, line) in lines.iter().enumerate() {
            line.iter().filter(|&&c| c != '\0').for_each(|&c| self.put(c));
            if i < row {
                self.feed();
            }
        }
    }

    pub fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| line.iter().filter(|&&c| c != '\0').collect::<String>() + "\n");
        lines.collect::<String>().trim_end_matches('\n').to_owned() + "\n"
    }
}
