//! Where the memory of buffers comes from: one pool per thread, free lists by size, and memory that another
//! thread dropped comes home through a mailbox.
//!
//! A ring can have one region of a pool's memory registered ([`adopt_region`]): buffers are carved from it
//! first, and say that they are ([`Buffer::is_registered_here`](super::Buffer::is_registered_here)).

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use super::ALIGNMENT;

/// Size classes are powers of two from 4 KiB on; class 0 is 4 KiB.
const SMALLEST_SHIFT: u32 = ALIGNMENT.trailing_zeros();
/// 4 KiB to 2 GiB.
const CLASSES: usize = 20;
/// The size and alignment of a huge page, in bytes. Memory that lies in one is one segment to a disk, where single
/// pages are one each: a transfer of 1 MiB in small pages has more segments than many disks take at once.
const HUGE_PAGE: usize = 2 << 20;
/// Buffers from this size on are carved from huge pages (smaller ones have few segments, and many are hardly
/// touched: a connection's receive buffer has 256 KiB),
const SMALLEST_IN_HUGE_PAGES: usize = 512 << 10;
/// as long as a thread has so few of them, in bytes; their memory isn't given back before the thread ends.
const MOST_IN_HUGE_PAGES: usize = 64 << 20;
/// How many bytes of one class a thread keeps free at most; more goes back to the allocator.
const KEPT_BYTES: usize = 64 << 20;

/// A piece of aligned memory and the count of those who use it.
pub(super) struct Block {
    references: AtomicU32,
    class: u8,
    /// Carved from a region, which is freed as a whole.
    from_region: bool,
    /// The region is the one that may be registered.
    registrable: bool,
    memory: NonNull<u8>,
    home: Arc<Home>,
}

