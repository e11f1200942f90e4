//! A cache as a device: a part, and a handle per shard. Everything is done on the home shard; requests of the others hop there
//! whole.

use super::core::{Core, Epochs, Tickets};
use super::counters::Counters;
use super::grown::fill_last_part;
use super::message::{self, Message};
use super::origin::Origin;
use super::policy::Heat;
use super::shape::{self, Shape};
use super::state::{Entry, FREE, State};
use super::zero::Zeroing;
use super::{Options, clean, commit};
use crate::distant::Distant;
use crate::table::{Medium, OWNER, Table};
use block::{
    BlockCount, BlockIndex, BlockRange, Buffer, Call, Device, DeviceGeometry, DevicePart, Durability, Error,
    Part, Payload, ReadOutcome, Result, Status, ZeroMode,
};
use runtime::range_lock::RangeLock;
use runtime::sync::Notify;
use runtime::{GroupMember, Home, TaskGroup};
use stack::Tell;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// A device with another one as its cache.
pub struct CachePart {
    home: Home<Core>,
    geometry: DeviceGeometry,
    counters: Arc<Counters>,
    facts: super::status::Facts,
}

impl CachePart {
    /// Opens, or makes, the cache on `fast` of the device `slow`, which has this name. The shard that calls becomes its
    /// home.
    ///
    /// # Errors
    /// [`Error::NotFound`] where there is no cache on `fast`, [`Error::Invalid`] where the two don't fit together or with
    /// the options, [`Error::Corrupt`] with what is damaged; those of the devices.
    pub async fn open(
        slow: Arc<dyn DevicePart>,
        fast: Arc<dyn DevicePart>,
        name: &str,
        options: &Options,
    ) -> Result<CachePart> {
        let block_size = shape::block_size(fast.geometry(), slow.geometry());
        let blocks = BlockCount(slow.geometry().bytes() >> block_size.shift());
        let geometry = DeviceGeometry {
            block_size,
            blocks,
            atomic_write: fast.geometry().atomic_write.min(slow.geometry().atomic_write),
            volatile_cache: true,
            read_only: slow.geometry().read_only || fast.geometry().read_only,
        };
        if geometry.read_only {
            return Err(Error::invalid(
                "cache: one of its devices is read-only; expected both to be written",
            ));
        }
        if blocks.0 == 0 {
            return Err(Error::invalid("cache: the origin has no block"));
        }
        let slow = Medium::new(slow.open().await?);
        let fast = Rc::new(Medium::new(fast.open().await?));
        let (table, shape) = open_table(&fast, &slow, &geometry, name, options).await?;
        let counters = Arc::new(Counters::default());
        let state = State::new(check_entries(&table, &shape)?.into_iter(), counters.clone());
        let part_bytes = shape.part;
        counters.journal_used.set(table.journal_use().0);
        let facts = super::status::Facts {
            shape,
            slots: state.slots.len() as u64,
            table_bytes: table.own_bytes(),
            journal_units: table.layout().journal,
            was_clean: table.was_clean(),
            control: Arc::new(super::status::Control::new(options)),
        };
        let core = Rc::new(Core {
            fast,
            slow,
            shape,
            table,
            state: RefCell::new(state),
            writing: RangeLock::default(),
            mode: Cell::new(options.mode),
            is_detaching: Cell::new(false),
            migration_threshold: Cell::new(options.migration_threshold * 512),
            sequential_threshold: Cell::new(options.sequential_threshold),
            migrating: Cell::new(0),
            slow_epochs: Epochs::new(),
            fast_epochs: Epochs::new(),
            marks: Tickets::default(),
            all: Tickets::default(),
            undone: Cell::new(0),
            is_committing: Cell::new(false),
            failure: RefCell::default(),
            still_counts: Cell::new(false),
            work: Notify::new(),
            upkeep: Notify::new(),
            changed: Notify::new(),
            is_closed: Cell::new(false),
            is_idling: Cell::new(false),
            is_closing: Cell::new(false),
            wants_clean: Cell::new(false),
            requests: Cell::new(0),
            counters: counters.clone(),
            calls: TaskGroup::default(),
            upkeepers: TaskGroup::default(),
            committer: TaskGroup::default(),
        });
        core.committer.spawn(commit::run(core.clone())).detach();
        core.upkeepers.spawn(commit::evictor(core.clone())).detach();
        core.upkeepers.spawn(clean::run(core.clone(), options.settle_every)).detach();
        // What a bit of the table means is never torn.
        let geometry =
            DeviceGeometry { atomic_write: geometry.atomic_write.min(part_bytes as u32), ..geometry };
        Ok(CachePart { home: Home::here(core), geometry, counters, facts })
    }
}

