//! What a suite file may say, and every way in which it can be wrong; `suite_task` says it of a task.

use std::time::Duration;

use xtask::suite::{Fill, Leftovers, OnFailure, PoolSize, Suite, Task, Weight};

pub const HEAD: &str = "schema = 1\nrun.deadline = \"18m\"\n"; // two lines

/// The suite of `HEAD` and this.
pub fn suite(rest: &str) -> Suite {
    Suite::parse(&format!("{HEAD}{rest}")).unwrap_or_else(|errors| panic!("{}", errors.display("suite")))
}

pub fn task(rest: &str) -> Task {
    suite(&format!("[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\n{rest}")).tasks.remove(0)
}

/// Every error of this text, as `line: what` a line.
pub fn errors_of(text: &str) -> String {
    let errors = Suite::parse(text).expect_err("the suite is wrong");
    assert!(!errors.0.is_empty());
    errors.display("s").replace("s:", "")
}

/// The errors of a text are these, each by line and a part of what it says, in this order.
#[track_caller]
pub fn wrong(text: &str, expected: &[(usize, &str)]) {
    let errors = Suite::parse(text).expect_err("the suite is wrong").0;
    let fits = errors.len() == expected.len()
        && errors.iter().zip(expected).all(|(e, (line, part))| e.line == Some(*line) && e.what.contains(part));
    assert!(fits, "{expected:#?}\n{errors:#?}");
}

/// One error in a file that is otherwise right, whose third line begins `rest`.
#[track_caller]
pub fn wrong_in(rest: &str, line: usize, part: &str) {
    let good = "\n[task.good]\ncommand = \"x\"\ndeadline = \"1m\"\n";
    wrong(&format!("{HEAD}{rest}{good}"), &[(line, part)]);
}

