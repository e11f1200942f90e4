//! Front-ends and guests that break the protocol lose only their own connection, and the next one is served.

use super::front_end::{FrontEnd, GUEST, Layout, Queue, Settings, Shared, Transfer, USER, set};
use super::with_door;
use crate::support::ram;
use block::{Buffer, Data};
use doors::vhost_user::protocol::{RegionDescription, flag, message, number};
use doors::vhost_user::request::kind;
use runtime::Random;
use runtime::event::create_event;
use runtime::net::{Address, Stream};
use runtime::shared_memory::SharedMemory;
use std::os::fd::{AsFd, OwnedFd};

async fn is_healthy(address: &Address) {
    let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
    let queue = Queue::new(front_end.shared.clone(), 0).expect("a queue");
    assert_eq!(queue.request(kind::OUT, 1, None, Transfer::Out(&[5; 512])).await, 0);
    let mut block = Buffer::new(512);
    assert_eq!(queue.request(kind::IN, 1, None, Transfer::In(&mut block)).await, 0);
    assert_eq!(block.filled(), [5; 512]);
}

/// Runs a test with a door on two shards, and checks afterwards that the door still works.
fn against_a_door(test: impl AsyncFnOnce(&Address) + Send + 'static) {
    with_door(2, ram(1 << 20, 4096), false, async |address| {
        test(&address).await;
        is_healthy(&address).await;
    });
}

#[test]
fn messages_that_cant_be_end_the_connection() {
    against_a_door(async |address| {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        for (number, payload) in [
            (number::GET_CONFIG, words(&[0, 300, 0])),
            (number::SET_VRING_NUM, words(&[4, 16])),
            (number::GET_VRING_BASE, words(&[u32::MAX, 0])),
            (number::SET_VRING_KICK, words(&[0, 0])),
            (number::SET_VRING_KICK, words(&[0x100, 0])),
            (number::SET_VRING_BASE, words(&[0, 1 << 16])),
            (number::SET_FEATURES, words(&[1 << 11, 0])),
            (number::SET_PROTOCOL_FEATURES, words(&[1 << 1, 0])),
            (number::SET_MEM_TABLE, words(&[1, 0, 0, 0, 4096, 0, 0, 0, 0, 0])),
            (number::SET_MEM_TABLE, words(&[u32::MAX, 0])),
            (number::GET_INFLIGHT_FD, words(&[0, 0, 0, 0, 5 | 16 << 16, 0])),
            (number::SET_INFLIGHT_FD, words(&[0, 0, 0, 0, 1 | 16 << 16, 0])),
            (number::SET_VRING_ENABLE, words(&[0])),
            (0, vec![]),
            (u32::MAX, vec![0; 1000]),
        ] {
            let stream = Stream::connect(address).await.expect("it listens");
            let bytes = Data::copy_of(&message(number, flag::VERSION, &payload));
            stream.send(bytes.into()).await.0.expect("sent");
            let answer = stream.receive(Buffer::new(64)).await.0;
            assert!(matches!(answer, Ok(0) | Err(_)), "message {number}: {answer:?}");
        }
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &message(1, 2, &[]), &message(1, 5, &[]), &[0xFF; 12]] {
            let stream = Stream::connect(address).await.expect("it listens");
            stream.send(Data::copy_of(bytes).into()).await.0.expect("sent");
            assert!(matches!(stream.receive(Buffer::new(64)).await.0, Ok(0) | Err(_)), "{bytes:?}");
        }
        // The connection ends in the middle of a header, and of a payload.
        for half in [5, 14] {
            let stream = Stream::connect(address).await.expect("it listens");
            let bytes = message(number::SET_FEATURES, flag::VERSION, &[0; 8]);
            stream.send(Data::copy_of(&bytes[..half]).into()).await.0.expect("sent");
        }
    });
}

