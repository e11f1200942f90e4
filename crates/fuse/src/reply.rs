//! Replies: a header, a structure, and data that is shared with the file system and not copied.

use crate::protocol::{Dirent, EntryOut, NotifyInvalInodeOut, OutHeader, notify};
use block::{Buffer, Data, Payload};
use zerocopy::{Immutable, IntoBytes};

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

/// Entries of a directory for a READDIR, as many as the kernel has space for.
#[derive(Debug)]
pub struct DirectoryEntries {
    buffer: Buffer,
}

/// Entries of a directory with their attributes, for a READDIRPLUS.
#[derive(Debug)]
pub struct DirectoryEntriesPlus {
    buffer: Buffer,
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(8)
}

fn append_entry(buffer: &mut Buffer, node: u64, next: u64, kind: u32, name: &[u8]) {
    let entry = Dirent { ino: node, off: next, namelen: name.len() as u32, kind };
    buffer.append(entry.as_bytes());
    buffer.append(name);
    buffer.append_zeroes(padded(name.len()) - name.len());
}

impl DirectoryEntries {
    pub(crate) fn new(bytes: usize) -> Self {
        DirectoryEntries { buffer: Buffer::new(bytes) }
    }

    /// Adds an entry: the number of its node, the offset at which a later READDIR continues after it, its
    /// type (`DT_REG`, `DT_DIR`, …) and its name. Returns false if it doesn't fit; then no later entry may be
    /// added.
    pub fn add(&mut self, node: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        let fits = size_of::<Dirent>() + padded(name.len()) <= self.buffer.missing();
        if fits {
            append_entry(&mut self.buffer, node, next, u32::from(kind), name);
        }
        fits
    }

    pub(crate) fn into_data(self) -> Data {
        self.buffer.freeze()
    }
}

impl DirectoryEntriesPlus {
    pub(crate) fn new(bytes: usize) -> Self {
        DirectoryEntriesPlus { buffer: Buffer::new(bytes) }
    }

    /// Adds an entry: the result of its lookup, which counts as one lookup unless the name is `.` or `..`,
    /// the offset at which a later READDIRPLUS continues after it, and its name. Returns false if it doesn't
    /// fit; then no later entry may be added.
    pub fn add(&mut self, entry: &crate::Entry, next: u64, name: &[u8]) -> bool {
        let kind = (entry.attributes.mode & libc::S_IFMT) >> 12;
        self.append(entry, entry.attributes.node, next, kind, name)
    }

    /// Adds an entry without the result of a lookup, as [`DirectoryEntries::add`] does: the kernel looks it
    /// up itself when necessary.
    pub fn add_name(&mut self, node: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.append(&crate::Entry::default(), node, next, kind.into(), name)
    }

    fn append(&mut self, entry: &crate::Entry, node: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let fits = size_of::<EntryOut>() + size_of::<Dirent>() + padded(name.len()) <= self.buffer.missing();
        if fits {
            self.buffer.append(entry.frame().as_bytes());
            append_entry(&mut self.buffer, node, next, kind, name);
        }
        fits
    }

    pub(crate) fn into_data(self) -> Data {
        self.buffer.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

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

    #[test]
    fn entries_are_padded_and_never_too_many() {
        let mut entries = DirectoryEntries::new(64);
        assert!(entries.add(2, 1, libc::DT_REG, b"a"));
        assert!(entries.add(3, 2, libc::DT_DIR, b"12345678"));
        assert!(!entries.add(4, 3, libc::DT_REG, b"c"), "64 bytes are full");
        let bytes = entries.into_data();
        assert_eq!(bytes.len(), 64);
        let (first, rest) = Dirent::read_from_prefix(&bytes).expect("an entry");
        assert_eq!((first.ino, first.off, first.namelen, first.kind), (2, 1, 1, u32::from(libc::DT_REG)));
        assert_eq!(rest[..8], *b"a\0\0\0\0\0\0\0");
    }
}
