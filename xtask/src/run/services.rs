//! The services of a run, as the loop sees them: hosts that are starting, ready or gone, and tasks that wait for them.
//! Nothing here waits.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::seat::Log;
use crate::name::{Name, TaskName};
use crate::plan::Plan;
use crate::process::{Output, Owner, ProcessTree, Spawn, log};
use crate::service::{Env, Link, Reply, Spec};
use crate::suite::{Fill, Suite};
use crate::sys;
use crate::time::{Human, Moment};
use crate::verdict::Cause;

/// What a service may write to its log, in bytes: as much as a task, unless the suite says otherwise of that.
const LOG_LIMIT: u64 = 64 << 20;

/// When to say that a task waits for a service, and how often from then on.
const REMIND: Duration = Duration::from_secs(10);
const REMIND_AGAIN: Duration = Duration::from_secs(30);

/// Where services are made.
pub struct Place<'a> {
    /// The repository's root.
    pub root: &'a Path,
    /// The run's scratch folder.
    pub scratch: &'a Path,
    /// The folder of the logs.
    pub logs: &'a Path,
    /// The environment of tasks.
    pub env: crate::process::environment::Environment,
}

/// What the hands have to do.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// A line for people.
    Note(String),
    /// The task has all that it waited for: start it with these variables.
    Go(usize, Env),
    /// The task cannot have what it waited for, and why.
    NoGo(usize, Cause),
    /// The service is past saving: kill what there is of it.
    Kill(Owner),
}

/// The services of a run, and who waits for them.
#[derive(Default)]
pub struct Services {
    hosts: Vec<Host>,
    waiting: BTreeMap<usize, Waiting>,
}

// A task that waits: for what, what it has, and which of the hosts have not answered.
struct Waiting {
    name: TaskName,
    wanted: Vec<Name>,
    has: Env,
    missing: Vec<usize>,
    remind: Moment,
}

struct Host {
    name: Name,
    state: State,
    limit: Duration,
    lives: bool,
    // None where it was never started.
    log: Option<Log>,
    // Its log, as people see it.
    shown: String,
}

enum State {
    // The limit counts once the host says that it starts.
    Starting { link: Link, until: Option<Moment> },
    // It counts again for everything that a task gets. None: nobody waits.
    Ready { link: Link, version: String, until: Option<Moment> },
    Failed { why: String, version: Option<String> },
}

impl Host {
    fn link(&self) -> Option<&Link> {
        match &self.state {
            State::Starting { link, .. } | State::Ready { link, .. } => Some(link),
            State::Failed { .. } => None,
        }
    }

    fn link_mut(&mut self) -> Option<&mut Link> {
        match &mut self.state {
            State::Starting { link, .. } | State::Ready { link, .. } => Some(link),
            State::Failed { .. } => None,
        }
    }

    // Known once it was ready, and from then on.
    fn version(&self) -> Option<String> {
        match &self.state {
            State::Ready { version, .. } | State::Failed { version: Some(version), .. } => Some(version.clone()),
            State::Starting { .. } | State::Failed { version: None, .. } => None,
        }
    }

    // What it is doing, for who waits.
    fn doing(&self, now: Moment) -> String {
        let name = &self.name;
        match &self.state {
            State::Starting { until: None, .. } => format!("{name} (getting its programs and files)"),
            State::Starting { until: Some(until), .. } => {
                let spent = self.limit.saturating_sub(until.since(now));
                format!("{name} (starting, {} of {})", Human(spent), Human(self.limit))
            }
            State::Ready { until, .. } => {
                let spent = until.map_or(Duration::ZERO, |until| self.limit.saturating_sub(until.since(now)));
                format!("{name} (ready, making what the task gets, {} of {})", Human(spent), Human(self.limit))
            }
            State::Failed { .. } => format!("{name} (gone)"),
        }
    }

    // When its limit is over; none counts while it gets ready to start, and while it has nothing to do.
    fn until(&self) -> Option<Moment> {
        match &self.state {
            State::Starting { until, .. } | State::Ready { until, .. } => *until,
            State::Failed { .. } => None,
        }
    }

    fn cause(&self, why: &str) -> Cause {
        Cause::Service { why: format!("{}: {why}", self.name), log: self.shown.clone() }
    }
}

