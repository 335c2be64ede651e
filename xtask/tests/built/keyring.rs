//! Keys for tests, and a repository whose receipts they sign.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use xtask::receipt::statement::Receipt;

use crate::world::{Done, World};

pub const RECEIPTS: &str = "xtask-receipt-v1";
pub const BOTH: &str = "xtask-receipt-v1,xtask-release-v1";

/// Two tasks, one of which makes an output with the whole pool.
pub const SUITE: &str = r#"schema = 1
[run]
deadline = "5m"
queue = "2m"
[receipt]
max-age = "2h"
[task.one]
command = "true"
deadline = "1m"
[task.build]
command = ["sh", "-c", "mkdir -p target && echo app > target/app"]
deadline = "1m"
cpus = "all"
outputs = ["target/app"]
"#;

/// A repository with signers for every role; their keys lie outside of it.
pub struct Keyring {
    pub world: World,
}

impl Keyring {
    pub fn new(suite: &str) -> Self {
        let keyring = Self { world: World::new(suite) };
        for role in ["local", "ci", "release", "stranger"] {
            keyring.generate(role, &["-t", "ed25519"]);
        }
        let lines = ["local", "ci", "release"]
            .map(|role| keyring.line(role, if role == "release" { BOTH } else { RECEIPTS }, ""));
        keyring.world.write("ci/allowed_signers", &lines.concat());
        keyring.world.write("ci/revoked_keys", "# nobody\n");
        keyring.world.commit("signers");
        keyring
    }

    pub fn generate(&self, name: &str, kind: &[&str]) {
        let key = self.key(name);
        let made = Command::new("ssh-keygen")
            .args(["-q", "-N", "", "-C", &format!("{name}@test")])
            .args(kind)
            .arg("-f")
            .arg(key)
            .status();
        assert!(made.expect("ssh-keygen runs").success());
    }

    /// The path of a private key.
    pub fn key(&self, name: &str) -> PathBuf {
        self.world.folder.path().join(format!("key-{name}"))
    }

    /// The public key in one line.
    pub fn public(&self, name: &str) -> String {
        fs::read_to_string(self.key(name).with_extension("pub")).expect("a public key")
    }

    /// A line of allowed_signers for the key of that name, which is also the role.
    pub fn line(&self, role: &str, namespaces: &str, more: &str) -> String {
        format!("{role} namespaces=\"{namespaces}\"{more} {}", self.public(role))
    }

    /// Runs `verify` and signs by that role's key; the path of the receipt.
    pub fn verify(&self, role: &str) -> PathBuf {
        let key = self.key(role);
        let caller = if role == "ci" { "ci" } else { "local" };
        self.world.run(&["verify", "--caller", caller, "--key", key.to_str().expect("a plain path")]).expect(0);
        self.world.receipts().pop().expect("a receipt")
    }

    /// Runs `release`.
    pub fn release(&self, tag: &str) -> Done {
        self.world.run(&["release", tag, "--key", self.key("release").to_str().expect("a plain path")])
    }

    /// Gives a command an ssh-keygen that takes for ever to sign, as a device does that nobody touches, once there is a file
    /// `slow` beside the repository. What waits then has `token` among its arguments.
    pub fn slow_ssh_keygen(&self, command: &mut Command, token: &str) {
        let slow = self.world.folder.path().join("slow");
        self.before_ssh_keygen(
            command,
            &format!("case \"$*\" in *'-Y sign'*) test -e {} && sleep 300 {token};; esac", slow.display()),
        );
    }

    /// Gives a command an ssh-keygen before which this script runs, with its arguments.
    pub fn before_ssh_keygen(&self, command: &mut Command, script: &str) {
        let folder = self.world.folder.path();
        let script = format!("#!/bin/sh\n{script}\nPATH=${{PATH#*:}} exec ssh-keygen \"$@\"\n");
        let shim = folder.join("shim/ssh-keygen");
        fs::create_dir_all(folder.join("shim")).expect("a folder for the program");
        crate::world::script(&shim, &script);
        command.env("PATH", format!("{}:{}", folder.join("shim").display(), std::env::var("PATH").expect("PATH")));
    }

    /// Signs a file as anybody would; writes the signature beside it.
    pub fn sign(&self, key: &str, namespace: &str, path: &Path) {
        let signature = self.signature(key, namespace, &fs::read(path).expect("a file to sign"));
        fs::write(signature_of(path), signature).expect("a signature");
    }

    pub fn signature(&self, key: &str, namespace: &str, bytes: &[u8]) -> Vec<u8> {
        let mut child = Command::new("ssh-keygen")
            .args(["-Y", "sign", "-n", namespace, "-f"])
            .arg(self.key(key))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("ssh-keygen runs");
        std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), bytes).expect("ssh-keygen reads");
        let out = child.wait_with_output().expect("ssh-keygen ends");
        assert!(out.status.success());
        out.stdout
    }

    /// Writes bytes as a receipt outside of the repository, signed by that key.
    pub fn signed(&self, name: &str, bytes: &[u8], key: &str) -> PathBuf {
        let path = self.world.folder.path().join(format!("{name}.json"));
        fs::write(&path, bytes).expect("a receipt");
        self.sign(key, RECEIPTS, &path);
        path
    }

    /// What the gate says: whether it accepts, and the codes of its reasons, each once. The exit code has to agree.
    pub fn judge(&self, args: &[&str]) -> (bool, Vec<String>) {
        let done = self.world.run(&[&["check-receipt", "--message-format", "json"], args].concat());
        let answer: Value = serde_json::from_str(&done.out).unwrap_or_else(|e| panic!("{e}: {done:?}"));
        let reasons = answer["reasons"].as_array().expect("reasons");
        let mut codes: Vec<String> = reasons.iter().map(|r| r["code"].as_str().expect("a code").to_owned()).collect();
        codes.dedup();
        let accepted = answer["accepted"].as_bool().expect("accepted");
        assert_eq!(done.code, if accepted { 0 } else { 6 }, "{done:?}");
        assert_eq!(accepted, codes.is_empty());
        (accepted, codes)
    }

    #[track_caller]
    pub fn refused(&self, args: &[&str], codes: &[&str]) {
        assert_eq!(self.judge(args).1, codes, "{args:?}");
    }

    #[track_caller]
    pub fn accepted(&self, args: &[&str]) {
        self.refused(args, &[]);
    }
}

pub fn signature_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sig");
    name.into()
}

pub fn read(path: &Path) -> Receipt {
    Receipt::parse(&fs::read(path).expect("a receipt")).expect("a receipt in its own form")
}
