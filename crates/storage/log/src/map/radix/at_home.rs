//! A family whose memory is the contents of a file, for maps that outlive the process.
//!
//! [`HomeWords`] tracks changed slabs. The owner of the file takes them from a [`Family`] between two changes
//! and writes them to the file, so that the file is always consistent. Roots aren't in this memory (4 bytes
//! per 4 GiB of volume): [`Map::roots`](crate::map::Map::roots) returns them. [`open`] takes both and returns
//! the maps. It reads only the middle nodes of the memory, 4 KiB per 4 GiB of volume, and recounts the slabs
//! in use.

use super::arena::{Allocator, Kind, MAX_SLABS, Reference};
use super::memory::{Memory, Word};
use super::runs::Runs;
use super::{Radix, State};
use block::memory::GrowingWords;
use block::{Error, Result};
use runtime::mapping::{PAGE, PrivateWords};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Words of a family with a home, which track the slabs changed since the last [`Family::take_touched`].
#[derive(Debug)]
pub struct HomeWords {
    words: PrivateWords,
    /// A bit per slab: whether it is in `touched`.
    is_touched: GrowingWords,
    touched: Mutex<Vec<u32>>,
    /// A bit per slab: whether it has private memory in addition to the file's.
    is_private: GrowingWords,
    private: AtomicU64,
}

/// A slab is a page, which is copied on write.
const _: () = assert!(4 << HomeWords::SLAB_SHIFT == PAGE);

impl HomeWords {
    /// Returns unchanged words on this memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(words: PrivateWords) -> Result<Self> {
        Ok(HomeWords {
            words,
            is_touched: GrowingWords::reserve(MAX_SLABS as usize / 32)?,
            touched: Mutex::default(),
            is_private: GrowingWords::reserve(MAX_SLABS as usize / 32)?,
            private: AtomicU64::new(0),
        })
    }

    /// Most words of a family.
    pub const MAX: usize = (MAX_SLABS as usize) << Self::SLAB_SHIFT;
}

/// Sets or clears a bit that only one thread changes; returns whether it was set.
fn change(bits: &GrowingWords, number: u32, to: bool) -> bool {
    let (word, bit) = (&bits[number as usize / 32], 1 << (number % 32));
    let before = word.load(Ordering::Relaxed);
    let after = if to { before | bit } else { before & !bit };
    if after != before {
        word.store(after, Ordering::Relaxed);
    }
    before & bit != 0
}

impl Memory for HomeWords {
    type Word = AtomicU32;
    type Roots = GrowingWords;
    const SLAB_SHIFT: u32 = <GrowingWords as Memory>::SLAB_SHIFT;

    /// Creates words without a file, for tests.
    fn reserve(slabs: u32) -> Result<Self> {
        HomeWords::new(PrivateWords::anonymous((slabs as usize) << Self::SLAB_SHIFT)?)
    }

    fn grow(&self, slabs: u32) -> Result<()> {
        self.words.grow((slabs as usize) << Self::SLAB_SHIFT)?;
        let bits = (self.words.len() >> Self::SLAB_SHIFT).div_ceil(32);
        self.is_touched.grow(bits)?;
        self.is_private.grow(bits)
    }

    #[inline]
    fn words(&self) -> &[AtomicU32] {
        &self.words
    }

    #[inline]
    fn prefetch(&self, word: usize) {
        self.words.prefetch(word);
    }

