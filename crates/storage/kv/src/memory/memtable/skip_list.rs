//! An unrolled skip list of entries: a skip list (Pugh, "Skip Lists: A Probabilistic Alternative to Balanced
//! Trees", 1990) whose elements are leaves of up to 32 entries.
//!
//! The list consists of three vectors, whose elements refer to each other by index. Entries are only added.
//!
//! ```text
//!  index   node = leaf, its first record · one link for each level = first 12 bytes of that record's key, next node
//!  leaves  leaf = up to 32 × (first 12 bytes of the key, record) in order · next leaf, previous leaf
//!  records sequence · header · time · key · value
//! ```
//!
//! A search has few cache misses: the index has one node for about twenty entries and stays in the
//! processor's cache, a leaf is searched by the first bytes of its keys, and a record is read only if these
//! are equal. A full leaf moves its upper half to a new one; its first entry, which the index names, stays
//! the same.
//!
//! The vectors are created with the capacity that the owner will use: the kernel allocates pages on the first
//! write, and nothing is moved. A record has a time if it is a tombstone or expires. A value of more than
//! [`MAX_INLINE_BYTES`] is a separate allocation, and the record has its number.

use crate::key_version::{KeyVersion, MAX_KEY_BYTES, Sequence, Timestamp, Value, order};
use runtime::Random;
use std::cmp::Ordering;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Maximum size of a value that is stored among the records, in bytes.
const MAX_INLINE_BYTES: usize = 4096;

/// Number of entries of a leaf.
const LEAF: usize = 32;
/// Maximum number of levels of the index: enough for 4^12 leaves.
const MAX_LEVELS: usize = 12;
/// Number of words of a link of the index.
const LINK: usize = 2;
/// Overhead of a large value in bytes: pointer, length, and reference counts.
const LARGE_VALUE_OVERHEAD: usize = 32;

/// Index of a record's first word.
type Record = u32;
/// Number of a leaf. Leaf 0 is the first one, so as a successor 0 means none.
type LeafNumber = u32;
/// Index of a node's first word. Node 0 is the first one, so as a successor 0 means none.
type Node = u32;

const FULL: &str = "memtable of 32 GiB; expected a bound on its bytes";

/// Position of an entry. It stays valid while other entries are inserted, although these may move the entry
/// to a later leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    leaf: LeafNumber,
    slot: usize,
    record: Record,
}

/// First bytes of a key, padded with zeros. Different prefixes order the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    /// Bytes 0 to 7.
    high: u64,
    /// Bytes 8 to 11.
    low: u32,
}

impl Prefix {
    /// Prefix at the end of the list: no key has a larger one.
    const END: Prefix = Prefix { high: u64::MAX, low: u32::MAX };

    fn of(key: &[u8]) -> Prefix {
        let bytes = match key.first_chunk::<12>() {
            Some(bytes) => *bytes,
            None => {
                let mut bytes = [0; 12];
                bytes[..key.len()].copy_from_slice(key);
                bytes
            }
        };
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Prefix { high: u64::from_be_bytes([a, b, c, d, e, f, g, h]), low: u32::from_be_bytes([i, j, k, l]) }
    }
}

/// Header of a record.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// Length of the key, in bytes.
    key: usize,
    /// Length of the value in the record, in bytes.
    value: usize,
    tombstone: bool,
    /// Whether the record has a time: of the deletion, or of the value's expiry.
    timed: bool,
    /// Whether the value in the record is the number of a large value.
    large: bool,
}

impl Header {
    fn encode(self) -> u64 {
        let flags = u64::from(self.tombstone) | u64::from(self.timed) << 1 | u64::from(self.large) << 2;
        flags | (self.value as u64) << 16 | (self.key as u64) << 32
    }

    fn decode(word: u64) -> Header {
        Header {
            key: (word >> 32) as usize,
            value: (word >> 16 & 0xFFFF) as usize,
            tombstone: word & 1 != 0,
            timed: word & 2 != 0,
            large: word & 4 != 0,
        }
    }
}

