//! Signatures by ssh-keygen (SSHSIG): the keys, agents, hardware and lists that people have for git already, and no
//! cryptography of our own. Bytes go in by stdin and a signature comes out by stdout, because ssh-keygen keeps an old
//! signature file that is in its way, and says that all is well.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, bail};
use duct::{Expression, cmd};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::name::Caller;
use crate::sys;
use crate::time::{Moment, utc};

// How often somebody who wants to stop is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// How long ssh-keygen may take, and who may end it before that.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// It has ended by then.
    pub deadline: Moment,
    /// Whether nobody wants it any more.
    pub stopped: &'a dyn Fn() -> bool,
}

// What came of a call.
enum Ended {
    ByItself(Output),
    Stopped,
    Late,
}

/// Signs bytes with a key: the path of a private key, or of a public one whose private part an agent or a device holds.
/// Ends in time, since a device may wait for a touch. Errors say what to do; nobody is asked for a passphrase.
pub fn sign(key: &Path, namespace: &str, bytes: &[u8], patience: Patience<'_>) -> anyhow::Result<Vec<u8>> {
    let call = cmd!("ssh-keygen", "-P", "", "-Y", "sign", "-f", key, "-n", namespace);
    let out = match run(&call.env("SSH_ASKPASS_REQUIRE", "never"), bytes, patience)? {
        Ended::ByItself(out) => out,
        Ended::Stopped => bail!("{} did not sign: cancelled", key.display()),
        Ended::Late => {
            bail!("{} did not sign in time: does its agent or device wait for somebody?", key.display())
        }
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
    Ok(out.stdout)
}

// Runs ssh-keygen on these bytes. It ends with this process, and has a group of its own: whatever it starts ends with it.
fn run(call: &Expression, bytes: &[u8], Patience { deadline, stopped }: Patience<'_>) -> anyhow::Result<Ended> {
    let call = call.env("LC_ALL", "C").stdin_bytes(bytes).stdout_capture().stderr_capture().unchecked();
    let call = call.before_spawn(|command| {
        std::os::unix::process::CommandExt::process_group(command, 0);
        // A device that still blinks when nobody wants its signature any more would have somebody touch it.
        sys::end_with_parent(command, Signal::SIGKILL);
        Ok(())
    });
    let handle = call.start().context("ssh-keygen cannot be run: is openssh-client installed?")?;
    let ended = loop {
        // Only a request to stop waits for the next look: the end of ssh-keygen is seen at once.
        if let Some(out) = handle.wait_timeout(deadline.since(sys::now()).min(LOOK))? {
            return Ok(Ended::ByItself(out.clone()));
        }
        match stopped() {
            true => break Ended::Stopped,
            false if sys::now() < deadline => {}
            false => break Ended::Late,
        }
    };
    for pid in handle.pids().into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    Ok(ended)
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
    /// A folder that nobody else writes to, for these as files.
    pub folder: &'a Path,
}

/// Whether `signature` is one of `role` over exactly these bytes, by the public command that anybody can run. The inner error is
/// what ssh-keygen says, which is the same for most reasons. Errors if it cannot be asked, or does not answer in time.
pub fn verify(
    bytes: &[u8],
    signature: &[u8],
    role: Caller,
    namespace: &str,
    trust: Trust<'_>,
    patience: Patience<'_>,
) -> anyhow::Result<Result<(), String>> {
    let file = |name: &str, bytes: &[u8]| {
        let path = trust.folder.join(name);
        fs::write(&path, bytes).with_context(|| format!("{} cannot be written", path.display()))?;
        anyhow::Ok(path)
    };
    let (signers, revoked) = (file("signers", trust.signers)?, file("revoked", trust.revoked)?);
    let signature = file("signature", signature)?;
    // Without a zone, which ssh-keygen before 9.1 does not know: hence TZ.
    let time = utc(trust.at_ms).chars().filter(char::is_ascii_digit).collect::<String>();
    let (role, time) = (role.to_string(), format!("verify-time={time}"));
    let call = cmd!(
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        signers,
        "-r",
        revoked,
        "-I",
        role,
        "-n",
        namespace,
        "-s",
        signature,
        "-O",
        time
    );
    let out = match run(&call.env("TZ", "UTC"), bytes, patience)? {
        Ended::ByItself(out) => out,
        Ended::Stopped => bail!("ssh-keygen did not check the signature: cancelled"),
        Ended::Late => bail!("ssh-keygen did not check the signature in time"),
    };
    let folder = format!("{}/", trust.folder.display());
    let said = [&out.stderr, &out.stdout].map(|said| String::from_utf8_lossy(said).trim().replace(&folder, ""));
    let said =
        said.into_iter().find(|said| !said.is_empty()).unwrap_or_else(|| "ssh-keygen does not say why".to_owned());
    Ok(if out.status.success() { Ok(()) } else { Err(said) })
}
