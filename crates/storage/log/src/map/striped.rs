//! The map of a log with several home shards: one map for the blocks of each shard.
//!
//! A shard changes its own part, which no other shard changes; lookups of all parts run on any shard. So the
//! contract of changes holds for each part: one change at a time.
//!
//! A shard's versions have maps with that shard's part alone, for which the blocks of other shards are
//! unmapped, and changes of them have no effect.

use super::{Map, Mapping, PAGE_BLOCKS, Physical, make};
use crate::stripes::{STRIPE_BLOCKS, Stripes};
use block::Result;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const _: () = assert!(STRIPE_BLOCKS as u64 == PAGE_BLOCKS, "a stripe is a page");

/// A map of parts by shard.
#[derive(Debug)]
pub struct Striped {
    stripes: Stripes,
    /// Number of blocks of the volume.
    blocks: AtomicU64,
    /// The part of each shard, if this map has it.
    parts: Box<[Option<Arc<dyn Map>>]>,
}

/// Returns an empty map of `blocks` blocks by its name, divided among shards if there are several.
///
/// # Errors
/// Errors of [`make`].
pub fn make_striped(name: &str, blocks: u64, stripes: Stripes) -> Result<Arc<dyn Map>> {
    if stripes.shards() == 1 {
        return make(name, blocks);
    }
    let part = |shard| make(name, stripes.blocks_of(shard, blocks).max(1));
    let parts = (0..stripes.shards()).map(part).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Striped::of(stripes, blocks, parts)))
}

impl Striped {
    /// Returns the map of a volume of `blocks` blocks with these parts, one for each shard.
    pub fn of(stripes: Stripes, blocks: u64, parts: impl IntoIterator<Item = Arc<dyn Map>>) -> Self {
        Striped { stripes, blocks: AtomicU64::new(blocks), parts: parts.into_iter().map(Some).collect() }
    }

    /// Returns a map with the part of one shard.
    pub fn only(&self, shard: u32) -> Self {
        self.with_parts(|number, part| (number == shard as usize).then(|| part.clone()))
    }

    /// Returns the part of a shard, if this map has it.
    pub fn part(&self, shard: u32) -> Option<&Arc<dyn Map>> {
        self.parts[shard as usize].as_ref()
    }

    fn with_parts(&self, part: impl Fn(usize, &Arc<dyn Map>) -> Option<Arc<dyn Map>>) -> Self {
        let parts = self.parts.iter().enumerate();
        let parts = parts.map(|(number, own)| own.as_ref().and_then(|own| part(number, own)));
        Striped { stripes: self.stripes, blocks: AtomicU64::new(self.blocks()), parts: parts.collect() }
    }

    #[inline]
    fn part_of(&self, block: u64) -> Option<&Arc<dyn Map>> {
        self.parts[self.stripes.shard_of(block) as usize].as_ref()
    }

    /// Visits the parts of a range that this map has, with the range's numbers in the part and what turns
    /// them into blocks of the volume.
    fn in_parts(&self, range: Range<u64>, mut visit: impl FnMut(Option<&dyn Map>, Range<u64>, u64)) {
        for run in self.stripes.runs(range) {
            let local = self.stripes.local(run.start);
            let part = self.part_of(run.start).map(|part| &**part);
            visit(part, local..local + (run.end - run.start), run.start - local);
        }
    }

    /// Part and page of the part for a page that belongs to one shard.
    fn whole_page(&self, page: u64) -> Option<(&dyn Map, u64)> {
        let first = page * PAGE_BLOCKS;
        self.part_of(first).map(|part| (&**part, self.stripes.local(first) / PAGE_BLOCKS))
    }
}

impl Map for Striped {
    fn name(&self) -> &'static str {
        self.parts.iter().flatten().next().map_or("striped", |part| part.name())
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    #[inline]
    fn lookup(&self, block: u64) -> Physical {
        self.part_of(block).map_or(Physical::NONE, |part| part.lookup(self.stripes.local(block)))
    }

