//! `radix`: the default map. A tree of fixed depth: the root's entries reference middle nodes, a middle
//! node's entries reference leaves, and a leaf covers a page ([`PAGE_BLOCKS`]).
//!
//! - A *dense* leaf has 4 bytes per block and is changed in place.
//! - A leaf of *runs* (64 to 512 bytes) is used for long extents. It is immutable and replaced by a new one.
//!
//! Lookups are wait-free: no lock, no fence, no registration. If possible, a dense leaf is in its page's
//! *seat*. The seat is a slot in an array of all blocks, and a version has a bit per page for it. A lookup of
//! a block in a seat is one load, which doesn't wait for the bit: the processor predicts that it is set.
//! Other lookups are three dependent loads, the first two from tables that fit the processor's caches (4
//! bytes per 4 MiB of volume).
//!
//! Changes take one lock per family, which is a map and its snapshots. The maps of a family share memory, and
//! copy a node when they change one with other references. The copy is outside of the seat, which other maps
//! use; once the seat is free, the next change of the leaf moves it back there.
//!
//! The maps of a family share grace periods: [`Map::end_grace`] on one of them ends the lookups in all of
//! them. Callbacks run under the lock, so they must not change a map of the family.

mod arena;
#[cfg(feature = "map-home")]
pub mod at_home;
mod lookup;
mod memory;
mod runs;
mod seats;
#[cfg(test)]
mod shuttle_tests;
#[cfg(test)]
mod tests;

use super::joined::Joined;
use super::{Map, Mapping, PAGE_BLOCKS, Physical};
use arena::{Allocator, Kind, MAX_SLABS, Piece, Reference, most_runs};
use block::Result;
use memory::{FIRST_SEAT, Memory, Seated, Word};
use runs::{Class, REFERENCES, Runs};
use seats::REGION;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Least number of blocks of a change to a dense leaf after which the leaf is checked for few enough runs.
const LONG: u32 = 32;

/// One version: a map, or a snapshot of it.
pub struct Radix<M: Memory = Seated> {
    family: Arc<Family<M>>,
    /// One word per middle node: its slab, or 0.
    root: M::Roots,
    /// A bit per page, set if this version has a dense leaf in its seat. It stays clear if another version
    /// moves the leaf there (see [`move_part`](Self::move_part)). Empty without seats.
    seated: M::Roots,
    blocks: AtomicU64,
}

/// State that a map and its snapshots share.
#[derive(Debug)]
struct Family<M> {
    memory: M,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    allocator: Allocator,
    /// Buffer in which a leaf is split into runs.
    runs: Runs,
    /// Number of maps of the family.
    versions: u64,
}

impl<M: Memory> Family<M> {
    fn lock(&self) -> Writer<'_, M> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Writer { memory: &self.memory, state }
    }
}

/// Holder of the family's lock.
struct Writer<'a, M> {
    memory: &'a M,
    state: MutexGuard<'a, State>,
}

