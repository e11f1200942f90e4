//! Formatting and opening of stores. Opening reads the manifest of the newest checkpoint, the edits and
//! pieces after it, and the writes that aren't in tables.
//!
//! The writes are replayed into buffers and flushed to tables before the store is open, so that the buffers'
//! memory is available for new writes.

use crate::checkpoint::CheckpointSize;
use crate::core::{Core, RecoveredShard, ReplayedWrites, kit_settings};
use crate::erasure::{Erasure, Found as FoundPromise};
use crate::extents::{Extent, place};
use crate::item::{Place, Recorded, decode_parts};
use crate::manifest::{Edit, MAX_SHARDS, Manifest, State, table_stream, write_stream};
use crate::open_zones::{self, OpenZones};
use crate::settings::Settings;
use block::{BlockSize, Error, Result, ZoneGeometry, Zones, ZonesPart};
use logkit::cleaning::Policy;
use logkit::recovery::{self, Goal, Opening};
use logkit::scan::{self, Found};
use logkit::{Kit, Layout, Owner, Parts, StreamId, lane};
use runtime::{Home, ShardIndex};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

/// Name of the owner in a root.
pub const OWNER: [u8; 8] = *b"kv      ";
/// Size of a block of the log, in bytes.
const BLOCK: u64 = 4096;
/// Minimum number of zones of a store with one shard, and of additional zones for each further shard.
const MIN_ZONES: u32 = 16;
const MIN_OF_SHARD: u32 = 6;

/// Creates a store on zones; their contents are lost.
///
/// # Errors
/// [`Error::Invalid`] for zones that are too few or too small, and for settings out of range; errors of
/// resetting and writing.
pub async fn format(zones: &Arc<dyn ZonesPart>, settings: &Settings) -> Result<Vec<Home<Core>>> {
    let handle = zones.open().await?;
    let layout = Layout::new(handle.geometry(), BlockSize::new(BLOCK)?)?;
    let shards = settings.shards.unwrap_or_else(|| default_shards(runtime::shard_count(), handle.geometry()));
    if !(1..=MAX_SHARDS).contains(&shards) {
        return Err(Error::invalid(format!("{shards} shards; expected 1 to {MAX_SHARDS}")));
    }
    check_zones(handle.geometry(), shards)?;
    let (pool, identity) = recovery::format(&*handle, &layout).await?;
    let parts = recovery::create(layout, pool, identity, 2 * usize::from(shards), OWNER, Vec::new());
    let found = (0..shards).map(|_| RecoveredShard {
        manifest: Manifest::default(),
        writes: Vec::new(),
        lost: Vec::new(),
    });
    let homes =
        start((zones, handle), parts, (found.collect(), FoundPromise::new(settings.guarantee())), settings)
            .await?;
    homes[0].with(|core: Rc<Core>| async move { core.take_checkpoint(false).await }).await?;
    Ok(homes)
}

/// Minimum number of zones of a store of `shards` shards.
pub fn fewest_zones(shards: u16) -> u32 {
    MIN_ZONES + MIN_OF_SHARD * u32::from(shards.max(1) - 1)
}

/// Default number of shards of a new store on these zones: one for each shard of the runtime, as far as the
/// zones permit; at least 1.
pub fn default_shards(of_runtime: usize, zones: &ZoneGeometry) -> u16 {
    let most = (1..=MAX_SHARDS).rev().find(|shards| check_zones(zones, *shards).is_ok()).unwrap_or(1);
    most.min(of_runtime.min(usize::from(MAX_SHARDS)) as u16)
}

/// Refuses `shards` shards for a new store if the zones are too few or too small, or permit too few open
/// ones.
///
/// # Errors
/// [`Error::Invalid`] with the numbers.
pub fn check_zones(zones: &ZoneGeometry, shards: u16) -> Result<()> {
    Layout::new(zones, BlockSize::new(BLOCK)?)?;
    let fewest = fewest_zones(shards);
    if zones.zones < fewest {
        return Err(Error::invalid(format!(
            "{} zones are too few for a store of {shards} shards; expected at least {fewest}: take more zones, or fewer shards",
            zones.zones
        )));
    }
    open_zones::check_new(zones, shards)
}

