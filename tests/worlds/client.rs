//! A client's operations in a life, and reading all of a device.

use super::model::{Model, Version};
use super::stamp::{stamped, version_of};
use super::{Subject, World};
use block::{BlockIndex, BlockRange, Buffer, Device, DeviceGeometry, Durability, Error, Payload, ZeroMode};
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Unit of the device's model: the bytes that it writes atomically, at most a block.
pub fn unit_of(geometry: &DeviceGeometry) -> usize {
    geometry.block_size.bytes().min(u64::from(geometry.atomic_write)) as usize
}

/// Number of units of a block of the device.
pub fn units_per_block(geometry: &DeviceGeometry) -> u64 {
    geometry.block_size.bytes() / unit_of(geometry) as u64
}

/// Versions in these bytes, beginning with this unit.
///
/// # Errors
/// A unit whose contents are no version.
pub fn versions(unit_bytes: usize, unit: u64, bytes: &[u8]) -> Result<Vec<Version>, String> {
    bytes.chunks_exact(unit_bytes).zip(unit..).map(|(bytes, unit)| version_of(unit, bytes)).collect()
}

/// Reads all of a device.
///
/// # Errors
/// An error of the device, or contents that are no version.
pub async fn read_all(device: &dyn Device) -> Result<Vec<Version>, Result<Error, String>> {
    let (blocks, unit) = (device.geometry().blocks.0, unit_of(device.geometry()));
    let mut found = Vec::new();
    let mut at = 0;
    while at < blocks {
        let count = 16.min(blocks - at);
        let buffer = Buffer::new((count * device.geometry().block_size.bytes()) as usize);
        let (outcome, buffer) = device.read(BlockIndex(at), buffer).await;
        outcome.map_err(Ok)?;
        let first = at * units_per_block(device.geometry());
        found.extend(versions(unit, first, buffer.filled()).map_err(Err)?);
        at += count;
    }
    Ok(found)
}

/// Operations of one client, one after the other.
pub(super) async fn client<S: Subject>(
    world: Arc<World<S>>,
    device: Rc<dyn Device>,
    number: u64,
) -> Result<(), String> {
    let mut random = Random::new(world.life.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let blocks = device.geometry().blocks.0;
    let (unit, per_block) = (unit_of(device.geometry()), units_per_block(device.geometry()));
    while world.started.fetch_add(1, Ordering::Relaxed) < world.life.operations {
        let longest = if random.chance(0.05) { world.subject.longest() } else { 4 };
        let count = 1 + random.below(blocks.min(longest));
        // Half of them go to an eighth of the volume.
        let room = (blocks - count + 1).div_ceil(if random.chance(0.5) { 8 } else { 1 });
        let block = random.below(room);
        let range = BlockRange::new(block, count);
        let (first, units) = (block * per_block, count * per_block);
        let is_durable = random.chance(0.1);
        let durability = if is_durable { Durability::Durable } else { Durability::Visible };
        match random.below(100 + world.subject.more_reads()) {
            0..62 => {
                let (version, operation) = world.model(|model| {
                    let version = model.draw_version();
                    (version, model.submit(first, units, version))
                });
                let data = stamped(unit, first, units, version);
                // Every third write is marked as metadata, for layers that treat it differently.
                let payload = Payload::from(data);
                let write = device.write(BlockIndex(block), payload, durability);
                let patience = match random.chance(0.03) {
                    true => Duration::from_nanos(random.below(200_000)),
                    false => Duration::from_secs(3600),
                };
                match runtime::timeout(patience, write).await {
                    Ok(Ok(())) => world.model(|model| model.completed(operation, is_durable)),
                    Ok(Err(error)) => world.judge("a write", error, true)?,
                    // The operation may or may not happen.
                    Err(_) => {}
                }
            }
            62..72 => {
                let began = world.model(Model::begin);
                match device.flush().await {
                    Ok(()) => world.model(|model| model.flushed(began)),
                    Err(error) => world.judge("a flush", error, false)?,
                }
            }
            72..86 => {
                let operation = world.model(|model| model.submit(first, units, 0));
                let zeroes = random.chance(0.5);
                let outcome = match zeroes {
                    true => device.write_zeroes(range, ZeroMode::default(), durability).await,
                    false => device.discard(range).await,
                };
                match outcome {
                    Ok(()) => world.model(|model| model.completed(operation, zeroes && is_durable)),
                    Err(error) => world.judge("a discard", error, false)?,
                }
            }
            _ => {
                let began = world.model(Model::begin);
                let (outcome, buffer) =
                    device.read(BlockIndex(block), Buffer::new(units as usize * unit)).await;
                if let Err(error) = outcome {
                    world.judge("a read", error, false)?;
                    continue;
                }
                for (found, unit) in versions(unit, first, buffer.filled())?.into_iter().zip(first..) {
                    world.model(|model| model.check_read(unit, found, began))?;
                }
            }
        }
    }
    Ok(())
}
