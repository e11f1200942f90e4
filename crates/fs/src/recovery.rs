//! Making and opening file systems: the tree of the newest checkpoint, and the records after it.

use crate::change::Change;
use crate::checkpoint::unseal;
use crate::core::{CLEANER, Core, STREAMS, Settings, USER, kit_settings, now};
use crate::extents::Blocks;
use crate::format::{BLOCK, OWNER, Properties, State};
use crate::inode::kind;
use crate::metadata::Metadata;
use crate::tree::{Load, PAGE, Place, Released, Stored, Tree};
use block::{BlockSize, Buffer, Error, Result, Zones};
use logkit::cleaning::{DEFAULT, Parameters, Policy, make};
use logkit::pool::Accounts;
use logkit::recovery::{self, Opening};
use logkit::scan::Found;
use logkit::{Kit, Layout, Parts};
use std::rc::Rc;

/// Pages that are read at a time.
const READS: usize = 64;

fn policy(layout: &Layout) -> Result<Box<dyn Policy>> {
    make(DEFAULT, Parameters::for_zones(layout.zones))
}

/// Makes a file system on zones. What was there is lost.
///
/// # Errors
/// [`Error::Invalid`] for zones that are too small or few; what resetting and writing return.
pub async fn format(zones: Rc<dyn Zones>, properties: Properties, settings: &Settings) -> Result<Rc<Core>> {
    properties.check()?;
    let layout = Layout::new(zones.geometry(), BlockSize::new(BLOCK)?)?;
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
    let mut opening: Opening<Found> = recovery::open(&*zones, OWNER).await?;
    let properties = Properties::decode(&opening.root.own)?;
    recovery::check_streams(&opening.root, STREAMS)?;
    let state = State::decode(&opening.own)?;
    let released = Released::new();
    let tree = load(&*zones, &opening, &state.tree, &released).await?;
    let mut metadata = Metadata { tree, next_inode: state.next_inode, inodes: state.inodes, preallocated: 0 };
    let replayed = opening.records.len();
    let clock = replay(&mut opening, &mut metadata).await?;
    let parts = opening.finish(&*zones, clock).await?;
    let core = start(zones, parts, (metadata, released), properties, settings)?;
    core.replayed.set(replayed as u64);
    if core.kit.checkpoints.is_due_at_open() {
        core.write_checkpoint(false).await?;
    }
    Ok(core)
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
async fn replay(opening: &mut Opening<Found>, metadata: &mut Metadata) -> Result<u64> {
    let mut clock = opening.root.clock;
    let zones = opening.layout.zones;
    let (mut accounts, mut preallocated) = (opening.pool.accounts(), 0);
    for (key, value) in metadata.tree.range(&crate::tree::Key::MIN) {
        if key.kind == kind::EXTENT && key.inode != 0 {
            let extent = crate::extents::Extent::decode(key, value)?;
            if extent.zone >= zones {
                return Err(Error::corrupt(format!(
                    "inode {} has blocks in zone {}, which isn't there",
                    key.inode, extent.zone
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
    for record in &records {
        let mut at = Place { zone: record.header.zone, position: record.header.position + 1 };
        for change in Change::decode_all(&record.meta)? {
            metadata.apply(&change, at, &mut Counting(&mut accounts, clock))?;
            at.position += change.blocks();
            clock += u64::from(if record.header.stream == USER { change.blocks() } else { 0 });
        }
    }
    Ok(clock)
}
