//! The log as a device: a part, and one handle per shard.
//!
//! A read looks up its version's map on the shard of the request, and reads the zones through that shard's
//! handle. Changes are sent to the home shard of their blocks; a change of blocks of several home shards is
//! divided.

use crate::buffered::Buffers;
use crate::core::{Acknowledge, Changes, Core, Homes, MAX_REQUEST_BLOCKS, View};
use crate::format::{Change, VersionId};
use crate::map::{Map, Mapping, Physical};
use crate::recovery::Recovered;
use crate::snapshot::Message;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Data, Device, DeviceGeometry, DevicePart, Durability, Error,
    Extent, ExtentState, Fullness, Part, Payload, ReadOutcome, Result, Status, ZeroMode, Zones, ZonesPart,
};
use logkit::readers::{Readers, Reading, ShardReads};
use logkit::{Counters, Owner, cleaner, lane};
use runtime::Home;
use smallvec::SmallVec;
use stack::Tell;
use std::rc::Rc;
use std::sync::Arc;

/// Most pieces of a range that one request discards.
const PIECES_AT_ONCE: usize = 16;

/// Interval at which a close logs the operations that it waits for.
const CLOSE_TELLS: std::time::Duration = std::time::Duration::from_secs(5);

/// A log-structured volume.
#[derive(Debug)]
pub struct LogPart {
    /// Access to the core on the home of the log.
    pub home: Home<Core>,
    shared: Arc<Shared>,
    /// Whether the zones are closed with the log.
    owns_zones: bool,
}

/// State that the handles of all shards share.
pub struct Shared {
    zones: Arc<dyn ZonesPart>,
    layout: crate::layout::Layout,
    readers: Arc<Readers>,
    /// Counters for status and metrics.
    pub counters: Arc<Counters>,
    /// Result of recovery at the open.
    pub recovered: Recovered,
    /// Home shards of the volume's blocks; only the first one for a log that is salvaged.
    homes: Homes,
    buffer: Buffers,
    damaged: Arc<crate::damaged::Damaged>,
    version: VersionId,
    view: Arc<View>,
    keeps_acknowledged: bool,
    map: Arc<dyn Map>,
    blocks_at_once: u64,
    geometry: DeviceGeometry,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Shared({:?})", self.geometry)
    }
}

impl LogPart {
    /// Returns a log whose cores were just created, that of the home on this shard.
    ///
    /// # Errors
    /// [`Error::Closed`] for a shard that has ended.
    pub async fn new(
        zones: Arc<dyn ZonesPart>,
        core: Rc<Core>,
        homes: Homes,
        recovered: Recovered,
    ) -> Result<LogPart> {
        if core.lost.is_none() {
            lane::start(&core);
            let start = |core: Rc<Core>| async move {
                lane::start(&core);
                Ok(())
            };
            core.peers.each_other(start).await?;
            cleaner::start(&core);
        }
        let shared = Shared::new(zones, &core, homes, recovered, VersionId::HEAD).await?;
        Ok(LogPart { home: shared.homes[0].clone(), shared: Arc::new(shared), owns_zones: true })
    }

    /// Returns the log on borrowed zones, which stay open when it is closed.
    pub fn on_lent_zones(self) -> LogPart {
        LogPart { owns_zones: false, ..self }
    }

    /// Releases a log that is salvaged, and its zones, without waiting for open handles, whose reads fail
    /// from now on.
    ///
    /// # Errors
    /// Errors of closing the zones.
    pub(crate) async fn release(&self) -> Result<()> {
        for home in &*self.shared.homes {
            home.forget().await?;
        }
        self.shared.zones.close().await
    }

    /// Returns the counters for status and metrics.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// Returns the result of recovery at the open.
    pub fn recovered(&self) -> &Recovered {
        &self.shared.recovered
    }
}

