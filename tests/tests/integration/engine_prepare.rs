//! Counters whose zones are opened ahead have as much space as others, and run out of it no earlier.

use block::{BlockSize, DevicePart, Error, Result};
use disks::ram::RamPart;
use logkit::count;
use siltstone_tests::engine::{Counters, Options};
use siltstone_tests::oracle::in_simulation;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sets further counters until no zone is free, then sets each of them several times. Returns their number.
async fn fill(shards: u32, prepare_zones: bool, max_open: u32) -> Result<u64> {
    let disk: Arc<dyn DevicePart> = Arc::new(RamPart::new(2 << 20, BlockSize::default())?);
    let on_device =
        zones::on_device::Options { format: true, zone_size: Some(48 << 10), max_open, ..Default::default() };
    let zones = Arc::new(zones::OnDevice::open(disk, on_device).await?);
    let options = Options {
        counters: 500,
        shards,
        checkpoint_blocks: 32,
        erase: false,
        check_sums: true,
        prepare_zones,
        broken: None,
    };
    let counters = Arc::new(Counters::format(zones, options).await?);
    let set = AtomicU64::new(0);
    for counter in 0..500 {
        match counters.set(counter, 1).await {
            Ok(()) => count(&set, 1),
            Err(Error::NoSpace(_)) => break,
            Err(error) => return Err(error),
        }
    }
    let set = set.load(Ordering::Relaxed);
    // Leaves a little space that the cleaner can gain.
    let most = set * 3 / 4;
    let clients = (0..4).map(|client| {
        let counters = counters.clone();
        runtime::spawn(async move {
            for value in 0..200_u64 {
                let counter = (value * 37 + client * 11) % most;
                match counters.set(counter as u32, value).await {
                    Ok(()) | Err(Error::NoSpace(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    });
    runtime::join_all(clients.collect::<Vec<_>>()).await.into_iter().collect::<Result<()>>()?;
    for counter in 0..set {
        counters.get(counter as u32).await?;
    }
    counters.check_counts().await?;
    counters.close().await?;
    Ok(set)
}

/// The number of counters that fit depends on which lane gets the last zone, so sums over seeds are compared.
#[test]
fn zones_that_are_opened_ahead_take_no_space_from_others() {
    const SEEDS: u64 = 4;
    for (shards, max_open) in [(1, 0), (1, 11), (2, 0), (2, 18)] {
        let [without, with] = [false, true].map(|prepare| {
            let one = |seed| in_simulation(seed, move || fill(shards, prepare, max_open));
            (1..=SEEDS).map(one).sum::<Result<u64>>().expect("they are set, or refused") / SEEDS
        });
        println!("{shards} shards, max_open={max_open}: {without} counters, with zones opened ahead {with}");
        // A zone fits 8 or 9 of them.
        assert!(without > 100 && with + 6 >= without, "{shards} shards: {without} and {with}");
    }
}
