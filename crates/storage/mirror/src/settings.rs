//! Settings of a mirror from the stack, and other properties that are fixed while it is open.

use crate::format::Uuid;
use crate::layout::Layout;
use crate::leg::Mask;
use std::time::Duration;

/// Settings of the stack, which may change from one opening to the next.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Legs that reads avoid.
    pub write_mostly: Mask,
    /// Limit of outstanding writes on write-mostly legs; 0: they don't lag.
    pub write_behind: u64,
    /// Limit of the bytes of outstanding writes.
    pub behind_bytes: u64,
    /// Whether flush and FUA leave out lagging legs.
    pub fast_flush: bool,
    /// Least time without writes before a chunk's bit is cleared.
    pub bitmap_delay: Duration,
    /// Limit of resync and scrub in bytes per second; 0: no limit.
    pub sync_speed_max: u64,
    /// Whether reads always go to the first leg, rather than by latency.
    pub first_leg: bool,
    /// Time within which a leg has to answer a request.
    pub timeout: Duration,
}

/// Settings, layout and identity, which are fixed while the mirror is open.
#[derive(Debug)]
pub struct Setup {
    /// Settings of the stack.
    pub settings: Settings,
    /// Layout of the legs.
    pub layout: Layout,
    /// Identity of the mirror.
    pub array: Uuid,
}
