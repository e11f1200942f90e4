//! Operations on inodes. Those on inodes of one core are decided and in effect in one turn ([`crate::namespace`]); others are `joint`. The data of
//! files is in [`crate::data`].

use crate::attributes;
use crate::change::{Attributes, Change, Changes, KEEP_TIMES};
use crate::classes::fair_queue::DEFAULT;
use crate::core::{Broken, Core, now};
use crate::data::{Cut, end_of};
use crate::directory::{self, Entry, Found};
use crate::extents::extents;
use crate::forest::Shard;
use crate::format::BLOCK;
use crate::inode::{FileType, Inode, InodeNumber, ROOT, Time};
use crate::joint::{View, Wanted};
use crate::metadata::{Metadata, orphan};
use crate::namespace::{self, New, Renaming};
use crate::node::Node;
use crate::stripes::{self, Holder, Stripes};
use block::{Error, Result};
use smallvec::smallvec;
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// Blocks of a removed file that are taken from it at a time.
const REMOVED_AT_ONCE: usize = 512;
/// Names of a removed directory that are taken from it at a time.
const NAMES_REMOVED_AT_ONCE: usize = 64;
/// Files with more blocks than this are removed piece by piece, in the background.
const REMOVED_WHOLE: u64 = 4096;

/// Sizes of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks of 4 KiB for data.
    pub blocks: u64,
    /// Of these, the free ones.
    pub free: u64,
    /// Number of files.
    pub inodes: u64,
    /// Number of records that were replayed when it was opened; 0 after a clean end.
    pub replayed: u64,
}

/// What a name stands for that is removed.
#[derive(Debug, Clone, Copy)]
enum Removing {
    Name,
    Directory,
}

impl Removing {
    fn decide(
        self,
        metadata: &Metadata,
        directory: InodeNumber,
        name: (&[u8], Found),
        stays: impl Fn(InodeNumber, &Inode) -> bool,
    ) -> Result<Changes> {
        match self {
            Removing::Name => namespace::unlink(metadata, directory, name, stays, now()),
            Removing::Directory => namespace::remove_directory(metadata, directory, name, stays, now()),
        }
    }
}

impl Core {
    /// Carries out an operation that `decide` finds the changes of.
    pub(crate) async fn change<T>(
        &self,
        decide: impl Fn(&Metadata) -> Result<(T, Changes)>,
    ) -> Result<(T, u64)> {
        let done = self.change_here(|metadata| decide(metadata).map(Some)).await?;
        done.ok_or_else(|| Error::io("an operation on one core was decided for several"))
    }

    /// As [`change`](Self::change); nothing is done if `decide` returns nothing: inodes of other cores are concerned.
    async fn change_here<T>(
        &self,
        decide: impl Fn(&Metadata) -> Result<Option<(T, Changes)>>,
    ) -> Result<Option<(T, u64)>> {
        loop {
            let permit = self.admit().await?;
            let decided = decide(&self.metadata.borrow());
            let Some((result, changes)) = decided? else { return Ok(None) };
            if self.locks.holds_any(changes.iter().map(Change::inode)) {
                let released = self.locks.released();
                drop(permit);
                released.await;
                continue;
            }
            let ticket = self.submit(changes, Some(permit))?;
            return Ok(Some((result, ticket)));
        }
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// ESTALE for one that isn't there.
    pub fn inode(&self, inode: InodeNumber) -> Result<Inode> {
        self.metadata.borrow().inode(inode)
    }

    /// Looks a name up. `.` and `..` are names, too.
    ///
    /// # Errors
    /// [`Error::NotFound`], ENOTDIR, ENAMETOOLONG.
    pub async fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        match self.find(directory, name).await? {
            Some((inode, _)) => Ok(inode),
            None => Err(namespace::missing(directory, name)),
        }
    }

