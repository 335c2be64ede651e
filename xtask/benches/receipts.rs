//! How long the gate takes to judge a signed receipt, and how long it takes to read a tree, each beside what the same
//! programs take for as much by themselves.
//!
//!     cargo bench --bench receipts                    everything
//!     cargo bench --bench receipts -- snapshot 20000  only that part, with so many files
//!     (parts: gate, snapshot)

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use xtask::repo::Repo;
use xtask::sys;

#[path = "../tests/built/keyring.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod keyring;
#[path = "../tests/built/world.rs"]
#[allow(dead_code, reason = "a bench uses a part of it")]
mod world;

use keyring::{Keyring, SUITE, signature_of};
use world::{Folder, World};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let part = args.first().map_or("", String::as_str);
    if matches!(part, "" | "gate") {
        gate();
    }
    if matches!(part, "" | "snapshot") {
        snapshot(args.get(1).map_or(20_000, |count| count.parse().expect("a number")));
    }
}

/// Median and slowest of so many rounds.
fn report(what: &str, rounds: usize, mut once: impl FnMut()) {
    let mut took: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            once();
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    let ms = |took: Duration| took.as_secs_f64() * 1000.0;
    let line = format!("{what:45} p50 {:8.1} ms   max {:8.1} ms", ms(took[rounds / 2]), ms(took[rounds - 1]));
    writeln!(std::io::stdout(), "{line}").expect("stdout");
}

fn quiet(command: &mut Command) {
    let done = command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("it runs");
    assert!(done.success());
}

fn gate() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    report("check-receipt, signature included", 40, || quiet(&mut keyring.world.command(&["check-receipt"])));
    report("check-receipt --unsigned", 40, || quiet(&mut keyring.world.command(&["check-receipt", "--unsigned"])));
    let ci = keyring.world.repo.join("ci");
    report("ssh-keygen -Y verify alone", 40, || {
        let mut command = Command::new("ssh-keygen");
        command.args(["-Y", "verify", "-I", "local", "-n", keyring::RECEIPTS, "-f"]).arg(ci.join("allowed_signers"));
        command.arg("-r").arg(ci.join("revoked_keys")).arg("-s").arg(signature_of(&path));
        quiet(command.stdin(fs::File::open(&path).expect("the receipt")));
    });
    report("git rev-parse HEAD alone", 40, || {
        quiet(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(&keyring.world.repo));
    });
}

fn snapshot(files: usize) {
    let world = World::new(SUITE);
    read(&world.repo, "snapshot of 3 files", 20);
    for number in 0..files {
        // 200 to 12,000 bytes, as source files are.
        let text = format!("{number}\n").repeat(40 + number * 7919 % 2000);
        world.write(&format!("d{}/s{}/f{number}", number % 20, number % 400), &text);
    }
    world.commit("many");
    let aside = world.folder.path().join("aside");
    report(&format!("git worktree add of {files} files"), 3, || {
        world.git(&["worktree", "add", "--quiet", aside.to_str().expect("a plain path"), "HEAD"]);
        world.git(&["worktree", "remove", "--force", aside.to_str().expect("a plain path")]);
    });
    read(&world.repo, &format!("snapshot of {files} files"), 5);
}

fn read(root: &Path, what: &str, rounds: usize) {
    let repo = Repo::find(root).expect("a repository");
    report(what, rounds, || {
        let scratch = Folder::new();
        let found =
            repo.snapshot(scratch.path(), sys::now() + Duration::from_secs(120), &|| false).expect("a snapshot");
        assert!(found.clean());
    });
}
