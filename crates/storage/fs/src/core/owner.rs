//! A shard as an owner of the log kit: applies records when they commit, and finds and moves live blocks for
//! the cleaner.
//!
//! The cleaner runs on the home. It requests the live blocks from each shard, and each shard appends the
//! moves of its own blocks.

use super::Core;
use super::settings::REMOVAL_RESERVE;
use crate::core::entry::{EntrySource, FsEntry};
use crate::metadata::change::{Change, Changes, Recorded};
use crate::metadata::extents::Blocks;
use crate::metadata::inode::InodeNumber;
use crate::names::joint;
use block::{Data, Error, Result, ZoneBlock};
use logkit::pool::Accounts;
use logkit::{Appender, Joint, Kit, Mover, Owner, Piece, Victim, count, reset};
use std::rc::Rc;
use std::sync::Arc;

/// Updates the live counts of zones for blocks that files get and lose.
pub(crate) struct Accounting<'a, 'b> {
    pub accounts: &'a mut Accounts<'b>,
    /// Clock of the record that commits or is replayed.
    pub clock: u64,
}

impl Accounting<'_, '_> {
    /// Subtracts blocks that an operation freed on submission.
    fn dying(&mut self, zone: u32, blocks: u32) {
        self.accounts.remove_dying(zone, blocks, self.clock);
    }
}

impl Blocks for Accounting<'_, '_> {
    fn live(&mut self, zone: u32, blocks: u32) {
        self.accounts.add_live(zone, blocks);
    }

    fn dead(&mut self, zone: u32, blocks: u32) {
        self.accounts.remove_live(zone, blocks, self.clock);
    }
}

/// Identity of data in a zone: a block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    inode: InodeNumber,
    block: u64,
}

impl Owner for Core {
    type Entry = FsEntry;
    type Name = Name;

    #[inline]
    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    #[inline]
    fn appender(&self) -> &Appender<FsEntry> {
        self.durability.appender()
    }

    fn commit(&self, entries: &[FsEntry], zone: u32, position: u32) {
        let mut failed = Ok(());
        let mut at = ZoneBlock::new(zone, position);
        let mut metadata = self.metadata.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        let mut blocks = Accounting { accounts: &mut accounts, clock: self.kit.clock() };
        let (mut user_blocks, mut moved_blocks) = (0, 0);
        for entry in entries {
            match &entry.source {
                EntrySource::Submitted { lost, .. } => {
                    lost.0.iter().for_each(|(zone, count)| blocks.dying(*zone, *count));
                }
                EntrySource::Joint { .. } | EntrySource::Shared => {
                    for change in entry.changes.iter().filter(|change| self.is_here(change.inode())) {
                        failed = failed.and(metadata.apply(change, at, &mut blocks));
                    }
                }
                EntrySource::Write { .. } | EntrySource::Move | EntrySource::Answered { .. } => {
                    for change in &entry.changes {
                        failed = failed.and(metadata.apply(change, at, &mut blocks));
                        at.block += change.blocks();
                    }
                    let written = match entry.source {
                        EntrySource::Move => &mut moved_blocks,
                        _ => &mut user_blocks,
                    };
                    *written += u64::from(logkit::Entry::blocks(entry));
                }
            }
        }
        drop((metadata, accounts));
        self.kit.note_user_blocks(user_blocks);
        count(&self.kit.counters.moved_blocks, moved_blocks);
        if let Err(error) = &failed {
            self.fail(error);
        }
        entries.iter().for_each(|entry| self.end(entry, &failed));
        self.publish();
        self.kit.events.committed.notify_all();
        if self.kit.is_stuck() {
            self.kit.look_again();
        }
    }

    fn note_sums(&self, zone: u32, position: u32, sums: &[u32]) {
        self.reader.note_sums(zone, position, sums);
    }

    fn refuse(&self, entry: &FsEntry, error: &Error) {
        self.end(entry, &Err(error.clone()));
        self.publish();
        self.kit.events.committed.notify_all();
    }

    fn answer(&self, entry: &mut FsEntry, error: &Error) {
        // The write may still take effect, so its range stays locked until then; its capacity is released.
        match &mut entry.source {
            EntrySource::Write { request, growth, held, .. } => {
                self.admission.release(*growth);
                self.durability.requests().item_ended(*request, &Err(error.clone()));
                entry.source = EntrySource::Answered { held: held.take() };
            }
            EntrySource::Joint { request, .. } => {
                self.durability.requests().item_ended(*request, &Err(error.clone()));
                entry.source = EntrySource::Shared;
            }
            _ => {}
        }
    }

