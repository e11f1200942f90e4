//! The zones of the device: which regions hold a copy of each, and how far each is written.
//!
//! A zone is a *block group*: blocks of pages with neighbouring addresses, in one contiguous region of each node that has a copy.

use crate::arena::{Arena, ZONE_WORDS};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Most copies of a zone on nodes.
pub const MOST_COPIES: usize = 3;

/// A copy of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copy {
    /// Number of the node.
    pub node: u8,
    /// Region of the node.
    pub region: u32,
    /// Whether every block that was written to the zone is there.
    pub is_whole: bool,
}

/// A zone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {
    /// Number of resets.
    pub generation: u32,
    /// Blocks that were staged.
    pub blocks: u32,
    /// Whether no further block is staged.
    pub is_closed: bool,
    /// Blocks that aren't on the nodes yet.
    pub pending: u32,
    /// Whether a copy is being made; the zone isn't reset meanwhile.
    pub is_copied: bool,
    /// Whether every block that was written to the zone is on the backup device.
    pub has_backup: bool,
    /// Copies on nodes.
    pub copies: SmallVec<[Copy; MOST_COPIES]>,
}

impl Zone {
    fn encode(&self) -> [u64; ZONE_WORDS] {
        let mut words = [0; ZONE_WORDS];
        words[0] = u64::from(self.generation) | u64::from(self.blocks) << 32;
        words[1] = u64::from(self.has_backup) | (self.copies.len() as u64) << 8;
        for (word, copy) in words[2..].iter_mut().zip(&self.copies) {
            *word = u64::from(copy.region) | u64::from(copy.node) << 32 | u64::from(copy.is_whole) << 40;
        }
        words
    }

    fn decode(words: [u64; ZONE_WORDS]) -> Self {
        let count = ((words[1] >> 8) as usize & 0xFF).min(MOST_COPIES);
        let copies = words[2..2 + count].iter().map(|word| Copy {
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
pub struct Zones(RefCell<Vec<Zone>>);

impl Zones {
    /// The zones as the arena has them.
    pub fn new(arena: &Arena) -> Self {
        Zones(RefCell::new((0..arena.sizes().zones).map(|zone| Zone::decode(arena.zone(zone))).collect()))
    }

    /// A zone.
    pub fn get(&self, zone: u32) -> Zone {
        self.0.borrow()[zone as usize].clone()
    }

    /// Number of resets of a zone.
    pub fn generation(&self, zone: u32) -> u32 {
        self.0.borrow()[zone as usize].generation
    }

    /// Changes a zone, in the arena, too.
    pub fn change<T>(&self, arena: &Arena, zone: u32, change: impl FnOnce(&mut Zone) -> T) -> T {
        let mut all = self.0.borrow_mut();
        let entry = &mut all[zone as usize];
        let changed = change(entry);
        arena.set_zone(zone, entry.encode());
        changed
    }

    /// Looks at all zones, with their numbers.
    pub fn each(&self, visit: impl FnMut((usize, &Zone))) {
        self.0.borrow().iter().enumerate().for_each(visit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_was() {
        let copy = |node, is_whole| Copy { node, region: 0xFFFF_FFF0 + u32::from(node), is_whole };
        let zone = Zone {
            generation: u32::MAX,
            blocks: 7,
            has_backup: true,
            copies: SmallVec::from_slice(&[copy(0, true), copy(9, false), copy(7, true)]),
            ..Zone::default()
        };
        assert_eq!(Zone::decode(zone.encode()), zone);
        assert_eq!(Zone::decode([0; ZONE_WORDS]), Zone::default());
    }
}
