//! Redis clients, on a store on zones in memory.

mod client;
mod foreign;
mod replies;
mod server;