    fn lookup_range(&self, range: Range<u64>, visit: &mut dyn FnMut(Mapping)) {
        self.in_parts(range, |part, local, shift| match part {
            Some(part) => part.lookup_range(local, &mut |piece| {
                visit(Mapping { block: piece.block + shift, ..piece });
            }),
            None => visit(Mapping {
                block: local.start + shift,
                count: local.end - local.start,
                physical: Physical::NONE,
            }),
        });
    }

    fn insert(&self, range: Range<u64>, to: Physical, displaced: &mut dyn FnMut(Mapping)) {
        let start = range.start;
        self.in_parts(range, |part, local, shift| {
            let to = if to.is_mapped() { to.offset(local.start + shift - start) } else { to };
            if let Some(part) = part {
                part.insert(local, to, &mut |piece| {
                    displaced(Mapping { block: piece.block + shift, ..piece });
                });
            }
        });
    }

    fn compare_and_move(
        &self,
        range: Range<u64>,
        from: Physical,
        to: Physical,
        moved: &mut dyn FnMut(Mapping),
    ) {
        if !from.is_mapped() || !to.is_mapped() {
            return;
        }
        let start = range.start;
        self.in_parts(range, |part, local, shift| {
            let offset = local.start + shift - start;
            if let Some(part) = part {
                part.compare_and_move(local, from.offset(offset), to.offset(offset), &mut |piece| {
                    moved(Mapping { block: piece.block + shift, ..piece });
                });
            }
        });
    }

    fn snapshot(&self) -> Arc<dyn Map> {
        Arc::new(self.with_parts(|_, part| Some(part.snapshot())))
    }

    fn load_page(&self, page: u64, entries: &[u32]) {
        assert_eq!(entries.len() as u64, PAGE_BLOCKS, "a whole page");
        if self.stripes.has_whole_pages(PAGE_BLOCKS) {
            if let Some((part, page)) = self.whole_page(page) {
                part.load_page(page, entries);
            }
            return;
        }
        let first = page * PAGE_BLOCKS;
        let count = PAGE_BLOCKS.min(self.blocks().saturating_sub(first));
        for (block, entry) in (first..first + count).zip(entries) {
            self.insert(block..block + 1, Physical(*entry), &mut |_| {});
        }
    }

    fn expect_pages(&self, pages: &[u64]) {
        if !self.stripes.has_whole_pages(PAGE_BLOCKS) {
            return;
        }
        let mut local: Vec<Vec<u64>> = self.parts.iter().map(|_| Vec::new()).collect();
        for page in pages {
            let first = page * PAGE_BLOCKS;
            local[self.stripes.shard_of(first) as usize].push(self.stripes.local(first) / PAGE_BLOCKS);
        }
        for (part, pages) in self.parts.iter().zip(local) {
            if let Some(part) = part.as_ref().filter(|_| !pages.is_empty()) {
                part.expect_pages(&pages);
            }
        }
    }

    fn save_page(&self, page: u64, entries: &mut [u32]) {
        assert_eq!(entries.len() as u64, PAGE_BLOCKS, "a whole page");
        if self.stripes.has_whole_pages(PAGE_BLOCKS) {
            match self.whole_page(page) {
                Some((part, page)) => part.save_page(page, entries),
                None => entries.fill(0),
            }
            return;
        }
        let first = page * PAGE_BLOCKS;
        let end = (first + PAGE_BLOCKS).min(self.blocks());
        entries.fill(0);
        self.lookup_range(first..end, &mut |piece| {
            for number in 0..piece.count {
                entries[(piece.block - first + number) as usize] = piece.physical.offset(number).0;
            }
        });
    }

    fn striped(&self) -> Option<&Striped> {
        Some(self)
    }

