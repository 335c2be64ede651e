//! The files that say whose signature counts, and signatures as far as they can be read without trusting them.

use xtask::name::Caller;
use xtask::receipt::rules::{Seal, judge_seal};
use xtask::receipt::signers::{parse_revoked, parse_signature, parse_signers};
use xtask::time::utc;

use crate::receipt_rules::{SIGNATURE, SIGNERS, local_seal, trust};

/// A moment in 2026, in milliseconds since 1970.
const NOW_MS: u64 = 1_796_047_330_000;

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |bits: u32| char::from(DIGITS[bits as usize & 63]);
    let block = |three: &[u8]| {
        let bits = three.iter().chain([&0, &0]).take(3).fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte));
        let all = [18, 12, 6, 0].map(|shift| digit(bits >> shift));
        all.into_iter().take(three.len() + 1).chain("==".chars().take(3 - three.len())).collect::<String>()
    };
    bytes.chunks(3).map(block).collect()
}

/// A string in SSH's wire format.
fn field(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

/// The public key in `SIGNERS`, as in its .pub file.
fn public_key() -> &'static str {
    std::str::from_utf8(SIGNERS).unwrap().trim_end().splitn(3, ' ').nth(2).unwrap()
}

/// What is wrong with an allowed_signers file, a line each.
fn faults(text: &str) -> Vec<String> {
    parse_signers(text.as_bytes()).1.into_iter().map(|fault| format!("{}: {}", fault.line, fault.what)).collect()
}

#[test]
fn lines_of_signers_that_contradict_themselves_are_faults() {
    let key = std::str::from_utf8(SIGNERS).unwrap().split_once(' ').unwrap().1.split_once(' ').unwrap().1;
    let fault = |options: &str| {
        let (_, faults) = parse_signers(format!("release {options} {key}").as_bytes());
        faults.first().map(|fault| fault.what.clone()).unwrap_or_default()
    };
    let namespaces = "namespaces=\"xtask-receipt-v1\"";
    assert_eq!(fault(namespaces), "");
    assert_eq!(fault(&format!("{namespaces},{namespaces}")), "\"namespaces\" is unknown here, or there twice");
    let (after, before) = ("valid-after=\"20260101Z\"", "valid-before=\"20260101Z\"");
    assert!(fault(&format!("{namespaces},{after},{after}")).contains("there twice"));
    assert!(fault(&format!("{namespaces},{before},{before}")).contains("there twice"));
    assert_eq!(fault(&format!("{namespaces},{after},{before}")), "valid-before is not after valid-after");
    assert_eq!(fault(&format!("{namespaces},{after},valid-before=\"20260102Z\"")), "");
}

/// ssh-keygen takes whatever stands behind the last field; here it is no signature.
#[test]
fn a_signature_has_its_fields_and_nothing_else() {
    let fields = [b"key".as_slice(), b"xtask-receipt-v1", b"", b"sha512", b"signature"].map(field);
    let parsed = |blob: &[u8]| {
        let text = format!("-----BEGIN SSH SIGNATURE-----\n{}\n-----END SSH SIGNATURE-----\n", base64(blob));
        parse_signature(text.as_bytes())
    };
    let head = b"SSHSIG\0\0\0\x01".to_vec();
    let good = [head.clone(), fields.concat()].concat();
    assert_eq!(parsed(&good).unwrap().key, b"key");
    let wrong = [
        ("a byte more", [&good[..], b"\0"].concat()),
        ("a field more", [good.clone(), field(b"more")].concat()),
        ("a byte less", good[..good.len() - 1].to_vec()),
        ("a field less", [head.clone(), fields[..4].concat()].concat()),
        ("a length of 4 GiB", [head, fields[..4].concat(), vec![0xff; 8]].concat()),
        ("another version", [b"SSHSIG\0\0\0\x02".to_vec(), fields.concat()].concat()),
        ("another magic", [b"SSHSIX\0\0\0\x01".to_vec(), fields.concat()].concat()),
    ];
    for (what, blob) in wrong {
        assert!(parsed(&blob).unwrap_err().contains("not of the form SSHSIG"), "{what}");
    }
    let said = |text: &str| parse_signature(text.as_bytes()).unwrap_err();
    let of_length = |length: usize| format!("{SIGNATURE}{}", "\n".repeat(length - SIGNATURE.len()));
    assert!(said(&of_length((16 << 10) + 1)).contains("longer than 16384 bytes"));
    assert!(said(&of_length(16 << 10)).contains("not one SSH signature block and nothing else"));
    assert!(said("").contains("not one SSH signature block and nothing else"));
    assert_eq!(said(&SIGNATURE.repeat(2)), "there is more than one signature block");
}

