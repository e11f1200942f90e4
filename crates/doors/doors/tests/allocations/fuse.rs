//! In steady state a request of the kernel allocates nothing.

use block::BlockSize;
use conformance::allocations::everywhere;
use doors::fuse::door::{FuseConfig, FuseDoor, STOP_LIMIT};
use stack::Door;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Reads bytes and writes blocks from several threads. Returns the number of allocations meanwhile.
fn work(file: &File, requests: u64) -> u64 {
    let before = everywhere();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let builder = std::thread::Builder::new();
            let run = move || {
                let mut bytes = [0; 8192];
                for number in 0..requests {
                    let offset = (thread * 31 + number) % 1000 * 4096;
                    match number % 4 {
                        0 => file.write_all_at(&bytes[..4096], offset).expect("written"),
                        _ => file.read_exact_at(&mut bytes, offset + number % 512).expect("read"),
                    }
                }
            };
            builder.spawn_scoped(scope, run).expect("a thread");
        }
    });
    everywhere() - before
}

pub fn requests_allocate_nothing() {
    use std::os::unix::fs::MetadataExt;
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
    if !is_root || std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return println!("SKIPPED: fuse: needs root and /dev/fuse");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().join("vol.img");
    let run = move || async move {
        let device = Arc::new(disks::ram::RamPart::new(8 << 20, BlockSize::default()).expect("memory"));
        let config = FuseConfig {
            device,
            path: path.clone(),
            read_only: false,
            allow_other: false,
            stop_limit: STOP_LIMIT,
        };
        let door = FuseDoor::new(config);
        door.start().await.expect("it starts");
        let counted = runtime::blocking(move || {
            let file = File::options().read(true).write(true).open(path).expect("it opens");
            work(&file, 2000);
            let threads_alone = work(&file, 0);
            work(&file, 2000).saturating_sub(threads_alone)
        });
        let allocations = counted.await;
        door.stop().await.expect("it stops");
        allocations
    };
    let allocations = runtime::run(runtime::Config::default().with_shards(2), run).expect("the runtime runs");
    println!("{allocations} allocations for 16000 requests");
    // Lists may still grow once or twice with more concurrency than during the warm-up.
    assert!(allocations < 40, "{allocations} allocations for 16000 requests");
}
