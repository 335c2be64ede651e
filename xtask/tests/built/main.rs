//! Tests that drive the built program with real processes, ports and git repositories.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod adopt;
mod archive;
mod dependencies;
mod interop;
mod interposed;
mod keyring;
mod lock;
mod lock_caller;
mod lock_contender;
mod lock_exclusion;
mod lock_facts;
mod lock_foreign;
mod lock_nested;
mod lock_run;
mod lock_storm;
mod lock_wedge;
mod plan;
mod postgres;
mod postgres_cache;
mod postgres_kills;
mod postgres_programs;
mod postgres_remains;
mod postgres_template;
mod postgres_unpacked;
mod postgres_users;
mod postgres_verify;
mod printer;
mod process;
mod readme;
mod receipt;
mod receipt_changes;
mod receipt_runs;
mod receipt_signers;
mod recipes;
mod release;
mod release_fails;
mod repo;
mod repo_unpinned;
mod report;
mod schema;
mod screen;
mod screens;
mod soak;
mod soak_caller;
mod soak_gate;
mod soak_ground;
mod soak_plan;
mod soak_suite;
mod told;
mod verify;
mod verify_ends;
mod verify_outputs;
#[allow(dead_code, reason = "the tests of one step use a part of it")]
mod world;
