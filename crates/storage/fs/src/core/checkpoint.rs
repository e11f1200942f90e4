//! Checkpoints: the trees of each shard as of one point in time. Their pages are written while operations
//! continue. The shards encode the pages, and the home writes them.
//!
//! The trees may include operations on names and attributes whose records aren't written yet. Even if these
//! records are never written, the operations have taken effect, each of them whole. The checkpoint stores the
//! number of their changes, so that they aren't replayed ([`crate::metadata::change`]).
//!
//! The shards freeze their trees at different times. So an operation on several shards may be in the trees of
//! one shard and not in those of another: its record is durable before the checkpoint is, and is replayed on
//! the shards whose trees lack it.

use crate::broken::if_broken;
use crate::core::shards::shard_of;
use crate::core::{Core, cleaner_stream, user_stream};
use crate::format::{InodeGroupState, SnapshotState, State};
use crate::metadata::extents::{Blocks, Lost};
use crate::metadata::forest::InodeGroup;
use crate::metadata::versions::{SnapshotInfo, SnapshotNumber};
use crate::metadata::{Inodes, Metadata};
use crate::tree::{PAGE, Page, Released, Stored, Tree, Unstored};
use block::{Buffer, Error, Result, ZoneBlock};
use logkit::checkpoint::{self, Cut};
use logkit::pool::{CHECKPOINT_CLASS, Usage};
use logkit::record::{Identity, keyed_sum, sum_of};
use logkit::{Kit, Owner, StreamId};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of a page that hold its checksum; the tree leaves them 0.
const SUM: std::ops::Range<usize> = 28..32;

/// Checksum of a page whose checksum bytes are 0. The checksum covers the place, so a page read from another
/// place is invalid.
fn sum_of_page(page: &[u8; PAGE], identity: &Identity, place: ZoneBlock) -> [u8; 4] {
    keyed_sum(identity.key, &[&place.zone.0.to_le_bytes(), &place.block.to_le_bytes(), page]).to_le_bytes()
}

/// Stores the checksum in a page.
fn seal(page: &mut [u8; PAGE], identity: &Identity, place: ZoneBlock) {
    let sum = sum_of_page(page, identity, place);
    page[SUM].copy_from_slice(&sum);
}

/// Verifies the checksum of a page, and clears the checksum bytes.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged page, or one that was written for another place.
pub(crate) fn unseal(page: &mut [u8; PAGE], identity: &Identity, place: ZoneBlock) -> Result<()> {
    let mut found = [0; 4];
    found.copy_from_slice(&page[SUM]);
    page[SUM].fill(0);
    match sum_of_page(page, identity, place) == found {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "tree page \"{place}\": wrong checksum; restore the file system from a backup"
        ))),
    }
}

/// Most pages of one record.
const PAGES_AT_ONCE: u64 = 256;
/// Pages that are encoded between two yields to other tasks.
const PAGES_A_TURN: usize = 16;

/// A tree of an inode group: of the present version, with the inodes, or of a snapshot.
struct FrozenTree {
    snapshot: Option<SnapshotNumber>,
    group: InodeGroup,
    tree: Tree,
    inodes: Inodes,
}

/// The trees of a shard at one point in time, while their pages are written.
pub(crate) struct FrozenTrees {
    /// Trees to write. A page that several trees share is written with the first one.
    trees: Vec<FrozenTree>,
    /// Places that die when the next checkpoint is durable.
    dead: Vec<ZoneBlock>,
    /// Blocks of deleted snapshots, which die when the next checkpoint is durable.
    dropped: Lost,
    /// Number of trees whose pages have been taken.
    begun: usize,
    cursor: Option<Unstored>,
    /// Next page to take, and the index of its tree.
    next: Option<(usize, Page)>,
    /// Pages that are taken and have no place yet.
    taken: Vec<Page>,
}

impl FrozenTrees {
    /// Returns the index of the tree with the next page without a place, and the level of that page, without
    /// taking it.
    fn peek(&mut self) -> Option<(usize, u8)> {
        while self.next.is_none() {
            match self.cursor.as_mut().and_then(Iterator::next) {
                Some(page) => self.next = Some((self.begun - 1, page)),
                None => {
                    self.cursor = Some(self.trees.get(self.begun)?.tree.unstored());
                    self.begun += 1;
                }
            }
        }
        self.next.as_ref().map(|(tree, page)| (*tree, page.level()))
    }
}

/// Inode groups of a shard whose trees are written to the medium.
#[derive(Default)]
struct StoredTrees {
    groups: Vec<(InodeGroup, InodeGroupState)>,
    snapshots: Vec<(SnapshotNumber, InodeGroup, Stored)>,
}

