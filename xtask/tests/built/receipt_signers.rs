//! The gate on who signed: signatures, signers and lists of revoked keys, each refused for its own reason.

use std::fs;
use std::process::Command;

use crate::keyring::{Keyring, RECEIPTS, SUITE, signature_of};
use crate::receipt::text;
use crate::receipt_changes::HOUR_MS;
use crate::world::Running;

#[test]
fn signatures_are_refused_each_for_its_own_reason() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    let (signature, good) = (signature_of(&path), fs::read(signature_of(&path)).unwrap());
    let bytes = fs::read(&path).unwrap();
    keyring.accepted(&[text(&path)]);
    let block = String::from_utf8(good.clone()).unwrap();
    let cases: Vec<(&str, Vec<u8>, &str, &str)> = vec![
        ("garbage", b"garbage".to_vec(), "signature-form", "not one SSH signature block"),
        ("nothing", Vec::new(), "signature-form", "not one SSH signature block"),
        ("two blocks", format!("{block}{block}").into(), "signature-form", "more than one signature block"),
        ("text before", format!("text\n{block}").into(), "signature-form", "not one SSH signature block"),
        ("text behind", format!("{block}text\n").into(), "signature-form", "not one SSH signature block"),
        ("no base64", block.replacen("\nU", "\n!", 1).into(), "signature-form", "not base64"),
        ("another file", keyring.signature("local", RECEIPTS, b"other"), "signature-wrong", "not one of these bytes"),
        ("another namespace", keyring.signature("local", "git", &bytes), "signer-namespace", "signed for \"git\""),
        ("another role", keyring.signature("ci", RECEIPTS, &bytes), "signer-role", "signed by a key of ci"),
        (
            "nobody's key",
            keyring.signature("stranger", RECEIPTS, &bytes),
            "signer-unknown",
            "in no line of ci/allowed_signers at HEAD",
        ),
    ];
    for (what, changed, code, words) in cases {
        fs::write(&signature, changed).unwrap();
        assert_eq!(keyring.judge(&[text(&path)]).1, [code], "{what}");
        keyring.world.run(&["check-receipt", text(&path)]).expect(6).says(words);
    }
    fs::remove_file(&signature).unwrap();
    keyring.refused(&[text(&path)], &["signature-missing"]);
    keyring.accepted(&[text(&path), "--unsigned"]);
    keyring.world.run(&["check-receipt"]).expect(6).says("there is no signature");
}

#[test]
fn signers_and_revocations_are_read_strictly() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    keyring.generate("weak", &["-t", "rsa", "-b", "2048"]);
    let signers = keyring.world.folder.path().join("trust/allowed_signers");
    let revoked = signers.with_file_name("revoked_keys");
    fs::create_dir(signers.parent().unwrap()).unwrap();
    let local = |more: &str| keyring.line("local", RECEIPTS, more);
    let (key, other) = (keyring.public("local"), keyring.public("ci"));
    let nobody = "# nobody\n";
    let cases: Vec<(&str, String, &str, &[&str], &str)> = vec![
        ("good", local(""), nobody, &[], ""),
        ("valid now", local(",valid-after=\"20200101Z\",valid-before=\"20990101000000Z\""), nobody, &[], ""),
        (
            "expired",
            local(",valid-before=\"20200101Z\""),
            nobody,
            &["signer-not-valid"],
            "expired at 2020-01-01T00:00:00Z",
        ),
        (
            "not yet valid",
            local(",valid-after=\"20990101Z\""),
            nobody,
            &["signer-not-valid"],
            "is not valid before 2099",
        ),
        ("revoked", local(""), &key, &["signer-revoked"], "is revoked in"),
        ("somebody else revoked", local(""), &other, &[], ""),
        ("twice", local("") + &local(""), nobody, &["signers-file"], "allowed_signers:2: the key of line 1 again"),
        (
            "in two roles",
            local("") + &local("").replace("local names", "ci names"),
            nobody,
            &["signers-file"],
            ":2: the key of line 1 again",
        ),
        (
            "wildcard",
            local("").replace("local names", "* names"),
            nobody,
            &["signers-file", "signer-unknown"],
            "\"*\" is not one of local, ci, release",
        ),
        (
            "several roles",
            local("").replace("local names", "local,ci names"),
            nobody,
            &["signers-file", "signer-unknown"],
            "is not one of local",
        ),
        ("no namespace", format!("local {key}"), nobody, &["signers-file", "signer-unknown"], "may sign anything"),
        (
            "any namespace",
            local("").replace(RECEIPTS, "*"),
            nobody,
            &["signers-file", "signer-unknown"],
            "the namespace \"*\"",
        ),
        (
            "namespace of another role",
            local("").replace(RECEIPTS, "xtask-release-v1"),
            nobody,
            &["signers-file", "signer-unknown"],
            "local may not sign",
        ),
        (
            "local time",
            local(",valid-before=\"20990101\""),
            nobody,
            &["signers-file", "signer-unknown"],
            "is not a time in UTC",
        ),
        (
            "no such day",
            local(",valid-before=\"20991341Z\""),
            nobody,
            &["signers-file", "signer-unknown"],
            "is not a time in UTC",
        ),
        (
            "authority",
            local(",cert-authority"),
            nobody,
            &["signers-file", "signer-unknown"],
            "\"cert-authority\" is unknown",
        ),
        (
            "weak",
            local("") + &keyring.line("weak", RECEIPTS, "").replace("weak names", "ci names"),
            nobody,
            &["signers-file"],
            "2048 bits is too weak",
        ),
        ("broken", local("") + "ci\n", nobody, &["signers-file"], "allowed_signers:2: expected: ROLE"),
        (
            "half a key",
            local("") + "ci namespaces=\"xtask-receipt-v1\" ssh-ed25519 AAAA\n",
            nobody,
            &["signers-file"],
            "is not the ssh-ed25519 key",
        ),
        ("nobody", "# nobody\n".to_owned(), nobody, &["signer-unknown"], "in no line"),
        ("empty list of revoked keys", local(""), "", &["revoked-file"], "revoked_keys: the file is empty"),
        ("broken list of revoked keys", local(""), "SHA256:abc\n", &["revoked-file"], "revoked_keys:1:"),
    ];
    for (what, lines, list, codes, words) in cases {
        fs::write(&signers, lines).unwrap();
        fs::write(&revoked, list).unwrap();
        let args = [text(&path), "--signers", text(&signers)];
        assert_eq!(keyring.judge(&args).1, codes, "{what}");
        if !words.is_empty() {
            keyring.world.run(&[&["check-receipt"], &args[..]].concat()).expect(6).says(words);
        }
    }
    fs::write(&signers, local("")).unwrap();
    fs::remove_file(&revoked).unwrap();
    keyring.refused(&[text(&path), "--signers", text(&signers)], &["revoked-file"]);
    fs::remove_file(&signers).unwrap();
    fs::write(&revoked, nobody).unwrap();
    keyring.refused(&[text(&path), "--signers", text(&signers)], &["signers-file", "signer-unknown"]);
}

