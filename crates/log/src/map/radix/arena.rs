//! Who uses which part of the family's memory.
//!
//! Memory comes in slabs ([`Memory::SLAB_SHIFT`]). A whole slab is a middle node or a dense leaf; a slab may also be
//! cut into pieces of one size for leaves of runs. What is taken out of the maps is *retired*, and free again after
//! a grace period: until then a lookup that began before may still read it.
//!
//! All of this is the writer's, under the family's lock. Slab 0 is never handed out, so that a reference of 0 is
//! none, and it stays zero, so that a middle node that doesn't exist reads as an empty one.

use super::growing::{Growing, Memory};
use super::runs;
use std::collections::{BTreeSet, VecDeque};

/// What an entry of a middle node holds: nothing, a dense leaf, or a leaf of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reference(pub(super) u32);

/// A [`Reference`], taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing is mapped.
    Empty,
    /// The slab of a dense leaf: one word per block.
    Dense(u32),
    /// The number of a leaf of runs, in units.
    Runs(u32),
}

const DENSE: u32 = 1 << 31;
/// The logarithm of a unit in words: 64 bytes, a line of the processor's cache.
const UNIT_SHIFT: u32 = 4;

impl Reference {
    pub(super) const EMPTY: Reference = Reference(0);

    pub(super) fn dense(slab: u32) -> Self {
        Reference(slab | DENSE)
    }

    pub(super) fn runs(unit: u32) -> Self {
        Reference(unit)
    }

    #[inline]
    pub(super) fn kind(self) -> Kind {
        if self.0 & DENSE != 0 {
            Kind::Dense(self.0 ^ DENSE)
        } else if self.0 == 0 {
            Kind::Empty
        } else {
            Kind::Runs(self.0)
        }
    }
}

/// How a memory's slabs are cut.
pub(super) trait Shape: Memory {
    /// Words in a slab.
    const SLAB_WORDS: usize = 1 << Self::SLAB_SHIFT;
    /// The largest leaf of runs, in words: an eighth of a dense leaf.
    const MOST_WORDS: usize =
        if Self::SLAB_WORDS / 8 > 1 << UNIT_SHIFT { Self::SLAB_WORDS / 8 } else { 1 << UNIT_SHIFT };
    /// A leaf of more runs than this is dense.
    const MOST_RUNS: usize = runs::runs_in(Self::MOST_WORDS);

    /// The words of a leaf of runs, and of what is behind it in its slab.
    #[inline]
    fn piece(memory: &Growing<Self>, unit: u32) -> &[Self::Word] {
        let (slab, word) = Self::place(unit);
        &memory.slab(slab)[word..]
    }

    /// In which slab a unit lies, and at which word.
    #[inline]
    fn place(unit: u32) -> (u32, usize) {
        let shift = Self::SLAB_SHIFT - UNIT_SHIFT;
        (unit >> shift, ((unit & ((1 << shift) - 1)) << UNIT_SHIFT) as usize)
    }
}

impl<M: Memory> Shape for M {}

/// Sizes of leaves of runs: 64, 128, 256 and 512 bytes.
const CLASSES: usize = 4;

#[derive(Debug, Clone, Copy)]
enum Slab {
    /// And the next free one; 0 for none.
    Free(u32),
    /// A middle node or a dense leaf, and how many refer to it.
    Whole(u32),
    /// Pieces of one size, and which of them are free, bit by bit.
    Cut([u32; 2]),
}

/// The table of slabs grows in parts of so many, so that it never moves and is never much too large.
const PART: usize = 256;

/// The writer's account of the memory.
#[derive(Debug)]
pub(super) struct Allocator {
    slabs: Vec<Vec<Slab>>,
    /// Slabs 0 to `used` - 1 have been handed out at some time.
    used: u32,
    first_free: u32,
    /// Per class, cut slabs with room. The lowest is filled first, so that others become free as a whole.
    with_room: [BTreeSet<u32>; CLASSES],
    /// Retired since the last grace period began.
    retired: Vec<Reference>,
    /// Retired before the grace period of this number began.
    waiting: VecDeque<(u64, Vec<Reference>)>,
    retired_bytes: u64,
    last_grace: u64,
}

impl Allocator {
    pub(super) fn new<M: Memory>(memory: &Growing<M>) -> block::Result<Self> {
        let mut allocator = Allocator {
            slabs: Vec::new(),
            used: 0,
            first_free: 0,
            with_room: [const { BTreeSet::new() }; CLASSES],
            retired: Vec::new(),
            waiting: VecDeque::new(),
            retired_bytes: 0,
            last_grace: 0,
        };
        memory.make_room(0)?;
        allocator.take_slab(memory);
        Ok(allocator)
    }

    fn slab(&mut self, slab: u32) -> &mut Slab {
        &mut self.slabs[slab as usize / PART][slab as usize % PART]
    }

    /// A slab for one user, with whatever was in it.
    ///
    /// # Panics
    /// If the kernel has no more memory, as every allocation does.
    pub(super) fn take_slab<M: Memory>(&mut self, memory: &Growing<M>) -> u32 {
        let slab = self.first_free;
        if slab != 0 {
            let Slab::Free(next) = *self.slab(slab) else {
                unreachable!("the list of free slabs holds free ones")
            };
            self.first_free = next;
            *self.slab(slab) = Slab::Whole(1);
            return slab;
        }
        let slab = self.used;
        if let Err(error) = memory.make_room(slab) {
            panic!("the map can't grow: {error}");
        }
        if (slab as usize).is_multiple_of(PART) {
            self.slabs.push(Vec::with_capacity(PART));
        }
        self.slabs[slab as usize / PART].push(Slab::Whole(1));
        self.used += 1;
        slab
    }

