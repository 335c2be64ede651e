//! Which CPU slots of the pool are given to whom.
