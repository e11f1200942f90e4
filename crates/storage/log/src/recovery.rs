//! Opening a log device: loads the newest checkpoint, and replays all later records over it
//! ([`logkit::recovery`] finds them).

mod at_home;
mod batched;
mod load;
mod merge;
mod replay;

pub(crate) use at_home::demanded;
pub use at_home::{AtHome, FileUse, HomeFiles, HomeStorage, NewHome, OpenFile};
pub(crate) use load::{Loading, load};
pub(crate) use replay::Replay;

use crate::changes::Replayable;
use crate::core::{MapKeeper, State};
use crate::damaged::Damaged;
use crate::directory::{Directory, VersionEntry};
use crate::format::{OWNER, Own, VersionId};
use crate::layout::{BLOCK, Layout};
use crate::map;
use crate::salvage::{self, Lost, Places};
use crate::stripes::Stripes;
use crate::versions::{Version, Versions};
use batched::Batched;
use block::{Error, Result, ZoneIndex, ZoneReport, Zones};
use logkit::directory::ZoneEntry;
use logkit::newest_checkpoint::Checkpoints;
use logkit::recovery::{self, Goal, LostParts, Tail};
use logkit::root::{self, Root, RootWriter};
use logkit::{Parts, Sequences, Streams, ZonePool};
use std::rc::Rc;
use std::sync::Arc;

/// Result of opening, for operators.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Recovered {
    /// Whether the log had been closed cleanly.
    pub clean: bool,
    /// Number of records that were replayed.
    pub replayed: u64,
    /// Number of zones whose records were read.
    pub scanned_zones: u64,
    /// Number of valid records that aren't part of the log, because a record that they follow is missing.
    pub discarded: u64,
    /// Number of records with wrong data at the end of the log that were dropped: torn, or damaged before a
    /// later record named them as durable.
    pub torn: u64,
    /// Number of damaged data blocks of replayed records.
    pub damaged_blocks: u64,
    /// Number of pages of maps that were loaded.
    pub pages: u64,
}

/// Formats all these zones as an empty log, which destroys their contents.
///
/// # Errors
/// Errors of resetting and writing.
pub async fn format(
    zones: Rc<dyn Zones>,
    layout: Layout,
    blocks: u64,
    map: &str,
    home: Option<Rc<dyn HomeStorage>>,
) -> Result<State> {
    let (pool, identity) = recovery::format(&*zones, &layout).await?;
    let (home, map) = match home {
        None => (None, map::make_striped(map, blocks, layout.stripes)?),
        Some(storage) => {
            let (home, map) = storage.create(identity, layout.zones, blocks).await?;
            (Some(home), map)
        }
    };
    let head = Version::new(VersionEntry::head(blocks, runtime::wall_clock().as_secs()), map);
    // A new home has no transaction yet.
    let own = Own { home: home.as_ref().map(|_| 0), stripes: layout.stripes.in_root() }.encode();
    let parts = recovery::create(*layout, pool, identity, layout.stripes.streams(), OWNER, own);
    let versions = Versions { list: vec![head], next: VersionId::HEAD.0 + 1, ..Versions::default() };
    let damaged = Damaged::new(Vec::new(), &[], layout, parts.pool.clone());
    Ok(State { layout, zones, parts, versions, damaged, home, lost: None })
}

/// Finds the root of the log on these zones, and its layout.
///
/// # Errors
/// [`Error::Protocol`] if there is no log, or one of another owner; [`Error::Corrupt`] for a damaged one;
/// errors of reading.
pub async fn find(zones: &dyn Zones) -> Result<(root::FoundRoot, Layout)> {
    let found = root::find(zones).await?;
    let layout = layout_of(zones, &found.root)?;
    Ok((found, layout))
}

