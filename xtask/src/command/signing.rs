//! A signing key that is known to work for a role, before anybody queues.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;

use super::gate::{self, REVOKED, SIGNERS, Trusted};
use super::verify::Written;
use crate::name::{Caller, RunId};
use crate::receipt::rules::{Refusal, Seal, judge_seal};
use crate::receipt::signers::{RECEIPT_NAMESPACE, RELEASE_NAMESPACE};
use crate::seal::{self, Patience};
use crate::time::Moment;
use crate::{archive, sys};

// Long enough to find a hardware key and touch it.
const TOUCH: Duration = Duration::from_secs(30);

/// A key and the role that it signs for.
pub struct Signing {
    /// When the key ends to be valid, in milliseconds since 1970, if it does.
    pub valid_before: Option<u64>,
    key: PathBuf,
    trusted: Trusted,
}

impl Signing {
    /// Tries the key: it must sign, and the files beside the suite in the working tree must let it sign as `role`. Errors with
    /// what to do. Nothing is written.
    pub fn try_key(root: &Path, suite: &Path, key: &Path, role: Caller) -> anyhow::Result<Self> {
        let beside = |name: &str| root.join(suite.with_file_name(name));
        let trusted =
            Trusted { signers: gate::file(root, &beside(SIGNERS)), revoked: vec![gate::file(root, &beside(REVOKED))] };
        let mut signing = Self { key: key.to_owned(), trusted, valid_before: None };
        let probe = b"can this key sign?\n";
        let (seal, reasons) =
            signing.judged(probe, &signing.sign(probe, RECEIPT_NAMESPACE, None, &|| false)?, &|| false)?;
        let role_of_key = seal.role();
        if !reasons.is_empty() {
            let why: Vec<&str> = reasons.iter().map(|reason| reason.text.as_str()).collect();
            bail!("nobody would accept what {} signs: {}", key.display(), why.join("; "));
        }
        if let Some(other) = role_of_key.filter(|&other| other != role) {
            let signers = &signing.trusted.signers.name;
            bail!("{} signs as {other} (see {signers}), and the caller is {role}", key.display());
        }
        if role == Caller::Release && !seal.may_sign_for(RELEASE_NAMESPACE) {
            let signers = &signing.trusted.signers.name;
            bail!(
                "{} may not sign releases: its line in {signers} lacks the namespace {RELEASE_NAMESPACE:?}",
                key.display()
            );
        }
        signing.valid_before = seal.valid_before();
        Ok(signing)
    }

    /// Signs by `deadline`; without one, as long as it takes to touch a hardware key. Ends early when `stopped` says
    /// so. Errors say why there is no signature.
    pub fn sign(
        &self,
        bytes: &[u8],
        namespace: &str,
        deadline: Option<Moment>,
        stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<Vec<u8>> {
        let deadline = deadline.unwrap_or_else(|| sys::now() + TOUCH);
        seal::sign(&self.key, namespace, bytes, Patience { deadline, stopped })
    }

    /// Signs the receipt that a run has written below `root` and writes the signature beside it, unless the gate would not
    /// accept it. Gives who signed. Errors say why there is no signature; none is written then.
    pub fn sign_receipt(
        &self,
        root: &Path,
        run: &RunId,
        written: &Written,
        stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<String> {
        let (bytes, path) = (written.read()?, written.path.display());
        let signature = self.sign(&bytes, RECEIPT_NAMESPACE, None, stopped)?;
        let (seal, reasons) = self.judged(&bytes, &signature, stopped)?;
        if let Some(reason) = reasons.first() {
            bail!("{path} is not signed: {}", reason.text);
        }
        if stopped() {
            bail!("{path} is not signed: cancelled");
        }
        archive::write_signature(root, run, &signature)?;
        Ok(seal.signed_by().unwrap_or_default())
    }

    // By the public path that anybody takes.
    fn judged(
        &self,
        bytes: &[u8],
        signature: &[u8],
        stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<(Seal, Vec<Refusal>)> {
        let (now_ms, patience) = (sys::clocks().wall_ms, Patience { deadline: sys::now() + gate::ANSWER, stopped });
        let (bytes, signature) = (Ok(bytes.to_vec()), Ok(signature.to_vec()));
        let seal = gate::judge_signature(&bytes, &signature, &self.trusted, now_ms, patience)?;
        let reasons = judge_seal(&seal);
        Ok((seal, reasons))
    }
}
