//! The end of a task: at its deadline, by itself, with what it left behind.

use crate::lock_exclusion::copy_for_all;
use crate::process::{Ran, suite, task, token, token_seconds};
use crate::world::{Folder, World, program, script, skipped};

/// Past a deadline of 3 s, in which also a busy machine has started it, the task is late, got these signals, and nothing of it is left.
#[track_caller]
fn is_late(command: &str, token: &str, signals: &[&str]) -> Ran {
    let ran =
        Ran::new(&with_grace_for(signals, &format!("[task.bad]\ncommand = {command}\ndeadline = \"3s\"")), token, 3);
    assert_eq!(ran.task("bad")["verdict"], "late");
    let sent = ran.task("bad")["signals"].as_array().unwrap();
    // A member that has not quite gone when its leader has is helped along.
    assert!(sent.starts_with(&signals.iter().map(|&s| s.into()).collect::<Vec<_>>()), "{sent:?}");
    let took = ran.task("bad")["took_ms"].as_u64().unwrap();
    assert!((3_000..30_000).contains(&took), "took {took} ms of 300,000");
    ran
}

#[track_caller]
fn shell_is_late(script: &str, signals: &[&str]) -> Ran {
    let token = token_seconds();
    is_late(&format!("['sh', '-c', '{}']", script.replace("300", &format!("300 {token}"))), &token, signals)
}

#[track_caller]
fn fixture_is_late(orders: &str, signals: &[&str]) -> Ran {
    let token = token();
    let ran = Ran::new(&with_grace_for(signals, &task("bad", orders, &token, "deadline = \"3s\"")), &token, 3);
    ran.expect("bad", "late", signals);
    ran
}

// Who ends when asked gets all the time that a busy machine may need for that.
fn with_grace_for(signals: &[&str], tasks: &str) -> String {
    let short = suite(tasks);
    if signals == TERM {
        short.replace("300ms", "20s").replace("wrap-up = \"10s\"", "wrap-up = \"30s\"")
    } else {
        short
    }
}

const TERM: &[&str] = &["SIGTERM"];
const BOTH: &[&str] = &["SIGTERM", "SIGKILL"];

#[test]
fn deadline_takes_a_background_process_along() {
    shell_is_late("sleep 300 & sleep 300", TERM);
}

#[test]
fn deadline_takes_a_new_session_along() {
    shell_is_late("setsid sleep 300 & wait", BOTH);
}

#[test]
fn deadline_is_not_for_the_task_to_ignore() {
    shell_is_late("trap \"\" TERM INT HUP; while :; do sleep 300; done", BOTH);
}

#[test]
fn a_leader_that_leaves_politely_does_not_save_a_deaf_member() {
    fixture_is_late("fork deaf hang end polite hang", BOTH);
}

#[test]
fn deadline_takes_a_chain_of_forks_along() {
    fixture_is_late("fork chain 2000 hang end deaf hang", BOTH);
}

/// More of them than processors: each is killed when it is seen, and named, also where all that one sees is on its way out.
#[test]
fn many_chains_of_forks_that_a_leader_leaves_are_leftovers() {
    let token = token();
    let orders = "fork rush 3000 end ".repeat(8) + "say hi";
    // One after the other: what is seen of them is a matter of luck each time.
    let tables = ["a", "b"].map(|name| task(name, &orders, &token, "cpus = \"all\""));
    let ran = Ran::new(&suite(&tables.concat()), &token, 1);
    for name in ["a", "b"] {
        ran.expect(name, "failed", &[]);
        assert!(!ran.task(name)["leftovers"].as_array().unwrap().is_empty(), "{:#}", ran.task(name));
    }
}

#[test]
fn deadline_takes_daemons_along() {
    // Double fork, a session of its own, nothing open; one without its environment, one that has overwritten it.
    fixture_is_late("fork session leave close hang end fork session leave close bare hang end hang", BOTH);
    fixture_is_late("fork session leave clobber rename sshd deaf hang end hang", BOTH);
}

#[test]
fn deadline_sees_a_process_whose_first_thread_is_gone() {
    fixture_is_late("fork session threads deaf hang end threads deaf hang", BOTH);
}

#[test]
fn deadline_wakes_a_task_that_stopped_itself() {
    fixture_is_late("stop", TERM);
}

#[test]
fn grace_is_for_cleaning_up_and_saves_nobody() {
    let token = token();
    let slow = with_grace_for(TERM, &task("bad", "cleanup say begun hang", &token, "deadline = \"3s\""));
    let ran = Ran::new(&slow, &token, 3);
    ran.expect("bad", "late", TERM);
    assert_eq!(ran.task("bad")["exit"]["code"], 0, "it exits with 0, and is late all the same");
    assert_eq!(ran.log("bad"), "begun\ncleaned up\n");
}

