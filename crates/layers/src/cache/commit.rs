//! The committer, the only one who changes the table; and the evictor, who keeps slots free.

use super::core::{Core, Level};
use super::policy::Policy;
use super::state::{FREE, IN_MUST, LEAVING, MARKING, SUSPECT, is_idle};
use crate::table::Words;
use block::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

/// How many slots are made free at once.
const AT_ONCE: usize = 128;
/// How long the evictor, or a detach, waits where all is dirty, busy or hot.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

/// Commits the requested changes of the table, a group at a time, until the cache closes.
pub(super) async fn run(core: Rc<Core>) {
    loop {
        while !core.marks.is_open() && !core.all.is_open() {
            if core.is_closing.get() {
                return;
            }
            core.work.notified().await;
        }
        // Whoever is ready to ask, too, asks before it begins: that is what makes a group.
        runtime::yield_now().await;
        round(&core).await;
    }
}

/// Does what was asked until now.
async fn round(core: &Core) {
    let (marks, all) = (core.marks.asked.get(), core.all.asked.get());
    let wants_all = core.all.is_open();
    core.is_committing.set(true);
    let outcome = if core.failure.borrow().is_none() { commit(core, wants_all).await } else { Ok(()) };
    if let Err(error) = outcome {
        tracing::error!("the cache can't keep its table any more: {error}");
        let text = format!("the cache's table can't be written: {}", error.detail());
        let slots = core.state.borrow().slots.len() as u32;
        let counts = (0..slots).any(|slot| core.entry(slot).dirty != 0);
        core.still_counts.set(counts || core.still_counts.get());
        let error = error.with_detail(text);
        // There is only one: nothing is committed after it.
        let _ = core.counters.failure.set(error.to_string());
        *core.failure.borrow_mut() = Some(error);
    }
    core.is_committing.set(false);
    core.marks.done.set(marks);
    if wants_all {
        core.all.done.set(all);
    }
    count(core);
    core.changed.notify_all();
    core.upkeep.notify_all();
}

fn count(core: &Core) {
    let counters = &core.counters;
    let (records, pages) = core.table.written.get();
    counters.journal_records.set(records);
    counters.table_pages.set(pages);
    counters.journal_used.set(core.table.journal_use().0);
    counters.commits.add(1);
}

/// What goes to the table at once.
struct Batch {
    changes: Vec<(u32, Words)>,
    /// Something of them is or was dirty.
    relies: bool,
    marks: Vec<u32>,
    leaving: Vec<u32>,
    /// Some of it says that the cache has something, so that the data has to be durable.
    tells_of_data: bool,
    /// Slots of which the table has to be told more once the origin has been flushed.
    again: Vec<u32>,
    is_last: bool,
}

async fn commit(core: &Core, all: bool) -> Result<()> {
    let mut again: Vec<u32> = Vec::new();
    loop {
        core.table.make_room().await?;
        let mut batch = gather(core, all);
        again.append(&mut batch.again);
        let began = core.fast_epochs.begin();
        core.table.set(&batch.changes);
        let outcome = write(core, &batch, batch.tells_of_data.then_some(began)).await;
        if outcome.is_err() {
            let mut state = core.state.borrow_mut();
            batch.changes.iter().for_each(|(slot, _)| state.slot(*slot).flags |= SUSPECT);
            core.still_counts.set(batch.relies);
        }
        outcome?;
        settle(core, &batch);
        if batch.is_last {
            if all {
                core.undone.set(again.len());
            }
            let mut state = core.state.borrow_mut();
            again.into_iter().for_each(|slot| state.queue_must(slot));
            return Ok(());
        }
    }
}

/// Makes the data durable on which the table relies from now on, if there is any, and the table.
async fn write(core: &Core, batch: &Batch, relies_on_data_since: Option<u64>) -> Result<()> {
    if let Some(began) = relies_on_data_since {
        if core.fast_epochs.is_dirty() {
            core.fast.flush().await?;
        }
        core.fast_epochs.done(began);
    }
    match batch.changes.is_empty() {
        true => Ok(()),
        false => core.table.append(&batch.changes).await,
    }
}

