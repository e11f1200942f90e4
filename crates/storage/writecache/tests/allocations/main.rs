//! In steady state a write through the write cache and a read of cached blocks allocate nothing. A record,
//! which carries many writes, allocates once: the list of its slices. Write-back allocates per batch.
//!
//! The counts are of the whole process, so this binary has a single test.

use block::{BlockSize, DevicePart, Part};
use conformance::allocations::{Counting, counted, reads, writes};
use std::sync::Arc;
use writecache::{Options, WriteCachePart};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;

#[test]
fn writes_and_reads_allocate_nothing() {
    let found = runtime::run(runtime::Config::default(), || async {
        let ram = |bytes| {
            let part = disks::ram::RamPart::new(bytes, BlockSize::new(BLOCK as u64).expect("a size"));
            Arc::new(part.expect("memory")) as Arc<dyn DevicePart>
        };
        let options = Options { format: true, high_watermark: 100, low_watermark: 100, ..Options::default() };
        let part = WriteCachePart::open(ram(64 << 20), ram(256 << 20), options).await.expect("it is made");
        let device = part.open().await.expect("a handle");
        counted(&device, writes, 100).await;
        counted(&device, reads, 100).await;
        let records = async || part.status().await["records"].as_u64().expect("a count");
        let before = records().await;
        let written = counted(&device, writes, 200).await;
        let records = records().await - before;
        let read = counted(&device, reads, 1000).await;
        drop(device);
        part.close().await.expect("it closes");
        (written, records, read)
    });
    let (written, records, read) = found.expect("the runtime runs");
    println!("{written} allocations for {records} records, {read} for reads");
    assert!(records >= 200 && written <= records + 4, "{written} allocations for {records} records");
    assert_eq!(read, 0, "reads allocate");
}
