//! The limits that callers set around xtask, as their files write them.

use std::time::Duration;

use xtask::plan::outer::{Finding, Minutes, Outer, compare, length, systemd_limit, systemd_unit, too_short};
use xtask::suite::{RunLimits, Suite};

/// queue 32m + run 28m + margin 90s = 61m30s, so outer is 62m.
fn run() -> RunLimits {
    let text = "schema = 1\n[run]\ndeadline = \"28m\"\nqueue = \"32m\"\nmargin = \"90s\"\n[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\n";
    Suite::parse(text).expect("a suite").run
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

/// What is found in a file, a line each: `line shown: why`, or `line shown` where the limit will do.
#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let show = |f: Finding| match f.wrong {
        Some(wrong) => format!("{} {}: {wrong}", f.line, f.shown),
        None => format!("{} {}", f.line, f.shown),
    };
    let found: Vec<String> = compare(text, &run()).into_iter().map(show).collect();
    assert_eq!(found, expected, "{text}");
}

#[test]
fn github_job() {
    check("jobs:\n  verify:\n    timeout-minutes: 62  # xtask:outer=verify\n", &["3 timeout-minutes: 62"]);
    check("    timeout-minutes: 61 # xtask:outer=release", &["1 timeout-minutes: 61: is 1m short; set 62"]);
    check("- timeout-minutes: \"45\"   # was 90; xtask:outer=verify", &["1 timeout-minutes: 45: is 17m short; set 62"]);
    check("timeout-minutes: 61.5 # xtask:outer=verify", &["1 timeout-minutes: 61.5: is 30s short; set 62"]);
    check("timeout-minutes: 360 # xtask:outer=verify\r\n", &["1 timeout-minutes: 360"]);
    for unread in ["${{ vars.LIMIT }}", "1h", "-5", "", "1e99", "NaN", "inf"] {
        let text = format!("timeout-minutes: {unread} # xtask:outer=verify");
        check(&text, &[&format!("1 timeout-minutes: {unread}: cannot be read")]);
    }
    check("run: exec cargo xtask verify --outer 61m # xtask:outer=verify", &["1 --outer 61m: is 1m short; set 62m"]);
}

#[test]
fn gitlab_job() {
    for enough in ["1h 2m", "62 minutes", "\"1 hour 2 minutes\"", "3720", "1h2m", "1 hour and 2 min", "1 hour, 2 mins"]
    {
        check(
            &format!("  timeout: {enough} # xtask:outer=verify"),
            &[&format!("1 timeout: {}", enough.trim_matches('"'))],
        );
    }
    check("timeout: 1h 1m # xtask:outer=verify", &["1 timeout: 1h 1m: is 1m short; set 62m"]);
    check("timeout: 1h 1m 59 seconds # xtask:outer=verify", &["1 timeout: 1h 1m 59 seconds: is 1s short; set 62m"]);
    check("timeout: $LIMIT # xtask:outer=verify", &["1 timeout: $LIMIT: cannot be read"]);
    check("  XTASK_OUTER: \"1h 1m\"  # xtask:outer=verify", &["1 XTASK_OUTER: 1h 1m: is 1m short; set 62m"]);
}

