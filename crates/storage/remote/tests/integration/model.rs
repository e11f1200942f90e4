//! The device against a model: whatever its nodes do, a page has the contents of its last write, or its read
//! fails because the page was lost.

use crate::node::{TestNode, config};
use block::{BlockCount, BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Part, Payload};
use conformance::budget::Budget;
use remote::{Compression, Config, RemotePart};
use runtime::Random;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PAGE: usize = 4096;

pub fn simulate<F: Future<Output = ()> + 'static>(seed: u64, main: impl FnOnce() -> F + Send + 'static) {
    let world = runtime::Simulation::new(seed);
    runtime::simulate(world, main).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
}

/// Bytes of a page with this content number: some are one pattern, some compress well or badly, some not at
/// all.
fn page(content: u64) -> Vec<u8> {
    let mut random = Random::new(content);
    let noise = [0, 0, 40, 2000, 3500, 4096, 4096][(content % 7) as usize];
    let mut bytes = vec![(content % 5) as u8; PAGE];
    if noise > 0 {
        bytes[..8].copy_from_slice(&content.to_le_bytes());
        random.fill(&mut bytes[8..noise.max(8)]);
    }
    bytes
}

/// A device, and its expected contents.
pub struct Model {
    pub device: Rc<dyn Device>,
    pages: u64,
    /// Permitted contents of each page: several after a failed write.
    contents: BTreeMap<u64, Vec<Option<u64>>>,
    random: Random,
    next: u64,
    /// Number of failed reads.
    pub failed_reads: u64,
    pub failed_writes: u64,
}

impl Model {
    pub async fn new(part: &RemotePart, seed: u64, pages: u64) -> Self {
        let pages = pages.min(part.geometry().blocks.0);
        Model {
            device: part.open().await.unwrap(),
            pages,
            contents: BTreeMap::new(),
            random: Random::new(seed),
            next: 0,
            failed_reads: 0,
            failed_writes: 0,
        }
    }

    fn range(&mut self) -> (u64, u64) {
        // Runs of pages as a kernel accesses them, in three parts of the device.
        let count = 1 + self.random.next_u64() % 16;
        let part = self.random.next_u64() % 3 * (self.pages / 3);
        let first = (part + self.random.next_u64() % (self.pages / 3)).min(self.pages - count);
        (first, count)
    }

    pub async fn write(&mut self) {
        let (first, count) = self.range();
        let contents: Vec<u64> = (self.next..self.next + count).collect();
        self.next += count;
        let bytes = contents.iter().map(|content| page(*content)).collect::<Vec<_>>().concat();
        let payload: Payload = block::Data::copy_of(&bytes).into();
        let outcome = self.device.write(BlockIndex(first), payload, Durability::Visible).await;
        self.failed_writes += u64::from(outcome.is_err());
        for (number, content) in (first..).zip(contents) {
            let known = self.contents.entry(number).or_insert_with(|| vec![None]);
            match outcome {
                Ok(()) => *known = vec![Some(content)],
                Err(_) => known.push(Some(content)),
            }
        }
    }

    pub async fn discard(&mut self) {
        let (first, count) = self.range();
        let range = BlockRange { start: BlockIndex(first), count: BlockCount(count) };
        self.device.discard(range).await.unwrap();
        (first..first + count).for_each(|number| drop(self.contents.remove(&number)));
    }

    pub async fn discard_all(&mut self) {
        let range = BlockRange { start: BlockIndex(0), count: BlockCount(self.pages) };
        self.device.discard(range).await.unwrap();
        self.contents.clear();
    }

    /// Reads pages. Returns false if the read failed.
    async fn read(&mut self, first: u64, count: u64, seed: u64) -> bool {
        let (outcome, buffer) = self.device.read(BlockIndex(first), Buffer::new(count as usize * PAGE)).await;
        if outcome.is_err() {
            self.failed_reads += 1;
            return false;
        }
        for (number, found) in (first..).zip(buffer.filled().chunks_exact(PAGE)) {
            let known = self.contents.get(&number).cloned().unwrap_or_else(|| vec![None]);
            let is_known = known.iter().any(|content| found == content.map_or_else(|| vec![0; PAGE], page));
            assert!(is_known, "seed {seed}: page {number} has other bytes; expected {known:?}");
        }
        true
    }

    pub async fn read_some(&mut self, seed: u64) {
        let (first, count) = self.range();
        self.read(first, count, seed).await;
    }

