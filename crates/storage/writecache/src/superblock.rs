//! The superblock in memory, and its writer.
//!
//! Copy `sequence % 2` is written, so the other copy stays valid even if the write fails. The superblock in
//! memory changes when the write has succeeded. One writer at a time: write-back, or the close after it.

use crate::format::Superblock;
use crate::log::Position;
use crate::ring::Ring;
use crate::scan::Expect;
use block::{Device, Durability, Result};
use std::cell::Cell;
use std::rc::Rc;
use zones::record::Identity;

/// The superblock that was written last.
pub struct Superblocks {
    device: Rc<dyn Device>,
    ring: Ring,
    identity: Identity,
    /// Number of the epoch from this open to the next.
    epoch: u64,
    origin_blocks: u64,
    current: Cell<Superblock>,
}

impl Superblocks {
    /// Continues from the superblock that opening wrote.
    pub fn new(device: Rc<dyn Device>, ring: Ring, current: Superblock) -> Self {
        let Superblock { identity, epoch, origin_blocks, .. } = current;
        Superblocks { device, ring, identity, epoch, origin_blocks, current: Cell::new(current) }
    }

    /// Identity of the cache.
    #[inline]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Number of the epoch from this open to the next.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Properties of the cache against which a record's header is checked.
    pub fn expect(&self) -> Expect<'_> {
        Expect { identity: &self.identity, origin_blocks: self.origin_blocks }
    }

    /// Writes the superblock over the older copy, durably, with this number of the last durable record.
    ///
    /// # Errors
    /// Errors of the cache device.
    pub async fn write(&self, durable_record: u64) -> Result<()> {
        self.write_changed(durable_record, |_| {}).await
    }

    /// Writes the superblock over the older copy, durably, with this tail.
    ///
    /// # Errors
    /// Errors of the cache device.
    pub async fn write_tail(&self, durable_record: u64, tail: Position) -> Result<()> {
        let set = |new: &mut Superblock| (new.tail, new.tail_record) = (tail.address, tail.record);
        self.write_changed(durable_record, set).await
    }

    async fn write_changed(&self, durable_record: u64, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut new = self.current.get();
        new.sequence += 1;
        new.durable = new.durable.max(durable_record);
        change(&mut new);
        let place = self.ring.superblock(new.sequence);
        let written = self.device.write(place, new.encode(), Durability::Durable).await;
        written.map_err(|error| error.in_context("writing a superblock of the write cache"))?;
        self.current.set(new);
        Ok(())
    }
}
