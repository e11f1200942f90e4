//! Tables in zones: places of their blocks, and reads through the cache.

use crate::erasure::Erasure;
use crate::key_version::{Sequence, Timestamp};
use crate::table::{Block, BlockHandle, BlockSource, Reader, Summary, TableCursor};
use crate::tree::extents::{Extent, ReadAhead, place, read_runs, runs};
use crate::tree::manifest::{TableId, TableMeta};
use crate::tree::salvage::Lost;
use block::{Buffer, Error, Result, ZoneBlock};
use logkit::Kit;
use logkit::readers::ShardReads;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// Blocks of a table. They are live as long as the table has a user.
pub struct TableFile {
    /// Number of the table.
    pub id: TableId,
    kit: Rc<Kit>,
    erasure: Arc<Erasure>,
    extents: RefCell<Vec<Extent>>,
    /// Newest snapshot that was live when the table was written and may keep its tombstones.
    pub held_by: Cell<Option<Sequence>>,
    /// Time by which zones with stale blocks of the table must be reset; `None` if it is unknown.
    pub due: Cell<Option<Timestamp>>,
}

impl std::fmt::Debug for TableFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TableFile({})", self.id)
    }
}

impl TableFile {
    /// Returns a table without blocks.
    pub fn new(id: TableId, kit: &Rc<Kit>, erasure: &Arc<Erasure>) -> Rc<Self> {
        TableFile::with(id, kit, erasure, Vec::new())
    }

    /// Returns a table whose blocks are already counted as live.
    pub fn with(id: TableId, kit: &Rc<Kit>, erasure: &Arc<Erasure>, extents: Vec<Extent>) -> Rc<Self> {
        let (kit, erasure) = (kit.clone(), erasure.clone());
        let (held_by, due) = (Cell::new(None), Cell::new(None));
        Rc::new(TableFile { id, kit, erasure, extents: RefCell::new(extents), held_by, due })
    }

    /// Extents of the table's blocks.
    pub fn extents(&self) -> Vec<Extent> {
        self.extents.borrow().clone()
    }

    /// Place of a block; `None` if it isn't written.
    pub fn place_of(&self, block: u32) -> Option<ZoneBlock> {
        let extents = self.extents.borrow();
        let at = extents.partition_point(|extent| extent.end() <= block);
        let extent = extents.get(at).filter(|extent| extent.first <= block)?;
        Some(extent.place.after(block - extent.first))
    }

    /// Appends written blocks, or replaces the places of blocks that the cleaner has moved from `from`, and
    /// counts them as live. A move of blocks that were moved elsewhere meanwhile has no effect.
    pub fn written(&self, first: u32, blocks: u32, from: Option<ZoneBlock>, to: ZoneBlock) {
        let mut extents = self.extents.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        let clock = self.kit.clock();
        let mut stale: SmallVec<[u32; 2]> = SmallVec::new();
        place(&mut extents, Extent { first, blocks, place: to }, from, |extent, is_new| match is_new {
            true => accounts.add_live(extent.place.zone.0, extent.blocks),
            false => {
                accounts.remove_live(extent.place.zone.0, extent.blocks, clock);
                stale.push(extent.place.zone.0);
            }
        });
        drop(accounts);
        stale.into_iter().for_each(|zone| self.erasure.stale(zone, self.due.get()));
    }

    /// Visits the extents of the table in a zone.
    pub fn in_zone(&self, zone: u32, mut visit: impl FnMut(Extent)) {
        self.extents
            .borrow()
            .iter()
            .filter(|extent| extent.place.zone.0 == zone)
            .for_each(|extent| visit(*extent));
    }

    /// Reads the blocks with `length` bytes at `offset`.
    pub(crate) async fn read(&self, reads: &ShardReads, offset: u64, length: usize) -> Result<Buffer> {
        self.read_ahead(reads, offset, length, length).await
    }

