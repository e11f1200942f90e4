//! Operations on names, with the rules of POSIX: functions from the metadata to the changes that carry an
//! operation out.
//!
//! Permissions aren't checked here: for a mount, the kernel checks them.

use crate::metadata::change::{Attributes, Change, Changes};

use crate::metadata::directory::{self, Found, MAX_NAME, check_name, show};
use crate::metadata::forest::{Forest, InodeGroup};
use crate::metadata::inode::{FileType, Inode, InodeNumber, MAX_INODE, ROOT, Time, Value, kind};
use crate::metadata::{Metadata, orphan, stripes};
use crate::tree::Key;
use block::{Error, Result};
use smallvec::smallvec;

/// Most names of an inode.
pub const MAX_LINKS: u32 = 1 << 30;
/// Longest target of a symbolic link in bytes: it fits in one record with the name and the inode.
pub const MAX_TARGET: usize = 3072;
/// Most bytes of a target in one item.
const TARGET_ITEM: usize = 1024;

/// Attributes of a new file.
#[derive(Debug, Clone, Default)]
pub struct New {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group; that of the directory if it has the setgid bit.
    pub gid: u32,
    /// Device, for a device node.
    pub device: u32,
    /// Target, for a symbolic link.
    pub target: Vec<u8>,
}

/// Condition of a rename on whether the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Renaming {
    /// Replaces the file of that name.
    #[default]
    Replace,
    /// Fails if the new name exists.
    NoReplace,
    /// Exchanges the names of both files.
    Exchange,
}

#[cold]
fn os(errno: i32, detail: String) -> Error {
    Error::from_errno(errno, detail)
}

/// Returns the error for a name that doesn't exist.
#[cold]
pub(crate) fn missing(directory: InodeNumber, name: &[u8]) -> Error {
    Error::not_found(format!("\"{}\" doesn't exist in directory {directory}", show(name)))
}

#[cold]
pub(crate) fn exists(directory: InodeNumber, name: &[u8]) -> Error {
    Error::already_exists(format!("\"{}\" exists in directory {directory} already", show(name)))
}

#[cold]
fn is_a_directory(name: &[u8]) -> Error {
    os(libc::EISDIR, format!("\"{}\" is a directory", show(name)))
}

#[cold]
fn not_a_directory(name: &[u8]) -> Error {
    os(libc::ENOTDIR, format!("\"{}\" isn't a directory", show(name)))
}

/// Chooses the inode group of a new file: that of its directory, so that creating it involves one shard.
/// Directories in the root are distributed over all inode groups, as in the Orlov allocator of ext2: files
/// of one top-level directory are likely to be used together, files of several aren't.
pub fn group_for(items: &Forest, directory: InodeNumber, name: &[u8], new: &New) -> InodeGroup {
    match directory == ROOT && FileType::of(new.mode) == Some(FileType::Directory) {
        true => (directory::hash(name) % u64::from(items.groups())) as InodeGroup,
        false => items.group_of(directory),
    }
}

/// Returns a directory to which names may be added.
fn directory_of(metadata: &Metadata, directory: InodeNumber) -> Result<Inode> {
    let inode = metadata.inode(directory)?;
    match inode.is_directory() {
        false => Err(os(libc::ENOTDIR, format!("inode {directory} isn't a directory"))),
        // The directory was removed while it was open.
        true if inode.links == 0 => Err(Error::not_found(format!("directory {directory} was removed"))),
        true => Ok(inode),
    }
}

/// Looks a name up; `None` if it doesn't exist.
///
/// # Errors
/// ENOTDIR, ENAMETOOLONG; ESTALE.
pub(crate) fn find(metadata: &Metadata, directory: InodeNumber, name: &[u8]) -> Result<Option<Found>> {
    if name.len() > MAX_NAME {
        check_name(name)?;
    }
    let found = directory::find(&metadata.items, directory, name)?;
    // An inode with entries is a directory.
    if found.is_none() && !metadata.inode(directory)?.is_directory() {
        return Err(os(libc::ENOTDIR, format!("inode {directory} isn't a directory")));
    }
    Ok(found)
}

