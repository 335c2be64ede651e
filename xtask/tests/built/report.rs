//! `report` and `--junit` of the built program, from receipts of real runs.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use serde_json::Value;

use crate::verify::one;
use crate::world::{Running, World};

const SUITE: &str = r#"
schema = 1
[run]
deadline = "5m"
queue = "2m"
[task.first]
command = "true"
deadline = "1m"
[task.second]
command = "sh -c 'echo the last words; exit 3'"
needs = ["first"]
deadline = "1m"
[task.third]
command = "true"
needs = ["second"]
deadline = "1m"
"#;

#[test]
fn receipts_of_real_runs_become_a_page_and_a_trace() {
    let world = World::new(SUITE);
    world.run(&["verify"]).expect(1);
    // It takes no lock.
    let held = std::net::TcpListener::bind(("127.0.0.1", world.ports.first)).unwrap();
    world.run(&["report", "--trace", "target/made/trace.json"]).expect(0).says("1 run, the newest r-");
    drop(held);
    let page = fs::read_to_string(world.repo.join("target/xtask-report.html")).unwrap();
    assert!(page.contains("<title>FAILED: 1 passed, 1 failed, 1 not-run at "), "{}", &page[..400]);
    assert!(page.contains("needs second, which did not pass") && page.contains("exit code 3"));
    assert!(!page.contains("is not at hand"), "the suite is on the disk");
    let trace: Value = serde_json::from_slice(&fs::read(world.repo.join("target/made/trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == "second" && event["args"]["verdict"] == "failed"));

    // The suite of a receipt is found in its commit when the one on the disk is another.
    world.write("ci/suite.toml", &SUITE.replace("1m", "50s"));
    world.run(&["report"]).expect(0);
    let page = fs::read_to_string(world.repo.join("target/xtask-report.html")).unwrap();
    assert!(!page.contains("is not at hand"), "the suite is in the commit");

    // A second run, and a file among the receipts that is none: it is named and left out, but not where it is asked for.
    world.run(&["verify"]).expect(1);
    let broken = "receipts/r-20200101-000000-00000000.json";
    world.write(broken, "{}");
    world.run(&["report", "--output", "elsewhere.html"]).expect(0).says("2 runs").says(broken);
    assert!(fs::read_to_string(world.repo.join("elsewhere.html")).unwrap().contains("Shares of deadlines over 2 runs"));
    world.run(&["report", broken]).expect(2).says("is no receipt");
    world.run(&["report", "nowhere.json"]).expect(2).says("nowhere.json");
}

#[test]
fn a_receipt_that_is_named_twice_is_one_run() {
    let world = World::new(SUITE);
    world.run(&["verify"]).expect(1);
    let first = world.receipts()[0].display().to_string();
    world.run(&["report", &first, &first]).expect(0).says("(1 run, ");
    world.run(&["verify"]).expect(1);
    let second = world.receipts()[1].display().to_string();
    world.run(&["report", &first, &second, &first]).expect(0).says("(2 runs, ");
}

/// What cannot be read takes no place of one that can.
#[test]
fn the_newest_200_that_can_be_read_are_drawn() {
    let world = World::new(SUITE);
    world.run(&["verify"]).expect(1);
    let good = fs::read_to_string(&world.receipts()[0]).unwrap();
    let run = world.receipts()[0].file_stem().unwrap().to_str().unwrap().to_owned();
    fs::remove_file(&world.receipts()[0]).unwrap();
    for number in 0..206 {
        let name = format!("r-20300101-000000-{number:08x}");
        let path = format!("receipts/{name}.json");
        // Of the newest ten every other one is broken.
        let broken = number >= 196 && number % 2 == 1;
        world.write(&path, &if broken { "{}".to_owned() } else { good.replace(&run, &name) });
        let when = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000 + number);
        fs::File::options().append(true).open(world.repo.join(&path)).unwrap().set_modified(when).unwrap();
    }
    let done = world.run(&["report"]).expect(0).says("(200 runs, ");
    assert_eq!(done.err.matches("left out").count(), 5, "{}", done.err);
    let page = fs::read_to_string(world.repo.join("target/xtask-report.html")).unwrap();
    assert!(page.contains("r-20300101-000000-00000001") && !page.contains("r-20300101-000000-00000000"), "the oldest");
}

#[test]
fn report_without_receipts_says_what_makes_one() {
    let world = World::new(SUITE);
    world.run(&["report"]).expect(2).says("cargo xtask verify leaves one");
}

#[test]
fn junit_is_written_however_the_run_ends() {
    let world = World::new(SUITE);
    world.run(&["verify", "--junit", "target/junit/run.xml"]).expect(1);
    let xml = || fs::read_to_string(world.repo.join("target/junit/run.xml")).unwrap();
    assert!(xml().contains("tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\""), "{}", xml());
    assert!(xml().contains("<failure type=\"failed\" message=\"exit code 3\">the last words</failure>"), "{}", xml());

    // A run that never got the lock does not leave the file of the one before.
    let held = std::net::TcpListener::bind(("127.0.0.1", world.ports.first)).unwrap();
    world.run(&["verify", "--queue", "0s", "--junit", "target/junit/run.xml"]).says("error");
    drop(held);
    assert!(
        xml().contains("name=\"(run)\"") && xml().contains("<property name=\"result\" value=\"not-run\"/>"),
        "{}",
        xml()
    );

    // One that is refused before it begins says so there, whatever is wrong: the suite, a limit, the command line itself.
    let refused = |args: &[&str], why: &str| {
        world.run(&["verify", "--queue", "0s", "--junit", "target/junit/run.xml"]);
        assert!(!xml().contains("refused"), "{}", xml());
        world.run(&[&["verify"], args].concat()).expect(2);
        assert!(xml().contains("<error type=\"refused\"") && xml().contains(why), "{}", xml());
    };
    refused(&["--junit=target/junit/run.xml", "--only", "none"], "no such task");
    refused(&["--outer", "1m", "--junit", "target/junit/run.xml"], "outer is ");
    refused(&["--junit", "target/junit/run.xml", "--outr", "1m"], "--outr");
    refused(&["--junit", "target/junit/run.xml", "--key", "nowhere"], "nowhere");
}

#[test]
fn only_what_is_empty_or_our_own_is_written_over() {
    let world = World::new(SUITE);
    world.write("gone.md", "tracked, and put aside for a moment");
    world.commit("second");
    fs::remove_file(world.repo.join("gone.md")).unwrap();
    std::os::unix::fs::symlink("ci/suite.toml", world.repo.join("link")).unwrap();
    world
        .write("target/notes.xml", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"of another tool\">");
    world.write("target/folder/file", "");
    world.run(&["verify"]).expect(1);
    world.run(&["verify", "--junit", "target/junit.xml"]).expect(1);
    world.run(&["report", "--output", "target/page.html", "--trace", "target/trace.json"]).expect(0);
    let refused = |command: &[&str], flag: &str, path: &str, why: &str| {
        let file = world.repo.join(path);
        let before = fs::read(&file).ok();
        let done = world.run(&[command, &[flag, path]].concat()).expect(2);
        assert_eq!(done.err.matches("cannot be written").count(), 1, "{}", done.err);
        done.says(&format!("{flag} {path} cannot be written")).says(why);
        assert_eq!(fs::read(&file).ok(), before, "{command:?} {flag} {path}");
        assert!(before.is_some() || !file.is_file(), "{command:?} made {path}");
    };
    let commands: [(&[&str], &str, &str); 5] = [
        (&["verify"], "--junit", "target/page.html"),
        (&["verify", "--only", "none"], "--junit", "target/trace.json"),
        (&["verify", "--outr", "1m"], "--junit", "target/page.html"),
        (&["report"], "--output", "target/junit.xml"),
        (&["report"], "--trace", "target/page.html"),
    ];
    for (command, flag, of_another_kind) in commands {
        for path in ["ci/suite.toml", "link", "gone.md"] {
            refused(command, flag, path, "git tracks it");
        }
        for path in ["target/folder", "ci"] {
            refused(command, flag, path, "it is a folder");
        }
        for path in ["target/notes.xml", of_another_kind] {
            refused(command, flag, path, "something else is there");
        }
    }
    let both = world.repo.join("target/both");
    let spellings = ["target/both", "./target/both", "target/../target/both", both.to_str().unwrap()];
    for spelling in spellings {
        world.run(&["report", "--output", "target/both", "--trace", spelling]).expect(2).says("the same file");
        assert!(!both.exists(), "{spelling}");
    }
    world.write("target/both", "");
    fs::hard_link(&both, world.repo.join("target/other")).unwrap();
    world.run(&["report", "--output", "target/both", "--trace", "target/other"]).expect(2).says("the same file");

    // Its own it writes over, and what is empty; and at its own place whatever an earlier version left.
    world.write("target/xtask-report.html", "<!doctype html>");
    world.run(&["report"]).expect(0);
    world.write("target/page.html", "");
    world.run(&["verify", "--junit", "target/junit.xml"]).expect(1);
    world.run(&["report", "--output", "target/page.html", "--trace", "target/trace.json"]).expect(0);
    world.run(&["report", "--output", "target/page.html", "--trace", "target/trace.json"]).expect(0);
}

#[test]
fn folders_are_made_in_the_repository_and_nowhere_else() {
    let world = World::new(SUITE);
    let place = world.folder.path().join("mistyped");
    let path = place.join("file");
    let path = path.to_str().unwrap();
    for args in [&["verify", "--junit", path][..], &["report", "--output", path], &["report", "--trace", path]] {
        world.run(args).expect(2).says(path).says("there is no such folder");
        assert!(!place.exists(), "{args:?}");
    }
    assert!(world.receipts().is_empty(), "nothing ran");
}

/// A disk that is full in the middle of the file: what lay there before is worth more than a half.
#[test]
fn what_cannot_be_written_whole_is_not_written() {
    let world = World::new(SUITE);
    world.run(&["verify"]).expect(1);
    world.run(&["report", "--output", "target/page.html"]).expect(0);
    let before = fs::read(world.repo.join("target/page.html")).unwrap();
    assert!(before.len() > 4096);
    for path in ["target/page.html", "target/new.html"] {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "ulimit -f 4; exec \"$0\" report --output \"$1\""]).arg(crate::world::program()).arg(path);
        world.dress(&mut command);
        Running::start(command, &world.folder).wait().expect(2).says(&format!("{path} cannot be written"));
    }
    assert!(fs::read(world.repo.join("target/page.html")).unwrap() == before);
    let names = fs::read_dir(world.repo.join("target")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name != "page.html" && name != "xtask-runs").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// /dev/stdout may be a file, and whoever opened it looks into that one.
#[test]
fn a_file_that_is_stdout_is_written_and_not_replaced() {
    let world = World::new(SUITE);
    world.run(&["verify"]).expect(1);
    let path = world.folder.path().join("page.html");
    let opened = fs::File::create_new(&path).unwrap();
    let mut command = world.command(&["report", "--output", "/dev/stdout"]);
    assert!(command.stdout(opened.try_clone().unwrap()).status().unwrap().success());
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(opened.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
    assert!(fs::read_to_string(&path).unwrap().starts_with(xtask::report::html::BEGINNING));
}

/// Whoever asked for the file would not learn the verdict: there is none, and everything that speaks of the run says so.
#[test]
fn a_junit_that_cannot_be_written_is_a_failure() {
    let world = World::new(&SUITE.replace("exit 3", "true"));
    let why = "--junit /dev/full cannot be written";
    let ends = |done: &crate::world::Done| {
        let said = done.err.lines().filter(|line| line.contains("exit code")).collect::<Vec<_>>().join("; ");
        assert_eq!(said, "exit code 7", "{}", done.err);
        assert!(done.err.contains(why), "{}", done.err);
    };
    ends(&world.run(&["verify", "--junit", "/dev/full"]).expect(7).says("NO VERDICT"));
    world.run(&["check-receipt", "--unsigned"]).expect(6).says(why);
    let done = world.run(&["verify", "--message-format", "json", "--junit", "/dev/full"]).expect(7);
    let ends_of: Vec<serde_json::Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ends_of: Vec<_> = ends_of.iter().filter(|line| line["event"] == "run-finished").collect();
    assert_eq!((ends_of.len(), &ends_of[0]["exit_code"]), (1, &7.into()), "{}", done.out);
    assert!(ends_of[0]["cause"].as_str().unwrap().contains(why), "{}", done.out);

    let held = std::net::TcpListener::bind(("127.0.0.1", world.ports.first)).unwrap();
    ends(&world.run(&["verify", "--queue", "0s", "--junit", "/dev/full"]).expect(7));
    drop(held);
}

#[test]
fn a_run_that_is_killed_leaves_no_junit_of_the_one_before() {
    let world = World::new(&SUITE.replace("\"true\"", "\"sleep 600\""));
    world.write("target/run.xml", &format!("{}tests=\"1\">", xtask::report::junit::BEGINNING));
    world.write("target/far.xml", "");
    let link = world.repo.join("target/link.xml");
    std::os::unix::fs::symlink("far.xml", &link).unwrap();
    world.run(&["verify", "--only", "none", "--junit", "target/link.xml"]).expect(2);
    assert!(link.is_symlink(), "it may be /dev/stdout");
    assert!(fs::read_to_string(world.repo.join("target/far.xml")).unwrap().contains("refused"));
    let mut running = world.start(&["verify", "--junit", "target/run.xml"]);
    running.wait_for("Start      first");
    assert!(!world.repo.join("target/run.xml").exists());
    running.signal(nix::sys::signal::Signal::SIGKILL);
    running.wait();
    crate::world::until("the other process of the run to end it", || crate::world::nobody_listens(world.ports.first));
}

/// What is written beside a file until it is whole stays there if its writer is killed, until somebody writes there again.
#[test]
fn halves_of_killed_writers_are_removed_and_no_others() {
    let world = World::new(&one("true"));
    world.write(".gitignore", "/target\n/receipts/\n/run.xml\n/report.html\n");
    world.commit("what is written is ignored");
    // No process has the first number.
    let [dead, living] = [i32::MAX - 1, std::process::id() as i32].map(|pid| format!(".xtask-{pid}-0a1b2c3d.new"));
    let dead = world.repo.join(dead);
    fs::write(&dead, "<").unwrap();
    // Before the tree is read: it would be a change.
    world.run(&["verify", "--junit", "run.xml"]).expect(0).says("(clean tree)");
    let others = [living, ".xtask-x-0a1b2c3d.new".to_owned(), format!("xtask-{}-0a1b2c3d.new", i32::MAX - 1)];
    others.iter().for_each(|name| world.write(name, "<"));
    fs::write(&dead, "<").unwrap();
    world.run(&["report", "--output", "report.html"]).expect(0);
    assert!(!dead.exists() && others.iter().all(|name| world.repo.join(name).exists()));
}

/// The locks are held meanwhile, and nobody may wait for a reader.
#[test]
fn a_pipe_that_nobody_reads_is_an_error() {
    let world = World::new(&one("true"));
    let pipe = world.folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let verify = ["verify", "--junit", pipe.to_str().unwrap()];
    world.run(&verify).expect(7).says("it is a pipe, and nobody reads it");
    let mut open = fs::File::options().read(true).write(true).open(&pipe).unwrap();
    world.run(&verify).expect(0);
    let mut text = vec![0; 5];
    open.read_exact(&mut text).unwrap();
    assert_eq!(text, b"<?xml");
    // Full.
    let mut writer = fs::File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(&pipe).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    world.run(&verify).expect(7).says("its reader does not read");
    // Nor for the summary of a job, which is data for nobody.
    let mut command = world.command(&["verify"]);
    command.env("GITHUB_STEP_SUMMARY", &pipe);
    Running::start(command, &world.folder).wait().expect(0).says("summary cannot be written: its reader does not read");
}

#[test]
fn a_file_that_is_named_in_a_subfolder_is_there() {
    let world = World::new(&one("true"));
    world.write("run.xml", "ours");
    world.write("sub/.gitignore", "*.xml\n");
    world.commit("a file of that name at the root");
    let run = |words: &[&str]| {
        let mut command = world.command(words);
        command.current_dir(world.repo.join("sub"));
        Running::start(command, &world.folder).wait()
    };
    run(&["verify", "--junit", "run.xml"]).expect(0).says("(clean tree)");
    let inside = world.repo.join("sub/run.xml");
    assert!(fs::read_to_string(&inside).unwrap().contains("\"passed\""));
    run(&["verify", "--junit", "../run.xml"]).expect(2).says("git tracks it");
    run(&["verify", "--junit", "run.xml", "--only", "nope"]).expect(2);
    assert!(!fs::read_to_string(&inside).unwrap().contains("\"passed\""));
    assert_eq!(fs::read_to_string(world.repo.join("run.xml")).unwrap(), "ours");
}
