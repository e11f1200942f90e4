//! Replies: the results of operations, and their frames. A frame is a header, a structure, and data that is
//! shared with the file system and not copied.

use crate::directory::DirectoryEntries;
use crate::operation::Timestamp;
use crate::protocol::{
    Attr, AttrOut, CopyFileRangeOut, EntryOut, GetxattrOut, InHeader, LseekOut, NotifyInvalInodeOut, OpenOut,
    OutHeader, StatfsOut, WriteOut, notify, opcode,
};
use block::{Buffer, Data, Error, Payload, Result};
use std::time::Duration;
use zerocopy::{Immutable, IntoBytes};

/// Result of an [`Operation`](crate::Operation), which documents the variant that it expects.
#[derive(Debug)]
pub enum Reply {
    /// The operation has been executed.
    Done,
    /// Node of a name; for the kernel one more lookup of it.
    Entry(Entry),
    /// Attributes of the node.
    Attributes(CachedAttributes),
    /// The opened file or directory.
    Opened(Opened),
    /// A new file, which is open; one more lookup of it.
    Created(Entry, Opened),
    /// Bytes of a file, at most as many as were requested; target of a symbolic link.
    Bytes(Payload),
    /// Value or names of extended attributes.
    Value(Data),
    /// Number of bytes that were written or copied.
    Written(u64),
    /// Offset in a file, in bytes.
    Offset(u64),
    /// Sizes of the file system.
    Statistics(Statistics),
    /// Entries of a directory.
    Directory(DirectoryEntries),
}

/// Conversions of results that only one variant has.
macro_rules! replies {
    ($($variant:ident: $type:ty,)*) => {
        $(
            impl From<$type> for Reply {
                fn from(result: $type) -> Self {
                    Reply::$variant(result)
                }
            }
        )*
    };
}

replies! {
    Entry: Entry,
    Attributes: CachedAttributes,
    Opened: Opened,
    Bytes: Payload,
    Value: Data,
    Statistics: Statistics,
    Directory: DirectoryEntries,
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Reply::Done
    }
}

impl From<(Entry, Opened)> for Reply {
    fn from((entry, opened): (Entry, Opened)) -> Self {
        Reply::Created(entry, opened)
    }
}

impl Reply {
    /// Attributes in the reply, to change them. Those in [`Reply::Directory`] are encoded already.
    pub fn attributes_mut(&mut self) -> Option<&mut Attributes> {
        match self {
            Reply::Attributes((attributes, _)) => Some(attributes),
            Reply::Entry(entry) | Reply::Created(entry, _) => Some(&mut entry.attributes),
            _ => None,
        }
    }

    /// Whether this variant answers operations with an opcode. The kernel checks only the length of a frame,
    /// which another variant may have as well.
    fn answers(&self, opcode: u32) -> bool {
        use opcode::*;
        match opcode {
            LOOKUP | SYMLINK | MKNOD | MKDIR | LINK => matches!(self, Reply::Entry(_)),
            GETATTR | SETATTR => matches!(self, Reply::Attributes(_)),
            OPEN | OPENDIR => matches!(self, Reply::Opened(_)),
            CREATE | TMPFILE => matches!(self, Reply::Created(..)),
            READ | READLINK => matches!(self, Reply::Bytes(_)),
            GETXATTR | LISTXATTR => matches!(self, Reply::Value(_)),
            WRITE | COPY_FILE_RANGE | COPY_FILE_RANGE_64 => matches!(self, Reply::Written(_)),
            LSEEK => matches!(self, Reply::Offset(_)),
            STATFS => matches!(self, Reply::Statistics(_)),
            READDIR | READDIRPLUS => {
                let with_attributes = opcode == READDIRPLUS;
                matches!(self, Reply::Directory(entries) if entries.with_attributes() == with_attributes)
            }
            _ => matches!(self, Reply::Done),
        }
    }

