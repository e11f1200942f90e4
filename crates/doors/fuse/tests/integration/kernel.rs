//! Sessions with the kernel as the peer.

use crate::memory::{Controls, Memory};
use conformance::fuse_transport::Transport;
use fuse::protocol::init_flag;
use fuse::{Ended, Mount, MountOptions, Negotiated, Session};
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A mount point. Its mount is removed at the end, even if the test fails. The server's threads have then
/// ended, so the kernel has ended the connection.
struct Point {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Point {
    /// `None` where FUSE can't be used.
    fn new(transport: Transport) -> Option<Point> {
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        if !is_root || device.is_err() {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            println!("SKIPPED: {name}: needs root and /dev/fuse");
            return None;
        }
        if !transport.is_possible() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mounted");
        std::fs::create_dir(&path).expect("a mount point");
        Some(Point { _folder: folder, path })
    }

    fn options(&self) -> MountOptions {
        MountOptions { path: self.path.clone(), source: "memory".into(), ..MountOptions::default() }
    }

    fn is_mounted(&self) -> bool {
        let text = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        text.lines().any(|line| line.split(' ').nth(1) == self.path.to_str())
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(&self.path).output();
        }
    }
}

/// Mounts on this transport.
async fn mount(transport: Transport, memory: Memory, options: MountOptions) -> Session {
    let parameter = transport.set();
    let session = Session::mount(Arc::new(memory), options).await.expect("mounted");
    drop(parameter);
    let takes_rings = session.negotiated().has(init_flag::OVER_IO_URING);
    assert_eq!(takes_rings, transport == Transport::Rings);
    session
}

