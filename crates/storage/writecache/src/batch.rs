//! A batch of write-back: consecutive records, of one flush epoch where the order matters, read from the
//! ring, checked, and sorted by the origin's blocks.
//!
//! Within an epoch a power cut may leave any of its writes on the origin and not the others. So a batch is
//! written in the order of its blocks, and of several versions of a block only the last one.

use crate::core::Core;
use crate::counters::count;
use crate::format::{Action, Entry};
use crate::index::Ranges;
use crate::log::Position;
use crate::pieces::{Piece, Pieces, Slot};
use crate::scan::Found;
use crate::settings::Order;
use block::{Error, Payload, Result};
use zones::record::sum_of;

/// Versions of blocks that are removed from the index between two yields.
const REMOVED_AT_ONCE: usize = 512;

/// One version of a block.
#[derive(Debug, Clone, Copy)]
struct Version {
    block: u64,
    address: u64,
    /// Location of the data in memory.
    slot: Slot,
}

impl Version {
    /// Orders by block, and versions of a block from old to new.
    #[inline]
    fn order(&self) -> u128 {
        u128::from(self.block) << 64 | u128::from(self.address)
    }
}

/// Consecutive versions, of consecutive blocks, that are written together.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    from: usize,
    count: usize,
}

/// A batch of write-back.
pub struct Batch {
    pieces: Pieces,
    versions: Vec<Version>,
    /// Number of versions to write; they come first, in the order of their blocks.
    newest: usize,
    /// Discarded ranges, and their addresses.
    ranges: Vec<(Entry, u64)>,
    /// Position after the batch.
    end: Position,
    /// Wall-clock time at which the record after the batch was written, in ms; `None` if that isn't known.
    next_written: Option<u64>,
    /// Flush epoch of the records; `None` in an empty batch.
    epoch: Option<u64>,
    /// Addresses of blocks with wrong checksums, unreadable ones included.
    corrupt: Vec<u64>,
}

/// Start of a batch.
#[derive(Debug)]
pub struct Start {
    position: Position,
    /// Piece of the ring that was read for the batch before.
    kept: Option<Piece>,
}

impl Start {
    /// Begins at this position.
    pub fn at(position: Position) -> Start {
        Start { position, kept: None }
    }

    /// The position.
    pub fn position(&self) -> Position {
        self.position
    }
}

impl Batch {
    /// Reads a batch that ends at the limit, at the latest. It is [prepared](Self::prepare) before it is
    /// written back, and may be empty.
    ///
    /// # Errors
    /// Errors of the cache device; [`Error::Corrupt`] for unreadable records.
    pub async fn read(core: &Core, start: Start, limit: Position) -> Result<Batch> {
        let Start { position: begin, kept } = start;
        let mut batch = Batch {
            pieces: Pieces::new(core.fast.clone(), core.ring, limit.address, kept),
            versions: Vec::new(),
            newest: 0,
            ranges: Vec::new(),
            end: begin,
            next_written: None,
            epoch: None,
            corrupt: Vec::new(),
        };
        let most = core.throttle.next_batch();
        while batch.end.address < limit.address && batch.end.address - begin.address < most {
            let Position { address, record } = batch.end;
            let found = match batch.header(core).await {
                Ok(found) => found,
                Err(error) if batch.is_given_up(core, address, &error) => {
                    // Its known blocks are a batch of their own.
                    if batch.end == begin {
                        batch.read_without_header(core, limit).await?;
                    }
                    break;
                }
                Err(error) => {
                    core.damage.report(batch.pieces.unreadable());
                    return Err(error.with_detail(format!(
                        "record {record} of the write cache, at address {address}, can't be read, so write-back stops \
                         before it; the message \"give_up_rotten\" continues with its blocks that the index knows: {}",
                        error.detail()
                    )));
                }
            };
            let is_another = batch.epoch.is_some_and(|epoch| epoch != found.meta.flush_epoch);
            if core.settings.order == Order::Flushes && is_another {
                batch.next_written = Some(found.header.clock);
                break;
            }
            batch.epoch = Some(found.meta.flush_epoch);
            let length = found.length(core.ring.left(address));
            batch.read_data(&found, address + 1).await?;
            batch.end = Position { address: address + length, record: record + 1 };
        }
        Ok(batch)
    }

    /// Reads the data of a record, whose first data block has this address.
    async fn read_data(&mut self, found: &Found, data: u64) -> Result<()> {
        for (entry, number) in found.changes() {
            if entry.action != Action::Write {
                self.ranges.push((entry, data + number));
                continue;
            }
            for at in 0..entry.count {
                let address = data + number + at;
                let slot = match self.pieces.in_memory(address) {
                    Some(slot) => slot,
                    None => self.pieces.block(address).await?,
                };
                self.add(entry.block + at, address, slot, found.sums[(number + at) as usize]);
            }
        }
        Ok(())
    }

