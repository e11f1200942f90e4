//! Operations on names. Those on inodes of one shard are decided and take effect in one turn
//! ([`crate::names::namespace`]); the others are in `joint`.
//!
//! Each operation runs on the shard of the [holder](Holder) of the name: the directory, or a stripe of it. If
//! the directory becomes striped before the operation is decided, the operation restarts on the shard of the
//! stripe.

use crate::core::{Core, now};
use crate::metadata::Metadata;
use crate::metadata::change::{Change, Changes};
use crate::metadata::directory::{self, Found};
use crate::metadata::forest::InodeGroup;
use crate::metadata::inode::{FileType, Inode, InodeNumber};
use crate::metadata::stripes::Holder;
use crate::names::joint::{self, View, Wanted};
use crate::names::namespace::{self, New, Renaming};
use crate::names::striping;
use block::Result;
use std::cell::Cell;
use std::rc::Rc;

/// Expected type of a name to remove: a directory, or any other file.
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
    /// Looks a name up, which may be `.` or `..`.
    ///
    /// # Errors
    /// [`Error::NotFound`](block::Error::NotFound), ENOTDIR, ENAMETOOLONG.
    pub async fn lookup(&self, directory: InodeNumber, name: &[u8]) -> Result<InodeNumber> {
        match self.find(directory, name).await? {
            Some((inode, _)) => Ok(inode),
            None => Err(namespace::missing(directory, name)),
        }
    }

    /// Looks a name up. Returns the inode and its type; `None` if the name doesn't exist.
    ///
    /// # Errors
    /// ENOTDIR, ENAMETOOLONG.
    pub async fn find(&self, directory: InodeNumber, name: &[u8]) -> Result<Option<(InodeNumber, FileType)>> {
        let holder = self.shards().holder(directory, name);
        if self.is_here(holder.inode)
            && let Some(found) = self.find_in(holder, name)?
        {
            return Ok(found);
        }
        let find = |core: Rc<Core>, holder, name: Vec<u8>| async move { core.find_in(holder, &name) };
        self.shards().at_holder(directory, name, find).await
    }

    /// As [`find`](Self::find), on the shard of the name's holder; `None` if `holder` is no longer the
    /// holder.
    pub(crate) fn find_in(
        &self,
        holder: Holder,
        name: &[u8],
    ) -> Result<Option<Option<(InodeNumber, FileType)>>> {
        let metadata = self.metadata.borrow();
        match self.holds(holder, &metadata, name)? {
            true => namespace::resolve(&metadata, holder.inode, name).map(Some),
            false => Ok(None),
        }
    }

    /// Creates a file. Returns its inode.
    ///
    /// # Errors
    /// As `namespace::create`; [`Error::NoSpace`](block::Error::NoSpace).
    pub async fn create(
        self: &Rc<Self>,
        directory: InodeNumber,
        name: &[u8],
        new: &New,
    ) -> Result<InodeNumber> {
        let holder = self.shards().holder(directory, name);
        if self.is_here(holder.inode)
            && let Some(inode) = self.create_in(holder, name, new).await?
        {
            return Ok(inode);
        }
        let new = new.clone();
        let create =
            |core: Rc<Core>, holder, name: Vec<u8>| async move { core.create_in(holder, &name, &new).await };
        self.shards().at_holder(directory, name, create).await
    }

    /// As [`create`](Self::create), on the shard of the name's holder; `None` if `holder` is no longer the
    /// holder.
    async fn create_in(
        self: &Rc<Self>,
        holder: Holder,
        name: &[u8],
        new: &New,
    ) -> Result<Option<InodeNumber>> {
        self.admission.check_space_for_operation()?;
        let directory = holder.inode;
        let group = namespace::group_for(&self.metadata.borrow().items, directory, name, new);
        if !self.is_here(group.into()) {
            let made = self.create_elsewhere(directory, name, new, group).await?;
            striping::note_name(self, holder, name);
            return Ok(made);
        }
        let decide = |metadata: &Metadata| {
            if !self.holds(holder, metadata, name)? {
                return Ok(None);
            }
            let number = metadata.next_inode(group);
            Ok(Some((number, namespace::create(metadata, number, directory, name, new, now())?)))
        };
        let Some((inode, ticket)) = self.change_here(decide).await? else { return Ok(None) };
        self.note(&[inode, directory], ticket);
        striping::note_name(self, holder, name);
        Ok(Some(inode))
    }

    /// Finds a file, or creates a regular one. Returns the inode, its type, and whether it is new; `None`,
    /// without a change, if `holder` is no longer the holder of the name.
    ///
    /// # Errors
    /// As [`create`](Self::create), except for [`Error::AlreadyExists`](block::Error::AlreadyExists).
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
            let number = metadata.next_inode(metadata.items.group_of(directory));
            match namespace::find_or_create(metadata, number, directory, name, &new, now())? {
                Ok(found) => Ok(Some(((found.inode, found.file_type(), false), Changes::new()))),
                Err(changes) => {
                    self.admission.check_space_for_operation()?;
                    Ok(Some(((number, FileType::Regular, true), changes)))
                }
            }
        };
        let Some((found, ticket)) = self.change_here(decide).await? else { return Ok(None) };
        // A new file isn't in use.
        if found.2 {
            self.note(&[directory], ticket);
            striping::note_name(self, holder, name);
        }
        Ok(Some(found))
    }

    /// As [`create`](Self::create), for an inode on another shard.
    async fn create_elsewhere(
        self: &Rc<Self>,
        directory: InodeNumber,
        name: &[u8],
        new: &New,
        group: InodeGroup,
    ) -> Result<Option<InodeNumber>> {
        let (name, new) = (name.to_vec(), new.clone());
        let wanted = Wanted {
            inodes: vec![directory],
            names: vec![(directory, name.clone())],
            new: Some(group),
            ..Wanted::default()
        };
        let decide = move |view: &View| {
            let changes = namespace::create(&view.metadata, view.number, directory, &name, &new, now())?;
            Ok(Some((view.number, changes)))
        };
        joint::jointly(self, wanted, decide).await
    }

    /// Creates another name of a file.
    ///
    /// # Errors
    /// As `namespace::link`; [`Error::NoSpace`](block::Error::NoSpace).
    pub async fn link(
        self: &Rc<Self>,
        inode: InodeNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<()> {
        let link = move |core: Rc<Core>, holder, name: Vec<u8>| async move {
            core.link_in(inode, holder, &name).await
        };
        self.shards().at_holder(directory, name, link).await
    }

    /// As [`link`](Self::link), on the shard of the name's holder; `None` if `holder` is no longer the
    /// holder.
    async fn link_in(self: &Rc<Self>, inode: InodeNumber, holder: Holder, name: &[u8]) -> Result<Option<()>> {
        self.admission.check_space_for_operation()?;
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
            let done = joint::jointly(self, wanted, decide).await?;
            striping::note_name(self, holder, name);
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
        striping::note_name(self, holder, name);
        Ok(Some(()))
    }

    /// Removes a name of a file other than a directory.
    ///
    /// # Errors
    /// As `namespace::unlink`.
    pub async fn unlink(self: &Rc<Self>, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove_name(directory, name, Removing::Name).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As `namespace::remove_directory`.
    pub async fn remove_directory(self: &Rc<Self>, directory: InodeNumber, name: &[u8]) -> Result<()> {
        self.remove_name(directory, name, Removing::Directory).await
    }

    async fn remove_name(
        self: &Rc<Self>,
        directory: InodeNumber,
        name: &[u8],
        removing: Removing,
    ) -> Result<()> {
        let holder = self.shards().holder(directory, name);
        if self.is_here(holder.inode) && self.remove_name_in(holder, name, removing).await?.is_some() {
            return Ok(());
        }
        let remove = move |core: Rc<Core>, holder, name: Vec<u8>| async move {
            core.remove_name_in(holder, &name, removing).await
        };
        self.shards().at_holder(directory, name, remove).await
    }

    /// Removes a name, on the shard of its holder; `None`, without a change, if `holder` is no longer the
    /// holder.
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
            let stripes = self.shards().striped().find(inode);
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
            if joint::jointly(self, wanted, decide).await?.is_some() {
                return Ok(Some(()));
            }
        }
    }

    /// Whether a name refers to an inode of this shard without stripes, so that its removal involves no other
    /// inodes.
    fn is_alone_here(&self, found: Found) -> bool {
        self.is_here(found.inode) && !(found.is_directory() && self.shards().striped().has(found.inode))
    }

    /// Renames a file.
    ///
    /// # Errors
    /// As `namespace::rename`; [`Error::NoSpace`](block::Error::NoSpace) for a longer name.
    pub async fn rename(
        self: &Rc<Self>,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        renaming: Renaming,
    ) -> Result<()> {
        if to.1.len() > from.1.len() {
            // A name takes space in the tree.
            self.admission.check_space_for_operation()?;
        }
        let new_name = to.1.to_vec();
        let rename = move |core: Rc<Core>, old: Holder, old_name: Vec<u8>| async move {
            let new = core.shards().holder(to.0, &new_name);
            core.rename_in((old, &old_name), (new, &new_name), renaming).await
        };
        self.shards().at_holder(from.0, from.1, rename).await
    }

    /// As [`rename`](Self::rename), on the shard of the old name's holder; `None`, without a change, if a
    /// name has another holder now.
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
                // The directories above may change on other shards, so a move of a directory is always a
                // joint operation.
                let moves_directory =
                    [Some(moved), replaced].into_iter().flatten().any(|it| it.is_directory());
                if self.totals().shards() > 1 && from.0 != to.0 && moves_directory
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
                striping::note_name(self, new, new_name);
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

    /// As [`rename_in`](Self::rename_in), for inodes of several shards. Returns false, without a change, if
    /// the operation now involves other inodes.
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
        let Some(replaced) = self.shards().of(to).with(find).await? else { return Ok(None) };
        let both = [Some(moved), replaced];
        let mut inodes = vec![from, to];
        inodes.extend(both.iter().flatten().map(|found| found.inode));
        let stripes = replaced.and_then(|found| self.shards().striped().find(found.inode));
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
        let is_done = joint::jointly(self, wanted, decide).await?.is_some();
        if is_done && new.inode == new.directory {
            let note = move |core: Rc<Core>| async move {
                striping::note_name(&core, new, &added);
                Ok(())
            };
            self.shards().of(to).with(note).await?;
        }
        Ok(Some(is_done))
    }
}