    /// Reads the blocks with `length` bytes at `offset`, and those that follow in their zone, up to `most`
    /// bytes.
    async fn read_ahead(
        &self,
        reads: &ShardReads,
        offset: u64,
        length: usize,
        most: usize,
    ) -> Result<Buffer> {
        // No zone is reset between the lookup and the end of the read.
        let _reading = reads.begin();
        let runs = runs(&self.extents.borrow(), &self.kit.layout, offset, length, most);
        let read = async { read_runs(&*self.kit.zones, &self.kit.layout, &runs?).await };
        read.await.map_err(|error| error.in_context(format!("table {}", self.id)))
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        let mut accounts = self.kit.pool.accounts();
        let clock = self.kit.clock();
        let extents = self.extents.take();
        extents.iter().for_each(|extent| accounts.remove_live(extent.place.zone.0, extent.blocks, clock));
        drop(accounts);
        extents.iter().for_each(|extent| self.erasure.stale(extent.place.zone.0, self.due.get()));
        self.kit.events.cleaner.notify_all();
    }
}

/// Salt of the checksums of a table: its number modulo 2²⁴, and its shard. A block of one table fails the
/// checksum in another.
pub(crate) fn salt_of(table: TableId, shard: u16) -> u32 {
    (table as u32) << 8 | u32::from(shard)
}

/// Key of a block in the cache: the table, and the offset of the block.
type Key = (TableId, u64);

/// Hasher of cache keys: one multiplication distributes offsets and numbers of tables.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(29) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

#[derive(Debug, Clone)]
struct Weight;

impl quick_cache::Weighter<Key, Arc<Block>> for Weight {
    fn weight(&self, _key: &Key, block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64 + 64
    }
}

type Blocks = quick_cache::unsync::Cache<Key, Arc<Block>, Weight, BuildHasherDefault<KeyHasher>>;

/// Cache of decoded blocks of a shard's tables, limited in bytes.
pub struct BlockCache {
    blocks: RefCell<Blocks>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    /// Bytes of filters and indexes that readers keep outside the cache, and their maximum.
    kept: Cell<u64>,
    most_kept: u64,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BlockCache({} bytes)", self.blocks.borrow().weight())
    }
}

impl BlockCache {
    /// Returns a cache of `bytes` bytes; readers may keep half as much of filters and indexes in addition.
    pub fn new(bytes: u64) -> Self {
        let blocks = Blocks::with(
            (bytes / 4096).max(16) as usize,
            bytes,
            Weight,
            BuildHasherDefault::default(),
            Default::default(),
        );
        let [hits, misses, kept] = [0; 3].map(Cell::new);
        BlockCache { blocks: RefCell::new(blocks), hits, misses, kept, most_kept: bytes / 2 }
    }

    /// Bytes in use, number of hits, and number of misses.
    pub fn statistics(&self) -> (u64, u64, u64) {
        (self.blocks.borrow().weight(), self.hits.get(), self.misses.get())
    }

    fn get(&self, key: Key) -> Option<Arc<Block>> {
        let found = self.blocks.borrow().get(&key).cloned();
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
        found
    }

    fn insert(&self, key: Key, block: &Arc<Block>) {
        self.blocks.borrow_mut().insert(key, block.clone());
    }
}

/// Source of a table's blocks through the cache.
#[derive(Debug, Clone)]
pub struct Cached {
    file: Rc<TableFile>,
    cache: Rc<BlockCache>,
    reads: Arc<ShardReads>,
    /// In a salvaged store: its list of unreadable parts, and the summary of the table.
    lost: Option<Rc<(Rc<Lost>, Summary)>>,
}

impl BlockSource for Cached {
    async fn read(&self, handle: BlockHandle) -> Result<Arc<Block>> {
        let key = (self.file.id, handle.offset);
        if let Some(block) = self.cache.get(key) {
            return Ok(block);
        }
        let buffer = self.file.read(&self.reads, handle.offset, handle.length as usize).await?;
        let from = (handle.offset % self.file.kit.layout.block_size.bytes()) as usize;
        let block = Arc::new(decode(&self.file, buffer.filled(), from, handle)?);
        self.cache.insert(key, &block);
        Ok(block)
    }

    fn may_keep(&self, bytes: usize) -> bool {
        let kept = self.cache.kept.get() + bytes as u64;
        let fits = kept <= self.cache.most_kept;
        if fits {
            self.cache.kept.set(kept);
        }
        fits
    }

