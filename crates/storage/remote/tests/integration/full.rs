//! Full nodes: filled by writes of new pages or by overwrites, with or without a lost node; after a discard
//! writes succeed again.

use crate::model::{settle, simulate};
use crate::node::{TestNode, config};
use block::{
    BlockCount, BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Part, Payload,
};
use conformance::budget;
use remote::{Config, RemotePart};
use runtime::Random;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    /// New pages, beginning with the first one.
    Puts,
    /// Overwrites of few pages by larger ones.
    Overwrites,
    /// New pages, in random order, with discards between them.
    Mixed,
}

struct Case {
    nodes: usize,
    mib: u64,
    copies: u64,
    group: u64,
    fill: Fill,
    /// One in this number of pages is discarded afterwards.
    discarded: u64,
}

const fn case(nodes: usize, mib: u64, copies: u64, group: u64, fill: Fill, discarded: u64) -> Case {
    Case { nodes, mib, copies, group, fill, discarded }
}

const CASES: [Case; 9] = [
    case(1, 40, 1, 1, Fill::Puts, 2),
    case(1, 12, 1, 1, Fill::Puts, 1),
    case(1, 96, 1, 8, Fill::Puts, 2),
    case(2, 40, 2, 2, Fill::Puts, 2),
    case(3, 20, 2, 1, Fill::Mixed, 2),
    case(1, 40, 1, 1, Fill::Overwrites, 2),
    case(1, 40, 1, 1, Fill::Mixed, 4),
    case(2, 40, 2, 1, Fill::Overwrites, 3),
    case(3, 40, 3, 4, Fill::Mixed, 2),
];

/// A page whose first `noise` bytes can't be compressed.
fn page(number: u64, noise: usize) -> Vec<u8> {
    let mut random = Random::new(number);
    let mut bytes = vec![0; 4096];
    random.fill(&mut bytes);
    bytes[noise..].fill(number as u8);
    bytes
}

async fn write(device: &Rc<dyn Device>, number: u64, noise: usize) -> Result<(), Error> {
    let payload: Payload = block::Data::copy_of(&page(number, noise)).into();
    device.write(BlockIndex(number), payload, Durability::Visible).await
}

async fn check(device: &Rc<dyn Device>, sizes: &[Option<usize>], what: &str) {
    for (number, noise) in (0..).zip(sizes) {
        let (outcome, found) = device.read(BlockIndex(number), Buffer::new(4096)).await;
        outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        let expected = noise.map_or_else(|| vec![0; 4096], |noise| page(number, noise));
        assert!(*found.filled() == expected, "{what}: page {number}");
    }
}

async fn leads_out(case: &Case, seed: u64, what: &str) {
    let nodes: Vec<Arc<TestNode>> = (0..case.nodes).map(|_| TestNode::new(case.mib)).collect();
    let size = Some((2 * case.mib * case.nodes as u64 / case.copies) << 20);
    let config =
        Config { copies: case.copies, group: case.group << 20, size, may_overcommit: true, ..config(&nodes) };
    let part = RemotePart::open(config).await.unwrap();
    let device = part.open().await.unwrap();
    let pages = part.geometry().blocks.0;
    let mut random = Random::new(seed);
    // Number of incompressible bytes of each page.
    let mut sizes: Vec<Option<usize>> = vec![None; pages as usize];
    for round in 0..2 {
        let mut next = 0;
        let error = loop {
            let (number, noise) = match case.fill {
                Fill::Puts => (next % pages, 4096),
                Fill::Overwrites => {
                    (next % (pages / 2), (1000 + next / (pages / 2) * 500).min(4096) as usize)
                }
                Fill::Mixed => (random.next_u64() % pages, 2000 + (random.next_u64() % 2000) as usize),
            };
            if case.fill == Fill::Mixed && next % 10 == 0 {
                let range = BlockRange { start: BlockIndex(next % pages), count: BlockCount(1) };
                device.discard(range).await.unwrap();
                sizes[(next % pages) as usize] = None;
            }
            next += 1;
            assert!(next < 40 * pages, "{what}: it never becomes full");
            match write(&device, number, noise).await {
                Ok(()) => sizes[number as usize] = Some(noise),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoSpace(_)), "{what}, round {round}: {error}");
        check(&device, &sizes, what).await;
        // The nodes stay full; then a discard makes space for new pages, without an operator.
        settle().await;
        let mut freed: Vec<u64> = (0..pages).filter(|number| sizes[*number as usize].is_some()).collect();
        freed = freed.into_iter().step_by(case.discarded as usize).collect();
        for number in &freed {
            let range = BlockRange { start: BlockIndex(*number), count: BlockCount(1) };
            device.discard(range).await.unwrap();
            sizes[*number as usize] = None;
        }
        settle().await;
        for number in freed.into_iter().step_by(2) {
            let written = write(&device, number, 2000).await;
            written.unwrap_or_else(|error| panic!("{what}, round {round}: {error}"));
            sizes[number as usize] = Some(2000);
        }
        check(&device, &sizes, what).await;
        // A node without memory of its own is another way to be full.
        nodes[0].controls.is_full.store(round == 0, Relaxed);
        settle().await;
        nodes[0].controls.is_full.store(false, Relaxed);
        settle().await;
    }
    assert_eq!(part.status().await["lost_pages"], 0, "{what}");
    part.close().await.unwrap();
}

