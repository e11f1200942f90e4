//! `cache`: a fast device as the cache of a slow one; the role of dm-cache, and its words.
//!
//! Promises: those of the Device contract, with a volatile cache. With `writethrough` and `passthrough` nothing is lost with
//! the fast device; with `writeback` what hasn't been written back is, and opening says so. What only the cache has is known
//! after a crash, too: nothing else is written back again.
//!
//! The fast device is cut into *slots* of one block of the cache, which a `table` maps to blocks of the origin.
//! A block has at most 64 *parts*; of each the table says one of three things, and that decides who *counts* when everything
//! else is gone:
//!
//! | the table says | what counts |
//! |---|---|
//! | nothing | the origin |
//! | valid and dirty | the cache |
//! | valid and clean | both, for they have the same |
//!
//! # Why a power cut leaves nothing wrong
//!
//! 1. While the table says *clean*, neither side is changed: who wants to waits until the table says, durably, that one of them
//!    counts (a *mark*: the cache with writeback, else the origin). It says so of the whole slot, so that one mark does for
//!    many writes.
//! 2. While one side counts the other may be anything. So the origin is changed only under parts of which the table says
//!    nothing or dirty, the cache only under parts of which it says nothing or dirty, and a slot is used for another block only
//!    when the table says, durably, that it is free.
//! 3. The table begins to say *dirty* only when the cache's data is durable; *clean* only when, besides, the origin was flushed
//!    after it had what the cache has; and ends saying dirty (after a discard) only when the origin was flushed after.
//!
//! Whatever a cut leaves, then, each part has one side that counts, whose contents are the last durable ones or later ones
//! that were submitted; and the other side is never looked at before it is the same. So what has been read once stays.
//!
//! In memory more is known: parts are dirty as soon as they are written, clean as soon as they were written back. The table
//! hears of it when a client flushes, when it must (marks, blocks that go), or at leisure. `core`'s `target` is the only place
//! that decides what it may be told.
//!
//! Writes to the same bytes take turns, as does whoever fills a slot or discards under it: a device promises little about those
//! that overlap, so that the two sides could end up with one each.

mod clean;
mod commit;
mod core;
mod counters;
mod device;
mod grown;
mod index;
mod message;
mod origin;
mod policy;
mod read;
mod sequential;
mod shape;
mod state;
mod status;
mod warm;
mod write;
mod zero;

pub use self::core::Mode;
pub use device::CachePart;
pub use message::{Message, Numbers};
pub use policy::Heat;
pub use warm::{Bytes, Want, Wants};

use block::{BlockSize, Call, Error, Result};
use stack::{Arguments, Built, Contract, Key, Kind, Message as _, Shape, ValueKind, format_size};
use std::sync::Arc;
use std::time::Duration;

/// `cache(file(slow.img), file(fast.img), mode=writeback)`.
pub const KIND: Kind = Kind {
    name: "cache",
    contract: Contract::Device,
    summary: "a fast device as the cache of a slow one (dm-cache)",
    keys: &[
        Key::required("on", ValueKind::Device, "the slow device, the origin: what is cached").positional(),
        Key::required("cache", ValueKind::Device, "the fast device, which holds the cache").positional(),
        Key::optional(
            "mode",
            ValueKind::Choice(&Mode::NAMES),
            "where writes go: to both, to the cache and later to the origin, or past the cache",
        )
        .or("writethrough"),
        Key::optional(
            "block_size",
            ValueKind::Size,
            "a block of the cache, where it is made: a multiple of 32KiB from 32KiB to 1GiB; else 64KiB",
        )
        .known_as(&["chunksize", "chunk_size"]),
        Key::optional(
            "migration_threshold",
            ValueKind::Integer { min: 0, max: 1 << 40 },
            "how much is moved between the two at a time, in sectors of 512 bytes; one block, or what one read brings in, in any case",
        )
        .or("2048"),
        Key::optional(
            "sequential_threshold",
            ValueKind::Size,
            "from this length on sequential runs go past the cache; 0: none does",
        )
        .or("4MiB"),
    ],
    messages: Message::FORMS,
    shareable: false,
    example: "cache(ram(1GiB), ram(64MiB), mode=writeback)",
    plan,
    build: |arguments| {
        Call::new(async move {
            let options = Options::new(&arguments)?;
            let (slow, fast) = (arguments.device("on")?, arguments.device("cache")?);
            let name = arguments.child_names("on")?.first().map_or("", |name| *name).to_owned();
            Ok(Built::Device(Arc::new(CachePart::open(slow, fast, &name, &options).await?)))
        })
    },
};

