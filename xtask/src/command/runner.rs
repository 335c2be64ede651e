//! The second process of a run: it pins the tree, runs the tasks, pins the tree again, writes the receipt and says how it
//! went.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;

use crate::event::{Event, Stamped, TaskRecord};
use crate::interrupt::{Parent, Wakeups};
use crate::name::Caller;
use crate::printer::{self, To};
use crate::process::environment::{Environment, Setting};
use crate::process::{MARK, ProcessTree, log};
use crate::receipt::build::{Facts, LOGS, build};
use crate::receipt::statement::{Program, Receipt, Service};
use crate::repo::{Repo, Snapshot, SnapshotError};
use crate::report::Scene;
use crate::run::Observer as _;
use crate::run::hands::{self, RunnerHands, Work};
use crate::run::lifeline::Lifeline;
use crate::run::order::{Message, Order, SuiteOrder};
use crate::scratch::{Scratch, remove_all};
use crate::time::Moment;
use crate::verdict::{Exit, Reason, Stop, Verdict, Word};
use crate::{archive, digest, run, sys};

use super::preflight::Ready;
use super::show::Show;

/// How many log folders of a checkout are kept.
const LOG_FOLDERS: usize = 20;

/// Runs the order that comes through the inherited lifeline. Errors if there is none: nobody but a keeper starts this.
pub fn run(lifeline: RawFd) -> anyhow::Result<Exit> {
    let keeper = Parent::now();
    let done = run_order(lifeline, &keeper);
    // A task may have stopped it, and then it would hold the locks for ever. There are no tasks any more.
    keeper.go_on();
    done
}

fn run_order(lifeline: RawFd, keeper: &Parent) -> anyhow::Result<Exit> {
    let by_hand = "this is the second process of a run, which `cargo xtask verify` starts by itself";
    let mut lifeline = Lifeline::inherited(sys::take_inherited(lifeline).context(by_hand)?);
    let mut order = lifeline.take().context(by_hand)?;
    let _kept: Vec<OwnedFd> =
        order.keep_open().iter().map(|&fd| sys::take_inherited(fd)).collect::<Result<_, _>>().context(by_hand)?;
    let lifeline = RefCell::new(lifeline);
    // How a run ended is said once, and where this process could not do its work the keeper says it.
    Ok(carry_out(order, &lifeline, keeper).unwrap_or_else(|why| {
        lifeline.borrow_mut().send(Message::Trouble(format!("{why:#}")));
        Exit::NoVerdict
    }))
}

fn carry_out(order: Order, lifeline: &RefCell<Lifeline>, keeper: &Parent) -> anyhow::Result<Exit> {
    sys::close_others_on_exec()?;
    // Made here and not by the keeper: a folder that is there before the runner would stay if the keeper were killed just
    // then. It goes before the copies of the locks do.
    let scratch = Scratch::make(order.run()).map_err(anyhow::Error::msg)?;
    let setting = |release| std::env::current_exe().map(|program| Setting { program, release });
    let env = |release| setting(release).map(|setting| Environment::new(std::env::vars_os(), &setting));
    let order = match order {
        Order::Suite(order) => *order,
        Order::Command(order) => {
            return run::command::run(&order, &env(false)?, &mut lifeline.borrow_mut(), &mut super::say);
        }
    };
    // Before anything is started: what git starts while the tree is read has to go with this process, too, and is no
    // task's. When this is dropped all of it is gone, and the copies of the locks go only then.
    let mut all = tree(&order)?;
    // Without a thread it is hashed at the end.
    let program = std::thread::Builder::new().spawn(this_program).ok();
    let repo = Repo::told(order.root.clone(), order.git.clone(), order.commit.clone());
    let ready =
        super::ready(&repo, &order.asked.suite_path, &order.asked.suite_text, &order.asked.selection, &order.past)?;
    let mut show = Show::new(order.format, scene(&order, &ready), &order.root);
    let env = env(order.asked.caller == Caller::Release)?;
    let watch = Watch { lifeline, stop: Cell::default(), keeper_gone: Cell::default() };
    let (show, all) = (&mut show, &mut all);
    let (scratch, ready, slept) = (&scratch, &ready, false);
    let told = Told::default();
    Runner { order: &order, keeper, scratch, all, repo, ready, env, show, program, watch, slept, told }.run()
}

