//! Geometry of a device that grows while handles on it are open.

use crate::address::BlockCount;
use crate::error::{Error, Result};
use crate::geometry::DeviceGeometry;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Geometry whose number of blocks grows, shared by all shards. Earlier geometries live as long as this one,
/// so that references to them remain valid: a growth is requested by an operator, and rare.
#[derive(Debug)]
pub struct GrowingGeometry {
    geometry: DeviceGeometry,
    /// Geometry after the next growth.
    next: OnceLock<Box<GrowingGeometry>>,
    /// Whether a [`Growth`] from this geometry is in progress.
    is_growing: AtomicBool,
}

/// A growth in progress. No other growth can begin before it is dropped.
#[derive(Debug)]
pub struct Growth<'g> {
    last: &'g GrowingGeometry,
    blocks: BlockCount,
}

impl Growth<'_> {
    /// Makes the new blocks available. The medium must already have them.
    pub fn commit(self) {
        let geometry = DeviceGeometry { blocks: self.blocks, ..self.last.geometry.clone() };
        // Only this growth sets it, so it can't fail.
        let _ = self.last.next.set(Box::new(GrowingGeometry::new(geometry)));
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        self.last.is_growing.store(false, Ordering::Release);
    }
}

/// Most growths of one part from open to close: each makes finding the current geometry slower.
const MAX_GROWTHS: usize = 64;

impl GrowingGeometry {
    /// Returns a geometry that hasn't grown.
    pub fn new(geometry: DeviceGeometry) -> Self {
        GrowingGeometry { geometry, next: OnceLock::new(), is_growing: AtomicBool::new(false) }
    }

    /// Current geometry.
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

    /// Begins a growth to a number of blocks. A growth that is dropped has no effect.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there aren't more blocks than before; [`Error::Unsupported`] after 64 growths;
    /// [`Error::Busy`] during another growth.
    pub fn begin(&self, blocks: BlockCount) -> Result<Growth<'_>> {
        let last = self.last();
        let present = last.geometry.blocks;
        if blocks <= present {
            return Err(Error::invalid(format!(
                "resize: {} blocks; expected more than {}; a device can't shrink",
                blocks.0, present.0
            )));
        }
        let growths = std::iter::successors(Some(self), |one| one.next.get().map(|next| &**next)).count() - 1;
        if growths >= MAX_GROWTHS {
            return Err(Error::unsupported(format!(
                "resize: {growths} times since the stack was opened; expected at most {MAX_GROWTHS}; close and open the stack"
            )));
        }
        // A growth that was committed since `last` was read has given it a successor.
        if last.is_growing.swap(true, Ordering::AcqRel) || last.next.get().is_some() {
            return Err(Error::busy("resize: another one is in progress; repeat the message"));
        }
        Ok(Growth { last, blocks })
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
            let error = growing.begin(BlockCount(refused)).unwrap_err();
            assert!(
                matches!(error, Error::Invalid(_)) && error.to_string().contains("more than 8"),
                "{error}"
            );
        }
        let growth = growing.begin(BlockCount(9)).unwrap();
        assert!(matches!(growing.begin(BlockCount(10)), Err(Error::Busy(_))));
        drop(growth);
        assert_eq!(growing.get().blocks, BlockCount(8), "a growth that was dropped");
        growing.begin(BlockCount(9)).unwrap().commit();
        assert_eq!((before.blocks, growing.get().blocks), (BlockCount(8), BlockCount(9)));
        assert_eq!(*growing.get(), DeviceGeometry { blocks: BlockCount(9), ..geometry });
        (10..).take(MAX_GROWTHS - 1).for_each(|blocks| growing.begin(BlockCount(blocks)).unwrap().commit());
        assert!(matches!(growing.begin(BlockCount(1 << 20)), Err(Error::Unsupported(_))));
    }
}