impl<'a, M: Memory> Writer<'a, M> {
    /// Returns the words of a slab that is about to be changed. Every change goes through this and
    /// [`piece_to_change`](Self::piece_to_change), because memory with a persistent copy tracks changes.
    fn slab_to_change(&self, slab: u32) -> &'a [M::Word] {
        self.memory.touched(slab);
        self.memory.slab(slab)
    }

    /// Returns the words of a piece that is about to be changed.
    fn piece_to_change(&self, piece: Piece) -> &'a [M::Word] {
        self.memory.touched(piece.slab::<M>());
        piece.words(self.memory)
    }

    /// Builds a leaf of this page from the runs. One reference to it is counted.
    fn build(&mut self, page: u64) -> Reference {
        let state = &mut *self.state;
        let count = state.runs.list().len();
        if state.runs.is_unmapped() {
            return Reference::EMPTY;
        }
        let few = count <= most_runs::<M>();
        match few.then(|| state.allocator.take_piece(self.memory, count)).flatten() {
            Some(piece) => {
                let words = self.piece_to_change(piece);
                self.state.runs.write(words, piece.class);
                words[REFERENCES].set(1);
                Reference::runs(piece)
            }
            None => {
                let slab = state.allocator.take_leaf(self.memory, page);
                let words = self.slab_to_change(slab);
                self.state.runs.spread(|block, place| words[block].set(place));
                Reference::dense(slab)
            }
        }
    }

    /// Returns a leaf with the runs of a dense leaf, if there are few.
    fn compact(&mut self, slab: u32, page: u64) -> Option<Reference> {
        let places = self.memory.slab(slab).iter().map(Word::get);
        // At most half of a leaf's runs: otherwise it would become dense again after a few changes.
        let few = self.state.runs.try_build(places, most_runs::<M>() / 2);
        few.then(|| self.build(page))
    }

    fn is_sole(&mut self, slab: u32) -> bool {
        *self.state.allocator.references(slab) == 1
    }

    /// Adds a reference to this leaf.
    fn share(&mut self, leaf: Reference) {
        match leaf.kind() {
            Kind::Empty => {}
            Kind::Dense(slab) => *self.state.allocator.references(slab) += 1,
            Kind::Runs(piece) => {
                let references = &self.piece_to_change(piece)[REFERENCES];
                references.set(references.get() + 1);
            }
        }
    }

    /// Removes a reference to this leaf.
    fn release(&mut self, leaf: Reference) {
        let left = match leaf.kind() {
            Kind::Empty => return,
            Kind::Dense(slab) => {
                let references = self.state.allocator.references(slab);
                *references -= 1;
                *references
            }
            Kind::Runs(piece) => {
                let references = &self.piece_to_change(piece)[REFERENCES];
                let left = references.get() - 1;
                references.set(left);
                left
            }
        };
        if left == 0 {
            self.state.allocator.retire::<M>(leaf);
        }
    }

    /// Removes a reference to this middle node.
    fn release_middle(&mut self, slab: u32) {
        if slab == 0 {
            return;
        }
        let references = self.state.allocator.references(slab);
        *references -= 1;
        if *references == 0 {
            for entry in self.memory.slab(slab) {
                self.release(Reference(entry.get()));
            }
            self.state.allocator.retire::<M>(Reference::dense(slab));
        }
    }

    fn read_runs(&mut self, piece: Piece) {
        self.state.runs.read(piece.words(self.memory), piece.class);
    }
}

impl Radix {
    /// Returns an empty map of this number of blocks.
    ///
    /// # Errors
    /// [`OutOfMemory`](block::Error::OutOfMemory) if its tables don't fit.
    pub fn new(blocks: u64) -> Result<Self> {
        Radix::in_memory(blocks)
    }
}

/// A part of a range in one leaf.
#[derive(Debug, Clone, Copy)]
struct Part {
    page: u64,
    /// First block and end, relative to the leaf.
    low: u32,
    high: u32,
}

impl<M: Memory> Radix<M> {
    const LEAF: u64 = 1 << M::SLAB_SHIFT;

    fn in_memory(blocks: u64) -> Result<Self> {
        Self::in_this_memory(M::reserve(MAX_SLABS)?, blocks)
    }

    /// Returns an empty map in memory without usable words.
    fn in_this_memory(memory: M, blocks: u64) -> Result<Self> {
        memory.grow_seats(Self::pages(blocks));
        let allocator = Allocator::new(&memory)?;
        let state = State { allocator, runs: Runs::new(Self::LEAF as u32), versions: 1 };
        let family = Arc::new(Family { memory, state: Mutex::new(state) });
        Self::of_family(family, blocks)
    }

    /// Returns an empty version of a family that already counts it.
    fn of_family(family: Arc<Family<M>>, blocks: u64) -> Result<Self> {
        let (root, seated) = (Self::new_root(blocks)?, Self::new_seated(blocks)?);
        Ok(Radix { family, root, seated, blocks: AtomicU64::new(blocks) })
    }

