//! What must be true of any bytes whatever, once for each place where bytes of others come in. `tests/pure/fuzzed.rs` plays
//! these on good samples changed by a seed; the fuzz targets below `fuzz/` play them for as long as one lets them.

pub mod banner;
pub mod ci_file;
pub mod history;
pub mod lifeline;
pub mod log;
pub mod receipt;
pub mod signers;
pub mod suite;

/// One line that a terminal only shows: no control characters, nothing that turns the direction of writing.
fn plain(line: &str) -> bool {
    line.chars().all(|c| !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}
