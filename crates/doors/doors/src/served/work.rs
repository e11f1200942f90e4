//! Execution of operations on bytes of a device: from bytes to blocks and back.
//!
//! An operation on whole blocks becomes one call on the device, and its buffer is passed unchanged. A read of
//! other bytes reads the blocks that contain them. A write of other bytes reads, changes and writes its first
//! and last block while the device's [`WriteGate`] excludes all other writes to them through the gate. A
//! short read of the device is an error, so that a reply never has fewer bytes than it announces. The door
//! checks the request against the export, and answers it.

use super::write_gate::{Counted, WriteGate};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Data, Device, Durability, Error, Payload, ReadOutcome, Result,
    ZeroMode,
};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read the bytes.
    Read,
    /// Write the bytes.
    Write(Durability),
    /// Make acknowledged writes durable; has no range.
    Flush,
    /// Deallocate the bytes, as far as the device supports it.
    Trim(Durability),
    /// Make the bytes read as zeros.
    WriteZeroes(ZeroMode, Durability),
}

impl Operation {
    /// Whether the operation changes bytes of the device.
    #[inline]
    pub fn changes(self) -> bool {
        matches!(self, Operation::Write(_) | Operation::Trim(_) | Operation::WriteZeroes(..))
    }
}

/// Bytes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl ByteRange {
    /// Offset after the last byte.
    #[inline]
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Returns the blocks that contain these bytes: none for an empty range at the start of a block.
    #[inline]
    pub fn blocks(&self, block_shift: u32) -> BlockRange {
        let start = self.offset >> block_shift;
        BlockRange::new(start, self.end().div_ceil(1 << block_shift) - start)
    }

    /// Size of these blocks, in bytes.
    #[inline]
    pub fn block_bytes(&self, block_shift: u32) -> u64 {
        self.blocks(block_shift).count.0 << block_shift
    }

    #[inline]
    fn is_whole_blocks(&self, block_shift: u32) -> bool {
        (self.offset | self.length) & ((1 << block_shift) - 1) == 0
    }
}

/// Device and gate for the requests of a shard; [`Export::target`](super::export::Export::target) returns it.
#[derive(Clone, Copy)]
pub struct Target<'d> {
    /// Handle of the device on this shard.
    pub device: &'d dyn Device,
    pub(super) gate: &'d WriteGate,
    pub(super) shard: usize,
    /// Binary logarithm of the block size.
    pub block_shift: u32,
}

enum Calls<'d> {
    Read(Call<'d, ReadOutcome>),
    Done(Call<'d, Result<()>>),
}

/// An operation in progress. Its output is the bytes of a read, `None` for other operations.
///
/// Dropping it ends the wait but not the operation, and it ends the exclusion of other writes from partial
/// blocks. The caller therefore polls it to its end.
pub struct Work<'d> {
    range: ByteRange,
    block_shift: u32,
    calls: Calls<'d>,
    /// Count of a write of whole blocks at the gate.
    counted: Option<Counted<'d>>,
}

impl<'d> Target<'d> {
    /// Begins an operation. Its range is inside the device, and only a flush has an empty one. A write has a
    /// payload of the range's length; a read has at most 1 GiB.
    #[inline]
    pub fn begin(&self, range: ByteRange, operation: Operation, payload: Option<Buffer>) -> Work<'d> {
        let shift = self.block_shift;
        let blocks = range.blocks(shift);
        let mut counted = None;
        let calls = match operation {
            Operation::Read => {
                let buffer = Buffer::new((blocks.count.0 << shift) as usize);
                Calls::Read(self.device.read(blocks.start, buffer))
            }
            Operation::Write(durability) => {
                let payload = payload.unwrap_or_else(|| Buffer::new(0));
                if range.is_whole_blocks(shift) {
                    counted = self.gate.pass(self.shard);
                    match counted {
                        Some(_) => Calls::Done(self.device.write(blocks.start, payload.into(), durability)),
                        None => {
                            Calls::Done(Call::new(write_queued(*self, blocks, payload.into(), durability)))
                        }
                    }
                } else {
                    Calls::Done(Call::new(write_part(*self, range, payload, durability)))
                }
            }
            Operation::Flush => Calls::Done(self.device.flush()),
            Operation::Trim(durability) => Calls::Done(Call::new(trim(*self, range, durability))),
            Operation::WriteZeroes(mode, durability) => {
                Calls::Done(Call::new(write_zeroes(*self, range, mode, durability)))
            }
        };
        Work { range, block_shift: shift, calls, counted }
    }
}

impl Future for Work<'_> {
    type Output = Result<Option<Data>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (range, shift) = (self.range, self.block_shift);
        let outcome = match &mut self.calls {
            Calls::Read(call) => {
                let Poll::Ready((result, buffer)) = Pin::new(call).poll(context) else {
                    return Poll::Pending;
                };
                result.and_then(|()| bytes_of(range, buffer, shift)).map(Some)
            }
            Calls::Done(call) => {
                let Poll::Ready(result) = Pin::new(call).poll(context) else { return Poll::Pending };
                result.map(|()| None)
            }
        };
        drop(self.counted.take());
        Poll::Ready(outcome)
    }
}

