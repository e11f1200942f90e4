//! The origin: the slow device, and when a client last used it.
//!
//! The cache's blocks are at least as large as the origin's: all addresses are converted here.

use block::{BlockIndex, BlockRange, Device};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// The origin of a write cache.
pub struct Origin {
    device: Rc<dyn Device>,
    /// Binary logarithm of the origin's blocks per block of the cache.
    shift: u32,
    /// Idle time of clients before which write-back pauses.
    pause: Duration,
    /// Time of the last use by a client; `None` before the first one, or without a pause.
    used: Cell<Option<runtime::Instant>>,
}

impl Origin {
    /// Wraps the device, for blocks of 2 to the power of `shift` of its own.
    pub fn new(device: Rc<dyn Device>, shift: u32, pause: Duration) -> Self {
        Origin { device, shift, pause, used: Cell::new(None) }
    }

    /// The device.
    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Binary logarithm of the origin's blocks per block of the cache.
    pub fn shift(&self) -> u32 {
        self.shift
    }

    /// First block of the origin in this block.
    #[inline]
    pub fn block(&self, block: u64) -> BlockIndex {
        BlockIndex(block << self.shift)
    }

    /// Blocks of the origin in this range.
    pub fn range(&self, block: u64, count: u64) -> BlockRange {
        BlockRange::new(block << self.shift, count << self.shift)
    }

    /// Notes that a client uses the origin. The clock is read only where write-back pauses for clients.
    #[inline]
    pub fn note_use(&self) {
        if !self.pause.is_zero() {
            self.used.set(Some(runtime::now()));
        }
    }

    /// Remaining time of the pause of write-back; `None` if write-back may continue.
    pub fn pause_left(&self) -> Option<Duration> {
        let left = self.pause.saturating_sub(self.used.get()?.elapsed());
        (!left.is_zero()).then_some(left)
    }
}
