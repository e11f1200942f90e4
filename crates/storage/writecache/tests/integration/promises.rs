//! Failures of the write cache's devices, and messages of operators.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Data, Device, DeviceGeometry, DevicePart, Durability,
    Error, Part,
};
use conformance::requests::{full, on_a_shard, read, write};
use layers::fault::{FaultDevicePart, parse_rules};
use layers::record::replay::ImageDisk;
use stack::Contract;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use writecache::{Options, Order, WriteCachePart};

const ORIGIN: u64 = 512;
const CACHE: u64 = 130;

/// A disk with this rule, switched off.
fn faulty(blocks: u64, rule: &str) -> Arc<FaultDevicePart> {
    let geometry = DeviceGeometry {
        block_size: BlockSize::default(),
        blocks: BlockCount(blocks),
        atomic_write: 512,
        volatile_cache: true,
        read_only: false,
    };
    let rules = parse_rules(&[rule.to_owned()], Contract::Device).unwrap();
    Arc::new(FaultDevicePart::new(Arc::new(ImageDisk::empty(geometry)), rules, 1).unwrap())
}

struct Stack {
    origin: Arc<FaultDevicePart>,
    fast: Arc<FaultDevicePart>,
    part: Arc<WriteCachePart>,
    device: Rc<dyn Device>,
}

/// A write cache over disks that fail by these rules once they are switched on.
async fn stack(origin: &str, fast: &str, options: Options) -> Stack {
    let (origin, fast) = (faulty(ORIGIN, origin), faulty(CACHE, fast));
    for disk in [&origin, &fast] {
        disk.message("rules off").await.unwrap();
    }
    let options = Options { format: true, ..options };
    let part = Arc::new(WriteCachePart::open(origin.clone(), fast.clone(), options).await.unwrap());
    let device = part.open().await.unwrap();
    Stack { origin, fast, part, device }
}

/// Options of a cache that writes back only on a message, or when it is full.
fn lazy() -> Options {
    Options { high_watermark: 100, low_watermark: 100, ..Options::default() }
}

impl Stack {
    async fn status(&self, name: &str) -> u64 {
        self.part.status().await[name].as_u64().unwrap()
    }

    /// First byte of a block on the origin.
    async fn on_origin(&self, block: u64) -> u8 {
        read(&*self.origin.open().await.unwrap(), block, 1).await.unwrap()[0]
    }

    /// Writes everything back. The first answers may still be the error of the previous attempt.
    async fn flush_soon(&self) {
        let mut flushed = self.part.message("flush").await;
        for _ in 0..5 {
            if flushed.is_err() {
                flushed = self.part.message("flush").await;
            }
        }
        flushed.unwrap();
    }

    async fn close(self) -> (Arc<FaultDevicePart>, Arc<FaultDevicePart>) {
        drop(self.device);
        self.part.close().await.unwrap();
        (self.origin, self.fast)
    }
}

#[test]
fn writes_stay_in_the_cache_until_they_are_told_to_go() {
    on_a_shard(|| async {
        let stack = stack("any error=EIO", "any error=EIO", lazy()).await;
        for block in 0..20 {
            write(&*stack.device, block, 7).await.unwrap();
        }
        assert_eq!((stack.on_origin(3).await, read(&*stack.device, 3, 1).await.unwrap()[0]), (0, 7));
        assert_eq!(
            (stack.status("cached_blocks").await, stack.status("only_in_cache_bytes").await),
            (20, 20 * 4096)
        );
        let said = stack.part.message("flush").await.unwrap();
        assert!(said.contains("on the origin"), "{said}");
        assert_eq!((stack.on_origin(3).await, stack.status("cached_blocks").await), (7, 0));
        assert_eq!(stack.status("written_back").await, 20);
        stack.part.message("clear_stats").await.unwrap();
        assert_eq!(stack.status("written_back").await, 0);
        let error = stack.part.message("defragment").await.unwrap_err();
        assert!(error.detail().contains("flush_on_suspend"), "{error}");
        // Opened again, the cache takes writes, and has the blocks that were cached.
        write(&*stack.device, 1, 9).await.unwrap();
        let (origin, fast) = stack.close().await;
        let part = WriteCachePart::open(origin.clone(), fast.clone(), lazy()).await.unwrap();
        let device = part.open().await.unwrap();
        assert_eq!(read(&*device, 0, 4).await.unwrap()[4096], 9);
        part.message("flush_on_suspend").await.unwrap();
        drop(device);
        part.close().await.unwrap();
        assert_eq!(read(&*origin.open().await.unwrap(), 1, 1).await.unwrap()[0], 9);
    });
}

