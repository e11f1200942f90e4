//! Check of a whole log for damage. It writes nothing, and also works on a log that was not closed cleanly.
//!
//! Everything with a checksum is read: the roots, the directory of the newest checkpoint, the pages of the
//! maps, and every record of every zone with all its data, and the summary of each zone. The tail is replayed
//! as by recovery. Then the maps are compared with the records: a record must describe each mapped block as
//! that block, and its data must be good.
//!
//! A finding is *damage* if something is lost that the log still needs: a version maps the block, or the log
//! can't be opened in its state. Otherwise it is a *note*: the bytes are wrong and nothing is lost. Two cases
//! are indistinguishable from a power cut, and aren't reported unless something references them: bytes after
//! the last record of a zone that was never finished, and a root that was being written.
//!
//! If the map is at home, the home replaces the directory and the pages. Of the map's words only those that
//! lead to the leaves are checked, and then every block against the records.
//!
//! Besides the maps, which it loads like opening the log does, it holds a few windows of a zone in memory at
//! a time.
//!
//! One concept per module: `roots` the two root zones, `pages` the pages of the maps, `zone` the records of
//! one zone, `owners` the versions that need damaged blocks, `report` the result.

mod owners;
mod pages;
mod report;
pub(crate) mod roots;
mod window;
pub(crate) mod zone;

pub use report::{CheckReport, Checked, Finding, Hit};
pub(crate) use window::Window;

use crate::changes::Replayable;
use crate::directory::Directory;
use crate::format::VersionId;
use crate::layout::Layout;
use crate::recovery::{self, AtHome, HomeStorage, Recovered, Replay, in_order_of_replay};
use crate::versions::Versions;
use block::{DevicePart, Error, Result, ZoneBlock, ZoneIndex, ZoneReport, ZoneState, Zones, ZonesPart};
use logkit::directory::ZoneEntry;
use logkit::layout::ROOT_ZONES;
use logkit::record::{Header, Kind};
use logkit::recovery::Goal;
use logkit::root::Root;
use logkit::{Sequences, StreamId, ZonePool};
use owners::Owners;
use report::Findings;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// The map into which the log is loaded.
const MAP: &str = "radix";

/// Checks the log on a device, and writes nothing to it.
///
/// # Errors
/// Errors of [`check`] and of opening the zones.
pub async fn check_device(device: Arc<dyn DevicePart>, progress: &dyn Fn(u64, u64)) -> Result<CheckReport> {
    check(open_zones(device).await?, None, progress).await
}

/// Opens the zones of a log read-only.
///
/// # Errors
/// Errors of opening the zones.
pub async fn open_zones(device: Arc<dyn DevicePart>) -> Result<Arc<dyn ZonesPart>> {
    Ok(Arc::new(zones::OnDevice::open_read_only(device, Some(crate::layout::MAX_APPEND)).await?))
}

/// Checks the log on these zones, and writes nothing. The zones must have no other user meanwhile. A log
/// whose map is at home needs its home, opened read-only. `progress` gets the number of bytes read and their
/// total.
///
/// # Errors
/// [`Error::Protocol`] if there is no log, or one of another format version; [`Error::Corrupt`] if no root
/// can be read, and for a damaged home; [`Error::OutOfMemory`] if the maps don't fit.
pub async fn check(
    zones: Arc<dyn ZonesPart>,
    home: Option<Rc<dyn HomeStorage>>,
    progress: &dyn Fn(u64, u64),
) -> Result<CheckReport> {
    let handle = zones.open().await?;
    let (found, layout) = recovery::find(&*handle).await?;
    let mut root = found.root.clone();
    let reports = handle.report(ZoneIndex(0), layout.zones).await?;
    let mut at_home = None;
    if let Some((storage, demanded)) = recovery::demanded(&root, home)? {
        let opened = storage.open(&layout, &root, demanded, &reports, true).await?;
        // The home names the checkpoint that matches its map.
        root = opened.root.clone();
        at_home = Some(opened);
    }
    let mut check = Check {
        zones: &*handle,
        layout,
        reports: &reports,
        root: &root,
        findings: Findings::default(),
        checked: Checked::default(),
        recovered: Recovered { clean: root.clean, ..Recovered::default() },
    };
    roots::check(&mut check, &found).await?;
    let state = check.load(at_home).await?;
    let mut owners = Owners::new(&check, &state);
    check.walk(&state, &mut owners, progress).await?;
    owners.settle(&mut check, &state).await;
    check.count_live(&state, &owners);
    Ok(check.findings.into_report(&found, check.checked, &check.recovered))
}

/// Describes a stream for operators.
pub(crate) fn stream_name(stream: StreamId) -> &'static str {
    match stream.0 % 2 {
        _ if u32::from(stream.0) >= 2 * crate::stripes::MAX_SHARDS => "an unknown stream",
        0 => "users' writes",
        _ => "the cleaner",
    }
}

