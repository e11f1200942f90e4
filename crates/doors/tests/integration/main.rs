//! The doors: over real sockets, against the kernel, with clients of our own, clients that speak bytes, and hostile ones.

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
mod two_ends;
mod vhost;
