//! The service through the whole program: `xtask verify` on repositories whose tasks ask the server.

use std::path::PathBuf;

use crate::world::World;

const SUITE: &str = r#"
schema = 1
[run]
deadline = "3m"
queue = "1m"
[service.postgres]
start = "60s"
[task.a]
command = ["sh", "-c", "psql -XAtc 'select current_database(), version()' && psql -XAtc 'show data_directory' >data-a"]
services = ["postgres"]
deadline = "1m"
[task.b]
command = ["sh", "-c", "psql -XAtc 'create table t (x int)' && psql -XAtc 'show data_directory' >data-b"]
services = ["postgres"]
deadline = "1m"
"#;

#[test]
fn tasks_of_a_run_find_databases_and_nothing_is_left() {
    let world = World::new(SUITE);
    world.write(".gitignore", "/target\n/receipts/\n/data-*\n");
    world.commit("data files are ignored");
    world.run(&["verify"]).expect(0);
    let data = std::fs::read_to_string(world.repo.join("data-a")).unwrap();
    assert_eq!(data, std::fs::read_to_string(world.repo.join("data-b")).unwrap());
    assert!(!std::path::Path::new(data.trim()).exists(), "{data}");
    let receipt = std::fs::read_to_string(&world.receipts()[0]).unwrap();
    assert!(receipt.contains("PostgreSQL 1"), "{receipt}");
}

/// A service that cannot be ready: its setup waits for ever.
fn stuck(run: &str, start: &str) -> World {
    let world = World::new(&format!(
        r#"
schema = 1
[run]
{run}
queue = "1m"
stop-grace = "1s"
wrap-up = "3s"
[service.postgres]
start = "{start}"
setup = ["sh", "-c", "echo setting-up; setsid sleep 1000 & sleep 1000"]
[task.with]
command = "true"
services = ["postgres"]
deadline = "1s"
[task.without]
command = "true"
deadline = "4s"
"#
    ));
    world.write(".gitignore", "/target\n/receipts/\n");
    world.commit("a service that is never ready");
    world
}

/// Two tasks with these commands, one after the other, that each get a database.
fn two(first: &str, second: &str) -> World {
    World::new(&format!(
        r#"
schema = 1
[run]
deadline = "3m"
queue = "1m"
[service.postgres]
start = "10s"
[task.a]
command = "{first}"
services = ["postgres"]
deadline = "1m"
[task.b]
command = "{second}"
needs = ["a"]
services = ["postgres"]
deadline = "1m"
"#
    ))
}

/// The verdict of a task in the newest receipt, and why.
fn verdict(world: &World, task: &str) -> (String, String) {
    let receipt = std::fs::read(world.receipts().last().expect("a receipt")).unwrap();
    let receipt: serde_json::Value = serde_json::from_slice(&receipt).unwrap();
    let tasks = receipt["predicate"]["tasks"].as_array().unwrap();
    let task = tasks.iter().find(|found| found["name"] == task).expect("the task");
    let text = |name: &str| task[name].as_str().unwrap_or_default().to_owned();
    (text("verdict"), text("why"))
}

fn nothing_is_left(world: &World) {
    assert_eq!(crate::postgres::processes_in(world.folder.path()), Vec::<String>::new());
}

#[test]
fn a_start_has_a_limit_of_its_own() {
    let world = stuck("deadline = \"3m\"", "1500ms");
    world.run(&["verify"]).expect(1).says("was not ready after 1.5s, its `start` limit");
    assert_eq!(verdict(&world, "with").0, "failed");
    assert_eq!(verdict(&world, "without").0, "passed");
    nothing_is_left(&world);
}

#[test]
fn a_server_that_stands_still_makes_nobody_wait_longer_than_its_start_may_take() {
    if !crate::world::rules_the_server() {
        let test = "a_server_that_stands_still_makes_nobody_wait_longer_than_its_start_may_take";
        return crate::world::skipped(test, "root may not look into the server's processes here");
    }
    let world = two("sh stop-the-server", "true");
    let script =
        "for p in /proc/[0-9]*; do [ \"$(readlink $p/cwd)\" = \"$PGHOST\" ] && kill -STOP ${p#/proc/}; done; true";
    world.write("stop-the-server", script);
    world.commit("a task that stops the server");
    world.run(&["verify"]).expect(1).says("had not made what the next task gets after 10s, its `start` limit");
    assert_eq!(verdict(&world, "a").0, "passed");
    assert_eq!(verdict(&world, "b").0, "failed");
    nothing_is_left(&world);
}

#[test]
fn a_server_that_has_nothing_to_make_has_no_limit_but_the_runs() {
    // The second asks a server that is ready, has its database, and needs it still once the limit would be over.
    let world = two("true", "sh later");
    world.write("later", "sleep 11 && psql -XAtc 'select 1'");
    world.commit("a task that takes longer than the limit");
    world.run(&["verify"]).expect(0);
}

/// What its host cannot do any more is done without it, at once for who asks twice; the run ends as it would have.
#[test]
fn a_host_that_stands_still_is_killed() {
    for (run, signals, code) in [("2m", 2, 130), ("2m", 1, 130), ("12s", 0, 3)] {
        let world = stuck(&format!("deadline = \"{run}\""), "1m");
        let mut run = world.start(&["verify"]);
        crate::world::until("setup to run", || {
            crate::postgres::processes_in(&world.repo).iter().any(|process| process.contains("sleep"))
        });
        let all = crate::postgres::processes_in(&world.repo);
        let host = all.iter().find(|process| process.contains("internal-service")).expect("a host");
        let host = nix::unistd::Pid::from_raw(host.split(['/', ':']).nth(2).unwrap().parse().unwrap());
        nix::sys::signal::kill(host, nix::sys::signal::Signal::SIGSTOP).unwrap();
        let asked = std::time::Instant::now();
        for times in 1..=signals {
            run.signal(nix::sys::signal::Signal::SIGINT);
            run.wait_for(if times == 1 { "CANCELLED" } else { "again: killing" });
        }
        let done = run.wait().expect(code).says("postgres had not stopped and is killed");
        assert!(!done.err.contains("processes of no task"), "{}", done.err);
        assert!(signals < 2 || asked.elapsed() < std::time::Duration::from_secs(8), "{:?}", asked.elapsed());
        nothing_is_left(&world);
    }
}