    /// Adds a version of a block, and checks it.
    fn add(&mut self, block: u64, address: u64, slot: Slot, sum: u32) {
        if self.pieces.error_at(address).is_some() || sum_of(self.pieces.bytes(slot)) != sum {
            self.corrupt.push(address);
        }
        self.versions.push(Version { block, address, slot });
    }

    /// Reads the header of the next record.
    async fn header(&mut self, core: &Core) -> Result<Found> {
        let Position { address, record } = self.end;
        let slot = self.pieces.block(address).await?;
        if let Some(error) = self.pieces.error_at(address) {
            return Err(error.clone());
        }
        let found = Found::decode(self.pieces.bytes(slot), address, &core.superblocks.expect())?;
        match found.header.sequence == record {
            true => Ok(found),
            false => {
                Err(Error::corrupt(format!("record number {}; expected {record}", found.header.sequence)))
            }
        }
    }

    /// Whether the operator released the record whose header failed with this error.
    fn is_given_up(&self, core: &Core, address: u64, error: &Error) -> bool {
        match self.pieces.error_at(address) {
            Some(_) => core.damage.is_released(address),
            None => matches!(error, Error::Corrupt(_) | Error::Protocol(_)) && core.damage.accepts_corrupt(),
        }
    }

    /// Reads the blocks that the index knows of a record without a header: its newest versions. Older
    /// versions, which would have come before a later flush, are lost, so the order of the origin's states
    /// has a gap there.
    async fn read_without_header(&mut self, core: &Core, limit: Position) -> Result<()> {
        let Position { address: begin, record } = self.end;
        self.end = Position { address: begin + 1, record: limit.record };
        // Everything up to the next readable record may be part of it.
        while self.end.address < limit.address {
            let slot = self.pieces.block(self.end.address).await?;
            let decoded =
                Found::decode(self.pieces.bytes(slot), self.end.address, &core.superblocks.expect());
            if let Ok(found) = decoded
                && found.header.sequence > record
            {
                self.end.record = found.header.sequence;
                break;
            }
            self.end.address += 1;
        }
        let lost = begin..self.end.address;
        let mut written = core.index.borrow().written_at(&lost);
        written.sort_unstable_by_key(|(_, address, _)| *address);
        tracing::warn!(
            "record {record} of the write cache can't be read: the newest versions of {} blocks are written back, older \
             versions are lost",
            written.len()
        );
        for (block, address, sum) in written {
            let slot = self.pieces.slot_of(address);
            self.add(block, address, slot, sum);
        }
        for (block, count, address) in core.index.borrow().discarded_at(&lost) {
            self.ranges.push((Entry { block, count, action: Action::Discard }, address));
        }
        Ok(())
    }

    /// Start of the next batch.
    pub fn next(&self) -> Start {
        Start { position: self.end, kept: self.pieces.last_from(self.end.address) }
    }

    /// Chooses the versions to write, by the present index.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for corrupt data, with the operator's options.
    pub fn prepare(&mut self, core: &Core) -> Result<()> {
        self.sort(core);
        self.check(core)?;
        self.leave_out_lost(core);
        Ok(())
    }

    /// Moves the versions to write to the front, in the order of their blocks.
    fn sort(&mut self, core: &Core) {
        // One comparison of a wide number, instead of two with a branch between them.
        self.versions.sort_unstable_by_key(Version::order);
        let mut discarded = Ranges::default();
        for (entry, address) in &self.ranges {
            discarded.insert(entry.block, entry.count, *address);
        }
        // A newer durable version after the batch suffices if it may reach the origin at the same time.
        let is_open = core.settings.order == Order::None || self.epoch == Some(core.epoch.current());
        // An operator's flush is complete only if the newer version is part of it.
        let end = match core.demand.target() {
            target if target > core.log.tail().address => target.min(core.log.durable().address),
            _ => core.log.durable().address,
        };
        let index = core.index.borrow();
        let mut newest = 0;
        for at in 0..self.versions.len() {
            let version = self.versions[at];
            let is_last = self.versions.get(at + 1).is_none_or(|next| next.block != version.block);
            let is_discarded = discarded.address_of(version.block).is_some_and(|at| at > version.address);
            let suffices = |newest: u64| newest > version.address && newest < end;
            if !is_last || is_discarded || is_open && index.newest(version.block).is_some_and(suffices) {
                continue;
            }
            // Superseded versions are also kept: they are removed from the index after the batch.
            self.versions.swap(newest, at);
            newest += 1;
        }
        drop(index);
        self.newest = newest;
    }

