//! A map's home: the radix map kept in persistent memory, so that opening the log reads no log.
//!
//! The map works on a private mapping of the home, so changes don't reach the home by themselves. A
//! *transaction* updates the home to the map's state between two commits. The changed lines are first written
//! to a journal. Once they are durable there, they are stored at their offsets. Once those stores are
//! durable, the journal is emptied. Opening applies the journal's complete transactions, which is idempotent:
//! they hold the new contents of lines, not changes. An incomplete transaction is dropped, and the home has
//! the state of the previous one.
//!
//! A transaction covers every record that had committed when it was collected. The caller makes those records
//! durable before it commits the transaction.
//!
//! One concept per module: `format` the bytes, `state` the state in addition to the map, `medium` the storage
//! below, `transaction` the order of a transaction and of the log's writes, `recovery` opening a log with a
//! home.

mod format;
mod medium;
#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod recorded;
mod recovery;
mod state;
mod transaction;

pub use format::{LINE, Line, Places};
pub use medium::{FileMedium, Medium};
pub use recovery::{FILES, storage};
pub use state::{Known, KnownZone, Moment};

use crate::map::radix::Radix;
use crate::map::radix::at_home::{self, Family, HomeWords};
use crate::versions::Versions;
use block::{Error, Result};
use format::{HEADER, Header, SLAB, SLOT, TRANSACTION, Transaction, body_length, bytes_of, line_of};
use logkit::ZonePool;
use logkit::record::Identity;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use zones::on_device::format::Uuid;

/// Number of slabs that are allocated together: 1 MiB.
const SLABS_AT_ONCE: u32 = 256;
/// Number of slabs in private memory above which those that equal their copy at home are freed: 64 MiB.
const MAX_PRIVATE: u64 = 16 << 10;
/// Lines of a slab.
const SLAB_LINES: usize = SLAB as usize / LINE;

/// A map's home, on the log's home shard.
pub struct MapHome {
    medium: Rc<dyn Medium>,
    identity: Identity,
    zones: u32,
    places: Places,
    family: Family,
    /// The newest slot of the header.
    header: Cell<Header>,
    /// Last durable transaction.
    sequence: Cell<u64>,
    /// Number of transactions that were begun since the log was opened, and the last of them that is durable.
    begun: Cell<u64>,
    durable: Cell<u64>,
    /// Offset of the next transaction in the journal.
    position: Cell<u64>,
    /// Allocated slabs, and allocated bytes of state.
    allocated: Cell<(u32, u64)>,
    /// The versions and the moment of the last transaction.
    last: RefCell<(Vec<u8>, Option<Moment>)>,
    /// Whether a failure has left the contents of the home unknown.
    is_broken: Cell<bool>,
    /// For the status: number of lines that transactions changed, and of bytes that they wrote.
    lines: Cell<u64>,
    bytes: Cell<u64>,
}

impl std::fmt::Debug for MapHome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "MapHome({} on {})", self.identity.uuid, self.medium.name())
    }
}

/// Changes of the home up to one moment.
#[derive(Debug)]
pub struct Collected {
    lines: Vec<(u64, Line)>,
    slabs: Vec<u32>,
    zones: Vec<u32>,
    versions: Vec<u8>,
    moment: Moment,
}

impl Collected {
    /// Returns the records that had committed when the transaction was collected.
    pub fn moment(&self) -> &Moment {
        &self.moment
    }
}

/// A home that was opened.
#[derive(Debug)]
pub struct Opened {
    /// State in addition to the map.
    pub known: Known,
    /// The maps of the versions, in the same order.
    pub maps: Vec<Radix<HomeWords>>,
    /// The home that keeps the maps; `None` if it was opened read-only.
    pub home: Option<MapHome>,
}

impl MapHome {
    /// Creates a home for a log of `zones` zones with a volume of `blocks` blocks, and an empty map, with
    /// these offsets. The home is invalid until its first transaction.
    ///
    /// # Errors
    /// Errors of allocating, writing and mapping.
    pub async fn create(
        medium: Rc<dyn Medium>,
        identity: Identity,
        zones: u32,
        blocks: u64,
        places: Places,
    ) -> Result<(MapHome, Radix<HomeWords>)> {
        medium.allocate(0, places.state).await?;
        let (map, family) =
            at_home::create(HomeWords::new(medium.words(places.words, HomeWords::MAX)?)?, blocks)?;
        let header = Header { uuid: identity.uuid, zones, places, number: 0, base: 0 };
        let home = Self::new(medium, identity, header, family, 0);
        home.write_header(header).await?;
        Ok((home, map))
    }

