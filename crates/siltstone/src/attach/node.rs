//! The block device node: whether it is in use, the loop device over the file of the FUSE door, the device of the kernel's NBD client, and
//! its removal with all that is below it.
//!
//! `losetup` of util-linux sets loop devices up: it knows the kernel's interfaces of all versions.

use super::machine::Driver;
use block::{Error, Result};
use doors::nbd::kernel as nbd;
use doors::ublk::control as ublk;
use fuse::Mount;
use rustix::fs::{Mode, OFlags};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Logical block sizes that a loop device and a device of the NBD client can have, in bytes.
pub const SECTOR_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Time within which a loop device that has no users is released.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
/// Time for programs that look at each new node, such as udev's, to close it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Time for the users of the FUSE file, beside the loop device, to close it.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(10);
/// Most processes that are named as users of a node.
const MOST_NAMED: usize = 5;

/// Runs `losetup`, and returns its output without the newline.
fn losetup(arguments: &[&str]) -> Result<String> {
    let output = Command::new("losetup").args(arguments).output();
    let output = output.map_err(|error| Error::from_io(&error, "running losetup (of util-linux)"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::io(format!("losetup {}: {text}", arguments.join(" "))))
        }
    }
}

/// Makes a loop device with direct I/O over a file. Blocks the thread.
///
/// # Errors
/// Those of `losetup`.
pub fn create(backing: &Path, sector_size: u32, read_only: bool) -> Result<PathBuf> {
    let (size, file) = (sector_size.to_string(), backing.display().to_string());
    let mut arguments = vec!["--find", "--show", "--partscan", "--direct-io=on", "--sector-size", &size];
    if read_only {
        arguments.push("--read-only");
    }
    arguments.push(&file);
    let node = PathBuf::from(losetup(&arguments)?);
    // With a block size that the file doesn't allow the kernel uses its cache without a word.
    let attribute = attributes(&node).map(|folder| folder.join("loop/dio"));
    match attribute.and_then(|path| std::fs::read_to_string(path).ok()).as_deref().map(str::trim) {
        Some("1") => Ok(node),
        _ => {
            let refused = Error::unsupported(format!(
                "{}: the kernel refused direct I/O on {file} with sectors of {size} bytes",
                node.display()
            ));
            remove(&node, backing).and(Err(refused))
        }
    }
}

/// Removes the loop device over a file, if there is one. Blocks the thread. [`released`] follows.
///
/// # Errors
/// Those of `losetup`.
pub fn remove(node: &Path, file: &Path) -> Result<()> {
    match is_over(node, file) {
        true => losetup(&["--detach", &node.display().to_string()]).map(drop),
        false => Ok(()),
    }
}

/// Waits until a loop device that was removed, or a disconnected NBD device, is released: udev may look at it for a moment.
///
/// # Errors
/// [`Error::Busy`] if it is still in use some seconds later: it is released with its last user then.
async fn released(node: &Path, file: &Path) -> Result<()> {
    let is_released = async || match is_over(node, file) || nbd::is_of(node, &backend(file)) {
        false => Ok(()),
        true => {
            Err(Error::busy(format!("{}: still in use; it is removed with its last user", node.display())))
        }
    };
    runtime::retry_while_busy(RELEASE_LIMIT, is_released).await
}

/// Whether a loop device is over this file. Its number may be another one's by now.
fn is_over(node: &Path, file: &Path) -> bool {
    // The kernel adds a word to the path of a file that was removed.
    let backing = backing_file(node).map(|path| path.to_string_lossy().into_owned());
    backing.is_some_and(|backing| backing.trim_end_matches(" (deleted)") == file.to_string_lossy())
}

fn attributes(node: &Path) -> Option<PathBuf> {
    Some(Path::new("/sys/block").join(node.file_name()?))
}

/// File below a loop device; `None` if it has none.
fn backing_file(node: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(attributes(node)?.join("loop/backing_file")).ok()?;
    Some(PathBuf::from(text.trim_end_matches('\n')))
}

/// The loop devices over a file, also over one whose server is gone.
pub fn over(file: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let nodes = entries.flatten().map(|entry| Path::new("/dev").join(entry.file_name()));
    nodes.filter(|node| is_over(node, file)).collect()
}

/// The nodes of a volume: loop devices and NBD devices, also those of servers that are gone.
pub fn all_of(volume: &Path) -> Vec<(Driver, PathBuf)> {
    let loops = over(volume).into_iter().map(|node| (Driver::Fuse, node));
    loops.chain(nbd::all_of(&backend(volume)).into_iter().map(|node| (Driver::Nbd, node))).collect()
}

/// Identifier of the NBD device of a volume.
fn backend(volume: &Path) -> String {
    volume.display().to_string()
}

/// Connects an NBD device to the server of a volume. Blocks the thread.
///
/// # Errors
/// Those of the kernel.
pub fn connect(volume: &Path, client: &nbd::Client, connections: &[OwnedFd]) -> Result<PathBuf> {
    nbd::connect(client, &backend(volume), connections)
}

