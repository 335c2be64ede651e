//! Words: names, times, verdicts, exit codes, and the record of a run.

use std::io::{self, ErrorKind, Read};
use std::time::Duration;

use xtask::digest;
use xtask::event::{Event, Stamped, TaskRecord};
use xtask::name::{Name, RunId, nearest};
use xtask::record::Record;
use xtask::time::{Clocks, Exact, Human, Moment, parse_duration, utc, utc_clock};
use xtask::verdict::{Cause, Exit, ExitStatus, Limit, Reason, Stop, Verdict, Word};

#[test]
fn a_name_is_a_safe_file_name() {
    for good in ["a", "fmt", "test-pg", "build_release.2", "0", &"x".repeat(64)] {
        assert_eq!(Name::parse(good).map(|name| name.as_str().to_owned()), Ok(good.to_owned()));
    }
    for bad in ["", ".", "..", "-a", "_a", "a/b", "A", "ä", "a b", "a\n", "a\0", &"x".repeat(65)] {
        assert!(Name::parse(bad).is_err(), "{bad:?}");
        assert!(serde_json::from_value::<Name>(bad.into()).is_err(), "{bad:?} through serde");
    }
}

#[test]
fn a_run_id_says_when_and_is_read_back_only_as_written() {
    let run = RunId::new(1_796_047_330, 0x7c1e_09ab);
    assert_eq!(run.as_str(), "r-20261130-140210-7c1e09ab");
    assert_eq!(RunId::parse(run.as_str()), Ok(run));
    assert_eq!(RunId::new(0, 1).as_str(), "r-19700101-000000-00000001");
    for bad in
        ["", "r-", "r-20261130-140210-7C1E09AB", "r-20261130-140210-7c1e09ab-", "r-2026113-140210-7c1e09ab", "../r"]
    {
        let why = RunId::parse(bad).unwrap_err().to_string();
        assert!(why.ends_with("is not the id of a run such as r-20261130-140210-7c1e09ab"), "{why}");
    }
}

#[test]
fn the_nearest_name_is_what_was_meant_or_nothing() {
    let known = ["deadline", "command", "needs", "mutex", "fix"];
    for (wrong, meant) in [("dedline", "deadline"), ("comand", "command"), ("ndees", "needs"), ("mutxe", "mutex")] {
        assert_eq!(nearest(wrong, known), Some(meant), "{wrong}");
    }
    assert_eq!(nearest("banana", known), None);
    assert_eq!(nearest("", known), None);
    assert_eq!(nearest("d", ["a"]), None, "nothing in common");
}

/// Of names this short one edit is near and two are not, so that each case counts its edits.
#[test]
fn a_letter_more_less_or_other_and_two_letters_swapped_are_one_edit_each() {
    for one in ["fm", "fmtx", "xmt", "mft", "ftm"] {
        assert_eq!(nearest(one, ["fmt"]), Some("fmt"), "{one}");
    }
    for two in ["f", "fmtxx", "xxt", "mfx", "tfm", "fxtm"] {
        assert_eq!(nearest(two, ["fmt"]), None, "{two}");
    }
    // For each four letters one more.
    assert_eq!(nearest("abcdexyz", ["abcdefgh"]), Some("abcdefgh"));
    assert_eq!(nearest("abcdxyz", ["abcdefg"]), None);
}

#[test]
fn a_limit_is_said_so_that_it_can_be_written() {
    for text in ["3m", "2m59s", "3m09s", "16m40s", "250ms", "4s200ms", "1h30m", "1h1s", "1h1m1s", "59s999ms"] {
        let length = parse_duration(text).expect(text);
        assert_eq!(Exact(length).to_string(), text);
    }
}

