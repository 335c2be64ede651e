//! The lock's rooms that need no socket.

mod banner;
mod news;
mod port;
mod sockets;
mod wait;
mod wait_budget;
mod wait_foreign;
mod wait_random;
