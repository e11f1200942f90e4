//! Checks of a file system, on closed zones or while it is open.
//!
//! The result is a list of problems, bounded in length. Damage of the medium is a problem in this list; only
//! a failed read is an error.
//!
//! Not part of this module: the rules for items of the tree (`items`), and repair.

mod items;
mod places;
pub mod scrub;
#[cfg(test)]
mod tests;

use crate::core::shards::shard_of;
use crate::core::{Core, STREAMS, Settings};
use crate::data::checksums::sums_in;
use crate::metadata::extents::Extent;
use crate::metadata::forest::Forest;
use crate::metadata::inode::InodeNumber;
use crate::metadata::versions::SnapshotInfo;
use crate::metadata::versions::SnapshotNumber;
use crate::metadata::{Inodes, Metadata};
use crate::names::path_of::{self, Whole};
use crate::recovery::{self, Recovered};
use crate::tree::{Key, Released};
use block::{Buffer, Error, Result, ZoneBlock, ZoneIndex, ZoneState, Zones};
use logkit::Layout;
use logkit::layout::ROOT_ZONES;
use logkit::pool::{CHECKPOINT_CLASS, ZonePool};
use logkit::record::{Identity, sum_of};
use logkit::recovery::Goal;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

/// Blocks of one read.
const BLOCKS_AT_ONCE: u32 = 256;

/// Scope of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Read all data of files, and compare it with its checksums.
    pub data: bool,
    /// Number of problems that are described; further ones are only counted.
    pub most_problems: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { data: false, most_problems: 100 }
    }
}

/// Kinds of problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The log, the tree or a record can't be read: nothing else was checked.
    Log,
    /// An item of the tree has an invalid key or value.
    Item,
    /// An item belongs to an inode that doesn't exist.
    Stray,
    /// An inode isn't reachable from the root, and isn't an orphan.
    Unreachable,
    /// The link count of an inode differs from its number of names.
    Links,
    /// A name refers to no inode or to one of another type, is a duplicate, or is stored under a wrong hash.
    Entry,
    /// The parent of a directory isn't the directory that has its name.
    Parent,
    /// A striped directory doesn't have its stripes, or a stripe has no directory.
    Stripe,
    /// Blocks of a file are outside of the zones, or after the write pointer of their zone.
    Extent,
    /// Two files, or a file and a page of metadata, have the same block of a zone.
    Overlap,
    /// The listed owners of shared blocks aren't those that have the blocks.
    Shared,
    /// The block count of an inode differs from its extents, or its size contradicts them.
    Blocks,
    /// The count of inodes, of preallocated blocks or of live blocks of a zone is wrong.
    Count,
    /// Data differs from its checksum, or can't be read.
    Data,
}

impl Kind {
    /// Name in lists of problems.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Item => "item",
            Kind::Stray => "stray",
            Kind::Unreachable => "unreachable",
            Kind::Links => "links",
            Kind::Entry => "entry",
            Kind::Parent => "parent",
            Kind::Stripe => "stripe",
            Kind::Extent => "extent",
            Kind::Overlap => "overlap",
            Kind::Shared => "shared",
            Kind::Blocks => "blocks",
            Kind::Count => "count",
            Kind::Data => "data",
        }
    }
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Kind of the problem.
    pub kind: Kind,
    /// Thing, place and values.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.kind.name(), self.detail)
    }
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The first problems.
    pub problems: Vec<Problem>,
    /// Number of further problems.
    pub further: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of orphans: inodes without names that were open.
    pub orphans: u64,
    /// Number of data blocks of files and of snapshots.
    pub blocks: u64,
    /// Number of snapshots.
    pub snapshots: u64,
    /// Number of zones of an open file system that aren't used until it is opened again, because they
    /// couldn't be read or finished.
    pub excluded_zones: u32,
    /// Text about the end of the log that recovery dropped, and about damage that it found. A dropped end
    /// isn't a problem: an unclean stop leaves one, and damage within the last seconds before an unclean stop
    /// looks the same.
    pub notes: Vec<String>,
    /// Number of blocks that were read and compared with their checksums.
    pub verified: u64,
    most: usize,
    /// Problems of files whose paths aren't looked up yet.
    unnamed: Vec<Unnamed>,
}

/// File that a problem concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Inode(InodeNumber),
    /// Block of a file, by its place in a zone. A shared block, or one that only snapshots have, may belong
    /// to another file now.
    Block {
        place: ZoneBlock,
        inode: InodeNumber,
        block: u64,
    },
}

