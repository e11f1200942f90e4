//! Batched replay: the changes of records, sorted by page of the map. Each page gets its changes in order
//! while it is loaded, when its entries are in the processor's first-level cache.
//!
//! One by one, changes of a large map wait for memory: 65 ns each, 1.1 s for the 2^24 that a volume of 1 TiB
//! may have after its checkpoint (a checkpoint takes 2^18 pages, and 64 blocks of log are written for each of
//! its blocks; more frequent checkpoints would write more). Batched, they are read and written in order. The
//! result for a block depends on the changes of that block alone, so pages may be processed in any order, on
//! several threads.
//!
//! Batching needs a log with one version, and records that neither create nor grow a version. Other logs are
//! replayed one by one ([`Batched::of`] decides), by the same rules, in [`replay`](super::replay).

use crate::changes::Replayable;
use crate::format::{Change, VersionId};
use crate::layout::Layout;
use crate::map::{PAGE_BLOCKS, Physical};
use crate::recovery::replay::check_length;
use block::{Result, ZoneBlock, ZoneIndex};
use std::ops::Range;
use std::sync::Arc;

/// Number of pages per bucket: the steps of such a bucket of a volume of 1 TiB fit the processor's cache.
const BUCKET_PAGES: u64 = 512;
/// Number of threads that share many records.
const THREADS: usize = 4;
/// Least number of records for which a thread pays off.
const WORTH_A_THREAD: usize = 512;
const OFFSET_BITS: u32 = PAGE_BLOCKS.trailing_zeros();

/// Most steps that are batched: 4 GiB. (An unmapping has one step per 4 MiB.)
const MAX_STEPS: usize = 1 << 28;

/// A change of blocks of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    /// The page in the bucket, the first block in the page, and the number of blocks minus one: 9, 10 and 10
    /// bits.
    place: u32,
    /// New location of the first block; 0 to unmap.
    to: u32,
    /// Expected location of the first block for a move; 0 to replace any location.
    from: u32,
    /// Index of the record.
    record: u32,
}

/// Memory layout of a step: words that are zero at first, so that memory from the kernel isn't cleared again.
type Packed = [u32; 4];

impl From<Packed> for Step {
    fn from([place, to, from, record]: Packed) -> Self {
        Step { place, to, from, record }
    }
}

impl Step {
    fn page(self) -> usize {
        (self.place >> (2 * OFFSET_BITS)) as usize
    }

    fn blocks(self) -> Range<usize> {
        let mask = PAGE_BLOCKS as u32 - 1;
        let (first, count) = (self.place >> OFFSET_BITS & mask, (self.place & mask) + 1);
        first as usize..(first + count) as usize
    }
}

/// Steps of some pages, as a range of the part's steps.
#[derive(Debug, Default)]
struct Bucket {
    /// Index of the next step during collection, initially that of the first one.
    next: u32,
    /// Start of each page's steps, and the end of the last page's; empty if there are no steps.
    starts: Vec<u32>,
}

impl Bucket {
    /// Sorts the bucket's steps, which start at index `first`, by page; the order within a page is kept.
    fn sort(&mut self, first: u32, steps: &mut [Packed], other: &mut Vec<Packed>) {
        let steps = &mut steps[first as usize..self.next as usize];
        if steps.is_empty() {
            return;
        }
        self.starts = vec![0; BUCKET_PAGES as usize + 1];
        steps.iter().for_each(|step| self.starts[Step::from(*step).page() + 1] += 1);
        self.starts[0] = first;
        for page in 1..self.starts.len() {
            self.starts[page] += self.starts[page - 1];
        }
        let mut next: [u32; BUCKET_PAGES as usize] = std::array::from_fn(|page| self.starts[page] - first);
        other.clear();
        other.resize(steps.len(), [0; 4]);
        for step in steps.iter() {
            let next = &mut next[Step::from(*step).page()];
            other[*next as usize] = *step;
            *next += 1;
        }
        steps.copy_from_slice(other);
    }
}

/// All changes of records, by page.
#[derive(Debug)]
pub(crate) struct Batched {
    /// Parts in the order of the records.
    parts: Vec<Part>,
    /// The clock after the last record.
    pub(crate) clock: u64,
}

