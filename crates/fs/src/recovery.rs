//! Making and opening file systems: the tree of the newest checkpoint, and the records after it.

use crate::change::{Change, Recorded};
use crate::checkpoint::unseal;
use crate::core::{Broken, CLEANER, Core, STREAMS, Settings, USER, kit_settings, now};
use crate::extents::Blocks;
use crate::format::{BLOCK, OWNER, Properties, State};
use crate::inode::kind;
use crate::item::ATOMIC_BLOCKS;
use crate::metadata::Metadata;
use crate::tree::{Load, PAGE, Place, Released, Stored, Tree};
use block::{BlockSize, Buffer, Error, Result, Zones};
use logkit::cleaning::{DEFAULT, Parameters, Policy, make};
use logkit::pool::Accounts;
use logkit::record::Header;
use logkit::recovery::{self, Opening};
use logkit::scan::Found;
use logkit::{Kit, Layout, Parts};
use std::rc::Rc;

/// Pages that are read at a time.
const READS: usize = 64;

fn policy(layout: &Layout) -> Result<Box<dyn Policy>> {
    make(DEFAULT, Parameters::for_zones(layout.zones))
}

/// Refuses zones that don't take a record of the largest write that is atomic.
fn check_layout(layout: &Layout) -> Result<()> {
    let header = Header::length(ATOMIC_BLOCKS as usize, Change::LONGEST_WITH_BLOCKS);
    match layout.takes(ATOMIC_BLOCKS, header) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "zones of {} blocks with appends of up to {} are too small for a file system; expected at least {} blocks of 4 KiB, and \
             appends of {}",
            layout.zone_blocks,
            layout.max_append,
            ATOMIC_BLOCKS + 2,
            ATOMIC_BLOCKS + 1
        ))),
    }
}

/// Makes a file system on zones. What was there is lost.
///
/// # Errors
/// [`Error::Invalid`] for zones that are too small or few; what resetting and writing return.
pub async fn format(zones: Rc<dyn Zones>, properties: Properties, settings: &Settings) -> Result<Rc<Core>> {
    properties.check()?;
    let layout = Layout::new(zones.geometry(), BlockSize::new(BLOCK)?)?;
    check_layout(&layout)?;
    let (pool, identity) = recovery::format(&*zones, &layout).await?;
    let parts = recovery::create(layout, pool, identity, STREAMS, OWNER, properties.encode());
    let released = Released::new();
    let metadata = Metadata::new(Tree::new(&released), now());
    let core = start(zones, parts, (metadata, released), properties, settings)?;
    if core.capacity() == 0 {
        return Err(Error::invalid(format!(
            "{} zones of {} blocks are too few for a file system; take more or larger ones",
            layout.zones, layout.zone_blocks
        )));
    }
    core.write_checkpoint(false).await?;
    Ok(core)
}

/// Opens the file system on these zones. Lanes and cleaner aren't started.
///
/// # Errors
/// [`Error::Protocol`] where there is none, [`Error::Corrupt`] for a damaged one; what reading and writing return.
pub async fn open(zones: Rc<dyn Zones>, settings: &Settings) -> Result<Rc<Core>> {
    let Read { opening, properties, metadata, released, clock, replayed } = read(&*zones, settings).await?;
    let parts = opening.finish(&*zones, clock).await?;
    let core = start(zones, parts, (metadata, released), properties, settings)?;
    core.replayed.set(replayed);
    if core.kit.checkpoints.is_due_at_open() {
        core.write_checkpoint(false).await?;
    }
    Ok(core)
}

/// A file system that was read, and of which nothing was changed.
pub(crate) struct Read {
    /// The log.
    pub opening: Opening<Found>,
    /// Properties of the file system.
    pub properties: Properties,
    /// State after the last record.
    pub metadata: Metadata,
    /// Places of pages of the checkpoint that the state no longer has.
    pub released: Released,
    /// Clock after the last record.
    pub clock: u64,
    /// Number of records that were replayed.
    pub replayed: u64,
}

/// Reads the file system on these zones: its newest checkpoint, with the records after it. Nothing is written.
///
/// # Errors
/// As [`open`].
pub(crate) async fn read(zones: &dyn Zones, settings: &Settings) -> Result<Read> {
    let mut opening: Opening<Found> = recovery::open(zones, OWNER).await?;
    let properties = Properties::decode(&opening.root.own)?;
    recovery::check_streams(&opening.root, STREAMS)?;
    let mut state = State::decode(&opening.own)?;
    if cfg!(debug_assertions) && settings.broken == Some(Broken::ReplaysShown) {
        state.shown = 0;
    }
    let released = Released::new();
    let tree = load(zones, &opening, &state.tree, &released).await?;
    let mut metadata = Metadata { tree, next_inode: state.next_inode, inodes: state.inodes, preallocated: 0 };
    let replayed = opening.records.len() as u64;
    let clock = replay(&mut opening, &mut metadata, &state)?;
    Ok(Read { opening, properties, metadata, released, clock, replayed })
}

