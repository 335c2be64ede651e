//! From the text of a suite file to a `Suite`, or to every error in it.
//!
//! A value that is wrong is noted and replaced by one that does no harm, and reading goes on: so one pass finds
//! everything. `parse` gives a suite only if nothing was noted.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeTable;

use super::reader::{Lined, Reader, Table, Value, boolean, named, number, one_of, string};
use super::{
    Fill, Leftovers, OnFailure, PoolSize, Profile, RunLimits, SERVICES, Service, Suite, SuiteError, SuiteErrors, Task,
    Weight, graph, value,
};
use crate::name::{Name, meant};
use crate::time::Exact;

/// A receipt says about half a kilobyte of each task, and no gate reads one that is longer than a megabyte.
const MOST_TASKS: usize = 1000;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

// The sane range of each length. Below it is a slip of the unit, above it nobody would wait for the error.
const DEADLINE: RangeInclusive<Duration> = Duration::from_millis(1)..=DAY;
const WAIT: RangeInclusive<Duration> = Duration::ZERO..=DAY;
const GRACE: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(300);
const START: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
const AGE: RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(366 * 86_400);
const CPUS_MAX: u64 = 4096;
const LOG: RangeInclusive<u64> = 1 << 10..=1 << 40;
const LOG_DEFAULT: u64 = 64 << 20;
// What the wrap-up needs besides the stop grace: snapshot, receipt, signature.
const AFTER_GRACE: Duration = Duration::from_secs(2);

pub(super) fn parse(text: &str) -> Result<Suite, SuiteErrors> {
    let (root, broken) = DeTable::parse_recoverable(text);
    let mut reader = Reader::new(text);
    let suite = reader.suite(root.get_ref());
    // After a syntax error the parser guesses. A key given twice is no guess; after anything else only what is wrong
    // further up is surely wrong, and what is missing or unknown may stand in the part that cannot be read.
    let mut first_guess = usize::MAX;
    let mut syntax = Vec::new();
    for error in broken {
        let at = error.span().unwrap_or(0..0);
        let line = reader.line(&at);
        let what = match (error.message(), text.get(at)) {
            ("duplicate key", Some(key)) => format!("{key:?} is here for the second time"),
            (message, _) => {
                first_guess = first_guess.min(line);
                message.replace('\n', " ")
            }
        };
        syntax.push(SuiteError { line: Some(line), what });
    }
    let mut errors = reader.errors;
    errors.retain(|e| e.line < Some(first_guess));
    if first_guess == usize::MAX {
        errors.append(&mut reader.followers);
    }
    errors.append(&mut syntax);
    errors.sort_by_key(|e| e.line);
    errors.dedup();
    if errors.is_empty() { Ok(suite) } else { Err(SuiteErrors(errors)) }
}

impl Reader {
    fn suite(&mut self, keys: &DeTable<'_>) -> Suite {
        let root = Table { keys, what: String::new(), line: 1 };
        if !self.schema(&root) {
            // Whatever else stands there is of another language.
            return Suite {
                run: self.run(None),
                max_age: DAY,
                tasks: Vec::new(),
                services: BTreeMap::new(),
                profiles: BTreeMap::new(),
            };
        }
        self.known(&root, &["schema", "run", "receipt", "defaults", "service", "task", "profile"]);
        let table = |reader: &mut Self, key: &str, known: &[&str]| {
            let (line, value) = reader.find(&root, key)?;
            reader.table(value, format!("[{key}]"), line, known)
        };
        let run = ["deadline", "queue", "margin", "stop-grace", "wrap-up", "cpus", "on-failure"];
        let run = table(self, "run", &run);
        if run.is_none() && self.find(&root, "run").is_none() {
            self.follow(1, "[run] is missing; it needs at least `deadline`".to_owned());
        }
        let receipt = table(self, "receipt", &["max-age"]);
        let defaults = table(self, "defaults", &["deadline", "env"]);
        let max_age = receipt.and_then(|receipt| self.duration(&receipt, "max-age", &AGE));
        let run = self.run(run.as_ref());
        let services = self.services(&root);
        let tasks = self.tasks(&root, defaults.as_ref(), &services);
        let profiles = self.profiles(&root, &tasks);
        Suite { run, max_age: max_age.map_or(Duration::from_secs(7200), |(age, _)| age), tasks, services, profiles }
    }

