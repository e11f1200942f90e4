//! Operations of the kernel on the shard that has the inode or the name, where they take more than one call
//! of the shard.

use super::convert::{self, CACHED};
use crate::classes::fair_queue::DEFAULT;
use crate::core::{Core, Times, now};
use crate::data::clones::{self, Copied};
use crate::data::node::Node;
use crate::metadata::attributes::Setting;
use crate::metadata::inode::{FileType, Inode, InodeNumber};
use crate::names::namespace::{New, Renaming};
use block::{Data, Error, Result};
use fuse::protocol::{flag, open_flag};
use fuse::{
    CachedAttributes, Context, CopyRange, Entry, Notifier, Opened, Reply, SetAttributes, Statistics, Write,
};
use std::rc::Rc;

/// Most bytes that one request copies; the caller requests the rest again.
const MAX_COPIED: u64 = 64 << 20;
/// Most bytes that one request copies or shares.
const MAX_SHARED: u64 = 1 << 30;
/// Number of files for which a free block has space, for `statfs`: an estimate.
const FILES_PER_BLOCK: u64 = 8;
/// Extended attribute that holds capabilities of an executable.
const CAPABILITIES: &[u8] = b"security.capability";

#[cold]
pub(super) fn os(errno: i32, detail: impl Into<block::error::Detail>) -> Error {
    Error::from_errno(errno, detail)
}

/// Handle of files that are open for writing; all others have 0.
const WRITER: u64 = 1;
/// Free blocks above which a file whose writes found no space may be written again: two of the largest
/// writes.
const FREE_AGAIN: u64 = 512;

/// Returns flags and handle of a file opened with `flags`. Only the kernel caches data, so its cache stays
/// valid when the file is opened again.
///
/// Writes that the kernel has cached can't be refused any more. So a file without data that is opened for
/// writing while space is short is written through. This flag is set only for files that can't be mapped
/// (O_WRONLY), because older kernels refuse to map a file with it. The kernel sets no times at such writes,
/// which matters little for a new file.
pub(super) fn opened(flags: i32, is_empty: bool, is_short: bool) -> Opened {
    let is_direct = is_empty && is_short && flags & libc::O_ACCMODE == libc::O_WRONLY;
    let direct = if is_direct { open_flag::DIRECT_IO } else { 0 };
    Opened { handle: if is_writing(flags) { WRITER } else { 0 }, flags: open_flag::KEEP_CACHE | direct }
}

/// Sizes for `statfs`.
pub(super) fn statistics(core: &Core) -> Statistics {
    let found = core.statistics();
    let free_nodes = found.free.saturating_mul(FILES_PER_BLOCK);
    Statistics {
        block_size: crate::format::BLOCK as u32,
        blocks: found.blocks,
        free: found.free,
        available: found.free,
        nodes: found.inodes.saturating_add(free_nodes),
        free_nodes,
        name_bytes: crate::metadata::directory::MAX_NAME as u32,
    }
}

/// Attributes of an inode, for stat(2) or a request on an open file. Before the kernel caches a write to an
/// open file, it requests the attributes; on an error the write fails with it.
///
/// # Errors
/// [`Error::NoSpace`] if an earlier write found no space.
pub(super) async fn attributes_for(
    core: Rc<Core>,
    inode: InodeNumber,
    handle: Option<u64>,
) -> Result<CachedAttributes> {
    if let Some(node) = core.nodes.find(inode).filter(|node| node.has_lost_writes.get())
        && handle == Some(WRITER)
    {
        core.admission.check_space(FREE_AGAIN)?;
        node.has_lost_writes.set(false);
    }
    attributes(&core, inode).await
}

/// Attributes of an inode.
pub(super) async fn attributes(core: &Core, inode: InodeNumber) -> Result<CachedAttributes> {
    let found = core.shards().attributes_in(None, inode).await?;
    Ok(cached(core, inode, &found))
}

fn cached(core: &Core, inode: InodeNumber, found: &Inode) -> CachedAttributes {
    (
        convert::attributes(inode, found, core.block_size()),
        convert::cached_for(found, core.admission.is_short()),
    )
}

