//! Opening a volume: the newest epoch, its manifests, the seal that fences its writer, and a new epoch.
//!
//! [`find`] carries out steps 1 and 2, which change nothing; [`claim_found`] the others. Between them a layer
//! above may compare the writer of that epoch with the one that it knows ([`last_claim`]). The claim of step
//! 5 is created only if that epoch is still the last one.
//!
//! 1. The epochs are 1, 2, 3, … without a gap, since number 0 of an epoch, its *claim*, is never deleted: a
//!    few rounds of HEADs at the same time find the last one. One that is found too early has a seal.
//! 2. A listing of that epoch's manifests shows the last number; the last base and the deltas after it are
//!    read at the same time.
//! 3. The number after the last one is created as a *seal* (`fence`). If it is taken, the writer was faster,
//!    and a growing window of numbers is created at once: the writer ends at the first one.
//! 4. A listing that shows the seal, and no manifest after it, proves that it is one: a number that the
//!    writer has used and deleted can be created as well, and then a later base is there.
//! 5. The next epoch is claimed, and begins with a base.
//!
//! From the seal on the old writer creates no manifest, so nothing that it does becomes durable, and as seals
//! after the last manifest are never deleted, that holds for a writer that wakes up after any time.
//!
//! A crash between the steps leaves seals without a claim, or a claim without a base: the next opening
//! continues from there.
//!
//! Left to others: objects of manifests (`manifests`), those of the new epoch (`manifest_log`), keys
//! (`encryption`), and when a volume is claimed (`volume`).

use crate::bases::{self, Position, check_length};
use crate::format::{Kind, Manifest, Writer, decode_token, encode_token};
use crate::manifest_log::fenced;
use crate::manifests::{Created, Identity, MAX_MANIFEST, Manifests, Newest, READERS, age_of};
use crate::names::Name;
use crate::retry;
use crate::table::{Table, decode_changes};
use block::{Claim, ClaimToken, Error, Result};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

/// Probes of a round of the search for the last epoch.
const PROBES: u64 = 16;
/// Bytes of a delta that is read beside others.
const SHORT_DELTA: usize = 1 << 20;
/// Attempts to read manifests, each of which may be overtaken by a writer that deletes old ones.
const ATTEMPTS: u32 = 3;
/// Rounds of the fence, and most numbers of one: a writer creates fewer in the time of three requests.
const ROUNDS: u32 = 32;
const MAX_WINDOW: u64 = 64;
/// Listings that have to show an epoch without a base, or an epoch before others without its seal: each may
/// show an earlier moment, and such an epoch is rare. Without this a volume could be taken for one whose
/// creation hasn't ended.
const LISTINGS: u32 = 6;
/// Pause before another listing, after one that shows an earlier moment.
const PAUSE: Duration = Duration::from_millis(100);

/// Zones to format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewZones {
    pub zones: u32,
    pub zone_size: u64,
}

/// A volume that was found, and isn't changed yet.
pub(crate) struct Found {
    /// Last epoch; 0 if there is none.
    pub epoch: u32,
    /// Number and size of its zones, or of those to format.
    pub zones: NewZones,
    format: Option<NewZones>,
    /// End of the last epoch; `None` without one.
    end: Option<EpochEnd>,
}

/// The end of an epoch, as its manifests had it when they were read.
pub(crate) struct EpochEnd {
    pub epoch: u32,
    pub newest: Newest,
    pub state: EpochState,
}

/// Check of a table that may refuse it before anything is changed.
pub(crate) type Check<'a> = &'a dyn Fn(&Loaded, Proof) -> Result<()>;

/// An opened volume.
pub(crate) struct Opened {
    pub identity: Identity,
    /// Claim of the epoch.
    pub claim: Claim,
    pub table: Table,
    pub position: Position,
    /// Manifests and pieces that aren't needed any more.
    pub garbage: Vec<Name>,
    /// Whether zones were interrupted by an unclean stop.
    pub was_unclean: bool,
}

