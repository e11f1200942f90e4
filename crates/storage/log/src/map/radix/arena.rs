//! Allocator of the family's memory.
//!
//! Memory is allocated in slabs ([`Memory::SLAB_SHIFT`]). A whole slab is a middle node or a dense leaf; a
//! slab may also be cut into pieces of one size for leaves of runs. Dense leaves use the seats of their pages
//! if these are free (`seats`). Memory that is removed from the maps is *retired*, and free after a grace
//! period, because an earlier lookup may still read it until then.
//!
//! All of this belongs to the writer, under the family's lock. Slab 0 is never allocated, so reference 0 is
//! empty. It stays zero, so that a missing middle node reads as an empty one.

#[cfg(feature = "map-home")]
mod claims;

use super::memory::{FIRST_SEAT, Memory};
use super::runs::Class;
use super::seats::{REGION, Seats};
use std::collections::{BTreeSet, VecDeque};

/// Entry of a middle node: empty, a dense leaf, or a leaf of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reference(pub(super) u32);

/// A decoded [`Reference`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing is mapped.
    Empty,
    /// Slab of a dense leaf: one word per block.
    Dense(u32),
    /// A leaf of runs.
    Runs(Piece),
}

/// A part of a cut slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Size class.
    pub(super) class: Class,
    /// Number of the piece, in multiples of its size.
    pub(super) number: u32,
}

impl Piece {
    /// Returns the index of the piece's first word.
    #[inline]
    fn word(self) -> usize {
        self.number as usize * self.class.words()
    }

    /// Returns the slab that the piece is part of.
    #[inline]
    pub(super) fn slab<M: Memory>(self) -> u32 {
        (self.word() >> M::SLAB_SHIFT) as u32
    }

    /// Prefetches the lines of the piece that every search reads.
    #[inline]
    pub(super) fn prefetch<M: Memory>(self, memory: &M) {
        memory.prefetch(self.word());
        if self.class > Class(0) {
            memory.prefetch(self.word() + self.class.words() / 2);
        }
    }

    /// Returns the piece's words.
    #[inline]
    pub(super) fn words<M: Memory>(self, memory: &M) -> &[M::Word] {
        &memory.words()[self.word()..][..self.class.words()]
    }
}

const DENSE: u32 = 1 << 31;
/// Shift of the class above the number of a piece.
const CLASS_SHIFT: u32 = 29;

impl Reference {
    pub(super) const EMPTY: Reference = Reference(0);

    pub(super) fn dense(slab: u32) -> Self {
        Reference(slab | DENSE)
    }

    pub(super) fn runs(piece: Piece) -> Self {
        Reference(piece.class.0 << CLASS_SHIFT | piece.number)
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        if self.0 & DENSE != 0 {
            Kind::Dense(self.0 ^ DENSE)
        } else if self.0 == 0 {
            Kind::Empty
        } else {
            let class = Class(self.0 >> CLASS_SHIFT);
            Kind::Runs(Piece { class, number: self.0 & ((1 << CLASS_SHIFT) - 1) })
        }
    }
}

/// Most slabs of a family: 1 TiB of memory.
pub(super) const MAX_SLABS: u32 = 1 << 28;

/// Returns the most runs of the largest leaf of runs: an eighth of a dense leaf.
pub(super) fn most_runs<M: Memory>() -> usize {
    (0..Class::COUNT as u32)
        .map(Class)
        .rfind(|class| class.0 == 0 || class.words() * 8 <= M::SLAB_WORDS)
        .map_or(0, Class::runs)
}

#[derive(Debug, Clone, Copy)]
enum Slab {
    /// Free, with the next free slab; 0 for none.
    Free(u32),
    /// A middle node or a dense leaf, with its reference count.
    Whole(u32),
    /// Pieces of one size, with a bit for each free one.
    Cut([u32; 2]),
}

/// Number of free slabs that always keep their memory.
const FREE: u32 = 64;

/// Slabs per part of the table. The table grows by parts, so that it never moves and has little unused
/// memory.
const PART: usize = 256;

/// The writer's account of the memory.
#[derive(Debug, Default)]
pub(super) struct Allocator {
    slabs: Vec<Vec<Slab>>,
    /// Slabs 0 to `used` - 1 have been allocated at some time.
    used: u32,
    first_free: u32,
    /// Number of free slabs that have memory.
    free: u32,
    /// First free slab without memory; 0 for none.
    first_forgotten: u32,
    /// Number of free slabs without memory.
    forgotten: u32,
    seats: Seats,
    /// Number of pieces in use.
    pieces: u64,
    /// Cut slabs with free pieces, by class. The lowest is filled first, so that others become completely
    /// free.
    with_free: [BTreeSet<u32>; Class::COUNT],
    /// Memory retired since the last grace period began.
    retired: Vec<Reference>,
    /// Memory retired before the grace period of this number began.
    waiting: VecDeque<(u64, Vec<Reference>)>,
    retired_bytes: u64,
    last_grace: u64,
}

