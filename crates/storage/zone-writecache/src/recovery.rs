//! Creating a write cache of zones, and reading its log.
//!
//! Opening reads the newest superblock and the checkpoint that it names, and follows the records of the log
//! from there. Records before the tail, and records that are known to be durable, must be valid. The first
//! other invalid record ends the log. The operations before the tail bring the checkpoint to the cut, the
//! later ones bring the cut to the local state and are pending. Nothing is written up to this point, neither
//! on the fast device nor at the origin, which `opening` claims next. The origin is compared with these
//! operations. Then a new epoch begins durably, so that records after the end of the log stay invalid.

use crate::checkpoint;
use crate::format::{Action, Entry, Header, Position, Superblock, WriterName, header_bytes};
use crate::index::Index;
use crate::layout::{Layout, max_record};
use crate::pending::{Pending, PendingList};
use crate::reconcile::reconcile;
use crate::settings::Options;
use crate::superblock;
use crate::table::ZoneTable;
use block::{Buffer, Claim, Data, Device, Error, Result, ZoneGeometry, ZoneReport};
use zones::record::{Identity, keyed_sum};

/// Bytes of the log that are searched at a time for a later record.
const SEARCH_STEP: u64 = 256 << 10;

/// The log as it was read. Nothing was written yet.
pub struct ReadLog {
    /// Layout of the fast device.
    layout: Layout,
    /// Newest superblock.
    pub superblock: Superblock,
    cut: ZoneTable,
    local: ZoneTable,
    /// Operations that the origin may lack.
    pub pending: PendingList,
    index: Index,
    head: Position,
    flush_epoch: u64,
}

/// State of a cache whose new epoch has begun.
pub struct Recovered {
    /// Layout of the fast device.
    pub layout: Layout,
    /// Superblock that was written for this epoch.
    pub superblock: Superblock,
    /// State at the origin.
    pub cut: ZoneTable,
    /// State that users see.
    pub local: ZoneTable,
    /// Operations from the cut to the local state.
    pub pending: PendingList,
    /// Location of the data in the log.
    pub index: Index,
    /// Position of the next record.
    pub head: Position,
    /// Number of flushes by users before the next record.
    pub flush_epoch: u64,
    /// Whether the cache wasn't closed.
    pub is_unclean: bool,
}

/// A cache to create.
#[derive(Debug)]
pub struct NewCache<'a> {
    /// Identity of the cache.
    pub identity: Identity,
    /// First claim of the origin by the new cache.
    pub claim: Option<&'a Claim>,
    /// Superblock of the cache that it replaces.
    pub former: Option<&'a Superblock>,
}

/// Creates a cache on the fast device, over the present state of the origin. The first superblock that is
/// written replaces a former cache: a crash before that leaves it as it was.
///
/// # Errors
/// Errors of the fast device; [`Error::Invalid`] for one that is too small.
pub async fn format(
    fast: &dyn Device,
    geometry: &ZoneGeometry,
    reports: &[ZoneReport],
    options: &Options,
    new: &NewCache<'_>,
) -> Result<()> {
    let NewCache { identity, claim, former } = *new;
    let layout = Layout::for_device(fast.geometry(), geometry, options.max_lag.bytes, options.read_cache)?;
    let table = ZoneTable::from_reports(reports, geometry);
    let start = Position { address: 0, record: 1, entry: 0 };
    let superblock = Superblock {
        block_size: layout.block_size as u32,
        identity,
        sequence: former.map_or(0, |former| former.sequence + 1),
        zones: geometry.zones,
        zone_capacity: geometry.zone_capacity,
        ring: layout.ring,
        epoch: 0,
        first_of_epoch: 1,
        checkpoint: former.map_or(0, |former| former.checkpoint + 1),
        checkpoint_at: start,
        tail: start,
        durable: 0,
        clean: true,
        claims: 1,
        claim: claim.map_or(0, |claim| claim.number),
        writer: claim.map_or(WriterName::EMPTY, |claim| WriterName::new(&claim.writer)),
    };
    checkpoint::write_table(fast, &layout, &superblock.identity, superblock.checkpoint, table.zones())
        .await?;
    for sequence in [superblock.sequence, superblock.sequence + 1] {
        superblock::write(fast, &layout, &Superblock { sequence, ..superblock }).await?;
    }
    Ok(())
}