    /// Returns the bits of this number of blocks, with no leaf in its seat.
    fn new_seated(blocks: u64) -> Result<M::Roots> {
        // One bit per possible seat.
        let most = if M::SEATS { (MAX_SLABS / 32) >> M::SLAB_SHIFT } else { 1 };
        let seated = M::Roots::reserve(most)?;
        seated.grow(Self::seated_slabs(blocks))?;
        Ok(seated)
    }

    /// Returns the number of slabs of the bits of pages in their seats.
    fn seated_slabs(blocks: u64) -> u32 {
        let pages = if M::SEATS { Self::pages(blocks).min(MAX_SLABS.into()) } else { 0 };
        pages.div_ceil(32 << M::SLAB_SHIFT) as u32
    }

    /// Returns the most leaves of a map of this number of blocks.
    fn pages(blocks: u64) -> u64 {
        blocks.div_ceil(Self::LEAF)
    }

    /// Returns an empty root for this number of blocks. The addresses reach 2^42 blocks: 16 PiB in blocks of
    /// 4 KiB.
    fn new_root(blocks: u64) -> Result<M::Roots> {
        let root = M::Roots::reserve(1 << 12)?;
        root.grow(Self::root_slabs(blocks))?;
        Ok(root)
    }

    /// Returns the most middle nodes of a map of this number of blocks.
    fn middles(blocks: u64) -> u64 {
        blocks.div_ceil(1 << (2 * M::SLAB_SHIFT))
    }

    /// Returns the number of slabs of the root; at least one.
    fn root_slabs(blocks: u64) -> u32 {
        let slabs = Self::middles(blocks).div_ceil(Self::LEAF).max(1);
        u32::try_from(slabs).unwrap_or(u32::MAX)
    }

    /// Returns the root's word for a middle node, if the map is that large.
    #[inline]
    fn root_word(&self, middle: u64) -> Option<&M::Word> {
        self.root.words().get(middle as usize)
    }

    /// Returns the slab of a middle node; 0, which is empty, if it doesn't exist.
    #[inline]
    fn middle(&self, middle: u64) -> u32 {
        self.root_word(middle).map_or(0, Word::get)
    }

    /// Returns the index of the word that references the leaf of a page.
    #[inline]
    fn leaf_word(&self, page: u64) -> usize {
        let middle = self.middle(page >> M::SLAB_SHIFT);
        ((middle as usize) << M::SLAB_SHIFT) | (page & (Self::LEAF - 1)) as usize
    }

    /// Returns the leaf of a page.
    #[inline]
    fn leaf(&self, page: u64) -> Reference {
        Reference(self.family.memory.words()[self.leaf_word(page)].get())
    }

    /// Calls `each` for the part of the range in every leaf, with the offset in the range; `each` returns
    /// whether that leaf is now empty. With `skip_empty`, missing middle nodes are skipped. After the last
    /// part in a middle node with a leaf that became empty, `after` gets the node's number.
    fn for_each_part(
        &self,
        range: Range<u64>,
        skip_empty: bool,
        mut each: impl FnMut(Part, u64) -> bool,
        mut after: impl FnMut(u64),
    ) {
        let middle_blocks = 1 << (2 * M::SLAB_SHIFT);
        let mut block = range.start;
        while block < range.end {
            let middle = block / middle_blocks;
            let end = range.end.min((middle + 1) * middle_blocks);
            if skip_empty && self.middle(middle) == 0 {
                block = end;
                continue;
            }
            let mut emptied = false;
            while block < end {
                let low = block & (Self::LEAF - 1);
                let high = Self::LEAF.min(low + end - block);
                let part = Part { page: block >> M::SLAB_SHIFT, low: low as u32, high: high as u32 };
                emptied |= each(part, block - range.start);
                block += high - low;
            }
            if emptied {
                after(middle);
            }
        }
    }

