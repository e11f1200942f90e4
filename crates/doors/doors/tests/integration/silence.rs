//! Silent clients, in virtual time.

use crate::support::{Raw, export, ram, server};
use doors::nbd::protocol::{Request, command};
use runtime::net::Address;
use runtime::{Simulation, simulate};
use std::time::Duration;

/// Runs a test in a simulated world of two shards, with a server that was started.
fn in_simulation<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Address) -> Fut + Send + 'static,
) {
    println!("seed {seed}");
    let simulated = simulate(Simulation::new(seed).with_shards(2), move || async move {
        let address: Address = "127.0.0.1:10809".parse().expect("an address");
        let server = server(&address, vec![export("disk", ram(1 << 20, 512))]);
        server.start().await.expect("it starts");
        test(address).await;
        server.stop().await.expect("it stops");
    });
    simulated.expect("the simulation ends");
}

/// Returns the time until the server closes the connection, in seconds.
async fn seconds_until_closed(raw: Raw) -> u64 {
    let begin = runtime::now();
    assert!(raw.is_closed().await);
    (runtime::now() - begin).as_secs()
}

#[test]
fn a_handshake_that_stops_is_cut_off() {
    for seed in 41..44 {
        in_simulation(seed, |address| async move {
            for bytes in
                [&b""[..], b"\x00\x00", b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00\x00\x09abc"]
            {
                let raw = Raw::connect(&address).await;
                raw.send(bytes).await;
                let seconds = seconds_until_closed(raw).await;
                assert!((9..=12).contains(&seconds), "{seconds} s");
            }
        });
    }
}

#[test]
fn half_a_request_and_silence_is_cut_off() {
    for seed in 51..54 {
        in_simulation(seed, |address| async move {
            let write = Request { flags: 0, command: command::WRITE, cookie: 1, offset: 0, length: 100_000 };
            let refused = Request { offset: 1 << 40, ..write };
            let message = [&write.encode()[..], &[7; 500]].concat();
            for bytes in [&message[..1], &message[..27], &message[..28], &message, &refused.encode()] {
                let raw = Raw::open(&address, "disk", true).await;
                raw.send(bytes).await;
                let seconds = seconds_until_closed(raw).await;
                assert!((29..=32).contains(&seconds), "{seconds} s after {} bytes", bytes.len());
            }
        });
    }
}

#[test]
fn silence_between_requests_may_last() {
    in_simulation(61, |address| async move {
        let raw = Raw::open(&address, "disk", false).await;
        for _ in 0..3 {
            runtime::sleep(Duration::from_secs(5000)).await;
            assert_eq!(raw.call(command::READ, 0, 0, 3, &[]).await, Ok(vec![0; 3]));
        }
        // Slow, but not silent: a byte every twenty seconds.
        let request = Request { flags: 0, command: command::READ, cookie: 0xABCD, offset: 0, length: 3 };
        for byte in request.encode() {
            runtime::sleep(Duration::from_secs(20)).await;
            raw.send(&[byte]).await;
        }
        assert_eq!(raw.reply(command::READ, 3).await, Ok(vec![0; 3]));
    });
}
