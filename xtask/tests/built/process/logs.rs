//! Logs: capped, kept byte for byte, shown harmlessly.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use xtask::process::log::{create, look_again, tail};

use crate::process::field::runner_of;
use crate::process::{Ran, suite, task, token};
use crate::world::{Folder, World, until};

#[test]
fn a_flood_is_stopped_at_the_cap_and_fills_no_memory() {
    let token = token();
    // It ignores TERM, and would write for the whole grace.
    let flood = task("bad", "deaf say begun flood 400000000000 hang", &token, "log-limit = \"8MiB\"");
    let world = World::new(&suite(&flood).replace("300ms", "2s"));
    let mut running = world.start(&["verify"]);
    let (mut peak, mut largest) = (0, 0);
    let size = || {
        let runs = std::fs::read_dir(world.repo.join("target/xtask-runs")).into_iter().flatten();
        runs.filter_map(|run| run.ok()?.path().join("bad.log").metadata().ok()).map(|log| log.len()).max().unwrap_or(0)
    };
    until("the end", || {
        if let Some(runner) = runner_of(running.pid()) {
            let status = std::fs::read_to_string(format!("/proc/{runner}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            peak = peak.max(line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0));
        }
        largest = largest.max(size());
        running.child.try_wait().unwrap().is_some()
    });
    let done = running.wait().expect(1).says("log-limit").says("a line of a flood");
    let ran = Ran::of(world, done, &token);
    ran.expect("bad", "failed", &["SIGTERM", "SIGKILL"]);
    assert!((8 << 20..700 << 20).contains(&largest), "the log had {largest} bytes");
    assert!((1..64 << 10).contains(&peak), "the runner had {peak} KiB");
    let log = ran.world.repo.join(ran.task("bad")["log"].as_str().unwrap());
    assert_eq!(log.metadata().unwrap().len(), 8 << 20, "what came after the cap is cut off");
}

#[test]
fn a_flood_that_is_over_before_anybody_looks_fails_its_task_too() {
    until("a round in which it is over first", || {
        let token = token();
        let flood = task("bad", "flood 5000", &token, "log-limit = \"4KiB\"");
        let ran = Ran::new(&suite(&flood), &token, 1);
        assert_eq!(ran.task("bad")["why"], "wrote more than its log-limit of 4096 bytes");
        let log = ran.world.repo.join(ran.task("bad")["log"].as_str().unwrap());
        assert_eq!(log.metadata().unwrap().len(), 4096);
        let looked = !ran.task("bad")["signals"].as_array().unwrap().is_empty();
        if !looked {
            ran.expect("bad", "failed", &[]);
        }
        !looked
    });
}

#[test]
fn bytes_that_are_no_text_are_kept_and_shown_as_such() {
    let token = token();
    let ran = Ran::new(&suite(&task("bad", "bytes 66fffe6f0a say end exit 1", &token, "")), &token, 1);
    let log = ran.world.repo.join(ran.task("bad")["log"].as_str().unwrap());
    assert_eq!(std::fs::read(log).unwrap(), b"f\xff\xfeo\nend\n");
    ran.done.says("f\u{fffd}\u{fffd}o");
}

#[test]
fn a_log_can_be_read_while_its_task_runs() {
    let token = token();
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    let go = world.folder.path().join("go");
    world.write("ci/suite.toml", &suite(&task("a", &format!("say first until {} say last", go.display()), &token, "")));
    world.commit("waits");
    let running = world.start(&["verify"]);
    until("the first line", || {
        let runs = std::fs::read_dir(world.repo.join("target/xtask-runs")).into_iter().flatten();
        runs.filter_map(|run| std::fs::read(run.unwrap().path().join("a.log")).ok()).any(|text| text == b"first\n")
    });
    std::fs::write(go, "").unwrap();
    let ran = Ran::of(world, running.wait().expect(0), &token);
    assert_eq!(ran.log("a"), "first\nlast\n");
}

#[test]
fn a_tail_has_the_last_lines_and_counts_all() {
    let folder = Folder::new();
    let path = folder.path().join("log");
    let tail_of = |text: &str, count| {
        std::fs::write(&path, text).unwrap();
        let tail = tail(&std::fs::File::open(&path).unwrap(), count).unwrap();
        (tail.lines.join("|"), tail.total)
    };
    assert_eq!(tail_of("", 3), (String::new(), 0));
    assert_eq!(tail_of("a\nb\nc\nd\n", 2), ("c|d".into(), 4));
    assert_eq!(tail_of("a\n\nc", 9), ("a||c".into(), 3));
    assert_eq!(tail_of("\n\nx\n", 9), ("||x".into(), 3));
    // It goes where no escape sequence can stand: JUnit's XML has no way to write one.
    assert_eq!(tail_of("\u{1b}[31mred\u{1b}[0m\u{1b}[2J done\n", 1), ("red done".into(), 1));
    let many: String = (0..100_000).map(|i| format!("line {i}\n")).collect();
    assert_eq!(tail_of(&many, 2), ("line 99998|line 99999".into(), 100_000));
    // One line longer than what is looked at: its end is all there is to show, and it is cut.
    let (shown, total) = tail_of(&format!("first\n{}", "x".repeat(1 << 20)), 5);
    assert_eq!((shown.chars().filter(|&c| c == 'x').count(), total), (1_997, 2));
    let (shown, _) = tail_of(&format!("{}\nlast\n", "x".repeat(1 << 20)), 5);
    assert_eq!(shown, "last");
}

#[test]
fn a_log_near_its_limit_is_looked_at_more_often() {
    assert_eq!(look_again(0, 64 << 20).as_millis(), 31);
    assert_eq!(look_again(64 << 20, 64 << 20).as_millis(), 5);
    assert_eq!(look_again(0, 64 << 30).as_millis(), 250);
}

/// What a task does to the folder of the logs (`cargo clean`) changes nothing for the logs that are being written.
#[test]
fn a_log_that_was_removed_is_still_cut_and_shown() {
    let token = token();
    let flood = "rm -rf target; echo first; yes | head -c 30000000; true";
    let failing = "rm -rf target; echo the reason; exit 5";
    let table = |name: &str, script: &str, more: &str| {
        format!("[task.{name}]\ncommand = ['sh', '-c', '{script}', '{token}']\ndeadline = \"40s\"\n{more}\n")
    };
    let tasks = [
        table("flood", flood, "log-limit = \"1MiB\""),
        table("failing", failing, "needs = [\"late\"]"),
        table("late", "true", ""),
    ];
    let world = World::new(&suite(&tasks.concat()));
    world.write(".gitignore", "");
    world.commit("nothing is ignored");
    let done = world.run(&["verify"]).expect(1).says("the reason");
    let ran = Ran::of(world, done, &token);
    assert_eq!(ran.task("flood")["verdict"], "failed");
    assert!(ran.task("flood")["why"].as_str().unwrap().contains("log"), "{:#}", ran.task("flood"));
    assert_eq!(ran.receipt["predicate"]["tree"]["changed"], "no", "{}", ran.done.err);
}

#[test]
fn a_log_is_made_although_a_task_removes_the_folder_again_and_again() {
    let folder = Folder::new();
    let (target, over) = (folder.path().join("target"), AtomicBool::new(false));
    let removed = std::thread::scope(|scope| {
        let remover = scope.spawn(|| {
            let mut removed = 0;
            while !over.load(Ordering::Relaxed) {
                removed += u32::from(std::fs::remove_dir_all(&target).is_ok());
            }
            removed
        });
        let made = (0..500).try_for_each(|n| {
            let (mut written, mut read) = create(&target.join(format!("xtask-runs/run/{n}.log")))?;
            written.write_all(b"a line")?;
            let mut text = String::new();
            read.read_to_string(&mut text)?;
            assert_eq!(text, "a line", "the two files are one");
            std::io::Result::Ok(())
        });
        over.store(true, Ordering::Relaxed);
        made.expect("a log");
        remover.join().expect("the remover ends")
    });
    assert!(removed > 0, "nothing was ever removed");
}

#[test]
fn what_a_task_puts_at_the_place_of_a_log_to_come_is_no_log() {
    let folder = Folder::new();
    let (run, other) = (folder.path().join("runs/run"), folder.path().join("other"));
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(&other, "somebody's").unwrap();
    std::os::unix::fs::symlink(&other, run.join("link.log")).unwrap();
    std::os::unix::fs::symlink("nowhere", run.join("dangling.log")).unwrap();
    nix::unistd::mkfifo(&run.join("fifo.log"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(run.join("folder.log")).unwrap();
    std::fs::hard_link(&other, run.join("file.log")).unwrap();
    for name in ["link", "dangling", "fifo", "folder", "file"] {
        let path = run.join(format!("{name}.log"));
        let (mut written, _) = create(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        written.write_all(b"a line").unwrap();
        assert!(path.symlink_metadata().unwrap().is_file(), "{name}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a line", "{name}");
    }
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "somebody's");
    std::os::unix::fs::symlink(folder.path().join("never"), folder.path().join("runs/.gitignore")).unwrap();
    std::fs::remove_dir_all(&run).unwrap();
    create(&run.join("again.log")).expect("a log in a folder made anew");
    assert!(!folder.path().join("never").exists(), "made through a link");
    // One with something in it is not thrown away.
    std::fs::create_dir_all(run.join("full.log/inside")).unwrap();
    create(&run.join("full.log")).expect_err("a folder with something in it");
}

#[test]
fn both_files_are_one_although_a_task_puts_others_there_meanwhile() {
    let folder = Folder::new();
    let (run, over) = (folder.path().join("runs/run"), AtomicBool::new(false));
    std::fs::create_dir_all(&run).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let another = folder.path().join("another");
            while !over.load(Ordering::Relaxed) {
                std::fs::write(&another, "another").unwrap();
                std::fs::rename(&another, run.join("one.log")).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(20));
            }
        });
        let read = (0..500).map(|_| {
            let (mut written, mut read) = create(&run.join("one.log"))?;
            written.write_all(b"a line")?;
            let mut text = String::new();
            read.read_to_string(&mut text).map(|_| text)
        });
        let read: std::io::Result<Vec<String>> = read.collect();
        over.store(true, Ordering::Relaxed);
        assert!(read.expect("a log").iter().all(|text| text == "a line"));
    });
}
