//! A shard as an owner of the log kit: its entries take effect when their records commit, and the cleaner
//! finds and moves the live blocks of its tables.
//!
//! The cleaner runs on the home. It requests the live blocks of tables from each shard, and each shard
//! appends the moves of its own blocks.

use super::{Core, add};
use crate::broken::if_broken;
use crate::core::table_zones::Move;
use crate::log_entry::{EntryContent, KvEntry, Part, Recorded, decode_parts, encode_parts};
use crate::memory::buffer::Flushed;
use crate::tree::manifest::{Edit, TableId, shard_of, table_stream, write_stream};
use crate::tree::tables::{Table, TableFile};
use block::{Data, EraseGuarantee, Error, Result, ZoneBlock};
use logkit::{Appender, Entry, Joint, Kit, Mover, Owner, Piece, Victim, count, lane, reset};
use runtime::Home;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Identity of a live block in a zone: shard, table and block of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    shard: u16,
    table: TableId,
    block: u32,
}

impl Core {
    /// Applies an edit of the manifest.
    fn commit_edit(&self, edit: &Edit, added: &[Rc<TableFile>]) {
        let mut tables: Vec<Rc<Table>> = self.tables.levels().all().cloned().collect();
        let mut moved: Vec<Rc<Table>> = Vec::new();
        tables.retain(|table| {
            let is_removed = edit.removed.contains(&table.meta.id);
            if is_removed {
                moved.push(table.clone());
            }
            !is_removed
        });
        for meta in &edit.added {
            let known = added.iter().find(|file| file.id == meta.id).cloned();
            let file = known
                .or_else(|| moved.iter().find(|table| table.meta.id == meta.id).map(|it| it.file.clone()));
            let file = file.expect("an edit adds tables that were written, or are in another level");
            tables.push(self.tables.table(meta.clone(), file));
        }
        let is_kept = |id: TableId| edit.added.iter().any(|added| added.id == id);
        let died = || moved.iter().filter(|table| !is_kept(table.meta.id));
        if self.erasure.limit().is_some() {
            self.set_dues(&self.tables.levels(), died());
        }
        self.set_levels(tables);
        if let Some(flushed) = edit.flushed {
            self.buffers.release(flushed, self.kit.clock());
            self.note_unwritten(0);
        }
        let now = self.erasure.now();
        died().for_each(|table| self.table_zones.died(table.meta.level, table.meta.created, now));
        self.events.changed.notify_all();
        self.kit.events.cleaner.notify_all();
    }

    /// Returns the parts of a zone's pieces that are live blocks of this shard's tables.
    fn live_here(&self, zone: u32, mut pieces: Vec<Piece<Name>>) -> Vec<Piece<Name>> {
        let mut live = Vec::new();
        for piece in pieces.drain(..) {
            if let Some(file) = self.tables.file(piece.name.table) {
                live_parts(&file, zone, &piece, |from, blocks| live.push(piece.part(from, blocks)));
            }
        }
        live
    }

    /// Returns this shard's state for a checkpoint, taken without an await.
    pub(crate) fn cut(&self) -> Cut {
        let tables = self.tables.levels().all().map(|table| table.present_meta()).collect();
        if self.is_all_in_tables() {
            // Includes records without writes after the last flush. Later checkpoints cover them also.
            let record = self.commit.appender.committed(write_stream(self.peers.shard));
            self.buffers.note_flushed(Flushed { record, sequence: self.buffers.sequence() }, record);
        }
        let (flushed, writes) = (self.buffers.flushed(), self.buffers.covered());
        let manifest = crate::tree::manifest::Manifest { tables, flushed, next_table: self.tables.next() };
        Cut { manifest, writes, tables: self.commit.appender.committed(table_stream(self.peers.shard)) }
    }

    /// Whether all committed or acknowledged writes are in tables.
    fn is_all_in_tables(&self) -> bool {
        if_broken!(CoversBuffers, return true);
        self.buffers.is_empty() && self.commit.is_complete()
    }
}

/// State of a shard for a checkpoint.
pub(crate) struct Cut {
    pub manifest: crate::tree::manifest::Manifest,
    /// Last record of the stream of users that replay over the manifest doesn't need.
    pub writes: u64,
    /// Last record of the stream of tables whose effect the manifest includes.
    pub tables: u64,
}

/// Visits the live parts of a piece: offset in the piece, and number of blocks.
fn live_parts(file: &TableFile, zone: u32, piece: &Piece<Name>, mut visit: impl FnMut(u32, u32)) {
    let (first, place) = (piece.name.block + piece.offset, ZoneBlock::new(zone, piece.position));
    file.in_zone(zone, |extent| {
        let (begin, end) = (extent.first.max(first), extent.end().min(first + piece.count));
        if begin < end && extent.place.after(begin - extent.first) == place.after(begin - first) {
            visit(begin - first, end - begin);
        }
    });
}