/// Finds or makes the table, and checks that it belongs to this origin.
async fn open_table(
    fast: &Rc<Medium>,
    slow: &Medium,
    geometry: &DeviceGeometry,
    name: &str,
    options: &Options,
) -> Result<(Table, Shape)> {
    let size = geometry.bytes();
    if options.format {
        let shape = Shape::new(options.block_size, geometry.block_size, size);
        let sums = Some(Origin::sums_of(slow, size).await?);
        let origin = Origin { size, part: shape.part, sums, name: name.to_owned() };
        let table = Table::format(fast.clone(), options.block_size, origin.encode()).await?;
        return Ok((table, shape));
    }
    let (words, was_clean) = match Table::owner(fast).await {
        Err(error @ (Error::NotFound(_) | Error::Corrupt(_))) => {
            return Err(error.with_detail(format!(
                "{}: expected the cache of \"{name}\". Where it was written to by writeback, what hadn't been written back is \
                 lost without it. If the cache is to be made anew: --format",
                error.detail()
            )));
        }
        other => other.map_err(|error| error.in_context("the cache's device"))?,
    };
    let origin = Origin::decode(&words)?;
    if options.checks_origin {
        origin.check(slow, name, was_clean).await?;
    }
    let table = Table::open(fast.clone()).await.map_err(|error| error.in_context("the cache's device"))?;
    let block = table.layout().entry_bytes;
    if options.block_size_given && options.block_size != block {
        return Err(Error::invalid(format!(
            "block_size {}: the cache was made with blocks of {block} bytes; leave it out, or make it anew with --format",
            options.block_size
        )));
    }
    let shape = Shape { block, part: origin.part, origin: size };
    if geometry.block_size.bytes() > shape.part || block.div_ceil(shape.part) > 64 {
        return Err(Error::invalid(format!(
            "blocks of {} bytes: the cache was made for devices with blocks of at most {}",
            geometry.block_size, shape.part
        )));
    }
    if origin.size < size {
        fill_last_part(fast, slow, &table, &shape, origin.size)
            .await
            .map_err(|error| error.in_context("the cache of an origin that has grown"))?;
    }
    if origin.size != size || origin.name != name {
        let origin = Origin { size, name: name.to_owned(), ..origin };
        table.set_owner(origin.encode(), false).await?;
    }
    Ok((table, shape))
}

/// What the table has, if it can be.
fn check_entries(table: &Table, shape: &Shape) -> Result<Vec<(Entry, Heat)>> {
    let blocks = shape.origin.div_ceil(shape.block);
    let count = table.layout().entries as u32;
    let mut seen = BTreeSet::new();
    let check = |slot: u32| {
        let words = table.get(slot);
        let (entry, heat) = (Entry::from_words(words), Entry::heat(words));
        let possible = match entry.block {
            FREE => words == [0; 3],
            block => {
                block < blocks
                    && entry.valid & !shape.all(block) == 0
                    && entry.dirty & !entry.valid == 0
                    && seen.insert(block)
            }
        };
        heat.filter(|_| possible).map(|heat| (entry, heat)).ok_or_else(|| {
            Error::corrupt(format!(
                "the table of the cache says of slot {slot} what can't be: {words:x?} of {blocks} blocks"
            ))
        })
    };
    (0..count).map(check).collect()
}

impl Part for CachePart {
    fn kind(&self) -> &'static str {
        super::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(super::status::status(&self.counters, &self.facts))
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&super::KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(async move {
            let closed = self.home.with(|core| async move { close(core).await }).await;
            self.home.forget().await?;
            closed
        })
    }
}

impl Tell for CachePart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        let control = self.facts.control.clone();
        Call::new(self.home.with(move |core: Rc<Core>| async move {
            let _call = core.calls.enter();
            message::carry_out(&core, &control, message).await
        }))
    }
}