    /// Reads all pages. Returns the number of lost ones.
    pub async fn read_all(&mut self, seed: u64) -> u64 {
        let mut lost = 0;
        for number in 0..self.pages {
            lost += u64::from(!self.read(number, 1, seed).await);
        }
        lost
    }

    pub async fn step(&mut self, seed: u64) {
        match self.random.next_u64() % 16 {
            0..8 => self.write().await,
            8 => self.discard().await,
            _ => self.read_some(seed).await,
        }
    }
}

pub async fn settle() {
    runtime::sleep(Duration::from_secs(20)).await;
}

#[test]
fn pages_are_what_was_written_last() {
    let budget = Budget::of(4);
    for seed in (100..).take_while(|_| budget.allows_more(2000)) {
        println!("seed {seed}");
        simulate(seed, move || async move {
            let nodes = [TestNode::new(40), TestNode::new(30)];
            let part = RemotePart::open(config(&nodes)).await.unwrap();
            // More pages than local memory holds, so that zones are reused.
            let mut model = Model::new(&part, seed, 12_000).await;
            for _ in 0..4000 {
                model.step(seed).await;
            }
            assert_eq!(
                (model.read_all(seed).await, model.failed_reads, model.failed_writes),
                (0, 0, 0),
                "seed {seed}"
            );
            let status = part.status().await;
            assert!(
                status["moved_pages"].as_u64() > Some(0) || status["stale_bytes"].as_u64() > Some(0),
                "{status:?}"
            );
            part.close().await.unwrap();
        });
    }
}

#[test]
fn with_two_copies_a_node_that_is_lost_loses_no_page() {
    for seed in 0..6 {
        simulate(seed, move || async move {
            let nodes = [TestNode::new(60), TestNode::new(60), TestNode::new(60)];
            let part = RemotePart::open(Config { copies: 2, ..config(&nodes) }).await.unwrap();
            let mut model = Model::new(&part, seed, 6000).await;
            for round in 0..6_u64 {
                for _ in 0..300 {
                    model.step(seed).await;
                }
                // The nodes in turn die with their contents, or stall, and return.
                let node = &nodes[(round % 3) as usize];
                let stalls = round >= 3;
                let control = if stalls { &node.controls.is_stalled } else { &node.controls.is_dead };
                control.store(true, Ordering::Relaxed);
                for _ in 0..300 {
                    model.step(seed).await;
                }
                settle().await;
                assert_eq!(model.read_all(seed).await, 0, "seed {seed}, round {round}");
                if !stalls {
                    node.forget().await;
                }
                control.store(false, Ordering::Relaxed);
                settle().await;
                let status = part.status().await;
                assert_eq!(
                    status["zones_with_one_copy"], 0,
                    "seed {seed}: copies are made again: {status:?}"
                );
            }
            assert_eq!((model.read_all(seed).await, model.failed_writes), (0, 0), "seed {seed}");
            part.close().await.unwrap();
        });
    }
}

#[test]
fn with_a_backup_the_loss_of_all_nodes_loses_no_page() {
    simulate(3, move || async move {
        let (nodes, backup) = ([TestNode::new(60)], TestNode::new(60));
        let part = RemotePart::open(Config { backup: Some(backup.clone()), ..config(&nodes) }).await.unwrap();
        let mut model = Model::new(&part, 3, 6000).await;
        for _ in 0..600 {
            model.step(3).await;
        }
        nodes[0].controls.is_dead.store(true, Ordering::Relaxed);
        settle().await;
        assert_eq!(model.read_all(3).await, 0);
        nodes[0].forget().await;
        nodes[0].controls.is_dead.store(false, Ordering::Relaxed);
        settle().await;
        assert_eq!(model.read_all(3).await, 0);
        for _ in 0..600 {
            model.step(3).await;
        }
        assert_eq!((model.read_all(3).await, model.failed_writes), (0, 0));
        part.close().await.unwrap();
    });
}

