//! Opening a log: the newest root and its directory, and the records after the checkpoint, up to the first
//! missing one of each stream.
//!
//! A record that is missing because the power was cut before it was durable is the normal end of a log. A
//! missing record that a later one names as durable isn't: acknowledged data is lost, so the log isn't
//! opened. If only the record's data is wrong, it is part of the log: its header is replayed, and the damaged
//! blocks are reported to the owner ([`Opening::damaged`]). Records that are dropped at the end of the log
//! are reported in [`Opening::notes`].
//!
//! An offline zone whose records the checkpoint covers doesn't prevent opening; its live data can't be read.
//! Any other offline zone may hold the newest records, so the log isn't opened.
//!
//! An incomplete log can be [salvaged](Goal::Salvage): opened as far as it can be read, with a list of the
//! unreadable parts.
//!
//! An owner calls [`open`], restores its state from its part of the directory, replays the records over it,
//! and calls [`Opening::finish`]. Owners whose state is elsewhere take the same steps one by one.
//!
//! Left to the owner: its part of the directory, its pages, and replaying the records.

mod lost_parts;
mod scans;
mod tail;
#[cfg(test)]
mod tests;

pub use lost_parts::LostParts;
pub use scans::{Scans, check_closed, scan_all};
pub use tail::{Dropped, Tail};

use crate::directory::ZoneEntry;
use crate::kit::Parts;
use crate::layout::{Layout, ROOT_ZONES};
use crate::newest_checkpoint::Checkpoints;
use crate::pool::budget::drive::{BETWEEN_BUSY, MAX_BUSY, still_busy};
use crate::pool::{CHECKPOINT_CLASS, Usage, ZonePool};
use crate::record::StreamId;
use crate::record::{Identity, Relation, sum_of};
use crate::root::{self, Boundary, FoundRoot, ROOTS_AHEAD, Root, RootWriter};
use crate::scan::{self, Kept};
use crate::stream::{Sequences, Streams};
use block::{EraseGuarantee, Error, Result, ZoneIndex, ZoneReport, ZoneState, Zones};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Purpose of opening a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Goal {
    /// Normal use: opening fails unless everything that was acknowledged as durable is found, except for
    /// damaged data blocks.
    #[default]
    Serve,
    /// Copying out readable data: the parts that may be missing are listed in [`Opening::lost`]. The owner
    /// accepts no changes, and opens the log on [zones that keep changes in memory](zones::Overlay).
    Salvage,
}