    /// Frame of the reply to a request, of whose operation `limit` is the [limit](crate::Operation::limit).
    ///
    /// # Errors
    /// ERANGE for a value that doesn't fit the caller's buffer; EIO for more bytes than were requested, or a
    /// variant that doesn't answer the operation.
    pub(crate) fn frame(self, request: &InHeader, limit: u64) -> Result<Payload> {
        if !self.answers(request.opcode) {
            return Err(Error::io(format!(
                "FUSE request {}: the file system returned a reply of another kind",
                request.opcode
            )));
        }
        let unique = request.unique;
        Ok(match self {
            Reply::Done => done(unique),
            Reply::Entry(entry) => with(unique, &entry.frame()),
            Reply::Attributes((attributes, time)) => with(unique, &attributes.cached_for(time)),
            Reply::Opened(opened) => with(unique, &opened.frame()),
            Reply::Created(entry, opened) => with_both(unique, &entry.frame(), &opened.frame()),
            Reply::Bytes(bytes) if bytes.len() as u64 > limit => {
                return Err(Error::io("the file system returned more bytes than were asked for"));
            }
            Reply::Bytes(bytes) => data(unique, &bytes),
            Reply::Value(value) if limit == 0 => {
                with(unique, &GetxattrOut { size: value.len() as u32, padding: 0 })
            }
            Reply::Value(value) if value.len() as u64 > limit => {
                return Err(Error::Os(libc::ERANGE, "value too long".into()));
            }
            Reply::Value(value) => data(unique, &value.into()),
            Reply::Written(bytes) if request.opcode == opcode::COPY_FILE_RANGE_64 => {
                with(unique, &CopyFileRangeOut { bytes_copied: bytes.min(limit) })
            }
            Reply::Written(bytes) => with(unique, &WriteOut { size: bytes.min(limit) as u32, padding: 0 }),
            Reply::Offset(offset) => with(unique, &LseekOut { offset }),
            Reply::Statistics(statistics) => with(unique, &statistics.frame()),
            Reply::Directory(entries) => data(unique, &entries.into_data().into()),
        })
    }
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

/// Length of a reply's header.
const HEADER_BYTES: usize = size_of::<OutHeader>();

fn header(unique: u64, error: i32, bytes: usize) -> OutHeader {
    OutHeader { len: (HEADER_BYTES + bytes) as u32, error, unique }
}

/// Reply without data.
pub fn done(unique: u64) -> Payload {
    with(unique, &())
}

/// Reply with this structure.
#[inline]
pub fn with<T: IntoBytes + Immutable + ?Sized>(unique: u64, body: &T) -> Payload {
    let bytes = body.as_bytes();
    let mut buffer = Buffer::new(HEADER_BYTES + bytes.len());
    buffer.append(header(unique, 0, bytes.len()).as_bytes());
    buffer.append(bytes);
    buffer.into()
}

/// Reply with two structures.
fn with_both(unique: u64, entry: &EntryOut, opened: &OpenOut) -> Payload {
    let mut body = [0; size_of::<EntryOut>() + size_of::<OpenOut>()];
    let (first, second) = body.split_at_mut(size_of::<EntryOut>());
    first.copy_from_slice(entry.as_bytes());
    second.copy_from_slice(opened.as_bytes());
    with(unique, &body)
}

/// Reply with this data.
#[inline]
pub fn data(unique: u64, data: &Payload) -> Payload {
    let head = Buffer::copy_of(header(unique, 0, data.len()).as_bytes()).freeze();
    std::iter::once(head).chain(data.slices().iter().cloned()).collect()
}

/// Reply with an error; `errno` is a positive number of POSIX below 512, others become EIO.
#[cold]
pub fn error(unique: u64, errno: i32) -> Payload {
    let errno = if (1..512).contains(&errno) { errno } else { libc::EIO };
    Buffer::copy_of(header(unique, -errno, 0).as_bytes()).into()
}

/// Notification without a body.
pub fn notification(code: i32) -> OutHeader {
    header(0, code, 0)
}

/// Notification to write back and drop the cached data of a node.
pub fn invalidation(node: u64) -> Vec<u8> {
    let body = NotifyInvalInodeOut { ino: node, off: 0, len: 0 };
    let header = header(0, notify::INVAL_INODE, size_of::<NotifyInvalInodeOut>());
    [header.as_bytes(), body.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn the_limit_of_a_request_bounds_its_reply() {
        let frame = |reply: Reply, opcode, limit| {
            let request = InHeader { unique: 9, opcode, ..InHeader::default() };
            reply.frame(&request, limit).map(|frame| frame.to_data()[HEADER_BYTES..].to_vec())
        };
        let value = || Reply::Value(Data::copy_of(b"12345"));
        assert_eq!(frame(value(), opcode::GETXATTR, 0), Ok(5_u64.to_ne_bytes().to_vec()), "its length");
        assert_eq!(frame(value(), opcode::GETXATTR, 5), Ok(b"12345".to_vec()));
        assert_eq!(frame(value(), opcode::GETXATTR, 4).unwrap_err().errno(), libc::ERANGE);
        let bytes = || Reply::Bytes(Data::copy_of(b"12345").into());
        assert_eq!(frame(bytes(), opcode::READ, 5), Ok(b"12345".to_vec()));
        assert_eq!(frame(bytes(), opcode::READ, 4).unwrap_err().errno(), libc::EIO);
        let copied = frame(Reply::Written(1 << 40), opcode::COPY_FILE_RANGE_64, 1 << 33);
        assert_eq!(copied, Ok((1_u64 << 33).to_ne_bytes().to_vec()));
    }

    #[test]
    fn a_reply_states_its_length_and_shares_its_data() {
        let body = Data::copy_of(b"some data");
        let reply = data(9, &body.clone().into());
        let header = OutHeader::read_from_bytes(&reply.slices()[0]).expect("a header");
        assert_eq!(header, OutHeader { len: 25, error: 0, unique: 9 });
        assert_eq!(reply.slices()[1].as_ptr(), body.as_ptr(), "shared");
        let failed = error(9, 5000).to_data();
        assert_eq!(
            OutHeader::read_from_bytes(&failed),
            Ok(OutHeader { len: 16, error: -libc::EIO, unique: 9 })
        );
    }
}
