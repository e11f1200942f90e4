//! Tables of a shard: the tree, the tables that have a user, and access to their blocks.

use super::Core;
use super::snapshot::Snapshots;
use crate::erasure::Erasure;
use crate::tree::levels::Levels;
use crate::tree::manifest::{TableId, TableMeta};
use crate::tree::salvage::Lost;
use crate::tree::tables::{BlockCache, Table, TableFile};
use logkit::Kit;
use logkit::readers::ShardReads;
use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Tables of a shard.
pub(crate) struct Tables {
    /// Snapshots, whose versions the tables keep.
    pub snapshots: Snapshots,
    kit: Rc<Kit>,
    erasure: Arc<Erasure>,
    reads: Arc<ShardReads>,
    cache: Rc<BlockCache>,
    levels: RefCell<Rc<Levels>>,
    /// Tables that have a user: the tree, a reader or a job.
    files: RefCell<BTreeMap<TableId, Weak<TableFile>>>,
    next: Cell<TableId>,
    /// Unreadable parts of a salvaged store; `None` for a store in normal use.
    lost: Option<Rc<Lost>>,
}

impl Tables {
    /// Returns an empty tree, with a cache of `cache_bytes` bytes, and the number of the next table.
    pub fn new(
        kit: &Rc<Kit>,
        erasure: &Arc<Erasure>,
        cache_bytes: u64,
        next: TableId,
        lost: Option<Rc<Lost>>,
    ) -> Self {
        Tables {
            snapshots: Snapshots::default(),
            kit: kit.clone(),
            erasure: erasure.clone(),
            reads: kit.readers.here(),
            cache: Rc::new(BlockCache::new(cache_bytes)),
            levels: RefCell::default(),
            files: RefCell::default(),
            next: Cell::new(next),
            lost,
        }
    }

    /// The tree.
    #[inline]
    pub fn levels(&self) -> Ref<'_, Rc<Levels>> {
        self.levels.borrow()
    }

    /// Number of tables in level 0.
    pub fn level0(&self) -> usize {
        self.levels.borrow().0.first().map_or(0, Vec::len)
    }

    /// Reads of the zones by this shard.
    pub fn reads(&self) -> &Arc<ShardReads> {
        &self.reads
    }

    /// Bytes of the block cache, its hits, and its misses.
    pub fn cache_statistics(&self) -> (u64, u64, u64) {
        self.cache.statistics()
    }

    /// Unreadable parts; `None` for a store in normal use.
    pub fn lost(&self) -> Option<&Rc<Lost>> {
        self.lost.as_ref()
    }

    /// Number of the next table.
    pub fn next(&self) -> TableId {
        self.next.get()
    }

    /// Returns a table of the manifest whose blocks are already counted as live.
    pub fn found(&self, meta: TableMeta) -> Rc<Table> {
        let file = TableFile::with(meta.id, &self.kit, &self.erasure, meta.extents.clone());
        self.files.borrow_mut().insert(meta.id, Rc::downgrade(&file));
        self.table(meta, file)
    }

    /// Returns a written table.
    pub fn table(&self, meta: TableMeta, file: Rc<TableFile>) -> Rc<Table> {
        Table::new(meta, file, &self.cache, &self.reads, self.lost())
    }

    /// Creates a table with the next number.
    pub fn new_table(&self) -> Rc<TableFile> {
        let id = self.next.replace(self.next.get() + 1);
        let file = TableFile::new(id, &self.kit, &self.erasure);
        let mut files = self.files.borrow_mut();
        if files.len() > 64 && files.len().is_power_of_two() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(id, Rc::downgrade(&file));
        file
    }

    /// Table with this number if it has a user.
    pub fn file(&self, id: TableId) -> Option<Rc<TableFile>> {
        self.files.borrow().get(&id)?.upgrade()
    }

    /// All tables that have a user.
    pub fn files(&self) -> Vec<Rc<TableFile>> {
        self.files.borrow().values().filter_map(Weak::upgrade).collect()
    }
}

impl Core {
    /// Replaces the tree by these tables.
    pub(crate) fn set_levels(&self, tables: Vec<Rc<Table>>) {
        let bytes = |table: &Rc<Table>| {
            200 + 16 * table.meta.extents.len()
                + table.meta.summary.smallest.len()
                + table.meta.summary.largest.len()
        };
        let manifest = tables.iter().map(bytes).sum::<usize>() as u64;
        let largest = tables.iter().map(|table| table.meta.summary.length).max().unwrap_or(0);
        self.peers.space.set_tables(self.peers.shard, manifest, largest);
        self.tables.levels.replace(Rc::new(Levels::of(tables)));
    }
}
