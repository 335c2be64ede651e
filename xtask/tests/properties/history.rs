//! Receipts of earlier runs, read for how long things take.

use xtask::plan::order::makespan;
use xtask::plan::{Machine, Plan, Selection};
use xtask::receipt::past::Past;
use xtask::suite::Suite;

const SUITE: &str = "schema = 1\nrun.deadline = \"24h\"\ndefaults.deadline = \"1h\"\n[task.fmt]\ncommand = \"x\"\n\
    [task.test]\ncommand = \"x\"\nneeds = [\"fmt\"]\n[task.web]\ncommand = \"x\"\ncpus = \"all\"\n";

/// Two receipts, the newer first, with a NUL between. What cannot be read tells nothing; of what can, the oldest comes
/// first; and a run is planned whatever they say.
pub fn holds(bytes: &[u8]) {
    let (newer, older) = bytes.split_at(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
    let older = older.get(1..).unwrap_or_default();
    let past = Past::of([newer.to_vec(), older.to_vec()]);
    let (first, second) = (Past::of([older.to_vec()]), Past::of([newer.to_vec()]));
    assert_eq!(past.runs, [first.runs, second.runs].concat());
    for (task, took) in &past.tasks {
        let of = |past: &Past| past.tasks.get(task).cloned().unwrap_or_default();
        assert_eq!(took, &[of(&first_of(older)), of(&first_of(newer))].concat());
    }
    let usual = past.usual();
    assert!(usual.keys().eq(past.tasks.keys()));
    assert!(usual.iter().all(|(task, length)| past.tasks[task].contains(length)), "{past:?}");
    let again: Past = serde_json::from_slice(&serde_json::to_vec(&past).expect("json")).expect("what was written");
    assert_eq!(again, past);
    let suite = Suite::parse(SUITE).expect("a suite");
    let plan = Plan::new(&suite, &Selection::default(), &Machine { cpus: 2, usual }).expect("a plan");
    let length = makespan(&plan, |task| plan.tasks[task].usual.unwrap_or_default().min(plan.tasks[task].deadline));
    assert!(length <= plan.deadline, "{length:?}");
    // As the runner is given it by the keeper: whatever it reads there has a usual length or none.
    if let Ok(past) = serde_json::from_slice::<Past>(bytes) {
        assert!(past.usual().len() <= past.tasks.len());
    }
}

fn first_of(bytes: &[u8]) -> Past {
    Past::of([bytes.to_vec()])
}
