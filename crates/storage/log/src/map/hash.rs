//! `hash`: a lock-free hash table (papaya) with an entry per block.
//!
//! Lookups and changes of a block are lock-free. Long extents also take an entry per block, and a change of
//! many blocks is a change per block: of two concurrent changes each block gets the later one's value.

use super::joined::Joined;
use super::{Mapping, Physical, Plain};
use papaya::{Compute, HashMap, Operation};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// The table.
#[derive(Debug, Default)]
pub struct Hash {
    entries: HashMap<u64, Physical, BuildHasherDefault<BlockHasher>>,
}

/// The finalizer of MurmurHash3 (Appleby): every bit of a block's number changes about half of the bits.
#[derive(Debug, Default)]
pub struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        let mut mixed = number;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        self.0 = mixed ^ (mixed >> 33);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Number of blocks between two checks for reclaimable memory.
const AT_ONCE: u64 = 1024;

impl Hash {
    /// Calls `each` for every block of the range that may be mapped, in order, with a guard.
    fn for_each(&self, range: Range<u64>, mut each: impl FnMut(u64, &papaya::LocalGuard<'_>)) {
        if (self.entries.len() as u64) < range.end.saturating_sub(range.start) {
            // Fewer entries than blocks: scan and sort the entries.
            let guard = self.entries.guard();
            let mut blocks: Vec<u64> =
                self.entries.keys(&guard).copied().filter(|block| range.contains(block)).collect();
            drop(guard);
            blocks.sort_unstable();
            for blocks in blocks.chunks(AT_ONCE as usize) {
                let guard = self.entries.guard();
                blocks.iter().for_each(|block| each(*block, &guard));
            }
            return;
        }
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + AT_ONCE);
            let guard = self.entries.guard();
            (start..end).for_each(|block| each(block, &guard));
            start = end;
        }
    }
}

impl Plain for Hash {
    fn name(&self) -> &'static str {
        "hash"
    }

    #[inline]
    fn lookup(&self, block: u64) -> Physical {
        self.entries.pin().get(&block).copied().unwrap_or(Physical::NONE)
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        let mut visitor = Joined::all(visit);
        let mut next = range.start;
        self.for_each(range.clone(), |block, guard| {
            if let Some(physical) = self.entries.get(&block, guard) {
                visitor.push(next, block - next, Physical::NONE);
                visitor.push(block, 1, *physical);
                next = block + 1;
            }
        });
        visitor.push(next, range.end.saturating_sub(next), Physical::NONE);
        visitor.finish();
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut Joined<'_>) {
        if to.is_mapped() {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min(start + AT_ONCE);
                let guard = self.entries.guard();
                for block in start..end {
                    if let Some(old) = self.entries.insert(block, to.offset(block - range.start), &guard) {
                        displaced.push(block, 1, *old);
                    }
                }
                start = end;
            }
        } else {
            self.for_each(range, |block, guard| {
                if let Some(old) = self.entries.remove(&block, guard) {
                    displaced.push(block, 1, *old);
                }
            });
        }
    }

    fn compare_and_move(&self, range: Range<u64>, from: Physical, to: Physical, moved: &mut Joined<'_>) {
        let start = range.start;
        self.for_each(range, |block, guard| {
            let (from, to) = (from.offset(block - start), to.offset(block - start));
            let compare = |entry: Option<(&u64, &Physical)>| match entry {
                Some((_, physical)) if *physical == from => Operation::Insert(to),
                _ => Operation::Abort(()),
            };
            if let Compute::Updated { .. } = self.entries.compute(block, compare, guard) {
                moved.push(block, 1, to);
            }
        });
    }

    fn bytes(&self) -> u64 {
        // An entry is 16 bytes, in 32 of the allocator's. The table has a power of two of slots, with a
        // pointer and a byte each, and papaya doubles it when 45 % are in use (measured with this hash).
        let entries = self.entries.len() as u64;
        let places = (entries * 20 / 9).next_power_of_two().max(32);
        entries * 32 + places * 9 + size_of::<Self>() as u64
    }
}