impl Goal {
    /// Handles a failure that makes the log incomplete: with [`Goal::Salvage`] it is added to `lost` and
    /// `None` is returned.
    ///
    /// # Errors
    /// The error of `outcome`, unless the log is salvaged; always [`Error::OutOfMemory`] and
    /// [`Error::Closed`], which aren't failures of the medium.
    pub fn tolerate<T>(self, outcome: Result<T>, lost: &mut impl Extend<String>) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::OutOfMemory(_) | Error::Closed(_))) => Err(error),
            Err(error) if self == Goal::Salvage => {
                lost.extend([error.detail().to_owned()]);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Resets all zones for a new log, which destroys their contents, and returns their pool.
///
/// # Errors
/// Errors of resets and reservations.
pub async fn format(zones: &dyn Zones, layout: &Layout) -> Result<(ZonePool, Identity)> {
    for report in zones.report(ZoneIndex(0), layout.zones).await? {
        if report.state != ZoneState::Empty {
            zones.reset(report.zone, EraseGuarantee::None).await?;
        }
    }
    let pool = ZonePool::new(layout.zones);
    for report in &zones.report(ZoneIndex(0), layout.zones).await? {
        match report.zone.0 < ROOT_ZONES {
            true => pool.restore(report.zone.0, |entry| entry.usage = Usage::Root),
            false => pool.set_free(report.zone.0, report.generation),
        }
    }
    pool.recount();
    for zone in (0..ROOT_ZONES).map(ZoneIndex) {
        zones.reserve(zone, u64::from(ROOTS_AHEAD) << layout.block_size.shift()).await?;
    }
    Ok((pool, Identity::draw()))
}

/// Returns the parts of a new log with `streams` streams on zones that were [formatted](format()). `own` is
/// the owner's part of its roots. The owner's first checkpoint makes the log durable.
pub fn create(
    layout: Layout,
    pool: ZonePool,
    identity: Identity,
    streams: usize,
    owner: [u8; 8],
    own: Vec<u8>,
) -> Parts {
    let none = Sequences::new(&vec![0; streams]);
    let root = Root {
        owner,
        identity,
        block_size: layout.block_size,
        zone_blocks: layout.zone_blocks,
        zones: layout.zones,
        epoch: 1,
        clean: false,
        covered: none.clone(),
        checkpoint: 0,
        clock: 0,
        boundaries: Vec::new(),
        directory_length: 0,
        directory: Vec::new(),
        own,
    };
    Parts {
        layout,
        identity,
        epoch: 1,
        pool: Arc::new(pool),
        streams: Arc::new(Streams::new(&none, &none)),
        clock: 0,
        checkpoints: Checkpoints::new(root, RootWriter::first()),
    }
}

/// A log whose checkpoint and records have been read, and not replayed yet.
#[derive(Debug)]
pub struct Opening<K> {
    /// Division of the zones.
    pub layout: Layout,
    /// The newest root.
    pub root: Root,
    /// The owner's part of the directory: its state at the checkpoint.
    pub own: Vec<u8>,
    /// State of the zones. The owner adds the live blocks of its state, and changes them as it replays
    /// records.
    pub pool: Arc<ZonePool>,
    /// The records after the checkpoint, in the order of their streams and numbers.
    pub records: Vec<K>,
    /// Zones that were scanned without a summary, and unreadable ones, with their generations: an append that
    /// was cut off or failed may have left data there that no record describes. An owner that must prove
    /// erasure notes these zones like those of [`before_append`](crate::Owner::before_append). Zones that it
    /// noted before the checkpoint are in its own checkpointed state.
    pub unlisted: Vec<(u32, u64)>,
    /// Damaged data blocks of [`records`](Self::records), which differ from their checksums: zone and block,
    /// in order.
    pub damaged: Vec<(u32, u32)>,
    /// Descriptions, for operators, of the records that were dropped at the end of the log and of damage.
    pub notes: Vec<String>,
    /// Descriptions of unreadable parts that may have had acknowledged changes; only with [`Goal::Salvage`].
    pub lost: Vec<String>,
    /// Zones that were empty at the checkpoint or have been reset since, in order: data that the checkpoint
    /// names there is lost, unless a later record names its new location.
    pub reset_since: Vec<u32>,
    /// Offline zones, in order.
    pub offline: Vec<u32>,
    goal: Goal,
    found: FoundRoot,
    reports: Vec<ZoneReport>,
    end: Sequences,
}

/// Finds the log of this kind of owner on these zones: its newest checkpoint, and the later records. Nothing
/// is written.
///
/// # Errors
/// [`Error::Protocol`] if there is no log or one of another owner, [`Error::Corrupt`] for a damaged one;
/// errors of reading.
pub async fn open<K: Kept>(zones: &dyn Zones, owner: [u8; 8], goal: Goal) -> Result<Opening<K>> {
    let mut lost = Vec::new();
    let (found, directory) = newest_checkpoint(zones, owner, goal, &mut lost).await?;
    let root = found.root.clone();
    let layout = layout_of(zones, &root)?;
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    let (known, own) = crate::directory::decode(&directory)?;
    let reset_since = reset_since(&known, &reports);
    goal.tolerate(check_closed(zones, &layout, &root, &reset_since, &reports).await, &mut lost)?;
    let pool = known_zones(&layout, &root, &known, &reports);
    let offline = reports.iter().filter(|report| report.state == ZoneState::Offline);
    let mut unlisted: Vec<(u32, u64)> = offline.map(|report| (report.zone.0, report.generation)).collect();
    let offline = unlisted.iter().map(|(zone, _)| *zone).collect();
    let tail = match root.clean {
        true => Tail::clean(&root),
        false => {
            let mut scans = scan_all(zones, &layout, &root, &known, (&reports, &pool), goal).await?;
            unlisted.append(&mut scans.unlisted);
            choose(&root, scans, goal)?
        }
    };
    tail.tell();
    let notes = tail.describe();
    let Tail { records, end, damaged, lost: of_tail, .. } = tail;
    lost.extend(of_tail);
    Ok(Opening {
        layout,
        root,
        own: own.to_vec(),
        pool: Arc::new(pool),
        records,
        unlisted,
        damaged,
        notes,
        lost,
        reset_since,
        offline,
        goal,
        found,
        reports,
        end,
    })
}

/// Returns the newest root and its directory. With [`Goal::Salvage`], returns the newest root whose directory
/// can be read; later roots, with the records of their epochs, are lost.
///
/// # Errors
/// Errors of [`open`].
pub async fn newest_checkpoint(
    zones: &dyn Zones,
    owner: [u8; 8],
    goal: Goal,
    lost: &mut impl Extend<String>,
) -> Result<(FoundRoot, Vec<u8>)> {
    let of_root = async |root: &Root| {
        check_owner(root, owner)?;
        let layout = layout_of(zones, root)?;
        read_directory(zones, &layout, root).await
    };
    let newest = root::find(zones).await;
    let outcome = match &newest {
        Ok(found) => of_root(&found.root).await,
        Err(error) => Err(error.clone()),
    };
    let first = match (newest, outcome) {
        (Ok(found), Ok(directory)) => return Ok((found, directory)),
        (_, Err(error)) | (Err(error), _) => error,
    };
    if goal == Goal::Serve || !matches!(first, Error::Corrupt(_) | Error::Io(_) | Error::Invalid(_)) {
        return Err(first);
    }
    for mut found in root::newest_of(zones).await? {
        if let Ok(directory) = of_root(&found.root).await {
            lost.extend([format!(
                "the newest checkpoint can't be read ({}): what follows is by that of root {}",
                first.detail(),
                found.number
            )]);
            // Records follow this checkpoint.
            found.root.clean = false;
            return Ok((found, directory));
        }
    }
    Err(first.in_context(
        "no checkpoint of the log can be read, so that nothing can be salvaged: without a root the identity of its records is unknown, and without \
         a directory where its blocks lie; restore the disk from a copy",
    ))
}

impl<K> Opening<K> {
    /// Purpose of opening the log.
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Ends the recovery after the records were replayed: begins a new epoch, and returns the parts of the
    /// log. `clock` is the number of data blocks that users have written.
    ///
    /// # Errors
    /// Errors of [`settle`]; errors of finishing zones and writing the root.
    pub async fn finish(self, zones: &dyn Zones, clock: u64) -> Result<Parts> {
        let Opening { layout, root, pool, found, reports, end, goal, reset_since, .. } = self;
        forget_discarded(&pool, &layout, &end);
        settle(zones, &pool, (&reports, &reset_since), &layout, root.clean, goal).await?;
        let (identity, covered) = (root.identity, root.covered.clone());
        let checkpoints = Checkpoints::new(root, RootWriter::behind(&found));
        let epoch = checkpoints.begin_epoch(zones, &layout, &end).await?;
        let streams = Arc::new(Streams::new(&end, &covered));
        Ok(Parts { layout, identity, epoch, pool, streams, clock, checkpoints })
    }
}

/// Number of a record in this stream; `None` if it is no member.
pub fn number_in<K: Kept>(record: &K, stream: StreamId) -> Option<u64> {
    numbers(record).find(|(own, _)| *own == stream).map(|(_, sequence)| sequence)
}

/// Sorts the records of a stream of users, and those of other streams that follow them, for replay: a record
/// that follows a record of users comes directly after it. Numbers of lost records are issued again in later
/// epochs.
pub fn sort_for_replay<K: Kept>(records: &mut [K], user: StreamId) {
    records.sort_by_key(|record| replay_order(record, user));
}

/// Sort key of [`sort_for_replay`].
pub fn replay_order<K: Kept>(record: &K, user: StreamId) -> impl Ord + use<K> {
    let header = record.header();
    let linked = record.links().iter().find(|link| link.stream == user);
    match linked {
        None => (header.epoch, header.sequence, 0, 0),
        Some(link) if link.relation == Relation::Member => (header.epoch, link.sequence, 0, 0),
        Some(link) => (header.epoch, link.sequence, 1, header.sequence),
    }
}

/// Checks the kind of a log's owner.
///
/// # Errors
/// [`Error::Protocol`] with both kinds.
pub fn check_owner(root: &Root, owner: [u8; 8]) -> Result<()> {
    let name = |owner: &[u8; 8]| String::from_utf8_lossy(owner).trim_end().to_owned();
    if root.owner != owner {
        return Err(Error::protocol(format!(
            "the zones hold a log of kind \"{}\"; expected \"{}\": open it as that kind",
            name(&root.owner),
            name(&owner)
        )));
    }
    Ok(())
}

/// Checks that a root names as many streams as its owner has.
///
/// # Errors
/// [`Error::Corrupt`] with both numbers.
pub fn check_streams(root: &Root, streams: usize) -> Result<()> {
    match root.covered.numbers().len() {
        found if found == streams => Ok(()),
        found => {
            Err(Error::corrupt(format!("the root of the log names {found} streams; expected {streams}")))
        }
    }
}

/// Returns the division of these zones into blocks, by the root.
///
/// # Errors
/// [`Error::Corrupt`] if the log was created on zones of another number or size.
pub fn layout_of(zones: &dyn Zones, root: &Root) -> Result<Layout> {
    let layout = Layout::new(zones.geometry(), root.block_size)?;
    if (layout.zone_blocks, layout.zones) != (root.zone_blocks, root.zones) {
        return Err(Error::corrupt(format!(
            "the log was made on {} zones of {} blocks, and here are {} of {}",
            root.zones, root.zone_blocks, layout.zones, layout.zone_blocks
        )));
    }
    Ok(layout)
}

/// Reads the directory that a root names.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged directory; errors of reading.
pub async fn read_directory(zones: &dyn Zones, layout: &Layout, root: &Root) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for extent in &root.directory {
        let (zone, position) = (extent.zone, extent.position);
        if zone >= layout.zones || position.saturating_add(extent.blocks) > layout.zone_blocks {
            return Err(Error::corrupt("the root names a directory outside the log"));
        }
        let part = scan::read(zones, layout, zone, position, extent.blocks).await;
        let part = part.map_err(|error| gone(error, "the directory"))?;
        if sum_of(&part) != extent.sum {
            return Err(Error::corrupt(format!(
                "the directory of the newest checkpoint is damaged in zone {zone}, block {position}"
            )));
        }
        bytes.extend_from_slice(&part);
    }
    if root.directory_length > bytes.len() as u64 {
        return Err(Error::corrupt("the directory of the newest checkpoint is shorter than the root says"));
    }
    bytes.truncate(root.directory_length as usize);
    Ok(bytes)
}

