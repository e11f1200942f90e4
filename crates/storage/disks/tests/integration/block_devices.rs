//! Block devices and mounted file systems, which need root and loop devices.

use block::{BlockIndex, Buffer, DevicePart, Durability, Error};
use stack::{Registry, Stack};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

async fn build(line: &str, format: bool) -> block::Result<Arc<dyn DevicePart>> {
    let registry = Registry::new(vec![&disks::file::KIND]);
    let plan = Stack::from_line("test", line, &registry).and_then(|stack| stack.check(format));
    plan.map_err(|problems| Error::invalid(problems.to_string()))?.build().await?.top()
}

fn run<T: Send + 'static, Fut: Future<Output = T> + 'static>(main: impl FnOnce() -> Fut + Send) -> T {
    runtime::run(runtime::Config::default(), main).expect("the runtime starts")
}

/// Output of a program; `None` if it fails.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A loop device with an empty file system, and a folder to mount it on; both are removed when this is
/// dropped.
struct Loop {
    folder: tempfile::TempDir,
    device: String,
}

impl Loop {
    fn new(bytes: u64) -> Option<Loop> {
        let folder = tempfile::tempdir().expect("a folder");
        let image = folder.path().join("image");
        let file = std::fs::File::create(&image).expect("it is made");
        file.set_len(bytes).expect("it grows");
        std::fs::create_dir(folder.path().join("mounted")).expect("it is made");
        let image = image.display().to_string();
        output("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=0", &image])?;
        let device = output("losetup", &["--find", "--show", &image])?;
        Some(Loop { folder, device })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mount(&self) -> bool {
        output("mount", &[&self.device, &self.path("mounted").display().to_string()]).is_some()
    }

    fn unmount(&self) -> bool {
        output("umount", &[&self.path("mounted").display().to_string()]).is_some()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = self.unmount();
        let _ = output("losetup", &["--detach", &self.device]);
    }
}

fn skip(test: &str) {
    println!("SKIPPED: {test}: a file system on a loop device needs root, loop devices and mkfs.ext4");
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(path).expect("it reads")
}

#[test]
fn a_mounted_block_device_is_refused_and_an_open_one_is_not_mounted() {
    let Some(device) = Loop::new(4 << 20) else {
        return skip("a_mounted_block_device_is_refused_and_an_open_one_is_not_mounted");
    };
    let path = device.device.clone();
    assert!(device.mount());
    let before = read(&path);
    let line = format!("file({path})");
    let refused = line.clone();
    let error = run(move || async move { build(&refused, true).await.map(drop) }).expect_err("it is mounted");
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(
        error.to_string().contains("it is mounted") && error.to_string().contains("unmount it"),
        "{error}"
    );
    assert!(read(&path) == before, "it was changed");
    let looked_at = format!("file({path}, read_only=true)");
    run(move || async move {
        let part = build(&looked_at, false).await.expect("what is mounted may be looked at");
        let (result, _) = part.open().await.expect("it opens").read(BlockIndex(0), Buffer::new(4096)).await;
        result.expect("it reads");
    });
    assert!(device.unmount());
    let device = Arc::new(device);
    let mounts = device.clone();
    run(move || async move {
        let part = build(&line, false).await.expect("it is free");
        let handle = part.open().await.expect("it opens beside the claim");
        let (result, buffer) = handle.read(BlockIndex(0), Buffer::new(4096)).await;
        result.expect("it reads");
        handle.write(BlockIndex(0), buffer.into(), Durability::Durable).await.expect("it writes");
        assert!(!mounts.mount(), "it is open, and was mounted");
        drop(handle);
        part.close().await.expect("it closes");
    });
    assert!(device.mount(), "it is free again");
}

/// Lack of space is distinguished from lost data: the write is refused, and earlier writes aren't in doubt.
#[test]
fn a_durable_write_without_space_leaves_flushes_as_they_were() {
    let Some(device) = Loop::new(4 << 20).filter(Loop::mount) else {
        return skip("a_durable_write_without_space_leaves_flushes_as_they_were");
    };
    let disk = device.path("mounted/disk.img");
    let line = format!("file({}, size=64MiB, direct=on)", Path::new(&disk).display());
    run(move || async move {
        let part = match build(&line, false).await {
            Ok(part) => part,
            Err(error) => return println!("SKIPPED: no direct I/O here: {error}"),
        };
        let device = part.open().await.expect("it opens");
        let mut refused = None;
        for number in 0..64 {
            let data = Buffer::copy_of(&vec![1; 1 << 20]).into();
            let written = device.write(BlockIndex(number * 256), data, Durability::Durable).await;
            if let Err(error) = written {
                refused = Some(error);
                break;
            }
        }
        assert_eq!(refused.expect("the file system is smaller").errno(), libc::ENOSPC);
        assert_eq!(part.status().await["flush_failed"], false);
        device.flush().await.expect("what was acknowledged is there");
        let again = Buffer::copy_of(&[2; 4096]).into();
        device.write(BlockIndex(0), again, Durability::Durable).await.expect("it has its place already");
        drop(device);
        part.close().await.expect("it closes");
    });
}
