//! Reading of blocks of entries: data blocks and index blocks.

use super::entries_writer::{EntryKind, common_prefix, order_after};
use super::stored::{BlockHandle, corrupt};
use crate::key_version::{MAX_KEY_BYTES, Sequence, Timestamp, Value};
use block::{Error, Result};
use logkit::leb128;
use std::cmp::Ordering;
use std::ops::Range;

/// Offsets of the parts of an entry.
#[derive(Debug, Clone)]
pub(super) struct Header {
    /// Number of bytes at the start of the key that are shared with the previous key.
    pub(super) shared: usize,
    /// Rest of the key.
    rest: Range<usize>,
    kind: EntryKind,
    /// End of the entry.
    pub(super) end: usize,
}

/// Sequence, kind, time and value of an entry.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub(super) sequence: Sequence,
    kind: EntryKind,
    /// Time of the deletion, or of the value's expiry.
    time: Timestamp,
    value: Range<usize>,
}

/// First entry at or after a key and sequence.
#[derive(Debug)]
pub(super) struct Sought {
    pub(super) at: usize,
    pub(super) header: Header,
    pub(super) body: Body,
    /// Last restart point at or before the entry.
    pub(super) restart: usize,
    /// Whether the entry has the sought key.
    pub(super) is_key: bool,
}

/// Entries of a block.
#[derive(Debug)]
pub(super) struct Entries {
    bytes: Vec<u8>,
    /// End of the entries, and start of the restart points.
    end: usize,
    restarts: usize,
    /// Offset of the block in the table, for errors.
    offset: u64,
}

