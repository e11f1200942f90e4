//! The simulated runtime: runs depend only on the seed, and a power cut loses only data that wasn't durable.

use block::{Buffer, Data, Durability};
use runtime::file::{File, OpenOptions};
use runtime::net::{Address, Listener, Stream};
use runtime::{ShardIndex, Simulated, SimulatedFaults, Simulation};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A load with files, sockets, shards, timers and randomness.
async fn everything() -> u64 {
    let address: Address = "unix:socket".parse().expect("an address");
    let listener = Listener::bind(&address).expect("it listens");
    let clients = (0..4).map(|index| {
        let address = address.clone();
        runtime::spawn_on(ShardIndex(index % runtime::shard_count()), move || async move {
            let stream = Stream::connect(&address).await.expect("it connects");
            runtime::sleep(Duration::from_micros(runtime::random_u64() % 100)).await;
            stream.send(Data::copy_of(&[index as u8; 1000]).into()).await.0.expect("it sends");
        })
    });
    let clients: Vec<_> = clients.collect();
    let options = OpenOptions { create: true, ..OpenOptions::read_write() };
    let file = File::open(Path::new("log"), options).await.expect("it opens");
    let mut sum = 0_u64;
    for order in 0..4_u64 {
        let stream = listener.accept().await.expect("a connection");
        let (result, buffer) = stream.receive_exact(Buffer::new(1000)).await;
        result.expect("all of it");
        sum = sum * 7 + u64::from(buffer.filled()[0]);
        file.write_at(order * 1000, buffer.into(), Durability::Visible).await.expect("it writes");
    }
    for client in clients {
        client.await.expect("it ends");
    }
    file.sync_all().await.expect("it syncs");
    sum
}

