//! The staging area: bytes between the headers and zone 0 that are overwritten in place. The volume doesn't
//! know their format.

use super::volume::{Volume, overwrite_with_zeros};
use block::{BlockRange, Buffer, CachedBytes, Call, Device, Result, Staging};
use std::rc::Rc;
use std::sync::Arc;

/// The area, through the device's handle of one shard.
pub(super) struct StagingArea {
    pub(super) device: Rc<dyn Device>,
    pub(super) volume: Arc<Volume>,
    pub(super) range: BlockRange,
}

impl Staging for StagingArea {
    fn bytes(&self) -> u64 {
        self.device.geometry().block_size.bytes_of(self.range.count)
    }

    fn read(&self) -> Call<'_, Result<Buffer>> {
        Call::new(async move {
            let (result, buffer) =
                self.device.read(self.range.start, Buffer::new(self.bytes() as usize)).await;
            result.map(|()| buffer).map_err(|error| error.in_context("reading the staging area of the zones"))
        })
    }

    fn erase(&self) -> Call<'_, Result<()>> {
        let (device, volume, range) = (self.device.clone(), self.volume.clone(), self.range);
        runtime::carry(async move {
            volume.check_writable()?;
            overwrite_with_zeros(&*device, range).await?;
            device.flush().await
        })
    }

    fn open_cached(&self) -> Option<Box<dyn CachedBytes>> {
        self.volume.check_writable().ok()?;
        self.device.open_cached(self.range)
    }
}