/// dm-cache's limits of a block, in bytes.
const SMALLEST_BLOCK: u64 = 32 << 10;
const LARGEST_BLOCK: u64 = 1 << 30;
const USUAL_BLOCK: u64 = 64 << 10;

/// What a stack says about a cache.
#[derive(Debug, Clone)]
pub struct Options {
    /// Make it anew; what was in it is gone.
    pub format: bool,
    /// How writes go.
    pub mode: Mode,
    /// A block of the cache, in bytes, where it is made.
    pub block_size: u64,
    /// Whether the stack says so: then a cache that is there has to have it.
    pub block_size_given: bool,
    /// In sectors of 512 bytes.
    pub migration_threshold: u64,
    /// In bytes; 0: none.
    pub sequential_threshold: u64,
    /// How often the table is told what both sides have.
    pub settle_every: Duration,
    /// Whether an origin is refused that isn't as the cache left it. Not for the replay of timelines: there, of writes that
    /// overlapped another one may be the last than was.
    pub checks_origin: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: false,
            mode: Mode::Writethrough,
            block_size: USUAL_BLOCK,
            block_size_given: false,
            migration_threshold: 2048,
            sequential_threshold: 4 << 20,
            settle_every: Duration::from_secs(1),
            checks_origin: true,
        }
    }
}

impl Options {
    fn new(arguments: &Arguments) -> Result<Self> {
        let block_size = arguments.optional_size("block_size")?;
        if let Some(bytes) = block_size
            && (!(SMALLEST_BLOCK..=LARGEST_BLOCK).contains(&bytes) || !bytes.is_multiple_of(SMALLEST_BLOCK))
        {
            let text = format!(
                "block_size {}: expected a multiple of 32KiB from 32KiB to 1GiB, as dm-cache takes",
                format_size(bytes)
            );
            return Err(arguments.refuse("block_size", text));
        }
        let mode = arguments.choice("mode")?;
        Ok(Options {
            format: arguments.format(),
            mode: Mode::from_name(mode).ok_or_else(|| Error::invalid(format!("mode \"{mode}\"")))?,
            block_size: block_size.unwrap_or(USUAL_BLOCK),
            block_size_given: block_size.is_some(),
            migration_threshold: arguments.integer("migration_threshold")?,
            sequential_threshold: arguments.size("sequential_threshold")?,
            ..Options::default()
        })
    }
}

fn plan(arguments: &Arguments) -> Result<Shape> {
    let options = Options::new(arguments)?;
    let (slow, fast) = (arguments.shape("on")?, arguments.shape("cache")?);
    let block_size = slow.block_size.max(fast.block_size).filter(|_| slow.block_size.is_some());
    let Some(size) = block_size.filter(|_| fast.block_size.is_some()) else { return Ok(Shape::default()) };
    let largest = u64::from(size);
    if options.block_size < largest || !options.block_size.is_multiple_of(largest) {
        let text = format!(
            "block_size {}: expected a multiple of {size}, the block size of what is below",
            format_size(options.block_size)
        );
        return Err(arguments.refuse("block_size", text));
    }
    if let Some(bytes) = fast.bytes
        && options.format
    {
        let fast = block::DeviceGeometry {
            block_size: BlockSize::new(u64::from(fast.block_size.unwrap_or(size)))?,
            blocks: block::BlockCount(bytes / u64::from(fast.block_size.unwrap_or(size))),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        };
        crate::table::Layout::new(&fast, options.block_size)
            .map_err(|error| arguments.refuse("cache", format!("cache: {}", error.detail())))?;
    }
    let bytes = slow.bytes.map(|bytes| bytes / largest * largest);
    if bytes == Some(0) {
        return Err(arguments.refuse("on", "on: the origin has no block"));
    }
    Ok(Shape { bytes, block_size: Some(size), ..Shape::default() })
}
