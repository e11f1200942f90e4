//! The superblock: two copies, of which the newer one is valid. A write replaces the older one.

use crate::core::Core;
use crate::format::Superblock;
use crate::layout::{Layout, superblock_distance};
use block::{BlockIndex, Buffer, Device, Durability, Error, Result};
use zones::sector;

/// Reads both copies.
async fn read_copies(fast: &dyn Device) -> Result<Buffer> {
    let bytes = 2 * superblock_distance(fast.geometry().block_size.bytes()) as usize;
    let whole = fast.geometry().range(BlockIndex(0), bytes);
    whole.map_err(|error| error.in_context("the fast device is too small for a write cache of zones"))?;
    let (outcome, buffer) = fast.read(BlockIndex(0), Buffer::new(bytes)).await;
    outcome.map_err(|error| error.in_context("reading the superblocks of the write cache of zones"))?;
    Ok(buffer)
}

/// Decodes the newer of the two copies.
fn newest(copies: &[u8]) -> Result<Superblock> {
    let (first, second) = copies.split_at(copies.len() / 2);
    let decoded = [first, second].map(Superblock::decode);
    sector::newest(decoded, |superblock| superblock.sequence).map_err(|error| match error {
        Error::NotFound(_) => Error::not_found(format!(
            "the fast device holds {}; expected a write cache of zones; if its last contents are lost, set new_fast=true and \
             give an empty device: the origin keeps its state",
            sector::describe(copies)
        )),
        other => other,
    })
}

/// Reads the newer of the two copies.
///
/// # Errors
/// Errors of the fast device; [`Error::NotFound`] for one without a cache; [`Error::Corrupt`] and
/// [`Error::Protocol`] for a damaged superblock and another version.
pub async fn read(fast: &dyn Device) -> Result<Superblock> {
    newest(read_copies(fast).await?.filled())
}

/// Whether the fast device begins with zeros, where the superblocks of a cache are.
///
/// # Errors
/// As those of [`read`], but for a device without a cache.
pub async fn is_empty(fast: &dyn Device) -> Result<bool> {
    let copies = read_copies(fast).await?;
    match newest(copies.filled()) {
        Ok(_) => Ok(false),
        Err(Error::NotFound(_)) => Ok(copies.filled().iter().all(|byte| *byte == 0)),
        Err(error) => Err(error),
    }
}

/// Writes a superblock over the copy that its sequence number names, durably.
///
/// # Errors
/// Errors of the fast device.
pub async fn write(fast: &dyn Device, layout: &Layout, superblock: &Superblock) -> Result<()> {
    let block = layout.superblock(superblock.sequence);
    let written = fast.write(block, superblock.encode(), Durability::Durable).await;
    written.map_err(|error| error.in_context("writing a superblock of the write cache of zones"))
}

impl Core {
    /// Writes the superblock with a change over the older copy, durably.
    ///
    /// # Errors
    /// Errors of the fast device.
    pub async fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut new = self.superblock.get();
        new.sequence += 1;
        new.durable = new.durable.max(self.log.durable());
        change(&mut new);
        write(&*self.fast, &self.layout, &new).await?;
        self.superblock.set(new);
        Ok(())
    }
}
