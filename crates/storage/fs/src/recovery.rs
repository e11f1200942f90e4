//! Creating and opening file systems: reads the trees of the newest checkpoint, and replays the records after
//! it. Each shard loads its own inode groups.

pub(crate) mod salvage;

use crate::broken::if_broken;
use crate::core::checkpoint::unseal;
use crate::core::geometry::{check_new, too_few};
use crate::core::shards::{Shards, Totals, shard_of};
use crate::core::{
    Accounting, Core, OpeningReport, STREAMS, Settings, cleaner_stream, kit_settings, now, reserved_zones,
    user_stream,
};
use crate::format::{BLOCK, MAX_SHARDS, OWNER, Properties, State};
use crate::metadata::change::{Change, Recorded};
use crate::metadata::extents::{Blocks, Extent, GONE};
use crate::metadata::forest::{Forest, InodeGroup};
use crate::metadata::inode::{InodeNumber, ROOT, kind};
use crate::metadata::shared::FIRST_KEEPER;
use crate::metadata::versions::{Snapshot, SnapshotInfo, own_blocks, visit_own_blocks};
use crate::metadata::{Inodes, Metadata};
use crate::tree::{Key, Known, Load, PAGE, Released, SinglePage, Stored, Tree};
use block::{BlockSize, Buffer, Error, Result, ZoneBlock, Zones, ZonesPart};
use logkit::cleaning::{Parameters, Policy, make};
use logkit::record::Identity;
use logkit::recovery::{self, Goal, LostParts, Opening};
use logkit::scan::Found;
use logkit::{Kit, Layout, Parts, Sequences, ZonePool};
use runtime::{Home, ShardIndex};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// Pages of one batch of reads.
const READS: usize = 64;
/// Begin of a line about a part of a snapshot.
const IN_SNAPSHOT: &str = "in a snapshot: ";

fn policy(settings: &Settings, layout: &Layout) -> Result<Box<dyn Policy>> {
    let (name, parameters) = &settings.cleaning;
    make(name, parameters.unwrap_or_else(|| Parameters::for_zones(layout.zones)))
}

/// Number of shards of a file system: the requested number, or that of the runtime, limited by the numbers of
/// inode groups and of zones.
fn number_of_shards(settings: &Settings, layout: &Layout, groups: u32) -> u32 {
    let wanted = settings.shards.unwrap_or(runtime::shard_count() as u32);
    let has_zones = |shards: &u32| reserved_zones(settings.appends_in_flight, *shards) <= layout.zones / 4;
    let most = (1..=wanted.min(MAX_SHARDS).min(groups)).rev().find(has_zones);
    most.unwrap_or(1)
}

/// Makes a file system on zones, whose contents are lost. Doesn't start lanes and cleaner.
///
/// # Errors
/// [`Error::Invalid`] for zones that are too small or too few; errors of resetting and writing.
pub async fn format(
    zones: &Arc<dyn ZonesPart>,
    properties: Properties,
    settings: &Settings,
) -> Result<Shards> {
    properties.check()?;
    let handle = zones.open().await?;
    let settings = &settings.clone().for_zones(handle.geometry());
    let layout = Layout::new(handle.geometry(), BlockSize::new(BLOCK)?)?;
    check_new(handle.geometry())?;
    let (pool, identity) = recovery::format(&*handle, &layout).await?;
    let parts = recovery::create(layout, pool, identity, STREAMS, OWNER, properties.encode());
    let shards = number_of_shards(settings, &layout, properties.inode_groups);
    let made = async |shard: u32| {
        let make = move || async move {
            let released = Released::new();
            let items = Forest::new(properties.inode_groups, &released);
            let has_root = shard_of(items.group_of(ROOT), shards) == shard;
            let metadata = if has_root { Metadata::new(items, now()) } else { Metadata::empty(items) };
            Home::here(Loaded::new((metadata, released, LostParts::default()), 0))
        };
        runtime::spawn_on(place_of(shard), make).await
    };
    let mut loaded = Vec::new();
    for shard in 0..shards {
        loaded.push(made(shard).await?);
    }
    let shards = start((zones, handle), parts, loaded, properties, settings).await?;
    let first = |core: Rc<Core>| async move {
        match core.admission.capacity() {
            0 => Err(too_few(&core.kit.layout, core.admission.least_zones())),
            _ => core.write_checkpoint(false).await,
        }
    };
    shards.first().with(first).await?;
    Ok(shards)
}

