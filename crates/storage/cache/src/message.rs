//! Messages of operators to an open cache.

use crate::commit::PATIENCE;
use crate::core::{Core, Level, Mode};
use crate::state::FREE;
use crate::status::{Control, Detach};
use crate::warm::{self, ByteRange, WarmRanges};
use block::{Error, Result};
use stack::{FromWords, Words};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering;

stack::messages! {
    /// A message to a cache.
    Message;
    "mode MODE" => Mode(Mode), "set the mode until the stack is closed: writethrough, writeback or passthrough";
    "migration_threshold SECTORS" => MigrationThreshold(u64),
        "limit data in flight between cache and origin, in sectors of 512 bytes";
    "sequential_threshold BYTES" => SequentialThreshold(u64),
        "bypass the cache with sequential runs of at least this length; 0: never bypass";
    "invalidate FROM-TO…" => Invalidate(Vec<CacheBlocks>), "evict clean blocks by cache block number; TO is exclusive";
    "invalidate_cblocks FROM-TO…" => InvalidateCblocks(Vec<CacheBlocks>), "same as invalidate, under dm-cache's name";
    "detach" => Detach, "write everything back, evict all blocks and promote nothing";
    "cancel" => Cancel, "end or undo a detach";
    "warm list FROM COUNT" => WarmList(u32, u32), "list COUNT slots with their heat, starting at slot FROM, as JSON";
    "warm fetch [HEAT] OFFSET+LENGTH…" => WarmFetch(WarmRanges), "promote ranges of the origin and set their heat";
    "warm heat [HEAT] OFFSET+LENGTH…" => WarmHeat(WarmRanges), "set the heat of cached ranges of the origin";
    "warm evict OFFSET+LENGTH…" => WarmEvict(Vec<ByteRange>), "evict clean blocks of ranges of the origin";
}

/// A range of cache block numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheBlocks(pub Range<u32>);

/// Parses cache block numbers as dm-cache does: `BLOCK`, or `FROM-TO` with an exclusive end.
impl FromWords for CacheBlocks {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read("a cache block number, or FROM-TO with FROM below TO (exclusive)", |word| {
            let number = |word: &str| word.parse::<u32>().ok();
            let found = match word.split_once('-') {
                Some((from, to)) => number(from)?..number(to)?,
                None => number(word)?..number(word)?.checked_add(1)?,
            };
            (!found.is_empty()).then_some(CacheBlocks(found))
        })
    }
}

impl FromWords for Mode {
    fn from_words(words: &mut Words<'_>) -> Result<Self> {
        words.read(format_args!("one of {}", Mode::NAMES.join(", ")), Mode::from_name)
    }
}

/// Carries a message out. Returns the answer.
pub(crate) async fn carry_out(
    core: &Rc<Core>,
    control: &std::sync::Arc<Control>,
    message: Message,
) -> Result<String> {
    match message {
        Message::Mode(mode) => {
            core.mode.set(mode);
            control.set_mode(mode);
            core.upkeep.notify_all();
            Ok(format!("mode {}", mode.name()))
        }
        Message::MigrationThreshold(sectors) => {
            core.migration_threshold.set(sectors.saturating_mul(512));
            control.migration_threshold.store(sectors, Ordering::Relaxed);
            Ok(format!("migration_threshold {sectors} sectors"))
        }
        Message::SequentialThreshold(bytes) => {
            core.sequential_threshold.set(bytes);
            control.sequential_threshold.store(bytes, Ordering::Relaxed);
            Ok(format!("sequential_threshold {bytes} bytes"))
        }
        Message::Invalidate(ranges) | Message::InvalidateCblocks(ranges) => invalidate(core, &ranges).await,
        Message::WarmList(from, count) => warm::list(core, from, count).await,
        Message::WarmFetch(wants) => runtime::carry_in(&core.calls, warm::fetch(core.clone(), wants.0)).await,
        Message::WarmHeat(wants) => warm::heat(core, wants.0).await,
        Message::WarmEvict(bytes) => runtime::carry_in(&core.calls, warm::evict(core.clone(), bytes)).await,
        Message::Detach => {
            let before = core.is_detaching.replace(true);
            control.set_detach(Detach::Going);
            core.upkeep.notify_all();
            if !before {
                let (own, control) = (core.clone(), control.clone());
                core.calls.spawn(async move { detach(&own, &control).await }).detach();
            }
            let dirty = core.state.borrow().dirty_slots;
            Ok(format!("detaching: {dirty} dirty blocks left to write back; \"cancel\" ends it"))
        }
        Message::Cancel => {
            let before = core.is_detaching.replace(false);
            control.set_detach(Detach::No);
            core.changed.notify_all();
            Ok(if before { "attached again".into() } else { "no detach to cancel".into() })
        }
    }
}