/// Clients that flush after each write: writes that wait for a record share one, even with flushes between
/// them.
#[test]
fn flushes_of_other_clients_do_not_divide_records() {
    const CLIENTS: u64 = 8;
    const WRITES: u64 = 12;
    let clients = || async {
        let stack = stack("any error=EIO", "write delay=200us", lazy()).await;
        stack.fast.message("rules on").await.unwrap();
        let client = |number| {
            let device = stack.device.clone();
            runtime::spawn(async move {
                for _ in 0..WRITES {
                    write(&*device, number, 1).await.unwrap();
                    device.flush().await.unwrap();
                }
            })
        };
        runtime::join_all((0..CLIENTS).map(client).collect::<Vec<_>>()).await;
        stack.status("records").await
    };
    let records = runtime::simulate(runtime::Simulation::new(1), clients).unwrap().value;
    assert!(records <= CLIENTS * WRITES / 2, "{records} records for {} writes", CLIENTS * WRITES);
}

#[test]
fn an_origin_that_fails_stops_writers_when_the_cache_is_full_and_nothing_is_lost() {
    on_a_shard(|| async {
        let stack = stack("write error=EIO", "any error=EIO", Options::default()).await;
        stack.origin.message("rules on").await.unwrap();
        let mut acknowledged = 0;
        let error = loop {
            match write(&*stack.device, acknowledged, acknowledged as u8).await {
                Ok(()) => acknowledged += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::Io(_)) && error.detail().contains("full"), "{error}");
        assert!((50..CACHE).contains(&acknowledged), "{acknowledged}");
        assert!(stack.part.status().await["writeback_error"].as_str().unwrap().contains("of the origin"));
        // Reads still succeed, and so do all requests once the origin works again.
        assert_eq!(read(&*stack.device, 30, 1).await.unwrap()[0], 30);
        assert!(stack.part.message("flush").await.is_err());
        stack.origin.message("rules off").await.unwrap();
        stack.part.message("flush").await.unwrap();
        assert!(stack.part.status().await.get("writeback_error").is_none());
        for block in 0..acknowledged {
            assert_eq!(stack.on_origin(block).await, block as u8);
            write(&*stack.device, block, 1).await.unwrap();
        }
        stack.close().await;
    });
}

#[test]
fn a_cache_device_that_fails_takes_no_more_writes_and_what_it_holds_is_kept() {
    on_a_shard(|| async {
        let stack = stack("any error=EIO", "write error=EIO", lazy()).await;
        write(&*stack.device, 5, 5).await.unwrap();
        stack.device.flush().await.unwrap();
        stack.fast.message("rules on").await.unwrap();
        let error = write(&*stack.device, 6, 6).await.unwrap_err();
        assert!(error.detail().contains("takes no more writes"), "{error}");
        stack.fast.message("rules off").await.unwrap();
        assert!(
            write(&*stack.device, 6, 6).await.is_err(),
            "a record is missing: nothing behind it would be found"
        );
        assert!(stack.device.flush().await.is_err());
        assert_eq!(read(&*stack.device, 5, 2).await.unwrap(), [[5; 4096], [0; 4096]].concat());
        drop(stack.device);
        assert!(stack.part.close().await.is_err());
        let part = WriteCachePart::open(stack.origin, stack.fast, lazy()).await.unwrap();
        let device = part.open().await.unwrap();
        assert_eq!(read(&*device, 5, 2).await.unwrap(), [[5; 4096], [0; 4096]].concat());
        write(&*device, 6, 6).await.unwrap();
        drop(device);
        part.close().await.unwrap();
    });
}

