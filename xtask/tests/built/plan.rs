//! What is checked before anybody queues, on real files; `plan` and the limits around a run.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use xtask::command::preflight::{self, Ready};
use xtask::name::Name;
use xtask::plan::{Machine, Selection};

use crate::world::{Done, Folder, World};

const HEAD: &str = "schema = 1\nrun.deadline = \"18m\"\ndefaults.deadline = \"1m\"\n"; // three lines

fn program(folder: &Path, path: &str, mode: u32) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(&path, "#!/bin/sh\n").expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn check(folder: &Path, suite: &str, only: &[&str]) -> Result<Ready, String> {
    let only = only.iter().map(|only| Name::parse(only).expect("a name")).collect();
    let search = OsString::from(format!(":{}/bin::rel", folder.display()));
    let machine = Machine { cpus: 2, ..Machine::default() };
    let selection = Selection { only, profile: None };
    preflight::check(folder, "ci/suite.toml", &format!("{HEAD}{suite}"), &selection, &machine, &search)
}

#[test]
fn programs_are_found_as_exec_would_find_them() {
    let folder = Folder::new();
    let root = folder.path();
    for path in ["bin/tool", "web/run.sh", "web/rel/near", "own/tool", "top.sh", "here"] {
        program(root, path, 0o755);
    }
    let own = root.join("own");
    let suite = format!(
        "[service.postgres]\nsetup = \"./top.sh a\"\n\
         [task.path]\ncommand = \"tool --flag\"\nservices = [\"postgres\"]\n\
         [task.own]\ncommand = \"tool\"\nenv.PATH = \"{}\"\n\
         [task.dir]\ncommand = \"./run.sh\"\ndir = \"web\"\n\
         [task.up]\ncommand = \"../top.sh\"\ndir = \"web\"\n\
         [task.near]\ncommand = \"near\"\ndir = \"web\"\n",
        own.display()
    );
    let ready = check(root, &suite, &[]).expect("everything is there");
    let found = |task: &str| ready.programs[&Name::parse(task).expect("a name")].clone();
    assert_eq!(found("path"), root.join("bin/tool"));
    assert_eq!(found("own"), root.join("own/tool"), "the task's own PATH");
    assert_eq!(found("dir"), root.join("web/run.sh"));
    assert_eq!(found("up").canonicalize().expect("it is there"), root.join("top.sh"));
    assert_eq!(found("near"), root.join("web/rel/near"), "a relative entry of PATH is meant from the task's folder");
    assert_eq!(ready.setups.values().next(), Some(&root.join("top.sh")));
    let error = check(root, "[task.a]\ncommand = \"here\"\n", &[]).expect_err("an empty entry of PATH is no folder");
    assert_eq!(error, "ci/suite.toml:4: task \"a\": there is no program \"here\" on PATH\n");
}

#[test]
fn everything_that_is_missing_is_reported_at_once() {
    let folder = Folder::new();
    let root = folder.path();
    program(root, "bin/plain", 0o644);
    program(root, "flat.sh", 0o644);
    fs::create_dir_all(root.join("folder/bin")).expect("a folder");
    let suite = "[service.postgres]\nmigrations = \"db/none\"\n\
         [task.a]\ncommand = \"nowhere\"\ndeadline = \"20m\"\nservices = [\"postgres\"]\n\
         [task.b]\ncommand = \"plain\"\n\
         [task.c]\ncommand = \"./flat.sh\"\n\
         [task.d]\ncommand = \"./folder\"\n\
         [task.e]\ncommand = \"sh\"\ndir = \"none\"\n\
         [task.f]\ncommand = \"./gone.sh\"\n";
    let error = check(root, suite, &[]).expect_err("nothing is there");
    let expected = "\
ci/suite.toml:4: service \"postgres\": migrations: there is no folder \"db/none\"
ci/suite.toml:6: task \"a\": there is no program \"nowhere\" on PATH
ci/suite.toml:8: task \"a\": deadline 20m, but the run has 17m50s for tasks (deadline 18m - wrap-up 10s)
ci/suite.toml:10: task \"b\": there is no program \"plain\" on PATH
ci/suite.toml:12: task \"c\": program \"./flat.sh\" cannot be executed: Permission denied
ci/suite.toml:14: task \"d\": program \"./folder\" is not a file
ci/suite.toml:16: task \"e\": dir: there is no folder \"none\"
ci/suite.toml:19: task \"f\": program \"./gone.sh\" cannot be found: No such file or directory (os error 2)
";
    assert_eq!(error, expected);
}