fn tree(order: &SuiteOrder) -> anyhow::Result<ProcessTree> {
    let outer = std::env::var(MARK).ok();
    ProcessTree::new(order.asked.run.clone(), outer.as_deref()).map_err(anyhow::Error::msg)
}

fn scene(order: &SuiteOrder, ready: &Ready) -> Scene {
    let names = (order.command.as_str(), order.asked.suite_path.as_str());
    let mut scene = Scene::new(names, (&ready.suite, &ready.plan), &order.past, order.asked.requested);
    scene.outer = order.asked.outer;
    (scene.queue_budget, scene.signs) = (order.asked.queue_budget, order.signs);
    scene
}

struct Runner<'a> {
    order: &'a SuiteOrder,
    keeper: &'a Parent,
    scratch: &'a Scratch,
    all: &'a mut ProcessTree,
    repo: Repo,
    ready: &'a Ready,
    env: Environment,
    show: &'a mut Show,
    // Hashed meanwhile.
    program: Option<JoinHandle<Program>>,
    watch: Watch<'a>,
    slept: bool,
    told: Told,
}

// What has been told once, and is neither told nor tried again.
#[derive(Default)]
struct Told {
    unheard: bool,
    junit_lost: bool,
}

// What the keeper tells while the tree is read.
struct Watch<'a> {
    lifeline: &'a RefCell<Lifeline>,
    stop: Cell<Option<Stop>>,
    keeper_gone: Cell<bool>,
}

impl Watch<'_> {
    // Whether there is any use in reading on.
    fn stopped(&self) -> bool {
        let (messages, gone) = self.lifeline.borrow_mut().receive();
        let stop = messages.into_iter().find_map(|m| if let Message::Stop(stop) = m { Some(stop) } else { None });
        self.stop.set(self.stop.get().or(stop));
        self.keeper_gone.set(self.keeper_gone.get() || gone);
        self.stop.get().is_some() || self.keeper_gone.get()
    }
}

