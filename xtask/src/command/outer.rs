//! The limits around this process that it can find out, and the refusal to start inside one that is too short.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use duct::cmd;

use crate::plan::outer::{Outer, systemd_limit, systemd_unit, too_short};
use crate::suite::RunLimits;
use crate::time::parse_duration;

/// Says the limit where `--outer` does not.
const VARIABLE: &str = "XTASK_OUTER";

/// How long systemd may take to say what a unit's limits are.
const PATIENCE: Duration = Duration::from_secs(2);

/// Refuses (with the text to show) if a limit around this process is too short for a run that waits up to `queue`: the
/// one that the user named (`--outer`, else XTASK_OUTER), GitLab's CI_JOB_TIMEOUT, systemd's own. Gives the shortest that
/// is known.
pub fn check(
    run: &RunLimits,
    queue: Duration,
    named: Option<Duration>,
    suite: &str,
) -> anyhow::Result<Option<Duration>> {
    let limits = around(named)?;
    if let Some(text) = limits.iter().find_map(|outer| too_short(run, queue, outer, suite)) {
        bail!(text);
    }
    Ok(limits.into_iter().map(|outer| outer.length).min())
}

// Empty as services leave it where nothing is set: nothing is meant.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|text| !text.is_empty())
}

fn around(named: Option<Duration>) -> anyhow::Result<Vec<Outer>> {
    let mut limits: Vec<Outer> = named.into_iter().map(|length| Outer { length, from: "--outer".to_owned() }).collect();
    if let (None, Some(text)) = (named, variable(VARIABLE)) {
        let length = parse_duration(&text.to_string_lossy()).map_err(|why| anyhow!("{VARIABLE}: {why}"))?;
        limits.push(Outer { length, from: VARIABLE.to_owned() });
    }
    if let Some(text) = variable("CI_JOB_TIMEOUT") {
        let seconds = text.to_str().and_then(|text| text.parse().ok());
        let seconds =
            seconds.with_context(|| format!("CI_JOB_TIMEOUT is {text:?} and should be a number of seconds"))?;
        limits.push(Outer { length: Duration::from_secs(seconds), from: "CI_JOB_TIMEOUT".to_owned() });
    }
    limits.extend(systemd());
    Ok(limits)
}

// What cannot be found out is no limit: systemd may be absent, and a container shows the groups of another one.
fn systemd() -> Option<Outer> {
    std::env::var_os("INVOCATION_ID")?;
    let cgroup = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let (unit, own) = systemd_unit(&cgroup)?;
    let manager = if own { "--user" } else { "--system" };
    let properties = "--property=Type,TimeoutStartUSec,RuntimeMaxUSec";
    let asked = cmd!("systemctl", manager, "show", properties, "--", unit);
    let handle = asked.stdin_null().stderr_null().stdout_capture().unchecked().start().ok()?;
    match handle.wait_timeout(PATIENCE) {
        Ok(Some(output)) => systemd_limit(&String::from_utf8_lossy(&output.stdout)),
        _ => {
            let _ = handle.kill();
            None
        }
    }
}
