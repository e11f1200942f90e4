//! The log device as an owner of the kit: commits, cleaning, flushes and resets.

use super::Core;
use crate::entry::LogEntry;
use crate::format::{Change, VersionId};
use crate::map::{Map, Physical};
use crate::versions::Effect;
use block::{Data, Error, Payload, Result, ZoneBlock, ZoneIndex};
use logkit::{Appender, Joint, Kit, Mover, Owner, Piece, Victim, reset};
use std::rc::Rc;
use std::sync::Arc;

/// Name of live data in a zone: the first block of a change in a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    version: VersionId,
    block: u64,
}

impl Owner for Core {
    type Entry = LogEntry;
    type Name = Name;

    #[inline]
    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    #[inline]
    fn appender(&self) -> &Appender<LogEntry> {
        &self.appender
    }

    fn commit(&self, entries: &[LogEntry], zone: u32, position: u32) {
        self.commit_entries(entries, ZoneBlock { zone: ZoneIndex(zone), block: position });
    }

    fn refuse(&self, entry: &LogEntry, error: &Error) {
        self.complete(entry, Err(error.clone()));
    }

    fn answer(&self, entry: &mut LogEntry, error: &Error) {
        self.admission.answer(entry, error);
    }

    fn cut(&self, entry: &mut LogEntry, blocks: u32) -> LogEntry {
        let bytes = (blocks as usize) << self.layout.block_size.shift();
        let payload = entry.payload.slice(0..bytes);
        entry.payload = entry.payload.slice(bytes..entry.payload.len());
        let growth = entry.growth.min(blocks);
        entry.growth -= growth;
        let change = entry.change.cut(blocks);
        self.admission.was_cut(entry);
        LogEntry { change, payload, request: entry.request, growth, joins: 0, ticket: entry.ticket }
    }

    fn has_pieces(&self) -> bool {
        !self.versions.borrow().dying.is_empty()
    }

    fn free_piece(&self) -> bool {
        if !self.has_pieces() {
            return false;
        }
        let mut versions = self.versions.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        let mut died = false;
        let any = versions.release(self.settings.blocks_at_once, &mut |physical| {
            self.account(&mut accounts, Effect::Dead(physical, 1));
            died = true;
        });
        drop((versions, accounts));
        if died && self.kit.is_stuck() {
            self.kit.look_again();
        }
        any
    }

    fn checkpoint_cost(&self) -> u64 {
        self.pages_cost()
    }

    fn checkpoint_zones(&self) -> u32 {
        self.zones_for_checkpoint()
    }

    fn space_advice(&self) -> &'static str {
        "discard some data, or delete snapshots"
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        self.write_checkpoint(clean).await
    }

    /// Makes the appends of all shards durable.
    async fn flush_all(&self) -> Result<()> {
        self.kit.flush().await?;
        self.peers.each_other(|core: Rc<Core>| async move { core.kit.flush().await }).await.map(drop)
    }

    fn share(&self, joint: &Arc<Joint>, entries: &[LogEntry], zone: u32, position: u32) {
        self.pass_on(joint, entries, zone, position);
    }

    async fn free_dead(self: &Rc<Self>) -> Result<()> {
        match self.peers.index() {
            0 => reset::free_dead(self).await,
            _ => self.peers.first().with(|core: Rc<Core>| async move { reset::free_dead(&core).await }).await,
        }
    }

    async fn seal_idle_movers(&self) {
        self.moves.seal_idle(self).await;
    }

    async fn prepare_reset(self: &Rc<Self>) -> Result<()> {
        match &self.home {
            Some(home) => home.clone().demand(self.clone()).await,
            None => Ok(()),
        }
    }

    async fn grace(&self) -> Result<()> {
        let graces = self.begin_graces();
        let of_others =
            self.peers.each_other(|core: Rc<Core>| async move { Ok(core.begin_graces()) }).await?;
        self.kit.readers.grace().await?;
        graces.into_iter().for_each(|(map, grace)| map.end_grace(grace));
        self.end_graces(of_others).await
    }

    /// Moves exclude checkpoints while several versions exist: the pages of two versions could name different
    /// locations of the same block, and recovery couldn't detect that it is one block.
    fn moves_exclude_checkpoints(&self) -> bool {
        self.versions.borrow().list.len() > 1
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<Name>>> {
        let mut pieces: Vec<Vec<Piece<Name>>> = (0..self.peers.count()).map(|_| Vec::new()).collect();
        for (record, found) in victim.records().iter().enumerate() {
            let mut first = 0;
            for change in Change::decode_all(&found.meta)? {
                let (Change::Write { version, block, count } | Change::Move { version, block, count, .. }) =
                    change
                else {
                    continue;
                };
                let position = found.header.position + 1 + first;
                let name = Name { version, block };
                let whole = Piece { position, count, name, offset: 0, record, first };
                pieces[self.layout.stripes.shard_of(block) as usize].push(whole);
                first += count;
            }
        }
        let zone = victim.zone();
        if self.peers.is_alone() {
            return Ok(self.live_here(zone, &pieces[0]));
        }
        let mut live = Vec::new();
        for (home, pieces) in self.peers.homes().iter().zip(pieces) {
            if !pieces.is_empty() {
                let find = move |core: Rc<Core>| async move { Ok(core.live_here(zone, &pieces)) };
                live.extend(home.with(find).await?);
            }
        }
        Ok(live)
    }

    /// Blocks of other shards are visited even if they have died meanwhile: their shard omits them
    /// ([`relocate`](Self::relocate)).
    fn still_live(&self, victim: &Victim, piece: &Piece<Name>, visit: &mut dyn FnMut(u32, u32)) {
        let block = piece.name.block + u64::from(piece.offset);
        if self.layout.stripes.shard_of(block) != self.peers.index() {
            return visit(0, piece.count);
        }
        let at = self.place(victim.zone(), piece.position);
        self.versions.borrow().live(block, u64::from(piece.count), at, &mut |offset, length| {
            visit(offset as u32, length as u32);
        });
    }

    /// Moves pieces in the order of the volume, each on the shard that has it.
    async fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        mut pieces: Vec<(Piece<Name>, Data)>,
        mover: &mut Mover,
    ) -> Result<()> {
        pieces.sort_by_key(|(piece, _)| (piece.name.version, piece.name.block + u64::from(piece.offset)));
        let entry = |(piece, data): (Piece<Name>, Data)| {
            let from = self.place(victim.zone(), piece.position);
            let block = piece.name.block + u64::from(piece.offset);
            (Change::Move { version: piece.name.version, block, count: piece.count, from }, data)
        };
        if self.peers.is_alone() {
            return mover.append(self, class, pieces.into_iter().map(entry).map(entry_of_move)).await;
        }
        let mut moves: Vec<Vec<(Change, Data)>> = (0..self.peers.count()).map(|_| Vec::new()).collect();
        for (change, data) in pieces.into_iter().map(entry) {
            let shard = change.first_block().map_or(0, |block| self.layout.stripes.shard_of(block));
            moves[shard as usize].push((change, data));
        }
        for (index, moves) in (0..).zip(moves) {
            if index == self.peers.index() {
                mover.append(self, class, moves.into_iter().map(entry_of_move)).await?;
            } else if !moves.is_empty() {
                self.kit.pace.moved(moves.iter().map(|(change, _)| change.data_blocks()).sum());
                let work = self.peers.homes()[index as usize]
                    .with(move |core: Rc<Core>| async move { core.move_here(class, moves).await });
                mover.meanwhile(&**self, work).await?;
            }
        }
        Ok(())
    }
}

