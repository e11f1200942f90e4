//! Requests and replies as bytes on the wire, simple and structured.

use crate::support::{Raw, SlowDisk, export, ram, run, server, socket};
use doors::nbd::protocol::{command, command_flag, option, option_reply};
use runtime::Random;
use std::sync::atomic::Ordering;

#[test]
fn bytes_anywhere_against_a_model() {
    for structured in [false, true] {
        let (_folder, address) = socket();
        run(1, move || async move {
            let seed = 21 + u64::from(structured);
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let size = 64 << 10;
            let server = server(&address, vec![export("disk", ram(size, 4096))]);
            server.start().await.expect("it starts");
            let raw = Raw::open(&address, "disk", structured).await;
            let mut model = vec![0_u8; size as usize];
            for round in 0..400_u64 {
                let offset = random.below(size);
                let longest = if random.chance(0.3) { size } else { 6000 };
                let length = random.below(longest.min(size - offset) + 1);
                let range = offset as usize..(offset + length) as usize;
                let length = length as u32;
                match random.below(5) {
                    0 | 1 => {
                        let payload = vec![round as u8 | 1; length as usize];
                        model[range].copy_from_slice(&payload);
                        assert_eq!(raw.call(command::WRITE, 0, offset, length, &payload).await, Ok(vec![]));
                    }
                    2 => {
                        model[range].fill(0);
                        let flags = if round % 2 == 0 { command_flag::NO_HOLE } else { command_flag::FUA };
                        assert_eq!(
                            raw.call(command::WRITE_ZEROES, flags, offset, length, &[]).await,
                            Ok(vec![])
                        );
                    }
                    _ => {
                        let found = raw.call(command::READ, 0, offset, length, &[]).await;
                        assert!(found == Ok(model[range].to_vec()), "{length} bytes at {offset} differ");
                    }
                }
            }
            let found = raw.call(command::READ, 0, 0, size as u32, &[]).await;
            assert!(found == Ok(model), "the export differs from the model");
            server.stop().await.expect("it stops");
        });
    }
}

#[test]
fn refused_requests_leave_the_session_in_step() {
    for structured in [false, true] {
        let (_folder, address) = socket();
        run(1, move || async move {
            let mut rom = export("rom", ram(1 << 20, 512));
            rom.read_only = true;
            let server = server(&address, vec![export("disk", ram(1 << 20, 512)), rom]);
            server.start().await.expect("it starts");
            let raw = Raw::open(&address, "disk", structured).await;
            let (size, mib) = (1_u64 << 20, 1_u32 << 20);
            let large = vec![1; 300_000];
            assert_eq!(raw.call(command::WRITE, 0, size - 1, 4, b"abcd").await, Err(28));
            assert_eq!(raw.call(command::WRITE, 0, size - 1, 300_000, &large).await, Err(28));
            assert_eq!(raw.call(command::WRITE, 1 << 9, 0, 300_000, &large).await, Err(22));
            assert_eq!(raw.call(command::READ, 0, 1, mib, &[]).await, Err(22));
            assert_eq!(raw.call(command::TRIM, 0, size, 1, &[]).await, Err(22));
            assert_eq!(raw.call(command::WRITE_ZEROES, 0, 1, u32::MAX, &[]).await, Err(28));
            assert_eq!(raw.call(command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 1, &[]).await, Err(22));
            assert_eq!(raw.call(command::CACHE, 0, 0, 1, &[]).await, Err(22));
            assert_eq!(raw.call(command::READ, 0, 0, 0, &[]).await, Ok(vec![]));
            assert_eq!(raw.call(command::WRITE, 0, 0, 0, &[]).await, Ok(vec![]));
            assert_eq!(raw.call(command::READ, 0, 0, 3, &[]).await, Ok(vec![0; 3]), "nothing was written");
            let status = raw.call(command::BLOCK_STATUS, 0, 0, mib, &[]).await;
            match structured {
                true => assert_eq!(status, Ok(vec![0, 0x10, 0, 0, 0, 0, 0, 3]), "one hole"),
                false => assert_eq!(status, Err(22)),
            }
            assert_eq!(
                raw.call(77, 0, 0, 1, &[]).await,
                Err(22),
                "the length of an unknown command is unknown"
            );
            assert!(raw.is_closed().await);
            let rom = Raw::open(&address, "rom", structured).await;
            assert_eq!(rom.call(command::WRITE, 0, 0, 300_000, &large).await, Err(1));
            assert_eq!(rom.call(command::TRIM, 0, 0, 512, &[]).await, Err(1));
            assert_eq!(rom.call(command::READ, 0, 0, 1, &[]).await, Ok(vec![0]));
            server.stop().await.expect("it stops");
        });
    }
}