fn entry_with((attributes, attributes_time): CachedAttributes) -> Entry {
    Entry { attributes, generation: 0, name_time: CACHED, attributes_time }
}

/// Returns an entry for an inode of this shard that isn't a striped directory, without counting the kernel's
/// reference.
pub(super) fn entry_of(core: &Core, inode: InodeNumber) -> Result<Entry> {
    Ok(entry_with(cached(core, inode, &core.inode(inode)?)))
}

/// Returns the result of a lookup, and counts the kernel's reference to it.
pub(super) async fn entry(core: &Core, inode: InodeNumber) -> Result<Entry> {
    let entry = match core.shards().striped().has(inode) {
        false => entry_of(core, inode)?,
        true => {
            let entry = entry_with(attributes(core, inode).await?);
            // The inode may have been removed meanwhile.
            core.inode(inode)?;
            entry
        }
    };
    core.nodes.refer(inode);
    Ok(entry)
}

/// Looks a name up. The kernel also caches that a name doesn't exist.
pub(super) async fn lookup(core: Rc<Core>, parent: InodeNumber, name: Vec<u8>) -> Result<Entry> {
    core.admission.check_alive()?;
    loop {
        let inode = match core.lookup(parent, &name).await {
            Ok(inode) => inode,
            Err(Error::NotFound(_)) => return Ok(Entry { name_time: CACHED, ..Entry::default() }),
            Err(error) => return Err(error),
        };
        match entry_elsewhere(&core, inode).await {
            // The inode was removed on its shard meanwhile.
            Err(error)
                if error.errno() == libc::ESTALE && core.lookup(parent, &name).await.ok() != Some(inode) => {}
            entry => return entry,
        }
    }
}

/// Drops references of the kernel.
pub(super) fn forget(core: &Rc<Core>, inode: InodeNumber, lookups: u64) {
    if core.nodes.unrefer(inode, lookups) {
        core.remove_unused(inode);
    }
}

/// Closes a file or directory that was opened with these flags.
pub(super) fn release(core: &Rc<Core>, inode: InodeNumber, flags: i32) -> Result<()> {
    if let Some(node) = core.nodes.find(inode).filter(|node| node.is_open()) {
        if is_writing(flags) {
            node.writers.set(node.writers.get().saturating_sub(1));
            if node.writers.get() == 0 {
                node.has_lost_writes.set(false);
            }
        }
        node.mount_opens.set(node.mount_opens.get().saturating_sub(1));
        core.close(&node);
    }
    Ok(())
}

/// Closes all files that the mount has open, and drops the kernel's references: an ended mount sends neither
/// RELEASE nor FORGET.
pub(super) fn end_mount(core: &Rc<Core>) {
    core.nodes.end_mount();
    core.remove_orphans();
}

fn is_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Notes that the mount has opened a file with these flags.
pub(super) fn note_open(node: &Node, flags: i32) {
    node.mount_opens.set(node.mount_opens.get() + 1);
    if is_writing(flags) {
        node.writers.set(node.writers.get() + 1);
    }
}

/// Creates a file, and counts the kernel's reference.
pub(super) async fn create(
    core: Rc<Core>,
    (parent, name): (InodeNumber, Vec<u8>),
    new: New,
) -> Result<Entry> {
    let inode = core.create(parent, &name, &new).await?;
    entry_elsewhere(&core, inode).await
}

/// Creates an unnamed file in a directory, and opens it.
pub(super) async fn create_unnamed(
    core: Rc<Core>,
    directory: InodeNumber,
    new: New,
    flags: i32,
) -> Result<(Entry, Opened)> {
    let node = core.create_unnamed(directory, &new).await?;
    note_open(&node, flags);
    let opened = opened(flags, true, core.admission.is_short());
    Ok((entry(&core, node.inode).await?, opened))
}

/// Adds a name for an inode.
pub(super) async fn link(
    core: Rc<Core>,
    linked: InodeNumber,
    (parent, name): (InodeNumber, Vec<u8>),
) -> Result<Entry> {
    core.link(linked, parent, &name).await?;
    entry_elsewhere(&core, linked).await
}

