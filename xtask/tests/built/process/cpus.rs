//! CPUs: which there are, who gets them, and that a task sees no others.

use std::collections::HashMap;

use xtask::process::affinity::{Cpus, quota_of};

use crate::process::{Ran, misbehave, pool, suite, task, token};
use crate::world::{Folder, Running, World, skipped};

#[test]
fn a_task_sees_the_cpus_that_it_was_given() {
    let token = token();
    let env = "[task.env]\ncommand = ['sh', '-c', 'echo $XTASK_CPUS {cpus}']\ndeadline = \"10s\"\n";
    let nproc = "[task.nproc]\ncommand = 'nproc'\ndeadline = \"10s\"\n";
    let tasks = [
        task("one", "cpus", &token, "deadline = \"10s\""),
        task("all", "cpus", &token, "deadline = \"10s\"\ncpus = \"all\""),
        env.into(),
        nproc.into(),
    ];
    let ran = Ran::new(&suite(&tasks.concat()), &token, 0);
    assert_eq!(ran.log("one"), "1\n");
    assert_eq!(ran.log("all"), format!("{}\n", pool()));
    assert_eq!(ran.log("env"), "1 1\n");
    assert_eq!(ran.log("nproc"), "1\n");
}

#[test]
fn the_pool_is_what_the_process_may_use() {
    let token = token();
    let world = World::new(&suite(&task("all", "cpus", &token, "cpus = \"all\"")));
    let mut command = world.command(&[]);
    let verify = command.args(["verify"]);
    let first = Cpus::of_this_process().unwrap().allowed()[0].to_string();
    let mut narrow = std::process::Command::new("taskset");
    narrow.args(["-c", &first]).arg(verify.get_program()).arg("verify").current_dir(&world.repo);
    narrow.envs(verify.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = Running::start(narrow, &world.folder).wait().expect(0);
    let ran = Ran::of(world, done, &token);
    assert_eq!(ran.receipt["predicate"]["limits"]["slots"], 1);
    assert_eq!(ran.log("all"), "1\n");
}

#[test]
fn two_tasks_side_by_side_have_no_cpu_in_common() {
    if pool() < 2 {
        skipped("two_tasks_side_by_side_have_no_cpu_in_common", "there is only one CPU");
        return;
    }
    let token = token();
    let world = World::new(&suite("[task.none]\ncommand = 'true'\ndeadline = \"1s\""));
    let path = |name: &str| world.folder.path().join(name).display().to_string();
    let (a, b) = (path("a"), path("b"));
    let tasks = [
        task("a", &format!("touch {a} until {b}"), &token, ""),
        task("b", &format!("touch {b} until {a}"), &token, ""),
    ];
    world.write("ci/suite.toml", &suite(&tasks.concat()));
    world.commit("two");
    let done = world.run(&["verify"]).expect(0);
    let ran = Ran::of(world, done, &token);
    assert_ne!(ran.task("a")["slots"], ran.task("b")["slots"]);
}

#[test]
fn where_pinning_is_refused_the_run_goes_on_and_says_so() {
    let token = token();
    let folder = Folder::new();
    let go = folder.path().join("go");
    // Its deadline comes before anything else would wake the run: the start of such a task is known at once.
    let orders = format!("until {} cpus", go.display());
    let world = World::new(&suite(&task("one", &orders, &token, "deadline = \"20s\"")));
    let direct = world.command(&["verify"]);
    let mut command = std::process::Command::new(misbehave());
    command.args(["unpinnable", "exec"]).arg(direct.get_program()).arg("verify").current_dir(&world.repo);
    command.envs(direct.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(command, &world.folder);
    running.wait_for("Start ");
    std::fs::write(go, "").unwrap();
    let done = running.wait().expect(0).says("tasks are not pinned to CPUs");
    let ran = Ran::of(world, done, &token);
    assert_eq!(ran.log("one"), format!("{}\n", pool()));
}

#[track_caller]
fn quota(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<f64> {
    let files: HashMap<&str, &str> = files.iter().copied().collect();
    quota_of(groups, mounts, |path| files.get(path).map(|text| (*text).to_owned()))
}

#[test]
fn the_least_quota_on_the_way_up_counts() {
    let mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    let own = ("/sys/fs/cgroup/ci.slice/job/cpu.max", "400000 100000\n");
    let above = ("/sys/fs/cgroup/ci.slice/cpu.max", "150000 100000\n");
    let none = ("/sys/fs/cgroup/ci.slice/cpu.max", "max 100000\n");
    assert_eq!(quota("0::/ci.slice/job\n", mount, &[own, above]), Some(1.5));
    assert_eq!(quota("0::/ci.slice/job\n", mount, &[own, none]), Some(4.0));
    assert_eq!(quota("0::/ci.slice/job\n", mount, &[none]), None);
    assert_eq!(quota("0::/\n", mount, &[("/sys/fs/cgroup/cpu.max", "50000 100000\n")]), Some(0.5));
    assert_eq!(quota("", "", &[]), None);
    assert_eq!(quota("0::/\n", mount, &[("/sys/fs/cgroup/cpu.max", "a lot\n")]), None);
}

#[test]
fn a_container_sees_its_quota_at_the_mount() {
    // Version 2 with a namespace of its own, and version 1, whose paths are the host's.
    let mount = "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
    assert_eq!(quota("0::/../../other\n", mount, &[("/sys/fs/cgroup/cpu.max", "200000 100000")]), Some(2.0));
    let mount = "41 30 0:30 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";
    let files = [
        ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n"),
        ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
    ];
    assert_eq!(quota("4:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n", mount, &files), Some(3.0));
    let unlimited = [
        ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
        ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
    ];
    assert_eq!(quota("4:cpu,cpuacct:/docker/abc\n", mount, &unlimited), None);
}
