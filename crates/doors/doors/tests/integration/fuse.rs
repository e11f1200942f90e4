//! The FUSE door against the kernel: a device as a file, and as a loop device with a file system.

use crate::fuse_support::{Loop, Mounted, Served, Settings, is_mounted, run_program};
use crate::need_fuse;
use crate::support::{SlowDisk, ram};
use block::DevicePart;
use conformance::fuse_transport::Transport;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("it opens")
}

fn punch(file: &File, offset: u64, length: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, offset, length).expect("punched");
}

fn zero(file: &File, offset: u64, length: u64) {
    rustix::fs::fallocate(file, FallocateFlags::ZERO_RANGE, offset, length).expect("zeroed");
}

/// Writes, punches and zeroes ranges of bytes of every kind, and compares the file with a model.
fn behaves_as_bytes(served: &Served, bytes: usize, seed: u64) {
    let file = open(&served.path);
    let mut model = vec![0_u8; bytes];
    let mut random = runtime::Random::new(seed);
    let mut below = |limit: usize| (random.next_u64() % limit as u64) as usize;
    for step in 0..200 {
        let offset = below(bytes);
        let longest = [700, 5000, 300_000][below(3)];
        let length = (1 + below(longest)).min(bytes - offset);
        let (range, at, count) = (offset..offset + length, offset as u64, length as u64);
        match below(8) {
            0..4 => {
                model[range.clone()].fill(step as u8 + 1);
                file.write_all_at(&model[range], at).expect("written");
            }
            4 => {
                model[range].fill(0);
                punch(&file, at, count);
            }
            5 => {
                model[range].fill(0);
                zero(&file, at, count);
            }
            _ => {
                let mut found = vec![0xEE; length];
                file.read_exact_at(&mut found, at).expect("read");
                assert!(found == model[range], "seed {seed}, step {step}: {length} bytes at {offset}");
            }
        }
    }
    file.sync_all().expect("flushed");
    file.sync_data().expect("flushed");
    assert!(std::fs::read(&served.path).expect("read") == model, "seed {seed}");
}

#[test]
fn a_device_is_a_file_of_bytes() {
    is_a_file_of_bytes(Transport::Device);
}

#[test]
fn a_device_is_a_file_of_bytes_over_rings() {
    is_a_file_of_bytes(Transport::Rings);
}

fn is_a_file_of_bytes(transport: Transport) {
    need_fuse!();
    if !transport.is_possible() {
        return;
    }
    for (block, shards) in [(512, 1), (4096, 2), (1 << 20, 2)] {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let path = folder.path().join("vol.img");
        let settings = Settings { shards, transport, ..Settings::default() };
        let device = ram(4 << 20, block);
        let served = Served::with(folder, path.clone(), settings, move || async move { device });
        let served = served.expect("it starts");
        let metadata = std::fs::metadata(&path).expect("it is there");
        assert_eq!((metadata.len(), metadata.mode()), (4 << 20, libc::S_IFREG | 0o600));
        behaves_as_bytes(&served, 4 << 20, block);
        let status = served.status();
        assert_eq!(status["state"], "mounted");
        assert!(status["writes"].as_u64() > Some(50) && status["flushes"].as_u64() >= Some(2), "{status:?}");
        assert_eq!(status["errors"], 0);
        assert_eq!(status["rings"], transport == Transport::Rings);
        served.stop().expect("it stops");
        assert!(!path.exists() && !is_mounted(&path), "the mount point is removed");
    }
}

#[test]
fn a_file_on_disk_is_served_and_keeps_what_was_written() {
    need_fuse!();
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let (image, path) = (folder.path().join("disk.img"), folder.path().join("vol.img"));
    std::fs::write(&path, "a file that is there already").expect("written");
    let build = format!("file({}, size=4MiB)", image.display());
    let make = move || async move {
        let registry = stack::Registry::new(vec![&disks::file::KIND]);
        let stack = stack::Stack::from_line("test", &build, &registry).expect("a stack");
        let built = stack.check(true).expect("fits").build().await.expect("builds");
        built.top().expect("a device")
    };
    let served = Served::with(folder.clone(), path.clone(), Settings::default(), make).expect("it starts");
    behaves_as_bytes(&served, 4 << 20, 5);
    let contents = std::fs::read(&path).expect("read");
    served.stop().expect("it stops");
    assert!(std::fs::read(image).expect("read") == contents);
    assert_eq!(std::fs::read(path).expect("read"), b"a file that is there already", "it remains");
}

