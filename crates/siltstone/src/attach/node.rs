//! The block device node of an attachment, over any driver: whether it is in use, and its removal with what is below it.

use super::driver::Driver;
use super::folder::Folder;
use super::record::Record;
use block::{Error, Result};
use doors::sysfs;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Logical block sizes that a node can be made with, in bytes.
pub const SECTOR_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Largest of them.
pub const LARGEST_SECTOR: u32 = SECTOR_SIZES[SECTOR_SIZES.len() - 1];
/// Time within which a node that was removed is released.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// Time for programs that look at each new node, such as udev's, to close it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Most processes that are named as users of a node.
const MOST_NAMED: usize = 5;

/// Claims a node that nobody uses: no mount, swap area, device above it, or process. Nobody can mount it meanwhile. Blocks the
/// thread.
///
/// # Errors
/// [`Error::Busy`] with the users.
pub fn claim(node: &Path) -> Result<OwnedFd> {
    let shown = node.display();
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let claim = match rustix::fs::open(node, flags, Mode::empty()) {
        Ok(claim) => claim,
        Err(rustix::io::Errno::BUSY) => {
            return Err(Error::busy(format!(
                "{shown} is in use: unmount it, and remove swap areas and devices on it first (lsblk {shown} lists them)"
            )));
        }
        Err(error) => return Err(Error::from_io(&error.into(), &format!("opening {shown}"))),
    };
    match users(node)?.as_slice() {
        [] => Ok(claim),
        users => Err(Error::busy(format!("{shown} is open in {}: close it there first", users.join(", ")))),
    }
}

/// Device numbers of a node and of its partitions.
fn devices(node: &Path) -> std::io::Result<Vec<u64>> {
    let mut devices = vec![std::fs::metadata(node)?.rdev()];
    // The folder also has folders of attributes, without a device number.
    let entries = sysfs::folder(node).map(std::fs::read_dir).transpose()?.into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("dev")).ok());
    devices.extend(numbers.filter_map(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    }));
    Ok(devices)
}

/// Users of a node or of one of its partitions: processes that have it open, as `name (process)`, and loop devices over it.
fn users(node: &Path) -> Result<Vec<String>> {
    let looking = |error: std::io::Error| Error::from_io(&error, &format!("looking at {}", node.display()));
    let devices = devices(node).map_err(looking)?;
    let is_of = |path: &Path| std::fs::metadata(path).is_ok_and(|found| devices.contains(&found.rdev()));
    let processes = std::fs::read_dir("/proc").map_err(looking)?.flatten();
    let is_over = |device: &Path| {
        let file = sysfs::attribute(device, "loop/backing_file").map(PathBuf::from);
        file.is_some_and(|file| file.starts_with("/dev") && is_of(&file))
    };
    let mut users: Vec<String> = sysfs::nodes(is_over).iter().map(|it| it.display().to_string()).collect();
    let own = std::process::id();
    let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let others = processes.map(|entry| entry.path()).filter(|path| number(path).is_some_and(|it| it != own));
    for process in others {
        // Processes end meanwhile.
        let Ok(files) = std::fs::read_dir(process.join("fd")) else { continue };
        let is_user = files.flatten().any(|file| {
            // Following a link to a file of a FUSE server may wait for it; device nodes are told by their path.
            let path = std::fs::read_link(file.path()).unwrap_or_default();
            path.starts_with("/dev") && is_of(&path)
        });
        if is_user && users.len() < MOST_NAMED {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            let number = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
            users.push(format!("{} ({number})", name.trim()));
        }
    }
    Ok(users)
}

/// Removes a node that nobody uses, and what is below it.
///
/// # Errors
/// [`Error::Busy`] with the users, or if the node or what is below it is still in use some seconds later; those of the kernel and of
/// `losetup`.
pub async fn detach(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    remove_unused(driver, node, volume).await?;
    released(driver, node, volume).await
}

/// Removes a node that nobody uses. [`released`] follows.
///
/// # Errors
/// [`Error::Busy`] with the users; those of the kernel and of `losetup`.
pub async fn remove_unused(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    let driver = driver.node_driver();
    let remove = async || {
        let (node, volume) = (node.to_owned(), volume.to_owned());
        runtime::blocking(move || driver.remove_unused(&node, &volume)).await
    };
    // udev may look at the node for a moment.
    runtime::retry_while_busy(LOOK_LIMIT, remove).await
}

/// Waits until a node that was removed is released, and removes what was below it.
///
/// # Errors
/// [`Error::Busy`] if it is still in use some seconds later: it is released with its last user then.
pub async fn released(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    let driver = driver.node_driver();
    // It may look again while the node is removed.
    let is_released = async || match driver.is_unreleased(node, volume) {
        false => Ok(()),
        true => {
            Err(Error::busy(format!("{}: still in use; it is removed with its last user", node.display())))
        }
    };
    runtime::retry_while_busy(RELEASE_LIMIT, is_released).await?;
    driver.close_volume(volume).await
}

/// Sequence number of a node's disk; `None` without a disk, or before Linux 5.15.
pub fn diskseq(node: &Path) -> Option<u64> {
    sysfs::attribute(node, "diskseq")?.parse().ok()
}

/// Whether the disk that a node has now is the one that it had. Without numbers the driver decides.
fn is_same_disk(recorded: Option<u64>, now: Option<u64>) -> bool {
    recorded.is_none() || now.is_none() || recorded == now
}

/// Path of a node for its link. udev removes `/dev/disk/by-diskseq/N` with the disk, so that a link to it never leads to another one of the same name.
pub fn link_target(node: &Path) -> PathBuf {
    let by_sequence = diskseq(node).map(|number| PathBuf::from(format!("/dev/disk/by-diskseq/{number}")));
    let is_it = |path: &PathBuf| std::fs::canonicalize(path).is_ok_and(|found| found == node);
    by_sequence.filter(is_it).unwrap_or_else(|| node.to_owned())
}

/// Removes the nodes of an attachment without a holder, and what is below them. It may have been lost before it had a record.
///
/// # Errors
/// As [`detach`]; those of reading the record.
pub async fn detach_lost(folder: &Folder) -> Result<()> {
    let volume = folder.volume();
    for driver in Driver::PREFERENCE {
        driver.node_driver().abort_without_server(&volume)?;
    }
    if let Some(record) = Record::read(folder)?
        && is_same_disk(record.diskseq, diskseq(&record.node))
    {
        detach(record.driver, &record.node, &volume).await?;
    }
    for driver in Driver::PREFERENCE {
        for node in driver.node_driver().nodes(&volume) {
            detach(driver, &node, &volume).await?;
        }
        driver.node_driver().close_volume(&volume).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_told_from_another_one_of_the_same_name() {
        assert!(is_same_disk(Some(7), Some(7)) && !is_same_disk(Some(7), Some(8)));
        assert!(is_same_disk(None, Some(8)) && is_same_disk(Some(7), None));
        assert_eq!(diskseq(Path::new("/dev/no-such-device")), None);
        assert_eq!(link_target(Path::new("/dev/no-such-device")), PathBuf::from("/dev/no-such-device"));
        for node in sysfs::nodes(|_| true) {
            let found = sysfs::attribute(&node, "diskseq").map(|text| text.parse::<u64>().is_ok());
            assert_ne!(found, Some(false), "{}", node.display());
        }
    }
}