/// Extracts the bytes of a read from the blocks that were read.
#[inline]
fn bytes_of(range: ByteRange, buffer: Buffer, block_shift: u32) -> Result<Data> {
    let (wanted, length) = (buffer.len(), range.length as usize);
    let skip = (range.offset & ((1 << block_shift) - 1)) as usize;
    let data = buffer.freeze();
    if data.len() != wanted {
        return Err(Error::io(format!("the device returned {} bytes: expected {wanted}", data.len())));
    }
    Ok(if wanted == length { data } else { data.slice(skip..skip + length) })
}

async fn write_queued(
    target: Target<'_>,
    range: BlockRange,
    payload: Payload,
    durability: Durability,
) -> Result<()> {
    let _held = target.gate.queue(range).await;
    target.device.write(range.start, payload, durability).await
}

/// Writes bytes that aren't whole blocks.
async fn write_part(
    target: Target<'_>,
    bytes: ByteRange,
    payload: Buffer,
    durability: Durability,
) -> Result<()> {
    let range = bytes.blocks(target.block_shift);
    let block_bytes = 1_usize << target.block_shift;
    let before = (bytes.offset & (block_bytes as u64 - 1)) as usize;
    let mut whole = Buffer::new((range.count.0 as usize) << target.block_shift);
    let after = whole.len() - before - payload.filled().len();
    let _held = target.gate.exclude(range).await;
    let mut first = None;
    if before > 0 {
        let block = read_block(target, range.start).await?;
        whole.append(&block[..before]);
        first = Some(block);
    }
    whole.append(payload.filled());
    if after > 0 {
        let last = match first {
            Some(block) if range.count.0 == 1 => block,
            _ => read_block(target, BlockIndex(range.end().0 - 1)).await?,
        };
        whole.append(&last[block_bytes - after..]);
    }
    target.device.write(range.start, whole.into(), durability).await
}

async fn read_block(target: Target<'_>, block: BlockIndex) -> Result<Data> {
    let bytes = 1_usize << target.block_shift;
    let (result, buffer) = target.device.read(block, Buffer::new(bytes)).await;
    result?;
    match buffer.filled().len() == bytes {
        true => Ok(buffer.freeze()),
        false => {
            Err(Error::io(format!("the device returned {} bytes: expected {bytes}", buffer.filled().len())))
        }
    }
}

/// Discards the whole blocks inside a range. Does nothing on a device that doesn't support it.
async fn trim(target: Target<'_>, bytes: ByteRange, durability: Durability) -> Result<()> {
    let start = bytes.offset.div_ceil(1 << target.block_shift);
    let end = bytes.end() >> target.block_shift;
    if start >= end {
        return Ok(());
    }
    let range = BlockRange::new(start, end - start);
    {
        let counted = target.gate.pass(target.shard);
        let _held = if counted.is_none() { Some(target.gate.queue(range).await) } else { None };
        match target.device.discard(range).await {
            // A trim is a hint, so this isn't an error.
            Err(Error::Unsupported(_)) => return Ok(()),
            other => other?,
        }
    }
    match durability {
        Durability::Visible => Ok(()),
        Durability::Durable => target.device.flush().await,
    }
}

async fn write_zeroes(
    target: Target<'_>,
    bytes: ByteRange,
    mode: ZeroMode,
    durability: Durability,
) -> Result<()> {
    let range = bytes.blocks(target.block_shift);
    if bytes.is_whole_blocks(target.block_shift) {
        let counted = target.gate.pass(target.shard);
        let _held = if counted.is_none() { Some(target.gate.queue(range).await) } else { None };
        return target.device.write_zeroes(range, mode, durability).await;
    }
    let _held = target.gate.exclude(range).await;
    let shift = target.block_shift;
    let end = bytes.end();
    let (mut first_whole, mut end_whole) = (range.start.0, range.end().0);
    if bytes.offset & ((1 << shift) - 1) != 0 {
        zero_part(target, first_whole, bytes.offset, end, durability).await?;
        first_whole += 1;
    }
    if end & ((1 << shift) - 1) != 0 && end_whole > first_whole {
        end_whole -= 1;
        zero_part(target, end_whole, bytes.offset, end, durability).await?;
    }
    if end_whole <= first_whole {
        return Ok(());
    }
    let whole = BlockRange::new(first_whole, end_whole - first_whole);
    target.device.write_zeroes(whole, mode, durability).await
}

/// Zeroes the bytes of one block between the device offsets `from` and `to`.
async fn zero_part(target: Target<'_>, block: u64, from: u64, to: u64, durability: Durability) -> Result<()> {
    let block_bytes = 1_u64 << target.block_shift;
    let base = block << target.block_shift;
    let old = read_block(target, BlockIndex(block)).await?;
    let (from, to) = (from.max(base) - base, (to.min(base + block_bytes)) - base);
    let mut new = Buffer::copy_of(&old);
    new.filled_mut()[from as usize..to as usize].fill(0);
    target.device.write(BlockIndex(block), new.into(), durability).await
}