    fn new(
        medium: Rc<dyn Medium>,
        identity: Identity,
        header: Header,
        family: Family,
        sequence: u64,
    ) -> Self {
        MapHome {
            medium,
            identity,
            zones: header.zones,
            places: header.places,
            family,
            header: Cell::new(header),
            sequence: Cell::new(sequence),
            begun: Cell::new(0),
            durable: Cell::new(0),
            position: Cell::new(0),
            allocated: Cell::new((0, 0)),
            last: RefCell::new((Vec::new(), None)),
            is_broken: Cell::new(false),
            lines: Cell::new(0),
            bytes: Cell::new(0),
        }
    }

    /// Opens the home of a log and applies the journal; `demanded` is the oldest transaction that the log's
    /// root accepts. With `look_only`, nothing is written, and the journal is overlaid on reads.
    ///
    /// # Errors
    /// [`Error::Protocol`] for another log's home or another file, [`Error::Corrupt`] for a damaged home or
    /// one that is too old; errors of reading, writing and mapping.
    pub async fn open(
        medium: Rc<dyn Medium>,
        identity: Identity,
        zones: u32,
        demanded: u64,
        look_only: bool,
    ) -> Result<Opened> {
        let named = |error: Error| error.in_context(format!("the map's home {}", medium.name()));
        let header = find_header(&*medium, &identity.uuid, zones).await.map_err(named)?;
        let journal =
            Journal { medium: &*medium, key: identity.key, places: header.places, length: medium.length()? };
        let found = journal.read(header.base).await.map_err(named)?;
        if !look_only && !found.lines.is_empty() {
            journal.put_in_place(&found.lines).await.map_err(named)?;
        }
        let over = if look_only { &found.lines } else { &BTreeMap::new() };
        let known = journal.state(zones, over).await.map_err(named)?;
        if known.sequence != found.sequence {
            return Err(named(Error::corrupt(format!(
                "its state is of transaction {}, and its journal from {} to {}: it is damaged; restore it and the disk",
                known.sequence, header.base, found.sequence
            ))));
        }
        if known.sequence < demanded {
            return Err(named(Error::corrupt(format!(
                "it is an older copy, of transaction {}; expected {demanded} or later; restore the newest copy, or an older \
                 one of the disk with it",
                known.sequence
            ))));
        }
        let end = header.places.slab(known.moment.slabs);
        if journal.length < end {
            return Err(named(Error::corrupt(format!(
                "it was truncated to {} bytes; expected at least {end}; restore it",
                journal.length
            ))));
        }
        let words = HomeWords::new(medium.words(header.places.words, HomeWords::MAX)?)?;
        at_home::overlay(&words, known.moment.slabs, |change| {
            for (offset, line) in over.range(header.places.words..) {
                change(((offset - header.places.words) / 4) as usize, &bytes_of(line));
            }
        })?;
        let roots: Vec<_> = known.versions.iter().map(|(_, version)| version.clone()).collect();
        let (maps, family) = at_home::open(words, known.moment.slabs, &roots).map_err(named)?;
        if look_only {
            return Ok(Opened { known, maps, home: None });
        }
        let home = Self::new(medium.clone(), identity, header, family, known.sequence);
        if known.sequence != header.base {
            home.begin_journal().await.map_err(named)?;
        }
        home.take_space(known.moment.slabs, 0).await.map_err(named)?;
        home.last.borrow_mut().1 = Some(known.moment);
        Ok(Opened { known, maps, home: Some(home) })
    }

    /// Returns the last durable transaction.
    pub fn sequence(&self) -> u64 {
        self.sequence.get()
    }

