//! The objects below a prefix, compared with the manifests of the volume.
//!
//! # Promises
//! - Garbage is what no state of the volume needs, nor ever will: not what its writer may still name.
//! - A piece or a claim counts as missing only after a request for it alone.
//! - Memory is a bit for each piece, and bounded lists of names.
//!
//! Left to others: deletions (`collect`), and whether a newer state needs what is missing (`check`).

use crate::bases;
use crate::compression::Size;
use crate::looking::Looked;
use crate::manifests::{MAX_PAGES, Manifests, READERS};
use crate::names::{Name, PieceName};
use crate::table::{Piece, Table};
use block::Result;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most names of garbage that are kept; the others are counted.
const MAX_NAMES: usize = 1 << 20;
/// Most objects that are described one by one; the others are counted.
pub(super) const MAX_LISTED: usize = 1000;
/// Missing pieces that are asked for together.
const BATCH: usize = 1024;

/// Number of objects, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes, as the store has them.
    pub bytes: u64,
}

impl Count {
    /// The count as JSON.
    pub fn to_json(self) -> Value {
        json!({ "objects": self.objects, "bytes": self.bytes })
    }

    fn add(&mut self, bytes: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + bytes);
    }
}

/// Objects below the prefix.
#[derive(Debug)]
pub(crate) struct Survey<'t> {
    /// Pieces that the zone table names, and that exist.
    pub pieces: Count,
    /// Manifests that are needed.
    pub manifests: Count,
    /// Objects that nothing needs, nor ever will.
    pub garbage: Count,
    /// Their names, up to a limit.
    pub names: Vec<Name>,
    /// Objects that no manifest names, of a writer that may still name or delete them.
    pub unsettled: Count,
    /// Objects of other programs.
    pub foreign: Count,
    /// Epochs whose claims are missing, the first ones.
    pub claims: Vec<u32>,
    /// Pieces of the table; those that aren't noted are missing or have another length.
    pub seen: Seen<'t>,
    /// Bytes of the objects that have another length, of the first ones.
    pub lengths: BTreeMap<PieceName, u64>,
}

/// Pieces of a table that are sound: one bit for each.
#[derive(Debug)]
pub(crate) struct Seen<'t> {
    table: &'t Table,
    /// Number of the first piece of each zone.
    first: Vec<usize>,
    bits: Vec<u64>,
}

impl<'t> Seen<'t> {
    fn new(table: &'t Table) -> Self {
        let mut count = 0;
        let mut first = Vec::with_capacity(table.zones.len());
        for zone in &table.zones {
            first.push(count);
            count += zone.pieces.len();
        }
        Seen { table, first, bits: vec![0; count.div_ceil(64)] }
    }

    fn number(&self, zone: u32, at: usize) -> usize {
        self.first[zone as usize] + at
    }

    /// Number of a piece, and its bytes; `None` if the table doesn't name it.
    fn find(&self, name: &PieceName) -> Option<(usize, Size)> {
        if !self.table.has(name) {
            return None;
        }
        let pieces = &self.table.zones[name.zone as usize].pieces;
        let at = pieces.binary_search_by_key(&name.offset, |piece| piece.offset).ok()?;
        Some((self.number(name.zone, at), pieces[at].size()))
    }

    /// Notes that a piece of the table is sound, or that it isn't.
    pub fn set(&mut self, name: &PieceName, is_sound: bool) {
        let Some((number, _)) = self.find(name) else { return };
        let bit = 1 << (number % 64);
        match is_sound {
            true => self.bits[number / 64] |= bit,
            false => self.bits[number / 64] &= !bit,
        }
    }

    fn is_sound(&self, number: usize) -> bool {
        self.bits[number / 64] & 1 << (number % 64) != 0
    }

    /// Pieces of a zone, with their bytes, that are sound, or that aren't.
    pub fn pieces(&self, zone: u32, are_sound: bool) -> impl Iterator<Item = (PieceName, Size)> + '_ {
        let sizes = self.table.zones[zone as usize].pieces.iter().map(Piece::size);
        let named = self.table.names(zone).zip(sizes).enumerate();
        named.filter_map(move |(at, found)| {
            (self.is_sound(self.number(zone, at)) == are_sound).then_some(found)
        })
    }

    /// Numbers of the zones.
    pub fn zones(&self) -> std::ops::Range<u32> {
        0..self.table.zones.len() as u32
    }
}

impl<'t> Survey<'t> {
    fn new(table: &'t Table) -> Self {
        let none = Count::default();
        Survey {
            pieces: none,
            manifests: none,
            garbage: none,
            names: Vec::new(),
            unsettled: none,
            foreign: none,
            claims: Vec::new(),
            seen: Seen::new(table),
            lengths: BTreeMap::new(),
        }
    }

    /// Notes that the object of a piece of the table has these bytes; `None` for none.
    fn note(&mut self, name: PieceName, expected: u64, found: Option<u64>) {
        let is_sound = found == Some(expected);
        self.seen.set(&name, is_sound);
        self.lengths.remove(&name);
        match found {
            Some(bytes) if is_sound => self.pieces.add(bytes),
            Some(bytes) if self.lengths.len() < MAX_LISTED => drop(self.lengths.insert(name, bytes)),
            _ => {}
        }
    }

