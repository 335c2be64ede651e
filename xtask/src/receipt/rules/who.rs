//! Who says it: the form of the receipt and its signature, and whether the signer may say it.

use super::{Gate, Refusals};
use crate::name::Caller;
use crate::receipt::signers::{
    Fault, RECEIPT_NAMESPACE, Signature, Signer, parse_revoked, parse_signature, parse_signers,
};
use crate::receipt::statement::{ParseError, Receipt};
use crate::time::utc;

/// A file of the gate: where it comes from, as people call it, and its bytes or why there are none.
#[derive(Debug, Clone)]
pub struct Source {
    /// `ci/allowed_signers at 77ad012`.
    pub name: String,
    /// Its bytes.
    pub bytes: Result<Vec<u8>, String>,
}

/// A signature and what it is judged by.
#[derive(Debug, Clone)]
pub struct Seal {
    signature: Result<Signature, String>,
    missing: Option<String>,
    signers: (String, Vec<Signer>, Vec<Fault>),
    revoked: Vec<(String, Vec<Vec<u8>>, Vec<Fault>)>,
    at_ms: u64,
    confirmed: Option<Result<(), String>>,
}

impl Seal {
    /// Reads signature, signers and lists of revoked keys. The key must be valid at `at_ms`, milliseconds since 1970.
    pub fn new(signature: &Result<Vec<u8>, String>, signers: &Source, revoked: &[Source], at_ms: u64) -> Self {
        let whole = |why: &String| vec![Fault { line: 0, what: why.clone() }];
        let parsed = match &signers.bytes {
            Ok(bytes) => parse_signers(bytes),
            Err(why) => (Vec::new(), whole(why)),
        };
        let lists = revoked.iter().map(|source| {
            let (keys, faults) = match &source.bytes {
                Ok(bytes) => parse_revoked(bytes),
                Err(why) => (Vec::new(), whole(why)),
            };
            (source.name.clone(), keys, faults)
        });
        Self {
            missing: signature.as_ref().err().cloned(),
            signature: signature.as_ref().map_or_else(|why| Err(why.clone()), |bytes| parse_signature(bytes)),
            signers: (signers.name.clone(), parsed.0, parsed.1),
            revoked: lists.collect(),
            at_ms,
            confirmed: None,
        }
    }

    /// The role whose key is said to have signed, if ssh-keygen is worth asking.
    pub fn role(&self) -> Option<Caller> {
        self.signer().map(|signer| signer.role)
    }

    /// Takes in what ssh-keygen says.
    pub fn confirm(&mut self, verdict: Result<(), String>) {
        self.confirmed = Some(verdict);
    }

    /// Whether ssh-keygen has confirmed the signature.
    pub fn confirmed(&self) -> bool {
        self.confirmed == Some(Ok(()))
    }

    /// For people: the role and the line that say who signed.
    pub fn signed_by(&self) -> Option<String> {
        self.signer().map(|signer| format!("{} (line {}: {})", signer.role, signer.line, signer.name))
    }

    /// Whether the line of the signer names this namespace.
    pub fn may_sign_for(&self, namespace: &str) -> bool {
        self.signer().is_some_and(|signer| signer.namespaces.iter().any(|known| known == namespace))
    }

    /// When the key ends to be valid, in milliseconds since 1970, if it does.
    pub fn valid_before(&self) -> Option<u64> {
        self.signer()?.valid_before
    }

    fn signer(&self) -> Option<&Signer> {
        let key = &self.signature.as_ref().ok()?.key;
        self.signers.1.iter().find(|signer| signer.key == *key)
    }

    fn revoking(&self) -> Option<&str> {
        let key = &self.signature.as_ref().ok()?.key;
        self.revoked.iter().find(|(_, keys, _)| keys.contains(key)).map(|(name, ..)| name.as_str())
    }

    // Why the line of the signer does not hold at that time.
    fn invalid(&self) -> Option<String> {
        let signer = self.signer()?;
        let who = format!("the key of {} (line {}: {})", signer.role, signer.line, signer.name);
        if let Some(after) = signer.valid_after.filter(|&after| self.at_ms < after) {
            return Some(format!("{who} is not valid before {}", utc(after)));
        }
        let before = signer.valid_before.filter(|&before| self.at_ms >= before)?;
        Some(format!("{who} expired at {}", utc(before)))
    }

