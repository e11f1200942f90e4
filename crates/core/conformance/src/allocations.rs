//! A counting allocator, for tests of the number and size of allocations.
//!
//! A test file sets it as its global allocator and reads the counts before and after:
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
//! [`counted`] does so for a device, with several clients that have [`writes`] or [`reads`] in flight.
//!
//! Counts of all threads include whatever else the process runs: the caller keeps it idle.
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

/// The system's allocator, with counters. A reallocation that grows counts as another allocation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting;

/// Number of allocations by this thread.
pub fn here() -> u64 {
    HERE.get()
}

/// Number of allocations by all threads.
pub fn everywhere() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Bytes allocated now. Each allocation has the size that the C library gives it: the request plus 8, rounded
/// up to a multiple of 16, at least 32.
pub fn bytes() -> u64 {
    BYTES.load(Relaxed)
}

/// Number of clients of [`counted`].
pub const CLIENTS: u64 = 16;
/// Blocks of each client.
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

/// Number of allocations by all threads while each client sends `requests` requests, without those that start
/// the clients. The first call also counts allocations of warming up; a second call measures the steady
/// state.
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

// SAFETY: every call is passed on to the system's allocator; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        BYTES.fetch_add(real_size(layout), Relaxed);
        // A thread that is ending has no counter any more.
        let _ = HERE.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(real_size(layout), Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}
