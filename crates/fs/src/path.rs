//! Paths: from the root through directories and symbolic links, on the cores that have them.

use crate::core::Core;
use crate::inode::{FileType, InodeNumber, ROOT};
use crate::namespace;
use crate::operations::find;
use crate::snapshots::SnapshotNumber;
use block::{Error, Result};

/// Most symbolic links that a path leads through.
const MOST_LINKS_FOLLOWED: u32 = 40;
/// Longest path in bytes.
const MOST_PATH: usize = 4096;

/// A file, and its type.
pub type End = (InodeNumber, FileType);

fn check_length(path: &str) -> Result<()> {
    match path.len() < MOST_PATH {
        true => Ok(()),
        false => {
            let long = format!("a path of {} bytes; expected at most {MOST_PATH}", path.len());
            Err(Error::from_errno(libc::ENAMETOOLONG, long))
        }
    }
}

/// The file that a path names; nothing if it leads through symbolic links, or to other cores on the way.
///
/// # Errors
/// [`Error::NotFound`], ENOTDIR, ENAMETOOLONG.
pub fn walk_here(core: &Core, path: &str) -> Result<Option<End>> {
    check_length(path)?;
    let mut at = (ROOT, FileType::Directory);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        if !core.is_here(at.0) {
            return Ok(None);
        }
        at = core.find(at.0, name.as_bytes())?.ok_or_else(|| namespace::missing(at.0, name.as_bytes()))?;
        if at.1 == FileType::Link {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// A path that is being followed.
#[derive(Debug)]
pub struct Walk {
    at: End,
    /// Directory that the link is in, if `at` is one.
    directory: InodeNumber,
    /// Names that are left, the next one last.
    rest: Vec<Vec<u8>>,
    followed: u32,
    version: Option<SnapshotNumber>,
}

fn names(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

impl Walk {
    /// Begins at the root.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub fn begin(path: &str) -> Result<Self> {
        Self::begin_in(None, path)
    }

    /// Begins at the root of a snapshot; `None` for the present version.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub fn begin_in(version: Option<SnapshotNumber>, path: &str) -> Result<Self> {
        check_length(path)?;
        let at = (ROOT, FileType::Directory);
        Ok(Walk { at, directory: ROOT, rest: names(path.as_bytes()).collect(), followed: 0, version })
    }

    /// The inode on whose core it goes on.
    pub fn place(&self) -> InodeNumber {
        self.at.0
    }

    /// Goes on as far as inodes of this core lead. Returns the end of the path once it is reached.
    ///
    /// # Errors
    /// [`Error::NotFound`], ENOTDIR; ELOOP for too many links.
    pub fn go_on(&mut self, core: &Core) -> Result<Option<End>> {
        while core.is_here(self.at.0) {
            if self.at.1 == FileType::Link {
                self.followed += 1;
                if self.followed > MOST_LINKS_FOLLOWED {
                    return Err(Error::from_errno(
                        libc::ELOOP,
                        "a path leads through too many symbolic links",
                    ));
                }
                let target =
                    core.in_version(self.version, |metadata| namespace::target(metadata, self.at.0))?;
                let from = if target.starts_with(b"/") { ROOT } else { self.directory };
                self.at = (from, FileType::Directory);
                self.rest.extend(names(&target));
                continue;
            }
            let Some(name) = self.rest.pop() else { return Ok(Some(self.at)) };
            self.directory = self.at.0;
            let next = core.in_version(self.version, |metadata| find(metadata, self.at.0, &name))?;
            self.at = next.ok_or_else(|| namespace::missing(self.directory, &name))?;
        }
        // The end may be an inode of another core.
        Ok((self.rest.is_empty() && self.at.1 != FileType::Link).then_some(self.at))
    }
}
