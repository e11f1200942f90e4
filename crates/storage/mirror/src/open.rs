//! Formatting and opening: superblocks and bitmaps are read, the legs' roles are decided
//! ([`assembly`](crate::assembly)), and recorded on all members before the first request.

use crate::assembly::{Assembly, Found, Permissions, assemble, naming};
use crate::core::Core;
use crate::examine::examine_all;
use crate::format::{RECORD, Slot, SlotState, Superblock, draw_uuid, encode_bitmap};
use crate::layout::Layout;
use crate::leg::{Leg, LegDevice, Mask, each};
use crate::missing::open_leg;
use crate::settings::{Settings, Setup};
use crate::superblocks::Superblocks;
use block::{BlockCount, BlockSize, Buffer, DeviceGeometry, DevicePart, Error, Result};
use runtime::LimitedPart;
use runtime::range_lock::RangeLock;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Parameters of formatting and opening.
#[derive(Clone)]
pub struct Plan {
    /// Legs with their names.
    pub legs: Vec<(String, Arc<dyn DevicePart>)>,
    /// Settings of the open mirror.
    pub settings: Settings,
    /// Permissions for this opening.
    pub permissions: Permissions,
    /// Whether to create the mirror from scratch.
    pub format: bool,
    /// Size of the chunk of one bit, in bytes; `None`: the existing one, or 64 MiB with `format`.
    pub bitmap_chunk: Option<u64>,
}

impl Plan {
    fn block_size(&self) -> BlockSize {
        self.legs.iter().map(|(_, leg)| leg.geometry().block_size).max().unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        for (name, leg) in &self.legs {
            let geometry = leg.geometry();
            if geometry.read_only {
                return Err(Error::read_only(format!(
                    "leg \"{name}\" is read-only; expected a writable device: a mirror writes to all legs"
                )));
            }
            if geometry.atomic_write < RECORD as u32 {
                return Err(Error::invalid(format!(
                    "leg \"{name}\": atomic writes of {} bytes; expected {RECORD} or more",
                    geometry.atomic_write
                )));
            }
        }
        Ok(())
    }
}

/// Formats the mirror if requested, and opens it on this shard.
///
/// # Errors
/// An error with the reason, and the remedy.
pub async fn open(plan: Plan) -> Result<Rc<Core>> {
    plan.check()?;
    let mut block_size = plan.block_size();
    let mut devices = Vec::with_capacity(plan.legs.len());
    let mut missing = Vec::with_capacity(plan.legs.len());
    let limited = plan
        .legs
        .iter()
        .map(|(name, leg)| LimitedPart::new(leg.clone(), format!("leg \"{name}\""), plan.settings.timeout));
    let limited: Vec<Arc<LimitedPart>> = limited.collect();
    for ((name, _), leg) in plan.legs.iter().zip(&limited) {
        let (device, error) = open_leg(leg).await;
        if let Some(error) = &error {
            // A leg in use isn't missing: its user may be the same mirror in another process.
            if plan.format || matches!(error, Error::Busy(_)) {
                return Err(error.in_context(format!("leg \"{name}\"")));
            }
            tracing::warn!("mirror: a leg is missing: {}", naming(name, error));
        }
        devices.push(LegDevice::new(device, block_size, 0));
        missing.push(error);
    }
    if plan.format {
        format(&plan, &devices).await?;
    }
    let mut found = examine_all(&devices, block_size).await;
    // If a leg with larger blocks is missing, the second copies are at other offsets than computed.
    let larger = found.iter().filter_map(|found| match found {
        Found::Member(superblock) => BlockSize::new(u64::from(superblock.block_size)).ok(),
        _ => None,
    });
    if let Some(larger) = larger.max().filter(|larger| *larger > block_size) {
        block_size = larger;
        devices = devices.into_iter().map(|device| device.with_blocks_of(block_size)).collect();
        found = examine_all(&devices, block_size).await;
    }
    let names: Vec<String> = plan.legs.iter().map(|(name, _)| name.clone()).collect();
    let assembly = assemble(&names, &found, &plan.permissions)?;
    let Found::Member(authoritative) = &found[assembly.authority] else {
        return Err(Error::corrupt("mirror: the authoritative superblock is missing"));
    };
    let layout = fitting_layout(&plan, authoritative, &assembly)?;
    let events = each(assembly.active | assembly.rebuilding).filter_map(|leg| match &found[leg] {
        Found::Member(superblock) if superblock.array == authoritative.array => Some(superblock.events),
        _ => None,
    });
    let events = events.max().unwrap_or(authoritative.events);
    let devices = devices.into_iter().zip(limited).collect();
    let core = core(&plan, devices, missing, layout, authoritative, events, &assembly);
    core.load_bitmap(&assembly).await?;
    core.begin(&assembly).await?;
    Ok(core)
}

