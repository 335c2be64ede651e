//! A run over time as it is drawn. The drawings in tests/pure/screens open in a browser once they are called `.svg`.

use xtask::name::Name;
use xtask::receipt::statement::{Receipt, Task};
use xtask::report::timeline::{Needs, draw, legend};
use xtask::verdict::Word;

use crate::pictures::{failed, needs};
use crate::report_story::check;

/// A run that ends five seconds before its deadline: a bar has room for a name, for a part of it or for none; a word
/// stands in its bar, behind it or before it; a deadline is met exactly, missed, or to the right of all.
fn close() -> (Receipt, Needs) {
    let mut receipt = failed();
    let run = &mut receipt.predicate;
    let (model, never) = (run.tasks[0].clone(), run.tasks[3].clone());
    let name = |text: &str| Name::parse(text).unwrap();
    // Seconds since the locks were won, after the 100 ms before the first task.
    let task = |text: &str, slots: &[u64], (from, took, deadline): (u64, u64, u64), verdict: Word| Task {
        name: name(text),
        slots: slots.to_vec(),
        started_ms: Some(5_002_100 + from),
        took_ms: took,
        deadline_ms: deadline,
        verdict,
        why: verdict.to_string(),
        ..model.clone()
    };
    run.tasks = vec![
        task("fmt", &[0], (0, 300, 30_000), Word::Passed),
        task("typecheck-of-all-there-is", &[0], (300, 29_700, 110_000), Word::Passed),
        task("test", &[1, 2, 5], (0, 60_000, 50_000), Word::Late),
        task("web", &[0, 3], (60_000, 9_000, 9_000), Word::Passed),
        task("lint", &[1], (62_500, 1_250, 60_000), Word::Failed),
        task("smoke", &[2], (108_000, 6_000, 20_000), Word::Cancelled),
        Task { name: name("end-to-end"), why: "needs lint, which did not pass; ".repeat(4), ..never },
    ];
    (run.queue_ms, run.run_ms, run.limits.deadline_ms) = (10_000, 115_000, 120_000);
    let needs = [
        ("fmt", vec![]),
        ("typecheck-of-all-there-is", vec![]),
        ("test", vec![]),
        ("web", vec![name("test")]),
        ("lint", vec![name("test")]),
        ("smoke", vec![name("web"), name("fmt")]),
    ];
    (receipt, needs.map(|(task, needs)| (name(task), needs)).into())
}

fn drawn(receipt: &Receipt, needs: Option<&Needs>) -> String {
    draw(&receipt.predicate, needs) + &legend(&receipt.predicate)
}

#[test]
fn a_run_near_its_deadline() {
    let (receipt, needs) = close();
    check("timeline.close", &drawn(&receipt, Some(&needs)));
}

#[test]
fn a_run_far_from_its_deadline() {
    check("timeline.far", &drawn(&failed(), Some(&needs())));
}

#[test]
fn a_run_that_queued_for_longer_than_it_ran() {
    let mut receipt = failed();
    receipt.predicate.queue_ms = 600_000;
    // Up to the last task, as in a run that was cut short.
    receipt.predicate.run_ms = 5_000;
    check("timeline.queued", &drawn(&receipt, None));
}
