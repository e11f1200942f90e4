//! A full log refuses writes before it acknowledges them, whatever uses the space, and can be emptied.

use crate::life::{Volume, run};
use block::{DevicePart, Error, Part, Result};
use log::core::Acknowledge;
use log::kind::Options;

fn small(map: &str, acknowledge: Acknowledge) -> Options {
    Options {
        map: map.to_owned(),
        size: Some(24 * 4096),
        zone_size: Some(32 << 10),
        checkpoint_after: 64 << 10,
        acknowledge,
        ..Options::default()
    }
}

/// Whether the request succeeded; any error other than ENOSPC fails the test.
fn is_done(outcome: Result<()>) -> bool {
    match outcome {
        Ok(()) => true,
        Err(Error::NoSpace(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

async fn told(volume: &Volume, message: &str) -> bool {
    is_done(volume.part.message(message).await.map(|_| ()))
}

/// Creates snapshots with different data until there is no space for another; the map of each also takes
/// space.
async fn fill_with_snapshots(volume: &Volume, begin: u64) -> Vec<String> {
    let mut names = Vec::new();
    for version in begin.. {
        for block in 0..volume.blocks() {
            if block % 6 == version % 6 {
                is_done(volume.try_write(block, 1, version).await);
            }
        }
        let name = format!("s{version}");
        if !told(volume, &format!("snapshot create {name}")).await {
            break;
        }
        names.push(name);
    }
    // The remaining space is used as well.
    let mut block = 0;
    while is_done(volume.try_write(block, 1, begin + 1000).await) && block + 1 < volume.blocks() {
        block += 1;
    }
    names
}

#[test]
fn snapshots_fill_a_log_and_their_deletion_empties_it() {
    run(async || {
        for (map, acknowledge) in [
            ("radix", Acknowledge::Log),
            ("radix", Acknowledge::Buffer),
            ("hash", Acknowledge::Buffer),
            ("btree", Acknowledge::Log),
        ] {
            println!("{map}, {acknowledge:?}");
            let disk = crate::life::disk(2);
            let options = small(map, acknowledge);
            let mut volume = Volume::make(&disk, &options).await;
            for round in 1..4 {
                let names = fill_with_snapshots(&volume, round * 10_000).await;
                println!("{} snapshots", names.len());
                assert!(names.len() > 2, "space for {} snapshots", names.len());
                volume.flush().await;
                volume.discard(0, volume.blocks()).await;
                volume.flush().await;
                assert_eq!(volume.all().await, vec![0; volume.blocks() as usize]);
                if round == 2 {
                    // A full log is as full after it is opened again.
                    volume.close().await;
                    volume = Volume::open(&disk, &options).await;
                }
                for name in names {
                    assert!(told(&volume, &format!("snapshot delete {name}")).await, "{name} is deleted");
                }
                volume.write(0, volume.blocks(), round).await;
                volume.flush().await;
                assert_eq!(volume.all().await, vec![round; volume.blocks() as usize]);
            }
            volume.close().await;
        }
    });
}

#[test]
fn clones_fill_a_log() {
    run(async || {
        let disk = crate::life::disk(2);
        let options = small("radix", Acknowledge::Buffer);
        let volume = Volume::make(&disk, &options).await;
        volume.write(0, volume.blocks(), 1).await;
        assert!(told(&volume, "snapshot create base").await);
        let mut clones = Vec::new();
        while told(&volume, &format!("snapshot clone base c{}", clones.len())).await {
            let part = volume.part.version(&format!("c{}", clones.len())).await.unwrap();
            let device = part.open().await.unwrap();
            let data = crate::life::stamped(0, 2, 2);
            is_done(device.write(block::BlockIndex(0), data.into(), block::Durability::Visible).await);
            drop(device);
            part.close().await.unwrap();
            clones.push(part);
        }
        println!("{} clones", clones.len());
        assert!(clones.len() > 1);
        volume.discard(0, volume.blocks()).await;
        for (number, part) in clones.into_iter().enumerate() {
            drop(part);
            assert!(told(&volume, &format!("snapshot delete c{number}")).await);
        }
        assert!(told(&volume, "snapshot delete base").await);
        volume.write(0, volume.blocks(), 3).await;
        volume.flush().await;
        assert_eq!(volume.all().await, vec![3; volume.blocks() as usize]);
        volume.close().await;
    });
}

/// Distant blocks of a thin volume: each takes a page of the map.
#[test]
fn a_thin_volume_is_filled_with_blocks_far_apart() {
    run(async || {
        let disk = crate::life::disk(2);
        let options = Options { size: Some(64 << 30), ..small("radix", Acknowledge::Buffer) };
        let options = Options { disk: Some(2 << 20), ..options };
        let mut volume = Volume::make(&disk, &options).await;
        for round in 1..4 {
            let mut written = Vec::new();
            for number in 0.. {
                let block = (number * 4096 + number * 7919 % 4096) % volume.blocks();
                if !is_done(volume.try_write(block, 1, round).await) {
                    break;
                }
                written.push(block);
                if number % 5 == 4 {
                    volume.flush().await;
                }
            }
            println!("{} blocks", written.len());
            assert!(written.len() > 10, "space for {} blocks", written.len());
            volume.flush().await;
            if round == 2 {
                volume.close().await;
                volume = Volume::open(&disk, &options).await;
            }
            for block in written {
                assert_eq!(volume.versions(block, 1).await, [round]);
                volume.discard(block, 1).await;
            }
            volume.flush().await;
            volume.discard(0, volume.blocks()).await;
        }
        volume.close().await;
    });
}

/// Overwrites of a full log need no capacity beyond the cleaner's reserve: each succeeds, also after a close
/// and after a crash.
#[test]
fn a_full_log_takes_overwrites_and_what_is_discarded_can_be_written_again() {
    run(async || {
        for acknowledge in [Acknowledge::Log, Acknowledge::Buffer] {
            let disk = crate::life::disk(2);
            let options =
                Options { size: Some(64 << 20), disk: Some(2 << 20), ..small("radix", acknowledge) };
            let mut volume = Volume::make(&disk, &options).await;
            let mut count = 0;
            while is_done(volume.try_write(count, 1, 1).await) {
                count += 1;
            }
            assert!(count > 100, "{count} blocks");
            for round in 2..8u64 {
                for number in 0..count {
                    volume.write(number * 7919 % count, 1, round).await;
                }
                volume.flush().await;
                match round {
                    3 => {
                        volume.close().await;
                        volume = Volume::open(&disk, &options).await;
                    }
                    5 => {
                        // The volume isn't closed: its cleaner may still write to the other disk.
                        let after_crash = crate::life::copy_of(&crate::life::raw(&disk).await).await;
                        volume = Volume::open(&after_crash, &options).await;
                    }
                    _ => {}
                }
                assert_eq!(volume.versions(0, count).await, vec![round; count as usize]);
            }
            // As many blocks as were discarded can be written elsewhere.
            volume.discard(0, count / 2).await;
            for number in 0..count / 2 {
                volume.write(count + number, 1, 9).await;
            }
            volume.flush().await;
            volume.close().await;
        }
    });
}
