//! What was measured, as rows and as curves, and both as text or as Markdown. It knows nothing of how that is done.

use std::fmt::Write as _;

/// What the numbers of a row are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Ms,
    Times,
    Percent,
    Mib,
    Count,
}

/// What so many rounds gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// Panics without any value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = values.into_iter().collect();
        all.sort_unstable_by(f64::total_cmp);
        Self { median: all[all.len() / 2], least: all[0], most: all[all.len() - 1] }
    }

    /// One value, measured once or known.
    pub fn one(value: f64) -> Self {
        Self { median: value, least: value, most: value }
    }
}

/// What stands beside a row: the floor, a peer, or another case of the same program.
#[derive(Debug, Clone)]
pub struct Line {
    pub name: String,
    /// Otherwise why there is none.
    pub spread: Result<Spread, String>,
    pub note: String,
}

impl Line {
    pub fn new(name: &str, spread: Spread) -> Self {
        Self { name: name.to_owned(), spread: Ok(spread), note: String::new() }
    }

    pub fn missing(name: &str, why: &str) -> Self {
        Self { name: name.to_owned(), spread: Err(why.to_owned()), note: String::new() }
    }

    pub fn note(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }
}

/// What a row must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Aim {
    /// The median is at most so much.
    Median(f64),
    /// Every round is at most so much.
    Every(f64),
    /// The median is at most so much more than the floor's.
    OverFloor(f64),
    /// The median is at most so many times the floor's.
    OfFloor(f64),
}

/// One thing that is measured.
#[derive(Debug, Clone)]
pub struct Row {
    pub what: String,
    pub unit: Unit,
    pub aim: Option<Aim>,
    /// Otherwise why it was not measured.
    pub ours: Result<Spread, String>,
    pub floor: Option<Line>,
    pub beside: Vec<Line>,
    pub note: String,
}

impl Row {
    pub fn new(what: &str, unit: Unit) -> Self {
        Self {
            what: what.to_owned(),
            unit,
            aim: None,
            ours: Err("not measured".to_owned()),
            floor: None,
            beside: Vec::new(),
            note: String::new(),
        }
    }

    pub fn aim(mut self, aim: Aim) -> Self {
        self.aim = Some(aim);
        self
    }

    pub fn ours(mut self, spread: Spread) -> Self {
        self.ours = Ok(spread);
        self
    }

    pub fn unmeasured(mut self, why: &str) -> Self {
        self.ours = Err(format!("not measured: {why}"));
        self
    }

    pub fn floor(mut self, line: Line) -> Self {
        self.floor = Some(line);
        self
    }

    pub fn beside(mut self, lines: impl IntoIterator<Item = Line>) -> Self {
        self.beside.extend(lines);
        self
    }

    pub fn note(mut self, note: &str) -> Self {
        note.clone_into(&mut self.note);
        self
    }

    fn floor_median(&self) -> Option<f64> {
        self.floor.as_ref().and_then(|floor| floor.spread.as_ref().ok()).map(|spread| spread.median)
    }

    /// The value as the aim counts it, and its unit; none where there is no floor to compare with.
    fn counted(&self, value: f64) -> Option<(f64, Unit)> {
        match self.aim {
            Some(Aim::OverFloor(_)) => Some((value - self.floor_median()?, self.unit)),
            Some(Aim::OfFloor(_)) => Some((value / self.floor_median()?, Unit::Times)),
            _ => Some((value, self.unit)),
        }
    }

    /// Whether the aim is reached; none without an aim or without what to judge it by.
    pub fn reached(&self) -> Option<bool> {
        let (value, _) = self.judged()?;
        match self.aim? {
            Aim::Every(most) | Aim::Median(most) | Aim::OverFloor(most) | Aim::OfFloor(most) => Some(value <= most),
        }
    }

    /// The value that the aim is about.
    fn judged(&self) -> Option<(f64, Unit)> {
        let ours = self.ours.as_ref().ok()?;
        self.counted(if matches!(self.aim, Some(Aim::Every(_))) { ours.most } else { ours.median })
    }

    fn verdict(&self) -> String {
        let verdict = match (&self.ours, self.reached()) {
            (Err(why), _) => why.clone(),
            (_, Some(true)) => "yes".to_owned(),
            (_, Some(false)) => "NO".to_owned(),
            (_, None) => String::new(),
        };
        [verdict.as_str(), &self.note].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("; ")
    }

