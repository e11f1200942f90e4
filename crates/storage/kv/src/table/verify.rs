//! Verification of a whole table: its footer, properties, index and filter, and every entry of every block.
//!
//! A damaged block doesn't prevent the verification of the others; only sums over all entries are then
//! omitted.

use super::block::Block;
use super::entries::Entries;
use super::reader::BlockSource;
use super::stored::BlockHandle;
use super::summary::Summary;
use super::{FOOTER_BYTES, decode_footer, key_hash};
use crate::key_version::{KeyVersion, Sequence, Timestamp, Value, earlier, order};
use block::{Error, Result};
use std::cmp::Ordering;
use std::sync::Arc;

/// Result of the verification of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Number of undamaged blocks.
    pub blocks: u64,
    /// Number of entries of undamaged data blocks.
    pub entries: u64,
    /// Number of tombstones among these entries.
    pub tombstones: u64,
}

/// Sums over entries.
#[derive(Debug, Default)]
struct Sums {
    verified: Verified,
    key_bytes: u64,
    value_bytes: u64,
    sequences: Option<(Sequence, Sequence)>,
    oldest_tombstone: Option<Timestamp>,
    earliest_expiry: Option<Timestamp>,
    /// First key, and last entry.
    first: Option<Vec<u8>>,
    last: Option<(Vec<u8>, Sequence)>,
}

impl Entries {
    /// Visits all entries in order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the first entry that is invalid or out of order.
    fn for_each(&self, mut visit: impl FnMut(KeyVersion<'_>)) -> Result<()> {
        let mut key = Vec::new();
        let mut last: Option<Sequence> = None;
        for restart in 0..self.restarts() {
            let (mut at, end) = (self.restart(restart), self.interval_end(restart));
            let mut is_restart = true;
            while at < end {
                let header = self.header(at)?;
                if header.shared > key.len() || is_restart && header.shared > 0 || header.end > end {
                    return Err(self.corrupt(at, "its shared length or its end is out of range"));
                }
                let body = self.body(&header)?;
                let rest = self.rest(&header);
                let is_after = last.is_none_or(|last| {
                    key[header.shared..].cmp(rest).then(body.sequence.cmp(&last)) == Ordering::Less
                });
                if !is_after {
                    return Err(self.corrupt(at, "it isn't after the one before"));
                }
                key.truncate(header.shared);
                key.extend_from_slice(rest);
                last = Some(body.sequence);
                visit(KeyVersion { key: &key, sequence: body.sequence, value: self.value(&body) });
                (at, is_restart) = (header.end, false);
            }
        }
        Ok(())
    }
}

impl Sums {
    fn add(&mut self, entry: &KeyVersion<'_>) {
        self.verified.entries += 1;
        self.key_bytes += entry.key.len() as u64;
        let (low, high) = self.sequences.unwrap_or((entry.sequence, entry.sequence));
        self.sequences = Some((low.min(entry.sequence), high.max(entry.sequence)));
        match entry.value {
            Value::Put { bytes, expires } => {
                self.value_bytes += bytes.len() as u64;
                if let Some(expires) = expires {
                    self.earliest_expiry = earlier(self.earliest_expiry, expires);
                }
            }
            Value::Tombstone { deleted } => {
                self.verified.tombstones += 1;
                self.oldest_tombstone = earlier(self.oldest_tombstone, deleted);
            }
        }
        self.first.get_or_insert_with(|| entry.key.to_vec());
        match &mut self.last {
            Some((key, sequence)) => {
                key.clear();
                key.extend_from_slice(entry.key);
                *sequence = entry.sequence;
            }
            None => self.last = Some((entry.key.to_vec(), entry.sequence)),
        }
    }
}

/// State of the verification of one table.
struct Verification<'a, S> {
    source: &'a S,
    summary: &'a Summary,
    problem: &'a mut dyn FnMut(String),
    sums: Sums,
    /// Whether a block is damaged, so that sums over all entries are unknown.
    has_gap: bool,
}