impl Runner<'_> {
    fn run(mut self) -> anyhow::Result<Exit> {
        let order = self.order;
        let Ready { suite, plan, .. } = self.ready;
        let (won, end) = (order.won.monotonic, order.won.monotonic + suite.run.deadline);
        let wrap_up = won + (suite.run.deadline - suite.run.wrap_up);
        self.show
            .on(&Stamped { at: won, event: Event::Acquired { queue: won.since(order.asked.requested.monotonic) } });
        let tasks = plan.tasks.iter().map(|task| task.name.clone()).collect();
        let (slots, deadline) = (plan.slots, plan.deadline);
        let (run, partial) = (order.asked.run.clone(), plan.partial);
        self.show.on(&Stamped { at: won, event: Event::RunStarted { run, tasks, partial, slots, deadline } });
        for text in &order.trouble {
            self.show.tell(Event::Trouble { text: text.clone() });
        }
        // Under the locks: no other run of this checkout is writing there.
        if let Err(error) = archive::sweep(&order.root).and_then(|()| sweep_logs(&order.root)) {
            self.show.tell(Event::Note { text: format!("old receipts and logs cannot be removed: {error}") });
        }
        let toolchain = super::toolchain::ask(suite, plan, &order.root, self.scratch.path(), &self.env);

        let before = self.snapshot("before", wrap_up);
        let started = sys::clocks();
        let services = match (&before, self.watch.stop.get()) {
            _ if self.watch.keeper_gone.get() => Vec::new(),
            (_, Some(stop)) => self.skip(&Reason::Cancelled(stop)),
            (Some(before), None) => {
                let (commit, tree) = (before.commit.clone(), before.tree.clone());
                self.show.tell(Event::TreePinned { commit, tree, changed: before.uncommitted.len() });
                if self.suite_stands() && self.pinned(true, wrap_up) {
                    self.tasks(end)?
                } else {
                    self.skip(&Reason::NoVerdict)
                }
            }
            (None, None) if self.show.record.run_late => self.skip(&Reason::RunDeadline),
            (None, None) => self.skip(&Reason::NoVerdict),
        };
        let compared = match (&before, self.show.record.result()) {
            _ if self.watch.keeper_gone.get() => false,
            (Some(before), Word::Passed | Word::Failed | Word::NoVerdict) => self.compare(before, end),
            _ => false, // nobody will rely on it, and its time is better spent stopping
        };
        if self.watch.keeper_gone.get() {
            return Ok(Exit::NoVerdict); // nobody waits for a receipt, and the copies of the locks must go
        }
        let facts = Facts {
            asked: order.asked.clone(),
            network_namespace: sys::namespace("net"),
            boot_id: sys::boot_id(),
            won: Some(order.won),
            started: before.as_ref().map(|_| started),
            commit: before.as_ref().and_then(|before| before.commit.clone()),
            tree: before.map(|before| (before.tree, before.uncommitted)),
            compared,
            services,
            toolchain: toolchain.wait(),
            xtask: self.program.take().and_then(|hash| hash.join().ok()).unwrap_or_else(this_program),
        };
        Ok(self.conclude(&facts, end))
    }

    // The suite was read before the wait for the locks; what is verified is the tree as it is now.
    fn suite_stands(&mut self) -> bool {
        let path = self.order.root.join(&self.order.asked.suite_path);
        let same = fs::read(path).is_ok_and(|now| now == self.order.asked.suite_text.as_bytes());
        if !same {
            let text =
                format!("{} changed while this run waited for its turn; run it again", self.order.asked.suite_path);
            self.show.tell(Event::Trouble { text });
        }
        same
    }

    fn snapshot(&mut self, name: &str, deadline: Moment) -> Option<Snapshot> {
        let folder = self.scratch.path().join(name);
        let snapshot = self.repo.snapshot(&folder, deadline, &|| self.watch.stopped());
        self.read(snapshot)
    }

    fn read<T>(&mut self, found: Result<T, SnapshotError>) -> Option<T> {
        if let Some(signal) = self.watch.stop.get() {
            self.show.tell(Event::StopAsked { signal, again: false });
        }
        match found {
            Ok(found) => Some(found),
            Err(SnapshotError::Late) => {
                self.show.tell(Event::Note { text: "reading the tree took until the run's deadline".to_owned() });
                self.show.tell(Event::RunLate { run: sys::now().since(self.order.won.monotonic) });
                None
            }
            Err(SnapshotError::Stopped) => None,
            Err(error) => {
                self.show.tell(Event::Trouble { text: error.to_string() });
                None
            }
        }
    }

    // True: the tree after the tasks could be read, and is compared.
    fn compare(&mut self, before: &Snapshot, deadline: Moment) -> bool {
        let Some(after) = self.snapshot("after", deadline) else { return false };
        let files = after.changed_since(before);
        if !files.is_empty() {
            self.show.tell(Event::TreeChanged { files });
        }
        if self.show.record.result() == Word::Passed {
            self.pinned(false, deadline);
        }
        true
    }

    // Whether the id of the tree says what is on disk. It was asked before the wait, and a release has to know it now.
    fn pinned(&mut self, before: bool, deadline: Moment) -> bool {
        if self.order.asked.caller != Caller::Release {
            return true;
        }
        let folder = self.scratch.path().join(if before { "pinned-before" } else { "pinned-after" });
        let mut found = self.repo.unpinned(&folder, deadline, &|| self.watch.stopped());
        if let (Ok(reasons), true) = (&mut found, before) {
            // Not after the tasks: many a tool makes itself a folder that ignores itself.
            match self.repo.hidden(&log_ignore()) {
                Ok(hidden) => reasons.extend(hidden),
                Err(error) => found = Err(error.into()),
            }
        }
        let Some(reasons) = self.read(found) else { return false };
        let pinned = reasons.is_empty();
        reasons.into_iter().for_each(|text| self.show.tell(Event::Trouble { text }));
        pinned
    }

    // The services that ran.
    fn tasks(&mut self, end: Moment) -> anyhow::Result<Vec<Service>> {
        let Ready { suite, plan, programs, setups, .. } = self.ready;
        let programs = plan.tasks.iter().map(|task| programs[&task.name].clone()).collect();
        let logs = logs(&self.order.root, self.order.asked.run.as_str())?;
        let (setups, env) = (setups.clone(), self.env.clone());
        let scratch = self.scratch.path();
        let work = Work { order: self.order, scratch, suite, plan, programs, setups, env, pool: super::pool(), logs };
        let (tree, mut lifeline) = (tree(self.order)?, self.watch.lifeline.borrow_mut());
        let mut hands = RunnerHands::new(work, tree, Wakeups::new()?, &mut lifeline, self.show)?;
        run::drive(plan, self.order.won.monotonic, &mut hands);
        let finished = hands.finish(end);
        let service = |(name, version)| Service { name, version };
        self.watch.keeper_gone.set(finished.keeper_gone);
        self.slept = finished.slept;
        Ok(finished.services.into_iter().map(service).collect())
    }

    // Every task gets its verdict although none could start, and no service ran.
    fn skip(&mut self, reason: &Reason) -> Vec<Service> {
        for task in &self.ready.plan.tasks {
            let verdict = Verdict::NotRun(reason.clone());
            self.show.tell(Event::TaskFinished(TaskRecord::never_started(task.name.clone(), verdict)));
        }
        Vec::new()
    }

    // Everything that can take the verdict away comes before the receipt says it, and the receipt before the last words.
    fn conclude(mut self, facts: &Facts, end: Moment) -> Exit {
        if let Some(text) = hands::slept(&self.order.won).filter(|_| !self.slept) {
            self.show.tell(Event::Trouble { text });
        }
        self.leave_nothing(end);
        self.look_for_lost_words();
        self.too_late(end);
        let order = self.order;
        let mut receipt = self.receipt(facts);
        let written = archive::write(&order.root, &order.asked.run, &receipt.to_bytes(), || {
            self.settle(&mut receipt, facts, end).then(|| receipt.to_bytes())
        });
        let path = match written {
            Ok(path) => Some(super::relative(&order.root, &path)),
            Err(error) => {
                self.watch.lifeline.borrow_mut().send(Message::Receipt(None));
                self.show.tell(Event::Trouble { text: format!("{error:#}") });
                receipt = self.receipt(facts);
                self.junit(&receipt);
                None
            }
        };
        let show = self.show;
        let exit = show.record.exit();
        let run = Duration::from_millis(receipt.predicate.run_ms);
        let event = Event::RunFinished {
            verdict: show.record.result(),
            partial: self.ready.plan.partial,
            cause: show.record.cause(),
            late: show.record.late(),
            run,
            receipt: path,
            exit_code: exit.code(),
        };
        let finished = Stamped { at: sys::now(), event };
        show.on(&finished);
        show.write_summary(&finished);
        hand_over_the_rest(&mut self.watch.lifeline.borrow_mut());
        exit
    }

    fn receipt(&self, facts: &Facts) -> Receipt {
        build(facts, &self.ready.suite, &self.ready.plan, &self.show.record, sys::clocks())
    }

    // What git started goes first: it could still make something in the folder.
    fn leave_nothing(&mut self, end: Moment) {
        let survivors = self.all.sweep_all(end).survivors.into_iter().map(|survivor| survivor.to_string());
        for text in survivors.chain(self.scratch.clear()) {
            self.show.tell(Event::Trouble { text });
        }
    }

    // Who reads the data would not learn how the run ended.
    fn look_for_lost_words(&mut self) {
        if self.order.format.json {
            printer::settle(Some(WORDS));
            if let Some(text) = printer::lost() {
                self.show.tell(Event::Trouble { text });
            }
        }
    }

    // Whether the receipt, which is on the disk but not in its place, has to say something else. Each of these says no but
    // once. The JUnit file is the last: written, it says what the receipt says.
    fn settle(&mut self, receipt: &mut Receipt, facts: &Facts, end: Moment) -> bool {
        let mut other = false;
        while self.too_late(end) || !self.heard(receipt) || !self.junit(receipt) || self.orphaned() {
            *receipt = self.receipt(facts);
            other = true;
        }
        other
    }

    fn too_late(&mut self, end: Moment) -> bool {
        let late = !self.show.record.run_late && sys::now() > end;
        if late {
            self.show.tell(Event::RunLate { run: sys::now().since(self.order.won.monotonic) });
        }
        late
    }

    // A keeper that does not know which receipt is the run's takes it for none.
    fn heard(&mut self, receipt: &Receipt) -> bool {
        if self.told.unheard {
            return true;
        }
        // It may have been stopped for so long that the news of its tasks have left no room.
        self.keeper.go_on();
        let sha256 = digest::of_bytes(&receipt.to_bytes());
        let heard = self.watch.lifeline.borrow_mut().announce(sha256);
        if !heard {
            self.unheard();
        }
        heard
    }

    // Whether the keeper that has heard is gone since: nobody waits for this run any more.
    fn orphaned(&mut self) -> bool {
        let gone = !self.told.unheard && self.watch.lifeline.borrow_mut().receive().1;
        if gone {
            self.unheard();
        }
        gone
    }

    fn unheard(&mut self) {
        self.told.unheard = true;
        let text = "the receipt of this run was not heard of by its other process".to_owned();
        self.show.tell(Event::Trouble { text });
    }

    fn junit(&mut self, receipt: &Receipt) -> bool {
        let path = self.order.junit.as_deref().filter(|_| !self.told.junit_lost);
        let lost = super::report::junit(path, receipt, &self.show.record.tasks);
        self.told.junit_lost |= lost.is_some();
        lost.map(|text| self.show.tell(Event::Trouble { text })).is_none()
    }
}