impl Entries {
    /// Decodes a block and checks its restart points; entries are checked when they are read.
    pub(super) fn decode(bytes: Vec<u8>, offset: u64) -> Result<Self> {
        let count = bytes.last_chunk::<4>().map(|count| u32::from_le_bytes(*count) as usize);
        let restarts =
            count.ok_or_else(|| corrupt(offset, "block of entries without a number of restart points"))?;
        let end = restarts.checked_mul(4).and_then(|length| bytes.len().checked_sub(length + 4));
        let Some(end) = end.filter(|_| restarts > 0) else {
            let what = format_args!("{restarts} restart points in {} bytes", bytes.len());
            return Err(corrupt(offset, what));
        };
        let entries = Entries { bytes, end, restarts, offset };
        let mut next = 0;
        for index in 0..restarts {
            let at = entries.restart(index);
            if (index == 0 && at != 0) || at < next || at >= end {
                let what = format_args!("restart point {index} at {at}; expected {next}..{end}");
                return Err(corrupt(offset, what));
            }
            next = at + 1;
        }
        Ok(entries)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Number of restart points; in an index block this is the number of children.
    pub(super) fn restarts(&self) -> usize {
        self.restarts
    }

    /// End of the entries.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Offset of the entry at a restart point.
    #[inline]
    pub(super) fn restart(&self, index: usize) -> usize {
        match self.bytes[self.end + 4 * index..].first_chunk() {
            Some(bytes) => u32::from_le_bytes(*bytes) as usize,
            None => self.end,
        }
    }

    /// End of the entries between restart point `index` and the next one.
    #[inline]
    pub(super) fn interval_end(&self, index: usize) -> usize {
        if index + 1 < self.restarts { self.restart(index + 1) } else { self.end }
    }

    #[cold]
    pub(super) fn corrupt(&self, at: usize, what: &str) -> Error {
        corrupt(self.offset, format_args!("entry at {at}: {what}"))
    }

    /// Decodes the offsets of the parts of the entry at `at`.
    #[inline(always)]
    pub(super) fn header(&self, at: usize) -> Result<Header> {
        self.try_header(at).ok_or_else(|| self.corrupt(at, "its lengths are out of range"))
    }

    // Always inlined: a call would return the header through memory.
    #[inline(always)]
    fn try_header(&self, at: usize) -> Option<Header> {
        let entries = &self.bytes[..self.end];
        let (shared, at) = leb128::decode(entries, at)?;
        let (rest, at) = leb128::decode(entries, at)?;
        let (code, at) = leb128::decode(entries, at)?;
        if shared > MAX_KEY_BYTES as u64 || rest > MAX_KEY_BYTES as u64 || code >> 2 > self.end as u64 {
            return None;
        }
        let (shared, rest) = (shared as usize, at..at + rest as usize);
        let end = rest.end + (code >> 2) as usize;
        let kind = match code & 3 {
            0 => EntryKind::Tombstone,
            1 => EntryKind::Put,
            2 => EntryKind::ExpiringPut,
            _ => EntryKind::Child,
        };
        (shared + rest.len() <= MAX_KEY_BYTES && end <= self.end).then_some(Header {
            shared,
            rest,
            kind,
            end,
        })
    }

    /// Visits the keys of all entries.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for inconsistent entries.
    pub(super) fn for_each_key(&self, mut visit: impl FnMut(&[u8])) -> Result<()> {
        let (mut key, mut at) = (Vec::new(), 0);
        while at < self.end {
            let header = self.header(at)?;
            if header.shared > key.len() || header.end <= at {
                return Err(self.corrupt(at, "its shared length or its end is out of range"));
            }
            key.truncate(header.shared);
            key.extend_from_slice(self.rest(&header));
            visit(&key);
            at = header.end;
        }
        Ok(())
    }

    /// Bytes of the key that aren't shared with the previous key.
    #[inline]
    pub(super) fn rest(&self, header: &Header) -> &[u8] {
        &self.bytes[header.rest.clone()]
    }

    /// Decodes the body of an entry of a data block.
    #[inline]
    pub(super) fn body(&self, header: &Header) -> Result<Body> {
        self.try_body(header)
            .ok_or_else(|| self.corrupt(header.rest.start, "its sequence, time or kind is invalid"))
    }

    #[inline(always)]
    fn try_body(&self, header: &Header) -> Option<Body> {
        let bytes = &self.bytes[..header.end];
        let (sequence, mut at) = leb128::decode(bytes, header.rest.end)?;
        let mut time = 0;
        if matches!(header.kind, EntryKind::Tombstone | EntryKind::ExpiringPut) {
            (time, at) = leb128::decode(bytes, at)?;
        }
        let fits = match header.kind {
            EntryKind::Tombstone => at == header.end,
            EntryKind::Put | EntryKind::ExpiringPut => true,
            EntryKind::Child => false,
        };
        fits.then_some(Body { sequence, kind: header.kind, time, value: at..header.end })
    }

    /// Value of an entry with this body.
    #[inline]
    pub(super) fn value(&self, body: &Body) -> Value<'_> {
        let bytes = &self.bytes[body.value.clone()];
        match body.kind {
            EntryKind::Tombstone => Value::Tombstone { deleted: body.time },
            EntryKind::ExpiringPut => Value::Put { bytes, expires: Some(body.time) },
            EntryKind::Put | EntryKind::Child => Value::Put { bytes, expires: None },
        }
    }

    /// Decodes the header of the entry at restart point `index`, whose key is complete.
    fn header_at_restart(&self, index: usize) -> Result<Header> {
        let at = self.restart(index);
        match self.header(at)? {
            header if header.shared == 0 => Ok(header),
            _ => Err(self.corrupt(at, "a restart point whose key isn't whole")),
        }
    }

    /// Key of the entry at restart point `index`.
    #[inline]
    fn key_at_restart(&self, index: usize) -> Result<&[u8]> {
        let key = self.try_key_at_restart(index);
        key.ok_or_else(|| self.corrupt(self.restart(index), "a restart point without a whole key"))
    }

    #[inline(always)]
    fn try_key_at_restart(&self, index: usize) -> Option<&[u8]> {
        let entries = &self.bytes[..self.end];
        let at = self.restart(index);
        if *entries.get(at)? != 0 {
            return None;
        }
        let (length, at) = leb128::decode(entries, at + 1)?;
        let (_, at) = leb128::decode(entries, at)?;
        entries.get(at..)?.get(..usize::try_from(length).ok()?)
    }

