//! Promises of a file beyond the contract: no flush succeeds once data may be lost, writes go to the file
//! that was locked, and the file is locked before any file of the stack changes.

use block::{BlockIndex, BlockRange, Buffer, Device, DevicePart, Durability, Error, Part, Payload, ZeroMode};
use disks::file::FilePart;
use runtime::{Config, ShardIndex, SimulatedFaults, Simulation};
use stack::{Registry, Stack};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

fn plan(text: &str, format: bool) -> block::Result<stack::Plan> {
    let registry = Registry::new(vec![&disks::file::KIND]);
    let stack = match text.contains('\n') {
        true => Stack::from_toml("test", text, &registry),
        false => Stack::from_line("test", text, &registry),
    };
    let plan = stack.and_then(|stack| stack.check(format));
    plan.map_err(|problems| Error::invalid(problems.to_string()))
}

async fn build(line: &str) -> block::Result<Arc<dyn DevicePart>> {
    plan(line, false)?.build().await?.top()
}

fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut + Send) -> T {
    runtime::run(Config::default().with_shards(2), main).expect("the runtime starts")
}

fn block_of(byte: u8) -> Payload {
    Buffer::copy_of(&[byte; 4096]).into()
}

/// A world whose write-back often fails, with a file of 1 MiB of zeros.
fn simulate<T: 'static, Fut: Future<Output = T> + 'static>(seed: u64, main: fn() -> Fut) -> T {
    let faults = SimulatedFaults { sync_error: 0.3, ..SimulatedFaults::default() };
    let files = vec![("/disk".into(), vec![0; 1 << 20])];
    let simulation = Simulation::new(seed).with_shards(2).with_faults(faults).with_files(files);
    runtime::simulate(simulation, main).expect("it ends").value
}

/// A part on the file of such a world, and a handle.
async fn open() -> (Arc<FilePart>, Rc<dyn Device>) {
    let part = Arc::new(FilePart::open_path(Path::new("/disk"), None).await.expect("it builds"));
    let device = part.open().await.expect("it opens");
    (part, device)
}

/// Whether this block would survive a power cut with these contents.
fn survives(block: usize, byte: u8) -> bool {
    let (_, contents) = runtime::power_cut().remove(0);
    contents[block * 4096..][..4096] == [byte; 4096]
}

#[test]
fn after_a_failed_durable_write_no_flush_succeeds() {
    let mut failed = 0;
    for seed in 0..40 {
        failed += u32::from(simulate(seed, || async {
            let (part, device) = open().await;
            device.write(BlockIndex(1), block_of(1), Durability::Visible).await.expect("it is visible");
            if device.write(BlockIndex(2), block_of(2), Durability::Durable).await.is_ok() {
                return false;
            }
            assert_eq!(part.status().await["flush_failed"], true);
            for _ in 0..5 {
                let error = device.flush().await.expect_err("block 1 may be lost");
                assert_eq!(error.errno(), libc::EIO);
            }
            device.write(BlockIndex(3), block_of(3), Durability::Durable).await.expect_err("the same");
            let zeroes =
                device.write_zeroes(BlockRange::new(4, 1), ZeroMode::KeepAllocated, Durability::Durable);
            zeroes.await.expect_err("the same");
            runtime::spawn_on(ShardIndex(1), {
                let part = part.clone();
                move || async move { part.open().await.expect("it opens").flush().await }
            })
            .await
            .expect("it ends")
            .expect_err("on every shard");
            part.close().await.expect_err("nor is it closed in order");
            true
        }));
    }
    assert!(failed > 5, "{failed} of 40 seeds had a failed write");
}

#[test]
fn a_flush_beside_one_that_fails_does_not_lie() {
    let (mut failed, mut shared) = (0, 0);
    for seed in 0..200 {
        let (outcomes, survives) = simulate(seed, || async {
            let (part, device) = open().await;
            device.write(BlockIndex(1), block_of(1), Durability::Visible).await.expect("it is visible");
            let here: Vec<_> = (0..3)
                .map(|_| {
                    let device = device.clone();
                    runtime::spawn(async move { device.flush().await.is_ok() })
                })
                .collect();
            let there = runtime::spawn_on(ShardIndex(1), {
                let part = part.clone();
                move || async move { part.open().await.expect("it opens").flush().await.is_ok() }
            });
            let mut outcomes = vec![there.await.expect("it ends")];
            for flush in here {
                outcomes.push(flush.await);
            }
            (outcomes, survives(1, 1))
        });
        assert!(survives || !outcomes.contains(&true), "seed {seed}: {outcomes:?}");
        failed += u32::from(outcomes.contains(&false));
        shared += u32::from(!outcomes.contains(&true));
    }
    assert!(failed > 20 && shared > 10, "{failed} of 200 seeds had a failed flush, {shared} only such");
}

