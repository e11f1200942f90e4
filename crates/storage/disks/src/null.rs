//! A device without contents: writes are accepted and discarded, reads return zeros. It shows the cost of the
//! layers above.

use crate::{SECTOR, queued, size};
use block::{
    BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Extent,
    ExtentState, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use stack::{Built, Contract, Key, Kind, Shape, ValueKind};
use std::rc::Rc;
use std::sync::Arc;

/// `null(size=1TiB)`.
pub const KIND: Kind = Kind {
    name: "null",
    contract: Contract::Device,
    summary: "accepts writes, keeps nothing, reads zeros; shows the cost of the layers above",
    keys: &[Key::optional("size", ValueKind::Size, "capacity").or("1TiB"), size::BLOCK_SIZE],
    messages: &[],
    metrics: &[],
    shareable: true,
    example: "stats(null(size=1GiB))",
    plan: |arguments| {
        let (bytes, block_size) = size::capacity(arguments)?;
        Ok(Shape::new(bytes, block_size.bytes() as u32))
    },
    build: |arguments| {
        Call::new(async move {
            let (bytes, block_size) = size::capacity(&arguments)?;
            Ok(Built::Device(Arc::new(NullPart::new(bytes, block_size))))
        })
    },
};

/// The part: its geometry.
pub struct NullPart {
    geometry: DeviceGeometry,
}

impl NullPart {
    /// Creates a device of `bytes` bytes, rounded down to whole blocks.
    pub fn new(bytes: u64, block_size: BlockSize) -> Self {
        let blocks = block::BlockCount(bytes >> block_size.shift());
        let geometry = DeviceGeometry {
            block_size,
            blocks,
            atomic_write: SECTOR,
            volatile_cache: false,
            read_only: false,
        };
        NullPart { geometry }
    }
}

impl Part for NullPart {
    fn kind(&self) -> &'static str {
        KIND.name
    }
}

impl DevicePart for NullPart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn keeps_flushed(&self) -> bool {
        false
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(Null { geometry: self.geometry.clone() }) as Rc<dyn Device>))
    }
}

struct Null {
    geometry: DeviceGeometry,
}

impl Device for Null {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        let checked = self.geometry.range(at, buffer.len()).map(drop);
        buffer.clear();
        if checked.is_ok() {
            buffer.append_zeroes(buffer.len());
        }
        queued((checked, buffer))
    }

    fn write(&self, at: BlockIndex, payload: Payload, _durability: Durability) -> Call<'_, Result<()>> {
        queued(self.geometry.range(at, payload.len()).map(drop))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        queued(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        queued(self.geometry.check(range))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _mode: ZeroMode,
        _durability: Durability,
    ) -> Call<'_, Result<()>> {
        queued(self.geometry.check(range))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let whole = vec![Extent { range, state: ExtentState::Hole }];
        let extents = if range.is_empty() { Vec::new() } else { whole };
        Call::ready(self.geometry.check(range).map(|()| extents))
    }
}
