//! Redis clients of a store on zones in memory.

mod client;
mod foreign;
mod replies;
mod server;