impl Shared {
    async fn new(
        zones: Arc<dyn ZonesPart>,
        core: &Rc<Core>,
        homes: Homes,
        recovered: Recovered,
        version: VersionId,
    ) -> Result<Self> {
        let map = core.whole_map(version).await?;
        let buffers = core.peers.each_other(|core: Rc<Core>| async move { Ok(core.buffer.clone()) }).await?;
        let buffer = Buffers::new(core.buffer.clone(), buffers);
        let versions = core.versions.borrow();
        let entry = versions
            .get(version)
            .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", version.0)))?;
        let is_read_only = core.lost.is_some();
        let durable = zones.geometry().durable == block::Durable::OnAppend;
        let geometry = DeviceGeometry {
            block_size: core.layout.block_size,
            blocks: block::BlockCount(entry.blocks),
            atomic_write: core.layout.block_bytes() as u32,
            volatile_cache: !is_read_only && (!durable || core.settings.acknowledge == Acknowledge::Buffer),
            read_only: is_read_only || !entry.writable,
        };
        Ok(Shared {
            layout: core.layout,
            readers: core.kit().readers.clone(),
            counters: core.kit().counters.clone(),
            recovered,
            homes,
            buffer,
            damaged: core.damaged.clone(),
            version,
            view: Arc::new(View(version)),
            keeps_acknowledged: core.settings.acknowledge == Acknowledge::Log && zones.keeps_acknowledged(),
            map,
            blocks_at_once: core.settings.blocks_at_once,
            geometry,
            zones,
        })
    }
}

impl Part for LogPart {
    fn kind(&self) -> &'static str {
        crate::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        let volume = self.shared.map.clone();
        self.home.status(move |core| crate::status::status(core, &*volume))
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        Call::new(async { self.home.with(|core| async move { Ok(core.fullness()) }).await.ok() })
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&crate::KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let closed = close_all(&self.shared.homes).await;
            for home in &*self.shared.homes {
                home.forget().await?;
            }
            match self.owns_zones {
                true => closed.and(self.shared.zones.close().await),
                false => closed,
            }
        })
    }
}

impl Tell for LogPart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        Call::new(self.home.with(|core: Rc<Core>| async move {
            let _call = core.kit().tasks.enter();
            crate::snapshot::carry_out(&core, message).await
        }))
    }
}

/// Writes the queued changes of all shards and a last checkpoint. The home is closed last: its cleaner frees
/// zones until nothing is queued on the other shards, and moves their blocks.
async fn close_all(homes: &[Home<Core>]) -> Result<()> {
    let mut closed = Ok(());
    for home in homes.iter().rev() {
        closed = closed.and(home.with(|core| async move { close(core).await }).await);
    }
    for home in &homes[1..] {
        let seal = |core: Rc<Core>| async move {
            core.close_moves().await;
            Ok(())
        };
        closed = closed.and(home.with(seal).await);
    }
    closed?;
    homes[0].with(|core| async move { checkpoint_at_close(&core).await }).await
}

/// Writes the queued changes of a shard; writes nothing for a log that is salvaged.
async fn close(core: Rc<Core>) -> Result<()> {
    core.kit().begin_closing();
    // The lanes and the cleaner seal their zones before they end. Open handles don't delay a close: they
    // can't change anything, and a client may keep one forever.
    let begun = runtime::now();
    while runtime::timeout(CLOSE_TELLS, core.kit().tasks.ended()).await.is_err() {
        let waited = begun.elapsed().as_secs();
        tracing::warn!("log: close in progress for {waited} s: {}", core.occupation());
    }
    match core.handles.get() {
        0 => {}
        open => tracing::warn!("log: closed while {open} handles of its home shard are open"),
    }
    core.kit().failure().map_or(Ok(()), Err)
}

async fn checkpoint_at_close(core: &Rc<Core>) -> Result<()> {
    match core.lost {
        Some(_) => Ok(()),
        None => core.write_checkpoint(true).await,
    }
}

