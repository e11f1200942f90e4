//! `stripe`: chunks on devices in turn, for their combined throughput; dm's `striped` target, RAID0.
//!
//! Promises: those of the Device contract. There is no metadata: the same devices in the same order with the
//! same chunk size give the same data, and anything else isn't detected.

use crate::spread::{self, Layout, OnLeg, SpreadPart};
use block::{BlockCount, BlockSize, Call, DevicePart, Error, Result, Status};
use stack::{Arguments, Built, Contract, Key, Kind, Metric, Shape, ValueKind, format_size};
use std::sync::Arc;

/// `stripe(file(a.img), file(b.img), chunk_size=64KiB)`.
pub const KIND: Kind = Kind {
    name: "stripe",
    contract: Contract::Device,
    summary: "chunks on devices in turn (RAID0)",
    keys: &[
        Key::required("on", ValueKind::Devices, "the devices, two or more, in order").positional(),
        Key::optional("chunk_size", ValueKind::Size, "consecutive bytes on one device: a power of two")
            .or("64KiB"),
    ],
    messages: &[],
    metrics: &[METRICS],
    shareable: false,
    example: "stripe(ram(64MiB), ram(64MiB), chunk_size=64KiB)",
    plan: |arguments| {
        let legs = arguments.shapes("on")?;
        let block_size = Shape::largest_block(&legs);
        let least: Option<u64> = legs.iter().map(|leg| leg.bytes).min().flatten();
        let (Some(least), Some(block_size)) = (least, block_size) else {
            refuse_one(arguments, legs.len())?;
            return Ok(Shape { block_size, ..Shape::default() });
        };
        let chunks = chunks(arguments, legs.len(), least, BlockSize::new(u64::from(block_size))?)?;
        Ok(Shape::new(chunks.blocks * u64::from(block_size), block_size))
    },
    build: |arguments| {
        Call::ready((|| {
            let legs = arguments.devices("on")?;
            let chunks = chunks(&arguments, legs.len(), least(&legs), spread::block_size(&legs))?;
            Ok(Built::Device(Arc::new(part(legs, chunks))))
        })())
    },
};

/// Numbers of the status for monitoring systems.
const METRICS: &[Metric] = &[
    Metric::gauge("bytes", "device_bytes", "Capacity of the device"),
    Metric::gauge("unused_bytes", "stripe_unused_bytes", "Capacity of the devices that no chunk uses"),
];

/// Chunks over the legs in turn.
#[derive(Debug)]
struct Chunks {
    legs: u64,
    /// Binary logarithm of the number of blocks of a chunk.
    shift: u32,
    blocks: u64,
}

impl Chunks {
    /// Creates chunks over legs with `each` bytes.
    fn new(legs: usize, each: u64, chunk_size: u64, block_size: BlockSize) -> Self {
        let chunks = each / chunk_size * legs as u64;
        let shift = chunk_size.trailing_zeros() - block_size.shift();
        Chunks { legs: legs as u64, shift, blocks: chunks << shift }
    }
}

impl Layout for Chunks {
    fn map(&self, block: u64) -> OnLeg {
        let (chunk, inside) = (block >> self.shift, block & ((1 << self.shift) - 1));
        let (row, leg) = (chunk / self.legs, chunk % self.legs);
        OnLeg { leg: leg as usize, block: (row << self.shift) + inside, run: (1 << self.shift) - inside }
    }
}

fn least(legs: &[Arc<dyn DevicePart>]) -> u64 {
    legs.iter().map(|leg| leg.geometry().bytes()).min().unwrap_or(0)
}

fn refuse_one(arguments: &Arguments, legs: usize) -> Result<()> {
    match legs {
        0 | 1 => Err(arguments.refuse("on", "on: one device; expected two or more")),
        _ => Ok(()),
    }
}

/// Returns the chunks that the keys describe, over legs of which the smallest has `least` bytes.
fn chunks(arguments: &Arguments, legs: usize, least: u64, block_size: BlockSize) -> Result<Chunks> {
    refuse_one(arguments, legs)?;
    let chunk_size = arguments.size("chunk_size")?;
    if !chunk_size.is_power_of_two() || chunk_size < block_size.bytes() {
        let text = format!(
            "chunk_size {chunk_size}: expected a power of two, at least {block_size}, the largest block size of the devices"
        );
        return Err(arguments.refuse("chunk_size", text));
    }
    if least < chunk_size {
        let (least, chunk) = (format_size(least), format_size(chunk_size));
        let text = format!("chunk_size {chunk}: expected at most {least}, the size of the smallest device");
        return Err(arguments.refuse("chunk_size", text));
    }
    Ok(Chunks::new(legs, least, chunk_size, block_size))
}

fn part(legs: Vec<Arc<dyn DevicePart>>, chunks: Chunks) -> SpreadPart {
    let block_size = spread::block_size(&legs);
    let chunk_size = block_size.bytes() << chunks.shift;
    let bytes = chunks.blocks << block_size.shift();
    let there: u64 = legs.iter().map(|leg| leg.geometry().bytes()).sum();
    let mut status = Status::new();
    status.insert("bytes".into(), bytes.into());
    status.insert("devices".into(), legs.len().into());
    status.insert("chunk_size".into(), chunk_size.into());
    // The ends of larger legs.
    status.insert("unused_bytes".into(), (there - bytes).into());
    let blocks = BlockCount(chunks.blocks);
    SpreadPart::new(KIND.name, legs, chunks, blocks, chunk_size, status)
}

/// Stripes over devices; each contributes as many chunks as the smallest one.
///
/// # Errors
/// [`Error::Invalid`] for fewer than two devices, a chunk size in bytes that is no power of two or smaller
/// than a block, and for devices smaller than a chunk.
pub fn stripe(legs: Vec<Arc<dyn DevicePart>>, chunk_size: u64) -> Result<impl DevicePart> {
    let block_size = spread::block_size(&legs);
    if legs.len() < 2
        || !chunk_size.is_power_of_two()
        || !(block_size.bytes()..=least(&legs)).contains(&chunk_size)
    {
        return Err(Error::invalid(format!(
            "stripe: {} devices with chunks of {chunk_size} bytes; expected two devices or more, and a power of two from \
             {block_size} to the size of the smallest",
            legs.len()
        )));
    }
    let chunks = Chunks::new(legs.len(), least(&legs), chunk_size, block_size);
    Ok(part(legs, chunks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_lie_on_the_legs_in_turn() {
        let chunks = Chunks::new(3, 2 * 8192 + 4096, 8192, BlockSize::default());
        assert_eq!(chunks.blocks, 12, "what is left behind the last whole chunk isn't used");
        let places: Vec<_> = (0..chunks.blocks).map(|block| chunks.map(block)).collect();
        let of = |leg| places.iter().filter(move |place| place.leg == leg).map(|place| place.block);
        for leg in 0..3 {
            assert_eq!(of(leg).collect::<Vec<_>>(), [0, 1, 2, 3]);
        }
        assert_eq!(
            places[..4].iter().map(|place| (place.leg, place.run)).collect::<Vec<_>>(),
            [(0, 2), (0, 1), (1, 2), (1, 1)]
        );
    }
}
