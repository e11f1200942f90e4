//! A log on a thin disk whose host runs out of space: the write that finds none is refused, and the log
//! continues.

use crate::life::{Volume, run, small};
use block::{
    BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error, Extent,
    ExtentState, Part, Payload, ReadOutcome, Result, ZeroMode,
};
use log::core::Acknowledge;
use log::kind::Options;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A disk that takes space of its host when a block is first written, and never returns any.
struct Thin {
    inner: Arc<dyn DevicePart>,
    taken: Arc<Mutex<Vec<bool>>>,
    /// Total number of blocks of the host.
    host: Arc<AtomicU64>,
}

impl Thin {
    fn new(mebibytes: u64, host: u64) -> Arc<Thin> {
        let inner = crate::life::disk(mebibytes);
        let taken = vec![false; inner.geometry().blocks.0 as usize];
        Arc::new(Thin { inner, taken: Arc::new(Mutex::new(taken)), host: Arc::new(AtomicU64::new(host)) })
    }

    fn grow_host(&self, blocks: u64) {
        self.host.fetch_add(blocks, Ordering::Relaxed);
    }
}

impl Part for Thin {
    fn kind(&self) -> &'static str {
        "thin"
    }
}

impl DevicePart for Thin {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let (taken, host) = (self.taken.clone(), self.host.clone());
            Ok(Rc::new(Handle { inner: self.inner.open().await?, taken, host }) as Rc<dyn Device>)
        })
    }
}

struct Handle {
    inner: Rc<dyn Device>,
    taken: Arc<Mutex<Vec<bool>>>,
    host: Arc<AtomicU64>,
}

impl Handle {
    /// Takes space for a range, as far as there is any.
    fn take(&self, range: BlockRange) -> Result<()> {
        let mut taken = self.taken.lock().unwrap();
        let mut count = taken.iter().filter(|taken| **taken).count() as u64;
        for block in range.start.0..range.end().0 {
            if !taken[block as usize] {
                if count >= self.host.load(Ordering::Relaxed) {
                    return Err(Error::no_space(format!("block {block}: the host is full")));
                }
                taken[block as usize] = true;
                count += 1;
            }
        }
        Ok(())
    }
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        self.inner.geometry()
    }

    fn read(&self, at: BlockIndex, buffer: Buffer) -> Call<'_, ReadOutcome> {
        self.inner.read(at, buffer)
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match self.take(BlockRange::new(at.0, payload.len() as u64 / crate::life::BLOCK as u64)) {
            Ok(()) => self.inner.write(at, payload, durability),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        self.inner.flush()
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.inner.discard(range)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        match self.take(range) {
            Ok(()) => self.inner.write_zeroes(range, mode, durability),
            Err(error) => Call::ready(Err(error)),
        }
    }

    fn extents(&self, range: BlockRange) -> Call<'_, Result<Vec<Extent>>> {
        let taken = self.taken.lock().unwrap();
        let state = |block: u64| if taken[block as usize] { ExtentState::Data } else { ExtentState::Hole };
        let blocks = range.start.0..range.end().0;
        let all = blocks.map(|block| Extent { range: BlockRange::new(block, 1), state: state(block) });
        Call::ready(Ok(all.collect()))
    }
}

/// Writes blocks in order, `length` at a time, until one finds no space; returns the number of written
/// blocks.
async fn fill(volume: &Volume, from: u64, length: u64, version: u64) -> u64 {
    let mut at = from;
    while at + length <= volume.blocks() {
        match volume.try_write(at, length, version).await {
            Ok(()) => at += length,
            Err(Error::NoSpace(_)) => break,
            Err(error) => panic!("block {at}: {error}"),
        }
    }
    at - from
}

/// Writes blocks, retrying until the log has found that there is space.
async fn write_in_the_end(volume: &Volume, block: u64, count: u64, version: u64) {
    for _ in 0..400 {
        match volume.try_write(block, count, version).await {
            Ok(()) => return,
            Err(Error::NoSpace(_)) => runtime::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("block {block}: {error}"),
        }
    }
    panic!("block {block}: there is space, and the log doesn't find it");
}

async fn failed(volume: &Volume) -> Option<String> {
    volume.part.status().await.get("failed").map(ToString::to_string)
}

async fn free_zones(volume: &Volume) -> u64 {
    volume.part.status().await["zones"]["free"].as_u64().unwrap()
}

