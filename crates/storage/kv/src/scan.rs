//! Scans: parameters, and their results in one allocation; values of single keys.

use crate::key_version::Timestamp;

/// A value with its expiry.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stored {
    /// The value.
    pub value: Vec<u8>,
    /// Time at which the key expires; `None` if it never does.
    pub expires: Option<Timestamp>,
}

/// Parameters of a scan.
#[derive(Debug, Clone)]
pub struct Scan {
    /// First key.
    pub from: Vec<u8>,
    /// First key after the range; `None` is unbounded.
    pub to: Option<Vec<u8>>,
    /// Whether the scan runs from the last key of the range downwards.
    pub is_backward: bool,
    /// Maximum number of pairs.
    pub most: usize,
    /// Bytes of pairs after which the scan ends; the pair that reaches them is included.
    pub most_bytes: usize,
}

impl Scan {
    /// Returns a scan of at most `most` pairs at or after the key `from`.
    pub fn from(from: Vec<u8>, most: usize) -> Self {
        Scan { from, to: None, is_backward: false, most, most_bytes: usize::MAX }
    }
}

/// A key with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Time at which the key expires; `None` if it never does.
    pub expires: Option<Timestamp>,
}

/// Sequence of pairs, whose keys and values have less than 4 GiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs {
    bytes: Vec<u8>,
    ends: Vec<End>,
}

/// Offsets of the ends of a pair's key and value; the key begins at the end of the previous pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End {
    key: u32,
    value: u32,
    expires: Option<Timestamp>,
}

impl Pairs {
    /// Returns an empty sequence.
    pub fn new() -> Self {
        Pairs::default()
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a pair.
    pub fn push(&mut self, pair: Pair<'_>) {
        self.bytes.extend_from_slice(pair.key);
        let key = self.bytes.len() as u32;
        self.bytes.extend_from_slice(pair.value);
        self.ends.push(End { key, value: self.bytes.len() as u32, expires: pair.expires });
    }

    /// Pair with this index; `None` beyond the last one.
    pub fn get(&self, number: usize) -> Option<Pair<'_>> {
        let end = self.ends.get(number)?;
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before].value);
        Some(Pair {
            key: &self.bytes[begin as usize..end.key as usize],
            value: &self.bytes[end.key as usize..end.value as usize],
            expires: end.expires,
        })
    }

    /// Last pair; `None` if there is none.
    pub fn last(&self) -> Option<Pair<'_>> {
        self.get(self.len().checked_sub(1)?)
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Pair<'_>> {
        (0..self.len()).filter_map(|number| self.get(number))
    }
}

impl<'a> FromIterator<Pair<'a>> for Pairs {
    fn from_iter<I: IntoIterator<Item = Pair<'a>>>(pairs: I) -> Self {
        let mut all = Pairs::new();
        pairs.into_iter().for_each(|pair| all.push(pair));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_by_number_empty_ones_too() {
        let given =
            [(&b"a"[..], &b"1"[..], None), (b"", b"", Some(7)), (b"b", b"", None), (b"", b"22", None)];
        let given = given.map(|(key, value, expires)| Pair { key, value, expires });
        let pairs: Pairs = given.into_iter().collect();
        assert_eq!((pairs.len(), pairs.bytes(), pairs.last()), (4, 5, Some(given[3])));
        assert!((0..4).all(|number| pairs.get(number) == Some(given[number])) && pairs.get(4).is_none());
        assert!(pairs.iter().rev().eq(given.into_iter().rev()));
        assert_eq!((Pairs::new().last(), Pairs::new().is_empty()), (None, true));
    }
}