/// Opens the file system on these zones. Doesn't start lanes and cleaner.
///
/// # Errors
/// [`Error::Protocol`] for zones without a file system; [`Error::Corrupt`] for a damaged one; errors of
/// reading and writing.
pub async fn open(zones: &Arc<dyn ZonesPart>, settings: &Settings) -> Result<Shards> {
    let handle = zones.open().await?;
    let settings = &settings.clone().for_zones(handle.geometry());
    let (mut opening, properties, state) = find(&*handle, settings).await?;
    let lost = std::mem::take(&mut opening.lost);
    lost.iter().for_each(|line| tracing::error!("salvaging the file system: {line}"));
    let shards = number_of_shards(settings, &opening.layout, properties.inode_groups);
    // The next root has the current version of the format.
    let own = std::mem::replace(&mut opening.root.own, properties.encode());
    let is_older = own != opening.root.own;
    let source = Arc::new(Source::of(&mut opening, properties, state));
    let mut loaded: Vec<Home<Loaded>> = Vec::new();
    for shard in 0..shards {
        let (source, zones) = (source.clone(), zones.clone());
        let load = move || async move {
            let handle = zones.open().await?;
            let loaded = source.load(&*handle, |group| shard_of(group, shards) == shard).await?;
            Ok::<_, Error>(Home::here(Loaded::new(loaded, source.records.len() as u64)))
        };
        match runtime::spawn_on(place_of(shard), load).await.and_then(|loaded| loaded) {
            Ok(home) => loaded.push(home),
            Err(error) => {
                forget(&loaded).await;
                return Err(error);
            }
        }
    }
    let parts = match opening.finish(&*handle, source.clock).await {
        Ok(parts) => parts,
        Err(error) => {
            forget(&loaded).await;
            return Err(error);
        }
    };
    let shards = start((zones, handle), parts, loaded, properties, settings).await?;
    let is_divided_otherwise = source.state.shown.len() != shards.all().len();
    let infos: Vec<_> = source.state.snapshots.iter().map(|it| it.info.clone()).collect();
    let next_snapshot = source.state.next_snapshot;
    let is_salvage = settings.goal == Goal::Salvage;
    let first = move |core: Rc<Core>| async move {
        core.snapshot_list.set(infos.into_iter(), next_snapshot);
        core.opened.lost.borrow_mut().extend(lost);
        if is_salvage {
            return Ok(());
        }
        // Records belong to the streams of the shards in the newest checkpoint, and have the version in the
        // root. So a new division or version needs a checkpoint first.
        match core.kit.checkpoints.is_due_at_open() || is_divided_otherwise || is_older {
            true => core.write_checkpoint(false).await,
            false => Ok(()),
        }
    };
    shards.first().with(first).await?;
    Ok(shards)
}

/// Inode groups of a shard, until the shard is created.
struct Loaded {
    metadata: RefCell<Option<LoadedGroups>>,
    /// Number of records that were replayed.
    replayed: u64,
}

impl Loaded {
    fn new(loaded: LoadedGroups, replayed: u64) -> Rc<Self> {
        Rc::new(Loaded { metadata: RefCell::new(Some(loaded)), replayed })
    }
}

async fn forget(loaded: &[Home<Loaded>]) {
    for home in loaded {
        // An ended shard has dropped the state.
        home.forget().await.ok();
    }
}

/// Shard of the runtime that runs a shard of the file system.
fn place_of(shard: u32) -> ShardIndex {
    ShardIndex((runtime::current_shard().0 + shard as usize) % runtime::shard_count())
}

/// Creates the log kit of a shard with these settings.
type MakeKit = Box<dyn FnOnce(Box<dyn Policy>, logkit::Settings) -> Rc<Kit>>;

