//! The crate's server and client against a model of a disk.

use crate::support::{SlowDisk, client, export, ram, run, server, socket};
use block::{
    BlockIndex, BlockRange, Buffer, Data, Device, DevicePart, Durability, ExtentState, Payload, ZeroMode,
};
use doors::nbd::client::{ClientConfig, NbdClient, USUAL_TIMEOUT};
use runtime::net::Address;
use runtime::{Random, ShardIndex};
use std::rc::Rc;

const BLOCK: usize = 512;

/// Compares random requests, several at a time in ranges that don't overlap, with a model.
async fn check_against_model(device: Rc<dyn Device>, blocks: u64, seed: u64) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut model = vec![0_u8; blocks as usize * BLOCK];
    for round in 0..60_u64 {
        // One piece of the device per request.
        let pieces = 1 + random.below(24);
        let share = blocks / pieces;
        let mut calls = Vec::new();
        for piece in 0..pieces {
            let start = piece * share + random.below(share / 2 + 1);
            let count = 1 + random.below((piece + 1) * share - start);
            let range = start as usize * BLOCK..(start + count) as usize * BLOCK;
            let (device, kind) = (device.clone(), random.below(8));
            let byte = (round * 31 + piece) as u8;
            match kind {
                0..=2 => model[range.clone()].fill(byte),
                3 | 4 => model[range.clone()].fill(0),
                _ => {}
            }
            let expected = model[range.clone()].to_vec();
            let durability = if random.chance(0.2) { Durability::Durable } else { Durability::Visible };
            calls.push(async move {
                let blocks = BlockRange::new(start, count);
                match kind {
                    0..=2 => {
                        let bytes = Data::copy_of(&expected);
                        let cut = bytes.len() / BLOCK / 2 * BLOCK;
                        let payload: Payload =
                            [bytes.slice(0..cut), bytes.slice(cut..bytes.len())].into_iter().collect();
                        device.write(BlockIndex(start), payload, durability).await.expect("written");
                    }
                    3 => device
                        .write_zeroes(blocks, ZeroMode::KeepAllocated, durability)
                        .await
                        .expect("zeroed"),
                    4 => device.discard(blocks).await.expect("discarded"),
                    5 => device.flush().await.expect("flushed"),
                    _ => {
                        let (result, buffer) =
                            device.read(BlockIndex(start), Buffer::new(expected.len())).await;
                        result.expect("read");
                        assert!(buffer.filled() == expected, "blocks {start}..{} differ", start + count);
                    }
                }
            });
        }
        runtime::join_all(calls).await;
    }
    let (result, buffer) = device.read(BlockIndex(0), Buffer::new(model.len())).await;
    result.expect("read");
    assert!(buffer.filled() == model, "the device differs from the model");
}

#[test]
fn every_request_over_unix_and_tcp() {
    let (_folder, unix) = socket();
    let tcp: Address = "127.0.0.1:0".parse().expect("an address");
    for (address, seed) in [(unix, 11), (tcp, 12)] {
        run(2, move || async move {
            let server = server(&address, vec![export("disk", ram(8 << 20, 512))]);
            server.start().await.expect("it starts");
            let part = client(&server.address(), "disk", Some(512)).await;
            let device = part.open().await.expect("it opens");
            check_against_model(device, (8 << 20) / BLOCK as u64, seed).await;
            server.stop().await.expect("it stops");
        });
    }
}

#[test]
fn a_disk_that_answers_out_of_order_and_blocks_larger_than_requests() {
    let (_folder, address) = socket();
    run(1, move || async move {
        // Requests are multiples of 512 bytes, blocks 4096: most requests aren't whole blocks.
        let server = server(&address, vec![export("disk", SlowDisk::new(256, 4096))]);
        server.start().await.expect("it starts");
        let part = client(&address, "", Some(512)).await;
        check_against_model(part.open().await.expect("it opens"), 2048, 13).await;
        server.stop().await.expect("it stops");
    });
}

#[test]
fn requests_larger_than_any_payload_and_more_than_fit_in_flight() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let bytes = 80 << 20;
        let server = server(&address, vec![export("disk", ram(bytes as u64, 4096))]);
        server.start().await.expect("it starts");
        let part = client(&address, "disk", None).await;
        assert_eq!(part.geometry().block_size.bytes(), 4096);
        let device = part.open().await.expect("it opens");
        let mut pattern = vec![0_u8; bytes];
        pattern
            .chunks_mut(8)
            .enumerate()
            .for_each(|(index, chunk)| chunk.copy_from_slice(&index.to_le_bytes()));
        device
            .write(BlockIndex(0), Data::copy_of(&pattern).into(), Durability::Durable)
            .await
            .expect("written");
        let (result, buffer) = device.read(BlockIndex(0), Buffer::new(bytes)).await;
        result.expect("read");
        assert!(buffer.filled() == pattern, "80 MiB differ");
        let many = (0..1000_u64).map(|number| {
            let (device, block) = (device.clone(), number * 19 % 20_000);
            async move {
                let (result, buffer) = device.read(BlockIndex(block), Buffer::new(4096)).await;
                result.expect("read");
                assert_eq!(buffer.filled()[..8], (block * 512).to_le_bytes());
            }
        });
        runtime::join_all(many).await;
        server.stop().await.expect("it stops");
    });
}

