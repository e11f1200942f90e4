//! `linear`: concatenated devices, or a range of one; dm's `linear` target.
//!
//! Promises: those of the Device contract. There is no metadata: the same devices in the same order give the
//! same data, and another order isn't detected.

use crate::spread::{self, Layout, OnLeg, SpreadPart};
use block::{BlockCount, BlockRange, BlockSize, Call, DevicePart, Error, Result, Status};
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind, format_size};
use std::sync::Arc;

/// `linear(file(a.img), file(b.img))`.
pub const KIND: Kind = Kind {
    name: "linear",
    contract: Contract::Device,
    summary: "concatenated devices, or a range of one",
    keys: &[
        Key::required("on", ValueKind::Devices, "the devices, in order").positional(),
        Key::optional("offset", ValueKind::Size, "number of bytes to skip at the beginning").or("0"),
        Key::optional("size", ValueKind::Size, "capacity; default: everything after the offset"),
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "linear(ram(64MiB), ram(32MiB))",
    plan: |arguments| {
        let legs = arguments.shapes("on")?;
        let block_size = Shape::largest_block(&legs);
        let lengths: Option<Vec<u64>> = legs.iter().map(|leg| leg.bytes).collect();
        let (Some(lengths), Some(block_size)) = (lengths, block_size) else {
            return Ok(Shape { block_size, ..Shape::default() });
        };
        let segments = segments(arguments, &lengths, BlockSize::new(u64::from(block_size))?)?;
        Ok(Shape::new(segments.blocks() * u64::from(block_size), block_size))
    },
    build: |arguments| {
        Call::ready((|| {
            let legs = arguments.devices("on")?;
            let (lengths, block_size) = (lengths_of(&legs), spread::block_size(&legs));
            let segments = segments(&arguments, &lengths, block_size)?;
            Ok(Built::Device(Arc::new(part(legs, segments))))
        })())
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[Metric::gauge("bytes", "device_bytes", "Capacity of the device")];

/// Concatenation of the legs' blocks.
#[derive(Debug)]
struct Segments {
    /// End of each leg's blocks in the device.
    ends: Vec<u64>,
    /// Number of skipped blocks of the first leg in use.
    skipped: u64,
    /// Number of legs that are skipped as a whole.
    before: usize,
}

impl Segments {
    /// Creates segments over legs with these numbers of blocks, from block `offset` on and with at most
    /// `size` blocks.
    fn new(lengths: &[u64], offset: u64, size: Option<u64>) -> Self {
        let (mut skipped, mut before) = (offset, 0);
        while before + 1 < lengths.len() && skipped >= lengths[before] {
            skipped -= lengths[before];
            before += 1;
        }
        let mut end = 0;
        let mut ends = Vec::new();
        for (leg, length) in lengths.iter().enumerate().skip(before) {
            end += if leg == before { length.saturating_sub(skipped) } else { *length };
            ends.push(end.min(size.unwrap_or(end)));
            if size.is_some_and(|size| end >= size) {
                break;
            }
        }
        Segments { ends, skipped, before }
    }

    fn blocks(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the largest power of two that divides all offsets at which a leg begins.
    fn alignment(&self) -> u64 {
        let starts = self.ends.iter().take(self.ends.len().saturating_sub(1)).chain([&self.skipped]);
        1 << starts.fold(63, |least, start| least.min(start.trailing_zeros()))
    }
}

impl Layout for Segments {
    fn map(&self, block: u64) -> OnLeg {
        let leg = self.ends.partition_point(|end| *end <= block);
        let start = if leg == 0 { 0 } else { self.ends[leg - 1] };
        let skipped = if leg == 0 { self.skipped } else { 0 };
        OnLeg { leg: self.before + leg, block: block - start + skipped, run: self.ends[leg] - block }
    }
}

fn lengths_of(legs: &[Arc<dyn DevicePart>]) -> Vec<u64> {
    legs.iter().map(|leg| leg.geometry().bytes()).collect()
}

/// Returns the segments that the keys describe, over legs with these lengths in bytes.
fn segments(arguments: &Arguments, lengths: &[u64], block_size: BlockSize) -> Result<Segments> {
    let blocks: Vec<u64> = lengths.iter().map(|bytes| bytes >> block_size.shift()).collect();
    let there = blocks.iter().sum::<u64>() << block_size.shift();
    let whole = |key: &'static str, bytes: u64| match bytes.is_multiple_of(block_size.bytes()) {
        true => Ok(bytes >> block_size.shift()),
        false => Err(arguments.refuse(
            key,
            format!(
                "{key} {bytes}: expected a multiple of {block_size}, the largest block size of the devices"
            ),
        )),
    };
    let offset = whole("offset", arguments.size("offset")?)?;
    let size = arguments.optional_size("size")?.map(|bytes| whole("size", bytes)).transpose()?;
    let left = (there >> block_size.shift()).saturating_sub(offset);
    if left == 0 {
        let text = format!(
            "offset {}: expected less than {}, the size of the devices",
            format_size(offset << block_size.shift()),
            format_size(there)
        );
        return Err(arguments.refuse("offset", text));
    }
    if let Some(size) = size.filter(|size| *size == 0 || *size > left) {
        let (size, left) = (size << block_size.shift(), format_size(left << block_size.shift()));
        let text =
            format!("size {}: expected from one block to {left}, which follow the offset", format_size(size));
        return Err(arguments.refuse("size", text));
    }
    Ok(Segments::new(&blocks, offset, size))
}

fn part(legs: Vec<Arc<dyn DevicePart>>, segments: Segments) -> SpreadPart {
    let block_size = spread::block_size(&legs);
    let mut status = Status::new();
    status.insert("bytes".into(), (segments.blocks() << block_size.shift()).into());
    status.insert("devices".into(), legs.len().into());
    let atomic = segments.alignment().saturating_mul(block_size.bytes());
    let blocks = BlockCount(segments.blocks());
    SpreadPart::new(KIND.name, legs, segments, blocks, atomic, status)
}

/// Concatenates devices. The block size is the largest of theirs; each contributes its whole blocks of that
/// size.
///
/// # Errors
/// [`Error::Invalid`] without a device that has a whole block.
pub fn linear(legs: Vec<Arc<dyn DevicePart>>) -> Result<impl DevicePart> {
    let block_size = spread::block_size(&legs);
    let blocks: Vec<u64> = lengths_of(&legs).iter().map(|bytes| bytes >> block_size.shift()).collect();
    match blocks.iter().sum::<u64>() {
        0 => Err(Error::invalid("linear: the devices have no block; expected at least one")),
        _ => Ok(part(legs, Segments::new(&blocks, 0, None))),
    }
}

/// Returns a range of a device as a device.
///
/// # Errors
/// [`Error::Invalid`] for an empty range, or one outside the device.
pub fn part_of(device: Arc<dyn DevicePart>, range: BlockRange) -> Result<impl DevicePart> {
    device.geometry().check(range)?;
    if range.is_empty() {
        return Err(Error::invalid("linear: the range is empty; expected at least one block"));
    }
    let segments = Segments::new(&[device.geometry().blocks.0], range.start.0, Some(range.count.0));
    Ok(part(vec![device], segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(segments: &Segments) -> Vec<(usize, u64, u64)> {
        let place = |block| segments.map(block);
        (0..segments.blocks()).map(place).map(|place| (place.leg, place.block, place.run)).collect()
    }

    #[test]
    fn blocks_lie_behind_each_other() {
        assert_eq!(
            places(&Segments::new(&[2, 0, 3], 0, None)),
            [(0, 0, 2), (0, 1, 1), (2, 0, 3), (2, 1, 2), (2, 2, 1)]
        );
    }

    #[test]
    fn a_part_may_begin_and_end_anywhere() {
        assert_eq!(places(&Segments::new(&[2, 3, 4], 1, Some(3))), [(0, 1, 1), (1, 0, 2), (1, 1, 1)]);
        assert_eq!(places(&Segments::new(&[2, 3, 4], 3, Some(2))), [(1, 1, 2), (1, 2, 1)]);
        assert_eq!(places(&Segments::new(&[2, 3, 4], 2, Some(1))), [(1, 0, 1)]);
    }

    #[test]
    fn nothing_is_atomic_that_crosses_a_border() {
        assert_eq!(Segments::new(&[8, 8], 0, None).alignment(), 8);
        assert_eq!(Segments::new(&[6, 8], 0, None).alignment(), 2);
        assert_eq!(Segments::new(&[8, 8], 4, None).alignment(), 4);
        assert_eq!(Segments::new(&[8], 0, None).alignment(), 1 << 63);
    }
}