impl Subject {
    /// Text for the subject; `file` is the text for the inode.
    fn show(self, file: &str) -> String {
        match self {
            Subject::Inode(_) => file.to_owned(),
            Subject::Block { block, .. } => format!("{file}, block {block}"),
        }
    }

    fn inode(self) -> InodeNumber {
        match self {
            Subject::Inode(inode) | Subject::Block { inode, .. } => inode,
        }
    }
}

/// A problem whose description lacks the path of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Unnamed {
    /// Index into the problems.
    problem: usize,
    subject: Subject,
    /// Description after the subject.
    rest: String,
}

impl Report {
    fn new(options: Options) -> Self {
        Report { most: options.most_problems, ..Report::default() }
    }

    /// Whether the check found no problems.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty() && self.further == 0
    }

    /// Whether a problem of this kind is among those that are described.
    pub fn has(&self, kind: Kind) -> bool {
        self.problems.iter().any(|problem| problem.kind == kind)
    }

    #[cold]
    fn note(&mut self, kind: Kind, detail: impl Into<String>) {
        match self.problems.len() < self.most {
            true => self.problems.push(Problem { kind, detail: detail.into() }),
            false => self.further += 1,
        }
    }

    /// Notes a problem of a file; `rest` follows the file in the description.
    #[cold]
    fn note_of(&mut self, kind: Kind, subject: Subject, rest: impl Into<String>) {
        let rest = rest.into();
        if self.problems.len() < self.most {
            self.unnamed.push(Unnamed { problem: self.problems.len(), subject, rest: rest.clone() });
        }
        self.note(kind, subject.show(&format!("inode {}", subject.inode())) + &rest);
    }

    /// Completes descriptions with the paths that files have in this version, and with the name of the
    /// snapshot if it is one.
    async fn name_files(&mut self, metadata: &Metadata, snapshot: Option<&str>) {
        if self.unnamed.is_empty() {
            return;
        }
        let places = self.unnamed.iter().filter_map(|it| match it.subject {
            Subject::Block { place, .. } => Some(place),
            Subject::Inode(_) => None,
        });
        let owners = path_of::owners_of(metadata, &places.collect());
        let found = |subject: Subject| match subject {
            Subject::Inode(_) => Some(subject),
            Subject::Block { place, .. } => {
                owners.get(&place).map(|&(inode, block)| Subject::Block { place, inode, block })
            }
        };
        let inodes: BTreeSet<_> =
            self.unnamed.iter().filter_map(|it| found(it.subject)).map(Subject::inode).collect();
        // Damaged names may make paths unavailable.
        let paths = path_of::paths_of(&Whole(metadata), &inodes).await.unwrap_or_default();
        let problems = &mut self.problems;
        self.unnamed.retain(|it| {
            let Some(subject) = found(it.subject) else { return true };
            let Some(path) = paths.get(&subject.inode()) else { return true };
            let of = snapshot.map_or_else(String::new, |name| format!("snapshot \"{name}\": "));
            let detail = of + &subject.show(&path_of::show(metadata, subject.inode(), path)) + &it.rest;
            problems[it.problem].detail = detail;
            false
        });
    }

    /// Adds the problems of a snapshot.
    fn add_snapshot(&mut self, info: &SnapshotInfo, own: Report) {
        for problem in own.problems {
            self.note(problem.kind, format!("snapshot \"{}\": {}", info.name, problem.detail));
        }
        self.further += own.further;
        self.snapshots += 1;
    }
}

