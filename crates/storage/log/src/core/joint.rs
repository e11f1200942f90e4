//! Changes of versions in a log with several shards: each is a joint record, a member of the streams of all
//! shards. The home appends it, and every shard applies it to its own maps, between the same records of its
//! stream as replay does.

use super::Core;
use crate::entry::LogEntry;
use crate::format::{Change, VersionId};
use crate::map::{Map, Striped};
use block::{Error, Result};
use logkit::{Joint, Owner, lane};
use runtime::sync::Permit;
use std::rc::Rc;
use std::sync::Arc;

impl Core {
    /// Number of other shards that a change joins.
    pub(super) fn joins_of(&self, change: &Change) -> u8 {
        match change {
            Change::Create { .. } | Change::Delete { .. } | Change::Grow { .. } => {
                (self.peers.count() - 1) as u8
            }
            _ => 0,
        }
    }

    /// Passes a joint record on to all other shards.
    pub(super) fn pass_on(&self, joint: &Arc<Joint>, entries: &[LogEntry], zone: u32, position: u32) {
        let changes: Vec<Change> = entries.iter().map(|entry| entry.change.clone()).collect();
        for there in self.peers.homes().iter().skip(1) {
            let (joint, changes) = (joint.clone(), changes.clone());
            let (here, there) = (self.peers.first().clone(), there.clone());
            let deliver = move |core: Rc<Core>| async move {
                let entries = changes.into_iter().map(shared_entry).collect();
                lane::joint_written(&*core, joint, entries, zone, position);
                Ok(())
            };
            let task = async move {
                if let Err(error) = there.with(deliver).await {
                    let fail = move |core: Rc<Core>| async move {
                        core.fail(&error);
                        Ok(())
                    };
                    // If this fails, the log has ended here as well.
                    let _ended = here.with(fail).await;
                }
            };
            self.kit.tasks.spawn(task).detach();
        }
    }

    /// Waits until a joint record that has committed on the home has taken effect on all shards.
    ///
    /// # Errors
    /// [`Error::Closed`] for a shard that has ended.
    pub async fn commit_everywhere(&self) -> Result<()> {
        let commit = |core: Rc<Core>| async move {
            lane::commit(&*core, core.kit.settings.user_stream);
            Ok(())
        };
        self.peers.each_other(commit).await.map(drop)
    }

    /// Makes what was acknowledged on all shards durable.
    ///
    /// # Errors
    /// Errors of [`flush_acknowledged`](Self::flush_acknowledged).
    pub async fn flush_everywhere(self: &Rc<Self>) -> Result<()> {
        self.flush_acknowledged().await?;
        self.peers.each_other(|core: Rc<Core>| async move { core.flush_acknowledged().await }).await.map(drop)
    }

    /// Waits until no shard has a write in flight; further writes wait until
    /// [`open_gates`](Self::open_gates), and until the permit is dropped.
    ///
    /// # Errors
    /// [`Error::Closed`] for a shard that has ended; its gates must be opened nevertheless.
    pub async fn close_gates(&self) -> Result<Permit> {
        let own = self.without_writes().await;
        let close = |core: Rc<Core>| async move {
            let permit = core.without_writes().await;
            core.gate.replace(Some(permit));
            Ok(())
        };
        self.peers.each_other(close).await?;
        Ok(own)
    }

    /// Lets the other shards write again.
    ///
    /// # Errors
    /// [`Error::Closed`] for a shard that has ended.
    pub async fn open_gates(&self) -> Result<()> {
        let open = |core: Rc<Core>| async move {
            core.gate.take();
            Ok(())
        };
        self.peers.each_other(open).await.map(drop)
    }

    /// Number of pages of a version that no checkpoint has, on all shards.
    ///
    /// # Errors
    /// [`Error::Closed`] for a shard that has ended.
    pub async fn unsaved_pages(&self, id: VersionId) -> Result<u64> {
        let count = move |core: &Core| {
            let versions = core.versions.borrow();
            versions.get(id).map_or(0, |version| version.dirty.with(&version.writing).len())
        };
        let others = self.peers.each_other(move |core: Rc<Core>| async move { Ok(count(&core)) }).await?;
        Ok(count(self) + others.into_iter().sum::<u64>())
    }

    /// Returns the map of a version with the parts of all shards.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no such version; [`Error::Closed`] for a shard that has ended.
    pub async fn whole_map(&self, id: VersionId) -> Result<Arc<dyn Map>> {
        let own = self.map_of(id)?;
        if self.peers.is_alone() {
            return Ok(own);
        }
        let others = self.peers.each_other(move |core: Rc<Core>| async move { core.map_of(id) }).await?;
        Ok(self.join_maps(std::iter::once(&own).chain(&others)))
    }

    /// Returns the map with the parts that these maps of one version, in the order of the shards, have.
    pub(super) fn join_maps<'a>(&self, maps: impl Iterator<Item = &'a Arc<dyn Map>>) -> Arc<dyn Map> {
        let maps: Vec<&Arc<dyn Map>> = maps.collect();
        let parts = (0..).zip(&maps).filter_map(|(shard, map)| map.striped()?.part(shard).cloned());
        let blocks = maps.iter().map(|map| map.blocks()).min().unwrap_or(0);
        Arc::new(Striped::of(self.layout.stripes, blocks, parts))
    }

    fn map_of(&self, id: VersionId) -> Result<Arc<dyn Map>> {
        let versions = self.versions.borrow();
        let version = versions.get(id);
        let version = version
            .ok_or_else(|| Error::not_found(format!("version {} of the volume doesn't exist", id.0)))?;
        Ok(version.map.clone())
    }

    /// Sets the number of pages of a new version that no checkpoint has.
    pub fn set_unsaved(&self, id: VersionId, unsaved: u64) {
        let mut versions = self.versions.borrow_mut();
        versions.list.iter_mut().filter(|version| version.id == id).for_each(|it| it.unsaved = unsaved);
        drop(versions);
        self.measure_images();
    }

    /// Waits until the blocks of a deleted version have been released on this shard.
    pub async fn released(&self, id: VersionId) {
        while self.versions.borrow().is_dying(id) && !self.kit.is_closing() && self.kit.failure().is_none() {
            self.kit.events.freed.notified().await;
        }
    }

    /// Releases the blocks of deleted versions of this shard; the home's cleaner does that for the home.
    pub(super) fn release_deleted(&self) {
        let Ok(core) = self.peers.homes()[self.peers.index() as usize].get() else { return };
        let release = async move {
            while core.free_piece() && core.kit.failure().is_none() && !core.kit.is_closing() {
                runtime::yield_now().await;
            }
            core.kit.events.freed.notify_all();
        };
        self.kit.tasks.spawn(release).detach();
    }
}

/// The part of a joint record of another shard: its request waits on the home.
fn shared_entry(change: Change) -> LogEntry {
    LogEntry { change, payload: block::Payload::new(), request: None, growth: 0, joins: 0, ticket: 0 }
}