/// Converts the error of reading a part `what` of a checkpoint. Zones refuse reads beyond their write pointer
/// with `Invalid`: the zone has been reused since.
pub fn gone(error: Error, what: &str) -> Error {
    match error {
        Error::Invalid(_) => Error::corrupt(format!(
            "{what} of the newest checkpoint whose root can be read isn't there any more: a newer root is damaged; restore \
             the disk ({})",
            error.detail()
        )),
        error => error.in_context(format!("reading {what} of the newest checkpoint")),
    }
}

/// Creates a pool with the checkpoint's state of each zone; only the directory's blocks are live.
pub fn known_zones(layout: &Layout, root: &Root, known: &[ZoneEntry], reports: &[ZoneReport]) -> ZonePool {
    let pool = ZonePool::new(layout.zones);
    for report in reports {
        pool.restore(report.zone.0, |entry| {
            entry.generation = report.generation;
            entry.usage = Usage::Open;
        });
    }
    for entry in known.iter().filter(|entry| entry.zone < layout.zones) {
        pool.restore(entry.zone, |zone| {
            let is_offline = reports[entry.zone as usize].state == ZoneState::Offline;
            if is_offline || zone.generation == entry.generation {
                // The generation of an offline zone can't be read.
                zone.generation = entry.generation;
                zone.class = entry.class;
                zone.written = entry.written;
                zone.opened = entry.opened;
                zone.changed = entry.changed;
                zone.last = entry.last.clone();
            }
        });
    }
    for extent in &root.directory {
        pool.restore(extent.zone, |entry| entry.class = CHECKPOINT_CLASS);
        pool.add_live(extent.zone, extent.blocks);
    }
    pool
}