#[test]
fn the_end_of_the_device_and_what_is_refused() {
    need_fuse!();
    let served = Served::new(ram(1 << 20, 4096));
    let (file, end) = (open(&served.path), 1 << 20);
    let error = |result: std::io::Result<usize>| result.expect_err("refused").raw_os_error();
    assert_eq!(file.write_at(&[7; 100], end - 30).expect("a short write"), 30);
    assert_eq!(error(file.write_at(&[7; 100], end)), Some(libc::ENOSPC));
    let mut buffer = [1; 100];
    assert_eq!(file.read_at(&mut buffer, end - 30).expect("a short read"), 30);
    assert_eq!(buffer[..31], [vec![7; 30], vec![1]].concat());
    assert_eq!(file.read_at(&mut buffer, end).expect("the end"), 0);
    assert_eq!(file.read_at(&mut buffer, end + 10_000).expect("beyond it"), 0);
    assert_eq!(file.set_len(5).expect_err("refused").raw_os_error(), Some(libc::EOPNOTSUPP));
    file.set_len(end).expect("the size that it has");
    let allocate = |flags, offset, length| rustix::fs::fallocate(&file, flags, offset, length);
    assert_eq!(allocate(FallocateFlags::empty(), 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(allocate(FallocateFlags::ZERO_RANGE, end - 10, 20), Err(rustix::io::Errno::NOSPC));
    let keep = FallocateFlags::KEEP_SIZE;
    allocate(FallocateFlags::ZERO_RANGE | keep, end - 10, 20).expect("up to the end");
    allocate(FallocateFlags::PUNCH_HOLE | keep, end + 10, 20).expect("nothing to punch");
    let statistics = rustix::fs::statvfs(&served.path).expect("statfs");
    assert_eq!((statistics.f_bsize, statistics.f_blocks, statistics.f_bfree), (4096, 256, 0));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&served.path, mode).expect("chmod");
    assert_eq!(std::fs::metadata(&served.path).expect("there").mode() & 0o7777, 0o644);
    drop(file);
    served.stop().expect("it stops");
}

#[test]
fn holes_are_found() {
    need_fuse!();
    let served = Served::new(ram(8 << 20, 4096));
    let file = open(&served.path);
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Err(rustix::io::Errno::NXIO), "nothing is written");
    file.write_all_at(&[1; 10], 1 << 20).expect("written");
    let data = seek(SeekFrom::Data(5)).expect("there is some");
    assert!((1..=1 << 20).contains(&(data as usize)), "{data}");
    let hole = seek(SeekFrom::Hole(1 << 20)).expect("after it");
    assert!(hole > 1 << 20 && hole <= 8 << 20, "{hole}");
    assert_eq!(seek(SeekFrom::Hole(hole + 5)).expect("inside the hole"), hole + 5);
    assert_eq!(seek(SeekFrom::Data(8 << 20)), Err(rustix::io::Errno::NXIO), "the end");
    drop(file);
    served.stop().expect("it stops");
}

