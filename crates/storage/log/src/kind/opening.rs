//! Opening and creating a log device.

use super::{MIN_ZONE, MapPlace, Options};
use crate::core::{Core, Homes, Peers, State, Totals, place_of};
use crate::device::LogPart;
use crate::format::VersionId;
use crate::recovery::{self, Access, FileUse, HomeFiles, HomeStorage, Recovered};
use crate::salvage;
use crate::versions::VersionSeeds;
use block::{DevicePart, Error, Result, ZonesPart};
use logkit::Owner;
use logkit::root::Root;
use runtime::Home;
use runtime::file::SharedFile;
use std::rc::Rc;
use std::sync::Arc;
use zones::Overlay;
use zones::on_device::defaults;

/// Functions for the files of maps' homes; `None` in a program without the feature `map-home`.
#[cfg(feature = "map-home")]
const HOME_FILES: Option<HomeFiles> = Some(crate::home::FILES);
#[cfg(not(feature = "map-home"))]
const HOME_FILES: Option<HomeFiles> = None;

/// Returns the functions for the files of maps' homes.
///
/// # Errors
/// [`Error::Unsupported`] in a program without the feature `map-home`.
pub fn home_files() -> Result<HomeFiles> {
    HOME_FILES.ok_or_else(|| {
        Error::unsupported(
            "this program is built without maps in files of their own; build it with `cargo build --release --features \
             map-home`",
        )
    })
}

/// Opens the log on a device, or creates it there.
///
/// # Errors
/// Errors of the zones, of recovery, formatting and writes.
pub async fn open(device: Arc<dyn DevicePart>, options: &Options) -> Result<LogPart> {
    on_device(device, options, None).await
}

/// Opens or creates the log as [`open`] does; `home` is the map's file if the stack has opened and locked it.
pub(super) async fn on_device(
    device: Arc<dyn DevicePart>,
    options: &Options,
    home: Option<&SharedFile>,
) -> Result<LogPart> {
    if options.salvage {
        return on_zones(crate::check::open_zones(device).await?, options, home).await;
    }
    let zones = defaults::open(device, options.format, options.zone_size, MIN_ZONE).await?;
    on_zones(zones, options, home).await
}

/// Opens the log on zones, or creates it there. The zones stay open when the log is closed.
///
/// # Errors
/// [`Error::Invalid`] and [`Error::Unsupported`] for zones that can't hold a log; errors of recovery,
/// formatting and writes.
pub async fn open_on_zones(zones: Arc<dyn ZonesPart>, options: &Options) -> Result<LogPart> {
    Ok(on_zones(zones, options, None).await?.on_lent_zones())
}

/// Opens the log on zones, or creates it there. The zones are closed with the log. `home` is the map's file
/// if the stack has opened and locked it.
///
/// # Errors
/// Errors of [`open_on_zones`].
pub(super) async fn on_zones(
    zones: Arc<dyn ZonesPart>,
    options: &Options,
    home: Option<&SharedFile>,
) -> Result<LogPart> {
    let file_use = match options.format {
        _ if options.salvage => FileUse::LookOnly,
        true => FileUse::Create,
        false => FileUse::Open,
    };
    let home = match &options.map_home {
        MapPlace::Memory => None,
        MapPlace::Pmem(path) => Some((home_files()?.open)(path, file_use, home).await?),
    };
    open_with(zones, options, home).await
}

