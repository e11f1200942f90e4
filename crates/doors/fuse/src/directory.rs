//! Replies to reads of directories.

use crate::protocol::{Dirent, EntryOut};
use crate::reply::Entry;
use block::{Buffer, Data};
use zerocopy::IntoBytes;

/// Entries of a directory, as many as the kernel has space for.
#[derive(Debug)]
pub struct DirectoryEntries {
    buffer: Buffer,
    with_attributes: bool,
}

impl DirectoryEntries {
    pub(crate) fn new(bytes: usize, with_attributes: bool) -> Self {
        DirectoryEntries { buffer: Buffer::new(bytes), with_attributes }
    }

    /// Whether the kernel asks for the attributes (READDIRPLUS).
    pub fn with_attributes(&self) -> bool {
        self.with_attributes
    }

    /// Adds an entry: the number of its node, the offset at which a later read continues after it, its type
    /// (`DT_REG`, `DT_DIR`, …) and its name. If attributes were requested, the kernel looks the name up when
    /// necessary. Returns false if the entry doesn't fit; then no later entry may be added.
    pub fn add(&mut self, node: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.append(&Entry::default(), node, next, kind.into(), name)
    }

    /// Adds an entry with the result of its lookup, for a read [with attributes](Self::with_attributes). It
    /// counts as one lookup unless the name is `.` or `..`. Otherwise as [`add`](Self::add).
    pub fn add_found(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let kind = (entry.attributes.mode & libc::S_IFMT) >> 12;
        self.append(entry, entry.attributes.node, next, kind, name)
    }

    fn append(&mut self, entry: &Entry, node: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let found = if self.with_attributes { size_of::<EntryOut>() } else { 0 };
        let padded = name.len().next_multiple_of(8);
        let fits = found + size_of::<Dirent>() + padded <= self.buffer.missing();
        if fits {
            if self.with_attributes {
                self.buffer.append(entry.frame().as_bytes());
            }
            let entry = Dirent { ino: node, off: next, namelen: name.len() as u32, kind };
            self.buffer.append(entry.as_bytes());
            self.buffer.append(name);
            self.buffer.append_zeroes(padded - name.len());
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
    fn entries_are_padded_and_never_too_many() {
        let mut entries = DirectoryEntries::new(64, false);
        assert!(entries.add(2, 1, libc::DT_REG, b"a"));
        assert!(entries.add(3, 2, libc::DT_DIR, b"12345678"));
        assert!(!entries.add(4, 3, libc::DT_REG, b"c"), "64 bytes are full");
        let bytes = entries.into_data();
        assert_eq!(bytes.len(), 64);
        let (first, rest) = Dirent::read_from_prefix(&bytes).expect("an entry");
        assert_eq!((first.ino, first.off, first.namelen, first.kind), (2, 1, 1, u32::from(libc::DT_REG)));
        assert_eq!(rest[..8], *b"a\0\0\0\0\0\0\0");
    }

    #[test]
    fn entries_with_attributes_begin_with_the_result_of_the_lookup() {
        let mut entries = DirectoryEntries::new(2 * 160, true);
        let attributes = crate::Attributes { node: 5, mode: libc::S_IFLNK | 0o777, ..Default::default() };
        assert!(entries.add_found(&Entry { attributes, ..Entry::default() }, 1, b"a"));
        assert!(entries.add(6, 2, libc::DT_DIR, b"b"));
        assert!(!entries.add(7, 3, libc::DT_DIR, b"c"), "320 bytes are full");
        let bytes = entries.into_data();
        for (entry, node, found, kind) in [(0, 5, 5, libc::DT_LNK), (160, 6, 0, libc::DT_DIR)] {
            let (result, rest) = EntryOut::read_from_prefix(&bytes[entry..]).expect("a result");
            let (name, _) = Dirent::read_from_prefix(rest).expect("an entry");
            assert_eq!((result.nodeid, name.ino, name.kind), (found, node, u32::from(kind)));
        }
    }
}