    /// Sets a leaf of this version, without releasing the previous one.
    fn set_leaf(&self, writer: &mut Writer<'_, M>, page: u64, leaf: Reference) {
        let number = page >> M::SLAB_SHIFT;
        let mut middle = self.middle(number);
        if middle == 0 || !writer.is_sole(middle) {
            let old = middle;
            middle = writer.state.allocator.take_slab(writer.memory);
            let (from, to) = (writer.memory.slab(old), writer.slab_to_change(middle));
            for (from, to) in from.iter().zip(to) {
                let entry = Reference(from.get());
                to.set(entry.0);
                writer.share(entry);
            }
            self.root_word(number).expect("changes stay inside of the map").set(middle);
            writer.release_middle(old);
        }
        writer.slab_to_change(middle)[(page & (Self::LEAF - 1)) as usize].set(leaf.0);
        self.tell_seated(page, leaf);
    }

    /// Records whether this version's leaf of a page is in its seat. The caller holds the family's lock, and
    /// the leaf in the seat stays readable for a grace period.
    fn tell_seated(&self, page: u64, leaf: Reference) {
        if let Some(word) = self.seated.words().get((page / 32) as usize) {
            let (before, bit) = (word.get(), 1 << (page % 32));
            let after = if Self::is_seat(leaf) { before | bit } else { before & !bit };
            if after != before {
                word.set(after);
            }
        }
    }

    /// Returns whether a leaf is a dense one in its seat.
    fn is_seat(leaf: Reference) -> bool {
        matches!(leaf.kind(), Kind::Dense(slab) if slab >= FIRST_SEAT)
    }

    /// Removes a middle node without leaves.
    fn prune(&self, writer: &mut Writer<'_, M>, number: u64) {
        let middle = self.middle(number);
        if middle != 0 && writer.memory.slab(middle).iter().all(|entry| entry.get() == 0) {
            self.root_word(number).expect("changes stay inside of the map").set(0);
            writer.release_middle(middle);
        }
    }

    /// Maps a single block, in place, in a dense leaf in its seat that no other version has. Returns the
    /// block's previous location; `None`, without a change, if this isn't such a case.
    #[inline]
    fn replace_one(&self, writer: &mut Writer<'_, M>, range: &Range<u64>, to: Physical) -> Option<Physical> {
        let page = range.start >> M::SLAB_SHIFT;
        if range.end - range.start != 1 || !to.is_mapped() {
            return None;
        }
        let Kind::Dense(slab) = self.leaf(page).kind() else { return None };
        let middle = self.middle(page >> M::SLAB_SHIFT);
        if slab < FIRST_SEAT || !writer.is_sole(middle) || !writer.is_sole(slab) {
            return None;
        }
        let word = &writer.slab_to_change(slab)[(range.start & (Self::LEAF - 1)) as usize];
        let old = Physical(word.get());
        word.set(to.0);
        Some(old)
    }

    /// Maps a part of a leaf. Returns whether the leaf is now empty.
    fn insert_part(
        &self,
        writer: &mut Writer<'_, M>,
        part: Part,
        to: Physical,
        displaced: &mut Joined<'_>,
    ) -> bool {
        let Part { page, low, high } = part;
        let old = self.leaf(page);
        let new = match old.kind() {
            Kind::Empty => {
                if !to.is_mapped() {
                    return false;
                }
                writer.state.runs.reset(Physical::NONE);
                writer.state.runs.replace(low, high, to);
                writer.build(page)
            }
            Kind::Runs(piece) => {
                writer.read_runs(piece);
                visit_runs(piece.words(writer.memory), piece.class, part, Self::LEAF * page, displaced);
                writer.state.runs.replace(low, high, to);
                writer.build(page)
            }
            Kind::Dense(slab) => {
                visit_dense(writer.memory.slab(slab), part, Self::LEAF * page, displaced);
                if u64::from(high - low) == Self::LEAF {
                    writer.state.runs.reset(to);
                    writer.build(page)
                } else {
                    self.insert_in_dense(writer, slab, part, to)
                }
            }
        };
        if new == old {
            return false;
        }
        self.set_leaf(writer, page, new);
        writer.release(old);
        new == Reference::EMPTY
    }

