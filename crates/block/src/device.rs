//! The Device contract: a fixed number of blocks, read and written in place.

use crate::address::{BlockCount, BlockIndex, BlockRange};
use crate::buffer::{Buffer, Payload};
use crate::call::Call;
use crate::error::Result;
use crate::geometry::DeviceGeometry;

/// What a read returns: whether it worked, and the buffer, in either case. After a failure the buffer shows
/// no bytes at all ([`Buffer::filled`] is empty): a failed read is never zeros, nor what was there before.
pub type ReadOutcome = (Result<()>, Buffer);

/// What must be true of a write when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every later read sees it. With a volatile cache, a power cut may still lose it.
    #[default]
    Visible,
    /// Force unit access: this write survives a power cut. Says nothing about earlier ones.
    Durable,
}

/// Whether zeros may be written by giving the space back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroMode {
    /// The space may be given back; the blocks read as zeros either way.
    #[default]
    MayDeallocate,
    /// The space stays allocated, so that a later write can't fail for want of room.
    KeepAllocated,
}

/// What is known about the contents of a range without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentState {
    /// Blocks that may hold anything.
    Data,
    /// Blocks that hold space and read as zeros.
    Zero,
    /// Blocks without space of their own; they read as zeros.
    Hole,
}

/// The state of consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Which blocks.
    pub range: BlockRange,
    /// What is known about them.
    pub state: ExtentState,
}

/// A handle of one shard on a device.
///
/// # Promises
/// - An acknowledged `write` is seen by every later read, through every shard's handle.
/// - When `flush` returns, every write acknowledged before it was called, through any handle, survives a
///   power cut. Without a volatile cache it returns at once.
/// - A write with [`Durability::Durable`] survives a power cut once acknowledged.
/// - After a power cut each block holds the last durable version or a later one that was submitted, never
///   torn below `geometry().atomic_write` (by a power cut), never another block's data.
/// - Discarded blocks, and those of `write_zeroes`, read as zeros until they are written again.
/// - While two requests that overlap are in flight at the same time, and one of them writes, the bytes that
///   both touch are any mixture of theirs: a read sees old and new bytes, two writes may leave some of each.
///   Memory, the page cache and most disks promise no more; whoever needs more keeps them apart.
/// - Dropping a call stops the waiting, never the operation; its buffers live until it has ended.
///
/// Every method returns [`Error::Invalid`](crate::Error::Invalid) for a range outside the device or lengths
/// that aren't whole blocks, and [`Error::ReadOnly`](crate::Error::ReadOnly) where it would write to a
/// read-only device. An empty range succeeds and does nothing.
pub trait Device {
    /// The shape of the device. It does not change while a handle is open.
    fn geometry(&self) -> &DeviceGeometry;

    /// Fills the buffer, whose length is a multiple of the block size, from block `at` on.
    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome>;

    /// Writes the payload, whose length is a multiple of the block size, from block `at` on.
    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>>;

    /// Makes every write that was acknowledged before this call durable.
    fn flush(&self) -> Call<'_, Result<()>>;

    /// The blocks are no longer needed; they read as zeros from now on. Durable after a flush.
    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>>;

    /// Makes the blocks read as zeros, without a payload of zeros.
    fn write_zeroes(&self, range: BlockRange, mode: ZeroMode, durability: Durability)
    -> Call<'_, Result<()>>;

    /// Says what is known about a range: extents in order that cover it without gap or overlap, or only a
    /// beginning of it (never nothing of a range that isn't empty), so that the answer stays bounded. A
    /// device that doesn't know says that everything may be data.
    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let checked = self.geometry().check(range);
        let state = ExtentState::Data;
        Call::ready(checked.map(|()| match range.count {
            BlockCount(0) => Vec::new(),
            _ => vec![Extent { range, state }],
        }))
    }
}
