//! Formatting a device, and finding out what a formatted one holds.

use super::format::{self, RECORD, Superblock, Uuid, ZoneHeader, draw_uuid};
use super::layout::{self, Layout};
use super::slot::Slot;
use super::volume::Volume;
use super::{DEFAULT_MAX_APPEND, DEFAULT_ZONE_SIZE, Options};
use crate::limits::Limits;
use crate::sector;
use block::{BlockCount, BlockRange};
use block::{
    BlockIndex, BlockSize, Buffer, Device, DeviceGeometry, Durability, Durable, EraseGuarantee, Error,
    Result, ZeroMode, ZoneGeometry, ZoneState,
};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// How many zone headers are written at a time.
const HEADERS_AT_A_TIME: u32 = 128;
/// How many bytes of headers are read at a time.
const HEADERS_STEP: u64 = 1 << 20;
/// How many of these reads are on their way at any time.
const STEPS_IN_FLIGHT: usize = 4;
/// How many headers are read one by one at any time, where they can't be read together.
const HEADERS_IN_FLIGHT: usize = 64;
/// How many times a header or superblock that can't be read is tried, and how long to wait after the first attempt: then
/// twice as long, and so on.
const READS: u32 = 4;
const BETWEEN_READS: Duration = Duration::from_millis(5);
/// The generations with which zones of a volume that was just formatted begin: drawn from so many, so that nothing that
/// was written before the format validates after it; 0 is none, so that zeros never do.
const FIRST_GENERATIONS: u64 = 1 << 48;

/// Makes an empty volume of the whole device. What was there is gone.
pub(super) async fn format(device: &dyn Device, zone_size: Option<u64>) -> Result<()> {
    let geometry = device.geometry();
    layout::check_device(geometry)?;
    let layout = Layout::for_device(geometry, zone_size.unwrap_or(DEFAULT_ZONE_SIZE))?;
    let uuid = draw_uuid();
    let generation = runtime::random_u64() % FIRST_GENERATIONS + 1;

    // A format that is interrupted leaves no valid superblock, old or new.
    for copy in 0..2 {
        let block = BlockRange { start: Layout::superblock(layout.block_size, copy), count: BlockCount(1) };
        device.write_zeroes(block, ZeroMode::KeepAllocated, Durability::Durable).await?;
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
            clean: true,
        };
        let block = Layout::superblock(layout.block_size, sequence % 2);
        device.write(block, superblock.encode(), Durability::Durable).await?;
    }
    Ok(())
}

/// Reads a block, with patience: what can't be read here is out of use as long as the volume is open.
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
/// whole, follow each other and the newer one says so: a copy that is torn or rotten may have been the one
/// that says that the volume is in use.
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
                     the device, or format it anew, which loses what is there",
                ));
            }
            let adjacent = older.sequence.checked_add(1) == Some(newer.sequence);
            Ok(Superblock { clean: newer.clean && adjacent, ..newer })
        }
        [Ok(only), Err(_)] | [Err(_), Ok(only)] => Ok(Superblock { clean: false, ..only }),
        [Err(first), Err(second)] => Err(refusal(&first, &second, device_begins_with)),
    }
}

/// The error for a device without a superblock that can be read.
fn refusal(first: &Error, second: &Error, device_begins_with: &[u8]) -> Error {
    let ours = device_begins_with.starts_with(&format::SUPERBLOCK_MAGIC);
    match (first, second) {
        (Error::Protocol(detail), _) if ours => Error::protocol(format!(
            "zones that this program can't read: {detail}, or format the device anew, which loses what is there"
        )),
        (Error::Io(_), _) | (_, Error::Io(_)) => first.in_context("reading the superblocks of the zones"),
        (Error::Corrupt(_), _) | (_, Error::Corrupt(_)) => Error::corrupt(format!(
            "both superblocks of the zones are damaged (first: {}; second: {}): restore the device, or format it \
             anew, which loses what is there",
            first.detail(),
            second.detail()
        )),
        _ => Error::protocol(format!(
            "the device holds no zones but {}: if it may go, make zones of it with --format",
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

/// The geometry that a volume has on this device with these options.
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

/// What is known when the headers of zones are read.
struct Headers<'a> {
    device: &'a dyn Device,
    layout: &'a Layout,
    uuid: Uuid,
    clean: bool,
}

impl Headers<'_> {
    /// The states of all zones. Headers are read in large pieces; those of a piece that can't be read, one by one and with
    /// patience: what can't be read then takes its own zone out of use and no other.
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

    /// The state of a zone from its header, as it is believed after a clean or an unclean stop.
    fn slot(&self, zone: u32, block: Result<&[u8]>) -> Slot {
        let (capacity, unit) = (self.layout.capacity(), self.layout.block_size.bytes());
        let blocks = |bytes: u64| bytes >> self.layout.block_size.shift();
        let header =
            block.and_then(|block| ZoneHeader::decode(&block[..RECORD], self.uuid, zone, capacity, unit));
        match header {
            // Its generation is unknown, so it can't even be reset: old records would validate.
            Err(error) => Slot::new(ZoneState::Offline, 0, 0, Some(error)),
            Ok(header) if header.state == ZoneState::Closed && !self.clean => {
                let trouble = Error::invalid("it was begun when the volume stopped uncleanly");
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
    };
    layout.check(geometry)?;
    if let Some(wanted) = options.zone_size
        && wanted != layout.zone_size
    {
        return Err(Error::invalid(format!(
            "zone_size {wanted}: the device holds zones of {} bytes; leave the key out, or format it anew, which \
             loses what is there",
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
        read_only,
        closed: AtomicBool::new(false),
    })
}
