//! Counters: the smallest owner of a log that the kit ([`logkit`]) has. An example to read before writing another one, and the
//! proof that the kit knows nothing of the log device.
//!
//! A counter is set to a value and read. Each value is one block in a zone, so older blocks die and zones are cleaned. The
//! state is where the newest block of each counter is; a checkpoint holds all of it.
//!
//! - [`Set`] is what is appended: the kit's [`Entry`].
//! - [`Core`] is the state on its shard, and answers what the kit asks: the kit's [`Owner`].
//! - [`Counters`] is what clients have: format, open, set, get, flush, close.
//!
//! Left to others: group commit, zones, cleaning, the order of resets and roots, and finding the records again (all of it the
//! kit's).

pub mod device;
mod format;

use block::{BlockSize, Buffer, Data, Error, Payload, Result, Zones, ZonesPart};
use format::{Change, Place};
use logkit::checkpoint::{self, Cut};
use logkit::cleaning::Greedy;
use logkit::layout::ROOT_ZONES;
use logkit::pool::{Accounts, CHECKPOINT_CLASS};
use logkit::readers::ShardReads;
use logkit::recovery::{self, Opening};
use logkit::scan::Found;
use logkit::{Appender, Entry, Kit, Layout, Mover, Owner, Parts, Piece, StreamId, Victim, cleaner, count, lane};
use runtime::{Home, RequestKey, Requests};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Kind of the owner in a root: a log of another one isn't opened.
const OWNER: [u8; 8] = *b"counters";
/// Stream of what clients set.
const USER: StreamId = StreamId(0);
/// Stream of what the cleaner moves.
const CLEANER: StreamId = StreamId(1);
/// Number of streams.
const STREAMS: usize = 2;

/// A rule that the engine breaks on purpose: tests show that the crash oracle notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A root is written before what its checkpoint shows is durable.
    RootBeforeFlush,
    /// A zone is reset before what made it dead is durable.
    ResetBeforeFlush,
    /// Records that no durable checkpoint has are said to be covered.
    CoversEarly,
    /// A checkpoint covers records that committed after its state was copied.
    LateCut,
    /// The blocks of counter 3 aren't counted as live.
    CountsTooFew,
    /// The cleaner isn't told of the block of counter 3.
    ForgetsCounter,
    /// A block that the cleaner moved counts although a newer one was set meanwhile.
    MovesAlways,
    /// A flush returns at once.
    NeverFlushes,
}

/// How counters are made and work.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Number of counters, where they are made.
    pub counters: u32,
    /// Blocks that are appended between checkpoints.
    pub checkpoint_blocks: u64,
    /// The rule that is broken, in tests.
    pub broken: Option<Broken>,
}

/// A counter that is set, with its block.
#[derive(Debug)]
pub struct Set {
    change: Change,
    block: Payload,
    /// Request to complete; `None` for the cleaner's moves.
    request: Option<RequestKey>,
}

impl Entry for Set {
    fn blocks(&self) -> u32 {
        1
    }

    fn payload(&self) -> &Payload {
        &self.block
    }

    fn meta_length(&self) -> usize {
        Change::LENGTH
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        self.change.encode(meta);
    }
}

/// The state of counters. Belongs to one shard.
pub struct Core {
    kit: Rc<Kit>,
    appender: Appender<Set>,
    requests: Requests,
    /// Reads of this shard: a zone isn't reset under one.
    reads: Arc<ShardReads>,
    /// Where the newest block of each counter is.
    places: RefCell<Vec<Place>>,
    broken: Option<Broken>,
}

