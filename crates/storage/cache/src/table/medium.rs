//! A device handle that is addressed in bytes.

use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, Durability, Extent, Payload, ReadOutcome,
    Result, ZeroMode,
};
use std::rc::Rc;

/// A handle of the home shard. Offsets and lengths are multiples of its block size.
pub(crate) struct Medium {
    device: Rc<dyn Device>,
    shift: u32,
}

impl Medium {
    pub fn new(device: Rc<dyn Device>) -> Self {
        let shift = device.geometry().block_size.shift();
        Medium { device, shift }
    }

    pub fn geometry(&self) -> &DeviceGeometry {
        self.device.geometry()
    }

    fn range(&self, offset: u64, length: u64) -> BlockRange {
        BlockRange::new(offset >> self.shift, length >> self.shift)
    }

    #[inline]
    pub fn read(&self, offset: u64, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.device.read(BlockIndex(offset >> self.shift), buffer)
    }

    #[inline]
    pub fn write(&self, offset: u64, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        self.device.write(BlockIndex(offset >> self.shift), payload, durability)
    }

    /// Returns the state of a range in blocks of 2 to the power of `shift` bytes, which aren't smaller than
    /// the device's.
    pub async fn extents(&self, range: BlockRange, shift: u32) -> Result<Vec<Extent>> {
        let below = self.range(range.start.0 << shift, range.count.0 << shift);
        let found = self.device.extents(below).await?;
        Ok(block::extents::in_blocks(range, below.start.0, shift - self.shift, &found))
    }

    pub fn flush(&self) -> Call<'_, Result<()>> {
        self.device.flush()
    }

    pub fn discard(&self, offset: u64, length: u64) -> Call<'_, Result<()>> {
        self.device.discard(self.range(offset, length))
    }

    pub fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.device.write_zeroes(self.range(offset, length), mode, durability)
    }

    /// Reads `length` bytes.
    pub async fn bytes(&self, offset: u64, length: u64) -> Result<Buffer> {
        let (outcome, buffer) = self.read(offset, Buffer::new(length as usize)).await;
        outcome.map(|()| buffer)
    }
}
