//! The numbers to reach, as one table: ours, each peer that is installed, the floor (the least that does the same), in turns
//! on the same work; then how cost grows.
//!
//!     cargo bench                                     everything but what is by name only; a quarter of an hour
//!     cargo bench --bench table -- many dag           these parts; `lock`, `run` and `growth` are groups of them
//!     cargo bench --bench table -- kills 1000         one part with another count
//!     cargo bench --bench table -- --help             which parts there are
//!
//! Options: `--markdown`; `--optimised`: as cargo bench builds it, not as `cargo xtask` does; `--program PATH`: another one.
//! The table goes to stdout, what is said meanwhile to stderr. It fails where a part fails, not where an aim is missed.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

mod apart;
mod contender;
#[path = "../../tests/built/process/field.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "a bench uses a part of it")]
mod field;
#[path = "../../tests/built/process/fixture.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod fixture;
#[path = "../../tests/built/keyring.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod keyring;
#[path = "../../tests/built/lock_caller.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod lock_caller;
#[path = "../../tests/built/lock_storm.rs"]
mod lock_storm;
mod machine;
mod part;
mod peers;
#[path = "../../tests/built/postgres.rs"]
#[allow(dead_code, unused_imports, clippy::unwrap_used, reason = "a bench uses a part of it")]
mod postgres;
#[path = "../../tests/built/postgres_kills.rs"]
#[allow(dead_code, unused_imports, clippy::unwrap_used, reason = "a bench uses a part of it")]
mod postgres_kills;
mod program;
mod progress;
mod request;
mod table;
mod turns;
#[path = "../../tests/built/world.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod world;

use part::{Does, PARTS, Part};
use progress::Progress;
use request::{Name, Request};
use table::{Curve, Row};

fn main() -> ExitCode {
    // Processes that a part starts are this program too.
    lock_storm::rage();
    contender::role();
    apart::role();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<Name> = PARTS.iter().map(|part| part.name).collect();
    let done = request::parse(words.clone(), &names).and_then(|request| {
        if request.help {
            say(&part::help());
            return Ok(ExitCode::SUCCESS);
        }
        match (request.optimised, &request.program) {
            (true, Some(_)) => {
                return Err("--optimised is about the program that is built here, not --program".to_owned());
            }
            (true, None) if program::is_the_alias() => {
                return Err("this was built as the alias builds it; leave --profile out for --optimised".to_owned());
            }
            (true, None) => {}
            (false, _) => program::become_the_alias(&words)?,
        }
        request.program.as_deref().map_or(Ok(()), program::take)?;
        Ok(measure(&request))
    });
    done.unwrap_or_else(|error| {
        _ = writeln!(std::io::stderr(), "error: {error}");
        ExitCode::from(2)
    })
}

fn say(text: &str) {
    _ = std::io::stdout().write_all(text.as_bytes());
}

fn measure(request: &Request) -> ExitCode {
    let (progress, begun, load) = (Progress::new(), Instant::now(), machine::load());
    let head = [
        ("machine", format!("{}; load before {load}", machine::described())),
        ("program", program::described()),
        ("peers", machine::peers()),
    ];
    head.iter().for_each(|(what, text)| progress.line(&format!("{what}: {text}")));
    let asked: Vec<(&Part, Option<usize>)> = match request.parts.is_empty() {
        true => PARTS.iter().map(|part| (part, None)).collect(),
        false => request.parts.iter().map(|(at, count)| (&PARTS[*at], *count)).collect(),
    };
    let mut found = Found::default();
    for (number, (part, count)) in asked.iter().enumerate() {
        if let (Some(row), true) = (part.by_hand, request.parts.is_empty()) {
            let command = format!("by hand: cargo bench --bench table -- {}", part.name.name);
            found.rows.push(row().unmeasured(&command));
            continue;
        }
        let count = count.unwrap_or(part.count);
        progress.line(&format!(
            "[{}/{}] {}: {} ({count} {})",
            number + 1,
            asked.len(),
            part.name.name,
            part.what,
            part.counted
        ));
        let began = Instant::now();
        found.take(part, count, &progress);
        progress.line(&format!("    done in {:.0} s", began.elapsed().as_secs_f64()));
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    progress.line(&format!("everything took {minutes:.1} minutes\n"));
    let shown = if request.markdown { table::markdown } else { table::text };
    for (what, text) in &head {
        say(&if request.markdown { format!("- {what}: {text}\n") } else { format!("{what:<8} {text}\n") });
    }
    say(&format!("\n{}", shown(&found.rows, &found.curves)));
    if found.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What the parts have given so far.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    curves: Vec<Curve>,
    failed: bool,
}

impl Found {
    fn take(&mut self, part: &Part, count: usize, progress: &Progress) {
        // A part that fails takes no other with it.
        let done = catch_unwind(AssertUnwindSafe(|| match part.does {
            Does::Rows(measure) => (measure(progress, count), Vec::new()),
            Does::Curves(measure) => (Vec::new(), measure(progress, count)),
        }));
        let (rows, curves) = done.unwrap_or_else(|panic| {
            self.failed = true;
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            let first = text.lines().next().unwrap_or_default();
            (vec![Row { ours: Err(format!("FAILED: {first}")), ..Row::new(part.what, table::Unit::Count) }], Vec::new())
        });
        rows.iter().for_each(|row| progress.line(&format!("    {}", row.brief())));
        if !curves.is_empty() {
            progress.line(&table::text(&[], &curves));
        }
        self.rows.extend(rows);
        self.curves.extend(curves);
    }
}