    /// Maps a part of a dense leaf, in place if it has no other reference. Returns the resulting leaf.
    fn insert_in_dense(&self, writer: &mut Writer<'_, M>, slab: u32, part: Part, to: Physical) -> Reference {
        let middle = self.middle(part.page >> M::SLAB_SHIFT);
        let sole = writer.is_sole(middle) && writer.is_sole(slab);
        // A leaf that was copied while others used its seat moves back to the seat once that is free.
        let seat =
            if slab < FIRST_SEAT { writer.state.allocator.take_seat(writer.memory, part.page) } else { None };
        let target = match seat {
            Some(seat) => seat,
            None if sole => slab,
            None => writer.state.allocator.take_slab(writer.memory),
        };
        let words = writer.slab_to_change(target);
        if target != slab {
            for (word, from) in words.iter().zip(writer.memory.slab(slab)) {
                word.set(from.get());
            }
        }
        for (offset, word) in words[part.low as usize..part.high as usize].iter().enumerate() {
            word.set(to.offset(offset as u64).0);
        }
        let look = part.high - part.low >= LONG || !to.is_mapped();
        match look.then(|| writer.compact(target, part.page)).flatten() {
            Some(compact) => {
                if target != slab {
                    // No lookup has seen the copy, but all freed memory waits for a grace period.
                    writer.release(Reference::dense(target));
                }
                compact
            }
            None => Reference::dense(target),
        }
    }

    /// Moves the blocks of a part of a leaf that are at the expected location.
    fn move_part(
        &self,
        writer: &mut Writer<'_, M>,
        part: Part,
        from: Physical,
        to: Physical,
        moved: &mut Joined<'_>,
    ) {
        let Part { page, low, high } = part;
        let (old, first) = (self.leaf(page), page * Self::LEAF);
        let middle = self.middle(page >> M::SLAB_SHIFT);
        let new = match old.kind() {
            Kind::Empty => return,
            Kind::Dense(slab) => {
                // In place even if the leaf has other references, since the data is the same.
                let mut count = 0;
                let words = &writer.slab_to_change(slab)[low as usize..high as usize];
                for (offset, word) in words.iter().enumerate() {
                    let offset = offset as u64;
                    if word.get() == from.offset(offset).0 {
                        word.set(to.offset(offset).0);
                        moved.push(first + u64::from(low) + offset, 1, to.offset(offset));
                        count += 1;
                    }
                }
                // Other versions with the same middle node may have recorded that the leaf is in its seat, so
                // it stays there.
                let is_known = Self::is_seat(old) && !writer.is_sole(middle);
                if count < LONG || is_known || !writer.is_sole(slab) {
                    return;
                }
                match writer.compact(slab, page) {
                    Some(compact) => compact,
                    None => return,
                }
            }
            Kind::Runs(piece) => {
                writer.read_runs(piece);
                let runs = &mut writer.state.runs;
                let mut found = Vec::new();
                for (number, run) in runs.list().iter().enumerate() {
                    let (start, end) = (run.start.max(low), runs.end(number).min(high));
                    if start < end
                        && run.physical.offset(u64::from(start - run.start))
                            == from.offset(u64::from(start - low))
                    {
                        found.push(start..end);
                    }
                }
                if found.is_empty() {
                    return;
                }
                for range in found {
                    let to = to.offset(u64::from(range.start - low));
                    runs.replace(range.start, range.end, to);
                    moved.push(first + u64::from(range.start), u64::from(range.end - range.start), to);
                }
                writer.build(page)
            }
        };
        // In place even if the middle node has other references. If the leaf is in its seat, only this
        // version's bit is set.
        writer.slab_to_change(middle)[(page & (Self::LEAF - 1)) as usize].set(new.0);
        self.tell_seated(page, new);
        writer.release(old);
    }

    fn load_leaf(&self, writer: &mut Writer<'_, M>, page: u64, entries: &[u32]) {
        let old = self.leaf(page);
        let new = if writer.state.runs.try_build(entries.iter().copied(), most_runs::<M>()) {
            if writer.state.runs.is_unmapped() && old == Reference::EMPTY {
                return;
            }
            writer.build(page)
        } else {
            let slab = writer.state.allocator.take_leaf(writer.memory, page);
            for (word, entry) in writer.slab_to_change(slab).iter().zip(entries) {
                word.set(*entry);
            }
            Reference::dense(slab)
        };
        self.set_leaf(writer, page, new);
        writer.release(old);
        if new == Reference::EMPTY {
            self.prune(writer, page >> M::SLAB_SHIFT);
        }
    }
}

