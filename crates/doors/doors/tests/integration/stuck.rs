//! The NBD client with a server that stops answering, for each operation, in virtual time. Every request ends
//! within the time limit, and so does the close.

use crate::support::{SlowDisk, export, limited_client, server, socket};
use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Part, Result, ZeroMode};
use runtime::net::{Address, Listener};
use runtime::{Simulation, simulate};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(2);
/// The time limit, and some time for other steps.
const LONGEST: Duration = Duration::from_millis(2200);

const OPERATIONS: [&str; 5] = ["read", "write", "flush", "discard", "write_zeroes"];

async fn carry_out(device: &dyn Device, operation: &str) -> Result<()> {
    match operation {
        "read" => {
            // Large enough to be received directly into the buffer.
            let (result, buffer) = device.read(BlockIndex(0), Buffer::new(64 << 12)).await;
            assert_eq!((buffer.len(), buffer.filled().is_empty()), (64 << 12, result.is_err()));
            result
        }
        "write" => device.write(BlockIndex(1), Buffer::copy_of(&[7; 4096]).into(), Durability::Visible).await,
        "flush" => device.flush().await,
        "discard" => device.discard(BlockRange::new(2, 1)).await,
        _ => device.write_zeroes(BlockRange::new(3, 1), ZeroMode::MayDeallocate, Durability::Durable).await,
    }
}

/// Runs a test in a simulated world with a server of this disk.
fn with_server<Fut: Future<Output = ()> + 'static>(
    disk: Arc<SlowDisk>,
    test: impl FnOnce(Address) -> Fut + Send + 'static,
) {
    let simulated = simulate(Simulation::new(1), move || async move {
        let address: Address = "127.0.0.1:10809".parse().expect("an address");
        let server = server(&address, vec![export("disk", disk)]);
        server.start().await.expect("it starts");
        test(address).await;
        server.stop().await.expect("it stops");
    });
    simulated.expect("the simulation ends");
}

#[test]
fn every_request_to_a_silent_server_ends_within_the_limit() {
    for operation in OPERATIONS {
        let disk = SlowDisk::new(256, 4096);
        let controls = disk.controls.clone();
        with_server(disk, move |address| async move {
            let part = limited_client(&address, LIMIT).await.expect("it connects");
            let device = part.open().await.expect("it opens");
            for operation in OPERATIONS {
                carry_out(&*device, operation).await.expect("the server answers");
            }
            carry_out(&*device, "write").await.expect("unflushed");
            controls.paused.store(true, Ordering::SeqCst);
            let began = runtime::now();
            // The operation alone, and then followed by all others.
            let others: Vec<_> = OPERATIONS
                .iter()
                .map(|other| {
                    let device: Rc<dyn Device> = device.clone();
                    runtime::spawn(async move { carry_out(&*device, other).await })
                })
                .collect();
            let outcome = carry_out(&*device, operation).await;
            assert!(matches!(outcome, Err(Error::TimedOut(_))), "{operation}: {outcome:?}");
            for outcome in runtime::join_all(others).await {
                assert!(matches!(outcome, Err(Error::TimedOut(_))), "{operation}: {outcome:?}");
            }
            assert!(began.elapsed() <= LONGEST, "{operation}: {:?}", began.elapsed());
            // The connection is closed: later requests fail at once.
            assert!(carry_out(&*device, operation).await.is_err() && began.elapsed() <= LONGEST);
            drop(device);
            let began = runtime::now();
            let closed = part.close().await.expect_err("unflushed writes are lost");
            assert!(closed.detail().contains("may not be durable"), "{closed}");
            assert!(began.elapsed() <= LONGEST, "{operation}: the close took {:?}", began.elapsed());
            controls.paused.store(false, Ordering::SeqCst);
        });
    }
}

#[test]
fn a_slow_server_with_a_long_queue_is_not_silent() {
    let disk = SlowDisk::new(256, 4096);
    *disk.controls.turns.lock().expect("not poisoned") = Some((LIMIT * 3 / 4, runtime::Instant::default()));
    with_server(disk, |address| async move {
        let part = limited_client(&address, LIMIT).await.expect("it connects");
        let device = part.open().await.expect("it opens");
        let began = runtime::now();
        let reads = (0..40).map(|_| {
            let device = device.clone();
            runtime::spawn(async move { device.read(BlockIndex(9), Buffer::new(4096)).await.0 })
        });
        for outcome in runtime::join_all(reads.collect::<Vec<_>>()).await {
            outcome.expect("it is answered in its turn");
        }
        assert!(began.elapsed() >= LIMIT * 30, "{:?}", began.elapsed());
    });
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_within_the_limit() {
    let (_folder, address) = socket();
    crate::support::run(1, move || async move {
        let listener = Listener::bind(&address).expect("it listens");
        let limit = Duration::from_millis(150);
        let connected = runtime::timeout(Duration::from_secs(5), limited_client(&address, limit)).await;
        let error = connected.expect("it ends by its own limit").err().expect("no answer");
        assert!(matches!(error, Error::TimedOut(_)), "{error}");
        drop(listener);
    });
}

/// Over a real socket: the send and the receive in the kernel are cancelled.
#[test]
fn a_real_connection_to_a_silent_server_ends() {
    let (_folder, address) = socket();
    crate::support::run(1, move || async move {
        let disk = SlowDisk::new(8192, 4096);
        let controls = disk.controls.clone();
        let server = server(&address, vec![export("disk", disk)]);
        server.start().await.expect("it starts");
        let part = limited_client(&address, Duration::from_millis(300)).await.expect("it connects");
        let device = part.open().await.expect("it opens");
        carry_out(&*device, "read").await.expect("the server answers");
        controls.paused.store(true, Ordering::SeqCst);
        let writes = (0..32).map(|number| {
            let device = device.clone();
            runtime::spawn(async move {
                let payload = Buffer::zeroed(1 << 20).into();
                device.write(BlockIndex(number * 256), payload, Durability::Visible).await
            })
        });
        let writes = runtime::join_all(writes.collect::<Vec<_>>());
        let outcomes = runtime::timeout(Duration::from_secs(20), writes).await.expect("they end");
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::TimedOut(_)))), "{outcomes:?}");
        drop(device);
        controls.paused.store(false, Ordering::SeqCst);
        server.stop().await.expect("it stops");
    });
}