impl Allocator {
    pub(super) fn new<M: Memory>(memory: &M) -> block::Result<Self> {
        let mut allocator = Allocator::default();
        memory.grow(1)?;
        allocator.take_slab(memory);
        Ok(allocator)
    }

    fn slab(&mut self, slab: u32) -> &mut Slab {
        &mut self.slabs[slab as usize / PART][slab as usize % PART]
    }

    /// Takes a slab with arbitrary contents and one reference.
    ///
    /// # Panics
    /// If the kernel has no memory, like every allocation.
    pub(super) fn take_slab<M: Memory>(&mut self, memory: &M) -> u32 {
        let (slab, is_forgotten) = match self.first_free {
            0 => (self.first_forgotten, true),
            slab => (slab, false),
        };
        if slab != 0 {
            let Slab::Free(next) = *self.slab(slab) else {
                unreachable!("the lists of free slabs hold free ones")
            };
            if is_forgotten {
                (self.first_forgotten, self.forgotten) = (next, self.forgotten - 1);
            } else {
                (self.first_free, self.free) = (next, self.free - 1);
            }
            *self.slab(slab) = Slab::Whole(1);
            return slab;
        }
        let slab = self.used;
        if let Err(error) = memory.grow(slab + 1) {
            panic!("the map can't grow: {error}");
        }
        if (slab as usize).is_multiple_of(PART) {
            self.slabs.push(Vec::with_capacity(PART));
        }
        self.slabs[slab as usize / PART].push(Slab::Whole(1));
        self.used += 1;
        if (slab as usize).is_multiple_of(REGION) && slab > 0 {
            memory.collapse(slab - REGION as u32..slab);
        }
        slab
    }

    /// Takes a slab for a dense leaf of this page, with arbitrary contents: the page's seat, if that is free.
    ///
    /// # Panics
    /// If the kernel has no memory, as in [`take_slab`](Self::take_slab).
    pub(super) fn take_leaf<M: Memory>(&mut self, memory: &M, page: u64) -> u32 {
        self.take_seat(memory, page).unwrap_or_else(|| self.take_slab(memory))
    }

    /// Takes the seat of a page, with arbitrary contents, if it is free.
    pub(super) fn take_seat<M: Memory>(&mut self, memory: &M, page: u64) -> Option<u32> {
        if M::SEATS { self.seats.take(memory, page, self.pieces) } else { None }
    }

    /// Announces pages that will be dense, as [`Seats::expect`] does.
    pub(super) fn expect<M: Memory>(&mut self, memory: &M, pages: &[u64]) -> Vec<u32> {
        if M::SEATS { self.seats.expect(memory, pages, self.pieces) } else { Vec::new() }
    }

    /// Takes a piece for a leaf of `runs` runs, with arbitrary contents. `None` if there are too many runs,
    /// or no piece that a reference can encode: the leaf must then be dense.
    ///
    /// # Panics
    /// If the kernel has no memory, as in [`take_slab`](Self::take_slab).
    pub(super) fn take_piece<M: Memory>(&mut self, memory: &M, runs: usize) -> Option<Piece> {
        let class = Class::for_runs(runs)?;
        let pieces = Self::pieces::<M>(class);
        let room = &mut self.with_free[class.0 as usize];
        let slab = match room.first() {
            Some(slab) => *slab,
            None => {
                let slab = self.take_slab(memory);
                if slab as usize * pieces >= 1 << CLASS_SHIFT {
                    self.free_slab(slab);
                    return None;
                }
                let all = if pieces == 64 { u64::MAX } else { (1 << pieces) - 1 };
                *self.slab(slab) = Slab::Cut(halves(all));
                self.with_free[class.0 as usize].insert(slab);
                slab
            }
        };
        self.pieces += 1;
        let Slab::Cut(free) = self.slab(slab) else { unreachable!("slabs with room for pieces are cut") };
        let bits = whole(*free);
        let rest = bits & (bits - 1);
        *free = halves(rest);
        if rest == 0 {
            self.with_free[class.0 as usize].remove(&slab);
        }
        Some(Piece { class, number: slab * pieces as u32 + bits.trailing_zeros() })
    }

    /// Returns the number of pieces of a slab.
    fn pieces<M: Memory>(class: Class) -> usize {
        M::SLAB_WORDS / class.words()
    }

