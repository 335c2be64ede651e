//! The service host driven directly: every answer is the server's own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use xtask::name::Name;
use xtask::service::{Env, Link, Reply, Spec};
use xtask::suite::{Fill, Service};

use crate::world::{Folder, until};

/// A host and what belongs to it.
struct Server {
    folder: Folder,
    spec: Spec,
    child: Child,
    link: Option<Link>,
    replies: Vec<Reply>,
}

fn empty() -> Service {
    Service { line: 1, at_least: 14, fill: Fill::Empty, start: Duration::from_secs(10), tcp: false }
}

impl Server {
    fn start(service: Service) -> Self {
        Self::start_in(Folder::new(), service, |_| {})
    }

    fn start_in(folder: Folder, service: Service, change: impl FnOnce(&mut Command)) -> Self {
        let (root, scratch) = (folder.path().join("repo"), folder.path().join("s"));
        for path in [&root, &scratch] {
            fs::create_dir_all(path).unwrap();
        }
        let spec = Spec { name: Name::parse("postgres").unwrap(), service, root, scratch };
        let (link, stdin) = Link::new(&spec).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("internal-service").stdin(stdin).stdout(log.try_clone().unwrap()).stderr(log);
        command.env("XDG_CACHE_HOME", cache());
        change(&mut command);
        let child = command.spawn().unwrap();
        Self { folder, spec, child, link: Some(link), replies: Vec::new() }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Reads until a reply is what is asked for.
    #[track_caller]
    fn reply<T>(&mut self, what: &str, wanted: impl Fn(&Reply) -> Option<T>) -> T {
        let mut found = None;
        until(what, || {
            self.replies.extend(self.link.as_mut().expect("a link").on_readable());
            let at = self.replies.iter().position(|reply| wanted(reply).is_some());
            found = at.map(|at| wanted(&self.replies.remove(at)).unwrap());
            let failed = self.replies.iter().find(|reply| matches!(reply, Reply::Failed(_)));
            assert!(found.is_some() || failed.is_none(), "{failed:?}; log:\n{}", self.log());
            found.is_some()
        });
        found.unwrap()
    }

    #[track_caller]
    fn database(&mut self, task: &str) -> BTreeMap<String, String> {
        let name = Name::parse(task).unwrap();
        self.link.as_mut().unwrap().request(&name).unwrap();
        let env: Env = self.reply(&format!("a database for {task}"), |reply| match reply {
            Reply::HandedOut { task, env } if *task == name => Some(env.clone()),
            _ => None,
        });
        env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    #[track_caller]
    #[allow(dead_code)]
    fn failure(&mut self) -> String {
        self.reply("a failure", |reply| match reply {
            Reply::Failed(why) => Some(why.clone()),
            _ => None,
        })
    }

    fn stop(&mut self) {
        self.link = None;
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}; log:\n{}", self.log());
        let left: Vec<PathBuf> = fs::read_dir(&self.spec.scratch).unwrap().map(|e| e.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A cache for all tests of this process, so that initdb runs once.
fn cache() -> PathBuf {
    std::env::temp_dir().join(format!("xtask-test-cache-{}", nix::unistd::Uid::effective()))
}

/// Asks the server of these variables; the first column of every row.
fn ask(env: &BTreeMap<String, String>, sql: &str) -> Vec<String> {
    let out = Command::new("psql").envs(env).args(["-XAtqc", sql]).output().unwrap();
    assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_server_of_the_run_and_nobody_elses() {
    let mut server = Server::start(empty());
    let env = server.database("a");
    let data = server.spec.scratch.join("postgres/data");
    assert_eq!(ask(&env, "show data_directory"), [data.to_str().unwrap()]);
    assert!(ask(&env, "select version()")[0].starts_with("PostgreSQL "));
    server.stop();
}