#[test]
fn extents_travel() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let server = server(&address, vec![export("disk", ram(1 << 20, 4096))]);
        server.start().await.expect("it starts");
        let part = client(&address, "disk", None).await;
        let device = part.open().await.expect("it opens");
        let payload = Payload::from(Buffer::copy_of(&[7; 65536]));
        device.write(BlockIndex(32), payload, Durability::Visible).await.expect("written");
        let found = device.extents(device.geometry().whole()).await.expect("described");
        let found: Vec<_> =
            found.iter().map(|extent| (extent.range.start.0, extent.range.count.0, extent.state)).collect();
        assert_eq!(
            found,
            [(0, 32, ExtentState::Hole), (32, 16, ExtentState::Data), (48, 208, ExtentState::Hole)]
        );
        server.stop().await.expect("it stops");
    });
}

#[test]
fn errors_keep_their_meaning_and_a_failed_read_shows_nothing() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let disk = SlowDisk::new(64, 4096);
        disk.controls.broken.lock().expect("not poisoned").insert(5);
        let mut read_only = export("rom", ram(1 << 20, 4096));
        read_only.read_only = true;
        let server = server(&address, vec![export("disk", disk.clone()), read_only]);
        server.start().await.expect("it starts");
        let part = client(&address, "disk", None).await;
        let device = part.open().await.expect("it opens");
        let (result, buffer) = device.read(BlockIndex(4), Buffer::new(16384)).await;
        assert_eq!(result.expect_err("block 5 is broken").errno(), libc::EIO);
        assert!(buffer.filled().is_empty() && buffer.len() == 16384);
        device.read(BlockIndex(6), Buffer::new(4096)).await.0.expect("the connection lives");
        let rom = client(&address, "rom", None).await;
        assert!(rom.geometry().read_only);
        let missing = ClientConfig {
            address: address.clone(),
            export: "none".into(),
            connections: 1,
            block_size: None,
            timeout: USUAL_TIMEOUT,
            tls: None,
        };
        let error = NbdClient::connect(missing).await.map(drop).expect_err("there is no such export");
        assert_eq!(error.errno(), libc::ENOENT, "{error}");
        // After the server's stop, requests in flight and later ones fail.
        server.stop().await.expect("it stops");
        let (result, buffer) = device.read(BlockIndex(0), Buffer::new(4096)).await;
        assert!(result.is_err() && buffer.filled().is_empty() && buffer.len() == 4096);
        assert!(device.flush().await.is_err());
    });
}

/// A writer of whole blocks on one shard and server, and writers of parts of the same blocks on both shards
/// and another server: no acknowledged write is lost.
#[test]
fn writes_of_parts_lose_no_writes_of_whole_blocks() {
    let ((_folder, address), (_other_folder, other_address)) = (socket(), socket());
    run(2, move || async move {
        let disk = SlowDisk::new(4, 4096);
        let server = server(&address, vec![export("disk", disk.clone())]);
        server.start().await.expect("it starts");
        let other_server = crate::support::server(&other_address, vec![export("same", disk)]);
        other_server.start().await.expect("it starts");
        let writers = (0..2).map(|shard| {
            let address = address.clone();
            runtime::spawn_on(ShardIndex(shard), move || async move {
                // Sectors 0 to 5 of a block belong to writers of parts, three on each shard.
                let part = client(&address, "disk", Some(512)).await;
                let device = part.open().await.expect("it opens");
                let tasks = (0..3_u64).map(|task| {
                    let (device, sector) = (device.clone(), shard as u64 * 3 + task);
                    async move {
                        for round in 1..=150_u64 {
                            let block = round % 4;
                            let at = BlockIndex(block * 8 + sector);
                            let payload = Payload::from(Buffer::copy_of(&[round as u8; 512]));
                            device.write(at, payload, Durability::Visible).await.expect("written");
                            let (result, buffer) = device.read(at, Buffer::new(512)).await;
                            result.expect("read");
                            let found = buffer.filled()[0];
                            assert!(
                                found == round as u8 || found >= 200,
                                "sector {sector}: {found} for {round}"
                            );
                        }
                    }
                });
                runtime::join_all(tasks).await;
            })
        });
        let writers: Vec<_> = writers.collect();
        let part = client(&other_address, "same", Some(4096)).await;
        let device = part.open().await.expect("it opens");
        for round in 0..400_u64 {
            let (block, byte) = (BlockIndex(round % 4), 200 + (round % 50) as u8);
            device
                .write(block, Buffer::copy_of(&[byte; 4096]).into(), Durability::Visible)
                .await
                .expect("written");
            let (result, buffer) = device.read(block, Buffer::new(4096)).await;
            result.expect("read");
            // Only this task changes the last two sectors; writers of parts write them back unchanged.
            assert_eq!(buffer.filled()[3072..], [byte; 1024], "round {round}: the whole write was lost");
        }
        for writer in writers {
            writer.await.expect("the shard lives");
        }
        other_server.stop().await.expect("it stops");
        server.stop().await.expect("it stops");
    });
}
