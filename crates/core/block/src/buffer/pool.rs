//! Memory of buffers: one pool per thread with free lists by size. Memory that another thread drops returns
//! through a mailbox.
//!
//! A ring can have one region of a pool's memory registered ([`adopt_region`]). Buffers are carved from it
//! first, and report it ([`Buffer::is_registered_here`](super::Buffer::is_registered_here)).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::ALIGNMENT;

/// Size classes are powers of two, starting with 4 KiB; class 0 is 4 KiB.
const MIN_SHIFT: u32 = ALIGNMENT.trailing_zeros();
/// Number of size classes: 4 KiB to 2 GiB.
const CLASSES: usize = 20;
/// Size and alignment of a huge page, in bytes. Memory inside one huge page is one segment to a disk, whereas
/// each small page is one: a transfer of 1 MiB in small pages has more segments than many disks accept at
/// once.
const HUGE_PAGE: usize = 2 << 20;
/// Smallest buffer that is carved from huge pages, in bytes. Smaller ones have few segments, and many are
/// hardly touched: a connection's receive buffer has 256 KiB.
const MIN_IN_HUGE_PAGES: usize = 512 << 10;
/// Limit of huge-page memory per thread, in bytes. It isn't freed before the thread ends.
const MAX_IN_HUGE_PAGES: usize = 64 << 20;
/// Limit of free bytes of one class per thread; more are returned to the allocator.
const KEPT_BYTES: usize = 64 << 20;

/// Piece of aligned memory with its reference count.
pub(super) struct Block {
    references: AtomicU32,
    class: u8,
    /// Whether the memory was carved from a region, which is freed as a whole.
    from_region: bool,
    /// Whether the region is the one that may be registered.
    registrable: bool,
    memory: NonNull<u8>,
    home: Arc<Home>,
}

/// State of a pool that outlives its thread while one of its blocks lives.
struct Home {
    /// Blocks that other threads dropped. The lock is taken only when a buffer crosses threads, and is held
    /// for a push or a swap.
    returned: Mutex<Vec<ReturnedBlock>>,
    has_returned: AtomicBool,
    /// Whether the thread has ended: blocks are then freed instead of returned.
    closed: AtomicBool,
    region: Mutex<Option<Region>>,
    huge_pages: Mutex<Vec<Region>>,
}

struct ReturnedBlock(NonNull<Block>);
// SAFETY: a returned block has no other user.
unsafe impl Send for ReturnedBlock {}

