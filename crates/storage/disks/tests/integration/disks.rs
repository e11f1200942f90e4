//! The leaves with the conformance suite, on the real ring and in simulated worlds, and tests of single
//! leaves.

use block::{BlockIndex, BlockRange, BlockSize, Buffer, DevicePart, Durability, ExtentState, Part, ZeroMode};
use conformance::device::Options;
use disks::file::FilePart;
use disks::ram::RamPart;
use runtime::{Config, SimulatedFaults, Simulation};
use stack::{Registry, Stack};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn registry() -> Registry {
    Registry::new(vec![&disks::file::KIND, &disks::ram::KIND, &disks::null::KIND])
}

async fn build(line: &str, format: bool) -> block::Result<Arc<dyn DevicePart>> {
    let stack = Stack::from_line("test", line, &registry())
        .map_err(|problems| block::Error::invalid(problems.to_string()))?;
    let plan = stack.check(format).map_err(|problems| block::Error::invalid(problems.to_string()))?;
    plan.build().await?.top()
}

fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut + Send) -> T {
    runtime::run(Config::default().with_shards(2), main).expect("the runtime starts")
}

#[test]
fn ram_conforms() {
    for block_size in [512, 4096, 65536] {
        let result = run(move || async move {
            let block_size = BlockSize::new(block_size).expect("valid");
            let make =
                async || Arc::new(RamPart::new(8 << 20, block_size).expect("memory")) as Arc<dyn DevicePart>;
            conformance::device::run(make, Options::default()).await
        });
        result.expect("ram keeps the contract");
    }
}

#[test]
fn ram_has_a_limit_and_takes_nothing_for_zeros() {
    run(|| async {
        let part = build("ram(1TiB, limit=64KiB)", false).await.expect("it builds");
        let device = part.open().await.expect("it opens");
        let write = async |block: u64, byte: u8| {
            let data = Buffer::copy_of(&[byte; 4096]).into();
            device.write(BlockIndex(block), data, Durability::Visible).await
        };
        for index in 0..16 {
            write(index << 20, 1).await.expect("there is room");
            write((index << 20) + 1, 0).await.expect("zeros take nothing");
        }
        let error = write(7, 1).await.expect_err("its limit is reached");
        assert_eq!(error.errno(), libc::ENOSPC);
        assert!(error.to_string().contains("its limit is 65536"), "{error}");
        assert_eq!(part.status().await["memory_bytes"], 65536);
        let extents = device.extents(BlockRange::new(1 << 20, 64)).await.expect("it tells");
        assert_eq!((extents[0].state, extents[1].state), (ExtentState::Data, ExtentState::Hole));
        device.discard(BlockRange::new(0, 1 << 28)).await.expect("it discards");
        write(7, 1).await.expect("there is room again");
    });
}

/// A query of a large disk's extents takes a bounded time, and the next one continues after it.
#[test]
fn ram_tells_of_a_bounded_part_at_a_time() {
    run(|| async {
        let part = build("ram(4GiB)", false).await.expect("it builds");
        let device = part.open().await.expect("it opens");
        let data = Buffer::copy_of(&[1; 4096]).into();
        let last = (1 << 20) - 1;
        device.write(BlockIndex(last), data, Durability::Visible).await.expect("there is room");
        let (mut at, mut looks, mut found) = (0, 0, Vec::new());
        while at <= last {
            let extents = device.extents(BlockRange::new(at, last + 1 - at)).await.expect("it tells");
            let told: u64 = extents.iter().map(|extent| extent.range.count.0).sum();
            assert!(0 < told && told <= (256 << 20) / 4096, "{told} blocks at once");
            found
                .extend(extents.iter().filter(|extent| extent.state == ExtentState::Data).map(|it| it.range));
            (at, looks) = (at + told, looks + 1);
        }
        assert_eq!((looks, found), (16, vec![BlockRange::new(last - 15, 16)]));
    });
}

/// Folders on different file systems: the temporary one, and one in memory if there is one.
fn places() -> Vec<PathBuf> {
    let mut seen = Vec::new();
    [std::env::temp_dir(), PathBuf::from("/var/tmp"), PathBuf::from("/dev/shm")]
        .into_iter()
        .filter(|path| {
            let device =
                std::fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::dev(&found)).ok();
            let is_new = device.is_some() && !seen.contains(&device);
            seen.push(device);
            is_new
        })
        .collect()
}