/// State of an epoch.
pub(crate) struct Loaded {
    /// Last manifest that belongs to the state.
    pub manifest: Manifest,
    pub table: Table,
}

/// Knowledge that a state is the last one of its epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// The listing may have shown an earlier moment, and nothing is written yet.
    None,
    /// The epoch is sealed, and nothing is claimed yet.
    Fenced,
}

/// State by the last manifest of an epoch.
pub(crate) enum EpochState {
    Loaded(Box<Loaded>),
    /// The epoch has no base: the state is that of the epoch before, which its claim names.
    Before(Manifest),
    /// Damaged manifests, which a new volume replaces.
    Damaged,
}

/// Finds the last epoch; 0 if there is none.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn last_epoch(manifests: &Manifests) -> Result<u32> {
    let exist = async |epochs: Vec<u64>| {
        let heads = epochs.iter().map(async |epoch| {
            let key = manifests.key(*epoch as u32, 0);
            manifests.store.head(&key).await.map(|found| found.is_some())
        });
        let found = runtime::join_all(heads).await.into_iter().collect::<Result<Vec<bool>>>()?;
        // The epochs have no gap: what follows a missing one was created since.
        Ok::<usize, Error>(found.iter().take_while(|exists| **exists).count())
    };
    let (mut low, mut high) = (0, 1_u64);
    // Powers of 16 first, since few volumes are opened often.
    loop {
        let probes: Vec<u64> =
            (0..4).map(|step| high << step).take_while(|epoch| *epoch <= u32::MAX.into()).collect();
        let found = exist(probes.clone()).await?;
        if found > 0 {
            low = probes[found - 1];
        }
        if found < probes.len() || probes.len() < 4 {
            high = probes.get(found).copied().unwrap_or(1 << 32);
            break;
        }
        high = probes[3] << 1;
    }
    while high - low > 1 {
        let step = (high - low).div_ceil(PROBES);
        let probes: Vec<u64> = (low + 1..high).step_by(step as usize).collect();
        let found = exist(probes.clone()).await?;
        high = probes.get(found).copied().unwrap_or(high);
        if found > 0 {
            low = probes[found - 1];
        }
    }
    Ok(low as u32)
}

/// Applies a manifest that follows.
pub(crate) fn apply(table: &mut Table, manifest: &Manifest) -> Result<()> {
    if manifest.kind == Kind::Base {
        *table = Table::decode(&manifest.body)?;
    } else {
        let changes = decode_changes(&manifest.body)?;
        changes.iter().try_for_each(|change| table.apply(change, manifest.epoch))?;
    }
    table.is_clean = manifest.is_clean;
    Ok(())
}

/// Reads these deltas. A writer limits their length in all ([`bases::MAX_DELTA_BYTES`]); those that aren't
/// short are read alone. So memory is bounded, whatever the store answers.
async fn load_deltas(manifests: &Manifests, epoch: u32, numbers: Range<u64>) -> Result<Vec<Manifest>> {
    let left = Cell::new(bases::MAX_DELTA_BYTES + bases::MAX_CHAIN_READ as usize * bases::MANIFEST_HEADER);
    let read = async |limit: usize, number: u64| {
        let found = manifests.get_within(limit.min(left.get()), epoch, number).await?;
        let found = found.ok_or_else(|| manifests.lost(Name::Manifest { epoch, number }))?;
        left.set(left.get().saturating_sub(found.body.len()));
        Ok::<_, Error>(found)
    };
    let mut deltas = Vec::new();
    let reads = numbers.clone().map(|number| read(SHORT_DELTA, number));
    for (number, short) in numbers.zip(runtime::join_limited(READERS, reads).await) {
        deltas.push(match short {
            Err(Error::Protocol(_)) => read(MAX_MANIFEST, number).await?,
            short => short?,
        });
    }
    Ok(deltas)
}

