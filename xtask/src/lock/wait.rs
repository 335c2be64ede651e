//! The wait as a pure decision: what was seen at `now` goes in, what to do next comes out. No socket, no clock.
//!
//! It owns every rule of waiting: who counts as a holder, who is foreign, when to look again, when the budget is
//! spent, and the second look after winning.

use std::time::Duration;

use crate::lock::banner::Claim;
use crate::time::Moment;
use crate::verdict::Stop;

/// How often a waiter asks the holder again, and says that it still waits.
pub const HEARTBEAT: Duration = Duration::from_secs(30);
/// How often a waiter that is connected tries the port all the same: a hang-up can be lost where a child of the holder
/// inherited the connection. Nothing of ours lets that happen, and these tries are most of what waiting costs.
const RETRY: Duration = Duration::from_secs(15);
/// How long whoever is foreign may stay silent or reset connections, or a port bound without a listener.
pub const SILENCE: Duration = Duration::from_secs(2);
/// The limit of a connect; only a full backlog needs it.
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

// Looks that it takes beside the time to call somebody foreign: a waiter that was starved itself has seen the time pass, but
// nothing else.
const REFUSALS: u32 = 8;
const SILENCES: u32 = 2;
const CLOSES: u32 = 2;
const RESETS: u32 = 6;

// The longest pause of the fallback.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long one may look where the budget is spent before it was known who is there: enough for a program that is silent
/// twice. "Too late" and "not xtask" are different answers, and one try has to find out too which it is.
pub const LOOK: Duration = Duration::from_secs(6);
// How long each step of such a look is at most, so that a holder that does not answer is known sooner.
const GLANCE: Duration = Duration::from_millis(500);
// Two lines about the port are at least so far apart.
const QUIET: Duration = Duration::from_secs(1);
// So many hang-ups in a second are hand-overs; whoever hangs up more often is not asked as often as it likes.
const HAND_OVERS: u32 = 200;
// So many holders are remembered for the last line.
const REMEMBERED: usize = 16;

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The port is ours.
    Won,
    /// "In use", from bind or from listen.
    Busy,
    /// A connection, in place of an earlier one.
    Connected,
    /// Nobody listens (or the connect reached itself, on a free port of the ephemeral range).
    Refused,
    /// No connection, and no refusal either; why.
    NoAnswer(String),
    /// A holder's line came over the connection.
    Banner(Box<Claim>),
    /// Something else came over it; its beginning.
    Bytes(String),
    /// The other side closed the connection.
    HungUp {
        /// By a reset, as a holder does it by intent and by death; otherwise it said good-bye.
        reset: bool,
    },
    /// Nothing came until the time given.
    Quiet(Accepted),
    /// The pause is over.
    Passed,
}

/// Whether the other side has taken our connection from its backlog, by the kernel's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accepted {
    /// Yes: a program has it.
    Yes,
    /// No: it is in the backlog of a program that does not accept now.
    No,
    /// The table has neither this connection nor anybody who listens: the other side is no program of this kernel.
    Nowhere,
    /// There is no such table.
    Unknown,
}

/// What to do next. Each but the last two is answered by something seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Try to listen.
    Try,
    /// Connect until then, in place of an earlier connection.
    Connect(Moment),
    /// Wait for something on the connection, until then. A holder's line is answered at once.
    Hear(Moment),
    /// Close the connection, if there is one, and wait until then.
    Pause(Moment),
    /// The lock is won.
    Keep,
    /// The wait is over, and what may have been won is let go of.
    Fail(Failure),
}

/// Why the wait ended without the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The budget is spent.
    Spent,
    /// Somebody asked to stop.
    Cancelled(Stop),
    /// The holder is the very run that this call is a part of: it would wait for itself.
    Nested(String),
    /// Whoever has the port is not xtask.
    Foreign(Foreign),
}

/// How something that is not xtask gave itself away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Foreign {
    /// It said this.
    Said(String),
    /// It takes connections and ends them without a word.
    HangsUp,
    /// It takes connections and says nothing.
    Silent,
    /// It says nothing, and is no program of this kernel.
    Elsewhere,
    /// The port is taken, but nobody listens on it.
    NotListening,
}

/// What is worth a line to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// Somebody holds the lock.
    Held {
        /// What it says of itself.
        claim: Box<Claim>,
        /// Whether an earlier line has named it.
        again: bool,
    },
    /// Somebody listens there and does not take the connection: a stopped or starved holder, or a program that never will.
    NotAccepted,
    /// No connection is possible; why.
    NoAnswer(String),
}

/// The state of one wait.
#[derive(Debug, Clone, Default)]
pub struct Wait {
    end: Moment,
    once: bool,
    marks: Vec<String>,
    seed: u64,
    // The connection.
    connected: Option<Moment>,
    greeted: bool,
    ask_at: Moment,
    // What is known of the other side.
    holder: Option<Claim>,
    looked: bool,
    look_end: Option<Moment>,
    // Against what is foreign.
    refused_since: Option<Moment>,
    refusals: u32,
    silences: u32,
    closes: u32,
    resets: u32,
    reset_since: Option<Moment>,
    // Against a busy loop.
    rebuffs: u32,
    owes_pause: bool,
    second: Moment,
    hang_ups: u32,
    // For people.
    said_at: Option<Moment>,
    behind: Vec<(Claim, Moment)>,
}