#[test]
fn file_conforms_on_every_file_system_here() {
    for place in places() {
        let Ok(directory) = tempfile::tempdir_in(&place) else { continue };
        for (index, settings) in
            ["block_size=512", "block_size=4KiB", "block_size=64KiB", "direct=off"].into_iter().enumerate()
        {
            let line = format!("file({}/disk{index}, size=8MiB, {settings})", directory.path().display());
            println!("{line}");
            let result = run(move || async move {
                let make = async || build(&line, false).await.expect("it builds");
                conformance::device::run(make, Options { persistent: true, ..Options::default() }).await
            });
            result.expect("file keeps the contract");
        }
    }
}

/// Zeroes this many bytes of a `ram` of which the first half was written. Returns how often another task of
/// the shard ran meanwhile.
async fn turns_while_zeroing(bytes: u64, zero: impl AsyncFnOnce(&dyn block::Device, BlockRange)) -> u32 {
    let part = RamPart::new(bytes, BlockSize::new(4096).expect("valid")).expect("memory");
    let device = part.open().await.expect("it opens");
    for block in 0..bytes / 4096 / 2 {
        let data = Buffer::copy_of(&[1; 4096]).into();
        device.write(BlockIndex(block), data, Durability::Visible).await.expect("there is memory");
    }
    let turns = std::rc::Rc::new(std::cell::Cell::new(0));
    let counter = turns.clone();
    let other = runtime::spawn(async move {
        loop {
            counter.set(counter.get() + 1);
            runtime::yield_now().await;
        }
    });
    zero(&*device, BlockRange::new(0, bytes / 4096)).await;
    other.abort();
    let (result, buffer) = device.read(BlockIndex(0), Buffer::new(bytes as usize)).await;
    result.expect("it reads");
    assert!(buffer.filled().iter().all(|byte| *byte == 0), "it was zeroed");
    turns.get()
}

#[test]
fn zeroing_ram_lets_other_tasks_run() {
    const BYTES: u64 = 32 << 20;
    let (discard, deallocate, keep) = run(|| async {
        let discard = turns_while_zeroing(BYTES, async |device, all| {
            device.discard(all).await.expect("it discards");
        });
        let zero = |mode| {
            turns_while_zeroing(BYTES, async move |device: &dyn block::Device, all| {
                device.write_zeroes(all, mode, Durability::Visible).await.expect("it zeroes");
            })
        };
        (discard.await, zero(ZeroMode::MayDeallocate).await, zero(ZeroMode::KeepAllocated).await)
    });
    // A step returns at most 4 MiB of memory, or zeroes 1 MiB and keeps it.
    assert!(discard >= 3 && deallocate >= 3, "{discard} and {deallocate} turns");
    assert!(keep >= 31, "{keep} turns");
}

#[test]
fn zeroing_ram_goes_on_when_the_call_is_dropped() {
    run(|| async {
        let part = RamPart::new(16 << 20, BlockSize::new(4096).expect("valid")).expect("memory");
        let device = part.open().await.expect("it opens");
        let last = BlockIndex((16 << 20) / 4096 - 1);
        device.write(last, Buffer::copy_of(&[1; 4096]).into(), Durability::Visible).await.expect("memory");
        let mut call =
            device.write_zeroes(BlockRange::new(0, last.0 + 1), ZeroMode::KeepAllocated, Durability::Visible);
        std::future::poll_fn(|context| {
            assert!(std::pin::Pin::new(&mut call).poll(context).is_pending(), "it takes several turns");
            std::task::Poll::Ready(())
        })
        .await;
        drop(call);
        for _ in 0..1000 {
            let (_, buffer) = device.read(last, Buffer::new(4096)).await;
            if buffer.filled()[0] == 0 {
                return;
            }
        }
        panic!("the last block was never zeroed");
    });
}

#[test]
fn file_and_ram_conform_in_simulated_worlds() {
    let first = std::env::var("SILTSTONE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in first..first + 5 {
        println!("seed {seed}");
        let faults = SimulatedFaults { short: 0.1, slow: 0.05, ..SimulatedFaults::default() };
        let simulation = Simulation::new(seed).with_shards(2).with_faults(faults);
        let simulated = runtime::simulate(simulation, move || async move {
            let options =
                Options { seed: Some(seed), operations: 1000, persistent: true, ..Options::default() };
            let file = async || {
                let part = FilePart::open_path(Path::new("/disk"), Some(8 << 20)).await.expect("it opens");
                Arc::new(part) as Arc<dyn DevicePart>
            };
            conformance::device::run(file, options.clone()).await?;
            let ram = async || build("ram(8MiB)", false).await.expect("it builds");
            conformance::device::run(ram, Options { persistent: false, ..options }).await
        });
        simulated.expect("it ends").value.expect("they keep the contract");
    }
}

