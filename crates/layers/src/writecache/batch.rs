//! What is written back at a time: consecutive records, of one flush epoch where the order matters, read from the ring in
//! large pieces, checked, and put in the origin's order.
//!
//! Within an epoch a power cut may leave any of its writes on the origin and not the others, so they go there in the order
//! that suits it, and of several versions of a block only the last one.

use super::core::{Core, Order, count};
use super::format::{Action, Entry};
use super::index::Ranges;
use super::scan::{Expect, Found};
use block::{Buffer, Data, Error, Payload, Result};
use logkit::record::sum_of;
use std::collections::BTreeMap;

/// How many blocks are read from the ring at a time.
const PIECE: u64 = 256;

/// One version of a block.
#[derive(Debug, Clone, Copy)]
struct Version {
    block: u64,
    address: u64,
    /// The piece that has it, and the block in it.
    piece: u32,
    at: u32,
}

/// What is written back at a time.
#[derive(Debug, Default)]
pub struct Batch {
    pieces: Vec<(u64, Data)>,
    versions: Vec<Version>,
    /// Ranges, and the addresses at which they were discarded.
    pub ranges: Vec<(Entry, u64)>,
    /// The address behind it.
    pub end: u64,
    /// The number of the record there.
    pub next_record: u64,
    /// When the record behind it was written, by the wall clock in ms; none if that isn't known.
    pub next_written: Option<u64>,
    /// How many versions of blocks are to be written; they come first, in the order of their blocks.
    pub newest: usize,
    /// The flush epoch of its records.
    pub epoch: Option<u64>,
    /// The addresses of blocks that aren't what was written.
    rotten: Vec<u64>,
    /// The addresses of blocks that can't be read, and why; zeros stand in the pieces for them.
    unreadable: BTreeMap<u64, Error>,
}

/// Where a batch begins.
#[derive(Debug)]
pub struct Start {
    /// The address of its first record.
    pub address: u64,
    /// The number of that record.
    pub record: u64,
    /// A piece of the ring that has been read for the batch before.
    kept: Option<(u64, Data)>,
}

/// Up to where the ring is durable.
#[derive(Debug, Clone, Copy)]
pub struct Limit {
    /// The address behind it.
    address: u64,
    /// The number of the record that ends there.
    record: u64,
}

impl Limit {
    /// As of now.
    pub fn now(core: &Core) -> Limit {
        Limit { address: core.durable.get(), record: core.durable_record.get() }
    }
}

impl Start {
    /// At the tail.
    pub fn at_tail(core: &Core) -> Start {
        Start::at(core.tail.get(), core.superblock.get().tail_record)
    }

    /// At this address, with the record of this number.
    pub fn at(address: u64, record: u64) -> Start {
        Start { address, record, kept: None }
    }
}

impl Batch {
    /// Reads a batch, which is to be [prepared](Self::prepare) before it is written back, of what lies before the limit. Empty
    /// if nothing does.
    ///
    /// # Errors
    /// Of the cache device; [`Error::Corrupt`] for records that can't be read.
    pub async fn read(core: &Core, start: Start, limit: Limit) -> Result<Batch> {
        let mut batch = Batch { end: start.address, next_record: start.record, ..Batch::default() };
        let (begin, durable, mut kept) = (start.address, limit.address, start.kept);
        let kept = &mut kept;
        let identity = core.superblock.get().identity;
        let expect = Expect { identity: &identity, origin_blocks: core.superblock.get().origin_blocks };
        let most = core.progress.next_batch();
        while batch.end < durable && batch.end - begin < most {
            let address = batch.end;
            let found = match batch.header(core, address, durable, kept, &expect).await {
                Ok(found) => found,
                Err(error) if batch.is_given_up(core, address, &error) => {
                    // What is known of it is written back by itself.
                    if batch.end == begin {
                        batch.read_without_header(core, limit, kept, &expect).await?;
                    }
                    break;
                }
                Err(error) => {
                    batch.note_unreadable(core);
                    return Err(error.with_detail(format!(
                        "record {} of the write cache, at address {address}, can't be read back, so nothing behind it is \
                         written back either; the message \"give_up_rotten\" goes on with what is known of it: {}",
                        batch.next_record,
                        error.detail()
                    )));
                }
            };
            let is_another = batch.epoch.is_some_and(|epoch| epoch != found.flush_epoch);
            if core.settings.order == Order::Flushes && is_another {
                batch.next_written = Some(found.header.clock);
                break;
            }
            batch.epoch = Some(found.flush_epoch);
            let length = found.length(core.ring.left(address));
            let data = address + 1;
            for (entry, number) in found.changes() {
                if entry.action != Action::Write {
                    batch.ranges.push((entry, data + number));
                    continue;
                }
                for at in 0..entry.count {
                    let address = data + number + at;
                    let place = batch.block(core, address, durable, kept).await?;
                    let sum = found.sums[(number + at) as usize];
                    if batch.unreadable.contains_key(&address) || sum_of(batch.bytes(core, place)) != sum {
                        batch.rotten.push(address);
                    }
                    batch.versions.push(Version {
                        block: entry.block + at,
                        address,
                        piece: place.0,
                        at: place.1,
                    });
                }
            }
            batch.end = address + length;
            batch.next_record += 1;
        }
        Ok(batch)
    }

