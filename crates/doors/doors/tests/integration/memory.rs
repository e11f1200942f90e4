//! Clients that receive no replies: the bound on the server's memory for all of them, and the time until it
//! is free.

use crate::support::{Raw, SlowDisk, export, ram, run, server, socket};
use block::{Buffer, Data};
use doors::nbd::protocol::{Request, command};
use doors::nbd::server::Server;
use runtime::net::Address;
use runtime::{Simulation, simulate};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MIB: u32 = 1 << 20;

/// Sends `count` reads and receives no reply.
async fn ask(raw: &Raw, count: usize, length: u32) {
    let request = Request { flags: 0, command: command::READ, cookie: 0xABCD, offset: 0, length };
    raw.send(&request.encode().repeat(count)).await;
}

/// Waits until this many reads have ended, and some further turns for any that shouldn't have started.
async fn settled(disk: &SlowDisk, reads: u64) {
    while disk.controls.ended.load(Ordering::SeqCst) < reads {
        runtime::yield_now().await;
    }
    for _ in 0..2000 {
        runtime::yield_now().await;
    }
}

/// 24 clients request 24 MiB each: 576 MiB, of which the server reads 256 MiB, and 512 KiB for each client.
#[test]
fn all_clients_together_are_held_back() {
    let (_folder, address) = socket();
    run(2, move || async move {
        let disk = SlowDisk::new(2048, 4096);
        let config = doors::nbd::server::ServerConfig {
            address: address.clone(),
            access: Default::default(),
            exports: vec![export("disk", disk.clone())],
            max_connections: 32,
            allow_remote: false,
            tls: None,
        };
        let server = Server::new(config).expect("valid");
        server.start().await.expect("it starts");
        let mut clients = Vec::new();
        for _ in 0..24 {
            let client = Raw::open(&address, "disk", true).await;
            ask(&client, 3, 8 * MIB).await;
            clients.push(client);
        }
        settled(&disk, 32).await;
        let begun = disk.controls.begun.load(Ordering::SeqCst);
        assert!(begun <= (256 + 12) / 8, "{begun} reads of 8 MiB");
        let status = server.status();
        let held = status["buffer_bytes"].as_u64().expect("a number");
        assert!(held <= 256 << 20 && status["waiting_connections"].as_u64() > Some(0), "{status:?}");
        // Small requests of other connections are served meanwhile.
        let raw = Raw::open(&address, "disk", true).await;
        assert_eq!(raw.call(command::READ, 0, 0, 4096, &[]).await, Ok(vec![0; 4096]));
        // The remaining clients are served when they receive their replies; the others have disconnected.
        clients.truncate(8);
        let fetching = clients.into_iter().map(|client| {
            runtime::spawn(async move {
                for _ in 0..3 {
                    assert_eq!(
                        client.reply(command::READ, 8 * MIB).await.map(|data| data.len()),
                        Ok(8 << 20)
                    );
                }
            })
        });
        runtime::join_all(fetching.collect::<Vec<_>>()).await;
        // The server may detect a disconnect after the last reply to others.
        let end = runtime::now() + Duration::from_secs(60);
        while server.status()["buffer_bytes"] != 0 {
            assert!(runtime::now() < end, "{:?}", server.status());
            runtime::sleep(Duration::from_millis(1)).await;
        }
        server.stop().await.expect("it stops");
    });
}

/// Runs a test in a simulated world of two shards, with a server that was started.
fn in_simulation<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    test: impl FnOnce(Address, Arc<Server>) -> Fut + Send + 'static,
) {
    println!("seed {seed}");
    let simulated = simulate(Simulation::new(seed).with_shards(2), move || async move {
        let address: Address = "127.0.0.1:10809".parse().expect("an address");
        let server = server(&address, vec![export("disk", ram(64 << 20, 4096))]);
        server.start().await.expect("it starts");
        test(address, server.clone()).await;
        server.stop().await.expect("it stops");
    });
    simulated.expect("the simulation ends");
}