/// Consecutive entries. Parts of their prefixes are in separate arrays, so that a search reads only what it
/// compares.
#[derive(Debug)]
struct Leaf {
    highs: [u64; LEAF],
    lows: [u32; LEAF],
    records: [Record; LEAF],
    length: usize,
    /// Next and previous leaf; 0 for no next one.
    next: LeafNumber,
    previous: LeafNumber,
}

impl Leaf {
    fn between(previous: LeafNumber, next: LeafNumber) -> Leaf {
        Leaf { highs: [0; LEAF], lows: [0; LEAF], records: [0; LEAF], length: 0, next, previous }
    }

    fn insert(&mut self, slot: usize, prefix: Prefix, record: Record) {
        self.highs.copy_within(slot..self.length, slot + 1);
        self.lows.copy_within(slot..self.length, slot + 1);
        self.records.copy_within(slot..self.length, slot + 1);
        (self.highs[slot], self.lows[slot], self.records[slot]) = (prefix.high, prefix.low, record);
        self.length += 1;
    }

    /// Moves the upper half of the entries to an empty leaf.
    fn split(&mut self, upper: &mut Leaf) {
        let half = LEAF / 2;
        upper.highs[..half].copy_from_slice(&self.highs[half..]);
        upper.lows[..half].copy_from_slice(&self.lows[half..]);
        upper.records[..half].copy_from_slice(&self.records[half..]);
        (self.length, upper.length) = (half, half);
    }
}

/// Value in a list.
#[derive(Debug)]
pub enum StoredValue<'a> {
    /// Value in the records.
    Inline(&'a [u8]),
    /// Value in an allocation of its own.
    Large(&'a Rc<[u8]>),
}

impl<'a> StoredValue<'a> {
    /// Bytes of the value.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            StoredValue::Inline(bytes) => bytes,
            StoredValue::Large(bytes) => bytes,
        }
    }
}

/// Kind of an entry, with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A value.
    Put {
        /// Time at which the value expires; `None` if it never does.
        expires: Option<Timestamp>,
    },
    /// A tombstone.
    Tombstone {
        /// Time of the deletion.
        deleted: Timestamp,
    },
}

impl RecordKind {
    /// Returns a value of this kind with `bytes`.
    pub fn with(self, bytes: &[u8]) -> Value<'_> {
        match self {
            RecordKind::Put { expires } => Value::Put { bytes, expires },
            RecordKind::Tombstone { deleted } => Value::Tombstone { deleted },
        }
    }
}

/// Ordered entries; they are only added.
#[derive(Debug)]
pub struct SkipList {
    index: Vec<u64>,
    leaves: Vec<Leaf>,
    records: Vec<u64>,
    /// Number of levels of the index in use.
    levels: usize,
    /// Number of the last leaf.
    last: LeafNumber,
    large_values: Vec<Rc<[u8]>>,
    large_bytes: usize,
    random: Random,
    length: usize,
}

