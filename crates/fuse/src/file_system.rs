//! The trait that a file system implements, and its types.
//!
//! A [`FileSystemPart`] is built once and opened on each shard into a [`FileSystem`], which serves the
//! requests of that shard, many at a time. A request may arrive on any shard, also for a file that was opened
//! on another one. An operation that isn't implemented fails with ENOSYS; the kernel then does without it
//! where the protocol permits that.
//!
//! The kernel implements locks (`flock`, POSIX).

use crate::protocol::{Attr, AttrOut, EntryOut, OpenOut, SetattrIn, StatfsOut, UNIQUE_RESENT, flag, valid};
use crate::reply::{DirectoryEntries, DirectoryEntriesPlus};
use block::{Buffer, Call, Data, Error, Payload, Result};
use std::rc::Rc;
use std::time::Duration;

/// Request that an operation belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Number of the request, for [`FileSystem::interrupt`].
    pub unique: u64,
    /// User of the calling process, for access to the file system.
    pub uid: u32,
    /// Group of the calling process, for access to the file system.
    pub gid: u32,
    /// Calling thread; 0 for requests of the kernel.
    pub pid: u32,
}

impl Context {
    /// Whether the kernel has resent the request: an earlier server may have executed it, and didn't answer
    /// it.
    pub fn is_resent(&self) -> bool {
        self.unique & UNIQUE_RESENT != 0
    }
}

/// Point in time: seconds and nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Number of the node.
    pub node: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub accessed: Timestamp,
    /// Time of the last change of the data.
    pub modified: Timestamp,
    /// Time of the last change of the attributes.
    pub changed: Timestamp,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub device: u32,
    /// Preferred size of reads and writes in bytes.
    pub block_size: u32,
}

impl Attributes {
    fn frame(&self) -> Attr {
        Attr {
            ino: self.node,
            size: self.size,
            blocks: self.blocks,
            atime: self.accessed.seconds as u64,
            mtime: self.modified.seconds as u64,
            ctime: self.changed.seconds as u64,
            atimensec: self.accessed.nanoseconds,
            mtimensec: self.modified.nanoseconds,
            ctimensec: self.changed.nanoseconds,
            mode: self.mode,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: self.device,
            blksize: self.block_size,
            flags: 0,
        }
    }

    /// Reply to GETATTR with these attributes, which the kernel may cache for this time.
    pub(crate) fn cached_for(&self, time: Duration) -> AttrOut {
        AttrOut {
            attr_valid: time.as_secs(),
            attr_valid_nsec: time.subsec_nanos(),
            dummy: 0,
            attr: self.frame(),
        }
    }
}

/// Attributes and the time for which the kernel may cache them.
pub type CachedAttributes = (Attributes, Duration);

/// Result of a lookup. The kernel holds one more lookup of the node until it forgets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// Attributes of the node. A node number of 0 means that the name doesn't exist and that this may be
    /// cached.
    pub attributes: Attributes,
    /// Generation number, which differs between nodes that reuse a node number.
    pub generation: u64,
    /// Time for which the kernel may cache the name.
    pub name_time: Duration,
    /// Time for which the kernel may cache the attributes.
    pub attributes_time: Duration,
}

impl Entry {
    pub(crate) fn frame(&self) -> EntryOut {
        EntryOut {
            nodeid: self.attributes.node,
            generation: self.generation,
            entry_valid: self.name_time.as_secs(),
            attr_valid: self.attributes_time.as_secs(),
            entry_valid_nsec: self.name_time.subsec_nanos(),
            attr_valid_nsec: self.attributes_time.subsec_nanos(),
            attr: self.attributes.frame(),
        }
    }
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// Number of the open file in later requests.
    pub handle: u64,
    /// Flags of [`open_flag`](crate::protocol::open_flag).
    pub flags: u32,
}

impl Opened {
    pub(crate) fn frame(&self) -> OpenOut {
        OpenOut { fh: self.handle, open_flags: self.flags, backing_id: 0 }
    }
}

/// New value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to set; `None` leaves them unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Open file of the call, if there is one.
    pub handle: Option<u64>,
    /// Permissions, as in `st_mode`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Time of the last access.
    pub accessed: Option<SetTime>,
    /// Time of the last change of the data.
    pub modified: Option<SetTime>,
    /// Time of the last change of the attributes.
    pub changed: Option<Timestamp>,
    /// Clear the setuid and setgid bits.
    pub clear_set_id: bool,
}

