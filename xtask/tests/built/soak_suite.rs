//! Random suites of the fixture, and how a run of each must end if nobody interferes.

use std::path::Path;

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

/// How a task ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    Late,
    // It passes, and the tree is another one.
    Changed,
    // It passes, and there is something in the place of the receipt.
    Claimed,
    // It passes, and something is left that nobody can tell whose it is.
    Strayed,
    // Never started, because of what it needs.
    NotRun,
}

impl End {
    fn verdict(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Late => "late",
            Self::NotRun => "not-run",
            Self::Passed | Self::Changed | Self::Claimed | Self::Strayed => "passed",
        }
    }
}

/// A way of behaving: orders for the fixture, and what the suite says of the task beside them.
struct Habit(&'static str, &'static str, End);

const KILL: &str = "leftovers = \"kill\"\n";

const HABITS: &[Habit] = &[
    Habit("say hi", "", End::Passed),
    Habit("sleep 60 say done", "", End::Passed),
    Habit("work 30", "", End::Passed),
    Habit("fork sleep 10 say child end sleep 300", "", End::Passed),
    Habit("wait session count say hi", "", End::Passed),
    Habit("group deaf rename other say hi", "", End::Passed),
    Habit("flood 300000", "", End::Passed),
    Habit("threads sleep 20 say hi", "", End::Passed),
    Habit("fork deaf hang end say hi", KILL, End::Passed),
    Habit("fork session leave deaf hang end fork deaf hang end sleep 40 say hi", KILL, End::Passed),
    Habit("fork session clobber leave deaf hang end sleep 40 say hi", KILL, End::Passed),
    Habit("fork chain 20 hang end sleep 80", KILL, End::Passed),
    Habit("say wrong exit 3", "", End::Failed),
    Habit("sleep 40 exit 101", "", End::Failed),
    Habit("fork hang end say hi", "", End::Failed),
    Habit("fork session leave deaf hang end sleep 40 say hi", "", End::Failed),
    Habit("flood 200000", "log-limit = \"64KiB\"\n", End::Failed),
    Habit("flood 9000000", "log-limit = \"64KiB\"\n", End::Failed),
    Habit("deaf hang", "", End::Late),
    Habit("polite hang", "", End::Late),
    Habit("cleanup hang", "", End::Late),
    Habit("stop", "", End::Late),
    Habit("fork deaf hang end polite hang", "", End::Late),
    Habit("fork session leave deaf hang end deaf hang", "", End::Late),
    Habit("fork chain 30 hang end hang", "", End::Late),
    Habit("threads clobber deaf hang", "", End::Late),
    Habit("touch made-by-a-task say hi", "", End::Changed),
];

// Beside what the others do.
const EXTRAS: &[Habit] = &[
    Habit("claim say hi", "", End::Claimed),
    Habit("fork session leave bare everywhere close deaf hang end sleep 40 say hi", KILL, End::Strayed),
];

const RUN: &str = "queue = \"300s\"\nmargin = \"1m\"\nstop-grace = \"300ms\"\n";
const REST: &str = "[receipt]\nmax-age = \"2h\"\n[defaults]\nenv = { LD_PRELOAD = \"\" }\n";

/// The fixture, where its tasks bear witness, and the token that they carry.
pub struct Fixture<'a> {
    pub misbehave: &'a Path,
    pub witness: &'a Path,
    pub token: &'a str,
}

impl Fixture<'_> {
    fn task(&self, name: &str, orders: &str) -> String {
        let words = ["witness", self.witness.to_str().expect("a path of ours")].into_iter();
        let words: Vec<String> =
            words.chain(orders.split(' ')).chain([self.token]).map(|word| format!("{word:?}")).collect();
        format!("[task.{name}]\ncommand = [{:?}, {}]\n", self.misbehave, words.join(", "))
    }

    /// A suite of one task whose run has 4 s in all, and ends so.
    pub fn short(&self, orders: &str, code: i32) -> RandomSuite {
        let run = format!("schema = 1\n[run]\ndeadline = \"4s\"\nwrap-up = \"3s\"\n{RUN}{REST}");
        let text = format!("{run}{}deadline = \"900ms\"\n", self.task("t0", orders));
        RandomSuite {
            text,
            code: Some(code),
            alone: ("t0".to_owned(), code),
            verdicts: Vec::new(),
            claims: false,
            strays: false,
        }
    }
}

