//! Geometry of a device that grows while handles on it are open.

use crate::address::BlockCount;
use crate::error::{Error, Result};
use crate::geometry::DeviceGeometry;
use std::sync::OnceLock;

/// Geometry whose number of blocks grows, seen by all shards. Earlier geometries live as long as this does, so that references to
/// them stay valid: a growth is an operator's, and rare.
#[derive(Debug)]
pub struct GrowingGeometry {
    geometry: DeviceGeometry,
    /// Geometry after the next growth.
    next: OnceLock<Box<GrowingGeometry>>,
}

/// Limit of the growths of one part from open to close: each makes finding the present geometry slower.
const MOST_GROWTHS: usize = 64;

impl GrowingGeometry {
    /// Returns a geometry that hasn't grown.
    pub fn new(geometry: DeviceGeometry) -> Self {
        GrowingGeometry { geometry, next: OnceLock::new() }
    }

    /// Present geometry.
    #[inline]
    pub fn get(&self) -> &DeviceGeometry {
        &self.last().geometry
    }

    #[inline]
    fn last(&self) -> &GrowingGeometry {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// Checks that the device may grow to a number of blocks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there aren't more blocks than before; [`Error::Unsupported`] after 64 growths.
    pub fn check(&self, blocks: BlockCount) -> Result<()> {
        let present = self.get().blocks;
        if blocks <= present {
            return Err(Error::invalid(format!(
                "{} blocks; expected more than {}: a device grows, and never shrinks",
                blocks.0, present.0
            )));
        }
        let growths = std::iter::successors(Some(self), |one| one.next.get().map(|next| &**next)).count() - 1;
        match growths < MOST_GROWTHS {
            true => Ok(()),
            false => Err(Error::unsupported(format!(
                "it has grown {growths} times since it was opened; expected at most {MOST_GROWTHS}; open it again"
            ))),
        }
    }

    /// Makes further blocks available, which the medium has.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); [`Error::Busy`] if it grows at the same time.
    pub fn grow(&self, blocks: BlockCount) -> Result<()> {
        self.check(blocks)?;
        let last = self.last();
        let next = GrowingGeometry::new(DeviceGeometry { blocks, ..last.geometry.clone() });
        last.next.set(Box::new(next)).map_err(|_| Error::busy("another growth came first; repeat it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::BlockSize;

    #[test]
    fn it_grows_and_never_shrinks_and_references_stay() {
        let blocks = BlockCount(8);
        let block_size = BlockSize::default();
        let geometry =
            DeviceGeometry { block_size, blocks, atomic_write: 512, volatile_cache: true, read_only: false };
        let growing = GrowingGeometry::new(geometry.clone());
        let before = growing.get();
        for refused in [0, 7, 8] {
            let error = growing.grow(BlockCount(refused)).unwrap_err();
            assert!(
                matches!(error, Error::Invalid(_)) && error.to_string().contains("more than 8"),
                "{error}"
            );
        }
        growing.grow(BlockCount(9)).unwrap();
        assert_eq!((before.blocks, growing.get().blocks), (BlockCount(8), BlockCount(9)));
        assert_eq!(*growing.get(), DeviceGeometry { blocks: BlockCount(9), ..geometry });
        (10..).take(MOST_GROWTHS - 1).for_each(|blocks| growing.grow(BlockCount(blocks)).unwrap());
        assert!(matches!(growing.grow(BlockCount(1 << 20)), Err(Error::Unsupported(_))));
    }
}
