//! Formatting and opening of stores. Opening replays the log (`replay`).
//!
//! The writes are replayed into buffers and flushed to tables before the store is open, so that the buffers'
//! memory is available for new writes.

use crate::broken::if_broken;
use crate::core::open_zones::{self, OpenZones};
use crate::core::{Core, SharedSpace, kit_settings};
use crate::erasure::{Erasure, Found as FoundPromise};
use crate::replay::{OWNER, RecoveredShard, Replayed, replay_all};
use crate::settings::Settings;
use crate::tree::manifest::{MAX_SHARDS, Manifest, table_stream, write_stream};
use block::{BlockSize, Error, Result, ZoneGeometry, Zones, ZonesPart};
use logkit::cleaning::Policy;
use logkit::recovery::{self, Goal};
use logkit::{Kit, Layout, Owner, Parts, lane};
use runtime::{Home, ShardIndex};
use std::rc::Rc;
use std::sync::Arc;

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
        staged: Vec::new(),
        lost: Vec::new(),
        has_lost_writes: false,
    });
    // With the contents of an earlier store.
    erase_staging(&*handle).await?;
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

/// Opens the store on these zones.
///
/// # Errors
/// [`Error::Protocol`] for zones without a store, [`Error::Corrupt`] for a damaged one; errors of reading and
/// writing.
pub async fn open(zones: &Arc<dyn ZonesPart>, settings: &Settings) -> Result<Vec<Home<Core>>> {
    let handle = zones.open().await?;
    let (mut opening, Replayed { shards: mut found, mut promise, clock, is_staging_used }) =
        replay_all(&*handle, settings.goal).await?;
    promise.unlisted = std::mem::take(&mut opening.unlisted);
    let zones_before = opening.pool.list().into_iter().map(|(zone, state)| (zone, state.generation));
    let reset_before: Vec<(u32, u64)> = zones_before.filter(|(_, generation)| *generation > 0).collect();
    let is_new_guarantee = promise.resets.begin(settings.guarantee(), &reset_before);
    let parts = opening.finish(&*handle, clock).await?;
    let staged: Vec<Vec<Vec<u8>>> = match settings.goal {
        Goal::Serve => found.iter_mut().map(|shard| std::mem::take(&mut shard.staged)).collect(),
        Goal::Salvage => Vec::new(),
    };
    let homes = start((zones, handle.clone()), parts, (found, promise), settings).await?;
    if settings.goal == Goal::Salvage {
        // In a salvaged store, replayed writes stay in memory, and nothing else is written.
        return Ok(homes);
    }
    for (home, entries) in homes.iter().zip(staged).filter(|(_, entries)| !entries.is_empty()) {
        home.with(|core: Rc<Core>| async move { core.log_staged(entries).await }).await?;
    }
    if is_staging_used {
        erase_staging(&*handle).await?;
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

/// Erases the staging area durably, before any shard writes to it: what it holds later is of this epoch.
async fn erase_staging(zones: &dyn Zones) -> Result<()> {
    if_broken!(KeepsStaged, return Ok(()));
    match zones.staging() {
        Some(staging) => staging.erase().await,
        None => Ok(()),
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
    let classes = crate::policy::placement(&settings.placement)?.classes() - 1;
    let open_zones = OpenZones::on(handle.geometry(), shards, classes)?;
    let mut found = found.into_iter();
    let first = found.next().ok_or_else(|| Error::corrupt("a store without a shard"))?;
    let own = |shard: u16| [write_stream(shard), table_stream(shard)];
    let space = SharedSpace::new(shards);
    let core = {
        let kit = |policy: Box<dyn Policy>| {
            let settings = kit_settings(settings, &layout, (0, shards), open_zones);
            Kit::new(parts, handle, settings, policy, &own(0))
        };
        let erasure = |kit: &Rc<Kit>| Erasure::new(kit.pool.clone(), settings.delete_persistence, promise);
        Core::new((0, shards, open_zones), kit, settings, first, erasure, &space)?
    };
    core.kit().budget().set(open_zones.demand());
    let mut homes = vec![Home::here(core.clone())];
    for (shard, found) in (1..).zip(found) {
        let (peer, zones, settings) = (core.kit().peer(), zones.clone(), settings.clone());
        let (erasure, space) = (core.erasure.clone(), space.clone());
        let begin = move || async move {
            let handle = zones.open().await?;
            let kit = |policy: Box<dyn Policy>| {
                let settings = kit_settings(&settings, &layout, (shard, shards), open_zones);
                Kit::join(peer, handle, settings, policy, &own(shard))
            };
            let core = Core::new((shard, shards, open_zones), kit, &settings, found, |_| erasure, &space)?;
            Ok::<_, Error>(Home::here(core))
        };
        homes.push(runtime::spawn_on(place_of(shard), begin).await??);
    }
    start_tasks(&homes).await?;
    if core.tables.lost().is_none() {
        core.note_directory();
        logkit::cleaner::start(&core);
    }
    Ok(homes)
}

/// Starts the lanes and tasks of all shards, unless the store is salvaged.
async fn start_tasks(homes: &[Home<Core>]) -> Result<()> {
    for home in homes {
        let homes = homes.to_vec();
        let begin = |core: Rc<Core>| async move {
            core.peers.set_homes(homes);
            if core.tables.lost().is_none() {
                lane::start(&core);
                core.start_tasks();
            }
            Ok(())
        };
        home.with(begin).await?;
    }
    Ok(())
}
