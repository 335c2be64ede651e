#![no_main]

#[allow(dead_code, reason = "each target plays one")]
#[path = "../../xtask/tests/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| properties::banner::holds(bytes));
