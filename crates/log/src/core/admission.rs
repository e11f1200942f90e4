//! How a change gets in: room is set aside for it, it is queued, and whoever asked waits until it has committed.
//!
//! A change for which there is no room waits for what is on its way, or for a checkpoint if that can make room, before it
//! is refused. Left to others: writing what is queued (`lane.rs`), committing it (`commit.rs`), and what there is room for
//! (`room.rs`).

use super::{Acknowledge, Core, Item, Vec1};
use crate::format::Change;
use block::{Durability, Error, Payload, Result};
use runtime::RequestKey;
use runtime::sync::Permit;
use std::rc::Rc;
use logkit::cleaning::Arrival;

impl Core {
    /// Carries out changes of a version, data and all, and waits until they have committed; or, where writes are
    /// acknowledged from the buffer, until they are there. The blocks are in range.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where there is no room, [`Error::ReadOnly`] for a log that has failed.
    pub async fn change(
        self: &Rc<Self>,
        changes: Vec1,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        let blocks = (payload.len() >> self.layout.block_size.shift()) as u64;
        let wanted = blocks.min(self.settings.dirty_blocks) as usize;
        let mut room = match blocks {
            0 => Some(None),
            _ => self.dirty.try_acquire(wanted).map(Some),
        };
        if let Some(room) = &mut room {
            self.check_open()?;
            match self.admit(&changes) {
                Ok(Some(growth)) => {
                    return self.change_now(changes, payload, durability, (room.take(), growth)).await;
                }
                Err(error) if !self.checkpoint_may_help() => return Err(error),
                _ => {}
            }
        }
        // Whoever drops the call while it waits for room doesn't take the write back.
        let core = self.clone();
        let task = self.tasks.spawn(async move {
            let room = match room {
                Some(room) => room,
                None => Some(core.dirty.acquire(wanted).await),
            };
            let mut is_certain = false;
            let growth = loop {
                core.check_open()?;
                let settled = core.settled.notified();
                match core.admit(&changes) {
                    Ok(Some(growth)) => break growth,
                    Ok(None) => settled.await,
                    Err(_) if !is_certain && core.checkpoint_may_help() => {
                        is_certain = true;
                        core.take_checkpoint(false).await?;
                    }
                    Err(error) => return Err(error),
                }
            };
            core.change_now(changes, payload, durability, (room, growth)).await
        });
        task.await
    }

    /// Waits until no write is on its way, and keeps others waiting as long as this is held.
    pub async fn without_writes(&self) -> Permit {
        self.dirty.acquire(self.settings.dirty_blocks as usize).await
    }

    fn check_open(&self) -> Result<()> {
        match self.failure() {
            Some(error) => Err(error),
            None if self.is_closing.get() => Err(Error::closed("the log is closed")),
            None => self.space.check(),
        }
    }

    async fn change_now(
        self: &Rc<Self>,
        changes: Vec1,
        payload: Payload,
        durability: Durability,
        (room, growth): (Option<Permit>, u32),
    ) -> Result<()> {
        let has_data = !payload.is_empty();
        // What the device below may have no space for is not acknowledged before it is written.
        let buffers = self.settings.acknowledge == Acknowledge::Buffer && !self.space.is_doubtful();
        let request = self.submit(changes, payload, room, growth, buffers);
        let waiting = self.requests.wait(request);
        if buffers && has_data && durability == Durability::Visible {
            // The request goes on; reads find its data in the buffer.
            return Ok(());
        }
        waiting.await?;
        match durability {
            Durability::Visible => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }

    /// Queues changes for which there is room.
    fn submit(
        &self,
        changes: Vec1,
        mut payload: Payload,
        room: Option<Permit>,
        growth: u32,
        buffers: bool,
    ) -> RequestKey {
        let mut at = 0;
        let mut growth = Some(growth);
        let key = self.requests.begin(changes.len() as u32, room);
        let shift = self.layout.block_size.shift();
        for change in changes {
            let bytes = (change.data_blocks() as usize) << shift;
            let payload = match at == 0 && bytes == payload.len() {
                true => std::mem::take(&mut payload),
                false => payload.slice(at..at + bytes),
            };
            at += bytes;
            let class = self.class_of(&change);
            self.queued_items.set(self.queued_items.get() + 1);
            let ticket = match &change {
                Change::Write { version, block, .. } if buffers => {
                    self.buffer.insert(*version, *block, &payload, self.layout.block_bytes())
                }
                _ => 0,
            };
            let growth = growth.take().unwrap_or(0);
            let item = Item { change, payload, request: Some(key), growth, ticket };
            self.queues.borrow_mut()[usize::from(class)].push_back(item);
        }
        self.work.notify_one();
        key
    }

    /// Sets room aside for what the changes add, or says that there is none. None where that is to be seen: what is on
    /// its way has more room set aside than it may need, because what it overwrites isn't looked up while there is
    /// plenty.
    fn admit(&self, changes: &Vec1) -> Result<Option<u32>> {
        let mut growth: u64 = changes.iter().map(|change| u64::from(change.data_blocks())).sum();
        if growth == 0 {
            return Ok(Some(0));
        }
        let (live, growing) = (self.table.live_data(), self.growing.get());
        if live + growing + growth > self.capacity(growing + growth) {
            let versions = self.versions.borrow();
            growth = changes
                .iter()
                .map(|change| match change {
                    Change::Write { version, block, count } => versions
                        .position(*version)
                        .map_or(0, |position| versions.growth(position, *block, u64::from(*count))),
                    _ => 0,
                })
                .sum();
            drop(versions);
            let has_room = growth == 0 || live + growing + growth <= self.capacity(growing + growth);
            if !has_room && growing > 0 && live + growth <= self.capacity(growth) {
                return Ok(None);
            }
            if !has_room {
                return Err(Error::no_space(format!(
                    "the log holds {live} blocks of data and has room for {}: discard some, delete snapshots, or grow \
                     the disk",
                    self.capacity(growth)
                )));
            }
        }
        self.growing.set(growing + growth);
        Ok(Some(growth as u32))
    }

    fn class_of(&self, change: &Change) -> u8 {
        let policy = self.policy.borrow();
        let arrival = match change {
            // What was acknowledged must be numbered in the order in which it was: one queue for all.
            _ if self.settings.acknowledge == Acknowledge::Buffer => Arrival::New,
            Change::Write { version, block, .. } => {
                let versions = self.versions.borrow();
                let old = versions.get(*version).map(|version| version.map.lookup(*block));
                match old.filter(|old| old.is_mapped()) {
                    Some(old) => {
                        let zone = self.table.get(self.layout.place(old).0);
                        Arrival::Overwrite {
                            age: self.clock.get().saturating_sub(zone.opened),
                            class: zone.class,
                        }
                    }
                    None => Arrival::New,
                }
            }
            _ => Arrival::New,
        };
        policy.place(arrival)
    }
}
