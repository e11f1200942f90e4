//! Check of a volume in a bucket: nothing is written, and its writer may continue.
//!
//! # Promises
//! - The chain of manifests is verified, and every piece that the zone table names exists with its length;
//!   with `data` every byte is verified as well.
//! - What the writer has deleted since isn't damage: each finding is looked for in a newer manifest.
//! - The first [`MAX_LISTED`] findings are described, and all are counted.
//!
//! Left to others: listings (`survey`), reads (`core::read`).

use super::Volume;
use super::survey::{Count, MAX_LISTED, Seen, Survey, survey};
use crate::compression::Size;
use crate::core::{Core, MAX_READ};
use crate::format::CHUNK;
use crate::looking::{Looked, look};
use crate::names::{Name, PieceName};
use block::{Buffer, Error, Result, ZoneIndex};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Pieces that are read at the same time, each with a buffer of [`MAX_READ`].
const READERS: usize = 16;

/// An object that is damaged or missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Key of the object; empty if the text has it.
    pub object: String,
    /// Damage, for operators.
    pub what: String,
    /// Zone whose bytes are lost; `None` for a manifest.
    pub zone: Option<u32>,
    /// Range of lost bytes in the zone.
    pub bytes: Range<u64>,
}

/// Result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Epoch and number of the manifest whose state was checked.
    pub manifest: Option<(u32, u64)>,
    /// Name of the writer of that manifest.
    pub writer: String,
    /// Zones of the volume.
    pub zones: u32,
    /// Pieces that exist with their length, and their bytes in the store.
    pub pieces: Count,
    /// Bytes of zones that were read and verified; `None` if no data was read.
    pub verified_bytes: Option<u64>,
    /// Damaged and missing objects, the first ones.
    pub damage: Vec<Damage>,
    /// Number of all damaged and missing objects.
    pub damaged_objects: u64,
    /// Bytes of zones that are lost.
    pub lost_bytes: u64,
    /// Objects that nothing needs.
    pub garbage: Count,
    /// Objects that no manifest names, of a writer that may still name them.
    pub unsettled: Count,
    /// Objects of other programs.
    pub foreign: Count,
}

impl CheckReport {
    /// Whether something is lost.
    pub fn is_damaged(&self) -> bool {
        self.damaged_objects > 0
    }

    /// Adds an object without these ranges of a zone, with a description if it is one of the first.
    fn add(&mut self, zone: Option<u32>, ranges: &[Range<u64>], describe: impl Fn() -> (String, String)) {
        self.damaged_objects += 1;
        for range in ranges {
            self.lost_bytes += range.end - range.start;
            if self.damage.len() < MAX_LISTED {
                let (object, what) = describe();
                self.damage.push(Damage { object, what, zone, bytes: range.clone() });
            }
        }
    }

    /// Adds a manifest, by its key; an empty one if the text has it.
    fn add_manifest(&mut self, object: &str, what: &str) {
        self.add(None, std::slice::from_ref(&NO_BYTES), || (object.to_owned(), what.to_owned()));
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let damage: Vec<Value> = self.damage.iter().map(Damage::to_json).collect();
        json!({
            "epoch": self.manifest.map(|(epoch, _)| epoch),
            "manifest": self.manifest.map(|(_, number)| number),
            "writer": self.writer,
            "zones": self.zones,
            "pieces": self.pieces.to_json(),
            "verified_bytes": self.verified_bytes,
            "is_damaged": self.is_damaged(),
            "damaged_objects": self.damaged_objects,
            "lost_bytes": self.lost_bytes,
            "damage": damage,
            "garbage": self.garbage.to_json(),
            "unsettled": self.unsettled.to_json(),
            "foreign": self.foreign.to_json(),
        })
    }
}

impl Damage {
    fn to_json(&self) -> Value {
        let place = self.zone.map(|_| [self.bytes.start, self.bytes.end]);
        json!({ "object": self.object, "what": self.what, "zone": self.zone, "bytes": place })
    }
}

/// Bytes of a zone that a damaged manifest has.
const NO_BYTES: Range<u64> = 0..0;

/// Damage that reading has found, of the first pieces: text, and the lost bytes relative to the piece.
type Damaged = BTreeMap<PieceName, (String, Vec<Range<u64>>)>;

/// Adds a range behind others, joined with the last one if it continues it.
fn add_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut().filter(|last| last.end == range.start) {
        Some(last) => last.end = range.end,
        None => ranges.push(range),
    }
}