/// The host is full once its blocks are taken. Existing data can then be read, flushed and discarded, and
/// discards free space for other writes.
fn a_full_host(options: Options, length: u64) {
    run(move || async move {
        let disk = Thin::new(8, 1200);
        let part: Arc<dyn DevicePart> = disk.clone();
        let volume = Volume::make(&part, &options).await;
        let written = fill(&volume, 0, length, 1).await;
        assert!(written > 300 && written < 1200, "{written} blocks");
        assert_eq!(failed(&volume).await, None);
        // Many concurrent writes, none of which waits forever.
        let more = (0..20).map(|number| volume.try_write(written + number * length, length, 9));
        let refused = runtime::join_all(more).await;
        let is_right = |outcome: &Result<()>| matches!(outcome, Ok(()) | Err(Error::NoSpace(_)));
        assert!(refused.iter().all(is_right), "{refused:?}");
        assert_eq!(failed(&volume).await, None);
        volume.flush().await;
        assert_eq!(volume.versions(0, written).await, vec![1; written as usize]);
        // Discards need no space of the host, and free space.
        for block in (0..written / 2).step_by(16) {
            volume.discard(block, 16.min(written / 2 - block)).await;
        }
        volume.flush().await;
        assert_eq!(volume.versions(0, written / 2).await, vec![0; written as usize / 2]);
        for block in (0..written / 4).step_by(length as usize) {
            write_in_the_end(&volume, block, length.min(written / 4 - block), 2).await;
        }
        let expected = |block: u64| match block {
            block if block < written / 4 => 2,
            block if block < written / 2 => 0,
            _ => 1,
        };
        let expected: Vec<u64> = (0..written).map(expected).collect();
        assert_eq!(volume.versions(0, written).await, expected);
        // The log finds the new space of the host.
        disk.grow_host(10_000);
        for number in 0..20 {
            write_in_the_end(&volume, written + number * length, length, 3).await;
        }
        volume.flush().await;
        assert_eq!(failed(&volume).await, None);
        volume.close().await;
        let volume = Volume::open(&part, &options).await;
        assert_eq!(volume.versions(0, written).await, expected);
        assert_eq!(volume.versions(written, 20 * length).await, vec![3; 20 * length as usize]);
        volume.close().await;
    });
}

#[test]
fn a_full_host_refuses_writes_and_lets_discards_through() {
    a_full_host(small(), 1);
    a_full_host(small(), 7);
}

#[test]
fn what_was_acknowledged_from_memory_is_written() {
    a_full_host(Options { acknowledge: Acknowledge::Buffer, dirty: 64 << 10, ..small() }, 1);
}

/// The process dies while the host is full: the reopened log holds all acknowledged data, and no record is
/// missing.
#[test]
fn a_log_on_a_full_host_opens_after_a_crash() {
    run(|| async {
        let disk = Thin::new(8, 900);
        let part: Arc<dyn DevicePart> = disk.clone();
        let volume = Volume::make(&part, &small()).await;
        let written = fill(&volume, 0, 5, 1).await;
        volume.discard(0, 10).await;
        assert!(matches!(volume.try_write(written, 5, 2).await, Err(Error::NoSpace(_))));
        volume.flush().await;
        drop(volume);
        let volume = Volume::open(&part, &small()).await;
        let expected = |block: u64| u64::from(block >= 10);
        assert_eq!(volume.versions(0, written).await, (0..written).map(expected).collect::<Vec<u64>>());
        volume.discard(10, 10).await;
        volume.flush().await;
        volume.close().await;
    });
}

/// Cleaning fails for a while and no request wakes the cleaner: writes that were refused meanwhile succeed
/// afterwards.
#[test]
fn the_cleaner_tries_again_by_itself() {
    let world = runtime::Simulation::new(1);
    let main = async || {
        let rules = ["flush error=EIO".to_owned()];
        let rules = layers::fault::parse_rules(&rules, stack::Contract::Device).unwrap();
        let disk = Arc::new(layers::fault::FaultDevicePart::new(crate::life::disk(4), rules, 1).unwrap());
        disk.message("rules off").await.unwrap();
        let part: Arc<dyn DevicePart> = disk.clone();
        let options = Options { size: Some(64 * 4096), checkpoint_after: 64 << 20, ..small() };
        let volume = Volume::make(&part, &options).await;
        volume.write(0, 64, 1).await;
        let mut version = 1;
        // Until zones are nearly needed: most are dead, and are reset after the next checkpoint.
        while free_zones(&volume).await > 8 {
            version += 1;
            volume.write(0, 8, version).await;
        }
        disk.message("rules on").await.unwrap();
        let refused = loop {
            match volume.try_write(0, 1, version).await {
                Ok(()) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Io(_)), "{refused:?} after {version} writes");
        assert_eq!(failed(&volume).await, None);
        disk.message("rules off").await.unwrap();
        runtime::sleep(Duration::from_secs(70)).await;
        volume.write(8, 16, version).await;
        volume.flush().await;
        assert_eq!(volume.versions(0, 24).await, [version; 24]);
        assert_eq!(volume.versions(24, 40).await, [1; 40]);
        volume.close().await;
    };
    runtime::simulate(world, main).expect("the world runs");
}