    /// Returns whether the contents of the home are unknown: no transaction will be durable before the log is
    /// reopened.
    pub fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    /// Collects the changes since the last transaction atomically; `None` if there are none. The result must
    /// be committed or given back before the next call.
    pub fn collect(&self, versions: &Versions, pool: &ZonePool, moment: Moment) -> Option<Collected> {
        let moment = Moment { slabs: self.family.used(), next_version: versions.next, ..moment };
        let key = self.identity.key;
        let mut lines = Vec::new();
        let allocated = self.allocated.get().0;
        let mut there = [[0; LINE / 8]; SLAB_LINES];
        let slabs = self.family.take_touched(|slab, words| {
            let offset = self.places.slab(slab);
            if slab < allocated {
                self.medium.load(offset, &mut there);
            }
            for (number, words) in words.chunks_exact(LINE / 4).enumerate() {
                let mut bytes = [0; LINE];
                for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                    *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
                }
                let line = line_of(&bytes);
                // Lines that were never stored may hold any bytes.
                if slab >= allocated || line != there[number] {
                    lines.push((offset + (number * LINE) as u64, line));
                }
            }
        });
        let zones = pool.take_touched();
        for zone in &zones {
            lines.push((self.places.zone(*zone), state::encode_zone(*zone, &pool.get(*zone), key)));
        }
        let now = state::encode_versions(versions, key);
        let last = self.last.borrow();
        let start = self.places.versions(self.zones);
        for (number, bytes) in now.chunks(LINE).enumerate() {
            let before = last.0.get(number * LINE..((number + 1) * LINE).min(last.0.len()));
            if before != Some(bytes) {
                lines.push((start + (number * LINE) as u64, line_of(bytes)));
            }
        }
        if lines.is_empty() && last.1 == Some(moment) {
            return None;
        }
        Some(Collected { lines, slabs, zones, versions: now, moment })
    }

    /// Returns changes that weren't committed: the next call collects them again.
    pub fn give_back(&self, collected: &Collected, pool: &ZonePool) {
        self.family.touch(&collected.slabs);
        collected.zones.iter().for_each(|zone| pool.touch(*zone));
    }

    /// Commits a transaction; it is durable when this returns. Every record that had committed when it was
    /// collected must already be durable.
    ///
    /// # Errors
    /// [`Error::NoSpace`] before anything was changed; otherwise errors of writing, and the home [is
    /// broken](Self::is_broken).
    pub async fn commit(&self, mut collected: Collected, pool: &ZonePool) -> Result<()> {
        if self.is_broken() {
            self.give_back(&collected, pool);
            return Err(Error::io(format!(
                "the map's home {}: an earlier write failed; reopen the log",
                self.medium.name()
            )));
        }
        let sequence = self.sequence.get() + 1;
        let moment = collected.moment;
        let first = state::encode_moment(&moment, sequence, collected.versions.len(), self.identity.key);
        collected.lines.push((self.places.state, first));
        let body = format::encode_body(&collected.lines);
        let place = match self.prepare(&collected, body.len() as u64).await {
            Ok(place) => place,
            Err(error) => {
                self.give_back(&collected, pool);
                return Err(error.in_context(format!("the map's home {}", self.medium.name())));
            }
        };
        if let Err(error) = self.write(sequence, &collected, body, place).await {
            self.is_broken.set(true);
            self.give_back(&collected, pool);
            return Err(error.in_context(format!("the map's home {}", self.medium.name())));
        }
        *self.last.borrow_mut() = (collected.versions, Some(moment));
        if self.family.private() > MAX_PRIVATE {
            self.family.forget_private();
        }
        Ok(())
    }

    /// Allocates the space that a transaction needs; returns the offset of its body if that doesn't fit in
    /// the journal.
    async fn prepare(&self, collected: &Collected, body: u64) -> Result<Option<u64>> {
        let state_end =
            self.places.versions(self.zones) - self.places.state + collected.versions.len() as u64;
        if state_end > self.places.state_length {
            return Err(Error::no_space(format!(
                "too many versions: their list needs {state_end} bytes, of {}; delete snapshots",
                self.places.state_length
            )));
        }
        self.take_space(collected.moment.slabs, state_end).await?;
        if TRANSACTION as u64 + body <= self.places.journal_length {
            return Ok(None);
        }
        // After all slabs in use. The map may begin to use the space meanwhile: the previous contents of a
        // new slab are ignored.
        let start = self.family.used().max(self.allocated.get().0).next_multiple_of(SLABS_AT_ONCE);
        let end = start.saturating_add(body.div_ceil(SLAB) as u32);
        self.family.reach(end)?;
        let offset = self.places.slab(start);
        self.medium.allocate(offset, body).await?;
        Ok(Some(offset))
    }

    /// Allocates `slabs` slabs, and `state` bytes of state.
    async fn take_space(&self, slabs: u32, state: u64) -> Result<()> {
        let (slabs, state) = (
            slabs.next_multiple_of(SLABS_AT_ONCE),
            state.next_multiple_of(SLAB).min(self.places.state_length),
        );
        let (slabs_before, state_before) = self.allocated.get();
        if state > state_before {
            self.medium.allocate(self.places.state + state_before, state - state_before).await?;
            self.allocated.set((slabs_before, state));
        }
        if slabs > slabs_before {
            // The file is extended first, so that the allocation doesn't change its length.
            self.family.reach(slabs)?;
            let length = SLAB * u64::from(slabs - slabs_before);
            self.medium.allocate(self.places.slab(slabs_before), length).await?;
            self.allocated.set((slabs, self.allocated.get().1));
        }
        Ok(())
    }

    async fn write(
        &self,
        sequence: u64,
        collected: &Collected,
        body: Vec<u8>,
        elsewhere: Option<u64>,
    ) -> Result<()> {
        let length = TRANSACTION as u64 + if elsewhere.is_some() { 0 } else { body.len() as u64 };
        if self.position.get() + length > self.places.journal_length {
            self.begin_journal().await?;
        }
        let transaction = Transaction {
            sequence,
            lines: collected.lines.len() as u32,
            elsewhere: elsewhere.unwrap_or(0),
            body_sum: format::body_sum(self.identity.key, &body),
        };
        let written = TRANSACTION + body.len();
        let mut bytes = transaction.encode(self.identity.key);
        match elsewhere {
            Some(offset) => self.medium.write(offset, body).await?,
            None => bytes.extend_from_slice(&body),
        }
        let position = self.position.get();
        self.medium.write(self.places.journal + position, bytes).await?;
        self.sequence.set(sequence);
        self.position.set(position + length);
        for (offset, line) in &collected.lines {
            self.medium.store(*offset, line);
        }
        self.lines.set(self.lines.get() + collected.lines.len() as u64);
        self.bytes.set(self.bytes.get() + written as u64);
        match elsewhere {
            // The next transaction may use the space of this body.
            Some(_) => self.begin_journal().await,
            None => Ok(()),
        }
    }

    /// Makes the stored lines durable, and empties the journal.
    async fn begin_journal(&self) -> Result<()> {
        self.medium.persist().await?;
        let header = self.header.get();
        self.write_header(Header { number: header.number + 1, base: self.sequence.get(), ..header }).await?;
        self.position.set(0);
        Ok(())
    }

    async fn write_header(&self, header: Header) -> Result<()> {
        self.medium.write(header.offset(), header.encode()).await?;
        self.header.set(header);
        Ok(())
    }
}

