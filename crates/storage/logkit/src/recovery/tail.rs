//! The tail of a log: the records that are part of it, and those that recovery drops.

use super::{Scans, numbers};
use crate::pool::ZonePool;
use crate::record::StreamId;
use crate::record::{Header, Kind};
use crate::root::Root;
use crate::scan::{Kept, Torn};
use crate::stream::Sequences;
use std::collections::BTreeSet;

/// A record that was found after the checkpoint and isn't part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Stream of the record.
    pub stream: StreamId,
    /// Number of the record in the stream.
    pub sequence: u64,
    /// Zone of the record.
    pub zone: u32,
    /// Block of the zone that holds the header.
    pub position: u32,
    /// Whether some of the data is wrong; otherwise the record is complete, and an earlier one is missing.
    pub is_torn: bool,
}

impl Dropped {
    pub(super) fn new(header: &Header, is_torn: bool) -> Self {
        let Header { stream, sequence, zone, position, .. } = *header;
        Dropped { stream, sequence, zone, position, is_torn }
    }
}

/// The records after the checkpoint that are part of the log.
#[derive(Debug)]
pub struct Tail<K> {
    /// Ordered by stream and number.
    pub records: Vec<K>,
    /// The last record of each stream.
    pub end: Sequences,
    /// Number of valid records that aren't part of the log: they were never acknowledged, or are lost with an
    /// earlier record.
    pub discarded: u64,
    /// The discarded records, and those with wrong data, by stream and number.
    pub dropped: Vec<Dropped>,
    /// Damaged data blocks of `records`, which differ from their checksums: zone and block, in order.
    pub damaged: Vec<(u32, u32)>,
    /// Descriptions of unreadable parts that may have had records of the log; only with
    /// [`Goal::Salvage`](super::Goal::Salvage).
    pub lost: Vec<String>,
}

impl<K> Tail<K> {
    /// Creates the empty tail of a checkpoint that covers everything.
    pub(super) fn clean(root: &Root) -> Self {
        let end = root.covered.clone();
        Tail {
            records: Vec::new(),
            end,
            discarded: 0,
            dropped: Vec::new(),
            damaged: Vec::new(),
            lost: Vec::new(),
        }
    }

    /// Logs the dropped records and the damage. The owner logs the lost parts, together with those that it
    /// finds itself.
    pub fn tell(&self) {
        self.describe().iter().for_each(|line| tracing::warn!("opening the log: {line}"));
    }

    /// Describes the dropped records and the damage for operators; empty if the log ends at a complete
    /// record.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(first) = self.dropped.first() {
            let torn = self.dropped.iter().filter(|record| record.is_torn).count();
            lines.push(format!(
                "{} records at its end were dropped, {torn} of them with wrong data, the first of them record {} of stream {} at block {} of zone \
                 {}: a write was cut off, or it is damage of the last seconds before the end; no record says that they had been durable",
                self.dropped.len(),
                first.sequence,
                first.stream.0,
                first.position,
                first.zone
            ));
        }
        if let Some((zone, position)) = self.damaged.first() {
            lines.push(format!(
                "{} data blocks of records that had been durable are damaged, the first of them block {position} of zone {zone}; they can't be read",
                self.damaged.len()
            ));
        }
        lines
    }
}

/// Classifies records with wrong data, once the durable records are known. A record that was durable is part
/// of the log, and its data is damaged; any other one may be the end of the log that a power cut left.
///
/// A failed append was repeated elsewhere: a complete copy is preferred, then the one with the fewest wrong
/// blocks.
pub(super) fn judge_torn<K: Kept>(
    scans: &mut Scans<K>,
    root: &Root,
    mut torn: Vec<Torn<K>>,
    pool: &ZonePool,
) {
    if torn.is_empty() {
        return;
    }
    torn.sort_by_key(|torn| torn.blocks.len());
    let streams = root.covered.numbers().len();
    let key = |header: &Header| (header.stream, header.sequence);
    let mut believed: BTreeSet<(StreamId, u64)> =
        scans.records.iter().map(|record| key(record.header())).collect();
    for Torn { record, blocks } in torn {
        let header = *record.header();
        let is_any = |test: &dyn Fn(StreamId, u64) -> bool| {
            numbers(&record)
                .filter(|(stream, _)| stream.index() < streams)
                .any(|(stream, number)| test(stream, number))
        };
        let is_replayed = header.kind == Kind::Entries
            && root.admits(&header)
            && is_any(&|stream, number| number > root.covered.of(stream));
        if !is_replayed || believed.contains(&key(&header)) {
            continue;
        }
        if !is_any(&|stream, number| number <= scans.durable.of(stream)) {
            scans.torn.push(Dropped::new(&header, true));
            continue;
        }
        believed.insert(key(&header));
        let own: Vec<(StreamId, u64)> =
            numbers(&record).filter(|(stream, _)| stream.index() < streams).collect();
        pool.restore(header.zone, |entry| {
            if entry.end == 0 && entry.written == 0 {
                (entry.class, entry.opened, entry.changed) = (header.class, header.clock, header.clock);
            }
            entry.end = entry.end.max(header.position + 1 + header.blocks);
            entry.written += header.blocks;
            own.iter().for_each(|(stream, number)| entry.last.note(*stream, *number));
        });
        scans.damaged.extend(blocks.into_iter().map(|position| (header.zone, position)));
        scans.records.push(record);
    }
    scans.damaged.sort_unstable();
}
