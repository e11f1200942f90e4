//! Execution of requests on a device: from bytes to blocks and back.
//!
//! A request of whole blocks becomes one call on the device, and its buffer is passed unchanged. A read of other bytes
//! reads the blocks that hold them. A write of other bytes reads, changes and writes its first and last block while the
//! export's [`WriteGate`] excludes every other write of the export to them. A short read of the device is an error, so
//! that a reply never has fewer bytes than it announces. Checking the request against the export, and answering, are
//! left to the connection.

use super::negotiation::ALLOCATION_CONTEXT_ID;
use super::protocol::{Request, extent_flag};
use super::request::Operation;
use super::write_gate::{Counted, WriteGate};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Data, Device, Durability, Error, Extent, ExtentState, Payload,
    ReadOutcome, Result, ZeroMode,
};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Limit of the extents in one reply; the client asks again for the rest.
const MOST_EXTENTS: usize = 4096;
/// Length of the longest reply to a block status, in bytes.
pub(super) const MOST_STATUS_BYTES: u64 = 4 + 8 * MOST_EXTENTS as u64;

/// Device and gate for the requests of a connection.
#[derive(Clone, Copy)]
pub(super) struct Target<'d> {
    pub(super) device: &'d dyn Device,
    pub(super) gate: &'d WriteGate,
    pub(super) shard: usize,
    pub(super) block_shift: u32,
}

enum Calls<'d> {
    Read(Call<'d, ReadOutcome>),
    Done(Call<'d, Result<()>>),
    Extents(Call<'d, Result<Vec<Extent>>>),
}

/// A request in progress.
pub(super) struct Work<'d> {
    request: Request,
    operation: Operation,
    block_shift: u32,
    calls: Calls<'d>,
    /// Count of a write of whole blocks at the gate.
    counted: Option<Counted<'d>>,
}

/// A request that has ended.
pub(super) struct Ended {
    pub(super) request: Request,
    pub(super) operation: Operation,
    /// Data of the answer; `None` but for reads and block statuses.
    pub(super) outcome: Result<Option<Data>>,
}

impl<'d> Target<'d> {
    /// Blocks that hold a request's bytes.
    fn blocks_of(&self, request: &Request) -> BlockRange {
        let start = request.offset >> self.block_shift;
        let end = (request.offset + u64::from(request.length)).div_ceil(1 << self.block_shift);
        BlockRange::new(start, end - start)
    }

    fn is_whole_blocks(&self, request: &Request) -> bool {
        (request.offset | u64::from(request.length)) & ((1 << self.block_shift) - 1) == 0
    }

    /// Makes the call for a request, which has been checked against the export and isn't empty if it has a length. A
    /// write has a payload.
    #[inline]
    pub(super) fn begin(&self, request: Request, operation: Operation, payload: Option<Buffer>) -> Work<'d> {
        let range = self.blocks_of(&request);
        let mut counted = None;
        let calls = match operation {
            Operation::Read => {
                let buffer = Buffer::new((range.count.0 << self.block_shift) as usize);
                Calls::Read(self.device.read(range.start, buffer))
            }
            Operation::Write(durability) => {
                let payload = payload.unwrap_or_else(|| Buffer::new(0));
                if self.is_whole_blocks(&request) {
                    counted = self.gate.pass(self.shard);
                    match counted {
                        Some(_) => Calls::Done(self.device.write(range.start, payload.into(), durability)),
                        None => {
                            Calls::Done(Call::new(write_queued(*self, range, payload.into(), durability)))
                        }
                    }
                } else {
                    Calls::Done(Call::new(write_part(*self, request, payload, durability)))
                }
            }
            Operation::Flush => Calls::Done(self.device.flush()),
            Operation::Trim(durability) => Calls::Done(Call::new(trim(*self, request, durability))),
            Operation::WriteZeroes(mode, durability) => {
                Calls::Done(Call::new(write_zeroes(*self, request, mode, durability)))
            }
            Operation::BlockStatus { .. } => Calls::Extents(self.device.extents(range)),
        };
        Work { request, operation, block_shift: self.block_shift, calls, counted }
    }
}

impl Future for Work<'_> {
    type Output = Ended;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let (request, operation, shift) = (self.request, self.operation, self.block_shift);
        let outcome = match &mut self.calls {
            Calls::Read(call) => {
                let Poll::Ready((result, buffer)) = Pin::new(call).poll(context) else {
                    return Poll::Pending;
                };
                result.and_then(|()| bytes_of(&request, buffer, shift)).map(Some)
            }
            Calls::Done(call) => {
                let Poll::Ready(result) = Pin::new(call).poll(context) else { return Poll::Pending };
                result.map(|()| None)
            }
            Calls::Extents(call) => {
                let Poll::Ready(result) = Pin::new(call).poll(context) else { return Poll::Pending };
                let only_one = operation == Operation::BlockStatus { only_one: true };
                result.map(|extents| Some(describe(&request, &extents, shift, only_one)))
            }
        };
        drop(self.counted.take());
        Poll::Ready(Ended { request, operation, outcome })
    }
}

/// Bytes of a read, out of the blocks that were read.
#[inline]
fn bytes_of(request: &Request, buffer: Buffer, block_shift: u32) -> Result<Data> {
    let (wanted, length) = (buffer.len(), request.length as usize);
    let skip = (request.offset & ((1 << block_shift) - 1)) as usize;
    let data = buffer.freeze();
    if data.len() != wanted {
        return Err(Error::io(format!("the device returned {} bytes: expected {wanted}", data.len())));
    }
    Ok(if wanted == length { data } else { data.slice(skip..skip + length) })
}