impl<S: BlockSource> Verification<'_, S> {
    /// Reads a block; reports damage and returns `None` if it is damaged.
    async fn read(&mut self, handle: BlockHandle) -> Result<Option<Arc<Block>>> {
        match self.source.read(handle).await {
            Ok(block) => {
                self.sums.verified.blocks += 1;
                Ok(Some(block))
            }
            Err(error) => self.note(error).map(|()| None),
        }
    }

    /// Reports damage; returns other errors.
    fn note(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt(detail) => (self.problem)(detail.to_string()),
            Error::Io(detail) => (self.problem)(format!("{detail}: it can't be read")),
            error => return Err(error),
        }
        self.has_gap = true;
        Ok(())
    }

    /// Compares the table's own copy of the summary with that of the manifest. `footer` has the last bytes of
    /// the table.
    async fn properties(&mut self, footer: Result<[u8; FOOTER_BYTES]>) -> Result<()> {
        let handle = match footer.and_then(|footer| decode_footer(&footer, self.summary.length)) {
            Ok(handle) if handle.salt == self.summary.salt => handle,
            Ok(handle) => {
                (self.problem)(format!(
                    "the footer has the salt {:#x}; expected {:#x}",
                    handle.salt, self.summary.salt
                ));
                return Ok(());
            }
            Err(error) => return self.note(error),
        };
        let had_gap = self.has_gap;
        if let Some(block) = self.read(handle).await? {
            match block.summary() {
                Ok(found) if found == self.summary => {}
                Ok(_) => {
                    (self.problem)("its properties differ from those that the manifest has of it".to_owned())
                }
                Err(error) => self.note(error)?,
            }
        }
        self.has_gap = had_gap;
        Ok(())
    }

    async fn range_tombstones(&mut self) -> Result<()> {
        let Some(handle) = self.summary.range_tombstone_block else { return Ok(()) };
        let Some(block) = self.read(handle).await? else { return Ok(()) };
        let tombstones = match block.range_tombstones() {
            Ok(tombstones) => tombstones.clone(),
            Err(error) => return self.note(error),
        };
        if tombstones.len() as u64 != self.summary.range_tombstones {
            (self.problem)(format!(
                "{} range tombstones; expected {}",
                tombstones.len(),
                self.summary.range_tombstones
            ));
        }
        for range in tombstones.iter() {
            if range.from < self.summary.smallest || range.to > self.summary.largest {
                (self.problem)("a range tombstone is outside of the table's bounds".to_owned());
            }
            let sums = &mut self.sums;
            let (low, high) = sums.sequences.unwrap_or((range.sequence, range.sequence));
            sums.sequences = Some((low.min(range.sequence), high.max(range.sequence)));
            sums.oldest_tombstone = earlier(sums.oldest_tombstone, range.deleted);
        }
        Ok(())
    }

    /// Verifies the data blocks below an index block, and that the index locates their entries.
    async fn data_below(
        &mut self,
        index: &Block,
        filter: Option<&Block>,
        blocks: &mut u64,
        from: &mut u64,
    ) -> Result<()> {
        let entries = match index.index() {
            Ok(entries) => entries,
            Err(error) => return self.note(error),
        };
        for child in 0..entries.restarts() {
            let handle = match entries.child(child, self.summary.salt) {
                Ok(handle) => handle,
                Err(error) => {
                    self.note(error)?;
                    continue;
                }
            };
            if handle.offset < *from {
                (self.problem)(format!("the data block at {} overlaps the one before", handle.offset));
            }
            (*blocks, *from) = (*blocks + 1, handle.end());
            if let Some(block) = self.read(handle).await? {
                self.data(&block, handle, entries, child, filter)?;
            }
        }
        Ok(())
    }

    fn data(
        &mut self,
        block: &Block,
        handle: BlockHandle,
        index: &Entries,
        child: usize,
        filter: Option<&Block>,
    ) -> Result<()> {
        let (mut wrong, summary) = (None, self.summary);
        let sums = &mut self.sums;
        let visited = block.data().and_then(|entries| {
            entries.for_each(|entry| {
                let is_after = sums.last.as_ref().is_none_or(|(key, sequence)| {
                    order((key, *sequence), (entry.key, entry.sequence)) == Ordering::Less
                });
                let is_inside =
                    summary.smallest.as_slice() <= entry.key && entry.key <= summary.largest.as_slice();
                let is_in_filter = filter
                    .and_then(|filter| filter.filter().ok())
                    .is_none_or(|filter| filter.may_contain(key_hash(entry.key)));
                let is_led_to = index.child_of(entry.key, entry.sequence).is_ok_and(|found| found == child);
                let what = match (is_after, is_inside, is_in_filter, is_led_to) {
                    (false, ..) => Some("isn't after the one before"),
                    (_, false, ..) => Some("is outside of the table's bounds"),
                    (_, _, false, _) => Some("isn't in the filter"),
                    (.., false) => Some("isn't where the index leads"),
                    _ => None,
                };
                if let Some(what) = what {
                    wrong.get_or_insert(what);
                }
                sums.add(&entry);
            })
        });
        if let Some(what) = wrong {
            (self.problem)(format!("table block at {}: an entry {what}", handle.offset));
        }
        visited.or_else(|error| self.note(error))
    }

    fn compare_sums(&mut self, blocks: u64) {
        let (sums, summary) = (&self.sums, self.summary);
        let (low, high) = sums.sequences.unwrap_or((0, 0));
        let pairs = [
            ("entries", sums.verified.entries, summary.entries),
            ("tombstones", sums.verified.tombstones, summary.tombstones),
            ("bytes of keys", sums.key_bytes, summary.key_bytes),
            ("bytes of values", sums.value_bytes, summary.value_bytes),
            ("data blocks", blocks, summary.data_blocks),
            ("smallest sequence", low, summary.smallest_sequence),
            ("largest sequence", high, summary.largest_sequence),
            ("oldest tombstone", sums.oldest_tombstone.unwrap_or(0), summary.oldest_tombstone.unwrap_or(0)),
            ("earliest expiry", sums.earliest_expiry.unwrap_or(0), summary.earliest_expiry.unwrap_or(0)),
        ];
        for (what, found, expected) in pairs.into_iter().filter(|(_, found, expected)| found != expected) {
            (self.problem)(format!("{what}: {found}; expected {expected}"));
        }
        if summary.range_tombstones == 0 {
            let bounds =
                (sums.first.as_deref().unwrap_or(&[]), sums.last.as_ref().map_or(&[][..], |(key, _)| key));
            if bounds != (summary.smallest.as_slice(), summary.largest.as_slice()) {
                (self.problem)("its first and last key aren't the bounds that the manifest names".to_owned());
            }
        }
    }
}

