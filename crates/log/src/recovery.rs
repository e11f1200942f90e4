//! Opening a log: the newest checkpoint, and over it every record behind it, in order, up to the first that is
//! missing.
//!
//! A record that is missing because the power went away before it was durable is the normal end of a log. A record that
//! had been durable (a later one, or the root, says so) and is missing or damaged is not: then data is lost that was
//! promised to be there, and the log isn't opened as if nothing had happened.

mod gathered;
mod load;
mod replay;
mod tail;

pub(crate) use load::load;
pub(crate) use replay::Replay;
pub(crate) use tail::{Tail, choose, scan_all};

use crate::checkpoint::Durable;
use crate::core::State;
use crate::directory::{Directory, VersionEntry, ZoneEntry};
use crate::format::{CHECKPOINT, REPLAYED, VersionId};
use crate::home::{self, MapHome, Medium};
use crate::layout::{Layout, ROOT_ZONES};
use crate::map;
use crate::root::{self, Boundary, Root, RootWriter};
use crate::scan;
use crate::table::{CHECKPOINT_CLASS, Usage, ZoneTable};
use crate::versions::{Version, Versions};
use block::{Error, Result, ZoneIndex, ZoneReport, ZoneState, Zones};
use gathered::Gathered;
use std::rc::Rc;
use std::sync::Arc;
use zones::record::{Identity, sum_of};

/// The size of a log's blocks, in bytes.
pub const BLOCK: u64 = 4096;

/// What opening found, for people.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Recovered {
    /// Whether the log had been closed cleanly.
    pub clean: bool,
    /// Records that were replayed.
    pub replayed: u64,
    /// Zones whose records were read.
    pub scanned_zones: u64,
    /// Valid records behind the end of what counts: they had been written and not acknowledged, or were lost with
    /// what had to come before them.
    pub discarded: u64,
    /// Pages of maps that were loaded.
    pub pages: u64,
}

/// Makes an empty log of all these zones. What was there is gone.
///
/// # Errors
/// What resetting and writing say.
pub async fn format(
    zones: Rc<dyn Zones>,
    layout: Layout,
    blocks: u64,
    map: &str,
    home: Option<Rc<dyn Medium>>,
) -> Result<State> {
    for report in zones.report(ZoneIndex(0), layout.zones).await? {
        if report.state != ZoneState::Empty {
            zones.reset(report.zone, block::EraseGuarantee::None).await?;
        }
    }
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    let table = ZoneTable::new(layout.zones);
    for report in &reports {
        match report.zone.0 < ROOT_ZONES {
            true => table.change(report.zone.0, |entry| entry.usage = Usage::Root),
            false => table.set_free(report.zone.0, report.generation),
        }
    }
    for zone in (0..ROOT_ZONES).map(ZoneIndex) {
        zones.reserve(zone, u64::from(root::ROOTS_AHEAD) << layout.block_size.shift()).await?;
    }
    let identity = Identity::draw();
    let (home, map) = match home {
        None => (None, map::make(map, blocks)?),
        Some(medium) => {
            let (home, map) = MapHome::create(medium, identity, layout.zones, blocks).await?;
            (Some(home), Arc::new(map) as Arc<dyn map::Map>)
        }
    };
    let head = Version::new(VersionEntry::head(blocks, runtime::wall_clock().as_secs()), map);
    let root = Root {
        identity,
        block_size: layout.block_size,
        zone_blocks: layout.zone_blocks,
        zones: layout.zones,
        epoch: 1,
        clean: false,
        covered: [0; REPLAYED],
        checkpoint: 0,
        clock: 0,
        boundaries: Vec::new(),
        directory_length: 0,
        directory: Vec::new(),
        home: home.as_ref().map(MapHome::sequence),
    };
    Ok(State {
        layout,
        zones,
        identity,
        epoch: 1,
        table,
        last: [0; 3],
        clock: 0,
        versions: Versions { list: vec![head], next: VersionId::HEAD.0 + 1, ..Versions::default() },
        root: RootWriter::first(),
        checkpoint: Durable::new(root),
        home,
    })
}