    fn add_garbage(&mut self, name: Name, bytes: u64) {
        self.garbage.add(bytes);
        if self.names.len() < MAX_NAMES {
            self.names.push(name);
        }
    }
}

/// Lists all objects of a volume that was looked at, and compares them with its state. `progress` gets the
/// number of objects so far.
///
/// A piece that no manifest names is garbage if its writer names no further pieces: that of an earlier epoch,
/// or of one that has ended. Of manifests, claims and the seals at the end of an epoch are needed.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn survey<'t>(
    manifests: &Manifests,
    looked: &'t Looked,
    progress: &dyn Fn(u64),
) -> Result<Survey<'t>> {
    let (mut survey, mut count) = (Survey::new(&looked.table), 0);
    let state = looked.manifest.epoch;
    let is_over = |epoch: u32| epoch < state || (epoch == state && looked.is_final());
    let base = (state, looked.manifest.link);
    let mut epochs: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    let take = |key: &str, bytes: u64| {
        count += 1;
        if count % 1000 == 0 {
            progress(count);
        }
        let name = match manifests.names.parse(key) {
            None => return survey.foreign.add(bytes),
            Some(Name::Manifest { epoch, number }) => {
                return epochs.entry(epoch).or_default().push((number, bytes));
            }
            Some(Name::Base { epoch, number }) if (epoch, number) == base => {
                return survey.manifests.add(bytes);
            }
            // The next epoch has begun with a base, or nothing will link to it.
            Some(name @ Name::Base { epoch, .. }) if is_over(epoch) => {
                return survey.add_garbage(name, bytes);
            }
            Some(Name::Base { .. }) => return survey.unsettled.add(bytes),
            Some(Name::Piece(name)) => name,
        };
        match survey.seen.find(&name) {
            Some((_, size)) => survey.note(name, size.object(manifests.is_encrypted()), Some(bytes)),
            None if is_over(name.epoch) => survey.add_garbage(Name::Piece(name), bytes),
            None => survey.unsettled.add(bytes),
        }
    };
    manifests.list_all(manifests.names.prefix(), MAX_PAGES, take).await?;
    progress(count);
    for epoch in 1..=looked.claimed {
        let numbers = epochs.remove(&epoch).unwrap_or_default();
        survey_epoch(manifests, looked, (epoch, numbers), &mut survey).await?;
    }
    // Manifests of an epoch that was claimed since.
    epochs.into_values().flatten().for_each(|(_, bytes)| survey.manifests.add(bytes));
    confirm(manifests, &mut survey).await?;
    Ok(survey)
}

/// Adds the manifests of an epoch: their numbers, and their bytes.
async fn survey_epoch(
    manifests: &Manifests,
    looked: &Looked,
    (epoch, listed): (u32, Vec<(u64, u64)>),
    survey: &mut Survey<'_>,
) -> Result<()> {
    let numbers: Vec<u64> = listed.iter().map(|(number, _)| *number).collect();
    if numbers.first() != Some(&0) && survey.claims.len() < MAX_LISTED {
        survey.claims.push(epoch);
    }
    let state = &looked.manifest;
    let old = match epoch < state.epoch {
        true => manifests.old_of(epoch, &numbers).await?,
        false => Vec::new(),
    };
    let old = BTreeSet::from_iter(old);
    for (number, bytes) in listed {
        let name = Name::Manifest { epoch, number };
        match old.contains(&name) || bases::is_replaced(name, state.epoch, state.link) {
            false => survey.manifests.add(bytes),
            true if epoch < state.epoch || looked.is_final() => survey.add_garbage(name, bytes),
            // Its writer deletes it.
            true => survey.unsettled.add(bytes),
        }
    }
    Ok(())
}

/// Asks for each object that seems to be damaged: a listing may show an earlier moment.
async fn confirm(manifests: &Manifests, survey: &mut Survey<'_>) -> Result<()> {
    let zones = survey.seen.zones();
    let mut batch: Vec<(PieceName, Size)> = Vec::new();
    for zone in zones.clone() {
        batch.extend(survey.seen.pieces(zone, false));
        if batch.len() < BATCH && zone + 1 < zones.end {
            continue;
        }
        let heads = batch.iter().map(|(name, _)| length(manifests, Name::Piece(*name)));
        for ((name, size), found) in batch.iter().zip(runtime::join_limited(READERS, heads).await) {
            survey.note(*name, size.object(manifests.is_encrypted()), found?);
        }
        batch.clear();
    }
    let mut lost = Vec::new();
    for epoch in std::mem::take(&mut survey.claims) {
        if length(manifests, Name::Manifest { epoch, number: 0 }).await?.is_none() {
            lost.push(epoch);
        }
    }
    survey.claims = lost;
    Ok(())
}

async fn length(manifests: &Manifests, name: Name) -> Result<Option<u64>> {
    let found = manifests.store.head(&manifests.names.key(name)).await?;
    Ok(found.map(|found| found.length))
}