fn start(
    zones: Rc<dyn Zones>,
    parts: Parts,
    state: (Metadata, Released),
    properties: Properties,
    settings: &Settings,
) -> Result<Rc<Core>> {
    let layout = parts.layout;
    let kit_settings = kit_settings(settings, &layout);
    let kit = |policy| Kit::new(parts, zones, kit_settings, policy, &[USER, CLEANER]);
    Ok(Core::new(kit, policy(&layout)?, state, settings, (properties.block_size / BLOCK) as u32))
}

/// Reads a tree from the medium.
async fn load(
    zones: &dyn Zones,
    opening: &Opening<Found>,
    stored: &Stored,
    released: &Released,
) -> Result<Tree> {
    let mut load = Load::new(stored, released)?;
    loop {
        let wanted = load.wanted().to_vec();
        if wanted.is_empty() {
            return load.finish();
        }
        let mut at = 0;
        for places in wanted.chunks(READS) {
            let reads = places.iter().map(|place| page(zones, &opening.layout, *place));
            for (place, bytes) in places.iter().zip(runtime::join_all(reads).await) {
                let mut bytes = bytes?;
                let bytes: &mut [u8; PAGE] = bytes
                    .filled_mut()
                    .try_into()
                    .map_err(|_| Error::io("a page of the tree was read in part"))?;
                unseal(bytes, &opening.root.identity, *place)?;
                load.supply(at, bytes)?;
                at += 1;
            }
        }
    }
}

async fn page(zones: &dyn Zones, layout: &Layout, place: Place) -> Result<Buffer> {
    if place.zone >= layout.zones || place.position >= layout.zone_blocks {
        return Err(Error::corrupt(format!(
            "the tree of the file system has a page in block {} of zone {}, which isn't there",
            place.position, place.zone
        )));
    }
    let (outcome, buffer) =
        zones.read(layout.address(place.zone, place.position), Buffer::new(layout.block_bytes())).await;
    outcome.map_err(|error| recovery::gone(error, "a page of the tree"))?;
    Ok(buffer)
}

/// Counts the blocks of files while records are replayed.
struct Counting<'a, 'b>(&'a mut Accounts<'b>, u64);

impl Blocks for Counting<'_, '_> {
    fn live(&mut self, zone: u32, blocks: u32) {
        self.0.add_live(zone, blocks);
    }

    fn dead(&mut self, zone: u32, blocks: u32) {
        self.0.remove_live(zone, blocks, self.1);
    }
}

/// Puts the records over the state of the checkpoint; returns the clock after them.
fn replay(opening: &mut Opening<Found>, metadata: &mut Metadata, state: &State) -> Result<u64> {
    let mut clock = opening.root.clock;
    let layout = opening.layout;
    let (mut accounts, mut preallocated) = (opening.pool.accounts(), 0);
    for (key, value) in metadata.tree.range(&crate::tree::Key::MIN) {
        if key.kind == kind::EXTENT && key.inode != 0 {
            let extent = crate::extents::Extent::decode(key, value)?;
            if !extent.is_within(&layout) {
                return Err(Error::corrupt(format!(
                    "inode {} has {} blocks at {} of zone {}, which aren't there",
                    key.inode, extent.blocks, extent.position, extent.zone
                )));
            }
            match extent.is_preallocated() {
                true => preallocated += u64::from(extent.blocks),
                false => accounts.add_live(extent.zone, extent.blocks),
            }
        }
    }
    metadata.preallocated = preallocated;
    for place in metadata.tree.places() {
        accounts.add_live(place.zone, 1);
    }
    let mut records = std::mem::take(&mut opening.records);
    recovery::sort_for_replay(&mut records, USER);
    let mut shown = state.shown;
    for record in &records {
        let mut at = Place { zone: record.header.zone, position: record.header.position + 1 };
        // In a later epoch there are other operations.
        let is_of_checkpoint = record.header.epoch == state.epoch;
        for Recorded { change, is_submitted } in Change::decode_all(&record.meta)? {
            if is_submitted && is_of_checkpoint && shown > 0 {
                shown -= 1;
                continue;
            }
            metadata.apply(&change, at, &mut Counting(&mut accounts, clock))?;
            at.position += change.blocks();
            clock += u64::from(if record.header.stream == USER { change.blocks() } else { 0 });
        }
    }
    Ok(clock)
}
