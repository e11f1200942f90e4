//! Format of sorted tables: entries in order, in blocks that are compressed and checked individually.
//!
//! - A [`Builder`] encodes entries to bytes and a [`Summary`]; the store writes the bytes and keeps the
//!   summary in its manifest.
//! - A [`Reader`] finds entries in the blocks of its [`BlockSource`]: a point read costs one data block if
//!   filter and index are cached. A [`TableCursor`] moves through a table in both directions.
//! - A [`Block`] is the unit of a block cache: decoded and checked.
//!
//! The layout follows LevelDB's tables: prefix compression with restart points, an index, a filter, a footer.
//! `book/src/formats/kv-table.md` specifies it byte by byte.
//!
//! Stored bytes are untrusted: every detected deviation is [`Error::Corrupt`](::block::Error::Corrupt) with
//! the block's offset, and no block takes more memory than its stored length justifies. Elsewhere: I/O,
//! caching, and the effect of range tombstones.

mod block;
mod builder;
pub mod carve;
mod cursor;
mod entries;
mod entries_writer;
mod filter;
mod range_tombstones;
mod reader;
mod stored;
mod summary;
#[cfg(test)]
mod tests;
mod verify;

pub use self::block::Block;
pub use self::builder::Builder;
pub use self::cursor::TableCursor;
pub use self::filter::key_hash;
pub use self::reader::{BlockSource, Reader};
pub use self::stored::BlockHandle;
pub use self::summary::{FOOTER_BYTES, Summary, decode_footer};
pub use self::verify::{Verified, verify};

/// Compression of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Uncompressed.
    None = 0,
    /// LZ4, each block separately; a block that shrinks by less than an eighth is stored uncompressed.
    #[default]
    Lz4 = 1,
}

/// Options of the format of a new table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Size in bytes, before compression, at which a data block is ended; at most 16 MiB.
    pub block_bytes: usize,
    /// Compression of data blocks and of the index.
    pub compression: Compression,
    /// Number of filter bits per key, at most 32; 0 for no filter.
    pub filter_bits: u32,
    /// Number that enters the checksums of all blocks, so that a block of another table never validates. Must
    /// differ between tables.
    pub salt: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { block_bytes: 4096, compression: Compression::Lz4, filter_bits: 10, salt: 0 }
    }
}
