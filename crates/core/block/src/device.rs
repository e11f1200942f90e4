//! The Device contract: numbered blocks, read and written in place. Their number may grow, and never shrinks.

use crate::address::{BlockCount, BlockIndex, BlockRange};
use crate::buffer::{Buffer, Payload};
use crate::call::Call;
use crate::error::Result;
use crate::geometry::DeviceGeometry;

/// Result of a read, with its buffer in either case. After a failure the buffer is empty
/// ([`Buffer::filled`]): a failed read never returns zeros or earlier contents.
pub type ReadOutcome = (Result<()>, Buffer);

/// Guarantee of a write when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Every later read returns the write. With a volatile cache, a power cut may still lose it.
    #[default]
    Visible,
    /// Force unit access: the write survives a power cut. It gives no guarantee for earlier writes.
    Durable,
}

/// Whether `write_zeroes` may deallocate the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroMode {
    /// The blocks may be deallocated; they read as zeros either way.
    #[default]
    MayDeallocate,
    /// The blocks remain allocated, so that a later write can't fail for lack of space.
    KeepAllocated,
}

/// Allocation state of a range, known without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentState {
    /// Blocks with any contents.
    Data,
    /// Allocated blocks that read as zeros.
    Zero,
    /// Deallocated blocks; they read as zeros.
    Hole,
}

/// State of consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Blocks of the extent.
    pub range: BlockRange,
    /// State of all these blocks.
    pub state: ExtentState,
}

/// Bytes of a device that plain calls read and write, without a task or a request.
///
/// A write returns once the bytes are where every later read finds them, in the page cache for example: it is
/// an acknowledged `write` of [`Device`] with the granularity of bytes. It survives the end of this process
/// where the part [keeps acknowledged writes](crate::DevicePart::keeps_acknowledged), and a power cut after a
/// flush of the device. A power cut before it leaves any mixture of old and new bytes, torn at
/// `atomic_write`.
pub trait CachedBytes {
    /// Fills `bytes` with those at `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a range outside of these bytes; errors of the medium.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Writes `bytes` at `offset`. After an error any part of them may have been written.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`Error::NoSpace`](crate::Error::NoSpace).
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// A handle of one shard on a device.
///
/// # Promises
/// - Every later read returns an acknowledged `write`, through every shard's handle.
/// - When `flush` returns, every write acknowledged before it was called, through any handle, survives a
///   power cut. Without a volatile cache it returns at once.
/// - A write with [`Durability::Durable`] survives a power cut once acknowledged.
/// - After a power cut each block holds the last durable version or a later one that was submitted, never
///   torn below `geometry().atomic_write` (by a power cut), never another block's data.
/// - Discarded blocks, and those of `write_zeroes`, read as zeros until they are written again.
/// - If two requests that overlap are in flight at the same time and one of them writes, the bytes that both
///   touch are any mixture of theirs: a read returns old and new bytes, two writes may leave some of each.
///   Memory, the page cache and most disks promise no more; a caller that needs more orders its requests. Of
///   two reads during one write the later may return older bytes, because a layer with two copies doesn't
///   change both at the same moment.
/// - Dropping a call ends the wait, never the operation; its buffers live until it has ended. The caller
///   can't observe its end: a write that a read has returned may still be in flight.
///
/// Every method returns [`Error::Invalid`](crate::Error::Invalid) for a range outside the device or lengths
/// that aren't whole blocks, and [`Error::ReadOnly`](crate::Error::ReadOnly) where it would write to a
/// read-only device. An empty range succeeds and does nothing.
pub trait Device {
    /// Geometry of the device. While a handle is open the number of blocks may grow, at any time and never
    /// beyond the medium's size; other values don't change, and the number never shrinks. A caller that
    /// computes with it reads it once.
    fn geometry(&self) -> &DeviceGeometry;

    /// Fills the buffer, whose length is a multiple of the block size, with the bytes at block `at`.
    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome>;

    /// Writes the payload, whose length is a multiple of the block size, at block `at`.
    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>>;

    /// Makes every write that was acknowledged before this call durable.
    fn flush(&self) -> Call<'_, Result<()>>;

    /// Deallocates the blocks, which then read as zeros. Durable after a flush.
    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>>;

    /// Makes the blocks read as zeros, without a payload of zeros.
    fn write_zeroes(&self, range: BlockRange, mode: ZeroMode, durability: Durability)
    -> Call<'_, Result<()>>;

    /// Returns the state of a range: extents in order that cover it without gap or overlap, or cover only its
    /// beginning, so that the answer is bounded. For a range that isn't empty there is at least one extent.
    /// The default reports all blocks as data.
    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let checked = self.geometry().check(range);
        let state = ExtentState::Data;
        Call::ready(checked.map(|()| match range.count {
            BlockCount(0) => Vec::new(),
            _ => vec![Extent { range, state }],
        }))
    }

    /// Returns synchronous access to the bytes of a range, for small writes that only have to survive the end
    /// of this process. The default is `None`: a device without such an access, or a layer over one that
    /// doesn't pass it on.
    fn open_cached(&self, range: BlockRange) -> Option<Box<dyn CachedBytes>> {
        let _ = range;
        None
    }
}
