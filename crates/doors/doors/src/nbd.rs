//! The NBD door, which serves devices to NBD clients, and an NBD client.
//!
//! The wire format is in sans-io modules, which never wait: [`protocol`] (numbers and messages),
//! [`negotiation`] (the handshake), [`request`] (parsing and checking of requests). The others: `budget`
//! bounds the memory of all clients together, `opening` makes the handshake, `connection` serves one client
//! on one shard, [`server`] listens and hands connections to shards, [`source`] provides exports that are
//! created on demand, [`door`] declares the kind, [`single`] serves one client that is connected
//! already, [`client`] is the client, `uri` has NBD URIs, [`kernel`]
//! controls the kernel's client. [`served`](crate::served) executes requests on devices.

mod budget;
pub mod client;
mod connection;
pub mod door;
pub mod kernel;
pub mod negotiation;
mod opening;
pub mod protocol;
mod replies;
pub mod request;
pub mod server;
pub mod single;
pub mod source;
mod uri;
mod work;
