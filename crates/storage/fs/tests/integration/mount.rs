//! Requests of a mount to the shard, without a kernel where none is needed.

use fs::classes::fair_queue::DEFAULT;
use fs::{FileSystem, OpenOptions, Properties, Settings};
use runtime::{Config, run};

async fn files() -> FileSystem {
    files_on("ram(32MiB)").await
}

/// A new file system on this device.
pub async fn files_on(device: &str) -> FileSystem {
    let registry = stack::Registry::new(vec![&disks::ram::KIND]);
    let stack = stack::Stack::from_line("test", device, &registry).unwrap();
    let device = stack.check(true).unwrap().build().await.unwrap().top().unwrap();
    let zones = fs::sizes::zones_on(device, true, None).await.unwrap();
    FileSystem::format(zones, Properties::default(), &Settings::default()).await.unwrap()
}

/// Operations on a file or directory that isn't open aren't noted in its node. They must still be durable
/// after its next fsync.
#[test]
fn what_is_opened_first_waits_for_all_operations_before() {
    let main = || async {
        let files = files().await;
        files.make_directory("/d").await.unwrap();
        for number in 0..200 {
            let file = files.create(&format!("/d/{number}")).await.unwrap();
            file.write_at(0, block::Data::copy_of(b"data")).await.unwrap();
        }
        let core = files.home().get().unwrap();
        for path in ["/d", "/d/7"] {
            let inode = core.lookup(1, b"d").await.unwrap();
            let inode = if path == "/d" { inode } else { core.lookup(inode, b"7").await.unwrap() };
            let node = core.open(inode).unwrap();
            assert!(node.ticket.get() > 400, "{path}: {}", node.ticket.get());
            core.sync(node.ticket.get()).await.unwrap();
            core.close(&node);
        }
        drop(core);
        files.close().await.unwrap();
    };
    run(Config::default(), main).unwrap();
}

/// An inode that the kernel refers to has attributes after its removal; once forgotten, it doesn't exist.
#[test]
fn a_removed_inode_stays_until_it_is_forgotten() {
    let main = || async {
        let files = files().await;
        let options = OpenOptions { create_new: true, ..OpenOptions::default() };
        let file = files.open_file("/f", options).await.unwrap();
        let inode = file.inode();
        let core = files.home().get().unwrap();
        core.nodes().refer(inode);
        drop(file);
        files.unlink("/f").await.unwrap();
        assert_eq!(core.inode(inode).map(|it| it.links), Ok(0));
        assert!(core.nodes().unrefer(inode, 1));
        core.remove_orphans();
        files.sync().await.unwrap();
        assert!(core.inode(inode).is_err());
        drop(core);
        files.close().await.unwrap();
    };
    run(Config::default(), main).unwrap();
}

/// A write-back of the kernel doesn't change the times, also over a reopening.
#[test]
fn a_write_back_leaves_the_times() {
    let main = || async {
        let files = files().await;
        let file = files.create("/f").await.unwrap();
        let before = file.attributes().await.unwrap();
        let core = files.home().get().unwrap();
        let node = core.open(file.inode()).unwrap();
        core.write_back(&node, 5000, block::Data::copy_of(b"data").into()).await.unwrap();
        let after = core.inode(file.inode()).unwrap();
        assert_eq!((after.size, after.modified, after.changed), (5004, before.modified, before.changed));
        core.write(DEFAULT, &node, 0, block::Data::copy_of(b"data").into()).await.unwrap();
        assert!(core.inode(file.inode()).unwrap().modified > before.modified);
        core.close(&node);
        drop((core, file));
        files.close().await.unwrap();
    };
    run(Config::default(), main).unwrap();
}

pub fn can_mount() -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let can = device.is_ok() && rustix::process::geteuid().is_root();
    if !can {
        println!("SKIPPED: it needs root and /dev/fuse");
    }
    can
}

/// The end of one mount drops what the kernel refers to over all.
#[test]
fn a_file_system_that_is_mounted_is_not_mounted_again() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = |name: &str| {
        let path = folder.path().join(name);
        fs::MountConfig { path, source: "memory".to_owned(), ..fs::MountConfig::default() }
    };
    let configs = ["missing", "first", "second"].map(config);
    for name in ["first", "second"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let main = move || async move {
        let [missing, first, second] = configs;
        let files = files().await;
        let limit = std::time::Duration::from_secs(10);
        let failed = fs::Mounted::mount(&files, missing).await.map(drop);
        assert!(matches!(failed, Err(block::Error::NotFound(_))), "{failed:?}");
        let mounted = fs::Mounted::mount(&files, first).await.unwrap();
        let refused = fs::Mounted::mount(&files, second.clone()).await;
        if let Ok(other) = &refused {
            other.unmount(limit).await.unwrap();
        }
        let refused = refused.map(drop);
        mounted.unmount(limit).await.unwrap();
        assert!(matches!(refused, Err(block::Error::Busy(_))), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("second"));
        let after = fs::Mounted::mount(&files, second.clone()).await.unwrap();
        mounted.unmount(limit).await.unwrap();
        let refused = fs::Mounted::mount(&files, second).await.map(drop);
        assert!(matches!(refused, Err(block::Error::Busy(_))), "the other one has ended twice: {refused:?}");
        after.unmount(limit).await.unwrap();
        files.close().await.unwrap();
    };
    run(Config::default(), main).unwrap();
}

/// The next mount frees what the dropped one had open.
#[test]
fn a_file_system_can_be_mounted_after_a_mount_that_was_dropped() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let main = move || async move {
        let files = files().await;
        let config =
            fs::MountConfig { path: path.clone(), source: "memory".to_owned(), ..fs::MountConfig::default() };
        let mut begun = Box::pin(fs::Mounted::mount(&files, config.clone()));
        let pending =
            std::future::poll_fn(|context| std::task::Poll::Ready(begun.as_mut().poll(context).is_pending()));
        assert!(pending.await, "it waits for a check of the mount point");
        drop(begun);
        drop(fs::Mounted::mount(&files, config.clone()).await.unwrap());
        let refused = fs::Mounted::mount(&files, config.clone()).await.map(drop);
        assert!(matches!(refused, Err(block::Error::Busy(_))), "it is still served: {refused:?}");
        let before = files.statistics().await.unwrap().inodes;
        let unmounting = move || {
            let file = path.join("removed");
            let held = std::fs::File::create(&file).unwrap();
            std::fs::remove_file(file).unwrap();
            let unmounted = std::process::Command::new("umount").args(["-f", "-l"]).arg(path).status();
            drop(held);
            unmounted
        };
        assert!(runtime::blocking(unmounting).await.unwrap().success());
        assert_eq!(files.statistics().await.unwrap().inodes, before + 1, "the connection was aborted");
        let limit = std::time::Duration::from_secs(10);
        let mounting = async || fs::Mounted::mount(&files, config.clone()).await;
        let mounted = runtime::retry_while_busy(limit, mounting).await.unwrap();
        files.sync().await.unwrap();
        assert_eq!(files.statistics().await.unwrap().inodes, before, "it has no name and isn't open");
        mounted.unmount(limit).await.unwrap();
        files.close().await.unwrap();
    };
    run(Config::default(), main).unwrap();
}
