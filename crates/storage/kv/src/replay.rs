//! Replay of the log over the newest checkpoint: the manifests of all shards, and the writes that aren't in
//! tables. Writes nothing.

use crate::erasure::Found as FoundPromise;
use crate::key_version::Sequence;
use crate::log_entry::{Recorded, decode_parts};
use crate::staged_block::{self, Division};
use crate::tree::extents::{Extent, place};
use crate::tree::manifest::{Edit, Manifest, State, table_stream, write_stream};
use block::{Buffer, Error, Result, ZoneBlock, Zones};
use logkit::recovery::{self, Goal, Opening};
use logkit::scan::{self, Found};
use logkit::{Layout, StreamId};
use smallvec::SmallVec;

/// Name of the owner in a root.
pub const OWNER: [u8; 8] = *b"kv      ";

/// State of a shard from the medium, or of a new shard.
pub struct RecoveredShard {
    /// Manifest of the shard.
    pub manifest: Manifest,
    /// Writes after those in tables, in the order of the log.
    pub writes: Vec<ReplayedWrites>,
    /// Writes after those of the log, which were staged: each with the encoded writes of an entry.
    pub staged: Vec<Vec<u8>>,
    /// Unreadable parts of the shard, with [`Goal::Salvage`].
    pub lost: Vec<String>,
    /// Whether unreadable parts have writes that are in no table: the sequence of the last one is unknown.
    pub has_lost_writes: bool,
}

/// An entry of writes from the log.
pub struct ReplayedWrites {
    /// Encoded writes of this shard.
    pub bytes: Vec<u8>,
    /// Zones of the entry's records.
    pub zones: SmallVec<[u32; 2]>,
    /// Number of the entry's first record.
    pub first: u64,
    /// Number of the entry's last record.
    pub record: u64,
}

/// State of the store after replay.
pub(crate) struct Replayed {
    /// State of each shard.
    pub shards: Vec<RecoveredShard>,
    /// Recovered state of persistent deletes.
    pub promise: FoundPromise,
    /// Clock of the log after the last record.
    pub clock: u64,
    /// Whether the staging area has anything to erase.
    pub is_staging_used: bool,
}

/// Finds the store on these zones and replays its records. Writes nothing.
///
/// # Errors
/// As [`open`](crate::recovery::open).
pub(crate) async fn replay_all(zones: &dyn Zones, goal: Goal) -> Result<(Opening<Found>, Replayed)> {
    let mut opening: Opening<Found> = recovery::open(zones, OWNER, goal).await?;
    let State { shards, stale, clock: shown, resets } = State::decode(&opening.own)?;
    recovery::check_streams(&opening.root, 2 * shards.len())?;
    let mut found: Vec<RecoveredShard> = Vec::new();
    let mut clock = opening.root.clock;
    for (shard, manifest) in (0..).zip(shards) {
        found.push(replay(zones, &opening, (shard, manifest), &mut clock, goal).await?);
    }
    let area = read_staging(zones, goal, &mut opening.lost).await?;
    if let Some(area) = &area {
        let added = add_staged(area.filled(), &mut opening, &mut found);
        goal.tolerate(added, &mut opening.lost)?;
    }
    if let Some(first) = found.first_mut() {
        first.lost.splice(0..0, std::mem::take(&mut opening.lost));
    }
    let operations = found.iter().map(|shard: &RecoveredShard| shard.manifest.flushed.sequence).sum();
    let promise = FoundPromise { operations, stale, unlisted: Vec::new(), clock: shown, resets };
    let is_staging_used = area.is_some_and(|area| area.filled().iter().any(|byte| *byte != 0));
    Ok((opening, Replayed { shards: found, promise, clock, is_staging_used }))
}

/// Reads the staging area; `None` if the zones have none.
async fn read_staging(zones: &dyn Zones, goal: Goal, lost: &mut Vec<String>) -> Result<Option<Buffer>> {
    match zones.staging() {
        Some(staging) => goal.tolerate(staging.read().await, lost),
        None => Ok(None),
    }
}

/// Adds the staged writes that follow those of the log.
fn add_staged(area: &[u8], opening: &mut Opening<Found>, found: &mut [RecoveredShard]) -> Result<()> {
    let Some(division) = Division::new(area.len() as u64, found.len() as u16) else { return Ok(()) };
    let (uuid, epoch) = (opening.root.identity.uuid.into_bytes(), opening.root.epoch);
    for (shard, found) in (0..).zip(found) {
        let begin = division.place(shard, 0).start as usize;
        let part = &area[begin..begin + division.part() as usize];
        if found.has_lost_writes {
            // The writes that follow those of the log aren't known then.
            let is_used = part.iter().any(|byte| *byte != 0);
            found.lost.extend(is_used.then(|| {
                format!("staged writes of shard {shard}: the writes of the log before them are damaged")
            }));
            continue;
        }
        let last = last_write(shard, found)?;
        let staged = staged_block::recover(part, division, (uuid, epoch, shard), last)?;
        if let Some((last, next)) = staged.gap {
            opening.notes.push(format!(
                "shard {shard}: staged writes from number {next} on are dropped, since the log and the staging area end with number {last}: \
                 a power cut leaves such a gap, and so does damage of the medium"
            ));
        }
        found.staged = staged.entries;
    }
    Ok(())
}

