//! The file system for programs that link it: paths and open files. Every call is asynchronous and doesn't
//! block the shard.
//!
//! A call is sent as a message to the shard that has the directory or the file, unless the caller is on it.
//! Resolving a path begins at the shard of the root, so programs that create many files in one directory
//! should [open the directory](FileSystem::directory).

use crate::check::scrub::{self, Scrubbed};
use crate::check::{self, Report};
use crate::classes::{Class, ClassStatistics};
use crate::core::inodes::{BETWEEN_ATTEMPTS, Statistics};
use crate::core::shards::Shards;
use crate::core::{Core, Settings};
use crate::file::File;
use crate::format::{BLOCK, Properties};
use crate::metadata::directory::Entry;
use crate::metadata::inode::{FileType, Inode, InodeNumber, ROOT};
use crate::metadata::stripes::Holder;
use crate::names::namespace::{self, New, Renaming};
use crate::names::path::{self, Walk};
use crate::names::striping;
use crate::recovery::{self, salvage};
use crate::snapshots::taking;
use block::{Error, Fullness, Result, ZonesPart};
use logkit::recovery::{Goal, LostParts};
use logkit::{Counters, Owner, cleaner, lane};
use runtime::{Home, ShardIndex};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zones::Overlay;

/// A file system on zones. Clones refer to the same one.
///
/// ```
/// use siltstone_fs::{FileSystem, Properties, Settings};
/// use std::sync::Arc;
///
/// let disk = Arc::new(disks::ram::RamPart::new(256 << 20, block::BlockSize::new(4096)?)?);
/// let options = zones::on_device::Options { format: true, zone_size: Some(4 << 20), ..Default::default() };
/// runtime::run(runtime::Config::default(), || async move {
///     let medium = Arc::new(zones::OnDevice::open(disk, options).await?);
///     let files = FileSystem::format(medium, Properties::default(), &Settings::default()).await?;
///     let file = files.create("/journal").await?;
///     file.append(block::Data::copy_of(b"committed")).await?;
///     file.sync().await?;
///     let mut bytes = [0; 9];
///     file.read_at(0, 9).await?.copy_to(&mut bytes)?;
///     assert_eq!(&bytes, b"committed");
///     files.close().await
/// })??;
/// # Ok::<(), block::Error>(())
/// ```
#[derive(Clone)]
pub struct FileSystem {
    shards: Shards,
    zones: Arc<dyn ZonesPart>,
    /// Whether the zones are closed with the file system.
    owns_zones: bool,
    counters: Arc<Counters>,
    /// Whether [`close`](Self::close) waits for space.
    waits_for_space: Arc<AtomicBool>,
    /// Whether there is a mount.
    is_mounted: Arc<AtomicBool>,
}

/// Guard of a mount: the file system is mounted until it is dropped.
#[derive(Debug)]
pub(crate) struct Mounting(Arc<AtomicBool>);

impl Drop for Mounting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "FileSystem({:?})", self.shards)
    }
}

/// Options for opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Create the file if it doesn't exist.
    pub create: bool,
    /// Fail if the file exists.
    pub create_new: bool,
    /// Remove the file's data.
    pub truncate: bool,
    /// Permissions of a new file; 0 means 0644.
    pub mode: u32,
}

impl FileSystem {
    /// Makes a file system on zones and opens it. Existing contents are lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] for zones that are too small or too few; errors of resetting and writing.
    pub async fn format(
        zones: Arc<dyn ZonesPart>,
        properties: Properties,
        settings: &Settings,
    ) -> Result<Self> {
        let shards = recovery::format(&zones, properties, settings).await?;
        Self::start(zones, shards).await
    }

    /// Opens the file system on these zones; with [`Goal::Salvage`], to read the intact parts of a damaged
    /// one without changing the zones.
    ///
    /// # Errors
    /// [`Error::Protocol`] for zones without a file system; [`Error::Corrupt`] for a damaged one; errors of
    /// reading and writing.
    pub async fn open(zones: Arc<dyn ZonesPart>, settings: &Settings) -> Result<Self> {
        let zones = match settings.goal {
            Goal::Serve => zones,
            Goal::Salvage => Arc::new(Overlay::new(zones, salvage::MAX_BYTES)),
        };
        let shards = recovery::open(&zones, settings).await?;
        let files = Self::start(zones, shards).await?;
        if settings.goal == Goal::Salvage {
            salvage::name_lost(&files.shards).await?;
        }
        Ok(files)
    }