    /// The header of the next record.
    async fn header(
        &mut self,
        core: &Core,
        address: u64,
        durable: u64,
        kept: &mut Option<(u64, Data)>,
        expect: &Expect<'_>,
    ) -> Result<Found> {
        let place = self.block(core, address, durable, kept).await?;
        if let Some(error) = self.unreadable.get(&address) {
            return Err(error.clone());
        }
        let found = Found::decode(self.bytes(core, place), address, expect)?;
        match found.header.sequence == self.next_record {
            true => Ok(found),
            false => Err(Error::corrupt(format!("record {} lies there", found.header.sequence))),
        }
    }

    /// Whether the operator gave up the record whose header can't be read or understood for this reason.
    fn is_given_up(&self, core: &Core, address: u64, error: &Error) -> bool {
        match self.unreadable.contains_key(&address) {
            true => core.released.borrow().contains(&address),
            false => matches!(error, Error::Corrupt(_) | Error::Protocol(_)) && core.give_up_rotten.get(),
        }
    }

    /// Records the unreadable blocks that the operator has not released, for `status`.
    fn note_unreadable(&self, core: &Core) {
        let released = core.released.borrow();
        let new = self.unreadable.keys().filter(|address| !released.contains(address));
        core.unreadable.borrow_mut().extend(new);
    }

    /// Takes what the index knows of a record whose header can't be read: its newest versions of blocks. Older ones, which would
    /// have come before a later flush, are lost; so on the origin alone the order has a gap there.
    async fn read_without_header(
        &mut self,
        core: &Core,
        limit: Limit,
        kept: &mut Option<(u64, Data)>,
        expect: &Expect<'_>,
    ) -> Result<()> {
        let (begin, number, durable) = (self.end, self.next_record, limit.address);
        (self.end, self.next_record) = (begin + 1, limit.record + 1);
        // Whatever lies up to the next record that can be read is part of it, for all that is known.
        while self.end < durable {
            let place = self.block(core, self.end, durable, kept).await?;
            if let Ok(found) = Found::decode(self.bytes(core, place), self.end, expect)
                && found.header.sequence > number
            {
                self.next_record = found.header.sequence;
                break;
            }
            self.end += 1;
        }
        let lost = begin..self.end;
        let mut written = core.index.borrow().written_at(&lost);
        written.sort_unstable_by_key(|(_, address, _)| *address);
        tracing::warn!(
            "record {number} of the write cache can't be read: the newest versions of {} blocks are written back, older \
             ones of any block are lost",
            written.len()
        );
        for (block, address, sum) in written {
            let at = self.pieces.partition_point(|(start, _)| *start <= address) - 1;
            let place = Place(at as u32, (address - self.pieces[at].0) as u32);
            if self.unreadable.contains_key(&address) || sum_of(self.bytes(core, place)) != sum {
                self.rotten.push(address);
            }
            self.versions.push(Version { block, address, piece: place.0, at: place.1 });
        }
        for (block, count, address) in core.index.borrow().discarded_at(&lost) {
            self.ranges.push((Entry { block, count, action: Action::Discard }, address));
        }
        Ok(())
    }

