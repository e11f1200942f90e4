//! Status of a cache, with dm-cache's names.

use crate::Options;
use crate::core::Mode;
use crate::counters::Counters;
use crate::shape::Shape;
use block::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Properties that are fixed while the cache is open, and the settings.
pub(crate) struct Facts {
    pub shape: Shape,
    pub slots: u64,
    pub table_bytes: u64,
    pub journal_units: u64,
    pub was_clean: bool,
    pub control: Arc<Control>,
}

/// Progress of a detach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Detach {
    No,
    Going,
    Done,
}

/// Settings that messages change, as the status shows them.
#[derive(Debug)]
pub(crate) struct Control {
    mode: AtomicU8,
    detach: AtomicU8,
    pub migration_threshold: AtomicU64,
    pub sequential_threshold: AtomicU64,
}

impl Control {
    pub fn new(options: &Options) -> Self {
        let control = Control {
            mode: AtomicU8::new(0),
            detach: AtomicU8::new(0),
            migration_threshold: AtomicU64::new(options.migration_threshold),
            sequential_threshold: AtomicU64::new(options.sequential_threshold),
        };
        control.set_mode(options.mode);
        control
    }

    pub fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    pub fn set_detach(&self, detach: Detach) {
        self.detach.store(detach as u8, Ordering::Relaxed);
    }
}

pub(crate) fn status(counters: &Counters, facts: &Facts) -> Status {
    let mut status = Status::new();
    let mut put = |name: &str, value: serde_json::Value| {
        status.insert(name.into(), value);
    };
    let control = &facts.control;
    let modes = [Mode::Writeback, Mode::Writethrough, Mode::Passthrough];
    let mode = modes[usize::from(control.mode.load(Ordering::Relaxed)) % modes.len()];
    put("mode", mode.name().into());
    let detach = match control.detach.load(Ordering::Relaxed) {
        0 => "no",
        1 => "going on",
        _ => "done",
    };
    put("detach", detach.into());
    put("policy", "s3-fifo".into());
    put("bytes", facts.shape.origin.into());
    put("block_size", facts.shape.block.into());
    put("part_size", facts.shape.part.into());
    put("total_blocks", facts.slots.into());
    for (name, count) in [
        ("used_blocks", &counters.used),
        ("dirty_blocks", &counters.dirty),
        ("read_hits", &counters.read_hits),
        ("read_misses", &counters.read_misses),
        ("write_hits", &counters.write_hits),
        ("write_misses", &counters.write_misses),
        ("demotions", &counters.demotions),
        ("promotions", &counters.promotions),
        ("prefetched_bytes", &counters.prefetched_bytes),
        ("write_backs", &counters.write_backs),
        ("written_back_bytes", &counters.written_back_bytes),
        ("bypassed", &counters.bypassed),
        ("cache_errors", &counters.cache_errors),
        ("origin_errors", &counters.origin_errors),
        ("table_commits", &counters.commits),
        ("table_marks", &counters.marks),
        ("journal_records", &counters.journal_records),
        ("table_pages", &counters.table_pages),
        ("journal_used", &counters.journal_used),
    ] {
        put(name, count.get().into());
    }
    put("journal_units", facts.journal_units.into());
    put("metadata_bytes", facts.table_bytes.into());
    put("migration_threshold", control.migration_threshold.load(Ordering::Relaxed).into());
    put("sequential_threshold", control.sequential_threshold.load(Ordering::Relaxed).into());
    put("was_clean", facts.was_clean.into());
    let failure = counters.failure.get();
    put("metadata_mode", if failure.is_some() { "fail" } else { "rw" }.into());
    if let Some(error) = failure {
        put("error", error.as_str().into());
    }
    status
}
