//! A device in memory that begins as an image, on which a stack is opened after a cut.
//!
//! Its memory depends on the blocks that are written, not on the device's size: the image is shared. It has
//! no faults of its own; put `record` or `fault` above it for those.

use super::image::Image;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Data, Device, DeviceGeometry, DevicePart, Durability, Part,
    Payload, ReadOutcome, Result, ZeroMode,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// A device that begins as an image.
pub struct ImageDisk {
    shared: Arc<Shared>,
}

struct Shared {
    geometry: DeviceGeometry,
    image: Option<Image>,
    /// Blocks that were written; `None` for zeros. Locked for the copy of one request.
    written: Mutex<BTreeMap<u64, Option<Data>>>,
}

impl ImageDisk {
    /// Creates a device of zeros.
    pub fn empty(geometry: DeviceGeometry) -> Self {
        ImageDisk::made(geometry, None)
    }

    /// Creates a device with this image and the geometry of the recorded device.
    pub fn new(image: Image) -> Self {
        ImageDisk::made(image.history().geometry().clone(), Some(image))
    }

    fn made(geometry: DeviceGeometry, image: Option<Image>) -> Self {
        ImageDisk { shared: Arc::new(Shared { geometry, image, written: Mutex::new(BTreeMap::new()) }) }
    }
}

impl Part for ImageDisk {
    fn kind(&self) -> &'static str {
        "image"
    }
}

impl DevicePart for ImageDisk {
    fn geometry(&self) -> &DeviceGeometry {
        &self.shared.geometry
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(Ok(Rc::new(Handle(self.shared.clone())) as Rc<dyn Device>))
    }
}

struct Handle(Arc<Shared>);

impl Handle {
    fn put(&self, range: BlockRange, mut data: impl FnMut(usize) -> Option<Data>) {
        let mut written = self.0.written.lock().unwrap_or_else(PoisonError::into_inner);
        for index in 0..range.count.0 {
            written.insert(range.start.0 + index, data(index as usize));
        }
    }

    fn zero(&self, range: BlockRange) -> Result<()> {
        self.0.geometry.check_writable()?;
        self.0.geometry.check(range)?;
        self.put(range, |_| None);
        Ok(())
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.0.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        Call::new(async move {
            buffer.clear();
            let range = match self.0.geometry.range(at, buffer.len()) {
                Ok(range) => range,
                Err(error) => return (Err(error), buffer),
            };
            let size = self.0.geometry.block_size;
            buffer.append_zeroes(buffer.len());
            if let Some(image) = &self.0.image {
                image.read(size.offset_of(range.start).0, buffer.filled_mut());
            }
            let written = self.0.written.lock().unwrap_or_else(PoisonError::into_inner);
            for (block, data) in written.range(range.start.0..range.end().0) {
                let from = size.offset_of(BlockIndex(block - range.start.0)).0 as usize;
                let place = &mut buffer.filled_mut()[from..from + size.bytes() as usize];
                match data {
                    Some(data) => place.copy_from_slice(data),
                    None => place.fill(0),
                }
            }
            (Ok(()), buffer)
        })
    }

    fn write(&self, at: BlockIndex, payload: Payload, _: Durability) -> Call<'_, Result<()>> {
        Call::new(async move {
            let range = self.0.geometry.writable_range(at, payload.len())?;
            let size = self.0.geometry.block_size.bytes() as usize;
            self.put(range, |index| Some(payload.slice(index * size..(index + 1) * size).to_data()));
            Ok(())
        })
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        Call::ready(Ok(()))
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        Call::new(async move { self.zero(range) })
    }

    fn write_zeroes(&self, range: BlockRange, _: ZeroMode, _: Durability) -> Call<'_, Result<()>> {
        Call::new(async move { self.zero(range) })
    }
}