fn entry_of_move((change, data): (Change, Data)) -> LogEntry {
    LogEntry { change, payload: Payload::from(data), request: None, growth: 0, joins: 0, ticket: 0 }
}

/// Grace periods that were begun, by map.
type Graces = Vec<(Arc<dyn Map>, u64)>;

impl Core {
    /// Begins a grace period of the maps of this shard.
    fn begin_graces(&self) -> Graces {
        let maps: Vec<_> = self.versions.borrow().list.iter().map(|version| version.map.clone()).collect();
        maps.into_iter().map(|map| (map.clone(), map.begin_grace())).collect()
    }

    /// Ends grace periods of the other shards' maps, each on its shard, which changes the map.
    async fn end_graces(&self, graces: Vec<Graces>) -> Result<()> {
        let others = self.peers.homes().iter().skip(1);
        for (home, graces) in others.zip(graces) {
            home.with(|_| async move {
                graces.into_iter().for_each(|(map, grace)| map.end_grace(grace));
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Returns the location of a block of a zone.
    fn place(&self, zone: u32, block: u32) -> Physical {
        self.layout.physical(ZoneBlock { zone: ZoneIndex(zone), block })
    }

    /// Returns the live parts of these pieces of a zone, which are of blocks of this shard.
    fn live_here(&self, zone: u32, pieces: &[Piece<Name>]) -> Vec<Piece<Name>> {
        let versions = self.versions.borrow();
        let mut live = Vec::new();
        for piece in pieces {
            let (block, count) = (piece.name.block + u64::from(piece.offset), u64::from(piece.count));
            versions.live(block, count, self.place(zone, piece.position), &mut |offset, length| {
                live.push(piece.part(offset as u32, length as u32));
            });
        }
        live
    }

    /// Moves blocks of this shard for the home's cleaner, those that are still live.
    async fn move_here(self: &Rc<Self>, class: u8, moves: Vec<(Change, Data)>) -> Result<()> {
        let shift = self.layout.block_size.shift();
        let mut entries = Vec::new();
        for (change, data) in moves {
            let Change::Move { version, block, count, from } = change else { continue };
            let data = Payload::from(data);
            self.versions.borrow().live(block, u64::from(count), from, &mut |offset, length| {
                let payload = data.slice((offset as usize) << shift..((offset + length) as usize) << shift);
                let (block, from) = (block + offset, from.offset(offset));
                let change = Change::Move { version, block, count: length as u32, from };
                entries.push(LogEntry { change, payload, request: None, growth: 0, joins: 0, ticket: 0 });
            });
        }
        self.moves.append(self, class, entries).await
    }

    /// Seals the zones of the home's moves, and takes no more of them.
    pub async fn close_moves(&self) {
        self.moves.close(self).await;
    }
}