    fn wrong_namespace(&self) -> Option<String> {
        let signature = self.signature.as_ref().ok()?;
        if signature.namespace != RECEIPT_NAMESPACE {
            return Some(format!("signed for {:?}, not for {RECEIPT_NAMESPACE:?}", signature.namespace));
        }
        let signer = self.signer().filter(|_| !self.may_sign_for(RECEIPT_NAMESPACE))?;
        Some(format!("the key of {} (line {}) may not sign for {RECEIPT_NAMESPACE:?}", signer.role, signer.line))
    }
}

pub(super) fn receipt_file(error: &ParseError, refusals: &mut Refusals) {
    if let ParseError::Unreadable(why) = error {
        refusals.add(why.as_str());
    }
}

pub(super) fn receipt_form(error: &ParseError, refusals: &mut Refusals) {
    if !matches!(error, ParseError::Unreadable(_)) {
        refusals.add(error.to_string());
    }
}

pub(super) fn signature_missing(seal: &Seal, refusals: &mut Refusals) {
    refusals.each(seal.missing.iter().map(|why| format!("there is no signature: {why}")));
}

pub(super) fn signature_form(seal: &Seal, refusals: &mut Refusals) {
    if let Seal { signature: Err(why), missing: None, .. } = seal {
        refusals.add(format!("the signature cannot be read: {why}"));
    }
}

// Said only where no other rule explains it: ssh-keygen gives one message for everything.
pub(super) fn signature_wrong(seal: &Seal, refusals: &mut Refusals) {
    let broken = seal.revoked.iter().any(|(_, _, faults)| !faults.is_empty());
    let of_signer = seal.invalid().is_some() || seal.wrong_namespace().is_some() || seal.revoking().is_some();
    let explained = broken || of_signer;
    if let (Some(Err(said)), false) = (&seal.confirmed, explained) {
        refusals.add(format!("the signature is not one of these bytes by that key (ssh-keygen: {said})"));
    }
}

fn faults(name: &str, faults: &[Fault], refusals: &mut Refusals) {
    let place = |fault: &Fault| if fault.line == 0 { String::new() } else { format!(":{}", fault.line) };
    refusals.each(faults.iter().map(|fault| format!("{name}{}: {}", place(fault), fault.what)));
}

pub(super) fn signers_file(seal: &Seal, refusals: &mut Refusals) {
    faults(&seal.signers.0, &seal.signers.2, refusals);
}

pub(super) fn revoked_file(seal: &Seal, refusals: &mut Refusals) {
    seal.revoked.iter().for_each(|(name, _, found)| faults(name, found, refusals));
}

pub(super) fn signer_unknown(seal: &Seal, refusals: &mut Refusals) {
    if seal.signature.is_ok() && seal.signer().is_none() {
        refusals.add(format!("the key that signed is in no line of {}", seal.signers.0));
    }
}

pub(super) fn signer_namespace(seal: &Seal, refusals: &mut Refusals) {
    refusals.each(seal.wrong_namespace());
}

pub(super) fn signer_not_valid(seal: &Seal, refusals: &mut Refusals) {
    refusals.each(seal.invalid());
}

pub(super) fn signer_revoked(seal: &Seal, refusals: &mut Refusals) {
    refusals.each(seal.revoking().map(|name| format!("the key that signed is revoked in {name}")));
}

pub(super) fn signer_role(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    if let Some(role) = gate.seal.as_ref().and_then(Seal::role) {
        let caller = receipt.predicate.caller;
        refusals.same(role.to_string(), caller.to_string(), || {
            format!("signed by a key of {role}, but the caller of the run is {caller}")
        });
    }
}

pub(super) fn caller(receipt: &Receipt, gate: &Gate, refusals: &mut Refusals) {
    if let Some(want) = gate.caller {
        let got = receipt.predicate.caller;
        refusals.same(got.to_string(), want.to_string(), || format!("the run of a {got} caller, not of {want}"));
    }
}
