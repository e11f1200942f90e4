//! Limits of lending, and reclaim when the machine needs memory.

use crate::support::{
    MIB, Machine, borrow, config, discard, node, number, open, pattern, read, simulated, status_when, write,
};
use memory_node::{Cgroup, MemoryNode, MemoryNodePart, NodeConfig};
use runtime::net::Address;
use std::time::Duration;

const ENOSPC: i32 = 28;

#[test]
fn no_more_than_the_capacity_is_lent_to_all_together() {
    simulated(11, |address| async move {
        let node = node(config(&address), &Machine::new(512 * MIB)).await;
        let (one, other) = (borrow(&address, "one").await, borrow(&address, "other").await);
        let (one, other) = (open(&one).await, open(&other).await);
        write(&*one, 0, pattern(40 * MIB, 1)).await.unwrap();
        write(&*other, 0, pattern(24 * MIB, 2)).await.unwrap();
        let refused = write(&*other, 24 * MIB, pattern(4096, 3)).await.unwrap_err();
        assert_eq!(refused.errno(), ENOSPC, "{refused}");
        // Allocated blocks can be overwritten, and zeros use no memory.
        write(&*one, 0, pattern(40 * MIB, 4)).await.unwrap();
        write(&*other, 24 * MIB, block::Data::copy_of(&[0; 4096])).await.unwrap();
        discard(&*one, 0, MIB).await;
        write(&*other, 24 * MIB, pattern(MIB, 3)).await.unwrap();
        assert!(read(&*other, 24 * MIB, MIB).await == pattern(MIB, 3)[..]);
        node.stop().await.unwrap();
    });
}

#[test]
fn beyond_what_the_machine_can_spare_writes_fail() {
    simulated(12, |address| async move {
        // 64 MiB are the reserve and 8 MiB its margin.
        let machine = Machine::new(72 * MIB + 3 * MIB);
        let node = node(config(&address), &machine).await;
        let part = borrow(&address, "one").await;
        let device = open(&part).await;
        write(&*device, 0, pattern(3 * MIB, 1)).await.unwrap();
        machine.change(|measured| measured.available = 72 * MIB);
        runtime::sleep(Duration::from_millis(300)).await;
        let refused = write(&*device, 3 * MIB, pattern(4096, 1)).await.unwrap_err();
        assert_eq!(refused.errno(), ENOSPC, "{refused}");
        let status = status_when(&part, "nothing is free", |status| number(status, "free_bytes") == 0).await;
        assert_eq!(number(&status, "reclaim_bytes"), 0, "but nothing is reclaimed");
        // Before the next periodic measurement.
        machine.change(|measured| measured.available = 74 * MIB);
        runtime::sleep(Duration::from_millis(25)).await;
        write(&*device, 3 * MIB, pattern(MIB, 1)).await.unwrap();
        machine.change(|measured| {
            (measured.available, measured.cgroup) =
                (400 * MIB, Some(Cgroup { limit: 100 * MIB, used: 30 * MIB }))
        });
        runtime::sleep(Duration::from_millis(300)).await;
        let refused = write(&*device, 4 * MIB, pattern(4096, 1)).await.unwrap_err();
        assert_eq!(refused.errno(), ENOSPC, "{refused}");
        node.stop().await.unwrap();
    });
}

#[test]
fn a_machine_that_cannot_be_measured_lends_nothing_more() {
    simulated(13, |address| async move {
        let machine = Machine::new(512 * MIB);
        let node = node(config(&address), &machine).await;
        let part = borrow(&address, "one").await;
        let device = open(&part).await;
        write(&*device, 0, pattern(MIB, 1)).await.unwrap();
        machine.fail();
        runtime::sleep(Duration::from_millis(300)).await;
        assert_eq!(write(&*device, MIB, pattern(4096, 1)).await.unwrap_err().errno(), ENOSPC);
        assert!(read(&*device, 0, MIB).await == pattern(MIB, 1)[..]);
        node.stop().await.unwrap();
    });
}

