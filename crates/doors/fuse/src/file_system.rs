//! The trait that a file system implements.
//!
//! A [`FileSystemPart`] is built once and opened on each shard into a [`FileSystem`], which serves the
//! requests of that shard, many at a time. A request may arrive on any shard, also for a file that was opened
//! on another one.
//!
//! # Nodes
//! A node is identified by the number that its lookup returned; [`ROOT`](crate::protocol::ROOT) needs no
//! lookup. Each [`Reply::Entry`], [`Reply::Created`] and [entry with
//! attributes](crate::DirectoryEntries::add_found) counts as one lookup, until the kernel
//! [forgets](FileSystem::forget) it. An open file has the handle that its open returned.
//!
//! # Errors
//! An error is answered with its [number](block::Error::errno). After ENOSYS ([`not_implemented`]) the kernel
//! no longer sends most operations: FLUSH and FSYNC succeed, CREATE is replaced by MKNOD and OPEN.
//!
//! The kernel implements locks (`flock`, POSIX).

use crate::operation::Operation;
use crate::protocol::{InHeader, UNIQUE_RESENT};
use crate::reply::Reply;
use block::{Call, Error, Result};
use std::rc::Rc;

/// Request that an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Number of the request, for [`FileSystem::interrupt`].
    pub unique: u64,
    /// Node of the operation: the directory of a name, the file to read or to write. Any node of the file
    /// system for operations on all of it.
    pub node: u64,
    /// User of the calling process, for access to the file system.
    pub uid: u32,
    /// Group of the calling process, for access to the file system.
    pub gid: u32,
    /// Calling thread; 0 for requests of the kernel.
    pub pid: u32,
}

impl Context {
    pub(crate) fn of(header: &InHeader) -> Self {
        let InHeader { unique, nodeid: node, uid, gid, pid, .. } = *header;
        Context { unique, node, uid, gid, pid }
    }

    /// Whether the kernel has resent the request: an earlier server may have executed it, and didn't answer
    /// it.
    pub fn is_resent(&self) -> bool {
        self.unique & UNIQUE_RESENT != 0
    }
}

/// Error of an operation that a file system doesn't implement.
#[cold]
pub fn not_implemented() -> Error {
    Error::Os(libc::ENOSYS, "not implemented by this file system".into())
}

/// A file system, opened on one shard.
pub trait FileSystem {
    /// Executes an operation.
    ///
    /// The caller guarantees names of the form that [`Operation`] states, at most
    /// [`MAX_WRITE`](crate::negotiation::MAX_WRITE) bytes for a read, a write or the entries of a directory,
    /// and one call for each request. It awaits the call to its end: also after an
    /// [interrupt](Self::interrupt).
    ///
    /// An implementation must return the reply that the operation documents, and
    /// [`not_implemented`] for operations that it doesn't know. It may begin the work before the call is
    /// awaited. Operations in flight, on this and other shards, have no order.
    fn serve<'a>(&'a self, context: Context, operation: Operation<'a>) -> Call<'a, Result<Reply>>;

    /// Forgets this many lookups of a node. Without lookups, no request names the node until it is looked up
    /// again. The kernel expects no answer, so an implementation must not wait.
    fn forget(&self, node: u64, lookups: u64) {
        let _ = (node, lookups);
    }

    /// Called when a signal has interrupted the caller of a request. The request may end with EINTR, and is
    /// answered in any case. It may have ended already, or another shard may have read it.
    fn interrupt(&self, unique: u64) {
        let _ = unique;
    }

    /// Called at the end of the connection, if the kernel announces it.
    fn destroy(&self) {}
}

/// A file system, built once and shared by all shards.
pub trait FileSystemPart: Send + Sync {
    /// Capabilities ([`init_flag`](crate::protocol::init_flag)) that the file system requests in addition to
    /// those of every session.
    fn capabilities(&self) -> u64 {
        0
    }

    /// Opens the file system for the calling shard.
    fn open(&self) -> Call<'_, Result<Rc<dyn FileSystem>>>;
}
