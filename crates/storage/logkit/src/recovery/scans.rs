//! Scan of all zones that may have records after the checkpoint.

use super::tail::judge_torn;
use super::{Dropped, Goal, numbers};
use crate::directory::ZoneEntry;
use crate::layout::{Layout, ROOT_ZONES};
use crate::pool::{CHECKPOINT_CLASS, LastRecords, ZonePool};
use crate::record::StreamId;
use crate::record::{Kind, Parsed};
use crate::root::Root;
use crate::scan::{self, Kept, Scanned};
use crate::stream::Sequences;
use block::{Error, Result, ZoneReport, ZoneState, Zones};

/// Possible contents of an offline zone, for errors.
pub(super) const NEWEST: &str = "records after the newest checkpoint that were acknowledged as durable";
/// Number of zones that are scanned at a time.
const ZONES_AT_ONCE: usize = 8;

/// Records of all zones that may have some after the checkpoint, and the records that they name as durable.
#[derive(Debug)]
pub struct Scans<K> {
    /// In any order.
    pub records: Vec<K>,
    /// By stream, the highest number that any record names as durable.
    pub durable: Sequences,
    /// Number of zones that were scanned.
    pub zones: u64,
    /// Scanned zones without a summary, with their generations.
    pub unlisted: Vec<(u32, u64)>,
    /// Damaged data blocks of `records`, which differ from their checksums: zone and block, in order.
    pub damaged: Vec<(u32, u32)>,
    /// Records with wrong data that no record names as durable.
    pub torn: Vec<Dropped>,
    /// Offline zones, whose records the checkpoint covers.
    pub offline: Vec<u32>,
    /// Descriptions of unreadable parts that may have had records; only with [`Goal::Salvage`].
    pub lost: Vec<String>,
}

impl<K> Scans<K> {
    pub(super) fn new() -> Self {
        Scans {
            records: Vec::new(),
            durable: Sequences::default(),
            zones: 0,
            unlisted: Vec::new(),
            damaged: Vec::new(),
            torn: Vec::new(),
            offline: Vec::new(),
            lost: Vec::new(),
        }
    }
}

/// Scans all zones that may have records after the checkpoint.
///
/// # Errors
/// [`Error::Corrupt`] for records of a later epoch than the newest root; errors of reading. With
/// [`Goal::Salvage`] these are added to [`Scans::lost`].
pub async fn scan_all<K: Kept>(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
    known: &[ZoneEntry],
    (reports, pool): (&[ZoneReport], &ZonePool),
    goal: Goal,
) -> Result<Scans<K>> {
    let mut by_zone: Vec<Option<&ZoneEntry>> = vec![None; reports.len()];
    for entry in known {
        if let Some(known) = by_zone.get_mut(entry.zone as usize) {
            *known = Some(entry);
        }
    }
    let is_covered = |report: &&ZoneReport| {
        let known = by_zone[report.zone.0 as usize];
        let known = known.filter(|entry| entry.generation == report.generation && entry.full);
        // The checkpoint covers all records of the zone.
        known.is_some_and(|entry| report.state == ZoneState::Full && entry.last.is_within(&root.covered))
    };
    let wanted: Vec<&ZoneReport> = reports
        .iter()
        .filter(|report| report.zone.0 >= ROOT_ZONES)
        .filter(|report| report.state != ZoneState::Empty)
        .filter(|report| !is_covered(report))
        .collect();
    let (offline, wanted): (Vec<&ZoneReport>, Vec<&ZoneReport>) =
        wanted.into_iter().partition(|report| report.state == ZoneState::Offline);
    let mut scans = Scans::new();
    for report in &offline {
        let known = by_zone[report.zone.0 as usize];
        if known.is_none_or(|entry| !entry.full || !entry.last.is_within(&root.covered)) {
            // The contents are unknown: they may include the newest record that was acknowledged as durable.
            let refusal = scan::refuse_offline(zones, report.zone, NEWEST).await;
            goal.tolerate(refusal, &mut scans.lost)?;
        }
    }
    scans.zones = wanted.len() as u64;
    scans.offline = offline.iter().map(|report| report.zone.0).collect();
    let mut torn = Vec::new();
    let looks = wanted.iter().map(|report| scan_zone(zones, layout, root, report, pool));
    for (report, scanned) in wanted.iter().zip(runtime::join_limited(ZONES_AT_ONCE, looks).await) {
        let Some(mut scanned) = goal.tolerate(scanned, &mut scans.lost)? else {
            scans.unlisted.push((report.zone.0, report.generation));
            continue;
        };
        torn.append(&mut scanned.torn);
        if !scanned.has_summary {
            scans.unlisted.push((report.zone.0, report.generation));
        }
        let taken = take(&mut scans, root, report, scanned, pool);
        goal.tolerate(taken, &mut scans.lost)?;
    }
    judge_torn(&mut scans, root, torn, pool);
    Ok(scans)
}

