//! Operations on the holders of names: the shard of a name's holder, and attributes and listings of striped
//! directories, merged from all of their stripes.

use crate::broken::if_broken;
use crate::core::Core;
use crate::core::shards::Shards;
use crate::metadata::Metadata;
use crate::metadata::directory::{self, Entry};
use crate::metadata::inode::{Inode, InodeNumber};
use crate::metadata::stripes::{Holder, Stripes, merge, read};
use crate::metadata::versions::SnapshotNumber;
use block::{Error, Result};
use std::collections::BTreeMap;
use std::rc::Rc;

impl Shards {
    /// Returns the holder of a name.
    #[inline]
    pub fn holder(&self, directory: InodeNumber, name: &[u8]) -> Holder {
        let stripe = match name {
            b"." | b".." => None,
            _ => self.striped().look(directory, |stripes| stripes.of_name(name)),
        };
        Holder { directory, inode: stripe.unwrap_or(directory) }
    }

    /// Runs an operation on a name on the shard of its holder. `work` returns `None` if that is no longer the
    /// holder; then it is run again.
    pub(crate) async fn at_holder<R, Fut>(
        &self,
        directory: InodeNumber,
        name: &[u8],
        work: impl FnOnce(Rc<Core>, Holder, Vec<u8>) -> Fut + Clone + Send + 'static,
    ) -> Result<R>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<Option<R>>> + 'static,
    {
        loop {
            let holder = self.holder(directory, name);
            let (work, name) = (work.clone(), name.to_vec());
            let done = self.of(holder.inode).with(move |core| work(core, holder, name)).await?;
            if let Some(done) = done {
                return Ok(done);
            }
        }
    }

    /// Runs `work` on each shard that has some of these inodes, with these.
    async fn at_each<R, Fut>(
        &self,
        inodes: &[InodeNumber],
        work: impl FnOnce(Rc<Core>, Vec<InodeNumber>) -> Fut + Clone + Send + 'static,
    ) -> Result<Vec<R>>
    where
        R: Send + 'static,
        Fut: Future<Output = Result<R>> + 'static,
    {
        let mut parts: BTreeMap<u32, Vec<InodeNumber>> = BTreeMap::new();
        inodes.iter().for_each(|inode| parts.entry(self.index_of(*inode)).or_default().push(*inode));
        let parts = parts.into_iter().map(|(shard, part)| {
            let work = work.clone();
            self.all()[shard as usize].with(move |core| work(core, part))
        });
        runtime::join_all(parts).await.into_iter().collect()
    }

    /// Stripes of a directory of a snapshot, or of the present version; `None` if it isn't striped.
    ///
    /// # Errors
    /// ESTALE for a deleted snapshot; [`Error::Corrupt`].
    pub(crate) async fn stripes_in(
        &self,
        version: Option<SnapshotNumber>,
        directory: InodeNumber,
    ) -> Result<Option<Stripes>> {
        if version.is_none() {
            return Ok(self.striped().find(directory));
        }
        let read = move |core: Rc<Core>| async move {
            core.in_version(version, |metadata| read(&metadata.items, directory))
        };
        Ok(self.of(directory).with(read).await?.map(|striped| striped.stripes))
    }

    /// Returns the inode that holds a name of a directory of a snapshot.
    ///
    /// # Errors
    /// As [`stripes_in`](Self::stripes_in).
    pub(crate) async fn holder_in(
        &self,
        snapshot: SnapshotNumber,
        directory: InodeNumber,
        name: &[u8],
    ) -> Result<InodeNumber> {
        if matches!(name, b"." | b"..") {
            return Ok(directory);
        }
        let stripes = self.stripes_in(Some(snapshot), directory).await?;
        Ok(stripes.map_or(directory, |stripes| stripes.of_name(name)))
    }

    /// Attributes of an inode of a snapshot or of the present version; those of a striped directory are
    /// merged with its stripes.
    ///
    /// # Errors
    /// ESTALE for an inode that doesn't exist, or for a deleted snapshot.
    pub(crate) async fn attributes_in(
        &self,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
    ) -> Result<Inode> {
        let read_own = move |core: Rc<Core>| async move { core.own_attributes(version, inode).await };
        let (mut own, stripes) = self.of(inode).with(read_own).await?;
        let Some(stripes) = stripes else { return Ok(own) };
        let read_all = move |core: Rc<Core>, stripes: Vec<InodeNumber>| async move {
            core.in_version(version, |metadata| {
                // A removed directory has no stripes.
                Ok(stripes.iter().filter_map(|stripe| metadata.inode(*stripe).ok()).collect::<Vec<_>>())
            })
        };
        let found = self.at_each(stripes.all(), read_all).await?;
        found.iter().flatten().for_each(|stripe| merge(&mut own, stripe));
        Ok(own)
    }

