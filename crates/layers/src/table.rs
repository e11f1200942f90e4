//! A table on a device: many small entries that change all the time, kept through power cuts.
//!
//! An entry is three words; all zeros is a free one. Each entry also owns a piece of the device, whose use is its owner's.
//!
//! # Promises
//! - What [`append`](Table::append) was given is durable when it returns, and each entry is old or new before, never torn.
//! - Opening finds every change that was durable, or says what is damaged. Changes that weren't durable are found up to some
//!   point in their order, or not at all; what has been found once stays.
//! - A change costs its share of one journal write, and of one page write later: nothing is proportional to the table but
//!   opening it.
//!
//! # How
//! Changes go to a *journal*, a ring of units, each a record of the log kit ([`logkit::record`]). *Pages* hold the entries
//! themselves, in two copies that are written in turn: a page that is torn falls back to the other copy and the journal.
//! A unit of the journal is used again only when the pages have its changes durably, and a durable record has said so: each
//! carries the *tail*, the first record that isn't in the pages. The records of one append are written at once, and the next
//! append only when they are durable: so holes are in the last append only, and anything else that is missing is damage.
//! Opening notes, durably and before anything else, which record was the last one found, and a new epoch: records of an
//! older epoch behind it never count again.
//!
//! Left to the owner: to have made durable what a change relies on before it is appended, and one append at a time.

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
use logkit::StreamId;
use logkit::record::{Header, Identity, Kind};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zones::sector;

/// What an entry holds.
pub(crate) type Words = [u64; 3];

/// How many records one append has at most.
const RECORDS: u64 = 8;
/// How many pages are written at a time.
const PAGES_AT_ONCE: usize = 16;
/// How many pages are read at a time.
const PAGES_IN_FLIGHT: usize = 32;

/// The table, on its home shard.
pub(crate) struct Table {
    medium: Rc<Medium>,
    layout: Layout,
    superblock: RefCell<Superblock>,
    entries: RefCell<Vec<Words>>,
    journal: RefCell<Journal>,
    failure: RefCell<Option<Error>>,
    /// Whether it had been closed when it was opened.
    was_clean: bool,
    /// Records and pages that were written, for people.
    pub written: Cell<(u64, u64)>,
}

impl Table {
    /// Makes an empty table of the whole device. What was there is gone.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a device that is too small; those of the device.
    pub async fn format(medium: Rc<Medium>, entry_bytes: u64, owner: [u8; OWNER]) -> Result<Table> {
        let geometry = medium.geometry().clone();
        let layout = Layout::new(&geometry, entry_bytes)?;
        // A format that is interrupted leaves no valid superblock, old or new, wherever another one has put them.
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

    /// What the owner keeps in the superblock, before anything is opened.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is no table; as [`open`](Self::open).
    pub async fn owner(medium: &Medium) -> Result<([u8; OWNER], bool)> {
        let Found { superblock, is_doubtful } = find(medium).await?;
        Ok((superblock.owner, superblock.clean && !is_doubtful))
    }

    /// Opens the table of a device. A device that has grown since has more entries, which are free.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is none, [`Error::Protocol`] for another version, [`Error::Corrupt`] with what is
    /// damaged, [`Error::Invalid`] for a device that has shrunk.
    pub async fn open(medium: Rc<Medium>) -> Result<Table> {
        let Found { superblock: found, is_doubtful } = find(&medium).await?;
        let layout = Layout::found(&found, medium.geometry())?;
        let grown = found.entries < layout.entries;
        if grown {
            // Nothing that was on the device before may pass for a page.
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

    /// The bytes of the device that the table takes for itself.
    pub fn own_bytes(&self) -> u64 {
        self.layout.journal_start()
            + self.layout.journal * self.layout.unit
            + 2 * self.layout.pages() * self.layout.unit
    }

    /// How much of the journal is in use, and how much there is, in units.
    pub fn journal_use(&self) -> (u64, u64) {
        (self.journal.borrow().used(), self.layout.journal)
    }

    /// What an entry holds, changes that are being appended included.
    #[inline]
    pub fn get(&self, entry: u32) -> Words {
        self.entries.borrow()[entry as usize]
    }

    /// How many changes one append takes at most.
    pub fn most_changes(&self) -> usize {
        self.records() as usize * format::changes_per_record(self.layout.unit)
    }

    fn records(&self) -> u64 {
        RECORDS.min(self.layout.journal / 8)
    }

    /// After the first error of the device nothing is known about what is durable, and everything is refused.
    fn note<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| {
            self.failure.borrow_mut().get_or_insert_with(|| error.clone());
        })
    }

    /// Why the table takes no more changes, if it doesn't.
    pub fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), Err)
    }

    /// Makes room in the journal for one append. To be called before [`set`](Self::set), which has to be followed by the
    /// append: pages hold only what is durable in the journal.
    pub async fn make_room(&self) -> Result<()> {
        self.check()?;
        let records = self.records();
        loop {
            let plan = self.journal.borrow().plan(records);
            let outcome = self.write_pages(plan.pages).await;
            self.note(outcome)?;
            if !plan.is_tight {
                return Ok(());
            }
            // The tail moves when a durable record says so.
            self.append(&[]).await?;
        }
    }

    /// Changes entries in memory; [`append`](Self::append) has to follow.
    pub fn set(&self, changes: &[(u32, Words)]) {
        let mut entries = self.entries.borrow_mut();
        for (entry, words) in changes {
            entries[*entry as usize] = *words;
        }
    }

    /// Makes these changes durable, at most [`most_changes`](Self::most_changes).
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

    /// Writes consecutive units of the journal, in one request or, around its end, two.
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

    /// Writes the pages that have waited longest.
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

    /// Changes what the owner keeps in the superblock, durably.
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

    /// What the owner keeps in the superblock.
    pub fn owner_words(&self) -> [u8; OWNER] {
        self.superblock.borrow().owner
    }
}

/// Makes pages from one on free, as nothing that was on the device before may pass for one.
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
    /// The other one is damaged, and may have been newer. A power cut doesn't do that: they fit in a sector.
    is_doubtful: bool,
}

/// Reads the superblocks.
async fn find(medium: &Medium) -> Result<Found> {
    let geometry = medium.geometry();
    let smallest = geometry.block_size.bytes().max(format::SMALLEST_UNIT);
    if geometry.bytes() < 2 * smallest {
        return Err(Error::not_found("no table on the device: it is too small for one"));
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
        // The unit isn't known. Below the second copy there is nothing that could pass for one, behind it there may be.
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
        return Err(Error::corrupt("the two superblocks belong to different tables"));
    }
    let newest = sector::newest([first, second], |superblock| superblock.sequence);
    newest.map(|superblock| Found { superblock, is_doubtful }).map_err(|error| match error {
        Error::NotFound(_) => {
            Error::not_found(format!("no table on the device, but {}", sector::describe(begin.filled())))
        }
        error => error.in_context("the table of the device can't be used"),
    })
}

/// The superblock in these bytes, if it is one that belongs there.
fn look(bytes: &block::Buffer, offset: u64) -> Result<Superblock> {
    let superblock = Superblock::decode(bytes.filled())?;
    match (superblock.sequence % 2) * u64::from(superblock.unit) == offset {
        true => Ok(superblock),
        false => Err(Error::not_found("a superblock that belongs elsewhere")),
    }
}

#[cfg(test)]
mod tests;
