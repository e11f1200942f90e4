//! The first steps of an open mirror: the bitmap is loaded, and the decisions of opening are recorded.

use super::Core;
use crate::assembly::Assembly;
use crate::format::{BITMAP_BITS, BITMAP_BYTES, RECORD, decode_bitmap, draw_uuid};
use crate::leg::each;
use block::Result;

impl Core {
    /// Loads the bitmap: a chunk is dirty if its bit is set in any leg's bitmap, or if no leg has a valid
    /// sector with its bit.
    pub async fn load_bitmap(&self, assembly: &Assembly) -> Result<()> {
        let page = self.page_bytes() as u64;
        let sectors = page / RECORD as u64;
        for number in 0..self.chunks.pages() {
            let mut bits: Vec<Option<[u8; BITMAP_BYTES]>> = vec![None; sectors as usize];
            for leg in each(assembly.bitmaps) {
                let offset = self.setup.layout.bitmap_offset + number * page;
                let buffer = match self.legs[leg].device.read_own(offset, page).await {
                    Ok(buffer) => buffer,
                    Err(error) => {
                        tracing::warn!(
                            "mirror {}: bitmap of leg {}: {error}",
                            self.setup.array,
                            self.legs[leg].name
                        );
                        continue;
                    }
                };
                for (place, bytes) in bits.iter_mut().zip(buffer.filled().chunks(RECORD)).enumerate() {
                    let (bits, bytes) = bytes;
                    match decode_bitmap(bytes, self.setup.array, (number * sectors) as u32 + place as u32) {
                        Ok(found) => {
                            let all = bits.get_or_insert([0; BITMAP_BYTES]);
                            all.iter_mut().zip(found).for_each(|(all, found)| *all |= found);
                        }
                        Err(error) => {
                            tracing::warn!(
                                "mirror {}: leg {}: {error}",
                                self.setup.array,
                                self.legs[leg].name
                            );
                        }
                    }
                }
            }
            for (place, bits) in bits.iter().enumerate() {
                let first = (number * sectors + place as u64) * BITMAP_BITS;
                for bit in 0..BITMAP_BITS.min(self.chunks.len().saturating_sub(first)) {
                    let is_set = bits.is_none_or(|bits| bits[bit as usize / 8] >> (bit % 8) & 1 == 1);
                    if is_set {
                        self.chunks.found(first + bit);
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the decisions on all members, and marks the chunks to copy.
    pub async fn begin(&self, assembly: &Assembly) -> Result<()> {
        if assembly.lack_all != 0 {
            self.chunks.request_all();
            for leg in each(assembly.lack_all) {
                self.legs[leg].device.wipe().await?;
                if let Some(slot) = self.legs[leg].slot.get() {
                    self.members.set_leg(slot, draw_uuid());
                }
            }
        }
        if self.members.active().count_ones() > 1 {
            self.chunks.dirty_differ();
        }
        if self.members.rebuilding() != 0 {
            self.chunks.dirty_lacking();
        }
        self.publish();
        // Writes the whole bitmap to all legs that keep one, then the superblocks.
        self.write_superblocks().await?;
        self.publish();
        Ok(())
    }
}
