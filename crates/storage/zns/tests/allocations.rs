//! Appends and reads allocate nothing in steady state.
#![allow(clippy::unwrap_used)] // Helpers of tests fail as tests do.

use block::{Buffer, Data, EraseGuarantee, ZoneAddress, ZoneIndex, ZonesPart};
use runtime::file::{File, OpenOptions};
use zns::{Settings, Shape, Zns};

#[global_allocator]
static ALLOCATOR: conformance::allocations::Counting = conformance::allocations::Counting;

async fn allocations(zns: Zns) -> u64 {
    let handle = zns.open().await.unwrap();
    let page = Data::copy_of(&[7; 4096]);
    let mut counted = 0;
    for round in 0..3 {
        handle.open(ZoneIndex(0)).await.unwrap();
        let before = conformance::allocations::here();
        for number in 0..500 {
            handle.append(ZoneIndex(0), page.clone().into()).await.unwrap();
            handle.read(ZoneAddress::new(0, number * 4096), Buffer::new(4096)).await.0.unwrap();
        }
        counted = conformance::allocations::here() - before;
        if round < 2 {
            handle.reset(ZoneIndex(0), EraseGuarantee::Deallocated).await.unwrap();
        }
    }
    counted
}

#[test]
fn appends_and_reads_allocate_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("drive.zns");
    let run = runtime::run(runtime::Config::default().with_shards(1), move || async move {
        for encrypted in [false, true] {
            let size = 4 << 20;
            let shape =
                Shape { zones: 4, zone_size: size, zone_capacity: size, encrypted, ..Shape::default() };
            let memory = Zns::in_memory(&shape, Settings::default()).unwrap();
            assert_eq!(allocations(memory).await, 0, "in memory, encrypted: {encrypted}");
            let file =
                File::open(&path, OpenOptions { create: true, ..OpenOptions::read_write() }).await.unwrap();
            Zns::format(&file, &shape).await.unwrap();
            let file = Zns::open_file(&file, Settings::default()).await.unwrap();
            assert_eq!(allocations(file).await, 0, "on a file, encrypted: {encrypted}");
        }
    });
    run.unwrap();
}

/// Processor time of appends of 4 KiB to a drive in memory, in addition to copying.
#[test]
#[ignore = "measures time: run it alone, with --release"]
fn an_append_costs_at_most_a_microsecond_beyond_the_copy() {
    const APPENDS: usize = 16_000;
    let run = runtime::run(runtime::Config::default().with_shards(1), || async {
        for encrypted in [false, true] {
            let size = 64 << 20;
            let shape =
                Shape { zones: 4, zone_size: size, zone_capacity: size, encrypted, ..Shape::default() };
            let zns = Zns::in_memory(&shape, Settings::default()).unwrap();
            let handle = zns.open().await.unwrap();
            let page = Data::copy_of(&[7; 4096]);
            let mut best = u128::MAX;
            for _ in 0..5 {
                handle.open(ZoneIndex(0)).await.unwrap();
                let begin = runtime::thread_cpu_time();
                for _ in 0..APPENDS {
                    handle.append(ZoneIndex(0), page.clone().into()).await.unwrap();
                }
                best = best.min((runtime::thread_cpu_time() - begin).as_nanos() / APPENDS as u128);
                handle.reset(ZoneIndex(0), EraseGuarantee::Deallocated).await.unwrap();
            }
            let mut cells: Vec<u8> = Vec::with_capacity(APPENDS * 4096);
            let mut copy = u128::MAX;
            for _ in 0..5 {
                cells.clear();
                let begin = runtime::thread_cpu_time();
                (0..APPENDS).for_each(|_| cells.extend_from_slice(std::hint::black_box(&page)));
                copy = copy.min((runtime::thread_cpu_time() - begin).as_nanos() / APPENDS as u128);
            }
            println!("encrypted: {encrypted}: an append {best} ns, a copy {copy} ns");
            assert!(encrypted || best < copy + 1000, "an append {best} ns, a copy {copy} ns");
        }
    });
    run.unwrap();
}
