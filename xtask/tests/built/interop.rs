//! Receipts are in-toto Statements to the reference library of in-toto too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::keyring::{Keyring, SUITE};
use crate::world::skipped;

const LIBRARY: &str = "in-toto-attestation==0.9.3";
const CHECK: &str = "
import sys
from google.protobuf import json_format
from in_toto_attestation.v1 import statement, statement_pb2
for path in sys.argv[1:]:
    read = json_format.Parse(open(path).read(), statement_pb2.Statement())
    statement.Statement.copy_from_pb(read).validate()
    print(read.predicate_type, len(read.subject), read.predicate['result'])
";

/// Installed below the target folder, once; or why not.
fn library() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(LIBRARY);
    if folder.is_dir() {
        return Ok(folder);
    }
    // Under its name only when it is whole.
    let half = folder.with_extension(std::process::id().to_string());
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20"]);
    let out = pip.arg("--target").arg(&half).arg(LIBRARY).output().map_err(|e| format!("python3: {e}"))?;
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr).lines().last().unwrap_or_default().to_owned();
        return Err(format!("{LIBRARY} cannot be installed: {why}"));
    }
    if fs::rename(&half, &folder).is_err() {
        fs::remove_dir_all(&half).map_err(|e| e.to_string())?; // somebody else was faster
    }
    Ok(folder)
}

#[test]
fn receipts_are_statements_to_the_library_of_in_toto() {
    let folder = match library() {
        Ok(folder) => folder,
        Err(why) => return skipped("receipts_are_statements_to_the_library_of_in_toto", &why),
    };
    let keyring = Keyring::new(SUITE);
    keyring.world.git(&["tag", "v1"]);
    keyring.release("v1").expect(0);
    keyring.world.write("draft", "x");
    keyring.world.run(&["verify", "--only", "one"]).expect(0);
    let partial = keyring.world.receipts().pop().unwrap();
    let release = keyring.world.repo.join("receipts/v1/receipt.json");
    let out = Command::new("python3")
        .args(["-c", CHECK])
        .args([release, partial])
        .env("PYTHONPATH", folder)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told = String::from_utf8(out.stdout).unwrap();
    assert_eq!(told, "urn:xtask:receipt:v1 3 passed\nurn:xtask:receipt:v1 2 passed\n");
}