/// Zones whose generation differs from that in the checkpoint, in order. Offline zones are excluded, as their
/// generation can't be read.
pub fn reset_since(known: &[ZoneEntry], reports: &[ZoneReport]) -> Vec<u32> {
    let known: BTreeMap<u32, u64> = known.iter().map(|entry| (entry.zone, entry.generation)).collect();
    let is_same = |report: &&ZoneReport| known.get(&report.zone.0) == Some(&report.generation);
    let readable = reports.iter().filter(|report| report.state != ZoneState::Offline);
    readable.filter(|report| !is_same(report)).map(|report| report.zone.0).collect()
}

/// Numbers of a record: in its own stream, and in those of which it is a member.
fn numbers<K: Kept>(record: &K) -> impl Iterator<Item = (StreamId, u64)> {
    let header = record.header();
    let members = record.links().iter().filter(|link| link.relation == Relation::Member);
    std::iter::once((header.stream, header.sequence)).chain(members.map(|link| (link.stream, link.sequence)))
}

/// Whether a record is part of a log whose streams end at `end`.
fn is_within<K: Kept>(record: &K, end: &Sequences) -> bool {
    let header = record.header();
    header.sequence <= end.of(header.stream)
        && record.links().iter().all(|link| link.sequence <= end.of(link.stream))
}

