//! Tests of the cache beyond the contract: refusals, data lost with the fast device, messages, errors,
//! growth.
#![allow(clippy::unwrap_used)] // All of this is tests, the functions that they share as well.

use block::{BlockIndex, BlockSize, Buffer, Device, DevicePart, Durability, Error, Part, Result};
use cache::{CachePart, Mode, Options};
use conformance::requests::{full, on_a_shard, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::linear::part_of;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn disk(blocks: u64) -> Arc<dyn DevicePart> {
    crate::disk(blocks * 4096, 4096)
}

fn options(mode: Mode) -> Options {
    Options { mode, block_size: 32 << 10, settle_every: Duration::from_millis(5), ..Options::default() }
}

fn made(mode: Mode) -> Options {
    Options { format: true, ..options(mode) }
}

/// Some 90 slots of 8 blocks.
fn fast() -> Arc<dyn DevicePart> {
    disk(768)
}

async fn count(part: &CachePart, name: &str) -> u64 {
    part.status().await[name].as_u64().unwrap_or_else(|| panic!("{name} is a number"))
}

/// Waits until a count has this value.
async fn until(part: &CachePart, name: &str, value: u64) {
    for _ in 0..5000 {
        if count(part, name).await == value {
            return;
        }
        runtime::sleep(Duration::from_millis(2)).await;
    }
    panic!("{name} never became {value}: {:?}", part.status().await);
}

fn refusal<T>(outcome: Result<T>) -> String {
    outcome.err().expect("it is refused").to_string()
}

#[test]
fn a_cache_that_isnt_there_is_refused_by_name() {
    on_a_shard(|| async {
        let (slow, empty) = (disk(256), fast());
        let open = CachePart::open(slow.clone(), empty.clone(), "archive", &options(Mode::Writeback)).await;
        let refused = refusal(open);
        assert!(refused.contains("expected the cache of \"archive\""), "{refused}");
        assert!(refused.contains("dirty data is lost without it"), "{refused}");
        assert!(refused.contains("--format"), "{refused}");
    });
}

#[test]
fn writeback_without_its_cache_is_an_error_and_writethrough_has_everything() {
    on_a_shard(|| async {
        for mode in [Mode::Writeback, Mode::Writethrough] {
            let slow = disk(256);
            let part = CachePart::open(slow.clone(), fast(), "archive", &made(mode)).await.unwrap();
            let handle = part.open().await.unwrap();
            write(&*handle, 7, 7).await.unwrap();
            handle.flush().await.unwrap();
            drop(handle);
            drop(part);
            // The fast device was lost; an empty one replaces it.
            let refused = refusal(CachePart::open(slow.clone(), fast(), "archive", &options(mode)).await);
            assert!(refused.contains("no table on the device"), "{refused}");
            let origin = slow.open().await.unwrap();
            let expected = if mode == Mode::Writeback { 0 } else { 7 };
            assert_eq!(read(&*origin, 7, 1).await.unwrap(), vec![expected; 4096], "{mode:?}");
        }
    });
}

#[test]
fn an_origin_that_isnt_its_own_or_was_written_without_it_is_refused() {
    on_a_shard(|| async {
        let (slow, other, cache) = (disk(256), disk(256), fast());
        for (disk, byte) in [(&slow, 1), (&other, 2)] {
            let handle = disk.open().await.unwrap();
            handle.write(BlockIndex(0), full(byte, 256), Durability::Durable).await.unwrap();
        }
        let part =
            CachePart::open(slow.clone(), cache.clone(), "archive", &made(Mode::Writeback)).await.unwrap();
        part.close().await.unwrap();
        let wrong = CachePart::open(other, cache.clone(), "another", &options(Mode::Writeback)).await;
        let refused = refusal(wrong);
        assert!(
            refused.contains("\"another\" isn't the origin of this cache, which belongs to \"archive\""),
            "{refused}"
        );
        let refused =
            refusal(CachePart::open(disk(128), cache.clone(), "archive", &options(Mode::Writeback)).await);
        assert!(refused.contains("an origin may grow, never shrink"), "{refused}");
        let part =
            CachePart::open(slow.clone(), cache.clone(), "archive", &options(Mode::Writeback)).await.unwrap();
        part.close().await.unwrap();
        let handle = slow.open().await.unwrap();
        write(&*handle, 0, 9).await.unwrap();
        let refused = refusal(CachePart::open(slow, cache, "archive", &options(Mode::Writeback)).await);
        assert!(refused.contains("was written without the cache"), "{refused}");
    });
}

#[test]
fn what_is_clean_isnt_written_back_after_a_crash() {
    on_a_shard(|| async {
        let (slow, cache) = (disk(1024), fast());
        let origin = slow.open().await.unwrap();
        origin.write(BlockIndex(0), full(1, 1024), Durability::Durable).await.unwrap();
        let part =
            CachePart::open(slow.clone(), cache.clone(), "slow", &made(Mode::Writeback)).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..40 {
            read(&*handle, 8 * block, 8).await.unwrap();
            // The disk answers at once; the sleep lets the cache's own tasks run.
            runtime::sleep(Duration::from_micros(200)).await;
        }
        until(&part, "promotions", 40).await;
        write(&*handle, 800, 2).await.unwrap();
        // After the promoted blocks have settled, the flush records the dirty ones in the table.
        runtime::sleep(Duration::from_millis(100)).await;
        handle.flush().await.unwrap();
        drop(handle);
        // Simulates a crash. The tasks of the old cache still exist in this test, but change nothing without
        // requests.
        part.message("mode writeback").await.unwrap();
        let copy = disk(768);
        let (from, to) = (cache.open().await.unwrap(), copy.open().await.unwrap());
        let (outcome, bytes) = from.read(BlockIndex(0), Buffer::new(768 * 4096)).await;
        outcome.unwrap();
        to.write(BlockIndex(0), bytes.into(), Durability::Visible).await.unwrap();
        part.close().await.unwrap();
        let again = CachePart::open(slow, copy, "slow", &options(Mode::Writeback)).await.unwrap();
        assert_eq!(count(&again, "used_blocks").await, 41);
        assert!(count(&again, "dirty_blocks").await <= 1, "{:?}", again.status().await);
        assert!(!again.status().await["was_clean"].as_bool().unwrap());
        again.close().await.unwrap();
    });
}

#[test]
fn detach_writes_back_and_can_be_cancelled() {
    on_a_shard(|| async {
        let slow = disk(512);
        let part = CachePart::open(slow.clone(), fast(), "slow", &made(Mode::Writeback)).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..60 {
            write(&*handle, 8 * block, 3).await.unwrap();
        }
        let said = part.message("detach").await.unwrap();
        assert!(said.contains("60 dirty blocks left to write back"), "{said}");
        assert_eq!(part.message("cancel").await.unwrap(), "attached again");
        assert_eq!(part.status().await["detach"], "no");
        write(&*handle, 1, 4).await.unwrap();
        assert!(count(&part, "used_blocks").await > 0);
        part.message("detach").await.unwrap();
        for _ in 0..5000 {
            if part.status().await["detach"] == "done" {
                break;
            }
            runtime::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(part.status().await["detach"], "done", "{:?}", part.status().await);
        assert_eq!((count(&part, "used_blocks").await, count(&part, "dirty_blocks").await), (0, 0));
        // Everything is on the origin, and new writes go there.
        write(&*handle, 2, 5).await.unwrap();
        let origin = slow.open().await.unwrap();
        for (block, byte) in [(0, 3), (1, 4), (2, 5), (472, 3)] {
            assert_eq!(read(&*origin, block, 1).await.unwrap(), vec![byte; 4096], "block {block}");
        }
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn detach_ends_while_nobody_asks_for_anything_and_all_blocks_are_hot() {
    on_a_shard(|| async {
        let part = CachePart::open(disk(768), fast(), "slow", &made(Mode::Writethrough)).await.unwrap();
        let handle = part.open().await.unwrap();
        for round in 0..6 {
            for block in 0..80 {
                read(&*handle, 8 * block, 1).await.unwrap();
                if round == 0 {
                    // The disk answers at once; the sleep lets the cache's own tasks run.
                    runtime::sleep(Duration::from_micros(200)).await;
                }
            }
        }
        until(&part, "promotions", 80).await;
        // The promoted blocks settle; afterwards nothing happens without a request.
        runtime::sleep(Duration::from_millis(100)).await;
        assert_eq!(count(&part, "used_blocks").await, 80, "{:?}", part.status().await);
        part.message("detach").await.unwrap();
        until(&part, "used_blocks", 0).await;
        for _ in 0..5000 {
            if part.status().await["detach"] == "done" {
                break;
            }
            runtime::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(part.status().await["detach"], "done", "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn clean_blocks_are_invalidated_and_dirty_ones_stay() {
    on_a_shard(|| async {
        let part = CachePart::open(disk(512), fast(), "slow", &made(Mode::Writeback)).await.unwrap();
        let handle = part.open().await.unwrap();
        read(&*handle, 0, 1).await.unwrap();
        until(&part, "promotions", 1).await;
        write(&*handle, 100, 1).await.unwrap();
        let slots = count(&part, "total_blocks").await;
        let said = part.message(&format!("invalidate 0-{slots}")).await.unwrap();
        assert!(said.starts_with("1 blocks invalidated; 1 are dirty and stay"), "{said}");
        assert_eq!(count(&part, "used_blocks").await, 1);
        let refused = refusal(part.message(&format!("invalidate {slots}")).await);
        assert!(refused.contains("out of range"), "{refused}");
        assert_eq!(read(&*handle, 100, 1).await.unwrap(), vec![1; 4096]);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn both_devices_may_grow_and_the_cache_may_not_shrink() {
    on_a_shard(|| async {
        let (slow, cache) = (disk(1024), disk(4096));
        let piece = |device: &Arc<dyn DevicePart>, blocks| {
            Arc::new(part_of(device.clone(), block::BlockRange::new(0, blocks)).unwrap())
                as Arc<dyn DevicePart>
        };
        let options_made = made(Mode::Writeback);
        let part = CachePart::open(piece(&slow, 512), piece(&cache, 768), "slow", &options_made);
        let part = part.await.unwrap();
        let handle = part.open().await.unwrap();
        write(&*handle, 511, 1).await.unwrap();
        let slots = count(&part, "total_blocks").await;
        drop(handle);
        part.close().await.unwrap();
        let part =
            CachePart::open(slow.clone(), cache.clone(), "slow", &options(Mode::Writeback)).await.unwrap();
        assert_eq!(part.geometry().blocks.0, 1024);
        assert!(count(&part, "total_blocks").await > 5 * slots);
        let handle = part.open().await.unwrap();
        for block in 0..1024 / 8 {
            write(&*handle, 8 * block, 2).await.unwrap();
        }
        assert_eq!(read(&*handle, 511, 1).await.unwrap(), vec![1; 4096]);
        drop(handle);
        part.close().await.unwrap();
        let small =
            CachePart::open(slow.clone(), piece(&cache, 768), "slow", &options(Mode::Writeback)).await;
        let refused = refusal(small);
        assert!(refused.contains("expected the size at the last use"), "{refused}");
        let part = CachePart::open(slow, cache, "slow", &options(Mode::Writeback)).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..1024 / 8 {
            assert_eq!(read(&*handle, 8 * block, 1).await.unwrap(), vec![2; 4096], "block {block}");
        }
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn errors_of_the_cache_cost_nothing_that_the_origin_has() {
    on_a_shard(|| async {
        let slow = disk(512);
        let origin = slow.open().await.unwrap();
        origin.write(BlockIndex(0), full(1, 512), Durability::Durable).await.unwrap();
        // After the head of the first chunk there is only data. Its reads fail after the first 200.
        let rules = ["range=128KiB..3MiB read error=EIO after=200".to_owned()];
        let rules = parse_rules(&rules, stack::Contract::Device).unwrap();
        let broken = Arc::new(FaultDevicePart::new(fast(), rules, 1).unwrap());
        let part = CachePart::open(slow.clone(), broken, "slow", &made(Mode::Writeback)).await.unwrap();
        let handle = part.open().await.unwrap();
        for round in 0..100 {
            for block in 0..4 {
                let found = read(&*handle, 8 * block, 1).await.unwrap();
                assert_eq!(found, vec![1; 4096], "round {round}, block {block}");
                runtime::yield_now().await;
            }
        }
        assert!(count(&part, "cache_errors").await > 0, "nothing went wrong: {:?}", part.status().await);
        write(&*handle, 100, 2).await.unwrap();
        let (outcome, found) = handle.read(BlockIndex(100), Buffer::new(4096)).await;
        assert!(matches!(outcome, Err(Error::Io(_))), "{outcome:?}");
        assert!(found.filled().is_empty(), "what only the cache has is never zeros");
        drop(handle);
    });
}

#[test]
fn a_cache_that_cant_be_written_is_gone_without_for_writethrough_and_an_error_for_writeback() {
    on_a_shard(|| async {
        for mode in [Mode::Writethrough, Mode::Writeback] {
            let slow = disk(512);
            let rules = ["range=128KiB..3MiB write error=EIO".to_owned()];
            let rules = parse_rules(&rules, stack::Contract::Device).unwrap();
            let broken = Arc::new(FaultDevicePart::new(fast(), rules, 1).unwrap());
            let part = CachePart::open(slow.clone(), broken, "slow", &made(mode)).await.unwrap();
            let handle = part.open().await.unwrap();
            let written = write(&*handle, 9, 1).await;
            match mode {
                Mode::Writethrough => {
                    written.unwrap();
                    handle.flush().await.unwrap();
                    assert_eq!(read(&*handle, 9, 1).await.unwrap(), vec![1; 4096]);
                }
                _ => {
                    assert!(matches!(written, Err(Error::Io(_))), "{written:?}");
                    assert_eq!(read(&*handle, 9, 1).await.unwrap(), vec![0; 4096], "nothing is lost");
                }
            }
            drop(handle);
            part.close().await.unwrap();
        }
    });
}

#[test]
fn a_table_that_failed_says_so() {
    on_a_shard(|| async {
        // Superblocks, journal and the table itself: everything but data.
        let rules = ["range=0..128KiB write error=EIO".to_owned()];
        let fault = FaultDevicePart::new(fast(), parse_rules(&rules, stack::Contract::Device).unwrap(), 1);
        let broken = Arc::new(fault.unwrap());
        broken.message("rules off").await.unwrap();
        let part = CachePart::open(disk(512), broken.clone(), "slow", &made(Mode::Writeback)).await.unwrap();
        let handle = part.open().await.unwrap();
        write(&*handle, 9, 1).await.unwrap();
        handle.flush().await.unwrap();
        assert_eq!(part.status().await["metadata_mode"], "rw");
        assert!(!part.status().await.contains_key("error"), "{:?}", part.status().await);
        broken.message("rules on").await.unwrap();
        write(&*handle, 100, 1).await.unwrap();
        let flushed = handle.flush().await;
        assert!(matches!(flushed, Err(Error::Io(_))), "{flushed:?}");
        assert_eq!(part.status().await["metadata_mode"], "fail");
        let error = part.status().await["error"].as_str().unwrap_or_default().to_owned();
        assert!(error.contains("cache: writing its table failed"), "{error}");
        assert_eq!(error, flushed.unwrap_err().to_string());
        assert_eq!(read(&*handle, 100, 1).await.unwrap(), vec![1; 4096], "what is there can be read");
        drop(handle);
        assert!(part.close().await.is_err(), "something was lost");
    });
}

#[test]
fn long_runs_go_past_the_cache() {
    on_a_shard(|| async {
        let options = Options { sequential_threshold: 64 << 10, ..made(Mode::Writeback) };
        let part = CachePart::open(disk(4096), fast(), "slow", &options).await.unwrap();
        let handle = part.open().await.unwrap();
        for block in 0..512 {
            write(&*handle, block, 1).await.unwrap();
        }
        assert!(count(&part, "bypassed").await > 400, "{:?}", part.status().await);
        // The first 64 KiB, and blocks whose promotion had begun.
        assert!(count(&part, "used_blocks").await <= 3, "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
    });
}

#[test]
fn promotions_are_throttled() {
    simulated(|| async {
        // One block at a time.
        let options = Options { migration_threshold: 0, ..made(Mode::Writethrough) };
        let rules = parse_rules(&["write delay=5ms".to_owned()], stack::Contract::Device).unwrap();
        let slowed = Arc::new(FaultDevicePart::new(fast(), rules, 1).unwrap());
        let part = CachePart::open(disk(4096), slowed, "slow", &options).await.unwrap();
        let handle = part.open().await.unwrap();
        let reads = (0..64).map(|number| read(&*handle, 8 * number, 1));
        runtime::join_all(reads).await;
        runtime::sleep(Duration::from_millis(20)).await;
        assert_eq!(count(&part, "promotions").await, 1, "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
    });
}

/// Runs a test in virtual time, which passes only while all tasks wait.
fn simulated<Fut: Future<Output = ()> + 'static>(main: impl FnOnce() -> Fut + Send) {
    runtime::simulate(runtime::Simulation::new(1), main).unwrap();
}

/// A slot is reused for another block only after the read has ended.
#[test]
fn a_block_stays_while_it_is_read() {
    simulated(|| async {
        let slow = disk(1024);
        let origin = slow.open().await.unwrap();
        for block in 0..2 {
            let data = full(1 + block as u8, 8);
            origin.write(BlockIndex(8 * block), data, Durability::Durable).await.unwrap();
        }
        let rules = parse_rules(&["read delay=50ms".to_owned()], stack::Contract::Device).unwrap();
        let slowed = Arc::new(FaultDevicePart::new(fast(), rules, 1).unwrap());
        slowed.message("rules off").await.unwrap();
        let part = CachePart::open(slow, slowed.clone(), "slow", &made(Mode::Writethrough)).await.unwrap();
        let handle = part.open().await.unwrap();
        read(&*handle, 0, 8).await.unwrap();
        until(&part, "promotions", 1).await;
        slowed.message("rules on").await.unwrap();
        let reading = runtime::spawn({
            let handle = handle.clone();
            async move { read(&*handle, 0, 8).await.unwrap() }
        });
        until(&part, "read_hits", 1).await;
        part.message("warm evict 0+32768").await.unwrap();
        until(&part, "used_blocks", 0).await;
        // This block gets the slot that was freed last.
        read(&*handle, 8, 8).await.unwrap();
        until(&part, "promotions", 2).await;
        assert!(reading.await == vec![1; 8 * 4096], "another block's bytes");
        drop(handle);
        part.close().await.unwrap();
    });
}

/// A block that stays held could never be evicted.
#[test]
fn a_read_that_is_dropped_before_it_begins_holds_no_block() {
    simulated(|| async {
        let options = Options { sequential_threshold: 16 << 10, ..made(Mode::Writethrough) };
        let part = CachePart::open(disk(1024), fast(), "slow", &options).await.unwrap();
        let handle = part.open().await.unwrap();
        write(&*handle, 5, 1).await.unwrap();
        // The read is long enough to promote nothing, and one of its blocks is cached.
        drop(handle.read(BlockIndex(0), Buffer::new(8 * 4096)));
        part.message("warm evict 0+32768").await.unwrap();
        assert_eq!(count(&part, "used_blocks").await, 0, "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
    });
}

/// A cache over a slow device that can be made to fail.
struct Reads {
    part: CachePart,
    slow: Arc<FaultDevicePart>,
    handle: Rc<dyn Device>,
}

impl Reads {
    /// Creates the cache; each block of the origin contains its number.
    async fn new(mode: Mode, block_size: u64) -> Reads {
        let blocks = 8192;
        let slow = disk(blocks);
        let origin = slow.open().await.unwrap();
        for at in (0..blocks).step_by(256) {
            let pieces: Vec<u8> = (at..at + 256).flat_map(Reads::block).collect();
            origin.write(BlockIndex(at), Buffer::copy_of(&pieces).into(), Durability::Durable).await.unwrap();
        }
        let rules = parse_rules(&["read error=EIO".to_owned()], stack::Contract::Device).unwrap();
        let slow = Arc::new(FaultDevicePart::new(slow, rules, 1).unwrap());
        slow.message("rules off").await.unwrap();
        let fast =
            Arc::new(disks::ram::RamPart::new(2 * block_size + (64 << 20), BlockSize::default()).unwrap());
        let options = Options { block_size, ..made(mode) };
        let part = CachePart::open(slow.clone(), fast, "slow", &options).await.unwrap();
        let handle = part.open().await.unwrap();
        Reads { part, slow, handle }
    }

    fn block(number: u64) -> Vec<u8> {
        number.to_le_bytes().repeat(512)
    }

    /// Reads blocks until they are a hit; their contents must be right each time.
    async fn until_hit(&self, at: u64, expected: &[u64]) {
        let expected: Vec<u8> = expected.iter().flat_map(|number| Reads::block(*number)).collect();
        for _ in 0..5000 {
            let before = count(&self.part, "read_hits").await;
            let found = read(&*self.handle, at, expected.len() / 4096).await.unwrap();
            assert!(found == expected, "block {at}");
            if count(&self.part, "read_hits").await > before {
                return;
            }
            runtime::sleep(Duration::from_millis(2)).await;
        }
        panic!("block {at} never comes in: {:?}", self.part.status().await);
    }

    /// Checks that these blocks are cached: reads succeed without the origin.
    async fn has(&self, blocks: impl IntoIterator<Item = u64>) {
        self.slow.message("rules on").await.unwrap();
        for number in blocks {
            let found = read(&*self.handle, number, 1).await;
            assert!(found.is_ok_and(|found| found == Reads::block(number)), "block {number}");
        }
        self.slow.message("rules off").await.unwrap();
    }

    async fn close(self) {
        drop(self.handle);
        self.part.close().await.unwrap();
    }
}

#[test]
fn reads_bring_in_what_they_touch_whatever_the_size_of_blocks() {
    on_a_shard(|| async {
        for shift in [15, 16, 18, 19, 20, 22, 24, 25, 26, 27] {
            let reads = Reads::new(Mode::Writethrough, 1 << shift).await;
            let part = ((1_u64 << shift) / 64 / 4096).max(1);
            // Different parts of one block, or different blocks.
            for at in [0, 200, 4200, 3000, 3001] {
                reads.until_hit(at, &[at]).await;
                reads.has(at / part * part..(at / part + 1) * part).await;
            }
            assert!(count(&reads.part, "promotions").await <= 4, "{:?}", reads.part.status().await);
            reads.close().await;
        }
    });
}

/// A small write allocates a slot, and only the written parts of it are valid.
#[test]
fn reads_bring_in_the_rest_of_a_block_that_was_written_in_part() {
    on_a_shard(|| async {
        for (mode, shift) in [(Mode::Writeback, 16), (Mode::Writethrough, 16), (Mode::Writeback, 20)] {
            let reads = Reads::new(mode, 1 << shift).await;
            let (other, third): (u64, u64) = (77_777, 88_888);
            for (at, number) in [(5, other), (9, third)] {
                let payload = Buffer::copy_of(&Reads::block(number)).into();
                reads.handle.write(BlockIndex(at), payload, Durability::Visible).await.unwrap();
            }
            // Before, between and after the written parts.
            let expected = [4, other, 6, 7, 8, third, 10];
            reads.until_hit(7, &[7]).await;
            reads.until_hit(4, &expected).await;
            reads.has([4, 6, 7, 8, 10]).await;
            if shift == 16 {
                // The parts around them were promoted with them.
                reads.has([0, 1, 2, 3, 11, 12, 13, 14, 15]).await;
            }
            reads.part.message("detach").await.unwrap();
            until(&reads.part, "used_blocks", 0).await;
            let origin = reads.slow.open().await.unwrap();
            let found = read(&*origin, 4, 7).await.unwrap();
            assert!(found == expected.into_iter().flat_map(Reads::block).collect::<Vec<u8>>(), "{mode:?}");
            reads.close().await;
        }
    });
}

/// Hot blocks are still hot after a close; blocks of the small queue are evicted first.
#[test]
fn what_was_hot_stays_when_the_cache_is_opened_again() {
    on_a_shard(|| async {
        let (slow, fast) = (disk(65536), fast());
        let unthrottled = Options { migration_threshold: 1 << 20, ..made(Mode::Writethrough) };
        let part = CachePart::open(slow.clone(), fast.clone(), "slow", &unthrottled).await.unwrap();
        let handle = part.open().await.unwrap();
        let hot = 40_u64;
        // One round is one visit of each block.
        for _ in 0..5 {
            for block in 0..hot {
                read(&*handle, 8 * block, 1).await.unwrap();
            }
            until(&part, "promotions", hot).await;
            // Meanwhile the table records the cached blocks with their current heat.
            runtime::sleep(Duration::from_millis(30)).await;
        }
        write(&*handle, 8, 9).await.unwrap();
        let before = part.message("warm list 0 4096").await.unwrap();
        assert!(before.contains("small/3/"), "{before}");
        drop(handle);
        part.close().await.unwrap();
        let again = Options { format: false, ..unthrottled };
        let part = CachePart::open(slow, fast, "slow", &again).await.unwrap();
        assert_eq!(part.message("warm list 0 4096").await.unwrap(), before);
        let handle = part.open().await.unwrap();
        // A scan of ten times the cache's capacity.
        for block in 1000..1900 {
            read(&*handle, 8 * block, 1).await.unwrap();
        }
        let before = count(&part, "read_hits").await;
        for block in 0..hot {
            read(&*handle, 8 * block, 1).await.unwrap();
        }
        let hits = count(&part, "read_hits").await - before;
        assert_eq!(hits, hot, "{:?}", part.status().await);
        drop(handle);
        part.close().await.unwrap();
    });
}
