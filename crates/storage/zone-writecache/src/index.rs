//! Location in the log of the data of zones: everything that isn't at the origin, and uploaded data that
//! hasn't been overwritten in the ring.

use crate::format::{Action, Entry};
use block::{ZoneAddress, ZoneIndex};
use std::collections::{BTreeMap, VecDeque};

/// Limit of the extents, which bounds the memory of the index: twice the pending appends.
const MAX_EXTENTS: usize = 2 * crate::pending::MAX_PENDING;

#[derive(Debug, Clone, Copy)]
struct Extent {
    length: u64,
    /// Address of the data in the log.
    address: u64,
}

/// A part of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Number of bytes.
    pub length: u64,
    /// Address in the log; `None` for data that only the origin has.
    pub address: Option<u64>,
}

/// Extents by their address in the zones and by their age.
#[derive(Debug, Default)]
pub struct Index {
    extents: BTreeMap<ZoneAddress, Extent>,
    /// Extents in the order of the log, removed ones included.
    by_age: VecDeque<(u64, ZoneAddress)>,
}

impl Index {
    /// Applies an operation of the log, whose data is at address `data`.
    pub fn apply(&mut self, entry: &Entry, data: u64) {
        match entry.action {
            Action::Append => self.insert(ZoneAddress::new(entry.zone.0, entry.offset), entry.length(), data),
            Action::Reset => self.forget_zone(entry.zone),
            _ => {}
        }
    }

    /// Adds appended data; its address in the log is after those of all others.
    fn insert(&mut self, at: ZoneAddress, length: u64, address: u64) {
        self.extents.insert(at, Extent { length, address });
        self.by_age.push_back((address, at));
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Removes the extents before this address of the log, and the oldest ones before `durable`, which are
    /// at the origin, while there are too many.
    pub fn forget_before(&mut self, address: u64, durable: u64) {
        while let Some((oldest, at)) = self.by_age.front().copied() {
            let is_surplus = self.by_age.len() > MAX_EXTENTS && oldest < durable;
            if oldest >= address && !is_surplus {
                break;
            }
            self.by_age.pop_front();
            // A later generation of the zone may have another extent there.
            if self.extents.get(&at).is_some_and(|extent| extent.address == oldest) {
                self.extents.remove(&at);
            }
        }
    }

    /// Removes the extents of a zone, which was reset.
    fn forget_zone(&mut self, zone: ZoneIndex) {
        let whole = ZoneAddress::new(zone.0, 0)..=ZoneAddress::new(zone.0, u64::MAX);
        let starts: Vec<ZoneAddress> = self.extents.range(whole).map(|(at, _)| *at).collect();
        for at in starts {
            self.extents.remove(&at);
        }
    }

    /// Divides a range of a zone into pieces in the log and pieces at the origin.
    pub fn pieces(&self, at: ZoneAddress, length: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut offset, end) = (at.offset.0, at.offset.0 + length);
        while offset < end {
            let here = ZoneAddress::new(at.zone.0, offset);
            let before = self.extents.range(..=here).next_back();
            let covering = before
                .filter(|(start, extent)| start.zone == at.zone && start.offset.0 + extent.length > offset);
            let piece = match covering {
                Some((start, extent)) => {
                    let skipped = offset - start.offset.0;
                    let length = (extent.length - skipped).min(end - offset);
                    Piece { length, address: Some(extent.address + skipped) }
                }
                None => {
                    let next = self.extents.range(here..ZoneAddress::new(at.zone.0, end)).next();
                    let next = next.map_or(end, |(start, _)| start.offset.0);
                    Piece { length: next - offset, address: None }
                }
            };
            offset += piece.length;
            pieces.push(piece);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(length: u64, address: Option<u64>) -> Piece {
        Piece { length, address }
    }

    #[test]
    fn ranges_are_divided_between_the_log_and_the_origin() {
        let mut index = Index::default();
        let at = ZoneAddress::new;
        index.insert(at(1, 100), 50, 1000);
        index.insert(at(1, 150), 50, 2000);
        index.insert(at(2, 0), 10, 3000);
        index.insert(at(1, 300), 10, 4000);
        assert_eq!(index.pieces(at(1, 120), 40), [piece(30, Some(1020)), piece(10, Some(2000))]);
        let all = [
            piece(100, None),
            piece(50, Some(1000)),
            piece(50, Some(2000)),
            piece(100, None),
            piece(10, Some(4000)),
        ];
        assert_eq!(index.pieces(at(1, 0), 310), all);
        assert_eq!(index.pieces(at(0, 0), 9), [piece(9, None)]);
        assert_eq!(index.pieces(at(3, 0), 9), [piece(9, None)]);
        index.forget_before(2000, 0);
        assert_eq!(index.pieces(at(1, 100), 100), [piece(50, None), piece(50, Some(2000))]);
        index.forget_zone(ZoneIndex(1));
        index.insert(at(1, 150), 5, 5000);
        index.forget_before(3000, 0);
        assert_eq!(index.pieces(at(1, 150), 5), [piece(5, Some(5000))], "a later generation stays");
        assert_eq!(index.pieces(at(2, 0), 10), [piece(10, Some(3000))]);
        assert_eq!(index.len(), 2);
    }
}