/// Finds the log on these zones and brings it to the state that it had, writing nothing there. [`begin`] must follow before
/// anything is written to it. With `look_only` nothing is written to the home either, and nothing may follow. A log whose map is at home needs that home, and another one takes none.
///
/// # Errors
/// [`Error::Protocol`] where there is no log, [`Error::Corrupt`] for a damaged one, [`Error::Invalid`] without the home or
/// with one too many; what reading says.
pub async fn recover(
    zones: Rc<dyn Zones>,
    map: &str,
    medium: Option<Rc<dyn Medium>>,
    look_only: bool,
) -> Result<(State, Recovered)> {
    let mut parts = Parts::begin();
    let found = root::find(&*zones).await?;
    let mut root = found.root.clone();
    let layout = crate::check::layout_of(&*zones, &root)?;
    let mut recovered = Recovered { clean: root.clean, ..Recovered::default() };
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    let (directory, table, mut known) = match at_home(&root, medium)? {
        Some((medium, demanded)) => {
            let found = home::recovery::open(&layout, &root, demanded, &reports, medium, look_only).await?;
            root = found.root;
            (found.directory, found.table, Some((found.versions, found.home)))
        }
        None => {
            let directory = read_directory(&*zones, &layout, &root).await?;
            let table = known_zones(&layout, &root, &directory, &reports);
            (directory, table, None)
        }
    };
    parts.end("root and directory");
    // First the records, then the maps: so pages can be changed by the records while they are loaded.
    let tail = match root.clean {
        true => Tail { records: Arc::default(), end: root.covered },
        false => {
            let scans = scan_all(&*zones, &layout, &root, &directory, &reports, &table).await?;
            choose(&root, scans, &mut recovered)?
        }
    };
    parts.end(&format!("{} records in {} zones", tail.records.len(), recovered.scanned_zones));
    let mut gathered = None;
    if let (None, [only]) = (&known, directory.versions.as_slice()) {
        gathered = Gathered::of(&tail.records, only.blocks, &layout, root.clock).await?;
    }
    parts.end("gathering what they change");
    let gathered_clock = gathered.as_ref().map(|gathered| gathered.clock);
    let (mut versions, home) = match known.take() {
        Some(known) => known,
        None => (load(&*zones, &layout, &directory, &table, map, gathered, &mut recovered).await?, None),
    };
    parts.end(&format!("{} pages of maps", recovered.pages));
    let clock = match gathered_clock {
        Some(clock) => clock,
        None => {
            let clock = root.clock;
            let mut replay = Replay { versions: &mut versions, table: &table, layout: &layout, clock };
            replay.run(&tail.records)?;
            replay.clock
        }
    };
    // Records behind the end will never count: a zone needn't wait until their numbers are covered. They are given again,
    // and if nothing but this zone could be freed, they never would be.
    for (zone, _) in table.list() {
        table.change(zone, |entry| {
            entry.last.iter_mut().zip(tail.end).for_each(|(last, end)| *last = (*last).min(end));
        });
    }
    let last = [tail.end[0], tail.end[1], root.checkpoint];
    settle(&*zones, &table, &reports, &layout).await?;
    parts.end("the rest of the replay");
    let state = State {
        layout,
        identity: root.identity,
        epoch: root.epoch,
        table,
        last,
        clock,
        versions,
        root: RootWriter::behind(&found),
        checkpoint: Durable::new(root),
        zones,
        home,
    };
    Ok((state, recovered))
}

/// Tells the log, at level debug, how long each part of an opening took.
struct Parts(runtime::Instant);

impl Parts {
    fn begin() -> Self {
        Parts(runtime::now())
    }

    /// This was done until now.
    fn end(&mut self, what: &str) {
        tracing::debug!("opening the log: {what}: {:.2} ms", self.0.elapsed().as_secs_f64() * 1e3);
        self.0 = runtime::now();
    }
}

/// What a log's map is kept on, and the oldest transaction that will do, where it is at home.
///
/// # Errors
/// [`Error::Invalid`] where the log's map is elsewhere than was said.
pub(crate) fn at_home(root: &Root, medium: Option<Rc<dyn Medium>>) -> Result<Option<(Rc<dyn Medium>, u64)>> {
    match (root.home, medium) {
        (Some(demanded), Some(medium)) => Ok(Some((medium, demanded))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::invalid(
            "this log's map is kept in a file of its own: say where with map_home = \"pmem:PATH\"",
        )),
        (None, Some(medium)) => Err(Error::invalid(format!(
            "this log keeps its map on its own disk, not in {}: leave map_home out, or make the log anew with it",
            medium.name()
        ))),
    }
}

/// Begins a new life of a log that was recovered: what it recovered is made durable, and what isn't part of it never
/// validates again.
///
/// # Errors
/// What finishing and writing say.
pub async fn begin(state: &mut State) -> Result<()> {
    let reports = state.zones.report(ZoneIndex(ROOT_ZONES), state.layout.zones).await?;
    let is_begun = |report: &&ZoneReport| report.state.is_active();
    let begun: Vec<ZoneIndex> = reports.iter().filter(is_begun).map(|report| report.zone).collect();
    state.zones.flush(&begun).await?;
    let old = &state.checkpoint.root;
    let mut boundaries = old.boundaries.clone();
    let last = [state.last[0], state.last[1]];
    // A life that wrote nothing needs no mention: so the list doesn't grow while a log can't be opened for longer.
    if boundaries.last().is_none_or(|before| before.last != last) {
        boundaries.push(Boundary { epoch: old.epoch, last });
    }
    let root = Root { epoch: old.epoch + 1, clean: false, boundaries, ..old.clone() };
    match state.root.prepare(&*state.zones, &state.layout).await {
        // There may be space for one root.
        Ok(()) | Err(Error::NoSpace(_)) => {}
        failed => failed?,
    }
    state.root.write(&*state.zones, &state.layout, &root).await?;
    state.epoch = root.epoch;
    state.checkpoint.root = root;
    // Only now: a zone that is full is believed what its summary says, and of one that was begun the summary may be there
    // and records be lost. From here on the root tells which of them count.
    let finishes = begun.into_iter().map(|zone| state.zones.finish(zone));
    runtime::join_all(finishes).await.into_iter().collect()
}