    /// Index of the last restart point whose entry is at or before (`key`, `sequence`); 0 if all are after.
    /// The closure reads an entry's sequence.
    #[inline]
    fn floor(
        &self,
        key: &[u8],
        sequence: Sequence,
        sequence_of: impl Fn(&Header) -> Result<Sequence>,
    ) -> Result<usize> {
        let (mut low, mut high) = (0, self.restarts);
        let prefix = key.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        while low < high {
            let middle = low.midpoint(high);
            let found = self.key_at_restart(middle)?;
            // The first bytes decide most comparisons.
            let order = match (found.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)), prefix) {
                (Some(found), Some(prefix)) if found != prefix => found.cmp(&prefix),
                _ => found.cmp(key),
            };
            let order = match order {
                Ordering::Equal => sequence.cmp(&sequence_of(&self.header_at_restart(middle)?)?),
                order => order,
            };
            if order == Ordering::Greater { high = middle } else { low = middle + 1 }
        }
        Ok(low.saturating_sub(1))
    }

    /// Finds the first entry of a data block at or after (`key`, `sequence`); `None` if all are before.
    ///
    /// Keys aren't reconstructed: the number of bytes that the previous entry shares with `key` decides most
    /// comparisons.
    #[inline]
    pub(super) fn seek(&self, key: &[u8], sequence: Sequence) -> Result<Option<Sought>> {
        let restart = self.floor(key, sequence, |header| Ok(self.body(header)?.sequence))?;
        let mut at = self.restart(restart);
        // Number of bytes that the previous entry, which is before the sought one, shares with `key`.
        let mut common = 0;
        while at < self.end {
            let header = self.header(at)?;
            let shared = header.shared;
            // If an entry shares more bytes with the previous entry than `key` does, it compares to `key` as
            // the previous one.
            if shared <= common {
                let (rest, wanted) = (self.rest(&header), &key[shared..]);
                let more = common_prefix(rest, wanted);
                let order = order_after(more, rest, wanted);
                if order != Ordering::Less {
                    let (body, is_key) = (self.body(&header)?, order == Ordering::Equal);
                    if !is_key || body.sequence <= sequence {
                        let restart = if at == self.interval_end(restart) { restart + 1 } else { restart };
                        return Ok(Some(Sought { at, header, body, restart, is_key }));
                    }
                }
                common = shared + more;
            }
            at = header.end;
        }
        Ok(None)
    }

    /// Index of the child of an index block that contains (`key`, `sequence`).
    pub(super) fn child_of(&self, key: &[u8], sequence: Sequence) -> Result<usize> {
        self.floor(key, sequence, |header| {
            let number = leb128::decode(&self.bytes[..header.end], header.rest.end);
            number
                .map(|(number, _)| !number)
                .ok_or_else(|| self.corrupt(header.rest.start, "its sequence is invalid"))
        })
    }

    /// Handle of a child of an index block; the child is stored before the block.
    pub(super) fn child(&self, index: usize, salt: u32) -> Result<BlockHandle> {
        let header = self.header_at_restart(index)?;
        let handle = self.try_child(&header, salt).filter(|handle| handle.end() <= self.offset);
        handle.ok_or_else(|| self.corrupt(header.rest.start, "its block isn't before the index"))
    }

    fn try_child(&self, header: &Header, salt: u32) -> Option<BlockHandle> {
        let bytes = &self.bytes[..header.end];
        let (_, at) = leb128::decode(bytes, header.rest.end)?;
        let (offset, at) = leb128::decode(bytes, at)?;
        let (length, at) = leb128::decode(bytes, at)?;
        let length = u32::try_from(length).ok()?;
        (header.kind == EntryKind::Child && at == header.end).then_some(BlockHandle { offset, length, salt })
    }
}
