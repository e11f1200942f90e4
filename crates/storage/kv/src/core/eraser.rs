//! Executes the resets that [`erasure`](crate::erasure) schedules: zones with stale data are sealed, emptied,
//! covered by a checkpoint, and reset.

use crate::broken::if_broken;
use crate::core::Core;
use crate::key_version::Timestamp;
use crate::log_entry::KvEntry;
use crate::memory::memtable::Memtable;
use crate::policy::placement::LOG;
use crate::tree::extents::Extent;
use crate::tree::levels::Levels;
use crate::tree::tables::{Table, TableFile};
use block::Result;
use logkit::pool::{CHECKPOINT_CLASS, Usage};
use logkit::{Owner, checkpoint, reset};
use std::rc::Rc;
use std::time::Duration;

/// Number of rounds within the time limit of a zone.
const LOOKS: u32 = 16;
/// Minimum interval of rounds.
const SHORTEST: Duration = Duration::from_millis(5);
/// Interval of rounds of an idle store that counts operations.
const IDLE: Duration = Duration::from_secs(1);
/// Longest time that writes wait for resets of zones, where operations are counted.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time before its due time at which a zone is emptied, as a share of the limit: until then its live data may
/// become stale.
const EMPTY_BEFORE: f64 = 0.35;
/// Age of the oldest tombstone at which a buffer is written, as a share of the limit.
const BUFFER_AFTER: f64 = 0.5;
/// Maximum number of free zones that are reset again at a time.
const MAX_RENEWED: u32 = 8;
/// Number of blocks that are moved at a time.
const MOVE_BLOCKS: u32 = 256;

impl Core {
    /// Carries out the due resets, until the store is closed. Runs on the home.
    pub(crate) async fn run_eraser(self: Rc<Self>) {
        let Some(limit) = self.erasure.limit() else { return };
        let pause = match self.erasure.counts_operations() {
            true => IDLE,
            false => (limit / LOOKS).max(SHORTEST),
        };
        let mut is_renewing = false;
        while !self.kit.is_closing() && self.kit.failure().is_none() {
            // Closing the store ends the wait, and so does a shard that has used half of its grant of
            // operations.
            let wait = if is_renewing { SHORTEST } else { pause };
            let _elapsed = runtime::timeout(wait, self.events.stopping.notified()).await;
            if let Err(error) = self.erase_due(limit).await {
                tracing::warn!("erasing zones: {error}");
            }
            is_renewing = self.renew_resets().await.unwrap_or_else(|error| {
                tracing::warn!("resetting zones again: {error}");
                false
            });
            if self.erasure.counts_operations()
                && let Err(error) = self.grant_operations(limit).await
            {
                tracing::warn!("erasing zones: {error}");
            }
        }
    }

    /// Grants further operations once nothing is due within the next step, or after [`PATIENCE`].
    async fn grant_operations(self: &Rc<Self>, limit: Duration) -> Result<()> {
        let homes = self.peers.homes();
        let begin = runtime::now();
        while begin.elapsed() < PATIENCE && !self.kit.is_closing() && self.kit.failure().is_none() {
            let mut oldest: Option<Timestamp> = None;
            for home in &homes {
                let found = home.with(|core: Rc<Core>| async move { Ok(core.oldest_deletion()) }).await?;
                oldest = oldest.into_iter().chain(found).min();
            }
            let next = self.erasure.now() + 2 * self.erasure.step();
            let is_urgent = oldest
                .is_some_and(|oldest| oldest.saturating_add(self.erasure.time_of_tables()) <= next)
                || !self.erasure.due_within(Duration::from_millis(2 * self.erasure.step())).is_empty();
            if !is_urgent {
                break;
            }
            runtime::sleep(SHORTEST).await;
            self.erase_due(limit).await?;
        }
        self.erasure.grant();
        for home in homes {
            let wake = |core: Rc<Core>| async move {
                core.events.changed.notify_all();
                Ok(())
            };
            home.with(wake).await?;
        }
        Ok(())
    }

    /// Requests the next grant from the home once half of the present one is used.
    pub(crate) fn ask_for_operations(&self) {
        if self.erasure.must_ask() {
            let home = self.peers.at(0);
            let wake = |core: Rc<Core>| async move {
                core.events.stopping.notify_all();
                Ok(())
            };
            // This fails only if the store has failed; writers get that error.
            self.kit.tasks.spawn(async move { drop(home.with(wake).await) }).detach();
        }
    }