/// A superblock whose write failed may be on the medium. Here it is: its log begins after the batch, so the
/// batch must not be written to the origin a second time.
#[test]
fn what_is_on_the_origin_isnt_written_back_again_because_the_superblock_fails() {
    on_a_shard(|| async {
        let stack = stack("any error=EIO", "write range=0..8KiB torn at=4096 error=EIO", lazy()).await;
        write(&*stack.device, 5, 1).await.unwrap();
        stack.device.discard(BlockRange::new(5, 1)).await.unwrap();
        write(&*stack.device, 5, 2).await.unwrap();
        stack.device.flush().await.unwrap();
        stack.fast.message("rules on").await.unwrap();
        for _ in 0..3 {
            stack.part.message("flush").await.unwrap_err();
            assert_eq!((stack.on_origin(5).await, read(&*stack.device, 5, 1).await.unwrap()[0]), (2, 2));
        }
        assert!(stack.part.status().await["writeback_error"].as_str().unwrap().contains("superblock"));
        stack.fast.message("rules off").await.unwrap();
        stack.part.message("flush").await.unwrap();
        assert_eq!((stack.status("origin_flushes").await, stack.status("batches").await), (1, 1));
        assert_eq!((stack.on_origin(5).await, stack.status("cached_blocks").await), (2, 0));
        let (origin, fast) = stack.close().await;
        let options = Options { format: false, ..lazy() };
        let part = WriteCachePart::open(origin, fast, options).await.unwrap();
        let device = part.open().await.unwrap();
        assert_eq!(read(&*device, 5, 1).await.unwrap()[0], 2);
        drop(device);
        part.close().await.unwrap();
    });
}

#[test]
fn what_has_rotted_is_neither_read_nor_written_back() {
    on_a_shard(|| async {
        for (header, data) in [(false, true), (true, false), (true, true)] {
            let stack = stack("any error=EIO", "any error=EIO", lazy()).await;
            for value in 1..=3 {
                write(&*stack.device, value, value as u8).await.unwrap();
            }
            let fast = stack.fast.open().await.unwrap();
            let mut place = 0;
            while read(&*fast, place, 1).await.unwrap() != [2; 4096] {
                place += 1;
            }
            for (rots, place) in [(header, place - 1), (data, place)] {
                let mut bytes = read(&*fast, place, 1).await.unwrap();
                bytes[9] ^= u8::from(rots);
                fast.write(BlockIndex(place), Data::copy_of(&bytes).into(), Durability::Visible)
                    .await
                    .unwrap();
            }
            match read(&*stack.device, 2, 1).await {
                Ok(bytes) => assert_eq!((data, bytes), (false, vec![2; 4096])),
                Err(error) => {
                    assert!(data, "{error}");
                    assert!(matches!(&error, Error::Corrupt(text) if text.contains("block 2")), "{error}");
                }
            }
            let stopped = stack.part.message("flush").await.unwrap_err();
            assert!(stopped.detail().contains("give_up_rotten"), "{stopped}");
            assert_eq!((stack.on_origin(2).await, stack.on_origin(3).await), (0, 0));
            stack.part.message("give_up_rotten").await.unwrap();
            stack.flush_soon().await;
            let on_origin = [stack.on_origin(1).await, stack.on_origin(2).await, stack.on_origin(3).await];
            assert_eq!((on_origin, stack.status("cached_blocks").await), ([1, 2, 3], 0));
            drop(fast);
            stack.close().await;
        }
    });
}

/// An unreadable block of the ring, header or data, is released like one whose checksum is wrong.
#[test]
fn what_cant_be_read_keeps_write_back_until_it_is_given_up() {
    on_a_shard(|| async {
        for is_header in [false, true] {
            // Superblocks 0 and 1; then a header and a block of data for each write.
            let block = if is_header { 4 } else { 5 };
            let rule = format!("read error=EIO range={}..{}", block * 4096, (block + 1) * 4096);
            let stack = stack("any error=EIO", &rule, lazy()).await;
            for value in 1..=3 {
                write(&*stack.device, value, value as u8).await.unwrap();
            }
            stack.fast.message("rules on").await.unwrap();
            let stopped = stack.part.message("flush").await.unwrap_err();
            assert!(
                matches!(stopped, Error::Io(_)) && stopped.detail().contains("give_up_rotten"),
                "{stopped}"
            );
            assert_eq!((stack.on_origin(2).await, stack.on_origin(3).await), (0, 0));
            let status = stack.part.status().await;
            assert_eq!(status["unreadable_addresses"].as_array().unwrap().len(), 1, "{status:?}");
            let said = stack.part.message("give_up_rotten").await.unwrap();
            assert!(said.contains("1 that can't be read"), "{said}");
            stack.flush_soon().await;
            let on_origin = [stack.on_origin(1).await, stack.on_origin(2).await, stack.on_origin(3).await];
            // The data of a record without its header is known as long as the cache is open.
            let second = if is_header { 2 } else { 0 };
            assert_eq!((on_origin, stack.status("cached_blocks").await), ([1, second, 3], 0));
            assert_eq!(stack.status("lost_blocks").await, u64::from(!is_header));
            assert!(stack.part.status().await.get("unreadable_addresses").is_none());
            stack.close().await;
        }
    });
}

