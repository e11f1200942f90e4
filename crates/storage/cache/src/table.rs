//! A crash-consistent table on a device: many small entries that change often.
//!
//! An entry is three words; a free entry is all zeros. Each entry also owns a range of the device for its
//! owner's data.
//!
//! # Promises
//! - Changes are durable when their [`append`](Table::append) returns. Until then each entry is old or new,
//!   never torn.
//! - Opening finds every durable change, or names the damage. Of changes that weren't durable it finds a
//!   prefix in their order, perhaps none. A change that was found once stays.
//! - A change costs its share of one journal write and of one later page write. Only opening takes time
//!   proportional to the size of the table.
//!
//! # Mechanism
//! Changes are appended to a *journal*, a ring of units, each a record of the log kit
//! ([`zones::record`]). *Pages* contain the entries, in two copies that are written alternately; a torn page
//! is recovered from the other copy and the journal. Each record contains the *tail*, the number of the first
//! record whose changes aren't all durable in the pages. A unit is reused only when its record is before the
//! tail of a durable record. The records of one append are written together, and the next append begins when
//! they are durable. So only the last append may have holes; any other missing record is damage. Opening
//! first flushes the device, because records of a killed process may not be durable. Then it writes a
//! superblock with the number of the last valid record and a new epoch: later records of an older epoch stay
//! invalid for ever.
//!
//! Left to the owner: data that a change refers to is durable before the change is appended, and appends
//! don't overlap.

mod format;
mod journal;
mod layout;
mod medium;

pub(crate) use format::OWNER;
pub(crate) use layout::Layout;
pub(crate) use medium::Medium;

use block::{BlockSize, Durability, Error, Payload, Result, ZeroMode};
use format::Superblock;
use journal::Journal;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zones::record::StreamId;
use zones::record::{Header, Identity, Kind};
use zones::sector;

/// Contents of an entry.
pub(crate) type Words = [u64; 3];

/// Largest number of records of one append.
const RECORDS: u64 = 8;
/// Number of page writes in flight.
const PAGES_AT_ONCE: usize = 16;
/// Number of page reads in flight.
const PAGES_IN_FLIGHT: usize = 32;

/// The table, on its home shard.
pub(crate) struct Table {
    medium: Rc<Medium>,
    layout: Layout,
    superblock: RefCell<Superblock>,
    entries: RefCell<Vec<Words>>,
    journal: RefCell<Journal>,
    failure: RefCell<Option<Error>>,
    /// Whether the last session closed the table cleanly.
    was_clean: bool,
    /// Number of records and of pages that were written, for the status.
    pub written: Cell<(u64, u64)>,
}

impl Table {
    /// Creates an empty table on the whole device. Earlier contents are lost.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small; errors of the device.
    pub async fn format(medium: Rc<Medium>, entry_bytes: u64, owner: [u8; OWNER]) -> Result<Table> {
        let geometry = medium.geometry().clone();
        let layout = Layout::new(&geometry, entry_bytes)?;
        // Zeroes old superblocks of any unit size first, so that an interrupted format leaves no valid
        // superblock.
        let begin = (2 * u64::from(BlockSize::LARGEST)).min(geometry.bytes());
        medium.write_zeroes(0, begin, ZeroMode::KeepAllocated, Durability::Durable).await?;
        zero_pages(&medium, &layout, 0).await?;
        medium.flush().await?;
        let superblock = Superblock {
            identity: Identity::draw(),
            unit: layout.unit as u32,
            sequence: 0,
            epoch: 0,
            last: 0,
            tail: 1,
            entries: layout.entries,
            entry_bytes,
            journal: layout.journal as u32,
            clean: true,
            owner,
        };
        medium.write(layout.superblock(0), superblock.encode(), Durability::Durable).await?;
        Table::open(medium).await
    }

