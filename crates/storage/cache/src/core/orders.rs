//! Messages of operators, carried out.

use super::evict::PATIENCE;
use super::{Core, warm};
use crate::commits::Level;
use crate::control::Detach;
use crate::message::{CacheBlocks, Message};
use crate::state::{FREE, Slot};
use block::{Error, Result};
use std::cell::Cell;
use std::rc::Rc;

/// Carries a message out. Returns the answer.
pub async fn carry_out(core: &Rc<Core>, message: Message) -> Result<String> {
    let _call = core.calls.group().enter();
    match message {
        Message::Mode(mode) => {
            core.control.set_mode(mode);
            core.upkeep.wake();
            Ok(format!("mode {}", mode.name()))
        }
        Message::MigrationThreshold(sectors) => {
            core.control.set_migration_sectors(sectors);
            Ok(format!("migration_threshold {sectors} sectors"))
        }
        Message::SequentialThreshold(bytes) => {
            core.control.set_sequential_threshold(bytes);
            Ok(format!("sequential_threshold {bytes} bytes"))
        }
        Message::Invalidate(ranges) | Message::InvalidateCblocks(ranges) => invalidate(core, &ranges).await,
        Message::WarmList(from, count) => warm::list(core, from, count).await,
        Message::WarmFetch(wants) => {
            runtime::carry_in(core.calls.group(), warm::fetch(core.clone(), wants.0)).await
        }
        Message::WarmHeat(wants) => warm::heat(core, wants.0).await,
        Message::WarmEvict(bytes) => {
            runtime::carry_in(core.calls.group(), warm::evict(core.clone(), bytes)).await
        }
        Message::Detach => {
            let before = core.control.set_detach(Detach::Going);
            core.upkeep.wake();
            if !before {
                let own = core.clone();
                core.calls.group().spawn(async move { detach(&own).await }).detach();
            }
            let dirty = core.state.borrow().dirty_slots;
            Ok(format!("detaching: {dirty} dirty blocks left to write back; \"cancel\" ends it"))
        }
        Message::Cancel => {
            let before = core.control.set_detach(Detach::No);
            core.calls.wake();
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
async fn detach(core: &Rc<Core>) {
    let waits_for_flush = Cell::new(false);
    while core.control.is_detaching() && core.calls.check_open().is_ok() && !core.commits.has_failed() {
        let is_clean = core.state.borrow().dirty_slots == 0;
        if !is_clean {
            core.upkeep.wake();
            core.calls.changed().await;
            continue;
        }
        let flushed = match waits_for_flush.take() {
            true => core.slow.flush_now().await,
            false => core.slow.flush().await,
        };
        if flushed.is_err() {
            return;
        }
        let may = |number: u32, slot: &Slot| {
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
            if core.control.is_detaching() {
                core.control.set_detach(Detach::Done);
            }
            return;
        }
        // Without requests there are no notifications.
        let _ = runtime::timeout(PATIENCE, core.calls.changed()).await;
    }
}