/// A suite, and how its run must end.
#[derive(Clone)]
pub struct RandomSuite {
    /// The text of ci/suite.toml.
    pub text: String,
    /// The exit code of a run of all of it; none if it never ends by itself.
    pub code: Option<i32>,
    /// A task that needs no other; and the code of a run of it alone.
    pub alone: (String, i32),
    /// The verdict of each task, if nobody interferes.
    pub verdicts: Vec<(String, &'static str)>,
    /// A task may put something in the place of the receipt.
    pub claims: bool,
    /// A task may leave something that nobody can tell whose it is.
    pub strays: bool,
}

impl RandomSuite {
    /// Tasks of the fixture.
    pub fn new(dice: &mut Dice, fixture: &Fixture) -> Self {
        // In half of them every task passes; the others take what comes.
        let tame = dice.percent(50);
        let mut text = format!("schema = 1\n[run]\ndeadline = \"300s\"\nwrap-up = \"20s\"\n{RUN}{REST}");
        let (mut ends, mut names): (Vec<End>, Vec<String>) = (Vec::new(), Vec::new());
        for number in 0..=dice.below(5) {
            let Habit(orders, more, end) = loop {
                let habit = dice.pick(HABITS);
                if !tame || habit.2 == End::Passed {
                    break habit;
                }
            };
            names.push(format!("t{number}"));
            text += &fixture.task(&names[number as usize], orders);
            text += more;
            // What is late never ends by itself, and nothing else takes long.
            text += if *end == End::Late { "deadline = \"500ms\"\n" } else { "deadline = \"40s\"\n" };
            let need = (number > 0 && dice.percent(40)).then(|| dice.below(number));
            if let Some(need) = need {
                text += &format!("needs = [\"t{need}\"]\n");
            }
            text += ["", "cpus = \"all\"\n", "cpus = 2\n", "mutex = \"m\"\n"][dice.below(4) as usize];
            let starts = need.is_none_or(|need| !matches!(ends[need as usize], End::Failed | End::Late | End::NotRun));
            ends.push(if starts { *end } else { End::NotRun });
        }
        for (at, Habit(orders, more, end)) in EXTRAS.iter().enumerate() {
            if dice.percent(6) {
                names.push(format!("extra{at}"));
                text += &fixture.task(&format!("extra{at}"), orders);
                text += &format!("{more}deadline = \"40s\"\n");
                ends.push(*end);
            }
        }
        let (claims, strays) = (ends.contains(&End::Claimed), ends.contains(&End::Strayed));
        let verdicts = names.into_iter().zip(ends.iter().map(|end| end.verdict())).collect();
        Self { text, code: Some(code(&ends)), alone: ("t0".to_owned(), code(&ends[..1])), verdicts, claims, strays }
    }

    /// Gives it a task that does not end before somebody ends the run.
    pub fn never_ends(&mut self, fixture: &Fixture) {
        self.text += &format!("{}deadline = \"100s\"\n", fixture.task("endless", "deaf hang"));
        self.code = None;
    }
}

// Without its text, which people read better by itself.
impl std::fmt::Debug for RandomSuite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {:?}, {:?}", self.code, self.alone)
    }
}

// The most urgent of all ends; where the run is late the tree is not looked at again.
fn code(ends: &[End]) -> i32 {
    let any = |end| ends.contains(&end);
    match (any(End::Claimed), any(End::Late), any(End::Changed), any(End::Failed)) {
        (true, ..) => 7,
        (_, true, ..) => 3,
        (.., true, _) => 7,
        (.., true) => 1,
        _ => 0,
    }
}
