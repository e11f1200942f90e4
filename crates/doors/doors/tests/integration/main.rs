//! The doors over real sockets and against the kernel, with this crate's clients, raw clients, and hostile
//! ones.

mod fuse;
mod fuse_support;
mod hostile;
mod kinds;
mod lifecycle;
mod memory;
mod requests;
mod silence;
mod stuck;
mod support;
mod tls_clients;
mod tls_foreign;
mod two_ends;
mod vhost;