/// Returns the layout of the log that a root describes.
///
/// # Errors
/// [`Error::Protocol`] for a log of another owner; [`Error::Corrupt`] if the zones differ from those that
/// were formatted.
pub fn layout_of(zones: &dyn Zones, root: &Root) -> Result<Layout> {
    recovery::check_owner(root, OWNER)?;
    let stripes = Own::decode(&root.own)?.division()?;
    recovery::check_streams(root, stripes.streams())?;
    if root.block_size.bytes() != BLOCK {
        return Err(Error::corrupt(format!(
            "root of the log: block size of {} bytes; expected {BLOCK}",
            root.block_size
        )));
    }
    Ok(Layout::of(recovery::layout_of(zones, root)?)?.with_stripes(stripes))
}

/// Reads the directory that a root names: the zones and the versions. A log without a checkpoint has none.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged one; errors of reading.
pub async fn read_directory(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
) -> Result<(Vec<ZoneEntry>, Directory)> {
    decode_directory(&recovery::read_directory(zones, layout, root).await?)
}

fn decode_directory(bytes: &[u8]) -> Result<(Vec<ZoneEntry>, Directory)> {
    let (known, own) = logkit::directory::decode(bytes)?;
    Ok((known, Directory::decode(own)?))
}

/// Recovers the log on these zones without writing to them. The caller calls [`State::begin`] before the
/// first write. With [`Access::Inspect`] and [`Access::Salvage`] the home isn't written either, and the log
/// must not be written to. [`Access::Salvage`] continues after damage and returns a state that lists the
/// losses. `storage` is the map's home, which must be given exactly if the log has one.
///
/// # Errors
/// [`Error::Protocol`] if there is no log; [`Error::Corrupt`] for a damaged one; [`Error::Invalid`] if the
/// home is missing or unexpected; errors of reading.
pub async fn recover(
    zones: Rc<dyn Zones>,
    map: &str,
    storage: Option<Rc<dyn HomeStorage>>,
    access: Access,
) -> Result<(State, Recovered)> {
    let mut stages = Stages::begin();
    let goal = access.goal();
    let mut parts = LostParts::default();
    let mut checkpoint = Checkpoint::find(&*zones, storage, access, &mut parts).await?;
    let mut recovered = Recovered { clean: checkpoint.found.root.clean, ..Recovered::default() };
    stages.end("root and directory");
    let loaded = checkpoint.load(&*zones, map, goal, &mut parts, (&mut recovered, &mut stages)).await;
    let mut loaded = loaded.map_err(|error| access.advise(error))?;
    stages.end("the rest of the replay");
    let Checkpoint { found, root, layout, reports, reset_since, directory, pool, .. } = checkpoint;
    let kit_parts = Parts {
        layout: *layout,
        identity: root.identity,
        epoch: root.epoch,
        pool: Arc::new(pool),
        streams: Arc::new(Streams::new(&loaded.end, &root.covered)),
        clock: loaded.clock,
        checkpoints: Checkpoints::new(root, RootWriter::behind(&found)),
    };
    let mut damaged = Damaged::new(directory.damaged, &loaded.damaged, layout, kit_parts.pool.clone());
    if let Some(lost) = &mut loaded.lost {
        lost.append(parts);
        damaged.describe().into_iter().for_each(|line| lost.note(line));
        let places = Places::new(&layout, &reports, &reset_since, &loaded.records);
        salvage::check_places(&loaded.versions, &places, lost).await;
        salvage::note_zones(&kit_parts.pool, lost);
        damaged = damaged.with_unknown(lost.causes());
        lost.tell();
    }
    let Loaded { versions, home, lost, .. } = loaded;
    Ok((State { layout, zones, parts: kit_parts, versions, damaged, home, lost }, recovered))
}

/// The checkpoint from which a log is recovered.
struct Checkpoint {
    found: root::FoundRoot,
    /// Root from which replay begins: that of the map's home if there is one.
    root: Root,
    layout: Layout,
    reports: Vec<ZoneReport>,
    /// Zones that were reset since the checkpoint.
    reset_since: Vec<u32>,
    known: Vec<ZoneEntry>,
    directory: Directory,
    pool: ZonePool,
    /// The maps of a log whose map has a home, until they are loaded.
    at_home: Option<(Versions, Option<Rc<dyn MapKeeper>>)>,
}