impl Services {
    /// Starts what the tasks of the plan use. `setups`: the program of each `setup` command, absolute. What cannot be
    /// started fails the tasks that want it.
    pub fn start(
        suite: &Suite,
        plan: &Plan,
        setups: &BTreeMap<Name, PathBuf>,
        place: &Place<'_>,
        tree: &mut ProcessTree,
    ) -> Self {
        let tasks = plan.tasks.iter().filter_map(|task| suite.task(&task.name));
        let mut names: Vec<&Name> = tasks.flat_map(|task| &task.services).collect();
        names.sort();
        names.dedup();
        let mut services = Self::default();
        for name in names {
            let mut service = suite.services[name].clone();
            if let (Fill::Setup(words), Some(program)) = (&mut service.fill, setups.get(name)) {
                words[0] = program.display().to_string();
            }
            let limit = service.start;
            let (root, scratch) = (place.root.to_owned(), place.scratch.to_owned());
            let spec = Spec { name: name.clone(), service, root, scratch };
            let owner = Owner::Service(services.hosts.len());
            // Names of tasks have no `@`: neither log nor mark can be taken for a task's.
            let label = format!("service@{name}");
            let path = place.logs.join(format!("{label}.log"));
            let shown = path.strip_prefix(place.root).unwrap_or(&path).display().to_string();
            let (state, log) = match spawn(&spec, owner, (&label, &path), place, tree) {
                Ok((link, file)) => (State::Starting { link, until: None }, Some(Log::new(file, sys::now()))),
                Err(why) => (State::Failed { why, version: None }, None),
            };
            let lives = log.is_some();
            services.hosts.push(Host { name: name.clone(), state, limit, lives, log, shown });
        }
        services
    }

    /// Asks for what a task needs; `News` will say when it has everything.
    pub fn ask(&mut self, now: Moment, task: usize, name: &TaskName, wanted: &[Name]) -> Vec<News> {
        let mut missing = Vec::new();
        for (index, host) in self.hosts.iter_mut().enumerate().filter(|(_, host)| wanted.contains(&host.name)) {
            let why = match &mut host.state {
                State::Failed { why, .. } => Some(why.clone()),
                State::Starting { link, .. } | State::Ready { link, .. } => {
                    link.request(name).err().map(|e| format!("its host does not listen: {e}"))
                }
            };
            if let Some(why) = why {
                return vec![News::NoGo(task, host.cause(&why))];
            }
            missing.push(index);
        }
        let (name, wanted) = (name.clone(), wanted.to_vec());
        let waiting = Waiting { name, wanted, has: Env::new(), missing: missing.clone(), remind: now + REMIND };
        self.waiting.insert(task, waiting);
        for index in missing {
            if self.hosts[index].until().is_none() {
                self.renew(now, index);
            }
        }
        Vec::new()
    }

    /// The task does not want anything any more. If it was waiting: a line that says for what.
    pub fn forget(&mut self, now: Moment, task: usize) -> Option<String> {
        let waiting = self.waiting.remove(&task)?;
        Some(format!("{} was still waiting for {}", waiting.name, self.doing(now, &waiting.wanted)))
    }

    fn doing(&self, now: Moment, wanted: &[Name]) -> String {
        let hosts = self.hosts.iter().filter(|host| wanted.contains(&host.name));
        hosts.map(|host| host.doing(now)).collect::<Vec<_>>().join(", ")
    }