/// Renames, with flags of renameat2(2).
pub(super) async fn rename(
    core: Rc<Core>,
    (parent, name): (InodeNumber, Vec<u8>),
    (new_parent, new_name): (InodeNumber, Vec<u8>),
    flags: u32,
) -> Result<()> {
    core.rename((parent, &name), (new_parent, &new_name), renaming(flags)?).await
}

/// As [`entry`], for an inode that may be on another shard.
pub(super) async fn entry_elsewhere(core: &Core, inode: InodeNumber) -> Result<Entry> {
    if core.is_here(inode) {
        return entry(core, inode).await;
    }
    core.shards().of(inode).with(async move |core: Rc<Core>| entry(&core, inode).await).await
}

/// Creates and opens a regular file. An existing one is opened, unless the flags require a new file.
pub(super) async fn create_and_open(
    core: Rc<Core>,
    (parent, name): (InodeNumber, Vec<u8>),
    new: New,
    flags: i32,
) -> Result<(Entry, Opened)> {
    let (inode, flags) = match core.create(parent, &name, &new).await {
        Err(Error::AlreadyExists(_)) if flags & libc::O_EXCL == 0 => {
            (core.lookup(parent, &name).await?, flags)
        }
        // A new file needs no truncation.
        other => (other?, flags & !libc::O_TRUNC),
    };
    match core.is_here(inode) {
        true => open_entry(core, inode, flags).await,
        false => core.shards().of(inode).with(move |core| open_entry(core, inode, flags)).await,
    }
}

async fn open_entry(core: Rc<Core>, inode: InodeNumber, flags: i32) -> Result<(Entry, Opened)> {
    let node = core.open(inode)?;
    // Also with size 0: a write in flight may add bytes.
    if flags & libc::O_TRUNC != 0
        && let Err(error) = core.truncate(&node, 0).await
    {
        core.close(&node);
        return Err(error);
    }
    note_open(&node, flags);
    let opened = opened(flags, core.inode(inode)?.size == 0, core.admission.is_short());
    Ok((entry(&core, inode).await?, opened))
}

/// Opens a file.
pub(super) async fn open(core: Rc<Core>, inode: InodeNumber, flags: i32) -> Result<Opened> {
    core.admission.check_alive()?;
    let node = core.open(inode)?;
    let truncates = flags & libc::O_TRUNC != 0 && core.inode(inode)?.file_type() == FileType::Regular;
    if truncates && let Err(error) = core.truncate(&node, 0).await {
        core.close(&node);
        return Err(error);
    }
    note_open(&node, flags);
    Ok(opened(flags, core.inode(inode)?.size == 0, core.admission.is_short()))
}

/// Opens a directory.
pub(super) fn open_directory(core: &Core, inode: InodeNumber) -> Result<Opened> {
    core.admission.check_alive()?;
    match core.inode(inode)?.is_directory() {
        true => {
            note_open(&*core.open(inode)?, libc::O_RDONLY);
            Ok(Opened::default())
        }
        false => Err(os(libc::ENOTDIR, format!("inode {inode} isn't a directory"))),
    }
}

/// Sets the size first, and then other attributes.
pub(super) async fn set_attributes(
    core: &Rc<Core>,
    inode: InodeNumber,
    set: &SetAttributes,
) -> Result<CachedAttributes> {
    let old = core.inode(inode)?;
    if let Some(size) = set.size {
        let node = core.node(inode);
        core.truncate(&node, size).await?;
    }
    let wanted = *set;
    let decide = move |old: &Inode| convert::changes(old, &wanted, now());
    core.decide_attributes(inode, set.modified.is_some(), decide).await?;
    if convert::takes_privileges(&old, set) {
        remove_capabilities(core, inode).await?;
    }
    attributes(core, inode).await
}