impl DevicePart for LogPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.shared.geometry
    }

    fn keeps_acknowledged(&self) -> bool {
        self.shared.keeps_acknowledged
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(open_handle(&self.shared))
    }

    fn version<'a>(&'a self, name: &'a str) -> Call<'a, Result<Arc<dyn DevicePart>>> {
        let (name, zones, recovered) =
            (name.to_owned(), self.shared.zones.clone(), self.shared.recovered.clone());
        let homes = self.shared.homes.clone();
        Call::new(async move {
            let find = |core: Rc<Core>| async move {
                let _call = core.kit().tasks.enter();
                let id = core.versions.borrow().by_name(&name).filter(|it| !it.is_leaving).map(|it| it.id);
                let id = id.ok_or_else(|| crate::snapshot::not_found(&core, &name))?;
                let shared = Arc::new(Shared::new(zones, &core, homes, recovered, id).await?);
                // Its deletion may have begun while the other shards were asked.
                if core.versions.borrow().get(id).is_none_or(|version| version.is_leaving) {
                    return Err(crate::snapshot::not_found(&core, &name));
                }
                core.views.borrow_mut().retain(|view| view.strong_count() > 0);
                core.views.borrow_mut().push(Arc::downgrade(&shared.view));
                Ok(shared)
            };
            let shared = self.home.with(find).await?;
            Ok(Arc::new(VersionPart { shared }) as Arc<dyn DevicePart>)
        })
    }
}

/// Flushes on a home shard for another shard.
async fn flush_acknowledged(core: Rc<Core>) -> Result<()> {
    let _call = core.kit().tasks.enter();
    core.flush_acknowledged().await
}

/// Makes what was acknowledged on all home shards durable.
async fn flush_all(homes: &[Home<Core>]) -> Result<()> {
    if let [only] = homes {
        return only.with(flush_acknowledged).await;
    }
    let flushes = homes.iter().map(|home| home.with(flush_acknowledged));
    runtime::join_all(flushes).await.into_iter().collect()
}

/// A snapshot or a clone, as a device.
#[derive(Debug)]
struct VersionPart {
    shared: Arc<Shared>,
}

impl Part for VersionPart {
    fn kind(&self) -> &'static str {
        crate::snapshot::KIND.name
    }

    fn close(&self) -> Call<'_, Result<()>> {
        match self.shared.geometry.read_only {
            true => Call::ready(Ok(())),
            false => Call::new(flush_all(&self.shared.homes)),
        }
    }
}

impl DevicePart for VersionPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.shared.geometry
    }

    fn keeps_acknowledged(&self) -> bool {
        self.shared.keeps_acknowledged
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(open_handle(&self.shared))
    }
}

async fn open_handle(shared: &Arc<Shared>) -> Result<Rc<dyn Device>> {
    let core = |home: &Home<Core>| if home.is_here() { home.get().map(Some) } else { Ok(None) };
    let cores = shared.homes.iter().map(core).collect::<Result<SmallVec<_>>>()?;
    let zones = shared.zones.open().await?;
    let reads = shared.readers.here();
    let handle = Handle { shared: shared.clone(), cores, reads, zones };
    handle.cores.iter().flatten().for_each(|core| core.handles.set(core.handles.get() + 1));
    Ok(Rc::new(handle))
}

/// Handle of one shard on one version.
struct Handle {
    shared: Arc<Shared>,
    /// For each home shard, its core if that is here.
    cores: SmallVec<[Option<Rc<Core>>; 1]>,
    reads: Arc<ShardReads>,
    zones: Rc<dyn Zones>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.cores.iter().flatten().for_each(|core| core.handles.set(core.handles.get() - 1));
    }
}

