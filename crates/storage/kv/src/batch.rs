//! Batches of writes that take effect atomically, and their encoding in the write-ahead log.

use crate::key_version::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Timestamp, now};
use block::{Error, Result};
use logkit::leb128::{Numbers, put, put_string};

/// A write of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write<'a> {
    /// Sets a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Time at which the key expires; `None` if it never does.
        expires: Option<Timestamp>,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: &'a [u8],
        /// Time of the deletion.
        deleted: Timestamp,
    },
    /// Deletes the keys of a range.
    DeleteRange {
        /// First key.
        from: &'a [u8],
        /// First key after the range.
        to: &'a [u8],
        /// Time of the deletion.
        deleted: Timestamp,
    },
}

const PUT: u8 = 1;
const PUT_EXPIRING: u8 = 2;
const DELETE: u8 = 3;
const DELETE_RANGE: u8 = 4;
/// A range that ends with the largest key; the end isn't encoded.
const DELETE_FROM: u8 = 5;

/// The largest key: the end of unbounded ranges.
static LAST_KEY: [u8; MAX_KEY_BYTES] = [u8::MAX; MAX_KEY_BYTES];

impl<'a> Write<'a> {
    /// Appends the encoded write.
    pub fn encode(&self, target: &mut Vec<u8>) {
        match *self {
            Write::Put { key, value, expires } => {
                target.push(if expires.is_some() { PUT_EXPIRING } else { PUT });
                put_string(target, key);
                put_string(target, value);
                if let Some(expires) = expires {
                    put(target, expires);
                }
            }
            Write::Delete { key, deleted } => {
                target.push(DELETE);
                put_string(target, key);
                put(target, deleted);
            }
            Write::DeleteRange { from, to, deleted } if to == LAST_KEY => {
                target.push(DELETE_FROM);
                put_string(target, from);
                put(target, deleted);
            }
            Write::DeleteRange { from, to, deleted } => {
                target.push(DELETE_RANGE);
                put_string(target, from);
                put_string(target, to);
                put(target, deleted);
            }
        }
    }

    /// Decodes a write of any size. [`check`](Self::check) refuses writes that are too large before they are
    /// applied.
    #[inline]
    fn decode(numbers: &mut Numbers<'a>) -> Result<Self> {
        let kind = numbers.byte()?;
        Ok(match kind {
            PUT | PUT_EXPIRING => {
                let (key, value) = (numbers.string()?, numbers.string()?);
                let expires = if kind == PUT_EXPIRING { Some(numbers.take()?) } else { None };
                Write::Put { key, value, expires }
            }
            DELETE => Write::Delete { key: numbers.string()?, deleted: numbers.take()? },
            DELETE_RANGE => Write::DeleteRange {
                from: numbers.string()?,
                to: numbers.string()?,
                deleted: numbers.take()?,
            },
            DELETE_FROM => {
                Write::DeleteRange { from: numbers.string()?, to: &LAST_KEY, deleted: numbers.take()? }
            }
            kind => return Err(numbers.strange(&format!("have a write of unknown kind {kind}"))),
        })
    }

    /// Decodes writes one after another.
    ///
    /// # Errors
    /// [`Error::Corrupt`] at the first write that no version of this program writes; errors of `visit`.
    pub fn decode_all(bytes: &'a [u8], mut visit: impl FnMut(Write<'a>)) -> Result<()> {
        let mut numbers = Numbers::new(bytes, "writes in the write-ahead log");
        while !numbers.rest().is_empty() {
            visit(Write::decode(&mut numbers)?);
        }
        Ok(())
    }

    /// Checks the sizes of the key and the value.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the size and the maximum if one is too large.
    pub fn check(&self) -> Result<()> {
        let check = |what: &str, bytes: &[u8], most: usize| match bytes.len() <= most {
            true => Ok(()),
            false => {
                Err(Error::invalid(format!("{what} of {} bytes; expected up to {most} bytes", bytes.len())))
            }
        };
        match self {
            Write::Put { key, value, .. } => {
                check("key", key, MAX_KEY_BYTES)?;
                check("value", value, MAX_VALUE_BYTES)
            }
            Write::Delete { key, .. } => check("key", key, MAX_KEY_BYTES),
            Write::DeleteRange { from, to, .. } => {
                check("first key of a range", from, MAX_KEY_BYTES)?;
                check("end of a range", to, MAX_KEY_BYTES)
            }
        }
    }
}

