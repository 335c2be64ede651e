//! What two processes of a run say to each other.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use xtask::wire::Wire;

#[test]
fn room_is_waited_for_as_long_as_that_is_worth() {
    let (mut ours, theirs) = Wire::pair().expect("a pair");
    ours.never_block().expect("it can be told");
    let full = std::iter::repeat_with(|| ours.say(&"news", Duration::ZERO)).find_map(Result::err);
    assert_eq!(full.expect("it fills").kind(), ErrorKind::WouldBlock);
    let (begun, patience) = (Instant::now(), Duration::from_millis(50));
    assert_eq!(ours.say(&"more", patience).expect_err("nobody reads").kind(), ErrorKind::WouldBlock);
    assert!(begun.elapsed() >= patience);
    let mut theirs = Wire::inherited(theirs);
    let reader = std::thread::spawn(move || {
        std::iter::repeat_with(|| theirs.wait_for_line().expect("a line")).find(|line| line != b"\"news\"")
    });
    ours.say(&"the end", Duration::from_secs(60)).expect("somebody reads");
    assert_eq!(reader.join().expect("it reads").expect("a line"), b"\"the end\"");
}