    fn grow(&self, blocks: u64) {
        for (shard, part) in (0..).zip(&self.parts) {
            if let Some(part) = part {
                part.grow(self.stripes.blocks_of(shard, blocks).max(1));
            }
        }
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.bytes()).sum()
    }

    fn retired_bytes(&self) -> u64 {
        self.parts.iter().flatten().map(|part| part.retired_bytes()).sum()
    }

    /// Begins a grace period of the part of a shard: grace periods are of maps with one part.
    fn begin_grace(&self) -> u64 {
        self.parts.iter().flatten().next().map_or(0, |part| part.begin_grace())
    }

    fn end_grace(&self, grace: u64) {
        if let Some(part) = self.parts.iter().flatten().next() {
            part.end_grace(grace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Random;

    /// Random changes give the same contents as those of an undivided map.
    fn same(seed: u64, shards: u32, blocks: u32) {
        const BLOCKS: u64 = 5 * PAGE_BLOCKS + 77;
        let mut random = Random::new(seed);
        let stripes = Stripes::new(shards, blocks).expect("a division");
        let whole = make("radix", BLOCKS).expect("a map");
        let striped = make_striped("radix", BLOCKS, stripes).expect("a map");
        for step in 0..400 {
            let start = random.below(BLOCKS);
            let range = start..BLOCKS.min(start + 1 + random.below(1500));
            let to = Physical(10 + (random.below(1 << 20) as u32));
            match random.below(4) {
                0 => [&whole, &striped].map(|map| map.insert(range.clone(), Physical::NONE, &mut |_| {})),
                1 => {
                    let from = whole.lookup(range.start);
                    [&whole, &striped].map(|map| map.compare_and_move(range.clone(), from, to, &mut |_| {}))
                }
                2 if step % 10 == 2 => {
                    let page = start / PAGE_BLOCKS;
                    let mut entries = vec![0; PAGE_BLOCKS as usize];
                    whole.save_page(page, &mut entries);
                    entries.reverse();
                    let count = PAGE_BLOCKS.min(BLOCKS - page * PAGE_BLOCKS) as usize;
                    entries[count..].fill(0);
                    [&whole, &striped].map(|map| map.load_page(page, &entries))
                }
                _ => [&whole, &striped].map(|map| map.insert(range.clone(), to, &mut |_| {})),
            };
        }
        let (mut expected, mut found) = (vec![0; PAGE_BLOCKS as usize], vec![0; PAGE_BLOCKS as usize]);
        for page in 0..BLOCKS.div_ceil(PAGE_BLOCKS) {
            whole.save_page(page, &mut expected);
            striped.save_page(page, &mut found);
            assert!(expected == found, "seed {seed}, {stripes:?}, page {page}");
        }
        let parts = striped.striped().expect("a striped map");
        for block in 0..BLOCKS {
            assert_eq!(striped.lookup(block), whole.lookup(block), "seed {seed}, block {block}");
            let shard = stripes.shard_of(block);
            assert_eq!(parts.only(shard).lookup(block), whole.lookup(block));
            assert_eq!(parts.only((shard + 1) % shards).lookup(block), Physical::NONE);
        }
    }

    #[test]
    fn a_striped_map_has_the_contents_of_an_undivided_one() {
        for seed in 0..8 {
            for (shards, blocks) in [(2, 1024), (3, 2048), (7, 16), (2, 1)] {
                same(seed, shards, blocks);
            }
        }
    }

    #[test]
    fn a_snapshot_of_one_part_keeps_the_contents_of_that_part() {
        let stripes = Stripes::new(2, 4).expect("a division");
        let map = make_striped("radix", 16, stripes).expect("a map");
        map.insert(0..16, Physical(100), &mut |_| {});
        let only = map.striped().expect("a striped map").only(1);
        let snapshot = only.snapshot();
        only.insert(4..8, Physical(200), &mut |_| {});
        only.insert(0..4, Physical(300), &mut |_| {});
        assert_eq!([0, 4].map(|block| map.lookup(block)), [Physical(100), Physical(200)]);
        assert_eq!([0, 4].map(|block| snapshot.lookup(block)), [Physical::NONE, Physical(104)]);
    }
}