/// Creates the shards from the loaded inode groups.
async fn start(
    (zones, handle): (&Arc<dyn ZonesPart>, Rc<dyn Zones>),
    parts: Parts,
    loaded: Vec<Home<Loaded>>,
    properties: Properties,
    settings: &Settings,
) -> Result<Shards> {
    let (layout, count) = (parts.layout, loaded.len() as u32);
    let totals = Totals::new(count);
    let mut home = Some((parts, handle));
    let mut homes: Vec<Home<Core>> = Vec::new();
    for (index, of) in (0..count).zip(&loaded) {
        let (settings, totals, zones) = (settings.clone(), totals.clone(), zones.clone());
        let make = move |loaded: Rc<Loaded>, kit: MakeKit| {
            let state = loaded.metadata.borrow_mut().take();
            let state = state.ok_or_else(|| {
                Error::closed("the inode groups of a shard were taken already; open the file system again")
            })?;
            let (metadata, released, lost) = state;
            let kit_settings = kit_settings(&settings, &layout, (index, count));
            let kit = |policy| kit(policy, kit_settings);
            let (block_size, replayed) = (properties.block_size, loaded.replayed);
            let opened = OpeningReport { block_size, replayed, lost: RefCell::new(lost) };
            let core = Core::new(
                (index, totals),
                kit,
                policy(&settings, &layout)?,
                (metadata, released),
                &settings,
                opened,
            );
            Ok::<_, Error>(Home::here(core))
        };
        let own = [user_stream(index), cleaner_stream(index)];
        let made = match home.take() {
            Some((parts, handle)) => {
                let kit = Box::new(move |policy, settings| Kit::new(parts, handle, settings, policy, &own));
                of.get().and_then(|loaded| make(loaded, kit))
            }
            None => {
                let peer = homes[0].get()?.kit.peer();
                let join = move |loaded: Rc<Loaded>| async move {
                    let handle = zones.open().await?;
                    let kit =
                        Box::new(move |policy, settings| Kit::join(peer, handle, settings, policy, &own));
                    make(loaded, kit)
                };
                of.with(join).await
            }
        };
        match made {
            Ok(core) => homes.push(core),
            Err(error) => {
                forget(&loaded).await;
                return Err(error);
            }
        }
    }
    forget(&loaded).await;
    let shards = Shards::new(homes, properties.inode_groups);
    for home in shards.all() {
        let all = shards.clone();
        home.with(move |core: Rc<Core>| async move {
            core.peers.set(all);
            Ok(())
        })
        .await?;
    }
    Ok(shards)
}

/// Finds the file system on zones: its log, and its state at the newest checkpoint. Writes nothing.
async fn find(zones: &dyn Zones, settings: &Settings) -> Result<(Opening<Found>, Properties, State)> {
    let opening: Opening<Found> = recovery::open(zones, OWNER, settings.goal).await?;
    let properties = Properties::decode(&opening.root.own)?;
    recovery::check_streams(&opening.root, STREAMS)?;
    let state = State::decode(&opening.own)?;
    if state.groups.len() != properties.inode_groups as usize {
        return Err(Error::corrupt(format!(
            "the state of the file system has {} inode groups; expected {}",
            state.groups.len(),
            properties.inode_groups
        )));
    }
    if state.memory > settings.metadata_bytes {
        return Err(Error::invalid(format!(
            "the metadata needs {} bytes of memory; expected at most the budget of {}; mount it with a larger budget",
            state.memory, settings.metadata_bytes
        )));
    }
    Ok((opening, properties, state))
}

/// A file system that was read, without changing the medium.
pub(crate) struct Recovered {
    /// The log.
    pub opening: Opening<Found>,
    /// State after the last record.
    pub metadata: Metadata,
    /// Snapshots, oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// Places of pages of the checkpoint that the state no longer uses.
    pub released: Released,
    /// Losses, with [`Goal::Salvage`].
    pub lost: LostParts,
}