    fn cut(&self, entry: &mut FsEntry, blocks: u32) -> FsEntry {
        if let EntrySource::Write { request, .. } = entry.source {
            self.durability.requests().item_was_cut(request);
        }
        entry.cut(blocks, self.kit.layout.block_bytes())
    }

    async fn flush_all(&self) -> Result<()> {
        for core in self.shards().all() {
            core.with(|core: Rc<Core>| async move { core.flush_own().await }).await?;
        }
        Ok(())
    }

    fn share(&self, joint: &Arc<Joint>, entries: &[FsEntry], zone: u32, position: u32) {
        joint::pass_on(self, joint, entries, zone, position);
    }

    async fn free_dead(self: &Rc<Self>) -> Result<()> {
        self.shards().first().with(|core: Rc<Core>| async move { reset::free_dead(&core).await }).await
    }

    fn checkpoint_cost(&self) -> u64 {
        self.admission.checkpoint_cost()
    }

    fn checkpoint_zones(&self) -> u32 {
        self.admission.checkpoint_zones()
    }

    fn kept_zones(&self) -> u32 {
        self.admission.kept_zones()
    }

    fn zones_left_by_cleaner(&self) -> u32 {
        self.checkpoint_zones() + REMOVAL_RESERVE
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        self.write_checkpoint(clean).await
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<Name>>> {
        let (zone, mut live) = (victim.zone(), Vec::new());
        for (core, pieces) in self.shards().all().iter().zip(self.pieces_of(victim)?) {
            if !pieces.is_empty() {
                live.extend(
                    core.with(move |core: Rc<Core>| async move { core.live_here(zone, pieces) }).await?,
                );
            }
        }
        Ok(live)
    }

    /// Blocks of other shards are reported as live: a move of a block that has died meanwhile has no effect.
    fn still_live(&self, victim: &Victim, piece: &Piece<Name>, visit: &mut dyn FnMut(u32, u32)) {
        if !self.is_here(piece.name.inode) {
            return visit(0, piece.count);
        }
        let place = ZoneBlock::new(victim.zone(), piece.position);
        let first = piece.name.block + u64::from(piece.offset);
        let metadata = self.metadata.borrow();
        let (inode, range) = (piece.name.inode, (first, piece.count));
        let found = metadata.snapshots.visit_at_any(&metadata.items, inode, range, place, |from, count| {
            visit((from - first) as u32, count);
        });
        if let Err(error) = found {
            drop(metadata);
            self.fail(&error);
        }
    }

    async fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        mut pieces: Vec<(Piece<Name>, Data)>,
        mover: &mut Mover,
    ) -> Result<()> {
        let class = self.moves.class_for(class);
        let start = |piece: &Piece<Name>| (piece.name.inode, piece.name.block + u64::from(piece.offset));
        // Blocks that are contiguous in a file become contiguous in a zone.
        pieces.sort_by_key(|(piece, _)| start(piece));
        let mut moves: Vec<Vec<CleanerMove>> = self.shards().all().iter().map(|_| Vec::new()).collect();
        for (piece, data) in pieces {
            let (inode, block) = start(&piece);
            let from = ZoneBlock::new(victim.zone(), piece.position);
            let change = Change::Move { inode, block, blocks: piece.count, from };
            moves[self.shards().index_of(inode) as usize].push((change, data));
        }
        for (index, moves) in (0..).zip(moves) {
            if index == self.index() {
                mover.append(self, class, moves.into_iter().map(entry_of_move)).await?;
            } else if !moves.is_empty() {
                self.kit.pace.moved(moves.iter().map(|(change, _)| change.blocks()).sum());
                let core = &self.shards().all()[index as usize];
                let work = core.with(move |core: Rc<Core>| async move {
                    core.moves.append(&core, class, moves.into_iter().map(entry_of_move)).await
                });
                mover.meanwhile(&**self, work).await?;
            }
        }
        Ok(())
    }

    async fn seal_idle_movers(&self) {
        self.moves.seal_idle(self).await;
    }

    async fn read_to_move<R>(&self, bytes: u64, read: impl Future<Output = R>) -> R {
        let _turn = self.turn_of_cleaner(bytes).await;
        read.await
    }