#[test]
fn a_fault_has_the_number_of_its_line() {
    let signers = std::str::from_utf8(SIGNERS).unwrap();
    assert_eq!(faults(&format!("# who\n\n{signers}")), [""; 0]);
    let again = "4: the key of line 3 again: one key has one role and one line";
    assert_eq!(faults(&format!("# who\n\n{signers}{signers}")), [again]);
    let other = signers.replace("AAAAIPL+N61r8tBa2VlbO2k", "AAAAIPL+N61r8tBa2VlbO2l");
    assert_eq!(faults(&format!("{signers}{other}")), [""; 0], "another key");
    assert_eq!(faults("ci\n"), ["1: expected: ROLE namespaces=\"...\" KEY-TYPE KEY COMMENT"]);
}

#[test]
fn a_key_is_what_its_line_says_and_strong_enough() {
    let fault = |key: &str| {
        let found = faults(&format!("ci namespaces=\"xtask-receipt-v1\" {key}"));
        found.first().map(|fault| fault["1: ".len()..].to_owned()).unwrap_or_default()
    };
    let rsa = |bits: usize| {
        // As ssh-keygen writes a number whose highest bit is set: with a zero in front.
        let modulus = [vec![0], vec![0xff; bits / 8]].concat();
        format!("ssh-rsa {}", base64(&[field(b"ssh-rsa"), field(&[1, 0, 1]), field(&modulus)].concat()))
    };
    assert_eq!(fault(&rsa(3072)), "");
    assert_eq!(fault(&rsa(4096)), "");
    assert_eq!(fault(&rsa(3064)), "an rsa key of 3064 bits is too weak: at least 3072, or ed25519");
    let cut = format!("ssh-rsa {}", base64(&field(b"ssh-rsa")));
    assert_eq!(fault(&cut), "an rsa key of 0 bits is too weak: at least 3072, or ed25519");
    let other = format!("ssh-ed25519 {}", base64(&field(b"ssh-rsa")));
    assert_eq!(fault(&other), "the key is not the ssh-ed25519 key that it is said to be");
    let kind = field(b"ssh-ed25519");
    // One byte more each: the three ways in which base64 can end.
    for more in 0..3 {
        assert_eq!(fault(&format!("ssh-ed25519 {}", base64(&[&kind[..], &vec![0x5a; more]].concat()))), "", "{more}");
    }
    let good = base64(&kind);
    for bad in ["", "=", "A===", &good[..good.len() - 1], &format!("{good}A"), &format!("{good}===="), "A_AA"] {
        assert_eq!(fault(&format!("ssh-ed25519 {bad}")), "the ssh-ed25519 key is not base64", "{bad:?}");
    }
}

#[test]
fn times_of_keys_are_whole_and_in_utc() {
    let after = |time: &str| {
        let line = format!("ci namespaces=\"xtask-receipt-v1\",valid-after=\"{time}\" {}", public_key());
        let (signers, faults) = parse_signers(line.as_bytes());
        assert_eq!(faults.is_empty(), signers.len() == 1);
        signers.first().map(|signer| utc(signer.valid_after.unwrap()))
    };
    assert_eq!(after("20261130Z").as_deref(), Some("2026-11-30T00:00:00Z"));
    assert_eq!(after("202611301402Z").as_deref(), Some("2026-11-30T14:02:00Z"));
    assert_eq!(after("20261130140210Z").as_deref(), Some("2026-11-30T14:02:10Z"));
    for wrong in ["20261130", "2026113014Z", "2026Z", "20261130140210000Z", "2026-1-3Z", "20261330Z", "Z", ""] {
        assert_eq!(after(wrong), None, "{wrong:?}");
    }
}

#[test]
fn a_list_of_revoked_keys_is_of_keys() {
    let list = |text: &str| {
        let (keys, faults) = parse_revoked(text.as_bytes());
        (keys, faults.into_iter().map(|fault| (fault.line, fault.what)).collect::<Vec<_>>())
    };
    let key = parse_signers(SIGNERS).0.remove(0).key;
    assert_eq!(list(&format!("# lost\n{}\n", public_key())), (vec![key], vec![]));
    assert_eq!(list("# nobody\n"), (vec![], vec![]));
    assert_eq!(list("").1[0].0, 0);
    let (keys, faults) = list("# lost\nSHA256:abc\n");
    assert!(keys.is_empty() && faults.len() == 1 && faults[0].0 == 2, "{faults:?}");
    assert_eq!(list("SSHKRL\n\0\0"), (vec![], vec![]), "left to ssh-keygen");
}