    fn skips(&self, handle: BlockHandle, error: &Error) -> bool {
        let Some(lost) = self.lost.as_deref() else { return false };
        let (lost, summary) = lost;
        lost.note_block((self.file.id, handle.offset), summary, error);
        true
    }

    fn dropped(&self, bytes: usize) {
        self.cache.kept.set(self.cache.kept.get() - bytes as u64);
    }
}

fn decode(file: &TableFile, bytes: &[u8], from: usize, handle: BlockHandle) -> Result<Block> {
    let stored = bytes.get(from..from + handle.length as usize);
    let stored =
        stored.ok_or_else(|| Error::corrupt(format!("table {}: a block is beyond its end", file.id)))?;
    Block::decode(stored, handle).map_err(|error| error.in_context(format!("table {}", file.id)))
}

/// Source of a table's blocks for sequential reads that bypass the cache.
#[derive(Debug)]
pub struct Sequential {
    file: Rc<TableFile>,
    reads: Arc<ShardReads>,
    ahead: ReadAhead,
}

impl BlockSource for Sequential {
    async fn read(&self, handle: BlockHandle) -> Result<Arc<Block>> {
        let read = async |offset, length, most| self.file.read_ahead(&self.reads, offset, length, most).await;
        let decode = |stored: &[u8]| decode(&self.file, stored, 0, handle).map(Arc::new);
        self.ahead.read(handle.offset, handle.length as usize, read, decode).await
    }
}

/// Handle of a table for a cursor.
#[derive(Debug, Clone)]
pub struct CachedReader(Rc<Table>);

impl Deref for CachedReader {
    type Target = Reader<Cached>;

    fn deref(&self) -> &Reader<Cached> {
        &self.0.reader
    }
}

/// A table of a tree.
#[derive(Debug)]
pub struct Table {
    /// Manifest's description of the table; its extents are outdated, and `file` has the present ones.
    pub meta: TableMeta,
    /// Blocks of the table.
    pub file: Rc<TableFile>,
    /// Reader of the table through the cache.
    pub reader: Reader<Cached>,
}

impl Table {
    /// Returns a written table. In a salvaged store, `lost` gets the parts that scans can't read.
    pub fn new(
        meta: TableMeta,
        file: Rc<TableFile>,
        cache: &Rc<BlockCache>,
        reads: &Arc<ShardReads>,
        lost: Option<&Rc<Lost>>,
    ) -> Rc<Self> {
        let lost = lost.map(|lost| Rc::new((lost.clone(), meta.summary.clone())));
        let source = Cached { file: file.clone(), cache: cache.clone(), reads: reads.clone(), lost };
        let reader = Reader::new(source, &meta.summary);
        Rc::new(Table { meta, file, reader })
    }

    /// Returns a cursor that reads through the cache.
    pub fn cursor(self: &Rc<Self>) -> TableCursor<CachedReader> {
        TableCursor::new(CachedReader(self.clone()))
    }

    /// Returns a cursor that reads the whole table and bypasses the cache.
    pub fn sequential(&self, reads: &Arc<ShardReads>) -> TableCursor<Rc<Reader<Sequential>>> {
        let source = Sequential {
            file: self.file.clone(),
            reads: reads.clone(),
            ahead: ReadAhead::new(self.meta.summary.length, &self.file.kit.layout),
        };
        TableCursor::new(Rc::new(Reader::new(source, &self.meta.summary)))
    }

    /// Whether the table may have an entry or deletion of a key, by its smallest and largest key.
    pub fn may_have(&self, key: &[u8]) -> bool {
        self.meta.summary.covers(key)
    }

    /// Whether the key ranges of the two tables overlap, both ends included.
    pub fn overlaps(&self, other: &Table) -> bool {
        let (own, others) = (&self.meta.summary, &other.meta.summary);
        own.smallest <= others.largest && others.smallest <= own.largest
    }

    /// Description for the manifest, with the present extents.
    pub fn present_meta(&self) -> TableMeta {
        TableMeta { extents: self.file.extents(), ..self.meta.clone() }
    }
}
