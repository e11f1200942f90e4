//! A zone that is being written: one append at a time, so that each record knows its place before it is written; and
//! its summary at the end.

use crate::layout::Layout;
use block::{Buffer, Error, Payload, Result, ZoneIndex, Zones};
use logkit::record::{Header, Identity};
use logkit::summary::{Builder, Place};

/// A zone with room, and what was written to it.
#[derive(Debug)]
pub struct OpenZone {
    /// Which.
    pub zone: u32,
    /// How many times it had been reset.
    pub generation: u64,
    /// Under which class it is written.
    pub class: u8,
    /// The next block.
    pub position: u32,
    /// Number of blocks that it takes.
    pub capacity: u32,
    summary: Builder,
}

impl OpenZone {
    /// An empty one.
    pub fn new(zone: u32, generation: u64, class: u8, capacity: u32, mut summary: Builder) -> Self {
        summary.clear();
        OpenZone { zone, generation, class, position: 0, capacity, summary }
    }

    /// Whether a record with so many data blocks and bytes of meta can be appended here: its header fits a block, all of
    /// it an append, and the zone has room for it and for the summary behind it.
    pub fn takes(&self, layout: &Layout, blocks: u32, meta: usize) -> bool {
        let header = Header::length(blocks as usize, meta);
        let summary = self.summary.blocks_with(header, layout.block_bytes()) as u32;
        header <= layout.block_bytes()
            && blocks < layout.max_append
            && self.position + 1 + blocks + summary <= self.capacity
    }

    /// How many data blocks, of at most `wanted`, a record can have here whose meta takes `meta(blocks)` bytes, which
    /// doesn't shrink as blocks are added; 0 where not even one fits.
    pub fn room(&self, layout: &Layout, wanted: u32, meta: impl Fn(u32) -> usize) -> u32 {
        let (mut low, mut high) = (0, wanted.min(layout.zone_blocks));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.takes(layout, middle, meta(middle)) { low = middle } else { high = middle - 1 }
        }
        low
    }

    /// Appends a record whose header is the first `header` bytes of the payload, and counts it.
    ///
    /// # Errors
    /// What appending says. The zone must not be appended to afterwards.
    pub async fn append(
        &mut self,
        zones: &dyn Zones,
        layout: &Layout,
        header: &[u8],
        payload: Payload,
    ) -> Result<()> {
        let blocks = (payload.len() >> layout.block_size.shift()) as u32;
        let landed = zones.append(ZoneIndex(self.zone), payload).await?;
        if landed != layout.address(self.zone, self.position) {
            return Err(Error::io(format!(
                "a record landed at {landed}, expected block {} of zone {}: somebody else writes to it",
                self.position, self.zone
            )));
        }
        self.position += blocks;
        self.summary.push(header);
        Ok(())
    }

    /// Writes the summary and finishes the zone: what is in it is durable then. Returns how many blocks were written
    /// in all, and the memory of the summary to be used again.
    ///
    /// # Errors
    /// What appending and finishing say.
    pub async fn seal(
        self,
        zones: &dyn Zones,
        layout: &Layout,
        identity: &Identity,
    ) -> Result<(u32, Builder)> {
        let block = layout.block_bytes();
        let blocks = self.summary.blocks_with(0, block);
        let mut buffer = Buffer::zeroed(blocks * block);
        let place = Place { zone: self.zone, generation: self.generation, position: self.position };
        self.summary.encode(place, identity, block, buffer.filled_mut());
        let payload = Payload::from(buffer);
        // A long summary takes several appends; one at a time, they land behind each other.
        let most = layout.max_append as usize * block;
        let mut from = 0;
        while from < payload.len() {
            let to = (from + most).min(payload.len());
            zones.append(ZoneIndex(self.zone), payload.slice(from..to)).await?;
            from = to;
        }
        zones.finish(ZoneIndex(self.zone)).await?;
        Ok((self.position + blocks as u32, self.summary))
    }
}