#[test]
fn a_subcommand_that_cargo_does_not_have_is_missing_too() {
    let folder = Folder::new();
    let root = folder.path();
    program(root, "bin/cargo-there", 0o755);
    program(root, "bin/cargo", 0o755);
    let cargo = |script: &str| fs::write(root.join("bin/cargo"), format!("#!/bin/sh\n{script}\n")).expect("a script");
    let task = |command: &str| check(root, &format!("[task.a]\ncommand = \"cargo {command}\"\n"), &[]).map(drop);
    cargo("echo \"$*\" >>asked\nprintf 'Installed Commands:\\n    check   Check\\n    ours    alias: check\\n'");
    for known in ["there", "ours x", "test", "--config a nowhere", "+nightly nowhere"] {
        assert_eq!(task(known), Ok(()), "{known}");
    }
    let error = task("nowhere run").expect_err("it is not there");
    let expected = "ci/suite.toml:4: task \"a\": cargo has no subcommand \"nowhere\": there is no program \"cargo-nowhere\" on PATH, \
                    and no alias; install it, or change the command\n";
    assert_eq!(error, expected);
    assert_eq!(
        fs::read_to_string(root.join("asked")).expect("it was asked"),
        "--list\n--list\n",
        "and only where needed"
    );
    // An answer that is none says nothing.
    for silent in ["exit 1", "echo Installed Commands:"] {
        cargo(silent);
        assert_eq!(task("nowhere"), Ok(()), "{silent}");
    }
}

#[test]
fn only_what_is_selected_must_be_there() {
    let folder = Folder::new();
    program(folder.path(), "bin/tool", 0o755);
    let suite = "[service.postgres]\nsetup = \"nowhere\"\n[task.a]\ncommand = \"tool\"\ncpus = 3\n\
                 [task.b]\ncommand = \"nowhere\"\nservices = [\"postgres\"]\n";
    let ready = check(folder.path(), suite, &["a"]).expect("what a needs is there");
    assert_eq!(ready.programs.len(), 1);
    assert_eq!(ready.notes, ["task a asks for 3 cpus and gets all there are: 2"]);
    check(folder.path(), suite, &["b"]).expect_err("what b needs is not");
}

#[test]
fn a_program_that_an_earlier_task_makes_need_not_be_there_yet() {
    let folder = Folder::new();
    program(folder.path(), "bin/cc", 0o755);
    fs::create_dir(folder.path().join("web")).expect("a folder");
    let suite = "[task.build]\ncommand = \"cc\"\noutputs = [\"out/app\"]\n\
         [task.between]\ncommand = \"cc\"\nneeds = [\"build\"]\n\
         [task.smoke]\ncommand = \"../out/app --version\"\ndir = \"web\"\nneeds = [\"between\"]\n";
    let ready = check(folder.path(), suite, &[]).expect("out/app is made by then");
    assert_eq!(ready.programs[&Name::parse("smoke").expect("a name")], folder.path().join("web/../out/app"));
    let error =
        check(folder.path(), &suite.replace("needs = [\"between\"]", ""), &[]).expect_err("it may be made later");
    assert!(error.contains("task \"smoke\": program \"../out/app\" cannot be found"), "{error}");
}