/// Looks a name up.
///
/// # Errors
/// [`Error::NotFound`]; errors of [`find`].
pub(crate) fn lookup(metadata: &Metadata, directory: InodeNumber, name: &[u8]) -> Result<Found> {
    find(metadata, directory, name)?.ok_or_else(|| missing(directory, name))
}

/// Returns the change of the times and the link count of an inode whose data changes.
fn touched(inode: InodeNumber, now: Time, links: Option<u32>) -> Change {
    if links.is_none() {
        return Change::Touch { inode, time: now };
    }
    let attributes = Attributes { modified: Some(now), changed: Some(now), links, ..Attributes::default() };
    Change::set(inode, attributes)
}

fn set_links(inode: InodeNumber, links: u32, now: Time) -> Change {
    let attributes = Attributes { links: Some(links), changed: Some(now), ..Attributes::default() };
    Change::set(inode, attributes)
}

fn put_entry(key: Key, inode: InodeNumber, code: u8, name: &[u8]) -> Change {
    Change::Put { key, value: directory::encode(inode, code, name) }
}

/// Returns the changes that create a file without a name, with this inode number, to be opened.
///
/// # Errors
/// As [`create`].
pub(crate) fn create_unnamed(
    metadata: &Metadata,
    number: InodeNumber,
    directory: InodeNumber,
    new: &New,
    now: Time,
) -> Result<Changes> {
    let parent = directory_of(metadata, directory)?;
    let mut changes = make(number, &parent, directory, new, 0, now)?;
    changes.push(Change::Put { key: orphan(number), value: Value::new() });
    Ok(changes)
}

/// Returns the changes that create an inode.
fn make(
    number: InodeNumber,
    parent: &Inode,
    directory: InodeNumber,
    new: &New,
    links: u32,
    now: Time,
) -> Result<Changes> {
    let Some(file_type) = FileType::of(new.mode) else {
        return Err(Error::invalid(format!(
            "mode {:o}: unknown type of file; expected a mode with one of the types of inode(7)",
            new.mode
        )));
    };
    if number > MAX_INODE {
        return Err(Error::no_space(format!(
            "all numbers of inodes of the inode group were given: the next one is {number}; expected at most {MAX_INODE}; copy the files to a new file system"
        )));
    }
    if new.target.len() > MAX_TARGET {
        let long =
            format!("symbolic link: target of {} bytes; expected at most {MAX_TARGET}", new.target.len());
        return Err(os(libc::ENAMETOOLONG, long));
    }
    let is_directory = file_type == FileType::Directory;
    let inherits = parent.mode & libc::S_ISGID != 0;
    let inode = Inode {
        mode: new.mode | if inherits && is_directory { libc::S_ISGID } else { 0 },
        links,
        uid: new.uid,
        gid: if inherits { parent.gid } else { new.gid },
        size: new.target.len() as u64,
        blocks: 0,
        accessed: now,
        modified: now,
        changed: now,
        created: now,
        device: new.device,
        parent: if is_directory { parent.as_parent(directory) } else { 0 },
    };
    let mut changes: Changes = smallvec![Change::Put { key: Inode::key(number), value: inode.encode() }];
    for (part, bytes) in new.target.chunks(TARGET_ITEM).enumerate() {
        let key = Key { inode: number, kind: kind::TARGET, offset: part as u64 };
        changes.push(Change::Put { key, value: Value::from_slice(bytes) });
    }
    Ok(changes)
}

/// Returns the key for a new name.
fn vacant(metadata: &Metadata, directory: InodeNumber, name: &[u8]) -> Result<Key> {
    match directory::find_or_vacant(&metadata.items, directory, name)? {
        Ok(_) => Err(exists(directory, name)),
        Err(key) => Ok(key),
    }
}