impl SkipList {
    /// Returns an empty list that reallocates nothing until its entries take about `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut index = Vec::with_capacity(bytes / 512 + 1024);
        index.push(0);
        for _ in 0..MAX_LEVELS {
            index.extend([Prefix::END.high, u64::from(Prefix::END.low) << 32]);
        }
        let mut leaves = Vec::with_capacity(bytes / 4 / size_of::<Leaf>() + 1);
        leaves.push(Leaf::between(0, 0));
        SkipList {
            index,
            leaves,
            records: Vec::with_capacity(bytes / 8),
            levels: 1,
            last: 0,
            large_values: Vec::new(),
            large_bytes: 0,
            random: Random::new(0x5117_5704),
            length: 0,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Memory of the entries, in bytes.
    pub fn bytes(&self) -> usize {
        (self.index.len() + self.records.len()) * 8
            + self.leaves.len() * size_of::<Leaf>()
            + self.large_bytes
            + self.large_values.len() * LARGE_VALUE_OVERHEAD
    }

    /// Adds an entry, unless one with its key and sequence exists. Returns whether it was added.
    ///
    /// # Panics
    /// If the key has more than [`MAX_KEY_BYTES`], or the entries would take more than 32 GiB.
    pub fn insert(&mut self, entry: KeyVersion<'_>) -> bool {
        assert!(
            entry.key.len() <= MAX_KEY_BYTES,
            "key of {} bytes in a memtable; expected at most {MAX_KEY_BYTES}",
            entry.key.len()
        );
        let prefix = Prefix::of(entry.key);
        let (mut leaf, mut slot) = match self.end_before(prefix, entry.key, entry.sequence) {
            Some(end) => end,
            None => self.search(prefix, entry.key, entry.sequence),
        };
        if let Some(position) = self.at(leaf, slot)
            && self.key(position.record) == (entry.key, entry.sequence)
        {
            return false;
        }
        let record = self.push_record(entry);
        self.length += 1;
        if self.leaf(leaf).length < LEAF {
            self.leaves[leaf as usize].insert(slot, prefix, record);
            return true;
        }

        let new = LeafNumber::try_from(self.leaves.len()).expect(FULL);
        let next = self.leaf(leaf).next;
        let mut upper = Leaf::between(leaf, next);
        if next == 0 && slot == LEAF {
            // Ascending keys fill their leaves.
            (leaf, slot) = (new, 0);
        } else {
            self.leaves[leaf as usize].split(&mut upper);
            if slot > LEAF / 2 {
                (leaf, slot) = (new, slot - LEAF / 2);
            }
        }
        self.leaves[upper.previous as usize].next = new;
        match next {
            0 => self.last = new,
            next => self.leaves[next as usize].previous = new,
        }
        self.leaves.push(upper);
        self.leaves[leaf as usize].insert(slot, prefix, record);
        self.push_node(new);
        true
    }

    /// Position of the first entry.
    pub fn first(&self) -> Option<Position> {
        self.at(0, 0)
    }

    /// Position of the last entry.
    pub fn last(&self) -> Option<Position> {
        self.before_slot(self.last, self.leaf(self.last).length)
    }

    /// Position of the first entry at or after (`key`, `sequence`).
    #[inline]
    pub fn at_or_after(&self, key: &[u8], sequence: Sequence) -> Option<Position> {
        let (leaf, slot) = self.search(Prefix::of(key), key, sequence);
        self.at(leaf, slot)
    }

    /// Position of the last entry before (`key`, `sequence`).
    pub fn before(&self, key: &[u8], sequence: Sequence) -> Option<Position> {
        let (leaf, slot) = self.search(Prefix::of(key), key, sequence);
        self.before_slot(leaf, slot)
    }

    /// Position of the entry after `position`.
    #[inline]
    pub fn next(&self, position: Position) -> Option<Position> {
        let (leaf, slot) = self.locate(position);
        self.at(leaf, slot + 1)
    }

    /// Position of the entry before `position`.
    #[inline]
    pub fn previous(&self, position: Position) -> Option<Position> {
        let (leaf, slot) = self.locate(position);
        self.before_slot(leaf, slot)
    }

    /// Key, sequence, kind and value of the entry at `position`.
    #[inline]
    pub fn read(&self, position: Position) -> (&[u8], Sequence, RecordKind, StoredValue<'_>) {
        let record = position.record as usize;
        let header = Header::decode(self.records[record + 1]);
        let start = record + 2 + usize::from(header.timed);
        let words = (header.key + header.value).div_ceil(8);
        let (key, value) = self.records[start..start + words].as_bytes().split_at(header.key);
        let value = match value[..header.value].try_into() {
            Ok(number) if header.large => {
                StoredValue::Large(&self.large_values[u64::from_le_bytes(number) as usize])
            }
            _ => StoredValue::Inline(&value[..header.value]),
        };
        let time = header.timed.then(|| self.records[record + 2]);
        let kind = if header.tombstone {
            RecordKind::Tombstone { deleted: time.unwrap_or_default() }
        } else {
            RecordKind::Put { expires: time }
        };
        (key, self.records[record], kind, value)
    }

    /// Entry at `position`.
    pub fn entry(&self, position: Position) -> KeyVersion<'_> {
        let (key, sequence, kind, value) = self.read(position);
        KeyVersion { key, sequence, value: kind.with(value.bytes()) }
    }

