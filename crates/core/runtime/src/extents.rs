//! Physical locations of a file's bytes on the device of its file system: FIEMAP
//! (Documentation/filesystems/fiemap.rst in the kernel's source).
//!
//! The caller finds that device, and checks that physical addresses of the file system are offsets on it
//! (they aren't on Btrfs).
#![allow(unsafe_code)] // The ioctl has no safe form.

use block::{Error, Result};
use std::fs::File;
use std::os::fd::AsRawFd;

/// `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
/// Writes cached data first, so that it has a location.
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 0x1;
const EXTENT_UNWRITTEN: u32 = 0x800;
/// Unknown, not allocated yet, encoded, encrypted, not aligned, inside of metadata, packed with others: the
/// extent has no location of its own.
const EXTENT_ELSEWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;
/// Number of extents per request to the kernel.
const AT_ONCE: usize = 128;

/// Extent of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Offset on the device, in bytes; `None` without a location of its own: inline, compressed, not written
    /// yet.
    pub on_device: Option<u64>,
    /// Whether the extent is allocated but unwritten: it reads as zeros.
    pub is_unwritten: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more_reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; AT_ONCE],
}

/// Returns all extents of a file, in order; holes have none. Cached data is written to the file system first.
/// Blocks the thread.
///
/// # Errors
/// [`Error::Unsupported`] if the file system doesn't support FIEMAP; errors of the kernel.
pub fn file_extents(file: &File) -> Result<Vec<FileExtent>> {
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let mut request = Request {
            start,
            length: u64::MAX - start,
            flags: FLAG_SYNC,
            mapped_extents: 0,
            extent_count: AT_ONCE as u32,
            reserved: 0,
            extents: [Extent::default(); AT_ONCE],
        };
        // SAFETY: the kernel reads the head of the request and writes at most `extent_count` extents after
        // it, which is as many as it has; both are plain integers in the kernel's layout.
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut request) };
        if outcome != 0 {
            let error = std::io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => {
                    Error::unsupported("its file system doesn't report the extents of files (FIEMAP)")
                }
                _ => Error::from_io(&error, "reading the extents of the file (FIEMAP)"),
            });
        }
        let mapped = (request.mapped_extents as usize).min(AT_ONCE);
        for extent in &request.extents[..mapped] {
            // Extents that don't advance would repeat forever.
            if extent.length == 0 || extent.logical.saturating_add(extent.length) <= start && start > 0 {
                return Ok(found);
            }
            start = extent.logical.saturating_add(extent.length);
            let has_place = extent.flags & EXTENT_ELSEWHERE == 0;
            found.push(FileExtent {
                offset: extent.logical,
                length: extent.length,
                on_device: has_place.then_some(extent.physical),
                is_unwritten: extent.flags & EXTENT_UNWRITTEN != 0,
            });
            if extent.flags & EXTENT_LAST != 0 {
                return Ok(found);
            }
        }
        if mapped == 0 {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    #[test]
    fn a_file_with_a_hole() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8192]).unwrap();
        file.seek(SeekFrom::Start(1 << 20)).unwrap();
        file.write_all(&[2; 4096]).unwrap();
        let extents = match file_extents(&file) {
            Err(Error::Unsupported(why)) => return println!("SKIPPED: {why}"),
            extents => extents.unwrap(),
        };
        let covers = |at: u64| extents.iter().any(|it| (it.offset..it.offset + it.length).contains(&at));
        assert!(covers(0) && covers(8191) && covers(1 << 20) && !covers(512 << 10), "{extents:?}");
        assert!(extents.is_sorted_by_key(|extent| extent.offset), "{extents:?}");
    }

    #[test]
    fn more_extents_than_are_asked_for_at_once() {
        let mut file = tempfile::tempfile().unwrap();
        let pieces = 3 * AT_ONCE as u64;
        for piece in 0..pieces {
            file.seek(SeekFrom::Start(piece * (128 << 10))).unwrap();
            file.write_all(&[piece as u8; 4096]).unwrap();
        }
        let extents = match file_extents(&file) {
            Err(Error::Unsupported(why)) => return println!("SKIPPED: {why}"),
            extents => extents.unwrap(),
        };
        assert_eq!(extents.len() as u64, pieces, "one for each");
        assert!(extents.is_sorted_by_key(|extent| extent.offset));
    }
}
