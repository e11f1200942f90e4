//! Counters: the smallest owner of a log that the kit ([`logkit`]) has. An example to read before writing
//! another owner, and the proof that the kit knows nothing of the log device.
//!
//! A counter is set to a value and read. Each value is one block in a zone, so older blocks die and zones are
//! cleaned. The state is the place of the newest block of each counter; a checkpoint holds all of it.
//!
//! Two counters can be set together: after a power cut both have the new value or neither has. If they belong
//! to two shards, one record is a member of the streams of both.
//!
//! Counters are divided among shards. Each shard has a stream for values that clients set and one for blocks
//! that the cleaner moves. The cleaner, resets, checkpoints and roots belong to shard 0, the home; it asks
//! the others by messages.
//!
//! - [`Set`] is the change that is appended: the kit's [`Entry`].
//! - [`Core`] is the state of one shard and answers the kit's questions: the kit's [`Owner`].
//! - [`Counters`] is the interface for clients: format, open, set, get, flush, close.
//! - `format` is the encoding on the medium; [`device`] shows counters as a device, for tests.
//!
//! Left to the kit: group commit, zones, cleaning, the order of resets and roots, and finding the records
//! again.

mod counters;
pub mod device;
mod format;

use block::{Buffer, Data, EraseGuarantee, Error, Payload, Result};
pub use counters::Counters;
use format::{Change, Place};
use logkit::checkpoint::{self, Cut};
use logkit::pool::Accounts;
use logkit::readers::ShardReads;
use logkit::record::sum_of;
use logkit::{
    Appender, Entry, Joint, Kit, Layout, Mover, Owner, Piece, Sequences, StreamId, Victim, count, flusher,
    lane, reset,
};
use runtime::{Home, RequestKey, Requests};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Number of classes of zones: clients' and the cleaner's ([`logkit::cleaning::Greedy`]).
const CLASSES: u8 = 2;

/// Stream of the values that clients set on a shard.
fn user_stream(shard: u32) -> StreamId {
    StreamId(2 * shard as u16)
}

/// Stream of the blocks of a shard's counters that the cleaner moves.
fn cleaner_stream(shard: u32) -> StreamId {
    StreamId(2 * shard as u16 + 1)
}

/// A rule that the engine breaks on purpose, to test that the crash oracle notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A root is written before the state of its checkpoint is durable.
    RootBeforeFlush,
    /// A zone is reset before the records that made its blocks dead are durable.
    ResetBeforeFlush,
    /// Records that no durable checkpoint holds are reported as covered.
    CoversEarly,
    /// A checkpoint covers records that committed after its state was copied.
    LateCut,
    /// The blocks of counter 3 aren't counted as live.
    CountsTooFew,
    /// The block of counter 3 isn't passed to the cleaner.
    ForgetsCounter,
    /// A block that the cleaner moved becomes the counter's newest one although another value was set
    /// meanwhile.
    MovesAlways,
    /// A flush returns at once.
    NeverFlushes,
    /// Roots and resets wait only for the flush of the home.
    FlushesHomeOnly,
    /// Two counters that are set together become two records.
    SplitsPairs,
    /// A zone that was reset may keep its contents.
    ErasesNothing,
}

/// Options for formatting and opening counters.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of counters, for formatting.
    pub counters: u32,
    /// Number of shards among which they are divided, for formatting.
    pub shards: u32,
    /// Blocks that are appended between checkpoints.
    pub checkpoint_blocks: u64,
    /// Whether zones are erased when they are reset, and older values are
    /// [tracked](Counters::older_values_are_erased).
    pub erase: bool,
    /// Whether each block is compared with its record's checksum when it is read.
    pub check_sums: bool,
    /// Whether shards have their next zones [opened ahead](logkit::prepare).
    pub prepare_zones: bool,
    /// The rule that is broken, in tests.
    pub broken: Option<Broken>,
}

impl Options {
    /// Whether the blocks of a counter are counted as live.
    fn counts(&self, counter: u32) -> bool {
        self.broken != Some(Broken::CountsTooFew) || counter != 3
    }
}

