//! Cursors of `SCAN`: numbers that refer to positions among the keys.
//!
//! # Promises
//! - Every key that exists throughout an iteration is returned at least once, and every iteration ends,
//!   whether or not the server knows its cursors.
//! - A recently returned cursor is a *ticket* for a position in the order of the keys: the iteration reads
//!   each key once. The previous cursor also remains valid, because its reply may have been lost. Tickets are
//!   never reused.
//! - Memory is bounded: the server keeps the [`MAX_TICKETS`] newest tickets, with keys of at most
//!   [`MAX_BYTES`] in all.
//! - An unknown cursor, such as one of an earlier run, continues as a *position in the order of the hashes of
//!   the keys*, beginning with the lowest hash. Such a cursor contains its position, so it never becomes
//!   invalid. Each of its calls reads all keys, and returns those of the next hashes ([`HashPage`]), up to
//!   [`PAGE_BYTES`].
//! - Cursors are below 2^53: some clients store them as floating-point numbers.

use kv::key_hash;
use std::collections::BTreeMap;

/// Maximum number of tickets that are kept.
pub const MAX_TICKETS: usize = 8192;
/// Maximum bytes of the tickets' keys.
pub const MAX_BYTES: usize = 8 << 20;
/// Bytes of keys at which a page of hashes is full.
pub const PAGE_BYTES: usize = 1 << 20;
/// Bit that distinguishes positions among hashes from tickets.
const HASHED: u64 = 1 << 52;
/// Number of hashes: all are lower.
const HASHES: u64 = 1 << 52;
/// Memory of a key in addition to its bytes.
const OVERHEAD: usize = 64;

/// Position of a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// Keys at or after this one, in their order.
    Key(Vec<u8>),
    /// Keys with this hash or a higher one, in the order of the hashes.
    Hash(u64),
}

#[derive(Debug)]
struct Ticket {
    /// First key after the cursor.
    key: Vec<u8>,
    /// Ticket of the previous step.
    before: Option<u64>,
}

/// Cursors of a server.
#[derive(Debug)]
pub struct ScanCursors {
    tickets: BTreeMap<u64, Ticket>,
    next: u64,
    bytes: usize,
}

impl ScanCursors {
    /// Returns an empty set of cursors; `seed` determines the numbers of tickets, so that those of an earlier
    /// run of the server are unknown.
    pub fn new(seed: u64) -> Self {
        // The upper half suffices for centuries.
        ScanCursors { tickets: BTreeMap::new(), next: 1 + seed % (HASHED / 2), bytes: 0 }
    }

    /// Returns the position of a cursor; the lowest key for 0.
    pub fn position(&self, cursor: u64) -> Position {
        match self.tickets.get(&cursor) {
            _ if cursor == 0 => Position::Key(Vec::new()),
            Some(ticket) => Position::Key(ticket.key.clone()),
            None if cursor >> 52 == 1 => Position::Hash(cursor % HASHES),
            None => Position::Hash(0),
        }
    }

    /// Returns a ticket for an iteration that has advanced from `cursor` to `key`.
    pub fn advance(&mut self, cursor: u64, key: Vec<u8>) -> u64 {
        let before = self.tickets.get_mut(&cursor).and_then(|ticket| ticket.before.take());
        self.forget(before);
        let number = self.next;
        self.next += 1;
        self.bytes += key.len();
        self.tickets.insert(number, Ticket { key, before: Some(cursor).filter(|cursor| *cursor != 0) });
        while self.tickets.len() > MAX_TICKETS || self.bytes > MAX_BYTES {
            let Some((oldest, _)) = self.tickets.first_key_value() else { break };
            self.forget(Some(*oldest));
        }
        number
    }

    /// Forgets the tickets of an iteration that has ended.
    pub fn end(&mut self, cursor: u64) {
        let before = self.tickets.get(&cursor).and_then(|ticket| ticket.before);
        self.forget(before);
        self.forget(Some(cursor));
    }

    fn forget(&mut self, number: Option<u64>) {
        let removed = number.and_then(|number| self.tickets.remove(&number));
        self.bytes -= removed.map_or(0, |ticket| ticket.key.len());
    }
}

/// Collects, from all keys, those with the lowest hashes from a position.
#[derive(Debug)]
pub struct HashPage {
    from: u64,
    /// Lowest hash that is left for the next page; [`HASHES`] if there is none.
    end: u64,
    keys: BTreeMap<u64, Vec<Vec<u8>>>,
    bytes: usize,
}

