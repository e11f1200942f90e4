//! An allocator that counts, for tests of what allocates and how much.
//!
//! A test file makes it its own and reads the counts before and after:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: conformance::allocations::Counting = conformance::allocations::Counting;
//!
//! let before = conformance::allocations::here();
//! let kept = vec![0_u8; 100];
//! assert_eq!(conformance::allocations::here() - before, 1);
//! drop(kept);
//! ```
//!
//! [`counted`] does so for a device, with several clients that have [`writes`] or [`reads`] on their way.
//!
//! Left to others: that nothing else runs meanwhile, where all threads are counted.
#![allow(unsafe_code)] // An allocator can't be made otherwise.

use block::{BlockIndex, Buffer, Device, Durability};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted. An allocation that grows counts as another.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

/// How often this thread has allocated.
pub fn here() -> u64 {
    HERE.get()
}

/// How often all threads together have allocated.
pub fn everywhere() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// How many bytes are allocated now, each allocation as large as the C library makes it: 8 more, in steps of 16, 32 at
/// least.
pub fn bytes() -> u64 {
    BYTES.load(Relaxed)
}

/// How many clients [`counted`] has.
pub const CLIENTS: u64 = 16;
/// How many blocks each of them has.
const OWN: u64 = 64;

/// A client that writes its own blocks, one after the other.
///
/// # Panics
/// A write fails.
pub async fn writes(device: Rc<dyn Device>, client: u64, requests: u64) {
    let bytes = device.geometry().block_size.bytes() as usize;
    for number in 0..requests {
        let at = BlockIndex(client * OWN + number % OWN);
        device.write(at, Buffer::zeroed(bytes).into(), Durability::Visible).await.expect("written");
    }
}

/// A client that reads its own blocks, one after the other.
///
/// # Panics
/// A read fails.
pub async fn reads(device: Rc<dyn Device>, client: u64, requests: u64) {
    let bytes = device.geometry().block_size.bytes() as usize;
    for number in 0..requests {
        let at = BlockIndex(client * OWN + number % OWN);
        device.read(at, Buffer::new(bytes)).await.0.expect("read");
    }
}

/// How often all threads together allocate while each of the clients sends so many requests, what starting the clients takes
/// subtracted. Whoever wants a steady state calls it twice.
pub async fn counted<Fut: Future<Output = ()> + 'static>(
    device: &Rc<dyn Device>,
    work: impl Fn(Rc<dyn Device>, u64, u64) -> Fut,
    requests: u64,
) -> u64 {
    let run = async |requests| {
        let tasks = (0..CLIENTS).map(|client| runtime::spawn(work(device.clone(), client, requests)));
        for task in tasks.collect::<Vec<_>>() {
            task.await;
        }
    };
    let before = everywhere();
    run(0).await;
    let tasks = everywhere() - before;
    let before = everywhere();
    run(requests).await;
    (everywhere() - before).saturating_sub(tasks)
}

fn real_size(layout: Layout) -> u64 {
    (layout.size() as u64 + 8).next_multiple_of(16).max(32)
}

// SAFETY: everything is passed on to the system's allocator; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(real_size(layout), Relaxed);
        // A thread that ends has no count any more.
        let _ = HERE.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(real_size(layout), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
