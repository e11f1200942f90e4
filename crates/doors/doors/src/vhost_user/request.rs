//! Parsing of a guest's requests (VIRTIO 1.2, section 5.2.6) from the buffers of a chain.
//!
//! A chain without a header or a status can't be answered and is an error, which ends the connection. Any
//! other invalid request is answered with a status.

use super::config::{MAX_RANGE_SECTORS, MAX_REQUEST_BYTES, SECTOR};
use super::memory::{GuestMemory, Segment};
use super::ring::{Chain, bytes_of};
use crate::served::work::{ByteRange, Operation};
use block::{Durability, Error, Result, ZeroMode};

/// Length of a request's header, in bytes.
const HEADER_BYTES: usize = 16;
/// Length of the range of a discard or a write of zeroes, in bytes.
const RANGE_BYTES: usize = 16;
/// Flag of a write of zeroes: the blocks may be deallocated.
const UNMAP: u32 = 1;
/// Length of the answer to GET_ID, in bytes.
pub const ID_BYTES: usize = 20;

/// Types of requests.
#[allow(missing_docs)]
pub mod kind {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The device failed, or the request is invalid.
    Failed = 1,
    /// The request isn't supported.
    Unsupported = 2,
}

/// Properties of a disk that requests are checked against.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// Size, in bytes.
    pub size: u64,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether the guest can flush. If not, each change is durable before it is completed.
    pub has_flush: bool,
}

/// Action for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Execute an operation; the data of a read or write is in the chain.
    Carry(Operation, ByteRange),
    /// Answer with the serial number.
    Identify,
    /// Answer with this status.
    Answer(Status),
}

/// Parses the request of a chain. Removes its header from the buffers to read and its status from the buffers
/// to write. Returns the action and the status byte.
///
/// # Errors
/// [`Error::Protocol`] for a chain without header or status.
pub fn parse(memory: &GuestMemory, chain: &mut Chain, disk: &Disk) -> Result<(Action, Segment)> {
    let mut header = [0; HEADER_BYTES];
    let found = take(memory, &mut chain.readable, &mut header);
    if found < HEADER_BYTES {
        return Err(Error::protocol(format!("request: header of {found} bytes; expected {HEADER_BYTES}")));
    }
    let Some(last) = chain.writable.pop() else {
        return Err(Error::protocol("request: no byte for its status; expected a buffer to write"));
    };
    let (data, status) = last.split(last.length - 1);
    if data.length > 0 {
        chain.writable.push(data);
    }
    let [kind, _, low, high] = words(&header);
    let sector = u64::from(high) << 32 | u64::from(low);
    Ok((action(memory, kind, sector, chain, disk), status))
}

fn action(memory: &GuestMemory, kind: u32, sector: u64, chain: &mut Chain, disk: &Disk) -> Action {
    let durability = if disk.has_flush { Durability::Visible } else { Durability::Durable };
    match kind {
        kind::IN => transfer(Operation::Read, sector, &chain.writable, disk),
        kind::OUT => transfer(Operation::Write(durability), sector, &chain.readable, disk),
        kind::FLUSH => Action::Carry(Operation::Flush, ByteRange { offset: 0, length: 0 }),
        kind::GET_ID => Action::Identify,
        kind::DISCARD | kind::WRITE_ZEROES => {
            if bytes_of(&chain.readable) != RANGE_BYTES {
                return Action::Answer(Status::Failed);
            }
            let mut range = [0; RANGE_BYTES];
            take(memory, &mut chain.readable, &mut range);
            let [low, high, sectors, flags] = words(&range);
            let operation = match (kind, flags) {
                (kind::DISCARD, 0) => Operation::Trim(durability),
                (kind::WRITE_ZEROES, 0) => Operation::WriteZeroes(ZeroMode::KeepAllocated, durability),
                (kind::WRITE_ZEROES, UNMAP) => Operation::WriteZeroes(ZeroMode::MayDeallocate, durability),
                _ => return Action::Answer(Status::Unsupported),
            };
            if sectors > MAX_RANGE_SECTORS {
                return Action::Answer(Status::Failed);
            }
            checked(operation, u64::from(high) << 32 | u64::from(low), u64::from(sectors) * SECTOR, disk)
        }
        _ => Action::Answer(Status::Unsupported),
    }
}

fn transfer(operation: Operation, sector: u64, data: &[Segment], disk: &Disk) -> Action {
    let bytes = bytes_of(data) as u64;
    match bytes.is_multiple_of(SECTOR) && bytes <= MAX_REQUEST_BYTES {
        true => checked(operation, sector, bytes, disk),
        false => Action::Answer(Status::Failed),
    }
}

fn checked(operation: Operation, sector: u64, length: u64, disk: &Disk) -> Action {
    let range = sector.checked_mul(SECTOR).map(|offset| ByteRange { offset, length });
    let inside = |range: &ByteRange| range.offset <= disk.size && range.length <= disk.size - range.offset;
    match range.filter(inside) {
        Some(_) if operation.changes() && disk.read_only => Action::Answer(Status::Failed),
        Some(range) if range.length == 0 => Action::Answer(Status::Ok),
        Some(range) => Action::Carry(operation, range),
        None => Action::Answer(Status::Failed),
    }
}

fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let word = u128::from_le_bytes(*bytes);
    [word as u32, (word >> 32) as u32, (word >> 64) as u32, (word >> 96) as u32]
}

/// Removes bytes from the front of segments. Returns their number.
fn take(memory: &GuestMemory, segments: &mut Vec<Segment>, target: &mut [u8]) -> usize {
    let (mut filled, mut used) = (0, 0);
    for segment in segments.iter_mut() {
        let (first, rest) = segment.split(target.len() - filled);
        memory.read(first, &mut target[filled..filled + first.length]);
        filled += first.length;
        *segment = rest;
        if rest.length > 0 {
            break;
        }
        used += 1;
    }
    segments.drain(..used);
    filled
}
