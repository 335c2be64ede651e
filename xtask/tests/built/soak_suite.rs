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
    // Never started, because of what it needs.
    NotRun,
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

/// A suite, and how its run must end.
#[derive(Clone)]
pub struct RandomSuite {
    /// The text of ci/suite.toml.
    pub text: String,
    /// The exit code of a run of all of it.
    pub code: i32,
    /// A task that needs no other; and the code of a run of it alone.
    pub alone: (String, i32),
}

impl RandomSuite {
    /// Tasks of the fixture at `misbehave`, each of which bears witness in that file and carries the token.
    pub fn new(dice: &mut Dice, misbehave: &Path, witness: &Path, token: &str) -> Self {
        // In half of them every task passes; the others take what comes.
        let tame = dice.percent(50);
        let mut text = String::from(
            "schema = 1\n[run]\ndeadline = \"300s\"\nqueue = \"300s\"\nmargin = \"1m\"\nstop-grace = \"300ms\"\n\
             wrap-up = \"20s\"\n[defaults]\nenv = { LD_PRELOAD = \"\" }\n",
        );
        let mut ends: Vec<End> = Vec::new();
        for number in 0..=dice.below(5) {
            let Habit(orders, more, end) = loop {
                let habit = dice.pick(HABITS);
                if !tame || habit.2 == End::Passed {
                    break habit;
                }
            };
            let words = ["witness", witness.to_str().expect("a path of ours")].into_iter();
            let words: Vec<String> =
                words.chain(orders.split(' ')).chain([token]).map(|word| format!("{word:?}")).collect();
            text += &format!("[task.t{number}]\ncommand = [{:?}, {}]\n{more}", misbehave, words.join(", "));
            // What is late never ends by itself, and nothing else takes long.
            text += if *end == End::Late { "deadline = \"500ms\"\n" } else { "deadline = \"40s\"\n" };
            let need = (number > 0 && dice.percent(40)).then(|| dice.below(number));
            if let Some(need) = need {
                text += &format!("needs = [\"t{need}\"]\n");
            }
            text += ["", "cpus = \"all\"\n", "cpus = 2\n", "mutex = \"m\"\n"][dice.below(4) as usize];
            let starts = need.is_none_or(|need| matches!(ends[need as usize], End::Passed | End::Changed));
            ends.push(if starts { *end } else { End::NotRun });
        }
        Self { text, code: code(&ends), alone: ("t0".to_owned(), code(&ends[..1])) }
    }
}

// Without its text, which people read better by itself.
impl std::fmt::Debug for RandomSuite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit code {}, {:?}", self.code, self.alone)
    }
}

// The most urgent of all ends; where the run is late the tree is not looked at again.
fn code(ends: &[End]) -> i32 {
    let any = |end| ends.contains(&end);
    match (any(End::Late), any(End::Changed), any(End::Failed)) {
        (true, ..) => 3,
        (_, true, _) => 7,
        (.., true) => 1,
        _ => 0,
    }
}