/// Visits the mappings in a part of a dense leaf; `first` is the leaf's first block.
fn visit_dense<W: Word>(words: &[W], part: Part, first: u64, visitor: &mut Joined<'_>) {
    for at in part.low..part.high {
        visitor.push(first + u64::from(at), 1, Physical(words[at as usize].get()));
    }
}

/// Visits the mappings in a part of a leaf of runs; `first` is the leaf's first block.
fn visit_runs<W: Word>(words: &[W], class: Class, part: Part, first: u64, visitor: &mut Joined<'_>) {
    runs::visit(words, class, part.low, part.high, |start, count, physical| {
        visitor.push(first + u64::from(start), count.into(), physical);
    });
}

impl<M: Memory> Map for Radix<M> {
    fn name(&self) -> &'static str {
        "radix"
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    #[inline]
    fn lookup(&self, block: u64) -> Physical {
        self.find(block)
    }

    fn lookup_batch(&self, blocks: &[u64], found: &mut [Physical]) {
        self.find_batch(blocks, found);
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        let mut visitor = Joined::all(visit);
        let middle_blocks = 1 << (2 * M::SLAB_SHIFT);
        let mut block = range.start;
        while block < range.end {
            if self.middle(block / middle_blocks) == 0 {
                let end = range.end.min((block / middle_blocks + 1) * middle_blocks);
                visitor.push(block, end - block, Physical::NONE);
                block = end;
                continue;
            }
            let page = block >> M::SLAB_SHIFT;
            let low = block & (Self::LEAF - 1);
            let high = Self::LEAF.min(low + range.end - block);
            let part = Part { page, low: low as u32, high: high as u32 };
            match self.leaf(page).kind() {
                Kind::Empty => visitor.push(block, high - low, Physical::NONE),
                Kind::Dense(slab) => {
                    visit_dense(self.family.memory.slab(slab), part, page * Self::LEAF, &mut visitor);
                }
                Kind::Runs(piece) => {
                    let words = piece.words(&self.family.memory);
                    visit_runs(words, piece.class, part, page * Self::LEAF, &mut visitor);
                }
            }
            block += high - low;
        }
        visitor.finish();
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut dyn FnMut(Mapping)) {
        let mut writer = self.family.lock();
        if let Some(physical) = self.replace_one(&mut writer, &range, to) {
            if physical.is_mapped() {
                displaced(Mapping { block: range.start, count: 1, physical });
            }
            return;
        }
        let mut displaced = Joined::mapped(displaced);
        let mut emptied = Vec::new();
        self.for_each_part(
            range,
            !to.is_mapped(),
            |part, offset| self.insert_part(&mut writer, part, to.offset(offset), &mut displaced),
            |middle| emptied.push(middle),
        );
        for middle in emptied {
            self.prune(&mut writer, middle);
        }
        displaced.finish();
    }

    fn compare_and_move(
        &self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut dyn FnMut(Mapping),
    ) {
        if !(from.is_mapped() && to.is_mapped()) {
            return;
        }
        let mut moved = Joined::mapped(moved);
        let mut writer = self.family.lock();
        self.for_each_part(
            range,
            true,
            |part, offset| {
                self.move_part(&mut writer, part, from.offset(offset), to.offset(offset), &mut moved);
                false
            },
            |_| {},
        );
        moved.finish();
    }

    fn snapshot(&self) -> Arc<dyn Map> {
        let mut writer = self.family.lock();
        let blocks = self.blocks();
        let snapshot = match Self::of_family(self.family.clone(), blocks) {
            Ok(snapshot) => snapshot,
            Err(error) => panic!("a snapshot of the map can't be taken: {error}"),
        };
        writer.state.versions += 1;
        for number in 0..Self::middles(blocks) {
            let middle = self.middle(number);
            if middle != 0 {
                *writer.state.allocator.references(middle) += 1;
                snapshot.root_word(number).expect("as large as the map").set(middle);
            }
        }
        let words = Self::pages(blocks).div_ceil(32) as usize;
        for (from, to) in self.seated.words().iter().zip(snapshot.seated.words()).take(words) {
            to.set(from.get());
        }
        Arc::new(snapshot)
    }

