//! What the other side of the lock's port says.

use std::time::Duration;

use xtask::clean::visible;
use xtask::event::Claim;
use xtask::lock::Scope;
use xtask::lock::banner::{ANSWER_MAX, Asking, BANNER_MAX, PREFIX};
use xtask::lock::news::{Waiter, lines, note, spent};
use xtask::lock::status::State;
use xtask::lock::wait::News;

/// Whoever begins with the prefix is a holder, nobody else is. What it says is short and plain wherever it is shown, and what
/// is read is written in a line that is read as the same.
pub fn holds(bytes: &[u8]) {
    let claim = Claim::read(bytes);
    assert_eq!(claim.is_some(), bytes.starts_with(PREFIX));
    claim.iter().for_each(holder);
    if let Some(asking) = Asking::read(bytes) {
        let line = asking.line();
        assert!(line.len() <= ANSWER_MAX && shown(&asking.run, 80), "{asking:?}");
        assert_eq!(Asking::read(line.trim_ascii_end()), Some(asking));
    }
    let stranger = visible(&String::from_utf8_lossy(bytes), 80);
    assert!(shown(&stranger, 80) && visible(&stranger, 80) == stranger, "{stranger:?}");
}

fn shown(text: &str, most: usize) -> bool {
    text.chars().count() <= most && super::plain(text)
}

fn holder(claim: &Claim) {
    let line = claim.line();
    assert!(line.len() <= BANNER_MAX && line.iter().filter(|&&byte| byte == b'\n').count() == 1, "{claim:?}");
    assert_eq!(Claim::read(line.trim_ascii_end()).as_ref(), Some(claim));
    assert_eq!(&claim.trimmed(), claim);
    let short = [
        &claim.scope,
        &claim.run,
        &claim.caller,
        &claim.user,
        &claim.distribution,
        &claim.repository,
        &claim.commit,
        &claim.pid_namespace,
    ];
    assert!(short.into_iter().flatten().all(|text| !text.is_empty() && shown(text, 80)), "{claim:?}");
    assert!([&claim.folder, &claim.command].into_iter().flatten().all(|text| shown(text, 160)), "{claim:?}");
    let waiter = Waiter {
        scope: "worktree",
        port: 28600,
        folder: "/srv/orders",
        wall_ms: 1_796_047_330_000,
        end_ms: 1_796_049_610_000,
        waited: Duration::from_secs(1),
        budget: Duration::from_secs(2280),
    };
    let held = |again| News::Held { claim: Box::new(claim.clone()), again };
    let behind = [(claim, Duration::from_secs(1)), (claim, Duration::MAX)];
    let mut all: Vec<String> = [true, false].into_iter().flat_map(|again| lines(&held(again), &waiter)).collect();
    all.extend(note(claim, &waiter));
    all.extend(spent(&waiter, Some(claim), &behind));
    all.extend(State::Held { holder: Box::new(claim.clone()) }.lines(Scope::Workstation, waiter.wall_ms));
    assert!(all.iter().all(|line| shown(line, 1200)), "{all:?}");
}
