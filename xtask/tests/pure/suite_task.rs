//! What a task of the suite may say: its command, environment, paths and sizes, and what it has to do with other tasks.

use xtask::suite::Suite;

use crate::suite::{HEAD, errors_of, suite, task, wrong, wrong_in, wrong_task};

#[track_caller]
fn words(command: &str, expected: &[&str]) {
    let text = format!("[task.a]\ncommand = '''{command}'''\ndeadline = \"1m\"\n");
    assert_eq!(suite(&text).tasks[0].command, expected, "{command}");
}

#[test]
fn commands_are_split_as_posix_does_without_a_shell() {
    words("cargo fmt  --all\t--check", &["cargo", "fmt", "--all", "--check"]);
    words("  x \n  y\\\n z ", &["x", "y", "z"]);
    words("x\r\n  y\\\r\n  z", &["x", "y", "z"]);
    words(r#"x 'a b' "c d" e\ f"#, &["x", "a b", "c d", "e f"]);
    words(r#"x "" a""b 'c'"d"e"#, &["x", "", "ab", "cde"]);
    words(r#"x "\" \\ \$ \` \n" '\n'"#.trim(), &["x", "\" \\ $ ` \\n", "\\n"]);
    words(r#"x 'a\\b' '\"' '\$'"#, &["x", r"a\\b", r#"\""#, r"\$"]);
    words(
        "x {cpus} {other} a{b,c}d *.rs ~ #no $HOME",
        &["x", "{cpus}", "{other}", "a{b,c}d", "*.rs", "~", "#no", "$HOME"],
    );
    words("x '&&' \\; \"2>&1\" a=b", &["x", "&&", ";", "2>&1", "a=b"]);
}

#[test]
fn commands_that_only_a_shell_would_understand_are_refused() {
    for (command, part) in [
        ("a && b", "\"&&\" means something to a shell only"),
        ("a; b", "\"a;\" means"),
        ("a | b", "\"|\" means"),
        ("a > b", "\">\" means"),
        ("a 2>&1", "\"2>&1\" means"),
        ("a &> b", "\"&>\" means"),
        ("a $(b)", "\"$(b)\" means"),
        ("A=1 b", "\"A=1\" is not a program"),
        ("a 'b", "the quote ' is never closed"),
        ("a \\\"b", ""),
        ("a \\", "the backslash at the end"),
        ("", "there is no program"),
        ("  ", "there is no program"),
        ("'' a", "there is no program"),
    ] {
        let text = format!("{HEAD}[task.a]\ndeadline = \"1m\"\ncommand = '''{command}'''\n");
        match part {
            "" => drop(Suite::parse(&text).expect("an escaped quote is no quote")),
            _ => wrong(&text, &[(5, part)]),
        }
    }
    let text = format!("{HEAD}[task.a]\ndeadline = \"1m\"\ncommand = '''a \"b'''\n");
    wrong(&text, &[(5, "the quote \" is never closed")]);
    assert_eq!(task("").command, ["x"]);
    for (array, part) in [
        ("[]", "no program"),
        ("[\"\"]", "no program"),
        ("[\"a\", 1]", "an integer"),
        ("[\"a\\u0000\"]", "NUL"),
        ("3", "an integer"),
    ] {
        let text = format!("{HEAD}[task.a]\ndeadline = \"1m\"\ncommand = {array}\n");
        wrong(&text, &[(5, part)]);
    }
    let text = format!("{HEAD}[task.a]\ndeadline = \"1m\"\ncommand = [\"sh\", \"-c\", \"a && b\"]\n");
    assert_eq!(Suite::parse(&text).expect("an array is taken as it is").tasks[0].command[2], "a && b");
}

#[test]
fn environment_is_checked() {
    wrong_task("env = { \"A-B\" = \"1\" }", "\"A-B\" is not a variable's name");
    wrong_task("env = { 1A = \"1\" }", "\"1A\" is not a variable's name");
    wrong_task("env = { \"\" = \"1\" }", "is not a variable's name");
    wrong_task("env = { XTASK_CPUS = \"1\" }", "XTASK_CPUS is one of xtask's own variables");
    wrong_task("env = { xtask_x = \"1\" }", "xtask_x is one of xtask's own variables");
    wrong_task("env = { A = \"a\\u0000\" }", "A cannot have a NUL in it");
    wrong_in("[defaults]\nenv = { XTASK_LOCK_PORT = \"1\" }\n", 4, "[defaults]: env: XTASK_LOCK_PORT");
    let text = format!(
        "{HEAD}[service.postgres]\n[task.a]\ncommand = \"x\"\ndeadline = \"1m\"\nservices = [\"postgres\"]\nenv.PGHOST = \"h\"\n"
    );
    wrong(&text, &[(4, "PGHOST is what its service sets")]);
    assert_eq!(task("env = { DATABASE_URL = \"x\" }").env["DATABASE_URL"], "x", "without a service it is the suite's");
}

#[test]
fn log_limits_are_sizes() {
    for (text, bytes) in [
        ("64MiB", 64 << 20),
        ("1 KiB", 1 << 10),
        ("2048B", 2048),
        ("1kB", 0),
        ("3MB", 3_000_000),
        ("1GiB", 1 << 30),
        ("2GB", 2_000_000_000),
    ] {
        match bytes {
            0 => wrong_task(&format!("log-limit = \"{text}\""), "not between 1024 and"),
            _ => assert_eq!(task(&format!("log-limit = \"{text}\"")).log_limit, bytes),
        }
    }
    wrong_task("log-limit = \"64\"", "is not a size such as \"64MiB\"");
    wrong_task("log-limit = \"-1MiB\"", "is not a size");
    wrong_task("log-limit = \"99999999999999GiB\"", "is not a size");
    wrong_task("log-limit = \"0MiB\"", "not between");
    wrong_task("log-limit = 64", "is an integer and should be a string");
}

#[test]
fn paths_stay_inside_the_repository() {
    for (path, part) in [
        ("/etc", "not a path inside the repository"),
        ("..", "not a path inside"),
        ("a/../b", "not a path inside"),
        ("./a", "not written plainly"),
        ("a//b", "not written plainly"),
        ("a/", "not written plainly"),
        ("a/./b", "not written plainly"),
        ("", "not written plainly"),
        ("a\\u0000b", "not written plainly"),
        ("a\\nb", "not written plainly"),
        (".git/hooks/x", "lies in git's own folder"),
        ("sub/.GIT/x", "lies in git's own folder"),
    ] {
        wrong_task(&format!("dir = \"{path}\""), part);
        wrong_task(&format!("outputs = [\"{path}\"]"), part);
        wrong_in(&format!("[service.postgres]\nmigrations = \"{path}\"\n"), 4, part);
    }
    assert_eq!(task("dir = \".\"").dir, "");
    assert_eq!(task("dir = \"web/my app\"").dir, "web/my app");
    wrong_task("outputs = [\".\"]", "not written plainly");
    wrong_task("outputs = [\"receipts/a\"]", "lies where xtask writes");
    for name in ["a:b", "c:/a", "a\\\\b", "-", "target/-"] {
        wrong_task(&format!("outputs = [\"{name}\"]"), "cannot be released under that name");
    }
    wrong_task("outputs = [\"target/xtask-runs/a\"]", "lies where xtask writes");
}

#[test]
fn an_output_has_one_maker() {
    let two = |a: &str, b: &str| {
        format!(
            "{HEAD}defaults.deadline = \"1m\"\n[task.a]\ncommand = \"x\"\noutputs = [{a}]\n[task.b]\ncommand = \"x\"\noutputs = [{b}]\n"
        )
    };
    wrong(&two("\"o/x\"", "\"o/y\",\n\"o/x\""), &[(10, "\"o/x\" clashes with \"o/x\" of task \"a\", line 6")]);
    wrong(&two("\"o\"", "\"o/x\""), &[(9, "\"o/x\" clashes with \"o\" of task \"a\"")]);
    wrong(&two("\"o/x\", \"o\"", "\"p\""), &[(6, "\"o\" clashes with \"o/x\" of task \"a\"")]);
    wrong(&two("\"o\", \"o\"", "\"p\""), &[(6, "\"o\" is here for the second time")]);
    Suite::parse(&two("\"o/x\"", "\"o/xy\"")).expect("neighbours do not clash");
}

#[test]
fn needs_that_go_round_are_shown_as_a_cycle() {
    let tasks = |needs: &[(&str, &str)]| {
        let task = |(name, needs): &(&str, &str)| format!("[task.{name}]\ncommand = \"x\"\nneeds = [{needs}]\n");
        format!("{HEAD}defaults.deadline = \"1m\"\n{}", needs.iter().map(task).collect::<String>())
    };
    wrong(&tasks(&[("a", "\"a\"")]), &[(4, "can never start: a -> a")]);
    wrong(&tasks(&[("x", "\"a\""), ("a", "\"b\""), ("b", "\"c\""), ("c", "\"a\"")]), &[(7, "a -> b -> c -> a")]);
    wrong(
        &tasks(&[("a", "\"b\""), ("b", "\"a\""), ("c", "\"d\""), ("d", "\"c\"")]),
        &[(4, "a -> b -> a"), (10, "c -> d -> c")],
    );
    wrong(&tasks(&[("a", "\"b\", \"b\""), ("b", "")]), &[(6, "\"b\" is here for the second time")]);
    Suite::parse(&tasks(&[("a", "\"b\", \"c\""), ("b", "\"d\""), ("c", "\"d\""), ("d", "")]))
        .expect("a diamond is no cycle");
    let chain: String =
        (0..5000).map(|i| format!("[task.t{i}]\ncommand = \"x\"\nneeds = [\"t{}\"]\n", (i + 1) % 5000)).collect();
    assert!(errors_of(&format!("{HEAD}defaults.deadline = \"1m\"\n{chain}")).contains("t4999 -> t0"));
}
