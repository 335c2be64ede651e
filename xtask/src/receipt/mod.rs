//! Receipts: what a run says of itself, and the rules by which a gate judges that. Pure: bytes and facts in, reasons out.

pub mod build;
pub mod past;
pub mod rules;
pub mod signers;
pub mod statement;
