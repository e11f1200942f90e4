//! Staged blocks: pages are packed into them, and they stay as a cache after they are written to the nodes.
//!
//! A staged block is empty, open (pages are added), full (it is being written to the nodes), or written.
//! Written blocks are reused in the order in which they were written.

use crate::arena::{Arena, BLOCK_GRANULES};
use std::collections::VecDeque;

/// No staged block.
const NONE: u32 = u32::MAX;

/// State of a staged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Contains nothing.
    Empty,
    /// Pages are added.
    Open,
    /// Being written to the nodes, or waiting for that.
    Full,
    /// Was written to the nodes.
    Written,
}

/// A staged block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staged {
    /// Number of the block, over all zones.
    pub block: u64,
    /// State of the block.
    pub usage: Use,
    /// Granules that are filled.
    pub fill: u32,
}

impl Staged {
    const EMPTY: Staged = Staged { block: 0, usage: Use::Empty, fill: 0 };

    fn encode(&self) -> [u64; 2] {
        let usage: u64 = match self.usage {
            Use::Empty => 0,
            Use::Open => 1,
            Use::Full => 2,
            Use::Written => 3,
        };
        [usage | self.block << 8, self.fill.into()]
    }

    /// Decodes the tag that an earlier process left. Blocks that were open or being written when it ended are
    /// full now.
    fn decode([word, fill]: [u64; 2]) -> Self {
        let usage = match word & 0xFF {
            0 => return Staged::EMPTY,
            3 => Use::Written,
            _ => Use::Full,
        };
        Staged { block: word >> 8, usage, fill: (fill as u32).min(BLOCK_GRANULES as u32) }
    }
}

/// All staged blocks; their bytes and tags are in the arena.
#[derive(Debug)]
pub struct Staging {
    all: Vec<Staged>,
    /// Staged block of each block; [`NONE`] if it isn't staged.
    numbers: Vec<u32>,
    empty: Vec<u32>,
    /// Whether a block's last write was refused by every node; only of full blocks.
    refused: Vec<bool>,
    /// Whether a refused block's pages couldn't be moved either: it waits to be written again.
    stalled: Vec<bool>,
    /// Written staged blocks, the oldest first.
    written: VecDeque<u32>,
}

impl Staging {
    /// Restores the staged blocks from the arena.
    pub fn new(arena: &Arena) -> Self {
        let sizes = arena.sizes();
        let blocks = u64::from(sizes.zones) * u64::from(sizes.zone_blocks);
        let mut staging = Staging {
            all: Vec::new(),
            numbers: vec![NONE; blocks as usize],
            empty: Vec::with_capacity(sizes.staged as usize),
            refused: vec![false; sizes.staged as usize],
            stalled: vec![false; sizes.staged as usize],
            written: VecDeque::with_capacity(sizes.staged as usize),
        };
        for number in 0..sizes.staged {
            let found = Staged::decode(arena.staged_tag(number));
            let is_known = found.block < blocks;
            let staged = if is_known { found } else { Staged::EMPTY };
            staging.all.push(staged);
            match staged.usage {
                Use::Empty => {
                    staging.empty.push(number);
                    continue;
                }
                Use::Written => staging.written.push_back(number),
                Use::Open | Use::Full => {}
            }
            staging.numbers[staged.block as usize] = number;
        }
        staging
    }

    fn set(&mut self, arena: &Arena, number: u32, staged: Staged) {
        self.all[number as usize] = staged;
        arena.set_staged_tag(number, staged.encode());
    }

    /// A staged block.
    pub fn get(&self, number: u32) -> Staged {
        self.all[number as usize]
    }

    /// Staged block that has this block; `None` if it isn't staged.
    #[inline]
    pub fn of_block(&self, block: u64) -> Option<u32> {
        Some(self.numbers[block as usize]).filter(|number| *number != NONE)
    }

    /// Number of staged blocks that can be opened now.
    pub fn available(&self) -> usize {
        self.empty.len() + self.written.len()
    }

    /// Number of staged blocks in a state.
    pub fn count(&self, usage: Use) -> usize {
        self.all.iter().filter(|staged| staged.usage == usage).count()
    }

    /// The full blocks.
    pub fn full(&self) -> Vec<u32> {
        (0..self.all.len() as u32).filter(|number| self.get(*number).usage == Use::Full).collect()
    }

    /// Opens a staged block: an empty one, or the one that was written first; `None` if there is neither.
    pub fn open(&mut self, arena: &Arena, block: u64) -> Option<u32> {
        let number = self.empty.pop().or_else(|| self.written.pop_front())?;
        let before = self.get(number);
        if before.usage == Use::Written {
            self.numbers[before.block as usize] = NONE;
        }
        self.set(arena, number, Staged { block, usage: Use::Open, fill: 0 });
        self.numbers[block as usize] = number;
        Some(number)
    }

    /// Reserves granules at the end of an open block, and returns the first of them; `None` if they don't
    /// fit.
    #[inline]
    pub fn reserve(&mut self, arena: &Arena, number: u32, granules: u8) -> Option<u32> {
        let staged = self.get(number);
        let end = staged.fill + u32::from(granules);
        if u64::from(end) > BLOCK_GRANULES {
            return None;
        }
        self.set(arena, number, Staged { fill: end, ..staged });
        Some(staged.fill)
    }

    /// Notes that an open block takes no more pages.
    pub fn close(&mut self, arena: &Arena, number: u32) {
        let staged = self.get(number);
        self.set(arena, number, Staged { usage: Use::Full, ..staged });
    }

    /// Notes that every node has refused a full block: the block stays full, and is in flight no longer.
    pub fn refuse(&mut self, number: u32) {
        self.refused[number as usize] = true;
    }

    /// Notes that the pages of a refused block couldn't be moved to another zone.
    pub fn stall(&mut self, number: u32) {
        self.stalled[number as usize] = true;
    }

    /// Notes that a stalled block is written again, to nodes that may take it.
    pub fn resume(&mut self, number: u32) {
        self.stalled[number as usize] = false;
    }

    /// Whether a block is being written for the first time, or its pages are being moved to another zone.
    pub fn is_progressing(&self) -> bool {
        let is_full = self.all.iter().map(|staged| staged.usage == Use::Full);
        is_full.zip(&self.stalled).any(|(is_full, is_stalled)| is_full && !is_stalled)
    }

    /// Whether a block that wasn't refused is being written to the nodes.
    pub fn is_writing(&self) -> bool {
        let is_full = self.all.iter().map(|staged| staged.usage == Use::Full);
        is_full.zip(&self.refused).any(|(is_full, is_refused)| is_full && !is_refused)
    }

    /// Notes that a full block was written to the nodes.
    pub fn written(&mut self, arena: &Arena, number: u32) {
        let staged = self.get(number);
        self.refused[number as usize] = false;
        self.stalled[number as usize] = false;
        self.set(arena, number, Staged { usage: Use::Written, ..staged });
        self.written.push_back(number);
    }

    /// Empties a full or a written block.
    pub fn forget(&mut self, arena: &Arena, number: u32) {
        let staged = self.get(number);
        if staged.usage == Use::Written {
            self.written.retain(|other| *other != number);
        }
        self.numbers[staged.block as usize] = NONE;
        self.refused[number as usize] = false;
        self.stalled[number as usize] = false;
        self.set(arena, number, Staged::EMPTY);
        self.empty.push(number);
    }
}
