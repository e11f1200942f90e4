//! Failing blocks, bit errors, and files that aren't drives.

use block::{Buffer, Data, EraseGuarantee, Error, Part, ZoneAddress, ZoneIndex, ZoneState, ZonesPart};
use runtime::file::{File, OpenOptions};
use zns::{Faults, Settings, Shape, Zns};

fn shape() -> Shape {
    let size = 256 << 10;
    Shape { zones: 8, zone_size: size, zone_capacity: size, seed: Some(3), ..Shape::default() }
}

fn payload(bytes: usize) -> block::Payload {
    Data::copy_of(&vec![0x5A; bytes]).into()
}

fn run<F: Future<Output = ()> + 'static>(work: impl FnOnce() -> F + Send + 'static) {
    runtime::run(runtime::Config::default().with_shards(1), work).unwrap();
}

#[test]
fn a_failed_program_makes_a_zone_read_only_and_a_failed_erase_offline() {
    run(|| async {
        let faults = Faults { program: 1.0, ..Faults::default() };
        let zns = Zns::in_memory(&shape(), Settings { faults, ..Settings::default() }).unwrap();
        let handle = zns.open().await.unwrap();
        let zone = ZoneIndex(0);
        handle.append(zone, payload(4096)).await.unwrap();
        let failed = handle.append(zone, payload(96 << 10)).await.unwrap_err();
        assert!(matches!(&failed, Error::Io(text) if text.contains("failed to program")), "{failed}");
        assert_eq!(handle.report(zone, 1).await.unwrap()[0].state, ZoneState::ReadOnly);
        let refused = handle.append(zone, payload(4096)).await.unwrap_err();
        assert!(matches!(&refused, Error::ReadOnly(text) if text.contains("BAh")), "{refused}");
        let (read, bytes) = handle.read(ZoneAddress::new(0, 0), Buffer::new(4096)).await;
        read.unwrap();
        assert_eq!(bytes.filled(), [0x5A; 4096]);
        assert!(matches!(handle.reset(zone, EraseGuarantee::None).await, Err(Error::Invalid(_))));
        zns.message("offline 0").await.unwrap();
        let (read, _) = handle.read(ZoneAddress::new(0, 0), Buffer::new(4096)).await;
        assert!(matches!(read, Err(Error::Invalid(text)) if text.contains("BBh")));

        let faults = Faults { erase: 1.0, ..Faults::default() };
        let zns = Zns::in_memory(&shape(), Settings { faults, ..Settings::default() }).unwrap();
        let handle = zns.open().await.unwrap();
        handle.append(zone, payload(4096)).await.unwrap();
        assert!(matches!(handle.reset(zone, EraseGuarantee::Erased).await, Err(Error::Io(_))));
        assert_eq!(handle.report(zone, 1).await.unwrap()[0].state, ZoneState::Offline);
        assert_eq!(zns.status_now()["offline"], 1);
    });
}

/// Blocks fail after their endurance: zones end one by one, and each reports a reason.
#[test]
fn worn_zones_end_read_only_or_offline() {
    run(|| async {
        let zns = Zns::in_memory(
            &Shape { profile: "confzns".into(), endurance: Some(20), ..shape() },
            Settings::default(),
        )
        .unwrap();
        let handle = zns.open().await.unwrap();
        let mut lives = Vec::new();
        for zone in (0..8).map(ZoneIndex) {
            for life in 0.. {
                let appended = handle.append(zone, payload(256 << 10)).await;
                let reset = match appended {
                    Ok(_) => handle.reset(zone, EraseGuarantee::Erased).await.map(drop),
                    Err(error) => Err(error),
                };
                if let Err(error) = reset {
                    assert!(matches!(&error, Error::Io(_)), "{error}");
                    lives.push(life);
                    break;
                }
            }
        }
        assert!(lives.iter().all(|life| (20..60).contains(life)), "{lives:?}");
        let status = zns.status_now();
        let (read_only, offline) =
            (status["read_only"].as_u64().unwrap(), status["offline"].as_u64().unwrap());
        assert_eq!(read_only + offline, 8);
        assert!(read_only > 0 && offline > 0, "{read_only} read-only, {offline} offline");
        assert!(zns.zones_now()[0]["trouble"].as_str().unwrap().contains("failed to"));
    });
}

#[test]
fn bit_errors_are_corrected_until_the_charge_has_leaked() {
    run(|| async {
        let faults = Faults { bits: true, ..Faults::default() };
        let zns = Zns::in_memory(&shape(), Settings { faults, ..Settings::default() }).unwrap();
        let handle = zns.open().await.unwrap();
        handle.append(ZoneIndex(0), payload(256 << 10)).await.unwrap();
        let read = async |length: usize| handle.read(ZoneAddress::new(0, 0), Buffer::new(length)).await;
        let (outcome, bytes) = read(256 << 10).await;
        outcome.unwrap();
        assert!(bytes.filled().iter().all(|byte| *byte == 0x5A));
        assert!(zns.status_now()["corrected_bits"].as_u64().unwrap() > 1000);
        let raw = zns.raw(ZoneIndex(0), 0, 256 << 10, true).await.unwrap();
        let flipped: u32 = raw.iter().map(|byte| (byte ^ 0x5A).count_ones()).sum();
        let rate = f64::from(flipped) / f64::from(256 << 13);
        assert!((0.5e-3..4e-3).contains(&rate), "{rate}");
        // Ten years without power.
        zns.message("age 87600").await.unwrap();
        let (outcome, bytes) = read(64 << 10).await;
        assert!(matches!(&outcome, Err(Error::Io(text)) if text.contains("81h")), "{outcome:?}");
        assert!(bytes.filled().is_empty());
        assert_eq!(zns.status_now()["uncorrectable_reads"], 1);
    });
}

#[test]
fn other_files_and_damaged_zones_are_refused_or_offline() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive.zns");
    run(move || async move {
        let file =
            File::open(&path, OpenOptions { create: true, ..OpenOptions::read_write() }).await.unwrap();
        let data = Data::copy_of(&[0; 8192]);
        file.write_at(0, data.into(), block::Durability::Visible).await.unwrap();
        let open = async || Zns::open_file(&file, Settings::default()).await;
        let error = open().await.unwrap_err();
        assert!(
            matches!(&error, Error::NotFound(text) if text.contains("siltstone format --force")),
            "{error}"
        );
        Zns::format(&file, &shape()).await.unwrap();
        let zns = open().await.unwrap();
        zns.open().await.unwrap().append(ZoneIndex(2), payload(8192)).await.unwrap();
        zns.close().await.unwrap();
        let uuid = zns.superblock().uuid;
        file.write_at((2 + 3) * 4096 + 40, payload(1), block::Durability::Visible).await.unwrap();
        // One copy of the superblock suffices, but the stop is then treated as unclean.
        file.write_at(100, payload(1), block::Durability::Visible).await.unwrap();
        let zns = open().await.unwrap();
        assert_eq!(zns.superblock().uuid, uuid);
        let report = zns.open().await.unwrap().report(ZoneIndex(2), 2).await.unwrap();
        assert_eq!(report[0].state, ZoneState::Interrupted);
        assert_eq!(report[1].state, ZoneState::Offline);
        assert!(zns.zones_now()[3]["trouble"].as_str().unwrap().contains("checksum"));
        file.set_len(100_000).await.unwrap();
        assert!(matches!(open().await, Err(Error::Corrupt(_))));
    });
}