/// What the checkpoint knows of each zone; live are the blocks of the directory.
pub(crate) fn known_zones(
    layout: &Layout,
    root: &Root,
    directory: &Directory,
    reports: &[ZoneReport],
) -> ZoneTable {
    let table = ZoneTable::new(layout.zones);
    for report in reports {
        table.change(report.zone.0, |entry| {
            entry.generation = report.generation;
            entry.usage = Usage::Open;
        });
    }
    for entry in &directory.zones {
        if entry.zone < layout.zones && table.get(entry.zone).generation == entry.generation {
            restore(&table, entry);
        }
    }
    for piece in &root.directory {
        table.change(layout.place(piece.physical).0, |entry| entry.class = CHECKPOINT_CLASS);
        table.add_live(layout.place(piece.physical).0, piece.blocks);
    }
    table
}

fn restore(table: &ZoneTable, entry: &ZoneEntry) {
    table.change(entry.zone, |zone| {
        zone.class = entry.class;
        zone.written = entry.written;
        zone.opened = entry.opened;
        zone.changed = entry.changed;
        zone.last = entry.last;
    });
}

/// Reads the directory that a root names.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged one; what reading says.
pub async fn read_directory(zones: &dyn Zones, layout: &Layout, root: &Root) -> Result<Directory> {
    let mut bytes = Vec::new();
    for piece in &root.directory {
        let (zone, position) = layout.place(piece.physical);
        if zone >= layout.zones || position.saturating_add(piece.blocks) > layout.zone_blocks {
            return Err(Error::corrupt("the root names a directory outside the log"));
        }
        let part = scan::read(zones, layout, zone, position, piece.blocks).await;
        let part = part.map_err(|error| gone(error, "the directory"))?;
        if sum_of(&part) != piece.sum {
            return Err(Error::corrupt(format!(
                "the directory of the newest checkpoint is damaged in zone {zone}, block {position}"
            )));
        }
        bytes.extend_from_slice(&part);
    }
    if root.directory_length > bytes.len() as u64 {
        return Err(Error::corrupt("the directory of the newest checkpoint is shorter than the root says"));
    }
    bytes.truncate(root.directory_length as usize);
    Directory::decode(&bytes)
}

/// The error for a part of a checkpoint that can't be read. Zones refuse to read what was never appended: there, the zone
/// has been used again since.
fn gone(error: Error, what: &str) -> Error {
    match error {
        Error::Invalid(_) => Error::corrupt(format!(
            "{what} of the newest checkpoint whose root can be read isn't there any more: a newer root is damaged; restore \
             the disk ({})",
            error.detail()
        )),
        error => error.in_context(format!("reading {what} of the newest checkpoint")),
    }
}

/// Decides what each zone is, once all counts are right.
async fn settle(zones: &dyn Zones, table: &ZoneTable, reports: &[ZoneReport], layout: &Layout) -> Result<()> {
    table.recount();
    for report in reports {
        let zone = report.zone.0;
        let entry = table.get(zone);
        if zone < ROOT_ZONES {
            table.change(zone, |entry| entry.usage = Usage::Root);
            continue;
        }
        if report.state == ZoneState::Empty || report.state == ZoneState::Offline {
            if entry.live > 0 && report.state == ZoneState::Offline {
                scan::refuse_offline(zones, report.zone).await?;
            }
            if entry.live > 0 {
                return Err(Error::corrupt(format!(
                    "{} live blocks lie in zone {zone}, which is {:?}",
                    entry.live, report.state
                )));
            }
            match report.state {
                ZoneState::Empty => table.set_free(zone, report.generation),
                _ => table.change(zone, |entry| entry.usage = Usage::Damaged),
            }
            continue;
        }
        if entry.end == 0 {
            let end = (report.write_pointer >> layout.block_size.shift()) as u32;
            table.change(zone, |entry| entry.end = end);
        }
        table.set_full(zone);
    }
    table.order_free();
    Ok(())
}

/// The stream of checkpoints has a number of its own, which nobody replays.
const _: () = assert!(CHECKPOINT.0 as usize == REPLAYED);