#[test]
fn nodes_that_return_other_bytes_or_lose_writes_never_change_a_page() {
    for seed in 0..4 {
        simulate(seed, move || async move {
            let nodes = [TestNode::new(100), TestNode::new(100)];
            let copies = 1 + seed % 2;
            let compression = [Compression::Lz4, Compression::Zstd][seed as usize / 2];
            let part = RemotePart::open(Config { copies, compression, ..config(&nodes) }).await.unwrap();
            let mut model = Model::new(&part, seed, 20_000).await;
            nodes[0].controls.garbage_one_in.store(20, Ordering::Relaxed);
            // So slow that the other copy is also read.
            nodes[0].controls.delay.store(if seed >= 2 { 5000 } else { 0 }, Ordering::Relaxed);
            for step in 0..4000 {
                nodes[1].controls.loses_writes.store(copies == 1 && step % 400 >= 200, Ordering::Relaxed);
                model.step(seed).await;
            }
            nodes[0].controls.garbage_one_in.store(0, Ordering::Relaxed);
            settle().await;
            let lost = model.read_all(seed).await;
            match copies {
                1 => assert!(lost > 0, "seed {seed}: nothing was lost, so the test shows nothing"),
                _ => assert_eq!(lost, 0, "seed {seed}"),
            }
            // A page that was lost can be written again.
            for _ in 0..600 {
                model.write().await;
            }
            assert_eq!(model.failed_writes, 0, "seed {seed}");
            part.close().await.unwrap();
        });
    }
}

#[test]
fn a_slow_node_is_not_waited_for_where_there_is_another_copy() {
    simulate(5, move || async move {
        let nodes = [TestNode::new(100), TestNode::new(100)];
        let part = RemotePart::open(Config { copies: 2, ..config(&nodes) }).await.unwrap();
        let mut model = Model::new(&part, 5, 20_000).await;
        for _ in 0..4000 {
            model.step(5).await;
        }
        nodes[0].controls.delay.store(1_500_000, Ordering::Relaxed);
        let begin = runtime::now();
        assert_eq!(model.read_all(5).await, 0);
        let time = begin.elapsed();
        assert!(time < Duration::from_secs(100), "20000 pages took {time:?}");
        assert!(part.status().await["hedged_reads"].as_u64() > Some(0));
        nodes[0].controls.delay.store(0, Ordering::Relaxed);
        part.close().await.unwrap();
    });
}

/// Neighbouring pages with one request for each, as in a kernel's read-ahead.
#[test]
fn neighbours_that_are_read_at_the_same_time_are_one_read_of_a_node() {
    const COUNT: u64 = 8;
    simulate(3, move || async move {
        let nodes = [TestNode::new(100)];
        let part = RemotePart::open(config(&nodes)).await.unwrap();
        let mut model = Model::new(&part, 3, 20_000).await;
        for page in 0..model.pages {
            // 2000 random bytes.
            let content = page * 7 + 3;
            let payload = block::Data::copy_of(&self::page(content)).into();
            model.device.write(BlockIndex(page), payload, Durability::Visible).await.unwrap();
            model.contents.insert(page, vec![Some(content)]);
        }
        settle().await;
        nodes[0].controls.delay.store(1000, Ordering::Relaxed);
        let read = |page: u64| {
            let (device, bytes) = (model.device.clone(), self::page(page * 7 + 3));
            async move {
                let (outcome, buffer) = device.read(BlockIndex(page), Buffer::new(PAGE)).await;
                outcome.unwrap();
                assert_eq!(buffer.filled(), bytes, "page {page}");
            }
        };
        // Far from the pages that were written last, which are still local. The first page's slot begins
        // before the others.
        let before = part.status().await["node_read_bytes"].as_u64().unwrap();
        runtime::join_all((160..160 + COUNT).map(read)).await;
        let bytes = part.status().await["node_read_bytes"].as_u64().unwrap() - before;
        let most = 2 * 4 * PAGE as u64;
        assert!(0 < bytes && bytes <= most, "{bytes} bytes for {COUNT} pages, which take 18 KiB");
        // Reads that waited for a dropped read go to the nodes themselves.
        let (device, begin) = (model.device.clone(), runtime::now());
        let dropped = runtime::spawn(async move {
            let read = device.read(BlockIndex(400), Buffer::new(PAGE));
            runtime::timeout(Duration::from_micros(500), read).await.is_err()
        });
        runtime::sleep(Duration::from_micros(100)).await;
        runtime::join_all((401..400 + COUNT).map(read)).await;
        let time = begin.elapsed();
        assert!(dropped.await && time > Duration::from_micros(1400), "{time:?}");
        part.close().await.unwrap();
    });
}