    /// Reads the owner's bytes in the superblock without opening the table, and whether it was closed
    /// cleanly.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no table; errors of [`open`](Self::open).
    pub async fn owner(medium: &Medium) -> Result<([u8; OWNER], bool)> {
        let Found { superblock, is_doubtful } = find(medium).await?;
        Ok((superblock.owner, superblock.clean && !is_doubtful))
    }

    /// Opens the table of a device. On a device that has grown, the table gets more entries, which are free.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no table; [`Error::Protocol`] for another version; [`Error::Corrupt`]
    /// for a damaged table; [`Error::Invalid`] for a device that has shrunk.
    pub async fn open(medium: Rc<Medium>) -> Result<Table> {
        let Found { superblock: found, is_doubtful } = find(&medium).await?;
        let layout = Layout::found(&found, medium.geometry())?;
        let grown = found.entries < layout.entries;
        if grown {
            // Earlier contents of the device must not decode as pages.
            let old = found.entries.div_ceil(layout.per_page);
            zero_pages(&medium, &layout, old).await?;
            medium.flush().await?;
        }
        let mut entries = vec![[0; 3]; layout.entries as usize];
        let recovered = journal::recover(&medium, &layout, &found, is_doubtful, &mut entries).await?;
        let superblock = Superblock {
            sequence: found.sequence + 1,
            epoch: found.epoch + 1,
            last: recovered.last,
            tail: recovered.tail,
            entries: layout.entries,
            clean: false,
            ..found.clone()
        };
        // A process that was killed may have left records that aren't durable, and data of the owner. The
        // superblock names these records, and the owner relies on that data.
        medium.flush().await?;
        let place = layout.superblock(superblock.sequence);
        medium.write(place, superblock.encode(), Durability::Durable).await?;
        let journal = Journal::new(&layout, recovered);
        Ok(Table {
            medium,
            layout,
            superblock: RefCell::new(superblock),
            entries: RefCell::new(entries),
            journal: RefCell::new(journal),
            failure: RefCell::default(),
            was_clean: found.clean && !is_doubtful,
            written: Cell::default(),
        })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// Number of bytes of the device that superblocks, journal and pages take.
    pub fn own_bytes(&self) -> u64 {
        self.layout.journal_start()
            + self.layout.journal * self.layout.unit
            + 2 * self.layout.pages() * self.layout.unit
    }

    /// Number of units of the journal in use, and of all.
    pub fn journal_use(&self) -> (u64, u64) {
        (self.journal.borrow().used(), self.layout.journal)
    }

    /// Returns an entry, including changes of an append in flight.
    #[inline]
    pub fn get(&self, entry: u32) -> Words {
        self.entries.borrow()[entry as usize]
    }

    /// Largest number of changes of one append.
    pub fn most_changes(&self) -> usize {
        self.records() as usize * format::changes_per_record(self.layout.unit)
    }

    fn records(&self) -> u64 {
        RECORDS.min(self.layout.journal / 8)
    }

    /// Keeps the first error of the device, after which all changes are refused: which of them are durable is
    /// unknown.
    fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| {
            self.failure.borrow_mut().get_or_insert_with(|| error.clone());
        })
    }

    /// Error after which changes are refused.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Frees journal units for one append by writing pages. To be called before [`set`](Self::set), with no
    /// page write between `set` and the append: pages may contain only changes that are durable in the
    /// journal.
    pub async fn reserve(&self) -> Result<()> {
        self.check()?;
        let records = self.records();
        loop {
            let plan = self.journal.borrow().plan(records);
            let outcome = self.write_pages(plan.pages).await;
            self.note(outcome)?;
            if !plan.is_tight {
                return Ok(());
            }
            // An empty record makes the new tail durable, which frees units.
            self.append(&[]).await?;
        }
    }

    /// Changes entries in memory. The caller appends the same changes next with [`append`](Self::append).
    pub fn set(&self, changes: &[(u32, Words)]) {
        let mut entries = self.entries.borrow_mut();
        for (entry, words) in changes {
            entries[*entry as usize] = *words;
        }
    }

    /// Makes these changes durable; their number is at most [`most_changes`](Self::most_changes).
    pub async fn append(&self, changes: &[(u32, Words)]) -> Result<()> {
        self.check()?;
        let (identity, epoch) = {
            let superblock = self.superblock.borrow();
            (superblock.identity, superblock.epoch)
        };
        let (first, tail) = {
            let journal = self.journal.borrow();
            (journal.next, journal.tail())
        };
        let each = format::changes_per_record(self.layout.unit);
        let mut units = Vec::with_capacity(changes.len() / each + 1);
        for changes in changes.chunks(each).chain(changes.is_empty().then_some(changes)) {
            let sequence = first + units.len() as u64;
            let header = Header {
                kind: Kind::CacheTable,
                stream: StreamId(0),
                class: 0,
                epoch,
                sequence,
                durable: first - 1,
                clock: tail,
                zone: 0,
                generation: 0,
                position: (sequence % self.layout.journal) as u32,
                blocks: 0,
            };
            let mut unit = block::Buffer::zeroed(self.layout.unit as usize);
            header.encode(&identity, &[], &[], &format::encode_changes(changes), unit.filled_mut());
            units.push((sequence, unit.freeze()));
        }
        let count = units.len() as u64;
        let outcome = self.write_units(units).await;
        self.note(outcome)?;
        let pages = changes.chunks(each).enumerate().flat_map(|(number, changes)| {
            let per_page = self.layout.per_page;
            changes.iter().map(move |(entry, _)| (first + number as u64, u64::from(*entry) / per_page))
        });
        self.journal.borrow_mut().appended(count, tail, pages);
        let (records, pages) = self.written.get();
        self.written.set((records + count, pages));
        Ok(())
    }

    /// Writes consecutive units of the journal, in one request, or in two around the ring's end.
    async fn write_units(&self, units: Vec<(u64, block::Data)>) -> Result<()> {
        let mut writes: Vec<(u64, Payload)> = Vec::new();
        for (sequence, unit) in units {
            let position = sequence % self.layout.journal;
            let place = self.layout.journal_start() + position * self.layout.unit;
            match writes.last_mut() {
                Some((_, payload)) if position != 0 => payload.push(unit),
                _ => writes.push((place, unit.into())),
            }
        }
        let writes =
            writes.into_iter().map(|(at, payload)| self.medium.write(at, payload, Durability::Durable));
        runtime::join_all(writes).await.into_iter().collect()
    }

    /// Writes `count` pages, those with the oldest changes first.
    async fn write_pages(&self, count: usize) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let batch = self.journal.borrow_mut().oldest_pages(left.min(PAGES_AT_ONCE));
            if batch.is_empty() {
                break;
            }
            left -= batch.len();
            let identity = self.superblock.borrow().identity;
            let sequence = self.journal.borrow().next - 1;
            let writes = batch.iter().map(|page| {
                let range = self.layout.entries_of(page.number);
                let unit = format::encode_page(
                    &identity,
                    self.layout.unit,
                    page.number,
                    sequence,
                    &self.entries.borrow()[range],
                );
                let place = self.layout.page(page.number) + page.copy * self.layout.unit;
                self.medium.write(place, unit.into(), Durability::Durable)
            });
            runtime::join_all(writes).await.into_iter().collect::<Result<()>>()?;
            let (records, pages) = self.written.get();
            self.written.set((records, pages + batch.len() as u64));
            self.journal.borrow_mut().written(&batch);
        }
        Ok(())
    }

    /// Durably sets the owner's bytes in the superblock, and whether the table is closed cleanly.
    pub async fn set_owner(&self, owner: [u8; OWNER], clean: bool) -> Result<()> {
        self.check()?;
        let superblock = {
            let mut superblock = self.superblock.borrow_mut();
            superblock.sequence += 1;
            superblock.owner = owner;
            superblock.clean = clean;
            superblock.clone()
        };
        let place = self.layout.superblock(superblock.sequence);
        self.note(self.medium.write(place, superblock.encode(), Durability::Durable).await)
    }

    /// Returns the owner's bytes in the superblock.
    pub fn owner_words(&self) -> [u8; OWNER] {
        self.superblock.borrow().owner
    }
}

