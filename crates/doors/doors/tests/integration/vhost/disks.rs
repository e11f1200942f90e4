//! The disk in a guest fulfils the whole contract of a device, on several queues and shards.

use super::front_end::{FrontEnd, Queue, Settings, Transfer};
use super::{with_disk, with_door};
use crate::support::ram;
use block::Buffer;
use doors::vhost_user::config::feature;
use doors::vhost_user::request::kind;
use std::cell::RefCell;
use std::sync::atomic::Ordering;

/// Runs the suite on a disk of a device, with these features and shards.
fn conforms(shards: usize, block: u64, features: u64) {
    with_door(shards, ram(4 << 20, block), false, async move |address| {
        let settings = Settings { queues: shards, depth: 8, features, ..Settings::default() };
        let front_ends = RefCell::new(Vec::new());
        let make = async || {
            let front_end = FrontEnd::connect(&address, settings.clone()).await.expect("it is served");
            let device = front_end.device().await.expect("a device");
            front_ends.borrow_mut().push(front_end);
            device
        };
        let options = conformance::device::Options { operations: 300, ..Default::default() };
        conformance::device::run(make, options).await.unwrap_or_else(|problem| panic!("{problem}"));
        drop(front_ends);
    });
}

#[test]
fn conforms_on_two_queues() {
    conforms(2, 4096, u64::MAX);
}

#[test]
fn conforms_without_event_index_and_indirect_tables() {
    conforms(1, 512, !(feature::EVENT_IDX | feature::INDIRECT_DESC));
}

/// Logical blocks of 4 KiB on a device with blocks of 64 KiB: parts of blocks, from two queues at a time.
#[test]
fn conforms_with_parts_of_blocks() {
    conforms(2, 65536, u64::MAX);
}

#[test]
fn a_flush_reaches_the_device_and_without_flushes_writes_are_durable() {
    with_disk(1, async |address, controls| {
        for (features, flushes, durable) in [(u64::MAX, 1, 0), (!feature::FLUSH, 0, 3)] {
            let settings = Settings { features, ..Settings::default() };
            let front_end = FrontEnd::connect(&address, settings).await.expect("it is served");
            let queue = Queue::new(front_end.shared.clone(), 0).expect("a queue");
            let before = controls.flushes.load(Ordering::SeqCst);
            let data = [7; 4096];
            assert_eq!(queue.request(kind::OUT, 8, None, Transfer::Out(&data)).await, 0);
            assert_eq!(queue.request(kind::WRITE_ZEROES, 16, Some((8, 1)), Transfer::None).await, 0);
            assert_eq!(queue.request(kind::OUT, 9, None, Transfer::Out(&data[..512])).await, 0);
            assert_eq!(controls.flushes.load(Ordering::SeqCst), before, "none was requested");
            if features & feature::FLUSH != 0 {
                assert_eq!(queue.request(kind::FLUSH, 0, None, Transfer::None).await, 0);
            }
            assert_eq!(controls.flushes.load(Ordering::SeqCst) - before, flushes);
            assert_eq!(controls.durable_writes.swap(0, Ordering::SeqCst), durable);
        }
    });
}

#[test]
fn requests_that_cant_be_carried_out_are_answered() {
    with_disk(2, async |address, controls| {
        controls.broken.lock().expect("not poisoned").insert(9);
        let front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        let queue = Queue::new(front_end.shared.clone(), 0).expect("a queue");
        let (data, end) = ([1; 4096], 256 * 8);
        for (kind, sector, range, out, expected) in [
            (kind::OUT, end, None, Some(512), 1),
            (kind::OUT, end - 1, None, Some(512), 0),
            (kind::OUT, end - 1, None, Some(1024), 1),
            (kind::OUT, u64::MAX, None, Some(512), 1),
            (kind::OUT, u64::MAX / 512, None, Some(512), 1),
            (kind::OUT, 0, None, Some(513), 1),
            (kind::OUT, 9 * 8, None, Some(4096), 1),
            (kind::OUT, 3, None, Some(0), 0),
            (kind::DISCARD, end - 8, Some((9, 0)), None, 1),
            (kind::DISCARD, u64::MAX, Some((u32::MAX, 0)), None, 1),
            (kind::DISCARD, 0, Some((8, 1)), None, 2),
            (kind::WRITE_ZEROES, 0, Some((8, 2)), None, 2),
            (kind::WRITE_ZEROES, 0, Some((0, 0)), None, 0),
            (kind::WRITE_ZEROES, 0, None, None, 1),
            (14, 0, None, None, 2),
            (u32::MAX, 0, None, None, 2),
        ] {
            let transfer = out.map_or(Transfer::None, |length: usize| Transfer::Out(&data[..length]));
            let status = queue.request(kind, sector, range, transfer).await;
            assert_eq!(status, expected, "{kind} at {sector} {range:?} {out:?}");
        }
        let mut serial = Buffer::new(20);
        assert_eq!(queue.request(kind::GET_ID, 0, None, Transfer::In(&mut serial)).await, 0);
        assert_eq!(serial.filled(), b"0123456789abcdefghij");
        let mut block = Buffer::new(4096);
        assert_eq!(queue.request(kind::IN, 9 * 8, None, Transfer::In(&mut block)).await, 1);
    });
}

#[test]
fn a_read_only_disk_says_so_and_keeps_its_bytes() {
    with_door(1, ram(1 << 20, 512), true, async |address| {
        let front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        assert_eq!(front_end.shared.features & (feature::RO | feature::DISCARD), feature::RO);
        let queue = Queue::new(front_end.shared.clone(), 0).expect("a queue");
        assert_eq!(queue.request(kind::OUT, 0, None, Transfer::Out(&[1; 512])).await, 1);
        assert_eq!(queue.request(kind::WRITE_ZEROES, 0, Some((8, 0)), Transfer::None).await, 1);
        let mut block = Buffer::new(512);
        assert_eq!(queue.request(kind::IN, 0, None, Transfer::In(&mut block)).await, 0);
        assert_eq!(block.filled(), [0; 512]);
    });
}

/// More requests than a queue takes at a time, and more data than its memory limit: all are served.
#[test]
fn a_queue_at_its_limits_goes_on() {
    with_door(1, ram(64 << 20, 4096), false, async |address| {
        let settings = Settings { depth: 200, request_bytes: 512 << 10, ..Settings::default() };
        let front_end = FrontEnd::connect(&address, settings).await.expect("it is served");
        let queue = std::rc::Rc::new(Queue::new(front_end.shared.clone(), 0).expect("a queue"));
        let tasks = (0..200_u64).map(|number| {
            let queue = queue.clone();
            runtime::spawn(async move {
                let mut buffer = Buffer::new(512 << 10);
                let sector = number % 64 * 1024;
                assert_eq!(queue.request(kind::IN, sector, None, Transfer::In(&mut buffer)).await, 0);
                assert_eq!(buffer.filled().len(), 512 << 10);
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await;
        }
    });
}