    /// Returns the reference count of a whole slab, to be changed.
    pub(super) fn references(&mut self, slab: u32) -> &mut u32 {
        if slab >= FIRST_SEAT {
            return self.seats.references(slab);
        }
        match self.slab(slab) {
            Slab::Whole(references) => references,
            other => unreachable!("references to slab {slab} are counted, but it is {other:?}"),
        }
    }

    fn size<M: Memory>(what: Reference) -> u64 {
        match what.kind() {
            Kind::Empty => 0,
            Kind::Dense(_) => 4 << M::SLAB_SHIFT,
            Kind::Runs(piece) => 4 * piece.class.words() as u64,
        }
    }

    /// Retires an unreferenced leaf or middle node (as a dense leaf), which only lookups in progress may
    /// read.
    pub(super) fn retire<M: Memory>(&mut self, what: Reference) {
        self.retired_bytes += Self::size::<M>(what);
        self.retired.push(what);
    }

    fn free<M: Memory>(&mut self, memory: &M, what: Reference) {
        self.retired_bytes -= Self::size::<M>(what);
        match what.kind() {
            Kind::Empty => {}
            Kind::Dense(slab) if slab >= FIRST_SEAT => self.seats.free(memory, slab),
            Kind::Dense(slab) => self.free_slab(slab),
            Kind::Runs(Piece { class, number }) => {
                self.pieces -= 1;
                let pieces = Self::pieces::<M>(class);
                let slab = number / pieces as u32;
                let Slab::Cut(free) = self.slab(slab) else { unreachable!("pieces lie in cut slabs") };
                let bits = whole(*free) | 1 << (number % pieces as u32);
                *free = halves(bits);
                if bits.count_ones() as usize == pieces {
                    self.with_free[class.0 as usize].remove(&slab);
                    self.free_slab(slab);
                } else if bits.is_power_of_two() {
                    self.with_free[class.0 as usize].insert(slab);
                }
            }
        }
    }

    fn free_slab(&mut self, slab: u32) {
        *self.slab(slab) = Slab::Free(self.first_free);
        (self.first_free, self.free) = (slab, self.free + 1);
    }

    /// Frees the memory of free slabs if there are many, as after leaves of runs have become dense.
    fn forget_free<M: Memory>(&mut self, memory: &M) {
        let many = FREE + (self.used - self.forgotten) / 8;
        if !M::SEATS || self.free <= many {
            return;
        }
        while self.first_free != 0 {
            let slab = self.first_free;
            let Slab::Free(next) = *self.slab(slab) else {
                unreachable!("the list of free slabs holds free ones")
            };
            memory.forget(slab..slab + 1);
            *self.slab(slab) = Slab::Free(self.first_forgotten);
            (self.first_forgotten, self.first_free) = (slab, next);
        }
        self.forgotten += std::mem::take(&mut self.free);
    }

    /// Begins a grace period for [`Map::begin_grace`](crate::map::Map::begin_grace).
    pub(super) fn begin_grace(&mut self) -> u64 {
        self.last_grace += 1;
        if !self.retired.is_empty() {
            self.waiting.push_back((self.last_grace, std::mem::take(&mut self.retired)));
        }
        self.last_grace
    }

    /// Ends a grace period and all earlier ones, for [`Map::end_grace`](crate::map::Map::end_grace).
    pub(super) fn end_grace<M: Memory>(&mut self, memory: &M, grace: u64) {
        while let Some((number, _)) = self.waiting.front()
            && *number <= grace
            && let Some((_, retired)) = self.waiting.pop_front()
        {
            for what in retired {
                self.free(memory, what);
            }
        }
        self.forget_free(memory);
    }

    /// Returns the number of slabs and seats that aren't free.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.seats.in_use()
            + self.slabs.iter().flatten().filter(|slab| !matches!(slab, Slab::Free(_))).count()
    }

    /// Returns the memory that waits for a grace period, in bytes.
    pub(super) fn retired_bytes(&self) -> u64 {
        self.retired_bytes
    }

    /// Returns the memory in use in bytes, the allocator's tables included.
    pub(super) fn bytes<M: Memory>(&self) -> u64 {
        let tables =
            self.slabs.capacity() * size_of::<Vec<Slab>>() + self.slabs.len() * PART * size_of::<Slab>();
        // A set of numbers takes about twice their size.
        let room: usize = self.with_free.iter().map(|set| set.len() * 8).sum();
        let retired =
            self.retired.capacity() + self.waiting.iter().map(|(_, list)| list.capacity()).sum::<usize>();
        M::bytes_for(self.used - self.forgotten)
            + self.seats.bytes::<M>()
            + (tables + room + retired * 4 + size_of::<Self>()) as u64
    }
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}
