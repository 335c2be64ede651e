//! ci/allowed_signers, ci/revoked_keys and signatures, read strictly. ssh-keygen decides whether a signature is good; it
//! skips lines that it does not understand and gives one message for every reason. So these files are checked here first,
//! and whose key it is and why it does not count is said here.

use std::time::UNIX_EPOCH;

use crate::name::Caller;
use crate::time::millis;

/// The namespace of signatures over receipts.
pub const RECEIPT_NAMESPACE: &str = "xtask-receipt-v1";
/// The namespace of signatures over SHA256SUMS.
pub const RELEASE_NAMESPACE: &str = "xtask-release-v1";

/// What a binary list of revoked keys begins with.
pub const KRL: &[u8] = b"SSHKRL\n\0";

const ROLES: [Caller; 3] = [Caller::Local, Caller::Ci, Caller::Release];
// In bits; the same as people ask of keys elsewhere today.
const RSA_LEAST: usize = 3072;
const KEY_TYPES: [&str; 7] = [
    "ssh-ed25519",
    "sk-ssh-ed25519@openssh.com",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
];
const BEGIN: &str = "-----BEGIN SSH SIGNATURE-----\n";
const END: &str = "\n-----END SSH SIGNATURE-----";
// Large enough for RSA keys of 16,384 bits.
const SIGNATURE_MAX: usize = 16 * 1024;

/// What is wrong with a line of these files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    /// What, and what to write instead.
    pub what: String,
}

/// One line of allowed_signers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// From 1.
    pub line: usize,
    /// For which caller it signs.
    pub role: Caller,
    /// For what it signs.
    pub namespaces: Vec<String>,
    /// From when on, in milliseconds since 1970.
    pub valid_after: Option<u64>,
    /// Until when, in milliseconds since 1970.
    pub valid_before: Option<u64>,
    /// The public key in its binary form.
    pub key: Vec<u8>,
    /// The type of the key, and the comment behind it.
    pub name: String,
}

/// The lines of an allowed_signers file, and everything wrong with it.
pub fn parse_signers(bytes: &[u8]) -> (Vec<Signer>, Vec<Fault>) {
    let (mut signers, mut faults): (Vec<Signer>, _) = (Vec::new(), Vec::new());
    for (line, text) in lines(bytes, &mut faults) {
        match signer(line, text) {
            Err(what) => faults.push(Fault { line, what }),
            Ok(signer) => {
                if let Some(other) = signers.iter().find(|other| other.key == signer.key) {
                    let what = format!("the key of line {} again: one key has one role and one line", other.line);
                    faults.push(Fault { line, what });
                }
                signers.push(signer);
            }
        }
    }
    (signers, faults)
}

/// The keys of a revocation list, and everything wrong with it. A list in the binary form of ssh-keygen (KRL) is left to that.
pub fn parse_revoked(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<Fault>) {
    let (mut keys, mut faults) = (Vec::new(), Vec::new());
    if bytes.is_empty() {
        let what =
            "the file is empty, as a cut-off one would be: a comment in it says that no key is revoked".to_owned();
        faults.push(Fault { line: 0, what });
    }
    if bytes.starts_with(KRL) {
        return (keys, faults);
    }
    for (line, text) in lines(bytes, &mut faults) {
        match public_key(text) {
            Ok((key, _)) => keys.push(key),
            Err(what) => {
                faults.push(Fault { line, what: format!("{what} (a line is a public key, as in its .pub file)") })
            }
        }
    }
    (keys, faults)
}

// Lines that are neither empty nor comments, with their numbers.
fn lines<'a>(bytes: &'a [u8], faults: &mut Vec<Fault>) -> Vec<(usize, &'a str)> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        faults.push(Fault { line: 0, what: "the file is not text (UTF-8)".to_owned() });
        return Vec::new();
    };
    let numbered = text.split('\n').enumerate().map(|(at, line)| (at + 1, line));
    let numbered = numbered.map(|(at, line)| (at, line.strip_suffix('\r').unwrap_or(line)));
    numbered.filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with('#')).collect()
}

// `ROLE namespaces="…",valid-after="…",valid-before="…" TYPE KEY COMMENT`.
fn signer(line: usize, text: &str) -> Result<Signer, String> {
    let form = "expected: ROLE namespaces=\"...\" KEY-TYPE KEY COMMENT";
    let (role, rest) = text.split_once([' ', '\t']).ok_or(form)?;
    let named = ROLES.into_iter().find(|known| known.to_string() == role);
    let role =
        named.ok_or_else(|| format!("the principal {role:?} is not one of local, ci, release, without wildcards"))?;
    let (options, rest) = options(rest.trim_start()).ok_or(form)?;
    let (key, name) = public_key(rest)?;
    let (mut namespaces, mut valid_after, mut valid_before) = (Vec::new(), None, None);
    for (option, value) in options {
        match option {
            "namespaces" if namespaces.is_empty() => namespaces = value.split(',').map(str::to_owned).collect(),
            "valid-after" if valid_after.is_none() => valid_after = Some(time(value)?),
            "valid-before" if valid_before.is_none() => valid_before = Some(time(value)?),
            _ => return Err(format!("{option:?} is unknown here, or there twice")),
        }
    }
    if namespaces.is_empty() {
        return Err(format!("namespaces=\"{RECEIPT_NAMESPACE}\" is missing: without it the key may sign anything"));
    }
    let allowed =
        |namespace: &str| namespace == RECEIPT_NAMESPACE || namespace == RELEASE_NAMESPACE && role == Caller::Release;
    if let Some(other) = namespaces.iter().find(|namespace| !allowed(namespace)) {
        return Err(format!("{role} may not sign for the namespace {other:?}"));
    }
    if let (Some(after), Some(before)) = (valid_after, valid_before)
        && before <= after
    {
        return Err("valid-before is not after valid-after".to_owned());
    }
    Ok(Signer { line, role, namespaces, valid_after, valid_before, key, name })
}

