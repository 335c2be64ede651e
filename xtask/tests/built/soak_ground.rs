//! The ground of a soak: what its callers share, and what is counted. Callers share the machine's ports and this ground, no
//! other file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::soak_caller::Caller;
use crate::soak_suite::Fixture;
use crate::world::{Folder, Ports, processes_with};

/// Callers of a soak: a developer and two jobs.
pub const CALLERS: u32 = 3;

/// A soak to be.
pub struct Soak {
    /// Runs, in all.
    pub runs: u32,
    /// Of all that is random.
    pub seed: u64,
    /// The program, and the fixture.
    pub xtask: PathBuf,
    pub misbehave: PathBuf,
}

/// What callers share.
pub struct Ground {
    pub seed: u64,
    /// The workstation's port, then those of work trees.
    pub ports: Ports,
    /// The program, the fixture, and the library that makes disks slow and sets clocks, if it can be built.
    pub xtask: PathBuf,
    pub misbehave: PathBuf,
    pub shim: Option<PathBuf>,
    /// Where tasks show that they live.
    pub witness: PathBuf,
    /// Something was wrong, and no further run begins.
    pub over: AtomicBool,
    books: Mutex<Books>,
    _folder: Folder,
}

/// Ports of work trees: few, so that two folders now and then have the same one.
pub const WORKTREES: u16 = 7;

/// Everything that is counted, and everything that was seen.
#[derive(Debug, Default)]
pub struct Books {
    pub outcomes: BTreeMap<String, u32>,
    pub faults: BTreeMap<String, u32>,
    pub receipts: u32,
    pub forged: u32,
    pub violations: Vec<String>,
    /// Runs whose keeper and runner were both killed: until the same caller runs again, nobody ends their tasks.
    pub ghosts: BTreeSet<u32>,
    pub skipped: BTreeSet<String>,
    // When a run had the machine, by its receipt or as it was seen, in ms of the monotonic clock.
    held: Vec<(u64, u64, u32)>,
    seen: usize,
    witnesses: u32,
}

impl Soak {
    /// Carries it out. One paragraph that says what was done and seen; as an error if something was wrong.
    pub fn run(&self, say: &(dyn Fn(&str) + Sync)) -> Result<String, String> {
        assert!(
            !xtask::sys::is_ignored(libc::SIGHUP),
            "SIGHUP is ignored here (nohup?), and runs are asked to end by it"
        );
        let begun = Instant::now();
        let ground = Ground::new(self);
        let per_caller = self.runs.div_ceil(CALLERS);
        let worlds: Vec<_> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|index| (index, Folder::new()))
                .map(|(index, folder)| {
                    let ground = &ground;
                    // The folder comes back: what is mounted on it is mounted for that thread alone.
                    scope.spawn(move || Caller::new(ground, index, folder).soak(per_caller, say))
                })
                .collect();
            callers.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        let mut books = ground.books();
        if worlds.iter().any(Result::is_err) {
            books.violations.push("the soak itself panicked".to_owned());
        }
        for pid in processes_with(&ground.token_start()) {
            // What a soak that found something leaves.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let list = |counts: &BTreeMap<String, u32>| {
            counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
        };
        let runs: u32 = books.outcomes.values().sum();
        let skipped: Vec<&str> = books.skipped.iter().map(String::as_str).collect();
        let summary = format!(
            "soak: {runs} runs of seed {} by {CALLERS} callers in {} s: {}; faults injected: {}; {} tasks bore witness, {} \
             receipts were judged, and {} that were forged; skipped: {}; violations {}",
            self.seed,
            begun.elapsed().as_secs(),
            list(&books.outcomes),
            list(&books.faults),
            books.witnesses,
            books.receipts,
            books.forged,
            if skipped.is_empty() { "nothing".to_owned() } else { skipped.join("; ") },
            books.violations.len(),
        );
        if books.violations.is_empty() { Ok(summary) } else { Err(summary) }
    }
}