async fn remove_capabilities(core: &Core, inode: InodeNumber) -> Result<()> {
    match core.attribute(inode, CAPABILITIES) {
        Ok(_) => core.remove_attribute(inode, CAPABILITIES).await,
        Err(_) => Ok(()),
    }
}

/// Clears the setuid and setgid bits and the capabilities of a file, after a change of its data by a user
/// other than root.
pub(super) async fn take_privileges(core: &Rc<Core>, inode: InodeNumber) -> Result<()> {
    let mode = core.inode(inode)?.mode;
    if convert::without_privileges(mode) != mode || core.attribute(inode, CAPABILITIES).is_ok() {
        let clear = SetAttributes { clear_set_id: true, ..SetAttributes::default() };
        set_attributes(core, inode, &clear).await?;
    }
    Ok(())
}

/// Writes to a file that is open, or is written back from the kernel's cache.
pub(super) async fn write(core: Rc<Core>, inode: InodeNumber, write: Write) -> Result<Reply> {
    let length = write.data.filled().len() as u64;
    let node = core.node(inode);
    if write.from_page_cache() {
        let written = core.write_back(&node, write.offset, write.data.into()).await;
        // The writer may not be waiting: the kernel reports the error at the next close(2) or fsync(2).
        if matches!(written, Err(Error::NoSpace(_))) && node.writers.get() > 0 {
            node.has_lost_writes.set(true);
        }
        return written.map(|()| Reply::Written(length));
    }
    core.write(DEFAULT, &node, write.offset, write.data.into()).await?;
    if write.write_flags & flag::WRITE_KILL_SUIDGID != 0 {
        take_privileges(&core, inode).await?;
    }
    if write.flags & libc::O_DSYNC != 0 {
        core.sync_in(DEFAULT, node.ticket.get()).await?;
    }
    Ok(Reply::Written(length))
}

/// Converts flags of renameat2(2).
fn renaming(flags: u32) -> Result<Renaming> {
    match flags {
        0 => Ok(Renaming::Replace),
        libc::RENAME_NOREPLACE => Ok(Renaming::NoReplace),
        libc::RENAME_EXCHANGE => Ok(Renaming::Exchange),
        other => Err(Error::invalid(format!(
            "rename with flags {other:#x}; expected RENAME_NOREPLACE, RENAME_EXCHANGE or none"
        ))),
    }
}

/// Checks that the file system stores extended attributes of this namespace.
pub(super) fn check_namespace(name: &[u8]) -> Result<()> {
    let kept = [b"user.".as_slice(), b"trusted.", b"security."];
    match kept.iter().any(|prefix| name.starts_with(prefix)) {
        true => Ok(()),
        false => Err(os(
            libc::EOPNOTSUPP,
            format!(
                "extended attribute \"{}\"; expected one of user, trusted or security",
                crate::metadata::directory::show(name)
            ),
        )),
    }
}

/// Converts flags of setxattr(2).
fn setting(flags: i32) -> Result<Setting> {
    match flags {
        0 => Ok(Setting::Any),
        libc::XATTR_CREATE => Ok(Setting::Create),
        libc::XATTR_REPLACE => Ok(Setting::Replace),
        other => Err(Error::invalid(format!("setxattr with flags {other:#x}"))),
    }
}

/// Sets an extended attribute, with flags of setxattr(2).
pub(super) async fn set_extended(
    core: Rc<Core>,
    inode: InodeNumber,
    (name, value): (Vec<u8>, Vec<u8>),
    flags: i32,
) -> Result<()> {
    check_namespace(&name)?;
    core.set_attribute(inode, &name, &value, setting(flags)?).await
}

/// Removes an extended attribute.
pub(super) async fn remove_extended(core: Rc<Core>, inode: InodeNumber, name: Vec<u8>) -> Result<()> {
    check_namespace(&name)?;
    core.remove_attribute(inode, &name).await
}

/// Names of extended attributes, each followed by a NUL. The `trusted.` namespace is listed only for root.
pub(super) fn shown_names(all: Vec<Vec<u8>>, is_root: bool) -> Data {
    let mut names = Vec::new();
    for name in all {
        if is_root || !name.starts_with(b"trusted.") {
            names.extend_from_slice(&name);
            names.push(0);
        }
    }
    Data::copy_of(&names)
}