    /// Finds the place of (`key`, `sequence`): the leaf, and the number of its entries before that. In all
    /// leaves except the first this number is at least one.
    #[inline]
    fn search(&self, prefix: Prefix, key: &[u8], sequence: Sequence) -> (LeafNumber, usize) {
        let node = self.search_index(prefix, key, sequence, |_, _| {});
        let leaf = self.index[node as usize] as LeafNumber;
        (leaf, self.slot(leaf, prefix, key, sequence))
    }

    /// Returns the end of the list if all entries are before (`key`, `sequence`).
    fn end_before(&self, prefix: Prefix, key: &[u8], sequence: Sequence) -> Option<(LeafNumber, usize)> {
        let leaf = self.leaf(self.last);
        let Some(slot) = leaf.length.checked_sub(1) else { return Some((self.last, 0)) };
        let is_before = match (Prefix { high: leaf.highs[slot], low: leaf.lows[slot] }).cmp(&prefix) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => self.precedes(leaf.records[slot], key, sequence),
        };
        is_before.then_some((self.last, leaf.length))
    }

    /// Finds the last node of each level whose leaf begins before (`key`, `sequence`), and returns the node
    /// of the lowest level.
    #[inline]
    fn search_index(
        &self,
        prefix: Prefix,
        key: &[u8],
        sequence: Sequence,
        mut found: impl FnMut(usize, Node),
    ) -> Node {
        let mut node = 0;
        // Node that ended the search in the level above: if it is also the next one here, it isn't compared
        // again.
        let mut after = 0;
        for level in (0..self.levels).rev() {
            loop {
                let (next_prefix, next) = self.link(node, level);
                let moves = match next_prefix.cmp(&prefix) {
                    Ordering::Less => true,
                    Ordering::Greater => false,
                    Ordering::Equal => {
                        let record = (self.index[next as usize] >> 32) as Record;
                        next != after && next != 0 && self.precedes(record, key, sequence)
                    }
                };
                if !moves {
                    after = next;
                    break;
                }
                node = next;
            }
            found(level, node);
        }
        node
    }

    /// Number of a leaf's entries that are before (`key`, `sequence`).
    #[inline]
    fn slot(&self, leaf: LeafNumber, prefix: Prefix, key: &[u8], sequence: Sequence) -> usize {
        let leaf = self.leaf(leaf);
        // A linear count instead of a binary search: its cache lines are fetched in parallel.
        let highs = &leaf.highs[..leaf.length];
        let less = highs.iter().filter(|high| **high < prefix.high).count();
        let same = highs.iter().filter(|high| **high == prefix.high).count();
        let lows = &leaf.lows[less..less + same];
        let first = less + lows.partition_point(|low| *low < prefix.low);
        let end = less + lows.partition_point(|low| *low <= prefix.low);
        first + leaf.records[first..end].partition_point(|record| self.precedes(*record, key, sequence))
    }

    /// Whether a record is before (`key`, `sequence`).
    fn precedes(&self, record: Record, key: &[u8], sequence: Sequence) -> bool {
        order(self.key(record), (key, sequence)).is_lt()
    }

    /// Key and sequence of a record.
    #[inline]
    fn key(&self, record: Record) -> (&[u8], Sequence) {
        let record = record as usize;
        let header = Header::decode(self.records[record + 1]);
        let start = record + 2 + usize::from(header.timed);
        let key = &self.records[start..start + header.key.div_ceil(8)].as_bytes()[..header.key];
        (key, self.records[record])
    }

    #[inline]
    fn leaf(&self, number: LeafNumber) -> &Leaf {
        &self.leaves[number as usize]
    }

    /// Position of a slot; after the last slot, that of the next leaf's first entry.
    #[inline]
    fn at(&self, mut leaf: LeafNumber, mut slot: usize) -> Option<Position> {
        if slot == self.leaf(leaf).length {
            (leaf, slot) = (self.leaf(leaf).next, 0);
            if leaf == 0 {
                return None;
            }
        }
        Some(Position { leaf, slot, record: self.leaf(leaf).records[slot] })
    }

    /// Position of the entry before a slot.
    #[inline]
    fn before_slot(&self, mut leaf: LeafNumber, mut slot: usize) -> Option<Position> {
        if slot == 0 {
            if leaf == 0 {
                return None;
            }
            leaf = self.leaf(leaf).previous;
            slot = self.leaf(leaf).length;
        }
        Some(Position { leaf, slot: slot - 1, record: self.leaf(leaf).records[slot - 1] })
    }

    /// Leaf and slot of an entry, also after inserts that moved it.
    #[inline]
    fn locate(&self, position: Position) -> (LeafNumber, usize) {
        if self.leaf(position.leaf).records[position.slot] == position.record
            && position.slot < self.leaf(position.leaf).length
        {
            return (position.leaf, position.slot);
        }
        let mut number = position.leaf;
        loop {
            let leaf = self.leaf(number);
            if let Some(slot) =
                leaf.records[..leaf.length].iter().position(|record| *record == position.record)
            {
                return (number, slot);
            }
            assert!(leaf.next != 0, "record {} isn't in leaf {} or after it", position.record, position.leaf);
            number = leaf.next;
        }
    }

    #[inline]
    fn link(&self, node: Node, level: usize) -> (Prefix, Node) {
        let at = node as usize + 1 + LINK * level;
        let [high, low] = self.index[at..at + LINK] else { unreachable!("a link has two words") };
        (Prefix { high, low: (low >> 32) as u32 }, low as Node)
    }

    /// Appends a record and returns it.
    fn push_record(&mut self, entry: KeyVersion<'_>) -> Record {
        let (value, time, tombstone): (&[u8], _, _) = match entry.value {
            Value::Put { bytes, expires } => (bytes, expires, false),
            Value::Tombstone { deleted } => (&[], Some(deleted), true),
        };
        let number = (self.large_values.len() as u64).to_le_bytes();
        let large = value.len() > MAX_INLINE_BYTES;
        let value = if large {
            self.large_values.push(value.into());
            self.large_bytes += value.len();
            &number
        } else {
            value
        };

        let record = self.records.len();
        let header =
            Header { key: entry.key.len(), value: value.len(), tombstone, timed: time.is_some(), large };
        self.records.extend([entry.sequence, header.encode()]);
        self.records.extend(time);
        let start = self.records.len();
        self.records.resize(start + (header.key + header.value).div_ceil(8), 0);
        let (key_bytes, rest) = self.records[start..].as_mut_bytes().split_at_mut(header.key);
        key_bytes.copy_from_slice(entry.key);
        rest[..header.value].copy_from_slice(value);
        Record::try_from(record).expect(FULL)
    }

    /// Adds a leaf to the index.
    fn push_node(&mut self, number: LeafNumber) {
        let leaf = self.leaf(number);
        let (prefix, record) = (Prefix { high: leaf.highs[0], low: leaf.lows[0] }, leaf.records[0]);
        let levels = self.draw_levels();
        self.levels = self.levels.max(levels);
        let mut before = [0; MAX_LEVELS];
        let (key, sequence) = self.key(record);
        self.search_index(prefix, key, sequence, |level, node| before[level] = node);

        let node = Node::try_from(self.index.len()).expect(FULL);
        self.index.push(u64::from(record) << 32 | u64::from(number));
        for (level, &before) in before.iter().enumerate().take(levels) {
            let at = before as usize + 1 + LINK * level;
            self.index.extend_from_within(at..at + LINK);
            self.index[at..at + LINK]
                .copy_from_slice(&[prefix.high, u64::from(prefix.low) << 32 | u64::from(node)]);
        }
    }

    /// Draws the number of levels of a node; each further level has a probability of 1/4.
    fn draw_levels(&mut self) -> usize {
        let limit = 1 << (2 * (MAX_LEVELS - 1));
        1 + (self.random.next_u64() | limit).trailing_zeros() as usize / 2
    }
}
