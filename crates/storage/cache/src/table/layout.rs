//! Layout of a table on its device.
//!
//! Two superblocks, the journal, then *chunks*: the two copies of a page and the data of its entries. A
//! device that has grown gets more chunks, and nothing has to move.

use super::format::{ENTRY, MIN_UNIT, PAGE_HEAD, Superblock};
use block::{DeviceGeometry, Error, Result};

/// Alignment of chunks and of the entries' data, in bytes.
const ALIGNMENT: u64 = 32 << 10;
/// Number of entries per unit of the journal, and bounds of the number of units.
const ENTRIES_PER_UNIT: u64 = 64;
const MIN_JOURNAL: u64 = 16;
const MAX_JOURNAL: u64 = 16 << 10;

/// Layout; offsets and lengths are in bytes, `journal` in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub unit: u64,
    pub journal: u64,
    pub entries: u64,
    pub entry_bytes: u64,
    /// Number of entries of a page.
    pub per_page: u64,
    first_chunk: u64,
    chunk_head: u64,
}

impl Layout {
    fn with(unit: u64, journal: u64, entry_bytes: u64, device_bytes: u64) -> Self {
        let per_page = (unit - PAGE_HEAD as u64) / ENTRY as u64;
        let first_chunk = ((2 + journal) * unit).next_multiple_of(ALIGNMENT);
        let chunk_head = (2 * unit).next_multiple_of(ALIGNMENT);
        let mut layout = Layout { unit, journal, entries: 0, entry_bytes, per_page, first_chunk, chunk_head };
        let bytes = device_bytes.saturating_sub(first_chunk);
        let (chunks, rest) = (bytes / layout.stride(), bytes % layout.stride());
        layout.entries = chunks * per_page + rest.saturating_sub(chunk_head) / entry_bytes;
        layout
    }

    /// Plans a new table on this device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device is too small for one entry, or has 2^32 - 1 entries or more.
    pub fn new(geometry: &DeviceGeometry, entry_bytes: u64) -> Result<Self> {
        let unit = geometry.block_size.bytes().max(MIN_UNIT);
        let wanted = (geometry.bytes() / entry_bytes / ENTRIES_PER_UNIT).next_power_of_two();
        let journal = wanted.clamp(MIN_JOURNAL, MAX_JOURNAL);
        let layout = Layout::with(unit, journal, entry_bytes, geometry.bytes());
        let needed = layout.first_chunk + layout.chunk_head + entry_bytes;
        match layout.entries {
            0 => Err(Error::invalid(format!(
                "size of the device: {} bytes; expected at least {needed}, for a journal of {journal} units of {unit} bytes \
                 and one block of {entry_bytes}",
                geometry.bytes()
            ))),
            entries if entries >= u64::from(u32::MAX) => Err(Error::invalid(format!(
                "{entries} blocks of {entry_bytes} bytes: expected less than {} blocks; choose larger blocks",
                u32::MAX
            ))),
            _ => Ok(layout),
        }
    }

    /// Returns the layout that a superblock describes, on a device that may have grown since.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device has shrunk, or its blocks are larger than a unit; [`Error::Corrupt`]
    /// for fields out of range.
    pub fn found(superblock: &Superblock, geometry: &DeviceGeometry) -> Result<Self> {
        let (unit, journal) = (u64::from(superblock.unit), u64::from(superblock.journal));
        if geometry.block_size.bytes() > unit {
            return Err(Error::invalid(format!(
                "block size of the device: {} bytes; expected at most {unit}, for which the table was created",
                geometry.block_size
            )));
        }
        if superblock.entry_bytes == 0
            || superblock.entry_bytes > 1 << 40
            || !(MIN_JOURNAL..=MAX_JOURNAL).contains(&journal)
        {
            return Err(Error::corrupt(format!(
                "superblock of a table: field out of range: entry_bytes={}, journal={journal}",
                superblock.entry_bytes
            )));
        }
        let layout = Layout::with(unit, journal, superblock.entry_bytes, geometry.bytes());
        if layout.entries < superblock.entries {
            return Err(Error::invalid(format!(
                "size of the device: {} bytes, of which the table can use {} of its {} blocks; expected the size at the last \
                 use, or a larger one",
                geometry.bytes(),
                layout.entries,
                superblock.entries
            )));
        }
        match layout.entries < u64::from(u32::MAX) {
            true => Ok(layout),
            false => Ok(Layout { entries: u64::from(u32::MAX) - 1, ..layout }),
        }
    }

    fn stride(&self) -> u64 {
        self.chunk_head + self.per_page * self.entry_bytes
    }

    pub fn pages(&self) -> u64 {
        self.entries.div_ceil(self.per_page)
    }

    /// Offset of a page's first copy; the second one follows it.
    pub fn page(&self, page: u64) -> u64 {
        self.first_chunk + page * self.stride()
    }

    /// Numbers of the entries of a page.
    pub fn entries_of(&self, page: u64) -> std::ops::Range<usize> {
        let first = page * self.per_page;
        first as usize..(first + self.per_page).min(self.entries) as usize
    }

    pub fn superblock(&self, sequence: u64) -> u64 {
        (sequence % 2) * self.unit
    }

    /// Offset of the journal's first unit.
    pub fn journal_start(&self) -> u64 {
        2 * self.unit
    }

    /// Offset of an entry's data.
    #[inline]
    pub fn data(&self, entry: u32) -> u64 {
        let (page, rest) = (u64::from(entry) / self.per_page, u64::from(entry) % self.per_page);
        self.page(page) + self.chunk_head + rest * self.entry_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{BlockCount, BlockSize};

    fn geometry(bytes: u64) -> DeviceGeometry {
        DeviceGeometry {
            block_size: BlockSize::default(),
            blocks: BlockCount(bytes >> 12),
            atomic_write: 512,
            volatile_cache: true,
            read_only: false,
        }
    }

    #[test]
    fn nothing_lies_on_anything_else_or_behind_the_end() {
        for bytes in [300 << 10, 1 << 20, 11 << 20, 64 << 20, (64 << 20) + 4096] {
            let layout = Layout::new(&geometry(bytes), 32 << 10).unwrap();
            let mut taken: Vec<(u64, u64)> = vec![(0, layout.journal_start() + layout.journal * layout.unit)];
            taken.extend((0..layout.pages()).map(|page| (layout.page(page), 2 * layout.unit)));
            taken.extend((0..layout.entries as u32).map(|entry| (layout.data(entry), 32 << 10)));
            taken.sort_unstable();
            for pair in taken.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{bytes}: {pair:?}");
            }
            let end = taken.last().map(|(at, length)| at + length).unwrap();
            assert!(end <= bytes && end + (96 << 10) > bytes, "{bytes}: used up to {end}");
        }
        assert!(Layout::new(&geometry(64 << 10), 32 << 10).is_err());
    }

    #[test]
    fn what_there_was_stays_where_it_is_when_the_device_grows() {
        let small = Layout::new(&geometry(20 << 20), 64 << 10).unwrap();
        let large = Layout::with(small.unit, small.journal, small.entry_bytes, 200 << 20);
        assert!(large.entries > small.entries);
        for entry in 0..small.entries as u32 {
            assert_eq!(small.data(entry), large.data(entry));
        }
    }
}
