//! ScanCursors of `SCAN`: numbers that stand for positions among the keys.
//!
//! # Promises
//! - A cursor of an iteration, or the one before it, leads on where the iteration was. So every key that is there throughout is
//!   returned at least once.
//! - Memory is bounded: the [`MOST_ITERATIONS`] iterations that were used last are known, with keys of [`MOST_BYTES`] in all. Any other
//!   cursor starts from the first key, which returns keys again and omits none.
//! - ScanCursors are below 2^53: some clients hold them in floating-point numbers.

use std::collections::BTreeMap;

/// Largest number of iterations that are known.
pub const MOST_ITERATIONS: usize = 4096;
/// Limit of the bytes of their keys.
pub const MOST_BYTES: usize = 8 << 20;
/// Bits of a cursor that count the steps of its iteration.
const STEP_BITS: u32 = 20;
const STEPS: u64 = 1 << STEP_BITS;

/// Steps of an iteration; each is a cursor that was returned, and the first key after it.
#[derive(Debug)]
struct Iteration {
    last: (u64, Vec<u8>),
    before: Option<(u64, Vec<u8>)>,
    used: u64,
}

impl Iteration {
    fn bytes(&self) -> usize {
        self.last.1.len() + self.before.as_ref().map_or(0, |(_, key)| key.len())
    }
}

/// ScanCursors of a server.
#[derive(Debug)]
pub struct ScanCursors {
    /// By the upper bits of their cursors.
    iterations: BTreeMap<u64, Iteration>,
    /// Iterations in order of their last use.
    uses: BTreeMap<u64, u64>,
    use_count: u64,
    next_iteration: u64,
    bytes: usize,
}

impl ScanCursors {
    /// Returns no cursors; `seed` decides their numbers, so that those of an earlier run of the server are unknown.
    pub fn new(seed: u64) -> Self {
        let next_iteration = u64::from(seed as u32).max(1);
        ScanCursors {
            iterations: BTreeMap::new(),
            uses: BTreeMap::new(),
            use_count: 0,
            next_iteration,
            bytes: 0,
        }
    }

    /// Returns the first key after a cursor; the lowest one for 0 and for an unknown cursor.
    pub fn position(&self, cursor: u64) -> Vec<u8> {
        let Some(iteration) = self.iterations.get(&(cursor >> STEP_BITS)) else { return Vec::new() };
        let steps = [Some(&iteration.last), iteration.before.as_ref()];
        let found = steps.into_iter().flatten().find(|(step, _)| *step == cursor % STEPS);
        found.map_or_else(Vec::new, |(_, key)| key.clone())
    }

    /// Returns a cursor after this one, for the key that follows.
    pub fn advance(&mut self, cursor: u64, key: Vec<u8>) -> u64 {
        let number = cursor >> STEP_BITS;
        // A step that is repeated begins another iteration: the client that took it first may still go on.
        let is_last =
            self.iterations.get(&number).is_some_and(|iteration| iteration.last.0 == cursor % STEPS);
        let known = if is_last { self.take(number) } else { None };
        let (number, iteration) = match known {
            Some(Iteration { last, .. }) => {
                (number, Iteration { last: ((last.0 + 1) % STEPS, key), before: Some(last), used: 0 })
            }
            None => (self.new_number(), Iteration { last: (0, key), before: None, used: 0 }),
        };
        let next = number << STEP_BITS | iteration.last.0;
        self.insert(number, iteration);
        next
    }

    /// Forgets the iteration of a cursor, which has come to its end.
    pub fn end(&mut self, cursor: u64) {
        self.take(cursor >> STEP_BITS);
    }

    fn new_number(&mut self) -> u64 {
        loop {
            let number = self.next_iteration;
            self.next_iteration = if number >= u64::from(u32::MAX) { 1 } else { number + 1 };
            if !self.iterations.contains_key(&number) {
                return number;
            }
        }
    }

    fn take(&mut self, number: u64) -> Option<Iteration> {
        let iteration = self.iterations.remove(&number)?;
        self.uses.remove(&iteration.used);
        self.bytes -= iteration.bytes();
        Some(iteration)
    }

    fn insert(&mut self, number: u64, mut iteration: Iteration) {
        self.use_count += 1;
        iteration.used = self.use_count;
        self.uses.insert(self.use_count, number);
        self.bytes += iteration.bytes();
        self.iterations.insert(number, iteration);
        while self.iterations.len() > MOST_ITERATIONS || self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.uses.first_key_value() else { return };
            self.take(*oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_and_the_one_before_it_lead_on() {
        let mut cursors = ScanCursors::new(7);
        assert_eq!(cursors.position(0), b"");
        let first = cursors.advance(0, b"b".to_vec());
        let second = cursors.advance(first, b"c".to_vec());
        assert_eq!((cursors.position(first), cursors.position(second)), (b"b".to_vec(), b"c".to_vec()));
        let third = cursors.advance(second, b"d".to_vec());
        assert_eq!(cursors.position(first), b"", "two steps before");
        assert_eq!((cursors.position(second), cursors.position(third)), (b"c".to_vec(), b"d".to_vec()));
        // The reply to a step was lost, and the client asks again: another iteration, and the first one stays.
        let again = cursors.advance(second, b"d".to_vec());
        assert_ne!(again, third);
        assert_eq!((cursors.position(again), cursors.position(third)), (b"d".to_vec(), b"d".to_vec()));
        cursors.end(again);
        assert_eq!(cursors.position(again), b"");
        assert!([first, second, third, again].iter().all(|cursor| (1..1 << 53).contains(cursor)));
    }

    #[test]
    fn steps_and_numbers_begin_again_after_the_largest() {
        let mut cursors = ScanCursors::new(u64::from(u32::MAX));
        let mut cursor = cursors.advance(0, b"a".to_vec());
        assert_eq!(cursor >> STEP_BITS, u64::from(u32::MAX));
        for _ in 0..STEPS + 3 {
            cursor = cursors.advance(cursor, b"a".to_vec());
        }
        assert_eq!(cursor % STEPS, 3);
        assert_eq!(cursors.advance(0, b"b".to_vec()) >> STEP_BITS, 1);
    }

    #[test]
    fn memory_is_bounded_and_the_latest_are_known() {
        let mut cursors = ScanCursors::new(1);
        let live = cursors.advance(0, b"k".to_vec());
        let mut last = live;
        for _ in 0..2 * MOST_ITERATIONS {
            last = cursors.advance(last, b"k".to_vec());
            cursors.advance(0, b"abandoned".to_vec());
        }
        assert_eq!(cursors.iterations.len(), MOST_ITERATIONS);
        assert_eq!(cursors.position(last), b"k", "it is used again and again");
        for _ in 0..1000 {
            cursors.advance(0, vec![b'x'; 32 << 10]);
        }
        assert!(cursors.bytes <= MOST_BYTES && cursors.uses.len() == cursors.iterations.len());
        assert_eq!(cursors.bytes, cursors.iterations.values().map(Iteration::bytes).sum::<usize>());
    }
}
