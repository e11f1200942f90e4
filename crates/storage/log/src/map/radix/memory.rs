//! Memory of a family, and of a root: slabs that are never moved, readable without a lock while more are
//! added.
//!
//! A family's memory may also have *seats*: an array of one slab per page, in which the index of a block's
//! word is the block's number. As slabs they are numbered from [`FIRST_SEAT`].

use block::memory::GrowingWords;
use block::{Error, Result};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// An atomic word. The map is generic over it so that a model checker can replace the processor.
pub trait Word: Send + Sync + 'static {
    /// Loads the value with acquire ordering.
    fn get(&self) -> u32;
    /// Stores a value with release ordering.
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

/// Slab that is the seat of page 0; above all other slabs.
pub(super) const FIRST_SEAT: u32 = 1 << 30;

/// Zeroed words, cut into slabs.
pub trait Memory: Sized + Debug + Send + Sync + 'static {
    /// Type of the atomic words.
    type Word: Word;

    /// Memory of a map's root.
    type Roots: Memory<Word = Self::Word>;

    /// Logarithm of the number of words of a slab; also of the blocks of a leaf and of the leaves of a middle
    /// node.
    const SLAB_SHIFT: u32;

    /// Number of words in a slab.
    const SLAB_WORDS: usize = 1 << Self::SLAB_SHIFT;

    /// Reserves addresses for at most `slabs` slabs, none of them usable yet.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn reserve(slabs: u32) -> Result<Self>;

    /// Makes slabs 0 to `slabs` - 1 usable, zeroed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn grow(&self, slabs: u32) -> Result<()>;

    /// Returns the usable words, those of seats excluded.
    fn words(&self) -> &[Self::Word];

    /// Whether pages may have seats.
    const SEATS: bool = false;

    /// Returns the words of all seats: word `b` is that of block `b`.
    #[inline]
    fn seats(&self) -> &[Self::Word] {
        &[]
    }

    /// Makes seats for pages 0 to `pages` - 1, zeroed, or for as many of them as fit.
    fn grow_seats(&self, _pages: u64) {}

    /// Backs slabs or seats, all of which will be in use and some of which already are, with larger pages.
    /// Returns whether it did.
    fn collapse(&self, _slabs: Range<u32>) -> bool {
        false
    }

    /// Announces that slabs or seats without memory will all be in use, so that they get larger pages.
    /// Returns whether they will.
    fn expect(&self, _slabs: Range<u32>) -> bool {
        false
    }

    /// Faults in the memory of [expected](Self::expect) slabs or seats before their first use. May run
    /// concurrently with their use.
    fn take(&self, _slabs: Range<u32>) {}

    /// Frees the memory of unused slabs or seats until their next use. Their contents are then arbitrary.
    fn forget(&self, _slabs: Range<u32>) {}

    /// Returns the memory of this number of touched slabs, in bytes.
    fn bytes_for(slabs: u32) -> u64 {
        u64::from(slabs) << (Self::SLAB_SHIFT + 2)
    }

    /// Announces that words of a slab are about to be changed.
    #[inline]
    fn touched(&self, _slab: u32) {}

    /// Prefetches a word that will be read soon.
    #[inline]
    fn prefetch(&self, _word: usize) {}

    /// Prefetches a word of these [`seats`](Self::seats) that will be read soon.
    #[inline]
    fn prefetch_seat(_seats: &[Self::Word], _word: usize) {}

    /// Returns all words of a slab, which may be a seat.
    ///
    /// # Panics
    /// If the slab isn't usable.
    #[inline]
    fn slab(&self, slab: u32) -> &[Self::Word] {
        let (words, slab) = match Self::SEATS && slab >= FIRST_SEAT {
            true => (self.seats(), slab - FIRST_SEAT),
            false => (self.words(), slab),
        };
        &words[(slab as usize) << Self::SLAB_SHIFT..][..Self::SLAB_WORDS]
    }
}

/// A family's memory with seats. Both use small pages at first; unused parts take no memory.
#[derive(Debug)]
pub struct Seated {
    words: GrowingWords,
    seats: GrowingWords,
}

impl Seated {
    /// Returns the words of slabs or of seats, and the range in them.
    fn place(&self, slabs: Range<u32>) -> (&GrowingWords, Range<usize>) {
        let (words, first) = match slabs.start >= FIRST_SEAT {
            true => (&self.seats, FIRST_SEAT),
            false => (&self.words, 0),
        };
        let word = |slab: u32| ((slab - first) as usize) << Self::SLAB_SHIFT;
        (words, word(slabs.start)..word(slabs.end))
    }
}

impl Memory for Seated {
    type Word = AtomicU32;
    type Roots = GrowingWords;
    const SLAB_SHIFT: u32 = <GrowingWords as Memory>::SLAB_SHIFT;

    fn reserve(slabs: u32) -> Result<Self> {
        let words = as_many(slabs, GrowingWords::reserve_small)?;
        // The map works without seats.
        let seats =
            as_many(slabs, GrowingWords::reserve_small).or_else(|_| GrowingWords::reserve_small(1))?;
        Ok(Seated { words, seats })
    }

    fn grow(&self, slabs: u32) -> Result<()> {
        Memory::grow(&self.words, slabs)
    }

    #[inline]
    fn words(&self) -> &[AtomicU32] {
        &self.words
    }

    const SEATS: bool = true;

    #[inline]
    fn seats(&self) -> &[AtomicU32] {
        &self.seats
    }

    fn grow_seats(&self, pages: u64) {
        let pages = pages.min((self.seats.most() >> Self::SLAB_SHIFT) as u64);
        // If the kernel has no memory for its page tables, there are fewer seats.
        let _ = self.seats.grow((pages as usize) << Self::SLAB_SHIFT);
    }

    fn collapse(&self, slabs: Range<u32>) -> bool {
        let (words, range) = self.place(slabs);
        words.collapse(range)
    }

    fn expect(&self, slabs: Range<u32>) -> bool {
        let (words, range) = self.place(slabs);
        words.expect(range)
    }

    fn take(&self, slabs: Range<u32>) {
        let (words, range) = self.place(slabs);
        words.take(range);
    }

    fn forget(&self, slabs: Range<u32>) {
        let (words, range) = self.place(slabs);
        words.forget(range);
    }

    #[inline]
    fn prefetch(&self, word: usize) {
        self.words.prefetch(word);
    }

    #[inline]
    fn prefetch_seat(seats: &[AtomicU32], word: usize) {
        block::memory::prefetch(seats, word);
    }
}

/// Reserves addresses for `slabs` slabs, or for fewer if the process's address space is limited.
fn as_many(slabs: u32, reserve: impl Fn(usize) -> Result<GrowingWords>) -> Result<GrowingWords> {
    let mut slabs = slabs as usize;
    loop {
        match reserve(slabs << <GrowingWords as Memory>::SLAB_SHIFT) {
            Err(Error::OutOfMemory(_)) if slabs > 1 << 18 => slabs /= 2,
            result => return result,
        }
    }
}

impl Memory for GrowingWords {
    type Word = AtomicU32;
    type Roots = GrowingWords;
    const SLAB_SHIFT: u32 = super::super::PAGE_BLOCKS.trailing_zeros();

    fn reserve(slabs: u32) -> Result<Self> {
        as_many(slabs, GrowingWords::reserve)
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