/// Sequence of a shard's last write in the log.
fn last_write(shard: u16, found: &RecoveredShard) -> Result<Sequence> {
    let flushed = found.manifest.flushed.sequence;
    found.writes.iter().try_fold(flushed, |last, replayed| {
        let count = staged_block::count(&replayed.bytes)?;
        last.checked_add(count).ok_or_else(|| {
            Error::corrupt(format!(
                "shard {shard}: record {} has {count} writes after number {last}; expected numbers below 2^64",
                replayed.record
            ))
        })
    })
}

/// Bytes that are divided among several records, until they are complete.
#[derive(Default)]
struct Assembly {
    bytes: Vec<u8>,
    length: usize,
    zones: SmallVec<[u32; 2]>,
    /// Number of the record with the first part.
    first: u64,
    /// Zone and block of a damaged block in one of the parts.
    damaged: Option<(u32, u32)>,
}

impl Assembly {
    /// Adds a part; returns the complete bytes with their zones once the last part is added.
    fn add(
        &mut self,
        part: &[u8],
        offset: u32,
        length: u32,
        (zone, record): (u32, u64),
        damaged: Option<(u32, u32)>,
    ) -> Option<Assembly> {
        if offset == 0 && part.len() >= length as usize {
            // A record of another shard may be between two parts.
            let (bytes, zones) = (part[..length as usize].to_vec(), SmallVec::from_slice(&[zone]));
            return Some(Assembly { bytes, length: length as usize, zones, first: record, damaged });
        }
        if offset == 0 {
            *self = Assembly { length: length as usize, first: record, ..Assembly::default() };
        }
        if offset as usize != self.bytes.len() || length as usize != self.length {
            // Earlier parts were refused, so this part has no effect.
            *self = Assembly::default();
            return None;
        }
        let missing = self.length - self.bytes.len();
        self.bytes.extend_from_slice(&part[..part.len().min(missing)]);
        self.damaged = self.damaged.or(damaged);
        if !self.zones.contains(&zone) {
            self.zones.push(zone);
        }
        (self.bytes.len() == self.length).then(|| std::mem::take(self))
    }
}

/// First damaged block in a range of a zone.
fn damaged_in(damaged: &[(u32, u32)], zone: u32, position: u32, blocks: u32) -> Option<(u32, u32)> {
    let first = damaged[damaged.partition_point(|at| *at < (zone, position))..].first().copied();
    first.filter(|at| *at < (zone, position + blocks))
}

/// Error for a durable record with damaged contents. Without the error, reads would return older values or
/// deleted keys.
fn gone(shard: u16, number: u64, what: &str, (zone, position): (u32, u32)) -> Error {
    Error::corrupt(format!(
        "block {position} of zone {zone} is damaged: it has a part of record {number} of shard {shard}, with {what}; restore the store \
         from a backup, or copy what can be read with the key salvage"
    ))
}

/// Replays the records of a shard over its manifest.
async fn replay(
    zones: &dyn Zones,
    opening: &Opening<Found>,
    (shard, manifest): (u16, Manifest),
    clock: &mut u64,
    goal: Goal,
) -> Result<RecoveredShard> {
    let mut records = own_records(opening, shard);
    recovery::sort_for_replay(&mut records, write_stream(shard));
    let mut replay = Replay {
        zones,
        opening,
        shard,
        goal,
        manifest,
        written: Assembly::default(),
        edited: Assembly::default(),
        writes: Vec::new(),
        damaged_writes: Vec::new(),
        has_lost_writes: false,
        lost: Vec::new(),
    };
    for record in &records {
        let mut position = record.header.position + 1;
        let entries = goal.tolerate(Recorded::decode_all(record), &mut replay.lost)?;
        replay.has_lost_writes |= entries.is_none();
        for entry in entries.unwrap_or_default() {
            let blocks = entry.blocks();
            *clock += u64::from(blocks);
            replay.entry(record, position, entry).await?;
            position += blocks;
        }
    }
    replay.finish()
}

/// Records of a shard that aren't covered by the checkpoint.
fn own_records(opening: &Opening<Found>, shard: u16) -> Vec<Found> {
    let (users, tables) = (write_stream(shard), table_stream(shard));
    let is_own = |record: &&Found| {
        let is_after = |stream: StreamId| {
            let covered = opening.root.covered.of(stream);
            recovery::number_in(*record, stream).is_some_and(|number| number > covered)
        };
        record.header.stream == tables && is_after(tables) || is_after(users)
    };
    opening.records.iter().filter(is_own).cloned().collect()
}