#[test]
fn reclaim_is_divided_and_ends_as_borrowers_discard() {
    simulated(14, |address| async move {
        let machine = Machine::new(512 * MIB);
        let node = node(config(&address), &machine).await;
        let (one, other) = (borrow(&address, "one").await, borrow(&address, "other").await);
        let (first, second) = (open(&one).await, open(&other).await);
        write(&*first, 0, pattern(30 * MIB, 1)).await.unwrap();
        write(&*second, 0, pattern(10 * MIB, 2)).await.unwrap();
        machine.change(|measured| measured.available = 64 * MIB - 4 * MIB);
        let reclaim = |status: &block::Status| number(status, "reclaim_bytes");
        let status = status_when(&one, "reclaiming", |status| reclaim(status) > 0).await;
        assert_eq!(
            (reclaim(&status), number(&status, "free_bytes")),
            (9 * MIB, 0),
            "three quarters of 12 MiB"
        );
        status_when(&other, "reclaiming", |status| reclaim(status) == 3 * MIB).await;
        // Discarded memory isn't reclaimed again, even before the next measurement.
        discard(&*first, 0, 8 * MIB).await;
        machine.change(|measured| measured.available = 64 * MIB + 4 * MIB);
        let status = status_when(&one, "less to reclaim", |status| reclaim(status) < 9 * MIB).await;
        assert!((2 * MIB..=3 * MIB).contains(&reclaim(&status)), "of 4 MiB: {status:?}");
        discard(&*second, 0, 4 * MIB).await;
        machine.change(|measured| measured.available = 64 * MIB + 8 * MIB);
        status_when(&one, "reclaiming has ended", |status| reclaim(status) == 0).await;
        status_when(&other, "reclaiming has ended", |status| reclaim(status) == 0).await;
        assert!(read(&*first, 8 * MIB, 22 * MIB).await == pattern(30 * MIB, 1)[8 << 20..], "rest is kept");
        node.stop().await.unwrap();
    });
}

#[test]
fn under_pressure_an_eighth_is_reclaimed_and_nothing_lent() {
    simulated(15, |address| async move {
        let machine = Machine::new(512 * MIB);
        let node = node(config(&address), &machine).await;
        let part = borrow(&address, "one").await;
        let device = open(&part).await;
        write(&*device, 0, pattern(16 * MIB, 1)).await.unwrap();
        machine.change(|measured| measured.some_avg10 = Some(25.0));
        let reclaim = |status: &block::Status| number(status, "reclaim_bytes");
        let status = status_when(&part, "reclaiming", |status| reclaim(status) > 0).await;
        assert_eq!((reclaim(&status), status["some_avg10"].as_f64()), (2 * MIB, Some(25.0)));
        assert_eq!(write(&*device, 16 * MIB, pattern(4096, 1)).await.unwrap_err().errno(), ENOSPC);
        machine.change(|measured| measured.some_avg10 = Some(4.0));
        status_when(&part, "reclaiming has ended", |status| reclaim(status) == 0).await;
        write(&*device, 16 * MIB, pattern(4096, 1)).await.unwrap();
        node.stop().await.unwrap();
    });
}

#[test]
fn names_are_checked_and_borrowers_counted() {
    simulated(16, |address| async move {
        let node = node(config(&address), &Machine::new(512 * MIB)).await;
        for name in ["", "a/b", "a b", "ä", "..\0", &"x".repeat(65)] {
            let refused = MemoryNodePart::connect(address.clone(), name.to_owned(), 1, None).await;
            assert_eq!(refused.err().unwrap().errno(), 22, "{name}");
        }
        let mut parts = Vec::new();
        for name in ["one", "two", "three"] {
            let part = borrow(&address, name).await;
            parts.push((open(&part).await, part));
        }
        let refused = MemoryNodePart::connect(address.clone(), "four".to_owned(), 1, None).await;
        let refused = refused.err().unwrap();
        assert!(refused.detail().contains("limit of 3 borrowers"), "{refused}");
        borrow(&address, "two").await;
        // A borrower without memory and without a client is removed soon.
        parts.pop();
        runtime::sleep(Duration::from_secs(31)).await;
        borrow(&address, "four").await;
        node.stop().await.unwrap();
    });
}

#[test]
fn configurations_that_fit_nothing_are_refused() {
    let address: Address = "127.0.0.1:10810".parse().unwrap();
    let refused = |change: fn(&mut NodeConfig)| {
        let mut config = config(&address);
        change(&mut config);
        let node = MemoryNode::new(config, Machine::new(512 * MIB).measure());
        node.err().unwrap().to_string()
    };
    assert!(refused(|config| config.address = "0.0.0.0:10810".parse().unwrap()).contains("--allow-remote"));
    assert!(refused(|config| config.capacity = 0).contains("capacity of 0"));
    assert!(refused(|config| config.quota = 5000).contains("multiple of 4096"));
    assert!(refused(|config| config.quota = 65 * MIB).contains("at most the capacity"));
    assert!(refused(|config| config.max_borrowers = 129).contains("1 to 128"));
    assert!(refused(|config| config.pressure_limit = f64::NAN).contains("at most 100"));
}
