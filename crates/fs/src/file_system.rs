//! The file system for programs: paths and open files. Every call is asynchronous, and none blocks the shard.
//!
//! A call goes as a message to the core that has the directory or the file, if that is another one than the caller's. Paths begin at the
//! core of the root, so programs that make many files in one directory have it [opened](FileSystem::directory).

use crate::check::Report;
use crate::classes::{Class, ClassStatistics};
use crate::core::{Core, Settings};
use crate::cores::Cores;
use crate::directory::Entry;
use crate::file::File;
use crate::format::Properties;
use crate::inode::{FileType, Inode, InodeNumber, ROOT};
use crate::namespace::{self, New, Renaming};
use crate::operations::{BETWEEN_ATTEMPTS, Statistics};
use crate::path::{self, Walk};
use crate::recovery;
use crate::salvage;
use crate::scrub::Scrubbed;
use crate::stripes::Holder;
use block::{Error, Result, ZonesPart};
use logkit::recovery::Goal;
use logkit::{Counters, Owner, cleaner, lane};
use runtime::{Home, ShardIndex};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use zones::Overlay;

/// A file system on zones. Clones are the same one.
#[derive(Clone)]
pub struct FileSystem {
    cores: Cores,
    zones: Arc<dyn ZonesPart>,
    /// Whether the zones are closed with the file system.
    owns_zones: bool,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "FileSystem({:?})", self.cores)
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
        let cores = recovery::format(&zones, properties, settings).await?;
        Self::start(zones, cores).await
    }

    /// Opens the file system on these zones; with [`Goal::Salvage`] to read what can be read of a damaged one, without a change to the zones.
    ///
    /// # Errors
    /// [`Error::Protocol`] where there is none, [`Error::Corrupt`] for a damaged one; what reading and writing return.
    pub async fn open(zones: Arc<dyn ZonesPart>, settings: &Settings) -> Result<Self> {
        let zones = match settings.goal {
            Goal::Serve => zones,
            Goal::Salvage => Arc::new(Overlay::new(zones, salvage::MOST_BYTES)),
        };
        let cores = recovery::open(&zones, settings).await?;
        let files = Self::start(zones, cores).await?;
        if settings.goal == Goal::Salvage {
            files.name_lost().await?;
        }
        Ok(files)
    }

    async fn start(zones: Arc<dyn ZonesPart>, cores: Cores) -> Result<Self> {
        let counters =
            cores.first().with(|core: Rc<Core>| async move { Ok(core.kit.counters.clone()) }).await?;
        let files = FileSystem { counters, cores, zones, owns_zones: true };
        files
            .each(|core| async move {
                lane::start(&core);
                Ok(())
            })
            .await?;
        files
            .home()
            .with(|core: Rc<Core>| async move {
                if !core.is_salvaged {
                    cleaner::start(&core);
                }
                Ok(())
            })
            .await?;
        files
            .each(|core| async move {
                if !core.is_salvaged {
                    core.remove_orphans();
                }
                core.open_striped()
            })
            .await?;
        Ok(files)
    }

    /// Runs `work` on all cores, the home first.
    pub(crate) async fn each<Fut>(
        &self,
        work: impl FnOnce(Rc<Core>) -> Fut + Clone + Send + 'static,
    ) -> Result<()>
    where
        Fut: Future<Output = Result<()>> + 'static,
    {
        for core in self.cores.all() {
            core.with(work.clone()).await?;
        }
        Ok(())
    }

    /// The file system with zones that stay open when it is closed.
    pub fn on_lent_zones(self) -> Self {
        FileSystem { owns_zones: false, ..self }
    }

    /// The core where the cleaner and checkpoints run.
    pub fn home(&self) -> &Home<Core> {
        self.cores.first()
    }

    /// All cores.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// What the log counts for operators.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Writes what is queued and a last checkpoint, and closes the zones. Without space for it there is no such checkpoint.
    ///
    /// # Errors
    /// The failure of the log; what writing returns.
    pub async fn close(&self) -> Result<()> {
        let mut closed = self.sync_with_patience().await;
        let end = |core: Rc<Core>| async move {
            core.kit.begin_closing();
            core.kit.tasks.ended().await;
            Ok(())
        };
        // The cleaner frees zones until nothing is queued on other cores, and moves their blocks.
        for core in self.cores.all().iter().rev() {
            closed = closed.and(core.with(end).await);
        }
        for core in self.cores.all() {
            closed = closed.and(
                core.with(|core: Rc<Core>| async move {
                    core.close_mover().await;
                    Ok(())
                })
                .await,
            );
        }
        let last = |core: Rc<Core>| async move {
            match core.is_salvaged {
                true => Ok(()),
                false => core.take_checkpoint(true).await,
            }
        };
        closed = match self.home().with(last).await {
            // Everything is durable without it: the next opening reads the records since the checkpoint before.
            Err(error @ Error::NoSpace(_)) if closed.is_ok() => {
                tracing::warn!("the last checkpoint isn't written: {error}");
                Ok(())
            }
            written => closed.and(written),
        };
        let mut forgotten = Ok(());
        for core in self.cores.all() {
            forgotten = forgotten.and(core.forget().await);
        }
        match self.owns_zones {
            true => closed.and(forgotten).and(self.zones.close().await),
            false => closed.and(forgotten),
        }
    }

    /// Makes all acknowledged operations durable, and waits for space if there is none.
    async fn sync_with_patience(&self) -> Result<()> {
        let waits =
            |core: Rc<Core>| async move { Ok(core.kit.failure().is_none() && !core.kit.is_closing()) };
        loop {
            match self.sync().await {
                Err(Error::NoSpace(_)) if self.with(waits).await? => runtime::sleep(BETWEEN_ATTEMPTS).await,
                outcome => return outcome,
            }
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
        self.with(|core| async move {
            let check = async |core: &Rc<Core>| {
                let mut snapshots = Vec::new();
                for info in core.snapshot_list.there() {
                    let parts = core.all_contents(Some(info.number)).await?;
                    snapshots.push((info, parts));
                }
                core.check(core.all_contents(None).await?, snapshots)
            };
            core.at_one_moment(check).await
        })
        .await
    }

    /// Runs `work` on the home.
    pub(crate) async fn with<R, Fut>(&self, work: impl FnOnce(Rc<Core>) -> Fut + Send + 'static) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        self.home().with(work).await
    }

    /// Runs `work` with the directory and the name that a path ends with, on the core that holds the name.
    async fn at<R, Fut>(
        &self,
        path: &str,
        work: impl FnOnce(Rc<Core>, InodeNumber, Vec<u8>) -> Fut + Send + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let (directory, name) = split(path);
        let name = name.to_vec();
        let found = self.walk(directory).await?;
        let directory = as_directory(directory, found)?;
        let holder = self.cores.holder(directory, &name);
        self.cores.of(holder.inode).with(move |core| work(core, directory, name)).await
    }

    /// The file that a path names, and its type.
    async fn walk(&self, path: &str) -> Result<(InodeNumber, FileType)> {
        let first = self.cores.of(ROOT);
        // Most paths need neither another core nor memory.
        if first.is_here()
            && let Some(end) = path::walk_here(&*first.get()?, path)?
        {
            return Ok(end);
        }
        let mut walk = Walk::begin(path)?;
        loop {
            let core = self.cores.of(walk.place());
            let go_on = move |core: Rc<Core>| async move {
                let end = walk.go_on(&core)?;
                Ok((walk, end))
            };
            let (next, end) = core.with(go_on).await?;
            if let Some(end) = end {
                return Ok(end);
            }
            walk = next;
        }
    }

    /// The file that a path names. It begins at the root, with or without a slash.
    async fn resolve(&self, path: &str) -> Result<InodeNumber> {
        self.walk(path).await.map(|(inode, _)| inode)
    }

    /// A directory, to make and open files in it without a path.
    ///
    /// # Errors
    /// ENOTDIR; those of the path.
    pub async fn directory(&self, path: &str) -> Result<Directory> {
        let inode = as_directory(path, self.walk(path).await?)?;
        Ok(Directory { files: self.clone(), inode })
    }

    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyExists`], EISDIR; those of the path.
    pub async fn open_file(&self, path: &str, options: OpenOptions) -> Result<File> {
        let (directory, name) = split(path);
        let directory = as_directory(directory, self.walk(directory).await?)?;
        match self.open_in(directory, name, options).await? {
            Some(file) => Ok(file),
            // A symbolic link.
            None => self.open_inode(self.resolve(path).await?, options).await,
        }
    }

    /// Opens a file of a directory, or makes it; nothing for a symbolic link.
    async fn open_in(
        &self,
        directory: InodeNumber,
        name: &[u8],
        options: OpenOptions,
    ) -> Result<Option<File>> {
        let files = self.clone();
        let find = move |core: Rc<Core>, holder: Holder, name: Vec<u8>| async move {
            let makes = (options.create || options.create_new) && !matches!(&name[..], b"." | b"..");
            let found = match makes {
                true => {
                    let mode = if options.mode == 0 { 0o644 } else { options.mode };
                    let Some(found) = core.find_or_create_in(holder, &name, mode).await? else {
                        return Ok(None);
                    };
                    let (inode, file_type, is_new) = found;
                    if is_new {
                        core.open_present(inode);
                        return Ok(Some((inode, Some(files.opened(inode)))));
                    }
                    Some((inode, file_type))
                }
                false => match core.find_in(holder, &name)? {
                    Some(found) => found,
                    None => return Ok(None),
                },
            };
            let inode = match found {
                None => return Err(namespace::missing(directory, &name)),
                Some(_) if options.create_new => {
                    return Err(namespace::exists(directory, &name));
                }
                Some((inode, FileType::Link)) => return Ok(Some((inode, None))),
                Some((inode, _)) => inode,
            };
            // Most files are on the core of their directory.
            match core.is_here(inode) {
                true => Ok(Some((inode, Some(files.open_here(&core, inode, options).await?)))),
                false => Ok(Some((inode, None))),
            }
        };
        match self.cores.at_holder(directory, name, find).await? {
            (_, Some(file)) => Ok(Some(file)),
            (inode, None) => {
                let is_link = move |core: Rc<Core>| async move { core.inode(inode).map(|it| it.file_type()) };
                match self.cores.of(inode).with(is_link).await? {
                    FileType::Link => Ok(None),
                    _ => self.open_inode(inode, options).await.map(Some),
                }
            }
        }
    }

    async fn open_inode(&self, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        let files = self.clone();
        self.cores
            .of(inode)
            .with(move |core| async move { files.open_here(&core, inode, options).await })
            .await
    }

    /// Opens a file of this core.
    async fn open_here(&self, core: &Rc<Core>, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        if core.inode(inode)?.is_directory() {
            return Err(Error::from_errno(libc::EISDIR, format!("inode {inode} is a directory")));
        }
        let found = core.inode(inode)?;
        if found.links == 0 && !core.nodes().is_open(inode) {
            // Its last name was removed since it was looked up, and its blocks may be, too.
            return Err(Error::not_found(format!("inode {inode} was removed meanwhile")));
        }
        let node = core.open(inode)?;
        // From here on it is closed, whatever becomes of this call.
        let file = self.opened(inode);
        // Also without bytes: a write in flight may give it some.
        if options.truncate {
            core.truncate(&node, 0).await?;
        }
        Ok(file)
    }

    /// A file that has been opened on its core.
    fn opened(&self, inode: InodeNumber) -> File {
        File::opened(self.cores.of(inode).clone(), inode)
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
        let inode =
            self.at(old, |core, directory, name| async move { core.lookup(directory, &name).await }).await?;
        self.at(new, move |core, directory, name| async move { core.link(inode, directory, &name).await })
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
        let sides = [split(old), split(new)];
        let mut directories = [ROOT; 2];
        for (inode, (path, _)) in directories.iter_mut().zip(&sides) {
            *inode = as_directory(path, self.walk(path).await?)?;
        }
        let ([from, to], [old_name, new_name]) = (directories, sides.map(|(_, name)| name.to_vec()));
        let rename = move |core: Rc<Core>| async move {
            core.rename((from, &old_name), (to, &new_name), renaming).await
        };
        let holder = self.cores.holder(from, sides[0].1);
        self.cores.of(holder.inode).with(rename).await
    }

    /// Attributes of a file; of a symbolic link, those of the file that it leads to.
    ///
    /// # Errors
    /// Those of the path.
    pub async fn attributes(&self, path: &str) -> Result<Inode> {
        let inode = self.resolve(path).await?;
        self.cores.attributes_in(None, inode).await
    }

    /// Names of a directory, in no particular order.
    ///
    /// # Errors
    /// ENOTDIR; those of the path.
    pub async fn read_directory(&self, path: &str) -> Result<Vec<Entry>> {
        let directory = self.resolve(path).await?;
        self.cores.entries_in(None, directory).await
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another file; those of the path.
    pub async fn read_link(&self, path: &str) -> Result<Vec<u8>> {
        let inode =
            self.at(path, |core, directory, name| async move { core.lookup(directory, &name).await }).await?;
        self.cores.of(inode).with(move |core| async move { core.read_link(inode) }).await
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// The failure of the log, which stays; [`Error::NoSpace`] while a record waits for space of the device below.
    pub async fn sync(&self) -> Result<()> {
        self.each(|core| async move { core.sync_all().await }).await
    }

    /// Reads everything that is on the medium and compares it with its checksums. `progress` counts the blocks as they are read; those
    /// of all files are in [`statistics`](Self::statistics).
    ///
    /// # Errors
    /// [`Error::Closed`]. Damage isn't an error.
    pub async fn scrub(&self, progress: &Arc<AtomicU64>) -> Result<Scrubbed> {
        let scrub = |core: &Home<Core>| {
            let (core, progress) = (core.clone(), progress.clone());
            async move { core.with(move |core| async move { core.scrub(&progress).await }).await }
        };
        let mut found = Scrubbed::default();
        for of_core in runtime::join_all(self.cores.all().iter().map(scrub)).await {
            found.add(of_core?);
        }
        Ok(found)
    }

    /// Makes an I/O class, or changes the shares of the one with this name: 1 to 1000. Where classes compete, each gets a part of the I/O in the
    /// proportion of its shares, on each core; what one leaves the others get. There are `default` (100 shares), in which files are opened, and
    /// `background`, of the cleaner, scrub and defragmentation. A class stays until the file system is closed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty or long name, other shares, or more than 32 classes; [`Error::Closed`].
    pub async fn class(&self, name: &str, shares: u32) -> Result<Class> {
        let (name, cores): (Arc<str>, _) = (name.into(), self.cores.clone());
        self.with(move |home| async move {
            let _one = home.classes.changing.acquire(1).await;
            let number = home.classes.number_for(&name, shares)?;
            for core in cores.all() {
                let name = name.clone();
                let set = move |core: Rc<Core>| async move {
                    core.classes.set(number, &name, shares);
                    Ok(())
                };
                core.with(set).await?;
            }
            Ok(Class::new(number, name))
        })
        .await
    }

    /// What the I/O classes have done.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn classes(&self) -> Result<Vec<ClassStatistics>> {
        let mut all: Vec<ClassStatistics> = Vec::new();
        for core in self.cores.all() {
            let of_core = core.with(|core: Rc<Core>| async move { Ok(core.classes.statistics()) }).await?;
            for (number, class) in of_core.into_iter().enumerate() {
                match all.get_mut(number) {
                    Some(sum) => sum.add(&class),
                    None => all.push(class),
                }
            }
        }
        Ok(all)
    }

    /// What was fixed when the file system was made.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn properties(&self) -> Result<Properties> {
        self.with(|core| async move {
            let shards = core.metadata.borrow().items.shards();
            Ok(Properties { block_size: core.block_size, shards })
        })
        .await
    }

    /// Sizes of the file system.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn statistics(&self) -> Result<Statistics> {
        self.with(|core| async move { Ok(core.statistics()) }).await
    }
}

/// A directory of a file system. It isn't kept from being removed.
#[derive(Debug, Clone)]
pub struct Directory {
    files: FileSystem,
    inode: InodeNumber,
}

impl Directory {
    /// The shard of the runtime that has the directory: calls from there need no messages, unless the directory has so many names that they are
    /// divided among all shards.
    pub fn shard(&self) -> ShardIndex {
        self.files.cores.of(self.inode).shard()
    }

    /// Opens a file, or makes it.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`]; ELOOP for a symbolic link.
    pub async fn open_file(&self, name: &str, options: OpenOptions) -> Result<File> {
        let file = self.files.open_in(self.inode, name.as_bytes(), options).await?;
        file.ok_or_else(|| Error::from_errno(libc::ELOOP, format!("\"{name}\" is a symbolic link")))
    }

    /// Removes a name that isn't a directory's.
    ///
    /// # Errors
    /// As [`FileSystem::unlink`].
    pub async fn unlink(&self, name: &str) -> Result<()> {
        let holder = self.files.cores.holder(self.inode, name.as_bytes());
        let (directory, name) = (self.inode, name.as_bytes().to_vec());
        let unlink = move |core: Rc<Core>| async move { core.unlink(directory, &name).await };
        self.files.cores.of(holder.inode).with(unlink).await
    }
}

/// Directory and name that a path ends with.
pub(crate) fn split(path: &str) -> (&str, &[u8]) {
    let trimmed = path.trim_end_matches('/');
    let (directory, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
    (directory, name.as_bytes())
}

/// Refuses a file that isn't a directory.
fn as_directory(path: &str, (inode, file_type): (InodeNumber, FileType)) -> Result<InodeNumber> {
    match file_type {
        FileType::Directory => Ok(inode),
        _ => Err(Error::from_errno(libc::ENOTDIR, format!("\"{path}\" isn't a directory"))),
    }
}
