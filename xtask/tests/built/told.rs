//! What callers that are programs are told: a line of JSON, the page and the summary of GitHub's job, however a call ends.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::Value;

use crate::world::{Done, Running, World};

const SUITE: &str = "schema = 1\n[run]\ndeadline = \"5m\"\nqueue = \"2m\"\n\
    [task.one]\ncommand = \"true\"\ndeadline = \"1m\"\n[task.two]\ncommand = \"true\"\ndeadline = \"1m\"\n";

/// A call in a job of GitHub's, and what it wrote into the job's summary.
fn on_github(world: &World, args: &[&str]) -> (Done, String) {
    let summary = world.folder.path().join("summary.md");
    fs::write(&summary, "before\n").unwrap();
    let mut command = world.command(args);
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", &summary);
    let done = Running::start(command, &world.folder).wait();
    let text = fs::read_to_string(&summary).unwrap();
    let written = text.strip_prefix("before\n").expect("what other steps wrote stays").to_owned();
    (done, written)
}

fn lines(done: &Done) -> Vec<Value> {
    done.out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

fn event<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    lines.iter().find(|line| line["event"] == name).unwrap_or_else(|| panic!("no {name} in {lines:?}"))
}

#[test]
fn the_summary_of_a_job_is_the_same_in_both_formats() {
    for (fails, code, head) in [(false, 0, "### verify passed at "), (true, 1, "### verify failed at ")] {
        let world = World::new(&if fails { SUITE.replacen("\"true\"", "\"false\"", 1) } else { SUITE.to_owned() });
        for format in ["human", "json"] {
            let (done, summary) = on_github(&world, &["verify", "--message-format", format]);
            done.expect(code);
            assert!(summary.starts_with(head) && summary.contains("(clean tree): run "), "{format}: {summary}");
            assert!(summary.contains(&format!("| one | {} |", if fails { "failed" } else { "passed" })), "{summary}");
            assert!(summary.contains("| two | passed |"), "{format}: {summary}");
        }
    }
}

#[test]
fn a_refusal_is_on_the_page_in_the_summary_and_in_the_data() {
    let world = World::new(SUITE);
    for args in [&["verify", "--only", "none"][..], &["verify", "--outr", "1m"], &["release", "none"]] {
        let (done, summary) = on_github(&world, args);
        let line = done.err.lines().find(|line| line.starts_with("::error title=")).expect("an annotation");
        assert!(line.contains(&format!("{} refused::", args[0])), "{line}");
        assert!(summary.starts_with(&format!("### {} refused", args[0])), "{summary}");
        done.expect(2);
    }
    for (args, why) in [
        (&["verify", "--only", "none"][..], "no such task"),
        (&["verify", "--outr=1m"], "--outr"),
        (&["plan", "--profile", "none"], "none"),
        (&["check-receipt", "--max-age", "soon"], "soon"),
        (&["lock", "status", "--chek"], "--chek"),
    ] {
        for format in [&["--message-format", "json"][..], &["--message-format=json"]] {
            let done = world.run(&[args, format].concat()).expect(2);
            let lines = lines(&done);
            assert_eq!(lines.len(), 1, "{args:?}: {}", done.out);
            assert_eq!((&lines[0]["event"], &lines[0]["exit_code"]), (&"refused".into(), &2.into()));
            let said = lines[0]["error"].as_str().unwrap();
            assert!(said.contains(why) && !said.contains("error: "), "{said}");
        }
        let done = world.run(args).expect(2);
        assert_eq!(done.out, "", "data for nobody");
        assert_eq!(done.err.matches("exit code 2\n").count(), 1, "{}", done.err);
    }
    for args in [&["check-receipt", ""][..], &["check-receipt", "--suite", ""], &["verify", "--suite", ""]] {
        world.run(args).expect(2).says("a value is required").says("exit code 2");
    }
    world.run(&["lock", "run"]).expect(122).says("exit code 122");
    // The command's own words are not ours.
    let refused = world.run(&["lock", "run", "--chek", "--", "echo", "--message-format", "json"]).expect(122);
    assert_eq!(refused.out, "", "data for nobody");
}

#[test]
fn a_run_that_never_began_says_why_to_programs_too() {
    let world = World::new(SUITE);
    let foreign = TcpListener::bind(("127.0.0.1", world.ports.first)).unwrap();
    // It ends with the test.
    std::thread::spawn(move || foreign.incoming().for_each(|caller| drop(caller.unwrap().write_all(b"hello\n"))));
    let holder = World::new(&SUITE.replace("\"true\"", "\"sleep 600\""));
    let mut held = holder.start(&["verify"]);
    held.wait_for("Start");
    let own = world.ports.first.to_string();
    let other = holder.ports.first.to_string();
    for (port, code, why) in [(own, 5, "is not xtask"), (other, 4, "a budget of 0s is one try")] {
        for format in ["human", "json"] {
            let summary = world.folder.path().join("summary.md");
            let _ = fs::remove_file(&summary);
            let mut command = world.command(&["verify", "--queue", "0s", "--message-format", format]);
            command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", &summary).env("XTASK_LOCK_PORT", &port);
            let done = Running::start(command, &world.folder).wait().expect(code);
            let annotations = done.err.lines().filter(|line| line.starts_with("::error title=nothing was run::"));
            assert_eq!(annotations.filter(|line| line.contains(why)).count(), 1, "{}", done.err);
            let summary = fs::read_to_string(&summary).unwrap();
            assert!(summary.starts_with("### verify not-run: ") && summary.contains(why), "{summary}");
            if format == "json" {
                let lines = lines(&done);
                let over = event(&lines, "run-finished");
                assert_eq!((&over["verdict"], &over["exit_code"]), (&"not-run".into(), &code.into()));
                assert!(over["cause"].as_str().unwrap().contains(why), "{over}");
            }
        }
    }
    held.signal(nix::sys::signal::Signal::SIGTERM);
    held.wait().expect(143);
}