#[test]
fn what_does_not_belong_together_is_refused_by_name() {
    on_a_shard(|| async {
        let stack = stack("any error=EIO", "any error=EIO", lazy()).await;
        write(&*stack.device, 1, 1).await.unwrap();
        let (origin, fast) = stack.close().await;
        let refused =
            async |origin: Arc<FaultDevicePart>, fast: Arc<FaultDevicePart>| match WriteCachePart::open(
                origin,
                fast,
                lazy(),
            )
            .await
            {
                Ok(_) => panic!("it was opened"),
                Err(error) => error,
            };
        let off = async |disk: Arc<FaultDevicePart>| {
            disk.message("rules off").await.unwrap();
            disk
        };
        let blank = off(faulty(CACHE, "any error=EIO")).await;
        let error = refused(origin.clone(), blank).await;
        assert!(
            matches!(error, Error::Protocol(_)) && error.detail().contains("siltstone format"),
            "{error}"
        );
        let smaller = off(faulty(ORIGIN - 1, "any error=EIO")).await;
        let error = refused(smaller, fast.clone()).await;
        assert!(error.detail().contains("formatted for an origin of 512 blocks"), "{error}");
        // An origin that has grown is accepted.
        let larger = off(faulty(ORIGIN + 5, "any error=EIO")).await;
        let part = WriteCachePart::open(larger, fast, lazy()).await.unwrap();
        let device = part.open().await.unwrap();
        assert_eq!(read(&*device, 1, 1).await.unwrap()[0], 1);
        write(&*device, ORIGIN + 4, 4).await.unwrap();
        drop(device);
        part.close().await.unwrap();
    });
}

#[test]
fn old_writes_are_written_back_and_flushes_of_the_cache_come_by_themselves() {
    on_a_shard(|| async {
        let mut options = lazy();
        options.settings.max_age = Some(Duration::from_millis(40));
        options.settings.autocommit_time = Duration::from_millis(10);
        let stack = stack("any error=EIO", "any error=EIO", options).await;
        write(&*stack.device, 1, 1).await.unwrap();
        let began = runtime::now();
        while stack.on_origin(1).await == 0 {
            assert!(began.elapsed() < Duration::from_secs(20), "it was never written back");
            runtime::sleep(Duration::from_millis(5)).await;
        }
        assert!(began.elapsed() >= Duration::from_millis(30), "it was written back before it was old");
        stack.close().await;
    });
}

#[test]
fn a_cleaner_empties_the_cache_and_then_writes_go_around_it() {
    on_a_shard(|| async {
        let stack = stack("any error=EIO", "any error=EIO", lazy()).await;
        for block in 0..40 {
            write(&*stack.device, block, 3).await.unwrap();
        }
        stack.part.message("cleaner").await.unwrap();
        // The cache drains although writes continue.
        for turn in 0.. {
            assert!(turn < 20, "the cache is never empty");
            for block in 20..60 {
                write(&*stack.device, block, 4).await.unwrap();
            }
            if stack.status("writes_around").await > 0 {
                break;
            }
        }
        assert_eq!((stack.status("cached_blocks").await, stack.on_origin(59).await), (0, 4));
        stack.device.write(BlockIndex(1), full(5, 1), Durability::Durable).await.unwrap();
        stack.device.discard(BlockRange::new(2, 3)).await.unwrap();
        stack.device.flush().await.unwrap();
        assert_eq!((stack.on_origin(1).await, stack.on_origin(3).await, stack.on_origin(5).await), (5, 0, 3));
        stack.close().await;
    });
}

