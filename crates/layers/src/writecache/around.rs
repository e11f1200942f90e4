//! Writes that go straight to the origin: all of them in the mode `cleaner`, once nothing is cached any more, and with
//! `metadata_only` those of data.
//!
//! A block goes around the cache only while the cache knows nothing of it: not what is cached, nor what has been written back
//! but could be written back once more after a power cut, or by the older superblock if the newer one rots ([`Index::knows`]).
//! Everything else is cached, like any write of a block that is cached. So the origin never has something newer than the
//! cache of a block that both have.
//!
//! The other way round, a write that is cached may overtake one that went around and is still on its way to the origin. No
//! batch is written back before all those have ended that had begun before it, so that they can't land on it.
//!
//! [`Index::knows`]: super::index::Index::knows

use super::core::{Core, count};
use super::format::{Action, Entry};
use block::{BlockRange, Call, Durability, Payload, Result, ZeroMode};
use smallvec::SmallVec;
use std::rc::Rc;

/// A discard of more blocks than this is not cut into what is cached and what isn't: it is cached if any of it is.
const MOST_LOOKED_UP: u64 = 1 << 16;

/// Consecutive blocks, and whether the cache knows something of them.
type Part = (Entry, bool);

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

    /// A change that carries no metadata, where only metadata is cached: each part of it goes where it has to.
    pub fn change_data<'a>(
        self: &'a Rc<Self>,
        entry: Entry,
        payload: Payload,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        let parts = self.parts(entry);
        match parts.as_slice() {
            [(_, false)] => self.write_around(entry, payload, durability),
            [(_, true)] => Call::new(self.change_cached(entry, payload, durability)),
            _ => Call::new(async move {
                let changes = parts.into_iter().map(|(part, is_known)| {
                    let at = part.block - entry.block;
                    let payload = match part.action {
                        Action::Write => payload.slice(self.bytes_of(at)..self.bytes_of(at + part.count)),
                        Action::Discard | Action::Zero => Payload::new(),
                    };
                    match is_known {
                        true => Call::new(self.change_cached(part, payload, durability)),
                        false => self.write_around(part, payload, durability),
                    }
                });
                runtime::join_all(changes).await.into_iter().collect()
            }),
        }
    }

    /// The parts of a change that the cache knows something of, and those that it doesn't, in turn.
    fn parts(&self, entry: Entry) -> SmallVec<[Part; 2]> {
        let index = self.index.borrow();
        if index.is_empty() {
            return SmallVec::from_slice(&[(entry, false)]);
        }
        if entry.count > MOST_LOOKED_UP && entry.action != Action::Write {
            return SmallVec::from_slice(&[(entry, index.knows_any(entry.block, entry.count))]);
        }
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        for block in entry.block..entry.block + entry.count {
            let is_known = index.knows(block);
            match parts.last_mut() {
                Some((part, same)) if *same == is_known => part.count += 1,
                _ => parts.push((Entry { block, count: 1, ..entry }, is_known)),
            }
        }
        parts
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
