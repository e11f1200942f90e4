//! A disk in memory with a volatile cache. A power cut loses everything that isn't durable: the worst case
//! that a disk may show.

use block::{
    BlockCount, BlockIndex, BlockRange, BlockSize, Buffer, Call, Device, DeviceGeometry, DevicePart,
    Durability, Extent, ExtentState, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A disk in memory with a volatile cache; clones are the same disk.
#[derive(Debug, Clone)]
pub struct VolatileDisk {
    geometry: DeviceGeometry,
    contents: Arc<Mutex<Contents>>,
}

#[derive(Debug)]
struct Contents {
    /// Contents that reads return.
    seen: Vec<u8>,
    /// Contents after a power cut.
    durable: Vec<u8>,
}

impl VolatileDisk {
    /// Creates a disk with `blocks` zeroed blocks of `block_size`.
    pub fn new(blocks: u64, block_size: BlockSize) -> Self {
        let geometry = DeviceGeometry {
            block_size,
            blocks: BlockCount(blocks),
            atomic_write: BlockSize::SMALLEST,
            volatile_cache: true,
            read_only: false,
        };
        let zeros = vec![0; geometry.bytes() as usize];
        let contents = Contents { seen: zeros.clone(), durable: zeros };
        VolatileDisk { geometry, contents: Arc::new(Mutex::new(contents)) }
    }

    /// Loses everything that isn't durable.
    pub fn cut_power(&self) {
        let contents = &mut *self.contents();
        contents.seen.copy_from_slice(&contents.durable);
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // Nothing panics while it is held.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self, range: BlockRange) -> Range<usize> {
        let offset = |block| self.geometry.block_size.offset_of(block).0 as usize;
        offset(range.start)..offset(range.end())
    }

    fn change(
        &self,
        range: Result<BlockRange>,
        durability: Durability,
        fill: impl FnOnce(&mut [u8]),
    ) -> Call<'_, Result<()>> {
        Call::ready(range.map(|range| {
            let (bytes, contents) = (self.bytes(range), &mut *self.contents());
            fill(&mut contents.seen[bytes.clone()]);
            if durability == Durability::Durable {
                contents.durable[bytes.clone()].copy_from_slice(&contents.seen[bytes]);
            }
        }))
    }

    fn make_durable(&self) {
        let contents = &mut *self.contents();
        contents.durable.copy_from_slice(&contents.seen);
    }

    fn checked(&self, range: BlockRange) -> Result<BlockRange> {
        self.geometry.check(range).map(|()| range)
    }
}

impl Part for VolatileDisk {
    fn kind(&self) -> &'static str {
        "volatile-disk"
    }

    fn close(&self) -> Call<'_, Result<()>> {
        self.make_durable();
        Call::ready(Ok(()))
    }
}

impl DevicePart for VolatileDisk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(self.clone())))
    }
}

impl Device for VolatileDisk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        buffer.clear();
        let range = self.geometry.range(at, buffer.len());
        let outcome = range.map(|range| buffer.append(&self.contents().seen[self.bytes(range)]));
        Call::ready((outcome, buffer))
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        let range = self.geometry.range(at, payload.len());
        self.change(range, durability, |bytes| bytes.copy_from_slice(&payload.to_data()))
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.make_durable();
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.change(self.checked(range), Durability::Visible, |bytes| bytes.fill(0))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        _mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.change(self.checked(range), durability, |bytes| bytes.fill(0))
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let extents = |range: BlockRange| match range.is_empty() {
            true => Vec::new(),
            false => vec![Extent { range, state: ExtentState::Data }],
        };
        Call::ready(self.checked(range).map(extents))
    }
}
