//! Division of recovered versions among the home shards of a log.

use super::{Version, Versions};
use crate::directory::VersionEntry;
use crate::format::VersionId;
use crate::map::Map;
use std::sync::Arc;

/// A version without its pages, as another shard than the home has it.
#[derive(Debug, Clone)]
struct Seed {
    id: VersionId,
    parent: Option<VersionId>,
    writable: bool,
    created: u64,
    blocks: u64,
    name: String,
    map: Arc<dyn Map>,
}

/// The versions of a shard, to be sent there.
#[derive(Debug, Clone)]
pub struct VersionSeeds {
    list: Vec<Seed>,
    next: u32,
    changes: u64,
}

impl Versions {
    /// Divides the maps of recovered versions among `shards` shards. The home keeps its parts of the maps,
    /// and all page tables and dirty pages. Returns the versions of the other shards, which have no dirty
    /// page.
    pub fn divide(&mut self, shards: u32) -> Vec<VersionSeeds> {
        debug_assert!(self.dying.is_empty(), "recovery releases deleted versions");
        let parts_of = |shard| VersionSeeds {
            list: self.list.iter().map(|version| seed(version, shard)).collect(),
            next: self.next,
            changes: self.changes,
        };
        let others = (1..shards).map(parts_of).collect();
        for version in &mut self.list {
            version.map = part(&version.map, 0);
        }
        others
    }
}

impl VersionSeeds {
    /// Returns the versions.
    pub fn plant(self) -> Versions {
        let version = |seed: Seed| {
            let Seed { id, parent, writable, created, blocks, name, map } = seed;
            let table = crate::directory::PageTable::default();
            Version::new(VersionEntry { id, parent, writable, created, blocks, name, table }, map)
        };
        let list = self.list.into_iter().map(version).collect();
        Versions { list, next: self.next, changes: self.changes, ..Versions::default() }
    }
}

fn seed(version: &Version, shard: u32) -> Seed {
    let Version { id, parent, writable, created, blocks, name, map, .. } = version;
    Seed {
        id: *id,
        parent: *parent,
        writable: *writable,
        created: *created,
        blocks: *blocks,
        name: name.clone(),
        map: part(map, shard),
    }
}

/// A map with the part of one shard.
fn part(map: &Arc<dyn Map>, shard: u32) -> Arc<dyn Map> {
    match map.striped() {
        Some(striped) => Arc::new(striped.only(shard)),
        None => map.clone(),
    }
}
