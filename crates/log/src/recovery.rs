//! Opening a log: the newest checkpoint, and over it every record behind it, in order, up to the first that is
//! missing.
//!
//! A record that is missing because the power went away before it was durable is the normal end of a log. A record that
//! had been durable (a later one, or the root, says so) and is missing or damaged is not: then data is lost that was
//! promised to be there, and the log isn't opened as if nothing had happened.

use crate::checkpoint::Durable;
use crate::commit::{Effect, apply};
use crate::core::State;
use crate::directory::{Directory, ZoneEntry};
use crate::format::{CHECKPOINT, CLEANER, Change, REPLAYED, USER, VersionId};
use crate::home::{self, MapHome, Medium};
use crate::layout::{Layout, ROOT_ZONES};
use crate::map::{self, PAGE_BLOCKS, Physical};
use crate::root::{self, Boundary, Root, RootWriter};
use crate::scan::{self, Found};
use crate::table::{CHECKPOINT_CLASS, Usage, ZoneTable};
use crate::versions::{PageSet, Version, Versions};
use block::{BlockSize, Buffer, Error, Result, ZoneIndex, ZoneReport, ZoneState, Zones};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use zones::record::{Identity, sum_of};

/// The size of a log's blocks, in bytes.
pub const BLOCK: u64 = 4096;
/// How many bytes of pages are read at a time, at most.
const RUN_BYTES: usize = 1 << 20;
/// Pages that are so far apart are still read together, in blocks.
const GAP: u32 = 8;
/// How many reads of pages, or zones, are on their way at a time.
const READS: usize = 8;

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
    let identity = Identity::draw();
    let (home, map) = match home {
        None => (None, map::make(map, blocks)?),
        Some(medium) => {
            let (home, map) = MapHome::create(medium, identity, layout.zones, blocks).await?;
            (Some(home), Arc::new(map) as Arc<dyn map::Map>)
        }
    };
    let head = Version {
        id: VersionId::HEAD,
        parent: None,
        writable: true,
        created: runtime::wall_clock().as_secs(),
        blocks,
        name: String::new(),
        is_leaving: false,
        map,
        dirty: PageSet::default(),
        writing: PageSet::default(),
        unsaved: 0,
        table: crate::directory::PageTable::default(),
    };
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
    let found = root::find(&*zones).await?;
    let mut root = found.root.clone();
    let layout = Layout::new(zones.geometry(), BlockSize::new(BLOCK)?)?;
    if (root.zone_blocks, root.zones, root.block_size)
        != (layout.zone_blocks, layout.zones, layout.block_size)
    {
        return Err(Error::corrupt(format!(
            "the log was made on {} zones of {} blocks, and here are {} of {}",
            root.zones, root.zone_blocks, layout.zones, layout.zone_blocks
        )));
    }
    let mut recovered = Recovered { clean: root.clean, ..Recovered::default() };
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    let (directory, table, mut versions, home);
    match at_home(&root, medium)? {
        Some((medium, demanded)) => {
            let found = home::recovery::open(&layout, &root, demanded, &reports, medium, look_only).await?;
            (root, directory, table, versions, home) =
                (found.root, found.directory, found.table, found.versions, found.home);
        }
        None => {
            directory = read_directory(&*zones, &layout, &root).await?;
            table = known_zones(&layout, &root, &directory, &reports);
            versions = load(&*zones, &layout, &directory, &table, map, &mut recovered).await?;
            home = None;
        }
    }
    let mut clock = root.clock;
    let mut last = [root.covered[0], root.covered[1], root.checkpoint];
    if !root.clean {
        let scans = scan_all(&*zones, &layout, &root, &directory, &reports, &table).await?;
        let mut replay = Replay { versions: &mut versions, table: &table, layout: &layout, clock };
        let end = replay.run(&root, scans, &mut recovered)?;
        clock = replay.clock;
        (last[0], last[1]) = (end[0], end[1]);
        // Records behind the end will never count: a zone needn't wait until their numbers are covered. They are given again,
        // and if nothing but this zone could be freed, they never would be.
        for (zone, _) in table.list() {
            table.change(zone, |entry| {
                entry.last.iter_mut().zip(end).for_each(|(last, end)| *last = (*last).min(end));
            });
        }
    }
    settle(&*zones, &table, &reports, &layout).await?;
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
    let is_begun = |report: &&ZoneReport| matches!(report.state, ZoneState::Open | ZoneState::Closed);
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
    state.root.write(&*state.zones, &state.layout, &root).await?;
    state.epoch = root.epoch;
    state.checkpoint.root = root;
    // Only now: a zone that is full is believed what its summary says, and of one that was begun the summary may be there
    // and records be lost. From here on the root tells which of them count.
    for zone in begun {
        state.zones.finish(zone).await?;
    }
    Ok(())
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
        let part = scan::read(zones, layout, zone, position, piece.blocks).await?;
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

