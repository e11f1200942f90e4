//! Streams of packed pages: consecutive writes to one part of the device go to one block.

use super::counters::add;
use runtime::sync::Semaphore;
use std::cell::Cell;
use std::rc::Rc;

/// Streams of users: parts of the device that are written at the same time.
pub const USER_STREAMS: usize = 4;
/// The cleaner's stream.
pub const CLEANER_STREAM: usize = USER_STREAMS;
/// Pages of a part of the device, whose pages go to one stream: 16 MiB.
const PART_PAGES: u32 = 4096;
/// Open block and zone of one write stream.
#[derive(Debug)]
pub struct PackStream {
    /// Part of the device.
    part: Cell<u32>,
    /// Number of the stream's last use, by which the least recently used stream is found.
    used: Cell<u64>,
    /// Open staged block.
    pub(super) staged: Cell<Option<u32>>,
    /// Open zone.
    pub(super) zone: Cell<Option<u32>>,
    /// Held while the stream's next block is opened.
    pub(super) opening: Rc<Semaphore>,
}

/// All streams: those of users, and the cleaner's.
#[derive(Debug)]
pub struct PackStreams {
    streams: [PackStream; USER_STREAMS + 1],
    uses: Cell<u64>,
}

impl PackStreams {
    /// Streams without open blocks.
    pub fn new() -> Self {
        let stream = |_| PackStream {
            part: Cell::default(),
            used: Cell::default(),
            staged: Cell::default(),
            zone: Cell::default(),
            opening: Semaphore::new(1),
        };
        PackStreams { streams: std::array::from_fn(stream), uses: Cell::new(0) }
    }

    /// Stream for a page: the one that has the page's part of the device, or else the least recently used
    /// one.
    pub fn of_page(&self, page: u32) -> usize {
        let part = page / PART_PAGES;
        let users = &self.streams[..USER_STREAMS];
        let known = users.iter().position(|stream| stream.used.get() > 0 && stream.part.get() == part);
        let oldest = || (0..USER_STREAMS).min_by_key(|number| users[*number].used.get()).unwrap_or(0);
        let chosen = known.unwrap_or_else(oldest);
        add(&self.uses, 1);
        users[chosen].part.set(part);
        users[chosen].used.set(self.uses.get());
        chosen
    }
}

impl std::ops::Index<usize> for PackStreams {
    type Output = PackStream;

    fn index(&self, stream: usize) -> &PackStream {
        &self.streams[stream]
    }
}
