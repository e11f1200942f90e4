//! Wanted bytes of a cache's device: ranges, and files of a file system on the device.
//!
//! A file's extents are offsets on the block device under its file system. That is the kernel's device for
//! the served stack (such as `/dev/nbd0`), or a partition of it. Both must have the same size: a different
//! size means another layer between them, with other offsets.

use crate::arguments::Where;
use crate::failure::Failure;
use crate::output::say;
use block::Error;
use runtime::extents::{FileExtent, file_extents};
use stack::format_size;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Unit of sizes and offsets in /sys, in bytes, for any block size of the device.
const SECTOR: u64 = 512;

/// Returns the wanted ranges of a device of `bytes` bytes; `None` if the options give none.
///
/// # Errors
/// [`Failure::Usage`] for a range after the end of the device, and for a file that isn't on it.
pub fn resolve(where_: &Where, bytes: u64) -> Result<Option<Vec<Range<u64>>>, Failure> {
    if where_.range.is_empty() && where_.file.is_empty() {
        return Ok(None);
    }
    let mut ranges = Vec::new();
    for range in &where_.range {
        let to = range.to.unwrap_or(bytes);
        if to > bytes || range.from >= to {
            return Err(Failure::Usage(format!(
                "--range {}..{}: the cache's device has {} bytes ({})",
                format_size(range.from),
                range.to.map_or_else(String::new, format_size),
                bytes,
                format_size(bytes)
            )));
        }
        ranges.push(range.from..to);
    }
    for path in &where_.file {
        ranges.extend(ranges_of(path, where_.device.as_deref(), bytes)?);
    }
    Ok(Some(ranges))
}

/// Returns the ranges of written extents on a disk, and the number of bytes that have no place there.
fn places(disk: &Disk, extents: Vec<FileExtent>) -> (Vec<Range<u64>>, u64) {
    let (mut ranges, mut elsewhere) = (Vec::<Range<u64>>::new(), 0);
    for extent in extents {
        let Some(place) = extent.on_device else {
            elsewhere += extent.length;
            continue;
        };
        // Unwritten extents read as zeros, without the device.
        if extent.is_unwritten {
            continue;
        }
        let from = disk.offset.saturating_add(place);
        let to = from.saturating_add(extent.length);
        match ranges.last_mut() {
            Some(last) if last.end == from => last.end = to,
            _ => ranges.push(from..to),
        }
    }
    (ranges, elsewhere)
}

/// Returns the ranges of a file on a device of `bytes` bytes.
fn ranges_of(path: &Path, device: Option<&Path>, bytes: u64) -> Result<Vec<Range<u64>>, Failure> {
    let failed = |error: &std::io::Error| {
        Failure::Usage(Error::from_io(error, &format!("--file {}", path.display())).to_string())
    };
    let found = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if !found.is_file() {
        return Err(Failure::Usage(format!("--file {}: expected a plain file", path.display())));
    }
    let disk = disk_of(path, found.dev(), device)?;
    if disk.bytes != bytes {
        return Err(Failure::Usage(format!(
            "--file {}: it lies on {}, which has {} bytes, and the cache's device has {bytes}: expected the block \
             device as which the kernel sees just this device; say --device, or --range where something lies between \
             the two",
            path.display(),
            disk.path.display(),
            disk.bytes
        )));
    }
    let file = File::open(path).map_err(|error| failed(&error))?;
    let extents = file_extents(&file).map_err(|error| {
        Failure::World(format!("--file {}: {error}; --range takes places on the device", path.display()))
    })?;
    let (ranges, elsewhere) = places(&disk, extents);
    if ranges.iter().any(|range| range.end > bytes) {
        return Err(Failure::Usage(format!(
            "--file {}: its file system reports it after the end of {}: its offsets aren't those of one device",
            path.display(),
            disk.path.display()
        )));
    }
    let length = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
    let pieces = if ranges.len() == 1 { "piece" } else { "pieces" };
    say(&format!(
        "{}: {} in {} {pieces} on {}",
        path.display(),
        bench::units::bytes(length as f64),
        ranges.len(),
        disk.path.display()
    ));
    if elsewhere > 0 {
        let text = bench::units::bytes(elsewhere as f64);
        say(&format!("{}: {text} have no place of their own there, and are left out", path.display()));
    }
    Ok(ranges)
}

/// Block device of the kernel, with the offset of the file system on it.
#[derive(Debug)]
struct Disk {
    path: PathBuf,
    bytes: u64,
    offset: u64,
}

/// Returns the device of the file system with this device number: the given one, else the whole disk.
fn disk_of(file: &Path, number: u64, device: Option<&Path>) -> Result<Disk, Failure> {
    let wrong = |text: String| Failure::Usage(format!("--file {}: {text}", file.display()));
    let own = system_folder(number).ok_or_else(|| {
        wrong(
            "its file system isn't on one block device (as with Btrfs, overlays, memory and networks), so its \
             offset on the device is unknown; use --range with offsets on the device"
                .to_owned(),
        )
    })?;
    let start = match own.join("partition").exists() {
        true => Some(sectors(&own, "start").map_err(wrong)?),
        false => None,
    };
    let whole = match (start, own.parent()) {
        (Some(_), Some(parent)) => parent.to_owned(),
        _ => own.clone(),
    };
    let (folder, offset) = match device {
        None => (whole, start.unwrap_or(0)),
        Some(path) => {
            let found = std::fs::metadata(path).map_err(|error| {
                Failure::Usage(Error::from_io(&error, &format!("--device {}", path.display())).to_string())
            })?;
            if !found.file_type().is_block_device() {
                return Err(Failure::Usage(format!("--device {}: expected a block device", path.display())));
            }
            match system_folder(found.rdev()) {
                Some(folder) if folder == own => (own, 0),
                Some(folder) if folder == whole => (whole, start.unwrap_or(0)),
                _ => {
                    return Err(wrong(format!(
                        "it lies on {}, not on {}",
                        device_path(&own).display(),
                        path.display()
                    )));
                }
            }
        }
    };
    let bytes = sectors(&folder, "size").map_err(wrong)?;
    Ok(Disk { path: device_path(&folder), bytes, offset })
}

/// Returns the folder in /sys of a block device.
fn system_folder(number: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(number), libc::minor(number));
    std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()
}

fn device_path(folder: &Path) -> PathBuf {
    // /sys replaces slashes in names of devices by exclamation marks.
    let name = folder.file_name().unwrap_or_default().to_string_lossy().replace('!', "/");
    Path::new("/dev").join(name)
}

/// Reads a number of sectors, and returns it in bytes.
fn sectors(folder: &Path, name: &str) -> Result<u64, String> {
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let sectors = text.trim().parse::<u64>().ok().and_then(|sectors| sectors.checked_mul(SECTOR));
    sectors.ok_or_else(|| format!("{}: \"{}\" is no number of sectors", path.display(), text.trim()))
}
