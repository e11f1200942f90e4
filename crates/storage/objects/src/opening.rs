//! Opening a volume: the newest epoch, its manifests, the seal that fences its writer, and a new epoch.
//!
//! 1. The epochs are 1, 2, 3, … without a gap, since number 0 of an epoch, its *claim*, is never deleted: a
//!    few rounds of HEADs at the same time find the last one. One that is found too early has a seal.
//! 2. A listing of that epoch's manifests shows the last number; the last base and the deltas after it are
//!    read at the same time. If the manifests go on after what the listing showed, step 3 finds them.
//! 3. The number after the last one is created as a *seal*. If it is taken by a delta, that one is applied
//!    first. From then on the old writer creates no manifest, so nothing that it does becomes durable, and
//!    as the seal is never deleted, that holds for a writer that wakes up after any time.
//! 4. The next epoch is claimed, and begins with a base.
//!
//! A crash between the steps leaves a seal without a claim, or a claim without a base: the next opening
//! continues from there.

use crate::format::{Kind, Manifest, Writers};
use crate::manifest_log::{Position, fenced};
use crate::manifests::{Created, Identity, Manifests};
use crate::names::Name;
use crate::table::{Table, decode_changes};
use block::{Data, Error, Result};

/// Probes of a round of the search for the last epoch.
const PROBES: u64 = 16;
/// Most manifests of a chain: one that is longer isn't of this program.
const MAX_CHAIN: u64 = 100_000;
/// Manifests that are read at the same time.
const READERS: usize = 32;
/// Attempts to read manifests, each of which may be overtaken by a writer that deletes old ones.
const ATTEMPTS: u32 = 3;

/// Zones to format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewZones {
    pub zones: u32,
    pub zone_size: u64,
}

/// An opened volume.
pub(crate) struct Opened {
    pub identity: Identity,
    pub table: Table,
    pub position: Position,
    /// Manifests and pieces that aren't needed any more.
    pub garbage: Vec<Name>,
    /// Whether zones were interrupted by an unclean stop.
    pub was_unclean: bool,
}

