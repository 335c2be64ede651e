//! The lock's rooms that need no socket.

mod banner;
mod news;
mod port;
mod stranger;
mod wait;
mod wait_budget;
mod wait_random;
mod wait_stranger;