/// Reads the file system on these zones: its newest checkpoint and the records after it. Writes nothing.
///
/// # Errors
/// Errors of [`open`].
pub(crate) async fn read(zones: &dyn Zones, settings: &Settings) -> Result<Recovered> {
    let (mut opening, properties, state) = find(zones, settings).await?;
    let source = Source::of(&mut opening, properties, state);
    let (metadata, released, of_groups) = source.load(zones, |_| true).await?;
    let snapshots = source.state.snapshots.into_iter().map(|it| it.info).collect();
    let mut lost = LostParts::default();
    lost.extend(opening.lost.iter().cloned());
    lost.append(of_groups);
    Ok(Recovered { opening, metadata, snapshots, released, lost })
}

/// Loaded inode groups: the metadata, places of pages that it no longer uses, and losses.
type LoadedGroups = (Metadata, Released, LostParts);

/// Observer that counts nothing: a salvage doesn't change blocks.
struct Uncounted;

impl Blocks for Uncounted {
    fn live(&mut self, _zone: u32, _blocks: u32) {}

    fn dead(&mut self, _zone: u32, _blocks: u32) {}
}

/// Source from which inode groups are loaded.
struct Source {
    goal: Goal,
    /// [`Opening::reset_since`].
    reset_since: Vec<u32>,
    /// [`Opening::offline`].
    offline: Vec<u32>,
    layout: Layout,
    identity: Identity,
    pool: Arc<ZonePool>,
    /// Last record of each stream that the checkpoint includes.
    covered: Sequences,
    properties: Properties,
    state: State,
    /// Records after the checkpoint.
    records: Vec<Found>,
    /// Clock after the records.
    clock: u64,
}

impl Source {
    fn of(opening: &mut Opening<Found>, properties: Properties, state: State) -> Self {
        let users = opening.records.iter().filter(|record| record.header.stream.0.is_multiple_of(2));
        let written = users.map(|record| u64::from(record.header.blocks)).sum::<u64>();
        Source {
            goal: opening.goal(),
            reset_since: opening.reset_since.clone(),
            offline: opening.offline.clone(),
            layout: opening.layout,
            identity: opening.root.identity,
            pool: opening.pool.clone(),
            covered: opening.root.covered.clone(),
            properties,
            state,
            clock: opening.root.clock + written,
            records: std::mem::take(&mut opening.records),
        }
    }

    /// Loads the wanted inode groups, and replays their records.
    async fn load(&self, zones: &dyn Zones, is_wanted: impl Fn(InodeGroup) -> bool) -> Result<LoadedGroups> {
        let mut lost = LostParts::default();
        let released = Released::new();
        let empty = Forest::new(self.properties.inode_groups, &released);
        let mut metadata = Metadata::empty(empty.clone());
        let mut snapshots: Vec<Metadata> =
            self.state.snapshots.iter().map(|_| Metadata::empty(empty.clone())).collect();
        for (group, state) in (0..).zip(&self.state.groups).filter(|(group, _)| is_wanted(*group)) {
            let (tree, mut known) =
                self.load_tree(zones, &state.tree, (group, &empty), Known::default(), &mut lost).await?;
            let is_next = check_next(&tree, group, self.properties.inode_groups, state.inodes.next);
            self.tolerate(is_next, &mut lost)?;
            metadata.set_group(group, tree, state.inodes);
            // Neighbouring snapshots share most pages.
            for (snapshot, stored) in snapshots.iter_mut().zip(&self.state.snapshots).rev() {
                let stored = &stored.trees[group as usize];
                let tree;
                (tree, known) = self.load_tree(zones, stored, (group, &empty), known, &mut lost).await?;
                snapshot.set_group(group, tree, Inodes::none(group, self.properties.inode_groups));
            }
        }
        for (snapshot, state) in snapshots.into_iter().zip(&self.state.snapshots) {
            metadata.snapshots.add(Snapshot::new(state.info.number, snapshot));
        }
        if self.goal == Goal::Serve {
            self.count(&mut metadata)?;
        }
        if self.goal == Goal::Salvage {
            self.mark_gone(&mut metadata, &mut lost);
        }
        self.replay(&mut metadata, &is_wanted, &mut lost)?;
        if self.goal == Goal::Salvage {
            let has_root = is_wanted(metadata.items.group_of(ROOT));
            let mut marks = salvage::MAX_MARKS;
            let mut replace = |metadata: &mut Metadata, version: &str| {
                let lines = salvage::replace_missing(metadata, has_root, &mut marks);
                lost.extend(lines.into_iter().map(|line| format!("{version}{line}")));
            };
            replace(&mut metadata, "");
            metadata.snapshots.visit_all(|snapshot| replace(snapshot, IN_SNAPSHOT));
            salvage::tell_unreadable(&metadata.items, None, &self.offline, "", &mut lost);
            let mut newer = &metadata.items;
            for snapshot in metadata.snapshots.newest_first() {
                salvage::tell_unreadable(&snapshot.items, Some(newer), &self.offline, IN_SNAPSHOT, &mut lost);
                newer = &snapshot.items;
            }
        }
        Ok((metadata, released, lost))
    }

