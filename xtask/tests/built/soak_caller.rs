//! One caller of a soak: a user and, where root can give it that, a mount namespace of its own, with a checkout, a home and
//! a scratch folder that no other caller sees. It runs suites, interferes, and looks what came of it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::unistd::geteuid;
use serde_json::Value;

use crate::soak_blow::strike;
use crate::soak_gate::{Known, forged, misjudged};
use crate::soak_ground::{CLEAN_UP, Ground, LONGEST, NUMBERS, WORKTREES, fill, take_every_inode, within};
use crate::soak_plan::{Blow, Disk, Plan};
use crate::soak_suite::Dice;
use crate::world::{Done, Folder, Ports, Running, World, processes_with};

/// Rounds after a double kill have numbers of their own, because which they are depends on when it fell.
const MOPPING_UP: u32 = NUMBERS / 2;
/// So have the dice that change receipts.
const FORGING: u32 = NUMBERS * 1000;
/// What a task of a suite that `claims` puts in the place of the receipt.
const CLAIMED: &[u8] = b"claimed by a task\n";

/// A caller.
pub struct Caller<'a> {
    ground: &'a Ground,
    index: u32,
    user: u32,
    world: World,
    // Disks of its own, so that one can be filled.
    disks: bool,
    runs: u32,
    // Of runs whose keeper and runner were both killed.
    ghosts: Vec<String>,
}