impl Core {
    fn new(parts: Parts, zones: Rc<dyn Zones>, places: Vec<Place>, options: Options) -> Rc<Self> {
        let layout = parts.layout;
        let settings = logkit::Settings {
            user_stream: USER,
            cleaner_stream: CLEANER,
            appends_in_flight: 2,
            data_blocks: layout.data_blocks(Change::LENGTH),
            record_blocks: layout.record_blocks(Change::LENGTH),
            cleaner_reserve: 3,
            checkpoint_blocks: options.checkpoint_blocks,
            low_watermark: 0.0,
            high_watermark: 0.0,
            most_steps: u64::MAX,
        };
        let own = [USER, CLEANER];
        let appender = Appender::new(layout, 2, settings.appends_in_flight, settings.most_steps, &parts.streams, &own);
        let kit = Kit::new(parts, zones, settings, Box::new(Greedy), &own);
        let reads = kit.readers.here();
        let (requests, places) = (Requests::default(), RefCell::new(places));
        Rc::new(Core { kit, appender, requests, reads, places, broken: options.broken })
    }

    /// Sets a counter. It may be read when this returns, and survives a power cut after the next flush.
    async fn set(&self, counter: u32, value: u64) -> Result<()> {
        if let Some(error) = self.kit.failure() {
            return Err(error);
        }
        if self.kit.is_closing() {
            return Err(Error::closed("the counters are closed"));
        }
        let block = format::block(counter, value, self.kit.layout.block_bytes()).into();
        let request = self.requests.begin(1, None);
        let change = Change { counter, from: Place::NOWHERE };
        self.appender.push(0, Set { change, block, request: Some(request) });
        self.kit.events.work.notify_one();
        self.requests.wait(request).await
    }

    /// Reads the block of a counter; 0 for one that was never set.
    async fn get(&self, counter: u32) -> Result<u64> {
        // From the lookup until the read has ended, the zone isn't reset.
        let _reading = self.reads.begin();
        let place = self.places.borrow()[counter as usize];
        if place == Place::NOWHERE {
            return Ok(0);
        }
        let layout = &self.kit.layout;
        let buffer = Buffer::new(layout.block_bytes());
        let (outcome, buffer) = self.kit.zones.read(layout.address(place.zone, place.position), buffer).await;
        outcome?;
        format::value(counter, buffer.filled())
    }

    async fn flush(&self) -> Result<()> {
        match self.broken {
            Some(Broken::NeverFlushes) => Ok(()),
            _ => self.kit.flush().await,
        }
    }

    /// Counts what is live in each zone, and compares it with what the kit counts as it goes: it resets zones by that.
    fn check_counts(&self) -> Result<()> {
        let mut live = vec![0_u32; self.kit.layout.zones as usize];
        self.places.borrow().iter().for_each(|place| live[place.zone as usize] += 1);
        for (number, zone) in self.kit.pool.list().into_iter().skip(ROOT_ZONES as usize) {
            let counted = live[number as usize];
            if zone.class != CHECKPOINT_CLASS && zone.live != counted {
                return Err(Error::corrupt(format!("zone {number} has {counted} live blocks, and the kit counts {zone:?}")));
            }
        }
        Ok(())
    }

    async fn close(self: Rc<Self>) -> Result<()> {
        self.kit.begin_closing();
        self.kit.tasks.ended().await;
        self.take_checkpoint(true).await
    }
}

/// Lets one change of a record take effect whose block is at `to`: the same when it commits and when it is replayed.
fn apply(
    places: &mut [Place],
    accounts: &mut Accounts<'_>,
    change: Change,
    to: Place,
    clock: u64,
    broken: Option<Broken>,
) {
    let place = &mut places[change.counter as usize];
    let is_current = change.from == Place::NOWHERE || change.from == *place;
    if !is_current && broken != Some(Broken::MovesAlways) {
        return;
    }
    let old = std::mem::replace(place, to);
    if broken == Some(Broken::CountsTooFew) && change.counter == 3 {
        return;
    }
    accounts.add_live(to.zone, 1);
    if old != Place::NOWHERE {
        accounts.remove_live(old.zone, 1, clock);
    }
}

impl Owner for Core {
    type Entry = Set;
    /// A counter.
    type Name = u32;

    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    fn appender(&self) -> &Appender<Set> {
        &self.appender
    }

