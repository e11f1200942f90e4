//! The read cache: *frames* of 4 KiB, each with one piece of a block as it lies on the nodes.
//!
//! A hand goes round the frames (CLOCK: Corbató, "A Paging Experiment with the Multics System", 1968). A new
//! piece is evicted when the hand reaches it, unless it was used meanwhile: prefetched pieces that aren't
//! used are evicted first.
//!
//! The used share of prefetched pieces sets the number of pieces of a read: [`Frames::window`].

use crate::arena::Arena;

/// No frame.
const NONE: u32 = u32::MAX;
/// Prefetched pieces between two adjustments of the window.
const DECIDE: u32 = 256;
/// Largest number of pieces of a read.
const WIDEST: u32 = 16;

const USED: u8 = 1;
/// Prefetched with another piece, and not used since.
const PREFETCHED: u8 = 2;

/// The frames of the cache; their bytes and tags are in the arena.
#[derive(Debug)]
pub struct Frames {
    /// First frame of each hash.
    heads: Vec<u32>,
    /// Next frame of the same hash.
    next: Vec<u32>,
    flags: Vec<u8>,
    hand: u32,
    window: u32,
    prefetched: u32,
    useful: u32,
}

impl Frames {
    /// Restores the frames from the arena.
    pub fn new(arena: &Arena) -> Self {
        let count = arena.sizes().frames;
        let mut frames = Frames {
            heads: vec![NONE; (count as usize).next_power_of_two().max(1)],
            next: vec![NONE; count as usize],
            flags: vec![0; count as usize],
            hand: 0,
            window: 4,
            prefetched: 0,
            useful: 0,
        };
        for frame in 0..count {
            if let Some(piece) = arena.frame_tag(frame).checked_sub(1) {
                let hash = frames.hash(piece);
                frames.next[frame as usize] = frames.heads[hash];
                frames.heads[hash] = frame;
            }
        }
        frames
    }

    fn hash(&self, piece: u64) -> usize {
        let mixed = piece.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        mixed as usize & (self.heads.len() - 1)
    }

    fn find(&self, arena: &Arena, piece: u64) -> Option<u32> {
        let mut frame = self.heads[self.hash(piece)];
        while frame != NONE {
            if arena.frame_tag(frame) == piece + 1 {
                return Some(frame);
            }
            frame = self.next[frame as usize];
        }
        None
    }

    /// Whether a piece is cached.
    pub fn has(&self, arena: &Arena, piece: u64) -> bool {
        self.find(arena, piece).is_some()
    }

    /// Returns the frame of a piece, and marks it as used; `None` if the piece isn't cached.
    pub fn get(&mut self, arena: &Arena, piece: u64) -> Option<u32> {
        let frame = self.find(arena, piece)?;
        let flags = &mut self.flags[frame as usize];
        if *flags & PREFETCHED != 0 {
            self.useful += 1;
        }
        *flags = USED;
        Some(frame)
    }

    fn unlink(&mut self, arena: &Arena, frame: u32) {
        let Some(piece) = arena.frame_tag(frame).checked_sub(1) else { return };
        let hash = self.hash(piece);
        let next = self.next[frame as usize];
        if self.heads[hash] == frame {
            self.heads[hash] = next;
        } else {
            let mut at = self.heads[hash];
            while at != NONE && self.next[at as usize] != frame {
                at = self.next[at as usize];
            }
            if at != NONE {
                self.next[at as usize] = next;
            }
        }
        self.flags[frame as usize] = 0;
        arena.set_frame_tag(frame, 0);
    }

    /// Stores a piece in a frame. `is_asked` tells whether the piece was requested, rather than prefetched.
    pub fn put(&mut self, arena: &Arena, piece: u64, bytes: &[u8], is_asked: bool) {
        if self.next.is_empty() || self.has(arena, piece) {
            return;
        }
        // On the second lap every frame is unused.
        while std::mem::take(&mut self.flags[self.hand as usize]) & USED != 0 {
            self.hand = (self.hand + 1) % self.next.len() as u32;
        }
        let frame = self.hand;
        self.hand = (self.hand + 1) % self.next.len() as u32;
        self.unlink(arena, frame);
        arena.write_frame(frame, bytes);
        arena.set_frame_tag(frame, piece + 1);
        let hash = self.hash(piece);
        self.next[frame as usize] = self.heads[hash];
        self.heads[hash] = frame;
        if !is_asked {
            self.flags[frame as usize] = PREFETCHED;
            self.prefetched += 1;
        }
        if self.prefetched >= DECIDE {
            self.decide();
        }
    }

    /// Evicts pieces.
    pub fn forget(&mut self, arena: &Arena, pieces: std::ops::Range<u64>) {
        for piece in pieces {
            if let Some(frame) = self.find(arena, piece) {
                self.unlink(arena, frame);
            }
        }
    }

    /// Doubles the window if half of the prefetched pieces were used, and halves it if less than an eighth
    /// was.
    fn decide(&mut self) {
        if self.useful * 2 >= self.prefetched {
            self.window = (self.window * 2).min(WIDEST);
        } else if self.useful * 8 < self.prefetched {
            // At least one piece is still prefetched, to measure its use.
            self.window = (self.window / 2).max(2);
        }
        (self.prefetched, self.useful) = (0, 0);
    }

    /// Number of pieces of a read.
    pub fn window(&self) -> u32 {
        self.window
    }
}
