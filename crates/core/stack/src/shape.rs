//! Shape of a part: capacity and geometry, as far as they are known before the part is opened.

use block::{BlockCount, BlockSize, DeviceGeometry, Result, ZoneGeometry};

/// Properties of a part that are known before it is opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shape {
    /// Capacity in bytes; `None` if it is known only after opening.
    pub bytes: Option<u64>,
    /// Block size in bytes; `None` if it is known only after opening, and for zones and doors.
    pub block_size: Option<u32>,
    /// Geometry of zones; `None` if it is known only after opening, and for devices and doors. Zones whose
    /// appends are durable at once may be declared durable on flush if only opening can show that.
    pub zones: Option<ZoneGeometry>,
}

impl Shape {
    /// Creates a shape with known capacity and block size.
    pub const fn new(bytes: u64, block_size: u32) -> Self {
        Shape { bytes: Some(bytes), block_size: Some(block_size), zones: None }
    }

    /// Creates the shape of zones with this geometry.
    pub fn of_zones(geometry: ZoneGeometry) -> Self {
        Shape { bytes: Some(geometry.capacity()), block_size: None, zones: Some(geometry) }
    }

    /// Returns the block size of a device over devices of these shapes, the largest of theirs; `None` while
    /// one is unknown.
    pub fn largest_block(shapes: &[Shape]) -> Option<u32> {
        let sizes: Option<Vec<u32>> = shapes.iter().map(|shape| shape.block_size).collect();
        sizes.and_then(|sizes| sizes.into_iter().max())
    }

    /// Returns the geometry of a device of this shape, to plan a part on it: writable, with a volatile cache,
    /// with writes of one block that aren't torn. `None` if capacity or block size are known only after
    /// opening.
    ///
    /// # Errors
    /// [`Error::Invalid`](block::Error::Invalid) for a block size out of range.
    pub fn device(&self) -> Result<Option<DeviceGeometry>> {
        let (Some(bytes), Some(block_size)) = (self.bytes, self.block_size) else { return Ok(None) };
        let size = BlockSize::new(block_size.into())?;
        Ok(Some(DeviceGeometry {
            block_size: size,
            blocks: BlockCount(bytes >> size.shift()),
            atomic_write: block_size,
            volatile_cache: true,
            read_only: false,
        }))
    }
}