    fn commit(&self, entries: &[Set], zone: u32, position: u32) {
        let mut places = self.places.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        for (position, Set { change, request, .. }) in (position..).zip(entries) {
            match request {
                Some(_) => self.kit.note_user_blocks(1),
                None => count(&self.kit.counters.moved_blocks, 1),
            }
            apply(&mut places, &mut accounts, *change, Place { zone, position }, self.kit.clock(), self.broken);
        }
        drop((places, accounts));
        entries.iter().filter_map(|entry| entry.request).for_each(|it| self.requests.item_ended(it, &Ok(())));
        if self.kit.is_stuck() {
            self.kit.look_again();
        }
        if self.broken == Some(Broken::CoversEarly) {
            self.kit.streams.set_covered(&self.kit.streams.all_committed());
        }
    }

    fn refuse(&self, entry: &Set, error: &Error) {
        if let Some(request) = entry.request {
            self.requests.item_ended(request, &Err(error.clone()));
        }
    }

    fn answer(&self, entry: &mut Set, error: &Error) {
        self.refuse(entry, error);
        entry.request = None;
    }

    fn checkpoint_cost(&self) -> u64 {
        self.kit.checkpoints.directory_blocks(&self.kit) + 2
    }

    fn checkpoint_zones(&self) -> u32 {
        1
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        let write = async || {
            // The state is that of the cut: nothing is awaited between the two.
            let mut cut = Cut::now(&self.kit);
            let state = format::encode_state(&self.places.borrow());
            if self.broken == Some(Broken::LateCut) {
                self.kit.flush().await?;
                cut = Cut::now(&self.kit);
            }
            checkpoint::commit(self, cut, &state, clean).await
        };
        checkpoint::take(self, write).await
    }

    async fn flush_all(&self) -> Result<()> {
        let is_root = self.kit.checkpointing.available() == 0;
        match self.broken {
            Some(Broken::RootBeforeFlush) if is_root => Ok(()),
            Some(Broken::ResetBeforeFlush) if !is_root => Ok(()),
            _ => self.kit.flush().await,
        }
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<u32>>> {
        let mut pieces = Vec::new();
        for (record, found) in victim.records().iter().enumerate() {
            for (first, change) in (0..).zip(Change::decode_all(&found.meta)?) {
                let position = found.header.position + 1 + first;
                pieces.push(Piece { position, count: 1, name: change.counter, offset: 0, record, first });
            }
        }
        let is_forgotten = |counter| self.broken == Some(Broken::ForgetsCounter) && counter == 3;
        let places = self.places.borrow();
        pieces.retain(|piece| {
            let place = Place { zone: victim.zone(), position: piece.position };
            places.get(piece.name as usize) == Some(&place) && !is_forgotten(piece.name)
        });
        Ok(pieces)
    }

    fn still_live(&self, victim: &Victim, piece: &Piece<u32>, visit: &mut dyn FnMut(u32, u32)) {
        let place = Place { zone: victim.zone(), position: piece.position };
        if self.places.borrow()[piece.name as usize] == place {
            visit(0, 1);
        }
    }

    async fn relocate(
        self: &Rc<Self>,
        victim: &Victim,
        class: u8,
        pieces: Vec<(Piece<u32>, Data)>,
        mover: &mut Mover,
    ) -> Result<()> {
        let moves = pieces.into_iter().map(|(piece, data)| {
            let from = Place { zone: victim.zone(), position: piece.position };
            Set { change: Change { counter: piece.name, from }, block: data.into(), request: None }
        });
        mover.append(self, class, moves).await
    }
}

/// Counters on zones.
pub struct Counters {
    home: Home<Core>,
    kit: Arc<logkit::Counters>,
    zones: Arc<dyn ZonesPart>,
    number: u32,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Counters({})", self.number)
    }
}

