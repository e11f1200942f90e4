//! Counters of two shards on zones without space: if one shard finds space or none, the other one learns of
//! it.

use block::{
    BlockSize, Call, DevicePart, Error, Part, Payload, Result, ZoneAddress, ZoneGeometry, ZoneIndex, Zones,
    ZonesPart,
};
use disks::ram::RamPart;
use siltstone_tests::engine::{Counters, Options};
use siltstone_tests::oracle::in_simulation;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const OPTIONS: Options = Options {
    counters: 800,
    shards: 2,
    checkpoint_blocks: 1 << 20,
    erase: false,
    check_sums: false,
    prepare_zones: false,
    broken: None,
};
/// Longer than any retry of the kit.
const LONG: Duration = Duration::from_secs(60);

/// Zones whose first handle, that of the home, fails a number of appends with `NoSpace`.
struct Thin {
    inner: Arc<dyn ZonesPart>,
    handles: AtomicU64,
    /// Number of the home's next appends that fail.
    failing: Arc<AtomicU64>,
}

struct Handle {
    inner: Rc<dyn Zones>,
    is_home: bool,
    failing: Arc<AtomicU64>,
}

impl Part for Thin {
    fn kind(&self) -> &'static str {
        "thin"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.inner.close()
    }
}

impl ZonesPart for Thin {
    fn geometry(&self) -> &ZoneGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Zones>>> {
        Call::new(async move {
            let is_home = self.handles.fetch_add(1, Ordering::Relaxed) == 0;
            let (inner, failing) = (self.inner.open().await?, self.failing.clone());
            Ok(Rc::new(Handle { inner, is_home, failing }) as Rc<dyn Zones>)
        })
    }
}

impl Handle {
    /// Whether an append must fail.
    fn fails(&self) -> bool {
        let less = |failing: u64| failing.checked_sub(1);
        self.is_home && self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl Zones for Handle {
    conformance::pass_on!(inner: geometry, append_at, open, close, read, flush, finish, reset, reserve, report);

    fn append(&self, zone: ZoneIndex, payload: Payload) -> Call<'_, Result<ZoneAddress>> {
        if !self.fails() {
            return self.inner.append(zone, payload);
        }
        Call::new(async move {
            // Meanwhile the other shard writes its next records.
            runtime::sleep(Duration::from_millis(20)).await;
            Err(Error::no_space(format!("zone {zone}: the host is full")))
        })
    }
}

/// Sets counters 0 and 1, which are on the two shards. Also returns the number of appends that fail, for
/// changes.
async fn begin() -> Result<(Arc<dyn DevicePart>, Counters, Arc<AtomicU64>)> {
    let disk: Arc<dyn DevicePart> = Arc::new(RamPart::new(4 << 20, BlockSize::default())?);
    let on_device =
        zones::on_device::Options { format: true, zone_size: Some(64 << 10), ..Default::default() };
    let inner: Arc<dyn ZonesPart> = Arc::new(zones::OnDevice::open(disk.clone(), on_device).await?);
    let failing = Arc::new(AtomicU64::new(0));
    let thin = Thin { inner, handles: AtomicU64::new(0), failing: failing.clone() };
    let counters = Counters::format(Arc::new(thin), OPTIONS).await?;
    counters.set(0, 1).await?;
    counters.set(1, 1).await?;
    Ok((disk, counters, failing))
}

fn is_refused(outcome: Result<()>) -> bool {
    matches!(outcome, Err(Error::NoSpace(_)))
}

/// Sets a counter, and tries again until the log has found out that there is space.
async fn set_in_the_end(counters: &Counters, counter: u32, value: u64) -> Result<()> {
    for _ in 0..500 {
        match counters.set(counter, value).await {
            Err(Error::NoSpace(_)) => runtime::sleep(Duration::from_millis(10)).await,
            outcome => return outcome,
        }
    }
    panic!("counter {counter}: there is space, and the log doesn't find it");
}

#[test]
fn no_shard_waits_for_a_record_for_which_another_one_has_no_space() {
    let main = || async {
        let (disk, counters, failing) = begin().await?;
        failing.store(u64::MAX, Ordering::Relaxed);
        // The second counter is written at once, and waits for the record of both shards.
        let set = async |delay: u64| {
            runtime::sleep(Duration::from_millis(delay)).await;
            let set = async {
                match delay {
                    0 => counters.set_both([(0, 2), (1, 2)]).await,
                    _ => counters.set(1, 3).await,
                }
            };
            runtime::timeout(LONG, set).await
        };
        for outcome in runtime::join_all([set(0), set(10)]).await {
            assert!(is_refused(outcome.expect("a request waits without end")));
        }
        let later = runtime::timeout(LONG, counters.set(3, 3)).await;
        assert!(is_refused(later.expect("the other shard takes what can't commit")));
        failing.store(0, Ordering::Relaxed);
        // All free zones are available again.
        runtime::sleep(Duration::from_secs(2)).await;
        set_in_the_end(&counters, 3, 4).await?;
        set_in_the_end(&counters, 0, 4).await?;
        counters.set_both([(2, 5), (5, 5)]).await?;
        let expected = [(0, 4), (1, 3), (2, 5), (3, 4), (5, 5)];
        for (counter, value) in expected {
            assert_eq!(counters.get(counter).await?, value, "counter {counter}");
        }
        counters.flush().await?;
        counters.close().await?;
        let zones = zones::OnDevice::open(disk, zones::on_device::Options::default()).await?;
        let counters = Counters::open(Arc::new(zones), OPTIONS).await?;
        for (counter, value) in expected {
            assert_eq!(counters.get(counter).await?, value, "counter {counter}, opened again");
        }
        counters.close().await
    };
    in_simulation(1, main).unwrap();
}

#[test]
fn a_shard_finds_new_space_after_another_one_found_none() {
    let main = || async {
        let (_, counters, failing) = begin().await?;
        // The failed record is written without its data, and finds space; the shard sets nothing from here
        // on.
        failing.store(1, Ordering::Relaxed);
        assert!(is_refused(counters.set(0, 2).await));
        runtime::sleep(Duration::from_secs(2)).await;
        // More blocks than the backed zones hold, with nothing to clean.
        let sets = (1..OPTIONS.counters).step_by(2).map(|counter| set_in_the_end(&counters, counter, 7));
        runtime::join_all(sets).await.into_iter().collect::<Result<()>>()?;
        assert_eq!((counters.get(0).await?, counters.get(799).await?), (1, 7));
        counters.close().await
    };
    in_simulation(1, main).unwrap();
}