    fn schema(&mut self, root: &Table<'_>) -> bool {
        match self.find(root, "schema") {
            None => self.follow(1, "`schema = 1` is missing".to_owned()),
            Some((line, value)) => match number(value) {
                Ok(1) => {}
                Ok(other) => {
                    self.note(line, format!("this xtask knows schema 1 and not {other}; another version of it may"));
                    return false;
                }
                Err(why) => self.note(line, format!("schema: {why}")),
            },
        }
        true
    }

    fn run(&mut self, table: Option<&Table<'_>>) -> RunLimits {
        let length = |reader: &mut Self, key: &str, range| table.and_then(|t| reader.duration(t, key, range));
        let deadline = length(self, "deadline", &DEADLINE);
        if let Some(table) = table
            && !table.keys.contains_key("deadline")
        {
            self.follow(table.line, "[run]: `deadline` is missing".to_owned());
        }
        let queue = length(self, "queue", &WAIT);
        let margin = length(self, "margin", &WAIT);
        let stop_grace = length(self, "stop-grace", &GRACE);
        let wrap_up = length(self, "wrap-up", &DEADLINE);
        let cpus = table.and_then(|t| {
            self.read(t, "cpus", |value| match value.get_ref().as_str() {
                Some("auto") => Ok(PoolSize::Auto),
                Some(other) => Err(format!("{other:?} is neither \"auto\" nor a number")),
                None => Ok(PoolSize::AtMost(cpus(value)?)),
            })
        });
        let on_failure = table.and_then(|t| {
            let known = [("finish", OnFailure::Finish), ("stop", OnFailure::Stop)];
            self.read(t, "on-failure", |value| one_of(value, &known))
        });
        let given = |length: Option<(Duration, usize)>, default| length.map_or(default, |(length, _)| length);
        let (limit, deadline_line) = deadline.unwrap_or((DAY, 1));
        let grace = given(stop_grace, 4 * SECOND);
        let limits = RunLimits {
            deadline: limit,
            deadline_line,
            // Two whole runs ahead, and the hand-overs.
            queue: given(queue, (limit * 2 + 120 * SECOND).min(DAY)),
            margin: given(margin, 120 * SECOND),
            stop_grace: grace,
            wrap_up: given(wrap_up, grace + 6 * SECOND),
            cpus: cpus.unwrap_or(PoolSize::Auto),
            on_failure: on_failure.unwrap_or(OnFailure::Finish),
        };
        let wrap_line = wrap_up.or(stop_grace).or(deadline).map_or(1, |(_, line)| line);
        let (wrap, grace) = (limits.wrap_up, limits.stop_grace);
        // What stands there and cannot be read was noted; the usual length in its place is compared with nothing.
        let unread = |key, read: bool| !read && table.is_some_and(|t| t.keys.contains_key(key));
        let unread = unread("stop-grace", stop_grace.is_some()) || unread("wrap-up", wrap_up.is_some());
        if wrap < grace + AFTER_GRACE && !unread {
            let least = Exact(grace + AFTER_GRACE);
            let what = format!("[run]: wrap-up {} is too short: stop-grace + 2s = {least}", Exact(wrap));
            self.follow(wrap_line, what);
        }
        if wrap >= limit && !unread {
            let what = format!("[run]: wrap-up {} leaves nothing of the deadline {}", Exact(wrap), Exact(limit));
            self.follow(wrap_line, what);
        }
        limits
    }

