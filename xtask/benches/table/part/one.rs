//! What a whole command costs for one task that does nothing.

use std::process::Command;

use crate::peers::{empty_tests, nextest_way, suite_of, trues, way, write_files};
use crate::progress::Progress;
use crate::table::{Aim, Row, Unit};
use crate::turns::{Way, in_turns};
use crate::world::World;

pub fn measure(progress: &Progress, rounds: usize) -> Vec<Row> {
    let jobs = trues(1);
    let world = World::new(&suite_of(&jobs));
    let folder = world.folder.path();
    write_files(folder, &jobs);
    let ways = vec![
        Way::command("spawn and wait", || Command::new("true")),
        Way::command("verify", || world.command(&["verify"])),
        Way::command("lock run", || world.command(&["lock", "run", "--", "true"])),
        way("make", "make", folder),
        way("ninja", "ninja", folder),
        way("just", "just", folder),
        nextest_way("cargo nextest, one test", folder, &empty_tests(1)),
    ];
    let all = in_turns(progress, rounds, ways);
    let row = |what: &str, at: usize| Row::new(what, Unit::Ms).ours(all[at].ms()).floor(all[0].line());
    vec![
        row("whole `verify` of one task `true`, both snapshots of the tree included", 1)
            .aim(Aim::OverFloor(50.0))
            .beside(all[3..].iter().map(|way| way.line())),
        row("the same without snapshots: `lock run -- true`", 2).aim(Aim::OverFloor(10.0)),
    ]
}