async fn close(core: Rc<Core>) -> Result<()> {
    // What comes in still, and calls that nobody waits for any more, end first. A handle that is still open may never be
    // dropped, so it isn't waited for.
    core.is_closed.set(true);
    core.changed.notify_all();
    core.calls.ended().await;
    core.is_idling.set(true);
    core.upkeep.notify_all();
    core.upkeepers.ended().await;
    let outcome = leave(&core).await;
    core.is_closing.set(true);
    core.work.notify_all();
    core.committer.ended().await;
    outcome
}

/// Makes everything durable, and notes a clean stop.
async fn leave(core: &Rc<Core>) -> Result<()> {
    if core.goes_on_without_cache() {
        return core.flush_origin().await;
    }
    core.flush().await?;
    core.settle(true).await;
    core.flush().await?;
    core.keep_heat().await?;
    let mut origin = Origin::decode(&core.table.owner_words())?;
    origin.sums = Origin::sums_of(&core.slow, origin.size).await.ok();
    let words: [u8; OWNER] = origin.encode();
    core.table.set_owner(words, true).await
}

impl DevicePart for CachePart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn only_in_cache(&self) -> Option<u64> {
        let bytes = self.counters.dirty_parts.get() * self.facts.shape.part;
        Some(bytes.min(self.geometry.bytes()))
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::new(async move {
            let geometry = self.geometry.clone();
            Ok(match self.home.is_here() {
                true => Rc::new(Handle { geometry, core: self.home.get()?, _call: None }) as Rc<dyn Device>,
                false => Distant::open(geometry, self.home.clone(), Handle::new),
            })
        })
    }
}

/// The handle of the home shard.
struct Handle {
    geometry: DeviceGeometry,
    core: Rc<Core>,
    /// Of one that lives for one call of another shard. `None` of one that a shard keeps, perhaps for ever.
    _call: Option<GroupMember>,
}

impl Handle {
    /// A handle for one call of another shard.
    fn new(geometry: DeviceGeometry, core: Rc<Core>) -> Self {
        let call = core.calls.enter();
        Handle { geometry, core, _call: Some(call) }
    }

    fn zero<'a>(
        &'a self,
        range: BlockRange,
        zeroing: Zeroing,
        durability: Durability,
    ) -> Call<'a, Result<()>> {
        match check(&self.geometry, range) {
            Ok(Some((from, to))) => {
                runtime::carry_in(&self.core.calls, self.core.clone().zero(from, to, zeroing, durability))
            }
            other => Call::ready(other.map(drop)),
        }
    }
}

/// The bytes of a range that is to be changed; none of an empty one.
fn check(geometry: &DeviceGeometry, range: BlockRange) -> Result<Option<(u64, u64)>> {
    geometry.check_writable()?;
    geometry.check(range)?;
    let offset = |block| geometry.block_size.offset_of(block).0;
    Ok((!range.is_empty()).then(|| (offset(range.start), offset(range.end()))))
}

impl Device for Handle {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn read(&self, at: BlockIndex, mut buffer: Buffer) -> Call<'_, ReadOutcome> {
        match self.geometry.range(at, buffer.len()) {
            Ok(range) if !range.is_empty() => {
                self.core.read(self.geometry.block_size.offset_of(at).0, buffer)
            }
            other => {
                buffer.clear();
                Call::ready((other.map(drop), buffer))
            }
        }
    }

    fn write(&self, at: BlockIndex, payload: Payload, durability: Durability) -> Call<'_, Result<()>> {
        match self.geometry.writable_range(at, payload.len()) {
            Ok(range) if !range.is_empty() => {
                self.core.write(self.geometry.block_size.offset_of(at).0, payload, durability)
            }
            other => Call::ready(other.map(drop)),
        }
    }

    fn flush(&self) -> Call<'_, Result<()>> {
        let core = self.core.clone();
        runtime::carry_in(&self.core.calls, async move { core.flush().await })
    }

    fn discard(&self, range: BlockRange) -> Call<'_, Result<()>> {
        self.zero(range, Zeroing::Discard, Durability::Visible)
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        mode: ZeroMode,
        durability: Durability,
    ) -> Call<'_, Result<()>> {
        self.zero(range, Zeroing::Zeroes(mode), durability)
    }
}
