//! Checksums of the data blocks of one zone, for owners that verify reads. They are noted when records are
//! written ([`Owner::note_sums`](crate::Owner::note_sums)), or read from the medium.

use crate::layout::Layout;
use crate::record::Identity;
use crate::scan;
use block::{Error, Result, ZoneReport, Zones};

/// The data blocks of a record.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Block of the zone that holds the first data block.
    position: u32,
    /// Index of the first block's checksum.
    first: u32,
}

/// Checksums of the data blocks of a zone, by block of the zone, in 4 bytes per block and 8 per record.
#[derive(Debug, Clone, Default)]
pub struct ZoneSums {
    zone: u32,
    /// Sorted by position.
    runs: Vec<Run>,
    sums: Vec<u32>,
}

impl ZoneSums {
    /// Creates the checksums of a zone without records.
    pub fn new(zone: u32) -> Self {
        ZoneSums { zone, ..ZoneSums::default() }
    }

    /// Adds the checksums of a record that follows all others, with its first data block at `position`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the record overlaps or precedes another.
    pub fn push(&mut self, position: u32, sums: &[u32]) -> Result<()> {
        let end_of = |run: &Run| run.position as usize + self.sums.len() - run.first as usize;
        let end = self.runs.last().map_or(0, end_of);
        if (position as usize) < end {
            return Err(Error::corrupt(format!(
                "zone {}: a record has its data at block {position}; expected block {end} or later",
                self.zone
            )));
        }
        if !sums.is_empty() {
            self.runs.push(Run { position, first: self.sums.len() as u32 });
            self.sums.extend_from_slice(sums);
        }
        Ok(())
    }

    /// Returns the checksum of the data block at `position`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a block that isn't data of any record.
    pub fn of(&self, position: u32) -> Result<u32> {
        let found = self.runs.partition_point(|run| run.position <= position).checked_sub(1);
        let found = found.and_then(|at| {
            let run = self.runs[at];
            let end = self.runs.get(at + 1).map_or(self.sums.len(), |next| next.first as usize);
            let index = run.first as usize + (position - run.position) as usize;
            (index < end).then(|| self.sums[index])
        });
        found.ok_or_else(|| {
            Error::corrupt(format!(
                "zone {}, block {position}: no record has this data block; its header is damaged or missing",
                self.zone
            ))
        })
    }

    /// Returns all data blocks with their checksums, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let ends = self.runs.iter().skip(1).map(|run| run.first as usize).chain([self.sums.len()]);
        self.runs
            .iter()
            .zip(ends)
            .flat_map(|(run, end)| (run.position..).zip(self.sums[run.first as usize..end].iter().copied()))
    }

    /// Number of data blocks.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether the zone has no data blocks.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

/// Reads the checksums of all data blocks of a zone of this log: from its summary if it is full, otherwise
/// from each header. The data isn't verified. A zone without a summary is read completely.
///
/// # Errors
/// Errors of [`scan::visit`].
pub async fn read(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    report: &ZoneReport,
) -> Result<ZoneSums> {
    let mut sums = ZoneSums::new(report.zone.0);
    scan::visit(zones, layout, identity, report, |found| sums.push(found.header.position + 1, &found.sums))
        .await?;
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_between_records_have_no_checksum() {
        let mut sums = ZoneSums::new(3);
        assert!(sums.of(0).is_err() && sums.is_empty());
        for (position, of_record) in [(1, &[10, 11][..]), (4, &[]), (5, &[12]), (7, &[13, 14, 15])] {
            sums.push(position, of_record).expect("it is after the others");
        }
        let all = [(1, 10), (2, 11), (5, 12), (7, 13), (8, 14), (9, 15)];
        assert_eq!((sums.iter().collect::<Vec<_>>(), sums.len()), (all.to_vec(), 6));
        for position in 0..12 {
            let expected = all.iter().find(|(at, _)| *at == position).map(|(_, sum)| *sum);
            assert_eq!(sums.of(position).ok(), expected, "block {position}");
        }
        assert!(sums.of(6).expect_err("a header").detail().contains("zone 3, block 6"));
        let error = sums.push(9, &[1]).expect_err("it overlaps");
        assert!(error.detail().contains("zone 3") && error.detail().contains("block 10 or later"), "{error}");
        assert!(sums.push(10, &[16]).is_ok());
    }
}