/// One counter that is set, with its block; or two counters.
#[derive(Debug)]
pub struct Set {
    change: Change,
    /// Change of the second counter, whose block is the second one.
    other: Option<Change>,
    /// Stream of the second counter, if it belongs to another shard.
    joins: Option<StreamId>,
    data: Payload,
    /// Request to complete; `None` for the cleaner's moves.
    request: Option<RequestKey>,
}

impl Set {
    fn one(change: Change, data: Payload, request: Option<RequestKey>) -> Self {
        Set { change, other: None, joins: None, data, request }
    }

    fn changes(&self) -> impl Iterator<Item = Change> + '_ {
        [Some(self.change), self.other].into_iter().flatten()
    }
}

impl Entry for Set {
    fn blocks(&self) -> u32 {
        1 + u32::from(self.other.is_some())
    }

    fn payload(&self) -> &Payload {
        &self.data
    }

    fn meta_length(&self) -> usize {
        Change::LENGTH * self.blocks() as usize
    }

    fn encode_meta(&self, meta: &mut Vec<u8>) {
        self.changes().for_each(|change| change.encode(meta));
    }

    fn is_atomic(&self) -> bool {
        true
    }

    fn joins(&self) -> &[StreamId] {
        self.joins.as_slice()
    }
}

/// Zones to which blocks of a counter were appended, with generation and number of blocks.
type Notes = Vec<((u32, u64), u32)>;

/// Checksums by zone and position of the block.
type Sums = BTreeMap<(u32, u32), u32>;

/// State of one shard: of each counter whose number modulo the number of shards is the shard's.
pub struct Core {
    shard: u32,
    shards: u32,
    /// Homes of the cores of all shards.
    homes: RefCell<Vec<Home<Core>>>,
    kit: Rc<Kit>,
    appender: Appender<Set>,
    requests: Requests,
    /// Reads of this shard: a zone isn't reset while one of them uses it.
    reads: Arc<ShardReads>,
    /// Place of the newest block of each counter.
    places: RefCell<Vec<Place>>,
    /// Zones into which the home's cleaner moves blocks of this shard; unused on the home.
    mover: RefCell<Mover>,
    /// Zones that this shard appended to, by counter; empty unless older values are tracked.
    notes: RefCell<BTreeMap<u32, Notes>>,
    erase: bool,
    /// Checksums of the blocks of this shard's counters; empty unless they are checked.
    sums: RefCell<Sums>,
    check_sums: bool,
    broken: Option<Broken>,
}

impl Core {
    /// Creates the core of a shard; `kit` makes the shard's part of the kit, with its settings and streams.
    fn new(
        (shard, shards): (u32, u32),
        layout: Layout,
        (places, sums): (Vec<Place>, Sums),
        options: Options,
        kit: impl FnOnce(logkit::Settings, &[StreamId]) -> Rc<Kit>,
    ) -> Rc<Self> {
        let own = [user_stream(shard), cleaner_stream(shard)];
        let settings = logkit::Settings {
            user_stream: own[0],
            cleaner_stream: own[1],
            appends_in_flight: 2,
            data_blocks: layout.data_blocks(Change::LENGTH),
            record_blocks: layout.record_blocks(Change::LENGTH),
            // The blocks of a victim go to one zone of each shard.
            cleaner_reserve: 2 + shards,
            checkpoint_blocks: options.checkpoint_blocks,
            low_watermark: 0.0,
            high_watermark: 0.0,
            most_steps: u64::MAX,
            read_request_bytes: logkit::READ_REQUEST_BYTES,
            prepare_zones: options.prepare_zones,
        };
        let (lanes, steps) = (settings.appends_in_flight, settings.most_steps);
        let kit = kit(settings, &own);
        Rc::new(Core {
            shard,
            shards,
            homes: RefCell::default(),
            appender: Appender::new(layout, CLASSES, lanes, steps, &kit.streams, &own),
            reads: kit.readers.here(),
            kit,
            requests: Requests::default(),
            places: RefCell::new(places),
            mover: RefCell::new(Mover::new(CLASSES)),
            notes: RefCell::default(),
            erase: options.erase,
            sums: RefCell::new(sums),
            check_sums: options.check_sums,
            broken: options.broken,
        })
    }

