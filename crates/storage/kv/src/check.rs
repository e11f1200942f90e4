//! Check of a closed store: the manifest, and every block and entry of every table. It writes nothing.
//!
//! The result is a bounded list of problems; damage of the medium is one of them. Writes that aren't in a
//! table yet were verified by the checksums of their records during replay.
//!
//! Elsewhere: the check inside a table (`table::verify`), and repair.

use crate::key_version::Sequence;
use crate::replay::{RecoveredShard, Replayed, replay_all};
use crate::table::{Block, BlockHandle, BlockSource, FOOTER_BYTES, Verified, verify};
use crate::tree::extents::{Extent, ReadAhead, read_runs, runs};
use crate::tree::manifest::{TableId, TableMeta};
use block::{Error, Result, ZoneIndex, ZoneReport, ZoneState, Zones};
use logkit::Layout;
use logkit::recovery::Goal;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Default maximum number of problems that are described.
pub const MAX_PROBLEMS: usize = 100;

/// A problem that the check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Shard and number of the table; `None` for a problem of the store.
    pub table: Option<(u16, TableId)>,
    /// Description of the problem.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.table {
            Some((shard, table)) => write!(formatter, "shard {shard}, table {table}: {}", self.detail),
            None => formatter.write_str(&self.detail),
        }
    }
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Problems in the order in which they were found, up to the maximum.
    pub problems: Vec<Problem>,
    /// Number of problems beyond the maximum.
    pub further: u64,
    /// Number of shards.
    pub shards: u64,
    /// Number of tables.
    pub tables: u64,
    /// Bytes of tables.
    pub bytes: u64,
    /// Number of undamaged blocks of tables.
    pub blocks: u64,
    /// Number of entries in these blocks.
    pub entries: u64,
    /// Number of tombstones among these entries.
    pub tombstones: u64,
    /// Bytes of writes that aren't in a table yet.
    pub log_bytes: u64,
    /// Whether the store was closed cleanly.
    pub is_clean: bool,
    /// Descriptions of what recovery dropped at the end of the log and of damage that it found. Dropped
    /// records aren't a problem: an unclean stop leaves them, and damage of the last seconds before it looks
    /// the same.
    pub notes: Vec<String>,
    most: usize,
}

impl Report {
    /// Whether the check found no problems.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    fn note(&mut self, table: Option<(u16, TableId)>, detail: impl Into<String>) {
        match self.problems.len() < self.most {
            true => self.problems.push(Problem { table, detail: detail.into() }),
            false => self.further += 1,
        }
    }
}

/// Reads the blocks of a table in large pieces.
struct ExtentSource<'a> {
    zones: &'a dyn Zones,
    layout: &'a Layout,
    extents: &'a [Extent],
    ahead: ReadAhead,
}

impl ExtentSource<'_> {
    /// Calls `visit` with `length` bytes of the table at `offset`.
    async fn with<T>(&self, offset: u64, length: usize, visit: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        let read = async |offset, length, most| {
            read_runs(self.zones, self.layout, &runs(self.extents, self.layout, offset, length, most)?).await
        };
        self.ahead.read(offset, length, read, visit).await
    }
}

impl BlockSource for ExtentSource<'_> {
    async fn read(&self, handle: BlockHandle) -> Result<Arc<Block>> {
        let copy = |stored: &[u8]| Ok(stored.to_vec());
        let stored =
            self.with(handle.offset, handle.length as usize, copy).await.map_err(|error| match error {
                Error::Corrupt(_) | Error::Io(_) => {
                    error.in_context(format!("table block at {}", handle.offset))
                }
                other => other,
            })?;
        Ok(Arc::new(Block::decode(&stored, handle)?))
    }
}