    /// A piece for a leaf of so many runs, with whatever was in it.
    ///
    /// # Panics
    /// As [`take_slab`](Self::take_slab).
    pub(super) fn take_piece<M: Memory>(&mut self, memory: &Growing<M>, runs: usize) -> u32 {
        let class = Self::class(runs);
        let slab = match self.with_room[class].first() {
            Some(slab) => *slab,
            None => {
                let slab = self.take_slab(memory);
                assert!(
                    slab < DENSE >> (M::SLAB_SHIFT - UNIT_SHIFT),
                    "leaves of runs lie in 128 GiB at most"
                );
                let pieces = (M::SLAB_WORDS >> UNIT_SHIFT) >> class;
                let all = if pieces == 64 { u64::MAX } else { (1 << pieces) - 1 };
                *self.slab(slab) = Slab::Cut(halves(all));
                self.with_room[class].insert(slab);
                slab
            }
        };
        let Slab::Cut(free) = self.slab(slab) else { unreachable!("slabs with room for pieces are cut") };
        let bits = whole(*free);
        let piece = bits.trailing_zeros();
        *free = halves(bits & (bits - 1));
        if bits & (bits - 1) == 0 {
            self.with_room[class].remove(&slab);
        }
        (slab << (M::SLAB_SHIFT - UNIT_SHIFT)) + (piece << class)
    }

    /// How many refer to a whole slab, to be changed.
    pub(super) fn references(&mut self, slab: u32) -> &mut u32 {
        match self.slab(slab) {
            Slab::Whole(references) => references,
            other => unreachable!("references to slab {slab} are counted, but it is {other:?}"),
        }
    }

    /// Which size a leaf of so many runs takes.
    fn class(runs: usize) -> usize {
        let words = runs::words_for(runs).next_power_of_two().max(1 << UNIT_SHIFT);
        (words.trailing_zeros() - UNIT_SHIFT) as usize
    }

    fn size<M: Memory>(memory: &Growing<M>, what: Reference) -> u64 {
        match what.kind() {
            Kind::Empty => 0,
            Kind::Dense(_) => 4 << M::SLAB_SHIFT,
            Kind::Runs(unit) => (4 << UNIT_SHIFT) << Self::class(runs::count(M::piece(memory, unit))),
        }
    }

    /// Nobody refers to this leaf or middle node (as if it were a dense leaf) any more, but for lookups that have begun.
    pub(super) fn retire<M: Memory>(&mut self, memory: &Growing<M>, what: Reference) {
        self.retired_bytes += Self::size(memory, what);
        self.retired.push(what);
    }

    fn free<M: Memory>(&mut self, memory: &Growing<M>, what: Reference) {
        self.retired_bytes -= Self::size(memory, what);
        match what.kind() {
            Kind::Empty => {}
            Kind::Dense(slab) => self.free_slab(slab),
            Kind::Runs(unit) => {
                let class = Self::class(runs::count(M::piece(memory, unit)));
                let (slab, word) = M::place(unit);
                let Slab::Cut(free) = self.slab(slab) else { unreachable!("pieces lie in cut slabs") };
                let bits = whole(*free) | 1 << (word >> UNIT_SHIFT >> class);
                *free = halves(bits);
                if bits.count_ones() as usize == (M::SLAB_WORDS >> UNIT_SHIFT) >> class {
                    self.with_room[class].remove(&slab);
                    self.free_slab(slab);
                } else if bits.is_power_of_two() {
                    self.with_room[class].insert(slab);
                }
            }
        }
    }

    fn free_slab(&mut self, slab: u32) {
        *self.slab(slab) = Slab::Free(self.first_free);
        self.first_free = slab;
    }

    /// See [`Map::begin_grace`](crate::map::Map::begin_grace).
    pub(super) fn begin_grace(&mut self) -> u64 {
        self.last_grace += 1;
        if !self.retired.is_empty() {
            self.waiting.push_back((self.last_grace, std::mem::take(&mut self.retired)));
        }
        self.last_grace
    }

    /// See [`Map::end_grace`](crate::map::Map::end_grace). Earlier grace periods have ended with this one.
    pub(super) fn end_grace<M: Memory>(&mut self, memory: &Growing<M>, grace: u64) {
        while let Some((number, _)) = self.waiting.front()
            && *number <= grace
            && let Some((_, retired)) = self.waiting.pop_front()
        {
            for what in retired {
                self.free(memory, what);
            }
        }
    }

    /// How many slabs aren't free.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.slabs.iter().flatten().filter(|slab| !matches!(slab, Slab::Free(_))).count()
    }

    /// How much memory waits for a grace period.
    pub(super) fn retired_bytes(&self) -> u64 {
        self.retired_bytes
    }

    /// How much memory there is, with all accounts.
    pub(super) fn bytes<M: Memory>(&self) -> u64 {
        let tables =
            self.slabs.capacity() * size_of::<Vec<Slab>>() + self.slabs.len() * PART * size_of::<Slab>();
        // A set of numbers takes about twice their size.
        let room: usize = self.with_room.iter().map(|set| set.len() * 8).sum();
        let retired =
            self.retired.capacity() + self.waiting.iter().map(|(_, list)| list.capacity()).sum::<usize>();
        Growing::<M>::bytes(self.used.into()) + (tables + room + retired * 4 + size_of::<Self>()) as u64
    }
}

fn whole([low, high]: [u32; 2]) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}