/// State of the store after replay.
pub(crate) struct Replayed {
    /// State of each shard.
    pub shards: Vec<RecoveredShard>,
    /// Recovered state of persistent deletes.
    promise: FoundPromise,
    clock: u64,
}

/// Finds the store on these zones and replays its records. Writes nothing.
///
/// # Errors
/// As [`open`].
pub(crate) async fn replay_all(zones: &dyn Zones, goal: Goal) -> Result<(Opening<Found>, Replayed)> {
    let mut opening: Opening<Found> = recovery::open(zones, OWNER, goal).await?;
    let State { shards, stale, clock: shown, resets } = State::decode(&opening.own)?;
    recovery::check_streams(&opening.root, 2 * shards.len())?;
    let mut found: Vec<RecoveredShard> = Vec::new();
    let mut clock = opening.root.clock;
    for (shard, manifest) in (0..).zip(shards) {
        found.push(replay(zones, &mut opening, (shard, manifest), &mut clock, goal).await?);
    }
    if let Some(first) = found.first_mut() {
        first.lost.splice(0..0, std::mem::take(&mut opening.lost));
    }
    let operations = found.iter().map(|shard: &RecoveredShard| shard.manifest.flushed.sequence).sum();
    let promise = FoundPromise { operations, stale, unlisted: Vec::new(), clock: shown, resets };
    Ok((opening, Replayed { shards: found, promise, clock }))
}

/// Opens the store on these zones.
///
/// # Errors
/// [`Error::Protocol`] for zones without a store, [`Error::Corrupt`] for a damaged one; errors of reading and
/// writing.
pub async fn open(zones: &Arc<dyn ZonesPart>, settings: &Settings) -> Result<Vec<Home<Core>>> {
    let handle = zones.open().await?;
    let (mut opening, Replayed { shards: found, mut promise, clock }) =
        replay_all(&*handle, settings.goal).await?;
    promise.unlisted = std::mem::take(&mut opening.unlisted);
    let zones_before = opening.pool.list().into_iter().map(|(zone, state)| (zone, state.generation));
    let reset_before: Vec<(u32, u64)> = zones_before.filter(|(_, generation)| *generation > 0).collect();
    let is_new_guarantee = promise.resets.begin(settings.guarantee(), &reset_before);
    let parts = opening.finish(&*handle, clock).await?;
    let homes = start((zones, handle), parts, (found, promise), settings).await?;
    if settings.goal == Goal::Salvage {
        // In a salvaged store, replayed writes stay in memory, and nothing else is written.
        return Ok(homes);
    }
    for home in &homes {
        let flush = |core: Rc<Core>| async move { core.flush_replayed().await };
        home.with(flush).await?;
    }
    let is_due = move |core: Rc<Core>| async move {
        match is_new_guarantee || core.kit().checkpoints.is_due_at_open() {
            true => core.take_checkpoint(false).await,
            false => Ok(()),
        }
    };
    homes[0].with(is_due).await?;
    Ok(homes)
}

/// Bytes that are divided among several records, until they are complete.
#[derive(Default)]
struct Assembly {
    bytes: Vec<u8>,
    length: usize,
    zones: SmallVec<[u32; 2]>,
    /// Number of the record with the first part.
    first: u64,
    /// Zone and block of a damaged block in one of the parts.
    damaged: Option<(u32, u32)>,
}

impl Assembly {
    /// Adds a part; returns the complete bytes with their zones once the last part is added.
    fn add(
        &mut self,
        part: &[u8],
        offset: u32,
        length: u32,
        (zone, record): (u32, u64),
        damaged: Option<(u32, u32)>,
    ) -> Option<Assembly> {
        if offset == 0 && part.len() >= length as usize {
            // A record of another shard may be between two parts.
            let (bytes, zones) = (part[..length as usize].to_vec(), SmallVec::from_slice(&[zone]));
            return Some(Assembly { bytes, length: length as usize, zones, first: record, damaged });
        }
        if offset == 0 {
            *self = Assembly { length: length as usize, first: record, ..Assembly::default() };
        }
        if offset as usize != self.bytes.len() || length as usize != self.length {
            // Earlier parts were refused, so this part has no effect.
            *self = Assembly::default();
            return None;
        }
        let missing = self.length - self.bytes.len();
        self.bytes.extend_from_slice(&part[..part.len().min(missing)]);
        self.damaged = self.damaged.or(damaged);
        if !self.zones.contains(&zone) {
            self.zones.push(zone);
        }
        (self.bytes.len() == self.length).then(|| std::mem::take(self))
    }
}

