use super::*;
use block::Data;
use std::sync::atomic::AtomicBool;

const MIB: u64 = 1 << 20;

fn filled(memory: &Memory, offset: u64, length: usize) -> Vec<u8> {
    let mut buffer = Buffer::new(length);
    memory.read(offset, &mut buffer);
    buffer.filled().to_vec()
}

fn payload(pieces: &[&[u8]]) -> Payload {
    pieces.iter().map(|piece| Data::copy_of(piece)).collect()
}

/// Resident memory of this process, in bytes: pages and page tables.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") * 1024
    };
    field("VmRSS:") + field("VmPTE:")
}

#[test]
fn a_device_far_larger_than_the_machine_takes_what_is_written() {
    let (_, total) = machine().expect("Linux tells it");
    let memory = Memory::new(16 * total, Budget::new(None)).expect("addresses cost nothing");
    let before = resident();
    let zeros = payload(&[&[0; 4096]]);
    let step = 16 * total / 100_000 / PAGE * PAGE;
    for index in 0..100_000 {
        memory.write(index * step, &zeros, Copying::PastCaches).expect("zeros take nothing");
        assert!(filled(&memory, index * step, 4096).iter().all(|byte| *byte == 0));
    }
    assert_eq!(memory.taken(), 0);
    // 100 000 pages, or page tables for them, would be 400 MB; other tests run at the same time.
    assert!(resident() < before + 100 * MIB, "{before} and {}", resident());
    memory.write(77 * step, &payload(&[&[5; 4096]]), Copying::PastCaches).expect("there is memory");
    assert_eq!((memory.taken(), filled(&memory, 77 * step, 4096)), (PAGE, vec![5; 4096]));
}

#[test]
fn zeros_over_something_are_written() {
    let memory = Memory::new(MIB, Budget::new(None)).expect("memory");
    memory.write(512, &payload(&[&[1; 512], &[2; 8192]]), Copying::PastCaches).expect("there is memory");
    assert_eq!(memory.taken(), 3 * PAGE);
    memory.write(1024, &payload(&[&[0; 1024]]), Copying::PastCaches).expect("there is memory");
    let mut expected = vec![0; 512];
    expected.extend([vec![1; 512], vec![0; 1024], vec![2; 7168], vec![0; 512]].concat());
    assert_eq!(filled(&memory, 0, 512 + 512 + 8192 + 512), expected);
    // Partial pages are zeroed, whole ones are returned.
    memory.discard(512, 8192);
    assert_eq!((memory.taken(), filled(&memory, 0, 8704)), (2 * PAGE, vec![0; 8704]));
    assert_eq!(filled(&memory, 8704, 512), [2; 512]);
    memory.discard(0, MIB);
    assert_eq!((memory.taken(), memory.may_hold_data(0)), (0, false));
    memory.write(0, &payload(&[&[0; 65536]]), Copying::PastCaches).expect("zeros take nothing");
    assert_eq!((memory.taken(), memory.may_hold_data(0)), (0, false));
}

#[test]
fn without_room_a_write_fails_and_what_was_kept_does_not() {
    let memory = Memory::new(MIB, Budget::new(Some(4 * PAGE))).expect("memory");
    memory.zero_and_keep(0, 2 * PAGE).expect("there is room");
    assert_eq!((memory.taken(), memory.may_hold_data(0)), (2 * PAGE, true));
    let ones = vec![1; 2 * PAGE as usize];
    memory.write(512 << 10, &payload(&[&ones]), Copying::PastCaches).expect("there is room");
    let error = memory.write(256 << 10, &payload(&[&ones]), Copying::PastCaches).expect_err("it is full");
    assert_eq!(error.errno(), libc::ENOSPC);
    memory.write(0, &payload(&[&ones]), Copying::PastCaches).expect("this room was kept");
    memory.write(768 << 10, &payload(&[&[0; 4096]]), Copying::PastCaches).expect("zeros take nothing");
    assert_eq!(memory.zero_and_keep(768 << 10, PAGE).expect_err("it is full").errno(), libc::ENOSPC);
    memory.discard(512 << 10, PAGE);
    memory.write(256 << 10, &payload(&[&ones[..4096]]), Copying::PastCaches).expect("there is room again");
    assert_eq!(memory.taken(), 4 * PAGE);
}

/// Overwrites pages during a discard of them. When both have ended, every page with data has its bit, every
/// bit is counted, and a write of zeros has its effect.
#[test]
fn nothing_is_left_without_its_bit() {
    const LENGTH: u64 = 4 << 20;
    let memory = Memory::new(LENGTH, Budget::new(None)).expect("memory");
    let (ones, zeros) = (payload(&[&[1; LENGTH as usize]]), payload(&[&[0; LENGTH as usize]]));
    for round in 0..100 {
        memory.write(0, &ones, Copying::PastCaches).expect("there is memory");
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !begun.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                memory.discard(0, LENGTH);
            });
            begun.store(true, Ordering::Relaxed);
            memory.write(0, &ones, Copying::PastCaches).expect("there is memory");
        });
        let bits = (0..LENGTH / PAGE).filter(|page| memory.is_written(*page)).count() as u64;
        assert_eq!(memory.taken(), bits * PAGE, "round {round}");
        memory.write(0, &zeros, Copying::PastCaches).expect("there is memory");
        // SAFETY: inside the mapping, which has no other user now.
        let bytes = unsafe { std::slice::from_raw_parts(memory.at(0, LENGTH as usize), LENGTH as usize) };
        assert!(bytes == &zeros.slices()[0][..], "round {round}: something was left without its bit");
        memory.discard(0, LENGTH);
        assert_eq!(memory.taken(), 0, "round {round}");
    }
}

#[test]
fn zeros_are_told_from_anything_else() {
    for length in [1, 7, 63, 64, 65, 512, 4096] {
        let mut bytes = vec![0; length];
        assert!(is_zero(&bytes), "{length}");
        for at in [0, length / 2, length - 1] {
            bytes[at] = 0x80;
            assert!(!is_zero(&bytes), "{length} {at}");
            bytes[at] = 0;
        }
    }
}

/// A pool with a fixed number of bytes.
struct SmallPool(std::sync::atomic::AtomicU64);

impl super::super::budget::Pool for SmallPool {
    fn take(&self, bytes: u64) -> Result<()> {
        match self.0.load(Ordering::Relaxed) + bytes <= 4 * PAGE {
            true => {
                self.add(bytes);
                Ok(())
            }
            false => Err(Error::no_space("the pool is empty")),
        }
    }

    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[test]
fn two_devices_share_a_pool_until_they_are_dropped() {
    let pool = std::sync::Arc::new(SmallPool(0.into()));
    let device = || Memory::new(MIB, Budget::of_pool(pool.clone())).expect("memory");
    let (one, other) = (device(), device());
    let page = payload(&[&[7; 4096]]);
    (0..3).for_each(|number| one.write(number * PAGE, &page, Copying::Plain).expect("there is memory"));
    other.write(0, &page, Copying::Plain).expect("there is memory");
    let refused = other.write(PAGE, &page, Copying::Plain).expect_err("it is empty");
    assert_eq!((refused.errno(), one.taken(), other.taken()), (libc::ENOSPC, 3 * PAGE, PAGE));
    one.discard(0, PAGE);
    other.write(PAGE, &page, Copying::Plain).expect("it was given back");
    drop(one);
    assert_eq!(pool.0.load(Ordering::Relaxed), 2 * PAGE);
    drop(other);
    assert_eq!(pool.0.load(Ordering::Relaxed), 0);
}
