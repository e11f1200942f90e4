//! Status of a cache, with dm-cache's names.

use crate::control::Control;
use crate::counters::Counters;
use crate::shape::Shape;
use block::Status;
use std::sync::Arc;

/// Properties that are fixed while the cache is open, and the settings.
pub(crate) struct Facts {
    pub shape: Shape,
    pub slots: u64,
    pub table_bytes: u64,
    pub journal_units: u64,
    pub was_clean: bool,
    pub control: Arc<Control>,
}

pub(crate) fn status(counters: &Counters, facts: &Facts) -> Status {
    let mut status = Status::new();
    let mut put = |name: &str, value: serde_json::Value| {
        status.insert(name.into(), value);
    };
    let control = &facts.control;
    put("mode", control.mode().name().into());
    put("detach", control.detach().word().into());
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
    put("migration_threshold", control.migration_sectors().into());
    put("sequential_threshold", control.sequential_threshold().into());
    put("was_clean", facts.was_clean.into());
    let failure = counters.failure.get();
    put("metadata_mode", if failure.is_some() { "fail" } else { "rw" }.into());
    if let Some(error) = failure {
        put("error", error.as_str().into());
    }
    status
}