/// State of an epoch.
struct Loaded {
    manifest: Manifest,
    table: Table,
    /// Last number that belongs to the state.
    last: u64,
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

fn lost(manifests: &Manifests, epoch: u32, number: u64) -> Error {
    Error::corrupt(format!(
        "object {}: it is missing; expected a manifest, since a later one continues it",
        manifests.key(epoch, number)
    ))
}

/// Applies a manifest that follows.
fn apply(table: &mut Table, manifest: &Manifest) -> Result<()> {
    if manifest.kind == Kind::Base {
        *table = Table::decode(&manifest.body)?;
    } else {
        let changes = decode_changes(&manifest.body)?;
        changes.iter().try_for_each(|change| table.apply(change, manifest.epoch))?;
    }
    table.is_clean = manifest.is_clean;
    Ok(())
}

/// Reads the state that ends with manifest `last` of an epoch, which isn't a seal or a claim.
async fn load_chain(manifests: &Manifests, last: Manifest) -> Result<Loaded> {
    let (epoch, number, base) = (last.epoch, last.number, last.link);
    if base > number || number - base > MAX_CHAIN {
        return Err(Error::corrupt(format!(
            "object {}: it continues manifest {base}",
            manifests.key(epoch, number)
        )));
    }
    let reads = (base..number).map(|number| async move {
        manifests.get(epoch, number).await?.ok_or_else(|| lost(manifests, epoch, number))
    });
    let mut chain = Vec::new();
    for read in runtime::join_limited(READERS, reads).await {
        chain.push(read?);
    }
    chain.push(last);
    let mut table = Table::new(1, 512)?;
    for manifest in &chain {
        let fits = manifest.volume == chain[0].volume && manifest.link == base;
        let fits = fits && (manifest.kind == Kind::Base) == (manifest.number == base);
        let applied = match fits {
            true => apply(&mut table, manifest),
            false => Err(Error::corrupt("it doesn't follow the manifests before it")),
        };
        applied
            .map_err(|error| error.in_context(format!("object {}", manifests.key(epoch, manifest.number))))?;
    }
    let manifest = chain.pop().ok_or_else(|| lost(manifests, epoch, number))?;
    Ok(Loaded { manifest, table, last: number })
}

/// Manifests of an epoch at some moment.
enum Found {
    /// A state, and whether a seal follows it.
    State(Box<Loaded>, bool),
    /// No base: the state is that of the epoch before. Whether there is a seal.
    Nothing(Manifest, bool),
}

async fn look(manifests: &Manifests, epoch: u32) -> Result<Found> {
    let last = manifests.numbers(epoch).await?.last().copied().unwrap_or_default();
    let mut last = manifests.get(epoch, last).await?.ok_or_else(|| lost(manifests, epoch, last))?;
    let is_sealed = last.kind == Kind::Seal;
    if is_sealed {
        let before = last.number.saturating_sub(1);
        last = manifests.get(epoch, before).await?.ok_or_else(|| lost(manifests, epoch, before))?;
    }
    match last.kind {
        Kind::Claim => Ok(Found::Nothing(last, is_sealed)),
        Kind::Base | Kind::Delta => Ok(Found::State(Box::new(load_chain(manifests, last).await?), is_sealed)),
        Kind::Seal => Err(Error::corrupt(format!("epoch {epoch} has two seals; expected one"))),
    }
}

/// Creates the seal of an epoch after manifest `last`; `follow` gets manifests that are there already.
async fn seal(
    manifests: &Manifests,
    identity: &Identity,
    mut last: u64,
    mut follow: impl FnMut(Manifest) -> Result<()>,
) -> Result<u64> {
    loop {
        let seal = identity.manifest(last + 1, Kind::Seal, 0, Vec::new());
        let bytes = Data::copy_of(&seal.encode());
        match manifests.create(&seal, &bytes).await? {
            Created::Ours => return Ok(last),
            Created::Others(other) if other.kind == Kind::Seal => return Ok(last),
            Created::Others(other) => {
                last = other.number;
                follow(other)?;
            }
        }
    }
}

/// Reads the state of the last epoch, and seals it. Returns the state; `None` if there is no volume, or none
/// that can be read and `is_replaced`.
async fn take_over(
    manifests: &Manifests,
    epoch: u32,
    writer: &Writers,
    is_replaced: bool,
    check: impl Fn(&Table) -> Result<()>,
) -> Result<Option<Loaded>> {
    let mut attempt = 0;
    let found = loop {
        attempt += 1;
        match look(manifests, epoch).await {
            Err(Error::Corrupt(_) | Error::Unsupported(_)) if attempt < ATTEMPTS => {}
            Err(Error::Corrupt(_) | Error::Unsupported(_)) if is_replaced => break None,
            other => break Some(other?),
        }
    };
    let identity = |volume| Identity { volume, epoch, writer: writer.clone() };
    match found {
        None => {
            // What the manifests contain doesn't matter: their writer is fenced by its next number.
            let last = manifests.numbers(epoch).await?.last().copied().unwrap_or_default();
            seal(manifests, &identity([0; 16]), last, |_| Ok(())).await?;
            Ok(None)
        }
        Some(Found::State(mut loaded, is_sealed)) => {
            check(&loaded.table)?;
            if !is_sealed {
                let volume = loaded.manifest.volume;
                let table = &mut loaded.table;
                loaded.last =
                    seal(manifests, &identity(volume), loaded.last, |other| apply(table, &other)).await?;
            }
            Ok(Some(*loaded))
        }
        Some(Found::Nothing(claim, is_sealed)) => {
            let mut state = None;
            if !is_sealed {
                seal(manifests, &identity(claim.volume), 0, |other| {
                    let mut table = Table::new(1, 512)?;
                    apply(&mut table, &other)?;
                    let last = other.number;
                    state = Some(Loaded { manifest: other, table, last });
                    Ok(())
                })
                .await?;
            }
            match (state, u32::try_from(claim.link).unwrap_or_default()) {
                (Some(state), _) => Ok(Some(state)),
                (None, 0) => Ok(None),
                (None, before) if before < epoch => {
                    Box::pin(take_over(manifests, before, writer, is_replaced, check)).await
                }
                _ => Err(Error::corrupt(format!("the claim of epoch {epoch} names epoch {}", claim.link))),
            }
        }
    }
}

/// Objects of an epoch that are no longer needed once the next one has a base.
async fn old_manifests(manifests: &Manifests, epoch: u32, last: u64) -> Result<Vec<Name>> {
    let numbers = manifests.numbers(epoch).await?;
    // Neither the claim nor the seal.
    Ok(numbers
        .into_iter()
        .filter(|number| (1..=last).contains(number))
        .map(|number| Name::Manifest { epoch, number })
        .collect())
}

/// Opens a volume for writing, which fences its writer. `format` creates it, in place of an existing one.
/// `check` may refuse the table before anything is changed.
///
/// # Errors
/// [`Error::NotFound`] if there is none; [`Error::Corrupt`] and [`Error::Unsupported`] for damaged manifests
/// and unknown versions; [`Error::Busy`] if another writer opens it at the same time; errors of the store.
pub(crate) async fn open(
    manifests: &Manifests,
    writer: Writers,
    format: Option<NewZones>,
    check: impl Fn(&Table) -> Result<()>,
) -> Result<Opened> {
    let before = last_epoch(manifests).await?;
    let found = match before {
        0 => None,
        epoch => {
            let check = |table: &Table| if format.is_some() { Ok(()) } else { check(table) };
            take_over(manifests, epoch, &writer, format.is_some(), check).await?
        }
    };
    let mut garbage = Vec::new();
    let (volume, mut table) = match (&found, format) {
        (found, Some(new)) => {
            let mut volume = [0; 16];
            runtime::fill_secret(&mut volume);
            if let Some(Loaded { table, .. }) = found {
                let zones = 0..table.zones.len() as u32;
                garbage.extend(zones.flat_map(|zone| table.names(zone)).map(Name::Piece));
            }
            (volume, Table::new(new.zones, new.zone_size)?)
        }
        (Some(found), None) => (found.manifest.volume, found.table.clone()),
        (None, None) => {
            return Err(Error::not_found(format!(
                "no volume below the prefix \"{}\" of the bucket; --format creates one",
                manifests.names.prefix()
            )));
        }
    };
    let was_unclean = !table.is_clean;
    table.interrupt();
    table.is_clean = false;
    let epoch = before.checked_add(1).ok_or_else(|| Error::overflow("2^32 epochs"))?;
    let identity = Identity { volume, epoch, writer };
    let claim = identity.manifest(0, Kind::Claim, before.into(), Vec::new());
    match manifests.create(&claim, &Data::copy_of(&claim.encode())).await? {
        Created::Ours => {}
        Created::Others(other) => {
            return Err(Error::busy(format!(
                "epoch {epoch}: writer \"{}\" has opened the zones at the same time; try again, which fences that one",
                other.writer.name.escape_debug()
            )));
        }
    }
    let base = identity.manifest(1, Kind::Base, 1, table.encode());
    let bytes = Data::copy_of(&base.encode());
    if let Created::Others(other) = manifests.create(&base, &bytes).await? {
        return Err(fenced(&identity, &other));
    }
    if let Some(Loaded { manifest, last, .. }) = found {
        garbage.extend(old_manifests(manifests, manifest.epoch, last).await?);
    }
    let position = Position { number: 1, base: 1, base_bytes: bytes.len(), delta_bytes: 0 };
    Ok(Opened { identity, table, position, garbage, was_unclean })
}
