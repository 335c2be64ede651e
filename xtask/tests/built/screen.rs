//! What a person sees in a real terminal: the program in a window of tmux, which has its own idea of what cursor moves,
//! resizing and Ctrl-C do.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::world::{PATIENCE, World, until};

/// A window with a shell that runs the program, and then says with which code it ended.
struct Window {
    socket: PathBuf,
}

impl Window {
    fn open(world: &World, columns: usize, lines: usize, args: &str) -> Self {
        // A server that is told to end takes its time: the next window has another one.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let socket = world.folder.path().join(format!("tmux-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let program = env!("CARGO_BIN_EXE_xtask");
        let stty = world.folder.path().join("stty");
        let (before, after) = (stty.with_extension("before"), stty.with_extension("after"));
        // Something stands above, as it does for a person: what is erased from the top of a window, tmux keeps in its history.
        let script = format!(
            "echo 'a line above'; stty -g > '{}'; '{program}' {args}; code=$?; stty -g > '{}'; echo \"ended with $code\"; exec sleep {}",
            before.display(),
            after.display(),
            PATIENCE.as_secs()
        );
        let mut command = Command::new("tmux");
        // The environment that the world gives to the program reaches it through tmux's server.
        for (name, value) in world.command(&[]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let size = ["-x", columns.as_str(), "-y", lines.as_str()];
        command.current_dir(&world.repo).env_remove("TMUX").arg("-S").arg(&socket).args(["-f", "/dev/null"]);
        let out = command.args(["new-session", "-d"]).args(size).arg(script).output();
        let out = out.expect("these tests need tmux (apt-get install tmux)");
        assert!(out.status.success(), "tmux: {}", String::from_utf8_lossy(&out.stderr));
        Self { socket }
    }

    fn tmux(&self, args: &[&str]) -> Output {
        Command::new("tmux").arg("-S").arg(&self.socket).args(args).output().expect("tmux runs")
    }

    /// What stands in the window, and with `-S -` what has scrolled out of it too.
    fn text(&self, more: &[&str]) -> String {
        let out = self.tmux(&[&["capture-pane", "-p"], more].concat());
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned() + "\n"
    }

    fn whole(&self) -> String {
        self.text(&["-S", "-"])
    }

    /// Waits until the window shows all of that; what it shows then.
    #[track_caller]
    fn wait_for(&self, what: &[&str]) -> String {
        self.wait_until(&format!("{what:?}"), |text| what.iter().all(|what| text.contains(what)))
    }

    #[track_caller]
    fn wait_until(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let (begun, mut text) = (Instant::now(), String::new());
        while !holds(&text) {
            let over = text.contains("ended with") || begun.elapsed() > PATIENCE;
            text = self.text(&[]);
            // Once more after the end: what was looked at may be from before it.
            assert!(!over || holds(&text), "no {what} in\n{}", self.whole());
            std::thread::sleep(Duration::from_millis(30));
        }
        text
    }

    fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    fn resize(&self, columns: usize, lines: usize) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", &lines.to_string()]);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // This server is the test's own: nobody else knows its socket.
        self.tmux(&["kill-server"]);
    }
}

const SUITE: &str = r#"
schema = 1
[run]
deadline = "10m"
queue = "5m"
cpus = 1
[task.quick]
command = "true"
deadline = "1m"
[task.long]
command = ["sh", "-c", "echo building part 1; until test -e target/go; do sleep 0.02; done"]
needs = ["quick"]
deadline = "4m"
[task.after]
command = "true"
needs = ["long"]
deadline = "30s"
"#;

fn go(world: &World) {
    world.write("target/go", "");
}

