//! Cycles and longest paths among tasks.