/// The tests that run over both transports.
macro_rules! over_both {
    ($($test:ident,)*) => {
        mod by_the_device {
            $(#[test] fn $test() { super::$test(conformance::fuse_transport::Transport::Device) })*
        }
        mod by_rings {
            $(#[test] fn $test() { super::$test(conformance::fuse_transport::Transport::Rings) })*
        }
    };
}

over_both! {
    a_whole_file_system_is_served,
    an_interrupted_read_is_passed_on,
    requests_of_a_server_that_was_killed_fail,
    a_dead_mount_is_replaced_and_a_session_in_use_is_busy,
    an_abort_spares_the_mount_of_another_server,
}

/// Runs calls that wait for the file system on a thread of their own.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    runtime::blocking(work).await
}

fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(
    shards: usize,
    main: impl FnOnce() -> Fut + Send,
) -> T {
    runtime::run(runtime::Config::default().with_shards(shards), main).expect("the runtime runs")
}

fn uses_every_operation(root: &Path) {
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
    std::fs::create_dir_all(root.join("a/b")).expect("directories");
    let path = root.join("a/file");
    let mut file = File::create_new(&path).expect("created");
    std::io::Write::write_all(&mut file, &[7; 3 << 20]).expect("written");
    file.write_all_at(b"here", 100).expect("written");
    let contents = std::fs::read(&path).expect("read");
    assert_eq!(contents.len(), 3 << 20);
    assert_eq!(contents[98..106], *b"\x07\x07here\x07\x07");
    file.set_len(200).expect("truncated");
    assert_eq!(file.metadata().expect("attributes").len(), 200);
    file.sync_all().expect("synced");
    assert_eq!(errno(File::create_new(&path).expect_err("exists")), libc::EEXIST);
    std::fs::hard_link(&path, root.join("linked")).expect("linked");
    assert_eq!(std::fs::metadata(root.join("linked")).expect("attributes").nlink(), 2);
    symlink("a/file", root.join("symbolic")).expect("linked");
    assert_eq!(std::fs::read(root.join("symbolic")).expect("followed").len(), 200);
    std::fs::rename(&path, root.join("a/b/renamed")).expect("renamed");
    assert_eq!(errno(std::fs::metadata(&path).expect_err("renamed")), libc::ENOENT);
    let flags = rustix::fs::RenameFlags::NOREPLACE;
    let at = rustix::fs::CWD;
    let refused = rustix::fs::renameat_with(at, root.join("linked"), at, root.join("a/b/renamed"), flags);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    assert_eq!(errno(std::fs::remove_dir(root.join("a/b")).expect_err("not empty")), libc::ENOTEMPTY);
    let name = root.join("linked");
    rustix::fs::setxattr(&name, "user.colour", b"blue", rustix::fs::XattrFlags::empty()).expect("set");
    let mut value = [0; 100];
    assert_eq!(rustix::fs::getxattr(&name, "user.colour", &mut value), Ok(4));
    assert_eq!(rustix::fs::getxattr(&name, "user.colour", &mut value[..2]), Err(rustix::io::Errno::RANGE));
    assert_eq!(rustix::fs::listxattr(&name, &mut value), Ok(12));
    rustix::fs::removexattr(&name, "user.colour").expect("removed");
    assert_eq!(rustix::fs::getxattr(&name, "user.colour", &mut value), Err(rustix::io::Errno::NODATA));
    rustix::fs::mknodat(at, root.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
    // More entries than one READDIR returns.
    for number in 0..500 {
        File::create(root.join(format!("a/entry-with-a-longer-name-{number:03}"))).expect("created");
    }
    let names: Vec<_> = std::fs::read_dir(root.join("a"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names.len(), 501);
    let (from, to) = (File::open(&name).expect("opens"), File::create(root.join("copy")).expect("opens"));
    let mut offset = 50;
    assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut offset), &to, None, 100), Ok(100));
    assert_eq!(std::fs::read(root.join("copy")).expect("read")[50..54], *b"here");
    let statistics = rustix::fs::statvfs(root).expect("statfs");
    assert_eq!((statistics.f_blocks, statistics.f_bfree, statistics.f_bavail), (1000, 500, 400));
    std::fs::remove_file(root.join("a/b/renamed")).expect("removed");
    std::fs::remove_dir(root.join("a/b")).expect("removed");
    // The kernel implements locks.
    rustix::fs::flock(&from, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    assert_eq!(rustix::fs::ioctl_blksszget(&to), Err(rustix::io::Errno::NOTTY));
}

fn a_whole_file_system_is_served(transport: Transport) {
    let Some(point) = Point::new(transport) else { return };
    for shards in [1, 2] {
        let (options, path) = (point.options(), point.path.clone());
        let memory = Memory::new();
        let controls = memory.controls.clone();
        run(shards, move || async move {
            let session = mount(transport, memory, options).await;
            assert!(session.negotiated().minor >= 36 && session.negotiated().max_write == 1 << 20);
            aside(move || uses_every_operation(&path)).await;
            assert_eq!(session.uses_rings(), transport == Transport::Rings);
            session.stop(Duration::from_secs(5)).await.expect("unmounted");
            assert_eq!(session.outcome(), Some(&Ended::Unmounted));
            assert!(session.descriptors().expect("none").is_empty());
        });
        assert_eq!(controls.largest_write.load(Ordering::SeqCst), 1 << 20, "in one request");
        assert_eq!(controls.unaligned_writes.load(Ordering::SeqCst), 0);
        assert!(!point.is_mounted());
    }
}

/// Waits until the server has this number of reads.
async fn reads_have_begun(controls: &Controls, count: u64) {
    while controls.reads_begun.load(Ordering::SeqCst) < count {
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

fn an_interrupted_read_is_passed_on(transport: Transport) {
    let Some(point) = Point::new(transport) else { return };
    let (options, path, memory) = (point.options(), point.path.clone(), Memory::new());
    run(2, move || async move {
        let controls = memory.controls.clone();
        let session = mount(transport, memory, options).await;
        let file = path.join("file");
        let written = file.clone();
        aside(move || std::fs::write(written, [5; 1000]).expect("written")).await;
        controls.paused.store(true, Ordering::SeqCst);
        let mut reader =
            Command::new("cat").arg(file).stdout(std::process::Stdio::null()).spawn().expect("it runs");
        reads_have_begun(&controls, 1).await;
        reader.kill().expect("killed");
        while controls.interrupted.load(Ordering::SeqCst) == 0 {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        // The kernel waits for the answer of a request that the server has.
        controls.paused.store(false, Ordering::SeqCst);
        aside(move || reader.wait().expect("ended")).await;
        session.stop(Duration::from_secs(5)).await.expect("unmounted");
    });
}

fn requests_of_a_server_that_was_killed_fail(transport: Transport) {
    let Some(point) = Point::new(transport) else { return };
    let (options, path, memory) = (point.options(), point.path.clone(), Memory::new());
    // The runtime ends with the session, and closes its devices and rings, which looks to the kernel as if
    // the process had been killed.
    let reading = run(2, move || async move {
        let controls = memory.controls.clone();
        let _session = mount(transport, memory, options).await;
        let file = path.join("file");
        let written = file.clone();
        aside(move || std::fs::write(written, [5; 1000]).expect("written")).await;
        controls.paused.store(true, Ordering::SeqCst);
        let read = move || std::fs::read(file).map(drop);
        let reading = std::thread::Builder::new().spawn(read).expect("a thread");
        reads_have_begun(&controls, 1).await;
        reading
    });
    let error = reading.join().expect("it ends").expect_err("no server").raw_os_error();
    assert!(matches!(error, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error:?}");
    let gone = std::fs::read_dir(&point.path).map(drop).expect_err("no server");
    assert!(matches!(gone.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{gone}");
}

/// The kernel wouldn't resend the requests in its rings.
#[test]
fn a_connection_with_rings_is_not_adopted() {
    let Some(point) = Point::new(Transport::Rings) else { return };
    let (options, path) = (point.options(), point.path.clone());
    run(1, move || async move {
        let session = mount(Transport::Rings, Memory::new(), options).await;
        let (devices, negotiated) = (session.descriptors().expect("duplicates"), *session.negotiated());
        let existing = Mount::existing(path);
        let adopted = Session::adopt(Arc::new(Memory::new()), devices, negotiated, existing).await;
        let error = adopted.err().expect("refused");
        assert!(matches!(error, block::Error::Unsupported(_)), "{error}");
        session.stop(Duration::from_secs(5)).await.expect("unmounted");
    });
}

#[test]
fn a_new_server_answers_what_a_killed_one_did_not() {
    let Some(point) = Point::new(Transport::Device) else { return };
    let memory = Memory::new();
    let controls = memory.controls.clone();
    let options = MountOptions { adoptable: true, ..point.options() };
    let (path, first) = (point.path.clone(), memory.clone());
    let (send, receive) = std::sync::mpsc::channel::<Vec<u8>>();
    // The runtime ends with the session, and closes its devices, which looks to the kernel as if the process
    // had been killed.
    let (devices, text): (Vec<OwnedFd>, String) = run(2, move || async move {
        let session = Session::mount(Arc::new(first.clone()), options).await.expect("mounted");
        let file = path.join("file");
        let written = file.clone();
        aside(move || std::fs::write(written, vec![5; 1000]).expect("written")).await;
        first.controls.paused.store(true, Ordering::SeqCst);
        let reader = std::thread::Builder::new();
        let reading = reader.spawn(move || send.send(std::fs::read(file).expect("read")));
        drop(reading.expect("a thread"));
        reads_have_begun(&first.controls, 1).await;
        let text = serde_json::to_string(session.negotiated()).expect("text");
        (session.descriptors().expect("duplicates"), text)
    });
    assert_eq!(devices.len(), 2, "one for each shard");
    assert!(receive.try_recv().is_err(), "the request waits");
    controls.paused.store(false, Ordering::SeqCst);
    let negotiated: Negotiated = serde_json::from_str(&text).expect("what was negotiated");
    if !negotiated.has(fuse::protocol::init_flag::HAS_RESEND) {
        return println!("SKIPPED: a_new_server_answers_what_a_killed_one_did_not: needs Linux 6.9");
    }
    let (mount, path) = (Mount::existing(point.path.clone()), point.path.clone());
    // With another number of shards than before.
    run(3, move || async move {
        let session = Session::adopt(Arc::new(memory), devices, negotiated, mount).await.expect("adopted");
        let found = aside(move || receive.recv().expect("the read ends")).await;
        assert_eq!(found, vec![5; 1000]);
        aside(move || uses_every_operation(&path)).await;
        session.stop(Duration::from_secs(5)).await.expect("unmounted");
    });
    assert!(controls.resent.load(Ordering::SeqCst) >= 1);
    assert!(!point.is_mounted());
}

fn a_dead_mount_is_replaced_and_a_session_in_use_is_busy(transport: Transport) {
    let Some(point) = Point::new(transport) else { return };
    let (options, path) = (point.options(), point.path.clone());
    run(1, move || async move {
        let first = mount(transport, Memory::new(), options.clone()).await;
        first.leave().await;
        assert_eq!(first.outcome(), Some(&Ended::Left));
        let its = path.clone();
        let gone = aside(move || std::fs::read_dir(its).map(drop)).await.expect_err("no server");
        assert_eq!(gone.raw_os_error(), Some(libc::ENOTCONN));
        let second = mount(transport, Memory::new(), options).await;
        let file = aside(move || File::create(path.join("file")).expect("created")).await;
        let error = second.stop(Duration::from_millis(100)).await.expect_err("a file is open");
        assert_eq!(error.errno(), libc::EBUSY, "{error}");
        aside(move || file.sync_all().expect_err("no server")).await;
    });
    assert!(!point.is_mounted());
}

fn an_abort_spares_the_mount_of_another_server(transport: Transport) {
    let Some(point) = Point::new(transport) else { return };
    let (options, path) = (point.options(), point.path.clone());
    run(1, move || async move {
        let first = mount(transport, Memory::new(), options.clone()).await;
        let removed = path.clone();
        // The open file keeps the connection of the first session.
        let file = aside(move || {
            let file = File::create(removed.join("file")).expect("created");
            let unmounted = Command::new("umount").arg("-l").arg(removed).status().expect("it runs");
            assert!(unmounted.success());
            file
        });
        let file = file.await;
        let second = mount(transport, Memory::new(), options.clone()).await;
        assert_eq!(first.outcome(), None);
        first.abort().await.expect("nothing to abort");
        aside(move || drop(file)).await;
        first.ended().await;
        first.abort().await.expect("nothing to abort");
        let is_mounted = aside(move || {
            let device = |path: &Path| std::fs::metadata(path).expect("it is there").dev();
            device(&path) != device(path.parent().expect("a folder"))
        });
        assert!(is_mounted.await);
        assert_eq!(second.outcome(), None);
        second.abort().await.expect("aborted");
        second.ended().await;
    });
    assert!(!point.is_mounted());
}

#[test]
fn mount_points_that_are_none() {
    let Some(point) = Point::new(Transport::Device) else { return };
    run(1, move || async move {
        for (path, errno) in [("/nowhere/at/all", libc::ENOENT), ("/dev/null", libc::EINVAL)] {
            let options = MountOptions { path: path.into(), ..point.options() };
            let Err(error) = Session::mount(Arc::new(Memory::new()), options).await else {
                panic!("mounted")
            };
            assert_eq!(error.errno(), errno, "{error}");
            assert!(error.to_string().contains(path), "{error}");
        }
    });
}