/// How long data that was printed may take to be written before a run ends without knowing whether it was.
const WORDS: Duration = Duration::from_millis(200);

/// How long a run waits at its end for a reader of its words that has stopped.
const READERS: Duration = Duration::from_secs(2);

/// How much of what nobody has read is kept for later.
const KEPT_WORDS: usize = 64 << 10;

// What was not read yet is the keeper's to print: it can wait for a reader without a lock.
fn hand_over_the_rest(lifeline: &mut Lifeline) {
    if !printer::settle(Some(READERS)) {
        for (to, text) in printer::take_back(KEPT_WORDS) {
            lifeline.send(Message::Unsaid { data: to == To::Stdout, text });
        }
    }
}

/// Version and digest of this very program.
pub fn this_program() -> Program {
    let sha256 = sys::this_program().and_then(File::open).and_then(digest::of_reader).unwrap_or_default();
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), sha256 }
}

/// The file by which the folder of the logs ignores itself, relative to the repository's root.
pub fn log_ignore() -> PathBuf {
    Path::new(LOGS).join(".gitignore")
}

fn logs(root: &Path, run: &str) -> anyhow::Result<PathBuf> {
    let folder = root.join(LOGS).join(run);
    log::folder(&folder).with_context(|| format!("no folder for logs at {}", folder.display()))?;
    Ok(folder)
}

fn sweep_logs(root: &Path) -> std::io::Result<()> {
    let Ok(entries) = fs::read_dir(root.join(LOGS)) else { return Ok(()) };
    let named = |name: &String| crate::name::RunId::parse(name).is_ok();
    let mut names: Vec<String> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).filter(named).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    // One less than are kept: this run makes another.
    names.iter().skip(LOG_FOLDERS - 1).try_for_each(|name| remove_all(&root.join(LOGS).join(name)))
}
