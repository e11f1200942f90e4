//! Start and end of queues, connections and the door, and kills of a server.

use super::front_end::{FrontEnd, GUEST, Queue, Settings, Shared, Transfer, USER, set};
use super::{door, with_disk, with_door};
use crate::support::{SlowDisk, ram, run, socket};
use block::Buffer;
use doors::vhost_user::inflight::Inflight;
use doors::vhost_user::protocol::{InflightDescription, RegionDescription, number};
use doors::vhost_user::request::kind;
use stack::{Door, Registry, Stack};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        runtime::sleep(Duration::from_micros(100)).await;
    }
}

/// Writes a write of block `number` with `byte`s into the descriptors that start at `3 * number`.
fn prepare_write(shared: &Shared, number: u64) -> u16 {
    let layout = shared.settings.layout(0);
    let at = layout.slots + number as usize * 8192;
    let (guest, head) = (GUEST + at as u64, 3 * number as u16);
    let mut header = [0; 16];
    header[0] = kind::OUT as u8;
    header[8..].copy_from_slice(&(number * 8).to_le_bytes());
    shared.memory.write(at, &header);
    shared.memory.write(at + 4096, &[number as u8 + 1; 4096]);
    let index = usize::from(head);
    shared.describe(layout.descriptors, index, guest, 16, 1, head + 1);
    shared.describe(layout.descriptors, index + 1, guest + 4096, 4096, 1, head + 2);
    shared.describe(layout.descriptors, index + 2, guest + 16, 1, 2, 0);
    head
}

