//! The file system for programs: paths and open files. Every call is asynchronous, and none blocks the shard.
//!
//! A call from another shard than the file system's goes there as a message.

use crate::change::Attributes;
use crate::check::Report;
use crate::core::{Core, Settings};
use crate::directory::Entry;
use crate::format::Properties;
use crate::inode::{FileType, Inode, InodeNumber, ROOT};
use crate::namespace::{self, New, Renaming};
use crate::node::Node;
use crate::operations::Statistics;
use crate::recovery;
use block::{Error, Payload, Result, ZonesPart};
use logkit::{Counters, Owner, cleaner, lane};
use runtime::Home;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Most symbolic links that a path leads through.
const MOST_LINKS_FOLLOWED: u32 = 40;
/// Longest path in bytes.
const MOST_PATH: usize = 4096;

/// A file system on zones. Clones are the same one.
#[derive(Clone)]
pub struct FileSystem {
    home: Home<Core>,
    zones: Arc<dyn ZonesPart>,
    /// Whether the zones are closed with the file system.
    owns_zones: bool,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "FileSystem({:?})", self.home)
    }
}

/// An open file. It is closed when the last clone is dropped.
#[derive(Clone)]
pub struct File {
    home: Home<Core>,
    inode: InodeNumber,
    /// Closes the file with its last clone.
    _open: Arc<Open>,
}

/// Closes a file when it is dropped.
struct Open {
    home: Home<Core>,
    inode: InodeNumber,
}

impl Drop for Open {
    fn drop(&mut self) {
        let inode = self.inode;
        let close = move |core: Rc<Core>| {
            if let Some(node) = core.nodes.find(inode) {
                core.close(&node);
            }
        };
        // A shard that has ended has closed everything; so has the runtime where this isn't a shard.
        if !runtime::is_on_shard() {
            return;
        }
        if let Ok(core) = self.home.get() {
            return close(core);
        }
        let home = self.home.clone();
        let closing = async move {
            let close = move |core| async move {
                close(core);
                Ok(())
            };
            home.with(close).await.ok()
        };
        runtime::spawn(closing).detach();
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "File({})", self.inode)
    }
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Make it if it isn't there.
    pub create: bool,
    /// Fail if it is there.
    pub create_new: bool,
    /// Cut off what is in it.
    pub truncate: bool,
    /// Permissions of a file that is made; 0 stands for 0644.
    pub mode: u32,
}

impl FileSystem {
    /// Makes a file system on zones and opens it. What was there is lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] for zones that are too small or few; what resetting and writing return.
    pub async fn format(
        zones: Arc<dyn ZonesPart>,
        properties: Properties,
        settings: &Settings,
    ) -> Result<Self> {
        let core = recovery::format(zones.open().await?, properties, settings).await?;
        Ok(Self::start(zones, core))
    }

    /// Opens the file system on these zones.
    ///
    /// # Errors
    /// [`Error::Protocol`] where there is none, [`Error::Corrupt`] for a damaged one; what reading and writing return.
    pub async fn open(zones: Arc<dyn ZonesPart>, settings: &Settings) -> Result<Self> {
        let core = recovery::open(zones.open().await?, settings).await?;
        Ok(Self::start(zones, core))
    }

    fn start(zones: Arc<dyn ZonesPart>, core: Rc<Core>) -> Self {
        lane::start(&core);
        cleaner::start(&core);
        core.remove_orphans();
        FileSystem { counters: core.kit.counters.clone(), home: Home::here(core), zones, owns_zones: true }
    }

    /// The file system with zones that stay open when it is closed.
    pub fn on_lent_zones(self) -> Self {
        FileSystem { owns_zones: false, ..self }
    }

    /// The shard's state, on its shard.
    pub fn home(&self) -> &Home<Core> {
        &self.home
    }

