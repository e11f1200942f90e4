//! The vhost-user-blk door, which serves a device to a virtual machine (QEMU, Cloud Hypervisor, libvirt) as
//! its disk.
//!
//! The front-end (the virtual machine's process) connects to a unix socket, passes the guest's memory and the
//! queues, and afterwards only the guest and this door handle a request: [`ring`] takes it from the guest's
//! memory, [`request`] parses it, `queue` executes it on the shard of its queue. [`protocol`] has the
//! messages of the socket, `connection` the state that they change, [`memory`] the guest's memory,
//! [`inflight`] the record of requests in flight that outlives a killed server, [`config`] the disk's
//! features and properties, [`door`] the kind.
//!
//! # Promises
//! - A guest's flush is a flush of the device. Without VIRTIO_BLK_F_FLUSH each write is durable before it is
//!   completed. VIRTIO_BLK_F_CONFIG_WCE isn't offered: the cache mode doesn't change.
//! - Guest and front-end aren't trusted: any contents of rings, descriptors and messages end at most their
//!   own connection, with an error that names the violation. A request outside of the disk is answered with
//!   VIRTIO_BLK_S_IOERR.
//! - A queue has at most 128 requests and less than 72 MiB of their data in flight.
//! - When a queue stops, its requests in flight have ended and are completed in its ring.
//!
//! # Cost
//! The data of a request is copied once, between guest memory and a buffer of the shard. The guest may change
//! its memory at any time, and [`block::Data`] promises that its bytes don't change (a mirror's legs and
//! checksums rely on it), so a buffer can't borrow guest memory. In steady state a request needs no
//! allocation and no task, and no system call while the queue is busy.
//!
//! # Why not rust-vmm
//! `vhost` receives messages with blocking calls on a thread of its own. `virtio-queue` ends an invalid
//! descriptor chain as if it were complete, and here it has to end the connection with its reason.
//! `vm-memory` doesn't survive a memory file that is truncated. Only constants would remain.
//!
//! Specifications: "Vhost-user Protocol" of QEMU; Virtual I/O Device (VIRTIO) 1.2, sections 2.7 (split
//! virtqueues) and 5.2 (block device).

pub mod config;
mod connection;
mod descriptors;
pub mod door;
pub mod inflight;
pub mod memory;
pub mod protocol;
mod queue;
pub mod request;
pub mod ring;
