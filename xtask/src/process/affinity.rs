//! CPUs: which ones this process may use, in the order in which tasks should get them, and pinning to some of them.

use std::fs;

/// The CPUs that this process may use.
#[derive(Debug, Clone, PartialEq)]
pub struct Cpus {
    allowed: Vec<usize>,
    quota: Option<f64>,
}

impl Cpus {
    /// What the kernel allows to this process, whole cores first: the hardware threads of one core stand side by side, so
    /// that two tasks share a core only where a boundary falls into one. None where the system does not say.
    pub fn of_this_process() -> Option<Self> {
        let mut allowed = of(0)?;
        allowed.sort_by_key(|&cpu| (siblings(cpu), cpu));
        Some(Self { allowed, quota: quota() })
    }

    /// Their numbers, whole cores first. Never empty.
    pub fn allowed(&self) -> &[usize] {
        &self.allowed
    }

    /// The pool for tasks: no more CPUs than the control group's quota pays for, rounded down, at least one.
    pub fn pool(&self) -> Vec<usize> {
        let paid = self.quota.map_or(usize::MAX, |quota| (quota as usize).max(1));
        self.allowed.iter().copied().take(paid).collect()
    }
}

/// The CPUs that a process is pinned to; 0 is the calling thread. None if it is gone, or the system does not say.
#[cfg(target_os = "linux")]
pub fn of(pid: i32) -> Option<Vec<usize>> {
    use nix::sched::{CpuSet, sched_getaffinity};
    let set = sched_getaffinity(nix::unistd::Pid::from_raw(pid)).ok()?;
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).collect();
    (!cpus.is_empty()).then_some(cpus)
}

/// Pins a thread, and what it starts from now on; 0 is the calling one. Errors if the system refuses.
#[cfg(target_os = "linux")]
pub fn pin(thread: i32, cpus: &[usize]) -> Result<(), String> {
    use nix::sched::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    let result = cpus.iter().try_for_each(|&cpu| set.set(cpu));
    result
        .and_then(|()| sched_setaffinity(nix::unistd::Pid::from_raw(thread), &set))
        .map_err(|e| format!("this system refuses to pin processes to CPUs: {e}"))
}

/// The id of the calling thread.
#[cfg(target_os = "linux")]
pub fn this_thread() -> i32 {
    nix::unistd::gettid().as_raw()
}

/// Other systems do not say.
#[cfg(not(target_os = "linux"))]
pub fn of(_pid: i32) -> Option<Vec<usize>> {
    None
}

/// Other systems do not pin.
#[cfg(not(target_os = "linux"))]
pub fn pin(_thread: i32, _cpus: &[usize]) -> Result<(), String> {
    Err("this system cannot pin processes to CPUs".to_owned())
}

/// Other systems do not pin.
#[cfg(not(target_os = "linux"))]
pub fn this_thread() -> i32 {
    0
}

// The lowest-numbered hardware thread of the CPU's core: CPUs of one core have the same.
fn siblings(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split(|c: char| !c.is_ascii_digit()).next().and_then(|first| first.parse().ok()).unwrap_or(cpu)
}

// CPUs that the control groups of this process pay for: the least of its own and all above it.
fn quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    quota_of(&groups, &mounts, |path| fs::read_to_string(path).ok())
}

/// The quota that these say: the text of /proc/self/cgroup, that of /proc/self/mountinfo, and how to read a file.
///
/// Version 2: `cpu.max` is `QUOTA PERIOD` or `max PERIOD`. Version 1: `cpu.cfs_quota_us` (-1 for none) over
/// `cpu.cfs_period_us`. The group's path counts from the root of the mount, and inside a container it may point outside
/// of what is mounted: then the mount itself is all there is to see.
pub fn quota_of(groups: &str, mounts: &str, read: impl Fn(&str) -> Option<String>) -> Option<f64> {
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|c| c == "cpu") {
            continue;
        }
        let Some((root, mount)) = mount_of(mounts, unified) else { continue };
        let below = path.strip_prefix(root.as_str()).filter(|_| root != "/").unwrap_or(path);
        let mut below = below.trim_end_matches('/');
        loop {
            let folder = format!("{mount}{below}");
            let cpus = if unified { version_2(&folder, &read) } else { version_1(&folder, &read) };
            least = cpus.into_iter().chain(least).reduce(f64::min);
            let Some((above, _)) = below.rsplit_once('/') else { break };
            below = above;
        }
    }
    least
}

// Root and mount point of the hierarchy that rules CPUs.
fn mount_of(mounts: &str, unified: bool) -> Option<(String, String)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let fits = match *right.first()? {
            "cgroup2" => unified,
            "cgroup" => !unified && right.get(2)?.split(',').any(|option| option == "cpu"),
            _ => false,
        };
        fits.then_some((left.get(3)?.to_string(), left.get(4)?.to_string()))
    })
}

fn version_2(folder: &str, read: &impl Fn(&str) -> Option<String>) -> Option<f64> {
    let text = read(&format!("{folder}/cpu.max"))?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

fn version_1(folder: &str, read: &impl Fn(&str) -> Option<String>) -> Option<f64> {
    ratio(read(&format!("{folder}/cpu.cfs_quota_us"))?.trim(), read(&format!("{folder}/cpu.cfs_period_us"))?.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}
