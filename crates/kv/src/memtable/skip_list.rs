//! A skip list of entries in an arena (Pugh, "Skip Lists: A Probabilistic Alternative to Balanced Trees", 1990).
//!
//! The arena is one vector of 64-bit words, and a node is addressed by the index of its first word. Entries are only added. The list is
//! created with the capacity that its owner will use: the kernel provides the memory when it is first written, so that the vector need
//! not be moved.
//!
//! A search reads the lines of memory that decide it and few others: each link holds the first twelve bytes of the key that it leads
//! to, so that a node is read only when the search moves to it, or when its key has the same first bytes.
//!
//! ```text
//!            tower, highest level first                        node
//!  ┌───────────────┬──────────────────────────┬───┬──────────┬────────┬──────┬─────┬───────┐
//!  │ prefix 0..8   │ prefix 8..12 │ next node │ … │ sequence │ header │ time │ key │ value │
//!  └───────────────┴──────────────────────────┴───┴──────────┴────────┴──────┴─────┴───────┘
//!    one link: two words                            header: previous node, lengths, flags
//! ```
//!
//! The time is there for tombstones and for values that expire. A value of more than [`MOST_INLINE_BYTES`] is an allocation of its own,
//! and the node has its number.

use crate::entry::{Entry, MOST_KEY_BYTES, Sequence, Timestamp, Value, order};
use runtime::Random;
use std::cmp::Ordering;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Largest value that is stored in the arena, in bytes.
pub const MOST_INLINE_BYTES: usize = 4096;

/// Most levels: enough for 4^12 entries.
const MOST_LEVELS: usize = 12;
/// Words of a link.
const LINK: usize = 2;
/// The node before the first one; it has all levels and no entry.
const HEAD: Node = Node((LINK * MOST_LEVELS) as u32);
/// Bytes that a large value costs in addition to its own: its pointer, its length, and the counts of its references.
const LARGE_VALUE_OVERHEAD: usize = 32;

/// A node: the index of its first word; the end of the list is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(u32);

impl Node {
    const NONE: Node = Node(0);

    fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the node, or `None` for both ends of the list.
    fn some(self) -> Option<Node> {
        (self != Node::NONE && self != HEAD).then_some(self)
    }
}

/// First bytes of a key, zeros after its end. If they differ, they order the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    /// Bytes 0 to 7.
    high: u64,
    /// Bytes 8 to 11.
    low: u32,
}

impl Prefix {
    /// That of the end of the list: no key has a larger one.
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

/// What a node says of its entry besides sequence and time.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// Node before this one.
    previous: Node,
    /// Length of the key, in bytes.
    key: usize,
    /// Length of the value in the arena, in bytes.
    value: usize,
    tombstone: bool,
    /// Whether there is a time: that of the deletion or that at which the value expires.
    timed: bool,
    /// Whether the value in the arena is the number of one outside.
    large: bool,
}

impl Header {
    fn encode(self) -> u64 {
        let flags = u64::from(self.tombstone) | u64::from(self.timed) << 1 | u64::from(self.large) << 2;
        flags | (self.value as u64) << 3 | (self.key as u64) << 16 | u64::from(self.previous.0) << 32
    }

    fn decode(word: u64) -> Header {
        Header {
            previous: Node((word >> 32) as u32),
            key: (word >> 16 & 0xFFFF) as usize,
            value: (word >> 3 & 0x1FFF) as usize,
            tombstone: word & 1 != 0,
            timed: word & 2 != 0,
            large: word & 4 != 0,
        }
    }
}

/// A value, as a list holds it.
#[derive(Debug)]
pub enum Stored<'a> {
    /// In the arena.
    Inline(&'a [u8]),
    /// In an allocation of its own.
    Large(&'a Rc<[u8]>),
}

impl<'a> Stored<'a> {
    /// The value.
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Stored::Inline(bytes) => bytes,
            Stored::Large(bytes) => bytes,
        }
    }
}

/// What an entry says besides its key and its value's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value.
    Put {
        /// Time at which it expires.
        expires: Option<Timestamp>,
    },
    /// A tombstone.
    Tombstone {
        /// Time of the deletion.
        deleted: Timestamp,
    },
}

impl Kind {
    /// The entry's value with these bytes.
    pub fn with(self, bytes: &[u8]) -> Value<'_> {
        match self {
            Kind::Put { expires } => Value::Put { bytes, expires },
            Kind::Tombstone { deleted } => Value::Tombstone { deleted },
        }
    }
}

