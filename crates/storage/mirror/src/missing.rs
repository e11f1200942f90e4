//! Stand-ins for legs that can't be built or opened: all calls return the error.

use crate::KIND;
use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Error, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use runtime::LimitedPart;
use std::rc::Rc;
use std::sync::Arc;

/// Part of a leg that couldn't be built. Opening it returns the error of building it.
#[derive(Debug)]
pub struct MissingLeg {
    geometry: DeviceGeometry,
    error: Error,
}

impl MissingLeg {
    /// Creates the stand-in for a leg that couldn't be built because of this error.
    pub fn new(error: Error) -> Self {
        // A mirror takes the largest block size and the least atomic write of its legs; these values change
        // neither.
        let geometry = DeviceGeometry {
            block_size: BlockSize::new(u64::from(BlockSize::SMALLEST)).unwrap_or_default(),
            blocks: BlockCount(0),
            atomic_write: 1 << 31,
            volatile_cache: false,
            read_only: false,
        };
        MissingLeg { geometry, error }
    }
}

impl Part for MissingLeg {
    fn kind(&self) -> &'static str {
        KIND.name
    }
}

impl DevicePart for MissingLeg {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Err(self.error.clone()))
    }
}

/// Handle of a leg that can't be opened: all calls return the error.
struct MissingDevice {
    geometry: DeviceGeometry,
    error: Error,
}

/// Opens a leg within its time limit. If that fails, returns a stand-in and the error.
pub async fn open_leg(leg: &Arc<LimitedPart>) -> (Rc<dyn Device>, Option<Error>) {
    match leg.open().await {
        Ok(device) => (device, None),
        Err(error) => (stand_in(leg.part(), &error), Some(error)),
    }
}

/// Returns the stand-in for a leg that couldn't be opened because of this error.
pub fn stand_in(leg: &Arc<dyn DevicePart>, error: &Error) -> Rc<dyn Device> {
    Rc::new(MissingDevice { geometry: leg.geometry().clone(), error: error.clone() })
}

impl Device for MissingDevice {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, _at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        Call::ready((Err(self.error.clone()), buffer))
    }

    fn write(&self, _at: BlockIndex, _payload: Payload, _durability: Durability) -> Call<'_, Result<()>> {
        Call::ready(Err(self.error.clone()))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Err(self.error.clone()))
    }

    fn discard(&self, _range: BlockRange) -> Call<'_, Result<()>> {
        Call::ready(Err(self.error.clone()))
    }

    fn write_zeroes(
        &self,
        _range: BlockRange,
        _mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        Call::ready(Err(self.error.clone()))
    }
}