/// A list in ssh-keygen's own binary form: ssh-keygen alone can tell.
#[test]
fn a_binary_list_of_revoked_keys_revokes() {
    let keyring = Keyring::new(SUITE);
    let path = keyring.verify("local");
    let trust = keyring.world.folder.path().join("trust");
    fs::create_dir(&trust).unwrap();
    fs::write(trust.join("allowed_signers"), keyring.line("local", RECEIPTS, "")).unwrap();
    let signers = trust.join("allowed_signers");
    for (revoked, codes) in [("ci", &[][..]), ("local", &["signature-wrong"])] {
        let list = trust.join("revoked_keys");
        let public = keyring.key(revoked).with_extension("pub");
        let made = Command::new("ssh-keygen").args(["-q", "-k", "-f"]).arg(&list).arg(public).status().unwrap();
        assert!(made.success());
        keyring.refused(&[text(&path), "--signers", text(&signers)], codes);
    }
}

/// Who takes the list away takes every revocation back.
#[test]
fn a_list_of_revoked_keys_that_is_gone_by_now_refuses() {
    let keyring = Keyring::new(SUITE);
    keyring.verify("local");
    let first = keyring.world.git(&["rev-parse", "HEAD"]);
    keyring.world.write("ci/revoked_keys", &keyring.public("local"));
    keyring.world.commit("local is revoked");
    keyring.refused(&["--commit", &first], &["signer-revoked"]);
    keyring.world.git(&["rm", "--quiet", "ci/revoked_keys"]);
    keyring.world.commit("no list");
    keyring.refused(&["--commit", &first], &["revoked-file"]);
    keyring.world.run(&["check-receipt", "--commit", &first]).expect(6).says("ci/revoked_keys at HEAD");
}

/// A line of allowed_signers that is for releases alone, and a time zone far away.
#[test]
fn a_key_counts_for_its_namespaces_and_in_no_time_zone() {
    let keyring = Keyring::new(SUITE);
    let trust = keyring.world.folder.path().join("trust");
    fs::create_dir(&trust).unwrap();
    let (signers, good) = (trust.join("allowed_signers"), fs::read(keyring.verify("local")).unwrap());
    fs::write(trust.join("revoked_keys"), "# nobody\n").unwrap();
    fs::write(&signers, keyring.line("release", "xtask-release-v1", "")).unwrap();
    let path = keyring.signed("receipt", &good, "release");
    keyring.refused(&[text(&path), "--signers", text(&signers)], &["signer-namespace", "signer-role"]);

    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let time = |ms: u64| xtask::time::utc(ms).chars().filter(char::is_ascii_digit).collect::<String>();
    let (after, before) = (time(now - HOUR_MS), time(now + HOUR_MS));
    let more = format!(",valid-after=\"{after}Z\",valid-before=\"{before}Z\"");
    fs::write(&signers, keyring.line("local", RECEIPTS, &more)).unwrap();
    let path = keyring.signed("receipt", &good, "local");
    for zone in ["EAST-14", "WEST+12", "UTC"] {
        let mut command = keyring.world.command(&["check-receipt", text(&path), "--signers", text(&signers)]);
        command.env("TZ", zone);
        Running::start(command, &keyring.world.folder).wait().expect(0);
    }
}

/// Nobody is asked for a passphrase or a PIN, on a desktop either.
#[test]
fn ssh_keygen_is_told_to_ask_nobody() {
    let keyring = Keyring::new(SUITE);
    let mut command = keyring.world.command(&["verify", "--key", text(&keyring.key("local"))]);
    let told = keyring.world.folder.path().join("told");
    let script = format!("case \"$*\" in *'-Y sign'*) echo $SSH_ASKPASS_REQUIRE >> {};; esac", told.display());
    keyring.before_ssh_keygen(&mut command, &script);
    command.env("SSH_ASKPASS_REQUIRE", "force");
    Running::start(command, &keyring.world.folder).wait().expect(0);
    assert_eq!(fs::read_to_string(told).unwrap(), "never\nnever\n");
}