    /// Resets free zones again whose last reset had a weaker guarantee. Returns whether there were any.
    async fn renew_resets(self: &Rc<Self>) -> Result<bool> {
        let (weak, _) = self.erasure.weakly_reset();
        let most = self.kit.pool.free().saturating_sub(self.kept_zones()).div_ceil(2).min(MAX_RENEWED);
        let retired = weak.into_iter().filter(|zone| self.kit.pool.retire_free(*zone)).take(most as usize);
        Ok(retired.count() > 0 && reset::reset_dead(self).await?)
    }

    async fn erase_due(self: &Rc<Self>, limit: Duration) -> Result<()> {
        if_broken!(ForgetsZones, return Ok(()));
        let homes = self.peers.homes();
        let deletes = self.erasure.deletes();
        let mut oldest: Option<Timestamp> = None;
        for home in &homes {
            let look = move |core: Rc<Core>| async move {
                core.freeze_old(limit);
                Ok(core.oldest_outstanding())
            };
            oldest = oldest.into_iter().chain(home.with(look).await?).min();
        }
        if deletes == 0 {
            // A value may expire, or a deadline start, without any other activity.
            oldest.into_iter().for_each(|oldest| self.erasure.deleted(oldest));
            return Ok(());
        }
        self.erasure.looked(deletes, oldest);
        self.note_full_zones();
        let due = self.erasure.due_within(limit.mul_f64(EMPTY_BEFORE));
        if due.is_empty() {
            if oldest.is_none() && self.erasure.is_settled() {
                self.erasure.forget(deletes);
            }
            return Ok(());
        }
        let zones: Vec<(u32, u8)> =
            due.iter().map(|stale| (stale.zone, self.kit.pool.get(stale.zone).class)).collect();
        if zones.iter().any(|(_, class)| *class == CHECKPOINT_CLASS) {
            checkpoint::seal(&self.kit).await;
        }
        for home in &homes {
            let zones = zones.clone();
            home.with(move |core: Rc<Core>| async move { core.empty(&zones).await }).await?;
        }
        self.write_checkpoint(false).await?;
        reset::reset_dead(self).await?;
        Ok(())
    }

    /// Time of the oldest outstanding deletion: a tombstone or an expired value in a buffer or a table.
    fn oldest_outstanding(&self) -> Option<Timestamp> {
        let (now, wall) = (self.erasure.now(), crate::key_version::now());
        let of = |tombstone: Option<Timestamp>, expires: Option<Timestamp>| {
            let expired = expires.filter(|expires| *expires <= wall);
            let expired = expired.map(|expires| self.erasure.expiry(expires).unwrap_or(now));
            tombstone.map(|deleted| self.erasure.known(deleted)).into_iter().chain(expired).min()
        };
        let buffers =
            self.buffers.oldest(|memtable| of(memtable.oldest_tombstone(), memtable.earliest_expiry()));
        let levels = self.tables.levels();
        let summaries = levels.all().map(|table| &table.meta.summary);
        let tables =
            summaries.filter_map(|summary| of(summary.oldest_tombstone, summary.earliest_expiry)).min();
        buffers.into_iter().chain(tables).min()
    }

