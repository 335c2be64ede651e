//! What a holder and a waiter say to each other: read whatever the other wrote, and never too long for it.

use xtask::lock::banner::{self, Asking, Claim};
use xtask::lock::inside::{self, Enclosing};
use xtask::lock::news;

use super::news::holder;

#[test]
fn every_line_with_the_prefix_is_a_holder() {
    for line in [
        "xtask-lock/1 {\"run\":\"r\"}",
        "xtask-lock/99 {\"run\":\"r\",\"shape\":{\"of\":[\"things\"]}}",
        "xtask-lock/2.1-beta {\"run\":\"r\",\"pid\":\"a text\",\"since_ms\":-1}",
    ] {
        let read = Claim::read(line.as_bytes()).expect(line);
        assert_eq!((read.run.as_deref(), read.pid, read.since_ms), (Some("r"), None, None), "{line}");
    }
    for line in [
        "xtask-lock/",
        "xtask-lock/1",
        "xtask-lock/1 ",
        "xtask-lock/7 not json",
        "xtask-lock/\u{0}\u{1}",
        "xtask-lock/1 [1]",
    ] {
        assert_eq!(Claim::read(line.as_bytes()), Some(Claim::default()), "{line:?}");
    }
    for line in ["", "xtask-lock", "Xtask-lock/1 {}", " xtask-lock/1 {}", "HTTP/1.1 400 Bad Request"] {
        assert_eq!(Claim::read(line.as_bytes()), None, "{line:?}");
    }
}

#[test]
fn deep_nesting_is_no_trouble() {
    let line = format!("xtask-lock/1 {}", "[".repeat(7000));
    assert_eq!(Claim::read(line.as_bytes()), Some(Claim::default()));
}

#[test]
fn what_a_holder_says_can_neither_move_the_cursor_nor_fill_the_screen() {
    let hostile = "\u{1b}[2J\u{1b}]0;title\u{7}ev\ril\nline\u{202e}txet\u{200b}\u{85}".to_owned() + &"x".repeat(5000);
    let line =
        Claim { run: Some(hostile.clone()), caller: Some(hostile.clone()), folder: Some(hostile), ..Claim::default() };
    let read = Claim::read(&line.line()).expect("a holder");
    let caller = read.caller.expect("a text");
    assert!(caller.starts_with("[2J]0;titleevillinetxetxx"), "{caller:?}");
    assert_eq!(caller.chars().count(), 80);
    assert_eq!(read.folder.expect("a text").chars().count(), 160);
    assert!(!news::who(&Claim { caller: Some(caller), ..Claim::default() }).chars().any(char::is_control));
    // A text of nothing but such characters says nothing.
    assert_eq!(Claim::read(b"xtask-lock/1 {\"user\":\"\\u0007\\u200b\"}").expect("a holder").user, None);
}

#[test]
fn a_line_of_ours_is_never_longer_than_is_read() {
    let wide = "\"".repeat(9000) + &"\u{10ffff}".repeat(9000);
    let wide = Some(wide);
    let claim = Claim {
        scope: wide.clone(),
        run: wide.clone(),
        caller: wide.clone(),
        user: wide.clone(),
        distribution: wide.clone(),
        repository: wide.clone(),
        folder: Some("\u{10fffe}".repeat(4096)),
        commit: wide.clone(),
        command: wide.clone(),
        pid_namespace: wide,
        pid: Some(u64::MAX),
        ..Claim::default()
    };
    assert!(claim.trimmed().line().len() <= banner::BANNER_MAX);
    assert_eq!(Claim::read(&claim.trimmed().line()), Some(claim.trimmed()));
    let asking = Asking { waited_us: u64::MAX, run: "r".repeat(80) };
    assert!(asking.line().len() <= banner::ANSWER_MAX);
    assert_eq!(Asking::read(asking.line().trim_ascii_end()), Some(asking));
    for line in [
        "",
        "xtask-wait/1 ",
        "xtask-wait/1 {\"run\":\"r\"}",
        "GET / HTTP/1.1\r",
        "xtask-wait/1 {\"waited_us\":1e99,\"run\":\"r\"}",
    ] {
        assert_eq!(Asking::read(line.as_bytes()), None, "{line:?}");
    }
}

#[test]
fn a_holder_is_of_the_family_by_its_run_or_by_a_pid_of_the_same_namespace() {
    let holder = Claim { pid: Some(7), pid_namespace: Some("pid:[1]".to_owned()), ..holder() };
    let family = |mark: &str, ancestors: &[i32], namespace: Option<&str>| Enclosing {
        runs: inside::runs(mark),
        ancestors: ancestors.to_vec(),
        pid_namespace: namespace.map(str::to_owned),
    };
    assert!(family("r-9/a:r-1/test", &[], None).has(&holder));
    assert!(!family("r-9/r-1", &[], None).has(&holder));
    assert!(family("", &[3, 7, 1], Some("pid:[1]")).has(&holder));
    assert!(!family("", &[3, 7, 1], Some("pid:[2]")).has(&holder));
    assert!(!family("", &[3, 1], Some("pid:[1]")).has(&holder));
    let mute = Claim { pid_namespace: None, ..holder };
    assert!(!family("", &[7], None).has(&mute), "two that do not say which namespace");
}
