//! One of the two devices of a cache, and which of its changes a flush has covered. The epoch of a side
//! counts flushes that have begun.

use crate::table::Medium;
use block::{BlockRange, Buffer, Call, Durability, Extent, Payload, ReadOutcome, Result, ZeroMode};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// The origin or the fast device, on the home shard.
pub(crate) struct Side {
    medium: Rc<Medium>,
    now: Cell<u64>,
    flushed: Cell<u64>,
    changed: Cell<u64>,
}

impl Side {
    /// Begins without changes.
    pub fn new(medium: Rc<Medium>) -> Self {
        Side { medium, now: Cell::new(1), flushed: Cell::new(0), changed: Cell::new(0) }
    }

    /// Begins with changes of unknown number, which no flush covers: a process that was killed may have left
    /// them.
    pub fn unflushed(medium: Rc<Medium>) -> Self {
        let side = Side::new(medium);
        side.note();
        side
    }

    /// The device itself.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Notes a completed change. Returns its epoch.
    #[inline]
    pub fn note(&self) -> u64 {
        self.changed.set(self.now.get());
        self.now.get()
    }

    /// Returns the current epoch.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// Begins a flush. Returns the epoch that the flush covers.
    pub fn begin_flush(&self) -> u64 {
        self.now.replace(self.now.get() + 1)
    }

    /// Ends a flush that covers this epoch: flushes the device if it has changes, and notes that.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn end_flush(&self, began: u64) -> Result<()> {
        if self.is_dirty() {
            self.medium.flush().await?;
        }
        self.flushed.set(self.flushed.get().max(began));
        Ok(())
    }

    /// Whether a change is not covered by a flush yet.
    pub fn is_dirty(&self) -> bool {
        self.changed.get() > self.flushed.get()
    }

    /// Whether a flush has covered the changes of this epoch.
    pub fn covers(&self, epoch: u64) -> bool {
        epoch <= self.flushed.get()
    }

    /// Flushes the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn flush_now(&self) -> Result<()> {
        let began = self.begin_flush();
        self.medium.flush().await?;
        self.flushed.set(self.flushed.get().max(began));
        Ok(())
    }

    /// Flushes the device if it has changes that no flush covers.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn flush(&self) -> Result<()> {
        match self.is_dirty() {
            true => self.flush_now().await,
            false => Ok(()),
        }
    }

    #[inline]
    pub fn read(&self, offset: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.medium.read(offset, buffer)
    }

    /// Reads bytes.
    pub async fn bytes(&self, offset: u64, length: u64) -> Result<Buffer> {
        self.medium.bytes(offset, length).await
    }

    /// Writes bytes, and notes the change.
    pub async fn write(&self, offset: u64, payload: Payload, durability: Durability) -> Result<()> {
        let written = self.medium.write(offset, payload, durability).await;
        self.note();
        written
    }

    /// Writes zeros, and notes the change.
    pub async fn write_zeroes(
        &self,
        bytes: Range<u64>,
        mode: ZeroMode,
        durability: Durability,
    ) -> Result<()> {
        let length = bytes.end - bytes.start;
        let zeroed = self.medium.write_zeroes(bytes.start, length, mode, durability).await;
        self.note();
        zeroed
    }

    /// Returns the state of a range in blocks of 2 to the power of `shift` bytes.
    pub async fn extents(&self, range: BlockRange, shift: u32) -> Result<Vec<Extent>> {
        self.medium.extents(range, shift).await
    }
}