/// A seal of `SIGNATURE` by these files at that moment, of which ssh-keygen said this; and every rule that refuses it.
fn judged(signers: &str, revoked: &[u8], at_ms: u64, said: Result<(), String>) -> (Seal, Vec<&'static str>) {
    let signature = Ok(SIGNATURE.as_bytes().to_vec());
    let mut seal = Seal::new(&signature, &trust(signers.as_bytes()), &[trust(revoked)], at_ms);
    seal.confirm(said);
    let codes = judge_seal(&seal).iter().map(|reason| reason.code).collect();
    (seal, codes)
}

#[test]
fn a_seal_says_who_signed_for_what_and_how_long() {
    let line = |options: &str| format!("ci namespaces=\"xtask-receipt-v1\"{options} {}", public_key());
    let (seal, codes) = judged(&line(",valid-before=\"20270101Z\""), b"# nobody\n", NOW_MS, Ok(()));
    assert_eq!(codes, [""; 0]);
    assert_eq!(seal.role(), Some(Caller::Ci));
    assert_eq!(seal.signed_by().as_deref(), Some("ci (line 1: ssh-ed25519 release@test)"));
    assert!(seal.may_sign_for("xtask-receipt-v1") && !seal.may_sign_for("xtask-release-v1"));
    assert_eq!(seal.valid_before().map(utc).as_deref(), Some("2027-01-01T00:00:00Z"));
    assert_eq!(local_seal(NOW_MS).valid_before(), None);
    let stranger = judged("# nobody\n", b"# nobody\n", NOW_MS, Err("no".to_owned())).0;
    assert_eq!((stranger.role(), stranger.signed_by(), stranger.valid_before()), (None, None, None));
    assert!(!stranger.may_sign_for("xtask-receipt-v1"));
}

#[test]
fn a_seal_is_refused_for_what_is_wrong_with_it() {
    let refused = || Err("no".to_owned());
    let line = |options: &str| format!("ci namespaces=\"xtask-receipt-v1\"{options} {}", public_key());
    let nobody = b"# nobody\n";
    assert_eq!(judged(&line(""), nobody, NOW_MS, refused()).1, ["signature-wrong"]);
    assert_eq!(judged("# nobody\n", nobody, NOW_MS, refused()).1, ["signature-wrong", "signer-unknown"]);
    // ssh-keygen has one message for all of these, which says less than ours.
    assert_eq!(judged(&line(""), public_key().as_bytes(), NOW_MS, refused()).1, ["signer-revoked"]);
    assert_eq!(judged(&line(""), b"SHA256:abc\n", NOW_MS, refused()).1, ["revoked-file"]);
    for (list, place) in
        [(&b""[..], "allowed_signers: the file is empty"), (b"\nx\n", "allowed_signers:2: \"x\" is no type")]
    {
        let reasons = judge_seal(&judged(&line(""), list, NOW_MS, Ok(())).0);
        assert!(reasons.len() == 1 && reasons[0].text.starts_with(place), "{reasons:?}");
    }
    let elsewhere = format!("release namespaces=\"xtask-release-v1\" {}", public_key());
    assert_eq!(judged(&elsewhere, nobody, NOW_MS, refused()).1, ["signer-namespace"]);
    assert_eq!(judged("ci\n", nobody, NOW_MS, refused()).1, ["signature-wrong", "signers-file", "signer-unknown"]);
    // Valid from the first moment on, and no more at the last.
    let span = line(",valid-after=\"20261130140210Z\",valid-before=\"20261130140211Z\"");
    for (at_ms, codes) in [
        (NOW_MS - 1, &["signer-not-valid"][..]),
        (NOW_MS, &[]),
        (NOW_MS + 999, &[]),
        (NOW_MS + 1_000, &["signer-not-valid"]),
    ] {
        assert_eq!(judged(&span, nobody, at_ms, Ok(())).1, codes, "at {at_ms}");
    }
    assert_eq!(judged(&span, nobody, NOW_MS - 1, refused()).1, ["signer-not-valid"]);
    let unasked = Seal::new(&Ok(SIGNATURE.as_bytes().to_vec()), &trust(SIGNERS), &[trust(nobody)], NOW_MS);
    let reasons = judge_seal(&unasked);
    assert!(reasons.len() == 1 && reasons[0].text == "the signature was not checked", "{reasons:?}");
    let none = Seal::new(&Err("gone".to_owned()), &trust(SIGNERS), &[trust(nobody)], NOW_MS);
    assert_eq!(judge_seal(&none).iter().map(|reason| reason.code).collect::<Vec<_>>(), ["signature-missing"]);
    let unreadable = Seal::new(&Ok(b"x".to_vec()), &trust(SIGNERS), &[trust(nobody)], NOW_MS);
    assert_eq!(judge_seal(&unreadable).iter().map(|reason| reason.code).collect::<Vec<_>>(), ["signature-form"]);
}