#[test]
fn systemd_service() {
    check("[Service]\n# xtask:outer=verify\nTimeoutStartSec=62min\n", &["3 TimeoutStartSec=62min"]);
    check("; xtask:outer=verify\n\nTimeoutStartSec=1h 1min\n", &["3 TimeoutStartSec=1h 1min: is 1m short; set 62min"]);
    check("#xtask:outer=verify\nRuntimeMaxSec=3719\n", &["2 RuntimeMaxSec=3719: is 1s short; set 62min"]);
    check(
        "# xtask:outer=verify\nTimeoutStartSec=infinity\n# xtask:outer=verify\nTimeoutSec=0\n",
        &["2 TimeoutStartSec=infinity", "4 TimeoutSec=0"],
    );
    check(
        "# xtask:outer=verify\nRuntimeMaxSec=infinity\n# xtask:outer=verify\nRuntimeMaxSec=0\n",
        &["2 RuntimeMaxSec=infinity", "4 RuntimeMaxSec=0: is 62m short; set 62min"],
    );
    check("# xtask:outer=verify\nTimeoutStartSec=62M\n", &["2 TimeoutStartSec=62M"]);
    check("# xtask:outer=verify\nTimeoutStartSec=0.001M\n", &["2 TimeoutStartSec=0.001M: is 18m09s short; set 62min"]);
    for unread in ["1 hour and 2 min", "62 Min", "1h, 2min", "62mins"] {
        let text = format!("# xtask:outer=verify\nTimeoutStartSec={unread}\n");
        check(&text, &[&format!("2 TimeoutStartSec={unread}: cannot be read")]);
    }
    check("# xtask:outer=verify\nEnvironment=\"XTASK_OUTER=61m\"\n", &["2 XTASK_OUTER=61m: is 1m short; set 62m"]);
    check(
        "# xtask:outer=verify\nExecStart=/usr/bin/timeout 61m cargo xtask verify\n",
        &["2 timeout 61m: is 1m short; set 62m"],
    );
}

/// To systemd it is a part of the value, which it then cannot read: the service has no limit, or another.
#[test]
fn systemd_knows_no_comment_behind_a_value() {
    let wrong = "systemd knows no comment behind a value, and takes it for a part of it: \
        write \"# xtask:outer=verify\" in a line of its own above";
    for (line, key) in [
        ("TimeoutStartSec=103min", "TimeoutStartSec"),
        ("RuntimeMaxSec = 103min", "RuntimeMaxSec"),
        ("TimeoutSec=infinity", "TimeoutSec"),
        ("Environment=XTASK_OUTER=62m", "Environment"),
        ("ExecStart=/usr/bin/timeout 62m cargo xtask verify", "ExecStart"),
    ] {
        check(&format!("[Service]\n{line} # xtask:outer=verify\n"), &[&format!("2 {key}: {wrong}")]);
        let above = compare(&format!("[Service]\n# xtask:outer=verify\n{line}\n"), &run());
        assert!(above.iter().all(|finding| finding.wrong.is_none()), "{above:?}");
    }
}

#[test]
fn a_byte_order_mark_hides_no_mark() {
    check(
        "\u{feff}# xtask:outer=verify\nTimeoutStartSec=61min\n",
        &["2 TimeoutStartSec=61min: is 1m short; set 62min"],
    );
    check("\u{feff}timeout-minutes: 61 # xtask:outer=verify\n", &["1 timeout-minutes: 61: is 1m short; set 62"]);
}

#[test]
fn shell_script() {
    check("exec timeout 62m cargo xtask verify --outer 62m # xtask:outer=verify", &["1 timeout 62m", "1 --outer 62m"]);
    check(
        "exec timeout -k 30s --signal=INT 3719 cargo xtask verify # xtask:outer=verify",
        &["1 timeout 3719: is 1s short; set 62m"],
    );
    check(
        "timeout --kill-after 90m 1h cargo xtask verify # xtask:outer=verify",
        &["1 timeout 1h: is 2m short; set 62m"],
    );
    check("timeout 0 x # xtask:outer=verify", &["1 timeout 0"]);
    check("timeout \"$LIMIT\" x # xtask:outer=verify", &["1 timeout $LIMIT: cannot be read"]);
    check("exec cargo xtask verify --outer=\"61m\" # xtask:outer=verify", &["1 --outer 61m: is 1m short; set 62m"]);
    check("cargo xtask verify --outer 62 # xtask:outer=verify", &["1 --outer 62: cannot be read"]);
    check("cargo xtask verify --outer # xtask:outer=verify", &["1 --outer : cannot be read"]);
    check("export XTASK_OUTER=\"62m\"; # xtask:outer=verify", &["1 XTASK_OUTER=62m"]);
    check("/usr/bin/timeout 61m x # xtask:outer=verify", &["1 timeout 61m: is 1m short; set 62m"]);
    check(
        "# xtask:outer=verify\nexec timeout 62m \\\n  cargo xtask verify \\\n  --outer 61m\nnext\n",
        &["2 timeout 62m", "2 --outer 61m: is 1m short; set 62m"],
    );
}