#[test]
fn a_run_that_is_late_before_the_service_is_ready_says_so_and_not_that_the_task_is() {
    let world = stuck("deadline = \"8s\"", "5m");
    world.run(&["verify"]).expect(3);
    assert_eq!(verdict(&world, "with").0, "not-run");
    nothing_is_left(&world);
}

#[test]
fn ctrl_c_ends_the_wait_for_a_service() {
    let world = stuck("deadline = \"3m\"", "2m");
    let run = world.start(&["verify"]);
    crate::world::until("setup to run", || {
        !crate::postgres::processes_in(&world.repo).iter().all(|process| !process.contains("sleep"))
    });
    run.signal(nix::sys::signal::Signal::SIGINT);
    run.wait().expect(130).says("postgres removed");
    assert_eq!(verdict(&world, "with").0, "not-run");
    nothing_is_left(&world);
}

#[test]
fn a_run_that_is_over_ends_a_migration_that_takes_long() {
    let world = stuck("deadline = \"3m\"", "2m");
    let suite = std::fs::read_to_string(world.repo.join("ci/suite.toml")).unwrap();
    let lines = suite.lines().map(|line| if line.starts_with("setup") { "migrations = \"db\"" } else { line });
    world.write("ci/suite.toml", &lines.collect::<Vec<_>>().join("\n"));
    world.write("db/1.sql", "copy (select 1) to program 'touch begun'; select pg_sleep(1000)");
    world.commit("a migration that takes long");
    let run = world.start(&["verify"]);
    // A folder of the user, and in it one of the run.
    let inside = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    crate::world::until("the migration to begin", || {
        inside(world.scratch()).flat_map(inside).any(|run| run.join("postgres/data/begun").exists())
    });
    run.signal(nix::sys::signal::Signal::SIGINT);
    run.wait().expect(130).says("postgres removed");
    nothing_is_left(&world);
}

#[test]
fn a_migration_that_fails_fails_the_task_with_its_line() {
    let suite = SUITE.replace("start = \"60s\"", "start = \"60s\"\nmigrations = \"db\"");
    let world = World::new(&suite);
    world.write("db/1.sql", "create table t (x int);\nselect y\nfrom t;\n");
    world.write(".gitignore", "/target\n/receipts/\n/data-*\n");
    world.commit("a migration that fails");
    world.run(&["verify"]).expect(1);
    let (verdict, why) = verdict(&world, "a");
    assert_eq!(verdict, "failed");
    assert!(why.contains("db/1.sql:2: column \"y\" does not exist"), "{why}");
}

#[test]
fn a_server_that_is_named_and_not_there_is_found_out_before_anything_queues() {
    let world = World::new(SUITE);
    let mut command = world.command(&["verify"]);
    command.env("XTASK_PG_BINDIR", "/nonexistent");
    let done = crate::world::Running::start(command, &world.folder).wait().expect(2);
    done.says("ci/suite.toml:6: service \"postgres\": no PostgreSQL server").says("/nonexistent: has no initdb");
    assert!(world.receipts().is_empty());
}

#[test]
fn a_servers_log_has_a_limit_as_a_tasks_has() {
    let flood = "do $f$ begin for i in 1..90 loop raise log '%', repeat('x', 1 << 20); end loop; end $f$";
    let world = World::new(&format!(
        r#"
schema = 1
[run]
deadline = "3m"
queue = "1m"
[service.postgres]
start = "60s"
[task.a]
command = ["sh", "-c", "psql -c \"$1\" || true; sleep 1", "sh", "{flood}"]
services = ["postgres"]
deadline = "1m"
[task.b]
command = "true"
needs = ["a"]
services = ["postgres"]
deadline = "1m"
"#
    ));
    let done = world.run(&["verify"]).expect(1).says("its log has more than 64 MiB");
    let log = world.repo.join(crate::postgres_programs::log_named(&done.err));
    assert_eq!(std::fs::metadata(log).unwrap().len(), 64 << 20);
}

#[test]
fn a_place_that_a_server_cannot_be_told_is_refused() {
    let world = World::new(SUITE);
    let comma = world.folder.path().join("a,b");
    std::fs::create_dir(&comma).unwrap();
    let mut command = world.command(&["verify"]);
    command.env("XTASK_SCRATCH", comma);
    crate::world::Running::start(command, &world.folder)
        .wait()
        .expect(2)
        .says(&format!("at most {} bytes without a comma", 36 - nix::unistd::geteuid().to_string().len()));
}

#[test]
fn what_the_suite_says_of_a_variable_comes_last() {
    let world = World::new(
        r#"
schema = 1
[run]
deadline = "3m"
queue = "1m"
[service.postgres]
start = "60s"
[task.a]
command = ["sh", "-c", "test \"$PGOPTIONS\" = '-c work_mem=7MB' && test \"$(psql -XAtc 'show work_mem')\" = 7MB"]
services = ["postgres"]
deadline = "1m"
env = { PGOPTIONS = "-c work_mem=7MB" }
"#,
    );
    world.run(&["verify"]).expect(0);
}