/// A known defect of another export: while a write was in progress, the next request was read into the same
/// buffer.
#[test]
fn data_of_a_write_is_its_own_until_the_write_ends() {
    need_fuse!();
    for length in [300_usize, 4096, 200 << 10, 1 << 20] {
        let disk = SlowDisk::new(4096, 4096);
        let controls = disk.controls.clone();
        let served = Served::new(disk);
        controls.paused.store(true, Ordering::SeqCst);
        let file = open(&served.path);
        std::thread::scope(|scope| {
            for writer in 0..8_usize {
                let file = &file;
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || {
                        let data = vec![writer as u8 + 1; length];
                        file.write_all_at(&data, (writer * (length + 4096)) as u64).expect("written");
                    })
                    .expect("a thread");
            }
            // All writes have been read before the first one ends. A write of part of a block begins with a
            // read.
            while controls.begun.load(Ordering::SeqCst) < if length < 4096 { 1 } else { 8 } {
                std::thread::yield_now();
            }
            controls.paused.store(false, Ordering::SeqCst);
        });
        for writer in 0..8_usize {
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, (writer * (length + 4096)) as u64).expect("read");
            assert!(found.iter().all(|byte| *byte == writer as u8 + 1), "{length} bytes of writer {writer}");
        }
        drop(file);
        served.stop().expect("it stops");
    }
}

/// Writers of the same blocks, whose bytes don't overlap.
#[test]
fn parallel_writes_of_parts_of_a_block_lose_nothing() {
    need_fuse!();
    const PIECE: usize = 512;
    const WRITERS: usize = 8;
    let served = Served::new(SlowDisk::new(16, 4096));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = &served.path;
            std::thread::Builder::new()
                .spawn_scoped(scope, move || {
                    let file = open(path);
                    for round in 0..20 {
                        for block in 0..16 {
                            let at = (block * 4096 + writer * PIECE) as u64;
                            let value = (round * 16 + block + writer) as u8;
                            file.write_all_at(&[value; PIECE], at).expect("written");
                            let mut found = [0; PIECE];
                            file.read_exact_at(&mut found, at).expect("read");
                            assert_eq!(
                                found, [value; PIECE],
                                "round {round}, block {block}, writer {writer}"
                            );
                        }
                    }
                })
                .expect("a thread");
        }
    });
    let contents = std::fs::read(&served.path).expect("read");
    for (number, piece) in contents.chunks(PIECE).enumerate() {
        let expected = (19 * 16 + number / WRITERS + number % WRITERS) as u8;
        assert!(piece.iter().all(|byte| *byte == expected), "piece {number}");
    }
    served.stop().expect("it stops");
}

/// ext4 on a loop device with direct I/O, whose sectors are smaller than the device's blocks, equal, and
/// larger.
#[test]
fn a_file_system_on_a_loop_device_is_intact() {
    is_intact_on_a_loop_device(
        Transport::Device,
        &[("512", 512), ("512", 4096), ("4096", 4096), ("4096", 512)],
    );
}

#[test]
fn a_file_system_on_a_loop_device_over_rings_is_intact() {
    is_intact_on_a_loop_device(Transport::Rings, &[("512", 4096)]);
}

fn is_intact_on_a_loop_device(transport: Transport, geometries: &[(&str, u64)]) {
    need_fuse!("losetup", "mkfs.ext4", "fsck.ext4", "sha256sum");
    if !transport.is_possible() {
        return;
    }
    for &(sector, block) in geometries {
        let served = Served::over(ram(96 << 20, block), transport);
        let device = Loop::new(&served.path, sector);
        let direct = run_program("losetup", &["--noheadings", "--output", "DIO,LOG-SEC", &device.0]);
        assert_eq!(direct.split_whitespace().collect::<Vec<_>>(), ["1", sector]);
        let small = if sector == "512" { "1024" } else { "4096" };
        run_program("mkfs.ext4", &["-q", "-b", small, &device.0]);
        let at = served.folder.path().join("mounted");
        let mounted = Mounted::new(&device.0, &at);
        let script = "
            set -e
            cd \"$0\"
            for i in 1 2 3 4; do (
                mkdir $i
                for n in $(seq 1 40); do
                    head -c $((n * 977)) /dev/urandom > $i/$n
                done
                head -c 5000000 /dev/urandom > $i/large
                rm $i/1? && sync $i/large
            ) & done
            wait
            find . -type f -print0 | sort -z | xargs -0 sha256sum > ../sums
            fstrim . || true
        ";
        run_program("sh", &["-c", script, at.to_str().expect("text")]);
        mounted.unmount();
        run_program("fsck.ext4", &["-fn", &device.0]);
        let mounted = Mounted::new(&device.0, &at);
        run_program("sh", &["-c", "cd \"$0\" && sha256sum --quiet -c ../sums", at.to_str().expect("text")]);
        mounted.unmount();
        drop(device);
        served.stop().expect("it stops");
    }
}