#[test]
fn blocks_written_again_and_again_go_to_the_origin_once_between_flushes() {
    on_a_shard(|| async {
        for (order, least) in [(Order::Flushes, 4), (Order::None, 1)] {
            let mut options = lazy();
            options.settings.order = order;
            let stack = stack("any error=EIO", "any error=EIO", options).await;
            for version in 0..4 {
                for _ in 0..3 {
                    write(&*stack.device, 9, version + 1).await.unwrap();
                }
                stack.device.flush().await.unwrap();
            }
            stack.part.message("flush").await.unwrap();
            assert_eq!(
                (stack.status("written_back").await, stack.on_origin(9).await),
                (least, 4),
                "{order:?}"
            );
            assert_eq!(stack.status("superseded").await, 12 - least);
            stack.close().await;
        }
    });
}

impl Stack {
    /// Copies of the present contents of both disks, as disks: origin and cache.
    async fn copies(&self) -> [Arc<FaultDevicePart>; 2] {
        let copies = [(&self.origin, ORIGIN), (&self.fast, CACHE)].map(async |(disk, blocks)| {
            let copy = faulty(blocks, "any error=EIO");
            copy.message("rules off").await.unwrap();
            let bytes = read(&*disk.open().await.unwrap(), 0, blocks as usize).await.unwrap();
            let payload = block::Data::copy_of(&bytes).into();
            copy.open().await.unwrap().write(BlockIndex(0), payload, Durability::Visible).await.unwrap();
            copy
        });
        let [origin, fast] = copies;
        [origin.await, fast.await]
    }
}

/// With either superblock after a power cut, no older version overwrites data that was written around the
/// cache.
#[test]
fn no_superblock_brings_back_what_was_written_over_around_the_cache() {
    on_a_shard(|| async {
        let stack = stack("any error=EIO", "any error=EIO", lazy()).await;
        write(&*stack.device, 5, 1).await.unwrap();
        stack.part.message("cleaner").await.unwrap();
        stack.part.message("flush").await.unwrap();
        write(&*stack.device, 5, 2).await.unwrap();
        stack.device.flush().await.unwrap();
        assert_eq!((stack.on_origin(5).await, stack.status("writes_around").await), (2, 1));
        for rotten in [None, Some(0), Some(1)] {
            let [origin, fast] = stack.copies().await;
            if let Some(block) = rotten {
                write(&*fast.open().await.unwrap(), block, 0xAA).await.unwrap();
            }
            let part = WriteCachePart::open(origin.clone(), fast, lazy()).await.unwrap();
            let device = part.open().await.unwrap();
            assert_eq!(read(&*device, 5, 1).await.unwrap()[0], 2, "superblock {rotten:?} is rotten");
            part.message("flush").await.unwrap();
            assert_eq!(read(&*origin.open().await.unwrap(), 5, 1).await.unwrap()[0], 2);
            drop(device);
            part.close().await.unwrap();
        }
        stack.close().await;
    });
}

#[test]
fn a_close_ends_a_flush_to_the_origin_that_an_operator_waits_for() {
    on_a_shard(|| async {
        let stack = stack("write delay=5ms", "any error=EIO", lazy()).await;
        // Each block is in an epoch of its own, and so in a batch of its own.
        for block in 0..10 {
            write(&*stack.device, block, 7).await.unwrap();
            stack.device.flush().await.unwrap();
        }
        stack.origin.message("rules on").await.unwrap();
        let part = stack.part.clone();
        let flush = runtime::spawn(async move { part.message("flush").await });
        runtime::sleep(Duration::from_millis(7)).await;
        // An open handle doesn't delay the close.
        let closed = runtime::timeout(Duration::from_secs(1), stack.part.close()).await;
        closed.expect("the close waits for the flush, and that for write-back, which has ended").unwrap();
        let error = flush.await.unwrap_err();
        assert!(matches!(error, Error::Closed(_)), "{error}");
        assert!(stack.on_origin(0).await == 7 && stack.on_origin(9).await == 0, "it was cut short");
    });
}
