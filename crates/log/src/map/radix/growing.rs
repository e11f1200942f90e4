//! An array of slabs that grows at its end and never moves, readable without a lock while it does.
//!
//! A slab is a fixed, small number of words. Chunk `k` holds 2^k slabs, so that the table of chunks is tiny and
//! stays in the processor's first cache, and the memory of the last chunk is taken only as it is touched.

use block::memory::{HUGE_PAGE, ZeroedWords};
use block::{Error, Result};
use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// An atomic word. The map is generic over it so that a model checker can stand in for the processor.
pub trait Word: Send + Sync + 'static {
    /// What the word holds, and whatever its writer had written before.
    fn get(&self) -> u32;
    /// Publishes a value, and all that was written before.
    fn set(&self, value: u32);
}

impl Word for AtomicU32 {
    #[inline]
    fn get(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn set(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
}

/// Zeroed words, and how they are cut up.
pub trait Memory: Sized + Debug + Send + Sync + 'static {
    /// The atomic word.
    type Word: Word;

    /// The logarithm of how many words a slab has; also of how many blocks a leaf covers and how many leaves a
    /// middle node has.
    const SLAB_SHIFT: u32;

    /// So many words, all zero.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn zeroed(words: usize) -> Result<Self>;

    /// The words.
    fn words(&self) -> &[Self::Word];
}

impl Memory for ZeroedWords {
    type Word = AtomicU32;
    const SLAB_SHIFT: u32 = super::super::PAGE_BLOCKS.trailing_zeros();

    fn zeroed(words: usize) -> Result<Self> {
        ZeroedWords::new(words)
    }

    #[inline]
    fn words(&self) -> &[AtomicU32] {
        self
    }
}

/// Enough for 2^32 - 1 slabs.
const CHUNKS: usize = 32;

/// The array.
#[derive(Debug)]
pub(super) struct Growing<M> {
    chunks: [OnceLock<M>; CHUNKS],
}

impl<M: Memory> Growing<M> {
    pub(super) fn new() -> Self {
        Growing { chunks: [const { OnceLock::new() }; CHUNKS] }
    }

    /// The chunk in which a slab lies, and which of its slabs it is.
    #[inline]
    fn locate(slab: u32) -> (usize, usize) {
        let from_one = u64::from(slab) + 1;
        let chunk = 63 - from_one.leading_zeros();
        (chunk as usize, (from_one ^ (1 << chunk)) as usize)
    }

    /// A word of a slab, if there is room for it by now.
    #[inline]
    pub(super) fn get(&self, slab: u32, word: usize) -> Option<&M::Word> {
        let (chunk, at) = Self::locate(slab);
        self.chunks.get(chunk)?.get()?.words().get((at << M::SLAB_SHIFT) + word)
    }

    /// All words of a slab.
    ///
    /// # Panics
    /// If there is no room for it yet.
    #[inline]
    pub(super) fn slab(&self, slab: u32) -> &[M::Word] {
        let (chunk, at) = Self::locate(slab);
        let words = self.chunks[chunk].get().expect("slabs are used after there is room for them").words();
        &words[at << M::SLAB_SHIFT..(at + 1) << M::SLAB_SHIFT]
    }

    /// Makes room for slabs up to and with this one.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(super) fn make_room(&self, slab: u32) -> Result<()> {
        for chunk in 0..=Self::locate(slab).0 {
            let Some(place) = self.chunks.get(chunk) else {
                return Err(Error::out_of_memory(format!("a map of {slab} slabs: expected fewer than 2^32")));
            };
            if place.get().is_none() {
                // Only whoever holds the family's lock gets here, so that nobody else fills the place.
                let _ = place.set(M::zeroed(1 << (chunk as u32 + M::SLAB_SHIFT))?);
            }
        }
        Ok(())
    }

    /// How much memory slabs 0 to `count` - 1 take once they have all been touched.
    pub(super) fn bytes(count: u64) -> u64 {
        let slab_bytes = 4_u64 << M::SLAB_SHIFT;
        let (mut bytes, mut left, mut chunk_slabs) = (0, count, 1);
        while left > 0 {
            let used = left.min(chunk_slabs) * slab_bytes;
            let page = if chunk_slabs * slab_bytes >= HUGE_PAGE as u64 { HUGE_PAGE as u64 } else { 4096 };
            bytes += used.next_multiple_of(page);
            left = left.saturating_sub(chunk_slabs);
            chunk_slabs *= 2;
        }
        bytes
    }
}