#[test]
fn rows_are_redrawn_below_what_scrolls_and_survive_resizing() {
    let world = World::new(SUITE);
    let window = Window::open(&world, 80, 24, "verify");
    let text = window.wait_for(&["Passed quick", "building part 1", "waiting  after (long)"]);
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("---")).collect();
    assert!(rows.len() <= 8 && rows[1].starts_with("  Running"), "{text}");
    assert!(rows[1].contains("1/3 done   slots 1/1") && rows[1].contains("lock held"), "{text}");
    for (columns, lines) in [(40, 10), (200, 50), (30, 6), (100, 30)] {
        window.resize(columns, lines);
        // Rows of this size are there. (What tmux was in the middle of drawing when it wrapped its lines may stay above.)
        let rule = "-".repeat((columns - 1).min(80));
        window.wait_until(&format!("rows for {columns}x{lines}"), |text| {
            let text: Vec<&str> = text.lines().collect();
            let rows = text.iter().rposition(|line| *line == rule).map_or(&text[..0], |rule| &text[rule + 1..]);
            rows.len() == 3 && rows[0].starts_with("  Running") && rows[1].trim_start().starts_with("long ")
        });
    }
    go(&world);
    window.wait_for(&["ended with 0"]);
    let text = window.whole();
    for once in ["Acquired workstation lock", "Passed quick", "Passed long", "Passed after", "PASSED 3 tasks"] {
        assert_eq!(text.matches(once).count(), 1, "{once:?} in\n{text}");
    }
    let end = &text[text.find("Passed long").expect("it passed")..];
    assert!(!end.contains("  Running") && !end.contains("-----"), "rows were left behind in\n{text}");
}

#[test]
fn ctrl_z_is_answered_and_ctrl_c_ends_the_run() {
    let world = World::new(SUITE);
    let window = Window::open(&world, 80, 24, "verify");
    window.wait_for(&["building part 1"]);
    window.keys("C-z");
    window.wait_for(&["Note Ctrl-Z is ignored", "building part 1"]);
    window.keys("C-c");
    window.wait_for(&["ended with 130"]);
    let text = window.whole();
    for once in ["CANCELLED by SIGINT after", "CANCELLED by SIGINT from the terminal: 1 passed, 1 cancelled, 1 not run"]
    {
        assert_eq!(text.matches(once).count(), 1, "{once:?} in\n{text}");
    }
    assert!(text.contains("exit code 130") && !text.contains("  Running"), "{text}");
    assert!(text.ends_with("       Freed workstation lock\nended with 130\n"), "the last line of all: {text}");
    let stty =
        |when: &str| std::fs::read_to_string(world.folder.path().join("stty").with_extension(when)).expect("stty");
    assert_eq!(stty("before"), stty("after"), "the terminal is as it was");
}

#[test]
fn waiting_is_one_block_that_goes() {
    let world = World::new(SUITE);
    let mut holder = world.start(&["verify"]);
    holder.wait_for("Start      long");
    let window = Window::open(&world, 80, 24, "verify");
    let first = window.wait_for(&["Waiting", "held by", "Ctrl-C    leaves the queue"]);
    // It counts: the first row changes and stays one.
    until("the next second of the wait", || {
        let text = window.text(&[]);
        assert_eq!(text.matches("Waiting").count(), 1, "{text}");
        text.lines().nth(1) != first.lines().nth(1)
    });
    window.keys("C-c");
    window.wait_for(&["CANCELLED by SIGINT while waiting", "ended with 130"]);
    drop(window);
    let window = Window::open(&world, 80, 24, "verify");
    window.wait_for(&["Waiting 1s of", "held by"]);
    go(&world);
    window.wait_for(&["PASSED 3 tasks", "ended with 0"]);
    let text = window.whole();
    assert!(text.contains("Acquired workstation lock after") && !text.contains("held by"), "{text}");
    holder.wait().expect(0);
}

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let world = World::new(SUITE);
    go(&world);
    let window = Window::open(&world, 120, 40, "verify --color never");
    window.wait_for(&["ended with 0"]);
    let window_of = |term: &str| {
        let world = World::new(SUITE);
        go(&world);
        let mut command = world.command(&["verify"]);
        command.env("TERM", term);
        crate::world::Running::start(command, &world.folder).wait().expect(0)
    };
    let done = window_of("dumb");
    assert!(!done.err.contains('\u{1b}') && !done.err.contains('\r'), "{}", done.err);
    assert!(done.err.contains("Start      long") && done.out.is_empty(), "{}", done.err);
}
