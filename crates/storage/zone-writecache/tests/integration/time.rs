//! Steps of the wall clock, an idle day, many shards, and a fast device that doesn't answer.

use crate::bucket::{How, empty_disk, open_cache_with, world};
use crate::promises::{KIB, filled, number, read, simulated};
use crate::{fast_device, open, options, ram_zones, with_faults};
use block::{Part, ZoneAddress, ZoneIndex, ZonesPart};
use runtime::{ShardIndex, Simulation};
use std::sync::Arc;
use std::time::Duration;
use zone_writecache::{Ack, MaxLag, Options, ZoneWriteCachePart};

const DAY: i64 = 24 * 3600;

async fn lag_seconds(part: &dyn Part) -> f64 {
    part.status().await["lag_seconds"].as_f64().unwrap()
}

/// A step of the wall clock changes neither the reported age nor the time of an upload.
#[test]
fn a_step_of_the_clock_changes_no_lag() {
    for step in [DAY, -DAY] {
        simulated(move || async move {
            let (fast, zones) = (fast_device(), ram_zones());
            let part = open(&fast, zones.clone(), true).await.unwrap();
            let handle = part.open().await.unwrap();
            part.message("flush").await.unwrap();
            handle.append(ZoneIndex(0), filled(1, KIB)).await.unwrap();
            runtime::step_simulated_wall_clock(step);
            runtime::sleep(Duration::from_millis(500)).await;
            let lag = lag_seconds(&*part).await;
            assert!((0.4..1.0).contains(&lag), "{lag} s after a step of {step} s");
            assert_eq!(number(&*part, "lag_bytes").await, KIB as u64);
            handle.append(ZoneIndex(0), filled(2, KIB)).await.unwrap();
            runtime::sleep(Duration::from_millis(1500)).await;
            assert_eq!(number(&*part, "lag_bytes").await, 0, "after a fifth of the age without appends");
        });
    }
}

/// The age of operations of an earlier epoch, after a step of the wall clock.
#[test]
fn the_age_of_operations_of_an_earlier_epoch_is_never_negative() {
    for (step, least, most) in [(-DAY, 0.0, 1.0), (0, 100.0, 101.0), (DAY, DAY as f64, DAY as f64 + 200.0)] {
        simulated(move || async move {
            let (fast, zones) = (fast_device(), ram_zones());
            let age = Duration::from_secs(3600);
            let options = Options { max_lag: MaxLag { bytes: 1 << 20, age }, ..options(true) };
            let part = ZoneWriteCachePart::open(fast.clone(), zones.clone(), options).await.unwrap();
            let handle = part.open().await.unwrap();
            part.message("flush").await.unwrap();
            handle.append(ZoneIndex(0), filled(1, KIB)).await.unwrap();
            handle.flush(&[]).await.unwrap();
            drop(handle);
            runtime::sleep(Duration::from_secs(100)).await;
            part.close().await.unwrap();
            runtime::step_simulated_wall_clock(step);
            let options = Options { format: false, ..options };
            let part = ZoneWriteCachePart::open(fast, zones, options).await.unwrap();
            let lag = lag_seconds(&part).await;
            assert!((least..=most).contains(&lag), "{lag} s after a step of {step} s");
            runtime::step_simulated_wall_clock(DAY);
            assert!((least..=most).contains(&lag_seconds(&part).await));
            runtime::sleep(Duration::from_secs(2000)).await;
            assert_eq!(lag_seconds(&part).await, 0.0, "it was uploaded");
        });
    }
}

#[test]
fn an_idle_day_has_no_requests_and_the_next_write_works() {
    for ack in [Ack::Fast, Ack::Origin] {
        world(1, move |bucket| async move {
            let cache = open_cache_with(Arc::new(empty_disk()), How::Format, ack).await.unwrap();
            let handle = cache.open().await.unwrap();
            handle.append(ZoneIndex(0), filled(1, KIB)).await.unwrap();
            handle.flush(&[ZoneIndex(0)]).await.unwrap();
            // The garbage of the format is deleted after the grace.
            runtime::sleep(Duration::from_secs(300)).await;
            let before = bucket.asked.borrow().len();
            let records = number(&*cache, "records").await;
            runtime::sleep(Duration::from_secs(DAY as u64)).await;
            assert_eq!(bucket.asked.borrow().len(), before, "requests of a day");
            assert_eq!(number(&*cache, "records").await, records);
            let status = cache.status().await;
            assert_eq!((&status["state"], &status["lag_bytes"]), (&"writing".into(), &0.into()));
            assert_eq!((&status["lag_seconds"], &status["awaited_seconds"]), (&0.0.into(), &0.0.into()));
            handle.append(ZoneIndex(0), filled(2, KIB)).await.unwrap();
            handle.flush(&[ZoneIndex(0)]).await.unwrap();
            cache.message("flush").await.unwrap();
            drop(handle);
            cache.close().await.unwrap();
        });
    }
}

