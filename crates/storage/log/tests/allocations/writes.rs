//! In steady state a write (queue, record, commit, acknowledgement) and a read allocate nothing.
//!
//! Rare allocations, amortised over thousands of operations, are excluded: checkpoints, opening and sealing
//! zones, the cleaner per zone that it cleans, and lists that grow when more happens at a time than in the
//! warm-up. So the measurement runs between them: within a zone, and with overwrites of few blocks, so that
//! nothing has to be moved.

use block::{BlockSize, DevicePart, Part};
use conformance::allocations::{CLIENTS, counted, reads, writes};
use log::kind::{Options, open};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = 4096;

pub fn writes_and_reads_allocate_nothing() {
    let found = runtime::run(runtime::Config::default(), || async {
        let ram = disks::ram::RamPart::new(256 << 20, BlockSize::new(BLOCK as u64).expect("a size"));
        let ram: Arc<dyn DevicePart> = Arc::new(ram.expect("memory"));
        // Each zone takes a whole measurement, and there is no checkpoint meanwhile.
        let options = Options {
            format: true,
            zone_size: Some(8 << 20),
            checkpoint_after: 1 << 40,
            ..Options::default()
        };
        let part = open(ram, &options).await.expect("it is made");
        let device = part.open().await.expect("a handle");
        counted(&device, writes, 100).await;
        counted(&device, reads, 100).await;
        let records = || part.counters().user_records.load(Ordering::Relaxed);
        let before = records();
        let written = counted(&device, writes, 100).await;
        let records = records() - before;
        let read = counted(&device, reads, 1000).await;
        drop(device);
        part.close().await.expect("it closes");
        (written, records, read)
    });
    let (written, records, read) = found.expect("the runtime runs");
    let writes = 100 * CLIENTS;
    println!(
        "{written} allocations for {writes} writes in {records} records, {read} for {} reads",
        1000 * CLIENTS
    );
    assert!(records < writes / 4, "{writes} writes in {records} records");
    assert!(written < 20, "{written} allocations for {writes} writes in {records} records");
    assert!(read < 10, "{read} allocations for {} reads", 1000 * CLIENTS);
}