/// Connects an NBD device to the next server of its volume. Blocks the thread.
///
/// # Errors
/// Those of the kernel.
pub fn reconnect(node: &Path, volume: &Path, connections: &[OwnedFd]) -> Result<()> {
    nbd::reconnect(node, &backend(volume), connections)
}

/// Disconnects the NBD devices of a volume: their users get I/O errors. Blocks the thread.
///
/// # Errors
/// Those of the kernel.
pub fn disconnect_all(volume: &Path) -> Result<()> {
    let backend = backend(volume);
    nbd::all_of(&backend).iter().try_for_each(|node| nbd::disconnect(node, &backend))
}

/// Disconnects the NBD devices of a volume whose server is gone: the kernel lets requests that the server hadn't answered wait without limit, and
/// so the users of the node. Blocks the thread.
///
/// # Errors
/// Those of the kernel.
pub fn fail_without_server(volume: &Path) -> Result<()> {
    match UnixStream::connect(nbd_socket(volume)) {
        Ok(_) => Ok(()),
        Err(_) => disconnect_all(volume),
    }
}

/// Socket of the NBD door of a volume.
pub fn nbd_socket(volume: &Path) -> PathBuf {
    volume.with_extension("sock")
}

/// Disconnects the NBD device of a volume if nobody uses it. Blocks the thread. [`released`] follows.
///
/// # Errors
/// As [`claim`]; those of the kernel.
fn disconnect_unused(node: &Path, volume: &Path) -> Result<()> {
    if !nbd::is_of(node, &backend(volume)) {
        return Ok(());
    }
    // Held until the device is disconnected.
    let _claim = claim(node)?;
    nbd::disconnect(node, &backend(volume))
}

/// Removes the loop device over a file if nobody uses it. Blocks the thread. [`released`] follows.
///
/// # Errors
/// As [`claim`]; those of `losetup`.
fn remove_unused(node: &Path, file: &Path) -> Result<()> {
    if !is_over(node, file) {
        return Ok(());
    }
    // Held until the device is removed.
    let _claim = claim(node)?;
    remove(node, file)
}

/// Claims a node that nobody uses: no mount, swap area, device above it, or process. Nobody can mount it meanwhile. Blocks the
/// thread.
///
/// # Errors
/// [`Error::Busy`] with the users.
fn claim(node: &Path) -> Result<OwnedFd> {
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
    let entries = attributes(node).map(std::fs::read_dir).transpose()?.into_iter().flatten().flatten();
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
    let loops = std::fs::read_dir("/sys/block").map_err(looking)?.flatten();
    let loops = loops.map(|entry| Path::new("/dev").join(entry.file_name()));
    let is_over =
        |device: &Path| backing_file(device).is_some_and(|file| file.starts_with("/dev") && is_of(&file));
    let mut users: Vec<String> =
        loops.filter(|device| is_over(device)).map(|it| it.display().to_string()).collect();
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

/// Removes a node that nobody uses, and what is below it: the ublk device, the connections of the NBD client, or the loop device and the
/// mount of the FUSE door at `volume`.
///
/// # Errors
/// [`Error::Busy`] with the users; those of the kernel and of `losetup`.
pub async fn detach(driver: Driver, node: &Path, volume: &Path) -> Result<()> {
    let remove = async || {
        let (node, volume) = (node.to_owned(), volume.to_owned());
        runtime::blocking(move || match driver {
            Driver::Ublk => delete_unused(&node),
            Driver::Nbd => disconnect_unused(&node, &volume),
            Driver::Fuse => remove_unused(&node, &volume),
        })
        .await
    };
    // udev may look at the node for a moment.
    runtime::retry_while_busy(LOOK_LIMIT, remove).await?;
    match driver {
        Driver::Ublk => Ok(()),
        Driver::Nbd => released(node, volume).await,
        Driver::Fuse => {
            released(node, volume).await?;
            unmount(volume).await
        }
    }
}

/// Unmounts the FUSE door at a path, unless it isn't mounted.
///
/// # Errors
/// [`Error::Busy`] if it is still in use some seconds later; those of the kernel.
pub async fn unmount(volume: &Path) -> Result<()> {
    let mount = Mount::existing(volume.to_owned());
    match runtime::retry_while_busy(UNMOUNT_LIMIT, async || mount.unmount().await).await {
        Ok(()) | Err(Error::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Stops and deletes a ublk device that nobody uses. Blocks the thread.
///
/// # Errors
/// As [`claim`]; those of the kernel.
fn delete_unused(node: &Path) -> Result<()> {
    let id = node.to_str().and_then(|path| path.strip_prefix("/dev/ublkb")?.parse().ok());
    let Some(id) = id.filter(|_| node.exists()) else { return Ok(()) };
    let claim = claim(node)?;
    ublk::stop(id)?;
    drop(claim);
    ublk::remove(id)
}
