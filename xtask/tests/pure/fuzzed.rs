//! The properties that the fuzz targets play, on the samples that they start from, changed by a seed.

use std::fs;
use std::path::Path;

use crate::properties::{banner, ci_file, history, lifeline, log, receipt, signers, suite};
use crate::receipt_rules::Mangler;

/// The property holds for each sample, and for each changed in some hundred ways.
fn play(target: &str, holds: fn(&[u8]), rounds: u64) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut samples: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    samples.sort_unstable();
    assert!(!samples.is_empty(), "{}", folder.display());
    for sample in samples {
        let good = fs::read(&sample).unwrap();
        holds(&good);
        for seed in 0..rounds {
            holds(&Mangler(seed).mangle(&good));
        }
    }
}

#[test]
fn suites() {
    play("suite", suite::holds, 400);
}

#[test]
fn banners() {
    play("banner", banner::holds, 800);
}

#[test]
fn ci_files() {
    play("ci_file", ci_file::holds, 800);
}

#[test]
fn lifelines() {
    play("lifeline", lifeline::holds, 400);
    // One that is no order any more would show nothing of orders.
    for sample in ["suite", "command"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/lifeline").join(sample);
        let text = fs::read_to_string(path).unwrap();
        serde_json::from_str::<xtask::run::order::Order>(text.lines().next().unwrap()).expect(sample);
    }
}

#[test]
fn logs() {
    play("log", log::holds, 800);
}

#[test]
fn histories() {
    play("history", history::holds, 400);
}

#[test]
fn receipts() {
    play("receipt", receipt::holds, 200);
}

#[test]
fn signers_files() {
    play("signers", signers::holds, 800);
}
