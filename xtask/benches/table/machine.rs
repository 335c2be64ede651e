//! What the head of the table says of the machine and of the peers.

use std::fs;

use crate::peers::{PEERS, is_installed};

/// Processors, kernel, memory and how busy the machine is just now.
pub fn described() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = value("/proc/cpuinfo", "model name");
    let memory: f64 = value("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cpus} CPUs ({model}), {:.0} GiB, Linux {}", memory / f64::from(1 << 20), kernel.trim())
}

/// Processes that ran or wanted to, in the last minute.
pub fn load() -> String {
    read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned()
}

/// Peers that are installed, and those that are not.
pub fn peers() -> String {
    let (found, missing): (Vec<&str>, Vec<&str>) = PEERS.into_iter().partition(|peer| is_installed(peer));
    let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!("found {}; not found {}", list(&found), list(&missing))
}

fn value(file: &str, key: &str) -> String {
    let text = read(file);
    let line = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
    line.map_or_else(|| "unknown".to_owned(), |(_, value)| value.trim().to_owned())
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