#[test]
fn a_queue_of_its_own_changes_what_is_needed() {
    check("cargo xtask verify --queue 2m --outer 32m # xtask:outer=verify", &["1 --outer 32m"]);
    check("cargo xtask verify --queue=3m --outer 32m # xtask:outer=verify", &["1 --outer 32m: is 1m short; set 33m"]);
    check("timeout-minutes: 33 # xtask:outer=verify --queue 3m", &["1 timeout-minutes: 33"]);
    check("timeout-minutes: 32 # xtask:outer=verify --queue 3m", &["1 timeout-minutes: 32: is 1m short; set 33"]);
    check("# xtask:outer=verify --queue 3m\nTimeoutStartSec=33min", &["2 TimeoutStartSec=33min"]);
    check("cargo xtask verify --queue $Q --outer 32m # xtask:outer=verify", &["1 --queue $Q: cannot be read"]);
}

#[test]
fn a_mark_that_marks_nothing_is_an_error() {
    let nothing = "marks a line without a limit that can be read";
    check("runs-on: self-hosted # xtask:outer=verify", &[&format!("1 xtask:outer=verify: {nothing}")]);
    // What looks like a limit but is none: of another file's form, or the beginning of another name.
    for none in [
        "timeout-minutes=1",
        "timeout=1m",
        "TimeoutSec: 1min",
        "x --outermost 1m",
        "x --outermost=1m",
        "unset XTASK_OUTER 1m",
    ] {
        check(&format!("{none} # xtask:outer=verify"), &[&format!("1 xtask:outer=verify: {nothing}")]);
    }
    check("XTASK_OUTER=62m # xtask:outer=verify", &["1 XTASK_OUTER=62m"]);
    check("# xtask:outer=verify\n", &[&format!("1 xtask:outer=verify: {nothing}")]);
    check(
        "# xtask:outer=verify\n# xtask:outer=release\nTimeoutSec=62min\n",
        &[&format!("1 xtask:outer=verify: {nothing}"), "3 TimeoutSec=62min"],
    );
    let should = "should be xtask:outer=verify or xtask:outer=release";
    check(
        "timeout-minutes: 1 # xtask:outer=verfy",
        &[&format!("1 xtask:outer=verfy: {should}; did you mean \"verify\"?")],
    );
    check("timeout-minutes: 1 # xtask:outer", &[&format!("1 xtask:outer: {should}")]);
}

#[test]
fn what_only_mentions_the_mark_is_left_alone() {
    check("timeout-minutes: 1\n", &[]);
    check("# a line that says xtask:outer=verify is compared with the plan\ntimeout-minutes: 1\n", &[]);
    check("run: grep xtask:outer=verify ci.yml\n", &[]);
    check("x; timeout 1m y // see xtask:outer=verify", &["1 timeout 1m: is 61m short; set 62m"]);
}

#[test]
fn lengths_as_they_are_written_elsewhere() {
    let seconds = |text| length(text, Some(Duration::from_secs(1))).map(|l| l.as_secs_f64());
    assert_eq!(seconds("1.5h"), Some(5400.0));
    assert_eq!(seconds("1d 1h 1min 1s 500ms"), Some(90_061.5));
    assert_eq!(seconds("  7 "), Some(7.0));
    assert_eq!(length("7", None), None);
    for junk in [
        "",
        "m",
        "1 2",
        "1x",
        "1m x",
        "-1m",
        "1..5m",
        "99999999999999999999999d",
        "18446744073709551615s 18446744073709551615s",
        "∞",
    ] {
        assert_eq!(seconds(junk), None, "{junk}");
    }
}

