//! Looking at a volume without a claim.
//!
//! # Promises
//! - Nothing is written, and the writer isn't fenced.
//! - The state is that of one manifest, as an opening would find it. The writer may delete manifests while
//!   they are read; then the look begins again with the newer ones.
//!
//! Left to others: reading a chain of manifests (`opening`), secrets (`readable`).

use crate::format::{Kind, Manifest};
use crate::manifests::{Manifests, is_sealed};
use crate::names::Name;
use crate::opening::{
    EpochEnd, EpochState, apply, check_empty, end_of, epoch_before, has_claim, last_epoch, missing_claim,
    unfinished,
};
use crate::retry;
use crate::table::Table;
use block::{Error, Result};

/// Attempts, each of which may be overtaken by a writer that deletes old manifests.
const ATTEMPTS: u32 = 4;
/// Manifests that are read one after the other; what is further behind is looked at again.
const MAX_STEPS: u32 = 64;

/// A volume as its manifests describe it.
#[derive(Debug, Clone)]
pub(crate) struct Looked {
    /// Last epoch that was claimed: later than that of the state if an opening has written no base yet.
    pub claimed: u32,
    /// Last manifest of the state, without its body.
    pub manifest: Manifest,
    /// Zone table, with zones that were begun as the writer has them.
    pub table: Table,
    /// Numbers of the seals after the last manifest.
    pub seals: Vec<u64>,
}

impl Looked {
    /// Whether the writer of the state creates no manifest any more, and this is its last one. A later claim
    /// shows that the writer has ended, and not that this is its last manifest: the listing may be of a
    /// moment before the seal, which precedes the claim.
    pub fn is_final(&self) -> bool {
        self.is_sealed() || self.manifest.is_clean
    }

    /// Whether a seal follows the last manifest.
    pub fn is_sealed(&self) -> bool {
        is_sealed(self.manifest.number, &self.seals)
    }
}

/// Looks at a volume; `None` if there is none.
///
/// # Errors
/// [`Error::NotFound`] for one that isn't finished; [`Error::Corrupt`] and [`Error::Unsupported`] for damaged
/// manifests and unknown versions; errors of the store.
pub(crate) async fn look(manifests: &Manifests) -> Result<Option<Looked>> {
    let is_overtaken = |error: &Error| matches!(error, Error::Corrupt(_) | Error::Busy(_));
    let looked = retry::while_overtaken(ATTEMPTS, is_overtaken, async |_| {
        let claimed = last_epoch(manifests).await?;
        if claimed == 0 {
            return Ok(None);
        }
        let looked = look_at(manifests, claimed).await?;
        check_last(manifests, looked).await.map(Some)
    });
    match looked.await? {
        None => check_empty(manifests).await.map(|()| None),
        looked => Ok(looked),
    }
}

/// Refuses the state of a sealed epoch if there are later ones: the claim between them is lost, or was made
/// meanwhile.
async fn check_last(manifests: &Manifests, looked: Looked) -> Result<Looked> {
    let (next, later) = (looked.claimed.saturating_add(1), looked.claimed.saturating_add(2));
    match looked.is_sealed() && has_claim(manifests, later).await? {
        true => Err(missing_claim(manifests, next, &manifests.key(later, 0))),
        false => Ok(looked),
    }
}

/// Refuses a state before epochs without a base if one of them has one now: its writer deletes the manifests
/// of the state, and those that were read aren't the last ones then.
async fn check_without_base(manifests: &Manifests, epochs: &[u32]) -> Result<()> {
    for epoch in epochs {
        if manifests.store.head(&manifests.key(*epoch, 1)).await?.is_some() {
            return Err(Error::busy(format!(
                "epoch {epoch}: its writer has begun while the volume was looked at; try again"
            )));
        }
    }
    Ok(())
}

