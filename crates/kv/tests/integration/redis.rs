//! Redis clients, on a store in memory.

mod client;
mod foreign;
mod memory;
mod replies;
mod server;