#[test]
fn a_short_outer_limit_is_refused_with_the_sum() {
    let outer = |minutes_| Outer { length: minutes(minutes_), from: "--outer".to_owned() };
    assert_eq!(too_short(&run(), minutes(32), &outer(62), "ci/suite.toml"), None, "exactly enough");
    assert_eq!(too_short(&run(), minutes(2), &outer(32), "ci/suite.toml"), None, "a shorter queue needs less");
    let text = too_short(&run(), minutes(32), &outer(45), "ci/suite.toml").expect("17 minutes short");
    let expected = "\
this caller kills the job 45m after its start; outer is 62m (queue 32m + run 28m + margin 1m30s)
   from     --outer 45m    (also read: CI_JOB_TIMEOUT on GitLab, TimeoutStartUSec under systemd)
   danger   the outer limit would cut the run with no receipt and no cause
   to fix   set the job's limit to 62 minutes, or lower [run] queue/deadline in ci/suite.toml
   nothing  was queued or run";
    assert_eq!(text, expected);
    let nearly = Outer { length: minutes(62) - Duration::from_millis(1), from: "--outer".to_owned() };
    assert!(too_short(&run(), minutes(32), &nearly, "s").is_some());
}

#[test]
fn minutes_stay_minutes() {
    let shown = [0, 45, 60, 90, 3720, 86_400].map(|s| Minutes(Duration::from_secs(s)).to_string());
    assert_eq!(shown, ["0s", "45s", "1m", "1m30s", "62m", "1440m"]);
    assert_eq!(Minutes(Duration::from_millis(60_400)).to_string(), "1m", "parts of a second are none of a job's");
}

#[test]
fn systemd_says_which_unit_and_limit() {
    assert_eq!(systemd_unit("0::/system.slice/nightly.service\n"), Some(("nightly.service", false)));
    assert_eq!(
        systemd_unit("0::/user.slice/user-1000.slice/user@1000.service/app.slice/n.service"),
        Some(("n.service", true))
    );
    assert_eq!(systemd_unit("12:cpu:/\n1:name=systemd:/system.slice/n.service\n"), Some(("n.service", false)));
    assert_eq!(systemd_unit("0::/user.slice/user-1000.slice/session-2.scope"), None);
    assert_eq!(systemd_unit("0::/\n"), None);
    let limit = |text: &str| systemd_limit(text).map(|outer| (outer.from, outer.length));
    let oneshot = "Type=oneshot\nRuntimeMaxUSec=infinity\nTimeoutStartUSec=1h 2min\n";
    assert_eq!(limit(oneshot), Some(("systemd's TimeoutStartUSec".to_owned(), minutes(62))));
    let simple = "Type=simple\nRuntimeMaxUSec=45min 1s\nTimeoutStartUSec=1min 30s\n";
    assert_eq!(limit(simple), Some(("systemd's RuntimeMaxUSec".to_owned(), Duration::from_secs(2701))));
    assert_eq!(limit("Type=oneshot\nTimeoutStartUSec=infinity\n"), None);
    let long = limit("Type=oneshot\nTimeoutStartUSec=1month 2w 1d 1min 500ms 7us\n").unwrap().1;
    assert_eq!(long, Duration::from_secs_f64(86_400.0 * 45.44) + minutes(1) + Duration::from_micros(500_007));
    assert_eq!(limit(""), None);
}

#[test]
fn a_length_of_systemd_has_its_words() {
    let hours = |text| xtask::plan::outer::systemd_length(text).map(|length| length.as_secs() / 3600);
    let words = [("1d", 24), ("1w", 168), ("1M", 730), ("1y", 8766), ("1year 1h", 8767), ("60m", 1), ("3600", 1)];
    for (text, expected) in words {
        assert_eq!(hours(text), Some(expected), "{text}");
    }
    assert_eq!(hours("1Y"), None);
}