/// Ordered entries that are only added.
#[derive(Debug)]
pub struct SkipList {
    words: Vec<u64>,
    /// Number of levels in use.
    levels: usize,
    /// Last node of each level.
    last: [Node; MOST_LEVELS],
    /// Prefix of the last node's key.
    last_prefix: Prefix,
    large_values: Vec<Rc<[u8]>>,
    large_bytes: usize,
    random: Random,
    length: usize,
}

impl SkipList {
    /// An empty list whose arena isn't moved before its entries take this many bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut words = Vec::with_capacity((bytes / 8).max(1024));
        for _ in 0..MOST_LEVELS {
            words.extend([Prefix::END.high, u64::from(Prefix::END.low) << 32]);
        }
        words.extend([0; 2]);
        SkipList {
            words,
            levels: 1,
            last: [HEAD; MOST_LEVELS],
            last_prefix: Prefix { high: 0, low: 0 },
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

    /// Bytes of memory that the entries take.
    pub fn bytes(&self) -> usize {
        self.words.len() * 8 + self.large_bytes + self.large_values.len() * LARGE_VALUE_OVERHEAD
    }

    /// Adds an entry, unless there is one of its key and sequence. Returns whether it has been added.
    ///
    /// # Panics
    /// If the key has more than [`MOST_KEY_BYTES`], or the arena would be larger than 32 GiB.
    pub fn insert(&mut self, entry: Entry<'_>) -> bool {
        assert!(
            entry.key.len() <= MOST_KEY_BYTES,
            "key of {} bytes in a memtable; expected at most {MOST_KEY_BYTES}",
            entry.key.len()
        );
        let prefix = Prefix::of(entry.key);
        let mut before = [HEAD; MOST_LEVELS];
        if self.is_last(prefix, entry.key, entry.sequence) {
            before = self.last;
        } else {
            self.search(prefix, entry.key, entry.sequence, &mut before);
        }
        let (next_prefix, next) = self.link(before[0], 0);
        if next_prefix == prefix && next != Node::NONE {
            let (key, sequence) = self.key(next);
            if sequence == entry.sequence && key == entry.key {
                return false;
            }
        }
        let levels = self.draw_levels();
        self.levels = self.levels.max(levels);
        let node = self.push(entry, before[0], levels);
        for (level, &before) in before.iter().enumerate().take(levels) {
            let (prefix_after, after) = self.link(before, level);
            self.set_link(node, level, prefix_after, after);
            self.set_link(before, level, prefix, node);
            if after == Node::NONE {
                self.last[level] = node;
            }
        }
        if next == Node::NONE {
            self.last_prefix = prefix;
        } else {
            let header = Header { previous: node, ..self.header(next) };
            self.words[next.index() + 1] = header.encode();
        }
        self.length += 1;
        true
    }

    /// The first entry.
    pub fn first(&self) -> Option<Node> {
        self.next(HEAD)
    }

    /// The last entry.
    pub fn last(&self) -> Option<Node> {
        self.last[0].some()
    }

    /// The first entry that isn't before (`key`, `sequence`).
    #[inline]
    pub fn at_or_after(&self, key: &[u8], sequence: Sequence) -> Option<Node> {
        let before = self.search(Prefix::of(key), key, sequence, &mut [HEAD; MOST_LEVELS]);
        self.next(before)
    }

    /// The last entry that is before (`key`, `sequence`).
    pub fn before(&self, key: &[u8], sequence: Sequence) -> Option<Node> {
        self.search(Prefix::of(key), key, sequence, &mut [HEAD; MOST_LEVELS]).some()
    }

    /// The entry after one.
    #[inline]
    pub fn next(&self, node: Node) -> Option<Node> {
        self.link(node, 0).1.some()
    }

    /// The entry before one.
    #[inline]
    pub fn previous(&self, node: Node) -> Option<Node> {
        self.header(node).previous.some()
    }

    /// Key and sequence of an entry.
    #[inline]
    pub fn key(&self, node: Node) -> (&[u8], Sequence) {
        let header = self.header(node);
        let start = node.index() + 2 + usize::from(header.timed);
        (
            &self.words[start..start + header.key.div_ceil(8)].as_bytes()[..header.key],
            self.words[node.index()],
        )
    }

    /// All of an entry: key, sequence, kind and value.
    #[inline]
    pub fn read(&self, node: Node) -> (&[u8], Sequence, Kind, Stored<'_>) {
        let header = self.header(node);
        let start = node.index() + 2 + usize::from(header.timed);
        let words = (header.key + header.value).div_ceil(8);
        let (key, value) = self.words[start..start + words].as_bytes().split_at(header.key);
        let value = match value[..header.value].try_into() {
            Ok(number) if header.large => {
                Stored::Large(&self.large_values[u64::from_le_bytes(number) as usize])
            }
            _ => Stored::Inline(&value[..header.value]),
        };
        let time = header.timed.then(|| self.words[node.index() + 2]);
        let kind = if header.tombstone {
            Kind::Tombstone { deleted: time.unwrap_or_default() }
        } else {
            Kind::Put { expires: time }
        };
        (key, self.words[node.index()], kind, value)
    }

    /// An entry.
    pub fn entry(&self, node: Node) -> Entry<'_> {
        let (key, sequence, kind, value) = self.read(node);
        Entry { key, sequence, value: kind.with(value.bytes()) }
    }