    /// Marks extents in zones that were reset after the checkpoint, in all versions. A record after the
    /// checkpoint may contain their new place.
    fn mark_gone(&self, metadata: &mut Metadata, lost: &mut LostParts) {
        let mut mark = |items: &mut Forest| {
            let strange = salvage::mark_gone(items, &self.layout, &self.reset_since);
            lost.extend(strange);
        };
        mark(&mut metadata.items);
        metadata.snapshots.visit_all(|snapshot| mark(&mut snapshot.items));
    }

    /// Applies a change of a record in a salvage. A move may be of blocks whose old zone was reset after the
    /// move.
    fn salvage_change(metadata: &mut Metadata, change: &Change, at: ZoneBlock) -> Result<()> {
        metadata.apply(change, at, &mut Uncounted)?;
        if let Change::Move { inode, block, blocks, from } = *change {
            let from = ZoneBlock::new(from.zone.0 | GONE, from.block);
            metadata.apply(&Change::Move { inode, block, blocks, from }, at, &mut Uncounted)?;
        }
        Ok(())
    }

    /// Converts an error that a salvage tolerates ([`Goal::tolerate`]) into a loss and `None`.
    fn tolerate<T>(&self, outcome: Result<T>, lost: &mut LostParts) -> Result<Option<T>> {
        let mut lines = Vec::new();
        let found = self.goal.tolerate(outcome, &mut lines)?;
        lost.extend(lines);
        Ok(found)
    }

    /// Reads the tree of an inode group from the medium, sharing known pages; with [`Goal::Salvage`], the
    /// readable parts of a damaged one.
    async fn load_tree(
        &self,
        zones: &dyn Zones,
        stored: &Stored,
        (group, empty): (InodeGroup, &Forest),
        known: Known,
        lost: &mut LostParts,
    ) -> Result<(Tree, Known)> {
        let whole = self.load_whole_tree(zones, stored, (group, empty), known).await;
        match self.goal.tolerate(whole, &mut Vec::new())? {
            Some(whole) => Ok(whole),
            None => Ok((self.salvage_tree(zones, stored, (group, empty), lost).await?, Known::default())),
        }
    }

    /// Builds a tree from the items of the readable pages.
    async fn salvage_tree(
        &self,
        zones: &dyn Zones,
        stored: &Stored,
        (group, empty): (InodeGroup, &Forest),
        lost: &mut LostParts,
    ) -> Result<Tree> {
        let mut tree = empty.tree(group).clone();
        let mut reached = BTreeSet::new();
        let mut wanted: Vec<(ZoneBlock, u8, Key, Option<Key>)> =
            stored.root.iter().map(|root| (*root, stored.level, Key::MIN, None)).collect();
        while let Some((place, level, lower, upper)) = wanted.pop() {
            let decoded = match reached.insert(place) {
                true => self.single_page(zones, place, level, (lower, upper)).await,
                false => Err(Error::corrupt("it is named a second time")),
            };
            let what = || {
                let to = upper.map_or_else(|| "the end".to_owned(), |upper| format!("inode {}", upper.inode));
                format!("metadata of inodes {} to {to} in {place}", lower.inode)
            };
            let decoded = decoded.map_err(|error| error.in_context(what()));
            match self.tolerate(decoded, lost)? {
                None => {}
                Some(SinglePage::Branch(below)) => wanted.extend(
                    below
                        .into_iter()
                        .map(|(place, lower, upper)| (place, level.saturating_sub(1), lower, upper)),
                ),
                Some(SinglePage::Leaf(items)) => {
                    for (key, value) in items.iter().filter(|(key, _)| empty.is_of_group(key, group)) {
                        tree.put(key, value);
                    }
                }
            }
        }
        Ok(tree)
    }