#[test]
fn a_read_only_file_conforms_and_stays_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk");
    std::fs::write(&path, vec![7; 1 << 20]).expect("it writes");
    let line = format!("file({}, read_only=true)", path.display());
    let result = run(move || async move {
        let make = async || build(&line, false).await.expect("it builds");
        conformance::device::run(make, Options::default()).await
    });
    result.expect("a read-only file keeps the contract");
    assert!(std::fs::read(&path).expect("it reads").iter().all(|byte| *byte == 7));
}

/// A reader without a lock sees what the stack that holds the lock writes.
#[test]
fn a_file_without_a_lock_is_read_beside_its_writer() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk");
    let path = path.display().to_string();
    run(move || async move {
        let writer = build(&format!("file({path}, size=1MiB)"), true).await.expect("it builds");
        let line = format!("file({path}, read_only=true, lock=false)");
        let reader = build(&line, false).await.expect("it builds beside the writer");
        let (to, from) = (writer.open().await.expect("it opens"), reader.open().await.expect("it opens"));
        for value in [1, 2] {
            let block = Buffer::copy_of(&[value; 4096]);
            to.write(BlockIndex(3), block.into(), Durability::Durable).await.expect("it writes");
            let (result, buffer) = from.read(BlockIndex(3), Buffer::new(4096)).await;
            result.expect("it reads");
            assert_eq!(buffer.filled(), [value; 4096]);
        }
        let refused =
            from.write(BlockIndex(3), Buffer::copy_of(&[9; 4096]).into(), Durability::Visible).await;
        assert!(matches!(refused, Err(block::Error::ReadOnly(_))), "{refused:?}");
        assert!(build(&format!("file({path}, lock=false)"), false).await.is_err(), "only readers");
    });
}

#[test]
fn null_takes_everything_and_reads_zeros() {
    run(|| async {
        let part = build("null(size=1GiB)", false).await.expect("it builds");
        let device = part.open().await.expect("it opens");
        device
            .write(BlockIndex(3), Buffer::copy_of(&[1; 4096]).into(), Durability::Durable)
            .await
            .expect("it takes it");
        let (result, buffer) = device.read(BlockIndex(3), Buffer::copy_of(&[9; 8192])).await;
        result.expect("it reads");
        assert_eq!(buffer.filled(), [0; 8192]);
        let (result, buffer) = device.read(BlockIndex(1 << 18), Buffer::new(4096)).await;
        assert_eq!((result.expect_err("outside").errno(), buffer.filled().len()), (libc::EINVAL, 0));
    });
}

#[test]
fn files_that_do_not_fit_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("odd"), vec![0; 5000]).expect("it writes");
    std::fs::write(path("even"), vec![1; 8192]).expect("it writes");
    let cases = [
        (format!("file({})", path("odd")), "the length of"),
        (
            format!("file({}, size=5000)", path("new")),
            "expected a multiple of the block size, 4096; 4KiB would fit",
        ),
        (
            format!("file({}, size=64KiB)", path("even")),
            "leave size out to take the file as it is, or format it",
        ),
        (format!("file({})", path("missing")), "to create it, give a size"),
        (format!("file({})", directory.path().display()), "neither a regular file nor a block device"),
        (format!("file({}, block_size=1000, size=64KiB)", path("new")), "a power of two"),
        ("ram(100)".to_string(), "at least 4096 is needed"),
    ];
    for (line, expected) in cases {
        let shown = line.clone();
        let error =
            run(move || async move { build(&line, false).await.err() }).expect("it is refused").to_string();
        assert!(error.contains(expected), "{shown}: {error}");
    }
    assert!(!Path::new(&path("new")).exists(), "nothing was made");
    // Only formatting may truncate a file.
    let line = format!("file({}, size=4KiB)", path("even"));
    run(move || async move { build(&line, true).await.map(drop) }).expect("it builds");
    assert_eq!(std::fs::metadata(path("even")).expect("it is there").len(), 4096);
}