impl<'a> Caller<'a> {
    /// The caller of that number. To be called in a thread of its own, which gets another mount namespace.
    pub fn new(ground: &'a Ground, index: u32, folder: Folder) -> Self {
        let root = geteuid().is_root();
        let user = if root && index > 0 { 61_000 + index } else { geteuid().as_raw() };
        let repo = folder.path().join("repo");
        let disks = root && nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).is_ok() && {
            let mount = |args: &[&str]| Command::new("mount").args(args).status().is_ok_and(|status| status.success());
            let tmpfs = |path: PathBuf, size: &str| {
                fs::create_dir_all(&path).expect("a folder to mount on");
                mount(&["-t", "tmpfs", "-o", size, "xtask-soak", path.to_str().expect("a path of ours")])
            };
            // Private first: what is mounted here is nobody else's.
            mount(&["--make-rprivate", "/"])
                && tmpfs(folder.path().to_owned(), "size=96m")
                && tmpfs(repo.join("receipts"), "size=4m")
                && tmpfs(repo.join("target"), "size=24m")
                && tmpfs(folder.path().join("s"), "size=8m,nr_inodes=400")
        };
        if !root {
            ground.skip("three users (not root)");
        }
        if !disks {
            ground.skip("mount namespaces and full disks (not allowed here)");
        }
        for name in ["repo/ci", "repo/receipts", "repo/target", "home", "s"] {
            fs::create_dir_all(folder.path().join(name)).expect("a folder");
        }
        let world = World { ports: Ports::take(1), repo, folder };
        world.write(".gitignore", "/target\n/receipts/\n");
        let caller = Self { ground, index, user, world, disks, runs: 0, ghosts: Vec::new() };
        caller.own();
        caller.git(&["init", "--quiet", "--initial-branch=main"]);
        caller
    }

    /// So many runs; then its world, whose folder is to be removed outside of this thread's namespace.
    pub fn soak(mut self, runs: u32, say: &dyn Fn(&str)) -> World {
        let mut round = 0;
        while self.runs < runs && !self.ground.over.load(Ordering::Relaxed) {
            let plan = Plan::new(&mut self.dice(round), self.ground, self.token(), self.disks);
            self.round(&plan, say);
            if !self.ghosts.is_empty() && !self.ground.over.load(Ordering::Relaxed) {
                // The next run of that user ends what is left, before its first task.
                let plan = Plan::in_peace(&mut self.dice(MOPPING_UP + round), self.ground, self.token());
                self.round(&plan, say);
            }
            round += 1;
        }
        self.world
    }

    // A round is the same whatever the rounds before it came to.
    fn dice(&self, round: u32) -> Dice {
        Dice::new(self.ground.seed, u64::from(self.index * NUMBERS + round))
    }

    fn token(&self) -> String {
        format!("{}{}-{}-end", self.ground.token_start(), self.index, self.runs)
    }

    fn round(&mut self, plan: &Plan, say: &dyn Fn(&str)) {
        self.world.write("ci/suite.toml", &plan.suite.text);
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", "a suite"]);
        if plan.dirty {
            self.world.write("uncommitted", "a file\n");
        }
        if plan.suite.code.is_none() {
            self.ground.fault("endless task");
        }
        let before: BTreeSet<PathBuf> = self.world.receipts().into_iter().collect();
        let ballast = self.fill(plan.disk);
        let numbers: Vec<u32> =
            (0..=u32::from(plan.twins)).map(|twin| self.index * NUMBERS + self.runs + twin).collect();
        self.runs += numbers.len() as u32;
        let mut running: Vec<Running> = numbers.iter().map(|&number| self.start(plan, number)).collect();
        let mut wrong: Vec<String> = Vec::new();
        if let Some(blow) = plan.blow {
            let in_the_middle = || self.half_a_receipt().is_some();
            wrong.extend(strike(self.ground, blow, plan, (numbers[0], running[0].pid()), in_the_middle));
            if blow.kills() && blow != Blow::KillBoth {
                wrong.extend(self.ground.watch_the_end(numbers[0]));
            }
            if blow.asks() && !within(CLEAN_UP, || running[0].has_ended()) {
                wrong.push(format!("it was asked to end, and has not in {CLEAN_UP:?}"));
            }
        }
        let over = within(LONGEST, || running.iter_mut().all(Running::has_ended));
        let mut done: Vec<Done> = Vec::new();
        if over {
            // What the tasks left is looked for at the very end of the runs, before anything else takes time.
            wrong.extend(self.left_behind(plan, numbers[0]));
            done.extend(running.into_iter().map(Running::wait));
        } else {
            wrong.push(format!("a run did not end within {LONGEST:?}"));
        }
        ballast.iter().for_each(|path| drop(fs::remove_file(path)));
        wrong.extend(self.ground.two_owners());
        if over {
            wrong.extend(self.ends(plan, &numbers, &done, &before));
        }
        for name in ["uncommitted", "made-by-a-task"] {
            let _ = fs::remove_file(self.world.repo.join(name));
        }
        for what in wrong {
            let ends: Vec<String> = done.iter().map(|done| format!("exit code {}\n{}", done.code, done.err)).collect();
            let text = format!(
                "VIOLATION in run {} of seed {}: {what}\n{plan:#?}\n{}\n{}",
                numbers[0],
                self.ground.seed,
                plan.suite.text,
                ends.join("\n"),
            );
            self.ground.violated(text, say);
        }
    }

    // ---- what is done

    fn start(&self, plan: &Plan, number: u32) -> Running {
        let mut command = self.command(&["verify", "--caller", ["local", "ci", "ci"][self.index as usize]]);
        if plan.alone {
            command.args(["--only", &plan.suite.alone.0]);
        }
        if let Some(queue) = plan.queue {
            command.args(["--queue", queue]);
            self.ground.fault("short queue budget");
        }
        if let (true, Some(shim)) = (plan.needs_the_shim(), &self.ground.shim) {
            command.env("LD_PRELOAD", shim).env("SOAK_FSYNC_MS", plan.sync_ms.to_string());
            command.env("SOAK_RECEIPT_MS", plan.receipt_ms.to_string());
            if let Some(step) = plan.step {
                command.env("SOAK_STEP_MS", step.by_ms.to_string()).env("SOAK_STEP_AT_MS", step.at_ms.to_string());
                self.ground.fault("clock step");
            }
            if let Some(slept) = plan.slept_at_ms {
                command.env("SOAK_SLEPT_AT_MS", slept.to_string());
                self.ground.fault("machine slept");
            }
            if plan.sync_ms > 0 {
                self.ground.fault("slow disk");
            }
            if plan.receipt_ms > 0 {
                self.ground.fault("receipt later than the deadline");
            }
        }
        command.env("WITNESS", number.to_string()).process_group(0);
        Running::start(command, &self.world.folder)
    }

    fn fill(&self, disk: Disk) -> Vec<PathBuf> {
        let (repo, scratch) = (&self.world.repo, self.world.scratch());
        let (what, files) = match disk {
            Disk::Fine => return Vec::new(),
            Disk::FullReceipts(but) => ("full disk of receipts", fill(&repo.join("receipts"), but)),
            Disk::FullScratch(but) => ("full scratch disk", fill(&scratch, but)),
            Disk::NoInodes => ("scratch disk without inodes", take_every_inode(&scratch)),
            Disk::FullLogs(but) => ("full disk of logs", fill(&repo.join("target"), but)),
        };
        self.ground.fault(what);
        files
    }

    // ---- what must be true afterwards

    // Survivors and folders. Where the keeper was killed the runner is still at it.
    fn left_behind(&mut self, plan: &Plan, number: u32) -> Option<String> {
        let killed = plan.blow.is_some_and(Blow::kills_the_keeper);
        let patience = if killed { CLEAN_UP } else { Duration::ZERO };
        let base = self.world.scratch().join(format!("xtask-{}", self.user));
        let folders = || fs::read_dir(&base).map_or(0, |entries| entries.count());
        if self.ground.books().ghosts.contains(&number) {
            self.ghosts.push(plan.token.clone());
            return None;
        }
        let tokens: Vec<String> = self.ghosts.drain(..).chain([plan.token.clone()]).collect();
        let mut left = Vec::new();
        let none = within(patience, || {
            left = tokens.iter().flat_map(|token| processes_with(token)).collect();
            left.is_empty()
        });
        if !none {
            let name =
                |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
            return Some(format!("survivors: {:?}", left.iter().map(name).collect::<Vec<_>>()));
        }
        // A runner whose keeper is dead writes its receipt when all is tidied up.
        if killed && !within(patience, || self.world.processes().is_empty()) {
            return Some("the runner of a killed keeper has not ended".to_owned());
        }
        (!within(patience, || folders() == 0))
            .then(|| format!("{} scratch folders are left in {}", folders(), base.display()))
    }

    // Exit codes, receipts, and what the gate says of them.
    fn ends(&self, plan: &Plan, numbers: &[u32], done: &[Done], before: &BTreeSet<PathBuf>) -> Option<String> {
        let now: BTreeSet<PathBuf> = self.world.receipts().into_iter().collect();
        let mut new: BTreeSet<PathBuf> = now.difference(before).cloned().collect();
        let killed = plan.blow.is_some_and(Blow::kills);
        if let Some(half) = self.half_a_receipt().filter(|_| !killed) {
            return Some(format!("half a receipt is left: {half}"));
        }
        // The run that says which receipt is its own, and last the one that could not.
        let mut order: Vec<usize> = (0..done.len()).collect();
        order.sort_by_key(|&at| done[at].code >= 1000);
        for at in order {
            let code = done[at].code;
            *self.ground.books().outcomes.entry(outcome(code)).or_default() += 1;
            // What is done to one of two does nothing to the other.
            let codes = if at == 0 { plan.codes() } else { Plan { blow: None, ..plan.clone() }.codes() };
            if !codes.contains(&code) {
                return Some(format!("exit code {code} of run {}, not one of {codes:?}", numbers[at]));
            }
            let silent = !done[at].err.contains("Waiting") && !done[at].err.contains("Acquired");
            if code == 2 && done[at].err.contains("no scratch folder can be made") && silent {
                continue; // nothing was queued
            }
            if code == 2 || (code > 1000 && code != 1009 && !silent) {
                return Some(format!("exit code {code} of a run that had begun"));
            }
            let own = new.iter().find(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                done[at].err.contains(&*name) || code == 1009
            });
            let Some(path) = own.cloned() else {
                let full = matches!(plan.disk, Disk::FullReceipts(_)) && [7, 130, 143, 129].contains(&code);
                if code < 1000 && !full {
                    return Some(format!("run {} ended by itself with {code} and left no receipt", numbers[at]));
                }
                continue;
            };
            new.remove(&path);
            if plan.suite.claims && fs::read(&path).is_ok_and(|bytes| bytes == CLAIMED) {
                continue; // it was there first
            }
            if let Some(wrong) = self.judge(plan, numbers[at], code, &path) {
                return Some(wrong);
            }
        }
        new.first().map(|path| format!("nobody's receipt: {}", path.display()))
    }

    // What a run makes of its receipt before it has its name.
    fn half_a_receipt(&self) -> Option<String> {
        let entries = fs::read_dir(self.world.repo.join("receipts")).ok()?;
        let mut names = entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()));
        names.find(|name| name.starts_with('.'))
    }

    fn judge(&self, plan: &Plan, number: u32, code: i32, path: &Path) -> Option<String> {
        let text = fs::read(path).unwrap_or_default();
        let Ok(receipt) = serde_json::from_slice::<Value>(&text) else {
            return Some(format!("half a receipt: {} bytes", text.len()));
        };
        let word = |code: i32| match code {
            0 => "passed",
            1 => "failed",
            3 => "late",
            4 => "not-run",
            7 => "no-verdict",
            _ => "cancelled",
        };
        let predicate = &receipt["predicate"];
        let result = predicate["result"].as_str().unwrap_or_default();
        // A runner that is killed once its receipt is there has said how the run ended, its keeper that it is gone; and one
        // whose keeper is killed before it has heard of the receipt says that.
        let unheard = plan.blow.is_some_and(Blow::kills_the_keeper) && result == word(7);
        let said_before = plan.blow.is_some_and(Blow::kills)
            && (unheard || plan.codes().into_iter().any(|code| code < 1000 && word(code) == result));
        if result != word(code) && !said_before {
            return Some(format!("exit code {code}, and a receipt that says {result}"));
        }
        if predicate["lock"]["held"] == true {
            let at = |clock: &str| predicate["clocks"][clock]["monotonic_ms"].as_u64().unwrap_or_default();
            if let Some(wrong) = self.ground.held(at("won"), at("ended"), number) {
                return Some(wrong);
            }
        }
        let ms = |task: &Value, what: &str| Duration::from_millis(task[what].as_u64().unwrap_or_default());
        let too_long = |task: &&Value| ms(task, "took_ms") > ms(task, "deadline_ms") + CLEAN_UP;
        if let Some(task) = predicate["tasks"].as_array().and_then(|tasks| tasks.iter().find(too_long)) {
            return Some(format!("its deadline has not ended a task: {task}"));
        }
        let undisturbed =
            matches!(plan.blow, None | Some(Blow::Pause(_))) && plan.disk == Disk::Fine && !plan.suite.strays;
        for (name, verdict) in plan.suite.verdicts.iter().filter(|_| undisturbed && predicate["lock"]["held"] == true) {
            let told = predicate["tasks"].as_array().into_iter().flatten().find(|task| task["name"] == **name);
            if let Some(told) = told.filter(|told| told["verdict"] != *verdict) {
                return Some(format!("a task that has to be {verdict} is not: {told}"));
            }
        }
        let claimed = |task: &Value| task["verdict"] == "passed" && task["command"].to_string().contains("\"claim\"");
        if predicate["tasks"].as_array().is_some_and(|tasks| tasks.iter().any(claimed)) {
            return Some("a receipt was written over what was there".to_owned());
        }
        let (answer, exit) = match self.ask_the_gate(path) {
            Ok(answer) => answer,
            Err(wrong) => return Some(wrong),
        };
        self.ground.books().receipts += 1;
        let known = Known {
            dirty: plan.dirty,
            partial: plan.alone,
            step: plan.step,
            slept_at_ms: plan.slept_at_ms,
            short_queue: plan.queue.is_some(),
        };
        misjudged(&receipt, &answer, exit, known).or_else(|| {
            let mut dice = Dice::new(self.ground.seed, u64::from(FORGING + number));
            (0..if exit == 0 { 4 } else { 0 }).find_map(|_| self.forge(&text, &mut dice, known))
        })
    }

    // Changes an accepted receipt, and asks the gate again.
    fn forge(&self, receipt: &[u8], dice: &mut Dice, known: Known) -> Option<String> {
        let (what, bytes, code) = forged(receipt, dice, known)?;
        let path = self.world.folder.path().join("forged.json");
        fs::write(&path, bytes).expect("a file");
        self.ground.books().forged += 1;
        match self.ask_the_gate(&path) {
            Ok((answer, 6)) if answer["reasons"].as_array()?.iter().any(|reason| reason["code"] == code) => None,
            Ok((answer, _)) => Some(format!("forged ({what}), and the gate does not say {code}: {answer}")),
            Err(wrong) => Some(wrong),
        }
    }

    // Its answer to this receipt, and its exit code.
    fn ask_the_gate(&self, path: &Path) -> Result<(Value, i32), String> {
        let path = path.to_str().expect("a path of ours");
        let mut gate = self.command(&["check-receipt", path, "--unsigned", "--message-format", "json"]);
        let out = gate.output().expect("the gate runs");
        let answer = serde_json::from_slice(&out.stdout)
            .map_err(|_| format!("the gate gives no answer: {}", String::from_utf8_lossy(&out.stderr)))?;
        Ok((answer, out.status.code().unwrap_or(-1)))
    }

    // ---- as this user

    fn dress<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        self.world.dress(command);
        let first = self.ground.ports.first;
        command.env("XTASK_LOCK_PORT", first.to_string());
        command.env("XTASK_WORKTREE_PORTS", format!("{}-{}", first + 1, first + WORKTREES));
        if self.user != geteuid().as_raw() {
            command.uid(self.user).gid(self.user);
        }
        command
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.ground.xtask);
        self.dress(command.args(args));
        command
    }

    fn git(&self, args: &[&str]) {
        let mut command = Command::new("git");
        let out = self.dress(command.args(args)).output().expect("git runs");
        assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    // Gives it all its files.
    fn own(&self) {
        let owner = format!("{0}:{0}", self.user);
        if self.user != geteuid().as_raw() {
            let status = Command::new("chown").args(["-R", &owner]).arg(self.world.folder.path()).status();
            assert!(status.is_ok_and(|status| status.success()), "chown {owner}");
        }
    }
}

/// An exit code in words, for the summary.
fn outcome(code: i32) -> String {
    match code {
        0 => "passed",
        1 => "failed",
        2 => "refused before the queue",
        3 => "late",
        4 => "queue budget spent",
        7 => "no verdict",
        129 | 130 | 143 => "cancelled",
        1009 => "killed",
        _ => "stopped before it began",
    }
    .to_owned()
}
