//! Reserves of free zones for operations that free space, so that a full store can be emptied.
//!
//! In this order, each of these leaves more free zones than the one before: edits of the manifest, flushes
//! and the purge of a table (`reclaim`), deletes, compactions, and all other writes. So a store that refuses
//! puts still accepts deletes, can write them as tables, and can drop the deleted data.
//! Each step has zones for all shards. Puts also leave what flushes of all writes in memory take, or the
//! purge of the largest table: a flush that has no space would keep the zones of the log for ever.
//!
//! A compaction claims the zones that it may fill before it begins, so that concurrent compactions of several
//! shards don't exhaust the zones together.

use crate::core::Core;
use block::{Error, Fullness, Result};
use logkit::Owner;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest wait of a put in a full store while space is reclaimed.
const PUT_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait of a delete in a full store for zones of the log.
const DELETE_PATIENCE: Duration = Duration::from_secs(30);
/// Interval of checks of a full store.
const LOOK: Duration = Duration::from_millis(20);

/// Number of free zones reserved for the cleaner and the operations before puts, in addition to those of a
/// checkpoint.
pub(crate) fn cleaner_reserve(shards: u16) -> u32 {
    1 + 4 * u32::from(shards)
}

/// Zones that a job has claimed; released on drop.
pub(crate) struct Claim {
    core: Rc<Core>,
    zones: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.core.peers.space.claimed.fetch_sub(self.zones, Ordering::AcqRel);
    }
}

impl Core {
    fn kept(&self, steps: u32) -> u32 {
        self.checkpoint_zones() + steps * u32::from(self.peers.shards)
    }

    /// Number of free zones that flushes and purges leave.
    pub(crate) fn kept_by_flushes(&self) -> u32 {
        self.kept(1)
    }

    /// Number of free zones that deletes leave.
    pub(crate) fn kept_by_deletes(&self) -> u32 {
        self.kept(2)
    }

    /// Number of free zones that compactions leave.
    pub(crate) fn kept_by_compactions(&self) -> u32 {
        self.kept(3)
    }

    /// Number of zones that puts leave in addition: flushes of all writes in memory take them, and records of
    /// those that aren't in the log yet; or else the purge of the largest table. A flush frees zones of the
    /// log, so one after the other fits.
    pub(crate) fn zones_of_jobs(&self) -> u32 {
        let space = &self.peers.space;
        (space.unwritten_bytes().max(space.largest_table()) / self.table_bytes_of_zone()) as u32
    }

    /// Bytes of tables that fit a zone.
    fn table_bytes_of_zone(&self) -> u64 {
        let layout = &self.kit.layout;
        (u64::from(layout.data_blocks(crate::log_entry::MAX_META)) * layout.block_size.bytes()).max(1)
    }

    /// Whether so few zones are free that puts wait, or will wait soon.
    pub(crate) fn is_low(&self) -> bool {
        self.kit.pool.free() <= self.kept_zones() + u32::from(self.peers.shards)
    }

    /// Freezes the active buffer if puts of any shard wait because of the writes in memory, and this shard
    /// has a share of these.
    pub(crate) fn freeze_for_puts(&self) {
        let bytes = self.buffers.active().memtable.bytes() as u64 * u64::from(self.peers.shards);
        if bytes >= self.table_bytes_of_zone() && self.kit.pool.free() <= self.kept_zones() {
            self.freeze_for_space();
        }
    }

    /// Live data of tables and of the log, in the zones that puts may fill. Deleted and overwritten values
    /// are live until a compaction has met them.
    ///
    /// Zones aren't filled to their last block: tables end before it, and zones that are nearly full aren't
    /// worth cleaning. The limit assumes that four fifths of a zone can be filled, or as much as is filled
    /// now if that is more. While puts are refused it is what is used.
    pub(crate) fn fullness(&self) -> Fullness {
        let (pool, layout) = (&self.kit.pool, &self.kit.layout);
        let block = layout.block_size.bytes();
        let zone = self.table_bytes_of_zone();
        let good = pool.zones().saturating_sub(pool.damaged());
        let usable = u64::from(good.saturating_sub(self.kept_zones()).max(1));
        let filled = u64::from(good.saturating_sub(pool.free()).max(1));
        let used = pool.live_data() * block;
        let limit = (usable * zone * 4 / 5).max(used / filled * usable).min(usable * zone);
        let refuses_puts = self.kit.is_stuck() && pool.free() <= self.kept_zones();
        Fullness {
            resource: "space",
            used_bytes: used,
            limit_bytes: if refuses_puts { limit.min(used) } else { limit },
            can_fill: self.tables.lost().is_none(),
            remedy: "delete some keys, compact the store (siltstone kv compact), or copy it to larger storage",
        }
    }

