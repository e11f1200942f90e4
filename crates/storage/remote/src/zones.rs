//! Zones of the device: the regions with their copies, and the number of their written blocks.
//!
//! A zone is a *block group*: blocks of pages with neighbouring addresses, in one contiguous region of each
//! node that has a copy.

use crate::arena::{Arena, ZONE_WORDS};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Largest number of copies of a zone on nodes.
pub const MAX_COPIES: usize = 3;

/// A copy of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Number of the node.
    pub node: u8,
    /// Region of the node.
    pub region: u32,
    /// Whether the copy has every block that was written to the zone.
    pub is_whole: bool,
}

/// A zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {
    /// Number of resets.
    pub generation: u32,
    /// Number of blocks that were staged.
    pub blocks: u32,
    /// Whether no further block is staged.
    pub is_closed: bool,
    /// Number of blocks that aren't on the nodes yet.
    pub pending: u32,
    /// Whether a copy is being made; the zone isn't reset meanwhile.
    pub is_copied: bool,
    /// Whether the backup device has every block that was written to the zone.
    pub has_backup: bool,
    /// Copies on nodes.
    pub copies: SmallVec<[Replica; MAX_COPIES]>,
}

impl Zone {
    /// Stores that turn a record into that of this zone: numbers of words, and words. The process may be
    /// killed between any two.
    ///
    /// Copies come first, in their order, because copies that stay only move towards the beginning; then
    /// their number; later words keep their values. So each intermediate state has every copy that stays, and
    /// no copy that was in neither list.
    fn stores(&self) -> impl Iterator<Item = (usize, u64)> {
        let copies = (2..ZONE_WORDS).zip(&self.copies).map(|(number, copy)| {
            let place = u64::from(copy.region) | u64::from(copy.node) << 32;
            (number, place | u64::from(copy.is_whole) << 40)
        });
        let count = u64::from(self.has_backup) | (self.copies.len() as u64) << 8;
        copies.chain([(1, count), (0, u64::from(self.generation) | u64::from(self.blocks) << 32)])
    }

    fn decode(words: [u64; ZONE_WORDS]) -> Self {
        let count = ((words[1] >> 8) as usize & 0xFF).min(MAX_COPIES);
        let copies = words[2..2 + count].iter().map(|word| Replica {
            region: *word as u32,
            node: (word >> 32) as u8,
            is_whole: word >> 40 & 1 == 1,
        });
        Zone {
            generation: words[0] as u32,
            blocks: (words[0] >> 32) as u32,
            has_backup: words[1] & 1 == 1,
            copies: copies.collect(),
            ..Zone::default()
        }
    }
}

/// All zones.
#[derive(Debug)]
pub struct ZoneTable(RefCell<Vec<Zone>>);

impl ZoneTable {
    /// The zones as the arena has them.
    pub fn new(arena: &Arena) -> Self {
        ZoneTable(RefCell::new((0..arena.sizes().zones).map(|zone| Zone::decode(arena.zone(zone))).collect()))
    }

    /// A zone.
    pub fn get(&self, zone: u32) -> Zone {
        self.0.borrow()[zone as usize].clone()
    }

    /// Number of resets of a zone.
    pub fn generation(&self, zone: u32) -> u32 {
        self.0.borrow()[zone as usize].generation
    }

    /// Changes a zone in memory and in the arena.
    pub fn change<T>(&self, arena: &Arena, zone: u32, change: impl FnOnce(&mut Zone) -> T) -> T {
        let mut all = self.0.borrow_mut();
        let entry = &mut all[zone as usize];
        let changed = change(entry);
        arena.set_zone(zone, entry.stores());
        changed
    }

    /// Calls `visit` for all zones, with their numbers.
    pub fn each(&self, visit: impl FnMut((usize, &Zone))) {
        self.0.borrow().iter().enumerate().for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(zone: &Zone, words: &mut [u64; ZONE_WORDS]) {
        zone.stores().for_each(|(number, word)| words[number] = word);
    }

    #[test]
    fn a_record_is_decoded_as_it_was() {
        let copy = |node, is_whole| Replica { node, region: 0xFFFF_FFF0 + u32::from(node), is_whole };
        let zone = Zone {
            generation: u32::MAX,
            blocks: 7,
            has_backup: true,
            copies: SmallVec::from_slice(&[copy(0, true), copy(9, false), copy(7, true)]),
            ..Zone::default()
        };
        let mut words = [0; ZONE_WORDS];
        assert_eq!(Zone::decode(words), Zone::default());
        stored(&zone, &mut words);
        assert_eq!(Zone::decode(words), zone);
    }

    proptest! {
        /// Copies are replaced: some stay, in their order, and a new one is appended.
        #[test]
        fn a_process_that_is_killed_in_a_change_leaves_the_copies_that_stay_and_no_foreign_one(
            before in proptest::collection::vec((1..9_u8, 1..9_u32), 0..MAX_COPIES),
            stays: [bool; MAX_COPIES],
            new in proptest::option::of((1..9_u8, 1..9_u32)),
            killed in 0..6_usize,
        ) {
            let copy = |(node, region): &(u8, u32)| Replica { node: *node, region: *region, is_whole: true };
            let zone = |copies: &[(u8, u32)]| Zone { copies: copies.iter().map(copy).collect(), ..Zone::default() };
            let kept: Vec<(u8, u32)> = before.iter().zip(stays).filter(|(_, stays)| *stays).map(|(copy, _)| *copy).collect();
            let after: Vec<(u8, u32)> = kept.iter().copied().chain(new).collect();
            let mut words = [0; ZONE_WORDS];
            stored(&zone(&before), &mut words);
            zone(&after).stores().take(killed).for_each(|(number, word)| words[number] = word);
            let found = Zone::decode(words).copies;
            for copy in &found {
                let place = (copy.node, copy.region);
                prop_assert!(before.contains(&place) || after.contains(&place), "{found:?}: {before:?} to {after:?}");
            }
            for stays in &kept {
                prop_assert!(found.contains(&copy(stays)), "{found:?}: {before:?} to {after:?}");
            }
        }
    }
}