#[test]
fn where_the_nodes_are_full_writes_fail_and_go_on_after_a_discard() {
    simulate(8, move || async move {
        let nodes = [TestNode::new(40)];
        let config = Config { size: Some(128 << 20), may_overcommit: true, ..config(&nodes) };
        let part = RemotePart::open(config).await.unwrap();
        let device = part.open().await.unwrap();
        let mut random = Random::new(8);
        let mut noise = || -> Payload {
            let mut bytes = vec![0; PAGE];
            random.fill(&mut bytes);
            block::Data::copy_of(&bytes).into()
        };
        let mut written = 0;
        let error = loop {
            match device.write(BlockIndex(written), noise(), Durability::Visible).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, block::Error::NoSpace(_)), "{error}");
        assert!(written > 20 << 8, "{written} pages of a node of 40 MiB");
        device.discard(BlockRange { start: BlockIndex(0), count: BlockCount(written / 2) }).await.unwrap();
        settle().await;
        for page in 0..written / 4 {
            device.write(BlockIndex(page), noise(), Durability::Visible).await.unwrap();
        }
        part.close().await.unwrap();
    });
}

#[test]
fn a_node_that_reclaims_its_memory_is_drained_to_another_one() {
    simulate(9, move || async move {
        let nodes = [TestNode::new(100), TestNode::new(100)];
        let part = RemotePart::open(config(&nodes)).await.unwrap();
        let mut model = Model::new(&part, 9, 20_000).await;
        for _ in 0..4000 {
            model.step(9).await;
        }
        settle().await;
        assert!(nodes[0].taken().await > 8 << 20, "{} bytes", nodes[0].taken().await);
        nodes[0].controls.reclaim.store(1, Ordering::Relaxed);
        for _ in 0..100 {
            model.step(9).await;
        }
        settle().await;
        // Open groups stay until they are full.
        assert!(nodes[0].taken().await <= 5 << 20, "{} bytes", nodes[0].taken().await);
        let before = nodes[0].taken().await;
        for _ in 0..300 {
            model.step(9).await;
        }
        settle().await;
        assert!(nodes[0].taken().await <= before.max(5 << 20), "{} bytes", nodes[0].taken().await);
        nodes[0].controls.reclaim.store(0, Ordering::Relaxed);
        settle().await;
        for _ in 0..1500 {
            model.step(9).await;
        }
        assert!(nodes[0].taken().await > before, "it lends again");
        assert_eq!((model.read_all(9).await, model.failed_writes), (0, 0));
        part.close().await.unwrap();
    });
}

#[test]
fn a_node_that_is_empty_after_a_moment_is_noticed_before_the_other_one_is_lost() {
    simulate(10, move || async move {
        let nodes = [TestNode::new(100), TestNode::new(100)];
        let part = RemotePart::open(Config { copies: 2, ..config(&nodes) }).await.unwrap();
        let mut model = Model::new(&part, 10, 20_000).await;
        for _ in 0..4000 {
            model.step(10).await;
        }
        settle().await;
        nodes[1].controls.is_dead.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            model.step(10).await;
        }
        nodes[1].forget().await;
        runtime::sleep(Duration::from_secs(1)).await;
        nodes[1].controls.is_dead.store(false, Ordering::Relaxed);
        settle().await;
        settle().await;
        nodes[0].controls.is_dead.store(true, Ordering::Relaxed);
        settle().await;
        assert_eq!((model.read_all(10).await, model.failed_writes), (0, 0));
        part.close().await.unwrap();
    });
}

#[test]
fn a_write_that_a_node_has_no_memory_for_loses_no_other_page() {
    for copies in [1, 2] {
        simulate(11, move || async move {
            let nodes = [TestNode::new(100), TestNode::new(100)];
            let part = RemotePart::open(Config { copies, group: 2 << 20, ..config(&nodes) }).await.unwrap();
            let mut model = Model::new(&part, 11, 16_000).await;
            for round in 0..8 {
                for _ in 0..400 {
                    model.step(11).await;
                }
                let node = &nodes[round % 2].controls;
                node.is_full.store(true, Ordering::Relaxed);
                for _ in 0..200 {
                    model.step(11).await;
                }
                settle().await;
                node.is_full.store(false, Ordering::Relaxed);
                settle().await;
            }
            assert_eq!((model.read_all(11).await, model.failed_writes), (0, 0), "{copies} copies");
            part.close().await.unwrap();
        });
    }
}