    fn aim_text(&self) -> String {
        match self.aim {
            None => String::new(),
            Some(Aim::Median(most)) => number(most, self.unit),
            Some(Aim::Every(most)) => format!("{}, always", number(most, self.unit)),
            Some(Aim::OverFloor(most)) => format!("floor + {}", number(most, self.unit)),
            Some(Aim::OfFloor(most)) => format!("{} of floor", number(most, Unit::Times)),
        }
    }

    fn of_floor(&self, value: f64) -> String {
        match (self.floor_median(), self.aim) {
            (Some(floor), Some(Aim::OverFloor(_))) => {
                let sign = if value < floor { '-' } else { '+' };
                format!("{sign}{}", number((value - floor).abs(), self.unit))
            }
            (Some(floor), _) if floor > 0.0 => number(value / floor, Unit::Times),
            _ => String::new(),
        }
    }

    /// One line for who watches, before the table is there.
    pub fn brief(&self) -> String {
        let ours = self.judged().map_or(String::new(), |(value, unit)| format!(": {}", number(value, unit)));
        let aim = if self.aim.is_some() { format!(", aim {}", self.aim_text()) } else { String::new() };
        let verdict = self.verdict();
        format!("{}{ours}{aim}{}{verdict}", self.what, if verdict.is_empty() { "" } else { ": " })
    }

    // Ours as the aim counts it, for Markdown.
    fn ours_text(&self) -> String {
        self.ours.as_ref().map(|ours| self.ranged(*ours)).unwrap_or_default()
    }

    fn ranged(&self, spread: Spread) -> String {
        let show = |value: f64| {
            let (value, unit) = self.counted(value).unwrap_or((value, self.unit));
            let sign = if matches!(self.aim, Some(Aim::OverFloor(_))) && value >= 0.0 { "+" } else { "" };
            format!("{sign}{}", number(value, unit))
        };
        match spread.least == spread.most {
            true => show(spread.median),
            false => format!("{} ({} to {})", show(spread.median), show(spread.least), show(spread.most)),
        }
    }

    fn beside_text(&self) -> String {
        let floor = self.floor.iter().map(|line| match &line.spread {
            Ok(spread) => format!("floor ({}) {}", line.name, number(spread.median, self.unit)),
            Err(why) => format!("floor ({}): {why}", line.name),
        });
        let beside = self.beside.iter().map(|line| {
            let text = match &line.spread {
                Ok(spread) => format!("{} {}", line.name, self.ranged(*spread)),
                Err(why) => format!("{}: {why}", line.name),
            };
            if line.note.is_empty() { text } else { format!("{text} ({})", line.note) }
        });
        floor.chain(beside).collect::<Vec<_>>().join(", ")
    }

    fn cells(&self) -> Vec<[String; COLUMNS]> {
        let mut rows = vec![[
            self.what.clone(),
            self.aim_text(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
            self.verdict(),
        ]];
        if let Ok(ours) = &self.ours {
            let [median, least, most] = spread(*ours, self.unit);
            rows[0][2..6].clone_from_slice(&[median, least, most, self.of_floor(ours.median)]);
        }
        let floor = self.floor.iter().map(|line| (format!("floor: {}", line.name), line));
        for (name, line) in floor.chain(self.beside.iter().map(|line| (line.name.clone(), line))) {
            rows.push(line_cells(&name, line, self.unit, &|value| self.of_floor(value), self.ours.as_ref().ok()));
        }
        rows
    }
}

fn line_cells(
    name: &str,
    line: &Line,
    unit: Unit,
    of_floor: &dyn Fn(f64) -> String,
    ours: Option<&Spread>,
) -> [String; COLUMNS] {
    let name = format!("  {name}");
    match &line.spread {
        Err(why) => {
            let why = if line.note.is_empty() { why.clone() } else { format!("{why}; {}", line.note) };
            [name, String::new(), String::new(), String::new(), String::new(), String::new(), String::new(), why]
        }
        Ok(found) => {
            let [median, least, most] = spread(*found, unit);
            let of_ours =
                ours.filter(|ours| ours.median > 0.0).map(|ours| number(found.median / ours.median, Unit::Times));
            let of_ours = of_ours.unwrap_or_default();
            [name, String::new(), median, least, most, of_floor(found.median), of_ours, line.note.clone()]
        }
    }
}

/// How a cost grows: what it is at each size.
#[derive(Debug, Clone)]
pub struct Curve {
    pub what: String,
    /// What there is more of, one of it.
    pub of: &'static str,
    /// Rows without a name of their own, the smallest first.
    pub points: Vec<(u64, Row)>,
}

impl Curve {
    /// What one more costs since the last size that was measured: a curve that bends shows there.
    fn slope(&self, at: usize) -> String {
        let (size, row) = &self.points[at];
        let before = self.points[..at].iter().rev().find_map(|(size, row)| Some((*size, row.ours.as_ref().ok()?)));
        match (before, &row.ours) {
            (Some((less, before)), Ok(ours)) if *size > less => {
                let more = (ours.median - before.median) / (size - less) as f64;
                match row.unit {
                    Unit::Ms => format!("{:.1} us", more * 1e3),
                    unit => number(more, unit),
                }
            }
            _ => String::new(),
        }
    }

