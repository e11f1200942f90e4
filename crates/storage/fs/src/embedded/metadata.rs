//! Attributes of files and names of directories, with the names of `std::fs`.

use crate::metadata::directory::Entry;
use crate::metadata::inode::{self, Inode, Time};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, SystemTime};

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileType(Option<inode::FileType>);

impl FileType {
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.0 == Some(inode::FileType::Regular)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.0 == Some(inode::FileType::Directory)
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.0 == Some(inode::FileType::Link)
    }
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata(pub(super) Inode);

impl Metadata {
    /// Type of the file.
    pub fn file_type(&self) -> FileType {
        FileType(Some(self.0.file_type()))
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Size in bytes.
    #[allow(clippy::len_without_is_empty)] // As in std::fs.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Type and permissions, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// Time of the last change of the data.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.modified)
    }

    /// Time of creation.
    pub fn created(&self) -> SystemTime {
        system_time(self.0.created)
    }
}

/// Converts nanoseconds since 1970.
fn system_time(time: Time) -> SystemTime {
    let distance = Duration::from_nanos(time.unsigned_abs());
    match time < 0 {
        true => SystemTime::UNIX_EPOCH - distance,
        false => SystemTime::UNIX_EPOCH + distance,
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    name: OsString,
    file_type: FileType,
}

impl DirEntry {
    pub(super) fn new(entry: Entry) -> Self {
        // Bits of `d_type` are the upper four of the mode.
        let file_type = FileType(inode::FileType::of(u32::from(entry.code) << 12));
        DirEntry { name: OsString::from_vec(entry.name), file_type }
    }

    /// The name, without its directory.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// Type of the file.
    pub fn file_type(&self) -> FileType {
        self.file_type
    }
}