    /// Names of a directory of a snapshot or of the present version.
    ///
    /// # Errors
    /// As [`attributes_in`](Self::attributes_in); ENOTDIR.
    pub(crate) async fn entries_in(
        &self,
        version: Option<SnapshotNumber>,
        directory: InodeNumber,
    ) -> Result<Vec<Entry>> {
        let all = move |metadata: &Metadata, inode: InodeNumber| {
            directory::entries(&metadata.items, inode, 0).collect::<Result<Vec<_>>>()
        };
        loop {
            let Some(stripes) = self.stripes_in(version, directory).await? else {
                let read = move |core: Rc<Core>| async move {
                    if version.is_none() && core.shards().striped().has(directory) {
                        return Ok(None);
                    }
                    core.in_version(version, |metadata| match metadata.inode(directory)?.is_directory() {
                        true => all(metadata, directory).map(Some),
                        false => {
                            let what = format!("inode {directory} isn't a directory");
                            Err(Error::from_errno(libc::ENOTDIR, what))
                        }
                    })
                };
                match self.of(directory).with(read).await? {
                    Some(entries) => return Ok(entries),
                    None => continue,
                }
            };
            let mut entries = Vec::new();
            for stripe in stripes.all() {
                let stripe = *stripe;
                let read = move |core: Rc<Core>| async move {
                    core.in_version(version, |metadata| all(metadata, stripe))
                };
                entries.extend(self.of(stripe).with(read).await?);
            }
            return Ok(entries);
        }
    }

    /// Makes the operations on the names of a directory durable, if it is striped.
    ///
    /// # Errors
    /// The failure of the log.
    pub(crate) async fn sync_stripes(&self, directory: InodeNumber) -> Result<()> {
        match self.striped().find(directory) {
            None => Ok(()),
            Some(stripes) => {
                let sync = |core: Rc<Core>, _| async move { core.sync_all().await };
                self.at_each(stripes.all(), sync).await.map(drop)
            }
        }
    }
}

impl Core {
    /// Whether `holder`, an inode of this shard, is still the holder of a name.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the stripe was removed with its directory.
    pub(crate) fn holds(&self, holder: Holder, metadata: &Metadata, name: &[u8]) -> Result<bool> {
        if self.shards().holder(holder.directory, name) != holder {
            if_broken!(ForgetsStripes, return Ok(true));
            return Ok(false);
        }
        match holder.inode == holder.directory || metadata.inode(holder.inode).is_ok() {
            true => Ok(true),
            false => Err(Error::not_found(format!("directory {} was removed", holder.directory))),
        }
    }

    /// Returns attributes of an inode of this shard, not merged with stripes, and its stripes.
    async fn own_attributes(
        &self,
        version: Option<SnapshotNumber>,
        inode: InodeNumber,
    ) -> Result<(Inode, Option<Stripes>)> {
        loop {
            let (own, striped) = self.in_version(version, |metadata| {
                let own = metadata.inode(inode)?;
                let striped = if own.is_directory() { read(&metadata.items, inode)? } else { None };
                Ok((own, striped))
            })?;
            // While a directory becomes striped, other shards may not have all of its stripes yet.
            let is_known = version.is_some() || striped.is_none() || self.shards().striped().has(inode);
            if is_known || !self.peers.locks.holds_any([inode]) {
                return Ok((own, striped.map(|striped| striped.stripes)));
            }
            self.peers.locks.released().await;
        }
    }

    /// Publishes to all shards whether a directory of this shard is striped.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged item.
    pub(crate) fn publish_stripes(&self, directory: InodeNumber) -> Result<()> {
        let striped = read(&self.metadata.borrow().items, directory)?;
        self.shards().striped().set(directory, striped.map(|striped| striped.stripes));
        Ok(())
    }

    /// Runs `work` with the metadata of a snapshot; `None` for the present version.
    ///
    /// # Errors
    /// ESTALE for a deleted snapshot; errors of `work`.
    pub(crate) fn in_version<R>(
        &self,
        version: Option<SnapshotNumber>,
        work: impl FnOnce(&Metadata) -> Result<R>,
    ) -> Result<R> {
        let metadata = self.metadata.borrow();
        match version {
            None => work(&metadata),
            Some(number) => work(metadata.snapshots.get(number)?),
        }
    }
}