impl Wait {
    /// A wait that began at `began` with this budget; zero is one try. `marks` are the runs that this process is a part
    /// of, `seed` is random: waiters that lost together should not try together.
    pub fn new(began: Moment, budget: Duration, marks: Vec<String>, seed: u64) -> Self {
        Self {
            end: began + budget,
            once: budget.is_zero(),
            marks,
            seed,
            ask_at: began,
            second: began,
            ..Self::default()
        }
    }

    /// The holder last heard of, if one was.
    pub fn holder(&self) -> Option<&Claim> {
        self.holder.as_ref()
    }

    /// The holders that were waited for, in order, each with the time until `now` or the next one.
    pub fn behind(&self, now: Moment) -> Vec<(&Claim, Duration)> {
        let ends = self.behind.iter().skip(1).map(|(_, since)| *since).chain([now]);
        self.behind.iter().zip(ends).map(|((claim, since), end)| (claim, end.since(*since))).collect()
    }

    /// The next step, and what to tell people. Begin with `Step::Try`. `stop` is what somebody asked for until `now`,
    /// so it is looked at once more after winning.
    pub fn on(&mut self, now: Moment, stop: Option<Stop>, seen: Seen) -> (Step, Option<News>) {
        if let Some(stop) = stop {
            return (Step::Fail(Failure::Cancelled(stop)), None);
        }
        let first = self.look_end.is_none();
        self.look_end.get_or_insert(self.end.max(now + LOOK));
        match seen {
            Seen::Won if now > self.end && !(first && self.once) => (Step::Fail(Failure::Spent), None),
            Seen::Won => (Step::Keep, None),
            Seen::Busy => (self.busy(now), None),
            Seen::Connected => {
                (self.connected, self.greeted) = (Some(now), false);
                (self.refused_since, self.refusals) = (None, 0);
                (Step::Hear(self.cut(now, SILENCE)), None)
            }
            Seen::Banner(claim) => self.banner(now, *claim),
            Seen::Bytes(text) => (Step::Fail(Failure::Foreign(Foreign::Said(text))), None),
            Seen::HungUp { reset } => (self.hung_up(now, reset), None),
            Seen::Refused => (self.refused(now), None),
            Seen::NoAnswer(why) => self.no_answer(now, why),
            Seen::Quiet(accepted) => self.quiet(now, accepted),
            Seen::Passed if self.is_spent(now) => (Step::Fail(Failure::Spent), None),
            Seen::Passed => (Step::Try, None),
        }
    }

    fn busy(&mut self, now: Moment) -> Step {
        if self.is_spent(now) {
            Step::Fail(Failure::Spent)
        } else if std::mem::take(&mut self.owes_pause) {
            Step::Pause(self.pause(now, Duration::from_millis(10)))
        } else if self.connected.is_some() && now < self.ask_at {
            self.hear(now)
        } else {
            Step::Connect(self.cut(now, CONNECT_LIMIT))
        }
    }

    fn banner(&mut self, now: Moment, claim: Claim) -> (Step, Option<News>) {
        (self.looked, self.greeted, self.ask_at) = (true, true, now + HEARTBEAT);
        (self.silences, self.closes, self.resets, self.reset_since) = (0, 0, 0, None);
        let same = self.holder.as_ref().is_some_and(|known| known.run == claim.run && known.pid == claim.pid);
        if !same {
            self.rebuffs = 0;
            if self.behind.len() < REMEMBERED {
                self.behind.push((claim.clone(), now));
            }
        }
        self.holder = Some(claim.clone());
        if let Some(run) = claim.run.as_ref().filter(|run| self.marks.contains(run)) {
            return (Step::Fail(Failure::Nested(run.clone())), None);
        }
        let news = self.say(now, !same, News::Held { claim: Box::new(claim), again: same });
        if self.is_spent(now) {
            return (Step::Fail(Failure::Spent), news);
        }
        (self.hear(now), news)
    }

    fn hung_up(&mut self, now: Moment, reset: bool) -> Step {
        let lasted = self.connected.take().map_or(Duration::ZERO, |since| now.since(since));
        let greeted = std::mem::take(&mut self.greeted);
        if !greeted {
            // A holder that goes resets what it had not yet answered, and so may the next ones, where many wait and each
            // holds for milliseconds; none ever says good-bye without a banner.
            let since = *self.reset_since.get_or_insert(now);
            self.resets += 1;
            self.closes += u32::from(!reset);
            if self.closes >= CLOSES || (self.resets >= RESETS && now.since(since) >= SILENCE) {
                return Step::Fail(Failure::Foreign(Foreign::HangsUp));
            }
        }
        if self.is_spent(now) {
            return Step::Fail(Failure::Spent);
        }
        // The first hang-up of a holder is the hand-over. One that goes on hanging up has too many connections.
        if now.since(self.second) >= QUIET {
            (self.second, self.hang_ups) = (now, 0);
        }
        self.hang_ups += 1;
        self.owes_pause = self.rebuffs > 0 || self.hang_ups > HAND_OVERS;
        self.rebuffs = if lasted >= QUIET { 1 } else { self.rebuffs + 1 };
        Step::Try
    }