    fn space_advice(&self) -> &'static str {
        "remove files or snapshots"
    }
}

/// A move of the cleaner, with its data.
type CleanerMove = (Change, Data);

fn entry_of_move((change, data): CleanerMove) -> FsEntry {
    FsEntry {
        changes: Changes::from_elem(change, 1),
        data: data.into(),
        source: EntrySource::Move,
        ticket: 0,
    }
}

impl Core {
    /// Returns, for each shard, the blocks that the records of a zone mapped into files.
    fn pieces_of(&self, victim: &Victim) -> Result<Vec<Vec<Piece<Name>>>> {
        let mut pieces: Vec<Vec<Piece<Name>>> = self.shards().all().iter().map(|_| Vec::new()).collect();
        for (record, found) in victim.records().iter().enumerate() {
            let mut first = 0;
            for Recorded { change, .. } in Change::decode_record(&found.meta, found.header.blocks)? {
                let (Change::Map { inode, block, blocks, .. } | Change::Move { inode, block, blocks, .. }) =
                    change
                else {
                    continue;
                };
                let position = found.header.position + 1 + first;
                let name = Name { inode, block };
                let piece = Piece { position, count: blocks, name, offset: 0, record, first };
                pieces[self.shards().index_of(inode) as usize].push(piece);
                first += blocks;
            }
        }
        Ok(pieces)
    }

    /// Returns the live parts of these pieces, which are of files of this shard.
    fn live_here(&self, zone: u32, pieces: Vec<Piece<Name>>) -> Result<Vec<Piece<Name>>> {
        let (mut live, metadata) = (Vec::new(), self.metadata.borrow());
        for piece in pieces {
            let (Name { inode, block }, place) = (piece.name, ZoneBlock::new(zone, piece.position));
            let range = (block, piece.count);
            metadata.snapshots.visit_at_any(&metadata.items, inode, range, place, |from, count| {
                let skipped = (from - block) as u32;
                let position = piece.position + skipped;
                let name = Name { inode, block: from };
                live.push(Piece { position, count, name, first: piece.first + skipped, ..piece });
            })?;
        }
        Ok(live)
    }

    /// Makes the appends of this shard durable.
    async fn flush_own(&self) -> Result<()> {
        let flushed = self.kit.flush().await;
        if let Err(error) = &flushed {
            // Writes before the failed flush may be lost even if a later flush succeeds.
            self.fail(&error.in_context("making files durable"));
        }
        flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_system::FileSystem;
    use crate::{Properties, Settings};
    use std::time::Duration;

    /// Zones that can't be finished stay open on the drive, so fewer may be open than the movers of both
    /// shards and one lane hold.
    #[test]
    fn idle_movers_of_all_shards_seal_their_zones_for_a_lane_that_finds_none() {
        let main = || async {
            let shape = zns::Shape { zones: 400, seed: Some(5), ..Default::default() };
            let limits = zns::Settings { max_open: 7, max_active: 7, ..Default::default() };
            let zones = Arc::new(zns::Zns::in_memory(&shape, limits).expect("zones"));
            let files = FileSystem::format(zones, Properties::default(), &Settings::default()).await?;
            let file = files.create("/file").await?;
            let data = || Data::copy_of(&[7; 4096]);
            file.write_at(0, data()).await?;
            files.sync().await?;
            assert_eq!(files.shards().all().len(), 2);
            for core in files.shards().all() {
                let moved = move |core: Rc<Core>| async move {
                    // Of a block that is elsewhere: it takes no effect.
                    let from = ZoneBlock::new(63, 1);
                    let change =
                        Change::Move { inode: crate::metadata::inode::ROOT, block: 0, blocks: 1, from };
                    core.moves.append(&core, 0, std::iter::once(entry_of_move((change, data())))).await?;
                    core.kit.budget().lose();
                    Ok(())
                };
                core.with(moved).await?;
            }
            let works = async {
                for number in 0..4 {
                    let file = files.create(&format!("/{number}")).await?;
                    file.write_at(0, data()).await?;
                    files.sync().await?;
                }
                files.close().await
            };
            runtime::timeout(Duration::from_secs(10), works).await.expect("it goes on")
        };
        let world = runtime::Simulation { trace_lines: 0, ..runtime::Simulation::new(7) }.with_shards(2);
        runtime::simulate(world, main)
            .expect("the world runs")
            .value
            .unwrap_or_else(|error: Error| panic!("{error}"));
    }
}