/// Makes the maps of all versions from their pages, and counts what is live.
pub(crate) async fn load(
    zones: &dyn Zones,
    layout: &Layout,
    directory: &Directory,
    table: &ZoneTable,
    map: &str,
    recovered: &mut Recovered,
) -> Result<Versions> {
    let mut versions = Versions { next: directory.next_version, ..Versions::default() };
    let mut counted = Vec::new();
    for entry in &directory.versions {
        let parent =
            entry.parent.and_then(|parent| directory.versions.iter().find(|other| other.id == parent));
        let parent_map = entry.parent.and_then(|id| versions.get(id)).map(|parent| parent.map.clone());
        let map = match &parent_map {
            Some(parent) => {
                let map = parent.snapshot();
                map.grow(entry.blocks);
                map
            }
            None => map::make(map, entry.blocks)?,
        };
        let mut pages = Vec::new();
        for (page, place) in entry.table.iter() {
            if page >= entry.blocks.div_ceil(PAGE_BLOCKS) {
                return Err(Error::corrupt("a page of a map stands behind the end of its version"));
            }
            if parent.is_none_or(|parent| parent.table.get(page) != place) {
                pages.push((place.physical, page, place.sum));
                counted.push(place.physical);
            }
        }
        // What the parent has and the version has not.
        if let Some(parent) = parent {
            let gone = parent.table.iter().filter(|(page, _)| !entry.table.get(*page).physical.is_mapped());
            let zeros = vec![0; PAGE_BLOCKS as usize];
            gone.for_each(|(page, _)| map.load_page(page, &zeros));
        }
        pages.sort_unstable();
        recovered.pages += pages.len() as u64;
        let live = RefCell::new(vec![0; layout.zones as usize]);
        Loader { layout, live: &live, map: &*map, parent: parent_map.as_deref() }.load(zones, &pages).await?;
        for (zone, live) in live.take().into_iter().enumerate().filter(|(_, live)| *live > 0) {
            table.add_live(zone as u32, live);
        }
        versions.list.push(Version {
            id: entry.id,
            parent: entry.parent,
            writable: entry.writable,
            created: entry.created,
            blocks: entry.blocks,
            name: entry.name.clone(),
            is_leaving: false,
            map,
            dirty: PageSet::default(),
            writing: PageSet::default(),
            unsaved: 0,
            table: entry.table.clone(),
        });
    }
    // Clones of one snapshot may have the same page, and the snapshot another one.
    counted.sort_unstable();
    counted.dedup();
    counted.iter().for_each(|page: &Physical| table.add_live(layout.place(*page).0, 1));
    Ok(versions)
}

struct Loader<'a> {
    layout: &'a Layout,
    /// What is live in each zone.
    live: &'a RefCell<Vec<u32>>,
    map: &'a dyn map::Map,
    parent: Option<&'a dyn map::Map>,
}