    fn refused(&mut self, now: Moment) -> Step {
        self.connected = None;
        let since = *self.refused_since.get_or_insert(now);
        self.refusals += 1;
        if now.since(since) >= SILENCE && self.refusals >= REFUSALS {
            return Step::Fail(Failure::Foreign(Foreign::NotListening));
        }
        if self.is_spent(now) {
            return Step::Fail(Failure::Spent);
        }
        // Two that bind at once can both fail; nobody holds the port then.
        let shift = self.refusals.min(6);
        Step::Pause(self.jitter(now, Duration::from_millis(1 << shift)))
    }

    fn no_answer(&mut self, now: Moment, why: String) -> (Step, Option<News>) {
        (self.looked, self.connected) = (true, None);
        (self.refused_since, self.refusals) = (None, 0);
        let news = self.say(now, false, News::NoAnswer(why));
        if self.is_spent(now) {
            return (Step::Fail(Failure::Spent), news);
        }
        self.rebuffs += 1;
        (Step::Pause(self.pause(now, Duration::from_millis(100))), news)
    }

    fn quiet(&mut self, now: Moment, accepted: Accepted) -> (Step, Option<News>) {
        let waited = self.connected.map_or(Duration::ZERO, |since| now.since(since));
        let mut news = None;
        if !self.greeted {
            match accepted {
                Accepted::Yes | Accepted::Nowhere if waited >= SILENCE => {
                    // One that was stopped just after it took a connection takes no second one.
                    self.silences += 1;
                    if self.silences >= SILENCES {
                        let elsewhere = accepted == Accepted::Nowhere;
                        let how = if elsewhere { Foreign::Elsewhere } else { Foreign::Silent };
                        return (Step::Fail(Failure::Foreign(how)), None);
                    }
                    self.connected = None;
                }
                // The step was cut short by the end of the budget.
                Accepted::Yes | Accepted::Nowhere if !self.is_spent(now) => {
                    return (Step::Hear(self.cut(now, SILENCE - waited)), None);
                }
                Accepted::Yes | Accepted::Nowhere => {}
                Accepted::No | Accepted::Unknown => {
                    (self.looked, self.silences, self.ask_at) = (true, 0, now + HEARTBEAT);
                    news = self.say(now, false, News::NotAccepted);
                }
            }
        }
        if self.is_spent(now) { (Step::Fail(Failure::Spent), news) } else { (Step::Try, news) }
    }

    // The budget is spent; but it is known who is there, as far as a look can tell.
    fn is_spent(&self, now: Moment) -> bool {
        now >= self.end && (self.looked || self.look_end.is_some_and(|end| now >= end))
    }

    fn hear(&self, now: Moment) -> Step {
        Step::Hear(self.cut(now, RETRY).min(self.ask_at.max(now)))
    }

    // So long from now, but not past the end of the budget, or of a glance where it is not known yet who is there.
    fn cut(&self, now: Moment, length: Duration) -> Moment {
        let end = if self.looked { self.end } else { self.end.max(now + GLANCE) };
        (now + length).min(end)
    }

    // Twice as long each time.
    fn pause(&mut self, now: Moment, first: Duration) -> Moment {
        let longer = first * (1 << self.rebuffs.min(10));
        self.jitter(now, longer.min(PAUSE_MAX))
    }

    // Between a half of the length and all of it.
    fn jitter(&mut self, now: Moment, length: Duration) -> Moment {
        // The upper bits of Knuth's linear congruential generator: any spread will do.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = u32::try_from(self.seed >> 55).expect("less than 512");
        self.cut(now, length / 2 + length * part / 1024)
    }

    // Says it if it is new, or if it is time for a heartbeat; but not twice in a second.
    fn say(&mut self, now: Moment, new: bool, news: News) -> Option<News> {
        let pause = if new { QUIET } else { HEARTBEAT };
        if self.said_at.is_some_and(|at| now.since(at) < pause) {
            return None;
        }
        self.said_at = Some(now);
        Some(news)
    }
}

/// Which of these waiters may try first when the lock is let go of: the one that has waited longest, by its own words.
/// One that said nothing has not waited. `None` if nobody said anything.
pub fn next_in_line(waited_us: impl IntoIterator<Item = Option<u64>>) -> Option<usize> {
    let said = waited_us.into_iter().enumerate().filter_map(|(index, waited)| Some((waited?, index)));
    // The earlier of two equals.
    said.max_by_key(|&(waited, index)| (waited, std::cmp::Reverse(index))).map(|(_, index)| index)
}