    fn touched(&self, slab: u32) {
        if !change(&self.is_touched, slab, true) {
            self.touched.lock().unwrap_or_else(PoisonError::into_inner).push(slab);
            if !change(&self.is_private, slab, true) {
                self.private.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Memory that a map and its snapshots share, for the owner of its home.
#[derive(Debug, Clone)]
pub struct Family(Arc<super::Family<HomeWords>>);

impl Family {
    /// Visits the slabs that were changed since the last call, in order, and returns their numbers. No change
    /// may run concurrently.
    pub fn take_touched(&self, mut visit: impl FnMut(u32, &[AtomicU32])) -> Vec<u32> {
        let writer = self.0.lock();
        let memory = writer.memory;
        let mut touched = std::mem::take(&mut *memory.touched.lock().unwrap_or_else(PoisonError::into_inner));
        touched.sort_unstable();
        for slab in &touched {
            change(&memory.is_touched, *slab, false);
            visit(*slab, memory.slab(*slab));
        }
        touched
    }

    /// Marks these slabs as changed again.
    pub fn touch(&self, slabs: &[u32]) {
        let writer = self.0.lock();
        slabs.iter().for_each(|slab| writer.memory.touched(*slab));
    }

    /// Returns the number of slabs that have ever been allocated; later ones are empty.
    pub fn used(&self) -> u32 {
        self.0.lock().state.allocator.used()
    }

    /// Extends the home to this number of slabs.
    ///
    /// # Errors
    /// Errors of extending the home.
    pub fn reach(&self, slabs: u32) -> Result<()> {
        let writer = self.0.lock();
        writer.memory.grow(slabs)
    }

    /// Returns the number of slabs with private memory in addition to the file's.
    pub fn private(&self) -> u64 {
        self.0.memory.private.load(Ordering::Relaxed)
    }

    /// Frees the private memory of all slabs that haven't changed since their last visit. The caller has
    /// written them to the home.
    pub fn forget_private(&self) {
        let writer = self.0.lock();
        let memory = writer.memory;
        let mut begun: Option<u32> = None;
        let forget = |from: u32, to: u32| {
            memory
                .words
                .forget((from as usize) << HomeWords::SLAB_SHIFT..(to as usize) << HomeWords::SLAB_SHIFT);
        };
        let slabs = (memory.is_private.len() * 32).min(memory.words.len() >> HomeWords::SLAB_SHIFT) as u32;
        for (number, word) in memory.is_private.iter().enumerate() {
            let first = number as u32 * 32;
            if first >= slabs {
                break;
            }
            let bits = word.load(Ordering::Relaxed);
            if bits == 0 && begun.is_none() {
                continue;
            }
            for slab in first..(first + 32).min(slabs) {
                let is_private = bits >> (slab % 32) & 1 != 0;
                let is_touched = memory.is_touched[number].load(Ordering::Relaxed) >> (slab % 32) & 1 != 0;
                if is_private && !is_touched {
                    change(&memory.is_private, slab, false);
                    memory.private.fetch_sub(1, Ordering::Relaxed);
                    begun.get_or_insert(slab);
                } else if let Some(from) = begun.take() {
                    forget(from, slab);
                }
            }
        }
        if let Some(from) = begun {
            forget(from, slabs);
        }
    }
}

/// Returns an empty map of `blocks` blocks, and the memory that it shares with its snapshots.
///
/// # Errors
/// Errors of making words usable.
pub fn create(words: HomeWords, blocks: u64) -> Result<(Radix<HomeWords>, Family)> {
    let map = Radix::in_this_memory(words, blocks)?;
    let family = Family(map.family.clone());
    Ok((map, family))
}

/// A map to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenVersion {
    /// Number of blocks.
    pub blocks: u64,
    /// Result of [`Map::roots`](crate::map::Map::roots).
    pub roots: Vec<u32>,
}

/// Overlays words privately before they are opened: `changes` calls back with the index of a word and the new
/// contents that start there. The first `slabs` slabs are made usable.
///
/// # Errors
/// Errors of making words usable.
pub fn overlay(
    words: &HomeWords,
    slabs: u32,
    changes: impl FnOnce(&mut dyn FnMut(usize, &[u8])),
) -> Result<()> {
    words.grow(slabs.max(1))?;
    changes(&mut |first, bytes| {
        let words = words.words().get(first..).unwrap_or_default();
        for (word, bytes) in words.iter().zip(bytes.as_chunks::<4>().0) {
            word.set(u32::from_ne_bytes(*bytes));
        }
    });
    Ok(())
}

/// Opens the maps of a family whose first `slabs` slabs have been used.
///
/// # Errors
/// [`Error::Corrupt`] for impossible words in roots and middle nodes; errors of making words usable.
pub fn open(
    words: HomeWords,
    slabs: u32,
    versions: &[OpenVersion],
) -> Result<(Vec<Radix<HomeWords>>, Family)> {
    words.grow(slabs.max(1))?;
    let allocator = recount(&words, slabs.max(1), versions)?;
    let runs = Runs::new(Radix::<HomeWords>::LEAF as u32);
    let state = State { allocator, runs, versions: versions.len() as u64 };
    let family = Arc::new(super::Family { memory: words, state: Mutex::new(state) });
    let mut maps = Vec::with_capacity(versions.len());
    for version in versions {
        let map = Radix::of_family(family.clone(), version.blocks)?;
        for (word, middle) in map.root.words().iter().zip(&version.roots) {
            word.set(*middle);
        }
        maps.push(map);
    }
    Ok((maps, Family(family)))
}

/// Computes the slabs in use from roots and middle nodes. The reference count of a leaf of runs is stored in
/// the leaf.
fn recount(words: &HomeWords, slabs: u32, versions: &[OpenVersion]) -> Result<Allocator> {
    let wrong = |what: String| {
        Error::corrupt(format!("the map's home is damaged: {what}; restore the file and the disk"))
    };
    if words.slab(0).iter().any(|word| word.get() != 0) {
        return Err(wrong("the first slab isn't empty".to_owned()));
    }
    let mut allocator = Allocator::of_slabs(slabs);
    for version in versions {
        if version.roots.len() as u64 != Radix::<HomeWords>::middles(version.blocks) {
            let text = format!("{} roots for a map of {} blocks", version.roots.len(), version.blocks);
            return Err(wrong(text));
        }
        for middle in version.roots.iter().copied().filter(|middle| *middle != 0) {
            let is_new = match middle < slabs {
                true => allocator.claim_whole(middle),
                false => None,
            };
            let is_new = is_new.ok_or_else(|| wrong(format!("slab {middle} is not a middle node")))?;
            if !is_new {
                continue;
            }
            for entry in words.slab(middle).iter().map(|word| Reference(word.get())) {
                let claimed = match entry.kind() {
                    Kind::Empty => true,
                    Kind::Dense(slab) => slab < slabs && allocator.claim_whole(slab).is_some(),
                    Kind::Runs(piece) => {
                        piece.slab::<HomeWords>() < slabs && allocator.claim_piece::<HomeWords>(piece)
                    }
                };
                if !claimed {
                    return Err(wrong(format!("slab {middle} has an invalid reference: {:?}", entry.kind())));
                }
            }
        }
    }
    allocator.settle();
    Ok(allocator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Map, PAGE_BLOCKS, Physical};

    const BLOCKS: u64 = 3 << 20;

    /// Contents of a file.
    #[derive(Default)]
    struct Copy {
        slabs: Vec<[u32; 1024]>,
    }

    impl Copy {
        fn update(&mut self, family: &Family) -> usize {
            let touched = family.take_touched(|slab, words| {
                if self.slabs.len() <= slab as usize {
                    self.slabs.resize(slab as usize + 1, [0; 1024]);
                }
                let to = &mut self.slabs[slab as usize];
                to.iter_mut().zip(words).for_each(|(to, word)| *to = word.load(Ordering::Relaxed));
            });
            touched.len()
        }

        fn words(&self) -> HomeWords {
            let words = HomeWords::reserve(1 << 16).unwrap();
            words.grow(self.slabs.len() as u32).unwrap();
            for (slab, from) in self.slabs.iter().enumerate() {
                words.slab(slab as u32).iter().zip(from).for_each(|(word, from)| word.set(*from));
            }
            words
        }
    }

    fn roots(map: &dyn Map) -> OpenVersion {
        let mut roots = Vec::new();
        map.roots(&mut roots);
        OpenVersion { blocks: map.blocks(), roots }
    }

    fn contents(map: &dyn Map) -> Vec<(u64, u64, u32)> {
        let mut all = Vec::new();
        map.lookup_range(0..map.blocks(), &mut |piece| {
            all.push((piece.block, piece.count, piece.physical.0))
        });
        all
    }

    fn scribble(map: &dyn Map, random: &mut runtime::Random) {
        let block = random.below(BLOCKS - 5000);
        // A small range, so that leaves are changed repeatedly.
        let block = if random.below(3) > 0 { block % (3 * PAGE_BLOCKS) } else { block };
        let count = [1, 1, 7, 600, 3000][random.below(5) as usize];
        let to = Physical(random.below(1 << 30) as u32 + 1);
        match random.below(8) {
            0 => map.insert(block..block + count, Physical::NONE, &mut |_| {}),
            1 => {
                let from = map.lookup(block);
                map.compare_and_move(block..block + count, from, to, &mut |_| {});
            }
            2 => {
                let mut page: Vec<u32> = (0..PAGE_BLOCKS as u32).map(|number| to.0 + number / 2).collect();
                page[0] = random.below(2) as u32;
                map.load_page(block / PAGE_BLOCKS, &page);
            }
            _ => map.insert(block..block + count, to, &mut |_| {}),
        }
    }

    /// The contract as a whole: all changed slabs are reported, and together with the roots they are the
    /// maps.
    #[test]
    fn what_is_told_is_all_that_it_takes() {
        let mut random = runtime::Random::new(61);
        let (map, mut family) = create(HomeWords::reserve(1 << 16).unwrap(), BLOCKS).unwrap();
        let mut maps: Vec<Arc<dyn Map>> = vec![Arc::new(map)];
        let mut copy = Copy::default();
        for round in 0..120 {
            for _ in 0..random.below(60) {
                let map = &maps[random.below(maps.len() as u64) as usize];
                scribble(&**map, &mut random);
                if random.below(4) == 0 {
                    map.end_grace(map.begin_grace());
                }
            }
            match random.below(6) {
                0 if maps.len() < 5 => {
                    let snapshot = maps[random.below(maps.len() as u64) as usize].snapshot();
                    maps.push(snapshot);
                }
                1 if maps.len() > 1 => drop(maps.swap_remove(random.below(maps.len() as u64) as usize)),
                _ => {}
            }
            copy.update(&family);
            assert_eq!(copy.update(&family), 0, "each change is reported once");
            let versions: Vec<_> = maps.iter().map(|map| roots(&**map)).collect();
            let (opened, new_family) = open(copy.words(), family.used(), &versions).unwrap();
            for (map, opened) in maps.iter().zip(&opened) {
                assert!(contents(&**map) == contents(opened), "round {round}");
            }
            let lock = family.0.lock();
            let waiting = lock.state.allocator.retired_bytes();
            let (before, after) =
                (lock.state.allocator.in_use(), new_family.0.lock().state.allocator.in_use());
            drop(lock);
            assert!(after <= before, "{after} slabs in use, {before} before");
            assert!(waiting > 0 || after == before, "round {round}: {after} slabs in use, {before} before");
            if random.below(4) == 0 {
                // Continue with the opened maps.
                maps = opened.into_iter().map(|map| Arc::new(map) as Arc<dyn Map>).collect();
                family = new_family;
            }
        }
        for map in &maps {
            map.insert(0..BLOCKS, Physical::NONE, &mut |_| {});
            map.end_grace(map.begin_grace());
        }
        assert_eq!(family.0.lock().state.allocator.in_use(), 1, "slabs in use of empty maps");
    }

    #[test]
    fn words_that_can_not_be_are_refused() {
        let (map, family) = create(HomeWords::reserve(1 << 16).unwrap(), BLOCKS).unwrap();
        let mut random = runtime::Random::new(62);
        (0..200).for_each(|_| scribble(&map, &mut random));
        let mut copy = Copy::default();
        copy.update(&family);
        let version = roots(&map);
        let used = family.used();
        assert!(open(copy.words(), used, std::slice::from_ref(&version)).is_ok());
        let refused = |copy: &Copy, version: &OpenVersion, used: u32| {
            let outcome = open(copy.words(), used, std::slice::from_ref(version));
            assert!(matches!(outcome, Err(Error::Corrupt(_))), "{outcome:?}");
        };
        refused(&copy, &OpenVersion { roots: vec![used, 0, 0], ..version.clone() }, used);
        refused(&copy, &OpenVersion { roots: vec![0], ..version.clone() }, used);
        let middle = version.roots[0] as usize;
        for entry in [Reference::dense(used), Reference(used * 64), Reference::dense(middle as u32)] {
            let mut damaged = Copy { slabs: copy.slabs.clone() };
            // In one map each dense leaf is referenced once. A second reference isn't detected; a piece of a
            // whole slab is.
            damaged.slabs[middle][5] = entry.0;
            if entry != Reference::dense(middle as u32) {
                refused(&damaged, &version, used);
            }
        }
        let mut damaged = Copy { slabs: copy.slabs.clone() };
        damaged.slabs[middle][5] = (middle * 64) as u32;
        refused(&damaged, &version, used);
        damaged = Copy { slabs: copy.slabs.clone() };
        damaged.slabs[0][7] = 1;
        refused(&damaged, &version, used);
    }
}
