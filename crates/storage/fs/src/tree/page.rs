//! Header of a page on the medium, and the place of a page there.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | magic number, `SLTP` |
//! | 4 | version, 1 |
//! | 5 | level: 0 for a leaf |
//! | 6–7 | number of items or children |
//! | 8–15 | inode of the base, or of the smallest permitted key |
//! | 16–23 | its offset |
//! | 24 | its kind |
//! | 25–27 | leaf: widths of the columns inode, kind and offset; branch: zeros |
//! | 28–31 | zeros |
//!
//! Numbers are little-endian, except in a leaf's records.

use super::Key;
use super::layout::Layout;
use block::{Error, Result, ZoneBlock};
use std::fmt;

/// Bytes of an encoded page.
pub const PAGE: usize = 4096;

/// Bytes before the records of a leaf or the children of a branch.
pub(super) const HEADER: usize = 32;

/// Greatest level of a page that is loaded.
pub(super) const MAX_LEVEL: u8 = 12;

const MAGIC: [u8; 4] = *b"SLTP";
const VERSION: u8 = 1;

/// Returns the error for an invalid page at `place`.
#[cold]
pub(super) fn strange(place: ZoneBlock, what: impl fmt::Display) -> Error {
    Error::corrupt(format!("tree page \"{place}\": {what}"))
}

/// Fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub level: u8,
    pub count: u16,
    pub layout: Layout,
}

impl Header {
    pub fn write(&self, page: &mut [u8; PAGE]) {
        page[..4].copy_from_slice(&MAGIC);
        page[4] = VERSION;
        page[5] = self.level;
        page[6..8].copy_from_slice(&self.count.to_le_bytes());
        page[8..16].copy_from_slice(&self.layout.base.inode.to_le_bytes());
        page[16..24].copy_from_slice(&self.layout.base.offset.to_le_bytes());
        page[24] = self.layout.base.kind;
        page[25] = self.layout.inode;
        page[26] = self.layout.kind;
        page[27] = self.layout.offset;
        page[28..HEADER].fill(0);
    }

    /// Reads the header of the page at `place`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it isn't a page of this level and version.
    pub fn read(page: &[u8; PAGE], place: ZoneBlock, level: u8) -> Result<Self> {
        if page[..4] != MAGIC {
            return Err(strange(
                place,
                format_args!("magic number {:02x?}; expected {MAGIC:02x?}", &page[..4]),
            ));
        }
        if page[4] != VERSION {
            return Err(strange(
                place,
                format_args!("version {}; expected {VERSION}; use the release that wrote it", page[4]),
            ));
        }
        if page[5] != level {
            return Err(strange(place, format_args!("level {}; expected {level}, from its parent", page[5])));
        }
        if page[28..HEADER].iter().any(|&byte| byte != 0) {
            return Err(strange(place, "reserved bytes of the header are nonzero; expected zeros"));
        }
        let base = Key::new(u64_at(page, 8), page[24], u64_at(page, 16));
        Ok(Header {
            level,
            count: u16::from_le_bytes([page[6], page[7]]),
            layout: Layout { base, inode: page[25], kind: page[26], offset: page[27] },
        })
    }
}

/// Reads 8 bytes, little-endian.
pub(super) fn u64_at(page: &[u8; PAGE], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("the slice has 8 bytes"))
}

/// Reads 4 bytes, little-endian.
pub(super) fn u32_at(page: &[u8; PAGE], at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().expect("the slice has 4 bytes"))
}

/// Checks that the bytes between `from` and `to` are zeros.
pub(super) fn check_padding(page: &[u8; PAGE], from: usize, to: usize, place: ZoneBlock) -> Result<()> {
    match page[from..to].iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => {
            Err(strange(place, format_args!("padding at byte {} is nonzero; expected zeros", from + at)))
        }
    }
}
