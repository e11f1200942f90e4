//! Remote memory as a device: its part, and the calls on its home shard.

use crate::KIND;
use crate::arena::{Arena, BLOCK};
use crate::config::Config;
use crate::core::Core;
use crate::nodes::{Node, State};
use crate::slot::PAGE;
use crate::staging::Use;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Extent, ExtentState, Fullness, Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use runtime::{Home, HomeDevice, TaskGroup};
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;

/// Limit to the later pages of a request that are fetched together with a page.
const MAX_AHEAD: u32 = 31;

/// Remote memory.
pub struct RemotePart {
    home: Home<Core>,
    geometry: DeviceGeometry,
    /// Whether its memory outlives this process.
    is_kept: bool,
}

/// Geometry of a device with this number of pages.
fn geometry(pages: u64) -> Result<DeviceGeometry> {
    Ok(DeviceGeometry {
        block_size: BlockSize::new(PAGE as u64)?,
        blocks: BlockCount(pages),
        atomic_write: PAGE as u32,
        volatile_cache: false,
        read_only: false,
    })
}

impl RemotePart {
    /// Connects to the nodes, and starts the device; the calling shard becomes its home.
    ///
    /// # Errors
    /// [`block::Error::Invalid`] for a configuration that doesn't fit together, or memory of another device;
    /// errors of the nodes.
    pub async fn open(config: Config) -> Result<Arc<Self>> {
        let (sizes, settings) = config.plan()?;
        let Config { nodes, backup, kept, .. } = config;
        let region = u64::from(sizes.zone_blocks) * BLOCK as u64;
        // The plan bounds the sizes of nodes, but not that of the backup device.
        let node = |(name, part)| Node::new(name, part, region, u32::MAX, settings.limit);
        let nodes: Vec<Node> = nodes.into_iter().map(node).collect();
        let backup =
            backup.map(|part| Node::new("backup".to_owned(), part, region, sizes.zones, settings.limit));
        let (geometry, is_kept) = (geometry(sizes.pages)?, kept.is_some());
        let arena = Arena::open(kept.as_ref(), sizes)?;
        let opened = runtime::join_all(nodes.iter().chain(&backup).map(Node::open)).await;
        for (node, opened) in nodes.iter().chain(&backup).zip(opened) {
            match opened {
                // With new memory the node can't have lost anything.
                Ok(()) => node.set_checked(!arena.1),
                // The node is down, as it may have been for the previous process.
                Err(error) if arena.1 => tracing::warn!("{error}"),
                Err(error) => return Err(error),
            }
        }
        let core = Core::new(arena, settings, nodes, backup, runtime::random_u64());
        core.start();
        Ok(Arc::new(RemotePart { home: Home::here(core), geometry, is_kept }))
    }
}

impl Part for RemotePart {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        self.home.status(status)
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::new(async { self.home.with(|core| async move { Ok(fullness(&core)) }).await.ok() })
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.close(|core| async move {
            core.close().await;
            Ok(())
        }))
    }
}

impl DevicePart for RemotePart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn keeps_acknowledged(&self) -> bool {
        self.is_kept
    }

    fn keeps_flushed(&self) -> bool {
        self.is_kept
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(self.home.open(&self.geometry))
    }
}

async fn read(core: Rc<Core>, first: u64, mut buffer: Buffer) -> ReadOutcome {
    let count = (buffer.len() / PAGE) as u64;
    for number in 0..count {
        let ahead = (count - number - 1).min(u64::from(MAX_AHEAD)) as u32;
        if let Err(error) = core.read_page((first + number) as u32, ahead, &mut buffer).await {
            buffer.clear();
            return (Err(error), buffer);
        }
    }
    (Ok(()), buffer)
}

async fn write(core: Rc<Core>, first: u64, payload: Payload) -> Result<()> {
    core.check_open()?;
    let mut number = first as u32;
    let mut joined = [0; PAGE];
    let mut filled = 0;
    for data in payload.slices() {
        let mut rest = &data[..];
        while !rest.is_empty() {
            if filled == 0
                && let Some((page, after)) = rest.split_first_chunk::<PAGE>()
            {
                core.write_page(number, page).await?;
                (rest, number) = (after, number + 1);
                continue;
            }
            let count = (PAGE - filled).min(rest.len());
            joined[filled..filled + count].copy_from_slice(&rest[..count]);
            (filled, rest) = (filled + count, &rest[count..]);
            if filled == PAGE {
                core.write_page(number, &joined).await?;
                (filled, number) = (0, number + 1);
            }
        }
    }
    Ok(())
}

/// Discards pages, and yields to other tasks of the shard now and then.
async fn discard(core: Rc<Core>, range: BlockRange) -> Result<()> {
    core.check_open()?;
    for (count, page) in (range.start.0..range.end().0).enumerate() {
        core.discard_page(page as u32);
        if count % 4096 == 4095 {
            runtime::yield_now().await;
        }
    }
    Ok(())
}

impl HomeDevice for Core {
    fn calls(&self) -> Option<&TaskGroup> {
        None
    }

    fn read(self: &Rc<Self>, range: BlockRange, buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(read(self.clone(), range.start.0, buffer))
    }

    fn write(
        self: &Rc<Self>,
        range: BlockRange,
        payload: Payload,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        // A change continues if its caller is dropped.
        runtime::carry(write(self.clone(), range.start.0, payload))
    }

