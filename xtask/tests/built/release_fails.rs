//! What goes wrong once a release has begun: nothing is left of it, and no signature anywhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::interposed::compiled;
use crate::keyring::{BOTH, Keyring, SUITE};
use crate::lock_exclusion::copy_for_all;
use crate::process::token_seconds;
use crate::release::{names, nothing_signed, suite_with, tagged};
use crate::world::{Running, processes_with, program, skipped, until};

#[test]
fn a_folder_that_appears_during_the_run_is_not_replaced() {
    let keyring = tagged(&suite_with("mkdir -p receipts/v1"));
    keyring.release("v1").expect(7).says("receipts/v1 appeared during the run");
    assert_eq!(names(&keyring.world.repo.join("receipts/v1")), [""; 0]);
}

/// Signed in time, but judged until after the deadline.
#[test]
fn a_release_that_becomes_late_at_its_very_end_is_none() {
    let suite = suite_with("touch ../slow").replace("\"5m\"", "\"15s\"\nstop-grace = \"1s\"\nwrap-up = \"3s\"");
    let keyring = tagged(&suite.replace("\"1m\"", "\"5s\""));
    let mut command = keyring.world.command(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
    let slow = keyring.world.folder.path().join("slow");
    // Once is enough.
    let script = format!("case \"$*\" in *'-Y verify'*) rm {} 2>/dev/null && sleep 16;; esac", slow.display());
    keyring.before_ssh_keygen(&mut command, &script);
    Running::start(command, &keyring.world.folder).wait().expect(3).says("not signed");
    nothing_signed(&keyring);
}

#[test]
fn a_run_that_does_not_pass_is_not_signed() {
    for (script, code) in [("exit 3", 1), ("sleep 100", 3), ("echo x > ci/new; rm ci/new; echo x > draft", 7)] {
        let suite = suite_with(script);
        let short = suite.replacen("deadline = \"1m\"", "deadline = \"1s\"", 1);
        let keyring = tagged(if code == 3 { &short } else { &suite });
        keyring.release("v1").expect(code).says("not signed, nothing was written to receipts/v1");
        nothing_signed(&keyring);
        assert_eq!(keyring.world.receipts().len(), 1, "the run itself has a receipt");
    }
    let keyring = tagged(&SUITE.replace("echo app > target/app", "true"));
    keyring.world.write("target/app", "built by hand");
    keyring.release("v1").expect(1).says("did not make its output");
    nothing_signed(&keyring);
}

#[test]
fn an_output_that_changed_after_its_task_is_not_signed() {
    let suite = SUITE.to_owned()
        + "[task.late]\ncommand = [\"sh\", \"-c\", \"echo more >> target/app\"]\nneeds = [\"build\"]\ndeadline = \"1m\"\n";
    let keyring = tagged(&suite);
    keyring.release("v1").expect(6).says("artifact-digest");
    nothing_signed(&keyring);
}

#[test]
fn a_key_that_is_gone_or_expired_after_the_run_signs_nothing() {
    let keyring = tagged(&suite_with("rm ../key-release"));
    keyring.release("v1").expect(7).says("not signed");
    nothing_signed(&keyring);

    // A key that expires while a task runs. Where the machine is so slow that it expires before the run, it gets longer.
    for seconds in [4, 16, 64] {
        let keyring = Keyring::new(&suite_with("until test -e ../go; do sleep 0.05; done"));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let end = now() + seconds;
        let when: String = xtask::time::utc(end * 1000).chars().filter(char::is_ascii_digit).collect();
        let line = keyring.line("release", BOTH, &format!(",valid-before=\"{when}Z\""));
        keyring.world.write("ci/allowed_signers", &line);
        keyring.world.commit("a key that expires");
        keyring.world.git(&["tag", "v1"]);
        let mut run = keyring.world.start(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
        until("a run or its end", || {
            run.child.try_wait().unwrap().is_some() || !keyring.world.repo.join("target/app").exists()
        });
        until("the key's end", || now() > end);
        fs::write(keyring.world.folder.path().join("go"), "").unwrap();
        let done = run.wait();
        if done.code == 2 {
            continue;
        }
        done.expect(6).says("signer-not-valid").says("expired at");
        nothing_signed(&keyring);
        return;
    }
    panic!("the key always expired before the run");
}

/// A key that waits for somebody until after the deadline, as a hardware key does.
#[test]
fn a_signature_that_comes_too_late_is_none() {
    let suite = suite_with("touch ../slow")
        .replace("deadline = \"5m\"", "deadline = \"20s\"\nstop-grace = \"1s\"\nwrap-up = \"3s\"");
    let keyring = tagged(&suite.replace("\"1m\"", "\"8s\""));
    let token = token_seconds();
    let mut command = keyring.world.command(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
    keyring.slow_ssh_keygen(&mut command, &token);
    Running::start(command, &keyring.world.folder).wait().expect(3).says("did not sign in time").says("not signed");
    nothing_signed(&keyring);
    until("the end of what waited", || processes_with(&token).is_empty());
}

/// Somebody who wants to stop is heard to the end, also while a key waits for somebody.
#[test]
fn a_release_that_is_cancelled_while_it_signs_is_none() {
    let keyring = tagged(&suite_with("touch ../slow"));
    let token = token_seconds();
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let mut command = keyring.world.command(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
        keyring.slow_ssh_keygen(&mut command, &token);
        let run = Running::start(command, &keyring.world.folder);
        until("the wait for a touch", || !processes_with(&token).is_empty());
        run.signal(signal);
        run.wait().expect(code).says("did not sign: cancelled").says("not signed");
        nothing_signed(&keyring);
        until("the end of what waited", || processes_with(&token).is_empty());
        fs::remove_file(keyring.world.folder.path().join("slow")).unwrap();
    }
}

/// Nor while ssh-keygen checks what was signed, first the receipt and then the list.
#[test]
fn a_release_that_is_cancelled_while_it_is_judged_is_none() {
    let keyring = tagged(&suite_with("touch ../slow"));
    let token = token_seconds();
    let slow = keyring.world.folder.path().join("slow");
    for namespace in ["xtask-receipt-v1", "xtask-release-v1"] {
        let mut command = keyring.world.command(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
        let which = format!("*'-Y verify'*'-n {namespace}'*");
        let script = format!("case \"$*\" in {which}) test -e {} && sleep 300 {token};; esac", slow.display());
        keyring.before_ssh_keygen(&mut command, &script);
        let run = Running::start(command, &keyring.world.folder);
        until("the check", || !processes_with(&token).is_empty());
        run.signal(Signal::SIGTERM);
        run.wait().expect(143).says("did not check the signature: cancelled").says("not signed");
        nothing_signed(&keyring);
        until("the end of what waited", || processes_with(&token).is_empty());
        fs::remove_file(&slow).unwrap();
    }
}

/// A check that does not end is over with the run's deadline, and so is the lock.
#[test]
fn a_release_that_is_judged_for_ever_is_late() {
    let suite = suite_with("touch ../slow").replace("\"5m\"", "\"15s\"\nstop-grace = \"1s\"\nwrap-up = \"3s\"");
    let keyring = tagged(&suite.replace("\"1m\"", "\"5s\""));
    let token = token_seconds();
    let slow = keyring.world.folder.path().join("slow");
    let mut command = keyring.world.command(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
    let script = format!("case \"$*\" in *'-Y verify'*) test -e {} && sleep 300 {token};; esac", slow.display());
    keyring.before_ssh_keygen(&mut command, &script);
    let done = Running::start(command, &keyring.world.folder).wait();
    done.expect(3).says("did not check the signature in time").says("not signed");
    nothing_signed(&keyring);
    until("the end of what waited", || processes_with(&token).is_empty());
}

/// A folder that may be written to but not opened cannot be synced, so nobody knows whether it would outlast a power cut.
#[test]
fn a_release_whose_folder_cannot_be_synced_is_none() {
    let keyring = Keyring::new(SUITE);
    keyring.world.git(&["tag", "rel/1"]);
    let parent = keyring.world.repo.join("receipts/rel");
    fs::create_dir_all(&parent).unwrap();
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o333)).unwrap();
    let mut command = Command::new(copy_for_all(program(), &keyring.world.folder));
    command.args(["release", "rel/1", "--key"]).arg(keyring.key("release"));
    keyring.world.dress(&mut command);
    if nix::unistd::geteuid().is_root() {
        let folder = keyring.world.folder.path();
        assert!(Command::new("chown").args(["-R", "65534:65534"]).arg(folder).status().unwrap().success());
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        std::os::unix::process::CommandExt::gid(&mut command, 65534);
    }
    Running::start(command, &keyring.world.folder).wait().expect(7).says("cannot be synced").says("not signed");
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(names(&parent), [""; 0]);
}

/// The last moments before a release is there, each at its own: between the program and the C library, because nothing else
/// happens in them.
#[test]
fn a_release_whose_last_step_goes_wrong_is_none() {
    let keyring = Keyring::new(SUITE);
    keyring.world.git(&["tag", "rel/1"]);
    let Some(library) = compiled(&keyring.world) else {
        return skipped("a_release_whose_last_step_goes_wrong_is_none", "there is no C compiler");
    };
    let parent = keyring.world.repo.join("receipts/rel");
    fs::create_dir_all(&parent).unwrap();
    let go = keyring.world.folder.path().join("go");
    let start = |how: &[(&str, &Path)]| {
        let key = keyring.key("release");
        let mut command = keyring.world.command(&["release", "rel/1", "--key", key.to_str().unwrap()]);
        command.env("LD_PRELOAD", &library).envs(how.iter().copied());
        Running::start(command, &keyring.world.folder)
    };
    let done = start(&[("INTERPOSED_NO_SYNC", &parent)]).wait().expect(7);
    done.says("receipts/rel cannot be synced").says("not signed");
    assert_eq!(names(&parent), [""; 0], "it was there for a moment");

    let held = |more: &[(&str, &Path)], before: &dyn Fn(&Running)| {
        let run = start(&[more, &[("INTERPOSED_HELD", Path::new("SHA256SUMS.sig")), ("INTERPOSED_GO", &go)]].concat());
        until("the last signature", || go.with_extension("held").exists());
        before(&run);
        fs::write(&go, "").unwrap();
        let done = run.wait().says("not signed");
        assert_eq!(names(&parent), [""; 0]);
        [&go, &go.with_extension("held")].iter().for_each(|path| fs::remove_file(path).unwrap());
        done
    };
    held(&[], &|run| run.signal(Signal::SIGINT)).expect(130).says("cancelled");
    held(&[("INTERPOSED_STANDSTILL", &go)], &|_| {}).expect(3).says("LATE signing took until after the run's deadline");
}

#[test]
fn a_tag_that_is_moved_or_removed_during_the_run_is_not_released() {
    for change in ["git tag -d v1", "git tag -f v1 HEAD~1"] {
        let keyring = tagged(&suite_with(change));
        keyring.release("v1").expect(7).says("the tag v1 was moved or removed during the run");
        keyring.refused(&["receipts/v1/receipt.json"], &["receipt-file", "signature-missing"]);
        assert!(!keyring.world.repo.join("receipts/v1").exists());
    }
}

/// A disk that takes no more: the folder of receipts is a small file system of its own.
#[test]
fn a_full_disk_leaves_no_release() {
    let keyring = tagged(&SUITE.replace("echo app > target/app", "head -c 1000000 /dev/zero > target/app"));
    let receipts = keyring.world.repo.join("receipts");
    fs::create_dir(&receipts).unwrap();
    let plain = keyring.world.command(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
    let script = "mount -t tmpfs -o size=256k none receipts || exit 99; \"$@\"; code=$?; find receipts; exit $code";
    let mut command = Command::new("unshare");
    command
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(plain.get_program())
        .args(plain.get_args());
    command.current_dir(&keyring.world.repo);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let done = Running::start(command, &keyring.world.folder).wait();
    if done.code == 99 || done.err.contains("unshare") {
        skipped("a_full_disk_leaves_no_release", "this user may not mount anything");
        return;
    }
    let done = done.expect(7).says("app cannot be copied");
    let left: Vec<&str> = done.out.lines().collect();
    assert!(left.len() == 2 && left[1].ends_with(".json"), "{left:?}");
}

/// Killed at a moment of the seed's choosing: the release is there and whole, or it is not there.
fn killed(seed: u64, rounds: u64) {
    let keyring = tagged(SUITE);
    let mut state = seed;
    let mut random = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
    };
    let folder = keyring.world.repo.join("receipts/v1");
    let begun = std::time::Instant::now();
    keyring.release("v1").expect(0);
    let whole = u64::try_from(begun.elapsed().as_millis()).unwrap().max(1);
    for round in 0..rounds {
        let _ = fs::remove_dir_all(&folder);
        let mut run = keyring.world.start(&["release", "v1", "--key", keyring.key("release").to_str().unwrap()]);
        let after = Duration::from_millis(random() % (whole + whole / 4));
        let begun = std::time::Instant::now();
        until("the moment or the end", || begun.elapsed() >= after || run.child.try_wait().unwrap().is_some());
        if run.child.try_wait().unwrap().is_none() {
            run.signal(Signal::SIGKILL);
        }
        run.wait();
        if folder.exists() {
            keyring.accepted(&["v1"]);
        } else {
            keyring.refused(&["v1"], &["receipt-file", "signature-missing"]);
        }
        let context = format!("seed {seed}, round {round}, after {after:?}");
        let left = names(&keyring.world.repo.join("receipts"));
        assert!(left.iter().all(|name| !name.ends_with(".sig")), "{context}: {left:?}");
    }
    let _ = fs::remove_dir_all(&folder);
    keyring.release("v1").expect(0);
    let left = names(&keyring.world.repo.join("receipts"));
    assert!(left.iter().all(|name| !name.starts_with('.')), "what killed runs left is still there: {left:?}");
}

#[test]
fn a_release_that_is_killed_is_there_whole_or_not_at_all() {
    killed(7, 8);
}

/// The same a hundred times, for a machine that has nothing else to do.
#[test]
#[ignore = "a hundred rounds"]
fn a_release_that_is_killed_a_hundred_times() {
    killed(1, 100);
}

/// How the run went is known, but not which receipt it has written.
#[test]
fn a_run_whose_receipt_was_not_heard_of_is_not_signed() {
    let keyring = tagged(SUITE);
    let Some(library) = compiled(&keyring.world) else {
        return skipped("a_run_whose_receipt_was_not_heard_of_is_not_signed", "there is no C compiler");
    };
    let key = keyring.key("release").to_str().expect("text").to_owned();
    let run = |args: &[&str], word: &str| {
        let mut command = keyring.world.command(args);
        command.env("LD_PRELOAD", &library).env("INTERPOSED_UNHEARD", word);
        Running::start(command, &keyring.world.folder).wait()
    };
    let done = run(&["release", "v1", "--key", &key], "receipt").expect(7);
    done.says("was not heard").says("not signed, nothing was written to receipts/v1");
    run(&["verify", "--caller", "local", "--key", &keyring.key("local").display().to_string()], "receipt").expect(7);
    nothing_signed(&keyring);
    for path in keyring.world.receipts() {
        let receipt = fs::read_to_string(&path).expect("a receipt");
        assert!(receipt.contains(r#""result": "no-verdict""#), "{receipt}");
    }
    run(&["lock", "run", "--", "true"], "ended").expect(127).says("was not heard");
}

/// More news of tasks than have room on their way to a keeper that a task has stopped; it goes on at the end, and hears all.
#[test]
fn a_keeper_that_was_stopped_hears_of_the_receipt() {
    let mut suite = suite_with("kill -STOP $(ps -o ppid= -p $PPID)");
    for task in 0..400 {
        suite += &format!("[task.t{task}]\ncommand = \"true\"\nneeds = [\"build\"]\ndeadline = \"1m\"\n");
    }
    let keyring = tagged(&suite.replacen("\"5m\"", "\"7h\"", 1));
    keyring.release("v1").expect(0).says("Signed v1 in receipts/v1/");
    assert!(names(&keyring.world.repo.join("receipts/v1")).contains(&"receipt.json.sig".to_owned()));
}
