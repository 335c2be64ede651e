//! What the words behind `cargo bench --bench table --` ask for.

use std::path::PathBuf;

/// A part that can be asked for, alone or with its group.
#[derive(Debug, Clone, Copy)]
pub struct Name {
    pub name: &'static str,
    pub group: &'static str,
}

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Parts by their place among the names, each with a count if one was given; empty: everything that is not by name only.
    pub parts: Vec<(usize, Option<usize>)>,
    pub markdown: bool,
    /// Measure as it was built, not as the alias builds it.
    pub optimised: bool,
    /// Another program in place of the one that is built here.
    pub program: Option<PathBuf>,
    /// Only say which parts there are.
    pub help: bool,
}

/// Errors where a word is neither an option nor the name of a part or group, and where a count has nothing to count.
pub fn parse(words: impl IntoIterator<Item = String>, names: &[Name]) -> Result<Request, String> {
    let mut request = Request::default();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        match word.as_str() {
            // Cargo says so to every bench.
            "--bench" => {}
            "--markdown" => request.markdown = true,
            "--optimised" => request.optimised = true,
            "--program" => request.program = Some(words.next().ok_or("--program needs a path")?.into()),
            "--help" | "-h" | "help" => request.help = true,
            _ => {
                // A part may be called as its group is; then it alone is meant.
                let part = names.iter().position(|name| name.name == word);
                let group = (0..names.len()).filter(|&at| names[at].group == word);
                let found: Vec<usize> = part.map_or_else(|| group.collect(), |part| vec![part]);
                if found.is_empty() {
                    let all: Vec<&str> = names.iter().map(|name| name.name).collect();
                    return Err(format!("no part is called {word:?}; there are {}", all.join(", ")));
                }
                let count = words.next_if(|next| next.bytes().all(|b| b.is_ascii_digit()));
                let count =
                    count.map(|count| count.parse().map_err(|_| format!("{count} is too large"))).transpose()?;
                if count == Some(0) {
                    return Err(format!("{word} 0 measures nothing"));
                }
                if count.is_some() && part.is_none() {
                    return Err(format!("{word} is a group; a count belongs to one part"));
                }
                request.parts.extend(found.into_iter().map(|at| (at, count)));
            }
        }
    }
    Ok(request)
}