/// Returns the newest header of the home of this log.
async fn find_header(medium: &dyn Medium, uuid: &Uuid, zones: u32) -> Result<Header> {
    if medium.length()? < 2 * SLOT {
        return Err(Error::protocol("not a map's home: it is too short; restore it"));
    }
    let mut newest: Option<Header> = None;
    let mut reason = None;
    for slot in 0..2 {
        match Header::decode(&medium.read(slot * SLOT, HEADER).await?) {
            Ok(header) if newest.is_none_or(|newest| newest.number < header.number) => newest = Some(header),
            Ok(_) => {}
            // A damaged slot is a better reason than one that was never written.
            Err(error @ Error::Corrupt(_)) => reason = Some(error),
            Err(error) => reason = reason.or(Some(error)),
        }
    }
    let header = match (newest, reason) {
        (Some(header), _) => header,
        (None, Some(Error::Corrupt(detail))) => {
            return Err(Error::corrupt(format!("{detail}, in both slots; restore it")));
        }
        (None, reason) => return Err(reason.unwrap_or_else(|| Error::protocol("not a map's home"))),
    };
    if header.uuid != *uuid {
        return Err(Error::protocol(format!(
            "it belongs to log {}; expected {uuid}; set map_home to this log's file",
            header.uuid
        )));
    }
    if header.zones != zones {
        return Err(Error::corrupt(format!(
            "it belongs to a log with {} zones; expected {zones}",
            header.zones
        )));
    }
    Ok(header)
}