/// Clients on all shards, whose calls go to the home shard.
#[test]
fn clients_of_many_shards_share_the_log_and_the_uploads() {
    for (shards, ack) in
        [(1, Ack::Origin), (7, Ack::Fast), (7, Ack::Origin), (32, Ack::Fast), (32, Ack::Origin)]
    {
        let main = move || async move {
            let (fast, zones) = (fast_device(), ram_zones());
            let options = Options { ack, ..options(true) };
            let part = ZoneWriteCachePart::open(fast.clone(), zones.clone(), options).await.unwrap();
            let part = Arc::new(part);
            let clients: Vec<_> = (0..shards as u32)
                .map(|shard| {
                    let part = part.clone();
                    let work = move || async move {
                        let handle = part.open().await.unwrap();
                        let mut places = Vec::new();
                        for round in 0..6 {
                            let zone = ZoneIndex((shard + round) % 12);
                            let at = handle.append(zone, filled(shard as u8 + 1, KIB)).await.unwrap();
                            handle.flush(&[zone]).await.unwrap();
                            places.push(at);
                        }
                        for at in &places {
                            assert_eq!(read(&handle, *at, KIB).await.unwrap(), [shard as u8 + 1; KIB]);
                        }
                        places
                    };
                    runtime::spawn_on(ShardIndex(shard as usize), work)
                })
                .collect();
            let mut all = Vec::new();
            for client in clients {
                all.push(client.await.unwrap());
            }
            let lag = number(&*part, "lag_bytes").await;
            assert!(ack == Ack::Fast || lag == 0, "{lag} bytes");
            part.message("flush").await.unwrap();
            part.close().await.unwrap();
            // Read from the origin alone.
            let handle = zones.open().await.unwrap();
            for (shard, places) in all.iter().enumerate() {
                for at in places {
                    assert_eq!(read(&handle, *at, KIB).await.unwrap(), [shard as u8 + 1; KIB]);
                }
            }
        };
        runtime::simulate(Simulation::new(5).with_shards(shards), main).unwrap();
    }
}

/// After the time limit changes fail, and no call waits without end.
#[test]
fn a_fast_device_that_does_not_answer_ends_changes_within_its_time_limit() {
    for ack in [Ack::Fast, Ack::Origin] {
        simulated(move || async move {
            let zones = ram_zones();
            let fast = with_faults(fast_device(), ["write delay=1h after=40"], 1);
            let options = Options { ack, timeout: Duration::from_secs(20), ..options(true) };
            let part = ZoneWriteCachePart::open(fast, zones.clone(), options).await.unwrap();
            let handle = part.open().await.unwrap();
            let begun = runtime::now();
            let error = loop {
                let write = async {
                    handle.append(ZoneIndex(0), filled(1, KIB)).await?;
                    handle.flush(&[ZoneIndex(0)]).await
                };
                match runtime::timeout(Duration::from_secs(100), write)
                    .await
                    .expect("a call within its time limit")
                {
                    Ok(()) => {}
                    Err(error) => break error,
                }
            };
            println!("{error} after {:?}", begun.elapsed());
            assert!(error.detail().contains("the fast device failed"), "{error}");
            assert_eq!(part.status().await["state"], "the fast device failed");
            let again = handle.append(ZoneIndex(1), filled(1, KIB)).await;
            assert!(again.is_err());
            let reading = read(&handle, ZoneAddress::new(0, 0), KIB);
            let _ = runtime::timeout(Duration::from_secs(100), reading)
                .await
                .expect("reads have the limit as well");
            drop(handle);
            let closed = runtime::timeout(Duration::from_secs(200), part.close()).await;
            assert!(closed.expect("a close ends").is_err(), "its records aren't known to be durable");
        });
    }
}