/// Returns the changes that create a file with this inode number.
///
/// # Errors
/// [`Error::AlreadyExists`]; [`Error::NotFound`] for a removed directory; ENOTDIR, ENAMETOOLONG, EMLINK;
/// [`Error::Invalid`] for an invalid name or mode.
pub(crate) fn create(
    metadata: &Metadata,
    number: InodeNumber,
    directory: InodeNumber,
    name: &[u8],
    new: &New,
    now: Time,
) -> Result<Changes> {
    match find_or_create(metadata, number, directory, name, new, now)? {
        Ok(_) => Err(exists(directory, name)),
        Err(changes) => Ok(changes),
    }
}

/// Looks a name up. Returns the existing file, or the changes that create a file of this name with this inode
/// number.
///
/// # Errors
/// As [`create`], except for [`Error::AlreadyExists`].
pub(crate) fn find_or_create(
    metadata: &Metadata,
    number: InodeNumber,
    directory: InodeNumber,
    name: &[u8],
    new: &New,
    now: Time,
) -> Result<std::result::Result<Found, Changes>> {
    check_name(name)?;
    let parent = directory_of(metadata, directory)?;
    let key = match directory::find_or_vacant(&metadata.items, directory, name)? {
        Ok(found) => return Ok(Ok(found)),
        Err(key) => key,
    };
    let is_directory = FileType::of(new.mode) == Some(FileType::Directory);
    if is_directory && parent.links >= MAX_LINKS {
        return Err(os(
            libc::EMLINK,
            format!(
                "directory {directory}: too many subdirectories: {}; expected fewer than {MAX_LINKS}",
                parent.links
            ),
        ));
    }
    let links = if is_directory { 2 } else { 1 };
    let mut changes = make(number, &parent, directory, new, links, now)?;
    let code = FileType::of(new.mode).map_or(0, FileType::code);
    changes.push(touched(directory, now, is_directory.then_some(parent.links + 1)));
    changes.push(put_entry(key, number, code, name));
    Ok(Err(changes))
}

/// Target of a symbolic link.
///
/// # Errors
/// [`Error::Invalid`] for a file of another type.
pub(crate) fn target(metadata: &Metadata, inode: InodeNumber) -> Result<Vec<u8>> {
    if metadata.inode(inode)?.file_type() != FileType::Link {
        return Err(Error::invalid(format!("inode {inode} isn't a symbolic link")));
    }
    let first = Key { inode, kind: kind::TARGET, offset: 0 };
    let parts =
        metadata.items.range(&first).take_while(|(key, _)| (key.inode, key.kind) == (inode, kind::TARGET));
    Ok(parts.flat_map(|(_, bytes)| bytes.iter().copied()).collect())
}

/// Returns the changes that create another name of a file.
///
/// # Errors
/// As [`create`]; EPERM for a directory; [`Error::NotFound`] for an inode that is being removed.
pub(crate) fn link(
    metadata: &Metadata,
    inode: InodeNumber,
    directory: InodeNumber,
    name: &[u8],
    is_open: impl Fn(InodeNumber) -> bool,
    now: Time,
) -> Result<Changes> {
    check_name(name)?;
    directory_of(metadata, directory)?;
    let old = metadata.inode(inode)?;
    if old.links == 0 && !is_open(inode) {
        return Err(Error::not_found(format!("inode {inode} was removed")));
    }
    if old.is_directory() {
        return Err(os(
            libc::EPERM,
            format!("inode {inode} is a directory; expected another file: directories have one name"),
        ));
    }
    let key = vacant(metadata, directory, name)?;
    if old.links >= MAX_LINKS {
        return Err(os(
            libc::EMLINK,
            format!("inode {inode}: too many names: {}; expected fewer than {MAX_LINKS}", old.links),
        ));
    }
    let mut changes: Changes = smallvec![
        put_entry(key, inode, old.file_type().code(), name),
        set_links(inode, old.links + 1, now),
        touched(directory, now, None),
    ];
    if old.links == 0 {
        changes.push(Change::Delete { key: orphan(inode) });
    }
    Ok(changes)
}

/// Returns the changes of an inode that loses a name; a directory loses all links.
fn drop_name(inode: InodeNumber, old: &Inode, is_open: bool, now: Time) -> Changes {
    let links = if old.is_directory() { 0 } else { old.links.saturating_sub(1) };
    match (links, is_open) {
        (0, false) => smallvec![Change::Remove { inode }],
        (0, true) => {
            smallvec![set_links(inode, 0, now), Change::Put { key: orphan(inode), value: Value::new() }]
        }
        _ => smallvec![set_links(inode, links, now)],
    }
}