/// Contents of the journal.
struct FoundLines {
    /// Last complete transaction, or the base if there is none.
    sequence: u64,
    /// Newest copy of each line that the transactions change.
    lines: BTreeMap<u64, Line>,
}

/// Journal of a home that is being opened.
struct Journal<'a> {
    medium: &'a dyn Medium,
    key: u64,
    places: Places,
    length: u64,
}

impl Journal<'_> {
    /// Reads complete transactions after `base`, up to the first incomplete one.
    async fn read(&self, base: u64) -> Result<FoundLines> {
        let mut found = FoundLines { sequence: base, lines: BTreeMap::new() };
        let mut at = 0;
        while at + TRANSACTION as u64 <= self.places.journal_length {
            let bytes = self.medium.read(self.places.journal + at, TRANSACTION).await?;
            let Some(transaction) = Transaction::decode(&bytes, self.key) else { break };
            // The first transaction may be older than a header slot that is now damaged. That slot was
            // written only after all earlier transactions had been stored.
            let is_next = transaction.sequence == found.sequence + 1;
            if !is_next && (at > 0 || transaction.sequence <= base) {
                break;
            }
            let length = body_length(transaction.lines);
            let (offset, behind) = match transaction.elsewhere {
                0 => (self.places.journal + at + TRANSACTION as u64, length),
                offset => (offset, 0),
            };
            let is_inside = match transaction.elsewhere {
                0 => at + TRANSACTION as u64 + length <= self.places.journal_length,
                offset => offset.checked_add(length).is_some_and(|end| end <= self.length),
            };
            if !is_inside {
                break;
            }
            let body = self.medium.read(offset, length as usize).await?;
            if format::body_sum(self.key, &body) != transaction.body_sum {
                break;
            }
            found.lines.extend(format::decode_body(&body, transaction.lines, &self.places)?);
            found.sequence = transaction.sequence;
            at += TRANSACTION as u64 + behind;
        }
        match found.lines.last_key_value() {
            Some((offset, _)) if offset + LINE as u64 > self.length => Err(Error::corrupt(format!(
                "it was truncated to {} bytes: a transaction of its journal changes byte {offset}; restore it",
                self.length
            ))),
            _ => Ok(found),
        }
    }

    /// Stores lines at their offsets. They aren't durable until the medium is persisted.
    async fn put_in_place(&self, lines: &BTreeMap<u64, Line>) -> Result<()> {
        // Space was allocated before the lines were written, but a copy of the file may have holes.
        let mut from = None;
        for offset in lines.keys() {
            let slab = offset / SLAB * SLAB;
            if from != Some(slab) {
                self.medium.allocate(slab, SLAB.min(self.length - slab)).await?;
                from = Some(slab);
            }
        }
        lines.iter().for_each(|(offset, line)| self.medium.store(*offset, line));
        Ok(())
    }

    /// Returns the state in addition to the map, with these lines overlaid.
    async fn state(&self, zones: u32, over: &BTreeMap<u64, Line>) -> Result<Known> {
        let start = self.places.state;
        let first = self.patched(start, LINE, over).await?;
        let length = Known::length(&first, zones, &self.places, self.key)?;
        let bytes = self.patched(start, length.next_multiple_of(LINE), over).await?;
        Known::decode(&bytes[..length], zones, self.key)
    }

    async fn patched(&self, offset: u64, length: usize, over: &BTreeMap<u64, Line>) -> Result<Vec<u8>> {
        let mut bytes = self.medium.read(offset, length).await?;
        for (at, line) in over.range(offset..offset + length as u64) {
            let at = (at - offset) as usize;
            bytes[at..at + LINE].copy_from_slice(&bytes_of(line));
        }
        Ok(bytes)
    }
}
