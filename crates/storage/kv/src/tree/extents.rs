//! Extents: places of a table's blocks in zones, and reads of them.

use block::{Buffer, Error, Result, ZoneBlock, Zones};
use logkit::Layout;
use smallvec::SmallVec;
use std::cell::RefCell;

/// Maximum size of a sequential read of a table, in bytes.
const READ_AHEAD: usize = 512 << 10;

/// Consecutive blocks of a table that are consecutive in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First block of the table.
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Place of the first block.
    pub place: ZoneBlock,
}

impl Extent {
    /// First block of the table after the extent.
    pub fn end(&self) -> u32 {
        self.first + self.blocks
    }
}

/// Sets the place of a run of blocks: new blocks are appended to the extents, and blocks that were moved from
/// `from` are replaced if they are still there. `change` gets each run that becomes live (true) or stale
/// (false).
pub fn place(
    extents: &mut Vec<Extent>,
    run: Extent,
    from: Option<ZoneBlock>,
    mut change: impl FnMut(Extent, bool),
) {
    let Some(from) = from else {
        change(run, true);
        match extents.last_mut() {
            Some(last) if last.end() == run.first && last.place.after(last.blocks) == run.place => {
                last.blocks += run.blocks;
            }
            _ => extents.push(run),
        }
        return;
    };
    let mut placed = Vec::with_capacity(extents.len() + 2);
    for extent in extents.drain(..) {
        let (begin, end) = (extent.first.max(run.first), extent.end().min(run.end()));
        let is_there =
            begin < end && extent.place.after(begin - extent.first) == from.after(begin - run.first);
        if !is_there {
            placed.push(extent);
            continue;
        }
        let part = |first: u32, end: u32, of: Extent| Extent {
            first,
            blocks: end - first,
            place: of.place.after(first - of.first),
        };
        let (old, new) = (part(begin, end, extent), part(begin, end, run));
        change(new, true);
        change(old, false);
        let pieces = [part(extent.first, begin, extent), new, part(end, extent.end(), extent)];
        placed.extend(pieces.into_iter().filter(|piece| piece.blocks > 0));
    }
    *extents = placed;
}

/// Runs of blocks in zones.
type Runs = SmallVec<[(ZoneBlock, u32); 1]>;

/// Returns the runs of blocks that contain `length` bytes of a table at `offset`. The last run is extended by
/// blocks that follow in its zone, up to `most` bytes in all.
///
/// # Errors
/// [`Error::Corrupt`] for bytes beyond the table.
pub fn runs(extents: &[Extent], layout: &Layout, offset: u64, length: usize, most: usize) -> Result<Runs> {
    let block = layout.block_size.bytes();
    let end = (offset + length as u64).div_ceil(block);
    let most = end.max((offset + most as u64).div_ceil(block));
    let mut at = offset / block;
    let mut runs = Runs::new();
    while at < end {
        let found = extents.partition_point(|extent| u64::from(extent.end()) <= at);
        let Some(extent) = extents.get(found).filter(|extent| u64::from(extent.first) <= at) else {
            return Err(Error::corrupt(format!("block {at} of the log is beyond the table's end")));
        };
        let taken = u64::from(extent.end()).min(most) - at;
        runs.push((extent.place.after((at - u64::from(extent.first)) as u32), taken as u32));
        at += taken;
    }
    Ok(runs)
}

/// Reads runs of blocks in sequence.
///
/// # Errors
/// Errors of the reads, with the zone.
pub async fn read_runs(zones: &dyn Zones, layout: &Layout, runs: &Runs) -> Result<Buffer> {
    let mut whole: Option<Buffer> = None;
    for (place, blocks) in runs {
        let address = layout.address(place.zone.0, place.block);
        let (outcome, buffer) =
            zones.read(address, Buffer::new(*blocks as usize * layout.block_bytes())).await;
        outcome.map_err(|error| error.in_context(place))?;
        match &mut whole {
            None => whole = Some(buffer),
            Some(whole) => {
                let mut joined = Buffer::new(whole.len() + buffer.len());
                joined.append(whole.filled());
                joined.append(buffer.filled());
                *whole = joined;
            }
        }
    }
    Ok(whole.unwrap_or_else(|| Buffer::new(0)))
}

