//! Construction of tables.

use super::entries_writer::{EntriesWriter, common_prefix, order_after};
use super::filter::{self, key_hash};
use super::stored::{BlockHandle, BlockKind, Sealer, TRAILER_BYTES};
use super::summary::{FOOTER_BYTES, Summary, encode_footer};
use super::{Options, range_tombstones};
use crate::key_version::{
    KeyVersion, MAX_KEY_BYTES, MAX_VALUE_BYTES, RangeTombstone, Sequence, Value, earlier,
};
use block::{Error, Result};
use std::cmp::Ordering;
use zones::bytes::Writer;

/// Number of entries of a data block between restart points.
const RESTART_INTERVAL: usize = 4;
/// Maximum permitted size of data blocks, in bytes.
const MAX_DATA_BLOCK_BYTES: usize = 16 << 20;
/// Length in bytes at which an index block is ended: the index then gets a second level.
const INDEX_BLOCK_BYTES: usize = 256 << 10;

/// Builder of a table, from entries in order.
///
/// Its memory is the output that [`Builder::take_output`] hasn't taken, the index, 8 bytes for each key if
/// there is a filter, the range tombstones, and up to three times the largest block.
#[derive(Debug)]
pub struct Builder {
    options: Options,
    sealer: Sealer,
    block: EntriesWriter,
    index: IndexWriter,
    /// Key of the last entry.
    key: Vec<u8>,
    sequence: Sequence,
    /// Hashes of the keys, for the filter.
    hashes: Vec<u64>,
    range_tombstones: Vec<RangeTombstone>,
    range_tombstone_bytes: usize,
    summary: Summary,
}

/// Index that is being written; it has at most two levels.
#[derive(Debug)]
struct IndexWriter {
    /// Lower bounds of the present data block, and of the present index block.
    lower: Bound,
    leaf_lower: Bound,
    leaf: EntriesWriter,
    root: EntriesWriter,
    /// Length in bytes at which blocks below the root are ended.
    leaf_bytes: usize,
}

/// Lower bound of a block's entries: after the last entry of the previous block, at or before the first one
/// of this block.
#[derive(Debug, Clone)]
struct Bound {
    key: Vec<u8>,
    sequence: Sequence,
}

impl Builder {
    /// Returns a builder of an empty table.
    pub fn new(options: Options) -> Self {
        Self::with_index_blocks(options, INDEX_BLOCK_BYTES)
    }

