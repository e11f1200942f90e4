//! The block of range tombstones.

use super::stored::corrupt;
use crate::key_version::{MAX_KEY_BYTES, RangeTombstone};
use block::Result;
use logkit::leb128::{self, Encoded};

/// Encodes sorted, distinct range tombstones.
pub(super) fn encode(tombstones: &[RangeTombstone]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tombstone in tombstones {
        for key in [&tombstone.from, &tombstone.to] {
            let mut length = Encoded::<10>::default();
            length.push(key.len() as u64);
            bytes.extend_from_slice(length.bytes());
            bytes.extend_from_slice(key);
        }
        let mut numbers = Encoded::<20>::default();
        numbers.push(tombstone.sequence);
        numbers.push(tombstone.deleted);
        bytes.extend_from_slice(numbers.bytes());
    }
    bytes
}

/// Decodes range tombstones and checks their order.
pub(super) fn decode(bytes: &[u8], offset: u64) -> Result<Vec<RangeTombstone>> {
    let mut tombstones: Vec<RangeTombstone> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let begin = at;
        let tombstone = decode_one(bytes, &mut at).ok_or_else(|| {
            corrupt(offset, format_args!("range tombstone at {begin}: its lengths or numbers are invalid"))
        })?;
        if tombstone.from >= tombstone.to || tombstones.last().is_some_and(|last| *last >= tombstone) {
            return Err(corrupt(offset, format_args!("range tombstone at {begin}: empty or out of order")));
        }
        tombstones.push(tombstone);
    }
    Ok(tombstones)
}

fn decode_one(bytes: &[u8], at: &mut usize) -> Option<RangeTombstone> {
    let number = |at: &mut usize| {
        let (number, next) = leb128::decode(bytes, *at)?;
        *at = next;
        Some(number)
    };
    let key = |at: &mut usize| {
        let length = usize::try_from(number(at)?).ok().filter(|&length| length <= MAX_KEY_BYTES)?;
        let key = bytes.get(*at..*at + length)?;
        *at += length;
        Some(key.to_vec())
    };
    let (from, to) = (key(at)?, key(at)?);
    Some(RangeTombstone { from, to, sequence: number(at)?, deleted: number(at)? })
}

/// Memory of range tombstones, in bytes.
pub(super) fn memory_bytes(tombstones: &[RangeTombstone]) -> usize {
    tombstones
        .iter()
        .map(|tombstone| size_of::<RangeTombstone>() + tombstone.from.len() + tombstone.to.len())
        .sum()
}
