//! `release`: either everything is there and accepted by whoever looks, or nothing is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::keyring::{BOTH, Keyring, RECEIPTS, SUITE, read, signature_of};
use crate::world::{Running, until};

const RELEASES: &str = "xtask-release-v1";

pub fn tagged(suite: &str) -> Keyring {
    let keyring = Keyring::new(suite);
    keyring.world.git(&["tag", "v1"]);
    keyring
}

/// The suite with another command in place of `true`, as a shell would have it.
pub fn suite_with(script: &str) -> String {
    SUITE.replace("\"true\"", &format!("[\"sh\", \"-c\", {script:?}]"))
}

pub fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// No release, and no signature anywhere.
#[track_caller]
pub fn nothing_signed(keyring: &Keyring) {
    let left = names(&keyring.world.repo.join("receipts"));
    assert!(left.iter().all(|name| name.starts_with("r-") && name.ends_with(".json")), "{left:?}");
    keyring.refused(&["v1"], &["receipt-file", "signature-missing"]);
}

#[test]
fn a_release_is_accepted_by_the_gate_and_by_the_public_commands() {
    let keyring = tagged(&SUITE.replace("echo app > target/app", "echo app > target/app && chmod 755 target/app"));
    keyring.release("v1").expect(0).says("Signed v1");
    let folder = keyring.world.repo.join("receipts/v1");
    assert_eq!(names(&folder), ["SHA256SUMS", "SHA256SUMS.sig", "app", "receipt.json", "receipt.json.sig"]);
    assert_eq!(fs::read(folder.join("app")).unwrap(), b"app\n");
    assert_eq!(fs::metadata(folder.join("app")).unwrap().permissions().mode() & 0o777, 0o755);
    keyring.accepted(&["v1"]);
    keyring.accepted(&["v1", "--artifact", "target/app"]);
    keyring.accepted(&["receipts/v1/receipt.json"]);
    keyring.world.run(&["check-receipt", "v1"]).expect(0).says("for v1: 2/2 passed");
    for (file, namespace) in [("SHA256SUMS", RELEASES), ("receipt.json", RECEIPTS)] {
        let script = format!(
            "ssh-keygen -Y verify -f ../../ci/allowed_signers -r ../../ci/revoked_keys -I release -n {namespace} \
             -s {file}.sig < {file} && sha256sum --check --quiet SHA256SUMS"
        );
        let ran = Command::new("sh").args(["-c", &script]).current_dir(&folder).stdout(Stdio::null()).status().unwrap();
        assert!(ran.success(), "{file}");
    }
    keyring.release("v1").expect(2).says("receipts/v1 is there already");
    keyring.accepted(&["v1"]);
}

