//! Paths of inodes, for messages: found from names, from the file up to the root.
//!
//! Inodes of files don't refer to their directories, so all names of a version are read once, in batches,
//! until each of the files has one. Only one name of a file is found. If names change meanwhile, the result
//! doesn't reflect a single point in time.

use crate::core::Core;
use crate::core::shards::shard_of;
use crate::metadata::extents::Extent;
use crate::metadata::forest::InodeGroup;
use crate::metadata::inode::{Inode, InodeNumber, ROOT, kind};
use crate::metadata::versions::SnapshotNumber;
use crate::metadata::{Metadata, directory, stripes};
use crate::tree::Key;
use block::{Result, ZoneBlock};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Items of one batch on a shard.
const ITEMS_AT_ONCE: usize = 1024;
/// Most directories above a file; paths that are deeper aren't found.
const MAX_LEVELS: usize = 2048;
/// Most bytes of a path that are shown; a longer path is shown without its beginning.
const MAX_SHOWN: usize = 4096;

/// Inode that a name refers to, inode that holds the name (a directory or a stripe of one), and the name.
type Name = (InodeNumber, InodeNumber, Vec<u8>);

/// A version of the metadata, with its inode groups on one or several shards.
pub(crate) trait Version {
    /// Number of inode groups.
    fn groups(&self) -> u32;

    /// Calls `work` with metadata that has the items of an inode group.
    async fn with_group<R: Send + 'static>(
        &self,
        group: InodeGroup,
        work: impl FnOnce(&Metadata) -> Result<R> + Send + 'static,
    ) -> Result<R>;

    /// Calls `work` with metadata that has the items of an inode.
    async fn with_inode<R: Send + 'static>(
        &self,
        inode: InodeNumber,
        work: impl FnOnce(&Metadata) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        self.with_group((inode % u64::from(self.groups())) as InodeGroup, work).await
    }
}

/// Metadata that has all shards.
pub(crate) struct Whole<'a>(pub &'a Metadata);

impl Version for Whole<'_> {
    fn groups(&self) -> u32 {
        self.0.items.groups()
    }

    async fn with_group<R: Send + 'static>(
        &self,
        _: InodeGroup,
        work: impl FnOnce(&Metadata) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        work(self.0)
    }
}

/// A version of an open file system: a snapshot, or the present one.
pub(crate) struct OpenVersion<'a>(pub &'a Core, pub Option<SnapshotNumber>);

impl Version for OpenVersion<'_> {
    fn groups(&self) -> u32 {
        self.0.metadata.borrow().items.groups()
    }

    async fn with_group<R: Send + 'static>(
        &self,
        group: InodeGroup,
        work: impl FnOnce(&Metadata) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        // The search may have many steps on this shard.
        runtime::yield_now().await;
        let (shards, version) = (self.0.shards(), self.1);
        let core = &shards.all()[shard_of(group, shards.count()) as usize];
        core.with(move |core: Rc<Core>| async move { core.in_version(version, work) }).await
    }
}

/// Finds the paths of inodes, relative to the root. Inodes that no name refers to have none.
///
/// # Errors
/// [`block::Error::Closed`]; ESTALE for a deleted snapshot.
pub(crate) async fn paths_of(
    version: &impl Version,
    wanted: &BTreeSet<InodeNumber>,
) -> Result<BTreeMap<InodeNumber, String>> {
    let mut names = BTreeMap::new();
    let mut files = BTreeSet::new();
    for inode in wanted {
        if inode_of(version, *inode).await?.is_some_and(|it| !it.is_directory()) {
            files.insert(*inode);
        }
    }
    for group in 0..version.groups() {
        for (inode, holder, name) in names_from(version, group, Key::MIN, None, &mut files).await? {
            names.insert(inode, (holder, name));
        }
    }
    let mut paths = BTreeMap::new();
    for inode in wanted {
        if let Some(path) = path_up(version, *inode, &mut names).await? {
            paths.insert(*inode, path);
        }
    }
    Ok(paths)
}

/// Returns the path of an inode; `names` has the names of files, and directories are added to it.
async fn path_up(
    version: &impl Version,
    inode: InodeNumber,
    names: &mut BTreeMap<InodeNumber, (InodeNumber, Vec<u8>)>,
) -> Result<Option<String>> {
    let (mut at, mut parts) = (inode, Vec::new());
    while at != ROOT {
        if parts.len() > MAX_LEVELS {
            return Ok(None);
        }
        let (holder, name) = match names.get(&at) {
            Some(found) => found.clone(),
            None => {
                let Some(own) = inode_of(version, at).await?.filter(Inode::is_directory) else {
                    return Ok(None);
                };
                if own.is_stripe() {
                    at = own.parent;
                    // The metadata is damaged: the directories may form a cycle.
                    parts.push(String::new());
                    continue;
                }
                let Some(found) = name_of_directory(version, at, own.parent).await? else { return Ok(None) };
                names.insert(at, found.clone());
                found
            }
        };
        parts.push(directory::show(&name).escape_debug().to_string());
        at = holder;
    }
    let parts: Vec<_> = parts.into_iter().rev().filter(|part| !part.is_empty()).collect();
    let path = if parts.is_empty() { "/".to_owned() } else { parts.join("/") };
    let from = path.char_indices().map(|(at, _)| at).find(|at| path.len() - at <= MAX_SHOWN).unwrap_or(0);
    Ok(Some(if from == 0 { path } else { format!("…{}", &path[from..]) }))
}

