//! The NBD door: serves devices to whoever speaks the NBD protocol, and a client that speaks it.
//!
//! What the wire says is in sans-io modules, which never wait: [`protocol`] (numbers and messages),
//! [`negotiation`] (the handshake), [`request`] (what a request asks, and the cutting of a stream into requests).
//! What happens then: `budget` bounds the memory of all clients together, `connection` serves one client on one shard, [`in_flight`] drives its device calls without
//! a task each, [`write_gate`] keeps requests that aren't whole blocks from losing those that are, [`server`]
//! listens and hands connections to shards, [`door`] declares the kind, [`client`] is the other end.

mod budget;
pub mod client;
mod connection;
pub mod door;
mod export;
pub mod in_flight;
pub mod negotiation;
pub mod protocol;
mod replies;
pub mod request;
pub mod server;
mod work;
pub mod write_gate;
