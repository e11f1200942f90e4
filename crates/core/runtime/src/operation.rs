//! Operations of a shard, for the kernel or for the simulated world: one enum, which owns all data of the
//! operation until it has ended.

use crate::address::Address;
use crate::ring_entry::RingEntry;
use block::{Buffer, Payload};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// An open file or socket of one shard. Operations in flight keep it open.
pub(crate) enum Descriptor {
    /// A descriptor of the kernel, and its slot in the ring's table of registered files.
    Kernel { fd: OwnedFd, slot: Option<u32> },
    /// A handle of the simulated world.
    Simulated(u64),
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        match self {
            Descriptor::Kernel { slot: Some(slot), .. } => crate::shard::release_file_slot(*slot),
            Descriptor::Kernel { slot: None, .. } => {}
            Descriptor::Simulated(handle) => crate::shard::close_simulated(*handle),
        }
    }
}

/// An operation. Its result is that of the kernel's call of the same name: a count or a descriptor, or a
/// negative error number.
pub(crate) enum Operation {
    /// Reads into the unfilled part of the buffer.
    Read { file: Rc<Descriptor>, offset: u64, buffer: Buffer },
    /// Writes the payload without its first `skip` bytes.
    Write { file: Rc<Descriptor>, offset: u64, payload: Payload, skip: usize, durable: bool },
    /// fdatasync, or fsync with `metadata`.
    Sync { file: Rc<Descriptor>, metadata: bool },
    /// fallocate with these mode bits.
    Allocate { file: Rc<Descriptor>, mode: i32, offset: u64, length: u64 },
    /// ftruncate.
    Truncate { file: Rc<Descriptor>, length: u64 },
    /// openat relative to the working directory.
    Open { path: CString, flags: i32, mode: u32 },
    /// renameat.
    Rename { from: CString, to: CString },
    /// unlinkat.
    Unlink { path: CString },
    /// Waits for a connection.
    Accept { listener: Rc<Descriptor> },
    /// Connects; the address is in the operation's slot.
    Connect { socket: Rc<Descriptor>, address: Address },
    /// Receives into the unfilled part of the buffer.
    Receive { socket: Rc<Descriptor>, buffer: Buffer },
    /// Sends the payload without its first `skip` bytes.
    Send { socket: Rc<Descriptor>, payload: Payload, skip: usize },
    /// Waits until a read wouldn't block.
    Readable { file: Rc<Descriptor> },
    /// Shuts one or both directions down: SHUT_RD, SHUT_WR, SHUT_RDWR.
    Shutdown { socket: Rc<Descriptor>, how: i32 },
    /// Polls the device and reads one message into the unfilled parts of both buffers, in this order.
    ReceiveMessage { file: Rc<Descriptor>, head: Buffer, body: Buffer },
    /// IORING_OP_URING_CMD: a command of the device's driver, without an address in it.
    Command { file: Rc<Descriptor>, operation: u32, command: [u8; 16] },
    /// Answers the request with this commit ID, if any, and waits for the next request of the entry.
    FuseEntry { file: Rc<Descriptor>, entry: RingEntry, commit: Option<u64> },
}

impl Operation {
    /// Name in a simulation's trace.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Operation::Read { .. } => "read",
            Operation::Write { .. } => "write",
            Operation::Sync { .. } => "sync",
            Operation::Allocate { .. } => "allocate",
            Operation::Truncate { .. } => "truncate",
            Operation::Open { .. } => "open",
            Operation::Rename { .. } => "rename",
            Operation::Unlink { .. } => "unlink",
            Operation::Accept { .. } => "accept",
            Operation::Connect { .. } => "connect",
            Operation::Receive { .. } => "receive",
            Operation::Send { .. } => "send",
            Operation::Readable { .. } => "poll",
            Operation::Shutdown { .. } => "shutdown",
            Operation::ReceiveMessage { .. } => "receive-message",
            Operation::Command { .. } => "command",
            Operation::FuseEntry { .. } => "fuse-entry",
        }
    }

    /// Whether the operation may wait for a peer without limit, so that abandoning it has to cancel it.
    /// Operations on files end by themselves, and cancelling one could leave a write half done.
    pub(crate) fn waits_for_a_peer(&self) -> bool {
        use Operation::{Accept, Connect, Readable, Receive, ReceiveMessage, Send};
        matches!(
            self,
            Accept { .. }
                | Connect { .. }
                | Receive { .. }
                | Send { .. }
                | Readable { .. }
                | ReceiveMessage { .. }
        )
    }

    /// Whether the kernel uses memory of this process until the operation has ended. A command has none, or
    /// memory that the kernel uses only while the ring is open. It may be impossible to cancel: the kernel
    /// ends it when the ring closes.
    pub(crate) fn uses_memory(&self) -> bool {
        !matches!(self, Operation::Command { .. } | Operation::FuseEntry { .. })
    }

    /// Whether the result is a new descriptor, which an abandoned operation must close.
    pub(crate) fn returns_a_descriptor(&self) -> bool {
        matches!(self, Operation::Accept { .. } | Operation::Open { .. })
    }
}