    fn services(&mut self, root: &Table<'_>) -> BTreeMap<Name, Service> {
        let mut services = BTreeMap::new();
        let known = || SERVICES.iter().map(|&(name, _)| name);
        for (name, table) in self.tables(root, "service", &["version", "migrations", "setup", "start", "tcp"]) {
            let Some(&(_, oldest)) = SERVICES.iter().find(|(known, _)| *known == name.as_str()) else {
                self.note(table.line, format!("no service {:?}{}", name.as_str(), meant(name.as_str(), known())));
                continue;
            };
            let at_least = self.read(&table, "version", |value| value::version(string(value)?, oldest));
            let migrations = self.read(&table, "migrations", |value| value::path(string(value)?));
            let setup = self.command(&table, "setup");
            if let (Some(_), Some((line, _))) = (&migrations, self.find(&table, "setup")) {
                self.note(line, format!("{}: `migrations` and `setup` exclude each other", table.what));
            }
            let start = self.duration(&table, "start", &START);
            let tcp = self.read(&table, "tcp", boolean);
            let fill = match (migrations, setup) {
                (Some(folder), _) => Fill::Migrations(folder),
                (None, Some(command)) => Fill::Setup(command),
                (None, None) => Fill::Empty,
            };
            let service = Service {
                line: table.line,
                at_least: at_least.unwrap_or(oldest),
                fill,
                start: start.map_or(10 * SECOND, |(start, _)| start),
                tcp: tcp.unwrap_or(false),
            };
            services.insert(name, service);
        }
        services
    }

    fn tasks(
        &mut self,
        root: &Table<'_>,
        defaults: Option<&Table<'_>>,
        services: &BTreeMap<Name, Service>,
    ) -> Vec<Task> {
        let deadline = defaults.and_then(|d| self.duration(d, "deadline", &DEADLINE));
        let env = defaults.map(|d| self.env(d)).unwrap_or_default();
        let known = [
            "command",
            "dir",
            "fix",
            "needs",
            "services",
            "deadline",
            "cpus",
            "mutex",
            "env",
            "leftovers",
            "log-limit",
            "outputs",
        ];
        let tables = self.tables(root, "task", &known);
        if tables.is_empty() {
            self.follow(1, "there is no task: a suite needs at least one [task.NAME]".to_owned());
        }
        if let Some((_, table)) = tables.get(MOST_TASKS) {
            let what =
                format!("{} tasks, but a suite has {MOST_TASKS} at most: a gate reads no longer receipt", tables.len());
            self.note(table.line, what);
        }
        let names: Vec<Name> = tables.iter().map(|(name, _)| name.clone()).collect();
        let mut tasks = Vec::new();
        let mut made: BTreeMap<String, (Name, usize)> = BTreeMap::new();
        for (name, table) in tables {
            let needs = self.list(&table, "needs", named);
            self.exist(&table, "task", &needs, names.iter());
            let wanted = self.list(&table, "services", named);
            self.exist(&table, "service", &wanted, services.keys());
            let outputs = self.list(&table, "outputs", value::output);
            for (path, line) in &outputs {
                let inside = |other: &str| path.starts_with(&format!("{other}/"));
                let clash = made.iter().find(|(other, (task, _))| {
                    (*other == path && *task != name) || inside(other) || other.starts_with(&format!("{path}/"))
                });
                if let Some((other, (task, at))) = clash {
                    let what = format!("{path:?} clashes with {other:?} of task {:?}, line {at}", task.as_str());
                    self.note(*line, format!("{}: outputs: {what}", table.what));
                }
                made.entry(path.clone()).or_insert((name.clone(), *line));
            }
            tasks.push(self.task(name, &table, deadline, &env, (needs, wanted, outputs)));
        }
        self.acyclic(&tasks);
        tasks
    }