    /// Refuses corrupt versions among those to write, unless the operator accepted their loss.
    fn check(&self, core: &Core) -> Result<()> {
        if self.corrupt.is_empty() {
            return Ok(());
        }
        for Version { block, address, .. } in &self.versions[..self.newest] {
            if !self.corrupt.contains(address) {
                continue;
            }
            if let Some(error) = self.pieces.error_at(*address) {
                if core.damage.is_released(*address) {
                    continue;
                }
                core.damage.report(self.pieces.unreadable());
                return Err(error.with_detail(format!(
                    "block {block} in the write cache, at address {address}, can't be read, so write-back stops before it; \
                     the message \"give_up_rotten\" skips it, and the origin keeps an older version: {}",
                    error.detail()
                )));
            }
            if !core.damage.accepts_corrupt() {
                return Err(Error::corrupt(format!(
                    "block {block} in the write cache, at address {address}: its checksum is wrong, so write-back stops \
                     before it; the message \"give_up_rotten\" writes it as it is"
                )));
            }
            tracing::warn!(
                "block {block}, corrupt in the write cache at address {address}, is written back as it is"
            );
        }
        Ok(())
    }

    /// Removes released unreadable versions from those to write: they leave the ring with the batch.
    fn leave_out_lost(&mut self, core: &Core) {
        if self.pieces.unreadable().next().is_none() {
            return;
        }
        let newest = self.versions.drain(..self.newest).collect::<Vec<_>>();
        let (lost, kept): (Vec<Version>, Vec<Version>) =
            newest.into_iter().partition(|version| self.pieces.error_at(version.address).is_some());
        for Version { block, address, .. } in &lost {
            tracing::error!(
                "block {block} at address {address} of the write cache can't be read and is lost"
            );
        }
        count(&core.counters.lost_blocks, lost.len() as u64);
        self.newest = kept.len();
        self.versions.splice(..0, kept.into_iter().chain(lost));
    }

    /// Position after the batch.
    pub fn end(&self) -> Position {
        self.end
    }

    /// Flush epoch of the records; `None` in an empty batch.
    pub fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Wall-clock time at which the record after the batch was written, in ms; `None` if that isn't known.
    pub fn next_written(&self) -> Option<u64> {
        self.next_written
    }

    /// Discarded ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Entry> + '_ {
        self.ranges.iter().map(|(entry, _)| *entry)
    }

    /// The versions to write, in runs of at most this many consecutive blocks.
    pub fn runs(&self, most: u64) -> impl Iterator<Item = Run> + '_ {
        let newest = &self.versions[..self.newest];
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = newest.get(at)?;
            let count = newest[at..]
                .iter()
                .zip(0..most)
                .take_while(|(version, number)| version.block == first.block + number)
                .count();
            at += count;
            Some(Run { from: at - count, count })
        })
    }

    /// First block of a run, and its data.
    pub fn run(&self, run: Run) -> (u64, Payload) {
        let versions = &self.versions[run.from..run.from + run.count];
        if let [one] = versions {
            return (one.block, self.pieces.slice(one.slot, 1).into());
        }
        let mut payload = Payload::new();
        let mut at = 0;
        while at < run.count {
            let first = versions[at].slot;
            // Blocks that are also consecutive in the ring are one slice.
            let together =
                versions[at..].iter().zip(0_u32..).take_while(|(version, n)| version.slot.follows(first, *n));
            let together = together.count();
            payload.push(self.pieces.slice(first, together));
            at += together;
        }
        (versions[0].block, payload)
    }

    /// Releases the memory of the data, once it is on the origin.
    pub fn release_data(&mut self) {
        self.pieces.release();
    }

    /// Number of versions to write.
    pub fn to_write(&self) -> u64 {
        self.newest as u64
    }

    /// Number of versions that newer ones supersede.
    pub fn superseded(&self) -> u64 {
        (self.versions.len() - self.newest) as u64
    }

    /// Removes the batch from the index. After the first poll lookups find none of its versions.
    pub async fn remove_from_index(&self, core: &Core) {
        // The header of the next record lies at the end of the batch, so no data has that address.
        core.index.borrow_mut().forget_to(self.end.address);
        for versions in self.versions.chunks(REMOVED_AT_ONCE) {
            {
                let mut index = core.index.borrow_mut();
                versions.iter().for_each(|version| index.forget_write(version.block, version.address));
            }
            runtime::yield_now().await;
        }
        let mut index = core.index.borrow_mut();
        for (entry, address) in &self.ranges {
            index.forget_discard(entry.block, entry.count, *address);
        }
    }
}