/// State of a shard at the time when its trees are frozen.
struct Moment {
    /// Numbers of the last records whose effect the trees include.
    committed: [(StreamId, u64); 2],
    shown: u64,
    /// Bytes of memory of the trees.
    memory: u64,
}

impl StoredTrees {
    /// Returns the snapshots, in the order of `infos`.
    fn snapshots_of(&self, infos: &[SnapshotInfo]) -> Vec<SnapshotState> {
        let trees = |number: SnapshotNumber| {
            let own = self.snapshots.iter().filter(move |(other, ..)| *other == number);
            own.map(|(.., tree)| *tree).collect()
        };
        infos.iter().map(|info| SnapshotState { info: info.clone(), trees: trees(info.number) }).collect()
    }
}

/// Trees that a checkpoint is writing, and places that die with it.
pub(crate) struct Checkpointer {
    /// Places of pages that the next checkpoint no longer uses.
    released: Released,
    /// Blocks that only deleted snapshots had: they die when the next checkpoint is durable.
    dropped: RefCell<Lost>,
    /// Checkpoint that is being written.
    frozen: RefCell<Option<FrozenTrees>>,
}

impl Checkpointer {
    /// Returns the state without a checkpoint in progress; `released` gets the places that trees release.
    pub fn new(released: Released) -> Self {
        Checkpointer { released, dropped: RefCell::default(), frozen: RefCell::default() }
    }

    /// Adds dying blocks that only deleted snapshots had.
    pub fn drop_blocks(&self, zone: u32, count: u32) {
        self.dropped.borrow_mut().dead(zone, count);
    }

    /// Clones the trees of the shard for a checkpoint.
    ///
    /// # Errors
    /// ESTALE for a deleted snapshot.
    fn freeze(
        &self,
        metadata: &Metadata,
        is_own: impl Fn(InodeGroup) -> bool,
        emptiest: &[u32],
        numbers: &[SnapshotNumber],
    ) -> Result<()> {
        if !emptiest.is_empty() {
            let is_wanted = |place: ZoneBlock| emptiest.contains(&place.zone.0);
            metadata.items.withdraw_places(None, is_wanted);
            for (older, newer) in metadata.snapshots.with_newer(&metadata.items) {
                older.withdraw_places(Some(newer), is_wanted);
            }
        }
        let mut trees = Vec::new();
        for group in (0..metadata.items.groups()).filter(|group| is_own(*group)) {
            let inodes = metadata.inodes(group);
            let tree = metadata.items.tree(group).clone();
            trees.push(FrozenTree { snapshot: None, group, tree, inodes });
            for number in numbers {
                let tree = metadata.snapshots.get(*number)?.items.tree(group).clone();
                trees.push(FrozenTree { snapshot: Some(*number), group, tree, inodes });
            }
        }
        let dead = self.released.take();
        let dropped = std::mem::take(&mut *self.dropped.borrow_mut());
        let frozen =
            FrozenTrees { trees, dead, dropped, begun: 0, cursor: None, next: None, taken: Vec::new() };
        *self.frozen.borrow_mut() = Some(frozen);
        Ok(())
    }

    /// Places that die when the checkpoint in progress is durable.
    #[cfg(feature = "broken-rules")]
    fn dead(&self) -> Vec<ZoneBlock> {
        self.frozen.borrow().as_ref().map(|frozen| frozen.dead.clone()).unwrap_or_default()
    }

    /// Ends a checkpoint. With `is_durable`, the blocks of deleted snapshots die, and the places that it no
    /// longer uses are returned.
    fn thaw(&self, kit: &Kit, is_durable: bool) -> Vec<ZoneBlock> {
        let Some(frozen) = self.frozen.borrow_mut().take() else { return Vec::new() };
        for (zone, count) in &frozen.dropped.0 {
            match is_durable {
                true => kit.pool.accounts().remove_dying(*zone, *count, kit.clock()),
                false => self.drop_blocks(*zone, *count),
            }
        }
        match is_durable {
            true => frozen.dead,
            false => {
                // The previous checkpoint still uses these pages. If the log has failed, either
                // checkpoint may be the valid one.
                self.released.put_back(frozen.dead);
                Vec::new()
            }
        }
    }

