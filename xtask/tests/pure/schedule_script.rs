//! Plans and scripts for the schedule, in words: `check` knows the API, the tests know only what should happen.

use std::time::Duration;

use xtask::name::Name;
use xtask::plan::schedule::{Action, Ending, Input, Schedule, Why};
use xtask::plan::{Plan, Planned};
use xtask::suite::OnFailure;
use xtask::time::Moment;
use xtask::verdict::{Cause, ExitStatus, Limit, Reason, Stop, Verdict};

/// Drives a schedule through a script.
///
/// The plan: `run pool=2 deadline=100 wrap-up=6 grace=4 on-failure=finish` (all optional), then tasks,
/// `task NAME limit=10 cpus=1 needs=A+B mutex=M usual=5`. The script: lines `at TIME INPUT -> ACTION, ACTION`, `| wake
/// TIME` at the end where it matters. Times are seconds after the lock was won; `10+` is one nanosecond after 10. Inputs:
/// `tick`, `began a`, `unstarted a`, `exited a CODE` (`9` signal: `SIG9`), with `when=TIME` for a leader that began or
/// ended before that was heard of, `left` and `missing`; `full a`, `int`, `term`, `hup`, `lost`.
pub fn check(plan: &str, script: &str) {
    let plan = plan_of(plan);
    let mut schedule = Schedule::new(&plan, moment("0"));
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, wanted) = line.split_once("->").unwrap_or_else(|| panic!("no arrow in {line:?}"));
        let (wanted, wake) =
            wanted.split_once('|').map_or((wanted, None), |(wanted, wake)| (wanted, Some(wake.trim())));
        let words: Vec<&str> = input.split_whitespace().collect();
        let actions = schedule.on(moment(words[1]), input_of(&plan, &words));
        let got: Vec<String> = actions.iter().map(|action| shown(&plan, action)).collect();
        let wanted: Vec<&str> = wanted.split(", ").map(str::trim).filter(|action| !action.is_empty()).collect();
        assert_eq!(got, wanted, "at the line {line:?}");
        if let Some(wake) = wake {
            let wanted = (wake != "never").then(|| moment(wake.strip_prefix("wake ").unwrap()));
            assert_eq!(schedule.wake_at(), wanted.filter(|_| wake != "never"), "wake at the line {line:?}");
        }
    }
}

/// Reads a plan, as `check` describes it.
pub fn plan_of(text: &str) -> Plan {
    let mut plan = Plan {
        tasks: Vec::new(),
        slots: 2,
        deadline: Duration::from_secs(100),
        wrap_up: Duration::from_secs(6),
        stop_grace: Duration::from_secs(4),
        on_failure: OnFailure::Finish,
        partial: false,
    };
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let seconds = |key: &str| value(key).map(|text| Duration::from_secs_f64(text.parse().unwrap()));
        if words[0] == "run" {
            plan.slots = value("pool").map_or(2, |text| text.parse().unwrap());
            plan.deadline = seconds("deadline").unwrap_or(plan.deadline);
            plan.wrap_up = seconds("wrap-up").unwrap_or(plan.wrap_up);
            plan.stop_grace = seconds("grace").unwrap_or(plan.stop_grace);
            plan.on_failure = if value("on-failure") == Some("stop") { OnFailure::Stop } else { OnFailure::Finish };
            continue;
        }
        let known = |name: &str| plan.tasks.iter().position(|task| task.name.as_str() == name).expect("a task above");
        let task = Planned {
            name: Name::parse(words[1]).unwrap(),
            needs: value("needs").map_or(Vec::new(), |names| names.split('+').map(known).collect()),
            slots: value("cpus").map_or(1, |text| text.parse().unwrap()),
            mutex: value("mutex").map(|name| Name::parse(name).unwrap()),
            deadline: seconds("limit").unwrap_or(Duration::from_secs(10)),
            usual: seconds("usual"),
        };
        plan.tasks.push(task);
    }
    plan
}

fn moment(text: &str) -> Moment {
    let (text, later) = text.strip_suffix('+').map_or((text, 0), |text| (text, 1));
    // The run does not begin at the clock's zero.
    Moment::from_nanos(7_000_000_000 + later) + Duration::from_secs_f64(text.parse().unwrap())
}