// Options up to the key, `NAME` or `NAME="VALUE"` with commas between; none at all if a key type stands there.
fn options(text: &str) -> Option<(Vec<(&str, &str)>, &str)> {
    let (mut found, mut rest) = (Vec::new(), text);
    if KEY_TYPES.iter().any(|kind| text.starts_with(kind)) {
        return Some((found, rest));
    }
    loop {
        let end = rest.find(['=', ',', ' ', '\t'])?;
        let option = &rest[..end];
        rest = &rest[end..];
        let mut value = "";
        if let Some(quoted) = rest.strip_prefix("=\"") {
            let end = quoted.find('"')?;
            (value, rest) = (&quoted[..end], &quoted[end + 1..]);
        }
        found.push((option, value));
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None => return rest.starts_with([' ', '\t']).then(|| (found, rest.trim_start())),
        }
    }
}

// `TYPE BASE64 COMMENT`: the key in its binary form, and its type and comment.
fn public_key(text: &str) -> Result<(Vec<u8>, String), String> {
    let mut words = text.split_whitespace();
    let (kind, encoded) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if !KEY_TYPES.contains(&kind) {
        return Err(format!("{kind:?} is no type of key that counts: ed25519, ecdsa, their sk- forms, or rsa"));
    }
    let key = base64(encoded).ok_or_else(|| format!("the {kind} key is not base64"))?;
    let mut rest = &key[..];
    let inner = string(&mut rest);
    if inner != Some(kind.as_bytes()) {
        return Err(format!("the key is not the {kind} key that it is said to be"));
    }
    if kind == "ssh-rsa" {
        let modulus = string(&mut rest).and_then(|_| string(&mut rest)).unwrap_or_default();
        let bits = 8 * modulus.iter().skip_while(|&&byte| byte == 0).count();
        if bits < RSA_LEAST {
            return Err(format!("an rsa key of {bits} bits is too weak: at least {RSA_LEAST}, or ed25519"));
        }
    }
    let comment = words.collect::<Vec<_>>().join(" ");
    Ok((key, format!("{kind} {comment}").trim_end().to_owned()))
}

// `20261130Z`, `202611301402Z` or `20261130140210Z`. Without the Z it would be local time, another one on each machine.
fn time(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a time in UTC such as \"20261130140210Z\"");
    let digits = text.strip_suffix('Z').ok_or_else(wrong)?;
    if !digits.bytes().all(|c| c.is_ascii_digit()) || !matches!(digits.len(), 8 | 12 | 14) {
        return Err(wrong());
    }
    let full = format!("{digits:0<14}");
    let part = |from: usize, to: usize| &full[from..to];
    let (day, clock) = ([part(0, 4), part(4, 6), part(6, 8)], [part(8, 10), part(10, 12), part(12, 14)]);
    let parsed = humantime::parse_rfc3339(&format!("{}T{}Z", day.join("-"), clock.join(":"))).map_err(|_| wrong())?;
    Ok(parsed.duration_since(UNIX_EPOCH).map_or(0, millis))
}

/// A signature as far as it can be read without trusting it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// The public key that is said to have made it, in its binary form.
    pub key: Vec<u8>,
    /// The namespace that it is said to be for.
    pub namespace: String,
}

/// Reads a signature file: exactly one armor block and nothing else, since ssh-keygen ignores whatever stands behind
/// it. Errors say what it is instead.
pub fn parse_signature(bytes: &[u8]) -> Result<Signature, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    if text.len() > SIGNATURE_MAX {
        return Err(format!("it is longer than {SIGNATURE_MAX} bytes"));
    }
    if text.matches(BEGIN.trim_end()).count() > 1 {
        return Err("there is more than one signature block".to_owned());
    }
    let block = text.strip_suffix('\n').unwrap_or(text).strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
    let block = block.ok_or("it is not one SSH signature block and nothing else")?;
    let blob = base64(&block.replace('\n', "")).ok_or("the signature block is not base64")?;
    let parse = || {
        let mut rest = blob.strip_prefix(b"SSHSIG\0\0\0\x01")?;
        let (key, namespace) = (string(&mut rest)?.to_vec(), string(&mut rest)?);
        let namespace = String::from_utf8(namespace.to_vec()).ok()?;
        // Reserved, hash, signature: the rest of the form.
        (0..3).try_for_each(|_| string(&mut rest).map(drop))?;
        rest.is_empty().then_some(Signature { key, namespace })
    };
    parse().ok_or_else(|| "the signature block is not of the form SSHSIG, version 1".to_owned())
}

// A string of SSH's wire format: length in four bytes, then as many bytes.
fn string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (value, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(value)
}

// Padded base64 and nothing else in it.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if text.is_empty() || !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}
