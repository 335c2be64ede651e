//! Tests of the pure floors: no processes, no files, no real time.

mod house;
mod lock_wait;
mod names;
mod plan;
mod receipt;
mod schedule;
mod suite;
