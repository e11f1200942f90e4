//! Operations on the nodes of a file system, as the parser returns them: one [`Operation`] for each request
//! of the kernel that [`FileSystem::serve`](crate::FileSystem::serve) answers.

use crate::directory::DirectoryEntries;
use crate::negotiation::MAX_WRITE;
use crate::protocol::{CopyFileRangeIn, ReadIn, SetattrIn, WriteIn, flag, opcode, valid};
use block::Buffer;

/// Operation on the node [`Context::node`](crate::Context::node). The words after a colon name
/// the [`Reply`](crate::Reply) that answers it.
///
/// A `name` is that of an entry in the directory `Context::node`: 1 to
/// [`MAX_NAME`](crate::protocol::MAX_NAME) bytes without `/` and NUL; only in a lookup also `.` or `..`.
/// A `handle` is an open file of the node. A `mode` has type and permissions as in `st_mode`; the kernel has
/// applied the `umask` unless the capability DONT_MASK was negotiated.
#[derive(Debug)]
#[allow(missing_docs)] // The fields are documented with their operations.
pub enum Operation<'a> {
    /// Finds the node with a name: an entry.
    Lookup { name: &'a [u8] },
    /// Returns the attributes: attributes.
    GetAttributes { handle: Option<u64> },
    /// Sets attributes and returns the new ones: attributes.
    SetAttributes(SetAttributes),
    /// Returns the target of a symbolic link: bytes.
    ReadLink,
    /// Creates a symbolic link: an entry.
    SymbolicLink { name: &'a [u8], target: &'a [u8] },
    /// Creates a regular file, a FIFO, a socket or a device node, with the number `device`: an entry.
    MakeNode { name: &'a [u8], mode: u32, umask: u32, device: u32 },
    /// Creates a directory; `mode` has only permissions: an entry.
    MakeDirectory { name: &'a [u8], mode: u32, umask: u32 },
    /// Removes a name of a node that isn't a directory: done.
    Unlink { name: &'a [u8] },
    /// Removes an empty directory: done.
    RemoveDirectory { name: &'a [u8] },
    /// Renames; `flags` are those of renameat2(2), 0 for rename(2): done.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Adds a name for the node `linked`: an entry.
    Link { linked: u64, name: &'a [u8] },
    /// Opens a file; `flags` are those of open(2) without O_CREAT, O_EXCL and O_NOCTTY: opened.
    Open { flags: i32 },
    /// Reads; returns fewer bytes than requested only at the end of the file: bytes.
    Read(Read),
    /// Writes, and returns the number of bytes: written.
    Write(Write),
    /// Returns the sizes of the file system: statistics.
    Statistics,
    /// Ends an open file, which had these flags: done. The caller doesn't get an error.
    Release { handle: u64, flags: i32 },
    /// Makes a file durable; with `data_only` as fdatasync(2): done.
    Sync { handle: u64, data_only: bool },
    /// Sets an extended attribute, whose name may contain `/`; `flags` are those of setxattr(2): done.
    SetExtended { name: &'a [u8], value: &'a [u8], flags: i32 },
    /// Returns the whole value of an extended attribute, whatever `size` the caller's buffer has: a value.
    GetExtended { name: &'a [u8], size: u32 },
    /// Returns the names of all extended attributes, each followed by a NUL: a value.
    ListExtended { size: u32 },
    /// Removes an extended attribute: done.
    RemoveExtended { name: &'a [u8] },
    /// Handles a close(2), which returns the error: done. A file with duplicated descriptors is flushed
    /// several times.
    Flush { handle: u64 },
    /// Opens a directory: opened.
    OpenDirectory { flags: i32 },
    /// Returns entries of a directory: a directory.
    ReadDirectory(ReadDirectory),
    /// Ends an open directory: done. The caller doesn't get an error.
    ReleaseDirectory { handle: u64 },
    /// Makes a directory durable: done.
    SyncDirectory { handle: u64, data_only: bool },
    /// Checks permissions for access(2): done. Not sent with the mount option `default_permissions`.
    Access { mask: u32 },
    /// Creates a file and opens it with the flags of open(2): created.
    Create { name: &'a [u8], mode: u32, umask: u32, flags: i32 },
    /// Creates an unnamed file in a directory and opens it (O_TMPFILE): created.
    TemporaryFile { mode: u32, umask: u32, flags: i32 },
    /// Allocates, frees or zeroes space of a file; `mode` is that of fallocate(2): done.
    Allocate { handle: u64, offset: u64, length: u64, mode: i32 },
    /// Returns the next offset with data (SEEK_DATA) or in a hole (SEEK_HOLE): an offset.
    Seek { handle: u64, offset: u64, whence: i32 },
    /// Copies a range of the node to another one, and returns the number of bytes: written.
    CopyRange(CopyRange),
    /// Makes everything durable, for syncfs(2): done.
    SyncAll,
}

impl Operation<'_> {
    /// Limit of the reply in bytes: most bytes to return or to copy.
    pub(crate) fn limit(&self) -> u64 {
        match self {
            Operation::Read(read) => read.size.into(),
            Operation::GetExtended { size, .. } | Operation::ListExtended { size } => (*size).into(),
            Operation::CopyRange(copy) => copy.length,
            _ => u64::MAX,
        }
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

/// A read of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Open file.
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Most bytes to return.
    pub size: u32,
    /// Flags of the open file (`O_DIRECT`, …).
    pub flags: i32,
}

impl From<ReadIn> for Read {
    fn from(arguments: ReadIn) -> Self {
        let ReadIn { fh: handle, offset, size, flags, .. } = arguments;
        Read { handle, offset, size, flags: flags as i32 }
    }
}

/// A write to a file.
#[derive(Debug)]
pub struct Write {
    /// Open file; a guess if the write is [from the page cache](Self::from_page_cache).
    pub handle: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// Flags of the open file and of the call (`O_DSYNC`, `O_APPEND`, …).
    pub flags: i32,
    /// Bits of [`flag`]: `WRITE_*`.
    pub write_flags: u32,
    /// Filled bytes to write. The buffer is aligned to [`ALIGNMENT`](block::buffer::ALIGNMENT), and only this
    /// write uses it.
    pub data: Buffer,
}

impl Write {
    pub(crate) fn of(arguments: &WriteIn, data: Buffer) -> Self {
        let WriteIn { fh: handle, offset, flags, write_flags, .. } = *arguments;
        Write { handle, offset, flags: flags as i32, write_flags, data }
    }

    /// Whether the kernel writes back its page cache: owner and open file then aren't those of the writer.
    pub fn from_page_cache(&self) -> bool {
        self.write_flags & flag::WRITE_CACHE != 0
    }
}

/// A read of the entries of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDirectory {
    /// Open directory.
    pub handle: u64,
    /// Offset of the last entry that was read before; 0 is the beginning.
    pub offset: u64,
    /// Size of the reply in bytes, at most [`MAX_WRITE`].
    pub size: u32,
    /// Return the attributes as well (READDIRPLUS). Only with the capability DO_READDIRPLUS.
    pub with_attributes: bool,
}

impl ReadDirectory {
    pub(crate) fn of(arguments: ReadIn, with_attributes: bool) -> Self {
        let ReadIn { fh: handle, offset, size, .. } = arguments;
        ReadDirectory { handle, offset, size: size.min(MAX_WRITE as u32), with_attributes }
    }

    /// Returns an empty reply, to which the file system adds entries until one doesn't fit or the directory
    /// ends.
    pub fn entries(&self) -> DirectoryEntries {
        DirectoryEntries::new(self.size as usize, self.with_attributes)
    }
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

impl CopyRange {
    pub(crate) fn of(arguments: &CopyFileRangeIn, opcode: u32) -> Self {
        // The reply to the older operation has 32 bits for the number of bytes.
        let longest =
            if opcode == opcode::COPY_FILE_RANGE_64 { u64::MAX } else { u64::from(u32::MAX) & !4095 };
        CopyRange {
            from_handle: arguments.fh_in,
            from_offset: arguments.off_in,
            to_node: arguments.nodeid_out,
            to_handle: arguments.fh_out,
            to_offset: arguments.off_out,
            length: arguments.len.min(longest),
            flags: arguments.flags,
        }
    }
}
