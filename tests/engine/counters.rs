//! Counters for clients: formatting and opening them on zones, and messages to the shards that have them.

use super::format::{self, Change, Place, State};
use super::{CLASSES, Core, Options, Sums, apply, cleaner_stream, user_stream};
use block::{BlockSize, Error, Result, ZoneIndex, Zones, ZonesPart};
use logkit::cleaning::Greedy;
use logkit::layout::ROOT_ZONES;
use logkit::pool::CHECKPOINT_CLASS;
use logkit::recovery::{self, Goal, Opening};
use logkit::scan::Found;
use logkit::{Kit, Layout, Mover, Owner, Parts, cleaner, lane, sums};
use runtime::{Home, ShardIndex};
use std::rc::Rc;
use std::sync::Arc;

/// Kind of the owner in a root: a log of another kind isn't opened.
const OWNER: [u8; 8] = *b"counters";

/// Counters on zones.
pub struct Counters {
    /// Homes of the shards' cores; the first one is the home of the log.
    homes: Vec<Home<Core>>,
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
    /// Formats these zones for counters. Their contents are lost.
    ///
    /// # Errors
    /// Errors of resetting and writing the zones.
    pub async fn format(zones: Arc<dyn ZonesPart>, options: Options) -> Result<Self> {
        let handle = zones.open().await?;
        let layout = Layout::new(handle.geometry(), BlockSize::default())?;
        let (pool, identity) = recovery::format(&*handle, &layout).await?;
        let streams = usize::from(user_stream(options.shards).0);
        let parts = recovery::create(layout, pool, identity, streams, OWNER, Vec::new());
        let state = State::never_set(options.counters, options.shards);
        Self::start((zones, handle), parts, state, Vec::new(), options).await
    }

    /// Opens the counters on these zones.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the zones hold no counters, [`Error::Corrupt`] if they are damaged; errors of
    /// reading and writing the zones.
    pub async fn open(zones: Arc<dyn ZonesPart>, options: Options) -> Result<Self> {
        let handle = zones.open().await?;
        let mut opening: Opening<Found> = recovery::open(&*handle, OWNER, Goal::Serve).await?;
        let mut state = State::decode(&opening.own)?;
        let shards = state.places.len() as u32;
        recovery::check_streams(&opening.root, usize::from(user_stream(shards).0))?;
        let clock = replay(&mut opening, &mut state, options)?;
        let parts = opening.finish(&*handle, clock).await?;
        let sums = match options.check_sums {
            true => read_sums(&*handle, &parts, &state).await?,
            false => Vec::new(),
        };
        Self::start((zones, handle), parts, state, sums, options).await
    }

    async fn start(
        (zones, handle): (Arc<dyn ZonesPart>, Rc<dyn Zones>),
        parts: Parts,
        state: State,
        sums: Vec<Sums>,
        options: Options,
    ) -> Result<Self> {
        let (layout, number, shards) = (parts.layout, state.counters(), state.places.len() as u32);
        let mut places =
            state.places.into_iter().zip(sums.into_iter().chain(std::iter::repeat_with(Sums::new)));
        let own = places.next().ok_or_else(|| Error::corrupt("counters without a shard"))?;
        let core = Core::new((0, shards), layout, own, options, |settings, own| {
            Kit::new(parts, handle, settings, Box::new(Greedy), own)
        });
        let mut homes = vec![Home::here(core.clone())];
        for (shard, places) in (1..).zip(places) {
            let (peer, zones) = (core.kit.peer(), zones.clone());
            let begin = move || async move {
                let handle = zones.open().await?;
                let core = Core::new((shard, shards), layout, places, options, |settings, own| {
                    Kit::join(peer, handle, settings, Box::new(Greedy), own)
                });
                Ok::<_, Error>(Home::here(core))
            };
            homes.push(runtime::spawn_on(place_of(shard), begin).await??);
        }
        for home in &homes {
            let homes = homes.clone();
            home.with(|core: Rc<Core>| async move { Ok(core.homes.replace(homes)) }).await?;
        }
        if core.kit.checkpoints.is_due_at_open() {
            core.take_checkpoint(false).await?;
        }
        for home in &homes {
            home.with(|core: Rc<Core>| async move {
                lane::start(&core);
                Ok(())
            })
            .await?;
        }
        cleaner::start(&core);
        Ok(Counters { kit: core.kit.counters.clone(), homes, zones, number })
    }

    /// Number of counters.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Statistics of the kit, for operators.
    pub fn kit(&self) -> &Arc<logkit::Counters> {
        &self.kit
    }

    /// Home of the shard to which a counter belongs.
    fn at(&self, counter: u32) -> &Home<Core> {
        &self.homes[counter as usize % self.homes.len()]
    }

    /// Sets an existing counter. It can be read once this returns, and survives a power cut after the next
    /// flush.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if no zone can be freed; the error that has ended the log.
    pub async fn set(&self, counter: u32, value: u64) -> Result<()> {
        self.at(counter).with(move |core: Rc<Core>| async move { core.set(counter, value).await }).await
    }

    /// Sets two counters together: after a power cut both have their new value or neither has. They can be
    /// read once this returns.
    ///
    /// # Errors
    /// Errors of [`set`](Self::set).
    pub async fn set_both(&self, sets: [(u32, u64); 2]) -> Result<()> {
        self.at(sets[0].0).with(move |core: Rc<Core>| async move { core.set_both(sets).await }).await
    }

