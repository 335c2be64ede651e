//! Signatures by ssh-keygen (SSHSIG): the keys, agents, hardware and lists that people have for git already, and no
//! cryptography of our own. Bytes go in by stdin and a signature comes out by stdout, because ssh-keygen keeps an old
//! signature file that is in its way, and says that all is well.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use duct::cmd;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use xshell::Shell;

use crate::name::Caller;
use crate::sys;
use crate::time::{Moment, utc};

// How often somebody who wants to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Signs bytes with a key: the path of a private key, or of a public one whose private part an agent or a device holds.
/// Ends by `deadline`, since a device may wait for a touch, and as soon as `stopped` says so. Errors say what to do; nobody
/// is asked for a passphrase.
pub fn sign(
    key: &Path,
    namespace: &str,
    bytes: &[u8],
    deadline: Moment,
    stopped: &dyn Fn() -> bool,
) -> anyhow::Result<Vec<u8>> {
    let call = cmd!("ssh-keygen", "-P", "", "-Y", "sign", "-f", key, "-n", namespace);
    let call = call.env("SSH_ASKPASS_REQUIRE", "never").env("LC_ALL", "C").stdin_bytes(bytes).stdout_capture();
    let call = call.stderr_capture().unchecked().before_spawn(|command| {
        std::os::unix::process::CommandExt::process_group(command, 0);
        // A device that still blinks when nobody wants its signature any more would have somebody touch it.
        sys::quit_with_parent(command);
        Ok(())
    });
    let handle = call.start().context("ssh-keygen cannot be run: is openssh-client installed?")?;
    let out = loop {
        // Only a request to stop waits for the next look: the end of ssh-keygen is seen at once.
        if let Some(out) = handle.wait_timeout(deadline.since(sys::now()).min(LOOK))? {
            break out;
        }
        let why = match stopped() {
            true => "did not sign: cancelled",
            false if sys::now() < deadline => continue,
            false => "did not sign in time: does its agent or device wait for somebody?",
        };
        for pid in handle.pids().into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        bail!("{} {why}", key.display());
    };
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).replace("Signing data on standard input\n", "");
        let advice = if said.contains("incorrect passphrase") {
            ": it is encrypted, and nobody is asked for a passphrase here; load it into an agent (ssh-add), whose public key lies \
             beside it as .pub"
        } else {
            ""
        };
        bail!("{} cannot sign: {}{advice}", key.display(), said.trim());
    }
    Ok(out.stdout.clone())
}

/// What a signature is checked against.
#[derive(Debug, Clone, Copy)]
pub struct Trust<'a> {
    /// The bytes of allowed_signers.
    pub signers: &'a [u8],
    /// The bytes of revoked_keys.
    pub revoked: &'a [u8],
    /// The time at which the key must be valid, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Whether `signature` is one of `role` over exactly these bytes, by the public command that anybody can run. The inner error is
/// what ssh-keygen says, which is the same for most reasons. Errors if it cannot be asked.
pub fn verify(
    bytes: &[u8],
    signature: &[u8],
    role: Caller,
    namespace: &str,
    trust: Trust<'_>,
) -> anyhow::Result<Result<(), String>> {
    let folder = Private::new().context("a private folder for ssh-keygen cannot be made")?;
    let file = |name: &str, bytes: &[u8]| -> io::Result<PathBuf> {
        let path = folder.0.join(name);
        fs::write(&path, bytes)?;
        Ok(path)
    };
    let (signers, revoked) = (file("signers", trust.signers)?, file("revoked", trust.revoked)?);
    let signature = file("signature", signature)?;
    // Without a zone, which ssh-keygen before 9.1 does not know: hence TZ.
    let time = utc(trust.at_ms).chars().filter(char::is_ascii_digit).collect::<String>();
    let (role, time) = (role.to_string(), format!("verify-time={time}"));
    let sh = Shell::new()?;
    let call = xshell::cmd!(
        sh,
        "ssh-keygen -Y verify -f {signers} -r {revoked} -I {role} -n {namespace} -s {signature} -O {time}"
    );
    let call = call.env("TZ", "UTC").env("LC_ALL", "C").stdin(bytes).quiet().ignore_status();
    let out = call.output().context("ssh-keygen cannot be run: is openssh-client installed?")?;
    let folder = format!("{}/", folder.0.display());
    let said = [&out.stderr, &out.stdout].map(|said| String::from_utf8_lossy(said).trim().replace(&folder, ""));
    let said =
        said.into_iter().find(|said| !said.is_empty()).unwrap_or_else(|| "ssh-keygen does not say why".to_owned());
    Ok(if out.status.success() { Ok(()) } else { Err(said) })
}

// A folder that nobody else can look into, gone at the end.
struct Private(PathBuf);

impl Private {
    fn new() -> io::Result<Self> {
        let name = format!("xtask-{}-{:08x}", std::process::id(), sys::random()?);
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