#[test]
fn what_is_in_the_folder_of_a_release_has_to_fit() {
    let keyring = tagged(SUITE);
    keyring.release("v1").expect(0);
    let folder = keyring.world.repo.join("receipts/v1");
    let kept = keyring.world.folder.path().join("kept");
    let copy =
        |from: &Path, to: &Path| assert!(Command::new("cp").arg("-rT").args([from, to]).status().unwrap().success());
    copy(&folder, &kept);
    let changed = |change: &dyn Fn(), codes: &[&str]| {
        change();
        keyring.refused(&["v1"], codes);
        fs::remove_dir_all(&folder).unwrap();
        copy(&kept, &folder);
        keyring.accepted(&["v1"]);
    };
    let at = |name: &str| folder.join(name);
    changed(&|| fs::write(at("app"), "other").unwrap(), &["artifact-digest", "sums"]);
    changed(&|| fs::remove_file(at("app")).unwrap(), &["artifact-missing", "sums"]);
    changed(&|| fs::write(at("more"), "x").unwrap(), &["artifact-unlisted", "sums"]);
    changed(&|| fs::write(at("SHA256SUMS"), "").unwrap(), &["sums"]);
    changed(&|| fs::remove_file(at("SHA256SUMS.sig")).unwrap(), &["sums"]);
    changed(&|| keyring.sign("release", RECEIPTS, &at("SHA256SUMS")), &["sums"]);
    changed(&|| keyring.sign("ci", RELEASES, &at("SHA256SUMS")), &["sums"]);
    changed(
        &|| {
            fs::remove_file(at("app")).unwrap();
            std::os::unix::fs::symlink(kept.join("app"), at("app")).unwrap();
        },
        &["artifact-missing", "sums"],
    );
    // The receipt of a developer in the place of the release's.
    let local = keyring.verify("local");
    changed(
        &|| {
            fs::copy(&local, at("receipt.json")).unwrap();
            fs::copy(signature_of(&local), at("receipt.json.sig")).unwrap();
        },
        &["caller", "sums"],
    );
    // ssh-keygen names the file that it was given, which is a copy that is gone when somebody reads this.
    let signers = keyring.world.folder.path().join("trust/allowed_signers");
    fs::create_dir(signers.parent().unwrap()).unwrap();
    fs::write(&signers, keyring.line("release", RECEIPTS, "")).unwrap();
    fs::write(signers.with_file_name("revoked_keys"), "# nobody\n").unwrap();
    let said = keyring.world.run(&["check-receipt", "v1", "--signers", signers.to_str().unwrap()]).expect(6);
    assert!(said.err.contains("release of these files (signers:1: key is not permitted"), "{}", said.err);
    // And files given by hand, beside a receipt of any kind.
    let receipt = local.to_str().unwrap();
    keyring.accepted(&[receipt, "--artifact", "target/app"]);
    keyring.world.write("target/app", "built again");
    keyring.refused(&[receipt, "--artifact", "target/app"], &["artifact-digest"]);
    keyring.refused(&[receipt, "--artifact", "ci/suite.toml"], &["artifact-missing", "artifact-unlisted"]);
    keyring.refused(&[receipt, "--artifact", "target"], &["artifact-missing", "artifact-unlisted"]);
}

#[test]
fn what_cannot_be_released_is_refused_before_anybody_queues() {
    let keyring = tagged(SUITE);
    let key = keyring.key("release");
    let key = key.to_str().unwrap();
    let refused = |args: &[&str], words: &str| {
        keyring.world.run(args).expect(2).says("nothing was queued or run").says(words);
        assert_eq!(names(&keyring.world.repo.join("receipts")), [""; 0]);
    };
    refused(&["release", "v1"], "no signing key");
    refused(&["release", "v1", "--key", "none"], "No such file");
    let local = keyring.key("local");
    refused(&["release", "v1", "--key", local.to_str().unwrap()], "signs as local");
    let stranger = keyring.key("stranger");
    refused(&["release", "v1", "--key", stranger.to_str().unwrap()], "in no line of ci/allowed_signers");
    refused(&["release", "v2", "--key", key], "there is no tag v2");
    refused(&["release", "v1", "--key", key, "--artifact", "ci/suite.toml"], "ci/suite.toml is no declared output");
    keyring.world.write("draft", "x");
    refused(&["release", "v1", "--key", key], "uncommitted changes: draft");
    refused(&["release", "v1", "--key", key, "--queue", "1h"], "--queue 1h is more than the 2m of ci/suite.toml");
    // All reasons at once.
    keyring.world.run(&["release", "v2"]).expect(2).says("there is no tag v2").says("draft").says("no signing key");
    keyring.world.commit("one more");
    refused(&["release", "v1", "--key", key], "(git checkout v1)");
    // The suite that counts is the committed one, also where the one on disk is another.
    keyring.world.write("ci/suite.toml", "schema = 1\n[oops]\n");
    keyring.world.commit("a broken suite");
    keyring.world.write("ci/suite.toml", SUITE);
    refused(&["release", "v1", "--key", key], "ci/suite.toml:2: ");
    keyring.world.git(&["rm", "--quiet", "--cached", "ci/suite.toml"]);
    keyring.world.git(&["commit", "--quiet", "--message", "no suite"]);
    refused(&["release", "v1", "--key", key], "there is no ci/suite.toml in HEAD");
    for name in ["..", "../v1", "a//b", ".hidden", "r-20261130-140210-7c1e09ab", "a\nb", ""] {
        let done = keyring.world.run(&["release", name, "--key", key]);
        assert_eq!(done.code, 2, "{name:?}: {done:?}");
    }
}

