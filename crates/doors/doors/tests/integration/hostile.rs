//! Clients that break the protocol lose only their own connection.

use crate::support::{Raw, SlowDisk, export, ram, run, server, socket};
use doors::nbd::protocol::{Request, command};
use runtime::Random;
use runtime::net::{Address, Shutdown};
use std::sync::atomic::Ordering;

fn write_request(length: u32) -> [u8; 28] {
    Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, length }.encode()
}

async fn is_healthy(address: &Address) {
    let raw = Raw::open(address, "disk", true).await;
    raw.call(command::WRITE, 0, 512, 4, b"well").await.expect("written");
    assert_eq!(raw.call(command::READ, 0, 512, 4, &[]).await, Ok(b"well".to_vec()));
    raw.request(command::DISC, 0, 0, 0, &[]).await;
    assert!(raw.is_closed().await);
}

#[test]
fn each_one_is_cut_off_and_the_next_one_served() {
    let (_folder, address) = socket();
    run(2, move || async move {
        let server = server(&address, vec![export("disk", ram(1 << 20, 512))]);
        server.start().await.expect("it starts");
        let bystander = Raw::open(&address, "disk", false).await;
        let handshakes: &[&[u8]] = &[
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x03NOTANOPTxxxxxxxx",
            b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\xff\xff\xff\xff",
            b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x04none",
            b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x01\x00\x00",
        ];
        for bytes in handshakes {
            let raw = Raw::connect(&address).await;
            raw.send(bytes).await;
            assert!(raw.is_closed().await, "{bytes:?}");
            is_healthy(&address).await;
        }
        let transmissions: &[&[u8]] = &[
            b"GET / HTTP/1.1\r\n\r\n",
            &[0x25, 0x60, 0x95, 0x14],
            &[0; 28],
            &write_request(u32::MAX),
            &write_request((32 << 20) + 1),
        ];
        for bytes in transmissions {
            let raw = Raw::open(&address, "disk", true).await;
            raw.send(bytes).await;
            assert!(raw.is_closed().await, "{bytes:?}");
            is_healthy(&address).await;
        }
        // Half a message and a disconnect, at every place.
        for cut in [0, 3, 27, 28, 30] {
            let raw = Raw::open(&address, "disk", true).await;
            let message = [&write_request(100_000)[..], &[7; 1000]].concat();
            raw.send(&message[..cut]).await;
            raw.stream.shutdown(Shutdown::Write).await.expect("shut down");
            assert!(raw.is_closed().await, "cut at {cut}");
            is_healthy(&address).await;
        }
        assert_eq!(bystander.call(command::READ, 0, 0, 1, &[]).await, Ok(vec![0]));
        server.stop().await.expect("it stops");
        let status = serde_json::Value::Object(server.status());
        assert_eq!(status["cut_off_connections"], handshakes.len() + transmissions.len());
        assert_eq!(status["connections"], 0);
    });
}

#[test]
fn noise_in_place_of_requests() {
    let (_folder, address) = socket();
    run(2, move || async move {
        let server = server(&address, vec![export("disk", ram(1 << 20, 512))]);
        server.start().await.expect("it starts");
        println!("seed 31");
        let mut random = Random::new(31);
        for _ in 0..60 {
            let raw = Raw::open(&address, "disk", random.chance(0.5)).await;
            for _ in 0..random.below(20) {
                let request = Request {
                    flags: random.below(32) as u16,
                    command: random.below(9) as u16,
                    cookie: random.next_u64(),
                    offset: random.below(2 << 20),
                    length: random.below(70_000) as u32,
                };
                let mut bytes = vec![0; random.below(3000) as usize];
                random.fill(&mut bytes);
                let message = [&request.encode()[..], &bytes].concat();
                if raw.stream.send(block::Data::copy_of(&message).into()).await.0.is_err() {
                    break;
                }
            }
            let _ = raw.stream.shutdown(Shutdown::Write).await;
            assert!(raw.is_closed().await);
        }
        is_healthy(&address).await;
        server.stop().await.expect("it stops");
    });
}

#[test]
fn requests_of_a_client_that_hangs_up_run_to_their_end() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let disk = SlowDisk::new(256, 4096);
        let controls = disk.controls.clone();
        let server = server(&address, vec![export("disk", disk)]);
        server.start().await.expect("it starts");
        let raw = Raw::open(&address, "disk", true).await;
        controls.paused.store(true, Ordering::SeqCst);
        for number in 0..20_u64 {
            raw.request(command::WRITE, 0, number * 4096, 4096, &[9; 4096]).await;
        }
        while controls.begun.load(Ordering::SeqCst) < 20 {
            runtime::yield_now().await;
        }
        drop(raw);
        controls.paused.store(false, Ordering::SeqCst);
        while server.connections() > 0 {
            runtime::yield_now().await;
        }
        assert_eq!(controls.ended.load(Ordering::SeqCst), 20);
        let raw = Raw::open(&address, "disk", true).await;
        assert_eq!(raw.call(command::READ, 0, 19 * 4096, 4096, &[]).await, Ok(vec![9; 4096]));
        server.stop().await.expect("it stops");
    });
}

/// A client that requests much and receives nothing has only a bounded number of reads started.
#[test]
fn a_client_that_reads_no_replies_is_held_back() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let disk = SlowDisk::new(8192, 4096);
        let controls = disk.controls.clone();
        let server = server(&address, vec![export("disk", disk)]);
        server.start().await.expect("it starts");
        let raw = Raw::open(&address, "disk", true).await;
        let request = Request { flags: 0, command: command::READ, cookie: 1, offset: 0, length: 8 << 20 };
        let message = request.encode().repeat(100);
        raw.send(&message).await;
        while controls.ended.load(Ordering::SeqCst) < 8 {
            runtime::yield_now().await;
        }
        for _ in 0..10_000 {
            runtime::yield_now().await;
        }
        // 64 MiB are eight reads. Part of them may be in the socket's buffer, which frees no budget before
        // the whole send is done.
        assert_eq!(controls.begun.load(Ordering::SeqCst), 8);
        is_healthy(&address).await;
        drop(raw);
        server.stop().await.expect("it stops");
    });
}