#[test]
fn lengths_read_as_people_write_them() {
    let human = |ms| Human(Duration::from_millis(ms)).to_string();
    let cases = [
        (0, "0s"),
        (4, "4ms"),
        (9, "9ms"),
        (10, "10ms"),
        (99, "99ms"),
        (100, "0.1s"),
        (400, "0.4s"),
        (2_900, "2.9s"),
        (30_000, "30s"),
        (59_999, "59.9s"),
        (60_000, "1m"),
        (60_400, "1m00s"),
        (71_097, "1m11s"),
        (300_000, "5m"),
        (3_720_000, "1h02m"),
        (7_200_000, "2h"),
    ];
    for (ms, text) in cases {
        assert_eq!(human(ms), text);
    }
    assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
    assert!(parse_duration("5").unwrap_err().contains("not a duration"));
    assert!(parse_duration("-5s").is_err());
    assert!(parse_duration("100y").is_ok());
    assert!(parse_duration("36600days").is_ok());
    for absurd in ["36600days 1ms", "101y", "500000000000y", "18446744073709551615s"] {
        assert!(parse_duration(absurd).unwrap_err().contains("longer than a hundred years"), "{absurd}");
    }
}

#[test]
fn wall_clocks_are_utc_and_never_panic() {
    assert_eq!(utc(1_796_047_330_999), "2026-11-30T14:02:10Z");
    assert_eq!(utc_clock(1_796_047_330_999), "14:02:10");
    assert_eq!(utc(u64::MAX), "9999-12-31T23:59:59Z");
}

#[test]
fn moments_saturate() {
    let (early, late) = (Moment::from_nanos(5), Moment::from_nanos(9));
    assert_eq!(late.since(early), Duration::from_nanos(4));
    assert_eq!(early.since(late), Duration::ZERO);
    assert_eq!(late + Duration::MAX, Moment::from_nanos(u64::MAX));
}

#[test]
fn a_suspended_machine_shows_in_the_boot_clock() {
    let clocks = |monotonic, boot| Clocks {
        monotonic: Moment::from_nanos(monotonic),
        boot: Moment::from_nanos(boot),
        wall_ms: 0,
    };
    assert_eq!(clocks(150, 950).suspended_since(&clocks(100, 200)), Duration::from_nanos(700));
    assert_eq!(clocks(150, 250).suspended_since(&clocks(100, 200)), Duration::ZERO);
}

#[test]
fn exit_codes_are_those_of_the_contract() {
    let codes = [
        (Exit::Passed, 0),
        (Exit::Failed, 1),
        (Exit::Usage, 2),
        (Exit::Late, 3),
        (Exit::NoLock, 4),
        (Exit::Foreign, 5),
        (Exit::Refused, 6),
        (Exit::NoVerdict, 7),
        (Exit::Cancelled(Stop::Int), 130),
        (Exit::Cancelled(Stop::Term), 143),
        (Exit::Cancelled(Stop::Hup), 129),
    ];
    for (exit, code) in codes {
        assert_eq!(exit.code(), code, "{exit:?}");
    }
    let order = [Exit::Passed, Exit::Failed, Exit::Late, Exit::NoVerdict, Exit::Cancelled(Stop::Int)];
    for pair in order.windows(2) {
        assert_eq!(pair[0].max(pair[1]), pair[1]);
        assert_eq!(pair[1].max(pair[0]), pair[1]);
    }
    assert_eq!(Exit::Cancelled(Stop::Hup).max(Exit::Cancelled(Stop::Int)), Exit::Cancelled(Stop::Hup), "the first");
}

#[test]
fn trouble_of_lock_run_is_told_from_its_commands_own_codes() {
    for (own, code) in [(Exit::Usage, 122), (Exit::Late, 123), (Exit::NoLock, 124), (Exit::NoVerdict, 127)] {
        assert_eq!(own.of_lock_run().code(), code, "{own:?}");
    }
    for kept in [Exit::Command(3), Exit::Cancelled(Stop::Int)] {
        assert_eq!(kept.of_lock_run(), kept);
    }
}

fn finished(verdict: Verdict) -> Event {
    Event::TaskFinished(TaskRecord::never_started(Name::parse("t").unwrap(), verdict))
}

#[track_caller]
fn ends(events: &[Event], word: Word, exit: Exit) {
    let mut record = Record::default();
    for event in events {
        record.on(&Stamped { at: Moment::default(), event: event.clone() });
    }
    assert_eq!((record.result(), record.exit()), (word, exit), "{events:?}");
}

