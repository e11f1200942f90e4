//! The format of sorted tables: entries in order, in blocks that are compressed and checked one by one.
//!
//! - A [`Builder`] turns entries into bytes and a [`Summary`]; the store writes the bytes and keeps the summary in its manifest.
//! - A [`Reader`] finds entries with the blocks that its [`BlockSource`] gives it: a point read costs one data block where filter and
//!   index are cached. [`TableCursor`] walks through a table in both directions.
//! - A [`Block`] is what a block cache holds: decoded and checked.
//!
//! The layout follows LevelDB's tables: prefix compression with restart points, an index, a filter, a footer. `book/src/formats/kv-table.md`
//! has it byte by byte.
//!
//! Bytes may be anything: every deviation that is met is [`Error::Corrupt`](::block::Error::Corrupt) with the block's offset, and no
//! block takes more memory than its stored length justifies. Left to others: I/O, caching, and what range tombstones hide.

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

/// How blocks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Not at all.
    None = 0,
    /// LZ4, each block on its own; a block that it doesn't shrink by an eighth is stored as it is.
    #[default]
    Lz4 = 1,
}

/// How a table is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Size of data blocks before compression, in bytes, at most 16 MiB: a block is ended when it is reached.
    pub block_bytes: usize,
    /// Compression of data blocks and of the index.
    pub compression: Compression,
    /// Bits of the filter for each key, at most 32; 0 for no filter.
    pub filter_bits: u32,
    /// Number that enters the checksums of all blocks, so that a block of another table never validates. Give each table another one.
    pub salt: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { block_bytes: 4096, compression: Compression::Lz4, filter_bits: 10, salt: 0 }
    }
}
