//! A device in memory that begins as an image: what a stack is opened on again after a cut.
//!
//! It costs what is read and written, not what the device is large: an image is shared, and only blocks that were written
//! since are kept. It loses nothing itself; put `record` or `fault` above it for more.

use super::image::Image;
use block::{
    BlockIndex, BlockRange, Buffer, Call, Data, Device, DeviceGeometry, DevicePart, Durability, Part,
    Payload, ReadOutcome, Result, ZeroMode,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// The device.
pub struct ImageDisk {
    shared: Arc<Shared>,
}

struct Shared {
    geometry: DeviceGeometry,
    image: Option<Image>,
    /// Blocks that were written since; none is zeros. The lock is held for the copying of one request.
    written: Mutex<BTreeMap<u64, Option<Data>>>,
}

impl ImageDisk {
    /// A device of zeros.
    pub fn empty(geometry: DeviceGeometry) -> Self {
        ImageDisk::made(geometry, None)
    }

    /// A device that holds this image and has the geometry of the device that was recorded.
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
