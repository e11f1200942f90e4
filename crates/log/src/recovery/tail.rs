//! The records behind the newest checkpoint: in which zones they may be, and which of them count.

use crate::directory::{Directory, ZoneEntry};
use crate::format::{CLEANER, REPLAYED, USER};
use crate::layout::{Layout, ROOT_ZONES};
use crate::recovery::Recovered;
use crate::root::Root;
use crate::scan::{self, Replayable, Scanned};
use crate::table::{CHECKPOINT_CLASS, ZoneTable};
use block::{Error, Result, ZoneReport, ZoneState, Zones};
use std::sync::Arc;

/// How many zones are looked at at a time.
const ZONES_AT_ONCE: usize = 8;

/// The records of all zones that may have some behind the checkpoint, and what they say was durable.
pub(crate) struct Scans {
    pub(crate) records: Vec<Replayable>,
    pub(crate) durable: [u64; 4],
    /// How many zones these are.
    pub(crate) zones: u64,
}

/// The records that count, in the order in which they are replayed.
pub(crate) struct Tail {
    pub(crate) records: Arc<Vec<Replayable>>,
    /// The last of each stream.
    pub(crate) end: [u64; REPLAYED],
}

/// Reads the records of all zones that may have some behind the checkpoint.
///
/// # Errors
/// [`Error::Corrupt`] for records of a later life than the newest root; what reading says.
pub(crate) async fn scan_all(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
    directory: &Directory,
    reports: &[ZoneReport],
    table: &ZoneTable,
) -> Result<Scans> {
    let mut by_zone: Vec<Option<&ZoneEntry>> = vec![None; reports.len()];
    for entry in &directory.zones {
        if let Some(known) = by_zone.get_mut(entry.zone as usize) {
            *known = Some(entry);
        }
    }
    let is_covered = |report: &&ZoneReport| {
        let known = by_zone[report.zone.0 as usize];
        let known = known.filter(|entry| entry.generation == report.generation && entry.full);
        // All its records are in the checkpoint.
        known.is_some_and(|entry| {
            report.state == ZoneState::Full
                && entry.last.iter().zip(root.covered).all(|(last, covered)| *last <= covered)
        })
    };
    let wanted: Vec<&ZoneReport> = reports
        .iter()
        .filter(|report| report.zone.0 >= ROOT_ZONES)
        .filter(|report| report.state != ZoneState::Empty)
        .filter(|report| !is_covered(report))
        .collect();
    for report in wanted.iter().filter(|report| report.state == ZoneState::Offline) {
        // Nobody knows what is in it: it may be the newest that was promised to be durable.
        scan::refuse_offline(zones, report.zone).await?;
    }
    let mut scans = Scans { records: Vec::new(), durable: [0; 4], zones: wanted.len() as u64 };
    let looks = wanted.iter().map(|report| look_at(zones, layout, root, report, table));
    for (report, scanned) in wanted.iter().zip(runtime::join_limited(ZONES_AT_ONCE, looks).await) {
        take(&mut scans, root, report, scanned?, table)?;
    }
    Ok(scans)
}

/// Reads the records of one zone.
async fn look_at(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
    report: &ZoneReport,
    table: &ZoneTable,
) -> Result<Scanned<Replayable>> {
    let identity = &root.identity;
    let known = table.get(report.zone.0).committed;
    if report.state != ZoneState::Full
        && known == 0
        && let Some(header) = scan::first_header(zones, layout, identity, report).await?
        && header.class == CHECKPOINT_CLASS
    {
        // A zone has one class and is written in one life: nothing in this one is replayed, or is newer than its beginning.
        check_epoch(root, report, header.epoch)?;
        table.change(report.zone.0, |entry| {
            (entry.class, entry.opened, entry.changed) = (CHECKPOINT_CLASS, header.clock, header.clock);
        });
        return Ok(Scanned::default());
    }
    scan::replayable(zones, layout, identity, report, known).await
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

/// Takes over what was found in one zone.
fn take(
    scans: &mut Scans,
    root: &Root,
    report: &ZoneReport,
    scanned: Scanned<Replayable>,
    table: &ZoneTable,
) -> Result<()> {
    for (durable, found) in scans.durable.iter_mut().zip(scanned.durable) {
        *durable = (*durable).max(found);
    }
    if let Some(first) = scanned.records.first() {
        table.change(report.zone.0, |entry| {
            let written = scanned.records.iter().map(|record| record.header.blocks).sum::<u32>();
            entry.end = scanned.end;
            if scanned.first > 0 {
                entry.written += written;
                return;
            }
            entry.class = first.header.class;
            entry.opened = first.header.clock;
            entry.changed = first.header.clock;
            entry.written = written;
        });
    }
    let mut last = [0; REPLAYED];
    for record in scanned.records {
        let stream = usize::from(record.header.stream.0);
        check_epoch(root, report, record.header.epoch)?;
        if stream >= REPLAYED || !root.admits(&record.header) {
            continue;
        }
        last[stream] = last[stream].max(record.header.sequence);
        if record.header.sequence > root.covered[stream] {
            scans.records.push(record);
        }
    }
    table.change(report.zone.0, |entry| {
        entry.last.iter_mut().zip(last).for_each(|(known, last)| *known = (*known).max(last));
    });
    Ok(())
}

/// Decides which records count: up to the first that is missing in each stream.
///
/// # Errors
/// [`Error::Corrupt`] where one is missing that had been durable.
pub(crate) fn choose(root: &Root, scans: Scans, recovered: &mut Recovered) -> Result<Tail> {
    let mut end = root.covered;
    let mut records = scans.records;
    // By its key, which is much smaller than a record: they come zone by zone, and are moved once.
    records.sort_by_cached_key(|record| (record.header.stream, record.header.sequence));
    // A record whose append failed may be there twice, and is the same.
    records.dedup_by_key(|record| (record.header.stream, record.header.sequence));
    let found = records.len();
    records.retain(|record| {
        let end = &mut end[usize::from(record.header.stream.0)];
        let is_next = record.header.sequence == *end + 1;
        *end += u64::from(is_next);
        is_next
    });
    for stream in [USER, CLEANER] {
        let (durable, end) = (scans.durable[usize::from(stream.0)], end[usize::from(stream.0)]);
        if durable > end {
            return Err(Error::corrupt(format!(
                "record {} of stream {} is damaged or missing, and {durable} records had been durable: this is not \
                 the end of the log but damage in its middle; restore the disk, or look at it with `siltstone \
                 check`",
                end + 1,
                stream.0
            )));
        }
    }
    recovered.scanned_zones = scans.zones;
    recovered.discarded = (found - records.len()) as u64;
    recovered.replayed = records.len() as u64;
    // Records of the cleaner stand behind the users' records that had committed when they were written; in another
    // life, numbers of records that were lost count again.
    records.sort_by_key(|record| {
        let header = &record.header;
        match header.stream == USER {
            true => (header.epoch, header.sequence, 0, 0),
            false => (header.epoch, header.after, 1, header.sequence),
        }
    });
    Ok(Tail { records: Arc::new(records), end })
}
