//! The memory of a family, and of a root: slabs that are never moved, readable without a lock while more are added.
//!
//! A family's memory may also have *seats*: an array of one slab per page, where the word of a block has the block's own
//! number. As slabs they are numbered from [`FIRST_SEAT`] on.

use block::memory::GrowingWords;
use block::{Error, Result};
use std::fmt::Debug;
use std::ops::Range;
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

/// The slab that is the seat of page 0; above all others.
pub(super) const FIRST_SEAT: u32 = 1 << 30;

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

    /// The usable words, but for those of seats.
    fn words(&self) -> &[Self::Word];

    /// Whether pages may have seats.
    const SEATS: bool = false;

    /// The words of all seats that there are: word `b` is block `b`'s.
    #[inline]
    fn seats(&self) -> &[Self::Word] {
        &[]
    }

    /// Makes seats for pages 0 to `pages` - 1, zeroed, or for as many of them as there is room for.
    fn grow_seats(&self, _pages: u64) {}

    /// These slabs or seats will all be in use, and some are: they may take all of their memory now, in larger pages. Says
    /// whether they did.
    fn gather(&self, _slabs: Range<u32>) -> bool {
        false
    }

    /// These slabs or seats, none of which has been touched, will all be in use: they take their memory in larger pages. Says
    /// whether they will.
    fn expect(&self, _slabs: Range<u32>) -> bool {
        false
    }

    /// Takes the memory of slabs or seats that are [expected](Self::expect), without waiting for their first use. Others may
    /// use them at the same time.
    fn take(&self, _slabs: Range<u32>) {}

    /// Nobody uses these slabs or seats: they need no memory until somebody does, who finds anything in them.
    fn forget(&self, _slabs: Range<u32>) {}

    /// How much memory so many slabs take once they have been touched, in bytes.
    fn bytes_for(slabs: u32) -> u64;

    /// Says that words of a slab are about to be changed.
    #[inline]
    fn touched(&self, _slab: u32) {}

    /// Says that a word will be read soon, if the processor can make use of that.
    #[inline]
    fn prefetch(&self, _word: usize) {}

    /// As [`prefetch`](Self::prefetch), of a word of these [`seats`](Self::seats).
    #[inline]
    fn prefetch_seat(_seats: &[Self::Word], _word: usize) {}

    /// All words of a slab, which may be a seat.
    ///
    /// # Panics
    /// If it isn't usable.
    #[inline]
    fn slab(&self, slab: u32) -> &[Self::Word] {
        let (words, slab) = match Self::SEATS && slab >= FIRST_SEAT {
            true => (self.seats(), slab - FIRST_SEAT),
            false => (self.words(), slab),
        };
        &words[(slab as usize) << Self::SLAB_SHIFT..][..Self::SLAB_WORDS]
    }
}

/// A family's memory with seats. Both are in small pages at first: what isn't in use takes no memory.
#[derive(Debug)]
pub struct Seated {
    words: GrowingWords,
    seats: GrowingWords,
}

impl Seated {
    /// Where slabs are: words, of slabs or of seats.
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
        // It does without seats.
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
        // Without memory for the kernel's own tables there are fewer seats.
        let _ = self.seats.grow((pages as usize) << Self::SLAB_SHIFT);
    }

    fn gather(&self, slabs: Range<u32>) -> bool {
        let (words, range) = self.place(slabs);
        words.gather(range)
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

    fn bytes_for(slabs: u32) -> u64 {
        u64::from(slabs) << (Self::SLAB_SHIFT + 2)
    }
}

/// Addresses for so many slabs. They are free, but a process may be limited in them: then for fewer.
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