    /// Returns a builder of a table whose index gets a second level at `leaf_bytes` bytes.
    pub(super) fn with_index_blocks(options: Options, leaf_bytes: usize) -> Self {
        let lowest = Bound { key: Vec::new(), sequence: Sequence::MAX };
        Builder {
            options: Options {
                block_bytes: options.block_bytes.min(MAX_DATA_BLOCK_BYTES),
                filter_bits: options.filter_bits.min(filter::MAX_BITS),
                ..options
            },
            sealer: Sealer::new(options.compression, options.salt),
            block: EntriesWriter::new(RESTART_INTERVAL),
            index: IndexWriter {
                lower: lowest.clone(),
                leaf_lower: lowest,
                leaf: EntriesWriter::new(1),
                root: EntriesWriter::new(1),
                leaf_bytes,
            },
            key: Vec::new(),
            sequence: 0,
            hashes: Vec::new(),
            range_tombstones: Vec::new(),
            range_tombstone_bytes: 0,
            summary: Summary { salt: options.salt, smallest_sequence: Sequence::MAX, ..Summary::default() },
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an entry that isn't [after](crate::key_version::order) the last one, or is too
    /// large. The table is unchanged then.
    pub fn add(&mut self, entry: KeyVersion<'_>) -> Result<()> {
        let KeyVersion { key, sequence, value } = entry;
        let value_bytes = match value {
            Value::Put { bytes, .. } => bytes.len(),
            Value::Tombstone { .. } => 0,
        };
        if key.len() > MAX_KEY_BYTES || value_bytes > MAX_VALUE_BYTES {
            return Err(too_large(key.len(), value_bytes));
        }
        let common = common_prefix(&self.key, key);
        let is_first = self.summary.entries == 0;
        let order = if is_first { Ordering::Less } else { order_after(common, &self.key, key) };
        if order == Ordering::Greater || (order == Ordering::Equal && self.sequence <= sequence) {
            return Err(self.out_of_order(&entry));
        }
        // A large entry gets its own block, so that the entries before it are read without it.
        let length = self.block.len();
        let wanted = self.options.block_bytes;
        if length >= wanted || length + key.len() + value_bytes > wanted.saturating_mul(2) {
            self.finish_block()?;
        }
        if self.block.is_empty() && !is_first {
            self.index.lower.set_between(self.sequence, common, &entry);
        }
        self.block.add(&entry, common);
        if order != Ordering::Equal {
            if self.options.filter_bits > 0 {
                self.hashes.push(key_hash(key));
            }
            if is_first {
                self.summary.smallest.extend_from_slice(key);
            }
            self.key.truncate(common);
            self.key.extend_from_slice(&key[common..]);
        }
        self.sequence = sequence;
        self.count(&entry, value_bytes);
        Ok(())
    }

    #[inline]
    fn count(&mut self, entry: &KeyVersion<'_>, value_bytes: usize) {
        let summary = &mut self.summary;
        summary.entries += 1;
        summary.key_bytes += entry.key.len() as u64;
        summary.value_bytes += value_bytes as u64;
        summary.count_sequence(entry.sequence);
        match entry.value {
            Value::Tombstone { deleted } => {
                summary.tombstones += 1;
                summary.oldest_tombstone = earlier(summary.oldest_tombstone, deleted);
            }
            Value::Put { expires: Some(expires), .. } => {
                summary.earliest_expiry = earlier(summary.earliest_expiry, expires);
            }
            Value::Put { expires: None, .. } => {}
        }
    }

    /// Adds a range tombstone, in any order; duplicates are stored once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an empty range or a key that is too large. The table is unchanged then.
    pub fn add_range_tombstone(&mut self, tombstone: RangeTombstone) -> Result<()> {
        let RangeTombstone { from, to, sequence, deleted } = &tombstone;
        if from.len() > MAX_KEY_BYTES || to.len() > MAX_KEY_BYTES {
            return Err(too_large(from.len().max(to.len()), 0));
        }
        if from >= to {
            return Err(Error::invalid(format!(
                "range tombstone from {} to {}: the range is empty; expected from < to",
                from.escape_ascii(),
                to.escape_ascii()
            )));
        }
        let summary = &mut self.summary;
        summary.count_sequence(*sequence);
        summary.oldest_tombstone = earlier(summary.oldest_tombstone, *deleted);
        self.range_tombstone_bytes += from.len() + to.len() + 16;
        self.range_tombstones.push(tombstone);
        Ok(())
    }

    /// Estimated length in bytes of the table if it ended here: buffered entries aren't compressed yet.
    pub fn bytes(&self) -> u64 {
        let index = self.index.leaf.len() + self.index.root.len();
        let filter = filter::encoded_bytes(self.hashes.len(), self.options.filter_bits);
        self.sealer.offset + (self.block.len() + index + filter + self.range_tombstone_bytes) as u64
    }

    /// Takes the next finished bytes of the table if there are at least `at_least`, which bounds the
    /// builder's memory; `None` otherwise.
    pub fn take_output(&mut self, at_least: usize) -> Option<Vec<u8>> {
        let output = &mut self.sealer.output;
        let is_enough = output.len() >= at_least && !output.is_empty();
        is_enough.then(|| std::mem::replace(output, Vec::with_capacity(at_least)))
    }

    /// Ends the table. Returns the bytes that weren't taken, and the summary.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the block of range tombstones would be too large.
    pub fn finish(mut self) -> Result<(Vec<u8>, Summary)> {
        self.finish_block()?;
        if self.summary.entries > 0 {
            if !self.hashes.is_empty() {
                let filter = filter::encode(&self.hashes, self.options.filter_bits);
                self.summary.filter = Some(self.sealer.seal(BlockKind::Filter, &filter)?);
            }
            let (root, levels) = self.index.finish(&mut self.sealer)?;
            (self.summary.index, self.summary.index_levels) = (Some(root), levels);
        }
        if !self.range_tombstones.is_empty() {
            self.range_tombstones.sort_unstable();
            self.range_tombstones.dedup();
            self.summary.range_tombstones = self.range_tombstones.len() as u64;
            let bytes = range_tombstones::encode(&self.range_tombstones);
            self.summary.range_tombstone_block = Some(self.sealer.seal(BlockKind::RangeTombstones, &bytes)?);
        }
        self.finish_summary();
        let mut properties = Writer::default();
        self.summary.encode(&mut properties);
        // The properties contain the length of the table; their own length doesn't depend on it.
        let length = self.sealer.offset + (properties.0.len() + TRAILER_BYTES + FOOTER_BYTES) as u64;
        self.summary.length = length;
        properties.0.clear();
        self.summary.encode(&mut properties);
        let properties = self.sealer.seal(BlockKind::Properties, &properties.0)?;
        let mut output = self.sealer.output;
        output.extend_from_slice(&encode_footer(properties));
        Ok((output, self.summary))
    }

    /// Completes the smallest and largest keys with those of range tombstones.
    fn finish_summary(&mut self) {
        let summary = &mut self.summary;
        summary.largest = std::mem::take(&mut self.key);
        if summary.entries + summary.range_tombstones == 0 {
            summary.smallest_sequence = 0;
        }
        // Range tombstones are sorted by their first keys.
        if let Some(first) = self.range_tombstones.first()
            && (summary.entries == 0 || first.from < summary.smallest)
        {
            summary.smallest.clone_from(&first.from);
        }
        let last = self.range_tombstones.iter().map(|tombstone| &tombstone.to).max();
        if let Some(last) = last.filter(|&last| *last > summary.largest) {
            summary.largest.clone_from(last);
            summary.largest_excluded = true;
        }
    }

    fn finish_block(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let handle = self.sealer.seal(BlockKind::Data, self.block.finish())?;
        self.block.clear();
        self.summary.data_blocks += 1;
        self.index.add(handle, &mut self.sealer)
    }

    #[cold]
    fn out_of_order(&self, entry: &KeyVersion<'_>) -> Error {
        Error::invalid(format!(
            "table entry {} with sequence {} after {} with sequence {}; expected rising keys and, of one key, falling sequences",
            entry.key.escape_ascii(),
            entry.sequence,
            self.key.escape_ascii(),
            self.sequence
        ))
    }
}

impl Summary {
    fn count_sequence(&mut self, sequence: Sequence) {
        self.smallest_sequence = self.smallest_sequence.min(sequence);
        self.largest_sequence = self.largest_sequence.max(sequence);
    }
}

impl IndexWriter {
    /// Adds a data block whose lower bound is `lower`.
    fn add(&mut self, block: BlockHandle, sealer: &mut Sealer) -> Result<()> {
        if !self.leaf.is_empty() && self.leaf.len() >= self.leaf_bytes {
            self.finish_leaf(sealer)?;
        }
        if self.leaf.is_empty() {
            self.leaf_lower.clone_from(&self.lower);
        }
        self.leaf.add_child(&self.lower.key, self.lower.sequence, block.offset, block.length);
        Ok(())
    }

    fn finish_leaf(&mut self, sealer: &mut Sealer) -> Result<()> {
        let leaf = sealer.seal(BlockKind::Index, self.leaf.finish())?;
        self.leaf.clear();
        self.root.add_child(&self.leaf_lower.key, self.leaf_lower.sequence, leaf.offset, leaf.length);
        Ok(())
    }

    /// Ends the index. Returns its root and the number of levels.
    fn finish(&mut self, sealer: &mut Sealer) -> Result<(BlockHandle, u8)> {
        if self.root.is_empty() {
            return Ok((sealer.seal(BlockKind::Index, self.leaf.finish())?, 1));
        }
        self.finish_leaf(sealer)?;
        Ok((sealer.seal(BlockKind::Index, self.root.finish())?, 2))
    }
}

impl Bound {
    /// Sets the shortest bound after the previous entry and up to `entry`. The previous entry has the
    /// sequence `sequence`, and its key shares `common` bytes with that of `entry`.
    ///
    /// All entries that a read of `entry`'s key may find are on the same side, so a get needs one block.
    fn set_between(&mut self, sequence: Sequence, common: usize, entry: &KeyVersion<'_>) {
        self.key.clear();
        match entry.key.get(..=common) {
            Some(key) => {
                self.key.extend_from_slice(key);
                self.sequence = Sequence::MAX;
            }
            // `entry` is an older version of the same key.
            None => {
                self.key.extend_from_slice(entry.key);
                self.sequence = sequence.saturating_sub(1);
            }
        }
    }
}

#[cold]
fn too_large(key: usize, value: usize) -> Error {
    Error::invalid(format!(
        "table entry with a key of {key} bytes and a value of {value}; expected at most {MAX_KEY_BYTES} and {MAX_VALUE_BYTES}"
    ))
}
