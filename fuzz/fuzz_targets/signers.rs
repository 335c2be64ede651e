//! Any bytes as a signature, as signers and as revoked keys: nothing panics, and a broken line is never a signer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xtask::receipt::signers::{parse_revoked, parse_signature, parse_signers};

fuzz_target!(|bytes: &[u8]| {
    let _ = (parse_signature(bytes), parse_revoked(bytes));
    let (signers, _) = parse_signers(bytes);
    for signer in signers {
        assert!(!signer.key.is_empty() && !signer.namespaces.is_empty());
        assert!(signer.namespaces.iter().all(|namespace| namespace.starts_with("xtask-")));
    }
});