#[test]
fn from_every_full_state_a_discard_leads_out() {
    let rounds = if budget::is_long() { 8 } else { 1 };
    for round in 0..rounds {
        for (number, case) in (0..).zip(&CASES) {
            let seed = 100 * round + number;
            let what = format!(
                "case {number}: {:?}, {} nodes of {} MiB, {} copies, groups of {} MiB",
                case.fill, case.nodes, case.mib, case.copies, case.group
            );
            println!("seed {seed}, {what}");
            simulate(seed, move || async move { leads_out(case, seed, &what).await });
        }
    }
}

/// A node without memory refuses the blocks that wait for it. With this seed, pages of a refused block were
/// moved to another region of the same node without end, before the node was seen to be full.
#[test]
fn pages_of_a_refused_block_are_not_moved_to_the_node_that_refused_it() {
    let seed = 101;
    simulate(seed, move || async move { leads_out(&CASES[1], seed, "case 1").await });
}

/// A node without memory refuses the cleaner's blocks, which are written again until it has memory. A write
/// that needs a group that only the cleaner could free doesn't wait for that.
#[test]
fn a_write_fails_while_a_full_node_refuses_the_blocks_of_the_cleaner() {
    // One in this number of pages is discarded, and the node becomes full after this number of milliseconds.
    for (discarded, after) in [(2, 0), (20, 400), (30, 40)] {
        simulate(71, move || async move {
            let nodes = [TestNode::new(40)];
            nodes[0].controls.delay.store(1000, Relaxed);
            let config = Config { size: Some(160 << 20), may_overcommit: true, ..config(&nodes) };
            let part = RemotePart::open(config).await.unwrap();
            let device = part.open().await.unwrap();
            let mut pages = 0;
            while write(&device, pages, 4096).await.is_ok() {
                pages += 1;
            }
            settle().await;
            nodes[0].controls.is_full.store(after == 0, Relaxed);
            for number in (0..pages).step_by(discarded) {
                let range = BlockRange { start: BlockIndex(number), count: BlockCount(1) };
                device.discard(range).await.unwrap();
            }
            runtime::sleep(Duration::from_millis(after)).await;
            nodes[0].controls.is_full.store(true, Relaxed);
            settle().await;
            let write_some = async || {
                for number in pages..pages + 3000 {
                    write(&device, number, 4096).await?;
                }
                Ok::<(), Error>(())
            };
            let what = format!("one in {discarded} pages, {after} ms");
            let outcome = runtime::timeout(Duration::from_secs(20), write_some()).await;
            let outcome = outcome.unwrap_or_else(|_| panic!("{what}: a write waits for the node"));
            assert!(matches!(outcome, Err(Error::NoSpace(_))), "{what}: {outcome:?}");
            nodes[0].controls.is_full.store(false, Relaxed);
            let half = BlockRange { start: BlockIndex(0), count: BlockCount(pages / 2) };
            device.discard(half).await.unwrap();
            settle().await;
            for number in 0..pages / 3 {
                write(&device, number, 4096).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            part.close().await.unwrap();
        });
    }
}

/// A slow node becomes full while every staged block waits for it, and has regions and groups for more. A
/// write that needs a staged block fails then, since none becomes available before the node has memory.
#[test]
fn a_write_fails_while_a_full_node_refuses_all_staged_blocks() {
    for seed in 0..3 {
        simulate(seed, move || async move {
            let nodes = [TestNode::new(200)];
            nodes[0].controls.delay.store(2_030_000 + 7000 * seed, Relaxed);
            let part = RemotePart::open(config(&nodes)).await.unwrap();
            let device = part.open().await.unwrap();
            let writer = device.clone();
            let refused = runtime::spawn(async move {
                let mut pages = 0;
                loop {
                    if let Err(error) = write(&writer, pages, 4096).await {
                        return (pages, error);
                    }
                    pages += 1;
                }
            });
            // The writer waits for a staged block now.
            runtime::sleep(Duration::from_millis(500 + 100 * seed)).await;
            nodes[0].controls.is_full.store(true, Relaxed);
            let begin = runtime::now();
            let outcome = runtime::timeout(Duration::from_secs(60), refused).await;
            let time = begin.elapsed();
            let (pages, error) =
                outcome.unwrap_or_else(|_| panic!("seed {seed}: a write waits for the node"));
            assert!(matches!(error, Error::NoSpace(_)), "seed {seed}: {error}");
            assert!(pages > 1000, "seed {seed}: {pages} pages were staged");
            // Virtual time: blocks in flight were answered in turns of 2 s, and nothing was left to wait for.
            assert!(time < Duration::from_secs(8), "seed {seed}: the write failed after {time:?}");
            nodes[0].controls.is_full.store(false, Relaxed);
            nodes[0].controls.delay.store(1000, Relaxed);
            settle().await;
            for number in 0..pages {
                write(&device, number, 4096).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            part.close().await.unwrap();
        });
    }
}