/// Writes that take effect atomically: after a crash either all of them are in effect or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    writes: u32,
    /// Number of the writes that are puts.
    puts: u32,
}

impl Batch {
    /// Returns a batch without writes.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Returns a batch of one write.
    pub(crate) fn of(write: Write<'_>) -> Self {
        let mut batch = Batch::new();
        batch.push(write);
        batch
    }

    /// Key of a batch with exactly one write, which is of a single key; `None` for other batches.
    pub(crate) fn only_key(&self) -> Option<&[u8]> {
        let mut numbers = Numbers::new(&self.bytes, "a batch");
        match (self.writes, numbers.byte()) {
            (1, Ok(PUT | PUT_EXPIRING | DELETE)) => numbers.string().ok(),
            _ => None,
        }
    }

    /// Whether all writes of the batch are deletes.
    pub(crate) fn only_deletes(&self) -> bool {
        self.puts == 0
    }

    /// Keys of the writes of single keys.
    pub(crate) fn keys(&self) -> Vec<&[u8]> {
        let mut keys = Vec::with_capacity(self.writes as usize);
        self.for_each(|write| match write {
            Write::Put { key, .. } | Write::Delete { key, .. } => keys.push(key),
            Write::DeleteRange { .. } => {}
        });
        keys
    }

    /// Adds a write.
    pub fn push(&mut self, write: Write<'_>) {
        if let Write::Put { key, value, .. } = write {
            // The kind, two lengths and a time.
            self.bytes.reserve(key.len() + value.len() + 21);
        }
        write.encode(&mut self.bytes);
        self.writes += 1;
        self.puts += u32::from(matches!(write, Write::Put { .. }));
    }

    /// Sets a key.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.push(Write::Put { key, value, expires: None });
    }

    /// Deletes a key, at the present time.
    pub fn delete(&mut self, key: &[u8]) {
        self.push(Write::Delete { key, deleted: now() });
    }

    /// Deletes all keys in `from`..`to`, at the present time.
    pub fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        self.push(Write::DeleteRange { from, to, deleted: now() });
    }

    /// Number of writes.
    pub fn len(&self) -> u32 {
        self.writes
    }

    /// Whether the batch has no writes.
    pub fn is_empty(&self) -> bool {
        self.writes == 0
    }

    /// Encoded writes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Visits the writes in order.
    pub fn for_each<'a>(&'a self, visit: impl FnMut(Write<'a>)) {
        Write::decode_all(&self.bytes, visit).expect("a batch encodes its own writes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_read_as_they_were_written_and_no_cut_is_taken_for_another_write() {
        let writes = [
            Write::Put { key: b"a", value: b"1", expires: None },
            Write::Put { key: b"", value: b"", expires: Some(1 << 40) },
            Write::Delete { key: b"b", deleted: 7 },
            Write::DeleteRange { from: b"c", to: b"d", deleted: 8 },
            Write::DeleteRange { from: b"e", to: &LAST_KEY, deleted: 9 },
        ];
        let mut batch = Batch::new();
        writes.iter().for_each(|write| batch.push(*write));
        let mut found = Vec::new();
        batch.for_each(|write| found.push(write));
        assert_eq!(found, writes);
        let ends: Vec<usize> = writes
            .iter()
            .scan(0, |end, write| {
                let mut bytes = Vec::new();
                write.encode(&mut bytes);
                *end += bytes.len();
                Some(*end)
            })
            .collect();
        for cut in 0..batch.bytes().len() {
            let whole = Write::decode_all(&batch.bytes()[..cut], |_| {}).is_ok();
            assert_eq!(whole, cut == 0 || ends.contains(&cut), "cut at {cut}");
        }
    }
}