/// Returns the changes that remove a name that was [looked up](lookup). An inode without names is kept until
/// it is closed: `stays` returns whether an inode is in use.
///
/// # Errors
/// EISDIR.
pub(crate) fn unlink(
    metadata: &Metadata,
    directory: InodeNumber,
    (name, found): (&[u8], Found),
    stays: impl Fn(InodeNumber, &Inode) -> bool,
    now: Time,
) -> Result<Changes> {
    let old = metadata.inode(found.inode)?;
    if old.is_directory() {
        return Err(is_a_directory(name));
    }
    let mut changes: Changes = smallvec![Change::Delete { key: found.key }, touched(directory, now, None)];
    changes.extend(drop_name(found.inode, &old, stays(found.inode, &old), now));
    Ok(changes)
}

fn check_empty(metadata: &Metadata, directory: InodeNumber, name: &[u8]) -> Result<()> {
    match stripes::is_empty(&metadata.items, directory)? {
        true => Ok(()),
        false => Err(os(libc::ENOTEMPTY, format!("directory \"{}\" isn't empty", show(name)))),
    }
}

/// Returns the changes that remove an empty directory whose name was looked up; `stays` as in [`unlink`].
///
/// # Errors
/// ENOTDIR, ENOTEMPTY.
pub(crate) fn remove_directory(
    metadata: &Metadata,
    directory: InodeNumber,
    (name, found): (&[u8], Found),
    stays: impl Fn(InodeNumber, &Inode) -> bool,
    now: Time,
) -> Result<Changes> {
    let (parent, old) = (metadata.inode(directory)?, metadata.inode(found.inode)?);
    if !old.is_directory() {
        return Err(not_a_directory(name));
    }
    check_empty(metadata, found.inode, name)?;
    let mut changes: Changes = smallvec![
        Change::Delete { key: found.key },
        touched(directory, now, Some(parent.links.saturating_sub(1))),
    ];
    changes.extend(stripes::removal(&metadata.items, found.inode)?);
    changes.extend(drop_name(found.inode, &old, stays(found.inode, &old), now));
    Ok(changes)
}

/// Refuses to move a directory into itself or into a directory below it.
fn check_not_below(metadata: &Metadata, moved: InodeNumber, mut directory: InodeNumber) -> Result<()> {
    for _ in 0..=metadata.count() {
        if directory == moved {
            return Err(Error::invalid(format!(
                "directory {moved} can't be moved into itself or a directory below it"
            )));
        }
        if directory == ROOT {
            return Ok(());
        }
        directory = metadata.inode(directory)?.parent;
    }
    Err(Error::corrupt(format!("directory {directory} is below itself")))
}

/// Refuses invalid names of a rename.
///
/// # Errors
/// Errors of [`check_name`].
pub fn check_names(old: &[u8], new: &[u8]) -> Result<()> {
    check_name(old)?;
    check_name(new)
}

/// Source or target of a rename: directory and name.
type Side<'a> = (InodeNumber, &'a [u8]);

