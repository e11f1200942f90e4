//! Doors through which programs use a stack. Each one turns a protocol that programs already know into calls on
//! the contracts of `block`, and promises what the protocol's own document demands.
//!
//! - [`nbd`]: the NBD protocol over unix and TCP sockets, and a batching client for it.
//!
//! Left to others: what a device does with a request (every other crate), sockets and tasks (`runtime`).

pub mod nbd;