fn used_heads(shared: &Shared, count: usize) -> Vec<u32> {
    let used = shared.settings.layout(0).used;
    let head = |slot: usize| {
        let mut bytes = [0; 4];
        shared.memory.read(used + 4 + 8 * slot, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    (0..count).map(head).collect()
}

/// Requests that a killed server had taken are executed by the next one: exactly those, each once.
#[test]
fn requests_of_a_killed_server_are_submitted_again() {
    with_disk(1, async |address, controls| {
        let front_end = FrontEnd::negotiate(&address, Settings::default()).await.expect("it is served");
        let (shared, layout) = (front_end.shared.clone(), front_end.shared.settings.layout(0));
        drop(front_end);
        let heads: Vec<u16> = (0..5).map(|number| prepare_write(&shared, number)).collect();
        (0..5).for_each(|index| shared.offer(&layout, index as u16, heads[index]));
        // The previous server had taken the first four requests and completed the third.
        let asked = InflightDescription { length: 0, offset: 0, queues: 1, queue_size: layout.size as u16 };
        let (description, descriptor) = Inflight::create(&asked, 4).expect("memory");
        let record = Inflight::map(&description, &descriptor, 4).expect("mapped");
        let mut queue = record.queue(0, layout.size as u16).expect("a queue");
        assert_eq!(queue.recover(0), Ok(vec![]));
        heads[..4].iter().for_each(|head| queue.submit(*head));
        queue.complete(heads[2]);
        shared.memory.write(layout.used + 4, &u32::from(heads[2]).to_le_bytes());
        shared.store(layout.used + 2, 1);
        let shared = Arc::into_inner(shared).expect("it is closed");
        let mut front_end = FrontEnd::resume(&address, shared).await.expect("it is served");
        front_end.set_inflight(description, descriptor).await.expect("taken");
        // QEMU knows only the used index.
        front_end.start_queue(0, 1).await.expect("started");
        let shared = front_end.shared.clone();
        until(|| shared.load(layout.used + 2) == 5).await;
        let mut used = used_heads(&shared, 5);
        used.sort_unstable();
        assert_eq!(used, heads.iter().map(|head| u32::from(*head)).collect::<Vec<_>>());
        assert_eq!(controls.begun.load(Ordering::SeqCst), 4, "the completed one isn't written again");
        assert_eq!(front_end.stop_queue(0).await.expect("stopped"), 5);
        let mut queue = record.queue(0, layout.size as u16).expect("a queue");
        assert_eq!(queue.recover(5), Ok(vec![]), "none is in flight");
    });
}

/// A front-end that disconnects with requests in flight: they end and are completed in its memory, and the
/// next connection continues there.
#[test]
fn requests_in_flight_end_before_the_next_connection() {
    with_disk(2, async |address, controls| {
        controls.paused.store(true, Ordering::SeqCst);
        let front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        let (shared, layout) = (front_end.shared.clone(), front_end.shared.settings.layout(0));
        let heads: Vec<u16> = (0..3).map(|number| prepare_write(&shared, number)).collect();
        (0..3).for_each(|index| shared.offer(&layout, index as u16, heads[index]));
        shared.kick(0);
        until(|| controls.begun.load(Ordering::SeqCst) == 3).await;
        assert_eq!(shared.load(layout.used + 2), 0);
        drop(front_end);
        // The door usually notices the disconnect in this time; otherwise the test covers less.
        runtime::sleep(Duration::from_millis(5)).await;
        controls.paused.store(false, Ordering::SeqCst);
        until(|| shared.load(layout.used + 2) == 3).await;
        let mut shared = shared;
        let shared = loop {
            match Arc::try_unwrap(shared) {
                Ok(shared) => break shared,
                Err(again) => shared = again,
            }
            runtime::yield_now().await;
        };
        let front_end = FrontEnd::resume(&address, shared).await.expect("it is served");
        front_end.start_queue(0, 3).await.expect("started");
        let queue = Queue::new(front_end.shared.clone(), 0).expect("a queue");
        let mut block = Buffer::new(4096);
        assert_eq!(queue.request(kind::IN, 16, None, Transfer::In(&mut block)).await, 0);
        assert_eq!(block.filled(), [3; 4096]);
    });
}

/// A queue that is asked to stop answers when its requests have ended, with the index at which to continue.
#[test]
fn a_queue_stops_when_its_requests_have_ended() {
    with_disk(2, async |address, controls| {
        controls.paused.store(true, Ordering::SeqCst);
        let front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        let (shared, layout) = (front_end.shared.clone(), front_end.shared.settings.layout(0));
        let heads: Vec<u16> = (0..4).map(|number| prepare_write(&shared, number)).collect();
        (0..3).for_each(|index| shared.offer(&layout, index as u16, heads[index]));
        shared.kick(0);
        until(|| controls.begun.load(Ordering::SeqCst) == 3).await;
        let mut stopping = std::pin::pin!(front_end.stop_queue(0));
        assert!(
            runtime::timeout(Duration::from_millis(5), stopping.as_mut()).await.is_err(),
            "three are in flight"
        );
        shared.offer(&layout, 3, heads[3]);
        shared.kick(0);
        controls.paused.store(false, Ordering::SeqCst);
        assert_eq!(stopping.await.expect("stopped"), 3, "the fourth came after the stop");
        assert_eq!(shared.load(layout.used + 2), 3);
        front_end.start_queue(0, 3).await.expect("started");
        until(|| shared.load(layout.used + 2) == 4).await;
    });
}

/// A front-end may exchange all resources while requests are in flight; none is lost or executed twice.
#[test]
fn a_running_queue_takes_changes() {
    with_disk(2, async |address, controls| {
        let settings = Settings { queues: 2, ..Settings::default() };
        let front_end = FrontEnd::connect(&address, settings).await.expect("it is served");
        let shared = front_end.shared.clone();
        let device = front_end.device().await.expect("a device");
        let handle = device.open().await.expect("a handle");
        let writer = runtime::spawn(async move {
            for number in 0..300_u64 {
                let payload = Buffer::copy_of(&[number as u8; 4096]).into();
                let at = block::BlockIndex(number % 256);
                handle.write(at, payload, block::Durability::Visible).await.expect("written");
            }
        });
        let length = shared.memory.len() as u64;
        let region = RegionDescription { guest_address: GUEST, length, user_address: USER, offset: 0 };
        let mut rounds = 0;
        while !writer.is_finished() {
            front_end.set_memory(&[region], &[shared.memory_descriptor.as_fd()]).await.expect("mapped");
            let features = shared.features.to_le_bytes();
            set(&front_end.stream, number::SET_FEATURES, &features, &[]).await.expect("set");
            for enabled in [0_u32, 1] {
                let payload = [[0; 4], enabled.to_le_bytes()].concat();
                set(&front_end.stream, number::SET_VRING_ENABLE, &payload, &[]).await.expect("set");
            }
            rounds += 1;
        }
        writer.await;
        println!("{rounds} rounds of changes");
        assert_eq!(controls.begun.load(Ordering::SeqCst), 300);
        assert_eq!(front_end.stop_queue(0).await.expect("stopped"), 300);
    });
}

#[test]
fn a_second_front_end_waits_for_the_end_of_the_first() {
    with_door(1, ram(1 << 20, 512), false, async |address| {
        let first = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        let mut second = std::pin::pin!(FrontEnd::connect(&address, Settings::default()));
        let early = runtime::timeout(Duration::from_millis(2), second.as_mut()).await;
        assert!(early.is_err(), "a queue has one user");
        drop(first);
        second.await.expect("it is served");
    });
}

#[test]
fn a_door_that_stops_closes_the_device_and_may_start_again() {
    let (folder, address) = socket();
    run(2, move || async move {
        let disk = SlowDisk::new(256, 4096);
        let controls = disk.controls.clone();
        let door = door(&address, disk, false);
        for _ in 0..2 {
            door.start().await.expect("it starts");
            assert!(door.start().await.is_err(), "it is open");
            let settings = Settings { queues: 2, ..Settings::default() };
            let front_end = FrontEnd::connect(&address, settings).await.expect("it is served");
            assert_eq!(controls.handles.load(Ordering::SeqCst), 2);
            assert_eq!(block::Part::status(&door).await["queues"], 2);
            door.stop().await.expect("it stops");
            assert!(front_end.is_closed().await);
            assert_eq!(controls.handles.load(Ordering::SeqCst), 0);
            assert_eq!(block::Part::status(&door).await["queues"], 0);
        }
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "no socket is left");
    });
}

#[test]
fn stacks_have_it_as_a_door() {
    let registry = || Registry::new(vec![&disks::ram::KIND, &doors::vhost_user::door::KIND]);
    assert_eq!(registry().verify(), Ok(()));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    run(1, move || async move {
        let long = "serial=123456789012345678901";
        for (line, expected) in [
            (format!("vhost-user(ram(size=1MiB), socket=vm.sock, {long})"), "at most 20"),
            ("vhost-user(ram(size=1MiB), socket=vm.sock, queues=257)".to_owned(), "from 1 to 256"),
            (format!("vhost-user(ram(size=1MiB), socket={})", "long".repeat(40)), "1 to 107 bytes"),
        ] {
            let checked =
                Stack::from_line("test", &line, &registry()).and_then(|stack| stack.check(false).map(drop));
            let problems = checked.expect_err(&line).to_string();
            assert!(problems.contains(expected), "{line}: {problems}");
        }
        let line = "vhost-user(ram(size=1MiB), socket=vm.sock)";
        let stack = Stack::from_line("test", line, &registry()).expect("parses").with_base_directory(&path);
        let built = stack.check(false).expect("fits").build().await.expect("builds");
        built.start().await.expect("starts");
        let address = runtime::net::Address::Unix(path.join("vm.sock"));
        let front_end = FrontEnd::connect(&address, Settings::default()).await.expect("it is served");
        assert_eq!(front_end.config_u32(0), 2048);
        drop(front_end);
        built.close().await.expect("closes");
    });
}