#[test]
fn the_result_of_a_run_follows_from_its_events() {
    let passed = || finished(Verdict::Passed);
    let failed = || finished(Verdict::Failed(Cause::Exit(ExitStatus::Code(1))));
    let late = || finished(Verdict::Late(Limit::Task));
    let skipped = || finished(Verdict::NotRun(Reason::Needs(Name::parse("t").unwrap())));
    let run_late = || Event::RunLate { run: Duration::ZERO };
    let trouble = || Event::Trouble { text: "slept".to_owned() };
    let changed = || Event::TreeChanged { files: vec!["a".to_owned()] };
    let stop = || Event::StopAsked { signal: Stop::Term, again: false };

    ends(&[passed(), passed()], Word::Passed, Exit::Passed);
    ends(&[passed(), failed(), skipped()], Word::Failed, Exit::Failed);
    ends(&[passed(), skipped()], Word::Failed, Exit::Failed);
    ends(&[failed(), late()], Word::Late, Exit::Late);
    ends(&[passed(), run_late()], Word::Late, Exit::Late);
    ends(&[late(), run_late(), trouble()], Word::NoVerdict, Exit::NoVerdict);
    ends(&[passed(), changed()], Word::NoVerdict, Exit::NoVerdict);
    ends(&[late(), trouble(), stop()], Word::Cancelled, Exit::Cancelled(Stop::Term));
    ends(&[], Word::Failed, Exit::Failed);
}

#[test]
fn a_record_says_all_that_takes_away_its_verdict() {
    let cause = |trouble: &[&str], changed: &[&str]| {
        let own = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Record { trouble: own(trouble), tree_changed: own(changed), ..Record::default() }.cause()
    };
    assert_eq!(cause(&[], &[]), None);
    assert_eq!(cause(&["slept", "disk"], &[]).as_deref(), Some("slept; disk"));
    assert_eq!(cause(&[], &["a", "b"]).as_deref(), Some("the tree changed during the run: a, b"));
    assert_eq!(cause(&["slept"], &["a"]).as_deref(), Some("slept; the tree changed during the run: a"));
}

#[test]
fn the_limit_of_the_run_is_named_before_that_of_a_task() {
    let record = |tasks: &[Verdict], run_late| {
        let tasks = tasks.iter().map(|verdict| TaskRecord::never_started(Name::parse("t").unwrap(), verdict.clone()));
        Record { tasks: tasks.collect(), run_late, ..Record::default() }
    };
    let (late, cut) = (Verdict::Late(Limit::Task), Verdict::Late(Limit::Run));
    assert_eq!(record(&[Verdict::Passed, late.clone()], false).late(), Some(Limit::Task));
    assert_eq!(record(&[late, cut], true).late(), Some(Limit::Run));
    assert_eq!(record(&[Verdict::Passed], false).late(), None);
}

#[test]
fn the_first_request_to_stop_counts() {
    let mut record = Record::default();
    for signal in [Stop::Hup, Stop::Int] {
        record.on(&Stamped { at: Moment::default(), event: Event::StopAsked { signal, again: false } });
    }
    assert_eq!(record.exit(), Exit::Cancelled(Stop::Hup));
}

/// What a read gives, in turn.
struct Reads(Vec<Result<&'static [u8], ErrorKind>>);

impl Read for Reads {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Ok(0);
        }
        let bytes = self.0.remove(0)?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
}

#[test]
fn a_digest_is_of_all_that_can_be_read_or_there_is_none() {
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(digest::of_bytes(b"abc"), abc);
    let cut = Reads(vec![Ok(b"a"), Err(ErrorKind::Interrupted), Ok(b"bc")]);
    assert_eq!(digest::of_reader(cut).unwrap(), abc);
    let broken = Reads(vec![Ok(b"abc"), Err(ErrorKind::TimedOut), Ok(b"d")]);
    assert_eq!(digest::of_reader(broken).unwrap_err().kind(), ErrorKind::TimedOut);
}
