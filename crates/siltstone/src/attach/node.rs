//! Block device node of an attachment, of any driver: its users, and its removal with what is below it.

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

/// Permitted logical block sizes of a node, in bytes.
pub const SECTOR_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Largest logical block size of a node, in bytes.
pub const MAX_SECTOR: u32 = SECTOR_SIZES[SECTOR_SIZES.len() - 1];
/// Time limit for the release of a removed node.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// Time for programs that examine each new node, such as udev, to close it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Limit of processes that are listed as users of a node.
const MAX_NAMED: usize = 5;

/// Claims an unused node: without a mount, swap area, device above it, or process that has it open. It can't
/// be mounted until the claim is dropped. Blocks the thread.
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

/// The kernel's sequence number of a block device (`/sys/block/…/diskseq`, Linux 5.15): unique among all
/// devices and media until the next boot. `None` for a missing device.
pub fn sequence_number(node: &Path) -> Option<u64> {
    sysfs::attribute(node, "diskseq")?.parse().ok()
}

/// Device numbers of a node and of its partitions.
fn devices(node: &Path) -> std::io::Result<Vec<u64>> {
    let mut devices = vec![std::fs::metadata(node)?.rdev()];
    // The folder also has subfolders of attributes, without a device number.
    let entries = sysfs::folder(node).map(std::fs::read_dir).transpose()?.into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("dev")).ok());
    devices.extend(numbers.filter_map(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    }));
    Ok(devices)
}

/// Users of a node or of one of its partitions: processes that have it open, as `name (process)`, and loop
/// devices over it.
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
        // Processes may end meanwhile.
        let Ok(files) = std::fs::read_dir(process.join("fd")) else { continue };
        let is_user = files.flatten().any(|file| {
            // Following a link to a file on FUSE may block; device nodes are recognised by their path.
            let path = std::fs::read_link(file.path()).unwrap_or_default();
            path.starts_with("/dev") && is_of(&path)
        });
        if is_user && users.len() < MAX_NAMED {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
            let number = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
            users.push(format!("{} ({number})", name.trim()));
        }
    }
    Ok(users)
}

/// Removes an unused node, and what is below it.
///
/// # Errors
/// [`Error::Busy`] with the users, or if the node or what is below it is still in use after some seconds;
/// errors of the kernel and of `losetup`.
pub async fn detach(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    remove_unused(driver, node, volume).await?;
    released(driver, node, volume).await
}

/// Removes an unused node. Call [`released`] next.
///
/// # Errors
/// [`Error::Busy`] with the users; errors of the kernel and of `losetup`.
pub async fn remove_unused(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    let driver = driver.node_driver();
    let remove = async || {
        let (node, volume) = (node.to_owned(), volume.to_owned());
        runtime::blocking(move || driver.remove_unused(&node, &volume)).await
    };
    // udev may have the node open for a moment.
    runtime::retry_while_busy(LOOK_LIMIT, remove).await
}

/// Waits until a removed node is released, and removes what was below it.
///
/// # Errors
/// [`Error::Busy`] if the node is still in use after some seconds: its last user releases it then.
pub async fn released(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    let driver = driver.node_driver();
    // udev may open the node again during its removal.
    let is_released = async || match driver.is_unreleased(node, volume) {
        false => Ok(()),
        true => {
            Err(Error::busy(format!("{}: still in use; it is removed with its last user", node.display())))
        }
    };
    runtime::retry_while_busy(RELEASE_LIMIT, is_released).await?;
    driver.close_volume(volume).await
}

/// Removes the nodes of an attachment without a holder, and what is below them. The attachment may have no
/// record yet.
///
/// # Errors
/// Errors of [`detach`] and of reading the record.
pub async fn detach_lost(folder: &Folder) -> Result<()> {
    let volume = folder.volume();
    for driver in Driver::PREFERENCE {
        driver.node_driver().abort_without_server(&volume)?;
    }
    // The path of the node may belong to another device by now.
    if let Some(record) = Record::read(folder)?.filter(Record::has_node) {
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
