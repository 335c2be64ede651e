//! The table that `cargo bench` prints: what it says of an aim, and what can be asked for.

#[path = "../../benches/table/request.rs"]
mod request;
#[path = "../../benches/table/table.rs"]
#[allow(dead_code, reason = "the parts use the rest")]
mod table;

use request::{Name, Request, parse};
use table::{Aim, Curve, Line, Row, Spread, Unit, markdown, text};

fn floor(ms: f64) -> Line {
    Line::new("spawn", Spread::one(ms))
}

fn row(ms: f64) -> Row {
    Row::new("a run", Unit::Ms).ours(Spread { median: ms, least: ms - 1.0, most: ms + 1.0 })
}

#[test]
fn an_aim_is_reached_exactly_at_it() {
    let check = |row: Row, reached: Option<bool>| assert_eq!(row.reached(), reached, "{row:?}");
    check(row(50.0).aim(Aim::Median(50.0)), Some(true));
    check(row(50.0).aim(Aim::Median(49.9)), Some(false));
    check(row(50.0).aim(Aim::Every(50.0)), Some(false));
    check(row(50.0).aim(Aim::Every(51.0)), Some(true));
    check(row(50.0).aim(Aim::OverFloor(40.0)).floor(floor(10.0)), Some(true));
    check(row(50.0).aim(Aim::OverFloor(40.0)).floor(floor(9.0)), Some(false));
    check(row(50.0).aim(Aim::OfFloor(5.0)).floor(floor(10.0)), Some(true));
    check(row(50.0).aim(Aim::OfFloor(5.0)).floor(floor(9.0)), Some(false));
}

#[test]
fn without_an_aim_a_measurement_or_a_floor_nothing_is_reached() {
    assert_eq!(row(50.0).reached(), None);
    assert_eq!(Row::new("a run", Unit::Ms).unmeasured("by hand").aim(Aim::Median(1.0)).reached(), None);
    assert_eq!(row(50.0).aim(Aim::OfFloor(5.0)).reached(), None);
    assert_eq!(row(50.0).aim(Aim::OfFloor(5.0)).floor(Line::missing("spawn", "not installed")).reached(), None);
}

#[test]
fn while_it_works_it_says_the_value_that_the_aim_is_about() {
    let check = |row: Row, text: &str| assert_eq!(row.brief(), text);
    check(row(50.0), "a run: 50 ms");
    check(row(50.0).aim(Aim::Every(50.5)), "a run: 51 ms, aim 50.5 ms, always: NO");
    check(
        row(50.0).aim(Aim::OfFloor(5.0)).floor(floor(10.0)).note("once"),
        "a run: 5.00x, aim 5.00x of floor: yes; once",
    );
    check(row(50.0).unmeasured("by hand"), "a run: not measured: by hand");
}

fn example() -> (Vec<Row>, Vec<Curve>) {
    let rows = vec![
        row(42.0)
            .aim(Aim::OverFloor(50.0))
            .floor(floor(2.0))
            .beside([Line::new("make", Spread::one(3.0)), Line::missing("ninja", "not installed")]),
        Row::new("kills", Unit::Count).aim(Aim::Every(0.0)).unmeasured("by hand: cargo bench").note("a | b"),
    ];
    let point = || Row::new("", Unit::Ms);
    let points = vec![
        (1, point().ours(Spread::one(10.0)).note("once")),
        (10, point().unmeasured("too many")),
        (101, point().ours(Spread::one(30.0)).floor(floor(15.0))),
    ];
    (rows, vec![Curve { what: "tasks of a run".to_owned(), of: "task", points }])
}

#[test]
fn the_table_says_everything_in_columns() {
    let (rows, curves) = example();
    let expected = "\
what             aim, at most  median  least   most  of the floor  of xtask  reached
a run           floor + 50 ms   42 ms  41 ms  43 ms        +40 ms            yes
  floor: spawn                   2 ms                       +0 ms     0.05x
  make                           3 ms                       +1 ms     0.07x
  ninja                                                                      not installed
kills               0, always                                                not measured: by hand: cargo bench; a | b

how cost grows          one more costs  median  least  most  of the floor  of xtask
tasks of a run: 1 task                   10 ms                                       once
… 10                                                                                 not measured: too many
… 101                         200.0 us   30 ms                      2.00x
  floor: spawn                           15 ms                      1.00x     0.50x
";
    let got = text(&rows, &curves);
    assert_eq!(got, expected, "\n{got}");
}

#[test]
fn the_same_as_markdown() {
    let (rows, curves) = example();
    let expected = "\
| what | aim, at most | xtask | beside it | reached |
|---|---|---|---|---|
| a run | floor + 50 ms | +40 ms (+39 ms to +41 ms) | floor (spawn) 2 ms, make +1 ms, ninja: not installed | yes |
| kills | 0, always |  |  | not measured: by hand: cargo bench; a \\| b |

| how cost grows | of | xtask | beside it | one more costs |  |
|---|---|---|---|---|---|
| tasks of a run | 1 task | 10 ms |  |  | once |
|  | 10 tasks |  |  |  | not measured: too many |
|  | 101 tasks | 30 ms | floor (spawn) 15 ms | 200.0 us |  |
";
    let got = markdown(&rows, &curves);
    assert_eq!(got, expected, "\n{got}");
}

#[test]
fn parts_groups_and_counts_are_asked_for_by_name() {
    let name = |name, group| Name { name, group };
    let names = [name("storm", "lock"), name("waiting", "lock"), name("kills", "run"), name("run", "run")];
    let ask = |words: &str| parse(words.split_whitespace().map(str::to_owned), &names);
    let parts = |words: &str| ask(words).unwrap().parts;
    assert_eq!(ask("--bench"), Ok(Request::default()));
    assert_eq!(parts("kills 1000 storm"), [(2, Some(1000)), (0, None)]);
    assert_eq!(parts("lock"), [(0, None), (1, None)]);
    assert_eq!(parts("run 3"), [(3, Some(3))], "the part, not the group");
    let asked = ask("--markdown --program a/b storm").unwrap();
    assert_eq!((asked.markdown, asked.program, asked.optimised), (true, Some("a/b".into()), false));
    assert!(ask("--optimised").unwrap().optimised);
    assert!(ask("order").unwrap_err().contains("storm, waiting, kills, run"));
    for wrong in ["1000", "lock 7", "kills 0", "kills 99999999999999999999999", "--program"] {
        assert!(ask(wrong).is_err(), "{wrong}");
    }
}