/// Evicts clean blocks.
async fn invalidate(core: &Rc<Core>, ranges: &[CacheBlocks]) -> Result<String> {
    let slots = core.state.borrow().slots.len() as u32;
    if let Some(range) = ranges.iter().map(|range| &range.0).find(|range| range.end > slots) {
        return Err(Error::invalid(format!(
            "invalidate {}-{}: out of range; expected block numbers below {slots}",
            range.start, range.end
        )));
    }
    let (mut gone, mut dirty) = (0, 0);
    for slot in ranges.iter().flat_map(|range| range.0.clone()) {
        let block = core.state.borrow_mut().slot(slot).block;
        if block == FREE {
            continue;
        }
        match core.evict_block(slot, block).await? {
            true => gone += 1,
            false => dirty += 1,
        }
    }
    match dirty {
        0 => Ok(format!("{gone} blocks invalidated")),
        _ => Ok(format!(
            "{gone} blocks invalidated; {dirty} are dirty and stay: write them back first, with \"detach\""
        )),
    }
}

/// Largest number of slots that one round of a detach frees.
const AT_ONCE: usize = 1024;
/// Number of calls to the policy before a detach waits: one call examines only a few slots.
const PASSES: usize = 16;

/// Waits until all dirty blocks are written back, and evicts all blocks.
async fn detach(core: &Rc<Core>, control: &Control) {
    let waits_for_flush = Cell::new(false);
    while core.is_detaching.get() && !core.is_closed.get() && core.failure.borrow().is_none() {
        let is_clean = core.state.borrow().dirty_slots == 0;
        if !is_clean {
            core.upkeep.notify_all();
            core.changed.notified().await;
            continue;
        }
        let flushed = match waits_for_flush.take() {
            true => core.flush_origin_now().await,
            false => core.flush_origin().await,
        };
        if flushed.is_err() {
            return;
        }
        let may = |number: u32, slot: &crate::state::Slot| {
            let may = core.is_evictable(number, slot.epoch);
            waits_for_flush.set(waits_for_flush.get() || !may);
            may
        };
        // The policy passes over hot blocks until their hits are used up.
        let evict = |_| core.state.borrow_mut().evict(AT_ONCE, &may);
        let chosen = (0..PASSES).map(evict).find(|chosen| *chosen > 0).unwrap_or(0);
        if chosen > 0 {
            if core.commit(Level::Marks).await.is_err() {
                return;
            }
            continue;
        }
        if core.state.borrow().is_empty() {
            control.set_detach(Detach::Done);
            return;
        }
        // Without requests there are no notifications.
        let _ = runtime::timeout(PATIENCE, core.changed.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KIND;
    use stack::Message as _;

    #[test]
    fn messages_are_read() {
        assert_eq!(Message::parse(&KIND, "mode writeback").unwrap(), Message::Mode(Mode::Writeback));
        assert_eq!(
            Message::parse(&KIND, "invalidate 3 5-9").unwrap(),
            Message::Invalidate(vec![CacheBlocks(3..4), CacheBlocks(5..9)])
        );
        for wrong in ["mode fast", "invalidate 9-5", "invalidate x", "migration_threshold -1"] {
            assert!(matches!(Message::parse(&KIND, wrong), Err(Error::Invalid(_))), "{wrong}");
        }
    }
}