    async fn single_page(
        &self,
        zones: &dyn Zones,
        place: ZoneBlock,
        level: u8,
        keys: (Key, Option<Key>),
    ) -> Result<SinglePage> {
        let mut bytes = page(zones, &self.layout, place).await?;
        let bytes = page_of(&mut bytes)?;
        unseal(bytes, &self.identity, place)?;
        SinglePage::decode(bytes, place, level, keys)
    }

    /// Reads the tree of an inode group from the medium, sharing known pages.
    async fn load_whole_tree(
        &self,
        zones: &dyn Zones,
        stored: &Stored,
        (group, forest): (InodeGroup, &Forest),
        known: Known,
    ) -> Result<(Tree, Known)> {
        let empty = forest.tree(group);
        let mut load = Load::beside_known(stored, empty, known)?;
        loop {
            let wanted = load.wanted().to_vec();
            if wanted.is_empty() {
                let (tree, known) = load.finish_known()?;
                forest.check_tree(&tree, group)?;
                return Ok((tree, known));
            }
            let mut at = 0;
            for places in wanted.chunks(READS) {
                let reads = places.iter().map(|place| page(zones, &self.layout, *place));
                for (place, bytes) in places.iter().zip(runtime::join_all(reads).await) {
                    let mut bytes = bytes?;
                    let bytes = page_of(&mut bytes)?;
                    unseal(bytes, &self.identity, *place)?;
                    load.supply(at, bytes)?;
                    at += 1;
                }
            }
        }
    }

    /// Counts the blocks of files and of pages at the checkpoint.
    fn count(&self, metadata: &mut Metadata) -> Result<()> {
        let (mut accounts, mut preallocated) = (self.pool.accounts(), 0);
        for (key, value) in metadata.items.items() {
            if let Some((inode, extent)) = own_blocks(&key, value)? {
                self.check_extent(inode, &extent)?;
                accounts.add_live(extent.place.zone.0, extent.blocks);
            } else if key.kind == kind::EXTENT && key.inode != 0 {
                let extent = Extent::decode(key, value)?;
                self.check_extent(key.inode, &extent)?;
                preallocated += if extent.is_preallocated() { u64::from(extent.blocks) } else { 0 };
            }
        }
        metadata.items.places().into_iter().for_each(|place| accounts.add_live(place.zone.0, 1));
        for (items, newer) in metadata.snapshots.with_newer(&metadata.items) {
            items.visit_own_places(newer, |place| accounts.add_live(place.zone.0, 1));
            for group in 0..items.groups() {
                visit_own_blocks(items.tree(group), newer, group, |inode, extent| {
                    self.check_extent(inode, &extent)?;
                    accounts.add_live(extent.place.zone.0, extent.blocks);
                    Ok(())
                })?;
            }
        }
        metadata.preallocated = preallocated;
        Ok(())
    }

    /// Refuses an extent outside of the zones.
    fn check_extent(&self, inode: InodeNumber, extent: &Extent) -> Result<()> {
        match extent.is_within(&self.layout) {
            true => Ok(()),
            false => Err(Error::corrupt(format!(
                "inode {inode} has {} blocks at {}, which are out of the bounds of the zones",
                extent.blocks, extent.place
            ))),
        }
    }