/// Changes of consecutive records.
#[derive(Debug, Default)]
struct Part {
    /// All steps, bucket by bucket.
    steps: Vec<Packed>,
    buckets: Vec<Bucket>,
    /// Clock before each record, relative to the start of the part.
    clocks: Vec<u64>,
    /// Clock before the part.
    begin: u64,
    /// Ticks of the clock during the part.
    ticks: u64,
}

impl Batched {
    /// Sorts the changes of these records, in this order, for the volume of `blocks` blocks; threads share
    /// the work if there are many records. `None` if a record does anything except map, unmap and move
    /// blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`](block::Error::Corrupt) for bytes that no version of this program writes.
    pub(crate) async fn of(
        records: &Arc<Vec<Replayable>>,
        blocks: u64,
        layout: &Layout,
        mut clock: u64,
    ) -> Result<Option<Self>> {
        let each = records.len().div_ceil(THREADS).max(WORTH_A_THREAD);
        let layout = *layout;
        let batched = (0..records.len()).step_by(each).map(|first| {
            let records = records.clone();
            let sort = move || {
                let end = records.len().min(first + each);
                Part::of(&records[first..end], blocks, &layout)
            };
            async move {
                match each > WORTH_A_THREAD {
                    true => runtime::blocking(sort).await,
                    false => sort(),
                }
            }
        });
        let mut parts = Vec::new();
        for part in runtime::join_all(batched).await {
            let Some(mut part) = part? else { return Ok(None) };
            part.begin = clock;
            clock += part.ticks;
            parts.push(part);
        }
        Ok(Some(Batched { parts, clock }))
    }

    /// Returns the pages that may change, in order.
    pub(crate) fn pages(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.parts.iter().flat_map(Part::pages).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Changes the entries of a page; `died` gets each location that is no longer mapped, and the clock of
    /// the change. Returns whether the page has changed.
    pub(crate) fn change(&self, page: u64, places: &mut [u32], died: &mut dyn FnMut(Physical, u64)) -> bool {
        let mut has_changed = false;
        for part in &self.parts {
            has_changed |= part.change(page, places, died);
        }
        has_changed
    }
}

impl Part {
    /// Sorts the changes of these records in two passes: the first counts the steps of each bucket, so that
    /// all steps are in one allocation, which is touched once.
    fn of(records: &[Replayable], blocks: u64, layout: &Layout) -> Result<Option<Self>> {
        let mut all = Part { clocks: Vec::with_capacity(records.len()), ..Part::default() };
        let mut count = 0_usize;
        for record in records {
            all.clocks.push(all.ticks);
            let buckets = &mut all.buckets;
            let ticks = each_step(record, blocks, layout, |page, _| {
                let bucket = (page / BUCKET_PAGES) as usize;
                if buckets.len() <= bucket {
                    buckets.resize_with(bucket + 1, Bucket::default);
                }
                // If the steps are batched at all, there are fewer than 2^32.
                buckets[bucket].next = buckets[bucket].next.wrapping_add(1);
                count += 1;
            })?;
            match ticks {
                Some(ticks) if count <= MAX_STEPS => all.ticks += ticks,
                _ => return Ok(None),
            }
        }
        let mut first = 0;
        for bucket in &mut all.buckets {
            first += std::mem::replace(&mut bucket.next, first);
        }
        all.steps = vec![[0; 4]; count];
        for (record, number) in records.iter().zip(0_u32..) {
            let (buckets, steps) = (&mut all.buckets, &mut all.steps);
            each_step(record, blocks, layout, |page, [place, to, from]| {
                let next = &mut buckets[(page / BUCKET_PAGES) as usize].next;
                steps[*next as usize] = [place, to, from, number];
                *next += 1;
            })?;
        }
        let (mut other, mut first) = (Vec::new(), 0);
        for bucket in &mut all.buckets {
            bucket.sort(first, &mut all.steps, &mut other);
            first = bucket.next;
        }
        Ok(Some(all))
    }

    fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        let with_number = self.buckets.iter().enumerate();
        with_number.flat_map(|(number, bucket)| {
            let pages = bucket.starts.windows(2).enumerate().filter(|(_, ends)| ends[0] < ends[1]);
            pages.map(move |(page, _)| number as u64 * BUCKET_PAGES + page as u64)
        })
    }

