//! Committing: records take effect in the order of their numbers, whatever order they were written in.

use crate::core::{Core, Group, count};
use crate::format::{CHECKPOINT, Change, USER};
use crate::map::Physical;
use crate::versions::Versions;
use block::{Durable, Error, Result};
use logkit::record::StreamIndex;

impl Core {
    /// A record is written: it commits, and whatever had waited for it, if nothing is missing before it.
    pub fn written(&self, stream: StreamIndex, sequence: u64, group: Group) {
        let index = usize::from(stream.0);
        if let Some(error) = self.failure() {
            // A record before it may be missing for good.
            group.items.iter().for_each(|item| self.item_done(item, Err(error.clone())));
            return;
        }
        self.streams[index].borrow_mut().written(sequence, group);
        loop {
            let next = self.streams[index].borrow_mut().next_committed();
            let Some(group) = next else { break };
            if stream != CHECKPOINT {
                self.commit(&group);
            }
            if stream == USER {
                count(&self.counters.user_records, 1);
                self.wake_paced_cleaner();
            }
            self.recycle(group.items);
        }
        if self.zones.geometry().durable == Durable::OnAppend {
            let committed = self.streams[index].borrow().committed();
            self.streams[index].borrow_mut().set_durable(committed);
        }
    }

    fn commit(&self, group: &Group) {
        let mut position = group.position;
        for item in &group.items {
            let physical = self.layout.physical(group.zone, position);
            let outcome = self.apply(&item.change, group.zone, physical);
            position += item.change.data_blocks();
            if item.ticket != 0
                && let Change::Write { version, block, count } = &item.change
            {
                // The map has it now: whoever doesn't find it in the buffer any more finds it there.
                self.buffer.committed_write(*version, *block, *count, item.ticket);
                self.buffer_changed.notify_all();
            }
            self.item_done(item, outcome);
        }
        self.table.change(group.zone, |entry| {
            entry.end = entry.end.max(position);
            entry.committed = entry.committed.max(position);
        });
    }

    /// Applies one change of a committed record.
    fn apply(&self, change: &Change, zone: u32, physical: Physical) -> Result<()> {
        match change {
            Change::Write { count: blocks, .. } => {
                self.clock.set(self.clock.get() + u64::from(*blocks));
                count(&self.counters.user_blocks, u64::from(*blocks));
            }
            Change::Move { count: blocks, .. } => count(&self.counters.moved_blocks, u64::from(*blocks)),
            // The cleaner gives up what only it had.
            Change::Delete { .. } => self.look_again(),
            _ => {}
        }
        let mut versions = self.versions.borrow_mut();
        let outcome = apply(&mut versions, change, zone, physical, &mut |effect| self.account(effect));
        drop(versions);
        if matches!(change, Change::Create { .. } | Change::Delete { .. } | Change::Grow { .. }) {
            self.measure_images();
        }
        outcome
    }

    /// Counts what a change did to zones.
    pub fn account(&self, effect: Effect) {
        match effect {
            Effect::Live(zone, blocks) => self.table.add_live(zone, blocks as u32),
            Effect::Dead(physical, blocks) => {
                let (zone, _) = self.layout.place(physical);
                self.table.remove_live(zone, blocks as u32, self.clock.get());
                if self.stuck.borrow().is_some() {
                    self.look_again();
                }
            }
        }
    }
}

/// What a change did to zones.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// So many blocks of this zone are now referred to.
    Live(u32, u64),
    /// These blocks are no longer referred to.
    Dead(Physical, u64),
}

/// Applies a change whose data is at `physical`, in this zone, to the maps; recovery does the same.
///
/// # Errors
/// [`Error::NotFound`] for a version that isn't there, [`Error::Invalid`] for blocks behind its end.
pub fn apply(
    versions: &mut Versions,
    change: &Change,
    zone: u32,
    physical: Physical,
    effect: &mut dyn FnMut(Effect),
) -> Result<()> {
    match change {
        Change::Write { version, block, count } => {
            let position = position(versions, *version, *block, *count)?;
            effect(Effect::Live(zone, u64::from(*count)));
            versions.insert(position, *block, u64::from(*count), physical, &mut |gone, blocks| {
                effect(Effect::Dead(gone, blocks));
            });
        }
        Change::Unmap { version, block, count } => {
            let position = position(versions, *version, *block, *count)?;
            versions.insert(position, *block, u64::from(*count), Physical::NONE, &mut |gone, blocks| {
                effect(Effect::Dead(gone, blocks));
            });
        }
        Change::Move { block, count, from, .. } => {
            // Run by run: what has been overwritten since it was chosen stays where it is now.
            let moved = versions.relocate(*block, u64::from(*count), *from, physical);
            if moved > 0 {
                effect(Effect::Live(zone, moved));
                effect(Effect::Dead(*from, moved));
            }
        }
        Change::Create { version, parent, writable, created, name } => {
            versions.create(*version, *parent, *writable, *created, name)?;
        }
        Change::Delete { version } => versions.delete(*version)?,
        Change::Grow { version, blocks } => versions.grow(*version, *blocks)?,
    }
    Ok(())
}

fn position(versions: &Versions, id: crate::format::VersionId, block: u64, count: u32) -> Result<usize> {
    let position = versions
        .position(id)
        .ok_or_else(|| Error::not_found(format!("version {} of the volume is gone", id.0)))?;
    let blocks = versions.list[position].blocks;
    match block.checked_add(u64::from(count)).is_some_and(|end| end <= blocks) {
        true => Ok(position),
        false => Err(Error::invalid(format!("{count} blocks at block {block}: the version has {blocks}"))),
    }
}