/// Verifies a table with this summary. `footer` has its last bytes; `problem` gets the description of each
/// problem.
///
/// # Errors
/// Errors other than damage and failed reads.
pub async fn verify<S: BlockSource>(
    source: &S,
    summary: &Summary,
    footer: Result<[u8; FOOTER_BYTES]>,
    problem: &mut dyn FnMut(String),
) -> Result<Verified> {
    let mut verification = Verification { source, summary, problem, sums: Sums::default(), has_gap: false };
    verification.properties(footer).await?;
    verification.range_tombstones().await?;
    let filter = match summary.filter {
        Some(handle) => {
            let block = verification.read(handle).await?;
            // The entries can be verified without the filter.
            verification.has_gap = false;
            block
        }
        None => None,
    };
    let (mut blocks, mut from) = (0, 0);
    if let Some(handle) = summary.index
        && let Some(root) = verification.read(handle).await?
    {
        match summary.index_levels {
            2 => {
                let entries = root.index();
                let count = entries.as_ref().map_or(0, |entries| entries.restarts());
                for child in 0..count {
                    match root.index().and_then(|entries| entries.child(child, summary.salt)) {
                        Ok(handle) => {
                            if let Some(index) = verification.read(handle).await? {
                                verification
                                    .data_below(&index, filter.as_deref(), &mut blocks, &mut from)
                                    .await?;
                            }
                        }
                        Err(error) => verification.note(error)?,
                    }
                }
                if let Err(error) = entries {
                    verification.note(error)?;
                }
            }
            _ => verification.data_below(&root, filter.as_deref(), &mut blocks, &mut from).await?,
        }
    }
    if !verification.has_gap {
        verification.compare_sums(blocks);
    }
    Ok(verification.sums.verified)
}
