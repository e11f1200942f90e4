//! Resolution of paths, from the root through directories and symbolic links, on the shards that have them.

use crate::core::Core;
use crate::core::shards::Shards;
use crate::metadata::inode::{FileType, InodeNumber, ROOT};
use crate::metadata::stripes::{self, Holder};
use crate::metadata::versions::SnapshotNumber;
use crate::names::namespace::{self, resolve};
use block::{Error, Result};
use std::rc::Rc;

/// Most symbolic links that are followed in one path.
const MAX_LINKS_FOLLOWED: u32 = 40;
/// Longest path in bytes.
const MAX_PATH: usize = 4096;

/// Inode at the end of a path, and its type.
pub type End = (InodeNumber, FileType);

fn check_length(path: &str) -> Result<()> {
    match path.len() < MAX_PATH {
        true => Ok(()),
        false => {
            let long = format!("a path of {} bytes; expected at most {MAX_PATH}", path.len());
            Err(Error::from_errno(libc::ENAMETOOLONG, long))
        }
    }
}

/// Resolves a path on this shard; `None` if it leads through symbolic links or to other shards.
///
/// # Errors
/// [`Error::NotFound`], ENOTDIR, ENAMETOOLONG.
pub fn walk_here(core: &Core, path: &str) -> Result<Option<End>> {
    check_length(path)?;
    let mut at = (ROOT, FileType::Directory);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let holder = core.shards().holder(at.0, name.as_bytes());
        if !core.is_here(holder.inode) {
            return Ok(None);
        }
        let Some(found) = core.find_in(holder, name.as_bytes())? else { return Ok(None) };
        at = found.ok_or_else(|| namespace::missing(at.0, name.as_bytes()))?;
        if at.1 == FileType::Link {
            return Ok(None);
        }
    }
    Ok(Some(at))
}

/// State of a path resolution.
#[derive(Debug)]
pub struct Walk {
    at: End,
    /// Stripe of `at` that holds the next name, if it is known that `at` is striped.
    stripe: Option<InodeNumber>,
    /// Directory that contains the link, if `at` is a symbolic link.
    directory: InodeNumber,
    /// Remaining names, the next one last.
    rest: Vec<Vec<u8>>,
    followed: u32,
    version: Option<SnapshotNumber>,
}

fn names(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
}

impl Walk {
    /// Begins a resolution at the root of a snapshot; `None` for the present version.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub fn begin(version: Option<SnapshotNumber>, path: &str) -> Result<Self> {
        check_length(path)?;
        let at = (ROOT, FileType::Directory);
        Ok(Walk {
            at,
            stripe: None,
            directory: ROOT,
            rest: names(path.as_bytes()).collect(),
            followed: 0,
            version,
        })
    }

    /// Resolves the path, on the shards that have its inodes.
    ///
    /// # Errors
    /// As [`go_on`](Self::go_on).
    pub async fn end(mut self, shards: &Shards) -> Result<End> {
        loop {
            let core = shards.of(self.place());
            let go_on = move |core: Rc<Core>| async move {
                let end = self.go_on(&core)?;
                Ok((self, end))
            };
            match core.with(go_on).await? {
                (_, Some(end)) => return Ok(end),
                (next, None) => self = next,
            }
        }
    }

    /// Inode on whose shard the resolution continues.
    pub fn place(&self) -> InodeNumber {
        self.stripe.unwrap_or(self.at.0)
    }

    /// Returns the inode that holds the next name: the directory, or a stripe of it. For a snapshot, only the
    /// shard of the directory can find the stripe.
    fn holder_of_next(&mut self, core: &Core) -> Result<InodeNumber> {
        if self.stripe.is_none()
            && self.at.1 == FileType::Directory
            && let Some(name) = self.rest.last()
        {
            let holder = match self.version {
                None => core.shards().holder(self.at.0, name).inode,
                Some(_) if !core.is_here(self.at.0) || matches!(&name[..], b"." | b"..") => self.at.0,
                Some(_) => core.in_version(self.version, |metadata| {
                    let striped = stripes::read(&metadata.items, self.at.0)?;
                    Ok(striped.map_or(self.at.0, |striped| striped.stripes.of_name(name)))
                })?,
            };
            self.stripe = (holder != self.at.0).then_some(holder);
        }
        Ok(self.place())
    }

    /// Continues as far as the path has inodes of this shard. Returns the end of the path once it is reached.
    ///
    /// # Errors
    /// [`Error::NotFound`], ENOTDIR; ELOOP for too many links.
    pub fn go_on(&mut self, core: &Core) -> Result<Option<End>> {
        loop {
            let holder = self.holder_of_next(core)?;
            if !core.is_here(holder) {
                break;
            }
            if self.at.1 == FileType::Link {
                self.followed += 1;
                if self.followed > MAX_LINKS_FOLLOWED {
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
            let Some(name) = self.rest.last() else { return Ok(Some(self.at)) };
            let found = match self.version {
                Some(_) => {
                    core.in_version(self.version, |metadata| resolve(metadata, holder, name).map(Some))?
                }
                None => core.find_in(Holder { directory: self.at.0, inode: holder }, name)?,
            };
            self.stripe = None;
            // If nothing is found, the name has another holder now.
            if let Some(found) = found {
                self.directory = self.at.0;
                self.at = found.ok_or_else(|| namespace::missing(self.directory, name))?;
                self.rest.pop();
            }
        }
        // The inode at the end may be on another shard.
        Ok((self.rest.is_empty() && self.at.1 != FileType::Link).then_some(self.at))
    }
}