    /// Home of the core of a shard, which may be this one.
    fn at(&self, shard: u32) -> Home<Core> {
        self.homes.borrow()[shard as usize].clone()
    }

    /// Sets a counter. It can be read once this returns, and survives a power cut after the next flush.
    async fn set(&self, counter: u32, value: u64) -> Result<()> {
        let data = format::block(counter, value, self.kit.layout.block_bytes()).into();
        self.append(Set::one(Change { counter, from: Place::NOWHERE }, data, None)).await
    }

    /// Sets a counter of this shard and another one together.
    async fn set_both(&self, sets: [(u32, u64); 2]) -> Result<()> {
        let shard = sets[1].0 % self.shards;
        if self.broken == Some(Broken::SplitsPairs) {
            self.set(sets[0].0, sets[0].1).await?;
            let set = move |core: Rc<Core>| async move { core.set(sets[1].0, sets[1].1).await };
            return self.at(shard).with(set).await;
        }
        let mut data = Payload::default();
        for (counter, value) in sets {
            data.push(format::block(counter, value, self.kit.layout.block_bytes()).freeze());
        }
        let [change, other] = sets.map(|(counter, _)| Change { counter, from: Place::NOWHERE });
        let joins = (shard != self.shard).then(|| user_stream(shard));
        self.append(Set { change, other: Some(other), joins, data, request: None }).await?;
        // On the other shard the record may not have committed yet.
        let commit = move |core: Rc<Core>| async move {
            lane::commit(&*core, user_stream(shard));
            Ok(())
        };
        self.at(shard).with(commit).await
    }

    /// Appends an entry, and waits until it has taken effect.
    async fn append(&self, mut set: Set) -> Result<()> {
        if let Some(error) = self.kit.failure() {
            return Err(error);
        }
        if self.kit.is_closing() {
            return Err(Error::closed("the counters are closed"));
        }
        self.kit.space.check()?;
        let request = self.requests.begin(1, None);
        set.request = Some(request);
        lane::push(self, 0, set);
        self.kit.events.work.notify_one();
        self.requests.wait(request).await
    }

    /// Reads the block of a counter; 0 for a counter that was never set.
    async fn get(&self, counter: u32) -> Result<u64> {
        // The zone isn't reset between the lookup and the end of the read.
        let _reading = self.reads.begin();
        let place = self.place(counter);
        if place == Place::NOWHERE {
            return Ok(0);
        }
        let layout = &self.kit.layout;
        let buffer = Buffer::new(layout.block_bytes());
        let (outcome, buffer) = self.kit.zones.read(layout.address(place.zone, place.position), buffer).await;
        outcome?;
        if self.check_sums && self.sum_at(place) != Some(sum_of(buffer.filled())) {
            return Err(Error::corrupt(format!(
                "the block of counter {counter} at {place:?}: wrong checksum"
            )));
        }
        format::value(counter, buffer.filled())
    }

    async fn flush(&self) -> Result<()> {
        match self.broken {
            Some(Broken::NeverFlushes) => Ok(()),
            _ => flusher::flush(self).await,
        }
    }

    /// Place of a counter of this shard; nowhere for a number that no counter has.
    fn place(&self, counter: u32) -> Place {
        let place = self.places.borrow().get((counter / self.shards) as usize).copied();
        place.unwrap_or(Place::NOWHERE)
    }

    /// Checksum of a block according to its record.
    fn sum_at(&self, place: Place) -> Option<u32> {
        self.sums.borrow().get(&(place.zone, place.position)).copied()
    }

    /// State of this shard, and the last records that have taken effect in it: nothing is awaited between the
    /// two.
    fn cut(&self) -> (Vec<Place>, [(StreamId, u64); 2]) {
        let own = [user_stream(self.shard), cleaner_stream(self.shard)];
        (self.places.borrow().clone(), own.map(|stream| (stream, self.appender.committed(stream))))
    }