    /// Where the next batch begins.
    pub fn next(&self, core: &Core) -> Start {
        let is_whole = |start: u64, end: u64| self.unreadable.range(start..end).next().is_none();
        let last = self.pieces.last().filter(|(start, data)| {
            let end = start + core.blocks_in(data);
            self.end < end && is_whole(*start, end)
        });
        Start { address: self.end, record: self.next_record, kept: last.cloned() }
    }

    /// Chooses what is to be written, by what is cached now.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for data that isn't what was written, with what can be done.
    pub fn prepare(&mut self, core: &Core) -> Result<()> {
        self.arrange(core);
        self.check(core)?;
        self.leave_out_lost(core);
        Ok(())
    }

    /// Removes released blocks that are unreadable from the batch: they leave the ring with it and are not written to the origin.
    fn leave_out_lost(&mut self, core: &Core) {
        if self.unreadable.is_empty() {
            return;
        }
        let newest = self.versions.drain(..self.newest).collect::<Vec<_>>();
        let (lost, kept): (Vec<Version>, Vec<Version>) =
            newest.into_iter().partition(|version| self.unreadable.contains_key(&version.address));
        for Version { block, address, .. } in &lost {
            tracing::error!(
                "block {block} at address {address} of the write cache can't be read and is lost"
            );
        }
        count(&core.counters.lost_blocks, lost.len() as u64);
        self.newest = kept.len();
        self.versions.splice(..0, kept.into_iter().chain(lost));
    }

    /// Refuses what isn't what was written, unless nobody needs it, because it has been written again.
    fn check(&self, core: &Core) -> Result<()> {
        if self.rotten.is_empty() {
            return Ok(());
        }
        for version in &self.versions[..self.newest] {
            let Version { block, address, .. } = version;
            if !self.rotten.contains(address) {
                continue;
            }
            if let Some(error) = self.unreadable.get(address) {
                if core.released.borrow().contains(address) {
                    continue;
                }
                self.note_unreadable(core);
                return Err(error.with_detail(format!(
                    "block {block} in the write cache, at address {address}, can't be read, so it isn't written back, nor is \
                     what came after it; the message \"give_up_rotten\" gives it up, and the origin keeps an older version: {}",
                    error.detail()
                )));
            }
            if !core.give_up_rotten.get() {
                return Err(Error::corrupt(format!(
                    "block {block} in the write cache, at address {address}: its checksum is wrong, so it isn't written \
                     back, nor is what came after it; the message \"give_up_rotten\" writes it as it is"
                )));
            }
            tracing::warn!(
                "block {block}, rotten in the write cache at address {address}, is written back as it is"
            );
        }
        Ok(())
    }

    fn bytes(&self, core: &Core, place: Place) -> &[u8] {
        let at = u64::from(place.1);
        &self.pieces[place.0 as usize].1[core.bytes_of(at)..core.bytes_of(at + 1)]
    }

    /// The block at this address, read if it isn't there.
    async fn block(
        &mut self,
        core: &Core,
        address: u64,
        durable: u64,
        kept: &mut Option<(u64, Data)>,
    ) -> Result<Place> {
        if let Some((start, data)) = self.pieces.last()
            && (*start..start + core.blocks_in(data)).contains(&address)
        {
            return Ok(Place(self.pieces.len() as u32 - 1, (address - start) as u32));
        }
        let piece = match kept.take() {
            Some((start, data)) if (start..start + core.blocks_in(&data)).contains(&address) => (start, data),
            _ => {
                let blocks = PIECE.min(core.ring.left(address)).min(durable - address);
                let buffer = Buffer::new(core.bytes_of(blocks));
                let (outcome, buffer) = core.fast.read(core.ring.place(address), buffer).await;
                match outcome {
                    Ok(()) => (address, buffer.freeze()),
                    Err(Error::Io(_)) => (address, self.read_one_by_one(core, address, blocks).await?),
                    Err(error) => return Err(error.in_context("reading the write cache back")),
                }
            }
        };
        let at = (address - piece.0) as u32;
        self.pieces.push(piece);
        Ok(Place(self.pieces.len() as u32 - 1, at))
    }