impl SetAttributes {
    pub(crate) fn of(arguments: &SetattrIn) -> Self {
        let is = |bit: u32| arguments.valid & bit != 0;
        let time = |bit, now, seconds: u64, nanoseconds| match (is(bit), is(now)) {
            (_, true) => Some(SetTime::Now),
            (true, false) => Some(SetTime::At(Timestamp { seconds: seconds as i64, nanoseconds })),
            (false, false) => None,
        };
        SetAttributes {
            handle: is(valid::FH).then_some(arguments.fh),
            mode: is(valid::MODE).then_some(arguments.mode),
            uid: is(valid::UID).then_some(arguments.uid),
            gid: is(valid::GID).then_some(arguments.gid),
            size: is(valid::SIZE).then_some(arguments.size),
            accessed: time(valid::ATIME, valid::ATIME_NOW, arguments.atime, arguments.atimensec),
            modified: time(valid::MTIME, valid::MTIME_NOW, arguments.mtime, arguments.mtimensec),
            changed: is(valid::CTIME)
                .then_some(Timestamp { seconds: arguments.ctime as i64, nanoseconds: arguments.ctimensec }),
            clear_set_id: is(valid::KILL_SUIDGID),
        }
    }
}

/// Sizes for `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Size of a block in bytes.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub free: u64,
    /// Number of free blocks for users without privileges.
    pub available: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of nodes that can still be created.
    pub free_nodes: u64,
    /// Longest name in bytes.
    pub name_bytes: u32,
}

impl Statistics {
    pub(crate) fn frame(&self) -> StatfsOut {
        StatfsOut {
            blocks: self.blocks,
            bfree: self.free,
            bavail: self.available,
            files: self.nodes,
            ffree: self.free_nodes,
            bsize: self.block_size,
            namelen: self.name_bytes,
            frsize: self.block_size,
            ..StatfsOut::default()
        }
    }
}

/// A read of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Open file.
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub size: u32,
    /// Flags of the open file (`O_DIRECT`, …).
    pub flags: i32,
}

/// A write to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Open file; a guess if the write is [from the page cache](Self::from_page_cache).
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Flags of the open file and of the call (`O_DSYNC`, `O_APPEND`, …).
    pub flags: i32,
    /// Bits of [`flag`]: `WRITE_*`.
    pub write_flags: u32,
}

impl Write {
    /// Whether the kernel writes back its page cache: owner and open file then aren't those of the writer.
    pub fn from_page_cache(&self) -> bool {
        self.write_flags & flag::WRITE_CACHE != 0
    }
}

/// End of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Open file.
    pub handle: u64,
    /// Flags of the open file.
    pub flags: i32,
}

/// A copy from one file to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRange {
    /// Open file to read.
    pub from_handle: u64,
    /// Offset in the file to read, in bytes.
    pub from_offset: u64,
    /// Node to write.
    pub to_node: u64,
    /// Open file to write.
    pub to_handle: u64,
    /// Offset in the file to write, in bytes.
    pub to_offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Flags of copy_file_range(2).
    pub flags: u64,
}

/// Error of an operation that isn't implemented.
fn missing<'a, T: 'a>() -> Call<'a, Result<T>> {
    Call::ready(Err(Error::Os(libc::ENOSYS, "not implemented by this file system".into())))
}

/// A file system, opened on one shard.
///
/// A node is identified by the number that its lookup returned; [`ROOT`](crate::protocol::ROOT) needs no
/// lookup. Names are single components, without `/` and NUL; see [`request`](crate::request).
#[allow(unused_variables)] // The defaults don't use their arguments.
pub trait FileSystem {
    /// Finds the node with this name.
    fn lookup<'a>(&'a self, context: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<Entry>> {
        missing()
    }

    /// Forgets this many lookups of a node. Without lookups, no request names the node until it is looked up
    /// again.
    fn forget(&self, node: u64, lookups: u64) {}