#[test]
fn a_client_that_takes_nothing_is_cut_off_and_no_other() {
    for seed in 71..74 {
        in_simulation(seed, |address, server| async move {
            let idle = Raw::open(&address, "disk", true).await;
            let slow = Raw::open(&address, "disk", true).await;
            ask(&slow, 1, MIB).await;
            let stalled = Raw::open(&address, "disk", true).await;
            ask(&stalled, 4, MIB).await;
            let begin = runtime::now();
            // Some bytes every fifty seconds, for half an hour.
            let mut head = slow.receive(28).await;
            let mut data = Vec::new();
            while runtime::now() - begin < Duration::from_secs(1800) {
                runtime::sleep(Duration::from_secs(50)).await;
                data.extend(slow.receive(100).await);
                let seconds = (runtime::now() - begin).as_secs();
                match server.connections() {
                    3 => assert!(seconds <= 150, "still there after {seconds} s"),
                    connections => assert!(connections == 2 && seconds >= 60, "{connections}, {seconds} s"),
                }
            }
            data.extend(slow.receive((MIB as usize) - data.len()).await);
            assert!(data.iter().all(|byte| *byte == 0) && head.split_off(8)[..8] == 0xABCD_u64.to_be_bytes());
            for raw in [&slow, &idle] {
                assert_eq!(raw.call(command::READ, 0, 0, 3, &[]).await, Ok(vec![0; 3]));
            }
            assert!(stalled.is_closed().await);
            let status = server.status();
            assert_eq!((&status["cut_off_connections"], &status["buffer_bytes"]), (&1.into(), &0.into()));
        });
    }
}

