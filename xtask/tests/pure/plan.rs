//! From a suite, a selection and a machine to a plan, or to every reason why there is none.

use std::collections::BTreeMap;
use std::time::Duration;

use xtask::name::Name;
use xtask::plan::{Machine, Plan, Selection};
use xtask::suite::{Suite, SuiteErrors};

const TASKS: &str = r#"schema = 1
[run]
deadline = "10m10s"
[defaults]
deadline = "1m"
[task.fmt]
command = "x"
[task.check]
command = "x"
cpus = 2
mutex = "target"
[task.test]
command = "x"
needs = ["check"]
cpus = "all"
[task.web]
command = "x"
[task.smoke]
command = "x"
needs = ["test", "web"]
cpus = 99
[profile.quick]
skip = ["test", "smoke"]
"#;

fn suite(text: &str) -> Suite {
    Suite::parse(text).unwrap_or_else(|errors| panic!("{}", errors.display("suite")))
}

fn name(text: &str) -> Name {
    Name::parse(text).expect("a name")
}

fn selection(only: &[&str], profile: Option<&str>) -> Selection {
    Selection { only: only.iter().map(|only| name(only)).collect(), profile: profile.map(name) }
}

fn machine(cpus: usize) -> Machine {
    Machine { cpus, usual: BTreeMap::new() }
}

fn select(only: &[&str], profile: Option<&str>) -> Result<(Vec<String>, bool), SuiteErrors> {
    let plan = Plan::new(&suite(TASKS), &selection(only, profile), &machine(8))?;
    Ok((plan.tasks.iter().map(|task| task.name.as_str().to_owned()).collect(), plan.partial))
}

#[track_caller]
fn wrong(result: Result<impl std::fmt::Debug, SuiteErrors>, expected: &str) {
    assert_eq!(result.expect_err("there is no plan").display("suite"), expected);
}

#[test]
fn whole_suite_becomes_a_plan() {
    let usual = BTreeMap::from([(name("test"), Duration::from_secs(7))]);
    let plan = Plan::new(&suite(TASKS), &Selection::default(), &Machine { cpus: 4, usual }).expect("a plan");
    assert_eq!((plan.slots, plan.partial), (4, false));
    assert_eq!(plan.tasks.iter().map(|task| task.slots).collect::<Vec<_>>(), [1, 2, 4, 1, 4]);
    assert_eq!(
        plan.tasks.iter().map(|task| task.needs.clone()).collect::<Vec<_>>(),
        [vec![], vec![], vec![1], vec![], vec![2, 3]]
    );
    assert_eq!(plan.tasks[2].usual, Some(Duration::from_secs(7)));
    assert_eq!(plan.tasks[1].mutex, Some(name("target")));
    assert_eq!(plan.time_for_tasks(), Duration::from_secs(600));
}

#[test]
fn pool_is_what_both_the_machine_and_the_suite_allow() {
    let slots = |suite_cpus: &str, machine_cpus| {
        let text = TASKS.replace("[defaults]", &format!("cpus = {suite_cpus}\n[defaults]"));
        Plan::new(&suite(&text), &Selection::default(), &machine(machine_cpus)).expect("a plan").slots
    };
    assert_eq!([slots("\"auto\"", 8), slots("3", 8), slots("16", 8), slots("\"auto\"", 0)], [8, 3, 8, 1]);
}

#[test]
fn only_takes_what_the_named_tasks_need() {
    let names = |only: &[&str], profile| select(only, profile).map(|(names, partial)| (names.join(" "), partial));
    assert_eq!(names(&["test"], None), Ok(("check test".to_owned(), true)));
    assert_eq!(names(&["smoke", "fmt"], None), Ok(("fmt check test web smoke".to_owned(), true)));
    assert_eq!(names(&[], Some("quick")), Ok(("fmt check web".to_owned(), true)));
    assert_eq!(names(&["web"], Some("quick")), Ok(("web".to_owned(), true)));
    assert!(!names(&[], None).expect("a plan").1);
}

#[test]
fn unknown_and_contradicting_selections_are_refused_all_at_once() {
    wrong(
        select(&["tset", "nothing-like-it", "web"], Some("quik")),
        "--profile quik: the suite has no such profile; did you mean \"quick\"?\n\
         --only tset: the suite has no such task; did you mean \"test\"?\n\
         --only nothing-like-it: the suite has no such task\n",
    );
    wrong(select(&["smoke"], Some("quick")), "--only smoke: the profile skips it\n");
}

#[test]
fn needs_of_selected_tasks_have_the_right_indices() {
    let plan = Plan::new(&suite(TASKS), &selection(&["test"], None), &machine(2)).expect("a plan");
    assert_eq!(plan.tasks[1].needs, [0]);
}

#[test]
fn deadlines_that_cannot_fit_the_run_are_refused() {
    let run = |deadline: &str| TASKS.replace("10m10s", deadline);
    let plan = |text: &str, cpus| Plan::new(&suite(text), &Selection::default(), &machine(cpus));
    plan(&run("3m10s"), 8).expect("check -> test -> smoke is exactly 3m");
    wrong(
        plan(&run("189s"), 200),
        "suite:3: check -> test -> smoke have deadlines of 3m one after the other, but the run has 2m59s for tasks \
         (deadline 3m09s - wrap-up 10s)\n",
    );
    plan(&run("4m10s"), 2).expect("on two slots the work is (1 + 2 + 2 + 1 + 2) / 2 minutes");
    wrong(
        plan(&run("4m09s"), 2),
        "suite:3: all deadlines times cpus make 4m on 2 cpu slots, but the run has 3m59s for tasks \
         (deadline 4m09s - wrap-up 10s)\n",
    );
    let long = TASKS.replace("command = \"x\"\n[task.check]", "command = \"x\"\ndeadline = \"11m\"\n[task.check]");
    wrong(
        plan(&long, 200),
        "suite:8: task \"fmt\": deadline 11m, but the run has 10m for tasks (deadline 10m10s - wrap-up 10s)\n",
    );
    Plan::new(&suite(&run("189s")), &selection(&[], Some("quick")), &machine(8)).expect("the profile fits");
}

#[test]
fn rounding_never_lets_an_unfit_plan_pass() {
    let text = "schema = 1\n[run]\ndeadline = \"11s\"\nwrap-up = \"10s\"\n[task.a]\ncommand = \"x\"\ndeadline = \"1s\"\n\
                [task.b]\ncommand = \"x\"\ndeadline = \"1s\"\n[task.c]\ncommand = \"x\"\ndeadline = \"1ms\"\n";
    let errors =
        Plan::new(&suite(text), &Selection::default(), &machine(2)).expect_err("2001 ms of work on 2 slots in 1 s");
    assert_eq!(errors.0.len(), 1, "{errors:?}");
}

#[test]
fn a_task_that_gets_fewer_cpus_than_it_asks_for_is_noted() {
    let suite = suite(TASKS);
    let notes = |cpus| Plan::new(&suite, &Selection::default(), &machine(cpus)).unwrap().notes(&suite);
    assert_eq!(notes(8), ["task smoke asks for 99 cpus and gets all there are: 8"]);
    assert_eq!(notes(2), ["task smoke asks for 99 cpus and gets all there are: 2"]);
    assert_eq!(notes(1).len(), 2, "check asks for 2");
    assert_eq!(notes(99), [""; 0]);
}