fn input_of(plan: &Plan, words: &[&str]) -> Input {
    let task = || plan.tasks.iter().position(|task| task.name.as_str() == words[3]).expect("a known task");
    let rest = words.get(4..).unwrap_or_default();
    let when = || rest.iter().find_map(|word| word.strip_prefix("when=")).map_or(moment(words[1]), moment);
    match words[2] {
        "tick" => Input::Tick,
        "began" => Input::Started(task(), when()),
        "withdrawn" => Input::NotStarted(task(), Verdict::NotRun(Reason::Cancelled(Stop::Int))),
        "unstarted" => Input::NotStarted(task(), Verdict::Failed(Cause::Spawn("no such program".to_owned()))),
        "exited" => Input::Ended(
            task(),
            Ending {
                status: match rest[0].strip_prefix("SIG") {
                    Some(signal) => ExitStatus::Signal(signal.parse().unwrap()),
                    None => ExitStatus::Code(rest[0].parse().unwrap()),
                },
                at: when(),
                leftovers: rest.iter().filter(|word| word.starts_with("left")).map(|_| "sleep 7".to_owned()).collect(),
                leftovers_fail: !rest.contains(&"left-may-be"),
                trouble: rest.contains(&"missing").then(|| "no app".to_owned()),
            },
        ),
        "full" => Input::LogFull(task(), 64),
        "int" => Input::Stop(Stop::Int),
        "term" => Input::Stop(Stop::Term),
        "hup" => Input::Stop(Stop::Hup),
        "lost" => Input::NoVerdict,
        other => panic!("no input {other:?}"),
    }
}

fn shown(plan: &Plan, action: &Action) -> String {
    let name = |task: &usize| plan.tasks[*task].name.as_str();
    let why = |why: &Why| match why {
        Why::Late(Limit::Task) => "late",
        Why::Late(Limit::Run) => "run-late",
        Why::GraceOver => "grace-over",
        Why::LogFull => "log-full",
        Why::Cancelled(_) => "cancelled",
        Why::OnFailure => "on-failure",
        Why::NoVerdict => "no-verdict",
    };
    match action {
        Action::Start(task, slots) => {
            let slots: Vec<String> = slots.iter().map(usize::to_string).collect();
            format!("start {} on {}", name(task), slots.join("+"))
        }
        Action::Withdraw(task, _) => format!("withdraw {}", name(task)),
        Action::Ask(task, signal, reason) => format!("ask {} {signal} {}", name(task), why(reason)),
        Action::Kill(task, reason) => format!("kill {} {}", name(task), why(reason)),
        Action::Verdict(task, verdict) => {
            let verdict = match verdict {
                Verdict::Passed => "passed".to_owned(),
                Verdict::Failed(Cause::Exit(ExitStatus::Code(code))) => format!("failed({code})"),
                Verdict::Failed(Cause::Exit(ExitStatus::Signal(signal))) => format!("failed(SIG{signal})"),
                Verdict::Failed(Cause::Leftovers(_)) => "failed(leftovers)".to_owned(),
                Verdict::Failed(Cause::LogLimit(_)) => "failed(log)".to_owned(),
                Verdict::Failed(Cause::Output(_)) => "failed(output)".to_owned(),
                Verdict::Failed(Cause::Spawn(_)) => "failed(spawn)".to_owned(),
                Verdict::Failed(other) => format!("failed({other:?})"),
                Verdict::Late(Limit::Task) => "late(task)".to_owned(),
                Verdict::Late(Limit::Run) => "late(run)".to_owned(),
                Verdict::Cancelled(stop) => format!("cancelled({stop})"),
                Verdict::NotRun(Reason::Needs(need)) => format!("not-run(needs {need})"),
                Verdict::NotRun(Reason::OnFailure) => "not-run(on-failure)".to_owned(),
                Verdict::NotRun(Reason::RunDeadline) => "not-run(run)".to_owned(),
                Verdict::NotRun(Reason::Cancelled(stop)) => format!("not-run({stop})"),
                Verdict::NotRun(Reason::NoVerdict) => "not-run(no-verdict)".to_owned(),
            };
            format!("{} {verdict}", name(task))
        }
        Action::RunLate => "run late".to_owned(),
        Action::Done => "done".to_owned(),
    }
}