impl HashPage {
    /// Returns an empty page that begins with the hash `from`.
    pub fn new(from: u64) -> Self {
        HashPage { from, end: HASHES, keys: BTreeMap::new(), bytes: 0 }
    }

    /// Adds a key if it belongs to the page.
    pub fn offer(&mut self, key: &[u8]) {
        let hash = key_hash(key) >> 12;
        if !(self.from..self.end).contains(&hash) {
            return;
        }
        self.keys.entry(hash).or_default().push(key.to_vec());
        self.bytes += key.len() + OVERHEAD;
        // Keys with the same hash are on the same page.
        while self.bytes > PAGE_BYTES && self.keys.len() > 1 {
            let Some((hash, keys)) = self.keys.pop_last() else { break };
            self.bytes -= keys.iter().map(|key| key.len() + OVERHEAD).sum::<usize>();
            self.end = hash;
        }
    }

    /// Memory of the keys in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the keys, and the cursor of the next page; 0 if this is the last one.
    pub fn finish(self) -> (Vec<Vec<u8>>, u64) {
        let next = if self.end < HASHES { HASHED | self.end } else { 0 };
        (self.keys.into_values().flatten().collect(), next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn key(text: &[u8]) -> Position {
        Position::Key(text.to_vec())
    }

    #[test]
    fn a_cursor_and_the_one_before_it_lead_on() {
        let mut cursors = ScanCursors::new(u64::MAX);
        assert_eq!(cursors.position(0), key(b""));
        let first = cursors.advance(0, b"b".to_vec());
        let second = cursors.advance(first, b"c".to_vec());
        assert_eq!((cursors.position(first), cursors.position(second)), (key(b"b"), key(b"c")));
        let third = cursors.advance(second, b"d".to_vec());
        assert_eq!(cursors.position(first), Position::Hash(0), "two steps before");
        assert_eq!((cursors.position(second), cursors.position(third)), (key(b"c"), key(b"d")));
        // The reply to a step was lost, and the client repeats it: the earlier ticket stays valid.
        let again = cursors.advance(second, b"d".to_vec());
        assert_ne!(again, third);
        assert_eq!((cursors.position(again), cursors.position(third)), (key(b"d"), key(b"d")));
        cursors.end(again);
        assert_eq!(cursors.position(again), Position::Hash(0));
        assert!([first, second, third, again].iter().all(|cursor| (1..HASHED).contains(cursor)));
    }

    #[test]
    fn memory_is_bounded_and_the_latest_are_known() {
        let mut cursors = ScanCursors::new(1);
        let mut last = cursors.advance(0, b"k".to_vec());
        for _ in 0..MAX_TICKETS {
            last = cursors.advance(last, b"k".to_vec());
            cursors.advance(0, b"abandoned".to_vec());
        }
        assert_eq!(cursors.tickets.len(), MAX_TICKETS);
        assert_eq!(cursors.position(last), key(b"k"), "it is used again and again");
        for _ in 0..1000 {
            cursors.advance(0, vec![b'x'; 32 << 10]);
        }
        assert!(cursors.bytes <= MAX_BYTES);
        assert_eq!(cursors.bytes, cursors.tickets.values().map(|ticket| ticket.key.len()).sum::<usize>());
        assert_eq!(cursors.position(last), Position::Hash(0));
    }

    #[test]
    fn pages_of_hashes_have_every_key_once_and_end() {
        let all: BTreeSet<Vec<u8>> =
            (0..100).map(|key: u32| [&key.to_be_bytes()[..], &[b'x'; 32 << 10]].concat()).collect();
        let cursors = ScanCursors::new(1);
        let (mut cursor, mut found, mut pages) = (12_345, Vec::new(), 0);
        while cursor != 0 {
            let Position::Hash(from) = cursors.position(cursor) else { panic!("it isn't known") };
            let mut page = HashPage::new(from);
            all.iter().for_each(|key| page.offer(key));
            assert!(page.bytes() <= PAGE_BYTES);
            let (keys, next) = page.finish();
            assert!(next < 1 << 53 && !keys.is_empty());
            found.extend(keys);
            (cursor, pages) = (next, pages + 1);
        }
        assert!(found.len() == all.len() && found.into_iter().collect::<BTreeSet<_>>() == all);
        assert!((4..=5).contains(&pages), "{pages}");
        // Any number is a valid position.
        assert_eq!(cursors.position(u64::MAX), Position::Hash(0));
        assert_eq!(HashPage::new(HASHES - 1).finish(), (Vec::new(), 0));
    }
}