/// queue 32m + run 28m + margin 2m: outer is 62m.
const LIMITED: &str = "schema = 1
[run]
deadline = \"28m\"
queue = \"32m\"
[service.postgres]
[task.check]
command = \"true\"
deadline = \"4m\"
cpus = 2
mutex = \"target\"
[task.test]
command = \"true\"
deadline = \"6m\"
cpus = \"all\"
needs = [\"check\"]
services = [\"postgres\"]
[task.fmt]
command = \"true\"
deadline = \"30s\"
[profile.quick]
skip = [\"test\"]
";

fn outer(world: &World, file: &str, text: &str) -> Done {
    world.write(file, text);
    world.run(&["plan", "--check-outer", file])
}

#[test]
fn plan_shows_tasks_limits_and_what_follows_and_takes_no_lock() {
    let world = World::new(LIMITED);
    let done = world.run(&["plan"]).expect(0);
    assert_eq!(done.out, "");
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = flat(&done.err);
    for part in [
        "suite ci/suite.toml sha256",
        "3 tasks,",
        "1 service",
        "test all 6m - check + postgres (exclusive)",
        "fmt 1 30s - -",
        "queue 32m program's first line",
        "run 28m lock held",
        "outer 62m = queue + run + margin 2m.",
        "ok every task at its whole deadline, scheduled as above: 10m",
        "ok the queue budget 32m covers 1 run ahead of this one",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{}", done.err);
    }
    assert!(!world.repo.join("receipts").exists() && !world.repo.join("target").exists(), "plan leaves nothing behind");
    let quick = world.run(&["plan", "--profile", "quick"]).expect(0).says("2 tasks of 3,");
    assert!(!quick.err.contains("check + postgres"), "{}", quick.err);
    world.run(&["plan", "--profile", "quik"]).expect(2).says("did you mean \"quick\"?");
}

#[test]
fn plan_in_json_is_one_object_a_line_on_stdout() {
    let world = World::new(LIMITED);
    world.write("ci.yml", "timeout-minutes: 61 # xtask:outer=verify\n");
    let done = world.run(&["plan", "--message-format", "json", "--check-outer", "ci.yml"]).expect(2);
    let lines: Vec<serde_json::Value> = done.out.lines().map(|l| serde_json::from_str(l).expect("an object")).collect();
    assert_eq!((&lines[0]["event"], &lines[0]["outer_ms"]), (&"plan".into(), &3_720_000.into()));
    assert_eq!(lines[0]["tasks"][1]["needs"], serde_json::json!(["check"]));
    let last = lines.last().expect("a line");
    assert_eq!(
        (&last["event"], &last["status"], &last["place"]),
        (&"check".into(), &"fail".into(), &"ci.yml:1".into())
    );
}

#[test]
fn plan_warns_where_whole_deadlines_do_not_fit() {
    let suite = "schema = 1\nrun.deadline = \"5m10s\"\ndefaults.deadline = \"2m\"\n[task.a]\ncommand = \"true\"\nmutex = \"m\"\n\
                 [task.b]\ncommand = \"true\"\nmutex = \"m\"\n[task.c]\ncommand = \"true\"\nmutex = \"m\"\n";
    let world = World::new(
        &suite.replace("run.deadline", "run.cpus = 4\nrun.queue = \"1m\"\nrun.stop-grace = \"6s\"\nrun.deadline"),
    );
    let done = world.run(&["plan"]);
    // On one CPU the work alone does not fit, which is an error and no warning.
    if done.code == 0 {
        done.says("warn  every task at its whole deadline, scheduled as above: 6m of")
            .says("warn  stop-grace 6s + receipt does not fit")
            .says("warn  the queue budget 1m covers 0 runs ahead");
    } else {
        done.expect(2).says("all deadlines times cpus make 6m on 1 cpu slots");
    }
}

#[test]
fn a_limit_above_an_hour_has_one_form() {
    let world = World::new(&LIMITED.replace("\"32m\"", "\"74m\""));
    let done = world.run(&["plan"]).expect(0);
    assert!(done.err.contains("the queue budget 74m") && !done.err.contains("1h14m"), "{}", done.err);
}

#[test]
fn marked_limits_are_compared_to_the_minute() {
    let world = World::new(LIMITED);
    outer(&world, "ci.yml", "jobs:\n  timeout-minutes: 62 # xtask:outer=verify\n").expect(0).says("ok    ci.yml:2");
    outer(&world, "ci.yml", "jobs:\n  timeout-minutes: 61 # xtask:outer=verify\n")
        .expect(2)
        .says("FAIL  ci.yml:2")
        .says("timeout-minutes: 61      is 1m short; set 62")
        .says("error: 1 outer limit does not match the plan\nexit code 2");
    outer(&world, "ci.yml", "timeout-minutes: ${{ x }} # xtask:outer=release\n").expect(2).says("cannot be read");
    outer(&world, "Jenkinsfile", "stage\n").expect(0).says("note  Jenkinsfile").says("no line marked");
    world.run(&["plan", "--check-outer", "gone.yml"]).expect(2).says("FAIL  gone.yml").says("cannot be read");
    // What has no end, and what would be waited for.
    nix::unistd::mkfifo(&world.repo.join("pipe.yml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    world.write("long.yml", &"x".repeat((1 << 20) + 1));
    for (file, why) in
        [("/dev/zero", "not a regular file"), ("pipe.yml", "not a regular file"), ("long.yml", "longer than")]
    {
        world.run(&["plan", "--check-outer", file]).expect(2).says(&format!("FAIL  {file}")).says(why);
    }
}

#[test]
fn verify_refuses_to_start_inside_a_limit_that_is_too_short() {
    let world = World::new(&LIMITED.replace("services = [\"postgres\"]", ""));
    let refused = "outer is 62m (queue 32m + run 28m + margin 2m)";
    let done = world.run(&["verify", "--outer", "61m"]).expect(2).says(refused).says("from     --outer 61m");
    assert!(done.err.contains("nothing  was queued or run") && world.receipts().is_empty(), "{}", done.err);
    let with = |name: &str, value: &str, args: &[&str]| {
        let mut command = world.command(&[&["verify"], args].concat());
        crate::world::Running::start(
            {
                command.env(name, value);
                command
            },
            &world.folder,
        )
        .wait()
    };
    with("XTASK_OUTER", "61m", &[]).expect(2).says(refused).says("from     XTASK_OUTER 61m");
    with("XTASK_OUTER", "an hour", &[]).expect(2).says("error: XTASK_OUTER: \"an hour\" is not a duration");
    with("CI_JOB_TIMEOUT", "3719", &[]).expect(2).says(refused).says("from     CI_JOB_TIMEOUT 61m59s");
    with("CI_JOB_TIMEOUT", "an hour", &[]).expect(2).says("CI_JOB_TIMEOUT is \"an hour\"");
    with("CI_JOB_TIMEOUT", "3720", &["--outer", "62m"]).expect(0);
    with("XTASK_OUTER", "1m", &["--outer", "33m", "--queue", "3m"]).expect(0);
    assert_eq!(world.receipts().len(), 2);
    // As services leave it where nothing is set.
    with("XTASK_OUTER", "", &[]).expect(0);
    with("CI_JOB_TIMEOUT", "", &[]).expect(0);
}

#[test]
fn every_recipe_has_a_limit_and_it_is_long_enough() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let suite = fs::read_to_string(top.join("ci/suite.toml")).expect("this repository's suite");
    let run = xtask::suite::Suite::parse(&suite).expect("it is right").run;
    let recipes: Vec<_> =
        fs::read_dir(top.join("ci/recipes")).expect("recipes").map(|e| e.expect("one").path()).collect();
    assert!(recipes.len() >= 7, "{recipes:?}");
    for path in recipes.iter().filter(|path| path.extension() != Some("timer".as_ref())) {
        let text = fs::read_to_string(path).expect("a recipe");
        let found = xtask::plan::outer::compare(&text, &run);
        assert!(!found.is_empty() && found.iter().all(|f| f.wrong.is_none()), "{}: {found:?}", path.display());
        let name = path.file_name().expect("a name").to_str().expect("text");
        assert!(suite.contains(&format!("ci/recipes/{name}")), "{name} is not checked by the suite's task outer");
        for finding in xtask::plan::outer::compare(
            &text,
            &xtask::suite::RunLimits { margin: run.margin + std::time::Duration::from_secs(60), ..run.clone() },
        ) {
            assert!(finding.wrong.is_some_and(|wrong| wrong.contains("1m short")), "{name}: one minute less would do");
        }
        let (calls, execs) = (text.matches("cargo xtask verify ").count(), text.matches("exec ").count());
        assert!(
            calls == 0 || execs > 0 || name.ends_with(".service"),
            "{name}: xtask would not get the service's signals"
        );
    }
}

#[test]
fn a_suite_file_that_cannot_be_read_is_named_once_and_says_what_next() {
    let world = World::new(LIMITED);
    world.write("ci/long.toml", &"#".repeat((1 << 20) + 1));
    std::os::unix::fs::symlink("suite.toml", world.repo.join("ci/link.toml")).unwrap();
    for (path, why) in [
        ("ci/nowhere.toml", "No such file or directory"),
        ("ci", "not a regular file"),
        ("ci/link.toml", "a link"),
        ("ci/long.toml", "longer than 1048576 bytes"),
    ] {
        for command in ["plan", "verify"] {
            let done = world.run(&[command, "--suite", path]).expect(2).says(why).says("name another with --suite");
            let file = world.repo.join(path).display().to_string();
            assert_eq!(done.err.matches(&file).count(), 1, "{}", done.err);
            assert_eq!(done.err.matches("cannot be read").count(), 1, "{}", done.err);
        }
    }
}