    async fn start(zones: Arc<dyn ZonesPart>, shards: Shards) -> Result<Self> {
        let counters =
            shards.first().with(|core: Rc<Core>| async move { Ok(core.kit.counters.clone()) }).await?;
        let files = FileSystem {
            counters,
            shards,
            zones,
            owns_zones: true,
            waits_for_space: Arc::default(),
            is_mounted: Arc::default(),
        };
        files
            .each(|core| async move {
                lane::start(&core);
                Ok(())
            })
            .await?;
        files
            .home()
            .with(|core: Rc<Core>| async move {
                if !core.admission.is_salvaged() {
                    cleaner::start(&core);
                }
                Ok(())
            })
            .await?;
        files
            .each(|core| async move {
                if !core.admission.is_salvaged() {
                    core.remove_orphans();
                }
                striping::open_striped(&core)
            })
            .await?;
        Ok(files)
    }

    /// Runs `work` on all shards, the home first.
    pub(crate) async fn each<Fut>(
        &self,
        work: impl FnOnce(Rc<Core>) -> Fut + Clone + Send + 'static,
    ) -> Result<()>
    where
        Fut: Future<Output = Result<()>> + 'static,
    {
        for core in self.shards.all() {
            core.with(work.clone()).await?;
        }
        Ok(())
    }

    /// Returns the file system with zones that stay open when it is closed.
    pub fn on_lent_zones(self) -> Self {
        FileSystem { owns_zones: false, ..self }
    }

    /// Whether the file system is open for salvage.
    ///
    /// # Errors
    /// [`block::Error::Closed`].
    pub async fn is_salvaged(&self) -> Result<bool> {
        self.with(|core: Rc<Core>| async move { Ok(core.admission.is_salvaged()) }).await
    }

    /// Losses of a file system that is open for salvage.
    ///
    /// # Errors
    /// [`block::Error::Closed`].
    pub async fn lost(&self) -> Result<LostParts> {
        let mut all = LostParts::default();
        for core in self.shards.all() {
            all.append(
                core.with(|core: Rc<Core>| async move { Ok(core.opened.lost.borrow().clone()) }).await?,
            );
        }
        Ok(all)
    }

    /// Home: the shard that runs the cleaner and checkpoints.
    pub fn home(&self) -> &Home<Core> {
        self.shards.first()
    }

    /// All shards.
    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Counters of the log, for operators.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Writes all queued operations and a last checkpoint, and closes the zones. The checkpoint is omitted if
    /// there is no space for it.
    ///
    /// There is no time limit: storage that never answers is waited for without end. After a limit of the
    /// caller (`runtime::timeout`), only the process can end; what wasn't durable is lost.
    ///
    /// Dropping all handles isn't a close: tasks may write to the zones until the runtime ends. They must not
    /// be opened again before.
    ///
    /// # Errors
    /// The failure of the log; errors of writing.
    pub async fn close(&self) -> Result<()> {
        let mut closed = self.sync_with_patience().await;
        let end = |core: Rc<Core>| async move {
            core.kit.begin_closing();
            core.kit.tasks.ended().await;
            Ok(())
        };
        // The home is last: its cleaner frees zones until nothing is queued on other shards, and moves their
        // blocks.
        for core in self.shards.all().iter().rev() {
            closed = closed.and(core.with(end).await);
        }
        for core in self.shards.all() {
            closed = closed.and(
                core.with(|core: Rc<Core>| async move {
                    core.moves.close(&*core).await;
                    Ok(())
                })
                .await,
            );
        }
        let last = |core: Rc<Core>| async move {
            match core.admission.is_salvaged() {
                true => Ok(()),
                false => core.take_checkpoint(true).await,
            }
        };
        closed = match self.home().with(last).await {
            // All operations are durable without it: the next opening replays the records since the previous
            // checkpoint.
            Err(error @ Error::NoSpace(_)) if closed.is_ok() => {
                tracing::warn!("the last checkpoint isn't written: {error}");
                Ok(())
            }
            written => closed.and(written),
        };
        let mut forgotten = Ok(());
        for core in self.shards.all() {
            forgotten = forgotten.and(core.forget().await);
        }
        match self.owns_zones {
            true => closed.and(forgotten).and(self.zones.close().await),
            false => closed.and(forgotten),
        }
    }