/// Allocates, frees or zeroes a range, as fallocate(2) does, and takes the file's privileges unless root
/// asks for it.
pub(super) async fn allocate(
    core: Rc<Core>,
    context: Context,
    (offset, length): (u64, u64),
    mode: i32,
) -> Result<()> {
    const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
    let end = crate::metadata::inode::end_of(offset, length)?;
    let (range, keeps_size) = (offset..end, mode & KEEP_SIZE != 0);
    let node: Rc<Node> = core.node(context.node);
    match mode & !KEEP_SIZE {
        0 => core.preallocate(&node, range, !keeps_size, Times::Kept).await?,
        libc::FALLOC_FL_PUNCH_HOLE if keeps_size => core.punch(&node, range, Times::Kept).await?,
        libc::FALLOC_FL_ZERO_RANGE => {
            core.punch(&node, range.clone(), Times::Kept).await?;
            core.preallocate(&node, range, !keeps_size, Times::Kept).await?;
        }
        _ => return Err(os(libc::EOPNOTSUPP, format!("fallocate with mode {mode:#x}"))),
    }
    match context.uid {
        0 => Ok(()),
        _ => take_privileges(&core, context.node).await,
    }
}

/// Whether lseek(2) looks for data or for a hole.
pub(super) fn is_for_data(whence: i32) -> Result<bool> {
    match whence {
        libc::SEEK_DATA => Ok(true),
        libc::SEEK_HOLE => Ok(false),
        other => Err(os(libc::EINVAL, format!("lseek with whence {other}"))),
    }
}

/// Next offset with data or in a hole. The kernel first has to write back cached data, which would be missing
/// in the answer otherwise.
pub(super) async fn seek(
    core: &Core,
    notifier: Option<Notifier>,
    inode: InodeNumber,
    offset: u64,
    whence: i32,
) -> Result<u64> {
    let data = is_for_data(whence)?;
    let is_written = core.nodes.find(inode).is_some_and(|node| node.writers.get() > 0);
    match notifier {
        Some(notifier) if is_written => notifier.write_back(inode).await?,
        _ => {}
    }
    core.seek(inode, offset, data)
}

/// Copies a range, or shares its blocks, and takes the privileges of the written file unless root asks for
/// it. Returns the number of bytes, at most the requested one.
pub(super) async fn copy_range(core: Rc<Core>, context: Context, copy: CopyRange) -> Result<Reply> {
    if copy.flags != 0 {
        return Err(Error::invalid(format!("copy_file_range with flags {:#x}; expected none", copy.flags)));
    }
    let CopyRange { from_offset, to_offset, .. } = copy;
    let length = copy.length.min(MAX_SHARED);
    let copied = Copied { class: DEFAULT, from: context.node, from_offset, to_offset, length };
    let done = clones::copy_range(&core, &core.node(copy.to_node), copied, MAX_COPIED, Times::Kept).await?;
    if context.uid != 0 && done.bytes > 0 {
        take_privileges(&core, copy.to_node).await?;
    }
    Ok(Reply::Written(done.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_are_written_through_where_space_is_short() {
        const DIRECT: u32 = open_flag::DIRECT_IO | open_flag::KEEP_CACHE;
        let flags = |flags, is_empty, is_short| opened(flags, is_empty, is_short).flags;
        assert_eq!(flags(libc::O_WRONLY, true, true), DIRECT);
        assert_eq!(flags(libc::O_WRONLY | libc::O_APPEND, true, true), DIRECT);
        for (open, is_empty, is_short) in
            [(libc::O_WRONLY, true, false), (libc::O_WRONLY, false, true), (libc::O_RDWR, true, true)]
        {
            assert_eq!(flags(open, is_empty, is_short), open_flag::KEEP_CACHE);
        }
        let handles =
            [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR].map(|open| opened(open, true, true).handle);
        assert_eq!(handles, [0, WRITER, WRITER]);
    }
}