    /// Does nothing: the device is volatile.
    fn flush(self: &Rc<Self>) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<()>> {
        runtime::carry(discard(self.clone(), range))
    }

    fn write_zeroes(
        self: &Rc<Self>,
        range: BlockRange,
        _mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        HomeDevice::discard(self, range)
    }

    fn extents(self: &Rc<Self>, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        Call::ready(Ok(extents(self, range)))
    }
}

/// Extents of the first pages of a range.
fn extents(core: &Core, range: BlockRange) -> Vec<Extent> {
    const MAX_PAGES: u64 = 1 << 16;
    let mut extents: Vec<Extent> = Vec::new();
    let end = range.end().0.min(range.start.0 + MAX_PAGES);
    for page in range.start.0..end {
        let state = match core.arena.entry(page as u32) {
            crate::entry::Entry::Absent => ExtentState::Hole,
            _ => ExtentState::Data,
        };
        let is_full = extents.len() == 256;
        match extents.last_mut() {
            Some(last) if last.state == state => last.range.count.0 += 1,
            _ if is_full => break,
            _ => extents
                .push(Extent { range: BlockRange { start: BlockIndex(page), count: BlockCount(1) }, state }),
        }
    }
    extents
}

/// Live data in the memory of the nodes that are up; what the cleaner can give back isn't used.
fn fullness(core: &Core) -> Fullness {
    let sizes = core.arena.sizes();
    let zone = u64::from(sizes.zone_blocks) * BLOCK as u64;
    let up = core.nodes.iter().filter(|node| !matches!(node.state(), State::Down(_)));
    let regions: Vec<u64> = up.map(|node| node.regions().into()).collect();
    let limit = crate::config::capacity(&regions, core.settings.copies as u64, sizes.zones.into(), zone);
    Fullness {
        resource: "remote memory",
        used_bytes: core.pool.live_data() * crate::slot::GRANULE as u64,
        limit_bytes: limit,
        // Each page may be incompressible. A smaller device doesn't fill all nodes, unless some are down.
        can_fill: sizes.pages * crate::config::MAX_PAGE_BYTES > limit,
        remedy: "add nodes or memory, start nodes that are down, or store less",
    }
}

fn status(core: &Core) -> Status {
    let sizes = core.arena.sizes();
    let counters = &core.counters;
    let granule = crate::slot::GRANULE as u64;
    let live = core.pool.live_data() * granule;
    let (mut written, mut unprotected) = (0, 0_u64);
    core.zones.each(|(number, zone)| {
        written += u64::from(zone.blocks) * BLOCK as u64;
        unprotected += u64::from(core.pool.live(number as u32) > 0 && core.sure_copies(zone) < 2);
    });
    let staging = core.staging.borrow();
    let nodes: Vec<_> = core.nodes.iter().map(|node| node_status(node, sizes.zone_blocks)).collect();
    let value = json!({
        "pages": sizes.pages,
        "stored_pages": counters.stored.get(),
        "same_filled_pages": counters.same.get(),
        "lost_pages": counters.lost.get(),
        "page_bytes": counters.stored.get() * PAGE as u64,
        "packed_pages": counters.packed.get(),
        "packed_bytes": counters.packed_bytes.get(),
        "live_bytes": live,
        "stale_bytes": written.saturating_sub(live),
        "reads": counters.reads.get(),
        "hits": counters.hits.get(),
        "writes": counters.writes.get(),
        "discards": counters.discards.get(),
        "moved_pages": counters.moved.get(),
        "hedged_reads": counters.hedged.get(),
        "zones_copied": counters.copied.get(),
        "node_read_bytes": counters.node_read.get(),
        "node_written_bytes": counters.node_written.get(),
        "copies": core.settings.copies,
        "zones": sizes.zones,
        "free_zones": core.pool.free(),
        "zones_with_one_copy": unprotected,
        "survives_loss_of_a_node": unprotected == 0 && core.can_protect(),
        "memory_bytes": sizes.total(),
        "map_bytes": sizes.map_bytes(),
        "staged_blocks": sizes.staged,
        "blocks_being_written": staging.count(Use::Full),
        "frames": sizes.frames,
        "pieces_read_at_once": core.frames.borrow().window(),
        "stuck": core.stuck.borrow().as_ref().map(ToString::to_string),
        "nodes": nodes,
        "backup": core.backup.as_ref().map(|node| node_status(node, sizes.zone_blocks)),
    });
    value.as_object().cloned().unwrap_or_default()
}

fn node_status(node: &Node, zone_blocks: u32) -> serde_json::Value {
    let region = u64::from(zone_blocks) * BLOCK as u64;
    let state = match node.state() {
        State::Up => "up",
        State::Draining => "draining",
        State::Down(_) => "down",
    };
    json!({
        "name": node.name,
        "state": state,
        "bytes": u64::from(node.regions()) * region,
        "used_bytes": u64::from(node.regions() - node.free_regions()) * region,
        "read_p50_us": node.latency(0.5) as f64 / 1000.0,
        "read_p99_us": node.latency(0.99) as f64 / 1000.0,
        "losses": node.losses.get(),
        "errors": node.errors.get(),
        "damaged_reads": node.corrupt.get(),
    })
}