    /// Notes that it is mounted, until the returned guard is dropped.
    ///
    /// # Errors
    /// [`Error::Busy`] if it is mounted already: the end of one mount would drop what the kernel refers to
    /// over the other one.
    pub(crate) fn begin_mount(&self) -> Result<Mounting> {
        match self.is_mounted.swap(true, Ordering::AcqRel) {
            true => Err(Error::busy("the file system is mounted already; unmount it first")),
            false => Ok(Mounting(self.is_mounted.clone())),
        }
    }

    /// Whether [`close`](Self::close) is waiting for space.
    pub fn is_waiting_for_space(&self) -> bool {
        self.waits_for_space.load(Ordering::Relaxed)
    }

    /// Makes all acknowledged operations durable, and waits for space if there is none.
    async fn sync_with_patience(&self) -> Result<()> {
        let waits =
            |core: Rc<Core>| async move { Ok(core.kit.failure().is_none() && !core.kit.is_closing()) };
        loop {
            match self.sync().await {
                Err(Error::NoSpace(_)) if self.with(waits).await? => {
                    self.waits_for_space.store(true, Ordering::Relaxed);
                    runtime::sleep(BETWEEN_ATTEMPTS).await;
                }
                outcome => {
                    self.waits_for_space.store(false, Ordering::Relaxed);
                    return outcome;
                }
            }
        }
    }

    /// Writes a checkpoint, so that opening needs to replay only later records.
    ///
    /// # Errors
    /// The failure of the log; [`Error::NoSpace`], after which the previous checkpoint stays valid.
    pub async fn take_checkpoint(&self) -> Result<()> {
        self.with(|core| async move {
            core.check_open()?;
            core.take_checkpoint(false).await
        })
        .await
    }

    /// Writes all queued operations, and checks the metadata and the counts of the open file system
    /// ([`check`](mod@crate::check)).
    ///
    /// # Errors
    /// The failure of the log.
    pub async fn check(&self) -> Result<Report> {
        self.with(|core| async move {
            let check = async |core: &Rc<Core>| {
                let mut snapshots = Vec::new();
                for info in core.snapshot_list.there() {
                    let parts = check::all_contents(core, Some(info.number)).await?;
                    snapshots.push((info, parts));
                }
                check::check_contents(core, check::all_contents(core, None).await?, snapshots)
            };
            taking::at_one_moment(&core, check).await
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

    /// Runs `work` with the directory and the name at the end of a path, on the shard that holds the name.
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
        let holder = self.shards.holder(directory, &name);
        self.shards.of(holder.inode).with(move |core| work(core, directory, name)).await
    }

    /// Resolves a path to the inode and its type.
    async fn walk(&self, path: &str) -> Result<(InodeNumber, FileType)> {
        let first = self.shards.of(ROOT);
        // The common case needs neither another shard nor an allocation.
        if first.is_here()
            && let Some(end) = path::walk_here(&*first.get()?, path)?
        {
            return Ok(end);
        }
        Walk::begin(None, path)?.end(&self.shards).await
    }

    /// Resolves a path to the inode. Paths begin at the root, with or without a slash.
    async fn resolve(&self, path: &str) -> Result<InodeNumber> {
        self.walk(path).await.map(|(inode, _)| inode)
    }

    /// Opens a directory, to create and open files in it without a path.
    ///
    /// # Errors
    /// ENOTDIR; errors of resolving the path.
    pub async fn directory(&self, path: &str) -> Result<Directory> {
        let inode = as_directory(path, self.walk(path).await?)?;
        Ok(Directory { files: self.clone(), inode })
    }

    /// Opens a file, or creates it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::AlreadyExists`], EISDIR; errors of resolving the path.
    pub async fn open_file(&self, path: &str, options: OpenOptions) -> Result<File> {
        let (directory, name) = split(path);
        let directory = as_directory(directory, self.walk(directory).await?)?;
        match self.open_in(directory, name, options).await? {
            Some(file) => Ok(file),
            // A symbolic link.
            None => self.open_inode(self.resolve(path).await?, options).await,
        }
    }

    /// Opens a file of a directory, or creates it; `None` for a symbolic link.
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
            // Most files are on the shard of their directory.
            match core.is_here(inode) {
                true => Ok(Some((inode, Some(files.open_here(&core, inode, options).await?)))),
                false => Ok(Some((inode, None))),
            }
        };
        match self.shards.at_holder(directory, name, find).await? {
            (_, Some(file)) => Ok(Some(file)),
            (inode, None) => {
                let is_link = move |core: Rc<Core>| async move { core.inode(inode).map(|it| it.file_type()) };
                match self.shards.of(inode).with(is_link).await? {
                    FileType::Link => Ok(None),
                    _ => self.open_inode(inode, options).await.map(Some),
                }
            }
        }
    }