#[test]
fn random_messages_end_nothing_but_their_connection() {
    against_a_door(async |address| {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let stream = Stream::connect(address).await.expect("it listens");
            let event = runtime::event::create_event().expect("an event");
            for _ in 0..random.below(12) {
                let payload: Vec<u8> =
                    (0..random.below(60)).map(|_| (random.below(4) * random.below(40)) as u8).collect();
                let bytes = message(random.below(34) as u32, flag::VERSION, &payload);
                let descriptors = vec![event.as_fd(); random.below(3) as usize];
                // The connection may have ended before.
                let _ = stream.send_with_descriptors(&bytes, &descriptors);
            }
        }
    });
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A header and a status at the beginning of the first slot, as descriptors 0 and 1 describe them.
fn describe_flush(shared: &Shared, layout: &Layout) {
    let at = GUEST + layout.slots as u64;
    shared.memory.write(layout.slots, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    shared.describe(layout.descriptors, 0, at, 16, NEXT, 1);
    shared.describe(layout.descriptors, 1, at + 16, 1, WRITE, 0);
}

/// Lets a guest corrupt its ring and checks that the connection ends.
async fn spoil(address: &Address, what: &str, spoil: impl FnOnce(&Shared, &Layout)) {
    let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
    let (shared, layout) = (&front_end.shared, front_end.shared.settings.layout(0));
    describe_flush(shared, &layout);
    spoil(shared, &layout);
    shared.kick(0);
    assert!(front_end.is_closed().await, "{what}");
}

#[test]
fn rings_that_cant_be_end_the_connection() {
    against_a_door(async |address| {
        spoil(address, "too many chains", |shared, layout| {
            shared.store(layout.available + 2, layout.size as u16 + 1);
        })
        .await;
        spoil(address, "a head out of range", |shared, layout| shared.offer(layout, 0, layout.size as u16))
            .await;
        type Descriptor = (u64, u32, u16, u16);
        let at = GUEST + Settings::default().layout(0).slots as u64;
        let outside = GUEST + (1 << 40);
        let chains: &[(&str, &[Descriptor])] = &[
            ("a loop", &[(at, 16, NEXT, 1), (at, 1, NEXT | WRITE, 1)]),
            ("a loop of two", &[(at, 16, NEXT, 1), (at, 16, NEXT, 0)]),
            ("a next out of range", &[(at, 16, NEXT, 64)]),
            ("an address before memory", &[(GUEST - 8, 16, NEXT, 1), (at, 1, WRITE, 0)]),
            ("an address after memory", &[(outside, 16, NEXT, 1), (at, 1, WRITE, 0)]),
            ("an address that overflows", &[(at, 16, NEXT, 1), (u64::MAX, 2, WRITE, 0)]),
            ("a length beyond memory", &[(at, 16, NEXT, 1), (at, u32::MAX, WRITE, 0)]),
            ("no status", &[(at, 16, 0, 0)]),
            ("an empty status", &[(at, 16, NEXT, 1), (at, 0, WRITE, 0)]),
            ("half a header", &[(at, 15, NEXT, 1), (at, 1, WRITE, 0)]),
            ("no header", &[(at, 100, WRITE, 0)]),
            ("to read after to write", &[(at, 16, NEXT, 1), (at, 1, NEXT | WRITE, 2), (at, 16, 0, 0)]),
            ("an empty table", &[(at, 0, INDIRECT, 0)]),
            ("half a descriptor", &[(at, 24, INDIRECT, 0)]),
            ("a huge table", &[(at, 16 * 1025, INDIRECT, 0)]),
            ("a table outside of memory", &[(outside, 32, INDIRECT, 0)]),
            ("a table whose address overflows", &[(u64::MAX - 15, 16 * 64, INDIRECT, 0)]),
            ("a table that goes on", &[(at, 16, INDIRECT | NEXT, 1), (at, 1, WRITE, 0)]),
            ("a table to write", &[(at, 16, INDIRECT | WRITE, 0)]),
        ];
        for (what, chain) in chains {
            spoil(address, what, |shared, layout| {
                for (index, (address, length, flags, next)) in chain.iter().enumerate() {
                    shared.describe(layout.descriptors, index, *address, *length, *flags, *next);
                }
                shared.offer(layout, 0, 0);
            })
            .await;
        }
        let tables: &[(&str, &[Descriptor])] = &[
            ("a loop in a table", &[(at, 16, NEXT, 1), (at, 16, NEXT, 0)]),
            ("a table in a table", &[(at, 16, NEXT, 1), (at, 16, INDIRECT, 0)]),
            ("out of a table", &[(at, 16, NEXT, 2), (at, 1, WRITE, 0)]),
        ];
        for (what, table) in tables {
            spoil(address, what, |shared, layout| {
                let place = layout.slots + 4096;
                for (index, (address, length, flags, next)) in table.iter().enumerate() {
                    shared.describe(place, index, *address, *length, *flags, *next);
                }
                let length = 16 * table.len() as u32;
                shared.describe(layout.descriptors, 0, GUEST + place as u64, length, INDIRECT, 0);
                shared.offer(layout, 0, 0);
            })
            .await;
        }
    });
}

/// Indirect descriptors that repeat the same 4 MiB, up to and beyond the longest chain that VIRTIO 1.2,
/// section 2.7.5, permits.
#[test]
fn chains_longer_than_four_gibibytes_end_the_connection() {
    const PIECE: u32 = 4 << 20;
    const HEADER: u32 = 16;
    against_a_door(async |address| {
        let lengths = [(2 * PIECE, false), (2 * PIECE - HEADER + 1, false), (2 * PIECE - HEADER, true)];
        for (request, (length, is_permitted)) in
            [kind::FLUSH, kind::GET_ID].into_iter().flat_map(|request| lengths.map(|last| (request, last)))
        {
            let settings = Settings { request_bytes: 2 * PIECE as usize, ..Settings::default() };
            let front_end = FrontEnd::connect(address, settings).await.expect("it is served");
            let (shared, layout) = (&front_end.shared, front_end.shared.settings.layout(0));
            let (header, table, data) = (layout.slots, layout.slots + 4096, layout.slots + (64 << 10));
            shared.memory.write(header, &[request as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            let guest = |place: usize| GUEST + place as u64;
            shared.describe(table, 0, guest(header), HEADER, NEXT, 1);
            for index in 1..1023 {
                shared.describe(table, index, guest(data), PIECE, NEXT | WRITE, index as u16 + 1);
            }
            shared.describe(table, 1023, guest(data), length, WRITE, 0);
            shared.describe(layout.descriptors, 0, guest(table), 16 * 1024, INDIRECT, 0);
            shared.offer(&layout, 0, 0);
            shared.kick(0);
            if !is_permitted {
                assert!(front_end.is_closed().await, "request {request}, {length} bytes at the end");
                continue;
            }
            while shared.load(layout.used + 2) == 0 {
                runtime::yield_now().await;
            }
            let mut written = [0; 4];
            shared.memory.read(layout.used + 8, &mut written);
            assert_eq!(u32::from_le_bytes(written), u32::MAX - HEADER + 1, "request {request}");
        }
    });
}

/// Random bytes in the rings and tables of a running queue, with kicks.
#[test]
fn random_rings_end_nothing_but_their_connection() {
    against_a_door(async |address| {
        let mut random = Random::new(11);
        for _ in 0..60 {
            let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
            let (shared, layout) = (&front_end.shared, front_end.shared.settings.layout(0));
            describe_flush(shared, &layout);
            for step in 0..40_u16 {
                for _ in 0..random.below(8) {
                    let table = if random.chance(0.5) { layout.descriptors } else { layout.slots };
                    let near = GUEST + layout.slots as u64 + random.below(5000);
                    let place = if random.chance(0.9) { near } else { random.next_u64() };
                    let (length, flags) = (random.below(600) as u32, random.below(8) as u16);
                    let next = random.below(6) as u16;
                    shared.describe(table, random.below(6) as usize, place, length, flags, next);
                }
                shared.offer(&layout, step, random.below(6) as u16);
                shared.kick(0);
                runtime::yield_now().await;
            }
        }
    });
}

#[test]
fn rings_outside_of_memory_are_refused() {
    against_a_door(async |address| {
        let length = 1 << 20;
        for (descriptors, used, available) in [
            (0, 0x1000, 0x2000),
            (USER + 8, USER + 0x1000, USER + 0x2000),
            (USER, USER + 0x1002, USER + 0x2000),
            (USER, USER + 0x1000, USER + 0x2001),
            (USER, USER + 0x1000, u64::MAX - 1),
            (USER + length * 64, USER + 0x1000, USER + 0x2000),
        ] {
            let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
            let fields = [0, descriptors, used, available, 0];
            let payload: Vec<u8> = fields.iter().flat_map(|field: &u64| field.to_le_bytes()).collect();
            // The queue starts with these addresses, and ends.
            let _ = set(&front_end.stream, number::SET_VRING_ADDR, &payload, &[]).await;
            assert!(front_end.is_closed().await, "{descriptors:#x} {used:#x} {available:#x}");
        }
        for size in [0_u32, 3, 2048, 1 << 16, u32::MAX] {
            let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
            let payload = [[0; 4], size.to_le_bytes()].concat();
            let _ = set(&front_end.stream, number::SET_VRING_NUM, &payload, &[]).await;
            // A queue without entries isn't started.
            assert!(size == 0 || front_end.is_closed().await, "{size} entries");
        }
    });
}

/// A file on a disk, for which the kernel would ask the file system.
fn file_of_a_disk() -> OwnedFd {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a file");
    file.set_len(1 << 20).expect("longer");
    file.into()
}

#[test]
fn descriptors_that_arent_what_they_should_be() {
    if runtime::shared_memory::is_memory(&file_of_a_disk()) {
        return println!(
            "SKIPPED: descriptors_that_arent_what_they_should_be: the target folder is on tmpfs"
        );
    }
    against_a_door(async |address| {
        let queue = 0_u64.to_le_bytes();
        let numbers = [
            ("kick", number::SET_VRING_KICK),
            ("call", number::SET_VRING_CALL),
            ("error", number::SET_VRING_ERR),
        ];
        for (what, number) in numbers {
            let (_, memory) = SharedMemory::create("no event", 4096).expect("memory");
            for wrong in [file_of_a_disk(), memory] {
                let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
                let _ = set(&front_end.stream, number, &queue, &[wrong.as_fd()]).await;
                assert!(front_end.is_closed().await, "{what}: no eventfd");
            }
        }
        let region = RegionDescription { guest_address: 0, length: 4096, user_address: 0, offset: 0 };
        for wrong in [file_of_a_disk(), create_event().expect("an event")] {
            let front_end = FrontEnd::negotiate(address, Settings::default()).await.expect("it is served");
            assert!(front_end.set_memory(&[region], &[wrong.as_fd()]).await.is_err(), "no memory");
            assert!(front_end.is_closed().await);
        }
        // Also for a message without a descriptor: even closing the file would wait for its file system.
        let front_end = FrontEnd::negotiate(address, Settings::default()).await.expect("it is served");
        let _ = set(&front_end.stream, number::SET_OWNER, &[], &[file_of_a_disk().as_fd()]).await;
        assert!(front_end.is_closed().await);
        is_healthy(address).await;
    });
}

/// A front-end that truncates its memory file during use: the server continues, and no zeros are written.
#[test]
fn memory_that_is_made_shorter_ends_the_connection() {
    against_a_door(async |address| {
        let before = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
        let queue = Queue::new(before.shared.clone(), 0).expect("a queue");
        assert_eq!(queue.request(kind::OUT, 80, None, Transfer::Out(&[9; 4096])).await, 0);
        drop((queue, before));
        let front_end = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
        let (shared, layout) = (&front_end.shared, front_end.shared.settings.layout(0));
        // A second region, backed by a file, has the data of a write.
        let file = tempfile::tempfile_in("/dev/shm").expect("a file");
        file.set_len(1 << 20).expect("longer");
        let length = shared.memory.len() as u64;
        let regions = [
            RegionDescription { guest_address: GUEST, length, user_address: USER, offset: 0 },
            RegionDescription { guest_address: 0, length: 1 << 20, user_address: 0, offset: 0 },
        ];
        let descriptor = OwnedFd::from(file.try_clone().expect("copied"));
        let descriptors = [shared.memory_descriptor.as_fd(), descriptor.as_fd()];
        front_end.set_memory(&regions, &descriptors).await.expect("mapped");
        file.set_len(4096).expect("shorter");
        shared.memory.write(layout.slots, &[1, 0, 0, 0, 0, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0, 0]);
        let at = GUEST + layout.slots as u64;
        shared.describe(layout.descriptors, 0, at, 16, NEXT, 1);
        shared.describe(layout.descriptors, 1, 8192, 4096, NEXT, 2);
        shared.describe(layout.descriptors, 2, at + 16, 1, WRITE, 0);
        shared.offer(&layout, 0, 0);
        shared.kick(0);
        assert!(front_end.is_closed().await);
        let after = FrontEnd::connect(address, Settings::default()).await.expect("it is served");
        let queue = Queue::new(after.shared.clone(), 0).expect("a queue");
        let mut block = Buffer::new(4096);
        assert_eq!(queue.request(kind::IN, 80, None, Transfer::In(&mut block)).await, 0);
        assert_eq!(block.filled(), [9; 4096], "what was there");
    });
}
