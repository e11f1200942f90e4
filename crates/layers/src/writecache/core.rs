//! What a write cache knows, on its home shard.

use super::format::{Action, Entry, Superblock};
use super::index::Index;
use super::progress::Progress;
use super::readers::Readers;
use super::ring::Ring;
use block::{BlockIndex, Buffer, Device, Durability, Error, Payload, Result};
use runtime::sync::{Notify, Semaphore};
use runtime::{RequestKey, Requests, TaskGroup};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// In which order blocks reach the origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Everything before a client's flush before anything after it.
    Flushes,
    /// As suits the origin.
    None,
}

/// How the cache works.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Write-back begins when so many blocks of the ring are used.
    pub high: u64,
    /// It ends when fewer are.
    pub low: u64,
    /// How many writes to the origin are on their way at a time.
    pub jobs: usize,
    /// The cache device is flushed when so many blocks were written since, if it has a volatile cache.
    pub autocommit_blocks: u64,
    /// And when so much time has passed.
    pub autocommit_time: Duration,
    /// Write-back pauses while clients have used the origin within this time.
    pub pause: Duration,
    /// What is older is written back.
    pub max_age: Option<Duration>,
    /// Write to the origin with FUA, and don't flush it.
    pub fua: bool,
    /// The order of write-back.
    pub order: Order,
    /// How many blocks of the ring are written back at a time.
    pub batch: u64,
    /// How many bytes of writes may wait in memory.
    pub dirty: usize,
}

/// How many ranges may be discarded and not yet written back; who discards more waits.
pub const MOST_RANGES: usize = 1 << 16;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is counted for people, since the start or the last `clear_stats`.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Their names and values.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }

            /// Begins again at zero.
            pub fn clear(&self) {
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Blocks that clients read.
    read_blocks,
    /// Of these, from the cache.
    read_hits,
    /// Blocks that clients wrote.
    write_blocks,
    /// Of these, over a version that was still cached.
    write_hits,
    /// Blocks that went straight to the origin, in the mode `cleaner`.
    writes_around,
    /// Requests that waited for room.
    writes_blocked,
    /// Flushes by clients.
    flush_requests,
    /// Discards by clients.
    discard_requests,
    /// Records written to the cache.
    records,
    /// Blocks of the ring that were not data.
    overhead_blocks,
    /// Blocks that were written back.
    written_back,
    /// Blocks that needed no write-back, because a newer version of the same epoch did it.
    superseded,
    /// Batches of write-back.
    batches,
    /// Flushes of the origin by write-back.
    origin_flushes,
    /// Unreadable blocks that were released by `give_up_rotten`: the origin keeps their older version.
    lost_blocks,
    /// Attempts at write-back that failed.
    writeback_errors,
}

