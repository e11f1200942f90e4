//! The objects below a prefix, compared with the manifests of the volume.

use crate::core::old_manifests;
use crate::format::object_length;
use crate::looking::Looked;
use crate::manifests::{Manifests, READERS};
use crate::names::{Name, PieceName};
use crate::table::Table;
use block::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Most pages of a listing: a thousand million objects.
const MAX_PAGES: usize = 1 << 20;
/// Most names of garbage that are kept; the others are counted.
const MAX_NAMES: usize = 1 << 20;

/// Attempts to find the end of an epoch whose manifests are being deleted.
const ATTEMPTS: u32 = 4;

/// Number of objects, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of objects.
    pub objects: u64,
    /// Their bytes, as the store has them.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + bytes);
    }
}

/// An object that the state needs, and that isn't as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub name: Name,
    /// Bytes that a piece should have; `None` for a claim.
    pub expected: Option<u64>,
    /// Bytes that it has; `None` for a missing object.
    pub found: Option<u64>,
}

/// Objects below the prefix.
#[derive(Debug, Default)]
pub(crate) struct Survey {
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
    pub suspects: Vec<Suspect>,
}

/// Pieces of a table that a listing has shown.
struct Seen<'t> {
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

    /// Notes a piece, and returns its bytes of data; `None` if the table doesn't name it.
    fn note(&mut self, name: &PieceName) -> Option<u64> {
        if !self.table.has(name) {
            return None;
        }
        let pieces = &self.table.zones[name.zone as usize].pieces;
        let at = pieces.binary_search_by_key(&name.offset, |piece| piece.offset).ok()?;
        let number = self.number(name.zone, at);
        self.bits[number / 64] |= 1 << (number % 64);
        Some(pieces[at].length.into())
    }

    /// Pieces that weren't noted, with their bytes of data.
    fn missing(&self) -> impl Iterator<Item = (PieceName, u64)> + '_ {
        (0..self.table.zones.len() as u32).flat_map(move |zone| {
            let lengths = self.table.zones[zone as usize].pieces.iter().map(|piece| u64::from(piece.length));
            let named = self.table.names(zone).zip(lengths).enumerate();
            named.filter_map(move |(at, found)| {
                let number = self.number(zone, at);
                (self.bits[number / 64] & 1 << (number % 64) == 0).then_some(found)
            })
        })
    }
}

/// Passes on keys and lengths of the objects that begin with a prefix.
async fn list(manifests: &Manifests, prefix: &str, mut take: impl FnMut(&str, u64)) -> Result<()> {
    let mut from = None;
    for _ in 0..MAX_PAGES {
        let page = manifests.store.list(prefix, from.as_deref()).await?;
        page.objects.iter().for_each(|listed| take(&listed.key, listed.length));
        from = page.next;
        if from.is_none() {
            return Ok(());
        }
    }
    Err(Error::protocol(format!(
        "object store \"{}\": the listing of {prefix} has more than {MAX_PAGES} pages; expected an end",
        manifests.store.name()
    )))
}

impl Survey {
    fn waste(&mut self, name: Name, bytes: u64) {
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
pub(crate) async fn survey(manifests: &Manifests, looked: &Looked, progress: &dyn Fn(u64)) -> Result<Survey> {
    let (mut survey, mut seen, mut count) = (Survey::default(), Seen::new(&looked.table), 0);
    let state = looked.manifest.epoch;
    let is_over = |epoch: u32| epoch < state || (epoch == state && looked.is_final());
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
            Some(Name::Piece(name)) => name,
        };
        match seen.note(&name).map(object_length) {
            Some(expected) if expected == bytes => survey.pieces.add(bytes),
            Some(expected) => survey.suspects.push(Suspect {
                name: Name::Piece(name),
                expected: Some(expected),
                found: Some(bytes),
            }),
            None if is_over(name.epoch) => survey.waste(Name::Piece(name), bytes),
            None => survey.unsettled.add(bytes),
        }
    };
    list(manifests, manifests.names.prefix(), take).await?;
    progress(count);
    for (name, length) in seen.missing() {
        let expected = Some(object_length(length));
        survey.suspects.push(Suspect { name: Name::Piece(name), expected, found: None });
    }
    for epoch in 1..=looked.claimed {
        let numbers = epochs.remove(&epoch).unwrap_or_default();
        survey_epoch(manifests, looked, (epoch, numbers), &mut survey).await?;
    }
    // Manifests of an epoch that was claimed since.
    epochs.into_values().flatten().for_each(|(_, bytes)| survey.manifests.add(bytes));
    survey.suspects = confirmed(manifests, std::mem::take(&mut survey.suspects)).await?;
    Ok(survey)
}

/// Adds the manifests of an epoch: their numbers, and their bytes.
async fn survey_epoch(
    manifests: &Manifests,
    looked: &Looked,
    (epoch, listed): (u32, Vec<(u64, u64)>),
    survey: &mut Survey,
) -> Result<()> {
    let numbers: Vec<u64> = listed.iter().map(|(number, _)| *number).collect();
    if numbers.first() != Some(&0) {
        survey.suspects.push(Suspect {
            name: Name::Manifest { epoch, number: 0 },
            expected: None,
            found: None,
        });
    }
    let state = &looked.manifest;
    let is_old: Box<dyn Fn(u64) -> bool> = match epoch {
        _ if epoch < state.epoch => {
            let old = old_of(manifests, epoch, numbers).await?;
            Box::new(move |number| old.contains(&Name::Manifest { epoch, number }))
        }
        _ if epoch == state.epoch => Box::new(|number| (1..state.link).contains(&number)),
        _ => Box::new(|_| false),
    };
    for (number, bytes) in listed {
        match is_old(number) {
            false => survey.manifests.add(bytes),
            true if epoch < state.epoch || looked.is_final() => {
                survey.waste(Name::Manifest { epoch, number }, bytes);
            }
            // Its writer deletes it.
            true => survey.unsettled.add(bytes),
        }
    }
    Ok(())
}

/// Manifests of an earlier epoch that nothing needs. The next writer deletes them, maybe meanwhile.
async fn old_of(manifests: &Manifests, epoch: u32, listed: Vec<u64>) -> Result<BTreeSet<Name>> {
    let (mut numbers, mut attempt) = (listed, 1);
    loop {
        match old_manifests(manifests, epoch, &numbers).await {
            Err(Error::Corrupt(_)) if attempt < ATTEMPTS => numbers = manifests.numbers(epoch).await?,
            old => return old.map(BTreeSet::from_iter),
        }
        attempt += 1;
    }
}

/// Asks for each suspect: a listing may show an earlier moment.
async fn confirmed(manifests: &Manifests, suspects: Vec<Suspect>) -> Result<Vec<Suspect>> {
    let asked = suspects.into_iter().map(async |suspect| {
        let found = manifests.store.head(&manifests.names.key(suspect.name)).await?;
        let found = found.map(|found| found.length);
        let is_sound = found.is_some() && suspect.expected.is_none_or(|expected| found == Some(expected));
        Ok::<_, Error>((!is_sound).then_some(Suspect { found, ..suspect }))
    });
    let asked = runtime::join_limited(READERS, asked).await.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(asked.into_iter().flatten().collect())
}
