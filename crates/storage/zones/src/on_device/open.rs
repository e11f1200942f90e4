//! Formatting a device, and reading the state of a formatted one.

use super::format::{self, RECORD, Superblock, Uuid, ZoneHeader, draw_uuid};
use super::layout::{self, Layout};
use super::slot::Slot;
use super::usage::Usage;
use super::volume::{Volume, overwrite_with_zeros};
use super::{DEFAULT_MAX_APPEND, DEFAULT_ZONE_SIZE, Options};
use crate::limits::Limits;
use crate::sector;
use block::{BlockCount, BlockRange};
use block::{
    BlockIndex, BlockSize, Buffer, Device, DeviceGeometry, Durability, Durable, EraseGuarantee, Error,
    Result, ZeroMode, ZoneGeometry, ZoneState,
};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Number of zone headers that are written at a time.
const HEADERS_AT_A_TIME: u32 = 128;
/// Number of bytes of headers that are read at a time.
const HEADERS_STEP: u64 = 1 << 20;
/// Number of these reads in flight.
const STEPS_IN_FLIGHT: usize = 4;
/// Number of reads of single headers in flight, if a read of several failed.
const HEADERS_IN_FLIGHT: usize = 64;
/// Number of attempts to read a header or superblock.
const READS: u32 = 4;
/// Pause after the first failed attempt; doubled after each further one.
const BETWEEN_READS: Duration = Duration::from_millis(5);
/// Range of the random first generation of the zones of a new volume: large, so that no record from before
/// the format is valid after it. 0 is no generation, so that zeros are never valid.
const FIRST_GENERATIONS: u64 = 1 << 48;

/// Formats the whole device as an empty volume. Its contents are lost.
pub(super) async fn format(device: &dyn Device, options: &Options) -> Result<()> {
    let geometry = device.geometry();
    layout::check_device(geometry)?;
    let layout =
        Layout::for_device(geometry, options.zone_size.unwrap_or(DEFAULT_ZONE_SIZE), options.staging)?;
    let uuid = draw_uuid();
    let generation = runtime::random_u64() % FIRST_GENERATIONS + 1;

    // A format that is interrupted leaves no valid superblock, old or new.
    for copy in 0..2 {
        let block = BlockRange { start: Layout::superblock(layout.block_size, copy), count: BlockCount(1) };
        device.write_zeroes(block, ZeroMode::KeepAllocated, Durability::Durable).await?;
    }
    if let Some(staging) = layout.staging_range() {
        // Written zeros, so that no later write lacks space.
        overwrite_with_zeros(device, staging).await?;
    }
    let mut first = 0;
    while first < layout.zones {
        let end = first.saturating_add(HEADERS_AT_A_TIME).min(layout.zones);
        let writes = (first..end).map(|zone| {
            let state = ZoneState::Empty;
            let header = ZoneHeader { uuid, zone, state, generation, write_pointer: 0 };
            let payload = header.encode(layout.block_size.bytes());
            device.write(layout.header(zone), payload, Durability::Visible)
        });
        runtime::join_all(writes).await.into_iter().collect::<Result<()>>()?;
        first = end;
    }
    device.flush().await?;
    for sequence in 0..2 {
        let superblock = Superblock {
            block_size: layout.block_size.bytes() as u32,
            uuid,
            sequence,
            zone_size: layout.zone_size,
            first_zone: layout.first_zone,
            zones: layout.zones,
            staging: layout.staging as u32,
            clean: true,
        };
        let block = Layout::superblock(layout.block_size, sequence % 2);
        device.write(block, superblock.encode(), Durability::Durable).await?;
    }
    Ok(())
}

/// Reads a block, with retries: a block that can't be read here is out of use while the volume is open.
async fn read_block(device: &dyn Device, block: BlockIndex) -> Result<Buffer> {
    let mut buffer = Buffer::new(device.geometry().block_size.bytes() as usize);
    for attempt in 1.. {
        let (outcome, same) = device.read(block, buffer).await;
        buffer = same;
        match outcome {
            Ok(()) => break,
            Err(error) if attempt == READS => return Err(error),
            Err(error) => {
                tracing::warn!(
                    "reading block {block} of the zones' device, attempt {attempt} of {READS}: {error}"
                );
                runtime::sleep(BETWEEN_READS * attempt).await;
            }
        }
    }
    Ok(buffer)
}