/// Nothing can be written, not even the empty record in place of one that failed.
#[test]
fn a_host_without_any_space_refuses_at_once_and_goes_on_when_there_is_some() {
    run(|| async {
        let rules = ["write error=ENOSPC range=1MiB..8MiB".to_owned()];
        let rules = layers::fault::parse_rules(&rules, stack::Contract::Device).unwrap();
        let disk = Arc::new(layers::fault::FaultDevicePart::new(crate::life::disk(8), rules, 1).unwrap());
        disk.message("rules off").await.unwrap();
        let part: Arc<dyn DevicePart> = disk.clone();
        let volume = Volume::make(&part, &small()).await;
        volume.write(0, 300, 1).await;
        disk.message("rules on").await.unwrap();
        for round in 0..3 {
            let writes = (0..8).map(|block| volume.try_write(block * 3, 3, 2 + round));
            for outcome in runtime::join_all(writes).await {
                assert!(matches!(outcome, Err(Error::NoSpace(_))), "{outcome:?}");
            }
            assert!(matches!(volume.device.discard(BlockRange::new(200, 5)).await, Err(Error::NoSpace(_))));
            volume.flush().await;
            assert_eq!(volume.versions(100, 200).await, vec![1; 200]);
            assert_eq!(failed(&volume).await, None);
        }
        disk.message("rules off").await.unwrap();
        write_in_the_end(&volume, 0, 100, 7).await;
        volume.discard(200, 5).await;
        volume.flush().await;
        let expected: Vec<u64> = (0..300)
            .map(|block| match block {
                0..100 => 7,
                200..205 => 0,
                _ => 1,
            })
            .collect();
        assert_eq!(volume.versions(0, 300).await, expected);
        drop(volume);
        let volume = Volume::open(&part, &small()).await;
        assert_eq!(volume.versions(0, 300).await, expected);
        volume.close().await;
    });
}

/// Zones whose known space is full of live blocks aren't moved again and again.
#[test]
fn cleaning_on_a_full_host_comes_to_rest() {
    let main = async || {
        let disk = Thin::new(8, 1200);
        let part: Arc<dyn DevicePart> = disk.clone();
        let options = Options { acknowledge: Acknowledge::Buffer, dirty: 2 << 20, ..small() };
        let volume = Volume::make(&part, &options).await;
        let mut written = 0;
        while volume.try_write(written, 4, 1).await.is_ok() && volume.device.flush().await.is_ok() {
            written += 4;
        }
        assert!(written > 500 && written < 1200, "{written} blocks");
        volume.discard(0, 64).await;
        runtime::sleep(Duration::from_millis(1100)).await;
        let burst = (0..400).map(|block| volume.try_write(block, 1, 2));
        for outcome in runtime::join_all(burst).await {
            assert!(matches!(outcome, Ok(()) | Err(Error::NoSpace(_))), "{outcome:?}");
        }
        assert_eq!(failed(&volume).await, None);
        volume.flush().await;
        volume.close().await;
    };
    let world = runtime::Simulation { most_events: 1_000_000, ..runtime::Simulation::new(1) };
    runtime::simulate(world, main).expect("cleaning ends");
}

/// Runs a command; returns false if it fails.
fn runs(command: &[&str]) -> bool {
    let status = std::process::Command::new(command[0]).args(&command[1..]).status();
    status.is_ok_and(|status| status.success())
}

/// A small mounted file system; dropping it unmounts it.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        runs(&["umount", "-l", &self.0.display().to_string()]);
    }
}

#[test]
fn a_file_on_a_full_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display().to_string();
    if !runs(&["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", &place]) {
        println!("SKIPPED: a_file_on_a_full_file_system: mounting a tmpfs needs root");
        return;
    }
    let _mounted = Mounted(folder.path());
    let path = folder.path().join("disk");
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    run(move || async move {
        let disk = Arc::new(disks::file::FilePart::open_path(&path, Some(16 << 20)).await.unwrap());
        let part: Arc<dyn DevicePart> = disk.clone();
        let volume = Volume::make(&part, &small()).await;
        let written = fill(&volume, 0, 3, 1).await;
        assert!(written > 100 && written < 768, "{written} blocks");
        assert_eq!(failed(&volume).await, None);
        volume.flush().await;
        assert_eq!(volume.versions(0, written).await, vec![1; written as usize]);
        volume.discard(0, written / 2).await;
        write_in_the_end(&volume, 0, 30, 2).await;
        volume.flush().await;
        std::fs::remove_file(&ballast).unwrap();
        for block in (written..written + 90).step_by(3) {
            write_in_the_end(&volume, block, 3, 3).await;
        }
        volume.flush().await;
        assert_eq!(failed(&volume).await, None);
        volume.close().await;
        let volume = Volume::open(&part, &small()).await;
        assert_eq!(volume.versions(0, 30).await, [2; 30]);
        assert_eq!(volume.versions(30, written / 2 - 30).await, vec![0; written as usize / 2 - 30]);
        assert_eq!(volume.versions(written, 90).await, [3; 90]);
        volume.close().await;
    });
}
