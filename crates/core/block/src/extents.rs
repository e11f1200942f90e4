//! Extents of a layer, from the extents of the devices below it.

use crate::address::BlockRange;
use crate::device::{Extent, ExtentState};
use crate::error::Result;

/// Limit of the extents of one answer.
pub const MAX_EXTENTS: usize = 4096;
/// Limit of the requests to a device below for one answer.
const MAX_REQUESTS: usize = 256;

/// Appends an extent that follows the last one, and joins both if they have the same state.
pub fn push(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.state == extent.state => last.range.count.0 += extent.range.count.0,
        _ => extents.push(extent),
    }
}

/// Converts the extents of a device below to blocks of 2 to the power of `shift` of its own; `range` begins
/// at its block `begin`. A block with several extents becomes data.
pub fn in_blocks(range: BlockRange, begin: u64, shift: u32, found: &[Extent]) -> Vec<Extent> {
    let mut extents = Vec::with_capacity(found.len());
    let mut known = 0;
    let mut add = |from: u64, to: u64, state| {
        if from < to {
            push(&mut extents, Extent { range: BlockRange::new(range.start.0 + from, to - from), state });
        }
    };
    for extent in found {
        let (from, end) = (extent.range.start.0 - begin, (extent.range.end().0 - begin) >> shift);
        if end > known && from > known << shift {
            add(known, known + 1, ExtentState::Data);
            known += 1;
        }
        add(known, end, extent.state);
        known = end.max(known);
    }
    if known == 0 {
        add(0, 1, ExtentState::Data);
    }
    extents
}

/// Returns the extents of consecutive runs. A run with a state becomes one extent; for other runs `below`
/// returns the extents of the device below, in the same blocks. The answer covers at least the beginning of
/// the first run.
///
/// # Errors
/// Errors of `below`.
pub async fn of_runs(
    runs: Vec<(BlockRange, Option<ExtentState>)>,
    below: impl AsyncFn(BlockRange) -> Result<Vec<Extent>>,
) -> Result<Vec<Extent>> {
    let (mut extents, mut requests) = (Vec::new(), 0);
    for (range, state) in runs {
        if extents.len() >= MAX_EXTENTS || requests >= MAX_REQUESTS {
            break;
        }
        if let Some(state) = state {
            push(&mut extents, Extent { range, state });
            continue;
        }
        requests += 1;
        let found = below(range).await?;
        let covered: u64 = found.iter().map(|extent| extent.range.count.0).sum();
        found.into_iter().for_each(|extent| push(&mut extents, extent));
        if covered < range.count.0 {
            break;
        }
    }
    Ok(extents)
}

/// Adds a run of blocks to those before it, joined with the last one if they have the same state.
pub fn add_run(
    runs: &mut Vec<(BlockRange, Option<ExtentState>)>,
    range: BlockRange,
    state: Option<ExtentState>,
) {
    match runs.last_mut() {
        Some((last, same)) if *same == state => last.count.0 += range.count.0,
        _ => runs.push((range, state)),
    }
}