    /// Takes the next pages without a place, with their checksums for places that begin at `from`; `None` if
    /// there are none.
    async fn take_pages(&self, kit: &Kit, from: ZoneBlock, most: usize) -> Option<(Buffer, Vec<u32>)> {
        let mut frozen = self.frozen.borrow_mut().take()?;
        let block = kit.layout.block_bytes();
        let mut data = None;
        let mut sums = Vec::new();
        let mut last = None;
        while let Some(next) = frozen.peek() {
            // A page contains the places of its children, so a record has pages of only one level of a tree.
            let is_above = last.is_some_and(|(tree, level)| tree == next.0 && level != next.1);
            let Some((_, page)) = frozen.next.take_if(|_| !is_above && sums.len() < most) else { break };
            last = Some(next);
            let mut bytes = [0; PAGE];
            page.encode(&mut bytes);
            seal(&mut bytes, &kit.identity, ZoneBlock { block: from.block + sums.len() as u32, ..from });
            let data = data.get_or_insert_with(|| {
                let mut data = Buffer::new((1 + most) * block);
                data.append_zeroes(block);
                data
            });
            data.append(&bytes);
            sums.push(sum_of(&bytes));
            frozen.taken.push(page);
            if sums.len().is_multiple_of(PAGES_A_TURN) {
                runtime::yield_now().await;
            }
        }
        *self.frozen.borrow_mut() = Some(frozen);
        let mut data = data?;
        data.shorten((1 + sums.len()) * block);
        Some((data, sums))
    }

    /// Assigns places that begin at `from` to the pages that were taken last.
    fn note_pages(&self, from: ZoneBlock) {
        let taken = self.frozen.borrow_mut().as_mut().map(|frozen| std::mem::take(&mut frozen.taken));
        for (position, page) in (from.block..).zip(taken.unwrap_or_default()) {
            page.set_place(ZoneBlock { block: position, ..from });
        }
    }

    /// Returns the inode groups of this shard after all their pages have been written.
    fn stored(&self) -> Result<StoredTrees> {
        let frozen = self.frozen.borrow();
        let mut written = StoredTrees::default();
        for FrozenTree { snapshot, group, tree, inodes } in frozen.iter().flat_map(|frozen| &frozen.trees) {
            let tree = tree.stored().ok_or_else(|| {
                Error::io("a checkpoint has pages without a place: a frozen tree changed while it was written; mount the file system again")
            })?;
            match snapshot {
                None => written.groups.push((*group, InodeGroupState { tree, inodes: *inodes })),
                Some(number) => written.snapshots.push((*number, *group, tree)),
            }
        }
        Ok(written)
    }
}

