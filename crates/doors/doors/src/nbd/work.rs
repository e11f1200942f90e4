//! A request in progress: an operation on the device, or a description of its extents.

use super::negotiation::ALLOCATION_CONTEXT_ID;
use super::protocol::{Request, extent_flag};
use super::request::Command;
use crate::served::work::{self, ByteRange, Target};
use block::{Buffer, Call, Data, Extent, ExtentState, Result};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Most extents in one reply; the client asks again for the rest.
const MAX_EXTENTS: usize = 4096;
/// Length of the longest reply to a block status, in bytes.
pub(super) const MAX_STATUS_BYTES: u64 = 4 + 8 * MAX_EXTENTS as u64;

enum Calls<'d> {
    Operation(work::Work<'d>),
    Extents { call: Call<'d, Result<Vec<Extent>>>, block_shift: u32, only_one: bool },
}

/// A request in progress.
pub(super) struct Work<'d> {
    request: Request,
    command: Command,
    calls: Calls<'d>,
}

/// A request that has ended.
pub(super) struct Ended {
    pub(super) request: Request,
    pub(super) command: Command,
    /// Data of the answer; `None` except for reads and block statuses.
    pub(super) outcome: Result<Option<Data>>,
}

impl Request {
    /// Bytes of the export that the request refers to.
    #[inline]
    pub(super) fn range(&self) -> ByteRange {
        ByteRange { offset: self.offset, length: u64::from(self.length) }
    }
}

/// Starts the call for a request, which has been checked against the export and isn't empty if it has a
/// length. A write has a payload.
#[inline]
pub(super) fn begin<'d>(
    target: Target<'d>,
    request: Request,
    command: Command,
    payload: Option<Buffer>,
) -> Work<'d> {
    let calls = match command {
        Command::Device(operation) => Calls::Operation(target.begin(request.range(), operation, payload)),
        Command::BlockStatus { only_one } => {
            let call = target.device.extents(request.range().blocks(target.block_shift));
            Calls::Extents { call, block_shift: target.block_shift, only_one }
        }
    };
    Work { request, command, calls }
}

impl Future for Work<'_> {
    type Output = Ended;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let (request, command) = (self.request, self.command);
        let outcome = match &mut self.calls {
            Calls::Operation(work) => {
                let Poll::Ready(outcome) = Pin::new(work).poll(context) else { return Poll::Pending };
                outcome
            }
            Calls::Extents { call, block_shift, only_one } => {
                let Poll::Ready(result) = Pin::new(call).poll(context) else { return Poll::Pending };
                result.map(|extents| Some(describe(&request, &extents, *block_shift, *only_one)))
            }
        };
        Poll::Ready(Ended { request, command, outcome })
    }
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
        let full = found.len() == if only_one { 1 } else { MAX_EXTENTS };
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

#[cfg(test)]
mod tests {
    use super::*;
    use block::BlockRange;

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
        // Bytes without a description by the device, or with one of other blocks, are data.
        assert_eq!(described(0, 4096, &[], false), [(4096, 0)]);
        assert_eq!(described(0, 4096, &extents[1..], false), [(4096, 0)]);
    }
}