/// The log after replay.
struct Loaded {
    records: Arc<Vec<Replayable>>,
    end: Sequences,
    versions: Versions,
    home: Option<Rc<dyn MapKeeper>>,
    damaged: Vec<(u32, u32)>,
    clock: u64,
    lost: Option<Lost>,
}

impl Checkpoint {
    async fn find(
        zones: &dyn Zones,
        storage: Option<Rc<dyn HomeStorage>>,
        access: Access,
        parts: &mut LostParts,
    ) -> Result<Self> {
        let goal = access.goal();
        let found = recovery::newest_checkpoint(zones, OWNER, goal, parts).await;
        let (found, directory_bytes) = found.map_err(|error| access.advise(error))?;
        let layout = layout_of(zones, &found.root)?;
        let mut root = found.root.clone();
        let reports = zones.report(ZoneIndex(0), layout.zones).await?;
        let (known, directory, pool, at_home) = match demanded(&root, storage)? {
            Some((storage, demanded)) => {
                let look_only = access != Access::Serve;
                let found = storage.open(&layout, &root, demanded, &reports, look_only).await;
                let found = found.map_err(|error| match goal {
                    Goal::Salvage => error.in_context(
                        "map_home: nothing can be salvaged without the map's home; restore it from a copy",
                    ),
                    Goal::Serve => error,
                })?;
                root = found.root;
                (found.known, found.directory, found.pool, Some((found.versions, found.home)))
            }
            None => {
                let decoded = decode_directory(&directory_bytes);
                let (known, directory) = decoded.map_err(|error| access.advise(error))?;
                let pool = recovery::known_zones(&layout, &root, &known, &reports);
                (known, directory, pool, None)
            }
        };
        let reset_since = recovery::reset_since(&known, &reports);
        if goal == Goal::Serve && at_home.is_none() {
            let checked = recovery::check_closed(zones, &layout, &root, &reset_since, &reports).await;
            checked.map_err(|error| access.advise(error))?;
        }
        // A newer root than a clean one may have been lost.
        root.clean &= goal == Goal::Serve;
        Ok(Checkpoint { found, root, layout, reports, reset_since, known, directory, pool, at_home })
    }

    /// Returns the records after the checkpoint in the order of replay, the end of each stream, and the
    /// damaged blocks of the records.
    async fn records(
        &self,
        zones: &dyn Zones,
        goal: Goal,
        parts: &mut LostParts,
        recovered: &mut Recovered,
    ) -> Result<(Arc<Vec<Replayable>>, Sequences, Vec<(u32, u32)>)> {
        let Checkpoint { root, layout, reports, known, pool, .. } = self;
        if root.clean {
            return Ok((Arc::default(), root.covered.clone(), Vec::new()));
        }
        let scans = recovery::scan_all(zones, layout, root, known, (reports, pool), goal).await?;
        recovered.scanned_zones = scans.zones;
        let mut tail = recovery::choose(root, scans, goal)?;
        parts.extend(std::mem::take(&mut tail.lost));
        tail.tell();
        recovered.note(&tail);
        let damaged = std::mem::take(&mut tail.damaged);
        let (records, end) = in_order_of_replay(tail, layout.stripes)?;
        Ok((records, end, damaged))
    }

