//! The limits that callers set around this program, as far as they can be seen: a run that they would cut must not start.

use std::time::Duration;

use anyhow::Context as _;
use xshell::{Shell, cmd};

use crate::plan::outer::{Outer, length, systemd_limit, systemd_unit, too_short};
use crate::suite::RunLimits;

/// The shortest limit around this process, if any is known. Errors if one is too short for a run that waits for `queue`, or
/// cannot be read; then nothing must be queued.
pub fn check(
    run: &RunLimits,
    queue: Duration,
    said: Option<Duration>,
    suite_path: &str,
) -> anyhow::Result<Option<Duration>> {
    let said = said.map(|length| Outer { length, from: "--outer (or XTASK_OUTER)".to_owned() });
    let around: Vec<Outer> = said.into_iter().chain(gitlab()?).chain(systemd()).collect();
    let wrong: Vec<String> = around.iter().filter_map(|outer| too_short(run, queue, outer, suite_path)).collect();
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(around.iter().map(|outer| outer.length).min())
}

fn gitlab() -> anyhow::Result<Option<Outer>> {
    let from = "CI_JOB_TIMEOUT".to_owned();
    let Ok(text) = std::env::var(&from) else { return Ok(None) };
    let length = length(&text, Some(Duration::from_secs(1)));
    let length = length.with_context(|| format!("{from}={text:?} is not a number of seconds"))?;
    Ok(Some(Outer { length, from }))
}

// What systemd does not say is not known: a session, a scope or a container has no such limit.
fn systemd() -> Option<Outer> {
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let (unit, users) = systemd_unit(&cgroup)?;
    let manager = if users { "--user" } else { "--system" };
    let shell = Shell::new().ok()?;
    let properties = "--property=Type,TimeoutStartUSec,RuntimeMaxUSec";
    let shown = cmd!(shell, "systemctl {manager} show {properties} {unit}").quiet().ignore_stderr().read().ok()?;
    systemd_limit(&shown)
}