/// Checks the file system on zones that are open nowhere else. Writes nothing.
///
/// # Errors
/// Errors of reading; [`Error::Protocol`] for zones without a file system or with one of another version.
pub async fn check(zones: &dyn Zones, options: Options) -> Result<Report> {
    let mut report = Report::new(options);
    let read = match recovery::read(zones, &Settings::default()).await {
        Ok(read) => read,
        Err(error @ (Error::Corrupt(_) | Error::Invalid(_))) => {
            report.note(Kind::Log, error.detail());
            // With this goal, unreadable parts become losses in the report instead of an error.
            let settings = Settings { goal: Goal::Salvage, ..Settings::default() };
            if let Ok(read) = recovery::read(zones, &settings).await {
                read.lost.lines.iter().for_each(|line| report.note(Kind::Log, line));
            }
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    let Recovered { opening, metadata, snapshots, released, .. } = read;
    report.notes.clone_from(&opening.notes);
    let layout = opening.layout;
    let mut extents = items::check(&metadata, &layout, &mut report);
    report.name_files(&metadata, None).await;
    report.unnamed.clear();
    for (info, snapshot) in snapshots.iter().zip(metadata.snapshots.all()) {
        let (found, mut own) = check_snapshot(&snapshot.metadata, &layout, report.most);
        own.name_files(&snapshot.metadata, None).await;
        report.add_snapshot(info, own);
        extents.extend(found);
    }
    let extents = united(extents);
    report.blocks = extents.iter().map(|it| u64::from(it.extent.blocks)).sum();
    // The checkpoint still counts pages as live that the recovered state has released.
    let mut pages = pages_of(&metadata);
    pages.extend(released.take());
    for extent in &opening.root.directory {
        pages.extend((0..extent.blocks).map(|at| ZoneBlock::new(extent.zone, extent.position + at)));
    }
    check_places(&extents, &pages, &mut report);
    check_counts(&extents, Some(&pages), &opening.pool, &mut report);
    check_written(zones, &layout, &extents, &mut report).await?;
    if options.data {
        check_data(zones, &layout, &opening.root.identity, &extents, &mut report).await?;
    }
    report.name_files(&metadata, None).await;
    for (info, snapshot) in snapshots.iter().zip(metadata.snapshots.all()).rev() {
        report.name_files(&snapshot.metadata, Some(&info.name)).await;
    }
    debug_assert_eq!(opening.root.covered.numbers().len(), STREAMS);
    Ok(report)
}

/// Returns the pages of all versions.
fn pages_of(metadata: &Metadata) -> Vec<ZoneBlock> {
    let mut pages = metadata.items.places();
    for (items, newer) in metadata.snapshots.with_newer(&metadata.items) {
        items.visit_own_places(newer, |place| pages.push(place));
    }
    pages
}

/// Checks a snapshot with a report of its own. Returns its extents that have blocks in zones.
fn check_snapshot(metadata: &Metadata, layout: &Layout, most_problems: usize) -> (Vec<Mapped>, Report) {
    let mut own = Report::new(Options { most_problems, ..Options::default() });
    let (_, extents, _) = items::check_version(metadata, layout, &mut own);
    (extents, own)
}

/// Merges extents that several versions of a file have at the same places, so that their blocks are counted
/// once.
fn united(mut extents: Vec<Mapped>) -> Vec<Mapped> {
    // Extents of one run have the same difference between the block of the file and the position in the zone.
    let key = |it: &Mapped| {
        let extent = &it.extent;
        let distance = extent.block.wrapping_sub(extent.place.block.into());
        (extent.place.zone, it.inode, distance, extent.place.block)
    };
    extents.sort_unstable_by_key(key);
    let mut all: Vec<Mapped> = Vec::with_capacity(extents.len());
    for next in extents {
        if let Some(last) = all.last_mut() {
            let ((zone, inode, distance, position), (other_zone, other_inode, other_distance, at)) =
                (key(last), key(&next));
            let is_alike = (zone, inode, distance) == (other_zone, other_inode, other_distance);
            let end = position.saturating_add(last.extent.blocks);
            if is_alike && at <= end {
                let end = end.max(at.saturating_add(next.extent.blocks));
                last.extent.blocks = end - position;
                continue;
            }
        }
        all.push(next);
    }
    all
}

/// Metadata of a shard, to be checked together with that of the other shards.
#[derive(Debug)]
pub(crate) struct Contents {
    items: Vec<(Key, Vec<u8>)>,
    inodes: Vec<Inodes>,
    preallocated: u64,
    pages: Vec<ZoneBlock>,
}

/// Returns this shard's metadata of a snapshot, or of the present version with `None`.
///
/// # Errors
/// ESTALE for a deleted snapshot.
pub(crate) fn contents(core: &Core, version: Option<SnapshotNumber>) -> Result<Contents> {
    let pages = match version {
        None => pages_of(&core.metadata.borrow()),
        Some(_) => Vec::new(),
    };
    core.in_version(version, |metadata| {
        Ok(Contents {
            items: metadata.items.items().map(|(key, value)| (key, value.to_vec())).collect(),
            inodes: (0..metadata.items.groups()).map(|group| metadata.inodes(group)).collect(),
            preallocated: metadata.preallocated,
            pages,
        })
    })
}

/// Returns the metadata of a version, one element for each shard.
///
/// # Errors
/// Errors of [`contents`].
pub(crate) async fn all_contents(core: &Core, version: Option<SnapshotNumber>) -> Result<Vec<Contents>> {
    let mut parts = Vec::new();
    for each in core.shards().all() {
        let contents = move |core: Rc<Core>| async move { contents(&core, version) };
        parts.push(each.with(contents).await?);
    }
    Ok(parts)
}

/// Checks the metadata of all shards of the open file system, and the live counts by which zones are
/// reset.
pub(crate) fn check_contents(
    core: &Core,
    parts: Vec<Contents>,
    snapshots: Vec<(SnapshotInfo, Vec<Contents>)>,
) -> Result<Report> {
    let mut report = Report::new(Options::default());
    let groups = core.metadata.borrow().items.groups();
    let mut metadata = Metadata::empty(Forest::new(groups, &Released::new()));
    let mut pages = Vec::new();
    for (index, contents) in (0..).zip(parts) {
        contents.items.iter().for_each(|(key, value)| metadata.put(key, value));
        metadata.preallocated += contents.preallocated;
        pages.extend(contents.pages);
        for (group, inodes) in
            (0..).zip(contents.inodes).filter(|(group, _)| shard_of(*group, core.totals().shards()) == index)
        {
            metadata.set_inodes(group, inodes);
        }
    }
    let mut extents = items::check(&metadata, &core.kit.layout, &mut report);
    for (info, parts) in snapshots {
        let mut metadata = Metadata::empty(Forest::new(groups, &Released::new()));
        for (key, value) in parts.iter().flat_map(|part| &part.items) {
            metadata.put(key, value);
        }
        let (found, own) = check_snapshot(&metadata, &core.kit.layout, report.most);
        report.add_snapshot(&info, own);
        extents.extend(found);
    }
    let extents = united(extents);
    report.blocks = extents.iter().map(|it| u64::from(it.extent.blocks)).sum();
    check_places(&extents, &pages, &mut report);
    check_counts(&extents, None, &core.kit.pool, &mut report);
    report.excluded_zones = core.kit.pool.damaged();
    Ok(report)
}

/// Blocks of a zone with the file that has them; for shared blocks, the file that they were written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    inode: u64,
    extent: Extent,
}

/// Looks for blocks with two owners that aren't shared.
fn check_places(extents: &[Mapped], pages: &[ZoneBlock], report: &mut Report) {
    // First block, number of blocks, inode: 0 for metadata.
    let files = extents.iter().map(|it| (it.extent.place, it.extent.blocks, it.inode));
    let mut all: Vec<_> = files.chain(pages.iter().map(|place| (*place, 1, 0))).collect();
    all.sort_unstable();
    let owner = |inode| if inode == 0 { "the metadata".to_owned() } else { format!("inode {inode}") };
    // Extent or page with the greatest end so far: end, inode.
    let mut farthest = (ZoneBlock::new(0, 0), 0);
    for (place, blocks, inode) in all {
        if place < farthest.0 {
            let (one, other) = if farthest.1 == 0 { (inode, farthest.1) } else { (farthest.1, inode) };
            let rest = format!(" has {place}, which belongs to {}, too", owner(other));
            match one {
                0 => report.note(Kind::Overlap, owner(0) + &rest),
                inode => report.note_of(Kind::Overlap, Subject::Inode(inode), rest),
            }
        }
        let end = ZoneBlock { block: place.block.saturating_add(blocks), ..place };
        if end > farthest.0 {
            farthest = (end, inode);
        }
    }
}

/// Compares the counts of live blocks with extents and pages; without `pages`, only those of data zones.
fn check_counts(extents: &[Mapped], pages: Option<&[ZoneBlock]>, pool: &ZonePool, report: &mut Report) {
    let mut live: BTreeMap<u32, u64> = BTreeMap::new();
    for Mapped { extent, .. } in extents {
        *live.entry(extent.place.zone.0).or_default() += u64::from(extent.blocks);
    }
    for page in pages.unwrap_or_default() {
        *live.entry(page.zone.0).or_default() += 1;
    }
    for (number, zone) in pool.list().into_iter().skip(ROOT_ZONES as usize) {
        if pages.is_none() && zone.class == CHECKPOINT_CLASS {
            continue;
        }
        let found = live.get(&number).copied().unwrap_or_default() + u64::from(zone.dying);
        if found != u64::from(zone.live) {
            report.note(
                Kind::Count,
                format!("zone {number}: {} live blocks are counted; expected {found}", zone.live),
            );
        }
    }
}

/// Looks for extents after the write pointers of their zones.
async fn check_written(
    zones: &dyn Zones,
    layout: &Layout,
    extents: &[Mapped],
    report: &mut Report,
) -> Result<()> {
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    for Mapped { inode, extent } in extents {
        let Some(zone) = reports.get(extent.place.zone.0 as usize) else { continue };
        let end = u64::from(extent.place.block) + u64::from(extent.blocks);
        let is_written = zone.state != ZoneState::Empty && end <= layout.blocks_in(zone.write_pointer);
        if !is_written && zone.state != ZoneState::Offline {
            report.note_of(
                Kind::Extent,
                Subject::Block { place: extent.place, inode: *inode, block: extent.block },
                format!(
                    " and the ones after it: {} blocks from {} on aren't written: the zone is {:?}, and written up to block {}",
                    extent.blocks,
                    extent.place,
                    zone.state,
                    layout.blocks_in(zone.write_pointer)
                ),
            );
        }
    }
    Ok(())
}

/// Reads and verifies all data, zone by zone.
async fn check_data(
    zones: &dyn Zones,
    layout: &Layout,
    identity: &Identity,
    extents: &[Mapped],
    report: &mut Report,
) -> Result<()> {
    let reports = zones.report(ZoneIndex(0), layout.zones).await?;
    let mut sorted = extents.to_vec();
    sorted.sort_unstable_by_key(|it| it.extent.place);
    for of_zone in sorted.chunk_by(|one, other| one.extent.place.zone == other.extent.place.zone) {
        let zone = of_zone[0].extent.place.zone.0;
        let Some(of) = reports.get(zone as usize) else { continue };
        let sums = match sums_in(zones, layout, identity, of).await {
            Ok(sums) => sums,
            Err(error) => {
                report.note(Kind::Data, format!("zone {zone} can't be read: {error}"));
                continue;
            }
        };
        for Mapped { inode, extent } in of_zone {
            let mut at = 0;
            while at < extent.blocks {
                let count = (extent.blocks - at).min(BLOCKS_AT_ONCE);
                let part = Extent {
                    block: extent.block + u64::from(at),
                    blocks: count,
                    place: extent.place.after(at),
                    is_shared: extent.is_shared,
                };
                check_part(zones, layout, *inode, &part, &sums, report).await;
                at += count;
            }
        }
    }
    Ok(())
}

async fn check_part(
    zones: &dyn Zones,
    layout: &Layout,
    inode: u64,
    part: &Extent,
    sums: &[u32],
    report: &mut Report,
) {
    let bytes = layout.block_bytes();
    let buffer = Buffer::new(part.blocks as usize * bytes);
    let (outcome, buffer) = zones.read(layout.address(part.place.zone.0, part.place.block), buffer).await;
    if let Err(error) = outcome {
        let subject = Subject::Block { place: part.place, inode, block: part.block };
        report.note_of(Kind::Data, subject, format!(" and {} after it: {error}", part.blocks - 1));
        return;
    }
    report.verified += u64::from(part.blocks);
    for (number, block) in buffer.filled().chunks_exact(bytes).enumerate() {
        let place = part.place.after(number as u32);
        if sums.get(place.block as usize) != Some(&sum_of(block)) {
            report.note_of(
                Kind::Data,
                Subject::Block { place, inode, block: part.block + number as u64 },
                format!(": wrong checksum in {place}"),
            );
        }
    }
}

/// Compares the counts in the metadata with its items. `inodes` holds, for each inode group, the number of
/// inodes found and the number after the largest one.
fn check_totals(metadata: &Metadata, inodes: &[Inodes], preallocated: u64, report: &mut Report) {
    for (group, there) in (0..).zip(inodes) {
        let known = metadata.inodes(group);
        if known.count != there.count {
            let (there, counted) = (there.count, known.count);
            report.note(
                Kind::Count,
                format!("inode group {group}: {counted} inodes are counted; expected {there}"),
            );
        }
        if known.next < there.next {
            let last = there.next - u64::from(metadata.items.groups());
            report.note(
                Kind::Count,
                format!("inode group {group}: the next inode number is {}; expected a number above {last}, that of an existing inode", known.next),
            );
        }
    }
    if metadata.preallocated != preallocated {
        let counted = metadata.preallocated;
        report
            .note(Kind::Count, format!("{counted} preallocated blocks are counted; expected {preallocated}"));
    }
}
