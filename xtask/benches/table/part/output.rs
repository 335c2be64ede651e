//! What a task that prints very much costs, in time and in memory.

use std::process::Command;

use crate::apart::run_apart;
use crate::fixture::misbehave;
use crate::peers::{Job, in_folder, is_installed, nextest, suite, write_files};
use crate::progress::Progress;
use crate::table::{Aim, Row, Unit};
use crate::turns::{Measured, Way, in_turns};
use crate::world::World;

const BYTES: &str = "200000000";

pub fn measure(progress: &Progress, rounds: usize) -> Vec<Row> {
    let command = format!("{} flood {BYTES}", misbehave().display());
    let table = format!("[task.a]\ncommand = {command:?}\ndeadline = \"60s\"\nlog-limit = \"1GiB\"");
    let world = World::new(&suite(&table));
    let folder = world.folder.path();
    write_files(folder, &[Job { name: "a".into(), command: command.clone(), needs: Vec::new() }]);
    let file = folder.join("direct");
    let peer = |program: &'static str| match is_installed(program) {
        true => Way::new(program, || run_apart(Some(&file), &in_folder(program, folder))),
        false => Way::missing(program),
    };
    let test = format!(
        "#[test]\nfn flood() {{\n    use std::os::unix::process::CommandExt;\n    \
         panic!(\"{{}}\", std::process::Command::new({:?}).args([\"flood\", {BYTES:?}]).exec());\n}}\n",
        misbehave().display().to_string()
    );
    let ways = vec![
        Way::new("to a file directly", || run_apart(Some(&file), Command::new(misbehave()).args(["flood", BYTES]))),
        Way::new("verify", || {
            let cost = run_apart(None, &world.command(&["verify"]));
            // One at a time: gigabytes stay nowhere.
            let _ = std::fs::remove_dir_all(world.repo.join("target/xtask-runs"));
            cost
        }),
        peer("make"),
        peer("ninja"),
        match nextest(folder, &test, "") {
            Some(make) => Way::new("cargo nextest", move || run_apart(None, &make())),
            None => Way::missing("cargo nextest"),
        },
    ];
    let all = in_turns(progress, rounds, ways);
    let mib = |way: &Measured| way.line_of(Measured::mib);
    vec![
        Row::new("200 MB printed by a task, whole `verify`", Unit::Ms)
            .aim(Aim::OfFloor(1.1))
            .ours(all[1].ms())
            .floor(all[0].line())
            .beside(all[2..].iter().map(Measured::line)),
        Row::new("the same, memory at its peak", Unit::Mib)
            .aim(Aim::Every(12.0))
            .ours(all[1].mib())
            .floor(mib(&all[0]))
            .beside(all[2..].iter().map(mib)),
    ]
}
