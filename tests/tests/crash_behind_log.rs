//! A mirror whose slow leg stands behind a write cache on the fast device: what is behind is kept in the cache's log. All of it are
//! parts of one disk, so that every cut is one of all.
//!
//! ```text
//!            ┌ leg a (fast)
//! mirror ────┤
//!            └ writecache ─┬ cache (on the fast device, too)
//!                          └ leg b (slow)
//! ```

use block::{BlockCount, BlockRange, DevicePart, Part, Result};
use layers::linear::part_of;
use layers::mirror::{MirrorPart, Plan, Settings, Wishes};
use layers::writecache::{Options, WriteCachePart};
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, seed};
use std::sync::Arc;
use std::time::Duration;

/// How many blocks a leg has, and the cache.
const LEG: u64 = 40;
const CACHE: u64 = 66;

/// What is there after a cut.
#[derive(Clone, Copy, PartialEq)]
enum Survivors {
    All,
    /// The fast device is lost: a leg, and what the other one is behind by.
    SlowLeg,
}

async fn mirror(
    legs: Vec<(String, Arc<dyn DevicePart>)>,
    format: bool,
    degraded: bool,
) -> Result<MirrorPart> {
    let settings = Settings {
        write_mostly: 1 << (legs.len() - 1),
        write_behind: 0,
        behind_bytes: 1 << 20,
        fast_flush: false,
        bitmap_delay: Duration::from_millis(2),
        sync_speed_max: 0,
        first_leg: false,
    };
    let wishes = Wishes { degraded, rebuild: 0 };
    MirrorPart::open(Plan { legs, settings, wishes, format, bitmap_chunk: format.then_some(16 << 10) }).await
}

async fn open(
    disk: Arc<dyn DevicePart>,
    opening: Opening,
    survivors: Survivors,
) -> Result<Arc<dyn DevicePart>> {
    let part = |at: u64, blocks: u64| -> Result<Arc<dyn DevicePart>> {
        Ok(Arc::new(part_of(disk.clone(), BlockRange::new(at, blocks))?))
    };
    let slow = part(LEG + CACHE, LEG)?;
    let format = opening == Opening::Format;
    if !format && survivors == Survivors::SlowLeg {
        return Ok(Arc::new(mirror(vec![("slow".into(), slow)], false, true).await?));
    }
    let options =
        Options { format, batch: 32 << 10, high_watermark: 20, low_watermark: 10, ..Options::default() };
    let behind = Arc::new(WriteCachePart::open(slow, part(LEG, CACHE)?, options).await?);
    let legs =
        vec![("fast".to_owned(), part(0, LEG)?), ("slow".to_owned(), behind.clone() as Arc<dyn DevicePart>)];
    let mirror = mirror(legs, format, false).await?;
    if format {
        // From now on the slow leg alone is one.
        behind.message("flush").await?;
    }
    Ok(Arc::new(mirror))
}

fn run(oracle: Oracle, survivors: Survivors) -> Result<Report, Box<Violation>> {
    let main = move || async move {
        oracle
            .run(async |disk: Arc<dyn DevicePart>, opening: Opening| open(disk, opening, survivors).await)
            .await
    };
    runtime::run(runtime::Config::default(), main).expect("the runtime starts")
}

fn holds(name: &str, usual_seed: u64, survivors: Survivors, change: impl FnOnce(&mut Oracle)) {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks = BlockCount(2 * LEG + CACHE);
    oracle.workload.operations = 160;
    change(&mut oracle);
    let report = run(oracle, survivors).unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}");
    assert!(report.states > 1000, "{name}: only {} states were tried", report.states);
}

#[test]
fn a_restart_continues() {
    holds("behind log", 401, Survivors::All, |_| {});
}

#[test]
fn the_slow_leg_alone_is_an_older_state() {
    holds("behind log, slow leg alone", 402, Survivors::SlowLeg, |oracle| oracle.older = true);
}