#[test]
fn what_a_task_leaves_behind_fails_it() {
    let token = token_seconds();
    // The shell ends once its child is what it shall be: before, its name is the shell's.
    let script = format!("sleep 20 {token} & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo hi");
    let table = format!("[task.bad]\ncommand = ['sh', '-c', '{script}']\ndeadline = \"60s\"\n");
    let ran = Ran::new(&suite(&table), &token, 1);
    ran.expect("bad", "failed", &[]);
    assert_eq!(ran.task("bad")["leftovers"], serde_json::json!([format!("sleep 20 {token}")]));
    assert_eq!(ran.log("bad"), "hi\n");
    assert!(ran.task("bad")["took_ms"].as_u64().unwrap() < 10_000);

    let ran = Ran::new(&suite(&(table + "leftovers = \"kill\"")), &token, 0);
    ran.expect("bad", "passed", &[]);
    assert_eq!(ran.task("bad")["leftovers"].as_array().unwrap().len(), 1);
}

#[test]
fn a_daemon_left_behind_is_found_whatever_it_sheds() {
    for shed in ["close", "bare", "clobber", "rename cron", "group", "threads", "close bare"] {
        let (token, folder) = (token(), Folder::new());
        let up = folder.path().join("up").display().to_string();
        let orders = format!("fork session leave {shed} touch {up} hang end until {up} say hi");
        let ran = Ran::new(&suite(&task("bad", &orders, &token, "")), &token, 1);
        ran.expect("bad", "failed", &[]);
        assert_eq!(ran.task("bad")["leftovers"].as_array().unwrap().len(), 1, "{shed}: {:#}", ran.task("bad"));
    }
}

#[test]
fn what_ends_with_the_task_is_no_leftover() {
    // A shell does not wait for a process that it writes to.
    let table = "[task.a]\ncommand = ['bash', '-c', 'echo hi > >(sleep 0.02; cat)']\ndeadline = \"60s\"";
    let ran = Ran::new(&suite(table), "no such token", 0);
    ran.expect("a", "passed", &[]);
    assert_eq!(ran.log("a"), "hi\n");
}

#[test]
fn a_process_that_is_not_ours_to_kill_is_named_and_not_waited_for() {
    if !nix::unistd::geteuid().is_root() {
        // Nobody else can make a program of another user's.
        return skipped("a_process_that_is_not_ours_to_kill_is_named_and_not_waited_for", "not root");
    }
    let token = token();
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    // Below a folder that everybody may enter; the test's own is.
    let set_uid = world.folder.path().join("set-uid");
    crate::world::copy_program(crate::process::misbehave(), &set_uid);
    std::fs::set_permissions(&set_uid, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
    let command = format!("[\"{}\", \"root\", \"hang\", \"{token}\"]", set_uid.display());
    world.write("ci/suite.toml", &suite(&format!("[task.bad]\ncommand = {command}\ndeadline = \"1s\"")));
    world.commit("set-uid");
    let all =
        std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(&world.repo).arg(world.scratch()).status();
    assert!(all.unwrap().success());
    let mut command = std::process::Command::new(copy_for_all(program(), &world.folder));
    world.dress(command.arg("verify"));
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    std::os::unix::process::CommandExt::gid(&mut command, 65534);
    let done = crate::world::Running::start(command, &world.folder).wait().expect(7);
    let left = crate::world::processes_with(&token);
    for &pid in &left {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    assert_eq!(left.len(), 1);
    done.says(&format!("process {} (", left[0])).says("belongs to another user");
}

/// Of thousands only a few are named: a receipt has its limit.
#[test]
fn of_many_leftovers_some_are_named_and_all_are_counted() {
    let token = token();
    let orders = format!("{} sleep 300", "fork hang end ".repeat(30));
    let ran = Ran::new(&suite(&task("bad", &orders, &token, "")), &token, 1);
    let left = ran.task("bad")["leftovers"].as_array().unwrap();
    assert_eq!((left.len(), left[20].as_str().unwrap()), (21, "and 10 more"), "{left:?}");
}

/// That is known only once it was tried, by whoever tries it.
#[test]
fn a_file_that_is_no_program_fails_its_task_alone() {
    let good = "[task.good]\ncommand = 'true'\ndeadline = \"40s\"\nneeds = [\"first\"]";
    let first = "[task.first]\ncommand = 'true'\ndeadline = \"40s\"\n";
    let bad = "[task.bad]\ncommand = './bad'\ndeadline = \"40s\"\n";
    let world = World::new(&suite(&[bad, first, good].concat()));
    script(&world.repo.join("bad"), "\x7fELF that is none");
    let done = world.run(&["verify"]).expect(1).says("Exec format error");
    let ran = Ran::of(world, done, &token());
    ran.expect("bad", "failed", &[]).expect("good", "passed", &[]);
}
