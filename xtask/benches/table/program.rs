//! Which program is measured: the one that `cargo xtask` builds, whatever cargo built this bench as.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::world::{PROGRAM, program};

/// The profile of the alias `cargo xtask`.
pub const PROFILE: &str = "xtask";

// Beside this very build.
const BUILT: &str = env!("CARGO_BIN_EXE_xtask");

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_owned()
}

/// The target folder that this was built in.
pub fn target() -> PathBuf {
    Path::new(BUILT).ancestors().nth(2).expect("the target folder").to_owned()
}

/// Cargo in that folder.
pub fn cargo(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(folder);
    command
}

fn profile() -> &'static str {
    let folder = Path::new(BUILT).parent().and_then(Path::file_name).and_then(|name| name.to_str());
    match folder.expect("a folder of the profile") {
        "debug" => "dev",
        name => name,
    }
}

/// Whether this was built as the alias builds the program.
pub fn is_the_alias() -> bool {
    profile() == PROFILE
}

/// Where this was not built by the alias's profile: builds it once more, program and bench, and becomes that. Parts of the
/// library that are measured in this process are then what runs use, too. Otherwise returns; errors in words.
pub fn become_the_alias(words: &[String]) -> Result<(), String> {
    if is_the_alias() {
        return Ok(());
    }
    let mut build = cargo(&workspace());
    build.args(["build", "--locked", "--package", "xtask", "--profile", PROFILE, "--bench", "table"]);
    build.args(["--message-format", "json-render-diagnostics", "--target-dir"]).arg(target());
    let output = build.stderr(Stdio::inherit()).output().map_err(|e| format!("cargo does not run: {e}"))?;
    if !output.status.success() {
        return Err(format!("the program cannot be built by profile {PROFILE}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let bench = |message: serde_json::Value| {
        let is_it = message["target"]["name"] == "table" && message["target"]["kind"][0] == "bench";
        if is_it { message["executable"].as_str().map(PathBuf::from) } else { None }
    };
    let bench = messages.filter_map(bench).next().ok_or("cargo does not say where it built the bench")?;
    Err(format!("{}: {}", bench.display(), Command::new(&bench).args(words).exec()))
}

/// Takes this program in place of the one that was built. Errors where there is none.
pub fn take(path: &Path) -> Result<(), String> {
    let path = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    PROGRAM.set(path).map_err(|path| format!("{} comes too late", path.display()))
}

/// What is measured, for the head of the table.
pub fn described() -> String {
    let size = std::fs::metadata(program()).map_or(0, |data| data.len());
    let version = Command::new(program()).arg("--version").output().map(|out| out.stdout).unwrap_or_default();
    let version = String::from_utf8_lossy(&version);
    let how = match (program() == Path::new(BUILT), profile()) {
        (false, profile) => format!("{}; the library in this bench by profile {profile}", program().display()),
        (true, PROFILE) => format!("built as `cargo xtask` builds it (profile {PROFILE})"),
        (true, profile) => format!("built by profile {profile}, not as `cargo xtask` builds it"),
    };
    let version = version.lines().next().unwrap_or("no version");
    format!("{version}, {:.1} MiB, commit {}, {how}", size as f64 / f64::from(1 << 20), commit())
}

fn commit() -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12"]).current_dir(workspace());
    let out = git.output().ok().filter(|out| out.status.success());
    out.map_or("unknown".to_owned(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}