impl Counters {
    /// Makes counters on these zones. What was there is lost.
    ///
    /// # Errors
    /// What resetting and writing return.
    pub async fn format(zones: Arc<dyn ZonesPart>, options: Options) -> Result<Self> {
        let handle = zones.open().await?;
        let layout = Layout::new(handle.geometry(), BlockSize::default())?;
        let (pool, identity) = recovery::format(&*handle, &layout).await?;
        let parts = recovery::create(layout, pool, identity, STREAMS, OWNER, Vec::new());
        let places = vec![Place::NOWHERE; options.counters as usize];
        Self::start(zones, Core::new(parts, handle, places, options)).await
    }

    /// Opens the counters that are on these zones.
    ///
    /// # Errors
    /// [`Error::Protocol`] where there are none, [`Error::Corrupt`] for damaged ones; what reading and writing return.
    pub async fn open(zones: Arc<dyn ZonesPart>, options: Options) -> Result<Self> {
        let handle = zones.open().await?;
        let mut opening: Opening<Found> = recovery::open(&*handle, OWNER).await?;
        let mut places = format::decode_state(&opening.own)?;
        let mut clock = opening.root.clock;
        recovery::sort_for_replay(&mut opening.records, USER);
        let mut accounts = opening.pool.accounts();
        let live = places.iter().enumerate();
        let live = live.filter(|(counter, _)| options.broken != Some(Broken::CountsTooFew) || *counter != 3);
        live.filter(|(_, it)| **it != Place::NOWHERE).for_each(|(_, it)| accounts.add_live(it.zone, 1));
        for Found { header, meta, .. } in &opening.records {
            let changes = Change::decode_all(meta)?;
            clock += if header.stream == USER { changes.len() as u64 } else { 0 };
            for (position, change) in (header.position + 1..).zip(changes) {
                format::check_counter(change.counter, places.len())?;
                let to = Place { zone: header.zone, position };
                apply(&mut places, &mut accounts, change, to, clock, options.broken);
            }
        }
        drop(accounts);
        let parts = opening.finish(&*handle, clock).await?;
        Self::start(zones, Core::new(parts, handle, places, options)).await
    }

    async fn start(zones: Arc<dyn ZonesPart>, core: Rc<Core>) -> Result<Self> {
        if core.kit.checkpoints.is_due_at_open() {
            core.take_checkpoint(false).await?;
        }
        lane::start(&core);
        cleaner::start(&core);
        let number = core.places.borrow().len() as u32;
        Ok(Counters { kit: core.kit.counters.clone(), home: Home::here(core), zones, number })
    }

    /// Number of counters.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What the kit counts for operators.
    pub fn kit(&self) -> &Arc<logkit::Counters> {
        &self.kit
    }

    /// Sets a counter, of those there are. It may be read when this returns, and survives a power cut after the next flush.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where no zone can be freed; the failure of the log.
    pub async fn set(&self, counter: u32, value: u64) -> Result<()> {
        self.home.with(move |core: Rc<Core>| async move { core.set(counter, value).await }).await
    }

    /// Value of a counter, of those there are, read from its zone; 0 for one that was never set.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a block that isn't that counter's; what reading returns.
    pub async fn get(&self, counter: u32) -> Result<u64> {
        self.home.with(move |core: Rc<Core>| async move { core.get(counter).await }).await
    }

    /// Makes durable what was set.
    ///
    /// # Errors
    /// What flushing the zones returns.
    pub async fn flush(&self) -> Result<()> {
        self.home.with(|core: Rc<Core>| async move { core.flush().await }).await
    }

    /// Checks what is counted against the state, for tests.
    ///
    /// # Errors
    /// The first zone whose count is wrong.
    pub async fn check_counts(&self) -> Result<(), String> {
        let checked = self.home.with(|core: Rc<Core>| async move { core.check_counts() }).await;
        checked.map_err(|error| error.to_string())
    }

    /// Writes what is queued and a last checkpoint, and closes the zones.
    ///
    /// # Errors
    /// The failure of the log; what writing returns.
    pub async fn close(&self) -> Result<()> {
        let closed = self.home.with(Core::close).await;
        self.home.forget().await?;
        closed.and(self.zones.close().await)
    }
}