/// Page-aligned memory that is registered with a ring as a whole.
pub struct Region {
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the region is plain memory, which is divided into blocks with one owner each.
unsafe impl Send for Region {}

impl Region {
    /// Allocates `bytes` bytes, rounded up to whole pages, or to whole huge pages if it is at least one.
    pub fn new(bytes: usize) -> Self {
        let page = if bytes >= HUGE_PAGE { HUGE_PAGE } else { ALIGNMENT };
        let bytes = bytes.max(1).next_multiple_of(page);
        let layout = Layout::from_size_align(bytes, page).expect("the size of a region fits a layout");
        // SAFETY: the layout's size isn't zero.
        let memory = unsafe { alloc(layout) };
        if page == HUGE_PAGE {
            // SAFETY: whole pages of the memory allocated above. It's advice, which a kernel without huge
            // pages ignores.
            unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Region { memory: NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// Address of the region.
    pub fn address(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Length of the region in bytes.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Always false: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}

struct Pool {
    home: Arc<Home>,
    free: [Vec<NonNull<Block>>; CLASSES],
    /// Rest of the region that hasn't been carved: address and bytes.
    uncarved: Option<(NonNull<u8>, usize)>,
    /// Rest of the last huge pages, and the bytes of all huge pages.
    huge: Option<(NonNull<u8>, usize)>,
    huge_total: usize,
    /// Whether the region is registered with this thread's ring.
    registered: bool,
}

impl Pool {
    fn new() -> Self {
        let home = Home {
            returned: Mutex::new(Vec::new()),
            has_returned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            region: Mutex::new(None),
            huge_pages: Mutex::new(Vec::new()),
        };
        Pool {
            home: Arc::new(home),
            free: [const { Vec::new() }; CLASSES],
            uncarved: None,
            huge: None,
            huge_total: 0,
            registered: false,
        }
    }

    #[inline]
    fn take(&mut self, class: usize) -> NonNull<Block> {
        if self.home.has_returned.load(Ordering::Relaxed) {
            self.collect_returned();
        }
        match self.free[class].pop() {
            Some(block) => {
                // SAFETY: a block in a free list has no other user.
                unsafe { block.as_ref() }.references.store(1, Ordering::Relaxed);
                block
            }
            None => self.create(class),
        }
    }

    #[cold]
    fn collect_returned(&mut self) {
        let home = self.home.clone();
        home.has_returned.store(false, Ordering::Relaxed);
        let returned = std::mem::take(&mut *lock(&home.returned));
        for ReturnedBlock(block) in returned {
            self.keep(block);
        }
    }

    #[inline]
    fn keep(&mut self, block: NonNull<Block>) {
        // SAFETY: the block's last user has just released it.
        let (class, from_region) = unsafe { (block.as_ref().class as usize, block.as_ref().from_region) };
        if from_region || self.free[class].len() < (KEPT_BYTES >> (class as u32 + MIN_SHIFT)).max(1) {
            self.free[class].push(block);
        } else {
            destroy(block);
        }
    }

    #[cold]
    fn create(&mut self, class: usize) -> NonNull<Block> {
        let bytes = class_bytes(class);
        let registrable = carve(&mut self.uncarved, bytes);
        let carved = registrable.or_else(|| self.carve_huge(bytes));
        let memory = carved.unwrap_or_else(|| {
            // SAFETY: the layout's size isn't zero.
            NonNull::new(unsafe { alloc(class_layout(class)) })
                .unwrap_or_else(|| handle_alloc_error(class_layout(class)))
        });
        let block = Box::new(Block {
            references: AtomicU32::new(1),
            class: class as u8,
            from_region: carved.is_some(),
            registrable: registrable.is_some(),
            memory,
            home: self.home.clone(),
        });
        NonNull::from(Box::leak(block))
    }

    fn carve_huge(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if bytes < MIN_IN_HUGE_PAGES {
            return None;
        }
        let carved = carve(&mut self.huge, bytes);
        if carved.is_some() || self.huge_total + bytes.max(HUGE_PAGE) > MAX_IN_HUGE_PAGES {
            return carved;
        }
        let region = Region::new(bytes.max(HUGE_PAGE));
        self.huge_total += region.len();
        self.huge = Some((region.memory, region.len()));
        lock(&self.home.huge_pages).push(region);
        carve(&mut self.huge, bytes)
    }
}

/// Takes `bytes` bytes from the front of `rest`; `None` if it has fewer.
fn carve(rest: &mut Option<(NonNull<u8>, usize)>, bytes: usize) -> Option<NonNull<u8>> {
    let (start, left) = rest.as_mut().filter(|(_, left)| *left >= bytes)?;
    let memory = *start;
    // SAFETY: the `left` bytes after `start` belong to a region and aren't in use.
    *start = unsafe { start.add(bytes) };
    *left -= bytes;
    Some(memory)
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.home.closed.store(true, Ordering::SeqCst);
        // After `closed`, so that other threads free the blocks that they drop later.
        let returned = std::mem::take(&mut *lock(&self.home.returned));
        returned.into_iter().for_each(|ReturnedBlock(block)| destroy(block));
        self.free.iter_mut().flat_map(|list| list.drain(..)).for_each(destroy);
    }
}

/// Frees a block without users.
#[cold]
fn destroy(block: NonNull<Block>) {
    // SAFETY: the block has no user and is in no list; it was leaked from a Box in `create`.
    let block = unsafe { Box::from_raw(block.as_ptr()) };
    if !block.from_region {
        // SAFETY: allocated in `create` with this layout. Memory of a region is freed with its Home.
        unsafe { dealloc(block.memory.as_ptr(), class_layout(block.class as usize)) }
    }
}

/// Ignores poisoning: a panic elsewhere can't leave these lists half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + MIN_SHIFT)
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align(class_bytes(class), ALIGNMENT).expect("a size class fits a layout")
}

thread_local! {
    static POOL: UnsafeCell<Pool> = UnsafeCell::new(Pool::new());
}

/// Returns a block of at least `length` bytes with one user.
#[inline]
pub(super) fn take(length: usize) -> NonNull<Block> {
    let class = length.max(1).next_power_of_two().trailing_zeros().saturating_sub(MIN_SHIFT) as usize;
    // SAFETY: the cell belongs to this thread, and `take` isn't reentered.
    let from_pool = POOL.try_with(|pool| unsafe { (*pool.get()).take(class) });
    // The pool of an ending thread may already be destroyed; a temporary one then serves one block.
    from_pool.unwrap_or_else(|_| Pool::new().take(class))
}

/// Sets the region from which the thread's pool carves buffers, and which its ring has registered as a whole.
/// Does nothing if the pool has a region already.
pub fn adopt_region(region: Region) {
    // SAFETY: as in `take`.
    POOL.with(|pool| unsafe {
        let pool = &mut *pool.get();
        let mut held = lock(&pool.home.region);
        if held.is_some() {
            // Buffers of the first region may be in use, so it can't be replaced.
            return;
        }
        pool.uncarved = Some((region.memory, region.len()));
        pool.registered = true;
        *held = Some(region);
    });
}

/// Region that this thread's pool adopted before, so that a new ring can register it: address and bytes.
pub fn adopted_region() -> Option<(*mut u8, usize)> {
    // SAFETY: as in `take`.
    POOL.with(|pool| unsafe {
        let pool = &*pool.get();
        let held = lock(&pool.home.region);
        held.as_ref().map(|region| (region.address(), region.len()))
    })
}

/// Sets whether this thread's ring has registered the region. The ring sets `false` before it is dropped.
pub fn set_registered(registered: bool) {
    // SAFETY: as in `take`.
    POOL.with(|pool| unsafe { (*pool.get()).registered = registered });
}

impl Block {
    #[inline]
    pub(super) fn memory(block: NonNull<Block>) -> *mut u8 {
        // SAFETY: the caller is a user of the block, so it is alive.
        unsafe { block.as_ref() }.memory.as_ptr()
    }

    #[inline]
    pub(super) fn is_registered_here(block: NonNull<Block>) -> bool {
        // SAFETY: the caller is a user of the block, so it is alive.
        let block = unsafe { block.as_ref() };
        // SAFETY: the cell belongs to this thread.
        block.registrable
            && POOL.with(|pool| unsafe {
                let pool = &*pool.get();
                pool.registered && Arc::ptr_eq(&pool.home, &block.home)
            })
    }

    #[inline]
    pub(super) fn add_reference(block: NonNull<Block>) {
        // SAFETY: the caller is a user of the block, so it is alive.
        let before = unsafe { block.as_ref() }.references.fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a buffer has too many users");
    }

    #[inline]
    pub(super) fn release(block: NonNull<Block>) {
        // SAFETY: the caller is a user of the block, so it is alive.
        let references = &unsafe { block.as_ref() }.references;
        // A single user needs no atomic decrement: no other thread can add one.
        if references.load(Ordering::Acquire) != 1 {
            if references.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        let kept = POOL.try_with(|pool| {
            // SAFETY: as in `take`; the block has no users left.
            unsafe {
                let pool = &mut *pool.get();
                let ours = Arc::ptr_eq(&pool.home, &block.as_ref().home);
                if ours {
                    pool.keep(block);
                }
                ours
            }
        });
        if kept != Ok(true) {
            Self::send_home(block);
        }
    }

    #[cold]
    fn send_home(block: NonNull<Block>) {
        // SAFETY: this is the block's only user.
        let home = unsafe { block.as_ref() }.home.clone();
        let mut returned = lock(&home.returned);
        if home.closed.load(Ordering::SeqCst) {
            drop(returned);
            destroy(block);
        } else {
            returned.push(ReturnedBlock(block));
            home.has_returned.store(true, Ordering::Relaxed);
        }
    }
}
