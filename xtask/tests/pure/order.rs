//! The order of a plan's tasks: what the search is worth, and what it may cost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use xtask::name::Name;
use xtask::plan::line::Jobs;
use xtask::plan::order::{lower_bound, makespan, order};
use xtask::plan::{Plan, Planned};
use xtask::suite::OnFailure;

use crate::schedule_script::plan_of;

/// The benchmark's 40 tasks, on two slots.
fn dag(known: bool) -> Plan {
    #[derive(serde::Deserialize)]
    struct Row {
        name: String,
        needs: Vec<String>,
        cpus: usize,
        ms: u64,
    }
    let rows: Vec<Row> = serde_json::from_str(include_str!("../../benches/dag.json")).unwrap();
    let index: BTreeMap<&str, usize> = rows.iter().enumerate().map(|(i, row)| (row.name.as_str(), i)).collect();
    let planned = |row: &Row| Planned {
        name: Name::parse(&row.name).unwrap(),
        needs: row.needs.iter().map(|need| index[need.as_str()]).collect(),
        slots: row.cpus,
        mutex: None,
        deadline: Duration::from_secs(10),
        usual: known.then(|| Duration::from_millis(row.ms)),
    };
    Plan {
        tasks: rows.iter().map(planned).collect(),
        slots: 2,
        deadline: Duration::from_secs(600),
        wrap_up: Duration::from_secs(6),
        stop_grace: Duration::from_secs(4),
        on_failure: OnFailure::Finish,
        partial: false,
    }
}

#[test]
fn known_durations_bring_the_makespan_near_to_what_no_order_can_beat() {
    let plan = dag(true);
    let usual = |task: usize| plan.tasks[task].usual.unwrap();
    assert_eq!(lower_bound(&Jobs::new(&plan)), Duration::from_millis(4310));
    let took = makespan(&plan, usual);
    assert!(took <= Duration::from_millis(4396), "{took:?} is more than 1.02 of the bound");
    // No task takes exactly its usual time. Up to 5 ms more each, in no order, is 4.4 s of work for each slot.
    for seed in 1..=5 {
        let some = |task: usize| Duration::from_micros(((task as u64 + 7) * 7919 * (seed + 40_503)) % 5_000);
        let took = makespan(&plan, |task| usual(task) + some(task));
        assert!(took <= Duration::from_millis(4482), "{took:?} is more than 1.04 of the bound");
    }
}

#[test]
fn search_is_repeatable_and_only_where_every_duration_is_known() {
    let order_of = |plan: &Plan| order(plan, &Arc::new(Jobs::new(plan)));
    let known = dag(true);
    assert_eq!(order_of(&known), order_of(&known));
    let took = |plan: &Plan| makespan(plan, |task| known.tasks[task].usual.unwrap());
    // One that nobody knows, though it hangs on nothing and takes next to nothing.
    let mut but_one = known.clone();
    but_one.tasks.push(Planned {
        name: Name::parse("unknown").unwrap(),
        usual: None,
        deadline: Duration::from_millis(1),
        needs: vec![known.tasks.len() - 1],
        ..known.tasks[0].clone()
    });
    let longest_path_first =
        makespan(&but_one, |task| known.tasks.get(task).map_or(Duration::from_millis(1), |task| task.usual.unwrap()));
    assert!(longest_path_first > took(&known) + Duration::from_millis(100), "{longest_path_first:?}");
    assert!(took(&dag(false)) > took(&known), "deadlines alone are a poor guide");
}

#[test]
fn order_that_cannot_be_better_is_left_alone() {
    // The bound is 7.5 s, and all orders take the 9 s that are possible.
    let plan = plan_of("task a usual=3\n task b usual=3\n task c usual=3\n task d usual=3\n task e usual=3");
    assert_eq!(order(&plan, &Arc::new(Jobs::new(&plan))), [0, 1, 2, 3, 4]);
    // Here the bound, 8 s, can be had, by giving the mutex to `c` first.
    let plan = plan_of("task a usual=3\n task b usual=5\n task c usual=4 mutex=m\n task d usual=4 mutex=m");
    assert_eq!(makespan(&plan, |task| plan.tasks[task].usual.unwrap()), Duration::from_secs(8));
}

#[test]
fn lower_bound_is_the_longest_path_or_the_work_or_the_turns() {
    let bound = |text: &str| lower_bound(&Jobs::new(&plan_of(text)));
    assert_eq!(bound("task a usual=3\n task b usual=4 needs=a\n task c usual=5"), Duration::from_secs(7));
    assert_eq!(bound("task a usual=3 cpus=2\n task b usual=4 cpus=2\n task c usual=5"), Duration::from_millis(9_500));
    assert_eq!(
        bound("run pool=9\n task a usual=3 mutex=m\n task b usual=4 mutex=m\n task c usual=5"),
        Duration::from_secs(7)
    );
}
