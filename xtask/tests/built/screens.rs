//! Whole screens of the program, compared with the files in tests/built/screens. What differs from run to run (times, ids,
//! ports, folders, who holds a lock) is replaced by words; XTASK_BLESS writes the files anew.

use crate::keyring::{Keyring, SUITE};
use crate::world::{Done, Running, World};

const PLAN: &str = r#"schema = 1
[run]
deadline = "28m"
queue = "32m"
cpus = 1
[service.postgres]
[task.fmt]
command = "true"
deadline = "30s"
[task.typecheck]
command = "true"
deadline = "4m"
cpus = 4
mutex = "target"
[task.test-pg]
command = "true"
deadline = "5m"
needs = ["typecheck"]
services = ["postgres"]
[task.smoke]
command = "true"
deadline = "1m"
cpus = "all"
needs = ["test-pg", "fmt"]
"#;

/// Compares what people see of a run with the file of that name.
#[track_caller]
fn check(name: &str, world: &World, done: &Done) {
    let mut text = format!("{}{}", done.err, done.out);
    for (known, word) in [
        (world.repo.display().to_string(), "REPO"),
        (world.folder.path().display().to_string(), "FOLDER"),
        (world.ports.first.to_string(), "PORT"),
        ((world.ports.first + 1).to_string(), "WORKTREE-PORT"),
    ] {
        text = text.replace(&known, word);
    }
    let line = |line: &str| {
        let label = ["   listener  ", "   holder    ", "                     closest  "]
            .into_iter()
            .find(|label| line.starts_with(label));
        let who = |text: &str| match (text.find("says it is "), text.find("; free at")) {
            (Some(from), Some(to)) => format!("{}says it is WHO{}", &text[..from], &text[to..]),
            _ => text.to_owned(),
        };
        label.map_or_else(|| words(&who(line)), |label| format!("{label}WHO")) + "\n"
    };
    // Where a machine is slow, winning a free lock takes long enough to be said.
    let got =
        text.lines().map(line).collect::<String>().replace("workstation lock after Ts in queue", "workstation lock");
    let path = format!("{}/tests/built/screens/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("XTASK_BLESS").is_some() {
        std::fs::write(&path, &got).expect("the screen can be written");
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(got == want, "--- got\n{got}--- {path}\n{want}");
}

/// Run ids, ids of git, times of day, shares and lengths below a minute become words. The date before a time that is not
/// today goes: whether it is there depends on when the test runs.
fn words(line: &str) -> String {
    let mut out = String::new();
    for part in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && !".:-".contains(c)) {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && !".:-".contains(c)).unwrap_or(part.len());
        let (word, rest) = part.split_at(end);
        let digits = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
        let clock = word.len() == 8 && word.split(':').all(digits) && word.contains(':');
        let date = word.len() == 10 && word.split('-').all(digits) && word.matches('-').count() == 2;
        if date && rest == " " {
            continue;
        }
        let seconds = word.strip_suffix('s').map(|word| word.trim_end_matches('m')).is_some_and(digits);
        match () {
            () if word.starts_with("r-2") && word.len() >= 26 => out += &format!("RUN{}", &word[26..]),
            () if clock => out += "CLOCK",
            () if word.len() == 7 && word.chars().all(|c| c.is_ascii_hexdigit()) => out += "ID",
            () if digits(word) && rest.starts_with('%') => out += "N",
            // They are set to the right.
            () if seconds && word != "7.5s" => out = out.trim_end_matches(' ').to_owned() + " Ts",
            () => out += word,
        }
        out += rest;
    }
    out
}

#[test]
fn plan() {
    let world = World::new(PLAN);
    world.write("ci.yml", "jobs:\n  timeout-minutes: 62 # xtask:outer=verify\n");
    world.write("release.yml", "timeout-minutes: 45 # xtask:outer=release\n");
    world.write("Jenkinsfile", "stage\n");
    let done = world.run(&["plan", "--check-outer", "ci.yml", "release.yml", "Jenkinsfile"]);
    check("plan", &world, &done);
}

#[test]
fn refused_under_a_short_limit_and_help() {
    let world = World::new(PLAN);
    check("outer", &world, &world.run(&["verify", "--outer", "45m"]).expect(2));
    check("help", &world, &world.run(&["verify", "--help"]).expect(0));
}

#[test]
fn no_lock() {
    let world = World::new(SUITE);
    let mut holder = world.start(&["lock", "run", "--", "sleep", "600"]);
    crate::world::until("the lock to be held", || world.run(&["lock", "status", "--check"]).code == 4);
    check("spent", &world, &world.run(&["verify", "--queue", "1s"]).expect(4));
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.child.wait().expect("it ends");
    let silent = std::net::TcpListener::bind(("127.0.0.1", world.ports.first)).expect("a free port");
    std::thread::spawn(move || silent.incoming().collect::<Vec<_>>());
    check("foreign", &world, &world.run(&["verify", "--queue", "1m"]).expect(5));
}

#[test]
fn release_and_gate() {
    let keyring = Keyring::new(&SUITE.replace("queue", "cpus = 1\nqueue"));
    let world = &keyring.world;
    world.git(&["tag", "v1.0.0"]);
    check("release", world, &keyring.release("v1.0.0").expect(0));
    check("accepted", world, &world.run(&["check-receipt", "v1.0.0"]).expect(0));
    world.write("ci/suite.toml", &SUITE.replace("5m", "6m").replace("queue", "cpus = 1\nqueue"));
    world.commit("another suite");
    check("refused", world, &world.run(&["check-receipt", "v1.0.0", "--commit", "HEAD"]).expect(6));
}

#[test]
fn colours_are_there_when_they_are_asked_for_and_not_otherwise() {
    let world = World::new(
        "schema = 1\n[run]\ndeadline = \"2m\"\nqueue = \"1m\"\n[task.a]\ncommand = \"true\"\ndeadline = \"1m\"\n",
    );
    for (words, set, coloured) in [
        (&["verify"][..], None, false),
        (&["verify", "--color", "always"], None, true),
        // Who asks for them means it.
        (&["verify", "--color", "always"], Some("NO_COLOR"), true),
        (&["verify", "--color", "never"], Some("CLICOLOR_FORCE"), false),
    ] {
        let mut command = world.command(words);
        command.envs(set.map(|name| (name, "1")));
        let done = Running::start(command, &world.folder).wait().expect(0);
        assert_eq!(done.err.contains("\x1b["), coloured, "{words:?} {set:?}: {:?}", done.err);
    }
}