/// Payload of a BLOCK_STATUS chunk.
fn describe(request: &Request, extents: &[Extent], block_shift: u32, only_one: bool) -> Data {
    let end = request.offset + u64::from(request.length);
    let mut at = request.offset;
    let mut found: Vec<(u32, u32)> = Vec::new();
    for extent in extents {
        let flags = match extent.state {
            ExtentState::Data => 0,
            ExtentState::Zero => extent_flag::ZERO,
            ExtentState::Hole => extent_flag::HOLE | extent_flag::ZERO,
        };
        let (from, to) =
            (extent.range.start.0 << block_shift, (extent.range.end().0 << block_shift).min(end));
        if from > at || at >= to {
            break;
        }
        let length = (to - at) as u32;
        at = to;
        let full = found.len() == if only_one { 1 } else { MOST_EXTENTS };
        match found.last_mut() {
            Some(last) if last.1 == flags => last.0 += length,
            _ if full => break,
            _ => found.push((length, flags)),
        }
    }
    if found.is_empty() {
        found.push((request.length, 0));
    }
    let mut buffer = Buffer::new(4 + 8 * found.len());
    buffer.append(&ALLOCATION_CONTEXT_ID.to_be_bytes());
    for (length, flags) in found {
        buffer.append(&length.to_be_bytes());
        buffer.append(&flags.to_be_bytes());
    }
    buffer.freeze()
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
    request: Request,
    payload: Buffer,
    durability: Durability,
) -> Result<()> {
    let range = target.blocks_of(&request);
    let block_bytes = 1_usize << target.block_shift;
    let before = (request.offset & (block_bytes as u64 - 1)) as usize;
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

/// Discards the whole blocks inside a request, as the specification allows; not on a device that doesn't support it.
async fn trim(target: Target<'_>, request: Request, durability: Durability) -> Result<()> {
    let start = request.offset.div_ceil(1 << target.block_shift);
    let end = (request.offset + u64::from(request.length)) >> target.block_shift;
    if start >= end {
        return Ok(());
    }
    let range = BlockRange::new(start, end - start);
    {
        let counted = target.gate.pass(target.shard);
        let _held = if counted.is_none() { Some(target.gate.queue(range).await) } else { None };
        match target.device.discard(range).await {
            // A trim is a hint.
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
    request: Request,
    mode: ZeroMode,
    durability: Durability,
) -> Result<()> {
    let range = target.blocks_of(&request);
    if target.is_whole_blocks(&request) {
        let counted = target.gate.pass(target.shard);
        let _held = if counted.is_none() { Some(target.gate.queue(range).await) } else { None };
        return target.device.write_zeroes(range, mode, durability).await;
    }
    let _held = target.gate.exclude(range).await;
    let shift = target.block_shift;
    let end = request.offset + u64::from(request.length);
    let (mut first_whole, mut end_whole) = (range.start.0, range.end().0);
    if request.offset & ((1 << shift) - 1) != 0 {
        zero_part(target, first_whole, request.offset, end, durability).await?;
        first_whole += 1;
    }
    if end & ((1 << shift) - 1) != 0 && end_whole > first_whole {
        end_whole -= 1;
        zero_part(target, end_whole, request.offset, end, durability).await?;
    }
    if end_whole <= first_whole {
        return Ok(());
    }
    let whole = BlockRange::new(first_whole, end_whole - first_whole);
    target.device.write_zeroes(whole, mode, durability).await
}

/// Zeroes the bytes of one block that lie between `from` and `to`, offsets in the export.
async fn zero_part(target: Target<'_>, block: u64, from: u64, to: u64, durability: Durability) -> Result<()> {
    let block_bytes = 1_u64 << target.block_shift;
    let base = block << target.block_shift;
    let old = read_block(target, BlockIndex(block)).await?;
    let (from, to) = (from.max(base) - base, (to.min(base + block_bytes)) - base);
    let mut new = Buffer::copy_of(&old);
    new.filled_mut()[from as usize..to as usize].fill(0);
    target.device.write(BlockIndex(block), new.into(), durability).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, count: u64, state: ExtentState) -> Extent {
        Extent { range: BlockRange::new(start, count), state }
    }

    fn described(offset: u64, length: u32, extents: &[Extent], only_one: bool) -> Vec<(u32, u32)> {
        let request = Request { flags: 0, command: 7, cookie: 0, offset, length };
        let data = describe(&request, extents, 12, only_one);
        assert_eq!(data[..4], [0, 0, 0, 1]);
        let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        data[4..].chunks(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect()
    }

    #[test]
    fn extents_are_clipped_joined_and_counted() {
        let extents = [
            extent(0, 2, ExtentState::Data),
            extent(2, 1, ExtentState::Hole),
            extent(3, 1, ExtentState::Hole),
            extent(4, 4, ExtentState::Zero),
        ];
        assert_eq!(described(0, 32768, &extents, false), [(8192, 0), (8192, 3), (16384, 2)]);
        assert_eq!(described(100, 20000, &extents, false), [(8092, 0), (8192, 3), (3716, 2)]);
        assert_eq!(described(0, 32768, &extents, true), [(8192, 0)]);
        assert_eq!(described(8192, 32768, &extents[1..], true), [(8192, 3)]);
        assert_eq!(described(4096, 10, &extents[..1], false), [(10, 0)]);
        // A device that says nothing, or of other blocks, has its bytes taken for data.
        assert_eq!(described(0, 4096, &[], false), [(4096, 0)]);
        assert_eq!(described(0, 4096, &extents[1..], false), [(4096, 0)]);
    }
}