/// Replay of one shard: the entries of its records in the order of the log.
struct Replay<'a> {
    zones: &'a dyn Zones,
    opening: &'a Opening<Found>,
    shard: u16,
    goal: Goal,
    manifest: Manifest,
    /// Incomplete writes, and an incomplete edit.
    written: Assembly,
    edited: Assembly,
    writes: Vec<ReplayedWrites>,
    /// Records whose writes are damaged, each with a damaged block.
    damaged_writes: Vec<(u64, (u32, u32))>,
    /// Whether writes in the records can't be decoded.
    has_lost_writes: bool,
    lost: Vec<String>,
}

impl Replay<'_> {
    /// Replays an entry whose data begins at this block of the record's zone.
    async fn entry(&mut self, record: &Found, position: u32, entry: Recorded) -> Result<()> {
        let zone = record.header.zone;
        match entry {
            Recorded::Piece { table, first, blocks, from } => {
                let run = Extent { first, blocks, place: ZoneBlock::new(zone, position) };
                self.manifest.next_table = self.manifest.next_table.max(table + 1);
                // An edit refers to pieces that were written before it.
                if let Some(known) = self.manifest.tables.iter_mut().find(|known| known.id == table) {
                    place(&mut known.extents, run, from, |_, _| {});
                }
                Ok(())
            }
            Recorded::Body { is_edit, length, offset, inline, blocks } => {
                let part = match inline {
                    Some(inline) => Ok(inline),
                    None => scan::read(self.zones, &self.opening.layout, zone, position, blocks).await,
                };
                let mut damaged = damaged_in(&self.opening.damaged, zone, position, blocks);
                let part = self.goal.tolerate(part, &mut self.lost)?.unwrap_or_else(|| {
                    damaged = damaged.or(Some((zone, position)));
                    vec![0; length as usize]
                });
                let (stream, assembly) = match is_edit {
                    true => (table_stream(self.shard), &mut self.edited),
                    false => (write_stream(self.shard), &mut self.written),
                };
                let number = recovery::number_in(record, stream)
                    .ok_or_else(|| Error::corrupt("an entry in a record of another stream"))?;
                match assembly.add(&part, offset, length, (zone, number), damaged) {
                    Some(whole) if is_edit => self.edit(number, &whole),
                    Some(whole) => self.writes_of(number, whole),
                    None => Ok(()),
                }
            }
        }
    }

    /// Applies a complete edit of the manifest.
    fn edit(&mut self, number: u64, whole: &Assembly) -> Result<()> {
        let edit = match whole.damaged {
            Some(at) => Err(gone(self.shard, number, "the list of tables", at)),
            None => Edit::decode(&whole.bytes),
        };
        if let Some(edit) = self.goal.tolerate(edit, &mut self.lost)? {
            self.manifest.apply(edit);
        }
        Ok(())
    }

    /// Keeps this shard's part of complete writes.
    fn writes_of(&mut self, number: u64, whole: Assembly) -> Result<()> {
        if let Some(at) = whole.damaged {
            // Writes of the damaged record may be in tables already.
            self.damaged_writes.push((number, at));
            return Ok(());
        }
        let (first, record) = (whole.first, number);
        let decoded = decode_parts(&whole.bytes, |part| {
            if part.shard == self.shard {
                let (bytes, zones) = (part.bytes.to_vec(), whole.zones.clone());
                self.writes.push(ReplayedWrites { bytes, zones, first, record });
            }
            Ok(())
        });
        let decoded = self.goal.tolerate(decoded, &mut self.lost)?;
        self.has_lost_writes |= decoded.is_none();
        Ok(())
    }

    /// Drops what is in tables already, and counts the blocks of all tables as live.
    fn finish(mut self) -> Result<RecoveredShard> {
        let Replay { shard, goal, opening, .. } = self;
        let flushed = self.manifest.flushed.record;
        for (number, at) in self.damaged_writes.iter().filter(|(number, _)| *number > flushed) {
            let is_gone = gone(shard, *number, "writes, whose keys are unknown", *at);
            goal.tolerate(Err::<(), _>(is_gone), &mut self.lost)?;
            self.has_lost_writes = true;
        }
        let mut accounts = opening.pool.accounts();
        for table in std::mem::take(&mut self.manifest.tables) {
            let checked =
                table.extents.iter().try_for_each(|extent| check_extent(shard, extent, &opening.layout));
            if goal.tolerate(checked, &mut self.lost)?.is_some() {
                let live = |extent: &Extent| accounts.add_live(extent.place.zone.0, extent.blocks);
                table.extents.iter().for_each(live);
                self.manifest.tables.push(table);
            }
        }
        self.writes.retain(|replayed| replayed.record > flushed);
        Ok(RecoveredShard {
            manifest: self.manifest,
            writes: self.writes,
            staged: Vec::new(),
            lost: self.lost,
            has_lost_writes: self.has_lost_writes,
        })
    }
}

/// Refuses blocks of a table outside the zones.
fn check_extent(shard: u16, extent: &Extent, layout: &Layout) -> Result<()> {
    let end = extent.place.block.checked_add(extent.blocks);
    match extent.place.zone.0 < layout.zones && end.is_some_and(|end| end <= layout.zone_blocks) {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "the manifest of shard {shard} names blocks outside the zones: {extent:?}"
        ))),
    }
}