    /// Looks a name up: the file and its type, if it is there.
    ///
    /// # Errors
    /// ENOTDIR, ENAMETOOLONG.
    pub async fn find(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<(InodeNumber, FileType)>> {
        let holder = self.cores().holder(directory, name);
        if self.is_here(holder.inode)
            && let Some(found) = self.find_in(holder, name)?
        {
            return Ok(found);
        }
        let find = |core: Rc<Core>, holder, name: Vec<u8>| async move { core.find_in(holder, &name) };
        self.cores().at_holder(directory, name, find).await
    }

    /// As [`find`](Self::find), on the core of the holder of the name; nothing if that is no longer the holder.
    pub(crate) fn find_in(
        &self,
        holder: Holder,
        name: &[u8],
    ) -> Result<Option<Option<(InodeNumber, FileType)>>> {
        let metadata = self.metadata.borrow();
        match self.holds(holder, &metadata, name)? {
            true => find(&metadata, holder.inode, name).map(Some),
            false => Ok(None),
        }
    }

    /// Makes a file. Returns its number.
    ///
    /// # Errors
    /// As [`namespace::create`]; [`Error::NoSpace`].
    pub async fn create(
        self: &Rc<Self>,
        directory: InodeNumber,
        name: &[u8],
        new: &New,
    ) -> Result<InodeNumber> {
        let holder = self.cores().holder(directory, name);
        if self.is_here(holder.inode)
            && let Some(inode) = self.create_in(holder, name, new).await?
        {
            return Ok(inode);
        }
        let new = new.clone();
        let create =
            |core: Rc<Core>, holder, name: Vec<u8>| async move { core.create_in(holder, &name, &new).await };
        self.cores().at_holder(directory, name, create).await
    }

    /// As [`create`](Self::create), on the core of the holder of the name; nothing if that is no longer the holder.
    async fn create_in(
        self: &Rc<Self>,
        holder: Holder,
        name: &[u8],
        new: &New,
    ) -> Result<Option<InodeNumber>> {
        self.check_space_for_item()?;
        let directory = holder.inode;
        let shard = namespace::shard_for(&self.metadata.borrow().items, directory, name, new);
        if !self.is_here(shard.into()) {
            let made = self.create_elsewhere(directory, name, new, shard).await?;
            self.note_name(holder, name);
            return Ok(made);
        }
        let decide = |metadata: &Metadata| {
            if !self.holds(holder, metadata, name)? {
                return Ok(None);
            }
            let number = metadata.next_inode(shard);
            Ok(Some((number, namespace::create(metadata, number, directory, name, new, now())?)))
        };
        let Some((inode, ticket)) = self.change_here(decide).await? else { return Ok(None) };
        self.note(&[inode, directory], ticket);
        self.note_name(holder, name);
        Ok(Some(inode))
    }

    /// Finds a file, or makes a regular one: its type, and whether it is new. Nothing is done if this is no longer the holder of the name.
    ///
    /// # Errors
    /// As [`create`](Self::create), but for [`Error::AlreadyExists`].
    pub(crate) async fn find_or_create_in(
        self: &Rc<Self>,
        holder: Holder,
        name: &[u8],
        mode: u32,
    ) -> Result<Option<(InodeNumber, FileType, bool)>> {
        let directory = holder.inode;
        let new = New { mode: FileType::Regular as u32 | mode, ..New::default() };
        let decide = |metadata: &Metadata| {
            if !self.holds(holder, metadata, name)? {
                return Ok(None);
            }
            let number = metadata.next_inode(metadata.items.shard_of(directory));
            match namespace::find_or_create(metadata, number, directory, name, &new, now())? {
                Ok(found) => Ok(Some(((found.inode, found.file_type(), false), Changes::new()))),
                Err(changes) => {
                    self.check_space_for_item()?;
                    Ok(Some(((number, FileType::Regular, true), changes)))
                }
            }
        };
        let Some((found, ticket)) = self.change_here(decide).await? else { return Ok(None) };
        // A new one isn't in use.
        if found.2 {
            self.note(&[directory], ticket);
            self.note_name(holder, name);
        }
        Ok(Some(found))
    }

    /// As [`create`](Self::create), for an inode of another core.
    async fn create_elsewhere(
        self: &Rc<Self>,
        directory: InodeNumber,
        name: &[u8],
        new: &New,
        shard: Shard,
    ) -> Result<Option<InodeNumber>> {
        let (name, new) = (name.to_vec(), new.clone());
        let wanted = Wanted {
            inodes: vec![directory],
            names: vec![(directory, name.clone())],
            new: Some(shard),
            ..Wanted::default()
        };
        let decide = move |view: &View| {
            let changes = namespace::create(&view.metadata, view.number, directory, &name, &new, now())?;
            Ok(Some((view.number, changes)))
        };
        self.jointly(wanted, decide).await
    }

    /// Makes a file without a name and opens it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_unnamed(&self, directory: InodeNumber, new: &New) -> Result<Rc<Node>> {
        self.check_space_for_item()?;
        let decide = |metadata: &Metadata| {
            let number = metadata.next_inode(metadata.items.shard_of(directory));
            Ok((number, namespace::create_unnamed(metadata, number, directory, new, now())?))
        };
        let (inode, ticket) = self.change(decide).await?;
        let node = self.open_present(inode);
        node.has_lost_names.set(true);
        node.note(ticket);
        Ok(node)
    }