    /// Returns the attributes of a node. `handle` is an open file of it, if there is one.
    fn attributes(
        &self,
        context: Context,
        node: u64,
        handle: Option<u64>,
    ) -> Call<'_, Result<CachedAttributes>> {
        missing()
    }

    /// Sets attributes of a node and returns the new ones.
    fn set_attributes(
        &self,
        context: Context,
        node: u64,
        set: SetAttributes,
    ) -> Call<'_, Result<CachedAttributes>> {
        missing()
    }

    /// Returns the target of a symbolic link.
    fn read_link(&self, context: Context, node: u64) -> Call<'_, Result<Data>> {
        missing()
    }

    /// Creates a symbolic link.
    fn symbolic_link<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        target: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        missing()
    }

    /// Creates a regular file, a FIFO, a socket or a device node; `mode` has the type, `device` its number.
    fn make_node<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        umask: u32,
        device: u32,
    ) -> Call<'a, Result<Entry>> {
        missing()
    }

    /// Creates a directory.
    fn make_directory<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        umask: u32,
    ) -> Call<'a, Result<Entry>> {
        missing()
    }

    /// Removes a name of a node that isn't a directory.
    fn unlink<'a>(&'a self, context: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        missing()
    }

    /// Removes an empty directory.
    fn remove_directory<'a>(&'a self, context: Context, parent: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        missing()
    }

    /// Renames; `flags` are those of renameat2(2), 0 for rename(2).
    fn rename<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    ) -> Call<'a, Result<()>> {
        missing()
    }

    /// Adds a name for a node.
    fn link<'a>(
        &'a self,
        context: Context,
        node: u64,
        new_parent: u64,
        new_name: &'a [u8],
    ) -> Call<'a, Result<Entry>> {
        missing()
    }

    /// Opens a file; `flags` are those of open(2) without O_CREAT, O_EXCL and O_NOCTTY.
    fn open(&self, context: Context, node: u64, flags: i32) -> Call<'_, Result<Opened>> {
        missing()
    }

    /// Creates a file and opens it.
    fn create<'a>(
        &'a self,
        context: Context,
        parent: u64,
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Call<'a, Result<(Entry, Opened)>> {
        missing()
    }

    /// Creates an unnamed file and opens it (O_TMPFILE).
    fn temporary_file(
        &self,
        context: Context,
        parent: u64,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Call<'_, Result<(Entry, Opened)>> {
        missing()
    }

    /// Reads at most `read.size` bytes; fewer only at the end of the file.
    fn read(&self, context: Context, node: u64, read: Read) -> Call<'_, Result<Payload>> {
        missing()
    }

    /// Writes the filled bytes of the buffer and returns their number. The buffer is aligned to
    /// [`ALIGNMENT`](block::buffer::ALIGNMENT), and only this write uses it.
    fn write(&self, context: Context, node: u64, write: Write, data: Buffer) -> Call<'_, Result<u32>> {
        missing()
    }

    /// Returns the sizes of the file system.
    fn statistics(&self, context: Context, node: u64) -> Call<'_, Result<Statistics>> {
        missing()
    }

    /// Handles a close(2), which returns the error. A file with duplicated descriptors is flushed several
    /// times.
    fn flush(&self, context: Context, node: u64, handle: u64) -> Call<'_, Result<()>> {
        missing()
    }

    /// Ends an open file. The caller doesn't get the result.
    fn release(&self, context: Context, node: u64, release: Release) -> Call<'_, Result<()>> {
        missing()
    }

    /// Makes a file durable; with `data_only` as fdatasync(2).
    fn sync(&self, context: Context, node: u64, handle: u64, data_only: bool) -> Call<'_, Result<()>> {
        missing()
    }

    /// Sets an extended attribute; `flags` are those of setxattr(2).
    fn set_extended<'a>(
        &'a self,
        context: Context,
        node: u64,
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    ) -> Call<'a, Result<()>> {
        missing()
    }

    /// Returns the value of an extended attribute.
    fn extended<'a>(&'a self, context: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<Data>> {
        missing()
    }

    /// Returns the names of the extended attributes, each followed by a NUL.
    fn list_extended(&self, context: Context, node: u64) -> Call<'_, Result<Data>> {
        missing()
    }

    /// Removes an extended attribute.
    fn remove_extended<'a>(&'a self, context: Context, node: u64, name: &'a [u8]) -> Call<'a, Result<()>> {
        missing()
    }

    /// Opens a directory.
    fn open_directory(&self, context: Context, node: u64, flags: i32) -> Call<'_, Result<Opened>> {
        missing()
    }

    /// Adds entries starting at `offset`, where 0 is the beginning, until they don't fit or the directory
    /// ends.
    fn read_directory(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        entries: DirectoryEntries,
    ) -> Call<'_, Result<DirectoryEntries>> {
        missing()
    }

    /// As [`read_directory`](Self::read_directory), with attributes. Called only with the capability
    /// DO_READDIRPLUS.
    fn read_directory_plus(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        entries: DirectoryEntriesPlus,
    ) -> Call<'_, Result<DirectoryEntriesPlus>> {
        missing()
    }

    /// Ends an open directory. The caller doesn't get the result.
    fn release_directory(&self, context: Context, node: u64, release: Release) -> Call<'_, Result<()>> {
        missing()
    }

    /// Makes a directory durable.
    fn sync_directory(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        data_only: bool,
    ) -> Call<'_, Result<()>> {
        missing()
    }

    /// Checks permissions for access(2). Not called with the mount option `default_permissions`.
    fn access(&self, context: Context, node: u64, mask: u32) -> Call<'_, Result<()>> {
        missing()
    }

    /// Allocates, frees or zeroes space of a file; `mode` is that of fallocate(2).
    fn allocate(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Call<'_, Result<()>> {
        missing()
    }

    /// Returns the next offset with data (SEEK_DATA) or in a hole (SEEK_HOLE).
    fn seek(
        &self,
        context: Context,
        node: u64,
        handle: u64,
        offset: u64,
        whence: i32,
    ) -> Call<'_, Result<u64>> {
        missing()
    }

    /// Copies a range and returns the number of bytes that were copied.
    fn copy_range(&self, context: Context, node: u64, copy: CopyRange) -> Call<'_, Result<u64>> {
        missing()
    }

    /// Makes everything durable, for syncfs(2).
    fn sync_all(&self, context: Context, node: u64) -> Call<'_, Result<()>> {
        missing()
    }

    /// Called when a signal has interrupted the caller of a request. The request may end with EINTR, and is
    /// answered in any case. It may have ended already, or another shard may have read it.
    fn interrupt(&self, unique: u64) {}

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