impl Owner for Core {
    type Entry = KvEntry;
    type Name = Name;

    #[inline]
    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    #[inline]
    fn appender(&self) -> &Appender<KvEntry> {
        &self.commit.appender
    }

    fn commit(&self, log_entries: &[KvEntry], zone: u32, position: u32) {
        let mut place = ZoneBlock::new(zone, position);
        let mut user_blocks = 0;
        for log_entry in log_entries {
            let blocks = log_entry.blocks();
            match &log_entry.content {
                EntryContent::Writes { .. } | EntryContent::WritesPart { .. } | EntryContent::Shared => {
                    user_blocks += u64::from(blocks);
                    let outcome = self.commit_writes(log_entry, zone);
                    let refused =
                        Err(Error::no_space("a part of the writes found no space; discard some data"));
                    if let Err(error) = &outcome {
                        self.fail(error);
                    }
                    let outcome = if log_entry.body.is_refused.get() { refused } else { outcome };
                    self.end(log_entry, &outcome);
                }
                EntryContent::Piece { table, first, from } => {
                    let moved = from.is_some();
                    if moved && self.erasure.limit().is_some() {
                        let levels = self.tables.levels();
                        self.set_dues(&levels, levels.all().filter(|live| live.meta.id == table.id));
                    }
                    table.written(*first, blocks, *from, place);
                    let bytes = u64::from(blocks) * self.kit.layout.block_size.bytes();
                    if moved {
                        add(&self.work.moved_bytes, bytes);
                        count(&self.kit.counters.moved_blocks, blocks.into());
                    } else {
                        user_blocks += u64::from(blocks);
                    }
                }
                EntryContent::Edit(edit) if log_entry.is_last_part() => self.commit_edit(&edit.0, &edit.1),
                EntryContent::Edit(_) | EntryContent::EditPart => {}
            }
            place = place.after(blocks);
        }
        if log_entries
            .iter()
            .any(|log_entry| matches!(log_entry.content, EntryContent::Writes { .. } | EntryContent::Shared))
        {
            self.note_unwritten(0);
            self.freeze_if_full();
            self.freeze_if_wasteful();
            self.freeze_for_puts();
            if self.buffers.take_new_zone() {
                // With fewer free zones, another compaction may be due.
                self.events.changed.notify_all();
            }
        }
        self.kit.note_user_blocks(user_blocks);
        self.kit.events.committed.notify_all();
        if self.kit.is_stuck() {
            self.kit.look_again();
        }
    }

    fn refuse(&self, log_entry: &KvEntry, error: &Error) {
        log_entry.body.is_refused.set(true);
        if log_entry.is_part() {
            // The rest of the entry isn't written, so replay never finds it complete.
            self.commit.forget_parts(log_entry);
        }
        self.end(log_entry, &Err(error.clone()));
    }

    fn answer(&self, log_entry: &mut KvEntry, error: &Error) {
        if let EntryContent::Writes { requests, .. } = &mut log_entry.content {
            let outcome = Err(error.clone());
            requests.drain(..).for_each(|request| self.commit.requests.item_ended(request, &outcome));
        }
    }

    fn cut(&self, log_entry: &mut KvEntry, blocks: u32) -> KvEntry {
        log_entry.cut(blocks)
    }

    fn share(&self, joint: &Arc<Joint>, log_entries: &[KvEntry], zone: u32, position: u32) {
        for (stream, _) in
            joint.members().iter().filter(|(stream, _)| *stream != write_stream(self.peers.shard))
        {
            let shard = shard_of(*stream);
            let mut body = None;
            for log_entry in log_entries {
                let found = decode_parts(&log_entry.body.bytes, |part| {
                    if part.shard == shard {
                        body = Some(encode_parts([Part { shard, bytes: part.bytes }].into_iter()));
                    }
                    Ok(())
                });
                debug_assert!(found.is_ok(), "it was encoded here");
            }
            let joint = joint.clone();
            let (here, there) = (self.peers.at(self.peers.shard), self.peers.at(shard));
            let deliver = move |core: Rc<Core>| async move {
                let log_entries = body.into_iter().map(KvEntry::shared).collect();
                lane::joint_written(&*core, joint, log_entries, zone, position);
                Ok(())
            };
            let task = async move {
                if let Err(error) = there.with(deliver).await {
                    let fail = move |core: Rc<Core>| async move {
                        core.fail(&error);
                        Ok(())
                    };
                    // A failure here means that the log has ended there also.
                    let _ended = here.with(fail).await;
                }
            };
            self.kit.tasks.spawn(task).detach();
        }
    }