/// Returns the layout of the authoritative superblock, and checks that the legs fit it.
fn fitting_layout(plan: &Plan, authoritative: &Superblock, assembly: &Assembly) -> Result<Layout> {
    let layout = Layout::of(authoritative)?;
    if let Some((name, part)) =
        plan.legs.iter().find(|(_, leg)| leg.geometry().block_size > layout.block_size)
    {
        return Err(Error::invalid(format!(
            "leg \"{name}\": block size of {} bytes; expected at most {}, the mirror's",
            part.geometry().block_size,
            layout.block_size
        )));
    }
    if let Some(chunk) = plan.bitmap_chunk.filter(|chunk| *chunk != layout.chunk) {
        return Err(Error::invalid(format!(
            "bitmap_chunk {chunk}: expected {}, with which the mirror was formatted; leave the key out",
            layout.chunk
        )));
    }
    for leg in each(assembly.active | assembly.rebuilding) {
        let (name, part) = &plan.legs[leg];
        let (has, needs) = (part.geometry().bytes(), layout.leg_bytes());
        if has < needs {
            return Err(Error::invalid(format!(
                "leg \"{name}\": {has} bytes; expected at least {needs}; take a larger device"
            )));
        }
    }
    Ok(layout)
}

/// Creates a new mirror on all legs. Their contents are lost: the data area of the source, the first leg that
/// isn't write-mostly, is copied to the others.
async fn format(plan: &Plan, devices: &[LegDevice]) -> Result<()> {
    let block_size = plan.block_size();
    let least = plan.legs.iter().map(|(_, leg)| leg.geometry().bytes()).min().unwrap_or(0);
    let layout = Layout::new(least, block_size, plan.bitmap_chunk.unwrap_or(crate::layout::USUAL_CHUNK))?;
    let (array, page) = (draw_uuid(), Layout::page(block_size));
    for device in devices {
        // An interrupted format leaves no valid superblock, old or new.
        device.wipe().await?;
        let sectors = page / RECORD as u64;
        for number in 0..layout.pages() {
            let mut buffer = Buffer::new(page as usize);
            for sector in number * sectors..(number + 1) * sectors {
                encode_bitmap(&mut buffer, array, sector as u32, |chunk| chunk < layout.chunks());
            }
            device.write_own(layout.bitmap_offset + number * page, buffer.into()).await?;
        }
    }
    let is_avoided = |leg: usize| plan.settings.write_mostly & 1 << leg != 0;
    let slots = (0..devices.len()).map(|leg| Slot {
        leg: draw_uuid(),
        state: SlotState::Active,
        write_mostly: is_avoided(leg),
        has_bitmap: true,
    });
    let source = (0..devices.len()).find(|leg| !is_avoided(*leg)).unwrap_or(0);
    let superblock = Superblock {
        block_size: block_size.bytes() as u32,
        array,
        events: 1,
        cleared_events: 1,
        data_offset: layout.data_offset,
        data_bytes: layout.data_bytes,
        bitmap_offset: layout.bitmap_offset,
        bitmap_chunk: layout.chunk,
        own: 0,
        source,
        fast_flush: plan.settings.fast_flush,
        slots: slots.collect(),
    };
    for (own, device) in devices.iter().enumerate() {
        let block = Superblock { own, ..superblock.clone() }.encode(page as usize);
        for copy in 0..2 {
            device.write_own(Layout::superblock(block_size, copy), block.clone()).await?;
        }
    }
    Ok(())
}

fn core(
    plan: &Plan,
    devices: Vec<(LegDevice, Arc<LimitedPart>)>,
    missing: Vec<Option<Error>>,
    layout: Layout,
    authoritative: &Superblock,
    events: u64,
    assembly: &Assembly,
) -> Rc<Core> {
    let geometry = DeviceGeometry {
        block_size: layout.block_size,
        blocks: BlockCount(layout.data_bytes >> layout.block_size.shift()),
        atomic_write: plan.legs.iter().map(|(_, leg)| leg.geometry().atomic_write).min().unwrap_or(512),
        volatile_cache: plan.settings.write_behind > 0
            || plan.legs.iter().any(|(_, leg)| leg.geometry().volatile_cache),
        read_only: false,
    };
    let given = plan.legs.iter().zip(devices).zip(missing).zip(&assembly.slot_of);
    let legs = given.map(|((((name, part), (device, limited)), missing), slot)| Leg {
        name: name.clone(),
        device: device.placed(&layout),
        limited,
        slot: Cell::new(*slot),
        bytes: part.geometry().bytes(),
        lane: RangeLock::default(),
        missing,
    });
    let setup = Setup { settings: plan.settings.clone(), layout, array: authoritative.array };
    // The highest event count of any member, also after an interrupted update of the superblocks.
    let superblocks = Superblocks::new(events, authoritative.cleared_events);
    let trusted = trusted(plan, authoritative, assembly);
    Core::new(setup, geometry, legs.collect(), assembly, trusted, superblocks)
}

/// Legs that are part of every flush, past and future: these may replace the source for unreadable blocks.
fn trusted(plan: &Plan, authoritative: &Superblock, assembly: &Assembly) -> Mask {
    let lagged = |leg: &usize| {
        let slot = assembly.slot_of[*leg];
        let before =
            authoritative.fast_flush && slot.is_none_or(|slot| authoritative.slots[slot].write_mostly);
        before || plan.settings.fast_flush && plan.settings.write_mostly & 1 << leg != 0
    };
    (0..plan.legs.len()).filter(|leg| !lagged(leg)).map(|leg| 1 << leg).sum()
}