/// Returns the changes that rename a file.
///
/// # Errors
/// As [`create`], [`unlink`] and [`remove_directory`]; [`Error::Invalid`] for moving a directory below
/// itself.
pub(crate) fn rename(
    metadata: &Metadata,
    from: Side<'_>,
    to: Side<'_>,
    renaming: Renaming,
    stays: impl Fn(InodeNumber, &Inode) -> bool,
    now: Time,
) -> Result<Changes> {
    let ((old_directory, old_name), (new_directory, new_name)) = (from, to);
    check_names(old_name, new_name)?;
    let moved = lookup(metadata, old_directory, old_name)?;
    let old_parent = directory_of(metadata, old_directory)?;
    let new_parent = directory_of(metadata, new_directory)?;
    let there = directory::look(&metadata.items, new_directory, new_name)?;
    let replaced = there.ok();
    match (renaming, &replaced) {
        (Renaming::NoReplace, Some(_)) => return Err(exists(new_directory, new_name)),
        (Renaming::Exchange, None) => return Err(missing(new_directory, new_name)),
        // Both names refer to the same file: POSIX requires no change.
        (_, Some(other)) if other.inode == moved.inode => return Ok(Changes::new()),
        _ => {}
    }
    let file = metadata.inode(moved.inode)?;
    let changes_parent = old_directory != new_directory;
    if file.is_directory() && changes_parent {
        check_not_below(metadata, moved.inode, new_directory)?;
    }
    let mut changes = Changes::new();
    // Numbers of subdirectories that each directory gains.
    let (mut old_gain, mut new_gain) = (0_i64, 0_i64);
    if file.is_directory() && changes_parent {
        (old_gain, new_gain) = (-1, 1);
    }
    match replaced {
        Some(other) if renaming == Renaming::Exchange => {
            let other_file = metadata.inode(other.inode)?;
            if other_file.is_directory() && changes_parent {
                check_not_below(metadata, other.inode, old_directory)?;
                (old_gain, new_gain) = (old_gain + 1, new_gain - 1);
            }
            changes.push(put_entry(moved.key, other.inode, other.code, old_name));
            changes.push(put_entry(other.key, moved.inode, moved.code, new_name));
            changes.push(moved_to(other.inode, &other_file, old_parent.as_parent(old_directory), now));
        }
        Some(other) => {
            let other_file = metadata.inode(other.inode)?;
            match (file.is_directory(), other_file.is_directory()) {
                (true, false) => return Err(not_a_directory(new_name)),
                (false, true) => return Err(is_a_directory(new_name)),
                (true, true) => {
                    check_empty(metadata, other.inode, new_name)?;
                    changes.extend(stripes::removal(&metadata.items, other.inode)?);
                    new_gain -= 1;
                }
                (false, false) => {}
            }
            changes.push(Change::Delete { key: moved.key });
            changes.push(put_entry(other.key, moved.inode, moved.code, new_name));
            changes.extend(drop_name(other.inode, &other_file, stays(other.inode, &other_file), now));
        }
        None => {
            let key = there.err().unwrap_or(moved.key);
            directory::check_key(key, new_directory, new_name)?;
            changes.push(Change::Delete { key: moved.key });
            changes.push(put_entry(key, moved.inode, moved.code, new_name));
        }
    }
    changes.push(moved_to(moved.inode, &file, new_parent.as_parent(new_directory), now));
    let links =
        |parent: &Inode, gain: i64| (gain != 0).then(|| parent.links.saturating_add_signed(gain as i32));
    if changes_parent {
        changes.push(touched(old_directory, now, links(&old_parent, old_gain)));
        changes.push(touched(new_directory, now, links(&new_parent, new_gain)));
    } else {
        changes.push(touched(new_directory, now, links(&new_parent, old_gain + new_gain)));
    }
    Ok(changes)
}

fn moved_to(inode: InodeNumber, file: &Inode, directory: InodeNumber, now: Time) -> Change {
    let parent = file.is_directory().then_some(directory);
    let attributes = Attributes { changed: Some(now), parent, ..Attributes::default() };
    Change::set(inode, attributes)
}

/// Looks a name up, which may be `.` or `..`. Returns the inode and its type; `None` if the name doesn't
/// exist.
///
/// # Errors
/// ENOTDIR, ENAMETOOLONG.
pub(crate) fn resolve(
    metadata: &Metadata,
    directory: InodeNumber,
    name: &[u8],
) -> Result<Option<(InodeNumber, FileType)>> {
    match name {
        b"." => metadata.inode(directory).map(|_| Some((directory, FileType::Directory))),
        b".." => {
            let parent = metadata.inode(directory)?.parent.max(ROOT);
            Ok(Some((parent, FileType::Directory)))
        }
        _ => {
            let found = find(metadata, directory, name)?;
            Ok(found.map(|found| (found.inode, found.file_type())))
        }
    }
}
