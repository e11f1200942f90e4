//! Who sits in which seat: the writer's account of the array in which a dense leaf lies where its page says.
//!
//! A seat belongs to its page; one leaf of that page at a time can have it, of whatever version. It takes memory while
//! somebody sits in it. Memory is small pages at first. A *region* of seats, which is a huge page, is gathered into one when
//! it is nearly full, or at its beginning where most leaves are dense and so it will be; then it is given back as a whole.
//! One that is expected to fill up before anybody sits there is a huge page from the start, which takes less.

use super::memory::{FIRST_SEAT, Memory};

/// How many seats are gathered together: with seats of 4 KiB, a huge page.
pub(super) const REGION: usize = 512;
/// With so many of them touched, a region is gathered: an eighth more memory at most.
const NEARLY_FULL: u32 = 448;
/// That most leaves are dense is believed from so many on.
const SOME: u64 = 32;

#[derive(Debug)]
struct Region {
    /// How many middle nodes refer to the leaf in each seat.
    references: [u32; REGION],
    /// A bit per seat: somebody has it, or had it until a grace period that hasn't ended.
    taken: [u64; REGION / 64],
    /// A bit per seat: it has memory.
    touched: [u64; REGION / 64],
    /// How many have.
    count: u32,
    is_gathered: bool,
}

/// See the module's head.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// Those that have been sat in, or are expected to be.
    regions: Vec<Option<Box<Region>>>,
    /// Which regions the kernel has been told to take as a whole whenever they are touched.
    expected: Vec<bool>,
    /// How many are taken.
    taken: u64,
    /// How many seats have memory.
    touched: u64,
}

impl Region {
    fn new(is_gathered: bool) -> Box<Self> {
        let (taken, touched) = ([0; REGION / 64], [0; REGION / 64]);
        Box::new(Region { references: [0; REGION], taken, touched, count: 0, is_gathered })
    }
}

/// The word and the bit of a region's seat.
fn bit(seat: usize) -> (usize, u64) {
    (seat % REGION / 64, 1 << (seat % 64))
}

impl Seats {
    /// Most leaves are dense, so where some are, all of them soon will be.
    fn most_are_dense(&self, others: u64) -> bool {
        self.taken >= SOME && self.taken >= others
    }

    /// Leaves of these pages, two or more neighbours of which are in the order of their numbers, will soon be dense, as far
    /// as can be told. Returns the regions, by their first slab, that are huge pages from now on, and whose memory is still
    /// to be taken.
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

    /// A region, which begins if it wasn't there.
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

    /// The seat of a page, as a slab, with whatever was in it; one refers to it. None if there is none, or somebody has it.
    /// `others` is how many leaves there are that aren't dense.
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
        if is_new && !region.is_gathered {
            region.touched[word] |= bit;
            region.count += 1;
            // The second one: by then the first has been written to, and so the kernel has a table to gather into.
            let is_time = match region.count {
                2 => most_are_dense,
                NEARLY_FULL => true,
                count => count as usize == REGION,
            };
            let first = FIRST_SEAT + (number * REGION) as u32;
            let is_gathered = is_time && memory.gather(first..first + REGION as u32);
            region.is_gathered = is_gathered;
            // With it those that nobody has sat in yet.
            let others = if is_gathered { REGION as u32 - region.count } else { 0 };
            self.touched += u64::from(1 + others);
        }
        self.taken += 1;
        // Seats are fewer than 2^28.
        Some(FIRST_SEAT + seat as u32)
    }

    /// How many refer to the leaf in a seat, to be changed.
    pub(super) fn references(&mut self, slab: u32) -> &mut u32 {
        let seat = (slab - FIRST_SEAT) as usize;
        match self.regions.get_mut(seat / REGION) {
            Some(Some(region)) => &mut region.references[seat % REGION],
            _ => unreachable!("references to the leaf in seat {seat} are counted, but nobody sits there"),
        }
    }

    /// Nobody sits there any more, and no lookup reads it.
    pub(super) fn free<M: Memory>(&mut self, memory: &M, slab: u32) {
        let seat = (slab - FIRST_SEAT) as usize;
        let (word, bit) = bit(seat);
        let Some(Some(region)) = self.regions.get_mut(seat / REGION) else { return };
        region.taken[word] &= !bit;
        self.taken -= 1;
        if !region.is_gathered {
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

    /// How many are taken.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.taken as usize
    }

    /// The memory of seats, and of this account, in bytes.
    pub(super) fn bytes<M: Memory>(&self) -> u64 {
        let regions = self.regions.iter().flatten().count() * size_of::<Region>();
        let table = self.regions.capacity() * size_of::<Option<Box<Region>>>() + self.expected.capacity();
        (self.touched << (M::SLAB_SHIFT + 2)) + (regions + table) as u64
    }
}
