//! Writes that go straight to the origin, in the mode `cleaner`.
//!
//! They do so once the cache is drained: every record has been written back, and both superblocks say so durably. An older tail
//! would write an older version back over them after a power cut, or when the newer superblock rots. Until then writes are
//! cached, or wait while the last batch is written back.
//!
//! A write that waited for free space when the cache was drained is still cached, and may overtake a write to the same
//! block that is in flight around the cache. Write-back of a batch therefore waits for the writes in flight around the cache that
//! began before the batch.

use super::core::{Core, count};
use super::format::{Action, Entry};
use block::{BlockRange, Call, Durability, Payload, Result, ZeroMode};
use std::rc::Rc;

impl Core {
    /// Whether a write goes straight to the origin because nothing new is cached; waits while the last of what is cached is
    /// written back, which would never end if more were added.
    ///
    /// # Errors
    /// What keeps write-back from getting on.
    pub async fn goes_around(&self) -> Result<bool> {
        loop {
            // It may have failed while this waited: nobody takes what is queued then.
            self.check_open()?;
            if self.is_drained() && self.sealed.get() {
                return Ok(true);
            }
            if self.used() > self.settings.batch {
                return Ok(false);
            }
            if let Some(error) = &*self.stuck.borrow() {
                return Err(error.clone());
            }
            self.writeback.notify_all();
            self.freed.notified().await;
        }
    }

    /// Whether everything is on the origin.
    pub fn is_drained(&self) -> bool {
        self.index.borrow().is_empty()
            && self.used() == 0
            && self.queue.borrow().is_empty()
            && self.pending.borrow().is_empty()
    }

    /// A change goes straight to the origin. From its first poll on it is carried to its end.
    pub fn write_around<'a>(
        self: &Rc<Self>,
        entry: Entry,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let core = self.clone();
        runtime::carry_in(&self.tasks, async move {
            let _on_its_way = core.writers_around.begin();
            let block = core.on_origin(entry.block);
            let range = BlockRange::new(block.0, entry.count << core.origin_shift);
            count(&core.counters.writes_around, entry.count);
            core.note_use_of_origin();
            let outcome = match entry.action {
                Action::Write => core.origin.write(block, payload, durability).await,
                Action::Discard => core.origin.discard(range).await,
                Action::Zero => core.origin.write_zeroes(range, ZeroMode::KeepAllocated, durability).await,
            };
            core.around.set(core.around.get() + 1);
            match (outcome, entry.action, durability) {
                (Ok(()), Action::Discard, Durability::Durable) => core.origin.flush().await,
                (outcome, ..) => outcome,
            }
        })
    }

    /// Write-back may have to wait for clients that use the origin.
    #[inline]
    pub fn note_use_of_origin(&self) {
        if !self.settings.pause.is_zero() {
            self.origin_used.set(Some(runtime::now()));
        }
    }

    /// What went around the cache is durable on the origin when this returns.
    ///
    /// # Errors
    /// Of the origin.
    pub async fn flush_around(&self) -> Result<()> {
        let around = self.around.get();
        if self.around_flushed.get() < around {
            self.origin.flush().await?;
            self.around_flushed.set(self.around_flushed.get().max(around));
        }
        Ok(())
    }
}
