//! Compression of a leaf's keys into records of one size, relative to the leaf's base.
//!
//! This is frame-of-reference coding. The base is at most the smallest key. A record has the difference of
//! the inode, the kind, and the offset, each in as many bytes as the largest in the leaf needs, big-endian.
//! Records of one size can be indexed directly, and comparing their bytes compares the keys.
//! - The kind has no bytes if all keys have the base's kind.
//! - The offset is relative to the base's offset if all keys have the base's inode and kind; otherwise it is
//!   absolute.

use super::Key;
use super::page::PAGE;

/// Bytes after a record's key that locate its value.
pub(super) const SLOT: usize = 3;

/// Base of a leaf's keys and the widths in bytes of a record's columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub base: Key,
    pub inode: u8,
    pub kind: u8,
    pub offset: u8,
}

/// Number of bytes that `number` needs.
fn width(number: u64) -> u8 {
    8 - (number.leading_zeros() / 8) as u8
}

/// Greatest number of `width` bytes.
fn mask(width: u8) -> u64 {
    match width {
        0 => 0,
        width => u64::MAX >> (64 - 8 * u32::from(width)),
    }
}

/// Reads the number of `width` bytes that ends before `end`. At least 8 bytes are available: a page begins
/// with its header.
fn number(page: &[u8; PAGE], end: usize, width: u8) -> u64 {
    let bytes: [u8; 8] = page[end - 8..end].try_into().expect("the slice has 8 bytes");
    u64::from_be_bytes(bytes) & mask(width)
}

impl Layout {
    /// Returns the narrowest layout for keys in ascending order.
    ///
    /// # Panics
    /// If there are no keys.
    pub fn of(mut keys: impl Iterator<Item = Key>) -> Self {
        let base = keys.next().expect("a leaf has at least one item");
        let (mut last, mut kinds, mut greatest) = (base.inode, false, base.offset);
        for key in keys {
            last = key.inode;
            kinds |= key.kind != base.kind;
            greatest = greatest.max(key.offset);
        }
        let (inode, kind) = (width(last - base.inode), u8::from(kinds));
        let relative = if inode == 0 && kind == 0 { base.offset } else { 0 };
        Layout { base, inode, kind, offset: width(greatest - relative) }
    }

    /// Bytes of a record's key.
    pub fn key_bytes(&self) -> usize {
        usize::from(self.inode + self.kind + self.offset)
    }

    /// Bytes of a record.
    pub fn record(&self) -> usize {
        self.key_bytes() + SLOT
    }

    fn relative_to(&self) -> u64 {
        if self.inode == 0 && self.kind == 0 { self.base.offset } else { 0 }
    }

    /// Whether a record of this layout can hold `key`.
    pub fn fits(&self, key: &Key) -> bool {
        *key >= self.base
            && key.inode - self.base.inode <= mask(self.inode)
            && (self.kind == 1 || key.kind == self.base.kind)
            && key.offset.wrapping_sub(self.relative_to()) <= mask(self.offset)
    }

    /// Writes the key of the record that begins at `position`.
    pub fn write(&self, key: &Key, page: &mut [u8; PAGE], position: usize) {
        debug_assert!(self.fits(key));
        let mut end = position;
        let mut column = |number: u64, width: u8| {
            let width = usize::from(width);
            // A copy with a length that isn't constant would be compiled to a call.
            for (byte, place) in number.to_le_bytes().into_iter().zip(page[end..end + width].iter_mut().rev())
            {
                *place = byte;
            }
            end += width;
        };
        column(key.inode - self.base.inode, self.inode);
        column(u64::from(key.kind), self.kind);
        column(key.offset - self.relative_to(), self.offset);
    }

    /// Reads the key of the record that begins at `position`, without a check for overflow.
    pub fn read(&self, page: &[u8; PAGE], position: usize) -> Key {
        let (inode, kind, offset) = self.columns(page, position);
        Key {
            inode: self.base.inode.wrapping_add(inode),
            kind: if self.kind == 0 { self.base.kind } else { kind },
            offset: self.relative_to().wrapping_add(offset),
        }
    }

    /// Reads a key as [`read`](Self::read) does; `None` if the inode or offset overflows.
    pub fn read_checked(&self, page: &[u8; PAGE], position: usize) -> Option<Key> {
        let (inode, kind, offset) = self.columns(page, position);
        Some(Key {
            inode: self.base.inode.checked_add(inode)?,
            kind: if self.kind == 0 { self.base.kind } else { kind },
            offset: self.relative_to().checked_add(offset)?,
        })
    }

    fn columns(&self, page: &[u8; PAGE], position: usize) -> (u64, u8, u64) {
        let inode = position + usize::from(self.inode);
        let kind = inode + usize::from(self.kind);
        let offset = kind + usize::from(self.offset);
        (number(page, inode, self.inode), page[kind - 1], number(page, offset, self.offset))
    }

    /// Reads a record's key of at most 8 bytes as one number. The numbers compare as the keys do.
    pub fn read_packed(&self, page: &[u8; PAGE], position: usize) -> u64 {
        let width = self.inode + self.kind + self.offset;
        number(page, position + usize::from(width), width)
    }

    /// Returns the position of `key` among keys of at most 8 bytes; `key` must be at least the base.
    pub fn pack(&self, key: &Key) -> Packed {
        let inode = key.inode - self.base.inode;
        if inode > mask(self.inode) {
            return Packed::After(u64::MAX);
        }
        let offset_bits = 8 * u32::from(self.offset);
        let kind_bits = 8 * u32::from(self.kind);
        // Widths of 8 bytes shift by 64 bits, but only if no column is before them.
        let above = |number: u64, bits: u32| number.checked_shl(bits).unwrap_or(0);
        let mut prefix = above(inode, kind_bits);
        if self.kind == 1 {
            prefix |= u64::from(key.kind);
        }
        let prefix = above(prefix, offset_bits);
        if self.kind == 0 && key.kind != self.base.kind {
            return if key.kind < self.base.kind {
                Packed::Before(prefix)
            } else {
                Packed::After(prefix | mask(self.offset))
            };
        }
        let offset = key.offset.wrapping_sub(self.relative_to());
        if offset > mask(self.offset) {
            Packed::After(prefix | mask(self.offset))
        } else {
            Packed::Exactly(prefix | offset)
        }
    }
}

/// Position of a key among packed keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packed {
    /// Before the first packed key that is at least this number; no packed key equals the key.
    Before(u64),
    /// At the packed key with this number, or where it would be.
    Exactly(u64),
    /// After the last packed key that is at most this number; no packed key equals the key.
    After(u64),
}