#[test]
fn a_read_only_door_refuses_to_open_for_writing() {
    need_fuse!();
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("vol.img");
    let settings = Settings { read_only: true, ..Settings::default() };
    let device = ram(1 << 20, 4096);
    let served = Served::with(folder, path.clone(), settings, move || async move { device });
    let served = served.expect("it starts");
    let error = OpenOptions::new().write(true).open(&path).expect_err("refused");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    assert_eq!(std::fs::read(&path).expect("read").len(), 1 << 20);
    served.stop().expect("it stops");
}

#[test]
fn durable_writes_are_passed_on() {
    need_fuse!();
    let disk = SlowDisk::new(64, 4096);
    let controls = disk.controls.clone();
    let served = Served::new(disk);
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DSYNC).open(&served.path).expect("opens");
    file.write_all_at(&[1; 4096], 0).expect("written");
    assert_eq!(controls.durable_writes.load(Ordering::SeqCst), 1);
    drop(file);
    let file = open(&served.path);
    file.write_all_at(&[1; 4096], 0).expect("written");
    assert_eq!(controls.flushes.load(Ordering::SeqCst), 0);
    file.sync_data().expect("flushed");
    assert_eq!(controls.flushes.load(Ordering::SeqCst), 1);
    controls.broken.lock().expect("not poisoned").insert(3);
    let failed = file.write_all_at(&[1; 4096], 3 * 4096).expect_err("a broken block");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    drop(file);
    assert_eq!(served.status()["errors"], 1);
    served.stop().expect("it stops");
    assert_eq!(controls.handles.load(Ordering::SeqCst), 0, "no handle is open any more");
}

#[test]
fn what_lies_at_the_path() {
    need_fuse!();
    let first = Served::new(ram(1 << 20, 4096));
    let start = |path: &Path| {
        let device = ram(1 << 20, 512);
        Served::with(
            first.folder.clone(),
            path.to_owned(),
            Settings::default(),
            move || async move { device },
        )
    };
    let Err(error) = start(&first.path) else { panic!("a file is mounted there") };
    assert_eq!(error.errno(), libc::EBUSY, "{error}");
    let Err(error) = start(first.folder.path()) else { panic!("it is a folder") };
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    let Err(error) = start(Path::new("/nowhere/at/all")) else { panic!("it isn't there") };
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
    assert_eq!(std::fs::read(&first.path).expect("the first one is not disturbed").len(), 1 << 20);
    // A mount without a server, as after a kill.
    first.abort();
    let gone = std::fs::read(&first.path).expect_err("aborted");
    assert_eq!(gone.raw_os_error(), Some(libc::ENOTCONN));
    while first.status()["state"] != "aborted" {
        std::thread::yield_now();
    }
    let second = start(&first.path).expect("it is replaced");
    assert_eq!(std::fs::read(&first.path).expect("read").len(), 1 << 20);
    second.stop().expect("it stops");
    first.stop().expect("it stops");
}

#[test]
fn users_of_a_door_that_stops_get_errors_in_the_end() {
    need_fuse!();
    let folder = Arc::new(tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("vol.img");
    let settings = Settings { stop_limit: Duration::from_millis(200), ..Settings::default() };
    let device = ram(1 << 20, 4096) as Arc<dyn DevicePart>;
    let served = Served::with(folder, path.clone(), settings, move || async move { device });
    let served = served.expect("it starts");
    let file = open(&path);
    let error = served.stop().expect_err("the file is open");
    assert_eq!(error.errno(), libc::EBUSY, "{error}");
    assert!(error.to_string().contains("lazily"), "{error}");
    let failed = file.read_at(&mut [0; 10], 0).expect_err("aborted");
    assert!([libc::ECONNABORTED, libc::ENOTCONN].contains(&failed.raw_os_error().unwrap_or(0)), "{failed}");
    assert!(!is_mounted(&path));
}