/// Reads the log, and writes nothing.
///
/// # Errors
/// Errors of the fast device; [`Error::NotFound`] for one without a cache; [`Error::Corrupt`] for a damaged
/// cache; [`Error::Protocol`] for an origin of another shape.
pub async fn read(fast: &dyn Device, geometry: &ZoneGeometry, options: &Options) -> Result<ReadLog> {
    let superblock = superblock::read(fast).await?;
    let layout = Layout::of_ring(
        fast.geometry(),
        geometry,
        options.max_lag.bytes,
        superblock.ring,
        options.read_cache,
    )?;
    check_shape(&superblock, &layout, geometry)?;
    let zones = checkpoint::read(fast, &layout, &superblock).await?;
    let mut replay = Replay {
        superblock,
        cut: ZoneTable::new(zones, geometry),
        local: None,
        pending: PendingList::default(),
        index: Index::default(),
        flush_epoch: 0,
    };
    let max_record = max_record(layout.block_size, geometry.append_granularity);
    let scan = Scan { fast, layout: &layout, superblock: &superblock, max_record };
    let head = scan.follow(&mut replay).await?;
    let Replay { cut, local, pending, index, flush_epoch, .. } = replay;
    let local = local.unwrap_or_else(|| cut.clone());
    Ok(ReadLog { layout, superblock, cut, local, pending, index, head, flush_epoch })
}

impl ReadLog {
    /// Returns the number of the next claim of the origin. It is durable on the fast device before the claim
    /// is sent, so that a claim without an answer is known as one of this cache.
    ///
    /// # Errors
    /// Errors of the fast device.
    pub async fn begin_claim(&mut self, fast: &dyn Device) -> Result<u64> {
        let Superblock { sequence, claims, .. } = self.superblock;
        let superblock = Superblock { sequence: sequence + 1, claims: claims + 1, ..self.superblock };
        superblock::write(fast, &self.layout, &superblock).await?;
        self.superblock = superblock;
        Ok(superblock.claims)
    }

    /// Compares the origin with the log, and begins a new epoch durably. `claim` is that of the origin.
    ///
    /// # Errors
    /// Errors of the fast device; [`Error::Protocol`] for an origin that doesn't belong to it.
    pub async fn begin(
        self,
        fast: &dyn Device,
        reports: &[ZoneReport],
        claim: Option<&Claim>,
    ) -> Result<Recovered> {
        let ReadLog { layout, superblock, cut, mut local, pending, index, head, flush_epoch } = self;
        reconcile(&cut, pending.iter(), reports)?;
        let is_unclean = !superblock.clean;
        match is_unclean {
            // The operation that `Core::note_start` queues for it changes the local table no further.
            true => local.interrupt(),
            false => local.close_all(),
        }
        let superblock = Superblock {
            sequence: superblock.sequence + 1,
            epoch: superblock.epoch + 1,
            first_of_epoch: head.record,
            // The flush below is before the write of this superblock.
            durable: head.record - 1,
            clean: false,
            claim: claim.map_or(superblock.claim, |claim| claim.number),
            writer: claim.map_or(superblock.writer, |claim| WriterName::new(&claim.writer)),
            ..superblock
        };
        // After a kill the kernel's page cache may have records that aren't on the device: the origin is
        // never ahead of it.
        fast.flush().await?;
        superblock::write(fast, &layout, &superblock).await?;
        let flush_epoch = flush_epoch + 1;
        Ok(Recovered { layout, superblock, cut, local, pending, index, head, flush_epoch, is_unclean })
    }
}

fn check_shape(superblock: &Superblock, layout: &Layout, geometry: &ZoneGeometry) -> Result<()> {
    let Superblock { zones, zone_capacity, .. } = *superblock;
    if (zones, zone_capacity) != (geometry.zones, geometry.zone_capacity) {
        return Err(Error::protocol(format!(
            "the origin doesn't belong to this fast device: it has {} zones of {} bytes; expected {zones} zones of \
             {zone_capacity} bytes; use the fast device and the origin that were last used together",
            geometry.zones, geometry.zone_capacity
        )));
    }
    let found = (u64::from(superblock.block_size), superblock.ring);
    match found == (layout.block_size, layout.ring) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "fast device with blocks of {} bytes and space for a ring of {} bytes; expected {} and {}, as when it was \
             formatted; give a device of that size",
            layout.block_size, layout.ring, found.0, found.1
        ))),
    }
}

/// State that is built from the log.
struct Replay {
    superblock: Superblock,
    cut: ZoneTable,
    /// `None` up to the tail.
    local: Option<ZoneTable>,
    pending: PendingList,
    index: Index,
    flush_epoch: u64,
}

