//! Reads of directories, of the present version and of snapshots.

use super::actions::{entry_of, os};
use super::slots::{DIRECTORY, Slots};
use crate::core::Core;
use crate::metadata::directory::{self, Entry};
use crate::metadata::inode::{InodeNumber, ROOT};
use crate::metadata::stripes;
use crate::metadata::versions::SnapshotNumber;
use block::Result;
use fuse::DirectoryEntries;
use std::rc::Rc;
use std::sync::Arc;

/// Offset in a directory after `.`, and after `..`; names have larger offsets.
pub(super) const AFTER_SELF: u64 = 1;
pub(super) const AFTER_PARENT: u64 = 2;

/// Version of a directory that is read: a snapshot with the nodes of its files, or the present version.
#[derive(Debug, Clone)]
pub(super) struct ListedVersion(pub(super) Option<(SnapshotNumber, Arc<Slots>)>);

impl ListedVersion {
    fn number(&self) -> Option<SnapshotNumber> {
        self.0.as_ref().map(|(number, _)| *number)
    }

    /// Node of an inode.
    fn node(&self, inode: InodeNumber) -> Result<u64> {
        match &self.0 {
            None => Ok(inode),
            Some((number, slots)) => slots.node(*number, inode),
        }
    }

    /// Node of `..` in a directory whose parent is this inode.
    fn node_above(&self, directory: InodeNumber, parent: InodeNumber) -> Result<u64> {
        match self.0.is_some() && directory == ROOT {
            true => Ok(DIRECTORY),
            false => self.node(parent.max(ROOT)),
        }
    }
}

/// Reads a directory of this shard at or after an offset, beginning with `.` and `..`.
pub(super) async fn read_directory(
    core: Rc<Core>,
    version: ListedVersion,
    directory: InodeNumber,
    from: u64,
    mut found: DirectoryEntries,
) -> Result<DirectoryEntries> {
    check_version(&core, &version)?;
    let own = core.in_version(version.number(), |metadata| metadata.inode(directory))?;
    if !own.is_directory() {
        return Err(os(libc::ENOTDIR, format!("inode {directory} isn't a directory")));
    }
    let (node, above) = (version.node(directory)?, version.node_above(directory, own.parent)?);
    for (next, node, name) in [(AFTER_SELF, node, b".".as_slice()), (AFTER_PARENT, above, b"..".as_slice())] {
        if from < next && !found.add(node, next, libc::DT_DIR, name) {
            return Ok(found);
        }
    }
    let from = if from <= AFTER_PARENT { 0 } else { from };
    let stripes = match version.number() {
        None => core.shards().striped().find(directory),
        number => core
            .in_version(number, |metadata| stripes::read(&metadata.items, directory))?
            .map(|striped| striped.stripes),
    };
    let Some(stripes) = stripes else {
        return add_names(&core, &version, directory, from, &mut found).map(|_| found);
    };
    for stripe in stripes.from(from) {
        let (stripe, version) = (*stripe, version.clone());
        let add = move |core: Rc<Core>| async move {
            check_version(&core, &version)?;
            let fit = add_names(&core, &version, stripe, from, &mut found)?;
            Ok((found, fit))
        };
        let fit;
        (found, fit) = core.shards().of(stripe).with(add).await?;
        if !fit {
            break;
        }
    }
    Ok(found)
}

/// Refuses snapshots of a file system that has failed or is closed. Names of the present version are read in
/// open directories, and [opening](super::actions::open_directory) one checks the same.
fn check_version(core: &Core, version: &ListedVersion) -> Result<()> {
    match version.0 {
        None => Ok(()),
        Some(_) => core.admission.check_alive(),
    }
}

/// Adds names of an inode of this shard, a directory or a stripe, at or after an offset. Returns whether all
/// fit. If attributes were requested, adds them and counts the kernel's references, except for files on other
/// shards, striped directories and files of snapshots.
fn add_names(
    core: &Core,
    version: &ListedVersion,
    holder: InodeNumber,
    from: u64,
    found: &mut DirectoryEntries,
) -> Result<bool> {
    let mut referred = Vec::new();
    let fit = core.in_version(version.number(), |metadata| {
        for name in directory::entries(&metadata.items, holder, from) {
            let Entry { next, inode, code, name } = name?;
            let has_attributes = found.with_attributes()
                && version.0.is_none()
                && core.is_here(inode)
                && !core.shards().striped().has(inode);
            let fits = match has_attributes {
                true => found.add_found(&entry_of(core, inode)?, next, &name),
                false => found.add(version.node(inode)?, next, code, &name),
            };
            if !fits {
                return Ok(false);
            }
            referred.extend(has_attributes.then_some(inode));
        }
        Ok(true)
    })?;
    referred.into_iter().for_each(|inode| core.nodes.refer(inode));
    Ok(fit)
}