/// Returns the end of each stream, given the records after the checkpoint: the last record before the first
/// one that is missing or depends on a missing one.
fn ends<K: Kept>(covered: &Sequences, records: &[K]) -> Sequences {
    let mut present: Vec<(StreamId, u64)> = records.iter().flat_map(numbers).collect();
    // Already sorted unless there are members.
    present.sort_unstable();
    let mut end = covered.clone();
    for (stream, sequence) in present {
        if stream.index() < covered.numbers().len() && sequence == end.of(stream) + 1 {
            end.set(stream, sequence);
        }
    }
    loop {
        let mut has_changed = false;
        for record in records {
            if is_within(record, &end) {
                continue;
            }
            for (stream, sequence) in numbers(record) {
                if sequence <= end.of(stream) && sequence > covered.of(stream) {
                    end.set(stream, sequence - 1);
                    has_changed = true;
                }
            }
        }
        if !has_changed {
            return end;
        }
    }
}

/// Selects the records that are part of the log: those of each stream before the first that is missing, or
/// depends on a missing record of another stream.
///
/// # Errors
/// [`Error::Corrupt`] if a missing record had been durable. With [`Goal::Salvage`] that is added to
/// [`Tail::lost`], and the stream ends there.
pub fn choose<K: Kept>(root: &Root, scans: Scans<K>, goal: Goal) -> Result<Tail<K>> {
    let (mut records, mut lost) = (scans.records, scans.lost);
    let key = |record: &K| (record.header().stream, record.header().sequence);
    // Sorted by cached keys: records are much larger than keys, and are moved only once.
    records.sort_by_cached_key(|record| (key(record), record.header().blocks));
    // A record whose append failed may still have been written, and was written again elsewhere. Both copies
    // are equal unless the failure was ENOSPC: then the second lacks the refused data, and is the one that
    // took effect.
    records.dedup_by_key(|record| key(record));
    let found = records.len();
    let end = ends(&root.covered, &records);
    let mut dropped = scans.torn;
    records.retain(|record| {
        let is_within = is_within(record, &end);
        if !is_within {
            dropped.push(Dropped::new(record.header(), false));
        }
        is_within
    });
    dropped.sort_unstable_by_key(|record| (record.stream, record.sequence));
    for (number, end) in end.numbers().iter().enumerate() {
        let durable = scans.durable.of(StreamId(number as u16));
        if durable > *end {
            let offline = match scans.offline.as_slice() {
                [] => String::new(),
                zones => format!(" (offline zones: {zones:?})"),
            };
            let missing: Result<()> = Err(Error::corrupt(format!(
                "record {} of stream {number} is damaged or missing, and {durable} records had been durable: this is not \
                 the end of the log but damage in its middle{offline}; restore the disk, or salvage what can be read",
                end + 1,
            )));
            goal.tolerate(missing, &mut lost)?;
        }
    }
    let discarded = (found - records.len()) as u64;
    Ok(Tail { records, end, discarded, dropped, damaged: scans.damaged, lost })
}

