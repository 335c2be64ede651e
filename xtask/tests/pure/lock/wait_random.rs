//! The wait for a lock in random worlds: it ends in time, and never goes round in a loop.

use std::time::Duration;

use xtask::lock::wait::{Accepted, Failure, LOOK, Seen, Step, Wait};
use xtask::time::Moment;

use super::wait::{at, claim};

/// Whoever is on the port in a random world.
#[derive(Debug, Clone, Copy)]
enum World {
    /// A holder: a banner, and a hang-up after so long; then another one, or none.
    Holders { hold_us: u64 },
    /// A holder that hangs up on everybody, under its own name or always another one.
    Rebuffs { renames: bool },
    /// Anything at all, at random.
    Anything,
    /// Nobody answers a connect.
    Full,
    /// Bound, and nobody listens; now and then somebody does.
    Refuses,
}

/// Runs a wait against a world that answers at once, in which nobody ever lets us win; the steps it took.
fn simulate(world: World, budget_ms: u64, seed: u64) -> u64 {
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let end = at(budget_ms);
    let glance = Duration::from_millis(500);
    let mut wait = Wait::new(at(0), Duration::from_millis(budget_ms), Vec::new(), seed);
    let (mut now, mut step, mut steps) = (Moment::from_nanos(1), Step::Try, 0_u64);
    // When the holder hangs up on the connection, if there is one, and whether it has said its line.
    let (mut line, mut greeted, mut name) = (None::<Moment>, false, 0_u64);
    loop {
        steps += 1;
        assert!(steps < 1_000_000, "a loop: {world:?}, seed {seed}");
        // Doing something takes a moment.
        now = now + Duration::from_micros(20);
        let seen = match step {
            Step::Keep => panic!("kept what was never won: {world:?}, seed {seed}"),
            Step::Fail(Failure::Spent) => {
                let most = end.max(at(0) + LOOK) + glance + Duration::from_millis(10);
                assert!(now >= end && now < most, "{world:?}, seed {seed}");
                return steps;
            }
            Step::Fail(failure) => {
                let foreign = matches!(failure, Failure::Foreign(_));
                assert!(foreign && !matches!(world, World::Holders { .. }), "{failure:?} in {world:?}, seed {seed}");
                return steps;
            }
            Step::Try => Seen::Busy,
            Step::Pause(until) => {
                assert!(until <= end.max(now + glance), "sleeps past the budget: {world:?}, seed {seed}");
                line = None;
                now = now.max(until);
                Seen::Passed
            }
            Step::Connect(until) => {
                assert!(until <= end.max(now + glance), "connects past the budget: {world:?}, seed {seed}");
                (line, greeted) = (None, false);
                let refuses = match world {
                    World::Full => Some(Seen::NoAnswer("full".to_owned())),
                    World::Refuses if next(50) > 0 => Some(Seen::Refused),
                    World::Anything if next(3) == 0 => Some(Seen::Refused),
                    World::Anything if next(4) == 0 => Some(Seen::NoAnswer(String::new())),
                    _ => None,
                };
                if let (Some(Seen::NoAnswer(_)), true) = (&refuses, next(2) == 0) {
                    now = now.max(until);
                }
                refuses.unwrap_or_else(|| {
                    let hold_us = match world {
                        World::Holders { hold_us } => 1 + next(hold_us),
                        World::Anything => next(10_000_000),
                        _ => 0,
                    };
                    line = Some(now + Duration::from_micros(hold_us));
                    Seen::Connected
                })
            }
            Step::Hear(until) => {
                assert!(until <= end.max(now + glance), "listens past the budget: {world:?}, seed {seed}");
                let gone = line.unwrap_or_else(|| panic!("listens to nobody: {world:?}, seed {seed}"));
                let mute = matches!(world, World::Anything) && next(2) == 0;
                let speaks = !greeted && !mute;
                if speaks {
                    greeted = true;
                    if !matches!(world, World::Rebuffs { renames: false }) {
                        name += 1;
                    }
                    Seen::Banner(Box::new(claim(&format!("r-{name}"))))
                } else if gone <= until {
                    now = now.max(gone);
                    line = None;
                    Seen::HungUp { reset: next(20) > 0 }
                } else {
                    now = now.max(until);
                    let all = [Accepted::Yes, Accepted::No, Accepted::Nowhere, Accepted::Unknown];
                    Seen::Quiet(if greeted { Accepted::Yes } else { all[next(4) as usize] })
                }
            }
        };
        step = wait.on(now, None, seen).0;
    }
}

#[test]
fn whatever_is_on_the_port_the_wait_ends_in_time_and_never_in_a_loop() {
    for seed in 1..60 {
        let budget_ms = [0, 1, 700, 5_000, 40_000][seed as usize % 5];
        for world in [
            World::Holders { hold_us: 60_000_000 },
            World::Holders { hold_us: 500 },
            World::Rebuffs { renames: false },
            World::Rebuffs { renames: true },
            World::Anything,
            World::Full,
            World::Refuses,
        ] {
            let steps = simulate(world, budget_ms, seed);
            // A hand-over takes four steps, and there may be 200 in a second before anybody pauses.
            let most = 2_000 + budget_ms * 2;
            assert!(steps <= most, "{steps} steps in {budget_ms} ms: {world:?}, seed {seed}");
        }
    }
}
