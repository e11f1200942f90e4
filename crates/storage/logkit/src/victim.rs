//! The victim, the zone that is being cleaned: its records, and reads of its live data.

use crate::cleaning::{Candidate, ReadCost, read_plan};
use crate::kit::Kit;
use crate::record::sum_of;
use crate::scan::{self, Found};
use block::{Buffer, Data, Error, Result};
use std::ops::Range;

/// Default of [`Settings::read_request_bytes`](crate::Settings::read_request_bytes). Measured with fio
/// (randread, direct, iodepth=8, on a virtual SSD, 2026-11-21): 45 800 reads of 4 KiB or 1568 of 1 MiB per
/// second, so 19 µs per request and 2.5 µs per 4 KiB.
pub const READ_REQUEST_BYTES: u64 = 32 << 10;
/// Longest read of a victim, in bytes.
const MAX_READ: usize = 1 << 20;
/// Most reads of a victim in flight.
const READS: usize = 8;

/// Run of live blocks of the victim.
#[derive(Debug, Clone, Copy)]
pub struct Piece<N> {
    /// First block in the zone.
    pub position: u32,
    /// Number of blocks.
    pub count: u32,
    /// The owner's name of the data, as in the record.
    pub name: N,
    /// Number of blocks of the named data before the piece.
    pub offset: u32,
    /// Index of the record in the zone.
    pub record: usize,
    /// First data block of the piece in its record.
    pub first: u32,
}

impl<N: Copy> Piece<N> {
    /// Returns the part of the piece with `count` blocks after its first `from` blocks.
    #[must_use]
    pub fn part(&self, from: u32, count: u32) -> Self {
        Piece {
            position: self.position + from,
            count,
            name: self.name,
            offset: self.offset + from,
            record: self.record,
            first: self.first + from,
        }
    }
}

/// The zone that is being cleaned.
#[derive(Debug)]
pub struct Victim {
    zone: u32,
    class: u8,
    opened: u64,
    records: Vec<Found>,
}

impl Victim {
    /// The zone.
    pub fn zone(&self) -> u32 {
        self.zone
    }

    /// Class of the zone's records.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// Clock when the zone was opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Records of the zone.
    pub fn records(&self) -> &[Found] {
        &self.records
    }

    /// Reads the records of a zone.
    ///
    /// # Errors
    /// Errors of reading; [`Error::Invalid`] if the report lacks the zone.
    pub(crate) async fn find(kit: &Kit, candidate: &Candidate) -> Result<Self> {
        let zone = candidate.zone.0;
        let report = kit.zones.report(candidate.zone, 1).await?;
        let report = report
            .first()
            .ok_or_else(|| Error::invalid(format!("zone {zone}: missing in the report of the zones")))?;
        let scanned = scan::headers(&*kit.zones, &kit.layout, &kit.identity, report).await?;
        let Candidate { class, opened, .. } = *candidate;
        Ok(Victim { zone, class, opened, records: scanned.records })
    }

    /// Reads pieces, singly or together with the gaps between them, whichever is cheaper, and verifies every
    /// block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged block; errors of reading.
    pub(crate) async fn read<N: Copy>(
        &self,
        kit: &Kit,
        pieces: &[Piece<N>],
    ) -> Result<Vec<(Piece<N>, Data)>> {
        let block = kit.layout.block_bytes();
        let blocks_of = |piece: &Piece<N>| u64::from(piece.position)..u64::from(piece.position + piece.count);
        let plan = read_plan(pieces.iter().map(blocks_of), read_cost(kit.settings.read_request_bytes, block));
        let mut data: Vec<(Range<u64>, Data)> = Vec::with_capacity(plan.len());
        for requests in plan.chunks(READS) {
            let reads = requests.iter().map(|range| {
                let buffer = Buffer::new((range.end - range.start) as usize * block);
                kit.zones.read(kit.layout.address(self.zone, range.start as u32), buffer)
            });
            for (range, (outcome, buffer)) in requests.iter().zip(runtime::join_all(reads).await) {
                outcome?;
                data.push((range.clone(), buffer.freeze()));
            }
        }
        let mut found = Vec::with_capacity(pieces.len());
        let mut data = data.into_iter().peekable();
        for piece in pieces {
            let mut from = 0;
            while from < piece.count
                && let Some((range, bytes)) = data.peek()
            {
                let start = u64::from(piece.position + from);
                if start >= range.end {
                    data.next();
                    continue;
                }
                let end = blocks_of(piece).end.min(range.end);
                let part = piece.part(from, (end - start) as u32);
                let at = |position: u64| (position - range.start) as usize * block;
                let bytes = bytes.slice(at(start)..at(end));
                self.check(&part, &bytes, block)?;
                found.push((part, bytes));
                from += part.count;
            }
        }
        Ok(found)
    }

    /// Verifies every block of a piece.
    fn check<N>(&self, piece: &Piece<N>, bytes: &[u8], block: usize) -> Result<()> {
        let sums = &self.records[piece.record].sums[piece.first as usize..];
        for (number, (bytes, sum)) in bytes.chunks_exact(block).zip(sums).enumerate() {
            if sum_of(bytes) != *sum {
                return Err(Error::corrupt(format!(
                    "live data: wrong checksum: zone {}, block {} is damaged",
                    self.zone,
                    piece.position + number as u32
                )));
            }
        }
        Ok(())
    }
}

/// Returns the cost of reads of a victim, in blocks.
fn read_cost(request_bytes: u64, block: usize) -> ReadCost {
    let request = request_bytes / block as u64;
    ReadCost { request, largest_gap: request, largest_request: (MAX_READ / block).max(1) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths of the reads of a zone of 1024 blocks, one in `of` of which is live.
    fn reads(of: usize) -> Vec<u64> {
        reads_at_cost(READ_REQUEST_BYTES, of)
    }

    fn reads_at_cost(request_bytes: u64, of: usize) -> Vec<u64> {
        let live = (0..1024).step_by(of).map(|block| block..block + 1);
        read_plan(live, read_cost(request_bytes, 4096)).iter().map(|range| range.end - range.start).collect()
    }

    #[test]
    fn a_victim_is_read_whole_or_in_fragments_by_what_that_costs() {
        assert_eq!(reads(1), [256; 4], "all of it, in reads of 1 MiB");
        assert_eq!(reads(4).len(), 4, "gaps of 3 blocks are read through");
        assert_eq!(reads(9).len(), 4, "gaps of 8 cost as much as a request");
        assert_eq!(reads(10), [1; 103], "gaps of 9 cost more");
        assert_eq!(reads_at_cost(0, 2), [1; 512], "only live blocks");
        assert_eq!(reads_at_cost(u64::MAX, 100).len(), 4, "all of it");
    }
}