    /// Reads blocks of which some can't be read: zeros stand for those.
    async fn read_one_by_one(&mut self, core: &Core, address: u64, blocks: u64) -> Result<Data> {
        let mut all = Buffer::new(core.bytes_of(blocks));
        for address in address..address + blocks {
            let buffer = Buffer::new(core.bytes_of(1));
            match core.fast.read(core.ring.place(address), buffer).await {
                (Ok(()), buffer) => all.append(buffer.filled()),
                (Err(error @ Error::Io(_)), _) => {
                    self.unreadable.insert(address, error.in_context("reading the write cache back"));
                    all.append_zeroes(core.bytes_of(1));
                }
                (Err(error), _) => return Err(error.in_context("reading the write cache back")),
            }
        }
        Ok(all.freeze())
    }

    /// Leaves the versions that are to be written, in the order of their blocks, in front.
    fn arrange(&mut self, core: &Core) {
        self.versions.sort_unstable_by_key(|version| (version.block, version.address));
        let mut gone = Ranges::default();
        for (entry, address) in &self.ranges {
            gone.insert(entry.block, entry.count, *address);
        }
        // What is newer behind the batch, and durable, suffices where it may go to the origin at the same time.
        let is_open = core.settings.order == Order::None || self.epoch == Some(core.flush_epoch.get());
        // What was asked to be on the origin is there only if what suffices for it is, too.
        let end = match core.flush_to.get() {
            asked if asked > core.tail.get() => asked.min(core.durable.get()),
            _ => core.durable.get(),
        };
        let index = core.index.borrow();
        let mut newest = 0;
        for at in 0..self.versions.len() {
            let version = self.versions[at];
            let is_last = self.versions.get(at + 1).is_none_or(|next| next.block != version.block);
            let is_gone = gone.address_of(version.block).is_some_and(|gone| gone > version.address);
            let is_durable = |newest: u64| newest > version.address && newest < end;
            if !is_last || is_gone || is_open && index.newest(version.block).is_some_and(is_durable) {
                continue;
            }
            // Both are needed: what was written, and what is to be forgotten.
            self.versions.swap(newest, at);
            newest += 1;
        }
        drop(index);
        self.newest = newest;
    }

    /// What is to be written, in runs of consecutive blocks: from which version on, and how many.
    pub fn runs(&self, most: u64) -> impl Iterator<Item = (usize, usize)> + '_ {
        let newest = &self.versions[..self.newest];
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = newest.get(at)?;
            let run = newest[at..]
                .iter()
                .zip(0..most)
                .take_while(|(version, number)| version.block == first.block + number)
                .count();
            at += run;
            Some((at - run, run))
        })
    }

    /// The first block of a run, and its data.
    pub fn run(&self, core: &Core, (from, count): (usize, usize)) -> (u64, Payload) {
        let versions = &self.versions[from..from + count];
        let mut payload = Payload::new();
        let mut at = 0;
        while at < count {
            let first = versions[at];
            // Blocks that lie behind each other in the ring, too, are one slice.
            let together = versions[at..]
                .iter()
                .zip(0_u32..)
                .take_while(|(version, number)| {
                    version.piece == first.piece && version.at == first.at + number
                })
                .count();
            let (start, end) = (u64::from(first.at), u64::from(first.at) + together as u64);
            payload.push(self.pieces[first.piece as usize].1.slice(core.bytes_of(start)..core.bytes_of(end)));
            at += together;
        }
        (versions[0].block, payload)
    }

    /// Frees the memory that the data takes, once it is on the origin.
    pub fn drop_data(&mut self) {
        self.pieces = Vec::new();
    }

    /// How many versions of blocks it holds.
    pub fn versions(&self) -> usize {
        self.versions.len()
    }

    /// From this moment on nothing of it is read from the cache.
    pub fn forget(&self, core: &Core) {
        // The next record's header lies at the end, so that no data does.
        core.index.borrow_mut().forget_to(self.end);
    }

    /// Takes everything that it holds out of the index, a part of it at a time.
    pub async fn take_out(&self, core: &Core) {
        const AT_ONCE: usize = 512;
        for versions in self.versions.chunks(AT_ONCE) {
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

/// A piece, and a block in it.
#[derive(Debug, Clone, Copy)]
struct Place(u32, u32);

impl Core {
    fn blocks_in(&self, data: &Data) -> u64 {
        data.len() as u64 >> self.ring.block_size.shift()
    }
}