impl Loader<'_> {
    /// Loads pages, sorted by where they are: neighbours are read together, and some are read while others are taken
    /// over.
    async fn load(&self, zones: &dyn Zones, pages: &[(Physical, u64, u32)]) -> Result<()> {
        let mut runs: Vec<&[(Physical, u64, u32)]> = Vec::new();
        let mut start = 0;
        for next in 1..=pages.len() {
            let ends = next == pages.len() || {
                let (first, before, here) = (pages[start].0, pages[next - 1].0, pages[next].0);
                here.0 - before.0 > GAP
                    || ((here.0 - first.0 + 1) as usize) << self.layout.block_size.shift() > RUN_BYTES
                    || self.layout.place(here).0 != self.layout.place(first).0
            };
            if ends {
                runs.push(&pages[start..next]);
                start = next;
            }
        }
        let next = Cell::new(0);
        let readers = (0..READS.min(runs.len())).map(|_| async {
            while let Some(run) = runs.get(next.replace(next.get() + 1)) {
                self.load_run(zones, run).await?;
            }
            Ok(())
        });
        runtime::join_all(readers).await.into_iter().collect()
    }

    async fn load_run(&self, zones: &dyn Zones, run: &[(Physical, u64, u32)]) -> Result<()> {
        let first = run[0].0;
        let (zone, position) = self.layout.place(first);
        let blocks = (run[run.len() - 1].0.0 - first.0 + 1) as usize;
        let buffer = Buffer::new(blocks << self.layout.block_size.shift());
        let (outcome, buffer) = zones.read(self.layout.address(zone, position), buffer).await;
        outcome.map_err(|error| error.in_context("reading pages of a map"))?;
        let mut entries = [0_u32; PAGE_BLOCKS as usize];
        for (physical, page, sum) in run {
            let at = ((physical.0 - first.0) as usize) << self.layout.block_size.shift();
            let bytes = &buffer.filled()[at..at + self.layout.block_bytes()];
            if sum_of(bytes) != *sum {
                let (zone, position) = self.layout.place(*physical);
                return Err(Error::corrupt(format!(
                    "page {page} of a map is damaged: zone {zone}, block {position}"
                )));
            }
            for (entry, bytes) in entries.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *entry = u32::from_le_bytes(*bytes);
            }
            self.take(*page, &entries)?;
        }
        Ok(())
    }

    fn take(&self, page: u64, entries: &[u32]) -> Result<()> {
        let mut shared = Vec::new();
        if let Some(parent) = self.parent {
            shared.resize(PAGE_BLOCKS as usize, 0);
            if page * PAGE_BLOCKS < parent.blocks() {
                parent.save_page(page, &mut shared);
            }
        }
        let most = self.layout.zones * self.layout.zone_blocks;
        if let Some(entry) = entries.iter().find(|entry| **entry >= most) {
            return Err(Error::corrupt(format!("page {page} of a map names block {entry}, of {most}")));
        }
        let mut live = self.live.borrow_mut();
        let is_own = |(number, entry): &(usize, &u32)| **entry != 0 && shared.get(*number) != Some(*entry);
        for (_, entry) in entries.iter().enumerate().filter(is_own) {
            live[self.layout.place(Physical(*entry)).0 as usize] += 1;
        }
        self.map.load_page(page, entries);
        Ok(())
    }
}

/// The records of all zones that may have some behind the checkpoint, and what they say was durable.
pub(crate) struct Scans {
    pub(crate) records: Vec<Found>,
    pub(crate) durable: [u64; 4],
}

pub(crate) async fn scan_all(
    zones: &dyn Zones,
    layout: &Layout,
    root: &Root,
    directory: &Directory,
    reports: &[ZoneReport],
    table: &ZoneTable,
) -> Result<Scans> {
    let mut by_zone: Vec<Option<&ZoneEntry>> = vec![None; reports.len()];
    for entry in &directory.zones {
        if let Some(known) = by_zone.get_mut(entry.zone as usize) {
            *known = Some(entry);
        }
    }
    let is_covered = |report: &&ZoneReport| {
        let known = by_zone[report.zone.0 as usize];
        let known = known.filter(|entry| entry.generation == report.generation && entry.full);
        // All its records are in the checkpoint.
        known.is_some_and(|entry| {
            report.state == ZoneState::Full
                && entry.last.iter().zip(root.covered).all(|(last, covered)| *last <= covered)
        })
    };
    let wanted: Vec<&ZoneReport> = reports
        .iter()
        .filter(|report| report.zone.0 >= ROOT_ZONES)
        .filter(|report| report.state != ZoneState::Empty)
        .filter(|report| !is_covered(report))
        .collect();
    for report in wanted.iter().filter(|report| report.state == ZoneState::Offline) {
        // Nobody knows what is in it: it may be the newest that was promised to be durable.
        scan::refuse_offline(zones, report.zone).await?;
    }
    let mut scans = Scans { records: Vec::new(), durable: [0; 4] };
    for batch in wanted.chunks(READS) {
        let known = |report: &ZoneReport| table.get(report.zone.0).committed;
        let reads =
            batch.iter().map(|report| scan::scan(zones, layout, &root.identity, report, known(report), true));
        for (report, scanned) in batch.iter().zip(runtime::join_all(reads).await) {
            let scanned = scanned?;
            for (durable, found) in scans.durable.iter_mut().zip(scanned.durable) {
                *durable = (*durable).max(found);
            }
            if let Some(first) = scanned.records.first() {
                table.change(report.zone.0, |entry| {
                    let written = scanned.records.iter().map(|record| record.header.blocks).sum::<u32>();
                    entry.end = scanned.end;
                    if scanned.first > 0 {
                        entry.written += written;
                        return;
                    }
                    entry.class = first.header.class;
                    entry.opened = first.header.clock;
                    entry.changed = first.header.clock;
                    entry.written = written;
                });
            }
            for record in scanned.records {
                let stream = usize::from(record.header.stream.0);
                if record.header.epoch > root.epoch {
                    return Err(Error::corrupt(format!(
                        "zone {} holds a record of epoch {}, and the newest root that can be read is of epoch {}: a root is \
                         damaged; restore the disk",
                        report.zone, record.header.epoch, root.epoch
                    )));
                }
                if stream >= REPLAYED || !root.admits(&record.header) {
                    continue;
                }
                table.change(report.zone.0, |entry| {
                    entry.last[stream] = entry.last[stream].max(record.header.sequence);
                });
                if record.header.sequence > root.covered[stream] {
                    scans.records.push(record);
                }
            }
        }
    }
    Ok(scans)
}