    /// What the log counts for operators.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Writes what is queued and a last checkpoint, and closes the zones.
    ///
    /// # Errors
    /// The failure of the log; what writing returns.
    pub async fn close(&self) -> Result<()> {
        let end = |core: Rc<Core>| async move {
            let synced = core.sync_all().await;
            core.kit.begin_closing();
            core.kit.tasks.ended().await;
            let closed = core.take_checkpoint(true).await;
            synced.and(closed)
        };
        let closed = self.home.with(end).await;
        let forgotten = self.home.forget().await;
        match self.owns_zones {
            true => closed.and(forgotten).and(self.zones.close().await),
            false => closed.and(forgotten),
        }
    }

    /// Writes a checkpoint, without which opening reads the records since the last one.
    ///
    /// # Errors
    /// The failure of the log; [`Error::NoSpace`], with which the checkpoint before stays.
    pub async fn take_checkpoint(&self) -> Result<()> {
        self.with(|core| async move {
            core.check_open()?;
            core.take_checkpoint(false).await
        })
        .await
    }

    /// Writes what is queued, and checks the metadata and the counts of the open file system ([`check`](mod@crate::check)).
    ///
    /// # Errors
    /// The failure of the log.
    pub async fn check(&self) -> Result<Report> {
        let check = |core: Rc<Core>| async move {
            core.sync_all().await?;
            Ok(core.check())
        };
        self.with(check).await
    }

    async fn with<R, Fut>(&self, work: impl FnOnce(Rc<Core>) -> Fut + Send + 'static) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        self.home.with(work).await
    }

