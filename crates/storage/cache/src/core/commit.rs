//! The committer, the only task that changes the table.

use super::Core;
use crate::state::{EVICTING, Entry, FREE, IN_FOR_FLUSH, MARKING, SUSPECT, Slot};
use crate::table::Words;
use block::Result;
use eviction::Policy;
use std::rc::Rc;

/// Commits the requested changes of the table, one group at a time, until the cache closes.
pub async fn run(core: Rc<Core>) {
    while core.commits.requested().await {
        // Tasks that are ready to run add their requests to this group first.
        runtime::yield_now().await;
        round(&core).await;
    }
}

/// Commits one group: all requests so far.
async fn round(core: &Core) {
    let round = core.commits.begin();
    let outcome = if core.commits.has_failed() { Ok(()) } else { commit(core, round.wants_all).await };
    if let Err(error) = outcome {
        tracing::error!("cache: writing the table failed, no further changes are recorded: {error}");
        let text = format!("cache: writing its table failed, on the fast device: {}", error.detail());
        let slots = core.state.borrow().slots.len() as u32;
        let counts = (0..slots).any(|slot| core.entry(slot).dirty != 0);
        core.commits.note_dirty_parts(counts);
        let error = error.with_detail(text);
        // Set only once: nothing is committed after a failure.
        let _ = core.counters.failure.set(error.to_string());
        core.commits.fail(error);
    }
    core.commits.end(round);
    count(core);
    core.calls.wake();
    core.upkeep.wake();
}

fn count(core: &Core) {
    let counters = &core.counters;
    let (records, pages) = core.table.written.get();
    counters.journal_records.set(records);
    counters.table_pages.set(pages);
    counters.journal_used.set(core.table.journal_use().0);
    counters.commits.add(1);
}

/// Changes of the table in one append.
struct Batch {
    changes: Vec<(u32, Words)>,
    /// Whether a change begins or ends with a dirty part.
    has_dirty_parts: bool,
    marks: Vec<u32>,
    evicting: Vec<u32>,
    /// Whether a change makes a part valid in the table, so that the cache's data has to be durable first.
    needs_durable_data: bool,
    /// Slots whose entry needs another change after the next flush of the origin.
    retry: Vec<u32>,
    is_last: bool,
}

async fn commit(core: &Core, all: bool) -> Result<()> {
    let mut retry: Vec<u32> = Vec::new();
    loop {
        core.table.reserve().await?;
        let mut batch = collect(core, all);
        retry.append(&mut batch.retry);
        let began = core.fast.begin_flush();
        core.table.set(&batch.changes);
        let outcome = write(core, &batch, batch.needs_durable_data.then_some(began)).await;
        if outcome.is_err() {
            let mut state = core.state.borrow_mut();
            batch.changes.iter().for_each(|(slot, _)| state.slot(*slot).flags |= SUSPECT);
            core.commits.note_dirty_parts(batch.has_dirty_parts);
        }
        outcome?;
        finish(core, &batch);
        if batch.is_last {
            if all {
                core.commits.set_undurable_discards(retry.len());
            }
            let mut state = core.state.borrow_mut();
            retry.into_iter().for_each(|slot| state.queue_for_flush(slot));
            return Ok(());
        }
    }
}

/// Flushes the cache's data if the changes rely on it, then appends the changes to the table.
async fn write(core: &Core, batch: &Batch, data_epoch: Option<u64>) -> Result<()> {
    if let Some(began) = data_epoch {
        core.fast.end_flush(began).await?;
    }
    match batch.changes.is_empty() {
        true => Ok(()),
        false => core.table.append(&batch.changes).await,
    }
}