#[test]
fn a_file_in_use_is_refused_until_it_is_free() {
    let directory = tempfile::tempdir().expect("a directory");
    let line = format!("file({}/disk, size=1MiB)", directory.path().display());
    run(move || async move {
        let part = build(&line, false).await.expect("it builds");
        let error = build(&line, false).await.err().expect("it is in use");
        assert_eq!(error.errno(), libc::EBUSY);
        assert!(error.to_string().contains("stop the other one first"), "{error}");
        drop(part);
        build(&line, false).await.expect("it is free");
    });
}

#[test]
fn holes_are_told_and_made() {
    let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let line = format!("file({}/disk, size=64MiB)", directory.path().display());
    run(move || async move {
        let part = build(&line, false).await.expect("it builds");
        let device = part.open().await.expect("it opens");
        let whole = BlockRange::new(0, 16384);
        let states = async |range| {
            let extents = device.extents(range).await.expect("it tells");
            extents
                .into_iter()
                .map(|extent| (extent.range.start.0, extent.range.count.0, extent.state))
                .collect::<Vec<_>>()
        };
        assert_eq!(states(whole).await, [(0, 16384, ExtentState::Hole)]);
        let megabyte = || Buffer::copy_of(&vec![1; 1 << 20]).into();
        device.write(BlockIndex(1024), megabyte(), Durability::Durable).await.expect("it writes");
        let (hole, data) = (ExtentState::Hole, ExtentState::Data);
        assert_eq!(states(whole).await, [(0, 1024, hole), (1024, 256, data), (1280, 15104, hole)]);
        device.discard(BlockRange::new(1024, 128)).await.expect("it discards");
        assert_eq!(states(BlockRange::new(1000, 200)).await, [(1000, 152, hole), (1152, 48, data)]);
        let keep = device.write_zeroes(BlockRange::new(0, 64), ZeroMode::KeepAllocated, Durability::Durable);
        keep.await.expect("it zeroes");
        let (result, buffer) = device.read(BlockIndex(0), Buffer::new(4096)).await;
        result.expect("it reads");
        assert_eq!(buffer.filled(), [0; 4096]);
    });
}

#[test]
fn after_a_failed_flush_nothing_is_called_durable_any_more() {
    let mut failed = 0;
    for seed in 0..20 {
        let faults = SimulatedFaults { sync_error: 0.3, ..SimulatedFaults::default() };
        let simulated = runtime::simulate(Simulation::new(seed).with_faults(faults), || async {
            let part = FilePart::open_path(Path::new("/disk"), Some(1 << 20)).await?;
            let device = part.open().await?;
            let mut results = Vec::new();
            for _ in 0..10 {
                device.write(BlockIndex(1), Buffer::zeroed(4096).into(), Durability::Visible).await?;
                results.push(device.flush().await.is_ok());
            }
            let durable = device.write(BlockIndex(1), Buffer::zeroed(4096).into(), Durability::Durable).await;
            assert_eq!(durable.is_ok(), results.iter().all(|ok| *ok));
            Ok::<Vec<bool>, block::Error>(results)
        });
        // Formatting also syncs, and may fail itself.
        let Ok(results) = simulated.expect("it ends").value else { continue };
        let first_failure = results.iter().position(|ok| !ok).unwrap_or(results.len());
        assert!(results[first_failure..].iter().all(|ok| !ok), "seed {seed}: {results:?}");
        failed += u32::from(first_failure < results.len());
    }
    assert!(failed > 5, "{failed} of 20 seeds had a failed flush");
}

/// Writes without a flush: the close makes them durable.
#[test]
fn a_closed_file_has_lost_nothing_after_a_power_cut() {
    for seed in 1..=10 {
        let simulated = runtime::simulate(Simulation::new(seed), || async {
            let part = FilePart::open_path(Path::new("/disk.img"), Some(1 << 20)).await.expect("it opens");
            let device = part.open().await.expect("it opens");
            for block in 0..256 {
                let data = Buffer::copy_of(&[7; 4096]).into();
                device.write(BlockIndex(block), data, Durability::Visible).await.expect("it is written");
            }
            drop(device);
            part.close().await.expect("it closes");
            runtime::power_cut()
        });
        let files = simulated.expect("it ends").value;
        let (_, bytes) = files.iter().find(|(path, _)| path.ends_with("disk.img")).expect("it is there");
        let lost = bytes.iter().filter(|byte| **byte != 7).count();
        assert_eq!((bytes.len(), lost), (1 << 20, 0), "seed {seed}");
    }
}
