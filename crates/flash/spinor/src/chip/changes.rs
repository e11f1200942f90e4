//! Parts of the array that changed since the last query, so that an owner can keep a copy up to date.

use super::Chip;
use std::ops::Range;

/// Bytes per mark.
const UNIT: u32 = 4096;

/// A mark for each 4 KiB of the array.
pub(super) struct Changes {
    marks: Vec<u64>,
    size: u32,
    /// Lowest word that may have a mark.
    first: usize,
}

impl Changes {
    pub(super) fn new(size: u32) -> Changes {
        let words = size.div_ceil(UNIT).div_ceil(64) as usize;
        Changes { marks: vec![0; words], size, first: words }
    }

    /// Marks a range of bytes.
    #[inline]
    pub(super) fn mark(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let (first, last) = (range.start / UNIT, (range.end - 1) / UNIT);
        self.first = self.first.min(first as usize / 64);
        for unit in first..=last {
            self.marks[unit as usize / 64] |= 1 << (unit % 64);
        }
    }

    fn is_marked(&self, unit: u32) -> bool {
        self.marks.get(unit as usize / 64).is_some_and(|word| word >> (unit % 64) & 1 == 1)
    }

    /// Takes the lowest run of marks, as a range of at most `most` bytes.
    fn take(&mut self, most: u32) -> Option<Range<u32>> {
        let begun = self.marks.get(self.first..)?;
        let Some(word) = begun.iter().position(|word| *word != 0).map(|at| at + self.first) else {
            self.first = self.marks.len();
            return None;
        };
        self.first = word;
        let start = word as u32 * 64 + self.marks[word].trailing_zeros();
        let mut end = start;
        while self.is_marked(end) && (end == start || (end + 1 - start).saturating_mul(UNIT) <= most) {
            self.marks[end as usize / 64] &= !(1 << (end % 64));
            end += 1;
        }
        Some(start * UNIT..end.saturating_mul(UNIT).min(self.size))
    }
}

impl Chip {
    /// Returns a range of the array that changed since it was last returned, of 4 KiB or up to `most` bytes;
    /// `None` if none did.
    ///
    /// A change through [`Chip::memory_mut`] counts as one of the whole array.
    pub fn take_changed(&mut self, most: u32) -> Option<Range<u32>> {
        self.changes.take(most)
    }

    /// Makes [`Chip::take_changed`] return a range again, because it could not be saved.
    ///
    /// # Panics
    /// If the range ends after the array.
    pub fn mark_changed(&mut self, range: Range<u32>) {
        assert!(range.end <= self.description.size, "{range:?} ends after the array");
        self.changes.mark(range);
    }
}

#[cfg(test)]
mod tests {
    use super::Changes;

    #[test]
    fn runs_are_taken_once_and_no_longer_than_asked_for() {
        let mut changes = Changes::new(1 << 20);
        assert_eq!(changes.take(u32::MAX), None);
        changes.mark(0x3_FFFF..0x4_0001);
        changes.mark(0xF_F000..0x10_0000);
        changes.mark(5..5);
        assert_eq!(changes.take(u32::MAX), Some(0x3_F000..0x4_1000));
        changes.mark(0..0x3000);
        assert_eq!(changes.take(0x2000), Some(0..0x2000));
        assert_eq!(changes.take(1), Some(0x2000..0x3000));
        assert_eq!(changes.take(u32::MAX), Some(0xF_F000..0x10_0000));
        assert_eq!(changes.take(u32::MAX), None);
        let mut small = Changes::new(256);
        small.mark(0..1);
        assert_eq!(small.take(u32::MAX), Some(0..256));
    }
}