/// A key that signs receipts only would be found out after the whole suite.
#[test]
fn a_key_has_to_sign_both_files_of_a_release_and_long_enough() {
    let keyring = Keyring::new(SUITE);
    let with = |namespaces: &str, more: &str| {
        keyring.world.write("ci/allowed_signers", &keyring.line("release", namespaces, more));
        keyring.world.commit("another line");
        keyring.world.git(&["tag", "--force", "v1"]);
        keyring.release("v1")
    };
    with(RECEIPTS, "").expect(2).says("may not sign releases: its line in ci/allowed_signers lacks the namespace");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let end: String = xtask::time::utc((now + 300) * 1000).chars().filter(char::is_ascii_digit).collect();
    // Queue budget and deadline are seven minutes.
    with(BOTH, &format!(",valid-before=\"{end}Z\"")).expect(0).says("note the key is valid until");
    fs::remove_dir_all(keyring.world.repo.join("receipts/v1")).unwrap();
    let done = with(BOTH, ",valid-before=\"20990101Z\"").expect(0);
    assert!(!done.err.contains("is valid until"), "{}", done.err);
}

/// Some of the outputs, asked for by paths from the folder of the caller; the receipt then speaks of those alone.
#[test]
fn a_part_of_the_outputs_may_be_released_and_none_has_the_name_of_another() {
    let suite = SUITE
        .replace("echo app > target/app", "echo app > target/app && mkdir -p target/x && echo x > target/x/more")
        .replace("[\"target/app\"]", "[\"target/app\", \"target/x/more\"]");
    let keyring = tagged(&suite);
    let key = keyring.key("release");
    let mut command =
        keyring.world.command(&["release", "v1", "--key", key.to_str().unwrap(), "--artifact", "../target/x/more"]);
    command.current_dir(keyring.world.repo.join("ci"));
    Running::start(command, &keyring.world.folder).wait().expect(2).says("is no declared output");
    keyring.world.run(&["release", "v1", "--key", key.to_str().unwrap(), "--artifact", "./target/x/more"]).expect(0);
    let folder = keyring.world.repo.join("receipts/v1");
    assert_eq!(names(&folder), ["SHA256SUMS", "SHA256SUMS.sig", "more", "receipt.json", "receipt.json.sig"]);
    keyring.accepted(&["v1"]);

    let keyring = tagged(&suite.replace("target/x/more", "target/x/app"));
    keyring.release("v1").expect(2).says("target/x/app: the folder of a release has another file of that name");
    let keyring = tagged(&suite.replace("target/x/more", "target/x/SHA256SUMS"));
    keyring.release("v1").expect(2).says("target/x/SHA256SUMS: the folder of a release has another file of that name");
}