    /// Notes that a block of a counter is about to be appended to a zone.
    fn note(&self, counter: u32, zone: (u32, u64)) {
        let mut notes = self.notes.borrow_mut();
        let notes = notes.entry(counter).or_default();
        // Zones that were erased since needn't be remembered.
        notes.retain(|(zone, _)| !self.kit.pool.have_been_reset(&[*zone]));
        match notes.iter_mut().find(|(other, _)| *other == zone) {
            Some((_, blocks)) => *blocks += 1,
            None => notes.push((zone, 1)),
        }
    }

    /// Whether no zone but `newest` holds a block of the counter that this shard appended.
    fn is_erased(&self, counter: u32, newest: u32) -> bool {
        let notes = self.notes.borrow();
        let mut notes = notes.get(&counter).into_iter().flatten();
        notes
            .all(|(zone, blocks)| self.kit.pool.have_been_reset(&[*zone]) || zone.0 == newest && *blocks == 1)
    }

    /// The live pieces of a zone that belong to this shard's counters.
    fn live_here(&self, zone: u32, mut pieces: Vec<Piece<u32>>) -> Vec<Piece<u32>> {
        let is_forgotten = |counter| self.broken == Some(Broken::ForgetsCounter) && counter == 3;
        pieces.retain(|piece| {
            self.place(piece.name) == Place { zone, position: piece.position } && !is_forgotten(piece.name)
        });
        pieces
    }

    /// Moves blocks for the home's cleaner.
    async fn move_here(self: Rc<Self>, class: u8, moves: Vec<Set>) -> Result<()> {
        let mut mover = self.mover.replace(Mover::new(CLASSES));
        let outcome = mover.append(&self, class, moves).await;
        self.mover.replace(mover);
        outcome
    }
}