    /// Finds the last node of each level that is before (`key`, `sequence`), and returns that of the lowest level.
    #[inline]
    fn search(
        &self,
        prefix: Prefix,
        key: &[u8],
        sequence: Sequence,
        before: &mut [Node; MOST_LEVELS],
    ) -> Node {
        let mut node = HEAD;
        // The node that ended the search in the level above: if it is the next one here, too, it needs no second comparison.
        let mut after = Node::NONE;
        for level in (0..self.levels).rev() {
            loop {
                let (next_prefix, next) = self.link(node, level);
                let moves = match next_prefix.cmp(&prefix) {
                    Ordering::Less => true,
                    Ordering::Greater => false,
                    Ordering::Equal => {
                        next != after && next != Node::NONE && self.precedes(next, key, sequence)
                    }
                };
                if !moves {
                    after = next;
                    break;
                }
                node = next;
            }
            before[level] = node;
        }
        node
    }

    /// Whether an entry would be the last one.
    fn is_last(&self, prefix: Prefix, key: &[u8], sequence: Sequence) -> bool {
        match self.last_prefix.cmp(&prefix) {
            _ if self.last[0] == HEAD => true,
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => self.precedes(self.last[0], key, sequence),
        }
    }

    /// Whether a node is before (`key`, `sequence`).
    fn precedes(&self, node: Node, key: &[u8], sequence: Sequence) -> bool {
        order(self.key(node), (key, sequence)).is_lt()
    }

    #[inline]
    fn header(&self, node: Node) -> Header {
        Header::decode(self.words[node.index() + 1])
    }

    #[inline]
    fn link(&self, node: Node, level: usize) -> (Prefix, Node) {
        let at = node.index() - LINK * (level + 1);
        let [high, low] = self.words[at..at + LINK] else { unreachable!("a link has two words") };
        (Prefix { high, low: (low >> 32) as u32 }, Node(low as u32))
    }

    #[inline]
    fn set_link(&mut self, node: Node, level: usize, prefix: Prefix, next: Node) {
        let at = node.index() - LINK * (level + 1);
        self.words[at..at + LINK]
            .copy_from_slice(&[prefix.high, u64::from(prefix.low) << 32 | u64::from(next.0)]);
    }

    /// Appends a node, with links that aren't set.
    fn push(&mut self, entry: Entry<'_>, previous: Node, levels: usize) -> Node {
        let (value, time, tombstone): (&[u8], _, _) = match entry.value {
            Value::Put { bytes, expires } => (bytes, expires, false),
            Value::Tombstone { deleted } => (&[], Some(deleted), true),
        };
        let number = (self.large_values.len() as u64).to_le_bytes();
        let large = value.len() > MOST_INLINE_BYTES;
        let value = if large {
            self.large_values.push(value.into());
            self.large_bytes += value.len();
            &number
        } else {
            value
        };

        let index = self.words.len() + LINK * levels;
        let node =
            Node(u32::try_from(index).expect("memtable larger than 32 GiB; expected a bound on its bytes"));
        let header = Header {
            previous,
            key: entry.key.len(),
            value: value.len(),
            tombstone,
            timed: time.is_some(),
            large,
        };
        let start = index + 2 + usize::from(header.timed);
        self.words.resize(start + (header.key + header.value).div_ceil(8), 0);
        self.words[index] = entry.sequence;
        self.words[index + 1] = header.encode();
        if let Some(time) = time {
            self.words[index + 2] = time;
        }
        let (key_bytes, rest) = self.words[start..].as_mut_bytes().split_at_mut(header.key);
        key_bytes.copy_from_slice(entry.key);
        rest[..header.value].copy_from_slice(value);
        node
    }

    /// Draws the number of levels of a node: each further one with a probability of 1/4.
    fn draw_levels(&mut self) -> usize {
        let limit = 1 << (2 * (MOST_LEVELS - 1));
        1 + (self.random.next_u64() | limit).trailing_zeros() as usize / 2
    }
}