impl Handle {
    fn read_at(&self, physical: Physical, buffer: Buffer) -> Call<'_, ReadOutcome> {
        let blocks = (buffer.missing() >> self.shared.layout.block_size.shift()) as u64;
        if let Err(error) = self.shared.damaged.check(physical, blocks) {
            return Call::ready((Err(error), buffer));
        }
        let at = self.shared.layout.place(physical);
        self.zones.read(self.shared.layout.address(at.zone.0, at.block), buffer)
    }

    /// Reads one contiguous piece; returns zeros if it isn't mapped.
    #[inline]
    fn read_piece(&self, physical: Physical, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        if !physical.is_mapped() {
            buffer.append_zeroes(buffer.missing());
            return Call::ready((Ok(()), buffer));
        }
        // There is no await between the lookup and this, so the zone isn't reset before the read is
        // registered.
        let reading = self.reads.begin();
        Call::new(Guarded { read: self.read_at(physical, buffer), _reading: reading })
    }

    /// Returns the pieces of a range; physically contiguous ones are merged.
    fn pieces(&self, block: u64, count: u64) -> SmallVec<[Mapping; 8]> {
        let mut pieces: SmallVec<[Mapping; 8]> = SmallVec::new();
        self.shared.map.lookup_range(block..block + count, &mut |piece| {
            if let Some(last) = pieces.last_mut()
                && last.physical.is_mapped() == piece.physical.is_mapped()
                && last.physical.offset(last.count) == piece.physical
            {
                last.count += piece.count;
                return;
            }
            pieces.push(piece);
        });
        pieces
    }

    async fn read_pieces(
        &self,
        pieces: SmallVec<[Mapping; 8]>,
        buffer: Buffer,
        reading: Reading<'_>,
    ) -> ReadOutcome {
        let shift = self.shared.layout.block_size.shift();
        let pieces = pieces.iter().map(|piece| ((piece.count << shift) as usize, piece.physical));
        let read = runtime::read_pieces(buffer, pieces, |physical, mut piece| match physical.is_mapped() {
            true => self.read_at(physical, piece),
            false => {
                piece.append_zeroes(piece.missing());
                Call::ready((Ok(()), piece))
            }
        });
        let outcome = read.await;
        drop(reading);
        outcome
    }

    /// Reads the blocks that aren't buffered, and overlays the buffered ones.
    async fn read_patched(&self, at: BlockIndex, buffer: Buffer, patches: Vec<(u64, Data)>) -> ReadOutcome {
        let shift = self.shared.layout.block_size.shift();
        let blocks = (buffer.len() >> shift) as u64;
        let mut buffer = buffer;
        if patches.len() as u64 == blocks {
            patches.iter().for_each(|(_, data)| buffer.append(data));
            return (Ok(()), buffer);
        }
        let pieces = self.pieces(at.0, blocks);
        let (outcome, mut buffer) = self.read_pieces(pieces, buffer, self.reads.begin()).await;
        if outcome.is_ok() {
            for (block, data) in patches {
                let offset = ((block - at.0) << shift) as usize;
                buffer.filled_mut()[offset..offset + data.len()].copy_from_slice(&data);
            }
        }
        (outcome, buffer)
    }

    /// Carries out changes on the home shard of their blocks.
    async fn send_home(
        &self,
        shard: u32,
        changes: Changes,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        if let Some(core) = &self.cores[shard as usize] {
            return core.change(changes, payload, durability).await;
        }
        let work = move |core: Rc<Core>| async move {
            let _call = core.kit().tasks.enter();
            core.change(changes, payload, durability).await
        };
        self.shared.homes[shard as usize].with(work).await
    }

    /// Writes blocks of several home shards, or many blocks of one, in parts that a shard admits.
    async fn write_divided(&self, range: BlockRange, payload: Payload, durability: Durability) -> Result<()> {
        let shift = self.shared.layout.block_size.shift();
        let bytes = |block: u64| ((block - range.start.0) << shift) as usize;
        let mut at = range.start.0;
        while at < range.end().0 {
            let end = range.end().0.min(at + MAX_REQUEST_BLOCKS);
            let part = payload.slice(bytes(at)..bytes(end));
            self.write_part(BlockRange::new(at, end - at), part, durability).await?;
            at = end;
        }
        Ok(())
    }

    /// Writes blocks of several home shards: each of them gets its blocks in one request.
    async fn write_part(&self, range: BlockRange, payload: Payload, durability: Durability) -> Result<()> {
        let (version, shift) = (self.shared.version, self.shared.layout.block_size.shift());
        let stripes = self.shared.layout.stripes;
        let mut parts: SmallVec<[(Changes, Payload); 4]> =
            (0..stripes.shards()).map(|_| Default::default()).collect();
        for run in stripes.runs(range.start.0..range.end().0) {
            let at = |block: u64| ((block - range.start.0) << shift) as usize;
            let (changes, data) = &mut parts[stripes.shard_of(run.start) as usize];
            let count = (run.end - run.start) as u32;
            changes.push(Change::Write { version, block: run.start, count });
            payload.slice(at(run.start)..at(run.end)).slices().iter().for_each(|it| data.push(it.clone()));
        }
        let parts = (0..).zip(parts).filter(|(_, (changes, _))| !changes.is_empty());
        let writes = parts.map(|(shard, (changes, data))| self.send_home(shard, changes, data, durability));
        runtime::join_all(writes).await.into_iter().collect()
    }

    fn unmap(&self, range: BlockRange, durability: Durability) -> Call<'_, Result<()>> {
        let checked = self.shared.geometry.check_writable().and_then(|()| self.shared.geometry.check(range));
        if checked.is_err() || range.is_empty() {
            return Call::ready(checked);
        }
        Call::new(async move {
            let stripes = self.shared.layout.stripes;
            let mut at = range.start.0;
            // Changes that aren't sent yet, by home shard.
            let mut changes: SmallVec<[Changes; 1]> = (0..stripes.shards()).map(|_| Changes::new()).collect();
            let mut pending = 0;
            let mut looked = 0;
            while at < range.end().0 {
                let end = range.end().0.min(at + self.shared.blocks_at_once).min(stripes.end_of_stripe(at));
                if let Some(change) = self.unmapping(at, end - at) {
                    changes[stripes.shard_of(at) as usize].push(change);
                    pending += 1;
                }
                looked += end - at;
                at = end;
                if pending == PIECES_AT_ONCE {
                    self.send_unmappings(&mut changes, Durability::Visible).await?;
                    pending = 0;
                }
                if looked >= self.shared.blocks_at_once || at == range.end().0 {
                    looked = 0;
                    runtime::yield_now().await;
                }
            }
            if pending > 0 && (durability == Durability::Visible || stripes.shards() == 1) {
                return self.send_unmappings(&mut changes, durability).await;
            }
            self.send_unmappings(&mut changes, Durability::Visible).await?;
            match durability {
                Durability::Visible => Ok(()),
                // An earlier change that unmapped the range may not be durable.
                Durability::Durable => self.flush().await,
            }
        })
    }

    /// Sends changes without data to their home shards.
    async fn send_unmappings(&self, changes: &mut [Changes], durability: Durability) -> Result<()> {
        let changes = (0..).zip(changes.iter_mut()).filter(|(_, changes)| !changes.is_empty());
        let sent = changes.map(|(shard, changes)| {
            self.send_home(shard, std::mem::take(changes), Payload::new(), durability)
        });
        let sent: SmallVec<[_; 1]> = sent.collect();
        runtime::join_all(sent).await.into_iter().collect()
    }

    /// Returns the change that unmaps these blocks; `None` if no acknowledged write is mapped there.
    fn unmapping(&self, block: u64, count: u64) -> Option<Change> {
        let mut mapped = block..block + count;
        // The buffer is checked first: a block is in the map before it is removed from the buffer.
        if self.shared.buffer.is_empty() {
            mapped = 0..0;
            self.shared.map.lookup_range(block..block + count, &mut |piece| {
                if piece.physical.is_mapped() {
                    mapped.start = if mapped.is_empty() { piece.block } else { mapped.start };
                    mapped.end = piece.block + piece.count;
                }
            });
        }
        let count = mapped.end - mapped.start;
        let version = self.shared.version;
        (count > 0).then_some(Change::Unmap { version, block: mapped.start, count: count as u32 })
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.shared.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        let range = match self.shared.geometry.range(at, buffer.len()) {
            Ok(range) => range,
            Err(error) => return Call::ready((Err(error), buffer)),
        };
        if !self.shared.buffer.is_empty() {
            let patches = self.shared.buffer.find(self.shared.version, at.0, range.count.0);
            if !patches.is_empty() {
                return Call::new(self.read_patched(at, buffer, patches));
            }
        }
        let pieces = match range.count.0 {
            0 => return Call::ready((Ok(()), buffer)),
            1 => return self.read_piece(self.shared.map.lookup(at.0), buffer),
            count => self.pieces(at.0, count),
        };
        if let [only] = pieces.as_slice() {
            return self.read_piece(only.physical, buffer);
        }
        let reading = self.reads.begin();
        Call::new(self.read_pieces(pieces, buffer, reading))
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let range = match self.shared.geometry.writable_range(at, payload.len()) {
            Ok(range) => range,
            Err(error) => return Call::ready(Err(error)),
        };
        if range.is_empty() {
            return Call::ready(Ok(()));
        }
        let stripes = self.shared.layout.stripes;
        let is_large = range.count.0 > MAX_REQUEST_BLOCKS && stripes.shards() > 1;
        if is_large || range.end().0 > stripes.end_of_stripe(at.0) {
            return Call::new(self.write_divided(range, payload, durability));
        }
        let change = Change::Write { version: self.shared.version, block: at.0, count: range.count.0 as u32 };
        let shard = stripes.shard_of(at.0);
        match &self.cores[shard as usize] {
            Some(core) => core.write(change, payload, durability),
            None => Call::new(self.send_home(shard, Changes::from_elem(change, 1), payload, durability)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        if !self.shared.geometry.volatile_cache {
            return Call::ready(Ok(()));
        }
        Call::new(async move {
            match self.cores.as_slice() {
                [Some(core)] => core.flush_acknowledged().await,
                _ => flush_all(&self.shared.homes).await,
            }
        })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.unmap(range, Durability::Visible)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.unmap(range, durability)
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        /// Most extents that one call returns.
        const MAX: usize = 256;
        if let Err(error) = self.shared.geometry.check(range) {
            return Call::ready(Err(error));
        }
        if !self.shared.buffer.is_empty() {
            // A buffered block may be a hole in the map, so the range is reported as data.
            let state = ExtentState::Data;
            return Call::ready(Ok(if range.is_empty() {
                Vec::new()
            } else {
                vec![Extent { range, state }]
            }));
        }
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = range.start.0;
        while at < range.end().0 && extents.len() < MAX {
            // One page at a time, so that lookups in a large fragmented range are limited to the returned
            // extents.
            let end = range.end().0.min((at / crate::map::PAGE_BLOCKS + 1) * crate::map::PAGE_BLOCKS);
            self.shared.map.lookup_range(at..end, &mut |piece| {
                let state = if piece.physical.is_mapped() { ExtentState::Data } else { ExtentState::Hole };
                match extents.last_mut() {
                    Some(last) if last.state == state => last.range.count.0 += piece.count,
                    _ => extents.push(Extent { range: BlockRange::new(piece.block, piece.count), state }),
                }
            });
            at = end;
        }
        Call::ready(Ok(extents))
    }
}

/// A read that prevents a reset of its zone.
struct Guarded<'a> {
    read: Call<'a, ReadOutcome>,
    _reading: Reading<'a>,
}

impl Future for Guarded<'_> {
    type Output = ReadOutcome;

    #[inline]
    fn poll(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<ReadOutcome> {
        std::pin::Pin::new(&mut self.read).poll(context)
    }
}