    /// Notes an operation on files that are in use, so that making one of them durable waits for it.
    pub(crate) fn note(&self, inodes: &[InodeNumber], ticket: u64) {
        inodes.iter().filter_map(|inode| self.nodes.find(*inode)).for_each(|node| node.note(ticket));
    }

    /// Makes durable what was done to an inode of this core; of a directory, to its names as well.
    ///
    /// # Errors
    /// The failure of the log, which stays.
    pub async fn sync_inode(&self, inode: InodeNumber) -> Result<()> {
        self.cores().sync_stripes(inode).await?;
        match self.nodes.find(inode) {
            Some(node) if node.is_open() => self.sync_in(DEFAULT, node.ticket.get()).await,
            _ => self.sync_all().await,
        }
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// As [`namespace::link`]; [`Error::NoSpace`].
    pub async fn link(
        self: &Rc<Self>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        let link = move |core: Rc<Core>, holder, name: Vec<u8>| async move {
            core.link_in(inode, holder, &name).await
        };
        self.cores().at_holder(directory, name, link).await
    }

    /// As [`link`](Self::link), on the core of the holder of the name; nothing if that is no longer the holder.
    async fn link_in(self: &Rc<Self>, inode: InodeNumber, holder: Holder, name: &[u8]) -> Result<Option<()>> {
        self.check_space_for_item()?;
        let directory = holder.inode;
        if !self.is_here(inode) {
            let own_name = name.to_vec();
            let wanted = Wanted {
                inodes: vec![inode, directory],
                names: vec![(directory, name.to_vec())],
                ..Wanted::default()
            };
            let decide = move |view: &View| {
                let is_open = |inode| view.is_open(inode);
                let changes = namespace::link(&view.metadata, inode, directory, &own_name, is_open, now())?;
                Ok(Some(((), changes)))
            };
            let done = self.jointly(wanted, decide).await?;
            self.note_name(holder, name);
            return Ok(done);
        }
        let is_open = |inode| self.nodes.is_open(inode);
        let decide = |metadata: &Metadata| {
            if !self.holds(holder, metadata, name)? {
                return Ok(None);
            }
            Ok(Some(((), namespace::link(metadata, inode, directory, name, is_open, now())?)))
        };
        let Some(((), ticket)) = self.change_here(decide).await? else { return Ok(None) };
        self.note(&[inode, directory], ticket);
        self.note_name(holder, name);
        Ok(Some(()))
    }

    /// Whether an inode without names stays for now: it is open, or so large that it is removed piece by piece.
    fn stays(&self, number: InodeNumber, inode: &Inode) -> bool {
        inode.blocks > REMOVED_WHOLE || self.nodes.is_open(number)
    }

    /// Removes a name that isn't a directory's.
    ///
    /// # Errors
    /// As [`namespace::unlink`].
    pub async fn unlink(self: &Rc<Self>, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove_name(directory, name, Removing::Name).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`namespace::remove_directory`].
    pub async fn remove_directory(self: &Rc<Self>, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove_name(directory, name, Removing::Directory).await
    }

    async fn remove_name(
        self: &Rc<Self>,
        directory: InodeNumber,
        name: &[u8],
        removing: Removing,
    ) -> Result<()> {
        let holder = self.cores().holder(directory, name);
        if self.is_here(holder.inode) && self.remove_name_in(holder, name, removing).await?.is_some() {
            return Ok(());
        }
        let remove = move |core: Rc<Core>, holder, name: Vec<u8>| async move {
            core.remove_name_in(holder, &name, removing).await
        };
        self.cores().at_holder(directory, name, remove).await
    }

    /// Removes a name, on the core of its holder; nothing is done if that is no longer the holder.
    async fn remove_name_in(
        self: &Rc<Self>,
        holder: Holder,
        name: &[u8],
        removing: Removing,
    ) -> Result<Option<()>> {
        let directory = holder.inode;
        loop {
            let is_held = Cell::new(true);
            let decide = |metadata: &Metadata| {
                is_held.set(self.holds(holder, metadata, name)?);
                if !is_held.get() {
                    return Ok(None);
                }
                let found = namespace::lookup(metadata, directory, name)?;
                if !self.is_alone_here(found) {
                    return Ok(None);
                }
                let stays = |number, inode: &_| self.stays(number, inode);
                let changes = removing.decide(metadata, directory, (name, found), stays)?;
                let is_gone = changes.iter().any(|change| matches!(change, Change::Remove { .. }));
                Ok(Some(((found.inode, is_gone), changes)))
            };
            if let Some(((inode, is_gone), ticket)) = self.change_here(decide).await? {
                self.note(&[inode, directory], ticket);
                if !is_gone {
                    self.remove_unused(inode);
                }
                return Ok(Some(()));
            }
            if !is_held.get() {
                return Ok(None);
            }
            let inode = namespace::lookup(&self.metadata.borrow(), directory, name)?.inode;
            let name = name.to_vec();
            let stripes = self.cores().striped().find(inode);
            let mut inodes = vec![inode, directory];
            inodes.extend(stripes.iter().flat_map(|stripes| stripes.all()));
            let names = vec![(directory, name.clone())];
            let wanted = Wanted { inodes, names, ..Wanted::default() };
            let decide = move |view: &View| {
                let found = namespace::lookup(&view.metadata, directory, &name)?;
                if found.inode != inode || view.stripes_of(inode)? != stripes {
                    return Ok(None);
                }
                Ok(Some(((), removing.decide(&view.metadata, directory, (&name, found), |_, _| true)?)))
            };
            if self.jointly(wanted, decide).await?.is_some() {
                return Ok(Some(()));
            }
        }
    }

    /// Whether what a name stands for is an inode of this core, without stripes: removing it concerns no other inodes.
    fn is_alone_here(&self, found: Found) -> bool {
        self.is_here(found.inode) && !(found.is_directory() && self.cores().striped().has(found.inode))
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As [`namespace::rename`]; [`Error::NoSpace`] for a longer name.
    pub async fn rename(
        self: &Rc<Self>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        renaming: Renaming,
    ) -> Result<()> {
        if to.1.len() > from.1.len() {
            // Names take space in the tree.
            self.check_space_for_item()?;
        }
        let new_name = to.1.to_vec();
        let rename = move |core: Rc<Core>, old: Holder, old_name: Vec<u8>| async move {
            let new = core.cores().holder(to.0, &new_name);
            core.rename_in((old, &old_name), (new, &new_name), renaming).await
        };
        self.cores().at_holder(from.0, from.1, rename).await
    }

    /// As [`rename`](Self::rename), on the core of the holder of the old name; nothing is done if others hold the names by then.
    async fn rename_in(
        self: &Rc<Self>,
        (old, old_name): (Holder, &[u8]),
        (new, new_name): (Holder, &[u8]),
        renaming: Renaming,
    ) -> Result<Option<()>> {
        let (from, to) = ((old.inode, old_name), (new.inode, new_name));
        loop {
            let is_held = Cell::new(true);
            let decide = |metadata: &Metadata| {
                is_held.set(self.holds(old, metadata, old_name)?);
                if is_held.get() && self.is_here(to.0) {
                    is_held.set(self.holds(new, metadata, new_name)?);
                }
                if !is_held.get() {
                    return Ok(None);
                }
                let moved = namespace::lookup(metadata, from.0, from.1)?;
                let replaced = match self.is_here(to.0) {
                    true => directory::find(&metadata.items, to.0, to.1)?,
                    false => return Ok(None),
                };
                // The directories above may change on other cores.
                let moves_directory =
                    [Some(moved), replaced].into_iter().flatten().any(|it| it.is_directory());
                if self.totals.cores() > 1 && from.0 != to.0 && moves_directory
                    || !self.is_here(moved.inode)
                    || !replaced.is_none_or(|found| self.is_alone_here(found))
                {
                    return Ok(None);
                }
                let replaced = replaced.map(|found| found.inode);
                let stays = |number, inode: &_| self.stays(number, inode);
                Ok(Some((replaced, namespace::rename(metadata, from, to, renaming, stays, now())?)))
            };
            if let Some((replaced, ticket)) = self.change_here(decide).await? {
                self.note(&[from.0, to.0], ticket);
                if let Ok(moved) = namespace::lookup(&self.metadata.borrow(), to.0, to.1) {
                    self.note(&[moved.inode], ticket);
                }
                if let Some(replaced) = replaced {
                    self.remove_unused(replaced);
                }
                self.note_name(new, new_name);
                return Ok(Some(()));
            }
            if !is_held.get() {
                return Ok(None);
            }
            let Some(is_done) = self.rename_jointly((old, old_name), (new, new_name), renaming).await? else {
                return Ok(None);
            };
            if is_done {
                return Ok(Some(()));
            }
        }
    }

    /// As [`rename_in`](Self::rename_in), of inodes of several cores. Returns whether it is done: it isn't if other inodes are concerned by now.
    async fn rename_jointly(
        self: &Rc<Self>,
        (old, old_name): (Holder, &[u8]),
        (new, new_name): (Holder, &[u8]),
        renaming: Renaming,
    ) -> Result<Option<bool>> {
        namespace::check_names(old_name, new_name)?;
        let (from, to) = (old.inode, new.inode);
        let found = |core: &Core, holder: Holder, name: &[u8]| {
            let metadata = core.metadata.borrow();
            match core.holds(holder, &metadata, name)? {
                true => namespace::find(&metadata, holder.inode, name).map(Some),
                false => Ok(None),
            }
        };
        let Some(moved) = found(self, old, old_name)? else { return Ok(None) };
        let moved = moved.ok_or_else(|| namespace::missing(from, old_name))?;
        let (old_name, name) = (old_name.to_vec(), new_name.to_vec());
        let new_name = name.clone();
        let find = move |core: Rc<Core>| async move { found(&core, new, &name) };
        let Some(replaced) = self.cores().of(to).with(find).await? else { return Ok(None) };
        let both = [Some(moved), replaced];
        let mut inodes = vec![from, to];
        inodes.extend(both.iter().flatten().map(|found| found.inode));
        let stripes = replaced.and_then(|found| self.cores().striped().find(found.inode));
        inodes.extend(stripes.iter().flat_map(|stripes| stripes.all()));
        let moves_directory = from != to && both.iter().flatten().any(|found| found.is_directory());
        let wanted = Wanted {
            inodes,
            names: vec![(from, old_name.clone()), (to, new_name.clone())],
            new: None,
            above: if moves_directory { vec![from, to] } else { Vec::new() },
        };
        let inode_of = |found: Option<directory::Found>| found.map(|found| found.inode);
        let expected = [Some(moved.inode), inode_of(replaced)];
        let added = new_name.clone();
        let decide = move |view: &View| {
            let metadata = &view.metadata;
            let now_there = [
                inode_of(directory::find(&metadata.items, from, &old_name)?),
                inode_of(directory::find(&metadata.items, to, &new_name)?),
            ];
            let has_stripes = match expected[1] {
                Some(replaced) => view.stripes_of(replaced)? == stripes,
                None => true,
            };
            if now_there != expected || !has_stripes {
                return Ok(None);
            }
            let sides = ((from, old_name.as_slice()), (to, new_name.as_slice()));
            Ok(Some(((), namespace::rename(metadata, sides.0, sides.1, renaming, |_, _| true, now())?)))
        };
        let is_done = self.jointly(wanted, decide).await?.is_some();
        if is_done && new.inode == new.directory {
            let note = move |core: Rc<Core>| async move {
                core.note_name(new, &added);
                Ok(())
            };
            self.cores().of(to).with(note).await?;
        }
        Ok(Some(is_done))
    }

    /// Names that an inode of this core has, a directory or a stripe, from an offset on, as many as `visit` takes. Returns whether that were all.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub(crate) fn read_names(
        &self,
        inode: InodeNumber,
        from: u64,
        mut visit: impl FnMut(Entry) -> bool,
    ) -> Result<bool> {
        let metadata = self.metadata.borrow();
        for entry in directory::entries(&metadata.items, inode, from) {
            if !visit(entry?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another file.
    pub fn read_link(&self, inode: InodeNumber) -> Result<Vec<u8>> {
        namespace::target(&self.metadata.borrow(), inode)
    }

    /// Opens a file: it stays until it is [closed](Self::close), whatever becomes of its names.
    ///
    /// # Errors
    /// ESTALE.
    pub fn open(&self, inode: InodeNumber) -> Result<Rc<Node>> {
        self.metadata.borrow().inode(inode)?;
        Ok(self.open_present(inode))
    }

    /// Opens a file that is there.
    pub(crate) fn open_present(&self, inode: InodeNumber) -> Rc<Node> {
        let node = self.node(inode);
        node.opened();
        node
    }

    /// Closes a file that was [opened](Self::open).
    pub fn close(self: &Rc<Self>, node: &Rc<Node>) {
        // It may have lost its names while it was open.
        if node.closed() && node.has_lost_names.get() {
            self.remove_unused(node.inode);
        }
    }

    /// Removes an inode that has no names and isn't open, in the background.
    pub(crate) fn remove_unused(self: &Rc<Self>, inode: InodeNumber) {
        if let Some(node) = self.nodes.find(inode).filter(|node| node.is_open()) {
            node.has_lost_names.set(true);
            return;
        }
        let is_unused = move |core: &Core| {
            let metadata = core.metadata.borrow();
            metadata.items.get(&orphan(inode)).is_some() && !core.nodes.is_open(inode)
        };
        if !is_unused(self) || self.check_open().is_err() {
            return;
        }
        let core = self.clone();
        let removing = async move {
            while let Ok(permit) = core.admit().await {
                if !is_unused(&core) {
                    break;
                }
                if core.locks.holds_any([inode]) {
                    let released = core.locks.released();
                    drop(permit);
                    released.await;
                    continue;
                }
                let (changes, is_last) = match next_removal(&core.metadata.borrow(), inode) {
                    Ok(next) => next,
                    Err(error) => {
                        tracing::warn!("inode {inode} has no names and can't be removed: {error}");
                        break;
                    }
                };
                if core.submit(changes, Some(permit)).is_err() || is_last {
                    break;
                }
                runtime::yield_now().await;
            }
            if core.inode(inode).is_err() {
                core.cores().striped().set(inode, None);
            }
        };
        self.kit.tasks.spawn(removing).detach();
    }

    /// Removes inodes that have no names: they were open when the file system was last closed or lost.
    pub fn remove_orphans(self: &Rc<Self>) {
        if self.breaks(Broken::KeepsOrphans) {
            return;
        }
        let orphans = self.metadata.borrow().orphans();
        orphans.into_iter().for_each(|inode| self.remove_unused(inode));
    }

    /// Sets attributes but the size.
    ///
    /// # Errors
    /// ESTALE; the failure of the log.
    pub async fn set_attributes(
        self: &Rc<Self>,
        inode: InodeNumber,
        attributes: Attributes,
    ) -> Result<Inode> {
        // A write in flight sets the time when its record is written.
        let node = attributes.modified.map(|_| self.node(inode));
        let _held = match &node {
            Some(node) => Some(node.lock.ask(0..u64::MAX).await),
            None => None,
        };
        loop {
            if let Some(stripes) = self.cores().striped().find(inode) {
                self.set_attributes_with_stripes(inode, &stripes, attributes).await?;
                return self.inode(inode);
            }
            let decide = |metadata: &Metadata| {
                metadata.inode(inode)?;
                if self.cores().striped().has(inode) {
                    return Ok(None);
                }
                let attributes = Attributes { changed: attributes.changed.or(Some(now())), ..attributes };
                Ok(Some(((), smallvec![Change::set(inode, attributes)])))
            };
            if let Some(((), ticket)) = self.change_here(decide).await? {
                self.note(&[inode], ticket);
                return self.inode(inode);
            }
        }
    }

    /// Sets attributes of a directory and of its stripes.
    async fn set_attributes_with_stripes(
        self: &Rc<Self>,
        directory: InodeNumber,
        stripes: &Stripes,
        attributes: Attributes,
    ) -> Result<()> {
        let mut inodes = vec![directory];
        inodes.extend(stripes.all());
        let all = inodes.clone();
        let decide = move |view: &View| {
            view.metadata.inode(directory)?;
            let attributes = Attributes { changed: attributes.changed.or(Some(now())), ..attributes };
            // Those of a directory that was removed are gone.
            let there = all.iter().filter(|inode| view.metadata.inode(**inode).is_ok());
            Ok(Some(((), there.map(|inode| Change::set(*inode, attributes)).collect())))
        };
        self.jointly(Wanted { inodes, ..Wanted::default() }, decide).await.map(drop)
    }

    pub(crate) fn check_regular(&self, inode: InodeNumber) -> Result<Inode> {
        let file = self.inode(inode)?;
        match file.file_type() {
            FileType::Regular => Ok(file),
            FileType::Directory => {
                Err(Error::from_errno(libc::EISDIR, format!("inode {inode} is a directory")))
            }
            _ => Err(Error::invalid(format!("inode {inode} isn't a regular file"))),
        }
    }

    /// Sets the size of a file: cuts off what is behind it, or adds zeros.
    ///
    /// # Errors
    /// EFBIG, EISDIR, [`Error::Invalid`]; as [`write`](Self::write) where the end is within a block.
    pub async fn truncate(self: &Rc<Self>, node: &Rc<Node>, size: u64) -> Result<()> {
        end_of(size, 0)?;
        self.check_regular(node.inode)?;
        self.cut_out(node, Cut::From(size), now()).await
    }

    /// Frees the blocks of a range, which reads as zeros then.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn punch(self: &Rc<Self>, node: &Rc<Node>, range: Range<u64>) -> Result<()> {
        self.free(node, range, now()).await
    }

    /// As [`punch`](Self::punch), with the time of the change, which may be [`KEEP_TIMES`].
    pub(crate) async fn free(
        self: &Rc<Self>,
        node: &Rc<Node>,
        range: Range<u64>,
        modified: Time,
    ) -> Result<()> {
        self.check_regular(node.inode)?;
        match range.is_empty() {
            true => Ok(()),
            false => self.cut_out(node, Cut::Range(range), modified).await,
        }
    }

    /// Reserves space for a range, so that writes to it find some. With `size`, the file is at least as long as the range then.
    ///
    /// # Errors
    /// EFBIG, [`Error::NoSpace`].
    pub async fn preallocate(self: &Rc<Self>, node: &Rc<Node>, range: Range<u64>, size: bool) -> Result<()> {
        self.reserve(node, range, size, now()).await
    }

    /// As [`preallocate`](Self::preallocate), with the time of the change, which may be [`KEEP_TIMES`].
    pub(crate) async fn reserve(
        self: &Rc<Self>,
        node: &Rc<Node>,
        range: Range<u64>,
        size: bool,
        time: Time,
    ) -> Result<()> {
        let inode = node.inode;
        let old = self.check_regular(inode)?;
        end_of(range.start, range.end - range.start)?;
        let (from, to) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let _held = node.lock.ask(from..to).await;
        let size = (size && range.end > old.size).then_some(range.end);
        let changed = (time != KEEP_TIMES).then_some(time);
        let attributes = Attributes { size, changed, ..Attributes::default() };
        let decide = |metadata: &Metadata| {
            metadata.inode(inode)?;
            let mut wanted = to - from;
            for extent in extents(&metadata.items, inode, from..to) {
                wanted -= u64::from(extent?.part(&(from..to)).blocks);
            }
            if wanted > 0 {
                self.check_space(wanted)?;
            }
            let preallocate = Change::Preallocate { inode, from, to };
            Ok(((), smallvec![preallocate, Change::set(inode, attributes)]))
        };
        let ((), ticket) = self.change(decide).await?;
        node.note(ticket);
        Ok(())
    }

    /// The first offset from this one on with data, or without.
    ///
    /// # Errors
    /// ENXIO where the file ends before.
    pub fn seek(&self, inode: InodeNumber, offset: u64, data: bool) -> Result<u64> {
        seek(&self.metadata.borrow(), inode, offset, data)
    }

    /// Value of an extended attribute.
    ///
    /// # Errors
    /// ENODATA.
    pub fn attribute(&self, inode: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        attributes::get(&self.metadata.borrow(), inode, name)
    }

    /// Names of the extended attributes of an inode.
    ///
    /// # Errors
    /// ESTALE.
    pub fn attribute_names(&self, inode: InodeNumber) -> Result<Vec<Vec<u8>>> {
        attributes::names(&self.metadata.borrow(), inode)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`attributes::set`]; [`Error::NoSpace`].
    pub async fn set_attribute(
        &self,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        setting: attributes::Setting,
    ) -> Result<()> {
        self.check_space_for_item()?;
        let decide =
            |metadata: &Metadata| Ok(((), attributes::set(metadata, inode, name, value, setting, now())?));
        let ((), ticket) = self.change(decide).await?;
        self.note(&[inode], ticket);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA.
    pub async fn remove_attribute(&self, inode: InodeNumber, name: &[u8]) -> Result<()> {
        let decide = |metadata: &Metadata| Ok(((), attributes::remove(metadata, inode, name, now())?));
        let ((), ticket) = self.change(decide).await?;
        self.note(&[inode], ticket);
        Ok(())
    }

    /// Sizes of the file system.
    pub fn statistics(&self) -> Statistics {
        let (blocks, used) = (self.capacity(), self.used());
        let inodes = self.totals.sum(|used| &used.inodes);
        Statistics { blocks, free: blocks.saturating_sub(used), inodes, replayed: self.replayed.get() }
    }
}

/// Looks a name up: the file and its type, if it is there. `.` and `..` are names, too.
///
/// # Errors
/// ENOTDIR, ENAMETOOLONG.
pub fn find(
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
            let found = namespace::find(metadata, directory, name)?;
            Ok(found.map(|found| (found.inode, found.file_type())))
        }
    }
}

/// The first offset of a file from this one on with data, or without.
///
/// # Errors
/// ENXIO where the file ends before.
pub fn seek(metadata: &Metadata, inode: InodeNumber, offset: u64, data: bool) -> Result<u64> {
    let size = metadata.inode(inode)?.size;
    let none =
        || Error::from_errno(libc::ENXIO, format!("inode {inode} ends at byte {size}, before {offset}"));
    if offset >= size {
        return Err(none());
    }
    let mut at = offset;
    for extent in extents(&metadata.items, inode, offset / BLOCK..size.div_ceil(BLOCK)) {
        let extent = extent?;
        if extent.is_preallocated() {
            continue;
        }
        let (from, to) = (extent.block * BLOCK, extent.end() * BLOCK);
        if data && to > at {
            return Ok(from.max(at));
        }
        if !data && from > at {
            return Ok(at);
        }
        at = at.max(to);
    }
    match data {
        true => Err(none()),
        false => Ok(at.min(size)),
    }
}

/// The next changes that remove an inode, and whether they are the last.
fn next_removal(metadata: &Metadata, inode: InodeNumber) -> Result<(Changes, bool)> {
    // A stripe that its directory didn't get, or a directory with leftovers.
    let names = directory::removal(&metadata.items, inode, NAMES_REMOVED_AT_ONCE);
    if !names.is_empty() {
        return Ok((names, false));
    }
    let mut blocks = 0_u64;
    let mut end = 0;
    for extent in extents(&metadata.items, inode, 0..u64::MAX).take(REMOVED_AT_ONCE) {
        let extent = extent?;
        blocks += 1;
        end = extent.end();
    }
    let is_last = (blocks as usize) < REMOVED_AT_ONCE;
    let mut changes: Changes = match is_last {
        true => smallvec![Change::Remove { inode }, Change::Delete { key: orphan(inode) }],
        false => smallvec![Change::Unmap { inode, from: 0, to: end }],
    };
    if is_last && stripes::read(&metadata.items, inode)?.is_some() {
        changes.push(Change::Delete { key: stripes::key(inode) });
    }
    Ok((changes, is_last))
}