/// Counts on the home shard alone: no other one writes.
#[inline]
pub fn count(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// One change that waits to be written.
#[derive(Debug)]
pub struct Item {
    /// What it does.
    pub entry: Entry,
    /// The data of a write.
    pub payload: Payload,
    /// Who waits.
    pub request: RequestKey,
}

/// A record on its way to the cache device.
#[derive(Debug)]
pub struct Pending {
    /// Its number.
    pub number: u64,
    /// Flush epoch in which the record was formed; all its writes belong to this epoch.
    pub flush_epoch: u64,
    /// The address behind it.
    pub end: u64,
    /// The address of its first data block.
    pub data: u64,
    /// What is in it.
    pub items: Vec<Item>,
    /// The checksums of its data blocks.
    pub sums: Vec<u32>,
    /// Whether it is there.
    pub outcome: Option<Result<()>>,
}

/// What a write cache knows.
pub struct Core {
    /// How it works.
    pub settings: Settings,
    /// What lies where.
    pub ring: Ring,
    /// The cache device.
    pub fast: Rc<dyn Device>,
    /// What is cached.
    pub origin: Rc<dyn Device>,
    /// How many blocks of the origin one of the cache's is, as a power of two.
    pub origin_shift: u32,
    /// Where the newest versions are.
    pub index: RefCell<Index>,
    /// Changes that wait, in order.
    pub queue: RefCell<VecDeque<Item>>,
    /// Who waits for them.
    pub requests: Requests,
    /// Room for what waits, in bytes.
    pub room: Rc<Semaphore>,
    /// Records on their way, in order.
    pub pending: RefCell<VecDeque<Pending>>,
    /// Lists that are used again.
    pub spare: RefCell<Vec<(Vec<Item>, Vec<u32>)>>,
    /// The superblock that was written last.
    pub superblock: Cell<Superblock>,
    /// The address of the next record.
    pub head: Cell<u64>,
    /// The number of the next record.
    pub next_record: Cell<u64>,
    /// Everything before this address has been written and is in the index.
    pub committed: Cell<u64>,
    /// The record that ends there.
    pub committed_record: Cell<u64>,
    /// Everything before this address is durable.
    pub durable: Cell<u64>,
    /// The record that ends there.
    pub durable_record: Cell<u64>,
    /// Everything before this address has been written back, durably, and isn't needed any more.
    pub tail: Cell<u64>,
    /// How fast write-back gets on.
    pub progress: Progress,
    /// How many flushes by clients there were with writes before them.
    pub flush_epoch: Cell<u64>,
    /// Whether the current flush epoch has a record.
    pub has_written: Cell<bool>,
    /// Blocks written since the cache device was last flushed.
    pub uncommitted: Cell<u64>,
    /// Something was queued.
    pub work: Notify,
    /// There is more room.
    pub freed: Notify,
    /// Write-back may have something to do.
    pub writeback: Notify,
    /// The committer may have something to do.
    pub committer: Notify,
    /// How many wait for room.
    pub waiting_for_room: Cell<usize>,
    /// Everything before this address is to be written back, by an operator's message.
    pub flush_to: Cell<u64>,
    /// Nothing new is cached.
    pub cleaner: Cell<bool>,
    /// Where head and tail were when that began.
    pub cleaner_since: Cell<(u64, u64)>,
    /// How many changes went to the origin around the cache.
    pub around: Cell<u64>,
    /// Of these, how many the origin was flushed behind.
    pub around_flushed: Cell<u64>,
    /// Changes that are on their way to the origin around the cache.
    pub writers_around: Readers,
    /// Everything is written back before the cache is closed.
    pub flush_on_suspend: Cell<bool>,
    /// Both superblocks say that nothing is cached, and nothing was since.
    pub sealed: Cell<bool>,
    /// Rotten blocks may be given up.
    pub give_up_rotten: Cell<bool>,
    /// Addresses of the ring that keep write-back from getting on because they can't be read.
    pub unreadable: RefCell<BTreeSet<u64>>,
    /// Of these, those that an operator gave up: their data is lost if they still can't be read.
    pub released: RefCell<BTreeSet<u64>>,
    /// The cache is being closed.
    pub closing: Cell<bool>,
    /// Lanes, write-back, committer, and calls of other shards.
    pub tasks: TaskGroup,
    /// Reads of the cache device.
    pub readers: Readers,
    /// When a client last used the origin, if that matters: read from it, or wrote around the cache.
    pub origin_used: Cell<Option<runtime::Instant>>,
    /// When the oldest record was written, by the wall clock in ms; none if that isn't known.
    pub oldest: Cell<Option<u64>>,
    /// Why no more is written to the cache.
    pub failure: RefCell<Option<Error>>,
    /// Why write-back doesn't get on.
    pub stuck: RefCell<Option<Error>>,
    /// For people.
    pub counters: Arc<Counters>,
}

impl Core {
    /// How many blocks of the ring are used.
    #[inline]
    pub fn used(&self) -> u64 {
        self.head.get() - self.tail.get()
    }

    /// How many blocks of the ring are free.
    #[inline]
    pub fn free_blocks(&self) -> u64 {
        self.ring.blocks() - self.used()
    }

    /// How many blocks of the ring writers may take now. In a ring that is nearly full they go on at the origin's speed, on
    /// room that is kept for this, instead of waiting for a whole batch. While the cache is being emptied, they get half of
    /// what is written back.
    pub fn room_for_writers(&self) -> u64 {
        let room = self.progress.room(self.head.get(), self.free_blocks());
        if !self.cleaner.get() || self.used() == 0 {
            return room;
        }
        let (head, tail) = self.cleaner_since.get();
        let allowed = head + (self.tail.get() + self.progress.done() - tail) / 2;
        room.min(allowed.saturating_sub(self.head.get()))
    }

    /// Caches nothing new from now on, once what is cached has been written back.
    pub fn begin_cleaning(&self) {
        if !self.cleaner.replace(true) {
            self.cleaner_since.set((self.head.get(), self.tail.get()));
        }
        self.writeback.notify_all();
    }

    /// Why nothing can be written, if that is so.
    pub fn check_open(&self) -> Result<()> {
        match &*self.failure.borrow() {
            Some(error) => Err(error.clone()),
            None if self.closing.get() => Err(Error::closed("the write cache is closed")),
            None => Ok(()),
        }
    }

    /// Takes no more writes from now on.
    pub fn fail(&self, error: &Error) {
        if self.failure.borrow().is_none() {
            tracing::error!("the write cache takes no more writes: {error}");
            *self.failure.borrow_mut() = Some(error.with_detail(format!(
                "the write cache takes no more writes; what it holds is still read and written back: {}",
                error.detail()
            )));
        }
        self.work.notify_all();
        self.freed.notify_all();
    }

    /// The block of the origin.
    #[inline]
    pub fn on_origin(&self, block: u64) -> BlockIndex {
        BlockIndex(block << self.origin_shift)
    }

    /// In bytes.
    #[inline]
    pub fn bytes_of(&self, blocks: u64) -> usize {
        (blocks << self.ring.block_size.shift()) as usize
    }

    /// Carries out one change and waits until its record is there. The range isn't empty, and is inside the origin.
    ///
    /// # Errors
    /// What made the cache fail; what keeps write-back from making room.
    pub async fn change(
        self: &Rc<Self>,
        entry: Entry,
        payload: Payload,
        durability: Durability,
    ) -> Result<()> {
        self.check_open()?;
        if self.cleaner.get() && self.goes_around().await? {
            return self.write_around(entry, payload, durability).await;
        }
        self.change_cached(entry, payload, durability).await
    }

    /// As [`change`](Self::change), through the cache in any case.
    async fn change_cached(&self, entry: Entry, payload: Payload, durability: Durability) -> Result<()> {
        let room = match payload.len().min(self.settings.dirty) {
            0 => None,
            bytes => match self.room.try_acquire(bytes) {
                Some(room) => Some(room),
                None => {
                    let room = self.room.acquire(bytes).await;
                    self.check_open()?;
                    Some(room)
                }
            },
        };
        if entry.action != Action::Write {
            self.wait_for_ranges().await?;
        }
        let most = match entry.action {
            Action::Write => self.ring.most_data(),
            _ => entry.count,
        };
        let request = self.requests.begin(entry.count.div_ceil(most) as u32, room);
        if entry.count <= most {
            self.queue.borrow_mut().push_back(Item { entry, payload, request });
        } else {
            let mut queue = self.queue.borrow_mut();
            for at in (0..entry.count).step_by(most as usize) {
                let part = Entry { block: entry.block + at, count: most.min(entry.count - at), ..entry };
                let payload = payload.slice(self.bytes_of(at)..self.bytes_of(at + part.count));
                queue.push_back(Item { entry: part, payload, request });
            }
        }
        self.work.notify_one();
        let outcome = self.requests.wait(request).await;
        match (outcome, durability) {
            // It is durable once all before it are: opening stops at the first record that is missing. Nothing that is
            // submitted from now on may reach the origin before it.
            (Ok(()), Durability::Durable) => self.flush_cache().await,
            (outcome, _) => outcome,
        }
    }

    /// Waits until there is room for another range.
    async fn wait_for_ranges(&self) -> Result<()> {
        while self.index.borrow().ranges() + self.queue.borrow().len() >= MOST_RANGES {
            if let Some(error) = &*self.stuck.borrow() {
                return Err(error.clone());
            }
            self.check_open()?;
            self.flush_to.set(self.committed.get());
            self.writeback.notify_all();
            self.freed.notified().await;
        }
        Ok(())
    }

    /// Everything that was acknowledged is durable in the cache when this returns, and what is submitted from now on is
    /// written back after it.
    pub async fn flush_cache(&self) -> Result<()> {
        if let Some(error) = &*self.failure.borrow() {
            return Err(error.clone());
        }
        if self.has_written.replace(false) {
            self.flush_epoch.set(self.flush_epoch.get() + 1);
        }
        self.commit().await
    }

    /// Flushes the cache device.
    pub async fn commit(&self) -> Result<()> {
        let (committed, address) = (self.committed_record.get(), self.committed.get());
        if self.fast.geometry().volatile_cache && self.durable_record.get() < committed {
            self.uncommitted.set(0);
            if let Err(error) = self.fast.flush().await {
                let error = error.in_context("flushing the cache device");
                self.fail(&error);
                return Err(error);
            }
        }
        self.durable_record.set(self.durable_record.get().max(committed));
        self.durable.set(self.durable.get().max(address));
        Ok(())
    }

    /// What a client's flush does.
    ///
    /// # Errors
    /// Of either device.
    pub async fn flush(&self) -> Result<()> {
        count(&self.counters.flush_requests, 1);
        self.flush_cache().await?;
        self.flush_around().await
    }

    /// Writes a superblock that says what is so now, durably.
    ///
    /// # Errors
    /// Of the cache device.
    pub async fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let mut superblock = self.superblock.get();
        superblock.sequence += 1;
        superblock.durable = superblock.durable.max(self.durable_record.get());
        change(&mut superblock);
        let place = self.ring.superblock(superblock.sequence);
        let written = self.fast.write(place, superblock.encode(), Durability::Durable).await;
        written.map_err(|error| error.in_context("writing a superblock of the write cache"))?;
        self.superblock.set(superblock);
        Ok(())
    }

    /// Reads one block's worth, or more that lie behind each other, from the cache, and checks it.
    ///
    /// # Errors
    /// Of the cache device; [`Error::Corrupt`] for data that isn't what was written.
    pub async fn read_cached(
        &self,
        block: u64,
        address: u64,
        sums: &[u32],
        buffer: Buffer,
    ) -> (Result<()>, Buffer) {
        let _reading = self.readers.begin();
        let (outcome, mut buffer) = self.fast.read(self.ring.place(address), buffer).await;
        if outcome.is_err() {
            return (outcome, buffer);
        }
        let size = self.ring.block_size.bytes() as usize;
        let rotten = buffer
            .filled()
            .chunks_exact(size)
            .zip(sums)
            .position(|(data, sum)| logkit::record::sum_of(data) != *sum);
        match rotten {
            None => (Ok(()), buffer),
            Some(number) => {
                buffer.clear();
                let error = Error::corrupt(format!(
                    "block {} in the write cache, at address {}: its checksum is wrong",
                    block + number as u64,
                    address + number as u64
                ));
                (Err(error), buffer)
            }
        }
    }
}
