//! A suite file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use xtask::name::TaskName;
use xtask::plan::line::Jobs;
use xtask::plan::order::{lower_bound, makespan, order};
use xtask::plan::{Machine, Plan, Selection};
use xtask::report::plan::checks;
use xtask::suite::{Suite, SuiteErrors};

/// It is a suite in which everything the type promises is true, or every error says where and what in one plain line. What
/// is planned of it fits the run and can be simulated.
pub fn holds(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let suite = match Suite::parse(text) {
        Ok(suite) => suite,
        Err(errors) => return well_said(&errors, text),
    };
    promised(&suite);
    let whole = Selection::default();
    let last = suite.tasks.last().map(|task| task.name.clone());
    let selections = [whole.clone(), Selection { only: last.into_iter().collect(), profile: None }];
    let profiles = suite.profiles.keys().map(|name| Selection { only: Vec::new(), profile: Some(name.clone()) });
    for selection in selections.into_iter().chain(profiles) {
        for cpus in [1, 2, 64] {
            // Short, for the search of an order takes longer the more there is to win.
            let short = |deadline: Duration| deadline.min(Duration::from_millis(2));
            let usual = suite.tasks.iter().map(|task| (task.name.clone(), short(task.deadline))).collect();
            let machine = Machine { cpus, usual: if cpus == 2 { usual } else { BTreeMap::new() } };
            match Plan::new(&suite, &selection, &machine) {
                Ok(plan) => planned(&suite, &plan, selection == whole),
                Err(errors) => well_said(&errors, text),
            }
        }
    }
}

fn well_said(errors: &SuiteErrors, text: &str) {
    assert!(!errors.0.is_empty(), "refused without an error");
    let lines = text.split('\n').count();
    for error in &errors.0 {
        assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error:?} of {lines}");
        assert!(!error.what.trim().is_empty() && super::plain(&error.what), "{error:?}");
    }
    assert!(errors.0.is_sorted_by_key(|error| error.line), "{errors:?}");
}

fn promised(suite: &Suite) {
    let run = &suite.run;
    assert!(run.wrap_up >= run.stop_grace + Duration::from_secs(2) && run.wrap_up < run.deadline, "{run:?}");
    assert!(
        run.outer() >= run.queue + run.deadline + run.margin && run.outer().as_secs().is_multiple_of(60),
        "{run:?}"
    );
    assert!((1..=1000).contains(&suite.tasks.len()));
    let names: BTreeSet<&TaskName> = suite.tasks.iter().map(|task| &task.name).collect();
    assert_eq!(names.len(), suite.tasks.len(), "a name twice");
    for task in &suite.tasks {
        assert!(task.needs.iter().all(|need| names.contains(need)), "{task:?}");
        assert!(task.services.iter().all(|service| suite.services.contains_key(service)), "{task:?}");
        assert!(!task.command[0].is_empty() && !task.command.iter().any(|word| word.contains('\0')), "{task:?}");
        assert!(task.deadline >= Duration::from_millis(1) && task.log_limit >= 1024, "{task:?}");
        assert!(task.fix.as_deref().is_none_or(no_controls), "{task:?}");
        assert!(!task.env.keys().any(|name| name.is_empty() || name.contains(['=', '\0'])), "{task:?}");
        for path in task.outputs.iter().chain(Some(&task.dir).filter(|dir| !dir.is_empty())) {
            let inside = path.split('/').all(|part| !matches!(part, "" | "." | ".." | ".git"));
            assert!(inside && no_controls(path), "{task:?}");
        }
    }
    for profile in suite.profiles.values() {
        assert!(profile.skip.iter().all(|task| names.contains(task)), "{profile:?}");
    }
}

fn no_controls(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

fn planned(suite: &Suite, plan: &Plan, whole: bool) {
    assert!(!plan.tasks.is_empty() && plan.slots >= 1 && plan.partial != whole);
    assert!(!whole || plan.tasks.len() == suite.tasks.len());
    let room = plan.time_for_tasks();
    for task in &plan.tasks {
        assert!((1..=plan.slots).contains(&task.slots) && task.deadline <= room, "{task:?}");
        assert!(task.needs.iter().all(|&need| need < plan.tasks.len()), "{task:?}");
    }
    assert!(plan.notes(suite).iter().all(|note| super::plain(note)));
    // What the order costs is known; a fuzzer is to look at texts.
    if plan.tasks.len() > 30 {
        return;
    }
    let jobs = Arc::new(Jobs::new(plan));
    let mut first = order(plan, &jobs);
    first.sort_unstable();
    assert!(first.into_iter().eq(0..plan.tasks.len()), "an order has every task once");
    let length = makespan(plan, |task| jobs.jobs[task].estimate);
    assert!(length >= lower_bound(&jobs), "{length:?} is less than no order can beat");
    assert!(checks(suite, plan).iter().all(|check| super::plain(&check.text)));
}
