//! What is checked before anybody queues, on real files.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use xtask::command::preflight::{self, Ready};
use xtask::name::Name;
use xtask::plan::{Machine, Selection};

use crate::world::Folder;

const HEAD: &str = "schema = 1\nrun.deadline = \"18m\"\ndefaults.deadline = \"1m\"\n"; // three lines

fn program(folder: &Path, path: &str, mode: u32) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(&path, "#!/bin/sh\n").expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn check(folder: &Path, suite: &str, only: &[&str]) -> Result<Ready, String> {
    let only = only.iter().map(|only| Name::parse(only).expect("a name")).collect();
    let search = OsString::from(format!(":{}/bin::rel", folder.display()));
    let machine = Machine { cpus: 2, ..Machine::default() };
    let selection = Selection { only, profile: None };
    preflight::check(folder, "ci/suite.toml", &format!("{HEAD}{suite}"), &selection, &machine, &search)
}

#[test]
fn programs_are_found_as_exec_would_find_them() {
    let folder = Folder::new();
    let root = folder.path();
    for path in ["bin/tool", "web/run.sh", "web/rel/near", "own/tool", "top.sh", "here"] {
        program(root, path, 0o755);
    }
    let own = root.join("own");
    let suite = format!(
        "[service.postgres]\nsetup = \"./top.sh a\"\n\
         [task.path]\ncommand = \"tool --flag\"\nservices = [\"postgres\"]\n\
         [task.own]\ncommand = \"tool\"\nenv.PATH = \"{}\"\n\
         [task.dir]\ncommand = \"./run.sh\"\ndir = \"web\"\n\
         [task.up]\ncommand = \"../top.sh\"\ndir = \"web\"\n\
         [task.near]\ncommand = \"near\"\ndir = \"web\"\n",
        own.display()
    );
    let ready = check(root, &suite, &[]).expect("everything is there");
    let found = |task: &str| ready.programs[&Name::parse(task).expect("a name")].clone();
    assert_eq!(found("path"), root.join("bin/tool"));
    assert_eq!(found("own"), root.join("own/tool"), "the task's own PATH");
    assert_eq!(found("dir"), root.join("web/run.sh"));
    assert_eq!(found("up").canonicalize().expect("it is there"), root.join("top.sh"));
    assert_eq!(found("near"), root.join("web/rel/near"), "a relative entry of PATH is meant from the task's folder");
    assert_eq!(ready.setups.values().next(), Some(&root.join("top.sh")));
    let error = check(root, "[task.a]\ncommand = \"here\"\n", &[]).expect_err("an empty entry of PATH is no folder");
    assert_eq!(error, "ci/suite.toml:4: task \"a\": there is no program \"here\" on PATH\n");
}

#[test]
fn everything_that_is_missing_is_reported_at_once() {
    let folder = Folder::new();
    let root = folder.path();
    program(root, "bin/plain", 0o644);
    program(root, "flat.sh", 0o644);
    fs::create_dir_all(root.join("folder/bin")).expect("a folder");
    let suite = "[service.postgres]\nmigrations = \"db/none\"\n\
         [task.a]\ncommand = \"nowhere\"\ndeadline = \"20m\"\nservices = [\"postgres\"]\n\
         [task.b]\ncommand = \"plain\"\n\
         [task.c]\ncommand = \"./flat.sh\"\n\
         [task.d]\ncommand = \"./folder\"\n\
         [task.e]\ncommand = \"sh\"\ndir = \"none\"\n\
         [task.f]\ncommand = \"./gone.sh\"\n";
    let error = check(root, suite, &[]).expect_err("nothing is there");
    let expected = "\
ci/suite.toml:4: service \"postgres\": migrations: there is no folder \"db/none\"
ci/suite.toml:6: task \"a\": there is no program \"nowhere\" on PATH
ci/suite.toml:8: task \"a\": deadline 20m, but the run has 17m50s for tasks (deadline 18m - wrap-up 10s)
ci/suite.toml:10: task \"b\": there is no program \"plain\" on PATH
ci/suite.toml:12: task \"c\": program \"./flat.sh\" cannot be executed: Permission denied
ci/suite.toml:14: task \"d\": program \"./folder\" is not a file
ci/suite.toml:16: task \"e\": dir: there is no folder \"none\"
ci/suite.toml:19: task \"f\": program \"./gone.sh\" cannot be found: No such file or directory (os error 2)
";
    assert_eq!(error, expected);
}

#[test]
fn only_what_is_selected_must_be_there() {
    let folder = Folder::new();
    program(folder.path(), "bin/tool", 0o755);
    let suite = "[service.postgres]\nsetup = \"nowhere\"\n[task.a]\ncommand = \"tool\"\ncpus = 3\n\
                 [task.b]\ncommand = \"nowhere\"\nservices = [\"postgres\"]\n";
    let ready = check(folder.path(), suite, &["a"]).expect("what a needs is there");
    assert_eq!(ready.programs.len(), 1);
    assert_eq!(ready.notes, ["task a asks for 3 cpus and gets all there are: 2"]);
    check(folder.path(), suite, &["b"]).expect_err("what b needs is not");
}

#[test]
fn a_program_that_an_earlier_task_makes_need_not_be_there_yet() {
    let folder = Folder::new();
    program(folder.path(), "bin/cc", 0o755);
    fs::create_dir(folder.path().join("web")).expect("a folder");
    let suite = "[task.build]\ncommand = \"cc\"\noutputs = [\"out/app\"]\n\
         [task.between]\ncommand = \"cc\"\nneeds = [\"build\"]\n\
         [task.smoke]\ncommand = \"../out/app --version\"\ndir = \"web\"\nneeds = [\"between\"]\n";
    let ready = check(folder.path(), suite, &[]).expect("out/app is made by then");
    assert_eq!(ready.programs[&Name::parse("smoke").expect("a name")], folder.path().join("web/../out/app"));
    let error =
        check(folder.path(), &suite.replace("needs = [\"between\"]", ""), &[]).expect_err("it may be made later");
    assert!(error.contains("task \"smoke\": program \"../out/app\" cannot be found"), "{error}");
}
