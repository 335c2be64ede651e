//! A signature, `allowed_signers`, `revoked_keys`.

use xtask::receipt::signers::{parse_revoked, parse_signature, parse_signers};

/// A broken line is never a signer.
pub fn holds(bytes: &[u8]) {
    let _ = (parse_signature(bytes), parse_revoked(bytes));
    let (signers, _) = parse_signers(bytes);
    for signer in signers {
        assert!(!signer.key.is_empty() && !signer.namespaces.is_empty());
        assert!(signer.namespaces.iter().all(|namespace| namespace.starts_with("xtask-")));
    }
}
