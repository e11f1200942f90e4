//! The crash oracle on a log on a write cache of zones. Origin and fast device are two parts of one disk, so
//! that every cut is a cut of both.

use block::{BlockCount, BlockRange, Call, DevicePart, Part, Result, Zones, ZonesPart};
use layers::fault::{FaultDevicePart, FaultZonesPart, parse_rules};
use layers::linear::part_of;
use log::kind::{Options, open_on_zones};
use siltstone_tests::oracle::{Opening, Oracle, Report, Violation, in_simulation, seed};
use siltstone_tests::stacked::Stacked;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{MaxLag, ZoneWriteCachePart};

/// Blocks of the origin, and of the fast device after it.
const ORIGIN: u64 = 320;
const FAST: u64 = 160;

/// Devices that are left after a cut.
#[derive(Clone, Copy, PartialEq)]
enum Survivors {
    Both,
    /// The fast device is lost, and the log is opened on the origin.
    OriginAlone,
}

/// A promise of a part below that is broken on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    None,
    /// The fast device doesn't flush: acknowledgements come before durability.
    FastFlush,
    /// The origin doesn't flush: a later batch, a finish or a reset overtakes the appends before it.
    OriginFlush,
    /// The origin claims to flush atomically: appends of several flushes are sent together.
    Atomic,
}

/// Zones that claim to flush atomically.
struct ClaimsAtomic(Arc<dyn ZonesPart>);

impl Part for ClaimsAtomic {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.0.close()
    }
}

impl ZonesPart for ClaimsAtomic {
    fn geometry(&self) -> &block::ZoneGeometry {
        self.0.geometry()
    }

    fn can_rewind(&self) -> bool {
        true
    }

    fn flushes_atomically(&self) -> bool {
        true
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        self.0.open()
    }
}

fn rules(list: &[&str], contract: stack::Contract) -> Result<Vec<layers::fault::Rule>> {
    let list: Vec<String> = list.iter().map(|rule| (*rule).to_owned()).collect();
    parse_rules(&list, contract)
}

async fn open(disk: Arc<dyn DevicePart>, format: bool, survivors: Survivors, lie: Lie) -> Result<Stacked> {
    let on_device = zones::on_device::Options { format, zone_size: Some(32 << 10), ..Default::default() };
    let origin = Arc::new(part_of(disk.clone(), BlockRange::new(0, ORIGIN))?);
    let zones: Arc<dyn ZonesPart> = Arc::new(zones::OnDevice::open(origin, on_device).await?);
    let options = Options { format, size: Some(60 * 4096), checkpoint_after: 64 << 10, ..Options::default() };
    if !format && survivors == Survivors::OriginAlone {
        let log = open_on_zones(zones.clone(), &options).await?;
        return Ok(Stacked::new(Arc::new(log), vec![zones]));
    }
    // There are many recoveries, and they have nothing in flight that could be reordered.
    let mut list: Vec<&str> = if format { vec!["any delay=0us..300us probability=0.5"] } else { vec![] };
    if lie == Lie::OriginFlush {
        list.push("flush lie");
    }
    let slow: Arc<dyn ZonesPart> =
        Arc::new(FaultZonesPart::new(zones.clone(), rules(&list, stack::Contract::Zones)?, 5));
    let claims: Arc<dyn ZonesPart> = match lie {
        Lie::Atomic => Arc::new(ClaimsAtomic(slow.clone())),
        _ => slow.clone(),
    };
    let fast: Arc<dyn DevicePart> = Arc::new(part_of(disk, BlockRange::new(ORIGIN, FAST))?);
    let fast: Arc<dyn DevicePart> = match lie {
        Lie::FastFlush => {
            Arc::new(FaultDevicePart::new(fast, rules(&["flush lie"], stack::Contract::Device)?, 6)?)
        }
        _ => fast,
    };
    let cache = zone_writecache::Options {
        format,
        max_lag: MaxLag { bytes: 64 << 10, age: Duration::from_millis(4) },
        ..Default::default()
    };
    let cache: Arc<dyn ZonesPart> = Arc::new(ZoneWriteCachePart::open(fast, claims.clone(), cache).await?);
    let log = open_on_zones(cache.clone(), &options).await?;
    if format {
        // From now on the origin alone holds a log.
        cache.message("flush").await?;
    }
    Ok(Stacked::new(Arc::new(log), vec![cache, claims, slow, zones]))
}

fn run(oracle: Oracle, survivors: Survivors, lie: Lie) -> Result<Report, Box<Violation>> {
    let seed = oracle.seed;
    let main = move || async move {
        let open = async |disk: Arc<dyn DevicePart>, opening: Opening| {
            let part = open(disk, opening == Opening::Format, survivors, lie).await?;
            Ok(Arc::new(part) as Arc<dyn DevicePart>)
        };
        oracle.run(open).await
    };
    in_simulation(seed, main)
}

fn oracle(name: &str, usual_seed: u64, change: impl FnOnce(&mut Oracle)) -> Oracle {
    let mut oracle = Oracle::new(seed(name, usual_seed));
    oracle.disk.blocks = BlockCount(ORIGIN + FAST);
    oracle.workload.operations = 200;
    change(&mut oracle);
    oracle
}

fn holds(name: &str, usual_seed: u64, survivors: Survivors, change: impl FnOnce(&mut Oracle)) {
    let mut oracle = oracle(name, usual_seed, change);
    oracle.limit(6);
    let report = run(oracle, survivors, Lie::None);
    let report = report.unwrap_or_else(|violation| panic!("{name}: {violation}"));
    println!("{name}: {report:?}");
    assert!(report.states > 1000, "{name}: only {} states", report.states);
}

#[test]
fn what_is_found_is_a_prefix() {
    holds("log on a write cache of zones", 401, Survivors::Both, |oracle| oracle.prefix = true);
}

#[test]
fn cuts_during_a_recovery() {
    holds("recoveries of a write cache of zones", 402, Survivors::Both, |oracle| {
        oracle.prefix = true;
        oracle.workload.queue_depth = 8;
        oracle.again_every = 331;
    });
}

/// The fast device is lost at any moment: the origin is in a state that an earlier power cut could have left.
#[test]
fn the_origin_alone_is_an_older_state() {
    for (number, depth) in [1, 8].into_iter().enumerate() {
        let name = format!("origin of zones alone, {depth} in flight");
        holds(&name, 410 + number as u64, Survivors::OriginAlone, |oracle| {
            oracle.older = true;
            oracle.workload.queue_depth = depth;
        });
    }
}

fn fails(name: &str, usual_seed: u64, survivors: Survivors, lie: Lie) {
    let tried = oracle(name, usual_seed, |oracle| {
        oracle.older = survivors == Survivors::OriginAlone;
        oracle.workload.queue_depth = 4;
    });
    let violation = run(tried, survivors, lie).expect_err(name);
    println!("{name}: {violation}");
}

/// Proofs that the checks above can fail: each breaks one rule below the cache or its order.
#[test]
fn an_acknowledgement_before_the_flush_is_found() {
    fails("fast device that doesn't flush", 421, Survivors::Both, Lie::FastFlush);
}

#[test]
fn steps_that_overtake_the_flush_of_the_origin_are_found() {
    fails("origin that doesn't flush", 422, Survivors::OriginAlone, Lie::OriginFlush);
}

#[test]
fn appends_of_several_flushes_in_one_batch_are_found() {
    fails("origin that claims to flush atomically", 424, Survivors::OriginAlone, Lie::Atomic);
}