    /// Runs `work` with the directory and the name that a path ends with.
    async fn at<R, Fut>(
        &self,
        path: &str,
        work: impl FnOnce(Rc<Core>, InodeNumber, Vec<u8>) -> Fut + Send + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let path = path.to_owned();
        self.with(move |core| async move {
            let (directory, name) = parent(&core, &path)?;
            let name = name.to_vec();
            work(core, directory, name).await
        })
        .await
    }

    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyExists`], EISDIR; those of the path.
    pub async fn open_file(&self, path: &str, options: OpenOptions) -> Result<File> {
        let (path, home) = (path.to_owned(), self.home.clone());
        let open = move |core: Rc<Core>| async move {
            let (directory, name) = parent(&core, &path)?;
            let inode = match core.find(directory, name)? {
                None if options.create || options.create_new => {
                    let mode = if options.mode == 0 { 0o644 } else { options.mode };
                    let new = New { mode: FileType::Regular as u32 | mode, ..New::default() };
                    let inode = core.create(directory, name, &new).await?;
                    core.open_present(inode);
                    return Ok(File { _open: Arc::new(Open { home: home.clone(), inode }), home, inode });
                }
                None => return Err(namespace::missing(directory, name)),
                Some(_) if options.create_new => {
                    return Err(Error::already_exists(format!("\"{path}\" is there already")));
                }
                Some((_, FileType::Link)) => resolve(&core, &path)?,
                Some((inode, _)) => inode,
            };
            let file = core.inode(inode)?;
            if file.is_directory() {
                return Err(Error::from_errno(libc::EISDIR, format!("\"{path}\" is a directory")));
            }
            let node = core.open(inode)?;
            // From here on it is closed, whatever becomes of this call.
            let open = Arc::new(Open { home: home.clone(), inode });
            if options.truncate && file.size > 0 {
                core.truncate(&node, 0).await?;
            }
            Ok(File { _open: open, home, inode })
        };
        self.with(open).await
    }

    /// Opens a file, which is made if it isn't there.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub async fn create(&self, path: &str) -> Result<File> {
        self.open_file(path, OpenOptions { create: true, truncate: true, ..OpenOptions::default() }).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`]; those of the path.
    pub async fn make_directory(&self, path: &str) -> Result<()> {
        self.at(path, |core, directory, name| async move {
            let new = New { mode: FileType::Directory as u32 | 0o755, ..New::default() };
            core.create(directory, &name, &new).await.map(drop)
        })
        .await
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// As [`make_directory`](Self::make_directory).
    pub async fn symbolic_link(&self, target: &str, path: &str) -> Result<()> {
        let target = target.as_bytes().to_vec();
        self.at(path, |core, directory, name| async move {
            let new = New { mode: FileType::Link as u32 | 0o777, target, ..New::default() };
            core.create(directory, &name, &new).await.map(drop)
        })
        .await
    }

    /// Gives a file another name; a symbolic link itself, not the file that it leads to.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], EPERM for a directory; those of the paths.
    pub async fn link(&self, old: &str, new: &str) -> Result<()> {
        let (old, new) = (old.to_owned(), new.to_owned());
        self.with(|core| async move {
            let (from, old_name) = parent(&core, &old)?;
            let inode = core.lookup(from, old_name)?;
            let (directory, name) = parent(&core, &new)?;
            core.link(inode, directory, name).await
        })
        .await
    }

    /// Removes a name that isn't a directory's.
    ///
    /// # Errors
    /// [`Error::NotFound`], EISDIR; those of the path.
    pub async fn unlink(&self, path: &str) -> Result<()> {
        self.at(path, |core, directory, name| async move { core.unlink(directory, &name).await }).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], ENOTDIR, ENOTEMPTY; those of the path.
    pub async fn remove_directory(&self, path: &str) -> Result<()> {
        self.at(path, |core, directory, name| async move { core.remove_directory(directory, &name).await })
            .await
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As [`crate::namespace::rename`]; those of the paths.
    pub async fn rename(&self, old: &str, new: &str, renaming: Renaming) -> Result<()> {
        let (old, new) = (old.to_owned(), new.to_owned());
        self.with(move |core| async move {
            let ((from, old_name), (to, new_name)) = (parent(&core, &old)?, parent(&core, &new)?);
            core.rename((from, old_name), (to, new_name), renaming).await
        })
        .await
    }

    /// Attributes of a file; of a symbolic link, those of the file that it leads to.
    ///
    /// # Errors
    /// Those of the path.
    pub async fn attributes(&self, path: &str) -> Result<Inode> {
        let path = path.to_owned();
        self.with(move |core| async move { core.inode(resolve(&core, &path)?) }).await
    }

    /// Names of a directory, in no particular order.
    ///
    /// # Errors
    /// ENOTDIR; those of the path.
    pub async fn read_directory(&self, path: &str) -> Result<Vec<Entry>> {
        let path = path.to_owned();
        self.with(move |core| async move {
            let mut entries = Vec::new();
            core.read_directory(resolve(&core, &path)?, 0, |entry| {
                entries.push(entry);
                true
            })?;
            Ok(entries)
        })
        .await
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another file; those of the path.
    pub async fn read_link(&self, path: &str) -> Result<Vec<u8>> {
        self.at(path, |core, directory, name| async move { core.read_link(core.lookup(directory, &name)?) })
            .await
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// The failure of the log, which stays.
    pub async fn sync(&self) -> Result<()> {
        self.with(|core| async move { core.sync_all().await }).await
    }

    /// What was fixed when the file system was made.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn properties(&self) -> Result<Properties> {
        self.with(|core| async move { Ok(Properties { block_size: core.file_block_bytes() }) }).await
    }

    /// Sizes of the file system.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn statistics(&self) -> Result<Statistics> {
        self.with(|core| async move { Ok(core.statistics()) }).await
    }
}

impl File {
    /// Number of its inode.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    async fn with<R, Fut>(&self, work: impl FnOnce(Rc<Core>, Rc<Node>) -> Fut + Send + 'static) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let inode = self.inode;
        self.home
            .with(move |core| async move {
                let node = core.node(inode);
                work(core, node).await
            })
            .await
    }

    /// Reads at most `length` bytes: fewer only at the end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for data that isn't what was written; what reading returns.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Payload> {
        self.with(move |core, node| async move { core.read(node.inode, offset, length).await }).await
    }

    /// Writes data. Reads see it when this returns; it survives a power cut after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`Error::NoSpace`], EFBIG; the failure of the log.
    pub async fn write_at(&self, offset: u64, data: impl Into<Payload>) -> Result<()> {
        let data = data.into();
        self.with(move |core, node| async move { core.write(&node, offset, data).await }).await
    }

    /// Writes data at the end. Returns its offset.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn append(&self, data: impl Into<Payload>) -> Result<u64> {
        let data = data.into();
        self.with(move |core, node| async move { core.append_to(&node, data).await }).await
    }

    /// Sets the size: cuts off what is behind it, or adds zeros.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn truncate(&self, size: u64) -> Result<()> {
        self.with(move |core, node| async move { core.truncate(&node, size).await }).await
    }

    /// Reserves space for a range, beyond the end too, where the size stays.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn preallocate(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.preallocate(&node, range, false).await }).await
    }

    /// Frees the blocks of a range, which reads as zeros then.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub async fn punch(&self, range: Range<u64>) -> Result<()> {
        self.with(move |core, node| async move { core.punch(&node, range).await }).await
    }

    /// Makes durable what was done to the file, its name included.
    ///
    /// # Errors
    /// The failure of the log, which stays.
    pub async fn sync(&self) -> Result<()> {
        self.with(|core, node| async move { core.sync(node.ticket.get()).await }).await
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// ESTALE.
    pub async fn attributes(&self) -> Result<Inode> {
        self.with(|core, node| async move { core.inode(node.inode) }).await
    }

    /// Sets attributes but the size.
    ///
    /// # Errors
    /// The failure of the log.
    pub async fn set_attributes(&self, attributes: Attributes) -> Result<Inode> {
        self.with(move |core, node| async move { core.set_attributes(node.inode, attributes).await }).await
    }
}