/// Describes the stream of a record, or the record's other purpose.
pub(crate) fn name_of(header: &Header) -> &'static str {
    match header.kind {
        Kind::Entries => stream_name(header.stream),
        Kind::Checkpoint => "checkpoints",
        Kind::Root => "roots",
        Kind::WriteCache | Kind::CacheTable => "a cache",
    }
}

/// State that all steps share.
struct Check<'a> {
    zones: &'a dyn Zones,
    layout: Layout,
    reports: &'a [ZoneReport],
    root: &'a Root,
    findings: Findings,
    checked: Checked,
    recovered: Recovered,
}

/// The log as far as it can be loaded, in the way that opening does.
struct Loaded {
    /// The versions; empty if the directory is damaged.
    versions: Versions,
    directory: Directory,
    pool: ZonePool,
    pages: pages::Pages,
    /// Last valid record of each stream.
    end: Sequences,
    /// Last record of each stream that a later one names as durable.
    durable: Sequences,
    /// The directory can't be read, so the blocks that the log needs are unknown.
    is_unknown: bool,
}

impl Check<'_> {
    /// Returns the records that the newest checkpoint covers.
    fn covered(&self) -> Sequences {
        self.root.covered.clone()
    }

    /// Loads the newest checkpoint and replays the records after it; after damage, continues with the rest.
    async fn load(&mut self, at_home: Option<AtHome>) -> Result<Loaded> {
        if let Some(AtHome { known, directory, pool, mut versions, .. }) = at_home {
            self.checked.versions = versions.list.len() as u64;
            let (mut end, mut durable) = (self.covered(), Sequences::default());
            if !self.root.clean {
                (end, durable) = self.replay(&known, &pool, &mut versions).await;
            }
            let pages = pages::Pages::default();
            return Ok(Loaded { versions, directory, pool, pages, end, durable, is_unknown: false });
        }
        let ((known, mut directory), is_unknown) =
            match recovery::read_directory(self.zones, &self.layout, self.root).await {
                Ok(directory) => (directory, false),
                Err(error @ Error::OutOfMemory(_)) => return Err(error),
                Err(error) => {
                    let place = self
                        .root
                        .directory
                        .first()
                        .map(|extent| ZoneBlock { zone: ZoneIndex(extent.zone), block: extent.position });
                    let what = format!("{}: the log can't be opened", error.detail());
                    self.findings.damage(Finding::at(place, 0, what));
                    ((Vec::new(), Directory::default()), true)
                }
            };
        let pages = pages::check(self, &mut directory).await;
        let mut root = self.root.clone();
        if is_unknown {
            root.directory.clear();
        }
        let pool = logkit::recovery::known_zones(&self.layout, &root, &known, self.reports);
        let recovered = &mut self.recovered;
        // The pages have been checked: unreadable ones were removed from the directory.
        let loading = recovery::Loading { map: MAP, batched: None, lost: None };
        let mut versions =
            recovery::load(self.zones, &self.layout, &directory, &pool, loading, recovered).await?;
        self.checked.versions = versions.list.len() as u64;
        let (mut end, mut durable) = (self.covered(), Sequences::default());
        if !self.root.clean && !is_unknown {
            (end, durable) = self.replay(&known, &pool, &mut versions).await;
        }
        Ok(Loaded { versions, directory, pool, pages, end, durable, is_unknown })
    }

    async fn replay(
        &mut self,
        known: &[ZoneEntry],
        pool: &ZonePool,
        versions: &mut Versions,
    ) -> (Sequences, Sequences) {
        let (zones, layout, root) = (self.zones, &self.layout, self.root);
        let scans = logkit::recovery::scan_all::<Replayable>(
            zones,
            layout,
            root,
            known,
            (self.reports, pool),
            Goal::Salvage,
        )
        .await;
        let mut scans = match scans {
            Ok(scans) => scans,
            Err(error) => {
                let what = format!("the records behind the checkpoint can't be read: {}", error.detail());
                self.findings.damage(Finding::at(None, 0, what));
                return (self.covered(), Sequences::default());
            }
        };
        let durable = std::mem::take(&mut scans.durable);
        for line in std::mem::take(&mut scans.lost) {
            let what = format!("the records behind the checkpoint can't be read: {line}");
            self.findings.damage(Finding::at(None, 0, what));
        }
        // Records that recovery refuses are reported here, and the others are replayed.
        self.recovered.scanned_zones = scans.zones;
        let numbers: Vec<(StreamId, u64)> =
            scans.records.iter().map(|record| (record.header.stream, record.header.sequence)).collect();
        let tail = logkit::recovery::choose(root, scans, Goal::Salvage).and_then(|tail| {
            self.recovered.note(&tail);
            // An unclean stop leaves such records; damage of the last ones is indistinguishable from them.
            for line in tail.dropped.first().into_iter().flat_map(|_| tail.describe()).take(1) {
                self.findings.note(Finding::at(None, 0, line));
            }
            let (records, end) = in_order_of_replay(tail, layout.stripes)?;
            // One by one, although it takes longer: the result verifies the batched replay of opening.
            let mut replay = Replay { versions, pool, layout, clock: root.clock };
            replay.run(&records).map(|()| end)
        });
        let end = match tail {
            Ok(end) => end,
            Err(error) => {
                let what = format!("the records behind the checkpoint can't be replayed: {}", error.detail());
                self.findings.damage(Finding::at(None, 0, what));
                return (self.covered(), durable);
            }
        };
        self.check_end(&numbers, &end, &durable);
        (end, durable)
    }

    /// Compares the end of each stream with its last record that had been durable; `numbers` are those of all
    /// records that were found.
    fn check_end(&mut self, numbers: &[(StreamId, u64)], end: &Sequences, durable: &Sequences) {
        for stream in (0..self.layout.stripes.streams() as u16).map(StreamId) {
            let (end, durable) = (end.of(stream), durable.of(stream));
            if durable > end {
                let behind = numbers.iter().filter(|(other, number)| *other == stream && *number > end);
                let behind: BTreeSet<u64> = behind.map(|(_, number)| *number).collect();
                let what = format!(
                    "record {} of {} is damaged or missing, and {durable} had been durable: the log can't be opened; {} good \
                     records after it aren't valid without it",
                    end + 1,
                    stream_name(stream),
                    behind.len()
                );
                self.findings.damage(Finding::at(None, 0, what));
            }
        }
    }

    /// Checks the zones one after the other.
    async fn walk(&mut self, state: &Loaded, owners: &mut Owners, progress: &dyn Fn(u64, u64)) -> Result<()> {
        let total = self.reports.iter().map(|report| report.write_pointer).sum();
        let mut done = 0;
        let mut newer = 0;
        progress(done, total);
        for report in self.reports {
            let zone = report.zone;
            if zone.0 >= ROOT_ZONES && !matches!(report.state, ZoneState::Empty | ZoneState::Offline) {
                let mut walk = zone::Walk::new(
                    self.zones,
                    &self.layout,
                    self.root,
                    report,
                    zone::Tail { end: state.end.clone(), durable: state.durable.clone() },
                );
                walk.on_read = Some(Box::new(move |bytes| progress((done + bytes).min(total), total)));
                let walked = walk.run().await;
                self.checked.zones += 1;
                self.checked.records += walked.records;
                self.checked.data_blocks += walked.data_blocks;
                self.checked.summaries += u64::from(walked.has_summary);
                newer += walked.newer;
                owners.walked(self, state, zone, walked).await;
            } else {
                owners.not_walked(self, state, report).await;
            }
            done += report.write_pointer;
            progress(done, total);
            runtime::yield_now().await;
        }
        if newer > 0 {
            self.findings.damage(Finding::at(
                None,
                0,
                format!(
                    "{newer} records are of a later life of the log than the newest root that can be read (life {}): a \
                     root is lost, and what they say with it",
                    self.root.epoch
                ),
            ));
        }
        Ok(())
    }

    /// Compares the maps' live counts with those of recovery.
    fn count_live(&mut self, state: &Loaded, owners: &Owners) {
        if state.is_unknown {
            return;
        }
        let mut live = owners.live.clone();
        let mut blocks: Vec<u32> = state
            .directory
            .versions
            .iter()
            .flat_map(|version| version.table.iter().map(|(_, place)| place.physical.0))
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        for block in blocks {
            live[(block / self.layout.zone_blocks) as usize] += 1;
        }
        for extent in &self.root.directory {
            live[extent.zone as usize] += extent.blocks;
        }
        for (zone, counted) in state.pool.list() {
            let expected = live[zone as usize];
            if zone < ROOT_ZONES || counted.live == expected {
                continue;
            }
            let what = format!("{expected} blocks are in use, and opening the log counts {}", counted.live);
            let finding = Finding::at(Some(ZoneBlock { zone: ZoneIndex(zone), block: 0 }), 0, what);
            match counted.live < expected {
                true => self.findings.damage(finding),
                false => self.findings.note(finding),
            }
        }
    }
}

/// Returns whether a version may map data that was written to `writer`: the version itself, or an older one
/// that it is a direct or indirect copy of. The copies in between may have been deleted, so the check can't
/// be stricter.
pub(crate) fn can_come_from(version: VersionId, writer: VersionId) -> bool {
    writer.0 > 0 && writer <= version
}