/// Reads the state that ends with manifest `last` of an epoch, which isn't a seal or a claim.
async fn load_chain(manifests: &Manifests, last: Manifest) -> Result<Loaded> {
    let (epoch, number, base) = (last.epoch, last.number, last.link);
    let is_possible = (last.kind == Kind::Base) == (base == number) && base <= number;
    if !is_possible || number - base > bases::MAX_CHAIN_READ {
        return Err(Error::corrupt(format!(
            "object {}: it continues base {base}; expected a base at most {} numbers before it: restore the object, or use another \
             prefix",
            manifests.key(epoch, number),
            bases::MAX_CHAIN_READ
        )));
    }
    let mut chain = Vec::new();
    if base < number {
        let read = manifests.get_base(epoch, base).await?;
        chain.push(read.ok_or_else(|| manifests.lost(Name::base(epoch, base)))?);
        chain.extend(load_deltas(manifests, epoch, base + 1..number).await?);
    }
    chain.push(last);
    let mut table = Table::new(1, 512)?;
    let first = chain.first().map(|base| (base.volume, base.writer.id));
    for manifest in &mut chain {
        let fits = Some((manifest.volume, manifest.writer.id)) == first && manifest.link <= base;
        // A seal is no part of it: keys don't protect what it has.
        let kind = if manifest.number == base { Kind::Base } else { Kind::Delta };
        let fits = fits && manifest.kind == kind;
        let applied = match fits {
            true => apply(&mut table, manifest),
            false => Err(Error::corrupt(format!(
                "a {:?} that links to {}; expected a {kind:?} of base {base}, of the same volume and writer as the manifests before it: \
                 restore the object",
                manifest.kind, manifest.link
            ))),
        };
        let name = match manifest.kind {
            Kind::Base => Name::base(epoch, manifest.number),
            _ => Name::Manifest { epoch, number: manifest.number },
        };
        applied.map_err(|error| error.in_context(format!("object {}", manifests.names.key(name))))?;
        // The memory of a large base.
        manifest.body = Vec::new();
    }
    let manifest = chain.pop().ok_or_else(|| manifests.lost(Name::Manifest { epoch, number }))?;
    Ok(Loaded { manifest, table })
}

/// Reads the state that ends with the last manifest of an epoch; never [`EpochState::Damaged`].
async fn load(manifests: &Manifests, newest: &Newest) -> Result<EpochState> {
    let manifest = newest.manifest.clone()?;
    match (manifest.kind, manifest.number) {
        (Kind::Claim, 0) => Ok(EpochState::Before(manifest)),
        (Kind::Base | Kind::Delta, _) => {
            load_chain(manifests, manifest).await.map(|loaded| EpochState::Loaded(Box::new(loaded)))
        }
        (kind, number) => Err(Error::corrupt(format!(
            "object {}: a manifest of the kind {kind:?}; expected a base or a delta",
            manifests.key(manifest.epoch, number)
        ))),
    }
}

/// As [`load`]; a state that can't be read is [`EpochState::Damaged`] if it `is_replaced`.
async fn load_or_replace(manifests: &Manifests, newest: &Newest, is_replaced: bool) -> Result<EpochState> {
    match load(manifests, newest).await {
        Err(Error::Corrupt(_) | Error::Unsupported(_)) if is_replaced => Ok(EpochState::Damaged),
        loaded => loaded,
    }
}