/// A sync that a waiting flush shares has to begin after the flush was called.
#[test]
fn a_flush_covers_writes_that_were_acknowledged_while_another_flush_ran() {
    for seed in 0..100 {
        let simulation = Simulation::new(seed).with_files(vec![("/disk".into(), vec![0; 1 << 20])]);
        let lost = runtime::simulate(simulation, || async {
            let (_part, device) = open().await;
            let mut writers = Vec::new();
            for block in 0..8 {
                let device = device.clone();
                writers.push(runtime::spawn(async move {
                    let mut lost = 0;
                    for round in 1..8 {
                        let data = block_of(round);
                        device
                            .write(BlockIndex(block), data, Durability::Visible)
                            .await
                            .expect("it is visible");
                        device.flush().await.expect("it is durable");
                        lost += u32::from(!survives(block as usize, round));
                    }
                    lost
                }));
            }
            let mut lost = 0;
            for writer in writers {
                lost += writer.await;
            }
            lost
        });
        assert_eq!(lost.expect("it ends").value, 0, "seed {seed}");
    }
}

/// The kernel reports a write-back error once; a dropped call must not lose it.
#[test]
fn the_error_of_an_abandoned_flush_or_durable_write_is_not_forgotten() {
    let mut failed = 0;
    for seed in 0..100 {
        failed += u32::from(simulate(seed, || async {
            let (part, device) = open().await;
            device.write(BlockIndex(1), block_of(1), Durability::Visible).await.expect("it is visible");
            let brief = Duration::from_micros(1);
            runtime::timeout(brief, device.flush()).await.expect_err("it takes longer");
            let durable = device.write(BlockIndex(2), block_of(2), Durability::Durable);
            runtime::timeout(brief, durable).await.expect_err("it takes longer");
            runtime::sleep(Duration::from_secs(1)).await;
            let flushed = device.flush().await.is_ok();
            assert!(!flushed || survives(1, 1));
            part.status().await["flush_failed"] == true
        }));
    }
    assert!(failed > 20, "{failed} of 100 seeds had a failure");
}

/// A server of a file that was moved must not write to the file that replaced it.
#[test]
fn the_file_that_was_locked_is_written_whatever_its_path_leads_to() {
    for direct in ["auto", "off"] {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let [image, moved] = ["disk.img", "moved.img"].map(|name| folder.path().join(name));
        let line = format!("file({}, size=1MiB, direct={direct})", image.display());
        let paths = (image.clone(), moved.clone());
        run(move || async move {
            let (image, moved) = paths;
            let part = build(&line).await.expect("it builds");
            std::fs::rename(&image, &moved).expect("it moves");
            std::fs::write(&image, vec![7; 1 << 20]).expect("it writes");
            let device = part.open().await.expect("it opens");
            device.write(BlockIndex(3), block_of(3), Durability::Durable).await.expect("it is durable");
            device.flush().await.expect("it is flushed");
            let (result, buffer) = device.read(BlockIndex(3), Buffer::new(4096)).await;
            result.expect("it reads");
            assert_eq!(buffer.filled(), [3; 4096]);
            drop(device);
            part.close().await.expect("it closes");
        });
        let read = |path: &Path| std::fs::read(path).expect("it reads");
        assert!(
            read(&image).iter().all(|byte| *byte == 7),
            "direct={direct}: the replacement was written to"
        );
        assert_eq!(read(&moved)[3 * 4096..][..4096], [3; 4096], "direct={direct}");
    }
}