    fn load_page(&self, page: u64, entries: &[u32]) {
        assert_eq!(entries.len() as u64, PAGE_BLOCKS, "a whole page");
        let mut writer = self.family.lock();
        let first = page * PAGE_BLOCKS / Self::LEAF;
        for (number, entries) in entries.chunks_exact(Self::LEAF as usize).enumerate() {
            self.load_leaf(&mut writer, first + number as u64, entries);
        }
    }

    fn expect_pages(&self, pages: &[u64]) {
        if Self::LEAF != PAGE_BLOCKS {
            return;
        }
        let regions = self.family.lock().state.allocator.expect(&self.family.memory, pages);
        for first in regions {
            self.family.memory.take(first..first + REGION as u32);
        }
    }

    fn save_page(&self, page: u64, entries: &mut [u32]) {
        assert_eq!(entries.len() as u64, PAGE_BLOCKS, "a whole page");
        let first = page * PAGE_BLOCKS / Self::LEAF;
        for (number, entries) in entries.chunks_exact_mut(Self::LEAF as usize).enumerate() {
            match self.leaf(first + number as u64).kind() {
                Kind::Empty => entries.fill(0),
                Kind::Dense(slab) => {
                    for (entry, word) in entries.iter_mut().zip(self.family.memory.slab(slab)) {
                        *entry = word.get();
                    }
                }
                Kind::Runs(piece) => {
                    let words = piece.words(&self.family.memory);
                    runs::visit(words, piece.class, 0, Self::LEAF as u32, |start, count, physical| {
                        for at in 0..count {
                            entries[(start + at) as usize] = physical.offset(at.into()).0;
                        }
                    });
                }
            }
        }
    }

    fn roots(&self, roots: &mut Vec<u32>) {
        roots.extend((0..Self::middles(self.blocks())).map(|number| self.middle(number)));
    }

    fn grow(&self, blocks: u64) {
        let _writer = self.family.lock();
        if blocks > self.blocks() {
            let roots = self.root.grow(Self::root_slabs(blocks));
            if let Err(error) = roots.and_then(|()| self.seated.grow(Self::seated_slabs(blocks))) {
                panic!("the map can't grow to {blocks} blocks: {error}");
            }
            self.family.memory.grow_seats(Self::pages(blocks));
            self.blocks.store(blocks, Ordering::Release);
        }
    }

    fn bytes(&self) -> u64 {
        let writer = self.family.lock();
        let blocks = self.blocks();
        let root = M::Roots::bytes_for(Self::root_slabs(blocks) + Self::seated_slabs(blocks));
        let here = size_of::<Self>() + size_of::<Family<M>>();
        writer.state.allocator.bytes::<M>() + writer.state.runs.bytes() + root + here as u64
    }

    fn retired_bytes(&self) -> u64 {
        self.family.lock().state.allocator.retired_bytes()
    }

    fn begin_grace(&self) -> u64 {
        self.family.lock().state.allocator.begin_grace()
    }

    fn end_grace(&self, grace: u64) {
        let mut writer = self.family.lock();
        writer.state.allocator.end_grace(&self.family.memory, grace);
    }
}

impl<M: Memory> Drop for Radix<M> {
    fn drop(&mut self) {
        let mut writer = self.family.lock();
        writer.state.versions -= 1;
        // The last version frees the memory as a whole.
        if writer.state.versions > 0 {
            for number in 0..Self::middles(self.blocks()) {
                let middle = self.middle(number);
                writer.release_middle(middle);
            }
        }
    }
}

impl<M: Memory> fmt::Debug for Radix<M> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "radix map of {} blocks", self.blocks())
    }
}
