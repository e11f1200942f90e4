//! Committing: the effects of a change on the maps and on the zones.

use crate::core::{Core, Item};
use crate::format::Change;
use crate::map::Physical;
use crate::versions::Versions;
use block::{Error, Result};
use logkit::pool::Accounts;
use logkit::{Owner, count};

impl Core {
    /// Applies the changes of a record whose first data block is at `position` of `zone`.
    pub(crate) fn commit_items(&self, items: &[Item], zone: u32, mut position: u32) {
        for item in items {
            let physical = self.layout.physical(zone, position);
            let outcome = self.apply(&item.change, zone, physical);
            position += item.change.data_blocks();
            if item.ticket != 0
                && let Change::Write { version, block, count } = &item.change
            {
                // The map is updated first: a read that misses the buffer finds the block in the map.
                self.buffer.committed_write(*version, *block, *count, item.ticket);
                self.kit().events.committed.notify_all();
            }
            self.complete(item, outcome);
        }
    }

    /// Applies one change of a committed record.
    fn apply(&self, change: &Change, zone: u32, physical: Physical) -> Result<()> {
        let kit = self.kit();
        match change {
            Change::Write { count: blocks, .. } => kit.note_user_blocks(u64::from(*blocks)),
            Change::Move { count: blocks, .. } => count(&kit.counters.moved_blocks, u64::from(*blocks)),
            // The cleaner releases the blocks that only the deleted version mapped.
            Change::Delete { .. } => kit.look_again(),
            _ => {}
        }
        let mut versions = self.versions.borrow_mut();
        let mut accounts = kit.pool.accounts();
        let mut has_died = false;
        let outcome = apply(&mut versions, change, zone, physical, &mut |effect| {
            has_died |= matches!(effect, Effect::Dead(..));
            self.account(&mut accounts, effect);
        });
        drop((versions, accounts));
        if has_died && kit.is_stuck() {
            kit.look_again();
        }
        if matches!(change, Change::Create { .. } | Change::Delete { .. } | Change::Grow { .. }) {
            self.measure_images();
        }
        outcome
    }

    /// Adds the effect of a change to the zones' counts.
    #[inline]
    pub(crate) fn account(&self, accounts: &mut Accounts<'_>, effect: Effect) {
        match effect {
            Effect::Live(zone, blocks) => accounts.add_live(zone, blocks as u32),
            Effect::Dead(physical, blocks) => {
                let (zone, _) = self.layout.place(physical);
                accounts.remove_live(zone, blocks as u32, self.kit().clock());
            }
        }
    }
}

/// Effect of a change on zones.
#[derive(Debug, Clone, Copy)]
pub enum Effect {
    /// This number of blocks of the zone became live.
    Live(u32, u64),
    /// These blocks became dead.
    Dead(Physical, u64),
}

/// Applies a change whose data is at `physical`, in this zone, to the maps. Recovery uses the same function.
///
/// # Errors
/// [`Error::NotFound`] if there is no such version, [`Error::Invalid`] for blocks after its end.
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
            // Run by run: blocks that have been overwritten since the cleaner chose them stay at their current
            // location.
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
        .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", id.0)))?;
    let blocks = versions.list[position].blocks;
    match block.checked_add(u64::from(count)).is_some_and(|end| end <= blocks) {
        true => Ok(position),
        false => Err(Error::invalid(format!(
            "{count} blocks from block {block} on: out of range 0..{blocks} of version {}",
            id.0
        ))),
    }
}