/// Sequential reader of a table in large pieces; keeps the last piece.
#[derive(Debug)]
pub struct ReadAhead {
    /// Length of the table in bytes.
    length: u64,
    /// Size of a block in bytes.
    block: u64,
    /// Offset and bytes of the last piece.
    window: RefCell<(u64, Buffer)>,
}

impl ReadAhead {
    /// Returns a reader of a table of `length` bytes that has read nothing.
    pub fn new(length: u64, layout: &Layout) -> Self {
        ReadAhead { length, block: layout.block_size.bytes(), window: RefCell::new((0, Buffer::new(0))) }
    }

    /// Calls `visit` with `length` bytes of the table at `offset`. If these aren't in memory, it calls `read`
    /// with the offset, the length, and the maximum number of bytes to read.
    ///
    /// # Errors
    /// Errors of `read` and `visit`; [`Error::Corrupt`] for bytes beyond the table.
    pub async fn read<T>(
        &self,
        offset: u64,
        length: usize,
        read: impl AsyncFnOnce(u64, usize, usize) -> Result<Buffer>,
        visit: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let range_of = |window: &(u64, Buffer)| {
            let begin = usize::try_from(offset.checked_sub(window.0)?).ok()?;
            let end = begin.checked_add(length).filter(|end| *end <= window.1.filled().len())?;
            Some(begin..end)
        };
        let is_there = range_of(&self.window.borrow()).is_some();
        if !is_there {
            let begin = offset - offset % self.block;
            let most = self.length.next_multiple_of(self.block).saturating_sub(begin);
            let needed = (offset - begin) as usize + length;
            let most = READ_AHEAD.min(usize::try_from(most).unwrap_or(usize::MAX));
            let buffer = read(begin, needed, most).await?;
            self.window.replace((begin, buffer));
        }
        let window = self.window.borrow();
        let range =
            range_of(&window).ok_or_else(|| Error::corrupt("a block of the table is beyond its end"))?;
        visit(&window.1.filled()[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(first: u32, blocks: u32, zone: u32, block: u32) -> Extent {
        Extent { first, blocks, place: ZoneBlock::new(zone, block) }
    }

    #[test]
    fn runs_are_appended_joined_and_moved_in_part_only_from_where_they_are() {
        let mut extents = Vec::new();
        let mut live = std::collections::BTreeMap::new();
        let mut put = |extents: &mut Vec<Extent>, run: Extent, from: Option<(u32, u32)>| {
            let from = from.map(|(zone, block)| ZoneBlock::new(zone, block));
            place(extents, run, from, |extent, is_new| {
                let blocks = if is_new { i64::from(extent.blocks) } else { -i64::from(extent.blocks) };
                *live.entry(extent.place.zone.0).or_insert(0i64) += blocks;
            });
        };
        put(&mut extents, at(0, 4, 5, 1), None);
        put(&mut extents, at(4, 4, 5, 5), None);
        put(&mut extents, at(8, 2, 6, 1), None);
        assert_eq!(extents, [at(0, 8, 5, 1), at(8, 2, 6, 1)], "neighbours are one run");
        put(&mut extents, at(2, 3, 7, 1), Some((5, 3)));
        assert_eq!(extents, [at(0, 2, 5, 1), at(2, 3, 7, 1), at(5, 3, 5, 6), at(8, 2, 6, 1)]);
        put(&mut extents, at(2, 3, 8, 1), Some((5, 3)));
        assert_eq!(extents[1], at(2, 3, 7, 1), "it isn't there any more");
        put(&mut extents, at(0, 8, 9, 1), Some((5, 1)));
        assert_eq!(
            extents,
            [at(0, 2, 9, 1), at(2, 3, 7, 1), at(5, 3, 9, 6), at(8, 2, 6, 1)],
            "those that are still there"
        );
        assert_eq!(
            live.into_iter().filter(|(_, blocks)| *blocks != 0).collect::<Vec<_>>(),
            [(6, 2), (7, 3), (9, 5)]
        );
    }
}
