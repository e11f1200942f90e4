//! The suite for [`block::Zones`].
//!
//! Resets every zone and uses up to [`Options::most_zones`] of them, from two handles of one shard and from
//! other shards if there are any. Some zones are filled, so zones of at most a few MiB keep the suite quick.

mod crash;
mod life;
mod model;
mod random;
mod refusals;
mod states;

use crate::suite::{Check, ensure, section, seed, succeeds};
use block::{Call, ZoneGeometry, ZonesPart};
use model::Suite;
use std::rc::Rc;
use std::sync::Arc;

/// Cuts the power of a set of zones and opens the surviving ones. Handles are dropped before; calls may still
/// be in flight, and must not change the reopened zones.
pub type Crash = Rc<dyn Fn(Arc<dyn ZonesPart>) -> Call<'static, Arc<dyn ZonesPart>>>;

/// Extent of a run of the suite.
#[derive(Clone)]
pub struct Options {
    /// Seed; `None` takes `SILTSTONE_SEED`, or 1.
    pub seed: Option<u64>,
    /// Number of rounds of random calls that are compared with the model.
    pub rounds: usize,
    /// Most zones that are used; at least 4 must exist.
    pub most_zones: u32,
    /// Whether a second call of `make`, after a close of the part, opens the same zones with their data.
    pub persistent: bool,
    /// Function that cuts the power; `None` skips these checks.
    pub crash: Option<Crash>,
    /// Number of power cuts.
    pub crashes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { seed: None, rounds: 300, most_zones: 12, persistent: false, crash: None, crashes: 20 }
    }
}

/// Runs the suite on the zones that `make` creates, whose data is destroyed.
///
/// # Errors
/// The first broken promise, with its zone and the seed.
pub async fn run(make: impl AsyncFn() -> Arc<dyn ZonesPart>, options: Options) -> Result<(), String> {
    let seed = seed(options.seed, "zones")?;
    let part = make().await;
    section("geometry", seed, async { check_geometry(part.geometry()) }).await?;
    let mut suite = section("open", seed, Suite::new(part, seed, options.most_zones)).await?;
    section("first reset", seed, suite.empty_all()).await?;
    section("appends and reads", seed, life::appends(&mut suite)).await?;
    section("concurrent appends", seed, life::concurrent_appends(&mut suite)).await?;
    section("several shards", seed, life::several_shards(&mut suite)).await?;
    section("refusals", seed, refusals::refusals(&mut suite)).await?;
    section("appends at a place", seed, states::appends_at_a_place(&mut suite)).await?;
    section("races for a place", seed, states::races_for_a_place(&mut suite)).await?;
    section("appends at the write pointer, on all shards", seed, states::compare_and_append(&mut suite))
        .await?;
    section("opening and closing", seed, states::open_and_close(&mut suite)).await?;
    section("opening and closing beside appends", seed, states::races(&mut suite)).await?;
    section("limits of zones that are opened and closed", seed, states::limits(&mut suite)).await?;
    section("filling a zone", seed, life::fill_and_finish(&mut suite)).await?;
    section("max_open and max_active", seed, refusals::limits(&mut suite)).await?;
    section("reset", seed, life::resets(&mut suite)).await?;
    section("flush", seed, life::flushes(&mut suite)).await?;
    section("changes under appends", seed, random::changes_under_appends(&mut suite)).await?;
    section("dropped calls", seed, random::dropped_calls(&mut suite)).await?;
    section("random calls", seed, random::rounds(&mut suite, options.rounds)).await?;
    if let Some(crash) = &options.crash {
        for number in 0..options.crashes {
            let name = format!("power cut {number}");
            section(&name, seed, crash::cut_and_check(&mut suite, crash)).await?;
        }
    }
    if options.persistent {
        let reopened = async {
            life::leave_traces(&mut suite).await?;
            suite.close().await?;
            suite.reopen(make().await).await?;
            life::check_traces(&mut suite).await
        };
        section("reopening", seed, reopened).await?;
    }
    if let (true, Some(crash)) = (options.persistent, &options.crash) {
        let closed_and_cut = async {
            life::leave_traces(&mut suite).await?;
            let part = suite.take_part();
            succeeds(part.close().await, "closing the part")?;
            suite.reopen(crash(part).await).await?;
            life::check_traces(&mut suite).await
        };
        section("power cut after a close", seed, closed_and_cut).await?;
    }
    section("close", seed, suite.close()).await
}

fn check_geometry(geometry: &ZoneGeometry) -> Check {
    let ZoneGeometry { zones, zone_size, zone_capacity, append_granularity, read_granularity, .. } =
        *geometry;
    ensure(zones >= 4, || format!("{zones} zones: this suite needs at least 4"))?;
    ensure(zone_capacity > 0 && zone_capacity <= zone_size, || {
        format!("a capacity of {zone_capacity} bytes in zones of {zone_size}")
    })?;
    ensure(append_granularity > 0 && read_granularity > 0, || "a granularity of 0".into())?;
    ensure(append_granularity % read_granularity == 0, || {
        format!("appends in units of {append_granularity} can't be read in units of {read_granularity}")
    })?;
    ensure(geometry.max_append >= u64::from(append_granularity), || {
        format!("max_append {} is less than the granularity, {append_granularity}", geometry.max_append)
    })?;
    ensure(zone_capacity >= 4 * u64::from(append_granularity), || {
        format!("zones of {zone_capacity} bytes: this suite needs room for 4 appends")
    })
}

/// Opens both handles of a part.
async fn open_handles(part: &Arc<dyn ZonesPart>) -> Check<[Rc<dyn block::Zones>; 2]> {
    let first = succeeds(part.open().await, "opening a handle")?;
    let second = succeeds(part.open().await, "opening a second handle")?;
    ensure(first.geometry() == part.geometry(), || {
        format!("the handle says {:?}, the part {:?}", first.geometry(), part.geometry())
    })?;
    Ok([first, second])
}