impl Core {
    /// Writes a checkpoint of all shards; `clean` marks the last one before the file system is closed. Runs
    /// on the home.
    ///
    /// # Errors
    /// Errors of writing. The previous checkpoint stays authoritative, unless the log has failed.
    pub(crate) async fn write_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        checkpoint::take(self, async || {
            self.check_space_for_pages()?;
            let mut cut = Cut::now(&self.kit);
            let (mut shown, mut memory) = (Vec::new(), 0);
            let emptiest: Arc<[u32]> = self.emptiest_zones().into();
            let infos = self.snapshot_list.of_checkpoint();
            let next_snapshot = self.snapshot_list.next_number();
            let numbers: Arc<[SnapshotNumber]> = infos.iter().map(|info| info.number).collect();
            let frozen = async {
                for core in self.shards().all() {
                    let (emptiest, numbers) = (emptiest.clone(), numbers.clone());
                    let freeze = move |core: Rc<Core>| async move { core.freeze(&emptiest, &numbers) };
                    let moment = core.with(freeze).await?;
                    moment.committed.iter().for_each(|(stream, last)| cut.covered.set(*stream, *last));
                    shown.push(moment.shown);
                    memory += moment.memory;
                }
                self.write_trees().await
            };
            let committed = match frozen.await {
                Ok(written) => {
                    let snapshots = written.snapshots_of(&infos);
                    let groups = written.groups.into_iter().map(|(_, state)| state).collect();
                    let state =
                        State { epoch: self.kit.epoch, shown, memory, groups, snapshots, next_snapshot };
                    checkpoint::commit(self, cut, &state.encode(), clean).await
                }
                Err(error) => Err(error),
            };
            let is_durable = committed.is_ok();
            if is_durable {
                self.snapshot_list.are_durable(&infos);
            }
            for core in self.shards().all() {
                core.with(move |core: Rc<Core>| async move {
                    core.thaw(is_durable);
                    Ok(())
                })
                .await?;
            }
            committed
        })
        .await
    }

    /// Refuses a checkpoint if its pages don't fit: it would use up the last zones without freeing any.
    fn check_space_for_pages(&self) -> Result<()> {
        // This includes zones that wait for a checkpoint before they are reset.
        let (free, pages) = (u64::from(self.kit.pool.free_soon()), self.totals().sum(|used| &used.unstored));
        // The open zone of checkpoints has some space, and the count of free zones may be older than that of
        // the pages.
        match pages <= (free + 2) * u64::from(self.kit.layout.zone_blocks) {
            true => Ok(()),
            false => Err(Error::no_space(format!(
                "a checkpoint has {pages} pages of metadata to write, and {free} zones are free; remove files or snapshots"
            ))),
        }
    }

    /// Freezes the trees of this shard, and returns its state at this moment.
    fn freeze(&self, emptiest: &[u32], numbers: &[SnapshotNumber]) -> Result<Moment> {
        let metadata = self.metadata.borrow();
        let (index, shards) = (self.index(), self.totals().shards());
        let is_own = |group| shard_of(group, shards) == index;
        self.checkpointer.freeze(&metadata, is_own, emptiest, numbers)?;
        if_broken!(FreesPagesEarly, self.free_pages(&self.checkpointer.dead()));
        let committed = [user_stream(index), cleaner_stream(index)]
            .map(|stream| (stream, self.appender().committed(stream)));
        let memory = metadata.items.memory() as u64;
        Ok(Moment { committed, shown: self.durability.shown(), memory })
    }

    /// Ends a checkpoint; with `is_durable`, places that it no longer needs die.
    fn thaw(&self, is_durable: bool) {
        let dead = self.checkpointer.thaw(&self.kit, is_durable);
        if_broken!(FreesPagesEarly, return);
        self.free_pages(&dead);
    }

    fn free_pages(&self, dead: &[ZoneBlock]) {
        let mut accounts = self.kit.pool.accounts();
        dead.iter().for_each(|place| accounts.remove_live(place.zone.0, 1, self.kit.clock()));
    }

    /// Writes the pages without a place of all shards. Returns the inode groups.
    async fn write_trees(self: &Rc<Self>) -> Result<StoredTrees> {
        let mut written = StoredTrees::default();
        for core in self.shards().all() {
            loop {
                let space = checkpoint::space(self, PAGES_AT_ONCE, |_| 0).await?;
                let (zone, first, most) = (space.zone(), space.position(), space.blocks as usize);
                let taken = core.with(move |core: Rc<Core>| async move {
                    Ok(core.checkpointer.take_pages(&core.kit, ZoneBlock::new(zone, first), most).await)
                });
                let Some((data, sums)) = taken.await? else {
                    checkpoint::give_back(&**self, space);
                    break;
                };
                let pages = sums.len() as u32;
                checkpoint::append(self, space, data, &sums, &[]).await?;
                self.kit.pool.add_live(zone, pages);
                let note = move |core: Rc<Core>| async move {
                    core.checkpointer.note_pages(ZoneBlock::new(zone, first));
                    Ok(())
                };
                core.with(note).await?;
            }
            let stored = core.with(|core: Rc<Core>| async move { core.checkpointer.stored() }).await?;
            written.groups.extend(stored.groups);
            written.snapshots.extend(stored.snapshots);
        }
        written.groups.sort_unstable_by_key(|(group, _)| *group);
        written.snapshots.sort_unstable_by_key(|(number, group, _)| (*number, *group));
        Ok(written)
    }

    /// Returns the zones of checkpoints with few live pages. Their pages are written elsewhere, to keep
    /// checkpoints compact.
    fn emptiest_zones(&self) -> Vec<u32> {
        let pool = &self.kit.pool;
        let is_full = |zone: &logkit::Zone| zone.class == CHECKPOINT_CLASS && zone.usage == Usage::Full;
        let mut zones = pool.select(|number, zone| is_full(zone).then_some((zone.live, number)));
        zones.sort_unstable();
        let live: u64 = zones.iter().map(|(live, _)| u64::from(*live)).sum();
        // Number of zones that hold the live pages with a third of the space unused; the emptiest zones
        // beyond this number are rewritten.
        let enough = (live + live / 2).div_ceil(u64::from(self.kit.layout.zone_blocks)) as usize + 1;
        let surplus = zones.len().saturating_sub(enough);
        // Rewritten pages need space: at most half of the free zones above the reserve, or half a zone.
        let spare = pool.free().saturating_sub(self.admission.kept_zones());
        let most = (u64::from(spare) * u64::from(self.kit.layout.zone_blocks))
            .max(u64::from(self.kit.layout.zone_blocks))
            / 2;
        let mut pages = 0;
        let fits = |(live, _): &&(u32, u32)| {
            pages += u64::from(*live);
            pages <= most
        };
        zones[..surplus].iter().take_while(fits).map(|(_, zone)| *zone).collect()
    }
}