#[test]
fn an_image_is_made_for_its_owner_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk.img");
    let line = format!("file({}, size=1MiB)", path.display());
    run(move || async move { build(&line).await.map(drop) }).expect("it builds");
    let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn no_file_of_a_stack_is_changed_before_all_are_locked() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    for name in ["a", "b", "c"] {
        std::fs::write(path(name), vec![7; 1 << 20]).expect("it writes");
    }
    let taken = std::fs::File::open(path("b")).expect("it opens");
    taken.try_lock().expect("it is free");
    let device = |name: &str| {
        format!("[device.{name}]\nkind = \"file\"\npath = \"{}\"\nsize = \"2MiB\"\n", path(name).display())
    };
    // A missing file isn't created either.
    let text = ["new", "a", "b", "c"].map(device).join("\n");
    let refused = text.clone();
    let error =
        run(move || async move { plan(&refused, true)?.build().await.map(drop) }).expect_err("b is taken");
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(error.to_string().contains("file \"b\": "), "{error}");
    assert!(!path("new").exists());
    for name in ["a", "b", "c"] {
        assert!(std::fs::read(path(name)).expect("it reads") == [7; 1 << 20], "{name} was changed");
    }
    drop(taken);
    run(move || async move { plan(&text, true)?.build().await.map(drop) }).expect("all are free");
    assert_eq!(["new", "a", "b", "c"].map(|name| std::fs::metadata(path(name)).unwrap().len()), [2 << 20; 4]);
}

/// Only where the page cache was asked for: elsewhere a write that is acknowledged is on the disk.
#[test]
fn plain_calls_write_bytes_to_the_page_cache_with_direct_off_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for direct in ["off", "auto", "on"] {
        let path = folder.path().join(direct);
        let line = format!("file({}, size=1MiB, direct={direct})", path.display());
        run(move || async move {
            let part = build(&line).await.expect("it builds");
            let device = part.open().await.expect("it opens");
            let Some(bytes) = device.open_cached(BlockRange::new(2, 4)) else {
                assert_ne!(direct, "off");
                return;
            };
            assert_eq!(direct, "off");
            bytes.write(4090, b"twelve bytes").expect("it is written");
            let (read, buffer) = device.read(BlockIndex(2), Buffer::new(8192)).await;
            read.expect("it is read");
            assert_eq!(&buffer.filled()[4090..4102], b"twelve bytes");
            assert!(buffer.filled()[..4090].iter().all(|byte| *byte == 0));
            let mut again = [0; 12];
            bytes.read(4090, &mut again).expect("it is read");
            assert_eq!(&again, b"twelve bytes");
            for (offset, length) in [(16384, 1), (16383, 2), (u64::MAX, 1)] {
                let refused = bytes.write(offset, &vec![1; length]).expect_err("outside of the range");
                assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
            }
            assert!(device.open_cached(BlockRange::new(250, 7)).is_none(), "outside of the device");
            device.flush().await.expect("it is durable");
        });
    }
}

/// The loss of such a page may be reported nowhere.
#[test]
fn plain_calls_write_nothing_after_a_failed_flush() {
    let mut failed = 0;
    for seed in 0..20 {
        failed += u32::from(simulate(seed, || async {
            let device = build("file(/disk, direct=off)").await.expect("it builds");
            let device = device.open().await.expect("it opens");
            let bytes = device.open_cached(BlockRange::new(1, 1)).expect("the page cache");
            bytes.write(0, &[7; 100]).expect("it is written");
            if device.flush().await.is_ok() {
                bytes.write(0, &[8; 100]).expect("it is written");
                return false;
            }
            let error = bytes.write(0, &[8; 100]).expect_err("a flush has failed");
            assert_eq!(error.errno(), libc::EIO);
            true
        }));
    }
    assert!((1..20).contains(&failed), "{failed} of 20 seeds had a failed flush");
}

#[test]
fn bytes_that_plain_calls_write_survive_a_power_cut_after_a_flush() {
    let files = vec![("/disk".into(), vec![0; 1 << 20])];
    let mut kept = 0;
    for seed in 0..20 {
        let simulation = Simulation::new(seed).with_files(files.clone());
        let run = runtime::simulate(simulation, || async {
            let device = build("file(/disk, direct=off)").await.expect("it builds");
            let device = device.open().await.expect("it opens");
            let bytes = device.open_cached(BlockRange::new(1, 1)).expect("the page cache");
            bytes.write(0, &[7; 4096]).expect("it is written");
            let before = survives(1, 7);
            device.flush().await.expect("it is durable");
            assert!(survives(1, 7));
            before
        });
        kept += u32::from(run.expect("it ends").value);
    }
    assert!(kept < 20, "a power cut before the flush may lose them");
}