/// Opens the log on zones, or creates it there, with the map's home on this storage. The zones are closed
/// with the log. The options must also name a home, because the capacity depends on it.
///
/// # Errors
/// Errors of [`open_on_zones`].
pub async fn open_with(
    zones: Arc<dyn ZonesPart>,
    options: &Options,
    home: Option<Rc<dyn HomeStorage>>,
) -> Result<LogPart> {
    if home.is_some() && options.map != crate::map::NAMES[0] {
        return Err(Error::invalid(format!(
            "map_home: map \"{}\" can't be kept in a file of its own; expected \"{}\"",
            options.map,
            crate::map::NAMES[0]
        )));
    }
    let zones: Arc<dyn ZonesPart> = match options.salvage {
        // Nothing is appended to the zones, not even by mistake.
        true => Arc::new(Overlay::new(zones, salvage::MAX_BYTES)),
        false => zones,
    };
    let layout = options.layout_on(zones.geometry())?;
    if home.is_some() && layout.stripes.shards() > 1 {
        return Err(Error::invalid(format!(
            "map_home: a log with {} shards can't have its map in a file of its own; expected shards=1",
            layout.stripes.shards()
        )));
    }
    let handle = zones.open().await?;
    let (mut state, recovered) = match options.format {
        true => {
            let blocks = options.blocks_to_make(&layout, &*options.policy(layout.zones)?)?;
            let state = recovery::format(handle, layout, blocks, &options.map, home).await?;
            (state, Recovered::default())
        }
        false => {
            let access = if options.salvage { Access::Salvage } else { Access::Serve };
            recovery::recover(handle, &options.map, home, access).await?
        }
    };
    let layout = state.layout;
    let blocks = state.versions.get(VersionId::HEAD).map_or(0, |head| head.blocks);
    options.check_existing(blocks)?;
    options.check_shards(layout.stripes)?;
    options.check_open_zones(zones.geometry(), &layout)?;
    let writes = !options.salvage;
    if !options.format && writes {
        state.begin().await?;
    }
    let streams = layout.stripes.streams();
    let has_many_epochs = state.parts.checkpoints.root().boundaries.len() >= Root::most_epochs(streams);
    let (core, homes) = start(&zones, state, options, blocks).await?;
    let begin = async {
        if writes && (options.format || has_many_epochs) {
            core.write_checkpoint(false).await?;
            core.prepare_reset().await?;
        }
        LogPart::new(zones, core, homes.clone(), recovered).await
    };
    let begun = begin.await;
    if begun.is_err() {
        for home in &*homes {
            home.forget().await?;
        }
    }
    begun
}

/// Creates the cores of all shards of a log in this state, the home's on this shard. A log that is salvaged
/// has one core, with the whole maps.
async fn start(
    zones: &Arc<dyn ZonesPart>,
    mut state: State,
    options: &Options,
    blocks: u64,
) -> Result<(Rc<Core>, Homes)> {
    let layout = state.layout;
    let shards = if options.salvage { 1 } else { layout.stripes.shards() };
    let totals = Totals::new(shards);
    let seeds = if shards > 1 { state.versions.divide(shards) } else { Vec::new() };
    let policy = options.policy(layout.zones)?;
    let (settings, kit_settings) = options.settings(&layout, blocks, &*policy, 0);
    let core = Core::new(state, settings, kit_settings, policy, totals.clone());
    let mut homes = vec![Home::here(core.clone())];
    let joined = join(zones, &core, seeds, options, (blocks, totals), &mut homes).await;
    match joined {
        Ok(homes) => Ok((core, homes)),
        Err(error) => {
            for home in &homes {
                home.forget().await?;
            }
            Err(error)
        }
    }
}

/// Creates the cores of the other shards, adds them to `homes`, and makes all shards known to each other.
async fn join(
    zones: &Arc<dyn ZonesPart>,
    core: &Rc<Core>,
    seeds: Vec<VersionSeeds>,
    options: &Options,
    (blocks, totals): (u64, Arc<Totals>),
    homes: &mut Vec<Home<Core>>,
) -> Result<Homes> {
    let layout = core.layout;
    for (shard, seeds) in (1..).zip(seeds) {
        let (peer, damaged, zones) = (core.kit().peer(), core.damaged.clone(), zones.clone());
        let (options, totals) = (options.clone(), totals.clone());
        let join = move || async move {
            let handle = zones.open().await?;
            let policy = options.policy(layout.zones)?;
            let (settings, kit_settings) = options.settings(&layout, blocks, &*policy, shard);
            let peers = Peers::new(shard, totals);
            let parts = (layout, seeds, damaged);
            let core = Core::join((peer, handle), parts, settings, kit_settings, policy, peers);
            Ok::<_, Error>(Home::here(core))
        };
        homes.push(runtime::spawn_on(place_of(shard), join).await??);
    }
    let homes: Homes = homes.clone().into();
    for home in &*homes {
        let homes = homes.clone();
        home.with(|core: Rc<Core>| async move {
            core.peers.set(homes);
            Ok(())
        })
        .await?;
    }
    core.publish_images().await?;
    Ok(homes)
}