/// First damaged block in a range of a zone.
fn damaged_in(damaged: &[(u32, u32)], zone: u32, position: u32, blocks: u32) -> Option<(u32, u32)> {
    let first = damaged[damaged.partition_point(|at| *at < (zone, position))..].first().copied();
    first.filter(|at| *at < (zone, position + blocks))
}

/// Error for a durable record with damaged contents. Without the error, reads would return older values or
/// deleted keys.
fn gone(shard: u16, number: u64, what: &str, (zone, position): (u32, u32)) -> Error {
    Error::corrupt(format!(
        "block {position} of zone {zone} is damaged: it has a part of record {number} of shard {shard}, with {what}; restore the store \
         from a backup, or copy what can be read with the key salvage"
    ))
}

/// Replays the records of a shard over its manifest.
async fn replay(
    zones: &dyn Zones,
    opening: &mut Opening<Found>,
    (shard, mut manifest): (u16, Manifest),
    clock: &mut u64,
    goal: Goal,
) -> Result<RecoveredShard> {
    let mut lost: Vec<String> = Vec::new();
    let (users, tables) = (write_stream(shard), table_stream(shard));
    let covered = &opening.root.covered;
    let is_own = |record: &&Found| {
        let is_after = |stream: StreamId| {
            recovery::number_in(*record, stream).is_some_and(|number| number > covered.of(stream))
        };
        record.header.stream == tables && is_after(tables) || is_after(users)
    };
    let mut records: Vec<Found> = opening.records.iter().filter(is_own).cloned().collect();
    recovery::sort_for_replay(&mut records, users);
    let mut writes: Vec<ReplayedWrites> = Vec::new();
    let mut lost_writes: Vec<(u64, (u32, u32))> = Vec::new();
    let (mut written, mut edited) = (Assembly::default(), Assembly::default());
    for record in &records {
        let (zone, mut position) = (record.header.zone, record.header.position + 1);
        for item in goal.tolerate(Recorded::decode_all(record), &mut lost)?.unwrap_or_default() {
            let blocks = item.blocks();
            *clock += u64::from(blocks);
            match item {
                Recorded::Piece { table, first, blocks, from } => {
                    let run = Extent { first, blocks, place: Place { zone, position } };
                    manifest.next_table = manifest.next_table.max(table + 1);
                    // An edit refers to pieces that were written before it.
                    if let Some(known) = manifest.tables.iter_mut().find(|known| known.id == table) {
                        place(&mut known.extents, run, from, |_, _| {});
                    }
                }
                Recorded::Body { is_edit, length, offset, inline, blocks } => {
                    let part = match inline {
                        Some(inline) => Ok(inline),
                        None => scan::read(zones, &opening.layout, zone, position, blocks).await,
                    };
                    let mut damaged = damaged_in(&opening.damaged, zone, position, blocks);
                    let part = goal.tolerate(part, &mut lost)?.unwrap_or_else(|| {
                        damaged = damaged.or(Some((zone, position)));
                        vec![0; length as usize]
                    });
                    let assembly = if is_edit { &mut edited } else { &mut written };
                    let number = recovery::number_in(record, if is_edit { tables } else { users });
                    let number =
                        number.ok_or_else(|| Error::corrupt("an item in a record of another stream"))?;
                    match assembly.add(&part, offset, length, (zone, number), damaged) {
                        Some(Assembly { damaged: Some(at), .. }) if is_edit => {
                            goal.tolerate(
                                Err::<(), _>(gone(shard, number, "the list of tables", at)),
                                &mut lost,
                            )?;
                        }
                        // Writes of the damaged record may be in tables already.
                        Some(Assembly { damaged: Some(at), .. }) => lost_writes.push((number, at)),
                        Some(whole) if is_edit => {
                            if let Some(edit) = goal.tolerate(Edit::decode(&whole.bytes), &mut lost)? {
                                manifest.apply(edit);
                            }
                        }
                        Some(Assembly { bytes, zones, first, .. }) => {
                            let decoded = decode_parts(&bytes, |part| {
                                if part.shard == shard {
                                    let (bytes, zones) = (part.bytes.to_vec(), zones.clone());
                                    writes.push(ReplayedWrites { bytes, zones, first, record: number });
                                }
                                Ok(())
                            });
                            goal.tolerate(decoded, &mut lost)?;
                        }
                        None => {}
                    }
                }
            }
            position += blocks;
        }
    }
    for (number, at) in lost_writes.iter().filter(|(number, _)| *number > manifest.flushed.record) {
        let is_gone = gone(shard, *number, "writes, whose keys are unknown", *at);
        goal.tolerate(Err::<(), _>(is_gone), &mut lost)?;
    }
    let mut accounts = opening.pool.accounts();
    let mut tables = std::mem::take(&mut manifest.tables);
    for table in tables.drain(..) {
        let checked =
            table.extents.iter().try_for_each(|extent| check_extent(shard, extent, &opening.layout));
        if goal.tolerate(checked, &mut lost)?.is_some() {
            table.extents.iter().for_each(|extent| accounts.add_live(extent.place.zone, extent.blocks));
            manifest.tables.push(table);
        }
    }
    drop(accounts);
    writes.retain(|replayed| replayed.record > manifest.flushed.record);
    Ok(RecoveredShard { manifest, writes, lost })
}