/// Returns the name of a directory, and the inode that holds the name: `parent`, or a stripe of it.
async fn name_of_directory(
    version: &impl Version,
    inode: InodeNumber,
    parent: InodeNumber,
) -> Result<Option<(InodeNumber, Vec<u8>)>> {
    let striped = move |metadata: &Metadata| stripes::read(&metadata.items, parent);
    let stripes = version.with_inode(parent, striped).await?;
    let stripes = stripes.map(|striped| striped.stripes.all().to_vec()).unwrap_or_default();
    for holder in std::iter::once(parent).chain(stripes) {
        let first = Key { inode: holder, kind: kind::ENTRY, offset: 0 };
        let group = (holder % u64::from(version.groups())) as InodeGroup;
        let mut sought = BTreeSet::from([inode]);
        if let Some((_, holder, name)) =
            names_from(version, group, first, Some(holder), &mut sought).await?.pop()
        {
            return Ok(Some((holder, name)));
        }
    }
    Ok(None)
}

async fn inode_of(version: &impl Version, inode: InodeNumber) -> Result<Option<Inode>> {
    version.with_inode(inode, move |metadata| Ok(metadata.inode(inode).ok())).await
}

/// Returns names in an inode group at or after a key that refer to inodes in `sought`, and removes these from
/// `sought`; with `holder`, only names that it holds.
async fn names_from(
    version: &impl Version,
    group: InodeGroup,
    first: Key,
    holder: Option<InodeNumber>,
    sought: &mut BTreeSet<InodeNumber>,
) -> Result<Vec<Name>> {
    let (mut names, mut from) = (Vec::new(), Some(first));
    while let Some(first) = from.filter(|_| !sought.is_empty()) {
        let wanted = Arc::new(sought.clone());
        let work = move |metadata: &Metadata| Ok(some_names(metadata, group, &first, holder, &wanted));
        let (found, next) = version.with_group(group, work).await?;
        for (inode, ..) in &found {
            sought.remove(inode);
        }
        names.extend(found);
        from = next;
    }
    Ok(names)
}

/// Returns the next names of [`names_from`], and the key at which to continue.
fn some_names(
    metadata: &Metadata,
    group: InodeGroup,
    first: &Key,
    holder: Option<InodeNumber>,
    wanted: &BTreeSet<InodeNumber>,
) -> (Vec<Name>, Option<Key>) {
    let (mut names, mut next) = (Vec::new(), None);
    for (key, value) in metadata.items.tree(group).range(first).take(ITEMS_AT_ONCE) {
        if holder.is_some_and(|holder| (key.inode, key.kind) != (holder, kind::ENTRY)) {
            return (names, None);
        }
        next = key.next();
        if key.inode == 0 || key.kind != kind::ENTRY {
            continue;
        }
        if let Ok((inode, _, name)) = directory::decode(value)
            && wanted.contains(&inode)
            && !has_copies(metadata, key.inode)
        {
            names.push((inode, key.inode, name.to_vec()));
        }
    }
    (names, next)
}

/// Whether the names of an inode are copies: it is a stripe that is being made, or a striped directory with
/// leftovers.
fn has_copies(metadata: &Metadata, holder: InodeNumber) -> bool {
    let is_new_stripe = metadata.inode(holder).is_ok_and(|it| it.is_stripe() && it.links == 0);
    let striped = stripes::read(&metadata.items, holder).ok().flatten();
    is_new_stripe || striped.is_some_and(|it| it.has_leftovers)
}

/// Text for an inode with its path, for messages.
pub(crate) fn show(metadata: &Metadata, inode: InodeNumber, path: &str) -> String {
    let is_directory = metadata.inode(inode).is_ok_and(|it| it.is_directory());
    let what = if is_directory { "directory" } else { "file" };
    format!("{what} \"{path}\" (inode {inode})")
}

/// Finds the files that have blocks of zones, and the number of the block in the file. For a shared block,
/// one of the files is found.
pub(crate) fn owners_of(
    metadata: &Metadata,
    wanted: &BTreeSet<ZoneBlock>,
) -> BTreeMap<ZoneBlock, (InodeNumber, u64)> {
    let mut owners = BTreeMap::new();
    let items = metadata.items.items().filter(|(key, _)| key.inode != 0 && key.kind == kind::EXTENT);
    for (key, value) in items {
        let Ok(extent) = Extent::decode(key, value) else { continue };
        if extent.is_preallocated() {
            continue;
        }
        for place in wanted.range(extent.place..extent.end_place()) {
            let block = extent.block + u64::from(place.block - extent.place.block);
            owners.entry(*place).or_insert((key.inode, block));
        }
    }
    owners
}