    async fn open_inode(&self, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        let files = self.clone();
        self.shards
            .of(inode)
            .with(move |core| async move { files.open_here(&core, inode, options).await })
            .await
    }

    /// Opens a file of this shard.
    async fn open_here(&self, core: &Rc<Core>, inode: InodeNumber, options: OpenOptions) -> Result<File> {
        if core.inode(inode)?.is_directory() {
            return Err(Error::from_errno(libc::EISDIR, format!("inode {inode} is a directory")));
        }
        let found = core.inode(inode)?;
        if found.links == 0 && !core.nodes().is_open(inode) {
            // The last name was removed after the lookup, and the blocks may have been freed.
            return Err(Error::not_found(format!("inode {inode} was removed meanwhile")));
        }
        let node = core.open(inode)?;
        // This handle closes the file even if the call fails or is dropped.
        let file = self.opened(inode);
        // Also with size 0: a write in flight may add bytes.
        if options.truncate {
            core.truncate(&node, 0).await?;
        }
        Ok(file)
    }

    /// Returns a file that has been opened on its shard.
    fn opened(&self, inode: InodeNumber) -> File {
        File::opened(self.shards.of(inode).clone(), inode)
    }

    /// Opens a file without data, creating it if it doesn't exist.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub async fn create(&self, path: &str) -> Result<File> {
        self.open_file(path, OpenOptions { create: true, truncate: true, ..OpenOptions::default() }).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`], [`Error::NoSpace`]; errors of resolving the path.
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

    /// Creates another name of a file. A symbolic link isn't followed.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`]; EPERM for a directory; errors of resolving the paths.
    pub async fn link(&self, old: &str, new: &str) -> Result<()> {
        let inode =
            self.at(old, |core, directory, name| async move { core.lookup(directory, &name).await }).await?;
        self.at(new, move |core, directory, name| async move { core.link(inode, directory, &name).await })
            .await
    }

    /// Removes a name of a file other than a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], EISDIR; errors of resolving the path.
    pub async fn unlink(&self, path: &str) -> Result<()> {
        self.at(path, |core, directory, name| async move { core.unlink(directory, &name).await }).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], ENOTDIR, ENOTEMPTY; errors of resolving the path.
    pub async fn remove_directory(&self, path: &str) -> Result<()> {
        self.at(path, |core, directory, name| async move { core.remove_directory(directory, &name).await })
            .await
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As `crate::names::namespace::rename`; errors of resolving the paths.
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
        let holder = self.shards.holder(from, sides[0].1);
        self.shards.of(holder.inode).with(rename).await
    }

    /// Attributes of a file. A symbolic link is followed.
    ///
    /// # Errors
    /// Errors of resolving the path.
    pub async fn attributes(&self, path: &str) -> Result<Inode> {
        let inode = self.resolve(path).await?;
        self.shards.attributes_in(None, inode).await
    }

    /// Names of a directory, in no particular order.
    ///
    /// # Errors
    /// ENOTDIR; errors of resolving the path.
    pub async fn read_directory(&self, path: &str) -> Result<Vec<Entry>> {
        let directory = self.resolve(path).await?;
        self.shards.entries_in(None, directory).await
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of another type; errors of resolving the path.
    pub async fn read_link(&self, path: &str) -> Result<Vec<u8>> {
        let inode =
            self.at(path, |core, directory, name| async move { core.lookup(directory, &name).await }).await?;
        self.shards.of(inode).with(move |core| async move { core.read_link(inode) }).await
    }

    /// Makes all operations durable.
    ///
    /// # Errors
    /// The failure of the log, which is permanent; [`Error::NoSpace`] while a record waits for space of the
    /// device below.
    pub async fn sync(&self) -> Result<()> {
        self.each(|core| async move { core.sync_all().await }).await
    }

    /// Reads all data and metadata on the medium and verifies its checksums. `progress` counts the blocks
    /// that have been read; the total of the files is in [`statistics`](Self::statistics).
    ///
    /// # Errors
    /// [`Error::Closed`]. Damage is part of the result, not an error.
    pub async fn scrub(&self, progress: &Arc<AtomicU64>) -> Result<Scrubbed> {
        let scrub = |core: &Home<Core>| {
            let (core, progress) = (core.clone(), progress.clone());
            async move { core.with(move |core| async move { scrub::scrub(&core, &progress).await }).await }
        };
        let mut found = Scrubbed::default();
        for of_shard in runtime::join_all(self.shards.all().iter().map(scrub)).await {
            found.add(of_shard?);
        }
        Ok(found)
    }

    /// Creates an I/O class, or changes the shares (1 to 1000) of the one with this name. Where classes
    /// compete on a shard, each gets I/O in proportion to its shares; what a class doesn't use is available
    /// to the others. Two classes always exist: `default` (100 shares), in which files are opened, and
    /// `background`, for the cleaner, scrub and defragmentation. A class exists until the file system is
    /// closed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty or long name, shares out of range, or more than 32 classes;
    /// [`Error::Closed`].
    pub async fn class(&self, name: &str, shares: u32) -> Result<Class> {
        let (name, shards): (Arc<str>, _) = (name.into(), self.shards.clone());
        self.with(move |home| async move {
            let _one = home.admission.classes.changing.acquire(1).await;
            let number = home.admission.classes.number_for(&name, shares)?;
            for core in shards.all() {
                let name = name.clone();
                let set = move |core: Rc<Core>| async move {
                    core.admission.classes.set(number, &name, shares);
                    Ok(())
                };
                core.with(set).await?;
            }
            Ok(Class::new(number, name))
        })
        .await
    }

    /// Counters of the I/O classes, over all shards.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn classes(&self) -> Result<Vec<ClassStatistics>> {
        let mut all: Vec<ClassStatistics> = Vec::new();
        for core in self.shards.all() {
            let of_shard =
                core.with(|core: Rc<Core>| async move { Ok(core.admission.classes.statistics()) }).await?;
            for (number, class) in of_shard.into_iter().enumerate() {
                match all.get_mut(number) {
                    Some(sum) => sum.add(&class),
                    None => all.push(class),
                }
            }
        }
        Ok(all)
    }

    /// Properties that were fixed when the file system was made.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn properties(&self) -> Result<Properties> {
        self.with(|core| async move {
            let groups = core.metadata.borrow().items.groups();
            Ok(Properties { block_size: core.block_size(), inode_groups: groups })
        })
        .await
    }

    /// Sizes and counts of the file system.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn statistics(&self) -> Result<Statistics> {
        self.with(|core| async move { Ok(core.statistics()) }).await
    }

    /// Used part of the space for files; `None` once it is closed.
    pub async fn fullness(&self) -> Option<Fullness> {
        let found = self.statistics().await.ok()?;
        let is_salvaged = self.is_salvaged().await.ok()?;
        Some(Fullness {
            resource: "space",
            used_bytes: (found.blocks - found.free) * BLOCK,
            limit_bytes: found.blocks * BLOCK,
            can_fill: !is_salvaged,
            remedy: "remove some files, delete snapshots, or copy them to a larger image",
        })
    }
}