/// Chooses between the two copies of the superblock. The volume was closed cleanly only if both copies are
/// whole, have consecutive sequences and the newer one is marked clean: a damaged copy may have been the one
/// that marks the volume as in use.
fn choose(copies: [Result<Superblock>; 2], device_begins_with: &[u8]) -> Result<Superblock> {
    match copies {
        [Ok(first), Ok(second)] => {
            let (older, newer) =
                if first.sequence < second.sequence { (first, second) } else { (second, first) };
            let same = Superblock { sequence: 0, clean: false, ..older }
                == Superblock { sequence: 0, clean: false, ..newer };
            if !same {
                return Err(Error::corrupt(
                    "the two superblocks of the zones belong to different volumes: restore one from a copy of \
                     the device, or format it, which loses its contents",
                ));
            }
            let adjacent = older.sequence.checked_add(1) == Some(newer.sequence);
            Ok(Superblock { clean: newer.clean && adjacent, ..newer })
        }
        [Ok(only), Err(_)] | [Err(_), Ok(only)] => Ok(Superblock { clean: false, ..only }),
        [Err(first), Err(second)] => Err(refusal(&first, &second, device_begins_with)),
    }
}

/// Returns the error for a device without a readable superblock.
fn refusal(first: &Error, second: &Error, device_begins_with: &[u8]) -> Error {
    let ours = device_begins_with.starts_with(&format::SUPERBLOCK_MAGIC);
    match (first, second) {
        (Error::Protocol(detail), _) if ours => Error::protocol(format!(
            "zones that this program can't read: {detail}, or format the device, which loses its contents"
        )),
        (Error::Io(_), _) | (_, Error::Io(_)) => first.in_context("reading the superblocks of the zones"),
        (Error::Corrupt(_), _) | (_, Error::Corrupt(_)) => Error::corrupt(format!(
            "both superblocks of the zones are damaged (first: {}; second: {}): restore the device, or format it, \
             which loses its contents",
            first.detail(),
            second.detail()
        )),
        _ => Error::protocol(format!(
            "the device holds {}; expected zones; if its contents may be lost, run siltstone format --force",
            sector::describe(device_begins_with)
        )),
    }
}

async fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let block_size = device.geometry().block_size;
    let area = BlockRange { start: BlockIndex(0), count: Layout::superblock(block_size, 2) - BlockIndex(0) };
    device.geometry().check(area).map_err(|error| error.in_context("the device is too small for zones"))?;
    let mut copies = [Err(Error::io("not read")), Err(Error::io("not read"))];
    let mut begin = Vec::new();
    for (number, copy) in copies.iter_mut().enumerate() {
        let block = read_block(device, Layout::superblock(block_size, number as u64)).await;
        if let Ok(block) = &block {
            begin.extend_from_slice(block.filled());
        }
        *copy = block.and_then(|block| {
            let superblock = Superblock::decode(block.filled())?;
            if superblock.sequence % 2 != number as u64 {
                return Err(Error::corrupt(format!("copy {number} holds sequence {}", superblock.sequence)));
            }
            Ok(superblock)
        });
    }
    choose(copies, &begin)
}

/// Geometry of a volume on this device with these options.
pub(super) fn zone_geometry(
    device: &DeviceGeometry,
    layout: &Layout,
    options: &Options,
) -> Result<ZoneGeometry> {
    let capacity = layout.capacity();
    let unit = device.block_size.bytes();
    let max_append = options.max_append.unwrap_or(DEFAULT_MAX_APPEND.max(unit)).min(capacity);
    if max_append < unit || !max_append.is_multiple_of(unit) {
        return Err(Error::invalid(format!(
            "max_append {max_append}: expected a multiple of the block size, {unit}, up to {capacity}"
        )));
    }
    Ok(ZoneGeometry {
        zones: layout.zones,
        zone_size: layout.zone_size,
        zone_capacity: capacity,
        append_granularity: unit as u32,
        read_granularity: unit as u32,
        max_append,
        max_open: options.max_open,
        max_active: options.max_active,
        durable: if device.volatile_cache { Durable::OnFlush } else { Durable::OnAppend },
        erase: EraseGuarantee::Erased,
    })
}

