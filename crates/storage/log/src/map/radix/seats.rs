//! Seats: the writer's table for the array that has a slot for the dense leaf of every page.
//!
//! A seat belongs to its page; one leaf of that page, of any version, can use it at a time. It takes memory
//! while it is in use. Memory is in small pages at first. A *region* of seats has the size of a huge page,
//! and is collapsed into one when it is nearly full, or early if most leaves are dense and it will therefore
//! fill up; later it is freed as a whole. A region that is expected to fill up before its first use is a huge
//! page from the start, which costs less.

use super::memory::{FIRST_SEAT, Memory};

/// Number of seats in a region: with seats of 4 KiB, a huge page.
pub(super) const REGION: usize = 512;
/// Number of touched seats with which a region is collapsed: at most an eighth more memory.
const NEARLY_FULL: u32 = 448;
/// Least number of dense leaves for the estimate that most leaves are dense.
const SOME: u64 = 32;

#[derive(Debug)]
struct Region {
    /// Number of middle nodes that reference the leaf in each seat.
    references: [u32; REGION],
    /// A bit per seat: whether it is in use, or was until a grace period that hasn't ended.
    taken: [u64; REGION / 64],
    /// A bit per seat: whether it has memory.
    touched: [u64; REGION / 64],
    /// Number of seats that have memory.
    count: u32,
    is_collapsed: bool,
}

/// State of all seats.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// Regions that have been used, or are expected to be.
    regions: Vec<Option<Box<Region>>>,
    /// Regions that the kernel backs with a huge page at the first access.
    expected: Vec<bool>,
    /// Number of seats in use.
    taken: u64,
    /// Number of seats that have memory.
    touched: u64,
}

impl Region {
    fn new(is_collapsed: bool) -> Box<Self> {
        let (taken, touched) = ([0; REGION / 64], [0; REGION / 64]);
        Box::new(Region { references: [0; REGION], taken, touched, count: 0, is_collapsed })
    }
}

/// Returns the index of the word and the bit of a seat in its region.
fn bit(seat: usize) -> (usize, u64) {
    (seat % REGION / 64, 1 << (seat % 64))
}

impl Seats {
    /// Returns whether most leaves are dense, so that regions with some dense leaves will fill up.
    fn most_are_dense(&self, others: u64) -> bool {
        self.taken >= SOME && self.taken >= others
    }

    /// Announces that the leaves of these pages, in ascending order, are likely to become dense; only regions
    /// with two or more of the pages are affected. Returns the regions, by their first slab, that will be
    /// huge pages and whose memory hasn't been faulted in.
    pub(super) fn expect<M: Memory>(&mut self, memory: &M, pages: &[u64], others: u64) -> Vec<u32> {
        let mut regions = Vec::new();
        if !self.most_are_dense(others) {
            return regions;
        }
        let (seats, region) = (memory.seats().len() >> M::SLAB_SHIFT, REGION as u64);
        for pages in pages.chunk_by(|before, here| before / region == here / region) {
            let number = usize::try_from(pages[0] / region).unwrap_or(usize::MAX);
            if pages.len() < 2
                || number >= seats / REGION
                || self.regions.get(number).is_some_and(Option::is_some)
            {
                continue;
            }
            let first = FIRST_SEAT + (number * REGION) as u32;
            if memory.expect(first..first + REGION as u32) {
                if self.expected.len() <= number {
                    self.expected.resize(number + 1, false);
                }
                self.expected[number] = true;
                self.region(number);
                regions.push(first);
            }
        }
        regions
    }

    /// Returns a region, created if necessary.
    fn region(&mut self, number: usize) -> &mut Region {
        if self.regions.len() <= number {
            self.regions.resize_with(number + 1, || None);
        }
        let is_expected = self.expected.get(number).is_some_and(|it| *it);
        self.regions[number].get_or_insert_with(|| {
            self.touched += if is_expected { REGION as u64 } else { 0 };
            Region::new(is_expected)
        })
    }

    /// Takes the seat of a page, as a slab with arbitrary contents and one reference. `None` if there is no
    /// seat or it is in use. `others` is the number of leaves that aren't dense.
    pub(super) fn take<M: Memory>(&mut self, memory: &M, page: u64, others: u64) -> Option<u32> {
        let seat = usize::try_from(page).ok().filter(|seat| *seat < memory.seats().len() >> M::SLAB_SHIFT)?;
        let number = seat / REGION;
        let most_are_dense = self.most_are_dense(others);
        let region = self.region(number);
        let (word, bit) = bit(seat);
        if region.taken[word] & bit != 0 {
            return None;
        }
        region.taken[word] |= bit;
        region.references[seat % REGION] = 1;
        let is_new = region.touched[word] & bit == 0;
        if is_new && !region.is_collapsed {
            region.touched[word] |= bit;
            region.count += 1;
            // At the second seat: the first has been written, so the kernel has a page table for the region.
            let is_time = match region.count {
                2 => most_are_dense,
                NEARLY_FULL => true,
                count => count as usize == REGION,
            };
            let first = FIRST_SEAT + (number * REGION) as u32;
            let is_collapsed = is_time && memory.collapse(first..first + REGION as u32);
            region.is_collapsed = is_collapsed;
            // The region's unused seats also get memory.
            let others = if is_collapsed { REGION as u32 - region.count } else { 0 };
            self.touched += u64::from(1 + others);
        }
        self.taken += 1;
        // There are fewer than 2^28 seats.
        Some(FIRST_SEAT + seat as u32)
    }

    /// Returns the reference count of the leaf in a seat, to be changed.
    pub(super) fn references(&mut self, slab: u32) -> &mut u32 {
        let seat = (slab - FIRST_SEAT) as usize;
        match self.regions.get_mut(seat / REGION) {
            Some(Some(region)) => &mut region.references[seat % REGION],
            _ => unreachable!("references to the leaf in seat {seat} are counted, but nobody sits there"),
        }
    }

    /// Frees a seat without references that no lookup reads.
    pub(super) fn free<M: Memory>(&mut self, memory: &M, slab: u32) {
        let seat = (slab - FIRST_SEAT) as usize;
        let (word, bit) = bit(seat);
        let Some(Some(region)) = self.regions.get_mut(seat / REGION) else { return };
        region.taken[word] &= !bit;
        self.taken -= 1;
        if !region.is_collapsed {
            memory.forget(slab..slab + 1);
            region.touched[word] &= !bit;
            region.count -= 1;
            self.touched -= 1;
        } else if region.taken == [0; REGION / 64] {
            let first = slab - (seat % REGION) as u32;
            memory.forget(first..first + REGION as u32);
            self.touched -= REGION as u64;
            self.regions[seat / REGION] = None;
        }
    }

    /// Returns the number of seats in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.taken as usize
    }

    /// Returns the memory of the seats and of this table, in bytes.
    pub(super) fn bytes<M: Memory>(&self) -> u64 {
        let regions = self.regions.iter().flatten().count() * size_of::<Region>();
        let table = self.regions.capacity() * size_of::<Option<Box<Region>>>() + self.expected.capacity();
        (self.touched << (M::SLAB_SHIFT + 2)) + (regions + table) as u64
    }
}
