//! SHA-256 as lower-case hexadecimal: the one digest of suite files, outputs and programs. And how people read digests.

use std::fmt::Write;
use std::io::{self, Read};

use sha2::{Digest, Sha256};

/// Of bytes.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Of everything that can still be read. Errors as reading does.
pub fn of_reader(mut from: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(count) => hash.update(&buffer[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// The first seven digits of a digest or of an id of git, as people compare them.
pub fn short(id: &str) -> &str {
    id.get(..7).unwrap_or(id)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