/// Zeroes the pages starting with page `from`, so that earlier contents of the device don't decode as pages.
async fn zero_pages(medium: &Medium, layout: &Layout, from: u64) -> Result<()> {
    let zeroes = (from..layout.pages()).map(|page| {
        let mode = ZeroMode::MayDeallocate;
        medium.write_zeroes(layout.page(page), 2 * layout.unit, mode, Durability::Visible)
    });
    let mut zeroes = zeroes.peekable();
    while zeroes.peek().is_some() {
        let piece: Vec<_> = zeroes.by_ref().take(8 * PAGES_IN_FLIGHT).collect();
        runtime::join_limited(PAGES_IN_FLIGHT, piece).await.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}

/// The newer one of the superblocks.
struct Found {
    superblock: Superblock,
    /// Whether the other superblock is damaged and may have been newer. A power cut doesn't cause this: a
    /// superblock fits in a sector.
    is_doubtful: bool,
}

/// Reads the superblocks.
async fn find(medium: &Medium) -> Result<Found> {
    let geometry = medium.geometry();
    let smallest = geometry.block_size.bytes().max(format::MIN_UNIT);
    if geometry.bytes() < 2 * smallest {
        return Err(Error::not_found(format!(
            "no table on the device: its size is {} bytes; a table needs at least {}",
            geometry.bytes(),
            2 * smallest
        )));
    }
    let begin = medium.bytes(0, smallest).await?;
    let first = look(&begin, 0);
    let is_there = |bytes: &block::Buffer| bytes.filled().iter().take(sector::SECTOR).any(|byte| *byte != 0);
    let (second, is_doubtful) = match &first {
        Ok(superblock) => {
            let unit = u64::from(superblock.unit);
            let bytes = medium.bytes(unit, smallest).await?;
            let second = look(&bytes, unit);
            let is_damaged = second.is_err() && is_there(&bytes);
            (second, is_damaged)
        }
        Err(error @ Error::Protocol(_)) => return Err(error.clone()),
        // The unit is unknown. The search ends at the first superblock: only bytes after the second copy
        // could imitate one.
        Err(_) => {
            let mut unit = smallest;
            let mut found = Err(Error::not_found("no second superblock"));
            while found.is_err() && unit <= u64::from(BlockSize::LARGEST) && 2 * unit <= geometry.bytes() {
                let copy = look(&medium.bytes(unit, smallest).await?, unit);
                found = sector::newest([found, copy], |superblock| superblock.sequence);
                if let Err(Error::Protocol(_)) = found {
                    break;
                }
                unit *= 2;
            }
            (found, is_there(&begin))
        }
    };
    if let Err(error @ Error::Protocol(_)) = second {
        return Err(error);
    }
    if let (Ok(first), Ok(second)) = (&first, &second)
        && first.identity != second.identity
    {
        return Err(Error::corrupt(
            "the two superblocks have different identities; the device is damaged, or two tables were mixed",
        ));
    }
    let newest = sector::newest([first, second], |superblock| superblock.sequence);
    newest.map(|superblock| Found { superblock, is_doubtful }).map_err(|error| match error {
        Error::NotFound(_) => {
            Error::not_found(format!("no table on the device, but {}", sector::describe(begin.filled())))
        }
        error => error.in_context("table on the device"),
    })
}

/// Decodes a superblock from these bytes, if its sequence number belongs to this offset.
fn look(bytes: &block::Buffer, offset: u64) -> Result<Superblock> {
    let superblock = Superblock::decode(bytes.filled())?;
    match (superblock.sequence % 2) * u64::from(superblock.unit) == offset {
        true => Ok(superblock),
        false => Err(Error::not_found(format!(
            "superblock at byte {offset}: its sequence number belongs to another copy"
        ))),
    }
}

#[cfg(test)]
mod tests;