/// Lowers the last records of all zones to the end of the log. Later records will never be part of it, so a
/// zone's reset doesn't wait until their numbers, which are issued again, are covered.
pub fn forget_discarded(pool: &ZonePool, layout: &Layout, end: &Sequences) {
    (0..layout.zones).for_each(|zone| pool.restore(zone, |entry| entry.last.lower_to(end)));
}

/// Sets the usage of each zone once all counts are right. `is_clean` is whether no record follows the
/// checkpoint. Live data in an offline zone is kept and can't be read.
///
/// # Errors
/// [`Error::Corrupt`] if there are live blocks in an empty zone, or in one that was reset since the
/// checkpoint and has no record; also for an offline zone that may have records after the checkpoint.
pub async fn settle(
    zones: &dyn Zones,
    pool: &ZonePool,
    (reports, reset_since): (&[ZoneReport], &[u32]),
    layout: &Layout,
    is_clean: bool,
    goal: Goal,
) -> Result<()> {
    for report in reports {
        let zone = report.zone.0;
        let live = pool.get(zone).live;
        match report.state {
            _ if zone < ROOT_ZONES => pool.restore(zone, |entry| entry.usage = Usage::Root),
            ZoneState::Empty if live > 0 && goal == Goal::Salvage => {
                tracing::error!("zone {zone} is empty: {live} blocks in it can't be read");
                pool.restore(zone, |entry| entry.usage = Usage::Damaged);
            }
            ZoneState::Empty if live > 0 => {
                return Err(Error::corrupt(format!("{live} live blocks lie in zone {zone}, which is empty")));
            }
            ZoneState::Empty => pool.set_free(zone, report.generation),
            ZoneState::Offline => {
                // With live blocks the zone hasn't been reset since the checkpoint, which covers all its
                // records. Without any it may have been reset and written again.
                if !is_clean && live == 0 && goal == Goal::Serve {
                    scan::refuse_offline(zones, report.zone, scans::NEWEST).await?;
                }
                if live > 0 {
                    tracing::error!("zone {zone} is offline: {live} blocks in it can't be read");
                }
                pool.restore(zone, |entry| entry.usage = Usage::Damaged);
            }
            _ => {
                let written = layout.blocks_in(report.write_pointer) as u32;
                let was_reset = reset_since.binary_search(&zone).is_ok();
                settle_full(pool, zone, written, was_reset && goal == Goal::Serve)?;
            }
        }
    }
    pool.recount();
    Ok(())
}