    /// Replays the records for the wanted inode groups. Only the shard of an inode group has records that
    /// change it.
    fn replay(
        &self,
        metadata: &mut Metadata,
        is_wanted: impl Fn(InodeGroup) -> bool,
        lost: &mut LostParts,
    ) -> Result<()> {
        let mut accounts = self.pool.accounts();
        for (shard, shown) in (0..).zip(&self.state.shown) {
            let user = user_stream(shard);
            let is_its = |record: &&Found| {
                let number = recovery::number_in(*record, user);
                record.header.stream == cleaner_stream(shard)
                    || number.is_some_and(|number| number > self.covered.of(user))
            };
            let mut records: Vec<&Found> = self.records.iter().filter(is_its).collect();
            records.sort_by_key(|record| recovery::replay_order(*record, user));
            let mut shown = *shown;
            if_broken!(ReplaysShown, shown = 0);
            for record in records {
                let mut at = ZoneBlock::new(record.header.zone, record.header.position + 1);
                // The checkpoint includes only changes of its own epoch.
                let is_of_checkpoint = record.header.epoch == self.state.epoch;
                let decoded = Change::decode_record(&record.meta, record.header.blocks);
                for Recorded { change, is_submitted } in self.tolerate(decoded, lost)?.unwrap_or_default() {
                    if is_submitted && is_of_checkpoint && shown > 0 {
                        shown -= 1;
                        continue;
                    }
                    let group = metadata.items.group_of(change.inode());
                    if is_wanted(group) && self.state.shard_of(group) == shard {
                        let applied = match self.goal {
                            Goal::Salvage => Self::salvage_change(metadata, &change, at),
                            Goal::Serve => metadata.apply(
                                &change,
                                at,
                                &mut Accounting { accounts: &mut accounts, clock: record.header.clock },
                            ),
                        };
                        self.tolerate(applied, lost)?;
                    }
                    at.block += change.blocks();
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a whole page.
fn page_of(buffer: &mut Buffer) -> Result<&mut [u8; PAGE]> {
    buffer.filled_mut().try_into().map_err(|_| Error::io("a page of the tree was read in part"))
}

/// Refuses a number for the next inode that doesn't belong to the inode group, or that isn't larger than
/// all used ones: a new file would replace an existing one.
fn check_next(tree: &Tree, group: InodeGroup, groups: u32, next: InodeNumber) -> Result<()> {
    let last =
        tree.last_before(&Key::new(FIRST_KEEPER - 1, u8::MAX, u64::MAX)).map_or(0, |(key, _)| key.inode);
    match next % u64::from(groups) == u64::from(group) && next > last.max(ROOT) && next < FIRST_KEEPER {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "the next inode of inode group {group} of {groups} would be {next}, and the last one is {last}"
        ))),
    }
}

async fn page(zones: &dyn Zones, layout: &Layout, place: ZoneBlock) -> Result<Buffer> {
    if place.zone.0 >= layout.zones || place.block >= layout.zone_blocks {
        return Err(Error::corrupt(format!("tree page in {place}: out of the bounds of the zones")));
    }
    let (outcome, buffer) =
        zones.read(layout.address(place.zone.0, place.block), Buffer::new(layout.block_bytes())).await;
    outcome.map_err(|error| recovery::gone(error, "a page of the tree"))?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_inode_of_a_group_is_one_that_it_has_not_had() {
        let mut items = Forest::new(4, &Released::new());
        items.put(&Key::new(9, kind::INODE, 0), &[1]);
        items.put(&Key::new(FIRST_KEEPER + 1, kind::SHARED, 0), &[1]);
        let next = |group: InodeGroup, next: InodeNumber| check_next(items.tree(group), group, 4, next);
        assert_eq!(
            (next(1, 13), next(1, 41), next(0, 4), next(1, 5).is_err()),
            (Ok(()), Ok(()), Ok(()), true)
        );
        assert!(next(1, 9).is_err() && next(1, 14).is_err(), "a used number, and one of another inode group");
        assert!(next(2, 1).is_err() && next(0, 0).is_err() && next(0, FIRST_KEEPER).is_err(), "invalid");
    }
}
