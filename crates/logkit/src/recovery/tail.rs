//! The tail of a log: the records that are part of it, and those that recovery drops.

use super::{Scans, numbers};
use crate::pool::ZonePool;
use crate::record::{Header, Kind};
use crate::root::Root;
use crate::scan::{Kept, Torn};
use crate::stream::{Sequences, StreamId};
use std::collections::BTreeSet;

/// A record that was found after the checkpoint and isn't part of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Its stream.
    pub stream: StreamId,
    /// Its number in the stream.
    pub sequence: u64,
    /// Its zone.
    pub zone: u32,
    /// Block of the zone with its header.
    pub position: u32,
    /// Some of its data is wrong; otherwise it is whole, and an earlier record is missing.
    pub is_torn: bool,
}

impl Dropped {
    pub(super) fn new(header: &Header, is_torn: bool) -> Self {
        let Header { stream, sequence, zone, position, .. } = *header;
        Dropped { stream, sequence, zone, position, is_torn }
    }
}

/// The records that are part of the log.
#[derive(Debug)]
pub struct Tail<K> {
    /// In the order of their streams and numbers.
    pub records: Vec<K>,
    /// The last record of each stream.
    pub end: Sequences,
    /// Number of valid records that are not part of the log: written and not acknowledged, or lost with an earlier one.
    pub discarded: u64,
    /// These records, and those with wrong data, by stream and number.
    pub dropped: Vec<Dropped>,
    /// Data blocks of `records` that differ from their checksums: zone and block, in order.
    pub damaged: Vec<(u32, u32)>,
    /// What can't be read and may have had records of the log, in words; only with [`Goal::Salvage`](super::Goal::Salvage).
    pub lost: Vec<String>,
}

impl<K> Tail<K> {
    /// Nothing after a checkpoint of everything.
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

    /// Logs what was dropped, and what is damaged. What is lost is logged by the owner, with what it finds lost itself.
    pub fn tell(&self) {
        self.describe().iter().for_each(|line| tracing::warn!("opening the log: {line}"));
    }

    /// Describes what was dropped, and what is damaged, for operators; nothing where the log ends at a whole record.
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

/// Decides about records with wrong data, once it is known what was durable: one that was is part of the log, and its data is
/// damaged; any other one may be the end of the log that a power cut left.
///
/// An append that failed was repeated elsewhere: a whole copy is believed, else the one with the least wrong data.
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