/// Applies one change of a record whose block is at `to`, at commit and at replay alike.
fn apply(
    places: &mut [Place],
    shards: u32,
    accounts: &mut Accounts<'_>,
    change: Change,
    to: Place,
    clock: u64,
    broken: Option<Broken>,
) {
    let place = &mut places[(change.counter / shards) as usize];
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
    /// Number of a counter.
    type Name = u32;

    fn kit(&self) -> &Rc<Kit> {
        &self.kit
    }

    fn appender(&self) -> &Appender<Set> {
        &self.appender
    }

    fn commit(&self, entries: &[Set], zone: u32, mut position: u32) {
        let mut places = self.places.borrow_mut();
        let mut accounts = self.kit.pool.accounts();
        for set in entries {
            for change in set.changes() {
                let to = Place { zone, position };
                position += 1;
                // The change of another shard's counter takes effect there.
                if change.counter % self.shards != self.shard {
                    continue;
                }
                match change.from {
                    Place::NOWHERE => self.kit.note_user_blocks(1),
                    _ => count(&self.kit.counters.moved_blocks, 1),
                }
                let clock = self.kit.clock();
                apply(&mut places, self.shards, &mut accounts, change, to, clock, self.broken);
            }
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

    fn share(&self, joint: &Arc<Joint>, entries: &[Set], zone: u32, position: u32) {
        let (joint, other) = (joint.clone(), entries.first().and_then(|set| set.other));
        let sum = self.sum_at(Place { zone, position: position + 1 });
        let (here, there) = (self.at(self.shard), self.at(u32::from(joint.members()[1].0.0) / 2));
        let deliver = move |core: Rc<Core>| async move {
            if let Some(sum) = sum {
                core.note_sums(zone, position + 1, &[sum]);
            }
            let set = other.map(|change| Set::one(change, Payload::default(), None));
            lane::joint_written(&*core, joint, set.into_iter().collect(), zone, position + 1);
            Ok(())
        };
        let task = async move {
            if let Err(error) = there.with(deliver).await {
                let fail = move |core: Rc<Core>| async move {
                    core.fail(&error);
                    Ok(())
                };
                // If this fails, the log of the other shard has ended as well.
                let _ended = here.with(fail).await;
            }
        };
        self.kit.tasks.spawn(task).detach();
    }

    fn before_append(&self, zone: u32, generation: u64, entries: &[Set]) {
        if self.erase {
            let counters = entries.iter().flat_map(Set::changes).map(|change| change.counter);
            counters.for_each(|counter| self.note(counter, (zone, generation)));
        }
    }

    fn note_sums(&self, zone: u32, position: u32, sums: &[u32]) {
        if self.check_sums {
            let places = (position..).map(|position| (zone, position));
            self.sums.borrow_mut().extend(places.zip(sums.iter().copied()));
        }
    }

    fn erase(&self) -> EraseGuarantee {
        match self.erase && self.broken != Some(Broken::ErasesNothing) {
            true => EraseGuarantee::Erased,
            false => EraseGuarantee::None,
        }
    }

    fn checkpoint_cost(&self) -> u64 {
        self.kit.checkpoints.directory_blocks(&self.kit.layout) + 2
    }

    fn checkpoint_zones(&self) -> u32 {
        1
    }

    async fn take_checkpoint(self: &Rc<Self>, clean: bool) -> Result<()> {
        let write = async || {
            let mut cut = Cut { covered: Sequences::default(), clock: self.kit.clock() };
            let mut state = format::State::new(self.shards);
            for shard in 0..self.shards {
                let cut_of = |core: Rc<Core>| async move { Ok(core.cut()) };
                let (places, committed) = self.at(shard).with(cut_of).await?;
                committed.iter().for_each(|(stream, last)| cut.covered.set(*stream, *last));
                state.places[shard as usize] = places;
            }
            if self.broken == Some(Broken::LateCut) {
                self.kit.flush().await?;
                cut = Cut::now(&self.kit);
            }
            checkpoint::commit(self, cut, &state.encode(), clean).await
        };
        checkpoint::take(self, write).await
    }

    async fn flush_all(&self) -> Result<()> {
        let is_root = self.kit.checkpointing.available() == 0;
        match self.broken {
            Some(Broken::RootBeforeFlush) if is_root => return Ok(()),
            Some(Broken::ResetBeforeFlush) if !is_root => return Ok(()),
            Some(Broken::FlushesHomeOnly) => return self.kit.flush().await,
            _ => {}
        }
        for shard in 0..self.shards {
            self.at(shard).with(|core: Rc<Core>| async move { core.kit.flush().await }).await?;
        }
        Ok(())
    }

    async fn free_dead(self: &Rc<Self>) -> Result<()> {
        self.at(0).with(|core: Rc<Core>| async move { reset::free_dead(&core).await }).await
    }

    async fn live(&self, victim: &Victim) -> Result<Vec<Piece<u32>>> {
        let mut pieces = vec![Vec::new(); self.shards as usize];
        for (record, found) in victim.records().iter().enumerate() {
            for (first, Change { counter, .. }) in (0..).zip(Change::decode_all(&found.meta)?) {
                let position = found.header.position + 1 + first;
                let piece = Piece { position, count: 1, name: counter, offset: 0, record, first };
                pieces[(counter % self.shards) as usize].push(piece);
            }
        }
        let (zone, mut live) = (victim.zone(), Vec::new());
        for (shard, pieces) in (0..).zip(pieces) {
            let find = move |core: Rc<Core>| async move { Ok(core.live_here(zone, pieces)) };
            live.extend(self.at(shard).with(find).await?);
        }
        Ok(live)
    }

    /// Blocks of other shards are always moved: the move of a block that has died meanwhile has no effect.
    fn still_live(&self, victim: &Victim, piece: &Piece<u32>, visit: &mut dyn FnMut(u32, u32)) {
        let place = Place { zone: victim.zone(), position: piece.position };
        if piece.name % self.shards != self.shard || self.place(piece.name) == place {
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
        let mut moves: Vec<Vec<Set>> = (0..self.shards).map(|_| Vec::new()).collect();
        for (Piece { name: counter, position, .. }, data) in pieces {
            let change = Change { counter, from: Place { zone: victim.zone(), position } };
            moves[(counter % self.shards) as usize].push(Set::one(change, data.into(), None));
        }
        for (shard, moves) in (0..).zip(moves) {
            if shard == self.shard {
                mover.append(self, class, moves).await?;
            } else if !moves.is_empty() {
                self.kit.pace.moved(moves.len() as u32);
                self.at(shard).with(move |core: Rc<Core>| core.move_here(class, moves)).await?;
            }
        }
        Ok(())
    }
}
