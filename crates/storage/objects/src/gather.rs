//! Bytes of an open zone that aren't uploaded yet, in chunks.

use crate::format::CHUNK;
use block::Data;
use runtime::sync::Permit;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Bytes that are appended one after the other and become a piece.
#[derive(Debug)]
pub(crate) struct Gather {
    /// Offset in the zone.
    pub offset: u64,
    chunks: Vec<Data>,
    /// Bytes after the last whole chunk.
    rest: Vec<u8>,
    memory: Vec<Rc<Permit>>,
}

/// Bytes of a piece. Its memory is released when it is dropped, and the other pieces that share an append.
#[derive(Debug)]
pub(crate) struct Sealed {
    /// Offset in the zone.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Each but the last one has [`CHUNK`] bytes.
    pub chunks: Vec<Data>,
    _memory: Vec<Rc<Permit>>,
}

impl Gather {
    /// Returns an empty one.
    pub fn new(offset: u64) -> Gather {
        Gather { offset, chunks: Vec::new(), rest: Vec::new(), memory: Vec::new() }
    }

    /// Number of bytes.
    pub fn length(&self) -> u64 {
        (self.chunks.len() * CHUNK + self.rest.len()) as u64
    }

    /// Appends bytes, at most up to `limit` bytes altogether, and returns how many.
    pub fn push(&mut self, bytes: &[u8], limit: u64) -> usize {
        let left = limit.saturating_sub(self.length()) as usize;
        let taken = bytes.len().min(CHUNK - self.rest.len()).min(left);
        self.rest.extend_from_slice(&bytes[..taken]);
        if self.rest.len() == CHUNK {
            self.chunks.push(Data::copy_of(&self.rest));
            self.rest.clear();
        }
        taken
    }

    /// Keeps memory of an append until the piece is stored.
    pub fn keep(&mut self, memory: Rc<Permit>) {
        self.memory.push(memory);
    }

    /// Ends the piece.
    pub fn seal(mut self) -> Sealed {
        let length = self.length();
        if !self.rest.is_empty() {
            self.chunks.push(Data::copy_of(&self.rest));
        }
        Sealed { offset: self.offset, length, chunks: self.chunks, _memory: self.memory }
    }

    /// The bytes from `from` on, at most `length`, relative to the start.
    pub fn slices(&self, from: u64, length: u64) -> Vec<Data> {
        let mut slices = slices(&self.chunks, from, length);
        let whole = (self.chunks.len() * CHUNK) as u64;
        let (start, end) = (from.max(whole) - whole, (from + length).max(whole) - whole);
        let rest =
            &self.rest[start.min(self.rest.len() as u64) as usize..(end as usize).min(self.rest.len())];
        if !rest.is_empty() {
            slices.push(Data::copy_of(rest));
        }
        slices
    }
}

impl Sealed {
    /// As [`Gather::slices`].
    pub fn slices(&self, from: u64, length: u64) -> Vec<Data> {
        slices(&self.chunks, from, length)
    }
}

fn slices(chunks: &[Data], from: u64, length: u64) -> Vec<Data> {
    let (mut from, mut left) = (from as usize, length as usize);
    let mut slices = Vec::new();
    for chunk in chunks.iter().skip(from / CHUNK) {
        let start = (from % CHUNK).min(chunk.len());
        let end = chunk.len().min(start + left);
        if start < end {
            slices.push(chunk.slice(start..end));
        }
        left -= end - start;
        from = 0;
    }
    slices
}

/// Zones that gather bytes, by the power of two of their number: a zone moves only when that changes, so
/// appends cost nothing here, and a long one is found without a look at all zones.
#[derive(Debug)]
pub(crate) struct Gathering(Vec<BTreeSet<u32>>);

/// Zones of the longest class that are compared.
const COMPARED: usize = 64;

impl Gathering {
    /// Returns none.
    pub fn new() -> Gathering {
        Gathering(vec![BTreeSet::new(); u64::BITS as usize + 1])
    }

    fn class(length: u64) -> usize {
        (u64::BITS - length.leading_zeros()) as usize
    }

    /// Notes that a zone gathers another number of bytes.
    pub fn changed(&mut self, zone: u32, before: u64, now: u64) {
        let (before, now) = (Self::class(before), Self::class(now));
        if before != now {
            self.0[before].remove(&zone);
            if now > 0 {
                self.0[now].insert(zone);
            }
        }
    }

    /// Zones one of which gathers most bytes, or half as many as the longest one.
    pub fn longest(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().rev().find(|class| !class.is_empty()).into_iter().flatten().take(COMPARED).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_with_most_bytes_are_found() {
        let mut gathering = Gathering::new();
        let longest = |gathering: &Gathering| gathering.longest().collect::<Vec<u32>>();
        assert!(longest(&gathering).is_empty());
        for (zone, before, now) in [(7, 0, 512), (8, 0, 700), (9, 0, 1500), (9, 1500, 1700), (7, 512, 1024)] {
            gathering.changed(zone, before, now);
        }
        assert_eq!(longest(&gathering), [7, 9]);
        gathering.changed(9, 1700, 0);
        gathering.changed(7, 1024, 0);
        assert_eq!(longest(&gathering), [8]);
        gathering.changed(8, 700, 0);
        assert!(longest(&gathering).is_empty());
    }

    #[test]
    fn all_bytes_are_read_where_they_were_appended() {
        let mut random = runtime::Random::new(3);
        let mut bytes = vec![0; 3 * CHUNK + 1000];
        random.fill(&mut bytes);
        let mut gather = Gather::new(0);
        let mut at = 0;
        while at < bytes.len() {
            let end = bytes.len().min(at + 1 + random.below(2 * CHUNK as u64) as usize);
            at += gather.push(&bytes[at..end], bytes.len() as u64);
        }
        assert_eq!(gather.push(&[1], bytes.len() as u64), 0, "the limit");
        let ranges: Vec<(u64, u64)> = (0..100)
            .map(|_| {
                let from = random.below(bytes.len() as u64);
                (from, random.below(bytes.len() as u64 - from) + 1)
            })
            .collect();
        let check = |read: &dyn Fn(u64, u64) -> Vec<Data>| {
            for (from, length) in &ranges {
                let found: Vec<u8> = read(*from, *length).iter().flat_map(|data| data.to_vec()).collect();
                assert_eq!(found, bytes[*from as usize..(from + length) as usize]);
            }
        };
        check(&|from, length| gather.slices(from, length));
        let sealed = gather.seal();
        assert_eq!(sealed.length, bytes.len() as u64);
        check(&|from, length| sealed.slices(from, length));
    }
}
