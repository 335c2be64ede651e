//! A call that was refused, told to whoever does not read its stderr: a line of data where JSON was asked for, JUnit XML,
//! the page and the summary of GitHub's job.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use serde::Serialize;

use super::{data, report, say, show};
use crate::event::SCHEMA;
use crate::report::{annotation, refused_summary};
use crate::run::order::Format;
use crate::sys;
use crate::time::{Clocks, millis};
use crate::verdict::Exit;

#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    t_ms: u64,
    event: &'a str,
    error: &'a str,
    exit_code: u8,
}

/// Tells why a call with these arguments, which may be what was wrong, was refused.
pub fn tell(args: Vec<OsString>, why: &str, requested: Clocks) {
    let first = args.first().and_then(|word| word.to_str()).unwrap_or_default();
    let Some(command) = COMMANDS.into_iter().find(|command| *command == first) else { return };
    let why = why.trim_end();
    if value(&args, "--message-format").is_some_and(|format| format == "json") {
        let t_ms = millis(sys::now().since(requested.monotonic));
        let line = Line { schema: SCHEMA, t_ms, event: "refused", error: why, exit_code: Exit::Usage.code() };
        serde_json::to_string(&line).iter().for_each(|line| data(line));
    }
    if let Some(path) = value(&args, "--junit").filter(|path| command == "verify" && !path.is_empty()) {
        report::refused_junit(&PathBuf::from(path), why);
    }
    if show::on_github(Format { json: false, colour: None }) {
        say(annotation(&format!("{command} refused"), why).trim_end());
        if matches!(command, "verify" | "release") {
            show::append_summary(&refused_summary(command, why));
        }
    }
}

/// What people and their CI call. `lock run` has the output of its command on stdout.
const COMMANDS: [&str; 6] = ["verify", "plan", "release", "check-receipt", "report", "lock"];

// The value of a flag where it stands last. What follows `--` is somebody else's.
fn value<'a>(args: &'a [OsString], flag: &str) -> Option<&'a OsStr> {
    let ours = args.iter().position(|arg| arg == "--").map_or(args, |end| &args[..end]);
    let mut values = ours.iter().enumerate().filter_map(|(i, arg)| {
        let joined = || arg.to_str()?.strip_prefix(flag)?.strip_prefix('=').map(OsStr::new);
        if arg == flag { ours.get(i + 1).map(OsString::as_os_str) } else { joined() }
    });
    values.next_back()
}
