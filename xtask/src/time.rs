//! Time as values. Nothing here reads a clock: `now` comes in as an argument (`sys::now` reads it).

use std::fmt;
use std::ops::Add;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point on CLOCK_MONOTONIC, in nanoseconds: comparable between processes of one boot, and it stands still while the
/// machine is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Moment(u64);

impl Moment {
    /// From nanoseconds of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// All clocks at one point: what a receipt says of its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// CLOCK_MONOTONIC.
    pub monotonic: Moment,
    /// CLOCK_BOOTTIME: like the monotonic clock, but it goes on while the machine is suspended. Nanoseconds.
    pub boot: Moment,
    /// CLOCK_REALTIME, milliseconds since 1970, UTC.
    pub wall_ms: u64,
}

impl Clocks {
    /// How long the machine was suspended between `earlier` and now.
    pub fn suspended_since(&self, earlier: &Self) -> Duration {
        self.boot.since(earlier.boot).saturating_sub(self.monotonic.since(earlier.monotonic))
    }
}

/// Milliseconds, rounded down: the unit of receipts.
pub fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// A length as people read it beside a limit: `0.4s`, `41.3s`, `6m05s`, `1h02m`. Whole limits are short: `30s`, `5m`, `2h`.
#[derive(Debug, Clone, Copy)]
pub struct Human(pub Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = millis(self.0);
        let s = ms / 1000;
        let text = match (s, ms % 1000) {
            (0, 1..) if ms < 100 => format!("{ms}ms"),
            (0..60, 1..) => format!("{}.{}s", s, ms % 1000 / 100),
            (0..60, 0) => format!("{s}s"),
            (60..3600, 0) if s.is_multiple_of(60) => format!("{}m", s / 60),
            (60..3600, _) => format!("{}m{:02}s", s / 60, s % 60),
            (_, 0) if s.is_multiple_of(3600) => format!("{}h", s / 3600),
            _ => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        };
        f.pad(&text)
    }
}

/// A limit exactly, as it can stand in the suite file: `2m59s`, `4s200ms`. What it is compared with may differ by less
/// than people read.
#[derive(Debug, Clone, Copy)]
pub struct Exact(pub Duration);

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        // `Human` leaves nothing of these out.
        if self.0.subsec_nanos() == 0 && (seconds < 3600 || seconds.is_multiple_of(60)) {
            return Human(self.0).fmt(f);
        }
        f.pad(&humantime::format_duration(self.0).to_string().replace(' ', ""))
    }
}

/// Milliseconds since 1970 as RFC 3339 in UTC, whole seconds: `2026-11-30T14:02:10Z`.
pub fn utc(wall_ms: u64) -> String {
    // The year 9999 is the last that the form can write.
    let when = UNIX_EPOCH + Duration::from_secs((wall_ms / 1000).min(253_402_300_799));
    humantime::format_rfc3339_seconds(when).to_string()
}

/// The clock part of `utc`: `14:02:10`.
pub fn utc_clock(wall_ms: u64) -> String {
    utc(wall_ms)[11..19].to_owned()
}

/// A moment for somebody who reads it at `now_ms`: the clock alone on the same day of UTC, `14:02:10`; with the day on any
/// other, `2026-12-01 00:10:00`.
pub fn utc_when(wall_ms: u64, now_ms: u64) -> String {
    let (when, now) = (utc(wall_ms), utc(now_ms));
    let (day, clock) = (&when[..10], &when[11..19]);
    if now.starts_with(day) { clock.to_owned() } else { format!("{day} {clock}") }
}

/// Longer than any limit can mean, and short enough to be added to any time of day.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 86_400);

/// A length as written in the suite file and in flags: `90s`, `18m`, `1h 30m`, `250ms`. The error says what is wrong.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text);
    let length = length.map_err(|e| format!("{text:?} is not a duration such as \"30s\" or \"5m\": {e}"))?;
    if length > LONGEST { Err(format!("{text:?} is longer than a hundred years")) } else { Ok(length) }
}