/// One error in a task whose line 6 begins `rest`.
#[track_caller]
pub fn wrong_task(rest: &str, part: &str) {
    wrong(&format!("{HEAD}[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\n{rest}"), &[(6, part)]);
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const WHOLE: &str = r#"schema = 1

[run]
deadline   = "18m"
queue      = "38m"
margin     = "2m"
stop-grace = "4s"
wrap-up    = "10s"
cpus       = "auto"
on-failure = "finish"

[receipt]
max-age = "2h"

[defaults]
deadline = "2m"
env      = { CARGO_INCREMENTAL = "0" }

[service.postgres]
version    = ">=14"
migrations = "db/migrations"
start = "20s"
tcp = true

[task.fmt]
command  = "cargo fmt --all --check"
fix      = "cargo fmt --all"
deadline = "30s"

[task.typecheck]
command  = "cargo check --workspace --all-targets --locked"
deadline = "4m"
cpus     = 2
mutex    = "target"

[task.test]
command  = "cargo test --workspace --locked -- --test-threads {cpus}"
needs    = ["typecheck"]
services = ["postgres"]
deadline = "6m"
cpus     = "all"
env      = { RUST_BACKTRACE = "1", CARGO_INCREMENTAL = "1" }
leftovers = "kill"
log-limit = "1MiB"

[task.web]
command  = ["npm", "test"]
dir      = "web"

[task.build-release]
command  = "cargo build --release --locked"
needs    = ["typecheck"]
deadline = "5m"
cpus     = "all"
mutex    = "target"
outputs  = ["target/release/app"]

[profile.quick]
skip = ["test"]
"#;

#[test]
fn whole_example_is_read() {
    let suite = Suite::parse(WHOLE).unwrap_or_else(|errors| panic!("{}", errors.display("suite")));
    let names: Vec<&str> = suite.tasks.iter().map(|task| task.name.as_str()).collect();
    assert_eq!(names, ["fmt", "typecheck", "test", "web", "build-release"], "in the order of the file");
    assert_eq!((suite.run.deadline, suite.run.queue, suite.run.margin), (seconds(1080), seconds(2280), seconds(120)));
    assert_eq!((suite.run.stop_grace, suite.run.wrap_up, suite.run.deadline_line), (seconds(4), seconds(10), 4));
    assert_eq!((suite.run.cpus, suite.run.on_failure), (PoolSize::Auto, OnFailure::Finish));
    assert_eq!(suite.run.outer(), seconds(58 * 60));
    assert_eq!(suite.max_age, seconds(7200));
    let postgres = suite.services.values().next().expect("a service");
    assert_eq!((postgres.line, postgres.at_least, postgres.start, postgres.tcp), (19, 14, seconds(20), true));
    assert_eq!(postgres.fill, Fill::Migrations("db/migrations".to_owned()));
    let [fmt, typecheck, test, web, build] = suite.tasks.as_slice() else { panic!("five tasks") };
    assert_eq!(fmt.fix.as_deref(), Some("cargo fmt --all"));
    assert_eq!((fmt.line, fmt.deadline, fmt.deadline_line, fmt.cpus), (25, seconds(30), 28, Weight::Cpus(1)));
    assert_eq!((fmt.leftovers, fmt.log_limit, fmt.dir.as_str()), (Leftovers::Fail, 64 << 20, ""));
    assert_eq!((typecheck.cpus, typecheck.mutex.as_ref().map(|m| m.as_str())), (Weight::Cpus(2), Some("target")));
    assert_eq!(test.command.last().map(String::as_str), Some("{cpus}"));
    assert_eq!((test.cpus, test.leftovers, test.log_limit), (Weight::All, Leftovers::Kill, 1 << 20));
    assert_eq!((test.needs[0].as_str(), test.services[0].as_str()), ("typecheck", "postgres"));
    assert_eq!((&*test.env["CARGO_INCREMENTAL"], &*test.env["RUST_BACKTRACE"]), ("1", "1"), "its own over the default");
    assert_eq!((web.command.as_slice(), web.dir.as_str()), (["npm".to_owned(), "test".to_owned()].as_slice(), "web"));
    assert_eq!((web.deadline, web.deadline_line), (seconds(120), 16), "the deadline of [defaults] and its line");
    assert_eq!(build.outputs, ["target/release/app"]);
    assert_eq!(suite.profiles.values().next().expect("a profile").skip[0].as_str(), "test");
}

#[test]
fn what_is_left_out_has_a_default() {
    let suite = suite("[service.postgres]\n[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\n");
    assert_eq!(suite.run.queue, seconds(38 * 60), "two whole runs and two minutes");
    assert_eq!((suite.run.margin, suite.run.stop_grace, suite.run.wrap_up), (seconds(120), seconds(4), seconds(10)));
    assert_eq!((suite.run.cpus, suite.run.on_failure), (PoolSize::Auto, OnFailure::Finish));
    assert_eq!(suite.max_age, seconds(7200));
    let postgres = suite.services.values().next().expect("a service");
    assert_eq!(
        (postgres.at_least, &postgres.fill, postgres.start, postgres.tcp),
        (14, &Fill::Empty, seconds(10), false)
    );
}

#[test]
fn windows_line_ends_and_byte_order_mark_change_nothing() {
    let dos = format!("\u{feff}{}", WHOLE.replace('\n', "\r\n"));
    assert_eq!(Suite::parse(&dos), Suite::parse(WHOLE));
    wrong(
        "\u{feff}schema = 1\r\nrun.deadline = \"1m\"\r\n[task.a]\r\ncommand = \"x\"\r\ndeadlin = \"1s\"\r\n",
        &[(3, "`deadline` is missing"), (5, "unknown key \"deadlin\"")],
    );
}

#[test]
fn every_error_is_reported_at_once_with_its_line() {
    wrong(
        r#"shema = 1
schema = 1
[run]
deadline = "18m"
qeue = "3m"
cpus = "some"
on-failure = "finnish"
[receipt]
max_age = "2h"
[service.postgers]
[task.fmt]
comand = "cargo fmt"
deadline = "0s"
[task."Not A Name"]
[task.test]
command = "cargo test"
needs = [
  "fmt",
  "typecheck",
]
services = ["redis"]
deadline = 30
mutex = "a b"
[profile.quick]
skip = ["tset"]
[other]
"#,
        &[
            (1, "unknown key \"shema\"; did you mean \"schema\"?"),
            (5, "[run]: unknown key \"qeue\"; did you mean \"queue\"?"),
            (6, "[run]: cpus: \"some\" is neither \"auto\" nor a number"),
            (7, "[run]: on-failure: \"finnish\" should be \"finish\" or \"stop\""),
            (9, "[receipt]: unknown key \"max_age\"; did you mean \"max-age\"?"),
            (10, "no service \"postgers\"; did you mean \"postgres\"?"),
            (11, "task \"fmt\": `command` is missing"),
            (12, "task \"fmt\": unknown key \"comand\"; did you mean \"command\"?"),
            (13, "task \"fmt\": deadline: \"0s\" is not between 1ms and 24h"),
            (14, "\"Not A Name\" is not a name"),
            (19, "task \"test\": there is no task \"typecheck\""),
            (21, "task \"test\": there is no service \"redis\""),
            (22, "task \"test\": deadline: 30 has no unit; write it as in \"30s\""),
            (23, "task \"test\": mutex: \"a b\" is not a name"),
            (25, "profile \"quick\": there is no task \"tset\"; did you mean \"test\"?"),
            (26, "unknown key \"other\"; known are schema, run"),
        ],
    );
}

#[test]
fn what_must_be_there_is_missed() {
    wrong("", &[(1, "`schema = 1` is missing"), (1, "[run] is missing"), (1, "there is no task")]);
    wrong("schema = 1\n[run]\n[task]\n", &[(1, "there is no task"), (2, "`deadline` is missing")]);
    wrong(
        &format!("{HEAD}[task.a]\n"),
        &[(3, "task \"a\": `command` is missing"), (3, "task \"a\": `deadline` is missing, and [defaults] has none")],
    );
    wrong_in("[profile.p]\n", 3, "`skip` is missing");
}

#[test]
fn another_schema_is_not_guessed_at() {
    wrong("schema = 2\nwhat = 3\n[tasks.a]\n", &[(1, "this xtask knows schema 1 and not 2")]);
    wrong(
        "schema = \"1\"\nrun.deadline = \"18m\"\n[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\n",
        &[(1, "schema: is a string and should be a whole number")],
    );
}

#[test]
fn a_key_given_twice_is_an_error_and_the_rest_is_still_read() {
    wrong(
        &format!("{HEAD}[task.a]\ncommand = \"x\"\ncommand = \"y\"\ndeadline = \"1s\"\nfoo = 1\n[task.a]\n"),
        &[
            (5, "\"command\" is here for the second time"),
            (7, "unknown key \"foo\""),
            (8, "\"a\" is here for the second time"),
        ],
    );
}

#[test]
fn after_a_syntax_error_nothing_is_said_that_may_be_untrue() {
    let text = format!("{HEAD}[task.a]\ncommand = 3\nneeds = [\"b\", \"c\"]\n[task.b\ncommand = \"x\"\ndeadline = 0\n");
    wrong(&text, &[(4, "command: is an integer"), (6, "unclosed table")]);
    let text =
        format!("{HEAD}[task.a]\ncommand = \"x\ndeadline = \"1m\"\n[task.b]\ncommand = \"x\"\nneeds = [\"c\"]\n");
    wrong(&text, &[(4, "invalid basic string")]);
    // Nor of the line itself.
    wrong(&format!("{HEAD}[task.a]\ncommand = 3 \"x\"\ndeadline = \"1m\"\n"), &[(4, "unexpected key or value")]);
}

#[test]
fn types_are_checked_at_every_level() {
    wrong(
        "schema = 1\nrun = 3\ntask = 4\nservice = \"a\"\nprofile = []\ndefaults = true\nreceipt = 1.5\n",
        &[
            (1, "there is no task"),
            (2, "[run] is an integer and should be a table"),
            (3, "[task] is an integer"),
            (4, "[service] is a string"),
            (5, "[profile] is an array"),
            (6, "[defaults] is a boolean"),
            (7, "[receipt] is a float"),
        ],
    );
    wrong(&format!("{HEAD}[[task.a]]\ncommand = \"x\"\n"), &[(1, "there is no task"), (3, "task \"a\" is an array")]);
    wrong_task("needs = \"b\"", "needs: is a string and should be an array of strings");
    wrong_task("needs = [3]", "needs: is an integer and should be a string");
    wrong_task("dir = 3", "dir: is an integer and should be a string");
    wrong_task("env = \"A=1\"", "env is a string and should be a table");
    wrong_task("env = { A = 1 }", "env: A is an integer and should be a string, in quotes");
    wrong_task("fix = [\"a\"]", "fix: is an array");
    wrong_task("fix = \"a\\nb\"", "fix: \"a\\nb\" is not one line of text");
    wrong_task("mutex = true", "mutex: is a boolean");
    wrong_task("cpus = 1.5", "cpus: is a float");
    wrong_in("[service.postgres]\ntcp = \"yes\"\n", 4, "tcp: is a string and should be true or false");
}

#[test]
fn durations_and_numbers_have_sane_ranges() {
    for (deadline, part) in [
        ("0s", "not between 1ms and 24h"),
        ("-5s", "is not a duration"),
        ("5", "is not a duration"),
        ("25h", "not between 1ms and 24h"),
        ("1500us", "not a whole number of milliseconds"),
        ("soon", "is not a duration"),
        ("", "is not a duration"),
    ] {
        let text = format!("{HEAD}[task.a]\ncommand = \"x\"\ndeadline = \"{deadline}\"\n");
        wrong(&text, &[(5, part)]);
    }
    for (key, value, part) in [
        ("queue", "\"2days\"", "not between 0s and 24h"),
        ("margin", "\"-1s\"", "is not a duration"),
        ("stop-grace", "\"0s\"", "not between 100ms and 5m"),
        ("cpus", "0", "0 is not between 1 and 4096"),
        ("cpus", "-1", "-1 is out of range"),
        ("cpus", "99999999999999999999", "is out of range"),
    ] {
        wrong(
            &format!(
                "schema = 1\n[run]\ndeadline = \"18m\"\n{key} = {value}\n[task.a]\ncommand = \"x\"\ndeadline = \"1s\"\n"
            ),
            &[(4, part)],
        );
    }
    assert_eq!(suite("run.queue = \"0s\"\n[task.a]\ncommand = \"x\"\ndeadline = \"1s\"\n").run.queue, seconds(0));
    wrong_task("cpus = 0", "0 is not between 1 and 4096");
    wrong_task("cpus = \"most\"", "\"most\" is neither \"all\" nor a number");
    wrong_in("[receipt]\nmax-age = \"2s\"\n", 4, "not between 1m and 8784h");
    wrong_in("[service.postgres]\nstart = \"1h\"\n", 4, "not between 100ms and 10m");
    assert_eq!(task("cpus = 0x10").cpus, Weight::Cpus(16));
}

#[test]
fn wrap_up_has_room_for_the_grace_and_leaves_some_for_tasks() {
    let run = |lines: &str| format!("schema = 1\n[run]\n{lines}\n[task.a]\ncommand = \"x\"\ndeadline = \"1s\"\n");
    let short = "wrap-up 10s is too short: stop-grace + 2s = 10s100ms";
    wrong(&run("deadline = \"1m\"\nstop-grace = \"8100ms\"\nwrap-up = \"10s\""), &[(5, short)]);
    wrong(&run("deadline = \"1m\"\nstop-grace = \"0s\"\nwrap-up = \"1s\""), &[(4, "stop-grace: \"0s\" is not")]);
    wrong(&run("deadline = \"10s\"\nwrap-up = \"0s\""), &[(4, "wrap-up: \"0s\" is not")]);
    wrong(&run("deadline = \"10s\""), &[(3, "wrap-up 10s leaves nothing of the deadline 10s")]);
    wrong(&run("deadline = \"10s\"\nwrap-up = \"10s\""), &[(4, "leaves nothing")]);
    let parse = |lines: &str| Suite::parse(&run(lines)).expect("a suite").run;
    assert_eq!(parse("deadline = \"10001ms\"").wrap_up, seconds(10));
    assert_eq!(parse("deadline = \"1m\"\nstop-grace = \"8s\"").wrap_up, seconds(14), "grows with the grace");
    assert_eq!(parse("deadline = \"1m\"\nstop-grace = \"8s\"\nwrap-up = \"10s\"").wrap_up, seconds(10));
}

#[test]
fn services_are_checked() {
    let service = |lines: &str| format!("[service.postgres]\n{lines}\n");
    wrong_in(&service("version = \"14\""), 4, "is not a lowest major version such as \">=14\"");
    wrong_in(&service("version = \">=9\""), 4, "14 is the oldest that works");
    wrong_in(&service("version = \">=14.2\""), 4, "is not a lowest major version");
    wrong_in(&service("migrations = \"m\"\nsetup = \"x\""), 5, "exclude each other");
    wrong_in(&service("setup = \"x > y\""), 4, "means something to a shell only");
    wrong_in(&service("comand = \"x\""), 4, "unknown key \"comand\"");
    let good = "[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\n";
    let suite = suite(&format!("{}{good}", service("version = \">= 16\"\nsetup = \"sqlx migrate run\"")));
    let postgres = suite.services.values().next().expect("a service");
    assert_eq!(postgres.at_least, 16);
    assert_eq!(postgres.fill, Fill::Setup(["sqlx", "migrate", "run"].map(str::to_owned).to_vec()));
}

#[test]
fn profiles_leave_a_whole_that_can_run() {
    let profile = |lines: &str| {
        format!(
            "{HEAD}defaults.deadline = \"1m\"\n[task.a]\ncommand = \"x\"\n[task.b]\ncommand = \"x\"\nneeds = [\"a\"]\n[profile.p]\n{lines}\n"
        )
    };
    wrong(&profile("skip = [\"a\"]"), &[(10, "profile \"p\": skips \"a\", which \"b\" needs")]);
    wrong(&profile("skip = [\"a\", \"b\"]"), &[(9, "profile \"p\": skips every task")]);
    wrong(&profile("skip = [\"b\", \"b\"]"), &[(10, "second time")]);
    wrong(&profile("only = [\"b\"]"), &[(9, "`skip` is missing"), (10, "unknown key \"only\"")]);
    Suite::parse(&profile("skip = [\"b\"]")).expect("a profile");
}

#[test]
fn there_are_at_most_a_thousand_tasks() {
    let of = |count: usize| {
        let tasks: String = (0..count).map(|i| format!("[task.t{i}]\ncommand = \"x\"\n")).collect();
        format!("{HEAD}defaults.deadline = \"1s\"\n{tasks}")
    };
    Suite::parse(&of(1000)).expect("a suite");
    wrong(&of(1001), &[(2004, "1001 tasks, but a suite has 1000 at most")]);
}