/// Seals an epoch, whose newest manifest was this one, and returns the one that it ends with.
///
/// # Errors
/// [`Error::Busy`] if the writer, or others that open the volume, are faster each time; errors of the store.
pub(crate) async fn fence(manifests: &Manifests, identity: &Identity, mut newest: Newest) -> Result<Newest> {
    let (epoch, mut window, mut ours) = (identity.epoch, 1, BTreeSet::new());
    for round in 1..=ROUNDS {
        if newest.is_sealed() {
            return Ok(newest);
        }
        let first = newest.number.checked_add(1).ok_or_else(|| Error::overflow("2^64 manifests"))?;
        if ours.contains(&first) {
            runtime::sleep(PAUSE).await;
        } else {
            let free = (first..=first.saturating_add(window - 1))
                .filter(|number| !newest.seals.contains(number) && !ours.contains(number));
            let creations = free.map(async |number| {
                let seal = identity.manifest(number, Kind::Seal, 0, Vec::new());
                (number, manifests.create(&seal, &manifests.encode(&seal)).await)
            });
            let created = runtime::join_all(creations).await;
            for (number, created) in created {
                match created {
                    Ok(Created::Ours) => {
                        ours.insert(number);
                    }
                    // A manifest, or damaged bytes: the number is taken.
                    Ok(Created::Others(_)) | Err(Error::Corrupt(_) | Error::Unsupported(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            window = (window * 2).min(MAX_WINDOW);
        }
        // This listing decides, whatever was created.
        let numbers = manifests.numbers(epoch).await?;
        let after: Vec<u64> = numbers.iter().copied().filter(|number| *number > newest.number).collect();
        if after.first() == Some(&first) && after.iter().all(|number| ours.contains(number)) {
            newest.seals = after;
            return Ok(newest);
        }
        match manifests.newest(epoch, &numbers).await {
            Ok(found) => newest = found,
            // Deleted since the listing.
            Err(Error::Corrupt(_)) if round < ROUNDS => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::busy(format!(
        "epoch {epoch}: after {ROUNDS} attempts its writer isn't fenced, as it or others that open the zones are faster; stop them, or try again"
    )))
}

/// Reads the end of an epoch. `has_successor`: a later epoch is claimed, so this one is sealed.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged manifest, and one that its writer deletes during the read;
/// [`Error::Busy`] if the listings are of a moment before the first manifest, which is there; errors of the
/// store.
pub(crate) async fn end_of(
    manifests: &Manifests,
    epoch: u32,
    has_successor: bool,
    is_replaced: bool,
) -> Result<EpochEnd> {
    let list = async || {
        let numbers = manifests.numbers(epoch).await?;
        manifests.newest(epoch, &numbers).await
    };
    let mut newest = list().await?;
    for _ in 1..LISTINGS {
        let may_be_stale = newest.number == 0 || has_successor && !newest.is_sealed();
        if !may_be_stale {
            break;
        }
        runtime::sleep(PAUSE).await;
        newest = list().await?;
    }
    let first = manifests.key(epoch, 1);
    if newest.number == 0 && !newest.is_sealed() && manifests.store.head(&first).await?.is_some() {
        return Err(Error::busy(format!(
            "epoch {epoch}: {LISTINGS} listings show its claim alone, and object {first} is there; expected a listing of the present: \
             try again"
        )));
    }
    let state = load_or_replace(manifests, &newest, is_replaced).await?;
    Ok(EpochEnd { epoch, newest, state })
}

/// Reads the end of an epoch, which its writer may be changing.
async fn settled_end_of(manifests: &Manifests, epoch: u32, is_replaced: bool) -> Result<EpochEnd> {
    let is_overtaken =
        |error: &Error| matches!(error, Error::Corrupt(_) | Error::Unsupported(_) | Error::Busy(_));
    retry::while_overtaken(ATTEMPTS, is_overtaken, async |attempt| {
        // An opening seals it, and the listing after that decides.
        end_of(manifests, epoch, false, is_replaced && attempt == ATTEMPTS).await
    })
    .await
}

/// Epoch before one without a base, from its claim; `None` for the first one.
pub(crate) fn epoch_before(claim: &Manifest) -> Result<Option<u32>> {
    match u32::try_from(claim.link).unwrap_or(u32::MAX) {
        0 => Ok(None),
        before if before < claim.epoch => Ok(Some(before)),
        _ => Err(Error::corrupt(format!(
            "the claim of epoch {} follows epoch {}; expected an earlier epoch: restore that object",
            claim.epoch, claim.link
        ))),
    }
}

/// Reads the end of the epoch before one without a base, whose claim this is; `None` for the first epoch.
async fn end_before(manifests: &Manifests, claim: &Manifest, is_replaced: bool) -> Result<Option<EpochEnd>> {
    match epoch_before(claim)? {
        Some(before) => settled_end_of(manifests, before, is_replaced).await.map(Some),
        None => Ok(None),
    }
}

/// Seals an epoch, of which this was read, and loads the state that it ends with; `None` if there is no
/// volume, or none that can be read and `is_replaced`. Of an epoch without a base that before it is sealed
/// as well.
async fn seal_and_load(
    manifests: &Manifests,
    end: EpochEnd,
    writer: &Writer,
    is_replaced: bool,
    check: Check<'_>,
) -> Result<Option<Loaded>> {
    let mut end = Some(end);
    while let Some(of_epoch) = end.take() {
        match seal(manifests, of_epoch, writer, is_replaced, check).await? {
            EpochState::Loaded(loaded) => return Ok(Some(*loaded)),
            EpochState::Damaged => return Ok(None),
            EpochState::Before(claim) => end = end_before(manifests, &claim, is_replaced).await?,
        }
    }
    Ok(None)
}

/// Seals one epoch, and returns the state that it ends with.
async fn seal(
    manifests: &Manifests,
    end: EpochEnd,
    writer: &Writer,
    is_replaced: bool,
    check: Check<'_>,
) -> Result<EpochState> {
    let EpochEnd { epoch, newest, mut state } = end;
    if let EpochState::Loaded(loaded) = &state {
        check(loaded, Proof::None)?;
    }
    let volume = newest.manifest.as_ref().map_or([0; 16], |manifest| manifest.volume);
    let (identity, before) = (Identity { volume, epoch, writer: writer.clone() }, newest.number);
    let newest = fence(manifests, &identity, newest).await?;
    if newest.number != before {
        // The writer has added manifests meanwhile.
        state = load_or_replace(manifests, &newest, is_replaced).await?;
    }
    if let EpochState::Loaded(loaded) = &state {
        check(loaded, Proof::Fenced)?;
    }
    Ok(state)
}

pub(crate) async fn has_claim(manifests: &Manifests, epoch: u32) -> Result<bool> {
    manifests.store.head(&manifests.key(epoch, 0)).await.map(|found| found.is_some())
}

fn overtaken(epoch: u32) -> Error {
    Error::busy(format!(
        "after epoch {epoch}: another writer has opened the zones at the same time; try again, which fences that one"
    ))
}

pub(crate) fn missing_claim(manifests: &Manifests, epoch: u32, found: &str) -> Error {
    Error::corrupt(format!(
        "object {}: it is missing, and {found} is there; expected the claim of each epoch: restore it, or use another prefix",
        manifests.key(epoch, 0)
    ))
}

/// Refuses a volume without its first claim: it would be taken for none, and lost by formatting.
pub(crate) async fn check_empty(manifests: &Manifests) -> Result<()> {
    // This also finds a bucket that doesn't exist, which the answer to HEAD doesn't say.
    let page = manifests.store.list(&manifests.names.manifests(), None).await?;
    let found = page.objects.iter().find(|listed| manifests.names.parse(&listed.key).is_some());
    match found {
        // One that another writer has just created.
        Some(found) if found.key != manifests.key(1, 0) => Err(missing_claim(manifests, 1, &found.key)),
        _ => Ok(()),
    }
}

/// Error of a prefix without a volume.
pub(crate) fn no_volume(manifests: &Manifests) -> Error {
    Error::not_found(format!(
        "no volume below the prefix \"{}\" of the bucket \"{}\"; expected one: correct the prefix or the bucket, or create it with \
         siltstone format, or --format",
        manifests.names.prefix(),
        manifests.store.name()
    ))
}

/// Error of a prefix that was claimed for a volume, whose first zone table was never written.
pub(crate) fn unfinished(manifests: &Manifests, claim: &Manifest) -> Error {
    Error::not_found(format!(
        "no volume below the prefix \"{}\" of the bucket \"{}\" yet: writer \"{}\" began to create it {}, and object {} is missing; expected \
         its end: wait for that writer, or create it again with siltstone format, or --format",
        manifests.names.prefix(),
        manifests.store.name(),
        claim.writer.name.escape_debug(),
        age_of(claim.time),
        manifests.key(claim.epoch, 1)
    ))
}

/// Reads the last state of an epoch or of one before, and returns the number and size of its zones.
async fn zones_of(manifests: &Manifests, end: &EpochEnd, check: Check<'_>) -> Result<Option<NewZones>> {
    let of = |loaded: &Loaded| {
        check(loaded, Proof::None)?;
        let table = &loaded.table;
        Ok(Some(NewZones { zones: table.zones.len() as u32, zone_size: table.zone_size }))
    };
    let mut before = None;
    loop {
        let state = before.as_ref().map_or(&end.state, |end: &EpochEnd| &end.state);
        before = match state {
            EpochState::Loaded(loaded) => return of(loaded),
            EpochState::Damaged => return Ok(None),
            EpochState::Before(claim) => end_before(manifests, claim, false).await?,
        };
        if before.is_none() {
            return Ok(None);
        }
    }
}

/// Tells an error of manifests that another writer has deleted meanwhile.
async fn or_overtaken<T>(manifests: &Manifests, epoch: u32, outcome: Result<T>) -> Result<T> {
    match outcome {
        Err(Error::Corrupt(_)) if has_claim(manifests, epoch.saturating_add(1)).await? => {
            Err(overtaken(epoch))
        }
        outcome => outcome,
    }
}

/// Finds a volume, and changes nothing. `format` is the one to create, in place of an existing one. `check`
/// may refuse the table.
///
/// # Errors
/// [`Error::NotFound`] if there is none; [`Error::Corrupt`] and [`Error::Unsupported`] for damaged manifests
/// and unknown versions; [`Error::Busy`] if another writer opens it at the same time; errors of the store.
pub(crate) async fn find(manifests: &Manifests, format: Option<NewZones>, check: Check<'_>) -> Result<Found> {
    let epoch = last_epoch(manifests).await?;
    let end = match epoch {
        0 => {
            check_empty(manifests).await?;
            None
        }
        epoch => {
            let end = settled_end_of(manifests, epoch, format.is_some()).await;
            Some(or_overtaken(manifests, epoch, end).await?)
        }
    };
    let zones = match (&end, format) {
        (_, Some(new)) => Some(new),
        (Some(end), None) => {
            let check =
                |loaded: &Loaded, proof| check_length(&loaded.table).and_then(|()| check(loaded, proof));
            or_overtaken(manifests, epoch, zones_of(manifests, end, &check).await).await?
        }
        (None, None) => None,
    };
    match (zones, end) {
        (Some(zones), end) => Ok(Found { epoch, zones, format, end }),
        (None, Some(EpochEnd { state: EpochState::Before(claim), .. })) => Err(unfinished(manifests, &claim)),
        (None, _) => Err(no_volume(manifests)),
    }
}

/// Returns the claim of an epoch; `None` for epoch 0.
///
/// # Errors
/// [`Error::Corrupt`] if it is damaged or missing; errors of the store.
pub(crate) async fn last_claim(manifests: &Manifests, epoch: u32) -> Result<Option<Claim>> {
    match epoch {
        0 => Ok(None),
        epoch => {
            let claim = manifests
                .get(epoch, 0)
                .await?
                .ok_or_else(|| manifests.lost(Name::Manifest { epoch, number: 0 }))?;
            as_claim(&claim).map(Some)
        }
    }
}

/// Claim that a manifest is.
fn as_claim(manifest: &Manifest) -> Result<Claim> {
    Ok(Claim {
        number: manifest.epoch.into(),
        writer: manifest.writer.name.clone(),
        time: manifest.time,
        token: decode_token(&manifest.body)?,
    })
}

/// Claims the epoch of this identity.
async fn claim(manifests: &Manifests, identity: &Identity, token: Option<ClaimToken>) -> Result<Claim> {
    let (epoch, before) = (identity.epoch, identity.epoch - 1);
    if has_claim(manifests, epoch.saturating_add(1)).await? {
        return Err(match has_claim(manifests, epoch).await? {
            true => overtaken(before),
            false => missing_claim(manifests, epoch, &manifests.key(epoch.saturating_add(1), 0)),
        });
    }
    let claim = identity.manifest(0, Kind::Claim, before.into(), encode_token(token));
    match manifests.create(&claim, &manifests.encode(&claim)).await? {
        Created::Ours => as_claim(&claim),
        Created::Others(other) => Err(Error::busy(format!(
            "epoch {epoch}: writer \"{}\" has opened the zones at the same time; try again, which fences that one",
            other.writer.name.escape_debug()
        ))),
    }
}

/// Opens a volume that was found for writing, which fences its writer, or creates it.
///
/// # Errors
/// [`Error::Busy`] if another writer has claimed it since, or opens it at the same time; those of [`find`].
pub(crate) async fn claim_found(
    manifests: &Manifests,
    found: Found,
    writer: Writer,
    token: Option<ClaimToken>,
    check: Check<'_>,
) -> Result<Opened> {
    let Found { epoch: before, format, end, .. } = found;
    let state = match end {
        None => None,
        Some(end) => {
            let check = |loaded: &Loaded, proof| match format {
                Some(_) => Ok(()),
                None => check_length(&loaded.table).and_then(|()| check(loaded, proof)),
            };
            let taken = seal_and_load(manifests, end, &writer, format.is_some(), &check).await;
            or_overtaken(manifests, before, taken).await?
        }
    };
    let mut garbage = Vec::new();
    let ended = state.as_ref().map(|state| (state.manifest.epoch, state.manifest.number));
    let (volume, mut table) = match (state, format) {
        (state, Some(new)) => {
            let mut volume = [0; 16];
            runtime::fill_secret(&mut volume);
            if let Some(Loaded { table, .. }) = &state {
                let zones = 0..table.zones.len() as u32;
                garbage.extend(zones.flat_map(|zone| table.names(zone)).map(Name::Piece));
            }
            (volume, Table::new(new.zones, new.zone_size)?)
        }
        (Some(state), None) => (state.manifest.volume, state.table),
        (None, None) => return Err(no_volume(manifests)),
    };
    let was_unclean = !table.is_clean;
    table.interrupt();
    table.is_clean = false;
    let epoch = before.checked_add(1).ok_or_else(|| Error::overflow("2^32 epochs"))?;
    let identity = Identity { volume, epoch, writer };
    let claim = claim(manifests, &identity, token).await?;
    let mut base = identity.manifest(1, Kind::Base, 1, table.encode());
    base.is_compressed = table.stored().has_compressed();
    let bytes = manifests.encode(&base);
    base.body = Vec::new();
    if let Created::Others(other) = manifests.create(&base, &bytes).await? {
        return Err(fenced(&identity, &other));
    }
    if let Some((epoch, number)) = ended {
        garbage.extend(manifests.list_old(epoch, number).await?);
    }
    let position = Position { number: 1, base: 1, base_bytes: bytes.len(), delta_bytes: 0 };
    Ok(Opened { identity, claim, table, position, garbage, was_unclean })
}