    /// Sets the due times of zones in which blocks of these tables become stale now
    /// ([`erasure`](crate::erasure)). The tables are still in the tree.
    pub(crate) fn set_dues<'a>(&self, levels: &Levels, tables: impl Iterator<Item = &'a Rc<Table>>) {
        let buffers = self.buffers.oldest(|memtable| self.oldest_in(memtable));
        let latest = buffers.into_iter().fold(self.erasure.now(), Timestamp::min);
        for table in tables {
            let overlapping = levels.all().filter(|other| other.overlaps(table));
            let deletes = overlapping.filter_map(|other| self.erasure.oldest_delete(&other.meta.summary));
            table.file.due.set(self.erasure.due_after(deletes.fold(latest, Timestamp::min)));
        }
    }

    /// Time of the oldest deletion in a buffer.
    fn oldest_in(&self, memtable: &Memtable) -> Option<Timestamp> {
        let expiry = memtable.earliest_expiry().and_then(|expires| self.erasure.expiry(expires));
        memtable.oldest_tombstone().into_iter().chain(expiry).min()
    }

    /// Time of the oldest deletion with a tombstone, in a buffer or a table, that no snapshot keeps.
    fn oldest_deletion(&self) -> Option<Timestamp> {
        let buffers = self.buffers.oldest(|memtable| self.oldest_in(memtable));
        let tables = self.with_tree(|tree| {
            let free = tree.levels.iter().flatten().filter(|table| !table.is_held);
            free.filter_map(|table| table.oldest_tombstone).min()
        });
        buffers.into_iter().chain(tables).min()
    }

    /// Freezes the active buffer if its oldest deletion has exceeded its share of the limit.
    fn freeze_old(&self, limit: Duration) {
        let oldest = self.oldest_in(&self.buffers.active().memtable);
        let most = limit.mul_f64(BUFFER_AFTER).as_millis() as u64;
        if oldest.is_some_and(|oldest| oldest.saturating_add(most) <= self.erasure.now()) {
            self.freeze();
        }
    }

    /// Notes zones with stale data of unknown age: an append to them failed, or they were full when the store
    /// was opened.
    fn note_full_zones(&self) {
        // The pool is locked while it selects, so what is known is looked up later.
        let suspects = self.kit.pool.select(|number, zone| match zone.usage {
            Usage::Full if zone.has_failed => Some((number, true)),
            Usage::Full if zone.live < zone.written => Some((number, false)),
            Usage::Damaged if zone.written > 0 => Some((number, true)),
            _ => None,
        });
        for (zone, is_certain) in suspects {
            if is_certain || !self.erasure.knows(zone) {
                self.erasure.stale(zone, None);
            }
        }
    }

    /// Moves this shard's live data out of zones, and seals zones that are open.
    async fn empty(self: &Rc<Self>, zones: &[(u32, u8)]) -> Result<()> {
        let is_in_log = zones.iter().any(|(zone, class)| *class == LOG && self.buffers.active().is_in(*zone));
        if is_in_log {
            self.freeze();
        }
        let of_log = zones.iter().filter(|(_, class)| *class == LOG).map(|(zone, _)| *zone);
        self.kit.seal_lanes(of_log);
        self.seal_zones(zones.iter().map(|(zone, _)| *zone)).await;
        for (zone, class) in zones.iter().filter(|(_, class)| *class != LOG && *class != CHECKPOINT_CLASS) {
            for file in self.tables.files() {
                let mut extents: Vec<Extent> = Vec::new();
                file.in_zone(*zone, |extent| extents.push(extent));
                for extent in extents {
                    // An error doesn't stop the other zones.
                    if let Err(error) = self.move_extent(&file, extent, *class).await {
                        tracing::warn!("emptying zone {zone}: {error}");
                    }
                }
            }
        }
        Ok(())
    }

    async fn move_extent(self: &Rc<Self>, file: &Rc<TableFile>, extent: Extent, class: u8) -> Result<()> {
        let block = self.kit.layout.block_bytes();
        let mut moved = 0;
        while moved < extent.blocks {
            let blocks = (extent.blocks - moved).min(MOVE_BLOCKS);
            let (first, from) = (extent.first + moved, extent.place.after(moved));
            moved += blocks;
            let is_there = file.place_of(first) == Some(from);
            if !is_there {
                continue;
            }
            let data = file
                .read(self.tables.reads(), u64::from(first) * block as u64, blocks as usize * block)
                .await?;
            let piece = KvEntry::piece(file.clone(), first, Some(from), data.freeze().into(), block);
            self.append_tables(class, vec![piece]).await?;
        }
        Ok(())
    }

    /// Notes an append to a zone before it is submitted.
    pub(crate) fn note_append(&self, zone: u32, generation: u64, has_edit: bool) {
        let class = self.kit.pool.get(zone).class;
        if self.erasure.limit().is_some() && (class == LOG || class == CHECKPOINT_CLASS || has_edit) {
            // Keys in the log are deleted after their append; edits and checkpoints may contain keys that
            // were deleted earlier.
            self.erasure.stale_in(zone, generation, class == LOG && !has_edit);
        }
    }
}