/// Checks the store on zones that aren't open. `progress` gets the bytes of tables that were read, and the
/// bytes of all tables.
///
/// # Errors
/// [`Error::Protocol`] for zones without a store; errors other than damage and failed reads.
pub async fn check(zones: &dyn Zones, most_problems: usize, progress: &dyn Fn(u64, u64)) -> Result<Report> {
    let mut report = Report { most: most_problems.max(1), ..Report::default() };
    let (opening, Replayed { shards, .. }) = match replay_all(zones, Goal::Salvage).await {
        Ok(found) => found,
        Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
            report.note(None, format!("the log or the manifest can't be read: {error}"));
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    report.is_clean = opening.root.clean;
    report.notes.clone_from(&opening.notes);
    report.shards = shards.len() as u64;
    for line in shards.iter().flat_map(|shard| &shard.lost) {
        report.note(None, line.clone());
    }
    check_extents(zones, &opening.layout, &opening.pool, &shards, &mut report).await?;
    let all: u64 =
        shards.iter().flat_map(|shard| &shard.manifest.tables).map(|table| table.summary.length).sum();
    for (shard, found) in (0..).zip(&shards) {
        report.log_bytes += found.staged.iter().map(|writes| writes.len() as u64).sum::<u64>();
        report.log_bytes += found.writes.iter().map(|writes| writes.bytes.len() as u64).sum::<u64>();
        check_levels(shard, found, &mut report);
        for table in &found.manifest.tables {
            progress(report.bytes, all);
            let verified = check_table(zones, &opening.layout, shard, table, &mut report).await?;
            report.tables += 1;
            report.bytes += table.summary.length;
            report.blocks += verified.blocks;
            report.entries += verified.entries;
            report.tombstones += verified.tombstones;
        }
    }
    progress(all, all);
    Ok(report)
}

async fn check_table(
    zones: &dyn Zones,
    layout: &Layout,
    shard: u16,
    table: &TableMeta,
    report: &mut Report,
) -> Result<Verified> {
    let summary = &table.summary;
    let source = ExtentSource {
        zones,
        layout,
        extents: &table.extents,
        ahead: ReadAhead::new(summary.length, layout),
    };
    let footer = match summary.length.checked_sub(FOOTER_BYTES as u64) {
        Some(at) => {
            let footer =
                |bytes: &[u8]| bytes.try_into().map_err(|_| Error::corrupt("the footer is incomplete"));
            source.with(at, FOOTER_BYTES, footer).await
        }
        None => Err(Error::corrupt(format!("a length of {} bytes", summary.length))),
    };
    verify(&source, summary, footer, &mut |detail| report.note(Some((shard, table.id)), detail)).await
}

/// Checks that tables of a level other than 0 don't overlap, and that numbers and sequences of tables are
/// below the bounds in the manifest.
fn check_levels(shard: u16, found: &RecoveredShard, report: &mut Report) {
    let mut levels: BTreeMap<u8, Vec<&TableMeta>> = BTreeMap::new();
    let newest: Sequence = found.manifest.flushed.sequence;
    for table in &found.manifest.tables {
        levels.entry(table.level).or_default().push(table);
        let largest = table.summary.largest_sequence;
        if largest > newest {
            report.note(
                Some((shard, table.id)),
                format!("sequence {largest}; the newest in tables is {newest}"),
            );
        }
        if table.id >= found.manifest.next_table {
            report.note(
                Some((shard, table.id)),
                format!("its number; expected less than {}", found.manifest.next_table),
            );
        }
    }
    for (level, tables) in levels.iter_mut().filter(|(level, _)| **level > 0) {
        tables.sort_by(|a, b| a.summary.smallest.cmp(&b.summary.smallest));
        for pair in tables.windows(2) {
            if !pair[0].summary.ends_before(&pair[1].summary.smallest) {
                let detail = format!("overlaps table {} of level {level}", pair[0].id);
                report.note(Some((shard, pair[1].id)), detail);
            }
        }
    }
}

/// Run of a table's blocks on the medium: zone, first block and number of blocks; with its shard and table.
type Run = (u32, u32, u32, (u16, TableId));

/// Checks that the blocks of tables are complete, in written zones and disjoint, and that each zone has at
/// least as many written blocks as tables have in it.
async fn check_extents(
    zones: &dyn Zones,
    layout: &Layout,
    pool: &logkit::ZonePool,
    shards: &[RecoveredShard],
    report: &mut Report,
) -> Result<()> {
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    let runs = complete_runs(layout, shards, report);
    for run in &runs {
        if let Some(zone) = reports.get(run.0 as usize) {
            check_is_written(layout, zone, run, report);
        }
    }
    check_disjoint(&runs, report);
    let mut live: BTreeMap<u32, u64> = BTreeMap::new();
    for (zone, _, blocks, _) in &runs {
        *live.entry(*zone).or_default() += u64::from(*blocks);
    }
    for (zone, blocks) in live {
        let written = pool.get(zone).written;
        if blocks > u64::from(written) {
            report.note(None, format!("zone {zone}: tables have {blocks} blocks; {written} were written"));
        }
    }
    Ok(())
}

/// Runs of all tables in the order of the medium. Notes tables that lack blocks.
fn complete_runs(layout: &Layout, shards: &[RecoveredShard], report: &mut Report) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (shard, found) in (0..).zip(shards) {
        for table in &found.manifest.tables {
            let own = (shard, table.id);
            let blocks = table.extents.last().map_or(0, Extent::end);
            let bytes = table.summary.length;
            let expected = bytes.div_ceil(layout.block_size.bytes());
            if u64::from(blocks) != expected {
                let detail = format!("{blocks} blocks of the log; expected {expected}, for {bytes} bytes");
                report.note(Some(own), detail);
            }
            let run = |extent: &Extent| (extent.place.zone.0, extent.place.block, extent.blocks, own);
            runs.extend(table.extents.iter().map(run));
        }
    }
    runs.sort_unstable();
    runs
}

fn check_is_written(layout: &Layout, state: &ZoneReport, run: &Run, report: &mut Report) {
    let (zone, position, blocks, own) = *run;
    let end = u64::from(position) + u64::from(blocks);
    let written = layout.blocks_in(state.write_pointer);
    if state.state == ZoneState::Offline {
        report.note(Some(own), format!("{blocks} blocks are in zone {zone}, which is offline"));
    } else if state.state == ZoneState::Empty || end > written {
        let detail =
            format!("blocks {position} to {end} of zone {zone}, of which {written} blocks are written");
        report.note(Some(own), detail);
    }
}

fn check_disjoint(runs: &[Run], report: &mut Report) {
    for pair in runs.windows(2) {
        let ((zone, position, blocks, own), (next_zone, next, _, other)) = (pair[0], pair[1]);
        if zone == next_zone && position + blocks > next {
            let detail =
                format!("block {next} of zone {zone} is also one of shard {}, table {}", own.0, own.1);
            report.note(Some(other), detail);
        }
    }
}
