//! A device in memory that begins as an image, on which a stack is opened after a cut.
//!
//! Its memory depends on the blocks that are written, not on the device's size: the image is shared. It has
//! no faults of its own; put `record` or `fault` above it for those.

use super::image::Image;
use block::{
    BlockIndex, BlockRange, Buffer, CachedBytes, Call, Data, Device, DeviceGeometry, DevicePart, Durability,
    Error, Part, Payload, ReadOutcome, Result, ZeroMode,
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

    /// Creates a device with the present contents of this one. Both share the data of these blocks, so its
    /// cost depends only on their number.
    pub fn copy(&self) -> Self {
        let Shared { geometry, image, written } = &*self.shared;
        let written = written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let shared =
            Shared { geometry: geometry.clone(), image: image.clone(), written: Mutex::new(written) };
        ImageDisk { shared: Arc::new(shared) }
    }
}

impl Shared {
    /// Reads blocks into `bytes`, which are zeros.
    fn read(&self, range: BlockRange, bytes: &mut [u8]) {
        let size = self.geometry.block_size;
        if let Some(image) = &self.image {
            image.read(size.offset_of(range.start).0, bytes);
        }
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for (block, data) in written.range(range.start.0..range.end().0) {
            let from = size.offset_of(BlockIndex(block - range.start.0)).0 as usize;
            let place = &mut bytes[from..from + size.bytes() as usize];
            match data {
                Some(data) => place.copy_from_slice(data),
                None => place.fill(0),
            }
        }
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
            buffer.append_zeroes(buffer.len());
            self.0.read(range, buffer.filled_mut());
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

    fn open_cached(&self, range: BlockRange) -> Option<Box<dyn CachedBytes>> {
        self.0.geometry.check(range).ok()?;
        Some(Box::new(Bytes { disk: Handle(self.0.clone()), range }))
    }
}

/// Bytes of a range of the disk.
struct Bytes {
    disk: Handle,
    range: BlockRange,
}

impl Bytes {
    /// Blocks that have `length` bytes at `offset` of the range, and the offset in the first of them.
    fn blocks(&self, offset: u64, length: usize) -> Result<(BlockRange, usize)> {
        let size = self.disk.0.geometry.block_size;
        let end = offset.checked_add(length as u64).filter(|end| *end <= size.bytes_of(self.range.count));
        let end = end.ok_or_else(|| Error::invalid(format!("{length} bytes at {offset} of a range")))?;
        let (first, last) = (offset >> size.shift(), end.div_ceil(size.bytes()));
        let blocks = BlockRange::new(self.range.start.0 + first, last - first);
        Ok((blocks, (offset - (first << size.shift())) as usize))
    }

    fn contents(&self, blocks: BlockRange) -> Vec<u8> {
        let size = self.disk.0.geometry.block_size;
        let mut bytes = vec![0; size.bytes_of(blocks.count) as usize];
        self.disk.0.read(blocks, &mut bytes);
        bytes
    }
}

impl CachedBytes for Bytes {
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let (blocks, from) = self.blocks(offset, bytes.len())?;
        bytes.copy_from_slice(&self.contents(blocks)[from..from + bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.disk.0.geometry.check_writable()?;
        let (blocks, from) = self.blocks(offset, bytes.len())?;
        let mut contents = self.contents(blocks);
        contents[from..from + bytes.len()].copy_from_slice(bytes);
        let size = self.disk.0.geometry.block_size.bytes() as usize;
        self.disk.put(blocks, |index| Some(Data::copy_of(&contents[index * size..(index + 1) * size])));
        Ok(())
    }
}