/// Parameters of reading the headers of zones.
struct Headers<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    uuid: Uuid,
    clean: bool,
}

impl Headers<'_> {
    /// Reads the states of all zones. Headers are read in large pieces; if a piece can't be read, its headers
    /// are read one by one, with retries. A header that can't be read takes only its own zone out of use.
    async fn read(&self) -> Vec<Slot> {
        let zones = self.layout.zones;
        let step = (HEADERS_STEP / layout::area(self.layout.block_size)).max(1) as usize;
        let pieces =
            (0..zones).step_by(step).map(|first| self.read_some(first..zones.min(first + step as u32)));
        runtime::join_limited(STEPS_IN_FLIGHT, pieces).await.into_iter().flatten().collect()
    }

    async fn read_some(&self, zones: Range<u32>) -> Vec<Slot> {
        let area = layout::area(self.layout.block_size) as usize;
        let buffer = Buffer::new(zones.len() * area);
        let (outcome, buffer) = self.device.read(self.layout.header(zones.start), buffer).await;
        match outcome {
            Ok(()) => zones
                .zip(buffer.filled().chunks_exact(area))
                .map(|(zone, area)| self.slot(zone, Ok(area)))
                .collect(),
            Err(_) => {
                let reads = zones.map(|zone| async move {
                    match read_block(self.device, self.layout.header(zone)).await {
                        Ok(block) => self.slot(zone, Ok(block.filled())),
                        Err(error) => self.slot(zone, Err(error)),
                    }
                });
                runtime::join_limited(HEADERS_IN_FLIGHT, reads).await
            }
        }
    }

    /// State of a zone from its header, after a clean or an unclean stop.
    fn slot(&self, zone: u32, block: Result<&[u8]>) -> Slot {
        let (capacity, unit) = (self.layout.capacity(), self.layout.block_size.bytes());
        let blocks = |bytes: u64| bytes >> self.layout.block_size.shift();
        let header =
            block.and_then(|block| ZoneHeader::decode(&block[..RECORD], self.uuid, zone, capacity, unit));
        match header {
            // Its generation is unknown, so it can't even be reset: old records would validate.
            Err(error) => Slot::new(ZoneState::Offline, 0, 0, Some(error)),
            Ok(header) if header.state == ZoneState::Closed && !self.clean => {
                let trouble = Error::invalid("the zone was active at an unclean stop");
                Slot::new(ZoneState::Interrupted, header.generation, blocks(capacity), Some(trouble))
            }
            Ok(header) => Slot::new(header.state, header.generation, blocks(header.write_pointer), None),
        }
    }
}

/// Reads the volume on a device; writes nothing.
pub(super) async fn read(device: &dyn Device, options: &Options) -> Result<Volume> {
    let geometry = device.geometry();
    layout::check_device(geometry)?;
    let superblock = read_superblock(device).await?;
    let layout = Layout {
        block_size: BlockSize::new(u64::from(superblock.block_size))
            .map_err(|error| Error::corrupt(format!("superblock of the zones: {}", error.detail())))?,
        zone_size: superblock.zone_size,
        first_zone: superblock.first_zone,
        zones: superblock.zones,
        staging: u64::from(superblock.staging),
    };
    layout.check(geometry)?;
    if let Some(wanted) = options.zone_size
        && wanted != layout.zone_size
    {
        return Err(Error::invalid(format!(
            "zone_size {wanted}: the device holds zones of {} bytes; leave the key out, or format it, which \
             loses its contents",
            layout.zone_size
        )));
    }
    let read_only = geometry.read_only || options.read_only;
    let headers = Headers { device, layout: &layout, uuid: superblock.uuid, clean: superblock.clean };
    let began = runtime::now();
    let slots = headers.read().await;
    tracing::debug!("{} headers of zones read in {:.2} ms", slots.len(), began.elapsed().as_secs_f64() * 1e3);
    let limits = Limits::new(options.max_open, options.max_active);
    slots.iter().for_each(|slot| limits.moved(ZoneState::Empty, slot.look().0.state()));
    Ok(Volume {
        geometry: zone_geometry(geometry, &layout, options)?,
        layout,
        uuid: superblock.uuid,
        sequence: AtomicU64::new(superblock.sequence),
        slots,
        limits,
        usage: Usage::default(),
        read_only,
    })
}