impl Replay {
    /// Applies a record, whose successor is at `next`.
    fn apply(&mut self, header: &Header, block_size: u64, next: Position) -> Result<()> {
        self.flush_epoch = self.flush_epoch.max(header.flush_epoch);
        for (number, pending) in (0..).zip(Pending::of_record(header, block_size, next, runtime::now())) {
            let at = (header.record, number);
            let is_done = at < (self.superblock.tail.record, self.superblock.tail.entry);
            let is_before = at < (self.superblock.checkpoint_at.record, self.superblock.checkpoint_at.entry);
            self.index.apply(&pending.entry, pending.data);
            if is_done && !is_before {
                self.cut.apply(&pending.entry)?;
            }
            if !is_done {
                self.local.get_or_insert_with(|| self.cut.clone()).apply(&pending.entry)?;
                self.pending.push(pending);
            }
        }
        // For the limit of the index alone: the ring still has all data.
        self.index.forget_before(0, self.superblock.tail.address);
        Ok(())
    }
}

/// A walk over the records.
struct Scan<'a> {
    fast: &'a dyn Device,
    layout: &'a Layout,
    superblock: &'a Superblock,
    /// Limit of the bytes of a record.
    max_record: u64,
}

impl Scan<'_> {
    /// Applies all records from the checkpoint to the end of the log. Returns the position after the last.
    async fn follow(&self, replay: &mut Replay) -> Result<Position> {
        let Superblock { checkpoint_at, tail, durable, first_of_epoch, .. } = *self.superblock;
        let mut at = Position { entry: 0, ..checkpoint_at };
        let before_tail = tail.record.saturating_sub(u64::from(tail.entry == 0));
        let mut known_durable = durable.max(before_tail).max(first_of_epoch.saturating_sub(1));
        loop {
            let found = self.record(at).await?;
            let is_known = at.record <= known_durable;
            let Some(header) = found else {
                self.check_end(at, known_durable).await?;
                return Ok(at);
            };
            // Data that was durable is verified when it is uploaded.
            let is_whole = is_known || self.is_data_whole(&header).await?;
            if !is_whole {
                self.check_end(at, known_durable).await?;
                return Ok(at);
            }
            known_durable = known_durable.max(header.durable);
            let next = self.next(&header);
            replay.apply(&header, self.layout.block_size, next)?;
            at = next;
        }
    }

    fn next(&self, header: &Header) -> Position {
        let address = header.address + header.record_bytes(self.layout.block_size);
        Position { address, record: header.record + 1, entry: 0 }
    }

    /// Reads the record at a position: there, or at the start of the next lap. If both have one, that of the
    /// later epoch is valid: the other one isn't part of the log that the later epoch continued.
    async fn record(&self, at: Position) -> Result<Option<Header>> {
        let here = self.header(at.address, at.record).await?;
        let left = self.layout.bytes_to_lap_end(at.address);
        if left == self.layout.ring || left >= self.max_record {
            return Ok(here);
        }
        let next_lap = self.header(at.address + left, at.record).await?;
        Ok(here.into_iter().chain(next_lap).max_by_key(|header| header.epoch))
    }

    /// Reads a header with this number at this address.
    async fn header(&self, address: u64, record: u64) -> Result<Option<Header>> {
        let found = self.any_header(address).await?;
        let Superblock { epoch, first_of_epoch, .. } = *self.superblock;
        Ok(found.filter(|header| {
            let is_of_epoch = match record < first_of_epoch {
                true => header.epoch < epoch,
                false => header.epoch == epoch,
            };
            header.record == record && is_of_epoch
        }))
    }

    /// Reads a header at this address, of any record of this cache.
    async fn any_header(&self, address: u64) -> Result<Option<Header>> {
        let block = self.layout.block_size;
        let first = header_bytes(0, block);
        if first > self.layout.bytes_to_lap_end(address) {
            return Ok(None);
        }
        let mut bytes = self.read(address, first).await?;
        let Some(length) = Header::length(&bytes) else { return Ok(None) };
        let whole = (length as u64).next_multiple_of(block);
        if whole > self.layout.bytes_to_lap_end(address) {
            return Ok(None);
        }
        if whole > first {
            bytes = self.read(address, whole).await?;
        }
        let header = Header::decode(&bytes, &self.superblock.identity).ok();
        Ok(header.filter(|header| {
            let length = header.record_bytes(block);
            header.address == address && length <= self.layout.bytes_to_lap_end(address)
        }))
    }

    async fn read(&self, address: u64, length: u64) -> Result<Data> {
        let (outcome, buffer) =
            self.fast.read(self.layout.log_block(address), Buffer::new(length as usize)).await;
        outcome.map_err(|error| {
            error.in_context(format!("reading address {address} of the log of the write cache of zones"))
        })?;
        Ok(buffer.freeze())
    }

    /// Whether the data of a record fits its checksums.
    async fn is_data_whole(&self, header: &Header) -> Result<bool> {
        let block = self.layout.block_size;
        let length: u64 = header.entries.iter().map(Entry::length).sum();
        if length == 0 {
            return Ok(true);
        }
        let start = header.data_address(block);
        let data = self.read(start, length.next_multiple_of(block)).await?;
        let mut at = 0;
        Ok(header.entries.iter().filter(|entry| entry.action == Action::Append).all(|entry| {
            let bytes = &data[at..at + entry.length as usize];
            at += entry.length as usize;
            keyed_sum(self.superblock.identity.key, &[bytes]) == entry.sum
        }))
    }

    /// Refuses an end of the log before a record that was durable, and one at which a later epoch begins: its
    /// superblock was durable before its first record was written.
    async fn check_end(&self, at: Position, known_durable: u64) -> Result<()> {
        if at.record <= known_durable {
            return Err(self.damage(at, known_durable));
        }
        for address in [at.address, at.address + self.layout.bytes_to_lap_end(at.address)] {
            let found = self.any_header(address).await?;
            let later =
                found.filter(|header| header.record == at.record && header.epoch > self.superblock.epoch);
            if let Some(header) = later {
                return Err(self.lost_superblock(&header));
            }
        }
        // The record after a torn one begins at most one record after it: here, or in the next lap.
        let left = self.layout.bytes_to_lap_end(at.address);
        self.search(at.address, self.max_record.min(left - self.layout.block_size), at).await?;
        let most = match left <= self.max_record {
            true => self.max_record.min(self.layout.ring - left),
            false => 0,
        };
        self.search(at.address + left, most, at).await
    }

    /// Searches the addresses from `from` to `from + most`, within a lap, for a record that shows that the
    /// missing one was durable.
    async fn search(&self, from: u64, most: u64, missing: Position) -> Result<()> {
        let block = self.layout.block_size;
        let end = most + block;
        let (mut read, mut followed) = (0, 0);
        while read < end {
            let step = (end - read).min(SEARCH_STEP.next_multiple_of(block));
            let bytes = self.read(from + read, step).await?;
            for (number, bytes) in bytes.chunks_exact(block as usize).enumerate() {
                let address = from + read + number as u64 * block;
                if address >= followed && Header::length(bytes).is_some() {
                    followed = self.check_later(address, missing).await?;
                }
            }
            read += step;
        }
        Ok(())
    }

    /// Refuses a missing record if the record at `later`, or one that follows it, shows that it was durable.
    /// The header of a torn record leads to the next one. Returns the address up to which they were followed.
    async fn check_later(&self, later: u64, missing: Position) -> Result<u64> {
        let mut followed = later;
        let mut found = self.any_header(later).await?;
        while let Some(header) = found {
            if header.epoch != self.superblock.epoch || header.record < missing.record {
                break;
            }
            if header.durable >= missing.record {
                return Err(self.damage(missing, header.durable));
            }
            let next = self.next(&header);
            let is_in_reach = next.address < missing.address + self.layout.ring;
            found = if is_in_reach { self.record(next).await? } else { None };
            followed = next.address;
        }
        Ok(followed)
    }

    fn lost_superblock(&self, later: &Header) -> Error {
        Error::corrupt(format!(
            "the newest superblock of the write cache of zones is damaged: the other one is of epoch {}, and record {} of epoch {} is at \
             address {}; expected the superblock of that epoch, without which its records are lost; restore the fast device; the \
             origin alone has an earlier state",
            self.superblock.epoch, later.record, later.epoch, later.address
        ))
    }

    fn damage(&self, at: Position, durable: u64) -> Error {
        Error::corrupt(format!(
            "record {} of the write cache of zones, at address {}, is damaged: the fast device has lost data, since records up to \
             {durable} were durable; expected all of them; restore the device, or give an empty one with new_fast=true, which \
             continues with the older state of the origin",
            at.record, at.address
        ))
    }
}