    fn task(
        &mut self,
        name: Name,
        table: &Table<'_>,
        default_deadline: Option<(Duration, usize)>,
        default_env: &BTreeMap<String, String>,
        (needs, services, outputs): (Lined<Name>, Lined<Name>, Lined<String>),
    ) -> Task {
        let command = self.command(table, "command");
        if !table.keys.contains_key("command") {
            self.follow(table.line, format!("{}: `command` is missing", table.what));
        }
        let deadline = self.duration(table, "deadline", &DEADLINE).or(default_deadline);
        if deadline.is_none() && !table.keys.contains_key("deadline") {
            let what = "`deadline` is missing, and [defaults] has none";
            self.follow(table.line, format!("{}: {what}", table.what));
        }
        let (deadline, deadline_line) = deadline.unwrap_or((SECOND, table.line));
        let mut env = default_env.clone();
        env.extend(self.env(table));
        // What a service tells its tasks must not be said twice.
        for told in ["DATABASE_URL", "PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD"] {
            if !services.is_empty() && env.contains_key(told) {
                self.follow(table.line, format!("{}: env: {told} is what its service sets", table.what));
            }
        }
        let bare = |list: Lined<Name>| list.into_iter().map(|(name, _)| name).collect();
        Task {
            name,
            line: table.line,
            command: command.unwrap_or_default(),
            dir: self.read(table, "dir", folder).unwrap_or_default(),
            fix: self.read(table, "fix", |value| line_of_text(string(value)?)),
            needs: bare(needs),
            services: bare(services),
            deadline,
            deadline_line,
            cpus: self.read(table, "cpus", weight).unwrap_or(Weight::Cpus(1)),
            mutex: self.read(table, "mutex", |value| named(string(value)?)),
            env,
            leftovers: self
                .read(table, "leftovers", |value| {
                    one_of(value, &[("fail", Leftovers::Fail), ("kill", Leftovers::Kill)])
                })
                .unwrap_or(Leftovers::Fail),
            log_limit: self.read(table, "log-limit", |value| value::size(string(value)?, &LOG)).unwrap_or(LOG_DEFAULT),
            outputs: outputs.into_iter().map(|(path, _)| path).collect(),
        }
    }

    fn acyclic(&mut self, tasks: &[Task]) {
        let index = |name: &Name| tasks.iter().position(|task| &task.name == name);
        let needs: Vec<Vec<usize>> = tasks.iter().map(|t| t.needs.iter().filter_map(index).collect()).collect();
        for cycle in graph::cycles(&needs) {
            let around = cycle.iter().chain(cycle.first()).map(|&i| tasks[i].name.as_str()).collect::<Vec<_>>();
            let line = cycle.iter().map(|&i| tasks[i].line).min().unwrap_or(1);
            self.follow(line, format!("tasks that need each other can never start: {}", around.join(" -> ")));
        }
    }

    fn profiles(&mut self, root: &Table<'_>, tasks: &[Task]) -> BTreeMap<Name, Profile> {
        let mut profiles = BTreeMap::new();
        for (name, table) in self.tables(root, "profile", &["skip"]) {
            let skip = self.list(&table, "skip", named);
            self.exist(&table, "task", &skip, tasks.iter().map(|task| &task.name));
            if !table.keys.contains_key("skip") {
                self.follow(table.line, format!("{}: `skip` is missing", table.what));
            }
            let skips = |name: &Name| skip.iter().any(|(skipped, _)| skipped == name);
            for task in tasks.iter().filter(|task| !skips(&task.name)) {
                for (need, line) in skip.iter().filter(|(skipped, _)| task.needs.contains(skipped)) {
                    let (need, task) = (need.as_str(), task.name.as_str());
                    self.follow(*line, format!("{}: skips {need:?}, which {task:?} needs", table.what));
                }
            }
            if !tasks.is_empty() && tasks.iter().all(|task| skips(&task.name)) {
                self.follow(table.line, format!("{}: skips every task", table.what));
            }
            profiles.insert(name, Profile { line: table.line, skip: skip.into_iter().map(|(name, _)| name).collect() });
        }
        profiles
    }
}

fn cpus(value: &Value<'_>) -> Result<usize, String> {
    match number(value)? {
        count @ 1..=CPUS_MAX => usize::try_from(count).map_err(|e| e.to_string()),
        other => Err(format!("{other} is not between 1 and {CPUS_MAX}")),
    }
}

fn weight(value: &Value<'_>) -> Result<Weight, String> {
    match value.get_ref().as_str() {
        Some("all") => Ok(Weight::All),
        Some(other) => Err(format!("{other:?} is neither \"all\" nor a number")),
        None => Ok(Weight::Cpus(cpus(value)?)),
    }
}

fn folder(value: &Value<'_>) -> Result<String, String> {
    match string(value)? {
        "." => Ok(String::new()),
        text => value::path(text),
    }
}

fn line_of_text(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.chars().any(char::is_control) {
        return Err(format!("{text:?} is not one line of text"));
    }
    Ok(text.to_owned())
}