/// A directory of a file system. Holding it doesn't prevent its removal.
#[derive(Debug, Clone)]
pub struct Directory {
    files: FileSystem,
    inode: InodeNumber,
}

impl Directory {
    /// Shard of the runtime that has the directory. Calls from this shard need no messages, unless the
    /// directory is striped, with its names divided among all shards.
    pub fn shard(&self) -> ShardIndex {
        self.files.shards.of(self.inode).shard()
    }

    /// Opens a file, or creates it.
    ///
    /// # Errors
    /// As [`FileSystem::open_file`]; ELOOP for a symbolic link.
    pub async fn open_file(&self, name: &str, options: OpenOptions) -> Result<File> {
        let file = self.files.open_in(self.inode, name.as_bytes(), options).await?;
        file.ok_or_else(|| Error::from_errno(libc::ELOOP, format!("\"{name}\" is a symbolic link")))
    }

    /// Removes a name of a file other than a directory.
    ///
    /// # Errors
    /// As [`FileSystem::unlink`].
    pub async fn unlink(&self, name: &str) -> Result<()> {
        let holder = self.files.shards.holder(self.inode, name.as_bytes());
        let (directory, name) = (self.inode, name.as_bytes().to_vec());
        let unlink = move |core: Rc<Core>| async move { core.unlink(directory, &name).await };
        self.files.shards.of(holder.inode).with(unlink).await
    }
}

/// Splits a path into its directory and its last name.
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