    fn steps(&self, page: u64) -> &[Packed] {
        let Some(bucket) = self.buckets.get((page / BUCKET_PAGES) as usize) else { return &[] };
        let page = (page % BUCKET_PAGES) as usize;
        match bucket.starts.get(page..page + 2) {
            Some(ends) => &self.steps[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    fn change(&self, page: u64, places: &mut [u32], died: &mut dyn FnMut(Physical, u64)) -> bool {
        let mut has_changed = false;
        for step in self.steps(page).iter().map(|step| Step::from(*step)) {
            let clock = self.begin + self.clocks[step.record as usize];
            let Step { to, from, .. } = step;
            let here = places[step.blocks()].iter_mut().zip(0_u32..);
            // A write always changes the page: its new location never equals the entry.
            has_changed |= to != 0 && from == 0;
            for (place, number) in here {
                let wanted = match from {
                    0 => *place,
                    from => from.wrapping_add(number),
                };
                if *place != wanted {
                    continue;
                }
                if *place != 0 {
                    died(Physical(*place), clock);
                    has_changed = true;
                }
                *place = if to == 0 { 0 } else { to.wrapping_add(number) };
            }
        }
        has_changed
    }
}

/// Calls `step` for each step of a record with its page and the step's `place`, `to` and `from`. Returns the
/// ticks of the clock during the record; `None` if the record does anything except map, unmap and move
/// blocks.
fn each_step(
    record: &Replayable,
    blocks: u64,
    layout: &Layout,
    mut step: impl FnMut(u64, [u32; 3]),
) -> Result<Option<u64>> {
    let first = record.header.position + 1;
    let (mut position, mut ticks) = (first, 0);
    for change in record.changes.iter() {
        let change = change?;
        let behind = position.saturating_add(change.data_blocks());
        if behind > first + record.header.blocks {
            check_length(record, behind - first)?;
        }
        let physical = layout.physical(ZoneBlock { zone: ZoneIndex(record.header.zone), block: position });
        position = behind;
        let is_there =
            |block: u64, count: u32| block.checked_add(u64::from(count)).is_some_and(|end| end <= blocks);
        // A change that failed originally fails again in the same state, and changes nothing.
        match change {
            Change::Write { version, block, count } => {
                ticks += u64::from(count);
                if version == VersionId::HEAD && is_there(block, count) {
                    by_page(block, count, physical, Physical::NONE, &mut step);
                }
            }
            Change::Unmap { version, block, count } => {
                if version == VersionId::HEAD && is_there(block, count) {
                    by_page(block, count, Physical::NONE, Physical::NONE, &mut step);
                }
            }
            Change::Move { block, count, from, .. } => {
                if from.is_mapped() && is_there(block, count) {
                    by_page(block, count, physical, from, &mut step);
                }
            }
            Change::Create { .. } | Change::Delete { .. } | Change::Grow { .. } => return Ok(None),
        }
    }
    check_length(record, position - first)?;
    Ok(Some(ticks))
}

/// Calls `step` for each page of a range.
fn by_page(block: u64, count: u32, to: Physical, from: Physical, step: &mut impl FnMut(u64, [u32; 3])) {
    let (mut at, end) = (block, block + u64::from(count));
    while at < end {
        let (page, offset) = (at / PAGE_BLOCKS, at % PAGE_BLOCKS);
        let blocks = (PAGE_BLOCKS - offset).min(end - at);
        let place = ((page % BUCKET_PAGES) << (2 * OFFSET_BITS)) | (offset << OFFSET_BITS) | (blocks - 1);
        let further = |physical: Physical| match physical.is_mapped() {
            true => physical.0.wrapping_add((at - block) as u32),
            false => 0,
        };
        step(page, [place as u32, further(to), further(from)]);
        at += blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;
    use crate::directory::VersionEntry;
    use crate::format::{CLEANER, USER};
    use crate::map::{Map, Radix};
    use crate::recovery::Replay;
    use crate::versions::{Version, Versions};
    use block::{Durable, EraseGuarantee, ZoneGeometry};
    use logkit::ZonePool;
    use logkit::record::Header;
    use runtime::Random;

    const BLOCKS: u64 = 5 * PAGE_BLOCKS + 100;
    const ZONES: u32 = 20;

    fn layout() -> Layout {
        let geometry = ZoneGeometry {
            zones: ZONES,
            zone_size: 4096 << 12,
            zone_capacity: 4096 << 12,
            append_granularity: 4096,
            read_granularity: 4096,
            max_append: 1 << 20,
            max_open: 0,
            max_active: 0,
            durable: Durable::OnFlush,
            erase: EraseGuarantee::None,
        };
        Layout::new(&geometry, block::BlockSize::default()).expect("zones for a log")
    }

    fn record(changes: &[Change], zone: u32, position: u32, sequence: u64) -> Replayable {
        let mut meta = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut meta));
        let moves = changes.iter().any(|change| matches!(change, Change::Move { .. }));
        let header = Header {
            kind: logkit::record::Kind::Entries,
            stream: if moves { CLEANER } else { USER },
            class: 0,
            epoch: 1,
            sequence,
            durable: 0,
            clock: 0,
            zone,
            generation: 1,
            position,
            blocks: changes.iter().map(Change::data_blocks).sum(),
        };
        Replayable { header, links: Default::default(), changes: Changes::new(&meta) }
    }

    /// Locations of all blocks of the volume, in runs and singly, each location at most once.
    fn places(random: &mut Random, layout: &Layout) -> Vec<u32> {
        let mut places = vec![0; BLOCKS as usize];
        let mut next = layout.physical(ZoneBlock { zone: ZoneIndex(2), block: 0 }).0;
        let mut at = 0;
        while at < places.len() {
            let longest = if random.chance(0.5) { 3 } else { 900 };
            let count = (1 + random.below(longest) as usize).min(places.len() - at);
            if random.chance(0.8) {
                for place in &mut places[at..at + count] {
                    // A zone begins with a header.
                    next += u32::from(layout.place(Physical(next)).block == 0);
                    *place = next;
                    next += 1;
                }
            }
            at += count;
        }
        places
    }

    fn changes(random: &mut Random, now: &[u32]) -> Vec<Change> {
        let is_of_the_cleaner = random.chance(0.3);
        let changes = (0..=random.below(6)).map(|_| {
            // Some extend beyond the end of the volume, and some are of a version that doesn't exist.
            let block = random.below(BLOCKS + 3);
            let longest = if random.chance(0.8) { 4 } else { 2500 };
            let count = 1 + random.below(longest) as u32;
            let version = if random.chance(0.05) { VersionId(7) } else { VersionId::HEAD };
            if is_of_the_cleaner {
                let from = now.get(block as usize).copied().unwrap_or(9);
                // Some blocks have moved since they were chosen.
                let from = if random.chance(0.2) { from.wrapping_add(1) } else { from };
                // A move is within one zone.
                let (layout, from) = (layout(), Physical(from));
                let most = 200.min(layout.zone_blocks - layout.place(from).block);
                return Change::Move { version, block, count: count.min(most), from };
            }
            match random.chance(0.7) {
                true => Change::Write { version, block, count: count.min(200) },
                false => Change::Unmap { version, block, count },
            }
        });
        changes.collect()
    }

    /// The same changes, replayed singly and batched, give the same map, zone counts and dirty pages.
    fn same(seed: u64) {
        let mut random = Random::new(seed);
        let layout = layout();
        let before = places(&mut random, &layout);
        let mut sequences = [0; 2];
        let (mut zone, mut position) = (8, 0);
        let records: Vec<Replayable> = (0..60)
            .map(|_| {
                let mut changes = changes(&mut random, &before);
                changes.retain(|change| !matches!(change, Change::Move { block, count, .. } if block + u64::from(*count) > BLOCKS));
                let mut found = record(&changes, zone, position, 0);
                if found.header.blocks + position + 1 > layout.zone_blocks {
                    (zone, position) = (zone + 1, 0);
                    found = record(&changes, zone, position, 0);
                }
                position += 1 + found.header.blocks;
                let sequence = &mut sequences[usize::from(found.header.stream.0)];
                *sequence += 1;
                found.header.sequence = *sequence;
                found
            })
            .collect();

        let pool = ZonePool::new(ZONES);
        let map = Radix::new(BLOCKS).expect("there is memory");
        for (page, places) in (0..).zip(before.chunks(PAGE_BLOCKS as usize)) {
            let mut whole = places.to_vec();
            whole.resize(PAGE_BLOCKS as usize, 0);
            map.load_page(page, &whole);
        }
        for place in before.iter().filter(|place| **place != 0) {
            pool.add_live(layout.place(Physical(*place)).zone.0, 1);
        }
        let version = Version::new(VersionEntry::head(BLOCKS, 0), Arc::new(map));
        let mut versions = Versions { list: vec![version], next: 2, ..Versions::default() };
        let mut replay = Replay { versions: &mut versions, pool: &pool, layout: &layout, clock: 1000 };
        replay.run(&records).expect("it replays");
        let clock = replay.clock;

        // Parts of other lengths than those of threads.
        let mut batched = Batched { parts: Vec::new(), clock: 1000 };
        for records in records.chunks(25) {
            let part = Part::of(records, BLOCKS, &layout).expect("it is right").expect("it is simple");
            let begin = batched.clock;
            batched.clock += part.ticks;
            batched.parts.push(Part { begin, ..part });
        }
        assert_eq!(batched.clock, clock, "seed {seed}");
        let head = &versions.list[0];
        let (mut live, mut changed, mut dirty) = ([0; ZONES as usize], [0; ZONES as usize], Vec::new());
        for (page, places) in (0..).zip(before.chunks(PAGE_BLOCKS as usize)) {
            let mut found = places.to_vec();
            found.resize(PAGE_BLOCKS as usize, 0);
            let has_changed = batched.change(page, &mut found, &mut |physical, clock| {
                let changed = &mut changed[layout.place(physical).zone.0 as usize];
                *changed = clock.max(*changed);
            });
            dirty.extend(has_changed.then_some(page));
            let mut expected = vec![0; PAGE_BLOCKS as usize];
            head.map.save_page(page, &mut expected);
            assert!(found == expected, "seed {seed}, page {page}");
            let mapped = found.iter().filter(|place| **place != 0);
            mapped.for_each(|place| live[layout.place(Physical(*place)).zone.0 as usize] += 1);
        }
        for (zone, entry) in pool.list() {
            let here = (live[zone as usize], changed[zone as usize]);
            assert_eq!(here, (entry.live, entry.changed), "seed {seed}, zone {zone}");
        }
        // If a move changed one of two pages, the other needn't be written.
        let expected: Vec<u64> = head.dirty.iter().collect();
        assert!(dirty.iter().all(|page| expected.contains(page)), "seed {seed}: {dirty:?}, {expected:?}");
        assert!(batched.pages().iter().all(|page| page * PAGE_BLOCKS < BLOCKS));
    }

    #[test]
    fn batched_changes_have_the_same_result_as_single_ones() {
        (0..300).for_each(same);
    }

    #[test]
    fn only_changes_of_one_version_are_batched() {
        let write = Change::Write { version: VersionId::HEAD, block: 5, count: 2 };
        let batched = |changes: &[Change]| {
            Part::of(&[record(changes, 4, 0, 1)], BLOCKS, &layout()).expect("it is right").is_some()
        };
        assert!(batched(std::slice::from_ref(&write)));
        let name = String::new();
        let (version, parent) = (VersionId(2), VersionId::HEAD);
        let create = Change::Create { version, parent, writable: false, created: 0, name };
        for other in [create, Change::Delete { version }, Change::Grow { version, blocks: 9 }] {
            assert!(!batched(&[write.clone(), other]));
        }
    }

    #[test]
    fn a_record_with_other_data_than_it_names_is_refused() {
        let write = |count| Change::Write { version: VersionId::HEAD, block: 5, count };
        for (blocks, changes) in
            [(1, vec![write(2)]), (3, vec![write(2)]), (2, vec![write(2), write(u32::MAX)])]
        {
            let mut record = record(&[], 4, 0, 1);
            let mut meta = Vec::new();
            changes.iter().for_each(|change| change.encode(&mut meta));
            record.changes = Changes::new(&meta);
            record.header.blocks = blocks;
            let outcome = Part::of(&[record], BLOCKS, &layout());
            assert!(matches!(outcome, Err(block::Error::Corrupt(_))), "{blocks} blocks");
        }
    }
}