#[test]
fn a_client_that_waits_for_memory_gets_it_when_others_are_cut_off() {
    for stops in [false, true] {
        in_simulation(81, move |address, server| async move {
            let mut hoarders = Vec::new();
            for _ in 0..5 {
                let raw = Raw::open(&address, "disk", true).await;
                ask(&raw, 2, 32 * MIB).await;
                hoarders.push(raw);
            }
            let waiting = Raw::open(&address, "disk", true).await;
            ask(&waiting, 1, 32 * MIB).await;
            while server.status()["waiting_connections"] != 2 {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            let begin = runtime::now();
            if stops {
                server.stop().await.expect("it stops");
                assert!(waiting.is_closed().await);
                assert!((runtime::now() - begin).as_secs() <= 11, "at most what the last replies get");
            } else {
                let reply = waiting.reply(command::READ, 32 * MIB).await;
                assert_eq!(reply.map(|data| data.len()), Ok(32 << 20));
                let seconds = (runtime::now() - begin).as_secs();
                assert!((60..=130).contains(&seconds), "{seconds} s");
            }
        });
    }
}

/// Behaviour of a client that holds much of the memory.
#[derive(Debug, Clone, Copy)]
enum Holder {
    /// Receives this many bytes of its replies every twenty seconds.
    Takes(u64),
    /// Sends this many bytes of a large write every twenty seconds.
    Sends(u64),
}

/// Time between two steps of a holder, within the limit of silence.
const STEP: Duration = Duration::from_secs(20);

/// Holds memory until it is disconnected or its transfer is complete. Returns whether it was disconnected.
async fn hold(raw: Raw, holder: Holder) -> bool {
    let total = u64::from(32 * MIB);
    let mut moved = 0;
    while moved < total {
        runtime::sleep(STEP).await;
        match holder {
            Holder::Takes(step) => {
                let (mut left, end) = (step.min(total - moved), moved + step);
                while left > 0 {
                    match raw.stream.receive(Buffer::new(left as usize)).await {
                        (Ok(0) | Err(_), _) => return true,
                        (Ok(count), _) => left -= count as u64,
                    }
                }
                moved = end;
            }
            Holder::Sends(step) => {
                let bytes = vec![7; step.min(total - moved) as usize];
                if raw.stream.send(Data::copy_of(&bytes).into()).await.0.is_err() {
                    return true;
                }
                moved += step;
            }
        }
    }
    false
}

/// Starts clients that together hold all of the memory.
async fn holders(address: &Address, server: &Server, holders: &[Holder]) -> Vec<runtime::JoinHandle<bool>> {
    let mut tasks = Vec::new();
    for holder in holders {
        let raw = Raw::open(address, "disk", true).await;
        match holder {
            Holder::Takes(_) => ask(&raw, 1, 32 * MIB).await,
            Holder::Sends(_) => raw.request(command::WRITE, 0, 0, 32 * MIB, &[]).await,
        }
        tasks.push(runtime::spawn(hold(raw, *holder)));
    }
    while server.status()["buffer_bytes"].as_u64() < Some(8 * (63 << 19)) {
        runtime::sleep(Duration::from_millis(1)).await;
    }
    tasks
}

#[test]
fn clients_that_hold_memory_slowly_are_cut_off_where_another_one_waits() {
    for (seed, slow) in [(91, Holder::Takes(100)), (92, Holder::Sends(1))] {
        in_simulation(seed, move |address, server| async move {
            // The first client is fast enough, and needs 320 seconds.
            let quick = Holder::Takes(2 << 20);
            let mut tasks =
                holders(&address, &server, &[quick, slow, slow, slow, slow, slow, slow, slow]).await;
            let begin = runtime::now();
            // The client that gets its memory next is also fast enough.
            let next = Raw::open(&address, "disk", true).await;
            ask(&next, 1, 32 * MIB).await;
            while server.status()["waiting_connections"] != 1 {
                runtime::sleep(Duration::from_millis(1)).await;
            }
            tasks.push(runtime::spawn(hold(next, quick)));
            let waiting = Raw::open(&address, "disk", true).await;
            ask(&waiting, 1, 32 * MIB).await;
            let reply = runtime::timeout(Duration::from_secs(1000), waiting.reply(command::READ, 32 * MIB));
            let reply = reply.await.unwrap_or_else(|_| panic!("{slow:?}: {:?}", server.status()));
            assert_eq!(reply.map(|data| data.len()), Ok(32 << 20));
            // Slow clients have 10 seconds, and 512 for 32 MiB.
            let seconds = (runtime::now() - begin).as_secs();
            assert!((520..540).contains(&seconds), "{slow:?}: {seconds} s");
            runtime::sleep(STEP).await;
            for fast in [tasks.remove(0), tasks.pop().expect("the next one")] {
                assert!(!fast.await, "{slow:?}: a fast one was cut off");
            }
            // Once no connection waits, the other slow clients remain connected.
            let cut_off = server.status()["cut_off_connections"].as_u64();
            assert!(Some(1) <= cut_off && cut_off <= Some(7), "{slow:?}: {cut_off:?}");
            tasks.into_iter().for_each(runtime::JoinHandle::abort);
        });
    }
}

#[test]
fn clients_that_hold_memory_slowly_stay_where_nobody_waits() {
    for (seed, slow) in [(93, Holder::Takes(100)), (94, Holder::Sends(1))] {
        in_simulation(seed, move |address, server| async move {
            let tasks = holders(&address, &server, &[slow; 8]).await;
            runtime::sleep(Duration::from_secs(7200)).await;
            let status = server.status();
            assert_eq!((&status["connections"], &status["cut_off_connections"]), (&8.into(), &0.into()));
            // A request that fits into the free budget is served at once.
            let raw = Raw::open(&address, "disk", true).await;
            assert_eq!(raw.call(command::READ, 0, 0, MIB, &[]).await.map(|data| data.len()), Ok(1 << 20));
            assert_eq!(server.status()["cut_off_connections"], 0);
            tasks.into_iter().for_each(runtime::JoinHandle::abort);
        });
    }
}
