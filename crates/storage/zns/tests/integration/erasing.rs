//! Contents of the cells after appends, resets of every guarantee, and power cuts.

use block::{Buffer, Data, EraseGuarantee, ZoneAddress, ZoneIndex, ZoneState, Zones, ZonesPart};
use conformance::images;
use runtime::file::{File, OpenOptions};
use std::path::Path;
use std::rc::Rc;
use zns::{Settings, Shape, Zns};

const ZONE: ZoneIndex = ZoneIndex(1);
const SECRET: &[u8] = b"the value that is to be gone";

fn shape(profile: &str, encrypted: bool) -> Shape {
    let size = 256 << 10;
    Shape {
        profile: profile.into(),
        zones: 4,
        zone_size: size,
        zone_capacity: size,
        encrypted,
        ..Shape::default()
    }
}

fn page() -> Data {
    let mut bytes = vec![0x11; 4096];
    bytes[100..100 + SECRET.len()].copy_from_slice(SECRET);
    Data::copy_of(&bytes)
}

async fn shows(zns: &Zns) -> bool {
    let cells = zns.raw(ZONE, 0, 256 << 10, false).await.unwrap();
    images::find(&cells, SECRET).is_some()
}

async fn is_erased(zns: &Zns) -> bool {
    zns.raw(ZONE, 0, 256 << 10, false).await.unwrap().iter().all(|byte| *byte == 0xFF)
}

async fn append(handle: &Rc<dyn Zones>) -> ZoneAddress {
    handle.append(ZONE, page().into()).await.unwrap()
}

async fn guarantees(make: impl AsyncFn(bool) -> Zns) {
    let zns = make(false).await;
    let handle = zns.open().await.unwrap();
    append(&handle).await;
    assert!(shows(&zns).await);
    // Deallocated cells keep their contents until the next opening.
    for erase in [EraseGuarantee::None, EraseGuarantee::Deallocated] {
        handle.reset(ZONE, erase).await.unwrap();
        assert!(shows(&zns).await, "{erase}");
        let (read, _) = handle.read(ZoneAddress::new(1, 0), Buffer::new(4096)).await;
        assert!(read.is_err());
        handle.open(ZONE).await.unwrap();
        assert!(is_erased(&zns).await, "{erase}");
        append(&handle).await;
    }
    handle.reset(ZONE, EraseGuarantee::Erased).await.unwrap();
    assert!(is_erased(&zns).await);
    // Cells that were only deallocated before are also erased, though the zone is empty.
    append(&handle).await;
    handle.reset(ZONE, EraseGuarantee::Deallocated).await.unwrap();
    handle.reset(ZONE, EraseGuarantee::Erased).await.unwrap();
    assert!(is_erased(&zns).await);
    assert!(handle.reset(ZONE, EraseGuarantee::Key).await.is_err());
    drop(handle);
    block::Part::close(&zns).await.unwrap();

    let zns = make(true).await;
    let handle = zns.open().await.unwrap();
    append(&handle).await;
    assert!(!shows(&zns).await && !is_erased(&zns).await);
    let (read, bytes) = handle.read(ZoneAddress::new(1, 0), Buffer::new(4096)).await;
    read.unwrap();
    assert_eq!(bytes.filled(), &*page());
    assert_eq!(zns.zones_now()[1]["key"], "present");
    let cells = zns.raw(ZONE, 0, 4096, false).await.unwrap();
    handle.reset(ZONE, EraseGuarantee::Key).await.unwrap();
    assert_eq!(zns.zones_now()[1]["key"], "none");
    assert_eq!(zns.raw(ZONE, 0, 4096, false).await.unwrap(), cells, "ciphertext is kept");
    append(&handle).await;
    assert_ne!(zns.raw(ZONE, 0, 4096, false).await.unwrap(), cells, "the next generation has another key");
    drop(handle);
    block::Part::close(&zns).await.unwrap();
}

async fn on(path: &Path, encrypted: bool) -> Zns {
    let file = File::open(path, OpenOptions { create: true, ..OpenOptions::read_write() }).await.unwrap();
    Zns::format(&file, &shape("zn540", encrypted)).await.unwrap();
    Zns::open_file(&file, Settings::default()).await.unwrap()
}

