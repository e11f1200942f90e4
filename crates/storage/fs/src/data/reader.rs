//! Reads of blocks of the medium, compared with their checksums.

use crate::data::checksums::{Sums, sums_in};
use crate::metadata::extents::{Extent, GONE};
use crate::metadata::inode::InodeNumber;
use block::{Buffer, Data, Error, Result, ZoneBlock, ZoneIndex};
use logkit::Kit;
use logkit::pool::Usage;
use logkit::readers::ShardReads;
use logkit::record::sum_of;
use runtime::sync::Semaphore;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Reader of a shard, with the checksums that it knows.
pub(crate) struct Reader {
    kit: Rc<Kit>,
    /// Reads in progress: a zone isn't reset while reads that began before are in progress.
    pub reads: Arc<ShardReads>,
    sums: RefCell<Sums>,
    /// Permits for reads of checksums from zones.
    loading: Rc<Semaphore>,
}

impl Reader {
    /// Returns a reader that knows no checksums, and remembers about `sums_bytes` bytes of them.
    pub fn new(kit: Rc<Kit>, sums_bytes: u64) -> Self {
        Reader {
            reads: kit.readers.here(),
            sums: RefCell::new(Sums::new(kit.layout.zone_blocks, sums_bytes)),
            loading: Semaphore::new(2),
            kit,
        }
    }

    /// Notes the checksums of blocks that were written to a zone.
    pub fn note_sums(&self, zone: u32, position: u32, sums: &[u32]) {
        let mut known = self.sums.borrow_mut();
        known.note(zone, position, sums);
        known.shrink(|zone| self.is_being_written(zone));
    }

    /// Whether a zone is still written: its checksums can't be read from it yet.
    fn is_being_written(&self, zone: u32) -> bool {
        self.kit.pool.get(zone).usage == Usage::Open
    }

    /// Reads and verifies an extent.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for data with a wrong checksum; errors of reading.
    pub async fn read_extent(&self, inode: InodeNumber, extent: &Extent) -> Result<Data> {
        let layout = &self.kit.layout;
        if !extent.is_within(layout) {
            return Err(gone(inode, extent, "the zone was reset, or there is no such zone"));
        }
        let buffer = Buffer::new(extent.blocks as usize * layout.block_bytes());
        let (outcome, buffer) =
            self.kit.zones.read(layout.address(extent.place.zone.0, extent.place.block), buffer).await;
        outcome.map_err(|error| match error {
            // The zone ends before these blocks.
            Error::Invalid(detail) => gone(inode, extent, &detail),
            error => error,
        })?;
        let sums = self.sums_of(extent.place.zone.0).await?;
        let expected = &sums[extent.place.block as usize..][..extent.blocks as usize];
        let wrong = buffer.filled().chunks_exact(layout.block_bytes()).zip(expected);
        let wrong = wrong.map(|(block, sum)| sum_of(block) == *sum).position(|is_right| !is_right);
        match wrong {
            None => Ok(buffer.freeze()),
            Some(number) => Err(Error::corrupt(format!(
                "inode {inode}, block {}: wrong checksum in {}",
                extent.block + number as u64,
                extent.place.after(number as u32)
            ))),
        }
    }

    /// Returns the checksums of a zone.
    async fn sums_of(&self, zone: u32) -> Result<Rc<Vec<u32>>> {
        if let Some(sums) = self.sums.borrow_mut().get(zone) {
            return Ok(sums);
        }
        let _permit = self.loading.acquire(1).await;
        if let Some(sums) = self.sums.borrow_mut().get(zone) {
            return Ok(sums);
        }
        let (zones, layout) = (&*self.kit.zones, &self.kit.layout);
        let report = zones.report(ZoneIndex(zone), 1).await?;
        let report = report
            .first()
            .ok_or_else(|| Error::io(format!("zone {zone}: missing in the report of the zones")))?;
        let sums = Rc::new(sums_in(zones, layout, &self.kit.identity, report).await?);
        let mut known = self.sums.borrow_mut();
        known.insert(zone, sums.clone());
        known.shrink(|zone| self.is_being_written(zone));
        Ok(sums)
    }
}

/// Error for blocks that aren't in their zone.
#[cold]
fn gone(inode: InodeNumber, extent: &Extent, detail: &str) -> Error {
    Error::io(format!(
        "inode {inode}, block {}: {} blocks in {} are gone: {detail}",
        extent.block,
        extent.blocks,
        ZoneBlock::new(extent.place.zone.0 & !GONE, extent.place.block)
    ))
}
