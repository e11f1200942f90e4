//! Cost of a call from another thread over one on a shard: the time of a `get` whose value is in memory, in
//! turn on a shard, from a plain thread, and from tokio.
//!
//! ```text
//! cargo run --profile dist -p siltstone-kv --example kv-call-cost [ROUNDS]
//! ```
//!
//! Each round makes 2000 calls of each kind, one at a time. Prints the minimum and the median of each kind in
//! nanoseconds, over all calls, and the medians' differences to that on a shard.

use block::Result;
use runtime::embedded::{Embedded, Pending, start};
use runtime::{Config, ShardIndex, now};
use siltstone_kv::embedded::{Options, Store};
use std::path::Path;
use std::sync::Arc;

const CALLS: usize = 2000;
const KEY: &str = "key";

/// Store for the calls on a shard, with the same contents as the one for calls from outside.
async fn open_on_shard() -> Result<siltstone_kv::Store> {
    let disk = Arc::new(disks::ram::RamPart::new(256 << 20, block::BlockSize::new(4096)?)?);
    let options = zones::on_device::Options { format: true, zone_size: Some(4 << 20), ..Default::default() };
    let settings = siltstone_kv::Settings { table_bytes: 1 << 20, ..Default::default() };
    let zones = Arc::new(zones::OnDevice::open(disk, options).await?);
    let store = siltstone_kv::Store::format(zones, &settings).await?;
    store.put(KEY.as_bytes(), &[7; 100]).await?;
    Ok(store)
}

/// Times of calls on a shard, in nanoseconds.
fn times_on_shard(embedded: &Embedded<siltstone_kv::Store>) -> Pending<Vec<u64>> {
    embedded.call(ShardIndex(0), |store: Arc<siltstone_kv::Store>| async move {
        let mut times = Vec::with_capacity(CALLS);
        for _ in 0..CALLS {
            let begun = now();
            store.get(KEY.as_bytes()).await?;
            times.push((now() - begun).as_nanos() as u64);
        }
        Ok(times)
    })
}

fn times_of_thread(store: &Store) -> Result<Vec<u64>> {
    let time = |_| {
        let begun = now();
        store.get(KEY).blocking()?;
        Ok((now() - begun).as_nanos() as u64)
    };
    (0..CALLS).map(time).collect()
}

async fn times_of_task(store: Store) -> Result<Vec<u64>> {
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begun = now();
        store.get(KEY).await?;
        times.push((now() - begun).as_nanos() as u64);
    }
    Ok(times)
}

fn measure(path: &Path, rounds: usize) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let store = Store::open(path, Options { size: 256 << 20, ..Options::default() }).blocking()?;
    store.insert(KEY, [7; 100]).blocking()?;
    let close = |store: Arc<siltstone_kv::Store>| async move { store.close().await };
    let shard = start(Config::default(), open_on_shard, close).blocking()?;
    let executor = tokio::runtime::Builder::new_current_thread().build()?;
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        times[0].extend(times_on_shard(&shard).blocking()?);
        times[1].extend(times_of_thread(&store)?);
        times[2].extend(executor.block_on(times_of_task(store.clone()))?);
    }
    let mut on_shard = 0;
    for (kind, times) in ["on a shard", "blocking()", "tokio"].into_iter().zip(&mut times) {
        times.sort_unstable();
        let median = times[times.len() / 2];
        if kind == "on a shard" {
            on_shard = median;
        }
        let cost = median as i64 - on_shard as i64;
        println!("{kind:12} minimum {:6} ns   median {median:6} ns   cost {cost:6} ns", times[0]);
    }
    store.close().blocking()?;
    Ok(shard.close().blocking()?)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let rounds = std::env::args().nth(1).map_or(Ok(10), |rounds| rounds.parse())?;
    measure(&folder.path().join("data.kv"), rounds)
}