    /// Loads the maps, replays the records over them, and sets the usage of each zone.
    async fn load(
        &mut self,
        zones: &dyn Zones,
        map: &str,
        goal: Goal,
        parts: &mut LostParts,
        (recovered, stages): (&mut Recovered, &mut Stages),
    ) -> Result<Loaded> {
        // The records are read before the maps, so that their changes can be applied to pages during loading.
        let (records, end, damaged) = self.records(zones, goal, parts, recovered).await?;
        stages.end(&format!("{} records in {} zones", records.len(), recovered.scanned_zones));
        let at_home = self.at_home.take();
        let Checkpoint { root, layout, reports, reset_since, directory, pool, .. } = self;
        let mut lost = (goal == Goal::Salvage).then(|| Lost::new(layout));
        let mut batched = None;
        if let (None, None, [only]) = (&at_home, &lost, directory.versions.as_slice()) {
            batched = Batched::of(&records, only.blocks, layout, root.clock).await?;
        }
        stages.end("sorting their changes");
        let batched_clock = batched.as_ref().map(|batched| batched.clock);
        let (mut versions, home) = match at_home {
            Some(known) => known,
            None => {
                let loading = Loading { map, batched, lost: lost.as_mut() };
                (load(zones, layout, directory, pool, loading, recovered).await?, None)
            }
        };
        stages.end(&format!("{} pages of maps", recovered.pages));
        let clock = match batched_clock {
            Some(clock) => clock,
            None => {
                let mut replay = Replay { versions: &mut versions, pool, layout, clock: root.clock };
                for record in records.iter() {
                    goal.tolerate(replay.run(std::slice::from_ref(record)), parts)?;
                }
                replay.clock
            }
        };
        recovery::forget_discarded(pool, layout, &end);
        recovery::settle(zones, pool, (reports, reset_since), layout, root.clean, goal).await?;
        Ok(Loaded { records, end, versions, home, damaged, clock, lost })
    }
}

/// Purpose of recovering a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Normal use: recovery may write to the map's home.
    Serve,
    /// Reading the log as in normal use, without any write.
    Inspect,
    /// Reading a damaged log: damage is listed, without any write.
    Salvage,
}

impl Access {
    fn goal(self) -> Goal {
        match self {
            Access::Serve | Access::Inspect => Goal::Serve,
            Access::Salvage => Goal::Salvage,
        }
    }

    /// Adds the advice to salvage the log to an error of opening it, unless it is being salvaged.
    fn advise(self, error: Error) -> Error {
        match self.goal() {
            Goal::Serve => salvage::advise(error),
            Goal::Salvage => error,
        }
    }
}

impl Recovered {
    /// Notes the result of scanning the records after the checkpoint.
    pub(crate) fn note<K>(&mut self, tail: &Tail<K>) {
        self.discarded = tail.discarded;
        self.torn = tail.dropped.iter().filter(|record| record.is_torn).count() as u64;
        self.damaged_blocks = tail.damaged.len() as u64;
        self.replayed = tail.records.len() as u64;
    }
}

impl State {
    /// Begins a new epoch of a recovered log ([`recovery::begin`]).
    ///
    /// # Errors
    /// Errors of finishing and writing.
    pub async fn begin(&mut self) -> Result<()> {
        let last = self.parts.streams.all_committed();
        self.parts.epoch = self.parts.checkpoints.begin_epoch(&*self.zones, &self.layout, &last).await?;
        Ok(())
    }
}

/// Sorts the records that are part of the log for replay. Also returns the end of each stream.
///
/// # Errors
/// [`Error::Corrupt`] for joint records that no version of this program writes.
pub(crate) fn in_order_of_replay(
    tail: Tail<Replayable>,
    stripes: Stripes,
) -> Result<(Arc<Vec<Replayable>>, Sequences)> {
    let mut records = tail.records;
    match stripes.shards() {
        1 => recovery::sort_for_replay(&mut records, crate::format::USER),
        _ => records = merge::merge(records, stripes)?,
    }
    Ok((Arc::new(records), tail.end))
}

/// Logs the duration of each stage of an opening, at level debug.
struct Stages(runtime::Instant);

impl Stages {
    fn begin() -> Self {
        Stages(runtime::now())
    }

    /// Ends a stage.
    fn end(&mut self, what: &str) {
        tracing::debug!("opening the log: {what}: {:.2} ms", self.0.elapsed().as_secs_f64() * 1e3);
        self.0 = runtime::now();
    }
}