/// Scans one zone.
async fn scan_zone<K: Kept>(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
    report: &ZoneReport,
    pool: &ZonePool,
) -> Result<Scanned<K>> {
    let identity = &root.identity;
    let known = pool.get(report.zone.0).committed;
    if report.state != ZoneState::Full
        && known == 0
        && let Some(header) = scan::first_header(zones, layout, identity, report).await?
        && header.class == CHECKPOINT_CLASS
    {
        // A zone has one class and is written in one epoch, so no record in it is replayed, nor is any newer
        // than its first one.
        check_epoch(root, report, header.epoch)?;
        pool.restore(report.zone.0, |entry| {
            (entry.class, entry.opened, entry.changed) = (CHECKPOINT_CLASS, header.clock, header.clock);
        });
        return Ok(Scanned::default());
    }
    scan::replayable(zones, layout, identity, report, root.covered.numbers().len(), known).await
}

/// Refuses a clean root if the log was used afterwards: then the newest root is damaged, and this one would
/// be taken for the newest. The records of the later epoch begin in zones that were [reset
/// since](super::reset_since) the checkpoint.
///
/// # Errors
/// [`Error::Corrupt`] for a record of a later epoch.
pub async fn check_closed(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
    reset_since: &[u32],
    reports: &[ZoneReport],
) -> Result<()> {
    if !root.clean {
        return Ok(());
    }
    let new = reset_since.iter().filter_map(|zone| reports.get(*zone as usize));
    let new = new.filter(|report| {
        report.zone.0 >= ROOT_ZONES && report.state != ZoneState::Empty && report.write_pointer > 0
    });
    let looks = new.map(|report| async move {
        // An unreadable zone has no known epoch.
        let Ok(bytes) = scan::read(zones, layout, report.zone.0, 0, 1).await else { return Ok(()) };
        match Parsed::decode(&bytes, &root.identity) {
            Ok(parsed) if parsed.header.generation == report.generation => {
                check_epoch(root, report, parsed.header.epoch)
            }
            _ => Ok(()),
        }
    });
    runtime::join_limited(ZONES_AT_ONCE, looks).await.into_iter().collect()
}

fn check_epoch(root: &Root, report: &ZoneReport, epoch: u64) -> Result<()> {
    match epoch > root.epoch {
        true => Err(Error::corrupt(format!(
            "zone {} holds a record of epoch {epoch}, and the newest root that can be read is of epoch {}: a root is damaged; \
             restore the disk",
            report.zone, root.epoch
        ))),
        false => Ok(()),
    }
}

/// Adds the result of scanning one zone. Returns the error of the first record of a later epoch, after all
/// others have been added.
fn take<K: Kept>(
    scans: &mut Scans<K>,
    root: &Root,
    report: &ZoneReport,
    scanned: Scanned<K>,
    pool: &ZonePool,
) -> Result<()> {
    for (stream, durable) in scanned.durable.numbers().iter().enumerate() {
        scans.durable.raise(StreamId(stream as u16), *durable);
    }
    if let Some(first) = scanned.records.first().map(Kept::header) {
        pool.restore(report.zone.0, |entry| {
            let written = scanned.records.iter().map(|record| record.header().blocks).sum::<u32>();
            entry.end = scanned.end;
            if scanned.first > 0 {
                entry.written += written;
                return;
            }
            entry.class = first.class;
            entry.opened = first.clock;
            entry.changed = first.clock;
            entry.written = written;
        });
    }
    let mut last = LastRecords::default();
    let streams = root.covered.numbers().len();
    let mut outcome = Ok(());
    for record in scanned.records {
        let header = record.header();
        outcome = outcome.and(check_epoch(root, report, header.epoch));
        if header.kind != Kind::Entries || header.stream.index() >= streams || !root.admits(header) {
            continue;
        }
        let numbers = || numbers(&record).filter(|(stream, _)| stream.index() < streams);
        numbers().for_each(|(stream, sequence)| last.note(stream, sequence));
        if numbers().any(|(stream, sequence)| sequence > root.covered.of(stream)) {
            scans.records.push(record);
        }
    }
    pool.restore(report.zone.0, |entry| last.iter().for_each(|(stream, it)| entry.last.note(stream, it)));
    outcome
}