/// Marks a zone with `written` blocks as full. `is_refused` is whether live blocks without a record are an
/// error.
fn settle_full(pool: &ZonePool, zone: u32, written: u32, is_refused: bool) -> Result<()> {
    let entry = pool.get(zone);
    // The checkpoint's own zones aren't all in its directory, and are read with checksums.
    let holds_nothing = entry.end == 0 && entry.class != CHECKPOINT_CLASS;
    if holds_nothing && entry.live > 0 && is_refused {
        return Err(Error::corrupt(format!(
            "{} live blocks lie in zone {zone}, which was reset since and holds no record of the log; another program has written to it; restore the \
             disk, or salvage what can be read",
            entry.live
        )));
    }
    pool.restore(zone, |entry| {
        entry.space = written;
        if entry.end == 0 {
            entry.end = written;
        }
    });
    pool.set_full(zone);
    Ok(())
}

/// Error for a root that the drive opens no zone for; `begun` zones of the log are open.
#[cold]
fn root_is_refused(error: &Error, since: runtime::Instant, zones: &dyn Zones, begun: usize) -> Error {
    let geometry = zones.geometry();
    let limit = |limit: u32| if limit == 0 { "any number".to_owned() } else { limit.to_string() };
    still_busy(error, since.elapsed()).in_context(format!(
        "root of the log: it needs an open zone, and the log has {begun} others; the drive permits {} open and {} active",
        limit(geometry.max_open),
        limit(geometry.max_active)
    ))
}

impl Checkpoints {
    /// Begins a new epoch of a recovered log ([`begin`]) with these last records. Returns the
    /// epoch.
    ///
    /// # Errors
    /// Errors of finishing and writing.
    pub async fn begin_epoch(&self, zones: &dyn Zones, layout: &Layout, last: &Sequences) -> Result<u64> {
        let old = self.newest.borrow().clone();
        let mut writer = self.writer.replace(RootWriter::first());
        let begun = begin(zones, layout, &old, last, &mut writer).await;
        self.writer.replace(writer);
        let root = begun?;
        let epoch = root.epoch;
        self.newest.replace(root);
        Ok(epoch)
    }
}

/// Begins a new epoch of a recovered log with these last records: makes the recovered log durable, and
/// invalidates records that aren't part of it. Returns the new root.
///
/// # Errors
/// Errors of finishing zones and of writing the root; [`Error::Busy`] if the drive opens no zone for the root
/// within 10 s.
pub async fn begin(
    zones: &dyn Zones,
    layout: &Layout,
    old: &Root,
    last: &Sequences,
    writer: &mut RootWriter,
) -> Result<Root> {
    let reports = zones.report(ZoneIndex(ROOT_ZONES), layout.zones).await?;
    let is_begun = |report: &&ZoneReport| report.state.is_active();
    let begun: Vec<ZoneIndex> = reports.iter().filter(is_begun).map(|report| report.zone).collect();
    zones.flush(&begun).await?;
    let mut boundaries = old.boundaries.clone();
    // Epochs without records get no boundary, so repeated failed openings don't lengthen the list.
    if boundaries.last().is_none_or(|before| before.last != *last) {
        boundaries.push(Boundary { epoch: old.epoch, last: last.clone() });
    }
    let root = Root { epoch: old.epoch + 1, clean: false, boundaries, ..old.clone() };
    match writer.prepare(zones, layout).await {
        // The zone may still have space for one root.
        Ok(()) | Err(Error::NoSpace(_)) => {}
        Err(error) => return Err(error),
    }
    let since = runtime::now();
    loop {
        match writer.write(zones, layout, &root).await {
            Ok(()) => break,
            // Another program may finish its zones.
            Err(Error::Busy(_)) if since.elapsed() < MAX_BUSY => runtime::sleep(BETWEEN_BUSY).await,
            Err(error @ Error::Busy(_)) => return Err(root_is_refused(&error, since, zones, begun.len())),
            Err(error) => return Err(error),
        }
    }
    // Zones are finished only after the root: the summary of a full zone is trusted, and an unfinished zone
    // may have a summary although some of its records are lost. From here on the root names the records that
    // are part of the log.
    let finishes = begun.into_iter().map(|zone| zones.finish(zone));
    runtime::join_all(finishes).await.into_iter().collect::<Result<()>>()?;
    Ok(root)
}