/// What outlives the thread of a pool as long as one of its blocks does.
struct Home {
    /// Blocks that other threads dropped. The lock is taken only when a buffer crosses threads, and is
    /// held for a push or a swap.
    returned: Mutex<Vec<ReturnedBlock>>,
    has_returned: AtomicBool,
    /// The thread has ended; blocks are freed instead of returned.
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

// SAFETY: the region is plain memory that is handed out in blocks with an owner each.
unsafe impl Send for Region {}

impl Region {
    /// Memory of `bytes` bytes, rounded up to whole pages; to huge ones from their size on.
    pub fn new(bytes: usize) -> Self {
        let page = if bytes >= HUGE_PAGE { HUGE_PAGE } else { ALIGNMENT };
        let bytes = bytes.max(1).next_multiple_of(page);
        let layout = Layout::from_size_align(bytes, page).expect("the size of a region fits a layout");
        // SAFETY: the layout's size isn't zero.
        let memory = unsafe { alloc(layout) };
        if page == HUGE_PAGE {
            // SAFETY: our own memory, whole pages of it. It's advice: a kernel without huge pages ignores it.
            unsafe { libc::madvise(memory.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Region { memory: NonNull::new(memory).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// Where the region begins.
    pub fn address(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Never: a region has at least a page.
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
    /// What is left of the region: address and bytes.
    uncarved: Option<(NonNull<u8>, usize)>,
    /// What is left of the last huge pages, and how many bytes of them there are in all.
    huge: Option<(NonNull<u8>, usize)>,
    huge_total: usize,
    /// Whether the ring of this thread knows the region.
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
        // SAFETY: the block's last user has just given it back.
        let (class, from_region) = unsafe { (block.as_ref().class as usize, block.as_ref().from_region) };
        if from_region || self.free[class].len() < (KEPT_BYTES >> (class as u32 + SMALLEST_SHIFT)).max(1) {
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
        if bytes < SMALLEST_IN_HUGE_PAGES {
            return None;
        }
        let carved = carve(&mut self.huge, bytes);
        if carved.is_some() || self.huge_total + bytes.max(HUGE_PAGE) > MOST_IN_HUGE_PAGES {
            return carved;
        }
        let region = Region::new(bytes.max(HUGE_PAGE));
        self.huge_total += region.len();
        self.huge = Some((region.memory, region.len()));
        lock(&self.home.huge_pages).push(region);
        carve(&mut self.huge, bytes)
    }
}

/// Takes so many bytes off the front of what is left, if there are as many.
fn carve(rest: &mut Option<(NonNull<u8>, usize)>, bytes: usize) -> Option<NonNull<u8>> {
    let (start, left) = rest.as_mut().filter(|(_, left)| *left >= bytes)?;
    let memory = *start;
    // SAFETY: `left` bytes from `start` on belong to a region and to nobody yet.
    *start = unsafe { start.add(bytes) };
    *left -= bytes;
    Some(memory)
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.home.closed.store(true, Ordering::SeqCst);
        // After `closed`, so that whatever arrives now is freed by whoever brings it.
        let returned = std::mem::take(&mut *lock(&self.home.returned));
        returned.into_iter().for_each(|ReturnedBlock(block)| destroy(block));
        self.free.iter_mut().flat_map(|list| list.drain(..)).for_each(destroy);
    }
}

/// Frees a block that has no user.
#[cold]
fn destroy(block: NonNull<Block>) {
    // SAFETY: the block has no user and is in no list; it was leaked from a Box in `create`.
    let block = unsafe { Box::from_raw(block.as_ptr()) };
    if !block.from_region {
        // SAFETY: allocated in `create` with this layout. Memory of a region is freed with its Home.
        unsafe { dealloc(block.memory.as_ptr(), class_layout(block.class as usize)) }
    }
}

/// A panic elsewhere can't leave these lists half changed, so a poisoned lock is as good as another.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn class_bytes(class: usize) -> usize {
    1 << (class as u32 + SMALLEST_SHIFT)
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align(class_bytes(class), ALIGNMENT).expect("a size class fits a layout")
}

thread_local! {
    static POOL: UnsafeCell<Pool> = UnsafeCell::new(Pool::new());
}

/// A block of at least `length` bytes with one user.
#[inline]
pub(super) fn take(length: usize) -> NonNull<Block> {
    let class = length.max(1).next_power_of_two().trailing_zeros().saturating_sub(SMALLEST_SHIFT) as usize;
    // SAFETY: the cell is of this thread alone, and nothing in `take` comes back here.
    let from_pool = POOL.try_with(|pool| unsafe { (*pool.get()).take(class) });
    // While the thread ends its pool may be gone already; a pool of its own then serves one block.
    from_pool.unwrap_or_else(|_| Pool::new().take(class))
}

/// Gives the thread's pool a region to carve buffers from, which its ring has registered as a whole.
/// A region that was adopted before stays in use, but is no longer called registered.
pub fn adopt_region(region: Region) {
    // SAFETY: as in `take`.
    POOL.with(|pool| unsafe {
        let pool = &mut *pool.get();
        let mut held = lock(&pool.home.region);
        if held.is_some() {
            // Buffers of the first region may still be out; it can't be swapped. Run without.
            return;
        }
        pool.uncarved = Some((region.memory, region.len()));
        pool.registered = true;
        *held = Some(region);
    });
}

/// The region that this thread's pool adopted before, for a new ring to register again: address and bytes.
pub fn adopted_region() -> Option<(*mut u8, usize)> {
    // SAFETY: as in `take`.
    POOL.with(|pool| unsafe {
        let pool = &*pool.get();
        let held = lock(&pool.home.region);
        held.as_ref().map(|region| (region.address(), region.len()))
    })
}

/// Says whether this thread's ring knows the region at present. The ring says no before it goes.
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
        // SAFETY: the cell is of this thread alone.
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
        // The only user needs no atomic decrement: nobody else can add one.
        if references.load(Ordering::Acquire) != 1 {
            if references.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            fence(Ordering::Acquire);
        }
        let kept = POOL.try_with(|pool| {
            // SAFETY: as in `take`; the block has no user any more.
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
        // SAFETY: the block has no user but us.
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