#[test]
fn a_key_that_wants_a_passphrase_is_an_error_and_an_agent_may_hold_it() {
    let keyring = tagged(SUITE);
    let key = keyring.key("release");
    let change = |old: &str, new: &str, key: &Path| {
        let out = Command::new("ssh-keygen").args(["-q", "-p", "-P", old, "-N", new, "-f"]).arg(key).output().unwrap();
        assert!(out.status.success());
    };
    change("", "secret", &key);
    keyring.release("v1").expect(2).says("it is encrypted");
    // In an agent it is open.
    let plain = keyring.world.folder.path().join("plain");
    fs::copy(&key, &plain).unwrap();
    change("secret", "", &plain);
    let socket = keyring.world.folder.path().join("agent");
    let mut agent = Command::new("ssh-agent");
    agent.args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
    let mut agent = agent.spawn().unwrap();
    // The socket is there before anybody listens at it.
    until("the agent", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    let added = Command::new("ssh-add").arg("-q").arg(&plain).env("SSH_AUTH_SOCK", &socket).status().unwrap();
    assert!(added.success());
    fs::remove_file(&plain).unwrap();
    fs::remove_file(&key).unwrap();
    let public = key.with_extension("pub");
    let mut command = keyring.world.command(&["release", "v1", "--key", public.to_str().unwrap()]);
    command.env("SSH_AUTH_SOCK", &socket);
    let done = Running::start(command, &keyring.world.folder).wait();
    agent.kill().unwrap();
    agent.wait().unwrap();
    done.expect(0);
    keyring.accepted(&["v1"]);
}

/// A name that git takes for a commit is no tag.
#[test]
fn only_a_tag_of_exactly_that_name_is_released() {
    let keyring = tagged(SUITE);
    let head = keyring.world.git(&["rev-parse", "HEAD"]);
    keyring.world.git(&["branch", "refs/tags/v3"]);
    keyring.release("v1").expect(0);
    for name in ["v1^0".to_owned(), "v1~0".to_owned(), format!("v1-0-g{}", &head[..10]), "v3".to_owned()] {
        keyring.release(&name).expect(2).says(&format!("there is no tag {name}"));
        let folder = keyring.world.repo.join("receipts").join(&name);
        assert!(Command::new("cp").arg("-r").arg(folder.with_file_name("v1")).arg(&folder).status().unwrap().success());
        keyring.world.run(&["check-receipt", &name]).expect(2).says(&format!("there is no tag {name} "));
    }
}

/// What the id of the tree does not say is asked before the wait, when it is over, and after the tasks.
#[test]
fn a_tree_whose_id_does_not_say_what_is_on_disk_is_not_released() {
    let attributes = "attributes may have files read otherwise";
    let keyring = tagged(&suite_with("mkdir -p .git/info; echo '* text' > .git/info/attributes"));
    keyring.release("v1").expect(7).says(attributes);
    nothing_signed(&keyring);
    keyring.release("v1").expect(2).says(attributes).says("nothing was queued or run");

    let keyring = tagged(&suite_with("touch ../ran"));
    keyring.world.write("src/hidden/.gitignore", "*\n");
    keyring.release("v1").expect(2).says("src/hidden/.gitignore is not committed");
    fs::remove_dir_all(keyring.world.repo.join("src")).unwrap();
    let go = keyring.world.folder.path().join("go");
    let script = format!("until test -e {}; do sleep 0.05; done", go.display());
    let mut holder = keyring.world.start(&[
        "lock",
        "run",
        "--deadline",
        "5m",
        "--",
        "sh",
        "-c",
        &format!("echo held >&2; {script}"),
    ]);
    holder.wait_for("held");
    let key = keyring.key("release");
    let mut waiter = keyring.world.start(&["release", "v1", "--key", key.to_str().unwrap()]);
    waiter.wait_for("workstation lock");
    keyring.world.write("src/hidden/.gitignore", "*\n");
    fs::write(go, "").unwrap();
    holder.wait().expect(0);
    waiter.wait().expect(7).says("src/hidden/.gitignore is not committed");
    assert!(!keyring.world.folder.path().join("ran").exists(), "no task was started");
    nothing_signed(&keyring);
}

#[test]
fn no_task_of_a_release_sees_the_key_or_the_agent() {
    // And the parent of every task has nothing to tell either.
    let script =
        "env > target/env; ls -l /proc/self/fd > target/fds; tr '\\0' '\\n' < /proc/$PPID/environ > target/parent";
    let keyring = tagged(&suite_with(script));
    keyring.world.write("target/.keep", "");
    let key = keyring.key("release");
    let mut command = keyring.world.command(&["release", "v1"]);
    command.env("XTASK_SIGNING_KEY", &key).env("SSH_AUTH_SOCK", "/tmp/agent-of-the-test").env("SSH_AGENT_PID", "1");
    Running::start(command, &keyring.world.folder).wait().expect(0);
    let told = |name: &str| fs::read_to_string(keyring.world.repo.join("target").join(name)).unwrap();
    assert!(told("parent").contains("XTASK_MARK=") || told("parent").contains("XTASK_SCRATCH="));
    for text in [told("env"), told("fds"), told("parent")] {
        for secret in ["key-release", "SSH_A", "agent-of-the-test", "XTASK_SIGNING"] {
            assert!(!text.contains(secret), "{secret} in\n{text}");
        }
    }
}

#[test]
fn limits_that_were_raised_since_the_last_release_are_named() {
    let keyring = tagged(SUITE);
    keyring.release("v1").expect(0);
    keyring.world.write("ci/suite.toml", &SUITE.replace("\"1m\"", "\"2m\""));
    keyring.world.commit("more time");
    keyring.world.git(&["tag", "v2"]);
    keyring.release("v2").expect(0).says("since v1: deadline of task one was raised from 1m to 2m");
    keyring.accepted(&["v2"]);
    keyring.refused(&["v2", "--baseline", "v1"], &["limit-raised"]);
    keyring
        .world
        .run(&["check-receipt", "v2", "--baseline", "v1"])
        .expect(6)
        .says("that passes: move receipts/v2 away, ");
    fs::remove_dir_all(keyring.world.repo.join("receipts/v2")).unwrap();
    keyring.world.run(&["check-receipt", "v2"]).expect(6).says("that passes: git checkout v2 && ");
    keyring.accepted(&["v1", "--baseline", "v1"]);
    // A tag from before there was a suite has nothing to compare with.
    keyring.world.git(&["rm", "--quiet", "ci/suite.toml"]);
    keyring.world.commit("no suite");
    keyring.world.git(&["tag", "v3"]);
    keyring.world.git(&["revert", "--no-edit", "HEAD"]);
    keyring.world.git(&["tag", "v4"]);
    keyring.release("v4").expect(0).says("v3 has no suite to compare limits with");
}

/// The steps that README gives for a rotation, a year after a release.
#[test]
fn an_old_release_outlives_its_key_but_not_its_revocation() {
    let keyring = tagged(SUITE);
    keyring.release("v1").expect(0);
    let folder = keyring.world.repo.join("receipts/v1");
    // A year passes: the run's clocks, and what was signed then.
    let mut receipt = read(&folder.join("receipt.json"));
    let clocks = &mut receipt.predicate.clocks;
    for clock in [Some(&mut clocks.requested), clocks.won.as_mut(), clocks.started.as_mut(), Some(&mut clocks.ended)] {
        clock.unwrap().wall_ms -= 365 * 86_400_000;
    }
    let old = format!("{}", clocks.ended.wall_ms / 1000);
    fs::write(folder.join("receipt.json"), receipt.to_bytes()).unwrap();
    keyring.sign("release", RECEIPTS, &folder.join("receipt.json"));
    let sums = Command::new("sha256sum")
        .args(["app", "receipt.json", "receipt.json.sig"])
        .current_dir(&folder)
        .output()
        .unwrap();
    fs::write(folder.join("SHA256SUMS"), sums.stdout).unwrap();
    keyring.sign("release", RELEASES, &folder.join("SHA256SUMS"));
    keyring.refused(&["v1"], &["too-old"]);
    keyring.accepted(&["v1", "--archived"]);

    // Rotation: the old line gets an end, the new key a line of its own.
    keyring.generate("new", &["-t", "ed25519"]);
    let end = xtask::time::utc((old.parse::<u64>().unwrap() + 86_400) * 1000);
    let end: String = end.chars().filter(char::is_ascii_digit).collect();
    let lines = keyring.line("release", BOTH, &format!(",valid-before=\"{end}Z\""))
        + &keyring.line("new", BOTH, "").replace("new names", "release names");
    keyring.world.write("ci/allowed_signers", &lines);
    keyring.world.commit("rotation");
    let now = ["--signers", "ci/allowed_signers"];
    keyring.refused(&[&["v1"], &now[..]].concat(), &["signer-not-valid", "too-old", "sums"]);
    keyring.accepted(&[&["v1", "--archived"], &now[..]].concat());
    keyring.world.git(&["tag", "v2"]);
    keyring.world.run(&["release", "v2", "--key", keyring.key("release").to_str().unwrap()]).expect(2).says("expired");
    keyring.world.run(&["release", "v2", "--key", keyring.key("new").to_str().unwrap()]).expect(0);
    keyring.accepted(&["v2"]);

    // Revocation holds for the past too, also where the signers of that time are asked.
    keyring.world.write("ci/revoked_keys", &keyring.public("release"));
    keyring.refused(&[&["v1", "--archived"], &now[..]].concat(), &["signer-revoked", "sums"]);
    keyring.world.commit("revocation");
    keyring.refused(&["v1", "--archived"], &["signer-revoked", "sums"]);
    keyring.accepted(&["v2", "--commit", "v2"]);
}