/// Looks at the state that ends with this epoch.
async fn look_at(manifests: &Manifests, claimed: u32) -> Result<Looked> {
    let (mut epoch, mut without_base) = (claimed, Vec::new());
    loop {
        let EpochEnd { newest, state, .. } = end_of(manifests, epoch, epoch < claimed, false).await?;
        match state {
            EpochState::Loaded(loaded) => {
                check_without_base(manifests, &without_base).await?;
                let (manifest, table) = (Manifest { body: Vec::new(), ..loaded.manifest }, loaded.table);
                return Ok(Looked { claimed, manifest, table, seals: newest.seals });
            }
            EpochState::Before(claim) => {
                // No base follows a seal.
                if !newest.is_sealed() {
                    without_base.push(epoch);
                }
                match epoch_before(&claim)? {
                    Some(before) => epoch = before,
                    None => {
                        check_without_base(manifests, &without_base).await?;
                        return Err(unfinished(manifests, &claim));
                    }
                }
            }
            EpochState::Damaged => {
                return Err(manifests.lost(Name::Manifest { epoch, number: newest.number }));
            }
        }
    }
}

/// Whether a manifest is the delta after this one. Its base is the same one, or a newer one that was written
/// beside the deltas.
fn continues(next: &Manifest, last: &Manifest) -> bool {
    let links = last.link..=last.number;
    next.kind == Kind::Delta && next.volume == last.volume && links.contains(&next.link)
}

/// Follows a volume to its newest manifest. Returns the later state; `None` if there is none.
///
/// # Errors
/// Errors of [`look`]; [`Error::NotFound`] if the volume was deleted.
pub(crate) async fn follow(manifests: &Manifests, from: &Looked) -> Result<Option<Looked>> {
    let (epoch, mut later) = (from.manifest.epoch, None::<Looked>);
    for _ in 0..MAX_STEPS {
        let last = &later.as_ref().unwrap_or(from).manifest;
        let next = last.number.checked_add(1).ok_or_else(|| Error::overflow("2^64 manifests"))?;
        match manifests.get(epoch, next).await {
            Ok(Some(mut manifest)) if continues(&manifest, last) => {
                let looked = later.get_or_insert_with(|| from.clone());
                apply(&mut looked.table, &manifest)
                    .map_err(|error| error.in_context(format!("object {}", manifests.key(epoch, next))))?;
                manifest.body = Vec::new();
                (looked.manifest, looked.seals) = (manifest, Vec::new());
            }
            // The seal that is known, and no next writer.
            Ok(Some(seal))
                if seal.kind == Kind::Seal
                    && later.is_none()
                    && from.is_sealed()
                    && !has_claim(manifests, epoch.saturating_add(1)).await? =>
            {
                return Ok(None);
            }
            Ok(None) if manifests.store.head(&manifests.key(epoch, last.number)).await?.is_some() => {
                return Ok(later);
            }
            // The writer has deleted what would follow, it has ended, or there is another volume. A seal may
            // have taken the number of a deleted manifest, so that a listing decides.
            Ok(_) | Err(Error::Corrupt(_)) => return look_again(manifests, from).await,
            Err(error) => return Err(error),
        }
    }
    // The writer is faster than one request after the other: what is read at the same time catches up, and
    // what is known already is better than nothing.
    match look_again(manifests, from).await {
        Err(Error::Corrupt(_) | Error::Busy(_)) => Ok(later),
        looked => looked,
    }
}

/// Whether requests for single objects show that no state follows. A listing may show an earlier moment.
///
/// # Errors
/// Errors of the store.
pub(crate) async fn is_last(manifests: &Manifests, looked: &Looked) -> Result<bool> {
    let (epoch, number) = (looked.manifest.epoch, looked.manifest.number);
    let exists = async |number: u64| {
        let found = manifests.store.head(&manifests.key(epoch, number)).await?;
        Ok::<_, Error>(found.is_some())
    };
    // What an opening that hasn't written its base yet makes of the state isn't known.
    Ok(looked.claimed == epoch
        && (looked.is_sealed() || !exists(number.saturating_add(1)).await?)
        && exists(number).await?
        && !has_claim(manifests, epoch.saturating_add(1)).await?)
}

async fn look_again(manifests: &Manifests, from: &Looked) -> Result<Option<Looked>> {
    let Some(looked) = look(manifests).await? else {
        return Err(Error::not_found(format!(
            "no volume below the prefix \"{}\" of the bucket \"{}\" any more",
            manifests.names.prefix(),
            manifests.store.name()
        )));
    };
    let place = |looked: &Looked| (looked.claimed, looked.manifest.epoch, looked.manifest.number);
    Ok((place(&looked) != place(from) || looked.seals != from.seals).then_some(looked))
}