    /// Whether no zone holds an older value of a counter than the newest one. Requires that the counters were
    /// formatted with [`Options::erase`] and not opened since.
    ///
    /// # Errors
    /// [`Error::Cancelled`] if a shard has ended.
    pub async fn older_values_are_erased(&self, counter: u32) -> Result<bool> {
        let newest =
            self.at(counter).with(move |core: Rc<Core>| async move { Ok(core.place(counter)) }).await?;
        let mut are_erased = true;
        for home in &self.homes {
            let ask = move |core: Rc<Core>| async move { Ok(core.is_erased(counter, newest.zone)) };
            are_erased &= home.with(ask).await?;
        }
        Ok(are_erased)
    }

    /// Value of an existing counter, read from its zone; 0 for one that was never set.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a block that isn't that counter's; errors of reading the zones.
    pub async fn get(&self, counter: u32) -> Result<u64> {
        self.at(counter).with(move |core: Rc<Core>| async move { core.get(counter).await }).await
    }

    /// Makes all values durable that were set before.
    ///
    /// # Errors
    /// Errors of flushing the zones.
    pub async fn flush(&self) -> Result<()> {
        for home in &self.homes {
            home.with(|core: Rc<Core>| async move { core.flush().await }).await?;
        }
        Ok(())
    }

    /// Writes what is queued and a last checkpoint, and closes the zones.
    ///
    /// # Errors
    /// The error that has ended the log; errors of writing the zones.
    pub async fn close(&self) -> Result<()> {
        let end = |core: Rc<Core>| async move {
            core.kit.begin_closing();
            core.kit.tasks.ended().await;
            Ok(())
        };
        // The cleaner frees zones until nothing is queued on the other shards, and moves their blocks.
        let mut closed = Ok(());
        for home in self.homes.iter().rev() {
            closed = closed.and(home.with(end).await);
        }
        for home in &self.homes[1..] {
            let seal = |core: Rc<Core>| async move {
                let mut mover = core.mover.replace(Mover::new(CLASSES));
                mover.close(&*core).await;
                Ok(())
            };
            closed = closed.and(home.with(seal).await);
        }
        let last = |core: Rc<Core>| async move { core.take_checkpoint(true).await };
        closed = closed.and(self.homes[0].with(last).await);
        for home in &self.homes {
            closed = closed.and(home.forget().await);
        }
        closed.and(self.zones.close().await)
    }

    /// Compares the live blocks of each zone with the kit's running count, by which it resets zones. For
    /// tests, while nothing is set.
    ///
    /// # Errors
    /// The first zone whose count is wrong.
    pub async fn check_counts(&self) -> Result<()> {
        let mut places = Vec::new();
        for home in &self.homes {
            places.extend(home.with(|core: Rc<Core>| async move { Ok(core.cut().0) }).await?);
        }
        let check = |core: Rc<Core>| async move {
            for (number, zone) in core.kit.pool.list().into_iter().skip(ROOT_ZONES as usize) {
                let live = places.iter().filter(|place| place.zone == number).count();
                if zone.class != CHECKPOINT_CLASS && zone.live as usize != live {
                    return Err(Error::corrupt(format!(
                        "zone {number} has {live} live blocks, the kit counts {zone:?}"
                    )));
                }
            }
            Ok(())
        };
        self.homes[0].with(check).await
    }
}

/// Shard of the runtime on which a shard of the counters runs.
fn place_of(shard: u32) -> ShardIndex {
    let here = runtime::current_shard().0;
    ShardIndex((here + shard as usize) % runtime::shard_count())
}

/// Reads the checksums of the newest blocks of all counters, by shard.
async fn read_sums(zones: &dyn Zones, parts: &Parts, state: &State) -> Result<Vec<Sums>> {
    let mut all = vec![Sums::new(); state.places.len()];
    for report in zones.report(ZoneIndex(ROOT_ZONES), parts.layout.zones).await? {
        let zone = report.zone.0;
        if !state.places.iter().flatten().any(|place| place.zone == zone) {
            continue;
        }
        let read = sums::read(zones, &parts.layout, &parts.identity, &report).await?;
        for (places, sums) in state.places.iter().zip(&mut all) {
            for place in places.iter().filter(|place| place.zone == zone) {
                sums.insert((zone, place.position), read.of(place.position)?);
            }
        }
    }
    Ok(all)
}

/// Applies the records to the state of the checkpoint; returns the clock after them.
fn replay(opening: &mut Opening<Found>, state: &mut State, options: Options) -> Result<u64> {
    let (mut clock, shards) = (opening.root.clock, state.places.len() as u32);
    let mut accounts = opening.pool.accounts();
    for (shard, places) in (0..shards).zip(&mut state.places) {
        let counters = (shard..).step_by(shards as usize);
        let known = counters.zip(places.iter()).filter(|(_, place)| **place != Place::NOWHERE);
        known.filter(|(it, _)| options.counts(*it)).for_each(|(_, place)| accounts.add_live(place.zone, 1));
        let (user, cleaner) = (user_stream(shard), cleaner_stream(shard));
        let is_own = |record: &&Found| {
            let number = recovery::number_in(*record, user);
            record.header.stream == cleaner
                || number.is_some_and(|number| number > opening.root.covered.of(user))
        };
        let mut records: Vec<Found> = opening.records.iter().filter(is_own).cloned().collect();
        recovery::sort_for_replay(&mut records, user);
        for record in &records {
            for (position, change) in (record.header.position + 1..).zip(Change::decode_all(&record.meta)?) {
                let owner = change.counter % shards;
                let is_others = owner != shard && recovery::number_in(record, user_stream(owner)).is_some();
                if is_others {
                    continue;
                }
                clock += u64::from(change.from == Place::NOWHERE);
                format::check_counter(change.counter, (shard, shards), places.len())?;
                let to = Place { zone: record.header.zone, position };
                apply(places, shards, &mut accounts, change, to, clock, options.broken);
            }
        }
    }
    Ok(clock)
}
