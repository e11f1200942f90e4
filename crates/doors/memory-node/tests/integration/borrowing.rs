//! Memory is borrowed, used and released.

use crate::support::{
    MIB, Machine, borrow, config, discard, node, number, open, pattern, read, simulated, status_when, write,
};
use block::{DevicePart, Part};
use memory_node::MemoryNodePart;
use runtime::net::Address;
use std::sync::Arc;
use std::time::Duration;

/// Conformance of the whole: server and leaf in one runtime, on a unix socket, with the memory of this
/// machine.
#[test]
fn over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("node.sock"));
    let runtime = runtime::Config::default().with_shards(2);
    let test = move || async move {
        let mut config = config(&address);
        (config.reserve, config.pressure_limit) = (16 * MIB, 100.0);
        let node = memory_node::MemoryNode::new(config, memory_node::measure).unwrap();
        node.start().await.unwrap();
        let part = borrow(&address, "swap0").await;
        assert_eq!(part.geometry().bytes(), 48 * MIB, "the quota");
        let device = open(&part).await;
        let data = pattern(40 * MIB, 1);
        write(&*device, 0, data.clone()).await.unwrap();
        assert!(read(&*device, 0, 40 * MIB).await == data[..], "40 MiB differ");
        let status = status_when(&part, "lent", |status| number(status, "lent_bytes") == 40 * MIB).await;
        assert_eq!(number(&status, "node_lent_bytes"), 40 * MIB);
        assert_eq!(number(&status, "capacity_bytes"), 64 * MIB);
        assert_eq!((number(&status, "free_bytes"), number(&status, "reclaim_bytes")), (24 * MIB, 0));
        discard(&*device, 8 * MIB, 32 * MIB).await;
        assert!(read(&*device, 8 * MIB, 32 * MIB).await.iter().all(|byte| *byte == 0));
        assert!(read(&*device, 0, 8 * MIB).await == data[..8 << 20], "the rest is kept");
        status_when(&part, "released", |status| number(status, "lent_bytes") == 8 * MIB).await;
        drop(device);
        part.close().await.unwrap();
        node.stop().await.unwrap();
    };
    runtime::run(runtime, test).unwrap();
}

#[test]
fn the_leaf_keeps_the_contract_of_devices() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("node.sock"));
    let main = move || async move {
        let node = node(config(&address), &Machine::new(512 * MIB)).await;
        let number = std::cell::Cell::new(0);
        let make = async || {
            // The suite needs a zeroed device each time, and the node accepts at most three borrowers.
            number.set(number.get() + 1);
            let part =
                MemoryNodePart::connect(address.clone(), format!("part{}", number.get() % 3), 1, None).await;
            let part = part.unwrap();
            let device = part.open().await.unwrap();
            device.discard(part.geometry().whole()).await.unwrap();
            Arc::new(part) as Arc<dyn DevicePart>
        };
        let outcome = conformance::device::run(make, Default::default()).await;
        node.stop().await.unwrap();
        outcome
    };
    let runtime = runtime::Config::default().with_shards(2);
    runtime::run(runtime, main).unwrap().unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn names_have_memory_of_their_own_and_keep_it_without_a_client() {
    simulated(1, |address| async move {
        let node = node(config(&address), &Machine::new(512 * MIB)).await;
        let (one, other) = (borrow(&address, "one").await, borrow(&address, "other").await);
        let (first, second) = (open(&one).await, open(&other).await);
        write(&*first, 0, pattern(MIB, 1)).await.unwrap();
        write(&*second, 0, pattern(MIB, 2)).await.unwrap();
        assert!(read(&*first, 0, MIB).await == pattern(MIB, 1)[..]);
        // A second client with the name, on the other shard of the server, has the same memory.
        let again = borrow(&address, "one").await;
        assert!(read(&*open(&again).await, 0, MIB).await == pattern(MIB, 1)[..]);
        drop((first, one, again));
        runtime::sleep(Duration::from_secs(500)).await;
        let again = borrow(&address, "one").await;
        assert!(read(&*open(&again).await, 0, MIB).await == pattern(MIB, 1)[..], "after 500 s");
        node.stop().await.unwrap();
    });
}

#[test]
fn a_borrower_that_is_gone_too_long_loses_its_memory() {
    simulated(2, |address| async move {
        let node = node(config(&address), &Machine::new(512 * MIB)).await;
        let (gone, staying) = (borrow(&address, "gone").await, borrow(&address, "staying").await);
        let device = open(&gone).await;
        write(&*device, 0, pattern(MIB, 1)).await.unwrap();
        let kept = open(&staying).await;
        write(&*kept, 0, pattern(MIB, 2)).await.unwrap();
        let epoch = |status: &block::Status| number(status, "epoch");
        let before = status_when(&gone, "an epoch", |status| epoch(status) != 0).await;
        gone.close().await.unwrap();
        drop((device, gone));
        runtime::sleep(Duration::from_secs(605)).await;
        let status = status_when(&staying, "forgotten", |status| number(status, "node_lent_bytes") == MIB);
        status.await;
        assert!(read(&*kept, 0, MIB).await == pattern(MIB, 2)[..], "a connected one keeps its memory");
        let again = borrow(&address, "gone").await;
        let device = open(&again).await;
        assert!(read(&*device, 0, MIB).await.iter().all(|byte| *byte == 0));
        let after = status_when(&again, "an epoch", |status| epoch(status) != 0).await;
        assert_ne!(epoch(&before), epoch(&after), "the status shows that the memory was lost");
        node.stop().await.unwrap();
    });
}

#[test]
fn a_node_that_ends_fails_requests_and_one_that_starts_again_can_be_opened() {
    simulated(3, |address| async move {
        let first = node(config(&address), &Machine::new(512 * MIB)).await;
        let part = borrow(&address, "one").await;
        let device = open(&part).await;
        write(&*device, 0, pattern(MIB, 1)).await.unwrap();
        first.stop().await.unwrap();
        drop(first);
        let failed = write(&*device, 0, pattern(MIB, 2)).await.unwrap_err();
        assert_eq!(failed.errno(), 104, "{failed}");
        let failing = status_when(&part, "an error", |status| !status["status_error"].is_null()).await;
        assert_eq!(number(&failing, "capacity_bytes"), 64 * MIB, "the last known value");
        let second = node(config(&address), &Machine::new(512 * MIB)).await;
        let well = status_when(&part, "reconnected", |status| status["status_error"].is_null()).await;
        assert_eq!(number(&well, "lent_bytes"), 0);
        let failed = device.read(block::BlockIndex(0), block::Buffer::new(4096)).await.0.unwrap_err();
        assert_eq!(failed.errno(), 104, "a handle never shows the zeros of a new node: {failed}");
        let device = open(&part).await;
        write(&*device, 0, pattern(MIB, 3)).await.unwrap();
        assert!(read(&*device, 0, MIB).await == pattern(MIB, 3)[..]);
        part.close().await.unwrap();
        second.stop().await.unwrap();
    });
}