    fn cells(&self) -> Vec<[String; COLUMNS]> {
        let at = |at: usize| {
            let (size, row) = &self.points[at];
            let mut cells = row.cells();
            cells[0][0] = match at {
                0 => format!("{}: {size} {}", self.what, plural(self.of, *size)),
                _ => format!("… {size}"),
            };
            cells[0][1] = self.slope(at);
            cells
        };
        (0..self.points.len()).flat_map(at).collect()
    }
}

fn plural(one: &str, count: u64) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}

const COLUMNS: usize = 8;

/// A number with as many digits as say something.
pub fn number(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Ms if value.abs() >= 10_000.0 => format!("{:.1} s", value / 1e3),
        Unit::Ms => format!("{} ms", digits(value)),
        Unit::Times => format!("{value:.2}x"),
        Unit::Percent => format!("{} %", digits(value)),
        Unit::Mib => format!("{} MiB", digits(value)),
        Unit::Count => format!("{value:.0}"),
    }
}

fn digits(value: f64) -> String {
    let text = match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn spread(spread: Spread, unit: Unit) -> [String; 3] {
    // Of one value there is no least and no most.
    let ends = |value: f64| if spread.least == spread.most { String::new() } else { number(value, unit) };
    [number(spread.median, unit), ends(spread.least), ends(spread.most)]
}

/// Rows, then curves, in columns.
pub fn text(rows: &[Row], curves: &[Curve]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        let head = ["what", "aim, at most", "median", "least", "most", "of the floor", "of xtask", "reached"];
        text += &columns(head, rows.iter().map(Row::cells));
    }
    if !curves.is_empty() {
        let head = ["how cost grows", "one more costs", "median", "least", "most", "of the floor", "of xtask", ""];
        let gap = if text.is_empty() { "" } else { "\n" };
        text = text + gap + &columns(head, curves.iter().map(Curve::cells));
    }
    text
}

fn columns(head: [&str; COLUMNS], groups: impl Iterator<Item = Vec<[String; COLUMNS]>>) -> String {
    let mut lines = vec![head.map(str::to_owned)];
    lines.extend(groups.flatten());
    let width = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for cells in lines {
        let mut line = format!("{:<1$}", cells[0], widths[0]);
        for (cell, width) in cells[1..COLUMNS - 1].iter().zip(&widths[1..]).filter(|(_, width)| **width > 0) {
            _ = write!(line, "  {cell:>width$}");
        }
        _ = write!(line, "  {}", cells[COLUMNS - 1]);
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The same as two tables for a page.
pub fn markdown(rows: &[Row], curves: &[Curve]) -> String {
    let mut text = String::new();
    if !rows.is_empty() {
        text += "| what | aim, at most | xtask | beside it | reached |\n|---|---|---|---|---|\n";
    }
    for row in rows {
        text += &markdown_line(&[&row.what, &row.aim_text(), &row.ours_text(), &row.beside_text(), &row.verdict()]);
    }
    if !curves.is_empty() {
        let gap = if text.is_empty() { "" } else { "\n" };
        text =
            text + gap + "| how cost grows | of | xtask | beside it | one more costs |  |\n|---|---|---|---|---|---|\n";
    }
    for curve in curves {
        for (at, (size, row)) in curve.points.iter().enumerate() {
            let what = if at == 0 { curve.what.as_str() } else { "" };
            let size = format!("{size} {}", plural(curve.of, *size));
            let (ours, beside) = (row.ours_text(), row.beside_text());
            text += &markdown_line(&[what, &size, &ours, &beside, &curve.slope(at), &row.verdict()]);
        }
    }
    text
}

fn markdown_line(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}
