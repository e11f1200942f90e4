//! A cache as a part. All requests are carried out on the home shard.

use crate::Options;
use crate::control::Control;
use crate::core::{Core, orders};
use crate::counters::Counters;
use crate::grown::fill_last_part;
use crate::message::Message;
use crate::origin::Origin;
use crate::shape::{self, Shape};
use crate::state::{Entry, FREE, State};
use crate::table::{Medium, Table};
use block::{
    BlockCount, Call, Device, DeviceGeometry, DevicePart, Error, Fullness, Part, PartUse, Result, Status,
};
use eviction::Heat;
use runtime::{Home, LimitedPart};
use stack::Tell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// A device with another one as its cache.
pub struct CachePart {
    home: Home<Core>,
    geometry: DeviceGeometry,
    counters: Arc<Counters>,
    facts: crate::status::Facts,
    keeps_flushed: bool,
    /// Origin and fast device.
    below: [Arc<LimitedPart>; 2],
}

impl CachePart {
    /// Opens or formats the cache on `fast` of the origin `slow`; `name` is the origin's name in the stack.
    /// The calling shard becomes the home shard.
    ///
    /// # Errors
    /// [`Error::NotFound`] if `fast` contains no cache; [`Error::Invalid`] if the devices don't match each
    /// other or the options; [`Error::Corrupt`] for a damaged cache; errors of the devices.
    pub async fn open(
        slow: Arc<dyn DevicePart>,
        fast: Arc<dyn DevicePart>,
        name: &str,
        options: &Options,
    ) -> Result<CachePart> {
        let keeps_flushed = slow.keeps_flushed() && fast.keeps_flushed();
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
            return Err(Error::invalid("one of its devices is read-only; expected both to be writable"));
        }
        if blocks.0 == 0 {
            return Err(Error::invalid("the origin is smaller than one block; expected a larger device"));
        }
        let below = [(slow, "the origin"), (fast, "the fast device")];
        let below = below.map(|(part, name)| LimitedPart::new(part, name, options.timeout));
        let (slow, fast) = (below[0].open().await?, below[1].open().await?);
        let [slow, fast] = [slow, fast].map(|device| Rc::new(Medium::new(device)));
        let (table, shape) = open_table(&fast, &slow, &geometry, name, options).await?;
        let counters = Arc::new(Counters::default());
        let state = State::new(check_entries(&table, &shape)?.into_iter(), counters.clone());
        let part_bytes = shape.part;
        counters.journal_used.set(table.journal_use().0);
        let facts = crate::status::Facts {
            shape,
            slots: state.slots.len() as u64,
            table_bytes: table.own_bytes(),
            journal_units: table.layout().journal,
            was_clean: table.was_clean(),
            control: Arc::new(Control::new(options)),
        };
        let core = Core::start(
            [fast, slow],
            (table, shape),
            state,
            facts.control.clone(),
            counters.clone(),
            options,
        );
        // A part has one state in the table, so writes are atomic up to a part at most.
        let geometry =
            DeviceGeometry { atomic_write: geometry.atomic_write.min(part_bytes as u32), ..geometry };
        Ok(CachePart { home: Home::here(core), geometry, counters, facts, keeps_flushed, below })
    }
}

/// Opens or formats the table, and checks that it belongs to this origin.
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
                "{}; expected the cache of \"{name}\". After use with writeback, dirty data is lost without it; \
                 to create an empty cache: --format",
                error.detail()
            )));
        }
        other => other.map_err(|error| error.in_context("the fast device"))?,
    };
    let origin = Origin::decode(&words)?;
    if options.checks_origin {
        origin.check(slow, name, was_clean).await?;
    }
    let table = Table::open(fast.clone()).await.map_err(|error| error.in_context("the fast device"))?;
    let block = table.layout().entry_bytes;
    if options.block_size_given && options.block_size != block {
        return Err(Error::invalid(format!(
            "block_size {}: expected {block}, the block size that the cache was formatted with; leave the key out, or \
             create an empty cache with --format",
            options.block_size
        )));
    }
    let shape = Shape { block, part: origin.part, origin: size, shift: geometry.block_size.shift() };
    if geometry.block_size.bytes() > shape.part || block.div_ceil(shape.part) > 64 {
        return Err(Error::invalid(format!(
            "block size of the devices: {}; expected at most {}, for which the cache was formatted; create an empty cache \
             with --format",
            geometry.block_size, shape.part
        )));
    }
    if origin.size < size {
        fill_last_part(fast, slow, &table, &shape, origin.size)
            .await
            .map_err(|error| error.in_context("filling the last part of an origin that has grown"))?;
    }
    if origin.size != size || origin.name != name {
        let origin = Origin { size, name: name.to_owned(), ..origin };
        table.set_owner(origin.encode(), false).await?;
    }
    Ok((table, shape))
}

/// Returns the entries of the table, if all are valid.
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
                "table entry of slot {slot} out of range: {words:x?}, for an origin of {blocks} blocks; the fast device is \
                 damaged"
            ))
        })
    };
    (0..count).map(check).collect()
}

impl Part for CachePart {
    fn kind(&self) -> &'static str {
        crate::KIND.name
    }

    fn status(&self) -> Call<'_, Status> {
        Call::ready(crate::status::status(&self.counters, &self.facts))
    }

    fn fullness(&self) -> Call<'_, Option<Fullness>> {
        let shape = &self.facts.shape;
        Call::ready(Some(Fullness {
            resource: "space for dirty data",
            used_bytes: self.counters.dirty_parts.get() * shape.part,
            limit_bytes: self.facts.slots * shape.block,
            can_fill: true,
            remedy: "write less until the origin has caught up, look for errors of the origin, or give a larger fast device",
        }))
    }

    fn message<'a>(&'a self, message: &'a str) -> Call<'a, Result<String>> {
        self.tell_text(&crate::KIND, message)
    }

    fn close(&self) -> Call<'_, Result<()>> {
        Call::new(self.home.close(Core::close))
    }

    fn use_of(&self, below: &dyn Part) -> PartUse {
        LimitedPart::use_among(&self.below, below)
    }
}

impl Tell for CachePart {
    type Message = Message;

    fn tell(&self, message: Message) -> Call<'_, Result<String>> {
        Call::new(self.home.with(|core: Rc<Core>| async move { orders::carry_out(&core, message).await }))
    }
}

impl DevicePart for CachePart {
    fn geometry(&self) -> &DeviceGeometry {
        &self.geometry
    }

    fn only_in_cache(&self) -> Option<u64> {
        let bytes = self.counters.dirty_parts.get() * self.facts.shape.part;
        Some(bytes.min(self.geometry.bytes()))
    }

    fn keeps_flushed(&self) -> bool {
        self.keeps_flushed
    }

    fn open(&self) -> Call<'_, Result<Rc<dyn Device>>> {
        Call::ready(self.home.open(&self.geometry))
    }
}