fn simulated(seed: u64) -> Simulated<u64> {
    println!("seed {seed}");
    let faults = SimulatedFaults { short: 0.2, slow: 0.1, ..SimulatedFaults::default() };
    let simulation = Simulation::new(seed).with_shards(3).with_faults(faults);
    runtime::simulate(simulation, everything).expect("it ends")
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_one_a_different_one() {
    let (first, again, other) = (simulated(1), simulated(1), simulated(2));
    assert_eq!(first.trace, again.trace);
    assert_eq!(first.elapsed, again.elapsed);
    assert_eq!(first.files, again.files);
    assert_ne!(first.trace.hash, other.trace.hash);
    assert!(first.trace.events > 50 && !first.trace.lines.is_empty());
    let orders: std::collections::BTreeSet<u64> = (0..20).map(|seed| simulated(seed).value).collect();
    assert!(orders.len() > 5, "20 seeds gave only {} orders", orders.len());
}

#[test]
fn virtual_time_costs_nothing() {
    let begin = runtime::now();
    let day = Duration::from_secs(24 * 3600);
    let simulated = runtime::simulate(Simulation::new(3), move || runtime::sleep(day)).expect("it ends");
    assert!(simulated.elapsed >= day);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_standstill_is_an_error_that_names_the_seed() {
    let stuck = runtime::simulate(Simulation::new(77), std::future::pending::<()>);
    assert!(stuck.expect_err("it never ends").to_string().contains("seed 77"));
}

#[test]
fn a_power_cut_keeps_what_was_synced_and_may_tear_the_rest() {
    let mut torn = 0;
    let mut lost = 0;
    for seed in 0..200 {
        let simulated = runtime::simulate(Simulation::new(seed), || async {
            let options = OpenOptions { create: true, ..OpenOptions::read_write() };
            let file = File::open(Path::new("/d/data"), options).await.expect("it opens");
            let write = |offset: u64, byte: u8| {
                file.write_at(offset, Buffer::copy_of(&[byte; 2048]).into(), Durability::Visible)
            };
            write(0, 1).await.expect("it writes");
            file.sync_all().await.expect("it syncs");
            runtime::file::sync_directory(Path::new("/d")).await.expect("it syncs");
            write(0, 2).await.expect("it writes");
            let durable = Buffer::copy_of(&[3; 512]).into();
            file.write_at(2048, durable, Durability::Durable).await.expect("it writes");
            runtime::power_cut()
        });
        let files = simulated.expect("it ends").value;
        let (path, contents) = files.first().expect("the file is there");
        assert_eq!(path, &PathBuf::from("/d/data"), "seed {seed}");
        assert_eq!(contents[2048..], [3; 512], "seed {seed}: a durable write is there");
        let sectors: Vec<u8> = contents[..2048].chunks(512).map(|sector| sector[0]).collect();
        assert!(sectors.iter().all(|byte| [1, 2].contains(byte)), "seed {seed}: {sectors:?}");
        assert!(contents[..2048].chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        torn += u32::from(sectors.contains(&1) && sectors.contains(&2));
        lost += u32::from(!sectors.contains(&2));
    }
    assert!(torn > 10 && lost > 10, "torn {torn}, lost {lost} of 200");
}

/// An older cached write of a sector must not be written back over a newer durable one.
#[test]
fn a_durable_write_is_never_undone_by_an_older_one() {
    let mut kept = 0;
    for seed in 0..200 {
        let simulated = runtime::simulate(Simulation::new(seed), || async {
            let options = OpenOptions { create: true, ..OpenOptions::read_write() };
            let file = File::open(Path::new("/d/data"), options).await.expect("it opens");
            file.write_at(0, Buffer::copy_of(&[1; 2048]).into(), Durability::Visible)
                .await
                .expect("it writes");
            file.write_at(512, Buffer::copy_of(&[2; 512]).into(), Durability::Durable)
                .await
                .expect("it writes");
            file.write_at(1024, Buffer::copy_of(&[3; 512]).into(), Durability::Durable)
                .await
                .expect("it writes");
            file.write_at(1024, Buffer::copy_of(&[4; 512]).into(), Durability::Visible)
                .await
                .expect("it writes");
            runtime::file::sync_directory(Path::new("/d")).await.expect("it syncs");
            runtime::power_cut()
        });
        let files = simulated.expect("it ends").value;
        let sectors: Vec<u8> = files[0].1.chunks(512).map(|sector| sector[0]).collect();
        assert_eq!(sectors[1], 2, "seed {seed}: {sectors:?}");
        assert!([3, 4].contains(&sectors[2]), "seed {seed}: {sectors:?}");
        kept += u32::from(sectors[0] == 1);
    }
    assert!((50..150).contains(&kept), "the older write was kept {kept} times of 200");
}

#[test]
fn a_write_that_fails_is_torn_between_sectors() {
    let faults = SimulatedFaults { write_error: 1.0, ..SimulatedFaults::default() };
    let files = vec![(PathBuf::from("data"), vec![7; 4096])];
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let simulation = Simulation::new(seed).with_faults(faults).with_files(files.clone());
        let simulated = runtime::simulate(simulation, || async {
            let file = File::open(Path::new("data"), OpenOptions::read_write()).await.expect("it opens");
            let written = file.write_at(700, Buffer::copy_of(&[8; 2000]).into(), Durability::Visible).await;
            assert!(written.is_err());
        });
        let contents = simulated.expect("it ends").files.remove(0).1;
        let arrived = contents.iter().filter(|byte| **byte == 8).count();
        assert!(
            contents[700..700 + arrived].iter().all(|byte| *byte == 8),
            "seed {seed}: not the first bytes"
        );
        seen.insert(700 + arrived);
    }
    assert!(seen.into_iter().eq([700, 1024, 1536, 2048, 2560, 2700]));
}

#[test]
fn faults_come_with_the_seed() {
    let faults = SimulatedFaults { read_error: 0.5, ..SimulatedFaults::default() };
    let files = vec![(PathBuf::from("data"), vec![7; 4096])];
    let run = |seed| {
        let simulation = Simulation::new(seed).with_faults(faults).with_files(files.clone());
        let simulated = runtime::simulate(simulation, || async {
            let file = File::open(Path::new("data"), OpenOptions::default()).await.expect("it opens");
            let mut outcomes = Vec::new();
            for _ in 0..32 {
                let (result, buffer) = file.read_exact_at(0, Buffer::new(4096)).await;
                assert_eq!(buffer.filled().len(), if result.is_ok() { 4096 } else { 0 });
                outcomes.push(result.is_ok());
            }
            outcomes
        });
        simulated.expect("it ends").value
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    assert!(run(5).contains(&true) && run(5).contains(&false));
}