/// Refuses blocks of a table outside the zones.
fn check_extent(shard: u16, extent: &Extent, layout: &Layout) -> Result<()> {
    let end = extent.place.position.checked_add(extent.blocks);
    match extent.place.zone < layout.zones && end.is_some_and(|end| end <= layout.zone_blocks) {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "the manifest of shard {shard} names blocks outside the zones: {extent:?}"
        ))),
    }
}

/// Shard of the runtime that runs a shard of the store.
fn place_of(shard: u16) -> ShardIndex {
    ShardIndex((runtime::current_shard().0 + usize::from(shard)) % runtime::shard_count())
}

async fn start(
    (zones, handle): (&Arc<dyn ZonesPart>, Rc<dyn Zones>),
    parts: Parts,
    (found, promise): (Vec<RecoveredShard>, FoundPromise),
    settings: &Settings,
) -> Result<Vec<Home<Core>>> {
    let (layout, shards) = (parts.layout, found.len() as u16);
    let classes = settings.placement()?.classes() - 1;
    let open_zones = OpenZones::on(handle.geometry(), shards, classes)?;
    let mut found = found.into_iter();
    let first = found.next().ok_or_else(|| Error::corrupt("a store without a shard"))?;
    let own = |shard: u16| [write_stream(shard), table_stream(shard)];
    let checkpoint_size = CheckpointSize::new(shards);
    let core = {
        let kit = |policy: Box<dyn Policy>| {
            let settings = kit_settings(settings, &layout, (0, shards), open_zones);
            Kit::new(parts, handle, settings, policy, &own(0))
        };
        let erasure = |kit: &Rc<Kit>| Erasure::new(kit.pool.clone(), settings.delete_persistence, promise);
        Core::new((0, shards, open_zones), kit, settings, first, erasure, &checkpoint_size)?
    };
    core.kit().budget().set(open_zones.demand());
    let mut homes = vec![Home::here(core.clone())];
    for (shard, found) in (1..).zip(found) {
        let (peer, zones, settings, erasure) =
            (core.kit().peer(), zones.clone(), settings.clone(), core.erasure.clone());
        let size = checkpoint_size.clone();
        let begin = move || async move {
            let handle = zones.open().await?;
            let kit = |policy: Box<dyn Policy>| {
                Kit::join(
                    peer,
                    handle,
                    kit_settings(&settings, &layout, (shard, shards), open_zones),
                    policy,
                    &own(shard),
                )
            };
            let core = Core::new((shard, shards, open_zones), kit, &settings, found, |_| erasure, &size)?;
            Ok::<_, Error>(Home::here(core))
        };
        homes.push(runtime::spawn_on(place_of(shard), begin).await??);
    }
    for home in &homes {
        let homes = homes.clone();
        let begin = |core: Rc<Core>| async move {
            core.set_homes(homes);
            if core.lost.is_none() {
                lane::start(&core);
                core.start_tasks();
            }
            Ok(())
        };
        home.with(begin).await?;
    }
    if core.lost.is_none() {
        core.note_directory();
        logkit::cleaner::start(&core);
    }
    Ok(homes)
}