/// What the table is to say of the slots that wait, those that differ from what it says.
fn gather(core: &Core, all: bool) -> Batch {
    let mut state = core.state.borrow_mut();
    let mut room = core.table.most_changes();
    let mut take = |list: &mut Vec<u32>| {
        let taken = list.split_off(list.len().saturating_sub(room));
        room -= taken.len();
        taken
    };
    let leaving = take(&mut state.leaving);
    let marks = take(&mut state.marks);
    let soon = take(&mut state.soon);
    let must = if all { take(&mut state.must) } else { Vec::new() };
    let tells_of_data = all || !soon.is_empty();
    let (mut changes, mut relies) = (Vec::new(), false);
    let slots = &state.slots;
    let targets = leaving.iter().map(|slot| (*slot, false));
    let targets = targets.chain(marks.iter().map(|slot| (*slot, true)));
    for (number, marks_only) in targets.chain(soon.iter().chain(&must).map(|slot| (*slot, false))) {
        let target = core.target(number, &slots[number as usize], marks_only);
        let old = core.entry(number);
        if target != old {
            changes.push((number, target.words(state.policy.heat(number))));
            relies |= (target.dirty | old.dirty) != 0;
        }
    }
    let mut again = Vec::new();
    for slot in must {
        state.slot(slot).flags &= !IN_MUST;
        let found = *state.slot(slot);
        let target = core.target(slot, &found, false);
        if found.block == FREE || target == core.ideal(&found) {
            continue;
        }
        // What it can't say yet, it says later: what was discarded by the next flush, the rest at leisure.
        match target.valid & !found.valid {
            0 => state.queue_lazy(slot),
            _ => again.push(slot),
        }
    }
    let lists = [&state.leaving, &state.marks, &state.soon];
    let is_last = lists.iter().all(|list| list.is_empty()) && (!all || state.must.is_empty());
    Batch { changes, relies, marks, leaving, tells_of_data, again, is_last }
}

/// The table has it.
fn settle(core: &Core, batch: &Batch) {
    let mut state = core.state.borrow_mut();
    core.counters.marks.add(batch.marks.len() as u64);
    for slot in &batch.marks {
        state.slot(*slot).flags &= !MARKING;
    }
    for slot in &batch.leaving {
        state.release(*slot);
        core.counters.demotions.add(1);
    }
}

impl Core {
    /// Lets the table know how hot all blocks are. The caller has seen to it that nobody else changes it.
    pub async fn keep_heat(&self) -> Result<()> {
        let mut slots = 0..self.state.borrow().slots.len() as u32;
        while !slots.is_empty() {
            self.table.make_room().await?;
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

    /// What the table would say of a slot if both sides were flushed and nobody wrote it.
    fn ideal(&self, slot: &super::state::Slot) -> super::state::Entry {
        match slot.valid {
            0 => super::state::Entry::FREE,
            valid => super::state::Entry { block: slot.block, valid, dirty: slot.dirty },
        }
    }

    /// Refuses a change of what a slot has where nobody knows what the table says of it.
    pub fn check_slot(&self, slot: &super::state::Slot) -> Result<()> {
        match slot.has(SUSPECT | LEAVING | MARKING) {
            true => self.failure.borrow().clone().map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Whether a clean and idle slot's block may go: nothing in the table waits for a flush of the origin.
    pub fn may_leave(&self, number: u32, epoch: u64) -> bool {
        self.entry(number).dirty == 0 || self.slow_epochs.covers(epoch)
    }

    /// Lets a slot's block go once nobody uses it, and waits for that; false if it is dirty.
    pub async fn make_leave(&self, number: u32, block: u64) -> Result<bool> {
        loop {
            let flushes;
            {
                let mut state = self.state.borrow_mut();
                let slot = *state.slot(number);
                if slot.block != block {
                    return Ok(true);
                }
                if slot.dirty != 0 {
                    return Ok(false);
                }
                self.check_slot(&slot)?;
                if is_idle(&slot) && self.may_leave(number, slot.epoch) {
                    state.leave(number);
                    break;
                }
                flushes = is_idle(&slot);
            }
            match flushes {
                true => self.flush_origin_now().await?,
                false => self.changed.notified().await,
            }
        }
        self.commit(Level::Marks).await?;
        Ok(true)
    }
}

/// Keeps slots free, until the cache closes.
pub(super) async fn evictor(core: Rc<Core>) {
    let low = core.low_water();
    while !core.is_idling.get() {
        let missing = low.saturating_sub(core.state.borrow().free.len());
        if missing == 0 || core.failure.borrow().is_some() {
            core.wants_clean.set(false);
            core.upkeep.notified().await;
            continue;
        }
        let most = (missing + low / 2).min(AT_ONCE);
        let may = |number: u32, slot: &super::state::Slot| core.may_leave(number, slot.epoch);
        let chosen = core.state.borrow_mut().evict(most, &may);
        if chosen > 0 {
            // It fails where all that is clean can still be read.
            let _: Result<(), Error> = core.commit(Level::Marks).await;
            continue;
        }
        core.wants_clean.set(true);
        core.upkeep.notify_all();
        let waiting = core.upkeep.notified();
        let _ = runtime::timeout(PATIENCE, waiting).await;
    }
}