#[test]
fn each_guarantee_leaves_what_it_says_in_memory_and_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive.zns");
    let run = runtime::run(runtime::Config::default().with_shards(1), move || async move {
        guarantees(async |encrypted| {
            Zns::in_memory(&shape("zn540", encrypted), Settings::default()).unwrap()
        })
        .await;
        guarantees(async |encrypted| on(&path, encrypted).await).await;
        // The key is also erased from the file's bytes.
        let file = std::fs::read(&path).unwrap();
        assert_eq!(images::find(&file, SECRET), None);
    });
    run.unwrap();
}

/// Without protection, data that was neither flushed nor programmed is lost; with it, all data survives.
#[test]
fn a_power_cut_loses_what_was_in_an_unprotected_buffer() {
    let run = runtime::run(runtime::Config::default().with_shards(1), || async {
        for (profile, flushed, kept) in
            [("unprotected", false, false), ("unprotected", true, true), ("zn540", false, true)]
        {
            let zns = Zns::in_memory(&shape(profile, false), Settings::default()).unwrap();
            let handle = zns.open().await.unwrap();
            append(&handle).await;
            if flushed {
                handle.flush(&[ZONE]).await.unwrap();
            }
            zns.power_off().await.unwrap();
            assert!(zns.open().await.is_err());
            assert!(handle.append(ZONE, page().into()).await.is_err());
            zns.power_on().unwrap();
            assert_eq!(shows(&zns).await, kept, "{profile} {flushed}");
            let handle = zns.open().await.unwrap();
            assert_eq!(handle.report(ZONE, 1).await.unwrap()[0].state, ZoneState::Interrupted);
            assert!(handle.append(ZONE, page().into()).await.is_err());
        }
    });
    run.unwrap();
}

/// A cut during a program leaves only its first part; a cut during an erase leaves neither old nor erased
/// cells.
#[test]
fn a_power_cut_leaves_programs_and_erases_half_done() {
    let simulated = runtime::simulate(runtime::Simulation::new(1), || async {
        let settings = Settings { timed: true, ..Settings::default() };
        let zns = Zns::in_memory(&shape("unprotected", false), settings).unwrap();
        let handle = zns.open().await.unwrap();
        let unit = Data::copy_of(&vec![0; 96 << 10]);
        handle.append(ZONE, unit.clone().into()).await.unwrap();
        // The transfer of 96 KiB takes 218 us, the program 561 us.
        runtime::sleep(std::time::Duration::from_micros(500)).await;
        zns.power_off().await.unwrap();
        zns.power_on().unwrap();
        let cells = zns.raw(ZONE, 0, 96 << 10, false).await.unwrap();
        let zeros = cells.iter().take_while(|byte| **byte == 0).count();
        let erased = cells.iter().rev().take_while(|byte| **byte == 0xFF).count();
        assert!(zeros > 30_000 && erased > 30_000 && zeros + erased < 96 << 10, "{zeros} {erased}");
        assert!(zeros + erased + 64 >= 96 << 10);

        let handle = zns.open().await.unwrap();
        let zone = ZoneIndex(2);
        handle.append(zone, unit.into()).await.unwrap();
        handle.finish(zone).await.unwrap();
        let mut reset = handle.reset(zone, EraseGuarantee::Erased);
        let cut = runtime::timeout(std::time::Duration::from_millis(1), &mut reset).await;
        assert!(cut.is_err());
        zns.power_off().await.unwrap();
        zns.power_on().unwrap();
        drop(reset);
        let cells = zns.raw(zone, 0, 96 << 10, false).await.unwrap();
        let old = cells.iter().filter(|byte| **byte == 0).count();
        assert!((50_000..80_000).contains(&old), "{old} of 98304 bytes after a third of the erase");
        let report = zns.open().await.unwrap().report(zone, 1).await.unwrap()[0];
        assert_eq!(report.state, ZoneState::Interrupted);
    });
    simulated.unwrap();
}