/// Directory and name that a path ends with.
fn parent<'a>(core: &Core, path: &'a str) -> Result<(InodeNumber, &'a [u8])> {
    let trimmed = path.trim_end_matches('/');
    let (directory, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
    match walk(core, directory)? {
        (at, FileType::Directory) => Ok((at, name.as_bytes())),
        _ => Err(Error::from_errno(libc::ENOTDIR, format!("\"{directory}\" isn't a directory"))),
    }
}

/// The file that a path names. It begins at the root, with or without a slash.
fn resolve(core: &Core, path: &str) -> Result<InodeNumber> {
    walk(core, path).map(|(inode, _)| inode)
}

/// The file that a path names, and its type.
fn walk(core: &Core, path: &str) -> Result<(InodeNumber, FileType)> {
    if path.len() >= MOST_PATH {
        let long = format!("a path of {} bytes; expected at most {MOST_PATH}", path.len());
        return Err(Error::from_errno(libc::ENAMETOOLONG, long));
    }
    let mut at = (ROOT, FileType::Directory);
    let mut names = path.split('/').filter(|name| !name.is_empty());
    while let Some(name) = names.next() {
        let Some(next) = core.find(at.0, name.as_bytes())? else {
            return Err(namespace::missing(at.0, name.as_bytes()));
        };
        if next.1 == FileType::Link {
            let rest: Vec<&str> = names.collect();
            return follow(core, at.0, next.0, &rest.join("/"));
        }
        at = next;
    }
    Ok(at)
}

/// The file to which a symbolic link in a directory leads, and the rest of a path from there.
fn follow(
    core: &Core,
    directory: InodeNumber,
    link: InodeNumber,
    rest: &str,
) -> Result<(InodeNumber, FileType)> {
    let split = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    let (mut at, mut rest, mut followed) = ((directory, FileType::Directory), split(rest.as_bytes()), 0);
    let mut link = Some(link);
    loop {
        if let Some(link) = link.take() {
            followed += 1;
            if followed > MOST_LINKS_FOLLOWED {
                return Err(Error::from_errno(libc::ELOOP, "a path leads through too many symbolic links"));
            }
            let target = core.read_link(link)?;
            if target.starts_with(b"/") {
                at = (ROOT, FileType::Directory);
            }
            rest.extend(split(&target));
        }
        let Some(name) = rest.pop() else { return Ok(at) };
        match core.find(at.0, &name)? {
            None => return Err(namespace::missing(at.0, &name)),
            Some((next, FileType::Link)) => link = Some(next),
            Some(next) => at = next,
        }
    }
}
