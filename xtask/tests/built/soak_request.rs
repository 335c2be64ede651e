//! What the words behind `cargo bench --bench soak --` ask for.

use std::path::PathBuf;

/// Said to whoever asks, and to whoever asks for something else.
pub const USAGE: &str = "\
usage: cargo bench --bench soak -- [runs NUMBER] [seed NUMBER] [program PATH]
    runs      how many, rounded up to as many for each of the three callers [default: 100]
    seed      what they do; the same once more for the same number [default: another each time]
    program   another xtask than the one that is built here";

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub runs: Option<u32>,
    pub seed: Option<u32>,
    pub program: Option<PathBuf>,
    /// Only say what can be asked for.
    pub help: bool,
}

/// Errors where a word is none of these, or lacks what belongs to it.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, String> {
    let mut request = Request::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut number = |least: u32| {
            let next = words.next().ok_or_else(|| format!("{word} needs a number"))?;
            let number = next.parse().ok().filter(|&number| number >= least);
            number.map(Some).ok_or_else(|| format!("{word} {next:?} is no number that can be meant"))
        };
        match word.as_str() {
            // Cargo says so to every bench.
            "--bench" => {}
            "runs" => request.runs = number(1)?,
            "seed" => request.seed = number(0)?,
            "program" => request.program = Some(words.next().ok_or("program needs a path")?.into()),
            "--help" | "-h" | "help" => request.help = true,
            _ => return Err(format!("{word:?} cannot be asked for")),
        }
    }
    Ok(request)
}