    /// Readable when a host has said something, or is gone.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.hosts.iter().filter_map(|host| Some(host.link()?.as_fd())).collect()
    }

    /// When `listen` has to be called again even if nothing happens.
    pub fn wake_at(&self) -> Option<Moment> {
        let logs = self.hosts.iter().filter(|host| host.lives).filter_map(|host| Some(host.log.as_ref()?.look_at()));
        let remind = self.waiting.values().map(|waiting| waiting.remind);
        self.hosts.iter().filter_map(Host::until).chain(logs).chain(remind).min()
    }

    /// What the hosts have said, and whose limit is over.
    pub fn listen(&mut self, now: Moment) -> Vec<News> {
        let mut news = Vec::new();
        for index in 0..self.hosts.len() {
            let replies = self.hosts[index].link_mut().map(Link::on_readable).unwrap_or_default();
            let heard = !replies.is_empty();
            replies.into_iter().for_each(|reply| self.hear(now, index, reply, &mut news));
            if heard || !self.waited_for(index) {
                self.renew(now, index);
            }
            let host = &self.hosts[index];
            if host.until().is_some_and(|until| until <= now) {
                let ready = matches!(host.state, State::Ready { .. });
                let what = if ready { "had not made what the next task gets" } else { "was not ready" };
                let why = format!("{what} after {}, its `start` limit", Human(host.limit));
                self.fail(index, &why, &mut news);
                news.push(News::Kill(Owner::Service(index)));
            }
            let host = &mut self.hosts[index];
            if host.lives && host.log.as_mut().is_some_and(|log| log.outgrew(LOG_LIMIT, now)) {
                self.fail(index, &format!("its log has more than {} MiB", LOG_LIMIT >> 20), &mut news);
                news.push(News::Kill(Owner::Service(index)));
            }
        }
        news.extend(self.remind(now).map(News::Note));
        news
    }

    // One line for all, once one is due.
    fn remind(&mut self, now: Moment) -> Option<String> {
        self.waiting.values().find(|waiting| waiting.remind <= now)?;
        self.waiting.values_mut().for_each(|waiting| waiting.remind = now + REMIND_AGAIN);
        let names: Vec<&str> = self.waiting.values().map(|waiting| waiting.name.as_str()).collect();
        let wanted: Vec<Name> = self.waiting.values().flat_map(|waiting| waiting.wanted.clone()).collect();
        let verb = if names.len() == 1 { "waits" } else { "wait" };
        Some(format!("{} {verb} for {}", names.join(", "), self.doing(now, &wanted)))
    }

    fn hear(&mut self, now: Moment, index: usize, reply: Reply, news: &mut Vec<News>) {
        let host = &mut self.hosts[index];
        match reply {
            Reply::Note(text) => news.push(News::Note(format!("{}: {text}", host.name))),
            Reply::Starting => {
                if let State::Starting { until, .. } = &mut host.state {
                    *until = Some(now + host.limit);
                }
            }
            Reply::Ready(version) => {
                let state = State::Failed { why: String::new(), version: None };
                host.state = match std::mem::replace(&mut host.state, state) {
                    State::Starting { link, .. } => State::Ready { link, version, until: None },
                    other => other,
                };
            }
            Reply::HandedOut { task, env } => {
                // It may have been withdrawn meanwhile.
                if let Some((&at, waiting)) = self.waiting.iter_mut().find(|(_, waiting)| waiting.name == task) {
                    waiting.has.extend(env);
                    waiting.missing.retain(|&host| host != index);
                    if waiting.missing.is_empty() {
                        news.extend(self.waiting.remove(&at).map(|waiting| News::Go(at, waiting.has)));
                    }
                }
            }
            Reply::Refused { task, why } => {
                let cause = host.cause(&why);
                let at = self.waiting.iter().find(|(_, waiting)| waiting.name == task).map(|(&at, _)| at);
                let at = at.filter(|at| self.waiting.remove(at).is_some());
                news.extend(at.map(|at| News::NoGo(at, cause)));
            }
            Reply::Failed(why) => self.fail(index, &why, news),
        }
    }

    // A host that is ready has answered, or something was asked of it that had nothing to do: its limit counts anew while
    // somebody waits for it.
    fn renew(&mut self, now: Moment, index: usize) {
        let waited_for = self.waited_for(index);
        let host = &mut self.hosts[index];
        if let State::Ready { until, .. } = &mut host.state {
            *until = waited_for.then_some(now + host.limit);
        }
    }

    fn waited_for(&self, index: usize) -> bool {
        self.waiting.values().any(|waiting| waiting.missing.contains(&index))
    }

    // Everybody who waits for it waits in vain. Who waits for another one alone is no different: a suite has one kind.
    fn fail(&mut self, index: usize, why: &str, news: &mut Vec<News>) {
        let host = &mut self.hosts[index];
        host.state = State::Failed { why: why.to_owned(), version: host.version() };
        let cause = host.cause(why);
        news.extend(std::mem::take(&mut self.waiting).into_keys().map(|task| News::NoGo(task, cause.clone())));
    }

    /// Tells every host to stop.
    pub fn close(&mut self) {
        for host in &mut self.hosts {
            if host.link().is_some() {
                host.state = State::Failed { why: "the run is over".to_owned(), version: host.version() };
            }
        }
    }

    /// A host and all below it is gone.
    pub fn gone(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.lives = false;
        host.log.iter().for_each(|log| log.end(LOG_LIMIT));
    }

    /// The hosts that still live, with what they are the services of.
    pub fn living(&self) -> Vec<(usize, Name)> {
        let living = self.hosts.iter().enumerate().filter(|(_, host)| host.lives);
        living.map(|(index, host)| (index, host.name.clone())).collect()
    }

    /// Whether a host still lives.
    pub fn any_lives(&self) -> bool {
        self.hosts.iter().any(|host| host.lives)
    }

    /// Those that were started and are gone.
    pub fn removed(&self) -> Vec<Name> {
        let gone = self.hosts.iter().filter(|host| host.log.is_some() && !host.lives);
        gone.map(|host| host.name.clone()).collect()
    }

    /// Name and version of each that was ready.
    pub fn versions(&self) -> Vec<(Name, String)> {
        self.hosts.iter().filter_map(|host| Some((host.name.clone(), host.version()?))).collect()
    }
}

fn spawn(
    spec: &Spec,
    owner: Owner,
    (label, log): (&str, &Path),
    place: &Place<'_>,
    tree: &mut ProcessTree,
) -> Result<(Link, File), String> {
    let (link, theirs) = Link::new(spec).map_err(|e| format!("no socket pair for its host: {e}"))?;
    let (log, file) = log::create(log).map_err(|e| format!("its log cannot be made: {e}"))?;
    let spawn = Spawn {
        label,
        program: sys::this_program().map_err(|e| format!("this program cannot be found again: {e}"))?,
        args: vec!["internal-service".into()],
        dir: place.root.to_owned(),
        env: place.env.clone().into_vec(),
        output: Output::Log(log),
        cpus: None,
        stdin: Some(theirs),
        session: false,
        hand_over: Vec::new(),
    };
    tree.spawn(owner, spawn)?;
    Ok((link, file))
}
