//! The memory of a family, and of a root: slabs that are never moved, readable without a lock while more are added.

use block::memory::GrowingWords;
use block::{Error, Result};
use std::fmt::Debug;
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

/// Zeroed words, cut into slabs.
pub trait Memory: Sized + Debug + Send + Sync + 'static {
    /// The atomic word.
    type Word: Word;

    /// The memory of a map's root.
    type Roots: Memory<Word = Self::Word>;

    /// The logarithm of how many words a slab has; also of how many blocks a leaf covers and how many leaves a
    /// middle node has.
    const SLAB_SHIFT: u32;

    /// Words in a slab.
    const SLAB_WORDS: usize = 1 << Self::SLAB_SHIFT;

    /// Room for so many slabs at most, none of them usable yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn reserve(slabs: u32) -> Result<Self>;

    /// Makes slabs 0 to `slabs` - 1 usable, zeroed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn grow(&self, slabs: u32) -> Result<()>;

    /// The usable words.
    fn words(&self) -> &[Self::Word];

    /// How much memory so many slabs take once they have been touched, in bytes.
    fn bytes_for(slabs: u32) -> u64;

    /// Says that words of a slab are about to be changed.
    #[inline]
    fn touched(&self, _slab: u32) {}

    /// Says that a word will be read soon, if the processor can make use of that.
    #[inline]
    fn prefetch(&self, _word: usize) {}

    /// All words of a slab.
    ///
    /// # Panics
    /// If it isn't usable.
    #[inline]
    fn slab(&self, slab: u32) -> &[Self::Word] {
        &self.words()[(slab as usize) << Self::SLAB_SHIFT..][..Self::SLAB_WORDS]
    }
}

impl Memory for GrowingWords {
    type Word = AtomicU32;
    type Roots = GrowingWords;
    const SLAB_SHIFT: u32 = super::super::PAGE_BLOCKS.trailing_zeros();

    fn reserve(slabs: u32) -> Result<Self> {
        // Addresses are free, but a process may be limited in them.
        let mut slabs = slabs as usize;
        loop {
            match GrowingWords::reserve(slabs << Self::SLAB_SHIFT) {
                Err(Error::OutOfMemory(_)) if slabs > 1 << 18 => slabs /= 2,
                result => return result,
            }
        }
    }

    fn grow(&self, slabs: u32) -> Result<()> {
        self.grow((slabs as usize) << Self::SLAB_SHIFT)
    }

    #[inline]
    fn words(&self) -> &[AtomicU32] {
        self
    }

    #[inline]
    fn prefetch(&self, word: usize) {
        self.prefetch(word);
    }

    fn bytes_for(slabs: u32) -> u64 {
        GrowingWords::bytes_for(u64::from(slabs) << Self::SLAB_SHIFT)
    }
}