    fn before_append(&self, zone: u32, generation: u64, log_entries: &[KvEntry]) {
        let has_edit = log_entries
            .iter()
            .any(|log_entry| matches!(log_entry.content, EntryContent::Edit(_) | EntryContent::EditPart));
        self.note_append(zone, generation, has_edit);
    }

    fn erase(&self) -> EraseGuarantee {
        self.erasure.guarantee()
    }

    fn checkpoint_cost(&self) -> u64 {
        let space = &self.peers.space;
        self.kit.layout.blocks_in(space.manifest_bytes()) + space.directory.load(Ordering::Relaxed) + 2
    }

    fn checkpoint_zones(&self) -> u32 {
        let per_zone = u64::from(self.kit.layout.zone_blocks - 3).max(1);
        (self.checkpoint_cost() * 5 / 4).div_ceil(per_zone) as u32 + 1
    }

    fn kept_zones(&self) -> u32 {
        self.kept_by_records() + self.zones_of_jobs()
    }

    fn kept_by_records(&self) -> u32 {
        self.kit.settings.cleaner_reserve + self.checkpoint_zones()
    }

    fn freeing_zones(&self) -> u32 {
        self.kept_by_deletes()
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        self.write_checkpoint(clean).await
    }

    async fn flush_all(&self) -> Result<()> {
        let homes = self.peers.homes();
        for home in homes {
            home.with(|core: Rc<Core>| async move { core.kit.flush().await }).await?;
        }
        Ok(())
    }

    async fn free_dead(self: &Rc<Self>) -> Result<()> {
        self.peers.at(0).with(|core: Rc<Core>| async move { reset::free_dead(&core).await }).await
    }

    /// A task that appends holds the permit, also between two appends: it may have looked for space in an
    /// open zone.
    async fn seal_idle_movers(&self) {
        let _permit = self.table_zones.permit().await;
        self.seal_asked_zones().await;
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<Name>>> {
        let mut pieces: Vec<Vec<Piece<Name>>> = vec![Vec::new(); usize::from(self.peers.shards)];
        for (number, record) in victim.records().iter().enumerate() {
            let shard = shard_of(record.header.stream);
            let mut at = 0;
            for recorded in Recorded::decode_all(record)? {
                if let Recorded::Piece { table, first, blocks, .. } = recorded {
                    let name = Name { shard, table, block: first };
                    let position = record.header.position + 1 + at;
                    let piece = Piece { position, count: blocks, name, offset: 0, record: number, first: at };
                    let own = pieces.get_mut(usize::from(shard));
                    own.ok_or_else(|| {
                        Error::corrupt(format!("a record of shard {shard}, which isn't there"))
                    })?
                    .push(piece);
                }
                at += recorded.blocks();
            }
        }
        let (zone, mut live) = (victim.zone(), Vec::new());
        for (shard, pieces) in (0..).zip(pieces).filter(|(_, pieces)| !pieces.is_empty()) {
            let find = move |core: Rc<Core>| async move { Ok(core.live_here(zone, pieces)) };
            live.extend(self.peers.at(shard).with(find).await?);
        }
        Ok(live)
    }

    /// Blocks of other shards count as live: a move of a block that has died meanwhile has no effect.
    fn still_live(&self, victim: &Victim, piece: &Piece<Name>, visit: &mut dyn FnMut(u32, u32)) {
        if piece.name.shard != self.peers.shard {
            return visit(0, piece.count);
        }
        if let Some(file) = self.tables.file(piece.name.table) {
            live_parts(&file, victim.zone(), piece, visit);
        }
    }

    /// Tables stay in zones of their class.
    async fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        _class: u8,
        pieces: Vec<(Piece<Name>, Data)>,
        _mover: &mut Mover,
    ) -> Result<()> {
        let mut moves: Vec<Vec<Move>> = (0..self.peers.shards).map(|_| Vec::new()).collect();
        let mut blocks = 0;
        for (piece, data) in pieces {
            let from = ZoneBlock::new(victim.zone(), piece.position);
            blocks += piece.count;
            let own = moves.get_mut(usize::from(piece.name.shard));
            own.into_iter().for_each(|own| {
                own.push((piece.name.table, piece.name.block + piece.offset, from, data.clone()))
            });
        }
        self.kit.pace.moved(blocks);
        let class = victim.class();
        for (shard, moves) in (0..).zip(moves).filter(|(_, moves)| !moves.is_empty()) {
            let home: Home<Core> = self.peers.at(shard);
            home.with(move |core: Rc<Core>| core.move_here(class, moves)).await?;
        }
        Ok(())
    }

    fn space_advice(&self) -> &'static str {
        "delete some keys"
    }
}