impl Volume {
    /// Checks the volume; with `data` all bytes. `progress` gets the bytes that were read and their number,
    /// `listed` the number of listed objects.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no volume; errors of the store. Damage is in the report.
    pub async fn check(
        &self,
        data: bool,
        listed: &dyn Fn(u64),
        progress: &dyn Fn(u64, u64),
    ) -> Result<CheckReport> {
        let found = match data {
            true => self.look_to_read().await.map(|(looked, core)| (looked, Some(core))),
            false => self.look().await.map(|looked| (looked, None)),
        };
        let (looked, core) = match found {
            Err(error @ Error::Corrupt(_)) => return Ok(without_state(&error)),
            found => found?,
        };
        let mut survey = survey(&self.manifests, &looked, listed).await?;
        let mut report = report_of(&looked, &survey);
        let mut damaged = Damaged::new();
        if let Some(core) = core {
            let (good, found) = read_all(core, &looked, &mut survey.seen, progress).await?;
            (report.verified_bytes, damaged) = (Some(good), found);
        }
        // The last claim, which a write cache compares with what it knows.
        if let Err(error @ Error::Corrupt(_)) = self.manifests.get(looked.claimed, 0).await {
            report.add_manifest("", error.detail());
        }
        for epoch in &survey.claims {
            let object = self.manifests.key(*epoch, 0);
            report.add_manifest(&object, "it is missing; expected the claim of each epoch");
        }
        let mut lost = survey.seen.zones().flat_map(|zone| survey.seen.pieces(zone, false)).peekable();
        if damaged.is_empty() && lost.peek().is_none() {
            return Ok(report);
        }
        // What the writer has deleted since, or merged with others, isn't lost.
        let newer = look(&self.manifests).await?;
        let is_needed = |name: &PieceName| newer.as_ref().is_some_and(|newer| newer.table.has(name));
        let key = |name: PieceName| self.manifests.names.key(Name::Piece(name));
        for (name, (what, ranges)) in damaged.iter().filter(|(name, _)| is_needed(name)) {
            let of_zone = |range: &Range<u64>| name.offset + range.start..name.offset + range.end;
            let ranges: Vec<Range<u64>> = ranges.iter().map(of_zone).collect();
            report.add(Some(name.zone), &ranges, || (key(*name), what.clone()));
        }
        for (name, size) in lost.filter(|(name, _)| is_needed(name)) {
            let what = || match survey.lengths.get(&name) {
                Some(found) => {
                    format!("it has {found} bytes; expected {}", size.object(self.manifests.is_encrypted()))
                }
                None => "it is missing".to_owned(),
            };
            let range = name.offset..name.offset + size.length;
            report.add(Some(name.zone), std::slice::from_ref(&range), || (key(name), what()));
        }
        report.damage.sort_by_key(|damage| (damage.zone, damage.bytes.start));
        Ok(report)
    }
}

/// Reads and verifies all pieces that seem to be sound. Returns the number of good bytes, and what is
/// damaged; of more pieces than are listed it notes only that they aren't sound.
async fn read_all(
    core: Rc<Core>,
    looked: &Looked,
    seen: &mut Seen<'_>,
    progress: &dyn Fn(u64, u64),
) -> Result<(u64, Damaged)> {
    let zones = seen.zones();
    let reading = Reading {
        core,
        total: looked.table.stored().bytes,
        done: Cell::new(0),
        good: Cell::new(0),
        failure: RefCell::new(None),
        damaged: RefCell::default(),
        seen: RefCell::new(seen),
        progress,
    };
    let pieces = zones.flat_map(|zone| reading.seen.borrow().pieces(zone, true).collect::<Vec<_>>());
    let reads = pieces.map(|(name, size)| reading.read_piece(name, size));
    runtime::join_limited(READERS, reads).await;
    let damaged = reading.damaged.take();
    reading.failure.take().map_or(Ok((reading.good.get(), damaged)), Err)
}

/// Report of a volume whose manifests can't be read.
fn without_state(error: &Error) -> CheckReport {
    let mut report = CheckReport::default();
    report.add_manifest("", error.detail());
    report
}

fn report_of(looked: &Looked, survey: &Survey<'_>) -> CheckReport {
    CheckReport {
        manifest: Some((looked.manifest.epoch, looked.manifest.number)),
        writer: looked.manifest.writer.name.clone(),
        zones: looked.table.zones.len() as u32,
        pieces: survey.pieces,
        garbage: survey.garbage,
        unsettled: survey.unsettled,
        foreign: survey.foreign,
        ..CheckReport::default()
    }
}

/// Reads of all pieces.
struct Reading<'p, 't> {
    core: Rc<Core>,
    total: u64,
    done: Cell<u64>,
    good: Cell<u64>,
    /// Error of the store, after which nothing more is read.
    failure: RefCell<Option<Error>>,
    damaged: RefCell<Damaged>,
    seen: RefCell<&'p mut Seen<'t>>,
    progress: &'p dyn Fn(u64, u64),
}

impl Reading<'_, '_> {
    async fn read_piece(&self, name: PieceName, size: Size) {
        let (mut at, length) = (0, size.length);
        while at < length && self.failure.borrow().is_none() {
            let end = length.min(at + MAX_READ);
            if self.read(&name, size, at..end).await {
                for chunk in (at..end).step_by(CHUNK) {
                    self.read(&name, size, chunk..end.min(chunk + CHUNK as u64)).await;
                }
            }
            self.done.set(self.done.get() + (end - at));
            (self.progress)(self.done.get(), self.total);
            at = end;
        }
    }

    /// Reads a range. Damage of one chunk, or of a missing object, is noted; of several chunks it returns
    /// true, so that they are read one by one.
    async fn read(&self, name: &PieceName, size: Size, range: Range<u64>) -> bool {
        if self.failure.borrow().is_some() {
            return false;
        }
        let mut buffer = Buffer::new((range.end - range.start) as usize);
        let key = self.core.zone_key(ZoneIndex(name.zone), name.generation);
        let outcome = match &key {
            Ok(key) => self.core.read_stored(name, key.as_deref(), size, range.clone(), &mut buffer).await,
            Err(error) => Err(error.clone()),
        };
        let error = match outcome {
            Ok(()) => {
                self.good.set(self.good.get() + (range.end - range.start));
                return false;
            }
            Err(error @ (Error::Corrupt(_) | Error::NotFound(_))) => error,
            Err(error) => {
                self.failure.borrow_mut().get_or_insert(error);
                return false;
            }
        };
        let is_missing = matches!(error, Error::NotFound(_));
        if !is_missing && range.end - range.start > CHUNK as u64 {
            return true;
        }
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() >= MAX_LISTED && !damaged.contains_key(name) {
            self.seen.borrow_mut().set(name, false);
            return false;
        }
        let what = || if is_missing { "it is missing".to_owned() } else { error.detail().to_owned() };
        let (_, ranges) = damaged.entry(*name).or_insert_with(|| (what(), Vec::new()));
        add_range(ranges, range);
        false
    }
}
