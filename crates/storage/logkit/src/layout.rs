//! The division of zones into blocks.

use crate::{record, summary};
use block::{BlockSize, Durable, Error, Result, ZoneAddress, ZoneGeometry};

/// Number of zones that hold roots: zones 0 and 1.
pub const ROOT_ZONES: u32 = 2;
/// Smallest size of a zone in blocks with which a log works.
pub const MIN_ZONE: u32 = 7;

/// Size and number of blocks and zones. A block is the unit of records: a header takes one, data whole ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Number of blocks that a zone takes.
    pub zone_blocks: u32,
    /// Number of zones.
    pub zones: u32,
    /// Most blocks of an append, header included.
    pub max_append: u32,
}

impl Layout {
    /// Divides these zones into blocks of this size.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for zones that are durable only on finish, where a flush would end partly
    /// written zones; [`Error::Invalid`] for a block size that doesn't fit the zones, and for zones that are
    /// too small.
    pub fn new(geometry: &ZoneGeometry, block_size: BlockSize) -> Result<Self> {
        if geometry.durable == Durable::OnFinish {
            return Err(Error::unsupported(
                "its zones are durable only when they are finished; expected zones whose appends are durable at once or on \
                 flush, such as zones(file(disk.img))",
            ));
        }
        let unit = u64::from(geometry.append_granularity.max(geometry.read_granularity));
        if !block_size.bytes().is_multiple_of(unit) || block_size.bytes() < 4096 {
            return Err(Error::invalid(format!(
                "block_size {block_size}: expected a multiple of {unit}, the unit of the zones, and at least 4096"
            )));
        }
        let shift = block_size.shift();
        let zone_blocks = (geometry.zone_capacity >> shift).min(u64::from(u32::MAX)) as u32;
        let max_append = (geometry.max_append >> shift).min(u64::from(zone_blocks)) as u32;
        if zone_blocks < MIN_ZONE || max_append < 2 {
            return Err(Error::invalid(format!(
                "zones of {} bytes with appends of up to {}; expected zones of at least {MIN_ZONE} blocks of {block_size} \
                 bytes, and appends of 2 blocks",
                geometry.zone_capacity, geometry.max_append
            )));
        }
        Ok(Layout { block_size, zone_blocks, zones: geometry.zones, max_append })
    }

    /// Number of blocks, from the start, whose space is reserved below in a backed zone
    /// ([`space`](crate::space)). The last eighth isn't reserved, since it is seldom written in a zone that
    /// is filled by records.
    pub fn backed_blocks(&self) -> u32 {
        self.zone_blocks - self.zone_blocks / 8
    }

    /// Number of blocks of all zones.
    pub fn blocks(&self) -> u64 {
        u64::from(self.zones) * u64::from(self.zone_blocks)
    }

    /// Most blocks of a record whose entries have one block and `meta` bytes of meta each.
    pub fn record_blocks(&self, meta: usize) -> u32 {
        let space = self.block_bytes() - record::FIXED - record::LINK;
        ((space / (4 + meta)) as u32).min(self.max_append - 1)
    }

    /// Number of data blocks, headers and summary subtracted, that always fit a zone which the cleaner fills
    /// with entries of one block and `meta` bytes of meta each.
    pub fn data_blocks(&self, meta: usize) -> u32 {
        // Records end where a batch does, so even a small zone has several.
        let single = u64::from(self.record_blocks(meta).min((self.zone_blocks / 4).max(1)));
        let header =
            |blocks: u64| record::LINK + record::Header::length(blocks as usize, blocks as usize * meta);
        let fits = |data: u64| {
            let (full, rest) = (data / single, data % single);
            let records = full + u64::from(rest > 0);
            let bytes =
                full * (header(single) as u64 + 8) + if rest > 0 { header(rest) as u64 + 8 } else { 0 };
            let summary = (bytes + summary::TRAILER as u64).div_ceil(self.block_size.bytes());
            data + records + summary <= u64::from(self.zone_blocks)
        };
        let (mut low, mut high) = (0, u64::from(self.zone_blocks));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        low as u32
    }

    /// Whether an empty zone fits a record with `blocks` data blocks and a header of `header` bytes, and the
    /// summary.
    #[inline]
    pub fn takes(&self, blocks: u32, header: usize) -> bool {
        let summary = summary::Builder::default().blocks_with(header, self.block_bytes()) as u64;
        header <= self.block_bytes()
            && blocks < self.max_append
            && 1 + u64::from(blocks) + summary <= u64::from(self.zone_blocks)
    }

    /// Size of a block in bytes.
    #[inline]
    pub fn block_bytes(&self) -> usize {
        self.block_size.bytes() as usize
    }

    /// Number of blocks that `bytes` bytes take.
    #[inline]
    pub fn blocks_in(&self, bytes: u64) -> u64 {
        bytes >> self.block_size.shift()
    }

    /// Address of a block of a zone.
    #[inline]
    pub fn address(&self, zone: u32, position: u32) -> ZoneAddress {
        ZoneAddress::new(zone, u64::from(position) << self.block_size.shift())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::EraseGuarantee;

    #[test]
    fn zones_that_a_flush_would_finish_are_refused() {
        let zones = |durable| ZoneGeometry {
            zones: 64,
            zone_size: 1 << 20,
            zone_capacity: 1 << 20,
            append_granularity: 4096,
            read_granularity: 4096,
            max_append: 256 << 10,
            max_open: 0,
            max_active: 0,
            durable,
            erase: EraseGuarantee::None,
        };
        let divide = |durable| Layout::new(&zones(durable), BlockSize::new(4096).unwrap());
        let refused = divide(Durable::OnFinish).unwrap_err().to_string();
        assert!(refused.contains("durable only when they are finished; expected zones"), "{refused}");
        assert_eq!(divide(Durable::OnFlush).unwrap().zone_blocks, 256);
        assert_eq!(divide(Durable::OnAppend), divide(Durable::OnFlush));
    }
}
