//! Settings that messages change, and the progress of a detach. Written on the home shard, read on all.

use crate::Options;
use crate::mode::Mode;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Progress of a detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Detach {
    No,
    Going,
    Done,
}

impl Detach {
    const ALL: [Detach; 3] = [Detach::No, Detach::Going, Detach::Done];

    /// Name in the status.
    pub fn word(self) -> &'static str {
        match self {
            Detach::No => "no",
            Detach::Going => "going on",
            Detach::Done => "done",
        }
    }
}

/// Settings that messages change.
#[derive(Debug)]
pub(crate) struct Control {
    mode: AtomicU8,
    detach: AtomicU8,
    migration_sectors: AtomicU64,
    sequential_threshold: AtomicU64,
}

impl Control {
    pub fn new(options: &Options) -> Self {
        Control {
            mode: AtomicU8::new(options.mode as u8),
            detach: AtomicU8::new(Detach::No as u8),
            migration_sectors: AtomicU64::new(options.migration_threshold),
            sequential_threshold: AtomicU64::new(options.sequential_threshold),
        }
    }

    /// Mode that the stack or the last message set.
    #[inline]
    pub fn mode(&self) -> Mode {
        Mode::ALL[usize::from(self.mode.load(Ordering::Relaxed)) % Mode::ALL.len()]
    }

    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Progress of a detach.
    pub fn detach(&self) -> Detach {
        Detach::ALL[usize::from(self.detach.load(Ordering::Relaxed)) % Detach::ALL.len()]
    }

    /// Sets the progress of a detach. Returns whether the cache was detaching before.
    pub fn set_detach(&self, detach: Detach) -> bool {
        let before = self.is_detaching();
        self.detach.store(detach as u8, Ordering::Relaxed);
        before
    }

    /// Whether blocks are evicted and none is promoted, from the message `detach` to `cancel`.
    #[inline]
    pub fn is_detaching(&self) -> bool {
        self.detach() != Detach::No
    }

    /// Mode of writes at the moment: during a detach, writeback becomes writethrough.
    #[inline]
    pub fn writes(&self) -> Mode {
        match (self.is_detaching(), self.mode()) {
            (true, Mode::Writeback) => Mode::Writethrough,
            (_, mode) => mode,
        }
    }

    /// Limit of data in flight between the two devices, in sectors of 512 bytes.
    pub fn migration_sectors(&self) -> u64 {
        self.migration_sectors.load(Ordering::Relaxed)
    }

    /// Limit of data in flight between the two devices, in bytes.
    pub fn migration_bytes(&self) -> u64 {
        self.migration_sectors().saturating_mul(512)
    }

    pub fn set_migration_sectors(&self, sectors: u64) {
        self.migration_sectors.store(sectors, Ordering::Relaxed);
    }

    /// Length in bytes from which sequential runs bypass the cache; 0: never.
    pub fn sequential_threshold(&self) -> u64 {
        self.sequential_threshold.load(Ordering::Relaxed)
    }

    pub fn set_sequential_threshold(&self, bytes: u64) {
        self.sequential_threshold.store(bytes, Ordering::Relaxed);
    }

    /// Whether a run of this length bypasses the cache.
    pub fn is_bypassed(&self, run: u64) -> bool {
        let limit = self.sequential_threshold();
        limit > 0 && run >= limit
    }
}