#[test]
fn flush_and_fua_reach_the_device() {
    let (_folder, address) = socket();
    run(1, move || async move {
        let disk = SlowDisk::new(64, 4096);
        let server = server(&address, vec![export("disk", disk.clone())]);
        server.start().await.expect("it starts");
        let raw = Raw::open(&address, "disk", true).await;
        let counts = || {
            let controls = &disk.controls;
            (controls.flushes.load(Ordering::SeqCst), controls.durable_writes.load(Ordering::SeqCst))
        };
        raw.call(command::WRITE, 0, 0, 4096, &[1; 4096]).await.expect("written");
        assert_eq!(counts(), (0, 0));
        raw.call(command::WRITE, command_flag::FUA, 0, 4096, &[1; 4096]).await.expect("written");
        raw.call(command::WRITE, command_flag::FUA, 100, 10, &[2; 10]).await.expect("written");
        assert_eq!(counts(), (0, 2));
        raw.call(command::FLUSH, 0, 0, 0, &[]).await.expect("flushed");
        assert_eq!(counts(), (1, 2));
        raw.call(command::TRIM, command_flag::FUA, 0, 8192, &[]).await.expect("trimmed");
        assert_eq!(counts(), (2, 2), "a durable trim is a trim and a flush");
        raw.call(command::WRITE_ZEROES, command_flag::FUA, 4000, 8192, &[]).await.expect("zeroed");
        assert_eq!(counts(), (2, 5), "two partial blocks and the whole one between them");
        server.stop().await.expect("it stops");
    });
}

#[test]
fn several_exports_are_listed_and_served() {
    let (_folder, address) = socket();
    run(2, move || async move {
        let server = server(&address, vec![export("a", ram(1 << 20, 512)), export("b", ram(2 << 20, 512))]);
        server.start().await.expect("it starts");
        let raw = Raw::connect(&address).await;
        raw.greet().await;
        let listed = raw.option(option::LIST, &[]).await;
        assert_eq!(listed[0], (option_reply::SERVER, b"\x00\x00\x00\x01atest a".to_vec()));
        assert_eq!(listed[1], (option_reply::SERVER, b"\x00\x00\x00\x01btest b".to_vec()));
        assert_eq!(raw.option(option::ABORT, &[]).await[0].0, option_reply::ACK);
        assert!(raw.is_closed().await);
        let (a, b) = (Raw::open(&address, "", true).await, Raw::open(&address, "b", false).await);
        a.call(command::WRITE, 0, 0, 4, b"in a").await.expect("written");
        b.call(command::WRITE, 0, 1 << 20, 4, b"in b").await.expect("written");
        // A connection on another shard sees the write.
        let other = Raw::open(&address, "a", false).await;
        assert_eq!(other.call(command::READ, 0, 0, 4, &[]).await, Ok(b"in a".to_vec()));
        assert_eq!(b.call(command::READ, 0, 1 << 20, 4, &[]).await, Ok(b"in b".to_vec()));
        let status = serde_json::Value::Object(server.status());
        assert_eq!(status["exports"]["a"]["writes"], 1);
        assert_eq!(status["exports"]["a"]["read_bytes"], 4);
        assert_eq!(status["exports"]["b"]["connections"], 1);
        assert_eq!(status["connections"], 3);
        server.stop().await.expect("it stops");
    });
}
