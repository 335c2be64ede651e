//! How long the gate takes to judge a signed receipt, and how long it takes to read a tree.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::keyring::{Keyring, RECEIPTS, SUITE, signature_of};
use crate::peers::is_installed;
use crate::progress::Progress;
use crate::table::{Aim, Row, Unit};
use crate::turns::{Cost, Way, in_turns, rounds as in_rounds, run, timed};
use crate::world::{Folder, World};
use xtask::repo::Repo;
use xtask::sys;

pub fn gate(progress: &Progress, rounds: usize) -> Vec<Row> {
    let row = Row::new("`check-receipt`, signature included", Unit::Ms).aim(Aim::Median(25.0));
    if !is_installed("ssh-keygen") {
        return vec![row.unmeasured("ssh-keygen is not installed")];
    }
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    let (world, ci) = (&keyring.world, keyring.world.repo.join("ci"));
    let ssh_keygen = || {
        let mut command = Command::new("ssh-keygen");
        command.args(["-Y", "verify", "-I", "local", "-n", RECEIPTS, "-f"]).arg(ci.join("allowed_signers"));
        command.arg("-r").arg(ci.join("revoked_keys")).arg("-s").arg(signature_of(&path));
        let receipt = fs::File::open(&path).expect("the receipt");
        let took = timed(|| {
            let done = command.stdin(receipt).stdout(Stdio::null()).stderr(Stdio::null()).status();
            assert!(done.expect("it runs").success());
        });
        Cost { took, peak_kib: 0 }
    };
    let git = || {
        let mut command = Command::new("git");
        command.args(["rev-parse", "HEAD"]).current_dir(&world.repo);
        command
    };
    let ways = vec![
        Way::command("check-receipt", || world.command(&["check-receipt"])),
        Way::new("ssh-keygen -Y verify alone", ssh_keygen),
        Way::command("xtask check-receipt --unsigned", || world.command(&["check-receipt", "--unsigned"])),
        Way::command("git rev-parse HEAD alone", git),
    ];
    let all = in_turns(progress, rounds, ways);
    vec![row.ours(all[0].ms()).floor(all[1].line()).beside(all[2..].iter().map(|way| way.line()))]
}

pub fn snapshot(progress: &Progress, files: usize) -> Vec<Row> {
    let mut tree = Tree::new();
    let few = in_rounds(progress, "snapshot of 3 files", 20, || tree.snapshot());
    tree.grow(progress, files);
    let (world, aside) = (&tree.world, tree.world.folder.path().join("aside"));
    let aside = aside.to_str().expect("a plain path");
    let floor = || {
        let mut command = Command::new("sh");
        command.args(["-c", "git ls-files | git hash-object --stdin-paths"]).current_dir(&world.repo);
        run(&mut command)
    };
    let worktree = || {
        let took = timed(|| _ = world.git(&["worktree", "add", "--quiet", aside, "HEAD"]));
        world.git(&["worktree", "remove", "--force", aside]);
        Cost { took, peak_kib: 0 }
    };
    let ways = vec![
        Way::new("snapshot", || Cost { took: tree.snapshot(), peak_kib: 0 }),
        Way::new("git hash-object of every file", floor),
        Way::new("git worktree add", worktree),
    ];
    let all = in_turns(progress, 5, ways);
    let row = Row::new(&format!("snapshot of a tree of {files} files, cold"), Unit::Ms).ours(all[0].ms());
    // The aim is for 20,000.
    let row = if files == 20_000 { row.aim(Aim::Median(900.0)) } else { row };
    let few = crate::table::Line::new("xtask, of 3 files", few);
    vec![row.floor(all[1].line()).beside([all[2].line(), few])]
}

/// A repository that grows.
pub struct Tree {
    world: World,
    there: usize,
}

impl Tree {
    pub fn new() -> Self {
        Self { world: World::new(SUITE), there: 0 }
    }

    /// To so many files of 200 to 12,000 bytes, as source files are.
    pub fn grow(&mut self, progress: &Progress, files: usize) {
        for number in self.there..files {
            if number % 1000 == 0 {
                progress.step(&format!("writing files: {number} of {files}"));
            }
            let text = format!("{number}\n").repeat(40 + number * 7919 % 2000);
            self.world.write(&format!("d{}/s{}/f{number}", number % 20, number % 400), &text);
        }
        self.there = files;
        progress.step("committing them");
        self.world.commit("more");
    }

    pub fn snapshot(&self) -> Duration {
        read(&self.world.repo)
    }
}

fn read(root: &Path) -> Duration {
    let repo = Repo::find(root).expect("a repository");
    let scratch = Folder::new();
    let limit = sys::now() + Duration::from_secs(600);
    timed(|| assert!(repo.snapshot(scratch.path(), limit, &|| false).expect("a snapshot").clean()))
}