#[test]
fn a_run_that_broke_off_says_so_to_programs_too() {
    let world = World::new(&SUITE.replace("\"true\"", "\"sleep 600\""));
    let summary = world.folder.path().join("summary.md");
    let mut command = world.command(&["verify", "--message-format", "json"]);
    command.env("GITHUB_ACTIONS", "true").env("GITHUB_STEP_SUMMARY", &summary);
    let run = Running::start(command, &world.folder);
    let runner = || crate::process::field::runner_of(run.pid());
    crate::world::until("a task", || {
        fs::read_dir(world.repo.join("target/xtask-runs"))
            .is_ok_and(|runs| runs.flatten().any(|folder| folder.path().join("one.log").exists()))
    });
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(runner().unwrap()), nix::sys::signal::Signal::SIGKILL).unwrap();
    let done = run.wait().expect(7);
    let lines = lines(&done);
    let over = event(&lines, "run-finished");
    assert!(over["cause"].as_str().unwrap().contains("the runner is gone"), "{over}");
    assert_eq!((&over["verdict"], &over["exit_code"]), (&"no-verdict".into(), &7.into()));
    assert!(world.repo.join(over["receipt"].as_str().unwrap()).exists());
    assert!(done.err.contains("::error title=no verdict::the runner is gone"), "{}", done.err);
    assert!(fs::read_to_string(&summary).unwrap().starts_with("### verify no-verdict"));
}

#[test]
fn a_tree_that_changed_is_on_the_page() {
    let world = World::new(&SUITE.replacen("\"true\"", "\"touch new\"", 1));
    let (done, _) = on_github(&world, &["verify"]);
    done.expect(7).says("::error title=no verdict::the tree changed during the run: new");
}

#[test]
fn a_run_of_a_part_is_partial_wherever_it_is_told() {
    let world = World::new(SUITE);
    let names = ["verify", "--only", "one,two"];
    let (done, summary) = on_github(&world, &[&names[..], &["--junit", "target/run.xml"]].concat());
    done.expect(0).says("PASSED     2 of 2 tasks (partial) at ");
    assert!(summary.starts_with("### verify passed (partial) at "), "{summary}");
    let junit = fs::read_to_string(world.repo.join("target/run.xml")).unwrap();
    assert!(junit.contains(r#"<property name="extent" value="partial"/>"#), "{junit}");
    world.run(&["report", "--trace", "target/trace.json"]).expect(0);
    let page = fs::read_to_string(world.repo.join("target/xtask-report.html")).unwrap();
    assert!(page.contains("<title>PASSED (partial): ") && page.contains("partial: --only one,two"), "{page}");
    let trace: Value = serde_json::from_slice(&fs::read(world.repo.join("target/trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["args"]["extent"] == "partial"));
    for (args, partial) in [(&names[..], true), (&["verify"], false)] {
        let done = world.run(&[args, &["--message-format", "json"]].concat()).expect(0);
        let lines = lines(&done);
        for name in ["run-started", "run-finished"] {
            assert_eq!(event(&lines, name)["partial"], partial, "{name} of {args:?}");
        }
    }
}

#[test]
fn data_that_cannot_be_written_is_a_failure() {
    let world = World::new(SUITE);
    world.run(&["verify"]).expect(0);
    for args in [
        &["verify", "--message-format", "json"][..],
        &["plan", "--message-format", "json"],
        &["check-receipt", "--unsigned", "--message-format", "json"],
        &["lock", "status", "--message-format", "json"],
        &["--help"],
    ] {
        let err = File::create(world.folder.path().join("err")).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = world.command(args).stdin(Stdio::null()).stdout(full).stderr(err).status().unwrap();
        let said = fs::read_to_string(world.folder.path().join("err")).unwrap();
        assert_eq!(status.code(), Some(7), "{args:?}: {said}");
        assert!(said.contains("stdout cannot be written: ") && said.contains("No space left"), "{args:?}: {said}");
        let ends: Vec<&str> = said.lines().filter(|line| line.contains("exit code")).collect();
        assert_eq!(ends, ["exit code 7"], "{args:?}: {said}");
    }
    let newest: Value = serde_json::from_slice(&fs::read(world.receipts().last().unwrap()).unwrap()).unwrap();
    assert_eq!(newest["predicate"]["result"], "no-verdict");
    world.run(&["check-receipt", "--unsigned"]).expect(6).says("stdout cannot be written");
}

/// Who reads no further has had enough, and words for people are no data: the verdict is in the exit code and the receipt.
#[test]
fn a_reader_that_has_gone_and_words_that_are_lost_are_none() {
    let world = World::new(SUITE);
    let (reader, pipe) = nix::unistd::pipe().unwrap();
    drop(reader);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let mut gone = world.command(&["verify", "--message-format", "json"]);
    assert_eq!(gone.stdin(Stdio::null()).stdout(pipe).stderr(Stdio::null()).status().unwrap().code(), Some(0));
    let mut lost = world.command(&["verify"]);
    assert_eq!(lost.stdin(Stdio::null()).stdout(full()).stderr(full()).status().unwrap().code(), Some(0));
}