    /// Claims the zones of a job that writes up to `bytes` bytes; `None` if they aren't free.
    pub(crate) fn claim(self: &Rc<Self>, bytes: u64) -> Option<Claim> {
        let zones = bytes.div_ceil(self.table_bytes_of_zone()) as u32 + 1;
        let claimed = &self.peers.space.claimed;
        let before = claimed.fetch_add(zones, Ordering::AcqRel);
        let claim = Claim { core: self.clone(), zones };
        (self.kit.pool.free() >= self.kept_by_compactions().saturating_add(before).saturating_add(zones))
            .then_some(claim)
    }

    /// Notes that this shard has nothing to reclaim until its next write.
    pub(crate) fn note_exhausted(&self) {
        if self.buffers.is_empty() || self.buffers.error.borrow().is_some() {
            self.peers.space.exhausted.fetch_or(1 << self.peers.shard, Ordering::AcqRel);
        }
    }

    /// Notes that this shard may have space to reclaim.
    pub(crate) fn may_be_reclaimed(&self) {
        let bit = 1 << self.peers.shard;
        if self.peers.space.exhausted.load(Ordering::Acquire) & bit != 0 {
            self.peers.space.exhausted.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Whether no shard has anything to reclaim.
    fn is_exhausted(&self) -> bool {
        let all = (1_u64 << self.peers.shards) - 1;
        u64::from(self.peers.space.exhausted.load(Ordering::Acquire)) & all == all
    }

    /// Waits until more zones are free than puts of `bytes` bytes must leave. All shards and the cleaner
    /// count these bytes until the next note of this shard. Bytes of refused puts count up to a zone: the
    /// store is full for others also, but a large put that doesn't fit refuses no small ones.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if none can be freed.
    pub(crate) async fn admit_puts(&self, bytes: usize) -> Result<()> {
        let admitted = self.wait_for_zones_of_puts(bytes).await;
        if admitted.is_err() {
            self.note_unwritten(bytes.min(self.table_bytes_of_zone() as usize));
        }
        admitted
    }

    async fn wait_for_zones_of_puts(&self, bytes: usize) -> Result<()> {
        let begin = runtime::now();
        let must_wait = || {
            self.note_unwritten(bytes);
            self.kit.pool.free() <= self.kept_zones()
        };
        while must_wait() {
            self.check_open()?;
            self.freeze_for_puts();
            let is_over = begin.elapsed() >= PUT_PATIENCE;
            match self.kit.stuck() {
                Some(error) if is_over || self.is_exhausted() => return Err(error),
                None if is_over => {
                    return Err(Error::no_space("the store has no free zone for puts; delete some keys"));
                }
                _ => {}
            }
            if self.kit.is_stuck() {
                // The cleaner has no work here, and waking it would only wake this loop again.
                runtime::sleep(LOOK).await;
                continue;
            }
            let freed = self.kit.events.freed.notified();
            self.kit.events.cleaner.notify_all();
            let _woken = runtime::timeout(LOOK, freed).await;
        }
        Ok(())
    }

    /// Retries `write` while the log has no free zone, as long as space is reclaimed. A flush of earlier
    /// deletes frees zones for later ones.
    ///
    /// # Errors
    /// Errors of `write`; [`Error::NoSpace`] if nothing can be reclaimed in time.
    pub(crate) async fn until_there_is_space<T>(
        self: &Rc<Self>,
        frees: bool,
        write: impl AsyncFn() -> Result<T>,
    ) -> Result<T> {
        let begin = runtime::now();
        let patience = if frees { DELETE_PATIENCE } else { PUT_PATIENCE };
        loop {
            match write().await {
                Err(Error::NoSpace(_)) if begin.elapsed() < patience && (frees || !self.is_exhausted()) => {
                    self.check_open()?;
                    if frees {
                        self.freeze_for_space();
                    }
                    self.kit.look_again();
                    runtime::sleep(LOOK).await;
                }
                outcome => return outcome,
            }
        }
    }
}
