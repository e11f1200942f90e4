//! Committing: the effects of changes on the maps and on the zones.

use super::Core;
use crate::entry::LogEntry;
use crate::format::Change;
use crate::versions::{Effect, apply};
use block::{Error, ZoneBlock};
use logkit::pool::Accounts;
use logkit::{Owner, count};

impl Core {
    /// Applies the changes of a record with this first data block, then completes them.
    pub(super) fn commit_entries(&self, entries: &[LogEntry], first: ZoneBlock) {
        let failed = self.apply_all(entries, first);
        let mut failed = failed.into_iter().peekable();
        let mut has_buffered = false;
        for (number, entry) in entries.iter().enumerate() {
            if entry.ticket != 0
                && let Change::Write { version, block, count } = &entry.change
            {
                // The map is updated first: a read that misses the buffer finds the block in the map.
                self.buffer.committed_write(*version, *block, *count, entry.ticket);
                has_buffered = true;
            }
            let failure = failed.next_if(|(failed, _)| *failed == number);
            self.complete(entry, failure.map_or(Ok(()), |(_, error)| Err(error)));
        }
        if has_buffered {
            self.kit().events.committed.notify_all();
        }
    }

    /// Applies the changes of a committed record. Returns the errors, by the number of the change.
    fn apply_all(&self, entries: &[LogEntry], mut at: ZoneBlock) -> Vec<(usize, Error)> {
        let kit = self.kit();
        let (mut written, mut moved) = (0, 0);
        for entry in entries {
            match &entry.change {
                Change::Write { count, .. } => written += u64::from(*count),
                Change::Move { count, .. } => moved += u64::from(*count),
                _ => {}
            }
        }
        if written > 0 {
            kit.note_user_blocks(written);
        }
        if moved > 0 {
            count(&kit.counters.moved_blocks, moved);
        }
        let mut failed = Vec::new();
        let (mut has_died, mut has_deleted, mut has_new_versions) = (false, false, false);
        let mut versions = self.versions.borrow_mut();
        let mut accounts = kit.pool.accounts();
        for (number, entry) in entries.iter().enumerate() {
            let physical = self.layout.physical(at);
            at.block += entry.change.data_blocks();
            let outcome = apply(&mut versions, &entry.change, at.zone, physical, &mut |effect| {
                has_died |= matches!(effect, Effect::Dead(..));
                self.account(&mut accounts, effect);
            });
            match &entry.change {
                Change::Create { .. } | Change::Grow { .. } => has_new_versions = true,
                Change::Delete { .. } => has_deleted = true,
                _ => {}
            }
            if let Err(error) = outcome {
                failed.push((number, error));
            }
        }
        drop((versions, accounts));
        // The cleaner frees the blocks that only a deleted version mapped.
        if has_deleted || has_died && kit.is_stuck() {
            kit.look_again();
        }
        if (has_deleted || has_new_versions) && self.peers.index() == 0 {
            self.versions_changed();
        }
        if has_deleted && self.peers.index() > 0 {
            self.release_deleted();
        }
        self.publish_dirty();
        failed
    }

    /// Adds the effect of a change to the zones' counts.
    #[inline]
    pub(crate) fn account(&self, accounts: &mut Accounts<'_>, effect: Effect) {
        match effect {
            Effect::Live(zone, blocks) => accounts.add_live(zone.0, blocks as u32),
            Effect::Dead(physical, blocks) => {
                let zone = self.layout.place(physical).zone;
                accounts.remove_live(zone.0, blocks as u32, self.kit().clock());
            }
        }
    }
}