impl Ground {
    fn new(soak: &Soak) -> Self {
        let folder = Folder::new();
        let place = |name: &str| folder.path().join(name);
        for name in ["witness", "witness.seen"] {
            fs::write(place(name), "").expect("a file");
            fs::set_permissions(place(name), Permissions::from_mode(0o666)).expect("open to all callers");
        }
        for (from, to) in [(&soak.xtask, "xtask"), (&soak.misbehave, "misbehave")] {
            fs::copy(from, place(to)).expect("a copy that every caller may run");
            fs::set_permissions(place(to), Permissions::from_mode(0o755)).expect("open to all callers");
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("open to all callers");
        let ground = Self {
            seed: soak.seed,
            ports: Ports::take(1 + WORKTREES),
            xtask: place("xtask"),
            misbehave: place("misbehave"),
            shim: build_shim(folder.path()),
            witness: place("witness"),
            over: AtomicBool::new(false),
            books: Mutex::default(),
            _folder: folder,
        };
        if ground.shim.is_none() {
            ground.skip("slow disks and clock steps (no C compiler)");
        }
        ground
    }

    pub fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fixture, for tasks that carry this token.
    pub fn fixture<'a>(&'a self, token: &'a str) -> Fixture<'a> {
        Fixture { misbehave: &self.misbehave, witness: &self.witness, token }
    }

    pub fn skip(&self, what: &str) {
        self.books().skipped.insert(what.to_owned());
    }

    pub fn fault(&self, what: &str) {
        *self.books().faults.entry(what.to_owned()).or_default() += 1;
    }

    /// How the arguments of every task of this soak begin that are there to be found.
    pub fn token_start(&self) -> String {
        format!("token=soak-{}-{}-", std::process::id(), self.ports.first)
    }

    /// Notes what is wrong, and lets no further run begin.
    pub fn violated(&self, text: String, say: &dyn Fn(&str)) {
        say(&text);
        self.books().violations.push(text);
        self.over.store(true, Ordering::Relaxed);
    }

    /// What tasks have seen since the last call: two runs whose tasks lived at the same time.
    pub fn two_owners(&self) -> Option<String> {
        let mut books = self.books();
        let seen = fs::read_to_string(self.witness.with_extension("seen")).expect("what was seen");
        let new = &seen[books.seen..];
        let new = &new[..new.rfind('\n').map_or(0, |end| end + 1)];
        books.seen += new.len();
        let mut found = None;
        for line in new.lines() {
            books.witnesses += 1;
            let mut numbers = line.split(' ').map(|number| number.parse::<u32>().expect("a number"));
            let own = numbers.next().expect("its own number");
            let caller = |number: u32| number / NUMBERS;
            let excused = |number: u32| {
                let ghost = books.ghosts.contains(&number) || books.ghosts.contains(&own);
                ghost && caller(number) != caller(own)
            };
            if let Some(other) = numbers.find(|&number| !excused(number)) {
                found = Some(format!("two owners: a task of run {own} saw a living task of run {other}"));
            }
        }
        found
    }

    /// Whether a task of this run lives. It takes no time to speak of.
    pub fn lives(&self, number: u32) -> bool {
        let (kind, whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
        let mut lock = libc::flock { l_type: kind, l_whence: whence, l_start: number.into(), l_len: 1, l_pid: 0 };
        let file = File::open(&self.witness).expect("the file of the witnesses");
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).expect("a file may be asked about its locks");
        i32::from(lock.l_type) != libc::F_UNLCK
    }

    /// Watches a run whose keeper or runner was killed just now until its last task is gone. For so long it has the machine,
    /// whatever became of the lock.
    pub fn watch_the_end(&self, number: u32) -> Option<String> {
        let now = || xtask::sys::now().as_nanos() / 1_000_000;
        let (killed, mut last) = (now(), None);
        let mut moment = killed;
        within(CLEAN_UP, || {
            let lives = self.lives(number);
            last = lives.then_some(moment).or(last);
            moment = now();
            !lives
        });
        last.and_then(|last| self.held(killed, last, number))
    }

    /// Notes that this run had the machine from `won` to `ended`, in ms of the monotonic clock; and if another had it too.
    pub fn held(&self, won: u64, ended: u64, number: u32) -> Option<String> {
        let mut books = self.books();
        let other = books.held.iter().find(|&&(from, to, other)| other != number && won < to && from < ended).copied();
        books.held.push((won, ended, number));
        other.map(|(from, to, other)| {
            format!(
                "two owners: run {number} had the machine from {won} to {ended}, run {other} from {from} to {to} ms"
            )
        })
    }
}

/// How long the other half of a run may take to clean up after a SIGKILL.
pub const CLEAN_UP: Duration = Duration::from_secs(30);

/// How long a run may take: its turn behind two others, on a machine that has much else to do.
pub const LONGEST: Duration = Duration::from_secs(400);

/// How many numbers each caller has for its runs.
pub const NUMBERS: u32 = 1_000_000;

fn build_shim(folder: &Path) -> Option<PathBuf> {
    let (source, shim) = (folder.join("shim.c"), folder.join("shim.so"));
    fs::write(&source, include_str!("soak_shim.c")).expect("a file");
    let mut cc = Command::new("cc");
    let built = cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(&source).output();
    built.is_ok_and(|out| out.status.success()).then_some(shim)
}

/// Fills the disk that this folder is on but for some bytes; the files that do it.
pub fn fill(folder: &Path, but: u64) -> Vec<PathBuf> {
    let path = folder.join("ballast");
    let mut file = OpenOptions::new().create(true).append(true).open(&path).expect("a file on a small disk");
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let length = file.metadata().expect("its length").len();
    file.set_len(length.saturating_sub(but)).expect("shorter");
    vec![path]
}

/// Takes every file that this small disk has room for; the files.
pub fn take_every_inode(folder: &Path) -> Vec<PathBuf> {
    let paths = (0..).map(|number| folder.join(format!("ballast-{number}")));
    paths.take_while(|path| fs::write(path, "").is_ok()).collect()
}

/// Waits, for so long at most, until it holds.
pub fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if holds() {
            return true;
        }
        if begun.elapsed() > limit {
            return false;
        }
        // A hundredth of the time that it took, so that a long wait costs little.
        let pause = begun.elapsed() / 100;
        std::thread::sleep(pause.clamp(Duration::from_micros(500), Duration::from_millis(5)));
    }
}
