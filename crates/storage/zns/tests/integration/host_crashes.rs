//! A drive on a file whose host crashes: flushed and finished data survives, and resets keep their
//! generation.

use block::{Buffer, Data, EraseGuarantee, ZoneAddress, ZoneIndex, ZoneState, ZonesPart};
use runtime::file::{File, OpenOptions};
use std::path::{Path, PathBuf};
use zns::{Settings, Shape, Zns};

const PATH: &str = "/drive.zns";
const LENGTH: usize = 20_480;

fn bytes(seed: u64, zone: u32) -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    runtime::Random::new(seed * 100 + u64::from(zone)).fill(&mut bytes);
    bytes
}

async fn open() -> (File, Zns) {
    let options = OpenOptions { create: true, ..OpenOptions::read_write() };
    let file = File::open(Path::new(PATH), options).await.unwrap();
    if file.length().unwrap() == 0 {
        let size = 256 << 10;
        let shape =
            Shape { zones: 8, zone_size: size, zone_capacity: size, encrypted: true, ..Shape::default() };
        Zns::format(&file, &shape).await.unwrap();
        runtime::file::sync_directory(Path::new("/")).await.unwrap();
    }
    let zns = Zns::open_file(&file, Settings::default()).await.unwrap();
    (file, zns)
}

/// Zones 0 and 1 are finished, 2 and 3 flushed, 4 reset after a finish, 5 appended to without a flush, 6 and
/// 7 empty.
async fn use_zones(seed: u64) -> (Vec<(PathBuf, Vec<u8>)>, Vec<u64>) {
    let (_file, zns) = open().await;
    let handle = zns.open().await.unwrap();
    for zone in 0..6 {
        handle.append(ZoneIndex(zone), Data::copy_of(&bytes(seed, zone)).into()).await.unwrap();
    }
    for zone in [0, 1, 4] {
        handle.finish(ZoneIndex(zone)).await.unwrap();
    }
    handle.reset(ZoneIndex(4), EraseGuarantee::Key).await.unwrap();
    handle.flush(&[ZoneIndex(2), ZoneIndex(3)]).await.unwrap();
    let reports = handle.report(ZoneIndex(0), 8).await.unwrap();
    (runtime::power_cut(), reports.iter().map(|report| report.generation).collect())
}

async fn check(seed: u64, generations: Vec<u64>) {
    let (_file, zns) = open().await;
    let handle = zns.open().await.unwrap();
    let reports = handle.report(ZoneIndex(0), 8).await.unwrap();
    for (report, generation) in reports.iter().zip(generations) {
        let expected = match report.zone.0 {
            0 | 1 => ZoneState::Full,
            2 | 3 | 5 => ZoneState::Interrupted,
            _ => ZoneState::Empty,
        };
        assert_eq!((report.state, report.generation), (expected, generation), "{report:?}");
    }
    for zone in 0..4 {
        let (read, found) = handle.read(ZoneAddress::new(zone, 0), Buffer::new(LENGTH)).await;
        read.unwrap();
        assert!(found.filled() == bytes(seed, zone), "zone {zone}");
    }
    for zone in 0..8 {
        handle.reset(ZoneIndex(zone), EraseGuarantee::Erased).await.unwrap();
    }
}

#[test]
fn what_was_durable_survives_a_crash_of_the_host() {
    for seed in 0..20 {
        let first = runtime::simulate(runtime::Simulation::new(seed), move || use_zones(seed)).unwrap();
        let (files, generations) = first.value;
        assert!(files.iter().any(|(path, _)| path == Path::new(PATH)));
        let second = runtime::Simulation::new(seed + 1000).with_files(files);
        runtime::simulate(second, move || check(seed, generations)).unwrap();
    }
}