/// Collects the changes of the waiting slots whose target differs from their entry, up to the limit of one
/// append.
fn collect(core: &Core, all: bool) -> Batch {
    let mut state = core.state.borrow_mut();
    let mut capacity = core.table.most_changes();
    let mut take = |list: &mut Vec<u32>| {
        let taken = list.split_off(list.len().saturating_sub(capacity));
        capacity -= taken.len();
        taken
    };
    let evicting = take(&mut state.evicting);
    let marks = take(&mut state.marks);
    let for_cleaner = take(&mut state.for_cleaner);
    let for_flush = if all { take(&mut state.for_flush) } else { Vec::new() };
    let needs_durable_data = all || !for_cleaner.is_empty();
    let (mut changes, mut has_dirty_parts) = (Vec::new(), false);
    let slots = &state.slots;
    let targets = evicting.iter().map(|slot| (*slot, false));
    let targets = targets.chain(marks.iter().map(|slot| (*slot, true)));
    for (number, marks_only) in targets.chain(for_cleaner.iter().chain(&for_flush).map(|slot| (*slot, false)))
    {
        let target = core.target(number, &slots[number as usize], marks_only);
        let old = core.entry(number);
        if target != old {
            changes.push((number, target.words(state.policy.heat(number))));
            has_dirty_parts |= (target.dirty | old.dirty) != 0;
        }
    }
    let mut retry = Vec::new();
    for slot in for_flush {
        state.slot(slot).flags &= !IN_FOR_FLUSH;
        let found = *state.slot(slot);
        let target = core.target(slot, &found, false);
        if found.block == FREE || target == core.ideal(&found) {
            continue;
        }
        // Changes that need a flush of the origin follow later: discards with the next flush, others in the
        // background.
        match target.valid & !found.valid {
            0 => state.queue_unsettled(slot),
            _ => retry.push(slot),
        }
    }
    let lists = [&state.evicting, &state.marks, &state.for_cleaner];
    let is_last = lists.iter().all(|list| list.is_empty()) && (!all || state.for_flush.is_empty());
    Batch { changes, has_dirty_parts, marks, evicting, needs_durable_data, retry, is_last }
}

/// Finishes the marks and evictions of a batch that is durable in the table.
fn finish(core: &Core, batch: &Batch) {
    let mut state = core.state.borrow_mut();
    core.counters.marks.add(batch.marks.len() as u64);
    for slot in &batch.marks {
        state.slot(*slot).flags &= !MARKING;
    }
    for slot in &batch.evicting {
        state.release(*slot);
        core.counters.demotions.add(1);
    }
}

impl Core {
    /// Records the heat of all blocks in the table. The caller ensures that nothing else changes the table
    /// meanwhile.
    pub async fn record_heat(&self) -> Result<()> {
        let mut slots = 0..self.state.borrow().slots.len() as u32;
        while !slots.is_empty() {
            self.table.reserve().await?;
            let changes: Vec<(u32, Words)> = {
                let state = self.state.borrow();
                let kept = |slot: u32| {
                    let (old, entry) = (self.table.get(slot), self.entry(slot));
                    let new = entry.words(state.policy.heat(slot));
                    (entry.block == state.slots[slot as usize].block && new != old).then_some((slot, new))
                };
                slots.by_ref().filter_map(kept).take(self.table.most_changes()).collect()
            };
            if !changes.is_empty() {
                self.table.set(&changes);
                self.table.append(&changes).await?;
            }
            runtime::yield_now().await;
        }
        count(self);
        Ok(())
    }

    /// The entry that a slot would get if both sides were flushed and no write were in flight.
    fn ideal(&self, slot: &Slot) -> Entry {
        match slot.valid {
            0 => Entry::FREE,
            valid => Entry { block: slot.block, valid, dirty: slot.dirty },
        }
    }

    /// Returns the table's failure for a slot whose entry on the medium is unknown or can no longer be
    /// changed.
    pub fn check_slot(&self, slot: &Slot) -> Result<()> {
        match slot.has(SUSPECT | EVICTING | MARKING) {
            true => self.commits.check(),
            false => Ok(()),
        }
    }
}