/// Puts records over the maps of a checkpoint.
pub(crate) struct Replay<'a> {
    pub(crate) versions: &'a mut Versions,
    pub(crate) table: &'a ZoneTable,
    pub(crate) layout: &'a Layout,
    pub(crate) clock: u64,
}

impl Replay<'_> {
    /// Replays records up to the first that is missing in each stream; returns the last of each.
    pub(crate) fn run(
        &mut self,
        root: &Root,
        scans: Scans,
        recovered: &mut Recovered,
    ) -> Result<[u64; REPLAYED]> {
        let mut end = root.covered;
        let mut counted: Vec<Found> = Vec::new();
        let mut records = scans.records;
        records.sort_by_key(|record| (record.header.stream, record.header.sequence));
        // A record whose append failed may be there twice, and is the same.
        records.dedup_by_key(|record| (record.header.stream, record.header.sequence));
        let found = records.len();
        for record in records {
            let stream = usize::from(record.header.stream.0);
            if record.header.sequence == end[stream] + 1 {
                end[stream] += 1;
                counted.push(record);
            }
        }
        for stream in [USER, CLEANER] {
            let (durable, end) = (scans.durable[usize::from(stream.0)], end[usize::from(stream.0)]);
            if durable > end {
                return Err(Error::corrupt(format!(
                    "record {} of stream {} is damaged or missing, and {durable} records had been durable: this is not \
                     the end of the log but damage in its middle; restore the disk, or look at it with `siltstone \
                     check`",
                    end + 1,
                    stream.0
                )));
            }
        }
        recovered.discarded = (found - counted.len()) as u64;
        recovered.replayed = counted.len() as u64;
        // Records of the cleaner stand behind the users' records that had committed when they were written; in another
        // life, numbers of records that were lost count again.
        counted.sort_by_key(|record| {
            let header = &record.header;
            match header.stream == USER {
                true => (header.epoch, header.sequence, 0, 0),
                false => (header.epoch, header.after, 1, header.sequence),
            }
        });
        for record in &counted {
            self.replay(record)?;
        }
        Ok(end)
    }

    /// Looks up what a record writes, all at once: single changes of a large map would wait for memory one by one.
    fn touch(&self, changes: &[Change]) {
        let mut blocks = SmallVec::<[u64; 256]>::new();
        let mut map = None;
        for change in changes {
            if let Change::Write { version, block, .. } = change
                && *map.get_or_insert(*version) == *version
            {
                blocks.push(*block);
            }
        }
        if let Some(version) = map.and_then(|map| self.versions.get(map)) {
            blocks.retain(|block| *block < version.blocks);
            let mut found = SmallVec::<[Physical; 256]>::from_elem(Physical::NONE, blocks.len());
            version.map.lookup_batch(&blocks, &mut found);
        }
    }

    fn replay(&mut self, record: &Found) -> Result<()> {
        let header = &record.header;
        let mut position = header.position + 1;
        let (table, layout, clock) = (self.table, self.layout, self.clock);
        let changes = Change::decode_all(&record.meta)?;
        self.touch(&changes);
        for change in changes {
            let physical = layout.physical(header.zone, position);
            position += change.data_blocks();
            if let Change::Write { count, .. } = &change {
                self.clock += u64::from(*count);
            }
            let died = |physical, blocks| table.remove_live(layout.place(physical).0, blocks, clock);
            let applied = apply(self.versions, &change, header.zone, physical, &mut |effect| match effect {
                Effect::Live(zone, blocks) => table.add_live(zone, blocks as u32),
                Effect::Dead(physical, blocks) => died(physical, blocks as u32),
            });
            // Nobody waits for anything else yet.
            while self.versions.give_up(u64::MAX, &mut |physical| died(physical, 1)) {}
            // What failed then, on the same state, fails again and changes nothing.
            match applied {
                Ok(())
                | Err(Error::NotFound(_) | Error::Invalid(_) | Error::AlreadyExists(_) | Error::Busy(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if position != header.position + 1 + header.blocks {
            return Err(Error::corrupt(format!(
                "record {} of stream {} has {} data blocks and names {}",
                header.sequence,
                header.stream.0,
                header.blocks,
                position - header.position - 1
            )));
        }
        Ok(())
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
    Ok(())
}

/// The stream of checkpoints has a number of its own, which nobody replays.
const _: () = assert!(CHECKPOINT.0 as usize == REPLAYED);
