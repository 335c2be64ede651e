//! A file of a CI service, of systemd, or a shell script.

use std::time::Duration;

use xtask::plan::outer::{MARK, Minutes, compare, length, systemd_limit, systemd_unit};
use xtask::report::plan::Check;
use xtask::suite::{RunLimits, Suite};

/// Every finding names a line that is there; more than what is needed is never worse; what the finding says to set is enough.
pub fn holds(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (short, long) = (run("18m"), run("24h"));
    let (findings, of_long) = (compare(&text, &short), compare(&text, &long));
    assert!(text.contains(MARK) || findings.is_empty(), "{findings:?}");
    assert!(findings.is_sorted_by_key(|finding| finding.line), "{findings:?}");
    assert_eq!(findings.len(), of_long.len());
    for (finding, longer) in findings.iter().zip(&of_long) {
        assert!((1..=text.lines().count()).contains(&finding.line), "{finding:?}");
        assert!(finding.mark.starts_with(MARK) && !finding.shown.is_empty(), "{finding:?}");
        assert_eq!((finding.line, &finding.shown), (longer.line, &longer.shown));
        assert!(finding.wrong.is_none() || longer.wrong.is_some(), "{finding:?} {longer:?}");
        let check = Check::of("ci.yml", finding);
        assert!(super::plain(&check.text) && check.text.chars().count() < 500, "{check:?}");
        finding.wrong.iter().for_each(|wrong| advice(&finding.shown, &finding.mark, wrong, &short));
    }
    for unit in [None, Some(Duration::from_secs(1))] {
        if let Some(length) = length(&text, unit) {
            assert!(text.contains(|c: char| c.is_ascii_digit()), "{length:?} from nothing");
        }
    }
    if let Some((unit, _)) = systemd_unit(&text) {
        assert!(unit.ends_with(".service") && !unit.contains(['/', ':', '\n']), "{unit:?}");
    }
    assert!(systemd_limit(&text).is_none_or(|outer| text.contains(outer.from.trim_start_matches("systemd's "))));
    let seconds = bytes.iter().fold(0_u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 10_000_000;
    let whole = Duration::from_secs(seconds);
    assert_eq!(length(&Minutes(whole).to_string(), None), Some(whole));
}

fn run(deadline: &str) -> RunLimits {
    let text = format!("schema = 1\nrun.deadline = \"{deadline}\"\n[task.a]\ncommand = \"x\"\ndeadline = \"1s\"\n");
    Suite::parse(&text).expect("a suite").run
}

// `is 1m short; set 62m`: with that in the limit's place nothing is wrong any more.
fn advice(shown: &str, mark: &str, wrong: &str, run: &RunLimits) {
    let Some((_, better)) = wrong.split_once("short; set ") else { return };
    let end = shown.find([':', '=', ' ']).expect("a key");
    let rest = &shown[end + 1..];
    let line = format!("{}{}{better}", &shown[..=end], if rest.starts_with(' ') { " " } else { "" });
    let wrong_again = !compare(&format!("# {mark}\n{line}"), run).iter().all(|finding| finding.wrong.is_none());
    // The call may have a queue of its own. A shorter one needs less than is asked here, and one of years is never readable.
    let minutes: u64 = better.trim_end_matches(char::is_alphabetic).parse().expect("whole minutes");
    let meant = run.outer().as_secs() / 60..1_000_000;
    assert!(!wrong_again || !meant.contains(&minutes), "{shown}: {wrong}, but {line}");
}
